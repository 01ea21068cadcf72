/** Who the user of the console is, as whom data is seen, and what the user has chosen for the page. */

import { html } from "../vendor/lit.js";
import { admin, identify } from "./api.js";
import { ask, tell } from "./dialog.js";
import { session } from "./session.js";

const THEME = "treedb.console.theme";
/** A token is renewed after half of what is left of its life, but not more often than this. */
const LEAST_BEFORE_RENEWAL_MS = 1000;
/** When a renewal is tried again that the server has not answered. */
const BEFORE_NEXT_RENEWAL_MS = 15_000;

/** Sign in with a token; raise `ApiError` if the server does not accept it. */
export async function signIn(token, label = session.label) {
  const caller = await identify(token, label);
  session.set({ token, label: label || null, caller, state: "online", viewAs: session.token === token ? session.viewAs : undefined });
  if (session.isByLink) await replaceLink();
  else keepRenewing();
}

/** Replace the token of a link, which browsers keep in their history; say as whom the link signs in. */
async function replaceLink() {
  session.isByLink = false;
  tell(`Signed in as ${describeCaller()}, by the link that opened this page.`);
  if (session.caller.expires && session.isAdmin) await renew();
}

/** Sign in again with the token that the tab has kept, if it has one. */
export async function resumeSession() {
  if (session.token === null) return;
  session.set({ state: "online" }); // as far as is known
  await signIn(session.token);
}

let renewal = 0;

/** Renew an admin's token that expires while the page is open. */
function keepRenewing() {
  clearTimeout(renewal);
  const { expires, admin: isAdmin } = session.caller ?? {};
  if (!expires || !isAdmin) return;
  const left = new Date(expires).getTime() - Date.now();
  renewal = setTimeout(renew, Math.min(Math.max(left / 2, LEAST_BEFORE_RENEWAL_MS), 2 ** 31 - 1));
}

async function renew() {
  const { token } = session;
  try {
    const renewed = await admin("POST", ".settings/tokens", { body: { renew: true } });
    if (session.token !== token) return;
    session.set({ token: renewed.token, caller: { ...session.caller, expires: renewed.expires } });
    keepRenewing();
  } catch (error) {
    if (error.isOffline && session.token === token) renewal = setTimeout(renew, BEFORE_NEXT_RENEWAL_MS);
    // Else it was made to end when it ends: the page says so then.
  }
}

/** Return as whom data is seen, in words. */
export function describeViewer() {
  if (session.viewAs === undefined) return describeCaller();
  const { auth } = session.viewAs;
  if (auth === null) return "anonymous";
  return auth.uid ? `uid ${auth.uid}` : "these claims";
}

/** Return who has signed in, in words. */
export function describeCaller() {
  const { caller } = session;
  if (!caller) return "a caller without a token";
  if (caller.admin) return caller.read_only ? "admin, read-only" : "admin";
  return caller.uid ? `uid ${caller.uid}` : "a caller without uid";
}

/** Return the `auth` of the rules for a user with a uid and claims. */
export function authOf(uid, claims = {}) {
  return { uid, provider: "custom", token: { ...claims, uid } };
}

/** Ask as whom data is to be seen, and do so. */
export async function chooseViewer() {
  const auth = session.viewAs?.auth;
  const given = await ask({
    title: "View as",
    body: html`Everything that the data view then reads and writes is judged by the rules for this caller.`,
    fields: [
      {
        name: "who",
        label: "Caller",
        type: "select",
        value: auth === null ? "anonymous" : auth && !auth.uid ? "auth" : "uid",
        options: [
          { value: "uid", label: "A user, by uid" },
          { value: "anonymous", label: "Anonymous: without a token" },
          { value: "auth", label: "Any auth, as JSON" },
          { value: "self", label: "Yourself: admin, without rules" },
        ],
      },
      { name: "uid", label: "uid", value: auth?.uid ?? "", isShown: ({ who }) => who === "uid", check: (text) => (text ? null : "A user has a uid.") },
      {
        name: "claims",
        label: "Claims (JSON), or none",
        type: "textarea",
        value: auth?.uid ? JSON.stringify(auth.token ?? {}) : "",
        hint: 'As in {"role":"editor"}: rules see them as auth.token.role.',
        isShown: ({ who }) => who === "uid",
        check: problemOfObject,
      },
      {
        name: "auth",
        label: "auth (JSON)",
        type: "textarea",
        value: auth ? JSON.stringify(auth) : "",
        isShown: ({ who }) => who === "auth",
        check: problemOfObject,
      },
    ],
    confirm: "View",
  });
  if (given === null) return;
  const viewers = {
    self: () => undefined,
    anonymous: () => ({ auth: null }),
    uid: () => ({ auth: authOf(given.uid, objectOf(given.claims)) }),
    auth: () => ({ auth: objectOf(given.auth) }),
  };
  session.set({ viewAs: viewers[given.who]() });
}

function objectOf(text) {
  return text.trim() ? JSON.parse(text) : {};
}

function problemOfObject(text) {
  if (!text.trim()) return null;
  try {
    const found = JSON.parse(text);
    return found !== null && typeof found === "object" && !Array.isArray(found) ? null : "Must be a JSON object.";
  } catch (error) {
    return `Not valid JSON: ${error.message}`;
  }
}

/** Return the chosen theme: `light`, `dark` or `system`. */
export function theme() {
  const kept = localStorage.getItem(THEME);
  return kept === "light" || kept === "dark" ? kept : "system";
}

/** Show the page in the chosen theme; with `chosen` choose it. */
export function applyTheme(chosen = theme()) {
  if (chosen === "system") localStorage.removeItem(THEME);
  else localStorage.setItem(THEME, chosen);
  document.documentElement.dataset.theme = chosen;
}
