"""A checker for linearizability: is there an order of the operations that explains all results?

An operation takes effect at one moment between its begin and its end, so the order must keep that
of operations of which one ended before the other began. Registers are independent of each other: a
history is linearizable if that of each register is (Herlihy and Wing, 1990), and each is searched
for itself.

Theory of operation. The search is that of Wing and Gong (1993): of the operations that may be
next one is applied to the state, and undone if it leads to no end. A configuration, which is the
set of applied operations and the state, is searched only once (Lowe, 2017). Five rules make it fast
without changing what it finds:

- What only reads, and agrees with the state, is applied at once: it cannot be in the way later.
- A write of what nobody needs is applied at once if nobody needs the state either.
- A state is not left while an operation still needs it that nobody could bring about again.
- An operation with an unknown outcome is applied only if someone may need the state it leads to.
- Of several such operations with the same effect only the one that began first is tried.

Every prefix of a linearizable history is linearizable. So a violation is shown as the shortest
prefix that is not, and the operation by whose end it ceases to be.
"""

from __future__ import annotations

import enum
import math
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Final, Literal, TypeAlias

import attrs

from tests.history import UNSEEN, BadHistory, History, Operation, Outcome, Unseen, Value

MAX_CONFIGURATIONS: Final = 1_000_000
SHOWN_BEFORE: Final = 8


class _Special(enum.Enum):
    ANY = "any"
    KEEP = "keep"
    IMPOSSIBLE = "impossible"


_ANY: Final = _Special.ANY
_KEEP: Final = _Special.KEEP
_IMPOSSIBLE: Final = _Special.IMPOSSIBLE
_Impossible: TypeAlias = Literal[_Special.IMPOSSIBLE]
_Any: TypeAlias = Literal[_Special.ANY]


class Undecided(AssertionError):
    """The search was given up: the history has too many concurrent operations."""


@attrs.frozen
class Violation:
    """A register whose results no order explains.

    `culprit` is the operation by whose end it can be known, and `shown` are operations of which it
    follows: those before and at the same time, and those that set the value which it saw.
    """

    register: str
    culprit: Operation
    prefix: int
    total: int
    shown: tuple[Operation, ...]

    def __str__(self) -> str:
        lines = [
            f"{self.register} is not linearizable: there is an order of the operations until"
            f" number {self.prefix} of {self.total} ended, but none with this one:",
            f"    {self.culprit}",
            "Before it, at the same time, or of the value that it found:",
            *(f"    {operation}" for operation in self.shown),
        ]
        return "\n".join(lines)


def check_linearizable(history: History, initial: Value = None) -> None:
    """Raise `BadHistory` with an explanation unless each register of a history is linearizable."""
    for operations in history.registers().values():
        violation = find_violation(operations, initial)
        if violation is not None:
            raise BadHistory(str(violation))


def is_linearizable(operations: Iterable[Operation], initial: Value = None) -> bool:
    """Return whether the operations of one register are linearizable."""
    return _Search(list(operations), initial).run()


def find_violation(operations: list[Operation], initial: Value = None) -> Violation | None:
    """Return why the operations of one register are not linearizable, None if they are."""
    if is_linearizable(operations, initial):
        return None
    ended = sorted((each for each in operations if _is_certain(each)), key=lambda o: o.completed)
    good, bad = 0, len(ended)  # numbers of ended operations with and without an order
    while bad - good > 1:
        middle = (good + bad) // 2
        prefix = _prefix_until(operations, ended[middle - 1].completed)
        good, bad = (middle, bad) if is_linearizable(prefix, initial) else (good, middle)
    culprit = ended[bad - 1]
    shown = tuple(_related(operations, culprit))
    return Violation(culprit.register, culprit, bad, len(ended), shown)


def _prefix_until(operations: list[Operation], end: float) -> list[Operation]:
    """Return what was known at a time: operations that end later have an unknown outcome."""
    return [
        each
        if each.completed <= end
        else attrs.evolve(each, completed=math.inf, outcome=Outcome.UNKNOWN, result=UNSEEN)
        for each in operations
        if each.invoked <= end and each.outcome is not Outcome.REFUSED
    ]


def _related(operations: list[Operation], culprit: Operation) -> Iterator[Operation]:
    """Yield the operations that explain a violation, in the order of their begin."""
    known = [
        each for each in operations if each is not culprit and each.invoked < culprit.completed
    ]
    before = sorted((each for each in known if each.completed < culprit.invoked), key=_end)
    recent = set(before[-SHOWN_BEFORE:])
    wanted = {_needs(culprit), culprit.result}
    for each in known:
        overlaps = culprit.invoked <= each.completed < math.inf
        if each in recent or overlaps or (each.kind != "read" and _makes(each) in wanted):
            yield each


def _end(operation: Operation) -> float:
    return operation.completed


def _is_certain(operation: Operation) -> bool:
    return operation.outcome in (Outcome.OK, Outcome.MISMATCH)


def _needs(operation: Operation) -> Value | _Any:
    """Return the one state in which an operation is possible, if there is only one."""
    result = operation.result
    if operation.kind == "swap" and operation.outcome is not Outcome.MISMATCH:
        return operation.expected
    if operation.kind in ("read", "swap"):
        return _ANY if isinstance(result, Unseen) else result
    if operation.kind == "add" and isinstance(result, int) and result != operation.argument:
        return result - _number(operation.argument)
    return _ANY


def _makes(operation: Operation) -> Value | _Special:
    """Return the state after an operation; any for an addition whose sum is not known."""
    if operation.kind == "read" or operation.outcome is Outcome.MISMATCH:
        return _KEEP
    if operation.kind == "add":
        return _ANY if isinstance(operation.result, Unseen) else operation.result
    return operation.argument


def _number(value: Value) -> int:
    """Return a value as an addition sees it: what is not a number counts as 0."""
    return value if isinstance(value, int) else 0


def _grows(operation: Operation) -> bool:
    """Return whether an operation leaves the state as it is, or makes a greater number of it."""
    return operation.kind == "read" or (operation.kind == "add" and _number(operation.argument) > 0)


@attrs.frozen(eq=False)
class _Step:
    """An operation as the search needs it."""

    operation: Operation
    is_certain: bool
    needs: Value | _Any
    makes: Value | _Special
    depends: bool
    """Whether it is not possible in every state, or leads from each to another, but needs none."""

    @classmethod
    def of(cls, operation: Operation) -> _Step:
        """Return the step of an operation."""
        needs, makes = _needs(operation), _makes(operation)
        is_set = operation.kind == "write"
        depends = needs is _ANY and not is_set
        return cls(operation, _is_certain(operation), needs, makes, depends)

    def apply(self, state: Value) -> Value | _Impossible:
        """Return the state after this step, if it is possible."""
        operation = self.operation
        if self.needs is not _ANY and state != self.needs:
            return _IMPOSSIBLE
        if operation.outcome is Outcome.MISMATCH:
            return _IMPOSSIBLE if state == operation.expected else state
        if operation.kind == "read":
            return state
        if operation.kind == "add":
            total = _number(state) + _number(operation.argument)
            return total if operation.result in (UNSEEN, total) else _IMPOSSIBLE
        return operation.argument


class _Search:
    """A search for an order of the operations of one register.

    A step has a number: those of certain outcome come first, each kind in the order of its begin.
    The certain steps below `_low` are applied, and above it those whose bits are set in `_window`.
    """

    def __init__(self, operations: list[Operation], initial: Value) -> None:
        ordered = sorted(operations, key=lambda operation: operation.invoked)
        assert len({operation.register for operation in ordered}) <= 1
        self._certain = [_Step.of(each) for each in ordered if _is_certain(each)]
        self._unknown = [
            _Step.of(each)
            for each in ordered
            if each.outcome is Outcome.UNKNOWN and each.kind != "read"
        ]
        self._steps = self._certain + self._unknown
        self._state = initial
        self._low = self._window = self._used = 0
        self._trail: list[tuple[int, Value, int, int]] = []
        self._seen: set[tuple[int, int, int, Value]] = set()
        self._needed: Counter[Value | _Special] = Counter(step.needs for step in self._certain)
        self._usable: Counter[Value | _Special] = Counter(step.needs for step in self._unknown)
        self._made: Counter[Value | _Special] = Counter(step.makes for step in self._steps)
        self._dependent = sum(step.depends for step in self._steps)
        self._only_grows = all(_grows(step.operation) for step in self._steps)

    def run(self) -> bool:
        """Return whether there is an order."""
        if any(self._is_lost(value) for value in self._needed if value != self._state):
            return False
        stack: list[Iterator[int]] = []
        while self._low < len(self._certain):
            stack.append(iter(self._choices()))
            while (number := next(stack[-1], None)) is None:
                stack.pop()
                if not stack:
                    return False
                self._undo()
            self._apply(number)
        return True

    def _is_lost(self, value: Value | _Special) -> bool:
        """Return whether a value is needed and nobody can bring it about."""
        is_made = self._made[value] or self._made[_ANY]
        return value is not _ANY and self._needed[value] > 0 and not is_made

    def _choices(self) -> list[int]:
        """Return the steps that may be next, the most likely first."""
        configuration = (self._low, self._window, self._used, self._state)
        if configuration in self._seen:
            return []
        self._seen.add(configuration)
        if len(self._seen) > MAX_CONFIGURATIONS:
            raise Undecided(f"No verdict after {MAX_CONFIGURATIONS:,} configurations.")
        choices: list[int] = []
        deadline = math.inf
        for number in range(self._low, len(self._certain)):
            if self._window >> (number - self._low) & 1:
                continue
            step = self._certain[number]
            if step.operation.invoked > deadline:
                break
            deadline = min(deadline, step.operation.completed)
            if step.apply(self._state) is _IMPOSSIBLE:
                continue
            if step.makes is _KEEP or self._is_free(step):
                return [number]
            if not self._strands(step):
                choices.append(number)
        return choices + list(self._unknown_choices(deadline))

    def _is_free(self, step: _Step) -> bool:
        """Return whether a step is a write of what nobody needs over what nobody needs."""
        if step.operation.kind != "write" or self._dependent:
            return False
        return not any(
            self._needed[each] or self._usable[each] for each in (step.makes, self._state)
        )

    def _unknown_choices(self, deadline: float) -> Iterator[int]:
        tried = set()
        for at, step in enumerate(self._unknown):
            if step.operation.invoked > deadline:
                return
            effect = (step.operation.kind, step.operation.argument, step.needs)
            if self._used >> at & 1 or effect in tried:
                continue
            tried.add(effect)
            after = step.apply(self._state)
            if after is _IMPOSSIBLE or self._strands(step):
                continue
            if self._is_useful(step, after):
                yield len(self._certain) + at

    def _is_useful(self, step: _Step, after: Value) -> bool:
        """Return whether a step that is left may need the state after this one."""
        others = self._dependent - step.depends
        return bool(self._needed[after] or self._usable[after] or others)

    def _strands(self, step: _Step) -> bool:
        """Return whether a step leaves a state that others need and nobody can bring about."""
        state = self._state
        others_need = self._needed[state] - (step.is_certain and step.needs == state)
        if step.makes == state or not others_need:
            return False
        others_make = self._made[state] or self._made[_ANY] > (step.makes is _ANY)
        return self._only_grows or not others_make

    def _apply(self, number: int) -> None:
        step = self._steps[number]
        self._trail.append((number, self._state, self._low, self._window))
        after = step.apply(self._state)
        assert after is not _IMPOSSIBLE
        self._state = after
        if step.is_certain:
            self._window |= 1 << (number - self._low)
            while self._window & 1:
                self._window >>= 1
                self._low += 1
        else:
            self._used ^= 1 << (number - len(self._certain))
        self._count(step, -1)

    def _undo(self) -> None:
        """Undo the last step, if there is one."""
        number, self._state, self._low, self._window = self._trail.pop()
        step = self._steps[number]
        if not step.is_certain:
            self._used ^= 1 << (number - len(self._certain))
        self._count(step, 1)

    def _count(self, step: _Step, by: int) -> None:
        (self._needed if step.is_certain else self._usable)[step.needs] += by
        self._made[step.makes] += by
        self._dependent += by * step.depends
