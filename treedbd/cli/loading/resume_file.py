"""The record of an import that is not finished: how many of its parts are written.

It is a small file beside the imported one, `.<name>.<digest>.import`; the digest is that of the
target, so that imports to several targets do not meet. It is removed at the end.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import pathlib
from typing import Any, Final

import orjson

from treedbd.cli.exit import warn
from treedbd.cli.loading.files import Format
from treedbd.limits import MIB
from treedbd.version import __version__

_DIGEST_CHARACTERS: Final = 16


class ResumeFile:
    """Which parts of a file are written to a target.

    Attributes:
        done: the number of the parts, from the first on, that are written.
        found: whether an earlier import of the same file to the same target was not finished.
        was_begun: whether there was one at all, of the file as it was then.

    """

    def __init__(
        self, file: pathlib.Path, target: str, form: Format, mode: str, *, is_restarted: bool
    ) -> None:
        """Read what an earlier import left, unless the import is to begin again."""
        digest = hashlib.sha256(target.encode()).hexdigest()[:_DIGEST_CHARACTERS]
        self._path = file.with_name(f".{file.name}.{digest}.import")
        self._identity = _identity(file, form, mode)
        self._can_write = True
        self.was_begun: Final = self._path.exists()
        record = None if is_restarted else self._read()
        self.found: Final = record is not None
        self.done = 0 if record is None else record

    def save(self, done: int) -> None:
        """Record that the first `done` parts are written."""
        self.done = done
        if not self._can_write:
            return
        new = self._path.with_name(self._path.name + ".new")
        try:
            new.write_bytes(orjson.dumps({**self._identity, "done": done}))
            os.replace(new, self._path)
        except OSError as error:
            self._can_write = False
            warn(
                f"The import cannot be resumed if it breaks: {self._path} cannot be written "
                f"({error.strerror})."
            )

    def remove(self) -> None:
        """Remove the record: the import is finished."""
        with contextlib.suppress(OSError):
            self._path.unlink(missing_ok=True)

    def _read(self) -> int | None:
        try:
            record: Any = orjson.loads(self._path.read_bytes())
            done = record.pop("done")
        except (OSError, ValueError, LookupError, AttributeError, TypeError):
            return None
        return done if record == self._identity and isinstance(done, int) else None


def _identity(file: pathlib.Path, form: Format, mode: str) -> dict[str, Any]:
    """Return what tells this import from others; the parts depend on it."""
    with file.open("rb") as opened:
        first = hashlib.sha256(opened.read(MIB)).hexdigest()
        size = os.fstat(opened.fileno()).st_size
    return {
        "version": __version__,
        "format": form,
        "mode": mode,
        "bytes": size,
        "first_mib_sha256": first,
    }
