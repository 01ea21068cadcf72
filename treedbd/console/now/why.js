/** The playground's route for a denied request of the log. */

import { hrefOf } from "../core/router.js";

/** What a request over a WebSocket, a stream or HEAD is for the rules. */
const SAME_AS = { HEAD: "GET", LISTEN: "GET", "ONDISCONNECT-PUT": "PUT", "ONDISCONNECT-PATCH": "PATCH" };
const METHODS = ["GET", "PUT", "PATCH", "POST", "DELETE"];
const QUERY = ["orderBy", "equalTo", "startAt", "startAfter", "endAt", "endBefore", "limitToFirst", "limitToLast", "where", "shallow"];
const INDEXES = { ".key": "$key", ".value": "$value", ".priority": "$priority" };

/** Return the route that tries a denied request again, or null if rules did not decide about it. */
export function whyHref({ kind, code, method: sent, path, query, uid, auth, body }) {
  const method = SAME_AS[sent] ?? sent;
  if (code !== "permission_denied" || path === undefined || path.startsWith("/.") || !METHODS.includes(method)) return null;
  return hrefOf("rules", ["playground"], {
    method,
    path,
    query: method === "GET" ? queryOf(kind, query) : "",
    auth: auth === undefined ? undefined : JSON.stringify(auth),
    uid: auth === undefined ? uid : undefined,
    value: body === undefined ? undefined : JSON.stringify(body),
  });
}

/** Return the parameters of a query that choose children, as a URL has them. */
function queryOf(kind, query) {
  if (!query) return "";
  const parameters = kind === "socket" ? parametersOfListen(query) : new URLSearchParams(query);
  return [...parameters].filter(([name]) => QUERY.includes(name)).map(([name, text]) => `${name}=${encode(text)}`).join("&");
}

function encode(text) {
  return text.replace(/[%&+#]/g, encodeURIComponent);
}

/** Return the query of an SDK (its members are in docs/interface.md) as parameters of a URL. */
function parametersOfListen(text) {
  let query;
  try {
    query = JSON.parse(text);
  } catch {
    return []; // it was too long to be shown whole
  }
  const { i: index, sp: start, sin: isStartIn, ep: end, ein: isEndIn, l: limit, vf: from } = query;
  const found = [];
  if (index !== undefined) found.push(["orderBy", JSON.stringify(INDEXES[index] ?? index)]);
  if (start !== undefined) found.push([isStartIn === false ? "startAfter" : "startAt", JSON.stringify(start)]);
  if (end !== undefined) found.push([isEndIn === false ? "endBefore" : "endAt", JSON.stringify(end)]);
  if (limit !== undefined) found.push([from === "r" ? "limitToLast" : "limitToFirst", String(limit)]);
  return found;
}
