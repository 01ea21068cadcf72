"""Frames of RFC 6455 for tests: printed as a test asks for, and parsed strictly.

It is independent of the product and of any library on purpose: a test may print what no client may
send, and what a server sends is checked for what a server must not do.
"""

from __future__ import annotations

import base64
import hashlib
import os
from typing import Final, NamedTuple

TEXT: Final = 0x1
BINARY: Final = 0x2
CONTINUATION: Final = 0x0
CLOSE: Final = 0x8
PING: Final = 0x9
PONG: Final = 0xA

KEY: Final = "dGhlIHNhbXBsZSBub25jZQ=="
"""The key of all handshakes here, which is the example of the RFC."""
_GUID: Final = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"


class WireFrame(NamedTuple):
    """One frame that a server sent."""

    opcode: int
    payload: bytes

    @property
    def close_code(self) -> int | None:
        """The code of a close frame, None if it has none."""
        return int.from_bytes(self.payload[:2], "big") if self.payload else None


def accept_of(key: str) -> str:
    """Return the value of Sec-WebSocket-Accept that answers a key."""
    return base64.b64encode(hashlib.sha1((key + _GUID).encode()).digest()).decode()


def print_frame(
    opcode: int,
    payload: bytes = b"",
    *,
    is_final: bool = True,
    reserved: int = 0,
    is_masked: bool = True,
    declared: int | None = None,
) -> bytes:
    """Return the bytes of a frame; `declared` is the length that its head states."""
    length = len(payload) if declared is None else declared
    head = bytearray([is_final << 7 | reserved << 4 | opcode])
    mask_bit = 0x80 if is_masked else 0
    if length < 126:
        head.append(mask_bit | length)
    elif length < 65_536:
        head += bytes([mask_bit | 126]) + length.to_bytes(2, "big")
    else:
        head += bytes([mask_bit | 127]) + length.to_bytes(8, "big")
    if not is_masked:
        return bytes(head) + payload
    mask = os.urandom(4)
    return bytes(head) + mask + _apply_mask(payload, mask)


def print_close(code: int | None = 1000, reason: str = "") -> bytes:
    """Return the bytes of a close frame."""
    payload = b"" if code is None else code.to_bytes(2, "big") + reason.encode()
    return print_frame(CLOSE, payload)


def parse_frame(data: bytearray) -> WireFrame | None:
    """Remove the first frame from what a server sent and return it, None if it is not complete.

    Fragments are refused, because not every client of this protocol joins them.
    """
    if len(data) < 2:
        return None
    first, second = data[0], data[1]
    assert first & 0x80, "A fragment."
    assert not first & 0x70, "Reserved bits."
    assert not second & 0x80, "A server must not mask."
    opcode, length, begin = first & 0x0F, second & 0x7F, 2
    assert opcode in (TEXT, CLOSE, PING, PONG), f"Opcode {opcode}."
    if length > 125:
        size = 2 if length == 126 else 8
        if len(data) < 2 + size:
            return None
        length, begin = int.from_bytes(data[2 : 2 + size], "big"), 2 + size
        assert length > (125 if size == 2 else 65_535), "A length in a longer form than needed."
    assert opcode == TEXT or length <= 125, "A long control frame."
    if len(data) < begin + length:
        return None
    payload = bytes(data[begin : begin + length])
    del data[: begin + length]
    return WireFrame(opcode, payload)


def _apply_mask(payload: bytes, mask: bytes) -> bytes:
    repeated = (mask * (len(payload) // 4 + 1))[: len(payload)]
    masked = int.from_bytes(payload, "big") ^ int.from_bytes(repeated, "big")
    return masked.to_bytes(len(payload), "big")
