/** How the log and the connections show who a caller is. */

import { html, nothing } from "../vendor/lit.js";

const OVERRIDE = "auth_variable_override=";

/** Return a query without as whom an admin has sent it, which is in `uid`, and whether that was so. */
export function shownQuery(query) {
  const parts = (query ?? "").split("&");
  const shown = parts.filter((each) => !each.startsWith(OVERRIDE));
  return [shown.join("&"), shown.length < parts.length];
}

/** Return the cell of a table with who a caller is, and from where. */
export function renderCaller({ admin, uid, address, query }) {
  const isOverridden = shownQuery(query)[1];
  const who = admin ? "admin" : (uid ?? html`<span class="soft">${isOverridden ? "anonymous" : "without uid"}</span>`);
  return html`<td title=${isOverridden ? `An admin, viewing as this caller, from ${address}` : `From ${address ?? "an unknown address"}`}>${isOverridden ? html`<span class="soft">as </span>` : nothing}${who}</td>`;
}
