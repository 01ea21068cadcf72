/** What can be done at a place besides editing it: copying its name, and more. */

import { nothing } from "../vendor/lit.js";
import { urlOf } from "../core/api.js";
import { copy } from "../core/dialog.js";
import { formatPath } from "../core/format.js";

/** Return the tools of the bar above the tree. */
export function renderTools() {
  return nothing;
}

/** Return the items of a row's menu that select what is shown. */
export function filterItems() {
  return [];
}

/** Return the items of a row's menu that do something with the place. */
export function placeItems(view, { keys }) {
  return [
    null,
    { label: "Copy path", run: () => copy(formatPath(keys)) },
    { label: "Copy URL", run: () => copy(urlOf(keys).href) },
  ];
}
