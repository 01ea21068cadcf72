"""Work on a store in transactions of its own, between the batches of writes: building indexes."""

from __future__ import annotations

from collections.abc import Callable, Generator
from functools import partial
from typing import TypeAlias

from treedbd.pauses import in_steps
from treedbd.store.engine import Engine, Transaction

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
