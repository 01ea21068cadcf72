"""Runs a command of one or a few requests, which needs no reactor and so starts fast.

Ctrl-C ends it at once, as it does any program.
"""

from __future__ import annotations

import signal
from argparse import Namespace
from collections.abc import Callable
from typing import TypeAlias

from treedbd.cli.exit import DONE, Status
from treedbd.cli.http_client import HttpClient
from treedbd.cli.options import choose_authorities, read_settings, read_token

SimpleWork: TypeAlias = Callable[[HttpClient, Namespace], None]
"""The work of a command, given a client and the command line."""


def run_once(arguments: Namespace) -> Status:
    """Do `arguments.request` with the daemon of `arguments.url`; raise `CommandFailed`."""
    work: SimpleWork = arguments.request
    client = make_http_client(arguments)
    if getattr(arguments, "output", None) is None:  # else an unfinished file has to be removed
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    work(client, arguments)
    return DONE


def make_http_client(arguments: Namespace) -> HttpClient:
    """Return the client that a command line describes; raise `CommandFailed`."""
    authorities = choose_authorities(arguments, arguments.url, read_settings(arguments))
    timeout = getattr(arguments, "timeout", None)
    return HttpClient(authorities, read_token(arguments), timeout and timeout.client_s)
