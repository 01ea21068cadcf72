"""What concurrent clients did to registers, as seen from outside: operations with their times.

A register is a path with a string, a whole number or nothing. All times are of `time.monotonic`,
which all processes of a machine share. `tests.linearizability` judges the registers of a history,
`tests.stream_follower` the events of its writes; here are the checks that need no search.
"""

from __future__ import annotations

import enum
import math
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Final, Literal, TypeAlias

import attrs


class Unseen(enum.Enum):
    """The result of an operation whose response did not show it."""

    UNSEEN = "unseen"


UNSEEN: Final = Unseen.UNSEEN
Value: TypeAlias = str | int | None
Kind: TypeAlias = Literal["read", "write", "swap", "add", "push"]


class Outcome(enum.Enum):
    """How an operation ended.

    `MISMATCH` is a swap that found another value than it expected. What was `REFUSED` was surely
    not applied. What is `UNKNOWN` may take effect at any time after its begin, once, or never.
    """

    OK = "ok"
    MISMATCH = "mismatch"
    REFUSED = "refused"
    UNKNOWN = "unknown"


@attrs.frozen(eq=False)
class Operation:
    """One operation of a client.

    `argument` is the value that a write, a swap or a push sets, or the number that is added;
    `expected` is the value that a swap replaces. `result` is what a read or a mismatched swap
    found, the sum after an addition, or the key of a push. `completed` is infinite if the outcome
    is unknown.
    """

    client: int
    kind: Kind
    register: str
    invoked: float
    completed: float
    outcome: Outcome
    argument: Value = None
    expected: Value = None
    result: Value | Unseen = UNSEEN

    def __str__(self) -> str:
        until = "?" if math.isinf(self.completed) else f"{self.completed:.6f}"
        done = f"{self.invoked:.6f} to {until} client {self.client}: {self.kind} {self.register}"
        if self.kind == "swap":
            done += f" {self.expected!r} by"
        if self.kind != "read":
            done += f" {self.argument!r}"
        shown = "" if self.result is UNSEEN else f" {self.result!r}"
        return f"{done}: {self.outcome.value}{shown}"


class Pending:
    """An operation that has begun; it is recorded when it ends, or at the end of the history."""

    def __init__(self, history: History, begun: Operation) -> None:
        self._history = history
        self._begun = begun

    def end(self, outcome: Outcome, result: Value | Unseen = UNSEEN) -> Operation:
        """Record how the operation ended, now."""
        completed = math.inf if outcome is Outcome.UNKNOWN else time.monotonic()
        operation = attrs.evolve(self._begun, completed=completed, outcome=outcome, result=result)
        self._history.replace(self._begun, operation)
        return operation


class History:
    """The operations of all clients; threads may record at the same time."""

    def __init__(self, operations: Iterable[Operation] = ()) -> None:
        self._lock = threading.Lock()
        self._operations: dict[Operation, None] = dict.fromkeys(operations)

    def __iter__(self) -> Iterator[Operation]:
        with self._lock:
            return iter(sorted(self._operations, key=lambda operation: operation.invoked))

    def begin(
        self,
        client: int,
        kind: Kind,
        register: str,
        argument: Value = None,
        expected: Value = None,
    ) -> Pending:
        """Record that an operation begins now; until it ends its outcome is unknown."""
        begun = Operation(
            client,
            kind,
            register,
            time.monotonic(),
            math.inf,
            Outcome.UNKNOWN,
            argument,
            expected,
        )
        with self._lock:
            self._operations[begun] = None
        return Pending(self, begun)

    def replace(self, begun: Operation, ended: Operation) -> None:
        """Replace an operation by what is known of it now."""
        with self._lock:
            del self._operations[begun]
            self._operations[ended] = None

    def registers(self) -> dict[str, list[Operation]]:
        """Return the operations of each register, in the order of their begin; no pushes."""
        found: dict[str, list[Operation]] = defaultdict(list)
        for operation in self:
            if operation.kind != "push":
                found[operation.register].append(operation)
        return dict(found)

    def pushes(self) -> dict[str, list[Operation]]:
        """Return the pushes to each path, in the order of their begin."""
        found: dict[str, list[Operation]] = defaultdict(list)
        for operation in self:
            if operation.kind == "push":
                found[operation.register].append(operation)
        return dict(found)

    def counts(self) -> Counter[tuple[Kind, Outcome]]:
        """Return how many operations of each kind had each outcome."""
        return Counter((operation.kind, operation.outcome) for operation in self)


class BadHistory(AssertionError):
    """A history that no correct service can lead to; `str()` says why."""


def check_unique_writes(history: History) -> None:
    """Check that no value was set twice at a register: else a history proves less than it may."""
    for register, operations in (history.registers() | history.pushes()).items():
        values = Counter(
            operation.argument
            for operation in operations
            if operation.kind in ("write", "swap", "push")
        )
        twice = [value for value, times in values.items() if times > 1]
        if twice:
            raise BadHistory(f"{register} was set to {twice[0]!r} more than once.")


def check_gapless(sequences: Iterable[int]) -> None:
    """Check that each number is that before it plus one."""
    before: int | None = None
    for sequence in sequences:
        if before is not None and sequence != before + 1:
            raise BadHistory(f"After number {before} came {sequence}.")
        before = sequence


def check_push_keys(history: History, *, across_clients: bool = True) -> None:
    """Check that of two pushes, one after the other, the later has the greater key.

    That holds for the pushes of all clients to one database; without `across_clients` only those of
    the same client are compared.
    """
    groups: dict[int, list[Operation]] = defaultdict(list)
    for operation in history:
        if operation.kind == "push" and operation.outcome is Outcome.OK:
            groups[0 if across_clients else operation.client].append(operation)
    for pushes in groups.values():
        for last, push in _latest_before(pushes):
            if str(push.result) <= str(last.result):
                raise BadHistory(f"A later push has no greater key:\n{last}\n{push}")


def _latest_before(pushes: list[Operation]) -> Iterator[tuple[Operation, Operation]]:
    """Yield pushes, in the order of their begin, after the greatest of those that ended before."""
    ended = sorted(pushes, key=lambda push: push.completed)
    at, last = 0, None
    for push in pushes:
        while ended[at].completed < push.invoked:
            if last is None or str(ended[at].result) > str(last.result):
                last = ended[at]
            at += 1
        if last is not None:
            yield last, push


def check_pushed(history: History, found: Mapping[str, Mapping[str, Value]]) -> None:
    """Check what is at the paths of pushes at the end: `found` has the children of each.

    Each acknowledged push is there once, under its key; one whose outcome is unknown at most once;
    and nothing else is there.
    """
    for register, pushes in history.pushes().items():
        present = dict(found.get(register, {}))
        for push in pushes:
            if push.outcome is Outcome.OK and present.pop(str(push.result), None) != push.argument:
                raise BadHistory(f"It is not there at the end:\n{push}")
        possible = {push.argument for push in pushes if push.outcome is Outcome.UNKNOWN}
        for key, value in present.items():
            if value not in possible:
                raise BadHistory(f"{register}/{key} is {value!r}, which nobody pushed, or once.")
            possible.remove(value)
