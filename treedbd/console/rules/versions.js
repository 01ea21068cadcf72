/** The last versions of the rules: who put them and when, how they differ, and back to one. */

import { html, nothing } from "../vendor/lit.js";
import { tell, tellError } from "../core/dialog.js";
import { formatAgo, formatBytes } from "../core/format.js";
import { router } from "../core/router.js";
import { session } from "../core/session.js";
import { Polling } from "../core/polling.js";
import { showDifference } from "./difference.js";
import { explainFailure, readVersion, rules } from "./document.js";

const CONFLICT = 409;

export class RulesVersions extends Polling {
  page = ".settings/rules/versions";
  every = 5000;

  connectedCallback() {
    super.connectedCallback();
    this.watch(session, "change");
  }

  render() {
    if (this.error?.status === CONFLICT) {
      return html`<div class="empty"><h2>No versions</h2><p>${this.error.message}</p><p>Its own history, as of a repository, has the versions.</p></div>`;
    }
    return super.render();
  }

  renderFound(versions) {
    if (!versions.length) {
      return html`<div class="empty"><h2>No versions yet</h2><p>Each time that rules are published, a version is kept: the last 50 of them.</p></div>`;
    }
    return html`<div class="page"><div class="table-box" tabindex="0" role="region" aria-label="Versions"><table class="list cards">
      <thead><tr><th>Version</th><th>When</th><th>Who</th><th class="number">Size</th><th>Actions</th></tr></thead>
      <tbody>${versions.map(
        (each) => html`<tr>
          <td data-label="Version">${each.version}${each.is_current ? html` <span class="chip">in force</span>` : nothing}</td>
          <td title=${each.time ?? ""}>${each.time ? formatAgo(each.time) : "unknown"}</td>
          <td data-label="by">${each.uid ?? (each.admin ? "an admin" : "unknown")}</td>
          <td class="number">${formatBytes(each.bytes)}</td>
          <td><div class="row-of nowrap">
            ${each.is_current
              ? nothing
              : html`<button aria-label="Compare version ${each.version} with what is in force" @click=${() => this.#compare(each)}>Compare</button>
                <button aria-label="Edit version ${each.version} as a draft" ?disabled=${session.isReadOnly} @click=${() => this.#edit(each)}>Edit</button>
                <button aria-label="Back to this … (version ${each.version})" ?disabled=${session.isReadOnly} @click=${() => this.#restore(each)}>Back to this …</button>`}
          </div></td></tr>`,
      )}</tbody></table></div>
      <p class="hint">The last 50 are kept with the project. Going back makes a version of its own, so nothing is lost by it.</p></div>`;
  }

  async #compare({ version }) {
    try {
      const [text] = await Promise.all([readVersion(version), rules.refresh()]);
      await showDifference(rules.current, text, "In force", `Version ${version}`);
    } catch (error) {
      tellError("Not read", error);
    }
  }

  /** Make a version the draft, which is shown in the editor, and not published yet. */
  async #edit({ version }) {
    try {
      const [text] = await Promise.all([readVersion(version), rules.refresh()]);
      if (rules.isChanged && !(await showDifference(rules.draft, text, "Your draft", `Version ${version}`, { confirm: "Replace my draft", isDanger: true, note: "Your draft, which is not published, is replaced." }))) return;
      rules.edit(text);
      rules.rebase();
      router.go("rules", ["edit"]);
    } catch (error) {
      tellError("Not read", error);
    }
  }

  async #restore({ version }) {
    try {
      const [text] = await Promise.all([readVersion(version), rules.refresh()]);
      const { tag } = rules; // of what is compared below
      const note = `Version ${version} is in force at once, for all databases of the project.${rules.isChanged ? " Your draft is kept." : ""}`;
      if (!(await showDifference(rules.current, text, "In force", `Version ${version}`, { confirm: "Put it in force", note }))) return;
      await rules.put(text, tag);
      tell(`The rules of version ${version} are in force again.`);
      await Promise.all([rules.load(), this.load()]);
    } catch (error) {
      tellError("Not put in force", explainFailure(error));
    }
  }
}

customElements.define("treedb-rules-versions", RulesVersions);
