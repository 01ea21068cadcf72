"""A strict client of event streams for tests.

It parses frames as https://html.spec.whatwg.org/multipage/server-sent-events.html defines them, and
checks what this service promises beyond that: no comments, fields in one order, complete frames. A
stream that comes by a proxy may be chunked.
"""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple, Protocol

from tests.closing import Closing
from tests.replica import Replica
from tests.rest import Client, Headers, Wire, print_request

EVENTS: Final = {"Accept": "text/event-stream"}
KEEP_ALIVE: Final = "keep-alive"
PATIENCE_S: Final = 120.0


class Frame(NamedTuple):
    """One event; `id` is None if the frame has none."""

    event: str
    data: str
    id: str | None = None

    @property
    def json(self) -> Any:
        """The data, parsed."""
        return json.loads(self.data)

    @property
    def path(self) -> str:
        """The path of a put or a patch."""
        path: str = self.json["path"]
        return path

    @property
    def value(self) -> Any:
        """The data of a put or a patch."""
        return self.json["data"]


def put(path: str, value: Any) -> tuple[str, str, Any]:
    """Return the change of a put, as `change` returns it."""
    return "put", path, value


def change(frame: Frame | None) -> tuple[str, str, Any]:
    """Return the change that a put or a patch describes: its kind, path and value."""
    assert frame is not None
    return frame.event, frame.path, frame.value


class Connects(Protocol):
    """What a stream needs of a client: a connection, and the Host header to send over it."""

    @property
    def host(self) -> str: ...

    def connect(self) -> Wire: ...


class EventStream(Closing):
    """One open stream."""

    def __init__(
        self,
        client: Connects,
        target: str,
        headers: Headers = (),
        *,
        method: str = "GET",
        version: str = "HTTP/1.1",
    ) -> None:
        """Open the stream and read the head of its response."""
        self.wire: Final[Wire] = client.connect()
        pairs = EVENTS | dict(headers)
        request = print_request(method, target, None, pairs, client.host)
        self.wire.send(request.replace(b"HTTP/1.1", version.encode(), 1))
        self._file = self.wire.file
        self.status, self.headers = self.wire.receive_head()
        self._is_chunked = self.headers.get("Transfer-Encoding") == "chunked"
        self._lines = self._read_lines()

    def next_frame(self) -> Frame | None:
        """Return the next frame, None at the end; raise ConnectionError if that is inside one."""
        line = next(self._lines, None)
        if line is None:
            return None
        assert line.startswith("event: "), line
        data = self._next_line()
        assert data.startswith("data: "), data
        last = self._next_line()
        event_id = None
        if last.startswith("id: "):
            event_id = last[4:]
            last = self._next_line()
        assert last == "", last
        return Frame(line[7:], data[6:], event_id)

    def next_change(self) -> Frame:
        """Return the next frame that is not a keep-alive; AssertionError if the stream ends."""
        while True:
            frame = self.next_frame()
            assert frame is not None, "The stream ended."
            if frame.event != KEEP_ALIVE:
                return frame

    def frames(self) -> Iterator[Frame]:
        """Iterate over the frames up to the end."""
        while (frame := self.next_frame()) is not None:
            yield frame

    def close(self) -> None:
        """Close the connection."""
        self.wire.close()

    def _next_line(self) -> str:
        line = next(self._lines, None)
        if line is None:
            raise ConnectionError("The stream was cut off.")
        return line

    def _read_lines(self) -> Iterator[str]:
        pending: list[bytes] = []
        for piece in self._read_pieces():
            *complete, rest = piece.split(b"\n")
            for line in complete:
                yield b"".join([*pending, line]).decode()
                pending = []
            pending.append(rest)
        if any(pending):
            raise ConnectionError("The stream was cut off.")

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
    """Follows a stream in a thread of its own.

    `received` holds every change in order, `replica` the value that results; a caller reads both
    while it holds `changed`, which is notified of each change.
    """

    def __init__(self, client: Client, target: str, headers: Headers = ()) -> None:
        """Open the stream and wait for its first value."""
        self.stream: Final = EventStream(client, target, headers)
        assert self.stream.status == 200
        self.replica: Final = Replica()
        self.received: Final[list[Frame]] = []
        self.changed: Final = threading.Condition()
        self.error: BaseException | None = None
        self.is_ended = False
        self._thread = threading.Thread(target=self._follow, daemon=True)
        self._apply(self.stream.next_change())
        self.stream.wire.socket.settimeout(None)  # nothing may come for as long as a test takes
        self._thread.start()

    def wait_until(self, is_so: Callable[[], bool], seconds: float = PATIENCE_S) -> bool:
        """Wait until a condition on the received changes holds; return whether it does."""
        with self.changed:
            return self.changed.wait_for(is_so, seconds)

    def wait_for_end(self, seconds: float = PATIENCE_S) -> None:
        """Wait until the stream ends."""
        self._thread.join(seconds)
        assert not self._thread.is_alive()

    def close(self) -> None:
        """Close the stream."""
        with contextlib.suppress(OSError):
            self.stream.wire.socket.shutdown(socket.SHUT_RDWR)
        self.wait_for_end()
        self.stream.close()

    def _follow(self) -> None:
        try:
            for frame in self.stream.frames():
                self._apply(frame)
        except (OSError, ValueError) as error:
            self.error = error
        with self.changed:
            self.is_ended = True
            self.changed.notify_all()

    def _apply(self, frame: Frame) -> None:
        if frame.event == KEEP_ALIVE:
            return
        with self.changed:
            self.received.append(frame)
            self._follow_change(frame)
            self.changed.notify_all()

    def _follow_change(self, frame: Frame) -> None:
        if frame.event in ("put", "patch"):
            self.replica.apply(*change(frame))


class ReadingListener(Listener):
    """Follows a stream with `describe=true`: it reads again whatever place an event names."""

    def __init__(self, client: Client, reader: Client, path: str) -> None:
        """Follow the changes of a path; `reader` reads for this listener alone."""
        self._reader = reader
        self._path = path
        super().__init__(client, f"{path}.json?describe=true")

    def _follow_change(self, frame: Frame) -> None:
        assert frame.event == "changed", frame
        path = frame.path.rstrip("/")
        for key in frame.json.get("keys", [""]):
            place = f"{path}/{key}".rstrip("/")
            self.replica.apply("put", place, self._reader.get(f"{self._path}{place}.json"))
