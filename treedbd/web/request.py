"""Requests parsed: from an HTTP request to a `DataRequest`, or an error.

Everything that does not depend on a database is parsed here, once: which database and place, the
method with its overrides, the parameters, the headers, the timeout. Errors are raised in the order
that the interface promises: unknown place or method, too large, malformed. So parsing has two
steps, and the database is looked up between them: `locate` finds its name, `parse` the rest.

The query string is parsed from the raw request target. `&` separates, `;` does not; a parameter
without a value counts; `+` is a space. Parameters that the interface does not know are ignored, but
must decode; a known one given twice is an error. A token is in a parameter or in a header.

`ReadOptions` are the parameters of a read: which of the data, and in which form. A database is
named by the host, by the parameter `ns`, or by the default project (`Addressing`); in a host the
label of the database (`names`) is a subdomain of a configured domain. The path names the place.

A `Dialect` has all differences of the two dialects of the interface. `STANDARD` is the interface as
it is documented. `FIREBASE` is for clients that were written for Firebase Realtime Database (a
trademark of Google, to which treedb is not connected) and depend on its exact bytes. A project may
be set to either; otherwise a request that has what the documented interface does not have is
answered in the second (`choose_dialect`).

A `Question` is a parsed request, which is remembered: it is found by method and target, beside the
header fields, for all clients.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from sys import getsizeof
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

import attrs

from treedbd.caches import bounded_cache, short_cache
from treedbd.database.requests import TooLarge
from treedbd.http1.parser import (
    BadEncoding,
    FieldsKey,
    HeadCache,
    Headers,
    decode,
    decode_leniently,
    first,
    is_true,
    joined,
    parse_coding,
)
from treedbd.limits import (
    DEFAULT_TIMEOUT_S,
    MAX_CALLBACK_CHARACTERS,
    MAX_HOST_BYTES,
    MAX_TIMEOUT_S,
    MIB,
    Limits,
)
from treedbd.names import DatabaseName, DialectName, parse_label
from treedbd.rules.context import NullBound, QueryBound, QueryFacts
from treedbd.traces import Trace
from treedbd.tree.hashes import NULL_ETAG, ETagSet, has_bare_tag, parse_etags
from treedbd.tree.path import make_place
from treedbd.tree.query import (
    AT,
    DESCRIBE,
    WHERE,
    Bound,
    Description,
    Query,
    Shallow,
    parse_description,
    parse_query,
    parse_shallow,
)
from treedbd.tree.query import PARAMETERS as QUERY_PARAMETERS
from treedbd.tree.types import ROOT, VALUE, Chunks, InvalidPath, InvalidQuery, Json, Place
from treedbd.tree.value import compact, indent, pretty, space_colons
from treedbd.web.auth.identity import AuthOverride, Identity, ReadOnlyToken, parse_override

if TYPE_CHECKING:  # they are of a layer above, or load Twisted
    from treedbd.config.settings import Settings
    from treedbd.database.database import Database
    from treedbd.database.rights import ReadRequest
    from treedbd.http1.request import IHttp1Request

Parameters: TypeAlias = dict[str, str]

ON_DISCONNECT: Final = "onDisconnect"
METHOD_OVERRIDE: Final = "x-http-method-override"
TIMEOUT_PATTERN: Final = r"([0-9]{1,9})(ms|s|min)"
KNOWN: Final = frozenset(
    {
        *("auth", "access_token", "auth_variable_override", "ns", "timeout", METHOD_OVERRIDE),
        *("shallow", "v", "format", "print", "callback", "download", "resume"),
        *QUERY_PARAMETERS,
        *(WHERE, DESCRIBE, AT),
        ON_DISCONNECT,
        *("confirm", "dryRun", "version", "writeSizeLimit", "disableTriggers"),
    }
)
QUERY_MEMBERS: Final = frozenset({*QUERY_PARAMETERS, WHERE, "shallow"})
"""The parameters that choose children: what rules can read of them is in `query`."""

LASTING: Final = frozenset({b"/.settings/events.json", b"/.standby/stream.json", b"/.standby/base"})
"""Paths of responses that last as long as streams do: how long says nothing about the service."""

_KNOWN_RAW: Final = {name.encode(): name for name in KNOWN}
_LOCATING: Final = {name.encode(): name for name in ("ns", METHOD_OVERRIDE)}
"""Parameters that locate a request or choose its method; they count in a malformed query too."""
_NO_PARAMETERS: Final[Parameters] = {}
_TIMEOUT_FORM = re.compile(TIMEOUT_PATTERN, re.ASCII)
_SECONDS_OF = {"ms": 0.001, "s": 1.0, "min": 60.0}
_RESERVED_WORDS: Final = frozenset(
    {
        *("await", "break", "case", "catch", "class", "const", "continue", "debugger"),
        *("default", "delete", "do", "else", "enum", "export", "extends", "false", "finally"),
        *("for", "function", "if", "import", "in", "instanceof", "new", "null", "return"),
        *("super", "switch", "this", "throw", "true", "try", "typeof", "var", "void"),
        *("while", "with", "yield"),
    }
)
"""The reserved words of JavaScript (ECMA-262, section 12.7.2)."""


def parse_parameters(raw: bytes) -> Parameters:
    """Parse a raw query string, without its `?`; raise `InvalidQuery`."""
    if not raw:
        return _NO_PARAMETERS
    parameters: Parameters = {}
    for part in raw.split(b"&"):
        name, _, value = part.partition(b"=")
        name_text = _KNOWN_RAW.get(name) or _decode_form(name)
        value_text = _decode_form(value)
        if name_text not in KNOWN:
            continue
        if name_text in parameters:
            raise InvalidQuery(f"The parameter {name_text} is given twice.")
        parameters[name_text] = value_text
    return parameters


def find_parameter(uri: bytes, name: bytes) -> list[str]:
    """Return the values of one parameter of a raw URI; raise `InvalidQuery`."""
    parts = (part.partition(b"=") for part in uri.partition(b"?")[2].split(b"&"))
    return [_decode_form(value) for found, _, value in parts if found == name]


def find_single_parameter(uri: bytes, name: str) -> str | None:
    """Return the value of a parameter that only some resources have, None if it is not given.

    Raises `InvalidQuery`, also if it is given twice.
    """
    found = find_parameter(uri, name.encode())
    if len(found) > 1:
        raise InvalidQuery(f"The parameter {name} is given twice.")
    return found[0] if found else None


def parse_leniently(raw_query: bytes) -> Parameters:
    """Return the parameters of a query; of a malformed one only those in `_LOCATING`.

    Of several with the same name the first counts; one that cannot be decoded is empty.
    """
    try:
        return parse_parameters(raw_query)
    except InvalidQuery:
        pass
    parameters: Parameters = {}
    for part in raw_query.split(b"&"):
        name = _LOCATING.get(part.partition(b"=")[0])
        if name is not None and name not in parameters:
            try:
                parameters |= parse_parameters(part)
            except InvalidQuery:
                parameters[name] = ""
    return parameters


def parse_timeout(text: str | None) -> float:
    """Return the seconds in a `timeout` parameter; raise `InvalidQuery`."""
    if text is None:
        return DEFAULT_TIMEOUT_S
    found = _TIMEOUT_FORM.fullmatch(text)
    seconds = int(found[1]) * _SECONDS_OF[found[2]] if found else 0.0
    if not 0 < seconds <= MAX_TIMEOUT_S:
        raise InvalidQuery(
            "timeout must be an integer followed by ms, s or min, above zero and at most 15min."
        )
    return seconds


def parse_callback(text: str) -> str:
    """Return the function name of a JSONP request; raise `InvalidQuery`."""
    if len(text) > MAX_CALLBACK_CHARACTERS or not all(map(_is_identifier, text.split("."))):
        raise InvalidQuery(
            "callback must be JavaScript identifiers joined by dots, "
            f"{MAX_CALLBACK_CHARACTERS} characters at most."
        )
    if text.partition(".")[0] in _RESERVED_WORDS:
        raise InvalidQuery("callback must not begin with a reserved word of JavaScript.")
    return text


def find_token(headers: Headers, parameters: Parameters) -> str | None:
    """Return the token of a request, None if it has none.

    Raises `InvalidQuery` if it has two that differ. An `Authorization` with another scheme than
    Bearer has none.
    """
    found = {parameters.get("auth"), parameters.get("access_token")}
    for value in headers.get(b"authorization", ()):
        found.add(_bearer_token(value.decode("latin-1").strip()))
    found -= {None, ""}
    if len(found) > 1:
        raise InvalidQuery("The request carries two different tokens.")
    return found.pop() if found else None


def _bearer_token(field: str) -> str:
    scheme, *token = field.split(None, 1) or ("",)
    return token[0] if token and scheme.lower() == "bearer" else ""


def parse_choice(parameters: Parameters, name: str, *choices: str) -> str | None:
    """Return a parameter, None if it is absent; raise `InvalidQuery` if it is none of `choices`."""
    text = parameters.get(name)
    if text is not None and text not in choices:
        raise InvalidQuery(f"{name} must be {' or '.join(choices)}.")
    return text


def _is_identifier(text: str) -> bool:
    """Return whether text is an identifier of JavaScript: one of Python's (UAX 31), or with `$`."""
    return text.replace("$", "_").isidentifier()


def _decode_form(raw: bytes) -> str:
    return _decode_escaped(raw) if b"%" in raw or b"+" in raw or not raw.isascii() else raw.decode()


@bounded_cache(1024)
def _decode_escaped(raw: bytes) -> str:
    try:
        return decode(raw.replace(b"+", b" "))
    except BadEncoding as error:
        raise InvalidQuery(f"The query {error.problem}.") from None


SUFFIX: Final = ".json"
_SUFFIX: Final = SUFFIX.encode()
CACHED_PATH_BYTES: Final = 256
"""Longer paths are not cached, so that clients cannot fill the memory."""

_HOST = re.compile(r"(\[[0-9a-fA-F:.]+\]|[^:\[\]/@\s]+)(?::[0-9]{0,5})?", re.ASCII)
_ABSOLUTE = re.compile(rb"(?i:https?)://([^/?#]*)")


class Misdirected(LookupError):
    """The host is not below any configured domain."""


class NoDatabaseNamed(LookupError):
    """The address names no database, or has a name that no database can have."""


class MissingSuffix(LookupError):
    """The path does not end with `.json`, so it names no place."""

    def __init__(self) -> None:
        super().__init__("Append .json to the path to address data: /a/b.json.")


def split_target(uri: bytes) -> tuple[bytes | None, bytes]:
    """Split a request target into its authority, None if it is relative, and the rest."""
    if uri[:1] == b"/":
        return None, uri
    found = _ABSOLUTE.match(uri)
    if found is None:
        raise InvalidPath("The request target must be a path or an absolute address.")
    rest = uri[found.end() :]
    return found[1], rest if rest[:1] == b"/" else b"/" + rest


def parse_path(raw_path: bytes, prefix_segments: int) -> Place:
    """Return the place that a raw path names, below the `prefix_segments` segments of a prefix.

    Raises `MissingSuffix`, or `InvalidPath` for a path that no node can have.
    """
    return parse_segments(raw_path[1:].split(b"/")[prefix_segments:])


parse_short_path: Final = short_cache(1024)(parse_path)
"""`parse_path` with its results cached, for paths of at most `CACHED_PATH_BYTES`: in 3 MB."""


def parse_segments(segments: list[bytes]) -> Place:
    """Return the place that the segments of a path name, split at `/` before decoding.

    Empty segments collapse: `[b"a", b"", b"b.json"]` is `a/b`.
    """
    named = segments if all(segments) else [segment for segment in segments if segment]
    if not named or not (named[-1].endswith(_SUFFIX) or _ends_encoded(named[-1])):
        raise MissingSuffix
    text = b"/".join(named)
    try:
        if text.isascii() and b"%" not in text:  # as most are
            decoded = text.decode("ascii").split("/")
        else:
            decoded = [decode(each) for each in named]
    except BadEncoding as error:
        raise InvalidPath(f"The path {error.problem}.") from None
    decoded[-1] = decoded[-1][: -len(SUFFIX)]
    # Only the last one can be empty now, unless another was encoded.
    return make_place(decoded if all(decoded) else [each for each in decoded if each])


def _ends_encoded(segment: bytes) -> bool:
    return b"%" in segment and decode_leniently(segment).endswith(_SUFFIX)


class Addressing:
    """Finds databases by the domains of a service and its default project.

    Attributes:
        find: returns the database that a Host header and the parameter `ns`, if present, name.
            Raises `InvalidPath`, `InvalidQuery`, `Misdirected` or `NoDatabaseNamed`. Results are
            cached.

    """

    def __init__(
        self,
        domains: tuple[str, ...],
        default_project: str,
        *,
        any_host: bool = False,
        own_hosts: Iterable[str] = (),
    ) -> None:
        """Serve `domains`, in lower case; an empty `default_project` means that there is none.

        With `any_host` other hosts name no database. Without it they are misdirected, except
        `own_hosts`, which name none either; `*.local` among these is a pattern.
        """
        self._own_hosts = frozenset(own_hosts)
        self._own_suffixes = tuple(each[1:] for each in self._own_hosts if each[:2] == "*.")
        self._domains = sorted(domains, key=len, reverse=True)
        self._any_host = any_host
        self._default = DatabaseName(default_project) if default_project else None
        self.find: Final = short_cache(4096)(self._find)

    def check_host(self, hosts: Sequence[bytes], authority: bytes | None) -> DatabaseName | None:
        """Return the database that the host of a request names, None if it names none.

        `hosts` are the values of its Host header, `authority` is that of an absolute target. Raises
        `InvalidPath`, `Misdirected` or `NoDatabaseNamed`.
        """
        if len(hosts) != 1:
            raise InvalidPath("A request must carry exactly one Host header.")
        host = _parse_host(hosts[0])
        if authority is not None and _parse_host(authority) != host:
            raise InvalidPath("The request target and the Host header name different hosts.")
        return self._name_of_host(host)

    def _find(self, host: bytes, ns: str | None) -> DatabaseName:
        named = self._name_of_host(_parse_host(host))
        if ns is not None:
            by_parameter = parse_label(ns)
            if by_parameter is None:
                raise InvalidQuery("ns must be <project> or <database>--<project>.")
            if named is not None and named != by_parameter:
                raise InvalidQuery("The host and ns name different databases.")
            return by_parameter
        if named is None:
            named = self._default
        if named is None:
            raise NoDatabaseNamed(
                "The address names no project: use a host <project>.<domain>, or ns=<project>."
            )
        return named

    def _name_of_host(self, host: str) -> DatabaseName | None:
        for domain in self._domains:
            if host == domain:
                return None
            if host.endswith("." + domain):
                named = parse_label(host[: -len(domain) - 1])
                if named is None:
                    raise NoDatabaseNamed(f"No database can have the address {host}.")
                return named
        if self._any_host or host == "localhost" or _is_address(host):
            return None
        if host in self._own_hosts or host.endswith(self._own_suffixes):
            return None
        raise Misdirected(f"The host {host} is not served here.")


def _parse_host(raw: bytes) -> str:
    """Return a host in lower case, without its port; raise `InvalidPath`."""
    if len(raw) > MAX_HOST_BYTES:
        raise InvalidPath("The Host header is too long for a host name.")
    found = _HOST.fullmatch(raw.decode("latin-1"))
    if found is None:
        raise InvalidPath("The Host header is not a host name.")
    return found[1].lower().removesuffix(".")


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return False
    return True


READING: Final = frozenset({b"GET", b"HEAD"})
WRITING: Final = frozenset({b"PUT", b"POST", b"PATCH", b"DELETE"})
WITH_BODY: Final = frozenset({b"PUT", b"POST", b"PATCH"})
OVERRIDES: Final = frozenset({b"GET", b"PUT", b"PATCH", b"DELETE"})
"""The methods that a POST can be overridden to."""

_METHODS_IN_ORDER: Final = ("GET", "HEAD", "PUT", "POST", "PATCH", "DELETE", "OPTIONS")
METHODS: Final = frozenset(name.encode() for name in _METHODS_IN_ORDER)
"""All methods of the interface; logs and metrics show others under one name."""


@attrs.frozen
class AllowedMethods:
    """The methods of a resource; `header` lists them as the header `Allow` does."""

    names: frozenset[bytes]
    header: bytes

    @classmethod
    def of(cls, names: Iterable[str] | None) -> AllowedMethods:
        """Return the methods with these names, in their usual order."""
        listed = frozenset(names or ())
        ordered = [name.encode() for name in _METHODS_IN_ORDER if name in listed]
        return cls(frozenset(ordered), b", ".join(ordered))


class MethodNotAllowed(Exception):
    """The resource does not have this method; `allowed` are its methods."""

    def __init__(self, message: str, allowed: AllowedMethods) -> None:
        super().__init__(message)
        self.allowed = allowed


def parse_method(
    method: bytes, headers: Headers, parameters: Parameters, allowed: AllowedMethods
) -> bytes:
    """Return the method of a request after its overrides; raise `MethodNotAllowed`."""
    if method == b"POST":
        override = first(headers, b"x-http-method-override") or parameters.get(METHOD_OVERRIDE)
        if override:
            method = override.upper().encode()
            if method not in OVERRIDES:
                raise MethodNotAllowed(
                    "A POST may be overridden to GET, PUT, PATCH or DELETE.", allowed
                )
    check_method(method, allowed)
    return method


def check_method(method: bytes, allowed: AllowedMethods) -> None:
    """Raise `MethodNotAllowed` for a method that the resource does not have."""
    if method not in allowed.names:
        raise MethodNotAllowed(f"The methods here are {allowed.header.decode()}.", allowed)


_EVENTS: Final = b"text/event-stream"
_NO_WEIGHT: Final = re.compile(rb"q=0(\.0*)?")


def _accepts_events(headers: Headers) -> bool:
    """Return whether `Accept` requests a stream by its media type.

    A weight of zero refuses the type; other weights make no difference.
    """
    accepted = b",".join(headers.get(b"accept", ())).lower()
    if _EVENTS not in accepted:
        return False
    for media in accepted.split(b","):
        name, *parameters = (part.strip() for part in media.split(b";"))
        if name == _EVENTS and not any(map(_NO_WEIGHT.fullmatch, parameters)):
            return True
    return False


def wants_stream(method: bytes, headers: Headers, parameters: Parameters) -> bool:
    """Return whether a request opens a stream; if not, raise for a parameter of streams."""
    is_stream = b"accept" in headers and method in READING and _accepts_events(headers)
    if ON_DISCONNECT in parameters and not is_stream:
        raise InvalidQuery(f"{ON_DISCONNECT} works with a stream only.")
    return is_stream


_WITHOUT_EFFECT: Final = frozenset(
    {"auth", "access_token", "auth_variable_override", "ns", "print", "timeout"}
)
"""Parameters that do not change what is read."""
_NOT_OF_DESCRIPTIONS: Final = ("format", "download")
_NOT_OF_STREAMS: Final = ("shallow", "print", "callback", "download")
_NOT_OF_CHANGES: Final = ("format", *QUERY_PARAMETERS, WHERE, AT)
EDGE_KEYS: Final = {"[MIN_NAME]": False, "[MAX_NAME]": True}
"""What clients send for a key before all others and for one after them; neither can be a key.

The value says whether it is the one after them.
"""
_LOWEST: Final = Bound(None, None, True)
"""A start that leaves out no child, so that for rules it is none."""


@attrs.frozen(slots=False)  # for its cached properties
class ReadOptions:
    """Which of the data at a place a read shows, and how it is wrapped.

    At most one of `shallow`, `query` and `is_export` is set. Of a description of what a query
    selects, `query` is that query.
    """

    shallow: Shallow | None
    query: Query | None
    is_export: bool
    callback: str | None
    download: str | None
    description: Description | None = None

    @property
    def is_plain(self) -> bool:
        """Whether the value itself is shown, so that it has a tag."""
        return self.shallow is None and self.query is None and self.description is None

    @cached_property
    def form(self) -> str:
        """Equal for reads that show the same JSON of the same data, and for no others."""
        # As text, because 1 and True are equal, but are different bounds of a query.
        return repr((self.shallow, self.query, self.is_export, self.description))

    @cached_property
    def facts(self) -> QueryFacts | None:
        """What rules can read of the query; None for a read without one.

        A description without a query is none: beside its page it shows how much there is in all.
        """
        return _query_facts(self.shallow, self.query)


PLAIN: Final = ReadOptions(shallow=None, query=None, is_export=False, callback=None, download=None)
EXPORT: Final = ReadOptions(shallow=None, query=None, is_export=True, callback=None, download=None)
"""A whole value, as it is and in export form."""


def parse_read_options(
    parameters: Parameters, where_children: int = Limits().where_children
) -> ReadOptions:
    """Return the options in the parameters of a read; raise `InvalidQuery`.

    A read with `where` may examine `where_children` children.
    """
    if parameters.keys() <= _WITHOUT_EFFECT:
        return PLAIN
    is_export = parse_choice(parameters, "format", "export") is not None
    shallow = parse_shallow(parameters)
    query = description = None
    if DESCRIBE in parameters:
        description = _parse_description(parameters, where_children)
    if description is not None:
        query = description.page if description.is_query else None
        if shallow is not None:
            raise InvalidQuery("describe does not work with shallow.")
    elif shallow is None:
        query = _without_edges(parse_query(parameters, where_children))
    if is_export and shallow is not None:
        raise InvalidQuery("format=export does not work with shallow.")
    callback = parameters.get("callback")
    return ReadOptions(
        shallow=shallow,
        query=query,
        is_export=is_export,
        callback=None if callback is None else parse_callback(callback),
        download=parameters.get("download"),
        description=description,
    )


def _parse_description(parameters: Parameters, where_children: int) -> Description | None:
    """Return the description that a read asks for; raise `InvalidQuery`."""
    description = parse_description(
        parameters, lambda: _without_edges(parse_query(parameters, where_children))
    )
    for name in _NOT_OF_DESCRIPTIONS:
        if description is not None and name in parameters:
            raise InvalidQuery(f"describe does not work with {name}.")
    return description


def check_stream(parameters: Parameters, place: Place) -> None:
    """Raise `InvalidQuery` or `InvalidPath` for a read that cannot be a stream."""
    for name in _NOT_OF_STREAMS:
        if name in parameters:
            raise InvalidQuery(f"{name} does not work with a stream.")
    resumes = parse_choice(parameters, "resume", "true", "false") == "true"
    if names_changes(parameters):
        for name in (*_NOT_OF_CHANGES, "resume") if resumes else _NOT_OF_CHANGES:
            if name in parameters:
                raise InvalidQuery(f"{name} does not work with describe=true on a stream.")
    if place.is_priority:
        raise InvalidPath("A priority cannot be watched; watch its node.")


def names_changes(parameters: Parameters) -> bool:
    """Return whether a stream is to name the places that change; raise `InvalidQuery`."""
    return parse_choice(parameters, DESCRIBE, "true", "false") == "true"


def index_of(query: Query) -> str | None:
    """Return the name of the index that a query would use; None if it needs none."""
    if query.order.kind == "child":
        return "/".join(query.order.path)
    return VALUE if query.order.kind == "value" else None


def _query_facts(shallow: Shallow | None, query: Query | None) -> QueryFacts | None:
    """Return what rules can read of a query; a page of a shallow read is a query by key."""
    if shallow is not None and (shallow.limit, shallow.start_after) != (None, None):
        return QueryFacts(True, start_at=shallow.start_after, limit_to_first=shallow.limit)
    if query is None:
        return None
    kind, low, high = query.order.kind, query.low, query.high
    exact = low if low is high else None
    return QueryFacts(
        order_by_key=kind == "key",
        order_by_priority=kind == "priority",
        order_by_value=kind == "value",
        order_by_child="/".join(query.order.path) if kind == "child" else None,
        start_at=None if exact or low == _LOWEST else _bound_value(kind, low),
        end_at=None if exact else _bound_value(kind, high),
        equal_to=_bound_value(kind, exact),
        limit_to_first=query.limit_to_first,
        limit_to_last=query.limit_to_last,
        has_where=query.where is not None,
    )


def _without_edges(query: Query | None) -> Query | None:
    """Return a query in which bounds beyond all keys of a value are bounds of that value.

    `startAfter=5,"[MAX_NAME]"` excludes all children at 5, and so does `startAfter=5`.
    """
    if query is None or query.order.kind == "key" or query.low is query.high:
        return query
    low, high = query.low, query.high
    if low is not None and low.key in EDGE_KEYS:
        low = Bound(low.value, None, not EDGE_KEYS[low.key])
    if high is not None and high.key in EDGE_KEYS:
        high = Bound(high.value, None, EDGE_KEYS[high.key])
    if low is query.low and high is query.high:
        return query
    return attrs.evolve(query, low=low, high=high)


def _bound_value(kind: str, bound: Bound | None) -> QueryBound:
    if bound is None:
        return None
    if kind == "key":
        return bound.key
    return NullBound.NULL if bound.value is None else bound.value


_FIREBASE_NULL_ETAG: Final = "null_etag"
_FIREBASE_DENIAL: Final = "Permission denied"


@attrs.frozen
class Dialect:
    """One of the two dialects; `is_firebase` says which.

    A client of Firebase takes the body of a 412 for the value, and may show by its tag alone that
    it is a client of Firebase. So tags in its dialect are bare: a client that has read one sends it
    bare.
    """

    is_firebase: bool

    @property
    def denied_status(self) -> int:
        """The status of a denial, by the rules or by a resource for admins."""
        return 401 if self.is_firebase else 403

    def denial(self, message: str) -> str:
        """Return the message of a denial, by the rules or by a resource for admins."""
        return _FIREBASE_DENIAL if self.is_firebase else message

    def error_body(
        self, code: str, message: str, hint: str = "", errors: Sequence[Json] = ()
    ) -> bytes:
        """Return the body of an error; in Firebase's there is no member but the message.

        `errors` are all that are known, if there may be several.
        """
        error: dict[str, Json] = {"error": code, "message": message}
        if hint:
            error["hint"] = hint
        if errors:
            error["errors"] = [*errors]
        if self.is_firebase:
            error = {"error": message}
            return self.pretty(error) + b"\n"
        return compact(error)

    @property
    def takes_412_for_value(self) -> bool:
        """Whether the body of a 412 must be the value, because clients take it for that."""
        return self.is_firebase

    def mismatch_body(self, code: str, message: str, printed: Chunks) -> Chunks:
        """Return the body of a 412, with the printed value that did not match."""
        if self.is_firebase:
            return printed
        shown: Json = {"error": code, "message": message, "data": None}
        return (compact(shown).removesuffix(b"null}"), *printed, b"}")

    def etag(self, tag: str) -> bytes:
        """Return an entity tag as it is sent in a header: Firebase's have no quotes."""
        if self.is_firebase:
            tag = _FIREBASE_NULL_ETAG if tag == NULL_ETAG else tag.strip('"')
        return tag.encode()

    def parse_etags(self, header: str) -> ETagSet:
        """Parse the tags of a condition, Firebase's `null_etag` included."""
        tags = parse_etags(header)
        if not self.is_firebase or _FIREBASE_NULL_ETAG not in tags.opaque:
            return tags
        return attrs.evolve(tags, opaque=tags.opaque | {NULL_ETAG.strip('"')})

    def rules_error(self, text: str) -> str:
        """Return the message about an error in a rules document."""
        return f"{text}\n" if self.is_firebase else text

    def pretty(self, json: Json) -> bytes:
        """Print JSON, indented by two spaces."""
        text = pretty(json)
        return space_colons(text) if self.is_firebase else text

    def indent(self, chunks: Iterable[bytes]) -> Iterator[bytes]:
        """Indent chunks of compact JSON as `pretty` does; some chunks are empty."""
        return indent(chunks, spaces_colons=self.is_firebase)


STANDARD: Final = Dialect(False)
FIREBASE: Final = Dialect(True)

Print: TypeAlias = Literal["compact", "pretty", "silent"]

_EXPLAIN: Final = b"x-treedb-explain"
_ENCODING: Final = b"content-encoding"
_LAST_ID: Final = b"last-event-id"
_TOKEN: Final = b"authorization"
_DIALECT: Final = b"x-treedb-dialect"
_STANDARD: Final = b"standard"
_NO_FIELD: Final = (b"",)
_IF_MATCH: Final = b"if-match"
_FIREBASE_ETAG: Final = b"x-firebase-etag"


class PayloadTooLarge(TooLarge):
    """The body is larger than this service accepts."""

    def __init__(self, limit: int) -> None:
        super().__init__(f"A body may have at most {limit} bytes.")


@attrs.frozen
class Location:
    """Which database a request addresses, and its target in parts.

    `malformed` is the error in its query, which is raised unless another error precedes it.
    """

    name: DatabaseName
    raw_path: bytes
    parameters: Parameters = attrs.field(repr=False)
    malformed: InvalidQuery | InvalidPath | None = None


@attrs.frozen(slots=False)  # with slots, cached properties would be found by a function
class DataRequest:
    """A parsed request, whose caller is not known yet.

    One that `explains_denial` is made by the service itself, for a caller who was denied.
    `timeout_s` is in seconds. `condition` is that of If-Match on a write, of If-None-Match on a
    read. `identity` is the sender, if the program that embeds the service names one: then the token
    does not count. A sender that `takes_whole` receives a large value when all of it is rendered.
    `admin_path` is the path of a request that names no place in the tree. `trace` is that of the
    request, None if it is not sampled.
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
        """The options of a read of the place; raises `InvalidQuery`."""
        return parse_read_options(self.parameters, self.where_children)

    @cached_property
    def form(self) -> str:
        """Equal for reads that show the same text of the same data, and for no others."""
        form = self.read_options.form
        if self.print != "pretty":
            return form
        return f"{form} {'indented, of Firebase' if self.dialect.is_firebase else 'indented'}"

    def at(self, place: Place) -> DataRequest:
        """Return the same request for another place, with the properties that are cached."""
        other = object.__new__(DataRequest)
        object.__setattr__(other, "__dict__", vars(self) | {"place": place})
        return other

    @property
    def is_write(self) -> bool:
        """Whether it writes, now or when its stream ends."""
        is_reading = self.method in READING
        return not is_reading or (self.accepts_events and ON_DISCONNECT in self.parameters)

    def check_reads(self) -> None:
        """Raise `ReadOnlyToken` if it writes; an explanation of a write does not."""
        if self.is_write and not self.wants_explanation:
            raise ReadOnlyToken

    def check_unconditional(self) -> None:
        """Raise `InvalidQuery` for a condition, or a trial, of what is done as a whole or not."""
        if self.condition is not None:
            raise InvalidQuery("If-Match is not possible here.")
        if self.parameters.get("dryRun", "false") != "false":
            raise InvalidQuery("dryRun is not possible here.")

    @cached_property
    def shows_value(self) -> bool:
        """Whether it reads the value itself, as it is printed, and without its tag."""
        is_tagged = self.wants_etag or self.condition is not None
        return self.print == "compact" and self.read_options is PLAIN and not is_tagged

    @property
    def is_simple_read(self) -> bool:
        """Whether it reads without an override, and receives the data in one response."""
        return (
            self.method in READING
            and self.print != "silent"
            and self.override is None
            and not (self.accepts_events or self.wants_explanation)
        )


@attrs.define(eq=False)
class Question:
    """What a head requests of the database `name`; requests of all clients that send it share it.

    `is_simple` says whether it is a simple read (`DataRequest.is_simple_read`), `size` how many
    bytes of memory its parameters and its condition take (`_size_of_parsed`). `rules` are those
    in which its query has an index, None until that is known. Once it has been answered, `read` is
    what rules are evaluated for, as `identity`, and `allowed` are rules that allow it whatever is
    stored.
    """

    name: DatabaseName
    wanted: DataRequest
    is_simple: bool
    size: int
    rules: object = None
    identity: Identity | None = None
    read: ReadRequest | None = None
    allowed: object = None


QuestionKey: TypeAlias = tuple[FieldsKey | Question, bytes, bytes]
"""By which a question is found: the header fields, the method and the target. In place of the
fields is the question with these and an empty target if the target is a path without a query."""
_ALL_QUESTION_BYTES: Final = 8 * MIB
_QUESTION_BYTES: Final = 800
"""What a question takes in memory beside what its target and its fields say."""
_COPIES: Final = dict.fromkeys(_WITHOUT_EFFECT, 1) | {"auth_variable_override": 30, WHERE: 60}
_QUERY_COPIES: Final = 8
"""How often the text of a parameter is in memory: parsed, as the form of a read, for rules.

Every number of a `where` is an object, and every condition some of them; so is every list in an
override."""
_TAG_BYTES: Final = 200


def _size_of_question(key: QuestionKey, question: Question) -> int:
    """Return how many bytes a question takes, with what is made of it when it is answered."""
    above, _method, target = key
    size = _QUESTION_BYTES + len(target) + sum(map(getsizeof, question.wanted.place.path))
    if not isinstance(above, Question):  # else that one is found before it, and stays longer
        size += above.size
    return size + question.size


def _size_of_parsed(wanted: DataRequest) -> int:
    """Return how many bytes parameters and condition take, with what is made of them later."""
    size = 0
    for name, text in wanted.parameters.items():
        size += _COPIES.get(name, _QUERY_COPIES) * getsizeof(text)
    if wanted.condition is not None:
        size += _TAG_BYTES * len(wanted.condition.opaque)
    return size


class RequestParser:
    """Parses requests by the settings of one service, and remembers the last ones.

    What all requests without parameters have in common, if method and header fields are the same,
    is remembered too, under an empty target: only their paths are parsed. A target is remembered
    when it comes for the second time: most of many come once, and would displace the others.
    """

    def __init__(self, settings: Settings) -> None:
        self._questions: HeadCache[QuestionKey, Question] = HeadCache(
            _ALL_QUESTION_BYTES, _size_of_question
        )
        self._body_limit = settings.limits.write_body_bytes
        self._where_children = settings.limits.where_children
        self._addressing = Addressing(
            settings.domains,
            settings.default_project,
            any_host=settings.any_host,
            own_hosts=settings.own_hosts,
        )
        self._etag_headers = frozenset(
            f"x-{name}-etag".lower().encode() for name in settings.http.etag_headers
        )

    def check_host(self, request: IHttp1Request) -> DatabaseName | None:
        """Return the database that the host names, if any; raise an error for a foreign host.

        The target `*` means the server as a whole, under any host (RFC 9110, section 9.3.7).
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

        With `ignores_ns` the parameter `ns` does not count.
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
        `has_place` the path does not name a place in the tree, and is not parsed.
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
            parse_coding(headers)  # only checked here; it is decoded when the body is read
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
            accepts_events=wants_stream(method, headers, parameters)
            or (not has_place and location.raw_path in LASTING),
            last_event_id=first(headers, _LAST_ID) if _LAST_ID in headers else None,
            where_children=self._where_children,
            admin_path=None if has_place else location.raw_path,
        )

    def recall(self, request: IHttp1Request) -> Question | None:
        """Return the question in a request if one like it is remembered, None otherwise."""
        memory, uri = request.head_memory, request.uri
        above: FieldsKey | Question | None = memory.fields_key
        if uri[:1] == b"/" and b"?" not in uri and above is not None:
            above = memory.like = self._questions.find((above, request.method, b""))
        if above is None:
            return None
        question = memory.question = self._questions.find((above, request.method, uri))
        if question is not None:
            memory.size += question.size
        return question

    def ask(
        self,
        request: IHttp1Request,
        find: Callable[[DatabaseName], Database],
        allowed: AllowedMethods,
        *,
        has_place: bool,
    ) -> tuple[Question, Database | None]:
        """Return the question in a request, which is remembered with its head.

        Returns the database too if it had to be found for that.
        """
        memory, uri = request.head_memory, request.uri
        question: Question | None = memory.question
        if question is not None and not request.is_oversized:
            return question, None
        above: FieldsKey | Question | None = memory.fields_key if has_place else None
        like: Question | None = None if request.is_oversized else memory.like
        memory.like = database = None
        if like is None or not has_place:
            location = self.locate(request)
            database = find(location.name)
            dialect = database.project.dialect
            wanted = self.parse(request, location, dialect, allowed, has_place=has_place)
            is_plain = not wanted.parameters and wanted.condition is None
            size = 0 if is_plain else _size_of_parsed(wanted)
            question = Question(location.name, wanted, has_place and wanted.is_simple_read, size)
            if above is not None and uri[:1] == b"/" and b"?" not in uri:
                self._questions.add((above, request.method, b""), question)
                above = question
        else:
            above, wanted = like, like.wanted.at(_place_at(uri, request))
            question = Question(like.name, wanted, like.is_simple, like.size)
        if above is not None:
            self._questions.add_at_second_use((above, request.method, uri), question)
        memory.question = question
        memory.size += question.size
        return question, database

    def _wants_etag(self, headers: Headers) -> bool:
        if self._etag_headers.isdisjoint(headers):
            return False
        return any(is_true(headers, name) for name in self._etag_headers)


def choose_dialect(name: DialectName, headers: Headers, parameters: Parameters) -> Dialect:
    """Return the dialect in which a request is answered; `name` is the setting of its project."""
    if (
        name == "auto"
    ):  # only clients of Firebase send these; the command line also names its dialect
        is_firebase = headers.get(_DIALECT, _NO_FIELD)[0] != _STANDARD and (
            "ns" in parameters
            or b"authorization" in headers
            or (_FIREBASE_ETAG in headers and is_true(headers, _FIREBASE_ETAG))
            or (_IF_MATCH in headers and has_bare_tag(joined(headers, _IF_MATCH) or ""))
        )
    else:
        is_firebase = name == "firebase"
    return FIREBASE if is_firebase else STANDARD


def _place_at(raw_path: bytes, request: IHttp1Request) -> Place:
    parse = parse_short_path if len(raw_path) <= CACHED_PATH_BYTES else parse_path
    return parse(raw_path, len(request.prepath))


def _find_place(
    request: IHttp1Request, location: Location
) -> tuple[Place, InvalidQuery | InvalidPath | None]:
    """Return the place, and what is malformed: of the place, else of the query."""
    try:
        place = _place_at(location.raw_path, request)
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
