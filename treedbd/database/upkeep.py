"""What is done to a store as a whole between the batches: checkpoints, and giving space back.

Both wait for the disk in another thread. No batch begins meanwhile; reads go on.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

from twisted.internet.task import deferLater

from treedbd.database.runtime import Runtime
from treedbd.store.engine import Engine

_POLL_S: Final = 0.001


class TakenTurn(Protocol):
    """A `WriteTurn`, for those who only take it and give it back."""

    def take(self) -> bool:
        """Return whether this process has the turn."""
        ...

    def give(self) -> None:
        """Give the turn back."""
        ...


class Upkeep:
    """The upkeep of one store.

    Attributes:
        is_busy: whether the store is being worked on, so that no batch may begin.

    """

    def __init__(
        self,
        engine: Engine,
        runtime: Runtime,
        turn: TakenTurn,
        may_begin: Callable[[], bool],
        resume_writes: Callable[[], None],
    ) -> None:
        """Work on `engine` when `may_begin`; call `resume_writes` when it is free again."""
        self.is_busy = False
        self._engine = engine
        self._runtime = runtime
        self._turn = turn
        self._may_begin = may_begin
        self._resume_writes = resume_writes

    async def checkpoint(self) -> None:
        """Keep the store short, with the turn that a batch has left."""
        await self._run(self._engine.checkpoint)

    async def compact(self) -> tuple[int, int]:
        """Give free space back to the file system; return the bytes before and after.

        Raises `DiskFull` or `StoreFailed`.
        """
        if self._engine.read(lambda view: view.sequence()) == 0:
            return 0, 0
        before = self._engine.size()
        while not (self._may_begin() and self._turn.take() and self._may_begin()):
            await deferLater(self._runtime.clock, _POLL_S)
        await self._run(self._engine.compact)
        return before, self._engine.size()

    async def _run(self, work: Callable[[], None]) -> None:
        self.is_busy = True
        try:
            await self._runtime.run_in_thread(work)
        finally:
            self.is_busy = False
            self._turn.give()
            self._resume_writes()
