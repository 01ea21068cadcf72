/**
 * A text editor for JSON and rules: CodeMirror in a shadow root.
 *
 * CodeMirror adds its style sheets to the root that it is in. In a shadow root they are constructed
 * sheets, which the Content-Security-Policy of the page allows, and in the document they are not.
 */

import {
  Compartment,
  EditorState,
  EditorView,
  HighlightStyle,
  bracketMatching,
  closeBrackets,
  closeBracketsKeymap,
  defaultKeymap,
  drawSelection,
  highlightActiveLine,
  history,
  historyKeymap,
  indentOnInput,
  json,
  keymap,
  lineNumbers,
  lintGutter,
  lintKeymap,
  searchKeymap,
  setDiagnostics,
  syntaxHighlighting,
  tags,
} from "../vendor/codemirror.js";

const COLOURS = HighlightStyle.define([
  { tag: tags.propertyName, color: "var(--key)" },
  { tag: tags.string, color: "var(--string)" },
  { tag: tags.number, color: "var(--number)" },
  { tag: [tags.bool, tags.keyword, tags.operator], color: "var(--boolean)" },
  { tag: [tags.null, tags.comment], color: "var(--soft)" },
]);
const THEME = EditorView.theme({
  "&": { height: "100%", color: "var(--text)", backgroundColor: "var(--ground)", fontSize: "13px" },
  "&.cm-focused": { outline: "2px solid var(--accent)", outlineOffset: "-2px" },
  ".cm-scroller": { fontFamily: "var(--mono)", lineHeight: "1.5" },
  ".cm-gutters": { backgroundColor: "var(--raised)", color: "var(--soft)", border: "0" },
  ".cm-activeLine, .cm-activeLineGutter": { backgroundColor: "color-mix(in srgb, var(--hover) 60%, transparent)" },
  ".cm-cursor": { borderLeftColor: "var(--text)" },
  ".cm-selectionBackground, &.cm-focused > .cm-scroller > .cm-selectionLayer .cm-selectionBackground": { backgroundColor: "var(--chosen)" },
  ".cm-tooltip, .cm-panels": { backgroundColor: "var(--raised)", color: "var(--text)", border: "1px solid var(--line)" },
  ".cm-diagnostic-error": { borderLeftColor: "var(--danger)" },
});

/** The editor; it notifies `change` when its text was changed by the user. */
export class Editor extends HTMLElement {
  #view = null;
  #editable = new Compartment();
  #extra = new Compartment();
  #text = "";
  #isReadOnly = false;
  #extensions = [];
  #label = "Text";

  connectedCallback() {
    if (this.#view) return;
    const root = this.shadowRoot ?? this.attachShadow({ mode: "open" });
    const sheet = new CSSStyleSheet();
    sheet.replaceSync(":host { display: block; height: 100%; min-height: 0; overflow: hidden; }");
    root.adoptedStyleSheets = [sheet];
    this.#view = new EditorView({ root, parent: root, state: this.#newState() });
  }

  /** The text; setting it makes a new document, without a history. */
  get value() {
    return this.#view ? this.#view.state.doc.toString() : this.#text;
  }

  set value(text) {
    if (text === this.value) return;
    this.#text = text;
    this.#view?.setState(this.#newState());
  }

  get isReadOnly() {
    return this.#isReadOnly;
  }

  set isReadOnly(isReadOnly) {
    if (isReadOnly === this.#isReadOnly) return;
    this.#isReadOnly = isReadOnly;
    this.#view?.dispatch({ effects: this.#editable.reconfigure(this.#readOnlyExtensions()) });
  }

  /** More extensions of CodeMirror, such as a language in place of JSON. */
  set extensions(extensions) {
    if (extensions === this.#extensions) return;
    this.#extensions = extensions;
    this.#view?.dispatch({ effects: this.#extra.reconfigure(extensions) });
  }

  /** What a screen reader calls it. */
  set label(label) {
    this.#label = label;
  }

  /** The editor of CodeMirror, for what is not here. */
  get view() {
    return this.#view;
  }

  /** Show problems: `{line, column, message, severity}`, lines and columns from 1. */
  showProblems(problems) {
    const { state } = this.#view;
    const diagnostics = problems.map(({ line = 1, column = 1, message, severity = "error" }) => {
      const found = state.doc.line(Math.max(1, Math.min(line, state.doc.lines)));
      const from = Math.min(found.from + Math.max(0, column - 1), found.to);
      return { from, to: Math.min(found.to, state.wordAt(from)?.to ?? from + 1), message, severity };
    });
    this.#view.dispatch(setDiagnostics(state, diagnostics));
  }

  /** Move the cursor to a line and column, from 1, and show them. */
  goTo(line, column = 1) {
    const found = this.#view.state.doc.line(Math.max(1, Math.min(line, this.#view.state.doc.lines)));
    const anchor = Math.min(found.from + column - 1, found.to);
    this.#view.dispatch({ selection: { anchor }, effects: EditorView.scrollIntoView(anchor, { y: "center" }) });
    this.#view.focus();
  }

  focus() {
    this.#view?.focus();
  }

  #readOnlyExtensions() {
    // What cannot be edited can still be focused, to scroll and to search it by keys.
    return this.#isReadOnly
      ? [EditorState.readOnly.of(true), EditorView.editable.of(false), EditorView.contentAttributes.of({ "aria-readonly": "true" })]
      : [];
  }

  #newState() {
    return EditorState.create({
      doc: this.#text,
      extensions: [
        lineNumbers(),
        history(),
        drawSelection(),
        indentOnInput(),
        bracketMatching(),
        closeBrackets(),
        highlightActiveLine(),
        lintGutter(),
        syntaxHighlighting(COLOURS),
        keymap.of([...closeBracketsKeymap, ...defaultKeymap, ...searchKeymap, ...historyKeymap, ...lintKeymap]),
        THEME,
        EditorView.contentAttributes.of({ "aria-label": this.#label, tabindex: "0" }),
        EditorView.updateListener.of((update) => {
          if (update.docChanged && !update.transactions.every((each) => each.isUserEvent("set"))) this.dispatchEvent(new Event("change"));
        }),
        this.#editable.of(this.#readOnlyExtensions()),
        this.#extra.of(this.#extensions.length ? this.#extensions : [json()]),
      ],
    });
  }
}

customElements.define("treedb-editor", Editor);
