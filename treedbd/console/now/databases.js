/** The databases of the projects of which the caller is an admin: sizes, opening, creating, deleting. */

import { html, nothing, repeat } from "../vendor/lit.js";
import { admin, get, send, urlOf } from "../core/api.js";
import { ask, tell, tellError } from "../core/dialog.js";
import { formatBytes, formatCount } from "../core/format.js";
import { signIn } from "../core/identity.js";
import { repeatWhileShown } from "../core/repeat.js";
import { router } from "../core/router.js";
import { session } from "../core/session.js";
import { Polling } from "../core/polling.js";

const NAME = /^[a-z0-9]+(-[a-z0-9]+)*$/;
const COUNT_MS = 15_000;
/** Counting opens a database: of more than these, only those are counted that the user asks for. */
const COUNTED = 20;
const FILTERED = 12;

export class Databases extends Polling {
  static properties = { filter: { state: true } };

  page = ".inspect/projects";
  every = 5000;
  activity = null;
  /** What is known of the root of each database, by label. */
  roots = new Map();
  #wanted = new Set();

  constructor() {
    super();
    this.filter = "";
  }

  connectedCallback() {
    super.connectedCallback();
    const ending = new AbortController();
    this.whenGone(() => ending.abort());
    repeatWhileShown(COUNT_MS, () => this.#countAll(ending.signal), ending.signal);
  }

  async read(signal) {
    const isFirst = this.found === null;
    const [projects, activity] = await Promise.all([
      super.read(signal),
      admin("GET", ".inspect/activity", { signal }).catch(() => null), // its columns stay empty
    ]);
    this.activity = activity;
    if (isFirst) setTimeout(() => this.#countAll(signal));
    return projects;
  }

  get labels() {
    return (this.found ?? []).flatMap((project) => project.databases.map((each) => each.name));
  }

  async #countAll(signal) {
    const { labels } = this;
    const counted = labels.length <= COUNTED ? labels : labels.filter((each) => this.#wanted.has(each) || each === openLabel());
    for (const label of counted) if (!signal?.aborted) await this.#count(label, signal);
  }

  async #count(label, signal) {
    try {
      const found = await get([], { describe: "true", limitToFirst: 1, ns: label }, { signal, isData: false });
      this.roots.set(label, found);
    } catch {
      this.roots.delete(label); // gone, or not to be read at present
    }
    this.requestUpdate();
  }

  renderFound(projects) {
    const counts = new Map((this.activity?.databases ?? []).map((each) => [each.name, each]));
    if (!projects.length) return html`<div class="empty"><h2>No projects</h2><p>Your token is of no project's admin.</p></div>`;
    return html`${this.labels.length > FILTERED
        ? html`<p><label>Find <input name="find" spellcheck="false" autocomplete="off" .value=${this.filter} @input=${(event) => { this.filter = event.target.value.trim(); }}></label></p>`
        : nothing}
      ${projects.map((project) => this.#renderProject(project, counts))}`;
  }

  #renderProject(project, counts) {
    const shown = project.databases.filter(({ name }) => name.includes(this.filter));
    return html`<section><div class="row-of"><h2 class="grow">Project ${project.name}</h2>
        ${project.can_create
          ? html`<button ?disabled=${session.isReadOnly} @click=${() => this.#create(project)}>New database …</button>`
          : html`<span class="hint">No other can be created: the configuration lists them, or there are as many as there may be.</span>`}</div>
      <div class="table-box"><table class="list cards">
        <thead><tr><th>Database</th><th class="number">Children</th><th class="number">Size</th><th class="number">Streams</th><th class="number">Sockets</th><th class="number">Requests</th><th>Actions</th></tr></thead>
        <tbody>${repeat(shown, ({ name }) => name, (each) => this.#renderDatabase(project, each, counts.get(each.name)))}</tbody></table></div>
      ${shown.length ? nothing : html`<p class="hint">No database has “${this.filter}” in its name.</p>`}</section>`;
  }

  #renderDatabase(project, { name, database, bytes }, counts) {
    const cell = (label, value) => html`<td class="number" data-label=${label}>${value === undefined ? "" : formatCount(value)}</td>`;
    const isOpen = name === openLabel();
    return html`<tr><td class="mono">${name}${isOpen ? html` <span class="chip">open</span>` : nothing}</td>
      <td class="number" data-label="children">${this.#renderCount(name)}</td>
      <td class="number" data-label="size" title=${bytes === null ? "" : `${formatCount(bytes)} bytes on the disk`}>${bytes === null || bytes === undefined ? "in memory" : formatBytes(bytes)}</td>
      ${cell("streams", counts?.streams)}${cell("sockets", counts?.sockets)}${cell("requests", counts?.requests)}
      <td><div class="row-of nowrap"><button aria-label="Open ${name}" @click=${() => (isOpen ? router.go("data") : this.#open(name))}>Open</button>
        <button aria-label="Delete … ${name}" ?disabled=${session.isReadOnly} @click=${() => this.#remove(project, { name, database, bytes })}>Delete …</button></div></td></tr>`;
  }

  #renderCount(label) {
    const root = this.roots.get(label);
    if (root !== undefined) return root.type === "object" ? `${root.least ? "≥ " : ""}${formatCount(root.count)}` : root.type === "null" ? "0" : root.type;
    if (this.labels.length <= COUNTED) return "";
    return html`<button class="link" aria-label="count the children of ${label}" @click=${() => { this.#wanted.add(label); this.#count(label); }}>count</button>`;
  }

  async #open(label) {
    try {
      await signIn(session.token, label);
      router.go("data");
    } catch (error) {
      tellError("Not opened", error);
    }
  }

  async #create({ name }) {
    const given = await ask({
      title: `New database in ${name}`,
      fields: [{ name: "database", label: "Name", hint: `Small letters, digits and hyphens. It is then addressed as NAME--${name}.`, check: (text) => (NAME.test(text.trim()) ? null : "Small letters, digits and single hyphens between them.") }],
      confirm: "Create",
    });
    if (given === null) return;
    const label = `${given.database.trim()}--${name}`;
    if (!(await this.#send("PUT", label, {}, "Not created"))) return;
    tell(`${label} is created.`, { action: { label: "Open", run: () => this.#open(label) } });
  }

  async #remove(project, { name: label, database, bytes }) {
    const isDefault = database === "default";
    const isOpen = label === openLabel();
    const given = await ask({
      title: `Delete the database ${label}?`,
      body: html`<p>All of its data is removed for good${bytes ? ` (${formatBytes(bytes)} on the disk)` : ""}, its streams and sockets end. Only a backup brings it back.</p>
        ${isDefault ? html`<p>The default database always exists: it is empty afterwards.</p>` : nothing}
        ${isOpen && !isDefault ? html`<p>It is the one that is open here: ${project.name} is opened then.</p>` : nothing}`,
      confirm: "Delete",
      isDanger: true,
      mustType: label,
    });
    if (given === null) return;
    if (!(await this.#send("DELETE", label, { confirm: label }, "Not deleted"))) return;
    this.roots.delete(label);
    const isThere = this.labels.includes(label); // as the configuration lists it
    tell(isThere ? `${label} is empty.` : `${label} is deleted.`);
    if (isOpen && !isThere) await this.#leave(project.name);
    else if (isThere) this.#count(label);
  }

  /** Open the default database of a project in place of one that is deleted. */
  async #leave(label) {
    try {
      await signIn(session.token, label);
    } catch (error) {
      tellError(`${label} is not opened`, error);
    }
  }

  /** Create or delete; return whether that was done. */
  async #send(method, label, parameters, failure) {
    const url = urlOf(".settings/database", parameters, { isData: false });
    url.searchParams.set("ns", label);
    try {
      await send(method, url);
      return true;
    } catch (error) {
      tellError(failure, error);
      return false;
    } finally {
      session.dispatchEvent(new Event("databases"));
      await this.load();
    }
  }
}

/** Return the label of the database that the console shows. */
function openLabel() {
  const { label, caller } = session;
  return label ?? caller?.database ?? caller?.project ?? null;
}

customElements.define("treedb-databases", Databases);
