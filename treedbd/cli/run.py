"""Runs a command that sends requests to a daemon: reactor, signals, client.

Ctrl-C ends a command at once, as it does any program; a command that must end differently sets its
own handler.
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
from treedbd.cli.exit import CommandFailed, OutputClosed, report_failure
from treedbd.cli.options import Url, choose_authorities, read_settings, read_token
from treedbd.config.settings import Settings
from treedbd.web.auth.fetch import BadAuthority, TrustStore, parse_authority, read_authority

Work: TypeAlias = Callable[[Any, Client, Namespace], Awaitable[None]]
"""The work of a command, given the reactor, a client and the command line."""


def run_online(arguments: Namespace) -> NoReturn:
    """Do `arguments.work` with the daemon of `arguments.url`, and end the process.

    Raises `CommandFailed` for what is wrong before the first request.
    """
    # Not imported at the top, because importing the reactor installs it.
    reactor = namedAny("twisted.internet.reactor")
    reactor.seconds = time.monotonic  # so that a step of the wall clock cannot stop a timer
    work: Work = arguments.work
    client = make_client(reactor, arguments)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    reactor.callWhenRunning(signal.signal, signal.SIGTERM, signal.SIG_DFL)

    async def run() -> None:
        try:
            await work(reactor, client, arguments)
        except (CommandFailed, OutputClosed) as error:
            raise SystemExit(report_failure(error)) from None

    react(lambda _: Deferred.fromCoroutine(run()))


def make_client(reactor: Any, arguments: Namespace) -> Client:
    """Return the client that a command line describes; raise `CommandFailed`."""
    trust = choose_trust_store(arguments, arguments.url, read_settings(arguments))
    return Client(reactor, trust, read_token(arguments))


def choose_trust_store(arguments: Namespace, url: Url, settings: Settings) -> TrustStore:
    """Return the certificates that verify the server of a URL; raise `CommandFailed`."""
    trusted = []
    for file in choose_authorities(arguments, url, settings):
        try:
            trusted += parse_authority(read_authority(file))
        except BadAuthority as error:
            raise CommandFailed(f"{file} {error.problem}.") from None
    return TrustStore(trusted or None)
