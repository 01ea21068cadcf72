"""`treedb migrate`: moves a database from a hosted service, or another treedb, to this one.

Theory of operation. The rules and the data are copied (`Copying`), then all changes of the source
are copied too, until Ctrl-C, when clients can be switched over. A stream of the source is opened
before anything is copied, so no change is missed meanwhile. The stream yields the paths of changes
(`ChangedPaths`), whose values are read again. When the stream breaks, everything is copied again.
"""

from __future__ import annotations

import os
import pathlib
import re
import signal
import sys
import threading
import time
from argparse import ArgumentParser, Namespace
from bisect import bisect_right
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final

import attrs
import orjson

from treedbd.cli.cp import is_within
from treedbd.cli.data import JSON_HEADERS, TOO_LARGE
from treedbd.cli.exit import INTERRUPTED, CommandFailed, print_line, warn
from treedbd.cli.http_client import HttpClient, UnreadResponse, make_source_client, run_once
from treedbd.cli.loading.transfer import (
    DEFAULT_RETRY_S,
    LONGEST,
    ProgressReport,
    Refused,
    Retries,
    Sender,
    read_size,
)
from treedbd.cli.options import (
    NoResponse,
    Url,
    add_address,
    add_config_option,
    add_flag,
    add_network_options,
    parse_url,
)
from treedbd.cli.watch import INTERVAL, SILENT_KEEP_ALIVES
from treedbd.limits import MIB, StreamLimits
from treedbd.tree.path import format_path, rank_key
from treedbd.tree.types import PRIORITY, Path
from treedbd.tree.value import NULL, compact

PAGE_BYTES: Final = 4 * MIB
PAGE_CHILDREN: Final = 1000
REMOVED_AT_ONCE: Final = 1000
LEAF_BYTES: Final = 64 * MIB
"""More than the JSON of the longest string, 10 MB of characters that may all be escaped."""
_EXPORT: Final = {"format": "export"}

LONGEST_LINE: Final = 1_048_576
"""The longest line of a PATCH whose keys are read; a longer one changes its whole path."""
_KEPT: Final = 65_536
_EVENT: Final = re.compile(rb"event: ?(\S+)")
_PATH: Final = re.compile(rb'data: ?\{"path" ?: ?("(?:[^"\\]|\\.)*"),')

POLL_S: Final = 0.1
RETRY_S: Final = 1.0
NOT_FOLLOWED: Final = (
    "What changed in the source last may be missing: give the command again, with --replace."
)
SOURCE: Final = "The source"
STREAM_HEADERS: Final = {"Accept": "text/event-stream"}
USUAL_S: Final = StreamLimits().keep_alive_s
"""The keep-alive interval of a treedb, unless it is set otherwise, and of a hosted service."""


@attrs.define(eq=False)
class Copying:
    """Copies the value at a path of one database to the same path of another, whatever its size.

    A short value is copied by one read and one write. The children of a longer container are read
    in pages, and a child that is too long for a page is copied separately, so at most one page, or
    one longer string, is in memory. Children that the source lacks are removed from the target.
    All steps can be repeated: the result is the value that the source had when it was read.
    `progress` counts the bytes written.
    """

    _source: Retries
    _source_url: Url
    _target: Retries
    _target_url: Url
    _progress: ProgressReport

    def give_up(self) -> None:
        """Try no request again from now on."""
        self._source.give_up()
        self._target.give_up()

    def copy(self, path: Path, *, is_new: bool = False) -> None:
        """Copy the value at a path; `is_new` if the target has none there.

        Raises `CommandFailed`.
        """
        found = self._read_value(path, _EXPORT)
        if found is None:
            self._copy_large(path, is_new=is_new)
        elif found != NULL or not is_new:
            try:
                self._write("PUT", path, found)
            except Refused as error:
                if error.status != TOO_LARGE:
                    raise
                self._copy_large(path, is_new=is_new)

    def _copy_large(self, path: Path, *, is_new: bool) -> None:
        """Copy a value that is too long for one request."""
        if not is_new:
            self._remove_others(path)
        if not self._copy_children(path, is_new=is_new):
            self._copy_leaf(path)
            return
        priority = self._read_value((*path, PRIORITY), {}) or NULL
        if priority != NULL or not is_new:
            self._write("PUT", (*path, PRIORITY), priority)

    def _copy_leaf(self, path: Path) -> None:
        found = self._read_value(path, _EXPORT, LEAF_BYTES)
        if found is None:  # it had no children a moment ago
            raise CommandFailed(f"{format_path(path)} of the source has changed: try again.")
        self._write("PUT", path, found)

    def _copy_children(self, path: Path, *, is_new: bool) -> bool:
        """Copy children in pages; return whether there were any.

        A bound includes its key, so the last child of a page is the first of the next one and is
        written with that. The page that has no other child is the last one, also if a server
        returns fewer children than were requested.
        """
        start: str | None = None
        count = PAGE_CHILDREN
        keys: list[str] | None = None
        while True:
            page = self._read_page(path, start, count + 1)
            if page is None and count > 1:
                count = max(1, count // 8)
                continue
            if page is None:  # the keys show which child follows the first one
                keys = self._sorted_keys(path) if keys is None else keys
                first = next(iter(keys), None) if start is None else start
                if first is not None:
                    self.copy((*path, first), is_new=is_new)
                following = _key_after(keys, first)
            else:
                first = next(iter(page), None)
                following = [*page][-1] if len(page) > 1 else None
                members = {key: page[key] for key in page if key != following}
                self._write_children(path, members, is_new=is_new)
                count = min(2 * count, PAGE_CHILDREN)
            if following is None:
                return start is not None or first is not None
            start = following

    def _write_children(self, path: Path, page: dict[str, Any], *, is_new: bool) -> None:
        """Write children, in several requests if the target refuses so long a body."""
        if not page:
            return
        try:
            self._write("PATCH", path, compact(page))
        except Refused as error:
            if error.status != TOO_LARGE:
                raise
            if len(page) == 1:
                self.copy((*path, *page), is_new=is_new)
                return
            members, middle = [*page.items()], len(page) // 2
            self._write_children(path, dict(members[:middle]), is_new=is_new)
            self._write_children(path, dict(members[middle:]), is_new=is_new)

    def _read_page(self, path: Path, start: str | None, count: int) -> dict[str, Any] | None:
        """Return the first children from a key on, in order; None if they are too long."""
        parameters = {**_EXPORT, "orderBy": '"$key"', "limitToFirst": str(count)}
        if start is not None:
            parameters["startAt"] = compact(start).decode()
        text = self._read(path, parameters)
        if text is None:
            return None
        members = _members(_parse(text, self._source_url))
        return {key: members[key] for key in sorted(members, key=rank_key) if key != PRIORITY}

    def _sorted_keys(self, path: Path) -> list[str]:
        return sorted(self._keys(self._source, self._source_url, path), key=rank_key)

    def _remove_others(self, path: Path) -> None:
        """Remove the children of the target that the source does not have."""
        wanted = self._keys(self._source, self._source_url, path)
        present = self._keys(self._target, self._target_url, path)
        others = sorted(present - wanted)
        for at in range(0, len(others), REMOVED_AT_ONCE):
            gone = dict.fromkeys(others[at : at + REMOVED_AT_ONCE])
            self._write("PATCH", path, compact(gone))

    def _keys(self, retries: Retries, url: Url, path: Path) -> set[str]:
        address = at_path(url, path).with_parameters({"shallow": "true", "timeout": LONGEST})
        return set(_members(_parse(retries.request("GET", address).content(), url)))

    def _read_value(
        self, path: Path, parameters: dict[str, str], most: int = PAGE_BYTES
    ) -> bytes | None:
        """Return the JSON of a read as `_read` does; raise `CommandFailed` if it is not JSON."""
        text = self._read(path, parameters, most)
        if text is not None:
            _parse(text, self._source_url)
        return text

    def _read(self, path: Path, parameters: dict[str, str], most: int = PAGE_BYTES) -> bytes | None:
        """Return the JSON of a read, None if it has more than `most` bytes."""
        address = at_path(self._source_url, path).with_parameters(
            {**parameters, "timeout": LONGEST}
        )
        text = self._source.request("GET", address).content_up_to(most)
        return None if text is None else text.strip()

    def _write(self, method: str, path: Path, body: bytes) -> None:
        address = at_path(self._target_url, path).with_parameters(
            {"print": "silent", "timeout": LONGEST}
        )
        self._target.request(method, address, JSON_HEADERS, body).close()
        self._progress.advance(len(body))


def at_path(url: Url, path: Path) -> Url:
    """Return the URL of a path below the one that a URL names."""
    return url.below(path).to_json()


def _parse(text: bytes, url: Url) -> Any:
    """Return the JSON of a response; raise `CommandFailed` if it is not JSON."""
    try:
        return orjson.loads(text)
    except ValueError:
        raise CommandFailed(f"{url} has answered a read with what is not JSON.") from None


def _members(found: Any) -> dict[str, Any]:
    """Return the children in a response; a hosted service prints some objects as arrays."""
    if isinstance(found, list):
        return {str(at): each for at, each in enumerate(found) if each is not None}
    return found if isinstance(found, dict) else {}


def _key_after(keys: list[str], key: str | None) -> str | None:
    """Return the key after `key` among sorted keys, which need not contain it."""
    if key is None:
        return None
    at = bisect_right(keys, rank_key(key), key=rank_key)
    return keys[at] if at < len(keys) else None


class ChangedPaths:
    """Reads one stream in pieces, and finds which paths of a database change.

    Only the paths of an event are used: the value is read in a request of its own, with its
    priorities, which streams do not show. So an event of any length needs little memory.

    Attributes:
        has_begun: whether the first event has begun.
        ended: the event that has ended the stream; empty until then.

    """

    def __init__(self) -> None:
        self.has_begun = False
        self.ended = ""
        self._line = b""
        self._is_cut = False
        self._kind = ""
        self._is_first = True

    def feed(self, piece: bytes) -> Iterator[Path]:
        """Yield the paths that have changed; the first event is the present value."""
        *lines, rest = piece.split(b"\n")
        for line in lines:
            self._add(line)
            yield from self._end_line()
        self._add(rest)

    def _add(self, text: bytes) -> None:
        if len(self._line) + len(text) > LONGEST_LINE:
            self._is_cut = True
            text = b"" if len(self._line) >= _KEPT else text[:_KEPT]
            self._line = self._line[:_KEPT]
        self._line += text
        self.has_begun = self.has_begun or bool(self._line)

    def _end_line(self) -> Iterator[Path]:
        line, is_cut = self._line.rstrip(b"\r"), self._is_cut
        self._line, self._is_cut = b"", False
        if (found := _EVENT.fullmatch(line)) is not None:
            self._kind = found[1].decode("latin-1")
            if self._kind in ("cancel", "auth_revoked"):
                self.ended = self._kind
        elif self._kind in ("put", "patch") and (found := _PATH.match(line)) is not None:
            is_first, self._is_first = self._is_first, False
            if is_first:
                return
            path = _parse_path(orjson.loads(found[1]))
            if self._kind == "put" or is_cut:
                yield path
            else:
                members = orjson.loads(line.partition(b":")[2])["data"] or {}
                for key in members:
                    yield (*path, *_parse_path(key))


def _parse_path(text: str) -> Path:
    """Return a path as an event shows it; a priority is a change of its node."""
    return tuple(key for key in text.split("/") if key and key != PRIORITY)


def add_options(parser: ArgumentParser, _: str) -> None:
    """Add the options of the command to its parser."""
    parser.add_argument(
        "source", metavar="SOURCE-URL", type=parse_url, help="the database to copy from"
    )
    add_address(parser, "the database to copy to")
    parser.add_argument(
        "--source-token-file",
        metavar="FILE",
        type=pathlib.Path,
        help="a file with the token for the source",
    )
    add_flag(parser, "--once", "end after the copy")
    add_flag(parser, "--replace", "remove from the target what the source lacks")
    parser.add_argument(
        "--keep-alive",
        metavar="SECONDS",
        type=INTERVAL,
        default=USUAL_S,
        help=f"the keep-alive interval of the source ({USUAL_S:g})",
    )
    add_flag(parser, "--quiet", "print no progress and no summary")
    add_config_option(parser)
    add_network_options(parser)
    parser.set_defaults(run=run_once, request=_migrate)


def _migrate(client: HttpClient, arguments: Namespace) -> None:
    source = make_source_client(arguments)
    if is_within(arguments.source, arguments.url) or is_within(arguments.url, arguments.source):
        raise CommandFailed(f"{arguments.source} cannot be migrated into itself.")
    progress = ProgressReport("copied", None, is_quiet=arguments.quiet)
    origin = Retries(source, DEFAULT_RETRY_S, SOURCE)
    target = Retries(client, DEFAULT_RETRY_S, "The target")
    copying = Copying(
        source=origin,
        source_url=arguments.source,
        target=target,
        target_url=arguments.url,
        progress=progress,
    )
    is_empty = Sender(target, arguments.url).is_empty()
    if not is_empty and not arguments.replace:
        raise CommandFailed(f"{arguments.url} is not empty: use --replace, or another database.")
    copied = partial(_report_copied, progress, arguments)
    try:
        if not arguments.quiet:
            progress.set_total(read_size(origin, arguments.source))
        _copy_rules(source, target, arguments)
        if arguments.once:
            copying.copy((), is_new=is_empty)
            copied()
        else:
            streams = source.within(silence_s=arguments.keep_alive * SILENT_KEEP_ALIVES)
            following = Following(streams, arguments.source, copying, is_new=is_empty)
            following.run(copied)
    finally:
        progress.stop()


def _report_copied(progress: ProgressReport, arguments: Namespace) -> None:
    progress.finish("Copied", progress.count)
    if not (arguments.once or arguments.quiet):
        print("What changes in the source is copied, too, until Ctrl-C.", file=sys.stderr)


def _copy_rules(source: HttpClient, target: Retries, arguments: Namespace) -> None:
    """Copy the rules, if the URLs name whole databases and the token may read them."""
    if arguments.source.has_path or arguments.url.has_path:
        warn("Only a part of a database is copied, so the rules are not.")
        return
    address = arguments.source.to_rules()
    response = source.send("GET", address)
    if response.status != 200:
        problem = response.read_error()
        warn(f"{SOURCE}: {problem} Its rules are not copied: put them with treedb rules put.")
        return
    text = response.content()
    try:
        target.request("PUT", arguments.url.to_rules(), None, text).close()
    except Refused as error:
        warn(f"The rules of the source are not in force here, put them yourself: {error}")


class Following:
    """Copies a database, and its changes from then on, which a thread reads from a stream."""

    def __init__(self, client: HttpClient, url: Url, copying: Copying, *, is_new: bool) -> None:
        """Follow the database that `url` names; `is_new` if the target is empty.

        `client` limits how long a stream is silent: one that is broken may never end.
        """
        self._client = client
        self._url = url.to_json()
        self._copying = copying
        self._is_new = is_new
        self._lock = threading.Lock()
        self._changed: dict[Path, None] = {}
        self._changes = ChangedPaths()
        self._is_open = False
        self._is_ending = False
        self._problem = ""

    def run(self, copied: Callable[[], None]) -> None:
        """Copy until Ctrl-C, and call `copied` after the first copy.

        Raises `CommandFailed` if the source ends the stream, or cannot be followed to the end.
        """
        signal.signal(signal.SIGINT, self._end)
        is_first = True
        while True:
            self._open()
            self.add(())
            while self._is_open or self._changed:
                self.copy_changed()
                if is_first:
                    is_first = False
                    copied()
                if self._is_ending and self._is_open and not self._changed:
                    print_line("The source was followed to this moment: clients can be switched.")
                    return
                time.sleep(POLL_S)
            if self._changes.ended:
                raise CommandFailed(f"The source has ended the stream ({self._changes.ended}).")
            self._try_again(f"{SOURCE}: {self._problem}")

    def add(self, path: Path) -> None:
        """Record a changed path."""
        with self._lock:
            self._changed[path] = None

    def _end(self, *_: object) -> None:
        if self._is_ending:
            os._exit(INTERRUPTED)  # a second Ctrl-C does not wait for the remaining changes
        self._is_ending = True
        self._copying.give_up()

    def _open(self) -> None:
        """Open a stream, and wait for its first event: later changes are not missed."""
        while True:
            try:
                response = self._client.request("GET", self._url, STREAM_HEADERS)
            except NoResponse as error:
                self._try_again(str(error))
                continue
            except CommandFailed as error:
                raise CommandFailed(f"{SOURCE}: {error}") from None
            if not (response.header("Content-Type") or "").startswith(STREAM_HEADERS["Accept"]):
                raise CommandFailed(f"{SOURCE} does not send a stream at {self._url}.")
            self._changes, self._is_open = ChangedPaths(), True
            threading.Thread(target=self._read, args=(response,), daemon=True).start()
            while self._is_open and not (self._changes.has_begun or self._is_ending):
                time.sleep(POLL_S)
            if self._changes.has_begun:
                return
            self._try_again("The stream of the source has no event.")

    def _try_again(self, problem: str) -> None:
        """Report a problem, and wait before the next attempt; after Ctrl-C raise it."""
        if self._is_ending:
            raise CommandFailed(f"{problem} {NOT_FOLLOWED}")
        warn(f"{problem} Trying again, with a whole copy.")
        time.sleep(RETRY_S)

    def _read(self, response: UnreadResponse) -> None:
        """Record the changed paths until the stream ends or breaks."""
        self._problem = f"{self._url.origin} ended the stream."
        try:
            for piece in response.pieces():
                for path in self._changes.feed(piece):
                    self.add(path)
        except NoResponse as error:
            self._problem = str(error)
        except Exception:  # whatever it sent: everything is copied again
            self._problem = f"{self._url.origin} sent an event that treedb does not know."
        self._is_open = False

    def copy_changed(self) -> None:
        """Copy the changed paths, and those that change meanwhile."""
        while self._changed:
            with self._lock:
                path = min(self._changed, key=len)
                for below in [each for each in self._changed if each[: len(path)] == path]:
                    del self._changed[below]
            is_new, self._is_new = self._is_new, False
            self._copying.copy(path, is_new=is_new and not path)
