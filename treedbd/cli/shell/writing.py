"""The shell's commands that write: `set`, `update`, `push`, `rm` and `mv`."""

from __future__ import annotations

from treedbd.cli.exit import CommandFailed
from treedbd.cli.mv import Move, TargetExists
from treedbd.cli.shell.arguments import Given
from treedbd.cli.shell.lines import read_json
from treedbd.cli.shell.printing import make_safe
from treedbd.cli.shell.session import ShellSession, parse_response
from treedbd.tree.path import format_path


def set_value(session: ShellSession, given: Given) -> None:
    """Replace the value at a path."""
    session.write("PUT", session.resolve(given.path()), read_json(given.value))


def update(session: ShellSession, given: Given) -> None:
    """Change some children of a path and keep the others."""
    path, value = session.resolve(given.path()), read_json(given.value)
    if not value.lstrip().startswith("{"):
        raise CommandFailed('update needs the children as an object, such as {"age": 37}.')
    session.write("PATCH", path, value)


def push(session: ShellSession, given: Given) -> None:
    """Add a child with a new key, and print the key."""
    path, value = session.resolve(given.path()), read_json(given.value)
    answer = session.write("POST", path, value, is_silent=False)
    added = parse_response(answer, session.root)
    if isinstance(added, dict):
        session.screen.print(make_safe(str(added.get("name"))))


def rm(session: ShellSession, given: Given) -> None:
    """Remove the value at a path; ask first if it has children."""
    path = session.resolve(given.path())
    if "-f" not in given.flags and not path:
        _require_consent(session, "the whole database")
    elif "-f" not in given.flags:
        found = session.list_children(path, 2)
        if isinstance(found, dict):
            _require_consent(session, f"{format_path(path)} and everything below it")
    session.write("DELETE", path)


def mv(session: ShellSession, given: Given) -> None:
    """Move the value at a path to another one; ask first if something is there."""
    source, target = map(session.resolve, given.words)
    move = Move(session.client, session.url_of, source, target)
    try:
        move.run(replaces="-f" in given.flags)
    except TargetExists as error:
        if session.confirm is None:
            raise CommandFailed(f"{error} mv -f replaces it.") from None
        if not session.confirm(f"Replace what is at {format_path(target)}? [y/N] "):
            raise CommandFailed("Nothing is moved.") from None
        move.run(replaces=True)
    finally:
        session.changed()


def _require_consent(session: ShellSession, what: str) -> None:
    if session.confirm is None:
        raise CommandFailed(f"rm would remove {what}: write rm -f.")
    if not session.confirm(f"Remove {what}? [y/N] "):
        raise CommandFailed("Nothing is removed.")
