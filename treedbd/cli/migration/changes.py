"""Which paths of a database change: read from a stream of it, whatever is written.

Of an event only the paths are used: who follows reads what is there by itself, with its priorities,
which streams do not show. So an event may be of any length, and is not kept.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

import orjson

from treedbd.tree.types import PRIORITY, Path

LONGEST_LINE: Final = 1_048_576
"""Bytes of a line; of a longer one the keys of a PATCH are not looked at."""
_KEPT: Final = 65_536
_EVENT: Final = re.compile(rb"event: ?(\S+)")
_PATH: Final = re.compile(rb'data: ?\{"path" ?: ?("(?:[^"\\]|\\.)*"),')


class ChangedPaths:
    """Reads one stream in pieces.

    Attributes:
        has_begun: whether the first event has come.
        ended: why the stream is over: the event that says so, empty while it is not.

    """

    def __init__(self) -> None:
        self.has_begun = False
        self.ended = ""
        self._line = b""
        self._is_cut = False
        self._kind = ""
        self._is_first = True

    def feed(self, piece: bytes) -> Iterator[Path]:
        """Yield the paths that have changed; the first event only shows what is there."""
        *lines, rest = piece.split(b"\n")
        for line in lines:
            self._add(line)
            yield from self._end_line()
        self._add(rest)

    def _add(self, text: bytes) -> None:
        if len(self._line) + len(text) > LONGEST_LINE:
            self._is_cut = True
            text = b"" if len(self._line) >= _KEPT else text[:_KEPT]
            self._line = self._line[:_KEPT]
        self._line += text
        self.has_begun = self.has_begun or bool(self._line)

    def _end_line(self) -> Iterator[Path]:
        line, is_cut = self._line.rstrip(b"\r"), self._is_cut
        self._line, self._is_cut = b"", False
        if (found := _EVENT.fullmatch(line)) is not None:
            self._kind = found[1].decode("latin-1")
            if self._kind in ("cancel", "auth_revoked"):
                self.ended = self._kind
        elif self._kind in ("put", "patch") and (found := _PATH.match(line)) is not None:
            is_first, self._is_first = self._is_first, False
            if is_first:
                return
            path = _parse(orjson.loads(found[1]))
            if self._kind == "put" or is_cut:
                yield path
            else:
                members = orjson.loads(line.partition(b":")[2])["data"] or {}
                for key in members:
                    yield (*path, *_parse(key))


def _parse(text: str) -> Path:
    """Return a path as an event shows it; a priority is a change of its node."""
    return tuple(key for key in text.split("/") if key and key != PRIORITY)
