"""`treedb top --profile`: the operations on a database, added up by path, until Ctrl-C.

A thread receives the operations as the daemon sends them (`/.settings/profile.json`); the command
adds them up, and shows them again after each interval. Paths with more than `MAX_CHILDREN` keys
below the same one are one row, with `$key` in the place of the key. The places that have rows are
bounded.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any, Final

import attrs
import orjson

from treedbd.cli.exit import CommandFailed, counted, format_bytes, make_printable, write_out
from treedbd.cli.http_client import OWN_CONNECTION, HttpClient
from treedbd.cli.options import Url
from treedbd.cli.watch import FINAL_EVENTS, STREAM, EventParser, require_stream
from treedbd.tree.path import format_path

MAX_CHILDREN: Final = 25
"""Keys below one place that have rows of their own."""
MAX_PLACES: Final = 20_000
"""Places that have rows of their own; what is done elsewhere is counted for the place above."""
MAX_KEYS: Final = 40
"""Keys of a path that count; a daemon sends fewer."""
MAX_ROWS: Final = 100
"""Rows that are shown."""
ANY_KEY: Final = "$key"
BY: Final = ("time", "bytes", "count")
"""What the rows can be ordered by."""
_WAITING: Final = 10_000
"""Operations that wait to be added up; meanwhile the stream is not read."""


@attrs.define
class Row:
    """One operation on the places of one pattern: how often, its time, bytes, and denials."""

    count: int = 0
    ms: float = 0.0
    most_ms: float = 0.0
    bytes: int = 0
    denied: int = 0

    def add(self, other: Row) -> None:
        """Add what was counted elsewhere."""
        self.count += other.count
        self.ms += other.ms
        self.most_ms = max(self.most_ms, other.most_ms)
        self.bytes += other.bytes
        self.denied += other.denied


@attrs.define
class _Place:
    """What was done at places of one pattern, and below."""

    children: dict[str, _Place] = attrs.field(factory=dict)
    rows: dict[str, Row] = attrs.field(factory=dict)
    missing: dict[str, int] = attrs.field(factory=dict)

    def merge(self, other: _Place) -> None:
        """Add what was done at another place."""
        for name, row in other.rows.items():
            self.rows.setdefault(name, Row()).add(row)
        for index, count in other.missing.items():
            self.missing[index] = self.missing.get(index, 0) + count
        for key, place in other.children.items():
            if key in self.children:
                self.children[key].merge(place)
            else:
                self.children[key] = place
        self.join()

    def join(self) -> None:
        """Make one place of the children if they are too many."""
        if len(self.children) > MAX_CHILDREN or (ANY_KEY in self.children and self.children):
            joined = self.children.pop(ANY_KEY, _Place())
            others, self.children = list(self.children.values()), {ANY_KEY: joined}
            for each in others:
                joined.merge(each)

    def walk(self, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], _Place]]:
        """Iterate over the places, this one first."""
        yield path, self
        for key, place in self.children.items():
            yield from place.walk((*path, key))


class Profile:
    """Operations, added up by path.

    Attributes:
        count: how many operations there were.
        lost: how many the daemon could not send.

    """

    def __init__(self) -> None:
        self.count = 0
        self.lost = 0
        self._root = _Place()
        self._places = 1

    def add(self, operation: dict[str, Any]) -> None:
        """Add an operation as the daemon sends it; raise `ValueError` or `TypeError` for others."""
        name = operation.get("name")
        if not isinstance(name, str):
            raise ValueError("an operation has a name")
        if name == "operations-lost":
            self.lost += int(operation["count"])
            return
        self.count += 1
        place = self._find(operation.get("path", ()))
        row = place.rows.setdefault(name, Row())
        ms = float(operation.get("millis", 0.0))
        denied = int(operation.get("allowed") is False)
        size = int(operation.get("bytes", 0))
        row.add(Row(count=1, ms=ms, most_ms=ms, bytes=size, denied=denied))
        if operation.get("unIndexed"):
            index = _index_of(operation)
            place.missing[index] = place.missing.get(index, 0) + 1

    def _find(self, path: Iterable[Any]) -> _Place:
        place = self._root
        for key in map(str, islice(path, MAX_KEYS)):
            child = place.children.get(key) or place.children.get(ANY_KEY)
            if child is None:
                if self._places >= MAX_PLACES:
                    return place
                child = place.children[key] = _Place()
                self._places += 1
                if len(place.children) > MAX_CHILDREN:
                    place.join()
                    self._places = sum(1 for _ in self._root.walk())
                    child = place.children[ANY_KEY]
            place = child
        return place

    def rows(self) -> list[tuple[str, tuple[str, ...], Row]]:
        """Return each operation on each pattern of places."""
        return [
            (name, path, row)
            for path, place in self._root.walk()
            for name, row in place.rows.items()
        ]

    def missing(self) -> list[tuple[int, tuple[str, ...], str]]:
        """Return the indexes that queries lacked, how often and where, the most frequent first."""
        found = [
            (count, path, index)
            for path, place in self._root.walk()
            for index, count in place.missing.items()
        ]
        return sorted(found, key=lambda each: (-each[0], each[1], each[2]))


def _index_of(operation: dict[str, Any]) -> str:
    """Return the index that the query of an operation needs, as rules name it."""
    return "/".join(operation["querySet"][0]["index"]["path"])


_RANK: Final[dict[str, Callable[[Row], float]]] = {
    "time": lambda row: row.ms,
    "bytes": lambda row: row.bytes,
    "count": lambda row: row.count,
}


def format_profile(profile: Profile, seconds: float, order: str) -> list[str]:
    """Return what is shown: what took most first, and the indexes that queries lacked."""
    rank, seconds = _RANK[order], max(seconds, 0.001)
    rows = profile.rows()
    rows.sort(key=lambda each: (-rank(each[2]), each[0], each[1]))
    what = f"{counted(profile.count, 'operation')} in {seconds:.0f} s"
    if profile.lost:
        what += f"; {profile.lost} more came too fast to be shown"
    lines = [
        what,
        "",
        f"{'OP/S':>9} {'COUNT':>8} {'MS':>8} {'MAX MS':>8} {'BYTES':>10} {'DENIED':>7}  OPERATION",
    ]
    for name, path, row in rows[:MAX_ROWS]:
        time_of_one = f"{row.ms / row.count:8.1f} {row.most_ms:8.1f}"
        figures = f"{row.count / seconds:9.1f} {row.count:8} {time_of_one}"
        size = format_bytes(row.bytes)
        lines.append(f"{figures} {size:>10} {row.denied:7}  {name} {format_path(path)}")
    if len(rows) > MAX_ROWS:
        lines.append(f"{len(rows) - MAX_ROWS} more rows are not shown.")
    missing = profile.missing()
    if missing:
        lines += ["", f"{'QUERIES':>18}  WITHOUT AN INDEX: ADD IT TO THE RULES"]
    for count, path, index in missing[:MAX_ROWS]:
        lines.append(f'{count:18}  {format_path(path)}: ".indexOn": "{index}"')
    return [make_printable(line) for line in lines]


def show_profile(
    client: HttpClient, arguments: Namespace, show: Callable[[list[str]], None]
) -> None:
    """Show the operations on a database after each interval, or print each; raise `CommandFailed`.

    `show` is called with the lines. With `--once` it ends after one interval.
    """
    url: Url = arguments.url.to_settings("profile.json")
    received: queue.Queue[bytes | Exception] = queue.Queue(_WAITING)
    response = client.request("GET", url, {"Accept": STREAM, **OWN_CONNECTION})
    require_stream(response.header("Content-Type") or "", url)
    receive = _Receiver(response.pieces(), received, url)
    threading.Thread(target=receive.run, daemon=True).start()
    profile, began = Profile(), time.monotonic()
    due = began + arguments.interval
    while True:
        left = due - time.monotonic()
        if left <= 0:
            if not arguments.json:
                show(format_profile(profile, time.monotonic() - began, arguments.by or BY[0]))
            if arguments.once:
                return
            due += arguments.interval
            continue
        with contextlib.suppress(queue.Empty):
            operation = received.get(timeout=left)
            if isinstance(operation, Exception):
                raise operation
            if arguments.json:
                write_out(operation + b"\n")
            else:
                _add(profile, operation, url)


def _add(profile: Profile, operation: bytes, url: Url) -> None:
    try:
        profile.add(orjson.loads(operation))
    except (AttributeError, KeyError, IndexError, TypeError, ValueError):
        raise CommandFailed(f"{url.origin} did not send operations.") from None


class _Receiver:
    """Receives operations in a thread of its own."""

    def __init__(
        self, pieces: Iterable[bytes], received: queue.Queue[bytes | Exception], url: Url
    ) -> None:
        """Put the operations in the `pieces` of a response into a queue, and how they end."""
        self._pieces, self._received, self._url = pieces, received, url

    def run(self) -> None:
        """Receive until the stream ends."""
        try:
            self._receive()
            ended: Exception = CommandFailed(f"{self._url.origin} ended the stream.")
        except Exception as error:
            ended = error
        self._received.put(ended)

    def _receive(self) -> None:
        parser = EventParser()
        for piece in self._pieces:
            for event in parser.feed(piece):
                if event.kind in FINAL_EVENTS:
                    raise CommandFailed(FINAL_EVENTS[event.kind])
                if event.kind == "log":
                    self._received.put(event.data)
