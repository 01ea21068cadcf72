/**
 * The playground: whether a caller may read or write something, by which rule, and what that rule saw.
 *
 * Nothing is read for the user or written. The draft is tried if there is one that is not published.
 * The route can hold the request, so that a denied one of the log opens here.
 */

import { html, nothing } from "../vendor/lit.js";
import { admin } from "../core/api.js";
import { Component } from "../core/element.js";
import { RawJson, formatLeaf, parsePath } from "../core/format.js";
import { authOf } from "../core/identity.js";
import { router } from "../core/router.js";
import { rules } from "./document.js";

const METHODS = [
  ["GET", "read (GET)"],
  ["PUT", "set (PUT)"],
  ["PATCH", "merge (PATCH)"],
  ["POST", "push (POST)"],
  ["DELETE", "remove (DELETE)"],
];
const NAMES = ["orderBy", "equalTo", "startAt", "startAfter", "endAt", "endBefore", "limitToFirst", "limitToLast", "where"];

/** What was asked last: it stays when another view is shown. */
let kept = { who: "anonymous", uid: "", claims: "", method: "GET", path: "/", query: "", value: "", source: "draft" };

export class Playground extends Component {
  static properties = { asked: { state: true }, verdict: { state: true }, problem: { state: true }, isAsking: { state: true } };

  constructor() {
    super();
    this.asked = { ...kept, ...fromRoute() };
    this.verdict = null;
    this.problem = null;
  }

  connectedCallback() {
    super.connectedCallback();
    this.watch(rules, "change");
    this.watch(router, "change", () => {
      this.asked = { ...this.asked, ...fromRoute() };
      if (Object.keys(router.parameters).length) this.#ask();
    });
    if (rules.draft === null) rules.load();
    if (Object.keys(router.parameters).length) this.#ask();
  }

  render() {
    const { who, method, source } = this.asked;
    return html`<div class="page playground">
      <form class="card" @submit=${(event) => this.#submit(event)}>
        <h2>Who may do what?</h2>
        <div class="playground-fields">
          ${this.#select("who", "As", [["anonymous", "anonymous"], ["uid", "a user, by uid"], ["auth", "any auth, as JSON"], ["admin", "an admin"]])}
          ${who === "uid" ? this.#input("uid", "uid") : nothing}
          ${this.#select("method", "Does", METHODS)}
          ${this.#input("path", "At")}
          ${rules.isChanged ? this.#select("source", "By", [["draft", "the draft"], ["current", "the rules in force"]]) : nothing}
        </div>
        ${who === "uid" || who === "auth" ? this.#area("claims", who === "uid" ? "Claims of the token (JSON)" : "auth (JSON)", 2) : nothing}
        ${method === "GET" ? this.#input("query", 'Query, as in orderBy="age"&limitToFirst=10') : nothing}
        ${method === "GET" || method === "DELETE" ? nothing : this.#area("value", "With this value (JSON)", 5)}
        ${this.problem ? html`<p class="problem" role="alert">${this.problem}</p>` : nothing}
        <button class="primary" ?disabled=${this.isAsking}>Try</button>
        <span class="hint">Nothing is written.${rules.isChanged && source === "draft" ? " The draft is tried, which is not published." : ""}</span>
      </form>
      <div aria-live="polite">${this.verdict ? this.#renderVerdict() : nothing}</div>
    </div>`;
  }

  #set(name, value) {
    this.asked = { ...this.asked, [name]: value };
    kept = this.asked;
  }

  #select(name, label, options) {
    return html`<div class="field"><label for=${name}>${label}</label><select id=${name} @change=${(event) => this.#set(name, event.target.value)}>
      ${options.map(([value, text]) => html`<option value=${value} ?selected=${value === this.asked[name]}>${text}</option>`)}</select></div>`;
  }

  #input(name, label) {
    return html`<div class="field grow"><label for=${name}>${label}</label><input id=${name} class="mono" spellcheck="false" autocomplete="off"
      .value=${this.asked[name]} @input=${(event) => this.#set(name, event.target.value)}></div>`;
  }

  #area(name, label, rows) {
    return html`<div class="field"><label for=${name}>${label}</label><textarea id=${name} rows=${rows} spellcheck="false"
      .value=${this.asked[name]} @input=${(event) => this.#set(name, event.target.value)}></textarea></div>`;
  }

  #submit(event) {
    event.preventDefault();
    this.#ask();
  }

  async #ask() {
    this.isAsking = true;
    this.problem = null;
    try {
      this.verdict = await admin("POST", ".settings/rules/trial", { body: requestOf(this.asked) });
    } catch (error) {
      this.verdict = null;
      this.problem = error.message;
    }
    this.isAsking = false;
  }

  #renderVerdict() {
    const { allowed, reason, rules: found = [], admin: isAdmin } = this.verdict;
    return html`<section class="card verdict ${allowed ? "allowed" : "denied"}">
      <h2>${allowed ? "✓ Allowed" : "✕ Denied"}</h2>
      <p>${isAdmin ? "An admin is allowed whatever the rules say." : (reason ?? "")}</p>
      ${found.map((each) => this.#renderRule(each))}
    </section>`;
  }

  #renderRule(rule) {
    return html`<div class="rule-result">
      <p><span class=${rule.result ? "ok" : "no"}>${rule.result ? "✓ true" : "✕ not true"}</span>
        <code>${rule.rule}</code> ${rule.line ? html`<span class="hint">line ${rule.line}</span>` : nothing} <span class="hint">at ${rule.path}</span></p>
      ${rule.error ? html`<p class="problem">${rule.error}</p>` : nothing}
      ${rule.captures || rule.read?.length
        ? html`<table class="list"><tbody>
            ${Object.entries(rule.captures ?? {}).map(([name, key]) => html`<tr><td><code>${name}</code></td><td>${formatLeaf(key)}</td></tr>`)}
            ${(rule.read ?? []).map((each) => html`<tr><td><code>${each.from}</code> ${each.path}</td>
              <td>${"value" in each ? formatLeaf(each.value) : each.type}</td></tr>`)}</tbody></table>`
        : nothing}
    </div>`;
  }
}

/** Return the request of the route, if it holds one. */
function fromRoute() {
  const { method, path, uid, auth, value, query } = router.parameters;
  if (method === undefined && path === undefined) return {};
  const asked = { method: method ?? "GET", path: path ?? "/", value: value ?? "", query: query ?? "", who: "anonymous" };
  if (auth !== undefined && auth !== "null") Object.assign(asked, { who: "auth", claims: auth });
  else if (uid !== undefined) Object.assign(asked, { who: "uid", uid });
  return asked;
}

function requestOf({ who, uid, claims, method, path, query, value, source }) {
  const parsed = claims.trim() ? parse(claims, "The claims are") : {};
  const request = {
    auth: { anonymous: null, admin: "admin", uid: authOf(uid, parsed), auth: parsed }[who],
    method,
    path: `/${parsePath(path).join("/")}`,
  };
  if (rules.isChanged && source === "draft") request.rules = rules.draft;
  if (method === "GET" && query.trim()) {
    request.query = Object.fromEntries([...new URLSearchParams(query)].filter(([name]) => NAMES.includes(name)));
  }
  if (method !== "GET" && method !== "DELETE") {
    parse(value, "The value is");
    request.value = new RawJson(value);
  }
  return request;
}

function parse(text, what) {
  try {
    return JSON.parse(text);
  } catch (error) {
    throw new Error(`${what} not valid JSON: ${error.message}`);
  }
}

customElements.define("treedb-playground", Playground);
