/** Small plots of the last two minutes: requests, errors, writes, and how long commits take. */

import { html, nothing, svg } from "../vendor/lit.js";
import { formatCount, formatMs } from "../core/format.js";
import { Polling } from "../core/polling.js";

const WIDTH = 240;
const HEIGHT = 48;
const SECONDS = 120;
/** Name of the series, label, how a value is shown, and a second series that is drawn softly. */
const PLOTS = [
  ["requests", "Requests a second", formatRate],
  ["errors", "Errors a second", formatRate],
  ["denied", "Denials a second", formatRate],
  ["writes", "Writes a second", formatRate],
  ["commit_p99_ms", "99 % of commits", formatMs, "commit_p50_ms"],
];

export class Plots extends Polling {
  page = ".inspect/activity";
  every = 1000;

  renderFound({ series }) {
    if (!series) return html`<p class="hint">This server has no rates by the second.</p>`;
    // Before the first look nothing was recorded: that is not the same as 0.
    const unknown = unknownOf(series);
    return html`<div class="plots" tabindex="0" role="group" aria-label="Rates and latency">${PLOTS.map(([name, label, format, soft]) =>
      renderPlot(hide(series[name], unknown), label, format, soft ? hide(series[soft], unknown) : null),
    )}</div>`;
  }

  renderWaiting() {
    return html`<div class="plots" tabindex="0" role="group" aria-label="Rates and latency">${PLOTS.map(([, label, format]) => renderPlot([], label, format, null))}</div>`;
  }
}

/** Return of how many values at the beginning nothing is known. */
function unknownOf({ to, since, requests = [] }) {
  if (!since) return 0;
  const known = Math.round((new Date(to) - new Date(since)) / 1000) + 1;
  return Math.max(0, requests.length - known);
}

function hide(values = [], count) {
  return values.map((value, at) => (at < count ? null : value));
}

function formatRate(value) {
  return value < 10 && value % 1 ? value.toFixed(1) : formatCount(Math.round(value));
}

/** Return a line of values, null for none, with the last one as text. */
function renderPlot(values, label, format, soft) {
  const known = values.filter((each) => each !== null);
  const most = Math.max(...known, 0);
  // The last second of rates, and the last commit, whenever that was.
  const last = known.at(-1);
  const shown = last === undefined ? "–" : format(last);
  const note = known.length ? (most > 0 ? `most: ${format(most)}` : "none") : "none yet";
  return html`<figure class="plot" role="img" aria-label="${label}: ${shown}, ${note}" title="The last two minutes">
    <figcaption><span>${label}</span> <strong>${shown}</strong></figcaption>
    <svg viewBox="0 0 ${WIDTH} ${HEIGHT}" preserveAspectRatio="none" aria-hidden="true">
      ${soft ? svg`<path class="second" d=${pathOf(soft, most)}></path>` : nothing}${svg`<path d=${pathOf(values, most)}></path>`}</svg>
    <span class="hint">${note}</span>
  </figure>`;
}

function pathOf(values, most) {
  const step = WIDTH / (SECONDS - 1);
  let isDrawing = false;
  let path = "";
  values.forEach((value, at) => {
    if (value === null) {
      isDrawing = false;
      return;
    }
    const y = HEIGHT - 2 - (most > 0 ? (value / most) * (HEIGHT - 4) : 0);
    // A value between two unknown ones is a short line, which else would not be seen.
    path += `${isDrawing ? "L" : "M"}${(at * step).toFixed(1)} ${y.toFixed(1)}${isDrawing ? "" : "h2"}`;
    isDrawing = true;
  });
  return path;
}

customElements.define("treedb-plots", Plots);
