/**
 * A list of any number of rows of one height, of which only those on the screen exist.
 *
 * Elements cannot be higher than some millions of pixels. Beyond `MAX_PX` the scroll bar represents
 * more pixels than it has: dragging it goes far, while the wheel, a finger and the keys still move
 * pixel by pixel; when they rest, the scroll bar is set to where the rows are.
 */

import { html, nothing, repeat } from "../vendor/lit.js";
import { Component } from "../core/element.js";

const MAX_PX = 8_000_000;
const BESIDE = 8;
const REST_MS = 150;

export class Rows extends Component {
  static properties = {
    count: { type: Number },
    active: { type: Number },
    renderRow: { attribute: false },
    keyOf: { attribute: false },
    label: {},
  };

  constructor() {
    super();
    this.count = 0;
    /** The number of the row that the keys act on. */
    this.active = 0;
    this.label = "";
    this.renderRow = () => nothing;
    /** Returns what a row is kept by while its number changes. */
    this.keyOf = (number) => number;
    /** Pixels of the rows above the screen. */
    this.top = 0;
    this.rowHeight = 28;
    this.height = 600;
    /** Where the scroll bar was at the last event. */
    this.scrolledTo = 0;
  }

  firstUpdated() {
    this.scroller = this.querySelector(".rows");
    const resize = new ResizeObserver(() => {
      this.height = this.scroller.clientHeight;
      this.rowHeight = Number.parseFloat(getComputedStyle(this).getPropertyValue("--row")) || 28;
      this.#scrolled();
    });
    resize.observe(this.scroller);
    this.whenGone(() => resize.disconnect());
  }

  /** The pixels that all rows have together, and those of the element. */
  get whole() {
    return this.count * this.rowHeight;
  }

  get shown() {
    return Math.min(this.whole, MAX_PX);
  }

  get ratio() {
    const room = this.shown - this.height;
    return room > 0 ? Math.max(1, (this.whole - this.height) / room) : 1;
  }

  /** The numbers of the first and the last row on the screen. */
  get range() {
    const first = Math.floor(this.top / this.rowHeight);
    return [Math.max(0, first), Math.max(0, Math.min(this.count - 1, Math.ceil((this.top + this.height) / this.rowHeight) - 1))];
  }

  /** The same with some beside it, which exist already when they come into view. */
  get rendered() {
    const [first, last] = this.range;
    return [Math.max(0, first - BESIDE), Math.min(this.count - 1, last + BESIDE)];
  }

  render() {
    const [from, to] = this.rendered;
    const numbers = Array.from({ length: Math.max(0, to - from + 1) }, (_, at) => from + at);
    const offset = (this.scroller?.scrollTop ?? 0) - (this.top - from * this.rowHeight);
    return html`<div class="rows" role="tree" tabindex="0" aria-label=${this.label}
      aria-activedescendant=${this.active >= from && this.active <= to ? `row-${this.active}` : nothing}
      @scroll=${() => this.#onScroll()} @wheel=${{ handleEvent: (event) => this.#onWheel(event), passive: false }}>
      <div class="rows-space" role="presentation" .style=${`height: ${this.shown}px`}>
        <div class="rows-shown" role="presentation" .style=${`transform: translateY(${Math.max(0, offset)}px)`}>
          ${repeat(numbers, this.keyOf, this.renderRow)}</div>
      </div></div>`;
  }

  updated(changed) {
    if (changed.has("count")) this.#align(); // the space has its new height only now
  }

  #onScroll() {
    const at = this.scroller.scrollTop;
    const moved = at - this.scrolledTo;
    this.scrolledTo = at;
    if (moved === 0) return; // `moveTo` has set it
    const most = this.shown - this.height;
    const isFar = Math.abs(moved) > this.height;
    if (this.ratio === 1) this.top = at;
    else if (isFar || at <= 0 || at >= most - 1) this.top = Math.min(at * this.ratio, this.whole - this.height);
    else this.top += moved;
    this.#scrolled();
    clearTimeout(this.resting);
    if (this.ratio !== 1) this.resting = setTimeout(() => this.moveTo(this.top), REST_MS);
  }

  #onWheel(event) {
    if (this.ratio === 1 || event.ctrlKey || event.shiftKey) return; // the browser does it
    event.preventDefault();
    const unit = event.deltaMode === 1 ? this.rowHeight : event.deltaMode === 2 ? this.height : 1;
    this.moveTo(this.top + event.deltaY * unit);
  }

  /** Scroll to a distance from the top of the first row, in pixels. */
  moveTo(top) {
    this.top = Math.max(0, Math.min(top, this.whole - this.height));
    this.#align();
    this.#scrolled();
  }

  /** Set the scroll bar to where the rows are. */
  #align() {
    const at = Math.round(this.top / this.ratio);
    if (!this.scroller || this.scroller.scrollTop === at) return;
    this.scroller.scrollTop = at;
    this.scrolledTo = this.scroller.scrollTop;
  }

  /** Scroll as little as is needed for a row to be on the screen. */
  reveal(number) {
    const above = number * this.rowHeight;
    if (above < this.top) this.moveTo(above);
    else if (above + this.rowHeight > this.top + this.height) this.moveTo(above + this.rowHeight - this.height);
  }

  /** Scroll so that a row is in the middle, unless it is on the screen. */
  show(number) {
    const above = number * this.rowHeight - this.top;
    if (above < 0 || above > this.height - 2 * this.rowHeight) this.moveTo(this.top + above - this.height / 2);
  }

  focus() {
    this.scroller?.focus({ preventScroll: true });
  }

  #scrolled() {
    this.top = Math.max(0, Math.min(this.top, this.whole - this.height));
    this.requestUpdate();
    this.dispatchEvent(new Event("range"));
  }
}

customElements.define("treedb-rows", Rows);
