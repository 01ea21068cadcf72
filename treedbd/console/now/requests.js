/** Requests as they come, filtered by the server; a denied one leads to the playground. */

import { html, nothing } from "../vendor/lit.js";
import { follow } from "../core/api.js";
import { Component } from "../core/element.js";
import { formatBytes, formatMs, formatTime, parsePath } from "../core/format.js";
import { hrefOf, router } from "../core/router.js";

const KEPT = 500;
const SHOWN_MS = 250;

export class Requests extends Component {
  static properties = { isPaused: { state: true }, isSlowFirst: { state: true }, state: { state: true }, error: { state: true } };

  constructor() {
    super();
    this.requests = [];
    this.dropped = 0;
    this.isPaused = false;
    this.isSlowFirst = false;
    this.state = "connecting";
    this.error = null;
  }

  connectedCallback() {
    super.connectedCallback();
    this.watch(router, "change", () => this.#begin());
    this.whenGone(() => this.ending?.abort());
    this.#begin();
  }

  get filter() {
    const { path, status, uid, slower } = router.parameters;
    return { path, status, uid, slower };
  }

  #begin() {
    const filter = JSON.stringify(this.filter);
    if (router.view !== "now" || filter === this.following) return;
    this.following = filter;
    this.ending?.abort();
    this.ending = new AbortController();
    this.requests = [];
    this.dropped = 0;
    follow(".inspect/requests", this.filter, {
      isData: false,
      signal: this.ending.signal,
      onEvent: (type, data) => this.#note(type, data),
      onState: (state, error) => {
        this.state = state;
        this.error = error ?? null;
      },
    });
  }

  #note(type, data) {
    if (type === "dropped") this.dropped += data.count ?? data;
    else if (type === "request" && !this.isPaused) {
      this.requests.unshift(data);
      this.requests.length = Math.min(this.requests.length, KEPT);
    }
    this.timer ??= setTimeout(() => {
      this.timer = undefined;
      this.requestUpdate();
    }, SHOWN_MS);
  }

  render() {
    const shown = this.isSlowFirst ? [...this.requests].sort((one, other) => other.ms - one.ms) : this.requests;
    return html`${this.#renderFilter()}
      ${this.error ? html`<p class="problem" role="alert">${this.error.message}</p>` : nothing}
      ${this.dropped ? html`<p class="hint">${this.dropped} were left out, because they came faster than they could be shown.</p>` : nothing}
      <div class="table-box requests"><table class="list">
        <thead><tr><th>Time</th><th>Request</th><th class="number">Status</th><th class="number">Took</th><th>Who</th><th class="number">Sent</th><th><span class="soft">Why</span></th></tr></thead>
        <tbody>${shown.map((each) => this.#renderRequest(each))}</tbody></table>
        ${shown.length ? nothing : html`<p class="empty">${this.isPaused ? "Paused." : "No requests yet that match. They appear here as they come."}</p>`}
      </div>`;
  }

  #renderFilter() {
    const { path = "", status = "", uid = "", slower = "" } = router.parameters;
    const set = (name) => (event) => router.go("now", ["requests"], { ...router.parameters, [name]: event.target.value.trim() }, { replace: true });
    return html`<form class="row-of filters" @submit=${(event) => event.preventDefault()}>
      <label>Path <input class="mono" size="14" placeholder="/" .value=${path} @change=${set("path")}></label>
      <label>Status <select @change=${set("status")}>
        ${[["", "all"], ["403", "denied"], ["4xx", "errors of clients"], ["5xx", "errors of the server"]].map(
          ([value, label]) => html`<option value=${value} ?selected=${value === status}>${label}</option>`,
        )}</select></label>
      <label>uid <input size="10" .value=${uid} @change=${set("uid")}></label>
      <label>Slower than <input size="5" inputmode="numeric" .value=${slower} @change=${set("slower")}> ms</label>
      <label class="row-of"><input type="checkbox" .checked=${this.isSlowFirst} @change=${(event) => { this.isSlowFirst = event.target.checked; }}> slow ones first</label>
      <span class="grow"></span>
      <button type="button" aria-pressed=${String(this.isPaused)} @click=${() => { this.isPaused = !this.isPaused; }}>${this.isPaused ? "Go on" : "Pause"}</button>
      <button type="button" @click=${() => { this.requests = []; this.dropped = 0; this.requestUpdate(); }}>Clear</button>
    </form>`;
  }

  #renderRequest(each) {
    const who = each.admin ? "admin" : (each.uid ?? "anonymous");
    return html`<tr class=${each.status >= 500 ? "failed" : each.status >= 400 ? "refused" : ""}>
      <td title=${each.time}>${formatTime(each.time)}</td>
      <td><span class="method">${each.kind === "request" ? each.method : `${each.method} ${each.kind}`}</span>
        <a class="mono" href=${hrefOf("data", parsePath(each.path ?? "/"))}>${each.path}</a>${each.query ? html`<span class="mono soft">?${each.query}</span>` : nothing}</td>
      <td class="number" title=${each.code ?? ""}>${each.status}</td>
      <td class="number">${each.ms === null || each.ms === undefined ? "" : formatMs(each.ms)}</td>
      <td title=${each.address ?? ""}>${who}</td>
      <td class="number">${each.sent === undefined ? "" : formatBytes(each.sent)}</td>
      <td>${"auth" in each ? html`<a href=${whyHref(each)}>Why?</a>` : nothing}</td></tr>`;
  }
}

/** Return the route of the playground for a denied request. */
function whyHref({ method, path, query, auth, body }) {
  return hrefOf("rules", ["playground"], {
    method,
    path,
    query,
    auth: JSON.stringify(auth),
    value: body === undefined ? undefined : typeof body === "string" ? body : JSON.stringify(body),
  });
}

customElements.define("treedb-requests", Requests);
