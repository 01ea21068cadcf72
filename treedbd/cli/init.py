"""`treedb init DIR`: writes what a daemon needs to serve one project, and overwrites nothing."""

from __future__ import annotations

import argparse
import contextlib
import os
import pathlib
import pwd
import re
import shlex
import socket
import sys
from argparse import Namespace
from collections.abc import Mapping
from typing import Final

from treedbd.cli.exit import DONE, CommandFailed, Status, print_line
from treedbd.cli.init_files import CONFIG_FILE, UNIT_FILE, Plan
from treedbd.config.settings import DOMAIN
from treedbd.files import SAMPLES, create_directory, find_project_file, open_private, sync_directory
from treedbd.names import DEFAULT_DATABASE, parse_label

_FIRST_PORT: Final = 8080
_PORTS: Final = 100
ROOT_WARNING: Final = (
    f"The unit would run the daemon as root: name another user in User= of {UNIT_FILE}, and let "
    "that user own the folder: chown -R USER {folder}"
)


def add_options(parser: argparse.ArgumentParser, _: str) -> None:
    """Add the options of the command to its parser."""
    parser.description = (
        "Write a configuration, a secret, rules and a unit of systemd to a folder. The daemon that "
        "they describe serves one project on loopback, for a proxy; comments show what to change "
        "for TLS. Nothing is overwritten."
    )
    parser.add_argument("dir", metavar="DIR", nargs="?", help="the folder, which may be missing")
    parser.add_argument(
        "--domain", metavar="NAME", type=_parse_domain, help="the host name that is served"
    )
    parser.add_argument(
        "--project",
        metavar="NAME",
        type=_parse_project,
        default="app",
        help="the name of the project (default: app)",
    )
    parser.add_argument(
        "--print",
        metavar="NAME",
        choices=SAMPLES,
        help=f"print a sample to change, and write nothing: {', '.join(SAMPLES)}",
    )
    parser.add_argument(
        "--print-sample",
        action="store_const",
        dest="print",
        const=CONFIG_FILE,
        help=f"the same as --print {CONFIG_FILE}: a configuration with every key, commented",
    )
    parser.set_defaults(run=lambda arguments: _init(arguments, parser))


def _parse_domain(text: str) -> str:
    if not re.fullmatch(DOMAIN, text):
        raise argparse.ArgumentTypeError("must be a host name such as db.example.com")
    return text.lower()


def _parse_project(text: str) -> str:
    name = parse_label(text)
    if name is None or name.project != text or name.database != DEFAULT_DATABASE:
        raise argparse.ArgumentTypeError(
            "must have small letters, digits and single hyphens, such as shop"
        )
    return text


def _init(arguments: Namespace, parser: argparse.ArgumentParser) -> Status:
    if arguments.print is not None:
        print_line(read_sample(arguments.print).removesuffix("\n"))
        return DONE
    if arguments.dir is None:
        parser.error("the following arguments are required: DIR")
    folder = pathlib.Path(arguments.dir)
    if not str(folder.absolute()).isprintable():
        raise CommandFailed("The name of the folder cannot be printed: choose another one.")
    plan = Plan(
        folder,
        arguments.project,
        arguments.domain or "",
        _find_free_port(),
        _user_name(),
        _command_words(),
        pathlib.Path(sys.executable).resolve(),
    )
    files = plan.files(read_sample(UNIT_FILE))
    write_new(folder, files)
    *names, last = files
    print_line(f"{', '.join(names)} and {last} are in {folder}. Next, the last two elsewhere:")
    for line in next_lines(plan):
        print_line(f"    {line}")
    if os.getuid() == 0:
        print_line(ROOT_WARNING.format(folder=shlex.quote(str(folder))))
    return DONE


def next_lines(plan: Plan) -> list[str]:
    """Return the lines to type next: start the daemon, make a token, write a value."""
    config = shlex.quote(str(plan.folder / CONFIG_FILE))
    token = f"treedb token --config {config} --project {plan.project} --admin"
    return [
        f"treedb serve --config {config}",
        f"export TREEDB_TOKEN=$({token})",
        f'treedb set http://127.0.0.1:{plan.port}/users/ada \'{{"name": "Ada"}}\'',
    ]


def write_new(folder: pathlib.Path, files: Mapping[str, str]) -> None:
    """Write files to a folder, for their owner only: all of them or none.

    Raises `CommandFailed`, if one exists too.
    """
    existing = [name for name in files if os.path.lexists(folder / name)]
    if existing:
        raise CommandFailed(
            f"{folder / existing[0]} exists already, and nothing was written: choose another "
            "folder, or move it away."
        )
    written: list[pathlib.Path] = []
    try:
        create_directory(folder)
        for name, content in files.items():
            file = folder / name
            descriptor = open_private(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
            written.append(file)
            with open(descriptor, "w", encoding="utf-8") as opened:
                opened.write(content)
                opened.flush()
                os.fsync(descriptor)
        sync_directory(folder)
    except OSError as error:
        for file in written:
            with contextlib.suppress(OSError):
                file.unlink()
        raise CommandFailed(
            f"The folder {folder} cannot be written to ({error.strerror}): choose another one."
        ) from None


def read_sample(name: str) -> str:
    """Return one of `SAMPLES`; raise `CommandFailed`."""
    try:
        return find_project_file(f"conf/{name}").read_text(encoding="utf-8")
    except OSError:
        raise CommandFailed("The sample is missing: install treedb again.") from None


def _find_free_port() -> int:
    """Return a port on which no program of this machine listens now; the first one if all do."""
    for port in range(_FIRST_PORT, _FIRST_PORT + _PORTS):
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
    return _FIRST_PORT


def _user_name() -> str:
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())


def _command_words() -> tuple[str, ...]:
    """Return the words that start this command from anywhere."""
    script = pathlib.Path(sys.executable).with_name("treedb")
    return (str(script),) if script.exists() else (sys.executable, "-m", "treedbd")
