"""A database as a shelf: the file that the daemon serves, opened by a Python program as a mapping.

`open_shelf` is to a database what `shelve.open` is to a file of pickles, and what it returns is a
`shelve.Shelf`: a mapping from paths to JSON. Nothing of the daemon runs and no rules are evaluated.

A key is a slash path, such as `users/ada`; the empty path is the whole tree. Any path can be read,
set and removed. Iteration returns the keys of the children, in key order, so a shelf is a mapping
of the children of its root; `at` returns that of any other node.

A shelf that is opened for reading sees what the daemon has committed, also while it runs. One that
is opened for writing holds the lock of the data directory, so no daemon can run meanwhile. Its
writes are one transaction until `sync`, and they enter the change log like any other, so a stream
that resumes later does not miss them.

A `Shelf` has a store, which runs work on the nodes of the file: a `ReadingStore`, or a
`WritingStore` under the lock of the directory. Only the shelf knows paths and values.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import os
import pathlib
import shelve
import time
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any, Final, Literal, Self, TypeAlias, TypeVar, get_args

from treedbd.limits import StreamLimits
from treedbd.store import changelog
from treedbd.store.directory_lock import DirectoryLock
from treedbd.store.engine import DiskFull, StoreFailed
from treedbd.store.expiry_rows import distrust
from treedbd.store.indexes import make_writer, read_states
from treedbd.store.node_writer import NodeWriter
from treedbd.store.nodes import Nodes
from treedbd.store.rows import Span, parse_stored
from treedbd.store.sqlite.engine import SqliteEngine
from treedbd.store.sqlite.file import check_file, connect_reader
from treedbd.store.sqlite.reader import SqliteReader
from treedbd.store.sqlite.writer import SqliteTransaction
from treedbd.tree.edit import Edit, make_put, make_remove, resolve
from treedbd.tree.path import make_place
from treedbd.tree.types import PRIORITY, InvalidData, InvalidPath, Json, Path, Place
from treedbd.tree.value import as_json, parse

T = TypeVar("T")


Flag: TypeAlias = Literal["r", "w", "c"]

KEYS_AT_ONCE: Final = 1000
"""Keys that an iteration reads at a time; between two reads the tree may change."""


class ReadOnlyShelf(TypeError):
    """A write to a shelf that was opened for reading."""

    def __init__(self) -> None:
        super().__init__('The shelf was opened for reading; open it with the flag "w" to write.')


def open_shelf(
    file: str | os.PathLike[str],
    flag: Flag = "r",
    *,
    retain_events: int = StreamLimits().retain_events,
) -> Shelf:
    """Open the file of a database, `<data>/<project>/<database>.shelf`.

    `flag` is `"r"` for reading, `"w"` for reading and writing, `"c"` to create the file as well if
    it is missing. `retain_events` is how many writes the change log keeps, as in the configuration
    of the daemon. Raises FileNotFoundError, `CannotOpenStore`, also if a daemon holds the lock, or
    `DiskFull`. A file of an older format is converted when it is opened for writing, and cannot be
    opened for reading before that. Reading needs write access to the directory too: SQLite keeps an
    index of the log there.
    """
    if flag not in get_args(Flag):
        raise ValueError(f"The flag must be one of {', '.join(get_args(Flag))}, not {flag!r}.")
    path = pathlib.Path(file).absolute()
    if flag == "r":
        return Shelf(ReadingStore(path))
    return Shelf(WritingStore(path, retain_events, may_create=flag == "c"))


class Shelf(shelve.Shelf[Json]):
    """The children of one node, by their paths below it.

    Used as a context manager it is closed at the end; after an exception what was written since the
    last `sync` is discarded. Values are what `json.dumps` accepts, and a few more objects that the
    interface defines: `{".value": …, ".priority": …}` and the server values `{".sv": …}`.

    Writes raise `ReadOnlyShelf`, or `InvalidPath` and `InvalidData`, which are ValueErrors, for
    keys and values that a tree cannot hold; then nothing has changed. Any method raises
    `StoreFailed` if the file cannot be read or written; what was written since the last `sync` is
    discarded then, and the file must be opened again before it can be written. A closed shelf
    raises ValueError.
    """

    def __init__(self, store: ReadingStore | WritingStore, root: Path = ()) -> None:
        """Not to be called directly: `open_shelf` and `at` return shelves."""
        self._store = store
        self._root = root

    def __getitem__(self, key: str) -> Json:
        """Return the JSON of a plain GET of `key`; raise KeyError if nothing is there."""
        place = self._place(key)
        found = self._store.read(lambda nodes: _read(nodes, place))
        if found is None:
            raise KeyError(key)
        return found

    def __setitem__(self, key: str, value: Json) -> None:
        """Set what is at `key`, as a PUT does; None removes it."""
        self._store.write(make_put(self._place(key), _as_parsed(value)))

    def __delitem__(self, key: str) -> None:
        """Remove what is at `key`; raise KeyError if nothing is there."""
        place = self._place(key)
        if not self._store.read(lambda nodes: _exists(nodes, place)):
            raise KeyError(key)
        self._store.write(make_remove(place))

    def __contains__(self, key: object) -> bool:
        """Return whether anything is at `key`."""
        try:
            place = self._place(key) if isinstance(key, str) else None
        except InvalidPath:
            place = None
        return place is not None and self._store.read(lambda nodes: _exists(nodes, place))

    def __iter__(self) -> Iterator[str]:
        """Iterate over the keys of the children in key order.

        They are read some at a time, so the shelf can be read and written meanwhile. While a daemon
        writes, a child may be gone when it is looked up: then `items` and `values` raise KeyError.
        """
        after: str | None = None
        while True:
            keys = self._store.read(functools.partial(_keys, path=self._root, after=after))
            yield from keys
            if len(keys) < KEYS_AT_ONCE:
                return
            after = keys[-1]

    def __len__(self) -> int:
        """Return the number of children, which requires reading all their keys."""
        return sum(1 for _ in self)

    def __enter__(self) -> Self:
        """Return the shelf."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close the shelf; after an exception discard what was written since the last `sync`."""
        if error is not None:
            self._store.rollback()
        self.close()

    def __del__(self) -> None:
        """Do nothing: what was not closed or synced is not written."""

    def get(self, key: str, default: Any = None) -> Any:
        """Return the JSON at `key`, or `default` if nothing is there."""
        try:
            return self[key]
        except KeyError:
            return default

    def clear(self) -> None:
        """Remove all children, in one write."""
        if next(iter(self), None) is not None:
            self._store.write(make_remove(Place(self._root)))

    def at(self, path: str) -> Shelf:
        """Return a shelf of the children of the node at `path`; the two are closed together."""
        place = self._place(path)
        if place.is_priority:
            raise InvalidPath(f"{PRIORITY} is not a node.")
        return Shelf(self._store, place.path)

    def export(self, path: str = "") -> Json:
        """Return what is at `path` as `format=export` does: with priorities, without arrays.

        Returns None if nothing is there.
        """
        place = self._place(path)
        return self._store.read(lambda nodes: _read(nodes, place, export=True))

    def sync(self) -> None:
        """Make everything written so far durable.

        Raises `DiskFull` or `StoreFailed`; what was written since the last `sync` is discarded
        then.
        """
        self._store.commit()

    def close(self) -> None:
        """Make everything written so far durable, and close the file; a second call does nothing.

        Raises `DiskFull` or `StoreFailed`; the file is closed all the same.
        """
        self._store.close()

    def _place(self, key: str) -> Place:
        """Return the place of a key; raise `InvalidPath`."""
        try:
            key.encode()
        except UnicodeEncodeError:
            raise InvalidPath("A key must not contain lone surrogates.") from None
        return make_place((*self._root, *[name for name in key.split("/") if name]))


def _as_parsed(value: object) -> Json:
    """Return a value as JSON that was parsed, the only input that `make_put` checks.

    It would store tuples and subclasses of dict unchecked. Raises `InvalidData`.
    """
    try:
        text = json.dumps(value, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidData(f"The value cannot be printed as JSON: {error}.") from None
    return parse(text.encode())


def _read(nodes: Nodes, place: Place, *, export: bool = False) -> Json:
    if place.is_priority:
        return nodes.priority(place.path)
    return as_json(nodes.get(place.path)) if export else parse_stored(nodes.print(place.path))


def _keys(nodes: Nodes, path: Path, after: str | None) -> list[str]:
    return list(itertools.islice(nodes.keys(path, Span(after=after)), KEYS_AT_ONCE))


def _exists(nodes: Nodes, place: Place) -> bool:
    found = nodes.priority(place.path) if place.is_priority else nodes.peek(place.path)
    return found is not None


class ReadingStore:
    """A file that is opened for reading; each read sees the last commit."""

    def __init__(self, path: pathlib.Path) -> None:
        """Open the file; raise FileNotFoundError or `CannotOpenStore`."""
        check_file(path, os.R_OK)
        self._connection = connect_reader(path, is_known=False)
        self._reader = SqliteReader(self._connection)
        self._is_closed = False

    def read(self, work: Callable[[Nodes], T]) -> T:
        """Run `work` on the last commit and return its result."""
        _check_open(self._is_closed)
        return self._reader.read(lambda view: work(Nodes(view)))

    def write(self, edit: Edit) -> None:
        """Raise `ReadOnlyShelf`."""
        raise ReadOnlyShelf

    def commit(self) -> None:
        """Do nothing: nothing was changed."""

    def rollback(self) -> None:
        """Do nothing: nothing was changed."""

    def close(self) -> None:
        """Close the file; a second call does nothing."""
        self._is_closed = True
        self._connection.close()


class WritingStore:
    """A file that is opened for writing, with the lock of its data directory."""

    _locks: contextlib.ExitStack | None = None
    """None before the file is open and after it has been closed."""

    def __init__(self, path: pathlib.Path, retain_events: int, *, may_create: bool) -> None:
        """Lock the directory and open the file, or create it if it is missing and that is allowed.

        Raises FileNotFoundError, `CannotOpenStore` or `DiskFull`.
        """
        self._retain_events = retain_events
        self._transaction: SqliteTransaction | None = None
        self._pushed: int | None = None
        if not may_create:
            check_file(path)  # before the lock, which would create the directory of a wrong path
        with contextlib.ExitStack() as locks:
            # A link must not lead past the lock of the directory that a daemon serves.
            for folder in {path.parent.parent.resolve(), path.resolve().parent.parent}:
                locks.callback(DirectoryLock(folder).release)
            if may_create and not path.exists():
                self._engine = SqliteEngine.create(path)
            else:
                self._engine = SqliteEngine.open(path, report=_ignore)
            locks.callback(self._engine.close)
            self._locks = locks.pop_all()

    def __del__(self) -> None:
        """Release the lock of a shelf that was never closed; discard what was not synced."""
        if self._locks is not None:
            self.rollback()
            self.close()

    def read(self, work: Callable[[Nodes], T]) -> T:
        """Run `work` on what has been written so far and return its result."""
        _check_open(self._locks is None)
        if self._transaction is None:
            return self._engine.read(lambda view: work(Nodes(view)))
        try:
            return work(Nodes(self._transaction))
        except (DiskFull, StoreFailed):
            self._transaction = None  # the error has ended it
            raise

    def write(self, edit: Edit) -> None:
        """Do one write, which is not durable before `commit`."""
        now = int(time.time() * 1000)
        resolved = self.read(lambda nodes: resolve(edit, now, nodes))
        path, is_priority = resolved.place
        if is_priority and self.read(lambda nodes: nodes.peek(path)) is None:
            return  # a priority needs a node
        self.write_rows(lambda writer: writer.apply(resolved.changes), resolved, now)

    def write_rows(
        self,
        work: Callable[[NodeWriter], None],
        edit: Edit,
        now: int,
        entry_bytes: int = changelog.MAX_ENTRY_BYTES,
    ) -> None:
        """Do one write by `work`, which must have the effect of `edit`.

        `edit` has no server values. The log holds it if its entry has at most `entry_bytes`.
        """
        if self._pushed is None:
            self._pushed = self.read(lambda nodes: changelog.push_time(nodes.rows.stored))
        entry = changelog.encode(edit, now, entry_bytes, pushed=self._pushed)
        if self._transaction is None:
            self._transaction = self._engine.begin()
        try:
            work(make_writer(self._transaction, read_states(self._transaction).kept))
            distrust(self._transaction)  # no rules are known here
            changelog.append(self._transaction, os.urandom(16), entry, self._retain_events)
        except BaseException:
            self.rollback()  # half of a write, or one without its entry, must not be committed
            raise

    def commit(self) -> None:
        """Make what was written durable; raise `DiskFull` or `StoreFailed`."""
        transaction, self._transaction = self._transaction, None
        if transaction is not None:
            transaction.commit()

    def rollback(self) -> None:
        """Discard what was written since the last commit."""
        transaction, self._transaction = self._transaction, None
        if transaction is not None:
            transaction.rollback()

    def close(self) -> None:
        """Commit, close the file and release the lock; a second call does nothing."""
        if self._locks is None:
            return
        with self._locks:
            self._locks = None
            self.commit()


def _ignore(_: str) -> None:
    """Receive a sentence about the progress of a conversion."""


def _check_open(is_closed: bool) -> None:
    if is_closed:
        raise ValueError("The shelf is closed.")
