"""`treedb migrate`: moves a database from a hosted service, or another treedb, to this one.

The rules and the data are copied, then what changes in the source is copied too, until Ctrl-C: the
moment to switch the clients over. A stream of the source is opened before anything is copied, so
nothing that changes meanwhile is missed; of a change the path is taken from the stream, and what is
there is read again. When the stream breaks, everything is copied again.
"""

from __future__ import annotations

import os
import pathlib
import signal
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from typing import Any, Final, Protocol

from twisted.internet.defer import Deferred
from twisted.internet.task import deferLater
from twisted.web.iweb import IResponse

from treedbd.cli.client import Client, choose_trust_store, content, read_error, receive, run_online
from treedbd.cli.cp import is_within
from treedbd.cli.exit import INTERRUPTED, CommandFailed, print_line, warn
from treedbd.cli.loading.retries import DEFAULT_RETRY_S, Refused, Retries, read_size
from treedbd.cli.loading.sender import Sender
from treedbd.cli.migration.changes import ChangedPaths
from treedbd.cli.migration.copying import Copying
from treedbd.cli.options import (
    CONFIG_HELP,
    NoResponse,
    Url,
    add_network_options,
    parse_address,
    parse_url,
    read_settings,
    read_token_file,
)
from treedbd.cli.progress import ProgressReport
from treedbd.tree.types import Path

POLL_S: Final = 0.1
RETRY_S: Final = 1.0
NOT_FOLLOWED: Final = (
    "What changed in the source last may be missing: give the command again, with --replace."
)
SOURCE: Final = "The source"
STREAM_HEADERS: Final = {"Accept": "text/event-stream"}


def add_options(parser: ArgumentParser, _: str) -> None:
    """Add the options of the command to its parser."""
    parser.add_argument(
        "source", metavar="SOURCE-URL", type=parse_url, help="the database to copy from"
    )
    parser.add_argument("url", metavar="URL", type=parse_address, help="the database to copy to")
    parser.add_argument(
        "--source-token-file",
        metavar="FILE",
        type=pathlib.Path,
        help="a file with the token for the source",
    )
    parser.add_argument("--once", action="store_true", help="end after the copy")
    parser.add_argument(
        "--replace", action="store_true", help="remove from the target what the source lacks"
    )
    parser.add_argument("--quiet", action="store_true", help="print no progress and no summary")
    parser.add_argument("--config", metavar="FILE", help=CONFIG_HELP)
    add_network_options(parser)
    parser.set_defaults(run=run_online, work=_migrate)


async def _migrate(reactor: Any, client: Client, arguments: Namespace) -> None:
    source = _source_client(reactor, arguments)
    if is_within(arguments.source, arguments.url) or is_within(arguments.url, arguments.source):
        raise CommandFailed(f"{arguments.source} cannot be migrated into itself.")
    progress = ProgressReport("copied", None, is_quiet=arguments.quiet)
    origin = Retries(reactor, source, DEFAULT_RETRY_S, SOURCE)
    target = Retries(reactor, client, DEFAULT_RETRY_S, "The target")
    copying = Copying(origin, arguments.source, target, arguments.url, progress)
    is_empty = await Sender(target, arguments.url).is_empty()
    if not is_empty and not arguments.replace:
        raise CommandFailed(f"{arguments.url} is not empty: use --replace, or another database.")

    def copied() -> None:
        progress.finish("Copied", copying.bytes)
        if not (arguments.once or arguments.quiet):
            print("What changes in the source is copied, too, until Ctrl-C.", file=sys.stderr)

    try:
        if not arguments.quiet:
            progress.set_total(await read_size(origin, arguments.source))
        await _copy_rules(source, target, arguments)
        if arguments.once:
            await copying.copy((), is_new=is_empty)
            copied()
        else:
            following = Following(reactor, source, arguments.source, copying, is_new=is_empty)
            await following.run(copied)
    finally:
        progress.stop()


def _source_client(reactor: Any, arguments: Namespace) -> Client:
    file = arguments.source_token_file
    token = None if file is None else read_token_file(file)
    settings = read_settings(arguments)
    return Client(reactor, choose_trust_store(arguments, arguments.source, settings), token)


async def _copy_rules(source: Client, target: Retries, arguments: Namespace) -> None:
    """Copy the rules, if the URLs name whole databases and the token may read them."""
    if arguments.source.has_path or arguments.url.has_path:
        warn("Only a part of a database is copied, so the rules are not.")
        return
    address = arguments.source.to_rules()
    response = await source.send("GET", address)
    if response.code != 200:
        problem = await read_error(response, address)
        warn(f"{SOURCE}: {problem} Its rules are not copied: put them with treedb rules put.")
        return
    text = await content(response, address)
    try:
        await target.request("PUT", arguments.url.to_rules(), None, text)
    except Refused as error:
        warn(f"The rules of the source are not in force here, put them yourself: {error}")


def _is_stream(response: IResponse) -> bool:
    (kind, *_) = response.headers.getRawHeaders("content-type", [""])
    return str(kind).startswith(STREAM_HEADERS["Accept"])


class CopiesPaths(Protocol):
    """Copies what is at a path (`Copying`)."""

    async def copy(self, path: Path, *, is_new: bool) -> None:
        """Copy it; `is_new` if nothing is there in the target."""

    def give_up(self) -> None:
        """End the copy that is under way, if it waits to try a request again."""


class Following:
    """Copies a database, and what changes in it from then on."""

    def __init__(
        self, reactor: Any, client: Client, url: Url, copying: CopiesPaths, *, is_new: bool
    ) -> None:
        """Follow the database that `url` names; `is_new` if the target is empty."""
        self._reactor = reactor
        self._client = client
        self._url = url.to_json()
        self._copying = copying
        self._is_new = is_new
        self._changed: dict[Path, None] = {}
        self._changes = ChangedPaths()
        self._is_open = False
        self._is_ending = False

    async def run(self, copied: Callable[[], None]) -> None:
        """Copy until Ctrl-C, and call `copied` after the first copy.

        Raises `CommandFailed` if the source ends it, or cannot be followed to the end.
        """
        signal.signal(signal.SIGINT, self._end)
        is_first = True
        while True:
            await self._open()
            self.add(())
            while self._is_open or self._changed:
                await self.copy_changed()
                if is_first:
                    is_first = False
                    copied()
                if self._is_ending and self._is_open and not self._changed:
                    print_line("The source was followed to this moment: clients can be switched.")
                    return
                await self._pause(POLL_S)
            if self._changes.ended:
                raise CommandFailed(f"The source has ended the stream ({self._changes.ended}).")
            await self._try_again("The stream of the source broke.")

    def add(self, path: Path) -> None:
        """Note that what is at a path has changed."""
        self._changed[path] = None

    def _end(self, *_: object) -> None:
        if self._is_ending:
            os._exit(INTERRUPTED)  # a second Ctrl-C does not wait for what is left
        self._is_ending = True
        self._reactor.callFromThread(self._copying.give_up)

    async def _open(self) -> None:
        """Open a stream, and wait for its first event: what changes after that is not missed."""
        while True:
            try:
                response = await self._client.request("GET", self._url, STREAM_HEADERS)
            except NoResponse as error:
                await self._try_again(str(error))
                continue
            except CommandFailed as error:
                raise CommandFailed(f"{SOURCE}: {error}") from None
            if not _is_stream(response):
                raise CommandFailed(f"{SOURCE} does not send a stream at {self._url}.")
            self._changes, self._is_open = ChangedPaths(), True
            reading = Deferred.fromCoroutine(receive(response, self._url, self._consume))
            reading.addBoth(self._closed)
            while self._is_open and not (self._changes.has_begun or self._is_ending):
                await self._pause(POLL_S)
            if self._changes.has_begun:
                return
            await self._try_again("The stream of the source has no event.")

    async def _try_again(self, problem: str) -> None:
        """Report a problem, and wait before all is tried again; after Ctrl-C it is the end."""
        if self._is_ending:
            raise CommandFailed(f"{problem} {NOT_FOLLOWED}")
        warn(f"{problem} Trying again, with a whole copy.")
        await self._pause(RETRY_S)

    async def _pause(self, seconds: float) -> None:
        await deferLater(self._reactor, seconds, lambda: None)

    def _consume(self, piece: bytes) -> None:
        for path in self._changes.feed(piece):
            self.add(path)

    def _closed(self, _: object) -> None:
        self._is_open = False

    async def copy_changed(self) -> None:
        """Copy what has changed, and what changes meanwhile."""
        while self._changed:
            path = min(self._changed, key=len)
            for below in [each for each in self._changed if each[: len(path)] == path]:
                del self._changed[below]
            is_new, self._is_new = self._is_new, False
            await self._copying.copy(path, is_new=is_new and not path)
