// Uses what the console is made of, and reports what the Content-Security-Policy refuses.
import * as lit from "/vendor/lit.js";
import * as codemirror from "/vendor/codemirror.js";

const {
  LitElement, classMap, createRef, guard, html, ifDefined, keyed, live, nothing, ref, render, repeat,
  svg, until,
} = lit;
const {
  Compartment, EditorState, EditorView, HighlightStyle, MergeView, StreamLanguage, autocompletion,
  bracketMatching, closeBrackets, closeBracketsKeymap, completeFromList, completionKeymap, defaultKeymap,
  drawSelection, dropCursor, foldGutter, foldKeymap, highlightActiveLine, highlightActiveLineGutter,
  highlightSelectionMatches, highlightSpecialChars, history, historyKeymap, indentOnInput, indentUnit,
  indentWithTab, json, jsonParseLinter, keymap, lineNumbers, lintGutter, lintKeymap, linter,
  openLintPanel, openSearchPanel, placeholder, search, searchKeymap, setDiagnostics, startCompletion,
  syntaxHighlighting, tags, unifiedMergeView,
} = codemirror;

window.violations = [];
document.addEventListener("securitypolicyviolation", (event) => {
  violations.push(`${event.effectiveDirective}: ${event.blockedURI} ${event.sample}`);
});
window.exported = { lit: Object.keys(lit), codemirror: Object.keys(codemirror) };

// --- lit

class Counter extends LitElement {
  static properties = { count: { type: Number } };

  constructor() {
    super();
    this.count = 0;
  }

  createRenderRoot() {
    return this;
  }

  render() {
    return html`<button @click=${() => this.count++}>clicked ${this.count}</button>`;
  }
}
customElements.define("test-counter", Counter);

const HOSTILE = "<img src=x onerror=alert(1)>";
const input = createRef();
let keys = ["a", "b", HOSTILE];
const template = () => html`
  <test-counter></test-counter>
  <ul>${repeat(keys, (key) => key, (key) => html`<li title=${key}>${key}</li>`)}</ul>
  <input ${ref(input)} class=${classMap({ wide: true, narrow: false })} .value=${live(HOSTILE)}
    placeholder=${ifDefined(undefined)} .style=${"width: 123px"}>
  ${keyed(1, html`<b>keyed</b>`)} ${guard([keys], () => html`<i>${keys.length}</i>`)}
  ${until(Promise.resolve(html`<em>later</em>`), nothing)}
  <svg width="10" height="10">${svg`<circle r="5"></circle>`}</svg>`;
const place = document.querySelector("#lit");
render(template(), place);
window.reverse = () => {
  keys = keys.toReversed();
  render(template(), place);
};

// --- CodeMirror

function shadow(id) {
  return document.querySelector(id).attachShadow({ mode: "open" });
}

const style = HighlightStyle.define([
  { tag: tags.propertyName, color: "rgb(1, 2, 3)" },
  { tag: tags.keyword, fontWeight: "700" },
]);
const words = StreamLanguage.define({
  token: (stream) => {
    if (stream.match(/\w+/)) return stream.current() === "allow" ? "keyword" : "variableName";
    stream.next();
    return null;
  },
});
const completions = completeFromList([
  { label: "newData", type: "variable", detail: "what is written", info: "the value after the write" },
  { label: "root", type: "keyword", info: () => document.createElement("b") },
]);
const language = new Compartment();
const all = (more) => [
  lineNumbers(), highlightActiveLine(), highlightActiveLineGutter(), highlightSpecialChars(),
  drawSelection(), dropCursor(), history(), foldGutter(), indentOnInput(), bracketMatching(),
  closeBrackets(), highlightSelectionMatches(), indentUnit.of("  "), placeholder("rules"),
  EditorState.allowMultipleSelections.of(true), EditorView.lineWrapping,
  EditorView.contentAttributes.of({ style: "letter-spacing: 3px", "aria-label": "rules" }),
  EditorView.theme({ ".cm-gutters": { backgroundColor: "rgb(4, 5, 6)" } }),
  syntaxHighlighting(style), search({ top: true }),
  keymap.of([
    ...closeBracketsKeymap, ...defaultKeymap, ...searchKeymap, ...historyKeymap, ...foldKeymap,
    ...completionKeymap, ...lintKeymap, indentWithTab,
  ]),
  more,
];

const root = shadow("#editor");
window.editor = new EditorView({
  parent: root,
  root,
  doc: '{\n  "rules": {\n    "a": [1, 2],\n    "b": nul\n  }\n}\n',
  extensions: all([
    language.of([json(), linter(jsonParseLinter(), { delay: 0 })]), lintGutter(),
    autocompletion({ override: [completions], interactionDelay: 0 }),
  ]),
});
window.openAll = () => {
  openLintPanel(editor);
  openSearchPanel(editor);
};
window.complete = () => {
  editor.focus();
  startCompletion(editor);
};
window.useWords = () => {
  const diagnostic = {
    from: 0, to: 5, severity: "error", message: HOSTILE, actions: [{ name: "mend", apply: () => {} }],
  };
  editor.dispatch({ changes: { from: 0, to: editor.state.doc.length, insert: "allow that\t\u200b" } });
  editor.dispatch({ effects: language.reconfigure(words) });
  editor.dispatch(setDiagnostics(editor.state, [diagnostic]));
};

const [before, after] = ['{\n  "a": 1,\n  "b": 2\n}\n', '{\n  "a": 1,\n  "b": 3,\n  "c": 4\n}\n'];
const mergeRoot = shadow("#merge");
window.merge = new MergeView({
  parent: mergeRoot,
  root: mergeRoot,
  a: { doc: before, extensions: all(json()) },
  b: { doc: after, extensions: all(json()) },
  revertControls: "a-to-b",
  collapseUnchanged: { margin: 1, minSize: 1 },
});
const unifiedRoot = shadow("#unified");
window.unified = new EditorView({
  parent: unifiedRoot,
  root: unifiedRoot,
  doc: after,
  extensions: all([json(), unifiedMergeView({ original: before, syntaxHighlightDeletions: true })]),
});

window.mountInDocument = () => new EditorView({ parent: document.querySelector("#outside"), doc: "a" });
window.isReady = true;
