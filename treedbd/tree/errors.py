"""What can be wrong with paths, data and queries that clients send.

The text of each is a sentence for the client.
"""

from __future__ import annotations

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
    """A query that would read or keep more than one request may, as it turned out."""
