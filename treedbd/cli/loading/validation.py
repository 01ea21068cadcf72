"""Whether all of a file can be imported, before anything is written: one pass over its content.

The pass cuts the file as the import does, so it finds what is wrong with keys, values and the end
of the file, and needs no more memory. Only if something is wrong is the file read again, for the
line and the column (`faults`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

import attrs

from treedbd.cli.loading.documents import InvalidFile, parts_of
from treedbd.cli.loading.faults import Validator, add_place
from treedbd.cli.loading.files import Format, InputFile


@attrs.frozen
class SentContent:
    """The beginning of a file's content: its length in bytes, and its SHA-256 in hexadecimal."""

    size: int
    sha256: str


class ContentDigest:
    """Counts and hashes the content of a file while it is read."""

    def __init__(self, wanted: SentContent | None = None) -> None:
        """Find out whether the content begins with `wanted`, if it is given."""
        self._hash = hashlib.sha256()
        self._size = 0
        self._wanted = wanted
        self.has_prefix = wanted is None

    @property
    def prefix(self) -> SentContent:
        """What has been read so far."""
        return SentContent(self._size, self._hash.hexdigest())

    def passing(self, blocks: Iterable[bytes]) -> Iterator[bytes]:
        """Yield the blocks, counted."""
        for block in blocks:
            wanted = self._wanted
            if wanted is not None and self._size < wanted.size <= self._size + len(block):
                begin = self._hash.copy()
                begin.update(block[: wanted.size - self._size])
                self.has_prefix = begin.hexdigest() == wanted.sha256
            self._hash.update(block)
            self._size += len(block)
            yield block


class Validation:
    """One pass over a file.

    Attributes:
        records: the number of the records that the file has.
        content: the digest of the content.

    """

    def __init__(self, source: InputFile, form: Format, wanted: SentContent | None) -> None:
        self._source: Final = source
        self._form: Final = form
        self.records = 0
        self.content: Final = ContentDigest(wanted)

    def run(self, validator: Validator, on_read: Callable[[], object], **how: Any) -> None:
        """Read the file; raise `CommandFailed`, `InvalidFile` with the place if there is one."""
        blocks = self.content.passing(self._source.blocks())
        try:
            for part in parts_of(blocks, self._form, check=validator, **how):
                self.records += part.records
                on_read()
        except InvalidFile as error:
            if self._form == "json":
                error = add_place(error, self._source.blocks, validator)
            raise error from None
