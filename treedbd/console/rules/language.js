/**
 * The language of rules for the editor: JSON with comments, whose rules are expressions in strings.
 *
 * A quote does not begin a token of its own: CodeMirror types over a quote that it has closed itself only where
 * no token begins.
 */

import { HighlightStyle, LanguageSupport, StreamLanguage, autocompletion, syntaxHighlighting, tags } from "../vendor/codemirror.js";
import { indentJson } from "../tools/json.js";

const RULES = /^"\.(read|write|validate)"/;
const VARIABLES = ["auth", "data", "newData", "root", "now", "query"];
const METHODS = [
  "val()", "child('')", "parent()", "exists()", "hasChild('')", "hasChildren()", "getPriority()",
  "isString()", "isNumber()", "isBoolean()",
  "length", "contains('')", "beginsWith('')", "endsWith('')", "replace('', '')", "toLowerCase()", "toUpperCase()", "matches(/^$/)",
];
const KEYS = ['".read": ""', '".write": ""', '".validate": ""', '".indexOn": [""]', '".ttl": 86400', '"$key": {}', '"$other": {".validate": "false"}'];

const parser = {
  name: "rules",
  startState: () => ({ isComment: false, isRule: false, isExpression: false }),
  copyState: (state) => ({ ...state }),
  token(stream, state) {
    if (state.isComment) return readComment(stream, state);
    if (stream.eatSpace()) return null;
    if (state.isExpression) return readExpression(stream, state);
    if (stream.match("//")) {
      stream.skipToEnd();
      return "comment";
    }
    if (stream.match("/*")) {
      state.isComment = true;
      return readComment(stream, state);
    }
    return readDocument(stream, state);
  },
  languageData: { commentTokens: { line: "//", block: { open: "/*", close: "*/" } }, closeBrackets: { brackets: ["(", "[", "{", "'", '"'] } },
};

function readComment(stream, state) {
  if (stream.match(/^.*?\*\//)) state.isComment = false;
  else stream.skipToEnd();
  return "comment";
}

function readDocument(stream, state) {
  if (stream.match(RULES)) {
    state.isRule = true;
    return "keyword";
  }
  if (state.isRule && stream.eat('"')) {
    state.isRule = false;
    state.isExpression = true;
    return null;
  }
  if (stream.match(/^"(?:[^"\\]|\\.)*"?/)) return stream.match(/^\s*:/, false) ? "propertyName" : "string";
  if (stream.match(/^(true|false)\b/)) {
    state.isRule = false;
    return "bool";
  }
  if (stream.match(/^-?\d[\d.eE+-]*/)) return "number";
  stream.next();
  return "punctuation";
}

function readExpression(stream, state) {
  if (stream.eat('"')) {
    state.isExpression = false;
    return null;
  }
  if (stream.match(/^'(?:[^'\\]|\\.)*'?/)) return "string";
  if (stream.match(/^\/(?:[^/\\"]|\\.)+\/i?/)) return "regexp";
  if (stream.match(/^\$\w+/)) return "propertyName";
  if (stream.match(/^(true|false|null)\b/)) return "bool";
  if (stream.match(/^\d[\d.]*/)) return "number";
  const word = stream.match(/^[A-Za-z_]\w*/);
  if (word) return VARIABLES.includes(word[0]) ? "variableName" : "name";
  stream.next();
  return "operator";
}

const COLOURS = HighlightStyle.define([
  { tag: tags.keyword, color: "var(--accent)", fontWeight: "600" },
  { tag: tags.variableName, color: "var(--boolean)" },
  { tag: tags.regexp, color: "var(--number)" },
]);

/** Offer variables and methods within an expression, and keys outside of it. */
function complete(context) {
  const line = context.state.doc.lineAt(context.pos);
  const before = line.text.slice(0, context.pos - line.from);
  const word = context.matchBefore(/[$\w]*/);
  if (!/"\.(read|write|validate)"\s*:\s*"[^"]*$/.test(before)) {
    const quoted = context.matchBefore(/"[.$\w]*/);
    if (quoted === null || /:\s*"[^"]*$/.test(before)) return null;
    const isClosed = line.text[context.pos - line.from] === '"';
    return { from: quoted.from, options: KEYS.map((label) => ({ label, type: "property", apply: isClosed ? applyOver : label })) };
  }
  const isMethod = before.at(word.from - line.from - 1) === ".";
  if (!isMethod && word.from === word.to && !context.explicit) return null;
  const options = isMethod ? METHODS.map((label) => ({ label, type: "method" })) : VARIABLES.map((label) => ({ label, type: "variable" }));
  return { from: word.from, options };
}

/** Put a completion in place of what is typed and of the quote after it, which was closed by itself. */
function applyOver(view, { label }, from, to) {
  view.dispatch({ changes: { from, to: to + 1, insert: label }, selection: { anchor: from + label.length }, userEvent: "input.complete" });
}

const STRING_OR_COMMENT = /("(?:[^"\\]|\\.)*")|\/\/[^\n]*|\/\*[^]*?\*\//g;
const STRING_OR_LAST_COMMA = /("(?:[^"\\]|\\.)*")|,(?=\s*[}\]])/g;

/** Return rules with an indent; null if they have comments, whose places an indent would not keep. */
export function formatRules(text) {
  try {
    JSON.parse(text);
    return `${indentJson(text)}\n`;
  } catch {
    return null;
  }
}

/** Return what rules without errors allow everyone at the root: `read`, `write`, both or nothing. */
export function openToAll(text) {
  try {
    const plain = text.replace(STRING_OR_COMMENT, (_, string = "") => string.replace(/[\n\r\t]/g, " "));
    const { rules } = JSON.parse(plain.replace(STRING_OR_LAST_COMMA, (_, string = "") => string));
    return ["read", "write"].filter((verb) => String(rules[`.${verb}`]).trim() === "true");
  } catch {
    return []; // it has errors
  }
}

/** Return the extensions of the editor for rules. */
export function rulesLanguage() {
  return [
    new LanguageSupport(StreamLanguage.define(parser)),
    syntaxHighlighting(COLOURS),
    autocompletion({ override: [complete], icons: false }),
  ];
}
