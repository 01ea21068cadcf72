/**
 * JSON as text, where parsing and printing it would lose digits of numbers or the order of members.
 *
 * The text given is known to be valid JSON.
 */

const TOKEN = /"[^"\\]*(?:\\.[^"\\]*)*"|[{}[\],:]|[^\s{}[\],:"]+/g;
const [QUOTE, BACKSLASH, COMMA, OPEN_BRACE, CLOSE_BRACE, OPEN_BRACKET, CLOSE_BRACKET] = [...'"\\,{}[]'].map((each) => each.charCodeAt(0));

/** Return JSON with line breaks and an indent of two spaces. */
export function indentJson(text) {
  const parts = [];
  let depth = 0;
  let before = "";
  for (const [token] of text.matchAll(TOKEN)) {
    const isEnd = token === "}" || token === "]";
    if (isEnd) depth -= 1;
    if (isEnd ? before !== "{" && before !== "[" : before === "{" || before === "[" || before === ",") {
      parts.push(`\n${"  ".repeat(depth)}`);
    }
    parts.push(token === ":" ? ": " : token);
    if (token === "{" || token === "[") depth += 1;
    before = token;
  }
  return parts.join("");
}

/**
 * Yield the members of the object or array that begins at an offset: `{key, start, end}`, the range of
 * its value; keys of an array are positions. Nothing is yielded for another value.
 * @param {string} text
 * @param {number} from
 */
export function* membersOf(text, from = 0) {
  let at = skipSpace(text, from);
  const isArray = text[at] === "[";
  if (!isArray && text[at] !== "{") return;
  at = skipSpace(text, at + 1);
  for (let position = 0; text[at] !== "}" && text[at] !== "]"; position += 1) {
    let key = String(position);
    if (!isArray) {
      const end = endOfString(text, at);
      key = JSON.parse(text.slice(at, end));
      at = skipSpace(text, skipSpace(text, end) + 1);
    }
    const end = endOfValue(text, at);
    yield { key, start: at, end };
    at = skipSpace(text, end);
    if (text[at] === ",") at = skipSpace(text, at + 1);
  }
}

function skipSpace(text, from) {
  let at = from;
  while (text.charCodeAt(at) <= 32) at += 1;
  return at;
}

/** Return where the string ends that begins at an offset. */
function endOfString(text, from) {
  let at = from + 1;
  while (text.charCodeAt(at) !== QUOTE) at += text.charCodeAt(at) === BACKSLASH ? 2 : 1;
  return at + 1;
}

/** Return where the value ends that begins at an offset. */
function endOfValue(text, from) {
  let at = from;
  let depth = 0;
  for (;;) {
    const code = text.charCodeAt(at);
    if (code === QUOTE) {
      at = endOfString(text, at);
      if (depth === 0) return at;
    } else if (code === OPEN_BRACE || code === OPEN_BRACKET) {
      depth += 1;
      at += 1;
    } else if (code === CLOSE_BRACE || code === CLOSE_BRACKET) {
      if (depth === 0) return at; // a number or word ends before it
      depth -= 1;
      at += 1;
      if (depth === 0) return at;
    } else if (depth === 0 && (code === COMMA || code <= 32 || Number.isNaN(code))) {
      return at;
    } else {
      at += 1;
    }
  }
}

/**
 * Yield the bodies of the PATCH requests that write the members of an object, by paths, each of about
 * `most` characters.
 * A member that is too large for one request is removed, and its own members are written.
 */
export function* piecesOf(text, most) {
  let members = [];
  let size = 0;
  const take = () => {
    const piece = { body: `{${members.join(",")}}`, size };
    [members, size] = [[], 0];
    return piece;
  };
  for (const { path, value, isFirst } of placesOf(text, 0, "", most)) {
    if (isFirst && members.length) yield take(); // what is removed is not in one request with what is below it
    members.push(`${JSON.stringify(path)}:${value}`);
    size += value.length;
    if (isFirst || size >= most) yield take();
  }
  if (members.length) yield take();
}

function* placesOf(text, from, prefix, most) {
  let priority = null;
  for (const { key, start, end } of membersOf(text, from)) {
    const path = `${prefix}${key}`;
    const isLarge = end - start > most && /^[{[](?!\s*"\.value")/.test(text.slice(start, start + 100));
    if (key === ".priority") priority = { path, value: text.slice(start, end) };
    else if (isLarge) {
      yield { path, value: "null", isFirst: true };
      yield* placesOf(text, start, `${path}/`, most);
    } else yield { path, value: text.slice(start, end) };
  }
  if (priority !== null) yield priority; // of a node that is there by now
}
