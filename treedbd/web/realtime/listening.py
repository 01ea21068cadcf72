"""The listens of one session: begun, ended, judged again; and its gets."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator, Sequence
from functools import partial
from hashlib import sha256
from typing import Any, Final, Protocol

from twisted.internet.defer import Deferred

from treedbd.database.rights import ReadRequest
from treedbd.database.shared_window import SharedWindow
from treedbd.limits import KIB
from treedbd.tree.query import Query
from treedbd.tree.types import Json, Path
from treedbd.tree.value import compact
from treedbd.web.queues import FrameReader
from treedbd.web.realtime.gets import Get
from treedbd.web.realtime.listens import Listen, ListenKey, ListenOwner
from treedbd.web.realtime.messages import (
    OK,
    LimitReached,
    RealtimeRequest,
    parse_query_object,
    path_of,
    place_of,
    tag_of,
)
from treedbd.web.realtime.pending import Pending
from treedbd.web.realtime.socket import Job
from treedbd.web.request import index_of

_LONGEST_KEY: Final = KIB
"""Bytes of a query by which its listen is found; a longer one is replaced by its digest."""
_NO_INDEX: Final[Json] = {"w": ["no_index"]}
"""The data of the answer to a listen whose query has read all children."""


class ListeningOwner(ListenOwner, Protocol):
    """The session that listens."""

    def answer(self, number: int, status: str, data: Json) -> None:
        """Answer a request."""


class _Opening:
    """What a request reads, as a job of the outbox: it takes effect when it is opened."""

    def __init__(self, job: Job, pending: Pending) -> None:
        self._job = job
        self._pending: Pending | None = pending
        pending.begin()

    def open(self) -> Sequence[FrameReader] | None:
        """Read (`outbox.Job`)."""
        try:
            return self._job.open()
        finally:
            pending, self._pending = self._pending, None
            if pending is not None:
                pending.end()


class SessionListens:
    """The listens of one session.

    Attributes:
        pending: listens and gets that have not been read yet.

    """

    __slots__ = ("_listens", "_owner", "pending")

    def __init__(self, owner: ListeningOwner) -> None:
        self.pending: Final = Pending()
        self._owner = owner
        self._listens: dict[ListenKey, Listen] = {}

    def find_behind(self) -> SharedWindow | None:
        """Return the window of a query that still has to catch up with what was committed."""
        for each in self._listens.values():
            if each.query is not None and (window := each.behind) is not None:
                return window
        return None

    def listen(self, request: RealtimeRequest) -> Coroutine[Any, Any, None] | None:
        """Begin a listen; raise for one that is malformed."""
        owner, body = self._owner, request.body
        path, query, key = _parse(body)
        tag = tag_of(body) if query is not None else None
        claimed_hash = body.get("h", "")
        if key not in self._listens and (
            len(self._listens) >= owner.parts.limits.listens_per_connection
        ):
            owner.parts.registry.refused["listens_per_connection"] += 1
            raise LimitReached("There are too many listens of this connection.")
        query_object = None if query is None else body["q"]
        listen = Listen(owner, key, path, query, query_object, tag)
        warning: Json = {}
        try:
            if query is not None and not self._check_index(listen.read_request, query):
                warning = _NO_INDEX
        except BaseException:
            listen.close()
            raise
        former = self._listens.pop(key, None)
        if former is not None:
            former.close()
        else:
            owner.parts.registry.listens += 1
        self._listens[key] = listen
        claimed = claimed_hash if isinstance(claimed_hash, str) else ""

        listen.begin(request.number, claimed, warning)
        return self._when_current(lambda: owner.outbox.add(_Opening(listen, self.pending)))

    def unlisten(self, request: RealtimeRequest) -> None:
        """End a listen, if it is there; raise for a request that is malformed."""
        _, _, key = _parse(request.body)
        listen = self._listens.get(key)
        if listen is not None:
            listen.close()
            self.forget(listen)
        self._owner.answer(request.number, OK, {})

    def get(self, request: RealtimeRequest) -> Coroutine[Any, Any, None] | None:
        """Answer with the present value; raise for a request that is malformed."""
        owner = self._owner
        place, query = place_of(request.body), parse_query_object(request.body.get("q"))
        get = Get(owner, request.number, place, query)
        if query is not None:
            self._check_index(get.read_request, query)
        return self._when_current(lambda: owner.outbox.add(_Opening(get, self.pending)))

    def forget(self, listen: Listen) -> None:
        """Forget a listen that has ended."""
        if self._listens.get(listen.key) is listen:
            del self._listens[listen.key]
            self._owner.parts.registry.listens -= 1

    def rejudge(self) -> Deferred[None]:
        """Judge all listens for the present identity of the session, in slices; fires then."""
        return self._owner.parts.slices.run(_rejudge_all(list(self._listens.values())))

    def close(self) -> Deferred[None]:
        """End all listens: they send nothing from now on; fires when all is released, in slices."""
        listens, self._listens = list(self._listens.values()), {}
        parts = self._owner.parts
        parts.registry.listens -= len(listens)
        for listen in listens:
            listen.is_closed = True
        return parts.slices.run(_close_all(listens))

    def _check_index(self, read: ReadRequest, query: Query) -> bool:
        """Return whether an index is declared for a query, if it needs one.

        Raises if there is none, and the project requires it.
        """
        parts, database = self._owner.parts, self._owner.database

        def check_read() -> None:
            database.read(partial(read.check, database))

        parts.missing_indexes.check(database, read.path, query, check_read)
        index = index_of(query)
        return index is None or index in database.rules.current.indexed(read.path)

    def _when_current(self, call: Callable[[], None]) -> Coroutine[Any, Any, None] | None:
        """Call this when reads show what other processes have committed: now, if they do."""
        parts, database = self._owner.parts, self._owner.database
        opening = parts.acquire(database)
        if not isinstance(opening, Deferred):
            parts.release(database)
            call()
            return None

        async def wait() -> None:
            try:
                await opening
            finally:
                parts.release(database)
            call()

        return wait()


def _rejudge_all(listens: list[Listen]) -> Generator[None, None, None]:
    for listen in listens:
        listen.rejudge()
        yield


def _close_all(listens: list[Listen]) -> Generator[None, None, None]:
    """Close listens, and forget each of them, in steps."""
    while listens:
        listens.pop().close()
        yield


def _parse(body: dict[str, Any]) -> tuple[Path, Query | None, ListenKey]:
    """Return what a listen shows, and the key that it has in its session."""
    path, query = path_of(body), parse_query_object(body.get("q"))
    if query is None:
        return path, None, (path, None)
    text = compact(dict(sorted(body["q"].items())))
    return path, query, (path, text if len(text) <= _LONGEST_KEY else sha256(text).digest())
