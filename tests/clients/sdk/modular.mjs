// Calls everything in `firebase/database`, the modular SDK. Environment variables describe the
// daemon: PLAY_URL is the databaseURL, PLAY_NS the project, PLAY_SECRET its secret; PLAY_EMULATOR is
// the `host:port` of a daemon in emulator mode, or empty.

import assert from "node:assert/strict";

import { Component } from "@firebase/component";
import { initializeApp } from "firebase/app";
import * as sdk from "firebase/database";

import { Heard, SignIn, call, place, report, sign, stored } from "./calls.mjs";

const {
  child, endAt, endBefore, equalTo, get, getDatabase, goOffline, goOnline, increment, limitToFirst,
  limitToLast, off, onChildAdded, onChildChanged, onChildMoved, onChildRemoved, onDisconnect,
  onValue, orderByChild, orderByKey, orderByPriority, orderByValue, push, query, ref, refFromURL,
  remove, runTransaction, serverTimestamp, set, setPriority, setWithPriority, startAfter, startAt,
  update,
} = sdk;
const { PLAY_URL, PLAY_EMULATOR } = process.env;

let apps = 0;
const open = () => initializeApp({ databaseURL: PLAY_URL }, `app${(apps += 1)}`);

// Opens a connection of its own; `signIn` gives it tokens.
function connect(signIn) {
  const app = open();
  if (signIn) {
    app.container.addComponent(new Component("auth-internal", () => signIn, "PRIVATE"));
  }
  return getDatabase(app);
}

const [ours, theirs] = [connect(), connect()];
const node = () => ref(ours, place());
const remote = (own) => ref(theirs, path(own));
const path = (own) => decodeURIComponent(new URL(own.toString()).pathname.slice(1));

// Listens in the other client, and returns what is heard there.
function follow(own, listen = onValue, show = (snapshot) => snapshot.val()) {
  const heard = new Heard();
  heard.stop = listen(remote(own), (snapshot) => heard.hear(show(snapshot)), heard.hear);
  return heard;
}

async function refusal(promise) {
  return promise.then(
    () => assert.fail("It was allowed."),
    (error) => error.message,
  );
}

function keysOf(snapshot) {
  const keys = [];
  snapshot.forEach((item) => void keys.push(item.key));
  return keys;
}

const VALUES = [true, false, 0, -1.5, 1e21, 2 ** 53 - 1, "", "čaj ☕ 😀", { a: { b: [1, 2] } }];

call("set get", "what is set is got by another client, and stored", async () => {
  for (const value of VALUES) {
    const own = node();
    await set(own, value);
    assert.deepEqual((await get(remote(own))).val(), value);
    assert.deepEqual((await get(own)).val(), value);
  }
});
call("set get", "a megabyte of text in pieces comes back unchanged", async () => {
  const own = node();
  const text = "čaj ☕ 😀".repeat(60_000);
  await set(own, text);
  assert.equal((await get(remote(own))).val(), text);
  assert.equal(await stored(path(own)), text);
});
call("set", "null removes, and nothing is null", async () => {
  const own = node();
  await set(own, { a: 1 });
  await set(child(own, "a"), null);
  const found = await get(remote(own));
  assert.equal(found.exists(), false);
  assert.equal(found.val(), null);
});
call("remove", "a node is gone for the other client", async () => {
  const own = node();
  await set(own, { a: 1, b: 2 });
  const heard = follow(own);
  await remove(child(own, "a"));
  await heard.last({ b: 2 });
});
call("update", "children and paths change together, the others stay", async () => {
  const own = node();
  await set(own, { a: 1, b: { c: 2, d: 3 } });
  const heard = follow(own);
  await heard.count(1);
  await update(own, { a: null, "b/c": 4, e: 5 });
  await heard.last({ b: { c: 4, d: 3 }, e: 5 });
  assert.equal(heard.all.length, 2);
});
call("push", "keys come in order, with and without a value", async () => {
  const own = node();
  const made = [];
  for (const value of ["x", "y", "z"]) {
    const pushed = push(own, value);
    made.push(pushed.key);
    await pushed;
  }
  await set(push(own), "last");
  const found = await get(remote(own));
  assert.deepEqual(Object.values(found.val()), ["x", "y", "z", "last"]);
  assert.deepEqual(keysOf(found).slice(0, 3), made);
});
call("setPriority setWithPriority", "priorities are stored and order children", async () => {
  const own = node();
  await setWithPriority(child(own, "a"), 1, "text");
  await setWithPriority(child(own, "b"), { x: 1 }, 7);
  await set(child(own, "c"), 3);
  const heard = follow(own, onValue, keysOf);
  await heard.last(["c", "b", "a"]);
  await setPriority(child(own, "a"), 2);
  await heard.last(["c", "a", "b"]);
  const expected = { ".value": 1, ".priority": 2 };
  assert.deepEqual((await stored(path(own))).a, expected);
  assert.deepEqual((await get(remote(child(own, "a")))).exportVal(), expected);
  await setPriority(child(own, "a"), null);
  await heard.last(["a", "c", "b"]);
});
call("serverTimestamp increment", "the server's values are resolved, and the guess corrected", async () => {
  const own = node();
  const seen = new Heard();
  onValue(own, (snapshot) => seen.hear(snapshot.val()));
  await set(own, { at: serverTimestamp(), n: increment(2) });
  await update(own, { n: increment(0.5) });
  const found = (await get(remote(own))).val();
  assert.equal(found.n, 2.5);
  assert.ok(Math.abs(found.at - Date.now()) < 60_000);
  await seen.last(found);
  assert.deepEqual(await stored(path(own)), found);
});
call("onValue", "a listener hears each state, and nothing after its end", async () => {
  const own = node();
  const heard = follow(own);
  await heard.last(null);
  await set(own, 1);
  await heard.last(1);
  heard.stop();
  const second = follow(own);
  await set(own, 2);
  await second.last(2);
  assert.deepEqual(heard.all, [null, 1]);
});
call("onValue", "onlyOnce hears one value, of a listener and of a query", async () => {
  const own = node();
  await set(own, { a: 1, b: 2 });
  for (const place of [remote(own), query(remote(own), limitToLast(1))]) {
    const heard = new Heard();
    onValue(place, (snapshot) => heard.hear(snapshot.size), { onlyOnce: true });
    await heard.count(1);
  }
  await set(own, { c: 3 });
  assert.deepEqual((await get(remote(own))).val(), { c: 3 });
});
call("onChildAdded onChildChanged onChildMoved onChildRemoved", "each change of a child is told", async () => {
  const own = node();
  await setWithPriority(child(own, "a"), 1, 1);
  await setWithPriority(child(own, "b"), 2, 2);
  const heard = new Heard();
  const kinds = { onChildAdded, onChildChanged, onChildMoved, onChildRemoved };
  for (const [kind, listen] of Object.entries(kinds)) {
    listen(remote(own), (snapshot, before) => heard.hear([kind, snapshot.key, before ?? null]));
  }
  await heard.count(2);
  await set(child(own, "c"), 3);
  await setWithPriority(child(own, "a"), 1, 3);
  await setWithPriority(child(own, "b"), 5, 2);
  await remove(child(own, "c"));
  const expected = [
    ["onChildAdded", "a", null], ["onChildAdded", "b", "a"], ["onChildAdded", "c", null],
    ["onChildMoved", "a", "b"], ["onChildChanged", "a", "b"], ["onChildChanged", "b", "c"],
    ["onChildRemoved", "c", null],
  ];
  await heard.count(expected.length);
  assert.deepEqual(heard.all, expected);
});
call("onChildAdded onChildRemoved", "a window lets a child in for each that leaves", async () => {
  const own = node();
  await set(own, { a: 1, b: 2, c: 3 });
  const heard = new Heard();
  const window = query(remote(own), orderByValue(), limitToLast(2));
  onChildAdded(window, (snapshot) => heard.hear(["in", snapshot.key]));
  onChildRemoved(window, (snapshot) => heard.hear(["out", snapshot.key]));
  await heard.count(2);
  await remove(child(own, "c"));
  await heard.count(4);
  await set(child(own, "d"), 9);
  await heard.count(6);
  const shown = heard.all.map(([way, key]) => `${way} ${key}`);
  assert.deepEqual(shown.slice(0, 2).sort(), ["in b", "in c"]);
  assert.deepEqual(shown.slice(2, 4).sort(), ["in a", "out c"]);
  assert.deepEqual(shown.slice(4).sort(), ["in d", "out a"]);
});
call("off", "all listeners of a place end, or one of them", async () => {
  const own = node();
  const [first, second] = [new Heard(), new Heard()];
  const hearFirst = (snapshot) => first.hear(snapshot.val());
  onValue(remote(own), hearFirst);
  onValue(remote(own), (snapshot) => second.hear(snapshot.val()));
  await Promise.all([first.last(null), second.last(null)]);
  off(remote(own), "value", hearFirst);
  await set(own, 1);
  await second.last(1);
  off(remote(own));
  await set(own, 2);
  assert.equal((await get(remote(own))).val(), 2);
  assert.deepEqual([first.all, second.all], [[null], [null, 1]]);
});

const PEOPLE = {
  ada: { age: 36, name: { first: "Ada" }, ".priority": 3 },
  alan: { age: 41, name: { first: "Alan" }, ".priority": "b" },
  grace: { age: 85, name: { first: "Grace" } },
  kurt: { age: 71, name: { first: "Kurt" }, ".priority": 1 },
};
const MIXED = { a: "text", b: 3, c: -1.5, d: true, e: 20 };
const AGE = orderByChild("age");
for (const [names, value, constraints, expected] of [
  ["orderByChild", PEOPLE, [AGE], ["ada", "alan", "kurt", "grace"]],
  ["orderByChild limitToLast", PEOPLE, [orderByChild("name/first"), limitToLast(1)], ["kurt"]],
  ["limitToFirst", PEOPLE, [AGE, limitToFirst(2)], ["ada", "alan"]],
  ["limitToLast", PEOPLE, [AGE, limitToLast(2)], ["kurt", "grace"]],
  ["startAt", PEOPLE, [AGE, startAt(41)], ["alan", "kurt", "grace"]],
  ["startAt", PEOPLE, [AGE, startAt(41, "b")], ["kurt", "grace"]],
  ["startAfter", PEOPLE, [AGE, startAfter(41)], ["kurt", "grace"]],
  ["startAfter", PEOPLE, [AGE, startAfter(41, "a")], ["alan", "kurt", "grace"]],
  ["endAt", PEOPLE, [AGE, endAt(41)], ["ada", "alan"]],
  ["endAt", PEOPLE, [AGE, endAt(41, "a")], ["ada"]],
  ["endBefore", PEOPLE, [AGE, endBefore(41)], ["ada"]],
  ["endBefore", PEOPLE, [AGE, endBefore(41, "b")], ["ada", "alan"]],
  ["startAt endAt", PEOPLE, [AGE, startAt(40), endAt(80)], ["alan", "kurt"]],
  ["equalTo", PEOPLE, [AGE, equalTo(41)], ["alan"]],
  ["equalTo", PEOPLE, [orderByChild("name/first"), equalTo("Kurt")], ["kurt"]],
  ["equalTo", PEOPLE, [AGE, equalTo(5)], []],
  ["orderByKey", PEOPLE, [orderByKey(), startAfter("ada"), limitToFirst(2)], ["alan", "grace"]],
  ["orderByKey", PEOPLE, [orderByKey(), startAt("b"), endBefore("kurt")], ["grace"]],
  ["orderByPriority", PEOPLE, [orderByPriority(), limitToFirst(2)], ["grace", "kurt"]],
  ["orderByPriority", PEOPLE, [orderByPriority(), startAt(2)], ["ada", "alan"]],
  ["orderByValue", MIXED, [orderByValue()], ["d", "c", "b", "e", "a"]],
  ["orderByValue", MIXED, [orderByValue(), startAt(3), limitToFirst(2)], ["b", "e"]],
]) {
  const shown = constraints.map((one) => `${one._type ?? one.type}`).join(", ");
  call(`query ${names}`, `${shown}: ${expected.join(" ") || "nothing"}`, async () => {
    const own = node();
    await set(own, value);
    const asked = query(remote(own), ...constraints);
    assert.deepEqual(keysOf(await get(asked)), expected);
    const heard = new Heard();
    onValue(asked, (snapshot) => heard.hear(keysOf(snapshot)));
    await heard.last(expected);
    await set(child(own, "zoe"), { age: 41, name: { first: "Zoe" } });
    await remove(child(own, "zoe"));
    await heard.last(expected);
  });
}
call("query", "isEqual, toString and toJSON of a reference and a query", async () => {
  const own = node();
  const asked = () => query(own, orderByKey(), limitToFirst(1));
  assert.ok(asked().isEqual(asked()));
  assert.ok(!asked().isEqual(own));
  assert.equal(own.toJSON(), own.toString());
  assert.ok(asked().ref.isEqual(own));
});
call("ref refFromURL child", "places have a key, a parent, a root and a URL", async () => {
  const own = ref(ours, "work/a b/ü");
  assert.equal(own.key, "ü");
  assert.equal(own.parent.key, "a b");
  assert.equal(own.root.key, null);
  assert.ok(child(ref(ours), "work/a b/ü").isEqual(own));
  await set(own, 1);
  assert.equal((await get(refFromURL(ours, own.toString()))).val(), 1);
});
call("DataSnapshot", "every method of a snapshot", async () => {
  const own = node();
  await set(own, { a: { b: 1 }, c: { ".value": 2, ".priority": 5 } });
  const found = await get(remote(own));
  assert.equal(found.key, own.key);
  assert.equal(found.size, 2);
  assert.equal(found.priority, null);
  assert.ok(found.exists() && found.hasChildren() && found.hasChild("a/b") && !found.hasChild("x"));
  assert.equal(found.child("a/b").val(), 1);
  assert.equal(found.child("c").priority, 5);
  assert.deepEqual(found.toJSON(), found.exportVal());
  assert.ok(found.ref.isEqual(remote(own)));
  assert.equal(found.forEach(() => true), true);
});
call("runTransaction TransactionResult", "a transaction commits what it made of the newest value", async () => {
  const own = node();
  await set(own, 5);
  const { committed, snapshot } = await runTransaction(remote(own), (value) => (value ?? 0) + 1);
  assert.ok(committed);
  assert.equal(snapshot.val(), 6);
  assert.equal(await stored(path(own)), 6);
});
call("runTransaction", "undefined commits nothing", async () => {
  const own = node();
  await set(own, 5);
  // Without a listener the client does not know the value, and the snapshot would be null.
  const heard = new Heard();
  onValue(own, (snapshot) => heard.hear(snapshot.val()));
  await heard.last(5);
  const result = await runTransaction(own, () => undefined);
  assert.equal(result.committed, false);
  assert.equal(result.snapshot.val(), 5);
  assert.equal(typeof result.toJSON(), "object");
});
call("runTransaction", "applyLocally false tells no state that was not committed", async () => {
  const own = node();
  await set(own, 1);
  const heard = new Heard();
  onValue(own, (snapshot) => heard.hear(snapshot.val()));
  await heard.last(1);
  await runTransaction(remote(own), (value) => value + 1, { applyLocally: false });
  await runTransaction(own, (value) => (value ?? 0) + 1, { applyLocally: false });
  await heard.last(3);
  assert.deepEqual(heard.all, [1, 2, 3]);
});
call("runTransaction", "values with priorities, fractions and unusual keys are the same to both", async () => {
  const own = node();
  const value = { "é": { ".value": 0.1, ".priority": "p" }, 10: 1, 9: -0, "x y": { z: false } };
  await set(own, { ".priority": 3, ...value });
  const { committed } = await runTransaction(remote(own), (old) => ({ ...old, more: 1e300 }));
  assert.ok(committed);
  const second = await runTransaction(own, (old) => ({ ...old, last: "x" }));
  assert.equal(second.snapshot.child("more").val(), 1e300);
});
call("runTransaction", "eight clients count to 800, and each of them shows what is stored", async () => {
  const name = place();
  const clients = Array.from({ length: 8 }, () => connect());
  const counters = clients.map((client) => ref(client, name));
  const shown = counters.map((counter) => {
    const heard = new Heard();
    onValue(counter, (snapshot) => heard.hear(snapshot.val()));
    return heard;
  });
  const count = async (counter) => {
    for (let i = 0; i < 100; i += 1) {
      for (;;) {
        const tried = runTransaction(counter, (n) => (n ?? 0) + 1);
        const result = await tried.catch((error) => assert.match(error.message, /maxretry/));
        if (result?.committed) break;
      }
    }
  };
  await Promise.all(counters.map(count));
  assert.equal(await stored(name), 800);
  await Promise.all(shown.map((heard) => heard.last(800)));
  clients.forEach(goOffline);
});

call("onDisconnect OnDisconnect goOffline", "set, setWithPriority, update and remove run at the end", async () => {
  const leaving = connect();
  const own = node();
  await set(own, { state: "here", old: 1, kept: 1 });
  const at = (name) => onDisconnect(ref(leaving, `${path(own)}/${name}`));
  await at("state").set("gone");
  await at("at").set(serverTimestamp());
  await at("ranked").setWithPriority("x", 4);
  await at("").update({ a: 1, "b/c": 2 });
  await at("old").remove();
  const heard = follow(own);
  await heard.count(1);
  goOffline(leaving);
  await heard.until((all) => all.at(-1).state === "gone" && all.at(-1).b);
  const { at: when, ...rest } = await stored(path(own));
  assert.ok(Math.abs(when - Date.now()) < 60_000);
  const ranked = { ".value": "x", ".priority": 4 };
  assert.deepEqual(rest, { state: "gone", kept: 1, ranked, a: 1, b: { c: 2 } });
});
call("OnDisconnect goOnline", "cancel leaves the place alone, the next connection too", async () => {
  const leaving = connect();
  const own = node();
  await set(own, { a: 1, b: 1 });
  await onDisconnect(ref(leaving, `${path(own)}/a`)).set("cancelled");
  await onDisconnect(ref(leaving, `${path(own)}/b`)).set("gone");
  await onDisconnect(ref(leaving, `${path(own)}/a`)).cancel();
  const heard = follow(own);
  goOffline(leaving);
  await heard.last({ a: 1, b: "gone" });
  goOnline(leaving);
  await set(ref(leaving, `${path(own)}/b`), "back");
  await heard.last({ a: 1, b: "back" });
});
call("goOffline goOnline", "what is written without a connection arrives with the next", async () => {
  const leaving = connect();
  const own = node();
  const mine = ref(leaving, path(own));
  await set(mine, 1);
  goOffline(leaving);
  const later = set(mine, 2);
  await set(own, "between");
  goOnline(leaving);
  await later;
  assert.equal((await get(own)).val(), 2);
});
call("onValue", ".info/connected and .info/serverTimeOffset say how things are", async () => {
  const leaving = connect();
  const [connected, offset] = [new Heard(), new Heard()];
  onValue(ref(leaving, ".info/connected"), (snapshot) => connected.hear(snapshot.val()));
  onValue(ref(leaving, ".info/serverTimeOffset"), (snapshot) => offset.hear(snapshot.val()));
  await connected.last(true);
  await offset.until((all) => Math.abs(all.at(-1)) < 10_000);
  goOffline(leaving);
  await connected.last(false);
  goOnline(leaving);
  await connected.last(true);
});
call("enableLogging", "a logger is told what goes over the connection", async () => {
  const lines = new Heard();
  sdk.enableLogging((line) => lines.hear(line));
  await set(node(), "logged");
  sdk.enableLogging(false);
  assert.ok(lines.all.some((line) => line.includes("logged")));
});

const denied = (words) => `PERMISSION_DENIED: Permission denied${words ?? ""}`;
call("set update remove onValue get runTransaction", "what is denied says so, in the words of the SDK", async () => {
  const closed = ref(ours, "closed/a");
  for (const write of [set(closed, 1), update(closed, { b: 1 }), remove(closed), push(closed, 1)]) {
    assert.equal(await refusal(write), denied());
  }
  assert.equal(await refusal(get(closed)), "Permission denied");
  const words = "permission_denied at /closed/a: Client doesn't have permission to access the desired data.";
  const heard = new Heard();
  onValue(closed, heard.hear, (error) => heard.hear(error.message));
  await heard.last(words);
  assert.match(await refusal(runTransaction(closed, () => 1)), /permission/i);
  assert.equal(await refusal(onDisconnect(closed).set(1)), denied());
});
call("set", "a write that the rules refuse is taken back in its own client", async () => {
  const own = ref(ours, "work/number");
  await set(own, 1);
  const heard = new Heard();
  onValue(own, (snapshot) => heard.hear(snapshot.val()));
  await heard.last(1);
  assert.equal(await refusal(set(own, "text")), denied());
  assert.deepEqual(heard.all, [1, "text", 1]);
});
call("getDatabase", "a user reads and writes what the rules grant, an admin everything", async () => {
  const ada = connect(new SignIn(sign({ uid: "ada" })));
  await set(ref(ada, "users/ada/name"), "Ada");
  assert.equal((await get(ref(ada, "users/ada/name"))).val(), "Ada");
  assert.equal(await refusal(set(ref(ada, "users/alan"), 1)), denied());
  const admin = connect(new SignIn(sign({ admin: true })));
  assert.equal((await get(ref(admin, "users/ada/name"))).val(), "Ada");
});
call("getDatabase", "a change of user ends the listeners that it may not have, and allows others", async () => {
  const signIn = new SignIn(sign({ uid: "ada" }));
  const database = connect(signIn);
  const heard = new Heard();
  await set(ref(database, "users/ada/x"), 1);
  onValue(ref(database, "users/ada/x"), (snapshot) => heard.hear(snapshot.val()), () => heard.hear("end"));
  await heard.last(1);
  signIn.use(sign({ uid: "alan" }));
  await heard.last("end");
  await set(ref(database, "users/alan/x"), 2);
  signIn.use(null);
  assert.equal(await refusal(set(ref(database, "users/alan/x"), 3)), denied());
});
call("getDatabase", "a token that expires is replaced, and listeners and writes go on", async () => {
  const expiring = Math.floor(Date.now() / 1000) - 8;
  const signIn = new SignIn(sign({ uid: "ada", iat: expiring - 60, exp: expiring }));
  const database = connect(signIn);
  const own = ref(database, "users/ada/expiring");
  const heard = new Heard();
  await set(own, 1);
  onValue(own, (snapshot) => heard.hear(snapshot.val()), () => heard.hear("end"));
  const connected = new Heard();
  onValue(ref(database, ".info/connected"), (snapshot) => connected.hear(snapshot.val()));
  signIn.next = sign({ uid: "ada" });
  await connected.until((all) => all.includes(false) && all.at(-1));
  await set(own, 2);
  await heard.last(2);
  assert.ok(signIn.asked.includes(true));
  assert.ok(!heard.all.includes("end"));
});
call("connectDatabaseEmulator", "mockUserToken takes a token of treedb", async () => {
  if (!PLAY_EMULATOR) return;
  const [host, port] = PLAY_EMULATOR.split(":");
  const database = getDatabase(open());
  sdk.connectDatabaseEmulator(database, host, Number(port), { mockUserToken: sign({ uid: "eva" }) });
  await set(ref(database, "users/eva/x"), 1);
  assert.equal(await refusal(set(ref(database, "users/ada/x"), 1)), denied());
});
call("connectDatabaseEmulator", "mockUserToken takes claims, in emulator mode", async () => {
  if (!PLAY_EMULATOR) return;
  const [host, port] = PLAY_EMULATOR.split(":");
  const database = getDatabase(open());
  sdk.connectDatabaseEmulator(database, host, Number(port), { mockUserToken: { sub: "eve" } });
  await set(ref(database, "users/eve/x"), 1);
  assert.equal(await refusal(set(ref(database, "users/ada/x"), 1)), denied());
});
call("forceWebSockets forceLongPolling", "only a browser polls; the other is how Node.js connects", async () => {
  assert.equal(typeof sdk.forceLongPolling, "function");
  sdk.forceWebSockets();
  await set(ref(connect(), place()), 1);
});
call("Database QueryConstraint", "the classes that the module exports", async () => {
  assert.ok(ours instanceof sdk.Database);
  assert.ok(limitToFirst(1) instanceof sdk.QueryConstraint);
  assert.equal(ours.app.options.databaseURL, PLAY_URL);
});

report(Object.keys(sdk).filter((name) => !name.startsWith("_")));
