"""Sends content as a client reads it: what it has not taken stays in the one shared copy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

from twisted.internet.interfaces import IDelayedCall, IPushProducer, IReactorTime
from twisted.logger import Logger
from zope.interface import implementer

from treedbd.limits import MIB
from treedbd.web.content import Buffer, ContentReader

_TURN_BYTES: Final = MIB
"""Bytes that one reply sends in a turn of the reactor, however fast the client reads."""

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
        clock: IReactorTime,
        done: Callable[[], None],
    ) -> None:
        """Send what `reader` reads, close it and call `done`; not called if the client is gone."""
        self._writer = writer
        self._reader = reader
        self._clock = clock
        self._done = done
        self._is_paused = False
        self._next_turn: IDelayedCall | None = None

    def resumeProducing(self) -> None:
        """Send until the client does not keep up."""
        self._is_paused = False
        if self._next_turn is None:
            self._send()

    def pauseProducing(self) -> None:
        """Send no more for now."""
        self._is_paused = True

    def stopProducing(self) -> None:
        """Release the content: it is no longer read."""
        if self._next_turn is not None:
            self._next_turn.cancel()
            self._next_turn = None
        self._is_paused = True
        self._reader.close()

    def _send(self) -> None:
        self._next_turn = None
        try:
            self._send_pieces()
        except Exception:
            _log.failure("A reply failed in the middle.")
            self.stopProducing()
            self._writer.abort()

    def _send_pieces(self) -> None:
        reader, writer = self._reader, self._writer
        end = max(0, reader.remaining - _TURN_BYTES)
        while reader.remaining and not self._is_paused:
            if reader.remaining < end:
                self._next_turn = self._clock.callLater(0, self._send)
                return
            piece = reader.peek(writer.piece_bytes)
            if not piece:
                raise EOFError("The content is shorter than it was.")
            reader.skip(writer.write_some(piece))
        if not reader.remaining:
            writer.unregister_producer()
            reader.close()
            self._done()
