"""The live profile of a database: each operation as it comes, `/.settings/profile.json`.

An *operation* is a request for data, a stream or a listen that begins or ends, a message to all who
listen, or a connection of an SDK. It is sent as JSON, in the form that the profiler of Firebase
reads: the names below, `path` as keys, `millis`, `bytes`, `allowed`, `timestamp` in milliseconds
since 1970. There is no value and no token in it, and long keys are cut.

A `Profiler` records the operations of the databases that are profiled. Only then do connections
report what they have answered, are sessions observed (`realtime/observed`), and are streams and
listens of classes that report what they send: at other times nothing is paid. An operation is
printed when it is recorded, so what is kept has a bound whatever clients send.

What one write sends to all who listen is one operation, `listener-broadcast`: what is sent is added
up for `GATHERED_S`, by the place that has changed and the number of the write.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final

import attrs
import orjson
from twisted.web.http import OK

from treedbd.counting import Counting
from treedbd.database.catalog import Catalog
from treedbd.database.requests import UnknownDatabase
from treedbd.database.watchers import Notification
from treedbd.http1.content import ContentReader
from treedbd.http1.registry import RequestLogging
from treedbd.http1.request import IHttp1Request, Request, hide_secrets
from treedbd.limits import KIB, MIB
from treedbd.names import DatabaseName
from treedbd.tree.event import Position
from treedbd.tree.query import Query
from treedbd.tree.types import InvalidQuery, Path
from treedbd.web.auth.identity import Identity
from treedbd.web.feeds import Feed, Recorder
from treedbd.web.reading import Rendering
from treedbd.web.request import DataRequest, Question, index_of
from treedbd.web.request_log import CLIENT_CLOSED, DENIED, bytes_received
from treedbd.web.response import address_of
from treedbd.web.streams import CANCEL, ChangesStream, MissedReader, Stream

if TYPE_CHECKING:
    from twisted.internet.interfaces import IDelayedCall

    from treedbd.database.resume import MissedNotification
    from treedbd.web.resource import DataHandlers

CONNECT: Final = "concurrent-connect"
DISCONNECT: Final = "concurrent-disconnect"
LISTEN: Final = "listener-listen"
BROADCAST: Final = "listener-broadcast"
UNLISTEN: Final = "listener-unlisten"
REST_READ: Final = "rest-read"
REST_TRANSACTION: Final = "rest-transaction"
AT_END: Final = "run-on-disconnect"
LOST: Final = "operations-lost"
"""The name in the place of operations that were dropped, `count` of them."""
_REST_WRITES: Final = {
    b"PUT": "rest-write",
    b"POST": "rest-write",
    b"DELETE": "rest-write",
    b"PATCH": "rest-update",
}

KEPT: Final = 4000
"""Operations of a database that are kept for other processes."""
WATCHED_S: Final = 10.0
"""For so many seconds operations are recorded after another process has asked for them."""
MAX_PROFILED: Final = 8
"""Databases that are profiled."""
MAX_KEY: Final = 128
MAX_KEYS: Final = 32
MAX_PATH: Final = KIB
"""Characters of a key, keys of a path, and characters of all of them, that are shown."""
MAX_WAITING: Final = 5000
MAX_WAITING_BYTES: Final = 2 * MIB
"""Operations, and bytes, that wait for the client of a profile; the oldest are dropped."""
GATHERED_S: Final = 0.1
MAX_GATHERED: Final = 1000
"""Broadcasts that are added up at a time."""
_SIGNATURE_CHARACTERS: Final = 43
"""The fewest that may be the signature of a token."""
_CUT: Final = "…"


def cut_path(path: Iterable[str], hide: Callable[[str], str]) -> list[str]:
    """Return keys as they are shown: none long, without what may be a token."""
    shown: list[str] = []
    left = MAX_PATH
    for number, key in enumerate(path):
        if number == MAX_KEYS or left <= 0:
            return [*shown, _CUT]
        text = hide(key)
        shown.append(text if len(text) <= MAX_KEY else text[:MAX_KEY] + _CUT)
        left -= len(shown[-1])
    return shown


def show_query(query: Query, hide: Callable[[str], str]) -> dict[str, Any]:
    """Return what a query orders by, and its limit; the values that it is bounded by are left out.

    `index` has the path of the child whose index it needs; it is empty if it needs none.
    """
    kind, needed = query.order.kind, index_of(query)
    path = cut_path(query.order.path, hide)
    shown: dict[str, Any] = {
        "orderBy": "/".join(path) if kind == "child" else f"${kind}",
        "index": {} if needed is None else {"path": path or [needed]},
    }
    if query.limit_to_first is not None:
        shown["limitToFirst"] = query.limit_to_first
    if query.limit_to_last is not None:
        shown["limitToLast"] = query.limit_to_last
    return shown


@attrs.define(eq=False)
class _Broadcast:
    """What one write has sent to those who listen: when, in seconds, to how many, and how much."""

    at_ms: int
    began: float
    ended: float
    bytes: int = 0
    clients: int = 0


class Profiler(Recorder[DatabaseName, bytes]):
    """Records the operations of databases that admins profile, as JSON.

    Attributes:
        now_ms: returns the time in milliseconds since 1970.

    """

    kept = KEPT
    watched_s = WATCHED_S
    most_watched = MAX_PROFILED
    too_many = "Too many databases are profiled."

    def __init__(
        self,
        data: DataHandlers,
        catalog: Catalog,
        switch: Callable[[], None],
    ) -> None:
        """Record what is done with databases of `catalog`; `data` handles the requests.

        `switch` is called when `is_recording` has changed.
        """
        super().__init__(data.context.clock, switch)
        self._secret = data.context.settings.admin_token
        self.now_ms: Final = data.now_ms
        self._catalog = catalog
        self._gathered: dict[tuple[DatabaseName, Path, int], _Broadcast] = {}
        self._flushing: IDelayedCall | None = None

    def close(self) -> None:
        """Record nothing from now on."""
        if self._flushing is not None:
            self._flushing.cancel()
            self._flushing = None
        self._gathered.clear()
        super().close()

    def watches(self, name: DatabaseName) -> bool:
        """Return whether the operations of a database are recorded."""
        return name in self._watched

    def note(
        self,
        operation: str,
        name: DatabaseName,
        path: Path | None = None,
        ms: float | None = None,
        size: int | None = None,
        **more: Any,
    ) -> None:
        """Record an operation of a database, if that is profiled.

        `ms` is how long it took, `size` its bytes; `more` are members as they are shown, but for
        `query`, a `Query` or None, `address`, and `at_ms`, when it was if not now. A member that is
        None is left out.
        """
        watched = self._watched.get(name)
        if watched is None:
            return
        shown: dict[str, Any] = {"name": operation}
        if path is not None:
            shown["path"] = cut_path(path, self._hide)
        if "query" in more:
            query = more.pop("query")
            shown["querySet"] = [] if query is None else [show_query(query, self._hide)]
            shown["unIndexed"] = query is not None and self._lacks_index(name, path or (), query)
        if ms is not None:
            shown["millis"] = round(ms, 2)
        if size is not None:
            shown["bytes"] = size
        address, at_ms = more.pop("address", None), more.pop("at_ms", None)
        shown.update({key: each for key, each in more.items() if each is not None})
        if address is not None:
            shown["client"] = {"remoteAddress": {"address": address}}
        shown["timestamp"] = self.now_ms() if at_ms is None else at_ms
        # orjson's bytes occupy 4 KiB however short they are, so what may be kept is copied.
        watched.add(b"%b" % orjson.dumps(shown))

    def _lacks_index(self, name: DatabaseName, path: Path, query: Query) -> bool:
        needed = index_of(query)
        if needed is None:
            return False
        try:
            return needed not in self._catalog.find(name).rules.current.indexed(path)
        except UnknownDatabase:
            return False

    def _hide(self, key: str) -> str:
        """Return a key without what may be a token."""
        if len(key) >= _SIGNATURE_CHARACTERS:
            key = hide_secrets(key)
        return key if self._secret is None else key.replace(self._secret, _CUT)

    # What is sent to those who listen.

    def note_sent(
        self, name: DatabaseName, path: Path, notification: Notification, size: int, began: float
    ) -> None:
        """Add what a listener of `path` was sent to what the same writes have sent to others.

        `began` is when, in seconds of `perf_counter`.
        """
        if name in self._watched:
            events = notification.events
            for position, event in events:
                self._gather(name, path + event.path, position, size // len(events), began)

    def _gather(
        self, name: DatabaseName, path: Path, position: Position, size: int, began: float
    ) -> None:
        key = name, path, position.sequence
        broadcast = self._gathered.get(key)
        if broadcast is None:
            if len(self._gathered) >= MAX_GATHERED:
                self._show_gathered()
            broadcast = self._gathered[key] = _Broadcast(self.now_ms(), began, began)
            if self._flushing is None:
                self._flushing = self._clock.callLater(GATHERED_S, self._flush)
        broadcast.ended = perf_counter()
        broadcast.bytes += size
        broadcast.clients += 1

    def _flush(self) -> None:
        self._flushing = None
        self._show_gathered()

    def _show_gathered(self) -> None:
        gathered, self._gathered = self._gathered, {}
        for (name, path, _), each in gathered.items():
            self.note(
                BROADCAST,
                name,
                path,
                (each.ended - each.began) * 1000,
                each.bytes,
                clientsUpdated=each.clients,
                at_ms=each.at_ms,
            )

    # What connections report.

    def logging(self, base: RequestLogging) -> RequestLogging:
        """Return the callbacks that record requests, and log them as `base` does."""

        def answered(request: Request) -> None:
            if perf_counter() - request.began >= base.least_s:
                base.answered(request)
            self._note_answered(request, request.code)

        def lost(request: Request) -> None:
            if base.lost is not None:
                base.lost(request)
            if not request.startedWriting:
                self._note_answered(request, CLIENT_CLOSED)

        return RequestLogging(answered, lost, sends_ids=base.sends_ids)

    def _note_answered(self, request: Request, status: int) -> None:
        question = request.head_memory.question
        if not isinstance(question, Question) or question.name not in self._watched:
            return
        wanted = question.wanted
        if wanted.admin_path is not None or wanted.wants_explanation:
            return
        ms = (perf_counter() - request.began) * 1000
        more: dict[str, Any] = {
            "allowed": request.refused_as != DENIED,
            "status": status,
            "address": address_of(request),
        }
        operation = _REST_WRITES.get(wanted.method)
        if operation is None:
            if wanted.accepts_events and status == OK and wanted.method != b"HEAD":
                return  # the stream has recorded it
            more["query"] = _query_of(wanted)
            operation, size = LISTEN if wanted.accepts_events else REST_READ, request.sentLength
        else:
            size = 0 if wanted.method == b"DELETE" else bytes_received(request)
            operation = operation if wanted.condition is None else REST_TRANSACTION
        self.note(operation, question.name, wanted.place.path, ms, size, **more)


def _query_of(wanted: DataRequest) -> Query | None:
    """Return the query of a read; None if there is none, or it is not valid."""
    with suppress(InvalidQuery):
        return wanted.read_options.query if wanted.parameters else None
    return None


class ProfiledStream(Stream):
    """A stream whose beginning, events and end are recorded.

    It has no slots of its own, so that an open stream can become one, and an ordinary one again.
    """

    __slots__ = ()

    def notify(self, notification: Notification) -> bool:
        """Send what was written, and record that."""
        before, began = self.events, perf_counter()
        is_short = super().notify(notification)
        if self.events != before:
            with_ids = self._with_ids and self._may_have_ids()
            size = notification.shared[with_ids].size
            self._data.profiler.note_sent(
                self.name, self.wanted.place.path, notification, size, began
            )
        return is_short

    def _open_first(
        self, rendered: bytes | Rendering, position: Position | None
    ) -> list[ContentReader]:
        readers = super()._open_first(rendered, position)
        self._note_begun(len(rendered) if isinstance(rendered, bytes) else rendered.size)
        return readers

    def _read_missed(self, missed: MissedNotification) -> MissedReader | None:
        reader = super()._read_missed(missed)
        if reader is not None:
            self._note_begun(missed.memory_bytes)
        return reader

    def _note_begun(self, size: int) -> None:
        """Record that it begins, or begins again."""
        profiler, path, address = (
            self._data.profiler,
            self.wanted.place.path,
            address_of(self.request),
        )
        if self.sent_bytes:
            profiler.note(BROADCAST, self.name, path, 0.0, size, clientsUpdated=1)
            return
        ms = (perf_counter() - began_at(self.request)) * 1000
        profiler.note(
            LISTEN,
            self.name,
            path,
            ms,
            size,
            allowed=True,
            query=self._query,
            address=address,
        )

    def _close(self, _: object) -> None:
        was_refused = getattr(self.request, "code", OK) != OK
        if not self._is_over and self.sent_bytes and not was_refused:
            path, address = self.wanted.place.path, address_of(self.request)
            self._data.profiler.note(UNLISTEN, self.name, path, address=address)
        Stream._close(self, _)  # it may be an ordinary one again by now


class ProfiledChanges(ProfiledStream, ChangesStream):
    """A stream that names the places that change, and is recorded."""

    __slots__ = ()


ORDINARY_STREAMS: Final[tuple[type[Stream], type[ChangesStream]]] = (Stream, ChangesStream)
PROFILED_STREAMS: Final[tuple[type[Stream], type[ChangesStream]]] = (
    ProfiledStream,
    ProfiledChanges,
)
"""The classes of streams, of values and of changes."""


def began_at(request: IHttp1Request) -> float:
    """Return when a request was complete, in seconds of `perf_counter`."""
    began: float = getattr(request, "began", perf_counter())
    return began


class ProfileFeed(Feed[bytes]):
    """A stream of the operations of a database."""

    kind = "profiles"
    most_waiting = MAX_WAITING
    most_waiting_bytes = MAX_WAITING_BYTES
    send_s = 0.02
    sent_at_once = 512
    sent_bytes_at_once = 128 * KIB

    def __init__(
        self,
        *,
        profiler: Profiler,
        data: DataHandlers,
        counts: Counting,
        request: IHttp1Request,
        name: DatabaseName,
        identity: Identity,
    ) -> None:
        """Send the operations of the database `name` to an admin."""
        super().__init__(data=data, counts=counts, request=request, name=name, identity=identity)
        self._profiler = profiler

    def begin(self) -> None:
        """Follow the operations; raise `TooManyStreams`."""
        self._profiler.watch(self.name).followers.append(self)

    def stop(self) -> None:
        """Follow them no longer."""
        self._profiler.unfollow(self.name, self)

    def size_of(self, item: bytes) -> int:
        """Return the bytes that an operation takes while it waits."""
        return len(item)

    def frame_of(self, item: bytes) -> bytes:
        """Return the frame of an operation."""
        return b"event: log\ndata: %b\n\n" % item

    def frame_of_dropped(self, count: int) -> bytes:
        """Return the frame in place of operations that were dropped.

        The client of Firebase takes each for an operation, with a time.
        """
        lost = {"name": LOST, "count": count, "timestamp": self._profiler.now_ms()}
        return self.frame_of(orjson.dumps(lost))

    def revoke(self) -> None:
        """End with `cancel`: the database is deleted."""
        self.end(CANCEL)
