"""Edits: a write as a list of changes, from its body to its effect on a value.

Theory of operation. A PUT, POST or DELETE changes one place, a PATCH one place for each of its
members. A change sets a whole subtree (None removes it) or a priority. On the way of a write:

1. `normalise` brings the parsed body into the one normal form of `tree.value`, once for each body.
   Keys, depth, strings and numbers are checked here, and all other code relies on the result.
   Arrays become objects with the keys 0, 1, …
2. `make_put`, `make_patch` and `make_remove` make the `Edit`. They check everything that can be
   checked without the tree.
3. `resolve` replaces server values once the tree and the time are known. These are objects
   `{".sv": …}` in a body: `{".sv": "timestamp"}` becomes the time of the request in milliseconds,
   `{".sv": {"increment": n}}` becomes the number at its place plus `n`. Until then the normal form
   has a placeholder in place of each.
4. `apply` defines what the changes mean, on a value in memory; a `Draft` reaches the same result
   for many changes, and the store reaches it on rows.
"""

from __future__ import annotations

import sys
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any, Final, Literal, NamedTuple, TypeAlias

import attrs

from treedbd.caches import short_cache
from treedbd.limits import MAX_BODY_NESTING, MAX_DEPTH, MAX_PATCH_MEMBERS, Limits
from treedbd.loop import PAUSE_AFTER, pause, paused, run_paused, sort_in_steps
from treedbd.tree.fragments import count_bytes
from treedbd.tree.path import (
    MAX_CHARACTER_BYTES,
    check_keys,
    is_at_or_above,
    parse_relative,
    sort_keys,
)
from treedbd.tree.types import (
    PRIORITY,
    VALUE,
    Change,
    InvalidData,
    InvalidPath,
    Json,
    Leaf,
    Path,
    Place,
    Priority,
    Value,
    View,
)
from treedbd.tree.value import (
    INT64_HIGH,
    INT64_LOW,
    add,
    as_json,
    as_priority,
    canonical_number,
    container_of,
    plain,
    priority_of,
    sort_members,
    value_at,
    with_priority,
)

SERVER_VALUE: Final = ".sv"
DEFAULT_STRING_BYTES: Final = Limits().string_bytes
ANY_LENGTH: Final = sys.maxsize
"""The limit for bodies whose strings have been checked before."""

_TOO_DEEP = f"The data is deeper than {MAX_DEPTH} keys from the root."
_REMEMBERED_KEYS = 64
_REMEMBERED_ORDERS = 1024
_SHARED_ORDERS = 512
_SHARED_KEYS = 8
"""Keys of a sequence that is remembered for the next bodies, too: all take 3 MiB at the most."""
_SHARED_OF_BODY = 4
"""Sequences of keys of one body that are."""
_SHARED_PATCHES = 128
_SHARED_MEMBERS = 16
_SHARED_CHARACTERS = 512
"""Members of a PATCH, and characters in their names, whose places are remembered for the next ones,
too: all take 3 MiB at the most."""
_READ_AT_ONCE: Final = 64

Method: TypeAlias = Literal["put", "patch"]


@attrs.frozen
class Timestamp:
    """Becomes the time of the request."""


@attrs.frozen
class Increment:
    """Becomes the present number at its place plus `by`."""

    by: int | float


Placeholder: TypeAlias = Timestamp | Increment
Unresolved: TypeAlias = "Leaf | Placeholder | dict[str, Unresolved] | None"
"""A `Value` that may have placeholders in place of leaves and priorities."""


def parse_placeholder(json: dict[str, Json]) -> Placeholder:
    """Parse an object with a `.sv` member; raise `InvalidData` if it is not a server value."""
    content = json[SERVER_VALUE]
    if len(json) > 1:
        raise InvalidData(f"An object with {SERVER_VALUE} must have no other member.")
    if content == "timestamp":
        return Timestamp()
    if isinstance(content, dict) and list(content) == ["increment"]:
        by = content["increment"]
        if isinstance(by, int | float) and not isinstance(by, bool):
            return Increment(_canonical_number(by))
    raise InvalidData(f'{SERVER_VALUE} must be "timestamp" or {{"increment": <number>}}.')


@attrs.frozen
class Normalised:
    """A value in normal form, in which placeholders may be left.

    `has_changed_numbers` says whether a number became another one, or one of another type.
    """

    value: Unresolved
    has_placeholders: bool
    has_changed_numbers: bool


def normalise(
    json: Json, depth: int = 0, max_string_bytes: int = DEFAULT_STRING_BYTES
) -> Normalised:
    """Bring parsed JSON, to be written `depth` keys below the root, into the normal form.

    A placeholder takes the place of each server value.

    Raises `InvalidData` for what the tree cannot hold.
    """
    walk = _Normaliser(max_string_bytes)
    value = walk.node(json, depth)
    if value is not None and depth > MAX_DEPTH:
        raise InvalidData(_TOO_DEEP)
    return Normalised(value, walk.has_placeholders, walk.has_changed_numbers)


def check_priority(
    json: Json, max_string_bytes: int = DEFAULT_STRING_BYTES
) -> Priority | Placeholder | None:
    """Return the priority in parsed JSON: a number, a string, None or a placeholder.

    Raises `InvalidData` for anything else.
    """
    return _Normaliser(max_string_bytes).priority(json)


def _order(keys: tuple[str, ...]) -> tuple[str, ...]:
    """Return keys in order; raise `InvalidPath` if no child can have one of them."""
    check_keys(keys)
    return tuple(sort_keys(keys))


_known_order: Final = short_cache(_SHARED_ORDERS)(_order)


class _Normaliser:
    """One walk over one body.

    The records of a collection mostly have the same members in the same order, so what is known of
    a sequence of keys is kept: that all are legal, and their order.
    """

    # This is the hot loop of every write, so it distinguishes types by `type(x) is`, which mypy
    # follows only for values of type Any.

    def __init__(self, max_string_bytes: int) -> None:
        self.max_string_bytes = max_string_bytes
        self.has_placeholders = False
        self.has_changed_numbers = False
        self._surely_short = max_string_bytes // MAX_CHARACTER_BYTES
        self._orders: dict[tuple[str, ...], Sequence[str]] = {}
        self._since_pause = 0

    def node(self, json: Any, depth: int) -> Any:
        kind = type(json)
        if kind is dict:
            return self.object(json, depth)
        if kind is list:
            items = {str(at): item for at, item in enumerate(json)}
            return self.container(items, items, depth)
        if kind is str:
            return self.string(json)
        if kind is int or kind is float:
            return self.number(json)
        return json

    def number(self, json: int | float) -> int | float:
        if type(json) is int and INT64_LOW <= json <= INT64_HIGH:
            return json
        canonical = _canonical_number(json)
        if canonical != json or type(canonical) is not type(json):
            self.has_changed_numbers = True
        return canonical

    def string(self, text: str) -> str:
        if len(text) > self._surely_short and count_bytes(text) > self.max_string_bytes:
            raise InvalidData(f"A string is longer than {self.max_string_bytes} bytes of UTF-8.")
        return text

    def object(self, json: dict[str, Any], depth: int) -> Any:
        keys = tuple(json)
        order = self._orders.get(keys)
        if order is None:
            if SERVER_VALUE in json:
                self.has_placeholders = True
                return parse_placeholder(json)
            if VALUE in json:
                return self.leaf(json)
            if PRIORITY in json:
                priority: Any = self.priority(json[PRIORITY])
                rest = {key: item for key, item in json.items() if key != PRIORITY}
                return with_priority(self.object(rest, depth), priority)
            order = self.order(keys)
        return self.container(json, order, depth)

    def order(self, keys: tuple[str, ...]) -> Sequence[str]:
        orders = self._orders
        # Records that are written one by one mostly are of one kind, too.
        is_shared = len(keys) <= _SHARED_KEYS and len(orders) < _SHARED_OF_BODY
        find_order = _known_order if is_shared else _order
        try:
            order = find_order(keys)
        except InvalidPath as error:
            raise InvalidData(str(error)) from None
        if len(keys) <= _REMEMBERED_KEYS and len(orders) < _REMEMBERED_ORDERS:
            orders[keys] = order
        return order

    def container(self, json: dict[str, Any], order: Iterable[str], depth: int) -> Any:
        below = depth + 1
        if below > MAX_BODY_NESTING:
            raise InvalidData(f"The data is nested deeper than {MAX_BODY_NESTING} levels.")
        children = {}
        self._since_pause += len(json)
        if self._since_pause > PAUSE_AFTER:
            self._since_pause = 0
            pause()
        for key in order if len(json) <= PAUSE_AFTER else paused(order):
            child = json[key]
            kind = type(child)
            # The two commonest leaves are checked in place: a call would cost more than the rest.
            if kind is str:
                if len(child) > self._surely_short:
                    self.string(child)
            elif kind is not int or not INT64_LOW <= child <= INT64_HIGH:
                child = self.node(child, below)
                if child is None:
                    continue
            children[key] = child
        if children and below > MAX_DEPTH:
            raise InvalidData(_TOO_DEEP)
        return children or None

    def leaf(self, json: dict[str, Any]) -> Any:
        if json.keys() - {VALUE, PRIORITY}:
            raise InvalidData(f"An object with {VALUE} must have no other member but {PRIORITY}.")
        leaf = json[VALUE]
        if isinstance(leaf, list) or (isinstance(leaf, dict) and SERVER_VALUE not in leaf):
            raise InvalidData(f"{VALUE} must be a string, a number, a boolean or null.")
        priority: Any = self.priority(json.get(PRIORITY))
        return with_priority(self.node(leaf, 0), priority)

    def priority(self, json: Any) -> Priority | Placeholder | None:
        if isinstance(json, dict) and SERVER_VALUE in json:
            self.has_placeholders = True
            return parse_placeholder(json)
        if json is not None and (isinstance(json, bool) or not isinstance(json, str | int | float)):
            raise InvalidData("A priority must be a number or a string.")
        priority: Priority | None = self.node(json, 0)
        return priority


def has_more_nodes(json: Json, limit: int) -> bool:
    """Return whether parsed JSON has more than `limit` members and items; stops counting there."""
    waiting = [json]
    while waiting:
        node = waiting.pop()
        if isinstance(node, dict | list):
            limit -= len(node)
            if limit < 0:
                return True
            children = node.values() if isinstance(node, dict) else node
            waiting.extend(child for child in children if type(child) in (dict, list))
    return False


def count_nodes(json: Json) -> int:
    """Return how many members and items parsed JSON has, at all levels."""
    # One level after the other, since it is done for each node of a large body.
    count = 0
    level: list[Any] = [json] if type(json) in (dict, list) else []
    while level:
        count += sum(map(len, level))
        children = [each.values() if type(each) is dict else each for each in level]
        level = [
            child
            for some in children
            for child in some
            if (kind := type(child)) is dict or kind is list
        ]
    return count


def canonicalise_numbers(json: Json) -> Json:
    """Return a legal body with each number as the tree stores it."""
    if isinstance(json, dict):
        return {key: canonicalise_numbers(item) for key, item in json.items()}
    if isinstance(json, list):
        return [canonicalise_numbers(item) for item in json]
    if isinstance(json, int | float) and not isinstance(json, bool):
        return _canonical_number(json)
    return json


def _canonical_number(json: int | float) -> int | float:
    try:
        return canonical_number(json)
    except (ValueError, OverflowError):
        raise InvalidData("A number is out of range.") from None


@attrs.define  # not frozen: it is made for each write
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
    change, sent, has_placeholders = _make_change(place, body, max_string_bytes)
    return Edit(
        method="put",
        place=place,
        sent=sent,
        changes=(change,),
        has_placeholders=has_placeholders,
    )


def _make_change(place: Place, body: Json, max_string_bytes: int) -> tuple[Change, Json, bool]:
    """Return the change that sets `place` to `body`, what is sent, and if it has placeholders."""
    # Until it is resolved, a value may have placeholders; nothing reads it before that.
    value: Any
    if place.is_priority:
        value = check_priority(body, max_string_bytes)
        has_placeholders = isinstance(value, Timestamp | Increment)
        return Change(place, value), body if has_placeholders else value, has_placeholders
    if len(place.path) <= MAX_DEPTH:
        is_short = type(body) is str and len(body) <= max_string_bytes // MAX_CHARACTER_BYTES
        if is_short or (type(body) is int and INT64_LOW <= body <= INT64_HIGH):
            return Change(place, body), body, False  # type: ignore[arg-type]  # it is a leaf
    normal = normalise(body, len(place.path), max_string_bytes)
    value = normal.value
    sent = canonicalise_numbers(body) if normal.has_changed_numbers else body
    return Change(place, value), sent, normal.has_placeholders


def rename_child(edit: Edit, key: str) -> Edit:
    """Return an edit that sets a child as one that sets another child of the same node."""
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
    known = _find_known(path, body)
    places = (parse_member(path, key) for key in body) if known is None else known.below(path)
    changes = []
    sent: dict[str, Json] = {}
    has_placeholders = False
    for (key, item), place in zip(body.items(), places, strict=True):
        pause()
        change, sent[key], is_unresolved = _make_change(place, item, max_string_bytes)
        changes.append(change)
        has_placeholders = has_placeholders or is_unresolved
    if known is None:
        _check_no_overlap([change.place for change in changes])
    return Edit(
        method="patch",
        place=Place(path),
        sent=sent,
        changes=in_order(changes) if known is None else known.in_order(changes),
        has_placeholders=has_placeholders,
        by_member=tuple(changes),
    )


class _KnownMembers(NamedTuple):
    """The members of a PATCH whose names are legal, and do not overlap.

    `places` are below the node that is patched, the deepest one by `depth` keys. `order` are the
    numbers of the members in the order of their paths, None if one of them names a priority.
    """

    places: tuple[Place, ...]
    depth: int
    order: tuple[int, ...] | None

    def below(self, path: Path) -> list[Place]:
        """Return the places from the root."""
        return [Place(path + below, is_priority) for below, is_priority in self.places]

    def in_order(self, changes: Sequence[Change]) -> tuple[Change, ...]:
        """Return what the function `in_order` does."""
        if self.order is None or any(change.value is None for change in changes):
            return in_order(changes)
        return tuple([changes[number] for number in self.order])


def _find_known(path: Path, body: dict[str, Json]) -> _KnownMembers | None:
    """Return what is known of the members of a PATCH, None if each has to be looked at."""
    if len(body) > _SHARED_MEMBERS or len("".join(body)) > _SHARED_CHARACTERS:
        return None
    known = _known_members(tuple(body))
    return known if known is not None and len(path) + known.depth <= MAX_DEPTH else None


@short_cache(_SHARED_PATCHES)
def _known_members(names: tuple[str, ...]) -> _KnownMembers | None:
    """Return the members that have these names; None if there are none, or some are wrong."""
    try:
        places = tuple([parse_relative(name) for name in names])
        _check_no_overlap(places)
    except (InvalidPath, InvalidData):
        return None
    depth = max([len(path) for path, _ in places], default=0)
    numbers = sorted(range(len(places)), key=places.__getitem__)
    has_priority = any(is_priority for _, is_priority in places)
    return _KnownMembers(places, depth, None if has_priority else tuple(numbers))


def make_member(path: Path, key: str, item: Json, max_string_bytes: int) -> Edit:
    """Return what one member of a PATCH of `path` does, as a PUT; raise `InvalidData`."""
    place = parse_member(path, key)
    pause()
    return make_put(place, item, max_string_bytes)


def parse_member(path: Path, key: str) -> Place:
    """Return the place that a member of a PATCH of `path` names; raise `InvalidData`."""
    try:
        return parse_relative(key, path)
    except InvalidPath as error:
        raise InvalidData(str(error)) from None


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


def changes_as_sent(edit: Edit) -> list[tuple[Change, Json]]:
    """Return each change of an edit with what was sent for it, in the order of the body."""
    if edit.method == "put":
        return [(edit.changes[0], edit.sent)]
    return list(zip(edit.by_member, _members_of(edit).values(), strict=True))


def _members_of(edit: Edit) -> dict[str, Json]:
    """Return the body of a PATCH."""
    members: Any = edit.sent
    return members  # type: ignore[no-any-return]  # `make_patch` has checked it


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


class Resolver:
    """Replaces the server values of one write.

    A body exists in two forms: as the JSON that was sent, and in the normal form. Both are resolved
    here with the same number before, so what is echoed and what is written cannot differ. Pauses.
    """

    def __init__(self, now: int, before: View | None) -> None:
        """Resolve with `now`, milliseconds since 1970, and the numbers in the tree before.

        Without `before` increments stay as they were sent.
        """
        self._now = now
        self._before = before
        # By plain tuples of text: unlike places, the garbage collector does not visit them.
        self._numbers: dict[Path, int | float | None] = {}

    def resolve_value(self, value: Unresolved, path: Path) -> Value:
        """Return the normal form to be written at `path` with its placeholders replaced.

        Raises `InvalidData` if a sum is not finite.
        """
        if isinstance(value, dict):
            return {key: self._member(key, child, path) for key, child in value.items()}
        if isinstance(value, Timestamp | Increment):
            # Without a tree an increment is an object, and the result is only for an echo.
            return self.resolve_placeholder(value, Place(path))  # type: ignore[return-value]
        return value

    def resolve_sent(self, json: Json, path: Path) -> Json:
        """Return the JSON that was sent for `path` with its server values replaced.

        `normalise` has accepted it. Raises `InvalidData` if a sum is not finite.
        """
        if isinstance(json, list):
            return [self.resolve_sent(item, (*path, str(at))) for at, item in enumerate(json)]
        if not isinstance(json, dict):
            return json
        if SERVER_VALUE in json:
            return self.resolve_placeholder(parse_placeholder(json), Place(path))
        return {key: self._sent_member(key, item, path) for key, item in json.items()}

    def resolve_sent_priority(self, json: Json, path: Path) -> Json:
        """Return the priority that was sent for the node at `path`, server values replaced."""
        if isinstance(json, dict):
            return self.resolve_placeholder(parse_placeholder(json), Place(path, True))
        return json

    def resolve_placeholder(self, placeholder: Placeholder, place: Place) -> Json:
        """Return what one placeholder becomes at a place; raise `InvalidData`."""
        if isinstance(placeholder, Timestamp):
            return self._now
        if self._before is None:
            return {SERVER_VALUE: {"increment": placeholder.by}}
        key = (*place.path, PRIORITY) if place.is_priority else place.path
        if key not in self._numbers:
            pause()  # a body may have tens of thousands, and reading is what takes long
            path, is_priority = place
            present = self._before.priority(path) if is_priority else self._before.peek(path)
            if isinstance(present, bool) or not isinstance(present, int | float):
                present = None
            self._numbers[key] = present
        # A member of a long body may come again with another increment.
        return self._add(self._numbers[key], placeholder.by)

    def _add(self, present: int | float | None, by: int | float) -> int | float:
        if present is None:
            return by
        try:
            return add(present, by)
        except ValueError as error:
            raise InvalidData(str(error)) from None

    def _member(self, key: str, child: Unresolved, path: Path) -> Value:
        if key == PRIORITY:
            if isinstance(child, Timestamp | Increment):
                # As in `resolve_value`: only an echo has an object here.
                return self.resolve_placeholder(child, Place(path, True))  # type: ignore[return-value]
            return self.resolve_value(child, path)
        return self.resolve_value(child, path if key == VALUE else (*path, key))

    def _sent_member(self, key: str, item: Json, path: Path) -> Json:
        if key == PRIORITY:
            return self.resolve_sent_priority(item, path)
        return self.resolve_sent(item, path if key == VALUE else (*path, key))


def resolve(edit: Edit, now: int, view: View) -> Edit:
    """Return the edit with its server values replaced.

    `now` is in milliseconds since 1970, `view` the tree before the edit. Raises `InvalidData` if an
    increment leaves the range of numbers.
    """
    if not edit.has_placeholders:
        return edit
    resolver = Resolver(now, view)
    resolved = {change.place: resolve_change(change, resolver) for change in edit.changes}
    return Edit(
        edit.method,
        edit.place,
        _resolve_sent(edit, resolver),
        tuple(resolved.values()),
        by_member=tuple([resolved[change.place] for change in edit.by_member]),
    )


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
    shown even if the node that has it does not exist.
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
    nodes = []
    for key in path:
        container = node if isinstance(node, dict) and VALUE not in node else None
        nodes.append((key, node, container))
        node = None if container is None else container.get(key)
    for key, node, container in reversed(nodes):
        if value is None:
            if container is None or key not in container:
                value = node
            else:
                rest = {name: item for name, item in container.items() if name != key}
                value = rest if rest.keys() - {PRIORITY} else None
        elif container is None:
            value = with_priority({key: value}, priority_of(node))
        else:
            changed = {**container, key: value}
            value = changed if key in container else sort_members(changed)
    return value


def set_priority(node: Value, path: Path, priority: Priority | None) -> Value:
    """Return `node` with another priority at `path` below it; nothing stays nothing."""
    if not path:
        return with_priority(node, priority)
    container = container_of(node)
    if container is None or path[0] not in container:
        return node
    return {**container, path[0]: set_priority(container[path[0]], path[1:], priority)}


class Draft:
    """A value that is being changed: many changes in O(size + changes).

    Its methods have the same effect as `set_value` and `set_priority`. `set_value` leaves its
    argument as it is, and so copies and sorts a container for each change in it. A draft changes
    its own containers in place and sorts each of them once, at the end. Values that changes bring
    still belong to the caller: a container of theirs is copied before it is changed.
    """

    def __init__(self, value: Value) -> None:
        """Take ownership of `value`: no other code may use it afterwards."""
        self._value = value
        self._borrowed: dict[int, dict[str, Value]] = {}
        self._unsorted: dict[int, dict[str, Value]] = {}

    def at(self, path: Path) -> Value:
        """Return what is at `path`, to be read only."""
        return value_at(self._value, path)

    def set(self, path: Path, value: Value) -> None:
        """Put `value` in place of what is at `path`."""
        container = self._find_own(path[:-1]) if path and value is not None else None
        if container is None:
            self._value = self._set(self._value, path, value)
        else:
            self._put(container, path[-1], self._borrow(value) if type(value) is dict else value)

    def set_priority(self, path: Path, priority: Priority | None) -> None:
        """Give the node at `path` another priority; nothing stays nothing."""
        self._value = self._set_priority(self._value, path, priority)

    def finish(self) -> Value:
        """Return the changed value; the draft must not be used after that."""
        for container in self._unsorted.values():
            ordered = sort_members(container)
            container.clear()
            container.update(ordered)
        return self._value

    def _find_own(self, path: Path) -> dict[str, Value] | None:
        """Return the container at `path` if it and all above may be changed in place."""
        node, borrowed = self._value, self._borrowed
        for key in path:
            if type(node) is not dict or (borrowed and id(node) in borrowed):
                return None
            node = node.get(key)
        if type(node) is not dict or VALUE in node or (borrowed and id(node) in borrowed):
            return None
        return node

    def _set(self, node: Value, path: Path, value: Value) -> Value:
        if not path:
            return self._borrow(value)
        key = path[0]
        container = container_of(node)
        if container is None:
            child = self._set(None, path[1:], value)
            return node if child is None else with_priority({key: child}, priority_of(node))
        own = self._own(container)
        child = self._set(own.get(key), path[1:], value)
        if child is not None:
            self._put(own, key, child)
        elif key in own:
            del own[key]
        return own if len(own) > (PRIORITY in own) else None

    def _set_priority(self, node: Value, path: Path, priority: Priority | None) -> Value:
        container = container_of(node)
        if container is None:
            return node if path else with_priority(node, priority)
        if path and path[0] not in container:
            return node
        own = self._own(container)
        if path:
            own[path[0]] = self._set_priority(own[path[0]], path[1:], priority)
            return own
        changed = with_priority(own, priority)
        if changed is not own and isinstance(changed, dict):
            self._unsorted[id(changed)] = changed
        return changed

    def _put(self, own: dict[str, Value], key: str, child: Value) -> None:
        if key not in own:
            self._unsorted[id(own)] = own
        own[key] = child

    def _borrow(self, value: Value) -> Value:
        """Record that a value still belongs to the caller."""
        if isinstance(value, dict):
            self._borrowed[id(value)] = value
        return value

    def _own(self, node: dict[str, Value]) -> dict[str, Value]:
        """Return a container that may be changed in place of `node`."""
        if self._borrowed.get(id(node)) is not node:
            return node
        for child in node.values():
            self._borrow(child)
        return dict(node)
