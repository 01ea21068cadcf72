/** Who is connected: open streams, and sockets of the SDKs. */

import { html, nothing } from "../vendor/lit.js";
import { formatAgo, formatBytes, formatCount, parsePath, plural } from "../core/format.js";
import { hrefOf } from "../core/router.js";
import { Polling } from "./polling.js";

export class Connections extends Polling {
  page = ".inspect/connections";
  every = 2000;

  renderFound({ streams, sockets }) {
    return html`<h2>${plural(streams.count, "stream")}</h2>
      ${renderTable(streams, ["Place", "Database", "Who", "Since", "Events", "Sent"], (each) => html`
        <td><a class="mono" href=${hrefOf("data", parsePath(each.path))}>${each.path}</a>${each.query ? html` <span class="mono soft">${each.query}</span>` : nothing}</td>
        <td>${each.database}</td><td title=${each.address ?? ""}>${whoOf(each)}</td><td title=${each.since}>${formatAgo(each.since)}</td>
        <td class="number">${formatCount(each.events)}</td><td class="number">${formatBytes(each.bytes)}</td>`)}
      <h2>${plural(sockets.count, "socket")}</h2>
      ${renderTable(sockets, ["Who", "Database", "Since", "Listens", "On disconnect", "Client"], (each) => html`
        <td title=${each.address ?? ""}>${whoOf(each)}</td><td>${each.database}</td><td title=${each.since}>${formatAgo(each.since)}</td>
        <td class="number">${formatCount(each.listens)}</td><td class="number">${formatCount(each.on_disconnect)}</td><td>${each.client ?? ""}</td>`)}`;
  }
}

function whoOf({ admin, uid, address }) {
  return admin ? "admin" : (uid ?? `anonymous, ${address}`);
}

function renderTable({ count, shown }, headings, renderCells) {
  if (!count) return html`<p class="hint">None at present.</p>`;
  return html`<div class="table-box"><table class="list">
      <thead><tr>${headings.map((each) => html`<th>${each}</th>`)}</tr></thead>
      <tbody>${shown.map((each) => html`<tr>${renderCells(each)}</tr>`)}</tbody></table></div>
    ${count > shown.length ? html`<p class="hint">The newest ${shown.length} are shown.</p>` : nothing}`;
}

customElements.define("treedb-connections", Connections);
