// The pure modules of the console's tree, run by `node --test`; CONSOLE is the folder of its files.

import assert from "node:assert/strict";
import { test } from "node:test";

const folder = process.env.CONSOLE;
const { OpenNode, PAGE, compare, findMark, markOf, nodeAt, numberOf, rowAt, rowCount, touchedChildren } = await import(`${folder}/tree/model.js`);
const { MAX_CHILDREN, MAX_PLACES, Profile } = await import(`${folder}/now/operations.js`);
const { indentJson, membersOf, piecesOf } = await import(`${folder}/tools/json.js`);

const BEYOND = "9007199254740993";

function childrenOf(first, count, prefix = "k") {
  return Array.from({ length: count }, (_, at) => ({ key: `${prefix}${first + at}`, type: "object", count: 2 }));
}

function nodeOf(count) {
  const node = new OpenNode(["top"]);
  node.info = { key: "top", type: "object", count };
  node.count = count;
  for (let page = 0; page * PAGE < Math.min(count, 200); page += 1) {
    node.keep(page, childrenOf(page * PAGE, Math.min(PAGE, count - page * PAGE)));
  }
  return node;
}

function openAt(node, position, count) {
  const child = node.openAt(position, node.childAt(position));
  child.count = count;
  child.keep(0, childrenOf(0, Math.min(PAGE, count), `${child.key}.`));
  return child;
}

test("rows are numbered through open nodes, and back", () => {
  const root = nodeOf(1_000_000);
  const low = openAt(root, 3, 2);
  openAt(root, 120, 60);
  const inner = openAt(low, 1, 1);
  assert.equal(rowCount(root), 1 + 1_000_000 + 2 + 60 + 1);
  const shown = [4, 5, 6, 7, 8].map((number) => rowAt(root, number).keys?.join("/"));
  assert.deepEqual(shown, ["top/k3", "top/k3/k3.0", "top/k3/k3.1", "top/k3/k3.1/k3.1.0", "top/k4"]);
  for (const number of [1, 4, 5, 7, 8, 100, 124, 130, 184, 185, 900_000, 1_000_063]) {
    const { parent, position } = rowAt(root, number);
    assert.equal(numberOf(root, parent, position), number);
  }
  assert.equal(rowAt(root, 900_000).info, null);
  assert.equal(nodeAt(root, ["top", "k3", "k3.1"]), inner);
  assert.equal(nodeAt(root, ["top", "k4"]), null);
});

test("a node that is not read yet, cannot be, or is empty has a row that says so", () => {
  const root = new OpenNode([]);
  assert.equal(rowCount(root), 2);
  assert.ok(rowAt(root, 1).isNote);
  root.count = 0;
  root.info = { key: "", type: "string", value: "leaf" };
  assert.equal(rowCount(root), 1);
  root.error = new Error("denied");
  assert.equal(rowCount(root), 2);
});

test("an open node follows its key, and closes when it is gone", () => {
  const root = nodeOf(100);
  const child = openAt(root, 10, 5);
  root.keep(0, [{ key: "a", type: "object" }, ...childrenOf(0, 49)]);
  assert.equal(child.position, 11);
  root.keep(0, childrenOf(0, 50).map((each) => (each.key === "k10" ? { key: "k10", type: "string" } : each)));
  assert.deepEqual(root.open, []);
  const other = openAt(root, 10, 5);
  root.keep(0, childrenOf(0, 51).filter((each) => each.key !== other.key));
  assert.deepEqual(root.open, []);
  assert.ok(!other.isOpen);
});

test("an open node knows its own size better than the page of its parent", () => {
  const root = nodeOf(100);
  const child = openAt(root, 10, 5);
  child.info = { key: "k10", type: "object", count: 90_000 };
  root.keep(0, childrenOf(0, 50).map((each) => ({ ...each, count: 100, least: true, priority: 4 })));
  assert.deepEqual([child.info.count, child.info.least, child.info.priority], [90_000, undefined, 4]);
});

test("a mark finds its row after others came and went", () => {
  const root = nodeOf(100);
  const mark = markOf(rowAt(root, 21), 21);
  assert.equal(mark.key, "k20");
  openAt(root, 3, 7);
  assert.equal(findMark(root, mark), 28);
  root.keep(0, childrenOf(15, 50));
  assert.equal(findMark(root, mark), 6);
  root.keep(0, childrenOf(30, 50));
  assert.equal(findMark(root, mark), null);
  assert.equal(markOf(rowAt(root, 99_999), 99_999), null);
});

test("only the pages shown lately are kept", () => {
  const root = nodeOf(10_000);
  for (let page = 0; page < 100; page += 1) root.keep(page, childrenOf(page * PAGE, PAGE));
  assert.equal(root.pages.size, 40);
  assert.equal(root.childAt(0), null);
  assert.equal(root.childAt(99 * PAGE).key, `k${99 * PAGE}`);
});

test("what differs flashes, and what only slid into the page does not", () => {
  const before = childrenOf(0, 5).map((each) => ({ ...each }));
  const after = [{ key: "k1", type: "object", count: 3 }, { key: "k1x", type: "number", value: 1 }, ...childrenOf(2, 5)];
  const gone = compare(before, after, new Set(["k0"]), false);
  assert.deepEqual(gone.map((each) => each.key), ["k0"]);
  assert.deepEqual(after.map((each) => each.flash), ["changed", "added", undefined, undefined, undefined, undefined, undefined]);
  const bound = [{ key: "k", type: "object", count: 100, least: true }];
  const grown = [{ key: "k", type: "object", count: 200, least: true }];
  compare(bound, grown, new Set(), true);
  assert.equal(grown[0].flash, undefined);
  assert.deepEqual(compare(undefined, after, new Set(), true), []);
});

test("a query of the last children has its row for earlier ones above them", () => {
  const root = nodeOf(10);
  root.query = { limitToLast: "10" };
  root.hasMore = true;
  const child = openAt(root, 2, 1);
  assert.equal(rowCount(root), 1 + 1 + 10 + 1);
  assert.ok(rowAt(root, 1).isNote);
  assert.deepEqual([2, 4, 5, 6, 12].map((number) => rowAt(root, number).keys.at(-1)), ["k0", "k2", "k2.0", "k3", "k9"]);
  assert.equal(numberOf(root, child, 0), 5);
  assert.equal(numberOf(root, root, 9), 12);
  root.query = { limitToFirst: "10" };
  assert.ok(rowAt(root, 12).isNote);
  assert.equal(rowAt(root, 1).keys.at(-1), "k0");
});

test("an event touches the children that it reaches", () => {
  const touched = (keys, event) => touchedChildren(keys, ["r"], event);
  assert.deepEqual(touched(["r", "a"], { path: "/a/b/c" }), new Set(["b"]));
  assert.equal(touched(["r", "a"], { path: "/" }), null);
  assert.equal(touched(["r", "a"], { path: "/a" }), null);
  assert.equal(touched(["r", "a"], { path: "/other" }), undefined);
  assert.equal(touched(["r", "a"], { path: "/ab" }), undefined);
  assert.deepEqual(touched(["r"], { path: "/", keys: ["b", "c/d"] }), new Set(["b", "c"]));
  assert.equal(touched(["r", "c", "d"], { path: "/", keys: ["b", "c/d"] }), null);
});

test("JSON is indented as it is", () => {
  const text = `{"b":${BEYOND},"1":[1,{"a":{}},[]],"s":"q\\"{}[,]:\\\\","t":true}`;
  const indented = indentJson(text);
  assert.equal(indented.replace(/\s/g, ""), text);
  assert.deepEqual(JSON.parse(indented), JSON.parse(text));
  assert.equal(indentJson('{"a":[1,{}]}'), '{\n  "a": [\n    1,\n    {}\n  ]\n}');
});

test("members of JSON are found in the text", () => {
  const text = ` { "a" : ${BEYOND} , "b\\"":[1,[2,"]"]],"c":"x\\\\" , "d" : null } `;
  const found = [...membersOf(text)].map(({ key, start, end }) => [key, text.slice(start, end)]);
  assert.deepEqual(found, [["a", BEYOND], ['b"', '[1,[2,"]"]]'], ["c", '"x\\\\"'], ["d", "null"]]);
  assert.deepEqual([...membersOf("[true,[]]")].map(({ key }) => key), ["0", "1"]);
  assert.deepEqual([...membersOf("{}"), ...membersOf("12"), ...membersOf("[ ]")], []);
});

test("a file is written in pieces that together are all of it", () => {
  const value = { z: 1, big: { ".priority": 5, a: "x".repeat(30), b: { c: "y".repeat(60), d: [1, 2] } }, n: 2 };
  const written = {};
  const order = [];
  for (const { body } of piecesOf(JSON.stringify(value), 40)) {
    for (const [path, member] of Object.entries(JSON.parse(body))) {
      order.push(path);
      const keys = path.split("/");
      let node = written;
      for (const key of keys.slice(0, -1)) node = node[key] ??= {};
      if (member === null) delete node[keys.at(-1)];
      else node[keys.at(-1)] = member;
    }
  }
  assert.deepEqual(written, value);
  assert.ok(order.indexOf("big") < order.indexOf("big/a"));
  assert.ok(order.indexOf("big/.priority") > order.indexOf("big/a"));
});

test("operations are added up by path, many keys below a place as one", () => {
  const profile = new Profile();
  const read = (path, more = {}) => profile.add({ name: "rest-read", path, millis: 2, bytes: 10, allowed: true, ...more });
  for (let at = 0; at < MAX_CHILDREN; at += 1) read(["users", `u${at}`, "name"]);
  assert.equal(profile.rowsBy("time").length, MAX_CHILDREN);
  read(["users", "more", "name"], { millis: 7, allowed: false });
  profile.add({ name: "rest-write", path: ["a"], millis: 500, bytes: 1 });
  profile.add({ name: "concurrent-connect", timestamp: 1 });
  profile.add({ name: "operations-lost", count: 12 });
  const joined = { name: "rest-read", count: 26, ms: 57, most: 7, bytes: 260, denied: 1, keys: ["users", "$key", "name"] };
  const written = { name: "rest-write", count: 1, ms: 500, most: 500, bytes: 1, denied: 0, keys: ["a"] };
  const connected = { name: "concurrent-connect", count: 1, ms: 0, most: 0, bytes: 0, denied: 0, keys: [] };
  assert.deepEqual(profile.rowsBy("time"), [written, joined, connected]);
  assert.deepEqual(profile.rowsBy("bytes"), [joined, written, connected]);
  assert.deepEqual([profile.count, profile.lost], [28, 12]);
});

test("what is below joined keys is joined, and places have a bound", () => {
  const profile = new Profile();
  const query = { unIndexed: true, querySet: [{ index: { path: ["profile", "age"] } }] };
  for (let at = 0; at < 30; at += 1) {
    for (const each of "abc") profile.add({ name: "rest-read", path: ["a", `k${at}`, `x${at}${each}`], ...query });
  }
  assert.deepEqual(profile.rowsBy("count").map(({ keys, count }) => [keys, count]), [[["a", "$key", "$key"], 90]]);
  assert.deepEqual(profile.missing, [{ keys: ["a", "$key", "$key"], index: "profile/age", count: 90 }]);
  for (let at = 0; at < 25 ** 3; at += 1) {
    const path = [`b${at % 20}`, `c${Math.floor(at / 20) % 25}`, `d${Math.floor(at / 500)}`];
    profile.add({ name: "rest-read", path });
  }
  assert.ok(profile.rowsBy("count").length <= MAX_PLACES);
});
