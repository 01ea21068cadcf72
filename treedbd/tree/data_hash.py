"""The hash by which clients of the real-time protocol say which value of a node they hold.

It is the base64 of a SHA-1 over a text. That of a leaf is its type and value, a number as the 16
hexadecimal digits of its double; of a container `:<key>:<hash>` for each child, in the order of
their priorities and then of their keys; in front of both the priority of the node, if it has one.
Nothing hashes to the empty string. Here strings compare by their UTF-16 units, as clients compare
them; beyond U+FFFF that is another order than the one of the tree. Source: `realtime-protocol.md`,
section 3.
"""

from __future__ import annotations

import struct
from base64 import b64encode
from collections.abc import Callable, Iterable, Iterator
from hashlib import sha1
from heapq import merge
from itertools import chain, islice
from typing import Final, NamedTuple, TypeAlias

from treedbd.loop import free_beside, pause
from treedbd.tree.path import rank_key
from treedbd.tree.types import Leaf, Priority, Value
from treedbd.tree.value import TEXT_AT_ONCE, container_of, leaf_of, members, priority_of

NOTHING: Final = ""
"""The hash of a node where nothing is."""

SORTED_AT_ONCE: Final = 1024
"""Children that are sorted, or hashed, in one step."""

_Rank: TypeAlias = tuple[int, float, bytes]
_ChildRank: TypeAlias = tuple[_Rank, _Rank]
_Printed: TypeAlias = tuple[_ChildRank, str]


class HashedChild(NamedTuple):
    """A child of a container: its key, its priority and its hash, which is not that of nothing."""

    key: str
    priority: Priority | None
    data_hash: str


def data_hash(value: Value) -> str:
    """Return the hash of a value with its priorities."""
    if value is None:
        return NOTHING
    if container_of(value) is None:
        return hash_leaf(leaf_of(value), priority_of(value))  # type: ignore[arg-type]
    children = members(value)
    hashed = [HashedChild(key, priority_of(child), data_hash(child)) for key, child in children]
    return hash_container(lambda: hashed, priority_of(value))


def hash_leaf(leaf: Leaf, priority: Priority | None) -> str:
    """Return the hash of a leaf; a long string is hashed with pauses."""
    text = _priority_text(priority) + _typed(leaf)
    return _digest(text[at : at + TEXT_AT_ONCE] for at in range(0, len(text), TEXT_AT_ONCE))


def hash_container(iterate: Callable[[], Iterable[HashedChild]], priority: Priority | None) -> str:
    """Return the hash of a container; many children are hashed with pauses.

    `iterate` is called for the children, in any order: again if they are many, and not about in the
    order in which they are hashed.
    """
    before = (_priority_text(priority),)
    try:
        return _digest(chain(before, _print_in_order(iterate())))
    except _OutOfOrder:
        return _digest(chain(before, _print_sorted(iterate())))


class _OutOfOrder(Exception):
    """A child comes before one that was printed already."""


def _print_in_order(children: Iterable[HashedChild]) -> Iterator[str]:
    """Print children that come in order, some at a time, so that none of them are kept."""
    last: _Printed | None = None
    for run in _runs(children):
        if last is not None and run[0] < last:
            raise _OutOfOrder
        last = run[-1]
        yield "".join([text for _, text in run])


def _print_sorted(children: Iterable[HashedChild]) -> Iterator[str]:
    """Print children in order, some at a time; what that took in memory is freed in steps."""
    runs: list[tuple[_Printed, ...]] = []
    try:
        yield from _print_merged(children, runs)
    finally:
        free_beside(runs)


def _print_merged(
    children: Iterable[HashedChild], runs: list[tuple[_Printed, ...]]
) -> Iterator[str]:
    for run in _runs(children):
        runs.append(run)
        pause()
    in_order = merge(*runs)
    while texts := [text for _, text in islice(in_order, SORTED_AT_ONCE)]:
        yield "".join(texts)
    while runs:
        runs.pop()
        pause()


def _runs(children: Iterable[HashedChild]) -> Iterator[tuple[_Printed, ...]]:
    """Yield the children as they are hashed, some at a time, and these in order."""
    remaining = iter(children)
    while batch := list(islice(remaining, SORTED_AT_ONCE)):
        printed = [(_child_rank(each), f":{each.key}:{each.data_hash}") for each in batch]
        yield tuple(sorted(printed))


def _child_rank(child: HashedChild) -> _ChildRank:
    return _priority_rank(child.priority), _key_rank(child.key)


def _priority_rank(priority: Priority | None) -> _Rank:
    if priority is None:
        return (0, 0, b"")
    if isinstance(priority, str):
        return (2, 0, _utf_16(priority))
    return (1, priority, b"")


def _key_rank(key: str) -> _Rank:
    is_text, number, text = rank_key(key)
    return (is_text, number, _utf_16(text))


def _utf_16(text: str) -> bytes:
    return text.encode("utf-16-be")


def _priority_text(priority: Priority | None) -> str:
    return "" if priority is None else f"priority:{_typed(priority)}:"


def _typed(leaf: Leaf) -> str:
    if isinstance(leaf, bool):
        return f"boolean:{'true' if leaf else 'false'}"
    if isinstance(leaf, str):
        return f"string:{leaf}"
    return f"number:{struct.pack('>d', leaf).hex()}"


def _digest(texts: Iterable[str]) -> str:
    # The protocol names SHA-1; nothing that is secret depends on it.
    digest = sha1(usedforsecurity=False)
    for text in texts:
        digest.update(text.encode())
        pause()
    return b64encode(digest.digest()).decode()
