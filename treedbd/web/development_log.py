"""The log of development mode: a line for each request, and what its sender may have overlooked.

A line has method, path, status, milliseconds and caller. Warnings precede it: for a parameter that
the interface does not have, and for a denied request with the rules that denied it. Neither shows a
token or a query. Lines are dropped while the output is not read: a full pipe would stop the daemon.
"""

from __future__ import annotations

import difflib
import re
import select
from collections.abc import Awaitable, Callable, Mapping
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import attrs
import orjson
from twisted.logger import Logger
from twisted.web.http import OK, SWITCHING

from treedbd.database.database import Database
from treedbd.database.requests import PermissionDenied, TooLarge
from treedbd.errors import in_one_line
from treedbd.http1.parser import decode_leniently
from treedbd.http1.request import HIDDEN, IHttp1Request, Request, size_of_body
from treedbd.rules.ruleset import format_explanation
from treedbd.tree.types import InvalidData
from treedbd.web.auth.jwt import BadToken, parse
from treedbd.web.request import KNOWN, DataRequest, Question
from treedbd.web.response import Response
from treedbd.web.write import FREE_BYTES

if TYPE_CHECKING:
    from treedbd.config.settings import Settings

MAX_SHOWN: Final = 60
"""Characters of a name that a client chose."""
_NAME: Final = re.compile(r"[A-Za-z_.-]{1,30}")
"""What a misspelt parameter looks like; all else may be a token: `?TOKEN`, `?auth%3DTOKEN`."""
MAX_PARAMETERS: Final = 64
"""Parameters of a request that are looked at."""
MAX_UNKNOWN: Final = 4
"""Unknown parameters of a request that are named."""
_OTHER_PARAMETERS: Final = frozenset({b"/.ws", b"/.lp"})
"""Paths whose requests have parameters of another protocol."""
_ENDED: Final = {OK: "stream ended after", SWITCHING: "WebSocket closed after"}
"""What is said of a request that has lasted, by its status."""
_STANDARD_OUTPUT: Final = 1
_BY_LOWER_CASE: Final = {name.lower(): name for name in KNOWN}

_log = Logger("request")

Explain: TypeAlias = Callable[[IHttp1Request, DataRequest, Database], Awaitable[Response | None]]
"""Handles a request that wants an explanation, as the handler of its method does."""


class DevelopmentLog:
    """Logs the requests of development mode."""

    def __init__(self, handlers: Mapping[bytes, Explain], token: str | None = None) -> None:
        """`handlers` handle the methods of data; `token` is an admin's, None if all know it."""
        self._token = token
        self._handlers = handlers
        self._output = select.poll()
        self._output.register(_STANDARD_OUTPUT, select.POLLOUT)
        self._dropped = 0

    def record(self, request: Request) -> None:
        """Log a request that was answered or cut off, or a stream that the server has ended."""
        if request.channel is not None and request.cut_off is None:
            return  # its client went, as it may
        if not self._is_read():
            self._dropped += 1
            return
        if self._dropped:
            _log.warn("{n} lines were not logged: nobody read them.", n=self._dropped)
            self._dropped = 0
        wanted = _wanted_of(request)
        for name in _unknown_parameters(request):
            _log.warn("{sentence}", sentence=_describe_unknown(name))
        is_stream = request.code == SWITCHING or (
            request.code == OK and wanted is not None and wanted.accepts_events
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
        """Log that a stream has begun, if it has."""
        wanted = _wanted_of(request)
        if wanted is not None and wanted.accepts_events:
            self._log_opened(request, "stream", _caller_of(wanted, OK))

    def socket_opened(self, request: IHttp1Request) -> None:
        """Log that a WebSocket has been opened, if it has."""
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
        """Log which rules denied a request; `error` is why it is refused."""
        if not isinstance(error, PermissionDenied) or wanted.wants_explanation:
            return
        if size_of_body(request) > FREE_BYTES or not self._is_read():
            return
        asked = attrs.evolve(wanted, wants_explanation=True, explains_denial=True, print="compact")
        try:
            response = await self._handlers[wanted.method](request, asked, database)
            self._log_denial(response)
        except (InvalidData, TooLarge) as bad:  # who may write nothing is refused before that
            reason = in_one_line(str(bad))
            _log.warn("denied, whatever the body is, and it is an error: {reason}", reason=reason)
        except Exception:  # the denial itself is answered all the same
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
        """Return a path without the token of an admin, which has no form to be known by."""
        return in_one_line(path if self._token is None else path.replace(self._token, HIDDEN))

    def _is_read(self) -> bool:
        """Return whether a line can be written without waiting."""
        ready = self._output.poll(0)
        return bool(ready)


def make_development_log(
    settings: Settings, handlers: Mapping[bytes, Explain]
) -> DevelopmentLog | None:
    """Return what logs the requests, None if nothing does."""
    return DevelopmentLog(handlers, settings.admin_token) if settings.logs_requests else None


def _wanted_of(request: Any) -> DataRequest | None:
    question = request.head_memory.question
    return question.wanted if isinstance(question, Question) else None


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
    close = _BY_LOWER_CASE.get(name.lower()) or next(
        iter(difflib.get_close_matches(name, KNOWN, 1)), None
    )
    hint = f" (did you mean {close}?)" if close else ""
    return f"The interface has no parameter {name}{hint}: it is ignored."


def _duration(seconds: float) -> str:
    return f"{seconds * 1000:.1f} ms" if seconds < 10 else f"{seconds:.0f} s"


def _end(caller: str) -> str:
    """Return the end of a line; who uses a WebSocket is known only later, and not named."""
    return f" {caller}" if caller else ""


def _caller_of(wanted: DataRequest | None, status: int) -> str:
    """Return who sent a request, by a token that was verified if the request was not refused."""
    if wanted is None or wanted.token is None:
        return "anonymous"
    if wanted.override is not None:
        return "admin, with another auth"
    if status == 401:
        return "with a token"
    try:
        claims = parse(wanted.token).claims
    except BadToken:
        return "admin"  # that of development mode, which is not a JWT
    if claims.get("admin") is True:
        return "admin"
    uid = claims.get("uid", claims.get("sub"))
    return f"uid {in_one_line(uid)[:MAX_SHOWN]}" if isinstance(uid, str) else "with a token"
