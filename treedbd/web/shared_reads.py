"""Reads that are shared: those who ask for the same, meanwhile, cost one rendering.

A rendering is shared as long as a client reads it and nothing was written to its database since, so
many clients that read slowly, and many streams that begin at the same place, keep one copy waiting.
Who may read it is evaluated for each by its caller, against the state that was rendered.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from functools import partial
from itertools import chain
from typing import Final, NamedTuple, cast
from weakref import ref

from twisted.internet.defer import Deferred, DeferredSemaphore, fail
from twisted.internet.interfaces import IReactorTime

from treedbd.database.slices import SLICE_SECONDS, Slices
from treedbd.held_bytes import HeldBytes
from treedbd.http1.content import SMALL_BYTES, WaitingBytes, WaitingBytesRefused
from treedbd.limits import Limits
from treedbd.store.nodes import HeldNodes, Nodes, PresentNodes
from treedbd.web.large_reads import BegunRendering, LargeRead, Rendered, RenderingSource, Waiter
from treedbd.web.rendering import Rendering, RenderingWriter

MAX_CONCURRENT_RENDERS: Final = 4
"""Large reads that are rendered at a time; others wait for their turn."""
MAX_TURN_BYTES: Final = 1_200_000
"""What is longer is a large read, however fast it is rendered."""


class TooMuchWork(NamedTuple):
    """A read that takes more than one turn; `sequence` is the number of the state it would show."""

    sequence: int


class SharedReads:
    """The renderings of a service that are under way or being read.

    Attributes:
        held: what connections make the server hold.
        memory, files: how many bytes wait for readers, in memory and in temporary files.
        slices: in which large values are rendered, and are sent to streams and sockets.

    """

    def __init__(self, limits: Limits, clock: IReactorTime) -> None:
        """Render by `clock`; let as many bytes wait as `limits` say."""
        self.held: Final = HeldBytes(limits, clock.seconds)
        self.memory: Final = WaitingBytes(limits.waiting_bytes)
        self.files: Final = WaitingBytes(limits.waiting_file_bytes)
        self.slices: Final = Slices(clock)
        self._clock = clock
        self._slots = DeferredSemaphore(MAX_CONCURRENT_RENDERS)
        self._being_read: dict[Hashable, ref[Rendering]] = {}
        self._under_way: dict[Hashable, LargeRead] = {}

    def render(self, source: RenderingSource, nodes: Nodes) -> bytes | Rendering | TooMuchWork:
        """Return the JSON of a source, a rendering that others read if there is one.

        It is bytes if it is too little to be shared. Too much work goes on in the next turn, where
        it is, for those who call `render_large` in this one. If no slot is free, or `nodes` cannot
        be held, nothing is kept: it begins again when its turn has come.
        """
        if self._being_read or self._under_way:
            shared = self._find(source, nodes)
            if shared is not None:
                return shared
        chunks = source.chunks(nodes)
        rendered = [next(chunks)]
        if not render_at_once(chunks, rendered, self._clock):
            sequence = nodes.rows.sequence()
            self._go_on(source, nodes, chain(rendered, chunks))
            return TooMuchWork(sequence)
        body = b"".join(rendered)
        if len(body) <= SMALL_BYTES:
            return body
        rendering = Rendering(self.memory, body, source, nodes.rows.sequence())
        self._share(source.key, rendering)
        return rendering

    def render_large(
        self, hold: Callable[[], HeldNodes], waiter: Waiter, address: str
    ) -> Deferred[Rendering]:
        """Render in slices, for this waiter and all who want the same; `hold` returns a moment.

        Fires with the rendering, which is freed unless it is opened at once. Errbacks with what
        `judge` raises, and with `StoreFailed`, `DiskFull` or `WaitingBytesRefused`; at once, if no
        room at all is left for the address that will read it. A waiter may cancel; the work ends
        when the last one does.
        """
        return cast("Deferred[Rendering]", self.render_flowing(hold, waiter, address))

    def render_flowing(
        self, hold: Callable[[], HeldNodes], waiter: Waiter, address: str
    ) -> Deferred[Rendered]:
        """Render as `render_large` does; fire with what flows if the waiter may flow."""
        try:
            self.files.check_address(address, 1)
            return self._join(hold, waiter)
        except WaitingBytesRefused as error:
            return fail(error)

    def _join(self, hold: Callable[[], HeldNodes], waiter: Waiter) -> Deferred[Rendered]:
        key = waiter.source.key
        read = self._under_way.get(key)
        if read is not None and read.can_join(waiter.source, waiter.judged):
            return read.join(waiter)
        self.files.check(1)
        read = LargeRead(hold, self.slices, self._clock)
        waiting = read.join(waiter)
        self._start(key, read)
        return waiting

    def _go_on(self, source: RenderingSource, nodes: Nodes, chunks: Iterator[bytes]) -> None:
        """Go on with what has begun, if it need not wait and its moment can be held."""
        may_run = self._slots.tokens > 0 and self.files.has_room("", 1)
        held = nodes.hold() if may_run and isinstance(nodes, PresentNodes) else None
        if held is not None:
            begun = BegunRendering(source, held, chunks)
            self._start(source.key, LargeRead(lambda: held, self.slices, self._clock, begun))

    def _start(self, key: Hashable, read: LargeRead) -> None:
        self._under_way[key] = read
        Deferred.fromCoroutine(self._run(key, read))

    async def _run(self, key: Hashable, read: LargeRead) -> None:
        try:
            writer = RenderingWriter(self.memory, self.files)
            await read.run(self._slots, writer, partial(self._share, key))
        finally:
            if self._under_way.get(key) is read:
                del self._under_way[key]

    def _find(self, source: RenderingSource, nodes: Nodes) -> Rendering | TooMuchWork | None:
        """Return what shows the very state that `nodes` show, if anything does or will."""
        key = source.key
        known, read = self._being_read.get(key), self._under_way.get(key)
        if known is None and read is None:
            return None
        sequence = nodes.rows.sequence()
        rendering = None if known is None else known()
        if (
            rendering is not None
            and rendering.sequence == sequence
            and not rendering.is_closed
            and source.shares(rendering.source)
        ):
            return rendering
        may_join = read is not None and read.can_join(source, sequence)
        return TooMuchWork(sequence) if may_join else None

    def _share(self, key: Hashable, rendering: Rendering) -> None:
        """Remember a rendering as long as it is in use."""

        def forget(gone: ref[Rendering]) -> None:
            if self._being_read.get(key) is gone:
                del self._being_read[key]

        self._being_read[key] = ref(rendering, forget)


def render_at_once(chunks: Iterator[bytes], rendered: list[bytes], clock: IReactorTime) -> bool:
    """Add chunks to those that are `rendered`; return whether that was all.

    False after as much work as one turn has room for: then it is a large read.
    """
    size = len(rendered[0])
    end = clock.seconds() + SLICE_SECONDS
    for chunk in chunks:
        rendered.append(chunk)
        size += len(chunk)
        if size > MAX_TURN_BYTES or clock.seconds() > end:
            return False
    return True
