"""The messages of the real-time protocol: what clients send, parsed, and what the server sends.

Each is a JSON envelope: `{"t":"d","d":…}` holds data, `{"t":"c","d":…}` control. Data from a client
is a request `{"r":<number>,"a":<action>,"b":<body>}`, which is answered by
`{"r":<number>,"b":{"s":"ok" or an error word,"d":…}}`; data from the server beside the answers is
`{"a":<action>,"b":<body>}`. Source: `realtime-protocol.md`, sections 1 and 2.

In the body of a request `p` is a path, `d` a value, `q` a query object and `t` its tag. Of a query
object `i` is what children are ordered by: `.key`, `.value`, `.priority` or a child path; without
it, by their priorities. `sp`, `sn` and `sin` are the value, the key and the inclusiveness of the
start, `ep`, `en` and `ein` those of the end, `l` is the limit and `vf` the side that it begins
from.

A long write is not parsed as a whole: its value is found in the message (`find_long_write`), and
parsed piece by piece while it is applied, as a large body of a request over HTTP is.

Errors are answered with a word of the protocol and a sentence: `status_of` has the one table.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final, TypeGuard

import attrs
import orjson
from twisted.logger import Logger
from twisted.python.failure import Failure

from treedbd.counting import HeldBytesRefused
from treedbd.database.requests import (
    ConditionFailed,
    DeadlinePassed,
    OutcomeInDoubt,
    PermissionDenied,
    QuotaExceeded,
    TooLarge,
    TooManyDisconnectWrites,
    TooManyEvents,
    Unavailable,
    UnknownDatabase,
)
from treedbd.http1.content import WaitingBytesRefused
from treedbd.limits import KIB
from treedbd.store.engine import CannotOpenStore, DamagedRow, DiskFull, StoreFailed
from treedbd.store.nodes import spell_numbers
from treedbd.tree.event import Event
from treedbd.tree.path import make_place, parse_child
from treedbd.tree.query import BY_KEY, BY_PRIORITY, BY_VALUE, Bound, Order, Query, Scalar
from treedbd.tree.types import Chunks, InvalidData, InvalidPath, InvalidQuery, Json, Path, Place
from treedbd.tree.value import canonical_number, compact, parse
from treedbd.web.auth.identity import AuthRequired, NotAdmin, ReadOnlyToken
from treedbd.web.auth.jwt import BadToken
from treedbd.web.auth.providers import ProviderUnavailable
from treedbd.web.rates import TooManyRequests
from treedbd.web.realtime.wire import LongMessage, OversizedMessage
from treedbd.web.request import EDGE_KEYS


class InvalidRequest(InvalidPath):
    """The request lacks a member, or has a member of the wrong type."""


class NotAnEnvelope(Exception):
    """The client has sent something that is not a message of the protocol."""


class UnknownAction(InvalidData):
    """The protocol does not have the action of the request."""

    def __init__(self, action: str) -> None:
        super().__init__(f"There is no action {action[:20]}.")


class LimitReached(Unavailable):
    """The connection has reached its limit of listens or disconnect writes."""


OK: Final = "ok"
VALUE_END: Final = b"}}}"
"""The end of a message, after the value in its body."""
ACKNOWLEDGEMENT: Final = b'{"t":"d","d":{"r":%d,"b":{"s":"ok","d":{}}}}'
"""The answer to a request with a number that has succeeded, and returns nothing."""
PONG: Final = b'{"t":"c","d":{"t":"o","d":null}}'

_VERSION: Final = "5"
_EVENT_ACTIONS: Final = {"put": b"d", "patch": b"m"}
_FIRST_NUMBER: Final = re.compile(rb'\A\{(?:"t":"d",)?"d":\{(?:"a":"\w{1,9}",)?"r":([0-9]+),')
_LAST_NUMBER: Final = re.compile(rb'[,{]"r":([0-9]+)(?:,"a":"\w{1,9}")?\}(?:,"t":"d")?\}\Z')
_HIGHEST_NUMBER: Final = 2**53


@attrs.frozen
class RealtimeRequest:
    """A request of a client: its number, its action, and its body as it was sent."""

    number: int
    action: str
    body: dict[str, Any]


@attrs.frozen
class Ping:
    """A keep-alive of a client, to be answered."""


@attrs.frozen
class Ignored:
    """A control message that needs no answer."""


def parse_message(text: bytes) -> RealtimeRequest | Ping | Ignored:
    """Return the request or the control in a message; raise `NotAnEnvelope`."""
    try:
        envelope = parse(text)
    except InvalidData:
        raise NotAnEnvelope from None
    content: Any = envelope.get("d") if isinstance(envelope, dict) else None
    if not isinstance(envelope, dict) or not isinstance(content, dict):
        raise NotAnEnvelope
    if envelope.get("t") == "c":
        return Ping() if content.get("t") == "p" else Ignored()
    if envelope.get("t") != "d":
        raise NotAnEnvelope
    number, action, body = content.get("r"), content.get("a"), content.get("b", {})
    if not is_number(number) or not isinstance(action, str):
        raise NotAnEnvelope
    return RealtimeRequest(number, action, body if isinstance(body, dict) else {})


def is_number(json: object) -> TypeGuard[int]:
    """Return whether a value is a number that a request may have."""
    return type(json) is int and 0 <= json <= _HIGHEST_NUMBER


def find_number(message: OversizedMessage) -> int | None:
    """Return the number of the request in a message that is too long, None if it is not found.

    Raises `NotAnEnvelope` for a number that no request may have.
    """
    found = _FIRST_NUMBER.search(message.first) or _LAST_NUMBER.search(message.last)
    if found is None:
        return None
    number = int(found[1])
    if not is_number(number):
        raise NotAnEnvelope
    return number


def print_hello(now_ms: int, host: str, session: str) -> bytes:
    """Print the first message of a connection; `host` is as the client addressed it."""
    hello: Json = {"ts": now_ms, "v": _VERSION, "h": host, "s": session}
    envelope: Json = {"t": "c", "d": {"t": "h", "d": hello}}
    return compact(envelope)


def print_answer(number: int, status: str, data: Json) -> bytes:
    """Print the answer to a request."""
    return b"".join((answer_start(number, status), _print(data), VALUE_END))


def answer_start(number: int, status: str = OK) -> bytes:
    """Return the answer to a request up to its data; `VALUE_END` follows them."""
    return b'{"t":"d","d":{"r":%d,"b":{"s":%b,"d":' % (number, compact(status))


def print_push(action: str, body: Json) -> bytes:
    """Print a message of the server that is not an answer."""
    envelope: Json = {"t": "d", "d": {"a": action, "b": body}}
    return _print(envelope)


def value_start(path: Path) -> bytes:
    """Return the message that a value was set, up to the value; `value_end` follows it."""
    return _event_start("put", path)


def value_end(tag: int | None) -> bytes:
    """Return what follows the value in a message to a listen; one without a query has no tag."""
    return VALUE_END if tag is None else b',"t":%d%b' % (tag, VALUE_END)


def print_event(path: Path, event: Event) -> Chunks:
    """Print an event at a watched path, in chunks, up to what `value_end` returns."""
    start = _event_start(event.kind, path + event.path)
    if event.printed_export is not None:
        return (start, *event.printed_export)
    return (start + _print(event.exported),)


def _print(json: Json) -> bytes:
    """Print JSON that may contain any numbers."""
    return spell_numbers(compact(json))


def _event_start(kind: str, path: Path) -> bytes:
    place = compact("/".join(path))
    return b'{"t":"d","d":{"a":"%b","b":{"p":%b,"d":' % (_EVENT_ACTIONS[kind], place)


_MISSING = object()


def place_of(body: dict[str, Any]) -> Place:
    """Return the place that `p` names, with or without a leading slash; raise `InvalidPath`."""
    text = body.get("p")
    if not isinstance(text, str):
        raise InvalidRequest("The path (p) must be a string.")
    return make_place([segment for segment in text.split("/") if segment])


def path_of(body: dict[str, Any]) -> Path:
    """Return the path of a node that `p` names; raise `InvalidPath`."""
    place = place_of(body)
    if place.is_priority:
        raise InvalidPath("A priority can only be set and removed here.")
    return place.path


def tag_of(body: dict[str, Any]) -> int | None:
    """Return the tag of a query; raise `InvalidPath`."""
    tag = body.get("t")
    if tag is not None and (type(tag) is not int or not 0 <= tag < 2**53):
        raise InvalidRequest("The tag (t) must be an integer.")
    return tag


def value_of(body: dict[str, Any]) -> Any:
    """Return the value `d`, which may be null; raise `InvalidPath` without one."""
    value = body.get("d", _MISSING)
    if value is _MISSING:
        raise InvalidRequest("The request needs a value (d).")
    return value


_ORDERS: Final = {".key": BY_KEY, ".value": BY_VALUE, ".priority": BY_PRIORITY}
_MEMBERS: Final = frozenset({"i", "sp", "sn", "sin", "ep", "en", "ein", "l", "vf"})
_HIGHEST_LIMIT: Final = 2**53


def parse_query_object(json: object) -> Query | None:
    """Return the query of a listen or a get, None if it selects everything, by priority.

    Raises `InvalidQuery`.
    """
    if json is None:
        return None
    if not isinstance(json, dict) or not json.keys() <= _MEMBERS:
        raise InvalidQuery("The query must be an object of i, sp, sn, sin, ep, en, ein, l and vf.")
    if not json:
        return None
    order = _parse_order(json.get("i", ".priority"))
    low = _parse_bound(json, "sp", "sn", "sin", order, is_start=True)
    high = _parse_bound(json, "ep", "en", "ein", order, is_start=False)
    if low is not None and low.is_inclusive and low == high:
        high = low  # rules know an exact query by that
    limit = _parse_limit(json.get("l"))
    side = json.get("vf", "l" if "sp" in json or "sn" in json else "r")
    if side not in ("l", "r"):
        raise InvalidQuery('The side of a limit (vf) must be "l" or "r".')
    first, last = (limit, None) if side == "l" else (None, limit)
    return Query(order=order, low=low, high=high, limit_to_first=first, limit_to_last=last)


def _parse_order(name: object) -> Order:
    if not isinstance(name, str):
        raise InvalidQuery("What a query is ordered by (i) must be a string.")
    if name in _ORDERS:
        return _ORDERS[name]
    try:
        return Order("child", parse_child(name))
    except InvalidPath as error:
        raise InvalidQuery(f"What a query is ordered by (i) is not a path: {error}") from None


def _parse_bound(
    json: dict[str, Any], value: str, key: str, inclusive: str, order: Order, *, is_start: bool
) -> Bound | None:
    if value not in json and key not in json:
        return None
    bound, name, is_inclusive = json.get(value), json.get(key), json.get(inclusive, True)
    if not isinstance(is_inclusive, bool):
        raise InvalidQuery(f"{inclusive} must be a boolean.")
    if not isinstance(name, str | None):
        raise InvalidQuery(f"{key} must be a key.")
    if order.kind == "key":
        return _parse_key_bound(value, bound, name, is_inclusive, is_start=is_start)
    if isinstance(bound, dict | list):
        raise InvalidQuery(f"{value} must be a string, a number, a boolean or null.")
    scalar: Scalar = bound
    if type(scalar) in (int, float):
        try:
            scalar = canonical_number(scalar)  # type: ignore[arg-type]  # it is a number
        except (ValueError, OverflowError):
            raise InvalidQuery(f"{value} is beyond the range of numbers.") from None
    if name in EDGE_KEYS:
        # Before or after all children with this value: all of them are in the range, or none.
        is_inclusive, name = EDGE_KEYS[name] is not is_start, None
    return Bound(scalar, name, is_inclusive)


def _parse_key_bound(
    member: str, value: object, name: str | None, is_inclusive: bool, *, is_start: bool
) -> Bound | None:
    """Return the bound of a query by key, whose value is a key."""
    if value is None and name is not None:
        value = name
    if not isinstance(value, str):
        raise InvalidQuery(f"{member} must be a key in a query by key.")
    if value in EDGE_KEYS:
        if EDGE_KEYS[value] is not is_start:
            return None
        raise InvalidQuery(f"{member} leaves nothing that the query could select.")
    return Bound(None, value, is_inclusive)


def _parse_limit(limit: object) -> int | None:
    if limit is None:
        return None
    if isinstance(limit, float) and limit.is_integer():
        limit = int(limit)
    if type(limit) is not int or limit < 1:
        raise InvalidQuery("The limit (l) must be an integer of at least 1.")
    return min(limit, _HIGHEST_LIMIT)


_SPACE: Final = rb"[ \t\r\n]*"
_COLON: Final = _SPACE + b":" + _SPACE
_COMMA: Final = _SPACE + b"," + _SPACE
_OPEN: Final = rb"\{" + _SPACE
_CLOSE: Final = _SPACE + rb"\}"
_SCALAR: Final = rb'(?:"(?:[^"\\]|\\.){0,32768}"|-?[0-9]{1,17}|null|true|false)'
_BODY_MEMBER: Final = rb'"[pht]"' + _COLON + _SCALAR
_REQUEST_MEMBER: Final = rb'(?:"r"%b[0-9]{1,17}|"a"%b"[a-z]{1,9}")' % (_COLON, _COLON)
_KIND: Final = rb'"t"%b"d"' % _COLON
# No member comes twice, so a search for the tail ends soon, wherever it begins.
_HEAD: Final = re.compile(
    _SPACE + _OPEN + rb"(?:%b%b)?" % (_KIND, _COMMA) + rb'"d"' + _COLON + _OPEN
    + rb"((?:%b%b){0,2})" % (_REQUEST_MEMBER, _COMMA) + rb'"b"' + _COLON + _OPEN
    + rb"((?:%b%b){0,3})" % (_BODY_MEMBER, _COMMA) + rb'"d"' + _COLON
)  # fmt: skip
_TAIL: Final = re.compile(
    rb"((?:%b%b){0,3})" % (_COMMA, _BODY_MEMBER) + _CLOSE
    + rb"((?:%b%b){0,2})" % (_COMMA, _REQUEST_MEMBER) + _CLOSE
    + rb"(?:%b%b)?" % (_COMMA, _KIND) + _CLOSE + _SPACE + rb"\Z"
)  # fmt: skip
_VALUE_END: Final = re.compile(rb'["\]}0-9el](?=[ \t\r\n]*[,}])')
_HEAD_BYTES: Final = 128 * KIB
_TAIL_BYTES: Final = 4096
"""Everything but the value must be in this many bytes at the ends of a message."""


@attrs.frozen
class LongWrite:
    """A request whose value is `message[start:end]`; its body has the other members only."""

    request: RealtimeRequest
    message: LongMessage
    start: int
    end: int

    @property
    def size(self) -> int:
        """The bytes of the value."""
        return self.end - self.start

    def pieces(self) -> Iterator[bytes]:
        """Yield the value."""
        return self.message.pieces(self.start, self.end)


def find_long_write(message: bytes | LongMessage) -> LongWrite | None:
    """Return the write that a message requests, None if it has another form than clients use.

    Each client prints the members in an order of its own, and the value is a member of the body: so
    what precedes the value and what follows it is recognised at both ends of the message. The part
    in between is refused when it is parsed, unless it is exactly one JSON value.
    """
    if isinstance(message, bytes):
        message = LongMessage((message,), len(message))
    head = _HEAD.match(message.read(0, _HEAD_BYTES))
    if head is None:
        return None
    last_at = max(head.end(), message.size - _TAIL_BYTES)
    last = message.read(last_at, message.size)
    tail = None
    for found in _VALUE_END.finditer(last):
        tail = _TAIL.match(last, found.end())
        if tail is not None:
            break
    if tail is None:
        return None
    outer, body = _members(head[1], tail[2]), _members(head[2], tail[1])
    number, action = outer.get("r"), outer.get("a")
    if not is_number(number) or not isinstance(action, str):
        return None
    request = RealtimeRequest(number, action, body)
    return LongWrite(request, message, head.end(), last_at + tail.start())


def as_long_write(request: RealtimeRequest) -> LongWrite:
    """Return a parsed write as one whose value is parsed when it is admitted.

    So a value with many members is never normalised at once, however a client has printed it.
    """
    body = dict(request.body)
    value = compact(value_of(body))
    del body["d"]
    message = LongMessage((value,), len(value))
    return LongWrite(attrs.evolve(request, body=body), message, 0, len(value))


def _members(first: bytes, second: bytes) -> dict[str, Any]:
    """Return members, of which each of the `first` has a comma after it, the others before."""
    joined = b",".join(filter(None, (first.rstrip(b", \t\r\n"), second.lstrip(b", \t\r\n"))))
    try:
        members: dict[str, Any] = orjson.loads(b"{%b}" % joined)
    except orjson.JSONDecodeError:
        return {}
    return members


PERMISSION_DENIED: Final = ("permission_denied", "Permission denied")
"""Clients recognise a denial by these words."""
DATA_STALE: Final = ("datastale", "The transaction is based on an old value.")
FAILURE: Final = "failure"
UNAVAILABLE: Final = "unavailable"
TOO_BIG: Final = "too_big"
INTERNAL: Final = (FAILURE, "An internal error occurred; it has been logged.")
EXPIRED: Final = ("expired_token", "The token has expired.")

_WORDS: Final[dict[type[BaseException], str]] = {
    InvalidData: FAILURE,
    InvalidPath: FAILURE,
    InvalidQuery: FAILURE,
    TooManyEvents: FAILURE,
    UnknownDatabase: FAILURE,
    TooLarge: TOO_BIG,
    AuthRequired: "invalid_token",
    NotAdmin: "invalid_token",
    ReadOnlyToken: PERMISSION_DENIED[0],
    QuotaExceeded: UNAVAILABLE,
    TooManyDisconnectWrites: UNAVAILABLE,
    TooManyRequests: UNAVAILABLE,
    WaitingBytesRefused: UNAVAILABLE,
    HeldBytesRefused: UNAVAILABLE,
    ProviderUnavailable: UNAVAILABLE,
    Unavailable: UNAVAILABLE,
    DeadlinePassed: UNAVAILABLE,
    OutcomeInDoubt: UNAVAILABLE,
}
_STORE_ERRORS: Final = (StoreFailed, DiskFull, CannotOpenStore, DamagedRow)

_log = Logger()


def status_of(error: BaseException | None) -> tuple[str, str]:
    """Return the word and the text of the answer to a request that has raised an error.

    An unexpected error is logged.
    """
    if isinstance(error, PermissionDenied):
        return PERMISSION_DENIED
    if isinstance(error, ConditionFailed):
        return DATA_STALE
    if isinstance(error, BadToken):
        return ("expired_token" if error.reason == "expired" else "invalid_token"), str(error)
    if isinstance(error, _STORE_ERRORS):
        _log.error("A store has failed: {error}", error=error)
        return UNAVAILABLE, "The store cannot be used at present."
    for kind in type(error).__mro__:
        if kind in _WORDS:
            return _WORDS[kind], str(error)
    _log.failure("A request of the real-time protocol has failed.", Failure(error))
    return INTERNAL
