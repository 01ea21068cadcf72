"""The endpoints for operators of one service, `ops_listen`, and the counting for them.

Without such endpoints nothing is counted that would not be anyway. Workers show each other what
they count (`operating/board`), so that each of them shows what all have counted.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import Any, Final

import attrs
from twisted.internet.defer import Deferred, DeferredLock
from twisted.internet.defer import TimeoutError as DeferredTimeoutError
from twisted.internet.error import ConnectionDone, ConnectionLost
from twisted.internet.task import LoopingCall
from twisted.internet.threads import deferToThreadPool
from twisted.logger import Logger
from twisted.python.failure import Failure

from treedbd.config.listening import Listening
from treedbd.config.settings import Settings
from treedbd.database.catalog import Catalog
from treedbd.database.requests import Unavailable
from treedbd.database.runtime import Problem
from treedbd.http1.server import Http1Factory
from treedbd.limits import Limits
from treedbd.loop import Turns
from treedbd.operating.board import SampleBoard
from treedbd.operating.metrics import (
    METRICS,
    NOTHING,
    OpsResource,
    Probes,
    Samples,
    Sources,
    add_problems,
    add_up,
    format_samples,
    growing,
    read_samples,
)
from treedbd.web.activity import Activity

OPS_CONNECTIONS: Final = 32
"""Connections to these endpoints that may be open; they are not among those of clients."""
COUNT_S: Final = 1.0
"""Seconds between two times that what was noted is counted, and shown to other workers."""
LOOK_EACH: Final = 5
"""Each so many of these times it looks up the metrics of its process."""
ANSWER_S: Final = 3.0
"""Seconds within which the other workers have to say what is wrong with them."""
LATE_S: Final = 10.0
"""Seconds after which what another worker has shown counts no longer, unless it only grows."""

GROWING: Final = tuple(metric for metric in METRICS if metric.only_grows)


class Operations:
    """The endpoints for operators of one service."""

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
        """Prepare; `endpoints` are those for operators, of which none is opened yet.

        `board` is that of several workers, None without.
        """
        self._reactor = reactor
        self._catalog = catalog
        self._activity = activity
        self._endpoints_of_clients = endpoints_of_clients
        self._sources = sources
        self._probes = Probes(
            None if settings.engine == "memory" else settings.data,
            sources.requests.label_of,
            has_backups=not settings.is_cluster,
        )
        self._resource = OpsResource(self._scrape, self._catalog.find_problems)
        self._factory = Http1Factory(self._resource, _limits(settings.limits), reactor)
        self._listening = endpoints
        self._board = board
        self._before: Samples = NOTHING if board is None else board.before()
        self._scrapes = DeferredLock()
        self._counting = LoopingCall(self._count)
        self._counting.clock = reactor
        self._until_look = 0

    def urls(self) -> list[str]:
        """Return the URLs of the open endpoints, as this machine reaches them."""
        return self._listening.urls()

    def open(self) -> None:
        """Open the endpoints; raise `CannotStart`."""
        self._listening.open(self._factory)

    def start(self) -> None:
        """Count, and show the other workers what is counted, from now on."""
        if self._listening.ports:
            self._counting.start(COUNT_S)

    def show_turns(self, turns: Turns) -> None:
        """Show the turns of the event loop."""
        self._sources.turns = self._resource.turns = turns

    def reload(self) -> bool:
        """Read the certificates again, for new connections; return whether all are valid."""
        return self._listening.reload()

    def begin_ending(self) -> None:
        """Say from now on that the service is not ready; it still answers."""
        self._resource.is_ending = True

    def close_at_once(self) -> None:
        """Accept no connection any more, and drop those that are open."""
        if self._counting.running:
            self._counting.stop()
            self._publish()
        self._listening.close()
        self._factory.abort()

    async def _scrape(self, accept: str) -> tuple[bytes, str]:
        """Return the metrics of all processes as text, and its media type."""
        await self._scrapes.acquire()  # one at a time: each takes a thread for a while
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
        self._sources.facts = add_problems(
            facts, problems, self._endpoints_of_clients.certificates_end_at()
        )
        self._sources.process = await self._in_thread(self._probes.look_at_process)

    async def _find_problems(self) -> list[Problem]:
        """Return the problems of all processes; of this one, if others do not answer."""
        try:
            return await self._catalog.find_problems().addTimeout(ANSWER_S, self._reactor)
        except (DeferredTimeoutError, ConnectionDone, ConnectionLost, Unavailable):
            return await self._catalog.find_own_problems()

    def _count(self) -> Deferred[None] | None:
        """Count what was noted; show it to the other workers, with the process now and then."""
        if self._board is None:
            self._sources.statistics.count()
            return None
        self._publish()
        self._until_look -= 1
        if self._until_look > 0:
            return None
        self._until_look = LOOK_EACH
        looking = self._in_thread(self._probes.look_at_process)
        return looking.addCallback(self._set_process).addErrback(self._could_not_look)

    def _set_process(self, process: Mapping[str, float]) -> None:
        self._sources.process = process

    def _could_not_look(self, failure: Failure) -> None:
        self._log.failure("The metrics of this process cannot be read.", failure)

    def _in_thread(self, work: Callable[[], Any]) -> Deferred[Any]:
        return deferToThreadPool(self._reactor, self._reactor.getThreadPool(), work)

    def _publish(self) -> Samples:
        """Return what this process counts, with what those before it have; show it to others."""
        self._activity.count()
        self._sources.statistics.count()
        samples = read_samples(METRICS, self._sources)
        if self._board is not None:
            samples |= add_up(GROWING, [growing(METRICS, samples), self._before])
            with contextlib.suppress(OSError):  # no memory: the others see what there was before
                self._board.write(samples, self._reactor.seconds())
        return samples

    def _read_others(self) -> list[Samples]:
        """Return what the other workers count; of those that have ended what does not fall."""
        if self._board is None:
            return []
        late = self._reactor.seconds() - LATE_S
        return [
            samples if at >= late else growing(METRICS, samples)
            for at, samples in self._board.read_others()
        ]


def _limits(limits: Limits) -> Limits:
    most = OPS_CONNECTIONS
    return attrs.evolve(limits, connections=most, connections_per_address=most)
