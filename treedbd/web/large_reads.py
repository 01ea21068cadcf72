"""Large reads: rendered slice by slice from one moment, once for all who wait for the same.

The moment is held only while rows are read, at the speed of the disk; clients that read slowly cost
a temporary file and nothing else. Between two slices the reactor serves other requests.

A read that turns out to be large goes on with what it has begun, from the moment in which it was
asked for. If too many are under way it begins again later, and nothing is held meanwhile: it waits
for its turn, and until then any caller can join who wants the same; when it begins, the rules are
evaluated once more for each caller for whom they were evaluated against an older state. Once it has
begun, only callers who have seen the very state that is rendered can join.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from contextlib import suppress
from typing import Any, Final, NoReturn, Protocol, TypeAlias, TypeVar

import attrs
from twisted.internet.defer import CancelledError, Deferred, DeferredSemaphore
from twisted.internet.interfaces import IReactorTime
from twisted.internet.task import deferLater
from twisted.logger import Logger
from twisted.python.failure import Failure

from treedbd.database.requests import DeadlinePassed
from treedbd.database.slices import Slices, Steps
from treedbd.http1.content import Flow
from treedbd.limits import KIB
from treedbd.store.nodes import HeldNodes, Nodes
from treedbd.web.rendering import Rendering, RenderingWriter

Rendered: TypeAlias = Rendering | Flow
"""All of what was rendered, or what is rendered so far."""

FLOW_BYTES: Final = 64 * KIB
"""Once more than this is rendered, those who may flow begin to read."""

_log = Logger()
T = TypeVar("T")


class RenderingSource(Protocol):
    """What is rendered: which of the data, in which form."""

    @property
    def key(self) -> Hashable:
        """Equal for sources that render the same from the same state."""
        ...

    def shares(self, other: object) -> bool:
        """Return whether this source can show what another, with the same key, has rendered."""
        ...

    def chunks(self, nodes: Nodes) -> Iterator[bytes]:
        """Render from the nodes of one moment; at each chunk the caller can check the time."""
        ...


@attrs.frozen(eq=False)
class Waiter:
    """A caller who waits for a large read.

    Attributes:
        source: renders it, if this caller is the first when the work begins.
        judge: evaluates the rules against a state, and raises if they deny the read.
        judged: the number of the state that they have been evaluated against.
        begun: is called once, with the number of the state that is rendered, while that is the
            present state.
        may_flow: whether it can begin to read before all is rendered.

    """

    source: RenderingSource
    judge: Callable[[Nodes], None]
    judged: int
    begun: Callable[[int], None]
    may_flow: bool = False


@attrs.frozen(eq=False)
class BegunRendering:
    """A rendering that has begun, and goes on.

    Attributes:
        source: renders it.
        held: the moment that it is made from.
        chunks: all of it, beginning with what is made already.

    """

    source: RenderingSource
    held: HeldNodes
    chunks: Iterator[bytes]


class LargeRead:
    """One large read, and all who wait for it."""

    def __init__(
        self,
        hold: Callable[[], HeldNodes],
        slices: Slices,
        clock: IReactorTime,
        begun: BegunRendering | None = None,
    ) -> None:
        """Go on with what has `begun`, or begin from the moment that `hold` returns, in `slices`.

        What has begun needs a free slot, and closes its moment when it ends, joined or not.
        """
        self._hold = hold
        self._slices = slices
        self._clock = clock
        self._begun = begun
        self._awaits_first = begun is not None
        self._waiters: dict[Deferred[Rendered], Waiter] = {}
        self._flow: Flow | None = None
        self._next_turn: Deferred[Any] | None = None
        self._is_in_step = False

    def can_join(self, source: RenderingSource, sequence: int) -> bool:
        """Return whether one who has seen the state `sequence` may share it."""
        if not self._is_wanted and not self._awaits_first:
            return False
        begun = self._begun
        if begun is None:
            return True
        return sequence == begun.held.sequence and source.shares(begun.source)

    def join(self, waiter: Waiter) -> Deferred[Rendered]:
        """Fire with the rendering, which is freed unless it is opened at once.

        For one who may flow that is soon, with what is rendered so far. Errbacks with what `judge`
        raises, and with what rendering raises. A waiter may cancel; the work ends when the last one
        does.
        """
        waiting: Deferred[Rendered] = Deferred(self._leave)
        self._waiters[waiting] = waiter
        self._awaits_first = False
        if self._begun is not None:
            waiter.begun(self._begun.held.sequence)
        return waiting

    async def run(
        self, slots: DeferredSemaphore, writer: RenderingWriter, share: Callable[[Rendering], None]
    ) -> None:
        """Wait for a turn, render, and give the rendering to all; `share` has it before them."""
        try:
            await self._wait(slots.acquire())
        except CancelledError:
            return
        try:
            rendering = await self._render(writer)
            if self._flow is not None:
                self._flow.complete(rendering)
            share(rendering)
            await self._deliver(rendering)
        except CancelledError:
            pass  # all who waited have left, or nobody has joined
        except Exception:
            await self._fail(Failure())
        finally:
            slots.release()

    async def _fail(self, failure: Failure) -> None:
        if self._flow is not None and self._flow.has_readers:
            _log.warn("A large read was cut off in the middle: {error}", error=failure.value)
            self._flow.fail()
        with suppress(CancelledError):  # all who are left have left
            await self._run_in_slices(self._fail_each(failure))

    def _fail_each(self, failure: Failure) -> Iterator[None]:
        while self._waiters:
            self._pop(next(iter(self._waiters))).errback(failure)
            yield

    async def _render(self, writer: RenderingWriter) -> Rendering:
        try:
            try:
                await self._wait(deferLater(self._clock, 0))  # all who ask in this turn can join
                begun = self._begun or self._begin()
                await self._run_in_slices(self._render_chunks(begun, writer))
            finally:
                if self._begun is not None:
                    self._begun.held.close()
            return writer.finish(begun.source, begun.held.sequence)
        finally:
            writer.close()

    def _begin(self) -> BegunRendering:
        source = next(iter(self._waiters.values())).source
        held = self._hold()
        begun = self._begun = BegunRendering(source, held, _render_lazily(source, held))
        for waiter in self._waiters.values():
            waiter.begun(held.sequence)
        return begun

    def _render_chunks(self, begun: BegunRendering, writer: RenderingWriter) -> Iterator[None]:
        held = begun.held
        for waiting, waiter in list(self._waiters.items()):
            if waiter.judged != held.sequence and waiting in self._waiters:
                self._judge(waiting, waiter, held)
                yield
        for chunk in begun.chunks:
            if not self._is_wanted:
                raise CancelledError
            writer.write(chunk)
            yield
            if writer.size > FLOW_BYTES:
                yield from self._let_flow(begun.source, writer)

    def _let_flow(self, source: RenderingSource, writer: RenderingWriter) -> Iterator[None]:
        """Let those read who may flow, from what is rendered so far."""
        for waiting, waiter in list(self._waiters.items()):
            if waiter.may_flow and waiting in self._waiters:
                if self._flow is None:
                    self._flow = Flow(source, writer, writer.files, self._end_unless_wanted)
                self._pop(waiting).callback(self._flow)
                yield
        if self._flow is not None:
            self._flow.grow()

    def _judge(self, waiting: Deferred[Rendered], waiter: Waiter, held: HeldNodes) -> None:
        try:
            waiter.judge(held)
        except Exception:
            if waiting in self._waiters:
                self._pop(waiting).errback(Failure())

    async def _deliver(self, rendering: Rendering) -> None:
        reader = rendering.open("", may_refuse=False)  # keeps it until all have it
        try:
            await self._run_in_slices(self._deliver_to_each(rendering))
        finally:
            reader.close()

    def _deliver_to_each(self, rendering: Rendering) -> Iterator[None]:
        while self._waiters:
            self._pop(next(iter(self._waiters))).callback(rendering)
            yield

    async def _run_in_slices(self, steps: Iterator[None]) -> None:
        done: Deferred[None] = Deferred()
        self._slices.start(self._take(steps, done))
        await self._wait(done)

    def _take(self, steps: Iterator[None], done: Deferred[None]) -> Steps:
        """Take steps, and fire with their end, unless that was done meanwhile."""
        while not done.called:
            self._is_in_step = True
            try:
                next(steps)
            except StopIteration:
                done.callback(None)
            except Exception:
                done.errback(Failure())
            finally:
                self._is_in_step = False
            yield

    async def _wait(self, next_turn: Deferred[Any]) -> None:
        self._next_turn = next_turn
        try:
            await next_turn
        finally:
            self._next_turn = None

    def _pop(self, waiting: Deferred[Rendered]) -> Deferred[Rendered]:
        del self._waiters[waiting]
        return waiting

    def _leave(self, waiting: Deferred[Rendered]) -> None:
        self._waiters.pop(waiting, None)
        self._end_unless_wanted()

    @property
    def _is_wanted(self) -> bool:
        return bool(self._waiters) or (self._flow is not None and self._flow.has_readers)

    def _end_unless_wanted(self) -> None:
        # A step finds out by itself.
        if not (self._is_wanted or self._is_in_step or self._next_turn is None):
            self._next_turn.cancel()


def _render_lazily(source: RenderingSource, nodes: Nodes) -> Iterator[bytes]:
    yield from source.chunks(nodes)


def before_deadline(waiting: Deferred[T], deadline: float, clock: IReactorTime) -> Deferred[T]:
    """Let a waiter leave with `DeadlinePassed` at a time of the clock."""
    return waiting.addTimeout(max(0.0, deadline - clock.seconds()), clock, _time_out)


def _time_out(_: object, __: float) -> NoReturn:
    raise DeadlinePassed("the data was read")
