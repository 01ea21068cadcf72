/** Who is connected: who is present, open streams, and sockets of the SDKs. */

import { html, nothing } from "../vendor/lit.js";
import { formatAgo, formatBytes, formatCount, plural } from "../core/format.js";
import { Polling } from "../core/polling.js";
import { hrefOf } from "../core/router.js";
import { renderCaller, shownQuery } from "./caller.js";

/** So many callers are named. */
const NAMED = 50;

export class Connections extends Polling {
  page = ".inspect/connections";
  every = 2000;

  renderFound({ streams, sockets }) {
    return html`<section>${renderPresent([...streams.shown, ...sockets.shown])}</section>
      <section><h2>${plural(streams.count, "stream")}</h2>
      ${renderTable(streams, ["Place", "Database", "Who", "From", "Since", "#Events", "#Sent"], (each) => html`
        <td><a class="mono" href=${hrefOf("data", each.path.split("/").filter(Boolean))}>${each.path}</a>${shownQuery(each.query)[0] ? html`<span class="mono soft">?${shownQuery(each.query)[0]}</span>` : nothing}</td>
        <td class="mono" data-label="in">${each.database}</td>${renderCaller(each)}<td data-label="from">${each.address ?? ""}</td><td data-label="since" title=${each.since}>${formatAgo(each.since)}</td>
        <td class="number" data-label="events">${formatCount(each.events)}</td><td class="number" data-label="sent">${formatBytes(each.bytes)}</td>`)}</section>
      <section><h2>${plural(sockets.count, "socket")}</h2>
      ${renderTable(sockets, ["Who", "Database", "From", "Since", "#Listens", "On disconnect", "Client"], (each) => html`
        ${renderCaller(each)}<td class="mono" data-label="in">${each.database}</td><td data-label="from">${each.address ?? ""}</td><td data-label="since" title=${each.since}>${formatAgo(each.since)}</td>
        <td class="number" data-label="listens">${formatCount(each.listens)}</td><td data-label="on disconnect">${each.on_disconnect ? "writes" : html`<span class="soft">nothing</span>`}</td>
        <td class="client">${each.client ?? ""}</td>`)}</section>`;
  }
}

/** Name the callers of the connections that are shown, those with most connections first. */
function renderPresent(shown) {
  const counts = new Map();
  for (const { admin, uid } of shown) {
    const name = admin ? "admins" : (uid ?? "without uid");
    counts.set(name, (counts.get(name) ?? 0) + 1);
  }
  const sorted = [...counts].sort((one, other) => other[1] - one[1]);
  if (!sorted.length) return html`<h2>Who is present</h2><p class="hint">No client is connected: neither a stream nor a socket is open.</p>`;
  return html`<h2>Who is present</h2><ul class="present">
    ${sorted.slice(0, NAMED).map(([name, count]) => html`<li class="chip">${name} <span class="soft">${plural(count, "connection")}</span></li>`)}
    ${sorted.length > NAMED ? html`<li class="hint">and ${formatCount(sorted.length - NAMED)} others</li>` : nothing}</ul>`;
}

/** Show a table; a heading that begins with # is of numbers. */
function renderTable({ count, shown }, headings, renderCells) {
  if (!count) return html`<p class="hint">None at present.</p>`;
  return html`<div class="table-box"><table class="list cards">
      <thead><tr>${headings.map((each) => (each.startsWith("#") ? html`<th class="number">${each.slice(1)}</th>` : html`<th>${each}</th>`))}</tr></thead>
      <tbody>${shown.map((each) => html`<tr>${renderCells(each)}</tr>`)}</tbody></table></div>
    ${count > shown.length ? html`<p class="hint">The newest ${formatCount(shown.length)} are shown.</p>` : nothing}`;
}

customElements.define("treedb-connections", Connections);
