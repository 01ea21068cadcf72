"""Random changes to inputs, for targets that run without a fuzzer: bytes, tokens, slices, joins."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from typing import Final

LONGEST: Final = 20_000
"""Bytes of an input; those of the corpus are shorter."""
_INTERESTING: Final = (0, 1, 9, 10, 13, 31, 32, 34, 44, 58, 91, 92, 93, 123, 125, 127, 128, 255)


def mutate(inputs: Sequence[bytes], tokens: Sequence[bytes], seed: int) -> Iterator[bytes]:
    """Yield inputs, each made of one of `inputs` by a few changes, without end.

    `tokens` are what a syntax is made of; the same seed yields the same inputs.
    """
    dice = random.Random(seed)
    while True:
        data = bytearray(dice.choice(inputs))
        for _ in range(dice.choice((1, 1, 1, 2, 3, 8))):
            change = dice.choice(_CHANGES)
            change(data, dice, inputs, tokens)
        yield bytes(data[:LONGEST])


def _place(data: bytearray, dice: random.Random) -> int:
    return dice.randrange(len(data) + 1)


def _flip(data: bytearray, dice: random.Random, _: Sequence[bytes], __: Sequence[bytes]) -> None:
    if data:
        data[dice.randrange(len(data))] ^= 1 << dice.randrange(8)


def _set(data: bytearray, dice: random.Random, _: Sequence[bytes], __: Sequence[bytes]) -> None:
    if data:
        data[dice.randrange(len(data))] = dice.choice(_INTERESTING)


def _insert(
    data: bytearray, dice: random.Random, _: Sequence[bytes], tokens: Sequence[bytes]
) -> None:
    at = _place(data, dice)
    data[at:at] = dice.choice(tokens)


def _overwrite(
    data: bytearray, dice: random.Random, _: Sequence[bytes], tokens: Sequence[bytes]
) -> None:
    at, token = _place(data, dice), dice.choice(tokens)
    data[at : at + len(token)] = token


def _remove(data: bytearray, dice: random.Random, _: Sequence[bytes], __: Sequence[bytes]) -> None:
    at = _place(data, dice)
    del data[at : at + dice.choice((1, 1, 4, 16, 64))]


def _repeat(data: bytearray, dice: random.Random, _: Sequence[bytes], __: Sequence[bytes]) -> None:
    at = _place(data, dice)
    data[at:at] = data[at : at + dice.choice((1, 4, 16))] * dice.choice((1, 2, 40))


def _join(
    data: bytearray, dice: random.Random, inputs: Sequence[bytes], _: Sequence[bytes]
) -> None:
    other = dice.choice(inputs)
    data[_place(data, dice) :] = other[dice.randrange(len(other) + 1) :]


_CHANGES: Final[Sequence[Callable[..., None]]] = (
    *(_flip, _set, _insert, _insert, _overwrite, _remove, _repeat, _join),
)
