"""A client of event streams for tests: it reads what the standard says, and nothing more leniently.

https://html.spec.whatwg.org/multipage/server-sent-events.html tells how frames are read. What this
service promises beyond it is checked as well: no comments, fields in one order, chunks that end.
"""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Callable, Iterator
from email.message import Message
from http.client import parse_headers
from typing import Any, Final, NamedTuple

from tests.closing import Closing
from tests.mirror import Mirror
from tests.rest import Client, Headers, Wire, print_request

EVENTS: Final = {"Accept": "text/event-stream"}
KEEP_ALIVE: Final = "keep-alive"
PATIENCE_S: Final = 30.0


class Frame(NamedTuple):
    """One event; `id` is None where the frame has none."""

    event: str
    data: str
    id: str | None = None

    @property
    def json(self) -> Any:
        """The data, parsed."""
        return json.loads(self.data)

    @property
    def path(self) -> str:
        """Where something was put or patched."""
        path: str = self.json["path"]
        return path

    @property
    def value(self) -> Any:
        """What was put or patched."""
        return self.json["data"]


def put(path: str, value: Any) -> tuple[str, str, Any]:
    """Return what `told` makes of a `put`."""
    return "put", path, value


def told(frame: Frame | None) -> tuple[str, str, Any]:
    """Return what a put or a patch tells."""
    assert frame is not None
    return frame.event, frame.path, frame.value


class EventStream(Closing):
    """One open stream."""

    def __init__(
        self,
        client: Client,
        target: str,
        headers: Headers = (),
        *,
        method: str = "GET",
        version: str = "HTTP/1.1",
    ) -> None:
        """Open it and read its head."""
        self.wire: Final[Wire] = client.connect()
        pairs = EVENTS | dict(headers)
        asked = print_request(method, target, None, pairs, client.host)
        self.wire.send(asked.replace(b"HTTP/1.1", version.encode(), 1))
        self._file = self.wire.socket.makefile("rb")
        self.status, self.headers = self._read_head()
        self._is_chunked = self.headers.get("Transfer-Encoding") == "chunked"
        self._lines = self._read_lines()

    def next_frame(self) -> Frame | None:
        """Return the next frame, None at a clean end; raise ConnectionError for any other end."""
        line = next(self._lines, None)
        if line is None:
            return None
        assert line.startswith("event: "), line
        data = next(self._lines)
        assert data.startswith("data: "), data
        last = next(self._lines)
        found = None
        if last.startswith("id: "):
            found = last[4:]
            last = next(self._lines)
        assert last == "", last
        return Frame(line[7:], data[6:], found)

    def next_change(self) -> Frame:
        """Return the next frame that is no keep-alive; there must be one."""
        while True:
            frame = self.next_frame()
            assert frame is not None, "The stream ended."
            if frame.event != KEEP_ALIVE:
                return frame

    def frames(self) -> Iterator[Frame]:
        """Iterate over frames up to a clean end."""
        while (frame := self.next_frame()) is not None:
            yield frame

    def close(self) -> None:
        """Close the connection."""
        self._file.close()
        self.wire.close()

    def _read_head(self) -> tuple[int, Message]:
        line = self._file.readline()
        if not line:
            raise ConnectionError("The connection ended without an answer.")
        return int(line.split(b" ")[1]), parse_headers(self._file)

    def _read_lines(self) -> Iterator[str]:
        pending: list[bytes] = []
        for piece in self._read_pieces():
            *whole, rest = piece.split(b"\n")
            for line in whole:
                yield b"".join([*pending, line]).decode()
                pending = []
            pending.append(rest)
        assert not any(pending), "The stream ended inside a frame."

    def _read_pieces(self) -> Iterator[bytes]:
        while True:
            if not self._is_chunked:
                piece = self._file.read1()
            else:
                size = self._file.readline()
                if not size:
                    raise ConnectionError("The stream was cut off.")
                piece = self._file.read(int(size, 16))
                if len(piece) < int(size, 16) or self._file.readline() != b"\r\n":
                    raise ConnectionError("The stream was cut off.")
            if not piece:
                return
            yield piece


class Listener(Closing):
    """Follows a stream in a thread of its own, and keeps what it was told.

    `mirror` is what it knows, `heard` every change in order; both may be looked at under `news`.
    """

    def __init__(self, client: Client, target: str, headers: Headers = ()) -> None:
        """Open the stream; returns once its first value is known."""
        self.stream: Final = EventStream(client, target, headers)
        assert self.stream.status == 200
        self.mirror: Final = Mirror()
        self.heard: Final[list[Frame]] = []
        self.news: Final = threading.Condition()
        self.ended_with: BaseException | None = None
        self.is_ended = False
        self._thread = threading.Thread(target=self._follow, daemon=True)
        self._take(self.stream.next_change())
        self._thread.start()

    def await_state(self, is_there: Callable[[], bool], seconds: float = PATIENCE_S) -> bool:
        """Wait until something holds that depends on what was heard; tell whether it does."""
        with self.news:
            return self.news.wait_for(is_there, seconds)

    def await_end(self, seconds: float = PATIENCE_S) -> None:
        """Wait for the end of the stream."""
        self._thread.join(seconds)
        assert not self._thread.is_alive()

    def close(self) -> None:
        """Stop to listen."""
        with contextlib.suppress(OSError):
            self.stream.wire.socket.shutdown(socket.SHUT_RDWR)
        self.await_end()
        self.stream.close()

    def _follow(self) -> None:
        try:
            for frame in self.stream.frames():
                self._take(frame)
        except (OSError, ValueError) as error:
            self.ended_with = error
        with self.news:
            self.is_ended = True
            self.news.notify_all()

    def _take(self, frame: Frame) -> None:
        if frame.event == KEEP_ALIVE:
            return
        with self.news:
            self.heard.append(frame)
            if frame.event in ("put", "patch"):
                self.mirror.apply(*told(frame))
            self.news.notify_all()
