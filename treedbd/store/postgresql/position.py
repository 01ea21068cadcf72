"""How far a local copy has come, and the row of the copy that says so.

The row is written in the same local transaction as the rows that a commit changed: a crash between
the commit in PostgreSQL and the local one leaves a copy that is some commits behind, never one that
is wrong. Its key is longer than any row key, so no row of the tree or of an index can have it; it
is not sent to PostgreSQL. The content has a check sum as all rows have.
"""

from __future__ import annotations

import struct
from typing import Final

import attrs

from treedbd.store.engine import DamagedRow
from treedbd.store.rows import seal, unseal

POSITION_KEY: Final = b"\xff" * 512
END_OF_ROWS: Final = POSITION_KEY
"""All rows that belong to the database have keys below this one."""
TOKEN_BYTES: Final = 16
NOTHING_COPIED: Final = -1
"""The `rev` of a copy that has nothing yet, not even the empty database."""
_VERSION: Final = 1
_CONTENT: Final = struct.Struct(">B16siq16sq")


@attrs.frozen
class CopyPosition:
    """The commit that a copy ends with.

    Attributes:
        cluster: the id of the cluster, 16 bytes.
        db: the number of the database there.
        rev: how many commits there were; `NOTHING_COPIED` if the copy has nothing.
        token: what identifies the last commit, by which histories that have diverged are told
            apart; empty before the first.
        epoch: the epoch of the rules by which the last own commit was judged, for information.

    """

    cluster: bytes
    db: int
    rev: int = NOTHING_COPIED
    token: bytes = b""
    epoch: int = 0

    def encode(self) -> bytes:
        """Return the content of the row."""
        token = self.token.ljust(TOKEN_BYTES, b"\0")
        content = _CONTENT.pack(_VERSION, self.cluster, self.db, self.rev, token, self.epoch)
        return seal(POSITION_KEY, content)


def decode_position(stored: bytes | None) -> CopyPosition | None:
    """Return the position that a row holds; None without a row, or if it cannot be read."""
    if stored is None:
        return None
    try:
        version, cluster, db, rev, token, epoch = _CONTENT.unpack(unseal(POSITION_KEY, stored))
    except (DamagedRow, struct.error):
        return None
    if version != _VERSION:
        return None
    return CopyPosition(cluster, db, rev, token if any(token) else b"", epoch)
