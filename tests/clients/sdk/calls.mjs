// A table of calls of an SDK: each row is tried, and what became of it is printed as JSON. The SDKs
// call their listeners themselves, so a row waits for what it was promised, at most `SECONDS`.

import assert from "node:assert/strict";
import { createHmac } from "node:crypto";

const SECONDS = 120;
const rows = [];

// Adds a row: the names that it calls, what is promised of them, and how that is tried.
export function call(names, promise, run) {
  rows.push({ names: names.split(" "), promise, run });
}

// Tries every row, prints the verdicts, and ends the process. `exported` are the names that must be
// called by some row; the missing ones are printed too.
export async function report(exported) {
  const called = new Set(rows.flatMap((row) => row.names));
  const missing = exported.filter((name) => !called.has(name));
  const verdicts = [];
  for (const { names, promise, run } of rows) {
    const verdict = await attempt(run);
    verdicts.push({ calls: names.join(", "), promise, verdict });
  }
  process.stdout.write(`${JSON.stringify({ verdicts, missing })}\n`, () => process.exit());
}

async function attempt(run) {
  let timer;
  const late = new Promise((resolve) => {
    timer = setTimeout(resolve, SECONDS * 1000, `nothing after ${SECONDS} s`);
  });
  const outcome = run().then(
    () => "ok",
    (error) => `${error?.stack ?? error}`,
  );
  const verdict = await Promise.race([outcome, late]);
  clearTimeout(timer);
  return verdict;
}

// Makes the names of nodes that no other row uses.
let made = 0;
export const place = () => `work/${process.pid}-${(made += 1)}`;

// Collects what a listener is called with; `until` waits for as many calls, or for a last value.
export class Heard {
  constructor() {
    this.all = [];
    this.waiting = [];
    this.hear = (value) => {
      this.all.push(value);
      this.waiting = this.waiting.filter((look) => !look());
    };
  }

  until(fits) {
    return new Promise((resolve) => {
      const look = () => fits(this.all) && (resolve(this.all), true);
      if (!look()) this.waiting.push(look);
    });
  }

  count(number) {
    return this.until((all) => all.length >= number);
  }

  last(expected) {
    const same = (value) => {
      try {
        assert.deepEqual(value, expected);
        return true;
      } catch {
        return false;
      }
    };
    return this.until((all) => all.length > 0 && same(all.at(-1)));
  }
}

// Signs a token of the project as `treedb token` does.
export function sign(claims) {
  const now = Math.floor(Date.now() / 1000);
  const encode = (part) => Buffer.from(JSON.stringify(part)).toString("base64url");
  const header = { alg: "HS256", typ: "JWT" };
  const text = `${encode(header)}.${encode({ iat: now, exp: now + 3600, ...claims })}`;
  const signature = createHmac("sha256", process.env.PLAY_SECRET).update(text);
  return `${text}.${signature.digest("base64url")}`;
}

// Replaces the sign-in library of Firebase, as docs/clients.md shows: the SDK asks it for a token.
export class SignIn {
  constructor(token) {
    this.token = token;
    this.listeners = [];
    this.asked = [];
  }

  async getToken(mustBeNew) {
    this.asked.push(mustBeNew);
    if (mustBeNew && this.next) this.token = this.next;
    return this.token ? { accessToken: this.token } : null;
  }

  use(token) {
    this.token = token;
    for (const listener of this.listeners) listener(token);
  }

  addAuthTokenListener(listener) {
    this.listeners.push(listener);
  }

  removeAuthTokenListener(listener) {
    this.listeners = this.listeners.filter((other) => other !== listener);
  }

  getUid() {
    return null;
  }
}

// Reads a value over REST, as an admin and with its priorities.
export async function stored(path) {
  const url = new URL(`${path}.json`, process.env.PLAY_URL);
  url.searchParams.set("ns", process.env.PLAY_NS);
  url.searchParams.set("format", "export");
  const headers = { Authorization: `Bearer ${sign({ admin: true })}` };
  const response = await fetch(url, { headers });
  assert.equal(response.status, 200);
  return response.json();
}
