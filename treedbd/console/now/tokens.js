/** Tokens for users, made by the server and shown once. */

import { html, nothing } from "../vendor/lit.js";
import { admin } from "../core/api.js";
import { copy } from "../core/dialog.js";
import { Component } from "../core/element.js";
import { session } from "../core/session.js";

export class Tokens extends Component {
  static properties = { made: { state: true }, problem: { state: true } };

  constructor() {
    super();
    this.made = null;
    this.problem = null;
  }

  render() {
    return html`<form class="card" @submit=${(event) => this.#make(event)}>
        <h2>Make a token</h2>
        <p class="hint">Whoever has it is that user until it expires. Rules see the claims as <code>auth.token</code>.</p>
        <div class="field"><label for="uid">uid</label><input id="uid" autocomplete="off" spellcheck="false" required></div>
        <div class="field"><label for="claims">Claims (JSON)</label><textarea id="claims" rows="3" spellcheck="false" placeholder='{"role":"editor"}'></textarea></div>
        <div class="field"><label for="ttl">Lives</label><select id="ttl">
          ${[["15m", "15 minutes"], ["1h", "one hour"], ["1d", "one day"], ["7d", "7 days"], ["30d", "30 days"]].map(
            ([value, label]) => html`<option value=${value} ?selected=${value === "1h"}>${label}</option>`,
          )}</select></div>
        ${this.problem ? html`<p class="problem" role="alert">${this.problem}</p>` : nothing}
        <button class="primary" ?disabled=${session.isReadOnly}>Make</button>
      </form>
      ${this.made
        ? html`<section class="card"><h2>Token of ${this.made.uid}</h2>
            <p class="hint">Until ${new Date(this.made.expires).toLocaleString("en-GB")}. It is not kept anywhere: copy it now.</p>
            <textarea readonly rows="5" aria-label="Token" .value=${this.made.token} @focus=${(event) => event.target.select()}></textarea>
            <p><button @click=${() => copy(this.made.token, "The token is copied.")}>Copy</button></p></section>`
        : nothing}
      <p class="hint">A token of an admin is made on the server: <code>treedb token --admin --project ${session.caller?.project ?? "NAME"}</code>.</p>`;
  }

  async #make(event) {
    event.preventDefault();
    const uid = this.querySelector("#uid").value;
    const text = this.querySelector("#claims").value.trim();
    this.problem = null;
    try {
      const claims = text ? JSON.parse(text) : {};
      const made = await admin("POST", ".settings/tokens", { body: { uid, claims, ttl: this.querySelector("#ttl").value } });
      this.made = { ...made, uid };
    } catch (error) {
      this.made = null;
      this.problem = error instanceof SyntaxError ? `The claims are not valid JSON: ${error.message}` : error.message;
    }
  }
}

customElements.define("treedb-tokens", Tokens);
