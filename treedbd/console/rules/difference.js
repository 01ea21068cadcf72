/** The difference of two texts, side by side, in a dialog. */

import { EditorState, EditorView, MergeView, json, lineNumbers } from "../vendor/codemirror.js";

const THEME = EditorView.theme({
  "&": { fontSize: "13px", color: "var(--text)", backgroundColor: "var(--ground)" },
  ".cm-scroller": { fontFamily: "var(--mono)" },
  ".cm-gutters": { backgroundColor: "var(--raised)", color: "var(--soft)", border: "0" },
});
const FRAME = `
:host { display: block; overflow: auto; height: min(60dvh, 40rem); border: 1px solid var(--line); border-radius: 6px; }
.cm-mergeView { min-width: 40rem; }
.cm-changedLine { background: color-mix(in srgb, var(--changed) 45%, transparent) !important; }
.cm-changedText { background: var(--changed) !important; }
`;

/** The two texts in a shadow root, where the style sheets of CodeMirror are allowed. */
class Difference extends HTMLElement {
  show(before, after) {
    const root = this.attachShadow({ mode: "open" });
    const sheet = new CSSStyleSheet();
    sheet.replaceSync(FRAME);
    root.adoptedStyleSheets = [sheet];
    const extensions = [lineNumbers(), json(), THEME, EditorState.readOnly.of(true), EditorView.editable.of(false), EditorView.lineWrapping];
    this.merge = new MergeView({ a: { doc: before, extensions }, b: { doc: after, extensions }, parent: root, root, collapseUnchanged: { margin: 3, minSize: 8 } });
  }

  disconnectedCallback() {
    this.merge?.destroy();
  }
}

customElements.define("treedb-difference", Difference);

/**
 * Show how a text differs from another; return whether `confirm` was pressed, if there is such a button.
 * @returns {Promise<boolean>}
 */
export function showDifference(before, after, beforeName, afterName, confirm = null) {
  const dialog = document.createElement("dialog");
  dialog.className = "dialog wide-dialog";
  const heading = document.createElement("h2");
  heading.textContent = `${beforeName} → ${afterName}`;
  const difference = document.createElement("treedb-difference");
  const buttons = document.createElement("div");
  buttons.className = "dialog-buttons";
  dialog.append(heading, difference, buttons);
  document.body.append(dialog);
  return new Promise((resolve) => {
    const end = (isConfirmed) => {
      dialog.close();
      dialog.remove();
      resolve(isConfirmed);
    };
    const addButton = (label, isConfirmed, kind) => {
      const button = document.createElement("button");
      button.textContent = label;
      button.className = kind;
      button.addEventListener("click", () => end(isConfirmed));
      buttons.append(button);
    };
    addButton(confirm === null ? "Close" : "Cancel", false, "");
    if (confirm !== null) addButton(confirm, true, "primary");
    dialog.addEventListener("cancel", () => end(false));
    dialog.showModal();
    difference.show(before, after);
  });
}
