"""What import, export and migrate share: options, the place, progress, repeated requests.

- `add_loading_options` and `end_on_interrupt` are the same for import and export.
- `locate` finds the file of a data directory, and the path in it, that a URL names.
- `ProgressReport` prints the progress on standard error.
- `Retries` sends a request again while the server cannot be reached or is busy.
- `Sender` writes a part of a document (`loading/chunks`) by a request that may be repeated.
"""

from __future__ import annotations

import hashlib
import os
import pathlib
import random
import re
import signal
import sys
import threading
import time
from argparse import ArgumentParser
from collections.abc import Callable, Mapping
from importlib import import_module
from types import MappingProxyType
from typing import Any, Final, NoReturn, cast
from urllib.parse import parse_qsl

import attrs
import orjson

from treedbd.cli.data import JSON_HEADERS, SIZE, TOO_LARGE
from treedbd.cli.exit import INTERRUPTED, CommandFailed, counted, make_printable, warn
from treedbd.cli.http_client import (
    DROPPED,
    OWN_CONNECTION,
    PIECE_BYTES,
    Body,
    HttpClient,
    UnreadResponse,
)
from treedbd.cli.loading.chunks import FORMATS, Part
from treedbd.cli.options import (
    InvalidUrl,
    NoResponse,
    Url,
    add_flag,
    add_network_options,
    add_settings_options,
    seconds_from,
    split_url,
)
from treedbd.config.settings import Settings
from treedbd.database.data_directory import SHELF
from treedbd.limits import MIB
from treedbd.names import DatabaseName
from treedbd.tree.types import InvalidPath, InvalidQuery, Json, Path
from treedbd.tree.value import NULL, compact
from treedbd.web.request import Addressing, Misdirected, MissingSuffix, NoDatabaseNamed
from treedbd.web.request import parse_path as parse_raw_path

DEFAULT_RETRY_S: Final = 60.0
LONGEST: Final = "15min"
"""The `timeout` of requests that may take long."""
TRANSIENT: Final = frozenset({408, 429, 502, 503, 504})
_LONGEST_LISTING: Final = 64 * MIB
_FIRST_PAUSE_S: Final = 0.25
_LONGEST_PAUSE_S: Final = 10.0
_STEP_S: Final = 0.1
"""How often a pause looks whether `give_up` was called."""

_LONGEST_RETRY_S: Final = 86_400.0

FIRST_LINE_S: Final = 10.0
LONGEST_PAUSE_S: Final = 60.0
_UNKNOWN: Final = "the total is not known"

_DIGEST_CHARACTERS: Final = 16
GOES_ON: Final = "The same command goes on where it stopped."
_LEAF: Final = re.compile(rb'["\-0-9tf]')
"""How the JSON of a leaf begins."""


def unfinished_file(file: pathlib.Path, peer: str, suffix: str) -> pathlib.Path:
    """Return the file beside `file` that a command leaves when it breaks, to go on with later.

    It is called `.<name>.<digest>.<suffix>`, with a digest of the source or the target of the data,
    so commands with other sources or targets have other files.
    """
    digest = hashlib.sha256(peer.encode()).hexdigest()[:_DIGEST_CHARACTERS]
    return file.with_name(f".{file.name}.{digest}.{suffix}")


class Refused(CommandFailed):
    """A server has refused a request, with `status`; the same request would fail again."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status


def add_loading_options(parser: ArgumentParser) -> None:
    """Add the options of both commands."""
    parser.add_argument(
        "--format",
        choices=FORMATS,
        help="json: one document; ndjson: a line for each child, "
        '{"key": …, "value": …} (default: by the name of the file)',
    )
    add_flag(parser, "--restart", "begin again, whatever a broken one has left")
    add_flag(parser, "--quiet", "print no progress and no summary")
    parser.add_argument(
        "--retry-for",
        metavar="SECONDS",
        type=seconds_from(0, _LONGEST_RETRY_S, f"must be from 0 to {_LONGEST_RETRY_S:g} seconds"),
        default=DEFAULT_RETRY_S,
        help="how long a request that fails is tried again (default: %(default)g)",
    )
    add_settings_options(
        parser, "work on this data directory, whose daemon does not run; the URL names the path"
    )
    add_network_options(parser)


def end_on_interrupt(before: Callable[[], None], sentence: Callable[[], str]) -> None:
    """At Ctrl-C call `before`, print `sentence()` and end the process."""

    def end(_: int, __: object) -> NoReturn:
        before()
        warn(sentence())
        os._exit(INTERRUPTED)  # without waiting for threads and connections

    signal.signal(signal.SIGINT, end)


@attrs.frozen
class StoredNode:
    """A node in the file of a database."""

    file: pathlib.Path
    path: Path


def locate(settings: Settings, url: Url) -> StoredNode:
    """Return the node that a URL names for a daemon with these settings; raise `CommandFailed`."""
    if settings.engine == "memory":
        raise CommandFailed("The memory engine stores nothing: there is no file.")
    if settings.is_cluster:
        raise CommandFailed("The data is in PostgreSQL, and what is in files is only a copy.")
    try:
        name = _find_database(settings, url)
        place = parse_raw_path(url.to_json().path.encode(), 0)
    except (InvalidPath, InvalidQuery, Misdirected, NoDatabaseNamed, MissingSuffix) as error:
        raise CommandFailed(str(error)) from None
    if place.is_priority:
        raise CommandFailed("A priority is not a node: name the node.")
    return StoredNode(settings.data / name.project / f"{name.database}{SHELF}", place.path)


def path_of(url: Url) -> Path:
    """Return the path that a URL names; empty if it is invalid, which the server reports."""
    try:
        return parse_raw_path(url.to_json().path.encode(), 0).path
    except (InvalidPath, MissingSuffix):
        return ()


def _find_database(settings: Settings, url: Url) -> DatabaseName:
    addressing = Addressing(
        settings.domains, settings.default_project, any_host=settings.development
    )
    host = f"[{url.host}]" if ":" in url.host else url.host
    name = addressing.find(host.encode(), dict(parse_qsl(url.query)).get("ns"))
    if not settings.development:
        project = settings.projects.get(name.project)
        if project is None:
            raise CommandFailed(f"The project {name.project} is not configured.")
        if project.databases is not None and name.database not in project.databases:
            raise CommandFailed(f"The project {name.project} has no database {name.database}.")
    return name


class ProgressReport:
    """Counts bytes, of a total that may be unknown; with `is_quiet` nothing is printed.

    On a terminal it is a bar with rate and remaining time, below all other lines of standard error;
    elsewhere a line is printed after ten seconds, and then more and more rarely.

    Attributes:
        count: how many bytes are done.

    """

    def __init__(
        self,
        title: str,
        total: int | None,
        *,
        is_quiet: bool,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.is_quiet: Final = is_quiet
        self.count = 0
        self._title = make_printable(title)
        self._total = total
        self._now = now
        self._begin = now()
        self._pause = FIRST_LINE_S
        self._next_line = self._begin + self._pause
        self._bar: Any = None
        if not is_quiet and sys.stderr.isatty():
            self._bar = _make_bar()
            self._task = self._bar.add_task(self._description(), total=total)
            self._bar.start()

    def set_total(self, total: int | None) -> None:
        """Set the total, None if it is unknown."""
        self._total = total
        if self._bar is not None:
            self._bar.update(self._task, total=total, description=self._description())

    def advance(self, count: int) -> None:
        """Show that `count` more bytes are done."""
        self.advance_to(self.count + count)

    def advance_to(self, count: int) -> None:
        """Show that `count` bytes of the total are done."""
        self.count = count
        if self._total is not None and count > self._total:  # it was an estimate
            self.set_total(None)
        if self._bar is not None:
            self._bar.update(self._task, completed=count)
        elif not self.is_quiet and self._now() >= self._next_line:
            self._pause = min(2 * self._pause, LONGEST_PAUSE_S)
            self._next_line = self._now() + self._pause
            line = f"{self._title}: {self._describe(count)}"
            print(line, file=sys.stderr, flush=True)

    def _describe(self, count: int) -> str:
        if not self._total or not count:
            return f"{count / MIB:,.1f} MiB, {_UNKNOWN}"
        left = (self._now() - self._begin) * (self._total - count) / count
        share = f"{count / MIB:,.1f} of {self._total / MIB:,.1f} MiB"
        return f"{share} ({100 * count // self._total} %), about {left:,.0f} s left"

    def _description(self) -> str:
        return self._title if self._total else f"{self._title} ({_UNKNOWN})"

    def stop(self) -> None:
        """Remove the bar."""
        bar, self._bar = self._bar, None
        if bar is not None:
            bar.stop()

    def finish(self, done: str, count: int) -> None:
        """Print `done` with the number of bytes, the time and the rate."""
        self.stop()
        if self.is_quiet:
            return
        seconds = self._now() - self._begin
        rate = count / MIB / max(seconds, 1e-3)
        line = f"{done}, {counted(count, 'byte')} in {seconds:.1f} s ({rate:.1f} MiB/s)"
        print(line, file=sys.stderr, flush=True)


def _make_bar() -> Any:
    # Imported here, since that takes longer than most commands take to run.
    progress: Any = import_module("rich.progress")
    console: Any = import_module("rich.console").Console(stderr=True)
    return progress.Progress(
        progress.TextColumn("{task.description}", markup=False),
        progress.BarColumn(),
        progress.TaskProgressColumn(),
        progress.DownloadColumn(binary_units=True),
        progress.TransferSpeedColumn(),
        progress.TimeRemainingColumn(),
        console=console,
        transient=True,
    )


class Retries:
    """Repeats each request until it succeeds, or has failed for some time.

    Several threads may send requests, each of which has a connection of its own.
    """

    def __init__(self, client: HttpClient, retry_s: float, peer: str = "") -> None:
        """Try a request again for `retry_s` seconds; the sentences of errors begin with `peer`."""
        self._prefix = f"{peer}: " if peer else ""
        self._client = client
        self._retry_s = retry_s
        self._lock = threading.Lock()
        self._is_failing = self._is_over = self._has_dropped = False

    def give_up(self) -> None:
        """Raise the error of a request at its first failure from now on.

        A handler of signals may call it.
        """
        self._is_over = True

    def request(
        self,
        method: str,
        url: Url,
        headers: Mapping[str, str] | None = None,
        body: bytes | None = None,
    ) -> UnreadResponse:
        """Return the response, whose status is 2xx; raise `CommandFailed`."""
        failures = self.failures()
        sent = {**OWN_CONNECTION, **(headers or {})}
        while True:
            wanted: float | None = None
            try:
                response = self._client.send(method, url, sent, _in_pieces(body))
                if response.is_success:
                    self._is_failing = False
                    self._warn_of_dropped(response)
                    return response
                sentence = self._prefix + response.read_error()
                if response.status not in TRANSIENT:
                    raise Refused(response.status, sentence)
                wanted = _retry_after(response)
            except NoResponse as error:
                sentence = str(error)
            self.pause(failures, sentence, wanted)

    def _warn_of_dropped(self, response: UnreadResponse) -> None:
        if response.has_dropped and not self._has_dropped:
            self._has_dropped = True
            warn(DROPPED)

    def failures(self) -> Failures:
        """Return a record for the failures of a request that begins now."""
        return Failures(self._retry_s, time.monotonic())

    def pause(self, failures: Failures, sentence: str, wanted: float | None = None) -> None:
        """Wait before another attempt; raise `CommandFailed` if it has failed for too long.

        `wanted` is the pause in seconds that the server requests by `Retry-After`.
        """
        now = time.monotonic()
        pause = failures.next_pause(now, wanted)
        if pause is None or self._is_over:
            raise CommandFailed(sentence)
        with self._lock:
            is_first, self._is_failing = not self._is_failing, True
        if is_first:
            warn(f"{sentence} Trying again for {self._retry_s:g} seconds.")
        while (left := now + pause - time.monotonic()) > 0:
            if self._is_over:
                raise CommandFailed(sentence)
            time.sleep(min(left, _STEP_S))


def _in_pieces(body: bytes | None) -> Body | None:
    """Return a body in pieces, between which the client notices that the server refuses it."""
    if body is None:
        return None
    begins = range(0, len(body), PIECE_BYTES)
    return Body((body[each : each + PIECE_BYTES] for each in begins), len(body))


def read_size(retries: Retries, url: Url) -> int | None:
    """Return about how many bytes of JSON are at a path, None if the server does not know.

    Raises `CommandFailed` for a server that cannot be reached.
    """
    address = url.to_json().with_parameters({"shallow": "true", "v": "2", "timeout": LONGEST})
    try:
        found = retries.request("GET", address).content_up_to(_LONGEST_LISTING)
        return None if found is None else sum_sizes(orjson.loads(found))
    except (Refused, NoResponse, ValueError):
        return None


def sum_sizes(found: Any) -> int | None:
    """Return the bytes of the value whose children have the sizes `found`; None without sizes."""
    if not isinstance(found, dict) or not found:
        return len(orjson.dumps(found))
    if all(each is True for each in found.values()):  # no sizes, or each child is true
        return None
    sizes = (
        each[SIZE] if isinstance(each, dict) else len(orjson.dumps(each)) for each in found.values()
    )
    try:
        return sum(sizes) + sum(len(key.encode()) + 4 for key in found) + 1
    except (KeyError, TypeError):
        return None


class Failures:
    """The consecutive failures of one request, which began at `begin`."""

    def __init__(self, retry_s: float, begin: float) -> None:
        self._end = begin + retry_s
        self._pause = _FIRST_PAUSE_S

    def next_pause(self, now: float, wanted: float | None = None) -> float | None:
        """Return the seconds to wait, None once the request has failed for `retry_s`."""
        if now >= self._end:
            return None
        pause, self._pause = self._pause, min(2 * self._pause, _LONGEST_PAUSE_S)
        pause *= random.uniform(0.5, 1.0)  # noqa: S311 - not a secret
        return min(max(pause, wanted or 0.0), self._end - now)


def _retry_after(response: UnreadResponse) -> float | None:
    text = response.header("Retry-After") or ""
    return float(text) if text.isascii() and text.isdigit() else None


class Sender:
    """Writes parts below the node that a URL names."""

    def __init__(
        self, retries: Retries, url: Url, parameters: Mapping[str, str] = MappingProxyType({})
    ) -> None:
        """Send `parameters` with each write."""
        self._retries = retries
        self._given = url
        self._url = url.to_json()
        usual = {"print": "silent", "timeout": LONGEST}
        self._long = self._url.with_parameters({**usual, **parameters})

    def is_empty(self) -> bool:
        """Return whether nothing is at the target."""
        # One key without its value, since there may be many, and large ones.
        url = self._url.with_parameters({"shallow": "true", "limitToFirst": "1"})
        return self._retries.request("GET", url).content() == NULL

    def find_leaf_above(self) -> Path | None:
        """Return the path of the single value that a write at the target would replace.

        None if there is none, or if it may not be read.
        """
        try:
            root, path = split_url(self._given)
        except InvalidUrl:
            return None  # not a path of a database, which the server reports
        for length in range(len(path) - 1, -1, -1):
            above = root.below(path[:length]).to_json()
            url = above.with_parameters({"shallow": "true", "limitToFirst": "1"})
            try:
                found = self._retries.request("GET", url).content()
            except Refused:
                return None
            if found != NULL:
                return path[:length] if _LEAF.match(found) else None
        return None

    def remove(self) -> None:
        """Remove what is at the target."""
        self._send("DELETE", None)

    def replace(self, body: bytes) -> bool:
        """Write the whole value in one request; return False if that is too large."""
        try:
            self._send("PUT", body)
        except Refused as error:
            if error.status != TOO_LARGE:
                raise
            return False
        return True

    def write(self, part: Part) -> None:
        """Write a part, in several requests if the server refuses so long a body."""
        if part.is_whole:
            self._send("PUT", compact(cast(Json, part.whole)))
            return
        try:
            self._send("PATCH", compact(part.body()))
        except Refused as error:
            if error.status != TOO_LARGE or len(part) == 1:
                raise
            for half in _halves(part):
                self.write(half)

    def _send(self, method: str, body: bytes | None) -> None:
        headers = None if body is None else JSON_HEADERS
        self._retries.request(method, self._long, headers, body).content()


def _halves(part: Part) -> tuple[Part, Part]:
    members = list(part.members.items())
    middle = len(members) // 2
    return Part.of(members[:middle]), Part.of(members[middle:])
