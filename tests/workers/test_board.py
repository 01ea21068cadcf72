from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from treedbd.workers.protocol import Board, SharedLevels, create_board

SECRET = b"s" * 32
WORKERS = 3


@pytest.fixture
def descriptor() -> Iterator[int]:
    opened = create_board(WORKERS)
    yield opened
    os.close(opened)


def boards(descriptor: int) -> list[Board]:
    return [Board(descriptor, number, WORKERS, SECRET) for number in range(WORKERS)]


def test_counts_are_those_of_all_workers(descriptor: int) -> None:
    first, second, third = boards(descriptor)
    first.add("a")
    first.add("a")
    second.add("a")
    second.add("b")
    assert third.total("a") == 3
    assert third.total("b") == 1
    first.remove("a")
    assert [each.total("a") for each in (first, second, third)] == [2, 2, 2]


def test_a_worker_knows_by_how_many_it_has_more_than_another(descriptor: int) -> None:
    first, second, third = boards(descriptor)
    for board, count in ((first, 5), (second, 3), (third, 7)):
        for _ in range(count):
            board.add("a")
    counts = [each.more_than_least("a") for each in (first, second, third)]
    assert counts == [(2, 3), (-2, 5), (4, 3)]


def test_what_a_worker_had_is_forgotten_when_it_has_ended(descriptor: int) -> None:
    first, second, _ = boards(descriptor)
    parent = Board(descriptor, -1, WORKERS, SECRET)
    first.add("a")
    second.add("a")
    parent.clear(0, 5.0)
    assert second.total("a") == 1
    assert parent.last_beat(0) == 5.0


def test_a_sign_of_life_is_seen_by_the_parent(descriptor: int) -> None:
    parent = Board(descriptor, -1, WORKERS, SECRET)
    boards(descriptor)[1].beat(7.5)
    assert parent.last_beat(1) == 7.5
    assert parent.last_beat(0) == 0.0


@given(st.lists(st.tuples(st.integers(0, 2), st.text(max_size=8)), max_size=60))
def test_no_count_is_too_small_and_few_keys_are_counted_exactly(
    added: list[tuple[int, str]],
) -> None:
    descriptor = create_board(WORKERS)
    all_boards = boards(descriptor)
    expected = Counter(key for _, key in added)
    for worker, key in added:
        all_boards[worker].add(key)
    assert {key: all_boards[0].total(key) for key in expected} == expected
    for worker, key in added:
        all_boards[worker].remove(key)
    assert all(all_boards[0].total(key) == 0 for key in expected)
    os.close(descriptor)


def shared_levels(descriptor: int) -> list[SharedLevels]:
    return [SharedLevels(descriptor, WORKERS, SECRET) for _ in range(WORKERS)]


def test_levels_are_those_of_all_workers_and_apart_from_the_counts(descriptor: int) -> None:
    first, second, third = shared_levels(descriptor)
    board = boards(descriptor)[2]
    first.set("a", 7.5)
    second.set("b", 2.5)
    assert [each.get("a") for each in (first, second, third)] == [7.5] * 3
    assert [third.get("b"), third.get("c"), board.total("a")] == [2.5, 0.0, 0]
    board.add("a")
    board.clear(2, 1.0)
    assert third.get("a") == 7.5


def test_a_level_is_never_lowered(descriptor: int) -> None:
    first, second, _ = shared_levels(descriptor)
    first.set("a", 7.5)
    second.set("a", 5.0)
    assert first.get("a") == 7.5


def test_few_keys_of_many_workers_have_levels_of_their_own(descriptor: int) -> None:
    levels = shared_levels(descriptor)
    for number in range(1000):
        levels[number % WORKERS].set(str(number), float(number))
    wrong = sum(levels[0].get(str(number)) != number for number in range(1000))
    assert wrong <= 1
