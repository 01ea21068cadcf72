"""`treedb cluster status`: what it shows, and that it changes nothing."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest
import pytest_twisted

from tests.cli.moving.places import Places, commit
from tests.command import error_of, output_of
from treedbd.files import read_installation
from treedbd.store.engine import Conflict
from treedbd.store.postgresql.cluster import PostgresqlCluster, send_heartbeat
from treedbd.store.postgresql.connection import PostgresqlSettings


@pytest.fixture
def served(places: Places) -> Places:
    """Two daemons: `a` has made two commits, `b` has one of them, and has lost one of its own."""
    with places.daemon() as engine:
        db = engine.position.db
        cluster = PostgresqlCluster(PostgresqlSettings(places.server.dsn), retain=10)
        path = places.folder / "b" / "x.shelf"
        other = cluster.open_engine(path, db, epoch=engine.epoch, reserve_bytes=4096)
        commit(engine, b"one", b"1")
        other.catch_up()
        commit(engine, b"two", b"2")
        with pytest.raises(Conflict):
            commit(other, b"three", b"3")
        counts = (engine._commits.counts, cluster.counts)
        for name, each, count in zip("ab", (engine, other), counts, strict=True):
            send_heartbeat(cluster.pool, name, "9.9", {db: each.position.rev}, count)
        other.close()
        cluster.projects.create_database("demo", "eu")
        cluster.close()
    return places


async def status_of(places: Places) -> Any:
    return json.loads(await output_of("cluster", "status", "--config", places.cluster, "--json"))


@pytest_twisted.ensureDeferred
async def test_json_has_daemons_and_databases(served: Places) -> None:
    status = await status_of(served)
    assert status["server_version"] == served.query("SHOW server_version")[0][0]
    assert (status["synchronous_standby_names"], status["standbys"]) == ("", 0)
    assert any("fsync" in each for each in status["warnings"])
    assert status["moved_to"] is None
    one, other = status["daemons"]
    assert 0 <= one.pop("seen_s") < 60
    assert one == {
        "name": "a",
        "address": "127.0.0.1",
        "version": "9.9",
        "databases": 1,
        "commits": 2,
        "conflicts": 0,
        "lag": 0,
        "greatest_lag": 0,
    }
    counts = {name: other[name] for name in ("commits", "conflicts", "lag", "greatest_lag")}
    assert counts == {"commits": 0, "conflicts": 1, "lag": 1, "greatest_lag": 1}
    first, second = status["databases"]
    assert first == {
        "label": "demo",
        "sequence": 2,
        "commits": 2,
        "epoch": 1,
        "daemons": 2,
        "greatest_lag": 1,
        "state": "served",
    }
    assert (second["label"], second["daemons"], second["commits"]) == ("eu--demo", 0, 0)


@pytest_twisted.ensureDeferred
async def test_text_has_the_same_in_columns(served: Places) -> None:
    lines = (await output_of("cluster", "status", "--config", served.cluster)).splitlines()
    assert lines[0].startswith("PostgreSQL 1")
    assert lines[1] == "No synchronous standbys are set; 0 follow."
    assert lines[2].startswith("Warning: ")
    rows = [line.split() for line in lines]
    assert ["a", "127.0.0.1", "9.9"] in [row[:3] for row in rows]
    assert ["1", "0", "1", "1", "1"] in [row[-5:] for row in rows]
    assert ["demo", "2", "2", "1", "2", "1", "served"] in rows
    at = next(line for line in lines if line.startswith("daemon ")).index("conflicts")
    assert [line[at : at + len("conflicts")].strip() for line in lines if "9.9" in line] == [
        "0",
        "1",
    ]


@pytest_twisted.ensureDeferred
async def test_daemons_that_were_not_seen_lately_serve_nothing(served: Places) -> None:
    served.query("UPDATE treedb.daemons SET seen = now() - interval '2 minutes' WHERE daemon = 'b'")
    status = await status_of(served)
    assert [each["seen_s"] > 100 for each in status["daemons"]] == [False, True]
    assert (status["databases"][0]["daemons"], status["databases"][0]["greatest_lag"]) == (1, 0)


@pytest_twisted.ensureDeferred
async def test_incomplete_copies_and_data_that_was_moved_are_marked(places: Places) -> None:
    places.fill()
    places.kill_at("treedbd.cli.moving.:switch", places.here, places.cluster)
    states = {each["label"]: each["state"] for each in (await status_of(places))["databases"]}
    assert states == dict.fromkeys(("demo", "eu--demo", "shop"), "being copied")
    assert (await places.move(places.here, places.cluster)).status == 0
    assert (await places.move(places.cluster, places.there)).status == 0
    status = await status_of(places)
    assert {each["state"] for each in status["databases"]} == {"moved away"}
    assert status["moved_to"].endswith(str(places.back))
    assert any("refuse writes" in each for each in status["warnings"])


@pytest_twisted.ensureDeferred
async def test_a_role_that_may_only_read_can_ask(served: Places) -> None:
    served.query("DROP ROLE IF EXISTS watcher")
    served.query("CREATE ROLE watcher LOGIN")
    served.query("GRANT USAGE ON SCHEMA treedb TO watcher")
    served.query("GRANT SELECT ON ALL TABLES IN SCHEMA treedb TO watcher")
    file = served.folder / "watcher.toml"
    dsn = served.server.dsn.replace("treedb@", "watcher@")
    file.write_text(f'data = "watcher"\nengine = "{dsn}"\n')
    text = await output_of("cluster", "status", "--config", file)
    served.query("DROP OWNED BY watcher")
    served.query("DROP ROLE watcher")
    assert "Warning: This role lacks rights" in text
    assert "superuser" not in text


@pytest_twisted.ensureDeferred
async def test_tables_are_not_created(places: Places) -> None:
    assert "no tables" in await error_of("cluster", "status", "--config", places.cluster)
    assert places.query("SELECT count(*) FROM pg_namespace WHERE nspname = 'treedb'") == [(0,)]


@pytest_twisted.ensureDeferred
async def test_other_engines_and_servers_out_of_reach_are_errors(
    places: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "has no cluster" in await error_of("cluster", "status", "--config", places.here)
    gone = places.folder / "gone.toml"
    gone.write_text('data = "cluster"\nengine = "postgresql://treedb@127.0.0.1:1/treedb"\n')
    assert "cannot be used" in await error_of("cluster", "status", "--config", gone)
    monkeypatch.setitem(sys.modules, "psycopg", None)
    error = await error_of("cluster", "status", "--config", places.cluster)
    assert f": run {read_installation().line_for('postgresql')}." in error
