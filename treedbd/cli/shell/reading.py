"""The shell's commands that read: `ls`, `tree`, `cat` and `watch`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from treedbd.cli.exit import CommandFailed
from treedbd.cli.http_client import HttpClient
from treedbd.cli.options import Url, in_options
from treedbd.cli.shell.arguments import Given
from treedbd.cli.shell.printing import format_child, make_safe, pad, size_of, width_of
from treedbd.cli.shell.session import ShellSession
from treedbd.cli.watch import CHANGES, FINAL_EVENTS, EventParser, InvalidEvent, StreamEvent
from treedbd.tree.path import format_path
from treedbd.tree.types import Path

PAGE_KEYS: Final = 1000
PAGE_CHILDREN: Final = 100
MAX_TREE_LINES: Final = 1000
DEPTH: Final = 3
CHILDREN: Final = 20
MAX_COUNT: Final = 1_000_000
_SHOWN_CHARACTERS: Final = 60
_STREAM: Final = "text/event-stream"


def ls(session: ShellSession, given: Given) -> None:
    """Print the keys of the children, with `-l` their values or sizes."""
    path = session.resolve(given.path())
    is_long = "-l" in given.flags
    size = PAGE_CHILDREN if is_long else PAGE_KEYS
    after: str | None = None
    while True:
        found = session.list_children(path, size, after, sized=is_long)
        if not isinstance(found, dict):
            if found is not None and after is None:
                _print_long(session, {path[-1] if path else "/": found})
            return
        if is_long:
            _print_long(session, found)
        else:
            session.screen.print_names(list(found))
        if len(found) < size:
            return
        after = list(found)[-1]


def _print_long(session: ShellSession, children: dict[str, Any]) -> None:
    screen = session.screen
    widest = max(width_of(make_safe(key)) for key in children)
    for key, child in children.items():
        gap = pad("", widest - width_of(make_safe(key)))
        shown = format_child(child, _SHOWN_CHARACTERS)
        shown = shown if size_of(child) is not None else screen.style_json(shown)
        screen.print(f"{screen.style_name(key)}{gap}  {shown}")


def tree(session: ShellSession, given: Given) -> None:
    """Print children, and theirs, down to a depth."""
    path = session.resolve(given.path())
    depth = given.number("--depth", DEPTH, 32)
    width = given.number("--children", CHILDREN, PAGE_KEYS)
    screen = session.screen
    screen.print(screen.style_name(format_path(path)))
    for count, line in enumerate(_tree_lines(session, path, depth, width, "")):
        if count >= MAX_TREE_LINES:
            screen.note(f"There is more: {MAX_TREE_LINES:,} lines are shown.")
            return
        screen.print(line)


def _tree_lines(
    session: ShellSession, path: Path, depth: int, width: int, indent: str
) -> Iterator[str]:
    screen = session.screen
    found = session.list_children(path, width + 1, sized=True)
    if not isinstance(found, dict):
        if found is not None:
            yield f"{indent}└── {screen.style_json(format_child(found, _SHOWN_CHARACTERS))}"
        return
    children = list(found.items())
    for number, (key, child) in enumerate(children[:width], 1):
        is_last = number == len(children)
        name = f"{indent}{'└' if is_last else '├'}── {screen.style_name(key)}"
        shown = format_child(child, _SHOWN_CHARACTERS)
        if size_of(child) is None:
            yield f"{name}: {screen.style_json(shown)}"
        elif depth == 1:
            yield f"{name} {shown}"
        else:
            yield name
            below = f"{indent}{' ' if is_last else '│'}   "
            yield from _tree_lines(session, (*path, key), depth - 1, width, below)
    if len(children) > width:
        yield f"{indent}└── …"


def cat(session: ShellSession, given: Given) -> None:
    """Print a value, or what a query of it selects."""
    parameters = given.query()
    if "--raw" not in given.flags:
        parameters["print"] = "pretty"
    if "--shallow" in given.flags:
        parameters["shallow"] = "true"
    url = session.url_of(session.resolve(given.path()), parameters)
    with in_options():
        response = session.client.request("GET", url)
    session.screen.print_value(response.pieces())


def watch(session: ShellSession, given: Given) -> None:
    """Print the events of a path until Ctrl-C, or as many as are asked for."""
    path = session.resolve(given.path())
    left = given.number("-n", 0, MAX_COUNT)
    url = session.url_of(path, given.query())
    if session.screen.is_terminal:
        session.screen.note(f"{format_path(path)} is watched until Ctrl-C.")
    for event in _events(session.client, url):
        _show_event(session, event)
        left -= 1
        if left == 0:
            return
    raise CommandFailed(f"{url.origin} ended the stream.")


def _events(client: HttpClient, url: Url) -> Iterator[StreamEvent]:
    """Iterate over the changes of a stream, which is closed when the caller has enough of them."""
    with in_options():
        response = client.request("GET", url, {"Accept": _STREAM})
    try:
        kind = response.header("Content-Type") or ""
        if kind.partition(";")[0].strip() != _STREAM:
            raise CommandFailed(f"The response of {url.origin} is not a stream.")
        parser = EventParser()
        for piece in response.pieces():
            for event in parser.feed(piece):
                if event.kind in FINAL_EVENTS:
                    raise CommandFailed(FINAL_EVENTS[event.kind])
                if event.kind in CHANGES:
                    yield event
    finally:
        response.close()


def _show_event(session: ShellSession, event: StreamEvent) -> None:
    try:
        kind, path, data = event.print_text().decode().rstrip("\n").split("\t", 2)
    except (InvalidEvent, ValueError):
        raise CommandFailed(
            f"{session.root.origin} sent an event that treedb does not know."
        ) from None
    screen = session.screen
    screen.print(f"{kind}\t{screen.style_name(path)}\t{screen.style_json(data)}")
