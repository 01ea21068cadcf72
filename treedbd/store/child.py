"""One child of a node, as it was found in the rows; its value is read when it is needed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, Protocol

from treedbd.store.children import ChildSource, Spread
from treedbd.store.rows import PagedRows, cut_into_chunks, export_row, load_row, print_row
from treedbd.tree.path import ValueRank, rank_value
from treedbd.tree.types import Charge, Container, Leaf, Path, Priority, Value, free
from treedbd.tree.value import compact, plain

SAME_RANK: Final = rank_value(None)
"""The rank of every child in a query by key."""


class ReadsNodes(Protocol):
    """What children are read with: `nodes.Nodes`, which has the same methods."""

    @property
    def rows(self) -> PagedRows:
        """The rows of the database."""

    def get(self, path: Path) -> Value:
        """Return the whole subtree at `path` with its priorities."""

    def chunks(self, path: Path, *, export: bool = False) -> Iterator[bytes]:
        """Print `path` chunk by chunk."""

    def peek(self, path: Path, charge: Charge = free) -> Leaf | Container | None:
        """Return the leaf at `path`, `CONTAINER` if it has children, None if nothing is there."""

    def priority(self, path: Path, charge: Charge = free) -> Priority | None:
        """Return the priority of the node at `path`."""


class Child:
    """One child of a node; its value is read when it is needed, unless its row was found already.

    `rank` is its rank, before its key, in the query that selected it. It can be used as long as its
    `Nodes`.
    """

    __slots__ = ("_nodes", "_parent", "_source", "key", "rank")

    def __init__(
        self,
        nodes: ReadsNodes,
        parent: Path,
        key: str,
        source: ChildSource | None,
        rank: ValueRank = SAME_RANK,
    ) -> None:
        self.key = key
        self.rank = rank
        self._nodes = nodes
        self._parent = parent
        self._source = source

    @property
    def row_bytes(self) -> int:
        """The bytes of its row, if it keeps that."""
        return len(self._source) if isinstance(self._source, bytes) else 0

    def without_row(self) -> Child:
        """Return the same child, which keeps no row: it is read again if it is needed."""
        if not isinstance(self._source, bytes):
            return self
        return Child(self._nodes, self._parent, self.key, None, self.rank)

    def found_source(self) -> ChildSource | None:
        """Return what was found of it in the rows; None if that is not kept."""
        return self._source

    def value(self) -> Value:
        """Return the whole subtree with its priorities."""
        source = self._source
        if isinstance(source, bytes):
            return load_row(source)
        if source is None or isinstance(source, Spread):
            return self._nodes.get((*self._parent, self.key))
        return source

    @property
    def is_spread(self) -> bool:
        """Whether it may be spread over rows of its own children."""
        return self._source is None or isinstance(self._source, Spread)

    def chunks(self, *, export: bool = False) -> Iterator[bytes]:
        """Print it as `Nodes.chunks` does."""
        source = self._source
        if isinstance(source, bytes):
            return cut_into_chunks(export_row(source) if export else print_row(source))
        if source is None or isinstance(source, Spread):
            return self._nodes.chunks((*self._parent, self.key), export=export)
        return cut_into_chunks(compact(source if export else plain(source)))
