"""Hashes of values: the entity tags of HTTP, and the hashes of the real-time protocol.

An entity tag is over the canonical form of JSON, that of RFC 8785 (JCS). It is the SHA-256 of it in
lower-case hexadecimal, in double quotes. The JSON is that of a plain GET, with numbers as the tree
stores them. Here are also the tags that a condition lists.

A data hash is how clients of the real-time protocol say which value of a node they hold. It is the
base64 of a SHA-1 over a text. That of a leaf is its type and value, a number as the 16 hexadecimal
digits of its double; of a container `:<key>:<hash>` for each child, in the order of their
priorities and then of their keys; in front of both the priority of the node, if it has one. Nothing
hashes to the empty string. Here strings compare by their UTF-16 units, as clients compare them;
beyond U+FFFF that is another order than the one of the tree. Source: `realtime-protocol.md`,
section 3.
"""

from __future__ import annotations

import re
import struct
from base64 import b64encode
from collections.abc import Callable, Iterable, Iterator
from hashlib import sha1, sha256
from heapq import merge
from itertools import chain, islice
from typing import Final, NamedTuple, TypeAlias

import attrs

from treedbd.loop import free_beside, pause
from treedbd.tree.path import rank_key
from treedbd.tree.types import Json, Leaf, Priority, Value
from treedbd.tree.value import (
    TEXT_AT_ONCE,
    compact,
    compact_sorted,
    container_of,
    leaf_of,
    members,
    priority_of,
)

_BEYOND_16_BITS = re.compile(rb"[\xf0-\xf4]")
_ABOVE_SURROGATES = re.compile(rb"[\xee\xef]")
_LISTED = re.compile(r'(?:[^,"]|"[^"]*"?)+')
_ETAG = re.compile(r'(?:W/)?(?:"([^"]*)"|([^\s"]+))')


def canonicalise(json: Json) -> bytes:
    """Return the canonical form of JSON (RFC 8785); integers print all their digits."""
    # JCS orders members by UTF-16 code units, orjson by UTF-8 bytes, which is the order of code
    # points. They differ only where a character beyond U+FFFF (a surrogate pair in UTF-16, from
    # U+D800 on) meets one of U+E000 to U+FFFF. In UTF-8 the first kind begins with the bytes F0 to
    # F4, the second with EE or EF, and no other character holds these. So if the text that orjson
    # sorted lacks either, its order is the canonical one.
    text = compact_sorted(json)
    if text.isascii() or not (_BEYOND_16_BITS.search(text) and _ABOVE_SURROGATES.search(text)):
        return text
    return compact(_sort_by_utf16(json))


def etag(json: Json) -> str:
    """Return the entity tag of JSON, with its quotes."""
    return etag_of_canonical(canonicalise(json))


def etag_of_canonical(canonical: bytes) -> str:
    """Return the entity tag of JSON in its canonical form."""
    return f'"{sha256(canonical).hexdigest()}"'


NULL_ETAG: Final = etag(None)
"""The tag of nothing."""


@attrs.frozen
class ETagSet:
    """The tags of a condition, without their quotes; `is_any` if `*` is among them."""

    is_any: bool
    opaque: frozenset[str]

    def matches(self, tag: str, exists: bool) -> bool:
        """Return whether the set holds `tag`, or holds `*` and the value `exists`."""
        return (self.is_any and exists) or tag.strip('"') in self.opaque


def parse_etags(header: str) -> ETagSet:
    """Parse an `If-Match` or `If-None-Match` header: `*`, or tags with or without quotes.

    A tag marked `W/` counts as the tag itself, in `If-Match` too, although RFC 9110 (section
    13.1.1) compares strongly there: a tag is that of the value and not of its bytes, and a proxy
    that compresses responses weakens the tags in them. Never raises: text that is not a tag matches
    nothing.
    """
    listed = list(_listed_tags(header))
    opaque = frozenset(quoted or bare for quoted, bare in listed if bare != "*")
    return ETagSet(any(bare == "*" for _, bare in listed), opaque)


def has_bare_tag(header: str) -> bool:
    """Return whether one of the tags in a condition is without quotes; `*` is not a tag."""
    return any(bare not in ("", "*") for _, bare in _listed_tags(header))


def _listed_tags(header: str) -> Iterator[tuple[str, str]]:
    """Yield what is listed: the tag in quotes, or the one without; the other of both is empty."""
    for listed in _LISTED.findall(header):
        found = _ETAG.fullmatch(listed.strip())
        if found is not None:
            yield found[1] or "", found[2] or ""


def _sort_by_utf16(json: Json) -> Json:
    if isinstance(json, dict):
        keys = sorted(json, key=_utf_16)
        return {key: _sort_by_utf16(json[key]) for key in keys}
    if isinstance(json, list):
        return [_sort_by_utf16(item) for item in json]
    return json


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
