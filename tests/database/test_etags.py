"""Tags of writes, also of values that are too large to have one."""

from __future__ import annotations

import os
from typing import Any

import pytest
from twisted.internet.task import Clock

from tests.database.world import make_database, run_at_once
from treedbd.database import etags
from treedbd.database.errors import ConditionFailed, TooLarge
from treedbd.database.requests import Caller, Condition, Outcome, Write
from treedbd.database.runtime import Runtime
from treedbd.store.memory import MemoryEngine
from treedbd.tree.edit import Edit, make_patch, make_put, make_remove
from treedbd.tree.etag import NULL_ETAG, etag, parse_etags
from treedbd.tree.types import Json, Place
from treedbd.tree.value import plain

TAGGED_BYTES = 10_000
LARGE: dict[str, Json] = {f"k{at:03}": "x" * 20 for at in range(1000)}
BIG = Place(("big",))
PRIORITY = Place(("big",), is_priority=True)
ANY = parse_etags("*")


class World:
    """A database with one value that is too large for a tag; writes are done one by one."""

    def __init__(self) -> None:
        self.clock = Clock()
        runtime = Runtime(clock=self.clock, run_in_thread=run_at_once, entropy=os.urandom)
        self.database = make_database(MemoryEngine(), runtime)
        self.write(make_put(BIG, LARGE))

    def write(self, edit: Edit, condition: Condition | None = None, **wanted: bool) -> Any:
        """Return the outcome of a write, or the error that refused it."""
        results: list[Any] = []
        caller = Caller(None, is_admin=True)
        self.database.write(Write(edit, 0, caller, condition, **wanted)).addBoth(results.append)
        self.clock.advance(0)
        return results[0] if isinstance(results[0], Outcome) else results[0].value

    def write_with_etag(self, edit: Edit, condition: Condition | None = None) -> Any:
        """Do a write that must return a tag."""
        return self.write(edit, condition, wants_etag=True, must_have_etag=True)

    def write_if(self, edit: Edit, condition: Condition) -> Any:
        """Do a write under a condition; it returns a tag if there is one."""
        return self.write(edit, condition, wants_etag=True)

    @property
    def big(self) -> Any:
        return self.database.read(lambda nodes: plain(nodes.get(BIG.path)))


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setattr(etags, "MAX_TAGGED_BYTES", TAGGED_BYTES)
    return World()


def test_a_small_value_that_replaces_a_large_one_has_a_tag(world: World) -> None:
    assert world.write_with_etag(make_put(BIG, [1.0, {"b": 2, "a": None}])).etag == etag(
        [1, {"b": 2}]
    )
    world.write(make_put(BIG, LARGE))
    assert world.write_with_etag(make_remove(BIG)).etag == NULL_ETAG
    assert world.big is None


def test_a_write_that_must_have_a_tag_is_refused_if_there_can_be_none(world: World) -> None:
    assert isinstance(world.write_with_etag(make_patch(BIG.path, {"k000": 1})), TooLarge)
    assert world.big == LARGE
    assert isinstance(world.write_with_etag(make_put(Place(("other",)), LARGE)), TooLarge)
    assert world.database.read(lambda nodes: nodes.peek(("other",))) is None


def test_a_star_matches_a_large_value_and_the_write_returns_no_tag(world: World) -> None:
    condition = Condition(BIG, ANY)
    outcome = world.write_if(make_patch(BIG.path, {"k000": 1}), condition)
    assert outcome.etag is None
    assert world.big == {**LARGE, "k000": 1}
    assert world.write_if(make_put(BIG, LARGE), condition).etag is None
    patch = make_patch(BIG.path, dict.fromkeys(list(LARGE)[1:]))
    assert world.write_if(patch, condition).etag == etag({"k000": "x" * 20})


def test_a_condition_on_a_value_too_large_for_a_tag_is_refused(world: World) -> None:
    condition = Condition(BIG, parse_etags('"abc"'))
    assert isinstance(world.write_if(make_remove(BIG), condition), TooLarge)
    assert world.big == LARGE


def test_a_mismatch_shows_the_current_value_and_its_tag(world: World) -> None:
    world.write(make_put(BIG, {"a": {".value": 1.0, ".priority": 2}}))
    refusal = world.write_if(make_remove(BIG), Condition(BIG, parse_etags('"abc"')))
    assert isinstance(refusal, ConditionFailed)
    assert (refusal.current, refusal.tag) == ({"a": 1}, etag({"a": 1}))


def test_the_tag_of_a_priority_depends_on_the_priority_alone(world: World) -> None:
    assert world.write_with_etag(make_put(PRIORITY, 5)).etag == etag(5)
    is_five = Condition(PRIORITY, parse_etags(etag(5)))
    assert world.write_if(make_put(PRIORITY, "p"), is_five).etag == etag("p")
    assert world.write_if(make_remove(PRIORITY), Condition(PRIORITY, ANY)).etag == NULL_ETAG
    refusal = world.write_if(make_put(PRIORITY, 1), Condition(PRIORITY, ANY))
    assert isinstance(refusal, ConditionFailed)
    nowhere = Place(("nowhere",), is_priority=True)
    assert world.write_with_etag(make_put(nowhere, 5)).etag == NULL_ETAG
