/** The editor of the rules: problems as one types, the difference to what is in force, publishing. */

import { html, nothing } from "../vendor/lit.js";
import { ask, tell, tellError } from "../core/dialog.js";
import "../core/editor.js";
import { Component } from "../core/element.js";
import { plural } from "../core/format.js";
import { session } from "../core/session.js";
import { showDifference } from "./difference.js";
import { rules } from "./document.js";
import { rulesLanguage } from "./language.js";

const LANGUAGE = rulesLanguage();

export class RulesDraft extends Component {
  connectedCallback() {
    super.connectedCallback();
    this.watch(rules, "change");
    this.watch(session, "change");
    this.watch(session, "online", () => rules.load());
    rules.load();
  }

  render() {
    if (rules.draft === null) {
      return rules.error
        ? html`<p class="empty problem" role="alert">${rules.error.message} <button @click=${() => rules.load()}>Try again</button></p>`
        : html`<p class="starting">Reading the rules …</p>`;
    }
    return html`<div class="rules-bar row-of">
        <span class="grow" role="status">${this.#describeState()}</span>
        <button ?disabled=${!rules.isChanged} @click=${() => showDifference(rules.current, rules.draft, "In force", "Draft")}>Show changes</button>
        <button ?disabled=${!rules.isChanged} @click=${() => this.#discard()}>Discard</button>
        <button class="primary" ?disabled=${!rules.isChanged || rules.hasErrors || rules.state !== "checked" || session.isReadOnly}
          @click=${() => this.#publish()}>Publish</button>
      </div>
      <treedb-editor class="rules-editor" .label=${"Rules"} .extensions=${LANGUAGE} @change=${(event) => rules.edit(event.target.value)}></treedb-editor>
      ${rules.problems.length
        ? html`<ul class="problems" aria-label="Problems">${rules.problems.map(
            (each) => html`<li class=${each.severity}><button class="link" @click=${() => this.#goTo(each)}>${each.line}:${each.column}</button>
              <span>${each.message}${each.hint ? ` ${each.hint}` : ""}</span></li>`,
          )}</ul>`
        : nothing}`;
  }

  updated() {
    const editor = this.querySelector("treedb-editor");
    if (!editor) return;
    editor.value = rules.draft;
    editor.isReadOnly = session.isReadOnly;
    editor.showProblems(rules.problems);
  }

  #describeState() {
    if (rules.state === "checking") return "Checking …";
    if (rules.state === "unknown") return "Not checked: the server does not answer.";
    const errors = rules.problems.filter((each) => each.severity === "error").length;
    const warnings = rules.problems.length - errors;
    const found = [errors && plural(errors, "error"), warnings && plural(warnings, "warning")].filter(Boolean).join(", ") || "No problems";
    return `${found}. ${rules.isChanged ? "Not published." : "In force."}`;
  }

  #goTo({ line, column }) {
    this.querySelector("treedb-editor").goTo(line, column);
  }

  async #discard() {
    if (await ask({ title: "Discard the draft?", body: "The text becomes what is in force.", confirm: "Discard", isDanger: true })) rules.discard();
  }

  async #publish() {
    const warnings = rules.problems.length;
    const given = await ask({
      title: "Publish these rules?",
      body: `They are in force at once, for all databases of the project.${warnings ? ` There ${warnings === 1 ? "is" : "are"} ${plural(warnings, "warning")}.` : ""}`,
      confirm: "Publish",
    });
    if (given === null) return;
    try {
      await rules.publish();
      tell("The rules are in force.");
    } catch (error) {
      tellError("Not published", error);
    }
  }
}

customElements.define("treedb-rules-draft", RulesDraft);
