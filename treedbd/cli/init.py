"""`treedb init DIR`: writes the files that a daemon needs to serve one project; overwrites nothing.

A `Plan` makes the texts: configuration, secret, rules, and a unit of systemd, which is the sample
`treedb.service` with the paths of the plan. Only the command reads and writes files.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import pathlib
import pwd
import re
import secrets
import shlex
import socket
import string
import sys
from argparse import Namespace
from collections.abc import Mapping
from typing import Final

import attrs

from treedbd.cli.exit import DONE, CommandFailed, Status, print_line
from treedbd.config.settings import DOMAIN
from treedbd.files import SAMPLES, create_directory, find_project_file, open_private, sync_directory
from treedbd.names import DEFAULT_DATABASE, parse_label

CONFIG_FILE: Final = "treedb.toml"
RULES_FILE: Final = "rules.json"
UNIT_FILE: Final = "treedb.service"
SECRET_BYTES: Final = 48
_CONFIG: Final = string.Template("""\
# The configuration of treedb: `treedb serve --config $config_file`, in this folder.
# Relative paths start from the folder of this file. All keys: `treedb init --print treedb.toml`.

# Plain HTTP, for this machine only: for a proxy such as nginx or Caddy, which has the certificate.
listen = ["tcp:$port:interface=127.0.0.1"]
# With that proxy, so that limits and the log have the addresses of clients and not the proxy's:
#trusted_proxies = ["127.0.0.1"]
# Without a proxy, with a certificate that the daemon's user can read; a port below 1024 needs a
# line in $unit_file too:
#listen = ["ssl:443:privateKey=key.pem:certKey=fullchain.pem"]

# The console, a page to look at the data and to edit it, for this machine only; it is opened by
# `treedb console --config $config_file`:
#console_listen = ["tcp:$console_port:interface=127.0.0.1"]

# Served are $name, which names no project, and $project.$name; without this key, all names.
${unless_domain}domains = ["$name"]

# The project of requests whose address names none.
default_project = "$project"

# The databases; the folder is created at the first start.
data = "data"

[projects.$project]
# It signs tokens: `treedb token --config $config_file --project $project --uid ada`.
secret_files = ["$secret_file"]
# After a change: `treedb rules check $rules_file`, then SIGHUP (`systemctl reload treedb`).
rules_file = "$rules_file"
""")
_RULES: Final = """\
{
  "rules": {
    // What no rule allows is denied; an admin's token is exempt from rules.
    "users": {
      "$uid": {
        // The user whose token has this uid owns this place.
        ".read": "auth != null && auth.uid === $uid",
        ".write": "auth != null && auth.uid === $uid"
      }
    }
  }
}
"""
_UNIT_HEAD: Final = string.Template("""\
# The unit of treedb for systemd, with a sandbox: `systemd-analyze security treedb` shows it. To
# install it, as root:
#     cp $unit_file /etc/systemd/system/ && systemctl daemon-reload
#     systemctl enable --now treedb
# Its log: journalctl -u treedb

""")
_HOMES: Final = ("/home/", "/root/", "/run/user/")

_FIRST_PORT: Final = 8080
_PORTS: Final = 100
_CONSOLE_PORT: Final = 1000
"""How much larger the port of the console is."""
ROOT_WARNING: Final = (
    f"The unit would run the daemon as root: name another user in User= of {UNIT_FILE}, and let "
    "that user own the folder: chown -R USER {folder}"
)


@attrs.frozen
class Plan:
    """The contents of the files: a folder, and a project that a user serves at a port.

    `domain` may be empty. `command` are the words that start `treedb` with the `interpreter`.
    """

    folder: pathlib.Path
    project: str
    domain: str
    port: int
    user: str
    command: tuple[str, ...]
    interpreter: pathlib.Path

    @property
    def secret_file(self) -> str:
        """The name of the file of the secret."""
        return f"{self.project}.secret"

    def files(self, unit_sample: str) -> Mapping[str, str]:
        """Return all files by their names; each call makes a new secret."""
        return {
            CONFIG_FILE: _CONFIG.substitute(
                config_file=CONFIG_FILE,
                unit_file=UNIT_FILE,
                rules_file=RULES_FILE,
                secret_file=self.secret_file,
                project=self.project,
                name=self.domain or "db.example.com",
                unless_domain="" if self.domain else "#",
                port=self.port,
                console_port=self.port + _CONSOLE_PORT,
            ),
            self.secret_file: f"{secrets.token_urlsafe(SECRET_BYTES)}\n",
            RULES_FILE: _RULES,
            UNIT_FILE: self._unit(unit_sample),
        }

    def _unit(self, sample: str) -> str:
        """Return the unit for this folder, user and command, made from the sample."""
        folder = self.folder.absolute()
        command = " ".join(quote_for_unit(word, is_command=True) for word in self.command)
        config_file = quote_for_unit(str(folder / CONFIG_FILE), is_command=True)
        lines: dict[str, str | None] = {
            "User": f"User={self.user}",
            "ExecStart": f"ExecStart={command} serve --config {config_file}",
            # The data is in this folder, so systemd must not create another.
            "StateDirectory": f"ReadWritePaths={quote_for_unit(str(folder))}",
            **dict.fromkeys(
                ("StateDirectoryMode", "ConfigurationDirectory", "ConfigurationDirectoryMode")
            ),
        }
        used = (folder, self.interpreter, *self.command)
        if any(str(each).startswith(_HOMES) for each in used):
            lines["ProtectHome"] = "ProtectHome=read-only"
        head = _UNIT_HEAD.substitute(unit_file=shlex.quote(str(folder / UNIT_FILE)))
        return head + _replace_lines(sample[sample.index("[Unit]") :], lines)


def _replace_lines(unit: str, lines: Mapping[str, str | None]) -> str:
    """Return a unit with the lines of some keys replaced, or removed by None."""
    replaced = (lines.get(line.partition("=")[0], line) for line in unit.splitlines())
    return "".join(f"{line}\n" for line in replaced if line is not None)


def quote_for_unit(word: str, *, is_command: bool = False) -> str:
    """Return a word quoted for systemd (systemd.syntax and systemd.service).

    `%` and, in a command line, `$` are doubled, because they begin specifiers and variables.
    """
    escaped = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    if is_command:
        escaped = escaped.replace("$", "$$")
    return f'"{escaped}"' if set(escaped) & set(" \t'\"\\") else escaped


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
        folder=folder,
        project=arguments.project,
        domain=arguments.domain or "",
        port=_find_free_port(),
        user=_user_name(),
        command=_command_words(),
        interpreter=pathlib.Path(sys.executable).resolve(),
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

    Raises `CommandFailed`, also if one of them exists.
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
    """Return a port on which no program of this machine listens, or the first port."""
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
    """Return the words that start this command from any folder."""
    script = pathlib.Path(sys.executable).with_name("treedb")
    return (str(script),) if script.exists() else (sys.executable, "-m", "treedbd")
