"""What Tab completes: the names of commands, their options, and the keys of the place.

Keys are read only when they are asked for, some hundreds of them, and kept for a few seconds.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final, Protocol

import attrs

from treedbd.cli.exit import CommandFailed
from treedbd.cli.shell.commands import COMMANDS, ShellCommand
from treedbd.cli.shell.lines import Word, command_starts, is_text, quote, split_words
from treedbd.tree.types import Path

MAX_KEYS: Final = 300
FETCH_S: Final = 1.5
KEPT_S: Final = 5.0
MAX_KEPT: Final = 64


class ReadKeys(Protocol):
    """A function that reads keys of the children of a path, in order, after a key."""

    def __call__(self, path: Path, after: str | None) -> list[str]:
        """Return up to `MAX_KEYS` keys; raise `CommandFailed`."""


class KeyCache:
    """Keys of places; several threads may use it."""

    def __init__(self, read: ReadKeys, now: Callable[[], float] = time.monotonic) -> None:
        """Read keys by a function; `now` is a clock in seconds."""
        self._read = read
        self._now = now
        self._kept: dict[tuple[Path, str | None], tuple[float, list[str]]] = {}
        self._lock = threading.Lock()

    def find(self, path: Path, prefix: str) -> list[str]:
        """Return keys that begin with a text; none if they cannot be read."""
        keys = self._keys(path, None)
        if len(keys) >= MAX_KEYS and prefix:
            # Those that begin with the text come right after it, but for numbers.
            more = self._keys(path, prefix)
            keys = list(dict.fromkeys([*keys, *more]))
        return [key for key in keys if key.startswith(prefix)]

    def clear(self) -> None:
        """Forget all keys, since something was written or the database is another."""
        with self._lock:
            self._kept.clear()

    def _keys(self, path: Path, after: str | None) -> list[str]:
        now = self._now()
        with self._lock:
            end, keys = self._kept.get((path, after), (now, []))
        if now < end:
            return keys
        try:
            keys = self._read(path, after)
        except CommandFailed:
            keys = []  # also kept, so that Tab does not wait again and again
        with self._lock:
            if len(self._kept) >= MAX_KEPT:
                self._kept.clear()
            self._kept[path, after] = (self._now() + KEPT_S, keys)
        return keys


@attrs.frozen
class Candidate:
    """A completion: the text that replaces the line from `start` on, and what is shown for it."""

    start: int
    text: str
    shown: str


def complete(line: str, resolve: Callable[[str], Path], keys: KeyCache) -> list[Candidate]:
    """Return what the last word of a line, at whose end the cursor is, may become."""
    begin = command_starts(line)[-1]
    words = split_words(line[begin:])
    if not words or (line[-1:].isspace() and words[-1].is_closed):
        words.append(Word("", len(line) - begin, len(line) - begin))
    last, start = words[-1].text, begin + words[-1].start
    if len(words) == 1:
        return _names(last, start, list(COMMANDS))
    command = COMMANDS.get(words[0].text)
    if words[0].text == "help":
        return _names(last, start, list(COMMANDS))
    if command is None or words[-2].text in command.shape.options:
        return []
    if last.startswith("--"):
        return _names(last, start, list(command.shape.names))
    paths = [word for word in words[1:-1] if word.text not in command.shape.names]
    is_value = command.shape.has_value and paths
    if not command.has_path or is_value or not is_text(line):
        return []
    return _paths(last, start, command, resolve, keys)


def _names(last: str, start: int, names: list[str]) -> list[Candidate]:
    return [Candidate(start, name, name) for name in names if name.startswith(last)]


def _paths(
    last: str, start: int, command: ShellCommand, resolve: Callable[[str], Path], keys: KeyCache
) -> list[Candidate]:
    head, slash, prefix = last.rpartition("/")
    try:
        above = resolve(head + slash if slash else ".")
    except CommandFailed:
        return []
    found = keys.find(above, prefix)
    return [Candidate(start, _write(head + slash, key, command), key) for key in found]


def _write(head: str, key: str, command: ShellCommand) -> str:
    is_like_option = key.startswith("--") or key == "-" or key in command.shape.names
    return quote(f"./{key}" if not head and is_like_option else head + key)
