"""The types of the tree: paths, places, values, changes and views; and its errors.

Everything else in this package, and all above it, uses these types. A `View` is what can
be read of a tree without knowing how it is stored: edits, rules and events read one. The store
implements it on its rows; `tree.overlay` and `rules.context` implement it on top of another view.

The errors are what can be wrong with paths, data and queries that clients send. The text of each
is a sentence for the client.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, NamedTuple, Protocol, TypeAlias

import attrs

_SHOWN_CHARACTERS = 64


class InvalidPath(ValueError):
    """A path that no node can have."""


class InvalidKey(InvalidPath):
    """A key that no child can have."""

    def __init__(self, key: str, problem: str) -> None:
        """`problem` says what is wrong with `key`, from the verb on and without a full stop."""
        shown = key if len(key) <= _SHOWN_CHARACTERS else key[:_SHOWN_CHARACTERS] + "…"
        super().__init__(f"The key {shown!r} {problem}.")
        self.key = key
        self.problem = problem


class InvalidData(ValueError):
    """A body that cannot be written."""


class InvalidQuery(ValueError):
    """Query parameters that cannot be answered."""


class QueryTooLarge(InvalidQuery):
    """A query that was found to read or keep more than one request may."""


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


@attrs.define  # not frozen: it is made for each member of a PATCH
class Change:
    """One place gets one value: a subtree in normal form (None removes it), or a priority."""

    place: Place
    value: Value


Charge: TypeAlias = Callable[[int], None]
"""Is called with the bytes that a read is about to cost; what it raises prevents the read."""


def free(_: int) -> None:
    """Charge nothing."""


class View(Protocol):
    """A tree at one moment; a path that holds nothing reads as None, never as an error."""

    def get(self, path: Path) -> Value:
        """Return the whole subtree at `path` with its priorities."""
        ...

    def peek(self, path: Path, charge: Charge = free) -> Leaf | Container | None:
        """Return the leaf at `path`, `CONTAINER` if it has children, None if nothing is there.

        The cost is that of the node itself, however much is below it: the stored bytes that have to
        be parsed.
        """
        ...

    def type_at(self, path: Path, charge: Charge = free) -> type[Leaf] | type[Container] | None:
        """Return the type of what `peek` returns; a large leaf is not parsed for it."""
        ...

    def size(self, path: Path, limit: int) -> int:
        """Return the approximate number of bytes of the subtree at `path`, as it is stored.

        Counting, and reading, may stop beyond `limit`.
        """
        ...

    def priority(self, path: Path, charge: Charge = free) -> Priority | None:
        """Return the priority of the node at `path`."""
        ...

    def keys(self, path: Path) -> Iterator[str]:
        """Iterate over the keys of the children of `path` in key order."""
        ...
