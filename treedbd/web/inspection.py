"""Inspection: what an admin sees of the requests, connections and rates of a project, as they are.

`Inspection` switches the recorders on and off: of requests (`seen_requests`), of the messages of
sessions (`realtime/observed`), and of series (`series`). It answers `/.inspect/requests.json`, once
or as a stream (`RequestFeed`), and `/.inspect/connections.json`. Where several workers serve, it
asks the others too: for each answer, and each `POLL_S` while requests are followed.

A feed is a stream among others: the registry of streams counts it, sends its keep-alives, and ends
it when its token expires. It never makes a request wait: what its client does not read in time is
dropped, and the client is sent how many requests that were.
"""

from __future__ import annotations

import zlib
from collections import deque
from collections.abc import Awaitable, Callable, Generator, Iterable, Mapping
from contextlib import suppress
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import orjson
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IDelayedCall, IPushProducer
from zope.interface import implementer

from treedbd.counting import Counting, Counts
from treedbd.database.database import Database
from treedbd.database.runtime import Statistics
from treedbd.http1.parser import CutOff
from treedbd.http1.registry import Connections
from treedbd.http1.request import IHttp1Request
from treedbd.limits import KIB
from treedbd.names import DatabaseName
from treedbd.rules.evaluate import explanation
from treedbd.tree.types import Json
from treedbd.tree.value import compact
from treedbd.web.activity import Activity
from treedbd.web.auth.identity import Identity
from treedbd.web.listeners import Listener, SocketRegistry, TooManyStreams
from treedbd.web.reading import NO_RULES
from treedbd.web.realtime.observed import SessionObserver
from treedbd.web.realtime.session import RealtimeSession
from treedbd.web.request import DataRequest
from treedbd.web.response import (
    Response,
    address_of,
    counted_address_of,
    json_response,
    text_response,
)
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
from treedbd.web.streams import AUTH_REVOKED, KEEP_ALIVE, STREAM_HEADERS, Stream

if TYPE_CHECKING:
    from treedbd.web.resource import DataHandlers

MAX_FEEDS: Final = 8
"""Streams of the requests of a project, in all processes together."""
MAX_WAITING: Final = 500
"""Requests that wait for the client of a feed; of more, the oldest are dropped."""
SEND_S: Final = 0.1
"""A feed sends what has come at most this often."""
SENT_AT_ONCE: Final = 64
SENT_BYTES: Final = 64 * KIB
"""Requests, and bytes, that a feed sends at once."""
POLL_S: Final = 0.5
"""How often the other workers are asked for requests that are followed."""
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


class Inspection:
    """What admins see of a service.

    Attributes:
        recorder: records requests.
        series: records how many there are in each second.
        ask_others: asks the other processes that serve the same databases; None if none does.
        counts: counts the feeds of all processes.

    """

    def __init__(
        self,
        data: DataHandlers,
        sockets: SocketRegistry,
        activity: Activity,
        statistics: Statistics,
    ) -> None:
        """Show what `data` and `sockets` serve, and `activity` and `statistics` count."""
        context = data.context
        self.ask_others: AskOthers | None = None
        self.counts: Final[Counting] = context.counts or Counts()
        self.recorder: Final = RequestRecorder(context, self._switch_requests)
        self.series: Final = SeriesRecorder(context, activity, statistics, self._switch_series)
        self._data, self._sockets = data, sockets
        self._clock, self._wall_clock = context.clock, context.wall_clock
        self._slices = context.reads.slices
        self._observer = SessionObserver(sockets, self.recorder, context.clock)
        self._connections: Connections | None = None
        self._followed: dict[str, dict[str, int]] = {}

    def attach(self, connections: Connections) -> None:
        """Record the requests of these connections."""
        self._connections = connections

    def close(self) -> None:
        """Record nothing from now on: the server stops."""
        self.recorder.close()
        self.series.close()

    def _switch_requests(self, is_on: bool) -> None:
        connections, watchers = self._connections, self._data.refuse.watchers
        if is_on:
            watchers.append(self.recorder.note_refusal)
            self._observer.begin()
        else:
            watchers.remove(self.recorder.note_refusal)
            self._observer.end()
        if connections is not None:
            logs = connections.options.logs
            connections.log_by(self.recorder.logging(logs) if is_on else logs)

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
                inspection=self,
                data=self._data,
                request=request,
                name=name,
                identity=identity,
                chosen=chosen,
            )
            await self._follow_others(name.project)
            feed.open()
            return None
        own = list(self.recorder.watch(name.project).last)
        answers = await self._ask({"what": "requests", "project": name.project})
        steps = _print_last(own, [unpack(each) for each in answers.values()], chosen)
        printed = await self._slices.run(steps)
        if wanted.print == "pretty":
            printed = list(wanted.dialect.indent(printed))
        return text_response(wanted, b"".join(printed))

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
            answers = await self._ask({"what": kind, "project": project})
            for part in map(unpack, answers.values()):
                shown[kind]["count"] += part["count"]
                shown[kind]["shown"] += part["shown"]
            newest = sorted(shown[kind]["shown"], key=lambda each: each["since"], reverse=True)
            shown[kind]["shown"] = newest[:MAX_CONNECTIONS]
        return json_response(wanted, shown)

    async def show_series(self, project: str) -> Json:
        """Return how many requests a project had in each of the last seconds."""
        own = self.series.of_this_process(project)
        answers = await self._ask({"what": "series", "project": project})
        others: list[list[Second]] = [unpack(each)["seconds"] for each in answers.values()]
        return self.series.show([own, *others])

    # The other processes.

    async def answer(self, packed: bytes, number: int) -> bytes:
        """Answer another process, which knows this one by its number."""
        question = unpack(packed)
        what, project = question["what"], question["project"]
        if what == "requests":
            watched = self.recorder.watch(project)
            # A process that was started again begins at 1, one that was not asked yet now.
            after = 0
            if "after" in question:
                after = question["after"].get(str(number), watched.count)
            kept = watched.after(after if after <= watched.count else 0)
            shown = await self._slices.run(_show_some(kept))
            return pack({"count": watched.count, "requests": shown}, "requests")
        if what == "series":
            return pack({"seconds": self.series.of_this_process(project)}, "seconds")
        listed = (await self._slices.run(self._list_connections(project)))[what]
        listed["shown"].reverse()
        return pack(listed, "shown")

    async def _ask(self, question: dict[str, Any]) -> Mapping[int, bytes]:
        if self.ask_others is None:
            return {}
        return await self.ask_others(zlib.compress(compact(question), 1))

    async def _follow_others(self, project: str) -> None:
        """Begin to ask the other processes for the requests of a project, unless that is done.

        Returns when they record them, so what follows the head of a feed is in it.
        """
        if self.ask_others is not None and project not in self._followed:
            self._followed[project] = {}
            await self._poll(project)

    async def _poll(self, project: str) -> None:
        with suppress(Exception):  # a process that cannot answer now may later
            await self._poll_once(project)
        self._clock.callLater(POLL_S, self._poll_again, project)

    def _poll_again(self, project: str) -> None:
        if self.recorder.follows(project):
            Deferred.fromCoroutine(self._poll(project))
        else:
            del self._followed[project]

    async def _poll_once(self, project: str) -> None:
        after = self._followed[project]
        answers = await self._ask({"what": "requests", "project": project, "after": after})
        for number, packed in answers.items():
            answer = unpack(packed)
            await self._slices.run(self._show_each(project, answer["requests"]))
            after[str(number)] = answer["count"]

    def _show_each(self, project: str, requests: Iterable[Any]) -> Generator[None, None, None]:
        for shown in requests:
            self.recorder.show(project, SeenRequest.parse(shown))
            yield

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
        opened = self._wall_clock() - (perf_counter() - _began(each.request))
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


def _began(request: Any) -> float:
    """Return when a request was complete, in seconds of `perf_counter`."""
    began: float = getattr(request, "began", perf_counter())
    return began


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


@implementer(IPushProducer)
class RequestFeed:
    """A stream of the requests of a project, as they come; also the producer of its transport.

    Attributes:
        name, identity, address: as those of each stream.
        last_sent: when something was sent last, in seconds of the clock.
        sent_bytes: how many bytes were sent so far.

    """

    def __init__(
        self,
        *,
        inspection: Inspection,
        data: DataHandlers,
        request: IHttp1Request,
        name: DatabaseName,
        identity: Identity,
        chosen: RequestFilter,
    ) -> None:
        """Send the `chosen` requests of the project of `name` to an admin."""
        self.name: Final = name
        self.identity: Final = identity
        self.address: Final = counted_address_of(request)
        self._request, self._chosen = request, chosen
        self._recorder, self._counts = inspection.recorder, inspection.counts
        self._key = f"request streams of {name.project}"
        self._streams, self._writer = data.streams, data.context.writer
        self._clock = data.context.clock
        self.last_sent = self._clock.seconds()
        self.sent_bytes = 0
        self._waiting: deque[SeenRequest] = deque()
        self._dropped = 0
        self._due: IDelayedCall | None = None
        self._is_paused = False
        self._is_open = False

    def open(self) -> None:
        """Begin; raise `TooManyStreams` or `StreamsExhausted`."""
        request = self._request
        self._streams.check(self.name, self.address, self.identity)
        if self._counts.total(self._key) >= MAX_FEEDS:
            raise TooManyStreams("There are too many streams of the requests of this project.")
        headers = (*STREAM_HEADERS, *self._writer.common_headers(request, no_store=False))
        if request.method == b"HEAD":
            request.start(200, headers, closes_connection=True)
            request.finish()
            return
        watched = self._recorder.watch(self.name.project)
        self._is_open = True
        self._counts.add(self._key)
        self._streams.add(self)
        watched.followers.append(self._follow)
        request.notifyFinish().addBoth(self._close)
        if not self._is_open:
            return  # the client has disconnected before
        request.start(200, headers, closes_connection=True)
        request.has_own_timeout = True
        request.registerProducer(self, True)
        self._write(KEEP_ALIVE)

    def _follow(self, seen: SeenRequest) -> None:
        """Send a request soon, if it is chosen."""
        if not self._chosen.shows(seen):
            return
        if len(self._waiting) >= MAX_WAITING:
            self._waiting.popleft()
            self._dropped += 1
        self._waiting.append(seen)
        if self._due is None and not self._is_paused:
            self._due = self._clock.callLater(SEND_S, self._send_some)

    def _send_some(self) -> None:
        self._due = None
        frames = []
        if self._dropped:
            frames.append(b'event: dropped\ndata: {"count":%d}\n\n' % self._dropped)
            self._dropped = 0
        size = 0
        while self._waiting and len(frames) < SENT_AT_ONCE and size < SENT_BYTES:
            printed = self._waiting.popleft().printed()
            size += len(printed)
            frames.append(b"event: request\ndata: %b\n\n" % printed)
        if self._waiting:
            self._due = self._clock.callLater(SEND_S, self._send_some)
        self._write(b"".join(frames))

    def _write(self, data: bytes) -> None:
        if data and self._is_open:
            self.last_sent = self._clock.seconds()
            self.sent_bytes += len(data)
            self._request.write(data)

    # From the registry of streams.

    def keep_alive(self) -> None:
        """Send a keep-alive, unless the client does not read."""
        if not self._is_paused:
            self._write(KEEP_ALIVE)

    def retry(self) -> None:
        """Do nothing: it is never postponed."""

    def lose_identity(self) -> None:
        """End with `auth_revoked`: the token has expired, or is no longer trusted."""
        self.end(AUTH_REVOKED)

    def revoke(self) -> None:
        """Go on: it shows the project, of which one database is deleted."""

    def end(self, last_frame: bytes = b"") -> None:
        """End cleanly; `last_frame` says why."""
        if self._is_open:
            self._write(last_frame)
            self._close(None)
            self._request.unregisterProducer()
            self._request.finish()

    def abort(self, reason: CutOff = "slow") -> None:
        """Drop the connection."""
        if self._is_open:
            self._close(None)
            self._request.abort(reason)

    # The transport.

    def pauseProducing(self) -> None:
        """Stop writing until the client has read what was sent."""
        self._is_paused = True
        self._streams.pause(self)
        if self._due is not None:
            self._due.cancel()
            self._due = None

    def resumeProducing(self) -> None:
        """Write what waits."""
        self._is_paused = False
        self._streams.resume(self)
        if self._is_open and self._waiting and self._due is None:
            self._due = self._clock.callLater(SEND_S, self._send_some)

    def stopProducing(self) -> None:
        """Stop writing: the connection is gone."""
        self._close(None)

    def _close(self, _: object) -> None:
        if not self._is_open:
            return
        self._is_open = False
        self._waiting.clear()
        if self._due is not None:
            self._due.cancel()
            self._due = None
        self._counts.remove(self._key)
        self._streams.remove(self)
        self._recorder.unfollow(self.name.project, self._follow)
