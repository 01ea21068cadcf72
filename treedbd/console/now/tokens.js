/** Tokens for users, made by the server and shown once. */

import { html, nothing } from "../vendor/lit.js";
import { admin } from "../core/api.js";
import { copy } from "../core/dialog.js";
import { Component } from "../core/element.js";
import { authOf } from "../core/identity.js";
import { router } from "../core/router.js";
import { session } from "../core/session.js";

const LIVES = [["15m", "15 minutes"], ["1h", "one hour"], ["1d", "one day"], ["7d", "7 days"], ["30d", "30 days"]];

/** What was made last; it stays while other tabs are shown, and goes with the page. */
let kept = null;

export class Tokens extends Component {
  static properties = { made: { state: true }, problem: { state: true }, isMaking: { state: true } };

  constructor() {
    super();
    this.made = kept;
    this.problem = null;
    this.isMaking = false;
  }

  connectedCallback() {
    super.connectedCallback();
    this.watch(session, "change");
  }

  render() {
    return html`<form class="card" @submit=${(event) => this.#make(event)}>
        <h2>Make a token for a user</h2>
        <p class="hint">All who have it are that user until it expires, in the project ${session.caller?.project}. Rules see its claims as <code>auth.token</code>.</p>
        <div class="field"><label for="uid">uid</label><input id="uid" autocomplete="off" spellcheck="false" required maxlength="256" aria-describedby="token-problem"></div>
        <div class="field"><label for="claims">Claims (JSON)</label><textarea id="claims" rows="3" spellcheck="false" placeholder='{"role":"editor"}' aria-describedby="token-problem"></textarea></div>
        <div class="field"><label for="ttl">Lives</label><select id="ttl">
          ${LIVES.map(([value, label]) => html`<option value=${value} ?selected=${value === "1h"}>${label}</option>`)}</select></div>
        ${this.problem ? html`<p id="token-problem" class="problem" role="alert">${this.problem}</p>` : nothing}
        <button class="primary" ?disabled=${session.isReadOnly || this.isMaking}>Make</button>
        ${session.isReadOnly ? html`<span class="hint">Not in read-only mode.</span>` : nothing}
      </form>
      <div aria-live="polite">${this.made ? this.#renderMade() : nothing}</div>
      <p class="hint">A token of an admin is made on the server: <code>treedb token --admin --project ${session.caller?.project ?? "NAME"}</code>. No token can be
        withdrawn by itself: a new secret of the project ends all of them.</p>`;
  }

  #renderMade() {
    const { uid, expires, token, claims } = this.made;
    return html`<section class="card made-token"><h2>Token of ${uid}</h2>
      <p class="hint">Until ${new Date(expires).toLocaleString("en-GB")}. It is not kept anywhere: copy it now.</p>
      <textarea readonly rows="5" aria-label="Token" .value=${token} @focus=${(event) => event.target.select()}></textarea>
      <div class="row-of"><button type="button" class="primary" @click=${() => copy(token, "The token is copied.")}>Copy</button>
        <button type="button" @click=${() => viewAs(uid, claims)}>View the data as ${uid}</button>
        <button type="button" @click=${() => this.#show(null)}>Forget it</button></div></section>`;
  }

  #show(made) {
    this.made = kept = made;
  }

  async #make(event) {
    event.preventDefault();
    const uid = this.querySelector("#uid").value;
    const { claims, problem } = parseClaims(this.querySelector("#claims").value);
    this.problem = problem ?? null;
    if (problem) return;
    this.isMaking = true;
    try {
      const made = await admin("POST", ".settings/tokens", { body: { uid, claims, ttl: this.querySelector("#ttl").value } });
      this.#show({ ...made, uid, claims });
    } catch (error) {
      this.#show(null);
      this.problem = error.message;
    }
    this.isMaking = false;
  }
}

function parseClaims(text) {
  if (!text.trim()) return { claims: {} };
  try {
    const claims = JSON.parse(text);
    if (claims !== null && typeof claims === "object" && !Array.isArray(claims)) return { claims };
    return { problem: 'The claims must be a JSON object, as in {"role":"editor"}.' };
  } catch (error) {
    return { problem: `The claims are not valid JSON: ${error.message}` };
  }
}

function viewAs(uid, claims) {
  session.set({ viewAs: { auth: authOf(uid, claims) } });
  router.go("data");
}

customElements.define("treedb-tokens", Tokens);
