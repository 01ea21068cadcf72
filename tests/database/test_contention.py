"""Writes on a condition that compete for a place: nobody loses for ever, and nobody else waits."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

import attrs
from hypothesis import given
from hypothesis import strategies as st
from twisted.internet.defer import Deferred
from twisted.internet.task import deferLater
from twisted.python.failure import Failure

from tests.database.world import ADMIN, Disk, TurnClock, World
from treedbd.database.group_commit import (
    BATCH_SECONDS,
    MAX_RESERVATIONS,
    PATIENCE,
    PENALTY,
    RESERVED_S,
)
from treedbd.database.requests import (
    Condition,
    ConditionFailed,
    LargeBody,
    Outcome,
    TooLarge,
    Write,
)
from treedbd.store.engine import Engine, StoreFailed
from treedbd.store.memory import MemoryEngine
from treedbd.tree.edit import Edit, make_put
from treedbd.tree.hashes import etag, parse_etags
from treedbd.tree.types import STORED, Change, Json, Path, Place

TICK_S: Final = 0.001
COMMIT_S: Final = 0.002
STALE: Final = parse_etags('"stale"')
ME, YOU, OTHER = 1, 2, 3


class TimedDisk(Disk):
    """Each commit takes as long."""

    def __init__(self, clock: TurnClock) -> None:
        super().__init__()
        self._clock = clock

    def run(self, work: Callable[[], None]) -> Deferred[None]:
        return deferLater(self._clock, COMMIT_S, work)


class ContendedWorld(World):
    """Its writes are on conditions; `answered` has what has become of them, in order."""

    def __init__(
        self,
        engine: Engine | None = None,
        *,
        clock: TurnClock | None = None,
        disk: Disk | None = None,
    ) -> None:
        clock = clock or TurnClock()
        super().__init__(engine, clock=clock, disk=disk or TimedDisk(clock))
        self.answered: list[str] = []

    def put(
        self,
        contender: int | None,
        value: Json,
        path: Path = ("a",),
        etags: Any = None,
        deadline: float | None = None,
    ) -> Deferred[Outcome]:
        place = Place(path)
        condition = None if etags is None else Condition(place, etags)
        edit = make_put(place, value, 100)
        return self.begin(edit, condition, deadline, contender=contender)

    def note(self, name: str, *args: Any, **options: Any) -> None:
        """Write, and note under a name when it was done, or why not."""

        def noted(result: object) -> None:
            error = f" {type(result.value).__name__}" if isinstance(result, Failure) else ""
            self.answered.append(f"{name}{error}")

        self.put(*args, **options).addBoth(noted)

    def run(self, seconds: float) -> None:
        for _ in range(round(seconds / TICK_S)):
            self.clock.advance(TICK_S)

    def lose(self, contender: int = ME, path: Path = ("a",), times: int = PATIENCE) -> None:
        """Let one lose so often, each time after a moment."""
        for _ in range(times):
            self.put(contender, "stale", path, STALE).addErrback(Failure.trap, ConditionFailed)
            self.run(0.01)

    def tags(self, path: Path = ("a",)) -> Any:
        """Return the condition that the value is what it is now."""
        return parse_etags(etag(self.get(*path)))


@attrs.define
class Adder:
    """Adds one to a number so many times, and comes back after `return_s` seconds.

    Attributes:
        most: how often it has lost in a row at the most.

    """

    world: ContendedWorld
    contender: int
    return_s: float
    rest: int
    most: int = 0
    _losses: int = 0

    def add(self, present: Json = None) -> None:
        """Write what is one more than the present value."""
        tags = parse_etags(etag(present))
        value = (present or 0) + 1  # type: ignore[operator]
        writing = self.world.put(self.contender, value, etags=tags)
        writing.addCallbacks(partial(self._won, value), self._lost)

    def _won(self, value: Json, _: Outcome) -> None:
        self._losses = 0
        self.rest -= 1
        if self.rest:
            self.world.clock.callLater(self.return_s, self.add, value)

    def _lost(self, failure: Failure) -> None:
        refusal: Any = failure.value
        assert isinstance(refusal, ConditionFailed)
        self._losses += 1
        self.most = max(self.most, self._losses)
        self.world.clock.callLater(self.return_s, self.add, refusal.current)


def _refuse(*_: object) -> Outcome:
    raise TooLarge("The test says so.")


def test_the_slow_ones_lose_about_as_often_as_there_are_others() -> None:
    world = ContendedWorld()
    returns = [0.001, 0.001, 0.001, 0.002, 0.003, 0.02, 0.06, 0.2]
    adders = [Adder(world, at, seconds, 20) for at, seconds in enumerate(returns)]
    for adder in adders:
        adder.add()
    world.run(60)
    assert [adder.rest for adder in adders] == [0] * len(adders)
    assert world.get("a") == 20 * len(adders)
    assert max(adder.most for adder in adders) <= len(adders) + 2


def test_forty_equal_ones_lose_about_as_often_as_there_are_others() -> None:
    world = ContendedWorld()
    adders = [Adder(world, at, 0.005, 5) for at in range(40)]
    for adder in adders:
        adder.add()
    world.run(20)
    assert world.get("a") == 200
    assert max(adder.most for adder in adders) <= len(adders) + 2


def test_a_place_waits_for_one_who_has_lost_before() -> None:
    world = ContendedWorld()
    world.lose()
    current = world.tags()
    world.note("other", OTHER, 1, etags=current)
    world.run(0.05)
    assert world.answered == []
    assert world.database.is_writing
    world.note("me", ME, 2, etags=current)
    world.run(0.02)
    assert world.answered == ["me", "other ConditionFailed"]
    assert not world.database.is_writing


def test_one_loss_reserves_nothing() -> None:
    world = ContendedWorld()
    world.lose(times=1)
    world.note("other", OTHER, 1, etags=world.tags())
    world.run(0.01)
    assert world.answered == ["other"]


def test_who_has_lost_most_often_is_first() -> None:
    world = ContendedWorld()
    world.lose(YOU, times=1)
    for contender in (ME, YOU):
        world.put(contender, 0, etags=STALE).addErrback(lambda _: None)
    world.put(ME, 0, etags=STALE).addErrback(lambda _: None)
    world.put(ME, 0, etags=STALE).addErrback(lambda _: None)
    world.run(0.01)
    world.note("you", YOU, 1, etags=world.tags())
    world.run(0.01)
    assert world.answered == []
    world.note("me", ME, 1, etags=world.tags())
    world.run(0.01)
    assert world.answered == ["me", "you ConditionFailed"]


def test_only_what_competes_waits() -> None:
    world = ContendedWorld()
    world.lose(path=("a", "b"))
    world.note("above", 10, 1, ("a",), world.tags(("a",)))
    world.note("below", 11, 1, ("a", "b", "c"), world.tags(("a", "b", "c")))
    world.note("root", 12, {}, (), world.tags(()))
    world.note("beside", 13, 1, ("a", "c"), world.tags(("a", "c")))
    world.note("plain", 14, 1, ("a", "b"))
    world.note("unknown", None, 1, ("a", "b", "d"), world.tags(("a", "b", "d")))
    world.run(0.05)
    assert world.answered == ["beside", "plain", "unknown"]
    world.run(RESERVED_S)
    assert {each.split()[0] for each in world.answered[3:]} == {"above", "below", "root"}


def test_nobody_waits_long_for_one_who_does_not_come_back() -> None:
    world = ContendedWorld()
    world.lose()
    world.note("first", OTHER, 1, etags=world.tags())
    world.run(RESERVED_S)
    assert world.answered == ["first"]
    world.lose()  # nobody waits for that one again
    world.note("second", OTHER, 2, etags=world.tags())
    world.run(0.01)
    assert world.answered == ["first", "second"]
    assert not world.clock.getDelayedCalls()


def test_one_who_did_not_come_back_is_waited_for_after_many_losses_more() -> None:
    world = ContendedWorld()
    world.lose()
    world.run(RESERVED_S)
    world.lose(times=PENALTY + PATIENCE - 1)
    world.note("first", OTHER, 1, etags=world.tags())
    world.run(0.01)
    assert world.answered == ["first"]
    world.lose(times=1)
    world.note("second", OTHER, 2, etags=world.tags())
    world.run(0.01)
    assert world.answered == ["first"]
    world.run(RESERVED_S)
    assert world.answered == ["first", "second"]


def test_a_pause_of_the_process_ends_no_reservation() -> None:
    world = ContendedWorld()
    world.lose()
    world.clock.advance(RESERVED_S)  # in one turn
    current = world.tags()
    world.note("other", OTHER, 1, etags=current)
    world.run(0.01)
    assert world.answered == []
    world.note("me", ME, 2, etags=current)
    world.run(0.02)
    assert world.answered == ["me", "other ConditionFailed"]


def test_a_bounded_number_of_places_is_reserved() -> None:
    world = ContendedWorld()
    places = [("a", f"{at}") for at in range(MAX_RESERVATIONS + 1)]
    for place in places * PATIENCE:
        world.put(ME, 0, place, STALE).addErrback(Failure.trap, ConditionFailed)
    world.run(0.01)
    for place in places:
        world.note(place[1], int(place[1]) + 10, 1, place, world.tags(place))
    world.run(0.01)
    assert world.answered == [f"{MAX_RESERVATIONS}"]


def test_large_writes_do_not_wait() -> None:
    world = ContendedWorld()
    world.lose()
    place = Place(("a",))
    body = LargeBody(lambda: iter([b"1"]), 1, 100, 100)
    write = Write(
        Edit("put", place, None, (Change(place, STORED),)),
        0,
        ADMIN,
        Condition(place, world.tags()),
        large=body,
        contender=OTHER,
    )
    writing = world.database.write(write)
    world.run(0.05)
    assert writing.called
    assert world.get("a") == 1


def test_one_who_is_slow_or_loses_on_purpose_stops_nobody() -> None:
    world = ContendedWorld()
    adder = Adder(world, OTHER, 0.002, 10_000)
    adder.add()
    world.run(5)
    alone = 10_000 - adder.rest
    for _ in range(10):
        world.lose(times=1)
        world.run(0.5)
    beside = 10_000 - adder.rest - alone
    assert beside > 0.8 * alone
    for _ in range(500):
        world.lose(times=1)
    assert 10_000 - adder.rest - alone - beside > 0.1 * alone


def test_a_place_waits_still_for_one_who_is_refused_again() -> None:
    world = ContendedWorld()
    world.lose()
    current = world.tags()
    world.note("other", OTHER, 1, etags=current)
    world.lose()
    assert world.answered == []
    world.note("me", ME, 2, etags=current)
    world.run(0.02)
    assert world.answered == ["me", "other ConditionFailed"]


def test_a_place_waits_no_longer_for_one_who_is_refused_for_another_reason() -> None:
    world = ContendedWorld()
    world.lose()
    world.note("other", OTHER, 1, etags=world.tags())
    refused = Write(
        make_put(Place(("a",)), 1, 100),
        0,
        ADMIN,
        Condition(Place(("a",)), world.tags()),
        contender=ME,
        task=_refuse,
    )
    world.database.write(refused).addErrback(Failure.trap, TooLarge)
    world.run(0.01)
    assert world.answered == ["other"]


def test_what_would_be_late_does_not_wait() -> None:
    world = ContendedWorld()
    world.lose()
    soon = world.clock.seconds() + RESERVED_S / 2
    world.note("soon", OTHER, 1, etags=world.tags(), deadline=soon)
    world.run(0.01)
    assert world.answered == ["soon"]


def test_what_is_held_goes_before_the_next_write_of_the_same_contender() -> None:
    world = ContendedWorld()
    world.lose()
    world.note("first", OTHER, 1, etags=world.tags())
    world.run(0.01)
    world.note("second", OTHER, 2, ("elsewhere",))
    world.run(0.01)
    assert world.answered == ["first", "second"]


def test_writes_of_one_contender_in_one_batch_keep_their_order() -> None:
    world = ContendedWorld()
    world.lose()
    for at, tags in enumerate([world.tags(), None, STALE, None]):
        world.note(f"{at}", OTHER, at, etags=tags)
    world.run(0.01)
    assert world.answered == ["0", "1", "2 ConditionFailed", "3"]


def test_what_a_batch_has_no_time_for_goes_before_the_next_write_of_the_same_contender() -> None:
    clock = TurnClock()
    world = ContendedWorld(clock=clock)
    world.lose()
    world.note("me", ME, 1, etags=world.tags())
    for at in range(20):
        world.put(None, at, ("b",))
    world.note("first", OTHER, 1, ("c",))
    world.note("second", OTHER, 2, etags=world.tags())
    clock.lag = BATCH_SECONDS / 10
    world.run(0.1)
    assert world.answered == ["me", "first", "second ConditionFailed"]


def test_what_is_held_is_refused_when_the_database_closes() -> None:
    world = ContendedWorld()
    world.lose()
    world.note("other", OTHER, 1, etags=world.tags())
    world.run(0.01)
    closed = world.database.close()
    world.run(0.01)
    assert world.answered == ["other Unavailable"]
    assert closed.called
    assert not world.clock.getDelayedCalls()


def test_no_place_is_reserved_after_the_database_has_closed() -> None:
    world = ContendedWorld()
    world.lose(times=PATIENCE - 1)
    world.put(ME, 1, etags=STALE).addErrback(Failure.trap, ConditionFailed)
    world.put(YOU, 1, ("b",))
    world.clock.advance(0)
    closed = world.database.close()
    world.run(0.01)
    assert closed.called
    assert not world.clock.getDelayedCalls()


def test_what_is_held_is_refused_when_the_store_has_failed_for_good() -> None:
    class Broken(MemoryEngine):
        def recover(self) -> None:
            raise StoreFailed("the test says so")

    disk = Disk()
    world = ContendedWorld(Broken(), disk=disk)
    world.lose()
    world.note("held", OTHER, 1, etags=world.tags())
    world.note("plain", ME, 1, ("b",))
    world.run(0.01)
    assert disk.commits_next()
    disk.fail(StoreFailed("the test says so"))
    while disk.waiting:
        disk.finish()
        world.run(0.01)
    world.run(2 * RESERVED_S)
    assert sorted(world.answered) == ["held Unavailable", "plain Unavailable"]


PLACES: Final[list[Path]] = [(), ("a",), ("a", "b"), ("c",)]
SUBMIT = st.tuples(
    st.sampled_from([ME, YOU, OTHER, 4]),
    st.sampled_from(PLACES),
    st.sampled_from(["plain", "any", "stale"]),
)


@given(
    st.lists(st.one_of(*[SUBMIT] * 9, st.integers(1, 60)), max_size=60),
    st.sampled_from([0.0, BATCH_SECONDS / 10]),
)
def test_all_are_answered_in_the_order_of_each_contender(steps: list[Any], lag: float) -> None:
    world = ContendedWorld(
        clock=TurnClock(lag)
    )  # if it lags, what a batch has no time for waits for the next
    sent: dict[int, list[str]] = {}
    for at, step in enumerate(steps):
        if isinstance(step, int):
            world.run(step * TICK_S)
            continue
        contender, path, kind = step
        etags = {"plain": None, "any": world.tags(path), "stale": STALE}[kind]
        sent.setdefault(contender, []).append(f"{contender}-{at}")
        world.note(f"{contender}-{at}", contender, at, path, etags)
    world.run(RESERVED_S + 0.1)
    answered = [each.split()[0] for each in world.answered]
    for contender, names in sent.items():
        assert [each for each in answered if each.startswith(f"{contender}-")] == names
    assert not world.database.is_writing
