"""Hooks of a pattern of databases: a database has them from its first write on."""

from __future__ import annotations

import pathlib
from typing import Any

import pytest

from tests.database.world import NAME, World
from treedbd.database.first_hooks import FILE, FirstHook, FirstHooks
from treedbd.database.requests import QuotaExceeded, TooManyEvents
from treedbd.names import DatabaseName
from treedbd.store.changelog import events_of
from treedbd.store.cursors import read_cursors
from treedbd.store.hooks import KINDS, Hook, read_hooks
from treedbd.tree.edit import make_put
from treedbd.tree.pattern import parse_pattern
from treedbd.tree.types import Place


def make_first(on: str, *, project: str | None = None, instances: str = "*") -> FirstHook:
    hook = Hook("fn-a", parse_pattern(on), frozenset(KINDS), url="http://127.0.0.1/", trigger="t")
    return FirstHook(hook, project, instances)


def put(world: World, value: Any, *path: str) -> Any:
    return world.write(make_put(Place(path), value))


def paths_of(world: World) -> list[tuple[str, ...]]:
    """Return the places of all events in the log."""
    entries = world.database.read(lambda nodes: [*nodes.rows.stored.entries(0)])
    return [event.path for entry in entries for event in events_of(entry.content)]


def hooks_of(world: World) -> list[Hook]:
    return world.database.read(lambda nodes: read_hooks(nodes.rows.stored))


def test_the_first_write_is_captured_and_the_hook_is_stored_with_it() -> None:
    world = World()
    first = make_first("/orders/$id")
    world.runtime.first_hooks.replace([first])
    put(world, 1, "orders", "a")
    put(world, 2, "others", "a")
    put(world, 3, "orders", "b")
    assert paths_of(world) == [("orders", "a"), ("orders", "b")]
    assert hooks_of(world) == [first.hook]
    (cursor,) = world.database.read(lambda nodes: read_cursors(nodes.rows.stored))
    assert (cursor.name, cursor.sequence) == ("hook-fn-a", 0)


def test_a_database_that_was_written_before_has_none() -> None:
    world = World()
    put(world, 1, "orders", "a")
    world.runtime.first_hooks.replace([make_first("/orders/$id")])
    put(world, 2, "orders", "a")
    assert (paths_of(world), hooks_of(world)) == ([], [])


def test_a_first_write_that_is_refused_is_followed_by_one_that_has_them() -> None:
    world = World()
    world.runtime.first_hooks.replace([make_first("/orders/$id")])
    many = {str(number): 1 for number in range(world.runtime.hook_limits.events_per_write + 1)}
    assert isinstance(put(world, many, "orders"), TooManyEvents)
    assert hooks_of(world) == []
    put(world, 1, "orders", "a")
    assert (len(paths_of(world)), len(hooks_of(world))) == (1, 1)


def test_a_database_whose_only_write_was_refused_has_those_that_came_since() -> None:
    world = World(database_nodes=3)
    assert isinstance(put(world, {"a": 1, "b": 2, "c": 3, "d": 4}, "others"), QuotaExceeded)
    world.runtime.first_hooks.replace([make_first("/orders/$id")])
    put(world, 1, "orders", "a")
    assert paths_of(world) == [("orders", "a")]


def test_it_may_be_of_one_project_and_of_some_labels() -> None:
    for first, name, is_one in (
        (make_first("/a"), NAME, True),
        (make_first("/a", project="p"), NAME, True),
        (make_first("/a", project="other"), NAME, False),
        (make_first("/a", instances="eu--*"), NAME, False),
        (make_first("/a", instances="eu--*"), DatabaseName("p", "eu"), True),
    ):
        assert first.is_of(name) is is_one


def test_they_are_kept_in_a_file(tmp_path: pathlib.Path) -> None:
    firsts = [make_first("/orders/$id", project="p", instances="p*"), make_first("/")]
    FirstHooks(tmp_path).replace(firsts)
    kept = FirstHooks(tmp_path)
    assert kept.all() == firsts
    assert kept.of(DatabaseName("q")) == [firsts[1].hook]
    kept.replace([])
    assert FirstHooks(tmp_path).all() == []


def test_a_file_that_is_damaged_keeps_no_write_back(tmp_path: pathlib.Path) -> None:
    for damage in (b"{", b"[1]", b'[{"hook":{}}]', b'{"a":1}'):
        (tmp_path / FILE).write_bytes(damage)
        kept = FirstHooks(tmp_path)
        assert kept.of(NAME) == []
        with pytest.raises(ValueError, match="damaged"):
            kept.all()
