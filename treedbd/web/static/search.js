// Searches the documentation: the browser fetches all sections when the box is first used.
const box = document.getElementById("search");
const list = document.getElementById("found");
const MOST = 30;
let sections;

function load() {
  sections ??= fetch("search.json").then((response) => response.json());
  return sections;
}

// A section is found if it has all words, and comes earlier if its headings have them.
function find(all, words) {
  const found = [];
  for (const section of all) {
    const headings = `${section.title} ${section.heading}`.toLowerCase();
    const text = section.text.toLowerCase();
    if (!words.every((word) => headings.includes(word) || text.includes(word))) continue;
    const inHeadings = words.filter((word) => section.heading.toLowerCase().includes(word)).length;
    found.push({ section, rank: 2 * inHeadings + (headings.includes(words[0]) ? 1 : 0) });
  }
  return found.sort((one, other) => other.rank - one.rank).slice(0, MOST);
}

function show({ section }, words) {
  const item = document.createElement("li");
  const link = document.createElement("a");
  link.href = `${section.page}${section.heading ? `#${section.anchor}` : ""}`;
  link.textContent = [...new Set([section.title, section.heading || section.title])].join(" › ");
  const at = Math.max(0, section.text.toLowerCase().indexOf(words[0]));
  const excerpt = document.createElement("div");
  excerpt.textContent = section.text.slice(Math.max(0, at - 40), at + 120);
  item.append(link, excerpt);
  return item;
}

async function search() {
  const typed = box.value;
  const words = typed.toLowerCase().split(/\s+/).filter(Boolean);
  const found = words.length ? find(await load(), words) : [];
  if (box.value !== typed) return; // more was typed meanwhile
  list.replaceChildren(...found.map((each) => show(each, words)));
  if (words.length && !found.length) list.append("Nothing has all of these words.");
  list.hidden = !words.length;
}

box.addEventListener("input", search);
box.hidden = false;
