"""The process of one worker: `python -m treedbd.workers.process`, started by the parent only.

It serves as a whole daemon does, with the sockets and memory that it inherits. At `Stop` it ends as
a daemon ends. When its parent dies, it ends at once: all acknowledged writes are durable.

`Worker` is the process and its side of the connection to the parent. Through `OtherWorkers` (the
`WorkerContext` of `service`) its service uses what all workers share: endpoints, counts, rates and
rules, and the `Hints` that workers send to each other.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

import attrs
from twisted.internet.abstract import FileDescriptor
from twisted.internet.defer import Deferred, DeferredList
from twisted.internet.interfaces import IListeningPort, IProtocolFactory
from twisted.internet.protocol import Factory, connectionDone
from twisted.internet.task import LoopingCall
from twisted.logger import Logger
from twisted.python.failure import Failure
from twisted.python.reflect import namedAny

from treedbd.config.certificate import ServerContext
from treedbd.config.endpoints import Endpoint
from treedbd.config.listening import CannotStart, accept_at_most, adopt_port, in_tls
from treedbd.config.settings import Settings
from treedbd.config.values import ConfigError
from treedbd.database.requests import Unavailable
from treedbd.database.runtime import Problem
from treedbd.database.volatile_exchange import VolatileLink
from treedbd.http1.registry import CONNECTIONS
from treedbd.loop import Turns, record_turns
from treedbd.names import DatabaseName, parse_label
from treedbd.operating.metrics import SampleBoard
from treedbd.process import (
    begin_freeing,
    freeze_objects,
    raise_open_file_limit,
    report_long_turns,
    share_arena,
    use_monotonic_clock,
)
from treedbd.service import TreeService
from treedbd.store.directory_lock import DirectoryLock
from treedbd.web.activity import ProjectActivity
from treedbd.workers import protocol
from treedbd.workers.volatile import WorkerVolatile

_MAX_HINT_BYTES: Final = 256
_HINTS_AT_ONCE: Final = 256
"""Hints that are read in one turn of the reactor; several for one database are one."""

NO_PARENT: Final = "The server is shutting down."

BEAT_S: Final = 1.0
"""Seconds between two signs of life, and between two searches for commits without a hint."""
UNEVEN: Final = 4
"""Connections that a worker may have more than another, or that part of those of the other."""
LEFT_S: Final = 0.002
"""Seconds for which a worker leaves new connections to another."""
_PR_SET_PDEATHSIG: Final = 1
_SHARED_LIMITS: Final = (
    *("held_bytes", "held_bytes_per_address", "parsed_bytes"),
    *("waiting_bytes", "waiting_file_bytes", "cache_bytes"),
)
"""The limits of memory of which each worker has a share."""


class Hints(FileDescriptor):
    """Sends hints to the other workers, and receives theirs.

    A hint is a datagram: a database was written, or its write lock is free. It only saves time, as
    a worker that does not receive it notices the change a little later. So a hint is never sent
    twice, and is dropped if there is no room for it.
    """

    _received: Callable[[DatabaseName], None]

    def __init__(
        self, reactor: Any, receiver: socket.socket, others: Sequence[socket.socket]
    ) -> None:
        """Receive at one socket, and send to those of the others."""
        super().__init__(reactor)
        self._receiver = receiver
        self._others = others
        for each in (receiver, *others):
            each.setblocking(False)

    def fileno(self) -> int:
        """Return the descriptor that hints arrive at."""
        return self._receiver.fileno()

    def begin(self, received: Callable[[DatabaseName], None]) -> None:
        """Call `received` from now on with each database that another worker has written."""
        self._received = received
        base: Any = self
        base.startReading()

    def send(self, name: DatabaseName) -> None:
        """Send the other workers the hint that this one has written a database."""
        content = name.label.encode()
        for each in self._others:
            with contextlib.suppress(OSError):
                each.send(content)

    def doRead(self) -> None:
        """Read the hints that have arrived, and report each database once."""
        labels: dict[bytes, None] = {}
        with contextlib.suppress(OSError):
            for _ in range(_HINTS_AT_ONCE):
                labels[self._receiver.recv(_MAX_HINT_BYTES)] = None
        for label in labels:
            name = parse_label(label.decode())
            if name is not None:
                self._received(name)


class OtherWorkers:
    """The other workers, through the parent, the board and the sockets of hints.

    Attributes:
        checks_files: whether this worker, and no other, checks files for damage.
        lock: that of the data directory.
        counts, levels: the board.
        samples: the values that each of them counts for metrics.
        hints: sends and receives hints.
        volatile: exchanges what is in memory alone.

    """

    def __init__(self, start: protocol.WorkerStart, settings: Settings, reactor: Any) -> None:
        """Use the inherited descriptors."""
        self.checks_files: Final = start.checks_files
        self.lock: Final = DirectoryLock.inherit(settings.data, protocol.DIRECTORY_LOCK)
        self.counts: Final = protocol.Board(
            protocol.BOARD, start.number, start.workers, start.secret
        )
        self.levels: Final = protocol.SharedLevels(protocol.BOARD, start.workers, start.secret)
        others = [_adopt_socket(descriptor) for descriptor in start.others]
        self.hints: Final = Hints(reactor, _adopt_socket(protocol.RECEIVER), others)
        self.parent: protocol.Channel | None = None
        self._number, self._workers = start.number, start.workers
        self._reactor = reactor
        self.volatile: Final = WorkerVolatile(reactor)
        self.samples: Final = SampleBoard(protocol.SAMPLES, start.number, start.workers)
        clients = settings.client_endpoints
        of_clients = len(clients)
        self._listening = dict(zip(clients, start.listening[:of_clients], strict=True))
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
        inherited: protocol.ListeningSocket,
        factory: IProtocolFactory,
        context: ServerContext | None,
    ) -> IListeningPort:
        if context is not None:
            factory = in_tls(factory, context)
        port = adopt_port(self._reactor, inherited.descriptor, inherited.family, factory)
        # All workers are notified of a new connection, and the idlest of them accepts first: one at
        # a time, so that the others get theirs.
        return FairAccept(accept_at_most(1, port), self.counts, self._reactor).port

    def send_hint(self, name: DatabaseName) -> None:
        """Send the others the hint that this worker has written a database."""
        self.hints.send(name)

    @property
    def volatile_link(self) -> VolatileLink:
        """What sends the others what is volatile."""
        return self.volatile.link

    async def find_problems(self) -> list[Problem]:
        """Return the problems of the other workers."""
        response = await self.call(protocol.FindProblems)
        return protocol.decode_problems(response["problems"])

    async def find_activity(self, project: str) -> list[ProjectActivity]:
        """Return the activity of the other workers with the databases of a project."""
        response = await self.call(protocol.FindActivity, project=project)
        return [protocol.decode_activity(each) for each in response["activity"]]

    async def inspect(self, question: bytes) -> dict[int, bytes]:
        """Return the answers of the other workers to a question of an admin, by their numbers."""
        others = [number for number in range(self._workers) if number != self._number]
        calls = [self.call(protocol.Inspect, number=each, question=question) for each in others]
        responses = await DeferredList(calls, consumeErrors=True)
        return {
            number: response["answer"]
            for number, (is_answered, response) in zip(others, responses, strict=True)
            if is_answered and response["answer"]
        }

    def report_damaged(self, name: DatabaseName, *, refuses_reads: bool) -> None:
        """Report a damaged database to the others, which refuse it then."""
        if self.parent is not None:
            self.parent.call(protocol.Damaged, label=name.label, refuses_reads=refuses_reads)

    async def delete(self, name: DatabaseName) -> None:
        """Delete a database by the parent, which makes all workers let go of it first."""
        response = await self.call(protocol.DeleteDatabase, label=name.label)
        if response["problem"]:
            raise Unavailable(response["problem"])

    def rules_of(self, project: str) -> SharedRules:
        """Return the rules of a project, as all workers share them."""
        return SharedRules(project, self)

    def call(self, command: Any, **arguments: object) -> Deferred[Any]:
        """Send the parent a command; raise `Unavailable` if it has died."""
        if self.parent is None:
            raise Unavailable(NO_PARENT)
        return self.parent.call(command, **arguments)


class FairAccept:
    """Leaves new connections of a port to a worker that has fewer, for a moment.

    Of many that are opened at once, the worker that happens to run accepts most, and those that
    stay open would keep it busy while others are idle. So a worker that has clearly more than
    another pauses, once for each that the other accepts: if that accepts none, it may be stuck, and
    does not keep clients waiting.
    """

    def __init__(self, port: IListeningPort, counts: protocol.Board, clock: Any) -> None:
        """Pause by `clock` if `counts` says that this worker has more connections."""
        self.port: Final = port
        self._counts = counts
        self._clock = clock
        own: Any = port
        self._own = own
        self._accept = own.doRead
        own.doRead = self._do_read
        self._left_at = -1
        """How many the other had when a connection was last left to it."""

    def _do_read(self) -> None:
        more, least = self._counts.more_than_least(CONNECTIONS)
        if more > max(UNEVEN, least // UNEVEN) and least != self._left_at:
            self._left_at = least
            self._own.stopReading()
            self._clock.callLater(LEFT_S, self._go_on)
        else:
            self._accept()

    def _go_on(self) -> None:
        if self._own.connected:
            self._own.startReading()


class SharedRules:
    """The rules of one project, which one worker at a time stores and all others load."""

    def __init__(self, project: str, workers: OtherWorkers) -> None:
        """Use the parent of `workers`."""
        self._project = project
        self._workers = workers
        self._has_stored = False

    @asynccontextmanager
    async def lock(self) -> AsyncIterator[None]:
        """Hold the rules lock in a block: only its owner stores rules."""
        await self._workers.call(protocol.AcquireRules)
        self._has_stored = False
        try:
            yield
        finally:
            if not self._has_stored:
                await self._release(has_stored=False)

    async def spread(self) -> None:
        """Return when all other workers have the stored rules in force; release the lock."""
        self._has_stored = True
        await self._release(has_stored=True)

    def _release(self, *, has_stored: bool) -> Deferred[Any]:
        return self._workers.call(
            protocol.ReleaseRules, project=self._project, has_stored=has_stored
        )


def _adopt_socket(descriptor: int) -> socket.socket:
    return socket.socket(fileno=descriptor)


class Worker(protocol.Channel):
    """One worker, and its side of the connection to its parent."""

    _log = Logger()

    def __init__(self, start: protocol.WorkerStart, settings: Settings, reactor: Any) -> None:
        """Prepare; nothing is opened yet."""
        super().__init__()
        self._source = start.source
        self._reactor = reactor
        self._workers = OtherWorkers(start, settings, reactor)
        self._service = TreeService(_share(settings, start.workers), reactor, self._workers)
        self._workers.volatile.find = self._service.catalog.volatile_exchange
        self._beating = LoopingCall(self._beat)
        self._beating.clock = reactor
        self._polling = LoopingCall(self._service.catalog.poll)
        self._polling.clock = reactor
        self._is_stopping = False

    def connectionMade(self) -> None:
        """Start to serve, and report it to the parent."""
        self._workers.parent = self
        self._workers.volatile.call = self.call
        self._beating.start(BEAT_S)
        try:
            self._service.privilegedStartService()
            self._service.startService()
        except CannotStart as error:
            self.call(protocol.Failed, reason=str(error))
            return
        turns = Turns(report_long_turns)
        if record_turns(self._reactor, turns):
            self._service.show_turns(turns)
        begin_freeing(self._reactor)
        self._workers.hints.begin(self._service.catalog.hinted)
        self._polling.start(BEAT_S, now=False)
        freeze_objects()
        self.call(protocol.Ready, has_open_rules=self._service.has_open_rules())

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        """End at once: the parent has died, or this worker has stopped."""
        self._workers.parent = None
        if not self._is_stopping:
            os._exit(1)
        super().connectionLost(reason)

    @protocol.Stop.responder
    def stop(self) -> dict[str, object]:
        """Stop the service and end."""
        if not self._is_stopping:
            self._is_stopping = True
            self._service.stopService().addBoth(self._end)
        return {}

    @protocol.Reload.responder
    async def reload(self) -> dict[str, object]:
        """Read certificates, secrets, providers and rules files again."""
        settings = None
        with contextlib.suppress(ConfigError):  # the parent logs it
            settings = self._source.read().load()
        is_valid = await self._service.reload(settings)
        return {"is_valid": is_valid}

    @protocol.LoadRules.responder
    async def load_rules(self, project: str) -> dict[str, object]:
        """Put the stored rules of a project in force."""
        await self._service.catalog.load_rules(project)
        return {}

    @protocol.Damaged.responder
    def damaged(self, label: str, refuses_reads: bool) -> dict[str, object]:
        """Refuse a database that another worker has found damaged."""
        name = parse_label(label)
        if name is not None:
            self._service.catalog.note_damaged(name, refuses_reads=refuses_reads)
        return {}

    @protocol.LetGo.responder
    async def let_go(self, label: str) -> dict[str, object]:
        """Close a database that is being deleted, and let no client use it."""
        name = parse_label(label)
        if name is not None:
            await self._service.catalog.let_go(name)
        return {}

    @protocol.ReadLast.responder
    async def read_last(self, label: str) -> dict[str, object]:
        """Read what is left in the log of a database, before its file is removed."""
        name = parse_label(label)
        if name is not None:
            await self._service.catalog.read_last(name)
        return {}

    @protocol.Deleted.responder
    def deleted(self, label: str) -> dict[str, object]:
        """Allow a deleted database to be created again."""
        name = parse_label(label)
        if name is not None:
            self._service.catalog.deleted(name)
        return {}

    @protocol.ShareVolatile.responder
    def share_volatile(self, label: str, content: bytes, to: int) -> dict[str, object]:
        """Apply volatile changes of another worker."""
        self._workers.volatile.receive(label, content, is_state=to >= 0)
        return {}

    @protocol.BeginVolatile.responder
    def begin_volatile(self, label: str) -> dict[str, object]:
        """Receive what is volatile from another worker, as it is now."""
        self._workers.volatile.begin(label)
        return {}

    @protocol.GiveVolatile.responder
    def give_volatile(self, label: str, group: str, number: int) -> dict[str, object]:
        """Send what is volatile to another worker, if it is known here."""
        is_given = self._workers.volatile.give(label, group, number)
        return {"is_given": is_given, "has_state": self._workers.volatile.has_state(label)}

    @protocol.FindProblems.responder
    async def find_problems(self) -> dict[str, object]:
        """Return the problems of this worker."""
        return {
            "problems": protocol.encode_problems(await self._service.catalog.find_own_problems())
        }

    @protocol.FindActivity.responder
    def find_activity(self, project: str) -> dict[str, object]:
        """Return the activity of this worker with the databases of a project."""
        return {
            "activity": [protocol.encode_activity(self._service.activity.of_this_process(project))]
        }

    @protocol.Inspect.responder
    async def inspect(self, number: int, question: bytes) -> dict[str, object]:
        """Answer a question that an admin has asked another worker."""
        return {"answer": await self._service.resource().inspection.answer(question, number)}

    def _end(self, _: object) -> None:
        if self._service.has_given_up:
            os._exit(0)  # the interpreter would wait for a thread that the disk delays
        self._reactor.stop()

    def _beat(self) -> None:
        self._workers.counts.beat(self._reactor.seconds())


def _share(settings: Settings, workers: int) -> Settings:
    """Return the settings with the share of memory that one of the workers may use."""
    limits = settings.limits
    leasts = dict.fromkeys(_SHARED_LIMITS, 1)
    leasts |= {"held_body_bytes": limits.write_body_bytes, "kept_answer_bytes": 0}
    parts = {name: max(getattr(limits, name) // workers, least) for name, least in leasts.items()}
    return attrs.evolve(settings, limits=attrs.evolve(limits, **parts))


def end_with_parent(parent: int) -> None:
    """Make the kernel kill this process when the process `parent` dies, even if it is blocked."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)  # it has died already


def main() -> None:
    """Serve until the parent ends it."""
    try:
        start = protocol.read_start()
    except OSError:
        raise SystemExit("treedb: workers are started by treedb itself: run treedb.") from None
    end_with_parent(start.parent)
    for ignored in (signal.SIGINT, signal.SIGHUP):
        signal.signal(ignored, signal.SIG_IGN)  # of a terminal; the parent sends commands
    protocol.begin_logging()
    reactor = namedAny("twisted.internet.reactor")
    use_monotonic_clock(reactor)
    raise_open_file_limit()
    share_arena()
    worker = Worker(start, start.source.load(), reactor)
    signal.signal(signal.SIGTERM, lambda *_: reactor.callFromThread(worker.stop))
    factory = Factory.forProtocol(lambda: worker)
    factory.noisy = False
    reactor.callWhenRunning(
        reactor.adoptStreamConnection, protocol.CHANNEL, socket.AF_UNIX, factory
    )
    reactor.run(installSignalHandlers=False)


if __name__ == "__main__":
    main()
