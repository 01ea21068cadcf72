"""Server-Sent Events as bytes: frames, and the identifiers by which a stream is resumed.

A frame is `event:` and `data:`, where asked for `id:`, and an empty line. A comment would end some
clients and an event without data reaches no browser, so that a keep-alive carries `data: null`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from treedbd.tree.event import Event

KEEP_ALIVE: Final = b"event: keep-alive\ndata: null\n\n"
CANCEL: Final = b"event: cancel\ndata: null\n\n"
AUTH_REVOKED: Final = b"event: auth_revoked\ndata: credential is no longer valid\n\n"
FIRST_PUT: Final = (b'event: put\ndata: {"path":"/","data":', b"}\n")


def print_frames(numbered: Iterable[tuple[int, Event]], *, with_ids: bool) -> bytes:
    """Print events, each with its sequence number, one frame after the other."""
    return b"".join(
        b"event: %b\ndata: %b\n%b" % (event.kind.encode(), event.print(), end(sequence, with_ids))
        for sequence, event in numbered
    )


def end(sequence: int, with_ids: bool) -> bytes:
    """Return what stands behind the data of a frame."""
    return b"id: %d\n\n" % sequence if with_ids else b"\n"


def parse_id(text: str | None) -> int | None:
    """Return the sequence number that a `Last-Event-ID` names, None for one that is not ours."""
    if text is None or not text.isascii() or not text.isdigit() or len(text) > 18:
        return None
    return int(text)
