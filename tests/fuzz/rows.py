"""Rows on the disk that have changed: damage is found, or what is read is what was stored."""

from __future__ import annotations

from typing import Final

from treedbd.store.engine import DamagedRow, Transaction
from treedbd.store.memory import MemoryEngine
from treedbd.store.node_writer import NodeWriter
from treedbd.store.nodes import Nodes
from treedbd.store.rows import END, FIRST, SUM_BYTES, seal
from treedbd.store.verify import check_row, find_unreadable, verify
from treedbd.tree.edit import make_put
from treedbd.tree.types import Json, Path, Place

TOKENS: Final = (
    *(b"\x00", b"\x01", b"\x02", b"\xff\xff", b"\x00\x01", b"{", b"}", b'"a":1', b"[", b",", b" "),
    *(b'" {".priority":1', b'{".value":1,".priority":2}', b"null", b"1e999", b'"', b"\\ud800"),
    *(
        b'" ',
        b'{"0":1,"1":2}',
        b"\x80",
        b"\x7f",
        b":",
        b"-",
        b"1" * 30,
        b"{}",
        b"[]",
        b'"\xc3\x28"',
    ),
)
_TREE: Final[Json] = {
    "small": {f"k{number}": number for number in range(40)},
    "large": {str(number): {"text": "x" * 150, "n": number} for number in range(60)},
    "leaf": {".value": "with a priority", ".priority": 7},
    "spread": {".priority": "p", **{f"c{number}": "y" * 900 for number in range(8)}},
}
_READ: Final[tuple[Path, ...]] = (
    *((), ("small",), ("small", "k7"), ("large", "3", "n"), ("leaf",), ("spread", "c1"), ("none",)),
)


_ALL: Final = FIRST, END
"""Between these are the keys of all rows of the tree."""


def _stored() -> dict[bytes, bytes]:
    transaction = MemoryEngine().begin()
    NodeWriter(transaction).apply(make_put(Place(()), _TREE).changes)
    return dict(transaction.scan(*_ALL))


def _open(rows: dict[bytes, bytes]) -> Transaction:
    transaction = MemoryEngine().begin()
    for key, stored in rows.items():
        transaction.put(key, stored)
    return transaction


_ROWS: Final = _stored()
_KEYS: Final = sorted(_ROWS)
_SOUND: Final = {path: Nodes(_open(_ROWS)).print(path) for path in _READ}


def check(data: bytes) -> None:
    """Change one row: the first byte chooses it, the second how.

    0: what follows is stored in its place; 1: the same with a check sum that fits; 2: it is added
    to its bytes from the place that a third byte gives; 3: it is the key of the row.
    """
    key, how = _KEYS[(data[:1] or b"\0")[0] % len(_KEYS)], (data[1:2] or b"\0")[0] & 3
    stored, rest, rows = _ROWS[key], data[2:], dict(_ROWS)
    if how == 0:
        rows[key] = rest
    elif how == 1:
        rows[key] = seal(key, rest)
    elif how == 2:
        at = int.from_bytes(rest[:2]) % len(stored)
        changed = bytes((old + new) & 255 for old, new in zip(stored[at:], rest[2:], strict=False))
        rows[key] = stored[:at] + changed + stored[at + len(changed) :]
    else:
        del rows[key]
        moved = rest[:400]
        if not FIRST <= moved < END:
            return  # it is a row of an index, or none
        rows[moved] = stored
    _check(rows, is_sealed=how == 1)
    check_row(key, rest[SUM_BYTES:])


def _check(rows: dict[bytes, bytes], *, is_sealed: bool) -> None:
    transaction = _open(rows)
    found = verify(transaction)
    assert all(found)
    unreadable = find_unreadable(transaction.scan(*_ALL))
    assert unreadable is None or found, "The quick check finds more than the thorough one."
    if rows == _ROWS:
        assert not found
    elif not is_sealed:  # no disk makes a check sum that fits
        assert found, "A change is not found."
        _check_reads(Nodes(transaction), is_whole=rows.keys() == _ROWS.keys())


def _check_reads(nodes: Nodes, *, is_whole: bool) -> None:
    for path, sound in _SOUND.items():
        try:
            read = nodes.print(path)
        except DamagedRow:
            continue
        assert not is_whole or read == sound, "What is read was never stored."
