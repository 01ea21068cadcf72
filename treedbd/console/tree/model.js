/**
 * The rows of the tree: which nodes are open, which children are known, and what is in which row.
 *
 * A node knows how many children it has, and only those pages of 50 that were shown lately; so a
 * node of a million children is a few pages. The rows are counted, never listed: `rowAt` finds the
 * node of a row by its number, by way of the open nodes above it.
 *
 * Positions may be of a moment ago, because others write meanwhile. A page that is read again says
 * what is where now, and an open child outside of it keeps its position until its page is read.
 */

export const PAGE = 50;
/** Pages of a node that are kept; the ones that were shown the longest ago are dropped. */
const KEPT_PAGES = 40;

/**
 * What is known of a node without its children's values, as the server describes it.
 * @typedef {{key: string, type: string, value?: unknown, length?: number, count?: number, bytes?: number,
 *   least?: boolean, counted?: boolean, about?: boolean, priority?: string|number, flash?: string}} Info
 */

/** One open node. */
export class OpenNode {
  /**
   * @param {string[]} keys
   * @param {OpenNode|null} parent
   * @param {number} position  its position among the children of its parent
   */
  constructor(keys, parent = null, position = 0) {
    this.keys = keys;
    this.parent = parent;
    this.position = position;
    /** @type {Info|null} */
    this.info = null;
    /** How many children there are to show; null if it is not known yet. */
    this.count = null;
    /** @type {Map<number, Info[]>} */
    this.pages = new Map();
    /** @type {OpenNode[]} by position */
    this.open = [];
    /** Parameters of a query that selects the children; null for all, in the order of keys. */
    this.query = null;
    /** Whether the query selects more than is shown. */
    this.hasMore = false;
    /** What the server says of an index that the query lacks, or null. */
    this.index = null;
    /** The error of the last reading, or null. */
    this.error = null;
  }

  get key() {
    return this.keys.at(-1) ?? "";
  }

  /** The rows below the node's own: its children, those below them, and a row that says something. */
  get height() {
    let rows = (this.count ?? 0) + (this.hasNote ? 1 : 0);
    for (const child of this.open) rows += child.height;
    return rows;
  }

  /** Whether nothing is there, or the query selects nothing. */
  get isEmpty() {
    return this.query !== null || this.info === null || this.info.type === "null";
  }

  /** Whether one more row below the children says that they are read, or that they cannot be. */
  get hasNote() {
    return this.count === null || this.error !== null || this.hasMore || (this.count === 0 && this.isEmpty);
  }

  /** Whether that row is above the children: a query of the last ones goes on with earlier ones. */
  get isNoteFirst() {
    return this.hasMore && this.error === null && this.query?.limitToLast !== undefined;
  }

  /** Return the child at a position, or null if its page is not known. */
  childAt(position) {
    const number = this.query === null ? Math.floor(position / PAGE) : 0;
    const page = this.pages.get(number);
    return page?.[position - number * PAGE] ?? null;
  }

  /** Keep a page of children that begins at a position, and drop the page kept longest. */
  keep(number, children) {
    this.pages.delete(number);
    this.pages.set(number, children);
    if (this.pages.size > KEPT_PAGES) this.pages.delete(this.pages.keys().next().value);
    this.#placeOpen(number * PAGE, children);
  }

  /** Correct the positions of the open children by what was read; close those that are gone. */
  #placeOpen(first, children) {
    if (!this.open.length) return;
    const found = new Map(children.map((child, at) => [child.key, first + at]));
    for (const child of this.open) {
      const position = found.get(child.key);
      if (position !== undefined) {
        const info = children[position - first];
        child.position = position;
        // Its own pages know it better: of a large child the page of its parent has lower bounds.
        child.info = child.count === null ? info : { ...child.info, priority: info.priority };
        child.isGone = info.type !== "object";
      } else if (child.position >= first && child.position < first + children.length) {
        child.isGone = true; // another key is where it was, and it is not near
      }
    }
    this.open = this.open.filter((child) => !child.isGone).sort((one, other) => one.position - other.position);
    if (this.count !== null) this.open = this.open.filter((child) => child.position < this.count);
  }

  /** Return the position of the child with a key, or null if its page is not known. */
  positionOf(key) {
    const open = this.openChild(key);
    if (open !== null) return open.position;
    for (const [number, children] of this.pages) {
      const at = children.findIndex((child) => child.key === key);
      if (at >= 0) return number * PAGE + at;
    }
    return null;
  }

  /** Whether this node is open: it is the root, or its parents up to the root are open. */
  get isOpen() {
    return this.parent === null || (this.parent.open.includes(this) && this.parent.isOpen);
  }

  /** Return the open child with a key, or null. */
  openChild(key) {
    return this.open.find((child) => child.key === key) ?? null;
  }

  /** Open the child at a position. */
  openAt(position, info) {
    const child = new OpenNode([...this.keys, info.key], this, position);
    child.info = info;
    this.open.push(child);
    this.open.sort((one, other) => one.position - other.position);
    return child;
  }

  /** Close this node. */
  close() {
    if (this.parent) this.parent.open = this.parent.open.filter((each) => each !== this);
  }

  /** Yield this node and all open ones below it. */
  *all() {
    yield this;
    for (const child of this.open) yield* child.all();
  }
}

/**
 * A row: a child, or a note of its parent.
 * @typedef {{parent: OpenNode|null, node: OpenNode|null, info: Info|null, position: number, depth: number,
 *   keys: string[]|null, isNote: boolean}} Row
 */

/** Return the row with a number; row 0 is the node itself. */
export function rowAt(root, number) {
  if (number === 0) {
    return { parent: null, node: root, info: root.info, position: 0, depth: 0, keys: root.keys, isNote: false };
  }
  return rowBelow(root, number - 1, 1);
}

function rowBelow(node, number, depth) {
  let left = number;
  let position = 0;
  if (node.isNoteFirst) {
    if (number === 0) return noteRow(node, depth);
    left -= 1;
  }
  for (const child of node.open) {
    const before = child.position - position;
    if (left < before) return childRow(node, position + left, depth, null);
    left -= before;
    if (left === 0) return childRow(node, child.position, depth, child);
    left -= 1;
    if (left < child.height) return rowBelow(child, left, depth + 1);
    left -= child.height;
    position = child.position + 1;
  }
  position += left;
  if (position >= (node.count ?? 0)) {
    return noteRow(node, depth);
  }
  return childRow(node, position, depth, null);
}

function noteRow(parent, depth) {
  return { parent, node: null, info: null, position: parent.count ?? 0, depth, keys: null, isNote: true };
}

function childRow(parent, position, depth, node) {
  const info = node?.info ?? parent.childAt(position);
  return { parent, node, info, position, depth, keys: info ? [...parent.keys, info.key] : null, isNote: false };
}

/** Return the number of the row of the child at a position of a node. */
export function numberOf(root, node, position) {
  let number = ownNumber(root, node) + 1 + (node.isNoteFirst ? 1 : 0) + position;
  for (const child of node.open) if (child.position < position) number += child.height;
  return number;
}

/** Return the number of a node's own row. */
export function ownNumber(root, node) {
  return node === root ? 0 : numberOf(root, node.parent, node.position);
}

/**
 * What a row shows, by which it is found again when rows above it come or go.
 * @typedef {{node: OpenNode|null, key: string, number: number}} Mark
 */

/** Return the mark of a row, or null if it is a note or not known yet. */
export function markOf(row, number) {
  return row.info === null || row.isNote ? null : { node: row.parent, key: row.info.key, number };
}

/** Return the number of the row with a mark, or null if it is not there or not known now. */
export function findMark(root, { node, key }) {
  if (node === null) return 0;
  const position = node.isOpen ? node.positionOf(key) : null;
  return position === null || position >= (node.count ?? 0) ? null : numberOf(root, node, position);
}

/** Return the open node of a place, or null. */
export function nodeAt(root, keys) {
  for (const node of root.all()) {
    if (node.keys.length === keys.length && node.keys.every((key, at) => key === keys[at])) return node;
  }
  return null;
}

/** Return how many rows there are. */
export function rowCount(root) {
  return 1 + root.height;
}

/**
 * Mark in `after` what differs from `before`, and return the children that are gone.
 * @param {Info[]|undefined} before
 * @param {Info[]} after
 * @param {Set<string>} touched  keys of children below which something was written
 * @param {boolean} isWhole  whether both pages are all children, so that a missing one was removed
 */
export function compare(before, after, touched, isWhole) {
  if (!before) return [];
  const known = new Map(before.map((child) => [child.key, child]));
  const shown = new Set(after.map((child) => child.key));
  // A child that comes in at the end or the beginning of a page because others went is not new.
  const low = isWhole ? -1 : after.findIndex((child) => known.has(child.key));
  const high = isWhole ? after.length : after.findLastIndex((child) => known.has(child.key));
  after.forEach((child, at) => {
    const old = known.get(child.key);
    if (old === undefined) {
      if (at > low && at < high) child.flash = "added";
      else if (touched.has(child.key)) child.flash = "added";
    } else if (touched.has(child.key) || !isSame(old, child)) {
      child.flash = old.flash === "added" ? "added" : "changed"; // it is still new
    }
  });
  return before.filter((child) => !shown.has(child.key) && touched.has(child.key));
}

function isSame(one, other) {
  // What is a bound or an estimate differs from one page to the next without a write.
  const names = one.least || other.least || one.about || other.about ? ["type", "priority"] : ["type", "priority", "length", "count", "bytes"];
  return String(one.value) === String(other.value) && names.every((name) => String(one[name]) === String(other[name]));
}

/**
 * Return the keys of children of `keys` that an event concerns: null if the node itself is written,
 * undefined if the event is elsewhere.
 * @param {string[]} keys  of the node
 * @param {string[]} root  of the stream
 * @param {{path: string, keys?: string[]}} event
 * @returns {Set<string>|null|undefined}
 */
export function touchedChildren(keys, root, event) {
  const base = [...root, ...event.path.split("/").filter(Boolean)];
  const places = event.keys ? event.keys.map((each) => [...base, ...each.split("/").filter(Boolean)]) : [base];
  const touched = new Set();
  for (const place of places) {
    const isAt = place.length <= keys.length && place.every((key, at) => key === keys[at]);
    if (isAt) return null;
    if (keys.every((key, at) => key === place[at])) touched.add(place[keys.length]);
  }
  return touched.size ? touched : undefined;
}
