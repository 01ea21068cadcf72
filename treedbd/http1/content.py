"""Content on its way to readers: one copy for all who read it, counted while they read, bounded.

Theory of operation. What a client has not read yet is kept: the rest of a response, the first value
of a stream, events. All of it is `Content`, which many readers share. Each has a `ContentReader`
with a position of its own; as long as one is open, `WaitingBytes` counts the content, once for all
readers. What would exceed the bound is refused when a reader is opened, before anything is sent.

One client address may use only a share of the bound, so clients that do not read leave room for
those that do. Content that is small is never refused: the number of connections bounds it.

A large read is a `Flow`, which is rendered at the speed of the disk, into memory and then into a
temporary file (`Storage`), while its readers send what has been rendered. Each `FlowReader` has a
position of its own; when it has read what has been rendered, it waits for more. When all is
rendered, the content is complete, and the readers continue in it. If rendering fails, the readers
must cut their connections off, so that no client mistakes a part for the whole. What waits in the
file is counted while it grows; an address that has no room for more loses this reader.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Callable, Iterable
from itertools import accumulate
from typing import IO, Final, Protocol, TypeAlias

from treedbd.counting import ByteCount
from treedbd.files import close_temporary
from treedbd.limits import KIB
from treedbd.loop import do_nothing

SMALL_BYTES: Final = 16 * KIB
"""Content up to this size is never refused, and need not be counted for one connection."""
SHARES: Final = 4
"""One client address may use one of this many equal parts of a bound."""
_FILE_PIECE_BYTES: Final = 128 * KIB

Buffer: TypeAlias = bytes | memoryview


class WaitingBytesRefused(Exception):
    """More bytes cannot wait for readers."""

    def __init__(self, message: str, waiting: WaitingBytes, size: int) -> None:
        """Say that `size` more bytes of those that `waiting` counts were refused."""
        super().__init__(message)
        self._waiting = waiting
        self._size = size

    def has_room(self, address: str) -> bool:
        """Return whether the bytes may wait for `address` by now."""
        return self._waiting.has_room(address, self._size)


class WaitingBytesExhausted(WaitingBytesRefused):
    """Too many bytes wait for the readers of the whole service."""


class TooManyWaitingBytes(WaitingBytesRefused):
    """Too many bytes wait for the readers of one address."""


class WaitingBytes(ByteCount):
    """How many bytes of one kind wait for readers: in memory, or in temporary files.

    In `total` bytes that several readers share are counted once.

    Attributes:
        refused: how often more were refused.

    """

    def __init__(self, limit: int) -> None:
        """At most `limit` bytes may wait; content that waits alone may be larger."""
        super().__init__()
        self.refused = 0
        self._limit = limit
        self._share = limit // SHARES

    def check(self, size: int, own: int = 0) -> None:
        """Raise `WaitingBytesExhausted` unless `size` more bytes may wait.

        `own` bytes of the same content are counted already.
        """
        if not self._fits(size, own):
            self.refused += 1
            raise WaitingBytesExhausted(
                "Too many responses wait for clients that read slowly; try again later.",
                self,
                own + size,
            )

    def check_address(self, address: str, size: int, own: int = 0) -> None:
        """Raise `TooManyWaitingBytes` unless `size` more bytes may wait for an address.

        An empty address is not known, and not bounded by itself. `own` bytes of the same content
        are counted already.
        """
        if not self._fits_share(address, size, own):
            self.refused += 1
            raise TooManyWaitingBytes(
                "Too many responses wait for your address; read them, then try again.",
                self,
                size,
            )

    def has_room(self, address: str, size: int) -> bool:
        """Return whether `size` more bytes may wait for an address."""
        return self._fits(size) and self._fits_share(address, size)

    def _fits(self, size: int, own: int = 0) -> bool:
        return self.total <= own or self.total + size <= self._limit

    def _fits_share(self, address: str, size: int, own: int = 0) -> bool:
        waiting = self.count_of(address)
        return waiting <= own or waiting + size <= self._share


class Content:
    """Bytes that readers share, in memory or in a file, which is closed after the last reader.

    Attributes:
        size: how many bytes there are.
        is_closed: whether it was in a file, which the last reader has closed.

    """

    __slots__ = (
        *("__weakref__", "_bytes", "_file", "_readers", "_waiting"),
        *("is_closed", "size"),
    )

    def __init__(self, waiting: WaitingBytes, source: bytes | IO[bytes]) -> None:
        """Take over `source`, a file as it is; count it by `waiting` while it has readers."""
        self._waiting = waiting
        self._readers: dict[str, int] = {}
        self.is_closed = False
        if isinstance(source, bytes):
            self._bytes, self._file = source, None
            self.size = len(source)
        else:
            source.flush()
            self._bytes, self._file = b"", source
            self.size = os.fstat(source.fileno()).st_size

    @property
    def is_in_file(self) -> bool:
        """Whether it is in a file."""
        return self._file is not None

    def open(self, address: str, *, may_refuse: bool = True) -> ContentReader:
        """Begin to read for a client at `address`, which is empty if it is not known.

        Raises `WaitingBytesRefused` if it may not wait for `address`, unless it is small or
        `may_refuse` is not set.
        """
        if address not in self._readers:
            if may_refuse and self.size > SMALL_BYTES:
                self._check(address)
            self._waiting.add_for(address, self.size)
        if not self._readers:
            self._waiting.add(self.size)
        self._readers[address] = self._readers.get(address, 0) + 1
        return ContentReader(self, address)

    def _check(self, address: str) -> None:
        if not self._readers:
            self._waiting.check(self.size)
        self._waiting.check_address(address, self.size)

    def read(self, at: int, size: int) -> Buffer:
        """Return at most `size` bytes from a position on, none at the end.

        Bytes in memory are not copied; of a file at most `_FILE_PIECE_BYTES` are returned.
        """
        if self._file is None:
            if not at and size >= self.size:
                return self._bytes
            return memoryview(self._bytes)[at : at + size]
        return os.pread(self._file.fileno(), min(size, _FILE_PIECE_BYTES), at)

    def whole(self) -> bytes:
        """Return all of it at once."""
        if self._file is None:
            return self._bytes
        return os.pread(self._file.fileno(), self.size, 0)

    def release(self, address: str) -> None:
        """Uncount a reader, which is closed."""
        self._readers[address] -= 1
        if self._readers[address]:
            return
        del self._readers[address]
        self._waiting.add_for(address, -self.size)
        if not self._readers:
            self._waiting.add(-self.size)
            if self._file is not None:
                self.is_closed = True
                close_temporary(self._file, self.size)


class JoinedContent(Content):
    """Content in memory, in parts that it may share with other content."""

    __slots__ = ("_ends", "_parts")

    def __init__(self, waiting: WaitingBytes, parts: Iterable[bytes]) -> None:
        """Join the parts; they are counted as other content is."""
        super().__init__(waiting, b"")
        self._parts = [part for part in parts if part]
        self._ends = list(accumulate(map(len, self._parts)))
        self.size = self._ends[-1] if self._ends else 0

    def read(self, at: int, size: int) -> Buffer:
        """Return bytes from a position on: at most `size`, no copy, none at the end."""
        number = bisect_right(self._ends, at)
        if number == len(self._ends):
            return b""
        part = self._parts[number]
        start = at - self._ends[number] + len(part)
        return memoryview(part)[start : start + size]

    def whole(self) -> bytes:
        """Return all of it at once."""
        return b"".join(self._parts)


class ContentReader:
    """One reader's position in shared content; open until `close`.

    Attributes:
        size: the bytes of the content.
        remaining: those that have not been read.

    """

    __slots__ = ("_address", "_content", "_then", "remaining", "size")

    def __init__(self, content: Content, address: str) -> None:
        """Read `content`, which counts this reader for `address`."""
        self.size = self.remaining = content.size
        self._content: Content | None = content
        self._address = address
        self._then: Callable[[], object] | None = None

    def when_closed(self, then: Callable[[], object]) -> None:
        """Call `then` when this reader is closed."""
        self._then = then

    def peek(self, size: int) -> Buffer:
        """Return at most `size` bytes without going on; none at the end or after `close`."""
        if self._content is None:
            return b""
        return self._content.read(self.size - self.remaining, size)

    def skip(self, size: int) -> None:
        """Go on by `size` bytes."""
        self.remaining -= size

    def read(self, size: int) -> Buffer:
        """Return at most `size` bytes and go on."""
        piece = self.peek(size)
        self.remaining -= len(piece)
        return piece

    def close(self) -> None:
        """Release the content; a second call does nothing."""
        content, self._content = self._content, None
        if content is None:
            return
        content.release(self._address)
        then, self._then = self._then, None
        if then is not None:
            then()


class FrameReader(Protocol):
    """Reads one part of a frame (`ContentReader`); `web` has other readers."""

    @property
    def remaining(self) -> int:
        """Whether there is more to read."""

    def read(self, size: int) -> Buffer:
        """Return at most `size` bytes and go on."""

    def close(self) -> None:
        """Stop reading."""


class Storage(Protocol):
    """Stores growing content.

    One class implements it, `web/reading.RenderingWriter`: this package does not know `web`.
    """

    @property
    def size(self) -> int:
        """How many bytes there are."""

    def read(self, at: int, size: int) -> Buffer:
        """Return at most `size` bytes from a position on, none at the end."""


class Flow:
    """Content that grows while it is read.

    Attributes:
        source: renders it.
        storage: stores it.

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
        """Whether it has readers."""
        return bool(self._readers)

    def open(self, address: str) -> FlowReader:
        """Begin to read for a client at `address`; raise `TooManyWaitingBytes` without room."""
        self._waiting.check_address(address, max(1, self.storage.size))
        reader = FlowReader(self, address)
        self._readers.add(reader)
        self._count(reader)
        return reader

    def grow(self) -> None:
        """Notify the readers that there is more."""
        for reader in list(self._readers):
            try:
                self._count(reader)
            except WaitingBytesRefused:
                reader.fail()
            else:
                reader.wake()

    def complete(self, content: Content) -> None:
        """Make the readers continue in `content`, which is all of it."""
        for reader in list(self._readers):
            self._forget(reader)
            reader.go_on_in(content.open(reader.address, may_refuse=False))

    def fail(self) -> None:
        """Notify the readers that the rest cannot be made."""
        for reader in list(self._readers):
            reader.fail()

    def leave(self, reader: FlowReader) -> None:
        """Uncount a reader, which is closed."""
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
        address: that of the reading client.
        counted: bytes that wait for it, as `Flow` counts them.
        has_failed: whether the rest cannot be made.
        on_more: is called when there is more, or at an end of either kind.

    """

    def __init__(
        self, flow: Flow | None, address: str, content: ContentReader | None = None
    ) -> None:
        """Read `flow`, or `content` that is complete."""
        self.address = address
        self.counted = 0
        self.has_failed = False
        self.on_more: Callable[[], None] = do_nothing
        self._flow = flow
        self._content = content
        self._at = 0

    @property
    def is_at_end(self) -> bool:
        """Whether all was read."""
        return self._content is not None and not self._content.remaining

    def read(self, size: int) -> Buffer:
        """Return at most `size` bytes and go on; none if there is nothing at present."""
        if self._content is not None:
            return self._content.read(size)
        if self._flow is None:
            return b""
        piece = self._flow.storage.read(self._at, size)
        self._at += len(piece)
        return piece

    def go_on_in(self, content: ContentReader) -> None:
        """Continue in content that is complete."""
        content.skip(self._at)
        self._flow, self._content = None, content
        self.wake()

    def fail(self) -> None:
        """End: the rest cannot be made."""
        self.has_failed = True
        self._leave()
        self.wake()

    def wake(self) -> None:
        """Notify the reader that there may be more."""
        self.on_more()

    def close(self) -> None:
        """Stop reading; a second call does nothing."""
        self.on_more = do_nothing
        self._leave()
        if self._content is not None:
            self._content.close()

    def _leave(self) -> None:
        flow, self._flow = self._flow, None
        if flow is not None:
            flow.leave(self)
