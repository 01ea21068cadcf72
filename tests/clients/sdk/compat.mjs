// Calls everything in `firebase/compat/database`, the interface of version 8. The variables are
// those of modular.mjs.

import assert from "node:assert/strict";

import { Component } from "@firebase/component";
import firebase from "firebase/compat/app";
import "firebase/compat/database";

import { Heard, SignIn, call, place, report, sign, stored } from "./calls.mjs";

const { PLAY_URL, PLAY_EMULATOR } = process.env;
const { ServerValue } = firebase.database;

let apps = 0;
function connect(signIn) {
  const app = firebase.initializeApp({ databaseURL: PLAY_URL }, `app${(apps += 1)}`);
  if (signIn) {
    app.container.addComponent(new Component("auth-internal", () => signIn, "PRIVATE"));
  }
  return app.database();
}

const [ours, theirs] = [connect(), connect()];
const path = (own) => decodeURIComponent(new URL(own.toString()).pathname.slice(1));
const node = () => ours.ref(place());
const remote = (own) => theirs.ref(path(own));
const value = async (own) => (await remote(own).once("value")).val();

function keysOf(snapshot) {
  const keys = [];
  snapshot.forEach((item) => void keys.push(item.key));
  return keys;
}

async function refusal(promise) {
  return promise.then(
    () => assert.fail("It was allowed."),
    (error) => error.message,
  );
}

call("Database.ref Reference.set Query.once Query.get", "a value is written and read", async () => {
  const own = node();
  await own.set({ a: [1, 2], b: "čaj ☕" });
  assert.deepEqual(await value(own), { a: [1, 2], b: "čaj ☕" });
  assert.deepEqual((await remote(own).get()).val(), { a: [1, 2], b: "čaj ☕" });
});
call("Reference.update Reference.remove Reference.child", "children change, and go", async () => {
  const own = node();
  await own.set({ a: 1, b: 2 });
  await own.update({ "b/c": 3, d: 4 });
  await own.child("a").remove();
  assert.deepEqual(await value(own), { b: { c: 3 }, d: 4 });
});
call("Reference.push", "a key is made, and the reference is also a promise", async () => {
  const own = node();
  const pushed = own.push("x");
  await pushed;
  await own.push().set("y");
  assert.deepEqual(Object.values(await value(own)), ["x", "y"]);
  assert.equal(pushed.key.length, 20);
});
call("Reference.setPriority Reference.setWithPriority", "priorities order children", async () => {
  const own = node();
  await own.child("a").setWithPriority(1, 9);
  await own.child("b").set(2);
  assert.deepEqual(keysOf(await remote(own).once("value")), ["b", "a"]);
  await own.child("b").setPriority(10);
  assert.deepEqual(keysOf(await remote(own).once("value")), ["a", "b"]);
});
call("ServerValue", "TIMESTAMP and increment are the server's", async () => {
  const own = node();
  await own.set({ at: ServerValue.TIMESTAMP, n: ServerValue.increment(3) });
  const found = await value(own);
  assert.equal(found.n, 3);
  assert.ok(Math.abs(found.at - Date.now()) < 60_000);
});
call("Query.on Query.off", "each event is heard, and none after off", async () => {
  const own = node();
  const heard = new Heard();
  for (const kind of ["child_added", "child_changed", "child_moved", "child_removed"]) {
    remote(own).on(kind, (snapshot) => heard.hear(`${kind} ${snapshot.key}`));
  }
  await own.child("a").setWithPriority(1, 1);
  await own.child("b").setWithPriority(1, 2);
  await own.child("a").setWithPriority(1, 3);
  await own.child("b").set(null);
  const all = ["child_added a", "child_added b", "child_moved a", "child_changed a", "child_removed b"];
  await heard.count(all.length);
  assert.deepEqual(heard.all, all);
  remote(own).off();
  await own.child("c").set(1);
  assert.deepEqual(await value(own.child("c")), 1);
  assert.deepEqual(heard.all, all);
});

const AGES = { ada: { age: 36 }, alan: { age: 41 }, grace: { age: 85 }, kurt: { age: 71 } };
for (const [names, ask, expected] of [
  ["orderByChild limitToFirst", (q) => q.orderByChild("age").limitToFirst(2), ["ada", "alan"]],
  ["orderByChild limitToLast", (q) => q.orderByChild("age").limitToLast(2), ["kurt", "grace"]],
  ["startAt endAt", (q) => q.orderByChild("age").startAt(40).endAt(80), ["alan", "kurt"]],
  ["startAfter endBefore", (q) => q.orderByChild("age").startAfter(36).endBefore(85), ["alan", "kurt"]],
  ["equalTo", (q) => q.orderByChild("age").equalTo(41), ["alan"]],
  ["orderByKey", (q) => q.orderByKey().startAt("b"), ["grace", "kurt"]],
  ["orderByPriority", (q) => q.orderByPriority().limitToLast(1), ["kurt"]],
  ["orderByValue", (q) => q.orderByValue().limitToFirst(1), ["ada"]],
]) {
  const called = names.split(" ").map((name) => `Query.${name}`);
  call(called.join(" "), `a query finds ${expected.join(" ")}`, async () => {
    const own = node();
    await own.set(AGES);
    assert.deepEqual(keysOf(await ask(remote(own)).once("value")), expected);
    assert.deepEqual(keysOf(await ask(remote(own)).get()), expected);
  });
}
call("Query.isEqual Query.toString Query.toJSON Query.ref", "queries compare and print", async () => {
  const own = node();
  assert.ok(own.limitToFirst(1).isEqual(own.limitToFirst(1)));
  assert.equal(own.toJSON(), own.toString());
  assert.ok(own.limitToFirst(1).ref.isEqual(own));
});
call(
  "Reference.key Reference.parent Reference.root Reference.getKey Reference.getParent Reference.getRoot Database.refFromURL",
  "a place has a key, a parent, a root and a URL",
  async () => {
    const own = ours.refFromURL(`${ours.ref("work/a/b")}`);
    assert.equal(own.key, own.getKey());
    assert.ok(own.parent.isEqual(own.getParent()));
    assert.ok(own.root.isEqual(own.getRoot()));
    assert.equal(own.parent.key, "a");
  },
);
call("Reference.transaction", "it commits what it made of the newest value", async () => {
  const own = node();
  await own.set(5);
  const { committed, snapshot } = await remote(own).transaction((n) => (n ?? 0) + 1);
  assert.ok(committed);
  assert.equal(snapshot.val(), 6);
  await own.transaction((n) => (n ?? 0) + 1, undefined, false);
  assert.equal(await stored(path(own)), 7);
});
call(
  "Reference.onDisconnect OnDisconnect.set OnDisconnect.setWithPriority OnDisconnect.update OnDisconnect.remove OnDisconnect.cancel Database.goOffline Database.goOnline",
  "what is set runs at the end of the connection, except what is cancelled",
  async () => {
    const leaving = connect();
    const own = node();
    await own.set({ old: 1, kept: 1 });
    const at = (name) => leaving.ref(`${path(own)}/${name}`).onDisconnect();
    await at("state").set("gone");
    await at("ranked").setWithPriority(1, 2);
    await at("").update({ a: 1 });
    await at("old").remove();
    await at("kept").set(2);
    await at("kept").cancel();
    const heard = new Heard();
    own.on("value", (snapshot) => heard.hear(snapshot.exportVal()));
    leaving.goOffline();
    const ranked = { ".value": 1, ".priority": 2 };
    await heard.last({ state: "gone", ranked, a: 1, kept: 1 });
    leaving.goOnline();
    await leaving.ref(`${path(own)}/state`).set("back");
    await heard.last({ state: "back", ranked, a: 1, kept: 1 });
  },
);
call("DataSnapshot", "every method of a snapshot", async () => {
  const own = node();
  await own.setWithPriority({ a: { b: 1 }, c: 2 }, 4);
  const found = await remote(own).once("value");
  assert.equal(found.key, own.key);
  assert.equal(found.getPriority(), 4);
  assert.equal(found.numChildren(), 2);
  assert.ok(found.exists() && found.hasChildren() && found.hasChild("a/b"));
  assert.equal(found.child("a/b").val(), 1);
  assert.deepEqual(found.exportVal(), { a: { b: 1 }, c: 2, ".priority": 4 });
  assert.deepEqual(found.toJSON(), found.exportVal());
  assert.ok(found.ref.isEqual(remote(own)));
});
call("Reference.set Query.on Query.once Query.get", "what is denied says so", async () => {
  const closed = ours.ref("closed");
  assert.equal(await refusal(closed.set(1)), "PERMISSION_DENIED: Permission denied");
  const words = "permission_denied at /closed: Client doesn't have permission to access the desired data.";
  assert.equal(await refusal(closed.once("value")), words);
  assert.equal(await refusal(closed.get()), "Permission denied");
});
call("Database.ref", "a user has what the rules grant", async () => {
  const ada = connect(new SignIn(sign({ uid: "ada" })));
  await ada.ref("users/ada/compat").set(1);
  assert.match(await refusal(ada.ref("users/alan").set(1)), /PERMISSION_DENIED/);
});
call("Database.useEmulator", "a token of a user is taken there", async () => {
  if (!PLAY_EMULATOR) return;
  const database = connect();
  const [host, port] = PLAY_EMULATOR.split(":");
  database.useEmulator(host, Number(port), { mockUserToken: { user_id: "eva" } });
  await database.ref("users/eva/compat").set(1);
});
call("enableLogging", "a logger is told what goes over the connection", async () => {
  const lines = new Heard();
  firebase.database.enableLogging((line) => lines.hear(line));
  await node().set("logged");
  firebase.database.enableLogging(false);
  assert.ok(lines.all.some((line) => line.includes("logged")));
});

const METHODS = ["Reference", "Query", "Database"].flatMap((name) => {
  const names = Object.getOwnPropertyNames(firebase.database[name].prototype);
  return names.filter((method) => method !== "constructor").map((method) => `${name}.${method}`);
});
report([...METHODS, "ServerValue", "enableLogging", "DataSnapshot"]);
