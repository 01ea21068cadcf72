/** The difference of two texts in a dialog: side by side, or below each other where it is narrow. */

import { EditorState, EditorView, MergeView, lineNumbers, unifiedMergeView } from "../vendor/codemirror.js";
import { rulesLanguage } from "./language.js";

const THEME = EditorView.theme({
  "&": { fontSize: "13px", color: "var(--text)", backgroundColor: "var(--ground)" },
  "&.cm-focused": { outline: "2px solid var(--accent)", outlineOffset: "-2px" },
  ".cm-scroller": { fontFamily: "var(--mono)" },
  ".cm-gutters": { backgroundColor: "var(--raised)", color: "var(--soft)", border: "0" },
});
/** CodeMirror marks changes by an underline in fixed colours: here by the console's, and a sign. */
const FRAME = `
:host { display: block; overflow: auto; height: min(60dvh, 40rem); border: 1px solid var(--line); border-radius: 6px; }
.cm-mergeView .cm-changedLine, .cm-deletedLine, .cm-deletedChunk, .cm-insertedLine { background: none; }
.cm-merge-a .cm-changedLine, .cm-deletedChunk { background: color-mix(in srgb, var(--removed) 45%, transparent) !important; }
.cm-merge-b .cm-changedLine, .cm-changedLine, .cm-insertedLine { background: color-mix(in srgb, var(--added) 45%, transparent) !important; }
.cm-merge-a .cm-changedText, .cm-deletedChunk .cm-deletedText { background: var(--removed) !important; }
.cm-merge-b .cm-changedText, .cm-changedText { background: var(--added) !important; }
.cm-deletedChunk { padding-left: 6px; text-decoration: line-through; }
.names { position: sticky; top: 0; z-index: 2; display: flex; padding: .3em .6em; background: var(--raised); border-bottom: 1px solid var(--line); font-weight: 600; }
.names > * { flex: 1; }
.cm-collapsedLines { background: var(--raised) !important; color: var(--soft) !important; }
`;
/** Lines are wrapped, and texts below each other, where the page is narrower than this. */
export const NARROW_PX = 700;

/** The two texts in a shadow root, where the style sheets of CodeMirror are allowed. */
class Difference extends HTMLElement {
  show(before, after, names) {
    const root = this.attachShadow({ mode: "open" });
    const sheet = new CSSStyleSheet();
    sheet.replaceSync(FRAME);
    root.adoptedStyleSheets = [sheet];
    const heading = make("div", "names");
    heading.append(...names.map((each) => make("span", "", each)));
    root.append(heading);
    const extensions = (name) => [
      lineNumbers(),
      ...rulesLanguage(),
      THEME,
      EditorState.readOnly.of(true),
      EditorView.editable.of(false),
      EditorView.lineWrapping,
      EditorView.contentAttributes.of({ "aria-label": name, tabindex: "0" }),
    ];
    const collapseUnchanged = { margin: 3, minSize: 8 };
    if (innerWidth < NARROW_PX) {
      const unified = unifiedMergeView({ original: before, mergeControls: false, collapseUnchanged });
      this.merge = new EditorView({ doc: after, extensions: [...extensions("Difference"), unified], parent: root, root });
    } else {
      this.merge = new MergeView({ a: { doc: before, extensions: extensions(names[0]) }, b: { doc: after, extensions: extensions(names[1]) }, parent: root, root, collapseUnchanged });
    }
    sheet.replaceSync(FRAME); // after the sheets that the editors have added
    root.adoptedStyleSheets = [...root.adoptedStyleSheets.filter((each) => each !== sheet), sheet];
  }

  disconnectedCallback() {
    this.merge?.destroy();
  }
}

customElements.define("treedb-difference", Difference);

/**
 * Show how a text differs from another; return whether `confirm` was pressed, if there is such a button.
 * @param {{title?: string, confirm?: string, note?: string, isDanger?: boolean}} options
 * @returns {Promise<boolean>}
 */
export function showDifference(before, after, beforeName, afterName, { title = `${beforeName} → ${afterName}`, confirm = null, note = "", isDanger = false } = {}) {
  const dialog = make("dialog", "dialog wide-dialog");
  const heading = make("h2", "", before === after ? `${beforeName} and ${afterName}: no difference` : title);
  heading.id = "difference-title";
  dialog.setAttribute("aria-labelledby", heading.id);
  const difference = make("treedb-difference");
  const buttons = make("div", "dialog-buttons");
  dialog.append(heading, ...(note ? [make("p", isDanger ? "problem" : "hint", note)] : []), difference, buttons);
  document.body.append(dialog);
  const focused = document.activeElement;
  return new Promise((resolve) => {
    const end = (isConfirmed) => {
      dialog.close();
      dialog.remove();
      if (focused instanceof HTMLElement && focused.isConnected) focused.focus();
      resolve(isConfirmed);
    };
    const addButton = (label, isConfirmed, kind) => {
      const button = make("button", kind, label);
      button.addEventListener("click", () => end(isConfirmed));
      buttons.append(button);
      return button;
    };
    let last = addButton(confirm === null ? "Close" : "Cancel", false, "");
    if (confirm !== null) last = addButton(confirm, true, isDanger ? "danger" : "primary");
    dialog.addEventListener("cancel", (event) => {
      event.preventDefault();
      end(false);
    });
    dialog.showModal();
    difference.show(before, after, [beforeName, afterName]);
    last.focus();
  });
}

function make(name, className = "", text = "") {
  const element = document.createElement(name);
  if (className) element.className = className;
  if (text) element.textContent = text;
  return element;
}
