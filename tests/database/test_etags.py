"""Tags of writes, also of large values."""

from __future__ import annotations

from typing import Any

import pytest

from tests.database.world import World
from treedbd.database import apply as etags
from treedbd.database.requests import Condition, ConditionFailed
from treedbd.loop import in_steps
from treedbd.rules.context import KeptReads, ReadPool
from treedbd.tree.edit import Edit, make_patch, make_put, make_remove
from treedbd.tree.hashes import NULL_ETAG, etag, parse_etags
from treedbd.tree.types import Json, Place

SHOWN_BYTES = 10_000
LARGE: dict[str, Json] = {f"k{at:03}": "x" * 20 for at in range(1000)}
BIG = Place(("big",))
PRIORITY = Place(("big",), is_priority=True)
ANY = parse_etags("*")


class LargeWorld(World):
    """It has one value that is too large for a 412."""

    def __init__(self) -> None:
        super().__init__()
        self.write(make_put(BIG, LARGE))

    def write_with_etag(self, edit: Edit, condition: Condition | None = None) -> Any:
        """Do a write that returns a tag."""
        return self.write(edit, condition, wants_etag=True)

    @property
    def big(self) -> Any:
        return self.get(*BIG.path)


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> LargeWorld:
    monkeypatch.setattr(etags, "MAX_SHOWN_BYTES", SHOWN_BYTES)
    return LargeWorld()


def test_a_write_returns_the_tag_of_a_value_of_any_size(world: LargeWorld) -> None:
    assert world.write_with_etag(make_put(BIG, [1.0, {"b": 2, "a": None}])).etag == etag(
        [1, {"b": 2}]
    )
    assert world.write_with_etag(make_put(BIG, LARGE)).etag == etag(LARGE)
    changed: dict[str, Json] = {**LARGE, "k000": 1}
    assert world.write_with_etag(make_patch(BIG.path, {"k000": 1})).etag == etag(changed)
    assert world.write_with_etag(make_remove(BIG)).etag == NULL_ETAG
    assert world.big is None


def test_a_condition_on_a_large_value_is_checked(world: LargeWorld) -> None:
    patch = make_patch(BIG.path, {"k000": 1})
    refusal = world.write_with_etag(patch, Condition(BIG, parse_etags('"abc"')))
    assert isinstance(refusal, ConditionFailed)
    assert (refusal.current, refusal.is_shown, refusal.tag) == (None, False, etag(LARGE))
    assert world.big == LARGE
    outcome = world.write_with_etag(patch, Condition(BIG, parse_etags(etag(LARGE))))
    assert outcome.etag == etag({**LARGE, "k000": 1})
    assert world.write_with_etag(make_put(BIG, LARGE), Condition(BIG, ANY)).etag == etag(LARGE)


def test_the_tag_of_a_large_value_is_computed_in_steps(world: LargeWorld) -> None:
    def check() -> None:
        condition = Condition(BIG, parse_etags(etag(LARGE)))
        kept = KeptReads(ReadPool())
        world.database.read(lambda nodes: etags.check_condition(nodes, condition, kept))

    assert len(list(in_steps(check))) > len(LARGE)


def test_a_mismatch_shows_the_current_value_and_its_tag(world: LargeWorld) -> None:
    world.write(make_put(BIG, {"a": {".value": 1.0, ".priority": 2}}))
    refusal = world.write_with_etag(make_remove(BIG), Condition(BIG, parse_etags('"abc"')))
    assert isinstance(refusal, ConditionFailed)
    assert (refusal.current, refusal.tag) == ({"a": 1}, etag({"a": 1}))


def test_the_tag_of_a_priority_depends_on_the_priority_alone(world: LargeWorld) -> None:
    assert world.write_with_etag(make_put(PRIORITY, 5)).etag == etag(5)
    is_five = Condition(PRIORITY, parse_etags(etag(5)))
    assert world.write_with_etag(make_put(PRIORITY, "p"), is_five).etag == etag("p")
    assert world.write_with_etag(make_remove(PRIORITY), Condition(PRIORITY, ANY)).etag == NULL_ETAG
    refusal = world.write_with_etag(make_put(PRIORITY, 1), Condition(PRIORITY, ANY))
    assert isinstance(refusal, ConditionFailed)
    nowhere = Place(("nowhere",), is_priority=True)
    assert world.write_with_etag(make_put(nowhere, 5)).etag == NULL_ETAG
