/** The last versions of the rules: who put them and when, how they differ, and back to one. */

import { html, nothing } from "../vendor/lit.js";
import { admin } from "../core/api.js";
import { tell, tellError } from "../core/dialog.js";
import { Component } from "../core/element.js";
import { formatAgo, formatBytes } from "../core/format.js";
import { router } from "../core/router.js";
import { session } from "../core/session.js";
import { showDifference } from "./difference.js";
import { readVersion, rules } from "./document.js";

export class RulesVersions extends Component {
  static properties = { versions: { state: true }, error: { state: true } };

  constructor() {
    super();
    this.versions = null;
    this.error = null;
  }

  connectedCallback() {
    super.connectedCallback();
    this.watch(session, "online", () => this.#load());
    this.#load();
  }

  async #load() {
    try {
      this.versions = await admin("GET", ".settings/rules/versions");
      this.error = null;
    } catch (error) {
      this.error = error;
    }
  }

  render() {
    if (this.error) return html`<p class="empty problem" role="alert">${this.error.message}</p>`;
    if (this.versions === null) return html`<p class="starting">Reading …</p>`;
    if (!this.versions.length) {
      return html`<div class="empty"><h2>No versions yet</h2><p>Each time that rules are published, a version is kept: the last 50 of them.</p></div>`;
    }
    return html`<div class="page"><div class="table-box"><table class="list">
      <thead><tr><th>Version</th><th>When</th><th>Who</th><th class="number">Size</th><th><span class="soft">Actions</span></th></tr></thead>
      <tbody>${this.versions.map(
        (each) => html`<tr>
          <td>${each.version}${each.is_current ? html` <span class="chip">in force</span>` : nothing}</td>
          <td title=${each.time ?? ""}>${each.time ? formatAgo(each.time) : "unknown"}</td>
          <td>${each.admin ? (each.uid ?? "admin") : (each.uid ?? "unknown")}</td>
          <td class="number">${formatBytes(each.bytes)}</td>
          <td><div class="row-of">
            <button @click=${() => this.#compare(each)}>${each.is_current ? "Show" : "Compare"}</button>
            ${each.is_current ? nothing : html`<button ?disabled=${session.isReadOnly} @click=${() => this.#restore(each)}>Back to this</button>`}
          </div></td></tr>`,
      )}</tbody></table></div></div>`;
  }

  async #compare({ version }) {
    try {
      await showDifference(rules.current ?? "", await readVersion(version), "In force", `Version ${version}`);
    } catch (error) {
      tellError("Not read", error);
    }
  }

  async #restore({ version }) {
    try {
      const text = await readVersion(version);
      if (!(await showDifference(rules.current ?? "", text, "In force", `Version ${version}`, "Put this in force"))) return;
      await admin("PUT", ".settings/rules", { body: text });
      tell(`The rules of version ${version} are in force again.`);
      await rules.load();
      rules.discard();
      await this.#load();
      router.go("rules", ["versions"]);
    } catch (error) {
      tellError("Not put in force", error);
    }
  }
}

customElements.define("treedb-rules-versions", RulesVersions);
