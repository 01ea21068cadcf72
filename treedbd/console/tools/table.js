/**
 * The children of a place as a table: a list of like records, sorted by a column, in pages.
 *
 * A page is described first, so that values are read only if they are not too large to be shown.
 */

import { html, nothing } from "../vendor/lit.js";
import { describe, get, pause } from "../core/api.js";
import { tellError } from "../core/dialog.js";
import { Component } from "../core/element.js";
import { RawJson, formatCount, formatLeaf, typeOf } from "../core/format.js";
import { hrefOf, router } from "../core/router.js";
import { session } from "../core/session.js";
import { editLeaf, readLeaf } from "../tree/edit.js";
import { queryOf } from "./filter.js";
import { keptElsewhere } from "./tools.js";

const PAGE = 50;
const MOST = 1000;
const PAGE_BYTES = 2_000_000;
const COLUMNS = 40;
const REFRESH_MS = 300;

export class Table extends Component {
  static properties = { view: { attribute: false }, page: { state: true }, found: { state: true }, error: { state: true } };

  constructor() {
    super();
    this.page = 0;
    this.found = null;
    this.error = null;
  }

  connectedCallback() {
    super.connectedCallback();
    this.watch(router, "change", () => this.#restart());
    this.watch(session, "online", () => this.load());
    this.whenGone(() => this.reading?.abort());
    this.#restart();
  }

  #restart() {
    const shown = location.hash;
    if (shown === this.shown) return;
    this.shown = shown;
    this.page = 0;
    this.load();
  }

  /** Read the page again, because something in it has changed. */
  async load() {
    this.reading?.abort();
    this.reading = new AbortController();
    const { signal } = this.reading;
    const { keys } = router;
    const begin = performance.now();
    try {
      const found = await this.#describe(keys, signal);
      const children = found.children ?? [];
      const bytes = children.reduce((sum, each) => sum + (each.bytes ?? each.length ?? 0) + (each.least ? PAGE_BYTES : 0), 0);
      const values = bytes <= PAGE_BYTES && children.length ? await this.#read(keys, children, signal) : null;
      this.found = { ...found, children, values, columns: values ? columnsOf(Object.values(values)) : [] };
      this.error = null;
      this.took = performance.now() - begin;
    } catch (error) {
      if (!signal.aborted && !error.isOffline) this.error = error;
    }
  }

  async #describe(keys, signal) {
    const query = queryOf(router.parameters);
    if (query === null) return describe(keys, { at: this.page * PAGE, limitToFirst: PAGE }, { signal });
    // Pages of a query are the ends of longer and longer answers: a value alone does not say where one ends.
    const { limitToFirst, limitToLast, ...others } = query;
    const size = pageOf(query);
    const limit = Math.min(MOST, (this.page + 1) * size);
    const found = await describe(keys, { ...others, [limitToLast ? "limitToLast" : "limitToFirst"]: limit }, { signal });
    const all = limitToLast ? found.children.toReversed() : found.children;
    return { ...found, children: all.slice(this.page * size), hasMore: all.length === limit && limit < MOST };
  }

  /** Read the values of the shown children: by one query if they follow each other, else one by one. */
  async #read(keys, children, signal) {
    if (queryOf(router.parameters) === null) {
      const bounds = { orderBy: '"$key"', startAt: JSON.stringify(children[0].key), endAt: JSON.stringify(children.at(-1).key) };
      return get(keys, bounds, { signal });
    }
    const values = await Promise.all(children.map((each) => get([...keys, each.key], {}, { signal })));
    return Object.fromEntries(children.map((each, at) => [each.key, values[at]]));
  }

  render() {
    if (this.error) return html`<div class="empty"><p class="problem" role="alert">${this.error.message}</p><button @click=${() => this.load()}>Try again</button></div>`;
    if (this.found === null) return html`<p class="starting">Reading …</p>`;
    const { children, values, columns } = this.found;
    if (!children.length) return html`<p class="empty">${this.page ? "There are no further children." : "There are no children to show."}</p>${this.#renderPages()}`;
    if (values === null) return html`<p class="empty">The values of this page are too large for a table. The tree shows them without reading them.</p>${this.#renderPages()}`;
    return html`<div class="table-box records" tabindex="0" role="region" aria-label="Table"><table class="list">
      <thead><tr>${this.#renderHeading("$key", "Key")}${columns.map((each) => this.#renderHeading(each, each))}</tr></thead>
      <tbody>${children.map((each) => this.#renderRecord(each.key, values[each.key], columns))}</tbody></table></div>
      ${this.#renderPages()}`;
  }

  #renderHeading(order, label) {
    const { orderBy, limitToLast } = router.parameters;
    const isSorted = orderBy === JSON.stringify(order) || (orderBy === undefined && order === "$key");
    const sort = isSorted ? (limitToLast ? "descending" : "ascending") : "none";
    const isNumber = Object.values(this.found.values).some((each) => typeOf(order === "" ? each : each?.[order]) === "number");
    return html`<th aria-sort=${sort} class=${isNumber && order !== "$key" ? "number" : ""}><button class="plain" @click=${() => this.#sort(order, isSorted && !limitToLast)}>${label === "" ? "value" : label}
      ${isSorted ? (limitToLast ? "▾" : "▴") : ""}</button></th>`;
  }

  #sort(order, isDescending) {
    const { where, limitToFirst, limitToLast } = router.parameters;
    const orderBy = JSON.stringify(order === "" ? "$value" : order);
    const limit = limitToLast ?? limitToFirst ?? PAGE;
    const isPlain = order === "$key" && !isDescending && where === undefined && Number(limit) === PAGE;
    const sorted = isPlain ? {} : { orderBy, where, [isDescending ? "limitToLast" : "limitToFirst"]: limit };
    router.go("data", router.keys, { table: 1, ...sorted });
  }

  #renderRecord(key, record, columns) {
    const keys = [...router.keys, key];
    return html`<tr><th scope="row"><a class="mono" href=${hrefOf("data", keys, isContainer(record) ? keptElsewhere() : {})}>${key}</a></th>
      ${columns.map((column) => {
        const value = column === "" ? (isContainer(record) ? null : record) : record?.[column];
        return html`<td class=${typeOf(value) === "number" ? "number" : ""}><button class="cell value-${typeOf(value)}" ?disabled=${session.isReadOnly || isContainer(value) || (column === "" && value === null)}
          @click=${() => this.#edit(column === "" ? keys : [...keys, column])}>${showCell(value)}</button></td>`;
      })}</tr>`;
  }

  #renderPages() {
    const { count, hasMore } = this.found;
    const last = count === undefined ? (hasMore ? this.page + 1 : this.page) : Math.max(0, Math.ceil(count / PAGE) - 1);
    const go = (page) => {
      this.page = Math.max(0, Math.min(page, last));
      this.load();
    };
    return html`<div class="row-of pages">
      <button ?disabled=${this.page === 0} @click=${() => go(this.page - 1)}>‹ Back</button>
      <label>Page <input size="6" inputmode="numeric" .value=${String(this.page + 1)} @change=${(event) => go(Number.parseInt(event.target.value, 10) - 1 || 0)}>
        ${count === undefined ? nothing : html`of ${formatCount(last + 1)}`}</label>
      <button ?disabled=${this.page >= last} @click=${() => go(this.page + 1)}>Further ›</button>
      ${this.found.index?.missing && !this.view.isFiltering ? html`<span class="hint">Sorted without an index: add <code>${this.found.index.rule}</code> to the rules.</span>` : nothing}
    </div>`;
  }

  async #edit(keys) {
    try {
      const leaf = await readLeaf(keys);
      if (leaf !== null) await editLeaf(keys, this.view.noteWrite, leaf);
    } catch (error) {
      tellError("Not edited", error);
    }
  }

  /** Read the page again some time after a write below the place, by any client. */
  async noteWrite() {
    if (this.isWaiting) return;
    this.isWaiting = true;
    await pause(Math.max(REFRESH_MS, (this.took ?? 0) * 3));
    this.isWaiting = false;
    if (this.isConnected) await this.load();
  }
}

/** Return the rows of a page: the limit of a query, if it is less than a page. */
function pageOf(query) {
  return Math.max(1, Math.min(PAGE, Number(query.limitToLast ?? query.limitToFirst) || PAGE));
}

/** Return the columns of records: their children, the ones that most have first; `""` if they are leaves. */
export function columnsOf(records) {
  const counts = new Map();
  for (const record of records) {
    if (!isContainer(record)) counts.set("", (counts.get("") ?? 0) + 1);
    else for (const key of Object.keys(record)) counts.set(key, (counts.get(key) ?? 0) + 1);
  }
  return [...counts.keys()].sort((one, other) => counts.get(other) - counts.get(one)).slice(0, COLUMNS);
}

function isContainer(value) {
  return value !== null && typeof value === "object" && !(value instanceof RawJson);
}

function showCell(value) {
  if (value === undefined || value === null) return "";
  if (isContainer(value)) return `${formatCount(Object.keys(value).length)} …`;
  return typeof value === "string" ? value.slice(0, 200) : formatLeaf(value);
}

customElements.define("treedb-table", Table);
