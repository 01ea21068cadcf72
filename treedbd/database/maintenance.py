"""Work on a store in transactions of its own, between the batches of writes.

Indexes are built so, and what a database holds is counted.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from functools import partial
from typing import TypeAlias

from treedbd.loop import in_steps
from treedbd.store.engine import DiskFull, Engine, StoreFailed, Transaction

Maintenance: TypeAlias = Callable[[Transaction], bool]
"""Does one step in a transaction; returns False if there was nothing left to do."""


def maintain_once(engine: Engine, work: Maintenance) -> Generator[None, None, Transaction | None]:
    """Do one step, with pauses; return its transaction, None if there was nothing left to do."""
    transaction = engine.begin()
    try:
        has_changed = yield from in_steps(partial(work, transaction))
    except BaseException:
        transaction.rollback()
        raise
    if has_changed:
        return transaction
    transaction.rollback()
    return None


class MaintenanceList:
    """What is to be done to one store, one after the other."""

    def __init__(self) -> None:
        self._maintain: Callable[[Maintenance], None] | None = None
        self._waiting: list[Maintenance] = []

    def begin(self, maintain: Callable[[Maintenance], None]) -> None:
        """Do it from now on by `maintain` (`GroupCommit.maintain`), which knows of one thing."""
        self._maintain = maintain
        if self._waiting:
            maintain(self._do_step)

    def add(self, work: Maintenance) -> None:
        """Do steps of `work` until there is nothing left of it to do."""
        if work not in self._waiting:
            self._waiting.append(work)
        if self._maintain is not None:
            self._maintain(self._do_step)

    def _do_step(self, transaction: Transaction) -> bool:
        while self._waiting:
            work = self._waiting[0]
            try:
                if work(transaction):
                    return True
            except (DiskFull, StoreFailed):
                raise  # it is tried again
            except Exception:
                self._waiting.remove(work)
                raise
            self._waiting.remove(work)
        return False
