// What the listeners of queries hear of each write, in the interface of version 8. What they should
// hear comes from an app without a connection: the SDK applies the same writes to the same queries
// there, and a list is sorted and cut here by hand. The variables are those of modular.mjs.

import assert from "node:assert/strict";

import firebase from "firebase/compat/app";
import "firebase/compat/database";

import { Heard, call, place, report } from "./calls.mjs";
import { Author, QUERIES, ask, show } from "./offline.mjs";

const { increment } = firebase.database.ServerValue;
const KINDS = ["child_added", "child_changed", "child_moved", "child_removed", "value"];

const SEEDS = (process.env.PLAY_SEEDS ?? "1 2 3").split(" ").map(Number);

let apps = 0;
const connect = () =>
  firebase.initializeApp({ databaseURL: process.env.PLAY_URL }, `app${(apps += 1)}`).database();
const [ours, theirs] = [connect(), connect()];
const alone = connect();
alone.goOffline();

const numbers = (count) => Array.from({ length: count }, (_, i) => i);

// Returns a new place in our app, in the other one, and in the one without a connection.
function node() {
  const name = place();
  return [ours.ref(name), theirs.ref(name), alone.ref(name)];
}

function path(reference) {
  return decodeURIComponent(new URL(reference.toString()).pathname.slice(1));
}

function children(snapshot) {
  const found = [];
  snapshot.forEach((child) => void found.push([child.key, child.exportVal()]));
  return found;
}

// Listens to every kind of event, and collects them as text.
function listen(query, kinds = KINDS) {
  const heard = new Heard();
  for (const kind of kinds) {
    const show = (snapshot, before) => {
      const shown = kind === "value" ? children(snapshot) : snapshot.exportVal();
      heard.hear(JSON.stringify([kind, snapshot.key, before ?? null, shown]));
    };
    query.on(kind, show, (error) => heard.hear(`${error}`));
  }
  return heard;
}

// Listens to values, and collects what `show` makes of them.
function follow(query, show = (snapshot) => snapshot.val()) {
  const heard = new Heard();
  query.on("value", (snapshot) => heard.hear(show(snapshot)));
  return heard;
}

// Waits until all that was written has been told: the other app hears a write that came later.
async function settle(...writes) {
  await Promise.all(writes);
  const [own, remote] = node();
  const heard = follow(remote);
  await heard.last(null);
  await own.set("end");
  await heard.last("end");
}

const keys = (heard) => heard.all.map((line) => JSON.parse(line).slice(0, 2).join(" "));

for (const size of [1, 3]) {
  call(`limitToLast ${size}`, "each of 200 pushes is heard in order, and what leaves", async () => {
    const [own, remote] = node();
    const heard = listen(remote.limitToLast(size), ["child_added", "child_removed"]);
    const values = follow(remote.limitToLast(size), (snapshot) => Object.values(snapshot.val() ?? {}));
    await values.count(1);
    const pushed = numbers(200).map((i) => own.push(i));
    await settle(...pushed);
    const [expected, names] = [[], pushed.map((one) => one.key)];
    names.forEach((name, i) => {
      if (i >= size) expected.push(`child_removed ${names[i - size]}`);
      expected.push(`child_added ${name}`);
    });
    assert.deepEqual(keys(heard), expected);
    const shown = numbers(201).map((i) => numbers(i).slice(-size));
    assert.deepEqual(values.all, shown);
  });
}
call("limitToLast", "what several writers add is heard child by child", async () => {
  const [own, remote] = node();
  const [plain, ...writers] = numbers(5).map(() => connect().ref(path(own)));
  const heard = listen(remote.orderByValue().limitToLast(1_000), ["child_added"]);
  const sizes = [remote.orderByKey(), plain].map((query) => follow(query, (all) => all.numChildren()));
  await Promise.all(sizes.map((one) => one.count(1)));
  const each = (make) => writers.map((writer, w) => numbers(50).map((i) => make(writer, w, i)));
  await settle(...each((writer, w, i) => writer.child(`${w}-${i}`).set(w * 50 + i)).flat());
  for (const one of sizes) assert.deepEqual(one.all, numbers(201));
  const added = each((_, w, i) => `child_added ${w}-${i}`);
  assert.equal(heard.all.length, 200);
  for (const [w, all] of added.entries()) {
    assert.deepEqual(keys(heard).filter((line) => line.includes(` ${w}-`)), all);
  }
  [plain, ...writers].forEach((one) => one.database.goOffline());
});
call("limitToFirst", "who takes the first of a queue has each of 100 once, in order", async () => {
  const [own, remote] = node();
  const [taken, removed] = [new Heard(), []];
  remote.limitToFirst(1).on("child_added", (snapshot) => {
    removed.push(snapshot.ref.remove());
    taken.hear(snapshot.val());
  });
  const pushed = numbers(100).map((i) => own.push(i));
  await taken.count(100);
  await settle(...pushed, ...removed);
  assert.deepEqual(taken.all, numbers(100));
  assert.equal((await own.once("value")).exists(), false);
});

const BEFORE = { a: 1, b: 2, c: 3, d: 4, e: 5 };
const FIVE = { b: null, c: "new c", ca: 6, cb: 7, d: "new d" };
call("limitToFirst", "an update of five children at once is one value", async () => {
  const [own, remote] = node();
  await own.set(BEFORE);
  const window = remote.limitToFirst(4);
  const [values, events] = [follow(window), listen(window)];
  await values.count(1);
  await events.count(5);
  await own.update(FIVE);
  await settle();
  assert.deepEqual(values.all, [{ a: 1, b: 2, c: 3, d: 4 }, { a: 1, c: "new c", ca: 6, cb: 7 }]);
  const told = keys(events).slice(5, -1);
  assert.deepEqual(told, [
    "child_removed b", "child_removed d", "child_added ca", "child_added cb", "child_changed c",
  ]);
});
call("limitToFirst", "an update of five children by who listens, or while others begin", async () => {
  const [own, remote] = node();
  await own.set(BEFORE);
  const window = remote.limitToFirst(4);
  const values = follow(window);
  await values.count(1);
  await remote.update(FIVE);
  await settle();
  assert.deepEqual(values.all.at(-1), { a: 1, c: "new c", ca: 6, cb: 7 });
  const late = numbers(2).map(() => connect().ref(path(own)).limitToFirst(4));
  const heard = late.map((query) => follow(query));
  const written = own.update({ a: null, ca: 8, cc: 9 });
  await Promise.all(heard.map((one) => one.last({ c: "new c", ca: 8, cb: 7, cc: 9 })));
  await written;
  for (const one of heard) assert.ok(one.all.length <= 2, `${one.all.length} values for one write`);
});

// Eight accounts whose sum no write changes: each write moves money from one to another.
const ACCOUNTS = numbers(8).map((i) => `account${i}`);
for (const [where, money] of [["in", "/money"], ["as", ""]]) {
  call("increment update", `money moved ${where} children is in one account or the other`, async () => {
    const [own, remote] = node().map((one) => one.child("accounts"));
    // A listener of all in one app would make the SDK send none of its queries.
    const [plain, above, ...writers] = numbers(6).map(() => connect().ref(path(own)));
    const account = money ? { money: 100 } : 100;
    await own.set(Object.fromEntries(ACCOUNTS.map((name) => [name, account])));
    const ordered = money ? remote.orderByChild("money") : remote.orderByValue();
    const queries = [
      remote.orderByKey(), remote.limitToFirst(20), ordered.startAt(-1e9), ordered.limitToLast(8),
    ];
    const sum = (snapshot) =>
      Object.values(snapshot.val()).reduce((all, one) => all + (one.money ?? one), 0);
    const sums = [...queries, plain].map((query) => follow(query, sum));
    sums.push(follow(above.parent, (snapshot) => sum(snapshot.child("accounts"))));
    await Promise.all(sums.map((heard) => heard.count(1)));
    const moved = numbers(200).map((i) => {
      const [from, to] = [i % 8, (i + 1 + (i % 5)) % 8].map((number) => ACCOUNTS[number] + money);
      return writers[i % 4].update({ [from]: increment(-i - 1), [to]: increment(i + 1) });
    });
    await settle(...moved);
    for (const heard of sums) assert.deepEqual(heard.all, numbers(201).map(() => 800));
    [plain, above, ...writers].forEach((one) => one.database.goOffline());
  });
}
call("transaction", "each transaction is heard once, by queries and by who listens to all", async () => {
  const [own, remote] = node();
  const [plain, ...writers] = numbers(5).map(() => connect().ref(path(own)));
  await own.set({ a: 0, b: 0, c: 0 });
  const sum = (snapshot) => Object.values(snapshot.val()).reduce((all, one) => all + one, 0);
  const queries = [plain, remote.orderByKey(), remote.orderByValue().limitToLast(3)];
  const sums = queries.map((query) => follow(query, sum));
  const first = follow(remote.orderByKey().limitToFirst(1));
  await Promise.all(sums.map((heard) => heard.count(1)));
  // One after the other: the SDK sends transactions that wait for the same place as one write.
  const count = async (writer, w) => {
    for (const i of numbers(15)) {
      const { committed } = await writer.child("abc"[(w + i) % 3]).transaction((n) => (n ?? 0) + 1);
      assert.ok(committed);
    }
  };
  await settle(...writers.map(count));
  for (const heard of sums) assert.deepEqual(heard.all, numbers(61));
  assert.deepEqual(first.all, numbers(21).map((a) => ({ a })));
  [plain, ...writers].forEach((one) => one.database.goOffline());
});

call("equalTo update", "what two apps claim at once is shown by the one that has it", async () => {
  const [own] = node();
  const apps = ["ada", "alan"].map((name) => ({ name, place: connect().ref(path(own)) }));
  const claimed = ({ name, place }) => place.orderByChild("by").equalTo(name);
  const shown = apps.map((app) => follow(claimed(app), (snapshot) => snapshot.val() ?? {}));
  await Promise.all(shown.map((heard) => heard.count(1)));
  for (const round of numbers(10)) {
    const claim = (i) => apps.map(({ name, place }) => place.child(`${round}-${i}`).update({ by: name }));
    await Promise.all(numbers(30).flatMap(claim));
  }
  await settle();
  const stored = Object.entries((await own.get()).val());
  for (const [i, { name, place }] of apps.entries()) {
    await shown[i].last(Object.fromEntries(stored.filter(([, { by }]) => by === name)));
    place.database.goOffline();
  }
});
call("set", "a set at and above a query is one value: children, none, a leaf, children", async () => {
  const [own, remote] = node();
  await own.child("list").set(BEFORE);
  const values = follow(remote.child("list").limitToLast(2));
  await values.count(1);
  await own.child("list").set({ x: 1, y: 2, z: 3 });
  await own.set({ other: true, list: { p: { ".value": 1, ".priority": 9 }, q: 2 } });
  await own.set({ other: true });
  await own.child("list").set("a leaf");
  await own.child("list/r").set(7);
  const paths = { list: { s: 8, t: 9, u: 10 }, other: null };
  await own.parent.update(
    Object.fromEntries(Object.entries(paths).map(([name, value]) => [`${own.key}/${name}`, value])),
  );
  await own.remove();
  await settle();
  assert.deepEqual(values.all, [
    { d: 4, e: 5 }, { y: 2, z: 3 }, { q: 2, p: 1 }, null, { r: 7 }, { t: 9, u: 10 }, null,
  ]);
});
call("update", "an update of paths above is one value for each who listens below", async () => {
  const [own, remote] = node();
  await own.set({ a: { b: 1, c: { d: 2 } }, list: BEFORE, other: 1 });
  const list = remote.child("list");
  const shown = [
    remote.child("a"), remote.child("a/c"), list.limitToFirst(2), list.orderByValue().limitToLast(2),
    remote.child("other"),
  ];
  const heard = shown.map((query) => follow(query));
  await Promise.all(heard.map((one) => one.count(1)));
  await ours.ref().update({
    [`${path(own)}/a/b`]: 10,
    [`${path(own)}/a/c/d`]: 20,
    [`${path(own)}/a/c/e`]: 30,
    [`${path(own)}/list/a`]: null,
    [`${path(own)}/list/b`]: 9,
    [`${path(own)}/list/f`]: 8,
  });
  await settle();
  const last = [{ b: 10, c: { d: 20, e: 30 } }, { d: 20, e: 30 }, { b: 9, c: 3 }, { b: 9, f: 8 }];
  assert.deepEqual(heard.map((one) => one.all.length), [2, 2, 2, 2, 1]);
  assert.deepEqual(heard.slice(0, 4).map((one) => one.all.at(-1)), last);
});
call("set get once on", "what is asked right after ten sets has all ten", async () => {
  const [own, remote] = node();
  const ten = () => numbers(10).map((i) => remote.child(`${i}`).set(i));
  const expected = numbers(10);
  const write = [
    ["get", () => remote.get()],
    ["once", () => remote.once("value")],
    ["on", () => new Promise((resolve) => remote.on("value", resolve))],
    ["query", () => remote.limitToFirst(10).get()],
  ];
  for (const [name, ask] of write) {
    await own.remove();
    const written = ten();
    const found = await ask();
    assert.deepEqual(found.val(), expected, name);
    await Promise.all(written);
    assert.deepEqual((await own.get()).val(), expected, name);
    remote.off();
  }
});

// Lets our app write what a seed decides, and listens to each query in the other one and in the one
// without a connection. `each` is called after each write.
async function play(seed, count, each) {
  const [own, remote, silent] = node();
  const author = new Author(seed);
  const first = author.list();
  void silent.set({ list: first });
  await own.set({ list: first });
  let now;
  silent.child("list").on("value", (snapshot) => (now = snapshot));
  const plain = connect().ref(path(own));
  const heard = [{}, ...QUERIES].map((query, i) => {
    const [asked, alike] = [i ? remote : plain, silent].map((one) => ask(one.child("list"), query));
    return { query, asked, heard: listen(asked), expected: listen(alike), byHand: [] };
  });
  const look = () => heard.forEach(({ query, byHand }) => byHand.push(show(now, query).join(" ")));
  look();
  await same(heard);
  const written = [];
  for (const _ of numbers(count)) {
    const write = author.write((key) => now.hasChild(key));
    // Without a connection the SDK guesses what an increment makes, and not always right.
    const before = now;
    void write(silent, (key, number) => {
      const old = before.child(`${key}/m/x`).val();
      return (typeof old === "number" ? old : 0) + number;
    });
    written.push(write(own, (key, number) => increment(number)));
    look();
    await each(heard, written);
  }
  await settle(...written);
  heard.forEach(({ asked }) => asked.off());
  plain.database.goOffline();
  return heard;
}

// Compares the keys that were heard with those that are shown by hand; what shows the same keys as
// before may have been heard or not.
function sameByHand(pairs) {
  const changes = (all) => all.filter((keys, i) => keys !== all[i - 1]);
  for (const { query, heard, byHand } of pairs) {
    const values = heard.all.map((line) => JSON.parse(line)).filter(([kind]) => kind === "value");
    const shown = values.map(([, , , list]) => list.map(([key]) => key).join(" "));
    assert.deepEqual(changes(shown), changes(byHand), JSON.stringify(query));
  }
}

// Waits until as much was heard as is expected, but not for ever, and compares.
async function same(pairs) {
  let timer;
  const late = new Promise((resolve) => (timer = setTimeout(resolve, 10_000)));
  const all = Promise.all(pairs.map(({ heard, expected }) => heard.count(expected.all.length)));
  await Promise.race([all, late]);
  clearTimeout(timer);
  for (const { query, heard, expected } of pairs) {
    assert.deepEqual(heard.all, expected.all, JSON.stringify(query));
  }
}

for (const seed of SEEDS) {
  call("Query.on", `each query hears of each write what it would hear alone (${seed})`, async () => {
    const heard = await play(seed, 40, async (all, written) => {
      await written.at(-1);
      await same(all);
    });
    await same(heard);
    sameByHand(heard);
  });
  call("Query.on", `a query without a limit hears it also when nobody waits (${seed})`, async () => {
    const heard = await play(seed, 40, async () => undefined);
    await same(heard.filter(({ query }) => !query.limitToFirst && !query.limitToLast));
    for (const { query, heard: { all }, expected } of heard) {
      assert.equal(all.at(-1), expected.all.at(-1), JSON.stringify(query));
    }
  });
}

report([]);
