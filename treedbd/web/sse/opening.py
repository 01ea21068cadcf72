"""Opens streams: admits them, stores what they write when they end, and begins them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

import attrs

from treedbd.database.database import Database
from treedbd.database.requests import Caller, PermissionDenied, Unavailable
from treedbd.database.rights import ReadRequest
from treedbd.held_bytes import SMALL_HELD_BYTES, HeldAccount, HeldBytesRefused
from treedbd.http1.content import WaitingBytesRefused
from treedbd.http1.headers import Header
from treedbd.http1.interface import IHttp1Request
from treedbd.tree.query import bytes_of
from treedbd.tree.types import InvalidQuery
from treedbd.web.auth.identity import Identity
from treedbd.web.context import WebParts
from treedbd.web.reading import MissingIndexes
from treedbd.web.request import ON_DISCONNECT, DataRequest, Question
from treedbd.web.response import counted_address_of
from treedbd.web.sse.disconnect import StreamWrites, parse_on_disconnect
from treedbd.web.sse.frames import parse_id
from treedbd.web.sse.registry import StreamRegistry, Subscriber
from treedbd.web.sse.stream import Stream
from treedbd.web.sse.stream_request import StreamRequest

_SHOWN_CHARACTERS: Final = 256
STREAM_HEADERS: Final[tuple[Header, ...]] = (
    (b"Content-Type", b"text/event-stream; charset=utf-8"),
    (b"X-Accel-Buffering", b"no"),
)


@attrs.frozen(eq=False)
class StreamOpening:
    """Opens the streams of a service.

    Attributes:
        parts: what it shares with other protocols.
        streams: those that are open.
        refuse: answers a stream that cannot begin.
        missing_indexes: looks at the queries.
        now_ms: returns the time in milliseconds since 1970.

    """

    parts: WebParts
    streams: StreamRegistry
    refuse: Callable[[IHttp1Request, BaseException], None]
    missing_indexes: MissingIndexes
    now_ms: Callable[[], int]

    async def open(
        self, request: IHttp1Request, wanted: DataRequest, database: Database, identity: Identity
    ) -> None:
        """Begin a stream, when what it writes at its end is stored; raise what refuses it."""
        request.head_memory.identity = identity  # for the log: its token may expire meanwhile
        _shorten_question(request)
        address = counted_address_of(request)
        account = self._hold(wanted, address)
        writes = None
        if ON_DISCONNECT in wanted.parameters:
            writes = await self._store_writes(request, wanted, database, identity)
        path = wanted.place.path
        with_ids = wanted.parameters.get("resume") == "true"
        try:
            read = self.admit(wanted, database, identity, address)
            stream_request = StreamRequest(
                *(database, path, wanted.read_options.query, read, identity, address),
                with_ids,
                writes,
                account,
            )
            self._begin(request, wanted, stream_request)
        except BaseException:
            if account is not None:
                account.close()
            if writes is not None:
                writes.end()
            raise

    def _hold(self, wanted: DataRequest, address: str) -> HeldAccount | None:
        """Charge what a stream of a query holds, None for others; raise `HeldBytesRefused`."""
        query = wanted.read_options.query
        if query is None:
            return None
        account = self.parts.reads.held.account(address)
        account.charge(bytes_of(query))
        return account

    def _begin(self, request: IHttp1Request, wanted: DataRequest, asked: StreamRequest) -> None:
        parts = self.parts
        stream = Stream(request, asked, self.streams, parts.reads, parts.clock, self.refuse)
        common = parts.writer.common_headers(request, no_store=False)
        if asked.writes is not None:
            asked.writes.end_stream = stream.end
        subscriber = Subscriber(asked.database.name, asked.address, asked.identity, request)
        self.streams.add(stream, subscriber)
        try:
            stream.start((*STREAM_HEADERS, *common), parse_id(wanted.last_event_id))
        except (
            *(PermissionDenied, WaitingBytesRefused, HeldBytesRefused, InvalidQuery),
            Unavailable,
        ):
            self.streams.remove(stream)
            raise

    async def _store_writes(
        self, request: IHttp1Request, wanted: DataRequest, database: Database, identity: Identity
    ) -> StreamWrites:
        """Judge and store what a stream writes when it ends; nothing for a HEAD.

        Nothing is stored for a stream that would be refused.
        """
        limits = self.parts.options.limits
        edit = parse_on_disconnect(wanted.parameters, wanted.place.path, limits)
        read = self.admit(wanted, database, identity, counted_address_of(request))
        database.read(partial(read.check, database))
        writes = StreamWrites(database, edit, read.caller, self.streams.track)
        store = writes.judge if request.method == b"HEAD" else writes.store
        await store(self.now_ms(), limits.disconnect_writes_per_connection)
        return writes

    def admit(
        self, wanted: DataRequest, database: Database, identity: Identity, address: str | None
    ) -> ReadRequest:
        """Return for what the rules are evaluated while a stream, or a program, watches a place.

        Raises if it may not begin; whether the rules allow it is evaluated with its first value.
        """
        options, path = wanted.read_options, wanted.place.path
        request = ReadRequest(
            Caller(identity.auth, identity.is_admin), path, options.facts, self.now_ms
        )
        check_read = partial(request.check, database)
        if options.query is not None:
            self.missing_indexes.check(
                database, path, options.query, lambda: database.read(check_read)
            )
        if database.is_absent:
            database.read(check_read)
        self.streams.check(database.name, address, identity)
        return request


def _shorten_question(request: IHttp1Request) -> None:
    """Remember little of long parameters: what is read of them later is which there are."""
    question = request.head_memory.question
    if isinstance(question, Question):
        parameters = question.wanted.parameters
        if sum(map(len, parameters.values())) > SMALL_HELD_BYTES:
            short = {name: text[:_SHOWN_CHARACTERS] for name, text in parameters.items()}
            question.wanted = attrs.evolve(question.wanted, parameters=short)
