"""The view that the rules of one request read: each node once, at the expense of their budget."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, TypeAlias

from treedbd.rules.budget import Budget
from treedbd.rules.kept_reads import LEAST_COST, KeptReads
from treedbd.tree.types import Charge, Container, Leaf, Path, Priority, Value, View, free

REMEMBERED_NODES: Final = 10_000
LONG_STRING: Final = 1024
"""Characters of a string that is always remembered: the budget bounds how many there are."""

_Node: TypeAlias = Leaf | Container | None
_NodeType: TypeAlias = type[Leaf] | type[Container] | None


class MeteredView:
    """A `View` of `base` that remembers what was read, and charges `budget` for it.

    Whole subtrees (`get`) are charged by those who read them.
    """

    __slots__ = ("_base", "_kept", "_limit", "_nodes", "_types", "budget")

    def __init__(self, base: View, budget: Budget, kept: KeptReads | None = None) -> None:
        """Read `base`; `kept` are reads of the same state for other requests."""
        self._base: Final = base
        self.budget: Final = budget
        self._kept: Final = kept
        self._nodes: dict[Path, _Node] = {}
        self._types: Final[dict[Path, _NodeType]] = {}
        self._limit = REMEMBERED_NODES

    def get(self, path: Path) -> Value:
        """Return the whole subtree at `path`."""
        return self._base.get(path)

    def peek(self, path: Path, _: Charge = free) -> _Node:
        """Return the leaf at `path`, `CONTAINER` if it has children, None if nothing is there."""
        nodes = self._nodes
        if path in nodes:
            return nodes[path]
        if len(nodes) >= self._limit:
            self._forget_short()
        if self._kept and (found := self._kept.find(("peek", path))) is not None:
            self.budget.spend(found.cost)
            node: _Node = found.result
        else:
            budget = self.budget
            before = budget.characters
            node = self._base.peek(path, budget.spend)
            if self._kept is not None and before - budget.characters >= LEAST_COST:
                self._kept.keep(("peek", path), node, before - budget.characters)
        self._nodes[path] = node
        return node

    def type_at(self, path: Path, _: Charge = free) -> _NodeType:
        """Return the type of what `peek` returns."""
        if path in self._nodes:
            node = self._nodes[path]
            return None if node is None else type(node)
        types = self._types
        if path in types:
            return types[path]
        if len(types) >= REMEMBERED_NODES:
            types.clear()
        if self._kept and (found := self._kept.find(("type_at", path))) is not None:
            self.budget.spend(found.cost)
            node_type: _NodeType = found.result
        else:
            budget = self.budget
            before = budget.characters
            node_type = self._base.type_at(path, budget.spend)
            if self._kept is not None and before - budget.characters >= LEAST_COST:
                self._kept.keep(("type_at", path), node_type, before - budget.characters)
        types[path] = node_type
        return node_type

    def size(self, path: Path, limit: int) -> int:
        """Return the approximate number of bytes of the subtree at `path`."""
        return self._base.size(path, limit)

    def priority(self, path: Path, _: Charge = free) -> Priority | None:
        """Return the priority of the node at `path`."""
        return self._base.priority(path, self.budget.spend)

    def keys(self, path: Path) -> Iterator[str]:
        """Iterate over the keys of the children of `path`."""
        return self._base.keys(path)

    def _forget_short(self) -> None:
        self._nodes = {
            path: node
            for path, node in self._nodes.items()
            if type(node) is str and len(node) > LONG_STRING
        }
        self._limit = len(self._nodes) + REMEMBERED_NODES
