"""Documents of any size, written or merged fragment by fragment (`tree.fragments`).

`BulkWriter` sets a node to a document, a PUT; the result is what the same document leaves that is
written at once. In memory is one fragment at a time, and what is known of the containers that are
open: those that came in several fragments, of which more may come. Their priorities are set when
they have ended.

`BulkPatch` merges a document into a node, a PATCH. Each member of the document is a place of its
own. Members that are whole in a fragment are applied as they come; one that comes in several is
written by a `BulkWriter`, as a PUT of its place would be.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from heapq import merge
from itertools import chain, islice
from typing import Any, Final, TypeAlias, overload

import attrs
import orjson

from treedbd.limits import MAX_PATCH_MEMBERS
from treedbd.loop import pause, paused
from treedbd.store.node_writer import NodeWriter
from treedbd.tree.edit import (
    SERVER_VALUE,
    Increment,
    Resolver,
    Timestamp,
    canonicalise_numbers,
    check_priority,
    count_nodes,
    make_member,
    normalise,
    overlap,
    parse_member,
    resolve_change,
    resolve_member,
)
from treedbd.tree.fragments import Fragment
from treedbd.tree.path import is_at_or_above
from treedbd.tree.types import (
    PRIORITY,
    STORED,
    VALUE,
    Change,
    Chunks,
    InvalidData,
    Json,
    Path,
    Place,
    Value,
)
from treedbd.tree.value import TEXT_AT_ONCE, compact, nest, print_text, sort_members

_OTHER_MEMBERS: Final = f"An object with {VALUE} must have no other member but {PRIORITY}."


_CHECKED_AT_ONCE: Final = 256
_ADDED_AT_ONCE: Final = 128
_TOGETHER: Final = 8
"""Children of one container from which on they are read, and added to it, together."""
_PRINTED_TIMES: Final = 4
"""How often a fragment may be printed to find which containers are short."""
_NOT_PLAIN: Final = frozenset({"", PRIORITY, VALUE, SERVER_VALUE})
"""What is not the name of a child that can be read with others."""
_REMOVED_AT_ONCE: Final = 64


def _printable(fragment: Fragment) -> int:
    return 0 if fragment.long_parts else _PRINTED_TIMES * fragment.size


class BulkWriter:
    """Sets the node at a path to a document that comes in fragments.

    Attributes:
        nodes: how many members and items have come.
        has_placeholders: whether there were server values.
        has_begun: whether anything has been written.
        printed: the document if it is a long string, which is not read again then; else None.

    """

    def __init__(
        self, writer: NodeWriter, path: Path, resolver: Resolver, max_string_bytes: int
    ) -> None:
        """Write by `writer`; `resolver` replaces server values, and reads the tree before."""
        self.nodes = 0
        self.has_placeholders = False
        self.printed: Chunks | None = None
        self._writer = writer
        self._path = path
        self._resolver = resolver
        self._max_string_bytes = max_string_bytes
        self.has_begun = False
        # Of open containers, which are at or above the last fragment:
        self._priorities: dict[Path, Any] = {}
        self._leaves: set[Path] = set()
        self._containers: set[Path] = set()

    def add(self, fragment: Fragment) -> None:
        """Write a fragment; raise `InvalidData`."""
        _check_path(fragment.path)
        json = fragment.parse()
        pause()
        self.nodes += count_nodes(json)
        path = (*self._path, *fragment.path)
        above = path[: len(self._path) + fragment.begun]
        self._end_others(path)
        if fragment.begun <= len(fragment.path):
            self._forget(above)
        members, value = self._read(json, path, fragment.first)
        self._writer.printable = _printable(fragment)
        if path == self._path and type(value) is str and fragment.long_parts:
            self.printed = tuple(print_text(value))
        pause()
        if not self.has_begun:
            self._replace(self._path, path, value)
        elif fragment.begun <= len(fragment.path) and self._writer.peek(above) is not None:
            # An earlier member of the same name; the last one counts.
            self._replace(above, path, value)
        else:
            self._add_members(path, members, value)
        self._writer.printable = 0
        pause()

    def finish(self) -> None:
        """Write what can only be written when all fragments have been added."""
        if not self.has_begun:
            self._writer.apply([Change(Place(self._path), None)])
        self._set_priorities(list(self._priorities))

    def _read(self, json: Json, path: Path, first: int) -> tuple[Json, Value]:
        """Return the members of a fragment as they came, and its value in normal form."""
        if isinstance(json, list):
            json = {str(at): item for at, item in enumerate(paused(json), first)}
        for depth in range(len(self._path), len(path)):
            self._note_container(path[:depth])
        if isinstance(json, dict):
            if VALUE in json or path in self._leaves:
                self._expect_leaf(json, path)
            elif json.keys() - {PRIORITY}:
                self._note_container(path)
            if PRIORITY in json and VALUE not in json:
                json = dict(json)
                self._keep_priority(json.pop(PRIORITY), path)
            if SERVER_VALUE in json and self._writer.peek(path) is not None and self.has_begun:
                raise InvalidData(f"An object with {SERVER_VALUE} must have no other member.")
        normal = normalise(json, len(path), self._max_string_bytes)
        value: Any = normal.value
        if normal.has_placeholders:
            self.has_placeholders = True
            value = self._resolver.resolve_value(value, path)
        return json, value

    def _note_container(self, path: Path) -> None:
        if path in self._leaves:
            raise InvalidData(_OTHER_MEMBERS)
        self._containers.add(path)

    def _expect_leaf(self, json: dict[str, Json], path: Path) -> None:
        """Check that a container that came in several fragments holds a leaf and a priority."""
        if path in self._containers or json.keys() - {VALUE, PRIORITY}:
            raise InvalidData(_OTHER_MEMBERS)
        self._leaves.add(path)

    def _keep_priority(self, json: Json, path: Path) -> None:
        priority: Any = check_priority(json, self._max_string_bytes)
        if isinstance(priority, Timestamp | Increment):
            self.has_placeholders = True
            priority = self._resolver.resolve_placeholder(priority, Place(path, True))
        self._priorities[path] = priority

    def _end_others(self, path: Path) -> None:
        """End the containers that are not at or above `path`: they are complete."""
        ended = [each for each in self._priorities if not is_at_or_above(each, path)]
        if ended:
            self._set_priorities(ended)
        for seen in (self._leaves, self._containers):
            seen.difference_update([each for each in seen if not is_at_or_above(each, path)])

    def _set_priorities(self, paths: Sequence[Path]) -> None:
        priorities = [Change(Place(path, True), self._priorities.pop(path)) for path in paths]
        self._writer.apply(priorities)

    def _forget(self, above: Path) -> None:
        """Forget what was kept of an earlier member of the same name, and of all below it."""
        depth = len(above)
        for path in [path for path in self._priorities if len(path) >= depth]:
            del self._priorities[path]
        for seen in (self._leaves, self._containers):
            seen.difference_update([path for path in seen if len(path) >= depth])

    def _replace(self, above: Path, path: Path, value: Value) -> None:
        """Set the node at `above` to nothing but `value` at `path`."""
        if value is None and not self.has_begun:
            return  # what is there stays until there is something in its place
        self.has_begun = True
        self._writer.apply([Change(Place(above), nest(path[len(above) :], value))])

    def _add_members(self, path: Path, members: Json, value: Value) -> None:
        writer = self._writer
        if not isinstance(members, dict) or VALUE in members:
            writer.apply([Change(Place(path), value)])
            return
        children: dict[str, Value] = value if isinstance(value, dict) else {}
        gone = [key for key in members if key not in children]
        removed = [(*path, key) for key in gone if writer.peek((*path, key)) is not None]
        if removed:
            writer.apply([Change(Place(each), None) for each in removed])
        if children:
            writer.add_children(path, children)


def _check_path(path: Path) -> None:
    """Raise `InvalidData` for a container where only a leaf can be."""
    if PRIORITY in path:
        raise InvalidData("A priority must be a number or a string.")
    if VALUE in path:
        raise InvalidData(f"{VALUE} must be a string, a number, a boolean or null.")
    if SERVER_VALUE in path:
        raise InvalidData(f"An object with {SERVER_VALUE} must have no other member.")


class PatchedPlaces(Sequence[Change]):
    """The places that a PATCH has written, in the order of its members, without their values.

    Only the keys are kept: a million objects would make each full garbage collection take long.
    Iterating pauses.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._members: dict[str, bool] = {}
        self._parsed = "", path  # what precedes the last key of a member, as text and as a path

    def add(self, key: str, *, is_removed: bool = False) -> None:
        """Record that a member was written; of one that comes again the last one counts."""
        self._members[key] = is_removed

    def add_all(self, keys: Iterable[str], removed: Iterable[str]) -> None:
        """Record that members were written, some of which were removed by it."""
        self._members.update(dict.fromkeys(keys, False))
        self._members.update(dict.fromkeys(removed, True))

    def find_known(self, keys: Iterable[str]) -> set[str]:
        """Return those of some members that were written before."""
        return self._members.keys() & keys

    def __len__(self) -> int:
        return len(self._members)

    def __iter__(self) -> Iterator[Change]:
        for number, (key, is_removed) in enumerate(self._members.items()):
            if number % _CHECKED_AT_ONCE == 0:
                pause()
            yield Change(self._parse(key), None if is_removed else STORED)

    def _parse(self, key: str) -> Place:
        """Return the place of a member, which was checked before."""
        above, _, name = key.rpartition("/")
        if above == self._parsed[0] and name not in ("", PRIORITY):
            return Place((*self._parsed[1], name))
        place = parse_member(self._path, key)
        if name not in ("", PRIORITY):
            self._parsed = above, place.path[:-1]
        return place

    @overload
    def __getitem__(self, index: int) -> Change: ...
    @overload
    def __getitem__(self, index: slice) -> list[Change]: ...
    def __getitem__(self, index: int | slice) -> Change | list[Change]:
        if isinstance(index, slice):
            return list(islice(self, *index.indices(len(self))))
        return next(islice(self, range(len(self))[index], None))


@attrs.define
class _Siblings:
    """Members of a PATCH that name children of one container: their keys, and values by name."""

    keys: list[str] = attrs.Factory(list)
    children: dict[str, Json] = attrs.Factory(dict)

    @property
    def are_plain(self) -> bool:
        """Whether they are many, each of another name, and none is a priority."""
        names = self.children
        return len(self.keys) == len(names) >= _TOGETHER and names.keys().isdisjoint(_NOT_PLAIN)


@attrs.define
class _ReadMembers:
    """What was read of the members of a PATCH in one fragment.

    Attributes:
        together: many children of one container, in key order, by its path.
        scattered: other values.
        removed: the members that remove something.
        places: the places of members that were read one by one.
        sent, shown: the members as they came, and as watchers receive them.

    """

    together: dict[Path, dict[str, Value]] = attrs.Factory(dict)
    scattered: list[Change] = attrs.Factory(list)
    removed: list[str] = attrs.Factory(list)
    places: list[Path] = attrs.Factory(list)
    sent: dict[str, Json] = attrs.Factory(dict)
    shown: dict[str, Json] = attrs.Factory(dict)

    def add_children(self, path: Path, children: dict[str, Value]) -> None:
        """Add children of a container, in key order."""
        others = self.together.get(path)
        self.together[path] = children if others is None else sort_members({**others, **children})

    def show(self, keys: Iterable[str], names: Iterable[str], items: list[Json]) -> None:
        """Add members, with what they are called in the body and in events."""
        self.sent.update(zip(keys, items, strict=True))
        if {} in items or [] in items:
            items = [None if item in ({}, []) else item for item in items]
        self.shown.update(zip(names, items, strict=True))


def _by_container(members: dict[str, Json]) -> Iterable[_Siblings]:
    """Divide members of a PATCH by what precedes the last key."""
    found: dict[str, _Siblings] = {}
    for key, item in members.items():
        above, _, name = key.rpartition("/")
        siblings = found.get(above)
        if siblings is None:
            siblings = found[above] = _Siblings()
        siblings.keys.append(key)
        siblings.children[name] = item
    return found.values()


class BulkPatch:
    """Merges a document that comes in fragments into the node at a path.

    Attributes:
        changes: the places that were written.
        nodes: how many members and items have come.
        has_placeholders: whether there were server values.

    """

    def __init__(
        self,
        writer: NodeWriter,
        path: Path,
        resolver: Resolver,
        max_string_bytes: int,
        shown_bytes: int,
    ) -> None:
        """Write as `BulkWriter` does; keep what was sent if it has at most `shown_bytes` bytes."""
        self.changes: Final = PatchedPlaces(path)
        self.nodes = 0
        self.has_placeholders = False
        self._writer = writer
        self._path = path
        self._resolver = resolver
        self._max_string_bytes = max_string_bytes
        self._places: list[list[Path]] = []  # in order in each of the lists
        self._siblings: list[tuple[Path, list[str]]] = []  # other places: containers, and names
        self._last: dict[str, Value] = {}  # removals and priorities, which are done at the end
        self._long: BulkWriter | None = None
        self._long_key = ""
        self._sent: list[_Printed] | None = []
        self._shown: list[_Printed] = []  # with the same objects, where both are the same
        self._is_shown_otherwise = False
        self._repeated: set[str] = set()  # members that came in several fragments
        self._room = shown_bytes

    @property
    def sent(self) -> Chunks | None:
        """The document, printed compactly, server values resolved; None if it is too long."""
        return None if self._sent is None else _wrapped(self._sent)

    @property
    def event(self) -> Chunks | None:
        """The document as watchers receive it: what is empty is null; None if it is too long."""
        if self._sent is None or not self._is_shown_otherwise:
            return self.sent
        return _wrapped(self._shown)

    def add(self, fragment: Fragment) -> None:
        """Write a fragment; raise `InvalidData`."""
        if fragment.path:
            self._add_part(fragment)
            return
        self._end_long()
        body = fragment.parse()
        pause()
        if not isinstance(body, dict):
            raise InvalidData("The body of a PATCH must be an object, or null.")
        self.nodes += count_nodes(body)
        read = _ReadMembers()
        for siblings in _by_container(body):
            if not (siblings.are_plain and self._read_siblings(siblings, read)):
                for key in siblings.keys:
                    self._read_member(key, body[key], read)
            pause()
        self._repeated |= self.changes.find_known(body)
        self.changes.add_all(body, read.removed)
        if read.places:
            self._places.append(sorted(read.places))
        self._check_count()
        self._show({key: read.sent[key] for key in body}, read.shown)
        self._writer.printable = _printable(fragment)
        self._write(read)
        self._writer.printable = 0

    def _read_siblings(self, siblings: _Siblings, read: _ReadMembers) -> bool:
        """Read children of one container together; return False if there are server values."""
        keys, items = siblings.keys, siblings.children
        path = parse_member(self._path, keys[0]).path[:-1]
        normal: Any = normalise(items, len(path), self._max_string_bytes)
        if normal.has_placeholders:
            return False
        if normal.has_changed_numbers:
            changed: Any = canonicalise_numbers(items)
            items = changed
        children: dict[str, Value] = normal.value or {}
        if self._last:
            for key in keys:
                self._last.pop(key, None)
        if len(children) < len(items):
            gone = [key for key, name in zip(keys, items, strict=True) if name not in children]
            self._last.update(dict.fromkeys(gone))
            read.removed += gone
        self._siblings.append((path, list(items)))
        read.add_children(path, children)
        above = "".join([f"{key}/" for key in path[len(self._path) :]])
        read.show(keys, [above + name for name in items], list(items.values()))
        return True

    def _read_member(self, key: str, item: Json, read: _ReadMembers) -> None:
        place, value, sent = self._read(key, item)
        read.show([key], [self._name(place)], [sent])
        read.places.append(_sortable(place))
        self._last.pop(key, None)
        if value is None:
            read.removed.append(key)
        if place.is_priority or value is None or not place.path:
            self._last[key] = value
        else:
            read.scattered.append(Change(place, value))

    def _name(self, place: Place) -> str:
        """Return how watchers receive the name of a member."""
        below = place.path[len(self._path) :]
        return "/".join((*below, PRIORITY) if place.is_priority else below)

    def _write(self, read: _ReadMembers) -> None:
        """Write values by their containers, many children of one container together."""
        for path, children in read.together.items():
            if children:
                self._writer.add_children(path, children)
                pause()
        changes = iter(sorted(read.scattered, key=lambda change: change.place))
        while few := list(islice(changes, _ADDED_AT_ONCE)):
            self._writer.apply(few)
            pause()

    def _check_count(self) -> None:
        if len(self.changes) > MAX_PATCH_MEMBERS:
            raise InvalidData(f"A PATCH may have at most {MAX_PATCH_MEMBERS} members.")

    def _read(self, key: str, item: Json) -> tuple[Place, Value, Json]:
        """Return the place of a member, its value in normal form, and what is shown of it."""
        part = make_member(self._path, key, item, self._max_string_bytes)
        change = part.changes[0]
        if not part.has_placeholders:
            return change.place, change.value, part.sent
        self.has_placeholders = True
        sent = resolve_member(change.place, item, self._resolver)
        change = resolve_change(change, self._resolver)
        return change.place, change.value, sent

    def finish(self) -> None:
        """Write what comes last; raise `InvalidData` if two members overlap."""
        self._end_long()
        self._check_overlaps()
        self._drop_repeated()
        last = iter(self._last.items())
        while some := list(islice(last, _REMOVED_AT_ONCE)):
            changes = [Change(parse_member(self._path, key), value) for key, value in some]
            self._writer.apply(sorted(changes, key=lambda change: change.place))
            pause()

    def _check_overlaps(self) -> None:
        """Raise `InvalidData` if a place is above another one; pauses."""
        if not self._places and len({path for path, _ in self._siblings}) == 1:
            distinct = self._count_siblings()  # none is above another one
        else:
            distinct = self._compare_places()
        # Of a member that came twice the last one counts; different ones must not name one place.
        if distinct < len(self.changes):
            raise InvalidData("Two keys of the body name the same place.")

    def _count_siblings(self) -> int:
        found = set[str]()
        for _, names in self._siblings:
            found.update(names)
            pause()
        return len(found)

    def _compare_places(self) -> int:
        """Return how many places there are; raise `InvalidData` if one is above another one."""
        upper: Path | None = None
        distinct = 0
        groups = ([(*path, name) for name in sorted(names)] for path, names in self._siblings)
        for number, lower in enumerate(merge(*self._places, *paused(groups, 1))):
            if lower != upper:
                distinct += 1
                if upper is not None and lower[: len(upper)] == upper:
                    raise overlap(upper, lower)
                upper = lower
            if number % _CHECKED_AT_ONCE == 0:
                pause()
        return distinct

    def _drop_repeated(self) -> None:
        """Show the last one of members that came again; pauses."""
        if self._sent is None or not self._repeated:
            return
        self._sent = _keep_last(self._sent, self._repeated)
        names = {self._name(parse_member(self._path, key)) for key in self._repeated}
        self._shown = _keep_last(self._shown, names)

    def _add_part(self, fragment: Fragment) -> None:
        """Write a part of a member that comes in several fragments."""
        self._sent = None
        key, *below = fragment.path
        if fragment.begun <= 1:
            self._end_long()
            place = parse_member(self._path, key)
            if place.is_priority:
                raise InvalidData("A priority must be a number or a string.")
            self._last.pop(key, None)
            self._places.append([_sortable(place)])
            self.changes.add(key)
            self._check_count()
            self._long_key = key
            self._long = BulkWriter(
                self._writer, place.path, self._resolver, self._max_string_bytes
            )
        if self._long is not None:
            begun = max(0, fragment.begun - 1)
            self._long.add(fragment._replace(path=tuple(below), begun=begun))

    def _end_long(self) -> None:
        if self._long is not None:
            if self._long.has_begun:
                self._long.finish()
            else:
                self.changes.add(self._long_key, is_removed=True)
                self._last[self._long_key] = None
            self.nodes += self._long.nodes
            self.has_placeholders |= self._long.has_placeholders
            self._long = None

    def _show(self, sent: dict[str, Json], shown: dict[str, Json]) -> None:
        if self._sent is None or not sent:
            return
        members = _print_members(sent)
        self._room -= sum(map(len, members))
        if self._room < 0:
            self._sent = None
            self._shown.clear()
            return
        self._sent.append(members)
        if sent != shown:
            self._is_shown_otherwise = True
            members = _print_members(shown)
        self._shown.append(members)


_Printed: TypeAlias = list[bytes]
"""Members of one fragment: a comma, then their text; or name and colon, then a long string."""


def _print_members(members: dict[str, Json]) -> _Printed:
    """Print members with a comma before them, a long string in chunks."""
    ((key, item), *others) = members.items()
    if not others and type(item) is str and len(item) > TEXT_AT_ONCE:
        return [b",%b:" % compact(key), *print_text(item)]
    return [b",", compact(members)[1:-1]]


def _keep_last(printed: Sequence[_Printed], repeated: set[str]) -> list[_Printed]:
    """Return printed members without those that come `repeated` in a later fragment; pauses."""
    later = set[str]()
    kept: list[_Printed] = []
    for each in reversed(printed):
        is_long = each[0] != b","
        members = orjson.loads(b"{%b%b}" % (each[0][1:], b"0" if is_long else each[1]))
        again = members.keys() & later
        later |= members.keys() & repeated
        left = {key: item for key, item in members.items() if key not in again}
        if left:
            kept.append(_print_members(left) if again else each)
        pause()
    return kept[::-1]


def _wrapped(members: Sequence[_Printed]) -> Chunks:
    """Return an object that has members, each with a comma before it."""
    first, *others = chain.from_iterable(members or ((b"",),))
    return (b"{", first[1:], *others, b"}")


def _sortable(place: Place) -> Path:
    """Return a path that a place has alone; that of a priority is below its node's."""
    return (*place.path, PRIORITY) if place.is_priority else place.path
