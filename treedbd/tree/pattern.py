"""Patterns of paths, such as `/orders/$id`, and the places of their shape that an edit may change.

A pattern has as many keys as the paths that it matches; a capture (`$id`) matches any one key. A
`PatternSet` joins the patterns of a database as a tree, so that a write is compared with all of
them at once. `touched` returns the places that an edit may have changed:

- A change at a place of the shape, or below one, touches that place.
- A change above such places touches all that are there before it, or after it.

Places are found in the order of the changes and of keys, each of them once.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

import attrs

from treedbd.limits import MAX_DEPTH, MAX_PATTERN_CHARACTERS
from treedbd.loop import paused
from treedbd.tree.path import check_key
from treedbd.tree.types import Change, InvalidPath, Path, View

_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
_BRACED: Final = re.compile(r"\{([^{}/]*)\}")
_KEYS_AT_ONCE: Final = 64


class InvalidPattern(ValueError):
    """A text that is not a pattern of paths; `str()` says why in a sentence."""


@attrs.frozen
class PathPattern:
    """A pattern: its keys, None for each capture, and the names of these."""

    keys: tuple[str | None, ...]
    names: tuple[str, ...]

    @property
    def text(self) -> str:
        """The pattern with its captures as `$id`, of which `parse_pattern` makes the same again."""
        names = iter(self.names)
        return "/" + "/".join(f"${next(names)}" if key is None else key for key in self.keys)

    def match(self, path: Path) -> dict[str, str] | None:
        """Return what the captures are in a path, None for one that does not match."""
        if len(path) != len(self.keys):
            return None
        found = []
        for key, wanted in zip(path, self.keys, strict=True):
            if wanted is None:
                found.append(key)
            elif key != wanted:
                return None
        return dict(zip(self.names, found, strict=True))


def parse_pattern(text: str, *, has_braces: bool = False) -> PathPattern:
    """Parse `/orders/$id`, or `/orders/{id}` if it `has_braces`; raise `InvalidPattern`."""
    if len(text) > MAX_PATTERN_CHARACTERS:
        raise InvalidPattern(f"A pattern has at most {MAX_PATTERN_CHARACTERS} characters.")
    segments = [each for each in text.split("/") if each]
    if len(segments) > MAX_DEPTH:
        raise InvalidPattern(f"A pattern has at most {MAX_DEPTH} keys.")
    keys: list[str | None] = []
    names: list[str] = []
    for segment in segments:
        name = _find_name(segment, has_braces=has_braces)
        if name is None:
            keys.append(_check_key(segment))
        else:
            keys.append(None)
            names.append(_check_name(name, names))
    return PathPattern(tuple(keys), tuple(names))


def _find_name(segment: str, *, has_braces: bool) -> str | None:
    if not has_braces:
        return segment[1:] if segment.startswith("$") else None
    found = _BRACED.fullmatch(segment)
    return None if found is None else found[1]


def _check_key(segment: str) -> str:
    try:
        return check_key(segment)
    except InvalidPath as error:
        raise InvalidPattern(str(error)) from None


def _check_name(name: str, before: Sequence[str]) -> str:
    if not _NAME.fullmatch(name):
        raise InvalidPattern(
            f"The name of a capture has letters, digits and _, and begins with no digit: {name!r}."
        )
    if name in before:
        raise InvalidPattern(f"Two captures have the name {name}.")
    return name


class _PatternNode:
    """A node of the tree of patterns: what follows a literal key, and what follows any key."""

    __slots__ = ("any", "ends", "literal")

    def __init__(self) -> None:
        self.literal: dict[str, _PatternNode] = {}
        self.any: _PatternNode | None = None
        self.ends = False

    def add(self, keys: Sequence[str | None]) -> None:
        node = self
        for key in keys:
            if key is not None:
                node = node.literal.setdefault(key, _PatternNode())
            else:
                node.any = node.any or _PatternNode()
                node = node.any
        node.ends = True

    def below(self, key: str) -> Iterator[_PatternNode]:
        """Yield the nodes below it that a key leads to."""
        literal = self.literal.get(key)
        if literal is not None:
            yield literal
        if self.any is not None:
            yield self.any


class PatternSet:
    """Patterns that are compared with edits together."""

    def __init__(self, patterns: Iterable[Sequence[str | None]]) -> None:
        """`patterns` are the keys of each, None for any key."""
        self._top = _PatternNode()
        self._is_empty = True
        for keys in patterns:
            self._top.add(keys)
            self._is_empty = False

    def __bool__(self) -> bool:
        """Return whether there is any pattern."""
        return not self._is_empty

    def touched(self, changes: Iterable[Change], before: View, after: View) -> Iterator[Path]:
        """Yield the places that an edit may have changed.

        A priority is not a change. Where many children are looked through, it pauses.
        """
        found: set[Path] = set()
        for change in changes:
            if change.place.is_priority:
                continue
            for path in self._touched_by(change.place.path, before, after):
                if path not in found:
                    found.add(path)
                    yield path

    def _touched_by(self, path: Path, before: View, after: View) -> Iterator[Path]:
        nodes = [self._top]
        for depth, key in enumerate(path):
            if any(node.ends for node in nodes):
                yield path[:depth]
            nodes = [below for node in nodes for below in node.below(key)]
            if not nodes:
                return
        yield from _all_below(nodes, path, before, after)


def _all_below(
    nodes: Sequence[_PatternNode], path: Path, before: View, after: View
) -> Iterator[Path]:
    """Yield the places at `path` and below it, of the patterns' shape, that are in either view."""
    if any(node.ends for node in nodes):
        yield path
    for key in _keys_below(nodes, path, before, after):
        following = [below for node in nodes for below in node.below(key)]
        yield from _all_below(following, (*path, key), before, after)


def _keys_below(
    nodes: Sequence[_PatternNode], path: Path, before: View, after: View
) -> Iterator[str]:
    if all(node.any is None for node in nodes):
        literal: Mapping[str, None] = dict.fromkeys(key for node in nodes for key in node.literal)
        for key in literal:
            below = (*path, key)
            if before.type_at(below) is not None or after.type_at(below) is not None:
                yield key
        return
    yield from paused(before.keys(path), _KEYS_AT_ONCE)
    for key in paused(after.keys(path), _KEYS_AT_ONCE):
        if before.type_at((*path, key)) is None:
            yield key
