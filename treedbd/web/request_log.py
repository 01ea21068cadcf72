"""The access log and the warnings of slow requests: what is said of requests that are over.

An entry has the fields of `FIELDS`, and a line in the combined format of Apache and nginx if that
is what the log shall have. What all requests with one head have in common is found once
(`HeadMemory.logged`). Nothing here shows a token, a secret or a query: paths are `shown_path`, and
whose a token is, is known from its verification.

Errors of the server and slow requests are always logged. Of the others, errors of clients too, the
`sample` decides by the id of the request, so that all who know the id decide alike.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from time import perf_counter
from typing import Final, Literal, TypeAlias
from zlib import crc32

import attrs
from twisted.logger import Logger
from twisted.web.http import SWITCHING

from treedbd.errors import LineBudget, in_one_line
from treedbd.http1.adapter import size_of_body
from treedbd.http1.connection import NO_LOGGING, RequestLogging
from treedbd.http1.request import Request, hide_tokens, shown_path
from treedbd.names import DatabaseName
from treedbd.web.auth.identity import Identity
from treedbd.web.combined_format import format_combined
from treedbd.web.request import Question
from treedbd.web.response import address_of
from treedbd.web.slow_requests import describe_slow

FIELDS: Final = (
    *("request_id", "method", "path", "status", "ms", "sent", "received", "uid", "admin"),
    *("project", "database", "client", "protocol", "tls", "user_agent", "referer", "stream"),
    *("disconnected", "cut_off"),
)
"""The names of all fields that an entry may have."""
CLIENT_CLOSED: Final = 499
"""The status of a request whose client went before its response began; nginx logs the same."""
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
"""Returns whose a token of a project is, if it has been verified."""
FindName: TypeAlias = Callable[[Request], DatabaseName]
"""Returns which database a request addresses; raises ValueError or LookupError if none."""


@attrs.frozen
class RequestLogOptions:
    """What is logged: lines in a `form`, a fraction of them, and requests of `slow_s` or more.

    0 seconds mean that no request is slow.
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
    """Logs requests that were answered, and those whose clients went before."""

    def __init__(
        self,
        options: RequestLogOptions,
        find_identity: FindIdentity,
        find_name: FindName,
        seconds: Callable[[], float],
    ) -> None:
        """Bound the warnings by the clock `seconds`."""
        self._options = options
        self._find_identity = find_identity
        self._find_name = find_name
        self._is_on = options.form != "none"
        self._is_combined = options.form == "combined"
        self._slow_lines = LineBudget(seconds)

    def logging(self) -> RequestLogging:
        """Return what is called for which requests."""
        slow_s = self._options.slow_s
        if self._is_on:
            return RequestLogging(self.answered, self.lost, sends_ids=True)
        if slow_s:
            return RequestLogging(self.answered, self.lost, least_s=slow_s)
        return NO_LOGGING

    def answered(self, request: Request) -> None:
        """Log a request that has been answered, or a stream that the server has ended."""
        self._record(request, request.code, has_reply=True)

    def lost(self, request: Request) -> None:
        """Log a request whose client went before it was answered, or ended a stream."""
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
            "received": _bytes_received(request),
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
                name = self._find_name(request)
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
        return _Head(method, path, fields, name, token, is_stream)


def _identity_kept(request: Request) -> Identity | None:
    kept = request.head_memory.identity
    return kept if isinstance(kept, Identity) else None


def _add_caller(fields: dict[str, object], identity: Identity) -> None:
    uid = (identity.auth or {}).get("uid")
    if isinstance(uid, str):
        fields["uid"] = _cut(in_one_line(uid), MAX_UID)
    if identity.is_admin:
        fields["admin"] = True


def _bytes_received(request: Request) -> int:
    """Return the bytes of the body of a request, as far as it was received."""
    length = request.headers.get(b"content-length")
    if length is not None:
        return int(length[0])
    return size_of_body(request) if b"transfer-encoding" in request.headers else 0


def _user_agent(request: Request) -> str:
    return _cut(in_one_line(hide_tokens(_first(request, b"user-agent"))), MAX_FIELD)


def _referer(request: Request) -> str:
    """Return the page that a request is from, without a query, a token or a password."""
    raw = _first(request, b"referer").encode("utf-8", "surrogateescape")
    return _cut(in_one_line(shown_path(_USER_INFO.sub(rb"\1", raw))), MAX_FIELD)


def _first(request: Request, name: bytes) -> str:
    values = request.headers.get(name)
    return values[0][: 2 * MAX_PATH].decode("utf-8", "backslashreplace") if values else ""


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[:limit] + "…"
