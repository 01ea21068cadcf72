"""The daemon as an operator sees it: the real `twistd treedb` as a process."""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import ssl
import stat
import subprocess
import threading
import time
from http.client import HTTPConnection
from urllib.parse import urlsplit

import apsw
import pytest
from cryptography import x509

import treedbd
import twisted
from tests.access import admin, write_secret
from tests.daemon import TWISTD, Daemon, Response
from tests.injection import corrupt_row
from treedbd.config.certificate import ensure_local_certificate
from treedbd.config.endpoints import LOCAL_CERTIFICATE, LOCAL_KEY
from treedbd.service import DRAIN_SECONDS

LOOPBACK = "127.0.0.1"
TEN_SECONDS = 10.0
CONFIG = """
default_project = "shop"
[projects.shop]
"""
LOGGED = CONFIG + 'secret_files = ["shop.secret"]\n[http]\naccess_log = true\n'

MANY_ROWS = {f"k{number}": {"n": number, "text": "x" * 1500} for number in range(20)}


def served_certificate(url: str) -> bytes:
    host, port = urlsplit(url).hostname, urlsplit(url).port
    assert host is not None
    assert port is not None
    return ssl.get_server_certificate((host, port)).encode()


def failed_start(daemon: Daemon) -> str:
    """Run a daemon that cannot start; return the one sentence of its error."""
    done = daemon.run()
    assert done.returncode == 1
    assert "Traceback" not in done.stdout + done.stderr
    assert "treedb ready" not in done.stdout
    sentence = done.stderr
    assert sentence.startswith("treedb: ")
    assert sentence.endswith(".\n")
    assert sentence.count("\n") == 1
    return sentence


def test_the_log_begins_with_versions_data_projects_and_limits(tmp_path: pathlib.Path) -> None:
    with Daemon(tmp_path, config=CONFIG) as daemon:
        before, _, _ = daemon.log.partition("treedb ready")
    for words in (
        f"treedb {treedbd.__version__}, Twisted {twisted.__version__}, Python ",
        f", SQLite {apsw.sqlite_lib_version()}.",
        f"Data directory: {daemon.data}. Engine: sqlite. Workers: ",
        "Projects: shop. Default project: shop. Domains: any.",
        "Limits: 20000 connections, 16000 streams, 16000 WebSockets, 4000 databases, "
        "16777216 bytes in a body.",
    ):
        assert words in before


def test_development_mode_logs_each_request_unless_it_is_quiet(tmp_path: pathlib.Path) -> None:
    with Daemon(tmp_path) as daemon:
        daemon.request("PUT", "/a.json?auth=owner&limitTofirst=1", "1")
        daemon.await_line(r"PUT /a\.json 200 [0-9.]+ ms admin")
        assert "no parameter limitTofirst (did you mean limitToFirst?)" in daemon.log
    (tmp_path / "quiet").mkdir()
    with Daemon(tmp_path / "quiet", arguments=["--quiet"]) as daemon:
        daemon.request("PUT", "/a.json", "1")
        daemon.stop()
        assert "PUT /a.json" not in daemon.log


def test_a_log_that_nobody_reads_stops_no_request(tmp_path: pathlib.Path) -> None:
    words = ["--listen", f"tcp:0:interface={LOOPBACK}", "--data", str(tmp_path / "data")]
    command = [str(TWISTD), "-n", "--pidfile=", "treedb", *words]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as unread:
        try:
            assert unread.stdout is not None
            while "treedb ready" not in (line := unread.stdout.readline()):
                assert line, "It ended early."
            port = int(line.split()[-1].rpartition(":")[2])
            path = "x" * 500
            connection = HTTPConnection(LOOPBACK, port, timeout=60)
            for _ in range(400):  # three times what a pipe holds
                connection.request("GET", f"/{path}.json")
                assert connection.getresponse().read() == b"null"
            connection.close()
        finally:
            unread.kill()


def test_without_a_configuration_it_serves_with_tls_and_without(daemon: Daemon) -> None:
    assert [urlsplit(url).scheme for url in daemon.urls] == ["https", "http"]
    assert daemon.request("PUT", "/a.json", "1", secure=True).status == 200
    assert daemon.request("GET", "/a.json").body == b"1"
    assert "Development mode" in daemon.log


def test_development_mode_creates_projects_on_use(daemon: Daemon) -> None:
    port = daemon.port
    host = {"Host": f"eu--shop.localhost:{port}"}
    assert daemon.request("PUT", "/a.json", "2", host).status == 200
    assert daemon.request("GET", "/a.json?ns=eu--shop").body == b"2"
    assert daemon.request("GET", "/a.json").body == b"null"
    assert (daemon.data / "shop" / "eu.shelf").is_file()


def test_the_printed_command_works_when_pasted(tmp_path: pathlib.Path) -> None:
    folder = tmp_path / "a 'folder' $HOME"
    folder.mkdir()
    with Daemon(folder) as daemon:
        printed = re.search(r"curl .*", daemon.log)
        assert printed is not None
        done = subprocess.run(
            ["sh", "-c", printed[0]], cwd="/", capture_output=True, text=True, check=False
        )
        assert (done.returncode, done.stdout) == (0, '"world"'), done.stderr


def test_the_printed_command_works_when_rules_deny_too(daemon: Daemon) -> None:
    owner = {"Authorization": "Bearer owner"}
    assert daemon.request("PUT", "/.settings/rules.json", '{"rules": {}}', owner).status == 200
    mark = daemon.mark()
    daemon.restart()
    printed = re.search(r"curl .*", daemon.log_since(mark))
    assert printed is not None
    done = subprocess.run(
        ["sh", "-c", printed[0]], cwd="/", capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, '"world"'), done.stderr
    assert "until rules are put" in daemon.log


def test_without_a_url_no_command_is_printed(tmp_path: pathlib.Path) -> None:
    with Daemon(tmp_path, listen=[f"unix:{tmp_path}/socket"]) as daemon:
        assert daemon.urls == [f"unix:{tmp_path}/socket"]
        assert stat.S_IMODE((tmp_path / "socket").stat().st_mode) == 0o660
        assert "Try:" not in daemon.log


def test_its_files_are_readable_by_their_owner_only(daemon: Daemon) -> None:
    assert daemon.request("PUT", "/a.json", "1").status == 200
    for path in (daemon.data, *daemon.data.rglob("*")):
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path


def test_an_empty_directory_loses_the_permissions_of_others(
    tmp_path: pathlib.Path,
) -> None:
    (tmp_path / "data").mkdir(mode=0o755)
    with Daemon(tmp_path) as daemon:
        assert stat.S_IMODE(daemon.data.stat().st_mode) == 0o700


def test_an_expired_certificate_is_replaced(tmp_path: pathlib.Path) -> None:
    data = tmp_path / "data"
    data.mkdir(mode=0o700)
    long_ago = datetime.datetime(2001, 1, 1, tzinfo=datetime.UTC)
    old = ensure_local_certificate(data, long_ago).certificate.read_bytes()
    with Daemon(tmp_path) as daemon:
        assert daemon.ca.read_bytes() != old
        assert daemon.request("GET", "/a.json", secure=True).status == 200


def test_a_restart_keeps_the_certificate(daemon: Daemon) -> None:
    before = daemon.ca.read_bytes()
    daemon.restart()
    assert daemon.ca.read_bytes() == before


def test_a_value_survives_a_restart_and_a_kill(daemon: Daemon) -> None:
    assert daemon.request("PUT", "/a.json", "1").status == 200
    daemon.restart()
    assert daemon.request("PUT", "/b.json", "2").status == 200
    daemon.kill()
    daemon.start()
    assert json.loads(daemon.request("GET", "/.json").body) == {"a": 1, "b": 2}
    assert daemon.stop() == 0
    assert "Traceback" not in daemon.log


def test_a_loss_that_the_operator_accepts_is_served_and_logged(tmp_path: pathlib.Path) -> None:
    with Daemon(tmp_path) as daemon:
        assert daemon.request("PUT", "/a.json", "1").status == 200
    shelf = daemon.data / "demo" / "default.shelf"
    shelf.with_name("default.shelf-wal").unlink()
    with Daemon(tmp_path, arguments=["--accept-loss"]) as daemon:
        assert daemon.request("GET", "/a.json").body == b"null"
        daemon.await_line(f"{shelf} ends with change 0, but change 1 had been made durable.")
        assert daemon.request("PUT", "/a.json", "2").status == 200
    with Daemon(tmp_path) as daemon:
        assert daemon.request("GET", "/a.json").body == b"2"


def test_a_file_that_is_moved_meanwhile_is_written_again_once_it_is_back(daemon: Daemon) -> None:
    assert daemon.request("PUT", "/a.json", "1").status == 200
    folder = daemon.data / "demo"
    away = folder.rename(daemon.data / "away")
    assert daemon.request("GET", "/.health").status == 503
    refused = daemon.request("PUT", "/a.json", "2")
    assert refused.status == 503
    assert "was moved, removed or replaced; put it back." in refused.json["message"]
    assert str(daemon.data) not in refused.json["message"]
    assert daemon.request("GET", "/a.json").body == b"1"
    assert not folder.exists()
    away.rename(folder)
    daemon.await_line("it accepts writes again")
    assert daemon.request("GET", "/.health").status == 200
    assert daemon.request("PUT", "/a.json", "3").status == 200


def test_a_configuration_is_served(tmp_path: pathlib.Path) -> None:
    config = 'domains = ["db.example.com"]\n[projects.shop]\ndatabases = ["default", "eu"]\n'
    with Daemon(tmp_path, config=config) as daemon:
        assert "Development mode" not in daemon.log
        host = {"Host": "eu--shop.db.example.com"}
        assert daemon.request("GET", "/a.json", headers=host, secure=True).status != 404
        unknown = {"Host": "other.db.example.com"}
        assert daemon.request("GET", "/a.json", headers=unknown).status == 404
        assert daemon.request("GET", "/a.json").status == 404
        foreign = {"Host": "db.example.net"}
        assert daemon.request("GET", "/a.json", headers=foreign).status == 421


def test_the_memory_engine_writes_no_database(tmp_path: pathlib.Path) -> None:
    with Daemon(tmp_path, arguments=["--engine", "memory"]) as daemon:
        assert daemon.request("PUT", "/a.json", "1").status == 200
        assert not list(daemon.data.rglob("*.shelf"))
        daemon.restart()
        assert daemon.request("GET", "/a.json").body == b"null"


def test_a_port_in_use_is_one_sentence(tmp_path: pathlib.Path) -> None:
    with socket.create_server((LOOPBACK, 0)) as used:
        port = used.getsockname()[1]
        endpoint = f"tcp:{port}:interface={LOOPBACK}"
        sentence = failed_start(Daemon(tmp_path, listen=[endpoint]))
        assert endpoint in sentence
        assert "Address already in use" in sentence


def test_a_data_directory_in_use_is_one_sentence(daemon: Daemon) -> None:
    assert str(daemon.data) in failed_start(Daemon(daemon.folder))
    assert daemon.request("GET", "/a.json").status == 200


def test_a_refused_database_is_one_sentence_in_the_log_and_the_others_are_served(
    daemon: Daemon,
) -> None:
    for name in ("bad", "good"):
        assert daemon.request("PUT", f"/a.json?ns={name}", f'"{name}"').status == 200
    assert daemon.stop() == 0
    file = daemon.data / "bad" / "default.shelf"
    content = file.read_bytes()
    file.write_bytes(b"x" * 8192)
    daemon.start()
    (line,) = [line for line in daemon.log.splitlines() if "is not a database of treedb" in line]
    assert f"{file} is not" in line
    assert daemon.request("GET", "/a.json?ns=good").body == b'"good"'
    for method, body in (("GET", None), ("PUT", "1"), ("DELETE", None)):
        refused = daemon.request(method, "/a.json?ns=bad", body)
        assert refused.status == 503
        assert refused.json == {
            "error": "The database cannot be opened; the log of the server says why."
        }
    assert daemon.request("GET", "/.health").status == 503
    file.write_bytes(content)
    daemon.signal(signal.SIGHUP)
    daemon.await_line("The database bad is served again.")
    assert daemon.request("GET", "/a.json?ns=bad").body == b'"bad"'
    assert daemon.request("GET", "/.health").status == 200


def test_a_row_damaged_at_run_time_is_unavailable_and_the_others_are_served(
    daemon: Daemon,
) -> None:
    assert daemon.request("PUT", "/.json?print=silent", json.dumps(MANY_ROWS)).status == 204
    corrupt_row(daemon.data / "demo" / "default.shelf", "k7")
    put = daemon.request("PUT", "/other.json", "1")
    assert put.status == 200  # lets the moment go that readers may still hold
    tagged = {"X-TreeDB-ETag": "true"}
    responses = [
        daemon.request("GET", "/k7.json", headers=tagged),
        daemon.request("GET", "/k7.json?print=pretty"),
        daemon.request("GET", "/k7/n.json"),
        daemon.request("GET", '/.json?orderBy="n"'),
        daemon.request("PUT", "/k7/n.json", "8"),
        daemon.request("PUT", "/k7/n.json", "8", headers={"If-Match": "*"}),
        daemon.request("PATCH", "/k7.json", '{"n": 8}', headers=tagged),
    ]
    assert [(response.status, json.loads(response.body)["error"]) for response in responses] == [
        (503, "unavailable")
    ] * len(responses)
    assert daemon.request("GET", "/k8.json", headers=tagged).status == 200
    assert daemon.request("PUT", "/k8/n.json", "9").status == 200
    assert daemon.request("PUT", "/k7.json", '{"n": 1}').status == 200
    assert b'"k7":{"n":1}' in daemon.request("GET", '/.json?orderBy="n"').body


def test_a_data_directory_that_cannot_be_created_is_one_sentence(tmp_path: pathlib.Path) -> None:
    (tmp_path / "data").write_bytes(b"")
    assert str(tmp_path / "data") in failed_start(Daemon(tmp_path))


@pytest.mark.parametrize("content", [None, b"", b"-----BEGIN CERTIFICATE-----\nx"])
def test_an_unreadable_certificate_is_one_sentence(
    tmp_path: pathlib.Path, content: bytes | None
) -> None:
    ensure_local_certificate(tmp_path, datetime.datetime.now(datetime.UTC))
    if content is None:
        (tmp_path / LOCAL_CERTIFICATE).unlink()
    else:
        (tmp_path / LOCAL_CERTIFICATE).write_bytes(content)
    endpoint = f"ssl:0:interface={LOOPBACK}:privateKey={LOCAL_KEY}:certKey={LOCAL_CERTIFICATE}"
    sentence = failed_start(Daemon(tmp_path, config="", listen=[endpoint]))
    assert str(tmp_path / LOCAL_CERTIFICATE) in sentence


@pytest.mark.parametrize(
    ("config", "listen", "arguments", "words"),
    [
        ("lissten = 1", [f"tcp:0:interface={LOOPBACK}"], [], ["treedb.toml: lissten", "listen"]),
        ("", [], [], ["treedb.toml: listen", "--listen"]),
        (None, ["tcp:0"], [], ["listen", "interface=127.0.0.1"]),
        (None, None, ["--engine", "tape"], ["engine", "sqlite"]),
        (None, None, ["--color"], ["--color", "--help"]),
        (None, None, ["more"], ["arguments", "--help"]),
        (None, None, ["--config", "missing.toml"], ["missing.toml", "No such file"]),
    ],
)
def test_a_bad_setting_is_one_sentence(
    tmp_path: pathlib.Path,
    config: str | None,
    listen: list[str] | None,
    arguments: list[str],
    words: list[str],
) -> None:
    daemon = Daemon(tmp_path, config=config, listen=listen, arguments=arguments)
    sentence = failed_start(daemon)
    for word in words:
        assert word in sentence


def send_part_of_head(connection: socket.socket) -> None:
    connection.sendall(b"GET /a.json HTTP/1.1\r\nHost: localhost\r\nX: ")


def send_part_of_body(connection: socket.socket) -> None:
    connection.sendall(
        b"PUT /a.json HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000\r\n\r\n[1,"
    )


def be_idle(connection: socket.socket) -> None:
    connection.sendall(b"GET /a.json HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert connection.recv(4096).startswith(b"HTTP/1.1 200 ")


def send_nothing(connection: socket.socket) -> None:
    """Send nothing; on a port with TLS the handshake never starts."""


def test_no_client_prevents_an_end_with_status_0(daemon: Daemon) -> None:
    context = ssl.create_default_context(cafile=str(daemon.ca))
    with contextlib.ExitStack() as clients:
        for act in (send_part_of_head, send_part_of_body, be_idle, send_nothing):
            for url in (urlsplit(daemon.http), urlsplit(daemon.https)):
                connection = socket.create_connection((LOOPBACK, url.port), timeout=30)
                if url.scheme == "https" and act is not send_nothing:
                    connection = context.wrap_socket(connection, server_hostname=LOOPBACK)
                clients.enter_context(connection)
                act(connection)
        start = time.monotonic()
        assert daemon.stop() == 0
        assert time.monotonic() - start < TEN_SECONDS
    assert "Traceback" not in daemon.log


def test_sigint_ends_it_with_status_0_as_well(daemon: Daemon) -> None:
    assert daemon.request("PUT", "/a.json", "1").status == 200
    daemon.signal(signal.SIGINT)
    assert daemon.wait() == 0
    assert "Traceback" not in daemon.log


def test_a_reader_that_does_not_read_is_cut_off_by_a_stop_and_logged_so(
    tmp_path: pathlib.Path,
) -> None:
    whole = json.dumps("x" * 9_000_000)
    token = "?auth=" + admin("shop")
    write_secret(tmp_path, "shop")
    with Daemon(tmp_path, config=LOGGED) as daemon:
        assert daemon.request("PUT", "/long.json" + token, whole).status == 200
        port = daemon.port
        with socket.create_connection((LOOPBACK, port), timeout=30) as client:
            client.sendall(f"GET /long.json{token} HTTP/1.1\r\nHost: a\r\n\r\n".encode())
            assert client.recv(1)
            began = time.monotonic()
            assert daemon.stop() == 0
            assert time.monotonic() - began > DRAIN_SECONDS - 0.5  # it had this time to read
        (line,) = [line for line in daemon.log.splitlines() if "cut_off=stop" in line]
    assert " 200, cut off " in line


def test_a_second_sigterm_changes_nothing(daemon: Daemon) -> None:
    with socket.create_connection((LOOPBACK, daemon.port), timeout=30) as client:
        send_part_of_body(client)
        daemon.signal(signal.SIGTERM)
        daemon.await_line("TCP Port .* Closed")
        assert daemon.stop() == 0
    assert "Traceback" not in daemon.log


def test_a_write_under_way_is_committed_and_acknowledged_before_it_ends(
    tmp_path: pathlib.Path,
) -> None:
    trace = tmp_path / "trace"
    slow_disk = [
        *("strace", "-D", "-f", "--seccomp-bpf", "-qq"),
        *("-o", str(trace), "-e", "trace=fsync,fdatasync"),
        *("-e", "inject=fsync,fdatasync:delay_enter=700000"),
    ]
    with Daemon(tmp_path) as daemon:
        assert daemon.request("PUT", "/warm.json", "0").status == 200
        assert daemon.stop() == 0
    with Daemon(tmp_path, prefix=slow_disk) as daemon:
        responses: list[Response] = []
        before = trace.read_text().count("sync(")
        writer = threading.Thread(
            target=lambda: responses.append(daemon.request("PUT", "/a.json", "1"))
        )
        writer.start()
        tail = subprocess.Popen(
            ["tail", "-n", "+1", "-f", str(trace)], stdout=subprocess.PIPE, text=True
        )
        assert tail.stdout is not None
        for _ in range(before + 1):
            while "sync(" not in tail.stdout.readline():
                pass
        assert daemon.stop() == 0
        writer.join(TEN_SECONDS)
        tail.kill()
        tail.communicate()
        assert [response.status for response in responses] == [200]
    with Daemon(tmp_path) as daemon:
        assert daemon.request("GET", "/a.json").body == b"1"


def test_sighup_loads_the_new_certificate_and_closes_no_connection(tmp_path: pathlib.Path) -> None:
    with Daemon(tmp_path, config=CONFIG) as daemon:
        connection = daemon.connect(secure=True)
        connection.request("GET", "/.health")
        assert connection.getresponse().read()
        old = served_certificate(daemon.https)
        daemon.ca.unlink()
        ensure_local_certificate(daemon.data, datetime.datetime.now(datetime.UTC))
        daemon.signal(signal.SIGHUP)
        connection.request("GET", "/.health")
        assert connection.getresponse().read()
        new = served_certificate(daemon.https)
        assert new != old
        assert x509.load_pem_x509_certificate(new) == x509.load_pem_x509_certificate(
            daemon.ca.read_bytes()
        )
        connection.close()


def test_sighup_with_an_invalid_certificate_keeps_the_old_and_logs_it(
    tmp_path: pathlib.Path,
) -> None:
    with Daemon(tmp_path, config=CONFIG) as daemon:
        old = served_certificate(daemon.https)
        daemon.ca.write_bytes(b"broken")
        daemon.signal(signal.SIGHUP)
        assert served_certificate(daemon.https) == old
        assert daemon.stop() == 0
        assert f"{daemon.ca} holds no certificate" in daemon.log
        assert "Traceback" not in daemon.log


@pytest.mark.parametrize("access_log", ["true", "false"])
def test_no_token_and_no_query_reaches_the_log(tmp_path: pathlib.Path, access_log: str) -> None:
    config = CONFIG + f"[http]\naccess_log = {access_log}\n"
    with Daemon(tmp_path, config=config) as daemon:
        for method in ("GET", "PUT", "BREW"):
            daemon.request(method, "/seen.json?auth=hush.hush.hush&x=hush", "1")
            daemon.request(method, "/seen.json", "{", {"Authorization": "Bearer hush"})
        with socket.create_connection((LOOPBACK, daemon.port), timeout=30) as raw:
            raw.sendall(b"GET /\xff.json?auth=hush HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert raw.recv(4096).startswith(b"HTTP/1.1 400 ")
        daemon.request("GET", "http://u:hush@localhost/whole.json?auth=hush")
        daemon.request("GET", "/%1B%C2%9B.json")
        assert daemon.stop() == 0
        assert "hush" not in daemon.log
        assert not re.search(r"[^\x20-\x7e\n]", daemon.log)
        assert ("GET /whole.json" in daemon.log) is (access_log == "true")
        assert ("/seen.json" in daemon.log) is (access_log == "true")


def test_it_runs_in_the_background(tmp_path: pathlib.Path) -> None:
    log, pid = tmp_path / "log", tmp_path / "pid"
    log.touch()
    command = [
        *(str(TWISTD), f"--logfile={log}", f"--pidfile={pid}", "treedb"),
        *("--data", str(tmp_path / "data"), "--listen", f"tcp:0:interface={LOOPBACK}"),
    ]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    number = pid.read_text()
    tail = subprocess.Popen(
        ["tail", "-n", "+1", "-f", f"--pid={number}", str(log)], stdout=subprocess.PIPE, text=True
    )
    try:
        assert tail.stdout is not None
        while "treedb ready http://127.0.0.1:" not in (line := tail.stdout.readline()):
            assert line, "It ended early."
    finally:
        subprocess.run(["kill", number], check=True)
        rest, _ = tail.communicate(timeout=20)
    assert "Server Shut Down." in rest
    assert not pid.exists()


def test_a_start_that_fails_in_the_background_has_status_1_and_is_logged(
    tmp_path: pathlib.Path,
) -> None:
    (tmp_path / "data").write_bytes(b"")
    log, pid = tmp_path / "log", tmp_path / "pid"
    command = [
        *(str(TWISTD), f"--logfile={log}", f"--pidfile={pid}", "treedb"),
        *("--data", str(tmp_path / "data"), "--listen", f"tcp:0:interface={LOOPBACK}"),
    ]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert f"The data directory {tmp_path / 'data'} cannot be used" in log.read_text()
    until = time.monotonic() + 10  # twistd returns before the daemonised process has ended
    while pid.exists() and time.monotonic() < until:
        os.sched_yield()
    assert not pid.exists()


def test_two_daemons_on_one_machine_are_independent(
    daemon: Daemon, tmp_path_factory: pytest.TempPathFactory
) -> None:
    with Daemon(tmp_path_factory.mktemp("other")) as other:
        assert daemon.request("PUT", "/a.json", "1").status == 200
        assert other.request("GET", "/a.json").body == b"null"


def test_a_data_directory_can_be_copied_while_it_is_stopped(
    daemon: Daemon, tmp_path_factory: pytest.TempPathFactory
) -> None:
    assert daemon.request("PUT", "/a.json", "1").status == 200
    assert daemon.stop() == 0
    folder = tmp_path_factory.mktemp("copy")
    shutil.copytree(daemon.data, folder / "data")
    with Daemon(folder) as copy:
        assert copy.request("GET", "/a.json").body == b"1"


def test_it_shows_an_admin_how_long_its_turns_last(daemon: Daemon) -> None:
    owner = {"Authorization": "Bearer owner"}
    assert daemon.request("PUT", "/a.json", "1").status == 200
    first, second = (daemon.request("GET", "/.health", headers=owner).json for _ in range(2))
    assert first["status"] == "ok"
    assert 0 < first["turns"]["count"] < second["turns"]["count"]
    assert 0 < first["turns"]["p50_ms"] <= first["turns"]["p99_ms"] <= first["turns"]["longest_ms"]
    assert daemon.request("GET", "/.health").json == {"status": "ok"}


def test_an_index_that_rules_have_gained_is_built_after_the_start(tmp_path: pathlib.Path) -> None:
    with Daemon(tmp_path) as daemon:
        assert daemon.request("PUT", "/list.json?print=silent", json.dumps(MANY_ROWS)).status == 204
        rules = daemon.data / "demo" / "rules.json"
    rules.write_text('{"rules":{".read":true,".write":true,"list":{".indexOn":"n"}}}')
    with Daemon(tmp_path) as daemon:
        daemon.await_line("The index n of /list in the database demo is built.")
        query = daemon.request("GET", '/list.json?orderBy="n"&equalTo=7')
        assert list(json.loads(query.body)) == ["k7"]
