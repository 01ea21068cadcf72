/**
 * The rules of the project: what is in force, and the draft that is edited.
 *
 * One object for all tabs. A draft is made from a text that was in force, its `base`. It survives the
 * view, and a reload of the page (`sessionStorage`); it belongs to one project and is dropped when
 * another is opened. If someone else puts rules in force meanwhile, the draft is `isOutdated` until
 * the user has decided what becomes of it.
 */

import { admin, get, send, urlOf } from "../core/api.js";
import { session } from "../core/session.js";

const PAGE = ".settings/rules";
const VERSIONS = ".settings/rules/versions";
const CHECK_MS = 300;
const STORED = "treedb.console.rules";
const CONFLICT = 409;
/** The status of a PUT of rules, if others were put in force since they were read. */
export const CHANGED = 412;

/** A problem of a document: line and column from 1. */
const POSITION = /^(\d+):(\d+): (.*)$/s;

class RulesDocument extends EventTarget {
  /** The text in force; null until it is read. */
  current = null;
  /** The text in force that the draft was made from. */
  base = null;
  /** The edited text; null until it is read. */
  draft = null;
  /** `{line, column, message, hint, severity}` of the draft. */
  problems = [];
  /** `checked`, `checking`, or `unknown` with the reason in `problem`. */
  state = "unknown";
  /** Why the draft could not be checked, or null. */
  problem = null;
  /** Why the rules cannot be read, or null. */
  error = null;
  /** The sentence that says that a file manages these rules, or null. */
  managed = null;
  /** The version that others have put in force under a draft, as the server lists it, or null. */
  newest = null;

  /** The entity tag of the text in force, to put others in its place later. */
  tag = null;
  #project = null;
  #timer = 0;
  #checking = null;
  #reading = 0;

  get isChanged() {
    return this.draft !== null && this.draft !== this.current;
  }

  /** Whether others have changed the rules since the draft was made from them. */
  get isOutdated() {
    return this.isChanged && this.base !== this.current;
  }

  get hasErrors() {
    return this.problems.some((each) => each.severity === "error");
  }

  /** Read what is in force, and check the draft. */
  async load() {
    await Promise.all([this.refresh(), this.#findManaged()]);
    if (this.draft !== null) this.#checkSoon(0);
  }

  /** Find out whether a file manages the rules: then they have no versions. */
  async #findManaged() {
    try {
      await get(VERSIONS, {}, { isData: false });
      this.managed = null;
    } catch (error) {
      if (error.status === CONFLICT) this.managed = error.message;
    }
  }

  /** Read what is in force; a draft that differs is kept. Return whether others have changed it. */
  async refresh() {
    this.#openProject();
    const number = (this.#reading += 1);
    const { current: before, isChanged } = this;
    try {
      const { text, tag } = await readText();
      if (number !== this.#reading) return false;
      this.error = null;
      this.tag = tag;
      this.#take(text, isChanged);
    } catch (error) {
      if (number === this.#reading && !(error.isOffline && before !== null)) this.error = error;
    }
    const isOther = before !== null && before !== this.current;
    if (isOther && this.isOutdated) await this.#findNewest();
    this.#notify();
    return isOther;
  }

  #take(text, isChanged) {
    const isOther = text !== this.current;
    this.current = text;
    this.base ??= text;
    if (!isChanged || this.draft === text || this.draft === null) {
      this.base = this.draft = text;
      if (isOther) this.#checkSoon(0);
      this.#keep();
    }
  }

  async #findNewest() {
    try {
      [this.newest] = await get(VERSIONS, {}, { isData: false });
    } catch {
      this.newest = null;
    }
  }

  /** Replace the draft; it is checked after a pause. */
  edit(text) {
    if (!this.isChanged) this.base = this.current;
    this.draft = text;
    this.#keep();
    this.#checkSoon(CHECK_MS);
    this.#notify();
  }

  /**
   * Put the draft in force in place of the rules with this `tag`, which the user has seen; raise
   * `ApiError`, of the status `CHANGED` if others are in force. Those are read then.
   */
  async publish(tag) {
    const text = this.draft;
    await this.#keepFirst(tag);
    await this.put(text, tag);
    this.base = text;
    this.#keep();
    this.#notify();
  }

  /** Put any text in force, as `publish` does; a draft stays. */
  async put(text, tag) {
    const { isChanged } = this;
    try {
      const response = await putRules(text, tag);
      this.#reading += 1; // what is being read may be what was in force before
      this.current = text;
      if (!isChanged) this.base = this.draft = text;
      this.tag = response.headers.get("ETag");
    } catch (error) {
      if (error.status === CHANGED) await this.refresh();
      throw error;
    }
  }

  /** Make a version of the rules that a project begins with, so that one can go back to them. */
  async #keepFirst(tag) {
    const versions = await get(VERSIONS, {}, { isData: false });
    if (!versions.length) await this.put(this.current, tag);
  }

  /** Go on with the draft, although others have changed the rules: it would replace theirs. */
  rebase() {
    this.base = this.current;
    this.#keep();
    this.#notify();
  }

  /** Make the draft what is in force again. */
  discard() {
    this.edit(this.current);
    this.base = this.current;
    this.#keep();
  }

  #openProject() {
    const project = session.caller?.project ?? null;
    if (project === this.#project) return;
    this.#project = project;
    this.current = this.base = this.draft = this.managed = this.error = this.newest = null;
    this.problems = [];
    this.state = "checking";
    const kept = readKept();
    if (kept?.project === project) Object.assign(this, { base: kept.base, draft: kept.draft });
  }

  /** Keep the draft for a reload of the page; one that is too large for that is not kept. */
  #keep() {
    try {
      if (this.draft === this.current) sessionStorage.removeItem(STORED);
      else sessionStorage.setItem(STORED, JSON.stringify({ project: this.#project, base: this.base, draft: this.draft }));
    } catch {
      sessionStorage.removeItem(STORED);
    }
  }

  #checkSoon(ms) {
    clearTimeout(this.#timer);
    this.#checking?.abort();
    this.state = "checking";
    this.#timer = setTimeout(() => this.#check(), ms);
  }

  async #check() {
    const checking = new AbortController();
    this.#checking = checking;
    const { draft } = this;
    try {
      const found = await admin("PUT", PAGE, { body: draft, parameters: { dryRun: "true" }, signal: checking.signal });
      if (checking.signal.aborted) return;
      this.#note(problemsOf(found?.positions ?? found?.warnings ?? [], "warning", draft));
    } catch (error) {
      if (!checking.signal.aborted) this.#noteError(error, draft);
    }
    this.#notify();
  }

  #note(problems) {
    Object.assign(this, { state: "checked", problems, problem: null });
  }

  #noteError(error, draft) {
    const { status, body, message } = error;
    if (status === CONFLICT) this.managed = message;
    if (status === CONFLICT) this.#note([]);
    else if (status === 400 || status === 413) this.#note(problemsOf(body?.errors ?? [{ ...parseProblem(message), hint: body?.hint }], "error", draft));
    else Object.assign(this, { state: "unknown", problem: message });
  }

  #notify() {
    this.dispatchEvent(new Event("change"));
  }
}

/** Return problems with columns as the editor counts them: the server counts characters. */
function problemsOf(found, severity, text) {
  const lines = text.split("\n");
  return found.map((each) => {
    const { line, column, message, hint } = typeof each === "string" ? parseProblem(each) : each;
    const before = [...(lines[line - 1] ?? "")].slice(0, column - 1).join("");
    return { line, column: before.length + 1, shown: `${line}:${column}`, message, hint, severity };
  });
}

function parseProblem(text) {
  const found = POSITION.exec(text);
  return found ? { line: Number(found[1]), column: Number(found[2]), message: found[3] } : { line: 1, column: 1, message: text };
}

function readKept() {
  try {
    return JSON.parse(sessionStorage.getItem(STORED));
  } catch {
    return null;
  }
}

async function readText() {
  const response = await send("GET", urlOf(PAGE, {}, { isData: false }), { headers: { "X-TreeDB-ETag": "true" } });
  return { text: await response.text(), tag: response.headers.get("ETag") };
}

/** Put a text in force, if the rules in force have the tag. */
function putRules(text, tag) {
  const headers = { "X-TreeDB-ETag": "true", ...(tag ? { "If-Match": tag } : {}) };
  return send("PUT", urlOf(PAGE, {}, { isData: false }), { body: text, headers });
}

/** What is said of a publication that has failed, as `tellError` takes it. */
export function explainFailure(error) {
  if (error.status !== CHANGED) return error;
  return new Error("The rules were changed meanwhile, and yours were not put in force. Compare yours with what is in force now, and publish again.");
}

/** Read the text of a version. */
export async function readVersion(version) {
  const response = await send("GET", urlOf(VERSIONS, { version }, { isData: false }));
  return response.text();
}

export const rules = new RulesDocument();
