// Runs the functions in `functions` by the framework of Google, each at the path at which the functions
// emulator has it, and registers them as that does. Prints a line of JSON for each line of its input:
//   {"register": true}   what was registered
//   {"status": 500}      what all calls are answered from now on, without running functions; 0 for no more
//   {"calls": true}      the calls since the last time: path, content type, whether it failed
//   node play_functions.cjs, with the variables of the emulator (FIREBASE_CONFIG, GCLOUD_PROJECT, …)
"use strict";

const http = require("node:http");
const path = require("node:path");
const readline = require("node:readline");

const FRAMEWORK = path.dirname(require.resolve("@google-cloud/functions-framework"));
const TOOLS = path.dirname(require.resolve("firebase-tools/package.json"));
const { getServer } = require(path.join(FRAMEWORK, "server.js"));

const project = process.env.GCLOUD_PROJECT;
const functions = require("./functions");
const isSecond = (each) => each.__endpoint.platform === "gcfv2";
const keyOf = (name) => `us-central1-${name}-0`;

let calls = [];
let status = 0;

const servers = new Map(
  Object.entries(functions).map(([name, each]) => [
    `/functions/projects/${project}/triggers/${keyOf(name)}`,
    getServer(each, {
      signatureType: isSecond(each) ? "cloudevent" : "event",
      ignoredRoutes: "",
      timeoutMilliseconds: 0,
    }),
  ]),
);

const hub = http.createServer((request, response) => {
  const server = servers.get(request.url);
  const call = { path: request.url, type: request.headers["content-type"] };
  calls.push(call);
  response.on("finish", () => (call.status = response.statusCode));
  if (status || !server) response.writeHead(status || 404).end();
  else server.emit("request", request, response);
});

async function register() {
  const load = (name) => require(path.join(TOOLS, "lib", "emulator", name));
  const { FunctionsEmulator } = load("functionsEmulator.js");
  const { EmulatorRegistry } = load("registry.js");
  const { EmulatorLogger } = load("emulatorLogger.js");
  const { emulatedFunctionsFromEndpoints, getSignatureType } = load("functionsEmulatorShared.js");
  const [host, port] = process.env.FIREBASE_DATABASE_EMULATOR_HOST.split(":");
  EmulatorRegistry.set("database", { getName: () => "database", getInfo: () => ({ host, port: Number(port) }) });
  const emulator = Object.create(FunctionsEmulator.prototype);
  emulator.args = { projectId: project };
  emulator.logger = EmulatorLogger.forEmulator("functions");
  emulator.triggerGeneration = 0;
  const endpoints = Object.entries(functions).map(([id, each]) => {
    return { id, entryPoint: id, project, region: "us-central1", ...each.__endpoint };
  });
  for (const each of endpoints) each.region = "us-central1";
  const definitions = emulatedFunctionsFromEndpoints(endpoints);
  for (const each of definitions) {
    const key = emulator.getTriggerKey(each);
    await emulator.addRealtimeDatabaseTrigger(
      project, each.id, key, each.eventTrigger, getSignatureType(each), each.region);
  }
  return definitions.map((each) => each.id);
}

async function answer(asked) {
  if (asked.register) return register();
  if ("status" in asked) return (status = asked.status);
  const seen = calls;
  calls = [];
  return seen;
}

async function main() {
  await new Promise((resolve) => hub.listen(Number(process.env.PLAY_PORT), "127.0.0.1", resolve));
  for await (const line of readline.createInterface({ input: process.stdin }))
    process.stdout.write(`${JSON.stringify(await answer(JSON.parse(line)))}\n`);
  process.exit(0);
}

main();
