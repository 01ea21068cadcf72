"""What a client missed, on its way to it: printed some events at a time, once for all of them."""

from __future__ import annotations

from collections.abc import Iterator

from treedbd.database.watchers import Notification
from treedbd.web.content import Buffer, Content, ContentReader, WaitingBytes
from treedbd.web.sse.frames import print_in_pieces


class MissedReader:
    """Reads the frames of a notification, as a `ContentReader` reads content.

    Attributes:
        remaining: whether there is more to read.

    """

    __slots__ = ("_address", "_memory", "_pieces", "_reader", "remaining")

    def __init__(self, missed: Notification, memory: WaitingBytes, address: str) -> None:
        """Read for a client at `address`; `memory` counts the piece that is being read."""
        self.remaining = True
        self._pieces: Iterator[bytes] = print_in_pieces(missed)
        self._memory = memory
        self._address = address
        self._reader: ContentReader | None = None

    def read(self, size: int) -> Buffer:
        """Return at most `size` bytes and go on; none at the end."""
        if self._reader is None:
            piece = next(self._pieces, None)
            if piece is None:
                self.remaining = False
                return b""
            self._reader = Content(self._memory, piece).open(self._address, may_refuse=False)
        data = self._reader.read(size)
        if not self._reader.remaining:
            self._drop()
        return data

    def close(self) -> None:
        """Read no more."""
        self.remaining = False
        self._drop()

    def _drop(self) -> None:
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.close()
