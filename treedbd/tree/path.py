"""Paths and keys: their one syntax, parsed once at the door.

A path is a tuple of keys from the root of a database; the root is the empty tuple. A `Place` is
what an address can name: a node, or the priority of a node. Whoever holds a `Path` made here may
trust it: every key is legal and there are at most `MAX_DEPTH` of them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

from treedbd.tree.escape import BadEscape, decode_escaped, unescape

Path: TypeAlias = tuple[str, ...]

ROOT: Path = ()
MAX_DEPTH = 32
MAX_KEY_BYTES = 768
PRIORITY = ".priority"
VALUE = ".value"
"""Where a leaf stands that has a priority beside it."""
SUFFIX = ".json"

_SURELY_SHORT = MAX_KEY_BYTES // 4
_ILLEGAL = re.compile(r"[.#$\[\]/\x00-\x1f\x7f]")


class InvalidPath(ValueError):
    """An address that no node can have; the message is a sentence for the caller."""


class MissingSuffix(LookupError):
    """An address without `.json` at its end: it names nothing."""


class Place(NamedTuple):
    """What an address names: the node at `path`, or its priority."""

    path: Path
    of_priority: bool = False


def check_key(key: str) -> str:
    """Return `key` if a child may be called so, else raise `InvalidPath` that says why not."""
    if not key:
        raise InvalidPath("A key must not be empty.")
    if _ILLEGAL.search(key):
        raise InvalidPath(
            f"The key {_shown(key)} is not allowed: keys hold none of . # $ [ ] / and no control "
            "characters."
        )
    if len(key) > _SURELY_SHORT and len(key.encode()) > MAX_KEY_BYTES:
        raise InvalidPath(f"The key {_shown(key)} is longer than {MAX_KEY_BYTES} bytes of UTF-8.")
    return key


def check_keys(keys: Sequence[str]) -> None:
    """Raise `InvalidPath` for the first of many keys that no child may be called."""
    longest = max(map(len, keys), default=0)
    if longest > _SURELY_SHORT or not all(keys) or _ILLEGAL.search("".join(keys)):
        for key in keys:
            check_key(key)


def check_depth(path: Path) -> Path:
    """Return `path` if it has at most `MAX_DEPTH` keys, else raise `InvalidPath`."""
    if len(path) > MAX_DEPTH:
        raise InvalidPath(f"The path is deeper than {MAX_DEPTH} keys.")
    return path


def decode_segment(raw: bytes) -> str:
    """Percent-decode one segment of an address; raise `InvalidPath` for a broken escape."""
    try:
        return decode_escaped(raw)
    except BadEscape as error:
        raise InvalidPath(f"The path {error}") from None


def parse_address(segments: list[bytes]) -> Place:
    """Parse the raw segments of an address, split at `/` before decoding: `[b"a", b"b.json"]`.

    Empty segments collapse. Raises `MissingSuffix` where `.json` is missing at the end, whatever
    stands there instead, and `InvalidPath` for anything no node can be called.
    """
    named = [segment for segment in segments if segment]
    if not named or not unescape(named[-1]).endswith(SUFFIX.encode()):
        raise MissingSuffix("Append .json to the path to address data: /a/b.json.")
    decoded = [decode_segment(segment) for segment in named]
    decoded[-1] = decoded[-1][: -len(SUFFIX)]
    return _place([segment for segment in decoded if segment])


def parse_relative(text: str) -> Place:
    """Parse a slash path as PATCH keys carry it, with or without a leading slash."""
    place = _place([segment for segment in text.split("/") if segment])
    if not place.path and not place.of_priority:
        raise InvalidPath("A key must not be empty.")
    return place


def parse_child(text: str) -> Path:
    """Parse a slash path that names a node below another: `a/b`; not empty, no priority."""
    place = parse_relative(text)
    if place.of_priority:
        raise InvalidPath(f"{PRIORITY} is not a child.")
    return place.path


def is_ancestor(upper: Path, lower: Path) -> bool:
    """Tell whether `upper` is `lower` or lies above it."""
    return lower[: len(upper)] == upper


def format_path(path: Path) -> str:
    """Print a path as events show it: `/` for the root, else `/a/b`."""
    return "/" + "/".join(path)


def _place(keys: list[str]) -> Place:
    of_priority = bool(keys) and keys[-1] == PRIORITY
    if of_priority:
        keys = keys[:-1]
    return Place(check_depth(tuple(check_key(key) for key in keys)), of_priority)


def _shown(key: str) -> str:
    return repr(key if len(key) <= 64 else key[:64] + "…")
