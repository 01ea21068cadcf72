"""Entries of one database that are applied to another: the same tree, the same history."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from twisted.internet.defer import Deferred

from tests.database.world import World
from tests.examples import examples
from treedbd.database.copied_entries import (
    LONG_BYTES,
    ApplyEntry,
    CreateDatabase,
    ReplaceDisconnectRows,
    read_end,
    read_owners,
    replay,
)
from treedbd.database.log_reader import LogReader
from treedbd.database.requests import EntryRefused, WrittenElsewhere
from treedbd.store.changelog import MAX_DECODED_NODES
from treedbd.store.disconnect_rows import DisconnectRow
from treedbd.store.engine import LogEntry
from treedbd.store.indexes import DISCONNECT_FIRST
from treedbd.store.rows import seal
from treedbd.tree.edit import make_patch, make_put
from treedbd.tree.types import ROOT, Place


def entries_of(world: World, after: int = 0) -> list[LogEntry]:
    return world.database.read(lambda nodes: list(nodes.rows.stored.entries(after)))


def rows_of(world: World) -> Any:
    return world.database.read(lambda nodes: list(nodes.rows.stored.scan(b"", b"\x06c")))


def standby() -> World:
    world = World()
    world.runtime.gate.refusal = "This is a standby of https://first: write there."
    return world


def copy(source: World, target: World) -> None:
    for entry in entries_of(source, read_end(target.database).sequence):
        world_write(target, ApplyEntry(entry))


def world_write(world: World, task: Any) -> Any:
    return done(world, replay(world.database, task))


def done(world: World, waiting: Deferred[Any]) -> Any:
    result = world.wait(waiting)
    if isinstance(result, Exception):
        raise result
    return result


LEAVES = st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=3)
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.dictionaries(st.sampled_from(["a", "b", "0", "1"]), inner, max_size=3),
    max_leaves=6,
)
PATHS = st.lists(st.sampled_from(["a", "b", "0"]), max_size=3).map(tuple)


@settings(max_examples=examples(40), deadline=None)
@given(writes=st.lists(st.tuples(PATHS, VALUES, st.booleans()), max_size=12))
def test_the_copy_has_the_tree_and_the_history_of_its_source(writes: list[Any]) -> None:
    source, target = World(), standby()
    for path, value, is_patch in writes:
        if is_patch and isinstance(value, dict):
            source.write(make_patch(path, value))
        else:
            source.write(make_put(Place(path), value))
    copy(source, target)
    assert rows_of(target) == rows_of(source)
    assert entries_of(target) == entries_of(source)
    assert read_end(target.database) == read_end(source.database)


@pytest.mark.parametrize(
    "body",
    [
        {str(at): {"n": at} for at in range(MAX_DECODED_NODES)},
        {"text": "x" * (LONG_BYTES + 1), "more": [1, 2]},
        "x" * (LONG_BYTES + 1),
    ],
)
@pytest.mark.parametrize("is_patch", [False, True])
def test_a_long_entry_is_applied_like_a_short_one(body: Any, is_patch: bool) -> None:
    source, target = World(), standby()
    began = LogReader(source.database, source.runtime, "whole", is_whole=True).begin()
    done(source, Deferred.fromCoroutine(began))
    source.write(make_put(Place(("a",)), {"old": 1}))
    edit = make_put(Place(("a",)), body)
    if is_patch and isinstance(body, dict):
        edit = make_patch(("a",), body)
    source.write(edit)
    source.write(make_put(Place(("b",)), 2))
    copy(source, target)
    assert target.get() == source.get()  # how rows are cut may differ
    assert entries_of(target)[-1] == entries_of(source)[-1]


def test_an_entry_that_does_not_follow_is_refused_and_the_others_are_applied() -> None:
    source, target = World(), standby()
    for number in range(3):
        source.write(make_put(Place(("n",)), number))
    first, second, third = entries_of(source)
    world_write(target, ApplyEntry(first))
    refused = replay(target.database, ApplyEntry(third))
    applied = replay(target.database, ApplyEntry(second))
    with pytest.raises(EntryRefused, match="does not follow"):
        done(target, refused)
    assert done(target, applied).commit.position.sequence == 2
    for content in (b"{}", b"\xff", second.content[:-1], third.content.replace(b'"sent"', b'"s"')):
        with pytest.raises(EntryRefused):
            world_write(target, ApplyEntry(third._replace(content=content)))
    world_write(target, ApplyEntry(third))
    assert rows_of(target) == rows_of(source)


def test_a_standby_does_what_it_has_received_and_refuses_its_clients() -> None:
    target = standby()
    for edit in (make_put(Place(("a",)), 1), make_put(Place(ROOT), None)):
        refusal = target.write(edit)
        assert isinstance(refusal, WrittenElsewhere)
        assert "https://first" in str(refusal)
    world_write(target, CreateDatabase())
    target.runtime.gate.refusal = None
    assert target.write(make_put(Place(("a",)), 1)).commit is not None


def test_rows_of_sessions_are_replaced_and_nothing_else() -> None:
    target = standby()
    key = DISCONNECT_FIRST + b"0123/abcd/00000000"
    row = DisconnectRow(key, seal(key, b"{}"))
    world_write(target, ReplaceDisconnectRows([row]))
    assert read_owners(target.database) == ["0123"]
    with pytest.raises(EntryRefused):
        world_write(target, ReplaceDisconnectRows([DisconnectRow(b"\x01a", b"")]))
    assert read_owners(target.database) == ["0123"]
    world_write(target, ReplaceDisconnectRows([]))
    assert read_owners(target.database) == []
