/** The view of the rules: the editor, the playground and the versions, each a tab of its own. */

import { html } from "../vendor/lit.js";
import { Component } from "../core/element.js";
import { hrefOf, router } from "../core/router.js";
import "./draft.js";
import "./playground.js";
import "./versions.js";

const TABS = [
  ["edit", "Edit"],
  ["playground", "Playground"],
  ["versions", "Versions"],
];

export class RulesView extends Component {
  connectedCallback() {
    super.connectedCallback();
    this.watch(router, "change");
  }

  render() {
    const shown = TABS.some(([tab]) => tab === router.keys[0]) ? router.keys[0] : "edit";
    return html`<div class="rules">
      <nav class="subtabs" aria-label="Rules">
        ${TABS.map(([tab, label]) => html`<a href=${hrefOf("rules", [tab])} aria-current=${tab === shown ? "page" : "false"}>${label}</a>`)}
      </nav>
      <treedb-rules-draft ?hidden=${shown !== "edit"}></treedb-rules-draft>
      ${shown === "playground" ? html`<treedb-playground></treedb-playground>` : ""}
      ${shown === "versions" ? html`<treedb-rules-versions></treedb-rules-versions>` : ""}
    </div>`;
  }

  updated() {
    // On a phone the tabs are wider than the screen.
    this.querySelector(".subtabs [aria-current=page]")?.scrollIntoView({ block: "nearest", inline: "nearest" });
  }
}

customElements.define("treedb-rules", RulesView);
