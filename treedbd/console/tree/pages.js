/**
 * Reads the pages of children that are shown, and reads them again when something in them changes.
 *
 * One stream, of the place that is shown, says where something was written, without values. What is
 * shown and concerned is described again, at most every `REFRESH_MS`; pages that are not shown are
 * dropped. So the work follows what is on the screen, not the size or the traffic of the database.
 */

import { describe, follow, get, pause } from "../core/api.js";
import { formatCount, formatLeaf, typeOf } from "../core/format.js";
import { session } from "../core/session.js";
import { PAGE, compare, touchedChildren } from "./model.js";

const REFRESH_MS = 250;
/** Reading again takes at most this part of the time, so that a slow query is not all that the server does. */
const REFRESH_SHARE = 1 / 4;
const REMOVED_MS = 500;
const FLASH_MS = 1600;
const CONCURRENT = 4;

/** Bytes of selected children that are read for what they are ordered by. */
const ORDER_BYTES = 200_000;

/** Children that a query shows at most. */
const MOST = 1000;

function limitOf({ limitToFirst, limitToLast }) {
  return Number(limitToFirst ?? limitToLast);
}

/** Return what a query has selected: `last 10` if it is as many as the limit, else `3 selected`. */
function describeSelection(query, count) {
  if (count < limitOf(query)) return `${formatCount(count)} selected`;
  return `${query.limitToLast ? "last" : "first"} ${formatCount(count)}`;
}

/** Add to children that are ordered by a child of theirs what that is, unless reading them is too much. */
async function addOrder(keys, query, children, signal) {
  const named = JSON.parse(query.orderBy ?? '"$key"');
  const isSmall = children.reduce((sum, { bytes, length, least }) => sum + (least ? Infinity : (bytes ?? length ?? 0)), 0) <= ORDER_BYTES;
  if (named.startsWith("$") || !isSmall) return;
  const values = await get(keys, query, { signal });
  for (const child of children) {
    const value = named.split("/").reduce((found, key) => found?.[key], values?.[child.key]);
    if (value !== undefined && typeOf(value) !== "object") child.order = `${named}: ${formatLeaf(value)}`;
  }
}

export class Pages extends EventTarget {
  /** `live`, `lost`, `off` (there is no stream) or `connecting`. */
  state = "connecting";
  /** The error that ended the stream, or null. */
  error = null;

  #root;
  #signal;
  /** @type {Map<string, {node: import("./model.js").OpenNode, number: number}>} pages to read, the newest last */
  #wanted = new Map();
  #running = 0;
  /** @type {Set<string>} pages that are shown */
  #shown = new Set();
  /** @type {Map<import("./model.js").OpenNode, Set<string>|null>} what was touched below a node; null for all */
  #dirty = new Map();
  #isRefreshing = false;
  #ids = new WeakMap();
  #lastId = 0;
  /** @type {Map<string, number>} the number of the reading that a page is of: a late response is dropped */
  #kept = new Map();
  #readings = 0;
  /** Milliseconds of the slowest request of this round. */
  #slowest = 0;
  /** Resolved when the user has written: what is shown is read again without waiting. */
  #hurry = Promise.withResolvers();

  /**
   * @param {import("./model.js").OpenNode} root
   * @param {AbortSignal} signal  ends all
   */
  constructor(root, signal) {
    super();
    this.#root = root;
    this.#signal = signal;
    const again = () => this.refreshAll();
    session.addEventListener("online", again);
    signal.addEventListener("abort", () => session.removeEventListener("online", again), { once: true });
  }

  /** Follow what is written at the root and below. */
  follow() {
    this.state = "connecting";
    follow(this.#root.keys, { describe: "true" }, {
      signal: this.#signal,
      onEvent: (type, data) => type === "changed" && this.#note(data),
      onState: (state, error) => {
        this.state = { open: "live", lost: "lost", ended: "off" }[state];
        this.error = error ?? null;
        if (state === "ended") this.refreshAll(); // the rows say it, too
        this.#notify();
      },
    });
  }

  /** Say which pages are shown now: `[node, page number]`. The unknown ones are read. */
  show(pages) {
    this.#shown = new Set(pages.map(([node, number]) => this.#name(node, number)));
    for (const name of this.#wanted.keys()) if (!this.#shown.has(name)) this.#wanted.delete(name);
    for (const [node, number] of pages) {
      if (!node.pages.has(node.query === null ? number : 0) && node.error === null) this.#want(node, number);
    }
  }

  /** Read a node again after an error, or by another query; what is known is shown until it is there. */
  reload(node) {
    node.error = null;
    if (this.state === "off") this.follow();
    this.#dirty.set(node, null);
    this.#refresh();
  }

  /** Read again whatever is shown. */
  refreshAll() {
    for (const node of this.#root.all()) {
      node.error = null;
      this.#dirty.set(node, null);
    }
    this.#refresh();
  }

  /** Note a write of this console at once, without waiting for its event. */
  noteWrite(keys) {
    this.#hurry.resolve();
    this.#hurry = Promise.withResolvers();
    this.#note({ path: keys.slice(this.#root.keys.length).join("/") });
  }

  #note(event) {
    this.dispatchEvent(new Event("written"));
    for (const node of this.#root.all()) {
      const touched = touchedChildren(node.keys, this.#root.keys, event);
      if (touched === undefined) continue;
      const before = this.#dirty.get(node);
      if (touched === null || before === null) this.#dirty.set(node, null);
      else this.#dirty.set(node, new Set([...(before ?? []), ...touched]));
    }
    if (this.#dirty.size) this.#refresh();
  }

  async #refresh() {
    if (this.#isRefreshing) return;
    this.#isRefreshing = true;
    while (this.#dirty.size && !this.#signal.aborted) {
      this.#slowest = 0;
      const dirty = [...this.#dirty].filter(([node]) => node.isOpen);
      this.#dirty.clear();
      await Promise.all(dirty.map(([node, touched]) => this.#refreshNode(node, touched)));
      await Promise.race([pause(Math.max(REFRESH_MS, this.#slowest / REFRESH_SHARE), this.#signal), this.#hurry.promise]);
    }
    this.#isRefreshing = false;
  }

  async #refreshNode(node, touched) {
    const numbers = [...node.pages.keys()].filter((number) => this.#shown.has(this.#name(node, number)));
    if (this.#shown.size) for (const number of node.pages.keys()) if (!numbers.includes(number)) node.pages.delete(number);
    await Promise.all((numbers.length ? numbers : [0]).map((number) => this.#read(node, number, touched ?? new Set())));
  }

  #want(node, number) {
    const name = this.#name(node, number);
    if (this.#wanted.has(name)) return;
    this.#wanted.set(name, { node, number });
    this.#next();
  }

  async #next() {
    if (this.#running >= CONCURRENT || this.#signal.aborted) return;
    const newest = [...this.#wanted].at(-1);
    if (newest === undefined) return;
    const [name, { node, number }] = newest;
    this.#running += 1;
    await this.#read(node, number, null);
    this.#wanted.delete(name);
    this.#running -= 1;
    this.#next();
  }

  /** Read a page; `touched` are keys that may have changed, null if the page is shown for the first time. */
  async #read(node, number, touched) {
    const query = node.query;
    const reading = (this.#readings += 1);
    const name = this.#name(node, number);
    const begin = performance.now();
    try {
      const found = await describe(node.keys, query ?? { at: number * PAGE, limitToFirst: PAGE }, { signal: this.#signal });
      if (query !== null) await addOrder(node.keys, query, found.children ?? [], this.#signal);
      this.#slowest = Math.max(this.#slowest, performance.now() - begin);
      if (node.query !== query || reading < (this.#kept.get(name) ?? 0)) return;
      this.#kept.set(name, reading);
      await this.#keep(node, number, found, touched);
    } catch (error) {
      if (this.#signal.aborted || error.isOffline || node.query !== query) return;
      node.error = error;
      node.info ??= { key: node.key, type: "unknown" };
      if (error.isDenied) {
        node.pages.clear();
        node.info = { key: node.key, type: "unknown" };
        node.count = 0;
        node.open = [];
      }
    }
    this.#notify();
  }

  async #keep(node, number, found, touched) {
    const { children = [], first, count, ...info } = found;
    const before = node.pages.get(number);
    const total = node.query === null ? (count ?? 0) : children.length;
    const isWhole = total <= PAGE && (node.count ?? 0) <= PAGE;
    const gone = compare(touched === null ? undefined : before, children, touched ?? new Set(), isWhole);
    if (gone.length) {
      for (const child of gone) child.flash = "removed";
      this.#notify();
      await pause(REMOVED_MS, this.#signal);
    }
    if (children.some((child) => child.flash)) this.#endFlashes(children);
    if (node.query === null) node.info = { ...info, key: node.key, count };
    else node.info = { key: node.key, type: "object", selected: describeSelection(node.query, total) };
    node.error = null;
    node.index = found.index ?? null;
    node.count = total;
    node.hasMore = node.query !== null && total < MOST && total >= limitOf(node.query);
    const isShifted = first !== undefined && first !== number * PAGE && node.query === null;
    if (!isShifted || children.length) node.keep(number, children);
    if (node.parent && info.type !== "object" && node.query === null) node.close();
  }

  /** A flash is shown once, also if the row is scrolled away and back. */
  async #endFlashes(children) {
    await pause(FLASH_MS, this.#signal);
    for (const child of children) delete child.flash;
    this.#notify();
  }

  #name(node, number) {
    if (!this.#ids.has(node)) this.#ids.set(node, (this.#lastId += 1));
    return `${this.#ids.get(node)}:${node.query === null ? number : 0}`;
  }

  #notify() {
    this.dispatchEvent(new Event("change"));
  }
}
