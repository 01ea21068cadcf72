"""The process of one worker: `python -m treedbd.workers.process`, started by the parent only.

It serves as the whole daemon would, with what it inherits. When its parent asks for it, it ends as
the daemon ends; when its parent has died, it ends at once: what was acknowledged is durable.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import socket
import sys
from typing import Any, Final

import attrs
from twisted.internet.protocol import Factory, connectionDone
from twisted.internet.task import LoopingCall
from twisted.logger import Logger
from twisted.python.failure import Failure
from twisted.python.reflect import namedAny

from treedbd.config.listening import CannotStart
from treedbd.config.settings import Settings
from treedbd.config.values import ConfigError
from treedbd.loop import Turns, record_turns
from treedbd.names import DatabaseName, parse_label
from treedbd.process import (
    begin_for,
    freeze_objects,
    raise_open_file_limit,
    report_long_turns,
    share_arena,
    use_monotonic_clock,
)
from treedbd.service import TreeService
from treedbd.workers.channel import Channel
from treedbd.workers.context import Companions
from treedbd.workers.log import begin_logging
from treedbd.workers.protocol import (
    Damaged,
    Failed,
    FindActivity,
    FindProblems,
    LoadRules,
    Ready,
    Reload,
    Stop,
    encode_activity,
    encode_problems,
)
from treedbd.workers.start import CHANNEL, WorkerStart, read_start

BEAT_S: Final = 1.0
"""Seconds between two signs of life, and between two looks for what hints have not told."""
_PR_SET_PDEATHSIG: Final = 1


class Worker(Channel):
    """One worker, and its side of the connection to its parent."""

    _log = Logger()

    def __init__(self, start: WorkerStart, settings: Settings, reactor: Any) -> None:
        """Prepare; nothing is opened yet."""
        super().__init__()
        self._source = start.source
        self._reactor = reactor
        self._companions = Companions(start, settings, reactor, self._hinted)
        self._service = TreeService(_share(settings, start.workers), reactor, self._companions)
        self._beating = LoopingCall(self._beat)
        self._beating.clock = reactor
        self._polling = LoopingCall(self._poll)
        self._polling.clock = reactor
        self._is_stopping = False

    def connectionMade(self) -> None:
        """Start to serve, and tell the parent."""
        self._companions.parent = self
        self._beating.start(BEAT_S)
        try:
            self._service.privilegedStartService()
            self._service.startService()
        except CannotStart as error:
            self.ask(Failed, reason=str(error))
            return
        turns = Turns(report_long_turns)
        if record_turns(self._reactor, turns):
            self._service.show_turns(turns)
        begin_for(self._reactor)
        self._companions.hints.begin()
        self._polling.start(BEAT_S, now=False)
        freeze_objects()
        self.ask(Ready, has_open_rules=self._service.has_open_rules())

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        """End at once: the parent has died, or this worker has stopped."""
        self._companions.parent = None
        if not self._is_stopping:
            os._exit(1)
        super().connectionLost(reason)

    @Stop.responder
    def stop(self) -> dict[str, object]:
        """End as the whole service does."""
        if not self._is_stopping:
            self._is_stopping = True
            self._service.stopService().addBoth(self._end)
        return {}

    @Reload.responder
    async def reload(self) -> dict[str, object]:
        """Read certificates, secrets, providers and rules files again."""
        settings = None
        with contextlib.suppress(ConfigError):  # the parent says what is wrong
            settings = self._source.read().load()
        is_valid = await self._service.reload(settings)
        return {"is_valid": is_valid}

    @LoadRules.responder
    async def load_rules(self, project: str) -> dict[str, object]:
        """Put the stored rules of a project in force."""
        await self._service.catalog.load_rules(project)
        return {}

    @Damaged.responder
    def damaged(self, label: str, refuses_reads: bool) -> dict[str, object]:
        """Refuse a database that another worker has found damaged."""
        name = parse_label(label)
        if name is not None:
            self._service.catalog.note_damaged(name, refuses_reads=refuses_reads)
        return {}

    @FindProblems.responder
    async def find_problems(self) -> dict[str, object]:
        """Find what this worker cannot serve as it should."""
        return {"problems": encode_problems(await self._service.catalog.find_own_problems())}

    @FindActivity.responder
    def find_activity(self, project: str) -> dict[str, object]:
        """Find what clients do with a project's databases at this worker."""
        return {"activity": [encode_activity(self._service.activity.of_this_process(project))]}

    def _end(self, _: object) -> None:
        if self._service.has_given_up:
            os._exit(0)  # the interpreter would wait for the thread that waits for the disk
        self._reactor.stop()

    def _hinted(self, name: DatabaseName) -> None:
        self._service.catalog.hinted(name)

    def _beat(self) -> None:
        self._companions.counts.beat(self._reactor.seconds())

    def _poll(self) -> None:
        self._service.catalog.poll()


def _share(settings: Settings, workers: int) -> Settings:
    """Return the settings with the part of the memory that one of the workers may use."""
    limits = settings.limits
    parts = {
        name: max(getattr(limits, name) // workers, least)
        for name, least in (
            ("held_body_bytes", limits.write_body_bytes),
            ("held_bytes", 1),
            ("held_bytes_per_address", 1),
            ("parsed_bytes", 1),
            ("waiting_bytes", 1),
            ("waiting_file_bytes", 1),
            ("cache_bytes", 1),
            ("kept_answer_bytes", 0),
        )
    }
    return attrs.evolve(settings, limits=attrs.evolve(limits, **parts))


def end_with_parent(parent: int) -> None:
    """Let the kernel kill this process when the process `parent` dies, even if it stands still."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)  # it has died already


def main() -> None:
    """Serve until the parent ends it."""
    try:
        start = read_start()
    except OSError:
        raise SystemExit("treedb: workers are started by treedb itself: run treedb.") from None
    end_with_parent(start.parent)
    for ignored in (signal.SIGINT, signal.SIGHUP):
        signal.signal(ignored, signal.SIG_IGN)  # of a terminal; the parent says what to do
    begin_logging()
    reactor = namedAny("twisted.internet.reactor")
    use_monotonic_clock(reactor)
    raise_open_file_limit()
    share_arena()
    worker = Worker(start, start.source.load(), reactor)
    signal.signal(signal.SIGTERM, lambda *_: reactor.callFromThread(worker.stop))
    factory = Factory.forProtocol(lambda: worker)
    factory.noisy = False
    reactor.callWhenRunning(reactor.adoptStreamConnection, CHANNEL, socket.AF_UNIX, factory)
    reactor.run(installSignalHandlers=False)


if __name__ == "__main__":
    main()
