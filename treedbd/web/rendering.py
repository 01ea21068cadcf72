"""A rendering: the JSON of a read, made from the state of one moment, that readers share."""

from __future__ import annotations

import tempfile
from typing import IO, Final

from treedbd.files import FULL_ERRNOS
from treedbd.limits import MIB
from treedbd.store.engine import DiskFull
from treedbd.web.content import SMALL_BYTES, Content, WaitingBytes

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
    """Gathers chunks in memory, and in a temporary file if they become many."""

    def __init__(self, memory: WaitingBytes, files: WaitingBytes) -> None:
        """Count what is in the file by `files` already while it grows."""
        self._memory = memory
        self._files = files
        self._chunks: list[bytes] = []
        self._size = 0
        self._file: IO[bytes] | None = None
        self._counted = 0

    def write(self, chunk: bytes) -> None:
        """Add a chunk; raise `WaitingBytesExhausted` or `DiskFull`."""
        self._size += len(chunk)
        if self._file is None:
            self._chunks.append(chunk)
            if self._size <= IN_MEMORY_BYTES:
                return
            chunk = b"".join(self._chunks)
            self._chunks.clear()
        try:
            self._write_to_file(chunk)
        except OSError as error:
            raise _as_disk_full(error) from None

    def finish(self, source: object, sequence: int) -> Rendering:
        """Return what was written, and close the writer; raise as `write` does."""
        file, self._file = self._file, None
        try:
            if file is None:
                if self._size > SMALL_BYTES:
                    self._memory.check(self._size)
                return Rendering(self._memory, b"".join(self._chunks), source, sequence)
            return Rendering(self._files, file, source, sequence)
        except OSError as error:
            self._file = file
            raise _as_disk_full(error) from None
        finally:
            self.close()

    def close(self) -> None:
        """Drop what was written, unless a rendering owns it."""
        self._files.add(-self._counted)
        self._counted = 0
        if self._file is not None:
            self._file.close()

    def _write_to_file(self, chunk: bytes) -> None:
        self._files.check(len(chunk), self._counted)
        if self._file is None:
            self._file = tempfile.TemporaryFile()  # noqa: SIM115 - outlives this call
        self._file.write(chunk)
        self._files.add(len(chunk))
        self._counted += len(chunk)


def _as_disk_full(error: OSError) -> Exception:
    """Return what to raise for an error of a temporary file."""
    if error.errno in FULL_ERRNOS:
        return DiskFull(f"There is no room for a temporary file: {error.strerror}.")
    return error
