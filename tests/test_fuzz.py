"""The small form of fuzzing: the corpus, and some hundred random changes of it for each target.

`python -m tests.fuzz TARGET` is the large one. What it has found is in the corpus from then on.
"""

from __future__ import annotations

import random
from itertools import islice

import pytest

from tests.fuzz.mutation import LONGEST, mutate
from tests.fuzz.targets import TARGETS, read_corpus

CHANGED = 400


@pytest.mark.parametrize("name", sorted(TARGETS))
def test_the_corpus_of_a_target_finds_nothing(name: str) -> None:
    inputs = read_corpus(name)
    assert inputs
    for data in inputs:
        assert len(data) <= LONGEST
        TARGETS[name].check(data)


@pytest.mark.parametrize("name", sorted(TARGETS))
def test_random_changes_of_the_corpus_find_nothing(name: str) -> None:
    target, seed = TARGETS[name], random.randrange(2**32)
    for data in islice(mutate(read_corpus(name), target.tokens, seed), CHANGED):
        try:
            target.check(data)
        except Exception as error:
            raise AssertionError(f"Found by {data!r} (seed {seed})") from error


def test_the_same_seed_makes_the_same_inputs() -> None:
    first, again, other = (list(islice(mutate([b"abc"], [b"x"], seed), 50)) for seed in (1, 1, 2))
    assert first == again
    assert first != other
