"""The vocabulary of the tree: paths, JSON and values as types, and the constants that name them.

Everything else in this package, and all above it, is written in these words.
"""

from __future__ import annotations

from typing import Final, NamedTuple, TypeAlias

import attrs

Path: TypeAlias = tuple[str, ...]
"""Keys from the root of a database; the root is the empty tuple. `tree.path` checks them."""

Leaf: TypeAlias = str | int | float | bool
Priority: TypeAlias = int | float | str
Json: TypeAlias = "Leaf | list[Json] | dict[str, Json] | None"
"""What a JSON parser returns and a JSON printer accepts."""
Chunks: TypeAlias = tuple[bytes, ...]
"""JSON that was printed and may be long: it is not joined."""
Value: TypeAlias = "Leaf | dict[str, Value] | None"
"""A node and everything below it, in the one normal form that `tree.value` describes."""

ROOT: Final[Path] = ()
STORED: Final[Value] = {}
"""As the value of a change: what was written is in the store already, and was not read.

It is never a value by itself, since in normal form no container is empty.
"""
PRIORITY: Final = ".priority"
"""The member that holds the priority of a node."""
VALUE: Final = ".value"
"""The member that holds the value of a leaf which also has a priority."""


class Container:
    """The type of `CONTAINER`, which represents a node that has children, whatever they are."""

    def __repr__(self) -> str:
        return "CONTAINER"


CONTAINER: Final = Container()


class Place(NamedTuple):
    """What an address names: the node at `path`, or its priority."""

    path: Path
    is_priority: bool = False


@attrs.frozen
class Change:
    """One place gets one value: a subtree in normal form (None removes it), or a priority."""

    place: Place
    value: Value
