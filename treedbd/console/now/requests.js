/** Requests as they come, filtered by the server; a denied one leads to the playground. */

import { html, nothing, repeat } from "../vendor/lit.js";
import { Component } from "../core/element.js";
import { formatBytes, formatMs, formatTime, plural } from "../core/format.js";
import { hrefOf, router } from "../core/router.js";
import { renderCaller, shownQuery } from "./caller.js";
import { RequestFeed } from "./feed.js";
import { whyHref } from "./why.js";

const STATUSES = [["", "any"], ["denied", "denied by rules"], ["4xx", "errors of clients (4xx)"], ["5xx", "errors of the server (5xx)"]];
const CALLERS = [["", "anyone"], ["user", "a user"], ["none", "without uid"]];
const STATES = { connecting: "Connecting …", open: "Live", lost: "Connecting again …", ended: "Ended" };

/** So many rows are shown at first: hundreds that come each second would keep the page from its user. */
const SHOWN = 100;

export class Requests extends Component {
  static properties = { showsAll: { state: true } };

  constructor() {
    super();
    this.showsAll = false;
    this.feed = new RequestFeed();
    this.following = null;
  }

  connectedCallback() {
    super.connectedCallback();
    this.watch(router, "change", () => this.#begin());
    this.watch(this.feed, "change");
    this.whenGone(() => {
      this.feed.end();
      this.following = null;
    });
    this.#begin();
  }

  #begin() {
    this.requestUpdate();
    const filter = filterOf(router.parameters);
    if (router.view !== "now" || JSON.stringify(filter) === this.following) return;
    this.following = JSON.stringify(filter);
    this.feed.end();
    this.feed.begin(filter);
  }

  render() {
    const { feed } = this;
    const isSlowFirst = router.parameters.first === "slow";
    const sorted = isSlowFirst ? [...feed.shown].sort((one, other) => other.ms - one.ms) : feed.shown;
    const shown = this.showsAll ? sorted : sorted.slice(0, SHOWN);
    return html`${this.#renderFilter(isSlowFirst)}
      ${feed.error ? html`<p class="problem" role="alert">${feed.error.message}</p>` : nothing}
      <div class="table-box requests" tabindex="0" role="region" aria-label="Requests"><table class="list cards">
        <thead><tr><th>Time</th><th>Request</th><th class="number">Status</th><th class="number">Took</th><th>Who</th><th class="number">Sent</th><th>Why</th></tr></thead>
        <tbody>${repeat(shown, ({ id }) => id, renderRequest)}</tbody></table>
        ${shown.length ? nothing : html`<p class="empty">${this.#describeEmpty()}</p>`}
        ${shown.length < sorted.length ? html`<p><button class="link" @click=${() => { this.showsAll = true; }}>Show all ${sorted.length}</button></p>` : nothing}
      </div>`;
  }

  #describeEmpty() {
    if (this.feed.isPaused) return "Paused.";
    if (this.following !== "{}") return "No requests that match yet. They appear here as they come.";
    return "No requests yet. They are recorded from now on, while this is open, and appear here as they come.";
  }

  #renderFilter(isSlowFirst) {
    const { feed } = this;
    const { path = "", status = "", uid = "", slower = "", who = uid ? "user" : "" } = router.parameters;
    const change = (fields) => router.go("now", ["requests"], { ...router.parameters, ...fields }, { replace: true });
    return html`<form class="row-of filters" aria-label="Filter" @submit=${(event) => event.preventDefault()}>
      <label>Path <input class="mono" name="path" size="14" placeholder="/" spellcheck="false" autocomplete="off" .value=${path}
        @change=${(event) => change({ path: event.target.value.trim() })}></label>
      <label>Status ${renderSelect("status", STATUSES, status, (value) => change({ status: value }))}</label>
      <label>Who ${renderSelect("who", CALLERS, who, (value) => change({ who: value, uid: value === "user" ? uid : "" }))}</label>
      ${who === "user"
        ? html`<label>uid <input name="uid" size="10" spellcheck="false" autocomplete="off" .value=${uid} @change=${(event) => change({ uid: event.target.value.trim(), who: "user" })}></label>`
        : nothing}
      <label>Slower than <input name="slower" size="5" inputmode="decimal" autocomplete="off" .value=${slower} @change=${(event) => change({ slower: event.target.value.trim() })}> ms</label>
      <label class="row-of"><input type="checkbox" name="slow-first" .checked=${isSlowFirst} @change=${(event) => change({ first: event.target.checked ? "slow" : "" })}> slow ones first</label>
      <span class="grow hint" role="status">${this.#describeState()}</span>
      <button type="button" aria-pressed=${String(feed.isPaused)} @click=${() => { feed.isPaused = !feed.isPaused; }}>${feed.isPaused ? "Go on" : "Pause"}</button>
      <button type="button" @click=${() => feed.clear()}>Clear</button>
    </form>`;
  }

  #describeState() {
    const { isPaused, waiting, state, dropped } = this.feed;
    const now = isPaused ? `Paused: ${waiting} new` : STATES[state];
    return dropped ? `${now}. ${plural(dropped, "request")} came too fast to be shown.` : now;
  }
}

/** Return the parameters of the page for those of the route. */
function filterOf({ path, status, who, uid, slower }) {
  const filter = {};
  if (path && path !== "/") filter.path = path;
  if (status) filter.status = status;
  if (who === "none") filter.uid = "";
  else if (uid) filter.uid = uid;
  if (slower) filter.slower = slower;
  return filter;
}

function renderSelect(name, options, chosen, choose) {
  return html`<select name=${name} @change=${(event) => choose(event.target.value)}>
    ${options.map(([value, label]) => html`<option value=${value} ?selected=${value === chosen}>${label}</option>`)}</select>`;
}

function renderRequest(each) {
  const { method, kind, path, status, code, ms, sent } = each;
  const [query] = shownQuery(each.query);
  const why = whyHref(each);
  return html`<tr class=${status >= 500 ? "failed" : status >= 400 ? "refused" : ""}>
    <td title=${each.time}>${formatTime(each.time)}</td>
    <td><span class="method">${method}${kind === "request" ? "" : html` <span class="soft">${kind}</span>`}</span>
      ${path.startsWith("/.")
        ? html`<span class="mono">${path}</span>`
        : html`<a class="mono" href=${hrefOf("data", path.split("/").filter(Boolean))}>${path}</a>`}${query ? html`<span class="mono soft">${kind === "socket" ? " " : "?"}${query}</span>` : nothing}</td>
    <td class="number" title=${code ?? ""}>${status}${code ? html` <span class="code">${code.replaceAll("_", " ")}</span>` : nothing}</td>
    <td class="number">${formatMs(ms)}</td>
    ${renderCaller(each)}
    <td class="number" data-label="sent">${formatBytes(sent ?? 0)}</td>
    <td>${why ? html`<a class="why" href=${why} aria-label="Why? ${method} ${path} was denied">Why?</a>` : nothing}</td></tr>`;
}

customElements.define("treedb-requests", Requests);
