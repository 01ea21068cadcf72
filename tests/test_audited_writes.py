"""The audit of a daemon: each acknowledged write, by whichever way, also after a kill; no token."""

from __future__ import annotations

import json
import pathlib
import random
import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Final

import pytest

from tests.access import Tree
from tests.command import run_command
from tests.daemon import Daemon, request
from tests.postgresql import servers
from tests.realtime import RealtimeClient
from tests.rest import Client
from tests.sse import EventStream
from tests.standby.pair import ask, make_daemon, until
from tests.system import wait_until
from tests.workers_of import kill, worker_pids
from treedbd.audit.chain import verify
from treedbd.audit.series import list_files, list_series
from treedbd.web.auth.jwt import mint

SECRET: Final = b"a secret of the project, long enough"
RULES: Final = json.dumps(
    {"rules": {"open": {".read": True, ".write": True}, "own": {".write": "auth.uid == 'ada'"}}}
)
CONFIG: Final = """
domains = ["localhost"]
default_project = "shop"
trusted_proxies = ["127.0.0.1"]
[projects.shop]
secret_files = ["secret"]
rules_file = "rules.json"
databases = "*"
dialect = "standard"
[audit]
directory = "audit"
reads = true
denied = true
"""


def prepare(folder: pathlib.Path, *, workers: int = 1, arguments: Sequence[str] = ()) -> Daemon:
    (folder / "secret").write_bytes(SECRET)
    (folder / "secret").chmod(0o600)
    (folder / "rules.json").write_text(RULES)
    return Daemon(
        folder,
        config=CONFIG,
        listen=["tcp:0:interface=127.0.0.1"],
        arguments=[
            "--workers",
            str(workers),
            *([] if workers == 1 else ["--engine", "sqlite"]),
            *arguments,
        ],
    )


def lines_in(folder: pathlib.Path, kind: str) -> list[dict[str, Any]]:
    """Return the lines of a kind in all series that are whole."""
    found = []
    for series in list_series(folder / "audit"):
        for file in list_files(series):
            lines = file.path.read_bytes().splitlines(keepends=True)
            found += [json.loads(line) for line in lines if line.endswith(b"\n")]
    return [each for each in found if each.get("kind") == kind]


def await_lines(folder: pathlib.Path, kind: str, is_so: Callable[[list[Any]], bool]) -> list[Any]:
    """Wait until the lines of a kind are as they should be."""

    def look() -> bool:
        return (folder / "audit").exists() and is_so(lines_in(folder, kind))

    wait_until(look)
    return lines_in(folder, kind)


def faults_in(folder: pathlib.Path) -> list[str]:
    return [str(each) for series in list_series(folder / "audit") for each in verify(series).faults]


def token_of(uid: str, **claims: Any) -> str:
    return mint(SECRET, {"uid": uid, **claims}, now=time.time())


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    with prepare(tmp_path_factory.mktemp("audited")) as running:
        yield running


@pytest.fixture
def client(daemon: Daemon) -> Iterator[Client]:
    with Client(daemon, "localhost") as opened:
        yield opened


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def put(daemon: Daemon, path: str, headers: dict[str, str]) -> int:
    return request(daemon.http, "PUT", path, "1", headers).status


def audited(
    daemon: Daemon, path: str, kind: str = "write", count: int = 1, more: str = "as"
) -> list[Any]:
    """Return the lines of a path, as soon as there are so many; `more` names other members."""

    def at_path(found: list[Any]) -> list[Any]:
        return [each for each in found if each.get("path", "").endswith(path)]

    found = await_lines(daemon.folder, kind, lambda found: len(at_path(found)) >= count)
    return [
        {name: each.get(name) for name in ("uid", "admin", "from", "token_id", "means")}
        | {name: each[name] for name in ("as", "method") if name in each and name in more}
        for each in at_path(found)
    ]


def caller(uid: str | None, token_id: str | None, means: str, **more: Any) -> dict[str, Any]:
    expected = {"uid": uid, "admin": None, "from": "127.0.0.1", "token_id": token_id}
    return expected | {"means": means} | more


def test_a_request_is_audited_with_its_address_and_the_id_of_its_token(daemon: Daemon) -> None:
    ada, root = token_of("ada", jti="order-7"), token_of("root", admin=True)
    assert put(daemon, "/own/a.json", bearer(ada)) == 200
    through_proxy = bearer(root) | {"X-Forwarded-For": "203.0.113.9"}
    assert put(daemon, "/own/b.json", through_proxy) == 200
    assert put(daemon, "/open/c.json", {}) == 200
    shown = request(daemon.http, "GET", "/.inspect/caller.json", None, bearer(root)).json
    assert shown["token_id"].startswith("sha256:")
    assert audited(daemon, "/own/a") == [caller("ada", "order-7", "http")]
    expected = caller("root", shown["token_id"], "http", admin=True)
    assert audited(daemon, "/own/b") == [expected | {"from": "203.0.113.9"}]
    assert audited(daemon, "/open/c") == [caller(None, None, "http")]


def test_writes_of_a_socket_are_audited_now_and_at_its_end(daemon: Daemon, client: Client) -> None:
    ada = token_of("ada", jti="socket-1")
    with RealtimeClient(client) as socket:
        socket.succeed("auth", {"cred": ada})
        socket.succeed("p", {"p": "/own/socket", "d": 1})
        socket.succeed("o", {"p": "/own/at-end", "d": 1})
    assert audited(daemon, "/own/socket") == [caller("ada", "socket-1", "socket")]
    assert audited(daemon, "/own/at-end") == [caller("ada", "socket-1", "end")]


def test_what_a_stream_writes_at_its_end_is_audited_as_its_own(
    daemon: Daemon, client: Client
) -> None:
    target = "/open/presence.json?onDisconnect=%7B%22gone%22:true%7D"
    headers = bearer(token_of("ada", jti="stream-1"))
    with EventStream(client, target, headers) as stream:
        stream.next_change()
    assert audited(daemon, "/open/presence") == [caller("ada", "stream-1", "end")]


def test_denied_writes_are_recorded_and_denied_reads_are_not(
    daemon: Daemon, client: Client
) -> None:
    eve = token_of("eve", jti="eve-1")
    assert put(daemon, "/own/denied.json", bearer(eve)) == 403
    assert put(daemon, "/own/denied.json", bearer(eve + "x")) == 401
    read_only = bearer(token_of("root", admin=True, read_only=True, jti="ro"))
    assert put(daemon, "/own/denied.json", read_only) == 403
    assert request(daemon.http, "GET", "/own/denied.json", None, bearer(eve)).status == 403
    with RealtimeClient(client) as socket:
        socket.succeed("auth", {"cred": eve})
        assert socket.request("p", {"p": "own/denied", "d": 1}).status == "permission_denied"
    assert audited(daemon, "own/denied", "denied", 4) == [
        caller("eve", "eve-1", "http"),
        caller(None, None, "http"),
        caller("root", "ro", "http", admin=True),
        caller("eve", "eve-1", "socket"),
    ]


def test_reads_of_admins_are_recorded_whatever_the_way(daemon: Daemon, client: Client) -> None:
    root, ada = token_of("root", admin=True, jti="root-1"), token_of("ada")
    headers = bearer(root)
    for _ in range(2):
        assert request(daemon.http, "GET", "/open/read.json", None, headers).status == 200
    assert request(daemon.http, "GET", "/open/read.json", None, bearer(ada)).status == 200
    overriding = "/open/read.json?auth_variable_override=null"
    assert request(daemon.http, "GET", overriding, None, headers).status == 200
    with EventStream(client, "/open/read.json", headers) as stream:
        stream.next_change()
    with Client(daemon, "localhost") as other, RealtimeClient(other) as socket:
        socket.succeed("auth", {"cred": root})
        socket.listen("/open/read")
        socket.get("/open/read")
    found = audited(daemon, "/open/read", "read", 6)
    http = caller("root", "root-1", "http", admin=True)
    socket_line = http | {"means": "socket"}
    assert found == [http, http, http | {"as": None}, http, *[socket_line] * 2]
    condition = headers | {"If-Match": "other"}
    assert put(daemon, "/open/read.json", condition) == 412  # with the value
    assert len(audited(daemon, "/open/read", "read", 7)) == 7


def test_an_admin_is_named_who_acts_as_another_caller(daemon: Daemon, client: Client) -> None:
    root = token_of("root", admin=True, jti="acting")
    as_ada = '?auth_variable_override={"uid":"ada"}'
    assert put(daemon, f"/own/as.json{as_ada}", bearer(root)) == 200
    assert put(daemon, f"/own/as.json{as_ada.replace('ada', 'eve')}", bearer(root)) == 403
    expected = caller("root", "acting", "http", admin=True)
    assert audited(daemon, "/own/as") == [expected | {"as": "ada"}]
    assert audited(daemon, "/own/as", "denied") == [expected | {"as": "eve"}]
    with RealtimeClient(client) as socket:
        socket.succeed("gauth", {"cred": root, "authvar": {"uid": "ada"}})
        socket.succeed("p", {"p": "/own/as-socket", "d": 1})
        socket.succeed("o", {"p": "/own/as-end", "d": 1})
    expected |= {"as": "ada"}
    assert audited(daemon, "/own/as-socket") == [expected | {"means": "socket"}]
    assert audited(daemon, "/own/as-end") == [expected | {"means": "end"}]


def test_a_write_of_a_socket_that_is_denied_has_its_method_and_means(
    daemon: Daemon, client: Client
) -> None:
    with RealtimeClient(client) as socket:
        socket.succeed("auth", {"cred": token_of("eve", jti="e")})
        for action in ("p", "m", "o", "om"):
            answer = socket.request(action, {"p": "/own/four", "d": {"a": 1}})
            assert answer.status == "permission_denied"
    found = audited(daemon, "/own/four", "denied", 4, "method")
    named = sorted((each["means"], each["method"]) for each in found)
    assert named == [("end", "PATCH"), ("end", "PUT"), ("socket", "PATCH"), ("socket", "PUT")]


def test_what_an_admin_sets_is_recorded(daemon: Daemon) -> None:
    headers = bearer(token_of("root", admin=True, jti="setter"))
    made = request(daemon.http, "POST", "/.settings/tokens.json", '{"uid":"bob"}', headers)
    assert made.status == 200
    assert audited(daemon, "/.settings/tokens.json", "settings") == [
        caller("root", "setter", "http", admin=True)
    ]
    (line,) = await_lines(daemon.folder, "token", bool)
    token = request(
        daemon.http, "GET", "/.inspect/caller.json", None, bearer(made.json["token"])
    ).json
    assert line["made"] == {"uid": "bob", "token_id": token["token_id"]}


def test_a_database_that_is_created_and_deleted_is_audited_to_its_end(daemon: Daemon) -> None:
    headers = bearer(token_of("root", admin=True))
    target = "/.settings/database.json?ns=brief--shop"
    assert request(daemon.http, "PUT", target, None, headers).status == 200
    assert put(daemon, "/open/last.json?ns=brief--shop", {}) == 200
    answer = request(daemon.http, "DELETE", f"{target}&confirm=brief--shop", None, headers)
    assert answer.status == 200, answer
    assert audited(daemon, "/open/last") == [caller(None, None, "http")]


def test_no_token_is_in_any_file(daemon: Daemon) -> None:
    token = token_of("ada")
    signature = token.rpartition(".")[2]
    put(daemon, "/open/t.json", bearer(token))
    put(daemon, f"/open/t.json?auth={token}", {})
    put(daemon, f"/own/{token.replace('.', '%2E')[:700]}.json?auth={token}", {})
    put(daemon, "/own/t.json", bearer(token + "x"))
    audited(daemon, "/own/t", "denied")
    audited(daemon, "/open/t", "write", 2)
    content = b"".join(
        each.read_bytes() for each in (daemon.folder / "audit").rglob("*") if each.is_file()
    )
    assert signature.encode() not in content
    assert token.encode() not in content


@pytest.mark.usefixtures("client")
def test_the_log_is_searched_by_time_path_and_user(daemon: Daemon) -> None:
    root, ada = token_of("root", admin=True), token_of("ada")
    for number in range(3):
        put(daemon, f"/open/found/{number}.json", bearer(ada))
    put(daemon, "/open/found/3.json", {})
    audited(daemon, "/open/found/3")

    def log(*words: str) -> list[str]:
        done = run_command("log", daemon.http, *words, token=root)
        assert done.status == 0, done.errors
        return [json.loads(each)["path"] for each in done.output.splitlines()]

    assert log("--path", "/open/found") == [f"/open/found/{number}" for number in range(4)]
    of_ada = ("--path", "/open/found", "--uid", "ada", "--limit", "2")
    assert log(*of_ada) == ["/open/found/1", "/open/found/2"]
    assert log(*of_ada, "--after", "0") == ["/open/found/0", "/open/found/1"]
    assert log("--path", "/open/found", "--uid", "") == ["/open/found/3"]
    assert log("--path", "/open/found", "--until", "1h ago") == []
    assert len(log("--path", "/open/found", "--since", "1h ago")) == 4


def test_admins_alone_search_the_audit_and_of_their_project(daemon: Daemon) -> None:
    put(daemon, "/open/searched.json", {})
    audited(daemon, "/open/searched")
    root, target = token_of("root", admin=True), "/.settings/audit.json?path=/open/searched"
    found = request(daemon.http, "GET", target, None, bearer(root))
    assert [each["path"] for each in found.json["lines"]] == ["/open/searched"]
    assert "chain" not in found.json["lines"][0]
    assert found.json["next"] is None
    other = request(daemon.http, "GET", f"{target}&ns=other--shop", None, bearer(root))
    assert other.json["lines"] == []
    assert request(daemon.http, "GET", target, None, bearer(token_of("ada"))).status == 403
    assert request(daemon.http, "GET", target).status == 401
    for bad in ("since=noon", "startAfter=x", "since=2026-11-28&since=2026-11-28"):
        answer = request(daemon.http, "GET", f"/.settings/audit.json?{bad}", None, bearer(root))
        assert (answer.status, answer.json["error"]) == (400, "invalid_query")


def test_the_files_of_the_daemon_are_whole(daemon: Daemon) -> None:
    assert faults_in(daemon.folder) == []
    names = {series.name for series in list_series(daemon.folder / "audit")}
    assert names == {"access-1", "writes"}


class Writing:
    """Clients that write until the daemon is killed, and what was acknowledged."""

    def __init__(self, daemon: Daemon, query: str = "") -> None:
        self._daemon, self._query = daemon, query
        self._lock = threading.Lock()
        self.acknowledged: set[str] = set()
        self._threads = [threading.Thread(target=self._write, args=(each,)) for each in range(3)]
        self._round = 0
        self._is_over = False

    def _write(self, number: int) -> None:
        at = 0
        try:
            with Client(self._daemon, "localhost") as client:
                while not self._is_over:
                    path = f"/open/{self._round}-{number}-{at}"
                    if client.request("PUT", f"{path}.json{self._query}", "1").status != 200:
                        return
                    with self._lock:
                        self.acknowledged.add(path)
                    at += 1
        except OSError:
            return

    def kill_while_writing(self, seconds: float, end: Callable[[], object]) -> None:
        self._round += 1
        self._is_over = False
        self._threads = [threading.Thread(target=self._write, args=(each,)) for each in range(3)]
        for thread in self._threads:
            thread.start()
        wanted = len(self.acknowledged) + 30
        wait_until(lambda: len(self.acknowledged) >= wanted)
        threading.Event().wait(seconds)
        end()
        self._is_over = True
        for thread in self._threads:
            thread.join()


def check_nothing_is_lost(folder: pathlib.Path, writing: Writing) -> None:
    """Wait until all that was acknowledged is audited, and check that each write is there once."""
    found = await_lines(
        folder,
        "write",
        lambda found: writing.acknowledged <= {each["path"] for each in found},
    )
    written = [(each["seq"], each["op"]) for each in found]
    assert len(set(written)) == len(written)
    assert [seq for seq, _ in written] == list(range(1, len(written) + 1))
    assert faults_in(folder) == []


@pytest.mark.parametrize("workers", [1, 2])
def test_a_kill_loses_no_line_of_an_acknowledged_write(
    tmp_path: pathlib.Path, workers: int
) -> None:
    chosen = random.Random(workers)
    with prepare(tmp_path, workers=workers) as daemon:
        writing = Writing(daemon)
        for _ in range(4):
            writing.kill_while_writing(chosen.uniform(0.0, 1.2), daemon.kill)
            daemon.start()
        check_nothing_is_lost(tmp_path, writing)


def test_writes_beside_a_deletion_are_audited_before_its_file_is_removed(
    tmp_path: pathlib.Path,
) -> None:
    headers = bearer(token_of("root", admin=True))
    target = "/.settings/database.json?ns=brief--shop"
    with prepare(tmp_path, workers=2) as daemon:
        for number in range(5):
            assert request(daemon.http, "PUT", target, None, headers).status == 200
            writing = Writing(daemon, "?ns=brief--shop")
            writing.kill_while_writing(
                0.0,
                lambda: request(
                    daemon.http, "DELETE", f"{target}&confirm=brief--shop", None, headers
                ),
            )
            # They are on the disk already.
            found = {each["path"] for each in lines_in(tmp_path, "write")}
            assert writing.acknowledged <= found, number


def is_replaced(daemon: Daemon, pid: int) -> bool:
    return len(set(worker_pids(daemon)) - {pid}) == 2


def test_another_worker_goes_on_if_the_one_that_audits_is_killed(tmp_path: pathlib.Path) -> None:
    with prepare(tmp_path, workers=2) as daemon:
        writing = Writing(daemon)
        for _ in range(3):
            first = worker_pids(daemon)[0]
            writing.kill_while_writing(0.5, partial(kill, first))
            wait_until(partial(is_replaced, daemon, first))
        check_nothing_is_lost(tmp_path, writing)
        assert len(re.findall("This process is the reader audit", daemon.log)) > 1


def test_another_daemon_over_postgresql_goes_on_if_the_one_that_audits_is_killed(
    tmp_path: pathlib.Path,
) -> None:
    elected = "This process is the reader audit"
    folders = [tmp_path / name for name in ("one", "other")]
    with servers(standbys=0) as running:
        for folder in folders:
            folder.mkdir()
        arguments = ["--engine", running.primary.dsn()]
        one, other = (prepare(each, arguments=arguments) for each in folders)
        with one:
            one.await_line(elected)
            with other:
                # It is not open in the daemon that audits, which may not know it.
                assert put(other, "/open/new.json?ns=new--shop", {}) == 200
                await_lines(folders[0], "write", bool)
                writing = Writing(other)

                def end() -> None:
                    await_lines(folders[0], "write", lambda found: len(found) > 1)
                    one.kill()

                writing.kill_while_writing(0.5, end)
                other.await_line(elected)
                await_lines(
                    folders[1],
                    "write",
                    lambda found: (
                        writing.acknowledged
                        <= {each["path"] for each in [*lines_in(folders[0], "write"), *found]}
                    ),
                )
    found = [lines_in(each, "write") for each in folders]
    assert all(found)
    written = {
        (each["seq"], each["op"])
        for lines in found
        for each in lines
        if each["database"] == "default"
    }
    assert sorted(seq for seq, _ in written) == list(range(1, len(written) + 1))
    assert [fault for each in folders for fault in faults_in(each)] == []


def test_a_standby_audits_what_it_receives_and_goes_on_after_its_promotion(
    tmp_path: pathlib.Path,
) -> None:
    audit = {"audit.directory": "audit"}
    with make_daemon(tmp_path / "first", **audit) as first:
        following = make_daemon(tmp_path / "standby", standby_of=first.http, **audit)
        with following as standby:
            with Tree(first, "shop", "") as tree:
                for number in range(3):
                    tree.seed(f"/k{number}.json", number)
            lines, received = (
                await_lines(each.folder, "write", lambda found: len(found) == 3)
                for each in (first, standby)
            )
            for line in [*lines, *received]:
                assert line["token_id"]
                del line["chain"]
            assert received == lines
            until(lambda: ask(standby, "POST", "promote.json", {}).status == 200)
            with Tree(standby, "shop", "") as tree:
                tree.seed("/after.json", 4)
            found = await_lines(standby.folder, "write", lambda found: len(found) == 4)
            assert [each["seq"] for each in found] == [1, 2, 3, 4]
            assert faults_in(standby.folder) == []
