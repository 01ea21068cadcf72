"""A file of any size as parts of a document: its compression, its format, and the parts.

Theory of operation. `InputFile` reads a file in blocks of one length. `tree/fragments` cuts the
document in them into fragments, each with some members of one container. Here each member becomes a
place with a value, and about `PART_BYTES` of them are a `Part`. All parts, written in this order,
have the effect of writing the whole document:

- The first fragment of a container replaces the whole container, since an earlier member may have
  had the same name. Later fragments add their members to it.
- No place of a part is above another. A write below a place of the same part changes the value of
  that place; a write above places removes them from the part.
- The priority of a container that came in several fragments is written after everything else,
  because a priority needs a node. The same holds for the priority of the document.

The same document always has the same parts, so an import that was interrupted can go on by their
number. Every part sets places to values: written twice, it has the same effect.

The document may be JSON, or newline-delimited: each line is `{"key": …, "value": …}`, a member of
it. Neither a long line nor a long document is held in memory. A compressed file is recognised by
its first bytes when it is read, and by its name when it is written.
"""

from __future__ import annotations

import gzip
import io
import os
import re
import stat
import sys
import tempfile
import zlib
from codecs import BOM_UTF8, BOM_UTF16_BE, BOM_UTF16_LE
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any, BinaryIO, Final, Literal, TypeAlias, cast

import attrs

from treedbd.cli.exit import CommandFailed
from treedbd.cli.options import STANDARD_INPUT, standard_input
from treedbd.limits import KIB, MIB
from treedbd.tree.edit import Edit, make_patch, make_put
from treedbd.tree.fragments import FRAGMENT_BYTES, Fragment, Splitter
from treedbd.tree.path import check_keys
from treedbd.tree.types import PRIORITY, VALUE, InvalidData, InvalidPath, Json, Path, Place
from treedbd.tree.value import compact, nest, parse

Format: TypeAlias = Literal["json", "ndjson"]
BLOCK_BYTES: Final = 64 * KIB
FORMATS: Final[tuple[Format, ...]] = ("json", "ndjson")
_LINES: Final = (".ndjson", ".jsonl")
_COMPRESSED: Final = (".gz", ".zst")
_GZIP_MAGIC: Final = b"\x1f\x8b"
_ZSTD_MAGIC: Final = b"\x28\xb5\x2f\xfd"
_GZIP_LEVEL: Final = 6

PART_BYTES: Final = MIB
PART_MEMBERS: Final = 20_000
_NONE: Final = object()
Check: TypeAlias = Callable[[Path, Json], None]
"""Called with members of the container at a path; raises `InvalidData` if they are not valid."""

LONG_LINE_FRAGMENTS: Final = 16
_SHOWN_OF_A_LINE: Final = 64
_UTF16: Final = (BOM_UTF16_LE, BOM_UTF16_BE)
_KEY: Final = "key"
_VALUE: Final = "value"
_JSON_PLACE: Final = re.compile(r": line \d+ column (\d+) \(char \d+\)")
"""The place of an error in a message of the parser, within the text of one call."""


class InvalidMember(InvalidData):
    """The value at `path` in a document cannot be written."""

    def __init__(self, sentence: str, path: Path) -> None:
        super().__init__(sentence)
        self.path = path


if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd


def format_of(name: str, chosen: Format | None) -> Format:
    """Return the format of a file: the chosen one, or that of its name."""
    if chosen is not None:
        return chosen
    for suffix in _COMPRESSED:
        name = name.removesuffix(suffix)
    return "ndjson" if name.endswith(_LINES) else "json"


class InputFile:
    """A file, read in decompressed blocks, several times if need be; `-` is standard input.

    A source that can be read only once, such as a pipe, is copied to a temporary file first. All
    blocks have the same length, whatever the source is, so the parts are the same each time.

    Attributes:
        total: bytes of the file as it is stored, None if that is not known.

    """

    def __init__(self, name: str) -> None:
        """Open the file; raise `CommandFailed`."""
        self._shown: Final = "Standard input" if name == STANDARD_INPUT else name
        self.total: int | None = None
        self._is_stream = name == STANDARD_INPUT
        try:
            file = standard_input() if self._is_stream else open(name, "rb")  # noqa: SIM115
            if not self._is_stream:
                status = os.fstat(file.fileno())
                self._is_stream = not stat.S_ISREG(status.st_mode)
                self.total = None if self._is_stream else status.st_size
        except OSError as error:
            raise self._unreadable(error) from None
        self._file: BinaryIO = file
        self._counted = _CountedReader(file)

    @property
    def position(self) -> int:
        """How many bytes of the file, as it is stored, have been read."""
        return self._counted.count

    def keep(self, on_read: Callable[[], object]) -> None:
        """Copy a source that can be read only once; `on_read` is called after each block.

        Raises `CommandFailed`.
        """
        if not self._is_stream:
            return
        copy: BinaryIO = tempfile.TemporaryFile()  # noqa: SIM115
        while data := self._read(BLOCK_BYTES):
            try:
                copy.write(data)
            except OSError as error:
                raise _cannot_keep(self._shown, error) from None
            on_read()
        self.total = copy.tell()
        self._file, self._is_stream = copy, False

    def _read(self, size: int) -> bytes:
        try:
            return self._counted.read(size) or b""
        except OSError as error:
            raise self._unreadable(error) from None

    def blocks(self) -> Iterator[bytes]:
        """Yield the content in blocks of `BLOCK_BYTES`; the first and the last may be shorter.

        A byte order mark at its beginning is left out. Raises `CommandFailed` if the file cannot be
        read or is cut off.
        """
        try:
            if not self._is_stream:
                self._file.seek(0)
            self._counted = _CountedReader(self._file)
            content = _decompressed(self._counted)
            first = _read_block(content).removeprefix(BOM_UTF8)
            if first:
                yield first
            while block := _read_block(content):
                yield block
        except EOFError:
            raise CommandFailed(f"{self._shown} is cut off.") from None
        except (zlib.error, gzip.BadGzipFile, zstd.ZstdError) as error:
            raise CommandFailed(f"{self._shown} cannot be decompressed ({error}).") from None
        except OSError as error:
            raise self._unreadable(error) from None

    def _unreadable(self, error: OSError) -> CommandFailed:
        return CommandFailed(f"{self._shown} cannot be read ({error.strerror}).")


def _cannot_keep(shown: str, error: OSError) -> CommandFailed:
    return CommandFailed(
        f"{shown} cannot be copied to a temporary file in {tempfile.gettempdir()} "
        f"({error.strerror}): set TMPDIR to a directory with room for it."
    )


class _CountedReader(io.RawIOBase):
    """Reads a file and counts its bytes; `first` shows its first bytes without reading them."""

    def __init__(self, file: BinaryIO) -> None:
        super().__init__()
        self._file = file
        self._first = b""
        self.count = 0

    def first(self, size: int) -> bytes:
        """Return the first bytes; `readinto` returns them again."""
        while len(self._first) < size and (more := self._file.read(size - len(self._first))):
            self._first += more
        return self._first

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data, self._first = self._first, b""
        if not data:
            read = getattr(self._file, "read1", self._file.read)
            data = read(len(buffer))
        size = len(data)
        buffer[:size] = data
        self.count += size
        return size


def _decompressed(file: _CountedReader) -> BinaryIO:
    first = file.first(len(_ZSTD_MAGIC))
    buffered = io.BufferedReader(file, BLOCK_BYTES)
    if first.startswith(_GZIP_MAGIC):
        return cast(BinaryIO, gzip.GzipFile(fileobj=buffered))
    if first == _ZSTD_MAGIC:
        return cast(BinaryIO, zstd.ZstdFile(buffered))
    return buffered


def _read_block(file: BinaryIO) -> bytes:
    block = file.read(BLOCK_BYTES)
    while 0 < len(block) < BLOCK_BYTES and (more := file.read(BLOCK_BYTES - len(block))):
        block += more
    return block


def compressing(name: str, file: BinaryIO) -> BinaryIO:
    """Return a file that writes to `file`, compressed by the suffix of `name`.

    Closing it leaves `file` open; it must be closed first.
    """
    if name.endswith(".gz"):
        return cast(BinaryIO, gzip.GzipFile("", "wb", _GZIP_LEVEL, file, mtime=0))
    if name.endswith(".zst"):
        return cast(BinaryIO, zstd.ZstdFile(file, "wb"))
    return cast(BinaryIO, _Uncompressed(file))


class _Uncompressed:
    """Writes to a file, which `close` leaves open."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    def write(self, data: bytes) -> int:
        return self._file.write(data)

    def flush(self) -> None:
        self._file.flush()

    def close(self) -> None:
        self._file.flush()


@attrs.define
class Part:
    """Places below the target and their values, or a value for the target itself, the `whole`.

    The places are by containers: `groups` has the path of each, and by name the values of its
    children; a name may be `.priority`. `size` is about the bytes of the JSON, `records` the number
    of members that the document has there. A part that `follows_all` must be written after all
    parts before it.
    """

    groups: dict[Path, dict[str, Json]] = attrs.Factory(dict)
    size: int = 0
    records: int = 0
    follows_all: bool = False
    whole: Json | object = _NONE

    @classmethod
    def of(cls, places: Iterable[tuple[Path, Json]], *, follows_all: bool = False) -> Part:
        """Return a part that has these places."""
        part = cls(follows_all=follows_all)
        for path, value in places:
            part.groups.setdefault(path[:-1], {})[path[-1]] = value
        return part

    @property
    def is_whole(self) -> bool:
        """Whether it is the value of the target itself."""
        return self.whole is not _NONE

    @property
    def members(self) -> dict[Path, Json]:
        """The values by their paths; the empty path is the target itself."""
        if self.is_whole:
            return {(): cast(Json, self.whole)}
        return {
            (*path, name): value
            for path, children in self.groups.items()
            for name, value in children.items()
        }

    def __len__(self) -> int:
        return self.is_whole + sum(map(len, self.groups.values()))

    def body(self) -> dict[str, Json]:
        """Return the body of a PATCH of the target that writes the part."""
        found: dict[str, Json] = {}
        for path, children in self.groups.items():
            above = "".join([f"{key}/" for key in path])
            found.update({above + name: value for name, value in children.items()})
        return found

    def edit(self, target: Path, max_string_bytes: int) -> Edit:
        """Return the edit that writes the part; raise `InvalidData`."""
        if self.is_whole:
            return make_put(Place(target), cast(Json, self.whole), max_string_bytes)
        return make_patch(target, self.body(), max_string_bytes)

    def set(self, path: Path, members: dict[str, Json]) -> None:
        """Set children of the container at a path."""
        at = self._find_above(path)
        if at is not None:
            node: Any = self.groups[path[:at]]
            for key in path[at:]:
                node = node.setdefault(key, {})
            node.update(members)
            return
        depth = len(path)
        for each in [each for each in self.groups if each[:depth] == path and len(each) > depth]:
            if each[depth] in members:
                del self.groups[each]
        self.groups.setdefault(path, {}).update(members)

    def _find_above(self, path: Path) -> int | None:
        """Return the length of the container's path of a place that is at or above a path."""
        for at in range(len(path)):
            if path[at] in self.groups.get(path[:at], ()):
                return at
        return None

    def conflicts(self, other: Part) -> bool:
        """Return whether their order matters: a place of one is at or above one of the other."""
        if self.follows_all or other.follows_all:
            return True
        return self._reaches(other) or other._reaches(self)

    def _reaches(self, other: Part) -> bool:
        """Return whether a place is at one of the other part, or at or above a container of it."""
        return self.is_whole or any(
            self._find_above(path) is not None
            or not self.groups.get(path, {}).keys().isdisjoint(children)
            for path, children in other.groups.items()
        )


class PartMaker:
    """Makes parts of the fragments of one document."""

    def __init__(
        self,
        *,
        is_merged: bool = False,
        is_cut: bool = False,
        part_bytes: int = PART_BYTES,
        check: Check | None = None,
    ) -> None:
        """With `is_merged` the parts keep other children of the target, also if there is one part.

        With `is_cut` no fragment is a whole document. A part has about `part_bytes`.
        """
        self._check = check
        self._part_bytes = part_bytes
        self._is_merged = is_merged
        self._first: Fragment | None = None
        self._is_cut = is_cut
        self._part = Part()
        self._priorities: dict[Path, Json] = {}
        self._leaves: set[Path] = set()
        self._bare: set[Path] = set()  # containers of which only a priority was read so far
        self._special: set[Path] = set()  # the paths of priorities and leaves, and all above them

    def add(self, fragment: Fragment) -> Iterator[Part]:
        """Yield the parts that are complete with the next fragment; raise `InvalidData`."""
        if not self._is_cut and self._first is None:
            self._first = fragment  # the whole document, if no other fragment follows
            return
        if self._first is not None:
            first, self._first, self._is_cut = self._first, None, True
            yield from self._add(first)
        yield from self._add(fragment)

    def add_member(self, key: str, value: Json, size: int) -> Iterator[Part]:
        """Yield the parts that are complete with a child of the target; raise `InvalidData`."""
        if key != PRIORITY:
            check_member_keys((key,))
        if self._check is not None:
            self._check((), {key: value})
        if key == PRIORITY:
            self._priorities[()] = value
            self._mark(())
        else:
            self._set((), {key: value})
        yield from self._count(size, 1)

    def finish(self) -> Iterator[Part]:
        """Yield the parts that are left."""
        if self._first is not None:
            yield from self._whole(self._first)
        if len(self._part):
            yield self._part
        places = (((*path, PRIORITY), item) for path, item in self._priorities.items())
        while last := list(islice(places, PART_MEMBERS)):
            yield Part.of(last, follows_all=True)

    def _whole(self, fragment: Fragment) -> Iterator[Part]:
        json: Any = nest(fragment.path, cast(Any, fragment.parse()))
        is_container = isinstance(json, list) or (
            isinstance(json, dict) and all(key == PRIORITY or key[:1] != "." for key in json)
        )
        if self._is_merged and is_container:
            yield from self._add(fragment)
            return
        if self._is_merged and json is None:
            return  # no children
        if self._check is not None:
            self._check((), json)
        records = len(json) if isinstance(json, list | dict) else 1
        yield Part(size=fragment.size, records=records, whole=json)

    def _add(self, fragment: Fragment) -> Iterator[Part]:
        path, begun = fragment.path, fragment.begun
        members = members_of(fragment)
        check_member_keys(path)
        if self._check is None:
            check_member_keys([key for key in members if key[:1] != "."])
        else:
            self._check(path, members)
        is_new = begun <= len(path)
        earlier = _NONE if is_new else self._priorities.get(path, _NONE)
        priority = members.pop(PRIORITY, earlier)
        is_first = is_new or path in self._bare
        is_leaf = any(key[:1] == "." for key in members)
        if (path in self._leaves and members and not is_new) or (
            is_leaf and (not is_first or members.keys() != {VALUE})
        ):
            raise _not_a_leaf(path)
        self._place(path, begun, members, is_whole=is_leaf or (is_new and path != ()))
        if members:
            self._bare.discard(path)
        elif is_new:
            self._bare.add(path)
        if is_leaf:
            self._leaves.add(path)
            self._mark(path)
        if priority is not _NONE:
            self._priorities[path] = priority  # type: ignore[assignment]  # it is JSON
            self._mark(path)
        yield from self._count(fragment.size, len(members))

    def _place(self, path: Path, begun: int, members: dict[str, Json], *, is_whole: bool) -> None:
        """Set members of a container; with `is_whole` they replace all that it has so far."""
        top = min(max(begun, 1), len(path))
        if not is_whole:
            self._set(path, members)
        elif top:
            value = cast(Json, nest(path[top:], cast(Any, members)))
            self._set(path[: top - 1], {path[top - 1]: value})
        else:
            self._forget(())
            self._part.groups.clear()
            self._part.whole = members

    def _set(self, path: Path, members: dict[str, Json]) -> None:
        if self._priorities or self._leaves:
            for key in members:
                self._forget((*path, key))
        self._part.set(path, members)

    def _mark(self, path: Path) -> None:
        self._special.update([path[:at] for at in range(len(path) + 1)])

    def _forget(self, path: Path) -> None:
        """Forget the priorities and leaves at a place and below it, which is replaced."""
        if path in self._special:
            for each in [each for each in self._priorities if each[: len(path)] == path]:
                del self._priorities[each]
            self._leaves = {each for each in self._leaves if each[: len(path)] != path}

    def _count(self, size: int, records: int) -> Iterator[Part]:
        part = self._part
        part.size += size
        part.records += records
        if part.size >= self._part_bytes or len(part) >= PART_MEMBERS:
            yield part
            self._part = Part()


def split(pieces: Iterable[bytes]) -> Iterator[Fragment]:
    """Yield the fragments of a whole document, which arrives in pieces; raise `InvalidData`."""
    splitter = Splitter()
    for piece in pieces:
        yield from splitter.feed(piece)
    yield from splitter.finish()


def members_of(fragment: Fragment) -> dict[str, Json]:
    """Return the members of a container in a fragment; raise `InvalidData`."""
    parsed: Any = fragment.parse()
    if isinstance(parsed, list):
        return {str(at): item for at, item in enumerate(parsed, fragment.first)}
    return parsed  # type: ignore[no-any-return]  # a fragment of a container is one


def check_member_keys(keys: Iterable[str]) -> None:
    """Check the keys of a path, or of a container; raise `InvalidData`."""
    try:
        check_keys(list(keys))
    except InvalidPath as error:
        raise InvalidData(str(error)) from None


def _not_a_leaf(path: Path) -> InvalidMember:
    sentence = f"An object with {VALUE} must have no other member but {PRIORITY}."
    return InvalidMember(sentence, path)


class InvalidFile(CommandFailed):
    """A file cannot be imported because of the value at a place in it.

    `path` begins at the top of the document; `column` is empty if it is unknown.
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
        self._is_short = True  # the line is parsed in one call, so columns are those of the line

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
    """A line that is too long to be parsed in one call."""

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
    return key if len(key) <= _SHOWN_OF_A_LINE else f"{key[:_SHOWN_OF_A_LINE]}…"


def _not_a_member() -> InvalidData:
    return InvalidData('A line must be an object with "key" and "value".')
