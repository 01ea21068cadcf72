"""From the blocks of a file to parts: JSON documents, and newline-delimited members.

A line of the latter is `{"key": …, "value": …}`. Long lines are not held in memory either.
"""

from __future__ import annotations

import re
from codecs import BOM_UTF16_BE, BOM_UTF16_LE
from collections.abc import Iterable, Iterator
from typing import Any, Final

from treedbd.cli.exit import CommandFailed
from treedbd.cli.loading.files import Format
from treedbd.cli.loading.parts import PART_BYTES, Check, InvalidMember, Part, PartMaker
from treedbd.tree.fragments import FRAGMENT_BYTES, Fragment, Splitter
from treedbd.tree.types import InvalidData, Path
from treedbd.tree.value import compact, parse

LONG_LINE_FRAGMENTS: Final = 16
_SHOWN_CHARACTERS: Final = 64
_UTF16: Final = (BOM_UTF16_LE, BOM_UTF16_BE)
_KEY: Final = "key"
_VALUE: Final = "value"
_JSON_PLACE: Final = re.compile(r": line \d+ column (\d+) \(char \d+\)")
"""What the parser says of the place, within what was parsed at once."""


class InvalidFile(CommandFailed):
    """A file cannot be imported, for what is at a place in it.

    `path` leads from the top of the document, `column` is empty if it is not known.
    """

    def __init__(self, reason: str, path: Path = (), line: int = 0, column: str = "") -> None:
        places = [f"line {line}"] if line else []
        places += [f"column {column}"] if column else []
        places += [f"at /{'/'.join(map(_shorten, path))}"] if path else []
        place = ", ".join(places)
        super().__init__(f"{place[0].upper()}{place[1:]}: {reason}" if place else reason)
        self.reason = reason
        self.path = path


def parts_of(
    blocks: Iterable[bytes],
    form: Format,
    *,
    is_merged: bool = False,
    fragment_bytes: int = FRAGMENT_BYTES,
    part_bytes: int = PART_BYTES,
    check: Check | None = None,
) -> Iterator[Part]:
    """Yield the parts of a file; raise `InvalidFile` for what is not valid.

    With `is_merged` other children of the target stay.
    """
    blocks = _as_utf8(blocks)
    if form == "ndjson":
        lines = _Lines(PartMaker(is_cut=True, part_bytes=part_bytes, check=check), fragment_bytes)
        return lines.parts(blocks)
    maker = PartMaker(is_merged=is_merged, part_bytes=part_bytes, check=check)
    return _of_document(blocks, maker, Splitter(fragment_bytes))


def body_of(blocks: Iterable[bytes], form: Format) -> bytes:
    """Return a valid file as the JSON of one body."""
    if form == "json":
        return b"".join(blocks)
    lines = [parse(line) for line in b"".join(blocks).split(b"\n") if line.strip()]
    members: list[Any] = [(line[_KEY], line[_VALUE]) for line in lines]  # type: ignore[index, call-overload]
    return b"{%b}" % b",".join(compact(key) + b":" + compact(value) for key, value in members)


def _as_utf8(blocks: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the blocks of a file; raise `InvalidFile` if they begin as UTF-16 does."""
    for number, block in enumerate(blocks):
        if not number and block.startswith(_UTF16):
            raise InvalidFile("The file is UTF-16 or UTF-32: convert it to UTF-8.")
        yield block


def _of_document(blocks: Iterable[bytes], maker: PartMaker, splitter: Splitter) -> Iterator[Part]:
    is_empty = True
    try:
        for block in blocks:
            is_empty = is_empty and not block.strip()
            for fragment in splitter.feed(block):
                yield from maker.add(fragment)
        if is_empty:
            raise InvalidFile("The file is empty.")
        for fragment in splitter.finish():
            yield from maker.add(fragment)
        yield from maker.finish()
    except InvalidData as error:
        raise _invalid(error) from None


class _Lines:
    """The lines of a file; a line is held in memory up to 16 fragments."""

    def __init__(self, maker: PartMaker, fragment_bytes: int) -> None:
        self._maker = maker
        self._fragment_bytes = fragment_bytes
        self._number = 1
        self._rest = b""
        self._long: _LongLine | None = None
        self._is_short = True  # the line is parsed at once, so columns are those of the line

    def parts(self, blocks: Iterable[bytes]) -> Iterator[Part]:
        try:
            for block in blocks:
                *lines, rest = block.split(b"\n")
                for line in lines:
                    yield from self._end(line)
                    self._number += 1
                yield from self._begin(rest)
            yield from self._end(b"")
            yield from self._maker.finish()
        except InvalidData as error:
            raise _invalid(error, self._number, has_column=self._is_short) from None

    def _begin(self, data: bytes) -> Iterator[Part]:
        self._rest += data
        if self._long is None and len(self._rest) > LONG_LINE_FRAGMENTS * self._fragment_bytes:
            self._long = _LongLine(self._maker, self._fragment_bytes)
        if self._long is not None:
            self._is_short = False
            data, self._rest = self._rest, b""
            yield from self._long.feed(data)

    def _end(self, data: bytes) -> Iterator[Part]:
        long, self._long = self._long, None
        self._is_short = long is None
        line, self._rest = self._rest + data, b""
        if long is None:
            yield from _add_line(line, self._maker)
        else:
            yield from long.feed(data)
            yield from long.finish()


def _add_line(line: bytes, maker: PartMaker) -> Iterator[Part]:
    if not line.strip():
        return
    json: Any = parse(line)
    if not isinstance(json, dict) or json.keys() != {_KEY, _VALUE}:
        raise _not_a_member()
    if not isinstance(json[_KEY], str):
        raise InvalidData('"key" must be a string.')
    yield from maker.add_member(json[_KEY], json[_VALUE], len(line))


class _LongLine:
    """A line that is longer than a part."""

    def __init__(self, maker: PartMaker, fragment_bytes: int) -> None:
        self._maker = maker
        self._splitter = Splitter(fragment_bytes)
        self._key: str | None = None
        self._has_value = False

    def feed(self, data: bytes) -> Iterator[Part]:
        for fragment in self._splitter.feed(data):
            yield from self._add(fragment)

    def finish(self) -> Iterator[Part]:
        for fragment in self._splitter.finish():
            yield from self._add(fragment)
        if not self._has_value:
            raise _not_a_member()

    def _add(self, fragment: Fragment) -> Iterator[Part]:
        if not fragment.path:
            yield from self._add_top(fragment.json)
            return
        if fragment.path[0] != _VALUE:
            raise _not_a_member()
        if self._key is None:
            raise InvalidData('"key" must precede the value in so long a line.')
        self._has_value = True
        yield from self._maker.add(fragment._replace(path=(self._key, *fragment.path[1:])))

    def _add_top(self, text: bytes) -> Iterator[Part]:
        json: Any = parse(text)
        if not isinstance(json, dict) or json.keys() - {_KEY, _VALUE}:
            raise _not_a_member()
        if _KEY in json:
            if not isinstance(json[_KEY], str) or self._key is not None:
                raise _not_a_member()
            self._key = json[_KEY]
        if _VALUE in json:
            if self._key is None or self._has_value:
                raise _not_a_member()
            self._has_value = True
            yield from self._maker.add_member(self._key, json[_VALUE], len(text))


def _invalid(error: InvalidData, line: int = 0, *, has_column: bool = False) -> InvalidFile:
    found = _JSON_PLACE.search(str(error))
    return InvalidFile(
        _JSON_PLACE.sub("", str(error)),
        error.path if isinstance(error, InvalidMember) else (),
        line,
        found[1] if has_column and found else "",
    )


def _shorten(key: str) -> str:
    return key if len(key) <= _SHOWN_CHARACTERS else f"{key[:_SHOWN_CHARACTERS]}…"


def _not_a_member() -> InvalidData:
    return InvalidData('A line must be an object with "key" and "value".')
