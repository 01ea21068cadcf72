"""Replays: the states between two durable ones, write by write."""

from __future__ import annotations

import contextlib
import pathlib
from collections.abc import Iterator

import pytest

from treedbd.database.resume import Moments, Replay
from treedbd.store.changelog import commit_of, large_commit_of
from treedbd.store.engine import Engine
from treedbd.store.indexes import WriterMaker
from treedbd.store.memory import MemoryEngine
from treedbd.store.sqlite.engine import SqliteEngine
from treedbd.tree.edit import Edit, make_patch, make_put
from treedbd.tree.event import Commit
from treedbd.tree.overlay import StateUnknown
from treedbd.tree.types import Json, Path, Place, Value


class Writer:
    """Commits writes to an engine, some at a time."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.moments = Moments(engine)
        self.count = 0

    def commit(self, *edits: Edit) -> list[Commit]:
        """Commit edits together, and let reads show them."""
        self.engine.pin()
        transaction = self.engine.begin()
        commits = []
        for edit in edits:
            self.count += 1
            WriterMaker(tuple).make(transaction).apply(edit.changes)
            transaction.append(b"op", b"entry")
            commits.append(commit_of(self.count, edit, b"op"))
        transaction.commit()
        self.moments.leave()
        return commits

    def present(self) -> int:
        return self.engine.read(lambda view: view.sequence())


@pytest.fixture(params=["memory", "sqlite"])
def writer(request: pytest.FixtureRequest, tmp_path: pathlib.Path) -> Iterator[Writer]:
    engine: Engine = MemoryEngine()
    if request.param == "sqlite":
        engine = SqliteEngine.create(tmp_path / "x.shelf")
    with contextlib.closing(engine):
        yield Writer(engine)


def put(name: str, value: Json) -> Edit:
    return make_put(Place((name,)), value)


def value_in(replay: Replay | None, *path: str) -> Value:
    assert replay is not None
    return replay.view.get(path)


def follow(writer: Writer, commits: list[Commit], path: Path) -> list[Value]:
    """Return what is at a path before each write, and after the last."""
    values = []
    for commit in commits:
        values.append(value_in(writer.moments.replay_to(commit.position.sequence - 1), *path))
        assert writer.moments.add(commit) is not None
    values.append(value_in(writer.moments.replay_to(writer.present()), *path))
    return values


def test_what_was_committed_together_is_seen_write_by_write(writer: Writer) -> None:
    commits = writer.commit(put("a", 1), put("b", 2), make_patch((), {"a/x": 3, "b": None}))
    assert follow(writer, commits, ()) == [
        None,
        {"a": 1},
        {"a": 1, "b": 2},
        {"a": {"x": 3}},
    ]


def test_a_moment_is_held_until_what_came_after_it_was_told(writer: Writer) -> None:
    for number in range(5):
        commits = writer.commit(put("a", number), put("b", number))
        assert writer.moments.are_held or number == 0
        before = None if number == 0 else number - 1
        assert follow(writer, commits, ("b",)) == [before, before, number]
        writer.moments.release_unneeded()
        assert not writer.moments.are_held


def test_several_batches_may_be_committed_before_the_first_is_told(writer: Writer) -> None:
    writer.commit(put("a", 0))
    writer.moments.close()
    commits = [*writer.commit(put("a", 1), put("a", 2)), *writer.commit(put("a", 3))]
    assert follow(writer, commits, ("a",)) == [0, 1, 2, 3]
    writer.moments.release_unneeded()
    assert not writer.moments.are_held


def test_a_fork_goes_on_by_itself(writer: Writer) -> None:
    writer.commit(put("a", 0))
    first, second = writer.commit(put("a", 1), put("a", 2))
    replay = writer.moments.replay_to(1)
    assert replay is not None
    writer.moments.add(first)
    fork, behind = replay.fork(), replay.fork(without_last=True)
    writer.moments.add(second)
    writer.moments.release_unneeded()
    assert not writer.moments.are_held
    assert [value_in(each, "a") for each in (fork, behind)] == [1, 0]
    fork.add(second)
    assert value_in(fork, "a") == 2
    behind.close()
    assert fork.view.get(("b",)) is None
    fork.close()


def test_what_a_large_write_has_set_is_known_if_reads_show_just_that(writer: Writer) -> None:
    writer.commit(put("a", 0))
    writer.moments.close()
    (small,) = writer.commit(put("a", {"x": 1}))
    large = large_commit_of(2, make_put(Place(("a",)), {"x": 1}))
    assert writer.moments.replay_to(1) is not None
    assert value_in(writer.moments.add(large), "a") == {"x": 1}
    assert small.position.sequence == 2


def test_what_a_large_write_has_set_is_not_known_among_others(writer: Writer) -> None:
    writer.commit(put("a", 0), put("b", 1))
    writer.moments.close()
    writer.commit(put("a", {"x": 1}), put("b", 2))
    large = large_commit_of(3, make_put(Place(("a",)), {"x": 1}))
    replay = writer.moments.add(large)
    with pytest.raises(StateUnknown):
        value_in(replay, "a")
    assert value_in(replay, "b") == 1


def test_a_state_that_was_not_left_is_not_known(writer: Writer) -> None:
    writer.commit(put("a", 1))
    writer.moments.close()
    assert writer.moments.replay_to(1) is None
    assert writer.moments.add(commit_of(2, put("a", 2))) is None
