"""Server-Sent Events, from bytes to lines to print, and the place in them to go on from.

An event is printed on one line. As text that is its kind, its path and its data with a tabulator
between them, which stands in neither a path nor compact JSON; as JSON one object with the members
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


class NoEvent(ValueError):
    """Bytes that are no event of this interface."""


@attrs.frozen
class Event:
    """One event as it came; `data` is JSON for a change."""

    kind: str
    data: bytes
    id: str | None = None

    @property
    def is_whole(self) -> bool:
        """Whether it tells the whole value of what is watched."""
        return self.kind == "put" and self.data.startswith(b'{"path":"/",')

    def print_text(self) -> bytes:
        """Return a line of kind, path and data; raise `NoEvent`."""
        found = _CHANGE.fullmatch(self.data)
        if found is None:
            raise NoEvent
        path = str(orjson.loads(found[1])).encode()
        return b"%b\t%b\t%b\n" % (self.kind.encode(), path, found[2])

    def print_json(self) -> bytes:
        """Return a line of JSON; raise `NoEvent`."""
        if _CHANGE.fullmatch(self.data) is None:
            raise NoEvent
        return b'{"event":"%b",%b\n' % (self.kind.encode(), self.data[1:])


class Parser:
    """Takes the bytes of a stream in any pieces."""

    def __init__(self) -> None:
        """Begin with a stream."""
        self._rest: list[bytes] = []
        self._kind = ""
        self._data: list[bytes] = []
        self._id: str | None = None

    def feed(self, data: bytes) -> Iterator[Event]:
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
                    yield Event(self._kind, b"\n".join(self._data), self._id)
                self._clear()
            else:
                self._take(line.removesuffix(b"\r"))

    def _take(self, line: bytes) -> None:
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


class Position:
    """Where in a stream its reader is, so that a broken one goes on without loss or repetition.

    The identifier of an event is that of a write, which may have made several events. A stream that
    breaks between two of them is therefore resumed from the write before, and those that had come
    come again: they are recognised and left out. A write is known to be complete when an event of
    another one follows, or a keep-alive, or when its event tells the whole value.
    """

    def __init__(self) -> None:
        """Begin before everything."""
        self._complete: str | None = None
        self._current: str | None = None
        self._seen: list[bytes] = []
        self._repeated: list[bytes] = []

    @property
    def last_event_id(self) -> str | None:
        """The write from which to resume; None to begin anew."""
        return self._complete

    def is_new(self, event: Event) -> bool:
        """Take note of a change; tell whether it has not been taken note of before."""
        if event.id is None:
            return True
        digest = hashlib.sha256(event.data).digest()
        if event.id == self._current and self._repeated[:1] == [digest]:
            del self._repeated[0]
            return False
        self._repeated = []
        if event.id != self._current:
            self._settle()
            self._current = event.id
        self._seen.append(digest)
        if event.is_whole:
            self._settle()
        return True

    def keep_alive(self) -> None:
        """Take note of a keep-alive, which never comes inside a write."""
        self._settle()

    def break_off(self) -> None:
        """Take note of the end of a stream."""
        self._repeated = list(self._seen)

    def _settle(self) -> None:
        self._complete = self._current
        self._seen = []
        self._repeated = []
