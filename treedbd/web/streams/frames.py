"""Frames: Server-Sent Events as bytes, with the identifiers by which a stream is resumed.

A frame is `event:` and `data:`, `id:` if it is requested, and an empty line. Some clients fail at a
comment, and browsers drop an event without data, so a keep-alive carries `data: null`.

An identifier is a position, printed as `42-9f3ac1d2e4b5a697`: the number of the write and the first
bytes of its operation id, which distinguish it from the same number of another database.

What is written is printed once for all streams of a path (`content_of`), and so is what several
clients missed (`print_in_pieces`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Final

from treedbd.database.watchers import Notification
from treedbd.http1.content import Content, JoinedContent, WaitingBytes
from treedbd.tree.event import Event, Position

KEEP_ALIVE: Final = b"event: keep-alive\ndata: null\n\n"
CANCEL: Final = b"event: cancel\ndata: null\n\n"
AUTH_REVOKED: Final = b"event: auth_revoked\ndata: credential is no longer valid\n\n"
FIRST_PUT: Final = (b'event: put\ndata: {"path":"/","data":', b"}\n")

PIECE_EVENTS: Final = 32
"""Events that are printed in one step."""

_OP_ID_BYTES: Final = 8
_ID = re.compile(r"(0|[1-9][0-9]{0,17})(?:-([0-9a-f]{16}))?")


def print_frames(events: Iterable[tuple[Position, Event]], *, with_ids: bool) -> bytes:
    """Print events, each with its position, one frame after the other."""
    return b"".join(_chunks(events, with_ids=with_ids))


def content_of(notification: Notification, memory: WaitingBytes, with_ids: bool) -> Content:
    """Return the frames of a notification, one copy for all streams that it is for."""
    content: Content | None = notification.shared.get(with_ids)
    if content is None:
        chunks = _chunks(notification.events, with_ids=with_ids)
        is_large = any(event.is_large for _, event in notification.events)
        content = JoinedContent(memory, chunks) if is_large else Content(memory, b"".join(chunks))
        notification.shared[with_ids] = content
    return content


def _chunks(events: Iterable[tuple[Position, Event]], *, with_ids: bool) -> Iterator[bytes]:
    for position, event in events:
        yield b"event: %b\ndata: " % event.kind.encode()
        yield from event.chunks()
        yield b"\n" + frame_end(position if with_ids else None)


def print_in_pieces(notification: Notification) -> Iterator[bytes]:
    """Print what a client missed, with identifiers, some events at a time.

    A piece is printed when it is needed, once for all streams that share the notification. There is
    at least one, which may be empty.
    """
    events = notification.events
    for at in range(0, len(events) or 1, PIECE_EVENTS):
        some = events[at : at + PIECE_EVENTS]
        # More events may be added to the last piece before another stream needs it.
        printed = notification.shared.get((at, len(some)))
        if printed is None:
            printed = notification.shared[at, len(some)] = print_frames(some, with_ids=True)
        yield printed


def frame_end(position: Position | None) -> bytes:
    """Return what follows the data of a frame; None for one without an identifier."""
    return b"\n" if position is None else b"id: %b\n\n" % print_id(position).encode()


def parse_id(text: str | None) -> Position | None:
    """Return the position in a `Last-Event-ID`, None if it has another form."""
    found = _ID.fullmatch(text or "")
    if found is None:
        return None
    sequence, op_id = found.groups()
    return Position(int(sequence), bytes.fromhex(op_id or ""))


def print_id(position: Position) -> str:
    """Return the identifier of a position."""
    if not position.op_id:
        return str(position.sequence)
    return f"{position.sequence}-{position.op_id[:_OP_ID_BYTES].hex()}"
