"""The shelf: a `shelve.Shelf` whose keys are paths and whose values are JSON rows of a mapping.

It looks like the standard library's shelf: `shelf[("users", "ada")] = {"age": 36}`, but iterates in
key order, knows the greatest key at most another (`floor`) and ranges, and never pickles: a value
is in the normal form of `tree.value` and lies in its row as `row` encodes it. The `raw_` methods
are the same store with encoded keys and undecoded rows, for those who splice bytes.

A shelf over `Rows` can only be read; one over a `Transaction` can be written too. It keeps nothing
in memory: there is no write-back, `sync` has nothing to do, and `close` only lets go of the rows;
transaction and mapping belong to whoever opened them. What a row means for the tree, `nodes` knows;
to the shelf every row stands for itself.
"""

from __future__ import annotations

import shelve
from collections.abc import Iterable, Iterator, MutableMapping
from typing import Any, NoReturn, cast

from treedbd.store.layout import END, FIRST, KEY_BYTES, below
from treedbd.store.mapping import Row, Rows, Transaction
from treedbd.store.row import encode_row, load_row
from treedbd.tree.order import TEXT_TAG, decode_path, encode_path
from treedbd.tree.path import Path
from treedbd.tree.value import Value

_TEXT = bytes((TEXT_TAG,))
_ESCAPES = "surrogateescape"


class ReadOnly(TypeError):
    """A write to a shelf that stands on rows for reading."""


class Table(MutableMapping[bytes, bytes]):
    """The tree's rows of a mapping as Python's own kind of mapping, in key order."""

    def __init__(self, rows: Rows, transaction: Transaction | None) -> None:
        self._rows = rows
        self._transaction = transaction

    def __getitem__(self, key: bytes) -> bytes:
        raw = self._rows.get(key)
        if raw is None:
            raise KeyError(key)
        return raw

    def __setitem__(self, key: bytes, raw: bytes) -> None:
        self.transaction.put(key, raw)

    def __delitem__(self, key: bytes) -> None:
        if key not in self:
            raise KeyError(key)
        self.transaction.delete(key)

    def __iter__(self) -> Iterator[bytes]:
        return self._rows.scan_keys(FIRST, END)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def clear(self) -> None:
        """Remove every row of the tree."""
        self.transaction.delete_range(FIRST, END)

    @property
    def transaction(self) -> Transaction:
        """Where writes go; raises `ReadOnly` where there is no such place."""
        if self._transaction is None:
            raise ReadOnly("This shelf was opened for reading.")
        return self._transaction


class Shelf(shelve.Shelf[Value]):
    """Rows of JSON by path, in key order.

    A path whose encoding is longer than a row's key may be stands for the row whose key is its
    beginning; iteration gives such a path with its last key cut off, bytes that are not whole
    characters as lone surrogates (PEP 383), and the shelf takes it back.
    """

    dict: Table

    def __init__(self, rows: Rows, transaction: Transaction | None = None) -> None:
        """Open over `rows` for reading; `writing` opens for both."""
        super().__init__(Table(rows, transaction))
        self._rows = rows

    @classmethod
    def writing(cls, transaction: Transaction) -> Shelf:
        """Open over a transaction, for reading and writing."""
        return cls(transaction, transaction)

    def __getitem__(self, path: Path) -> Value:  # type: ignore[override]
        return load_row(self.dict[_row_key(path)])

    def __setitem__(self, path: Path, value: Value) -> None:  # type: ignore[override]
        self.dict[_row_key(path)] = encode_row(value)

    def __delitem__(self, path: Path) -> None:  # type: ignore[override]
        del self.dict[_row_key(path)]

    def __contains__(self, path: object) -> bool:
        return isinstance(path, tuple) and _row_key(path) in self.dict

    def __iter__(self) -> Iterator[Path]:  # type: ignore[override]
        return map(_row_path, self.dict)

    def get(self, path: Path, default: Any = None) -> Any:  # type: ignore[override]
        """Return the value of the row of `path`, or `default`."""
        raw = self.raw_get(_row_key(path))
        return default if raw is None else load_row(raw)

    def clear(self) -> None:
        """Remove every row."""
        self.dict.clear()

    def floor(self, path: Path) -> tuple[Path, Value] | None:
        """Return the row with the greatest path that is at most `path`."""
        row = self.raw_floor(_row_key(path))
        return None if row is None else (_row_path(row[0]), load_row(row[1]))

    def below(self, path: Path, *, reverse: bool = False) -> Iterator[tuple[Path, Value]]:
        """Iterate over the rows strictly below `path` in key order, or backwards."""
        for key, raw in self.raw_scan(*below(encode_path(path)), reverse=reverse):
            yield _row_path(key), load_row(raw)

    def sync(self) -> None:
        """Do nothing: every change is in the transaction at once, and durable at its commit."""

    def close(self) -> None:
        """Let go of the rows; the transaction and the mapping stay as they are."""
        super().close()
        self._rows = cast(Rows, _CLOSED)

    def __del__(self) -> None:
        """Do nothing: a forgotten shelf has nothing left to save."""

    def raw_get(self, key: bytes) -> bytes | None:
        """Return the bytes of the row with an encoded key."""
        return self._rows.get(key)

    def raw_floor(self, key: bytes) -> Row | None:
        """Return the row with the greatest encoded key that is at most `key`."""
        return self._rows.floor(key)

    def raw_scan(self, low: bytes, high: bytes, *, reverse: bool = False) -> Iterator[Row]:
        """Iterate over the rows with `low <= key < high`, encoded, in key order or backwards."""
        return self._rows.scan(low, high, reverse=reverse)

    def raw_keys(self, low: bytes, high: bytes, *, reverse: bool = False) -> Iterator[bytes]:
        """Iterate over the encoded keys alone, as `raw_scan` does."""
        return self._rows.scan_keys(low, high, reverse=reverse)

    def raw_put(self, key: bytes, raw: bytes) -> None:
        """Set the bytes of the row with an encoded key."""
        self.dict.transaction.put(key, raw)

    def raw_put_all(self, rows: Iterable[tuple[bytes, bytes]]) -> None:
        """Set the bytes of many rows; whoever makes them must not look at the shelf meanwhile."""
        self.dict.transaction.put_all(rows)

    def raw_delete(self, key: bytes) -> None:
        """Remove the row with an encoded key if it is there."""
        self.dict.transaction.delete(key)

    def raw_delete_range(self, low: bytes, high: bytes) -> None:
        """Remove the rows with `low <= key < high`, encoded."""
        self.dict.transaction.delete_range(low, high)


class _Closed:
    """What a closed shelf stands on."""

    def __getattr__(self, name: str) -> NoReturn:
        raise ValueError("invalid operation on closed shelf")


_CLOSED = _Closed()


def _row_key(path: Path) -> bytes:
    try:
        encoded = encode_path(path)
    except UnicodeEncodeError:
        encoded = encode_path(path[:-1]) + _TEXT + path[-1].encode(errors=_ESCAPES)
    return encoded[:KEY_BYTES]


def _row_path(key: bytes) -> Path:
    path, cut = decode_path(key)
    return (*path, cut[1:].decode(errors=_ESCAPES)) if cut else path
