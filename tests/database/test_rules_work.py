"""Documents are worked on in slices, one at a time, and not beyond their deadline."""

from __future__ import annotations

import json

import pytest
from twisted.internet.defer import CancelledError, Deferred

from tests.database.world import TurnClock
from treedbd.database.active_rules import RulesWork
from treedbd.database.requests import DeadlinePassed
from treedbd.database.slices import SLICE_SECONDS
from treedbd.rules.document import InvalidRules
from treedbd.rules.ruleset import parse_rules_in_steps

LARGE = json.dumps({"rules": {f"k{at}": {".read": f"now > {at}"} for at in range(1_000)}}).encode()
SMALL = b'{"rules":{}}'
STEP_S = SLICE_SECONDS / 4
"""How long each step of the work takes on a clock of the tests."""


class WorkedDocuments:
    """The work on documents, and what its documents have become, in that order."""

    def __init__(self) -> None:
        self.clock = TurnClock(STEP_S)
        self.work = RulesWork(self.clock)
        self.done: dict[str, object] = {}

    def compile(self, name: str, text: bytes, deadline: float | None = None) -> Deferred[None]:
        """Compile a document; its text, or the type of its error, becomes that of its name."""

        async def compile_in_turn() -> None:
            try:
                async with self.work.lock(deadline):
                    rules = await self.work.run(parse_rules_in_steps(text), deadline)
                    self.done[name] = rules.text
            except (InvalidRules, DeadlinePassed, CancelledError) as error:
                self.done[name] = type(error)

        return Deferred.fromCoroutine(compile_in_turn())

    def check(self, name: str, text: bytes, deadline: float | None = None) -> Deferred[None]:
        """Compile a document slice by slice, as `compile` does otherwise."""

        async def check() -> None:
            try:
                rules = await self.work.run_between(parse_rules_in_steps(text), deadline)
                self.done[name] = rules.text
            except (InvalidRules, DeadlinePassed, CancelledError) as error:
                self.done[name] = type(error)

        return Deferred.fromCoroutine(check())

    def run(self) -> None:
        """Make delayed calls until none is left."""
        while self.clock.calls:
            self.clock.take_turn()


@pytest.fixture
def world() -> WorkedDocuments:
    return WorkedDocuments()


def test_a_small_document_is_compiled_in_the_turn_in_which_it_comes(world: WorkedDocuments) -> None:
    world.compile("small", SMALL)
    assert world.done == {"small": SMALL.decode()}
    assert not world.clock.calls


def test_a_large_document_leaves_the_reactor_to_others_after_each_slice(
    world: WorkedDocuments,
) -> None:
    world.compile("large", LARGE)
    turns = 0
    while not world.done:
        begin = world.clock.rightNow
        world.clock.take_turn()
        turns += 1
        # A slice ends with the first step after it is over, and reads the clock twice more.
        assert world.clock.rightNow - begin <= SLICE_SECONDS + 4 * world.clock.lag
    assert turns > 10
    assert world.done == {"large": LARGE.decode()}


def test_one_document_is_compiled_at_a_time_in_the_order_of_arrival(world: WorkedDocuments) -> None:
    for name in ("a", "b", "c"):
        world.compile(name, LARGE)
    world.compile("small", SMALL)
    while len(world.done) < 4:
        # However many wait, one delayed call a turn does the work.
        assert len(world.clock.calls) == 1
        world.clock.take_turn()
    assert list(world.done) == ["a", "b", "c", "small"]


def test_an_error_in_a_document_lets_the_next_one_begin(world: WorkedDocuments) -> None:
    world.compile("bad", LARGE[:-1])
    world.compile("good", SMALL)
    world.run()
    assert world.done == {"bad": InvalidRules, "good": SMALL.decode()}


def test_a_document_is_not_compiled_beyond_its_deadline(world: WorkedDocuments) -> None:
    deadline = world.clock.rightNow + 5 * SLICE_SECONDS
    world.compile("late", LARGE, deadline)
    world.compile("good", SMALL)
    world.run()
    assert world.done == {"late": DeadlinePassed, "good": SMALL.decode()}


def test_a_deadline_counts_while_another_document_is_compiled(world: WorkedDocuments) -> None:
    world.compile("first", LARGE)
    world.compile("late", SMALL, world.clock.rightNow + 5 * SLICE_SECONDS)
    world.run()
    assert world.done == {"late": DeadlinePassed, "first": LARGE.decode()}
    assert not world.clock.calls


@pytest.mark.parametrize("turns", [0, 3])
def test_a_cancelled_compilation_stops_and_the_next_one_begins(
    world: WorkedDocuments, turns: int
) -> None:
    first = world.compile("first", LARGE)
    world.compile("second", SMALL)
    for _ in range(turns):
        world.clock.take_turn()
    first.cancel()
    assert world.done == {"first": CancelledError, "second": SMALL.decode()}
    assert not world.clock.calls


def test_a_document_that_waits_can_be_withdrawn(world: WorkedDocuments) -> None:
    world.compile("first", LARGE)
    world.compile("second", LARGE).cancel()
    world.compile("third", SMALL)
    world.run()
    assert world.done == {
        "second": CancelledError,
        "first": LARGE.decode(),
        "third": SMALL.decode(),
    }


def test_a_document_that_is_compiled_goes_before_the_rest_of_those_that_are_checked(
    world: WorkedDocuments,
) -> None:
    world.check("a", LARGE)
    world.check("b", LARGE)
    world.clock.take_turn()
    world.compile("put", LARGE)
    world.run()
    assert list(world.done) == ["put", "a", "b"]


def test_documents_that_are_checked_alternate_with_one_slice_in_each_turn(
    world: WorkedDocuments,
) -> None:
    world.check("large", LARGE)
    world.check("small", SMALL)
    begin = world.clock.rightNow
    while world.clock.calls:
        assert len(world.clock.calls) == 1
        world.clock.take_turn()
        # That of the small document, of one step, is run in the turn of the large one's next slice.
        assert world.clock.rightNow - begin <= 2 * SLICE_SECONDS + 8 * world.clock.lag
        begin = world.clock.rightNow
    assert list(world.done) == ["small", "large"]


@pytest.mark.parametrize("turns", [0, 3])
def test_a_check_that_is_cancelled_stops_and_leaves_the_lock(
    world: WorkedDocuments, turns: int
) -> None:
    checking = world.check("gone", LARGE)
    for _ in range(turns):
        world.clock.take_turn()
    checking.cancel()
    assert not world.clock.calls
    world.compile("put", SMALL)
    assert world.done == {"gone": CancelledError, "put": SMALL.decode()}


def test_a_check_ends_at_its_deadline(world: WorkedDocuments) -> None:
    world.check("late", LARGE, world.clock.rightNow + 5 * SLICE_SECONDS)
    world.run()
    assert world.done == {"late": DeadlinePassed}
