// Calls what is built on the modular SDK: GeoFire, RxFire and VueFire. The variables are those of
// modular.mjs.

import assert from "node:assert/strict";

import { initializeApp } from "firebase/app";
import compat from "firebase/compat/app";
import "firebase/compat/database";
import { child, getDatabase, limitToLast, orderByValue, push, query, ref, remove, set, update } from "firebase/database";
import geofire from "geofire";
import * as rxfire from "rxfire/database";
import { effectScope, nextTick, watch } from "vue";
import { databaseDefaultSerializer, useDatabaseList, useDatabaseObject } from "vuefire";

import { Heard, call, place, report } from "./calls.mjs";

const connect = (name) => getDatabase(initializeApp({ databaseURL: process.env.PLAY_URL }, name));
const [ours, theirs] = [connect("ours"), connect()];
const node = () => {
  const name = place();
  return [ref(ours, name), ref(theirs, name)];
};

// GeoFire 5 takes the references of the compat SDK. GeoFire 6 holds a copy of an SDK of 2021, whose
// comparison of values never ends with those of a newer one, whichever the server.
const { GeoFire } = geofire;
const old = (name) => compat.initializeApp({ databaseURL: process.env.PLAY_URL }, name).database();
const [oldOurs, oldTheirs] = [old("old ours"), old("old theirs")];
const oldNode = () => {
  const name = place();
  return [oldOurs.ref(name), oldTheirs.ref(name)];
};

const LOCATIONS = { paris: [48.857, 2.352], lyon: [45.764, 4.836], oslo: [59.913, 10.752] };
call("GeoFire.set GeoFire.get GeoFire.remove GeoFire.ref", "places are set, got and removed", async () => {
  const [own, remote] = oldNode();
  const [here, there] = [new GeoFire(own), new GeoFire(remote)];
  await here.set(LOCATIONS);
  await here.set("nice", [43.7, 7.27]);
  assert.deepEqual(await there.get("oslo"), LOCATIONS.oslo);
  await here.remove("oslo");
  assert.equal(await there.get("oslo"), null);
  assert.ok(here.ref().isEqual(own));
});
call(
  "GeoFire.query GeoQuery.on GeoQuery.center GeoQuery.radius GeoQuery.updateCriteria GeoQuery.cancel",
  "a circle tells who comes, moves and goes",
  async () => {
    const [own, remote] = oldNode();
    const here = new GeoFire(own);
    await here.set(LOCATIONS);
    const circle = new GeoFire(remote).query({ center: [48.8, 2.3], radius: 50 });
    const heard = new Heard();
    const note = (kind) => (key) => heard.hear(`${kind} ${key ?? ""}`.trim());
    const kinds = ["ready", "key_entered", "key_exited", "key_moved"];
    for (const kind of kinds) circle.on(kind, note(kind));
    await heard.last("ready");
    await here.set("lyon", [48.85, 2.35]);
    await heard.last("key_entered lyon");
    await here.set("lyon", [48.86, 2.36]);
    await heard.last("key_moved lyon");
    await here.set("lyon", LOCATIONS.lyon);
    await heard.last("key_exited lyon");
    assert.deepEqual([circle.center(), circle.radius()], [[48.8, 2.3], 50]);
    circle.updateCriteria({ radius: 600 });
    await heard.until((all) => all.filter((line) => line === "key_entered lyon").length === 2);
    circle.cancel();
  },
);

// Collects what an observable sends.
function observe(observable, show) {
  const heard = new Heard();
  observable.subscribe({ next: (value) => heard.hear(show(value)), error: heard.hear });
  return heard;
}
const keysOf = (changes) => changes.map((change) => change.snapshot.key);

call("object objectVal fromRef ListenEvent", "an object is observed", async () => {
  const [own, remote] = node();
  const changes = observe(rxfire.object(remote), (change) => change.snapshot.val());
  const values = observe(rxfire.objectVal(remote, { keyField: "id" }), (value) => value);
  const raw = observe(rxfire.fromRef(remote, rxfire.ListenEvent.value), (change) => change.event);
  await set(own, { a: 1 });
  await changes.last({ a: 1 });
  await values.last({ a: 1, id: own.key });
  await raw.last("value");
});
call("list listVal stateChanges auditTrail changeToData ListenerMethods", "a list is observed", async () => {
  const [own, remote] = node();
  const list = observe(rxfire.list(query(remote, orderByValue(), limitToLast(2))), keysOf);
  const values = observe(rxfire.listVal(remote), (value) => value);
  const states = observe(rxfire.stateChanges(remote), (change) => `${change.event} ${change.snapshot.key}`);
  const trail = observe(rxfire.auditTrail(remote), (changes) => changes.length);
  await Promise.all([list.last([]), values.last([])]);
  await set(child(own, "a"), 1);
  await set(child(own, "b"), 3);
  await set(child(own, "c"), 2);
  await list.last(["c", "b"]);
  await remove(child(own, "b"));
  await list.last(["a", "c"]);
  await values.last([1, 2]);
  await states.last("child_removed b");
  await trail.until((all) => all.at(-1) >= 4);
  assert.equal(typeof rxfire.changeToData, "function");
  assert.ok(rxfire.ListenerMethods);
});

// Runs a composable of VueFire, and waits for its value.
async function compose(use, expected, act) {
  const scope = effectScope();
  const heard = new Heard();
  const bound = scope.run(use);
  scope.run(() => watch(bound, (value) => heard.hear(JSON.parse(JSON.stringify(value ?? null))), { deep: true, flush: "sync" }));
  await bound.promise.value;
  await act();
  await heard.last(expected);
  await nextTick();
  scope.stop();
}

call("useDatabaseObject", "a value is bound, and follows", async () => {
  const [own, remote] = node();
  await set(own, { name: "Ada", age: 36 });
  await compose(() => useDatabaseObject(remote), { name: "Ada", age: 37 }, () => update(own, { age: 37 }));
});
call("useDatabaseList databaseDefaultSerializer", "a list is bound, and follows", async () => {
  const [own, remote] = node();
  await push(own, { text: "tea" });
  const expected = [{ text: "tea" }, { text: "milk" }];
  await compose(() => useDatabaseList(remote), expected, () => push(own, { text: "milk" }));
  assert.equal(typeof databaseDefaultSerializer, "function");
});

report(Object.keys(rxfire));
