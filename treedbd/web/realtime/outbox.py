"""What one WebSocket has to send: in one order, at once while its client reads, within bounds.

Theory of operation. There are three kinds of items. *Events* of listens may be dropped: when more
bytes of them wait than the bound, all that wait are, and each listen that has lost any is *stale*:
in place of its first event it has a job that sends its present value. *Answers* are never dropped;
while more than the bound of them wait, the client is not read. A *job* is asked for what it sends
when its turn has come, so a value is read when there is room for it, and what was queued before it
is older. While a job has to wait for its value, nothing behind it is sent: an answer never comes
before an event of a commit that it follows. Only whole messages are dropped or put between others.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple, Protocol, TypeAlias

from treedbd.database.slices import Slices, Steps
from treedbd.http1.content import SMALL_BYTES, Buffer, Content, ContentReader, WaitingBytesRefused
from treedbd.http1.writer import ContentWriter, UpgradedConnection
from treedbd.web.queues import CHUNK_BYTES, FrameReader
from treedbd.web.realtime.frames import FramingReader, UnframedMessage

JOB_BYTES: Final = 256
"""What a job counts for among the answers that wait."""


class Job(Protocol):
    """Something that is read when its turn has come."""

    def open(self) -> Sequence[FrameReader] | None:
        """Return what is sent next; None if that is not ready, until `Outbox.release`.

        Raises `WaitingBytesRefused`: it is asked again after `Outbox.retry`.
        """
        ...


class EventOwner(Job, Protocol):
    """A listen, whose events may be dropped.

    Attributes:
        is_stale: whether its present value is to be sent in place of events.

    """

    is_stale: bool


class OutboxOwner(Protocol):
    """Whom an outbox belongs to."""

    def set_reading(self, is_reading: bool) -> None:
        """Read what the client sends, or leave it unread: too many answers wait."""
        ...

    def postponed(self, error: WaitingBytesRefused) -> None:
        """Call `retry` later: there is no room for what is to be sent next."""
        ...

    def overflowed(self) -> None:
        """Note that events were dropped."""
        ...

    def fail(self) -> None:
        """End after the exception that is being handled."""
        ...


class _Event(NamedTuple):
    """Frames of a listen that wait, or a long message that is not framed yet."""

    reader: ContentReader
    owner: EventOwner
    is_framed: bool

    def readers(self) -> deque[FrameReader]:
        """Return what reads the frames."""
        reader = self.reader
        return deque((reader if self.is_framed else FramingReader((reader,), reader.size),))


_Item: TypeAlias = "_Event | bytes | Job"


class Outbox:
    """The messages of one WebSocket on their way to its client.

    Attributes:
        is_paused: set while the transport accepts no more.

    """

    __slots__ = (
        "_address",
        "_answer_bytes",
        "_event_bytes",
        "_is_closed",
        "_is_held",
        "_is_reading",
        "_is_sending",
        "_limit",
        "_owner",
        "_sending",
        "_slices",
        "_waiting",
        "_writer",
        "is_paused",
    )

    def __init__(
        self,
        connection: UpgradedConnection,
        limit: int,
        owner: OutboxOwner,
        slices: Slices,
        address: str,
    ) -> None:
        """Let at most `limit` bytes of events wait, and not many more of answers.

        What waits is sent in `slices`, which all sockets share.
        """
        self.is_paused = False
        self._writer = ContentWriter(connection)
        self._limit = limit
        self._owner = owner
        self._slices = slices
        self._address = address
        self._sending: deque[FrameReader] | None = None
        self._waiting: deque[_Item] | None = None
        self._event_bytes = 0
        self._answer_bytes = 0
        self._is_held = False
        self._is_closed = False
        self._is_reading = True
        self._is_sending = False

    @property
    def is_idle(self) -> bool:
        """Whether what is sent now is written at once."""
        return not (self.is_paused or self._is_held or self._sending or self._waiting)

    @property
    def is_mid_frame(self) -> bool:
        """Whether a frame may be sent in part."""
        return bool(self._sending)

    def send_event(self, frames: Content, owner: EventOwner) -> None:
        """Send frames or a long message of a listen, or its present value later."""
        if self._waiting or self._sending or self.is_paused or self._is_held:
            self._wait_event(frames, owner)
        elif frames.size <= CHUNK_BYTES:
            self._writer.write_content(frames)
        else:
            self._wait_event(frames, owner)
            self.resume()

    def send_answer(self, frames: bytes) -> None:
        """Send frames that are never dropped."""
        if self._is_closed:
            return
        if len(frames) <= CHUNK_BYTES and self.is_idle:
            self._writer.write(frames)
            return
        self._append(frames)
        self._answer_bytes += len(frames)
        self._bound_answers()
        self.resume()

    def add(self, job: Job) -> None:
        """Send what a job returns when its turn has come, maybe now."""
        if self._is_closed:
            return
        self._append(job)
        self._answer_bytes += JOB_BYTES
        self._bound_answers()
        self.resume()

    def refresh(self, owner: EventOwner) -> None:
        """Send the present value of a listen in place of what waits of it."""
        if not owner.is_stale:
            self._drop_events(owner)
            if not owner.is_stale:
                owner.is_stale = True
                self.add(owner)

    def release(self, readers: Iterable[FrameReader]) -> None:
        """Send what a job had to wait for."""
        if self._is_closed:
            for reader in readers:
                reader.close()
            return
        self._is_held = False
        self._sending = deque(readers)
        self.resume()

    def postpone(self, job: Job, error: WaitingBytesRefused) -> None:
        """Ask a job again later that had to wait, and has no room now."""
        if self._is_closed:
            return
        self._answer_bytes += JOB_BYTES
        if self._waiting is None:
            self._waiting = deque()
        self._waiting.appendleft(job)
        self._owner.postponed(error)

    def retry(self) -> None:
        """Go on after `OutboxOwner.postponed`."""
        self._is_held = False
        self.resume()

    def resume(self) -> None:
        """Send what waits, unless that is not possible now."""
        if not (self._is_sending or self.is_paused or self._is_held or self._is_closed):
            self._is_sending = True
            self._slices.start(self._send_chunks(self._owner))

    def close(self) -> None:
        """Drop everything, for good, and forget the owner."""
        if self._is_closed:
            return
        self._is_closed = True
        del self._owner
        self._writer.settle()
        waiting, self._waiting = self._waiting, None
        for item in waiting or ():
            if isinstance(item, _Event):
                item.reader.close()
        sending, self._sending = self._sending, None
        for reader in sending or ():
            reader.close()

    # What waits.

    def _append(self, item: _Item) -> None:
        if self._waiting is None:
            self._waiting = deque()
        self._waiting.append(item)

    def _wait_event(self, frames: Content, owner: EventOwner) -> None:
        if self._is_closed:
            return
        size = self._event_bytes + frames.size
        if size > self._limit and not self.is_idle:
            self._overflow(owner)
            return
        try:
            reader = frames.open(self._address, may_refuse=size > SMALL_BYTES)
        except WaitingBytesRefused:
            self._overflow(owner)
            return
        self._event_bytes = size
        self._append(_Event(reader, owner, not isinstance(frames, UnframedMessage)))

    def _overflow(self, owner: EventOwner) -> None:
        self._owner.overflowed()
        self._drop_events(None)
        if not owner.is_stale:
            owner.is_stale = True
            self.add(owner)

    def _drop_events(self, owner: EventOwner | None) -> None:
        """Drop the events of a listen, or of all; each that loses any becomes stale."""
        kept: deque[_Item] = deque()
        for item in self._waiting or ():
            if not isinstance(item, _Event) or owner not in (None, item.owner):
                kept.append(item)
                continue
            self._event_bytes -= item.reader.size
            item.reader.close()
            if not item.owner.is_stale:
                item.owner.is_stale = True
                self._answer_bytes += JOB_BYTES
                kept.append(item.owner)
        self._waiting = kept or None

    def _bound_answers(self) -> None:
        """Read the client, or not, by how much waits for it."""
        is_reading = self._answer_bytes <= (self._limit if self._is_reading else self._limit // 2)
        if is_reading is not self._is_reading and not self._is_closed:
            self._is_reading = is_reading
            self._owner.set_reading(is_reading)

    # Sending.

    def _send_chunks(self, owner: OutboxOwner) -> Steps:
        """Send what waits for an owner, which is forgotten if this is closed meanwhile."""
        try:
            while (chunk := self._next_chunk()) is not None:
                self._writer.write(chunk)
                yield
        except Exception:
            owner.fail()
        finally:
            self._is_sending = False

    def _next_chunk(self) -> bytes | None:
        while not (self.is_paused or self._is_held or self._is_closed):
            if self._sending:
                return self._gather(self._sending)
            if not self._waiting:
                self._waiting = None
                return None
            item = self._waiting.popleft()
            if isinstance(item, bytes):
                return self._gather_answers(item, self._waiting)
            if isinstance(item, _Event):
                self._event_bytes -= item.reader.size
                self._sending = item.readers()
            else:
                self._open(item)
        return None

    def _open(self, job: Job) -> None:
        self._answer_bytes -= JOB_BYTES
        try:
            self._is_held = True  # what it sends meanwhile comes behind it
            readers = job.open()
        except WaitingBytesRefused as error:
            self.postpone(job, error)
            return
        if self._is_closed:
            self.release(readers or ())
        elif readers is not None:
            self._is_held = False
            self._sending = deque(readers) or None
        self._bound_answers()

    def _gather(self, sending: deque[FrameReader]) -> bytes:
        gathered: list[Buffer] = []
        room = CHUNK_BYTES
        while sending and room:
            reader = sending[0]
            piece = reader.read(room)
            gathered.append(piece)
            room -= len(piece)
            if not reader.remaining:
                sending.popleft().close()
        if not sending:
            self._sending = None
        return b"".join(gathered)

    def _gather_answers(self, first: bytes, waiting: deque[_Item]) -> bytes:
        gathered, size = [first], len(first)
        while waiting and size < CHUNK_BYTES and isinstance(answer := waiting[0], bytes):
            gathered.append(answer)
            size += len(answer)
            waiting.popleft()
        self._answer_bytes -= size
        self._bound_answers()
        return b"".join(gathered)
