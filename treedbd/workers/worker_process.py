"""One worker as its parent sees it: a process, the connection to it, and what it inherits."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
from typing import Any, Final, Protocol

import attrs
from twisted.internet.defer import Deferred, fail
from twisted.internet.error import ConnectionDone, ConnectionLost
from twisted.internet.interfaces import IProcessTransport
from twisted.internet.protocol import Factory, ProcessProtocol
from twisted.python.failure import Failure

from treedbd.workers.channel import Channel
from treedbd.workers.log import WorkerLog
from treedbd.workers.protocol import (
    Damaged,
    Failed,
    FindActivity,
    FindProblems,
    GiveRulesTurn,
    Ready,
    TakeRulesTurn,
)
from treedbd.workers.start import (
    BOARD,
    CHANNEL,
    DIRECTORY,
    DIRECTORY_LOCK,
    FIRST_FREE,
    RECEIVER,
    SAMPLES,
    START,
    ListeningSocket,
    SettingsSource,
    WorkerStart,
)

MODULE: Final = "treedbd.workers.process"


@attrs.frozen
class Inheritance:
    """What all workers inherit: descriptors of the parent, and what they are started with.

    `hints` are the pairs of sockets of `hints.create_pairs`; `listening` are descriptors and
    families, in the order of the endpoints.
    """

    source: SettingsSource
    secret: bytes
    board: int
    samples: int
    locks: tuple[int, ...]
    hints: list[tuple[socket.socket, socket.socket]]
    listening: list[tuple[int, int]]

    def describe(self, number: int, *, checks_files: bool) -> tuple[WorkerStart, dict[int, int]]:
        """Return what a worker is started with, and the descriptors that it inherits.

        They are by the numbers that they have in the worker.
        """
        inherited = {
            BOARD: self.board,
            SAMPLES: self.samples,
            RECEIVER: self.hints[number][0].fileno(),
            **dict(zip((DIRECTORY_LOCK, DIRECTORY), self.locks, strict=True)),
        }
        at = FIRST_FREE
        others, listening = [], []
        for other, (_, sender) in enumerate(self.hints):
            if other != number:
                inherited[at] = sender.fileno()
                others.append(at)
                at += 1
        for descriptor, family in self.listening:
            inherited[at] = descriptor
            listening.append(ListeningSocket(at, family))
            at += 1
        start = WorkerStart(
            os.getpid(),
            number,
            len(self.hints),
            checks_files,
            self.secret,
            self.source,
            tuple(others),
            tuple(listening),
        )
        return start, inherited


class Owner(Protocol):
    """What a worker tells its parent, or asks it for."""

    def worker_ready(self, worker: WorkerProcess, *, has_open_rules: bool) -> None:
        """Record that a worker serves."""
        ...

    def worker_failed(self, worker: WorkerProcess, reason: str) -> None:
        """Record that a worker cannot start."""
        ...

    def worker_ended(self, worker: WorkerProcess, reason: str) -> None:
        """Record that the process of a worker has ended."""
        ...

    def take_rules_turn(self, worker: WorkerProcess) -> Deferred[dict[str, object]]:
        """Let a worker store rules, when no other does."""
        ...

    def give_rules_turn(
        self, worker: WorkerProcess, project: str, *, has_stored: bool
    ) -> Deferred[dict[str, object]]:
        """End the turn of a worker."""
        ...

    def worker_found_damaged(
        self, worker: WorkerProcess, label: str, *, refuses_reads: bool
    ) -> None:
        """Tell the others of a database that a worker has found damaged."""
        ...

    async def find_problems(self, worker: WorkerProcess) -> dict[str, object]:
        """Return the problems of all other workers."""
        ...

    async def find_activity(self, worker: WorkerProcess, project: str) -> dict[str, object]:
        """Return what clients do at all other workers with a project's databases."""
        ...


class WorkerProcess:
    """A worker.

    Attributes:
        number: its number, from 0 on.
        is_ready: whether it serves.
        started_at: when it was started, in seconds of the clock.

    """

    def __init__(self, number: int, owner: Owner, reactor: Any) -> None:
        """Nothing is started yet."""
        self.number: Final = number
        self.is_ready = False
        self.started_at = 0.0
        self._owner = owner
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
            descriptors |= {CHANNEL: theirs.fileno(), START: record, **inherited}
            command = [sys.executable, "-m", MODULE]
            self._process = self._reactor.spawnProcess(
                _Output(self), sys.executable, command, env=None, childFDs=descriptors
            )
            channel = self._channel = _WorkerChannel(self, self._owner)
            factory = Factory.forProtocol(lambda: channel)
            factory.noisy = False
            self._reactor.adoptStreamConnection(ours.fileno(), socket.AF_UNIX, factory)
        finally:
            ours.close()
            theirs.close()
            os.close(record)

    def ask(self, command: Any, **arguments: object) -> Deferred[Any]:
        """Send a command; fires with the response, errbacks if the worker has ended."""
        if self._channel is None or not self.is_ready:
            return fail(Failure(ConnectionDone()))
        return self._channel.ask(command, **arguments)

    def kill(self) -> None:
        """End the process now."""
        if self._process is not None and self._process.pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._process.pid, signal.SIGKILL)

    def ended(self, reason: Failure) -> None:
        """Record that the process has ended."""
        self._process = self._channel = None
        self.is_ready = False
        self._owner.worker_ended(self, reason.getErrorMessage())


class _Output(ProcessProtocol):
    """Logs what a worker writes, and notices its end."""

    def __init__(self, worker: WorkerProcess) -> None:
        self._worker = worker
        self._log = WorkerLog(worker.number + 1)

    def childDataReceived(self, _: int, data: bytes) -> None:
        self._log.receive(data)

    def processEnded(self, reason: Failure) -> None:
        self._log.end()
        self._worker.ended(reason)


class _WorkerChannel(Channel):
    """The connection to a worker."""

    def __init__(self, worker: WorkerProcess, owner: Owner) -> None:
        super().__init__()
        self._worker = worker
        self._owner = owner

    @Ready.responder
    def ready(self, has_open_rules: bool) -> dict[str, object]:
        self._worker.is_ready = True
        self._owner.worker_ready(self._worker, has_open_rules=has_open_rules)
        return {}

    @Failed.responder
    def failed(self, reason: str) -> dict[str, object]:
        self._owner.worker_failed(self._worker, reason)
        return {}

    @TakeRulesTurn.responder
    def take_rules_turn(self) -> Deferred[dict[str, object]]:
        return self._owner.take_rules_turn(self._worker)

    @GiveRulesTurn.responder
    def give_rules_turn(self, project: str, has_stored: bool) -> Deferred[dict[str, object]]:
        return self._owner.give_rules_turn(self._worker, project, has_stored=has_stored)

    @Damaged.responder
    def damaged(self, label: str, refuses_reads: bool) -> dict[str, object]:
        self._owner.worker_found_damaged(self._worker, label, refuses_reads=refuses_reads)
        return {}

    @FindProblems.responder
    async def find_problems(self) -> dict[str, object]:
        return await self._owner.find_problems(self._worker)

    @FindActivity.responder
    async def find_activity(self, project: str) -> dict[str, object]:
        return await self._owner.find_activity(self._worker, project)


def ignore_end(failure: Failure) -> None:
    """Ignore that a worker has ended before it could respond."""
    failure.trap(ConnectionDone, ConnectionLost)
