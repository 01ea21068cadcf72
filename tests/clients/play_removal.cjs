// Removes a large tree by `firebase-tools`, in the way it does if the server refuses to remove much
// at once. treedb never refuses, so this script does it in place of the server; all other requests
// are the client's own and are sent to the daemon.
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
