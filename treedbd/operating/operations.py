"""The endpoints for operators of one service, `ops_listen`, and the counting for them.

`Operations` collects the metrics and the problems, which `OpsResource` serves. Without such
endpoints nothing is counted for them. Workers share their values (`SampleBoard` in
`operating/metrics`), so each shows the sums of all.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable, Coroutine
from typing import Any, Final

import attrs
import orjson
from twisted.internet.defer import Deferred, DeferredLock
from twisted.internet.defer import TimeoutError as DeferredTimeoutError
from twisted.internet.error import ConnectionDone, ConnectionLost
from twisted.internet.task import LoopingCall
from twisted.internet.threads import deferToThreadPool
from twisted.logger import Logger
from twisted.python.failure import Failure
from twisted.web.resource import Resource
from twisted.web.server import NOT_DONE_YET
from zope.interface import implementer

from treedbd import __version__
from treedbd.config.endpoints import names_of
from treedbd.config.listening import Listening
from treedbd.config.settings import Settings
from treedbd.database.catalog import Catalog
from treedbd.database.requests import SHUTTING_DOWN, Unavailable
from treedbd.database.runtime import Problem
from treedbd.http1.parser import ERROR_HEADERS, ErrorReply, Header, first, format_body
from treedbd.http1.request import IHttp1Request, IHttp1Resource
from treedbd.http1.server import Http1Factory
from treedbd.loop import Turns
from treedbd.operating.metrics import (
    METRICS,
    NOTHING,
    Probes,
    SampleBoard,
    Samples,
    Sources,
    add_problems,
    add_up,
    format_samples,
    growing,
    read_samples,
)
from treedbd.tree.types import InvalidPath
from treedbd.web.activity import Activity
from treedbd.web.origins import is_loopback_address
from treedbd.web.request import Addressing, Misdirected
from treedbd.web.response import address_of

OPS_CONNECTIONS: Final = 32
"""How many connections to these endpoints may be open, besides those of clients."""
COUNT_S: Final = 1.0
"""Seconds between two counts, each of which is written to the board for the other workers."""
LOOK_EACH: Final = 5
"""After how many counts the metrics of the process are measured again."""
ANSWER_S: Final = 3.0
"""Seconds within which the other workers have to report their problems."""
LATE_S: Final = 10.0
"""Seconds after which the values of another worker no longer count, unless they only grow."""

METHODS: Final = (b"GET", b"HEAD")
MAX_PROBLEMS: Final = 1000
"""How many problems are listed."""
_NOT_FOUND: Final = ErrorReply(
    404, "not_found", "There is nothing here but /.metrics and /.health."
)
_BAD_METHOD: Final = ErrorReply(405, "method_not_allowed", "The methods are GET and HEAD.")
_MISDIRECTED: Final = ErrorReply(
    421, "misdirected", "On this machine operators are served at localhost and at IP addresses."
)
_TOO_LARGE: Final = ErrorReply(413, "payload_too_large", "The request body is too large.")
_FAILED: Final = ErrorReply(
    500, "internal_error", "An internal error occurred; it has been logged."
)
_HEADERS: Final = tuple(each for each in ERROR_HEADERS if each[0] != b"Content-Type")
_JSON: Final = b"application/json; charset=utf-8"

GROWING: Final = tuple(metric for metric in METRICS if metric.only_grows)


class Operations:
    """The endpoints for operators of one service.

    Attributes:
        sources: the sources of the metrics.
        endpoints: the endpoints.
        is_ending: whether the service is stopping, and so not ready.

    """

    _log = Logger()

    def __init__(
        self,
        settings: Settings,
        reactor: Any,
        *,
        sources: Sources,
        catalog: Catalog,
        activity: Activity,
        endpoints: Listening,
        endpoints_of_clients: Listening,
        board: SampleBoard | None,
    ) -> None:
        """Open nothing yet; `endpoints` are those for operators.

        `board` is that of several workers, None without workers.
        """
        self._reactor = reactor
        self._catalog = catalog
        self._activity = activity
        self._endpoints_of_clients = endpoints_of_clients
        self.sources: Final = sources
        self.is_ending = False
        self._probes = Probes(
            None if settings.engine == "memory" else settings.data,
            sources.requests.label_of,
            has_backups=not settings.is_cluster,
        )
        most = OPS_CONNECTIONS
        limits = attrs.evolve(settings.limits, connections=most, connections_per_address=most)
        self._factory = Http1Factory(OpsResource(self, catalog), limits, reactor)
        self.endpoints: Final = endpoints
        self._board = board
        self._before: Samples = NOTHING if board is None else board.before()
        self._scrapes = DeferredLock()
        self._counting = LoopingCall(self._count)
        self._counting.clock = reactor
        self._until_look = 0

    def open(self) -> None:
        """Open the endpoints; raise `CannotStart`."""
        self.endpoints.open(self._factory)

    def start(self) -> None:
        """Count from now on, and show the values to the other workers."""
        if self.endpoints.ports:
            self._counting.start(COUNT_S)

    def show_turns(self, turns: Turns) -> None:
        """Show the turns of the event loop."""
        self.sources.turns = turns

    def close_at_once(self) -> None:
        """Close the endpoints, and drop the open connections."""
        if self._counting.running:
            self._counting.stop()
            self._publish()
        self.endpoints.close()
        self._factory.abort()

    async def scrape(self, accept: str) -> tuple[bytes, str]:
        """Return the metrics of all processes as text, and its media type."""
        await self._scrapes.acquire()  # one at a time, since each occupies a thread for a while
        try:
            await self._look()
            samples = add_up(METRICS, [self._publish(), *self._read_others()])
            text: tuple[bytes, str] = await self._in_thread(
                lambda: format_samples(METRICS, samples, accept)
            )
            return text
        finally:
            self._scrapes.release()

    async def _look(self) -> None:
        problems = await self._find_problems()
        facts = await self._in_thread(self._probes.look_at_data)
        self.sources.facts = add_problems(
            facts, problems, self._endpoints_of_clients.certificates_end_at()
        )
        self.sources.process = await self._in_thread(self._probes.look_at_process)

    async def _find_problems(self) -> list[Problem]:
        """Return the problems of all processes; those of this one if another does not answer."""
        try:
            return await self._catalog.find_problems().addTimeout(ANSWER_S, self._reactor)
        except (DeferredTimeoutError, ConnectionDone, ConnectionLost, Unavailable):
            return await self._catalog.find_own_problems()

    def _count(self) -> Deferred[None] | None:
        """Count and write the values to the board; every `LOOK_EACH` times measure the process."""
        if self._board is None:
            self.sources.statistics.count()
            return None
        self._publish()
        self._until_look -= 1
        if self._until_look > 0:
            return None
        self._until_look = LOOK_EACH
        return Deferred.fromCoroutine(self._look_at_process())

    async def _look_at_process(self) -> None:
        try:
            self.sources.process = await self._in_thread(self._probes.look_at_process)
            await self._catalog.find_own_problems()  # which measures the lags of readers
        except Exception:
            self._log.failure("The metrics of this process cannot be read.")

    def _in_thread(self, work: Callable[[], Any]) -> Deferred[Any]:
        return deferToThreadPool(self._reactor, self._reactor.getThreadPool(), work)

    def _publish(self) -> Samples:
        """Return the values of this process and its predecessors; write them to the board."""
        self._activity.count()
        self.sources.statistics.count()
        samples = read_samples(METRICS, self.sources)
        if self._board is not None:
            samples |= add_up(GROWING, [growing(METRICS, samples), self._before])
            with contextlib.suppress(OSError):  # without memory the others see the previous values
                self._board.write(samples, self._reactor.seconds())
        return samples

    def _read_others(self) -> list[Samples]:
        """Return the values of the other workers; of those that have ended only what grows."""
        if self._board is None:
            return []
        late = self._reactor.seconds() - LATE_S
        return [
            samples if at >= late else growing(METRICS, samples)
            for at, samples in self._board.read_others()
        ]


def report_health(problems: list[Problem], turns: Turns | None) -> dict[str, Any]:
    """Return the health of the service as JSON; with problems it has the members of an error."""
    report: dict[str, Any] = {"status": "ok", "version": __version__}
    if problems:
        count = len(problems)
        what = "1 thing is" if count == 1 else f"{count} things are"
        report = {
            "error": "unavailable",
            "message": f"{what} not as it should be.",
            **report,
            "status": "unavailable",
        }
    report["problems"] = [attrs.asdict(each) for each in problems[:MAX_PROBLEMS]]
    if turns is not None:
        summary = turns.summarise()
        report["turns"] = {
            "count": summary.count,
            "p50_ms": round(summary.p50_s * 1000, 3),
            "p99_ms": round(summary.p99_s * 1000, 3),
            "longest_ms": round(summary.longest_s * 1000, 3),
        }
    return report


@implementer(IHttp1Resource)
class OpsResource(Resource):
    """Serves `/.metrics` and `/.health`, and nothing else.

    They are for operators: they need no token and show every name and reason. A page in a browser
    cannot read them, because no CORS header allows it. A page whose host name resolves to this
    machine (DNS rebinding) needs no such header, so clients on this machine must use a name of this
    machine.
    """

    isLeaf = True
    _log = Logger()

    def __init__(self, operations: Operations, catalog: Catalog) -> None:
        """Serve the metrics of `operations` and the problems of `catalog`."""
        Resource.__init__(self)
        self._operations = operations
        self._catalog = catalog
        own_hosts = ("*.localhost", *names_of(socket.gethostname()))
        self._addressing: Final = Addressing((), "", own_hosts=own_hosts)
        self._pages: Final[dict[bytes, Callable[[IHttp1Request], Coroutine[Any, Any, None]]]] = {
            b"/.metrics": self._answer_metrics,
            b"/.health": self._answer_health,
        }

    def render(self, request: Any) -> int:
        """Answer a request, now or later."""
        page = self._pages.get(request.path)
        if page is None:
            _refuse(request, _NOT_FOUND)
        elif request.is_oversized:
            _refuse(request, _TOO_LARGE)
        elif request.method not in METHODS:
            _refuse(request, _BAD_METHOD, (b"Allow", b"GET, HEAD"))
        else:
            Deferred.fromCoroutine(page(request)).addErrback(self._fail, request)
        return NOT_DONE_YET

    def _fail(self, failure: Failure, request: IHttp1Request) -> None:
        self._log.failure("A request of an operator failed.", failure)
        _refuse(request, _FAILED)

    def _is_of_another_site(self, request: IHttp1Request) -> bool:
        """Return whether a client on this machine uses a host name of another machine."""
        address = address_of(request)
        if not address or not is_loopback_address(address):
            return False
        try:
            self._addressing.check_host(request.headers.get(b"host", ()), None)
        except Misdirected:
            return True
        except InvalidPath:  # without a host, as in HTTP/1.0
            return False
        return False

    async def _answer_metrics(self, request: IHttp1Request) -> None:
        if self._is_of_another_site(request):
            _refuse(request, _MISDIRECTED)
            return
        body, media_type = await self._operations.scrape(first(request.headers, b"accept") or "")
        _send(request, 200, media_type.encode(), body)

    async def _answer_health(self, request: IHttp1Request) -> None:
        options = {part.partition(b"=")[0] for part in request.uri.partition(b"?")[2].split(b"&")}
        if b"live" in options:
            _send_json(request, 200, {"status": "ok"})
            return
        if self._is_of_another_site(request):
            _refuse(request, _MISDIRECTED)
            return
        if self._operations.is_ending:
            _refuse(request, ErrorReply(503, "unavailable", SHUTTING_DOWN))
            return
        problems = await self._catalog.find_problems()
        if b"ready" in options:
            problems = [each for each in problems if each.refuses_writes]
        report = report_health(problems, self._operations.sources.turns)
        _send_json(request, 503 if problems else 200, report)


def _send_json(request: IHttp1Request, status: int, report: dict[str, Any]) -> None:
    _send(request, status, _JSON, orjson.dumps(report))


def _send(
    request: IHttp1Request, status: int, media_type: bytes, body: bytes, *headers: Header
) -> None:
    request.send(status, ((b"Content-Type", media_type), *_HEADERS, *headers), body)


def _refuse(request: IHttp1Request, error: ErrorReply, *headers: Header) -> None:
    _send(request, error.status, _JSON, format_body(error), *headers)
