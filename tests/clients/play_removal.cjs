// Plays the removal of a large tree by `firebase-tools` as it goes where the server refuses to
// remove much at once. treedb never does, so the refusals are told here, in the place of the
// server: everything else, all reading and removing, is the client's own and goes to the daemon.
//   node play_removal.cjs ORIGIN PROJECT PATH
"use strict";

const { default: Removal } = require("firebase-tools/lib/database/remove");

const MOST_CHILDREN = 30;
const [origin, project, path] = process.argv.slice(2);
const removal = new Removal(project, path, origin, true);
const { remote } = removal;
const removeAll = remote.deletePath.bind(remote);
const removeSome = remote.deleteSubPath.bind(remote);
let refusals = 0;

remote.deletePath = async (at) => {
  if (at !== path) return removeAll(at);
  refusals += 1;
  return false;
};
remote.deleteSubPath = async (at, children) => {
  if (children.length <= MOST_CHILDREN) return removeSome(at, children);
  refusals += 1;
  return false;
};
removal.execute().then(() => console.log(`done after ${refusals} refusals`));
