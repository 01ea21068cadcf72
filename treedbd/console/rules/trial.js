/** A request that the playground tries: read from a route, and as the server takes it. */

import { authOf } from "../core/identity.js";
import { parsePath } from "../core/format.js";
import { session } from "../core/session.js";

export const WITH_VALUE = ["PUT", "PATCH", "POST"];

/** Return what is asked at first: as whom the data is seen, anonymous without such a caller. */
export function firstAsked() {
  return { uid: "", claims: "", method: "GET", path: "/", query: "", value: "", source: "draft", ...callerOf(session.viewAs?.auth ?? null) };
}

/** Return the request that the parameters of a route hold, or null. */
export function askedOf({ method, path, uid, auth, value, query }) {
  if (method === undefined && path === undefined) return null;
  const asked = { uid: "", claims: "", method: method ?? "GET", path: path ?? "/", query: query ?? "", value: value ?? "", source: "current" };
  if (auth !== undefined) return { ...asked, ...callerOf(parseOr(auth, null)) };
  return { ...asked, ...(uid ? { who: "uid", uid } : { who: "anonymous" }) };
}

/** Return the fields of a caller, in the simplest form that has the same `auth`. */
function callerOf(auth) {
  if (auth === null) return { who: "anonymous" };
  const { uid, ...claims } = auth.token ?? {};
  const isPlain = typeof auth.uid === "string" && isSame(authOf(auth.uid, claims), auth);
  if (isPlain) return { who: "uid", uid: auth.uid, claims: Object.keys(claims).length ? JSON.stringify(claims) : "" };
  return { who: "auth", claims: JSON.stringify(auth) };
}

function isSame(one, other) {
  const sorted = (value) => JSON.stringify(value, (_, each) => (each && typeof each === "object" && !Array.isArray(each) ? Object.fromEntries(Object.entries(each).sort()) : each));
  return sorted(one) === sorted(other);
}

function parseOr(text, otherwise) {
  try {
    return JSON.parse(text);
  } catch {
    return otherwise;
  }
}

/**
 * Return the body of a trial as JSON, with a draft if that is tried; raise an error with what is wrong.
 * @param {string|null} draft
 */
export function trialOf({ who, uid, claims, method, path, query, value }, draft) {
  const request = { auth: authFor(who, uid, claims), method, path: `/${parsePath(path).join("/")}` };
  if (draft !== null) request.rules = draft;
  if (method === "GET" && query.trim()) request.query = Object.fromEntries(new URLSearchParams(query.trim().replace(/^\?/, "")));
  const body = JSON.stringify(request);
  if (!WITH_VALUE.includes(method)) return body;
  if (!value.trim()) throw new Error("A value is missing: what the request sends, as JSON.");
  parse(value, "The value is");
  return `${body.slice(0, -1)},"value":${value}}`; // as it is typed: JavaScript would round numbers
}

function authFor(who, uid, claims) {
  if (who === "anonymous") return null;
  if (who === "admin") return "admin";
  const parsed = claims.trim() ? parse(claims, who === "uid" ? "The claims are" : "auth is") : {};
  if (parsed === null || typeof parsed !== "object" || Array.isArray(parsed)) throw new Error(who === "uid" ? "The claims must be a JSON object." : "auth must be a JSON object.");
  if (who === "auth") return parsed;
  if (!uid) throw new Error("A user has a uid.");
  return authOf(uid, parsed);
}

function parse(text, what) {
  try {
    return JSON.parse(text);
  } catch (error) {
    throw new Error(`${what} not valid JSON: ${error.message}`);
  }
}
