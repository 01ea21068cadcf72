"""Running a command that asks a daemon: the reactor, the signals, the client.

Ctrl-C ends a command at once, as it ends any program; a command that wants to end in another way
sets its own handler.
"""

from __future__ import annotations

import signal
import time
from argparse import Namespace
from collections.abc import Awaitable, Callable
from typing import Any, NoReturn, TypeAlias

from twisted.internet.defer import Deferred
from twisted.internet.task import react
from twisted.python.reflect import namedAny

from treedbd.cli.client import Client
from treedbd.cli.options import choose_trust, read_settings, read_token
from treedbd.cli.outcome import CommandFailed, ReaderLeft, conclude

Work: TypeAlias = Callable[[Any, Client, Namespace], Awaitable[None]]
"""What a command does, given the reactor, a client, and its command line."""


def online(arguments: Namespace) -> NoReturn:
    """Do `arguments.work` at the daemon of `arguments.url`, and end the process.

    Raises `CommandFailed` for what is wrong before anybody is asked.
    """
    # Not imported at the top, because importing the reactor chooses it.
    reactor = namedAny("twisted.internet.reactor")
    reactor.seconds = time.monotonic  # a step of the wall clock must not freeze a timer
    work: Work = arguments.work
    client = make_client(reactor, arguments)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    reactor.callWhenRunning(signal.signal, signal.SIGTERM, signal.SIG_DFL)

    async def work_to_the_end() -> None:
        try:
            await work(reactor, client, arguments)
        except (CommandFailed, ReaderLeft) as error:
            raise SystemExit(conclude(error)) from None

    react(lambda _: Deferred.fromCoroutine(work_to_the_end()))


def make_client(reactor: Any, arguments: Namespace) -> Client:
    """Return the client that a command line describes; raise `CommandFailed`."""
    trust = choose_trust(arguments, arguments.url, read_settings(arguments))
    return Client(reactor, trust, read_token(arguments))
