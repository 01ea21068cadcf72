"""From the blocks of a file to parts: JSON documents, and newline-delimited members.

A line of the latter is `{"key": …, "value": …}`. Long lines are not held in memory either.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

from treedbd.cli.exit import CommandFailed
from treedbd.cli.loading.files import Format
from treedbd.cli.loading.parts import PART_BYTES, Part, PartMaker
from treedbd.tree.errors import InvalidData
from treedbd.tree.fragments import FRAGMENT_BYTES, Fragment, Splitter
from treedbd.tree.printing import parse

LONG_LINE_FRAGMENTS: Final = 16
_KEY: Final = "key"
_VALUE: Final = "value"


def parts_of(
    blocks: Iterable[bytes],
    form: Format,
    *,
    is_merged: bool = False,
    fragment_bytes: int = FRAGMENT_BYTES,
    part_bytes: int = PART_BYTES,
) -> Iterator[Part]:
    """Yield the parts of a file; raise `CommandFailed` for what is not valid.

    With `is_merged` other children of the target stay.
    """
    if form == "ndjson":
        lines = _Lines(PartMaker(is_cut=True, part_bytes=part_bytes), fragment_bytes)
        return lines.parts(blocks)
    maker = PartMaker(is_merged=is_merged, part_bytes=part_bytes)
    return _of_document(blocks, maker, Splitter(fragment_bytes))


def _of_document(blocks: Iterable[bytes], maker: PartMaker, splitter: Splitter) -> Iterator[Part]:
    try:
        for block in blocks:
            for fragment in splitter.feed(block):
                yield from maker.add(fragment)
        for fragment in splitter.finish():
            yield from maker.add(fragment)
        yield from maker.finish()
    except InvalidData as error:
        raise CommandFailed(str(error)) from None


class _Lines:
    """The lines of a file; a line is held in memory up to 16 fragments."""

    def __init__(self, maker: PartMaker, fragment_bytes: int) -> None:
        self._maker = maker
        self._fragment_bytes = fragment_bytes
        self._number = 1
        self._rest = b""
        self._long: _LongLine | None = None

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
            raise CommandFailed(f"Line {self._number}: {error}") from None

    def _begin(self, data: bytes) -> Iterator[Part]:
        self._rest += data
        if self._long is None and len(self._rest) > LONG_LINE_FRAGMENTS * self._fragment_bytes:
            self._long = _LongLine(self._maker, self._fragment_bytes)
        if self._long is not None:
            data, self._rest = self._rest, b""
            yield from self._long.feed(data)

    def _end(self, data: bytes) -> Iterator[Part]:
        long, self._long = self._long, None
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


def _not_a_member() -> InvalidData:
    return InvalidData('A line must be an object with "key" and "value".')
