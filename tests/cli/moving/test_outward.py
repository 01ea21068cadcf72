"""Moves from PostgreSQL back to the embedded engine."""

from __future__ import annotations

import pathlib
from typing import Any

import pytest
import pytest_twisted
from twisted.internet.defer import Deferred

from tests.cli.moving.places import RULES, Places, commit, content_of, database_of
from tests.command import treedb
from treedbd.cli import moving as outward
from treedbd.cli.check import verify_file
from treedbd.database.data_directory import READER_FILE
from treedbd.store.directory_lock import DirectoryLock
from treedbd.store.engine import Conflict, StoreUnreachable
from treedbd.store.postgresql import moving
from treedbd.store.postgresql.cluster import PostgresqlCluster, trim
from treedbd.store.postgresql.connection import PostgresqlSettings
from treedbd.store.shelf import open_shelf
from treedbd.store.sqlite.engine import SqliteEngine

MARK = "SELECT count(*) FROM treedb.meta WHERE name = 'moved'"


@pytest.fixture
def filled(places: Places) -> Places:
    places.fill()
    moved = Deferred.fromCoroutine(places.move(places.here, places.cluster))
    assert pytest_twisted.blockon(moved).status == 0
    return places


@pytest_twisted.ensureDeferred
async def test_everything_comes_back(filled: Places) -> None:
    filled.back.mkdir()
    (filled.back / f"{READER_FILE}archive").touch()  # of a daemon that was killed
    result = await treedb("move", "--config", filled.cluster, "--to", filled.there)
    assert result.status == 0, result
    assert b"Moved 3 databases" in result.output
    assert content_of(filled.back) == content_of(filled.data)
    for file in filled.back.glob("*/*.shelf"):
        assert verify_file(file) == []
    with open_shelf(filled.back / "demo" / "default.shelf", "w") as shelf:
        shelf["more"] = 1
        assert shelf["users/u2999/age"] == 2999 % 90
    assert (filled.back / "demo" / "rules.json").read_bytes() == RULES
    assert not (filled.back / f"{READER_FILE}archive").exists()
    assert not (filled.folder / "there.moving").exists()


@pytest_twisted.ensureDeferred
async def test_what_is_committed_while_it_copies_arrives_and_later_commits_lose(
    filled: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    verify = outward._OutwardMove._verify
    lost = []
    with filled.daemon() as engine:

        def commit_then_freeze(*arguments: Any) -> None:
            commit(engine, b"late", b"row")
            moving.freeze(*arguments)

        def lose_then_verify(move: Any, database: Any) -> Any:
            with pytest.raises(Conflict):
                commit(engine, b"later", b"row")
            lost.append(engine.catch_up().epoch)
            return verify(move, database)

        monkeypatch.setattr(outward, "freeze", commit_then_freeze)
        monkeypatch.setattr(outward._OutwardMove, "_verify", lose_then_verify)
        assert (await filled.move(filled.cluster, filled.there)).status == 0
        # Also one that has learned of the new epoch.
        engine.epoch = -1
        with pytest.raises(Conflict):
            commit(engine, b"later", b"row")
    assert lost == [-1, -1, -1]
    rows = dict(database_of(filled.back, "demo/default").rows)
    assert rows[b"late"] == b"row"
    assert b"later" not in rows


@pytest_twisted.ensureDeferred
async def test_afterwards_nothing_can_be_written_to_postgresql(filled: Places) -> None:
    assert (await filled.move(filled.cluster, filled.there)).status == 0
    cluster = PostgresqlCluster(PostgresqlSettings(filled.server.dsn), retain=10)
    try:
        with pytest.raises(StoreUnreachable, match="moved away"):
            cluster.projects.put_rules("demo", b"{}")
        with pytest.raises(StoreUnreachable, match="moved away"):
            cluster.projects.put_rules("another", b"{}")
        with pytest.raises(StoreUnreachable, match="moved away"):
            cluster.projects.create_database("demo", "new")
        assert cluster.projects.create_database("demo", "eu").epoch == -1
    finally:
        cluster.close()
    assert filled.served() == ["default--demo", "default--shop", "eu--demo"]
    assert filled.query("SELECT DISTINCT epoch FROM treedb.dbs") == [(-1,)]


@pytest_twisted.ensureDeferred
async def test_a_failure_lets_daemons_commit_again(
    filled: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    with filled.daemon() as engine:
        damaged = outward._OutwardMove._verify

        def damage_then_verify(move: Any, database: Any) -> Any:
            file = move._path(database)
            copy = SqliteEngine.open(file)
            transaction = copy.begin()
            transaction.put(b"wrong", b"row")
            transaction.commit()
            copy.close()
            return damaged(move, database)

        monkeypatch.setattr(outward._OutwardMove, "_verify", damage_then_verify)
        assert "differs" in (await filled.move(filled.cluster, filled.there)).error
        assert not list(filled.back.glob("*/*"))
        commit(engine, b"after", b"row")
    monkeypatch.undo()
    assert filled.query(MARK) == [(0,)]
    filled.query("UPDATE treedb.kv SET v = v")  # nothing of it is locked
    assert (await filled.move(filled.cluster, filled.there)).status == 0
    assert dict(database_of(filled.back, "demo/default").rows)[b"after"] == b"row"


@pytest_twisted.ensureDeferred
async def test_a_lost_connection_does_not_keep_postgresql_frozen(
    filled: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lose(move: Any, _: Any) -> None:
        assert filled.query(MARK) == [(1,)]
        filled.query(
            "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity"
            " WHERE application_name = 'treedb'"
        )
        move._move.run(moving.read_all_rules)

    monkeypatch.setattr(outward._OutwardMove, "_verify", lose)
    assert (await filled.move(filled.cluster, filled.there)).status == 1
    assert filled.query(MARK) == [(0,)]
    with filled.daemon() as engine:
        commit(engine, b"a", b"1")
        assert engine.read(lambda view: view.get(b"a")) == b"1"


@pytest.mark.parametrize("function", ["_verify", "_put_in_place"])
@pytest_twisted.ensureDeferred
async def test_a_killed_move_can_be_run_again(filled: Places, function: str) -> None:
    name = f"treedbd.cli.moving._OutwardMove:{function}"
    filled.kill_at(name, filled.cluster, filled.there)
    assert filled.query(MARK) == [(1,)]
    assert not list(filled.back.glob("*/*"))
    assert (await filled.move(filled.cluster, filled.there)).status == 0
    assert content_of(filled.back) == content_of(filled.data)


@pytest_twisted.ensureDeferred
async def test_a_killed_move_can_be_undone(filled: Places) -> None:
    name = "treedbd.cli.moving._OutwardMove:_verify"
    filled.kill_at(name, filled.cluster, filled.there)
    undone = await treedb("move", "--config", filled.cluster, "--to", filled.there, "--undo")
    assert undone.text == "PostgreSQL accepts commits again."
    assert not (filled.folder / "there.moving").exists()
    with filled.daemon() as engine:
        commit(engine, b"a", b"1")
        assert engine.read(lambda view: view.get(b"a")) == b"1"
    assert (
        await treedb("move", "--config", filled.cluster, "--to", filled.there, "--undo")
    ).text == ("Nothing was moved.")


@pytest_twisted.ensureDeferred
async def test_a_complete_move_is_neither_repeated_nor_undone(filled: Places) -> None:
    assert (await filled.move(filled.cluster, filled.there)).status == 0
    with open_shelf(filled.back / "demo" / "eu.shelf", "w") as shelf:
        shelf["newer"] = 1
    again = await treedb("move", "--config", filled.cluster, "--to", filled.there)
    assert "moved already" in again.text
    assert "is complete" in (await filled.move(filled.cluster, filled.there, "--undo")).error
    other = filled.configure("other")
    assert "was moved away to" in (await filled.move(filled.cluster, other)).error
    with open_shelf(filled.back / "demo" / "eu.shelf") as shelf:
        assert shelf["newer"] == 1


@pytest_twisted.ensureDeferred
async def test_and_into_postgresql_again(filled: Places) -> None:
    assert (await filled.move(filled.cluster, filled.there)).status == 0
    with open_shelf(filled.back / "demo" / "eu.shelf", "w") as shelf:
        shelf["newer"] = 1
    assert "already" in (await filled.move(filled.there, filled.cluster)).error
    assert (await filled.move(filled.there, filled.cluster, "--replace")).status == 0
    with filled.daemon("demo", "eu") as engine:
        commit(engine, b"a", b"1")
        assert engine.read(lambda view: view.get(b"a")) == b"1"
    assert filled.query("SELECT min(epoch) FROM treedb.dbs") == [(3,)]
    assert filled.query(MARK) == [(0,)]


@pytest_twisted.ensureDeferred
async def test_a_data_directory_with_data_is_kept(filled: Places) -> None:
    filled.back.mkdir()
    (filled.back / "notes").write_text("mine")
    assert "is not empty" in (await filled.move(filled.cluster, filled.there)).error
    assert filled.query(MARK) == [(0,)]
    assert (await filled.move(filled.cluster, filled.there, "--replace")).status == 0
    assert (filled.folder / "there.replaced-1" / "notes").read_text() == "mine"
    assert content_of(filled.back) == content_of(filled.data)


@pytest_twisted.ensureDeferred
async def test_a_mount_point_is_refused_before_anything_is_frozen(
    filled: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pathlib.Path, "is_mount", lambda path: path == filled.back)
    assert "is a mount point" in (await filled.move(filled.cluster, filled.there)).error
    assert filled.query(MARK) == [(0,)]


@pytest_twisted.ensureDeferred
async def test_a_directory_that_is_served_is_refused(filled: Places) -> None:
    lock = DirectoryLock(filled.back)
    error = (await filled.move(filled.cluster, filled.there, "--replace")).error
    lock.release()
    assert "is in use" in error
    assert filled.query(MARK) == [(0,)]


@pytest_twisted.ensureDeferred
async def test_entries_that_are_dropped_meanwhile_do_not_matter(
    filled: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    verify = outward._OutwardMove._verify
    dropped = []

    def trim_then_verify(move: Any, database: Any) -> Any:
        dropped.append(trim(move._cluster.pool, database.db, retain=1, age_s=0))
        return verify(move, database)

    monkeypatch.setattr(outward._OutwardMove, "_verify", trim_then_verify)
    assert (await filled.move(filled.cluster, filled.there)).status == 0
    assert sum(dropped) > 0
    assert content_of(filled.back) == content_of(filled.data)


@pytest_twisted.ensureDeferred
async def test_a_postgresql_without_tables_is_left_as_it_is(places: Places) -> None:
    assert "has no tables" in (await places.move(places.cluster, places.there)).error
    assert places.query("SELECT count(*) FROM pg_namespace WHERE nspname = 'treedb'") == [(0,)]


@pytest_twisted.ensureDeferred
async def test_without_a_server_nothing_is_touched(places: Places) -> None:
    gone = places.folder / "gone.toml"
    gone.write_text('data = "cluster"\nengine = "postgresql://treedb@127.0.0.1:1/treedb"\n')
    places.fill()
    before = content_of(places.data)
    assert "cannot be reached" in (await places.move(gone, places.there)).error
    assert "cannot be reached" in (await places.move(places.here, gone)).error
    assert content_of(places.data) == before
    assert not places.back.exists()
