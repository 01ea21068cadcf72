"""`treedb watch`: prints what happens at a place, for as long as it is wanted.

Once a stream has been open, its end is not the end: it is opened again, after a pause that grows
with each failure in a row, and resumed where it broke off. It counts as broken, too, when nothing
comes for 2.5 times as long as keep-alives are apart. What ends the command is Ctrl-C, or a server
that says no.
"""

from __future__ import annotations

import math
import random
import signal
from argparse import ArgumentTypeError, Namespace
from collections.abc import Callable
from types import FrameType
from typing import Any, Final

import attrs
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorTime
from twisted.internet.task import deferLater

from treedbd.cli.client import Client, NoAnswer, receive, refusal
from treedbd.cli.events import CHANGES, KEEP_ALIVE, Event, NoEvent, Parser, Position
from treedbd.cli.online import online
from treedbd.cli.options import network_options, read_settings, settings_options
from treedbd.cli.outcome import CommandFailed, warn, write_out
from treedbd.cli.query import query_options, query_parameters
from treedbd.cli.url import Url, parse_url

FIRST_PAUSE_S: Final = 0.5
LONGEST_PAUSE_S: Final = 30.0
SILENT_KEEP_ALIVES: Final = 2.5

_STREAM: Final = "text/event-stream"
_LAST_WORDS: Final = {
    "cancel": "The stream was ended: the rules do not allow it any more.",
    "auth_revoked": "The stream was ended: the token is no longer valid.",
}


def add_to(commands: Any) -> None:
    """Add the command to a parser."""
    watch = commands.add_parser(
        "watch",
        help="print what happens at a place, until Ctrl-C",
        parents=[query_options(), network_options(), settings_options()],
    )
    watch.add_argument("url", metavar="URL", type=parse_url, help="a place, with or without .json")
    watch.add_argument("--json", action="store_true", help="print each event as a JSON object")
    watch.add_argument(
        "--keep-alive",
        metavar="SECONDS",
        type=_seconds,
        help="how far the server's keep-alives are apart (default: by the configuration)",
    )
    watch.set_defaults(run=online, work=_watch)


@attrs.frozen
class Wish:
    """What to watch and how to tell of it: `show` takes events, `note` sentences."""

    url: Url
    keep_alive_s: float
    show: Callable[[Event], None]
    note: Callable[[str], None]


async def follow(client: Client, wish: Wish, clock: IReactorTime, chance: random.Random) -> None:
    """Show all events from now on; raise `CommandFailed` when the server says no.

    Raises `NoAnswer` only where there has been no stream yet.
    """
    listener = _Listener(client, wish, clock)
    failures = 0
    while True:
        try:
            await listener.listen()
            trouble = f"{wish.url.origin} ended the stream."
        except NoAnswer as error:
            if not listener.has_begun:
                raise
            trouble = str(error)
        if listener.has_heard:
            failures = 0
        if not failures:
            wish.note(f"{trouble} Trying again.")
        await deferLater(clock, pause_after(failures, chance))
        failures += 1


def pause_after(failures: int, chance: random.Random) -> float:
    """Return how many seconds to wait after so many failures before this one.

    By chance, so that not all clients come back at once.
    """
    longest: float = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2 ** min(failures, 16))
    return longest * chance.uniform(0.5, 1.0)


class _Listener:
    """Opens the stream of a wish, time and again."""

    def __init__(self, client: Client, wish: Wish, clock: IReactorTime) -> None:
        self.has_begun = False
        self.has_heard = False
        self._client = client
        self._wish = wish
        self._clock = clock
        self._position = Position()

    async def listen(self) -> None:
        """Show events until the stream ends; raise `NoAnswer` or `CommandFailed`."""
        self.has_heard = False
        is_silent = False

        def give_up() -> None:
            nonlocal is_silent
            is_silent = True
            listening.cancel()

        limit = self._wish.keep_alive_s * SILENT_KEEP_ALIVES
        silence = self._clock.callLater(limit, give_up)
        listening = Deferred.fromCoroutine(self._listen(lambda: silence.reset(limit)))
        try:
            await listening
        except Exception:  # a cancelled connection fails in many ways
            if not is_silent:
                raise
            raise NoAnswer(f"{self._wish.url.origin} was silent for {limit:g} s.") from None
        finally:
            self._position.break_off()
            if silence.active():
                silence.cancel()

    async def _listen(self, hear: Callable[[], Any]) -> None:
        url, last_id = self._wish.url, self._position.last_event_id
        headers = {"Accept": _STREAM} | ({} if last_id is None else {"Last-Event-ID": last_id})
        response = await self._client.request("GET", url, headers)
        if response.code >= 500:
            raise NoAnswer(await refusal(response, url))
        if response.code != 200:
            raise CommandFailed(await refusal(response, url))
        kind = (response.headers.getRawHeaders("Content-Type") or [""])[0]
        if kind.partition(";")[0].strip() != _STREAM:
            raise CommandFailed(f"{url.origin} did not answer with a stream.")
        self.has_begun = True
        parser = Parser()

        def take(data: bytes) -> None:
            for event in parser.feed(data):
                self.has_heard = True
                self._take(event)
            hear()

        await receive(response, url, take)

    def _take(self, event: Event) -> None:
        if event.kind in CHANGES:
            if self._position.is_new(event):
                self._show(event)
        elif event.kind == KEEP_ALIVE:
            self._position.keep_alive()
        elif event.kind in _LAST_WORDS:
            raise CommandFailed(_LAST_WORDS[event.kind])

    def _show(self, event: Event) -> None:
        try:
            self._wish.show(event)
        except NoEvent:
            raise CommandFailed(
                f"{self._wish.url.origin} sent an event that is none of this interface."
            ) from None


async def _watch(reactor: Any, client: Client, arguments: Namespace) -> None:
    url: Url = arguments.url.place().ask(query_parameters(arguments))
    if not url.has("resume"):
        url = url.ask({"resume": "true"})
    keep_alive_s = arguments.keep_alive or read_settings(arguments).streams.keep_alive_s
    show = _print_json if arguments.json else _print_text
    over: Deferred[None] = Deferred()

    def note(sentence: str) -> None:
        if not over.called:  # the reactor, too, ends streams when it stops
            warn(sentence)

    wish = Wish(url, keep_alive_s, show, note)

    def end(result: Any) -> None:
        if not over.called:
            over.callback(result)

    def interrupt(_signal: int, _frame: FrameType | None) -> None:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # a second one ends even a blocked write
        reactor.callFromThread(end, None)

    signal.signal(signal.SIGINT, interrupt)
    Deferred.fromCoroutine(follow(client, wish, reactor, random.SystemRandom())).addBoth(end)
    await over


def _print_text(event: Event) -> None:
    write_out(event.print_text())


def _print_json(event: Event) -> None:
    write_out(event.print_json())


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds <= 3600:
        raise ArgumentTypeError("a number of seconds above 0 and at most 3600")
    return seconds
