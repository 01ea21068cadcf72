// Calls the REST mode of `@firebase/database` with a daemon. It can only read, so fetch writes the
// data. It runs under the test runner of Node.js; environment variables describe the daemon.
//   PLAY_URL     the databaseURL
//   PLAY_NS      the project
//   PLAY_TOKEN   the token of an admin, or empty in development mode
//   PLAY_USER    the token of the user ada, or empty

import assert from "node:assert/strict";
import test, { after, before } from "node:test";
import { createRequire } from "node:module";

import { deleteApp, initializeApp } from "@firebase/app";
import { Component } from "@firebase/component";
import {
  _TEST_ACCESS_forceRestClient as forceRestClient,
  endAt,
  endBefore,
  equalTo,
  get,
  getDatabase,
  limitToFirst,
  limitToLast,
  onValue,
  orderByChild,
  orderByKey,
  orderByPriority,
  orderByValue,
  query,
  ref,
  startAfter,
  startAt,
} from "@firebase/database";

globalThis.XMLHttpRequest = createRequire(import.meta.url)("xmlhttprequest-ssl").XMLHttpRequest;
forceRestClient(true);

const { PLAY_URL, PLAY_NS, PLAY_TOKEN, PLAY_USER } = process.env;
const PEOPLE = {
  ada: { age: 36, name: { first: "Ada" }, ".priority": 3 },
  alan: { age: 41, name: { first: "Alan" }, ".priority": "b" },
  grace: { age: 85, name: { first: "Grace" } },
  kurt: { age: 71, name: { first: "Kurt" }, ".priority": 1 },
};
const VALUES = { a: "text", b: 3, c: -1.5, d: true, e: 20 };
const apps = [];

// Replaces the sign-in library of Firebase: it returns the token.
function openDatabase(token) {
  const app = initializeApp({ databaseURL: PLAY_URL }, `app${apps.length}`);
  apps.push(app);
  if (token) {
    const signIn = {
      getToken: async () => ({ accessToken: token }),
      addAuthTokenListener: () => {},
      removeAuthTokenListener: () => {},
      getUid: () => null,
    };
    app.container.addComponent(new Component("auth-internal", () => signIn, "PRIVATE"));
  }
  return getDatabase(app);
}

async function put(path, value) {
  const url = new URL(`${path}.json?ns=${PLAY_NS}`, PLAY_URL);
  const headers = { Authorization: `Bearer ${PLAY_TOKEN || "owner"}` };
  const answer = await fetch(url, { method: "PUT", body: JSON.stringify(value), headers });
  assert.equal(answer.status, 200, await answer.text());
}

function keysOf(snapshot) {
  const keys = [];
  snapshot.forEach((child) => void keys.push(child.key));
  return keys;
}

let database;

before(async () => {
  database = openDatabase(PLAY_TOKEN);
  await put("/people", PEOPLE);
  await put("/values", VALUES);
  await put("/list", ["x", { y: [true] }]);
  await put("/words", { "čaj ☕": "a \"quoted\"\\ line\n" });
  await put("/users", { ada: { secret: 1 } });
});

after(() => Promise.all(apps.map(deleteApp)));

test("a value is got, with priorities and arrays", async () => {
  const people = await get(ref(database, "people"));
  assert.deepEqual(people.exportVal(), PEOPLE);
  assert.deepEqual(keysOf(people), ["grace", "kurt", "ada", "alan"]);
  assert.equal(people.child("alan").priority, "b");
  assert.equal((await get(ref(database, "people/ada/age"))).val(), 36);
  assert.deepEqual((await get(ref(database, "list"))).val(), ["x", { y: [true] }]);
  assert.deepEqual((await get(ref(database, "words"))).val(), {
    "čaj ☕": "a \"quoted\"\\ line\n",
  });
});

test("nothing is null", async () => {
  const nothing = await get(ref(database, "no/where"));
  assert.equal(nothing.exists(), false);
  assert.equal(nothing.val(), null);
});

const AGE = orderByChild("age");
for (const [name, path, constraints, expected] of [
  ["by child", "people", [AGE], ["ada", "alan", "kurt", "grace"]],
  ["by deep child", "people", [orderByChild("name/first"), limitToLast(1)], ["kurt"]],
  ["first", "people", [AGE, limitToFirst(2)], ["ada", "alan"]],
  ["last", "people", [AGE, limitToLast(2)], ["kurt", "grace"]],
  ["from", "people", [AGE, startAt(41)], ["alan", "kurt", "grace"]],
  ["from a key on", "people", [AGE, startAt(41, "b")], ["kurt", "grace"]],
  ["after", "people", [AGE, startAfter(41)], ["kurt", "grace"]],
  ["to", "people", [AGE, endAt(41)], ["ada", "alan"]],
  ["before", "people", [AGE, endBefore(41)], ["ada"]],
  ["between", "people", [AGE, startAt(40), endAt(80)], ["alan", "kurt"]],
  ["equal", "people", [AGE, equalTo(41)], ["alan"]],
  ["equal text", "people", [orderByChild("name/first"), equalTo("Kurt")], ["kurt"]],
  ["equal to nothing", "people", [AGE, equalTo(5)], []],
  ["by key", "people", [orderByKey(), startAfter("ada"), limitToFirst(2)], ["alan", "grace"]],
  ["by priority", "people", [orderByPriority(), limitToFirst(2)], ["grace", "kurt"]],
  ["from a priority", "people", [orderByPriority(), startAt(2)], ["ada", "alan"]],
  ["by value", "values", [orderByValue()], ["d", "c", "b", "e", "a"]],
  ["by value from", "values", [orderByValue(), startAt(3), limitToFirst(2)], ["b", "e"]],
]) {
  test(`a query: ${name}`, async () => {
    const found = await get(query(ref(database, path), ...constraints));
    assert.deepEqual(keysOf(found), expected);
  });
}

test("a listener hears the value once", async () => {
  const snapshot = await new Promise((resolve, reject) => {
    onValue(query(ref(database, "people"), AGE, limitToLast(1)), resolve, reject);
  });
  assert.deepEqual(snapshot.exportVal(), { grace: PEOPLE.grace });
});

if (PLAY_USER) {
  test("a user reads what the rules grant, and no more", async () => {
    const users = openDatabase(PLAY_USER);
    assert.equal((await get(ref(users, "users/ada/secret"))).val(), 1);
    await assert.rejects(get(ref(users, "people")));
    const refusal = await new Promise((resolve, reject) => {
      onValue(ref(users, "people"), reject, resolve);
    });
    assert.match(refusal.message, /permission_denied/);
  });

  test("whoever has no token reads nothing", async () => {
    await assert.rejects(get(ref(openDatabase(), "users/ada")));
  });
}
