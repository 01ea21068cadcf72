"""What a worker shares with the others, as its service uses it (`WorkerContext`)."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Final

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IListeningPort, IProtocolFactory

from treedbd.config.certificate import ServerContext
from treedbd.config.endpoints import Endpoint
from treedbd.config.listening import accept_at_most, adopt_port, in_tls
from treedbd.config.settings import Settings
from treedbd.database.requests import Unavailable
from treedbd.database.runtime import Problem
from treedbd.names import DatabaseName
from treedbd.operating.board import SampleBoard
from treedbd.store.lock import DirectoryLock
from treedbd.web.activity import ProjectActivity
from treedbd.workers.board import Board, SharedLevels
from treedbd.workers.channel import Channel
from treedbd.workers.hints import Hints
from treedbd.workers.protocol import (
    Damaged,
    FindActivity,
    FindProblems,
    GiveRulesTurn,
    TakeRulesTurn,
    decode_activity,
    decode_problems,
)
from treedbd.workers.start import (
    BOARD,
    DIRECTORY_LOCK,
    RECEIVER,
    SAMPLES,
    ListeningSocket,
    WorkerStart,
)

NO_PARENT: Final = "The server is shutting down."


class Companions:
    """The other workers, by way of the parent, the board and the sockets of hints.

    Attributes:
        checks_files: whether this worker, and no other, checks files for damage.
        lock: that of the data directory.
        counts, levels: the board.
        samples: what each of them counts for metrics.
        hints: sends and receives hints.

    """

    def __init__(self, start: WorkerStart, settings: Settings, reactor: Any, received: Any) -> None:
        """Use what was inherited; call `received` with each database that others have written."""
        self.checks_files: Final = start.checks_files
        self.lock: Final = DirectoryLock.inherit(settings.data, DIRECTORY_LOCK)
        self.counts: Final = Board(BOARD, start.number, start.workers, start.secret)
        self.levels: Final = SharedLevels(BOARD, start.workers, start.secret)
        others = [_adopt_socket(descriptor) for descriptor in start.others]
        self.hints: Final = Hints(reactor, _adopt_socket(RECEIVER), others, received)
        self.parent: Channel | None = None
        self._reactor = reactor
        self.samples: Final = SampleBoard(SAMPLES, start.number, start.workers)
        of_clients = len(settings.listen)
        self._listening = dict(zip(settings.listen, start.listening[:of_clients], strict=True))
        self._ops = dict(zip(settings.ops_listen, start.listening[of_clients:], strict=True))

    def adopt_port(
        self, endpoint: Endpoint, factory: IProtocolFactory, context: ServerContext | None
    ) -> IListeningPort:
        """Accept connections of an endpoint that the parent has opened."""
        return self._adopt(self._listening[endpoint], factory, context)

    def adopt_ops_port(
        self, endpoint: Endpoint, factory: IProtocolFactory, context: ServerContext | None
    ) -> IListeningPort:
        """Accept connections of an endpoint for operators that the parent has opened."""
        return self._adopt(self._ops[endpoint], factory, context)

    def _adopt(
        self,
        inherited: ListeningSocket,
        factory: IProtocolFactory,
        context: ServerContext | None,
    ) -> IListeningPort:
        if context is not None:
            factory = in_tls(factory, context)
        port = adopt_port(self._reactor, inherited.descriptor, inherited.family, factory)
        # All workers are notified of a new connection, and the one with the least to do comes
        # first: accepting one at a time leaves the others theirs.
        return accept_at_most(1, port)

    def send_hint(self, name: DatabaseName) -> None:
        """Tell the others that this worker has written a database."""
        self.hints.send(name)

    async def find_problems(self) -> list[Problem]:
        """Find what keeps the others from serving databases as they should."""
        response = await self._ask(FindProblems)
        return decode_problems(response["problems"])

    async def find_activity(self, project: str) -> list[ProjectActivity]:
        """Find what clients do at the others with the databases of a project."""
        response = await self._ask(FindActivity, project=project)
        return [decode_activity(each) for each in response["activity"]]

    def tell_damaged(self, name: DatabaseName, *, refuses_reads: bool) -> None:
        """Let the others refuse a database that this worker has found damaged."""
        if self.parent is not None:
            self.parent.ask(Damaged, label=name.label, refuses_reads=refuses_reads)

    def rules_of(self, project: str) -> WorkersRules:
        """Return how the workers agree on the rules of a project."""
        return WorkersRules(project, self._ask)

    def _ask(self, command: Any, **arguments: object) -> Deferred[Any]:
        if self.parent is None:
            raise Unavailable(NO_PARENT)
        return self.parent.ask(command, **arguments)


class WorkersRules:
    """How the workers agree on the rules of one project."""

    def __init__(self, project: str, ask: Any) -> None:
        """Ask the parent by `ask`."""
        self._project = project
        self._ask = ask
        self._has_stored = False

    def turn(self) -> AbstractAsyncContextManager[None]:
        """Wait until no other worker stores rules, and let none do so meanwhile."""
        return self._turn()

    @asynccontextmanager
    async def _turn(self) -> AsyncIterator[None]:
        await self._ask(TakeRulesTurn)
        self._has_stored = False
        try:
            yield
        finally:
            if not self._has_stored:
                await self._ask(GiveRulesTurn, project=self._project, has_stored=False)

    async def spread(self) -> None:
        """Return when all other workers have the stored rules in force; it ends the turn."""
        self._has_stored = True
        await self._ask(GiveRulesTurn, project=self._project, has_stored=True)


def _adopt_socket(descriptor: int) -> socket.socket:
    return socket.socket(fileno=descriptor)
