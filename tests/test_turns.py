"""The turns of an event loop are counted by their length; long ones are reported."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest

from treedbd.loop import BUCKETS_S, TurnPoller, Turns, record_turns

MS = 1_000_000


class Loop:
    """A poller, and the clock that its waits and the turns between them move."""

    def __init__(self) -> None:
        self.now_ms = 1_000.0
        self.wait_ms = 400
        self.reports: list[Any] = []
        self.limits: list[tuple[Any, ...]] = []
        self.ready: list[int] = [7]
        self.turns = Turns(lambda *report: self.reports.append(report), self.read_ns)
        self.poller = TurnPoller(self, self.turns)

    def read_ns(self) -> int:
        return round(self.now_ms * MS)

    def poll(self, *limits: Any) -> list[tuple[int, int]]:
        self.limits.append(limits)
        self.now_ms += self.wait_ms
        return [(number, 1) for number in self.ready]

    def register(self, number: int) -> int:
        return number + 1

    def run(self, *turns_ms: float) -> None:
        """Wait for events, then take as long as each turn does and wait again after it."""
        self.poller.poll()
        for length_ms in turns_ms:
            self.now_ms += length_ms
            self.poller.poll()


def test_a_turn_lasts_from_the_end_of_a_wait_to_the_next_and_the_wait_is_left_out() -> None:
    loop = Loop()
    loop.run(3, 7)
    summary = loop.turns.summarise()
    assert summary.count == 2
    assert summary.longest_s == pytest.approx(0.007)


def test_the_poller_is_called_as_before_and_has_all_that_the_other_has() -> None:
    loop = Loop()
    assert loop.poller.poll(0.25, 4) == [(7, 1)]
    assert loop.limits == [(0.25, 4)]
    assert loop.poller.register(3) == loop.poller.register(3) == 4
    with pytest.raises(AttributeError):
        loop.poller.unregister()


def test_a_wait_that_fails_ends_like_any_other() -> None:
    loop = Loop()

    def interrupted(*_limits: Any) -> list[tuple[int, int]]:
        loop.now_ms += 900
        raise InterruptedError

    loop.poll = interrupted  # type: ignore[method-assign]
    poller = TurnPoller(loop, loop.turns)
    for _ in range(2):
        with pytest.raises(InterruptedError):
            poller.poll()
        loop.now_ms += 2
    summary = loop.turns.summarise()
    assert summary.count == 1
    assert summary.longest_s == pytest.approx(0.002)


@pytest.mark.parametrize(
    ("length_s", "bucket"), [(0, 0), (0.000_05, 0), (0.000_06, 1), (1, 13), (1.001, 14)]
)
def test_a_turn_is_counted_in_the_bucket_whose_bound_it_does_not_pass(
    length_s: float, bucket: int
) -> None:
    turns = Turns(lambda *_: None)
    turns.add(round(length_s * 1000 * MS))
    assert turns.counts == [int(number == bucket) for number in range(len(BUCKETS_S) + 1)]


def test_percentiles_are_bounds_of_buckets_and_never_beyond_the_longest() -> None:
    loop = Loop()
    loop.run(*[0.2] * 98, 4, 4)
    summary = loop.turns.summarise()
    assert summary.p50_s == 0.000_25
    assert summary.p99_s == pytest.approx(0.004)
    loop.run(1_700)
    assert loop.turns.summarise().p99_s == 0.005
    loop.run(*[1_500] * 40)
    assert loop.turns.summarise().p99_s == pytest.approx(1.7)


def test_without_turns_there_is_nothing_to_say() -> None:
    summary = Loop().turns.summarise()
    assert (summary.count, summary.p50_s, summary.p99_s, summary.longest_s) == (0, 0, 0, 0)


def test_the_longest_turn_is_sought_again_after_each_summary() -> None:
    loop = Loop()
    loop.run(20, 5)
    assert loop.turns.summarise().longest_s == pytest.approx(0.020)
    loop.run(1)
    assert loop.turns.summarise().longest_s == pytest.approx(0.001)
    assert loop.turns.summarise().longest_s == 0


def test_a_long_turn_is_reported_at_once_and_those_of_the_next_second_together() -> None:
    loop = Loop()
    loop.wait_ms = 1
    loop.run(50)
    assert loop.reports == []
    loop.run(60)
    assert loop.reports == [(1, pytest.approx(0.060))]
    loop.run(70, 55)
    assert loop.reports[1:] == []
    loop.wait_ms = 1000
    loop.run(1)
    assert loop.reports[1:] == [(2, pytest.approx(0.070))]
    loop.run(1)
    assert loop.reports[2:] == []


def test_a_reactor_with_a_poller_is_recorded_and_any_other_left_as_it_is() -> None:
    class Reactor:
        pass

    loop, reactor = Loop(), Reactor()
    assert not record_turns(reactor, loop.turns)
    assert vars(reactor) == {}
    reactor._poller = loop  # type: ignore[attr-defined]
    assert record_turns(reactor, loop.turns)
    assert reactor._poller.poll() == [(7, 1)]  # type: ignore[attr-defined]


class Transport:
    def __init__(self, client: object) -> None:
        self.client = client


def test_the_addresses_that_take_turns_are_those_of_clients_and_of_ipv6_networks() -> None:
    class Reactor:
        _selectables: ClassVar[dict[int, object]] = {
            **dict.fromkeys(range(6), Transport(("2001:db8::1", 1, 0, 0))),
            **dict.fromkeys(range(6, 8), Transport(("2001:db8::2", 1, 0, 0))),
            8: Transport(("192.0.2.1", 1)),
            9: Transport(None),
            10: object(),
        }

    loop, reactor = Loop(), Reactor()
    reactor._poller = loop  # type: ignore[attr-defined]
    record_turns(reactor, loop.turns)
    loop.poller = reactor._poller  # type: ignore[attr-defined]
    loop.ready = list(range(12))
    assert handle(loop, 3) == [0, 1, 2, 3]
    assert handle(loop, 3) == [4, 8, 9, 0]
    assert handle(loop, 3) == [5, 8, 10, 0]


def handle(loop: Loop, each_ms: float) -> list[int]:
    """Handle the events of a turn, each of which takes so long; return their descriptors."""
    handled = []
    for number, _ in loop.poller.poll():
        handled.append(number)
        loop.now_ms += each_ms
    return handled


def test_events_that_take_long_are_shared_out_over_turns_in_their_order() -> None:
    loop = Loop()
    loop.ready = list(range(12))
    assert handle(loop, 1.5) == [0, 1, 2, 3, 4, 5, 6, 7]
    loop.ready = [8, 9, 10, 11]
    assert handle(loop, 3) == [8, 9, 10, 11]
    loop.ready = list(range(12))
    assert handle(loop, 0.1) == list(range(12))


def test_what_was_left_alternates_with_what_has_become_ready_meanwhile() -> None:
    loop = Loop()
    loop.ready = list(range(1000))
    assert handle(loop, 30) == [0, 1, 2, 3]
    loop.ready = [*range(3, 1000), 1001, 1000]
    assert handle(loop, 3) == [4, 3, 5, 1001]
    loop.ready = list(range(6, 1001))
    assert handle(loop, 3) == [6, 7, 8, 9]
    loop.ready = [4, *range(10, 1001)]
    assert handle(loop, 3) == [10, 4, 11, 12]


def test_addresses_take_turns_when_events_were_left() -> None:
    loop = Loop()
    poller = TurnPoller(loop, loop.turns, lambda number: "other" if number >= 90 else "one")
    loop.ready = [*range(20), 90, 91]
    handled = []
    for _ in range(2):
        for number, _ in poller.poll():
            handled.append(number)
            loop.now_ms += 3
    assert handled == [0, 1, 2, 3, 4, 90, 0, 91]


@pytest.mark.parametrize("addresses", [1, 6])
def test_those_that_are_ready_again_at_once_leave_none_out(addresses: int) -> None:
    loop = Loop()
    loop.poller = TurnPoller(loop, loop.turns, lambda number: str(number % addresses))
    loop.ready = [*range(0, 240, 6), 1, 2, 3, 4, 5]
    handled = [number for _ in range(40) for number in handle(loop, 3)]
    assert set(handled) == set(loop.ready)


def test_what_is_ready_no_more_is_not_handled() -> None:
    loop = Loop()
    loop.ready = [1, 2, 3, 4, 5, 6, 7]
    assert handle(loop, 30) == [1, 2, 3, 4]
    loop.ready = [7, 9]
    assert handle(loop, 30) == [7, 9]


def test_some_events_of_a_turn_are_handled_however_long_they_take() -> None:
    loop = Loop()
    loop.ready = [1, 2, 3, 4, 5]
    assert [handle(loop, 500) for _ in range(2)] == [[1, 2, 3, 4], [5, 1, 2, 3]]


def test_the_events_of_a_turn_are_bounded_by_the_time_since_the_wait_for_them() -> None:
    loop = Loop()
    loop.ready = list(range(6))
    events = loop.poller.poll()
    loop.now_ms += 30
    assert [number for number, _ in events] == [0, 1, 2, 3]
