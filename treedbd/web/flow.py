"""Content that flows: its readers send what is made already, while the rest is being made.

Theory of operation. A large read is rendered at the speed of the disk, into memory and then into a
temporary file (`Storage`). Each reader has a position of its own in it and sends what is there; at
the end of what is there it waits until there is more. When all is made, the content is complete,
and its readers go on in it. If the work fails in the middle, the readers must cut their connections
off, so that no client takes a part for the whole.

What waits in the file is counted while it grows; an address that has no room left for more loses
this reader.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from treedbd.web.content import Buffer, Content, ContentReader, WaitingBytes, WaitingBytesRefused


class Storage(Protocol):
    """Where growing content is kept."""

    @property
    def size(self) -> int:
        """How many bytes there are."""

    def read(self, at: int, size: int) -> Buffer:
        """Return bytes from a position on, at most `size` and none at the end."""


class Flow:
    """Content that grows.

    Attributes:
        source: what renders it.
        storage: where it is kept.

    """

    def __init__(
        self,
        source: object,
        storage: Storage,
        waiting: WaitingBytes,
        on_left: Callable[[], None],
    ) -> None:
        """Count what readers wait for by `waiting`; `on_left` is called when a reader has left."""
        self.source = source
        self.storage = storage
        self._waiting = waiting
        self._on_left = on_left
        self._readers: set[FlowReader] = set()

    @property
    def has_readers(self) -> bool:
        """Whether anybody reads it."""
        return bool(self._readers)

    def open(self, address: str) -> FlowReader:
        """Begin to read for a client at `address`; raise `TooManyWaitingBytes` without room."""
        self._waiting.check_address(address, max(1, self.storage.size))
        reader = FlowReader(self, address)
        self._readers.add(reader)
        self._count(reader)
        return reader

    def grow(self) -> None:
        """Let the readers know that there is more."""
        for reader in list(self._readers):
            try:
                self._count(reader)
            except WaitingBytesRefused:
                reader.fail()
            else:
                reader.wake()

    def complete(self, content: Content) -> None:
        """Let the readers go on in `content`, which is all of it."""
        for reader in list(self._readers):
            self._forget(reader)
            reader.go_on_in(content.open(reader.address, may_refuse=False))

    def fail(self) -> None:
        """Let the readers know that the rest will never be there."""
        for reader in list(self._readers):
            reader.fail()

    def leave(self, reader: FlowReader) -> None:
        """Count a reader no longer."""
        if reader in self._readers:
            self._forget(reader)
            self._on_left()

    def _count(self, reader: FlowReader) -> None:
        more = self.storage.size - reader.counted
        self._waiting.check_address(reader.address, more, reader.counted)
        self._waiting.add_for(reader.address, more)
        reader.counted += more

    def _forget(self, reader: FlowReader) -> None:
        self._readers.discard(reader)
        self._waiting.add_for(reader.address, -reader.counted)
        reader.counted = 0


class FlowReader:
    """One reader's position in content that grows, or that is complete.

    Attributes:
        address: of the client that reads.
        counted: bytes that wait for it, as `Flow` counts them.
        has_failed: whether the rest will never be there.
        on_more: is called when there is more, or an end of either kind.

    """

    def __init__(
        self, flow: Flow | None, address: str, content: ContentReader | None = None
    ) -> None:
        """Read `flow`, or `content` that is complete."""
        self.address = address
        self.counted = 0
        self.has_failed = False
        self.on_more: Callable[[], None] = _do_nothing
        self._flow = flow
        self._content = content
        self._at = 0

    @property
    def is_at_end(self) -> bool:
        """Whether all was read."""
        return self._content is not None and not self._content.remaining

    def read(self, size: int) -> Buffer:
        """Return at most `size` bytes and go on; none if there are no more at present."""
        if self._content is not None:
            return self._content.read(size)
        if self._flow is None:
            return b""
        piece = self._flow.storage.read(self._at, size)
        self._at += len(piece)
        return piece

    def go_on_in(self, content: ContentReader) -> None:
        """Go on in what is complete."""
        content.skip(self._at)
        self._flow, self._content = None, content
        self.wake()

    def fail(self) -> None:
        """End, since the rest will never be there."""
        self.has_failed = True
        self._leave()
        self.wake()

    def wake(self) -> None:
        """Let the reader look again."""
        self.on_more()

    def close(self) -> None:
        """Read no longer; a second call does nothing."""
        self.on_more = _do_nothing
        self._leave()
        if self._content is not None:
            self._content.close()

    def _leave(self) -> None:
        flow, self._flow = self._flow, None
        if flow is not None:
            flow.leave(self)


def _do_nothing() -> None:
    pass
