/**
 * The rules of the project: what is in force, and the draft that is edited.
 *
 * One object for all tabs. It survives the view, so that a draft is not lost when another view is
 * shown; it belongs to one database and is dropped when another is opened.
 */

import { admin, send, urlOf } from "../core/api.js";
import { session } from "../core/session.js";

const PAGE = ".settings/rules";
const CHECK_MS = 300;

/** A problem of a document: line and column from 1. */
const POSITION = /^(\d+):(\d+): (.*)$/s;

class RulesDocument extends EventTarget {
  /** The text in force; null until it is read. */
  current = null;
  /** The edited text; null until it is read. */
  draft = null;
  /** `{line, column, message, severity}` of the draft. */
  problems = [];
  /** `checked`, `checking` or `unknown`. */
  state = "unknown";
  /** Why it cannot be read, or null. */
  error = null;

  #of = null;
  #timer = 0;
  #checking = null;

  get isChanged() {
    return this.draft !== null && this.draft !== this.current;
  }

  get hasErrors() {
    return this.problems.some((each) => each.severity === "error");
  }

  /** Read what is in force; a draft that differs is kept, unless it is of another database. */
  async load() {
    const of = `${session.label} ${session.caller?.project}`;
    if (this.#of !== of) {
      this.#of = of;
      this.current = this.draft = null;
      this.problems = [];
    }
    try {
      const isUnchanged = !this.isChanged;
      this.current = await readText({});
      if (isUnchanged) this.draft = this.current;
      this.error = null;
    } catch (error) {
      this.error = error;
    }
    this.#notify();
    if (this.draft !== null) this.#checkSoon(0);
  }

  /** Replace the draft; it is checked after a pause. */
  edit(text) {
    this.draft = text;
    this.#checkSoon(CHECK_MS);
    this.#notify();
  }

  /** Put the draft in force; raise `ApiError`. Return the warnings. */
  async publish() {
    const text = this.draft;
    const found = await admin("PUT", PAGE, { body: text });
    this.current = text;
    this.#notify();
    return found?.warnings ?? [];
  }

  /** Make the draft what is in force again. */
  discard() {
    this.edit(this.current);
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
    try {
      const found = await admin("PUT", PAGE, { body: this.draft, parameters: { dryRun: "true" }, signal: checking.signal });
      this.problems = (found?.warnings ?? []).map((each) => parseProblem(each, "warning"));
    } catch (error) {
      if (checking.signal.aborted) return;
      if (error.isOffline) {
        this.state = "unknown";
        this.#notify();
        return;
      }
      this.problems = error.body?.errors?.map((each) => ({ ...each, severity: "error" })) ?? [
        { ...parseProblem(error.message, "error"), hint: error.body?.hint },
      ];
    }
    this.state = "checked";
    this.#notify();
  }

  #notify() {
    this.dispatchEvent(new Event("change"));
  }
}

function parseProblem(text, severity) {
  const found = POSITION.exec(text);
  return found ? { line: Number(found[1]), column: Number(found[2]), message: found[3], severity } : { line: 1, column: 1, message: text, severity };
}

async function readText(parameters) {
  const response = await send("GET", urlOf(PAGE, parameters, { isData: false }));
  return response.text();
}

/** Read the text of a version. */
export async function readVersion(version) {
  const response = await send("GET", urlOf(".settings/rules/versions", { version }, { isData: false }));
  return response.text();
}

export const rules = new RulesDocument();
