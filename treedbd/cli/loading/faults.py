"""Where something in a file is wrong: the path in the tree, the line and the column.

A file that is not valid is read once more, fragment by fragment. A fragment is text of the document
byte for byte, so its place is found by searching for it after the one before.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

import attrs
import orjson

from treedbd.cli.loading.documents import InvalidFile
from treedbd.cli.loading.parts import InvalidMember, check_member_keys, members_of
from treedbd.limits import KIB
from treedbd.tree.edit import normalise
from treedbd.tree.fragments import Fragment, Splitter
from treedbd.tree.types import InvalidData, Json, Path

_STEP_BYTES: Final = 4 * KIB
_TOKEN: Final = re.compile(rb'"(?:[^"\\]++|\\.)*+"|[{}\[\]:,]|[^\s"{}\[\]:,]+', re.DOTALL)
_CONTINUATION: Final = bytes(range(0x80, 0xC0))
"""The bytes of UTF-8 that do not begin a character."""


@attrs.frozen
class Validator:
    """Checks members of a document that is to be written below a target."""

    target: Path
    max_string_bytes: int

    def __call__(self, path: Path, json: Json) -> None:
        """Check members of the container at a path; raise `InvalidMember`."""
        try:
            normalise(json, len(self.target) + len(path), self.max_string_bytes)
        except InvalidData as error:
            raise InvalidMember(str(error), self._find(path, json)) from None

    def _find(self, path: Path, json: Any) -> Path:
        """Return the path of the first value in `json` that is not valid by itself."""
        if isinstance(json, list):
            json = {str(at): item for at, item in enumerate(json)}
        if not isinstance(json, dict):
            return path
        for key, value in json.items():
            if key[:1] == "." and key.lstrip(".") in ("priority", "value", "sv"):
                continue
            try:
                normalise({key: value}, len(self.target) + len(path), self.max_string_bytes)
            except InvalidData:
                return self._find((*path, key), value) if _is_key(key) else (*path, key)
        return path


def _is_key(key: str) -> bool:
    try:
        check_member_keys((key,))
    except InvalidData:
        return False
    return True


def add_place(
    error: InvalidFile, blocks: Callable[[], Iterable[bytes]], validator: Validator
) -> InvalidFile:
    """Return the error of a JSON document with the path, the line and the column of its cause."""
    offset, path = _Search(validator).run(blocks())
    if offset is None:
        return InvalidFile(error.reason, validator.target + error.path)
    line, column = _line_and_column(blocks(), offset)
    shown = validator.target + (path or error.path) if path or error.path else ()
    return InvalidFile(error.reason, shown, line, str(column))


class _Search:
    """The search for the first fragment that is not valid."""

    def __init__(self, validator: Validator) -> None:
        self._validator = validator
        self._splitter = Splitter()
        self._text = bytearray()  # from the end of the last fragment on
        self._begin = 0  # the offset of the text in the document
        self._is_first = True

    def run(self, blocks: Iterable[bytes]) -> tuple[int | None, Path]:
        """Return the offset of the fault in the document, and its path; None if it is unknown."""
        try:
            for fragment in self._fragments(blocks):
                try:
                    self._check(fragment)
                except InvalidData as error:
                    return self._offset(fragment, error), getattr(error, "path", ())
                self._pass(fragment)
        except InvalidData:  # what is between the fragments is not valid
            return max(0, self._begin + len(self._text) - self._splitter.unread - 1), ()
        return None, ()

    def _fragments(self, blocks: Iterable[bytes]) -> Iterator[Fragment]:
        for block in blocks:
            for at in range(0, len(block), _STEP_BYTES):  # small steps, so `unread` is exact
                piece = block[at : at + _STEP_BYTES]
                self._text += piece
                yield from self._splitter.feed(piece)
        yield from self._splitter.finish()

    def _check(self, fragment: Fragment) -> None:
        for end, key in enumerate(fragment.path, 1):
            if not _is_key(key):
                try:
                    check_member_keys((key,))
                except InvalidData as error:
                    raise InvalidMember(str(error), fragment.path[:end]) from None
        if self._is_whole(fragment):
            self._validator((), fragment.parse())
        else:
            self._validator(fragment.path, members_of(fragment))

    def _is_whole(self, fragment: Fragment) -> bool:
        return self._is_first and not fragment.path and self._text.startswith(fragment.json)

    def _find(self, fragment: Fragment) -> tuple[bytes, int]:
        """Return the text of a fragment, and its place in what was read; -1 if it is unknown."""
        if self._is_whole(fragment):
            return fragment.json, 0
        text = fragment.json[1:-1]
        return text, self._text.find(text)

    def _pass(self, fragment: Fragment) -> None:
        text, at = self._find(fragment)
        if at >= 0:
            del self._text[: at + len(text)]
            self._begin += at + len(text)
        self._is_first = False

    def _offset(self, fragment: Fragment, error: InvalidData) -> int | None:
        text, at = self._find(fragment)
        if at < 0:
            return None
        json = fragment.json
        inside = 0
        if isinstance(error, InvalidMember):
            inside = _offset_of(json, error.path[len(fragment.path) :], fragment.first)
        else:
            inside = _offset_of_error(json)
        return self._begin + at + max(0, inside - (len(json) > len(text)))


def _offset_of_error(text: bytes) -> int:
    """Return where JSON that cannot be parsed is wrong."""
    try:
        orjson.loads(text.decode())
    except UnicodeDecodeError as error:
        return error.start
    except orjson.JSONDecodeError as error:
        return len(error.doc[: error.pos].encode(errors="surrogatepass"))
    return 0


def _offset_of(text: bytes, wanted: Path, first: int) -> int:
    """Return where the member at a path begins in valid JSON; of one that is repeated the last.

    `first` is the index of the first item, if the text is an array.
    """
    found, at, begin = 0, first, 0
    path: list[str] = []
    is_key = False
    lists: list[bool] = []
    for match in _TOKEN.finditer(text):
        token = match[0]
        if is_key and token[:1] == b'"':
            path[-1], begin, is_key = orjson.loads(token), match.start(), False
        elif token in (b"}", b"]"):
            path.pop()
            lists.pop()
        elif token == b",":
            is_key = not lists[-1]
            path[-1] = str(int(path[-1]) + 1) if lists[-1] else path[-1]
        elif token != b":":
            if path == list(wanted):
                found = match.start() if lists[-1:] in ([True], []) else begin
            if token in (b"{", b"["):
                is_key = token == b"{"
                lists.append(not is_key)
                path.append("" if is_key else str(at))
        at = 0
    return found


def _line_and_column(blocks: Iterable[bytes], offset: int) -> tuple[int, int]:
    """Return the line of an offset, and the column in characters; both begin at 1."""
    line, column, left = 1, 1, offset
    for block in blocks:
        text = block[:left]
        left -= len(text)
        line += text.count(b"\n")
        end = text.rfind(b"\n") + 1
        column = (1 if end else column) + len(text[end:].translate(None, _CONTINUATION))
        if not left:
            break
    return line, column
