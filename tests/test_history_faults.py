"""What a service does wrong is noticed: from outside, by its history and by its stream."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator

import attrs
import pytest

from tests.daemon import Daemon
from tests.faulty_front import FAULTS, FaultyFront
from tests.history import BadHistory, History, Operation, Outcome
from tests.stream_follower import Event
from tests.stream_judge import check_events
from tests.trial import Trial
from tests.workload import Plan

_roots = (f"trial{number}" for number in itertools.count())


def plan(operations: int = 320) -> Plan:
    """A plan for a path that no other test uses."""
    return Plan(operations=operations, registers=2, counters=1, root=next(_roots))


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_of_a_service_is_noticed(shared_daemon: Daemon, fault: str) -> None:
    with FaultyFront(shared_daemon.http, fault) as front:
        with Trial([front.url], plan(), followers=0).start() as trial:
            trial.finish()
            with pytest.raises(BadHistory) as caught:
                trial.check()
        assert front.faults
    assert "client" in str(caught.value) or "nobody pushed" in str(caught.value)


def test_the_same_service_without_a_fault_is_not_blamed(shared_daemon: Daemon) -> None:
    with FaultyFront(shared_daemon.http, "none") as front:
        with Trial([front.url], plan(), followers=0).start() as trial:
            trial.finish()
            trial.check()
        assert not front.faults


def test_what_is_wrong_at_one_of_two_urls_is_noticed(shared_daemon: Daemon) -> None:
    with FaultyFront(shared_daemon.http, "a stale read") as front:
        with Trial([shared_daemon.http, front.url], plan(), followers=0).start() as trial:
            trial.finish()
            with pytest.raises(BadHistory, match="is not linearizable"):
                trial.check()
        assert front.faults


@attrs.frozen
class Received:
    """What a stream showed of a history, without a fault."""

    events: list[Event]
    history: History
    root: str

    def check(self, events: list[Event], restarts: int = 0) -> None:
        """Judge other events of the same history."""
        check_events(events, self.history, self.root, restarts=restarts)


@pytest.fixture(scope="module")
def received(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Received]:
    with (
        Daemon(tmp_path_factory.mktemp("received")) as daemon,
        Trial([daemon.http], plan(400), followers=1).start() as trial,
    ):
        trial.finish()
        trial.check()
        yield Received(trial.followers[0].events, trial.workload.history, f"/{trial.plan.root}")


@pytest.fixture(params=range(8))
def at(request: pytest.FixtureRequest, received: Received) -> int:
    """The number of some event after the first two."""
    return random.Random(request.param).randrange(2, len(received.events) - 1)


def test_all_events_in_order_are_right(received: Received) -> None:
    received.check(received.events)
    assert len(received.events) > 100


def test_a_lost_event_is_noticed(received: Received, at: int) -> None:
    with pytest.raises(BadHistory, match=f"came {received.events[at].sequence + 1}"):
        received.check(received.events[:at] + received.events[at + 1 :])


def test_a_lost_event_is_noticed_where_numbers_have_gaps(received: Received, at: int) -> None:
    events = received.events[:at] + received.events[at + 1 :]
    with pytest.raises(BadHistory, match=r"1 events are lost|replaced|was added"):
        check_events(events, received.history, received.root, is_alone=False)


def test_a_lost_last_event_is_noticed(received: Received) -> None:
    with pytest.raises(BadHistory, match="1 events are lost"):
        received.check(received.events[:-1])


def test_a_doubled_event_is_noticed(received: Received, at: int) -> None:
    with pytest.raises(BadHistory, match="came twice"):
        received.check(
            [*received.events[: at + 1], received.events[at], *received.events[at + 1 :]]
        )


def test_an_event_doubled_under_a_number_of_its_own_is_noticed(received: Received, at: int) -> None:
    later = [attrs.evolve(each, sequence=each.sequence + 1, id="") for each in received.events[at:]]
    numbered = [attrs.evolve(each, id=f"{each.sequence}") for each in later]
    with pytest.raises(BadHistory, match="or it came twice"):
        received.check(received.events[: at + 1] + numbered)


def test_events_out_of_order_are_noticed(received: Received, at: int) -> None:
    events = list(received.events)
    events[at], events[at - 1] = events[at - 1], events[at]
    with pytest.raises(BadHistory, match="came"):
        received.check(events)


def test_an_event_with_another_value_is_noticed(received: Received, at: int) -> None:
    events = list(received.events)
    events[at] = attrs.evolve(events[at], value="something else")
    with pytest.raises(BadHistory, match="nobody did that"):
        received.check(events)


def test_numbers_that_contradict_the_times_of_the_writes_are_noticed(received: Received) -> None:
    """All pushes change places: each has its event, but the first write has the last number."""
    events = list(received.events)
    pushes = [number for number, each in enumerate(events) if each.path.startswith("/log/")]
    for one, other in zip(pushes, reversed(pushes), strict=True):
        event, place = received.events[other], received.events[one]
        events[one] = attrs.evolve(event, id=place.id, sequence=place.sequence)
    with pytest.raises(BadHistory, match="ended before"):
        received.check(events)


def test_an_event_of_a_refused_write_is_noticed(received: Received) -> None:
    def refuse(operation: Operation) -> Operation:
        return attrs.evolve(operation, outcome=Outcome.REFUSED)

    operations = list(received.history)
    writes = [number for number, each in enumerate(operations) if each.kind == "write"]
    operations[writes[0]] = refuse(operations[writes[0]])
    with pytest.raises(BadHistory, match="nobody did that"):
        check_events(received.events, History(operations), received.root)


def starting_over(received: Received, begin: int, end: int) -> list[Event]:
    """Return the events with the whole value in place of those between two numbers of events."""
    value: dict[str, dict[str, object] | object] = {}
    log: dict[str, object] = {}
    for event in received.events[1:end]:
        if event.path.startswith("/log/"):
            log[event.path.removeprefix("/log/")] = event.value
        else:
            value[event.path[1:]] = event.value
    whole = attrs.evolve(received.events[end - 1], path="/", kind="put", value=value | {"log": log})
    return [*received.events[:begin], whole, *received.events[end:]]


def test_a_start_over_replaces_what_was_missed(received: Received, at: int) -> None:
    events = starting_over(received, max(1, at - 50), at)
    received.check(events, restarts=1)
    with pytest.raises(BadHistory, match="started over"):
        received.check(events)


def test_what_is_lost_beside_a_start_over_is_noticed(received: Received, at: int) -> None:
    begin = max(1, at - 50)
    events = starting_over(received, begin, at)
    number = begin + 1 if begin + 1 < len(events) - 1 else 1
    with pytest.raises(BadHistory, match="After number"):
        received.check(events[:number] + events[number + 1 :], restarts=1)


def test_a_start_over_that_goes_back_is_noticed(received: Received, at: int) -> None:
    back = attrs.evolve(received.events[1], path="/", kind="put")
    with pytest.raises(BadHistory, match="went back"):
        received.check([*received.events[: at + 1], back], restarts=1)
