/** Dialogs, short messages and menus. Each is one element at the end of the body. */

import { html, nothing, render } from "../vendor/lit.js";

/**
 * Show a dialog, and return what was entered by name, or null if it was cancelled.
 *
 * A field is `{name, label, type, value, options, hint, check, isShown}`; `type` is `text`, `textarea`, `select`,
 * `checkbox` or `password`; `check(text, values)` returns a problem or null; a field for which `isShown(values)` is
 * false is neither shown nor checked. `body` is a template or a text. With
 * `mustType` that text has to be typed before the button can be pressed. `submit(values)` does what is asked for: while
 * it rejects, the dialog stays open, with the error below the first field. A question that is dangerous and has no
 * field begins at Cancel: an Enter that was typed before it came does nothing.
 * @returns {Promise<Record<string, string|boolean>|null>}
 */
export function ask({ title, body = nothing, fields = [], confirm = "OK", cancel = "Cancel", isDanger = false, mustType = null, submit = null }) {
  const dialog = document.createElement("dialog");
  dialog.className = "dialog";
  document.body.append(dialog);
  const before = document.activeElement;
  const values = Object.fromEntries(fields.map((each) => [each.name, each.value ?? (each.type === "checkbox" ? false : "")]));
  const given = JSON.stringify(values);
  let typed = "";
  let isTried = false;
  let isBusy = false;
  let refusal = null;

  return new Promise((resolve) => {
    const end = (result) => {
      dialog.close();
      dialog.remove();
      if (before instanceof HTMLElement && before.isConnected) before.focus();
      resolve(result);
    };
    const isShown = (each) => each.isShown?.(values) ?? true;
    const problems = () => fields.map((each) => (isShown(each) && each.check?.(values[each.name], values)) || null);
    const refuse = () => {
      draw();
      const field = dialog.querySelector(".field:has(.problem) :is(input, select, textarea)");
      field?.focus();
      if (field?.matches("input")) field.select(); // a long text is not to be replaced by the next key
    };
    const finish = async (event) => {
      event.preventDefault();
      if (isBusy || (mustType !== null && typed !== mustType)) return;
      isTried = true;
      if (problems().some(Boolean)) {
        refuse();
        return;
      }
      isBusy = true;
      try {
        await submit?.({ ...values });
        if (dialog.isConnected) end({ ...values });
      } catch (error) {
        refusal = error.message;
        refuse();
      }
      isBusy = false;
    };
    const change = (name, value) => {
      values[name] = value;
      refusal = null;
      draw();
    };
    function draw() {
      const found = problems();
      if (refusal !== null) found[0] = refusal;
      render(
        html`<form @submit=${finish} aria-labelledby="dialog-title">
          <h2 id="dialog-title">${title}</h2>
          ${body === nothing ? nothing : html`<div class="dialog-body">${body}</div>`}
          ${fields.map((each, at) => isShown(each) ? renderField(each, values[each.name], isTried ? found[at] : null, change) : nothing)}
          ${mustType === null
            ? nothing
            : html`<label class="field"><span>Type <code>${mustType}</code> to confirm</span>
                <input name="confirmation" autocomplete="off" spellcheck="false" @input=${(event) => {
                  typed = event.target.value;
                  draw();
                }}></label>`}
          <div class="dialog-buttons">
            ${cancel === null ? nothing : html`<button type="button" @click=${() => end(null)}>${cancel}</button>`}
            <button class=${isDanger ? "danger" : "primary"} ?disabled=${mustType !== null && typed !== mustType}>${confirm}</button>
          </div>
        </form>`,
        dialog,
      );
    }
    dialog.addEventListener("cancel", (event) => {
      event.preventDefault();
      end(null);
    });
    dialog.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) finish(event);
    });
    dialog.addEventListener("mousedown", (event) => {
      const { left, right, top, bottom } = dialog.getBoundingClientRect();
      const isOutside = event.clientX < left || event.clientX > right || event.clientY < top || event.clientY > bottom;
      if (event.target === dialog && isOutside && JSON.stringify(values) === given) end(null);
    });
    draw();
    dialog.showModal();
    const isCareful = isDanger && cancel !== null;
    const button = dialog.querySelector(isCareful ? ".dialog-buttons button" : ".dialog-buttons button:last-child");
    (dialog.querySelector("input, select, textarea") ?? button).focus();
  });
}

function renderField(field, value, problem, change) {
  const { name, label, type = "text", options = [], hint } = field;
  const id = `field-${name}`;
  const onInput = (event) => change(name, type === "checkbox" ? event.target.checked : event.target.value);
  if (type === "checkbox") {
    return html`<label class="field check"><input id=${id} type="checkbox" .checked=${value} @change=${onInput}><span>${label}</span></label>`;
  }
  const control =
    type === "select"
      ? html`<select id=${id} @change=${onInput}>${options.map((each) => html`<option value=${each.value} ?selected=${each.value === value}>${each.label}</option>`)}</select>`
      : type === "textarea"
        ? html`<textarea id=${id} rows="6" spellcheck="false" .value=${value} @input=${onInput}></textarea>`
        : html`<input id=${id} type=${type} autocomplete="off" spellcheck="false" .value=${value} @input=${onInput}>`;
  return html`<div class="field"><label for=${id}>${label}</label>${control}
    ${hint ? html`<p class="hint">${hint}</p>` : nothing}
    ${problem ? html`<p class="problem" role="alert">${problem}</p>` : nothing}</div>`;
}

let toasts = null;

/**
 * Show a short message; it goes by itself unless it is an error.
 * @param {string} text
 * @param {{isError?: boolean, action?: {label: string, run: () => void}, seconds?: number}} options
 */
export function tell(text, { isError = false, action = null, seconds = isError ? 12 : 6 } = {}) {
  if (toasts === null) {
    toasts = document.createElement("div");
    toasts.className = "toasts";
    toasts.setAttribute("role", "status");
    toasts.setAttribute("aria-live", "polite");
    document.body.append(toasts);
  }
  const toast = document.createElement("div");
  toast.className = isError ? "toast error" : "toast";
  const close = () => toast.remove();
  render(
    html`<span>${text}</span>
      ${action
        ? html`<button @click=${() => {
            close();
            action.run();
          }}>${action.label}</button>`
        : nothing}
      <button class="plain" aria-label="Close the message" @click=${close}>✕</button>`,
    toast,
  );
  toasts.append(toast);
  while (toasts.children.length > 4) toasts.firstElementChild.remove();
  setTimeout(close, seconds * 1000);
  return close;
}

/** Show what went wrong with something that the user has done: `Not renamed: …`. */
export function tellError(what, error) {
  if (error?.name === "AbortError") return;
  tell(`${what}: ${error.message}`, { isError: true });
}

/**
 * Show a menu below an element, or at `{x, y}`.
 *
 * An item is `{label, run, key, isDanger, isOff}` or `null` for a line.
 */
export function showMenu(anchor, items) {
  document.querySelector(".menu")?.remove();
  const menu = document.createElement("div");
  menu.className = "menu";
  menu.setAttribute("role", "menu");
  menu.setAttribute("popover", "auto");
  const before = document.activeElement;
  const choose = (item) => {
    menu.hidePopover();
    item.run();
  };
  render(
    items.map((item) =>
      item === null
        ? html`<hr>`
        : html`<button role="menuitem" class=${item.isDanger ? "danger" : ""} ?disabled=${item.isOff} @click=${() => choose(item)}>
            <span>${item.label}</span>${item.key ? html`<kbd>${item.key}</kbd>` : nothing}</button>`,
    ),
    menu,
  );
  menu.addEventListener("keydown", (event) => moveIn(menu, event));
  menu.addEventListener("toggle", (event) => {
    if (event.newState !== "closed") return;
    menu.remove();
    if (document.activeElement === document.body && before instanceof HTMLElement) before.focus();
  });
  document.body.append(menu);
  menu.showPopover();
  place(menu, anchor);
  menu.querySelector("button:not([disabled])")?.focus();
}

function moveIn(menu, event) {
  const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
  if (step === undefined) return;
  event.preventDefault();
  const buttons = [...menu.querySelectorAll("button:not([disabled])")];
  const at = buttons.indexOf(document.activeElement);
  buttons[(at + step + buttons.length) % buttons.length]?.focus();
}

function place(menu, anchor) {
  const from = anchor instanceof Element ? anchor.getBoundingClientRect() : { left: anchor.x, right: anchor.x, top: anchor.y, bottom: anchor.y };
  const { width, height } = menu.getBoundingClientRect();
  const left = Math.max(4, Math.min(from.left, innerWidth - width - 4));
  const top = from.bottom + height + 4 > innerHeight ? Math.max(4, from.top - height) : from.bottom + 2;
  menu.style.left = `${left}px`;
  menu.style.top = `${top}px`;
}

/** Copy a text, and say so. */
export async function copy(text, what = "Copied.") {
  try {
    await navigator.clipboard.writeText(text);
    tell(what, { seconds: 3 });
  } catch {
    // Without a secure context there is no clipboard: show the text to be copied by hand.
    await ask({ title: "Copy this", fields: [{ name: "text", label: "", type: "textarea", value: text }], confirm: "Close", cancel: null });
  }
}
