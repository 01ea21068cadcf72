"""The prompt of the shell at a terminal, with its history.

No other module imports prompt_toolkit.

The history is a private file of bounded size, which never holds a token. An entry is a line of
JSON. A line that begins with a blank is not kept, nor is one that looks as if it held a token.
"""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import re
from collections.abc import Iterable
from typing import Final

from prompt_toolkit import PromptSession
from prompt_toolkit.application import get_app
from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document
from prompt_toolkit.filters import Condition
from prompt_toolkit.history import History, InMemoryHistory

from treedbd.cli.exit import CommandFailed, make_printable
from treedbd.cli.shell.shell import (
    KeyCache,
    ShellEnded,
    ShellSession,
    complete,
    is_open,
    note,
    run_line,
)
from treedbd.files import create_directory, open_private, write_atomically

MAX_ENTRIES: Final = 1000
MAX_ENTRY_CHARACTERS: Final = 4096
MAX_FILE_BYTES: Final = 16 * 1024 * 1024
_TOKEN = re.compile(r"\beyJ[\w-]{5,}\.[\w-]+|\b(auth|access_token)=|\bBearer\b")
_MAX_PROMPT_CHARACTERS = 50


def history_file() -> pathlib.Path:
    """Return the file of the user (XDG Base Directory Specification)."""
    given = os.environ.get("XDG_STATE_HOME", "")
    folder = pathlib.Path(given) if given.startswith("/") else pathlib.Path.home() / ".local/state"
    return folder / "treedb" / "shell-history"


def is_kept(line: str) -> bool:
    """Return whether a line belongs in the history."""
    is_short = 0 < len(line) <= MAX_ENTRY_CHARACTERS
    return is_short and not line[0].isspace() and _TOKEN.search(line) is None


class BoundedHistory(History):
    """The last lines, in a file that only its owner can read.

    If the file cannot be read or written, the history is that of this shell only.
    """

    def __init__(self, file: pathlib.Path) -> None:
        """Keep lines in `file`, which the first line creates."""
        super().__init__()
        self._file = file
        self._last = ""

    def load_history_strings(self) -> Iterable[str]:
        """Return the lines, the newest first; cut the file if it has many more."""
        entries = self._read()
        kept = entries[-MAX_ENTRIES:]
        if len(entries) > 2 * MAX_ENTRIES:
            with contextlib.suppress(OSError):
                write_atomically(self._file, "".join(map(_dump, kept)).encode())
        return reversed(kept)

    def append_string(self, string: str) -> None:
        """Add a line, unless it is not to be kept or was the last one."""
        if is_kept(string) and string != self._last:
            self._last = string
            super().append_string(string)

    def store_string(self, string: str) -> None:
        """Append a line to the file."""
        with contextlib.suppress(OSError):
            create_directory(self._file.parent)
            descriptor = open_private(self._file, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            with open(descriptor, "wb") as file:
                file.write(_dump(string).encode())

    def _read(self) -> list[str]:
        try:
            with self._file.open("rb") as file:
                lines = file.read(MAX_FILE_BYTES).decode(errors="replace").splitlines()
        except OSError:
            return []
        entries = []
        for line in lines:
            with contextlib.suppress(ValueError):
                entry = json.loads(line)
                if isinstance(entry, str):
                    entries.append(entry)
        return entries


def _dump(entry: str) -> str:
    return json.dumps(entry) + "\n"


class ShellCompleter(Completer):
    """Completes lines of a session."""

    def __init__(self, session: ShellSession, keys: KeyCache) -> None:
        self._session = session
        self._keys = keys

    def get_completions(
        self, document: Document, complete_event: CompleteEvent
    ) -> Iterable[Completion]:
        """Iterate over the completions of the word before the cursor; may send a request."""
        line = document.text_before_cursor
        for each in complete(line, self._session.resolve, self._keys):
            shown = make_printable(each.shown)
            yield Completion(each.text, each.start - len(line), display=shown)


def run_prompt(session: ShellSession, keys: KeyCache, file: pathlib.Path | None) -> None:
    """Run lines until the user leaves; keep them in a file, None for no history."""
    history: History = InMemoryHistory() if file is None else BoundedHistory(file)
    prompt: PromptSession[str] = PromptSession(
        history=history,
        completer=ShellCompleter(session, keys),
        complete_in_thread=True,
        complete_while_typing=False,
        enable_history_search=True,
        multiline=Condition(lambda: is_open(get_app().current_buffer.text)),
        prompt_continuation="... ",
    )
    question: PromptSession[str] = PromptSession(history=InMemoryHistory())
    session.confirm = lambda text: _confirm(question, text)
    while True:
        try:
            line = prompt.prompt(make_prompt(session))
        except KeyboardInterrupt:
            continue
        except EOFError:
            return
        try:
            run_line(session, line)
        except ShellEnded:
            return
        except KeyboardInterrupt:
            note("Interrupted.")
        except CommandFailed as error:
            note(str(error), is_error=True)


def make_prompt(session: ShellSession) -> str:
    """Return what is shown before a line."""
    place = make_printable(session.location)
    if len(place) > _MAX_PROMPT_CHARACTERS:
        place = f"{session.label}:…{place[-_MAX_PROMPT_CHARACTERS:]}"
    return f"{place}{' (as)' if session.auth is not None else ''}> "


def _confirm(question: PromptSession[str], text: str) -> bool:
    try:
        return question.prompt(make_printable(text)).strip().lower() in {"y", "yes"}
    except (EOFError, KeyboardInterrupt):
        return False
