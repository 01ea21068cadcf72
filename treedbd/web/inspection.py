"""Inspection: what an admin sees of the requests, connections and rates of a project, as they are.

`Inspection` switches the recorders on and off: of requests (`seen_requests`), of operations
(`profile`), of the messages of sessions (`realtime/observed`), and of series (`series`). It answers
`/.inspect/requests.json`, once or as a stream (`RequestFeed`), `/.settings/profile.json`, and
`/.inspect/connections.json`. Where several workers serve, it asks the others too: for each answer,
and again and again while requests or operations are followed (`feeds`).
"""

from __future__ import annotations

import zlib
from collections.abc import Awaitable, Callable, Generator, Iterable, Mapping
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import orjson
from twisted.internet.interfaces import IReactorTime

from treedbd.counting import Counting, Counts
from treedbd.database.catalog import Catalog
from treedbd.database.database import Database
from treedbd.database.slices import Slices
from treedbd.http1.registry import Connections
from treedbd.http1.request import IHttp1Request
from treedbd.limits import KIB
from treedbd.names import DatabaseName
from treedbd.rules.evaluate import explanation
from treedbd.tree.types import InvalidQuery, Json
from treedbd.tree.value import compact
from treedbd.web.activity import Activity
from treedbd.web.auth.identity import Identity
from treedbd.web.feeds import Feed, OthersFollowed
from treedbd.web.listeners import Listener, SocketRegistry
from treedbd.web.profile import (
    ORDINARY_STREAMS,
    PROFILED_STREAMS,
    ProfileFeed,
    Profiler,
    began_at,
)
from treedbd.web.reading import NO_RULES
from treedbd.web.realtime.observed import SessionObserver
from treedbd.web.realtime.session import RealtimeSession
from treedbd.web.request import DataRequest
from treedbd.web.response import Response, address_of, json_response, text_response
from treedbd.web.seen_requests import (
    KEPT,
    RequestFilter,
    RequestRecorder,
    SeenRequest,
    format_time,
    show_path,
    show_query,
    shown_agent,
    uid_of,
)
from treedbd.web.series import Second, SeriesRecorder
from treedbd.web.streams import ChangesStream, Stream

if TYPE_CHECKING:
    from treedbd.web.resource import DataHandlers

MAX_WAITING: Final = 500
"""Requests that wait for the client of a feed; of more, the oldest are dropped."""
MAX_CONNECTIONS: Final = 500
"""Streams, and sockets, that are shown."""
LOOKED_AT_ONCE: Final = 128
"""Connections that are looked at in one step."""
PACKED_BYTES: Final = 60_000
"""Bytes of an answer to another process."""
UNPACKED_BYTES: Final = 96 * KIB
"""Bytes of the requests in it before they are compressed."""

AskOthers: TypeAlias = Callable[[bytes], Awaitable[Mapping[int, bytes]]]
"""Returns the answers of the other processes to a question, by their numbers."""


def pack(answer: dict[str, Any], name: str) -> bytes:
    """Return an answer to another process; the list `name` is shortened until it is small enough.

    The newest of the list are its last.
    """
    while True:
        packed = zlib.compress(compact(answer), 1)
        if len(packed) <= PACKED_BYTES:
            return packed
        answer[name] = answer[name][-(len(answer[name]) // 2) :]


def unpack(packed: bytes) -> Any:
    """Return the answer that `pack` was given."""
    return orjson.loads(zlib.decompress(packed))


class RequestsFollowed(OthersFollowed[str]):
    """Asks the other processes for the requests of projects that are followed."""

    poll_s = 0.5

    def __init__(self, inspection: Inspection, clock: IReactorTime, slices: Slices) -> None:
        """Ask by `inspection`."""
        super().__init__(clock, slices)
        self._inspection = inspection

    def is_followed(self, key: str) -> bool:
        """Return whether the requests of a project are still followed."""
        return self._inspection.recorder.follows(key)

    async def ask(self, key: str, after: dict[str, int]) -> Mapping[int, dict[str, Any]]:
        """Return the answers of the other processes."""
        return await self._inspection.ask({"what": "requests", "project": key, "after": after})

    def show_each(self, key: str, answer: dict[str, Any]) -> Generator[None, None, None]:
        """Show requests to those who follow."""
        for shown in answer["requests"]:
            self._inspection.recorder.show(key, SeenRequest.parse(shown))
            yield


class OperationsFollowed(OthersFollowed[DatabaseName]):
    """Asks the other processes for the operations of databases that are profiled."""

    poll_s = 0.2

    def __init__(self, inspection: Inspection, clock: IReactorTime, slices: Slices) -> None:
        """Ask by `inspection`."""
        super().__init__(clock, slices)
        self._inspection = inspection

    def is_followed(self, key: DatabaseName) -> bool:
        """Return whether the operations of a database are still followed."""
        return self._inspection.profiler.follows(key)

    async def ask(self, key: DatabaseName, after: dict[str, int]) -> Mapping[int, dict[str, Any]]:
        """Return the answers of the other processes."""
        where = {"project": key.project, "database": key.database}
        return await self._inspection.ask({"what": "operations", **where, "after": after})

    def show_each(self, key: DatabaseName, answer: dict[str, Any]) -> Generator[None, None, None]:
        """Show operations to those who follow, and how many were dropped before them."""
        profiler = self._inspection.profiler
        profiler.show_dropped(key, answer["dropped"])
        for shown in answer["operations"]:
            profiler.show(key, shown.encode())
            yield


class Inspection:
    """What admins see of a service.

    Attributes:
        recorder: records requests.
        profiler: records the operations of databases.
        series: records how many there are in each second.
        ask_others: asks the other processes that serve the same databases; None if none does.
        counts: counts the feeds of all processes.

    """

    def __init__(
        self,
        data: DataHandlers,
        sockets: SocketRegistry,
        activity: Activity,
        catalog: Catalog,
    ) -> None:
        """Show what `data` and `sockets` serve of `catalog`, and `activity` counts."""
        context = data.context
        self.ask_others: AskOthers | None = None
        self.counts: Final[Counting] = context.counts or Counts()
        self.recorder: Final = RequestRecorder(context, self._switch_recording)
        self.profiler: Final = Profiler(data, catalog, self._switch_recording)
        self.series: Final = SeriesRecorder(
            context, activity, catalog.statistics, self._switch_series
        )
        self._data, self._sockets = data, sockets
        self._wall_clock = context.wall_clock
        self._slices = context.reads.slices
        data.profiler = sockets.profiler = self.profiler
        self._observer = SessionObserver(sockets, self.recorder, context.clock, self._slices)
        self._connections: Connections | None = None
        self._is_recording = False
        self._requests_followed = RequestsFollowed(self, context.clock, self._slices)
        self._operations_followed = OperationsFollowed(self, context.clock, self._slices)

    def attach(self, connections: Connections) -> None:
        """Record the requests of these connections."""
        self._connections = connections

    def close(self) -> None:
        """Record nothing from now on: the server stops."""
        self.recorder.close()
        self.profiler.close()
        self.series.close()

    def _switch_recording(self) -> None:
        """Connect what is recorded now with the connections, sessions, streams and listens."""
        connections, recorder, profiler = self._connections, self.recorder, self.profiler
        is_on = recorder.is_recording or profiler.is_recording
        if is_on is not self._is_recording:
            self._is_recording = is_on
            watchers = self._data.refuse.watchers
            (watchers.append if is_on else watchers.remove)(recorder.note_refusal)
        self._observer.switch(is_on=is_on)
        if connections is not None:
            logs = connections.options.logs
            logs = recorder.logging(logs) if recorder.is_recording else logs
            connections.log_by(profiler.logging(logs) if profiler.is_recording else logs)
        kinds = PROFILED_STREAMS if profiler.is_recording else ORDINARY_STREAMS
        if kinds is not self._data.stream_kinds:
            self._data.stream_kinds = kinds
            self._observer.switch_listens(is_on=profiler.is_recording)
            self._slices.start(self._switch_streams())

    def _switch_streams(self) -> Generator[None, None, None]:
        """Give the open streams the classes that they have from now on."""
        for each in self._data.streams.listeners:
            if isinstance(each, Stream):
                each.__class__ = self._data.stream_kinds[isinstance(each, ChangesStream)]
                yield

    def _switch_series(self, is_on: bool) -> None:
        watchers, denied = self._data.refuse.watchers, self._sockets.denied
        if is_on:
            watchers.append(self.series.note_refusal)
            denied.append(self.series.note_denial)
        else:
            watchers.remove(self.series.note_refusal)
            denied.remove(self.series.note_denial)

    # What admins request.

    async def requests(
        self, request: IHttp1Request, wanted: DataRequest, database: Database
    ) -> Response | None:
        """Show the last requests of a project, or each as it comes."""
        what = "Access to the requests of a project"
        identity = await self._data.identify_admin(wanted, database, what)
        if wanted.wants_explanation:
            return json_response(wanted, explanation(NO_RULES, is_admin=True))
        chosen, name = RequestFilter.parse(request.uri), database.name
        if wanted.accepts_events:
            feed = RequestFeed(
                recorder=self.recorder,
                chosen=chosen,
                data=self._data,
                counts=self.counts,
                request=request,
                name=name,
                identity=identity,
            )
            if self.ask_others is not None:
                await self._requests_followed.follow(name.project)
            feed.open()
            return None
        own = list(self.recorder.watch(name.project).last)
        answers = await self.ask({"what": "requests", "project": name.project})
        steps = _print_last(own, answers.values(), chosen)
        printed = await self._slices.run(steps)
        if wanted.print == "pretty":
            printed = list(wanted.dialect.indent(printed))
        return text_response(wanted, b"".join(printed))

    async def profile(
        self, request: IHttp1Request, wanted: DataRequest, database: Database
    ) -> Response | None:
        """Show each operation of a database as it comes."""
        what = "Access to the profile of a database"
        identity = await self._data.identify_admin(wanted, database, what)
        if wanted.wants_explanation:
            return json_response(wanted, explanation(NO_RULES, is_admin=True))
        if not wanted.accepts_events:
            raise InvalidQuery("A profile is a stream: send Accept: text/event-stream.")
        feed = ProfileFeed(
            profiler=self.profiler,
            data=self._data,
            counts=self.counts,
            request=request,
            name=database.name,
            identity=identity,
        )
        if self.ask_others is not None:
            await self._operations_followed.follow(database.name)
        feed.open()
        return None

    async def connections(
        self, _: IHttp1Request, wanted: DataRequest, database: Database
    ) -> Response:
        """Show the open streams and WebSockets of a project."""
        what = "Access to the connections of a project"
        await self._data.identify_admin(wanted, database, what)
        if wanted.wants_explanation:
            return json_response(wanted, explanation(NO_RULES, is_admin=True))
        project = database.name.project
        shown = await self._slices.run(self._list_connections(project))
        for kind in shown:
            answers = await self.ask({"what": kind, "project": project})
            for part in answers.values():
                shown[kind]["count"] += part["count"]
                shown[kind]["shown"] += part["shown"]
            newest = sorted(shown[kind]["shown"], key=lambda each: each["since"], reverse=True)
            shown[kind]["shown"] = newest[:MAX_CONNECTIONS]
        return json_response(wanted, shown)

    async def show_series(self, project: str) -> Json:
        """Return how many requests a project had in each of the last seconds."""
        own = self.series.of_this_process(project)
        answers = await self.ask({"what": "series", "project": project})
        others: list[list[Second]] = [each["seconds"] for each in answers.values()]
        return self.series.show([own, *others])

    # The other processes.

    async def answer(self, packed: bytes, number: int) -> bytes:
        """Answer another process, which knows this one by its number."""
        question = unpack(packed)
        what, project = question["what"], question["project"]
        if what == "requests":
            watched = self.recorder.watch(project)
            kept = watched.after(_begin_of(question, watched.count, number))
            shown = await self._slices.run(_show_some(kept))
            return pack({"count": watched.count, "requests": shown}, "requests")
        if what == "operations":
            return self._answer_operations(question, number)
        if what == "series":
            return pack({"seconds": self.series.of_this_process(project)}, "seconds")
        listed = (await self._slices.run(self._list_connections(project)))[what]
        listed["shown"].reverse()
        return pack(listed, "shown")

    def _answer_operations(self, question: dict[str, Any], number: int) -> bytes:
        """Return the first operations that another process has not got, as many as it is sent."""
        name = DatabaseName(question["project"], question["database"])
        watched = self.profiler.watch(name)
        begin = _begin_of(question, watched.count, number)
        kept, shown, size = watched.after(begin), [], 0
        dropped = watched.count - begin - len(kept)
        for each in kept:
            size += len(each)
            if size > UNPACKED_BYTES:
                break
            shown.append(each.decode())
        count = begin + dropped + len(shown)
        answer = {"count": count, "dropped": dropped, "more": count < watched.count}
        return pack({**answer, "operations": shown}, "operations")

    async def ask(self, question: dict[str, Any]) -> dict[int, dict[str, Any]]:
        """Return the answers of the other processes to a question, by their numbers."""
        if self.ask_others is None:
            return {}
        answers = await self.ask_others(zlib.compress(compact(question), 1))
        return {number: unpack(each) for number, each in answers.items()}

    # Connections.

    def _list_connections(self, project: str) -> Generator[None, None, dict[str, Any]]:
        """Return the streams and sockets of a project in this process, the newest first."""
        listed: dict[str, Any] = {
            kind: {"count": 0, "shown": []} for kind in ("streams", "sockets")
        }
        streams, sockets = self._data.streams.listeners, self._sockets.listeners
        everything: list[Listener] = [*reversed(streams), *reversed(sockets)]
        for at, each in enumerate(everything):
            if at % LOOKED_AT_ONCE == 0:
                yield
            if each.name.project != project or not isinstance(each, Stream | RealtimeSession):
                continue
            of_kind = listed["streams" if isinstance(each, Stream) else "sockets"]
            of_kind["count"] += 1
            if of_kind["count"] <= MAX_CONNECTIONS:
                of_kind["shown"].append(self._show_connection(each))
        return listed

    def _show_connection(self, each: Stream | RealtimeSession) -> dict[str, Json]:
        opened = self._wall_clock() - (perf_counter() - began_at(each.request))
        shown: dict[str, Json] = {
            "database": each.name.label,
            "uid": uid_of(each.identity),
            "admin": each.identity.is_admin,
            "address": address_of(each.request),
            "since": format_time(opened),
        }
        if isinstance(each, RealtimeSession):
            shown["listens"] = each.listen_count
            shown["on_disconnect"] = each.writes_at_end
            shown["client"] = each.sdk or self.recorder.hide(shown_agent(each.request))
        else:
            shown["path"] = self.recorder.hide(show_path(each.wanted))
            shown["events"] = each.events
            shown["bytes"] = each.sent_bytes
            shown["query"] = self.recorder.hide(show_query(each.wanted.parameters))
        return shown


def _begin_of(question: dict[str, Any], count: int, number: int) -> int:
    """Return after how many items the answer begins, of `count` that this process has recorded.

    A process that was started again begins at 1, one that was not asked yet now; `number` is that
    by which the one that asks knows this one.
    """
    if "after" not in question:
        return 0
    after: int = question["after"].get(str(number), count)
    return after if after <= count else 0


def _show_some(requests: Iterable[SeenRequest]) -> Generator[None, None, list[Json]]:
    """Return requests for another process, the newest of them if they are long."""
    shown: list[Json] = []
    size = 0
    for each in reversed(list(requests)):
        printed = each.printed()
        size += len(printed)
        if size > UNPACKED_BYTES:
            break
        shown.append(orjson.loads(printed))
        yield
    return shown[::-1]


def _print_last(
    own: list[SeenRequest], answers: Iterable[dict[str, Any]], chosen: RequestFilter
) -> Generator[None, None, list[bytes]]:
    """Print the last requests that are chosen of those of all processes, as a JSON array."""
    seen = []
    for each in own:
        if chosen.shows(each):
            seen.append(each)
        yield
    for answer in answers:
        for shown in answer["requests"]:
            each = SeenRequest.parse(shown)
            if chosen.shows(each):
                seen.append(each)
            yield
    seen.sort(key=lambda each: each.at)
    printed, separator = [], b"["
    for each in seen[-KEPT:]:
        printed.append(separator + each.printed())
        separator = b","
        yield
    return [*printed, b"]" if printed else b"[]"]


class RequestFeed(Feed[SeenRequest]):
    """A stream of the requests of a project, as they come."""

    kind = "request streams"
    most_waiting = MAX_WAITING
    most_waiting_bytes = 0
    send_s = 0.1
    sent_at_once = 64
    sent_bytes_at_once = 64 * KIB

    def __init__(
        self,
        *,
        recorder: RequestRecorder,
        chosen: RequestFilter,
        data: DataHandlers,
        counts: Counting,
        request: IHttp1Request,
        name: DatabaseName,
        identity: Identity,
    ) -> None:
        """Send the `chosen` requests of the project of `name` to an admin."""
        super().__init__(data=data, counts=counts, request=request, name=name, identity=identity)
        self._recorder, self._chosen = recorder, chosen

    def begin(self) -> None:
        """Follow the requests; raise `TooManyStreams`."""
        self._recorder.watch(self.name.project).followers.append(self)

    def stop(self) -> None:
        """Follow them no longer."""
        self._recorder.unfollow(self.name.project, self)

    def add(self, item: SeenRequest) -> None:
        """Send a request soon, if it is chosen."""
        if self._chosen.shows(item):
            super().add(item)

    def size_of(self, _: SeenRequest) -> int:
        """Return 0: a request is printed when it is sent, so only their number has a bound."""
        return 0

    def frame_of(self, item: SeenRequest) -> bytes:
        """Return the frame of a request."""
        return b"event: request\ndata: %b\n\n" % item.printed()

    def frame_of_dropped(self, count: int) -> bytes:
        """Return the frame that says how many requests were dropped."""
        return b'event: dropped\ndata: {"count":%d}\n\n' % count
