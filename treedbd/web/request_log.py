"""The log of finished requests: access log, warnings of slow requests, spans of traced ones.

An entry of the access log has the fields of `FIELDS`, or is a line in the combined format of Apache
and nginx. What all requests with one head have in common is computed once (`HeadMemory.logged`).
Nothing here shows a token, a secret or a query: paths are `shown_path`, and callers are known from
the verification of their tokens. Server errors and slow requests are always logged. Of the others,
client errors included, the `sample` decides by the id of the request, so that all programs that
know the id decide alike. A slow request is logged with where its time went, as far as that is
known, and with a remedy (`describe_slow`).

In development mode each request has a line with method, path, status, milliseconds and caller
(`DevelopmentLog`). Warnings precede it: for a parameter that the interface does not have, and for a
denied request with the rules that denied it. Neither shows a token or a query. Lines are dropped
while the output is not read: a full pipe would stop the daemon.

In a service that traces, each sampled request has a span of OpenTelemetry (`TracedRequest`).
"""

from __future__ import annotations

import re
import select
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from datetime import UTC, datetime
from functools import lru_cache
from time import perf_counter
from typing import Any, Final, Literal, TypeAlias
from zlib import crc32

import attrs
import orjson
from twisted.logger import Logger
from twisted.python.failure import Failure
from twisted.web.http import BAD_REQUEST, OK, SWITCHING

from treedbd.database.database import Database
from treedbd.database.requests import PermissionDenied, TooLarge
from treedbd.errors import LineBudget, find_similar, in_one_line
from treedbd.http1.connection import Http1Connection
from treedbd.http1.parser import Http1Parser, decode_leniently
from treedbd.http1.registry import NO_LOGGING, RequestLogging
from treedbd.http1.request import (
    HIDDEN,
    IHttp1Request,
    Request,
    hide_tokens,
    shown_path,
    size_of_body,
)
from treedbd.names import DatabaseName
from treedbd.rules.ruleset import format_explanation
from treedbd.traces import Tracer
from treedbd.tree.types import InvalidData
from treedbd.web.auth.identity import Identity
from treedbd.web.auth.jwt import BadToken, parse
from treedbd.web.origins import CONSOLE_PATH
from treedbd.web.request import KNOWN, METHODS, READING, DataRequest, Question, RequestParser
from treedbd.web.response import Response, address_of
from treedbd.web.write import FREE_BYTES

FIELDS: Final = (
    *("request_id", "method", "path", "status", "ms", "sent", "received", "uid", "admin"),
    *("project", "database", "client", "protocol", "tls", "user_agent", "referer", "stream"),
    *("disconnected", "cut_off"),
)
"""The names of all fields that an entry may have."""
CLIENT_CLOSED: Final = 499
"""The status of a request whose client disconnected before the response; as in nginx."""
DENIED: Final = "permission_denied"
"""The code of a request that the rules deny."""
MAX_PATH: Final = 2000
MAX_FIELD: Final = 300
"""Characters of other texts that a client chose."""
MAX_UID: Final = 256
_SERVER_ERROR: Final = 500
_log: Final = Logger("request")
_HASHES: Final = 2**32
_USER_INFO: Final = re.compile(rb"^([a-z][a-z0-9+.-]*://)[^/?#]*@", re.IGNORECASE)

AccessLogForm: TypeAlias = Literal["none", "fields", "combined"]
FindIdentity: TypeAlias = Callable[[str, str], Identity | None]
"""Returns the identity of a token of a project, if it was verified before."""


@attrs.frozen
class RequestLogOptions:
    """What is logged: lines in a `form`, a fraction of them, and requests of `slow_s` or more.

    With `slow_s` 0 no request is slow.
    """

    form: AccessLogForm = "none"
    sample: float = 1.0
    slow_s: float = 0.0


@attrs.frozen
class _Head:
    """What requests with one head have in common."""

    method: str
    path: str
    fields: dict[str, object]
    name: DatabaseName | None
    token: str | None
    is_stream: bool


class RequestLog:
    """Logs answered requests, and those whose clients disconnected before."""

    def __init__(
        self,
        options: RequestLogOptions,
        find_identity: FindIdentity,
        parser: RequestParser,
        seconds: Callable[[], float],
    ) -> None:
        """Bound the warnings by the clock `seconds`."""
        self._options = options
        self._find_identity = find_identity
        self._parser = parser
        self._is_on = options.form != "none"
        self._is_combined = options.form == "combined"
        self._slow_lines = LineBudget(seconds)

    def logging(self) -> RequestLogging:
        """Return the callbacks that log requests, with the condition for each."""
        slow_s = self._options.slow_s
        if self._is_on:
            return RequestLogging(self.answered, self.lost, sends_ids=True)
        if slow_s:
            return RequestLogging(self.answered, self.lost, least_s=slow_s)
        return NO_LOGGING

    def answered(self, request: Request) -> None:
        """Log an answered request, or a stream that the server has ended."""
        self._record(request, request.code, has_reply=True)

    def lost(self, request: Request) -> None:
        """Log a request whose client disconnected before the answer, or ended a stream."""
        has_reply = bool(request.startedWriting)
        self._record(request, request.code if has_reply else CLIENT_CLOSED, has_reply=has_reply)

    def _record(self, request: Request, status: int, *, has_reply: bool) -> None:
        seconds = perf_counter() - request.began
        slow_s = self._options.slow_s
        may_be_slow = slow_s > 0 and seconds >= slow_s
        if not self._is_on and not may_be_slow:
            return
        head = self._head_of(request)
        is_stream = head.is_stream and has_reply and status == 200
        is_slow = may_be_slow and not is_stream and status != SWITCHING
        if not is_slow and not (self._is_on and self._is_sampled(request, status)):
            return
        fields = self._fields_of(request, head, status, seconds, is_stream=is_stream)
        if self._is_on:
            self._write(fields)
        if is_slow:
            self._warn(request, fields, seconds)

    def _fields_of(
        self, request: Request, head: _Head, status: int, seconds: float, *, is_stream: bool
    ) -> dict[str, object]:
        fields: dict[str, object] = {
            "request_id": request.request_id,
            "method": head.method,
            "path": head.path,
            "status": status,
            "ms": round(seconds * 1000, 1),
            "sent": request.sentLength,
            "received": bytes_received(request),
        }
        if head.token is not None and head.name is not None:
            identity = self._find_identity(head.name.project, head.token)
            if identity is None and is_stream:  # its token has expired meanwhile
                identity = _identity_kept(request)
            if identity is not None:
                _add_caller(fields, identity)
        fields.update(head.fields)
        if is_stream:
            fields["stream"] = True
        if request.channel is not None:  # it has not been answered
            fields["disconnected"] = True
        if request.cut_off is not None:
            fields["cut_off"] = request.cut_off
        return fields

    def _is_sampled(self, request: Request, status: int) -> bool:
        sample = self._options.sample
        if sample >= 1 or status >= _SERVER_ERROR:
            return True
        return crc32(request.request_id.encode()) < sample * _HASHES

    def _write(self, fields: dict[str, object]) -> None:
        ending = ", cut off" if "cut_off" in fields else ""
        _log.info(
            "{treedb_message}",
            treedb_message=f"{fields['method']} {fields['path']} {fields['status']}{ending}",
            treedb_fields=fields,
            treedb_line=format_combined(fields) if self._is_combined else "",
        )

    def _warn(self, request: Request, fields: dict[str, object], seconds: float) -> None:
        note = self._slow_lines.take()
        if note is None:
            return
        _log.warn(
            "A request was slow: {method} {path} {status} took {s:.1f} s, {where}{note}",
            method=fields["method"],
            path=fields["path"],
            status=fields["status"],
            s=seconds,
            where=describe_slow(request, seconds),
            note=note,
            treedb_fields={
                name: fields[name]
                for name in ("request_id", "method", "path", "status", "ms", "project", "database")
                if name in fields
            },
        )

    def _head_of(self, request: Request) -> _Head:
        memory = request.head_memory
        if isinstance(memory.logged, _Head):
            return memory.logged
        head = self._make_head(request)
        if memory.question is not None:
            memory.logged = head
        return head

    def _make_head(self, request: Request) -> _Head:
        question = request.head_memory.question
        name, token, is_stream = None, None, False
        if isinstance(question, Question):
            name, token = question.name, question.wanted.token
            is_stream = question.wanted.accepts_events
        else:  # it could not be parsed
            try:
                name = self._parser.locate(request).name
            except (ValueError, LookupError):
                name = None
        fields: dict[str, object] = {}
        if name is not None:
            fields["project"], fields["database"] = name.project, name.database
        fields["client"] = address_of(request) or "-"
        fields["protocol"] = request.clientproto.decode("latin-1")
        fields["tls"] = request.isSecure()
        sent = (("user_agent", _user_agent(request)), ("referer", _referer(request)))
        fields.update({key: shown for key, shown in sent if shown})
        method = in_one_line(request.method.decode("latin-1"))
        path = _cut(in_one_line(request.shown_path), MAX_PATH)
        return _Head(
            method=method, path=path, fields=fields, name=name, token=token, is_stream=is_stream
        )


def _identity_kept(request: Request) -> Identity | None:
    kept = request.head_memory.identity
    return kept if isinstance(kept, Identity) else None


def _add_caller(fields: dict[str, object], identity: Identity) -> None:
    uid = (identity.auth or {}).get("uid")
    if isinstance(uid, str):
        fields["uid"] = _cut(in_one_line(uid), MAX_UID)
    if identity.is_admin:
        fields["admin"] = True


def bytes_received(request: Request) -> int:
    """Return the bytes of the body of a request, as far as it was received."""
    length = request.headers.get(b"content-length")
    if length is not None:
        return int(length[0])
    return size_of_body(request) if b"transfer-encoding" in request.headers else 0


def _user_agent(request: Request) -> str:
    return _cut(in_one_line(hide_tokens(_first(request, b"user-agent"))), MAX_FIELD)


def _referer(request: Request) -> str:
    """Return the page that sent a request, without a query, a token or a password."""
    raw = _first(request, b"referer").encode("utf-8", "surrogateescape")
    return _cut(in_one_line(shown_path(_USER_INFO.sub(rb"\1", raw))), MAX_FIELD)


def _first(request: Request, name: bytes) -> str:
    values = request.headers.get(name)
    return values[0][: 2 * MAX_PATH].decode("utf-8", "backslashreplace") if values else ""


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[:limit] + "…"


_ESCAPED: Final = re.compile(rb'["\\]|[^\x20-\x7e]')
_MONTHS: Final = "JanFebMarAprMayJunJulAugSepOctNovDec"


def format_combined(fields: Mapping[str, object], now: float | None = None) -> str:
    r"""Return the line of a request with the `fields` of the access log, without its end.

    It is the combined log format of Apache and nginx, which many programs read.

        host ident authuser [time] "request line" status bytes "referer" "user agent"

    What is absent is `-`. In quotes, and in the name of a user, quotation marks and backslashes are
    escaped by a backslash; in all fields control characters and all that is not ASCII as `\xhh`.
    The request line has the path without a query.
    """
    at = _format_time(int(time.time() if now is None else now))
    user = _escape(fields.get("uid")).replace(" ", "\\x20")
    request = f"{fields['method']} {fields['path']} {fields['protocol']}"
    return (
        f"{_escape(fields['client'])} - {user} [{at}] "
        f'"{_escape(request)}" {fields["status"]} {fields["sent"] or "-"} '
        f'"{_escape(fields.get("referer"))}" "{_escape(fields.get("user_agent"))}"'
    )


def _escape(value: object) -> str:
    if not value:
        return "-"
    return _ESCAPED.sub(_escape_byte, str(value).encode("utf-8", "backslashreplace")).decode()


def _escape_byte(found: re.Match[bytes]) -> bytes:
    byte = found[0]
    return b"\\" + byte if byte in b'"\\' else b"\\x%02x" % byte[0]


@lru_cache(maxsize=2)
def _format_time(seconds: int) -> str:
    at = datetime.fromtimestamp(seconds, UTC)
    # The names of months are English whatever the locale.
    return f"{at.day:02d}/{_MONTHS[3 * at.month - 3 : 3 * at.month]}/{at:%Y:%H:%M:%S} +0000"


_SMALLER_READ: Final = "Read less at once: a deeper path, shallow=true, or limitToFirst."
_QUERY_BY_INDEX: Final = (
    'A query is fast with an ".indexOn" in the rules for what it orders by, and a limit; see the '
    "log for queries without one."
)
_INSTEAD_OF_WHERE: Final = (
    "where= looks through all children of its path: query by an index instead."
)
_SMALLER_WRITE: Final = (
    "Writes to a database are applied one after the other, and wait for the disk: look for large "
    "writes, rules that read much, or a slow disk at this time."
)
_SLOW_READER: Final = "The client reads slowly, or reads much: let it read less at once."
_CLIENT_GONE: Final = "The client did not wait for it."


def describe_slow(request: Request, seconds: float) -> str:
    """Return where the `seconds` of a request went, and a sentence with a remedy."""
    until_reply = _until_reply(request)
    if until_reply is None:
        return f"all of it before the response began. {_remedy(request)}"
    sending = max(0.0, seconds - until_reply)
    where = f"{until_reply:.1f} s before the response began and {sending:.1f} s to send it"
    if sending > until_reply:
        return f"{where}. {_SLOW_READER}"
    return f"{where}. {_remedy(request)}"


def _until_reply(request: Request) -> float | None:
    """Return the seconds until the response began; None if it did not, or was sent at once."""
    began: float | None = request.reply_began
    return None if began is None else began - request.began


def _remedy(request: Request) -> str:
    question = request.head_memory.question
    if not isinstance(question, Question):
        return "Look for a busy machine at this time." if request.startedWriting else _CLIENT_GONE
    if question.wanted.method not in READING:
        return _SMALLER_WRITE
    parameters = question.wanted.parameters
    if "where" in parameters:
        return _INSTEAD_OF_WHERE
    return _QUERY_BY_INDEX if "orderBy" in parameters else _SMALLER_READ


TRACEPARENT: Final = b"traceparent"
DATA_ROUTE: Final = "/{path}.json"
"""The route of all places in the tree."""

_OTHER_METHOD: Final = "_OTHER"


class TracedRequest(Request):
    """One request and its reply, with a span if it is sampled.

    Names and attributes are those of the semantic conventions of OpenTelemetry for HTTP servers. Of
    the target they contain only what a log may show. For requests that are not sampled nothing is
    kept.

    Attributes:
        tracer: decides which requests are sampled.
        reserved: the paths that are routes of their own.

    """

    tracer: Tracer
    reserved: frozenset[bytes]

    def __init__(self, connection: Http1Connection, parser: Http1Parser) -> None:
        """Represent the request that `parser` has just completed."""
        super().__init__(connection, parser)
        values = self.headers.get(TRACEPARENT, ())
        self.trace = self.tracer.begin(
            values[0] if len(values) == 1 else None, is_trusted=self.came_by_trusted_proxy
        )

    def connectionLost(self, reason: Failure) -> None:
        """Note that the client is gone."""
        super().connectionLost(reason)
        self._end_trace()

    def _end(self) -> None:
        try:
            self._end_trace()
        finally:
            super()._end()  # which may answer what the client has sent after this request

    def _end_trace(self) -> None:
        trace, self.trace = self.trace, None
        if trace is not None:
            method = self.method.decode("ascii") if self.method in METHODS else _OTHER_METHOD
            route = self.path.decode("ascii") if self.path in self.reserved else DATA_ROUTE
            is_answered = bool(self.startedWriting)
            attributes = {**self._describe(), "http.request.method": method, "http.route": route}
            if is_answered:
                attributes["http.response.status_code"] = int(self.code)
            failed = not is_answered or self.code >= 500
            trace.end(f"{method} {route}", attributes, failed=failed)

    def _describe(self) -> dict[str, str | int | bool]:
        described: dict[str, str | int | bool] = {
            "url.scheme": "https" if self.isSecure() else "http",
            "url.path": self.shown_path,
            "network.protocol.version": self.clientproto.decode("ascii").removeprefix("HTTP/"),
        }
        if address := address_of(self):
            described["client.address"] = address
        question = self.head_memory.question
        if isinstance(question, Question):
            described["treedb.project"] = question.name.project
            described["treedb.database"] = question.name.database
        request_id = getattr(self, "request_id", None)
        if request_id is not None:
            described["treedb.request_id"] = str(request_id)
        return described


def traced(
    kind: type[Request], tracer: Tracer, reserved: Iterable[tuple[bytes, ...]]
) -> type[Request]:
    """Return the requests of a kind that have spans of `tracer`.

    `reserved` are the paths that are routes of their own, as segments.
    """
    paths = frozenset(b"/" + b"/".join(segments) for segments in reserved)
    bases = (TracedRequest,) if kind is Request else (TracedRequest, kind)
    return type(f"Traced{kind.__name__}", bases, {"tracer": tracer, "reserved": paths})


MAX_SHOWN: Final = 60
"""Characters of a name that a client chose."""
_NAME: Final = re.compile(r"[A-Za-z_.-]{1,30}")
"""A name that may be a misspelt parameter; others may be a token: `?TOKEN`, `?auth%3DTOKEN`."""
MAX_PARAMETERS: Final = 64
"""Parameters of a request that are examined."""
MAX_UNKNOWN: Final = 4
"""Unknown parameters of a request that are named."""
_FEED: Final = b"/.settings/events.json"
"""It lasts as streams do, but is answered at once or after a wait."""
_OTHER_PARAMETERS: Final = frozenset(
    {
        *(b"/.health", b"/.ws", b"/.lp", b"/.inspect/requests.json", b"/.settings/audit.json"),
        *(_FEED, b"/.settings/webhooks.json", b"/.settings/webhooks/dead.json"),
    }
)
"""Paths whose requests have parameters of their own."""
_ENDED: Final = {OK: "stream ended after", SWITCHING: "WebSocket closed after"}
"""How the line of a stream or WebSocket begins at its end, by its status."""
_STANDARD_OUTPUT: Final = 1

Explain: TypeAlias = Callable[[IHttp1Request, DataRequest, Database], Awaitable[Response | None]]
"""Handles a request for an explanation, as the handler of its method does."""


class DevelopmentLog:
    """Logs the requests of development mode."""

    def __init__(self, handlers: Mapping[bytes, Explain], token: str | None = None) -> None:
        """Explain by `handlers`; `token` is an admin's, None if it is not secret."""
        self._token = token
        self._handlers = handlers
        self._output = select.poll()
        self._output.register(_STANDARD_OUTPUT, select.POLLOUT)
        self._dropped = 0

    def record(self, request: Request) -> None:
        """Log a request that was answered or cut off, or a stream that the server has ended.

        Files of the console are left out.
        """
        if request.channel is not None and request.cut_off is None:
            return  # the client disconnected, which is not an error
        if request.path.startswith(CONSOLE_PATH) and request.code < BAD_REQUEST:
            return  # one visit loads dozens of files
        if not self._is_read():
            self._dropped += 1
            return
        if self._dropped:
            _log.warn("{n} lines were not logged: the output was not read.", n=self._dropped)
            self._dropped = 0
        wanted = _wanted_of(request)
        for name in _unknown_parameters(request):
            _log.warn("{sentence}", sentence=_describe_unknown(name))
        is_stream = request.code == SWITCHING or (
            request.code == OK and _asks_for_stream(request, wanted)
        )
        cut_off = f"{request.code} cut off: {request.cut_off}," if request.cut_off else request.code
        _log.info(
            "{method} {path} {status} {ms}{caller}",
            method=in_one_line(request.method.decode("latin-1")),
            path=self._show(request.shown_path),
            status=_ENDED.get(request.code, "") if is_stream else cut_off,
            ms=_duration(perf_counter() - request.began),
            caller=_end(_caller_of(wanted, request.code) if request.code != SWITCHING else ""),
        )

    def stream_opened(self, request: IHttp1Request) -> None:
        """Log that a stream has begun, if the request opened one."""
        wanted = _wanted_of(request)
        if _asks_for_stream(request, wanted):
            self._log_opened(request, "stream", _caller_of(wanted, OK))

    def socket_opened(self, request: IHttp1Request) -> None:
        """Log that a WebSocket is open, if the request opened one."""
        if getattr(request, "code", OK) == SWITCHING:
            self._log_opened(request, "WebSocket", "")

    def _log_opened(self, request: IHttp1Request, what: str, caller: str) -> None:
        if self._is_read():
            path: Any = getattr(request, "shown_path", "")
            shown = self._show(path)
            _log.info("GET {path} {what} opened{end}", path=shown, what=what, end=_end(caller))

    async def explain(
        self, request: IHttp1Request, wanted: DataRequest, database: Database, error: Exception
    ) -> None:
        """Log which rules denied a request, if `error` is a denial."""
        if not isinstance(error, PermissionDenied) or wanted.wants_explanation:
            return
        if size_of_body(request) > FREE_BYTES or not self._is_read():
            return
        asked = attrs.evolve(wanted, wants_explanation=True, explains_denial=True, print="compact")
        try:
            response = await self._handlers[wanted.method](request, asked, database)
            self._log_denial(response)
        except (InvalidData, TooLarge) as bad:  # a caller without any right is refused before
            reason = in_one_line(str(bad))
            _log.warn("denied, whatever the body is, and it is an error: {reason}", reason=reason)
        except Exception:  # the denial is answered nevertheless
            _log.failure("A denial could not be explained.")

    def _log_denial(self, response: Response | None) -> None:
        if response is None or not isinstance(response.body, bytes):
            return
        verdict = orjson.loads(response.body)
        if not verdict["allowed"]:
            first, *rest = format_explanation(verdict)
            lines = "; ".join(map(str.strip, rest))
            _log.warn("{text}", text=in_one_line(f"{first} {lines}"))

    def _show(self, path: str) -> str:
        """Return a path without the token of an admin, which has no recognisable form."""
        return in_one_line(path if self._token is None else path.replace(self._token, HIDDEN))

    def _is_read(self) -> bool:
        """Return whether a line can be written without blocking."""
        ready = self._output.poll(0)
        return bool(ready)


def _wanted_of(request: Any) -> DataRequest | None:
    question = request.head_memory.question
    return question.wanted if isinstance(question, Question) else None


def _asks_for_stream(request: IHttp1Request, wanted: DataRequest | None) -> bool:
    is_feed = request.uri.partition(b"?")[0] == _FEED
    return wanted is not None and wanted.accepts_events and not is_feed


def _unknown_parameters(request: IHttp1Request) -> list[str]:
    path, _, query = request.uri.partition(b"?")
    if path in _OTHER_PARAMETERS:
        return []
    names = (part.partition(b"=")[0] for part in query.split(b"&", MAX_PARAMETERS))
    found = (decode_leniently(name).decode(errors="replace") for name in names if name)
    return [name for name in found if name not in KNOWN][:MAX_UNKNOWN]


def _describe_unknown(name: str) -> str:
    if not _NAME.fullmatch(name):
        return "A parameter is ignored whose name is not shown, because it may be a token."
    close = find_similar(name, KNOWN)
    hint = f" (did you mean {close}?)" if close else ""
    return f"The interface has no parameter {name}{hint}: it is ignored."


def _duration(seconds: float) -> str:
    return f"{seconds * 1000:.1f} ms" if seconds < 10 else f"{seconds:.0f} s"


def _end(caller: str) -> str:
    """Return the end of a line; the user of a WebSocket is known only later, and not shown."""
    return f" {caller}" if caller else ""


def _caller_of(wanted: DataRequest | None, status: int) -> str:
    """Return the sender of a request, by its token, which was verified unless the status is 401."""
    if wanted is None or wanted.token is None:
        return "anonymous"
    if wanted.override is not None:
        return "admin, with another auth"
    if status == 401:
        return "with a token"
    try:
        claims = parse(wanted.token).claims
    except BadToken:
        return "admin"  # the token of development mode, which is not a JWT
    if claims.get("admin") is True:
        return "admin"
    uid = claims.get("uid", claims.get("sub"))
    return f"uid {in_one_line(uid)[:MAX_SHOWN]}" if isinstance(uid, str) else "with a token"
