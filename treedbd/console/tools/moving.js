/** Renaming and cloning: a value is read with its priorities, and written at another place. */

import { read, write } from "../core/api.js";
import { ask } from "../core/dialog.js";
import { RawJson, formatBytes, formatPath, parsePath, problemOfKey } from "../core/format.js";
import { UNDO_BYTES, checkFree, create, done, mayWrite } from "../tree/changes.js";

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
    submit: async ({ key: other }) => {
      checkSize(info, "treedb mv");
      await checkFree([...above, other]);
      const tag = (parentInfo?.bytes ?? Infinity) <= UNDO_BYTES ? (await read(above)).etag : undefined;
      const { text } = await read(keys, { format: "export" });
      const put = (members, etag) => write("PATCH", above, new RawJson(members), { isSilent: true, etag });
      await put(`{${JSON.stringify(other)}:${text},${JSON.stringify(key)}:null}`, tag);
      noteWrite(above);
      const back = `{${JSON.stringify(key)}:${text},${JSON.stringify(other)}:null}`;
      done(`${formatPath(keys)} renamed to ${other}`, () => put(back), () => noteWrite(above));
    },
  });
  return given && given.key;
}

/** Ask for another place, and write the value of a place there, too. */
export async function clonePlace(keys, info, noteWrite) {
  if (!mayWrite()) return;
  await ask({
    title: `Clone ${formatPath(keys)}`,
    fields: [{ name: "path", label: "To", value: `${formatPath(keys)}-copy`, check: (text) => parsePath(text).map(problemOfKey).find(Boolean) ?? (parsePath(text).length ? null : "Name a place.") }],
    confirm: "Clone",
    submit: async ({ path }) => {
      const target = parsePath(path);
      checkSize(info, "treedb cp");
      const { text } = await read(keys, { format: "export" });
      await create(target, new RawJson(text), `${formatPath(keys)} cloned to ${formatPath(target)}`, noteWrite);
    },
  });
}

function checkSize({ bytes = 0, least }, command) {
  if (least || bytes > MOVED_BYTES) {
    throw new Error(`It is larger than ${formatBytes(MOVED_BYTES)}, the most that goes through a browser: use ${command}.`);
  }
}
