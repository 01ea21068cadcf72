/** Backups in the directory that the operator has set: the last ones, and taking one. */

import { html } from "../vendor/lit.js";
import { admin } from "../core/api.js";
import { tell, tellError } from "../core/dialog.js";
import { formatAgo, formatBytes } from "../core/format.js";
import { session } from "../core/session.js";
import { Polling } from "./polling.js";

export class Backups extends Polling {
  static properties = { isTaking: { state: true } };

  page = ".inspect/backups";
  every = 5000;

  renderFound({ directory_set: isSet, backups }) {
    if (!isSet) {
      return html`<div class="empty"><h2>No directory for backups is set</h2>
        <p>Name one in the configuration, <code>backups = "/var/backups/treedb"</code>, or take one by <code>treedb backup DIR</code> on the server.</p></div>`;
    }
    return html`<div class="row-of"><h2 class="grow">Backups</h2>
        <button class="primary" ?disabled=${session.isReadOnly || this.isTaking} @click=${() => this.#take()}>${this.isTaking ? "Taking one …" : "Take one now"}</button></div>
      ${backups.length
        ? html`<div class="table-box"><table class="list"><thead><tr><th>Backup</th><th>When</th><th class="number">Size</th><th>State</th></tr></thead>
            <tbody>${backups.map((each) => html`<tr><td class="mono">${each.name}</td><td title=${each.time}>${formatAgo(each.time)}</td>
              <td class="number">${each.bytes === null || each.bytes === undefined ? "" : formatBytes(each.bytes)}</td><td>${each.state}</td></tr>`)}</tbody></table></div>`
        : html`<p class="hint">None yet.</p>`}`;
  }

  async #take() {
    this.isTaking = true;
    try {
      await admin("POST", ".settings/backup");
      tell("The backup is complete.");
    } catch (error) {
      tellError("No backup", error);
    }
    this.isTaking = false;
    await this.load();
  }
}

customElements.define("treedb-backups", Backups);
