"""Daemons over PostgreSQL: what an operator and a client see of one, from outside.

What several of them promise together is in `test_several_processes`, what must hold in spite of
faults in `test_cluster_faults`.
"""

from __future__ import annotations

import pathlib
import shutil
import time
from collections.abc import Iterator

import pytest

from tests.command import run_command
from tests.daemon import Daemon
from tests.postgresql import PostgresqlServers, servers
from tests.rest import Client, check_error
from tests.served import Cluster
from tests.several import Several
from tests.sse import EventStream, change, put
from treedbd import service as cluster_link
from treedbd.config.settings import load_settings
from treedbd.config.values import ConfigError

OWNER = {"Authorization": "Bearer owner"}
RULES = '{{"rules": {{".read": {}, ".write": true}}}}'


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("cluster")) as running:
        yield running


@pytest.fixture
def several(cluster: Cluster) -> Iterator[Several]:
    with Several(cluster) as processes:
        yield processes


def test_rules_hold_everywhere_also_for_databases_that_were_never_written(several: Several) -> None:
    first, second = several.clients()
    for way in ("false", "true", "false"):
        rules = RULES.format(way)
        assert first.request("PUT", "/.settings/rules.json", rules, OWNER).status == 200
        status = 200 if way == "true" else 403
        assert second.request("GET", "/a.json").status == status
        assert second.request("GET", "/.settings/rules.json", None, OWNER).body == rules.encode()
        label = several.host.partition(".")[0]
        unwritten = Client(second.daemon).request("GET", f"/a.json?ns=other--{label}")
        assert unwritten.status == (200 if way == "true" else 401)


def test_denials_and_conditions_are_those_of_the_last_durable_state(several: Several) -> None:
    first, second = several.clients()
    rules = '{"rules": {".read": true, "a": {".write": "!data.exists() || newData.val() === 0"}}}'
    assert first.request("PUT", "/.settings/rules.json", rules, OWNER).status == 200
    for number in range(20):
        assert first.request("PUT", "/a.json", "0").status == 200
        tag = first.request("GET", "/a.json", None, {"X-TreeDB-ETag": "true"}).headers["ETag"]
        assert first.request("DELETE", "/a.json", None, OWNER).status == 200
        # Of what the first one has done last, the second one need not have heard.
        response = second.request("PUT", "/a.json", str(number), {"If-Match": tag})
        assert response.status == 412, response
        assert second.request("PUT", "/a.json", str(number)).status == 200
        first.request("DELETE", "/a.json", None, OWNER)


def test_what_a_daemon_has_is_a_copy_that_can_be_made_again(cluster: Cluster) -> None:
    with Several(cluster) as several:
        several.clients()[0].put("/a.json", {"b": [1, 2, 3]})
        host = several.host
        several.clients()[1].put("/c.json", "x" * 100_000)
    daemon = cluster.daemons[1]
    assert daemon.stop() == 0
    (copy,) = daemon.data.glob(f"{host.partition('.')[0]}/*.copy")
    shutil.rmtree(copy.parent)
    daemon.start()
    found = Client(daemon, host).get("/.json")
    assert found == {"a": {"b": [1, 2, 3]}, "c": "x" * 100_000}
    assert copy.exists()


def test_a_copy_whose_file_was_removed_is_made_again(cluster: Cluster) -> None:
    with Several(cluster) as several:
        several.clients()[1].put("/a.json", 1)
        host = several.host
    daemon = cluster.daemons[1]
    assert daemon.stop() == 0
    (copy,) = daemon.data.glob(f"{host.partition('.')[0]}/*.copy")
    copy.unlink()
    daemon.start()
    assert Client(daemon, host).get("/a.json") == 1


def test_files_of_the_embedded_engine_are_not_mistaken_for_the_data(
    cluster: Cluster, tmp_path: pathlib.Path
) -> None:
    with Daemon(tmp_path) as embedded:
        Client(embedded).put("/a.json", 1)
    with Daemon(tmp_path, arguments=["--engine", cluster.dsn]) as daemon:
        daemon.await_line("holds databases of the embedded engine, which are not served")


def test_a_pipelined_read_is_not_answered_by_the_question_of_the_one_before(
    several: Several,
) -> None:
    first, second = several.clients()
    second.put("/a.json", 0)
    line = f"GET /a.json HTTP/1.1\r\nHost: {several.host}\r\n\r\n".encode()
    for number in range(100):
        first.wire.send(line)
        second.put("/a.json", number)
        first.wire.send(line)
        first.wire.receive()
        assert first.wire.receive().json == number


def test_a_database_whose_first_commit_failed_is_shown_as_others_write_it(
    cluster: Cluster, several: Several
) -> None:
    first, second = several.clients()
    query = cluster.servers.primary.query
    query(
        "CREATE FUNCTION treedb.refuse() RETURNS trigger LANGUAGE plpgsql"
        " AS 'BEGIN RAISE EXCEPTION ''refused''; END'"
    )
    query(
        "CREATE TRIGGER refuse BEFORE INSERT ON treedb.kv"
        " FOR EACH ROW EXECUTE FUNCTION treedb.refuse()"
    )
    try:
        check_error(first.request("PUT", "/a.json", "1"), 503, "unavailable")
    finally:
        query("DROP FUNCTION treedb.refuse CASCADE")
    second.put("/a.json", 2)
    assert first.get("/a.json") == 2


def test_a_copy_that_was_left_behind_catches_up_when_its_daemon_starts(cluster: Cluster) -> None:
    with Several(cluster) as several:
        first, second = several.clients()
        first.put("/a.json", 0)
        assert second.get("/a.json") == 0
        daemon = cluster.daemons[1]
        assert daemon.stop() == 0
        for number in range(50):
            first.put(f"/list/{number}.json", number)
        daemon.start()
        assert Client(daemon, several.host).get("/list.json") == list(range(50))


def test_a_killed_daemon_is_away_and_comes_back(cluster: Cluster) -> None:
    with Several(cluster) as several:
        first, _ = several.clients()
        first.put("/a.json", 1)
        cluster.daemons[1].kill()
        first.put("/a.json", 2)
        cluster.daemons[1].start()
        assert Client(cluster.daemons[1], several.host).get("/a.json") == 2


def test_reads_that_may_be_late_say_how_late(cluster: Cluster, tmp_path: pathlib.Path) -> None:
    config = (
        'default_project = "shop"\nreads = "local"\n[projects.shop]\nrules_file = "open.json"\n'
    )
    (tmp_path / "open.json").write_text(RULES.format("true"))
    with Daemon(tmp_path, config=config, arguments=["--engine", cluster.dsn]) as daemon:
        client = Client(daemon, "localhost")
        client.put("/a.json?ns=shop", 1)
        response = client.request("GET", "/a.json?ns=shop")
        assert response.json == 1
        assert 0 <= int(response.headers["TreeDB-Lag-Ms"]) < 60_000
        with EventStream(client, "/a.json?ns=shop") as stream:
            assert "TreeDB-Lag-Ms" in stream.headers
            assert change(stream.next_change()) == put("/", 1)
    with Several(cluster) as several:
        strict = several.clients()[0].request("GET", "/a.json")
        assert "TreeDB-Lag-Ms" not in strict.headers


def test_a_project_has_no_more_databases_than_it_may(
    cluster: Cluster, tmp_path: pathlib.Path
) -> None:
    config = '[projects.few]\ndatabases = "*"\ndatabases_max = 2\nrules_file = "open.json"\n'
    clients = []
    for name in ("a", "b"):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "open.json").write_text(RULES.format("true"))
        daemon = Daemon(folder, config=config, arguments=["--engine", cluster.dsn])
        clients.append(Client(daemon, "localhost"))
    with clients[0].daemon, clients[1].daemon:
        for number in range(2):
            named = f"/a.json?ns=d{number}--few"
            assert clients[number].request("PUT", named, "1").status == 200
        for client in clients:
            refused = client.request("PUT", "/a.json?ns=d2--few", "1")
            assert refused.status == 503
            assert b"no more can be created" in refused.body
            assert client.request("GET", "/a.json?ns=d0--few").json == 1


def test_a_database_that_is_being_moved_takes_no_writes(cluster: Cluster, several: Several) -> None:
    first, second = several.clients()
    first.put("/a.json", 1)
    project = several.host.partition(".")[0]
    query = cluster.servers.primary.query
    ((epoch,),) = query("SELECT epoch FROM treedb.dbs WHERE project = %s", (project,))
    query("UPDATE treedb.dbs SET epoch = -1 WHERE project = %s", (project,))
    for client in (first, second):
        check_error(client.request("PUT", "/a.json", "2"), 503, "unavailable")
        assert client.get("/a.json") == 1
    query("UPDATE treedb.dbs SET epoch = %s WHERE project = %s", (epoch, project))
    for number, client in enumerate((first, second)):
        assert client.get("/a.json") is not None  # it has heard of it
        client.put("/a.json", number + 2)
    assert first.get("/a.json") == 3


def test_a_daemon_without_postgresql_says_so_and_goes_on_afterwards(
    tmp_path: pathlib.Path,
) -> None:
    with servers(standbys=0) as running, daemon_over(running, tmp_path) as daemon:
        client = Client.of_new_tree(daemon)
        client.put("/a.json", 1)
        running.primary.kill()
        for method, body in (("GET", None), ("PUT", "2")):
            response = client.request(method, "/a.json", body)
            check_error(response, 503, "unavailable")
            assert response.headers["Retry-After"] == "1"
        limit = time.monotonic() + 5
        while daemon.request("GET", "/.health").status == 200:
            assert time.monotonic() < limit, "the daemon calls itself healthy"
        assert daemon.request("GET", "/.health?live").status == 200
        running.primary.start()
        while client.request("GET", "/a.json").status != 200:
            assert time.monotonic() < limit + 30, "the daemon does not come back"
        assert client.get("/a.json") == 1
        client.put("/a.json", 2)
        while daemon.request("GET", "/.health").status != 200:
            assert time.monotonic() < limit + 60, "the daemon does not call itself healthy"


def daemon_over(running: PostgresqlServers, folder: pathlib.Path) -> Daemon:
    return Daemon(folder, arguments=["--engine", running.primary.dsn()])


def test_a_daemon_that_cannot_connect_does_not_start(tmp_path: pathlib.Path) -> None:
    dsn = "postgresql://nobody@127.0.0.1:1/treedb"
    done = Daemon(tmp_path, arguments=["--engine", dsn]).run()
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert last.startswith("treedb: The PostgreSQL database treedb on 127.0.0.1 cannot be used (")
    assert "refused" in last
    assert "Traceback" not in done.stdout + done.stderr


@pytest.mark.parametrize(
    ("engine", "expected"),
    [
        ("postgresql://h/d?port=x=y%zz", "cannot be read"),
        ("postgresql://h/d?password=secret", "holds a password"),
    ],
)
def test_a_bad_connection_string_is_named(
    tmp_path: pathlib.Path, engine: str, expected: str
) -> None:
    done = Daemon(tmp_path, arguments=["--engine", engine]).run()
    assert done.returncode == 1
    assert expected in done.stderr
    assert "secret" not in done.stdout + done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_two_daemons_do_not_share_a_data_directory(cluster: Cluster) -> None:
    daemon = Daemon(cluster.daemons[0].folder, arguments=["--engine", cluster.dsn])
    done = daemon.run()
    assert done.returncode == 1
    assert "treedb runs already: http" in done.stderr


def test_a_missing_library_is_named(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: str) -> None:
        raise ImportError

    monkeypatch.setattr(cluster_link, "namedAny", fail)
    settings = load_settings(None, {"engine": "postgresql://h/d"}, tmp_path)
    with pytest.raises(ConfigError, match=r"install --editable .*\[postgresql\]"):
        cluster_link.make_cluster(settings, None)


def test_commands_for_files_say_where_the_data_is(tmp_path: pathlib.Path) -> None:
    (tmp_path / "treedb.toml").write_text('engine = "postgresql://h/d"\n[projects.shop]\n')
    done = run_command("check", "--config", str(tmp_path / "treedb.toml"))
    assert done.status == 1
    assert "The data is in PostgreSQL" in done.errors
