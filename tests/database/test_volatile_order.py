"""Requests wait for the state of other processes, and for the lock, in their order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs
import pytest
from twisted.internet.defer import Deferred

from tests.database.test_volatile import put
from tests.database.world import ADMIN, TurnClock, World
from treedbd.database.requests import Condition, Outcome, Write
from treedbd.database.volatile_exchange import WAIT_S, VolatileLink
from treedbd.names import DatabaseName
from treedbd.rules.ruleset import parse_rules
from treedbd.tree.hashes import parse_etags
from treedbd.tree.types import Place

RULES = parse_rules('{"rules": {".read": true, ".write": true, "v": {"$a": {".volatile": true}}}}')
ADD = {".sv": {"increment": 1}}
NO_TAG = Condition(Place(("v", "a")), parse_etags('"none"'))


class HeldLink:
    """A link whose answers a test gives."""

    def __init__(self) -> None:
        self.wanted: list[Deferred[Any]] = []
        self.locks: list[Deferred[Any]] = []
        self.did: list[str] = []
        self.places: list[Deferred[object]] = []

    def share(self, _: DatabaseName, content: bytes) -> Deferred[object]:
        self.did.append(content.decode())
        self.places.append(Deferred())
        return self.places[-1]

    def want(self, _: DatabaseName) -> Deferred[object]:
        self.wanted.append(Deferred())
        return self.wanted[-1]

    def lock(self, _: DatabaseName) -> Deferred[Callable[[], None]]:
        self.locks.append(Deferred())
        return self.locks[-1]

    def give_lock(self) -> None:
        """Give the lock that is waited for."""
        self.locks.pop(0).callback(lambda: self.did.append("released"))


@attrs.define(eq=False)
class Waiting:
    """A database of several processes, and the outcomes of its writes, by their values."""

    link: HeldLink = attrs.field(factory=HeldLink)
    done: dict[str, Any] = attrs.field(factory=dict)
    world: World = attrs.field(init=False)

    @world.default
    def _(self) -> World:
        link = VolatileLink(self.link.share, self.link.want, self.link.lock)
        made = World(rules=RULES, clock=TurnClock(), of_runtime={"volatile_link": link})
        made.write(put("exists", True))
        return made

    def write(self, path: str, value: Any, condition: Condition | None = None) -> str:
        """Write; return under which name the outcome will be."""
        name = f"{path} {value}"
        written = self.world.database.write(Write(put(path, value), 0, ADMIN, condition))
        written.addBoth(lambda result: self.done.update({name: result}))
        return name

    def settle(self) -> None:
        """Give what is written its place in the order."""
        self.world.clock.run()
        while self.link.places:
            self.link.places.pop(0).callback(None)

    def read(self) -> list[None]:
        """Wait until reads are right; return what is empty until then."""
        found: list[None] = []
        waiting = self.world.database.wait_for_volatile()
        if waiting is None:
            found.append(None)
        else:
            waiting.addCallback(found.append)
        return found


def make_ready() -> Waiting:
    """Return a database that has the state of the others."""
    waiting = Waiting()
    waiting.link.wanted[0].callback(None)
    waiting.world.clock.run()
    return waiting


def test_reads_and_volatile_writes_wait_for_the_state_of_the_others() -> None:
    waiting = Waiting()
    read = waiting.read()
    waiting.write("v/a", 1)
    waiting.write("stored", 1)
    assert not waiting.world.database.is_current()
    waiting.world.clock.run()
    assert read == []
    assert list(waiting.done) == ["stored 1"]
    waiting.link.wanted[0].callback(None)
    assert read == [None]
    waiting.settle()
    assert list(waiting.done) == ["stored 1", "v/a 1"]
    assert waiting.world.database.is_current()
    assert waiting.read() == [None]


def test_they_do_not_wait_longer_than_they_may() -> None:
    waiting = Waiting()
    read = waiting.read()
    waiting.write("v/a", 1)
    waiting.world.clock.advance(WAIT_S)
    assert read == [None]
    waiting.settle()
    assert list(waiting.done) == ["v/a 1"]


def test_rules_that_call_something_else_volatile_make_requests_wait_again() -> None:
    waiting = make_ready()
    waiting.world.rules.current = parse_rules(RULES.text.replace("true}}}}", '{"hz":5}}}}}'))
    waiting.world.rules_changed()
    assert waiting.read() == [None]
    waiting.world.rules.current = parse_rules(RULES.text.replace('"$a"', '"b"'))
    waiting.world.rules_changed()
    read = waiting.read()
    assert read == []
    waiting.link.wanted[1].callback(None)
    assert read == [None]


def test_what_depends_on_what_it_reads_is_done_with_the_lock_and_sent_before_its_end() -> None:
    waiting = make_ready()
    waiting.write("v/a", ADD)
    waiting.write("v/b", 2)
    assert waiting.world.get("v") == {"b": 2}
    waiting.link.give_lock()
    assert waiting.world.get("v") == {"a": 1, "b": 2}
    assert waiting.link.did == ['[[["v","b"],false,2],[["v","a"],false,1]]', "released"]


def test_what_is_written_later_does_not_wait_for_the_place_of_what_was_sent() -> None:
    waiting = make_ready()
    for number in (1, 2):
        waiting.write("v/a", number)
        waiting.world.clock.run()
    assert waiting.link.did == [f'[[["v","a"],false,{number}]]' for number in (1, 2)]


def test_a_writer_is_answered_when_its_change_has_its_place() -> None:
    waiting = make_ready()
    waiting.write("v/a", 1)
    waiting.world.clock.run()
    waiting.write("v/b", 2)
    assert not waiting.done
    waiting.link.places.pop(0).callback(None)
    assert list(waiting.done) == ["v/a 1"]
    waiting.world.clock.run()
    waiting.link.places.pop(0).errback(ConnectionError())  # others cannot be reached
    assert list(waiting.done) == ["v/a 1", "v/b 2"]
    waiting.write("v/c", 3)
    assert list(waiting.done) == ["v/a 1", "v/b 2", "v/c 3"]


def test_writes_at_the_places_of_one_that_waits_keep_their_order() -> None:
    waiting = make_ready()
    first = waiting.write("v/a", 5, NO_TAG)
    waiting.write("v/a/x", 6)
    waiting.write("v", None)
    assert not waiting.done
    waiting.link.give_lock()
    waiting.settle()
    assert list(waiting.done) == [first, "v/a/x 6", "v None"]
    assert not isinstance(waiting.done[first], Outcome)
    assert waiting.world.get("v") is None


def test_one_lock_serves_all_that_waits_and_the_next_is_for_what_came_later() -> None:
    waiting = make_ready()
    for _ in range(3):
        waiting.write("v/a", ADD)
    assert len(waiting.link.locks) == 1
    waiting.link.give_lock()
    assert waiting.world.get("v", "a") == 3
    assert not waiting.link.locks
    waiting.write("v/a", ADD)
    assert len(waiting.link.locks) == 1


def test_who_waits_too_long_goes_on_and_a_late_lock_is_released_at_once() -> None:
    waiting = make_ready()
    waiting.write("v/a", ADD)
    waiting.world.clock.advance(WAIT_S)
    assert waiting.world.get("v", "a") == 1
    waiting.link.did.clear()
    waiting.link.give_lock()
    assert waiting.link.did == ["released"]


@pytest.mark.parametrize("is_read_first", [False, True])
def test_a_process_that_was_stopped_asks_for_the_lock_once_more(*, is_read_first: bool) -> None:
    waiting = make_ready()
    waiting.write("v/a", ADD)
    waiting.world.clock.rightNow += WAIT_S + 10  # nothing of it was run
    if not is_read_first:
        waiting.world.clock.advance(0)
    waiting.link.give_lock()
    assert waiting.link.did == ["released"]
    assert waiting.world.get("v") is None
    waiting.link.give_lock()
    assert waiting.world.get("v") == {"a": 1}


def test_conditions_of_stored_places_need_no_lock() -> None:
    waiting = make_ready()
    waiting.write("stored", ADD)
    waiting.world.clock.run()
    assert list(waiting.done) == [f"stored {ADD}"]
    assert not waiting.link.locks


def test_a_database_that_is_closed_does_what_waits() -> None:
    waiting = Waiting()
    read = waiting.read()
    waiting.write("v/a", 1)
    waiting.world.database.close()
    assert read == [None]
    assert list(waiting.done) == ["v/a 1"]
