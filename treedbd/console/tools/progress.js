/** How far something is that takes a while, in a dialog from which it can be cancelled. */

import { html, render } from "../vendor/lit.js";

/** Show the dialog; return `{signal, set(part, text), close()}`; `signal` is aborted by Cancel. */
export function showProgress(title) {
  const dialog = document.createElement("dialog");
  dialog.className = "dialog";
  const aborting = new AbortController();
  const draw = (part, text) =>
    render(
      html`<h2 id="progress-title">${title}</h2><progress aria-labelledby="progress-title" max="1" .value=${Math.min(1, part)}></progress>
        <p class="hint" role="status">${text}</p>
        <div class="dialog-buttons"><button @click=${() => aborting.abort()}>Cancel</button></div>`,
      dialog,
    );
  draw(0, "Beginning …");
  dialog.addEventListener("cancel", () => aborting.abort());
  document.body.append(dialog);
  dialog.showModal();
  return {
    signal: aborting.signal,
    set: draw,
    close() {
      dialog.close();
      dialog.remove();
    },
  };
}
