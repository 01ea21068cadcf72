/** How one row of the tree looks. Values are text, whatever they hold. */

import { html, nothing } from "../vendor/lit.js";
import { formatBytes, formatCount, formatLeaf, formatPath } from "../core/format.js";
import { describeViewer } from "../core/identity.js";
import { hrefOf } from "../core/router.js";
import { session } from "../core/session.js";

const SHOWN_VALUE = 400;

/**
 * @param {import("./model.js").Row} row
 * @param {{number: number, isActive: boolean, isOpen: boolean, isRoot: boolean, editor: unknown, isReadOnly: boolean,
 *   setSize: number, on: {toggle: Function, choose: Function, edit: Function, add: Function, remove: Function, menu: Function, more: Function}}} look
 */
export function renderRow(row, look) {
  if (row.isNote) return renderNote(row, look);
  const { info } = row;
  const { number, isActive, isOpen, on } = look;
  if (info === null) {
    return html`<div class="tree-row unknown ${isActive ? "active" : ""}" id="row-${number}" role="treeitem" aria-level=${row.depth + 1} .style=${indent(row)}>
      <span class="twisty"></span><span class="placeholder"></span></div>`;
  }
  const isContainer = info.type === "object";
  return html`<div
    class="tree-row ${isActive ? "active" : ""} ${info.flash ? `flash-${info.flash}` : ""}"
    id="row-${number}" role="treeitem" aria-level=${row.depth + 1} aria-selected=${isActive ? "true" : "false"}
    aria-expanded=${isContainer ? String(isOpen) : nothing} aria-posinset=${row.position + 1} aria-setsize=${look.setSize}
    .style=${indent(row)} data-key=${info.key}
    @mousedown=${(event) => event.button === 0 && on.choose(row, number)}
    @dblclick=${(event) => on.edit(row, number, event)}
    @contextmenu=${(event) => on.menu(row, number, event)}>
    ${isContainer
      ? html`<button class="twisty" tabindex="-1" aria-label=${isOpen ? "Close" : "Open"} @click=${() => on.toggle(row)}>${isOpen ? "▾" : "▸"}</button>`
      : html`<span class="twisty"></span>`}
    <span class="tree-key" title=${info.key}>${look.isRoot ? look.rootName : info.key}</span>
    ${look.editor ?? html`<span class="tree-colon">${isContainer || info.type === "unknown" ? "" : ":"}</span>${renderValue(info)}`}
    ${info.priority === undefined ? nothing : html`<span class="tree-priority" title="Priority">↕ ${formatLeaf(info.priority)}</span>`}
    ${look.editor ? nothing : renderActions(row, look)}
  </div>`;
}

function indent(row) {
  return `--depth: ${row.depth}`;
}

/** Return a leaf as text, or how many children a container has, and its size. */
export function renderValue(info) {
  if (info.type === "object") {
    return html`<span class="tree-value value-object">${describeContainer(info)}</span>
      ${info.order ? html`<span class="tree-size">${info.order.slice(0, SHOWN_VALUE)}</span>` : nothing}`;
  }
  if (info.type === "unknown") return nothing; // the note below says why
  if (info.type === "null") return html`<span class="tree-value value-null">nothing</span>`;
  const text = formatLeaf(info.value).slice(0, SHOWN_VALUE);
  return html`<span class="tree-value value-${info.type}" title=${info.type}>${text}${info.length ? "…" : ""}</span>
    ${info.length ? html`<span class="tree-size">${formatCount(info.length)} characters</span>` : nothing}`;
}

function describeContainer({ count, bytes, least, counted, about, selected }) {
  if (selected !== undefined) return selected;
  const parts = [];
  const more = least ? "+" : "";
  const many = least && !counted ? "+" : "";
  if (count !== undefined) parts.push(`${formatCount(count)}${many} ${count === 1 && !many ? "child" : "children"}`);
  if (bytes !== undefined) parts.push(`${about ? "about " : ""}${formatBytes(bytes)}${more}`);
  return parts.join(" · ");
}

function renderActions(row, { number, isReadOnly, on }) {
  const { info } = row;
  const isContainer = info.type === "object";
  return html`<span class="tree-actions">
    ${isReadOnly
      ? nothing
      : html`<button class="icon-button" tabindex="-1" title="Add a child (a)" aria-label="Add a child to ${info.key}" @click=${() => on.add(row)}>+</button>
          ${isContainer ? nothing : html`<button class="icon-button" tabindex="-1" title="Edit (Enter)" aria-label="Edit ${info.key}" @click=${() => on.edit(row, number)}>✎</button>`}
          ${info.type === "null" ? nothing : html`<button class="icon-button" tabindex="-1" title="Delete (Del)" aria-label="Delete ${info.key}" @click=${() => on.remove(row)}>✕</button>`}`}
    <button class="icon-button" tabindex="-1" title="More (m)" aria-label="More of ${info.key}" @click=${(event) => on.menu(row, number, event)}>⋯</button>
  </span>`;
}

function renderNote({ parent, depth }, { number, isActive, isReadOnly, on }) {
  return html`<div class="tree-row note ${isActive ? "active" : ""}" id="row-${number}" role="treeitem" aria-level=${depth + 1} .style=${`--depth: ${depth}`}>
    <span class="twisty"></span>${textOfNote(parent, on, isReadOnly)}</div>`;
}

function describeError(error) {
  return error.isDenied ? `${describeViewer()} may not read this place (${error.message}).` : error.message;
}

function textOfNote(node, on, isReadOnly) {
  if (node.error !== null) {
    return html`<span class="problem" role="alert">${describeError(node.error)}</span>
      ${node.error.isDenied && session.isAdmin
        ? html`<a href=${hrefOf("rules", ["playground"], { path: formatPath(node.keys), method: "GET", auth: JSON.stringify(session.viewAs?.auth ?? null) })}>Why?</a>`
        : nothing}
      <button class="link" @click=${() => on.retry(node)}>Try again</button>`;
  }
  if (node.count === null) return html`<span class="hint reading">Reading …</span>`;
  if (node.hasMore) return html`<button class="link" @click=${() => on.more(node)}>${node.isNoteFirst ? "Show earlier" : "Show more"}</button>`;
  if (node.query !== null) return html`<span class="hint">No child matches the filter.</span>`;
  return html`<span class="hint">Nothing is stored here.</span>
    ${isReadOnly
      ? nothing
      : html`<button class="link" @click=${() => on.addTo(node)}>Add a child</button>
          <button class="link" @click=${() => on.importTo(node)}>Import JSON</button>`}`;
}
