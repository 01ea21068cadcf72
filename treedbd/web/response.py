"""Responses, and how they are sent: with common headers, in a content coding, wrapped.

`ResponseWriter` sends a `Response`: short ones at once, long ones as their clients read. It adds
the headers of cross-origin resource sharing (`Cors`; the Fetch standard, section 3.2): cookies
never identify a caller, so it is safe to let every origin read.

Content codings (RFC 9110, section 12.5.3) are tuned for speed: a piece of 64 KiB takes a
millisecond or less, and most of the size of JSON is saved. Long bodies are encoded piece by piece
while they are sent.

`wrap` returns what surrounds the JSON of a response: a call of a JSONP function, the headers of a
download.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final, NamedTuple
from urllib.parse import quote

import attrs
from twisted.internet.interfaces import IReactorTime

from treedbd.caches import bounded_cache, short_cache
from treedbd.database.slices import Slices
from treedbd.http1.content import (
    SMALL_BYTES,
    Content,
    Flow,
    FlowReader,
    JoinedContent,
    WaitingBytes,
)
from treedbd.http1.parser import Coding, Header, Headers, first, joined
from treedbd.http1.request import IHttp1Request
from treedbd.http1.senders import Encoder, FlowSender
from treedbd.limits import KIB
from treedbd.loop import network_of
from treedbd.tree.types import Chunks, Json
from treedbd.tree.value import compact
from treedbd.web.request import DataRequest

JSON_TYPE: Final = (b"Content-Type", b"application/json; charset=utf-8")
SCRIPT_TYPE: Final = (b"Content-Type", b"application/javascript; charset=utf-8")
JSON_HEADERS: Final = (JSON_TYPE,)
NO_SNIFF: Final = (b"X-Content-Type-Options", b"nosniff")
NO_CACHE: Final = (b"Cache-Control", b"no-cache")
NO_STORE: Final = (b"Cache-Control", b"no-store")


@attrs.define  # not frozen: it is made for each request
class Response:
    """A whole response, without the headers that are added when it is sent.

    If the client has not read all of it at `cut_off_at`, in seconds of the clock, the connection is
    dropped; this is for a body that flows, or is in a file. Caches may store it for `max_age_s`. It
    is compressed only if it `may_be_encoded`.
    """

    status: int
    body: bytes | Chunks | Content | Flow
    headers: tuple[Header, ...] = JSON_HEADERS
    cut_off_at: float | None = None
    max_age_s: int = 0
    may_be_encoded: bool = True


def json_response(request: DataRequest, json: Json, *headers: Header) -> Response:
    """Return a response with JSON in the form that `print` requests."""
    is_pretty = request.print == "pretty"
    text = request.dialect.pretty(json) if is_pretty else compact(json)
    return text_response(request, text, *headers)


def text_response(request: DataRequest, text: bytes, *headers: Header) -> Response:
    """Return a response with JSON text as it is, without a body if `print` is silent."""
    if request.print == "silent":
        return Response(204, b"", headers)
    return Response(200, text, (JSON_TYPE, *headers))


class ResponseWriter:
    """Sends responses by the settings of one service.

    Attributes:
        waiting: how many bytes wait in memory for clients to read them.
        lag_ms: returns how old the data may be; None if it is always current.

    """

    def __init__(
        self, cors: Cors, waiting: WaitingBytes, clock: IReactorTime, *, compresses: bool = True
    ) -> None:
        """Add the headers of `cors` to each response; count what waits in memory by `waiting`.

        With `compresses` bodies are sent in a coding that the client accepts.
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

        Raises `WaitingBytesRefused` before anything is sent if too much waits for clients already
        and it `may_refuse`.
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
            headers = add_coding_headers(headers, coding)
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
            if is_head:  # its encoded length would be known only at its end
                content.close()
                request.start(response.status, response.headers)
                request.finish()
                return
            reader = FlowReader(None, address, content)
            length = body.size if coding is None else None
        request.start(response.status, response.headers, length)
        encoder = None if coding is None else Encoder(coding)
        sender = FlowSender(
            request=request, reader=reader, clock=self._clock, encoder=encoder, slices=self._slices
        )
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
        return True  # it has the same header Vary as the response that it replaces
    if isinstance(body, bytes):
        return len(body) > MIN_BYTES and response.may_be_encoded
    return isinstance(body, Flow | tuple) or body.size > MIN_BYTES


def address_of(request: IHttp1Request) -> str:
    """Return the address of a client, empty if it has none."""
    address: str = getattr(request.getClientAddress(), "host", "")
    return address


def counted_address_of(request: IHttp1Request) -> str:
    """Return the network by which a client is counted for limits, empty if it has none."""
    return network_of(address_of(request))


MIN_BYTES: Final = KIB
"""Shorter bodies are not compressed: their headers are as long."""

_CODINGS: Final[tuple[Coding, ...]] = ("zstd", "gzip")
"""In the order of preference."""
_ACCEPTED_CODING = re.compile(
    r"\s*([!#$%&'*+.^_`|~0-9A-Za-z-]+)\s*(?:;\s*q\s*=\s*([01](?:\.[0-9]{0,3})?)\s*)?", re.IGNORECASE
)
_VARIES_BY_CODING: Final = b"Accept-Encoding"
_REMEMBERED_CODINGS: Final = 128


def choose_coding(headers: Headers) -> Coding | None:
    """Return the coding for a response to a request with these headers, None for none."""
    accepted = joined(headers, b"accept-encoding")
    return None if accepted is None else _choose(accepted)


@bounded_cache(_REMEMBERED_CODINGS)
def _choose(accepted: str) -> Coding | None:
    weights: dict[str, float] = {}
    for each in accepted.split(","):
        found = _ACCEPTED_CODING.fullmatch(each)
        if found is not None:
            weights[found[1].lower().removeprefix("x-")] = float(found[2] or 1)
    best: Coding | None = None
    least = weights.get("identity", 0.0)
    for coding in _CODINGS:
        weight = weights.get(coding, weights.get("*", 0.0))
        if weight > 0 and (weight > least or (best is None and weight == least)):
            best, least = coding, weight
    return best


@bounded_cache(_REMEMBERED_CODINGS)
def add_coding_headers(headers: tuple[Header, ...], coding: Coding | None) -> tuple[Header, ...]:
    """Return headers with those of a coding, and with `Vary`."""
    varies = [value for name, value in headers if name == b"Vary"]
    added: list[Header] = [(b"Vary", b", ".join([*varies, _VARIES_BY_CODING]))]
    if coding is not None:
        added.append((b"Content-Encoding", coding.encode()))
    return (*[header for header in headers if header[0] != b"Vary"], *added)


@short_cache(_REMEMBERED_CODINGS)
def encode_short(body: bytes, coding: Coding) -> bytes:
    """Encode a short body; that of an answer that is sent often is encoded once."""
    encoder = Encoder(coding)
    return encoder.encode(body) + encoder.finish()


ANY_ORIGIN: Final = "*"

_EXPOSED: Final = (
    b"Access-Control-Expose-Headers",
    b"ETag, Retry-After, TreeDB-Lag-Ms, X-TreeDB-Volatile",
)
_ANY_MAY_READ: Final = ((b"Access-Control-Allow-Origin", b"*"), _EXPOSED)
_VARIES_BY_ORIGIN: Final = (b"Vary", b"Origin")
_PREFLIGHT_S: Final = b"600"


class Cors:
    """The headers for the configured origins.

    Attributes:
        fixed: the headers of every response if all origins may read, else None.

    """

    def __init__(self, origins: tuple[str, ...]) -> None:
        """Allow pages of `origins` to read responses; `*` means all."""
        self.fixed: Final = _ANY_MAY_READ if ANY_ORIGIN in origins else None
        self._origins = frozenset(origin.encode() for origin in origins)

    def headers_for(self, headers: Headers) -> tuple[Header, ...]:
        """Return the headers of the response to a request with these headers."""
        if self.fixed is not None:
            return self.fixed
        origin = headers.get(b"origin", [b""])[0]
        if origin not in self._origins:
            return (_VARIES_BY_ORIGIN,)
        return (_VARIES_BY_ORIGIN, (b"Access-Control-Allow-Origin", origin), _EXPOSED)

    def preflight_headers(self, headers: Headers, allowed: bytes) -> tuple[Header, ...]:
        """Return what the response to OPTIONS grants; `allowed` are the methods of the resource."""
        granted: list[Header] = [(b"Allow", allowed)]
        if b"access-control-request-method" in headers:
            granted.append((b"Access-Control-Allow-Methods", allowed))
            granted.append((b"Access-Control-Max-Age", _PREFLIGHT_S))
            wanted = first(headers, b"access-control-request-headers")
            if wanted:
                granted.append((b"Access-Control-Allow-Headers", wanted.encode("latin-1")))
        return tuple(granted)


_NOT_IN_A_FILE_NAME = re.compile(r"[\x00-\x1f\x7f-\x9f/\\]")
_NOT_QUOTABLE = re.compile(r"[^ !#$&-\[\]-~]")
"""Some clients decode a `%` in a plain file name, others do not (RFC 6266, appendix D)."""


class Wrapping(NamedTuple):
    """What precedes and follows the JSON of a response, and the headers for it."""

    before: bytes
    after: bytes
    headers: tuple[Header, ...]


def wrap(callback: str | None, download: str | None) -> Wrapping:
    """Return how JSON is wrapped for a read with these parameters."""
    headers = () if download is None else (disposition(download),)
    if callback is None:
        return Wrapping(b"", b"", (JSON_TYPE, *headers))
    return Wrapping(b"/**/%s(" % callback.encode(), b");", (SCRIPT_TYPE, *headers))


def disposition(file_name: str) -> Header:
    """Return the header that makes a response a download (RFC 6266)."""
    name = _NOT_IN_A_FILE_NAME.sub("", file_name)
    if not name:
        return (b"Content-Disposition", b"attachment")
    plain = _NOT_QUOTABLE.sub("_", name)
    content = f"attachment; filename=\"{plain}\"; filename*=UTF-8''{quote(name, safe='')}"
    return (b"Content-Disposition", content.encode())
