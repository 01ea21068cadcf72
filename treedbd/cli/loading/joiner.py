"""Fragments put together again: a document, or newline-delimited members.

The joiner knows which containers are open and the last child of each that is complete, so the rest
of the document may come from other requests. There are no arrays in it: it is in the form that
`format=export` prints.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import orjson

from treedbd.cli.exit import CommandFailed
from treedbd.cli.loading.files import Format
from treedbd.tree.fragments import Fragment
from treedbd.tree.types import VALUE, Path
from treedbd.tree.value import NULL, compact


class Joiner:
    """Writes the fragments of one document.

    Attributes:
        path: the innermost container that is open, from the top of the document.

    """

    def __init__(self, write: Callable[[bytes], object], form: Format) -> None:
        """Call `write` with pieces of the text."""
        self._write = write
        self._is_lines = form == "ndjson"
        self.path: Path = ()
        self._has_begun = False
        self._is_closed = False
        self._has_members = [False]
        self._last: list[str | None] = [None]
        self._unread: bytes | None = None  # the last fragment, whose last key is not known yet

    @property
    def has_begun(self) -> bool:
        """Whether anything has been written."""
        return self._has_begun

    def last_keys(self) -> list[str | None]:
        """Return the last complete child of each container that is open; None if it has none."""
        if self._unread is not None:
            keys = [key for key in orjson.loads(self._unread) if key[:1] != "."]
            if keys:
                self._last[-1] = keys[-1]
            self._unread = None
        return self._last

    def go_on_after(self, key: str) -> None:
        """Continue lines of which those up to a key have been written."""
        self._has_begun = True
        self._last = [key]

    def add(self, fragment: Fragment, below: Path = ()) -> None:
        """Write a fragment of the document, or of what is at `below` in it."""
        text = fragment.json
        if text == NULL:
            return
        if not fragment.path and not below and self._is_leaf(text):
            self._add_leaf(text)
            return
        path = below + fragment.path
        if not self._has_begun:
            self._has_begun = True
            self._write(b"" if self._is_lines else b"{")
        self._move_to(path)
        if self._is_lines and not path:
            self._write_lines(text)
        else:
            self._separate()
            self._write(text[1:-1])
        self._unread = text

    def close_below(self, path: Path) -> None:
        """Close the containers below one that stays open."""
        self._move_to(path)

    def finish(self) -> None:
        """Close everything."""
        self._move_to(())
        if not self._is_lines and not self._is_closed:
            self._write(b"}" if self._has_begun else NULL)

    def _move_to(self, path: Path) -> None:
        """Close the containers that `path` is not in, and open those that lead to it."""
        while path[: len(self.path)] != self.path:
            self.last_keys()
            self._last.pop()
            self._has_members.pop()
            self._last[-1] = self.path[-1]
            self.path = self.path[:-1]
            self._write(b"}}\n" if self._is_lines and not self.path else b"}")
        for key in path[len(self.path) :]:
            self.last_keys()
            if self._is_lines and not self.path:
                self._write(b'{"key":%b,"value":{' % compact(key))
            else:
                self._separate()
                self._write(b"%b:{" % compact(key))
            self.path = (*self.path, key)
            self._last.append(None)
            self._has_members.append(False)

    def _separate(self) -> None:
        if self._has_members[-1]:
            self._write(b",")
        self._has_members[-1] = True

    def _write_lines(self, text: bytes) -> None:
        members: dict[str, Any] = orjson.loads(text)
        lines = [
            b'{"key":%b,"value":%b}\n' % (compact(key), compact(item))
            for key, item in members.items()
        ]
        self._write(b"".join(lines))

    def _is_leaf(self, text: bytes) -> bool:
        return text[:1] != b"{" or (not self._has_begun and VALUE in orjson.loads(text))

    def _add_leaf(self, text: bytes) -> None:
        if self._is_lines:
            raise CommandFailed("A value without children has no lines: export it as json.")
        self._write(text)
        self._has_begun = self._is_closed = True
