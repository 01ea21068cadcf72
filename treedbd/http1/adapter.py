"""Requests of another program's `Site`, adapted to `IHttp1Request`.

A program that embeds the service may mount its resource in a site of its own. An `AdaptedRequest`
wraps each request of that site, so that handlers see the interface that they know.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cached_property
from typing import Any, Final

from twisted.internet.defer import Deferred
from twisted.internet.error import ConnectionDone
from twisted.internet.interfaces import IAddress, IPullProducer
from twisted.web.http import NO_BODY_CODES, HTTPChannel
from zope.interface import implementer

from treedbd.http1.content import Content, ContentReader
from treedbd.http1.parser import CutOff, Header, Headers, HeadMemory
from treedbd.http1.proxies import ForwardedRequest, read_forwarded
from treedbd.http1.request import MOUNTED, IHttp1Request, request_id_of, size_of_body
from treedbd.limits import KIB
from treedbd.names import NO_PROXIES, TrustedProxies

_PIECE_BYTES: Final = 64 * KIB


@implementer(IHttp1Request)
class AdaptedRequest:
    """A request of `twisted.web.server.Site`; other attributes are those of that request.

    Attributes:
        original: that request.

    """

    trace = None  # the site of another program has spans of its own
    entrance = MOUNTED

    def __init__(self, request: Any, body_limit: int, proxies: TrustedProxies = NO_PROXIES) -> None:
        """Adapt `request`; a body of more than `body_limit` bytes makes it oversized.

        What trusted `proxies` say of it counts.
        """
        self.original = self._request = request
        self._is_over = self._is_gone = self._is_raw = False
        self.headers: Headers = {
            name.lower(): list(values) for name, values in request.requestHeaders.getAllRawHeaders()
        }
        self._forwarded: ForwardedRequest | None = None
        if proxies and proxies.trusts(getattr(request.getClientAddress(), "host", "")):
            self._forwarded = read_forwarded(self.headers, proxies.trusts)
            self.headers = self._forwarded.headers
        self.came_by_trusted_proxy = self._forwarded is not None
        self.head_memory = HeadMemory()
        self.is_oversized = size_of_body(request) > body_limit
        self.has_own_timeout = False
        self.contender = id(getattr(request, "channel", request))
        request.notifyFinish().addCallbacks(self._set_over, self._set_gone)

    @cached_property
    def request_id(self) -> str:
        """The id of the request, by which the log and the client mean it."""
        return request_id_of(self)

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the request."""
        return getattr(self._request, name)

    @property
    def client(self) -> IAddress:
        """The address of the client."""
        said = None if self._forwarded is None else self._forwarded.client
        return said or self._request.getClientAddress()

    def getClientAddress(self) -> IAddress:
        """Return the address of the client, or of a proxy before it that is not trusted."""
        return self.client

    def isSecure(self) -> bool:
        """Return whether the client uses TLS."""
        said = None if self._forwarded is None else self._forwarded.secure
        return self._request.isSecure() if said is None else said

    def notifyFinish(self) -> Deferred[None]:
        """Return what fires at the end of the reply; it fails at once if the client is gone."""
        waiting: Deferred[None] = self._request.notifyFinish()
        if self._is_gone:
            waiting.errback(ConnectionDone())
        return waiting

    def send(self, status: int, headers: Iterable[Header], body: bytes) -> None:
        """Send a whole reply and finish the request."""
        if self._is_over:
            return
        self.start(status, headers, len(body))
        if self._request.method != b"HEAD" and status not in NO_BODY_CODES:
            self._request.write(body)
        self._request.finish()

    def send_content(self, status: int, headers: Iterable[Header], reader: ContentReader) -> None:
        """Send a whole reply as the client reads, and finish the request."""
        if self._is_over:
            reader.close()
            return
        self.start(status, headers, reader.size)
        if self._request.method == b"HEAD":
            reader.close()
            self._request.finish()
            return
        self._request.notifyFinish().addBoth(lambda _: reader.close())
        self._request.registerProducer(_ContentProducer(self._request, reader), False)

    def start(
        self,
        status: int,
        headers: Iterable[Header],
        length: int | None = None,
        *,
        closes_connection: bool = False,
    ) -> None:
        """Set status and headers of a reply whose body is then written in pieces."""
        request = self._request
        request.setResponseCode(status)
        request.responseHeaders.removeHeader(b"server")
        for name, content in headers:
            request.setHeader(name, content)
        if status in NO_BODY_CODES:
            request.responseHeaders.removeHeader(b"content-type")
        elif length is not None:
            request.setHeader(b"Content-Length", b"%d" % length)
        if closes_connection:
            request.setHeader(b"Connection", b"close")
            if isinstance(request.channel, HTTPChannel):  # which ignores that header
                request.channel.persistent = False
                has_body = request.method != b"HEAD" and status not in NO_BODY_CODES
                self._is_raw = has_body and length is None

    def write(self, data: bytes) -> None:
        """Write a piece of the body."""
        if self._is_raw and not self._request.startedWriting:
            self._begin_raw()
        self._request.write(data)

    def finish(self) -> None:
        """End the reply."""
        if self._is_raw and not self._request.startedWriting:
            self._request.setHeader(b"Content-Length", b"0")
        self._request.finish()

    def _begin_raw(self) -> None:
        """Write the head of a reply that ends with its connection: that site would chunk it."""
        request = self._request
        if request.cookies:
            request.responseHeaders.setRawHeaders(b"Set-Cookie", request.cookies)
        request.startedWriting = 1
        request.channel.writeHeaders(
            request.clientproto, b"%d" % request.code, request.code_message, request.responseHeaders
        )

    def write_content(self, content: Content) -> None:
        """Write a short piece of the body."""
        self.write(content.whole())

    def find_free_send(self) -> tuple[None, None]:
        """Return nothing: how that server sends is not known."""
        return None, None

    def continue_after(self, rest: bytes) -> None:
        """Do nothing: nothing is sent past the request."""

    def upgrade(self, _: Iterable[Header], __: Callable[[bytes], None]) -> None:
        """Return None: another server keeps its connection."""

    def abort(self, _: CutOff = "failed") -> None:
        """Drop the connection."""
        self._request.transport.abortConnection()

    def _set_over(self, _: object) -> None:
        """Note that the request has been answered."""
        self._is_over = True

    def _set_gone(self, _: object) -> None:
        """Note that the client is gone."""
        self._is_over = self._is_gone = True


@implementer(IPullProducer)
class _ContentProducer:
    """Writes content to a request of `twisted.web`, a piece whenever it is ready for more."""

    def __init__(self, request: Any, reader: ContentReader) -> None:
        self._request = request
        self._reader = reader

    def resumeProducing(self) -> None:
        """Write the next piece; after the last one the request is finished."""
        self._request.write(bytes(self._reader.read(_PIECE_BYTES)))
        if not self._reader.remaining:
            self._request.unregisterProducer()
            self._request.finish()

    def stopProducing(self) -> None:
        """Release the content: it is no longer read."""
        self._reader.close()
