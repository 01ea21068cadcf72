/** The filter of the children of a place: an order, bounds, a limit, and conditions. */

import { html, nothing } from "../vendor/lit.js";
import { copy } from "../core/dialog.js";
import { Component } from "../core/element.js";
import { hrefOf, router } from "../core/router.js";

/** The parameters of a query, as the interface names them. */
export const QUERY = ["orderBy", "equalTo", "startAt", "endAt", "limitToFirst", "limitToLast", "where"];
const ORDERS = [
  ["$key", "key"],
  ["$value", "value"],
  ["$priority", "priority"],
  ["child", "a child …"],
];

/** Return the query in the parameters of a route, or null. */
export function queryOf(parameters) {
  const query = Object.fromEntries(QUERY.filter((name) => parameters[name] !== undefined).map((name) => [name, parameters[name]]));
  if (!Object.keys(query).length) return null;
  if (!query.limitToFirst && !query.limitToLast) query.limitToFirst = "50";
  return query;
}

/** Return whether a query selects by more than an order and a limit, as the headings of a table do. */
export function hasBounds(query) {
  return query !== null && ["equalTo", "startAt", "endAt", "where"].some((name) => query[name] !== undefined);
}

/** Return typed text as the JSON of a bound: a number, true, false, null, or else a string. */
export function boundOf(text) {
  try {
    const found = JSON.parse(text);
    if (found === null || typeof found !== "object") return text.trim();
  } catch {
    // It is a string without quotes.
  }
  return JSON.stringify(text);
}

export class Filter extends Component {
  static properties = { index: { attribute: false }, problem: { state: true } };

  constructor() {
    super();
    this.problem = null;
    this.given = fieldsOf(router.parameters);
  }

  connectedCallback() {
    super.connectedCallback();
    this.watch(router, "change", () => {
      this.given = fieldsOf(router.parameters);
      this.problem = null;
      this.requestUpdate();
    });
  }

  render() {
    const { order, child, equal, from, to, limit, end, where } = this.given;
    const change = (name, value) => {
      this.given[name] = value;
      this.problem = null;
      this.requestUpdate();
    };
    const input = (name, label, value, size = 10, example = nothing) =>
      html`<label>${label} <input name=${name} size=${size} class="mono" spellcheck="false" autocomplete="off" placeholder=${example}
        .value=${value} @input=${(event) => change(name, event.target.value)}></label>`;
    const { index } = this;
    return html`<form class="filter row-of" @submit=${(event) => this.#apply(event)}>
      <label>Order by <select name="order" @change=${(event) => change("order", event.target.value)}>
        ${ORDERS.map(([value, label]) => html`<option value=${value} ?selected=${value === order}>${label}</option>`)}</select></label>
      ${order === "child" ? input("child", "named", child) : nothing}
      ${input("equal", "=", equal, 8)} ${input("from", "≥", from, 8)} ${input("to", "≤", to, 8)}
      <label><select aria-label="Which end" @change=${(event) => change("end", event.target.value)}>
        <option value="first" ?selected=${end === "first"}>first</option><option value="last" ?selected=${end === "last"}>last</option></select></label>
      ${input("limit", "limit", limit, 4)}
      ${input("where", "where", where, 18, '{"age": {">": 30}}')}
      <button class="primary">Apply</button>
      <button type="button" @click=${() => this.#clear()}>Show all</button>
      ${this.problem ? html`<span class="problem" role="alert">${this.problem}</span>` : nothing}
      ${index?.missing ? renderHint(index) : nothing}
    </form>`;
  }

  #apply(event) {
    event.preventDefault();
    const { order, child, equal, from, to, limit, end, where } = this.given;
    this.problem = null;
    if (order === "child" && !child.trim()) {
      this.problem = "Name the child to order by.";
      return;
    }
    if (where.trim() && !isObject(where)) {
      this.problem = 'where is a JSON object, as in {"age": {">": 30}}.';
      return;
    }
    const parameters = {
      orderBy: JSON.stringify(order === "child" ? child.trim() : order),
      equalTo: equal.trim() ? boundOf(equal) : undefined,
      startAt: from.trim() ? boundOf(from) : undefined,
      endAt: to.trim() ? boundOf(to) : undefined,
      [end === "last" ? "limitToLast" : "limitToFirst"]: Math.min(1000, Math.max(1, Number.parseInt(limit, 10) || 50)),
      where: where.trim() || undefined,
    };
    router.go("data", router.keys, { ...keptOf(router.parameters), ...parameters });
  }

  #clear() {
    router.go("data", router.keys, keptOf(router.parameters));
  }
}

function renderHint({ rule }) {
  return html`<p class="hint wide">Without an index each child is looked at. For a fast answer add to the rules
    <code>${rule}</code> <button type="button" class="link" @click=${() => copy(rule, "The line is copied.")}>Copy</button>
    <a href=${hrefOf("rules", ["edit"])}>Edit the rules</a></p>`;
}

function keptOf(parameters) {
  return Object.fromEntries(Object.entries(parameters).filter(([name]) => !QUERY.includes(name)));
}

function fieldsOf(parameters) {
  const named = parameters.orderBy ? unquote(parameters.orderBy) : "$key";
  const order = named.startsWith("$") ? named : "child";
  return {
    order,
    child: order === "child" ? named : "",
    equal: unquote(parameters.equalTo),
    from: unquote(parameters.startAt),
    to: unquote(parameters.endAt),
    limit: parameters.limitToLast ?? parameters.limitToFirst ?? "50",
    end: parameters.limitToLast ? "last" : "first",
    where: parameters.where ?? "",
  };
}

/** Return the JSON of a bound as a user types it: a string that cannot be mistaken goes without quotes. */
function unquote(json = "") {
  try {
    const found = JSON.parse(json);
    return typeof found === "string" && boundOf(found) === json ? found : json;
  } catch {
    return json;
  }
}

function isObject(text) {
  try {
    const found = JSON.parse(text);
    return found !== null && typeof found === "object" && !Array.isArray(found);
  } catch {
    return false;
  }
}

customElements.define("treedb-filter", Filter);
