"""One HTTP/1.1 connection: the protocol between a transport and the requests of a peer.

Bytes go to a `RequestReader`; each request it completes is rendered before the next is looked
at, so replies leave in order. Whatever a peer sends meanwhile is held unread, and past a bound the
transport is told to stop reading. While the peer does not read its replies, it gets no further
request answered either.

A connection is in one of these states, and each has a deadline, kept by the register's beat:

- handshake: until TLS is set up;
- idle: between requests, or before the first;
- head and body: a request is arriving; both end with 408;
- answering: none here, the resource has its own;
- closing: everything was said; what the peer still sends is read and dropped for a while, because
  closing with unread input would reset the connection and could destroy the last answer on its
  way (RFC 9112, section 9.6).

In all of them a peer that takes nothing of what waits for it is dropped after a while.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from attrs import frozen
from twisted.internet.interfaces import (
    IAddress,
    IDelayedCall,
    IHandshakeListener,
    ISSLTransport,
    ITCPTransport,
)
from twisted.internet.protocol import Protocol, connectionDone
from twisted.logger import Logger
from twisted.python.failure import Failure
from twisted.web.resource import IResource
from twisted.web.server import Site
from zope.interface import implementer

from treedbd.web.channel.deadlines import Deadline
from treedbd.web.channel.framing import RequestReader
from treedbd.web.channel.lazy import LazyRequest
from treedbd.web.channel.lean import LeanRequest
from treedbd.web.channel.outgoing import Outlet
from treedbd.web.channel.refusal import (
    BODY_TOO_LARGE,
    NO_ROOM_FOR_BODY,
    Refusal,
    Refused,
    print_answer,
)
from treedbd.web.channel.register import Register

_CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
_HELD_BYTES: Final = 64 * 1024
_REQUESTS_PER_TURN: Final = 64

_log = Logger()


@frozen
class Served:
    """What answers the requests, and who is told of each answer.

    One that `judges_size` is also asked about a request whose body is too large to be taken; it
    finds the request marked `is_oversized`, its content empty, and must refuse it. What the channel
    refuses itself carries the `refusal_headers`.
    """

    resource: IResource
    is_leaf: bool
    judges_size: bool
    site: Site
    log_access: Callable[[LazyRequest], None] | None
    refusal_headers: tuple[tuple[bytes, bytes], ...] = ()


@implementer(IHandshakeListener)
class Channel(Protocol):
    """The protocol of one connection; it is also what its requests speak to.

    Attributes:
        secure: whether TLS is spoken below.
        peer, host: the addresses of the client, and of ours that it connected to.
        site: the `Site` that requests belong to.
        outlet: the way out.

    """

    secure = False
    peer: IAddress
    host: IAddress
    outlet: Outlet

    transport: Any
    _request: LeanRequest | None = None
    _pumping = False  # requests are being read and rendered, further up this stack
    _resting: IDelayedCall | None = None  # others get their turn
    _paused = False  # the transport was told not to read
    _closing = False
    _held = 0  # bytes of content that the register counts for this connection
    _dropped = 0

    def __init__(self, register: Register, served: Served) -> None:
        """Answer with what is `served`, as a member of `register`."""
        self.site = served.site
        self._served = served
        self._register = register
        self._limits = register.limits
        self._reader = RequestReader(register.limits)
        self._deadline = Deadline(register.limits, register.clock)

    @property
    def bytes_sent(self) -> int:
        """How many bytes were written to this connection."""
        return self.outlet.bytes_sent

    @property
    def date_line(self) -> bytes:
        """The header line with the date."""
        return self._register.date_line

    # From the transport.

    def connectionMade(self) -> None:
        """Begin, or turn the peer away."""
        transport = self.transport
        self.peer = transport.getPeer()
        self.host = transport.getHost()
        self.secure = ISSLTransport.providedBy(transport)
        self.outlet = Outlet(transport, self._register.clock, self._go_on)
        refusal = self._register.admit(self, getattr(self.peer, "host", ""))
        if refusal is not None:
            if self.secure or self._register.turns_away_many():
                self.abort()
            else:
                self._refuse(refusal)
            return
        if ITCPTransport.providedBy(transport):
            transport.setTcpNoDelay(True)
        if self.secure:
            self._deadline.await_handshake()
        else:
            self._await_more()

    def handshakeCompleted(self) -> None:
        """Begin to wait for the first request over TLS."""
        if not self._closing:
            self._await_more()

    def dataReceived(self, data: bytes) -> None:
        """Take what the peer sent."""
        if self._is_occupied():
            self._set_aside(data)
        else:
            self._pump(data)

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        """Tell the request under way that its client is gone."""
        self._closing = True
        self._release_body()
        self.outlet.release()
        if self._resting is not None:
            self._resting.cancel()
            self._resting = None
        request, self._request = self._request, None
        if request is not None:
            request.connectionLost(reason)
        self._register.forget(self)
        self._reader.close()

    # From the request.

    def answered(self, request: LazyRequest) -> None:
        """Go on to the next request, or close."""
        self._request = None
        self._release_body()
        log_access = self._served.log_access
        if log_access is not None:
            try:
                log_access(request)
            except Exception:
                _log.failure("A request could not be logged.")
        if not request.persistent:
            self._close(linger=request.is_oversized or self._reader.unread_bytes > 0)
        else:
            self._go_on()

    def lose_connection(self) -> None:
        """Close once everything is sent."""
        self._close(linger=False)

    # From the register.

    def look(self, now: float) -> None:
        """Do what is due at `now`."""
        stalled_s = self.outlet.stalled_s(now)
        if stalled_s is None:
            if self._deadline.has_passed(now):
                self._expire()
        elif stalled_s >= self._limits.write_stalled_s and not self._is_patient():
            self.abort()
        else:
            self._deadline.put_off(now)

    def _is_patient(self) -> bool:
        return self._request is not None and self._request.has_own_patience

    def drain(self) -> None:
        """Close now if no request is under way, else after it."""
        if self._request is not None:
            self._request.persistent = False
        elif not self._reader.in_body and not self._reader.unread_bytes:
            self._close(linger=False)

    def abort(self) -> None:
        """Drop the connection."""
        self._closing = True
        self.outlet.abort()

    # Requests.

    def _is_occupied(self) -> bool:
        return (
            self._request is not None
            or self._closing
            or self._resting is not None
            or self.outlet.choked
        )

    def _pump(self, data: bytes = b"") -> None:
        """Render the requests that are complete, as far as each is answered at once."""
        reader = self._reader
        rendered = 0
        self._pumping = True
        try:
            while reader.receive(data):
                self._render()
                rendered += 1
                if not reader.unread_bytes or self._is_occupied():
                    break
                if rendered == _REQUESTS_PER_TURN:
                    self._resting = self._register.clock.callLater(0, self._wake)
                    break
                data = b""
        except Refused as refused:
            if refused.refusal is BODY_TOO_LARGE and self._served.judges_size:
                self._refuse_oversized()
            else:
                self._refuse(refused.refusal)
        finally:
            self._pumping = False
        if self._request is None and not self._closing:
            self._await_more()

    def _refuse_oversized(self) -> None:
        """Let the resource refuse a request, whose body is dropped as far as it still comes."""
        self._release_body()
        self._register.refusals[BODY_TOO_LARGE.status] += 1
        request = self._request = LeanRequest(self, self._reader)
        request.is_oversized = True
        request.persistent = False
        self._deadline.await_answer()
        request.render(self._served.resource)

    def _wake(self) -> None:
        self._resting = None
        self._go_on()

    def _go_on(self) -> None:
        """Look at what was held meanwhile, if nothing hinders it any more."""
        if not self._pumping and not self._is_occupied():
            self._pump()

    def _render(self) -> None:
        request = self._request = LeanRequest(self, self._reader)
        if self._register.draining:
            request.persistent = False
        self._deadline.await_answer()
        try:
            if self._served.is_leaf:
                request.render(self._served.resource)
            else:
                request.process()
        except Exception:
            request.processingFailed(Failure())

    def _await_more(self) -> None:
        """Set the deadline for what the peer is to send next."""
        reader = self._reader
        if reader.in_body:
            if self._deadline.await_body(reader.body_bytes) and reader.awaits_continue:
                self.outlet.write(_CONTINUE)
            self._count_body()
        elif reader.unread_bytes:
            self._deadline.await_head()
        else:
            self._deadline.await_request(self._register.now)
        if self._paused and not self._is_occupied():
            self._paused = False
            self.transport.resumeProducing()

    def _set_aside(self, data: bytes) -> None:
        """Hold what cannot be looked at yet, drop what will not be looked at any more."""
        if not self._closing:
            self._reader.hold(data)
            if not self._paused and self._reader.unread_bytes > _HELD_BYTES:
                self._paused = True
                self.transport.pauseProducing()
            return
        self._dropped += len(data)
        if self._dropped > 2 * self._limits.body_bytes:
            self.abort()
        self._deadline.await_close()

    def _count_body(self) -> None:
        grown = self._reader.body_bytes - self._held
        self._held += grown
        self._register.held_body_bytes += grown
        if self._register.held_body_bytes > self._limits.held_body_bytes:
            self._refuse(NO_ROOM_FOR_BODY)

    def _release_body(self) -> None:
        self._register.held_body_bytes -= self._held
        self._held = 0

    # The end.

    def _expire(self) -> None:
        if self._closing:
            self.abort()
        elif self._deadline.refusal is not None:
            self._refuse(self._deadline.refusal)
        else:
            self._close(linger=False)

    def _refuse(self, refusal: Refusal) -> None:
        self._release_body()
        self._register.refusals[refusal.status] += 1
        headers = self._served.refusal_headers
        self.outlet.write(print_answer(refusal, self._register.date_line, headers))
        self._close(linger=True)

    def _close(self, *, linger: bool) -> None:
        """Close after everything written is sent; `linger` where the peer may still be sending."""
        if self._closing:
            return
        self._closing = True
        self._deadline.await_close()
        if self._paused:
            self.transport.resumeProducing()
        if linger:
            self.outlet.close_half()
        else:
            self.outlet.close()
