"""What the shell prints: JSON in colours, names in columns, sizes.

A value may hold any characters. On a terminal those that could move its cursor are printed as the
escapes that JSON has for them; in a pipe all bytes stay as they are.
"""

from __future__ import annotations

import codecs
import json
import os
import re
import shutil
import sys
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from treedbd.cli.exit import make_printable, write_out

_RESET: Final = "\x1b[0m"
_KEY: Final = "\x1b[34m"
_STRING: Final = "\x1b[32m"
_NUMBER: Final = "\x1b[36m"
_WORD: Final = "\x1b[35m"
_ERROR: Final = "\x1b[31m"
_DIM: Final = "\x1b[2m"
_GAP: Final = 2
_TOKEN = re.compile(r'("(?:[^"\\]|\\.)*+")(\s*:)?|(-?\d[\d.eE+-]*)|\b(true|false|null)\b')
_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]")


class Screen:
    """Standard output and standard error, as a terminal or as files."""

    def __init__(self, *, is_terminal: bool, has_colour: bool) -> None:
        """Print for a terminal or not, in colours or not."""
        self.is_terminal: Final = is_terminal
        self.has_colour: Final = has_colour

    def print(self, text: str) -> None:
        """Print lines of text, which hold no value of the database."""
        write_out(os.fsencode(text) + b"\n")

    def note(self, sentence: str, *, is_error: bool = False) -> None:
        """Print a sentence for the user, which is no result."""
        text = make_printable(sentence)
        style = _ERROR if is_error else _DIM
        print(self._paint(style, text), file=sys.stderr, flush=True)

    def print_names(self, names: Sequence[str]) -> None:
        """Print names: in columns on a terminal, else one on each line."""
        if not self.is_terminal:
            lines: Iterable[str] = names
        else:
            lines = in_columns(list(map(make_safe, names)), shutil.get_terminal_size().columns)
        for line in lines:
            self.print(line)

    def print_value(self, pieces: Iterable[bytes]) -> None:
        """Print JSON as it arrives, and a line end."""
        last = b"\n"
        for piece in self._show_lines(pieces) if self.is_terminal else pieces:
            write_out(piece)
            last = piece[-1:] or last
        if last != b"\n":
            write_out(b"\n")

    def style_json(self, text: str) -> str:
        """Return JSON as it is shown."""
        if not self.is_terminal:
            return text
        return colour_json(make_safe(text)) if self.has_colour else make_safe(text)

    def style_name(self, text: str) -> str:
        """Return a key or a path as it is shown."""
        return self._paint(_KEY, make_safe(text)) if self.is_terminal else text

    def _show_lines(self, pieces: Iterable[bytes]) -> Iterator[bytes]:
        """Show whole lines: a token of JSON never spans two of them."""
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        rest: list[str] = []
        for piece in pieces:
            text = decoder.decode(piece)
            head, end, tail = text.rpartition("\n")
            if end:
                yield self.style_json("".join([*rest, head])).encode() + b"\n"
                rest = []
            rest.append(tail)
        yield self.style_json("".join(rest)).encode()

    def _paint(self, style: str, text: str) -> str:
        return f"{style}{text}{_RESET}" if self.has_colour else text


def make_screen() -> Screen:
    """Return the screen of this process; `NO_COLOR` turns colours off (https://no-color.org)."""
    is_terminal = sys.stdout.isatty()
    is_plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    return Screen(is_terminal=is_terminal, has_colour=is_terminal and not is_plain)


def colour_json(text: str) -> str:
    """Return JSON with the colours of its tokens."""
    return _TOKEN.sub(_colour, text)


def make_safe(text: str) -> str:
    """Return text, or JSON, without characters that a terminal obeys."""
    return _CONTROLS.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def in_columns(names: Sequence[str], width: int) -> list[str]:
    """Return lines of names, which are in order down each column."""
    widest = max(map(width_of, names), default=0) + _GAP
    columns = max(1, (width + _GAP) // widest)
    rows = -(-len(names) // columns)
    return ["".join(pad(name, widest) for name in names[row::rows]).rstrip() for row in range(rows)]


def pad(text: str, width: int) -> str:
    """Return text with blanks up to a width on a terminal."""
    return text + " " * (width - width_of(text))


def width_of(text: str) -> int:
    """Return how many columns a text takes on a terminal."""
    if text.isascii():
        return len(text)
    wide = sum(unicodedata.east_asian_width(each) in {"W", "F"} for each in text)
    return len(text) + wide - sum(map(bool, map(unicodedata.combining, text)))


def shorten(text: str, most: int) -> str:
    """Return the beginning of a text, as many characters as are asked for."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


def size_of(child: Any) -> int | None:
    """Return the bytes below a child of a shallow read; None for a leaf."""
    return child.get(".sz", 0) if isinstance(child, dict) else None


def format_child(child: Any, most: int) -> str:
    """Return a child of a shallow read as one short line: its value, or its size."""
    size = size_of(child)
    if size is not None:
        return f"({size:,} bytes)"
    return shorten(json.dumps(child, ensure_ascii=False), most)


def _colour(found: re.Match[str]) -> str:
    string, colon, number, word = found.groups()
    if colon is not None:
        return f"{_KEY}{string}{_RESET}{colon}"
    style = _STRING if string is not None else _NUMBER if number is not None else _WORD
    return f"{style}{string or number or word}{_RESET}"
