"""Listens and gets: the value at a path, or what a query selects of it, and its changes.

A `Listen` is a watcher of the database, as a stream of Server-Sent Events is. Its first value is a
job of the `Outbox`: when everything before it has been sent, the value is read, and watched from
then on. If events of the listen were dropped, because the client does not read, the same job sends
the present value. The events of a path are printed once for all its listens; those of queries
differ in their tag. A `Get` is such a job that runs once, and watches nothing.

`SessionListens` begins and ends the listens of one session, and judges them again when its identity
changes. A message that contains a value is read in parts, whatever its size (`read_message`).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Coroutine, Generator, Hashable, Iterator, Sequence
from functools import partial
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import attrs
from twisted.internet.defer import CancelledError, Deferred
from twisted.logger import Logger
from twisted.python.failure import Failure

from treedbd.counting import HeldBytesRefused
from treedbd.database.requests import PermissionDenied
from treedbd.database.rights import ReadRequest
from treedbd.database.watched_queries import SharedWindow
from treedbd.database.watchers import Notification, ReadGrant
from treedbd.http1.content import Content, FrameReader, WaitingBytesRefused
from treedbd.limits import DEFAULT_TIMEOUT_S, KIB, MIB
from treedbd.store.nodes import Nodes, spell_chunks
from treedbd.store.rows import parse_stored
from treedbd.tree.hashes import data_hash
from treedbd.tree.query import Query, bytes_of
from treedbd.tree.types import Chunks, Json, Path, Place
from treedbd.tree.value import compact, from_export
from treedbd.web.reading import (
    FirstValue,
    ReadSource,
    Rendering,
    RenderingSource,
    TooMuchWork,
    Waiter,
    first_source,
)
from treedbd.web.realtime import messages
from treedbd.web.realtime.messages import (
    OK,
    LimitReached,
    RealtimeRequest,
    parse_query_object,
    path_of,
    place_of,
    tag_of,
)
from treedbd.web.realtime.socket import Job, Pending
from treedbd.web.realtime.wire import FramingReader, contents_of, frame_message
from treedbd.web.request import EXPORT, ReadOptions, index_of

if TYPE_CHECKING:
    from treedbd.web.realtime.session import RealtimeSession


class SpelledSource:
    """The JSON of another source (`RenderingSource`), with numbers beyond 64 bits as exponents."""

    def __init__(self, source: RenderingSource) -> None:
        self._source = source

    @property
    def key(self) -> Hashable:
        """Equal for sources that render the same from the same state."""
        return "spelled", self._source.key

    def shares(self, other: object) -> bool:
        """Return whether this source can show what another with the same key has rendered."""
        return isinstance(other, SpelledSource) and self._source.shares(other._source)

    def chunks(self, nodes: Nodes) -> Iterator[bytes]:
        """Render the nodes of one state."""
        return spell_chunks(self._source.chunks(nodes))


def read_bytes(session: RealtimeSession, frames: bytes) -> FrameReader:
    """Return what reads frames of the server; they are counted as waiting for the client."""
    memory = session.context.reads.memory
    return Content(memory, frames).open(session.address, may_refuse=False)


def read_message(
    session: RealtimeSession, start: bytes, rendered: bytes | Rendering, end: bytes
) -> list[FrameReader]:
    """Return what reads a message that has a value between its start and its end.

    Raises `WaitingBytesRefused`.
    """
    if isinstance(rendered, bytes):
        return [read_bytes(session, frame_message(start + rendered + end))]
    value = rendered.open(session.address)
    memory = session.context.reads.memory
    ends = [Content(memory, each).open(session.address, may_refuse=False) for each in (start, end)]
    size = len(start) + rendered.size + len(end)
    return [FramingReader([ends[0], value, ends[1]], size)]


HASHED_BYTES: Final = 64 * KIB
"""The JSON of a longer value is not hashed: to send it is cheaper."""
MAX_KNOWN: Final = 4096
MAX_KNOWN_BYTES: Final = 4 * MIB
"""Hashes that are kept, and bytes of their keys, which contain paths of clients."""
_ENTRY_BYTES: Final = 500


class KnownHashes:
    """The hashes that were computed last, kept for the next client that listens with a hash.

    After a restart all clients connect at once, each with the hash of its copy. The hash of a value
    is computed from its JSON once, and stored under the source of the JSON and the number of the
    state.
    """

    def __init__(self) -> None:
        self._known: OrderedDict[Hashable, tuple[str, int]] = OrderedDict()
        self._bytes = 0

    def is_hash_of(
        self, claimed: str, rendered: bytes | Rendering, key: Hashable, sequence: int
    ) -> bool:
        """Return whether a rendered value has the hash that a client sends; False for a large one.

        `key` and `sequence` identify what was rendered, and its state.
        """
        if not claimed:
            return False
        size = len(rendered) if isinstance(rendered, bytes) else rendered.size
        if size > HASHED_BYTES:
            return False
        place = (key, sequence)
        known = self._known.get(place)
        if known is None:
            body = rendered if isinstance(rendered, bytes) else rendered.whole()
            known = data_hash(from_export(parse_stored(body))), len(repr(place)) + _ENTRY_BYTES
            self._keep(place, known)
        return known[0] == claimed

    def _keep(self, place: Hashable, known: tuple[str, int]) -> None:
        self._known[place] = known
        self._bytes += known[1]
        while len(self._known) > MAX_KNOWN or self._bytes > MAX_KNOWN_BYTES:
            _, (_, size) = self._known.popitem(last=False)
            self._bytes -= size


def _options(query: Query | None) -> ReadOptions:
    """Return how a value, or what a query selects of it, is read."""
    return EXPORT if query is None else attrs.evolve(EXPORT, query=query)


class Get:
    """One get of a session, of the present value: a job of its outbox."""

    def __init__(
        self, session: RealtimeSession, number: int, place: Place, query: Query | None
    ) -> None:
        """Answer the request `number` with what is at a place."""
        self._session = session
        self._number = number
        self._place = place
        self._query = query
        options = _options(query)
        self._facts = options.facts
        self._source = SpelledSource(ReadSource(session.database, place, options))

    @property
    def read_request(self) -> ReadRequest:
        """The read that the rules are evaluated for."""
        session = self._session
        return ReadRequest(session.caller, self._place.path, self._facts, session.context.now_ms)

    def open(self) -> Sequence[FrameReader] | None:
        """Return the answer (`socket.Job`)."""
        context, database = self._session.context, self._session.database

        def render(nodes: Nodes) -> bytes | Rendering | TooMuchWork:
            self._judge(nodes)
            return context.reads.render(self._source, nodes)

        try:
            rendered = database.read(render)
            if not isinstance(rendered, TooMuchWork):
                return self._answer(rendered)
        except WaitingBytesRefused:
            raise
        except Exception as error:
            self._refuse(error)
            return ()
        waiter = Waiter(self._source, self._judge, rendered.sequence)
        waiting = context.reads.render_large(database.hold, waiter, self._session.address)
        waiting.addCallback(self._rendered).addErrback(self._not_rendered)
        return None

    def _rendered(self, rendering: Rendering) -> None:
        self._session.outbox.release(self._answer(rendering))

    def _judge(self, nodes: Nodes) -> None:
        self._session.database.check_read(self.read_request, nodes)

    def _answer(self, rendered: bytes | Rendering) -> list[FrameReader]:
        session, start = self._session, messages.answer_start(self._number)
        session.context.registry.messages_out += 1
        return read_message(session, start, rendered, messages.VALUE_END)

    def _not_rendered(self, failure: Failure) -> None:
        self._refuse(failure.value)
        self._session.outbox.release(())

    def _refuse(self, error: BaseException | None) -> None:
        self._session.answer_error(self._number, error, self.read_request)


ListenKey: TypeAlias = tuple[Path, bytes | None, int]
"""The path; the query as JSON, its members in order, or its digest, None without a query; and 0.

A listen that another one has replaced has its `id` in place of 0.
"""

LISTEN_BYTES: Final = 2 * KIB
"""Bytes of a listen besides its path and its query."""
_EVENTS: Final = "realtime events"
"""The key under which the listens of a path share the printed events of a notification."""
CONTENTS: Final = "realtime"
"""The key under which they share the messages, by the tags that these end with."""
_NO_CONTENTS: Final[dict[int | None, list[Content]]] = {}
KEPT_TAGS: Final = 16
"""Tags whose messages are shared; SDKs number the queries of each client from 1 on."""


class Listen:
    """One listen of a session.

    Attributes:
        key: the key under which its session has it.
        path, query: what it shows; `query_object` is the query as the client has sent it.
        is_stale: whether its present value is to be sent in place of events.
        is_closed: whether it has ended, and sends nothing; `close` may be called later.
        is_replaced: whether another one has its place, so it ends with its first value.

    """

    __slots__ = (
        "_caller",
        "_claimed_hash",
        "_facts",
        "_first",
        "_grant",
        "_held_bytes",
        "_is_begun",
        "_number",
        "_session",
        "_source",
        "_subscription",
        "_tag",
        "_warning",
        "is_closed",
        "is_replaced",
        "is_stale",
        "key",
        "path",
        "query",
        "query_object",
    )
    _log = Logger()

    def __init__(
        self,
        session: RealtimeSession,
        key: ListenKey,
        path: Path,
        query: Query | None,
        query_object: Json,
        tag: int | None,
    ) -> None:
        """Show `path` in a session, which has the listen under `key`; raise `HeldBytesRefused`."""
        self.key = key
        self.path: Final = path
        self.query: Final = query
        self.query_object: Final = query_object
        self.is_stale = False
        self.is_closed = False
        self.is_replaced = False
        self._session = session
        self._tag = tag
        self._facts = _options(query).facts
        self._caller = session.caller
        self._number: int | None = None
        self._claimed_hash = ""
        self._warning: Json = {}
        self._is_begun = False
        self._held_bytes = LISTEN_BYTES + sum(map(len, path)) + bytes_of(query)
        session.account.charge(self._held_bytes)
        database = session.database
        self._grant = self._make_grant()
        self._subscription = database.subscribe(
            path, query, self, is_export=True, group=session, account=session.account
        )
        source = first_source(database, path, query, self._subscription, is_export=True)
        self._source = SpelledSource(source)
        self._first = FirstValue(self._source, self._judge, session.context.reads, session.address)

    @property
    def is_answered(self) -> bool:
        """Whether the request that began it was answered."""
        return self._number is None

    @property
    def behind(self) -> SharedWindow | None:
        """The window of its query, if it has not caught up with the last commit."""
        is_watching = self._is_begun and not self.is_closed
        return self._subscription.behind if is_watching else None

    @property
    def read_request(self) -> ReadRequest:
        """The read that the rules are evaluated for."""
        return ReadRequest(self._caller, self.path, self._facts, self._session.context.now_ms)

    def begin(self, number: int, claimed_hash: str, warning: Json) -> None:
        """Prepare the first value and the answer after it, which `open` sends.

        The request is `number`; `claimed_hash` is that of the value that the client has, which is
        not sent again; `warning` is the data of the answer.
        """
        self._number = number
        self._claimed_hash = claimed_hash
        self._warning = warning

    def open(self) -> Sequence[FrameReader] | None:
        """Return the present value, and watch from there (`socket.Job`)."""
        self.is_stale = False
        if self.is_closed:
            return self._answer()
        try:
            self._is_begun = True
            rendered, sequence = self._subscription.watch(self._render)
            if isinstance(rendered, TooMuchWork):
                self._render_large(sequence)
                return None
            return self._show(rendered, sequence)
        except WaitingBytesRefused:
            self._subscription.unwatch()
            raise
        except Exception as error:
            self._refuse(error)
            return ()

    def notify(self, notification: Notification) -> bool:
        """Send what was written; return whether nothing had to be checked or read for it."""
        # Called for each listen and event, so it makes few calls and uses few objects.
        session, is_short = self._session, False
        try:
            for part in session.in_order(notification):
                is_short = (
                    self._grant.checked_under is session.database.rules.current
                    and self._caller is session.caller
                    and not session.can_expire
                )
                if self.is_closed or self.is_stale or not (is_short or self._may_continue()):
                    return False
                if part.is_missed:
                    self._read_again()
                    return False
                self._send(part)
        except Exception:
            self.fail()
        return is_short

    def _send(self, notification: Notification) -> None:
        outbox, registry = self._session.outbox, self._session.context.registry
        registry.events_sent += len(notification.events)
        contents = notification.shared.get(CONTENTS, _NO_CONTENTS).get(self._tag)
        for content in contents or self._print(notification):
            registry.event_bytes += content.size
            outbox.send_event(content, self)

    def rejudge(self) -> None:
        """Evaluate the rules for the present identity of the session; end on a denial."""
        caller = self._session.caller
        former_caller, self._caller = self._caller, caller
        if self.is_closed or former_caller == caller:
            return
        former, self._grant = self._grant, self._make_grant()
        former.end()
        if not self._is_begun:
            return  # its first value will be judged for the new identity
        try:
            self._session.database.read(self._grant.check)
        except PermissionDenied:
            self.revoke()

    def revoke(self) -> None:
        """End: the caller may no longer read what it shows."""
        if self.is_closed:
            return
        if self._number is not None:
            self._refuse(PermissionDenied("this read"))
            return
        self.close()
        body: dict[str, Any] = {"p": "/".join(self.path)}
        if self.query_object is not None:
            body["q"] = [self.query_object]
        self._session.context.registry.messages_out += 1
        self._session.outbox.send_answer(frame_message(messages.print_push("c", body)))
        self._session.drop(self)

    def fail(self) -> None:
        """End the session after an error of the server, so that the client connects again."""
        self._session.fail()

    def close(self) -> None:
        """End, and drop all references to the listen: no garbage collection is needed."""
        if not self._held_bytes:
            return  # it was released before
        self.is_closed = True
        self._session.account.add(-self._held_bytes)
        self._held_bytes = 0
        self._subscription.end()
        self._grant.end()
        self._first.cancel()

    def _make_grant(self) -> ReadGrant:
        return self._session.database.make_grant(self.read_request, self.revoke, self._read_later)

    def _read_later(self) -> None:
        if self._is_begun and not self.is_closed:
            self._session.outbox.refresh(self)

    def _may_continue(self) -> bool:
        session = self._session
        if not session.may_receive():
            return False
        if self._caller is not session.caller:
            self.rejudge()
        if not self.is_closed and self._grant.must_be_checked:
            self._grant.recheck()
        return not self.is_closed

    def _judge(self, nodes: Nodes) -> None:
        self._grant.check_again(nodes)

    def _render(self, nodes: Nodes) -> bytes | Rendering | TooMuchWork:
        self._grant.check(nodes)
        return self._first.render(nodes)

    def _print(self, notification: Notification) -> list[Content]:
        """Return the events as messages; they are made once for all listens with the same tag."""
        shared = notification.shared
        events: list[Chunks] | None = shared.get(_EVENTS)
        if events is None:
            events = [messages.print_event(self.path, event) for _, event in notification.events]
            shared[_EVENTS] = events
        end, memory = messages.value_end(self._tag), self._session.context.reads.memory
        contents = contents_of([(*event, end) for event in events], memory)
        of_tags = shared.setdefault(CONTENTS, {})
        if len(of_tags) < KEPT_TAGS:
            of_tags[self._tag] = contents
        return contents

    def _read_again(self) -> None:
        """Send the present value in place of an event that is too large.

        A short value is sent at once, after what waits; for a long one the waiting events of this
        listen are dropped.
        """
        outbox = self._session.outbox
        if self.query is None and not outbox.is_idle:
            try:
                rendered, _ = self._subscription.watch(self._render)
            except PermissionDenied as error:
                self._refuse(error)
                return
            if isinstance(rendered, bytes):
                start, end = messages.value_start(self.path), messages.value_end(self._tag)
                for content in contents_of(
                    [(start, rendered, end)], self._session.context.reads.memory
                ):
                    outbox.send_event(content, self)
                return
        outbox.refresh(self)

    def _render_large(self, judged: int) -> None:
        """Render a large value; the rules already allowed the state `judged`."""
        hold = partial(self._session.database.hold_first, self.query)
        waiting = self._first.render_large(hold, judged, self._subscription)
        waiting.addCallback(self._rendered).addErrback(self._not_rendered)

    def _rendered(self, rendering: Rendering) -> None:
        outbox = self._session.outbox
        outbox.release(
            self._answer() if self.is_closed else self._show(rendering, rendering.sequence)
        )

    def _not_rendered(self, failure: Failure) -> None:
        error = failure.value
        if isinstance(error, WaitingBytesRefused):
            self._subscription.unwatch()
            self._session.outbox.postpone(self, error)
            return
        if not isinstance(error, CancelledError):
            self._refuse(error)
        self._session.outbox.release(self._answer() if self.is_closed else ())

    def _show(self, rendered: bytes | Rendering, sequence: int) -> list[FrameReader]:
        """Return the value, and the answer to the request if that was not sent."""
        context, path = self._session.context, self.path
        readers: list[FrameReader] = []
        claimed, self._claimed_hash = self._claimed_hash, ""
        if not context.hashes.is_hash_of(claimed, rendered, self._source.key, sequence):
            start, end = messages.value_start(path), messages.value_end(self._tag)
            readers += read_message(self._session, start, rendered, end)
        readers += self._answer()
        if self.is_replaced:
            self.close()
            self._session.drop(self)
        return readers

    def _answer(self) -> list[FrameReader]:
        """Return the answer to the request that began it, if that was not sent."""
        number, self._number = self._number, None
        if number is None:
            return []
        self._session.context.registry.messages_out += 1
        text = messages.print_answer(number, messages.OK, self._warning)
        return [read_bytes(self._session, frame_message(text))]

    def _refuse(self, error: BaseException | None) -> None:
        """End after an error: with an answer if the request has none, else with a revocation."""
        number, self._number = self._number, None
        if number is None:
            if not isinstance(error, PermissionDenied | HeldBytesRefused):
                self._log.failure("A listen failed.", Failure(error))
            self.revoke()
            return
        self.close()
        self._session.drop(self)
        self._session.answer_error(number, error, self.read_request)


_LONGEST_KEY: Final = KIB
"""Bytes of a query in the key of its listen; a longer one is replaced by its digest."""
_NO_INDEX: Final[Json] = {"w": ["no_index"]}
"""The data of the answer to a listen whose query has read all children."""


class _Opening:
    """What a request reads, as a job of the outbox: the request takes effect when it is opened."""

    def __init__(self, job: Job, pending: Pending) -> None:
        self._job = job
        self._pending: Pending | None = pending
        pending.begin()

    def open(self) -> Sequence[FrameReader] | None:
        """Read (`socket.Job`)."""
        try:
            return self._job.open()
        finally:
            pending, self._pending = self._pending, None
            if pending is not None:
                pending.end()


class SessionListens:
    """The listens of one session: begun, ended, judged again; and its gets.

    Attributes:
        pending: listens and gets that have not been read yet.

    """

    __slots__ = ("_listens", "_session", "pending")

    def __init__(self, session: RealtimeSession) -> None:
        self.pending: Final = Pending()
        self._session = session
        self._listens: dict[ListenKey, Listen] = {}

    def __len__(self) -> int:
        return len(self._listens)

    def __iter__(self) -> Iterator[Listen]:
        return iter(list(self._listens.values()))

    def find_behind(self) -> SharedWindow | None:
        """Return the window of a query that has not caught up with the last commit."""
        for each in self._listens.values():
            if each.query is not None and (window := each.behind) is not None:
                return window
        return None

    def listen(self, request: RealtimeRequest) -> Coroutine[Any, Any, None] | None:
        """Begin a listen; raise if the request is malformed."""
        session, body = self._session, request.body
        path, query, key = _parse_listen(body)
        tag = tag_of(body) if query is not None else None
        claimed_hash = body.get("h", "")
        former = self._listens.get(key)
        is_more = former is None or not former.is_answered
        if is_more and len(self._listens) >= session.context.limits.listens_per_connection:
            session.context.registry.refused["listens_per_connection"] += 1
            raise LimitReached("There are too many listens of this connection.")
        query_object = None if query is None else body["q"]
        kind, _ = session.context.registry.listen_kinds
        listen = kind(
            session=session, key=key, path=path, query=query, query_object=query_object, tag=tag
        )
        warning: Json = {}
        try:
            if query is not None and not self._check_index(listen.read_request, query):
                warning = _NO_INDEX
        except BaseException:
            listen.close()
            raise
        self._put(listen)
        claimed = claimed_hash if isinstance(claimed_hash, str) else ""

        listen.begin(request.number, claimed, warning)
        return self._when_current(lambda: session.outbox.add(_Opening(listen, self.pending)))

    def _put(self, listen: Listen) -> None:
        """Add a listen; what it replaces ends, as soon as its request was answered."""
        former = self._listens.get(listen.key)
        if former is not None and former.is_answered:
            self.forget(former)
            former.close()
        elif former is not None:
            former.is_replaced = True
            former.key = (*former.key[:2], id(former))
            self._listens[former.key] = former
        self._listens[listen.key] = listen
        self._session.context.registry.listens += 1

    def unlisten(self, request: RealtimeRequest) -> None:
        """End a listen, if it exists; raise if the request is malformed."""
        _, _, key = _parse_listen(request.body)
        listen = self._listens.get(key)
        if listen is not None:
            listen.close()
            self.forget(listen)
        self._session.answer(request.number, OK, {})

    def get(self, request: RealtimeRequest) -> Coroutine[Any, Any, None] | None:
        """Answer with the present value; raise if the request is malformed."""
        session = self._session
        place, query = place_of(request.body), parse_query_object(request.body.get("q"))
        _, kind = session.context.registry.listen_kinds
        get = kind(session, request.number, place, query)
        if query is not None:
            self._check_index(get.read_request, query)
        return self._when_current(lambda: session.outbox.add(_Opening(get, self.pending)))

    def forget(self, listen: Listen) -> None:
        """Forget a listen that has ended."""
        if self._listens.get(listen.key) is listen:
            del self._listens[listen.key]
            self._session.context.registry.listens -= 1

    def rejudge(self) -> Deferred[None]:
        """Judge all listens for the present identity of the session, in slices; fires then."""
        return self._session.context.slices.run(_rejudge_all(list(self._listens.values())))

    def close(self) -> Deferred[None]:
        """End all listens at once; fires when their memory is freed, in slices."""
        listens, self._listens = list(self._listens.values()), {}
        context = self._session.context
        context.registry.listens -= len(listens)
        for listen in listens:
            listen.is_closed = True
        return context.slices.run(_close_all(listens))

    def _check_index(self, read: ReadRequest, query: Query) -> bool:
        """Return whether an index is declared for a query, if it needs one.

        Raises if none is, and the project requires one.
        """
        context, database = self._session.context, self._session.database
        context.missing_indexes.check(database, query, read)
        index = index_of(query)
        return index is None or index in database.rules.current.indexed(read.path)

    def _when_current(self, call: Callable[[], None]) -> Coroutine[Any, Any, None] | None:
        """Call `call` when reads show what other processes have committed; now if they do."""
        context, database = self._session.context, self._session.database
        opening = context.catalog.acquire(database, DEFAULT_TIMEOUT_S)
        if not isinstance(opening, Deferred):
            context.catalog.release(database)
            call()
            return None

        async def wait() -> None:
            try:
                await opening
            finally:
                context.catalog.release(database)
            call()

        return wait()


def _rejudge_all(listens: list[Listen]) -> Generator[None, None, None]:
    for listen in listens:
        listen.rejudge()
        yield


def _close_all(listens: list[Listen]) -> Generator[None, None, None]:
    """Close listens, and remove each of them, in steps."""
    while listens:
        listens.pop().close()
        yield


def _parse_listen(body: dict[str, Any]) -> tuple[Path, Query | None, ListenKey]:
    """Return what a listen shows, and the key under which its session has it."""
    path, query = path_of(body), parse_query_object(body.get("q"))
    if query is None:
        return path, None, (path, None, 0)
    text = compact(dict(sorted(body["q"].items())))
    key = text if len(text) <= _LONGEST_KEY else sha256(text).digest()
    return path, query, (path, key, 0)
