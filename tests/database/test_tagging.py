"""Tags of writes where a value is so large that it has none."""

from __future__ import annotations

import os
from typing import Any

import pytest
from twisted.internet.task import Clock

from tests.database.world import bare_rulebook, run_at_once
from treedbd.database import tagging
from treedbd.database.database import Database
from treedbd.database.platform import Platform
from treedbd.database.question import (
    Caller,
    Condition,
    ConditionFailed,
    Outcome,
    TooLarge,
    Write,
)
from treedbd.store.memory import MemoryMapping
from treedbd.tree.canonical import NULL_TAG, parse_tags, tag
from treedbd.tree.edit import Edit, make_patch, make_put, make_remove
from treedbd.tree.path import Place
from treedbd.tree.value import plain

MOST = 10_000
LARGE = {f"k{at:03}": "x" * 20 for at in range(1000)}
BIG = Place(("big",))
PRIORITY = Place(("big",), of_priority=True)
ANY = parse_tags("*")


class Desk:
    """A database with one value above the bound, and one write after the other."""

    def __init__(self) -> None:
        self.clock = Clock()
        platform = Platform(clock=self.clock, run_commit=run_at_once, entropy=os.urandom)
        rulebook = bare_rulebook(run_at_once)
        self.database = Database(MemoryMapping(), rulebook, platform, 1000)
        self.write(make_put(BIG, LARGE))

    def write(self, edit: Edit, condition: Condition | None = None, **wanted: bool) -> Any:
        """Return the outcome of a write, or what it was refused with."""
        got: list[Any] = []
        caller = Caller(None, is_admin=True)
        self.database.write(Write(edit, 0, caller, condition, **wanted)).addBoth(got.append)
        self.clock.advance(0)
        return got[0] if isinstance(got[0], Outcome) else got[0].value

    def asked(self, edit: Edit, condition: Condition | None = None) -> Any:
        """Write, asking for the tag."""
        return self.write(edit, condition, wants_tag=True, must_tag=True)

    def compared(self, edit: Edit, condition: Condition) -> Any:
        """Write under a condition."""
        return self.write(edit, condition, wants_tag=True)

    @property
    def big(self) -> Any:
        return self.database.read(lambda nodes: plain(nodes.get(BIG.path)))


@pytest.fixture
def desk(monkeypatch: pytest.MonkeyPatch) -> Desk:
    monkeypatch.setattr(tagging, "MOST_TAGGED_BYTES", MOST)
    return Desk()


def test_the_tag_of_a_small_value_is_given_in_place_of_a_large_one(desk: Desk) -> None:
    assert desk.asked(make_put(BIG, [1.0, {"b": 2, "a": None}])).tag == tag([1, {"b": 2}])
    desk.write(make_put(BIG, LARGE))
    assert desk.asked(make_remove(BIG)).tag == NULL_TAG
    assert desk.big is None


def test_a_tag_that_must_be_told_and_is_none_refuses_a_write_before_it_is_done(desk: Desk) -> None:
    assert isinstance(desk.asked(make_patch(BIG.path, {"k000": 1})), TooLarge)
    assert desk.big == LARGE
    assert isinstance(desk.asked(make_put(Place(("other",)), LARGE)), TooLarge)
    assert desk.database.read(lambda nodes: nodes.peek(("other",))) is None


def test_anything_there_is_condition_enough_and_what_is_too_large_is_told_no_tag(
    desk: Desk,
) -> None:
    condition = Condition(BIG, ANY)
    outcome = desk.compared(make_patch(BIG.path, {"k000": 1}), condition)
    assert outcome.tag is None
    assert desk.big == {**LARGE, "k000": 1}
    assert desk.compared(make_put(BIG, LARGE), condition).tag is None
    patch = make_patch(BIG.path, dict.fromkeys(list(LARGE)[1:]))
    assert desk.compared(patch, condition).tag == tag({"k000": "x" * 20})


def test_a_tag_is_not_compared_with_what_has_none(desk: Desk) -> None:
    condition = Condition(BIG, parse_tags('"abc"'))
    assert isinstance(desk.compared(make_remove(BIG), condition), TooLarge)
    assert desk.big == LARGE


def test_a_mismatch_tells_what_is_there(desk: Desk) -> None:
    desk.write(make_put(BIG, {"a": {".value": 1.0, ".priority": 2}}))
    refusal = desk.compared(make_remove(BIG), Condition(BIG, parse_tags('"abc"')))
    assert isinstance(refusal, ConditionFailed)
    assert (refusal.current, refusal.tag) == ({"a": 1}, tag({"a": 1}))


def test_the_tag_of_a_priority_is_of_nothing_else(desk: Desk) -> None:
    assert desk.asked(make_put(PRIORITY, 5)).tag == tag(5)
    assert desk.compared(make_put(PRIORITY, "p"), Condition(PRIORITY, parse_tags(tag(5)))).tag == (
        tag("p")
    )
    assert desk.compared(make_remove(PRIORITY), Condition(PRIORITY, ANY)).tag == NULL_TAG
    assert isinstance(
        desk.compared(make_put(PRIORITY, 1), Condition(PRIORITY, ANY)), ConditionFailed
    )
    nowhere = Place(("nowhere",), of_priority=True)
    assert desk.asked(make_put(nowhere, 5)).tag == NULL_TAG
