"""Large reads: rendered slice by slice from one moment into a file, then sent as the client reads.

The moment is held only while rows are read, at the speed of the disk; a client that reads slowly
costs a temporary file and nothing else. Between two slices the reactor serves other requests.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from typing import IO, Final, NoReturn

from twisted.internet.defer import DeferredSemaphore
from twisted.internet.interfaces import IReactorTime
from twisted.internet.task import deferLater
from twisted.protocols.basic import FileSender
from twisted.python.failure import Failure

from treedbd.database.errors import DeadlinePassed, TooLarge, Unavailable
from treedbd.files import FULL_ERRNOS
from treedbd.limits import MAX_TAGGED_BYTES, MIB
from treedbd.store.engine import DiskFull
from treedbd.store.nodes import HeldNodes
from treedbd.web.headers import Header
from treedbd.web.http1.interface import IHttp1Request
from treedbd.web.representation import Chunks, Wrapping

MAX_CONCURRENT_RENDERS: Final = 4
"""Large reads that are rendered at a time; others wait for their turn."""
MAX_WAITING_BYTES: Final = 8 * 1024 * MIB
"""Bytes in the files of all clients that are still reading; a single file may be larger."""
SLICE_SECONDS: Final = 0.004
IN_MEMORY_BYTES: Final = MIB


async def render_in_slices(
    held: HeldNodes, chunks: Chunks, clock: IReactorTime, deadline: float | None
) -> IO[bytes]:
    """Render JSON into a temporary file, positioned at its start, and release the moment.

    Raises `DeadlinePassed` (never, if `deadline` is None), `DiskFull`, and what rendering raises:
    `PermissionDenied`, `StoreFailed`.
    """
    file = tempfile.SpooledTemporaryFile(IN_MEMORY_BYTES)  # noqa: SIM115 - outlives this call
    try:
        rendering = chunks(held)
        while _render_slice(rendering, file, clock):
            if deadline is not None and clock.seconds() >= deadline:
                raise DeadlinePassed("the data was read")
            await deferLater(clock, 0)
        file.seek(0)
    except OSError as error:
        file.close()
        if error.errno in FULL_ERRNOS:
            raise DiskFull(f"There is no room for a temporary file: {error.strerror}.") from None
        raise
    except BaseException:
        file.close()
        raise
    finally:
        held.close()
    return file


def _render_slice(rendering: Iterator[bytes], file: IO[bytes], clock: IReactorTime) -> bool:
    """Render for one slice of time; return whether anything is left."""
    end = clock.seconds() + SLICE_SECONDS
    for chunk in rendering:
        file.write(chunk)
        if clock.seconds() >= end:
            return True
    return False


class LargeReads:
    """The large reads of a service that are being rendered or sent."""

    def __init__(self, clock: IReactorTime) -> None:
        """Render and send by `clock`."""
        self._clock = clock
        self._slots = DeferredSemaphore(MAX_CONCURRENT_RENDERS)
        self._waiting_bytes = 0

    async def render(
        self, hold: Callable[[], HeldNodes], chunks: Chunks, deadline: float
    ) -> IO[bytes]:
        """Wait for a turn, then render JSON from the moment that `hold` returns.

        Raises what `render_in_slices` raises, and `Unavailable` if too many bytes wait for clients.
        """
        remaining_s = max(0.0, deadline - self._clock.seconds())
        await self._slots.acquire().addTimeout(remaining_s, self._clock, _time_out)
        try:
            file = await render_in_slices(hold(), chunks, self._clock, deadline)
        finally:
            self._slots.release()
        if self._waiting_bytes and self._waiting_bytes + _size_of(file) > MAX_WAITING_BYTES:
            file.close()
            raise Unavailable("Too many clients are reading slowly; try again later.")
        return file

    def send(
        self,
        request: IHttp1Request,
        file: IO[bytes],
        wrapping: Wrapping,
        common: tuple[Header, ...],
        deadline: float,
    ) -> None:
        """Send the JSON in a file as the client reads; drop the connection at the deadline."""
        before, after, headers = wrapping
        size = _size_of(file)
        request.start(200, (*headers, *common), size + len(before) + len(after))
        if request.method == b"HEAD":
            file.close()
            request.finish()
            return
        self._waiting_bytes += size
        request.write(before)
        wait_s = max(0.0, deadline - self._clock.seconds())
        cut_off = self._clock.callLater(wait_s, request.abort)

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
    """Return what is in a file; raise `TooLarge` if it cannot be tagged or indented at once."""
    if _size_of(file) > MAX_TAGGED_BYTES:
        raise TooLarge
    return file.read()


def _size_of(file: IO[bytes]) -> int:
    """Return how many bytes are in a file, and go back to its start."""
    size = file.seek(0, 2)
    file.seek(0)
    return size


def _time_out(_: object, __: float) -> NoReturn:
    raise DeadlinePassed("the read could begin")
