"""Kept answers: what falls with which commit, how much is kept, and what is dropped first."""

from __future__ import annotations

import gc
import itertools
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.database.world import TurnClock
from treedbd.database.answers import ANSWER_BYTES, AnswerPool, Answers
from treedbd.database.slices import SLICE_SECONDS, Slices
from treedbd.limits import MIB
from treedbd.store.changelog import commit_of
from treedbd.tree.edit import make_patch, make_put
from treedbd.tree.event import Commit
from treedbd.tree.path import is_at_or_above
from treedbd.tree.types import Json, Path, Place

PATHS = st.lists(st.sampled_from("abc"), max_size=4).map(tuple)
FORMS = st.sampled_from(["", "shallow", "export"])


class PooledAnswers:
    """A pool with a clock, and the answers of a database in it."""

    def __init__(self, limit: int = MIB, lag: float = 0.0) -> None:
        self.clock = TurnClock(lag)
        self.pool = AnswerPool(limit)
        self.answers = self.make_answers()

    def make_answers(self) -> Answers:
        answers = Answers(self.pool, Slices(self.clock))
        answers.is_active = True
        return answers

    def keep(self, path: str, form: str = "", body: bytes = b"1") -> None:
        self.answers.keep(place(path), form, body)

    def finds(self, path: str, form: str = "") -> bool:
        return self.answers.find(place(path), form) is not None


def place(path: str) -> Place:
    return Place(tuple(path.split("/")) if path else ())


def put_at(path: Path) -> Commit:
    return commit_of(1, make_put(Place(path), 1))


def patch_at(path: Path, members: dict[str, Json]) -> Commit:
    return commit_of(1, make_patch(path, members))


def test_an_answer_is_found_by_its_place_and_form() -> None:
    world = PooledAnswers()
    world.keep("a/b", "", b"plain")
    world.keep("a/b", "shallow", b"shallow")
    found = world.answers.find(place("a/b"), "shallow")
    assert found is not None
    assert found.body == b"shallow"
    assert not world.finds("a/b", "export")
    assert not world.finds("a")
    assert not world.finds("a/b/c")


def test_the_priority_of_a_node_is_another_place() -> None:
    world = PooledAnswers()
    world.answers.keep(Place(("a",), is_priority=True), "", b"5")
    assert not world.finds("a")
    found = world.answers.find(Place(("a",), is_priority=True), "")
    assert found is not None
    assert found.body == b"5"


@pytest.mark.parametrize("written", ["", "a", "a/b", "a/b/c"])
def test_what_is_at_above_and_below_a_written_place_falls(written: str) -> None:
    world = PooledAnswers()
    for path in ("", "a", "a/b", "a/b/c", "a/other", "other"):
        world.keep(path)
        world.keep(path, "shallow")
    world.answers.drop_changed([put_at(place(written).path)])
    for path, form in itertools.product(("", "a", "a/b", "a/b/c"), ("", "shallow")):
        assert not world.finds(path, form)
    assert world.finds("a/other") is (written not in ("", "a"))
    assert world.finds("other", "shallow") is (written != "")


def test_a_patch_drops_what_its_members_touch() -> None:
    world = PooledAnswers()
    for path in ("a", "a/x", "a/y", "a/z"):
        world.keep(path)
    world.answers.drop_changed([patch_at(("a",), {"x": 1, "y/deep": 2})])
    assert [world.finds(path) for path in ("a", "a/x", "a/y", "a/z")] == [False, False, False, True]


def test_of_a_commit_with_many_changes_all_below_its_path_falls() -> None:
    world = PooledAnswers()
    for path in ("", "a", "a/untouched", "b"):
        world.keep(path)
    world.answers.drop_changed([patch_at(("a",), {f"k{n}": n for n in range(1000)})])
    assert [world.finds(path) for path in ("", "a", "a/untouched", "b")] == [False] * 3 + [True]


@given(st.lists(st.tuples(PATHS, FORMS), max_size=20), st.lists(PATHS, max_size=3))
def test_exactly_what_writes_cannot_have_changed_is_left(
    kept: list[tuple[Path, str]], written: list[Path]
) -> None:
    world = PooledAnswers()
    for path, form in kept:
        world.answers.keep(Place(path), form, b"1")
    world.answers.drop_changed([put_at(path) for path in written])
    for path, form in kept:
        touched = any(is_at_or_above(path, at) or is_at_or_above(at, path) for at in written)
        assert (world.answers.find(Place(path), form) is None) is touched
    world.answers.clear()
    assert (world.pool.count, world.pool.size) == (0, 0)


def test_the_answer_that_was_used_longest_ago_is_dropped_first() -> None:
    world = PooledAnswers(limit=20 * ANSWER_BYTES)
    for number in range(8):
        world.keep(f"k{number}")
    assert world.finds("k0")
    for number in range(100, 104):
        world.keep(f"k{number}")
    assert world.finds("k0")
    assert not world.finds("k1")
    assert world.finds("k103")


@given(
    st.lists(st.tuples(PATHS, FORMS, st.integers(0, 3000)), max_size=60),
    st.integers(0, 20_000),
)
def test_never_more_is_kept_than_the_limit(kept: list[tuple[Path, str, int]], limit: int) -> None:
    world = PooledAnswers(limit)
    others = world.make_answers()
    for number, (path, form, size) in enumerate(kept):
        owner = others if number % 2 else world.answers
        owner.keep(Place(path), form, bytes(size))
        assert world.pool.size <= limit
    world.answers.clear()
    others.clear()
    assert (world.pool.count, world.pool.size) == (0, 0)


def test_an_answer_larger_than_its_share_is_not_kept() -> None:
    world = PooledAnswers(limit=80_000)
    world.keep("small", body=bytes(10_000))
    world.keep("large", body=bytes(10_001))
    assert world.finds("small")
    assert not world.finds("large")


def test_a_limit_of_zero_keeps_nothing() -> None:
    world = PooledAnswers(limit=0)
    world.keep("a", body=b"")
    assert not world.finds("a")
    assert world.pool.size == 0


def test_a_database_that_nobody_keeps_has_no_answers() -> None:
    world = PooledAnswers()
    world.answers.is_active = False
    world.keep("a")
    assert not world.finds("a")
    assert world.pool.size == 0


def test_hits_and_misses_are_counted() -> None:
    world = PooledAnswers()
    assert not world.finds("a")
    world.keep("a")
    for _ in range(3):
        assert world.finds("a")
    assert (world.pool.hits, world.pool.misses) == (3, 1)


def test_what_falls_is_gone_at_once_and_removed_from_memory_in_slices() -> None:
    world = PooledAnswers(limit=64 * MIB, lag=SLICE_SECONDS / 2)
    for number in range(2000):
        world.keep(f"a/k{number}")
    before = world.pool.count
    world.answers.drop_changed([put_at(("a",))])
    assert not world.finds("a/k0")
    assert 0 < world.pool.count < before
    world.keep("a/k1", body=b"new")
    turns = 0
    while world.clock.take_turn():
        turns += 1
    assert turns > 10
    assert world.pool.count == 1
    found = world.answers.find(place("a/k1"), "")
    assert found is not None
    assert found.body == b"new"
    world.answers.clear()
    assert world.pool.size == 0


def test_room_is_made_with_answers_that_have_fallen_and_are_still_counted() -> None:
    world = PooledAnswers(limit=115 * ANSWER_BYTES, lag=SLICE_SECONDS / 2)
    for number in range(45):
        world.keep(f"a/k{number}")
    world.answers.drop_changed([put_at(("a",))])
    for number in range(45):
        world.keep(f"b/k{number}")
    assert all(world.finds(f"b/k{number}") for number in range(45))
    world.clock.run()
    world.answers.clear()
    world.clock.run()
    assert (world.pool.count, world.pool.size) == (0, 0)


def test_what_answers_are_made_from_replaces_what_was_kept_before() -> None:
    world = PooledAnswers()
    world.answers.keep_content(("a",), "sorted", "first", 0)
    before = world.pool.size
    world.answers.keep_content(("a",), "sorted", "second", 100)
    assert world.answers.find_content(("a",), "sorted") == "second"
    assert (world.pool.count, world.pool.size) == (1, before + 100)


@pytest.mark.parametrize("end", ["", "é", "日", "\U0001f600"])
@pytest.mark.parametrize(("keys", "length"), [(1, 1), (1, 700), (30, 9)])
def test_answers_take_no_more_memory_than_is_counted(end: str, keys: int, length: int) -> None:
    world = PooledAnswers()
    tracemalloc.start()
    for number in range(100):
        path = tuple(f"{number}-{key:0{length}}{end}" for key in range(keys))
        world.answers.keep(Place(path), f"form {number}{'x' * length}{end}", b"%d" % number)
    gc.collect()
    taken, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert taken < 1.1 * world.pool.size
