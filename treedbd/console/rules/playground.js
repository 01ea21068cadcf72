/**
 * The playground: whether a caller may read or write something, by which rule, and what that rule saw.
 *
 * Nothing is read for the user or written. The draft is tried if there is one that is not published.
 * The route can hold the request, so that a denied one of the log opens here: it is tried by the
 * rules in force, which have denied it.
 */

import { html, nothing } from "../vendor/lit.js";
import { admin } from "../core/api.js";
import { Component } from "../core/element.js";
import { formatLeaf } from "../core/format.js";
import { hrefOf, router } from "../core/router.js";
import { rules } from "./document.js";
import { WITH_VALUE, askedOf, firstAsked, trialOf } from "./trial.js";

const CALLERS = [["anonymous", "anonymous"], ["uid", "a user, by uid"], ["auth", "any auth, as JSON"], ["admin", "an admin"]];
const METHODS = [["GET", "reads (GET)"], ["PUT", "writes (PUT)"], ["PATCH", "updates (PATCH)"], ["POST", "pushes (POST)"], ["DELETE", "removes (DELETE)"]];

/** What was asked last, and the outcome: they stay when another view is shown. */
const kept = { asked: null, outcome: null };

export class Playground extends Component {
  static properties = { asked: { state: true }, outcome: { state: true }, problem: { state: true }, isAsking: { state: true } };

  constructor() {
    super();
    this.asked = kept.asked ?? firstAsked();
    this.outcome = kept.outcome;
    this.problem = null;
    this.isAsking = false;
  }

  connectedCallback() {
    super.connectedCallback();
    this.watch(rules, "change");
    this.watch(router, "change", () => this.#followRoute());
    if (rules.draft === null) rules.load();
    this.#followRoute();
  }

  /** Try the request that the route holds. */
  #followRoute() {
    const asked = router.view === "rules" && router.keys[0] === "playground" ? askedOf(router.parameters) : null;
    if (asked === null || this.route === location.hash) return;
    this.route = location.hash;
    this.#keep(asked);
    this.outcome = kept.outcome = null;
    if (WITH_VALUE.includes(asked.method) && !asked.value) this.problem = "What was sent is not in the log, because it was too large: enter a value like it.";
    else this.#try();
  }

  render() {
    const { who, method, source } = this.asked;
    const isDraft = rules.isChanged && source === "draft";
    return html`<div class="page playground">
      <form class="card" @submit=${(event) => this.#submit(event)}>
        <h2>Who may do what?</h2>
        <div class="playground-fields">
          ${this.#select("who", "Caller", CALLERS)}
          ${who === "uid" ? this.#input("uid", "uid") : nothing}
          ${this.#select("method", "What it does", METHODS)}
          ${this.#input("path", "At")}
          ${rules.isChanged ? this.#select("source", "By", [["draft", "the draft"], ["current", "the rules in force"]]) : nothing}
        </div>
        ${who === "uid" || who === "auth" ? this.#area("claims", who === "uid" ? "Claims of the token (JSON)" : "auth (JSON)", 2) : nothing}
        ${method === "GET" ? this.#input("query", "Query: parameters as in a URL, or none", 'orderBy="age"&limitToFirst=10') : nothing}
        ${WITH_VALUE.includes(method) ? this.#area("value", "With this value (JSON)", 5) : nothing}
        ${this.problem ? html`<p class="problem" role="alert">${this.problem}</p>` : nothing}
        <button class="primary" ?disabled=${this.isAsking}>Try</button>
        <span class="hint">Nothing is written.${isDraft ? " The draft is tried, which is not published." : ""}</span>
      </form>
      <div aria-live="polite">${this.outcome ? this.#renderOutcome() : nothing}</div>
    </div>`;
  }

  #set(name, value) {
    this.#keep({ ...this.asked, [name]: value });
  }

  #keep(asked) {
    this.asked = kept.asked = asked;
  }

  #select(name, label, options) {
    return html`<div class="field"><label for=${name}>${label}</label><select id=${name} @change=${(event) => this.#set(name, event.target.value)}>
      ${options.map(([value, text]) => html`<option value=${value} ?selected=${value === this.asked[name]}>${text}</option>`)}</select></div>`;
  }

  #input(name, label, placeholder = "") {
    return html`<div class="field grow"><label for=${name}>${label}</label><input id=${name} class="mono" spellcheck="false" autocomplete="off"
      placeholder=${placeholder} .value=${this.asked[name]} @input=${(event) => this.#set(name, event.target.value)}></div>`;
  }

  #area(name, label, rows) {
    return html`<div class="field"><label for=${name}>${label}</label><textarea id=${name} rows=${rows} spellcheck="false"
      .value=${this.asked[name]} @input=${(event) => this.#set(name, event.target.value)}></textarea></div>`;
  }

  #submit(event) {
    event.preventDefault();
    this.#try();
  }

  async #try() {
    const { asked } = this;
    this.problem = null;
    this.isAsking = true;
    try {
      if (rules.draft === null) await rules.load();
      const isDraft = rules.isChanged && asked.source === "draft";
      const verdict = await admin("POST", ".settings/rules/trial", { body: trialOf(asked, isDraft ? rules.draft : null) });
      this.outcome = kept.outcome = { verdict, asked, isDraft, text: isDraft ? rules.draft : rules.current };
    } catch (error) {
      this.outcome = kept.outcome = null;
      this.problem = error.body?.errors ? `The draft has errors: ${error.message}` : error.message;
    }
    this.isAsking = false;
    await this.updateComplete;
    // On a phone the outcome is below what is seen.
    this.querySelector(".verdict, .problem")?.scrollIntoView({ block: "nearest" });
  }

  #renderOutcome() {
    const { verdict, asked, isDraft } = this.outcome;
    const { allowed, reason, rules: found = [], admin: isAdmin } = verdict;
    const isOld = asked !== this.asked;
    return html`<section class="card verdict ${allowed ? "allowed" : "denied"} ${isOld ? "old" : ""}">
      <h2>${allowed ? "✓ Allowed" : "✕ Denied"}</h2>
      ${isOld ? html`<p class="hint">Of the request before: press Try again.</p>` : nothing}
      <p>${isAdmin ? "An admin is allowed whatever the rules say." : (reason ?? this.#describeAllowed())}
        ${rules.isChanged ? html`<span class="hint">${isDraft ? "By the draft." : "By the rules in force."}</span>` : nothing}</p>
      ${isAdmin ? nothing : html`<p class="hint">Rules see <code>auth</code> as <code>${JSON.stringify(verdict.auth ?? null)}</code>${asked.method === "GET" && asked.query.trim() ? html`, <code>query</code> as <code>${asked.query}</code>` : nothing}</p>`}
      ${found.map((each) => this.#renderRule(each))}
    </section>`;
  }

  #describeAllowed() {
    const { rule } = this.outcome.verdict;
    return rule ? `The rule ${rule} is true.` : "";
  }

  #renderRule(rule) {
    const { verdict, text } = this.outcome;
    const isDecisive = rule.rule === verdict.rule && rule.path === verdict.rule_path;
    const source = rule.line ? text?.split("\n")[rule.line - 1]?.trim() : null;
    const values = [
      ...Object.entries(rule.captures ?? {}).map(([name, key]) => [html`<code>${name}</code>`, formatLeaf(key)]),
      ...withoutRepeated(rule.read ?? []).map((each) => [html`<code>${each.from}</code> at <span class="mono">${each.path}</span>`, describeRead(each)]),
    ];
    return html`<div class="rule-result ${isDecisive ? "decisive" : ""}">
      <p><span class=${rule.result ? "ok" : "no"}>${rule.result ? "✓ true" : "✕ not true"}</span>
        <code>${rule.rule}</code> <span class="hint">at ${rule.path}</span> ${this.#renderLine(rule)}
        ${isDecisive ? html`<span class="chip">this decided</span>` : nothing}</p>
      ${source ? html`<pre class="source">${source}</pre>` : nothing}
      ${rule.error ? html`<p class="problem">${rule.error}</p>` : nothing}
      ${values.length
        ? html`<table class="list values"><caption class="hint">What it saw</caption><tbody>${values.map(([name, value]) => html`<tr><th scope="row">${name}</th><td class="mono">${value}</td></tr>`)}</tbody></table>`
        : nothing}
    </div>`;
  }

  /** Link to the line in the editor, if that has the text which was tried. */
  #renderLine({ line, column }) {
    if (!line) return nothing;
    if (rules.draft !== this.outcome.text) return html`<span class="hint">line ${line} of what is in force</span>`;
    return html`<a href=${hrefOf("rules", ["edit"], { line, column })}>line ${line}</a>`;
  }
}

/** Leave out of what was read only the type of a node whose value was read too. */
function withoutRepeated(read) {
  const known = new Set(read.filter((each) => "value" in each).map(({ from, path }) => `${from} ${path}`));
  return read.filter((each) => "value" in each || !known.has(`${each.from} ${each.path}`));
}

function describeRead(read) {
  if ("value" in read) return read.value === null ? "null: nothing is there" : formatLeaf(read.value);
  return read.type === "null" ? "null: nothing is there" : html`<span class="soft">${read.type}: only this was read of it</span>`;
}

customElements.define("treedb-playground", Playground);
