"""What the sessions of a process belong to, so that the next process finds what they have left.

A `SessionOwner` is named in every write that is kept for the end of a session (`disconnect`). If it
is dead, another process does these writes (`files.DeadOwners`). `OwnerFile` is the owner of a
process over files, `MemoryOwner` that of one whose databases end with it; over PostgreSQL the owner
has a lease (`cluster.service`).
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import pathlib
import threading
from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence
from typing import Final, Protocol

import attrs
from twisted.internet.defer import Deferred

from treedbd.files import create_directory, is_at, open_private, sync_directory
from treedbd.names import DatabaseName, parse_label
from treedbd.store.engine import StoreUnreachable

OWNER_FILE: Final = "treedb.owner."
"""How the name of an owner's file begins; its id follows. No project can have such a name."""
_ID_BYTES: Final = 8


class DeadOwner(Protocol):
    """An owner that has ended, and may have left writes."""

    def read_names(self) -> Sequence[DatabaseName]:
        """Return the databases in which it may have left any; raise OSError."""
        ...

    async def done(self, *, is_all: bool) -> None:
        """Forget it, because what it has left is done; `is_all` is False if some is not served."""
        ...


class SessionOwner(Protocol):
    """What the sessions of a process belong to, while it runs; used in the reactor's thread.

    Writes that are kept for the end of a session (`disconnect`) name the owner of the session. If
    the owner is dead, another process has to do them. `OwnerFile` is the owner of a process over
    files, `MemoryOwner` that of one whose databases end with it; over PostgreSQL the owner has a
    lease there too (`cluster.service`).
    """

    @property
    def id(self) -> str:
        """What names it in the rows of its writes; it may change while `note` is waited for."""
        ...

    @property
    def must_learn(self) -> bool:
        """Whether `learn` must be called before it is known which owners are dead."""
        ...

    def note(self, name: DatabaseName) -> Deferred[None] | None:
        """Record that it has writes in a database; None if that is durable already.

        Errbacks with OSError or `StoreUnreachable`.
        """
        ...

    def keep(
        self, name: DatabaseName, session: str, end: Callable[[], object] | None = None
    ) -> None:
        """Record that a session may have writes that are not done.

        `end` ends the session, if others may do them because they take this process for dead.
        """
        ...

    def forget(self, name: DatabaseName, session: str) -> None:
        """Record that a session has none."""
        ...

    def is_dead(self, owner: str) -> bool:
        """Return whether the process of another owner has ended, as far as is known here."""
        ...

    def may_be_dead(self, owner: str) -> bool:
        """Return whether an owner is dead, or `learn` has to find that."""
        ...

    async def learn(self, owners: Collection[str]) -> None:
        """Find out which of some owners are dead; raise `StoreUnreachable`."""
        ...

    async def find_dead(self) -> Sequence[DeadOwner]:
        """Return owners that are dead, as far as can be found out at present."""
        ...

    def close(self) -> None:
        """End it: what it has left is for the next process."""
        ...


class MemoryOwner:
    """The owner of sessions in databases that end with the process."""

    id = "memory"
    must_learn = False

    def note(self, _: DatabaseName) -> None:
        """Return None."""

    def keep(self, _: DatabaseName, __: str, ___: Callable[[], object] | None = None) -> None:
        """Do nothing."""

    def forget(self, _: DatabaseName, __: str) -> None:
        """Do nothing."""

    def is_dead(self, _: str) -> bool:
        """Return False."""
        return False

    def may_be_dead(self, _: str) -> bool:
        """Return False."""
        return False

    async def learn(self, _: Collection[str]) -> None:
        """Do nothing."""

    async def find_dead(self) -> Sequence[DeadOwner]:
        """Return nothing."""
        return []

    def close(self) -> None:
        """Do nothing."""


class NotedDatabases:
    """The databases that an owner has recorded; all who wait for one share its record."""

    def __init__(self, record: Callable[[DatabaseName], Awaitable[None]]) -> None:
        """`record` makes it durable; raises OSError or `StoreUnreachable`."""
        self._record = record
        self._done: set[DatabaseName] = set()
        self._waiting: dict[DatabaseName, list[Deferred[None]]] = {}

    @property
    def is_empty(self) -> bool:
        """Whether none is recorded, nor about to be."""
        return not (self._done or self._waiting)

    def note(self, name: DatabaseName) -> Deferred[None] | None:
        """Record a database; None if that is durable already.

        Errbacks with what `record` raises. Those who wait go on in the order in which they came.
        """
        if name in self._done:
            return None
        done: Deferred[None] = Deferred()
        waiting = self._waiting.setdefault(name, [])
        waiting.append(done)
        if len(waiting) == 1:
            Deferred.fromCoroutine(self._note(name))
        return done

    async def _note(self, name: DatabaseName) -> None:
        failed: Exception | None = None
        try:
            await self._record(name)
            self._done.add(name)
        except (OSError, StoreUnreachable) as error:
            failed = error
        for done in self._waiting.pop(name):
            if failed is None:
                done.callback(None)
            else:
                done.errback(failed)

    def forget_all(self) -> None:
        """Record each again when it is noted next."""
        self._done.clear()


class OwnerFile:
    """The owner of the sessions of this process, in one data directory.

    Theory of operation. The file of an owner is in the data directory, and is locked (`flock`)
    until the process ends, however that happens. It lists the databases in which the owner has ever
    stored such a write: a label is durable there before the first write is stored. So those that a
    dead process has left are found without opening every database. The file is removed when none
    are left.

    A process that looks takes a shared lock for a moment, so several can look at a time. An owner
    cannot be mistaken for dead between the creation of its file and the lock: if the file under its
    name is another one by then, the owner gives it up and makes another.

    Attributes:
        id: names it in the rows of its writes.

    """

    must_learn = False

    def __init__(
        self,
        folder: pathlib.Path,
        run_in_thread: Callable[[Callable[[], None]], Deferred[None]],
        entropy: Callable[[int], bytes],
        *,
        knows_all: bool = True,
    ) -> None:
        """Keep a file in `folder` from the first write on.

        `knows_all` says whether an owner without a file is dead; if not, its file may be in the
        data directory of another daemon.
        """
        self._folder = folder
        self._run_in_thread = run_in_thread
        self._entropy = entropy
        self._knows_all = knows_all
        self.id = entropy(_ID_BYTES).hex()
        self._descriptor: int | None = None
        self._writing = threading.Lock()
        self._is_over = False
        self._noted = NotedDatabases(self._record)
        self._sessions: set[tuple[DatabaseName, str]] = set()

    def note(self, name: DatabaseName) -> Deferred[None] | None:
        """Record that it has writes in a database; None if that is durable already."""
        return self._noted.note(name)

    async def _record(self, name: DatabaseName) -> None:
        await self._run_in_thread(lambda: self._append(name))

    def _append(self, name: DatabaseName) -> None:
        """Add a database to the file, durably; blocks."""
        with self._writing:
            if self._is_over:
                raise OSError(errno.EBADF, "The owner has ended")
            if self._descriptor is None:
                self._descriptor = self._create()
            os.write(self._descriptor, f"{name.label}\n".encode())
            os.fsync(self._descriptor)

    def _create(self) -> int:
        """Create the file and lock it; return its descriptor."""
        create_directory(self._folder)
        path = self._folder / (OWNER_FILE + self.id)
        while True:
            descriptor = open_private(path, os.O_RDWR | os.O_CREAT | os.O_APPEND)
            try:
                # Waits for those who only look, which is a moment.
                fcntl.flock(descriptor, fcntl.LOCK_EX)
                if is_at(path, descriptor):
                    sync_directory(self._folder)
                    return descriptor
            except BaseException:
                os.close(descriptor)
                raise
            os.close(descriptor)

    def keep(self, name: DatabaseName, session: str, _: Callable[[], object] | None = None) -> None:
        """Record that a session may have writes that are not done."""
        self._sessions.add((name, session))

    def forget(self, name: DatabaseName, session: str) -> None:
        """Record that a session has none."""
        self._sessions.discard((name, session))

    def is_dead(self, owner: str) -> bool:
        """Return whether the process of another owner has ended, as its file says."""
        if owner == self.id:
            return False
        descriptor = lock_dead(self._folder / (OWNER_FILE + owner))
        if descriptor is not None:
            os.close(descriptor)
            return True
        return self._knows_all and not (self._folder / (OWNER_FILE + owner)).exists()

    def may_be_dead(self, owner: str) -> bool:
        """Return whether an owner is dead."""
        return self.is_dead(owner)

    async def learn(self, _: Collection[str]) -> None:
        """Do nothing: the files say it."""

    async def find_dead(self) -> Sequence[DeadOwner]:
        """Return the owners in this data directory that are dead."""
        return [DeadOwnerFile(path) for path in self.find_dead_files()]

    def find_dead_files(self) -> list[pathlib.Path]:
        """Return the files of owners that are dead."""
        found = []
        for path in _list_files(self._folder):
            descriptor = None if path.name == OWNER_FILE + self.id else lock_dead(path)
            if descriptor is not None:
                os.close(descriptor)
                found.append(path)
        return found

    def close(self) -> None:
        """End it: what it has left is for the next process; without any, the file is removed."""
        with self._writing:  # a thread that writes must not meet a descriptor of another file
            self._is_over = True
            if self._descriptor is None:
                return
            if not self._sessions:
                with contextlib.suppress(OSError):
                    (self._folder / (OWNER_FILE + self.id)).unlink()
            os.close(self._descriptor)
            self._descriptor = None

    def close_later(self) -> None:
        """End it in a thread: what is being written must be waited for."""
        self._run_in_thread(self.close)


@attrs.frozen
class DeadOwnerFile:
    """A dead owner, as its file in the data directory describes it."""

    path: pathlib.Path

    def __str__(self) -> str:
        return str(self.path)

    def read_names(self) -> Sequence[DatabaseName]:
        """Return the databases in which it may have left writes; raise OSError."""
        return read_names(self.path)

    async def done(self, *, is_all: bool) -> None:
        """Remove the file if all is done; no error if that fails."""
        if is_all:
            with contextlib.suppress(OSError):
                self.path.unlink()


def note_dead_owner(folder: pathlib.Path, owner: str, name: DatabaseName) -> None:
    """Record durably that an owner which is not in this directory has writes in a database.

    It counts as dead, so they are done as soon as this daemon accepts writes. Blocks; raises
    OSError, and ValueError for what is not the id of an owner.
    """
    if not (owner.isascii() and owner.isalnum()):
        raise ValueError("The id of an owner has letters and digits.")
    path = folder / (OWNER_FILE + owner)
    if path.exists() and name in read_names(path):
        return
    descriptor = open_private(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    try:
        os.write(descriptor, f"{name.label}\n".encode())
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    sync_directory(folder)


def lock_dead(path: pathlib.Path) -> int | None:
    """Return a descriptor of the file of a dead owner, None if it lives or has no file.

    As long as the descriptor is open, no process can be the owner.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        return None
    return descriptor


def read_names(path: pathlib.Path) -> list[DatabaseName]:
    """Return the databases that the file of an owner lists; a label that was cut off is left out.

    Raises OSError.
    """
    labels = path.read_text("ascii", "replace").split("\n")[:-1]
    found = (parse_label(label) for label in labels)
    return list(dict.fromkeys(name for name in found if name is not None))


def _list_files(folder: pathlib.Path) -> Iterator[pathlib.Path]:
    try:
        names = sorted(name for name in os.listdir(folder) if name.startswith(OWNER_FILE))
    except OSError:
        return
    for name in names:
        yield folder / name
