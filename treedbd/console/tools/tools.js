/** What can be done at a place besides editing it: the bar above the tree, and the menu of a row. */

import { html } from "../vendor/lit.js";
import { showMenu } from "../core/dialog.js";
import { router } from "../core/router.js";
import { session } from "../core/session.js";
import { undoItem } from "../tree/changes.js";
import { copyItems } from "./copying.js";
import "./filter.js";
import { clonePlace } from "./moving.js";
import { exportPlace, importInto } from "./transfer.js";

/** Return the tools of the bar above the tree. */
export function renderTools(view) {
  const { keys } = view.root;
  const isTable = router.parameters.table !== undefined;
  return html`<button aria-pressed=${String(view.isFiltering)} title="Filter the children (f)" @click=${() => view.toggleFilter()}>Filter</button>
    <button aria-pressed=${String(isTable)} title="The children as a table (t)" @click=${toggleTable}>Table</button>
    <button class="icon-button" aria-label="More of this place" title="More of this place" @click=${(event) =>
      showMenu(event.currentTarget, [
        { label: "Export JSON …", run: () => exportPlace(keys) },
        { label: "Import JSON …", isOff: session.isReadOnly, run: () => importInto(keys, view.noteWrite) },
        null,
        ...copyItems(keys, view.root.query),
        null,
        undoItem(),
      ])}>⋯</button>`;
}

/** Return the parameters of a route that another place keeps: whether it is shown as a table. */
export function keptElsewhere() {
  return { table: router.parameters.table };
}

/** Show the children of the place as a table, or as a tree again. */
export function toggleTable() {
  const { table, ...others } = router.parameters;
  router.go("data", router.keys, table === undefined ? { ...others, table: 1 } : others);
}

/** Return the items of a row's menu that do something with its place. */
export function placeItems(view, { keys, info, parent, node }) {
  const isOff = session.isReadOnly;
  const isRoot = keys.length === 0;
  return [
    { label: "Rename …", key: "F2", isOff: isOff || isRoot, run: () => view.rename({ keys, info, parent }) },
    { label: "Clone …", isOff: isOff || isRoot, run: () => clonePlace(keys, info, view.noteWrite) },
    null,
    { label: "Export JSON …", run: () => exportPlace(keys) },
    { label: "Import JSON …", isOff, run: () => importInto(keys, view.noteWrite) },
    { label: "Copy …", run: () => showMenu(view.anchorOf(keys), copyItems(keys, node?.query)) },
  ];
}
