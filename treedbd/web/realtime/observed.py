"""Observed sessions: those whose requests are recorded for an admin who looks at them.

What is recorded are requests (`seen_requests`) and the operations of a profile (`profile`). Nothing
in `RealtimeSession` says that it may be observed, so that a message costs nothing for it. Instead
an open session becomes an `ObservedSession`, with the same attributes, when the recording begins,
and is a `RealtimeSession` again at its end.

A request is recorded with its answer. Those of listens and gets contain the value and do not pass
the session; they are recorded once what they request has been read. The operations of a profile
have the bytes of that value, so while a database is profiled, listens and gets are of classes that
record them.
"""

from __future__ import annotations

from collections.abc import Coroutine, Generator
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final

import attrs

from treedbd.database.slices import Slices, in_slices
from treedbd.database.watchers import Notification
from treedbd.http1.content import FrameReader
from treedbd.http1.senders import UpgradedConnection
from treedbd.tree.path import format_path
from treedbd.tree.query import Query
from treedbd.tree.types import InvalidPath, InvalidQuery, Json, Path
from treedbd.tree.value import compact
from treedbd.web.listeners import SocketRegistry
from treedbd.web.profile import AT_END, BROADCAST, CONNECT, DISCONNECT, LISTEN, UNLISTEN
from treedbd.web.reading import Rendering
from treedbd.web.realtime.listens import CONTENTS, Get, Listen
from treedbd.web.realtime.messages import (
    OK,
    InvalidRequest,
    LongWrite,
    RealtimeRequest,
    parse_query_object,
    path_of,
)
from treedbd.web.realtime.session import RealtimeSession
from treedbd.web.request_log import DENIED
from treedbd.web.response import address_of
from treedbd.web.seen_requests import (
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
_READS: Final = {"q": LISTEN, "g": "realtime-read"}
_OPERATIONS: Final = {
    "p": "realtime-write",
    "m": "realtime-update",
    "o": "on-disconnect-put",
    "om": "on-disconnect-update",
    "oc": "on-disconnect-cancel",
}
"""The operation of a profile, by the action of a request that reads, and of others."""
_TRANSACTION: Final = "realtime-transaction"


@attrs.define(eq=False)
class Asked:
    """A request that waits for its answer, and when it came, in seconds of `perf_counter`.

    `size` are the bytes of a long value, which is not in the request.
    """

    request: RealtimeRequest
    began: float = attrs.field(factory=perf_counter)
    size: int | None = None


class ObservedSession(RealtimeSession):
    """A session whose requests are recorded.

    Attributes:
        recorder: records them.
        asked: those that wait for their answers, by number.
        begun: when listens and gets came that may not have been read, by number.

    """

    recorder: RequestRecorder
    asked: dict[int, Asked]
    begun: dict[int, float]

    def start(self, connection: UpgradedConnection, hello: bytes) -> None:
        """Begin, and record that."""
        super().start(connection, hello)
        self._record(_OPENING, 0.0, "GET", OPENED, None)
        profiler, address = self.context.registry.profiler, address_of(self.request)
        profiler.note(CONNECT, self.name, address=address)

    def connection_ended(self) -> None:
        """End, and record that, and how long its last writes take."""
        profiler, name = self.context.registry.profiler, self.name
        if not self.is_over and profiler.watches(name):
            profiler.note(DISCONNECT, name, address=address_of(self.request))
            if self.writes_at_end:
                began = perf_counter()
                self.ended.addCallback(
                    lambda _: profiler.note(AT_END, name, ms=(perf_counter() - began) * 1000)
                )
        super().connection_ended()

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

    async def _write_long(self, long: LongWrite) -> None:
        # The recording may have ended since the request came.
        asked = vars(self).get("asked", {}).get(long.request.number)
        if asked is not None:
            asked.size = long.size
        await super()._write_long(long)

    def _note_asked(self, request: RealtimeRequest) -> None:
        is_profiled = self.context.registry.profiler.watches(self.name)
        if request.action in METHODS and (is_profiled or self.recorder.watches(self.name)):
            asked = self.asked.setdefault(request.number, Asked(request))
            if len(self.asked) > MAX_ASKED:
                del self.asked[next(iter(self.asked))]
            if is_profiled and request.action in _READS:
                self.begun[request.number] = asked.began
                if len(self.begun) > MAX_ASKED:
                    del self.begun[next(iter(self.begun))]

    def _note_read(self) -> None:
        """Record the listens and gets that have been read: they were not refused."""
        if not self.asked or self.is_over or not self._listens.pending.is_none:
            return
        read = [number for number, each in self.asked.items() if each.request.action in _READS]
        for number in read:
            self._note_answered(number, OK)

    def _note_answered(self, number: int, status: str) -> None:
        asked = self.asked.pop(number, None)
        if asked is None:
            return
        request, ms = asked.request, (perf_counter() - asked.began) * 1000
        if self.recorder.watches(self.name):
            code = None if status == OK else status
            self._record(request, ms, METHODS[request.action], STATUS.get(status, MALFORMED), code)
        if self.context.registry.profiler.watches(self.name):
            self._note_operation(asked, ms, status)

    def _note_operation(self, asked: Asked, ms: float, status: str) -> None:
        """Add a request to the profile: a write, or a read that was refused."""
        body, action = asked.request.body, asked.request.action
        more: dict[str, Any] = {
            "allowed": status != DENIED,
            "status": STATUS.get(status, MALFORMED),
            "address": address_of(self.request),
        }
        size: int | None
        if action in _READS and status != OK:  # else it is recorded with its value
            self.begun.pop(asked.request.number, None)
            operation, size, more["query"] = _READS[action], 0, _query_object_of(body)
        elif action in _OPERATIONS:
            is_transaction = action == "p" and "h" in body
            operation = _TRANSACTION if is_transaction else _OPERATIONS[action]
            size = _size_of(body.get("d")) if asked.size is None else asked.size
        else:
            return
        self.context.registry.profiler.note(
            operation, self.name, _keys_of(body), ms, None if action == "oc" else size, **more
        )

    def note_shown(self, number: int | None, operation: str, read: Read, size: int) -> None:
        """Add what was read to the profile; `number` is None if it is shown once more."""
        profiler, name = self.context.registry.profiler, self.name
        if number is None:
            profiler.note(BROADCAST, name, read.path, 0.0, size, clientsUpdated=1)
            return
        now = perf_counter()
        ms = (now - self.begun.pop(number, now)) * 1000
        address = address_of(self.request)
        profiler.note(
            operation, name, read.path, ms, size, allowed=True, query=read.query, address=address
        )

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


def _size_of(value: Json) -> int | None:
    """Return the bytes of a value, 0 for a removal; None for one that cannot be printed."""
    try:
        return 0 if value is None else len(compact(value))
    except TypeError:  # it has too many levels, and was refused
        return None


def _keys_of(body: dict[str, Any]) -> Path:
    """Return the path of a request, an empty one if it is not valid."""
    try:
        return path_of(body)
    except (InvalidPath, InvalidRequest):
        return ()


def _query_object_of(body: dict[str, Any]) -> Query | None:
    """Return the query of a request, None if it is not valid."""
    try:
        return parse_query_object(body.get("q"))
    except (InvalidQuery, InvalidRequest):
        return None


def _query_of(request: RealtimeRequest) -> str:
    query = request.body.get("q")
    return cut(compact(query).decode()) if isinstance(query, dict) else ""


@attrs.frozen
class Read:
    """What a listen or a get shows."""

    path: Path
    query: Query | None


class ProfiledListen(Listen):
    """A listen whose beginning, events and end are recorded.

    It has no slots of its own, so that an open listen can become one, and an ordinary one again.
    """

    __slots__ = ()

    def _show(self, rendered: bytes | Rendering, sequence: int) -> list[FrameReader]:
        number, session = self._number, self._session
        readers = super()._show(rendered, sequence)
        answer = 0 if number is None else 1
        size = 0
        if len(readers) > answer:  # else the client has the value
            size = len(rendered) if isinstance(rendered, bytes) else rendered.size
        if isinstance(session, ObservedSession):
            session.note_shown(number, LISTEN, Read(self.path, self.query), size)
        return readers

    def _send(self, notification: Notification) -> None:
        began = perf_counter()
        super()._send(notification)
        of_tags = notification.shared[CONTENTS]
        contents = of_tags.get(self._tag) or next(iter(of_tags.values()))
        size = sum(each.size for each in contents)
        profiler, name = self._session.context.registry.profiler, self._session.name
        profiler.note_sent(name, self.path, notification, size, began)

    def _refuse(self, error: BaseException | None) -> None:
        if self._number is not None:
            self._is_begun = False  # so that its end is not recorded
        super()._refuse(error)

    def close(self) -> None:
        """End, and record that if it has begun."""
        session = self._session
        if self._held_bytes and self._is_begun:
            address = address_of(session.request)
            session.context.registry.profiler.note(
                UNLISTEN, session.name, self.path, address=address
            )
        super().close()


class ProfiledGet(Get):
    """A get that is recorded."""

    def _answer(self, rendered: bytes | Rendering) -> list[FrameReader]:
        readers, session = super()._answer(rendered), self._session
        size = len(rendered) if isinstance(rendered, bytes) else rendered.size
        if isinstance(session, ObservedSession):
            read = Read(self._place.path, self._query)
            session.note_shown(self._number, _READS["g"], read, size)
        return readers


class SessionObserver:
    """Makes the sessions of a service observed ones, and ordinary ones again."""

    def __init__(
        self,
        sockets: SocketRegistry,
        recorder: RequestRecorder,
        clock: IReactorTime,
        slices: Slices,
    ) -> None:
        """Let `recorder` record the requests of the sessions of `sockets`."""
        self._sockets, self._recorder = sockets, recorder
        self._clock, self._slices = clock, slices

    def switch(self, *, is_on: bool) -> None:
        """Observe all sessions: open ones soon, further ones from their beginning; or none."""
        if is_on is (self._sockets.observe is None):
            self._sockets.observe = self._switch if is_on else None
            in_slices(self._clock, self._sockets.listeners, SWITCHED_AT_ONCE, self._switch)

    def switch_listens(self, *, is_on: bool) -> None:
        """Record what all listens and gets send, of open ones soon; or of none."""
        self._sockets.listen_kinds = (ProfiledListen, ProfiledGet) if is_on else (Listen, Get)
        self._slices.start(self._switch_listens())

    def _switch_listens(self) -> Generator[None, None, None]:
        for session in self._sockets.listeners:
            for listen in session.listens:
                listen.__class__ = self._sockets.listen_kinds[0]
                yield

    def _switch(self, session: RealtimeSession) -> None:
        """Give a session the class that it has from now on."""
        if self._sockets.observe is None:  # whatever it was when the slices began
            session.__class__ = RealtimeSession
            for name in ("recorder", "asked", "begun"):
                vars(session).pop(name, None)
        elif not isinstance(session, ObservedSession):
            session.__class__ = ObservedSession
            vars(session).update(recorder=self._recorder, asked={}, begun={})
