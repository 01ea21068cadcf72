/** The operations on the open database by path, from the time on that this is shown. */

import { html, nothing, repeat } from "../vendor/lit.js";
import { follow } from "../core/api.js";
import { Component } from "../core/element.js";
import { formatBytes, formatCount, formatMs, formatPath, plural } from "../core/format.js";
import { hrefOf } from "../core/router.js";
import { ANY_KEY, ORDERS, Profile } from "./operations.js";

const LABELS = { time: "time", bytes: "bytes", count: "count" };
const STATES = { connecting: "Connecting …", open: "Live", lost: "Connecting again …", ended: "Ended" };
const NOTIFY_MS = 500;
const SHOWN = 100;

export class ProfileView extends Component {
  static properties = { order: { state: true } };

  constructor() {
    super();
    this.order = "time";
    this.profile = new Profile();
    this.state = "connecting";
    this.error = null;
    this.timer = 0;
  }

  connectedCallback() {
    super.connectedCallback();
    const ending = new AbortController();
    this.whenGone(() => {
      ending.abort();
      clearTimeout(this.timer);
    });
    this.profile = new Profile();
    follow(".settings/profile", {}, {
      isData: false,
      signal: ending.signal,
      onEvent: (type, operation) => {
        if (type !== "log") return;
        this.profile.add(operation);
        this.timer ||= setTimeout(() => this.#show(), NOTIFY_MS);
      },
      onState: (state, error) => {
        if (ending.signal.aborted) return;
        this.state = state;
        this.error = error ?? null;
        this.requestUpdate();
      },
    });
  }

  #show() {
    this.timer = 0;
    this.requestUpdate();
  }

  #clear() {
    this.profile = new Profile();
    this.requestUpdate();
  }

  render() {
    const { profile, error } = this;
    const rows = profile.rowsBy(this.order);
    return html`<form class="row-of filters" aria-label="Order" @submit=${(event) => event.preventDefault()}>
        <label>Most <select name="order" @change=${(event) => { this.order = event.target.value; }}>
          ${Object.keys(ORDERS).map((each) => html`<option value=${each} ?selected=${each === this.order}>${LABELS[each]}</option>`)}</select> first</label>
        <span class="grow hint" role="status">${this.#describeState()}</span>
        <button type="button" @click=${() => this.#clear()}>Clear</button>
      </form>
      ${error ? html`<p class="problem" role="alert">${error.message}</p>` : nothing}
      ${this.#renderMissing(profile.missing)}
      <div class="table-box requests" tabindex="0" role="region" aria-label="Operations"><table class="list cards">
        <thead><tr><th>Operation</th><th>Path</th><th class="number">Count</th><th class="number">Average</th><th class="number">Longest</th><th class="number">Bytes</th><th class="number">Denied</th></tr></thead>
        <tbody>${repeat(rows.slice(0, SHOWN), ({ name, keys }) => `${name} ${keys.join("/")}`, renderRow)}</tbody></table>
        ${rows.length ? nothing : html`<p class="empty">No operations yet. They are recorded from now on, while this is open, and are added up by path.</p>`}
        ${rows.length > SHOWN ? html`<p class="hint">${plural(rows.length - SHOWN, "more row")}</p>` : nothing}
      </div>`;
  }

  #renderMissing(missing) {
    if (!missing.length) return nothing;
    return html`<section class="missing"><h2>Queries without an index</h2>
      <ul>${missing.slice(0, SHOWN).map(({ keys, index, count }) => html`<li>${plural(count, "query", "queries")} at <span class="mono">${formatPath(keys)}</span>: add
        <code>".indexOn": ${JSON.stringify(index)}</code> to the <a href=${hrefOf("rules", [])}>rules</a> there</li>`)}</ul></section>`;
  }

  #describeState() {
    const { count, lost } = this.profile;
    const now = `${STATES[this.state]}: ${plural(count, "operation")}`;
    return lost ? `${now}. ${plural(lost, "operation")} came too fast to be shown.` : now;
  }
}

function renderRow({ name, keys, count, ms, most, bytes, denied }) {
  const path = formatPath(keys);
  return html`<tr class=${denied ? "refused" : ""}>
    <td>${name}</td>
    <td>${keys.includes(ANY_KEY) ? html`<span class="mono">${path}</span>` : html`<a class="mono" href=${hrefOf("data", keys)}>${path}</a>`}</td>
    <td class="number">${formatCount(count)}</td>
    <td class="number" data-label="average">${formatMs(ms / count)}</td>
    <td class="number" data-label="longest">${formatMs(most)}</td>
    <td class="number" data-label="bytes">${formatBytes(bytes)}</td>
    <td class="number" data-label="denied">${denied || ""}</td></tr>`;
}

customElements.define("treedb-profile", ProfileView);
