"""When nodes go: an index of times, as rows beside the tree.

Theory of operation. Rules may say that nodes go at some time (`.ttl`). Each such node that was
written has two rows: by its path, when it was written last, and by a time, which is at or before
the one at which it goes. The rows by time are hints, from which the nodes are found that may be due
(`database.expiry`); when one really goes is evaluated then. So a row whose node is gone, or that
comes too early, does no harm, and rows of removed subtrees are left to the sweep. What a node needs
to go at all is a row; these are kept in the transaction of each write.

    EXPIRY_FIRST            two bytes: the row of the state
    EXPIRY_FIRST + `p` …    the path, then `!`: JSON of the listed time and of the last write
    EXPIRY_FIRST + `t` …    12 hexadecimal digits of milliseconds since 1970, the path, then `!`

A long path is replaced by its beginning and a digest, and then both rows hold it.

The state (`ExpiryState`) says since when the places of each `.ttl` are kept without a gap, and how
far what was there before is entered. A node whose row says nothing later counts as written then.

These rows are not data: they are not served, counted or indexed. A backup or a copy that lacks them
enters all nodes again, as if they had been written then.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from functools import lru_cache
from hashlib import blake2b
from itertools import islice
from typing import Any, Final, NamedTuple

import attrs
import orjson

from treedbd.store.engine import DamagedRow, ReadView, Transaction
from treedbd.store.indexes import drop_rows
from treedbd.store.rows import seal, unseal
from treedbd.tree.path import decode_path, encode_path
from treedbd.tree.types import Path

EXPIRY_FIRST: Final = b"\x06x"
EXPIRY_END: Final = b"\x06y"
"""All rows of expiry are in this range, above those of usage."""
STATE_KEY: Final = EXPIRY_FIRST
_BY_PATH: Final = EXPIRY_FIRST + b"p"
_BY_TIME: Final = EXPIRY_FIRST + b"t"
_BEYOND_TIME: Final = EXPIRY_FIRST + b"u"
_DIGITS: Final = 12
_PATH_BYTES: Final = 240
"""A longer path is cut to these bytes."""
_DIGEST_BYTES: Final = 16
_END: Final = b"!"
"""Ends each key: one that ends with `PAGE_END` would be that of a page."""


class Times(NamedTuple):
    """What is known of a node by its path: the time of its other row, and of its last write."""

    listed_ms: int
    written_ms: int


class ListedNode(NamedTuple):
    """A row by time."""

    key: bytes
    listed_ms: int
    path: Path


@attrs.frozen
class ExpiryState:
    """How far the rows of a database are complete.

    Attributes:
        since: for each pattern of places (`rules.expiry`) since when all writes there are in the
            rows, in milliseconds since 1970.
        rules: the fingerprint of the rules by which nodes are listed.
        is_built: whether the nodes that were there before are entered.
        position: while they are not, the path of the next one; empty for the first.

    """

    since: Mapping[str, int]
    rules: str = ""
    is_built: bool = False
    position: Path = ()


def read_state(view: ReadView) -> ExpiryState | None:
    """Return the state, None if no rows are kept; raise `DamagedRow`."""
    stored = view.get(STATE_KEY)
    return None if stored is None else _decode_state(stored)


def write_state(transaction: Transaction, state: ExpiryState | None) -> None:
    """Store the state; None removes it, after which no row is trusted."""
    if state is None:
        transaction.delete(STATE_KEY)
        return
    json = {**attrs.asdict(state), "position": list(state.position)}
    transaction.put(STATE_KEY, seal(STATE_KEY, orjson.dumps(json)))


def distrust(transaction: Transaction) -> None:
    """Record that the tree is changed without these rows.

    What is known of the last writes is not used from then on, and all nodes are entered again.
    """
    if transaction.get(STATE_KEY) is not None:
        transaction.delete(STATE_KEY)


def read_times(view: ReadView, path: Path) -> Times | None:
    """Return what is known of a node, None if it has no rows; raise `DamagedRow`."""
    key = _BY_PATH + _encode(path)
    stored = view.get(key)
    return None if stored is None else _decode_times(key, stored)


def put_times(
    transaction: Transaction, path: Path, due_ms: int, written_ms: int, *, is_written: bool = True
) -> None:
    """Enter a node that goes at `due_ms` and was written at `written_ms`.

    If it `is_written` just now, and is listed already at or before that time, it stays there. If
    not, it is listed at that time, and what is known of its last write is kept. What is damaged is
    replaced.
    """
    encoded = _encode(path)
    key = _BY_PATH + encoded
    known = _find_known(transaction, key)
    is_cut = len(encoded) > _PATH_BYTES + len(_END)
    if known is not None and not is_written:
        written_ms = known.written_ms
    if known is not None and known.listed_ms <= due_ms and is_written:
        if known.written_ms == written_ms:
            return
        due_ms = known.listed_ms
    else:
        if known is not None and known.listed_ms != due_ms:
            transaction.delete(_time_key(known.listed_ms, encoded))
        time_key = _time_key(due_ms, encoded)
        transaction.put(time_key, seal(time_key, orjson.dumps(path) if is_cut else b""))
    content = orjson.dumps([due_ms, written_ms, *(path if is_cut else ())])
    transaction.put(key, seal(key, content))


def remove_times(transaction: Transaction, path: Path) -> bool:
    """Remove the rows of a node; return whether it had any."""
    encoded = _encode(path)
    key = _BY_PATH + encoded
    stored = transaction.get(key)
    if stored is None:
        return False
    with contextlib.suppress(DamagedRow):
        transaction.delete(_time_key(_decode_times(key, stored).listed_ms, encoded))
    transaction.delete(key)
    return True


def _find_known(view: ReadView, key: bytes) -> Times | None:
    """Return what a row by path holds, None also if it is damaged: then another replaces it."""
    stored = view.get(key)
    try:
        return None if stored is None else _decode_times(key, stored)
    except DamagedRow:
        return None


def list_due(view: ReadView, now_ms: int, limit: int) -> tuple[list[ListedNode], list[bytes]]:
    """Return at most `limit` rows by time that are not after `now_ms`.

    Returned, too, are the keys of those among them that cannot be read.
    """
    high = _BY_TIME + b"%0*x" % (_DIGITS, now_ms + 1)
    found, damaged = list[ListedNode](), list[bytes]()
    for key, stored in islice(view.scan(_BY_TIME, high), limit):
        try:
            found.append(_decode_listed(key, stored))
        except DamagedRow:
            damaged.append(key)
    return found, damaged


def next_listed(view: ReadView) -> int | None:
    """Return the first time at which a node may go, None if none may."""
    key = next(view.scan_keys(_BY_TIME, _BEYOND_TIME), None)
    return None if key is None else int(key[len(_BY_TIME) : len(_BY_TIME) + _DIGITS], 16)


def drop_some(transaction: Transaction, budget: int) -> bool:
    """Remove at most `budget` rows of nodes; return whether all are removed. It pauses."""
    return drop_rows(transaction, EXPIRY_FIRST + b"\0", EXPIRY_END, budget)


def check_expiry(view: ReadView) -> Iterator[str]:
    """Yield a sentence for each row that cannot be read, or that belongs to no other."""
    try:
        read_state(view)
    except DamagedRow as error:
        yield str(error)
    for key, stored in view.scan(EXPIRY_FIRST + b"\0", EXPIRY_END):
        try:
            if key.startswith(_BY_TIME):
                found = _decode_listed(key, stored)
                times = read_times(view, found.path)
                if times is None or times.listed_ms != found.listed_ms:
                    yield "The index of expiry lists a node that it does not know."
            elif key.startswith(_BY_PATH):
                times = _decode_times(key, stored)
                if view.get(_time_key(times.listed_ms, key[len(_BY_PATH) :])) is None:
                    yield "The index of expiry does not list a node that it knows."
            else:
                yield "There are rows that belong to nothing."
        except DamagedRow as error:
            yield str(error)


def _encode(path: Path) -> bytes:
    """Return what the keys of a node end with."""
    encoded = encode_path(path)
    if len(encoded) > _PATH_BYTES:
        digest = blake2b(encoded, digest_size=_DIGEST_BYTES).hexdigest().encode()
        encoded = encoded[:_PATH_BYTES] + digest
    return encoded + _END


def _time_key(time_ms: int, encoded: bytes) -> bytes:
    return _BY_TIME + b"%0*x" % (_DIGITS, time_ms) + encoded


def _decode_times(key: bytes, stored: bytes) -> Times:
    try:
        listed_ms, written_ms = orjson.loads(unseal(key, stored))[:2]
        return Times(int(listed_ms), int(written_ms))
    except DamagedRow:
        raise
    except (ValueError, TypeError):
        raise DamagedRow("A row of the index of expiry cannot be read.") from None


def _decode_listed(key: bytes, stored: bytes) -> ListedNode:
    at = len(_BY_TIME) + _DIGITS
    try:
        content = unseal(key, stored)
        listed_ms = int(key[len(_BY_TIME) : at], 16)
        if content:
            return ListedNode(key, listed_ms, tuple(orjson.loads(content)))
        path, cut = decode_path(key[at : -len(_END)])
        if cut:
            raise ValueError
        return ListedNode(key, listed_ms, path)
    except DamagedRow:
        raise
    except (ValueError, TypeError, IndexError):
        raise DamagedRow("A row of the index of expiry cannot be read.") from None


@lru_cache(maxsize=64)
def _decode_state(stored: bytes) -> ExpiryState:
    try:
        json: Any = orjson.loads(unseal(STATE_KEY, stored))
        since = {str(name): int(time) for name, time in json["since"].items()}
        position = tuple(json["position"])
        return ExpiryState(since, str(json["rules"]), bool(json["is_built"]), position)
    except (ValueError, LookupError, TypeError, AttributeError):
        raise DamagedRow("The state of the index of expiry cannot be read.") from None
