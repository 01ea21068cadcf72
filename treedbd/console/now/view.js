/** What happens now: rates and latencies, requests as they come, operations by path, and what an admin does with databases. */

import { html } from "../vendor/lit.js";
import { Component } from "../core/element.js";
import { hrefOf, router } from "../core/router.js";
import "./backups.js";
import "./connections.js";
import "./databases.js";
import "./plots.js";
import "./profile.js";
import "./requests.js";
import "./tokens.js";

const TABS = {
  requests: ["Requests", () => html`<treedb-plots></treedb-plots><treedb-requests></treedb-requests>`],
  profile: ["Profile", () => html`<treedb-profile></treedb-profile>`],
  connections: ["Connections", () => html`<treedb-connections></treedb-connections>`],
  databases: ["Databases", () => html`<treedb-databases></treedb-databases>`],
  tokens: ["Tokens", () => html`<treedb-tokens></treedb-tokens>`],
  backups: ["Backups", () => html`<treedb-backups></treedb-backups>`],
};

export class NowView extends Component {
  connectedCallback() {
    super.connectedCallback();
    this.watch(router, "change");
  }

  render() {
    const shown = router.keys[0] in TABS ? router.keys[0] : "requests";
    return html`<nav class="subtabs" aria-label="Now">
        ${Object.entries(TABS).map(([tab, [label]]) => html`<a href=${hrefOf("now", [tab])} aria-current=${tab === shown ? "page" : "false"}>${label}</a>`)}
      </nav>
      <div class="page now"><h1 class="hidden-heading">${TABS[shown][0]}</h1>${TABS[shown][1]()}</div>`;
  }

  updated() {
    // On a phone the tabs are wider than the screen.
    this.querySelector(".subtabs [aria-current=page]")?.scrollIntoView({ block: "nearest", inline: "nearest" });
  }
}

customElements.define("treedb-now", NowView);
