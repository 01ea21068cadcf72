"""The events of one hook of one database: a window of them, their order, and when each is sent.

Theory of operation. The delivery reads the change log (`LogReader`) as far as its *window* has
room: so many events that are not acknowledged, so many bytes, and so many entries. Events of one
path are sent one after the other, in order; those of different paths at the same time, as many as
`concurrency` says. The cursor moves to just before the oldest entry of which an event is not
acknowledged: after any end of the process, that and what follows is sent again.

An event that fails is sent again after a wait, which doubles each time. What follows depends on
whether the receiver accepts others:

- It accepts none: after `AWAY_AFTER` failures in a row it is *away*. One request at a time probes
  it, each time with another path, and nothing is counted against an event. The log holds what is
  not read, within the bounds of `[readers]`.
- It accepts others, or it refuses this event by its status (`REFUSALS`): the failure counts, and
  after `attempts` of them the event is a dead letter. Its path goes on.

So that one event that fails does not hold all later ones up, those whose paths wait become letters
(`letters`) when the window is full: rows of the database, which are sent like the others. A full
window of few paths that all fail looks as if the receiver was away; so when each of them was tried
`AWAY_AFTER` times, they become letters as well, and others are read.

Letters are bounded together. If as many as there may be are dead, an event that would be dead stops
the delivery, until an admin replays or discards some; nothing is lost. While some of them wait, it
is tried again instead.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Generator, Sequence
from typing import Final

import attrs
from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.interfaces import IDelayedCall
from twisted.logger import Logger

from treedbd.counting import Histogram
from treedbd.database.catalog import Catalog
from treedbd.database.database import Database
from treedbd.database.log_reader import LogReader, write_rows
from treedbd.database.runtime import Problem, Runtime
from treedbd.errors import LineBudget, in_one_line
from treedbd.hooks.client import PostAnswer, Poster, PostFailed
from treedbd.hooks.functions import is_final
from treedbd.hooks.letters import (
    HookState,
    Letter,
    Order,
    StoreHook,
    find_letters,
    read_letter,
    read_state,
)
from treedbd.hooks.message import Message, headers_of, messages_of
from treedbd.limits import DEFAULT_TIMEOUT_S, MIB, HookLimits
from treedbd.store.cursors import read_cursor
from treedbd.store.engine import LogEntry
from treedbd.store.hooks import Hook
from treedbd.tree.types import Path

WINDOW_EVENTS: Final = 1000
WINDOW_BYTES: Final = 8 * MIB
WINDOW_READ: Final = 2000
"""Events from the oldest that is not acknowledged on: after a crash those come again."""
WINDOW_ENTRIES: Final = 10_000
"""Entries between the oldest that is not acknowledged and the newest that is read."""
WINDOWS_BYTES: Final = 64 * MIB
"""Bytes that the windows of all hooks hold; beyond them each has one reading at a time."""
AWAY_AFTER: Final = 10
"""Failures in a row after which a receiver is away."""
LETTER_AFTER: Final = 3
"""Failures that count after which an event may be a letter that waits."""
LETTERS_AT_ONCE: Final = 50
PRINTED_AT_ONCE: Final = 16
"""Events that are printed in one step."""
REFUSALS: Final = frozenset({400, 405, 406, 409, 411, 413, 414, 415, 422, 431})
"""Statuses by which a receiver that is there refuses one event."""
GONE: Final = 410
BUSY: Final = frozenset({429, 503})
STATE_S: Final = 10.0
"""Seconds between two times that the state is stored while all is well."""
STATE_SOON_S: Final = 1.0
LOST_SHOWN_MS: Final = 86_400_000
"""How long a loss of events is a problem."""
SHARED_SLOTS: Final = 64
SINGLE_SLOTS: Final = 256


@attrs.define
class HookCounts:
    """What is counted of all hooks.

    Attributes:
        accepted, failed: requests that were answered by 2xx, and all others.
        retried: requests that were not the first for their event.
        dead: events that have become dead letters.
        lost: hooks for which the log was not kept any longer.
        seconds: how long requests took.
        window_bytes: bytes of the events that are held in memory now.

    """

    accepted: int = 0
    failed: int = 0
    retried: int = 0
    dead: int = 0
    lost: int = 0
    seconds: Histogram = attrs.field(factory=Histogram)
    window_bytes: int = 0


class Slots:
    """How many requests of all hooks are under way: each may have one, and they share others."""

    def __init__(self, shared: int = SHARED_SLOTS, single: int = SINGLE_SLOTS) -> None:
        """Allow `single` first requests of a hook, and `shared` others."""
        self._shared, self._single = shared, single
        self._used: dict[HookDelivery, int] = {}
        self._sum = 0
        self._waiting: dict[HookDelivery, None] = {}

    def take(self, delivery: HookDelivery) -> bool:
        """Return whether a hook may send one more; else its `pump` is called when it may."""
        used = self._used.get(delivery, 0)
        others = self._sum - len(self._used)
        is_free = others < self._shared if used else len(self._used) < self._single
        if is_free:
            self._used[delivery] = used + 1
            self._sum += 1
            self._waiting.pop(delivery, None)
        else:
            self._waiting[delivery] = None
        return is_free

    def give(self, delivery: HookDelivery) -> None:
        """Allow another request instead of one that has ended."""
        self._used[delivery] -= 1
        self._sum -= 1
        if not self._used[delivery]:
            del self._used[delivery]
        following = next(iter(self._waiting), None)
        if following is not None:
            del self._waiting[following]
            following.pump()

    def forget(self, delivery: HookDelivery) -> None:
        """Remove a hook from those that wait."""
        self._waiting.pop(delivery, None)


@attrs.define(eq=False)
class Pending:
    """An event that is not acknowledged.

    Attributes:
        message: the event; that of a letter is in its row.
        size: its bytes in memory.
        read_at: when it was read, in seconds of the clock.
        is_letter: whether it is in a row, so that the cursor has passed it.
        attempts, failures, error, first_ms, last_ms: as those of a `Letter`.
        due: when it may be sent, in seconds of the clock.
        successes: of the hook, when it failed last.
        is_done: whether it is acknowledged, or a dead letter.

    """

    message: Message
    size: int
    read_at: float
    is_letter: bool = False
    attempts: int = 0
    failures: int = 0
    error: str = ""
    first_ms: int = 0
    last_ms: int = 0
    due: float = 0.0
    successes: int = 0
    is_under_way: bool = False
    is_done: bool = False

    def as_letter(self, *, is_dead: bool) -> Letter:
        """Return the row of an event whose message is in memory."""
        return Letter(
            message=self.message,
            is_dead=is_dead,
            attempts=self.attempts,
            failures=self.failures,
            error=self.error,
            first_ms=self.first_ms,
            last_ms=self.last_ms,
        )


class PathQueues:
    """Events by path, of which the first may be sent, and those that are first by when they may."""

    def __init__(self) -> None:
        self._paths: dict[Path, deque[Pending]] = {}
        # Entries that are not true any longer stay in the heap until they come first.
        self._heads: list[tuple[float, Order, Pending]] = []

    def __len__(self) -> int:
        """Return how many events there are."""
        return sum(map(len, self._paths.values()))

    def add(self, pending: Pending) -> None:
        """Add an event, in its order among those of its path that are not under way."""
        queue = self._paths.setdefault(pending.message.path, deque())
        at = len(queue)
        while at and queue[at - 1].message.order > pending.message.order:
            if queue[at - 1].is_under_way:
                break
            at -= 1
        queue.insert(at, pending)
        if at == 0:
            self._push(pending)

    def next_due(self) -> float | None:
        """Return when an event may be sent; None if none may before another has ended."""
        while self._heads:
            due, _, pending = self._heads[0]
            if self._is_true(due, pending):
                return due
            heapq.heappop(self._heads)
        return None

    def take(self) -> Pending:
        """Return the event that may be sent first; it is under way from now on."""
        self.next_due()
        pending = heapq.heappop(self._heads)[2]
        pending.is_under_way = True
        return pending

    def give_back(self, pending: Pending) -> None:
        """Take an event back that is not under way any longer."""
        pending.is_under_way = False
        self._push(pending)

    def remove(self, pending: Pending) -> None:
        """Remove an event that was under way, so that the next of its path follows."""
        queue = self._paths[pending.message.path]
        queue.remove(pending)  # it is among the first
        if queue:
            self._push(queue[0])
        else:
            del self._paths[pending.message.path]

    def hurry(self, now: float) -> None:
        """Make those due now that wait only because the receiver was away."""
        for queue in self._paths.values():
            head = queue[0]
            if not head.is_under_way and not head.failures and head.due > now:
                head.due = now
                self._push(head)

    def tried(self, attempts: int) -> list[Pending]:
        """Return all events not under way, if the first one of each path was sent so often."""
        heads = [queue[0] for queue in self._paths.values()]
        if any(head.attempts < attempts for head in heads):
            return []
        return [
            each for queue in self._paths.values() if not queue[0].is_under_way for each in queue
        ]

    def blocked(self, failures: int) -> list[Pending]:
        """Return the events of paths whose first one has failed so often and is not under way."""
        found: list[Pending] = []
        for queue in self._paths.values():
            if queue[0].failures >= failures and not queue[0].is_under_way:
                found += queue
        return found

    def oldest(self) -> float | None:
        """Return when the event was read that has waited longest; None without any."""
        return min((queue[0].read_at for queue in self._paths.values()), default=None)

    def _push(self, pending: Pending) -> None:
        heapq.heappush(self._heads, (pending.due, pending.message.order, pending))

    def _is_true(self, due: float, pending: Pending) -> bool:
        queue = self._paths.get(pending.message.path)
        is_first = queue is not None and queue[0] is pending
        return is_first and not pending.is_under_way and pending.due == due


class Window:
    """The entries that are read and of which events are not acknowledged.

    Attributes:
        events: events that are not acknowledged.
        bytes: their bytes.
        read: all events after those that are reached.
        reached: up to which entry all events are acknowledged.

    """

    def __init__(self, reached: int) -> None:
        """Begin after an entry."""
        self.events = 0
        self.bytes = 0
        self.read = 0
        self.reached = reached
        self._last = reached
        self._open: dict[int, int] = {}  # the events that are left of each entry, in order
        self._counts: deque[tuple[int, int]] = deque()  # all events of each after `reached`

    def add(self, sequence: int, events: int, size: int) -> None:
        """Add an entry, which may have no events."""
        self._last = sequence
        self.events += events
        self.bytes += size
        if events:
            self.read += events
            self._open[sequence] = events
            self._counts.append((sequence, events))

    def acknowledge(self, pending: Pending) -> None:
        """Count an event as done."""
        sequence = pending.message.sequence
        self.events -= 1
        self.bytes -= pending.size
        self._open[sequence] -= 1
        if not self._open[sequence]:
            del self._open[sequence]

    def advance(self) -> None:
        """Move `reached` as far as it may."""
        oldest = next(iter(self._open), None)
        self.reached = self._last if oldest is None else oldest - 1
        while self._counts and self._counts[0][0] <= self.reached:
            self.read -= self._counts.popleft()[1]

    @property
    def entries(self) -> int:
        """Entries from the oldest that is not acknowledged on."""
        return self._last - self.reached


class HookDelivery:
    """Sends the events of one hook of one database; belongs to the reactor's thread.

    Attributes:
        hook: the hook.
        is_over: whether it was stopped.
        wants_more: whether there may be entries that it had no room for.

    """

    _log = Logger()

    def __init__(
        self,
        hook: Hook,
        database: Database,
        *,
        runtime: Runtime,
        catalog: Catalog,
        limits: HookLimits,
        poster: Poster,
        slots: Slots,
        counts: HookCounts,
        lines: LineBudget,
        look: Callable[[], None],
        host: str = "",
    ) -> None:
        """Send nothing before `open`; `look` makes the owner call `fill`.

        `host` is what follows the labels of databases in their addresses.
        """
        self.hook, self.is_over, self.wants_more = hook, False, False
        self._database, self._runtime, self._catalog = database, runtime, catalog
        self._limits, self._poster, self._slots, self._counts = limits, poster, slots, counts
        self._lines, self._look, self._clock = lines, look, runtime.clock
        self._host = host
        self._reader = LogReader(database, runtime, hook.cursor, keeps_positions=True)
        self._queues, self._window = PathQueues(), Window(0)
        self._letters: dict[Order, bool] = {}  # whether each is dead
        self._gone: set[Order] = set()
        self._under_way = self._failures_in_row = self._probes = self._successes = 0
        self._is_away = self._is_full = self._is_gone = self._is_storing = False
        self._reported = 0  # up to where the cursor was moved
        self._hold_until = 0.0
        self._state = HookState()
        self._timer: IDelayedCall | None = None
        self._state_timer: IDelayedCall | None = None

    # The beginning and the end.

    async def open(self) -> bool:
        """Continue at the cursor; return False if there is none yet.

        Its database must be open. Raises what reading and `Database.write` raise.
        """
        view = self._database.read
        cursor = view(lambda nodes: read_cursor(nodes.rows.stored, self.hook.cursor))
        if cursor is None and self.hook.is_configured:
            return False  # the first event puts one
        self._state = view(lambda nodes: read_state(nodes.rows.stored, self.hook.name))
        if not await self._reader.open():
            await self._begin_again(is_loss=cursor is not None)
        self._window = Window(self._reader.sequence)
        self._reported = self._window.reached
        await self._runtime.slices.run(self._load_letters())
        return True

    async def _begin_again(self, *, is_loss: bool) -> None:
        """Begin at the end of the log, since it is not kept where the hook was."""
        await self._reader.begin()
        if is_loss:
            self._counts.lost += 1
            self._state = attrs.evolve(self._state, lost_ms=self._runtime.now_ms())
            self._touch(STATE_SOON_S)
            self._log.error(
                "{label}: events of the webhook {hook} are lost: the change log was not kept for "
                "it any longer (readers.lag_bytes, readers.lag_s). It goes on with the newest.",
                label=self._database.name.label,
                hook=self.hook.name,
            )

    def _load_letters(self) -> Generator[None, None, None]:
        """Know the letters, and send those that wait."""
        read, hook = self._database.read, self.hook.name
        places = read(lambda nodes: list(find_letters(nodes.rows.stored, hook)))
        present = frozenset(places)
        for at in [at for at, is_dead in self._letters.items() if is_dead and at not in present]:
            del self._letters[at]
        for at in places:
            # Others are sent between two steps, so what is known is as it is now.
            if self._letters.get(at) is False or at in self._gone:
                continue  # it is in the queues, or was
            letter = self._read_letter(at)
            if letter is None:
                self._letters.pop(at, None)
                continue
            self._letters[at] = letter.is_dead
            if not letter.is_dead:
                self._queue_letter(letter)
            yield
        self._is_full &= self._has_only_dead_letters() and not self._has_room_for_letters()
        self.pump()

    def _queue_letter(self, letter: Letter) -> None:
        """Send a letter that waits, when it is due; its event is read again then."""
        pending = Pending(
            attrs.evolve(letter.message, body=b""),
            0,
            self._clock.seconds(),
            is_letter=True,
            attempts=letter.attempts,
            failures=letter.failures,
            first_ms=letter.first_ms,
            successes=self._successes,
        )
        self._queues.add(pending)

    def _read_letter(self, at: Order) -> Letter | None:
        hook = self.hook.name
        return self._database.read(lambda nodes: read_letter(nodes.rows.stored, hook, at))

    async def look_at_letters(self) -> None:
        """Read which letters an admin has changed."""
        await self._runtime.slices.run(self._load_letters())
        self._touch(STATE_SOON_S)

    def stop(self) -> None:
        """Send nothing more; what is not acknowledged is sent again by the next process."""
        if self.is_over:
            return
        self.is_over = True
        self._poster.close()
        self._reader.stop()
        self._slots.forget(self)
        self._counts.window_bytes -= self._window.bytes
        for timer in (self._timer, self._state_timer):
            if timer is not None and timer.active():
                timer.cancel()

    async def save(self) -> None:
        """Store the cursor and the state; raise what `Database.write` errbacks with."""
        if self._state_timer is not None:
            await self._store_state()
        await self._reader.save()

    # Reading.

    def fill(self) -> Generator[None, None, None]:
        """Read as much as there is room for; its database must be open.

        Raises `CursorLost`, and what reading raises.
        """
        while not self.is_over:
            if not self._has_room():
                self.wants_more = True
                break
            self.wants_more = False
            entries = self._reader.read()
            if not entries:
                break
            for entry in entries:
                yield from self._take(entry)
                if self.is_over:
                    return
            self._advance()
            yield
        self.pump()

    def _has_room(self) -> bool:
        window = self._window
        is_small = window.events < WINDOW_EVENTS and window.bytes < WINDOW_BYTES
        is_small &= window.read < WINDOW_READ
        may_hold = self._counts.window_bytes < WINDOWS_BYTES or not window.events
        return is_small and may_hold and window.entries < WINDOW_ENTRIES and not self._is_full

    def _take(self, entry: LogEntry) -> Generator[None, None, None]:
        """Put the events of an entry into the queues, all in the last step."""
        found: list[Message] = []
        try:
            for message in messages_of(self.hook, self._database.name, entry, self._host):
                if message.order not in self._letters:
                    found.append(message)
                if message.number % PRINTED_AT_ONCE == 0:
                    yield
        except ValueError:
            self._log.error(
                "{label}: the events of the write {sequence} cannot be read.",
                label=self._database.name.label,
                sequence=entry.sequence,
            )
        if self.is_over:
            return
        size, now = 0, self._clock.seconds()
        for message in found:
            pending = Pending(message, len(message.body), now, successes=self._successes)
            size += pending.size
            self._queues.add(pending)
        self._window.add(entry.sequence, len(found), size)
        self._counts.window_bytes += size

    def _advance(self) -> None:
        self._window.advance()
        if not self._gone:
            self._report()

    def _report(self, through: int | None = None) -> None:
        """Move the cursor to where the window is, or up to an earlier entry.

        Letters that were sent before are removed first: after a kill, one that is still there is
        sent again, and so must be what follows it.
        """
        reached = self._window.reached if through is None else through
        if reached > self._reported:
            self._reported = reached
            self._reader.reached(reached)

    # Sending.

    def pump(self) -> None:
        """Send what may be sent now."""
        while not self.is_over and self._may_send():
            if not self._slots.take(self):
                return
            pending = self._queues.take()
            self._under_way += 1
            Deferred.fromCoroutine(self._try(pending))
        self._schedule()

    def _may_send(self) -> bool:
        now, due = self._clock.seconds(), self._queues.next_due()
        most = 1 if self._is_away else self._limits.concurrency
        if due is None or self._is_full or self._under_way >= most or now < self._hold_until:
            return False
        return self._is_away or due <= now

    def _schedule(self) -> None:
        """Call `pump` when the next event may be sent."""
        if self._timer is not None and self._timer.active():
            self._timer.cancel()
        due = self._queues.next_due()
        if self.is_over or due is None or self._is_full:
            return
        at = self._hold_until if self._is_away else max(due, self._hold_until)
        wait = at - self._clock.seconds()
        if wait > 0:  # else another request has to end first
            self._timer = self._clock.callLater(wait, self.pump)

    async def _try(self, pending: Pending) -> None:
        """Send an event once."""
        began, is_probe = self._clock.seconds(), self._is_away
        answer: PostAnswer | PostFailed | None = None
        try:
            message = await self._find(pending)
            if message is not None:
                answer = await self._post(pending, message)
        except PostFailed as error:
            answer = error
        except CancelledError:
            answer = PostFailed("it was not answered")
        except Exception as error:
            if not self.is_over:
                self._warn(f"cannot be sent ({in_one_line(str(error)) or type(error).__name__})")
            answer = PostFailed("the event could not be read")
        finally:
            self._under_way -= 1
            self._slots.give(self)
        if self.is_over:
            return
        self._counts.seconds.observe(self._clock.seconds() - began)
        if answer is None:
            self._queues.remove(pending)  # the letter was discarded
        elif isinstance(answer, PostAnswer) and is_final(self.hook, answer.status):
            self._succeeded(pending, answer)
        else:
            self._failed(pending, answer, is_probe=is_probe)
        self.pump()

    async def _post(self, pending: Pending, message: Message) -> PostAnswer:
        now_ms = self._runtime.now_ms()
        pending.attempts += 1
        pending.first_ms = pending.first_ms or now_ms
        pending.last_ms = now_ms
        self._counts.retried += pending.attempts > 1
        headers = headers_of(message, self.hook.secrets, now_ms, pending.attempts, self.hook.form)
        return await self._poster.post(headers, message.body)

    async def _find(self, pending: Pending) -> Message | None:
        """Return the message of an event; None if its letter is not there any more."""
        if not pending.is_letter:
            return pending.message
        async with self._catalog.opened(self._database, DEFAULT_TIMEOUT_S):
            letter = self._read_letter(pending.message.order)
        return None if letter is None or letter.is_dead else letter.message

    def _succeeded(self, pending: Pending, answer: PostAnswer) -> None:
        """Acknowledge an event that is not sent again after an answer."""
        self._successes += 1
        self._failures_in_row = self._probes = 0
        was_away, self._is_away, self._is_gone = self._is_away, False, False
        if was_away:
            self._hold_until = 0.0
            self._queues.hurry(self._clock.seconds())
            self._warn("accepts events again")
        now_ms = self._runtime.now_ms()
        if answer.is_success:
            self._counts.accepted += 1
            self._state = attrs.evolve(self._state, succeeded_ms=now_ms, sent=self._state.sent + 1)
        else:
            self._counts.failed += 1
            error = _describe(answer)
            self._state = attrs.evolve(self._state, failed_ms=now_ms, error=error)
            self._warn(f"is a function that failed ({error})")
        self._done(pending)
        self._touch(STATE_SOON_S if was_away else STATE_S)

    def _done(self, pending: Pending) -> None:
        """Forget an event that is acknowledged, or is a dead letter."""
        self._queues.remove(pending)
        pending.is_done = True
        if pending.message.order in self._letters:
            self._gone.add(pending.message.order)
            self._touch(STATE_SOON_S)
        if not pending.is_letter:
            self._window.acknowledge(pending)
            self._counts.window_bytes -= pending.size
            self._advance()
        if self.wants_more and self._window.events <= WINDOW_EVENTS // 2 and self._has_room():
            self._look()

    def _failed(self, pending: Pending, answer: PostAnswer | PostFailed, *, is_probe: bool) -> None:
        self._counts.failed += 1
        now = self._clock.seconds()
        pending.error = _describe(answer)
        status = answer.status if isinstance(answer, PostAnswer) else 0
        if status in REFUSALS or self._successes > pending.successes:
            pending.failures += 1
        pending.successes = self._successes
        pending.due = now + self._wait(pending.attempts)
        self._failures_in_row += 1
        self._is_gone = status == GONE
        if self._is_gone or (self._failures_in_row >= AWAY_AFTER and not self._is_away):
            self._be_away(_describe_briefly(answer))
        if self._is_away:
            self._probes += is_probe or not self._probes
            wait = self._limits.longest_wait_s if self._is_gone else self._wait(self._probes)
            self._hold_until = max(self._hold_until, now + wait)
        if isinstance(answer, PostAnswer) and status in BUSY:
            asked = answer.retry_after_s(self._runtime.now_ms() / 1000) or 0.0
            until = now + min(asked, self._limits.longest_wait_s)
            self._hold_until = max(self._hold_until, until)
        self._state = attrs.evolve(
            self._state, failed_ms=self._runtime.now_ms(), error=pending.error
        )
        if pending.failures >= self._limits.attempts:
            Deferred.fromCoroutine(self._bury(pending, _describe_briefly(answer)))
        else:
            self._queues.give_back(pending)
            if self.wants_more and pending.attempts >= LETTER_AFTER:
                self._look()  # it may become a letter
        self._touch(STATE_S)

    def _be_away(self, error: str) -> None:
        if not self._is_away:
            self._is_away = True
            self._warn(f"accepts no events, and is tried again ({error})")
            self._touch(STATE_SOON_S)

    def _wait(self, attempts: int) -> float:
        """Return the seconds until the next attempt, from half to all of what it has grown to."""
        limits = self._limits
        grown: float = limits.first_wait_s * 2 ** min(max(attempts - 1, 0), 40)
        longest = min(limits.longest_wait_s, grown)
        return longest * (0.5 + self._runtime.entropy(8)[-1] / 510)

    # Letters.

    def _has_room_for_letters(self) -> bool:
        return len(self._letters) < self._limits.dead_letters

    def _has_only_dead_letters(self) -> bool:
        """Return whether no letter will make room unless an admin changes some."""
        return all(self._letters.values())

    async def _bury(self, pending: Pending, why: str) -> None:
        """Make a dead letter of an event that is under way; its path goes on. `why` is logged."""
        if not pending.is_letter and not self._has_room_for_letters():
            self._queues.give_back(pending)
            if self._has_only_dead_letters():
                self._be_full()
            self._schedule()
            return
        try:
            message = await self._find(pending)
            if message is not None:
                letter = attrs.evolve(pending.as_letter(is_dead=True), message=message)
                await self._store(put=[letter])
        except Exception as error:
            self._fail_to_store(error)
            self._queues.give_back(pending)
            self._schedule()
            return
        if self.is_over:
            return
        self._letters.pop(pending.message.order, None)
        self._done(pending)
        if message is not None:
            self._letters[pending.message.order] = True
            self._counts.dead += 1
            self._warn(f"has a dead letter ({why})")
        self._touch(STATE_SOON_S)
        self.pump()

    def _be_full(self) -> None:
        if not self._is_full:
            self._is_full = True
            self._warn("is stopped, since it has as many dead letters as there may be")
            self._touch(STATE_SOON_S)

    async def make_letters(self) -> None:
        """If events that fail hold up others, make letters of them, which wait.

        Raises what `Database.write` errbacks with.
        """
        if not self.wants_more or self.is_over:
            return
        queues = self._queues
        held_up = queues.tried(AWAY_AFTER) if self._is_away else queues.blocked(LETTER_AFTER)
        found = [each for each in held_up if not each.is_letter]
        room = self._limits.dead_letters - len(self._letters)
        found = found[: max(0, min(LETTERS_AT_ONCE, room))]
        if not found:
            return
        await self._store(put=[each.as_letter(is_dead=False) for each in found])
        if self.is_over:
            return
        for each in found:
            self._letters[each.message.order] = False
            if each.is_done:  # meanwhile
                self._gone.add(each.message.order)
            elif not (each.is_under_way or each.is_letter):
                self._window.acknowledge(each)
                self._counts.window_bytes -= each.size
                each.is_letter, each.size = True, 0
                each.message = attrs.evolve(each.message, body=b"")
        self._advance()
        self._touch(STATE_SOON_S)

    # What is stored and shown.

    def _touch(self, after_s: float) -> None:
        """Store the state soon, and remove letters that were acknowledged."""
        timer = self._state_timer
        if self.is_over:
            return
        if timer is None or not timer.active():
            self._state_timer = self._clock.callLater(after_s, self._store_later)
        elif timer.getTime() - self._clock.seconds() > after_s:
            timer.reset(after_s)

    def _store_later(self) -> None:
        Deferred.fromCoroutine(self._try_to_store())

    async def _try_to_store(self) -> None:
        if self._is_storing or self.is_over:
            return self._touch(STATE_SOON_S)
        self._is_storing = True
        try:
            await self._store_state()
        except Exception as error:
            self._fail_to_store(error)
            self._touch(STATE_S)
        finally:
            self._is_storing = False
        return None

    async def _store_state(self) -> None:
        gone, reached = list(self._gone), self._window.reached
        await self._store(gone=gone, state=self.state())
        self._gone.difference_update(gone)
        for at in gone:
            self._letters.pop(at, None)
        if not self.is_over:
            self._report(reached)

    async def _store(
        self,
        *,
        put: Sequence[Letter] = (),
        gone: Sequence[Order] = (),
        state: HookState | None = None,
    ) -> None:
        task = StoreHook(self.hook.name, put, gone, state)
        await write_rows(self._database, self._runtime, task)

    def _fail_to_store(self, error: Exception) -> None:
        self._log.debug("The state of a webhook is not stored: {error}", error=error)

    def state(self) -> HookState:
        """Return what admins see of it."""
        now, now_ms = self._clock.seconds(), self._runtime.now_ms()
        wait = self._hold_until - now
        return attrs.evolve(
            self._state,
            under_way=self._under_way,
            waiting=len(self._queues),
            next_ms=now_ms + round(wait * 1000) if wait > 0 else None,
            dead=sum(self._letters.values()),
            paused=self.paused(),
            stored_ms=now_ms,
        )

    def paused(self) -> str:
        """Return why nothing is sent, in a sentence; empty if something is."""
        if self._is_full:
            return "It has as many dead letters as there may be: replay or discard some."
        if self._is_gone:
            return "The receiver has answered 410 Gone; it is tried again from time to time."
        return "The receiver accepts no events; it is tried again." if self._is_away else ""

    def is_idle(self) -> bool:
        """Return whether there is nothing to be sent."""
        return not (len(self._queues) or self.wants_more or self._gone)

    def lag_s(self) -> float:
        """Return how long the oldest event has waited that is not acknowledged."""
        oldest = self._queues.oldest()
        return 0.0 if oldest is None else max(0.0, self._clock.seconds() - oldest)

    def problems(self) -> list[Problem]:
        """Return what an operator has to see to."""
        reasons = []
        lost_ms = self._state.lost_ms
        if lost_ms is not None and self._runtime.now_ms() - lost_ms < LOST_SHOWN_MS:
            reasons.append(f"Events of the webhook {self.hook.name} were lost.")
        if self._is_full or self._is_gone:
            reasons.append(f"The webhook {self.hook.name} is stopped. {self.paused()}")
        name = self._database.name
        return [
            Problem(name.project, name.database, each, refuses_writes=False) for each in reasons
        ]

    def _warn(self, what: str) -> None:
        """Log what has become of a receiver, without its URL."""
        note = self._lines.take()
        if note is not None:
            self._log.warn(
                "{label}: the webhook {hook} {what}.{note}",
                label=self._database.name.label,
                hook=self.hook.name,
                what=what,
                note=note,
            )


def _describe(answer: PostAnswer | PostFailed) -> str:
    """Return what admins see of an answer."""
    text = answer.text if isinstance(answer, PostAnswer) else ""
    return _describe_briefly(answer) + (f": {text}" if text else "")


def _describe_briefly(answer: PostAnswer | PostFailed) -> str:
    """Return the same for the log, without the text of a receiver, which may repeat its URL."""
    return str(answer) if isinstance(answer, PostFailed) else f"it answered {answer.status}"
