"""What the change log keeps for its readers, and for how long."""

from __future__ import annotations

import pytest

from treedbd.limits import MIB, ReaderLimits
from treedbd.store.changelog import FOLLOWED, TRIM_EVERY, append, encode, is_whole
from treedbd.store.cursors import (
    CURSOR_FIRST,
    NOTHING_HELD,
    Cursor,
    CursorKeeper,
    check_cursors,
    held,
    measure,
    put_cursor,
    read_count,
    read_cursor,
    read_cursors,
    remove_cursor,
)
from treedbd.store.engine import DamagedRow, Transaction
from treedbd.store.memory import MemoryEngine
from treedbd.store.verify import verify_indexes
from treedbd.tree.edit import make_put
from treedbd.tree.types import Place

RETAIN = 10


def cursor_at(sequence: int, name: str = "reader", *, is_whole: bool = False) -> Cursor:
    return Cursor(
        name=name,
        sequence=sequence,
        op_id=b"op",
        is_whole=is_whole,
        bytes_read=0,
        created_ms=1,
        moved_ms=2,
    )


def fill(transaction: Transaction, count: int, content: bytes = b"{}", **options: object) -> None:
    for _ in range(count):
        append(transaction, b"op", content, RETAIN, 1000, **options)  # type: ignore[arg-type]


def numbers(transaction: Transaction) -> list[int]:
    return [entry.sequence for entry in transaction.entries(0)]


class Keeping:
    """A keeper with a clock that the test sets."""

    def __init__(self, bounds: ReaderLimits) -> None:
        self.now = 0.0
        self.dropped: list[tuple[str, str]] = []
        self.keeper = CursorKeeper(bounds, lambda: self.now, lambda: 77, self._note)

    def _note(self, cursor: Cursor, reason: str) -> None:
        self.dropped.append((cursor.name, reason))


def test_cursors_come_back_as_they_were_in_the_order_of_their_names() -> None:
    transaction = MemoryEngine().begin()
    fill(transaction, 3)
    for each in (cursor_at(3, "b"), cursor_at(1, "a", is_whole=True)):
        put_cursor(transaction, each)
    assert [each.name for each in read_cursors(transaction)] == ["a", "b"]
    assert read_cursor(transaction, "a") == cursor_at(1, "a", is_whole=True)
    assert read_cursor(transaction, "c") is None
    assert list(verify_indexes(transaction)) == []
    assert remove_cursor(transaction, "a")
    assert not remove_cursor(transaction, "a")
    assert read_count(transaction) is not None
    assert remove_cursor(transaction, "b")
    assert read_cursors(transaction) == []
    assert read_count(transaction) is None


@pytest.mark.parametrize("name", ["", "A", "a/b", "-a", "a" * 64, "a\0"])
def test_other_names_are_an_error(name: str) -> None:
    with pytest.raises(ValueError, match="letters, digits and hyphens"):
        put_cursor(MemoryEngine().begin(), cursor_at(0, name))


def test_the_log_is_kept_from_the_lowest_cursor_on() -> None:
    transaction = MemoryEngine().begin()
    fill(transaction, 5)
    put_cursor(transaction, cursor_at(5, "low"))
    put_cursor(transaction, cursor_at(5, "high"))
    fill(transaction, 10 * TRIM_EVERY)
    put_cursor(transaction, cursor_at(400, "high"))
    assert numbers(transaction)[0] == 5  # which shows that the history is the same
    remove_cursor(transaction, "low")
    fill(transaction, TRIM_EVERY)
    assert numbers(transaction)[0] == 5 + 256  # some at a time
    fill(transaction, TRIM_EVERY)
    assert numbers(transaction)[0] == 400
    remove_cursor(transaction, "high")
    fill(transaction, 3 * TRIM_EVERY)
    assert len(numbers(transaction)) <= RETAIN + TRIM_EVERY


def test_bodies_are_kept_only_for_a_reader_of_whole_entries() -> None:
    long = encode(make_put(Place(("a",)), "x" * 2000), 1, MIB)
    for whole in (False, True):
        transaction = MemoryEngine().begin()
        put_cursor(transaction, cursor_at(0, is_whole=whole))
        append(transaction, b"op", long, RETAIN, 1000)
        fill(transaction, 2 * FOLLOWED)
        first = next(transaction.entries(0))
        assert (first.sequence, is_whole(first.content)) == (1, whole)
        put_cursor(transaction, cursor_at(1, is_whole=whole))
        fill(transaction, TRIM_EVERY)
        assert not is_whole(next(transaction.entries(0)).content)


def test_a_cursor_that_lags_by_too_many_bytes_is_dropped_and_the_log_trimmed() -> None:
    keeping = Keeping(ReaderLimits(lag_bytes=MIB))
    transaction = MemoryEngine().begin()
    put_cursor(transaction, cursor_at(0, "slow"))
    put_cursor(transaction, cursor_at(0, "fast"))
    content = b"x" * 900
    per_trim = TRIM_EVERY * len(content)
    for _ in range(MIB // per_trim):
        fill(transaction, TRIM_EVERY, content, held=keeping.keeper.held)
        put_cursor(transaction, cursor_at(transaction.sequence(), "fast"))
    assert keeping.dropped == []
    fill(transaction, TRIM_EVERY, content, held=keeping.keeper.held)
    assert keeping.dropped == [
        ("slow", "it lagged by more than 1,048,576 bytes (readers.lag_bytes)")
    ]
    slow = read_cursor(transaction, "slow")
    assert slow is not None
    assert slow.dropped_ms == 77
    fill(transaction, 10 * TRIM_EVERY, b"{}", held=keeping.keeper.held)
    assert numbers(transaction)[0] > 500
    assert len(keeping.dropped) == 1


def test_a_cursor_that_does_not_move_is_dropped_by_a_clock_that_does_not_step() -> None:
    keeping = Keeping(ReaderLimits(lag_s=100))
    transaction = MemoryEngine().begin()
    put_cursor(transaction, cursor_at(0, "away"))
    put_cursor(transaction, cursor_at(0, "slow"))
    for number in range(1, 5):
        fill(transaction, TRIM_EVERY, held=keeping.keeper.held)
        put_cursor(transaction, cursor_at(number, "slow"))
        assert keeping.dropped == []
        keeping.now += 30
    keeping.now += 11
    fill(transaction, TRIM_EVERY, held=keeping.keeper.held)
    assert keeping.dropped == [("away", "it had not moved for 100 seconds (readers.lag_s)")]
    # One that has read everything may rest.
    put_cursor(transaction, cursor_at(transaction.sequence(), "slow"))
    keeping.now += 1000
    fill(transaction, TRIM_EVERY, held=keeping.keeper.held)
    assert len(keeping.dropped) == 1


def test_a_lag_is_measured_in_entries_bytes_and_seconds() -> None:
    transaction = MemoryEngine().begin()
    entry = encode(make_put(Place(("a",)), 1), 5_000)
    put_cursor(transaction, cursor_at(0))
    fill(transaction, TRIM_EVERY + 10, entry)
    cursor = read_cursor(transaction, "reader")
    assert cursor is not None
    lag = measure(transaction, cursor, 7_500)
    assert (lag.entries, lag.bytes) == (TRIM_EVERY + 10, (TRIM_EVERY + 10) * len(entry))
    assert lag.seconds == 2.5
    at_the_end = cursor_at(TRIM_EVERY + 10)
    assert measure(transaction, at_the_end, 7_500).seconds == 0
    # A clock that was set back does not make it negative.
    assert measure(transaction, cursor, 0).seconds == 0


def test_a_damaged_cursor_holds_nothing_and_is_found() -> None:
    transaction = MemoryEngine().begin()
    put_cursor(transaction, cursor_at(0))
    key = CURSOR_FIRST + b"reader"
    transaction.put(key, b"1234{}")
    with pytest.raises(DamagedRow):
        read_cursors(transaction)
    assert list(check_cursors(transaction)) == ["A row does not match its check sum."]
    assert held(transaction) == NOTHING_HELD
    keeping = Keeping(ReaderLimits())
    fill(transaction, 3 * TRIM_EVERY, held=keeping.keeper.held)
    assert len(numbers(transaction)) < 2 * TRIM_EVERY
