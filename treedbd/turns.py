"""How long the turns of an event loop last: while one lasts, everybody else waits.

A turn is the time from the end of one wait for events to the beginning of the next. `Turns` counts
turns by their length, in nanoseconds of a monotonic clock, so that counting one takes less than a
microsecond. `TurnPoller` stands in for the poller of a loop, and sees where turns begin and end.

It also bounds what is done in a turn for the connections that are ready. Each has its events
handled in one go, but once `EVENTS_S` have passed, those that are left wait for the next turn. In
it they alternate with those that have become ready meanwhile, and addresses of clients take turns.
So none is left out, and a client that comes with one request does not wait until another had a
thousand answered.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, zip_longest
from typing import Any, Final

import attrs

from treedbd.counts import network_of

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
