/** The operations of a profile, added up by path. Without a page: the tests run it alone. */

/** Keys below one place that have rows of their own; more are one row. */
export const MAX_CHILDREN = 25;
/** Places that have rows of their own; what is done elsewhere is counted for the place above. */
export const MAX_PLACES = 5000;
export const ANY_KEY = "$key";

export const ORDERS = { time: (row) => row.ms, bytes: (row) => row.bytes, count: (row) => row.count };

class Place {
  children = new Map();
  rows = new Map();
  missing = new Map();

  row(name) {
    if (!this.rows.has(name)) this.rows.set(name, { name, count: 0, ms: 0, most: 0, bytes: 0, denied: 0 });
    return this.rows.get(name);
  }

  merge(other) {
    for (const [name, each] of other.rows) {
      const row = this.row(name);
      for (const figure of ["count", "ms", "bytes", "denied"]) row[figure] += each[figure];
      row.most = Math.max(row.most, each.most);
    }
    for (const [index, count] of other.missing) this.missing.set(index, (this.missing.get(index) ?? 0) + count);
    for (const [key, place] of other.children) {
      if (this.children.has(key)) this.children.get(key).merge(place);
      else this.children.set(key, place);
    }
    this.join();
  }

  /** Make one place of the children if they are too many. */
  join() {
    if (this.children.size <= MAX_CHILDREN && !this.children.has(ANY_KEY)) return;
    const joined = this.children.get(ANY_KEY) ?? new Place();
    this.children.delete(ANY_KEY);
    const others = [...this.children.values()];
    this.children = new Map([[ANY_KEY, joined]]);
    for (const each of others) joined.merge(each);
  }

  *walk(keys = []) {
    yield [keys, this];
    for (const [key, place] of this.children) yield* place.walk([...keys, key]);
  }
}

export class Profile {
  count = 0;
  /** How many operations came faster than they could be sent. */
  lost = 0;
  #root = new Place();
  #places = 1;

  /** Add an operation as the server sends it. */
  add({ name, path = [], millis = 0, bytes = 0, allowed, unIndexed, querySet, count }) {
    if (name === "operations-lost") {
      this.lost += count;
      return;
    }
    this.count += 1;
    const place = this.#find(path);
    const row = place.row(name);
    row.count += 1;
    row.ms += millis;
    row.most = Math.max(row.most, millis);
    row.bytes += bytes;
    if (allowed === false) row.denied += 1;
    if (!unIndexed) return;
    const index = querySet[0].index.path.join("/");
    place.missing.set(index, (place.missing.get(index) ?? 0) + 1);
  }

  #find(path) {
    let place = this.#root;
    for (const key of path) {
      let child = place.children.get(key) ?? place.children.get(ANY_KEY);
      if (!child) {
        if (this.#places >= MAX_PLACES) return place;
        child = new Place();
        place.children.set(key, child);
        this.#places += 1;
        if (place.children.size > MAX_CHILDREN) {
          place.join();
          this.#places = [...this.#root.walk()].length;
          child = place.children.get(ANY_KEY);
        }
      }
      place = child;
    }
    return place;
  }

  /** Return what was done at each pattern of places: what took most first. */
  rowsBy(order) {
    const rows = [...this.#root.walk()].flatMap(([keys, place]) => [...place.rows.values()].map((row) => ({ ...row, keys })));
    return rows.sort((one, other) => ORDERS[order](other) - ORDERS[order](one));
  }

  /** The indexes that queries lacked, the most frequent first. */
  get missing() {
    const found = [...this.#root.walk()].flatMap(([keys, place]) => [...place.missing].map(([index, count]) => ({ keys, index, count })));
    return found.sort((one, other) => other.count - one.count);
  }
}
