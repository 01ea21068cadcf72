// Preloaded into every Node.js client: host names below PLAY_DOMAIN resolve to this machine. Every
// other name is unknown, and is appended to the file PLAY_ASKED.
"use strict";

const dns = require("node:dns");
const fs = require("node:fs");

const resolve = dns.lookup;

dns.lookup = function lookup(host, options, callback) {
  if (callback === undefined) [options, callback] = [{}, options];
  if (host.endsWith(`.${process.env.PLAY_DOMAIN}`)) host = "127.0.0.1";
  if (host === "127.0.0.1" || host === "localhost") return resolve(host, options, callback);
  fs.appendFileSync(process.env.PLAY_ASKED, `${host}\n`);
  const unknown = Object.assign(new Error(`${host} is not known here.`), { code: "ENOTFOUND" });
  process.nextTick(callback, unknown);
};
