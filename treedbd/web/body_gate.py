"""How many bodies are parsed at a time: large ones wait, as the bytes they are, for their turn.

A parsed body takes many times the memory of its bytes, until its write is durable or refused. So
what is parsed is bounded, by an estimate from above of the memory it takes. Bodies wait in the
order in which they came, large ones apart, so that a small one never waits for a large one.
"""

from __future__ import annotations

from collections import deque
from typing import Final, NoReturn

import attrs
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorTime
from twisted.internet.task import deferLater

from treedbd.database.errors import DeadlinePassed, Unavailable
from treedbd.limits import KIB, MIB
from treedbd.web.http1.interface import IHttp1Request

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
    """A body of `length` bytes that waits for its turn, or has it; `nodes` are about its nodes."""

    length: int
    nodes: int
    began: Deferred[None] | None = None

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

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._used = 0
        self._waiting: deque[Turn] = deque()

    def enter(self, turn: Turn) -> Deferred[None] | None:
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
        self._begin_next()

    def refuse(self, reason: str) -> None:
        """End the waiting of all with an error."""
        while self._waiting:
            turn = self._waiting.popleft()
            if turn.began is not None:
                turn.began.errback(Unavailable(reason))

    def _has_room(self, turn: Turn) -> bool:
        return not self._used or self._used + turn.size <= self._limit

    def _withdraw(self, turn: Turn) -> None:
        self._waiting.remove(turn)
        self._begin_next()

    def _begin_next(self) -> None:
        while self._waiting and self._has_room(self._waiting[0]):
            turn = self._waiting.popleft()
            self._used += turn.size
            if turn.began is not None:
                turn.began.callback(None)


class BodyGate:
    """Gives each body its turn to be parsed."""

    def __init__(self, limit: int, clock: IReactorTime) -> None:
        """Let bodies of `limit` bytes of memory be parsed at a time, large ones and others each."""
        self._clock = clock
        self._small = _Queue(limit)
        self._large = _Queue(limit)
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
            await began.addTimeout(wait_s, self._clock, _time_out)
            # In another turn of the reactor, so that the response before this one is sent first.
            await deferLater(self._clock, 0)

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
