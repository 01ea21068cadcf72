/** Importing and exporting JSON, with progress. */

import { html } from "../vendor/lit.js";
import { DIALECT, describe, read, send, urlOf, write } from "../core/api.js";
import { ask, tell, tellError } from "../core/dialog.js";
import { RawJson, formatBytes, formatPath } from "../core/format.js";
import { session } from "../core/session.js";
import { UNDO_BYTES, done, mayWrite } from "../tree/changes.js";
import { piecesOf } from "./json.js";
import { showProgress } from "./progress.js";

/** Bytes of a file that is written by one request, if the server takes it. */
const ONE_WRITE_BYTES = 15_000_000;
/** Bytes of JSON in each write of a larger file. */
const PIECE_BYTES = 4_000_000;
const LARGEST_FILE = 500_000_000;

/** Save the value of a place as a file. */
export async function exportPlace(keys) {
  const given = await ask({
    title: `Export ${formatPath(keys)}`,
    body: "The value is saved as one JSON file.",
    fields: [{ name: "priorities", type: "checkbox", label: "With priorities (format=export)", value: false }],
    confirm: "Export",
  });
  if (given === null) return;
  const name = `${keys.at(-1) ?? session.caller?.database ?? "database"}.json`;
  const progress = showProgress(`Exporting ${formatPath(keys)}`);
  try {
    const { bytes } = await describe(keys, { limitToFirst: 1 }, { signal: progress.signal });
    const file = await openFile(name, bytes ?? 0);
    const response = await send("GET", urlOf(keys, given.priorities ? { format: "export" } : {}), { signal: progress.signal });
    let taken = 0;
    const counted = new TransformStream({
      transform(chunk, controller) {
        taken += chunk.length;
        progress.set(bytes ? taken / bytes : 0, formatBytes(taken));
        controller.enqueue(chunk);
      },
    });
    await file.take(response.body.pipeThrough(counted));
    tell(`${name} is saved: ${formatBytes(taken)}.`);
  } catch (error) {
    tellError("Not exported", error);
  } finally {
    progress.close();
  }
}

/** Return what takes the bytes of a file: the disk where the browser can, else memory first. */
async function openFile(name, bytes) {
  if (bytes > 50_000_000 && "showSaveFilePicker" in window) {
    const handle = await window.showSaveFilePicker({ suggestedName: name });
    const writable = await handle.createWritable();
    return { take: (body) => body.pipeTo(writable) };
  }
  return {
    async take(body) {
      const blob = await new Response(body).blob();
      const link = document.createElement("a");
      link.href = URL.createObjectURL(new Blob([blob], { type: "application/json" }));
      link.download = name;
      link.click();
      setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
    },
  };
}

/** Ask for a JSON file, and write it at a place. */
export async function importInto(keys, noteWrite) {
  if (!mayWrite()) return;
  let file = null;
  const given = await ask({
    title: `Import into ${formatPath(keys)}`,
    body: html`<div class="field"><label for="file">JSON file</label>
      <input id="file" type="file" accept=".json,application/json" @change=${(event) => { file = event.target.files[0] ?? null; }}>
      <p class="hint">More than ${formatBytes(ONE_WRITE_BYTES)} are written in several requests: others see the parts come.</p></div>`,
    fields: [
      {
        name: "way",
        label: "How",
        type: "select",
        value: "merge",
        options: [
          { value: "merge", label: "Add to what is here; children of the same name are replaced" },
          { value: "replace", label: "Replace all that is here" },
        ],
        check: () => (file === null ? "Choose a file." : file.size > LARGEST_FILE ? "It is too large for a browser: use treedb import." : null),
      },
    ],
    confirm: "Import",
    isDanger: false,
  });
  if (given === null) return;
  if (given.way === "replace" && !(await confirmReplacing(keys))) return;
  const progress = showProgress(`Importing ${file.name}`);
  try {
    const before = await readToUndo(keys, file.size);
    const text = await file.text();
    if (file.size <= ONE_WRITE_BYTES) await upload(given.way === "replace" ? "PUT" : "PATCH", keys, text, progress);
    else await uploadPieces(keys, text, given.way === "replace", progress);
    const etag = before && (await read(keys)).etag;
    const undo = before && (() => write("PUT", keys, new RawJson(before), { etag, isSilent: true }));
    done(`${file.name} is imported: ${formatBytes(file.size)}`, undo, () => noteWrite(keys));
  } catch (error) {
    if (error.name === "AbortError") tell("The import is cancelled. What was written until then stays.");
    else tellError("Not imported", error);
  } finally {
    progress.close();
    noteWrite(keys);
  }
}

/** Return the JSON of what an import changes, or null if that is too large to be put back. */
async function readToUndo(keys, size) {
  const { bytes = 0, least } = await describe(keys, { limitToFirst: 1 });
  return least || bytes + size > UNDO_BYTES ? null : (await read(keys, { format: "export" })).text;
}

async function confirmReplacing(keys) {
  const { type, bytes } = await describe(keys, { limitToFirst: 1 });
  if (type === "null") return true;
  return ask({
    title: `Replace ${formatPath(keys)}?`,
    body: `What is there now, ${formatBytes(bytes ?? 0)}, is removed.`,
    confirm: "Replace",
    isDanger: true,
    mustType: keys.at(-1) ?? "/",
  });
}

/** Send one write, by the only way in which a browser says how much has been sent. */
function upload(method, keys, text, progress, sent = 0, whole = text.length) {
  return new Promise((resolve, reject) => {
    const request = new XMLHttpRequest();
    request.open(method, urlOf(keys, { print: "silent" }));
    request.setRequestHeader("Authorization", `Bearer ${session.token}`);
    request.setRequestHeader("Content-Type", "application/json");
    for (const [name, value] of Object.entries(DIALECT)) request.setRequestHeader(name, value);
    request.upload.addEventListener("progress", (event) => progress.set((sent + event.loaded) / whole, formatBytes(sent + event.loaded)));
    request.addEventListener("load", () => (request.status < 300 ? resolve() : reject(new Error(messageOf(request)))));
    request.addEventListener("error", () => reject(new Error("The server does not answer.")));
    request.addEventListener("abort", () => reject(new DOMException("Cancelled", "AbortError")));
    progress.signal.addEventListener("abort", () => request.abort());
    request.send(text);
  });
}

function messageOf(request) {
  try {
    return JSON.parse(request.responseText).message;
  } catch {
    return `The server answers ${request.status}.`;
  }
}

/** Write a large file in pieces, each of several places. */
async function uploadPieces(keys, text, isReplacing, progress) {
  JSON.parse(text); // raises if it is not valid: before anything is written
  if (!/^\s*[{[]/.test(text)) throw new Error("A file of this size must hold an object.");
  if (isReplacing) await upload("DELETE", keys, undefined, progress, 0, text.length);
  let sent = 0;
  for (const { body, size } of piecesOf(text, PIECE_BYTES)) {
    await upload("PATCH", keys, body, progress, sent, text.length);
    sent += size;
  }
}
