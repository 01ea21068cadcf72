/**
 * What the user of the console changes, and how the last changes are undone, the latest first.
 *
 * A change reads first what it replaces, and writes only if that is still there; so it never takes
 * back what another has written in between, and neither does its undoing.
 */

import { describe, read, write } from "../core/api.js";
import { tell, tellError } from "../core/dialog.js";
import { RawJson, formatPath } from "../core/format.js";
import { session } from "../core/session.js";

/** Bytes of a value beyond which it is not kept to be put back. */
export const UNDO_BYTES = 1_000_000;

/** Changes that can be undone. */
const MOST_UNDONE = 20;
/** How each change is undone: `{label, undone, run, noteWrite, database}`, the latest at the end. */
const changes = [];
/** Closes the message of the last change: an older one offers no Undo that would undo another. */
let closeOffer = () => {};

/** Whether something may be written; says why if not. */
export function mayWrite() {
  if (!session.isReadOnly) return true;
  tell(session.caller?.read_only ? "Your token may only read." : "Read-only mode is on: switch it off in the settings (☰).");
  return false;
}

/**
 * Put a value at a place, or remove it with null; offer to undo it.
 * @param {string[]} keys
 * @param {unknown} value
 * @param {{what: string, etag?: string, bytes?: number, noteWrite: (keys: string[]) => void, onConflict?: () => void}} options
 *   as of `replace`; `onConflict` is called, instead of a message, if someone else has changed it since it had `etag`
 * @returns {Promise<boolean>} whether it was written
 */
export async function put(keys, value, { onConflict = null, ...options }) {
  if (!mayWrite()) return false;
  try {
    await replace(keys, value, options);
    return true;
  } catch (error) {
    if (error.status === 412 && onConflict) onConflict();
    else tellError(`${formatPath(keys)} is not ${options.what}`, error);
    return false;
  }
}

/**
 * Write a value in place of what is there, and offer to undo it; throws what went wrong.
 * @param {{what: string, etag?: string, bytes?: number, noteWrite: (keys: string[]) => void}} options
 *   `what` as in `/a/b changed`; `bytes` as far as known of what is replaced
 */
export async function replace(keys, value, { what, etag, bytes = 0, noteWrite }) {
  const before = bytes <= UNDO_BYTES ? await read(keys, { format: "export" }) : null;
  const method = value === null ? "DELETE" : "PUT";
  const after = await write(method, keys, value, { etag: etag ?? before?.etag, isSilent: true });
  noteWrite(keys);
  const undo = before && (() => write("PUT", keys, new RawJson(before.text), { etag: after.etag, isSilent: true }));
  const undone = what === "deleted" ? `${formatPath(keys)} restored` : undefined;
  done(`${formatPath(keys)} ${what}`, undo, () => noteWrite(keys), undone);
}

/**
 * Write a value where nothing is, and offer to undo it; throws if something is there.
 * @param {string} what  as in `/a/b added`
 */
export async function create(keys, value, what, noteWrite) {
  await checkFree(keys);
  const before = await read(keys);
  if (before.value !== null) throw new Error(`${formatPath(keys)} exists by now.`);
  const after = await write("PUT", keys, value, { etag: before.etag, isSilent: true });
  noteWrite(keys);
  done(what, () => write("DELETE", keys, null, { etag: after.etag, isSilent: true }), () => noteWrite(keys));
}

/** Check that nothing is at a place, without reading what is. */
export async function checkFree(keys) {
  const { type } = await describe(keys, { limitToFirst: 1 });
  if (type !== "null") throw new Error(`${formatPath(keys)} exists already.`);
}

/** Say that something is done, and keep how it is undone; `undo` is null if it cannot be. */
export function done(text, undo, noteWrite = () => {}, undone = `Undone: ${text}`) {
  if (undo === null) changes.length = 0; // Undo is not to mean an earlier change than the last
  else changes.push({ label: text, undone, run: undo, noteWrite, database: session.label });
  if (changes.length > MOST_UNDONE) changes.shift();
  closeOffer();
  closeOffer = tell(`${text}.`, { action: undo ? { label: "Undo (Ctrl Z)", run: undoLast } : null, seconds: undo ? 10 : 6 });
}

function lastChange() {
  return changes.findLast((each) => each.database === session.label);
}

/** Return the item of a menu that undoes the last change of this database. */
export function undoItem() {
  const last = lastChange();
  const label = last ? `Undo: ${last.label}` : "Nothing to undo";
  return { label, key: "Ctrl Z", isOff: !last || session.isReadOnly, run: undoLast };
}

/** Undo the last change, if it can be undone. */
export async function undoLast() {
  if (!mayWrite()) return;
  const last = lastChange();
  if (last === undefined) {
    tell("There is nothing to undo.", { seconds: 3 });
    return;
  }
  const { undone, run, noteWrite } = last;
  changes.splice(changes.indexOf(last), 1);
  closeOffer();
  try {
    await run();
    noteWrite();
    tell(`${undone}.`);
  } catch (error) {
    tellError("Not undone", error);
  }
}
