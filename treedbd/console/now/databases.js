/** The databases of the projects of which the caller is an admin: sizes, opening, making, deleting. */

import { html, nothing } from "../vendor/lit.js";
import { admin, send, urlOf } from "../core/api.js";
import { ask, tell, tellError } from "../core/dialog.js";
import { formatBytes, formatCount } from "../core/format.js";
import { signIn } from "../core/identity.js";
import { router } from "../core/router.js";
import { session } from "../core/session.js";
import { Polling } from "./polling.js";

const LABEL = /^(?!.*--.*--)[a-z0-9](?:[a-z0-9-]*[a-z0-9])?$/;

export class Databases extends Polling {
  page = ".inspect/projects";
  every = 5000;
  activity = null;

  async load(signal) {
    try {
      this.activity = await admin("GET", ".inspect/activity", { signal });
    } catch {
      this.activity = null; // its columns stay empty
    }
    await super.load(signal);
  }

  renderFound(projects) {
    const counts = new Map((this.activity?.databases ?? []).map((each) => [each.name, each]));
    return projects.map(
      (project) => html`<section><div class="row-of"><h2 class="grow">Project ${project.name}</h2>
        ${project.can_create ? html`<button ?disabled=${session.isReadOnly} @click=${() => this.#create(project)}>New database …</button>` : nothing}</div>
      <div class="table-box"><table class="list">
        <thead><tr><th>Database</th><th class="number">Size</th><th class="number">Streams</th><th class="number">Sockets</th><th class="number">Requests</th><th><span class="soft">Actions</span></th></tr></thead>
        <tbody>${project.databases.map((each) => this.#renderDatabase(each, counts.get(each.name)))}</tbody></table></div></section>`,
    );
  }

  #renderDatabase({ name, bytes }, counts) {
    const cell = (value) => html`<td class="number">${value === undefined ? "" : formatCount(value)}</td>`;
    return html`<tr><td class="mono">${name}</td><td class="number">${bytes === null || bytes === undefined ? "" : formatBytes(bytes)}</td>
      ${cell(counts?.streams)}${cell(counts?.sockets)}${cell(counts?.requests)}
      <td><div class="row-of"><button @click=${() => this.#open(name)}>Open</button>
        <button ?disabled=${session.isReadOnly} @click=${() => this.#remove(name, bytes)}>Delete …</button></div></td></tr>`;
  }

  async #open(label) {
    const before = session.label;
    try {
      await signIn(session.token, label);
      router.go("data");
    } catch (error) {
      session.set({ label: before });
      tellError("Not opened", error);
    }
  }

  async #create({ name }) {
    const given = await ask({
      title: `New database in ${name}`,
      fields: [{ name: "database", label: "Name", hint: `Small letters, digits and hyphens. Its label is NAME--${name}.`, check: (text) => (LABEL.test(text) && !text.includes("--") ? null : "Small letters, digits and single hyphens, and none at the ends.") }],
      confirm: "Create",
    });
    if (given === null) return;
    const label = `${given.database}--${name}`;
    await this.#change("PUT", label, {}, `${label} is created.`, "Not created");
  }

  async #remove(label, bytes) {
    const given = await ask({
      title: `Delete the database ${label}?`,
      body: `All of its data is removed for good (${formatBytes(bytes ?? 0)} on the disk), and its streams end.`,
      confirm: "Delete",
      isDanger: true,
      mustType: label,
    });
    if (given !== null) await this.#change("DELETE", label, { confirm: label }, `${label} is deleted.`, "Not deleted");
  }

  async #change(method, label, parameters, success, failure) {
    const url = urlOf(".settings/database", parameters, { isData: false });
    url.searchParams.set("ns", label);
    try {
      await send(method, url);
      tell(success);
    } catch (error) {
      tellError(failure, error);
    }
    await this.load();
  }
}

customElements.define("treedb-databases", Databases);
