/** Renaming and cloning: a value is read with its priorities, and written at another place. */

import { describe, read, write } from "../core/api.js";
import { ask, tellError } from "../core/dialog.js";
import { RawJson, formatBytes, formatPath, parsePath, problemOfKey } from "../core/format.js";
import { UNDO_BYTES, done, mayWrite } from "../tree/changes.js";

/** Bytes of a value that goes through the browser at most. */
const MOVED_BYTES = 8_000_000;

/**
 * Ask for another key of a place, and rename it in one write: others never see both, or none.
 * Return the new key, or null.
 */
export async function renamePlace(keys, info, parentInfo, noteWrite) {
  if (!mayWrite()) return null;
  const above = keys.slice(0, -1);
  const key = keys.at(-1);
  const given = await ask({
    title: `Rename ${formatPath(keys)}`,
    fields: [{ name: "key", label: "New key", value: key, check: (text) => problemOfKey(text) ?? (text === key ? "It has this key already." : null) }],
    confirm: "Rename",
  });
  if (given === null) return null;
  try {
    checkSize(info, "treedb mv");
    await checkFree([...above, given.key]);
    const tag = (parentInfo?.bytes ?? Infinity) <= UNDO_BYTES ? (await read(above)).etag : undefined;
    const { text } = await read(keys, { format: "export" });
    const put = (members) => write("PATCH", above, new RawJson(members), { isSilent: true, etag: members === there ? tag : undefined });
    const there = `{${JSON.stringify(given.key)}:${text},${JSON.stringify(key)}:null}`;
    const back = `{${JSON.stringify(key)}:${text},${JSON.stringify(given.key)}:null}`;
    await put(there);
    noteWrite(above);
    done(`${formatPath(keys)} renamed to ${given.key}`, () => put(back), () => noteWrite(above));
    return given.key;
  } catch (error) {
    tellError("Not renamed", error);
    return null;
  }
}

/** Ask for another place, and write the value of a place there, too. */
export async function clonePlace(keys, info, noteWrite) {
  if (!mayWrite()) return;
  const given = await ask({
    title: `Clone ${formatPath(keys)}`,
    fields: [{ name: "path", label: "To", value: `${formatPath(keys)}-copy`, check: (text) => parsePath(text).map(problemOfKey).find(Boolean) ?? (parsePath(text).length ? null : "Name a place.") }],
    confirm: "Clone",
  });
  if (given === null) return;
  const target = parsePath(given.path);
  try {
    checkSize(info, "treedb cp");
    await checkFree(target);
    const { text } = await read(keys, { format: "export" });
    const { etag } = await write("PUT", target, new RawJson(text), { isSilent: true });
    noteWrite(target);
    done(`${formatPath(keys)} cloned to ${formatPath(target)}`, () => write("DELETE", target, null, { etag, isSilent: true }), () => noteWrite(target));
  } catch (error) {
    tellError("Not cloned", error);
  }
}

function checkSize({ bytes = 0, least }, command) {
  if (least || bytes > MOVED_BYTES) {
    throw new Error(`It is larger than ${formatBytes(MOVED_BYTES)}, the most that goes through a browser: use ${command}.`);
  }
}

async function checkFree(keys) {
  const { type } = await describe(keys, { limitToFirst: 1 });
  if (type !== "null") throw new Error(`${formatPath(keys)} exists already.`);
}
