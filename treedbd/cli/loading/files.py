"""The files that are imported and exported: their formats and their compression.

A file is read in blocks of one length, whatever its source is, so that it is cut into the same
parts each time. How it is compressed is recognised by its first bytes, for writing by its name.
"""

from __future__ import annotations

import gzip
import io
import os
import stat
import sys
import tempfile
import zlib
from codecs import BOM_UTF8
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO, Final, Literal, TypeAlias, cast

from treedbd.cli.exit import CommandFailed
from treedbd.cli.options import STANDARD_INPUT, standard_input
from treedbd.limits import KIB

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

Format: TypeAlias = Literal["json", "ndjson"]

BLOCK_BYTES: Final = 64 * KIB
FORMATS: Final[tuple[Format, ...]] = ("json", "ndjson")
_LINES: Final = (".ndjson", ".jsonl")
_COMPRESSED: Final = (".gz", ".zst")
_GZIP_MAGIC: Final = b"\x1f\x8b"
_ZSTD_MAGIC: Final = b"\x28\xb5\x2f\xfd"
_GZIP_LEVEL: Final = 6


def format_of(name: str, chosen: Format | None) -> Format:
    """Return the format of a file: the chosen one, or that of its name."""
    if chosen is not None:
        return chosen
    for suffix in _COMPRESSED:
        name = name.removesuffix(suffix)
    return "ndjson" if name.endswith(_LINES) else "json"


class InputFile:
    """A file that is read, decompressed, block by block, as often as needed; `-` is standard input.

    What can be read only once, such as a pipe, is copied to a temporary file first.

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
        """Bytes of the file as it is stored that have been read."""
        return self._counted.count

    def keep(self, on_read: Callable[[], object]) -> None:
        """Copy what can be read only once; raise `CommandFailed`. `on_read` is called meanwhile."""
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
        """Yield the content in blocks of `BLOCK_BYTES`, the first and the last may be shorter.

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
    """Reads a file and counts; its first bytes can be looked at."""

    def __init__(self, file: BinaryIO) -> None:
        super().__init__()
        self._file = file
        self._first = b""
        self.count = 0

    def first(self, size: int) -> bytes:
        """Return the first bytes, which are still to be read."""
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
    """Return a file that writes to `file`, compressed as the end of `name` says.

    It must be closed before `file`, which stays open.
    """
    if name.endswith(".gz"):
        return cast(BinaryIO, gzip.GzipFile("", "wb", _GZIP_LEVEL, file, mtime=0))
    if name.endswith(".zst"):
        return cast(BinaryIO, zstd.ZstdFile(file, "wb"))
    return cast(BinaryIO, _Uncompressed(file))


class _Uncompressed:
    """Writes to a file that stays open."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    def write(self, data: bytes) -> int:
        return self._file.write(data)

    def flush(self) -> None:
        self._file.flush()

    def close(self) -> None:
        self._file.flush()
