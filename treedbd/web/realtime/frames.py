"""Messages as text frames of a WebSocket (RFC 6455, section 5), long ones in pieces.

A message of more than `PIECE_BYTES` is cut into pieces, each a frame of its own, after one frame
that holds their number in digits. A piece ends at the end of a character. Where the pieces end
depends on nothing but the message, so their number is known before the message is read: they end at
the multiples of `_CUT_BYTES`, or up to three bytes before.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Final

from websockets.frames import Frame, Opcode

from treedbd.http1.content import Buffer, Content, JoinedContent, WaitingBytes
from treedbd.tree.types import Chunks
from treedbd.web.queues import FrameReader

PIECE_BYTES: Final = 16_384
_CUT_BYTES: Final = PIECE_BYTES - 3


class UnframedMessage(JoinedContent):
    """A message of more than a piece, which is framed as each of its readers reads it."""

    __slots__ = ()


def contents_of(messages: Iterable[Chunks], waiting: WaitingBytes) -> list[Content]:
    """Return messages as content, in their order: short ones together, in frames."""
    contents: list[Content] = []
    frames: list[bytes] = []
    for message in messages:
        if sum(map(len, message)) <= PIECE_BYTES:
            frames.append(text_frame(b"".join(message)))
            continue
        if frames:
            contents.append(Content(waiting, b"".join(frames)))
            frames = []
        contents.append(UnframedMessage(waiting, message))
    if frames:
        contents.append(Content(waiting, b"".join(frames)))
    return contents


def text_frame(text: bytes) -> bytes:
    """Return one text frame."""
    return Frame(Opcode.TEXT, text).serialize(mask=False)


def frame_message(message: bytes) -> bytes:
    """Return the frames of a message."""
    if len(message) <= PIECE_BYTES:
        return text_frame(message)
    reader = FramingReader([BytesReader(message)], len(message))
    frames = []
    while reader.remaining:
        frames.append(reader.read(len(message)))
    return b"".join(frames)


class BytesReader:
    """Reads bytes (a `FrameReader`)."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    @property
    def remaining(self) -> int:
        """How many are left."""
        return len(self._data) - self._at

    def read(self, size: int) -> Buffer:
        """Return at most `size` bytes and go on."""
        piece = memoryview(self._data)[self._at : self._at + size]
        self._at += len(piece)
        return piece

    def close(self) -> None:
        """Read no more."""
        self._at = len(self._data)


class FramingReader:
    """Reads a message as its frames; a `FrameReader` over the readers of its parts.

    Attributes:
        remaining: whether there is more to read.

    """

    __slots__ = ("_carried", "_frames", "_parts", "_pieces", "remaining")

    def __init__(self, parts: Iterable[FrameReader], size: int) -> None:
        """Read the parts of a message of `size` bytes in all, which is not empty."""
        self._parts = deque(parts)
        self._carried = b""
        self._frames = b""
        self._pieces = 1
        if size > PIECE_BYTES:
            self._pieces = -(-size // _CUT_BYTES)
            self._frames = text_frame(b"%d" % self._pieces)
        self.remaining = 1

    def read(self, size: int) -> Buffer:
        """Return at most `size` bytes and go on."""
        gathered = [self._frames]
        length = len(self._frames)
        while length < size and self._pieces:
            frame = self._next_frame()
            gathered.append(frame)
            length += len(frame)
        frames = b"".join(gathered)
        self._frames = frames[size:]
        self.remaining = int(bool(self._frames or self._pieces))
        return frames[:size]

    def close(self) -> None:
        """Read no more."""
        self.remaining = self._pieces = 0
        while self._parts:
            self._parts.popleft().close()

    def _next_frame(self) -> bytes:
        self._pieces -= 1
        piece = self._carried + self._read_exactly(_CUT_BYTES if self._pieces else PIECE_BYTES)
        self._carried = b""
        if self._pieces:
            end = len(piece) - _unfinished_bytes(piece)
            piece, self._carried = piece[:end], piece[end:]
        return text_frame(piece)

    def _read_exactly(self, size: int) -> bytes:
        gathered = []
        while size and self._parts:
            part = self._parts[0]
            piece = bytes(part.read(size))
            gathered.append(piece)
            size -= len(piece)
            if not part.remaining:
                self._parts.popleft().close()
        return b"".join(gathered)


def _unfinished_bytes(text: bytes) -> int:
    """Return how many bytes at the end of UTF-8 belong to a character that is not complete."""
    for back in range(1, 4):
        byte = text[-back]
        if byte & 0xC0 != 0x80:  # the first of its character
            length = 1 if byte < 0x80 else 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return back if length > back else 0
    return 0
