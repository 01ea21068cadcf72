/** What is done again and again while the page is on the screen. */

import { pause } from "./api.js";
import { session } from "./session.js";

/**
 * Call `run` now, and then again `every` milliseconds after its end, until `signal` is aborted.
 *
 * It is not called while the page is hidden or the server does not answer, and is called at once
 * when that is over. `every` may be a function, for a time that depends on the last outcome.
 */
export async function repeatWhileShown(every, run, signal) {
  while (!signal.aborted) {
    await whenUseful(signal);
    if (signal.aborted) return;
    await run();
    const wake = new AbortController();
    const onShown = () => document.hidden || wake.abort();
    document.addEventListener("visibilitychange", onShown);
    session.addEventListener("online", onShown);
    await pause(typeof every === "function" ? every() : every, AbortSignal.any([signal, wake.signal]));
    document.removeEventListener("visibilitychange", onShown);
    session.removeEventListener("online", onShown);
  }
}

/** Wait until the page is shown and the server answers, as far as is known. */
function whenUseful(signal) {
  const isUseful = () => signal.aborted || (!document.hidden && session.state !== "offline");
  if (isUseful()) return Promise.resolve();
  return new Promise((resolve) => {
    const done = new AbortController();
    const look = () => {
      if (!isUseful()) return;
      done.abort();
      resolve();
    };
    document.addEventListener("visibilitychange", look, { signal: done.signal });
    session.addEventListener("change", look, { signal: done.signal });
    signal.addEventListener("abort", look, { signal: done.signal });
  });
}
