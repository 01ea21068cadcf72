"""`treedb watch`: prints the events of a path until Ctrl-C.

A stream that breaks is opened again, after a pause that grows with each failure in a row, and
resumed after the last write that was received. A stream is broken, too, if nothing is received for
2.5 keep-alive intervals. The command ends by Ctrl-C, or with an error of the server.

Bytes are parsed by the letter of "Interpreting an event stream" of the HTML standard,
https://html.spec.whatwg.org/multipage/server-sent-events.html. An event is printed on one line. As
text: its kind, its path and its data, separated by tab characters, which neither a path nor compact
JSON contains. As JSON: one object with the members `event`, `path` and `data`.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import random
import re
import signal
import sys
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator
from typing import Final

import attrs
import orjson

from treedbd.cli.data import style_json
from treedbd.cli.exit import DONE, CommandFailed, Status, warn, write_out
from treedbd.cli.http_client import OWN_CONNECTION, HttpClient, add_online_options, make_http_client
from treedbd.cli.options import (
    NoResponse,
    Url,
    add_address,
    add_flag,
    add_query_options,
    in_options,
    number_from,
    query_parameters,
    read_settings,
    seconds_from,
)

FIRST_PAUSE_S: Final = 0.5
LONGEST_PAUSE_S: Final = 30.0
SILENT_KEEP_ALIVES: Final = 2.5
INTERVAL: Final = seconds_from(
    math.ulp(0), 3600, "must be a number of seconds above 0 and at most 3600"
)
"""The type of the option `--keep-alive`."""
STREAM: Final = "text/event-stream"
KEEP_ALIVE: Final = "keep-alive"
CHANGES: Final = frozenset({"put", "patch"})
FINAL_EVENTS: Final = {
    "cancel": "The stream ended: the rules no longer allow it.",
    "auth_revoked": "The stream ended: the token is no longer valid.",
}
"""The events that end a stream, each with the sentence for the user."""
_BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"
_CHANGE = re.compile(rb'\{"path":("(?:[^"\\]|\\.)*+"),"data":(.*)\}')  # of one line: no DOTALL


def add_options(parser: ArgumentParser, _: str) -> None:
    """Add the options of the command to its parser."""
    add_address(parser)
    add_flag(parser, "--json", "print each event as a JSON object")
    parser.add_argument(
        "-n", dest="count", metavar="N", type=number_from(1), help="end after N events"
    )
    parser.add_argument(
        "--keep-alive",
        metavar="SECONDS",
        type=INTERVAL,
        help="the server's keep-alive interval (default: that of the configuration)",
    )
    add_query_options(parser)
    add_online_options(parser, watch_stream)
    parser.set_defaults(run=_watch)


def follow(
    client: HttpClient,
    url: Url,
    show: Callable[[StreamEvent], None],
    note: Callable[[str], None],
    rng: random.Random,
    pause: Callable[[float], None] = time.sleep,
) -> None:
    """Show all events from now on; raise `CommandFailed` when the server returns an error.

    `show` prints an event, `note` a message about the connection. Raises `NoResponse` only before
    the first stream.
    """
    listener = _Listener(client, url, show, ResumePoint())
    failures = 0
    while True:
        try:
            listener.listen()
            problem = f"{url.origin} ended the stream."
        except NoResponse as error:
            if not listener.has_begun:
                raise
            problem = str(error)
        if listener.has_received:
            failures = 0
        if not failures:
            note(f"{problem} Trying again.")
        pause(pause_after(failures, rng, listener.retry_s))
        failures += 1


def pause_after(failures: int, rng: random.Random, retry_s: float = 0.0) -> float:
    """Return how many seconds to wait after this many failures in a row.

    The pause is random, so that clients do not all reconnect at once. It is not shorter than the
    one that the stream has requested, up to `LONGEST_PAUSE_S`.
    """
    longest: float = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2 ** min(failures, 16))
    return max(longest * rng.uniform(0.5, 1.0), min(retry_s, LONGEST_PAUSE_S))


@attrs.define
class _Listener:
    """Opens one stream after the other, each of which resumes the one before."""

    _client: HttpClient
    _url: Url
    _show: Callable[[StreamEvent], None]
    _resume_point: ResumePoint
    has_begun: bool = False
    has_received: bool = False
    retry_s: float = 0.0

    def listen(self) -> None:
        """Show events until the stream ends; raise `NoResponse` or `CommandFailed`."""
        self.has_received = False
        try:
            self._listen()
        finally:
            self._resume_point.record_end()

    def _listen(self) -> None:
        last_id = self._resume_point.last_event_id
        headers = {"Accept": STREAM, **OWN_CONNECTION}
        if last_id is not None:
            headers["Last-Event-ID"] = last_id
        response = self._client.send("GET", self._url, headers)
        if response.status >= 500:
            raise NoResponse(response.read_error())
        if response.status != 200:
            raise CommandFailed(response.read_error())
        require_stream(response.header("Content-Type") or "", self._url)
        self.has_begun = True
        parser = EventParser(last_id or "")
        for piece in response.pieces():
            for event in parser.feed(piece):
                self.has_received = True
                self._handle(event)
            self.retry_s = parser.retry_s or self.retry_s

    def _handle(self, event: StreamEvent) -> None:
        if event.kind in CHANGES:
            if self._resume_point.record(event):
                with _known_events(self._url):
                    self._show(event)
        elif event.kind == KEEP_ALIVE:
            self._resume_point.record_keep_alive()
        elif event.kind in FINAL_EVENTS:
            raise CommandFailed(FINAL_EVENTS[event.kind])


@contextlib.contextmanager
def _known_events(url: Url) -> Iterator[None]:
    """In a `with` block, raise an `InvalidEvent` of a server as `CommandFailed`."""
    try:
        yield
    except InvalidEvent:
        raise CommandFailed(f"{url.origin} sent an event that treedb does not know.") from None


class _Over(Exception):
    """All events that are wanted are printed, or the user has pressed Ctrl-C."""


def _watch(arguments: Namespace) -> Status:
    client = make_http_client(arguments)
    url: Url = arguments.url.to_json().with_parameters(query_parameters(arguments))
    if not url.has("resume"):
        url = url.with_parameters({"resume": "true"})
    keep_alive_s = arguments.keep_alive or read_settings(arguments).streams.keep_alive_s
    printer = _EventPrinter(arguments)
    client = client.within(silence_s=keep_alive_s * SILENT_KEEP_ALIVES)
    with in_options(), contextlib.suppress(_Over):
        signal.signal(signal.SIGINT, printer.interrupt)
        try:
            follow(client, url, printer.show, warn, random.SystemRandom())
        finally:
            signal.signal(signal.SIGINT, signal.SIG_DFL)
    return DONE


class _EventPrinter:
    """Prints events, as lines of text or of JSON, and counts them."""

    def __init__(self, arguments: Namespace) -> None:
        self._as_json: bool = arguments.json
        self._left: int = arguments.count or -1
        self._is_printing = False
        self._is_interrupted = False

    def show(self, event: StreamEvent) -> None:
        """Print an event; raise `_Over` after the last one and after Ctrl-C, or `InvalidEvent`."""
        self._is_printing = True
        is_last = self.print(event)
        self._is_printing = False
        if is_last or self._is_interrupted:
            raise _Over

    def interrupt(self, *_: object) -> None:
        """End at Ctrl-C by raising `_Over`, but not within a line."""
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # a second one ends even a blocked write
        if not self._is_printing:
            raise _Over
        self._is_interrupted = True

    def print(self, event: StreamEvent) -> bool:
        """Print an event; return whether it is the last one. Raises `InvalidEvent`."""
        line = event.print_json() if self._as_json else event.print_text()
        if sys.stdout.isatty():
            line = style_json(line.decode(errors="replace")).encode()
        write_out(line)
        self._left -= 1
        return self._left == 0


def watch_stream(client: HttpClient, arguments: Namespace) -> None:
    """Print the events of one stream, as many as are wanted; raise `CommandFailed` at its end."""
    url: Url = arguments.url.to_json().with_parameters(query_parameters(arguments))
    if arguments.keep_alive:
        client = client.within(silence_s=arguments.keep_alive * SILENT_KEEP_ALIVES)
    with in_options():
        response = client.request("GET", url, {"Accept": STREAM})
    printer, parser = _EventPrinter(arguments), EventParser()
    with contextlib.closing(response), _known_events(url):
        require_stream(response.header("Content-Type") or "", url)
        for piece in response.pieces():
            for event in parser.feed(piece):
                if event.kind in FINAL_EVENTS:
                    raise CommandFailed(FINAL_EVENTS[event.kind])
                if event.kind in CHANGES and printer.print(event):
                    return
    raise CommandFailed(f"{url.origin} ended the stream.")


def require_stream(content_type: str, url: Url) -> None:
    """Raise `CommandFailed` unless a response is a stream of events."""
    if content_type.partition(";")[0].strip() != STREAM:
        raise CommandFailed(f"The response of {url.origin} is not a stream.")


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

    `retry_s` is the pause before a reconnection that the stream requests, in seconds.
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
        if event.id == self._complete != self._current:  # the id that the stream was resumed with
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
