"""Moves from the embedded engine to PostgreSQL."""

from __future__ import annotations

import json
import pathlib
import re
import signal
import sys
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
import pytest_twisted

from tests.cli.moving.places import RULES, Places, commit, content_of, database_of
from tests.command import treedb
from tests.daemon import Daemon
from tests.system import wait_until
from treedbd.cli import moving as copying
from treedbd.cli import moving as inward
from treedbd.cli.check import verify_file
from treedbd.cli.exit import INTERRUPTED
from treedbd.files import read_installation
from treedbd.store.directory_lock import DirectoryLock
from treedbd.store.engine import StoreUnreachable
from treedbd.store.indexes import INDEX_FIRST
from treedbd.store.postgresql import connection as connecting
from treedbd.store.postgresql import moving
from treedbd.store.postgresql import moving as comparison
from treedbd.store.postgresql.connection import PostgresqlSettings
from treedbd.store.postgresql.moving import MoveConnection, SwitchInDoubt
from treedbd.store.postgresql.schema import prepare_schema
from treedbd.store.shelf import open_shelf
from treedbd.store.sqlite.engine import SqliteEngine

ALL = ["default--demo", "default--shop", "eu--demo"]
_DAEMON = 'emulator = true\ndomains = ["localhost"]\n[projects.demo]\ndatabases = "*"\n'


def rows_of(places: Places, name: str, project: str) -> list[Any]:
    return list(
        places.query(
            "SELECT k, v FROM treedb.kv NATURAL JOIN treedb.dbs WHERE name = %s AND project = %s"
            " ORDER BY k",
            name,
            project,
        )
    )


def entries_of(places: Places, name: str, project: str) -> list[Any]:
    return list(
        places.query(
            "SELECT l.seq, op, entry FROM treedb.log l JOIN treedb.dbs USING (db)"
            " WHERE name = %s AND project = %s ORDER BY l.seq",
            name,
            project,
        )
    )


@pytest_twisted.ensureDeferred
async def test_everything_is_in_postgresql_afterwards(places: Places) -> None:
    places.fill()
    before = content_of(places.data)
    result = await treedb("move", "--config", places.here, "--to", places.cluster)
    assert result.status == 0, result
    assert re.search(rb"Moved 3 databases with \d+ rows and 10 log entries, and ver", result.output)
    assert "verified all" in result.errors
    assert places.served() == ALL
    for file, content in before.items():
        project, _, name = file.partition("/")
        if isinstance(content, bytes):
            assert places.query(
                "SELECT rules FROM treedb.projects WHERE project = %s", project
            ) == [(content,)]
            continue
        name = name.removesuffix(".shelf")
        assert rows_of(places, name, project) == content.rows
        assert entries_of(places, name, project) == content.entries
        assert places.query(
            "SELECT seq FROM treedb.dbs WHERE name = %s AND project = %s", name, project
        ) == [(content.sequence,)]
    assert content_of(places.data) == before
    epochs = (
        "SELECT DISTINCT dbs.epoch - p.epoch FROM treedb.dbs JOIN treedb.projects p USING (project)"
    )
    assert places.query(epochs) == [(0,)]


@pytest_twisted.ensureDeferred
async def test_a_daemon_over_postgresql_goes_on_from_there(places: Places) -> None:
    places.fill()
    last = database_of(places.data, "demo/default").sequence
    assert (await places.move(places.here, places.cluster)).status == 0
    with places.daemon() as engine:
        transaction = engine.begin()
        transaction.put(b"new", b"row")
        assert transaction.append(b"op", b"{}") == last + 1
        transaction.commit()
        position = engine.position
        assert engine.read(lambda view: view.get(b"new")) == b"row"
    with places.daemon() as engine:  # it follows from there, without a new copy
        assert engine.position == position
        assert not engine.catch_up().is_whole


@pytest.fixture
def daemon(places: Places, request: pytest.FixtureRequest) -> Iterator[Daemon]:
    """A daemon with the data directory of `here`, with so many workers as a test wants."""
    workers = ("--workers", getattr(request, "param", "1"))
    with Daemon(places.folder, config=_DAEMON, arguments=workers) as running:
        (places.folder / "here.toml").write_text(f'data = "{running.data}"\n{_DAEMON}')
        places.data = running.data
        yield running


def send(daemon: Daemon, method: str, target: str, value: Any = None) -> int:
    headers = {"Host": "demo.localhost", "Authorization": "Bearer owner"}
    return daemon.request(
        method, target, None if value is None else json.dumps(value), headers
    ).status


@pytest_twisted.ensureDeferred
async def test_writes_while_it_copies_arrive_and_later_ones_are_refused(
    places: Places, daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert send(daemon, "PUT", "/.settings/rules.json", json.loads(RULES)) == 200
    users = {f"u{at}": {"age": at % 7, "text": "t" * 200} for at in range(500)}
    assert send(daemon, "PUT", "/users.json", users) == 200
    copy, switch = inward._InwardMove.copy_while_served, moving.switch
    statuses: list[int] = []

    def copy_then_write(move: Any) -> None:
        copy(move)
        statuses.append(send(daemon, "PATCH", "/users/u7.json", {"age": 80}))
        statuses.append(send(daemon, "DELETE", "/users/u8.json"))

    def look_then_switch(*arguments: Any, **more: Any) -> None:
        for method, target in (("PUT", "/late.json"), ("PUT", "/.settings/rules.json")):
            statuses.append(send(daemon, method, target, {"rules": {}}))
        statuses.append(send(daemon, "GET", "/users/u7.json"))
        switch(*arguments, **more)

    monkeypatch.setattr(inward._InwardMove, "copy_while_served", copy_then_write)
    monkeypatch.setattr(inward, "switch", look_then_switch)
    result = await treedb("move", "--config", places.here, "--to", places.cluster)
    assert b"refuses writes from now on" in result.output
    assert statuses == [200, 200, 503, 503, 200]
    assert send(daemon, "PUT", "/late.json", 1) == 503
    assert send(daemon, "GET", "/users/u7.json") == 200
    again = await treedb("move", "--config", places.here, "--to", places.cluster)
    assert "moved already" in again.text
    undone = await places.move(places.here, places.cluster, "--undo")
    assert "is complete" in undone.error
    daemon.stop()
    rows = database_of(places.data, "demo/default").rows
    assert rows_of(places, "default", "demo") == rows
    assert sum(key.startswith(INDEX_FIRST) for key, _ in rows) == 499  # one user was removed
    assert [entry[0] for entry in entries_of(places, "default", "demo")] == [1, 2, 3]
    assert (await places.move(places.cluster, places.there)).status == 0
    assert verify_file(places.back / "demo" / "default.shelf") == []
    assert content_of(places.back) == content_of(places.data)


@pytest.mark.parametrize("daemon", ["1", "2"], ids=["alone", "two workers"], indirect=True)
@pytest_twisted.ensureDeferred
async def test_after_a_failure_the_daemon_writes_again(
    places: Places, daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert send(daemon, "PUT", "/a.json", 1) == 200
    statuses: list[int] = []

    def fail(*_: Any, **__: Any) -> None:
        statuses.append(send(daemon, "PUT", "/a.json", 2))
        raise StoreUnreachable("PostgreSQL cannot be reached.")

    with monkeypatch.context() as patch:
        patch.setattr(inward, "switch", fail)
        assert (await places.move(places.here, places.cluster)).error == (
            "PostgreSQL cannot be reached."
        )
    assert statuses == [503]
    assert places.served() == []
    wait_until(lambda: send(daemon, "PUT", "/a.json", 3) == 200)
    assert (await places.move(places.here, places.cluster)).status == 0
    assert places.served() == ["default--demo"]


@pytest_twisted.ensureDeferred
async def test_a_killed_move_leaves_nothing_served_and_can_be_undone(
    places: Places, daemon: Daemon
) -> None:
    assert send(daemon, "PUT", "/a.json", 1) == 200
    places.kill_at("treedbd.cli.moving.:switch", places.here, places.cluster)
    assert places.served() == []
    assert send(daemon, "PUT", "/a.json", 2) == 503
    undone = await treedb("move", "--config", places.here, "--to", places.cluster, "--undo")
    assert undone.text == f"The daemon of {places.data} may write again."
    wait_until(lambda: send(daemon, "PUT", "/a.json", 3) == 200)
    assert places.stored_numbers() == set()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_move_that_is_stopped_lets_the_daemon_write_again(
    places: Places, daemon: Daemon, number: signal.Signals
) -> None:
    assert send(daemon, "PUT", "/a.json", 1) == 200
    function = "treedbd.cli.moving.:switch"
    assert places.kill_at(function, places.here, places.cluster, number) == INTERRUPTED
    assert places.served() == []
    wait_until(lambda: send(daemon, "PUT", "/a.json", 2) == 200)


@pytest_twisted.ensureDeferred
async def test_a_killed_move_can_be_run_again_while_the_daemon_is_read_only(
    places: Places, daemon: Daemon
) -> None:
    assert send(daemon, "PUT", "/a.json", 1) == 200
    places.kill_at("treedbd.cli.moving.:switch", places.here, places.cluster)
    assert (await places.move(places.here, places.cluster)).status == 0
    assert places.served() == ["default--demo"]
    assert send(daemon, "PUT", "/a.json", 2) == 503
    assert len(places.stored_numbers()) == 1
    daemon.kill()
    done = daemon.run()
    assert done.returncode == 1
    assert "was moved to PostgreSQL, which has the newest data" in done.stderr


@pytest_twisted.ensureDeferred
async def test_a_move_that_was_killed_after_its_end_is_not_made_again(places: Places) -> None:
    places.fill()
    places.kill_at("treedbd.store.directory_lock.LockTakeover:release", places.here, places.cluster)
    numbers = places.stored_numbers()
    with places.daemon() as engine:
        commit(engine, b"\xff", b"newer")
    again = await treedb("move", "--config", places.here, "--to", places.cluster)
    assert "is moved already" in again.text
    assert places.stored_numbers() == numbers
    assert rows_of(places, "default", "demo")[-1] == (b"\xff", b"newer")


@pytest.mark.parametrize(
    ("function", "calls"), [("compare_all", 1), ("compare_all", 3), ("switch", 1)]
)
@pytest_twisted.ensureDeferred
async def test_an_interrupted_move_is_completed_by_the_next(
    places: Places, monkeypatch: pytest.MonkeyPatch, function: str, calls: int
) -> None:
    places.fill()
    interrupt_at(monkeypatch, function, calls)
    with pytest.raises(KeyboardInterrupt):
        await places.move(places.here, places.cluster)
    monkeypatch.undo()
    assert places.served() == []
    DirectoryLock(places.data).release()
    assert (await places.move(places.here, places.cluster)).status == 0
    assert places.served() == ALL
    rows = database_of(places.data, "demo/default").rows
    assert rows_of(places, "default", "demo") == rows
    assert len(places.stored_numbers()) == 3


def interrupt_at(patch: pytest.MonkeyPatch, name: str, calls: int) -> None:
    """Let a function of the move be interrupted at its last call of so many."""
    left = calls
    real: Callable[..., Any] = getattr(inward, name)

    def count(*arguments: Any, **more: Any) -> Any:
        nonlocal left
        left -= 1
        if left == 0:
            raise KeyboardInterrupt
        return real(*arguments, **more)

    patch.setattr(inward, name, count)


@pytest_twisted.ensureDeferred
async def test_a_copy_that_differs_is_not_put_in_place(
    places: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    places.fill()

    def repair_badly(connection: Any, table: Any, db: int, bucket: Any) -> int:
        count = comparison.repair(connection, table, db, bucket)
        connection.execute("UPDATE kv SET v = v || 'x' WHERE k = (SELECT max(k) FROM kv)")
        return count

    monkeypatch.setattr(copying, "repair", repair_badly)
    assert "differs from the data" in (await places.move(places.here, places.cluster)).error
    assert places.served() == []
    monkeypatch.undo()
    assert (await places.move(places.here, places.cluster)).status == 0
    assert rows_of(places, "eu", "demo") == database_of(places.data, "demo/eu").rows


@pytest_twisted.ensureDeferred
async def test_a_write_that_slips_in_is_noticed(
    places: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    places.fill()
    real = copying.compare_table

    def write_meanwhile(*arguments: Any, **more: Any) -> Any:
        found = real(*arguments, **more)
        engine = SqliteEngine.open(places.data / "shop" / "default.shelf")
        transaction = engine.begin()
        transaction.append(b"op", b"{}")
        transaction.commit()
        engine.close()
        return found

    monkeypatch.setattr(copying, "compare_table", write_meanwhile)
    assert "differs from the data" in (await places.move(places.here, places.cluster)).error
    assert places.served() == []


@pytest_twisted.ensureDeferred
async def test_what_is_there_is_replaced_only_on_demand(places: Places) -> None:
    places.fill()
    assert (await places.move(places.here, places.cluster)).status == 0
    numbers = places.stored_numbers()
    with open_shelf(places.data / "shop" / "default.shelf", "w") as shelf:
        shelf["later"] = 1
    error = (await places.move(places.here, places.cluster)).error
    assert "has the database demo already" in error
    assert places.stored_numbers() == numbers
    (places.data / "demo" / "rules.json").unlink()
    assert (await places.move(places.here, places.cluster, "--replace")).status == 0
    assert places.served() == ALL
    assert places.stored_numbers().isdisjoint(numbers)
    assert places.query("SELECT rules, epoch FROM treedb.projects WHERE project = 'demo'") == [
        (None, 3)
    ]
    assert rows_of(places, "eu", "demo") == database_of(places.data, "demo/eu").rows


@pytest_twisted.ensureDeferred
async def test_other_rules_are_not_overwritten(places: Places) -> None:
    places.fill()
    assert (await places.move(places.here, places.cluster)).status == 0
    places.query("DELETE FROM treedb.dbs")
    places.query("UPDATE treedb.projects SET rules = '{}' WHERE project = 'demo'")
    error = (await places.move(places.here, places.cluster)).error
    assert "other rules of the project demo" in error
    assert places.served() == []


@pytest_twisted.ensureDeferred
async def test_a_database_that_appears_meanwhile_is_kept(
    places: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    places.fill()
    switch = moving.switch

    def create_then_switch(*arguments: Any, **more: Any) -> None:
        with places.daemon("demo", "eu"):
            switch(*arguments, **more)

    monkeypatch.setattr(inward, "switch", create_then_switch)
    assert "were created" in (await places.move(places.here, places.cluster)).error
    assert places.served() == ["eu--demo"]
    assert rows_of(places, "eu", "demo") == []


@pytest_twisted.ensureDeferred
async def test_rules_that_are_put_meanwhile_are_kept(
    places: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    places.fill()

    def put_then_switch(*arguments: Any, **more: Any) -> None:
        places.query("INSERT INTO treedb.projects VALUES ('shop', '{}', 7)")
        moving.switch(*arguments, **more)

    monkeypatch.setattr(inward, "switch", put_then_switch)
    assert "were created" in (await places.move(places.here, places.cluster)).error
    assert places.query("SELECT * FROM treedb.projects") == [("shop", b"{}", 7)]


@pytest_twisted.ensureDeferred
async def test_the_rights_of_a_daemon_are_enough(places: Places) -> None:
    places.fill()
    prepare_schema(PostgresqlSettings(places.server.dsn))
    places.query("DROP ROLE IF EXISTS mover")
    places.query("CREATE ROLE mover LOGIN")
    places.query("GRANT USAGE ON SCHEMA treedb TO mover")
    places.query("GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA treedb TO mover")
    places.cluster.write_text(places.cluster.read_text().replace("treedb@", "mover@"))
    results = [
        await places.move(source, target, *more)
        for source, target, more in (
            (places.here, places.cluster, ()),
            (places.cluster, places.there, ()),
            (places.there, places.cluster, ("--replace",)),
        )
    ]
    places.query("DROP OWNED BY mover")
    places.query("DROP ROLE mover")
    assert [result.errors for result in results] == ["", "", ""]
    assert places.served() == ALL


def lose_answer(monkeypatch: pytest.MonkeyPatch, *, commits: bool) -> None:
    """Let the first answer to a COMMIT be lost, which was or was not executed."""
    is_lost = False

    def commit_and_lose(connection: Any) -> None:
        nonlocal is_lost
        if is_lost:
            connecting.commit_confirmed(connection)
            return
        is_lost = True
        connection.execute("COMMIT" if commits else "ROLLBACK")
        connection.close()
        raise psycopg.OperationalError("The connection has ended.")

    monkeypatch.setattr(moving, "commit_confirmed", commit_and_lose)


@pytest_twisted.ensureDeferred
async def test_a_switch_whose_answer_is_lost_is_found_out(
    places: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    places.fill()
    lose_answer(monkeypatch, commits=False)
    assert "cannot be reached" in (await places.move(places.here, places.cluster)).error
    assert places.served() == []
    monkeypatch.undo()
    lose_answer(monkeypatch, commits=True)
    # It is moved; only what was replaced could not be removed over the lost connection.
    result = await places.move(places.here, places.cluster)
    assert (result.status, places.served()) == (0, ALL)


@pytest_twisted.ensureDeferred
async def test_while_the_switch_is_in_doubt_the_daemon_stays_read_only(
    places: Places, daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert send(daemon, "PUT", "/a.json", 1) == 200

    def doubt(*_: Any, **__: Any) -> None:
        raise SwitchInDoubt

    monkeypatch.setattr(inward, "switch", doubt)
    error = (await places.move(places.here, places.cluster)).error
    assert "run the command again" in error
    assert send(daemon, "PUT", "/a.json", 2) == 503


@pytest_twisted.ensureDeferred
async def test_two_moves_at_once_are_refused(places: Places) -> None:
    places.fill()
    with MoveConnection(PostgresqlSettings(places.server.dsn)):
        error = (await places.move(places.here, places.cluster)).error
    assert "another treedb move" in error


@pytest_twisted.ensureDeferred
async def test_a_damaged_directory_is_not_moved_in_part(places: Places) -> None:
    places.fill()
    (places.data / "demo" / "eu.shelf").write_bytes(b"no database" * 100)
    assert "eu.shelf" in (await places.move(places.here, places.cluster)).error
    assert places.served() == []


@pytest_twisted.ensureDeferred
async def test_wrong_configurations_are_refused(
    places: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = places.configure("memory", 'engine = "memory"\n')
    same = places.folder / "same.toml"
    same.write_text(places.cluster.read_text().replace('"cluster"', '"here"'))
    for source, target, sentence in (
        (places.here, places.there, "must have the embedded engine"),
        (places.cluster, places.cluster, "must have the embedded engine"),
        (memory, places.cluster, "stores nothing"),
        (places.here, memory, "stores nothing"),
        (places.here, same, "data directory"),
        (places.here, places.cluster, "There is no data directory"),
        (places.here, pathlib.Path("none.toml"), "cannot be read"),
    ):
        assert sentence in (await places.move(source, target)).error
    assert "--config" in (await treedb("move", "--to", places.cluster)).error
    assert (await treedb("move", "--config", places.here)).status == 2
    monkeypatch.setitem(sys.modules, "psycopg", None)
    error = (await places.move(places.here, places.cluster)).error
    assert f": run {read_installation().line_for('postgresql')}." in error
