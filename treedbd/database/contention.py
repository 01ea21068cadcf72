"""Contention: the places at which writes on a condition compete, and who goes first there."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final, TypeAlias, TypeVar

import attrs
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.python.failure import Failure

from treedbd.database.requests import ConditionFailed, QueuedWrite, Write
from treedbd.tree.types import Path

T = TypeVar("T")

PATIENCE: Final = 2
"""Losses at a place after which it is reserved for a contender."""
PENALTY: Final = 8
"""Losses more until that happens again, after a reservation that came to nothing."""
LOOK_S: Final = 0.05
"""Seconds between two looks whether the contender has come."""
LOOKS: Final = 5
"""Looks until a reservation ends: a pause of this process, however long, counts as one."""
RESERVED_S: Final = LOOKS * LOOK_S
"""Seconds: a few times what an answer and the next write need, also over a mobile network."""
MAX_CLAIMS: Final = 1_000
"""Contenders that are remembered; the one that has lost last is remembered longest."""
MAX_RESERVATIONS: Final = 100
"""The most places that are reserved, so that a batch is judged in little time."""

_Claim: TypeAlias = tuple[int, Path]
"""A contender (`Write.contender`), and the place of its condition."""


class Contention:
    """The places at which writes on a condition compete: the contender that loses often goes first.

    Theory of operation. A transaction is a write on the condition that its place still holds the
    value from which it was made. Of those made from one value one is done; the others are refused,
    receive the present value, and come back with a new one. The nearest and the fastest contender
    would always be first. So losses are counted for each contender and place. When a batch has
    refused one that has lost `PATIENCE` times or more, the place is *reserved* for the one of them
    that has lost most often: until it has written, the other writes on a condition at, above and
    below the place are held. So it is refused once more at most: if another write of that batch
    replaced the value that it received. Then those that were held are applied; they are refused,
    and the next of them has the place. So a contender loses about as often as there are others.

    A reservation ends after `RESERVED_S` in any case. If it came to nothing, because its contender
    did not come or was still refused, that contender is waited for again only when it has lost
    `PENALTY` times more. So one that is too slow, or loses on purpose, seldom delays others. A
    write is held once at most, so it waits no longer than `RESERVED_S`, and not at all if it would
    be late then.

    Writes without a condition, large ones, and those at other places are never held. Two writes of
    one contender are never reordered: when another one comes, the one that is held goes before it.
    All this concerns one database in one process: what other processes write, or is written without
    a condition, can still refuse the one for which a place is reserved.

    Attributes:
        is_calm: whether no place is reserved, so that nothing is held.

    """

    def __init__(
        self, clock: IReactorTime, release: Callable[[Iterable[QueuedWrite]], None]
    ) -> None:
        """Give back to `release` what was held; it goes before all that waits."""
        self.is_calm = True
        self._clock = clock
        self._release = release
        self._losses: dict[_Claim, int] = {}
        # By each path at or above its place: those at or below a path are found there.
        self._reservations: dict[Path, dict[Path, _Reservation]] = {}
        self._held: dict[int, _Reservation] = {}  # by the contender of what is held there

    @property
    def held(self) -> int:
        """How many writes are held."""
        return len(self._held)

    def holds(self, queued: QueuedWrite) -> bool:
        """Return whether a write that is to be applied has to wait; it is released later then."""
        write, contender = queued.write, queued.write.contender
        if contender is None:
            return False
        if (reservation := self._held.pop(contender, None)) is not None:
            self._release((reservation.held.pop(contender), queued))
            return True
        if write.condition is None or queued.is_large or queued.was_held:
            return False
        found = self._find(write.condition.place.path)
        if found is None or found.contender == contender:
            return False
        if write.deadline is not None and write.deadline <= found.end:
            return False
        queued.was_held = True
        found.held[contender] = queued
        self._held[contender] = found
        return True

    def note(self, writes: Iterable[QueuedWrite]) -> None:
        """Record what has become of writes on a condition, before their writers are answered."""
        lost: dict[_Claim, int] = {}
        for queued in writes:
            claim = _claim_of(queued.write)
            if claim is None:
                continue
            losses, result = self._losses.pop(claim, 0), queued.result
            if isinstance(result, Failure) and result.check(ConditionFailed):
                self._losses[claim] = lost[claim] = losses + 1
            else:
                self._end_if_reserved(claim)
        for claim in sorted(lost, key=lost.__getitem__, reverse=True):
            if lost[claim] < PATIENCE or len(self._all) >= MAX_RESERVATIONS:
                break
            if self._find(claim[1]) is None:
                self._reserve(*claim)
        while len(self._losses) > MAX_CLAIMS:
            del self._losses[next(iter(self._losses))]

    def end(self) -> None:
        """Release all that is held, and end all reservations."""
        for reservation in list(self._all.values()):
            self._end(reservation)

    @property
    def _all(self) -> dict[Path, _Reservation]:
        return self._reservations.get((), {})

    def _find(self, path: Path) -> _Reservation | None:
        """Return a place at, above or below a path that is reserved."""
        if self.is_calm:
            return None
        for below in self._reservations.get(path, {}).values():
            return below
        found = (self._reservations.get(above, {}).get(above) for above in _at_or_above(path))
        return next((each for each in found if each is not None), None)

    def _reserve(self, contender: int, path: Path) -> None:
        timer = self._clock.callLater(LOOK_S, self._look, (contender, path))
        end = self._clock.seconds() + RESERVED_S
        reservation = _Reservation(contender, path, end, timer)
        for above in _at_or_above(path):
            self._reservations.setdefault(above, {})[path] = reservation
        self.is_calm = False

    def _look(self, claim: _Claim) -> None:
        """Stop waiting for a contender that has not come back for long."""
        reservation = self._all[claim[1]]
        reservation.looks -= 1
        if reservation.looks:
            reservation.timer = self._clock.callLater(LOOK_S, self._look, claim)
        else:
            self._losses.pop(claim, None)
            self._losses[claim] = -PENALTY
            self._end_if_reserved(claim)

    def _end_if_reserved(self, claim: _Claim) -> None:
        contender, path = claim
        reservation = self._all.get(path)
        if reservation is not None and reservation.contender == contender:
            self._end(reservation)

    def _end(self, reservation: _Reservation) -> None:
        if reservation.timer.active():
            reservation.timer.cancel()
        for above in _at_or_above(reservation.path):
            near = self._reservations[above]
            del near[reservation.path]
            if not near:
                del self._reservations[above]
        self.is_calm = not self._reservations
        held, reservation.held = reservation.held, {}
        for contender in held:
            del self._held[contender]
        self._release(held.values())


@attrs.define(eq=False)
class _Reservation:
    """A place that is reserved for a contender, until a time in seconds of the clock.

    `held` are the writes that wait for its end, by their contenders.
    """

    contender: int
    path: Path
    end: float
    timer: IDelayedCall
    looks: int = LOOKS
    held: dict[int, QueuedWrite] = attrs.field(factory=dict)


def _at_or_above(path: Path) -> Iterator[Path]:
    return (path[:length] for length in range(len(path) + 1))


def _claim_of(write: Write) -> _Claim | None:
    if write.condition is None or write.contender is None:
        return None
    return write.contender, write.condition.place.path
