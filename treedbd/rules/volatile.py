"""Volatile nodes: those that the rules keep in memory alone (`.volatile`), and how writes divide.

`VolatilePaths` is made of the rules that are in force. It finds whether a path is at or below a
volatile node, above one, or neither, and cuts the volatile parts out of what a write sets. It reads
no data.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from typing import Any, Final, TypeAlias

import attrs

from treedbd.tree.types import PRIORITY, VALUE, Json, Path, Value

MAX_HZ: Final = 1000
"""Events a second of one volatile node that the rules may allow."""
BESIDE: Final = 0
ABOVE: Final = -1


@attrs.frozen
class Volatile:
    """How a volatile node is kept: with at most `hz` events a second, 0 for no such bound."""

    hz: float = 0.0


@attrs.frozen(eq=False)
class VolatileBranch:
    """A node on the way to volatile ones, or one of them (`volatile`).

    A key that is not among the `literals` is one of the `capture`; a literal may be None: then
    neither it nor what is below it is volatile.
    """

    literals: Mapping[str, VolatileBranch | None]
    capture: VolatileBranch | None
    volatile: Volatile | None = None

    def child(self, key: str) -> VolatileBranch | None:
        """Return the branch of a child, None if nothing there is volatile."""
        return self.literals.get(key, self.capture)


Part: TypeAlias = "tuple[Path, Value]"


class VolatilePaths:
    """The volatile nodes of one set of rules, of which there is at least one."""

    def __init__(self, root: VolatileBranch) -> None:
        self._root: Final = root
        self._digest = ""

    @property
    def digest(self) -> str:
        """A short text that is the same for rules with the same volatile nodes."""
        if not self._digest:
            printed = repr(_outline(self._root)).encode("utf-8", "surrogatepass")
            self._digest = hashlib.sha256(printed).hexdigest()[:16]
        return self._digest

    def depth(self, path: Path) -> int:
        """Return how many keys of a path lead to a volatile node that is at or above it.

        `ABOVE` if volatile nodes may only be below the path, `BESIDE` if none is on its way.
        """
        node = self._root
        for depth, key in enumerate(path, 1):
            below = node.literals.get(key, node.capture)
            if below is None:
                return BESIDE
            node = below
            if node.volatile is not None:
                return depth
        return ABOVE

    def covers(self, pattern: Sequence[str | None]) -> bool:
        """Return whether each path of a pattern, with None for any key, is at or below one."""
        return _covers(self._root, pattern)

    def rate(self, path: Path) -> float:
        """Return how many events a second a volatile node may have, 0 for any number."""
        node = self._at(path)
        return 0.0 if node is None or node.volatile is None else node.volatile.hz

    def cut(self, path: Path, value: Value) -> tuple[Value, list[Part]]:
        """Return a value that is set above volatile nodes without them, and what it has of them."""
        node = self._at(path)
        parts: list[Part] = []
        rest = value if node is None else _cut(value, node, path, parts)
        return rest, parts

    def cut_json(
        self, path: Path, sent: Json, is_cut: Callable[[Path], bool], first: int = 0
    ) -> Json:
        """Return JSON that is sent for a path, with null for volatile nodes of which `is_cut`.

        Nothing of the path itself is volatile. If it is an array, `first` is its first index.
        """
        node = self._at(path)
        return sent if node is None else _cut_json(sent, node, path, is_cut, first)

    def _at(self, path: Path) -> VolatileBranch | None:
        node: VolatileBranch | None = self._root
        for key in path:
            if node is None or node.volatile is not None:
                return node
            node = node.child(key)
        return node


def _covers(node: VolatileBranch, pattern: Sequence[str | None]) -> bool:
    if node.volatile is not None or not pattern:
        return node.volatile is not None
    key = pattern[0]
    found = [*node.literals.values(), node.capture] if key is None else [node.child(key)]
    return all(below is not None and _covers(below, pattern[1:]) for below in found)


def _outline(node: VolatileBranch | None) -> Any:
    """Return what a branch and those below it are, without the rates."""
    if node is None or node.volatile is not None:
        return node is not None
    literals = sorted(node.literals.items(), key=itemgetter(0))
    return [[(key, _outline(below)) for key, below in literals], _outline(node.capture)]


def _cut_json(
    sent: Json, node: VolatileBranch, path: Path, is_cut: Callable[[Path], bool], first: int = 0
) -> Json:
    def cut(key: str, item: Json) -> Json:
        below = None if item is None or key.startswith(".") else node.child(key)
        if below is None:
            return item
        if below.volatile is not None:
            return None if is_cut((*path, key)) else item
        return _cut_json(item, below, (*path, key), is_cut)

    if isinstance(sent, list):
        return [cut(str(at), item) for at, item in enumerate(sent, first)]
    if not isinstance(sent, dict) or VALUE in sent:
        return sent
    return {key: cut(key, item) for key, item in sent.items()}


def _cut(value: Value, node: VolatileBranch, path: Path, parts: list[Part]) -> Value:
    if not isinstance(value, dict) or VALUE in value:
        return value
    kept: dict[str, Value] = {}
    is_cut = False
    for key, child in value.items():
        below = None if key.startswith(".") else node.child(key)
        if below is None:
            kept[key] = child
            continue
        if below.volatile is not None:
            parts.append(((*path, key), child))
            rest: Value = None
        else:
            rest = _cut(child, below, (*path, key), parts)
        is_cut = is_cut or rest is not child
        if rest is not None:
            kept[key] = rest
    if not is_cut:
        return value
    return kept if kept.keys() - {PRIORITY} else None
