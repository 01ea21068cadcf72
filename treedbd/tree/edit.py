"""Edits: a write as a list of changes, and their effect on a value.

A PUT, POST or DELETE changes one place, a PATCH one place for each of its members. A change sets a
whole subtree (None removes it) or a priority. `make_*` check everything that can be checked
without the tree; `resolve` replaces server values once the tree and the time are known; `apply`
defines what the changes mean, on a value in memory. The store reaches the same result on rows.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any, Final, Literal, TypeAlias

import attrs

from treedbd.limits import MAX_PATCH_MEMBERS
from treedbd.loop import pause, paused, run_paused, sort_in_steps
from treedbd.tree.normalise import (
    DEFAULT_STRING_BYTES,
    canonicalise_numbers,
    check_priority,
    normalise,
)
from treedbd.tree.path import check_depth, is_at_or_above, parse_relative
from treedbd.tree.server_values import Increment, Resolver, Timestamp
from treedbd.tree.types import (
    PRIORITY,
    Change,
    InvalidData,
    InvalidPath,
    Json,
    Path,
    Place,
    Priority,
    Value,
    View,
)
from treedbd.tree.value import (
    as_json,
    as_priority,
    container_of,
    plain,
    priority_of,
    sort_members,
    with_priority,
)

Method: TypeAlias = Literal["put", "patch"]

_READ_AT_ONCE: Final = 64


@attrs.frozen
class Edit:
    """One write, as a list of changes.

    `sent` is the body as JSON (None for a removal), its numbers as the tree stores them. With
    `has_placeholders` the values of `changes` have placeholders in place of server values;
    `resolve` returns the edit that can be applied. `by_member` are the changes in the order of the
    body's members, `changes` in the order in which they are applied.
    """

    method: Method
    place: Place
    sent: Json
    changes: Sequence[Change]
    has_placeholders: bool = False
    by_member: Sequence[Change] = attrs.field(
        default=attrs.Factory(lambda self: self.changes, takes_self=True), eq=False, repr=False
    )


def make_put(place: Place, body: Json, max_string_bytes: int = DEFAULT_STRING_BYTES) -> Edit:
    """Return the edit that sets `place` to `body`; raise `InvalidData`."""
    # Until it is resolved, a value may have placeholders; nothing reads it before that.
    value: Any
    if place.is_priority:
        value = check_priority(body, max_string_bytes)
        if isinstance(value, Timestamp | Increment):
            return Edit("put", place, body, (Change(place, value),), True)  # type: ignore[arg-type]
        return Edit("put", place, value, (Change(place, value),))
    normal = normalise(body, len(place.path), max_string_bytes)
    value = normal.value
    sent = canonicalise_numbers(body) if normal.has_changed_numbers else body
    return Edit("put", place, sent, (Change(place, value),), normal.has_placeholders)


def rename_child(edit: Edit, key: str) -> Edit:
    """Return the edit that sets another child of the same node, of an edit that sets a child."""
    place = Place((*edit.place.path[:-1], key))
    changes = tuple(Change(place, change.value) for change in edit.changes)
    return attrs.evolve(edit, place=place, changes=changes, by_member=changes)


def make_remove(place: Place) -> Edit:
    """Return the edit that removes what is at `place`."""
    return Edit("put", place, None, (Change(place, None),))


def make_patch(path: Path, body: Json, max_string_bytes: int = DEFAULT_STRING_BYTES) -> Edit:
    """Return the edit that merges `body` into the node at `path`.

    `body` is an object whose keys are slash paths, or None, which removes the node. Raises
    `InvalidData`, also if two keys name the same place or one above the other.
    """
    if body is None:
        return make_remove(Place(path))
    if not isinstance(body, dict):
        raise InvalidData("The body of a PATCH must be an object, or null.")
    if len(body) > MAX_PATCH_MEMBERS:
        raise InvalidData(f"A PATCH may have at most {MAX_PATCH_MEMBERS} members.")
    parts = [make_member(path, key, item, max_string_bytes) for key, item in body.items()]
    changes = tuple([part.changes[0] for part in parts])
    _check_no_overlap([change.place for change in changes])
    sent: Json = dict(zip(body, [part.sent for part in parts], strict=True))
    has_placeholders = any(part.has_placeholders for part in parts)
    return Edit("patch", Place(path), sent, in_order(changes), has_placeholders, changes)


def make_member(path: Path, key: str, item: Json, max_string_bytes: int) -> Edit:
    """Return what one member of a PATCH of `path` does, as a PUT; raise `InvalidData`."""
    place = parse_member(path, key)
    pause()
    return make_put(place, item, max_string_bytes)


def parse_member(path: Path, key: str) -> Place:
    """Return the place that a member of a PATCH of `path` names; raise `InvalidData`."""
    try:
        place = parse_relative(key)
        return Place(check_depth(path + place.path), place.is_priority)
    except InvalidPath as error:
        raise InvalidData(str(error)) from None


def resolve(edit: Edit, now: int, view: View) -> Edit:
    """Return the edit with its server values replaced.

    `now` is in milliseconds since 1970, `view` the tree before the edit. Raises `InvalidData` if an
    increment leaves the range of numbers.
    """
    if not edit.has_placeholders:
        return edit

    def read(place: Place) -> object:
        return view.priority(place.path) if place.is_priority else view.peek(place.path)

    resolver = Resolver(now, read)
    resolved = {change.place: resolve_change(change, resolver) for change in edit.changes}
    return Edit(
        edit.method,
        edit.place,
        _resolve_sent(edit, resolver),
        tuple(resolved.values()),
        by_member=tuple([resolved[change.place] for change in edit.by_member]),
    )


def changes_as_sent(edit: Edit) -> list[tuple[Change, Json]]:
    """Return each change of an edit with what was sent for it, in the order of the body."""
    if edit.method == "put":
        return [(change, edit.sent) for change in edit.changes]
    return list(zip(edit.by_member, _members_of(edit).values(), strict=True))


def has_effect(edit: Edit, view: View) -> bool:
    """Return whether anything is written: not for an empty PATCH or a priority without a node.

    `view` is the tree before the edit.
    """
    if edit.place.is_priority:
        return view.peek(edit.place.path) is not None
    return bool(edit.changes)


def find_lone_priority(edit: Edit, view: View) -> Path | None:
    """Return a path at which an edit sets a priority, and nothing is nor is set; None without one.

    `view` is the tree before the edit. Pauses.
    """
    places = [change.place for change in edit.changes if change.value is not None]
    priorities = (place.path for place in places if place.is_priority)
    alone = [path for path in paused(priorities, _READ_AT_ONCE) if view.peek(path) is None]
    if not alone:
        return None
    written = run_paused(sort_in_steps(path for path, is_priority in places if not is_priority))
    for path in paused(alone):
        at = bisect_left(written, path)
        if at == len(written) or not is_at_or_above(path, written[at]):
            return path
    return None


def echo_of(edit: Edit, after: View) -> Json:
    """Return the echo of a resolved edit: what a PUT now reads as, what a PATCH sent.

    `after` is the tree with the edit applied.
    """
    if edit.method == "patch":
        return edit.sent
    if edit.place.is_priority:
        return after.priority(edit.place.path)
    return plain(edit.changes[0].value)


def echo_without_reading(edit: Edit, now: int) -> Json:
    """Return the echo of an unresolved edit for a caller who may not read what was there.

    It differs from other echoes in two ways: an increment stays as it was sent, and a priority is
    shown even if there is no node that has it.
    """
    resolver = Resolver(now, None)
    if edit.method == "patch":
        return _resolve_sent(edit, resolver)
    shown = resolve_change(edit.changes[0], resolver).value
    return as_json(shown) if edit.place.is_priority else plain(shown)


def apply(root: Value, changes: Iterable[Change]) -> Value:
    """Return what `root` becomes under the changes; `root` itself stays as it is."""
    for change in changes:
        path = change.place.path
        if change.place.is_priority:
            root = set_priority(root, path, as_priority(change.value))
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
    container = container_of(node)
    present = None if container is None else container.get(key)
    child = set_value(present, path[1:], value)
    if child is None:
        if container is None or present is None:
            return node
        rest = {name: item for name, item in container.items() if name != key}
        return rest if rest.keys() - {PRIORITY} else None
    if container is None:
        return with_priority({key: child}, priority_of(node))
    if key in container:
        return {**container, key: child}
    return sort_members({**container, key: child})


def set_priority(node: Value, path: Path, priority: Priority | None) -> Value:
    """Return `node` with another priority at `path` below it; nothing stays nothing."""
    if not path:
        return with_priority(node, priority)
    container = container_of(node)
    if container is None or path[0] not in container:
        return node
    return {**container, path[0]: set_priority(container[path[0]], path[1:], priority)}


def _members_of(edit: Edit) -> dict[str, Json]:
    """Return the body of a PATCH."""
    members: Any = edit.sent
    return members  # type: ignore[no-any-return]  # `make_patch` has checked it


def resolve_change(change: Change, resolver: Resolver) -> Change:
    """Return a change with its server values replaced; raise `InvalidData`."""
    place = change.place
    value: Any = change.value
    if isinstance(value, Timestamp | Increment):
        value = resolver.resolve_placeholder(value, place)
    elif not place.is_priority:
        value = resolver.resolve_value(value, place.path)
    return Change(place, value)


def _resolve_sent(edit: Edit, resolver: Resolver) -> Json:
    if edit.method == "put":
        return resolve_member(edit.place, edit.sent, resolver)
    members = zip(edit.by_member, _members_of(edit).items(), strict=True)
    return {key: resolve_member(change.place, item, resolver) for change, (key, item) in members}


def resolve_member(place: Place, item: Json, resolver: Resolver) -> Json:
    """Return what was sent for a place with its server values replaced; raise `InvalidData`."""
    resolve_item = resolver.resolve_sent_priority if place.is_priority else resolver.resolve_sent
    return resolve_item(item, place.path)


def _check_no_overlap(places: Iterable[Place]) -> None:
    """Raise `InvalidData` if two places of a PATCH are the same, or one is above the other."""
    paths = sorted((*path, PRIORITY) if is_priority else path for path, is_priority in places)
    for upper, lower in pairwise(paths):
        if lower[: len(upper)] == upper:
            raise overlap(upper, lower)


def overlap(upper: Path, lower: Path) -> InvalidData:
    """Return the error about two members of a PATCH."""
    return InvalidData(f"Two keys of the body overlap: {'/'.join(upper)} and {'/'.join(lower)}.")


def in_order(changes: Iterable[Change]) -> tuple[Change, ...]:
    """Return the changes in the order of their paths, removals after the rest, priorities last.

    So a container that loses its children and gains others is never empty in between, and keeps its
    priority whatever the order of the members. Neighbours are applied faster one after the other.
    """

    def position(change: Change) -> tuple[bool, bool, Path]:
        return change.place.is_priority, change.value is None, change.place.path

    return tuple(sorted(changes, key=position))
