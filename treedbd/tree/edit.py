"""Edits: what a write asks for, as a list of changes, and what becomes of a value under them.

A PUT, POST or DELETE changes one place, a PATCH one place for each of its members. A change sets a
whole subtree (None removes it) or a priority. `make_*` check everything that can be checked
without the tree; `resolve` replaces server values once the tree and the time are known; `apply`
is the meaning of the changes, told on a value in memory. The store reaches the same result on rows.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from typing import Final, Literal, TypeAlias

import attrs

from treedbd.tree import placeholder
from treedbd.tree.body import (
    ANY_LENGTH,
    MAX_STRING_BYTES,
    check_priority,
    normalise,
    settle_numbers,
)
from treedbd.tree.path import (
    PRIORITY,
    InvalidPath,
    Path,
    Place,
    check_depth,
    parse_relative,
)
from treedbd.tree.value import (
    Container,
    InvalidData,
    Json,
    Value,
    leaf_of,
    plain,
    priority_of,
    sort_members,
    with_priority,
)
from treedbd.tree.view import View

Method: TypeAlias = Literal["put", "patch"]

MAX_PATCH_MEMBERS: Final = 100_000
"""More places than this are not written one by one; a PUT sets as many as it likes."""


@attrs.frozen
class Change:
    """One place gets one value: a subtree in normal form, or a priority."""

    place: Place
    value: Value


@attrs.frozen
class Edit:
    """What one write asks for.

    `sent` is the body as JSON (None for a removal), its numbers settled. With `has_placeholders`
    the changes are good for judging shapes only; `resolve` makes the edit that can be applied.
    `by_member` are the changes in the order of the body's members, and not in that of applying.
    """

    method: Method
    place: Place
    sent: Json
    changes: tuple[Change, ...]
    has_placeholders: bool = False
    by_member: tuple[Change, ...] = attrs.field(
        default=attrs.Factory(lambda self: self.changes, takes_self=True), eq=False, repr=False
    )


def make_put(place: Place, body: Json, max_string_bytes: int = MAX_STRING_BYTES) -> Edit:
    """Make the edit that sets `place` to `body`; raise `InvalidData`."""
    if place.of_priority:
        priority = check_priority(body, max_string_bytes)
        waits = isinstance(priority, placeholder.Placeholder)
        return Edit("put", place, body if waits else priority, (Change(place, priority),), waits)
    normal = normalise(body, len(place.path), max_string_bytes)
    sent = settle_numbers(body) if normal.has_settled else body
    return Edit("put", place, sent, (Change(place, normal.value),), normal.has_placeholders)


def make_remove(place: Place) -> Edit:
    """Make the edit that removes what is at `place`."""
    return Edit("put", place, None, (Change(place, None),))


def make_patch(path: Path, body: Json, max_string_bytes: int = MAX_STRING_BYTES) -> Edit:
    """Make the edit that merges `body` into the node at `path`.

    `body` is an object whose keys are slash paths, or None, which removes the node. Raises
    `InvalidData`, also where two keys name the same place or one above the other.
    """
    if body is None:
        return make_remove(Place(path))
    if not isinstance(body, dict):
        raise InvalidData("The body of a PATCH must be an object, or null.")
    if len(body) > MAX_PATCH_MEMBERS:
        raise InvalidData(f"A PATCH may have at most {MAX_PATCH_MEMBERS} members.")
    parts = [
        make_put(_patch_place(path, key), item, max_string_bytes) for key, item in body.items()
    ]
    changes = tuple(part.changes[0] for part in parts)
    _check_apart(changes)
    sent = dict(zip(body, (part.sent for part in parts), strict=True))
    waits = any(part.has_placeholders for part in parts)
    return Edit("patch", Place(path), sent, _arrange(changes), waits, changes)


def resolve(edit: Edit, now: int, view: View) -> Edit:
    """Return the edit with its server values replaced.

    `now` is in milliseconds since 1970, `view` the tree before the edit. Raises `InvalidData`
    where an increment leaves the range of numbers.
    """
    if not edit.has_placeholders:
        return edit

    def current(path: Path, of_priority: bool) -> object:
        return view.priority(path) if of_priority else view.peek(path)

    try:
        body = _resolve_body(edit, now, current)
        if edit.method == "put":
            return make_put(edit.place, body, ANY_LENGTH)
        return make_patch(edit.place.path, body, ANY_LENGTH)
    except ValueError as error:
        raise InvalidData(str(error)) from None


def as_sent(edit: Edit) -> list[tuple[Change, Json]]:
    """Return each change of an edit with what was sent for it, in the order of the body."""
    if edit.method == "put":
        return [(change, edit.sent) for change in edit.changes]
    return list(zip(edit.by_member, edit.sent.values(), strict=True))


def show_blind(edit: Edit, now: int) -> Json:
    """Return the echo of a write for one who may not know what was there before.

    It is the echo of any other write, but increments stand in it as they were sent, and a priority
    whether or not there is a node that it could be on.
    """
    body = _resolve_body(edit, now, None)
    if edit.method == "patch":
        return body
    if edit.place.of_priority:
        return _show_increments(check_priority(body, ANY_LENGTH))
    normal = normalise(body, len(edit.place.path), ANY_LENGTH)
    return plain(_show_increments(normal.value))


def apply(root: Value, changes: Iterable[Change]) -> Value:
    """Return what `root` becomes under the changes; `root` itself stays as it is."""
    for change in changes:
        path = change.place.path
        if change.place.of_priority:
            root = set_priority(root, path, change.value)
        else:
            root = set_value(root, path, change.value)
    return root


def set_value(node: Value, path: Path, value: Value) -> Value:
    """Return `node` with `value` in place of what is at `path` below it.

    A container left without children vanishes; a leaf that gets a child becomes a container and
    keeps its priority.
    """
    if not path:
        return value
    key = path[0]
    is_container = isinstance(leaf_of(node), Container)
    present = node.get(key) if is_container else None
    child = set_value(present, path[1:], value)
    if child is None:
        if present is None:
            return node
        rest = {name: item for name, item in node.items() if name != key}
        return rest if rest.keys() - {PRIORITY} else None
    if not is_container:
        return with_priority({key: child}, priority_of(node))
    if key in node:
        return {**node, key: child}
    return sort_members({**node, key: child})


def set_priority(node: Value, path: Path, priority: Value) -> Value:
    """Return `node` with another priority at `path` below it; nothing stays nothing."""
    if not path:
        return with_priority(node, priority)
    if not isinstance(leaf_of(node), Container) or path[0] not in node:
        return node
    return {**node, path[0]: set_priority(node[path[0]], path[1:], priority)}


def _patch_place(path: Path, key: str) -> Place:
    try:
        place = parse_relative(key)
        return Place(check_depth(path + place.path), place.of_priority)
    except InvalidPath as error:
        raise InvalidData(str(error)) from None


def _resolve_body(edit: Edit, now: int, current: placeholder.Current) -> Json:
    if edit.method == "put":
        return _resolve_at(edit.place, edit.sent, now, current)
    path = edit.place.path
    return {
        key: _resolve_at(_patch_place(path, key), item, now, current)
        for key, item in edit.sent.items()
    }


def _show_increments(value: Value) -> Value:
    if isinstance(value, placeholder.Increment):
        return {placeholder.PLACEHOLDER: {"increment": value.by}}
    if isinstance(value, dict):
        return {key: _show_increments(child) for key, child in value.items()}
    return value


def _resolve_at(place: Place, item: Json, now: int, current: placeholder.Current) -> Json:
    if not place.of_priority:
        return placeholder.resolve(item, place.path, now, current)
    if isinstance(item, dict):
        what = placeholder.parse_placeholder(item)
        return placeholder.fill(what, place.path, True, now, current)
    return item


def _check_apart(changes: Iterable[Change]) -> None:
    places = sorted(
        (*change.place.path, PRIORITY) if change.place.of_priority else change.place.path
        for change in changes
    )
    for upper, lower in pairwise(places):
        if lower[: len(upper)] == upper:
            raise InvalidData(
                f"Two keys of the body overlap: {'/'.join(upper)} and {'/'.join(lower)}."
            )


def _arrange(changes: tuple[Change, ...]) -> tuple[Change, ...]:
    """Put removals behind what is set, and priorities last; otherwise in the order of paths.

    A container that loses its children and gains others never stands empty in between, so that it
    keeps its priority in whichever order the members came. Neighbours together are applied faster.
    """

    def turn(change: Change) -> tuple[bool, bool, Path]:
        return change.place.of_priority, change.value is None, change.place.path

    return tuple(sorted(changes, key=turn))
