/** How sizes, counts, times, places and values are shown as text, and read from it. */

const UNITS = ["B", "KB", "MB", "GB", "TB"];
const COUNT = new Intl.NumberFormat("en");

/** Return bytes with a unit: `27 B`, `1.4 MB`. */
export function formatBytes(bytes) {
  let unit = 0;
  let amount = bytes;
  while (amount >= 1000 && unit < UNITS.length - 1) {
    amount /= 1024;
    unit += 1;
  }
  return `${unit === 0 || amount >= 100 ? Math.round(amount) : amount.toFixed(1)} ${UNITS[unit]}`;
}

/** Return a count with separators: `1,000,000`. */
export function formatCount(count) {
  return COUNT.format(count);
}

/** Return `count` and a noun: `1 child`, `3 children`. */
export function plural(count, one, many = `${one}s`) {
  return `${formatCount(count)} ${count === 1 ? one : many}`;
}

/** Return a duration of milliseconds: `0.4 ms`, `120 ms`, `2.5 s`. */
export function formatMs(ms) {
  if (ms >= 1000) return `${(ms / 1000).toFixed(1)} s`;
  return `${ms < 10 ? ms.toFixed(1) : Math.round(ms)} ms`;
}

/** Return how long ago a time was: `now`, `5 s ago`, `3 min ago`. */
export function formatAgo(time, now = Date.now()) {
  const seconds = Math.max(0, Math.round((now - new Date(time).getTime()) / 1000));
  if (seconds < 2) return "now";
  if (seconds < 100) return `${seconds} s ago`;
  if (seconds < 6000) return `${Math.round(seconds / 60)} min ago`;
  if (seconds < 172800) return `${Math.round(seconds / 3600)} h ago`;
  return `${Math.round(seconds / 86400)} days ago`;
}

/** Return the time of day of a time, with seconds. */
export function formatTime(time) {
  return new Date(time).toLocaleTimeString("en-GB");
}

/** Return keys as a place: `/users/ada`. */
export function formatPath(keys) {
  return `/${keys.join("/")}`;
}

/**
 * Return the keys of a place as a user types it: `/users/ada`, `users/ada.json`, a whole URL, or that of
 * a page of the console. `base` is the URL of the root where it is not that of a host.
 */
export function parsePath(text, base = null) {
  let place = text.trim();
  if (/^[a-z][a-z0-9+.-]*:\/\//i.test(place)) {
    const { pathname, hash, href } = new URL(place);
    const [fragment] = hash.startsWith("#/data") ? hash.slice("#/data".length).split("?") : [null];
    const below = base !== null && href.startsWith(base.href) ? `/${pathname.slice(base.pathname.length)}` : pathname;
    place = (fragment ?? below).split("/").map(decodeURIComponent).join("/");
  }
  return place.replace(/\.json$/, "").split("/").filter(Boolean);
}

/** Return why a key is not allowed, or null. */
export function problemOfKey(key) {
  if (!key) return "A key has at least one character.";
  if (/[.#$[\]/\u0000-\u001f\u007f]/.test(key)) return "A key has none of . # $ [ ] / and no control characters.";
  if (new TextEncoder().encode(key).length > 768) return "A key has at most 768 bytes.";
  return null;
}

/** Return a leaf as it is shown in a row: strings in quotes. */
export function formatLeaf(value) {
  return toJson(value);
}

/** Return the type of a JSON value as the console names it. */
export function typeOf(value) {
  if (value === null || value === undefined) return "null";
  return value instanceof RawJson ? "number" : typeof value;
}

/**
 * Return `{value}` or `{problem}` of a text that is edited as a type.
 * @param {string} text
 * @param {"string"|"number"|"boolean"|"json"|"null"} type
 */
export function parseLeaf(text, type) {
  if (type === "string") return { value: text };
  if (type === "null") return { value: null };
  if (type === "boolean") return { value: text.trim() === "true" };
  if (type === "number") {
    const trimmed = text.trim();
    if (!/^-?(0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?$/.test(trimmed) || !Number.isFinite(Number(trimmed))) {
      return { problem: "Not a number." };
    }
    return { value: new RawJson(trimmed) };
  }
  try {
    JSON.parse(text);
    return { value: new RawJson(text) };
  } catch (error) {
    return { problem: `Not valid JSON: ${error.message}` };
  }
}

/** JSON text that is sent as it is, so that a number keeps the digits that JavaScript would round. */
export class RawJson {
  constructor(text) {
    this.text = text;
  }

  toString() {
    return this.text;
  }

  toJSON() {
    return JSON.rawJSON ? JSON.rawJSON(this.text) : JSON.parse(this.text);
  }
}

/** Return the JSON text of a value to send. */
export function toJson(value) {
  return value instanceof RawJson ? value.text : JSON.stringify(value);
}
