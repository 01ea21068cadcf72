"""`treedb watch`: prints the events of a path until Ctrl-C.

A stream that breaks is opened again, after a pause that grows with each failure in a row, and
resumed after the last write that was received. A stream is broken, too, if nothing is received for
2.5 keep-alive intervals. The command ends by Ctrl-C, or with an error of the server. `events`
parses and prints what a stream sends.
"""

from __future__ import annotations

import math
import random
import signal
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Callable
from types import FrameType
from typing import Any, Final

import attrs
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorTime
from twisted.internet.task import deferLater

from treedbd.cli.client import Client, read_error, receive, run_online
from treedbd.cli.events import (
    CHANGES,
    FINAL_EVENTS,
    KEEP_ALIVE,
    EventParser,
    InvalidEvent,
    ResumePoint,
    StreamEvent,
)
from treedbd.cli.exit import CommandFailed, warn, write_out
from treedbd.cli.options import (
    ADDRESS_HELP,
    NoResponse,
    Url,
    add_network_options,
    add_query_options,
    add_settings_options,
    in_options,
    parse_address,
    query_parameters,
    read_settings,
)

FIRST_PAUSE_S: Final = 0.5
LONGEST_PAUSE_S: Final = 30.0
SILENT_KEEP_ALIVES: Final = 2.5
_STREAM: Final = "text/event-stream"


def add_options(parser: ArgumentParser, _: str) -> None:
    """Add the options of the command to its parser."""
    parser.add_argument("url", metavar="URL", type=parse_address, help=ADDRESS_HELP)
    parser.add_argument("--json", action="store_true", help="print each event as a JSON object")
    parser.add_argument(
        "--keep-alive",
        metavar="SECONDS",
        type=_seconds,
        help="the server's keep-alive interval (default: that of the configuration)",
    )
    add_query_options(parser)
    add_network_options(parser)
    add_settings_options(parser)
    parser.set_defaults(run=run_online, work=_watch)


@attrs.frozen
class WatchOptions:
    """What to watch; `show` prints an event, `note` a message about the connection."""

    url: Url
    keep_alive_s: float
    show: Callable[[StreamEvent], None]
    note: Callable[[str], None]


async def follow(
    client: Client, options: WatchOptions, clock: IReactorTime, rng: random.Random
) -> None:
    """Show all events from now on; raise `CommandFailed` when the server returns an error.

    Raises `NoResponse` only before the first stream.
    """
    listener = _Listener(client, options, clock)
    failures = 0
    while True:
        try:
            await listener.listen()
            problem = f"{options.url.origin} ended the stream."
        except NoResponse as error:
            if not listener.has_begun:
                raise
            problem = str(error)
        if listener.has_received:
            failures = 0
        if not failures:
            options.note(f"{problem} Trying again.")
        await deferLater(clock, pause_after(failures, rng, listener.retry_s))
        failures += 1


def pause_after(failures: int, rng: random.Random, retry_s: float = 0.0) -> float:
    """Return how many seconds to wait after this many failures in a row.

    Random, so that not all clients connect again at once; not shorter than the stream has asked
    for, up to the longest pause.
    """
    longest: float = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2 ** min(failures, 16))
    return max(longest * rng.uniform(0.5, 1.0), min(retry_s, LONGEST_PAUSE_S))


class _Listener:
    """Opens the stream again and again."""

    def __init__(self, client: Client, options: WatchOptions, clock: IReactorTime) -> None:
        self.has_begun = False
        self.has_received = False
        self.retry_s = 0.0
        self._client = client
        self._options = options
        self._clock = clock
        self._resume_point = ResumePoint()

    async def listen(self) -> None:
        """Show events until the stream ends; raise `NoResponse` or `CommandFailed`."""
        self.has_received = False
        is_silent = False

        def time_out() -> None:
            nonlocal is_silent
            is_silent = True
            listening.cancel()

        limit = self._options.keep_alive_s * SILENT_KEEP_ALIVES
        silence = self._clock.callLater(limit, time_out)
        listening = Deferred.fromCoroutine(self._listen(lambda: silence.reset(limit)))
        try:
            await listening
        except Exception:  # a cancelled connection fails in many ways
            if not is_silent:
                raise
            raise NoResponse(f"{self._options.url.origin} was silent for {limit:g} s.") from None
        finally:
            self._resume_point.record_end()
            if silence.active():
                silence.cancel()

    async def _listen(self, on_data: Callable[[], Any]) -> None:
        url, last_id = self._options.url, self._resume_point.last_event_id
        headers = {"Accept": _STREAM} | ({} if last_id is None else {"Last-Event-ID": last_id})
        response = await self._client.send("GET", url, headers)
        if response.code >= 500:
            raise NoResponse(await read_error(response, url))
        if response.code != 200:
            raise CommandFailed(await read_error(response, url))
        kind = (response.headers.getRawHeaders("Content-Type") or [""])[0]
        if kind.partition(";")[0].strip() != _STREAM:
            raise CommandFailed(f"The response of {url.origin} is not a stream.")
        self.has_begun = True
        parser = EventParser(last_id or "")

        def consume(data: bytes) -> None:
            for event in parser.feed(data):
                self.has_received = True
                self._handle(event)
            self.retry_s = parser.retry_s or self.retry_s
            on_data()

        await receive(response, url, consume)

    def _handle(self, event: StreamEvent) -> None:
        if event.kind in CHANGES:
            if self._resume_point.record(event):
                self._show(event)
        elif event.kind == KEEP_ALIVE:
            self._resume_point.record_keep_alive()
        elif event.kind in FINAL_EVENTS:
            raise CommandFailed(FINAL_EVENTS[event.kind])

    def _show(self, event: StreamEvent) -> None:
        try:
            self._options.show(event)
        except InvalidEvent:
            raise CommandFailed(
                f"{self._options.url.origin} sent an event that treedb does not know."
            ) from None


async def _watch(reactor: Any, client: Client, arguments: Namespace) -> None:
    url: Url = arguments.url.to_json().with_parameters(query_parameters(arguments))
    if not url.has("resume"):
        url = url.with_parameters({"resume": "true"})
    keep_alive_s = arguments.keep_alive or read_settings(arguments).streams.keep_alive_s
    show = _print_json if arguments.json else _print_text
    over: Deferred[None] = Deferred()

    def note(sentence: str) -> None:
        if not over.called:  # the reactor ends streams, too, when it stops
            warn(sentence)

    options = WatchOptions(url, keep_alive_s, show, note)

    def end(result: Any) -> None:
        if not over.called:
            over.callback(result)

    def interrupt(_signal: int, _frame: FrameType | None) -> None:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # a second one ends even a blocked write
        reactor.callFromThread(end, None)

    signal.signal(signal.SIGINT, interrupt)
    Deferred.fromCoroutine(follow(client, options, reactor, random.SystemRandom())).addBoth(end)
    with in_options():
        await over


def _print_text(event: StreamEvent) -> None:
    write_out(event.print_text())


def _print_json(event: StreamEvent) -> None:
    write_out(event.print_json())


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds <= 3600:
        raise ArgumentTypeError("must be a number of seconds above 0 and at most 3600")
    return seconds
