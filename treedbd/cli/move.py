"""`treedb move`: brings all databases from the embedded engine to PostgreSQL, or back.

Most is copied while the daemon runs; then writes are refused for the rest. Nothing is removed from
where the data comes from, and nothing of the copy can be served before it is complete.
"""

from __future__ import annotations

import pathlib
import signal
from argparse import SUPPRESS, ArgumentParser, Namespace
from typing import Any, Final, NoReturn

import attrs

from treedbd.cli.cluster import load_with_driver
from treedbd.cli.exit import DONE, CommandFailed, Status
from treedbd.cli.options import read_settings
from treedbd.config.settings import Settings, load_settings
from treedbd.config.values import ConfigError
from treedbd.errors import OperatorError
from treedbd.store.engine import DiskFull, StoreFailed, StoreUnreachable

_DESCRIPTION: Final = (
    "Bring all databases, with their rules and change logs, from the embedded engine to PostgreSQL "
    "or back. FROM.toml is the configuration of the daemons that have the data, TO.toml that of "
    "the daemons that are to have it; one names a URL postgresql://… as its engine, and each has a "
    "data directory of its own. Run it on the machine with the data directory of the embedded "
    "engine, as the user of its daemon. Leave the daemons running: most is copied meanwhile, then "
    "they refuse writes with 503 while the rest is copied and all is verified, which takes "
    "seconds, and go on serving reads. When the command has said that the data is moved, stop them "
    "and start those of TO.toml. If it fails, the old daemons accept writes again; run it again."
)


@attrs.frozen
class MoveOptions:
    """What an operator has chosen.

    Attributes:
        source: the settings of the daemons that have the data.
        target: the settings of those that are to have it.
        replace: whether databases that are there already are replaced.
        undo: whether an attempt that was killed is to be ended without a move.
        quiet: whether only errors are printed.

    """

    source: Settings
    target: Settings
    replace: bool
    undo: bool
    quiet: bool


def add_options(parser: ArgumentParser, _: str) -> None:
    """Add the options of the command to its parser."""
    parser.description = _DESCRIPTION
    parser.add_argument(
        "--config",
        metavar="FROM.toml",
        default=SUPPRESS,  # it may precede the command as well
        help="the configuration of the daemons that have the data",
    )
    parser.add_argument(
        "--to",
        metavar="TO.toml",
        type=pathlib.Path,
        required=True,
        help="the configuration of the daemons that are to have it",
    )
    choice = parser.add_mutually_exclusive_group()
    choice.add_argument(
        "--replace",
        action="store_true",
        help="replace what is there: databases of the same names in PostgreSQL are removed, a data "
        "directory gets another name",
    )
    choice.add_argument(
        "--undo",
        action="store_true",
        help="after a move that was killed: let the old daemons accept writes again, and remove "
        "the incomplete copy",
    )
    parser.add_argument("--quiet", action="store_true", help="print errors only")
    parser.set_defaults(run=_move)


def _move(arguments: Namespace) -> Status:
    options = _read_options(arguments)
    for number in (signal.SIGTERM, signal.SIGHUP):  # a closed terminal must not leave it half done
        if signal.getsignal(number) != signal.SIG_IGN:  # as nohup has it
            signal.signal(number, _stop)
    moving: Any = load_with_driver("treedbd.cli.moving")
    if options.target.is_cluster:
        work = moving.undo_inward if options.undo else moving.move_inward
    else:
        work = moving.undo_outward if options.undo else moving.move_outward
    try:
        work(options)
    except (OperatorError, StoreUnreachable, StoreFailed, DiskFull) as error:
        raise CommandFailed(str(error)) from None
    except OSError as error:
        raise CommandFailed(f"The move failed ({error.strerror}: {error.filename}).") from None
    return DONE


def _stop(number: int, _: object) -> NoReturn:
    raise KeyboardInterrupt(signal.Signals(number).name)


def _read_options(arguments: Namespace) -> MoveOptions:
    if getattr(arguments, "config", None) is None:
        raise CommandFailed("Choose the configuration of the daemons with the data by --config.")
    source = read_settings(arguments)
    try:
        target = load_settings(arguments.to, {}, pathlib.Path.cwd())
    except ConfigError as error:
        raise CommandFailed(str(error)) from None
    if "memory" in (source.engine, target.engine):
        raise CommandFailed("The memory engine stores nothing that could be moved.")
    if source.is_cluster == target.is_cluster:
        raise CommandFailed(
            "One configuration must have the embedded engine (sqlite), and the other a URL "
            "postgresql://… as engine."
        )
    if source.data.resolve() == target.data.resolve():
        raise CommandFailed(
            f"Both configurations have the data directory {source.data}: choose another for one."
        )
    return MoveOptions(source, target, arguments.replace, arguments.undo, arguments.quiet)
