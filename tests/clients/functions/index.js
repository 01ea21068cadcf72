// Functions for orders. Each writes what it has seen to /seen/<function>/<order>, by its own reference.
"use strict";

const { initializeApp } = require("firebase-admin/app");
const v1 = require("firebase-functions/v1/database");
const v2 = require("firebase-functions/v2/database");

initializeApp();

const note = (snapshot, name, order, seen) => snapshot.ref.root.child(`seen/${name}/${order}`).push(seen);
const orders = v1.ref("/orders/{id}");

const who = ({ authType, authId }) => ({ authType, authId: authId ?? null });
const whoFirst = ({ authType, auth }) => ({ authType, authId: auth?.uid ?? null });

exports.createdSecond = v2.onValueCreated("/orders/{id}", (event) =>
  note(event.data, "createdSecond", event.params.id, { after: event.data.val(), ...who(event) }));
exports.deletedSecond = v2.onValueDeleted("/orders/{id}", (event) =>
  note(event.data, "deletedSecond", event.params.id, { before: event.data.val() }));
exports.updatedSecond = v2.onValueUpdated("/orders/{id}", ({ data, params }) =>
  note(data.after, "updatedSecond", params.id, { before: data.before.val(), after: data.after.val() }));
exports.writtenSecond = v2.onValueWritten("/orders/{id}", ({ data, params }) =>
  note(data.after, "writtenSecond", params.id, { before: data.before.val(), after: data.after.val() }));

exports.createdFirst = orders.onCreate((snapshot, context) =>
  note(snapshot, "createdFirst", context.params.id, { after: snapshot.val(), ...whoFirst(context) }));
exports.deletedFirst = orders.onDelete((snapshot, { params }) =>
  note(snapshot, "deletedFirst", params.id, { before: snapshot.val() }));
exports.updatedFirst = orders.onUpdate(({ before, after }, { params }) =>
  note(after, "updatedFirst", params.id, { before: before.val(), after: after.val() }));
exports.writtenFirst = orders.onWrite(({ before, after }, { params }) =>
  note(after, "writtenFirst", params.id, { before: before.val(), after: after.val() }));
