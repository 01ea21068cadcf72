"""One connection of an HTTP client: from its bytes to requests, and from replies to its bytes.

An `Http1Connection` is the protocol between a transport and the requests of one client. Bytes go to
an `Http1Parser`; each complete request is rendered before the next is parsed, so replies leave in
order. If a client sends many requests at once, the first is rendered; then its connection waits in
the `Ring` with the others that have more. What a client sends meanwhile is kept unparsed, and past
a bound the transport stops reading. While the client does not read its replies, no further request
of it is answered.

A connection is in one of these states, whose time limits `sweep` checks:

- handshake: until TLS is set up;
- idle: between requests, or before the first;
- head and body: a request is arriving; both end with 408;
- answering: without a limit, since the resource has its own;
- closing: everything has been sent; what the client still sends is read and dropped for a while,
  because closing with unread input would reset the connection and could destroy the last reply on
  its way (RFC 9112, section 9.6).

In all of them a client that reads too little of what waits for it is dropped after a while.

A client that has ended its sending direction may still wait for replies, or may have gone. So its
requests are answered, if the reply begins soon; streams and other protocols end at once.

A `ConnectionWriter` is the only producer that a transport has; it pauses and resumes the producers
that requests register. It reads how much the transport has buffered, and changes only the size of
that buffer. A reply in one piece is sent directly (`find_direct_send`), past the buffers of
Twisted's transports, if these are empty. A transport would send what is written to it in the next
turn of the poll loop, which costs two system calls in addition to the one that sends; over TLS it
would first wait for another turn, to join small writes, which costs a timer. A reply of this
service is one write and gains nothing from either.

Direct sending reads private attributes of Twisted's transports. They are looked up once for each
connection; if one is missing, and for every transport of another kind, nothing is sent directly and
everything goes the usual way.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable
from math import inf
from time import perf_counter
from typing import Any, Final, cast

from OpenSSL.SSL import Error, WantReadError
from twisted.internet import protocol
from twisted.internet.abstract import FileDescriptor
from twisted.internet.interfaces import (
    IHalfCloseableProtocol,
    IHandshakeListener,
    IProducer,
    IPullProducer,
    IPushProducer,
    IReactorTime,
    ISSLTransport,
    ITCPTransport,
)
from twisted.internet.protocol import connectionDone
from twisted.internet.tcp import Connection
from twisted.protocols.policies import ProtocolWrapper
from twisted.protocols.tls import BufferingTLSTransport
from twisted.python.failure import Failure
from zope.interface import implementer

from treedbd.counting import SMALL_HELD_BYTES, HeldAccount, HeldBytesRefused
from treedbd.http1.content import Buffer, ContentReader
from treedbd.http1.parser import (
    BODY_TIMEOUT,
    BODY_TOO_LARGE,
    HEAD_TIMEOUT,
    HELD_TOO_MUCH,
    KEPT_BYTES,
    TOO_MANY_BODIES,
    CutOff,
    ErrorReply,
    Http1Parser,
    ProtocolError,
)
from treedbd.http1.registry import (
    NOTED_AT_ONCE,
    Connections,
    HeldBody,
    RequestLogging,
    log_request,
)
from treedbd.http1.request import Request
from treedbd.http1.senders import (
    ContentSender,
    DirectPairSend,
    DirectSend,
    PullProducerAdapter,
    Ring,
)
from treedbd.limits import KIB, MIB, Limits
from treedbd.loop import do_nothing

MAX_DIRECT_BYTES: Final = 256 * KIB
"""Longer data is not sent directly: a socket does not accept it at once."""
_PAIRED_BYTES: Final = 4 * MIB
TLS_PIECE_BYTES: Final = 64 * KIB
"""How much is encrypted at a time, as in Twisted: OpenSSL keeps a buffer as large as its largest
output, as long as the connection lives."""
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
        except OSError:  # full or not connected: the transport handles it
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


_COPIED_BYTES: Final = 256 * KIB
_UNSENT_BYTES: Final = 128 * KIB
"""Bytes that may wait in the kernel to be sent. Without a limit they would be megabytes, and a
client that reads slowly would seem to have stopped while they are sent."""
_BUFFERED_BYTES: Final = 4 * KIB
"""Beyond this many bytes in its buffer a transport pauses its producer. Few are enough to keep it
sending, and they are a copy: content that waits elsewhere is shared."""

_UNKNOWN_BUFFER_BYTES: Final = 64 * KIB
"""As `_BUFFERED_BYTES`, for a transport whose buffer cannot be set."""


@implementer(IPushProducer)
class ConnectionWriter:
    """Writes to one connection; it is the only producer of the transport.

    Attributes:
        bytes_sent: how many bytes were written so far, sent or waiting.
        is_paused: whether the transport accepts nothing at present.
        is_aborted: whether the connection was dropped from this end.
        piece_bytes: how many bytes of content are best written at a time.
        ring: where replies to fast clients wait to continue; all connections share it.

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
        """Return what sends directly while nothing else is written; None if something waits.

        It checks nothing, so it must not be used again once it has sent less than all.
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

        `done` is called after the last byte was accepted, now or later; not if the client
        disconnects.
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
        """Send the front of `data`; return how many bytes were accepted, sent or still waiting.

        If the client does not keep up these are fewer than all, but never fewer than `at_least`.
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

        None if nothing waits. The buffer of a transport of an unknown kind cannot be seen; there
        something waits while the transport is paused, and it counts as unread.
        """
        if self._descriptor is None:
            waits, read = self.is_paused, 0
        else:
            waiting = self.waiting_bytes
            # Over TLS this is a little less than was read, because waiting bytes are encrypted.
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
        self._transport.unregisterProducer()  # a transport waits for its producer to finish
        self._transport.loseConnection()

    def close_half(self) -> None:
        """End the sending direction once everything is sent, and go on reading if possible.

        A transport of TLS does so by itself: it reads on until the client has closed too.
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


def _bound_buffers(descriptor: FileDescriptor | None) -> None:
    if descriptor is not None:
        descriptor.bufferSize = _BUFFERED_BYTES
    option = getattr(socket, "TCP_NOTSENT_LOWAT", None)
    if option is not None and isinstance(descriptor, Connection):
        with contextlib.suppress(OSError):  # a socket of another kind
            descriptor.socket.setsockopt(socket.IPPROTO_TCP, option, _UNSENT_BYTES)


def _find_descriptor(transport: object) -> FileDescriptor | None:
    """Return the descriptor that `transport` writes to, None if its buffer cannot be read."""
    while isinstance(transport, ProtocolWrapper):
        transport = transport.transport
    if isinstance(transport, FileDescriptor) and hasattr(transport, "_tempDataLen"):
        return transport
    return None


_LINGER_TIMES: Final = 6


class Deadline:
    """The deadline of one connection for its client; times are seconds of one clock.

    There is one deadline at a time. Those for a head and for a body are absolute: no byte that
    arrives extends them, except that a body has the time that its content takes at the least rate.
    That for the end of a closing connection is extended by everything that the client still sends.
    The idle time is not a deadline, because it begins again with every request.

    Attributes:
        is_set: whether there is a deadline.
        error: what to reply when the deadline passes, None to close without a reply.

    """

    def __init__(self, limits: Limits, clock: IReactorTime) -> None:
        """Set no deadline yet."""
        self.is_set = False
        self.error: ErrorReply | None = None
        self._limits = limits
        self._clock = clock
        self._at = inf
        self._body_began = 0.0
        self._linger_ends = inf

    def clear(self) -> None:
        """Remove the deadline."""
        self.is_set = False
        self.error = None

    def set_for_handshake(self) -> None:
        """Set the deadline of the TLS handshake."""
        self._set(self._clock.seconds() + self._limits.handshake_s, None)

    def set_for_head(self) -> None:
        """Set the deadline of a head; called for every piece of it."""
        if self.error is not HEAD_TIMEOUT:
            self._set(self._clock.seconds() + self._limits.head_s, HEAD_TIMEOUT)

    def set_for_body(self, received: int) -> bool:
        """Set the deadline of a body; called for every piece; return whether that is the first."""
        is_first = self.error is not BODY_TIMEOUT
        if is_first:
            self._body_began = self._clock.seconds()
        rate_s = received / self._limits.body_bytes_per_s
        self._set(self._body_began + self._limits.body_s + rate_s, BODY_TIMEOUT)
        return is_first

    def set_for_close(self) -> None:
        """Set the deadline for the client to close; called for everything that it still sends."""
        now, linger_s = self._clock.seconds(), self._limits.linger_s
        self._linger_ends = min(self._linger_ends, now + _LINGER_TIMES * linger_s)
        self._set(min(now + linger_s, self._linger_ends), None)

    def extend_for_close(self, now: float) -> None:
        """Give time to a client that is still reading what was sent before the close."""
        self._at = now + self._limits.linger_s

    def has_passed(self, now: float) -> bool:
        """Return whether there is a deadline and it has passed."""
        return self.is_set and now >= self._at

    def _set(self, at: float, error: ErrorReply | None) -> None:
        self.is_set = True
        self.error = error
        self._at = at


_CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
_COPIES: Final = 2
"""A long head is in memory twice: as it was sent, and parsed."""
_HELD_BYTES: Final = 64 * 1024
REQUESTS_AT_ONCE: Final = 8
"""Requests of a connection that are rendered at a visit of the ring."""


@implementer(IHandshakeListener, IHalfCloseableProtocol)
class Http1Connection(protocol.Protocol):
    """The protocol of one connection; its requests call it too.

    Attributes:
        secure: whether it uses TLS.
        peer, host: the address of the client, and the local one.
        site: the `Site` that requests belong to.
        writer: writes to the transport.
        registry: the registry of connections that it belongs to.
        date_lines: the first header lines of plain and of secure replies.
        entrance: the name that the factory of its port gives to its requests.

    """

    secure = False
    writer: ConnectionWriter
    _make_request: type[Request]
    _counted_for: str  # an address, empty for none

    transport: Any
    _request: Request | None = None
    _parsing = False  # `_parse` is running
    _is_in_ring = False  # continues to parse after other connections
    _is_read_paused = False  # the transport was paused
    _closing = False
    _idle_since = inf  # until the first request is awaited
    _is_half_closed = False  # the client has ended what it sends,
    _half_closed_at = inf  # when that was
    _receive: Callable[[bytes], None] | None = None  # of another protocol, after an upgrade
    _account: HeldAccount | None = None  # for the memory of long heads
    _dropped = 0
    _cut_off: CutOff | None = None  # why the connection was dropped from this end

    def __init__(self, connections: Connections, entrance: str = "") -> None:
        """Belong to `connections`."""
        self.entrance = entrance
        options = connections.options
        self.site = connections.site
        self.registry = connections
        self._noted = connections.noted
        self.set_logs(connections.logs)
        self._byte_rates = options.byte_rates
        self.date_lines = connections.date_lines
        self._limits = connections.limits
        self._parser = Http1Parser(connections.limits, connections.header_blocks)
        self._body = HeldBody(connections.held, connections.limits)
        self._deadline = Deadline(connections.limits, connections.clock)

    @property
    def bytes_sent(self) -> int:
        """How many bytes were written to this connection."""
        return self.writer.bytes_sent

    # From the transport.

    def connectionMade(self) -> None:
        """Start, or refuse the client."""
        transport = self.transport
        self.peer, self.host = transport.getPeer(), transport.getHost()
        self.secure = ISSLTransport.providedBy(transport)
        self.writer = ConnectionWriter(transport, self.registry.ring, self._resume_parsing)
        self._make_request, self._counted_for = self.registry.requests_of(self.peer)
        self._body.address = self._counted_for
        error = self.registry.admit(self, self._counted_for)
        if error is not None:
            if self.secure or self.registry.refuses_without_reply():
                self.abort()
            else:
                self._refuse(error)
            return
        if ITCPTransport.providedBy(transport):
            transport.setTcpNoDelay(True)
        if self.secure:
            self._deadline.set_for_handshake()
        else:
            self._await_first()

    def handshakeCompleted(self) -> None:
        """Begin to wait for the first request over TLS."""
        if not self._closing:
            self._await_first()

    def dataReceived(self, data: bytes) -> None:
        """Receive what the client sent."""
        # As `_is_occupied`; this is called for each request.
        if self._request is not None or self._closing or self._is_in_ring or self.writer.is_paused:
            self._hold_or_drop(data)
        else:
            self._parse(data)

    def readConnectionLost(self) -> None:
        """Answer what the client has sent: it has ended its sending direction, or has gone."""
        if self._closing:
            self.transport.loseConnection()
        elif self._request is None and not self._is_occupied():
            self._close(linger=False)
        elif self._request is not None and self._request.has_own_timeout:
            self.abort("client")
        elif not self._is_half_closed:
            self._is_half_closed = True
            self._half_closed_at = self.registry.clock.seconds()

    def writeConnectionLost(self) -> None:
        """Do nothing: the client was sent everything."""

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        """Notify the request under way that its client has disconnected."""
        self._closing = True
        self._receive = None
        self._body.release()
        if self._account is not None:
            self._account.close()
        self.writer.release()
        request, self._request = self._request, None
        self._count_end(request)
        if request is not None:
            if self._logs.lost is not None:
                log_request(self._logs.lost, request)
            request.connectionLost(reason)
        self.registry.remove(self, request)
        self._parser.close()

    # From the request.

    def answered(self, request: Request) -> None:
        """Go on to the next request, or close."""
        self._request = None
        self._idle_since = self.registry.now
        if self._body.held:
            self._body.release()
        memory, seconds = request.head_memory, perf_counter() - request.began
        is_long = self._parser.head_bytes > 0 or memory.size > KEPT_BYTES
        if is_long:
            self._parser.forget()
        sent, received = request.sentLength, self._parser.body_size
        noted = self._noted
        noted.append((memory, request.method, request.code, seconds, sent, received))
        if is_long or len(noted) >= NOTED_AT_ONCE:
            self.registry.count_answered()
        if self._byte_rates is not None:
            self._byte_rates.note_answered(request)
        if seconds >= self._log_least_s:
            log_request(self._logs.answered, request)
        if not request.persistent:
            is_sending = request.is_oversized or self._receive is not None
            self._close(linger=is_sending or self._parser.unread_bytes > 0)
        elif not self._parsing:
            self._resume_parsing()

    def lose_connection(self) -> None:
        """Close once everything is sent."""
        self._close(linger=False)

    def switch(self, receive: Callable[[bytes], None]) -> bytes:
        """Pass all that follows to another protocol; return what has arrived already."""
        self._receive = receive
        return self._parser.end()

    def shorten_head(self, request: Request) -> None:
        """Keep little of a long head: the reply lasts long, or another protocol follows."""
        if self._parser.head_bytes:
            kept_bytes = request.keep_little()
            self._parser.forget()
            self._may_hold(_COPIES * kept_bytes)

    def set_reading(self, is_reading: bool) -> None:
        """Read what the client sends, or leave it unread."""
        if self._is_read_paused is is_reading and not self._closing:
            self._is_read_paused = not is_reading
            (self.transport.resumeProducing if is_reading else self.transport.pauseProducing)()

    # From the registry of connections.

    def sweep(self, now: float) -> None:
        """Do what is due at `now`."""
        if now >= self._half_closed_at + self._limits.linger_s:
            self._end_half_closed()
        stalled_s = self.writer.stalled_s(now, self._limits.least_read_bytes)
        if stalled_s is not None:
            has_own_timeout = self._request is not None and self._request.has_own_timeout
            if stalled_s >= self._limits.write_stalled_s and not has_own_timeout:
                self.abort("slow")
            elif self._closing:
                self._deadline.extend_for_close(now)
            else:
                self._idle_since = now
        elif self._deadline.has_passed(now):
            self._expire()
        elif self._is_idle() and now >= self._idle_since + self._limits.idle_s:
            self._close(linger=False)

    def _end_half_closed(self) -> None:
        """Drop a client that has ended its sending direction, unless its reply has begun."""
        request = self._request
        if request is not None and (request.has_own_timeout or not request.startedWriting):
            self.abort("client")

    def drain(self) -> None:
        """Close now if no request is under way, else after it."""
        if self._request is not None:
            self._request.persistent = False
        elif not self._parser.in_body and not self._parser.unread_bytes:
            self._close(linger=False)

    def set_logs(self, logs: RequestLogging) -> None:
        """Log the requests by `logs` from now on."""
        self._logs, self._log_least_s = logs, logs.least_s

    def abort(self, reason: CutOff = "failed") -> None:
        """Drop the connection."""
        self._closing = True
        if self._cut_off is None:
            self._cut_off = reason
        self.writer.abort()

    # Requests.

    def _is_occupied(self) -> bool:
        return (
            self._request is not None or self._closing or self._is_in_ring or self.writer.is_paused
        )

    def _is_idle(self) -> bool:
        return self._request is None and not self._closing and not self._deadline.is_set

    def _parse(self, data: bytes = b"", at_most: int = 1) -> None:
        """Render complete requests, until one is not answered at once; then enter the ring."""
        parser, rendered = self._parser, 0
        self._parsing = True
        try:
            while parser.receive(data):
                self._render()
                rendered += 1
                if not parser.unread_bytes or self._is_occupied():
                    break
                if rendered == at_most:
                    self._is_in_ring = True
                    self.registry.ring.add(self._continue_parsing)
                    break
                data = b""
        except ProtocolError as error:
            if error.reply is BODY_TOO_LARGE and self.registry.takes_oversized:
                self._render_oversized()
            else:
                self._refuse(error.reply)
        finally:
            self._parsing = False
        if self._request is None and not self._closing:
            self._await_more()

    def _render(self) -> None:
        if self._parser.head_bytes and not self._may_hold(_COPIES * self._parser.head_bytes):
            self._refuse(HELD_TOO_MUCH)
            return
        request = self._request = self._make_request(self, self._parser)
        if self.registry.draining:
            request.persistent = False
        if self._deadline.is_set:
            self._deadline.clear()
        try:
            if self.registry.is_leaf:
                request.render(self.registry.resource)
            else:
                request.process()
        except Exception:
            request.processingFailed(Failure())

    def _render_oversized(self) -> None:
        """Have the resource refuse a request; the rest of its body is dropped."""
        self._body.release()
        self.registry.errors[BODY_TOO_LARGE.status] += 1
        request = self._request = self._make_request(self, self._parser)
        request.is_oversized = True
        request.persistent = False
        self._deadline.clear()
        request.render(self.registry.resource)

    def _continue_parsing(self) -> None:
        """Parse the rest at a visit of the ring; the connection may be closed by now."""
        self._is_in_ring = False
        if not self._is_occupied():
            self._parse(at_most=REQUESTS_AT_ONCE)

    def _resume_parsing(self) -> None:
        """Parse what was kept unparsed, unless the connection is still occupied."""
        if self._parsing or self._is_occupied():
            return
        if self._parser.unread_bytes:
            self._parse()
        else:
            self._await_more()

    def _await_first(self) -> None:
        """Wait for the first request; a client that sends only empty lines is idle."""
        self._idle_since = self.registry.now
        self._await_more()

    def _await_more(self) -> None:
        """Set the time limit for what the client is to send next."""
        parser = self._parser
        if self._is_half_closed and not self._is_occupied():
            self._close(linger=False)
            return
        if parser.in_body:
            if self._deadline.set_for_body(parser.body_bytes) and parser.awaits_continue:
                self.writer.write(_CONTINUE)
            if not self._body.count(parser.body_bytes):
                self._refuse(TOO_MANY_BODIES)
            elif parser.head_bytes and not self._may_hold(_COPIES * parser.head_bytes):
                self._refuse(HELD_TOO_MUCH)
        elif parser.unread_bytes:
            self._deadline.set_for_head()
            if not self._may_hold(parser.unread_bytes):
                self._refuse(HELD_TOO_MUCH)
        else:
            if self._account is not None:
                self._account.set(0)
            if self._deadline.is_set:
                self._deadline.clear()
        if self._is_read_paused and not self._is_occupied():
            self._is_read_paused = False
            self.transport.resumeProducing()

    def _hold_or_drop(self, data: bytes) -> None:
        """Keep bytes that cannot be parsed yet; drop those of a closing connection."""
        if self._receive is not None and not self._closing:
            self._receive(data)
            return
        if not self._closing:
            self._parser.hold(data)
            if not self._may_hold(self._parser.unread_bytes):
                self.abort()
            if not self._is_read_paused and self._parser.unread_bytes > _HELD_BYTES:
                self._is_read_paused = True
                self.transport.pauseProducing()
            return
        self._dropped += len(data)
        if self._dropped > 2 * self._limits.write_body_bytes:
            self.abort()
        self._deadline.set_for_close()

    def _may_hold(self, size: int) -> bool:
        """Charge heads and requests that wait to the account; return whether they fit."""
        if self._account is None:
            if size <= SMALL_HELD_BYTES:
                return True
            self._account = self.registry.held.account(self._counted_for)
        try:
            self._account.set(size if size > SMALL_HELD_BYTES else 0)
        except HeldBytesRefused:
            return False
        return True

    # The end.

    def _count_end(self, request: Request | None) -> None:
        """Count the end of the connection, and of the reply to `request` if there is one."""
        reason = self._cut_off
        if request is not None:
            if reason is None:
                reason = "failed" if self.writer.is_aborted else "client"
            if request.note_cut_off(reason):
                self.registry.cut_off[reason] += 1
            elif request.startedWriting:
                # A stream, or another protocol, ends with its connection.
                memory, seconds = request.head_memory, perf_counter() - request.began
                sent, received = request.sentLength, self._parser.body_size
                self._noted.append((memory, request.method, request.code, seconds, sent, received))
        elif reason in ("slow", "stop") and self.writer.waiting_bytes:
            # The request was answered: only the last bytes of the reply waited.
            self.registry.cut_off[reason] += 1

    def _expire(self) -> None:
        if self._closing:
            self.abort()
        elif self._deadline.error is not None:
            self._refuse(self._deadline.error)
        else:
            self._close(linger=False)

    def _refuse(self, error: ErrorReply) -> None:
        self._body.release()
        reply = self.registry.format_error(error, self._counted_for, secure=self.secure)
        self.writer.write(reply)
        self._close(linger=True)

    def _close(self, *, linger: bool) -> None:
        """Close after everything written is sent; `linger` if the client may still be sending."""
        if self._closing:
            return
        self._closing = True
        self._parser.end()
        if self._account is not None:
            self._account.set(0)
        self._deadline.set_for_close()
        if self._is_read_paused:
            self.transport.resumeProducing()
        if linger:
            self.writer.close_half()
        else:
            self.writer.close()
