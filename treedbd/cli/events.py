"""Server-Sent Events: parsed from bytes, printed as lines, and where to resume a stream.

An event is printed on one line. As text: its kind, its path and its data, separated by tab
characters, which neither a path nor compact JSON contains. As JSON: one object with the members
`event`, `path` and `data`.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from typing import Final

import attrs
import orjson

KEEP_ALIVE: Final = "keep-alive"
CHANGES: Final = frozenset({"put", "patch"})

_CHANGE = re.compile(rb'\{"path":("(?:[^"\\]|\\.)*+"),"data":(.*)\}', re.DOTALL)
_VISIBLE = re.compile(r"[!-~]+")


class InvalidEvent(ValueError):
    """An event that is not one of the interface."""


@attrs.frozen
class StreamEvent:
    """One event as it was received; `data` is JSON for a change."""

    kind: str
    data: bytes
    id: str | None = None

    @property
    def is_whole(self) -> bool:
        """Whether it carries the whole value of the watched path."""
        return self.kind == "put" and self.data.startswith(b'{"path":"/",')

    def print_text(self) -> bytes:
        """Return a line of kind, path and data; raise `InvalidEvent`."""
        found = _CHANGE.fullmatch(self.data)
        if found is None:
            raise InvalidEvent
        path = str(orjson.loads(found[1])).encode()
        return b"%b\t%b\t%b\n" % (self.kind.encode(), path, found[2])

    def print_json(self) -> bytes:
        """Return a line of JSON; raise `InvalidEvent`."""
        if _CHANGE.fullmatch(self.data) is None:
            raise InvalidEvent
        return b'{"event":"%b",%b\n' % (self.kind.encode(), self.data[1:])


class EventParser:
    """Parses the bytes of a stream, in pieces of any size."""

    def __init__(self) -> None:
        """Start at the beginning of a stream."""
        self._rest: list[bytes] = []
        self._kind = ""
        self._data: list[bytes] = []
        self._id: str | None = None

    def feed(self, data: bytes) -> Iterator[StreamEvent]:
        """Iterate over the events that these bytes complete."""
        first, *lines = data.split(b"\n")
        self._rest.append(first)
        if not lines:
            return
        whole = b"".join(self._rest)
        self._rest = [lines.pop()]
        for line in (whole, *lines):
            if line in (b"", b"\r"):
                if self._kind:
                    yield StreamEvent(self._kind, b"\n".join(self._data), self._id)
                self._clear()
            else:
                self._parse_field(line.removesuffix(b"\r"))

    def _parse_field(self, line: bytes) -> None:
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if name == b"event":
            self._kind = value.decode("latin-1")
        elif name == b"data":
            self._data.append(value)
        elif name == b"id":
            text = value.decode("latin-1")
            self._id = text if _VISIBLE.fullmatch(text) else None

    def _clear(self) -> None:
        self._kind = ""
        self._data = []
        self._id = None


class ResumePoint:
    """The write after which a broken stream is resumed, without loss or repetition.

    The id of an event is that of a write, which may have several events. A stream that breaks
    between two of them is resumed from the write before, and the events that were received already
    are received once more: they are recognised and not shown again. A write is complete when an
    event of another one or a keep-alive follows, or when its event carries the whole value.
    """

    def __init__(self) -> None:
        """Start before the first write."""
        self._complete: str | None = None
        self._current: str | None = None
        self._seen: list[bytes] = []
        self._repeated: list[bytes] = []

    @property
    def last_event_id(self) -> str | None:
        """The id of the write to resume after; None to start from the present value."""
        return self._complete

    def record(self, event: StreamEvent) -> bool:
        """Record a change; return whether it is received for the first time."""
        if event.id is None:
            return True
        digest = hashlib.sha256(event.data).digest()
        if event.id == self._current and self._repeated[:1] == [digest]:
            del self._repeated[0]
            return False
        self._repeated = []
        if event.id != self._current:
            self._complete_write()
            self._current = event.id
        self._seen.append(digest)
        if event.is_whole:
            self._complete_write()
        return True

    def record_keep_alive(self) -> None:
        """Record a keep-alive, which never comes between the events of one write."""
        self._complete_write()

    def record_end(self) -> None:
        """Record the end of a stream."""
        self._repeated = list(self._seen)

    def _complete_write(self) -> None:
        self._complete = self._current
        self._seen = []
        self._repeated = []
