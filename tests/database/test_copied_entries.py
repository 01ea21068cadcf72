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
    ReplaceHooks,
    read_end,
    read_owners,
    replay,
)
from treedbd.database.event_capture import ChangeHooks
from treedbd.database.log_reader import LogReader
from treedbd.database.requests import EntryRefused, WrittenElsewhere
from treedbd.limits import MAX_CURSORS
from treedbd.store.changelog import MAX_DECODED_NODES, events_of
from treedbd.store.cursors import read_cursors
from treedbd.store.disconnect_rows import DisconnectRow
from treedbd.store.engine import LogEntry
from treedbd.store.hooks import HOOK_FIRST, Hook, hook_rows, read_hooks
from treedbd.store.indexes import DISCONNECT_FIRST
from treedbd.store.rows import seal
from treedbd.tree.edit import make_patch, make_put, make_remove
from treedbd.tree.pattern import parse_pattern
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


# Hooks.

HOOK = Hook("a", parse_pattern("/orders/$id"), frozenset({"created"}), "https://a.example.com/")


def put_hook(world: World, *hooks: Hook) -> None:
    task = ChangeHooks(lambda _: [*hooks], b"stamp", 5)
    world.write(make_remove(Place(ROOT)), task=task)


def hooks_to(world: World, source: World, reached: dict[str, int]) -> None:
    rows = source.database.read(lambda nodes: hook_rows(nodes.rows.stored))
    world_write(world, ReplaceHooks(rows, reached, 7))


def cursors_of(world: World) -> dict[str, int]:
    cursors = world.database.read(lambda nodes: read_cursors(nodes.rows.stored))
    return {each.name: each.sequence for each in cursors}


def test_hooks_come_with_how_far_their_events_are_done() -> None:
    first, second = World(), standby()
    put_hook(first, HOOK)
    for number in range(5):
        first.write(make_put(Place(("orders", str(number))), number))
    copy(first, second)
    for done in (2, 4, 0):
        hooks_to(second, first, {"hook-a": done, "hook-configured": 5})
        assert cursors_of(second) == {"hook-a": done, "hook-configured": 5}
    assert second.database.hooks() == (HOOK,)
    assert [len(events_of(each.content)) for each in entries_of(second)] == [1] * 5
    second.runtime.gate.refusal = None  # it is promoted, and has the hooks from then on
    second.write(make_put(Place(("orders", "x")), 1))
    assert len(events_of(entries_of(second)[-1].content)) == 1
    assert cursors_of(second)["hook-a"] == 0


def test_hooks_that_are_gone_at_the_first_go_with_their_cursors() -> None:
    first, second = World(), standby()
    put_hook(first, HOOK)
    hooks_to(second, first, {"hook-a": 0})
    put_hook(first)
    hooks_to(second, first, {})
    assert (second.database.hooks(), cursors_of(second)) == ((), {})
    hooks_to(second, World(), {})
    assert second.database.read(lambda nodes: hook_rows(nodes.rows.stored)) == []


def test_where_the_log_begins_later_a_hook_begins_there() -> None:
    first, second = World(), World(retain_events=1)
    put_hook(first, HOOK)
    for number in range(300):
        first.write(make_put(Place(("orders", str(number))), number))
    copy(first, second)
    earliest = entries_of(second)[0].sequence
    assert earliest > 3
    hooks_to(second, first, {"hook-a": 3})
    assert cursors_of(second) == {"hook-a": earliest}
    hooks_to(second, first, {"hook-a": 10_000})
    assert cursors_of(second) == {"hook-a": 300}


@pytest.mark.parametrize(
    ("rows", "reached"),
    [
        ([(HOOK_FIRST + b"z", b"")], {}),
        ([(HOOK_FIRST, b"not sealed")], {}),
        ([], {"archive": 1}),
        ([], {"hook-A": 1}),
        ([], {f"hook-{number}": 1 for number in range(MAX_CURSORS + 1)}),
    ],
)
def test_what_is_not_of_hooks_is_refused(rows: Any, reached: dict[str, int]) -> None:
    world = standby()
    with pytest.raises(EntryRefused):
        world_write(world, ReplaceHooks(rows, reached, 7))
    assert cursors_of(world) == {}
    assert world.database.read(lambda nodes: read_hooks(nodes.rows.stored)) == []
