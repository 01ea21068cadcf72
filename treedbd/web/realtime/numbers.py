"""What is read for sockets: numbers beyond 64 bits are spelled with an exponent."""

from __future__ import annotations

from collections.abc import Hashable, Iterator

from treedbd.store.nodes import Nodes
from treedbd.store.spelling import spell_chunks
from treedbd.web.large_reads import RenderingSource


class SpelledSource:
    """The JSON of another source, for sockets (a `RenderingSource`)."""

    def __init__(self, source: RenderingSource) -> None:
        self._source = source

    @property
    def key(self) -> Hashable:
        """Equal for sources that render the same from the same state."""
        return "spelled", self._source.key

    def shares(self, other: object) -> bool:
        """Return whether this source can show what another with the same key has rendered."""
        return isinstance(other, SpelledSource) and self._source.shares(other._source)

    def chunks(self, nodes: Nodes) -> Iterator[bytes]:
        """Render from the nodes of one moment."""
        return spell_chunks(self._source.chunks(nodes))
