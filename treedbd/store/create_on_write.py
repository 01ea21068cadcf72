"""An engine whose file is created at the first commit.

A database that was never written to is empty and has no file. The changes of its first transaction
are kept in memory and, at the commit, written to a real engine that is created then; a transaction
that is rolled back leaves nothing.

The real engine must be empty when it is created, because everything so far has seen an empty
database: rules were evaluated against it, and streams watch it. If data has appeared in its place
meanwhile, the commit fails and the data stays as it is; if it is from another process that serves
the same databases, it is what all calls go to from then on.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Generic, TypeVar

from treedbd.store.engine import (
    CannotCreateStore,
    Conflict,
    Engine,
    EngineSnapshot,
    InDoubt,
    ReadView,
    StoreUnreachable,
    Transaction,
)
from treedbd.store.memory import MemoryEngine
from treedbd.store.row_keys import ROW_KEY_BYTES
from treedbd.store.wrapped_transaction import WrappedTransaction

E = TypeVar("E", bound=Engine)

_ALL: Final = (b"", b"\xff" * (ROW_KEY_BYTES + 1))
"""A range that includes every key."""
_HAS_DATA: Final = (
    "A file with data has appeared for this new database: restart the server to serve it."
)


class CreateOnWriteEngine(Generic[E]):
    """An engine that `create` makes at the first commit; all calls go to it from then on.

    Attributes:
        read, begin: those of the real engine once there is one, so that no call passes through
            here.

    """

    def __init__(
        self, create: Callable[[], E], created: Callable[[E], None], *, is_shared: bool = False
    ) -> None:
        """Call `created` with the engine, in the thread of the commit, when it has the data.

        Nobody else uses the engine before that has returned, unless `created` lets them.
        If the place `is_shared` with other processes, data that has appeared there is a `Conflict`.
        """
        self._is_shared = is_shared
        self._create = create
        self._created = created
        self._engine: Engine = MemoryEngine()
        self.read = self._engine.read
        self.begin: Callable[[], Transaction] = self._begin_first

    def pin(self) -> None:
        """Let reads show the present moment until `advance`."""
        self._engine.pin()

    def advance(self, *, holds: bool = False) -> EngineSnapshot | None:
        """Let reads show what has been committed."""
        return self._engine.advance(holds=holds)

    @property
    def needs_checkpoint(self) -> bool:
        """Whether `checkpoint` is due."""
        return self._engine.needs_checkpoint

    def checkpoint(self) -> None:
        """Do what keeps the store short."""
        self._engine.checkpoint()

    def compact(self) -> None:
        """Give the space back that nothing occupies."""
        self._engine.compact()

    def snapshot(self) -> EngineSnapshot:
        """Hold the present moment open."""
        return self._engine.snapshot()

    def recover(self) -> None:
        """Bring the store back from disk."""
        self._engine.recover()

    def release_reserve(self) -> None:
        """Release the space kept in reserve."""
        self._engine.release_reserve()

    def restore_reserve(self) -> bool:
        """Allocate the reserve again."""
        return self._engine.restore_reserve()

    def find_misplaced(self) -> str | None:
        """Return a sentence about a file that is not in its place."""
        return self._engine.find_misplaced()

    def verify(self) -> list[str]:
        """Return what is damaged."""
        return self._engine.verify()

    def size(self) -> int:
        """Return the bytes on the disk."""
        return self._engine.size()

    def close(self) -> None:
        """Close cleanly."""
        self._engine.close()

    def _begin_first(self) -> Transaction:
        return _FirstTransaction(self._engine.begin(), self._commit_first)

    def _commit_first(self, first: Transaction) -> None:
        rows = list(first.scan(*_ALL))
        entries = list(first.entries(0))
        first.rollback()
        engine = self._create()
        try:
            if not engine.read(_is_empty):
                if self._is_shared:
                    raise Conflict
                raise CannotCreateStore(_HAS_DATA)
            transaction = engine.begin()
            transaction.put_all(rows)
            for entry in entries:
                transaction.append(entry.op_id, entry.content)
            transaction.commit()
        except (Conflict, InDoubt, StoreUnreachable):
            self._bind(engine)  # it goes on from what others have written, or will have written
            raise
        except BaseException:
            engine.close()
            raise
        self._bind(engine)

    def _bind(self, engine: E) -> None:
        self._created(engine)
        self._engine = engine
        self.read = engine.read
        self.begin = engine.begin


class _FirstTransaction(WrappedTransaction):
    """Changes to a database that does not exist yet; passes on everything but the commit."""

    def __init__(self, changes: Transaction, commit: Callable[[Transaction], None]) -> None:
        super().__init__(changes)
        self._commit = commit

    def commit(self) -> None:
        """Write the changes to an engine that is created for them."""
        self._commit(self._transaction)


def _is_empty(view: ReadView) -> bool:
    return not view.sequence() and next(view.scan_keys(*_ALL), None) is None
