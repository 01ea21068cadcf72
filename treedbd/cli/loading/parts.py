"""A document in parts: lists of places with their values, which are written one part at a time.

Theory of operation. `tree.fragments` cuts a document into fragments, each with some members of one
container. Here each member becomes a place with a value, and about `PART_BYTES` of them are a part.
All parts, written in this order, leave what the whole document would leave:

- The first fragment of a container replaces the whole container, since an earlier member may have
  had the same name. Later fragments add their members to it.
- No place of a part is above another. What is written below a place of the same part is put into
  its value; what is written above others removes them from the part.
- The priority of a container that came in several fragments is written after everything else,
  because a priority needs a node. So is that of the document.

The same document always has the same parts, so an import that was interrupted can go on by their
number. Every part sets places to values: written twice, it has the same effect.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any, Final, TypeAlias

import attrs

from treedbd.limits import MIB
from treedbd.tree.edit import Edit, make_patch, make_put
from treedbd.tree.fragments import Fragment
from treedbd.tree.path import check_keys
from treedbd.tree.types import PRIORITY, VALUE, InvalidData, InvalidPath, Json, Path, Place

PART_BYTES: Final = MIB
PART_MEMBERS: Final = 20_000
_NONE: Final = object()

Check: TypeAlias = Callable[[Path, Json], None]
"""Called with members of the container at a path; raises `InvalidData` if they are not valid."""


class InvalidMember(InvalidData):
    """What is at `path` in a document cannot be written."""

    def __init__(self, sentence: str, path: Path) -> None:
        super().__init__(sentence)
        self.path = path


@attrs.define
class Part:
    """Places, as paths below the target, and their values; the empty path is the target itself.

    A path may end with `.priority`. `above` are the paths above the places. `size` is about the
    bytes of the JSON, `records` the number of the members that the document has there. With
    `follows_all` all parts before must have been written.
    """

    members: dict[Path, Json] = attrs.Factory(dict)
    above: set[Path] = attrs.Factory(set)
    size: int = 0
    records: int = 0
    follows_all: bool = False

    def body(self) -> dict[str, Json]:
        """Return the body of a PATCH of the target that writes the part."""
        return {"/".join(path): value for path, value in self.members.items()}

    def edit(self, target: Path, max_string_bytes: int) -> Edit:
        """Return the edit that writes the part; raise `InvalidData`."""
        if () in self.members:
            return make_put(Place(target), self.members[()], max_string_bytes)
        return make_patch(target, self.body(), max_string_bytes)

    def conflicts(self, other: Part) -> bool:
        """Return whether the order of two parts matters: places are equal or above another."""
        if self.follows_all or other.follows_all:
            return True
        mine, others = self.members.keys(), other.members.keys()
        return not (
            mine.isdisjoint(others)
            and mine.isdisjoint(other.above)
            and others.isdisjoint(self.above)
        )


class PartMaker:
    """Makes parts of the fragments of one document."""

    def __init__(
        self,
        *,
        is_merged: bool = False,
        is_cut: bool = False,
        part_bytes: int = PART_BYTES,
        check: Check | None = None,
    ) -> None:
        """With `is_merged` other children of the target stay, also if the document is short.

        With `is_cut` no fragment is the whole document. A part has about `part_bytes`.
        """
        self._check = check
        self._part_bytes = part_bytes
        self._is_merged = is_merged
        self._first: Fragment | None = None
        self._is_cut = is_cut
        self._part = Part()
        self._priorities: dict[Path, Json] = {}
        self._leaves: set[Path] = set()
        self._bare: set[Path] = set()  # containers of which only a priority has come
        self._special: set[Path] = set()  # what is at or above one of these

    def add(self, fragment: Fragment) -> Iterator[Part]:
        """Yield the parts that are complete with the next fragment; raise `InvalidData`."""
        if not self._is_cut and self._first is None:
            self._first = fragment  # if no other follows, it is the whole document
            return
        if self._first is not None:
            first, self._first, self._is_cut = self._first, None, True
            yield from self._add(first)
        yield from self._add(fragment)

    def add_member(self, key: str, value: Json, size: int) -> Iterator[Part]:
        """Yield the parts that are complete with a child of the target; raise `InvalidData`."""
        if key != PRIORITY:
            check_member_keys((key,))
        if self._check is not None:
            self._check((), {key: value})
        if key == PRIORITY:
            self._priorities[()] = value
            self._mark(())
        else:
            self._open(())
            self._set((key,), value)
        yield from self._count(size, 1)

    def finish(self) -> Iterator[Part]:
        """Yield the parts that are left."""
        if self._first is not None:
            yield from self._whole(self._first)
        if self._part.members:
            yield self._part
        places = iter(self._priorities.items())
        while last := {(*path, PRIORITY): item for path, item in islice(places, PART_MEMBERS)}:
            yield Part(last, follows_all=True)

    def _whole(self, fragment: Fragment) -> Iterator[Part]:
        json = _nest(fragment.path, fragment.parse())
        is_container = isinstance(json, list) or (
            isinstance(json, dict) and all(key == PRIORITY or key[:1] != "." for key in json)
        )
        if self._is_merged and is_container:
            yield from self._add(fragment)
            return
        if self._is_merged and json is None:
            return  # no children
        if self._check is not None:
            self._check((), json)
        records = len(json) if isinstance(json, list | dict) else 1
        yield Part({(): json}, set(), fragment.size, records)

    def _add(self, fragment: Fragment) -> Iterator[Part]:
        path, begun = fragment.path, fragment.begun
        members = members_of(fragment)
        check_member_keys(path)
        if self._check is None:
            check_member_keys([key for key in members if key[:1] != "."])
        else:
            self._check(path, members)
        is_new = begun <= len(path)
        earlier = _NONE if is_new else self._priorities.get(path, _NONE)
        priority = members.pop(PRIORITY, earlier)
        is_first = is_new or path in self._bare
        is_leaf = any(key[:1] == "." for key in members)
        if (path in self._leaves and members and not is_new) or (
            is_leaf and (not is_first or members.keys() != {VALUE})
        ):
            raise _not_a_leaf(path)
        self._place(path, begun, members, is_whole=is_leaf or (is_new and path != ()))
        if members:
            self._bare.discard(path)
        elif is_new:
            self._bare.add(path)
        if is_leaf:
            self._leaves.add(path)
            self._mark(path)
        if priority is not _NONE:
            self._priorities[path] = priority  # type: ignore[assignment]  # it is JSON
            self._mark(path)
        yield from self._count(fragment.size, len(members))

    def _place(self, path: Path, begun: int, members: dict[str, Json], *, is_whole: bool) -> None:
        """Set members of a container; with `is_whole` they are all that it has so far."""
        if is_whole:
            top = min(max(begun, 1), len(path))
            self._open(path[: max(top - 1, 0)])
            self._set(path[:top], _nest(path[top:], members))
            return
        self._open(path)
        for key, value in members.items():
            self._set((*path, key), value)

    def _open(self, path: Path) -> None:
        """Prepare to set members of a container."""
        self._part.above.update([path[:at] for at in range(len(path) + 1)])

    def _set(self, path: Path, value: Json) -> None:
        part = self._part
        if self._priorities or self._leaves:
            self._forget(path)
        for at in range(len(path)):
            if path[:at] in part.members:
                _set_inside(part.members, path, at, value)
                return
        if path in part.above:
            for below in [each for each in part.members if each[: len(path)] == path]:
                del part.members[below]
        part.members[path] = value

    def _mark(self, path: Path) -> None:
        self._special.update([path[:at] for at in range(len(path) + 1)])

    def _forget(self, path: Path) -> None:
        """Forget the priorities and leaves at a place and below it, which is replaced."""
        if path in self._special:
            for each in [each for each in self._priorities if each[: len(path)] == path]:
                del self._priorities[each]
            self._leaves = {each for each in self._leaves if each[: len(path)] != path}

    def _count(self, size: int, records: int) -> Iterator[Part]:
        part = self._part
        part.size += size
        part.records += records
        if part.size >= self._part_bytes or len(part.members) >= PART_MEMBERS:
            yield part
            self._part = Part()


def members_of(fragment: Fragment) -> dict[str, Json]:
    """Return the members of a container in a fragment; raise `InvalidData`."""
    parsed: Any = fragment.parse()
    if isinstance(parsed, list):
        return {str(at): item for at, item in enumerate(parsed, fragment.first)}
    return parsed  # type: ignore[no-any-return]  # a fragment of a container is one


def check_member_keys(keys: Iterable[str]) -> None:
    """Check the keys of a path, or of a container; raise `InvalidData`."""
    try:
        check_keys(list(keys))
    except InvalidPath as error:
        raise InvalidData(str(error)) from None


def _nest(path: Path, value: Json) -> Json:
    for key in reversed(path):
        value = {key: value}
    return value


def _set_inside(members: dict[Path, Json], path: Path, at: int, value: Json) -> None:
    """Set what is at `path` in the value at `path[:at]`, which is there."""
    node: Any = members[path[:at]]
    for key in path[at:-1]:
        node = node.setdefault(key, {})
    node[path[-1]] = value


def _not_a_leaf(path: Path) -> InvalidMember:
    sentence = f"An object with {VALUE} must have no other member but {PRIORITY}."
    return InvalidMember(sentence, path)
