/** Editing: a leaf in its row, and the dialogs that add, delete and set priorities. */

import { html, nothing } from "../vendor/lit.js";
import { createRef, ref } from "../vendor/lit.js";
import { describe, read, write } from "../core/api.js";
import { ask, tellError } from "../core/dialog.js";
import { RawJson, formatBytes, formatLeaf, formatPath, parseLeaf, plural, problemOfKey, toJson, typeOf } from "../core/format.js";
import { indentJson } from "../tools/json.js";
import { UNDO_BYTES, create, done, mayWrite, put, replace } from "./changes.js";

/** Bytes of a value that is edited as text at most. */
const EDITED_BYTES = 500_000;
const LARGE = { bytes: 100_000, count: 100 };
/** Characters of a value that a question shows at most. */
const SHOWN_VALUE = 300;
const TYPES = ["string", "number", "boolean", "null", "json"];
const TYPE_NAMES = { string: "text", number: "number", boolean: "yes/no", null: "nothing", json: "JSON" };

/** The leaf that is edited in its row, or above the rows once its row is not there. */
export class LeafEditor {
  /**
   * @param {string[]} keys
   * @param {import("./model.js").Mark} mark  of its row
   * @param {{change: () => Promise<void>, end: () => void, noteWrite: (keys: string[]) => void}} view
   *   `change` resolves when the change is shown
   */
  constructor(keys, mark, view) {
    this.keys = keys;
    this.mark = mark;
    this.view = view;
    this.hasLeftRow = false;
    /** What is wrong with the text, or null. */
    this.problem = null;
    /** What another client has done meanwhile, or null. */
    this.conflict = null;
    this.input = createRef();
  }

  /** Read the leaf as it is now; return whether it can be edited here. */
  async begin() {
    const leaf = await readLeaf(this.keys);
    if (leaf === null) return false;
    Object.assign(this, leaf);
    return true;
  }

  render() {
    const onInput = (event) => {
      this.text = event.target.value;
      this.problem = null;
    };
    const control =
      this.type === "boolean"
        ? html`<select ${ref(this.input)} aria-label="Value" @change=${onInput}>
            ${["true", "false"].map((each) => html`<option ?selected=${each === this.text}>${each}</option>`)}</select>`
        : this.type === "null"
          ? nothing
          : html`<input ${ref(this.input)} aria-label="Value" spellcheck="false" .value=${this.text} @input=${onInput}>`;
    return html`<form class="tree-editor" @submit=${(event) => this.#submit(event)} @keydown=${(event) => this.#onKey(event)}
      @mousedown=${(event) => event.stopPropagation()} @dblclick=${(event) => event.stopPropagation()}>
      <select aria-label="Type" @change=${(event) => this.#retype(event.target.value)}>
        ${TYPES.map((each) => html`<option value=${each} ?selected=${each === this.type}>${TYPE_NAMES[each]}</option>`)}</select>
      ${control}
      <button class="primary">Save</button><button type="button" @click=${() => this.view.end()}>Cancel</button>
      ${(this.problem ?? this.conflict) ? html`<span class="problem" role="alert">${this.problem ?? this.conflict}</span>` : nothing}
    </form>`;
  }

  /** Whether the text does not fit in a row. */
  get isLong() {
    return isLongText(this.text);
  }

  focus() {
    this.input.value?.focus();
    this.input.value?.select?.();
  }

  /** Go above the rows, because the row is not there: with the text, the focus and the cursor. */
  async leaveRow() {
    this.hasLeftRow = true;
    const input = this.input.value;
    const hasFocus = input?.form.contains(document.activeElement);
    const { selectionStart, selectionEnd } = input ?? {};
    await this.view.change();
    if (hasFocus) {
      this.input.value?.focus();
      this.input.value?.setSelectionRange?.(selectionStart, selectionEnd);
    }
    await this.#warn();
  }

  #retype(type) {
    if (type === "boolean") this.text = this.text === "false" ? "false" : "true";
    else if (this.type === "boolean" && type === "number") this.text = this.text === "true" ? "1" : "0";
    this.type = type;
    this.problem = null;
    this.view.change();
  }

  #onKey(event) {
    event.stopPropagation();
    if (event.key === "Escape") {
      event.preventDefault();
      this.view.end();
    }
  }

  async #submit(event) {
    event.preventDefault();
    const { value, problem } = parseLeaf(this.text, this.type);
    if (problem) {
      this.problem = problem;
      this.view.change();
      this.focus();
      return;
    }
    const { keys, etag, priority } = this;
    const onConflict = () => this.#warn();
    const isWritten = await put(keys, withPriority(value, priority), { what: "changed", etag, noteWrite: this.view.noteWrite, onConflict });
    if (isWritten) this.view.end();
  }

  /** Say what someone else has made of the leaf meanwhile; the next Save replaces that, and nothing later. */
  async #warn() {
    try {
      const now = await readLeaf(this.keys);
      if (now?.etag !== this.etag) this.conflict = await describeConflict(this.keys, now);
      if (now !== null) Object.assign(this, { etag: now.etag, priority: now.priority });
    } catch (error) {
      this.conflict = error.message;
    }
    this.view.change();
  }
}

function isLongText(text) {
  return text.length > 60 || text.includes("\n");
}

/** Say what is at a place by now: `shown`, nothing if that is null, children if there is no `now`. */
async function describeConflict(keys, now) {
  if (now === null) return "By now it has children, which Save does not replace.";
  if (now.shown !== null) return `By now it is ${now.shown}. Save again to replace that.`;
  const above = await findLeafAbove(keys).catch(() => null); // the user may not read it
  return above === null ? "Deleted meanwhile: Save writes it again." : `Deleted meanwhile: Save writes it again, in place of ${above}.`;
}

/** Return the leaf that a write to a place below it would replace, as a message shows it; null if there is none. */
async function findLeafAbove(keys) {
  for (let depth = keys.length - 1; depth >= 0; depth -= 1) {
    const place = keys.slice(0, depth);
    const { type, value } = await describe(place, { limitToFirst: 1 });
    if (type === "object") return null;
    if (type !== "null") return `${formatPath(place)}, which is ${shorten(toJson(value))}`;
  }
  return null;
}

/**
 * Ask for a value and write it. The question stays open until that is done, so that what was typed is not lost.
 * @param {{etag: string}} found  what was read; what is read after another's write takes its place
 * @param {() => Promise<{etag: string, shown: string|null}|null>} readAgain
 */
async function askAndPut(keys, found, noteWrite, { title, fields, valueOf, readAgain }) {
  const submit = async (given) => {
    try {
      await replace(keys, valueOf(given), { what: "changed", etag: found.etag, noteWrite });
    } catch (error) {
      if (error.status !== 412) throw error;
      const now = await readAgain();
      Object.assign(found, now);
      throw new Error(await describeConflict(keys, now));
    }
  };
  await ask({ title, fields, confirm: "Save", submit });
}

/** Edit a leaf in a dialog; `leaf` is what was read of it. */
export async function editLeaf(keys, noteWrite, leaf) {
  if (!mayWrite()) return;
  const { type, text, etag, priority } = leaf;
  const found = { etag, priority };
  const control = isLongText(text) ? "textarea" : "text"; // Enter saves what is one line
  await askAndPut(keys, found, noteWrite, {
    title: formatPath(keys),
    fields: [
      { name: "text", label: "Value", type: control, value: text, check: (each, { type: chosen }) => parseLeaf(each, chosen).problem ?? null },
      { name: "type", label: "Type", type: "select", value: type, options: TYPES.map((each) => ({ value: each, label: TYPE_NAMES[each] })) },
    ],
    valueOf: (given) => withPriority(parseLeaf(given.text, given.type).value, found.priority),
    readAgain: () => readLeaf(keys),
  });
}

/** Read a leaf as it is edited: `{type, text, shown, priority, etag}`; null if it has children. */
export async function readLeaf(keys) {
  const { value: found, etag } = await read(keys, { format: "export" });
  const isMarked = isObject(found) && Object.hasOwn(found, ".value");
  const value = isMarked ? found[".value"] : found;
  if (isObject(value)) return null;
  const isPlain = typeof value === "string" && !/[\r\0]/.test(value); // a field would lose these
  const type = value === null || isPlain ? "string" : typeof value === "string" ? "json" : typeOf(value);
  const text = value === null ? "" : isPlain ? value : toJson(value);
  return { type, text, shown: shorten(toJson(value)), etag, priority: isMarked ? found[".priority"] : undefined };
}

/** Return JSON as a message shows it; null if it is nothing. */
function shorten(json) {
  if (json === "null") return null;
  return json.length > 60 ? `${json.slice(0, 60)}…` : json;
}

function isObject(value) {
  return value !== null && typeof value === "object" && !(value instanceof RawJson);
}

/** Return a leaf with the priority that it had: a PUT without one would remove it. */
export function withPriority(value, priority) {
  if (priority === undefined || value === null) return value;
  return new RawJson(`{".value":${toJson(value)},".priority":${toJson(priority)}}`);
}

/** Ask for a child to add to a place; return its key, or null. */
export async function addChild(keys, noteWrite) {
  if (!mayWrite()) return null;
  let added = null;
  const given = await ask({
    title: `Add a child to ${formatPath(keys)}`,
    fields: [
      { name: "key", label: "Key", hint: "Left empty: a new key that sorts after all earlier ones (POST).", check: (key) => (key ? problemOfKey(key) : null) },
      { name: "type", label: "Type", type: "select", value: "string", options: TYPES.filter((each) => each !== "null").map((each) => ({ value: each, label: TYPE_NAMES[each] })) },
      { name: "text", label: "Value", type: "textarea", check: (text, { type }) => parseLeaf(text, type).problem ?? null, hint: "Objects and lists are entered as JSON." },
    ],
    confirm: "Add",
    submit: async ({ key, text, type }) => {
      const { value } = parseLeaf(text, type);
      added = key || (await addPushed(keys, value, noteWrite));
      if (key) await create([...keys, key], value, `${formatPath([...keys, key])} added`, noteWrite);
    },
  });
  return given && added;
}

async function addPushed(keys, value, noteWrite) {
  const pushed = await write("POST", keys, value);
  const place = [...keys, pushed.value.name];
  const { etag } = await read(place);
  noteWrite(place);
  done(`${formatPath(place)} added`, () => write("DELETE", place, null, { etag, isSilent: true }), () => noteWrite(place));
  return pushed.value.name;
}

/** Ask whether a place is to be deleted, and delete it; return whether it was. */
export async function removeAt(keys, info, noteWrite) {
  if (!mayWrite()) return false;
  let found = info;
  try {
    if (info.type === "object") found = await describe(keys, { limitToFirst: 1 });
  } catch (error) {
    tellError("Not deleted", error);
    return false;
  }
  const bytes = found.bytes ?? 0;
  const isLarge = bytes > LARGE.bytes || (found.count ?? 0) > LARGE.count || found.least === true;
  const isWhole = keys.length === 0;
  const given = await ask({
    title: isWhole ? "Delete all data of this database?" : `Delete ${formatPath(keys)}?`,
    body: html`<p>${describeInfo(found)}</p>
      ${bytes > UNDO_BYTES || found.least ? html`<p><strong>It is too large to be put back by Undo.</strong> Export it first if you may want it again.</p>` : nothing}`,
    confirm: "Delete",
    isDanger: true,
    mustType: isWhole ? "/" : isLarge ? keys.at(-1) : null,
  });
  if (given === null) return false;
  return put(keys, null, { what: "deleted", bytes: found.least ? Infinity : bytes, noteWrite });
}

/** Ask for the priority of a place, and set it. */
export async function editPriority(keys, info, noteWrite) {
  if (!mayWrite()) return;
  const { priority } = info;
  const given = await ask({
    title: `Priority of ${formatPath(keys)}`,
    body: "Queries by $priority order the siblings by it. Left empty: none.",
    fields: [
      { name: "type", label: "Type", type: "select", value: typeof priority === "string" ? "string" : "number", options: [{ value: "number", label: "number" }, { value: "string", label: "text" }] },
      { name: "text", label: "Priority", value: priority === undefined ? "" : String(priority), check: (text, { type }) => (text ? (parseLeaf(text, type).problem ?? null) : null) },
    ],
    confirm: "Set",
  });
  if (given === null) return;
  const place = [...keys, ".priority"];
  const value = given.text ? parseLeaf(given.text, given.type).value : null;
  try {
    await write("PUT", place, value ?? new RawJson("null"));
    noteWrite(keys);
    const before = priority ?? new RawJson("null");
    done(`Priority of ${formatPath(keys)} set`, () => write("PUT", place, before), () => noteWrite(keys));
  } catch (error) {
    tellError("Priority not set", error);
  }
}

/** Read a value as it is edited: with priorities if it has any, else with its lists as lists. */
async function readToEdit(keys) {
  const exported = await read(keys, { format: "export" });
  return exported.text.includes('".priority"') ? exported : read(keys);
}

/** Edit a value as JSON text, with its priorities. */
export async function editJson(keys, noteWrite) {
  if (!mayWrite()) return;
  try {
    const found = await describe(keys, { limitToFirst: 1 });
    if ((found.bytes ?? 0) > EDITED_BYTES) {
      throw new Error(`It has ${formatBytes(found.bytes)}, more than can be edited as one text. Export it, and import it again.`);
    }
    const { text, etag } = await readToEdit(keys);
    await askAndPut(keys, { etag }, noteWrite, {
      title: `${formatPath(keys)} as JSON`,
      fields: [{ name: "text", label: "JSON", type: "textarea", value: indentJson(text), check: (each) => parseLeaf(each, "json").problem ?? null }],
      valueOf: (given) => new RawJson(given.text),
      readAgain: async () => {
        const now = await readToEdit(keys);
        return { etag: now.etag, shown: shorten(now.text) };
      },
    });
  } catch (error) {
    tellError("Not edited", error);
  }
}

function describeInfo({ type, value, length, count, bytes, least, counted }) {
  if (type === "null") return "Nothing is there";
  if (type !== "object") return html`<code>${formatLeaf(value).slice(0, SHOWN_VALUE)}${length ? "…" : ""}</code>`;
  return `${plural(count, "child", "children")}${least && !counted ? " or more" : ""}, ${formatBytes(bytes)}${least ? " or more" : ""}`;
}
