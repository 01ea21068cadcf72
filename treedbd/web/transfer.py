"""Long reads: drawn slice by slice from one moment into a file, then sent at the client's speed.

The moment is held only while rows are read, which goes at the speed of the disk; how slowly a
client takes the bytes costs a temporary file and nothing else. Between two slices everyone else
gets a turn.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from typing import IO, Final, NoReturn

from twisted.internet.defer import DeferredSemaphore
from twisted.internet.interfaces import IReactorTime
from twisted.internet.task import deferLater
from twisted.protocols.basic import FileSender
from twisted.python.failure import Failure
from twisted.web.server import Request

from treedbd.database.database import Database, HeldNodes
from treedbd.database.question import (
    READ_MISSED,
    TURN_MISSED,
    DeadlinePassed,
    TooLarge,
    Unavailable,
)
from treedbd.store.files import FULL_ERRNOS
from treedbd.store.mapping import Full
from treedbd.store.nodes import Nodes
from treedbd.tree.canonical import MOST_TAGGED_BYTES
from treedbd.web.answer import Header
from treedbd.web.read import Pieces
from treedbd.web.send import abort, write_head
from treedbd.web.shape import Envelope

DRAWN_AT_ONCE: Final = 4
"""So many long reads are drawn at a time; others wait for their turn."""
MOST_WAITING_BYTES: Final = 8 * 1024 * 1_048_576
"""So much may lie in files for clients that are still reading, unless it is a single one."""
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

    Raises `DeadlinePassed`, where None waits for as long as it takes, `Full`, and whatever drawing
    raises: `PermissionDenied`, `Failed`.
    """
    file = tempfile.SpooledTemporaryFile(IN_MEMORY_BYTES)  # noqa: SIM115 - outlives this call
    try:
        drawing = pieces(held.nodes)
        while _draw_slice(drawing, file, clock):
            if deadline is not None and clock.seconds() >= deadline:
                raise DeadlinePassed(READ_MISSED)
            await deferLater(clock, 0)
        file.seek(0)
    except OSError as error:
        file.close()
        if error.errno in FULL_ERRNOS:
            raise Full(f"There is no room for a temporary file: {error.strerror}.") from None
        raise
    except BaseException:
        file.close()
        raise
    finally:
        held.close()
    return file


def _draw_slice(drawing: Iterator[bytes], file: IO[bytes], clock: IReactorTime) -> bool:
    """Draw for one slice of time; return whether anything is left."""
    end = clock.seconds() + SLICE_SECONDS
    for piece in drawing:
        file.write(piece)
        if clock.seconds() >= end:
            return True
    return False


class LongReads:
    """The long reads of a service that are drawn or sent."""

    def __init__(self, clock: IReactorTime) -> None:
        """Draw and send by `clock`."""
        self._clock = clock
        self._turns = DeferredSemaphore(DRAWN_AT_ONCE)
        self._waiting_bytes = 0

    async def draw(self, database: Database, pieces: Pieces, deadline: float) -> IO[bytes]:
        """Draw a body when it is its turn.

        Raises as `draw_in_slices` does, and `Unavailable` where too much waits for other clients.
        """
        left = max(0.0, deadline - self._clock.seconds())
        await self._turns.acquire().addTimeout(left, self._clock, _be_late)
        try:
            file = await draw_in_slices(database.hold(), pieces, self._clock, deadline)
        finally:
            self._turns.release()
        if self._waiting_bytes and self._waiting_bytes + _size_of(file) > MOST_WAITING_BYTES:
            file.close()
            raise Unavailable("Too many clients are reading slowly, try again later.")
        return file

    def send(
        self,
        request: Request,
        file: IO[bytes],
        envelope: Envelope,
        common: tuple[Header, ...],
        deadline: float,
    ) -> None:
        """Send JSON that lies in a file, at the speed of the client; cut it off at the deadline."""
        before, after, headers = envelope
        size = _size_of(file)
        write_head(request, 200, (*headers, *common), size + len(before) + len(after))
        if request.method == b"HEAD":
            file.close()
            request.finish()
            return
        self._waiting_bytes += size
        request.write(before)
        wait_s = max(0.0, deadline - self._clock.seconds())
        cut_off = self._clock.callLater(wait_s, abort, request)

        def finish(result: object) -> None:
            file.close()
            self._waiting_bytes -= size
            if cut_off.active():
                cut_off.cancel()
            if not isinstance(result, Failure):
                request.write(after)
                request.finish()

        FileSender().beginFileTransfer(file, request).addBoth(finish)


def read_whole(file: IO[bytes]) -> bytes:
    """Return what lies in a file; raise `TooLarge` where it is too much to be shaped at once."""
    if _size_of(file) > MOST_TAGGED_BYTES:
        raise TooLarge(
            f"More than {MOST_TAGGED_BYTES} bytes have no tag and are not indented; read a part."
        )
    return file.read()


def _size_of(file: IO[bytes]) -> int:
    """Return how many bytes are in a file, and set it to its beginning."""
    size = file.seek(0, 2)
    file.seek(0)
    return size


def _be_late(_: object, __: float) -> NoReturn:
    raise DeadlinePassed(TURN_MISSED)
