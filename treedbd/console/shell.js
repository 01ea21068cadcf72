/**
 * The frame of the console: bars, sign-in, and the view of the route.
 *
 * A view is an element of a module that is loaded when it is first shown. It is made again when the
 * database, the token or the viewer changes, so a view need not follow these.
 */

import { html, nothing } from "./vendor/lit.js";
import { admin } from "./core/api.js";
import { showMenu, tellError } from "./core/dialog.js";
import { Component } from "./core/element.js";
import { applyTheme, chooseViewer, describeCaller, describeViewer, resumeSession, signIn, theme } from "./core/identity.js";
import { hrefOf, router } from "./core/router.js";
import { session } from "./core/session.js";

const TABS = [
  { view: "data", label: "Data", element: "treedb-data", load: () => import("./tree/view.js") },
  { view: "rules", label: "Rules", element: "treedb-rules", load: () => import("./rules/view.js"), isForAdmins: true },
  { view: "now", label: "Now", element: "treedb-now", load: () => import("./now/view.js"), isForAdmins: true },
];
const LOOPBACK = /^(localhost|.*\.localhost|127\.0\.0\.1|\[::1\])$/;

class TreedbConsole extends Component {
  static properties = { problem: { state: true }, projects: { state: true } };

  constructor() {
    super();
    this.problem = null;
    this.projects = [];
  }

  connectedCallback() {
    super.connectedCallback();
    this.textContent = ""; // what was there until the modules were loaded
    this.watch(session, "given", () => this.#begin());
    this.watch(session, "change");
    this.watch(session, "online", () => this.#comeBack());
    this.watch(session, "databases", () => this.#findProjects());
    this.watch(router, "change");
    this.watch(document, "keydown", (event) => this.#onKey(event));
    this.#begin();
  }

  async #begin() {
    this.problem = null;
    try {
      await resumeSession();
      await this.#findProjects();
    } catch (error) {
      if (error.isOffline) return; // it is tried again, and `online` follows
      this.problem = error.message;
      session.signOut(session.state === "expired" ? "expired" : "signed-out");
    }
  }

  async #comeBack() {
    if (session.caller === null && session.token !== null) await this.#begin();
  }

  async #findProjects() {
    if (!session.isAdmin) return;
    try {
      this.projects = await admin("GET", ".inspect/projects");
    } catch {
      this.projects = []; // the name of the database can still be typed
    }
  }

  render() {
    if (session.token === null) {
      this.viewElement = undefined; // it may show what the next caller must not see
      return this.#renderSignIn();
    }
    if (session.caller === null) return html`<p class="starting" role="status">Waiting for the server …</p>`;
    const tab = TABS.find((each) => each.view === router.view);
    return html`
      <a class="skip" href="#view" @click=${(event) => this.#skip(event)}>To the content</a>
      <header class="bar">
        <a class="brand" href=${hrefOf("data")} aria-label="treedb: the root of the data"><img src="icon.svg" alt="" width="22" height="22"><span>treedb</span></a>
        ${this.#renderDatabase()}
        <nav class="tabs" aria-label="Views">
          ${TABS.filter((each) => !each.isForAdmins || session.isAdmin).map(
            (each) => html`<a href=${hrefOf(each.view)} aria-current=${each.view === router.view ? "page" : "false"}>${each.label}</a>`,
          )}
        </nav>
        <div class="bar-end">
          ${session.isReadOnly ? html`<span class="chip">read-only</span>` : nothing}
          ${session.isAdmin
            ? html`<button class=${session.viewAs === undefined ? "chip" : "chip marked"} title="View as another caller" @click=${chooseViewer}>
                as ${describeViewer()}</button>`
            : html`<span class="chip">as ${describeViewer()}</span>`}
          <button class="icon-button" aria-label="Settings" title="Settings" @click=${(event) => this.#showSettings(event.currentTarget)}>☰</button>
        </div>
      </header>
      ${this.#renderBanner()}
      <main id="view" tabindex="-1">${this.#renderView(tab)}</main>`;
  }

  #renderBanner() {
    if (session.state === "offline") {
      return html`<p class="banner warning" role="status">The server does not answer. The console goes on by itself when it does.</p>`;
    }
    if (session.viewAs !== undefined) {
      return html`<p class="banner" role="status">You see and change data as ${describeViewer()}.
        <button class="link" @click=${() => session.set({ viewAs: undefined })}>Back to yourself</button></p>`;
    }
    return nothing;
  }

  #renderView(tab) {
    if (tab.isForAdmins && !session.isAdmin) {
      return html`<div class="empty"><h2>For admins only</h2><p>This view needs an admin's token; yours is not one.</p></div>`;
    }
    if (!customElements.get(tab.element)) {
      tab.load().then(
        () => this.requestUpdate(),
        (error) => tellError("The view cannot be loaded", error),
      );
      return html`<p class="starting">Loading …</p>`;
    }
    const key = JSON.stringify([tab.view, session.label, session.viewAs, session.caller?.uid, session.isAdmin]);
    if (this.viewKey !== key || this.viewElement === undefined) {
      this.viewKey = key;
      this.viewElement = document.createElement(tab.element);
    }
    return this.viewElement;
  }

  #renderDatabase() {
    const current = session.label ?? session.caller.database ?? "";
    const labels = this.projects.flatMap((project) => project.databases.map((each) => each.name));
    if (!labels.length) return html`<span class="database">${current}</span>`;
    if (!labels.includes(current)) labels.unshift(current);
    return html`<select class="database" aria-label="Database" @change=${(event) => this.#choose(event.target.value)}>
      ${labels.map((each) => html`<option value=${each} ?selected=${each === current}>${each}</option>`)}
    </select>`;
  }

  async #choose(label) {
    const before = session.label;
    session.set({ label });
    try {
      await signIn(session.token, label);
      router.go(router.view);
    } catch (error) {
      session.set({ label: before });
      tellError("Not opened", error);
    }
  }

  #showSettings(button) {
    const isOff = session.caller?.read_only === true;
    showMenu(button, [
      { label: `Signed in as ${describeCaller()}`, run: () => {}, isOff: true },
      { label: session.isReadOnlyHere ? "Allow editing" : "Read-only mode", isOff, run: () => session.set({ isReadOnlyHere: !session.isReadOnlyHere }) },
      null,
      ...["system", "light", "dark"].map((each) => ({
        label: `${theme() === each ? "✓ " : ""}${{ system: "Colours of the system", light: "Light", dark: "Dark" }[each]}`,
        run: () => applyTheme(each),
      })),
      null,
      { label: "Documentation", run: () => open(new URL(".docs/console.md", session.base), "_blank", "noopener") },
      { label: "Keys", key: "?", run: showKeys },
      null,
      { label: "Sign out", run: () => session.signOut() },
    ]);
  }

  #renderSignIn() {
    const isLocal = LOOPBACK.test(location.hostname);
    return html`<main class="sign-in">
      <h1 class="brand"><img src="icon.svg" alt="" width="28" height="28">treedb console</h1>
      ${session.state === "expired" ? html`<p class="banner warning" role="status">Your token is no longer valid. Sign in again to go on where you were.</p>` : nothing}
      ${this.problem ? html`<p class="problem" role="alert">${this.problem}</p>` : nothing}
      ${isLocal
        ? html`<button class="primary wide" @click=${() => this.#enter("owner", "")}>Sign in as owner</button>
            <p class="hint">For development mode, where all who reach this port are the owner.</p>`
        : nothing}
      <form @submit=${(event) => this.#submit(event)}>
        <div class="field"><label for="token">Token</label>
          <textarea id="token" rows="4" spellcheck="false" autocomplete="off" required></textarea>
          <p class="hint">Of an admin: <code>treedb token --admin --ttl 1h --project NAME</code>; or of any user. It is kept in this tab only.</p></div>
        <div class="field"><label for="label">Database</label>
          <input id="label" autocomplete="off" spellcheck="false" placeholder="the one that this address names" .value=${session.label ?? ""}></div>
        <button class=${isLocal ? "wide" : "primary wide"}>Sign in</button>
      </form>
      <p class="hint">Or run <code>treedb console ${new URL(session.base).origin}</code> on the server: it opens this page, signed in.</p>
    </main>`;
  }

  #submit(event) {
    event.preventDefault();
    const token = this.querySelector("#token").value.trim();
    this.#enter(token, this.querySelector("#label").value.trim());
  }

  async #enter(token, label) {
    this.problem = null;
    try {
      await signIn(token, label || this.querySelector("#label")?.value.trim() || null);
      await this.#findProjects();
    } catch (error) {
      this.problem = error.message;
      this.requestUpdate();
    }
  }

  #skip(event) {
    event.preventDefault();
    this.querySelector("#view").focus();
  }

  #onKey(event) {
    if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.target.closest?.("input, textarea, select, dialog, [contenteditable]") || event.composedPath()[0] !== event.target) return;
    if (event.key === "?") showKeys();
    const tab = { 1: "data", 2: "rules", 3: "now" }[event.key];
    if (tab && session.caller) router.go(tab);
  }
}

async function showKeys() {
  const { showKeysDialog } = await import("./core/keys.js");
  showKeysDialog();
}

customElements.define("treedb-console", TreedbConsole);
