/** Small plots of the last two minutes: requests, errors, writes, and how long commits take. */

import { html, svg } from "../vendor/lit.js";
import { formatCount, formatMs } from "../core/format.js";
import { Polling } from "./polling.js";

const WIDTH = 240;
const HEIGHT = 48;
const PLOTS = [
  ["requests", "Requests a second", formatRate],
  ["errors", "Errors a second", formatRate],
  ["denied", "Denials a second", formatRate],
  ["writes", "Writes a second", formatRate],
  ["commit_p99_ms", "Commit, 99 % within", formatMs],
];

export class Plots extends Polling {
  page = ".inspect/activity";
  every = 1000;

  renderFound({ series }) {
    if (!series) return html``;
    return html`<div class="plots">${PLOTS.map(([name, label, format]) => renderPlot(series[name] ?? [], label, format))}</div>`;
  }
}

function formatRate(value) {
  return value < 10 && value % 1 ? value.toFixed(1) : formatCount(Math.round(value));
}

/** Return a line of values, null for none, with the last one as text. */
function renderPlot(values, label, format) {
  const known = values.filter((each) => each !== null);
  const most = Math.max(...known, 0);
  const last = known.at(-1);
  const shown = last === undefined ? "–" : format(last);
  return html`<figure class="plot" aria-label="${label}: ${shown}">
    <figcaption><span>${label}</span> <strong>${shown}</strong></figcaption>
    <svg viewBox="0 0 ${WIDTH} ${HEIGHT}" preserveAspectRatio="none" aria-hidden="true">${svg`<path d=${pathOf(values, most)}></path>`}</svg>
    <span class="hint">${most > 0 ? `most: ${format(most)}` : "none yet"}</span>
  </figure>`;
}

function pathOf(values, most) {
  const step = WIDTH / Math.max(1, values.length - 1);
  let isDrawing = false;
  let path = "";
  values.forEach((value, at) => {
    if (value === null) {
      isDrawing = false;
      return;
    }
    const y = HEIGHT - 2 - (most > 0 ? (value / most) * (HEIGHT - 4) : 0);
    path += `${isDrawing ? "L" : "M"}${(at * step).toFixed(1)} ${y.toFixed(1)}`;
    isDrawing = true;
  });
  return path;
}

customElements.define("treedb-plots", Plots);
