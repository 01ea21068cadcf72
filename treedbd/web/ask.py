"""From a request to a typed question, or a refusal.

Everything that can be known without a database is parsed here, once: where (host, `ns`, path),
what (method and its overrides), how (parameters, headers), until when. Refusals come in the order
that the interface promises: no such place or method, too large, then malformed.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final, Literal, TypeAlias

import attrs
from twisted.web.server import Request

from treedbd.database.catalog import Catalog, DatabaseName, DialectChoice
from treedbd.tree.canonical import Tags
from treedbd.tree.path import ROOT, InvalidPath, Place, parse_address
from treedbd.tree.query import InvalidQuery
from treedbd.web.answer import ALLOWED, MethodNotAllowed, PayloadTooLarge
from treedbd.web.dialect import Dialect, choose
from treedbd.web.head import Head, first, head_of
from treedbd.web.identity.identity import Override, find_token, parse_override
from treedbd.web.options import WebOptions
from treedbd.web.parameters import (
    OVERRIDE,
    Parameters,
    parse_choice,
    parse_parameters,
    parse_timeout,
)
from treedbd.web.site import Addressing, split_target

Print: TypeAlias = Literal["compact", "pretty", "silent"]

READING: Final = frozenset({b"GET", b"HEAD"})
WRITING: Final = frozenset({b"PUT", b"POST", b"PATCH", b"DELETE"})
METHODS: Final = READING | WRITING | {b"OPTIONS"}
EVENTS: Final = "text/event-stream"
CACHED_PATH_BYTES: Final = 256
"""Longer paths are parsed anew each time: what clients send must not fill the memory."""
_OVERRIDES: Final = frozenset({b"GET", b"PUT", b"PATCH", b"DELETE"})
_NO_WEIGHT: Final = re.compile(r"q=0(\.0*)?")
_ADDRESSING: Final = {name.encode(): name for name in ("ns", OVERRIDE)}


@attrs.frozen
class Ask:
    """A question about data: parsed, not yet judged.

    `timeout` is in seconds. `condition` is what If-Match demands on a write, or If-None-Match on
    a read.
    """

    method: bytes
    name: DatabaseName
    place: Place
    parameters: Parameters = attrs.field(repr=False)
    print: Print
    timeout: float
    wants_tag: bool
    condition: Tags | None
    token: str | None = attrs.field(repr=False)
    override: Override | None
    dialect: Dialect
    wants_explanation: bool
    accepts_events: bool
    last_event_id: str | None


class Reader:
    """Reads requests by the settings of one service."""

    def __init__(self, options: WebOptions, catalog: Catalog) -> None:
        self._options = options
        self._catalog = catalog
        self._addressing = Addressing(options.domains, options.default_project)
        self._tag_headers = tuple(
            f"x-{name}-etag".lower().encode() for name in options.etag_headers
        )

    def dialect_of(self, request: Request) -> Dialect:
        """Return the dialect in which an error is told, whatever is wrong with the request."""
        head = head_of(request)
        choice: DialectChoice = "auto"
        parameters: Parameters = {}
        try:
            authority, target = split_target(request.uri)
            parameters = _parse_leniently(target.partition(b"?")[2])
            hosts = head.get(b"host", [])
            name = self._addressing.find(hosts, authority, parameters.get("ns"))
            choice = self._catalog.project(name.project).dialect
        except (ValueError, LookupError):
            pass
        return choose(choice, parameters, head)

    def check_host(self, request: Request) -> None:
        """Refuse a request whose host cannot be read, or is not served here.

        The target `*` stands for the server as a whole, by whatever host (RFC 9110, 9.3.7).
        """
        if request.uri == b"*":
            return
        authority, _ = split_target(request.uri)
        hosts = head_of(request).get(b"host", [])
        self._addressing.name_of_host(self._addressing.check_host(hosts, authority))

    def read(self, request: Request, reserved: bytes | None = None) -> Ask:
        """Return what a request asks; raises every refusal that needs no database.

        `reserved` are the methods of a path that names no place in the tree, as `Allow` tells them;
        the path is not looked at then.
        """
        head = head_of(request)
        authority, target = split_target(request.uri)
        raw_path, _, raw_query = target.partition(b"?")
        malformed: list[Exception] = []
        parameters: Parameters = {}
        place = Place(ROOT)
        try:
            parameters = parse_parameters(raw_query)
        except InvalidQuery as error:
            malformed.append(error)
            parameters = _parse_leniently(raw_query)
        name = self._addressing.find(head.get(b"host", []), authority, parameters.get("ns"))
        self._catalog.check(name)
        try:
            if reserved is None:
                depth = len(request.prepath or ())
                is_short = len(raw_path) <= CACHED_PATH_BYTES
                place = (_parse_short_path if is_short else parse_path)(raw_path, depth)
        except InvalidPath as error:
            malformed.insert(0, error)
        method = _method(request.method, head, parameters, reserved or ALLOWED)
        self._check_size(request)
        if malformed:
            raise malformed[0]
        return self._details(head, method, name, place, parameters)

    def _details(
        self,
        head: Head,
        method: bytes,
        name: DatabaseName,
        place: Place,
        parameters: Parameters,
    ) -> Ask:
        is_reading = method in READING
        dialect = choose(self._catalog.project(name.project).dialect, parameters, head)
        condition = _joined(head, b"if-none-match" if is_reading else b"if-match")
        return Ask(
            method=method,
            name=name,
            place=place,
            parameters=parameters,
            print=_print(method, parameters, first(head, b"print")),
            timeout=parse_timeout(parameters.get("timeout")),
            wants_tag=any(_is_true(first(head, name)) for name in self._tag_headers),
            condition=dialect.parse_tags(condition, is_weak=is_reading),
            dialect=dialect,
            token=find_token(head, parameters),
            override=parse_override(parameters.get("auth_variable_override")),
            wants_explanation=_is_true(first(head, b"x-treedb-explain")),
            accepts_events=is_reading and _accepts_events(_joined(head, b"accept")),
            last_event_id=first(head, b"last-event-id"),
        )

    def _check_size(self, request: Request) -> None:
        # Our own channel takes no body that is too large; a host's may.
        is_oversized = getattr(request, "is_oversized", False)
        if is_oversized or _size(request) > self._options.write_body_bytes:
            raise PayloadTooLarge(
                f"A body may have at most {self._options.write_body_bytes} bytes."
            )


def parse_path(raw_path: bytes, mounted_at: int) -> Place:
    """Return the place that a raw path names, below the `mounted_at` segments of a prefix."""
    return parse_address(raw_path[1:].split(b"/")[mounted_at:])


_parse_short_path = lru_cache(maxsize=4096)(parse_path)


def _parse_leniently(raw_query: bytes) -> Parameters:
    """Return the parameters of a query; of a broken one the first of those that say what is asked.

    These are `ns` and the override of the method; one that cannot be decoded is empty.
    """
    try:
        return parse_parameters(raw_query)
    except InvalidQuery:
        parameters: Parameters = {}
        for part in raw_query.split(b"&"):
            name = _ADDRESSING.get(part.partition(b"=")[0])
            if name is not None and name not in parameters:
                try:
                    parameters |= parse_parameters(part)
                except InvalidQuery:
                    parameters[name] = ""
        return parameters


def _size(request: Request) -> int:
    body = request.content
    if body is None:
        return 0
    size: int = body.seek(0, 2)
    body.seek(0)
    return size


def _method(method: bytes, head: Head, parameters: Parameters, allowed: bytes) -> bytes:
    if method == b"POST":
        override = first(head, b"x-http-method-override") or parameters.get(OVERRIDE)
        if override:
            method = override.upper().encode()
            if method not in _OVERRIDES:
                raise MethodNotAllowed(
                    "A POST may be overridden to GET, PUT, PATCH or DELETE.", allowed
                )
    if method not in (METHODS if allowed is ALLOWED else allowed.split(b", ")):
        raise MethodNotAllowed(f"The methods here are {allowed.decode()}.", allowed)
    return method


def _print(method: bytes, parameters: Parameters, header: str | None) -> Print:
    by_parameter = parse_choice(parameters, "print", "pretty", "silent")
    if header is not None and header != "silent" and method in WRITING:
        raise InvalidQuery("The header print must be silent.")
    if by_parameter == "silent" or (header == "silent" and method in WRITING):
        return "silent"
    return "pretty" if by_parameter == "pretty" else "compact"


def _accepts_events(accept: str | None) -> bool:
    """Tell whether what is accepted (RFC 9110, 12.5.1) asks for a stream: by the type's name.

    Of the weight only this counts, that one of zero refuses the type.
    """
    if accept is None or EVENTS not in (accepted := accept.lower()):
        return False
    for media in accepted.split(","):
        name, *parameters = (part.strip() for part in media.split(";"))
        if name == EVENTS and not any(map(_NO_WEIGHT.fullmatch, parameters)):
            return True
    return False


def _joined(head: Head, name: bytes) -> str | None:
    """Return a field that is a list as one line, however many it came in; None if absent."""
    values = head.get(name)
    return b", ".join(values).decode("latin-1") if values else None


def _is_true(value: str | None) -> bool:
    return value is not None and value.lower() == "true"
