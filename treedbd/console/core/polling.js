/** An element that shows a page of an admin, and reads it again while it is on the screen. */

import { html } from "../vendor/lit.js";
import { admin, pause } from "../core/api.js";
import { Component } from "../core/element.js";

export class Polling extends Component {
  static properties = { found: { state: true }, error: { state: true } };

  /** The page, and after how many milliseconds it is read again; 0 for only when `load` is called. */
  page = "";
  every = 0;

  constructor() {
    super();
    this.found = null;
    this.error = null;
  }

  connectedCallback() {
    super.connectedCallback();
    const ending = new AbortController();
    this.whenGone(() => ending.abort());
    this.#poll(ending.signal);
  }

  async #poll(signal) {
    do {
      if (!document.hidden || this.found === null) await this.load(signal);
      if (this.every) await pause(this.every, signal);
    } while (this.every && !signal.aborted);
  }

  /** Read the page now. */
  async load(signal) {
    try {
      this.found = await admin("GET", this.page, { signal });
      this.error = null;
    } catch (error) {
      if (error.name !== "AbortError" && !error.isOffline) this.error = error;
    }
  }

  render() {
    if (this.found !== null) return this.renderFound(this.found);
    if (this.error !== null) {
      return html`<div class="empty"><p class="problem" role="alert">${this.error.message}</p><button @click=${() => this.load()}>Try again</button></div>`;
    }
    return html`<p class="starting">Reading …</p>`;
  }
}
