"""Responses, and how they are sent with the headers that every one carries."""

from __future__ import annotations

from typing import Final

import attrs

from treedbd.web.cors import Cors
from treedbd.web.headers import Header
from treedbd.web.http1.interface import IHttp1Request

JSON_TYPE: Final = (b"Content-Type", b"application/json; charset=utf-8")
SCRIPT_TYPE: Final = (b"Content-Type", b"application/javascript; charset=utf-8")
NO_SNIFF: Final = (b"X-Content-Type-Options", b"nosniff")
NO_CACHE: Final = (b"Cache-Control", b"no-cache")
NO_STORE: Final = (b"Cache-Control", b"no-store")


@attrs.frozen
class Response:
    """A whole response, without the headers that are added when it is sent."""

    status: int
    body: bytes
    headers: tuple[Header, ...] = (JSON_TYPE,)


class ResponseWriter:
    """Sends responses by the settings of one service."""

    def __init__(self, cors: Cors) -> None:
        """Add the headers of `cors` to each response."""
        self._cors = cors
        open_to_all = (NO_SNIFF, *(cors.fixed or ()))
        self._no_cache = (*open_to_all, NO_CACHE)
        self._no_store = (*open_to_all, NO_STORE)

    def send(self, request: IHttp1Request, response: Response, *, no_store: bool) -> None:
        """Send a whole response and finish the request; `no_store` keeps it out of caches."""
        headers = response.headers + self.common_headers(request, no_store=no_store)
        request.send(response.status, headers, response.body)

    def common_headers(self, request: IHttp1Request, *, no_store: bool) -> tuple[Header, ...]:
        """Return the headers of every response to this request."""
        if self._cors.fixed is not None:
            return self._no_store if no_store else self._no_cache
        cache = NO_STORE if no_store else NO_CACHE
        return (NO_SNIFF, cache, *self._cors.headers_for(request.headers))

    def preflight(self, request: IHttp1Request, allowed: bytes) -> Response:
        """Return the response to OPTIONS; `allowed` are the methods of the resource."""
        return Response(204, b"", self._cors.preflight_headers(request.headers, allowed))
