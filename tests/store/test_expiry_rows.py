"""The index of times as rows: entered, found by time, corrected, dropped, checked."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.examples import examples
from treedbd.store.engine import DamagedRow, Transaction
from treedbd.store.expiry_rows import (
    EXPIRY_END,
    EXPIRY_FIRST,
    KNOWN_HASHES,
    STATE_KEY,
    ExpiryState,
    Region,
    Since,
    Times,
    check_expiry,
    distrust,
    drop_some,
    follow,
    list_due,
    next_listed,
    put_times,
    read_state,
    read_times,
    remove_times,
    write_state,
)
from treedbd.store.memory import MemoryEngine
from treedbd.store.rows import seal
from treedbd.tree.shape import Shape, all_but, hash_key
from treedbd.tree.types import Path

LONG: Path = ("k" * 700, "x" * 700)


def begin() -> Transaction:
    return MemoryEngine().begin()


def test_nodes_are_listed_in_the_order_of_their_times_up_to_now() -> None:
    rows = begin()
    assert next_listed(rows) is None
    for path, due in ((("b",), 30), (("a", "12"), 10), (LONG, 20), (("c",), 2**45)):
        put_times(rows, path, due, 1)
    assert next_listed(rows) == 10
    assert [(each.path, each.listed_ms) for each in list_due(rows, 30, 9)[0]] == [
        (("a", "12"), 10),
        (LONG, 20),
        (("b",), 30),
    ]
    assert [each.path for each in list_due(rows, 29, 9)[0]] == [("a", "12"), LONG]
    assert [each.path for each in list_due(rows, 30, 1)[0]] == [("a", "12")]
    assert read_times(rows, LONG) == Times(20, 1)
    assert list(check_expiry(rows)) == []


def test_a_node_that_goes_later_than_it_is_listed_keeps_its_row() -> None:
    rows = begin()
    put_times(rows, ("a",), 10, 1)
    put_times(rows, ("a",), 50, 2)
    assert (next_listed(rows), read_times(rows, ("a",))) == (10, Times(10, 2))
    put_times(rows, ("a",), 5, 3)
    assert (next_listed(rows), read_times(rows, ("a",))) == (5, Times(5, 3))
    put_times(rows, ("a",), 50, 9, is_written=False)
    assert (next_listed(rows), read_times(rows, ("a",))) == (50, Times(50, 3))
    assert list(check_expiry(rows)) == []


def test_what_is_removed_leaves_no_row() -> None:
    rows = begin()
    for path in (("a",), LONG):
        put_times(rows, path, 10, 1)
    assert remove_times(rows, ("a",))
    assert not remove_times(rows, ("a",))
    assert remove_times(rows, LONG)
    assert list(rows.scan_keys(EXPIRY_FIRST, EXPIRY_END)) == []


def test_the_state_is_stored_and_distrust_removes_it() -> None:
    rows = begin()
    distrust(rows)
    assert read_state(rows) is None
    region = Region((all_but(["a"]), hash_key("b")), Since(4, 9))
    state = ExpiryState({"one": Since(5, 6)}, {"one": (region,)}, position=("a", "b"))
    write_state(rows, state)
    assert read_state(rows) == state
    distrust(rows)
    assert read_state(rows) is None


def test_a_damaged_state_is_found() -> None:
    rows = begin()
    for content in (b'{"since":{"one":5}}', b'{"since":{},"regions":{"one":[1]}}', b"[]"):
        rows.put(STATE_KEY, seal(STATE_KEY, content))
        with pytest.raises(DamagedRow):
            read_state(rows)


def test_a_write_after_the_clock_was_set_back_is_known_by_its_number() -> None:
    rows = begin()
    put_times(rows, ("a",), 70, 60, number=7)
    put_times(rows, ("a",), 90, 0, is_written=False)
    times = read_times(rows, ("a",))
    assert times == Times(90, 60, 7)
    assert times.last_write(Since(6, 1000)) == 60
    assert times.last_write(Since(7, 1000)) == 1000
    assert times.last_write(Since(7, 50)) == 60
    put_times(rows, ("a",), 91, 61)
    assert read_times(rows, ("a",)) == Times(90, 61)
    put_times(rows, LONG, 70, 60, number=7)
    assert read_times(rows, LONG) == Times(70, 60, 7)
    assert list(check_expiry(rows)) == []


def at(ms: int) -> Since:
    return Since(100, ms)  # no write comes between


def shape_of(*others: str) -> Shape:
    return (hash_key("m"), all_but(others))


def test_places_keep_since_when_they_are_known_when_the_keys_beside_them_change() -> None:
    def ms(*keys: str) -> list[int | None]:
        assert state is not None
        (name,) = state.since
        found = [state.since_when(name, ("m", key)) for key in keys]
        return [each and each.ms for each in found]

    state: ExpiryState | None = None
    for now, others, known in (
        (1, (), [1, 1, 1]),
        (2, ("a",), [1, 1, 1]),
        (3, ("a", "b"), [1, 1, 1]),
        (4, ("b",), [4, 1, 1]),
        (5, (), [4, 5, 1]),
        (6, ("z",), [4, 5, 1]),
        (7, ("y",), [4, 5, 1]),
    ):
        state = follow(state, {f"p{now}": shape_of(*others)}, f"r{now}", at(now))
        assert state.rules == f"r{now}"
        seen = [key for key in "abc" if key not in others]
        assert ms(*seen) == [known["abc".index(key)] for key in seen]
    state = follow(state, {"p8": (hash_key("m"), hash_key("c"))}, "r8", at(8))
    assert ms("c") == [1]
    state = follow(state, {"p9": shape_of()}, "r9", at(9))
    assert ms("c", "d") == [1, 9]
    state = follow(state, {"p10": (*shape_of(), all_but(()))}, "r10", at(10))
    assert state.since == {"p10": at(10)}


def test_as_many_shapes_are_kept_as_there_is_room_for_and_others_count_from_the_change() -> None:
    many = tuple(map(str, range(KNOWN_HASHES)))
    both = {"few": shape_of("x"), "many": (hash_key("n"), all_but(many))}
    state = follow(None, both, "r1", at(1))
    assert state.since == {"few": at(1), "many": at(1)}
    assert list(state.regions) == ["few"]
    assert follow(state, both, "r2", at(2)).since == {"few": at(1), "many": at(1)}
    changed = {"few+": shape_of("x", "y"), "many+": (hash_key("n"), all_but((*many, "y")))}
    assert follow(state, changed, "r2", at(2)).since == {"few+": at(1), "many+": at(2)}
    literals = {key: (hash_key("m"), hash_key(key)) for key in many}
    state = follow(None, literals, "r1", at(1))
    assert sum(map(len, state.regions.values())) == KNOWN_HASHES // 3
    for now in range(2, 30):  # a state does not grow
        key = str(now % 3)
        state = follow(state, {f"p{now}": shape_of(key)}, f"r{now}", at(now))
        assert len(state.regions[f"p{now}"]) <= 9


def test_rows_are_dropped_some_at_a_time() -> None:
    rows = begin()
    write_state(rows, ExpiryState({}))
    for at in range(10):
        put_times(rows, (f"n{at}",), at, 0)
    assert not drop_some(rows, 15)
    assert drop_some(rows, 15)
    assert list(rows.scan_keys(EXPIRY_FIRST, EXPIRY_END)) == [STATE_KEY]


def test_damaged_rows_are_found_and_replaced() -> None:
    rows = begin()
    put_times(rows, ("a",), 10, 1)
    put_times(rows, ("b",), 20, 1)
    for key in list(rows.scan_keys(EXPIRY_FIRST, EXPIRY_END)):
        if b"a" in key[3:].removeprefix(b"%012x" % 10):
            rows.put(key, b"damaged")
    assert [each.path for each in list_due(rows, 99, 9)[0]] == [("b",)]
    assert len(list(check_expiry(rows))) == 2
    (key,) = list_due(rows, 10, 9)[1]
    assert key.startswith(EXPIRY_FIRST + b"t")
    with pytest.raises(DamagedRow):
        read_times(rows, ("a",))
    put_times(rows, ("a",), 10, 2)
    assert list(check_expiry(rows)) == []


def test_a_row_without_its_other_is_found() -> None:
    rows = begin()
    put_times(rows, ("a",), 10, 1)
    put_times(rows, ("b",), 20, 1)
    first = list_due(rows, 10, 1)[0][0].key
    rows.delete(first)
    assert list(check_expiry(rows)) == ["The index of expiry does not list a node that it knows."]
    put_times(rows, ("a",), 10, 1, is_written=False)
    other = next(rows.scan_keys(EXPIRY_FIRST + b"p", EXPIRY_END))
    rows.delete(other)
    assert list(check_expiry(rows)) == ["The index of expiry lists a node that it does not know."]
    rows.put(EXPIRY_FIRST + b"q", b"")
    assert "There are rows that belong to nothing." in list(check_expiry(rows))


KEYS = st.text("ab1\x7fé", min_size=1, max_size=3) | st.sampled_from(["k" * 300, "0", "-5"])


@settings(max_examples=examples(60))
@given(
    st.lists(
        st.tuples(
            st.lists(KEYS, min_size=1, max_size=2).map(tuple), st.integers(0, 30) | st.none()
        ),
        max_size=20,
    )
)
def test_rows_are_those_of_a_model(steps: list[tuple[Path, int | None]]) -> None:
    rows, model = begin(), dict[Path, int]()
    for path, due in steps:
        if due is None:
            remove_times(rows, path)
            model.pop(path, None)
        else:
            put_times(rows, path, due, due)
            model[path] = min(due, model.get(path, due))
    listed = {each.path: each.listed_ms for each in list_due(rows, 99, 99)[0]}
    assert listed == model
    assert list(check_expiry(rows)) == []
    assert next_listed(rows) == min(model.values(), default=None)
