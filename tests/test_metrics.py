"""`/.metrics` and the full `/.health` of real daemons: every metric moves, and nothing leaks."""

from __future__ import annotations

import datetime
import json
import pathlib
import re
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from tests.access import Stream, Tree, admin, at, reload, trusting, user
from tests.command import run_command
from tests.cursors import seed_readers
from tests.daemon import Daemon, request
from tests.ops import OPEN_METRICS, OPS_LISTEN, Scrape, fetch, health, ops_url, scrape
from tests.realtime import RealtimeClient
from tests.rest import Wire
from tests.system import wait_until
from tests.workers_of import kill, one_of_each, worker_pids
from treedbd.config.certificate import ensure_local_certificate
from treedbd.config.endpoints import LOCAL_CERTIFICATE
from treedbd.operating.metrics import METRICS

LISTENS = 3
LONG_BYTES = 9_000_000
"""More than the kernel keeps for a client that does not read."""
CONFIG = f"""
{OPS_LISTEN}
[limits]
listens_per_connection = {LISTENS}
held_bytes_per_connection = 50000
[streams]
buffer_bytes = 65536
"""
ARCHIVE = """
[audit]
directory = "audit"
[archive]
to = "archive"
every_s = 0.1
"""
ONE_PROCESS = ("--workers", "1")
RULES = {
    "open": {".read": True, ".write": True},
    "present": {".read": "data.exists()"},
    "cursors": {"$user": {".write": True, ".volatile": True}},
}
LABELS = {
    "treedb_requests_total": {"method", "status", "project"},
    "treedb_request_seconds": set(),
    "treedb_writes_total": set(),
    "treedb_commit_seconds": set(),
    "treedb_commit_writes": set(),
    "treedb_streams": set(),
    "treedb_events_total": set(),
    "treedb_event_bytes_total": set(),
    "treedb_stale_streams_total": set(),
    "treedb_sockets": set(),
    "treedb_sockets_opened_total": set(),
    "treedb_socket_refusals_total": {"limit"},
    "treedb_socket_messages_total": {"direction"},
    "treedb_listens": set(),
    "treedb_listen_events_total": set(),
    "treedb_listen_event_bytes_total": set(),
    "treedb_stale_listens_total": set(),
    "treedb_disconnect_sessions": set(),
    "treedb_disconnect_writes_total": {"result"},
    "treedb_store_bytes": {"project", "database"},
    "treedb_cut_off_total": {"reason"},
    "treedb_held_bytes": set(),
    "treedb_held_refusals_total": {"limit"},
    "treedb_denied_total": {"project", "operation"},
    "treedb_token_failures_total": {"reason"},
    "treedb_turn_seconds": set(),
    "treedb_kept_answers_total": {"result"},
    "treedb_unindexed_queries_total": set(),
    "treedb_log_cursor_lag_entries": {"cursor"},
    "treedb_log_cursor_lag_bytes": {"cursor"},
    "treedb_log_cursor_lag_seconds": {"cursor"},
    "treedb_log_cursors_dropped_total": set(),
    "treedb_expired_nodes_total": set(),
    "treedb_expiry_late_seconds": set(),
    "treedb_expiry_lag_seconds": set(),
    "treedb_databases_open": set(),
    "treedb_volatile_writes_total": set(),
    "treedb_volatile_nodes": set(),
    "treedb_volatile_bytes": set(),
}
"""The names and labels that dashboards depend on."""


class MeteredDaemon:
    """A daemon whose metrics are looked at, and a client of it."""

    def __init__(self, daemon: Daemon, project: str = "shop") -> None:
        self.daemon = daemon
        self.project = project
        self.tree = Tree(daemon, project)
        self.closing = ExitStack()
        self._databases = 0
        self._volatile = 0

    def put(self) -> None:
        assert self.tree.status("PUT", "/open/a.json", '{"b":1}') == 200

    def put_volatile(self) -> None:
        self._volatile += 1
        assert self.tree.status("PUT", f"/cursors/{self._volatile}.json", '{"x":1}') == 200

    def get(self) -> None:
        assert self.tree.status("GET", "/open/a.json") == 200

    def deny(self) -> None:
        assert self.tree.status("GET", "/shut.json") == 403
        assert self.tree.status("PUT", "/shut.json", "1") == 403

    def leave_early(self) -> None:
        def cut_off() -> float:
            return scrape(self.daemon).get("treedb_cut_off_total", reason="client")

        before = cut_off()
        value = json.dumps("x" * LONG_BYTES)
        assert self.tree.status("PUT", "/open/long.json?print=silent", value) == 204
        with Wire(self.daemon.http) as wire:
            wire.bound_unread()
            wire.send(b"GET /open/long.json HTTP/1.1\r\nHost: shop.db.test\r\n\r\n")
            wire.socket.recv(1)
        wait_until(lambda: cut_off() == before + 1)

    def send_bad_token(self) -> None:
        assert self.tree.status("GET", at("/open/a.json", "not-a-token")) == 401

    def connect(self) -> None:
        wire = self.closing.enter_context(Wire(self.daemon.http))
        wire.send(b"GET /open/a.json HTTP/1.1\r\nHost: shop.db.test\r\n\r\n")
        assert wire.has_response(30)

    def send_half(self) -> None:
        """Send half of a long head, and wait until it is held."""
        before = scrape(self.daemon).get("treedb_held_bytes")
        wire = self.closing.enter_context(Wire(self.daemon.http))
        wire.send(b"GET /open/a.json HTTP/1.1\r\nFiller: " + 20_000 * b"x")
        wait_until(lambda: scrape(self.daemon).get("treedb_held_bytes") > before)

    def send_too_many_halves(self) -> None:
        wire = self.closing.enter_context(Wire(self.daemon.http))
        wire.send(b"GET /open/a.json HTTP/1.1\r\nFiller: " + 60_000 * b"x")
        assert wire.has_response(30)

    def query(self) -> None:
        assert self.tree.status("GET", at("/open.json", orderBy='"height"')) == 200

    def read_by_data(self) -> None:
        self.tree.seed("/present.json", 1)
        assert self.tree.status("GET", "/present.json") == 200

    def stream(self) -> Stream:
        stream = self.closing.enter_context(self.tree.listen("/open/s.json"))
        stream.next()
        return stream

    def open_stream(self) -> None:
        self.stream()

    def send_event(self) -> None:
        stream = self.stream()
        assert self.tree.status("PUT", "/open/s.json", '"event"') == 200
        assert stream.next().data["data"] == "event"

    def fall_behind(self) -> None:
        before = scrape(self.daemon).get("treedb_stale_streams_total")
        self.stream()  # which is not read any more
        value = json.dumps("x" * 1_000_000)
        for _ in range(60):
            assert self.tree.status("PUT", "/open/s.json?print=silent", value) == 204
            if scrape(self.daemon).get("treedb_stale_streams_total") > before:
                break

    def resume(self) -> None:
        resuming = {"Last-Event-ID": "1-00112233aabbccdd"}
        stream = self.tree.listen("/open/a.json?resume=true", resuming)
        self.closing.enter_context(stream).next()

    def socket(self) -> RealtimeClient:
        return self.closing.enter_context(RealtimeClient(self.tree))

    def open_socket(self) -> None:
        self.socket()

    def listen(self) -> None:
        self.socket().listen("open/l")

    def listen_too_often(self) -> None:
        client = self.socket()
        for number in range(LISTENS):
            client.listen(f"open/{number}")
        assert client.request("q", {"p": "open/more", "h": ""}).status == "unavailable"

    def send_listen_event(self) -> None:
        client = self.socket()
        client.listen("open/l")
        assert self.tree.status("PUT", "/open/l.json", '"event"') == 200
        assert client.next_push().body["d"] == "event"

    def fall_behind_over_a_socket(self) -> None:
        before = scrape(self.daemon).get("treedb_stale_listens_total")
        self.socket().listen("open/l")  # which is not read any more
        value = json.dumps("x" * 1_000_000)
        for _ in range(60):
            assert self.tree.status("PUT", "/open/l.json?print=silent", value) == 204
            if scrape(self.daemon).get("treedb_stale_listens_total") > before:
                break

    def prepare_to_leave(self) -> RealtimeClient:
        client = self.socket()
        client.succeed("o", {"p": "open/left", "d": 1})
        return client

    def be_about_to_leave(self) -> None:
        self.prepare_to_leave()

    def leave(self) -> None:
        def done() -> float:
            return scrape(self.daemon).get("treedb_disconnect_writes_total", result="done")

        before = done()
        self.prepare_to_leave().leave()
        wait_until(lambda: done() == before + 1)

    def write_unread(self) -> None:
        """Write what the reader of a database has not read, until a look has shown that."""
        before = scrape(self.daemon).get("treedb_log_cursor_lag_entries", cursor="other")
        with Tree(self.daemon, self.project, "read") as tree:
            tree.seed("/a.json", "unread")

        def has_grown() -> bool:
            now = scrape(self.daemon).get("treedb_log_cursor_lag_entries", cursor="other")
            return now > before

        wait_until(has_grown)

    def create_database(self) -> None:
        self._databases += 1
        with Tree(self.daemon, self.project, f"d{self._databases}") as tree:
            tree.seed("/a.json", "x" * 200_000)

    def break_database(self) -> None:
        self._databases += 1
        name = f"broken{self._databases}"
        with Tree(self.daemon, self.project, name) as tree:
            tree.seed("/a.json", 1)
        shelf = self.daemon.data / self.project / f"{name}.shelf"
        shelf.rename(shelf.with_suffix(".away"))

    def back_up(self) -> None:
        target = self.daemon.folder / "backup"
        done = run_command("backup", "--data", self.daemon.data, target)
        assert done.status == 0, done

    def put_and_archive(self) -> None:
        before = self.archived()
        self.put()
        wait_until(lambda: self.archived() > before)

    def lose_archive(self) -> None:
        """Write while the folder of the archive is away."""
        folder = self.daemon.folder / "archive"
        folder.rename(folder.with_name("away"))
        self.put()
        wait_until(lambda: scrape(self.daemon).get("treedb_archive_failures_total"))
        folder.with_name("away").rename(folder)
        before = self.archived()
        wait_until(lambda: self.archived() > before)

    def archived(self) -> float:
        return scrape(self.daemon).get("treedb_archive_segments_total")

    def renew_certificate(self) -> None:
        (self.daemon.data / LOCAL_CERTIFICATE).unlink()
        later = datetime.datetime.now(datetime.UTC) + datetime.timedelta(hours=1)
        ensure_local_certificate(self.daemon.data, later)
        reload(self.daemon)

    def use_processor(self) -> None:
        """Send requests until the kernel has counted a hundredth of a second."""

        def used_s() -> float:
            self.get()
            return scrape(self.daemon).get("process_cpu_seconds_total")

        before = used_s()
        wait_until(lambda: used_s() > before)


MOVES: dict[str, Callable[[MeteredDaemon], None]] = {
    "treedb_requests_total": MeteredDaemon.get,
    "treedb_request_seconds": MeteredDaemon.get,
    "treedb_received_bytes_total": MeteredDaemon.put,
    "treedb_sent_bytes_total": MeteredDaemon.get,
    "treedb_refusals_total": MeteredDaemon.deny,
    "treedb_cut_off_total": MeteredDaemon.leave_early,
    "treedb_denied_total": MeteredDaemon.deny,
    "treedb_token_failures_total": MeteredDaemon.send_bad_token,
    "treedb_connections": MeteredDaemon.connect,
    "treedb_held_bytes": MeteredDaemon.send_half,
    "treedb_held_refusals_total": MeteredDaemon.send_too_many_halves,
    "treedb_kept_answers_total": MeteredDaemon.get,
    "treedb_unindexed_queries_total": MeteredDaemon.query,
    "treedb_rule_seconds": MeteredDaemon.read_by_data,
    "treedb_writes_total": MeteredDaemon.put,
    "treedb_commit_seconds": MeteredDaemon.put,
    "treedb_commit_writes": MeteredDaemon.put,
    "treedb_sync_seconds": MeteredDaemon.put,
    "treedb_volatile_writes_total": MeteredDaemon.put_volatile,
    "treedb_volatile_nodes": MeteredDaemon.put_volatile,
    "treedb_volatile_bytes": MeteredDaemon.put_volatile,
    "treedb_streams": MeteredDaemon.open_stream,
    "treedb_events_total": MeteredDaemon.send_event,
    "treedb_event_bytes_total": MeteredDaemon.send_event,
    "treedb_stale_streams_total": MeteredDaemon.fall_behind,
    "treedb_resumptions_total": MeteredDaemon.resume,
    "treedb_sockets": MeteredDaemon.open_socket,
    "treedb_sockets_opened_total": MeteredDaemon.open_socket,
    "treedb_socket_refusals_total": MeteredDaemon.listen_too_often,
    "treedb_socket_messages_total": MeteredDaemon.listen,
    "treedb_listens": MeteredDaemon.listen,
    "treedb_listen_events_total": MeteredDaemon.send_listen_event,
    "treedb_listen_event_bytes_total": MeteredDaemon.send_listen_event,
    "treedb_stale_listens_total": MeteredDaemon.fall_behind_over_a_socket,
    "treedb_disconnect_sessions": MeteredDaemon.be_about_to_leave,
    "treedb_disconnect_writes_total": MeteredDaemon.leave,
    "treedb_log_cursor_lag_entries": MeteredDaemon.write_unread,
    "treedb_log_cursor_lag_bytes": MeteredDaemon.write_unread,
    "treedb_log_cursor_lag_seconds": MeteredDaemon.write_unread,
    "treedb_databases_open": MeteredDaemon.create_database,
    "treedb_store_bytes": MeteredDaemon.create_database,
    "treedb_project_store_bytes": MeteredDaemon.create_database,
    "treedb_disk_free_bytes": MeteredDaemon.create_database,
    "treedb_turn_seconds": MeteredDaemon.get,
    "treedb_certificate_end_timestamp_seconds": MeteredDaemon.renew_certificate,
    "process_cpu_seconds_total": MeteredDaemon.use_processor,
    "process_open_fds": MeteredDaemon.connect,
    "treedb_last_backup_timestamp_seconds": MeteredDaemon.back_up,
    "treedb_archive_segments_total": MeteredDaemon.put_and_archive,
    "treedb_archive_bytes_total": MeteredDaemon.put_and_archive,
    "treedb_archive_failures_total": MeteredDaemon.lose_archive,
    "treedb_problems": MeteredDaemon.break_database,
    "treedb_write_problems": MeteredDaemon.break_database,
}
"""What moves each metric, those last that leave something broken."""
ELSEWHERE = {
    # tests/archive/test_archiver.py: a write may be in the archive before the lag is read.
    *("treedb_archive_lag_seconds", "treedb_archive_last_base_timestamp_seconds"),
    "treedb_audit_lag_seconds",  # tests/audit/test_auditor.py
    # tests/hooks/test_delivery.py
    *("treedb_webhook_requests_total", "treedb_webhook_retries_total", "treedb_webhook_seconds"),
    *("treedb_webhook_lag_seconds", "treedb_webhook_dead_letters", "treedb_webhook_losses_total"),
    "treedb_waiting_writes",  # tests/database/test_statistics.py
    "treedb_log_cursors_dropped_total",  # tests/test_log_readers.py
    # tests/database/test_expirer.py
    *("treedb_expired_nodes_total", "treedb_expiry_late_seconds", "treedb_expiry_lag_seconds"),
    "treedb_processes",  # with two workers, below
    "process_resident_memory_bytes",  # tests/operating/test_probes.py
    # Of one process they stay as they are.
    *("treedb_build_info", "process_start_time_seconds", "process_max_fds"),
    "process_virtual_memory_bytes",
}
OF_STANDBYS = {"treedb_standby_lag_seconds"}
"""Of a standby only: tests/standby/test_standby.py."""


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MeteredDaemon]:
    folder = tmp_path_factory.mktemp("metrics")
    (folder / "archive").mkdir()
    seed_readers(folder / "data", ["read--shop"], "other")
    with trusting(folder, CONFIG + ARCHIVE, ["shop"], *ONE_PROCESS) as daemon:
        world = MeteredDaemon(daemon)
        world.tree.put_rules(RULES)
        daemon.await_line("This process is the reader archive.")
        with world.closing:
            yield world


@pytest.mark.parametrize("name", MOVES)
def test_every_metric_moves(world: MeteredDaemon, name: str) -> None:
    before = scrape(world.daemon).of(name)
    MOVES[name](world)
    after = scrape(world.daemon)
    if name.endswith("_total"):
        assert sum(after.of(name).values()) > sum(before.values())
    assert after.of(name) != before


def test_streams_and_sockets_are_counted_as_requests_when_clients_end_them(
    world: MeteredDaemon,
) -> None:
    def ended(status: str, project: str) -> float:
        counted = scrape(world.daemon)
        return counted.get("treedb_requests_total", method="GET", status=status, project=project)

    streams, sockets = ended("200", "shop"), ended("101", "")
    with world.tree.listen("/open/s.json") as stream:
        stream.next()
    with RealtimeClient(world.tree) as client:
        client.listen("open/l")
    wait_until(lambda: ended("101", "") > sockets)  # the stream has ended before
    assert ended("200", "shop") > streams


def test_the_table_of_moves_has_all_metrics(world: MeteredDaemon) -> None:
    names = {metric.name for metric in METRICS}
    assert names == MOVES.keys() | ELSEWHERE | OF_STANDBYS
    found = scrape(world.daemon)
    assert found.names == names
    assert all(found.of(name) for name in names - OF_STANDBYS)


def test_names_and_labels_are_those_that_dashboards_depend_on(world: MeteredDaemon) -> None:
    found = scrape(world.daemon).labels
    assert {name: found[name] for name in LABELS} == LABELS
    here = [metric for metric in METRICS if metric.name not in OF_STANDBYS]
    assert found == {metric.name: set(metric.labels) for metric in here}


def test_the_format_is_negotiated(world: MeteredDaemon) -> None:
    url = f"{ops_url(world.daemon)}/.metrics"
    _, headers, text = fetch(url)
    assert headers["content-type"].startswith("text/plain; version=0.0.4")
    _, open_headers, open_text = fetch(url, OPEN_METRICS)
    assert open_headers["content-type"].startswith("application/openmetrics-text; version=1.0.0")
    assert Scrape(open_text, is_open=True).names == Scrape(text).names
    assert fetch(url, method="HEAD")[2] == ""


@pytest.mark.parametrize(
    "path", ["/", "/.json", "/open/a.json", "/.metrics/", "/.inspect/databases.json", "/.docs/"]
)
def test_the_endpoints_of_operators_serve_nothing_else(world: MeteredDaemon, path: str) -> None:
    status, _, text = fetch(ops_url(world.daemon) + path)
    assert (status, json.loads(text)["error"]) == (404, "not_found")


def test_a_name_that_another_site_points_here_shows_operators_nothing(world: MeteredDaemon) -> None:
    """DNS rebinding: such a page has the origin of the endpoint, so no lack of CORS stops it."""
    url = ops_url(world.daemon)
    own = ("localhost:1", "ops.localhost", "[::1]", "192.0.2.1:9100", socket.gethostname())
    for path in ("/.metrics", "/.health", "/.health?ready"):
        for host in ("evil.example", "127.0.0.1.evil.example:9100", "localhost.x"):
            status, _, text = fetch(url + path, host=host)
            assert (status, json.loads(text)["error"]) == (421, "misdirected")
        assert 421 not in [fetch(url + path, host=host)[0] for host in own]
    assert fetch(f"{url}/.health?live", host="evil.example")[0] == 200


def test_other_methods_are_refused(world: MeteredDaemon) -> None:
    for path in ("/.metrics", "/.health"):
        status, headers, text = fetch(ops_url(world.daemon) + path, method="DELETE")
        assert (status, headers["allow"]) == (405, "GET, HEAD")
        assert json.loads(text)["error"] == "method_not_allowed"


def test_clients_find_no_metrics(world: MeteredDaemon) -> None:
    for host in ("shop.db.test", "localhost", "127.0.0.1"):
        found = world.daemon.request("GET", "/.metrics", headers={"Host": host})
        assert found.status == 404
        assert b"treedb_" not in found.body


def test_what_clients_send_is_no_label_and_no_token_is_shown(world: MeteredDaemon) -> None:
    daemon, tokens = world.daemon, [user("shop", "ada"), admin("shop"), "secret-token-of-nobody"]
    before = scrape(daemon)
    for token in tokens:
        for host in ("unheard-of.db.test", "shop.db.test", "eu--nobody.db.test"):
            headers = {"Host": host, "Authorization": f"Bearer {token}"}
            daemon.request("BREW", f"/sneaky/{token[:20]}.json", headers=headers)
            daemon.request("GET", f"/sneaky.json?ns=sneaky&auth={token}", headers={"Host": host})
    with Wire(daemon.http) as wire:
        wire.send(b"NONSENSE\r\n\r\n")
        assert wire.has_response(30)
    found = scrape(daemon)
    known = {value for _, labels in before.samples for _, value in labels}
    added = {value for _, labels in found.samples for _, value in labels} - known
    assert added <= {"other", "405", "404", "401", "400", "403", "421", "GET"} | {
        *("method_not_allowed", "not_found", "auth_required", "misdirected", "invalid_data"),
        *("malformed", "signature", "", "invalid_query", "invalid_path"),
    }
    assert found.get("treedb_requests_total", method="other", status="405", project="") > 0
    for token in tokens:
        assert token not in found.text
    assert not re.search("sneaky|eyJ|BREW|-nobody|unheard", found.text)


def test_health_shows_operators_names_and_reasons(world: MeteredDaemon) -> None:
    world.break_database()
    status, report = health(world.daemon)
    assert (status, report["error"], report["status"]) == (503, "unavailable", "unavailable")
    # The archive and readers of the change log may have problems of their own by now.
    problem = next(each for each in report["problems"] if each["refuses_writes"])
    assert problem["project"] == "shop"
    assert problem["database"].startswith("broken")
    assert "was moved" in problem["reason"]
    assert health(world.daemon, "?live") == (200, {"status": "ok"})
    assert health(world.daemon, "?ready")[0] == 503
    shown = world.daemon.request("GET", "/.health")
    assert (shown.status, b"broken" in shown.body) == (503, False)


def test_a_service_that_stops_is_alive_but_not_ready(tmp_path: pathlib.Path) -> None:
    with trusting(tmp_path, CONFIG, ["shop"], *ONE_PROCESS) as daemon, Wire(daemon.http) as client:
        # A request that is under way keeps the service from ending for a while.
        client.send(b"PUT /a.json HTTP/1.1\r\nHost: shop.db.test\r\nContent-Length: 9\r\n\r\n")
        client.send(b"1")
        url = ops_url(daemon)
        assert health(daemon)[0] == 200
        daemon.signal(signal.SIGTERM)
        wait_until(lambda: fetch(f"{url}/.health?ready")[0] == 503)
        assert fetch(f"{url}/.health?live")[0] == 200
        assert fetch(f"{url}/.metrics")[0] == 200
        client.close()
        assert daemon.wait() == 0


def test_operators_may_have_tls_and_the_flag_for_clients_does_not_change_it(
    tmp_path: pathlib.Path,
) -> None:
    files = ensure_local_certificate(tmp_path, datetime.datetime.now(datetime.UTC))
    keys = f"privateKey={files.key}:certKey={files.certificate}"
    config = f'ops_listen = ["ssl:0:interface=127.0.0.1:{keys}"]'
    with trusting(tmp_path, config, ["shop"]) as daemon:  # which gives --listen
        url = ops_url(daemon)
        assert url.startswith("https:")
        assert url not in daemon.urls
        health = request(url, "GET", "/.health", ca=files.certificate)
        assert health.json["status"] == "ok"


def sum_of(found: Scrape, name: str) -> float:
    return sum(found.of(name).values())


def test_any_worker_shows_the_numbers_of_all_and_none_falls_when_one_is_killed(
    tmp_path: pathlib.Path,
) -> None:
    with (
        trusting(tmp_path, OPS_LISTEN, ["shop"], "--workers", "2") as daemon,
        ExitStack() as closing,
    ):
        sent: list[Wire] = []

        def connect() -> Wire:
            wire = Tree(daemon, "shop").connect()
            deny(wire)
            return wire

        def deny(wire: Wire) -> None:
            wire.send(b"GET /a.json HTTP/1.1\r\nHost: shop.db.test\r\n\r\n")
            assert wire.receive().status == 403
            sent.append(wire)

        def denied() -> float:
            return scrape(daemon).get("treedb_denied_total", project="shop", operation="read")

        wires = [
            closing.enter_context(wire)
            for wire in one_of_each(daemon, connect, lambda wire: wire.socket)
        ]
        wait_until(lambda: scrape(daemon).get("treedb_connections") == 2)
        for wire in wires:
            for _ in range(5):
                deny(wire)
        wait_until(lambda: denied() == len(sent))
        names = ("treedb_requests_total", "treedb_denied_total", "treedb_refusals_total")

        found = scrape(daemon)
        assert found.get("treedb_processes") == 2
        first = worker_pids(daemon)
        kill(first[0])
        seen = [scrape(daemon)]
        wait_until(lambda: "serves again" in daemon.log)
        seen += [scrape(daemon) for _ in range(10)]
        for name in (*names, "process_cpu_seconds_total", "treedb_turn_seconds"):
            values = [sum_of(each, name) for each in (found, *seen)]
            assert values == sorted(values), name
        wait_until(lambda: scrape(daemon).get("treedb_processes") == 2)
        wait_until(lambda: scrape(daemon).get("treedb_connections") <= 1)


def test_an_endpoint_that_is_in_use_stops_the_start_with_a_sentence(
    tmp_path: pathlib.Path,
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        config = f'ops_listen = ["tcp:{port}:interface=127.0.0.1"]'
        done = trusting(tmp_path, config, ["shop"]).run()
    assert done.returncode == 1
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("treedb: ")]
    assert f"treedb.toml: ops_listen: tcp:{port}" in line
