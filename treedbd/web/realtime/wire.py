"""The bytes of a WebSocket: frames (RFC 6455, section 5), and the pieces of long messages.

*From a client.* The library parses a frame when all of it has arrived, and unmasks and checks it in
one step. So `FrameCutter` cuts a long data frame into fragments, as the client might have
done (section 5.4): they have the same bytes, the same mask, and together the same meaning.
Everything else is handed on unchanged, also what is not valid: the parser refuses it. A client cuts
a long message into pieces, and sends their number in digits before them; the frame `0` is its
keep-alive. `PieceJoiner` joins the pieces, whose frames may be fragmented, too. A long message is
not joined but kept in parts. Of one that is too long only the ends are kept, by which its request
can be answered.

*To a client.* A message is one text frame; one of more than `PIECE_BYTES` is cut into pieces, each
a frame of its own, after one frame that holds their number in digits. A piece ends at the end of a
character. Where the pieces end depends on nothing but the message, so their number is known before
the message is read: they end at the multiples of `_CUT_BYTES`, or up to three bytes before.
`FramingReader` frames a message as it is read, from readers of its parts.
"""

from __future__ import annotations

import re
import struct
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Final, TypeAlias

import attrs
from websockets.frames import Opcode

from treedbd.http1.content import Buffer, Content, FrameReader, JoinedContent, WaitingBytes
from treedbd.limits import KIB
from treedbd.tree.types import Chunks

WEBSOCKET_VERSION: Final = "13"


class CannotUpgrade(LookupError):
    """The server that received the request cannot open WebSockets."""

    def __init__(self) -> None:
        super().__init__("WebSockets are served by the endpoints of treedb alone (listen).")


class BadHandshake(Exception):
    """The request for a WebSocket lacks a part of the handshake (RFC 6455, section 4.2.1)."""


class WrongVersion(Exception):
    """The requested version of the WebSocket protocol is not served."""

    def __init__(self) -> None:
        super().__init__(f"The version of the WebSocket protocol is {WEBSOCKET_VERSION}.")


FRAGMENT_BYTES: Final = 16 * KIB
"""The longest payload of a fragment: a multiple of the mask, so that the mask still fits."""

_FIN: Final = 0x80
_RESERVED_OR_CONTROL: Final = 0x78
_MASKED: Final = 0x80
_TEXT: Final = _FIN | Opcode.TEXT
_MASK_BYTES: Final = 4
_ENDLESS: Final = 2**64
_LENGTHS: Final = {126: struct.Struct(">H"), 127: struct.Struct(">Q")}
"""The formats of lengths that do not fit into the second byte, by its value."""


class FrameCutter:
    """Cuts the frames of one client.

    Attributes:
        payload: bytes of the current frame that have not arrived yet.

    """

    __slots__ = ("_fin", "_first", "_head", "_left", "_longest", "_mask", "payload")

    def __init__(self, longest: int) -> None:
        """Leave frames of more than `longest` bytes uncut: they are refused."""
        self.payload = 0
        self._longest = longest
        self._head = b""  # the beginning of the head of a frame
        self._left = 0  # bytes of the frame that was handed on last which have not come yet
        self._first = self._fin = 0  # of the next fragment, and of the last one
        self._mask = b""

    @property
    def held_bytes(self) -> int:
        """How many bytes are held of the head of a frame."""
        return len(self._head)

    def cut(self, data: bytes) -> bytes:
        """Return the bytes to be parsed in place of `data`, which the client has sent."""
        parts: list[bytes] = []
        while data:
            if not self.payload:
                data = self._begin(self._head + data, parts)
                continue
            if not self._left:
                parts.append(self._begin_fragment())
            piece, data = data[: self._left], data[self._left :]
            parts.append(piece)
            self._left -= len(piece)
            self.payload -= len(piece)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _begin(self, data: bytes, parts: list[bytes]) -> bytes:
        """Read the head of a frame, or wait for the rest of it; return what follows it."""
        size, length = _read_head(data)
        self._head = b""
        if size and FRAGMENT_BYTES < length <= self._longest:
            size += _MASK_BYTES
            if len(data) >= size:
                self.payload = length
                self._first, self._fin = data[0] & ~_FIN, data[0] & _FIN
                self._mask = data[size - _MASK_BYTES : size]
                return data[size:]
            size = 0
        if not size:
            self._head = data
            return b""
        parts.append(data[:size])
        self.payload = self._left = length + (_MASK_BYTES if data[1] & _MASKED else 0)
        return data[size:]

    def _begin_fragment(self) -> bytes:
        """Return the head of the next fragment of a long frame."""
        size = self._left = min(self.payload, FRAGMENT_BYTES)
        first = self._first | (self._fin if size == self.payload else 0)
        self._first = 0  # the others are continuations
        if size < min(_LENGTHS):
            return bytes((first, _MASKED | size)) + self._mask
        return bytes((first, _MASKED | 126)) + _LENGTHS[126].pack(size) + self._mask


def _read_head(data: bytes) -> tuple[int, int]:
    """Return how many bytes a head has without its mask, and the length of the payload.

    Both are 0 if too few bytes have arrived. A frame that is not a data frame, or is not valid, has
    no length here: it is handed on unchanged.
    """
    if len(data) < 2:
        return 0, 0
    length = data[1] & ~_MASKED
    longer = _LENGTHS.get(length)
    if longer is None:
        return 2, length
    if data[0] & _RESERVED_OR_CONTROL or not data[1] & _MASKED:
        return 2, _ENDLESS
    size = 2 + longer.size
    return (size, longer.unpack_from(data, 2)[0]) if len(data) >= size else (0, 0)


_NUMBER_OF_PIECES: Final = re.compile(rb"[0-9]{1,6}")
END_BYTES: Final = 512
"""Bytes that are kept of each end of a message that is too long."""
WHOLE_BYTES: Final = 320 * KIB
"""A longer message is kept in parts.

That is room for all disconnect writes that a session may have, and for the hashes with which
clients that keep much data on disk listen.
"""
PART_BYTES: Final = 64 * KIB
"""Short pieces are joined up to this length, so that a message has few parts."""
_LEAST_PART: Final = 4 * KIB


class TooManyPieces(Exception):
    """The client announces more pieces than a message may have."""


@attrs.frozen
class OversizedMessage:
    """The first and the last bytes of a message that is longer than allowed."""

    first: bytes
    last: bytes


@attrs.frozen
class LongMessage:
    """A message of `size` bytes in parts."""

    parts: tuple[bytes, ...] = attrs.field(repr=False)
    size: int

    def pieces(self, start: int, stop: int) -> Iterator[bytes]:
        """Yield the bytes between two positions."""
        at = 0
        for part in self.parts:
            end = at + len(part)
            if at >= start and end <= stop:
                yield part
            elif at < stop and end > start:
                yield part[max(0, start - at) : stop - at]
            at = end

    def read(self, start: int, stop: int) -> bytes:
        """Return the bytes between two positions."""
        return b"".join(self.pieces(start, stop))


Message: TypeAlias = bytes | LongMessage | OversizedMessage


class PieceJoiner:
    """Joins the messages of one connection.

    Attributes:
        held_bytes: bytes of the message that is not complete.

    """

    __slots__ = (
        "_is_in_frame",
        "_is_oversized",
        "_max_bytes",
        "_max_pieces",
        "_missing",
        "_parts",
        "_tail",
        "held_bytes",
    )

    def __init__(self, max_bytes: int, max_pieces: int) -> None:
        """Join messages of at most `max_bytes` and `max_pieces`."""
        self.held_bytes = 0
        self._max_bytes = max_bytes
        self._max_pieces = max_pieces
        self._missing = 0
        self._is_in_frame = False
        self._parts: list[bytes] | None = None
        self._tail: bytearray | None = None  # what follows the parts
        self._is_oversized = False

    @property
    def is_joining(self) -> bool:
        """Whether pieces or fragments are still to come."""
        return self._missing > 0 or self._is_in_frame

    def add(self, text: bytes, *, is_end: bool = True) -> Message | None:
        """Add the text of a frame, or a part of it; return the message that it completes, if any.

        Raises `TooManyPieces`.
        """
        if not is_end:
            self._is_in_frame = True
            self._keep(text)
            return None
        if not self._missing:
            message: Message | None = text
            if self._is_in_frame or len(text) > self._max_bytes:
                self._is_in_frame = False
                self._keep(text)
                message = self._join()
            if isinstance(message, bytes) and _NUMBER_OF_PIECES.fullmatch(message):
                self._begin(int(message))
                return None
            return message
        self._is_in_frame = False
        self._missing -= 1
        self._keep(text)
        return None if self._missing else self._join()

    def _begin(self, count: int) -> None:
        if count > self._max_pieces:
            raise TooManyPieces
        self._missing = count

    def _keep(self, text: bytes) -> None:
        parts = self._parts = [] if self._parts is None else self._parts
        tail = self._tail = bytearray() if self._tail is None else self._tail
        self.held_bytes += len(text)
        if len(text) >= _LEAST_PART and not tail:
            parts.append(text)
        else:
            tail += text
            if len(tail) >= PART_BYTES:
                parts.append(bytes(tail))
                tail.clear()
        if self.held_bytes > self._max_bytes or self._is_oversized:
            self._is_oversized = True
            self._keep_ends(parts, tail)

    def _keep_ends(self, parts: list[bytes], tail: bytearray) -> None:
        """Drop the middle of what is kept."""
        if self.held_bytes <= 2 * END_BYTES:
            return
        first = b"".join((*parts[:1], tail[:END_BYTES]))[:END_BYTES]
        last = b"".join((*parts[-1:], tail))[-END_BYTES:]
        self._parts, self._tail = [], bytearray(first + last)
        self.held_bytes = 2 * END_BYTES

    def _join(self) -> Message:
        parts, tail = self._parts or [], self._tail or bytearray()
        size, is_oversized = self.held_bytes, self._is_oversized
        self._parts = self._tail = None
        self._is_oversized = False
        self.held_bytes = 0
        if size > WHOLE_BYTES and not is_oversized:
            return LongMessage((*parts, bytes(tail)), size)
        joined = b"".join((*parts, tail))
        if is_oversized:
            return OversizedMessage(joined[:END_BYTES], joined[-END_BYTES:])
        return joined


PIECE_BYTES: Final = 16_384
_CUT_BYTES: Final = PIECE_BYTES - 3


class UnframedMessage(JoinedContent):
    """A message of more than a piece, which each of its readers frames while reading."""

    __slots__ = ()


def contents_of(messages: Iterable[Chunks], waiting: WaitingBytes) -> list[Content]:
    """Return messages as content, in their order: short ones joined, in frames."""
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
    """Return one text frame of a server, which is not masked (RFC 6455, section 5.2)."""
    size = len(text)
    if size < min(_LENGTHS):
        return b"%c%c%b" % (_TEXT, size, text)
    length = 126 if size < 2**16 else 127
    return b"%c%c%b%b" % (_TEXT, length, _LENGTHS[length].pack(size), text)


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
        """Stop reading."""
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
        """Stop reading."""
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
    """Return how many bytes at the end of UTF-8 belong to an incomplete character."""
    for back in range(1, 4):
        byte = text[-back]
        if byte & 0xC0 != 0x80:  # the first of its character
            length = 1 if byte < 0x80 else 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return back if length > back else 0
    return 0
