"""Entries of a log applied to a file: what is there afterwards is what their edits make."""

from __future__ import annotations

import contextlib
import os
import pathlib
from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.archive.restored import tree_in
from tests.examples import examples
from treedbd.archive import redo
from treedbd.archive.redo import CannotRedo, NetChanges, Redo
from treedbd.limits import MIB
from treedbd.store import changelog
from treedbd.store.disconnect_rows import DisconnectEntry, add_entry, list_owners
from treedbd.store.engine import LogEntry
from treedbd.store.indexes import (
    ChildIndex,
    IndexState,
    IndexStates,
    make_writer,
    order_named,
    write_states,
)
from treedbd.store.memory import MemoryEngine
from treedbd.store.nodes import Nodes
from treedbd.store.sqlite.engine import SqliteEngine
from treedbd.store.verify import verify, verify_indexes
from treedbd.tree.edit import Edit, apply, make_patch, make_put
from treedbd.tree.types import Json, Place, Value

INDEX = ChildIndex(("a",), order_named("b"))
KEYS = st.sampled_from(["a", "b", "c", "1"])
PATHS = st.lists(KEYS, max_size=4).map(tuple)
LEAVES = st.one_of(st.integers(0, 9), st.sampled_from(["x", "long" * 2000]), st.booleans())
PRIORITIES = st.one_of(st.integers(0, 3), st.none())


def containers(inner: st.SearchStrategy[Json]) -> st.SearchStrategy[Json]:
    with_priority = st.builds(
        lambda value, priority: {**value, ".priority": priority},
        children := (st.dictionaries(KEYS, inner, max_size=3)),
        PRIORITIES,
    )
    leaf = st.builds(
        lambda value, priority: {".value": value, ".priority": priority}, LEAVES, PRIORITIES
    )
    return st.one_of(children, children, children, with_priority, leaf)


VALUES = st.one_of(st.none(), st.recursive(LEAVES, containers, max_leaves=5))
PUTS = st.builds(lambda path, value: make_put(Place(path), value), PATHS, VALUES)
PRIORITY_PUTS = st.builds(lambda path, value: make_put(Place(path, True), value), PATHS, PRIORITIES)
PATCHES = st.builds(make_patch, PATHS, st.dictionaries(KEYS, VALUES, max_size=3))
EDITS = st.one_of(PUTS, PUTS, PUTS, PATCHES, PRIORITY_PUTS)


def entry_of(sequence: int, edit: Edit) -> LogEntry:
    content = changelog.encode(edit, 1000 + sequence, 10 * MIB)
    return LogEntry(sequence, os.urandom(16), content)


def entries_of(edits: Iterable[Edit]) -> list[LogEntry]:
    return [entry_of(number, edit) for number, edit in enumerate(edits, 1)]


def log_in(file: pathlib.Path) -> list[LogEntry]:
    engine = SqliteEngine.open(file)
    found = engine.read(lambda view: list(view.entries(0)))
    engine.close()
    return found


def put(path: str, value: Json, *, is_priority: bool = False) -> Edit:
    return make_put(Place(tuple(filter(None, path.split("/"))), is_priority), value)


def check_together(edits: Iterable[Edit | None], row_bytes: int = 4096) -> None:
    """Apply edits together, and all that is kept at each None; compare with one by one."""
    transaction = MemoryEngine().begin()
    write_states(transaction, IndexStates((IndexState(INDEX, "built"),)))
    changes = NetChanges(make_writer(transaction, [INDEX], row_bytes), set())
    model: Value = None
    for edit in edits:
        if edit is None:
            changes.flush()
            continue
        model = apply(model, edit.changes)
        content = changelog.encode(edit, 1)
        if redo.sets_priority(content):
            changes.add_alone(edit.changes)
        else:
            changes.add(edit.changes, len(content))
    changes.finish()
    assert Nodes(transaction).get(()) == model
    assert [*verify(transaction), *verify_indexes(transaction)] == []


@settings(max_examples=examples(400))
@given(st.lists(st.one_of(EDITS, EDITS, EDITS, st.none()), max_size=25), st.integers(10, 400))
def test_what_edits_change_together_is_what_they_change_one_by_one(
    edits: list[Edit | None], row_bytes: int
) -> None:
    check_together(edits, row_bytes)


@pytest.mark.parametrize(
    "edits",
    [
        [put("a", 5), None, put("a/b", 1), put("a/b", None)],
        [put("a", 5), None, put("a/b/c", 1), put("a/b", None), put("a/d", None)],
        [put("a", {"b": 1, ".priority": 2}), put("a/b", None), put("a/c", 1)],
        [put("a", {".value": 1, ".priority": 2}), put("a/b", 1), put("a/b", None), put("a/c", 1)],
        [put("a/b", 1), put("a", 1, is_priority=True), put("a/b", None), put("a/c", 1)],
        [
            *(put("a/b", 1), put("a/c", 1), put("a/c", None), put("a", 1, is_priority=True)),
            *(put("a/b", None), put("a/d", 1)),
        ],
        [put("a/b", 1), None, put("a", None), put("a/c", 1)],
        [put("a", {"b": 1, "c": 2}), put("a/b", None), put("a/b/d", 3), put("a/c", None)],
        [put("a", {"b": 1}), put("a/b", None), put("a/c", None), put("a", 7)],
        [put("a", {"b": "x" * 20_000}), put("a/c", 1), put("a/b", None), put("", {"z": 1})],
        [put("a/b", 1), put("a/c", None), put("", None), put("a/b/c", 2)],
    ],
)
def test_edits_whose_order_matters_have_the_effect_of_their_order(
    edits: list[Edit | None],
) -> None:
    check_together(edits)


@settings(max_examples=examples(60), deadline=None)
@given(edits=st.lists(EDITS, min_size=1, max_size=40), batch=st.integers(1, 10))
def test_a_file_goes_on_with_the_entries(
    tmp_path_factory: pytest.TempPathFactory, edits: list[Edit], batch: int
) -> None:
    file = tmp_path_factory.mktemp("redo") / "x.shelf"
    entries = entries_of(edits)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(redo, "BATCH_ENTRIES", batch)
        for part in (entries[: len(entries) // 2], entries[len(entries) // 2 :]):
            with Redo(file) as target:
                for entry in part:
                    target.apply(entry)
    model: Value = None
    for edit in edits:
        model = apply(model, edit.changes)
    assert tree_in(file) == model
    assert log_in(file) == entries


def test_an_entry_that_does_not_follow_or_has_no_body_is_an_error(tmp_path: pathlib.Path) -> None:
    edit = make_put(Place(("a",)), 1)
    left_out = LogEntry(2, b"x" * 16, changelog.without_body(entry_of(2, edit).content))
    wrong = [entry_of(3, edit), entry_of(1, edit), left_out, LogEntry(2, b"", b"{}")]
    wrong += [LogEntry(2, b"", b'{"time":1,"method":"put","path":["a/b"],"sent":{"$":1}}')]
    file = tmp_path / "x.shelf"
    target = Redo(file)
    target.apply(entry_of(1, edit))
    for entry in wrong:
        with pytest.raises(CannotRedo) as raised:
            target.apply(entry)
        assert raised.value.is_left_out is (entry is left_out)
    target.__exit__(CannotRedo, raised.value, None)
    with contextlib.closing(SqliteEngine.open(file)) as engine:
        assert engine.read(lambda view: view.sequence()) == 0


def test_a_long_body_is_applied_in_fragments_as_it_would_be_at_once(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    value: Json = {f"k{number}": {"n": number, ".priority": number} for number in range(3000)}
    edits = [
        make_put(Place(("a",)), 5),
        make_put(Place(("a", "long")), value),
        make_patch(("a",), {"long/k7": None, "text": "é" * 300_000, "more": value}),
        make_put(Place(("a", "more", "k1")), {"x": 1}),
        make_put(Place(("a", "more"), True), "p" * 100_000),
    ]
    model: Value = None
    for edit in edits:
        model = apply(model, edit.changes)
    for long_bytes in (1, redo.LONG_BYTES, 2**40):
        monkeypatch.setattr(redo, "LONG_BYTES", long_bytes)
        file = tmp_path / f"{long_bytes}.shelf"
        with Redo(file) as target:
            for entry in entries_of(edits):
                target.apply(entry)
        assert tree_in(file) == model
        assert [len(each.content) < 100_000 for each in log_in(file)] == [True] * 5


def test_the_log_of_a_file_has_the_newest_entries_and_no_write_of_a_session_is_left(
    tmp_path: pathlib.Path,
) -> None:
    file = tmp_path / "x.shelf"
    engine = SqliteEngine.create(file)
    transaction = engine.begin()
    kept = DisconnectEntry(None, True, make_put(Place(("a",)), 1))
    add_entry(transaction, "owner", "session", kept, lambda _: None)
    transaction.commit()
    engine.close()
    with Redo(file) as unchanged:
        assert unchanged.sequence == 0
    with contextlib.closing(SqliteEngine.open(file)) as engine:
        assert list(engine.read(lambda view: list(list_owners(view)))) == ["owner"]
    entries = entries_of(make_put(Place((f"k{number}",)), number) for number in range(1200))
    with Redo(file) as target:
        for entry in entries:
            target.apply(entry)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["x.shelf", "x.shelf-mark"]
    with contextlib.closing(SqliteEngine.open(file)) as engine:
        assert not list(engine.read(lambda view: list(list_owners(view))))
    assert log_in(file) == entries[-1001:]
