"""What is sent over a connection: replies as their clients read, several connections in each turn.

Theory of operation. To its transport a `ConnectionWriter` is the one producer of everything that is
written; the producers that requests register are paced through it. What the buffer of the transport
holds is read, never changed; only its size is set. Four ways lead to a client:

- A reply in one piece is sent directly (`find_direct_send`), without the buffers of Twisted's
  transports, if these are empty. A transport would send what is written to it in the next turn of
  the poll loop, which costs two system calls in addition to the one that sends; over TLS it would
  first wait for another turn, to join small writes, which costs a timer. A reply of this service is
  one write and gains nothing from either.
- Content is sent as its client reads it (`ContentSender`): what the client has not read stays in
  the one shared copy.
- Content that flows is sent as it is made (`FlowSender`), in a content coding if it has one.
- An event goes to each of its streams by a `ContentWriter`, past the request, its connection and
  the transport, while nothing waits in the connection.

The connections whose clients have sent more requests than are rendered at once, and those whose
clients read long replies as fast as these are sent, go on in one `Ring`, which has a share of each
turn of the reactor. A connection that was upgraded to another protocol is an `UpgradedConnection`;
what the protocol writes goes out as it is.

Direct sending reads private attributes of Twisted's transports. They are looked up once for each
connection; if one is missing, and for every transport of another kind, nothing is sent directly and
everything goes the usual way.
"""

from __future__ import annotations

import contextlib
import socket
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

from OpenSSL.SSL import Error, WantReadError
from twisted.internet.abstract import FileDescriptor
from twisted.internet.interfaces import (
    IDelayedCall,
    IProducer,
    IPullProducer,
    IPushProducer,
    IReactorTime,
)
from twisted.internet.tcp import Connection
from twisted.logger import Logger
from twisted.protocols.policies import ProtocolWrapper
from twisted.protocols.tls import BufferingTLSTransport
from zope.interface import implementer

from treedbd.database.slices import Slices, Steps
from treedbd.http1.content import Buffer, Content, ContentReader, FlowReader, FrameReader
from treedbd.http1.parser import CutOff
from treedbd.limits import KIB, MIB
from treedbd.loop import do_nothing

if TYPE_CHECKING:
    from treedbd.http1.connection import Connections, Http1Connection
    from treedbd.http1.request import IHttp1Request, Request

_log = Logger()

MAX_DIRECT_BYTES: Final = 256 * KIB
"""More is not sent directly: a socket does not take it at once."""
_PAIRED_BYTES: Final = 4 * MIB
TLS_PIECE_BYTES: Final = 64 * KIB
"""What is encrypted at a time: OpenSSL keeps a buffer as large as its largest output, as long as
the connection lives. What Twisted encrypts at a time is as much."""
_OUTGOING_BYTES: Final = TLS_PIECE_BYTES + 16 * KIB

_TCP_NAMES: Final = (
    "connected",
    "dataBuffer",
    "disconnecting",
    "socket",
    "_tempDataBuffer",
    "_writeDisconnecting",
)
_TLS_NAMES: Final = (
    "disconnecting",
    "_aggregator",
    "_appSendBuffer",
    "_lostTLSConnection",
    "_tlsConnection",
)

DirectSend = Callable[[Buffer], int]
"""Sends bytes and returns how many of them were sent: from none to all."""
DirectPairSend = Callable[[bytes, bytes], int]
"""Sends two pieces as if they were one."""


def find_direct_send(transport: object) -> DirectSend:
    """Return what sends directly for `transport`; if that is not possible, it sends nothing."""
    if isinstance(transport, BufferingTLSTransport):
        below: object = transport.transport
        if _has(transport, _TLS_NAMES) and isinstance(below, Connection) and _is_plain(below):
            return _TlsDirectSend(transport, below).send
    elif isinstance(transport, Connection) and _is_plain(transport):
        return _TcpDirectSend(transport).send
    return _send_nothing


def find_direct_pair_send(transport: object) -> DirectPairSend:
    """Return what sends a head and a large body directly; over TLS it sends nothing."""
    if isinstance(transport, Connection) and _is_plain(transport):
        return _TcpDirectSend(transport).send_pair
    return _send_neither


class _TcpDirectSend:
    __slots__ = ("_limit", "_tcp")

    def __init__(self, tcp: Connection, limit: int = MAX_DIRECT_BYTES) -> None:
        self._tcp = tcp
        self._limit = limit

    def send(self, data: Buffer) -> int:
        tcp = self._tcp
        # As `is_free`; this is called for each reply and each event of a stream.
        if (
            len(data) > self._limit
            or not tcp.connected
            or tcp.dataBuffer
            or tcp._tempDataBuffer
            or tcp.disconnecting
            or tcp._writeDisconnecting
        ):
            return 0
        try:
            return tcp.socket.send(data)
        except OSError:  # full, or not connected: the transport finds out which
            return 0

    def send_pair(self, head: bytes, body: bytes) -> int:
        if not self.is_free():
            return 0
        try:
            return self._tcp.socket.sendmsg((head, memoryview(body)[:_PAIRED_BYTES]))
        except OSError:
            return 0

    def is_free(self) -> bool:
        tcp = self._tcp
        return bool(
            tcp.connected
            and not tcp.dataBuffer
            and not tcp._tempDataBuffer
            and not tcp.disconnecting
            and not tcp._writeDisconnecting
        )


class _TlsDirectSend:
    def __init__(self, tls: BufferingTLSTransport, tcp: Connection) -> None:
        self._tls = tls
        self._tcp = tcp
        self._send_records = _TcpDirectSend(tcp, 2 * MAX_DIRECT_BYTES).send  # records are longer

    def send(self, data: Buffer) -> int:
        tls = self._tls
        if (
            len(data) > MAX_DIRECT_BYTES
            or tls._lostTLSConnection
            or tls.disconnecting
            or tls._appSendBuffer
            or tls._aggregator._buffer  # type: ignore[union-attr]  # until it is closed
        ):
            return 0
        encrypted, records = self._encrypt(data)
        if records:
            sent = self._send_records(records)
            if sent < len(records):
                self._tcp.write(records[sent:])
        return encrypted

    def _encrypt(self, data: Buffer) -> tuple[int, bytes]:
        """Encrypt the front of `data`; return how many bytes of it, and the records."""
        connection = self._tls._tlsConnection
        encrypted, records = 0, []
        while encrypted < len(data):
            try:
                # Less than all if the client requested small records.
                encrypted += connection.send(data[encrypted : encrypted + TLS_PIECE_BYTES])
            except Error:  # the transport gets the rest and handles it
                break
            while True:
                try:
                    records.append(connection.bio_read(_OUTGOING_BYTES))
                except WantReadError:
                    break
        return encrypted, b"".join(records)


def _send_neither(_: bytes, __: bytes) -> int:
    return 0


def _send_nothing(data: Buffer) -> int:
    return 0


def _is_plain(tcp: Connection) -> bool:
    return not tcp.TLS and _has(tcp, _TCP_NAMES)


def _has(transport: object, names: tuple[str, ...]) -> bool:
    return all(hasattr(transport, name) for name in names)


VISITS: Final = 8
"""How many calls the ring makes in one turn."""
SHARE_SECONDS: Final = 0.008
"""No further call begins in a turn in which the calls have lasted so long."""


class Ring:
    """Calls what waits, in order, a few in each turn; a call may add itself again.

    All connections that wait here have one share of each turn of the reactor together: each renders
    a few requests, or sends a piece of a long reply, and goes to the end of the ring. So a client
    that sends one request at a time waits for one turn, and not for the requests that others have
    sent ahead. A client alone in the ring has the whole share.
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


_COPIED_BYTES: Final = 256 * KIB
_UNSENT_BYTES: Final = 128 * KIB
"""Bytes that may wait in the kernel to be sent. Without a limit megabytes would, and a client that
reads slowly would seem not to read while they are sent."""
_BUFFERED_BYTES: Final = 4 * KIB
"""Beyond this many bytes in its buffer a transport pauses its producer. It only has to know that
there is more to send: content that waits is shared, but its bytes in a buffer are a copy."""

_UNKNOWN_BUFFER_BYTES: Final = 64 * KIB
"""As `_BUFFERED_BYTES`, for a transport whose buffer cannot be set."""


@implementer(IPushProducer)
class ConnectionWriter:
    """Writes to one connection; for the transport it is the producer of all that is written.

    Attributes:
        bytes_sent: how many bytes were written so far, sent or waiting.
        is_paused: whether the transport accepts nothing at present.
        is_aborted: whether the connection was dropped from this end.
        piece_bytes: how many bytes of content are best written at a time.
        ring: where replies whose clients read fast go on; all connections share it.

    """

    def __init__(self, transport: Any, ring: Ring, on_writable: Callable[[], object]) -> None:
        """Write to `transport`: TCP, TLS over it, a UNIX socket, memory.

        `on_writable` is called when it accepts more again.
        """
        self.bytes_sent = 0
        self.is_paused = False
        self.is_aborted = False
        self._transport = transport
        self._send_directly = find_direct_send(transport)
        self._send_pair_directly = find_direct_pair_send(transport)
        self._descriptor = _find_descriptor(transport)
        _bound_buffers(self._descriptor)
        is_tls = isinstance(transport, BufferingTLSTransport)
        self.piece_bytes: Final = TLS_PIECE_BYTES if is_tls else MAX_DIRECT_BYTES
        self._handed_bytes = (
            _UNKNOWN_BUFFER_BYTES if self._descriptor is None else _BUFFERED_BYTES
        ) + 1
        self._read: int | None = None
        self._moved_at = 0.0
        self.ring: Final = ring
        self._on_writable = on_writable
        self._producer: IPushProducer | None = None
        transport.registerProducer(self, True)

    @property
    def waiting_bytes(self) -> int:
        """How many bytes wait in the transport, as far as can be seen."""
        descriptor = self._descriptor
        if descriptor is None:
            return 0
        return len(descriptor.dataBuffer) - descriptor.offset + descriptor._tempDataLen

    def write(self, data: bytes) -> None:
        """Send `data` now or as soon as the client reads."""
        size = len(data)
        self.bytes_sent += size
        sent = self._send_directly(data)
        if sent < size:
            self._transport.write(data[sent:])

    def find_free_send(self) -> DirectSend | None:
        """Return what sends directly as long as nothing else is written; None if something waits.

        It checks nothing, so it must not be used any more once it has sent less than all.
        """
        tcp = self._transport
        if isinstance(tcp, Connection) and _is_plain(tcp) and _TcpDirectSend(tcp).is_free():
            send: DirectSend = tcp.socket.send
            return send
        return None

    def write_pair(self, head: bytes, body: bytes) -> None:
        """Send both in one write of the transport, without copying a large body."""
        if len(body) <= _COPIED_BYTES:
            self.write(head + body)
            return
        self.bytes_sent += len(head) + len(body)
        sent = self._send_pair_directly(head, body)
        if sent < len(head):
            self._transport.writeSequence((head[sent:], body))
        elif sent < len(head) + len(body):
            self._transport.write(body[sent - len(head) :])

    def send_content(self, head: bytes, reader: ContentReader, done: Callable[[], None]) -> None:
        """Send a head and the content after it as the client reads; then close `reader`.

        `done` is called after the last byte was accepted, now or later; not if the client is gone.
        """
        sender = ContentSender(self, reader, done)
        self.register_producer(sender, streaming=True)
        if self.is_paused:
            self.write(head)
            return
        piece = reader.peek(max(0, self.piece_bytes - len(head)))
        taken = self.write_some(b"".join((head, piece)), at_least=len(head))
        reader.skip(taken - len(head))
        if not (self.is_paused and reader.remaining):
            sender.resumeProducing()

    def write_some(self, data: Buffer, at_least: int = 0) -> int:
        """Send the front of `data`; return how many bytes were taken, sent or still waiting.

        Fewer than all of them, but never fewer than `at_least`, if the client does not keep up.
        """
        sent = self._send_directly(data)
        if sent < len(data):
            rest = bytes(data[sent : max(at_least, sent + self._handed_bytes)])
            self._transport.write(rest)
            sent += len(rest)
        self.bytes_sent += sent
        return sent

    def stalled_s(self, now: float, least_bytes: int = 1) -> float | None:
        """Return for how long the client has not read `least_bytes` of what waits for it.

        None if nothing waits. What a transport of an unknown kind buffers cannot be seen; there
        something waits while the transport is paused, and nothing of it is read.
        """
        if self._descriptor is None:
            waits, read = self.is_paused, 0
        else:
            waiting = self.waiting_bytes
            # Over TLS a little less than was read, since what waits is longer when it is encrypted.
            waits, read = waiting > 0, self.bytes_sent - waiting
        if not waits:
            self._read = None
            return None
        if self._read is None or read >= self._read + least_bytes:
            self._read = read
            self._moved_at = now
        return now - self._moved_at

    def register_producer(self, producer: IProducer, streaming: bool) -> None:
        """Pause and resume a producer as the client reads."""
        if streaming:
            self._producer = cast(IPushProducer, producer)
        else:
            self._producer = PullProducerAdapter(cast(IPullProducer, producer), self)
        if self.is_paused:
            self._producer.pauseProducing()

    def unregister_producer(self) -> None:
        """Release the producer."""
        producer, self._producer = self._producer, None
        if isinstance(producer, PullProducerAdapter):
            producer.pauseProducing()

    def pauseProducing(self) -> None:
        """Stop writing for now: the client does not keep up."""
        self.is_paused = True
        if self._producer is not None:
            self._producer.pauseProducing()

    def resumeProducing(self) -> None:
        """Write again: the client has read everything."""
        self.is_paused = False
        if self._descriptor is None:
            self._read = None
        if self._producer is not None:
            self._producer.resumeProducing()
        self._on_writable()

    def stopProducing(self) -> None:
        """Stop the producer of a reply, which is no longer read."""
        producer, self._producer = self._producer, None
        if producer is not None:
            producer.stopProducing()

    def close(self) -> None:
        """Close in both directions once everything is sent."""
        self._transport.unregisterProducer()  # with one, a transport waits for it to finish
        self._transport.loseConnection()

    def close_half(self) -> None:
        """End the sending direction once everything is sent, and go on reading if possible.

        TLS has its own way: its transport reads on until the client has closed too.
        """
        self._transport.unregisterProducer()
        lose_write = getattr(self._transport, "loseWriteConnection", None)
        if lose_write is None or isinstance(self._transport, ProtocolWrapper):
            self._transport.loseConnection()
        else:
            lose_write()

    def abort(self) -> None:
        """Drop the connection and what waits."""
        self.is_aborted = True
        self._transport.abortConnection()

    def release(self) -> None:
        """Stop the producer and call nothing again: the connection is gone."""
        self.stopProducing()
        self._on_writable = do_nothing


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


def _bound_buffers(descriptor: FileDescriptor | None) -> None:
    if descriptor is not None:
        descriptor.bufferSize = _BUFFERED_BYTES
    option = getattr(socket, "TCP_NOTSENT_LOWAT", None)
    if option is not None and isinstance(descriptor, Connection):
        with contextlib.suppress(OSError):  # a socket of another kind
            descriptor.socket.setsockopt(socket.IPPROTO_TCP, option, _UNSENT_BYTES)


def _find_descriptor(transport: object) -> FileDescriptor | None:
    """Return what `transport` finally writes to, None if its buffer cannot be read."""
    while isinstance(transport, ProtocolWrapper):
        transport = transport.transport
    if isinstance(transport, FileDescriptor) and hasattr(transport, "_tempDataLen"):
        return transport
    return None


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

    The sender of a large response (`FlowSender`), of a stream and of a WebSocket: they differ in
    what they send next.

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
    """Sends frames, each from readers of its parts, and chunks that may contain several."""

    __slots__ = ("_sending",)

    def __init__(self, slices: Slices) -> None:
        super().__init__(slices)
        # Idle senders are many, so what they do not use is not made.
        self._sending: deque[FrameReader] | None = None

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


class Encoder(Protocol):
    """A content coding, applied piece by piece: gzip or zstd (`web/response`)."""

    def encode(self, data: bytes) -> bytes:
        """Return what can be sent of the encoded bytes so far; it may be nothing."""

    def flush(self) -> bytes:
        """Return what is needed to decode all that was encoded so far."""

    def finish(self) -> bytes:
        """Return the end of the encoded bytes."""


@implementer(IPushProducer)
class FlowSender(ChunkSender):
    """The producer of the body of one reply that was started: content that flows.

    A client that reads less than `MIN_BYTES` in `PACE_SECONDS`, although there was more for it, is
    cut off: what waits for it uses room that others need. Otherwise sending may last as long as it
    must, unless the request has a time-out.
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


class ContentWriter:
    """Writes the body of one reply, above all content that many replies contain, as an event.

    Theory of operation. A reply that ends with its connection is sent as it is written. As long as
    its client keeps up, nothing waits in the connection between two writes. Then content goes to
    the socket directly. That touches none of the objects between, which are the request, its
    connection and the transport: those of a thousand streams do not fit into the caches of a
    processor, and reading them took longer than the work.

    Whatever else is written to the reply goes through this writer and ends that state, and so does
    a socket that did not take all. The next content is then written the usual way, and after it the
    state is looked up again. Nothing else may write to the reply.
    """

    __slots__ = ("_connections", "_request", "_send")

    def __init__(self, request: IHttp1Request | UpgradedConnection) -> None:
        """Write to `request`, or to a connection that was upgraded."""
        self._request = request
        self._send: DirectSend | None = None
        self._connections: Connections | None = None

    def write(self, data: bytes) -> None:
        """Write a piece of the body."""
        self.end_direct()
        self._request.write(data)

    def write_content(self, content: Content) -> None:
        """Write a short piece of the body that other replies contain too."""
        send, connections = self._send, self._connections
        if send is None or connections is None:
            self._request.write_content(content)
            self._send, self._connections = self._request.find_free_send()
            return
        data = content.whole()
        try:
            sent = send(data)
        except OSError:  # full, or not connected: the transport finds out which
            sent = 0
        connections.sent_past_bytes += sent
        self._request.sentLength += content.size
        if sent < content.size:
            self.end_direct(data[sent:])

    def end_direct(self, rest: bytes = b"") -> None:
        """End the direct sending, and write the rest of content.

        Must be called before anything else is done with the request.
        """
        if self._send is not None:
            self._send = None
            self._request.continue_after(rest)


class UpgradedConnection:
    """A connection that was upgraded to another protocol (RFC 9110, section 7.8).

    The request for the upgrade stays under way as long as the connection is open: its client is
    counted and logged, and its loss is noticed, as with any request. What the client sends from
    then on goes to the receiver of the other protocol.

    Attributes:
        unread: what the client has sent already after its request.

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
        """Bytes that were written so far, also of what was sent past the writer."""
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

    def pause_reading(self) -> None:
        """Receive nothing until `resume_reading`."""
        self._connection.set_reading(False)

    def resume_reading(self) -> None:
        """Receive again."""
        self._connection.set_reading(True)

    def finish(self) -> None:
        """End the connection after what was written."""
        self._request.end_upgraded()

    def abort(self) -> None:
        """Drop the connection, and with it what has not been sent."""
        self._request.abort()
