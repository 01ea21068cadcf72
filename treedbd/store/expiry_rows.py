"""When nodes go: an index of times, as rows beside the tree.

Theory of operation. Rules may say that nodes go at some time (`.ttl`). Each such node that was
written has two rows: by its path, when it was written last, and by a time, which is at or before
the one at which it goes. The rows by time are hints, from which the nodes are found that may be due
(`database.expiry`); when one really goes is evaluated then. So a row whose node is gone, or that
comes too early, does no harm, and rows of removed subtrees are left to the sweep. What a node needs
to go at all is a row; these are kept in the transaction of each write.

    EXPIRY_FIRST            two bytes: the row of the state
    EXPIRY_FIRST + `p` …    the path, then `!`: JSON of the listed time and of the last write; of
                            this a list with its number if the clock was set back before
    EXPIRY_FIRST + `t` …    12 hexadecimal digits of milliseconds since 1970, the path, then `!`

A long path is replaced by its beginning and a digest, and then both rows hold it.

The state (`ExpiryState`) says since when the places of each `.ttl` are kept without a gap, and how
far what was there before is entered. A node whose row says nothing later counts as written then.
When the rules change, places that had a `.ttl` in seconds before and have one after keep what is
known of them (`follow`), whichever nodes of the rules they belong to. For that the state holds the
shapes of places (`Region`): so many that they have `KNOWN_HASHES` together. Where more would be
needed, places count as written at the change.

These rows are not data: they are not served, counted or indexed. A backup or a copy that lacks them
enters all nodes again, as if they had been written then.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from hashlib import blake2b
from itertools import islice
from operator import attrgetter, itemgetter
from typing import Any, Final, NamedTuple

import attrs
import orjson

from treedbd.loop import paused
from treedbd.store.engine import DamagedRow, ReadView, Transaction
from treedbd.store.indexes import drop_rows
from treedbd.store.rows import seal, unseal
from treedbd.tree.path import decode_path, encode_path
from treedbd.tree.shape import Shape, count_hashes, holds, meet, parse_shape, shape_json
from treedbd.tree.types import Json, Path

EXPIRY_FIRST: Final = b"\x06x"
EXPIRY_END: Final = b"\x06y"
"""All rows of expiry are in this range, above those of usage."""
STATE_KEY: Final = EXPIRY_FIRST
_BY_PATH: Final = EXPIRY_FIRST + b"p"
_BY_TIME: Final = EXPIRY_FIRST + b"t"
_BEYOND_TIME: Final = EXPIRY_FIRST + b"u"
KNOWN_HASHES: Final = 1000
"""Hashes of keys that the shapes of one state hold, and the shapes themselves, at most."""
_MOST_PARTS: Final = 8
"""Parts of one pattern that are known since different times."""
_MOST_PAIRS: Final = 250_000
"""Shapes that are compared with each other when the rules change. If there are more, none are."""
_DIGITS: Final = 12
_PATH_BYTES: Final = 240
"""A longer path is cut to these bytes."""
_DIGEST_BYTES: Final = 16
_END: Final = b"!"
"""Ends each key: one that ends with `PAGE_END` would be that of a page."""


class Times(NamedTuple):
    """What is known of a node by its path: the time of its other row, and of its last write.

    If the clock was set back, that may be before the time since when the place is known, though it
    was later. Then the number of that write is kept, which says so; else it is 0.
    """

    listed_ms: int
    written_ms: int
    number: int = 0

    def last_write(self, since: Since) -> int:
        """Return when a node was written last whose place is known since then, at the latest."""
        return self.written_ms if self.number > since.number else max(since.ms, self.written_ms)


class Since(NamedTuple):
    """Since when all writes to some places are in the rows.

    The order is that in which writes were applied.

    Attributes:
        number: the number of the last write before it.
        ms: the time, in milliseconds since 1970; by a clock that may have been set back since then.

    """

    number: int
    ms: int


class ListedNode(NamedTuple):
    """A row by time."""

    key: bytes
    listed_ms: int
    path: Path


class Region(NamedTuple):
    """Places, with since when they are known."""

    shape: Shape
    since: Since


@attrs.frozen
class ExpiryState:
    """How far the rows of a database are complete.

    Attributes:
        since: for each pattern of places (`rules.expiry`) since when all writes there are in the
            rows.
        regions: for these patterns, the shape of all its places, with the same time, and of those
            of its places that are known since earlier; all that `KNOWN_HASHES` leaves room for.
        rules: the fingerprint of the rules by which nodes are listed.
        is_built: whether the nodes that were there before are entered.
        position: while they are not, the path of the next one; empty for the first.

    """

    since: Mapping[str, Since]
    regions: Mapping[str, Sequence[Region]] = attrs.field(factory=dict)
    rules: str = ""
    is_built: bool = False
    position: Path = ()

    def since_when(self, name: str, path: Path) -> Since | None:
        """Return since when all writes are known of a path of a pattern; None if of none."""
        since = self.since.get(name)
        if since is None:
            return None
        for each in self.regions.get(name, ()):
            if each.since < since and holds(each.shape, path):
                since = each.since
        return since


def follow(
    state: ExpiryState | None, shapes: Mapping[str, Shape], rules: str, now: Since
) -> ExpiryState:
    """Return the state for other rules, which are used from `now` on; patterns have `shapes`.

    `rules` is their fingerprint. Patterns that are the same keep what is known. What is known of
    places of others is kept for those of their places that have a `.ttl` in seconds by these rules.
    """
    known, regions = ({}, {}) if state is None else (state.since, state.regions)
    left = [each for name, found in regions.items() if name not in shapes for each in found]
    if len(left) * sum(name not in known for name in shapes) > _MOST_PAIRS:
        left = []
    since: dict[str, Since] = {}
    parts: dict[str, list[Region]] = {}
    for name, shape in paused(shapes.items()):
        if name in known:
            found = list(regions.get(name, ()))
            since[name] = known[name]
        else:
            found = _find_common(left, shape)
            since[name] = next((each.since for each in found if each.shape == shape), now)
        earlier = [each for each in found if each.since < since[name]]
        parts[name] = [Region(shape, since[name]), *earlier]
    return ExpiryState(since, _choose_known(parts), rules)


def _find_common(regions: Sequence[Region], shape: Shape) -> list[Region]:
    """Return what regions have in common with a shape, the earliest first, at most `_MOST_PARTS`.

    Left out are those that are within an earlier one.
    """
    common: list[Region] = []
    for each in paused(regions):
        places = meet(each.shape, shape)
        if places is not None:
            common.append(Region(places, each.since))
    kept: list[Region] = []
    for each in sorted(common, key=attrgetter("since")):
        if all(meet(each.shape, other.shape) != each.shape for other in kept):
            kept.append(each)
            if len(kept) == _MOST_PARTS:
                break
    return kept


def _choose_known(parts: Mapping[str, Sequence[Region]]) -> dict[str, list[Region]]:
    """Return regions of at most `KNOWN_HASHES` together, whole patterns and small ones first."""
    every = [
        (at > 0, count_hashes(each.shape) + 1, name, each)
        for name, regions in parts.items()
        for at, each in enumerate(regions)
    ]
    chosen: dict[str, list[Region]] = {}
    left = KNOWN_HASHES
    for _, size, name, each in sorted(every, key=itemgetter(0, 1)):
        if size <= left:
            left -= size
            chosen.setdefault(name, []).append(each)
    return chosen


def read_state(view: ReadView) -> ExpiryState | None:
    """Return the state, None if no rows are kept; raise `DamagedRow`."""
    stored = view.get(STATE_KEY)
    return None if stored is None else _decode_state(stored)


def write_state(transaction: Transaction, state: ExpiryState | None) -> None:
    """Store the state; None removes it, after which no row is trusted."""
    if state is None:
        transaction.delete(STATE_KEY)
        return
    json: dict[str, Json] = {
        "since": {name: [*since] for name, since in state.since.items()},
        "regions": {
            name: [[shape_json(each.shape), *each.since] for each in found]
            for name, found in state.regions.items()
        },
        "rules": state.rules,
        "is_built": state.is_built,
        "position": [*state.position],
    }
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
    transaction: Transaction,
    path: Path,
    due_ms: int,
    written_ms: int,
    *,
    is_written: bool = True,
    number: int = 0,
) -> None:
    """Enter a node that goes at `due_ms` and was written at `written_ms`.

    `number` is that of the write, if it is kept.

    If it `is_written` just now, and is listed already at or before that time, it stays there. If
    not, it is listed at that time, and what is known of its last write is kept. What is damaged is
    replaced.
    """
    encoded = _encode(path)
    key = _BY_PATH + encoded
    known = _find_known(transaction, key)
    is_cut = len(encoded) > _PATH_BYTES + len(_END)
    if known is not None and not is_written:
        _, written_ms, number = known
    if known is not None and known.listed_ms <= due_ms and is_written:
        if known[1:] == (written_ms, number):
            return
        due_ms = known.listed_ms
    else:
        if known is not None and known.listed_ms != due_ms:
            transaction.delete(_time_key(known.listed_ms, encoded))
        time_key = _time_key(due_ms, encoded)
        transaction.put(time_key, seal(time_key, orjson.dumps(path) if is_cut else b""))
    written = [written_ms, number] if number else written_ms
    content = orjson.dumps([due_ms, written, *(path if is_cut else ())])
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
        listed_ms, written = orjson.loads(unseal(key, stored))[:2]
        written_ms, number = written if isinstance(written, list) else (written, 0)
        return Times(int(listed_ms), int(written_ms), int(number))
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
        since = {str(name): Since(int(at), int(ms)) for name, (at, ms) in json["since"].items()}
        regions = {
            str(name): tuple(
                Region(parse_shape(shape), Since(int(at), int(ms))) for shape, at, ms in found
            )
            for name, found in json["regions"].items()
        }
        return ExpiryState(
            since,
            regions,
            rules=str(json["rules"]),
            is_built=bool(json["is_built"]),
            position=tuple(json["position"]),
        )
    except (ValueError, LookupError, TypeError, AttributeError):
        raise DamagedRow("The state of the index of expiry cannot be read.") from None
