"""A row in which several changes are made: its value as a draft, written back after the last.

A change after which the row, if it were printed, might be too long must not be made in a row that
can be split: change by change, the row would have been split by then. Its length is estimated from
above, as that of its export, which has keys where the row has an array. An export is never much
shorter than the row: a member of an array has at least six bytes there (`"0":1,`), and where keys
are missing the row prints no more nulls than there are members, one byte more for each than its
key takes.
"""

from __future__ import annotations

from typing import Final

import attrs

from treedbd.store.row_codec import Cover, load_row
from treedbd.tree.edit import Draft
from treedbd.tree.path import encode_key, encode_path
from treedbd.tree.types import Path, Value
from treedbd.tree.value import as_priority, compact

_PRIORITY_BYTES: Final = len(' {".value":,".priority":}')
_KEY_BYTES: Final = len('{"":},')
_CHARACTER_BYTES: Final = 4


@attrs.define
class RowEditor:
    """The row that covers `path`, for changes below its own node; `limit` bytes, None for any."""

    path: Path
    cover: Cover
    limit: int | None
    _draft: Draft
    _length: int

    @classmethod
    def open(cls, path: Path, cover: Cover, limit: int | None) -> RowEditor | None:
        """Open a row, unless it is too long already to be changed within `limit` bytes."""
        length = len(cover.raw)
        if limit is not None and _longest(length) > limit:
            return None
        value = load_row(cover.raw)
        if limit is not None and b"[" in cover.raw:
            length = len(compact(value))
        return cls(path, cover, limit, Draft(value), length)

    def inside(self, path: Path) -> Path | None:
        """Return the path from the row's node down to `path`, None if the row does not cover it."""
        depth = len(self.path) - len(self.cover.inside)
        if path[:depth] != self.path[:depth]:
            return None
        inside = path[depth:]
        if self.cover.is_bucket:
            segment = encode_key(inside[0]) if inside else b""
            if not (encode_path(path[:depth]) + segment).startswith(self.cover.key):
                return None
        return inside

    def change(self, inside: Path, value: Value, is_priority: bool) -> bool:
        """Make a change unless the row might become too long; return whether it was made."""
        if self.limit is not None:
            if not inside:
                return False
            length = self._length + self._growth(inside, value, is_priority)
            if _longest(length) > self.limit:
                return False
            self._length = length
        if is_priority:
            self._draft.set_priority(inside, as_priority(value))
        else:
            self._draft.set(inside, value)
        return True

    def finish(self) -> Value:
        """Return the changed value of the row."""
        return self._draft.finish()

    def _growth(self, inside: Path, value: Value, is_priority: bool) -> int:
        """Return the most bytes by which an export of the row grows."""
        if value is None:
            return 0
        growth = len(compact(value))
        if is_priority:
            return growth + _PRIORITY_BYTES
        before = self._draft.at(inside)
        if before is not None:
            return growth - len(compact(before))
        return growth + sum(_CHARACTER_BYTES * len(key) + _KEY_BYTES for key in inside)


def _longest(length: int) -> int:
    """Return the greatest length of a row, its mark included, whose export has `length` bytes."""
    return length + length // 6 + 1
