"""One HTTP/1.1 connection: the protocol between a transport and the requests of a client.

Bytes go to an `Http1Parser`; each request that is complete is rendered before the next is parsed,
so replies leave in order. A client that sends many at once has the first one rendered, then its
connection enters a ring (`pipelines`), behind the others that have more. What a client sends
meanwhile is held unread, and past a bound the transport stops reading. While the client does not
read its replies, no further request of it is answered.

A connection is in one of these states, whose time limits `sweep` checks:

- handshake: until TLS is set up;
- idle: between requests, or before the first;
- head and body: a request is arriving; both end with 408;
- answering: without a limit, since the resource has its own;
- closing: everything has been sent; what the client still sends is read and dropped for a while,
  because closing with unread input would reset the connection and could destroy the last reply on
  its way (RFC 9112, section 9.6).

In all of them a client that reads too little of what is waiting for it is dropped after a while.

A client that has ended its sending direction may still wait for replies, or be gone. So what it has
sent is answered, if the reply begins soon; streams and other protocols end with it.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from time import perf_counter
from typing import Any, Final

from twisted.internet import protocol
from twisted.internet.interfaces import (
    IHalfCloseableProtocol,
    IHandshakeListener,
    ISSLTransport,
    ITCPTransport,
)
from twisted.internet.protocol import connectionDone
from twisted.python.failure import Failure
from zope.interface import implementer

from treedbd.held_bytes import SMALL_HELD_BYTES, HeldAccount, HeldBytesRefused
from treedbd.http1.parser import (
    BODY_TOO_LARGE,
    HELD_TOO_MUCH,
    TOO_MANY_BODIES,
    CutOff,
    ErrorReply,
    Http1Parser,
    ProtocolError,
)
from treedbd.http1.request import Request
from treedbd.http1.writer import ConnectionWriter
from treedbd.web.http1.connections import Connections
from treedbd.web.http1.deadlines import Deadline
from treedbd.web.http1.held_body import HeldBody
from treedbd.web.http1.served import log_request

_CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
_COPIES: Final = 2
"""How often a long head is held: as it was sent, and parsed."""
_HELD_BYTES: Final = 64 * 1024
REQUESTS_AT_ONCE: Final = 8
"""Requests of a connection that are rendered when it has come up in the ring."""


@implementer(IHandshakeListener, IHalfCloseableProtocol)
class Http1Connection(protocol.Protocol):
    """The protocol of one connection; its requests call it too (`RequestConnection`).

    Attributes:
        secure: whether it uses TLS.
        peer, host: the address of the client, and the local one.
        site: the `Site` that requests belong to.
        writer: what writes to the transport.
        sent_past: the bytes that were sent past the writers of all connections.
        date_lines: the first header lines of plain and of secure replies.

    """

    secure = False
    writer: ConnectionWriter
    _make_request: type[Request]
    _counted_for: str  # an address, empty for none

    transport: Any
    _request: Request | None = None
    _parsing = False  # requests are being parsed and rendered by a caller
    _is_in_ring = False  # continues to parse, after other connections
    _is_read_paused = False  # the transport was paused
    _closing = False
    _idle_since = inf  # while no first request is awaited yet
    _is_half_closed = False  # the client has ended what it sends,
    _half_closed_at = inf  # at this time
    _receive: Callable[[bytes], None] | None = None  # of another protocol, after an upgrade
    _account: HeldAccount | None = None  # of what is held of long heads
    _dropped = 0
    _cut_off: CutOff | None = None  # why the connection was dropped from this end

    def __init__(self, connections: Connections) -> None:
        """Belong to `connections`."""
        self._served = connections.served
        self.site = self._served.site
        options = self._served.options
        self._connections = connections
        self._note_answered = connections.note_answered
        self._logs = options.logs
        self._log_least_s = options.logs.least_s
        self._note_bytes = options.note_bytes
        self.sent_past = connections.sent_past
        self.date_lines = connections.date_lines
        self._limits = connections.limits
        self._parser = Http1Parser(connections.limits)
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
        self.writer = ConnectionWriter(transport, self._connections.ring, self._resume_parsing)
        self._make_request, self._counted_for = self._connections.requests_of(self.peer)
        self._body.address = self._counted_for
        error = self._connections.admit(self, self._counted_for)
        if error is not None:
            if self.secure or self._connections.refuses_without_reply():
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
        if self._is_occupied():
            self._hold_or_drop(data)
        else:
            self._parse(data)

    def readConnectionLost(self) -> None:
        """Answer what the client has sent, though it sends no more; but it may be gone."""
        if self._closing:
            self.transport.loseConnection()
        elif self._request is None and not self._is_occupied():
            self._close(linger=False)
        elif self._request is not None and self._request.has_own_timeout:
            self.abort("client")
        elif not self._is_half_closed:
            self._is_half_closed = True
            self._half_closed_at = self._connections.clock.seconds()

    def writeConnectionLost(self) -> None:
        """Do nothing: the client was sent everything."""

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        """Notify the request under way that its client is gone."""
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
        self._connections.remove(self, request)
        self._parser.close()

    # From the request.

    def answered(self, request: Request) -> None:
        """Go on to the next request, or close."""
        self._request = None
        self._idle_since = self._connections.now
        if self._body.held:
            self._body.release()
        if self._parser.head_bytes:
            self._parser.forget()
        asked, seconds = request.head_memory, perf_counter() - request.began
        sent, received = request.sentLength, self._parser.body_size
        self._note_answered((asked, request.method, request.code, seconds, sent, received))
        if self._note_bytes is not None:
            self._note_bytes(request)
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
        """Let another protocol receive all that follows; return what was received already."""
        self._receive = receive
        return self._parser.end()

    def shorten_head(self, request: Request) -> None:
        """Keep little of a long head: its reply lasts, or another protocol follows."""
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
        """Take a client for gone that sends no more, unless its reply has begun."""
        request = self._request
        if request is not None and (request.has_own_timeout or not request.startedWriting):
            self.abort("client")

    def drain(self) -> None:
        """Close now if no request is under way, else after it."""
        if self._request is not None:
            self._request.persistent = False
        elif not self._parser.in_body and not self._parser.unread_bytes:
            self._close(linger=False)

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
                    self._connections.ring.add(self._continue_parsing)
                    break
                data = b""
        except ProtocolError as error:
            if error.reply is BODY_TOO_LARGE and self._served.takes_oversized:
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
        if self._connections.draining:
            request.persistent = False
        if self._deadline.is_set:
            self._deadline.clear()
        try:
            if self._served.is_leaf:
                request.render(self._served.resource)
            else:
                request.process()
        except Exception:
            request.processingFailed(Failure())

    def _render_oversized(self) -> None:
        """Let the resource refuse a request; what still arrives of its body is dropped."""
        self._body.release()
        self._connections.errors[BODY_TOO_LARGE.status] += 1
        request = self._request = self._make_request(self, self._parser)
        request.is_oversized = True
        request.persistent = False
        self._deadline.clear()
        request.render(self._served.resource)

    def _continue_parsing(self) -> None:
        """Parse what is left: it is the turn of this connection, which may be closed by now."""
        self._is_in_ring = False
        if not self._is_occupied():
            self._parse(at_most=REQUESTS_AT_ONCE)

    def _resume_parsing(self) -> None:
        """Parse what was held, unless the connection is still occupied."""
        if self._parsing or self._is_occupied():
            return
        if self._parser.unread_bytes:
            self._parse()
        else:
            self._await_more()

    def _await_first(self) -> None:
        """Wait for the first request; what is no part of one does not make the client less idle."""
        self._idle_since = self._connections.now
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
        """Hold bytes that cannot be parsed yet; drop those of a closing connection."""
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
        """Charge what is held of heads and of requests that wait; return whether that may be."""
        if self._account is None:
            if size <= SMALL_HELD_BYTES:
                return True
            self._account = self._connections.held.account(self._counted_for)
        try:
            self._account.set(size if size > SMALL_HELD_BYTES else 0)
        except HeldBytesRefused:
            return False
        return True

    # The end.

    def _count_end(self, request: Request | None) -> None:
        """Count what ended with the connection: a reply, that to `request` if there is one."""
        reason = self._cut_off
        if request is not None:
            if reason is None:
                reason = "failed" if self.writer.is_aborted else "client"
            if request.note_cut_off(reason):
                self._connections.cut_off[reason] += 1
            elif request.startedWriting:
                # A stream, or another protocol, which ends so.
                asked, seconds = request.head_memory, perf_counter() - request.began
                sent, received = request.sentLength, self._parser.body_size
                self._note_answered((asked, request.method, request.code, seconds, sent, received))
        elif reason in ("slow", "stop") and self.writer.waiting_bytes:
            # It was answered before: only its last bytes waited.
            self._connections.cut_off[reason] += 1

    def _expire(self) -> None:
        if self._closing:
            self.abort()
        elif self._deadline.error is not None:
            self._refuse(self._deadline.error)
        else:
            self._close(linger=False)

    def _refuse(self, error: ErrorReply) -> None:
        self._body.release()
        reply = self._connections.format_error(error, self._counted_for, secure=self.secure)
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
