/** Backups in the directory that the operator has set: the last ones, and taking one. */

import { html, nothing } from "../vendor/lit.js";
import { admin } from "../core/api.js";
import { tell, tellError } from "../core/dialog.js";
import { formatAgo, formatBytes, plural } from "../core/format.js";
import { session } from "../core/session.js";
import { Polling } from "../core/polling.js";

const STATES = { done: "complete", running: "being taken", failed: "failed" };

/** Whether a backup is being taken for this page; another tab may be shown meanwhile. */
let isTaking = false;

export class Backups extends Polling {
  page = ".inspect/backups";
  every = 3000;

  connectedCallback() {
    super.connectedCallback();
    this.watch(session, "change");
  }

  renderFound({ directory_set: isSet, backups }) {
    if (!isSet) {
      return html`<div class="empty"><h2>No directory for backups is set</h2>
        <p>Name one in the configuration, <code>backups = "/var/backups/treedb"</code>, and they are taken and listed here. Or take one on the server: <code>treedb backup DIRECTORY</code>.</p></div>`;
    }
    const isRunning = isTaking || backups.some(({ state }) => state === "running");
    const last = backups.find(({ state }) => state === "done");
    return html`<div class="row-of"><h2 class="grow">${plural(backups.length, "backup")}</h2>
        ${session.isReadOnly ? html`<span class="hint">Not in read-only mode.</span>` : nothing}
        <button class="primary" ?disabled=${session.isReadOnly || isRunning} @click=${() => this.#take()}>${isRunning ? "Being taken …" : "Take one now"}</button></div>
      <p class="hint" role="status">Of all projects and databases of the server. ${last ? `The last one is ${describeAge(last.time)}.` : "None is complete yet."}</p>
      ${backups.length
        ? html`<div class="table-box"><table class="list"><thead><tr><th>Backup</th><th>When</th><th class="number">Size</th><th>State</th></tr></thead>
            <tbody>${backups.map((each) => html`<tr class=${each.state === "failed" ? "failed" : ""}><td class="mono">${each.name}</td><td title=${each.time}>${formatAgo(each.time)}</td>
              <td class="number">${each.bytes === null || each.bytes === undefined ? "" : formatBytes(each.bytes)}</td><td>${STATES[each.state] ?? each.state}</td></tr>`)}</tbody></table></div>`
        : nothing}`;
  }

  async #take() {
    isTaking = true;
    this.requestUpdate();
    try {
      await admin("POST", ".settings/backup");
      tell("The backup is complete.");
    } catch (error) {
      if (error.status === 504) tell("The backup takes longer. It goes on: see the list.");
      else tellError("No backup", error);
    }
    isTaking = false;
    await this.load();
    this.requestUpdate();
  }
}

function describeAge(time) {
  const age = formatAgo(time);
  return age === "now" ? "new" : `from ${age}`;
}

customElements.define("treedb-backups", Backups);
