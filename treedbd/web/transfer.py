"""Long reads: drawn slice by slice from one moment into a file, then sent at the client's speed.

The moment is held only while rows are read, which goes at the speed of the disk; how slowly a
client takes the bytes costs a temporary file and nothing else. Between two slices everyone else
gets a turn.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from typing import IO, Final

from twisted.internet.interfaces import IReactorTime
from twisted.internet.task import deferLater

from treedbd.database.database import HeldNodes
from treedbd.database.question import READ_MISSED, DeadlinePassed
from treedbd.store.nodes import Nodes
from treedbd.web.read import Pieces

FIRST_SLICE_BYTES: Final = 1_200_000
FIRST_SLICE_SECONDS: Final = 0.02
SLICE_SECONDS: Final = 0.004
IN_MEMORY_BYTES: Final = 1_048_576


def draw_at_once(nodes: Nodes, pieces: Pieces, clock: IReactorTime) -> bytes | None:
    """Return the whole body if that is short work, None if it is a long read."""
    drawing = pieces(nodes)
    drawn = [next(drawing)]
    size = len(drawn[0])
    end = clock.seconds() + FIRST_SLICE_SECONDS
    for piece in drawing:
        drawn.append(piece)
        size += len(piece)
        if size > FIRST_SLICE_BYTES or clock.seconds() > end:
            return None
    return b"".join(drawn)


async def draw_in_slices(
    held: HeldNodes, pieces: Pieces, clock: IReactorTime, deadline: float | None
) -> IO[bytes]:
    """Draw a body into a temporary file, set to its beginning, and let go of the moment.

    Raises `DeadlinePassed`, where None waits for as long as it takes, and whatever drawing raises:
    `PermissionDenied`, `Failed`.
    """
    file = tempfile.SpooledTemporaryFile(IN_MEMORY_BYTES)  # noqa: SIM115 - outlives this call
    try:
        drawing = pieces(held.nodes)
        while _draw_slice(drawing, file, clock):
            if deadline is not None and clock.seconds() >= deadline:
                raise DeadlinePassed(READ_MISSED)
            await deferLater(clock, 0)
    except BaseException:
        file.close()
        raise
    finally:
        held.close()
    file.seek(0)
    return file


def _draw_slice(drawing: Iterator[bytes], file: IO[bytes], clock: IReactorTime) -> bool:
    """Draw for one slice of time; return whether anything is left."""
    end = clock.seconds() + SLICE_SECONDS
    for piece in drawing:
        file.write(piece)
        if clock.seconds() >= end:
            return True
    return False
