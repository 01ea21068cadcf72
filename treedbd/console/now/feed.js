/**
 * The requests that match a filter, as they come: the last ones of the server first, then a stream.
 *
 * A paused feed keeps what comes, and shows it when it goes on. The stream ends while the page is
 * hidden, so that nothing is recorded for a page that is not looked at; what came meanwhile is read
 * when it is shown again.
 */

import { follow, get } from "../core/api.js";

const PAGE = ".inspect/requests";
const KEPT = 300;
const NOTIFY_MS = 250;
/** What is shown takes at most this share of the time. */
const SHARE = 0.2;

/** Whether a request only shows or checks rules, as open consoles do all the time. */
function isOfConsole({ method, path, query, admin }) {
  if (!admin || !path.startsWith("/.settings/rules")) return false;
  return method === "GET" || path.endsWith("/trial.json") || /(^|&)dryRun=true/.test(query);
}

export class RequestFeed extends EventTarget {
  /** The newest first. */
  shown = [];
  /** How many came while it was paused. */
  waiting = 0;
  /** How many the server has left out, because they came faster than they were read. */
  dropped = 0;
  /** `connecting`, `open`, `lost` or `ended`. */
  state = "connecting";
  /** Why it ended, or null. */
  error = null;

  #filter = {};
  #all = [];
  #ids = new Set();
  /** What was cleared, and what was being read then: the server has it still. */
  #cleared = new Set();
  #clears = 0;
  #isPaused = false;
  #timer = 0;
  #tookMs = 0;
  #ending = null;
  #onVisibility = () => (document.hidden ? this.#stop() : this.#start());

  get isPaused() {
    return this.#isPaused;
  }

  set isPaused(isPaused) {
    this.#isPaused = isPaused;
    this.#show();
  }

  /** Show the requests of a filter: parameters of the page. */
  begin(filter) {
    this.#filter = filter;
    this.clear();
    this.#cleared.clear();
    document.addEventListener("visibilitychange", this.#onVisibility);
    if (!document.hidden) this.#start();
  }

  /** Read nothing from now on. */
  end() {
    document.removeEventListener("visibilitychange", this.#onVisibility);
    this.#stop();
    clearTimeout(this.#timer);
  }

  /** Drop what is shown; no later reading brings it back. */
  clear() {
    for (const { id } of this.#all) this.#cleared.add(id);
    this.#clears += 1;
    this.#all = [];
    this.dropped = 0;
    this.#show();
  }

  #start() {
    this.#stop();
    this.#ending = new AbortController();
    const { signal } = this.#ending;
    this.state = "connecting";
    follow(PAGE, this.#filter, {
      isData: false,
      signal,
      onEvent: (type, data) => this.#note(type, data),
      onState: (state, error) => {
        if (signal.aborted) return;
        this.state = state;
        this.error = error ?? null;
        if (state === "open") this.#readLast(signal);
        this.#notify();
      },
    });
  }

  #stop() {
    this.#ending?.abort();
    this.#ending = null;
  }

  async #readLast(signal) {
    const clears = this.#clears;
    try {
      const last = await get(PAGE, this.#filter, { signal, isData: false });
      if (signal.aborted) return;
      // What came since then comes by the stream.
      const isCleared = (id) => this.#cleared.has(id) || (clears !== this.#clears && !this.#ids.has(id));
      this.#cleared = new Set(last.map(({ id }) => id).filter(isCleared));
      this.#add(last.filter(({ id }) => !this.#cleared.has(id)));
    } catch {
      // The stream shows what comes, and says what is wrong.
    }
  }

  #note(type, data) {
    if (type === "dropped") this.dropped += data.count;
    else if (type === "request") this.#add([data]);
    this.#notify();
  }

  #add(requests) {
    const isNew = requests.filter((each) => !this.#ids.has(each.id) && !isOfConsole(each));
    if (!isNew.length) return;
    const isLate = this.#all.length > 0 && requests.some(({ time }) => time < this.#all[0].time);
    this.#all.unshift(...isNew.reverse());
    if (isLate) this.#all.sort((one, other) => (one.time < other.time ? 1 : one.time > other.time ? -1 : 0));
    for (const { id } of this.#all.splice(KEPT)) this.#ids.delete(id);
    for (const { id } of isNew) this.#ids.add(id);
    if (this.#isPaused) this.waiting += isNew.length;
    this.#notify();
  }

  #notify() {
    this.#timer ||= setTimeout(() => this.#show(), Math.max(NOTIFY_MS, this.#tookMs / SHARE));
  }

  #show() {
    clearTimeout(this.#timer);
    this.#timer = 0;
    if (!this.#isPaused || !this.#all.length) {
      this.shown = [...this.#all];
      this.#ids = new Set(this.#all.map(({ id }) => id));
      this.waiting = 0;
    }
    this.dispatchEvent(new Event("change"));
    // Rows are made and laid out before the next message is handled.
    const began = performance.now();
    requestAnimationFrame(() => setTimeout(() => { this.#tookMs = performance.now() - began; }));
  }
}
