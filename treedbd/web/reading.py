"""Reads: rendered from the rows of one state, shared by equal reads, in slices.

Theory of operation. A `ReadSource` is one read: which of the data, in which form, and how it is
wrapped. The JSON is rendered in chunks when they are needed, so the sender decides how much is in
memory at a time. A `Rendering` is the JSON of a read of one state. `SharedReads` shares it while a
client reads it and nothing is written to its database, so many slow clients, and many streams that
begin at the same place, need one copy. The right to read is evaluated for each of them by its
caller, against the state that was rendered.

A read that does not fit into one turn is a `LargeRead`. It is rendered slice by slice from one
snapshot, once for all equal reads that wait for it; between two slices the reactor serves other
requests. The snapshot is held only while rows are read, at the speed of the disk; slow clients cost
a temporary file and nothing else. A large read continues with what was rendered before it was found
to be large. If too many are under way, nothing is kept or held: the read begins later, and until
then equal reads of any caller can join it. When it begins, the rules are evaluated again for each
caller for whom they were evaluated against an older state. Once it has begun, only callers who have
seen the rendered state can join. Callers whose response may flow begin to read before all of it is
rendered.

A stream, and a listen of the real-time protocol, begins with a `FirstValue`, which is rendered and
shared like a read. `MissingIndexes` checks queries before they run.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Hashable, Iterator
from contextlib import suppress
from functools import partial
from itertools import chain, islice
from typing import IO, Any, Final, NamedTuple, NoReturn, Protocol, TypeAlias, TypeVar, cast
from weakref import ref

import attrs
from twisted.internet.defer import CancelledError, Deferred, DeferredSemaphore, fail
from twisted.internet.interfaces import IReactorTime
from twisted.internet.task import deferLater
from twisted.logger import Logger
from twisted.python.failure import Failure

from treedbd.counting import HeldBytes
from treedbd.database.answers import Answer
from treedbd.database.database import Database
from treedbd.database.requests import DeadlinePassed, TooLargeToIndent
from treedbd.database.rights import ReadRequest
from treedbd.database.slices import SLICE_SECONDS, Slices, Steps
from treedbd.database.watched_queries import QuerySubscription
from treedbd.database.watchers import Subscription
from treedbd.errors import in_one_line
from treedbd.files import FULL_ERRNOS, close_temporary
from treedbd.http1.content import (
    SMALL_BYTES,
    Buffer,
    Content,
    Flow,
    WaitingBytes,
    WaitingBytesRefused,
)
from treedbd.http1.parser import Header
from treedbd.limits import KIB, MAX_SHOWN_BYTES, MIB, Limits
from treedbd.rules.evaluate import Verdict
from treedbd.store.engine import DiskFull
from treedbd.store.indexes import ChildIndex
from treedbd.store.nodes import HeldNodes, Nodes, PresentNodes, etag_in_steps
from treedbd.store.rows import Span, parse_stored
from treedbd.store.select import iterate_selected
from treedbd.tree import value
from treedbd.tree.hashes import NULL_ETAG, etag
from treedbd.tree.path import format_path
from treedbd.tree.query import Query, Shallow, name_query
from treedbd.tree.types import Container, InvalidQuery, Json, Path, Place
from treedbd.tree.value import compact, print_keys, print_members
from treedbd.web.descriptions import describe
from treedbd.web.request import EXPORT, PLAIN, DataRequest, Dialect, ReadOptions, index_of
from treedbd.web.response import JSON_HEADERS, Response, wrap

_log = Logger()

T = TypeVar("T")


class RenderingSource(Protocol):
    """What is rendered: which of the data, in which form."""

    @property
    def key(self) -> Hashable:
        """Equal for sources that render the same from the same state."""

    def shares(self, other: object) -> bool:
        """Return whether this source can show what another, with the same key, has rendered."""

    def chunks(self, nodes: Nodes) -> Iterator[bytes]:
        """Render the nodes of one state; at each chunk the caller can check the time."""


@attrs.define(eq=False)
class ComputedTag:
    """The entity tag of a value, once it is computed."""

    text: str | None = None


@attrs.define(eq=False)  # not frozen: each read makes one, which costs twice as much then
class ReadSource:
    """What a read renders (a `RenderingSource`): the data at a place, as the response has it.

    A `layout` indents the text. `tag` is set to that of the value before the text is rendered; if
    only the tag is needed, nothing is rendered.
    """

    database: Database
    place: Place
    options: ReadOptions
    layout: Dialect | None = None
    tag: ComputedTag | None = None
    is_silent: bool = False

    @property
    def key(self) -> Hashable:
        """Equal for reads that render the same from the same state."""
        options = self.options
        rendered = options.form, options.callback, self.layout, self.is_silent
        return self.database, self.place, rendered, self.tag is not None

    def shares(self, _: object) -> bool:
        """Return that this read can show what another with the same key has rendered."""
        return True

    def chunks(self, nodes: Nodes) -> Iterator[bytes]:
        """Render the nodes of one state; raise `TooLargeToIndent` if that applies."""
        chunks = iter((b"",)) if self.is_silent else self._render(nodes)
        if self.layout is not None:
            chunks = self.layout.indent(_bounded(chunks))
        if self.options.callback is not None:
            before, after, _ = wrap(self.options.callback, None)
            chunks = chain((before,), chunks, (after,))
        if self.tag is not None and self.tag.text is None:
            return chain(self._compute_tag(nodes, self.tag), chunks)
        return chunks

    def _render(self, nodes: Nodes) -> Iterator[bytes]:
        """Render the JSON; a query of a small collection from its children in order."""
        options, query = self.options, self.options.query
        if options is PLAIN and not self.place.is_priority:
            return nodes.chunks(self.place.path)
        if options.description is not None:
            return describe(self.database, self.place, options.description, nodes)
        if query is not None and not self.place.is_priority:
            path, is_export = self.place.path, options.is_export
            children = self.database.sort_children(nodes, path, query, is_export=is_export)
            if children is not None:
                return iter((children.print(query),))
        return chunks_of(options, self.place, nodes)

    def _compute_tag(self, nodes: Nodes, tag: ComputedTag) -> Iterator[bytes]:
        if self.place.is_priority:
            tag.text = etag(nodes.priority(self.place.path))
            return
        for tag.text in etag_in_steps(nodes, self.place.path):
            yield b""


def make_source(database: Database, request: DataRequest, tag: str | None = None) -> ReadSource:
    """Return what renders the response to a read; `tag` is that of the value, if known."""
    if request.shows_value:
        return ReadSource(database, request.place, PLAIN)
    options = request.read_options
    return ReadSource(
        database=database,
        place=request.place,
        options=options,
        layout=request.dialect if request.print == "pretty" else None,
        tag=ComputedTag(tag) if is_tagged(request) else None,
        is_silent=request.print == "silent",
    )


def _bounded(chunks: Iterator[bytes]) -> Iterator[bytes]:
    """Yield the chunks of indented text; raise `TooLargeToIndent` if there are too many."""
    size = 0
    for chunk in chunks:
        size += len(chunk)
        if size > MAX_SHOWN_BYTES:
            raise TooLargeToIndent
        yield chunk


def chunks_of(options: ReadOptions, place: Place, nodes: Nodes) -> Iterator[bytes]:
    """Render the JSON of a read; at an empty chunk the caller can check the time."""
    path = place.path
    if place.is_priority:
        if options.query is not None:  # it is a leaf, without children
            return iter((b"null",))
        return iter((compact(nodes.priority(path)),))
    if options.shallow is not None:
        return _render_shallow(nodes, path, options.shallow)
    if options.query is not None:
        return _render_query(nodes, path, options.query, options.is_export)
    return nodes.chunks(path, export=options.is_export)


def _render_shallow(nodes: Nodes, path: Path, shallow: Shallow) -> Iterator[bytes]:
    if nodes.type_at(path) is not Container:
        return _print_again(nodes, path)
    span = Span(after=shallow.start_after)
    if shallow.version == 1:
        return print_keys(islice(nodes.keys(path, span), shallow.limit))
    members = ((child.key, _render_size(child.chunks())) for child in nodes.children(path, span))
    return print_members(islice(members, shallow.limit))


def _print_again(nodes: Nodes, path: Path) -> Iterator[bytes]:
    """Print a leaf that has been read for its type, in another step."""
    yield b""
    yield from nodes.chunks(path)


def _render_size(chunks: Iterator[bytes]) -> Iterator[bytes]:
    """Render a leaf as it is, and the size of a container, counted chunk by chunk."""
    while not (first := next(chunks)):
        yield b""
    if first[0] not in b"{[":
        yield first
        yield from chunks
        return
    size = len(first)
    for chunk in chunks:
        size += len(chunk)
        yield b""
    yield b'{".sz":%d}' % size


def _render_query(nodes: Nodes, path: Path, query: Query, is_export: bool) -> Iterator[bytes]:
    return print_members(
        None if child is None else (child.key, child.chunks(export=is_export))
        for child in iterate_selected(nodes, path, query)
    )


MAX_CONCURRENT_RENDERS: Final = 4
"""Large reads that are rendered at a time; others wait for a slot."""
MAX_TURN_BYTES: Final = 1_200_000
"""A longer value is a large read, however fast it is rendered."""


class TooMuchWork(NamedTuple):
    """A read that does not fit into one turn; `sequence` is the number of its state."""

    sequence: int


IN_MEMORY_BYTES: Final = MIB
"""A large read that becomes longer than this is written to a temporary file."""


class Rendering(Content):
    """The JSON that `source` rendered from the state with the number `sequence`."""

    __slots__ = ("sequence", "source")

    def __init__(
        self,
        waiting: WaitingBytes,
        rendered: bytes | IO[bytes],
        source: object,
        sequence: int,
    ) -> None:
        super().__init__(waiting, rendered)
        self.source: Final = source
        self.sequence: Final = sequence


class RenderingWriter:
    """Gathers chunks in memory, and in a temporary file if they are many.

    Attributes:
        size: the bytes that were written.
        files: counts the bytes in the file.

    """

    def __init__(self, memory: WaitingBytes, files: WaitingBytes) -> None:
        """Count the bytes in the file by `files` while it grows."""
        self._memory = memory
        self.files = files
        self._chunks: list[bytes] = []
        self.size = 0
        self._file: IO[bytes] | None = None
        self._counted = 0

    def write(self, chunk: bytes) -> None:
        """Add a chunk; raise `WaitingBytesExhausted` or `DiskFull`."""
        if not chunk:
            return  # an empty step; there may be millions
        self.size += len(chunk)
        if self._file is None:
            self._chunks.append(chunk)
            if self.size <= IN_MEMORY_BYTES:
                return
            chunk = b"".join(self._chunks)
            self._chunks.clear()
        try:
            self._write_to_file(chunk)
        except OSError as error:
            raise _as_disk_full(error) from None

    def read(self, at: int, size: int) -> Buffer:
        """Return what was written from a position on, at most `size` bytes."""
        if self._file is not None:
            self._file.flush()
            return os.pread(self._file.fileno(), size, at)
        if len(self._chunks) > 1:
            self._chunks = [b"".join(self._chunks)]
        return memoryview(self._chunks[0])[at : at + size] if self._chunks else b""

    def finish(self, source: object, sequence: int) -> Rendering:
        """Return what was written, and close the writer; raise as `write` does."""
        file, self._file = self._file, None
        try:
            if file is None:
                if self.size > SMALL_BYTES:
                    self._memory.check(self.size)
                return Rendering(self._memory, b"".join(self._chunks), source, sequence)
            return Rendering(self.files, file, source, sequence)
        except OSError as error:
            self._file = file
            raise _as_disk_full(error) from None
        finally:
            self.close()

    def close(self) -> None:
        """Drop what was written, unless a rendering has taken it over."""
        self.files.add(-self._counted)
        self._counted = 0
        if self._file is not None:
            close_temporary(self._file, self.size)
            self._file = None

    def _write_to_file(self, chunk: bytes) -> None:
        self.files.check(len(chunk), self._counted)
        if self._file is None:
            self._file = tempfile.TemporaryFile()  # noqa: SIM115 - outlives this call
        self._file.write(chunk)
        self.files.add(len(chunk))
        self._counted += len(chunk)


def _as_disk_full(error: OSError) -> Exception:
    """Return the exception to raise for an error of a temporary file."""
    if error.errno in FULL_ERRNOS:
        return DiskFull(f"There is no room for a temporary file: {error.strerror}.")
    return error


Rendered: TypeAlias = Rendering | Flow
"""A whole rendering, or one that is still growing."""

FLOW_BYTES: Final = 64 * KIB
"""Once more than this is rendered, callers who may flow begin to read."""


@attrs.frozen(eq=False)
class Waiter:
    """A caller who waits for a large read.

    Attributes:
        source: renders the read, if this caller is the first when the work begins.
        judge: evaluates the rules against a state, and raises if they deny the read.
        judged: the number of the state that they were evaluated against.
        begun: is called once, with the number of the rendered state, while that is the present
            state.
        may_flow: whether it can begin to read before all is rendered.

    """

    source: RenderingSource
    judge: Callable[[Nodes], object]
    judged: int
    begun: Callable[[int], None] = lambda _: None
    may_flow: bool = False


@attrs.frozen(eq=False)
class BegunRendering:
    """A rendering that has begun.

    Attributes:
        source: renders it.
        held: the snapshot that it is made from.
        chunks: all of it, beginning with the chunks that exist already.

    """

    source: RenderingSource
    held: HeldNodes
    chunks: Iterator[bytes]


class LargeRead:
    """One large read and all callers who wait for it: rendered in slices from one snapshot."""

    def __init__(
        self,
        hold: Callable[[], HeldNodes],
        slices: Slices,
        clock: IReactorTime,
        begun: BegunRendering | None = None,
    ) -> None:
        """Continue with `begun`, or begin from the snapshot that `hold` returns, in `slices`.

        With `begun` there must be a free slot; its snapshot is closed at the end, even if no caller
        joins.
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
        """Return whether a caller who has seen the state `sequence` may share it."""
        if not self._is_wanted and not self._awaits_first:
            return False
        begun = self._begun
        if begun is None:
            return True
        return sequence == begun.held.sequence and source.shares(begun.source)

    def join(self, waiter: Waiter) -> Deferred[Rendered]:
        """Fire with the rendering, which is freed unless it is opened at once.

        For a caller who may flow that is soon, with what is rendered so far. Errbacks with what
        `judge` raises, and with what rendering raises. A waiter may cancel; the work ends when the
        last one does.
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
        """Wait for a slot, call `share` with the rendering, then fire for all who wait."""
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
            pass  # all callers have left, or none has joined
        except Exception:
            await self._fail(Failure())
        finally:
            slots.release()

    async def _fail(self, failure: Failure) -> None:
        if self._flow is not None and self._flow.has_readers:
            _log.warn("A large read was cut off in the middle: {error}", error=failure.value)
            self._flow.fail()
        with suppress(CancelledError):  # the last callers have left
            await self._run_in_slices(self._end_each(lambda each: each.errback(failure)))

    def _end_each(self, end: Callable[[Deferred[Rendered]], None]) -> Iterator[None]:
        while self._waiters:
            end(self._pop(next(iter(self._waiters))))
            yield

    async def _render(self, writer: RenderingWriter) -> Rendering:
        try:
            try:
                await self._wait(deferLater(self._clock, 0))  # equal reads of this turn can join
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
        """Begin the reads of callers who may flow, with what is rendered so far."""
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
        reader = rendering.open("", may_refuse=False)  # keeps it until it was delivered to all
        try:
            await self._run_in_slices(self._end_each(lambda each: each.callback(rendering)))
        finally:
            reader.close()

    async def _run_in_slices(self, steps: Iterator[None]) -> None:
        done: Deferred[None] = Deferred()
        self._slices.start(self._take(steps, done))
        await self._wait(done)

    def _take(self, steps: Iterator[None], done: Deferred[None]) -> Steps:
        """Run steps, and fire with their end, unless `done` has fired meanwhile."""
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
        # A step checks it by itself.
        if not (self._is_wanted or self._is_in_step or self._next_turn is None):
            self._next_turn.cancel()


def _render_lazily(source: RenderingSource, nodes: Nodes) -> Iterator[bytes]:
    yield from source.chunks(nodes)


def before_deadline(
    waiting: Deferred[T], deadline: float, clock: IReactorTime, what: str = "the data was read"
) -> Deferred[T]:
    """Cancel what waits at a time of the clock; it fails with `DeadlinePassed`, before `what`."""

    def pass_deadline(_: object, __: float) -> NoReturn:
        raise DeadlinePassed(what)

    return waiting.addTimeout(max(0.0, deadline - clock.seconds()), clock, pass_deadline)


class SharedReads:
    """The renderings of a service that are being made or read.

    Attributes:
        held: accounts of the memory that connections use.
        memory, files: how many bytes wait for readers, in memory and in temporary files.
        slices: in which large values are rendered, and are sent to streams and sockets.

    """

    def __init__(self, limits: Limits, clock: IReactorTime) -> None:
        """Measure time by `clock`; at most as many bytes wait as `limits` allow."""
        self.held: Final = HeldBytes(limits, clock.seconds)
        self.memory: Final = WaitingBytes(limits.waiting_bytes)
        self.files: Final = WaitingBytes(limits.waiting_file_bytes)
        self.slices: Final = Slices(clock)
        self._clock = clock
        self._slots = DeferredSemaphore(MAX_CONCURRENT_RENDERS)
        self._being_read: dict[Hashable, ref[Rendering]] = {}
        self._under_way: dict[Hashable, LargeRead] = {}

    def render(self, source: RenderingSource, nodes: Nodes) -> bytes | Rendering | TooMuchWork:
        """Return the JSON of a source, or a rendering of it that others read.

        It is bytes if it is too short to be shared. A read too large for one turn is kept and
        continued by `render_large`, if that is called in the same turn. If no slot is free, or
        `nodes` cannot be held, nothing is kept: it begins again when a slot is free.
        """
        if self._being_read or self._under_way:
            shared = self._find(source, nodes)
            if shared is not None:
                return shared
        chunks = source.chunks(nodes)
        body, more = next(chunks), next(chunks, None)
        if more is not None:  # most values are one chunk
            rendered = [body]
            if not render_at_once(chain((more,), chunks), rendered, self._clock):
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
        """Render in slices, for this waiter and equal ones; `hold` returns a snapshot.

        Fires with the rendering, which is freed unless it is opened at once. Errbacks with what
        `judge` raises, and with `StoreFailed`, `DiskFull` or `WaitingBytesRefused`; at once, if
        there is no room at all for the address that will read it. A waiter may cancel; the work
        ends when the last one does.
        """
        return cast("Deferred[Rendering]", self.render_flowing(hold, waiter, address))

    def render_flowing(
        self, hold: Callable[[], HeldNodes], waiter: Waiter, address: str
    ) -> Deferred[Rendered]:
        """Render as `render_large` does; fire with a flow if the waiter may flow."""
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
        """Continue a rendering if it need not wait and its snapshot can be held."""
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
        """Return what shows, or will show, the same state as `nodes`, if anything does."""
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
        """Share a rendering while a client reads it."""

        def forget(gone: ref[Rendering]) -> None:
            if self._being_read.get(key) is gone:
                del self._being_read[key]

        self._being_read[key] = ref(rendering, forget)


def render_at_once(chunks: Iterator[bytes], rendered: list[bytes], clock: IReactorTime) -> bool:
    """Append chunks to `rendered`; return whether that was all.

    False after as much work as one turn has time for: then it is a large read.
    """
    size = len(rendered[0])
    end = clock.seconds() + SLICE_SECONDS
    for chunk in chunks:
        rendered.append(chunk)
        size += len(chunk)
        if size > MAX_TURN_BYTES or clock.seconds() > end:
            return False
    return True


AT_ONCE_BYTES: Final = 64 * KIB
"""The tag of a longer kept answer is not computed in one step."""


def needs_body(request: DataRequest) -> bool:
    """Return whether the response depends on the data, or on its tag."""
    return request.print != "silent" or is_tagged(request)


def is_tagged(request: DataRequest) -> bool:
    """Return whether the response to a read has the tag of the value, or depends on it."""
    return (request.wants_etag or request.condition is not None) and request.read_options.is_plain


def read_response(
    request: DataRequest,
    rendered: bytes | Content | Flow,
    tag: str | None,
    cut_off_at: float | None = None,
) -> Response:
    """Return the response to a read, with `rendered` as its body.

    `tag` is that of the value, if it was computed. `cut_off_at` is when the client must have read a
    large body, if the request has a time-out.
    """
    if request.shows_value:
        return Response(200, rendered, JSON_HEADERS, cut_off_at)
    options = request.read_options
    if tag is None:
        if request.print == "silent":
            return Response(204, b"", ())
        headers = JSON_HEADERS if options is PLAIN else _headers(options)
        return Response(200, rendered, headers, cut_off_at)
    tags = ((b"ETag", request.dialect.etag(tag)),)
    if is_met_by(request, tag):
        return Response(304, b"", tags)
    if request.print == "silent":
        return Response(204, b"", tags)
    return Response(200, rendered, (*_headers(options), *tags), cut_off_at)


def is_met_by(request: DataRequest, tag: str) -> bool:
    """Return whether the condition of a read names this tag: the client has the value (304)."""
    return request.condition is not None and request.condition.matches(tag, tag != NULL_ETAG)


def _headers(options: ReadOptions) -> tuple[Header, ...]:
    return wrap(options.callback, options.download).headers


def kept_response(request: DataRequest, answer: Answer, memory: WaitingBytes) -> Response | None:
    """Return the response with a kept answer; a large one is counted by `memory`.

    None if it needs a tag that is not known and would take long to compute.
    """
    if request.shows_value or not is_tagged(request):
        return read_response(request, _body_of(request, answer, memory), None)
    if answer.tag is None:
        if len(answer.body) > AT_ONCE_BYTES or request.print == "pretty":
            return None
        answer.tag = _tag_of(request.read_options, answer.body)
    return read_response(request, _body_of(request, answer, memory), answer.tag)


def _body_of(request: DataRequest, answer: Answer, memory: WaitingBytes) -> bytes | Content:
    callback = request.read_options.callback
    if callback is not None:
        before, after, _ = wrap(callback, None)
        return before + answer.body + after
    if len(answer.body) <= SMALL_BYTES:
        return answer.body
    content: Content | None = answer.content
    if content is None:
        content = answer.content = Content(memory, answer.body)
    return content


def _tag_of(options: ReadOptions, body: bytes) -> str:
    """Return the entity tag of a plain read or an export whose JSON is `body`."""
    json = parse_stored(body)
    return etag(value.plain(value.from_export(json)) if options.is_export else json)


def may_flow(request: DataRequest) -> bool:
    """Return whether the text of a read is sent while it is rendered.

    Indented text is not: whether it is too large is known only at its end.
    """
    options = request.read_options
    return request.print == "compact" and not (options.callback is not None and is_tagged(request))


def known_tag(source: object) -> str | None:
    """Return the tag that was computed before the text was rendered, None if there is none."""
    return source.tag.text if isinstance(source, ReadSource) and source.tag is not None else None


class QuerySource:
    """The first value of streams of a query; rendering it fills their window."""

    def __init__(
        self,
        database: object,
        path: Path,
        query: Query | None,
        subscription: QuerySubscription,
        *,
        is_export: bool = False,
    ) -> None:
        self._subscription = subscription
        self.key: Final[Hashable] = ("window", database, path, name_query(query), is_export)

    def shares(self, other: object) -> bool:
        """Return whether a stream can begin with what the other has rendered."""
        return isinstance(other, QuerySource) and self._subscription.shares(other._subscription)

    def chunks(self, nodes: Nodes) -> Iterator[bytes]:
        """Render what the query selects, in its order."""
        return self._subscription.chunks(nodes)


def first_source(
    database: Database,
    path: Path,
    query: Query | None,
    subscription: Subscription,
    *,
    is_export: bool = False,
) -> RenderingSource:
    """Return what renders the first value; for a place without a query, as a read does."""
    if isinstance(subscription, QuerySubscription):
        return QuerySource(database, path, query, subscription, is_export=is_export)
    return ReadSource(database, Place(path), EXPORT if is_export else PLAIN)


class FirstValue:
    """The value that one stream begins with, or begins again with.

    A small one is rendered in the turn in which the stream begins; a large one in slices, together
    with equal streams and reads. Each stream sends it from the shared copy, at the speed of its
    reader.
    """

    __slots__ = ("_address", "_judge", "_reads", "_source", "_waiting")

    def __init__(
        self,
        source: RenderingSource,
        judge: Callable[[Nodes], object],
        reads: SharedReads,
        address: str,
    ) -> None:
        """Render `source` for a client; `judge` raises if it may no longer read a large value."""
        self._source: Final = source
        self._judge = judge
        self._reads: Final = reads
        self._address: Final = address
        self._waiting: Deferred[Rendering] | None = None

    def render(self, nodes: Nodes) -> bytes | Rendering | TooMuchWork:
        """Return the present value; the read rules allowed this state."""
        return self._reads.render(self._source, nodes)

    def render_large(
        self, hold: Callable[[], HeldNodes], judged: int, subscription: Subscription
    ) -> Deferred[Rendering]:
        """Render a large value; `subscription` then watches from the state that it shows.

        Until that state is known it does not watch. The read rules already allowed the state
        `judged`. Fires and errbacks as `SharedReads.render_large`.
        """
        states: list[int] = []

        def begun(state: int) -> None:
            states.append(state)
            subscription.watch_from(state)

        waiter = Waiter(self._source, self._judge, judged, begun)
        self._waiting = self._reads.render_large(hold, waiter, self._address)
        if not states:  # what has begun already fills the window that is watched
            subscription.unwatch()
        return self._waiting

    def cancel(self) -> None:
        """Stop waiting for a large value, and render no other."""
        self._judge = _judge_nothing
        if self._waiting is not None:
            self._waiting.cancel()


def _judge_nothing(_: Nodes) -> None:
    raise CancelledError


MAX_LOGGED: Final = 1000
"""How many different missing indexes are logged, each once."""


class MissingIndexes:
    """Finds queries without an index: refused if the project requires one, else logged once.

    Without an index a query reads all children of its path. The log says so; the refusal has the
    text of Firebase, which its clients recognise. It also says that an index is being built.

    Attributes:
        unindexed: how many queries ran, or were refused, without a declared index.

    """

    _log = Logger()

    def __init__(self) -> None:
        self.unindexed = 0
        self._logged: set[int] = set()  # hashes: paths can be long

    def check(self, database: Database, query: Query, read: ReadRequest) -> bool:
        """Raise `InvalidQuery` for a query without an index if the project requires one.

        Returns whether there is nothing to check again while the rules stay: not while indexes are
        built. The right to read the path is checked before an index is mentioned, because that
        reveals what the rules declare.
        """
        index = index_of(query)
        if index is None and query.order.kind != "priority":
            return True
        if not database.indexes.is_checked:
            database.indexes.check()
        if index is None:
            return True
        if index in database.rules.current.indexed(read.path):
            self._say_building(database, query, index, read)
            return not database.indexes.is_changing
        self._refuse_or_log(database, index, read)
        return True

    def _refuse_or_log(self, database: Database, index: str, read: ReadRequest) -> None:
        self.unindexed += 1
        is_required = database.project.require_index
        missing = hash((database.name.project, index, read.path))
        if not is_required and (missing in self._logged or len(self._logged) >= MAX_LOGGED):
            return
        database.check_read(read)
        if is_required:
            raise InvalidQuery(
                f'Index not defined, add ".indexOn": "{index}", for path '
                f'"{format_path(read.path)}", to the rules'
            )
        self._logged.add(missing)
        # The client chose names in it.
        shown = in_one_line(f'"{index}" for path "{format_path(read.path)}"')
        self._log.warn(
            '{project}: no ".indexOn" names {shown}, by which a query orders: it has read all '
            "children of the path. Add it to the rules there.",
            project=database.name.project,
            shown=shown,
        )

    def _say_building(
        self, database: Database, query: Query, index: str, read: ReadRequest
    ) -> None:
        """Log once that a query has no index because that is not built yet."""
        path = read.path
        if not database.indexes.is_changing:
            return
        building = hash((f"{database.name} ", index, path))
        is_logged = building in self._logged or len(self._logged) >= MAX_LOGGED
        if is_logged or database.indexes.stage_of(path, query.order) == "built":
            return
        database.check_read(read)
        self._logged.add(building)
        self._log.info(
            "The index {shown} in the database {name} is being built; until then such queries "
            "wait, or read all children of the path.",
            name=database.name.label,
            shown=in_one_line(f'"{index}" of path "{format_path(path)}"'),
        )


def with_expiry(shown: dict[str, Json], database: Database, path: Path) -> dict[str, Json]:
    """Return an explanation with the `.ttl` of the rules at and above its path, if there is any."""
    expiry = database.explain_expiry(path)
    return {**shown, "ttl": expiry} if expiry else shown


def explain_index(database: Database, path: Path, query: Query) -> Json:
    """Return which index a query uses, and its state: `built`, `building`, `none`, or `key`."""
    if query.order.kind == "key":
        return {"name": "$key", "state": "key"}
    name = ChildIndex((), query.order).name
    return {"name": name, "state": database.indexes.stage_of(path, query.order)}


NO_RULES: Final = Verdict(True)
"""The verdict on a resource that only admins may use."""
