"""A row that is being changed: its value as a draft, put back when a change falls elsewhere.

A row that may be split must not take a change after which, if it were printed, it might be found
too long: it would have been split by then. How long it is at most is reckoned as an export prints
it, with keys where a row has an array. That is never much shorter: a member of an array has at
least six bytes there (`"0":1,`), and where keys are missing no more nulls are printed in the row
than there are members, one byte more for each than its key takes.
"""

from __future__ import annotations

from typing import Final

import attrs

from treedbd.store.nodes import Cover
from treedbd.store.row import load_row
from treedbd.tree.draft import Draft
from treedbd.tree.order import encode_key, encode_path
from treedbd.tree.path import Path
from treedbd.tree.printing import compact
from treedbd.tree.value import Value

_PRIORITY_BYTES: Final = len(' {".value":,".priority":}')
_KEY_BYTES: Final = len('{"":},')
_CHARACTER_BYTES: Final = 4


@attrs.define
class Taken:
    """The row that covers `path`, for changes below its own node; `most` bytes, or any."""

    path: Path
    cover: Cover
    most: int | None
    _draft: Draft
    _length: int

    @classmethod
    def take(cls, path: Path, cover: Cover, most: int | None) -> Taken | None:
        """Take a row, unless it is too long already to be changed within `most` bytes."""
        length = len(cover.raw)
        if most is not None and _longest(length) > most:
            return None
        value = load_row(cover.raw)
        if most is not None and b"[" in cover.raw:
            length = len(compact(value))
        return cls(path, cover, most, Draft(value), length)

    def inside(self, path: Path) -> Path | None:
        """Return the way from the row's node down to `path`, None if the row does not cover it."""
        depth = len(self.path) - len(self.cover.inside)
        if path[:depth] != self.path[:depth]:
            return None
        inside = path[depth:]
        if self.cover.is_bucket:
            segment = encode_key(inside[0]) if inside else b""
            if not (encode_path(path[:depth]) + segment).startswith(self.cover.key):
                return None
        return inside

    def change(self, inside: Path, value: Value, of_priority: bool) -> bool:
        """Make a change if the row can take it; tell whether it was made."""
        if self.most is not None:
            if not inside:
                return False
            length = self._length + self._growth(inside, value, of_priority)
            if _longest(length) > self.most:
                return False
            self._length = length
        if of_priority:
            self._draft.set_priority(inside, value)
        else:
            self._draft.set(inside, value)
        return True

    def finish(self) -> Value:
        """Return what the row holds now."""
        return self._draft.finish()

    def _growth(self, inside: Path, value: Value, of_priority: bool) -> int:
        """Return by how much an export of the row grows, at most."""
        if value is None:
            return 0
        growth = len(compact(value))
        if of_priority:
            return growth + _PRIORITY_BYTES
        before = self._draft.at(inside)
        if before is not None:
            return growth - len(compact(before))
        return growth + sum(_CHARACTER_BYTES * len(key) + _KEY_BYTES for key in inside)


def _longest(length: int) -> int:
    """Return how long a row is at most whose export has so many bytes, the mark among them."""
    return length + length // 6 + 1
