"""The event loop: how long each turn lasts, and work that is divided so that they are short.

A turn is the time from the end of one wait for events to the beginning of the next; while one
lasts, everything else waits. `Turns` counts turns by their length, in nanoseconds of a monotonic
clock, so that counting one takes less than a microsecond. `TurnPoller` replaces the poller of
a loop, and sees where turns begin and end.

The poller also bounds what is done in a turn for the connections that are ready. Each has its
events handled in one go, but once `EVENTS_S` have passed, those that are left wait for the next
turn. In it they alternate with those that have become ready meanwhile, and the addresses of clients
alternate too. So none is left out, and a client that comes with one request does not wait until
another had a thousand answered.

Long work is divided in one of two ways. Generators of `Steps` yield after some tens of microseconds
to a millisecond of work, and return their result: a rules document may hold a mebibyte, and the
reactor must not wait for all of it. The caller decides how many steps make a slice: `finish` runs
all of them at once.

Plain functions pause. Applying a large write goes through rules, nodes and rows, which are
functions that call each other and return values. `in_steps` runs such a function in a greenlet,
which has a stack of its own: at each `pause` in it, however deep, the step that is under way ends,
and the next one goes on there. Anywhere else `pause` does nothing, so the same functions serve
commands and tests. To end a step costs some microseconds, so with a clock a step goes on until it
has lasted `STEP_SECONDS`. What cannot be divided, as a call of the store with a row of megabytes,
is done by `run_beside` in another thread, and the steps go on when it is done. What steps that are
closed have collected is freed there too (`free_beside`), since they have no further step for it. A
function that pauses must not be called within `Engine.read`, whose moment ends with the step.

Clients are distinguished by `network_of` their addresses.
"""

from __future__ import annotations

import threading
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from functools import lru_cache
from heapq import merge
from ipaddress import IPv6Address
from itertools import chain, islice, zip_longest
from math import inf
from typing import Any, Final, NoReturn, TypeAlias, TypeVar

import attrs
from greenlet import GreenletExit, getcurrent, greenlet

T = TypeVar("T")

_CLOCK: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
BUCKETS_S: Final = (
    *(0.000_05, 0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005),
    *(0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0),
)
"""Upper bounds of the buckets, in seconds; a last one has no bound."""
LONG_S: Final = 0.05
"""Seconds beyond which a turn is reported."""
REPORT_EVERY_S: Final = 1.0
EVENTS_S: Final = 0.01
"""Seconds of a turn after which no further event is handled in it."""
TOGETHER: Final = 4
"""Events between two looks at the clock: one for each would cost 2 % of a small read."""

_NS: Final = 1_000_000_000
_BOUNDS_NS: Final = tuple(round(bound * _NS) for bound in BUCKETS_S)
_LONG_NS: Final = round(LONG_S * _NS)
_EVENTS_NS: Final = round(EVENTS_S * _NS)

Report = Callable[[int, float], None]
Poll = Callable[..., Any]
Event = tuple[int, int]
"""A file descriptor, and what it is ready for."""


@attrs.frozen
class TurnSummary:
    """What turns were like: how many, and seconds.

    A percentile is the upper bound of its bucket, or the longest turn of all if that is less.
    `longest_s` is since the summary before.
    """

    count: int
    p50_s: float
    p99_s: float
    longest_s: float


class Turns:
    """Counts turns by their length, and reports long ones, at most once a second.

    Attributes:
        counts: turns in each of the buckets, the last of which has no bound.
        total_ns: how long all of them took.

    """

    def __init__(self, report: Report, now_ns: Callable[[], int] = time.perf_counter_ns) -> None:
        """Call `report` with the number of long turns since the last call, and the longest's s."""
        self.counts: Final = [0] * (len(BUCKETS_S) + 1)
        self.total_ns = 0
        self.now_ns: Final = now_ns
        self._report = report
        self._longest_ns = 0
        self._longest_ever_ns = 0
        self._late_count = 0
        self._late_longest_ns = 0
        self._silent_until_ns = 0

    def add(self, length_ns: int) -> None:
        """Count a turn that ends now."""
        self.counts[bisect_left(_BOUNDS_NS, length_ns)] += 1
        self.total_ns += length_ns
        self._longest_ns = max(self._longest_ns, length_ns)
        if length_ns > _LONG_NS:
            self._late_count += 1
            self._late_longest_ns = max(self._late_longest_ns, length_ns)
        if self._late_count:
            self._report_late()

    def summarise(self) -> TurnSummary:
        """Return the summary of all turns so far; the next longest turn is sought from now on."""
        longest, self._longest_ns = self._longest_ns, 0
        self._longest_ever_ns = max(self._longest_ever_ns, longest)
        return TurnSummary(
            sum(self.counts), self._percentile(50), self._percentile(99), longest / _NS
        )

    def _percentile(self, percent: int) -> float:
        longest = self._longest_ever_ns / _NS
        wanted, seen = sum(self.counts) * percent / 100, 0
        for bound, count in zip(BUCKETS_S, self.counts, strict=False):
            seen += count
            if seen >= wanted:
                return min(bound, longest)
        return longest

    def _report_late(self) -> None:
        now = self.now_ns()
        if now < self._silent_until_ns:
            return
        count, longest = self._late_count, self._late_longest_ns
        self._late_count = self._late_longest_ns = 0
        self._silent_until_ns = now + round(REPORT_EVERY_S * _NS)
        self._report(count, longest / _NS)


class TurnPoller:
    """A poller like another, whose `poll` also counts and bounds the turns between its calls."""

    def __init__(
        self, poller: Any, turns: Turns, address_of: Callable[[int], str] = lambda _: ""
    ) -> None:
        """Stand in for `poller`, an epoll or poll object.

        `address_of` returns the address of the client at a descriptor; empty for none.
        """
        self._poller = poller
        self.poll: Final = _poll_in_turns(poller.poll, turns, address_of)

    def __getattr__(self, name: str) -> Any:
        """Return what the other poller has; what has been used once is found without this."""
        found = getattr(self._poller, name)
        setattr(self, name, found)
        return found


def _poll_in_turns(poll: Poll, turns: Turns, address_of: Callable[[int], str]) -> Poll:
    """Return `poll` with the time between its calls added to `turns`, and bounded.

    Its events end when a turn has lasted long enough. Those that it did not come to are asked for
    again by the next call, since a poller reports a descriptor as long as it is ready.
    """
    began_ns = 0
    left: list[int] = []
    now_ns, add = turns.now_ns, turns.add

    def poll_in_turns(*limits: Any) -> Iterable[Event]:
        nonlocal began_ns, left
        if began_ns:
            add(now_ns() - began_ns)
        try:
            events: list[Event] = poll(*limits)
        finally:
            began_ns = now_ns()
        if left:
            events = _by_turns(_alternate(events, left), address_of)
        if len(events) > TOGETHER:
            return chain.from_iterable(groups(events))
        left = []
        return events

    def groups(events: list[Event]) -> Iterator[list[Event]]:
        nonlocal left
        end_ns = began_ns + _EVENTS_NS
        for at in range(0, len(events), TOGETHER):
            if at and now_ns() >= end_ns:
                left = _keep_order(events[at:], left)
                return
            yield events[at : at + TOGETHER]
        left = []

    return poll_in_turns


def _alternate(events: Sequence[Event], left: Sequence[int]) -> list[Event]:
    """Return events so that a new one follows each of those that were left, in their order."""
    ready = dict(events)
    again = [(number, ready.pop(number)) for number in left if number in ready]
    pairs = zip_longest(again, ready.items())
    return [event for pair in pairs for event in pair if event is not None]


def _by_turns(events: Iterable[Event], address_of: Callable[[int], str]) -> list[Event]:
    """Return events so that the first ones of all addresses come first, then their second ones."""
    seen: Counter[str] = Counter()
    rounds: list[list[Event]] = []
    for event in events:
        address = address_of(event[0])
        if seen[address] == len(rounds):
            rounds.append([])
        rounds[seen[address]].append(event)
        seen[address] += 1
    return [event for each in rounds for event in each]


def _keep_order(rest: Iterable[Event], left: Iterable[int]) -> list[int]:
    """Return the descriptors of the rest of the events, first those that were left before."""
    numbers = dict.fromkeys(number for number, _ in rest)
    return [*(dict.fromkeys(number for number in left if number in numbers) | numbers)]


def record_turns(reactor: Any, turns: Turns) -> bool:
    """Add the turns of `reactor` to `turns` from now on; return False if it has no poller."""
    poller = getattr(reactor, "_poller", None)
    if not hasattr(poller, "poll"):
        return False

    def address_of(number: int) -> str:
        client = getattr(reactor._selectables.get(number), "client", None)
        return network_of(client[0]) if isinstance(client, tuple) else ""

    reactor._poller = TurnPoller(poller, turns, address_of)
    return True


Steps: TypeAlias = Generator[None, None, T]


def finish(steps: Steps[T]) -> T:
    """Run all steps that are left, and return the result."""
    while True:
        try:
            next(steps)
        except StopIteration as stop:
            result: T = stop.value
            return result


FREED_AT_ONCE: Final = 256
"""Items that are freed in one step."""


def free_in_steps(pending: list[T], parts_of: Callable[[T], Iterable[T]]) -> Steps[None]:
    """Free items and all their parts, some in each step: 100,000 at once take 20 ms.

    Nothing else must refer to the items; the list is empty at the end.
    """
    freed = 0
    while pending:
        pending.extend(parts_of(pending.pop()))
        freed += 1
        if freed % FREED_AT_ONCE == 0:
            yield


SORTED_AT_ONCE: Final = 512
"""Items that are sorted in one step."""


def sort_in_steps(items: Iterable[T]) -> Generator[None, None, list[T]]:
    """Sort items that compare, some in each step."""
    runs: list[list[T]] = []
    items = iter(items)
    while run := sorted(islice(items, SORTED_AT_ONCE)):  # type: ignore[type-var]
        runs.append(run)
        yield
    found: list[T] = []
    merged = merge(*runs)  # type: ignore[type-var]
    while some := list(islice(merged, SORTED_AT_ONCE)):
        found += some
        yield
    return found


Seconds: TypeAlias = Callable[[], float]

Awaited: TypeAlias = Any
"""What a step yields: the `Future` of work in a thread that the next step waits for, else None.

It is not called so, because mypy then wants a value of each `yield`.
"""

STEP_SECONDS: Final = 0.000_25
PAUSE_AFTER: Final = 256
"""Items that take some hundred microseconds."""

_OVER: Final = object()


class _Idle(threading.local):
    """The greenlets of a thread that have nothing to do: making one costs more than using it."""

    def __init__(self) -> None:
        self.workers: list[_Worker] = []


_idle: Final = _Idle()
_threads: Final = ThreadPoolExecutor(2, thread_name_prefix="treedb-beside")
_freeing: Final = ThreadPoolExecutor(1, thread_name_prefix="treedb-freeing")


class _Worker(greenlet):
    """Runs one function after the other, each in steps; no step ends before `until`.

    Functions and results are handed over as attributes, since an idle greenlet would hold arguments
    of its calls and its locals, and with them the whole batch of a write, until the next one.
    """

    seconds: Seconds
    until: float
    work: Callable[[], object] | None
    result: object

    def run(self) -> NoReturn:
        """Run `work` at each `resume` that follows `_OVER`."""
        while True:
            try:
                self.result = self.work()  # type: ignore[misc]  # it has work when it is resumed
            except GreenletExit:
                raise
            except BaseException as error:
                self.result = _Failure(error)
            self.resumer.switch(_OVER)

    def resume(self) -> Any:
        """Go on; return `_OVER`, or what the next step waits for, None where it only paused."""
        self.resumer = self.parent = getcurrent()
        return self.switch()

    def take(self) -> object:
        """Return the result, and hold neither it nor the work any more."""
        result = self.result
        self.work = self.result = None
        return result


class _Failure:
    """What a function raised."""

    def __init__(self, error: BaseException) -> None:
        self.error = error


def run_paused(steps: Generator[None, None, T]) -> T:
    """Return what steps return at their end, with a pause after each."""
    while True:
        try:
            next(steps)
        except StopIteration as stop:
            result: T = stop.value
            return result
        pause()


def pause() -> None:
    """End the step that is under way, if the caller is run in steps and it has lasted enough."""
    current = getcurrent()
    if type(current) is _Worker and current.seconds() >= current.until:
        current.resumer.switch(None)


def paused(items: Iterable[T], every: int = PAUSE_AFTER) -> Iterator[T]:
    """Iterate, with a pause after every so many items."""
    for number, item in enumerate(items, 1):
        yield item
        if number % every == 0:
            pause()


def run_beside(work: Callable[[], T]) -> T:
    """Run `work` and return its result: if the caller is run in steps, in another thread.

    What `work` uses must not be used by anyone else meanwhile. It ends before this function does,
    also if the steps are closed.
    """
    current = getcurrent()
    if type(current) is not _Worker:
        return work()
    future = _threads.submit(work)
    try:
        while not future.done():
            current.resumer.switch(future)
    finally:
        wait((future,))
    return future.result()


def free_beside(collected: list[Any]) -> None:
    """Free what a list holds, item by item, in another thread: others run in between.

    Nothing else must refer to the items, and each must be freed in less than some milliseconds.
    """
    if collected:
        with suppress(RuntimeError):  # the process ends
            _freeing.submit(_free, collected)


def _free(collected: list[Any]) -> None:
    while collected:
        collected.pop()


def _no_time() -> float:
    return inf  # any step has lasted enough


def in_steps(work: Callable[[], T], seconds: Seconds | None = None) -> Generator[Awaited, None, T]:
    """Run a function in steps, and return its result.

    A step ends at the next pause; if `seconds` returns the time, at the first one after
    `STEP_SECONDS`. Yielded is what the next step waits for, if it does. If the generator is closed,
    `work` ends at its pause with `GreenletExit`.
    """
    seconds = seconds or _no_time
    workers = _idle.workers
    worker = workers.pop() if workers else _Worker()
    is_over = False
    worker.seconds, worker.work = seconds, work
    try:
        worker.until = seconds() + STEP_SECONDS
        while (awaited := worker.resume()) is not _OVER:
            yield awaited
            worker.until = seconds() + STEP_SECONDS
        is_over = True
    finally:
        if not is_over:
            worker.parent = getcurrent()
            worker.throw(GreenletExit)
    result = worker.take()
    workers.append(worker)
    if type(result) is _Failure:
        try:
            raise result.error
        finally:
            del result  # its traceback would hold it here
    done: T = result  # type: ignore[assignment]
    return done


_NETWORK: Final = ((1 << 64) - 1) << 64


@lru_cache(maxsize=4096)
def network_of(address: str) -> str:
    """Return whose an address is: of IPv6, which a client has many of, the first 64 bits.

    An IPv4 address that is mapped into IPv6 is itself.
    """
    if ":" not in address:
        return address
    try:
        parsed = IPv6Address(address.partition("%")[0])
    except ValueError:
        return address
    if parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    return f"{IPv6Address(int(parsed) & _NETWORK)}/64"


def seconds_since_boot() -> float:
    """Return seconds of a clock that no one sets, and that runs while the machine is suspended."""
    return time.clock_gettime(_CLOCK)


def do_nothing(*_: object) -> None:
    """Do nothing: the default of what may be called, until it is set."""
