/** An element that shows a page of an admin, and reads it again while it is on the screen. */

import { html, nothing } from "../vendor/lit.js";
import { admin } from "./api.js";
import { Component } from "./element.js";
import { repeatWhileShown } from "./repeat.js";

/** After a failure a page is read again after this time, or its own if that is longer. */
const AFTER_ERROR_MS = 5000;

export class Polling extends Component {
  static properties = { found: { state: true }, error: { state: true } };

  /** The page, and after how many milliseconds it is read again. */
  page = "";
  every = 0;
  #last = 0;

  constructor() {
    super();
    this.found = null;
    this.error = null;
  }

  connectedCallback() {
    super.connectedCallback();
    const ending = new AbortController();
    this.whenGone(() => ending.abort());
    const every = () => (this.error === null ? this.every : Math.max(this.every, AFTER_ERROR_MS));
    repeatWhileShown(every, () => this.load(ending.signal), ending.signal);
  }

  /** Read the page now; what an earlier reading returns after this one is not shown. */
  async load(signal) {
    const number = (this.#last += 1);
    try {
      const found = await this.read(signal);
      if (number !== this.#last) return;
      this.found = found;
      this.error = null;
    } catch (error) {
      if (error.name !== "AbortError" && !error.isOffline && number === this.#last) this.error = error;
    }
  }

  /** Return what is shown. */
  read(signal) {
    return admin("GET", this.page, { signal });
  }

  render() {
    if (this.found !== null) return html`${this.renderError()}${this.renderFound(this.found)}`;
    if (this.error !== null) {
      return html`<div class="empty"><p class="problem" role="alert">${this.error.message}</p><button @click=${() => this.load()}>Try again</button></div>`;
    }
    return this.renderWaiting();
  }

  /** What is shown until the page was read for the first time. */
  renderWaiting() {
    return html`<p class="starting" role="status">Reading …</p>`;
  }

  /** That what is shown is old, if it is. */
  renderError() {
    return this.error === null ? nothing : html`<p class="problem" role="alert">This is no longer read: ${this.error.message}</p>`;
  }
}
