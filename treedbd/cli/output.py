"""Where a value is written: standard output, or a file that appears only when it is whole."""

from __future__ import annotations

import contextlib
import os
import pathlib
import tempfile
from collections.abc import Iterator
from typing import BinaryIO, Protocol

from treedbd.cli.exit import CommandFailed, write_out


class WriteBytes(Protocol):
    """A function that writes bytes."""

    def __call__(self, data: bytes, /) -> None:
        """Write; raise `CommandFailed` or `OutputClosed`."""


@contextlib.contextmanager
def opened_output(name: str | None) -> Iterator[WriteBytes]:
    """Open a file for a `with` block, None or `-` for standard output; raise `CommandFailed`.

    The file replaces another one when the block ends, not if it raises. Of a symbolic link the file
    that it names is replaced; a device or a named pipe is written to.
    """
    if name is None or name == "-":
        yield write_out
        return
    path = pathlib.Path(os.path.realpath(name))
    with _reported(name):
        is_file = path.is_file() or not path.exists()
        part, file = _create(path) if is_file else (None, path.open("wb"))

    def write(data: bytes) -> None:
        with _reported(name):
            file.write(data)

    try:
        with file:
            yield write
            with _reported(name):
                file.flush()
        if part is not None:
            with _reported(name):
                part.replace(path)
    except BaseException:
        if part is not None:
            part.unlink(missing_ok=True)
        raise


def _create(path: pathlib.Path) -> tuple[pathlib.Path, BinaryIO]:
    """Create an unfinished file beside a file, with its mode, or for its owner alone."""
    descriptor, part = tempfile.mkstemp(".part", f".{path.name[:100]}.", path.parent)
    os.fchmod(descriptor, path.stat().st_mode & 0o777 if path.exists() else 0o600)
    return pathlib.Path(part), os.fdopen(descriptor, "wb")


@contextlib.contextmanager
def _reported(name: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise CommandFailed(f"{name} cannot be written ({error.strerror}).") from None
