"""Server-Sent Events: parsed from bytes, printed as lines, and where to resume a stream.

Bytes are parsed by the letter of "Interpreting an event stream" of the HTML standard,
https://html.spec.whatwg.org/multipage/server-sent-events.html. This module imports no Twisted, so
that the shell, which reads streams over the blocking client, starts fast.

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
FINAL_EVENTS: Final = {
    "cancel": "The stream ended: the rules no longer allow it.",
    "auth_revoked": "The stream ended: the token is no longer valid.",
}
"""Events after which there are no others, and what they say."""
_BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"
_CHANGE = re.compile(rb'\{"path":("(?:[^"\\]|\\.)*+"),"data":(.*)\}')  # of one line: no DOTALL


class InvalidEvent(ValueError):
    """An event that is not one of the interface."""


@attrs.frozen
class StreamEvent:
    """One event as it was received; `data` is JSON for a change, in UTF-8.

    `id` is the last one that the stream has named, empty if there is none.
    """

    kind: str
    data: bytes
    id: str = ""

    @property
    def is_whole(self) -> bool:
        """Whether it carries the whole value of the watched path."""
        return self.kind == "put" and self.data.startswith(b'{"path":"/",')

    def print_text(self) -> bytes:
        """Return a line of kind, path and data; raise `InvalidEvent`."""
        path, data = self._parse_change()
        return b"%b\t%b\t%b\n" % (self.kind.encode(), path.encode(), data)

    def print_json(self) -> bytes:
        """Return a line of JSON; raise `InvalidEvent`."""
        self._parse_change()
        return b'{"event":"%b",%b\n' % (self.kind.encode(), self.data[1:])

    def _parse_change(self) -> tuple[str, bytes]:
        found = _CHANGE.fullmatch(self.data)
        if found is None:
            raise InvalidEvent
        try:
            return str(orjson.loads(found[1])), found[2]
        except orjson.JSONDecodeError:
            raise InvalidEvent from None


class EventParser:
    """Parses the bytes of one stream, in pieces of any size.

    `retry_s` is the pause before a reconnection that the stream has asked for, in seconds.
    """

    def __init__(self, last_event_id: str = "") -> None:
        """Start at the beginning of a stream, which was requested with this Last-Event-ID."""
        self.retry_s = 0.0
        self._rest: list[bytes] = []
        self._is_first_line = True
        self._ends_in_cr = False
        self._kind = ""
        self._data: list[bytes] = []
        self._id = last_event_id

    def feed(self, data: bytes) -> Iterator[StreamEvent]:
        """Iterate over the events that these bytes complete."""
        for line in self._split_lines(data):
            if line:
                self._parse_field(line)
                continue
            if self._data:
                yield StreamEvent(self._kind or "message", b"\n".join(self._data), self._id)
            self._kind = ""
            self._data = []

    def _split_lines(self, data: bytes) -> list[bytes]:
        """Return the lines that these bytes complete; they end in CR, LF or both."""
        if not data:
            return []
        if self._ends_in_cr:
            data = data.removeprefix(b"\n")  # the CR before it has ended the line
        self._ends_in_cr = data.endswith(b"\r")
        lines = data.splitlines()
        rest = lines.pop() if lines and not data.endswith((b"\r", b"\n")) else b""
        if not lines:
            self._rest.append(rest)
            return []
        lines[0] = b"".join([*self._rest, lines[0]])
        self._rest = [rest]
        if self._is_first_line:
            self._is_first_line = False
            lines[0] = lines[0].removeprefix(_BYTE_ORDER_MARK)
        return lines

    def _parse_field(self, line: bytes) -> None:
        name, _, value = line.partition(b":")  # a comment has an empty name
        value = value.removeprefix(b" ")
        match name:
            case b"event":
                self._kind = value.decode(errors="replace")
            case b"data":
                self._data.append(value.decode(errors="replace").encode())
            case b"id" if b"\0" not in value:
                self._id = value.decode(errors="replace")
            case b"retry" if value.isdigit():
                self.retry_s = float(value) / 1000


class ResumePoint:
    """The write after which a broken stream is resumed, without loss or repetition.

    The id of an event is that of a write, which may have several events. A stream that breaks
    between two of them is resumed from the write before, and the events that were received already
    are received once more: they are recognised and not shown again. A write is complete when an
    event of another one or a keep-alive follows, or when its event carries the whole value. An
    event without an id leaves nothing to resume after.
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
        if not event.id:
            self._complete = self._current = None
            self._seen = []
            self._repeated = []
            return True
        if event.id == self._complete != self._current:  # it names none after the interrupted write
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
