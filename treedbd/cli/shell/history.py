"""The history of the shell: a private file of bounded size, which never holds a token.

An entry is a line of JSON. A line that begins with a blank is not kept, nor is one that looks as if
it held a token.
"""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import re
from collections.abc import Iterable
from typing import Final

from prompt_toolkit.history import History

from treedbd.files import create_directory, open_private, write_atomically

MAX_ENTRIES: Final = 1000
MAX_ENTRY_CHARACTERS: Final = 4096
MAX_FILE_BYTES: Final = 16 * 1024 * 1024
_TOKEN = re.compile(r"\beyJ[\w-]{5,}\.[\w-]+|\b(auth|access_token)=|\bBearer\b")


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

    A file that cannot be read or written is no error: the history is that of this shell then.
    """

    def __init__(self, file: pathlib.Path) -> None:
        """Keep lines in a file, which is made when there is one."""
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
