"""A database as a shelf: the file that the daemon serves, opened by a Python program.

`open_shelf` is to a database what `shelve.open` is to a file of pickles, and what it returns is a
`shelve.Shelf`: a mapping from paths to JSON. Nothing of the daemon runs and no rules are evaluated.

A key is a slash path, such as `users/ada`; the empty path is the whole tree. Any path can be read,
set and removed. Iteration returns the keys of the children, in key order, so a shelf is a mapping
of the children of its root; `at` returns that of any other node.

A shelf that is opened for reading sees what the daemon has committed, also while it runs. One that
is opened for writing holds the lock of the data directory, so no daemon can run meanwhile. Its
writes are one transaction until `sync`, and they enter the change log like any other, so a stream
that resumes later does not miss them.
"""

from __future__ import annotations

import functools
import itertools
import json
import os
import pathlib
import shelve
from collections.abc import Iterator
from types import TracebackType
from typing import Any, Final, Literal, Self, TypeAlias, get_args

from treedbd.limits import StreamLimits
from treedbd.store.nodes import Nodes
from treedbd.store.rows import Span, parse_stored
from treedbd.store.shelf_stores import ReadingStore, WritingStore
from treedbd.tree.edit import make_put, make_remove
from treedbd.tree.path import make_place
from treedbd.tree.types import PRIORITY, InvalidData, InvalidPath, Json, Path, Place
from treedbd.tree.value import as_json, parse

Flag: TypeAlias = Literal["r", "w", "c"]

KEYS_AT_ONCE: Final = 1000
"""Keys that an iteration reads at a time; between two reads the tree may change."""


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
