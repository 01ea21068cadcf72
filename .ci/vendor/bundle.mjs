// Makes, in the folder `out`, one minified module of each entry file, and the page `page` with its
// two tables renewed. It runs where `build` has installed the packages.
import { createHash } from "node:crypto";
import { mkdirSync, readFileSync, readdirSync, writeFileSync } from "node:fs";
import { build } from "esbuild";

const ENTRIES = ["lit.js", "codemirror.js"];
// What the tables begin with; they end at the next empty line.
const FILES = ["| file | bytes | SHA-256 |", "|---|---|---|"];
const PACKAGES = ["| package | version | licence | in |", "|---|---|---|---|"];

const SETTINGS = {
  bundle: true,
  write: false,
  metafile: true,
  minify: true,
  format: "esm",
  target: "es2022",
  charset: "utf8",
  legalComments: "eof",
  outdir: "out",
  logLevel: "warning",
};

/** Returns name, version, licence and the text of the licence of an installed package. */
function readPackage(name) {
  const folder = `node_modules/${name}`;
  const { version, license } = JSON.parse(readFileSync(`${folder}/package.json`, "utf8"));
  const file = readdirSync(folder).find((each) => /^licen[cs]e/i.test(each));
  const text = readFileSync(`${folder}/${file}`, "utf8").replaceAll("\r\n", "\n").trim();
  return { name, version, license, text };
}

/** Returns the packages that a bundle is made of, by name. */
function packagesOf(metafile) {
  const inputs = Object.keys(Object.values(metafile.outputs)[0].inputs);
  const names = inputs.map((path) => /^node_modules\/((?:@[^/]+\/)?[^/]+)\//.exec(path)?.[1]);
  return [...new Set(names.filter(Boolean))].sort().map(readPackage);
}

/** Returns the comment that a bundle begins with: each licence, once, below its packages. */
function printLicences(packages) {
  const texts = [...new Set(packages.map(({ text }) => text))];
  const parts = texts.map((text) => {
    const those = packages.filter((each) => each.text === text);
    const names = those.map(({ name, version, license }) => `${name} ${version} (${license})`);
    return `${names.join("\n")}\n\n${text}\n`;
  });
  return `/*!\n${parts.join("\n----\n\n")}*/`;
}

/** Returns the text of a bundle, and the packages that it is made of. */
async function bundle(entry) {
  const first = await build({ ...SETTINGS, entryPoints: [entry] });
  const packages = packagesOf(first.metafile);
  const banner = { js: printLicences(packages) };
  const made = await build({ ...SETTINGS, entryPoints: [entry], banner });
  return { text: made.outputFiles[0].text, packages };
}

/** Returns the page with other rows in the table that begins with `head`. */
function replaceTable(page, [head, line], rows) {
  const begin = page.indexOf(`${head}\n${line}\n`);
  if (begin < 0) throw new Error(`VENDOR.md has no table with the head ${head}`);
  const end = page.indexOf("\n\n", begin);
  return page.slice(0, begin) + [head, line, ...rows].join("\n") + page.slice(end);
}

mkdirSync("out");
const files = [];
const packages = [];
for (const entry of ENTRIES) {
  const made = await bundle(entry);
  const digest = createHash("sha256").update(made.text).digest("hex");
  writeFileSync(`out/${entry}`, made.text);
  files.push(`| \`${entry}\` | ${Buffer.byteLength(made.text)} | ${digest} |`);
  const rows = made.packages.map((each) => [`\`${each.name}\``, each.version, each.license]);
  packages.push(...rows.map((row) => `| ${row.join(" | ")} | \`${entry}\` |`));
}
const page = replaceTable(readFileSync("page", "utf8"), FILES, files);
writeFileSync("out/VENDOR.md", replaceTable(page, PACKAGES, packages));
