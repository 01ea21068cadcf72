"""A line of the shell as text: its commands, its words, and whether it goes on.

Words are quoted as in a POSIX shell: in single quotation marks, in double ones, or by a backslash
before one character. The value of a write is not a word: it is the rest of the command, as JSON, so
that its quotation marks need no others around them. Commands are separated by `;` outside of
quotation marks and brackets.
"""

from __future__ import annotations

import json
import re
import shlex
from typing import Final

import attrs

from treedbd.cli.exit import CommandFailed
from treedbd.cli.options import is_json

_SHOWN_CHARACTERS: Final = 60
_TOKEN = re.compile(r""""(?:[^"\\\n]|\\.)*"?|'[^']*'?|\\.|[\[\]{};]""", re.DOTALL)
_BLANK = re.compile(r"\s*")
_UNSAFE = re.compile(r"""[\s"'\\;{}\[\]]""")


@attrs.frozen
class Word:
    """A word of a command: its text without quotation marks, and where it stands in the line."""

    text: str
    start: int
    end: int
    is_closed: bool = True


class OpenLine:
    """Whether the text so far is only the beginning of a command, which may have many lines.

    It is while a bracket is open, or a value in single quotation marks. What was added before is
    not looked at again.
    """

    def __init__(self) -> None:
        """Start with nothing."""
        self._depth = 0
        self._in_quotes = False

    def add(self, text: str) -> bool:
        """Add text, which ends where a line does; return whether the command goes on."""
        begin = 0
        if self._in_quotes:
            begin = text.find("'") + 1
            if not begin:
                return True
            self._in_quotes = False
        for found in _TOKEN.finditer(text, begin):
            mark = found[0]
            if mark in "[{":
                self._depth += 1
            elif mark in "]}":
                self._depth = max(0, self._depth - 1)
            elif mark[0] == "'" and (len(mark) == 1 or mark[-1] != "'"):
                before = text[found.start() - 1 : found.start()]
                self._in_quotes = not before or before.isspace()
        return self._depth > 0 or self._in_quotes


def is_text(line: str) -> bool:
    """Return whether a line was UTF-8: Python keeps other bytes as lone surrogates."""
    try:
        line.encode()
    except UnicodeEncodeError:
        return False
    return True


def is_open(text: str) -> bool:
    """Return whether a text is only the beginning of a command."""
    return OpenLine().add(text)


def command_starts(text: str) -> list[int]:
    """Return where the commands of a text begin."""
    starts, depth = [0], 0
    for found in _TOKEN.finditer(text):
        if found[0] in "[{":
            depth += 1
        elif found[0] in "]}":
            depth = max(0, depth - 1)
        elif found[0] == ";" and not depth:
            starts.append(found.end())
    return starts


def split_commands(text: str) -> list[str]:
    """Return the commands of a text, without those that are empty; `#` begins a comment."""
    if text.lstrip().startswith("#"):
        return []
    starts = command_starts(text)
    ends = [start - 1 for start in starts[1:]] + [len(text)]
    commands = (text[start:end].strip() for start, end in zip(starts, ends, strict=True))
    return [each for each in commands if each]


def next_word(line: str, position: int) -> Word | None:
    """Return the word at or after a position, None if there is none."""
    start = at = _end_of_blank(line, position)
    if start == len(line):
        return None
    text: list[str] = []
    while at < len(line) and not line[at].isspace():
        if line[at] in "\"'":
            part, after = _quoted(line, at)
            text.append(part)
            if after is None:
                return Word("".join(text), start, len(line), is_closed=False)
            at = after
        elif line[at] == "\\":
            text.append(line[at + 1 : at + 2])
            at = min(at + 2, len(line))
        else:
            text.append(line[at])
            at += 1
    return Word("".join(text), start, at)


def split_words(line: str) -> list[Word]:
    """Return all words of a line; the last one may be unclosed."""
    words: list[Word] = []
    while (word := next_word(line, words[-1].end if words else 0)) is not None:
        words.append(word)
    return words


def quote(text: str) -> str:
    """Return a text as one word of a line."""
    return shlex.quote(text) if not text or _UNSAFE.search(text) else text


def read_json(text: str) -> str:
    """Return the JSON of a value, which may have single quotation marks around it.

    Raises `CommandFailed` with a hint.
    """
    if is_json(text):
        return text
    words = split_words(text) if text.startswith("'") else []
    if len(words) == 1 and words[0].is_closed and is_json(words[0].text):
        return words[0].text
    if not text:
        raise CommandFailed('A value is missing; it is JSON, such as 36 or "hello".')
    shown = text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}…"
    if text[0] in "[{\"'":
        raise CommandFailed(f"{shown} is not valid JSON.")
    hint = json.dumps(shown.strip("\"'"), ensure_ascii=False)
    raise CommandFailed(f"{shown} is not JSON: a string is written {hint}.")


def _end_of_blank(line: str, position: int) -> int:
    found = _BLANK.match(line, position)
    return position if found is None else found.end()


def _quoted(line: str, start: int) -> tuple[str, int | None]:
    """Return a part in quotation marks, and where it ends; None if it does not."""
    mark, at = line[start], start + 1
    text: list[str] = []
    while at < len(line):
        if line[at] == mark:
            return "".join(text), at + 1
        if mark == '"' and line[at] == "\\" and line[at + 1 : at + 2] in {'"', "\\"}:
            at += 1
        text.append(line[at])
        at += 1
    return "".join(text), None
