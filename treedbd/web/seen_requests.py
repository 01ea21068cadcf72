"""Requests as an admin sees them: the last ones of a project, recorded while an admin looks.

A `RequestRecorder` records the requests of the projects whose admins have asked for them within the
last `WATCHED_S`, or follow them. Only then do connections report what they have answered, and are
sessions of the real-time protocol replaced by observed ones: at other times a request costs
nothing here.

A `SeenRequest` refers to its parsed request until it is printed. Of many that come in a second few
are ever printed, because a ring keeps the last `KEPT` of a project. Nothing here shows a token:
paths are `shown_path`, and in queries, bodies and claims what may be a token is hidden.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias
from urllib.parse import quote, unquote

import attrs
import orjson
from twisted.web.http import OK, SWITCHING

from treedbd.http1.registry import RequestLogging
from treedbd.http1.request import (
    HIDDEN,
    IHttp1Request,
    Request,
    hide_secrets,
    hide_signatures,
    hide_tokens,
    shown_path,
    size_of_body,
)
from treedbd.limits import KIB
from treedbd.names import DatabaseName
from treedbd.tree.path import format_path
from treedbd.tree.types import PRIORITY, InvalidQuery, Json
from treedbd.tree.value import compact
from treedbd.web.auth.identity import ANONYMOUS, Identity
from treedbd.web.feeds import Recorder
from treedbd.web.request import DataRequest, Parameters, Question, find_single_parameter
from treedbd.web.request_log import CLIENT_CLOSED, DENIED, bytes_received
from treedbd.web.response import address_of

if TYPE_CHECKING:
    from treedbd.web.context import WebContext

KEPT: Final = 200
"""Requests of a project that are kept."""
WATCHED_S: Final = 60.0
"""For so many seconds the requests of a project are recorded after an admin has asked for them."""
MAX_WATCHED: Final = 32
"""Projects whose requests are recorded."""
MAX_SHOWN: Final = 2000
"""Characters of a path or a query that are shown."""
MAX_AGENT: Final = 300
"""Bytes of the name of a client that are shown."""
DENIED_BYTES: Final = 4 * KIB
"""Bytes of JSON of a denied body, and of the `auth` that was denied; more is left out."""
LARGE_QUESTION: Final = 4 * KIB
"""Bytes of a parsed request beyond which it is printed at once, and not kept."""

INSPECTING: Final = b"/.inspect/"
"""In the paths of requests that only look: they are not shown."""

Kind: TypeAlias = Literal["request", "stream", "socket"]

_SOCKET: Final = b"/.ws"
_CONSOLE: Final = b"/.console"
_SAME: Final = (
    *("id", "database", "method", "kind", "status", "code", "ms", "uid", "address"),
    *("sent", "received", "query"),
)
"""Members that have the same name as JSON."""
_STATUS: Final = re.compile(r"[1-5](?:[0-9]{2}|xx)|denied")
_NUMBER: Final = re.compile(r"[0-9]{1,9}(?:\.[0-9]{1,9})?")
_TOKENS: Final = ("auth", "access_token")
_LEFT_OUT: Final = frozenset({"ns"})
_PLAIN: Final = "\"'$/:,!*()[]{}@<>.~;?"
"""Characters that are not escaped in a query, which is shown to people."""
_ENCODED_HIDDEN: Final = quote(HIDDEN)


def format_time(seconds: float) -> str:
    """Return a time since 1970 as JSON shows it, to the millisecond."""
    shown = datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")
    return shown.removesuffix("+00:00") + "Z"


def show_query(parameters: Parameters) -> str:
    """Return the parameters of a request, with tokens hidden, as they could be sent again."""
    shown = [
        f"{name}={HIDDEN if name in _TOKENS else quote(_hide(text), safe=_PLAIN)}"
        for name, text in parameters.items()
        if name not in _LEFT_OUT
    ]
    return cut("&".join(shown).replace(_ENCODED_HIDDEN, HIDDEN))


def _hide(text: str) -> str:
    """Return the text of a parameter, which may be JSON, without what may be a token."""
    if "\\" not in text:
        return hide_secrets(text)
    try:
        return hide_in_strings(text, hide_secrets)
    except ValueError:
        return HIDDEN


_STRING: Final = re.compile(r'"(?:[^"\\]|\\.)*+"', re.DOTALL)


def hide_in_strings(text: str, hide: Callable[[str], str]) -> str:
    """Return JSON text whose strings, and the names of members, are hidden after decoding.

    As text, a token could have escapes in it. Raises `ValueError` if the text is not valid JSON.
    """
    orjson.loads(text)
    return _STRING.sub(lambda found: compact(hide(orjson.loads(found[0]))).decode(), text)


_ASCII: Final = "".join(map(chr, range(128)))
_ENCODED: Final = re.compile(r"(?:%[89A-F][0-9A-F])+")
"""Characters beyond ASCII, encoded as `quote` does."""


def cut(text: str) -> str:
    """Return text that is short enough to be shown."""
    return text if len(text) <= MAX_SHOWN else text[:MAX_SHOWN] + "…"


def show_path(source: DataRequest | str) -> str:
    """Return the path of a request, as admins see it."""
    if isinstance(source, str):
        return source
    path = source.admin_path
    if path is None:
        keys, is_priority = source.place
        text = format_path((*keys, PRIORITY) if is_priority else keys)
        path = quote(text, safe=_ASCII).encode()  # the log of requests is of ASCII, this is not
    shown = hide_signatures(shown_path(path[: 2 * MAX_SHOWN]))
    return cut(_ENCODED.sub(lambda found: unquote(found[0]), shown))


@attrs.define(eq=False, kw_only=True)
class SeenRequest:
    """One request: answered, or opened if it is a stream or a socket.

    Attributes:
        at: when, in seconds since 1970.
        database: the label of the database.
        source: the path, or the request that it is made of when it is needed.
        query: the parameters as they are shown; None if they are those of the source.
        denied: of a denied request what was denied: `auth`, and `body` if it is short.

    """

    at: float
    id: str
    database: str
    method: str
    kind: Kind
    status: int
    code: str | None
    ms: float
    uid: str | None
    is_admin: bool
    address: str
    sent: int = 0
    received: int = 0
    source: DataRequest | str
    query: str | None = None
    denied: dict[str, Json] = attrs.field(factory=dict)
    _printed: bytes = b""

    @property
    def path(self) -> str:
        """Its path, as admins see it."""
        if not isinstance(self.source, str):
            if self.query is None:
                self.query = show_query(self.source.parameters)
            self.source = show_path(self.source)
        return self.source

    def printed(self) -> bytes:
        """Return it as JSON; it is printed once."""
        if not self._printed:
            self._printed = compact(self._show())
        return self._printed

    def _show(self) -> Json:
        path = self.path
        return {
            "id": self.id,
            "time": format_time(self.at),
            "database": self.database,
            "method": self.method,
            "path": path,
            "kind": self.kind,
            "status": self.status,
            "code": self.code,
            "ms": round(self.ms, 1),
            "uid": self.uid,
            "admin": self.is_admin,
            "address": self.address,
            "sent": self.sent,
            "received": self.received,
            "query": self.query or "",
            **self.denied,
        }

    @classmethod
    def parse(cls, shown: dict[str, Any]) -> SeenRequest:
        """Return what another process shows."""
        return cls(
            at=datetime.fromisoformat(shown["time"]).timestamp(),
            is_admin=shown["admin"],
            source=shown["path"],
            denied={name: shown[name] for name in ("auth", "body") if name in shown},
            **{name: shown[name] for name in _SAME},
        )


@attrs.frozen
class RequestFilter:
    """Which requests are shown: those that have all that is not None.

    Attributes:
        path: a path; those below it count too.
        status: a status, a class of them such as `4xx`, or `denied`, whatever its status.
        uid: a user's id; empty for callers without one.
        slower_ms: the fewest milliseconds.
        database: the label of a database.

    """

    path: str | None = None
    status: str | None = None
    uid: str | None = None
    slower_ms: float | None = None
    database: str | None = None

    @classmethod
    def parse(cls, uri: bytes) -> RequestFilter:
        """Return the filter in the query of a target; raise `InvalidQuery`."""
        path, status, slower = (
            find_single_parameter(uri, "path"),
            find_single_parameter(uri, "status"),
            find_single_parameter(uri, "slower"),
        )
        if status is not None and not _STATUS.fullmatch(status):
            raise InvalidQuery(
                "status must be a status such as 403, a class such as 4xx, or denied."
            )
        if slower is not None and not _NUMBER.fullmatch(slower):
            raise InvalidQuery("slower must be a number of milliseconds.")
        if path is not None:
            path = format_path(tuple(key for key in path.split("/") if key))
        return cls(
            path=None if path == "/" else path,
            status=status,
            uid=find_single_parameter(uri, "uid"),
            slower_ms=None if slower is None else float(slower),
            database=find_single_parameter(uri, "database"),
        )

    def shows(self, seen: SeenRequest) -> bool:
        """Return whether a request is shown."""
        if self.database is not None and seen.database != self.database:
            return False
        if self.uid is not None and (seen.uid or "") != self.uid:
            return False
        if self.slower_ms is not None and seen.ms < self.slower_ms:
            return False
        if self.status is not None and self.status not in (
            str(seen.status),
            f"{seen.status // 100}xx",
            "denied" if seen.code == DENIED else "",
        ):
            return False
        path = self.path
        return path is None or seen.path == path or seen.path.startswith(path + "/")


class RequestRecorder(Recorder[str, SeenRequest]):
    """Records the requests of projects whose admins look at them."""

    kept = KEPT
    watched_s = WATCHED_S
    most_watched = MAX_WATCHED
    too_many = "The requests of too many projects are followed."

    def __init__(self, context: WebContext, switch: Callable[[], None]) -> None:
        """`switch` is called when `is_recording` has changed."""
        super().__init__(context.clock, switch)
        self._wall_clock = context.wall_clock
        self._recall = context.authenticator.recall
        self._parser = context.parser
        self._secret = context.settings.admin_token

    # What connections report.

    def logging(self, base: RequestLogging) -> RequestLogging:
        """Return the callbacks that record requests, and log them as `base` does."""

        def answered(request: Request) -> None:
            if perf_counter() - request.began >= base.least_s:
                base.answered(request)
            self._answered(request)

        def lost(request: Request) -> None:
            if base.lost is not None:
                base.lost(request)
            if not request.startedWriting:
                self._record(request, CLIENT_CLOSED)

        return RequestLogging(answered, lost, sends_ids=base.sends_ids)

    def note_refusal(self, request: IHttp1Request, _: BaseException, code: str) -> None:
        """Note why a request is refused."""
        if isinstance(request, Request):
            request.refused_as = code

    def opened(self, request: IHttp1Request) -> None:
        """Record a stream that has begun."""
        if isinstance(request, Request) and request.startedWriting and request.channel is not None:
            self._record(request, request.code)

    def _answered(self, request: Request) -> None:
        question = request.head_memory.question
        is_open = request.code == SWITCHING or (
            request.code == OK
            and isinstance(question, Question)
            and question.wanted.accepts_events
            and request.method != b"HEAD"
        )
        if not is_open:  # else it was recorded when it was opened
            self._record(request, request.code)

    def _record(self, request: Request, status: int) -> None:
        question = request.head_memory.question
        if not isinstance(question, Question):
            self._record_malformed(request, status)
            return
        watched, wanted = self._watched.get(question.name.project), question.wanted
        if watched is None or (wanted.admin_path and INSPECTING in wanted.admin_path):
            return
        identity = self._identify(request, question)
        seen = self._make(request, question.name, status, identity, wanted)
        if question.size > LARGE_QUESTION:
            seen.printed()
        watched.add(seen)

    def _record_malformed(self, request: Request, status: int) -> None:
        """Record a request that could not be parsed, but names a database."""
        if status < 400 or INSPECTING in request.path or _CONSOLE in request.path:
            return
        try:
            name = self._parser.locate(request).name
        except (ValueError, LookupError):
            return
        watched = self._watched.get(name.project)
        if watched is not None:
            watched.add(self._make(request, name, status, None, None))

    def _make(
        self,
        request: Request,
        name: DatabaseName,
        status: int,
        identity: Identity | None,
        wanted: DataRequest | None,
    ) -> SeenRequest:
        code, method, source = request.refused_as, request.method, wanted
        kind: Kind = "request"
        if wanted is not None:
            kind, method = ("stream" if wanted.accepts_events else kind), wanted.method
        elif request.path == _SOCKET:
            kind = "socket"
        seen = SeenRequest(
            at=self._wall_clock(),
            id=request.request_id,
            database=name.label,
            method=method.decode("latin-1"),
            kind=kind,
            status=status,
            code=code,
            ms=(perf_counter() - request.began) * 1000,
            uid=None if identity is None else uid_of(identity),
            is_admin=identity is not None and identity.is_admin,
            address=address_of(request),
            sent=request.sentLength,
            received=bytes_received(request),
            source=cut(shown_path(request.path)) if source is None else source,
            denied=self._show_denied(request, identity) if code == DENIED else {},
        )
        if self._secret is not None:
            seen.source, seen.query = self.hide(seen.path), self.hide(seen.query or "")
        return seen

    def _identify(self, request: Request, question: Question) -> Identity | None:
        """Return the caller as the rules see it, None if its token is not valid."""
        wanted = question.wanted
        if question.identity is not None and request.code < 400:  # as for most of many
            return question.identity
        identity: Identity | None = wanted.identity
        if identity is None:
            kept = request.head_memory.identity  # of a stream
            if isinstance(kept, Identity):
                return kept
            if wanted.token is None:
                return ANONYMOUS
            identity = self._recall(question.name.project, wanted.token)
        if identity is not None and wanted.override is not None:
            return attrs.evolve(identity, is_admin=False, auth=wanted.override.auth)
        return identity

    def _show_denied(self, request: Request, identity: Identity | None) -> dict[str, Json]:
        shown: dict[str, Json] = {}
        if identity is not None:
            self.add_short(shown, "auth", identity.auth)
        is_coded = b"content-encoding" in request.headers
        if not is_coded and 0 < size_of_body(request) <= DENIED_BYTES:
            request.content.seek(0)
            self.add_text(shown, "body", request.content.read())
        return shown

    def add_short(self, shown: dict[str, Json], name: str, json: Json) -> None:
        """Add JSON as a member, with tokens hidden, if it is short."""
        with suppress(TypeError):  # it has more levels than can be printed
            self.add_text(shown, name, compact(json))

    def add_text(self, shown: dict[str, Json], name: str, text: bytes) -> None:
        """Add JSON text as a member, with tokens hidden, if it is short and valid."""
        if len(text) <= DENIED_BYTES:
            with suppress(ValueError):
                strings_hidden = hide_in_strings(text.decode(), self.hide)
                shown[name] = orjson.loads(self._hide_secret(strings_hidden))

    def hide(self, text: str) -> str:
        """Return text without tokens, nor the token of an admin that has no recognisable form."""
        return self._hide_secret(hide_secrets(text))

    def _hide_secret(self, text: str) -> str:
        secret = self._secret
        if secret is None:
            return text
        is_encoded = secret not in text and secret in unquote(text)
        return HIDDEN if is_encoded else text.replace(secret, HIDDEN)

    # What sessions report.

    def watches(self, name: DatabaseName) -> bool:
        """Return whether the requests for a database are recorded."""
        return name.project in self._watched

    def record_message(self, seen: SeenRequest, name: DatabaseName) -> None:
        """Record a request that a session has answered."""
        watched = self._watched.get(name.project)
        if watched is not None:
            watched.add(seen)


def shown_agent(request: IHttp1Request) -> str:
    """Return what a client calls itself, without a token."""
    values = request.headers.get(b"user-agent") or [b""]
    return hide_tokens(values[0][:MAX_AGENT].decode("utf-8", "backslashreplace"))


def uid_of(identity: Identity) -> str | None:
    """Return the uid that the rules see, None without one."""
    uid = (identity.auth or {}).get("uid")
    return cut(uid) if isinstance(uid, str) else None
