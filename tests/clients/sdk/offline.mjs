// What a query shows, by hand: the children are sorted, and cut. And writes that a seed decides.

// What is asked: an order and the methods that follow it. `rank` and `m/x` are paths in a child.
export const QUERIES = [
  { limitToFirst: [3] },
  { limitToLast: [1] },
  { orderByPriority: [], startAt: [2] },
  { orderByPriority: [], limitToLast: [3] },
  { orderByKey: [], limitToFirst: [4] },
  { orderByKey: [], limitToLast: [2] },
  { orderByKey: [], startAt: ["b"], endAt: ["e"] },
  { orderByKey: [], startAfter: ["2"], limitToFirst: [3] },
  { orderByKey: [], equalTo: ["c"] },
  { orderByValue: [], limitToLast: [3] },
  { orderByValue: [], startAt: [3] },
  { orderByValue: [], startAt: ["text"] },
  { orderByChild: ["rank"], limitToFirst: [2] },
  { orderByChild: ["rank"], startAt: [3], limitToFirst: [3] },
  { orderByChild: ["rank"], endAt: [5], limitToLast: [2] },
  { orderByChild: ["rank"], startAt: [2], endAt: [6] },
  { orderByChild: ["rank"], equalTo: [4] },
  { orderByChild: ["rank"], equalTo: [null], limitToLast: [2] },
  { orderByChild: ["m/x"], startAfter: [3], endBefore: [8] },
  { orderByChild: ["m/x"], startAt: [4, "c"], limitToFirst: [2] },
];

// Makes the query of the SDK.
export function ask(list, query) {
  return Object.entries(query).reduce((asked, [method, given]) => asked[method](...given), list);
}

// Returns the keys of the children of a snapshot that a query shows, in its order.
export function show(snapshot, query) {
  const found = [];
  snapshot.forEach((child) => void found.push({ key: child.key, at: placed(child, query) }));
  found.sort(compare);
  const shown = found.filter((child) => isWithin(child, query)).map(({ key }) => key);
  const { limitToFirst: [first] = [], limitToLast: [last] = [] } = query;
  return last ? shown.slice(-last) : shown.slice(0, first);
}

function placed(child, { orderByKey, orderByValue, orderByChild }) {
  if (orderByKey) return null;
  if (orderByValue) return child.val();
  return orderByChild ? child.child(orderByChild[0]).val() : child.getPriority();
}

const kinds = ["boolean", "number", "string", "object"];
const kind = (value) => (value === null ? -1 : kinds.indexOf(typeof value));
const isNumber = (key) => /^(0|[1-9]\d*)$/.test(key);

function compareKeys(a, b) {
  if (a === b) return 0;
  if (isNumber(a) !== isNumber(b)) return isNumber(a) ? -1 : 1;
  return (isNumber(a) ? Number(a) < Number(b) : a < b) ? -1 : 1;
}

function compareValues(a, b) {
  if (kind(a) !== kind(b)) return kind(a) - kind(b);
  if (a === b || kind(a) === kinds.indexOf("object")) return 0;
  return a < b ? -1 : 1;
}

const compare = (a, b) => compareValues(a.at, b.at) || compareKeys(a.key, b.key);

function isWithin(child, query) {
  const { startAt, startAfter, endAt, endBefore, equalTo } = query;
  const beside = ([value, key]) => {
    if (query.orderByKey) return compareKeys(child.key, value);
    return compareValues(child.at, value) || (key === undefined ? 0 : compareKeys(child.key, key));
  };
  return (
    (!startAt || beside(startAt) >= 0) && (!startAfter || beside(startAfter) > 0) &&
    (!endAt || beside(endAt) <= 0) && (!endBefore || beside(endBefore) < 0) &&
    (!equalTo || beside(equalTo) === 0)
  );
}

const KEYS = ["a", "b", "c", "d", "e", "f", "1", "2", "10", "é"];

// Decides writes: the same for the same seed.
export class Author {
  constructor(seed) {
    this.state = seed;
  }

  // Returns a number from 0 to below `end`.
  below(end) {
    this.state = (this.state + 0x6d2b79f5) | 0;
    let mixed = Math.imul(this.state ^ (this.state >>> 15), 1 | this.state);
    mixed = (mixed + Math.imul(mixed ^ (mixed >>> 7), 61 | mixed)) ^ mixed;
    return ((mixed ^ (mixed >>> 14)) >>> 0) % end;
  }

  one(choices) {
    return choices[this.below(choices.length)];
  }

  key() {
    return this.one(KEYS);
  }

  leaf() {
    return this.one([this.below(10), this.below(10), this.below(10), "text", "z", true, false, -1.5]);
  }

  child() {
    const members = {
      rank: this.one([this.below(10), this.below(10), "text", { deep: 1 }, null]),
      m: { x: this.below(10), y: this.leaf() },
    };
    if (this.below(3) === 0) return this.leaf();
    if (this.below(4) === 0) members[".priority"] = this.one([this.below(5), "first"]);
    return members;
  }

  list() {
    const found = {};
    for (let i = this.below(8); i >= 0; i -= 1) found[this.key()] = this.child();
    return found;
  }

  // Returns what is merged: children, places in them, and `null` for some that go.
  members() {
    const found = {};
    for (let i = this.below(5); i >= 0; i -= 1) {
      const key = this.key();
      const known = Object.keys(found).some((path) => path.split("/")[0] === key);
      if (known) continue;
      const [path, value] = this.one([
        [key, this.child()], [key, null], [`${key}/rank`, this.below(10)],
        [`${key}/m/x`, this.below(10)],
      ]);
      found[path] = value;
    }
    return found;
  }

  // Returns a write: a function of the place above the list, `base`, in any app, and of what `x`
  // of a child becomes when a number is added. `has` tells whether a child is there, as a priority
  // of nothing cannot be set.
  write(has) {
    const [key, rank, child] = [this.key(), this.below(10), this.child()];
    const priority = this.one([null, this.below(5), "first"]);
    const list = (base) => base.child("list");
    const at = (base) => list(base).child(key);
    const chance = this.below(100);
    if (chance < 18) return (base) => at(base).set(child);
    if (chance < 30) return (base) => at(base).child("rank").set(rank);
    if (chance < 38) return (base, add) => at(base).child("m/x").set(add(key, rank - 5));
    if (chance < 48) return (base) => at(base).remove();
    if (chance < 54) return (base) => at(base).setWithPriority(child, priority);
    if (chance < 60 && has(key)) return (base) => at(base).setPriority(priority);
    if (chance < 60) return (base) => at(base).set(rank);
    if (chance < 64) return (base) => at(base).update({ rank, "m/x": rank });
    const members = this.members();
    if (chance < 82) return (base) => list(base).update(members);
    const pairs = Object.entries(members).map(([path, value]) => [`list/${path}`, value]);
    const paths = Object.fromEntries(pairs);
    if (chance < 88) return (base) => base.update({ ...paths, other: rank });
    const whole = this.list();
    if (chance < 92) return (base) => list(base).set(whole);
    if (chance < 94) return (base) => base.set({ list: whole, other: rank });
    if (chance < 96) return (base) => base.update({ list: whole });
    if (chance < 98) return (base) => list(base).remove();
    return (base) => list(base).set("a leaf");
  }
}
