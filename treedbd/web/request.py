"""From an HTTP request to a `DataRequest`, or an error.

Everything that does not depend on a database is parsed here, once: which database and place, the
method with its overrides, the parameters, the headers, the timeout. Errors are raised in the order
that the interface promises: no such place or method, too large, then malformed. So parsing has two
steps, and the database is looked up between them: `locate` finds its name, `parse` the rest.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Final, Literal, Protocol, TypeAlias, TypeVar

import attrs

from treedbd.database.requests import ProjectSpec, TooLarge
from treedbd.http1.headers import Headers, first, is_true, joined, parse_coding
from treedbd.http1.interface import IHttp1Request
from treedbd.limits import DEFAULT_TIMEOUT_S, Limits
from treedbd.names import DatabaseName, DialectName
from treedbd.traces import Trace
from treedbd.tree.hashes import ETagSet, has_bare_tag
from treedbd.tree.types import ROOT, InvalidPath, InvalidQuery, Place
from treedbd.web.addressing import (
    CACHED_PATH_BYTES,
    Addressing,
    parse_path,
    parse_short_path,
    split_target,
)
from treedbd.web.auth.identity import AuthOverride, Identity, parse_override
from treedbd.web.dialect import FIREBASE, STANDARD, Dialect
from treedbd.web.methods import (
    READING,
    WITH_BODY,
    WRITING,
    AllowedMethods,
    parse_method,
    wants_stream,
)
from treedbd.web.options import WebOptions
from treedbd.web.parameters import (
    ON_DISCONNECT,
    Parameters,
    find_token,
    parse_choice,
    parse_leniently,
    parse_parameters,
    parse_timeout,
)
from treedbd.web.read_options import ReadOptions, parse_read_options

Print: TypeAlias = Literal["compact", "pretty", "silent"]

_EXPLAIN: Final = b"x-treedb-explain"
_ENCODING: Final = b"content-encoding"
_LAST_ID: Final = b"last-event-id"
_TOKEN: Final = b"authorization"
_DIALECT: Final = b"x-treedb-dialect"
_STANDARD: Final = b"standard"
_NONE: Final = (b"",)
_IF_MATCH: Final = b"if-match"
_FIREBASE_ETAG: Final = b"x-firebase-etag"


class PayloadTooLarge(TooLarge):
    """A body larger than this service accepts."""

    def __init__(self, limit: int) -> None:
        super().__init__(f"A body may have at most {limit} bytes.")


@attrs.frozen
class Location:
    """Which database a request addresses, and its target in parts.

    `malformed` is the error in its query, to be raised unless another error comes first.
    """

    name: DatabaseName
    raw_path: bytes
    parameters: Parameters = attrs.field(repr=False)
    malformed: InvalidQuery | InvalidPath | None = None


@attrs.frozen
class DataRequest:
    """A parsed request, not yet authenticated or authorised.

    One that `explains_denial` is our own, for a caller who was denied. `timeout_s` is in seconds.
    `condition` is that of If-Match on a write, of If-None-Match on a read. `identity` is who sends
    it, if the program that embeds the service has said so: then the token does not count. A sender
    that `takes_whole` receives a large value when all of it is rendered. `admin_path` is the path
    of a request that names no place in the tree. `trace` is that of the request, None if it is not
    sampled.
    """

    method: bytes
    place: Place
    parameters: Parameters = attrs.field(repr=False)
    print: Print
    timeout_s: float
    wants_etag: bool
    condition: ETagSet | None
    token: str | None = attrs.field(repr=False)
    override: AuthOverride | None
    dialect: Dialect
    wants_explanation: bool
    accepts_events: bool
    last_event_id: str | None
    where_children: int = Limits().where_children
    explains_denial: bool = False
    identity: Identity | None = None
    takes_whole: bool = False
    admin_path: bytes | None = None
    trace: Trace | None = attrs.field(default=None, eq=False, repr=False)

    @cached_property
    def read_options(self) -> ReadOptions:
        """What a read shows of the data at the place; raises `InvalidQuery`."""
        return parse_read_options(self.parameters, self.where_children)

    @cached_property
    def form(self) -> str:
        """Equal for reads that show the same text of the same data, and only for these."""
        form = self.read_options.form
        if self.print != "pretty":
            return form
        return f"{form} {'indented, of Firebase' if self.dialect.is_firebase else 'indented'}"

    @property
    def is_write(self) -> bool:
        """Whether it writes, now or when its stream ends."""
        is_reading = self.method in READING
        return not is_reading or (self.accepts_events and ON_DISCONNECT in self.parameters)

    @property
    def is_simple_read(self) -> bool:
        """Whether it reads as the caller himself, and receives the data in one response."""
        return (
            self.method in READING
            and self.print != "silent"
            and self.override is None
            and not (self.accepts_events or self.wants_explanation)
        )


@attrs.define(eq=False)
class Question:
    """What a head asks of the database `name`: remembered as long as a connection repeats it.

    `rules` are those under which it has been answered as a simple read before, None if it has not.
    """

    name: DatabaseName
    wanted: DataRequest
    rules: object = None


class OfProject(Protocol):
    """A database, of which only the project counts here."""

    @property
    def project(self) -> ProjectSpec:
        """The project that it belongs to."""
        ...


Found = TypeVar("Found", bound=OfProject)


class RequestParser:
    """Parses requests by the settings of one service."""

    def __init__(self, options: WebOptions) -> None:
        self._body_limit = options.limits.write_body_bytes
        self._where_children = options.limits.where_children
        self._addressing = Addressing(
            options.domains,
            options.default_project,
            any_host=options.any_host,
            own_hosts=options.own_hosts,
        )
        self._etag_headers = frozenset(
            f"x-{name}-etag".lower().encode() for name in options.etag_headers
        )

    def check_host(self, request: IHttp1Request) -> DatabaseName | None:
        """Return what the host names, if anything; raise its error if it is not served here.

        The target `*` means the server as a whole, by whatever host (RFC 9110, section 9.3.7).
        """
        if request.uri == b"*":
            return None
        authority, _ = split_target(request.uri)
        return self._addressing.check_host(request.headers.get(b"host", ()), authority)

    def dialect_of(
        self, request: IHttp1Request, setting_of: Callable[[DatabaseName], DialectName]
    ) -> Dialect:
        """Return the dialect of an error response, even if the request cannot be parsed.

        `setting_of` returns the setting of a project; it may raise LookupError.
        """
        parameters: Parameters = {}
        setting: DialectName = "auto"
        try:
            authority, target = split_target(request.uri)
            parameters = parse_leniently(target.partition(b"?")[2])
            hosts = request.headers.get(b"host", ())
            self._addressing.check_host(hosts, authority)
            setting = setting_of(self._addressing.find(hosts[0], parameters.get("ns")))
        except (ValueError, LookupError):
            pass  # no project is addressed, so none has a setting
        return choose_dialect(setting, request.headers, parameters)

    def locate(self, request: IHttp1Request, *, ignores_ns: bool = False) -> Location:
        """Return the location that a request addresses; raise the error in its address.

        With `ignores_ns` the parameter `ns` is as if it were not there.
        """
        uri = request.uri
        # Most targets are paths, and need not be split.
        authority, target = (None, uri) if uri[:1] == b"/" else split_target(uri)
        raw_path, _, raw_query = target.partition(b"?")
        parameters: Parameters = {}
        malformed = None
        if raw_query:
            try:
                parameters = parse_parameters(raw_query)
            except InvalidQuery as error:
                malformed = error
                parameters = parse_leniently(raw_query)
        hosts = request.headers.get(b"host", ())
        if len(hosts) != 1 or authority is not None:
            self._addressing.check_host(hosts, authority)
        ns = None if ignores_ns else parameters.get("ns")
        name = self._addressing.find(hosts[0], ns)
        return Location(name, raw_path, parameters, malformed)

    def parse(
        self,
        request: IHttp1Request,
        location: Location,
        dialect: DialectName,
        allowed: AllowedMethods,
        *,
        has_place: bool = True,
    ) -> DataRequest:
        """Return the parsed form of a located request; raise the first error in it.

        `dialect` is the setting of the project, `allowed` are the methods of the resource. Without
        `has_place` the path names no place in the tree, and is not parsed.
        """
        headers, parameters = request.headers, location.parameters
        place, malformed = Place(ROOT), location.malformed
        if has_place:
            place, malformed = _find_place(request, location)
        method = parse_method(request.method, headers, parameters, allowed)
        if request.is_oversized:
            raise PayloadTooLarge(self._body_limit)
        if malformed is not None:
            raise malformed
        if _ENCODING in headers and method in WITH_BODY:
            parse_coding(headers)  # decoded when the body is read; an unsupported one ends here
        chosen = choose_dialect(dialect, headers, parameters)
        return DataRequest(
            method=method,
            place=place,
            parameters=parameters,
            print=_parse_print(method, headers, parameters),
            timeout_s=parse_timeout(parameters.get("timeout")) if parameters else DEFAULT_TIMEOUT_S,
            wants_etag=self._wants_etag(headers),
            condition=_parse_condition(headers, chosen, method),
            dialect=chosen,
            token=find_token(headers, parameters) if parameters or _TOKEN in headers else None,
            override=_parse_override(parameters),
            wants_explanation=_EXPLAIN in headers and is_true(headers, _EXPLAIN),
            accepts_events=wants_stream(method, headers, parameters),
            last_event_id=first(headers, _LAST_ID) if _LAST_ID in headers else None,
            where_children=self._where_children,
            admin_path=None if has_place else location.raw_path,
        )

    def ask(
        self,
        request: IHttp1Request,
        find: Callable[[DatabaseName], Found],
        allowed: AllowedMethods,
        *,
        has_place: bool,
    ) -> tuple[Question, Found]:
        """Return what a request asks, and of which database; what its head asks is remembered."""
        memory = request.head_memory
        question: Question | None = memory.question
        if question is not None and not request.is_oversized:
            return question, find(question.name)
        location = self.locate(request)
        database = find(location.name)
        dialect = database.project.dialect
        wanted = self.parse(request, location, dialect, allowed, has_place=has_place)
        question = memory.question = Question(location.name, wanted)
        return question, database

    def _wants_etag(self, headers: Headers) -> bool:
        if self._etag_headers.isdisjoint(headers):
            return False
        return any(is_true(headers, name) for name in self._etag_headers)


def choose_dialect(name: DialectName, headers: Headers, parameters: Parameters) -> Dialect:
    """Return the dialect in which a request is answered; `name` is the setting of its project."""
    if name == "auto":  # only clients of Firebase send these, and the command, which says so
        is_firebase = headers.get(_DIALECT, _NONE)[0] != _STANDARD and (
            "ns" in parameters
            or b"authorization" in headers
            or (_FIREBASE_ETAG in headers and is_true(headers, _FIREBASE_ETAG))
            or (_IF_MATCH in headers and has_bare_tag(joined(headers, _IF_MATCH) or ""))
        )
    else:
        is_firebase = name == "firebase"
    return FIREBASE if is_firebase else STANDARD


def _find_place(
    request: IHttp1Request, location: Location
) -> tuple[Place, InvalidQuery | InvalidPath | None]:
    """Return the place, and what is malformed: of the place, else of the query."""
    try:
        raw_path = location.raw_path
        parse = parse_short_path if len(raw_path) <= CACHED_PATH_BYTES else parse_path
        place = parse(raw_path, len(request.prepath))
    except InvalidPath as error:
        return Place(ROOT), error
    return place, location.malformed


def _parse_override(parameters: Parameters) -> AuthOverride | None:
    name = "auth_variable_override"
    return parse_override(parameters[name]) if name in parameters else None


def _parse_print(method: bytes, headers: Headers, parameters: Parameters) -> Print:
    if not parameters and b"print" not in headers:
        return "compact"
    by_parameter = parse_choice(parameters, "print", "pretty", "silent")
    by_header = first(headers, b"print") if method in WRITING else None
    if by_header is not None and by_header != "silent":
        raise InvalidQuery("The header print must be silent.")
    if by_parameter == "silent" or by_header is not None:
        return "silent"
    return "pretty" if by_parameter == "pretty" else "compact"


def _parse_condition(headers: Headers, dialect: Dialect, method: bytes) -> ETagSet | None:
    name = b"if-none-match" if method in READING else _IF_MATCH
    if name not in headers:
        return None
    return dialect.parse_etags(joined(headers, name) or "")
