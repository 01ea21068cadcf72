"""Shapes: sets of paths of one depth. Each level is one key, or any key but some.

The paths to which a node of the rules applies are such a set: a capture applies to the keys that
have no rules of their own beside it. Shapes are kept in files and compared there with later ones,
so they hold short hashes of the keys. Two keys with the same hash count as one.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterable
from hashlib import blake2b
from typing import Final, TypeAlias

from treedbd.tree.types import Json, Path

_HASH_BYTES: Final = 6

Level: TypeAlias = str | frozenset[str]
"""The hash of the one key, or those of the keys that are left out."""
Shape: TypeAlias = tuple[Level, ...]


def hash_key(key: str) -> str:
    """Return a short hash of a key."""
    return b64encode(blake2b(key.encode(), digest_size=_HASH_BYTES).digest()).decode()


def all_but(keys: Iterable[str]) -> Level:
    """Return the level that is any key but some."""
    return frozenset(map(hash_key, keys))


def holds(shape: Shape, path: Path) -> bool:
    """Return whether a path is one of a shape."""
    if len(shape) != len(path):
        return False
    for level, key in zip(shape, map(hash_key, path), strict=True):
        if key != level if isinstance(level, str) else key in level:
            return False
    return True


def meet(one: Shape, other: Shape) -> Shape | None:
    """Return the shape of the paths that are in both, None if there are none."""
    if len(one) != len(other):
        return None
    common: list[Level] = []
    for ours, theirs in zip(one, other, strict=True):
        level = _meet_levels(ours, theirs)
        if level is None:
            return None
        common.append(level)
    return tuple(common)


def _meet_levels(one: Level, other: Level) -> Level | None:
    if isinstance(one, str):
        is_common = one == other if isinstance(other, str) else one not in other
        return one if is_common else None
    if isinstance(other, str):
        return None if other in one else other
    return one | other


def count_hashes(shape: Shape) -> int:
    """Return how many hashes a shape holds."""
    return sum(1 if isinstance(level, str) else len(level) for level in shape)


def shape_json(shape: Shape) -> Json:
    """Return the JSON of a shape, which `parse_shape` reads."""
    return [level if isinstance(level, str) else [*sorted(level)] for level in shape]


def parse_shape(json: Json) -> Shape:
    """Read the JSON of a shape; raise `ValueError`."""
    if not isinstance(json, list):
        raise ValueError("A shape is a list of levels.")
    return tuple(map(_parse_level, json))


def _parse_level(json: Json) -> Level:
    if isinstance(json, str):
        return json
    if not isinstance(json, list):
        raise ValueError("A level of a shape is a hash or a list of them.")
    return frozenset(map(str, json))
