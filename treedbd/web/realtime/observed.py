"""Observed sessions: those whose requests are recorded for an admin who looks at them.

Nothing in `RealtimeSession` says that it may be observed, so that a message costs nothing for it.
Instead an open session becomes an `ObservedSession`, with the same attributes, when the recording
begins, and is a `RealtimeSession` again at its end.

A request is recorded with its answer. Those of listens and gets contain the value and do not pass
the session; they are recorded once what they request has been read.
"""

from __future__ import annotations

from collections.abc import Coroutine
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final

from treedbd.database.slices import in_slices
from treedbd.http1.senders import UpgradedConnection
from treedbd.tree.path import format_path
from treedbd.tree.types import Json
from treedbd.tree.value import compact
from treedbd.web.listeners import SocketRegistry
from treedbd.web.realtime.messages import OK, RealtimeRequest
from treedbd.web.realtime.session import RealtimeSession
from treedbd.web.response import address_of
from treedbd.web.seen_requests import (
    DENIED,
    MAX_SHOWN,
    RequestRecorder,
    SeenRequest,
    cut,
    uid_of,
)

if TYPE_CHECKING:
    from twisted.internet.interfaces import IReactorTime

METHODS: Final = {
    "q": "LISTEN",
    "n": "UNLISTEN",
    "g": "GET",
    "p": "PUT",
    "m": "PATCH",
    "o": "ONDISCONNECT-PUT",
    "om": "ONDISCONNECT-PATCH",
    "oc": "ONDISCONNECT-CANCEL",
    "auth": "AUTH",
    "gauth": "AUTH",
    "unauth": "UNAUTH",
}
"""What is recorded as the method of a request, by its action; others are not recorded."""
STATUS: Final = {
    OK: 200,
    "permission_denied": 403,
    "datastale": 412,
    "invalid_token": 401,
    "expired_token": 401,
    "too_big": 413,
    "unavailable": 503,
}
"""The status of HTTP that is recorded for the word of an answer."""
MALFORMED: Final = 400
OPENED: Final = 101
MAX_ASKED: Final = 1000
"""Requests of a session that wait for their answers; of more, the oldest are not recorded."""
SWITCHED_AT_ONCE: Final = 512
"""Sessions that become observed in one turn of the reactor."""
_READS: Final = frozenset({"q", "g"})


class ObservedSession(RealtimeSession):
    """A session whose requests are recorded.

    Attributes:
        recorder: records them.
        asked: those that wait for their answers, by number, each with the time when it came.

    """

    recorder: RequestRecorder
    asked: dict[int, tuple[RealtimeRequest, float]]

    def start(self, connection: UpgradedConnection, hello: bytes) -> None:
        """Begin, and record that."""
        super().start(connection, hello)
        self._record(_OPENING, 0.0, "GET", OPENED, None)

    def tick(self, now: float, wall_now: float) -> None:
        """Do what is due, and record what has been read."""
        super().tick(now, wall_now)
        self._note_read()

    def answer(self, number: int, status: str, data: Json) -> None:
        """Answer a request, and record it."""
        super().answer(number, status, data)
        self._note_answered(number, status)

    def acknowledge(self, number: int) -> None:
        """Answer a request that has succeeded, and record it."""
        super().acknowledge(number)
        self._note_answered(number, OK)

    def _act(self, request: RealtimeRequest) -> None:
        self._note_asked(request)
        super()._act(request)
        self._note_read()

    def _block(self, request: RealtimeRequest, work: Coroutine[Any, Any, None]) -> None:
        self._note_asked(request)
        super()._block(request, work)

    def _note_asked(self, request: RealtimeRequest) -> None:
        if request.action in METHODS and self.recorder.watches(self.name):
            self.asked.setdefault(request.number, (request, perf_counter()))
            if len(self.asked) > MAX_ASKED:
                del self.asked[next(iter(self.asked))]

    def _note_read(self) -> None:
        """Record the listens and gets that have been read: they were not refused."""
        if not self.asked or self.is_over or not self._listens.pending.is_none:
            return
        read = [number for number, (each, _) in self.asked.items() if each.action in _READS]
        for number in read:
            self._note_answered(number, OK)

    def _note_answered(self, number: int, status: str) -> None:
        request, began = self.asked.pop(number, (None, 0.0))
        if request is not None:
            ms = (perf_counter() - began) * 1000
            code = None if status == OK else status
            self._record(request, ms, METHODS[request.action], STATUS.get(status, MALFORMED), code)

    def _record(
        self, request: RealtimeRequest, ms: float, method: str, status: int, code: str | None
    ) -> None:
        recorder, opening, body = self.recorder, self.request, request.body
        denied: dict[str, Json] = {}
        if code == DENIED:
            recorder.add_short(denied, "auth", self.caller.auth)
            if "d" in body:
                recorder.add_short(denied, "body", body["d"])
        recorder.record_message(
            SeenRequest(
                at=self.context.now_ms() / 1000,
                id=f"{opening.request_id}/{request.number}",
                database=self.name.label,
                method=method,
                kind="socket",
                status=status,
                code=code,
                ms=ms,
                uid=uid_of(self.identity),
                is_admin=self.caller.is_admin,
                address=address_of(opening),
                source=recorder.hide(_path_of(request)),
                query=recorder.hide(_query_of(request)),
                denied=denied,
            ),
            self.name,
        )


_OPENING: Final = RealtimeRequest(0, "", {"p": "/.ws"})


def _path_of(request: RealtimeRequest) -> str:
    """Return the path of a request as requests over HTTP have it."""
    path = request.body.get("p")
    if not isinstance(path, str):
        return "/"
    return cut(format_path(tuple(key for key in path[: 2 * MAX_SHOWN].split("/") if key)))


def _query_of(request: RealtimeRequest) -> str:
    query = request.body.get("q")
    return cut(compact(query).decode()) if isinstance(query, dict) else ""


class SessionObserver:
    """Makes the sessions of a service observed ones, and ordinary ones again."""

    def __init__(
        self, sockets: SocketRegistry, recorder: RequestRecorder, clock: IReactorTime
    ) -> None:
        """Let `recorder` record the requests of the sessions of `sockets`."""
        self._sockets, self._recorder, self._clock = sockets, recorder, clock

    def begin(self) -> None:
        """Observe all sessions: open ones soon, further ones from their beginning."""
        self._sockets.observe = self._switch
        self._switch_all()

    def end(self) -> None:
        """Observe none."""
        self._sockets.observe = None
        self._switch_all()

    def _switch_all(self) -> None:
        in_slices(self._clock, self._sockets.listeners, SWITCHED_AT_ONCE, self._switch)

    def _switch(self, session: RealtimeSession) -> None:
        """Give a session the class that it has from now on."""
        if self._sockets.observe is None:  # whatever it was when the slices began
            session.__class__ = RealtimeSession
            vars(session).pop("recorder", None)
            vars(session).pop("asked", None)
        elif not isinstance(session, ObservedSession):
            session.__class__ = ObservedSession
            vars(session).update(recorder=self._recorder, asked={})
