"""The checker of linearizability accepts what a correct register may do, and nothing else."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Iterable
from typing import Any, Final

import attrs
import pytest
from hypothesis import assume, event, given, settings
from hypothesis import strategies as st

from tests import linearizability
from tests.examples import examples
from tests.history import UNSEEN, BadHistory, History, Operation, Outcome, Value
from tests.linearizability import Undecided, check_linearizable, find_violation, is_linearizable

NEVER: Final = math.inf
_clients = itertools.count()


def operation(kind: Any, begin: float, end: float, **fields: Any) -> Operation:
    outcome = Outcome.UNKNOWN if end == NEVER else Outcome.OK
    given_fields = {"outcome": outcome, **fields}
    return Operation(next(_clients), kind, "/r", begin, end, **given_fields)


def write(begin: float, end: float, value: Value, **fields: Any) -> Operation:
    return operation("write", begin, end, argument=value, **fields)


def read(begin: float, end: float, value: Value) -> Operation:
    return operation("read", begin, end, result=value)


def swap(begin: float, end: float, old: Value, new: Value) -> Operation:
    return operation("swap", begin, end, expected=old, argument=new)


def mismatch(begin: float, end: float, old: Value, new: Value, found: Any = UNSEEN) -> Operation:
    fields = {"outcome": Outcome.MISMATCH, "result": found}
    return operation("swap", begin, end, expected=old, argument=new, **fields)


def add(begin: float, end: float, number: int, total: Any = UNSEEN) -> Operation:
    return operation("add", begin, end, argument=number, result=total)


REFUSED = {"outcome": Outcome.REFUSED}
GOOD: dict[str, list[Operation]] = {
    "nothing": [],
    "reads of the initial value": [read(0, 1, None), read(0, 2, None)],
    "one after the other": [write(0, 1, "a"), read(2, 3, "a"), write(4, 5, "b"), read(6, 7, "b")],
    "a read at the same time sees the old value": [write(0, 9, "a"), read(1, 2, None)],
    "a read at the same time sees the new value": [write(0, 9, "a"), read(1, 2, "a")],
    "reads at the same time see both, in order": [
        write(0, 9, "a"),
        read(1, 2, None),
        read(3, 4, "a"),
    ],
    "the write that began last takes effect first": [
        write(0, 9, "a"),
        write(1, 9, "b"),
        read(10, 11, "a"),
    ],
    "writes at the same time, seen in an order of their own": [
        write(0, 9, "a"),
        write(0, 9, "b"),
        write(0, 9, "c"),
        read(1, 2, "c"),
        read(3, 4, "a"),
        read(5, 6, "b"),
    ],
    "the same moment is at the same time": [write(0, 1, "a"), read(1, 2, None)],
    "an unknown write that nobody sees": [write(0, NEVER, "a"), read(5, 6, None)],
    "an unknown write that takes effect late": [
        write(0, NEVER, "a"),
        read(5, 6, None),
        write(7, 8, "b"),
        read(9, 10, "b"),
        read(11, 12, "a"),
    ],
    "a refused write": [write(0, 1, "a", **REFUSED), read(2, 3, None)],
    "a swap": [write(0, 1, "a"), swap(2, 3, "a", "b"), read(4, 5, "b")],
    "one of two swaps": [
        swap(0, 9, None, "a"),
        mismatch(0, 9, None, "b", "a"),
        read(10, 11, "a"),
    ],
    "a swap that mismatches a value that came and went": [
        write(0, 1, "a"),
        write(2, 9, "b"),
        mismatch(3, 8, "a", "x", "b"),
        swap(3, 8, "b", "c"),
    ],
    "a mismatch that does not show what it found": [write(0, 1, "a"), mismatch(2, 3, None, "b")],
    "a mismatch because of an unknown write that nobody else sees": [
        write(0, NEVER, "a"),
        mismatch(2, 3, None, "b"),
    ],
    "a swap of a value that was set again": [
        write(0, 1, "a"),
        write(2, 3, "b"),
        write(4, 5, "a"),
        swap(6, 7, "a", "c"),
    ],
    "an unknown swap on an unknown write": [
        write(0, NEVER, "a"),
        swap(0, NEVER, "a", "b"),
        read(1, 2, "b"),
    ],
    "additions": [add(0, 9, 1, 2), add(0, 9, 1, 1), add(0, 9, 1, 3), read(10, 11, 3)],
    "an addition to what is no number": [write(0, 1, "a"), add(2, 3, 5, 5)],
    "an unknown addition between two": [add(0, 1, 1, 1), add(2, NEVER, 1), add(4, 5, 1, 3)],
    "an unknown addition to what is no number": [
        write(0, 1, "a"),
        add(0, NEVER, 2),
        read(5, 6, 2),
    ],
    "an unknown addition to an unknown write": [
        write(0, NEVER, 5),
        add(0, NEVER, 2),
        read(5, 6, 7),
    ],
    "an addition to an unknown write that is no number": [
        write(0, 1, 5),
        write(0, NEVER, "a"),
        add(5, 6, 1, 1),
    ],
    "an addition whose sum is not shown": [add(0, 1, 1), read(2, 3, 1)],
}
BAD: dict[str, list[Operation]] = {
    "a stale read": [write(0, 1, "a"), write(2, 3, "b"), read(4, 5, "a")],
    "a stale read of the initial value": [write(0, 1, "a"), read(2, 3, None)],
    "a read of a value that nobody wrote": [write(0, 9, "a"), read(1, 2, "b")],
    "a read of a value that was refused": [write(0, 1, "a", **REFUSED), read(2, 3, "a")],
    "a read before the write began": [read(0, 1, "a"), write(2, 3, "a")],
    "reads that see a new value and then the old one": [
        write(0, 9, "a"),
        read(1, 2, "a"),
        read(3, 4, None),
    ],
    "two readers that see two writes in different orders": [
        write(0, 20, "a"),
        write(0, 20, "b"),
        read(1, 2, "a"),
        read(3, 4, "b"),
        read(5, 6, "a"),
    ],
    "a lost update": [
        write(0, 1, 1),
        swap(2, 9, 1, 2),
        swap(3, 8, 1, 3),
    ],
    "a lost write": [write(0, 1, "a"), write(2, 3, "b"), swap(4, 5, "a", "c")],
    "a swap that mismatched and took effect": [
        write(0, 1, "a"),
        mismatch(2, 3, "x", "b", "a"),
        read(4, 5, "b"),
    ],
    "a mismatch that found what it expected": [
        write(0, 1, "a"),
        mismatch(2, 3, "a", "b", "a"),
    ],
    "a mismatch although nothing else was there": [
        write(0, 1, "a"),
        mismatch(2, 3, "a", "b"),
    ],
    "a doubled increment": [add(0, 1, 1, 1), read(2, 3, 2)],
    "an increment that is acknowledged twice with the same sum": [add(0, 5, 1, 1), add(0, 5, 1, 1)],
    "an increment that skips a number": [add(0, 1, 1, 1), add(2, 3, 1, 3)],
    "a lost increment": [add(0, 1, 1, 1), add(2, 3, 1, 2), add(4, 5, 1, 2)],
    "a write that came back": [
        write(0, 1, "a"),
        write(2, 3, "b"),
        read(4, 5, "b"),
        read(6, 7, "a"),
    ],
    "an unknown write that took effect twice": [
        write(0, NEVER, "a"),
        read(1, 2, "a"),
        write(3, 4, "b"),
        read(5, 6, "b"),
        read(7, 8, "a"),
    ],
    "an unknown write that took effect before it began": [read(0, 1, "a"), write(2, NEVER, "a")],
    "an unknown addition that took effect twice": [
        add(0, 1, 1, 1),
        add(2, NEVER, 1),
        read(4, 5, 2),
        read(6, 7, 3),
    ],
    "an unknown swap on what was not there": [
        write(0, 1, "a"),
        swap(2, NEVER, "x", "b"),
        read(4, 5, "b"),
    ],
    "a value that is gone": [write(0, 1, "a"), read(2, 3, "a"), read(4, 5, None)],
}


@pytest.mark.parametrize("name", GOOD)
def test_a_good_history_is_accepted(name: str) -> None:
    violation = find_violation(GOOD[name])
    assert violation is None, str(violation)


@pytest.mark.parametrize("name", BAD)
def test_a_bad_history_is_rejected(name: str) -> None:
    assert not is_linearizable(BAD[name])


def known_at(operations: list[Operation], end: float) -> list[Operation]:
    """Return what is known of operations at a time."""
    lost = {"completed": NEVER, "outcome": Outcome.UNKNOWN, "result": UNSEEN}
    return [
        each if each.completed <= end else attrs.evolve(each, **lost)  # type: ignore[arg-type]
        for each in operations
        if each.invoked <= end
    ]


@pytest.mark.parametrize("name", BAD)
def test_a_violation_names_the_first_operation_that_shows_it(name: str) -> None:
    violation = find_violation(BAD[name])
    assert violation is not None
    end = violation.culprit.completed
    assert not has_order(known_at(BAD[name], end))
    assert has_order(known_at([each for each in BAD[name] if each is not violation.culprit], end))
    assert str(violation.culprit) in str(violation)


def test_a_violation_is_explained_by_what_is_near_and_what_it_saw() -> None:
    unrelated = [write(at, at + 0.5, f"v{at}") for at in range(100)]
    unrelated += [write(at, at + 0.5, f"v{at}") for at in range(200, 300)]
    history = [*unrelated, stale := read(150, 151, "v7")]
    violation = find_violation(history)
    assert violation is not None
    assert violation.culprit is stale
    assert unrelated[7] in violation.shown
    assert unrelated[99] in violation.shown
    assert len(violation.shown) < 12
    assert "number 101 of 201" in str(violation)


def test_registers_are_judged_each_for_itself() -> None:
    good = [*GOOD["one after the other"], *GOOD["additions"]]
    moved = [attrs.evolve(each, register="/other") for each in GOOD["a swap"]]
    check_linearizable(History([*good[:4], *moved]))
    stale = attrs.evolve(BAD["a stale read"][-1], register="/other")
    with pytest.raises(BadHistory, match="/other is not linearizable"):
        check_linearizable(History([*good[:4], *moved, stale]))


def test_the_initial_value_may_be_another() -> None:
    assert is_linearizable([read(0, 1, "x")], "x")
    assert not is_linearizable([read(0, 1, None)], "x")


def test_a_search_that_is_too_long_is_no_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linearizability, "MAX_CONFIGURATIONS", 5)
    with pytest.raises(Undecided):
        is_linearizable([write(at, at + 0.5, at) for at in range(9)])


class Simulation:
    """A correct register under clients whose steps alternate as a schedule says.

    Each number of the schedule lets one client do its next step: begin, take effect, end. Now and
    then a client loses its connection before or after the effect, which may also come much later.
    """

    FATES = ("end",) * 12 + ("refuse", "lose", "lose late", "never")

    def __init__(self, clients: int, kinds: tuple[str, ...]) -> None:
        self._kinds = kinds
        self._state: Value = None
        self._time = 0
        self._active: list[Callable[[], None] | None] = [None] * clients
        self._late: list[Operation] = []
        self._values = itertools.count(1)
        self._last_read: Value = None
        self.history: list[Operation] = []

    def run(self, schedule: Iterable[int]) -> list[Operation]:
        for number in schedule:
            client, choice = number % len(self._active), number // len(self._active)
            self._time += 1
            step = self._active[client]
            if step is not None:
                step()
            else:
                self._begin(client, choice)
            if self._late and choice % 5 == 0:
                self._apply(self._late.pop(choice % len(self._late)))
        return self.history

    def _begin(self, client: int, choice: int) -> None:
        kind: Any = self._kinds[choice % len(self._kinds)]
        fate = self.FATES[choice // len(self._kinds) % len(self.FATES)]
        argument = {"read": None, "add": 1}.get(kind, f"v{next(self._values)}")
        lost = Operation(
            client, kind, "/r", self._time, NEVER, Outcome.UNKNOWN, argument, self._last_read
        )
        self.history.append(lost)

        def take_effect() -> None:
            outcome, result = self._apply(lost)
            self._active[client] = (lambda: end(outcome, result)) if fate == "end" else None

        def end(outcome: Outcome, result: Any) -> None:
            ended = {"completed": self._time, "outcome": outcome, "result": result}
            self.history[self.history.index(lost)] = attrs.evolve(lost, **ended)
            self._active[client] = None

        if fate == "refuse":
            self._active[client] = lambda: end(Outcome.REFUSED, UNSEEN)
        elif fate == "lose late":
            self._late.append(lost)
        elif fate != "never":
            self._active[client] = take_effect

    def _apply(self, operation: Operation) -> tuple[Outcome, Any]:
        if operation.kind == "read":
            self._last_read = self._state
            return Outcome.OK, self._state
        if operation.kind == "swap" and self._state != operation.expected:
            self._last_read = self._state
            return Outcome.MISMATCH, self._state
        if operation.kind == "add":
            self._state = (self._state if isinstance(self._state, int) else 0) + 1
            return Outcome.OK, self._state
        self._state = operation.argument
        return Outcome.OK, UNSEEN


def schedule_of(seed: int, steps: int) -> list[int]:
    """Return a schedule of so many steps; a shorter one of the same seed is its beginning."""
    chance = random.Random(seed)
    return [chance.randrange(2**14) for _ in range(steps)]


SCHEDULES = st.builds(schedule_of, st.integers(0, 2**32), st.integers(40, 150))


UNIQUE = ("read", "read", "read", "write", "write", "swap", "swap", "swap")
COUNTER = ("read", "add")
MANY_WRITES = ("read", "write", "write", "write", "write")
KINDS = st.sampled_from([UNIQUE, COUNTER, (*UNIQUE, "add")])


@given(schedule=SCHEDULES, clients=st.integers(1, 8), kinds=KINDS)
def test_what_a_correct_register_does_is_accepted(
    schedule: list[int], clients: int, kinds: tuple[str, ...]
) -> None:
    history = Simulation(clients, kinds).run(schedule)
    violation = find_violation(history)
    assert violation is None, str(violation)


def stale_reads(history: list[Operation]) -> list[tuple[Operation, Value]]:
    """Return reads, each with a value that had surely been replaced when it began."""
    writes = [each for each in history if each.kind == "write" and each.outcome is Outcome.OK]
    return [
        (each, old.argument)
        for each in history
        if each.kind == "read" and each.outcome is Outcome.OK
        for old in writes
        for new in writes
        if old.completed < new.invoked and new.completed < each.invoked
    ]


@given(schedule=SCHEDULES, clients=st.integers(1, 8), choice=st.integers(0, 10**6))
def test_one_stale_read_is_rejected(schedule: list[int], clients: int, choice: int) -> None:
    history = Simulation(clients, UNIQUE).run(schedule)
    possible = stale_reads(history)
    assume(possible)
    stale, value = possible[choice % len(possible)]
    at = history.index(stale)
    history[at] = attrs.evolve(stale, result=value)
    assert not is_linearizable(history)


def has_order(operations: list[Operation], state: Value = None) -> bool:
    """Return, by trying all orders, whether the operations of a register are linearizable."""
    certain = [each for each in operations if each.outcome in (Outcome.OK, Outcome.MISMATCH)]
    if not certain:
        return True
    deadline = min(each.completed for each in certain)
    for each in operations:
        if each.invoked <= deadline and each.outcome is not Outcome.REFUSED:
            is_possible, after = outcome_of(each, state)
            rest = [other for other in operations if other is not each]
            if is_possible and has_order(rest, after):
                return True
    return False


def outcome_of(each: Operation, state: Value) -> tuple[bool, Value]:
    """Return whether an operation is possible in a state, and the state after it."""
    seen = each.result is not UNSEEN
    if each.kind == "read":
        return not seen or each.result == state, state
    if each.kind == "add":
        total = (state if isinstance(state, int) else 0) + int(each.argument or 0)
        return not seen or each.result == total, total
    if each.kind == "write":
        return True, each.argument
    if each.outcome is Outcome.MISMATCH:
        return state != each.expected and (not seen or each.result == state), state
    return state == each.expected, each.argument


VALUES = st.sampled_from([None, 1, 2, 3, "x"])
RESULTS = st.one_of(st.just(UNSEEN), VALUES)


@st.composite
def arbitrary_operations(draw: st.DrawFn) -> Operation:
    """One operation with any result, true or not."""
    kind: Any = draw(st.sampled_from(["read", "write", "swap", "add"]))
    outcome = draw(st.sampled_from([Outcome.OK, Outcome.OK, Outcome.OK, Outcome.UNKNOWN]))
    if kind == "swap" and draw(st.booleans()) and outcome is Outcome.OK:
        outcome = Outcome.MISMATCH
    begin = draw(st.integers(0, 12))
    end = NEVER if outcome is Outcome.UNKNOWN else begin + draw(st.integers(0, 6))
    argument = draw(st.integers(1, 2)) if kind == "add" else draw(VALUES)
    shows = kind in ("read", "add") or outcome is Outcome.MISMATCH
    result = draw(RESULTS) if shows and outcome is not Outcome.UNKNOWN else UNSEEN
    return Operation(0, kind, "/r", begin, end, outcome, argument, draw(VALUES), result)


@settings(max_examples=examples(1000))
@given(st.lists(arbitrary_operations(), max_size=6))
def test_the_verdict_is_that_of_trying_all_orders(operations: list[Operation]) -> None:
    expected = has_order(operations)
    event("linearizable" if expected else "not linearizable")
    assert is_linearizable(operations) == expected


@pytest.mark.parametrize("kinds", [UNIQUE, COUNTER, MANY_WRITES], ids=["swaps", "sums", "writes"])
def test_a_history_of_thousands_of_operations_is_judged(kinds: tuple[str, ...]) -> None:
    history = Simulation(16, kinds).run(schedule_of(7, 12_000))
    assert len(history) > 4000
    assert is_linearizable(history)
    reads = [each for each in history if each.kind == "read" and each.outcome is Outcome.OK]
    wrong = attrs.evolve(reads[-100], result=reads[-400].result)
    history[history.index(reads[-100])] = wrong
    violation = find_violation(history)
    assert violation is not None
    assert violation.culprit is wrong
