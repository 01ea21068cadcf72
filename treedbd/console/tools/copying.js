/** A place as text to paste elsewhere: path, URL, and lines of curl, JavaScript and Python. */

import { urlOf } from "../core/api.js";
import { copy } from "../core/dialog.js";
import { formatPath } from "../core/format.js";

/** Return the items of a menu that copy a place, or what a query selects of it. No line has a token in it. */
export function copyItems(keys, query = null) {
  const { href } = urlOf(keys, query ?? {}, { isData: false });
  return [
    { label: "Copy path", run: () => copy(formatPath(keys), "The path is copied.") },
    { label: "Copy URL", run: () => copy(href, "The URL is copied.") },
    { label: "Copy as curl", run: () => copy(asCurl(href), `The line of curl is copied: ${asCurl(href)}`) },
    { label: "Copy as JavaScript", run: () => copy(asJavaScript(href), "The JavaScript is copied.") },
    { label: "Copy as Python", run: () => copy(asPython(href), "The Python is copied.") },
  ];
}

/** Return a line for a shell that reads a URL; the token is in a variable. */
export function asCurl(href) {
  return `curl -g -H "Authorization: Bearer $TREEDB_TOKEN" '${href.replaceAll("'", "'\\''")}'`;
}

/** Return JavaScript that reads a URL with the token `token`. */
export function asJavaScript(href) {
  return [
    `const response = await fetch(${JSON.stringify(href)}, {`,
    "  headers: { Authorization: `Bearer ${token}` },",
    "});",
    "const value = await response.json();",
  ].join("\n");
}

/** Return Python that reads a URL with the token `token`. */
export function asPython(href) {
  return [
    "import requests",
    "",
    "response = requests.get(",
    `    ${JSON.stringify(href)},`,
    '    headers={"Authorization": f"Bearer {token}"},',
    ")",
    "value = response.json()",
  ].join("\n");
}
