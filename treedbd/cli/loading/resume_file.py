"""The record of an import that is not finished: which of its parts are written.

It is a small file beside the imported one, `.<name>.<digest>.import`; the digest is that of the
target, so that imports to several targets do not meet. It is removed at the end.

It also says how much of the content had been read for what was sent, and its SHA-256: parts are
sent before it is known that they are written, so the record is durable before a part is sent.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import pathlib
from typing import Any, Final

import orjson

from treedbd import __version__
from treedbd.cli.exit import warn
from treedbd.cli.loading.files import Format
from treedbd.cli.loading.validation import SentContent
from treedbd.files import create_private

_DIGEST_CHARACTERS: Final = 16


class ResumeFile:
    """Which parts of a file are written to a target.

    Attributes:
        done: the number of the parts, from the first on, that are written.
        sent: what the content began with that was sent, None if nothing was.
        found: whether an earlier import to the same target in the same way was not finished.
        was_begun: whether there was one at all.

    """

    def __init__(
        self, file: pathlib.Path, target: str, form: Format, mode: str, *, is_restarted: bool
    ) -> None:
        """Read what an earlier import left, unless the import is to begin again."""
        digest = hashlib.sha256(target.encode()).hexdigest()[:_DIGEST_CHARACTERS]
        self._path = file.with_name(f".{file.name}.{digest}.import")
        self._new = self._path.with_name(self._path.name + ".new")
        self._identity = {"version": __version__, "format": form, "mode": mode}
        self._can_write = True
        self.was_begun: Final = self._path.exists()
        self.done = 0
        self.sent: SentContent | None = None
        self.found = not is_restarted and self._read()

    def forget(self) -> None:
        """Begin at the first part."""
        self.done, self.sent, self.found = 0, None, False

    def save_sent(self, sent: SentContent) -> None:
        """Record durably what the content begins with that is sent from now on."""
        if self.sent is None or sent.size > self.sent.size:
            self.sent = sent
            self._save(is_durable=True)

    def save_done(self, done: int) -> None:
        """Record that the first `done` parts are written."""
        self.done = done
        self._save(is_durable=False)

    def _save(self, *, is_durable: bool) -> None:
        if not self._can_write or self.sent is None:
            return
        record = {
            **self._identity,
            "done": self.done,
            "sent_bytes": self.sent.size,
            "sent_sha256": self.sent.sha256,
        }
        try:
            with open(create_private(self._new), "wb") as file:
                file.write(orjson.dumps(record))
                if is_durable:
                    file.flush()
                    os.fsync(file.fileno())
            os.replace(self._new, self._path)
        except OSError as error:
            self._can_write = False
            warn(
                f"The import cannot be resumed if it breaks: {self._path} cannot be written "
                f"({error.strerror})."
            )

    @property
    def is_kept(self) -> bool:
        """Whether the same command can go on after a break."""
        return self._can_write and self.sent is not None

    def remove(self) -> None:
        """Remove the record: the import is finished, or cannot go on."""
        self.forget()
        for path in (self._path, self._new):
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)

    def _read(self) -> bool:
        try:
            record: Any = orjson.loads(self._path.read_bytes())
            done, size = record.pop("done"), record.pop("sent_bytes")
            sent = SentContent(size, record.pop("sent_sha256"))
        except (OSError, ValueError, LookupError, AttributeError, TypeError):
            return False
        if record != self._identity or not isinstance(done, int) or not isinstance(size, int):
            return False
        self.done, self.sent = done, sent
        return True
