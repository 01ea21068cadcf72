from __future__ import annotations

import random
from itertools import count, pairwise

from hypothesis import given
from hypothesis import strategies as st

from treedbd.tree.path import (
    ALPHABET,
    TEXT_TAG,
    PushIds,
    check_key,
    encode_key,
    is_later,
    sort_keys,
)

NOW = 1_700_000_000_123
LOWEST, HIGHEST = b"\x00" * 9, b"\xff" * 9


def seeded(seed: int = 1, used_through: int = -1) -> PushIds:
    return PushIds(random.Random(seed).randbytes, lambda: used_through)


def constant(entropy: bytes) -> PushIds:
    return PushIds(lambda length: entropy[:length], lambda: -1)


def test_the_alphabet_is_in_ascii_order() -> None:
    assert len(ALPHABET) == 64
    assert sorted(ALPHABET) == list(ALPHABET)


def test_an_id_is_twenty_characters_and_a_legal_key_that_sorts_as_text() -> None:
    made = seeded().next(NOW)
    assert len(made) == 20
    assert set(made) <= set(ALPHABET)
    assert check_key(made) == made
    assert encode_key(made)[0] == TEXT_TAG


def test_an_id_begins_with_its_milliseconds() -> None:
    made = seeded().next(NOW)
    stamp = 0
    for character in made[:8]:
        stamp = stamp * 64 + ALPHABET.index(character)
    assert stamp == NOW


def test_an_id_ends_with_its_random_bits() -> None:
    assert constant(LOWEST).next(0) == "-" * 20
    assert constant(HIGHEST).next(NOW)[8:] == "z" * 12
    assert constant(b"\x00" * 8 + b"\x01").next(1) == "-" * 7 + "0" + "-" * 11 + "0"


def test_within_a_millisecond_the_random_part_is_incremented() -> None:
    ids = constant(b"\x00" * 8 + b"\x3e")
    made = [ids.next(NOW) for _ in range(4)]
    assert [one[8:] for one in made] == [
        "-----------y",
        "-----------z",
        "----------0-",
        "----------00",
    ]
    assert len({one[:8] for one in made}) == 1


def test_a_new_millisecond_draws_new_random_bits() -> None:
    drawn = count()
    ids = PushIds(lambda length: next(drawn).to_bytes(length, "big"), lambda: -1)
    assert [ids.next(NOW + at)[8:] for at in range(3)] == ["-----------" + last for last in "-01"]


def test_an_overflow_moves_to_the_next_millisecond() -> None:
    ids = constant(HIGHEST)
    first, second, third = ids.next(5), ids.next(5), ids.next(6)
    assert first == "-------4" + "z" * 12
    assert second == "-------5" + "-" * 12
    assert first < second < third


def test_ids_increase_while_the_clock_is_behind() -> None:
    ids = seeded()
    made = [ids.next(now) for now in (NOW, NOW - 1, NOW - 3_600_000, NOW, NOW, NOW + 1)]
    assert made == sorted(set(made))
    assert len({one[:8] for one in made[:5]}) == 1


@given(st.lists(st.integers(0, 2**44) | st.integers(0, 3), min_size=1), st.integers(0, 2**44))
def test_ids_go_on_after_those_of_an_earlier_process(clock: list[int], restart: int) -> None:
    before = seeded()
    last = [before.next(now) for now in clock][-1]
    after = seeded(2, before.latest_ms)
    assert after.latest_ms == before.latest_ms
    assert after.next(restart) > last


def test_the_time_of_earlier_ids_is_asked_for_once_and_only_when_an_id_is_needed() -> None:
    calls = count()
    ids = PushIds(bytes, lambda: NOW + next(calls))
    assert ids.latest_ms == ids.latest_ms == NOW
    made = [ids.next(NOW - 5), ids.next(NOW - 5), ids.next(NOW), ids.next(NOW + 5)]
    assert made == sorted(set(made))
    assert next(calls) == 1


@given(st.lists(st.integers(0, 2**44) | st.integers(0, 3)), st.integers())
def test_ids_increase_whatever_the_clock_does(clock: list[int], seed: int) -> None:
    ids = seeded(seed)
    made = [ids.next(now) for now in clock]
    assert all(lower < upper for lower, upper in pairwise(made))
    assert sort_keys(made) == made


def test_those_who_pass_over_the_same_ids_make_different_ones() -> None:
    makers = [seeded(number) for number in range(3)]
    made = []
    for each in makers:
        each.next(1000)
        each.pass_over(2000)
        made += [each.next(1000), each.next(2000)]
    assert len(set(made)) == len(made)
    assert all(is_later(name, 2000) for name in made)


def test_an_id_of_a_later_millisecond_is_later() -> None:
    ids = seeded()
    name = ids.next(1000)
    assert [is_later(name, ms) for ms in (999, 1000, 1001)] == [True, False, False]
