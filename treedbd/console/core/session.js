/**
 * The session: which server and database the console shows, with whose token, and as whom.
 *
 * The token is kept in `sessionStorage`, so it ends with the tab, and is sent in `Authorization`
 * only. It is never part of a URL that the console makes.
 */

const STORED = "treedb.console";

class Session extends EventTarget {
  /** The URL that the paths of databases are relative to: the folder above `/.console/`. */
  base = new URL("../", document.baseURI);
  /** The token, or null. */
  token = null;
  /** The label of the database (`ns`); null if the server chooses it by host or default. */
  label = null;
  /** What the server says of the caller (`/.inspect/caller.json`), or null before sign-in. */
  caller = null;
  /** As whom data is read and written: undefined as the token says, else `{auth}`. */
  viewAs = undefined;
  /** Whether the user has switched editing off. */
  isReadOnlyHere = false;
  /** Whether the token came by a link, and was not replaced yet by one that is only here. */
  isByLink = false;
  /** `signed-out`, `online`, `offline` or `expired`. */
  state = "signed-out";

  constructor() {
    super();
    if (!this.#takeGiven()) this.#load();
    // `treedb console` may lead to a tab in which the console is open.
    addEventListener("hashchange", () => this.#takeGiven() && this.dispatchEvent(new Event("given")));
  }

  get isAdmin() {
    return this.caller?.admin === true;
  }

  /** Whether nothing may be written: by the token, or by the user's own switch. */
  get isReadOnly() {
    return this.isReadOnlyHere || this.caller?.read_only === true;
  }

  /** Whether the rules are evaluated for data as for someone who is not an admin. */
  get isJudged() {
    return this.viewAs !== undefined || !this.isAdmin;
  }

  /** Change fields, keep what is to be kept, and notify `change`. */
  set(fields) {
    Object.assign(this, fields);
    sessionStorage.setItem(
      STORED,
      JSON.stringify({ token: this.token, label: this.label, viewAs: this.viewAs, isReadOnlyHere: this.isReadOnlyHere }),
    );
    this.dispatchEvent(new Event("change"));
  }

  /** Forget the token and whatever was known. */
  signOut(state = "signed-out") {
    this.set({ token: null, caller: null, viewAs: undefined, state });
  }

  /** Take the token of the fragment, if it has one; it leaves the address bar and the history at once. */
  #takeGiven() {
    const given = new URLSearchParams(location.hash.slice(1));
    if (!given.has("token")) return false;
    history.replaceState(null, "", location.pathname + location.search);
    this.set({ token: given.get("token"), label: given.get("ns"), viewAs: undefined, caller: null, state: "signed-out" });
    this.isByLink = true;
    return true;
  }

  #load() {
    try {
      const { token, label, viewAs, isReadOnlyHere } = JSON.parse(sessionStorage.getItem(STORED)) ?? {};
      Object.assign(this, { token: token ?? null, label: label ?? null, viewAs, isReadOnlyHere: isReadOnlyHere === true });
    } catch {
      sessionStorage.removeItem(STORED);
    }
  }
}

export const session = new Session();
