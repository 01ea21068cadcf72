"""The options that `treedb import` and `treedb export` share, and how both end."""

from __future__ import annotations

import argparse
import os
import signal
from argparse import ArgumentParser
from collections.abc import Callable
from typing import Final, NoReturn

from treedbd.cli.exit import INTERRUPTED, warn
from treedbd.cli.loading.files import FORMATS
from treedbd.cli.loading.retries import DEFAULT_RETRY_S
from treedbd.cli.options import add_network_options

_LONGEST_RETRY_S: Final = 86_400.0


def add_loading_options(parser: ArgumentParser) -> None:
    """Add the options of both commands."""
    parser.add_argument(
        "--format",
        choices=FORMATS,
        help="json: one document; ndjson: a line for each child, "
        '{"key": …, "value": …} (default: by the name of the file)',
    )
    parser.add_argument(
        "--restart", action="store_true", help="begin again, whatever a broken one has left"
    )
    parser.add_argument("--quiet", action="store_true", help="print no progress and no summary")
    parser.add_argument(
        "--retry-for",
        metavar="SECONDS",
        type=_seconds,
        default=DEFAULT_RETRY_S,
        help="how long a request that fails is tried again (default: %(default)g)",
    )
    _add_settings_options(parser)
    add_network_options(parser)


def _add_settings_options(parser: ArgumentParser) -> None:
    group = parser.add_argument_group("configuration and data")
    group.add_argument(
        "--config",
        metavar="FILE",
        default=argparse.SUPPRESS,  # it may precede the command as well
        help="the daemon's configuration file (default: the settings of development mode)",
    )
    group.add_argument(
        "--data",
        metavar="DIR",
        default=argparse.SUPPRESS,
        help="work on this data directory, whose daemon does not run; the URL names the path",
    )


def end_on_interrupt(before: Callable[[], None], sentence: Callable[[], str]) -> None:
    """End the process at Ctrl-C with a sentence; `before` is called first."""

    def end(_: int, __: object) -> NoReturn:
        before()
        warn(sentence())
        os._exit(INTERRUPTED)  # whatever threads and connections there are

    signal.signal(signal.SIGINT, end)


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds <= _LONGEST_RETRY_S:
        raise argparse.ArgumentTypeError(f"must be from 0 to {_LONGEST_RETRY_S:g} seconds")
    return seconds
