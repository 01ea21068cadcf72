"""Writes: from a body to an edit, and from an outcome to a reply."""

from __future__ import annotations

from treedbd.database.database import Database
from treedbd.database.question import Caller, Condition, Outcome, Write
from treedbd.tree import edit, printing
from treedbd.tree.body import has_more_nodes
from treedbd.tree.path import MAX_DEPTH, InvalidPath, Place
from treedbd.tree.value import InvalidData, Json
from treedbd.web.answer import Reply
from treedbd.web.ask import Ask
from treedbd.web.options import WebOptions
from treedbd.web.shape import json_reply

_LEAST_NODE = len("1,")


def make_edit(ask: Ask, body: bytes, push_key: str, options: WebOptions) -> edit.Edit:
    """Return the edit that a write asks for; raise `InvalidData` or `InvalidPath`.

    `push_key` is the key of the child that a POST makes; other writes have none.
    """
    place, most = ask.place, options.string_bytes
    if ask.method == b"DELETE":
        return edit.make_remove(place)
    if ask.method == b"PUT":
        return edit.make_put(place, _parse(body, options), most)
    if place.of_priority:
        raise InvalidPath("A priority can be read, set and removed, nothing else.")
    if ask.method == b"PATCH":
        return edit.make_patch(place.path, _parse(body, options), most)
    if len(place.path) == MAX_DEPTH:
        raise InvalidData(f"A child of this path is deeper than {MAX_DEPTH} keys.")
    child = Place((*place.path, push_key))
    return edit.make_put(child, _parse(body, options), most)


def make_write(ask: Ask, change: edit.Edit, now: int, caller: Caller, deadline: float) -> Write:
    """Return the write that a database is to do.

    `now` is in milliseconds since 1970, `deadline` in seconds of the database's clock.
    """
    condition = None if ask.condition is None else Condition(ask.place, ask.condition)
    return Write(
        change,
        now,
        caller,
        condition,
        deadline,
        wants_echo=ask.print != "silent" and ask.method != b"POST",
        wants_tag=ask.wants_tag or condition is not None,
        must_tag=ask.wants_tag,
    )


def write_reply(ask: Ask, outcome: Outcome) -> Reply:
    """Return the reply to a write that is durable."""
    tag = () if outcome.tag is None else ((b"ETag", ask.dialect.tag(outcome.tag)),)
    is_push = ask.method == b"POST"
    return json_reply(ask, {"name": outcome.edit.place.path[-1]} if is_push else outcome.echo, *tag)


def next_push_key(database: Database, ask: Ask, now: int) -> str:
    """Return the key of the child that a POST makes, an empty one for any other write."""
    return database.push_ids.next(now) if ask.method == b"POST" else ""


def _parse(body: bytes, options: WebOptions) -> Json:
    if not body.strip():
        raise InvalidData("The request needs a JSON body.")
    json = printing.parse(body)
    most = options.write_nodes
    if len(body) > _LEAST_NODE * most and has_more_nodes(json, most):
        raise InvalidData(
            f"A body may have at most {most} members and array items: write it in parts."
        )
    return json
