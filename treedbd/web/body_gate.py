"""How many bodies are parsed at a time: large ones wait, as the bytes they are, for their turn.

A parsed body takes many times the memory of its bytes, until its write is durable or refused. So
what is parsed is bounded, by an estimate from above of the memory it takes. Bodies wait in the
order in which they came, large ones apart, so that a small one never waits for a large one. Those
that may go on together, because room became free or the server stops, do so in slices.
"""

from __future__ import annotations

from collections import deque
from typing import Final, NoReturn

import attrs
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorTime

from treedbd.database.requests import DeadlinePassed, Unavailable
from treedbd.database.slices import Slices, Steps
from treedbd.http1.interface import IHttp1Request
from treedbd.limits import KIB, MIB

FREE_BYTES: Final = 4 * KIB
"""A body that is not longer is parsed at once and not counted."""
LARGE_BYTES: Final = MIB
"""Estimated memory of a body that waits among the large ones."""
LONG_NODES: Final = 5000
"""Members and items that take some milliseconds to parse."""
NODE_BYTES: Final = 200
"""Memory of a member or item, once parsed and once in normal form; measured: 130 to 270."""


@attrs.define(eq=False)
class Turn:
    """A body of `length` bytes that waits for its turn, or has it; `nodes` are about its nodes.

    It has `began` if it had to wait, with the sentence that refuses it, or None.
    """

    length: int
    nodes: int
    began: Deferred[str | None] | None = None

    @property
    def size(self) -> int:
        """The memory that the parsed body takes, rather more than less."""
        return self.length + self.nodes * NODE_BYTES

    @property
    def is_large(self) -> bool:
        """Whether the body waits among the large ones."""
        return self.size > LARGE_BYTES

    @property
    def takes_long(self) -> bool:
        """Whether others should run between parsing and what follows."""
        return self.nodes > LONG_NODES

    @classmethod
    def of(cls, body: bytes) -> Turn:
        """Return the turn of a body, before it begins."""
        return cls(len(body), body.count(b",") + body.count(b"{") + body.count(b"["))


class _Queue:
    """Bodies that together take at most `limit` bytes of memory, or one that takes more."""

    def __init__(self, limit: int, clock: IReactorTime, slices: Slices) -> None:
        self._limit = limit
        self._clock = clock
        self._slices = slices
        self._used = 0
        self._refusal: str | None = None
        self._waiting: deque[Turn] = deque()
        self._is_going_on = False

    def enter(self, turn: Turn) -> Deferred[str | None] | None:
        """Begin a turn and return None, or return what fires when it has begun."""
        if not self._waiting and self._has_room(turn):
            self._used += turn.size
            return None
        self._waiting.append(turn)
        turn.began = Deferred(lambda _: self._withdraw(turn))
        return turn.began

    def leave(self, turn: Turn) -> None:
        """End a turn."""
        self._used -= turn.size
        self._go_on()

    def refuse(self, reason: str) -> None:
        """End the waiting of all with an error."""
        self._refusal = reason
        self._go_on()

    def _has_room(self, turn: Turn) -> bool:
        return not self._used or self._used + turn.size <= self._limit

    def _withdraw(self, turn: Turn) -> None:
        self._waiting.remove(turn)
        self._go_on()

    def _may_go_on(self) -> bool:
        return bool(self._waiting) and (
            self._refusal is not None or self._has_room(self._waiting[0])
        )

    def _go_on(self) -> None:
        """Begin turns, or refuse them, in slices.

        They begin in another turn of the reactor, so that the response before them is sent first.
        """
        if self._may_go_on() and not self._is_going_on:
            self._is_going_on = True
            self._clock.callLater(0, lambda: self._slices.start(self._go_on_in_steps()))

    def _go_on_in_steps(self) -> Steps:
        while self._may_go_on():
            turn = self._waiting.popleft()
            if self._refusal is None:
                self._used += turn.size
            if turn.began is not None:
                turn.began.callback(self._refusal)
            yield
        self._is_going_on = False


class BodyGate:
    """Gives each body its turn to be parsed."""

    def __init__(self, limit: int, clock: IReactorTime, slices: Slices) -> None:
        """Let bodies of `limit` bytes of memory be parsed at a time, large ones and others each."""
        self._clock = clock
        self._small = _Queue(limit, clock, slices)
        self._large = _Queue(limit, clock, slices)
        self._refusal: str | None = None

    async def enter(self, request: IHttp1Request, turn: Turn, deadline: float) -> None:
        """Wait until the turn of a body begins; it lasts until `leave`.

        Raises `DeadlinePassed`, `Unavailable`, or `CancelledError` if the
        client has disconnected.
        """
        if self._refusal is not None:
            raise Unavailable(self._refusal)
        began = self._queue(turn).enter(turn)
        if began is not None:
            request.notifyFinish().addErrback(lambda _: began.cancel())
            wait_s = max(0.0, deadline - self._clock.seconds())
            refusal = await began.addTimeout(wait_s, self._clock, _time_out)
            if refusal is not None:
                raise Unavailable(refusal)

    def leave(self, turn: Turn) -> None:
        """End a turn: the parsed body is not used any more."""
        self._queue(turn).leave(turn)

    def refuse(self, reason: str) -> None:
        """Refuse the bodies that wait, and all that come, with this sentence."""
        self._refusal = reason
        self._small.refuse(reason)
        self._large.refuse(reason)

    def _queue(self, turn: Turn) -> _Queue:
        return self._large if turn.is_large else self._small


def _time_out(_: object, __: float) -> NoReturn:
    raise DeadlinePassed("the body could be parsed")
