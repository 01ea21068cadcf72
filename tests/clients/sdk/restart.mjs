// An app that has a listener, presence and a counter, through a restart of its daemon. It writes a
// line when it is ready, and another when all is as before. The variables are those of modular.mjs.

import { initializeApp } from "firebase/app";
import { getDatabase, increment, onDisconnect, onValue, ref, runTransaction, set } from "firebase/database";

import { Heard } from "./calls.mjs";

const app = initializeApp({ databaseURL: process.env.PLAY_URL });
const database = getDatabase(app);
const at = (name) => ref(database, `work/restart/${name}`);
const here = at("here");
const [connected, presence, news] = [new Heard(), new Heard(), new Heard()];

onValue(at("news"), (snapshot) => news.hear(snapshot.val()));
onValue(ref(database, ".info/connected"), async (snapshot) => {
  connected.hear(snapshot.val());
  if (!snapshot.val()) return;
  await onDisconnect(here).set(false);
  await set(here, true);
  presence.hear(true);
});

await presence.count(1);
await runTransaction(at("counter"), (n) => (n ?? 0) + 1);
console.log("ready");
await connected.until((all) => all.includes(true) && all.at(-1) === false);
const pending = set(at("pending"), increment(1));
console.log("cut");
await connected.last(true);
await pending;
await presence.count(2);
await runTransaction(at("counter"), (n) => (n ?? 0) + 1);
await news.last("after");
console.log("done");
process.exit();
