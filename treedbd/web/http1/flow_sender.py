"""Sends content that flows: as it is made, as the client reads, in a content coding if it has one.

A client that takes less than `MIN_BYTES` in `PACE_SECONDS`, although there was more for it, is cut
off: what waits for it takes room that others need. Otherwise a body may take as long as it needs,
unless its request says how long.
"""

from __future__ import annotations

from typing import Final, Protocol

from twisted.internet.interfaces import IDelayedCall, IPushProducer, IReactorTime
from twisted.logger import Logger
from zope.interface import implementer

from treedbd.database.slices import Slices, Steps
from treedbd.http1.interface import IHttp1Request
from treedbd.http1.parser import CutOff
from treedbd.limits import KIB
from treedbd.web.flow import FlowReader

PIECE_BYTES: Final = 64 * KIB
PACE_SECONDS: Final = 60.0
MIN_BYTES: Final = 256 * KIB

_log = Logger()


class Encoder(Protocol):
    """A content coding, applied piece by piece."""

    def encode(self, data: bytes) -> bytes:
        """Return what can be sent of the encoded bytes so far; it may be nothing."""

    def flush(self) -> bytes:
        """Return what is needed to decode all that was encoded so far."""

    def finish(self) -> bytes:
        """Return the end of the encoded bytes."""


@implementer(IPushProducer)
class FlowSender:
    """The producer of the body of one reply that was started."""

    def __init__(
        self,
        request: IHttp1Request,
        reader: FlowReader,
        clock: IReactorTime,
        encoder: Encoder | None,
        slices: Slices,
    ) -> None:
        """Send what `reader` reads, then close it and finish the request.

        It is encoded and sent in `slices`, which all bodies of a service share.
        """
        self._slices = slices
        self._is_sending = False
        self._request = request
        self._reader = reader
        self._clock = clock
        self._encoder = encoder
        self._is_paused = False
        self._is_flushed = True
        self._taken = 0
        self._pace: IDelayedCall | None = None
        self._end: IDelayedCall | None = None

    def start(self, cut_off_at: float | None = None) -> None:
        """Begin to send; cut the client off that has not read all at a time of the clock."""
        if cut_off_at is not None:
            wait_s = max(0.0, cut_off_at - self._clock.seconds())
            self._end = self._clock.callLater(wait_s, self._cut_off, "timeout")
        self._pace = self._clock.callLater(PACE_SECONDS, self._check_pace)
        self._reader.on_more = self._schedule
        self._request.registerProducer(self, True)
        self._schedule()

    def resumeProducing(self) -> None:
        """Send until the client does not keep up."""
        self._is_paused = False
        self._schedule()

    def pauseProducing(self) -> None:
        """Send no more for now."""
        self._is_paused = True

    def stopProducing(self) -> None:
        """Release the content: it is no longer read."""
        self._is_paused = True
        for call in (self._pace, self._end):
            if call is not None and call.active():
                call.cancel()
        self._pace = self._end = None
        self._reader.close()

    def _schedule(self) -> None:
        if self._is_paused:
            if self._reader.has_failed:
                self._cut_off()
        elif not self._is_sending:
            self._is_sending = True
            self._slices.start(self._send())

    def _send(self) -> Steps:
        while self._send_piece():
            yield
        self._is_sending = False

    def _send_piece(self) -> bool:
        """Send one piece; return whether there may be more to send now."""
        if self._is_paused:
            return False
        try:
            piece = bytes(self._reader.read(PIECE_BYTES))
            self._taken += len(piece)
            if piece:
                self._write(piece)
            else:
                self._pass_end()
        except Exception:
            _log.failure("A reply failed in the middle.")
            self._cut_off()
            return False
        return bool(piece)

    def _write(self, piece: bytes) -> None:
        encoder = self._encoder
        if encoder is not None:
            piece = encoder.encode(piece)
            self._is_flushed = False
        if piece:
            self._request.write(piece)

    def _pass_end(self) -> None:
        """Finish at the end; at that of what is made so far, wait for more."""
        encoder, reader = self._encoder, self._reader
        if reader.has_failed:
            self._cut_off()
        elif reader.is_at_end:
            if encoder is not None:
                self._request.write(encoder.finish())
            self._request.unregisterProducer()
            self.stopProducing()
            self._request.finish()
        elif encoder is not None and not self._is_flushed:
            self._is_flushed = True
            self._request.write(encoder.flush())

    def _check_pace(self) -> None:
        self._pace = None
        if self._is_paused and self._taken < MIN_BYTES:
            self._cut_off("slow")
            return
        self._taken = 0
        self._pace = self._clock.callLater(PACE_SECONDS, self._check_pace)

    def _cut_off(self, reason: CutOff = "failed") -> None:
        """Drop the connection, so that the client does not take a part for the whole."""
        self._request.unregisterProducer()
        self.stopProducing()
        self._request.abort(reason)
