// Calls everything in `firebase-admin/database`, the admin SDK for Node.js. The variables are those
// of modular.mjs.

import assert from "node:assert/strict";

import { initializeApp } from "firebase-admin/app";
import { ServerValue, enableLogging, getDatabase, getDatabaseWithUrl } from "firebase-admin/database";
import * as sdk from "firebase-admin/database";

import { Heard, call, place, report, sign, stored } from "./calls.mjs";

const { PLAY_URL } = process.env;

// As docs/clients.md has it: the SDK asks the credential for a token, which is one of treedb.
const credential = {
  getAccessToken: async () => ({ access_token: sign({ admin: true }), expires_in: 3600 }),
};
let apps = 0;
function connect(options) {
  const settings = { credential, databaseURL: PLAY_URL, ...options };
  return getDatabase(initializeApp(settings, `app${(apps += 1)}`));
}

const [ours, theirs] = [connect(), connect()];
const path = (own) => decodeURIComponent(new URL(own.toString()).pathname.slice(1));
const node = () => ours.ref(`admins/${place()}`);
const remote = (own) => theirs.ref(path(own));
const value = async (own) => (await remote(own).once("value")).val();

async function refusal(promise) {
  return promise.then(
    () => assert.fail("It was allowed."),
    (error) => error.message,
  );
}

call("getDatabase ref set once get", "an admin writes and reads where the rules deny", async () => {
  const own = node();
  await own.set({ a: [1, 2] });
  assert.deepEqual(await value(own), { a: [1, 2] });
  assert.deepEqual((await remote(own).get()).val(), { a: [1, 2] });
});
call("getDatabaseWithUrl refFromURL", "a database is named by its URL", async () => {
  const app = initializeApp({ credential }, "named by URL");
  const own = getDatabaseWithUrl(PLAY_URL, app).ref(`admins/${place()}`);
  await own.set(1);
  assert.equal((await theirs.refFromURL(own.toString()).once("value")).val(), 1);
});
call("update remove push setPriority setWithPriority child", "each kind of write is stored", async () => {
  const own = node();
  await own.update({ a: 1, "b/c": 2, d: 3 });
  await own.child("d").remove();
  await own.child("a").setPriority(5);
  await own.child("e").setWithPriority("x", "y");
  const { key } = await own.child("list").push(true);
  assert.deepEqual(await stored(path(own)), {
    a: { ".value": 1, ".priority": 5 },
    b: { c: 2 },
    e: { ".value": "x", ".priority": "y" },
    list: { [key]: true },
  });
});
call("ServerValue", "TIMESTAMP and increment are the server's", async () => {
  const own = node();
  await own.set({ at: ServerValue.TIMESTAMP, n: ServerValue.increment(3) });
  const found = await value(own);
  assert.equal(found.n, 3);
  assert.ok(Math.abs(found.at - Date.now()) < 60_000);
});
call("on off", "a listener hears each change until off", async () => {
  const own = node();
  const heard = new Heard();
  remote(own).on("value", (snapshot) => heard.hear(snapshot.val()));
  await own.set(1);
  await heard.last(1);
  remote(own).off();
  await own.set(2);
  assert.equal(await value(own), 2);
  assert.equal(heard.all.at(-1), 1);
});
call("transaction", "two apps count together", async () => {
  const own = node();
  const count = async (place) => {
    for (let i = 0; i < 20; i += 1) await place.transaction((n) => (n ?? 0) + 1);
  };
  await Promise.all([count(own), count(remote(own))]);
  assert.equal(await stored(path(own)), 40);
});
call("orderByChild orderByKey orderByValue limitToFirst limitToLast startAt endAt equalTo", "queries find the same", async () => {
  const own = node();
  await own.set({ ada: { age: 36 }, alan: { age: 41 }, grace: { age: 85 } });
  const keys = async (query) => Object.keys((await query.once("value")).val() ?? {});
  const there = remote(own);
  assert.deepEqual(await keys(there.orderByChild("age").startAt(40).limitToFirst(1)), ["alan"]);
  assert.deepEqual(await keys(there.orderByChild("age").equalTo(36)), ["ada"]);
  assert.deepEqual(await keys(there.orderByKey().endAt("alan").limitToLast(1)), ["alan"]);
  assert.deepEqual(await keys(there.orderByValue().limitToLast(1)), ["grace"]);
});
call("onDisconnect goOffline goOnline", "what is set runs when the app goes", async () => {
  const leaving = connect();
  const own = node();
  await leaving.ref(path(own)).onDisconnect().set({ gone: ServerValue.TIMESTAMP });
  const heard = new Heard();
  own.on("value", (snapshot) => heard.hear(snapshot.val()));
  leaving.goOffline();
  await heard.until((all) => all.at(-1)?.gone > 0);
  leaving.goOnline();
  await leaving.ref(path(own)).set("back");
  await heard.last("back");
});
call("databaseAuthVariableOverride", "the rules are applied as to that caller", async () => {
  const ada = connect({ databaseAuthVariableOverride: { uid: "ada" } });
  await ada.ref("users/ada/admin").set(1);
  assert.match(await refusal(ada.ref("users/alan").set(1)), /PERMISSION_DENIED/);
  assert.match(await refusal(ada.ref("users/alan").once("value")), /permission_denied/);
});
call("databaseAuthVariableOverride", "null makes an anonymous caller", async () => {
  const nobody = connect({ databaseAuthVariableOverride: null });
  await nobody.ref(place()).set(1);
  assert.match(await refusal(nobody.ref("users/ada").set(1)), /PERMISSION_DENIED/);
});
call("getRules getRulesJSON setRules", "rules are read, put, and refused with a reason", async () => {
  const text = await ours.getRules();
  const rules = await ours.getRulesJSON();
  assert.ok(rules.rules.work);
  await ours.setRules(text);
  await ours.setRules(rules);
  assert.match(await refusal(ours.setRules('{"rules": {".read": "nonsense("}}')), /\S/);
  await ours.setRules(text);
  assert.equal(await ours.getRules(), text);
});
call("enableLogging", "a logger is told what goes over the connection", async () => {
  const lines = new Heard();
  enableLogging((line) => lines.hear(line));
  await node().set("logged");
  enableLogging(false);
  assert.ok(lines.all.some((line) => line.includes("logged")));
});

report(Object.keys(sdk).filter((name) => !/^(default|[A-Z]\w+Database(Error)?)$/.test(name)));
