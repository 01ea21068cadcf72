"""Paths and keys: their one syntax, checked once when they are parsed.

Code that receives a `Path` made here may rely on it: every key is legal, and there are at most
`MAX_DEPTH` of them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from treedbd.limits import MAX_DEPTH, MAX_KEY_BYTES
from treedbd.tree.errors import InvalidKey, InvalidPath
from treedbd.tree.types import PRIORITY, Path, Place

_MAX_CHARACTER_BYTES = 4
_SURELY_SHORT = MAX_KEY_BYTES // _MAX_CHARACTER_BYTES
_ILLEGAL = re.compile(r"[.#$\[\]/\x00-\x1f\x7f]")


def check_key(key: str) -> str:
    """Return `key` if a child can have it, else raise `InvalidPath`."""
    if not key:
        raise InvalidPath("A key must not be empty.")
    if _ILLEGAL.search(key):
        raise InvalidKey(
            key, "is not allowed: keys must not contain . # $ [ ] / or control characters"
        )
    if len(key) > _SURELY_SHORT and len(key.encode()) > MAX_KEY_BYTES:
        raise InvalidKey(key, f"is longer than {MAX_KEY_BYTES} bytes of UTF-8")
    return key


def check_keys(keys: Sequence[str]) -> None:
    """Raise `InvalidPath` for the first of many keys that no child can have."""
    # One search over all keys is several times faster than one search for each.
    longest = max(map(len, keys), default=0)
    if longest > _SURELY_SHORT or not all(keys) or _ILLEGAL.search("".join(keys)):
        for key in keys:
            check_key(key)


def check_depth(path: Path) -> Path:
    """Return `path` if it has at most `MAX_DEPTH` keys, else raise `InvalidPath`."""
    if len(path) > MAX_DEPTH:
        raise InvalidPath(f"The path is deeper than {MAX_DEPTH} keys.")
    return path


def make_place(keys: Sequence[str]) -> Place:
    """Return the place that keys from the root name; a last key `.priority` names a priority.

    Raises `InvalidPath`.
    """
    is_priority = bool(keys) and keys[-1] == PRIORITY
    if is_priority:
        keys = keys[:-1]
    return Place(check_depth(tuple([check_key(key) for key in keys])), is_priority)


def parse_relative(text: str) -> Place:
    """Parse a slash path as PATCH keys carry it, with or without a leading slash.

    Raises `InvalidPath`.
    """
    place = make_place([segment for segment in text.split("/") if segment])
    if not place.path and not place.is_priority:
        raise InvalidPath("A key must not be empty.")
    return place


def parse_child(text: str) -> Path:
    """Parse a slash path that names a node below another, such as `a/b`; raise `InvalidPath`.

    It is not empty and names no priority.
    """
    place = parse_relative(text)
    if place.is_priority:
        raise InvalidPath(f"{PRIORITY} is not a child.")
    return place.path


def is_at_or_above(upper: Path, lower: Path) -> bool:
    """Return whether `upper` is `lower` or is above it."""
    return lower[: len(upper)] == upper


def format_path(path: Path) -> str:
    """Return a path as events show it: `/` for the root, else `/a/b`."""
    return "/" + "/".join(path)
