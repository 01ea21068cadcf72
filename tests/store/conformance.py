"""The contract of `treedbd.store.engine`, as tests that every engine's own test class inherits."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.examples import examples
from treedbd.store.engine import (
    LONG_BYTES,
    TRIMMED_AT_ONCE,
    Engine,
    EngineSnapshot,
    LogEntry,
    PresentView,
    ReadView,
    Transaction,
)

HIGH = b"\xff" * 500

small_keys = st.binary(max_size=3) | st.sampled_from([b"\x00", b"\xff", b"a", b"a\x00", b"ab"])
changes = st.lists(
    st.one_of(
        st.tuples(st.just("put"), small_keys, st.binary(max_size=4)),
        st.tuples(st.just("delete"), small_keys),
        st.tuples(st.just("delete_range"), small_keys, small_keys),
    ),
    max_size=20,
)


def put_all(engine: Engine, rows: Iterable[tuple[bytes, bytes]]) -> None:
    transaction = engine.begin()
    for key, value in rows:
        transaction.put(key, value)
    transaction.commit()


def append_all(engine: Engine, *contents: bytes) -> list[int]:
    transaction = engine.begin()
    numbers = [transaction.append(b"op", content) for content in contents]
    transaction.commit()
    return numbers


def everything(rows: ReadView) -> dict[bytes, bytes]:
    return dict(rows.scan(b"", HIGH))


def change_model(model: dict[bytes, bytes], name: str, *arguments: bytes) -> None:
    if name == "put":
        model[arguments[0]] = arguments[1]
    elif name == "delete":
        model.pop(arguments[0], None)
    else:
        for key in [key for key in model if arguments[0] <= key < arguments[1]]:
            del model[key]


def assert_equal(rows: ReadView, model: dict[bytes, bytes], probes: Sequence[bytes]) -> None:
    ordered = [(key, model[key]) for key in sorted(model)]
    assert list(rows.scan(b"", HIGH)) == ordered
    assert list(rows.scan_keys(b"", HIGH, reverse=True)) == sorted(model, reverse=True)
    floors = {row for probe in probes if (row := rows.floor(probe)) is not None}
    assert sorted(rows.floors([*probes, *probes], LONG_BYTES)) == sorted(floors)
    for probe in probes:
        below = [row for row in ordered if row[0] <= probe]
        assert rows.get(probe) == model.get(probe)
        assert rows.floor(probe) == (below[-1] if below else None)
        assert list(rows.scan(probe, HIGH)) == [row for row in ordered if row[0] >= probe]
        assert list(rows.scan(b"", probe, reverse=True)) == [
            row for row in reversed(ordered) if row[0] < probe
        ]


class EngineContract:
    """Inherit, and define a fixture `engine` that yields an empty engine."""

    @pytest.fixture
    def letters(self, engine: Engine) -> Engine:
        """The engine, with the rows a, c, e, g."""
        put_all(engine, [(bytes([letter]), bytes([letter]) * 2) for letter in b"aceg"])
        return engine

    # keys, values, ranges

    def test_a_new_engine_is_empty(self, engine: Engine) -> None:
        assert engine.read(everything) == {}
        assert engine.read(lambda rows: rows.get(b"a")) is None
        assert engine.read(lambda rows: rows.floor(HIGH)) is None
        assert engine.read(lambda rows: rows.floors([HIGH, b""], LONG_BYTES)) == []
        assert engine.read(lambda rows: rows.floors([], LONG_BYTES)) == []
        assert engine.read(lambda rows: rows.sequence()) == 0
        assert engine.read(lambda rows: list(rows.entries(0))) == []

    def test_it_behaves_as_a_sorted_dictionary(self, engine: Engine) -> None:
        @given(parts=st.lists(changes, max_size=3), probes=st.lists(small_keys, max_size=4))
        @settings(max_examples=examples(60), deadline=None)
        def behave(parts: list[Any], probes: list[bytes]) -> None:
            model: dict[bytes, bytes] = {}
            transaction = engine.begin()
            transaction.delete_range(b"", HIGH)
            transaction.commit()
            for part in parts:
                transaction = engine.begin()
                for change in part:
                    getattr(transaction, change[0])(*change[1:])
                    change_model(model, *change)
                assert_equal(transaction, model, probes)
                transaction.commit()
                engine.read(lambda rows: assert_equal(rows, model, probes))

        behave()

    def test_many_rows_are_put_as_they_are_generated(self, letters: Engine) -> None:
        transaction = letters.begin()
        scan = transaction.scan_keys(b"", HIGH)
        assert next(scan) == b"a"
        transaction.put_all((bytes([key]), b"new") for key in b"abdda")
        transaction.put_all(iter([]))
        assert list(scan) == single_bytes(b"bcdeg")
        transaction.put_all([(b"d", b"newer")])
        transaction.commit()
        rows = dict.fromkeys([b"a", b"b"], b"new") | {b"c": b"cc", b"e": b"ee", b"g": b"gg"}
        assert letters.read(everything) == rows | {b"d": b"newer"}
        with pytest.raises(RuntimeError, match="has ended"):
            transaction.put_all([(b"a", b"late")])
        assert letters.read(lambda rows: rows.get(b"a")) == b"new"

    def test_after_an_error_in_the_generation_of_rows_the_transaction_can_be_rolled_back(
        self, letters: Engine
    ) -> None:
        def rows() -> Iterator[tuple[bytes, bytes]]:
            yield b"a", b"new"
            raise KeyError

        before = letters.read(everything)
        transaction = letters.begin()
        with pytest.raises(KeyError):
            transaction.put_all(rows())
        transaction.rollback()
        assert letters.read(everything) == before

    @pytest.mark.parametrize("size", [0, 1, 4096, 20 * 1024 * 1024])
    def test_a_value_has_any_size(self, engine: Engine, size: int) -> None:
        value = bytes(range(256)) * (size // 256) + b"\x00" * (size % 256)
        put_all(engine, [(b"k", value), (b"l", b"after")])
        assert engine.read(lambda rows: rows.get(b"k")) == value
        assert engine.read(lambda rows: rows.floor(b"kk")) == (b"k", value)
        assert engine.read(lambda rows: next(rows.scan(b"", HIGH))[1]) == value

    def test_a_key_has_up_to_480_bytes_or_none(self, engine: Engine) -> None:
        keys = [b"", b"\x00", b"x" * 479, b"x" * 479 + b"\x00", b"x" * 479 + b"\xff", b"\xff" * 480]
        put_all(engine, [(key, key[-1:]) for key in reversed(keys)])
        assert engine.read(lambda rows: list(rows.scan_keys(b"", HIGH))) == keys
        assert engine.read(lambda rows: [rows.get(key) for key in keys]) == [
            key[-1:] for key in keys
        ]

    def test_floor_may_leave_out_a_long_value_that_the_key_does_not_begin_with(
        self, engine: Engine
    ) -> None:
        value = b"x" * (LONG_BYTES + 1)
        put_all(engine, [(b"k", value)])
        assert engine.read(lambda rows: rows.floor(b"kk")) == (b"k", value)
        assert engine.read(lambda rows: rows.floor(b"l")) in ((b"k", value), (b"k", b""))
        transaction = engine.begin()
        assert transaction.floor(b"k") == (b"k", value)
        assert transaction.floor(b"l") in ((b"k", value), (b"k", b""))
        transaction.rollback()

    def test_floors_leave_out_values_that_are_longer_than_given(self, engine: Engine) -> None:
        put_all(engine, [(b"k", b"x" * 5000), (b"l", b"y" * 4999)])
        found = engine.read(lambda rows: dict(rows.floors([b"k", b"kk", b"l"], 4999)))
        assert found == {b"k": b"", b"l": b"y" * 4999}

    @pytest.mark.parametrize(
        ("key", "found"),
        [(b"", None), (b"`", None), (b"a", b"a"), (b"b", b"a"), (b"e\x00", b"e"), (HIGH, b"g")],
    )
    def test_floor_is_the_greatest_key_at_most_the_given(
        self, letters: Engine, key: bytes, found: bytes | None
    ) -> None:
        row = letters.read(lambda rows: rows.floor(key))
        assert row == (found and (found, found * 2))

    @pytest.mark.parametrize(
        ("low", "high", "keys"),
        [
            (b"", HIGH, b"aceg"),
            (b"c", b"g", b"ce"),
            (b"b", b"f", b"ce"),
            (b"c", b"c", b""),
            (b"g", b"a", b""),
            (b"h", HIGH, b""),
            (b"a\x00", b"c\x00", b"c"),
        ],
    )
    def test_a_range_has_its_low_end_and_not_its_high_one(
        self, letters: Engine, low: bytes, high: bytes, keys: bytes
    ) -> None:
        def check(rows: ReadView) -> None:
            wanted = [bytes([key]) for key in keys]
            assert list(rows.scan(low, high)) == [(key, key * 2) for key in wanted]
            assert list(rows.scan_keys(low, high)) == wanted
            assert list(rows.scan(low, high, reverse=True)) == [
                (key, key * 2) for key in reversed(wanted)
            ]
            assert list(rows.scan_keys(low, high, reverse=True)) == wanted[::-1]

        letters.read(check)
        transaction = letters.begin()
        check(transaction)
        transaction.delete_range(low, high)
        remaining = [bytes([key]) for key in b"aceg" if bytes([key]) not in set(single_bytes(keys))]
        assert list(transaction.scan_keys(b"", HIGH)) == remaining
        transaction.rollback()

    def test_scans_go_on_side_by_side(self, letters: Engine) -> None:
        def check(rows: ReadView) -> list[tuple[bytes, bytes]]:
            forward, back = rows.scan_keys(b"", HIGH), rows.scan_keys(b"", HIGH, reverse=True)
            assert rows.get(b"c") == b"cc"
            return list(zip(forward, back, strict=True))

        assert letters.read(check) == [(b"a", b"g"), (b"c", b"e"), (b"e", b"c"), (b"g", b"a")]

    def test_a_long_scan_returns_every_row_once(self, engine: Engine) -> None:
        rows = [(number.to_bytes(2, "big"), b"x" * (number % 300)) for number in range(1000)]
        put_all(engine, rows)
        assert engine.read(lambda view: list(view.scan(b"", HIGH))) == rows
        assert engine.read(lambda view: list(view.scan(b"", HIGH, reverse=True))) == rows[::-1]

    # moments

    def test_no_reader_sees_a_change_before_its_commit(self, letters: Engine) -> None:
        transaction = letters.begin()
        transaction.put(b"a", b"new")
        transaction.put(b"b", b"new")
        transaction.delete(b"c")
        transaction.append(b"op", b"entry")
        for read in (letters.read, lambda work: with_snapshot(letters, work)):
            assert read(everything) == {b"a": b"aa", b"c": b"cc", b"e": b"ee", b"g": b"gg"}
            assert read(lambda rows: rows.sequence()) == 0
        assert everything(transaction) == {b"a": b"new", b"b": b"new", b"e": b"ee", b"g": b"gg"}
        assert transaction.sequence() == 1
        transaction.commit()
        assert letters.read(everything) == {b"a": b"new", b"b": b"new", b"e": b"ee", b"g": b"gg"}
        assert letters.read(lambda rows: rows.sequence()) == 1

    def test_what_is_rolled_back_leaves_no_trace(self, letters: Engine) -> None:
        before = letters.read(everything)
        transaction = letters.begin()
        transaction.delete_range(b"", HIGH)
        transaction.put(b"z", b"z")
        transaction.append(b"op", b"entry")
        transaction.rollback()
        assert letters.read(everything) == before
        assert letters.read(lambda rows: rows.sequence()) == 0
        assert append_all(letters, b"first") == [1]

    def test_a_read_shows_one_moment_while_a_commit_goes_on(self, letters: Engine) -> None:
        transaction = letters.begin()
        transaction.put(b"a", b"new")
        transaction.append(b"op", b"entry")
        thread = threading.Thread(target=transaction.commit)

        def check(rows: ReadView) -> list[Any]:
            seen = [rows.get(b"a")]
            thread.start()
            seen += [rows.get(b"a") for _ in range(2000)]
            return [*seen, rows.sequence()]

        assert letters.read(check) == [b"aa"] * 2001 + [0]
        thread.join()
        assert letters.read(lambda rows: (rows.get(b"a"), rows.sequence())) == (b"new", 1)

    def test_a_snapshot_stays_while_a_thousand_commits_go_on(self, letters: Engine) -> None:
        append_all(letters, b"one", b"two")
        before, log = letters.read(everything), letters.read(lambda rows: list(rows.entries(0)))
        snapshot = letters.snapshot()
        scan = snapshot.scan_keys(b"", HIGH)
        assert next(scan) == b"a"
        for number in range(1000):
            transaction = letters.begin()
            transaction.put(b"aceg"[number % 4 : number % 4 + 1], b"%d" % number)
            transaction.put(b"n%d" % number, b"new")
            transaction.trim(transaction.append(b"op", b"entry"))
            transaction.commit()
        assert list(scan) == [b"c", b"e", b"g"]
        assert everything(snapshot) == before
        assert (snapshot.sequence(), list(snapshot.entries(0))) == (2, log)
        assert snapshot.floor(b"n5") == (b"g", b"gg")
        snapshot.close()
        assert letters.read(lambda rows: (rows.sequence(), rows.get(b"g"))) == (1002, b"999")

    def test_each_snapshot_has_its_own_moment(self, engine: Engine) -> None:
        snapshots = []
        for number in range(8):
            snapshots.append(engine.snapshot())
            put_all(engine, [(b"k", b"%d" % number), (b"%d" % number, b"")])
        seen = [(rows.get(b"k"), len(everything(rows))) for rows in snapshots]
        assert seen == [(None, 0)] + [(b"%d" % number, number + 2) for number in range(7)]
        for snapshot in snapshots:
            snapshot.close()
            snapshot.close()
        again = engine.snapshot()
        assert again.get(b"k") == b"7"
        again.close()

    def test_what_a_read_raises_is_raised_and_does_no_damage(self, letters: Engine) -> None:
        def fail(rows: ReadView) -> None:
            next(rows.scan(b"", HIGH))
            raise LookupError(b"from the work")

        with pytest.raises(LookupError, match="from the work"):
            letters.read(fail)
        put_all(letters, [(b"a", b"new")])
        assert letters.read(lambda rows: rows.get(b"a")) == b"new"

    def test_rows_end_with_their_moment(self, letters: Engine) -> None:
        leaked: list[ReadView] = []
        letters.read(leaked.append)
        snapshot = letters.snapshot()
        snapshot.close()
        for rows in [*leaked, snapshot, ended(letters.begin())]:
            for use in (
                lambda rows=rows: rows.get(b"a"),
                lambda rows=rows: rows.floor(b"a"),
                lambda rows=rows: rows.floors([b"a"], 9),
                lambda rows=rows: rows.sequence(),
                lambda rows=rows: next(rows.scan(b"", HIGH)),
                lambda rows=rows: next(rows.entries(0)),
            ):
                with pytest.raises(RuntimeError, match="has ended"):
                    use()

    def test_iterators_end_with_their_moment(self, letters: Engine) -> None:
        append_all(letters, b"one", b"two")
        leaked: list[Iterator[Any]] = []

        def leak(rows: ReadView) -> None:
            leaked.extend([rows.scan(b"", HIGH), rows.scan_keys(b"", HIGH), rows.entries(0)])
            leaked.extend([rows.scan(b"", HIGH), rows.scan_keys(b"", HIGH), rows.entries(0)])
            for iterator in leaked[-3:]:
                next(iterator)

        letters.read(leak)
        snapshot = letters.snapshot()
        leak(snapshot)
        snapshot.close()
        transaction = letters.begin()
        leak(transaction)
        transaction.commit()
        for iterator in leaked:
            with pytest.raises(RuntimeError, match="has ended"):
                next(iterator)

    # transactions

    def test_there_is_one_transaction_at_a_time(self, engine: Engine) -> None:
        first = engine.begin()
        with pytest.raises(RuntimeError):
            engine.begin()
        first.put(b"a", b"1")
        first.commit()
        engine.begin().rollback()
        engine.begin().rollback()
        assert engine.read(lambda rows: rows.get(b"a")) == b"1"

    def test_a_transaction_that_has_ended_cannot_be_used(self, engine: Engine) -> None:
        transactions = [engine.begin()]
        transactions[0].commit()
        transactions.append(engine.begin())
        transactions[1].rollback()
        for transaction in transactions:
            transaction.rollback()
            for use in (
                lambda: transaction.put(b"a", b""),  # noqa: B023 - used at once
                lambda: transaction.delete(b"a"),  # noqa: B023
                lambda: transaction.delete_range(b"", HIGH),  # noqa: B023
                lambda: transaction.append(b"", b""),  # noqa: B023
                lambda: transaction.trim(1),  # noqa: B023
                transaction.commit,
            ):
                with pytest.raises(RuntimeError, match="has ended"):
                    use()
        assert engine.read(everything) == {}
        engine.begin().rollback()

    def test_a_pinned_moment_stays_until_reads_advance(self, letters: Engine) -> None:
        letters.pin()
        transaction = letters.begin()
        transaction.append(b"op", b"entry")
        transaction.put(b"a", b"new")
        transaction.commit()
        assert letters.read(lambda rows: (rows.get(b"a"), rows.sequence())) == (b"aa", 0)
        assert letters.read(lambda rows: list(rows.entries(0))) == []
        letters.advance()
        assert letters.read(lambda rows: (rows.get(b"a"), rows.sequence())) == (b"new", 1)
        letters.advance()
        put_all(letters, [(b"a", b"newer")])
        assert letters.read(lambda rows: rows.get(b"a")) == b"newer"

    def test_a_pinned_moment_does_not_see_a_commit_in_another_thread(self, letters: Engine) -> None:
        for number in range(20):
            transaction = letters.begin()
            transaction.put(b"a", b"%d" % number)
            transaction.append(b"op", b"entry")
            letters.pin()
            thread = threading.Thread(target=transaction.commit)
            thread.start()
            while thread.is_alive():
                assert letters.read(lambda rows: rows.sequence()) == number
            thread.join()
            assert letters.read(lambda rows: rows.sequence()) == number
            letters.advance()
            assert letters.read(lambda rows: rows.get(b"a")) == b"%d" % number

    def test_the_moment_that_reads_leave_can_be_held(self, letters: Engine) -> None:
        held: list[EngineSnapshot] = []
        for number in range(5):
            letters.pin()
            transaction = letters.begin()
            transaction.put(b"a", b"%d" % number)
            transaction.append(b"op", b"entry")
            transaction.commit()
            left = letters.advance(holds=True)
            assert left is not None
            held.append(left)
            assert letters.read(lambda rows: rows.sequence()) == number + 1
        for number, moment in enumerate(held):
            expected = b"aa" if number == 0 else b"%d" % (number - 1)
            assert (moment.sequence(), moment.get(b"a")) == (number, expected)
            assert next(key for key, _ in moment.scan(b"", HIGH)) == b"a"
            moment.close()
        letters.checkpoint()
        assert letters.read(lambda rows: rows.get(b"a")) == b"4"

    def test_a_read_that_is_held_goes_on_over_the_same_moment(self, letters: Engine) -> None:
        def hold(rows: PresentView) -> tuple[Iterator[bytes], EngineSnapshot]:
            keys = rows.scan_keys(b"", HIGH)
            assert next(keys) == b"a"
            held = rows.hold()
            assert held is not None
            return keys, held

        keys, held = letters.read(hold)
        put_all(letters, [(b"b", b"new"), (b"c", b"changed")])
        assert next(keys) == b"c"
        assert (held.get(b"b"), held.get(b"c")) == (None, b"cc")
        assert letters.read(lambda rows: rows.get(b"c")) == b"changed"
        assert list(keys) == [b"e", b"g"]
        held.close()
        held.close()
        with pytest.raises(RuntimeError):
            held.get(b"c")
        assert letters.read(lambda rows: rows.get(b"b")) == b"new"

    def test_many_moments_are_held_at_a_time(self, letters: Engine) -> None:
        held = []
        for number in range(5):
            put_all(letters, [(b"a", b"%d" % number)])
            held.append(letters.read(lambda rows: rows.hold()))
        assert [each and each.get(b"a") for each in held] == [b"0", b"1", b"2", b"3", b"4"]
        for each in held:
            assert each is not None
            each.close()

    def test_a_commit_may_run_in_another_thread(self, engine: Engine) -> None:
        for number in range(20):
            transaction = engine.begin()
            transaction.put(b"%02d" % number, b"x" * 10000)
            assert transaction.append(b"op", b"entry") == number + 1
            thread = threading.Thread(target=transaction.commit)
            thread.start()
            while thread.is_alive():
                assert engine.read(lambda rows: rows.sequence()) in (number, number + 1)
            thread.join()
            assert engine.read(lambda rows: len(everything(rows))) == number + 1

    def test_a_transaction_that_changes_nothing_can_be_committed(self, engine: Engine) -> None:
        engine.begin().commit()
        transaction = engine.begin()
        transaction.delete(b"missing")
        transaction.delete_range(b"a", b"b")
        transaction.trim(7)
        transaction.commit()
        assert engine.read(lambda rows: rows.sequence()) == 0

    @pytest.mark.parametrize("reverse", [False, True])
    def test_rows_may_be_removed_while_they_are_scanned(
        self, engine: Engine, reverse: bool
    ) -> None:
        keys = [b"%04d" % number for number in range(300)]
        put_all(engine, [(key, b"x" * 50) for key in keys])
        transaction = engine.begin()
        seen = []
        for row in transaction.scan(b"", HIGH, reverse=reverse):
            transaction.delete(row[0])
            seen.append(row[0])
        assert seen == (keys[::-1] if reverse else keys)
        assert everything(transaction) == {}
        transaction.rollback()

    @pytest.mark.parametrize("reverse", [False, True])
    def test_a_scan_goes_on_after_its_last_key_over_the_rows_as_they_are_then(
        self, letters: Engine, reverse: bool
    ) -> None:
        transaction = letters.begin()
        scan = transaction.scan_keys(b"", HIGH, reverse=reverse)
        assert next(scan) == (b"g" if reverse else b"a")
        assert next(scan) == (b"e" if reverse else b"c")
        for key in (b"b", b"b\x00", b"d", b"d\x00", b"f"):
            transaction.put(key, b"new")
        transaction.delete(b"g")
        transaction.delete(b"a")
        wanted = [b"d\x00", b"d", b"c", b"b\x00", b"b"] if reverse else [b"d", b"d\x00", b"e", b"f"]
        assert list(scan) == wanted
        transaction.rollback()

    def test_values_may_be_replaced_while_they_are_scanned(self, letters: Engine) -> None:
        transaction = letters.begin()
        seen = []
        for row in transaction.scan(b"", HIGH):
            seen.append(row)
            for key in (b"c", b"e", b"g"):
                transaction.put(key, row[0] * 3)
        assert seen == [(b"a", b"aa"), (b"c", b"aaa"), (b"e", b"ccc"), (b"g", b"eee")]
        transaction.rollback()

    def test_a_removal_costs_no_more_after_many_others(self, engine: Engine) -> None:
        def count_calls(count: int) -> int:
            """Remove rows from the front, and read the first of the rest after each."""
            keys = [b"%06d" % number for number in range(count)]
            put_all(engine, [(key, b"") for key in [*keys, b"last"]])
            transaction = engine.begin()
            calls = 0

            def profile(_frame: Any, event: str, _argument: Any) -> None:
                nonlocal calls
                calls += event == "call"

            sys.setprofile(profile)
            try:
                for key in keys:
                    transaction.delete(key)
                    assert next(transaction.scan_keys(b"", HIGH)) > key
            finally:
                sys.setprofile(None)
            transaction.rollback()
            return calls

        assert count_calls(400) < 6 * count_calls(100)

    @pytest.mark.parametrize("ends", ["commit", "rollback"])
    def test_other_views_see_nothing_of_a_transaction_while_it_is_open(
        self, letters: Engine, ends: str
    ) -> None:
        before = letters.read(everything)
        earlier = letters.snapshot()
        transaction = letters.begin()
        transaction.put(b"b", b"new")
        transaction.put(b"c", b"other")
        during = letters.snapshot()
        transaction.delete(b"a")
        transaction.delete(b"b")
        transaction.put(b"h", b"new")
        changed = everything(transaction)
        assert letters.read(everything) == before
        assert everything(earlier) == everything(during) == before
        getattr(transaction, ends)()
        assert letters.read(everything) == (changed if ends == "commit" else before)
        assert everything(earlier) == everything(during) == before
        put_all(letters, [(b"c", b"later")])
        assert everything(earlier) == everything(during) == before
        for snapshot in (earlier, during):
            snapshot.close()

    # the log

    def test_entries_are_numbered_from_1_without_gaps(self, engine: Engine) -> None:
        assert append_all(engine, b"a", b"b") == [1, 2]
        discarded = engine.begin()
        assert discarded.append(b"op", b"discarded") == 3
        discarded.rollback()
        assert append_all(engine, b"c") == [3]
        assert append_all(engine, b"", b"e") == [4, 5]
        assert engine.read(lambda rows: rows.sequence()) == 5
        assert engine.read(lambda rows: list(rows.entries(0))) == [
            LogEntry(number, b"op", content)
            for number, content in enumerate([b"a", b"b", b"c", b"", b"e"], 1)
        ]

    def test_entries_are_those_above_a_number(self, engine: Engine) -> None:
        append_all(engine, *[b"%d" % number for number in range(1, 11)])

        def check(rows: ReadView) -> None:
            for after in (0, 1, 5, 9, 10, 11, 1000):
                numbers = [entry.sequence for entry in rows.entries(after)]
                assert numbers == list(range(after + 1, 11))

        engine.read(check)

    def test_long_entries_are_cut_between_two_numbers(self, engine: Engine) -> None:
        transaction = engine.begin()
        for content in (b"long entry 1", b"short", b"long entry 3", b"long entry 4"):
            transaction.append(b"op", content)
        transaction.shorten(1, 3, 5, lambda content: content[-2:])
        transaction.shorten(0, 1, 5, lambda content: content[-1:])
        transaction.commit()
        entries = engine.read(lambda view: list(view.entries(0)))
        assert [each.content for each in entries] == [b"1", b"short", b" 3", b"long entry 4"]
        assert {each.op_id for each in entries} == {b"op"}

    def test_trim_drops_entries_and_never_numbers(self, engine: Engine) -> None:
        append_all(engine, b"a", b"b", b"c", b"d")
        for through, kept in ((0, [1, 2, 3, 4]), (2, [3, 4]), (1, [3, 4]), (9, [])):
            transaction = engine.begin()
            transaction.trim(through)
            assert [entry.sequence for entry in transaction.entries(0)] == kept
            transaction.commit()
            assert engine.read(lambda rows: [e.sequence for e in rows.entries(0)]) == kept
            assert engine.read(lambda rows: rows.sequence()) == 4
        assert append_all(engine, b"e") == [5]
        assert engine.read(lambda rows: list(rows.entries(0))) == [LogEntry(5, b"op", b"e")]

    def test_a_trim_drops_some_entries_at_a_time_the_long_ones_too(self, engine: Engine) -> None:
        contents = [b"%d" % number for number in range(TRIMMED_AT_ONCE + 10)]
        contents[3] = b"x" * 2_000_000
        append_all(engine, *contents)
        last = len(contents)
        for first in (TRIMMED_AT_ONCE + 1, last):
            transaction = engine.begin()
            transaction.trim(last - 1)
            transaction.commit()
            numbers = engine.read(lambda rows: [entry.sequence for entry in rows.entries(0)])
            assert numbers == list(range(first, last + 1))

    def test_a_transaction_sees_its_own_entries(self, engine: Engine) -> None:
        append_all(engine, b"a")
        transaction = engine.begin()
        transaction.append(b"\x00\xff", b"b" * 100_000)
        transaction.append(b"", b"c")
        assert [entry.sequence for entry in transaction.entries(1)] == [2, 3]
        transaction.trim(2)
        assert list(transaction.entries(0)) == [LogEntry(3, b"", b"c")]
        assert transaction.append(b"", b"d") == 4
        transaction.commit()
        assert engine.read(lambda rows: [e.content for e in rows.entries(0)]) == [b"c", b"d"]

    # the whole

    def test_a_sound_engine_verifies_and_recovers(self, letters: Engine) -> None:
        append_all(letters, b"a", b"b")
        before = letters.read(everything)
        assert letters.verify() == []
        letters.recover()
        assert letters.read(everything) == before
        assert append_all(letters, b"c") == [3]
        assert letters.verify() == []

    def test_size_grows_with_what_is_put(self, engine: Engine) -> None:
        before = engine.size()
        put_all(engine, [(b"k", b"x" * 3_000_000)])
        assert before + 3_000_000 <= engine.size() < before + 8_000_000

    def test_the_reserve_can_be_released_and_restored(self, letters: Engine) -> None:
        letters.release_reserve()
        letters.release_reserve()
        put_all(letters, [(b"a", b"new")])
        assert letters.restore_reserve() is True
        assert letters.restore_reserve() is True

    def test_close_ends_what_is_still_open(self, letters: Engine) -> None:
        snapshot = letters.snapshot()
        scan = snapshot.scan(b"", HIGH)
        next(scan)
        transaction = letters.begin()
        transaction.put(b"a", b"new")
        letters.close()
        for use in (snapshot.sequence, lambda: next(scan), transaction.commit):
            with pytest.raises(RuntimeError, match="has ended"):
                use()


def single_bytes(keys: bytes) -> list[bytes]:
    return [bytes([key]) for key in keys]


def with_snapshot(engine: Engine, work: Any) -> Any:
    snapshot = engine.snapshot()
    try:
        return work(snapshot)
    finally:
        snapshot.close()


def ended(transaction: Transaction) -> Transaction:
    transaction.rollback()
    return transaction
