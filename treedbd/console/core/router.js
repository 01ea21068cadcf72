/**
 * Routes in the fragment of the URL: `#/data/users/ada`, `#/rules`, `#/now/requests?path=/users`.
 *
 * The first segment is a view, what follows is its place, and parameters are the view's own. Keys are
 * percent-encoded. A route never holds a token or the name of a database: that is of the session.
 */

export const VIEWS = ["data", "rules", "now"];

class Router extends EventTarget {
  constructor() {
    super();
    this.#parse();
    addEventListener("hashchange", () => {
      this.#parse();
      this.dispatchEvent(new Event("change"));
    });
  }

  /** Go to a route; with `replace` the one before is not kept in the history. */
  go(view, keys = [], parameters = {}, { replace = false } = {}) {
    const url = hrefOf(view, keys, parameters);
    if (url === location.hash) {
      this.dispatchEvent(new Event("change"));
    } else if (replace) {
      history.replaceState(history.state, "", url);
      this.#parse();
      this.dispatchEvent(new Event("change"));
    } else {
      location.hash = url;
    }
  }

  #parse() {
    const [path, query = ""] = location.hash.slice(1).split("?");
    const [view, ...keys] = path.split("/").filter(Boolean).map(decode);
    this.view = VIEWS.includes(view) ? view : "data";
    this.keys = keys;
    this.parameters = Object.fromEntries(new URLSearchParams(query));
  }
}

function decode(segment) {
  try {
    return decodeURIComponent(segment);
  } catch {
    return segment;
  }
}

/** Return the fragment of a route, for links. */
export function hrefOf(view, keys = [], parameters = {}) {
  const query = new URLSearchParams(
    Object.entries(parameters).filter(([, value]) => value !== undefined && value !== null && value !== ""),
  ).toString();
  const path = [view, ...keys].map(encodeURIComponent).join("/");
  return `#/${path}${query ? `?${query}` : ""}`;
}

export const router = new Router();
