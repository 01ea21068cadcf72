/** How the log and the connections show who a caller is. */

import { html, nothing } from "../vendor/lit.js";

const OVERRIDE = "auth_variable_override=";
/** Who has sent a request is shown by itself; of tokens the server shows nothing. */
const NOT_SHOWN = [OVERRIDE, "auth=", "access_token="];

/** Return a query without its caller, and whether an admin has sent it as another caller. */
export function shownQuery(query) {
  const parts = (query ?? "").split("&");
  const shown = parts.filter((part) => !NOT_SHOWN.some((name) => part.startsWith(name)));
  return [shown.join("&"), parts.some((part) => part.startsWith(OVERRIDE))];
}

/** Return the cell of a table with who a caller is, and from where. */
export function renderCaller({ admin, uid, address, query }) {
  const isOverridden = shownQuery(query)[1];
  const who = admin ? "admin" : (uid ?? html`<span class="soft">${isOverridden ? "anonymous" : "without uid"}</span>`);
  return html`<td title=${isOverridden ? `An admin, viewing as this caller, from ${address}` : `From ${address ?? "an unknown address"}`}>${isOverridden ? html`<span class="soft">as </span>` : nothing}${who}</td>`;
}
