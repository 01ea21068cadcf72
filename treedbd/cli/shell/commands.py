"""The commands of the shell: their names, arguments and help, and how a line is run."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from typing import Final

import attrs

from treedbd.cli.exit import CommandFailed
from treedbd.cli.options import Url, with_host, with_parameter
from treedbd.cli.shell import reading, writing
from treedbd.cli.shell.arguments import QUERY_OPTIONS, Given, Shape, parse_arguments
from treedbd.cli.shell.lines import is_text, next_word, read_json, split_commands
from treedbd.cli.shell.session import ShellSession
from treedbd.names import parse_label
from treedbd.tree.path import format_path
from treedbd.tree.types import ROOT

MAY_BE_FORBIDDEN: Final = frozenset({401, 403})
_BACK: Final = "-"


class ShellEnded(Exception):
    """The user leaves the shell."""


@attrs.frozen
class ShellCommand:
    """A command: what runs it, how it is written, what it does, and its arguments."""

    run: Callable[[ShellSession, Given], None]
    usage: str
    summary: str
    shape: Shape
    has_path: bool = True


def cd(session: ShellSession, given: Given) -> None:
    """Go to a path, which need not exist."""
    target = given.words[0] if given.words else "/"
    if target == _BACK:
        if session.previous is None:
            raise CommandFailed("There is no previous place yet.")
        path = session.previous
    else:
        path = session.resolve(target)
    session.previous, session.place = session.place, path
    if target == _BACK:
        session.screen.print(session.screen.style_name(format_path(path)))


def pwd(session: ShellSession, _: Given) -> None:
    """Print the path and the URL of the place."""
    url = session.root.below(session.place)
    shown = attrs.evolve(url, path=url.path or "/")
    session.screen.print(f"{session.screen.style_name(format_path(session.place))}  {shown}")


def use(session: ShellSession, given: Given) -> None:
    """Go to the root of another database."""
    label = given.words[0].lower()
    if parse_label(label) is None:
        raise CommandFailed("A database is written PROJECT or DATABASE--PROJECT, such as eu--shop.")
    session.root = _find_database(session, label)
    session.place, session.previous = ROOT, None
    session.changed()


def _find_database(session: ShellSession, label: str) -> Url:
    """Return the URL of a database; raise `CommandFailed`.

    The daemon refuses the parameter `ns` if the host names another database: then the first label
    of the host has to be replaced.
    """
    root = with_parameter(session.root, label)
    status, error = _probe(session, root)
    if status == 400 and "." in root.host:
        root = with_host(session.root, label)
        status, error = _probe(session, root)
    if error and status not in MAY_BE_FORBIDDEN:
        raise CommandFailed(error)
    return root


def _probe(session: ShellSession, root: Url) -> tuple[int, str]:
    url = root.below(ROOT).to_json().with_parameters({"shallow": "true", "limitToFirst": "1"})
    response = session.client.send("GET", url)
    if 200 <= response.status < 300:
        response.close()
        return response.status, ""
    return response.status, response.read_error()


def as_auth(session: ShellSession, given: Given) -> None:
    """Let rules see another `auth`, as admins may; without an argument as before."""
    auth = read_json(given.value) if given.value else None
    if auth is not None and not (auth == "null" or auth.startswith("{")):
        raise CommandFailed('as needs an object, such as {"uid": "ada"}, or null.')
    session.auth = auth
    session.changed()


def whoami(session: ShellSession, _: Given) -> None:
    """Print as whom requests are sent."""
    session.screen.print(session.identity)
    if session.auth is not None:
        session.screen.print(f"rules see auth = {session.screen.style_json(session.auth)}")


def leave(_session: ShellSession, _given: Given) -> None:
    """Leave the shell."""
    raise ShellEnded


def show_help(session: ShellSession, given: Given) -> None:
    """Print what the commands do, or how one is written."""
    if given.words:
        command = find_command(given.words[0])
        session.screen.print(f"{command.usage}\n    {command.summary}")
        options = [each for each in command.shape.names if each not in command.usage]
        if options:
            session.screen.print(f"    options: {' '.join(options)}")
        return
    widest = max(len(command.usage) for command in COMMANDS.values())
    for command in COMMANDS.values():
        session.screen.print(f"{command.usage:{widest}}  {command.summary}")


_NOTHING: Final = Shape(most=0)
_PATH: Final = Shape()
_ONE_WORD: Final = Shape(least=1)
_WRITE: Final = Shape(least=1, has_value=True)

COMMANDS: Final = {
    "cd": ShellCommand(cd, "cd [PATH]", "go to a path: .. is above, / the root, - back", _PATH),
    "pwd": ShellCommand(pwd, "pwd", "print where one is", _NOTHING, has_path=False),
    "ls": ShellCommand(
        reading.ls, "ls [-l] [PATH]", "print keys, with -l values and sizes", Shape(flags=("-l",))
    ),
    "tree": ShellCommand(
        reading.tree,
        "tree [--depth N] [--children N] [PATH]",
        f"print what is below, {reading.DEPTH} deep and {reading.CHILDREN} children of each",
        Shape(options=("--depth", "--children")),
    ),
    "cat": ShellCommand(
        reading.cat,
        "cat [--raw] [--shallow] [QUERY] [PATH]",
        "print a value; QUERY as in --order-by age --limit-to-first 3",
        Shape(flags=("--raw", "--shallow"), options=QUERY_OPTIONS),
    ),
    "watch": ShellCommand(
        reading.watch,
        "watch [-n N] [QUERY] [PATH]",
        "print changes until Ctrl-C, or N of them",
        Shape(options=("-n", *QUERY_OPTIONS)),
    ),
    "set": ShellCommand(
        writing.set_value, "set PATH VALUE", 'replace a value; VALUE is JSON: 1, "a", {…}', _WRITE
    ),
    "update": ShellCommand(
        writing.update, "update PATH OBJECT", "change some children, keep the others", _WRITE
    ),
    "push": ShellCommand(
        writing.push, "push PATH VALUE", "add a child with a new key, print the key", _WRITE
    ),
    "rm": ShellCommand(
        writing.rm,
        "rm [-f] PATH",
        "remove; asks before more than one value goes, but not with -f",
        Shape(flags=("-f",), least=1),
    ),
    "mv": ShellCommand(
        writing.mv,
        "mv [-f] PATH PATH",
        "move to another path; asks before it replaces a value, but not with -f",
        Shape(flags=("-f",), least=2, most=2),
    ),
    "use": ShellCommand(
        use, "use NAME", "go to another database, as PROJECT or DATABASE--PROJECT", _ONE_WORD, False
    ),
    "as": ShellCommand(
        as_auth,
        "as [OBJECT]",
        'let rules see this auth, as in as {"uid": "ada"}; as alone ends it (admins)',
        Shape(most=0, has_value=True),
        has_path=False,
    ),
    "whoami": ShellCommand(whoami, "whoami", "print whom the token names", _NOTHING, False),
    "help": ShellCommand(
        show_help, "help [COMMAND]", "print this, or about a command", _PATH, False
    ),
    "exit": ShellCommand(leave, "exit", "leave (or Ctrl-D)", _NOTHING, has_path=False),
}


MEANINGS: Final = {
    **dict.fromkeys(("remove", "del", "delete"), "rm"),
    "get": "cat",
    "put": "set",
    "post": "push",
    "patch": "update",
    "move": "mv",
    "rename": "mv",
    "quit": "exit",
}
"""What other programs call the commands."""


def find_command(name: str) -> ShellCommand:
    """Return a command by its name; raise `CommandFailed` with the nearest one."""
    command = COMMANDS.get(name)
    if command is not None:
        return command
    near = (
        [MEANINGS[name.lower()]]
        if name.lower() in MEANINGS
        else difflib.get_close_matches(name.lower(), COMMANDS, 1, 0.5)
    )
    hint = f"did you mean {near[0]}?" if near else "try help."
    raise CommandFailed(f"There is no command {name[:40]}: {hint}")


def run_line(session: ShellSession, line: str) -> None:
    """Run the commands of a line; raise `CommandFailed` at the first failure, or `ShellEnded`."""
    if not is_text(line):
        raise CommandFailed("The command is not UTF-8.")
    for text in split_commands(line):
        name = next_word(text, 0)
        if name is not None:
            command = find_command(name.text)
            given = parse_arguments(command.shape, text[name.end :], command.usage)
            command.run(session, given)
