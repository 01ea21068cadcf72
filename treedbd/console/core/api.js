/**
 * Requests to the server, and streams of events.
 *
 * All go to the origin of the page, with the token of the session in `Authorization`. A failure is
 * an `ApiError`. If the server cannot be reached, the session is `offline`, and is tried again until
 * it answers: then `online` is notified, and views read again what they show.
 */

import { RawJson, toJson } from "./format.js";
import { session } from "./session.js";

/** A header by which errors have a code and a sentence, also for requests with a token. */
export const DIALECT = { "X-TreeDB-Dialect": "standard" };
const RETRY_MS = [500, 1000, 2000, 4000, 8000];
/** How long the head of a response to a read may take; a write may take as long as it needs. */
const HEAD_MS = 30_000;
/** A stream is begun again after this time without a byte: the server sends one every 30 s. */
const SILENT_MS = 75_000;
/** A page that is hidden for this time ends its streams: all tabs have six connections together. */
const HIDDEN_MS = 20_000;
/** How long the server may take to say that it is alive. */
const ALIVE_MS = 5000;

/** A request that failed: `status` 0 if there was no answer. */
export class ApiError extends Error {
  constructor(status, code, message, body) {
    super(message);
    this.status = status;
    this.code = code;
    this.body = body;
  }

  get isOffline() {
    return this.status === 0;
  }

  get isDenied() {
    return this.status === 401 || this.status === 403;
  }
}

/** Return the URL of a place, or of an admin's page such as `.inspect/caller`. */
export function urlOf(place, parameters = {}, { isData = true } = {}) {
  const path = Array.isArray(place) ? place.map(encodeURIComponent).join("/") : place;
  const url = new URL(`${path}.json`, session.base);
  if (session.label) url.searchParams.set("ns", session.label);
  if (isData && session.viewAs !== undefined && session.isAdmin) {
    url.searchParams.set("auth_variable_override", JSON.stringify(session.viewAs.auth));
  }
  for (const [name, value] of Object.entries(parameters)) {
    if (value !== undefined && value !== null) url.searchParams.set(name, String(value));
  }
  return url;
}

/**
 * Send a request and return the response, which is not read yet.
 * @returns {Promise<Response>}
 */
export async function send(method, url, { body, headers = {}, signal, token = session.token } = {}) {
  const sent = { ...headers, ...DIALECT };
  if (token) sent.Authorization = `Bearer ${token}`;
  if (body !== undefined) sent["Content-Type"] ??= "application/json";
  const late = new AbortController();
  const timer = method === "GET" ? setTimeout(() => late.abort(), HEAD_MS) : 0;
  const either = signal ? AbortSignal.any([signal, late.signal]) : late.signal;
  let response;
  try {
    response = await fetch(url, { method, headers: sent, body, signal: either, cache: "no-store", credentials: "omit", referrerPolicy: "no-referrer" });
  } catch (error) {
    if (signal?.aborted) throw error;
    noteOffline();
    throw new ApiError(0, "offline", "The server does not answer.");
  } finally {
    clearTimeout(timer);
  }
  noteOnline();
  if (response.ok || response.status === 304) return response;
  throw await errorOf(response, token);
}

async function errorOf(response, token) {
  const text = await response.text().catch(() => "");
  let found = {};
  try {
    found = JSON.parse(text) ?? {};
  } catch {
    // An error of a proxy between: its status says enough.
  }
  if (response.status === 412) {
    return new ApiError(412, "condition_failed", "It was changed by someone else in the meantime.", found);
  }
  const error = new ApiError(response.status, found.error ?? "", found.message ?? `The server answers ${response.status}.`, found);
  if (response.status === 401 && token && token === session.token && /^The token |expired/i.test(error.message)) {
    session.signOut(session.caller === null && !/expire/i.test(error.message) ? "signed-out" : "expired");
  }
  return error;
}

/** Parse JSON; a number that JavaScript would round is a `RawJson`, where the browser shows its text. */
export function parseJson(text) {
  return JSON.parse(text, (_, value, context) =>
    typeof value === "number" && context !== undefined && String(value) !== context.source && !Number.isSafeInteger(value)
      ? new RawJson(context.source)
      : value,
  );
}

/** Read data or an admin's page as JSON. */
export async function get(place, parameters, { signal, isData = true, headers } = {}) {
  const response = await send("GET", urlOf(place, parameters, { isData }), { signal, headers });
  return parseJson(await response.text());
}

/** Read a page of the children of a place, without their values. */
export function describe(keys, parameters = {}, { signal } = {}) {
  return get(keys, { describe: "true", ...parameters }, { signal });
}

/** Read a value with its entity tag: `{value, text, etag}`. */
export async function read(keys, parameters = {}, { signal } = {}) {
  const response = await send("GET", urlOf(keys, parameters), { signal, headers: { "X-TreeDB-ETag": "true" } });
  const text = await response.text();
  return { value: parseJson(text), text, etag: response.headers.get("ETag") };
}

/**
 * Write data: `PUT`, `PATCH`, `POST` or `DELETE`; return `{value, etag}` of the response.
 * @param {{etag?: string, isSilent?: boolean, signal?: AbortSignal}} options  with `etag` only if the
 *   value has still that tag; with `isSilent` the value is not sent back
 */
export async function write(method, keys, value, { etag, isSilent = false, signal } = {}) {
  const url = urlOf(keys, isSilent ? { print: "silent" } : {});
  const body = method === "DELETE" ? undefined : toJson(value);
  const headers = etag ? { "If-Match": etag } : {};
  if (method === "PUT" || method === "DELETE") headers["X-TreeDB-ETag"] = "true";
  const response = await send(method, url, { body, signal, headers });
  const text = await response.text();
  return { value: text ? parseJson(text) : null, etag: response.headers.get("ETag") };
}

/** Send an admin's request, such as `admin("PUT", ".settings/rules", {body})`; return JSON or text. */
export async function admin(method, page, { parameters, body, signal, headers } = {}) {
  const url = urlOf(page, parameters, { isData: false });
  const sent = body === undefined || typeof body === "string" ? body : JSON.stringify(body);
  const response = await send(method, url, { body: sent, signal, headers });
  const text = await response.text();
  try {
    return text ? JSON.parse(text) : null;
  } catch {
    return text;
  }
}

/**
 * Follow a stream of Server-Sent Events until `signal` is aborted; it begins again by itself.
 *
 * `onEvent(type, data)` is called with each event, `onState(state, error)` with `open`, `lost` (it is
 * tried again), or `ended` (denied, or refused: it is not).
 */
export async function follow(place, parameters, { onEvent, onState = () => {}, signal, isData = true }) {
  let failures = 0;
  while (!signal.aborted) {
    await whenSeen(signal);
    const attempt = new Attempt();
    try {
      const url = urlOf(place, parameters, { isData });
      const response = await send("GET", url, { signal: AbortSignal.any([signal, attempt.signal]), headers: { Accept: "text/event-stream" } });
      onState("open");
      const isOver = await readEvents(response.body, attempt, (type, data) => {
        failures = 0;
        onEvent(type, data);
        if (type === "auth_revoked") identify().catch(() => {}); // an expired token ends the session
        return type === "cancel" || type === "auth_revoked";
      });
      if (isOver) {
        onState("ended", new ApiError(403, "cancelled", "The right to read this has ended."));
        return;
      }
    } catch (error) {
      if (signal.aborted) return;
      if (error instanceof ApiError && !error.isOffline && error.status < 500 && error.status !== 429) {
        onState("ended", error);
        return;
      }
    } finally {
      attempt.end();
    }
    if (attempt.isHidden) continue;
    onState("lost");
    await pause(RETRY_MS[Math.min(failures, RETRY_MS.length - 1)], signal);
    failures += 1;
  }
}

/**
 * Aborts a stream of which nothing comes, as after the network was lost without a sign, or whose page
 * is not seen. A page that was left is kept by the browser, with its connections, for a way back.
 */
class Attempt {
  #controller = new AbortController();
  #silence = 0;
  #hiding = 0;
  signal = this.#controller.signal;
  /** Whether it was aborted because the page is not seen. */
  isHidden = false;

  constructor() {
    const { signal } = this;
    addEventListener("pagehide", () => this.#hide(), { signal });
    document.addEventListener("visibilitychange", () => this.#look(), { signal });
    this.#look();
    this.wait();
  }

  /** Begin to wait for bytes, from now. */
  wait() {
    clearTimeout(this.#silence);
    this.#silence = setTimeout(() => this.#controller.abort(), SILENT_MS);
  }

  end() {
    clearTimeout(this.#silence);
    clearTimeout(this.#hiding);
    this.#controller.abort();
  }

  #look() {
    clearTimeout(this.#hiding);
    if (document.hidden) this.#hiding = setTimeout(() => this.#hide(), HIDDEN_MS);
  }

  #hide() {
    this.isHidden = true;
    this.#controller.abort();
  }
}

let isLeft = false;
addEventListener("pagehide", () => { isLeft = true; });
addEventListener("pageshow", () => { isLeft = false; });

/** Wait until the page is seen, or `signal` is aborted. */
async function whenSeen(signal) {
  while ((isLeft || document.hidden) && !signal.aborted) {
    await new Promise((resolve) => {
      const over = new AbortController();
      const end = () => {
        over.abort();
        resolve();
      };
      addEventListener("pageshow", end, { signal: over.signal });
      document.addEventListener("visibilitychange", end, { signal: over.signal });
      signal.addEventListener("abort", end, { signal: over.signal });
    });
  }
}

/** Call `onEvent` with each event of a body until it returns true; return whether it did. */
async function readEvents(body, attempt, onEvent) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let pending = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return false;
    attempt.wait();
    const blocks = (pending + value).split("\n\n");
    pending = blocks.pop();
    for (const block of blocks) {
      if (deliver(block, onEvent)) {
        reader.cancel().catch(() => {});
        return true;
      }
    }
  }
}

function deliver(block, onEvent) {
  let type = "message";
  const data = [];
  for (const line of block.split("\n")) {
    if (line.startsWith("event: ")) type = line.slice(7);
    else if (line.startsWith("data: ")) data.push(line.slice(6));
  }
  if (type === "keep-alive" || !data.length) return false;
  let parsed = data.join("\n");
  try {
    parsed = parseJson(parsed);
  } catch {
    // `auth_revoked` carries a sentence.
  }
  return onEvent(type, parsed);
}

/** Wait for a time, or until `signal` is aborted. */
export function pause(ms, signal) {
  return new Promise((resolve) => {
    const timer = setTimeout(resolve, ms);
    signal?.addEventListener("abort", () => {
      clearTimeout(timer);
      resolve();
    }, { once: true });
  });
}

let isTrying = false;

function noteOnline() {
  if (session.state !== "offline") return;
  session.set({ state: "online" });
  session.dispatchEvent(new Event("online"));
}

async function noteOffline() {
  if (session.state !== "online" && session.state !== "offline") return;
  if (session.state === "online") session.set({ state: "offline" });
  if (isTrying) return;
  isTrying = true;
  for (let tries = 0; session.state === "offline"; tries += 1) {
    await pause(RETRY_MS[Math.min(tries, RETRY_MS.length - 1)], hurry.signal);
    if (await isAlive()) noteOnline();
  }
  isTrying = false;
}

/** Return whether the server answers. */
async function isAlive() {
  try {
    await fetch(new URL(".health?live", session.base), { cache: "no-store", credentials: "omit", signal: AbortSignal.timeout(ALIVE_MS) });
    return true;
  } catch {
    return false;
  }
}

/** Aborted when there is a reason to try at once. */
let hurry = new AbortController();

/** Find out at once whether the server answers: the network, or the page, is back or gone. */
async function lookAgain() {
  if (session.state === "offline") {
    hurry.abort();
    hurry = new AbortController();
  } else if (session.state === "online" && !(await isAlive())) {
    noteOffline();
  }
}

addEventListener("offline", lookAgain);
addEventListener("online", lookAgain);
document.addEventListener("visibilitychange", () => document.hidden || lookAgain());

/** Find out who the session's caller is; raise `ApiError` if the token is not accepted. */
export async function identify(token = session.token, label = session.label) {
  const url = new URL(".inspect/caller.json", session.base);
  if (label) url.searchParams.set("ns", label);
  const response = await send("GET", url, { token });
  return response.json();
}
