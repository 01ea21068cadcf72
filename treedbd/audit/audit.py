"""The audit of a process: the writes it reads if it is elected, and the requests it answers."""

from __future__ import annotations

import pathlib
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from twisted.internet.defer import Deferred, DeferredList
from twisted.internet.threads import deferToThreadPool
from twisted.logger import Logger

from treedbd.audit.accesses import AccessRecorder
from treedbd.audit.auditor import Auditor
from treedbd.audit.series import AuditSeries
from treedbd.database.catalog import Catalog
from treedbd.database.election import Election
from treedbd.database.runtime import Problem, Runtime

if TYPE_CHECKING:
    from treedbd.config.settings import AuditSettings

STOP_SECONDS: Final = 1.5
"""How long a stop waits for what is left to be audited."""


class Audit:
    """Audits the writes of all databases and the requests of this process; of the reactor's thread.

    Attributes:
        auditor: reads the writes in the change logs.
        recorder: records requests.

    """

    _log = Logger()

    def __init__(
        self,
        settings: AuditSettings,
        folder: pathlib.Path,
        *,
        catalog: Catalog,
        runtime: Runtime,
        election: Election,
        has_files: bool,
        reactor: Any,
    ) -> None:
        """Write below `folder` from `start` on; `election` chooses the process that reads logs.

        It `has_files` unless the databases are in PostgreSQL.
        """
        self._catalog, self._reactor = catalog, reactor
        run_in_thread = partial(deferToThreadPool, reactor, reactor.getThreadPool())
        make_series = partial(
            AuditSeries,
            file_bytes=settings.file_bytes,
            keep_s=settings.keep_s,
            now_ms=runtime.now_ms,
            seconds=reactor.seconds,
        )
        self.auditor: Final = Auditor(
            folder,
            make_series,
            body_bytes=settings.body_bytes,
            catalog=catalog,
            runtime=runtime,
            election=election,
            run_in_thread=run_in_thread,
            has_files=has_files,
        )
        self.recorder: Final = AccessRecorder(
            folder,
            make_series,
            reads=settings.reads,
            denied=settings.denied,
            run_in_thread=run_in_thread,
            clock=reactor,
            now_ms=runtime.now_ms,
        )

    def start(self) -> None:
        """Audit from now on."""
        self._catalog.end_listeners.append(self.auditor.leave)
        self._catalog.last_readers.append(self.auditor.finish)
        self._catalog.problem_sources.append(self._find_problems)
        self.recorder.start()
        self.auditor.start()

    async def stop(self) -> bool:
        """Audit what is left; return whether the disk has responded in time.

        If it has not, the next process does it, and threads of this one wait for the disk.
        """
        stopping = [Deferred.fromCoroutine(each.stop()) for each in (self.auditor, self.recorder)]
        both = DeferredList(stopping, consumeErrors=True)
        ended: list[Any] = await both.addTimeout(STOP_SECONDS, self._reactor, lambda _, __: [])
        if not ended:
            self._log.error(
                "The disk of the audit does not respond: what is left is audited later."
            )
        return bool(ended)

    def _find_problems(self) -> list[Problem]:
        problems = self.auditor.problems()
        if self.recorder.problem is not None:
            problems.append(Problem("", None, self.recorder.problem, refuses_writes=False))
        return problems
