"""Merging a document that comes in fragments: a PATCH, however large its body is.

Each member of the document is a place of its own. Members that are whole in a fragment are applied
as they come; one that comes in several is written as a PUT of its place would be (`bulk_writer`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from heapq import merge
from itertools import islice
from typing import Final, overload

from treedbd.limits import MAX_PATCH_MEMBERS
from treedbd.loop import pause
from treedbd.store.bulk_writer import BulkWriter, WritesNodes
from treedbd.tree.edit import (
    Resolver,
    count_nodes,
    make_member,
    overlap,
    parse_member,
    resolve_change,
    resolve_member,
)
from treedbd.tree.fragments import Fragment
from treedbd.tree.path import sort_keys
from treedbd.tree.types import (
    PRIORITY,
    STORED,
    Change,
    Chunks,
    InvalidData,
    Json,
    Path,
    Place,
    Value,
)
from treedbd.tree.value import TEXT_AT_ONCE, compact, print_text

_CHECKED_AT_ONCE: Final = 256
_ADDED_AT_ONCE: Final = 128
_TOGETHER: Final = 8
"""Children of one container from which on they are added to it together."""
_REMOVED_AT_ONCE: Final = 64


class PatchedPlaces(Sequence[Change]):
    """The places that a PATCH has written, in the order of its members, without their values.

    Only the keys are kept: a million objects would make each full garbage collection take long.
    Iterating pauses.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._members: dict[str, bool] = {}

    def add(self, key: str, *, is_removed: bool = False) -> None:
        """Record that a member was written; of one that comes again the last one counts."""
        self._members[key] = is_removed

    def __len__(self) -> int:
        return len(self._members)

    def __iter__(self) -> Iterator[Change]:
        for number, (key, is_removed) in enumerate(self._members.items()):
            if number % _CHECKED_AT_ONCE == 0:
                pause()
            yield Change(parse_member(self._path, key), None if is_removed else STORED)

    @overload
    def __getitem__(self, index: int) -> Change: ...
    @overload
    def __getitem__(self, index: slice) -> list[Change]: ...
    def __getitem__(self, index: int | slice) -> Change | list[Change]:
        if isinstance(index, slice):
            return list(islice(self, *index.indices(len(self))))
        return next(islice(self, range(len(self))[index], None))


class BulkPatch:
    """Merges a document into the node at a path.

    Attributes:
        changes: the places that were written.
        nodes: how many members and items have come.
        has_placeholders: whether there were server values.

    """

    def __init__(
        self,
        writer: WritesNodes,
        path: Path,
        resolver: Resolver,
        max_string_bytes: int,
        shown_bytes: int,
    ) -> None:
        """Do as `BulkWriter`; keep what was sent if it has at most `shown_bytes` bytes."""
        self.changes: Final = PatchedPlaces(path)
        self.nodes = 0
        self.has_placeholders = False
        self._writer = writer
        self._path = path
        self._resolver = resolver
        self._max_string_bytes = max_string_bytes
        self._places: list[list[Path]] = []  # in order in each of the lists
        self._last: dict[str, Value] = {}  # removals and priorities, which are done at the end
        self._long: BulkWriter | None = None
        self._long_key = ""
        self._sent: list[bytes] | None = []
        self._shown: list[bytes] = []  # with the same objects, where both are the same
        self._is_shown_otherwise = False
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
        groups: dict[Path, dict[str, Value]] = {}
        places, sent_members, shown = [], dict[str, Json](), dict[str, Json]()
        for key, item in body.items():
            place, value, sent = self._read(key, item)
            sent_members[key] = sent
            shown[self._name(place)] = None if sent in ({}, []) else sent
            places.append(_sortable(place))
            self._last.pop(key, None)
            self.changes.add(key, is_removed=value is None)
            if place.is_priority or value is None or not place.path:
                self._last[key] = value
            else:
                groups.setdefault(place.path[:-1], {})[place.path[-1]] = value
        self._places.append(sorted(places))
        self._check_count()
        self._show(sent_members, shown)
        self._write(groups)

    def _name(self, place: Place) -> str:
        """Return how watchers receive the name of a member."""
        below = place.path[len(self._path) :]
        return "/".join((*below, PRIORITY) if place.is_priority else below)

    def _write(self, groups: dict[Path, dict[str, Value]]) -> None:
        """Write values by their containers, many children of one container together."""
        scattered: list[Change] = []
        for path, children in groups.items():
            if len(children) < _TOGETHER:
                scattered += [Change(Place((*path, key)), children[key]) for key in children]
                continue
            keys = iter(sort_keys(children))
            while some := {key: children[key] for key in islice(keys, _ADDED_AT_ONCE)}:
                self._writer.add_children(path, some)
                pause()
        changes = iter(sorted(scattered, key=lambda change: change.place))
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
        last = iter(self._last.items())
        while some := list(islice(last, _REMOVED_AT_ONCE)):
            changes = [Change(parse_member(self._path, key), value) for key, value in some]
            self._writer.apply(sorted(changes, key=lambda change: change.place))
            pause()

    def _check_overlaps(self) -> None:
        """Raise `InvalidData` if a place is above another one; pauses."""
        upper: Path | None = None
        distinct = 0
        for number, lower in enumerate(merge(*self._places)):
            if lower != upper:
                distinct += 1
                if upper is not None and lower[: len(upper)] == upper:
                    raise overlap(upper, lower)
                upper = lower
            if number % _CHECKED_AT_ONCE == 0:
                pause()
        # Of a member that came twice the last one counts; different ones must not name one place.
        if distinct < len(self.changes):
            raise InvalidData("Two keys of the body name the same place.")

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
            self._long.add(
                Fragment(tuple(below), fragment.parts, fragment.first, max(0, fragment.begun - 1))
            )

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
        self._sent += members
        if sent != shown:
            self._is_shown_otherwise = True
            members = _print_members(shown)
        self._shown += members


def _print_members(members: dict[str, Json]) -> list[bytes]:
    """Print members with a comma before them, a long string in chunks."""
    ((key, item), *others) = members.items()
    if not others and type(item) is str and len(item) > TEXT_AT_ONCE:
        return [b",%b:" % compact(key), *print_text(item)]
    return [b",", compact(members)[1:-1]]


def _wrapped(members: Sequence[bytes]) -> Chunks:
    """Return an object that has members, each with a comma before it."""
    first, *others = members or (b"",)
    return (b"{", first[1:], *others, b"}")


def _sortable(place: Place) -> Path:
    """Return a path that a place has alone; that of a priority is below its node's."""
    return (*place.path, PRIORITY) if place.is_priority else place.path
