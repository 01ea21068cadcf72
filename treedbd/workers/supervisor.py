"""The parent of the workers: it owns the endpoints and the lock, and keeps the workers running.

Theory of operation. The parent opens the endpoints (`Ports`) and locks the data directory, but
serves no request: each worker inherits the listening sockets and accepts from them. A worker that
dies is started again, after a pause if it dies repeatedly; its counts on the board are reset. A
worker without a sign of life for `SILENT_S` is killed, because it may hold the write lock of a
database, for which all others wait. If the parent itself dies, the kernel kills its workers.

The first worker is started alone: it creates missing files and converts those of older formats, and
an error that keeps it from serving is reported once.

The workers inherit the lock of the data directory, so it lasts until the last of them has ended.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import signal
import socket
import sys
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import attrs
from twisted.application.service import Service
from twisted.internet.defer import Deferred, DeferredList, DeferredLock, fail
from twisted.internet.error import ConnectionDone, ConnectionLost
from twisted.internet.interfaces import IDelayedCall, IProcessTransport
from twisted.internet.protocol import Factory, ProcessProtocol
from twisted.internet.task import LoopingCall
from twisted.internet.threads import deferToThreadPool
from twisted.logger import Logger
from twisted.protocols.amp import Command
from twisted.python.failure import Failure

from treedbd.config.listening import CannotStart, Listening
from treedbd.config.settings import Settings
from treedbd.database.removal import (
    begin_removal,
    cannot_delete,
    find_removed,
    finish_all,
    remove_all,
    shelf_of,
)
from treedbd.database.requests import DatabaseDeleted
from treedbd.database.runtime import Problem
from treedbd.names import parse_label
from treedbd.store.directory_lock import LOCK_MISPLACED, DirectoryLock
from treedbd.store.engine import CannotOpenStore
from treedbd.store.sqlite.shared import can_share
from treedbd.web.activity import add_up
from treedbd.workers import protocol
from treedbd.workers.volatile import VolatileRelay

_WORKER_MODULE: Final = "treedbd.workers.process"

SILENT_S: Final = 10.0
"""Seconds without a sign of life after which a worker is killed."""
START_S: Final = 60.0
"""The same while it starts."""
LOOK_S: Final = 1.0
STOP_S: Final = 9.0
"""Seconds after `Stop` until a worker is killed that still runs."""
RESTART_PAUSES: Final = (0.0, 0.2, 1.0, 5.0)
"""Seconds before each restart in a row of a worker that dies within `SOON_S` of its start."""
SOON_S: Final = 10.0


class Treedb(Factory):
    """The factory of ports that the workers accept from; Twisted logs its name for each port."""

    noisy = False


class Ports:
    """The ports that the workers accept from.

    Attributes:
        of_clients, of_operators: the endpoints of either.

    """

    def __init__(self, settings: Settings, reactor: Any) -> None:
        """Open nothing yet."""
        self.of_clients: Final = Listening(settings, reactor)
        self.of_operators: Final = Listening(settings, reactor, is_ops=True)

    def open(self) -> None:
        """Read certificates and open all; raise `CannotStart`, with none open."""
        try:
            for each in (self.of_clients, self.of_operators):
                each.open(Treedb())
        except CannotStart:
            self.close()
            raise
        for port in self._all():
            port.stopReading()  # the workers accept

    def sockets(self) -> list[tuple[int, int]]:
        """Return the descriptor and the address family of each: first those for clients."""
        return [(port.fileno(), port.addressFamily) for port in self._all()]

    def close(self) -> None:
        """Close all ports."""
        self.of_clients.close()
        self.of_operators.close()

    def _all(self) -> list[Any]:
        both = (*self.of_clients.ports, *self.of_operators.ports)
        return [port for _, port in both]


@attrs.frozen
class Inheritance:
    """The inheritance of all workers: descriptors of the parent, and the settings.

    `hints` are the pairs of sockets of `create_hint_pairs`; `listening` are descriptors and
    families, in the order of the endpoints.
    """

    source: protocol.SettingsSource
    secret: bytes
    board: int
    samples: int
    locks: tuple[int, ...]
    hints: list[tuple[socket.socket, socket.socket]]
    listening: list[tuple[int, int]]

    def describe(
        self, number: int, *, checks_files: bool
    ) -> tuple[protocol.WorkerStart, dict[int, int]]:
        """Return the start of a worker, and the descriptors that it inherits.

        The keys of the descriptors are their numbers in the worker.
        """
        inherited = {
            protocol.BOARD: self.board,
            protocol.SAMPLES: self.samples,
            protocol.RECEIVER: self.hints[number][0].fileno(),
            **dict(zip((protocol.DIRECTORY_LOCK, protocol.DIRECTORY), self.locks, strict=True)),
        }
        at = protocol.FIRST_FREE
        others, listening = [], []
        for other, (_, sender) in enumerate(self.hints):
            if other != number:
                inherited[at] = sender.fileno()
                others.append(at)
                at += 1
        for descriptor, family in self.listening:
            inherited[at] = descriptor
            listening.append(protocol.ListeningSocket(at, family))
            at += 1
        start = protocol.WorkerStart(
            parent=os.getpid(),
            number=number,
            workers=len(self.hints),
            checks_files=checks_files,
            secret=self.secret,
            source=self.source,
            others=tuple(others),
            listening=tuple(listening),
        )
        return start, inherited


class WorkerProcess:
    """One worker in its parent: a process, and the connection to it.

    Attributes:
        number: its number, from 0 on.
        supervisor: its parent.
        is_ready: whether it serves.
        started_at: when it was started, in seconds of the clock.

    """

    def __init__(self, number: int, supervisor: Supervisor, reactor: Any) -> None:
        """Start nothing yet."""
        self.number: Final = number
        self.supervisor: Final = supervisor
        self.is_ready = False
        self.started_at = 0.0
        self._reactor = reactor
        self._process: IProcessTransport | None = None
        self._channel: _WorkerChannel | None = None

    @property
    def is_running(self) -> bool:
        """Whether there is a process."""
        return self._process is not None

    def start(self, inheritance: Inheritance) -> None:
        """Start the process; raise OSError if the system has no room for it."""
        is_first = not self.started_at
        self.started_at = self._reactor.seconds()
        checks_files = is_first and self.number == 0
        start, inherited = inheritance.describe(self.number, checks_files=checks_files)
        record = start.write()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            descriptors: dict[int, int | str] = {0: "w", 1: "r", 2: "r"}
            descriptors |= {protocol.CHANNEL: theirs.fileno(), protocol.START: record, **inherited}
            command = [sys.executable, "-m", _WORKER_MODULE]
            self._process = self._reactor.spawnProcess(
                _Output(self), sys.executable, command, env=None, childFDs=descriptors
            )
            channel = self._channel = _WorkerChannel(self)
            factory = Factory.forProtocol(lambda: channel)
            factory.noisy = False
            self._reactor.adoptStreamConnection(ours.fileno(), socket.AF_UNIX, factory)
        finally:
            ours.close()
            theirs.close()
            os.close(record)

    def call(self, command: Any, **arguments: object) -> Deferred[Any]:
        """Send a command; fires with the response, errbacks if the worker has ended."""
        if self._channel is None or not self.is_ready:
            return fail(Failure(ConnectionDone()))
        return self._channel.call(command, **arguments)

    def tell(self, command: Any, **arguments: object) -> Deferred[Any]:
        """Send a command, also to a worker that does not serve yet, which answers it then.

        Fires with the response, errbacks if the worker has ended, or is not started.
        """
        if self._channel is None:
            return fail(Failure(ConnectionDone()))
        return self._channel.call(command, **arguments)

    def kill(self) -> None:
        """End the process now."""
        if self._process is not None and self._process.pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._process.pid, signal.SIGKILL)

    def ended(self, reason: Failure) -> None:
        """Record that the process has ended."""
        self._process = self._channel = None
        self.is_ready = False
        self.supervisor.worker_ended(self, reason.getErrorMessage())


class _Output(ProcessProtocol):
    """Logs the output of a worker, and notices its end."""

    def __init__(self, worker: WorkerProcess) -> None:
        self._worker = worker
        self._log = protocol.WorkerLog(worker.number + 1)

    def childDataReceived(self, _: int, data: bytes) -> None:
        self._log.receive(data)

    def processEnded(self, reason: Failure) -> None:
        self._log.end()
        self._worker.ended(reason)


class _WorkerChannel(protocol.Channel):
    """The connection to a worker."""

    def __init__(self, worker: WorkerProcess) -> None:
        super().__init__()
        self._worker = worker
        self._supervisor = worker.supervisor

    @protocol.Ready.responder
    def ready(self, has_open_rules: bool) -> dict[str, object]:
        self._worker.is_ready = True
        self._supervisor.worker_ready(self._worker, has_open_rules=has_open_rules)
        return {}

    @protocol.Failed.responder
    def failed(self, reason: str) -> dict[str, object]:
        self._supervisor.worker_failed(self._worker, reason)
        return {}

    @protocol.AcquireRules.responder
    def acquire_rules(self) -> Deferred[dict[str, object]]:
        return self._supervisor.acquire_rules(self._worker)

    @protocol.ReleaseRules.responder
    def release_rules(self, project: str, has_stored: bool) -> Deferred[dict[str, object]]:
        return self._supervisor.release_rules(self._worker, project, has_stored=has_stored)

    @protocol.Damaged.responder
    def damaged(self, label: str, refuses_reads: bool) -> dict[str, object]:
        self._supervisor.worker_found_damaged(self._worker, label, refuses_reads=refuses_reads)
        return {}

    @protocol.DeleteDatabase.responder
    async def delete_database(self, label: str) -> dict[str, object]:
        return await self._supervisor.delete_database(label)

    @protocol.FindProblems.responder
    async def find_problems(self) -> dict[str, object]:
        return await self._supervisor.find_problems(self._worker)

    @protocol.FindActivity.responder
    async def find_activity(self, project: str) -> dict[str, object]:
        return await self._supervisor.find_activity(self._worker, project)

    @protocol.ShareVolatile.responder
    def share_volatile(self, label: str, content: bytes, to: int) -> Deferred[dict[str, object]]:
        shared = self._supervisor.volatile.share(self._worker, label, content, to)
        return shared.addCallback(lambda _: {})

    @protocol.WantVolatile.responder
    async def want_volatile(self, label: str, group: str, has_state: bool) -> dict[str, object]:
        volatile = self._supervisor.volatile
        is_given = await volatile.want(self._worker, label, group, has_state=has_state)
        return {"is_given": is_given}

    @protocol.LockVolatile.responder
    def lock_volatile(self, label: str) -> Deferred[dict[str, object]]:
        return self._supervisor.volatile.lock(self._worker, label).addCallback(lambda _: {})

    @protocol.UnlockVolatile.responder
    def unlock_volatile(self, label: str) -> dict[str, object]:
        self._supervisor.volatile.unlock(self._worker, label)
        return {}

    @protocol.Inspect.responder
    async def inspect(self, number: int, question: bytes) -> dict[str, object]:
        return await self._supervisor.inspect(number, question)


def ignore_end(failure: Failure) -> None:
    """Ignore that a worker has ended before it could respond."""
    failure.trap(ConnectionDone, ConnectionLost)


class Supervisor(Service):
    """Serves by worker processes.

    Attributes:
        ready: fires with whether the default project has open rules, when all workers serve;
            errbacks with `CannotStart`.
        volatile: passes on what workers have in memory alone.
        has_given_up: always False, since the parent kills a worker that does not end.

    """

    _log = Logger()
    has_given_up = False

    def __init__(self, settings: Settings, reactor: Any, source: protocol.SettingsSource) -> None:
        """Open nothing yet. Workers load their settings from `source`."""
        self.ready: Final[Deferred[bool]] = Deferred()
        self._settings = settings
        self._reactor = reactor
        self._source = source
        self._ports = Ports(settings, reactor)
        self._lock: DirectoryLock | None = None
        self._inheritance: Inheritance | None = None
        self._board: protocol.Board | None = None
        self._workers = [WorkerProcess(n, self, reactor) for n in range(settings.workers)]
        self.volatile: Final = VolatileRelay(self._workers, reactor)
        self._deaths = dict.fromkeys(range(settings.workers), 0)
        self._restarts: dict[int, IDelayedCall] = {}
        self._rules_lock = DeferredLock()
        self._rules_owner: WorkerProcess | None = None
        self._looking = LoopingCall(self._look)
        self._looking.clock = reactor
        self._looked_at = 0.0
        self._damaged: dict[str, bool] = {}
        self._deleting: set[str] = set()
        self._is_stopping = False
        self._stopped: Deferred[None] = Deferred()

    def urls(self) -> list[str]:
        """Return the URLs of the open endpoints, as this machine reaches them."""
        return self._ports.of_clients.urls()

    def console_urls(self) -> list[str]:
        """Return the URLs of the endpoints that `console_listen` names."""
        return self._ports.of_clients.console_urls()

    def ops_urls(self) -> list[str]:
        """Return the URLs of the endpoints for operators."""
        return self._ports.of_operators.urls()

    def privilegedStartService(self) -> None:
        """Read certificates and open the endpoints; raise `CannotStart`."""
        if not can_share():
            raise CannotStart("Several workers need Linux on a 64-bit machine: set workers = 1.")
        self._ports.open()

    def startService(self) -> None:
        """Lock the data directory and start the workers; raise `CannotStart`."""
        try:
            self._ports.of_clients.ensure_data_directory()
            self._lock = DirectoryLock(self._settings.data)
        except CannotOpenStore as error:
            self._ports.close()
            raise CannotStart.because(error) from None
        self._lock.note_urls(self.urls())
        finish_all(self._settings.data, find_removed(self._settings.data))
        secret = os.urandom(32)
        self._inheritance = Inheritance(
            source=self._source,
            secret=secret,
            board=protocol.create_board(len(self._workers)),
            samples=protocol.create_sample_board(),
            locks=self._lock.descriptors,
            hints=create_hint_pairs(len(self._workers)),
            listening=self._ports.sockets(),
        )
        self._board = protocol.Board(self._inheritance.board, -1, len(self._workers), secret)
        self._start(self._workers[0])
        self._looked_at = self._reactor.seconds()
        self._looking.start(LOOK_S, now=False)
        Service.startService(self)

    def stopService(self) -> Deferred[None]:
        """Stop all workers; those that take too long are killed."""
        Service.stopService(self)
        self._is_stopping = True
        if self._looking.running:
            self._looking.stop()
        for restart in self._restarts.values():
            restart.cancel()
        self._restarts.clear()
        self._ports.close()
        for worker in self._workers:
            if worker.is_ready:
                worker.call(protocol.Stop).addErrback(ignore_end)
            else:
                worker.kill()
        late = self._reactor.callLater(STOP_S, self._kill_all)

        def ended(_: None) -> None:
            if late.active():
                late.cancel()
            if self._lock is not None:
                self._lock.release()
                self._lock = None

        self._check_stopped()
        return self._stopped.addCallback(ended)

    def reload(self, settings: Settings | None = None) -> Deferred[bool]:
        """Make all workers read certificates, secrets, providers and rules files again.

        Each of them reads the settings itself. Fires with whether all files were valid.
        """
        del settings
        calls = [
            worker.call(protocol.Reload).addCallback(lambda response: bool(response["is_valid"]))
            for worker in self._workers
            if worker.is_ready
        ]
        done = DeferredList(calls, consumeErrors=True)
        return done.addCallback(lambda results: all(ok and valid for ok, valid in results))

    # The commands of workers.

    def worker_ready(self, worker: WorkerProcess, *, has_open_rules: bool) -> None:
        """Record that a worker serves."""
        for label, refuses_reads in self._damaged.items():
            worker.call(protocol.Damaged, label=label, refuses_reads=refuses_reads).addErrback(
                ignore_end
            )
        if self.ready.called:
            self._log.info("Worker {number} serves again.", number=worker.number + 1)
        elif all(each.is_ready for each in self._workers):
            self.ready.callback(has_open_rules)
        elif worker is self._workers[0]:
            for other in self._workers[1:]:
                self._start(other)

    def worker_failed(self, worker: WorkerProcess, reason: str) -> None:
        """Kill a worker that cannot start; if none serves yet, the whole start fails."""
        if not self.ready.called:
            self.ready.errback(CannotStart(reason))
            return
        self._log.error("Worker {number}: {reason}", number=worker.number + 1, reason=reason)
        worker.kill()

    def worker_ended(self, worker: WorkerProcess, reason: str) -> None:
        """Start a worker again whose process has ended."""
        self.volatile.ended(worker)
        if self._rules_owner is worker:
            self._release_rules_lock()
        if self._is_stopping:
            self._check_stopped()
            return
        if not self.ready.called:
            self.ready.errback(CannotStart(f"A worker process could not start: {reason}"))
            return
        number = worker.number
        is_soon = self._reactor.seconds() - worker.started_at < SOON_S
        self._deaths[number] = self._deaths[number] + 1 if is_soon else 0
        pause = RESTART_PAUSES[min(self._deaths[number], len(RESTART_PAUSES) - 1)]
        self._log.error(
            "Worker {number} has ended ({reason}) and is started again; nothing that was "
            "acknowledged is lost.",
            number=number + 1,
            reason=reason.rstrip("."),
        )
        self._restarts[number] = self._reactor.callLater(pause, self._start, worker)

    def acquire_rules(self, worker: WorkerProcess) -> Deferred[dict[str, object]]:
        """Acquire the rules lock for a worker."""

        def acquired(_: DeferredLock) -> dict[str, object]:
            self._rules_owner = worker
            if not worker.is_ready:
                self._release_rules_lock()  # the worker has ended meanwhile
            return {}

        return self._rules_lock.acquire().addCallback(acquired)

    def release_rules(
        self, worker: WorkerProcess, project: str, *, has_stored: bool
    ) -> Deferred[dict[str, object]]:
        """Release the rules lock of a worker, once the others have loaded rules that it stored."""

        def done(_: object) -> dict[str, object]:
            if self._rules_owner is worker:
                self._release_rules_lock()
            return {}

        others = [each for each in self._workers if each is not worker and each.is_ready]
        loading = [self._load_rules(each, project) for each in others] if has_stored else []
        return DeferredList(loading).addCallback(done)

    def _load_rules(self, worker: WorkerProcess, project: str) -> Deferred[None]:
        """Make a worker load the stored rules; fires when it has loaded them, or has ended."""

        def kill(failure: Failure) -> None:
            if not failure.check(ConnectionDone, ConnectionLost):
                self._log.failure(
                    "A worker cannot load the rules of {project}, and is killed.",
                    failure,
                    project=project,
                )
                worker.kill()  # it loads the rules when it starts again

        loading: Deferred[None] = worker.call(protocol.LoadRules, project=project)
        return loading.addErrback(kill)

    def worker_found_damaged(
        self, worker: WorkerProcess, label: str, *, refuses_reads: bool
    ) -> None:
        """Report a damaged database to the other workers, now and when they start."""
        self._damaged[label] = refuses_reads
        for other in self._workers:
            if other is not worker and other.is_ready:
                other.call(protocol.Damaged, label=label, refuses_reads=refuses_reads).addErrback(
                    ignore_end
                )

    async def delete_database(self, label: str) -> dict[str, object]:
        """Delete a database that no worker uses any longer; return why not, if it cannot be."""
        name = parse_label(label)
        if name is None or label in self._deleting:
            return {"problem": str(DatabaseDeleted())}
        self._deleting.add(label)
        try:
            shelf = shelf_of(self._settings.data, name)
            if problem := await self._begin_deletion(shelf):
                return {"problem": problem}
            # A worker that is started from now on finds the removal note.
            await self._tell_all(protocol.LetGo, label)
            await self._tell_all(protocol.ReadLast, label)
            await remove_all(shelf, self._run_in_thread, self._reactor)
            self._damaged.pop(label, None)
            await self._tell_all(protocol.Deleted, label)
        finally:
            self._deleting.discard(label)
        return {"problem": ""}

    async def _begin_deletion(self, shelf: pathlib.Path) -> str:
        """Make it durable that a database does not exist; return why not, if that fails."""
        if self._lock is None or not self._lock.is_in_place():
            return LOCK_MISPLACED
        try:
            await self._run_in_thread(partial(begin_removal, shelf))
        except OSError as error:
            return cannot_delete(error)
        return ""

    def _run_in_thread(self, work: Callable[[], None]) -> Deferred[None]:
        return deferToThreadPool(self._reactor, self._reactor.getThreadPool(), work)

    async def _tell_all(self, command: type[Command], label: str) -> None:
        """Return when all workers have done a command; one that has ended has done it, too."""
        calls = [each.tell(command, label=label) for each in self._workers]
        results = await DeferredList(calls, consumeErrors=True)
        for worker, (is_done, result) in zip(self._workers, results, strict=True):
            if not is_done and not result.check(ConnectionDone, ConnectionLost):
                self._log.failure(
                    "A worker cannot close {label}, and is killed.", result, label=label
                )
                worker.kill()

    async def find_problems(self, worker: WorkerProcess) -> dict[str, object]:
        """Return the problems of all other workers."""
        found: dict[Problem, None] = {}
        for response in await self._call_others(worker, protocol.FindProblems):
            found.update(dict.fromkeys(protocol.decode_problems(response["problems"])))
        return {"problems": protocol.encode_problems(list(found))}

    async def find_activity(self, worker: WorkerProcess, project: str) -> dict[str, object]:
        """Return the activity of all other workers with a project's databases."""
        found = [
            protocol.decode_activity(each)
            for response in await self._call_others(worker, protocol.FindActivity, project=project)
            for each in response["activity"]
        ]
        # One value of AMP has no room for those of many workers.
        return {"activity": [protocol.encode_activity(add_up(found))] if found else []}

    async def inspect(self, number: int, question: bytes) -> dict[str, object]:
        """Return the answer of a worker to a question of an admin; empty if it does not serve."""
        worker = self._workers[number]
        if not worker.is_ready:
            return {"answer": b""}
        answer: dict[str, object] = await worker.call(
            protocol.Inspect, number=number, question=question
        )
        return answer

    async def _call_others(
        self, worker: WorkerProcess, command: type[Command], **arguments: object
    ) -> list[Any]:
        """Return the responses of all workers but one; a worker that ends meanwhile has none."""
        others = [each for each in self._workers if each is not worker and each.is_ready]
        calls = [each.call(command, **arguments) for each in others]
        responses = await DeferredList(calls, consumeErrors=True)
        return [response for is_answered, response in responses if is_answered]

    # Keeping workers running.

    def _start(self, worker: WorkerProcess) -> None:
        self._restarts.pop(worker.number, None)
        if self._inheritance is None or self._board is None:
            return
        self._board.clear(worker.number, self._reactor.seconds())
        try:
            worker.start(self._inheritance)
        except OSError as error:
            self.worker_ended(worker, os.strerror(error.errno or 0))

    def _look(self) -> None:
        """Kill workers without a sign of life."""
        now = self._reactor.seconds()
        was_blocked = now - self._looked_at > SILENT_S / 2
        self._looked_at = now
        if was_blocked or self._board is None:
            return  # the whole machine may have been blocked, and the workers with it
        for worker in self._workers:
            allowed = SILENT_S if worker.is_ready else START_S
            if worker.is_running and now - self._board.last_beat(worker.number) > allowed:
                self._log.error(
                    "Worker {number} gives no sign of life and is killed.", number=worker.number + 1
                )
                worker.kill()

    def _release_rules_lock(self) -> None:
        self._rules_owner = None
        self._rules_lock.release()

    def _kill_all(self) -> None:
        for worker in self._workers:
            worker.kill()

    def _check_stopped(self) -> None:
        is_over = not any(worker.is_running for worker in self._workers)
        if is_over and not self._stopped.called:
            self._stopped.callback(None)


def create_hint_pairs(workers: int) -> list[tuple[socket.socket, socket.socket]]:
    """Return two sockets for each worker: it receives hints at one, others send to the other."""
    return [socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM) for _ in range(workers)]
