"""A rendering: the JSON of a read, made from the state of one moment, that readers share."""

from __future__ import annotations

import os
import tempfile
from typing import IO, Final

from treedbd.files import FULL_ERRNOS, close_temporary
from treedbd.http1.content import SMALL_BYTES, Buffer, Content, WaitingBytes
from treedbd.limits import MIB
from treedbd.store.engine import DiskFull

IN_MEMORY_BYTES: Final = MIB
"""What is rendered slice by slice and becomes longer goes into a temporary file."""


class Rendering(Content):
    """What `source` rendered from the state with the number `sequence`."""

    __slots__ = ("sequence", "source")

    def __init__(
        self,
        waiting: WaitingBytes,
        rendered: bytes | IO[bytes],
        source: object,
        sequence: int,
    ) -> None:
        super().__init__(waiting, rendered)
        self.source: Final = source
        self.sequence: Final = sequence


class RenderingWriter:
    """Gathers chunks in memory, and in a temporary file if they become many.

    Attributes:
        size: the bytes that were written.
        files: counts what is in the file.

    """

    def __init__(self, memory: WaitingBytes, files: WaitingBytes) -> None:
        """Count what is in the file by `files` already while it grows."""
        self._memory = memory
        self.files = files
        self._chunks: list[bytes] = []
        self.size = 0
        self._file: IO[bytes] | None = None
        self._counted = 0

    def write(self, chunk: bytes) -> None:
        """Add a chunk; raise `WaitingBytesExhausted` or `DiskFull`."""
        if not chunk:
            return  # a step of which there may be millions
        self.size += len(chunk)
        if self._file is None:
            self._chunks.append(chunk)
            if self.size <= IN_MEMORY_BYTES:
                return
            chunk = b"".join(self._chunks)
            self._chunks.clear()
        try:
            self._write_to_file(chunk)
        except OSError as error:
            raise _as_disk_full(error) from None

    def read(self, at: int, size: int) -> Buffer:
        """Return what was written from a position on, at most `size` bytes."""
        if self._file is not None:
            self._file.flush()
            return os.pread(self._file.fileno(), size, at)
        if len(self._chunks) > 1:
            self._chunks = [b"".join(self._chunks)]
        return memoryview(self._chunks[0])[at : at + size] if self._chunks else b""

    def finish(self, source: object, sequence: int) -> Rendering:
        """Return what was written, and close the writer; raise as `write` does."""
        file, self._file = self._file, None
        try:
            if file is None:
                if self.size > SMALL_BYTES:
                    self._memory.check(self.size)
                return Rendering(self._memory, b"".join(self._chunks), source, sequence)
            return Rendering(self.files, file, source, sequence)
        except OSError as error:
            self._file = file
            raise _as_disk_full(error) from None
        finally:
            self.close()

    def close(self) -> None:
        """Drop what was written, unless a rendering owns it."""
        self.files.add(-self._counted)
        self._counted = 0
        if self._file is not None:
            close_temporary(self._file, self.size)
            self._file = None

    def _write_to_file(self, chunk: bytes) -> None:
        self.files.check(len(chunk), self._counted)
        if self._file is None:
            self._file = tempfile.TemporaryFile()  # noqa: SIM115 - outlives this call
        self._file.write(chunk)
        self.files.add(len(chunk))
        self._counted += len(chunk)


def _as_disk_full(error: OSError) -> Exception:
    """Return what to raise for an error of a temporary file."""
    if error.errno in FULL_ERRNOS:
        return DiskFull(f"There is no room for a temporary file: {error.strerror}.")
    return error
