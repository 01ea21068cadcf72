"""`treedb cluster status`: what a PostgreSQL holds, and which daemons serve it how well.

It loads what needs the driver of PostgreSQL, which is not installed with treedb alone.
"""

from __future__ import annotations

from argparse import SUPPRESS, ArgumentParser, Namespace
from importlib import import_module
from typing import Any, Final

from treedbd.cli.exit import DONE, CommandFailed, Status, make_printable, print_line
from treedbd.cli.options import read_settings
from treedbd.errors import OperatorError
from treedbd.files import read_installation
from treedbd.store.engine import StoreUnreachable

_DRIVER: Final = "psycopg"


def load_with_driver(module: str) -> Any:
    """Import a module of `treedbd` that needs the driver; raise `CommandFailed` without it."""
    try:
        import_module(_DRIVER)
    except ImportError:  # or the library of PostgreSQL is missing, which it needs
        raise CommandFailed(
            "The driver of PostgreSQL is not installed: run "
            f"{read_installation().line_for('postgresql')}."
        ) from None
    return import_module(module)


def add_options(parser: ArgumentParser, _: str) -> None:
    """Add the subcommands to the parser of the command."""
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    status = commands.add_parser("status", help="show the server, the daemons and the databases")
    status.description = (
        "Show the PostgreSQL that a configuration names, the daemons that use it and their lag, "
        "and its databases. Nothing is changed."
    )
    status.add_argument(
        "--config",
        metavar="FILE",
        default=SUPPRESS,  # it may precede the command as well
        help="the configuration file of a daemon",
    )
    status.add_argument("--json", action="store_true", help="print one JSON object")
    status.set_defaults(run=_show_status)


def _show_status(arguments: Namespace) -> Status:
    settings = read_settings(arguments)
    if not settings.is_cluster:
        raise CommandFailed(
            f'The engine is "{settings.engine}", which has no cluster: choose a configuration '
            "whose engine is a URL postgresql://… by --config."
        )
    status = load_with_driver("treedbd.cli.cluster_status")
    try:
        report = status.read_report(settings.engine)
    except (OperatorError, StoreUnreachable) as error:
        raise CommandFailed(str(error)) from None
    if arguments.json:
        print_line(status.as_json(report))
    else:
        for line in status.as_lines(report):
            print_line(make_printable(line))
    return DONE
