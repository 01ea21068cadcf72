"""Sends content as a client reads it: what it has not taken stays in the one shared copy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

from twisted.internet.interfaces import IPushProducer
from twisted.logger import Logger
from zope.interface import implementer

from treedbd.limits import KIB, MIB
from treedbd.web.content import Buffer, ContentReader
from treedbd.web.http1.pipelines import Ring

_AT_ONCE_BYTES: Final = MIB
"""Bytes that a reply sends when its client has made room, however fast that reads."""
_VISIT_BYTES: Final = 256 * KIB
"""Bytes that it sends at a visit of the ring, in which it waits to go on."""

_log = Logger()


class PieceWriter(Protocol):
    """What the sender knows of the writer of its connection."""

    @property
    def piece_bytes(self) -> int:
        """How many bytes are best sent at a time."""

    def write_some(self, data: Buffer) -> int:
        """Send the front of `data`; return how many bytes were taken, sent or still waiting."""

    def unregister_producer(self) -> None:
        """Release the producer."""

    def abort(self) -> None:
        """Drop the connection."""


@implementer(IPushProducer)
class ContentSender:
    """The producer of one reply whose body is read from shared content."""

    def __init__(
        self,
        writer: PieceWriter,
        reader: ContentReader,
        ring: Ring,
        done: Callable[[], None],
    ) -> None:
        """Send what `reader` reads, close it and call `done`; not called if the client is gone.

        A client that reads fast shares the turns of the reactor with the others in the `ring`.
        """
        self._writer = writer
        self._reader = reader
        self._ring = ring
        self._done = done
        self._is_paused = False
        self._is_in_ring = False

    def resumeProducing(self) -> None:
        """Send until the client does not keep up."""
        self._is_paused = False
        if not self._is_in_ring:
            self._send(_AT_ONCE_BYTES)

    def pauseProducing(self) -> None:
        """Send no more for now."""
        self._is_paused = True

    def stopProducing(self) -> None:
        """Release the content: it is no longer read."""
        self._is_paused = True
        self._reader.close()

    def _go_on(self) -> None:
        self._is_in_ring = False
        if not self._is_paused:
            self._send(_VISIT_BYTES)

    def _send(self, limit: int) -> None:
        try:
            self._send_pieces(limit)
        except Exception:
            _log.failure("A reply failed in the middle.")
            self.stopProducing()
            self._writer.abort()

    def _send_pieces(self, limit: int) -> None:
        reader, writer = self._reader, self._writer
        end = max(0, reader.remaining - limit)
        while reader.remaining and not self._is_paused:
            if reader.remaining <= end:
                self._is_in_ring = True
                self._ring.add(self._go_on)
                return
            piece = reader.peek(writer.piece_bytes)
            if not piece:
                raise EOFError("The content is shorter than it was.")
            reader.skip(writer.write_some(piece))
        if not reader.remaining:
            writer.unregister_producer()
            reader.close()
            self._done()
