/** The keys of the console, and the dialog that lists them. */

import { html } from "../vendor/lit.js";
import { ask } from "./dialog.js";

const KEYS = [
  ["1, 2, 3", "Data, Rules, Now"],
  ["/", "Go to a place"],
  ["↑ ↓", "Up and down the rows"],
  ["→ ←", "Open and close; to the parent"],
  ["Page Up, Page Down, Home, End", "Scroll"],
  ["Enter", "Edit the value, or open"],
  ["a", "Add a child"],
  ["Del", "Delete"],
  ["F2", "Rename"],
  ["f", "Filter the children"],
  ["t", "Table"],
  ["m", "Menu of the row"],
  ["Ctrl Z", "Undo the last change"],
  ["Ctrl Enter", "Save what a dialog asks for"],
  ["?", "These keys"],
];

/** Show which key does what. */
export function showKeysDialog() {
  return ask({
    title: "Keys",
    body: html`<dl class="keys">${KEYS.map(([key, does]) => html`<dt><kbd>${key}</kbd></dt><dd>${does}</dd>`)}</dl>`,
    confirm: "Close",
    cancel: null,
  });
}
