"""Engines whose file is created, closed and opened again as the database is used.

Two engines wrap the real one and pass on what does not concern its file.

`CreateOnWriteEngine` is an engine whose file is created at the first commit. A database that was
never written to is empty and has no file. The changes of its first transaction are kept in memory
and, at the commit, written to a real engine that is created then; a transaction that is rolled back
leaves nothing. The real engine must be empty when it is created, because everything so far has seen
an empty database: rules were evaluated against it, and streams watch it. If data has appeared in
its place meanwhile, the commit fails and the data stays as it is; if it is from another process
that serves the same databases, it is what all calls go to from then on.

`ReopeningEngine` is an engine whose file is closed while it is not used, and is opened again at the
next use. Closing and opening wait for the disk, so both may run in a worker thread. In between, the
thread that uses the engine must never meet a file that is half open. So an engine is closed in two
steps: `detach`, in the thread that uses it, after which every use opens it first; and
`close_detached`, in any thread. A lock that both `open` and `close_detached` hold makes each wait
for the other: a file is never open twice, and an engine that is opened again before it was closed
stays open.

While the file is closed, another program may put another in its place, or an older copy of it. The
watchers of the database have seen the state that was left, so only a file with that state is opened
again, or with one that other processes have made of it.
"""

from __future__ import annotations

import pathlib
import threading
from collections.abc import Callable
from typing import Any, Final, Generic, NoReturn, Protocol, TypeAlias, TypeVar

from treedbd.store.engine import (
    CannotCreateStore,
    CannotOpenStore,
    Conflict,
    Damage,
    Engine,
    EngineSnapshot,
    InDoubt,
    PresentView,
    ReadView,
    StoreDamaged,
    StoreFailed,
    StoreUnreachable,
    Transaction,
    WrappedTransaction,
)
from treedbd.store.memory import MemoryEngine
from treedbd.store.rows import ROW_KEY_BYTES

T = TypeVar("T")


E = TypeVar("E", bound=Engine)
_State: TypeAlias = tuple[int, bytes]
"""The number and the id of the last entry of the log: no two histories share them."""

_CLOSED: Final = "The store is closed."

_ALL: Final = (b"", b"\xff" * (ROW_KEY_BYTES + 1))
"""A range that includes every key."""
_HAS_DATA: Final = (
    "A file with data has appeared for this new database: restart the server to serve it."
)


class FileEngine(Engine, Protocol):
    """An engine over a file, which can be closed and opened again."""

    @property
    def path(self) -> pathlib.Path:
        """The file."""
        ...

    @property
    def has_snapshots(self) -> bool:
        """Whether a moment is held open."""
        ...

    @property
    def was_closed_cleanly(self) -> bool:
        """Whether the file was sound when it was closed, and has not changed since."""
        ...

    def refuse_snapshots(self, refusal: Callable[[], Exception]) -> None:
        """Close every moment that is held open; its reader receives what `refusal` returns."""
        ...

    def limit_cache(self, size: int) -> None:
        """Keep about `size` bytes of the file in memory at most; not during a commit."""
        ...

    def find_damage(self, pause: Callable[[], bool]) -> Damage | None:
        """Read the whole file, in any thread; return a clause about what is damaged first."""
        ...

    def confirm_sound(self) -> None:
        """Record that the whole file has been read and is sound."""
        ...


class WrappedEngine:
    """Passes the calls of an `Engine` on to another one; subclasses have `read` and `begin`."""

    _refusal: Callable[[], Exception] | None = None

    def retire(self, refusal: Callable[[], Exception]) -> None:
        """Raise what `refusal` returns at every use from now on, except `close`.

        Also to the readers of snapshots that are held of a file. Called in the thread that uses the
        engine; no commit may be under way.
        """
        raise NotImplementedError

    def _check_in_use(self) -> None:
        """Raise the refusal of an engine that was retired."""
        if self._refusal is not None:
            raise self._refusal()

    def _opened(self) -> Engine:
        """Return the engine that calls go to, opened if need be."""
        raise NotImplementedError

    def checkpoint(self) -> None:
        """Keep the log of the store short."""
        self._opened().checkpoint()

    def compact(self) -> None:
        """Release unused space."""
        self._opened().compact()

    def snapshot(self) -> EngineSnapshot:
        """Hold the present moment open."""
        return self._opened().snapshot()

    def recover(self) -> None:
        """Bring the store back from disk."""
        self._opened().recover()

    def release_reserve(self) -> None:
        """Release the space kept in reserve."""
        self._opened().release_reserve()

    def restore_reserve(self) -> bool:
        """Allocate the reserve again."""
        return self._opened().restore_reserve()

    def find_misplaced(self) -> str | None:
        """Return a sentence about a file that is not in its place."""
        return self._opened().find_misplaced()

    def verify(self) -> list[str]:
        """Return what is damaged."""
        return self._opened().verify()

    def size(self) -> int:
        """Return the bytes on the disk."""
        return self._opened().size()

    def close(self) -> None:
        """Close cleanly."""
        self._opened().close()


class CreateOnWriteEngine(WrappedEngine, Generic[E]):
    """An engine that `create` makes at the first commit; all calls go to it from then on.

    Attributes:
        read, begin, needs_checkpoint: those of the real engine once there is one, so that no call
            passes through here.

    """

    def __init__(
        self, create: Callable[[], E], created: Callable[[E], None], *, is_shared: bool = False
    ) -> None:
        """Call `created` with the engine, in the thread of the commit, when it has the data.

        Nothing else uses the engine before that has returned, unless `created` allows it.
        If the place `is_shared` with other processes, data that has appeared there is a `Conflict`.
        """
        self._is_shared = is_shared
        self._create = create
        self._created = created
        self._engine: Engine = MemoryEngine()
        self.read = self._engine.read
        self.needs_checkpoint = self._engine.needs_checkpoint
        self.begin: Callable[[], Transaction] = self._begin_first

    def pin(self) -> None:
        """Pin the present moment: reads show it until `advance`."""
        self._engine.pin()

    def advance(self, *, holds: bool = False) -> EngineSnapshot | None:
        """Show the last commit to reads."""
        return self._engine.advance(holds=holds)

    def retire(self, refusal: Callable[[], Exception]) -> None:
        """Raise what `refusal` returns at every use from now on, except `close`."""
        self._refusal = refusal
        refuse: Any = self._refuse
        self.read = self.begin = refuse

    def close(self) -> None:
        """Close cleanly; what was retired is left to the readers of its snapshots."""
        if self._refusal is None:
            self._engine.close()

    def _refuse(self, *_: object) -> NoReturn:
        self._check_in_use()
        raise StoreFailed(_CLOSED)

    def _opened(self) -> Engine:
        self._check_in_use()
        return self._engine

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
        self.needs_checkpoint = engine.needs_checkpoint
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


class ReopeningEngine(WrappedEngine):
    """An engine over a file that is opened by `open_file`, closed when idle, and opened again.

    Attributes:
        read, begin, pin, advance, needs_checkpoint: those of the engine that is open, so that no
            call passes through here.
        cache_size: what `limit_cache` was given last, in bytes; 0 if the engine is not open.

    """

    def __init__(
        self,
        open_file: Callable[[], FileEngine],
        use: Callable[[], None],
        first: Engine | None = None,
        *,
        is_shared: bool = False,
    ) -> None:
        """Begin closed, or with the engine `first`, which has no file yet.

        `use` is called when the engine is used while it is closed; it must call `open` or raise.
        With `is_shared` other processes may have written to the file while it was closed.
        """
        self._is_shared = is_shared
        self._open_file = open_file
        self._use = use
        self._lock = threading.Lock()
        self._file: FileEngine | None = None
        self._engine: Engine | None = first
        self._left: _State | None = None
        self._damage: str | None = None
        self._is_over = False
        self.cache_size = 0
        self.read = self._open_and_read
        self.begin: Callable[[], Transaction] = self._open_and_begin
        self.pin: Callable[[], None] = self._open_and_pin
        self.advance: Callable[..., EngineSnapshot | None] = _advance_nothing
        self.needs_checkpoint: Callable[[], bool] = _needs_nothing
        if first is not None:
            self._bind(first)

    @property
    def is_open(self) -> bool:
        """Whether it can be used without opening anything."""
        return self._engine is not None

    @property
    def is_new(self) -> bool:
        """Whether it has no file yet."""
        return self._file is None and self._engine is not None

    @property
    def file(self) -> FileEngine:
        """The engine over the file; raises `StoreFailed` if that is closed or does not exist."""
        if self._engine is None or self._file is None:
            raise StoreFailed(_CLOSED)
        return self._file

    @property
    def has_snapshots(self) -> bool:
        """Whether a moment is held open."""
        return self._file is not None and self._file.has_snapshots

    def attach(self, file: FileEngine, cache_size: int) -> None:
        """Use an engine whose file was created just now, in any thread."""
        with self._lock:
            self._file = file
            self.limit_cache(cache_size)  # first: a connection is used in one thread at a time
            self._bind(file)

    def open(self, cache_size: int) -> None:
        """Open the file, in any thread; no effect if it is open.

        Raises what `open_file` raises, and `CannotOpenStore` if the state of the file is not the
        one that was left.
        """
        with self._lock:
            self._check_in_use()
            if self._is_over:
                raise StoreFailed(_CLOSED)
            if self._file is None:
                self._file = self._open_as_left()
            self.limit_cache(cache_size)
            self._bind(self._file)

    def limit_cache(self, size: int) -> None:
        """Keep about `size` bytes of the file in memory at most; not during a commit."""
        if self._file is not None:
            self._file.limit_cache(size)
            self.cache_size = size

    def refuse_reads(self, damage: str) -> None:
        """Refuse reads with `StoreDamaged` from now on: the file shows less than was written to it.

        Snapshots that are held already go on.
        """
        self._damage = damage
        self.read = self._open_and_read

    def retire(self, refusal: Callable[[], Exception]) -> None:
        """Raise what `refusal` returns at every use from now on, except `close`."""
        self._refusal = refusal
        self.detach()
        if self._file is not None:
            self._file.refuse_snapshots(refusal)

    def detach(self) -> None:
        """Open the file at the next use; no commit and no snapshot may be under way."""
        self.advance()
        self._engine = None
        self.read = self._open_and_read
        self.begin = self._open_and_begin
        self.pin = self._open_and_pin
        self.advance = _advance_nothing
        self.needs_checkpoint = _needs_nothing

    def close_detached(self) -> None:
        """Close the file, in any thread, unless the engine has been opened again since."""
        with self._lock:
            if self._engine is None and self._file is not None:
                file, self._file = self._file, None
                self.cache_size = 0
                self._left = _state_of(file)
                file.close()

    def snapshot(self) -> EngineSnapshot:
        """Hold the present moment open."""
        self._check_undamaged()
        return self._opened().snapshot()

    def find_misplaced(self) -> str | None:
        """Return a sentence about a file that is not in its place; None if the file is closed."""
        return None if self._engine is None else self._engine.find_misplaced()

    def close(self) -> None:
        """Close cleanly; it is not opened again."""
        self._is_over = True
        with self._lock:
            engine, self._file = self._file or self._engine, None
            self.detach()
            if engine is not None:
                engine.close()

    def _bind(self, engine: Engine) -> None:
        self._engine = engine
        if self._damage is None:
            self.read = engine.read
        self.begin = engine.begin
        self.pin = engine.pin
        self.advance = engine.advance
        self.needs_checkpoint = engine.needs_checkpoint

    def _open_as_left(self) -> FileEngine:
        file = self._open_file()
        try:
            if self._left is not None and not self._continues(file, self._left):
                raise CannotOpenStore(
                    file.path,
                    "was changed by another program while the server was running",
                    "restart the server to serve it as it is, or put the former file back",
                )
        except BaseException:
            file.close()
            raise
        return file

    def _continues(self, file: FileEngine, left: _State) -> bool:
        """Return whether a file has the state that was left, or a later one of the same history."""
        if not self._is_shared:
            return left == _state_of(file)
        return file.read(lambda view: _may_follow(view, left))

    def _opened(self) -> Engine:
        self._check_in_use()
        if self._engine is None:
            self._use()
            if self._engine is None:
                raise StoreFailed(_CLOSED)
        return self._engine

    def _check_undamaged(self) -> None:
        self._check_in_use()
        if self._damage is not None:
            raise StoreDamaged(self._damage)

    def _open_and_read(self, work: Callable[[PresentView], T]) -> T:
        self._check_undamaged()
        return self._opened().read(work)

    def _open_and_begin(self) -> Transaction:
        return self._opened().begin()

    def _open_and_pin(self) -> None:
        self._opened().pin()


def _advance_nothing(*, holds: bool = False) -> None:
    """Show the same: the file is closed, so nothing was committed."""


def _needs_nothing() -> bool:
    """Return False: the file is closed, so its log does not grow."""
    return False


def _state_of(engine: Engine) -> _State | None:
    """Return the state of an engine, None if it cannot be read."""
    try:
        return engine.read(_last_entry)
    except StoreFailed:
        return None


def _may_follow(view: ReadView, left: _State) -> bool:
    """Return whether a history goes on from a state, as far as its log says."""
    sequence, op_id = left
    if view.sequence() < sequence:
        return False
    entry = next(view.entries(sequence - 1), None)
    return entry is None or entry.sequence != sequence or entry.op_id == op_id


def _last_entry(view: ReadView) -> _State:
    sequence = view.sequence()
    entry = next(view.entries(sequence - 1), None)
    return sequence, b"" if entry is None else entry.op_id
