/** The editor of the rules: problems as one types, the difference to what is in force, publishing. */

import { html, nothing } from "../vendor/lit.js";
import { EditorView, Prec, keymap } from "../vendor/codemirror.js";
import { ask, tell, tellError } from "../core/dialog.js";
import "../core/editor.js";
import { Component } from "../core/element.js";
import { formatAgo, plural } from "../core/format.js";
import { repeatWhileShown } from "../core/repeat.js";
import { router } from "../core/router.js";
import { session } from "../core/session.js";
import { NARROW_PX, showDifference } from "./difference.js";
import { explainFailure, rules } from "./document.js";
import { formatRules, openToAll, rulesLanguage } from "./language.js";

/** How often it is looked whether others have put rules in force. */
const REFRESH_MS = 5000;

export class RulesDraft extends Component {
  /** The rules' language, and the key that publishes. */
  #extensions = [...rulesLanguage(), ...(innerWidth < NARROW_PX ? [EditorView.lineWrapping] : []), Prec.high(keymap.of([{ key: "Mod-s", run: () => this.#publishByKey() }]))];

  connectedCallback() {
    super.connectedCallback();
    const ending = new AbortController();
    this.whenGone(() => ending.abort());
    this.watch(rules, "change");
    this.watch(session, "change");
    this.watch(session, "online", () => rules.load());
    this.watch(router, "change");
    let isFirst = true;
    repeatWhileShown(REFRESH_MS, () => {
      if (isFirst) return (isFirst = false), rules.load();
      return this.#refresh();
    }, ending.signal);
  }

  get isLocked() {
    return session.isReadOnly || rules.managed !== null;
  }

  render() {
    if (rules.draft === null || rules.current === null) {
      return rules.error
        ? html`<div class="empty"><p class="problem" role="alert">${rules.error.message}</p><button @click=${() => rules.load()}>Try again</button></div>`
        : html`<p class="starting" role="status">Reading the rules …</p>`;
    }
    const { isChanged, isOutdated, managed } = rules;
    this.#examine(rules.draft);
    return html`<div class="rules-bar row-of">
        <span class="grow" role="status">${this.#describeState()}</span>
        <button ?disabled=${this.isLocked || [null, rules.draft].includes(this.formatted)} title="Indent rules that have no comments"
          @click=${() => rules.edit(this.formatted)}>Format</button>
        <button ?disabled=${!isChanged} @click=${() => this.#showChanges()}>Show changes</button>
        <button ?disabled=${!isChanged} @click=${() => this.#discard()}>Discard</button>
        <button class="primary" ?disabled=${!this.#canPublish()} title="Ctrl S" @click=${() => this.#publish()}>Publish …</button>
      </div>
      ${managed ? html`<p class="banner" role="status">${managed} They can be tried here, and are changed in the file.</p>` : nothing}
      ${session.isReadOnly && !managed ? html`<p class="banner" role="status">Read-only: rules can be tried, and not published.</p>` : nothing}
      ${rules.error ? html`<p class="banner warning" role="alert">The rules are no longer read: ${rules.error.message}</p>` : nothing}
      ${this.openVerbs.length ? html`<p class="banner warning" role="status">Everyone can ${this.openVerbs.join(" and ")} all data: the root allows it to all.</p>` : nothing}
      ${isOutdated ? this.#renderOutdated() : nothing}
      <treedb-editor class="rules-editor" .label=${"Rules"} .extensions=${this.#extensions} @change=${(event) => rules.edit(event.target.value)}></treedb-editor>
      ${rules.problems.length
        ? html`<ul class="problems" aria-label="Problems" tabindex="0">${rules.problems.map(
            (each) => html`<li class=${each.severity}><button class="link" @click=${() => this.#goTo(each.line, each.column)}>${each.severity} ${each.shown}</button>
              <span>${each.message}${each.hint ? html` <em>${each.hint}</em>` : nothing}</span></li>`,
          )}</ul>`
        : nothing}`;
  }

  /** Find out what the draft allows everyone, and how it looks with an indent. */
  #examine(text) {
    if (text === this.examined) return;
    Object.assign(this, { examined: text, openVerbs: openToAll(text), formatted: formatRules(text) });
  }

  #renderOutdated() {
    const { newest } = rules;
    const who = newest?.is_current ? ` by ${newest.uid ?? (newest.admin ? "an admin" : "someone")}${newest.time ? `, ${formatAgo(newest.time)}` : ""}` : "";
    return html`<div class="banner warning row-of" role="alert"><span class="grow">The rules in force were changed meanwhile${who}. Your draft does not have that change.</span>
      <button @click=${() => showDifference(rules.base, rules.current, "Before", "In force now")}>What they changed</button>
      <button @click=${() => showDifference(rules.current, rules.draft, "In force now", "Your draft")}>Theirs and mine</button>
      <button @click=${() => rules.rebase()}>Keep mine</button>
      <button @click=${() => this.#discard()}>Take theirs</button></div>`;
  }

  updated() {
    const editor = this.querySelector("treedb-editor");
    if (!editor) return;
    editor.value = rules.draft;
    editor.isReadOnly = this.isLocked;
    if (rules.state !== "checking" && this.shownProblems !== rules.problems) {
      this.shownProblems = rules.problems;
      editor.showProblems(rules.problems.map((each) => ({ ...each, message: [each.message, each.hint].filter(Boolean).join(" ") })));
    }
    this.#followRoute();
  }

  /** Show the line of the route, `#/rules/edit?line=6&column=20`, once. */
  #followRoute() {
    const { line, column } = router.parameters;
    if (router.view !== "rules" || router.keys[0] !== "edit" || line === undefined) return;
    // The tab is shown when this has been rendered; a hidden editor does not scroll.
    requestAnimationFrame(() => {
      if (this.hidden || router.parameters.line === undefined) return;
      this.#goTo(Number(line), Number(column ?? 1));
      router.go("rules", ["edit"], {}, { replace: true });
    });
  }

  #describeState() {
    const where = rules.isChanged ? "Not published." : "In force.";
    if (rules.state === "checking") return `Checking … ${where}`;
    if (rules.state === "unknown") return `Not checked: ${rules.problem ?? "the server does not answer."}`;
    if (rules.managed && !rules.problems.length) return "In force, from a file.";
    const errors = rules.problems.filter((each) => each.severity === "error").length;
    const warnings = rules.problems.length - errors;
    const found = [errors && plural(errors, "error"), warnings && plural(warnings, "warning")].filter(Boolean).join(", ") || "No problems";
    return `${found}. ${where}`;
  }

  #canPublish() {
    return rules.isChanged && !rules.hasErrors && rules.state === "checked" && !this.isLocked;
  }

  #goTo(line, column) {
    this.querySelector("treedb-editor")?.goTo(line, column);
  }

  async #refresh() {
    const hadDraft = rules.isChanged;
    if ((await rules.refresh()) && !hadDraft) tell("The rules were changed by another client. What is shown is in force.");
  }

  #showChanges() {
    return showDifference(rules.current, rules.draft, "In force", "Draft");
  }

  async #discard() {
    if (await ask({ title: "Discard the draft?", body: "The text becomes what is in force.", confirm: "Discard", isDanger: true })) rules.discard();
  }

  #publishByKey() {
    if (this.#canPublish()) this.#publish();
    return true; // the browser does not save the page
  }

  async #publish() {
    await rules.refresh();
    if (rules.error) return tellError("Not published", rules.error);
    if (!rules.isChanged) return tell("The same text is in force already.");
    const { isOutdated, tag } = rules; // of what is compared below
    const note = isOutdated
      ? "Others have changed the rules since you began: what they changed is undone by this."
      : `They are in force at once, for all databases of the project ${session.caller?.project}.`;
    const isConfirmed = await showDifference(rules.current, rules.draft, isOutdated ? "In force now, changed by others" : "In force", "Draft", {
      title: "Publish these changes?",
      confirm: isOutdated ? "Publish over their change" : "Publish",
      isDanger: isOutdated,
      note: rules.problems.length ? `${note} There ${rules.problems.length === 1 ? "is" : "are"} ${plural(rules.problems.length, "warning")}.` : note,
    });
    if (!isConfirmed) return undefined;
    try {
      await rules.publish(tag);
      return tell("The rules are in force.");
    } catch (error) {
      return tellError("Not published", explainFailure(error));
    }
  }
}

customElements.define("treedb-rules-draft", RulesDraft);
