"""A count of bytes that many connections share."""

from __future__ import annotations


class Tally:
    """How many `bytes` were sent past the writers of the connections, which count their own."""

    __slots__ = ("bytes",)

    def __init__(self) -> None:
        self.bytes = 0
