"""`treedb serve`: the daemon in the foreground, by the machinery of twistd.

The options become a command line of `twistd -n --pidfile= treedb`, so that the reactor, the signals
and the log are the same. Only the plugin is not looked for: it is this package's own.
"""

from __future__ import annotations

import argparse
import os
import pathlib
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar, Final

from twisted.application.service import ServiceMaker
from twisted.python.usage import UsageError
from twisted.scripts import twistd

from treedbd.cli.exit import DONE, CommandFailed, Status
from treedbd.cli.options import add_config_option, add_flag
from treedbd.tap import Options, find_contradiction

_DESCRIPTION: Final = (
    "Run the daemon in the foreground, until Ctrl-C or SIGTERM. Without --config it runs in "
    "development mode: only this machine can connect, at https://localhost:8443 and "
    "http://localhost:9000, or the next ports that are free; all its users may read and write "
    "everything until rules are put; the data is in ./treedb-data."
)
_EPILOG: Final = (
    "When the daemon answers requests, it prints one line: 'treedb ready' and its URLs. On SIGHUP "
    "it reads certificates, secrets, providers and rules files again; on a terminal, without a "
    "configuration, it ends, since the window was closed. The exit status is 0 "
    "after SIGTERM or Ctrl-C, and 1 if it cannot start, with one sentence on standard error. To "
    "write a configuration: treedb init DIR."
)
_SETTINGS: Final = ("config", "data", "engine", "reads", "workers")
_REPEATED: Final = ("listen", "origin")
_OF_TWISTD: Final = ("logfile", "logger", "reactor")
_SWITCHES: Final = ("accept-loss", "dev", "lan", "quiet")
_PLUGIN: Final = ServiceMaker("treedb", "treedbd.tap", "A JSON tree database over HTTPS.", "treedb")


def add_options(parser: argparse.ArgumentParser, _: str) -> None:
    """Add the options of the command to its parser."""
    parser.description, parser.epilog = _DESCRIPTION, _EPILOG
    _add_mode_options(parser)
    _add_serving_options(parser)
    _add_process_options(parser)
    parser.set_defaults(run=lambda arguments: _serve(arguments, parser))


def _add_mode_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("configuration")
    add_config_option(group, "-c", summary="the configuration file (TOML)")
    add_flag(group, "--dev", "development mode, as without --config")
    add_flag(
        group,
        "--lan",
        "development mode for phones, boards and all other machines of the local network: on "
        "all interfaces, by TLS only, with a certificate for the addresses of this machine, and a "
        "random token in place of owner, which is printed on standard output",
    )


def _add_serving_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("settings (they override the configuration)")
    group.add_argument(
        "-l",
        "--listen",
        metavar="ENDPOINT",
        action="append",
        default=[],
        help="where to listen, as an endpoint string of Twisted such as "
        "tcp:8080:interface=127.0.0.1; may be repeated",
    )
    group.add_argument(
        "--origin",
        metavar="URL",
        action="append",
        default=[],
        help="in development mode, allow pages of this origin to write too, such as "
        "https://app.example.com; may be repeated",
    )
    group.add_argument(
        "-w",
        "--workers",
        metavar="N",
        help="the number of worker processes, or auto: one for each core",
    )
    group.add_argument("-d", "--data", metavar="DIR", help="the directory that holds the databases")
    _add_engine_options(group)


def _add_engine_options(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "-e",
        "--engine",
        metavar="NAME|URL",
        help="the storage engine: sqlite, memory, or a URL postgresql://…",
    )
    group.add_argument(
        "--reads", metavar="MODE", help="with postgresql: strict, or local (may be late)"
    )
    add_flag(
        group,
        "--accept-loss",
        "serve databases from which changes are missing, such as older copies, this time",
    )


def _add_process_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("process and log")
    add_flag(group, "-q", "--quiet", "do not log the requests of development mode")
    group.add_argument(
        "--logfile", metavar="FILE", help="write the log to this file (default: standard output)"
    )
    group.add_argument(
        "--logger",
        metavar="NAME",
        help="write the log by the observer that this function returns, by its full Python name",
    )
    group.add_argument(
        "--reactor", metavar="NAME", help="the event loop: epoll, poll, select, asyncio, …"
    )


def _serve(arguments: Namespace, parser: argparse.ArgumentParser) -> Status:
    problem = find_contradiction(
        getattr(arguments, "config", None), dev=arguments.dev, lan=arguments.lan
    )
    if problem is not None:
        parser.error(problem)
    if arguments.logfile not in (None, "-"):
        _check_log_file(pathlib.Path(arguments.logfile))
    make: Callable[[], Any] = ServerCommandLine  # it has no types
    config = make()
    try:
        config.parseOptions(list(command_line(arguments)))
    except UsageError as error:  # a reactor or a logger that cannot be imported
        parser.error(str(error).partition("\n")[0].rstrip("."))
    twistd.runApp(config)
    return DONE


def command_line(arguments: Namespace) -> Iterator[str]:
    """Yield the same options as words after `twistd`."""
    given = vars(arguments)

    def written(names: Sequence[str]) -> Iterator[str]:
        return (f"--{name}={given[name]}" for name in names if given.get(name) is not None)

    yield from ("--nodaemon", "--pidfile=", *written(_OF_TWISTD), "treedb", *written(_SETTINGS))
    for name in _REPEATED:
        yield from (f"--{name}={each}" for each in given[name])
    yield from (f"--{name}" for name in _SWITCHES if given[name.replace("-", "_")])


class ServerCommandLine(twistd.ServerOptions):  # type: ignore[misc,name-defined]
    """The command line of twistd, with treedb as the only plugin."""

    loadedPlugins: ClassVar = {"treedb": _PLUGIN}

    @property
    def subCommands(self) -> Iterator[tuple[str, None, type[Options], str]]:
        """The only subcommand."""
        yield "treedb", None, Options, _PLUGIN.description


def _check_log_file(file: pathlib.Path) -> None:
    """Raise `CommandFailed` if the file of the log cannot be written."""
    try:
        os.close(os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o640))
    except OSError as error:
        raise CommandFailed(
            f"The log file {file} cannot be written ({error.strerror}): choose another --logfile."
        ) from None
