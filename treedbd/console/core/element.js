/** The base of the console's elements: lit without shadow roots, so that one style sheet styles all. */

import { LitElement } from "../vendor/lit.js";

export class Component extends LitElement {
  /** Undoes what `watch` began; called when the element leaves the page. */
  #ends = [];

  createRenderRoot() {
    return this;
  }

  /** Render again at each event `type` of `target`, while the element is on the page. */
  watch(target, type, handler = () => this.requestUpdate()) {
    target.addEventListener(type, handler);
    this.#ends.push(() => target.removeEventListener(type, handler));
  }

  /** Call `end` when the element leaves the page. */
  whenGone(end) {
    this.#ends.push(end);
  }

  disconnectedCallback() {
    super.disconnectedCallback();
    for (const end of this.#ends.splice(0)) end();
  }
}
