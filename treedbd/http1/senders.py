"""Long replies, frames and flows, sent as their clients read, several connections in each turn.

- Content is sent as its client reads it (`ContentSender`): what the client has not read stays in
  the one shared copy.
- Content that flows is sent as it is made (`FlowSender`), in a content coding if it has one.
- The frames of a stream or a WebSocket are sent in chunks (`FrameSender`). An event goes past the
  request, its connection and the transport, while nothing waits in the connection.

The connections whose clients have sent more requests than are rendered at once, and those whose
clients read long replies as fast as these are sent, go on in one `Ring`, which has a share of each
turn of the reactor. A connection that was upgraded to another protocol is an `UpgradedConnection`;
what the protocol writes goes out as it is.
"""

from __future__ import annotations

import sys
import zlib
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from twisted.internet.interfaces import IDelayedCall, IPullProducer, IPushProducer, IReactorTime
from twisted.logger import Logger
from zope.interface import implementer

from treedbd.database.slices import Slices, Steps
from treedbd.http1.content import Buffer, Content, ContentReader, FlowReader, FrameReader
from treedbd.http1.parser import Coding, CutOff
from treedbd.limits import KIB, MIB

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

if TYPE_CHECKING:
    from treedbd.http1.connection import ConnectionWriter, Http1Connection
    from treedbd.http1.registry import Connections
    from treedbd.http1.request import IHttp1Request, Request

_log = Logger()

DirectSend = Callable[[Buffer], int]
"""Sends bytes and returns how many of them were sent: from none to all."""
DirectPairSend = Callable[[bytes, bytes], int]
"""Sends two pieces as if they were one."""


VISITS: Final = 8
"""How many calls the ring makes in one turn."""
SHARE_SECONDS: Final = 0.008
"""No further call begins in a turn in which the calls have lasted so long."""


class Ring:
    """Calls waiting functions in order, a few in each turn; a function may add itself again.

    All connections that wait here share one part of each turn of the reactor. Each renders a few
    requests, or sends a piece of a long reply, and goes to the end of the ring. So a client that
    sends one request at a time waits for one turn, and not for the requests that others have sent
    ahead. A client alone in the ring has the whole share.
    """

    def __init__(self, clock: IReactorTime) -> None:
        self._clock = clock
        self._waiting: deque[Callable[[], None]] = deque()
        self._is_scheduled = False

    def add(self, go_on: Callable[[], None]) -> None:
        """Call `go_on` when all that waits has been called; what it raises is logged."""
        self._waiting.append(go_on)
        if not self._is_scheduled:
            self._is_scheduled = True
            self._clock.callLater(0, self._call_some)

    def _call_some(self) -> None:
        seconds = self._clock.seconds
        end = seconds() + SHARE_SECONDS
        for _ in range(VISITS):
            try:
                self._waiting.popleft()()
            except Exception:
                _log.failure("A connection failed between two requests.")
            if not self._waiting:
                self._is_scheduled = False
                return
            if seconds() >= end:
                break
        self._clock.callLater(0, self._call_some)


@implementer(IPushProducer)
class PullProducerAdapter:
    """Calls a pull producer again and again, in the ring, while the client reads."""

    def __init__(self, producer: IPullProducer, writer: ConnectionWriter) -> None:
        """Pull from `producer` from the next turn on; if it fails, `writer` is aborted."""
        self._producer = producer
        self._writer = writer
        self._is_paused = False
        self._is_in_ring = False
        self.resumeProducing()

    def resumeProducing(self) -> None:
        """Pull again."""
        self._is_paused = False
        if not self._is_in_ring:
            self._is_in_ring = True
            self._writer.ring.add(self._pull)

    def pauseProducing(self) -> None:
        """Stop pulling for now."""
        self._is_paused = True

    def stopProducing(self) -> None:
        """Stop the producer, which is no longer read."""
        self.pauseProducing()
        self._producer.stopProducing()

    def _pull(self) -> None:
        self._is_in_ring = False
        if self._is_paused:
            return
        self.resumeProducing()  # before that of the producer, which may pause or unregister itself
        try:
            self._producer.resumeProducing()
        except Exception:
            _log.failure("A producer failed in the middle of a reply.")
            self.pauseProducing()
            self._writer.abort()


_RESUMED_BYTES: Final = MIB
"""Bytes that a reply sends when its client has made room, however fast that reads."""
_VISIT_BYTES: Final = 256 * KIB
"""Bytes that it sends at a visit of the ring, in which it waits to go on."""


@implementer(IPushProducer)
class ContentSender:
    """The producer of one reply whose body is read from shared content."""

    def __init__(
        self, writer: ConnectionWriter, reader: ContentReader, done: Callable[[], None]
    ) -> None:
        """Send what `reader` reads, close it and call `done`; not called if the client is gone.

        A client that reads fast shares the turns of the reactor with the others in the ring.
        """
        self._writer = writer
        self._reader = reader
        self._done = done
        self._is_paused = False
        self._is_in_ring = False

    def resumeProducing(self) -> None:
        """Send until the client does not keep up."""
        self._is_paused = False
        if not self._is_in_ring:
            self._send(_RESUMED_BYTES)

    def pauseProducing(self) -> None:
        """Stop sending for now."""
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
                writer.ring.add(self._go_on)
                return
            piece = reader.peek(writer.piece_bytes)
            if not piece:
                raise EOFError("The content is shorter than it was.")
            reader.skip(writer.write_some(piece))
        if not reader.remaining:
            writer.unregister_producer()
            reader.close()
            self._done()


class ChunkSender(ABC):
    """Sends chunks, in slices that many senders share, until the client does not keep up.

    A large response (`FlowSender`), a stream and a WebSocket differ in what they send next.

    Attributes:
        is_paused: whether the transport accepts nothing at present.

    """

    __slots__ = ("_is_sending", "_slices", "is_paused")

    def __init__(self, slices: Slices) -> None:
        self.is_paused = False
        self._is_sending = False
        self._slices = slices

    def resume(self) -> None:
        """Send what there is, unless the client does not keep up."""
        if not (self._is_sending or self.is_paused):
            self._is_sending = True
            self._slices.start(self._send_chunks())

    def _send_chunks(self) -> Steps:
        try:
            while not self.is_paused and (chunk := self._next_chunk()) is not None:
                self._write(chunk)
                yield
        except Exception as error:
            self._fail(error)
        finally:
            self._is_sending = False

    @abstractmethod
    def _next_chunk(self) -> bytes | None:
        """Return what is sent next, None if that is nothing for now."""

    @abstractmethod
    def _write(self, chunk: bytes) -> None:
        """Write a chunk."""

    @abstractmethod
    def _fail(self, error: Exception) -> None:
        """End after an exception, which is being handled."""


CHUNK_BYTES: Final = 16 * KIB
"""Bytes of a stream or a WebSocket that are written at a time."""


class FrameSender(ChunkSender):
    """Sends frames, each from readers of its parts; a chunk may contain several.

    It writes the body of one reply that ends with its connection, or over a connection that was
    upgraded, and nothing else may write to it. Short content that many replies share, such as an
    event, is sent as a whole.

    Theory of operation. As long as the client keeps up, nothing waits in the connection between two
    writes. Then content goes to the socket directly. That touches none of the objects in between,
    which are the request, its connection and the transport: those of a thousand streams do not fit
    into the caches of a processor, and reading them took longer than the work. So the bytes that
    were sent directly are added to those of the request when that state ends.

    Any other write ends it, and so does a socket that did not accept all. The next content is then
    written the usual way, and after it the state is looked up again.
    """

    __slots__ = ("_connections", "_direct", "_direct_bytes", "_request", "_sending")

    def __init__(self, request: IHttp1Request | UpgradedConnection, slices: Slices) -> None:
        """Write to `request`, or to a connection that was upgraded."""
        super().__init__(slices)
        self._request = request
        self._direct: DirectSend | None = None
        self._direct_bytes = 0
        self._connections: Connections | None = None
        # There are many idle senders, so they have no queue.
        self._sending: deque[FrameReader] | None = None

    @property
    def sent_bytes(self) -> int:
        """How many bytes of the body were sent so far."""
        sent: int = self._request.sentLength
        return sent + self._direct_bytes

    def end_direct(self, rest: bytes = b"") -> None:
        """End the direct sending, and write the rest of content.

        Must be called before anything else is done with the request.
        """
        if self._direct is not None:
            self._direct = None
            self._request.sentLength += self._direct_bytes
            self._direct_bytes = 0
            self._request.continue_after(rest)

    def _write(self, chunk: bytes) -> None:
        self.end_direct()
        self._request.write(chunk)

    def _send_whole(self, content: Content) -> None:
        """Send short content; nothing may wait before it."""
        # Called for each stream and event.
        send, connections = self._direct, self._connections
        if send is None or connections is None:
            self._request.write_content(content)
            self._direct, self._connections = self._request.find_free_send()
            return
        data = content.whole()
        try:
            sent = send(data)
        except OSError:  # full or not connected: the transport handles it
            sent = 0
        connections.sent_past_bytes += sent
        self._direct_bytes += content.size
        if sent < content.size:
            self.end_direct(data[sent:])

    def _gather(self) -> bytes:
        """Return the next chunk of the frame that is being sent, and of those after it."""
        gathered: list[Buffer] = []
        room = CHUNK_BYTES
        while self._sending and room:
            reader = self._sending[0]
            piece = reader.read(room)
            gathered.append(piece)
            room -= len(piece)
            if not reader.remaining:
                self._sending.popleft().close()
                if not self._sending:
                    self._sending = self._next_frame()
        return b"".join(gathered)

    @abstractmethod
    def _next_frame(self) -> deque[FrameReader] | None:
        """Return the frame that follows in the same chunk, None if none does."""

    def _close_frame(self) -> None:
        """Stop sending the frame that is being sent."""
        sending, self._sending = self._sending, None
        for reader in sending or ():
            reader.close()


PIECE_BYTES: Final = 64 * KIB
PACE_SECONDS: Final = 60.0
MIN_BYTES: Final = 256 * KIB


_GZIP_BITS: Final = 16 + zlib.MAX_WBITS
_GZIP_LEVEL: Final = 1
_ZSTD_OPTIONS: Final[dict[int, int]] = {
    zstd.CompressionParameter.compression_level: 1,
    zstd.CompressionParameter.window_log: 17,  # 128 KiB, which bounds the memory of a reply
}
_THOROUGH_GZIP_LEVEL: Final = 9
_THOROUGH_ZSTD_OPTIONS: Final = {**_ZSTD_OPTIONS, zstd.CompressionParameter.compression_level: 6}
"""With these 8 KiB take less than a millisecond."""


class Encoder:
    """One gzip member or zstd frame, made piece by piece."""

    def __init__(self, coding: Coding, *, is_thorough: bool = False) -> None:
        """Encode fast; or, with `is_thorough`, to fewer bytes, for what is sent many times."""
        self._encoder: Any
        if coding == "gzip":
            level = _THOROUGH_GZIP_LEVEL if is_thorough else _GZIP_LEVEL
            self._encoder = zlib.compressobj(level, zlib.DEFLATED, _GZIP_BITS)
            self._flush, self._end = zlib.Z_SYNC_FLUSH, zlib.Z_FINISH
        else:
            self._encoder = zstd.ZstdCompressor(
                options=_THOROUGH_ZSTD_OPTIONS if is_thorough else _ZSTD_OPTIONS
            )
            self._flush = zstd.ZstdCompressor.FLUSH_BLOCK
            self._end = zstd.ZstdCompressor.FLUSH_FRAME

    def encode(self, data: bytes) -> bytes:
        """Return what can be sent of the encoded bytes so far; it may be nothing."""
        encoded: bytes = self._encoder.compress(data)
        return encoded

    def flush(self) -> bytes:
        """Return what is needed to decode all that was encoded so far."""
        flushed: bytes = self._encoder.flush(self._flush)
        return flushed

    def finish(self) -> bytes:
        """Return the end of the encoded bytes."""
        end: bytes = self._encoder.flush(self._end)
        return end


@implementer(IPushProducer)
class FlowSender(ChunkSender):
    """The producer of the body of one reply that was started: content that flows.

    A client that reads less than `MIN_BYTES` in `PACE_SECONDS`, although more was ready, is cut
    off: others need the room. Otherwise sending may last as long as it must, unless the request has
    a time-out.
    """

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
        super().__init__(slices)
        self._request = request
        self._reader = reader
        self._clock = clock
        self._encoder = encoder
        self._is_flushed = True
        self._taken = 0
        self._pace: IDelayedCall | None = None
        self._end: IDelayedCall | None = None

    def start(self, cut_off_at: float | None = None) -> None:
        """Begin to send; a client that has not read all at `cut_off_at` is cut off."""
        if cut_off_at is not None:
            wait_s = max(0.0, cut_off_at - self._clock.seconds())
            self._end = self._clock.callLater(wait_s, self._cut_off, "timeout")
        self._pace = self._clock.callLater(PACE_SECONDS, self._check_pace)
        self._reader.on_more = self._schedule
        self._request.registerProducer(self, True)
        self._schedule()

    def resumeProducing(self) -> None:
        """Send until the client does not keep up."""
        self.is_paused = False
        self._schedule()

    def pauseProducing(self) -> None:
        """Stop sending for now."""
        self.is_paused = True

    def stopProducing(self) -> None:
        """Release the content: it is no longer read."""
        self.is_paused = True
        for call in (self._pace, self._end):
            if call is not None and call.active():
                call.cancel()
        self._pace = self._end = None
        self._reader.close()

    def _schedule(self) -> None:
        if self.is_paused and self._reader.has_failed:
            self._cut_off()
        else:
            self.resume()

    def _next_chunk(self) -> bytes | None:
        piece = bytes(self._reader.read(PIECE_BYTES))
        if not piece:
            self._pass_end()
            return None
        self._taken += len(piece)
        if self._encoder is None:
            return piece
        self._is_flushed = False
        return self._encoder.encode(piece)

    def _write(self, chunk: bytes) -> None:
        if chunk:
            self._request.write(chunk)

    def _fail(self, _: Exception) -> None:
        _log.failure("A reply failed in the middle.")
        self._cut_off()

    def _pass_end(self) -> None:
        """Finish at the end of the content; while it still grows, wait for more."""
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
        if self.is_paused and self._taken < MIN_BYTES:
            self._cut_off("slow")
            return
        self._taken = 0
        self._pace = self._clock.callLater(PACE_SECONDS, self._check_pace)

    def _cut_off(self, reason: CutOff = "failed") -> None:
        """Drop the connection, so that the client does not mistake a part for the whole."""
        self._request.unregisterProducer()
        self.stopProducing()
        self._request.abort(reason)


class UpgradedConnection:
    """A connection that was upgraded to another protocol (RFC 9110, section 7.8).

    The request for the upgrade stays under way as long as the connection is open: its client is
    counted and logged, and its loss is noticed, as with any request. What the client sends from
    then on goes to the receiver of the other protocol.

    Attributes:
        unread: what the client has already sent after its request.

    """

    __slots__ = ("_connection", "_request", "_writer", "unread")

    def __init__(self, request: Request, connection: Http1Connection, unread: bytes) -> None:
        """Write to `connection`, which `request` came over."""
        self._request = request
        self._connection = connection
        self._writer = connection.writer
        self.unread = unread

    @property
    def sentLength(self) -> int:
        """Bytes that were written so far, including those sent past the writer."""
        return self._request.sentLength

    @sentLength.setter
    def sentLength(self, count: int) -> None:
        self._request.sentLength = count

    def write(self, data: bytes) -> None:
        """Write bytes as they are."""
        self._request.sentLength += len(data)
        self._writer.write(data)

    def write_content(self, content: Content) -> None:
        """Write what other connections are sent too."""
        self.write(content.whole())

    def find_free_send(self) -> tuple[DirectSend | None, Connections | None]:
        """Return what sends past the writer, and what counts it (`IHttp1Request`)."""
        return self._writer.find_free_send(), self._connection.registry

    def continue_after(self, rest: bytes) -> None:
        """Send the rest of what was sent past the writer."""
        if rest:
            self._writer.write(rest)

    def set_reading(self, is_reading: bool) -> None:
        """Read what the client sends, or leave it unread."""
        self._connection.set_reading(is_reading)

    def finish(self) -> None:
        """End the connection after what was written."""
        self._request.end_upgraded()

    def abort(self) -> None:
        """Drop the connection, and with it what has not been sent."""
        self._request.abort()
