/**
 * The data view: the tree from a place on, live, with what can be done at each row.
 *
 * The place is that of the route. `Pages` reads what the rows show; `Rows` shows those on the screen.
 */

import { html, nothing } from "../vendor/lit.js";
import { describe } from "../core/api.js";
import { showMenu, tellError } from "../core/dialog.js";
import { Component } from "../core/element.js";
import { formatPath, parsePath, problemOfKey } from "../core/format.js";
import { hrefOf, router } from "../core/router.js";
import { session } from "../core/session.js";
import { hasBounds, queryOf } from "../tools/filter.js";
import { renamePlace } from "../tools/moving.js";
import "../tools/table.js";
import { importInto } from "../tools/transfer.js";
import { keptElsewhere, placeItems, renderTools, toggleTable } from "../tools/tools.js";
import { undoLast } from "./changes.js";
import { LeafEditor, addChild, editJson, editLeaf, editPriority, removeAt } from "./edit.js";
import { OpenNode, PAGE, findMark, markOf, nodeAt, numberOf, ownNumber, rowAt, rowCount } from "./model.js";
import { Pages } from "./pages.js";
import { renderRow } from "./row.js";
import "./rows.js";

/** Below this width leaves are edited in a dialog. */
const NARROW_PX = 640;
const STATES = { live: "live", connecting: "connecting", lost: "reconnecting", off: "not live" };

export class DataView extends Component {
  static properties = { active: { state: true }, isTyping: { state: true }, isFiltering: { state: true } };

  constructor() {
    super();
    this.active = 0;
    /** The marks of the active row and of those on the screen: these stay where they are when others come or go. */
    this.marks = { active: null, shown: [] };
    this.isTyping = false;
    this.isFiltering = isFiltered();
    this.editor = null;
    /** Note a write of this console: what shows it is read again at once. */
    this.noteWrite = (keys) => this.pages.noteWrite(keys);
    this.on = {
      toggle: (row) => this.toggle(row),
      choose: (row, number) => this.choose(number),
      edit: (row, number) => this.edit(row, number),
      add: (row) => this.add(row.keys),
      addTo: (node) => this.add(node.keys),
      importTo: (node) => importInto(node.keys, this.noteWrite),
      remove: (row) => this.removeRow(row),
      menu: (row, number, event) => this.showRowMenu(row, number, event),
      more: (node) => this.showMore(node),
      retry: (node) => this.pages.reload(node),
    };
  }

  connectedCallback() {
    super.connectedCallback();
    this.watch(session, "change");
    this.watch(router, "change", () => this.#follow());
    this.watch(document, "keydown", (event) => this.#onGlobalKey(event));
    this.whenGone(() => this.ending?.abort());
    this.open(router.keys);
  }

  /** Show another place. */
  open(keys) {
    this.ending?.abort();
    this.ending = new AbortController();
    this.root = new OpenNode(keys);
    this.root.query = queryOf(router.parameters);
    if (isFiltered()) this.isFiltering = true; // as by a link, or by going back
    this.shownRoute = routeOf();
    this.pages = new Pages(this.root, this.ending.signal);
    this.pages.addEventListener("change", () => this.#settle());
    this.pages.addEventListener("written", () => this.querySelector("treedb-table")?.noteWrite());
    this.pages.follow();
    if (!this.editor?.hasLeftRow) this.editor = null;
    this.active = 0;
    this.marks = { active: null, shown: [] };
    this.rows?.moveTo(0);
    this.requestUpdate();
  }

  get rows() {
    return this.querySelector("treedb-rows");
  }

  #follow() {
    if (router.view !== "data") return;
    if (isFiltered()) this.isFiltering = true;
    if (routeOf() !== this.shownRoute) this.open(router.keys);
    else this.requestUpdate();
  }

  render() {
    return html`<div class="tree">
      <div class="tree-bar">
        ${this.#renderPlace()}
        <span class="liveness ${this.pages.state}" title=${this.pages.error?.message ?? "How current the rows are"}>${STATES[this.pages.state]}</span>
        ${renderTools(this)}
      </div>
      ${this.editor?.hasLeftRow ? html`<div class="editor-bar row-of"><code>${formatPath(this.editor.keys)}</code>${this.editor.render()}</div>` : nothing}
      ${this.isFiltering ? html`<treedb-filter .index=${this.root.index}></treedb-filter>` : nothing}
      ${router.parameters.table === undefined
        ? html`<treedb-rows .count=${rowCount(this.root)} .label=${formatPath(this.root.keys)} .renderRow=${(number) => this.#renderRow(number)}
            .keyOf=${(number) => this.#keyOf(number)} .active=${this.active} @range=${() => this.#showPages()} @keydown=${(event) => this.#onKey(event)}></treedb-rows>`
        : html`<treedb-table .view=${this}></treedb-table>`}
    </div>`;
  }

  updated() {
    this.rows?.requestUpdate();
    this.#showPages();
    const place = this.querySelector("nav.place");
    if (place) place.scrollLeft = place.scrollWidth; // of a deep place the end is seen
  }

  /** Keep what is on the screen where it is, and the same row active, after rows came or went. */
  #settle() {
    this.#keepEditor();
    const { active, shown } = this.marks;
    const count = rowCount(this.root);
    const kept = shown.find((mark) => findMark(this.root, mark) !== null);
    const moved = kept ? findMark(this.root, kept) - kept.number : 0;
    const found = active && findMark(this.root, active);
    // If the active row is gone, the one that follows the last kept row above it is active.
    const near = active && shown.findLast((mark) => mark.number < active.number && findMark(this.root, mark) !== null);
    const next = near ? findMark(this.root, near) + active.number - near.number : this.active + moved;
    this.active = Math.max(0, Math.min(found ?? next, count - 1));
    const { rows } = this;
    if (rows) {
      rows.count = count;
      if (moved !== 0 && rows.top > 0) rows.moveTo(rows.top + moved * rows.rowHeight);
    }
    this.requestUpdate();
  }

  #renderPlace() {
    const { keys } = this.root;
    if (this.isTyping) {
      return html`<form class="place" @submit=${(event) => this.#go(event)}>
        <input id="place" aria-label="Place or URL" spellcheck="false" autocomplete="off" .value=${formatPath(keys)}
          @keydown=${(event) => event.key === "Escape" && this.#stopTyping()} @input=${(event) => event.target.setCustomValidity("")} @blur=${() => { this.isTyping = false; }}></form>`;
    }
    return html`<nav class="place" aria-label="Place" @click=${(event) => event.target === event.currentTarget && this.type()}>
      <a href=${hrefOf("data", [], keptElsewhere())} title="The root">/</a>
      ${keys.map((key, at) => html`${at ? html`<span class="soft">/</span>` : nothing}
        <a href=${hrefOf("data", keys.slice(0, at + 1), keptElsewhere())} aria-current=${at === keys.length - 1 ? "location" : nothing}>${key}</a>`)}
      <button class="icon-button" title="Go to a place (/)" aria-label="Go to a place" @click=${() => this.type()}>✎</button>
    </nav>`;
  }

  #keyOf(number) {
    const { keys, parent, isNote } = rowAt(this.root, number);
    return keys === null ? `${isNote ? "note" : number} ${parent.keys.join("/")}` : keys.join("/");
  }

  #renderRow(number) {
    const row = rowAt(this.root, number);
    const isEdited = this.editor?.hasLeftRow === false && row.keys !== null && row.keys.join("/") === this.editor.keys.join("/");
    return renderRow(row, {
      number,
      isActive: number === this.active,
      isOpen: row.node !== null,
      isRoot: number === 0,
      rootName: this.root.keys.length ? this.root.key : "/",
      editor: isEdited ? this.editor.render() : null,
      isReadOnly: session.isReadOnly,
      setSize: row.parent?.count ?? 1,
      on: this.on,
    });
  }

  /** Have the pages read that are on the screen. */
  #showPages() {
    const { rows } = this;
    if (!rows) return;
    const [first, last] = rows.rendered;
    const shown = new Map();
    this.marks = { active: markOf(rowAt(this.root, this.active), this.active), shown: [] };
    for (let number = first; number <= Math.min(last, rowCount(this.root) - 1); number += 1) {
      const row = rowAt(this.root, number);
      const mark = markOf(row, number);
      if (mark !== null) this.marks.shown.push(mark);
      const node = row.parent ?? row.node;
      const page = row.parent && !row.isNote ? Math.floor(row.position / PAGE) : 0;
      if (!shown.has(node)) shown.set(node, new Set());
      shown.get(node).add(node.count === null ? 0 : page);
    }
    this.pages.show([...shown].flatMap(([node, pages]) => [...pages].map((page) => [node, page])));
  }

  /** Open or close a container. */
  toggle(row) {
    if (row.node === this.root || row.info?.type !== "object") return;
    if (row.node) row.node.close();
    else row.parent.openAt(row.position, row.info);
    this.#keepEditor();
    this.requestUpdate();
  }

  choose(number) {
    this.active = Math.max(0, Math.min(number, rowCount(this.root) - 1));
    this.rows?.reveal(this.active);
  }

  /** Edit a leaf in its row; a container is opened or closed. */
  async edit(row, number) {
    if (row.info === null || row.isNote) return;
    if (row.info.type === "object") {
      this.toggle(row);
      return;
    }
    if (session.isReadOnly) return;
    if (this.editor?.hasLeftRow) {
      this.editor.focus(); // what is typed there is to be saved or dropped first
      return;
    }
    this.active = number;
    const editor = new LeafEditor(row.keys, markOf(row, number), {
      change: () => this.#redraw(),
      end: () => this.#endEditing(),
      noteWrite: this.noteWrite,
    });
    try {
      if (!(await editor.begin())) return;
      if (editor.isLong || innerWidth < NARROW_PX) {
        await editLeaf(row.keys, this.noteWrite, editor);
        return;
      }
      this.editor = editor;
      this.#keepEditor();
      await this.#redraw();
      editor.focus();
    } catch (error) {
      tellError("Not edited", error);
    }
  }

  /** The editor goes above the rows when its row is not there: deleted, not selected, or its parent closed. */
  #keepEditor() {
    const { editor } = this;
    if (editor?.hasLeftRow === false && findMark(this.root, editor.mark) === null) editor.leaveRow();
  }

  /** Show what has changed; resolves when it is shown. */
  #redraw() {
    this.requestUpdate();
    return this.#rendered();
  }

  async #rendered() {
    await this.updateComplete;
    await this.rows?.updateComplete;
  }

  async #endEditing() {
    this.editor = null;
    await this.#redraw();
    this.rows?.focus();
  }

  async add(keys) {
    const key = await addChild(keys, this.noteWrite);
    if (key !== null) await this.show(keys, key);
  }

  /** Open a node if it is closed, and choose its child with a key, wherever it is. */
  async show(keys, key) {
    try {
      const parent = nodeAt(this.root, keys.slice(0, -1));
      const position = keys.length > this.root.keys.length ? parent?.positionOf(keys.at(-1)) : null;
      const node = nodeAt(this.root, keys) ?? (Number.isInteger(position) ? parent.openAt(position, { ...parent.childAt(position), type: "object" }) : null);
      if (node === null || node.query !== null) return;
      const { first, count, children } = await describe(keys, { startAt: JSON.stringify(key), limitToFirst: 1 });
      if (children?.[0]?.key !== key || first === undefined) return;
      node.count = Math.max(node.count ?? 0, count ?? 0, first + 1);
      this.rows.count = rowCount(this.root);
      this.active = numberOf(this.root, node, first);
      this.rows.show(this.active);
    } catch (error) {
      tellError("Not shown", error);
    }
  }

  async removeRow(row) {
    if (row.info === null || row.isNote) return;
    if ((await removeAt(row.keys, row.info, this.noteWrite)) && row.parent === null && row.keys.length) {
      router.go("data", row.keys.slice(0, -1));
    }
    this.rows?.focus();
  }

  /** Ask for another key of a place; the renamed one is chosen, or shown if it was the whole view. */
  async rename({ keys, info, parent }) {
    const key = await renamePlace(keys, info, parent?.info, this.noteWrite);
    if (key === null) return;
    if (parent === null) router.go("data", [...keys.slice(0, -1), key]);
    else await this.show(keys.slice(0, -1), key);
  }

  /** Show twice as many of the children that a filter selects. */
  showMore(node) {
    const name = node.query.limitToLast ? "limitToLast" : "limitToFirst";
    node.query = { ...node.query, [name]: Math.min(1000, Number(node.query[name]) * 2) };
    this.pages.reload(node);
  }

  /** Show the filter, or hide it and show all children. */
  async toggleFilter() {
    this.isFiltering = !this.isFiltering;
    if (!this.isFiltering && this.root.query !== null) router.go("data", this.root.keys, keptElsewhere());
    await this.updateComplete;
    this.querySelector("treedb-filter input, treedb-filter select")?.focus();
  }

  /** Return the element of a place on the screen, for a menu to be shown at. */
  anchorOf(keys) {
    return this.querySelector(`#row-${this.active}`) ?? this.querySelector(".place") ?? keys;
  }

  showRowMenu(row, number, event) {
    if (row.info === null || row.isNote) return;
    event?.preventDefault();
    this.active = number;
    const { keys, info } = row;
    const isOff = session.isReadOnly;
    const { noteWrite } = this;
    const isButton = event?.currentTarget?.matches?.("button");
    const anchor = isButton ? event.currentTarget : event ? { x: event.clientX, y: event.clientY } : this.querySelector(`#row-${number}`);
    showMenu(anchor, [
      ...(number === 0 ? [] : [{ label: "Show from here", run: () => router.go("data", keys) }, null]),
      ...(info.type === "object" ? [] : [{ label: "Edit", key: "Enter", isOff, run: () => this.edit(row, number) }]),
      { label: "Edit as JSON …", isOff, run: () => editJson(keys, noteWrite) },
      { label: "Add a child …", key: "a", isOff, run: () => this.add(keys) },
      { label: "Priority …", isOff, run: () => editPriority(keys, info, noteWrite) },
      ...placeItems(this, row),
      null,
      { label: "Delete …", key: "Del", isDanger: true, isOff, run: () => this.removeRow(row) },
    ]);
  }

  /** Show a field for a place. */
  async type() {
    this.isTyping = true;
    await this.updateComplete;
    this.querySelector("#place")?.select();
  }

  #stopTyping() {
    this.isTyping = false;
    this.rows?.focus();
  }

  #go(event) {
    event.preventDefault();
    let keys;
    try {
      keys = parsePath(this.querySelector("#place").value, session.base);
      const problem = keys.map(problemOfKey).find(Boolean);
      if (problem) throw new Error(problem);
    } catch (error) {
      const field = this.querySelector("#place");
      field.setCustomValidity(`Not a place: ${error.message}`);
      field.reportValidity();
      return;
    }
    this.isTyping = false;
    router.go("data", keys, keptElsewhere());
    this.rows?.focus();
  }

  #onGlobalKey(event) {
    if (router.view !== "data" || event.defaultPrevented) return;
    if (event.target.closest?.("input, textarea, select, dialog, [contenteditable], .menu")) return;
    if ((event.ctrlKey || event.metaKey) && event.key === "z" && !event.shiftKey) {
      event.preventDefault();
      undoLast();
    } else if (event.key === "/" && !event.ctrlKey && !event.metaKey) {
      event.preventDefault();
      this.type();
    } else if (event.key === "f" && !event.ctrlKey && !event.metaKey) {
      event.preventDefault();
      this.toggleFilter();
    } else if (event.key === "t" && !event.ctrlKey && !event.metaKey) {
      toggleTable();
    } else if (document.activeElement === document.body && this.rows) {
      this.rows.focus(); // as after a link or a reload: the keys are for the rows
      this.#onKey(event);
    }
  }

  #onKey(event) {
    if (this.editor?.hasLeftRow === false || event.ctrlKey || event.metaKey || event.altKey) return;
    const page = Math.max(1, Math.floor((this.rows.height ?? 0) / this.rows.rowHeight) - 1);
    const number = this.active;
    const row = rowAt(this.root, Math.min(number, rowCount(this.root) - 1));
    const act = {
      ArrowDown: () => this.choose(number + 1),
      ArrowUp: () => this.choose(number - 1),
      PageDown: () => this.choose(number + page),
      PageUp: () => this.choose(number - page),
      Home: () => this.choose(0),
      End: () => this.choose(rowCount(this.root) - 1),
      ArrowRight: () => (row.node === null ? this.toggle(row) : this.choose(number + 1)),
      ArrowLeft: () => this.#closeOrGoUp(row),
      Enter: () => (row.isNote ? row.parent.hasMore && this.showMore(row.parent) : this.edit(row, number)),
      " ": () => this.toggle(row),
      a: () => row.keys && this.add(row.keys),
      m: () => this.showRowMenu(row, number),
      Delete: () => this.removeRow(row),
      F2: () => row.info && row.keys.length && this.rename(row),
    }[event.key];
    if (!act) return;
    event.preventDefault();
    act();
  }

  #closeOrGoUp(row) {
    if (row.node !== null && row.node !== this.root) this.toggle(row);
    else if (row.parent !== null) this.choose(ownNumber(this.root, row.parent));
    else if (this.root.keys.length) router.go("data", this.root.keys.slice(0, -1));
  }
}

/** Return whether the route has a filter to be shown: a sorted table shows its order itself. */
function isFiltered() {
  const query = queryOf(router.parameters);
  return router.parameters.table === undefined ? query !== null : hasBounds(query);
}

/** Return what of the route decides which rows are shown. */
function routeOf() {
  return JSON.stringify([router.keys, queryOf(router.parameters)]);
}

customElements.define("treedb-data", DataView);
