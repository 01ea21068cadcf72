"""Responses, and how they are sent with the headers that every one carries."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import attrs
from twisted.internet.interfaces import IReactorTime

from treedbd.web.content import SMALL_BYTES, Content, WaitingBytes
from treedbd.web.cors import Cors
from treedbd.web.headers import Header
from treedbd.web.http1.interface import IHttp1Request

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
    dropped; that is for a body which is shared `Content`.
    """

    status: int
    body: bytes | Content
    headers: tuple[Header, ...] = JSON_HEADERS
    cut_off_at: float | None = None


class ResponseWriter:
    """Sends responses by the settings of one service.

    Attributes:
        waiting: how many bytes wait in memory for clients to read them.

    """

    def __init__(self, cors: Cors, waiting: WaitingBytes, clock: IReactorTime) -> None:
        """Add the headers of `cors` to each response; count what waits in memory by `waiting`."""
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
        if isinstance(body, bytes):
            if len(body) <= SMALL_BYTES:
                request.send(response.status, headers, body)
                return
            body = Content(self.waiting, body)
        reader = body.open(address_of(request), may_refuse=may_refuse)
        if response.cut_off_at is not None:
            reader.when_closed(self._abort_at(request, response.cut_off_at))
        request.send_content(response.status, headers, reader)

    def check_room(self, request: IHttp1Request, size: int) -> None:
        """Raise `WaitingBytesRefused` if a response of `size` bytes could not wait in memory."""
        if size > SMALL_BYTES:
            self.waiting.check(size)
            self.waiting.check_address(address_of(request), size)

    def common_headers(self, request: IHttp1Request, *, no_store: bool) -> tuple[Header, ...]:
        """Return the headers of every response to this request."""
        if self._cors.fixed is not None:
            return self._no_store if no_store else self._no_cache
        cache = NO_STORE if no_store else NO_CACHE
        return (NO_SNIFF, cache, *self._cors.headers_for(request.headers))

    def _all_headers(
        self, request: IHttp1Request, response: Response, *, no_store: bool
    ) -> tuple[Header, ...]:
        if response.headers is JSON_HEADERS and self._cors.fixed is not None:
            return self._json_no_store if no_store else self._json_no_cache
        return response.headers + self.common_headers(request, no_store=no_store)

    def _abort_at(self, request: IHttp1Request, time: float) -> Callable[[], None]:
        """Drop the connection at a time of the clock; return what cancels that."""
        wait_s = max(0.0, time - self._clock.seconds())
        cut_off = self._clock.callLater(wait_s, request.abort)
        return lambda: cut_off.cancel() if cut_off.active() else None

    def preflight(self, request: IHttp1Request, allowed: bytes) -> Response:
        """Return the response to OPTIONS; `allowed` are the methods of the resource."""
        return Response(204, b"", self._cors.preflight_headers(request.headers, allowed))


def address_of(request: IHttp1Request) -> str:
    """Return the address of a client, empty if it has none."""
    address: str = getattr(request.getClientAddress(), "host", "")
    return address
