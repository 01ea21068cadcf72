"""Values on their way to a client: a message that holds one, whatever its size."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from typing import Protocol

from treedbd.database.database import Database
from treedbd.database.requests import Caller
from treedbd.database.rights import ReadRequest
from treedbd.http1.content import Content
from treedbd.store.nodes import Nodes, spell_chunks
from treedbd.web.queues import FrameReader
from treedbd.web.reading import Rendering, RenderingSource
from treedbd.web.realtime.service import RealtimeParts
from treedbd.web.realtime.socket import Outbox
from treedbd.web.realtime.wire import FramingReader, frame_message


class SpelledSource:
    """The JSON of another source (`RenderingSource`), numbers beyond 64 bits with an exponent."""

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


class ReadOwner(Protocol):
    """The session of a listen or a get."""

    parts: RealtimeParts
    database: Database
    address: str
    outbox: Outbox

    @property
    def caller(self) -> Caller:
        """Who the rules see now."""
        ...

    @property
    def answer_error(self) -> Callable[[int, BaseException | None, ReadRequest], None]:
        """Answers with an error; told what was to be read."""
        ...


def read_bytes(parts: RealtimeParts, address: str, frames: bytes) -> FrameReader:
    """Return what reads frames."""
    return Content(parts.reads.memory, frames).open(address, may_refuse=False)


def read_message(
    parts: RealtimeParts, address: str, start: bytes, rendered: bytes | Rendering, end: bytes
) -> list[FrameReader]:
    """Return what reads a message that holds a value between its start and its end.

    Raises `WaitingBytesRefused`.
    """
    if isinstance(rendered, bytes):
        return [read_bytes(parts, address, frame_message(start + rendered + end))]
    value = rendered.open(address)
    ends = [
        Content(parts.reads.memory, each).open(address, may_refuse=False) for each in (start, end)
    ]
    size = len(start) + rendered.size + len(end)
    return [FramingReader([ends[0], value, ends[1]], size)]
