"""The file that an export is written to before it has its name: `.<name>.<digest>.part`.

It is beside the file that it will be, and compressed like it. The digest is that of what is
exported. A device or a named pipe is written to directly, and of a symbolic link the file that it
names. What a broken export has left there is read once more: all of it that is complete becomes
the beginning of a new one.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import pathlib
import sys
import time
from collections.abc import Iterator
from typing import BinaryIO, Final

import orjson

from treedbd.cli.exit import CommandFailed, write_out
from treedbd.cli.loading.files import Format, InputFile, compressing
from treedbd.cli.loading.joiner import Joiner
from treedbd.cli.options import STANDARD_INPUT as STANDARD_OUTPUT
from treedbd.files import create_private
from treedbd.tree.fragments import Splitter
from treedbd.tree.types import InvalidData

_DIGEST_CHARACTERS: Final = 16
RECENT_S: Final = 12 * 3600.0
"""An export that is made every night does not go on with that of the night before."""
_OLD: Final = ".old"


class PartFile:
    """The unfinished file of an export of `source`; or a device, a pipe, standard output for `-`.

    Attributes:
        count: bytes that were written, before they are compressed.
        can_resume: whether it stays when the process ends.

    """

    def __init__(self, name: str, source: str) -> None:
        self._name = name
        self._is_output: Final = name == STANDARD_OUTPUT
        path = self._path = pathlib.Path(os.path.realpath(name))
        is_new_file = path.is_file() or not path.exists()
        self.can_resume: Final = is_new_file and not self._is_output
        digest = hashlib.sha256(source.encode()).hexdigest()[:_DIGEST_CHARACTERS]
        self._part = path.with_name(f".{path.name}.{digest}.part")
        self._old = self._part.with_name(self._part.name + _OLD)
        self._file: BinaryIO | None = None
        self._compressing: BinaryIO | None = None
        self.count = 0
        self._last = b"\n"

    def is_recent(self) -> bool:
        """Return whether an export has been broken off, not too long ago to go on with it."""
        with contextlib.suppress(OSError):
            file = self._old if self._old.exists() else self._part
            return self.can_resume and time.time() - file.stat().st_mtime < RECENT_S
        return False

    def begin(self, *, is_recovering: bool = False) -> None:
        """Create the file, empty; raise `CommandFailed`."""
        self.count = 0
        if self._is_output:
            return
        with self._reported():
            if self.can_resume and not is_recovering:
                self._old.unlink(missing_ok=True)
            self._file = os.fdopen(self._open(), "wb")
            self._compressing = compressing(self._name, self._file)

    def _open(self) -> int:
        if self.can_resume:
            return create_private(self._part)
        return os.open(self._path, os.O_WRONLY | os.O_CLOEXEC)

    def write(self, data: bytes) -> None:
        """Append; raise `CommandFailed`, or `OutputClosed` for standard output."""
        self.count += len(data)
        self._last = data[-1:] or self._last
        if self._compressing is None:
            write_out(data)
            return
        with self._reported():
            self._compressing.write(data)

    def close(self) -> None:
        """Close the file, which stays unfinished."""
        content, self._compressing = self._compressing, None
        file, self._file = self._file, None
        with self._reported():
            if content is not None:
                content.close()
            if file is not None:
                file.close()

    def finish(self) -> None:
        """Give the file its name, once it is on the disk; on a terminal, end its last line."""
        if not self.can_resume:
            self.close()
            if self._is_output and self._last != b"\n" and sys.stdout.isatty():
                write_out(b"\n")
            return
        with self._reported():
            assert self._file is not None and self._compressing is not None  # noqa: S101, PT018
            self._compressing.close()
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()
            self._file = self._compressing = None
            os.replace(self._part, self._path)
            self._old.unlink(missing_ok=True)

    def recover(self, form: Format) -> Joiner:
        """Write what is complete of a broken export to a new file; return what goes on with it."""
        self.close()
        with self._reported():
            if not self._old.exists():  # else this was broken off too, and is shorter
                os.replace(self._part, self._old)
        self.begin(is_recovering=True)
        joiner = Joiner(self.write, form)
        blocks = _readable_blocks(str(self._old))
        if form == "ndjson":
            self._copy_lines(blocks, joiner)
        else:
            _copy_document(blocks, joiner)
        self.remove_old()
        return joiner

    def remove(self) -> None:
        """Remove the unfinished file."""
        if self.can_resume:
            self.close()
            self._part.unlink(missing_ok=True)

    def remove_old(self) -> None:
        """Remove what has been recovered."""
        with self._reported():
            self._old.unlink(missing_ok=True)

    def _copy_lines(self, blocks: Iterator[bytes], joiner: Joiner) -> None:
        rest, last = bytearray(), b""
        for block in blocks:
            rest += block
            end = rest.rfind(b"\n") + 1
            if end:
                text = bytes(rest[:end])
                last = text[text.rfind(b"\n", 0, end - 1) + 1 :]
                self.write(text)
                del rest[:end]
        if last:
            joiner.go_on_after(orjson.loads(last)["key"])

    @contextlib.contextmanager
    def _reported(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise CommandFailed(f"{self._name} cannot be written ({error.strerror}).") from None


def _readable_blocks(name: str) -> Iterator[bytes]:
    with contextlib.suppress(CommandFailed):  # it is cut off
        yield from InputFile(name).blocks()


def _copy_document(blocks: Iterator[bytes], joiner: Joiner) -> None:
    splitter = Splitter()
    with contextlib.suppress(InvalidData):  # the disk has lost something: go on before it
        for block in blocks:
            for fragment in splitter.feed(block):
                joiner.add(fragment)
