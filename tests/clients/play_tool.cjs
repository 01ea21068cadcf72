// Runs commands of the command line tool of Firebase in one process, which takes as long to load its
// modules as for ten commands. Each line of the input is a list of arguments; for each a line is
// printed: the status with which the tool would have ended, and what it would have printed. The
// parser of arguments and the commands are loaded again each time, so that no option is kept.
//   node play_tool.cjs
"use strict";

const path = require("node:path");
const readline = require("node:readline");

const PACKAGE = path.dirname(require.resolve("firebase-tools/package.json"));
const PROGRAM = path.join(PACKAGE, "lib", "bin", "firebase.js");
const LOADED_AGAIN = [
  path.dirname(require.resolve("commander")) + path.sep,
  path.join(PACKAGE, "lib", "commands") + path.sep,
  path.join(PACKAGE, "lib", "command.js"),
  path.join(PACKAGE, "lib", "index.js"),
];
const print = process.stdout.write.bind(process.stdout);
let printed = "";
let end;

const capture = (text, encoding, done = encoding) => {
  printed += text;
  if (typeof done === "function") done();
  return true;
};

async function run(given) {
  for (const file of Object.keys(require.cache))
    if (LOADED_AGAIN.some((each) => file.startsWith(each))) delete require.cache[file];
  printed = "";
  process.exitCode = undefined;
  process.argv = [process.execPath, PROGRAM, ...given];
  const ended = new Promise((resolve) => (end = resolve));
  require("firebase-tools").cli.parse(process.argv);
  return { status: await ended, printed };
}

async function main() {
  process.env.IS_FIREBASE_CLI = "true";
  require(path.join(PACKAGE, "lib", "logger.js")).useConsoleLoggers();
  process.stdout.write = process.stderr.write = capture;
  const { exit } = process;
  process.exit = (status) => setImmediate(end, status ?? process.exitCode ?? 0);
  for await (const line of readline.createInterface({ input: process.stdin }))
    print(`${JSON.stringify(await run(JSON.parse(line)))}\n`);
  exit(0);
}

main();
