"""The listens of a session end together, but are released in slices."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, ClassVar

from tests.database.world import TurnClock
from treedbd.database.slices import SLICE_SECONDS, Slices
from treedbd.limits import Limits
from treedbd.web.realtime.listens import SessionListens
from treedbd.web.realtime.messages import RealtimeRequest

MANY = 80


class CountedListen:
    """What a session knows of a listen."""

    made: ClassVar[list[CountedListen]] = []
    released: ClassVar[list[CountedListen]] = []

    def __init__(self, key: object, **_: object) -> None:
        self.key = key
        self.query = None
        self.is_closed = False
        self.made.append(self)

    def begin(self, number: int, claimed_hash: str, warning: object) -> None:
        pass

    def close(self) -> None:
        self.released.append(self)


def test_all_listens_of_a_session_end_at_once_and_are_released_in_slices() -> None:
    released = CountedListen.released
    opened: list[Any] = []
    clock = TurnClock()
    registry = SimpleNamespace(listens=0, listen_kinds=(CountedListen, None))
    context = SimpleNamespace(
        registry=registry,
        limits=Limits(),
        slices=Slices(clock),
        catalog=SimpleNamespace(acquire=lambda *_: None, release=lambda _: None),
    )
    outbox = SimpleNamespace(add=opened.append)
    session: Any = SimpleNamespace(context=context, database=None, outbox=outbox)
    listens = SessionListens(session)
    for number in range(MANY):
        assert listens.listen(RealtimeRequest(number, "q", {"p": f"/{number}"})) is None
    assert registry.listens == len(opened) == MANY
    clock.lag = SLICE_SECONDS / 10
    closed = listens.close()
    assert registry.listens == 0
    assert all(each.is_closed for each in CountedListen.made)
    begun = len(released)
    while not closed.called:
        assert len(released) - begun <= 15
        begun = len(released)
        assert clock.take_turn()
    assert len(set(released)) == MANY
