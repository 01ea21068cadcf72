"""A follower of a stream that resumes wherever it can, and a judge of what it received.

The judge compares the events with the history of all writes below the watched path. Their
identifiers contain the number of the write, so it sees what is lost, doubled or out of order.
"""

from __future__ import annotations

import contextlib
import re
import socket
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Final, Self
from urllib.parse import urlsplit

import attrs

from tests.closing import Closing
from tests.history import BadHistory
from tests.replica import Replica
from tests.rest import Wire
from tests.sse import KEEP_ALIVE, EventStream, Frame

PATIENCE_S: Final = 60.0
RETRY_S: Final = 0.02

_ID = re.compile(r"(0|[1-9][0-9]*)(?:-[0-9a-f]+(?:-([1-9][0-9]*))?)?")


@attrs.frozen
class Event:
    """A put or a patch: the number of its write, and which event of that write it is.

    `part` is None for the last event of a write, which most have only one of. `connection` counts
    the connections of the follower.
    """

    id: str
    sequence: int
    part: int | None
    kind: str
    path: str
    value: Any
    connection: int = 0

    @classmethod
    def of(cls, frame: Frame, connection: int) -> Self:
        """Return the event of a frame; raise `BadHistory` if it is none, or has no identifier."""
        found = _ID.fullmatch(frame.id or "")
        if frame.event not in ("put", "patch") or found is None or frame.id is None:
            raise BadHistory(f"An event without a position: {frame}")
        part = None if found[2] is None else int(found[2])
        return cls(frame.id, int(found[1]), part, frame.event, frame.path, frame.value, connection)

    @property
    def is_whole(self) -> bool:
        """Whether it replaces the whole watched value, as the first event does."""
        return self.kind == "put" and self.path == "/"


@attrs.frozen
class _Address:
    """Where to connect to, as `EventStream` needs it."""

    url: str

    @property
    def host(self) -> str:
        """The Host header."""
        return urlsplit(self.url).netloc

    def connect(self) -> Wire:
        """Return a new connection."""
        return Wire(self.url, patience=PATIENCE_S)


class Follower(Closing):
    """Follows a stream in a thread, over one URL after the other: when it is cut it goes on.

    `events` holds all events in the order in which they were received, `replica` the value that
    results; a caller reads both while it holds `changed`. `urls` may change meanwhile.
    """

    def __init__(self, urls: Sequence[str], target: str, first: int = 0) -> None:
        """Start with the URL of number `first`, and wait for the first value."""
        self.replica: Final = Replica()
        self.events: Final[list[Event]] = []
        self.changed: Final = threading.Condition()
        self.connections = 0
        self._urls = urls
        self._target = target
        self._first = first
        self._error: BaseException | None = None
        self._is_closing = threading.Event()
        self._stream: EventStream | None = None
        self._thread = threading.Thread(target=self._follow, daemon=True)
        self._thread.start()
        self.await_change(lambda: bool(self.events))

    def await_change(self, is_so: Callable[[], bool]) -> None:
        """Wait until a condition on what was received holds; raise what the follower met."""
        with self.changed:
            has_come = self.changed.wait_for(lambda: is_so() or self._error, PATIENCE_S)
        if self._error is not None:
            raise self._error
        assert has_come, f"The follower waits; it has {len(self.events)} events."

    def await_child(self, key: str, value: Any) -> None:
        """Wait until a child of the watched value is this one."""

        def is_so() -> bool:
            tree = self.replica.tree
            return isinstance(tree, dict) and tree.get(key) == value

        self.await_change(is_so)

    def cut(self) -> None:
        """Cut the connection and wait until that is noticed; the follower goes on with another."""
        end = time.monotonic() + PATIENCE_S
        with self.changed:
            before = self.connections
            self._shut_down()
            while not self.changed.wait_for(lambda: self.connections > before, RETRY_S):
                assert time.monotonic() < end, "The follower cannot be cut."
                self._shut_down()

    def close(self) -> None:
        """Follow no more."""
        self._is_closing.set()
        while self._thread.is_alive():
            self._shut_down()
            self._thread.join(RETRY_S)

    def _shut_down(self) -> None:
        stream = self._stream
        if stream is not None:
            with contextlib.suppress(OSError):
                stream.wire.socket.shutdown(socket.SHUT_RDWR)

    def _follow(self) -> None:
        try:
            while not self._is_closing.is_set():
                with contextlib.suppress(OSError, ValueError):
                    self._follow_once()
                with self.changed:
                    self.connections += 1
                    self.changed.notify_all()
                self._is_closing.wait(RETRY_S)
        except BaseException as error:
            with self.changed:
                self._error = error
                self.changed.notify_all()

    def _follow_once(self) -> None:
        """Connect once and apply what comes, until the stream ends; raise OSError if it is cut."""
        url = self._urls[(self._first + self.connections) % len(self._urls)]
        headers = {"Last-Event-ID": self.events[-1].id} if self.events else {}
        with EventStream(_Address(url), self._target, headers) as stream:
            self._stream = stream
            if stream.status == 200 and not self._is_closing.is_set():
                for frame in stream.frames():
                    self._apply(frame)

    def _apply(self, frame: Frame) -> None:
        if frame.event == KEEP_ALIVE:
            return
        event = Event.of(frame, self.connections)
        with self.changed:
            self.events.append(event)
            self.replica.apply(event.kind, event.path, event.value)
            self.changed.notify_all()
