"""Responses, and how they are sent with the headers that every one carries."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import attrs
from twisted.internet.interfaces import IReactorTime

from treedbd.database.slices import Slices
from treedbd.http1.content import (
    SMALL_BYTES,
    Content,
    Flow,
    FlowReader,
    JoinedContent,
    WaitingBytes,
)
from treedbd.http1.headers import Coding, Header
from treedbd.http1.interface import IHttp1Request
from treedbd.http1.writer import FlowSender
from treedbd.loop import network_of
from treedbd.tree.types import Chunks
from treedbd.web.compression import (
    MIN_BYTES,
    add_headers,
    choose_coding,
    encode_short,
    make_encoder,
)
from treedbd.web.cors import Cors

JSON_TYPE: Final = (b"Content-Type", b"application/json; charset=utf-8")
SCRIPT_TYPE: Final = (b"Content-Type", b"application/javascript; charset=utf-8")
JSON_HEADERS: Final = (JSON_TYPE,)
NO_SNIFF: Final = (b"X-Content-Type-Options", b"nosniff")
NO_CACHE: Final = (b"Cache-Control", b"no-cache")
NO_STORE: Final = (b"Cache-Control", b"no-store")


@attrs.frozen
class Response:
    """A whole response, without the headers that are added when it is sent.

    If the client has not read all of it at `cut_off_at`, in seconds of the clock, the connection is
    dropped; that is for a body which flows, or is in a file. Caches may keep it for `max_age_s`. It
    is compressed only if it `may_be_encoded`.
    """

    status: int
    body: bytes | Chunks | Content | Flow
    headers: tuple[Header, ...] = JSON_HEADERS
    cut_off_at: float | None = None
    max_age_s: int = 0
    may_be_encoded: bool = True


class ResponseWriter:
    """Sends responses by the settings of one service.

    Attributes:
        waiting: how many bytes wait in memory for clients to read them.
        lag_ms: returns how old what is shown may be; None if it is never late.

    """

    def __init__(
        self, cors: Cors, waiting: WaitingBytes, clock: IReactorTime, *, compresses: bool = True
    ) -> None:
        """Add the headers of `cors` to each response; count what waits in memory by `waiting`.

        If it `compresses`, in a coding that the client accepts.
        """
        self.lag_ms: Callable[[], int] | None = None
        self._compresses = compresses
        self._slices = Slices(clock)
        self._cors = cors
        self.waiting: Final = waiting
        self._clock = clock
        open_to_all = (NO_SNIFF, *(cors.fixed or ()))
        self._no_cache = (*open_to_all, NO_CACHE)
        self._no_store = (*open_to_all, NO_STORE)
        # Most responses have these headers: the same tuple each time, which needs no formatting.
        self._json_no_cache = JSON_HEADERS + self._no_cache
        self._json_no_store = JSON_HEADERS + self._no_store

    def send(
        self,
        request: IHttp1Request,
        response: Response,
        *,
        no_store: bool,
        may_refuse: bool = True,
    ) -> None:
        """Send a whole response and finish the request; `no_store` keeps it out of caches.

        Raises `WaitingBytesRefused` before anything is sent if too much waits for clients already,
        unless it must not be refused.
        """
        headers = self._all_headers(request, response, no_store=no_store)
        body = response.body
        if isinstance(body, tuple):
            joined = JoinedContent(self.waiting, body)
            body = joined if joined.size > SMALL_BYTES else joined.whole()
            response = attrs.evolve(response, body=body)
        coding = None
        if self._compresses and _may_be_encoded(response):
            coding = None if response.status == 304 else choose_coding(request.headers)
            headers = add_headers(headers, coding)
        if isinstance(body, bytes):
            if len(body) <= SMALL_BYTES:
                sent = body if coding is None else encode_short(body, coding)
                request.send(response.status, headers, sent)
                return
            body = Content(self.waiting, body)
        response = attrs.evolve(response, headers=headers)
        self._send_content(request, response, body, coding, may_refuse=may_refuse)

    def _send_content(
        self,
        request: IHttp1Request,
        response: Response,
        body: Content | Flow,
        coding: Coding | None,
        *,
        may_refuse: bool,
    ) -> None:
        """Send a long body as its client reads, with the headers of `response`."""
        address = counted_address_of(request)
        length: int | None = None
        if isinstance(body, Flow):
            reader = body.open(address)
        else:
            content = body.open(address, may_refuse=may_refuse)
            is_head = request.method == b"HEAD"
            if coding is None and (is_head or not body.is_in_file):
                request.send_content(response.status, response.headers, content)
                return
            if is_head:  # how long it is encoded would be known at its end
                content.close()
                request.start(response.status, response.headers)
                request.finish()
                return
            reader = FlowReader(None, address, content)
            length = body.size if coding is None else None
        request.start(response.status, response.headers, length)
        encoder = None if coding is None else make_encoder(coding)
        sender = FlowSender(request, reader, self._clock, encoder, self._slices)
        sender.start(response.cut_off_at)

    def check_room(self, request: IHttp1Request, size: int) -> None:
        """Raise `WaitingBytesRefused` if a response of `size` bytes could not wait in memory."""
        if size > SMALL_BYTES:
            self.waiting.check(size)
            self.waiting.check_address(counted_address_of(request), size)

    def common_headers(self, request: IHttp1Request, *, no_store: bool) -> tuple[Header, ...]:
        """Return the headers of every response to this request."""
        if self._cors.fixed is not None:
            common = self._no_store if no_store else self._no_cache
        else:
            cache = NO_STORE if no_store else NO_CACHE
            common = (NO_SNIFF, cache, *self._cors.headers_for(request.headers))
        if self.lag_ms is None:
            return common
        return (*common, (b"TreeDB-Lag-Ms", b"%d" % self.lag_ms()))

    def _all_headers(
        self, request: IHttp1Request, response: Response, *, no_store: bool
    ) -> tuple[Header, ...]:
        is_usual = self._cors.fixed is not None and self.lag_ms is None
        if is_usual and response.headers is JSON_HEADERS:
            return self._json_no_store if no_store else self._json_no_cache
        common = self.common_headers(request, no_store=no_store)
        if response.max_age_s:
            cache = (b"Cache-Control", b"public, max-age=%d" % response.max_age_s)
            common = (cache, *(each for each in common if each is not NO_CACHE))
        return response.headers + common

    def preflight(self, request: IHttp1Request, allowed: bytes) -> Response:
        """Return the response to OPTIONS; `allowed` are the methods of the resource."""
        return Response(204, b"", self._cors.preflight_headers(request.headers, allowed))


def _may_be_encoded(response: Response) -> bool:
    body = response.body
    if response.status == 304:
        return True  # it has the header Vary of the response that it stands for
    if isinstance(body, bytes):
        return len(body) > MIN_BYTES and response.may_be_encoded
    return isinstance(body, Flow | tuple) or body.size > MIN_BYTES


def address_of(request: IHttp1Request) -> str:
    """Return the address of a client, empty if it has none."""
    address: str = getattr(request.getClientAddress(), "host", "")
    return address


def counted_address_of(request: IHttp1Request) -> str:
    """Return what a client is counted by where an address has a bound, empty if it has none."""
    return network_of(address_of(request))
