"""Work that is done once for all who ask for it before it begins."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

from treedbd.database.slices import Slices


class NextRun:
    """Runs work one run after the other; who asks has the first run that begins afterwards.

    So what a run finds out is never older than the question of any who are answered by it.
    """

    def __init__(
        self,
        work: Callable[[], Awaitable[Any]],
        slices: Slices,
        gather: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """Do `work`; who asks until `gather` has returned is served by the same run.

        All who wait for a run go on in `slices`, while the next one may begin.
        """
        self._work = work
        self._gather = gather
        self._slices = slices
        self._waiting: list[Deferred[Any]] = []
        self._is_running = False

    def ask(self) -> Deferred[Any]:
        """Return what fires with the result of a run that has not begun yet, or its failure."""
        waiter: Deferred[Any] = Deferred()
        self._waiting.append(waiter)
        if not self._is_running:
            Deferred.fromCoroutine(self._run())
        return waiter

    def ask_for_nobody(self) -> None:
        """Let a run begin, and say nothing if it fails: there will be another one."""
        if all(each.called for each in self._waiting):  # of those who gave up none lets it begin
            self.ask().addErrback(lambda _: None)

    async def _run(self) -> None:
        self._is_running = True
        while self._waiting:
            if self._gather is not None:
                await self._gather()
            waiting = [each for each in self._waiting if not each.called]  # the others gave up
            self._waiting = []
            if not waiting:
                continue
            try:
                result = await self._work()
            except Exception:
                result = Failure()
            self._slices.fire(waiting, result)
        self._is_running = False
