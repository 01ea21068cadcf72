"""What one database may hold: a write that would make it more is refused, and changes nothing."""

from __future__ import annotations

import pathlib
from collections.abc import Iterator
from typing import Any

import pytest

from tests.database.world import Disk, World
from treedbd.database.requests import (
    LargeBody,
    Outcome,
    QuotaExceeded,
    Unavailable,
)
from treedbd.store.engine import Engine, StoreFailed
from treedbd.store.memory import MemoryEngine
from treedbd.store.sqlite.engine import SqliteEngine
from treedbd.store.usage import Usage
from treedbd.tree.edit import Edit, make_patch, make_put, make_remove
from treedbd.tree.types import STORED, Change, Place

FULL = "x" * 100


class LimitedWorld(World):
    """Its database may have quotas; what is written are values of its root."""

    def put(self, key: str, value: Any) -> Any:
        return self.write(make_put(Place((key,)), value))

    def get(self, *path: str) -> Any:
        """Return a value as it is stored: an array is an object."""
        return self.database.read(lambda nodes: nodes.get(path))

    @property
    def usage(self) -> Usage:
        quotas = self.database.quotas
        assert quotas is not None
        return self.engine.read(quotas.read)


@pytest.fixture(params=["memory", "sqlite"])
def engine(request: pytest.FixtureRequest, tmp_path: pathlib.Path) -> Iterator[Engine]:
    if request.param == "memory":
        yield MemoryEngine()
        return
    made = SqliteEngine.create(tmp_path / "a.shelf", reserve_bytes=0)
    yield made
    made.close()


def test_without_quotas_nothing_is_counted() -> None:
    world = LimitedWorld(MemoryEngine())
    world.put("a", 1)
    assert world.database.quotas is None
    assert world.engine.read(lambda view: list(view.scan_keys(b"\x05", b"\xff"))) == []


def test_a_write_beyond_the_bytes_is_refused_and_changes_nothing(engine: Engine) -> None:
    world = LimitedWorld(engine, database_bytes=250)
    assert isinstance(world.put("a", FULL), Outcome)
    assert isinstance(world.put("b", FULL), Outcome)
    before = world.usage
    refusal = world.put("c", FULL)
    assert isinstance(refusal, QuotaExceeded)
    assert str(refusal) == (
        "The database p may hold 250 bytes (database_bytes), and this would be more. Remove data "
        "first, or let the operator raise the quota."
    )
    assert world.get() == {"a": FULL, "b": FULL}
    assert world.usage == before


def test_a_write_beyond_the_nodes_is_refused(engine: Engine) -> None:
    world = LimitedWorld(engine, database_nodes=3)
    assert isinstance(world.put("a", {"x": 1, "y": {"z": True}}), Outcome)
    assert isinstance(world.put("b", "s"), Outcome)
    refusal = world.put("c", False)
    assert isinstance(refusal, QuotaExceeded)
    assert "may hold 3 nodes (database_nodes), and this would be more" in str(refusal)
    assert isinstance(world.put("b", "another"), Outcome)


def test_what_shrinks_or_stays_is_allowed_beyond_a_quota_that_was_lowered(engine: Engine) -> None:
    world = LimitedWorld(engine, database_nodes=100, database_bytes=10_000)
    world.put("a", {f"k{number}": "x" * 20 for number in range(50)})
    world.put("b", FULL)
    lowered = LimitedWorld(engine, database_nodes=2, database_bytes=100)
    assert isinstance(lowered.put("c", 1), QuotaExceeded)
    assert isinstance(lowered.put("b", FULL.upper()), Outcome)
    assert isinstance(lowered.put("b", "short"), Outcome)
    assert isinstance(lowered.write(make_remove(Place(("a", "k7")))), Outcome)
    patch = make_patch((), {"a/k8": None, "b": "longer"})
    assert isinstance(lowered.write(patch), Outcome)
    assert isinstance(lowered.write(make_remove(Place(()))), Outcome)
    assert lowered.usage.size == 0
    assert isinstance(lowered.put("c", 1), Outcome)


def test_a_removal_is_never_refused_though_it_takes_more_bytes_to_print(engine: Engine) -> None:
    world = LimitedWorld(engine, database_bytes=100)
    world.put("a", [1, 2, 3])  # which is printed without keys
    lowered = LimitedWorld(engine, database_bytes=1)
    assert isinstance(lowered.write(make_remove(Place(("a", "1")))), Outcome)
    assert lowered.get() == {"a": {"0": 1, "2": 3}}


def test_a_patch_is_judged_as_a_whole(engine: Engine) -> None:
    world = LimitedWorld(engine, database_nodes=2)
    assert isinstance(world.write(make_patch((), {"a": 1, "b": 2, "c": 3})), QuotaExceeded)
    assert world.get() is None
    assert isinstance(world.write(make_patch((), {"a": 1, "b": 2})), Outcome)
    assert isinstance(world.write(make_patch((), {"a": None, "c": 3})), Outcome)


def test_priorities_take_bytes_and_are_no_nodes(engine: Engine) -> None:
    world = LimitedWorld(engine, database_nodes=1, database_bytes=100)
    assert isinstance(world.put("a", {".value": 1, ".priority": 2}), Outcome)
    assert world.usage.nodes == 1
    priority = make_put(Place(("a",), is_priority=True), FULL)
    assert isinstance(world.write(priority), QuotaExceeded)


def test_a_refused_write_leaves_the_others_of_its_batch_alone(engine: Engine) -> None:
    world = LimitedWorld(engine, database_bytes=250)
    edits = [make_put(Place((key,)), FULL) for key in "abcd"]
    edits.append(make_remove(Place(("a",))))
    edits.append(make_put(Place(("e",)), FULL))
    done = [world.begin(edit) for edit in edits]
    world.clock.run()
    refused = [isinstance(world.wait(each), QuotaExceeded) for each in done]
    assert refused == [False, False, True, True, False, False]
    assert set(world.get()) == {"b", "e"}


def large_body(json: bytes) -> LargeBody:
    return LargeBody(lambda: iter([json]), len(json), 10**7, 10**7)


@pytest.mark.parametrize("method", ["put", "patch"])
def test_a_large_write_is_judged_too(engine: Engine, method: Any) -> None:
    world = LimitedWorld(engine, database_nodes=1000)
    place = Place(("a",))
    target = Edit(method, place, None, (Change(place, STORED),))

    def write(count: int) -> Any:
        members = ",".join(f'"k{number}":{number}' for number in range(count))
        return world.write(target, large=large_body(f"{{{members}}}".encode()))

    assert isinstance(write(1001), QuotaExceeded)
    assert world.get() is None
    assert isinstance(write(1000), Outcome)
    assert world.usage.nodes == 1000
    assert isinstance(world.put("b", 1), QuotaExceeded)


def test_data_that_was_there_before_its_quota_is_counted_in_the_background(
    engine: Engine,
) -> None:
    before = LimitedWorld(engine)
    before.put("a", {f"k{number}": "x" * 20 for number in range(500)})
    world = LimitedWorld(engine, database_nodes=10)
    assert not world.usage.is_complete
    assert isinstance(world.put("b", 1), Outcome)  # not counted yet, so not refused
    assert (world.usage.is_complete, world.usage.nodes) == (True, 501)
    assert isinstance(world.put("c", 1), QuotaExceeded)


def test_what_was_written_while_there_was_no_quota_is_counted(engine: Engine) -> None:
    LimitedWorld(engine, database_nodes=10).put("a", 1)
    LimitedWorld(engine).put("b", {"c": 1, "d": 2})
    world = LimitedWorld(engine, database_nodes=3)
    world.put("a", 2)
    assert world.usage.nodes == 3
    assert isinstance(world.put("e", 1), QuotaExceeded)


def test_the_sums_are_of_what_is_durable() -> None:
    world = LimitedWorld(MemoryEngine(), disk=Disk(), database_nodes=2)
    done = world.begin(make_put(Place(("a",)), {"b": 1, "c": 2}))
    world.clock.run()
    world.disk.fail(StoreFailed("The disk has failed."))
    assert isinstance(world.wait(done), Unavailable)
    while world.disk.waiting:
        world.disk.finish()
        world.clock.run()
    assert world.usage.nodes == 0


def test_the_sums_are_there_after_the_file_was_opened_again(tmp_path: pathlib.Path) -> None:
    file = tmp_path / "a.shelf"
    engine = SqliteEngine.create(file, reserve_bytes=0)
    LimitedWorld(engine, database_nodes=2).put("a", {"b": 1, "c": 2})
    engine.close()
    engine = SqliteEngine.open(file)
    world = LimitedWorld(engine, database_nodes=2)
    assert world.usage.nodes == 2
    assert isinstance(world.put("d", 1), QuotaExceeded)
    engine.close()


def test_a_refusal_does_not_say_how_long_the_value_is_that_would_be_replaced(
    engine: Engine,
) -> None:
    world = LimitedWorld(engine, database_bytes=1000)
    refusals = set()
    for there in (None, 1, "x" * 30):
        world.put("secret", there)
        refusals.add(str(world.put("secret", "x" * 2000)))
    assert len(refusals) == 1
