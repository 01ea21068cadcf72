"""What a client missed, on its way to it: printed some events at a time, once for all of them.

Until they have been read the events are kept in memory, and count as what waits for readers.
"""

from __future__ import annotations

from collections.abc import Iterator

from treedbd.database.resume import MissedNotification
from treedbd.http1.content import Buffer, Content, ContentReader, WaitingBytes
from treedbd.web.sse.frames import print_in_pieces


class _HeldEvents(Content):
    """The events of a notification that are kept for their readers: counted as content is."""

    __slots__ = ()

    def __init__(self, memory: WaitingBytes, size: int) -> None:
        super().__init__(memory, b"")
        self.size = size


def hold_missed(missed: MissedNotification, memory: WaitingBytes, address: str) -> ContentReader:
    """Count what was missed by a client at `address`, once for all of them, until it is closed.

    Raises `WaitingBytesRefused`.
    """
    size = missed.memory_bytes
    held: Content | None = missed.shared.get((_HeldEvents, size))
    if held is None:
        held = missed.shared[_HeldEvents, size] = _HeldEvents(memory, size)
    return held.open(address)


class MissedReader:
    """Reads the frames of a notification, as a `ContentReader` reads content.

    Attributes:
        remaining: whether there is more to read.

    """

    __slots__ = ("_held", "_piece", "_pieces", "remaining")

    def __init__(self, missed: MissedNotification, memory: WaitingBytes, address: str) -> None:
        """Read for a client at `address`; `memory` counts what is kept, printed too.

        Raises `WaitingBytesRefused`.
        """
        self.remaining = True
        self._held = hold_missed(missed, memory, address)
        self._pieces: Iterator[bytes] = print_in_pieces(missed)
        self._piece = memoryview(b"")

    def read(self, size: int) -> Buffer:
        """Return at most `size` bytes and go on; none at the end."""
        if not self._piece:
            piece = next(self._pieces, None)
            if piece is None:
                self.remaining = False
                return b""
            self._piece = memoryview(piece)
        data, self._piece = self._piece[:size], self._piece[size:]
        return data

    def close(self) -> None:
        """Read no more."""
        self.remaining = False
        self._piece = memoryview(b"")
        self._pieces = iter(())
        self._held.close()
