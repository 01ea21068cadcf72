"""The canonical form of a node (RFC 8785) piece by piece, and its entity tag, whatever its size.

A spread container is printed from its children, each from its row. The members of the canonical
form are in the order of their keys' UTF-16 code units. The rows of most objects are in that order
too; then they are read one after the other. Else the keys are sorted, which takes memory for the
keys, and each child is looked up. Nothing takes memory for the whole value.
"""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import sha256
from heapq import merge
from itertools import chain, islice
from typing import Final, Protocol

from treedbd.limits import MIB
from treedbd.loop import free_beside
from treedbd.store.child import Child, ReadsNodes
from treedbd.store.children import empty_chunks, find_array
from treedbd.store.rows import CONTAINERS, parse_stored
from treedbd.tree.hashes import canonicalise
from treedbd.tree.path import encode_path
from treedbd.tree.types import Path
from treedbd.tree.value import NULL, compact

SORTED_AT_ONCE: Final = 1024
"""Keys that are sorted, or compared, in one step."""
DIGESTED_AT_ONCE: Final = MIB
"""Bytes of one long string that are digested in one step."""


class ReadsRows(ReadsNodes, Protocol):
    """What a canonical form is made with: `nodes.Nodes`, which has the same methods."""

    def chunks_unless_spread(self, path: Path) -> Iterator[bytes] | None:
        """Print `path` as `chunks` does, unless it is spread over the rows of its children."""

    def keys(self, path: Path) -> Iterator[str]:
        """Yield the keys of the children of `path`."""

    def children(self, path: Path) -> Iterator[Child]:
        """Yield the children of `path` by key."""


def canonical_chunks(nodes: ReadsRows, path: Path) -> Iterator[bytes]:
    """Print the JSON of a plain GET of `path` in canonical form; some chunks are empty.

    The nodes must be of one moment as long as this is consumed.
    """
    chunks = nodes.chunks_unless_spread(path)
    if chunks is not None:
        yield from _row(chunks)
        return
    steps = find_array(nodes.rows, encode_path(path))
    is_array = yield from empty_chunks(steps)
    yield from _array(nodes, path) if is_array else _object(nodes, path)


def _object(nodes: ReadsRows, path: Path) -> Iterator[bytes]:
    separator = b"{"
    for child in _in_canonical_order(nodes, path):
        if child is None:
            yield b""
            continue
        yield b"%b%b:" % (separator, compact(child.key))
        yield from _child(nodes, path, child)
        separator = b","
    yield b"}"


def etag_in_steps(nodes: ReadsRows, path: Path) -> Iterator[str | None]:
    """Compute the entity tag of a node, yielding None between steps and the tag at the end."""
    digest = sha256()
    for chunk in canonical_chunks(nodes, path):
        digest.update(chunk[:DIGESTED_AT_ONCE])
        yield None
        for at in range(DIGESTED_AT_ONCE, len(chunk), DIGESTED_AT_ONCE):
            digest.update(memoryview(chunk)[at : at + DIGESTED_AT_ONCE])
            yield None
    yield f'"{digest.hexdigest()}"'


def _child(nodes: ReadsRows, path: Path, child: Child) -> Iterator[bytes]:
    if child.is_spread:
        return canonical_chunks(nodes, (*path, child.key))
    return _row(child.chunks())


def _row(chunks: Iterator[bytes]) -> Iterator[bytes]:
    """Print what one row holds, from how it is printed; a leaf is the same in both forms."""
    text = next(chunks)
    if text[0] in CONTAINERS:
        return iter((canonicalise(parse_stored(b"".join((text, *chunks)))),))
    return chain((text,), chunks)


def _array(nodes: ReadsRows, path: Path) -> Iterator[bytes]:
    separator = b"["
    at = 0
    for child in nodes.children(path):
        for _ in range(at, int(child.key)):
            yield separator + NULL
            separator = b","
        yield separator
        yield from _child(nodes, path, child)
        separator = b","
        at = int(child.key) + 1
    yield b"]"


def _in_canonical_order(nodes: ReadsRows, path: Path) -> Iterator[Child | None]:
    """Iterate over the children in the order of the canonical form; None between steps."""
    keys = nodes.keys(path)
    previous = b""
    while batch := list(islice(keys, SORTED_AT_ONCE)):
        ranks = [previous, *map(_rank, batch)]
        if ranks != sorted(ranks):
            break
        previous = ranks[-1]
        yield None
    else:
        yield from nodes.children(path)
        return
    yield from _sorted_children(nodes, path)


def _sorted_children(nodes: ReadsRows, path: Path) -> Iterator[Child | None]:
    runs: list[list[str]] = []
    try:
        for key in _merged(nodes.keys(path), runs):
            yield None if key is None else Child(nodes, path, key, None)
    finally:
        free_beside(runs)


def _merged(keys: Iterator[str], runs: list[list[str]]) -> Iterator[str | None]:
    while batch := list(islice(keys, SORTED_AT_ONCE)):
        runs.append(sorted(batch, key=_rank))
        yield None
    yield from merge(*runs, key=_rank)
    while runs:
        runs.pop()
        yield None


def _rank(key: str) -> bytes:
    return key.encode("utf-16-be")
