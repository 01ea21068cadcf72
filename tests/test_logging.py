"""The log of real daemons: JSON, text and the combined format, with workers and without.

A file `sitecustomize.py` on the path of the daemon makes the icon of the pages fail, and print, so
that a failure, a warning and the lines of other libraries are in the log.
"""

from __future__ import annotations

import json
import os
import pathlib
import re
import signal
import subprocess
import zlib
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import pytest

from tests.access import Tree, admin, at, reload, secret_of, user, write_secret
from tests.daemon import SERVE, STOP_SECONDS, TWISTD, Daemon
from tests.rest import Wire, print_request
from tests.sse import EVENTS
from treedbd.database.active_rules import FIELDS as RULE_FIELDS
from treedbd.operating.log import MEMBERS
from treedbd.web.request_log import FIELDS

HOST: Final = "shop.db.test"
BROKEN: Final = """
import logging, warnings
import treedbd.web.pages as page

async def fail(self, request):
    print("a stray\\nprint")
    warnings.warn("an old way")
    logging.getLogger("a.library").warning("of a library")
    raise RuntimeError("injected \\x1b[2J\\n\\u2028 on two lines")

page.FrontPage.answer_icon = fail
"""
RULES: Final = {
    "a": {".read": True, ".write": True},
    "u": {".read": "auth.uid == 'ada' && !root.child('x').exists()"},
}
HOSTILE: Final = (
    *(b"/%1b%5b2J%07.json", b"/a%0d%0aforged.json", b"/\xff\xfe.json", b"/%c2%9b31m.json"),
    *(b"/%e2%80%ae.json", b'/"quoted"\\.json', b"/a%00.json", b"/%ff.json", "/ä😀.json".encode()),
)
LONG_BYTES: Final = 9_000_000
"""More than the kernel keeps for a client that does not read."""
AGENT: Final = b'cu"rl\\ \x9b2J \xff eyJhbGciOiJub25lIn0.hidden-in-agent.x'


class Logged(NamedTuple):
    """What a daemon has logged, and what it must not have."""

    daemon: Daemon
    hidden: list[str]
    ids: list[str]

    @property
    def lines(self) -> list[str]:
        """The lines without the one that says that it is ready."""
        lines = self.daemon.log.split("\n")[:-1]
        return [line for line in lines if not line.startswith("treedb ready ")]

    @property
    def objects(self) -> list[dict[str, Any]]:
        """The lines, each parsed."""
        return [json.loads(line) for line in self.lines]

    @property
    def requests(self) -> list[dict[str, Any]]:
        """The lines of the access log."""
        return [each for each in self.objects if each["logger"] == "request" and "sent" in each]


def make_daemon(
    folder: pathlib.Path, config: str, *arguments: str, program: tuple[str, ...] = SERVE
) -> Daemon:
    write_secret(folder, "shop")
    (folder / "patches").mkdir()
    (folder / "patches/sitecustomize.py").write_text(BROKEN)
    (folder / "shop.rules.json").write_text(json.dumps({"rules": RULES}))
    lines = ['domains = ["db.test"]', config, "[projects.shop]", 'secret_files = ["shop.secret"]']
    lines += ['rules_file = "shop.rules.json"', 'dialect = "standard"', 'databases = "*"']
    return Daemon(
        folder,
        config="\n".join(lines),
        arguments=arguments,
        environment={"PYTHONPATH": str(folder / "patches"), "PYTHONWARNINGS": "default"},
        program=program,
    )


def exercise(daemon: Daemon) -> Logged:
    """Send requests of all sorts, with tokens in all places; stop the daemon."""
    ada = user("shop", "ada")
    bad = user("shop", "eve", exp=1)
    hidden = [secret_of("shop"), *ada.split("."), *bad.split("."), *admin("shop").split(".")]
    hidden += ["hidden-in-agent", "hidden-in-referer", "password-in-referer", "hidden-in-path"]
    ids: list[str] = []

    def send(tree: Tree, method: str, target: str, **more: Any) -> int:
        response = tree.request(method, target, **more)
        ids.append(response.headers.get("X-Request-Id", ""))
        return response.status

    with Tree(daemon, "shop") as tree, Tree(daemon, "nowhere") as lost:
        bearer = {"Authorization": f"Bearer {ada}"}
        assert send(tree, "PUT", at("/a/b.json", ada), body='{"c":1}') == 200
        assert send(tree, "GET", at("/u.json", access_token=ada)) == 200
        assert send(tree, "GET", "/u.json", headers=bearer) == 200
        assert send(tree, "GET", "/u.json", headers=bearer) == 200
        assert send(tree, "GET", at("/a.json", bad)) == 401
        assert send(tree, "GET", "/closed.json") == 403
        assert send(tree, "GET", at("/.settings/rules.json", tree.admin)) == 200
        assert send(tree, "GET", "/a.json?limitToFirst=x&auth=hidden-in-path") == 400
        assert send(tree, "GET", f"/a/{ada}.json") == 400
        assert send(tree, "GET", f"/a.json%3Fauth={ada}") == 404
        assert send(tree, "GET", "/favicon.ico") == 500
        assert send(lost, "GET", "/a.json") == 404
        for path in HOSTILE:
            send_raw(daemon, b"GET " + path + b"?auth=" + ada.encode(), ids)
        long = json.dumps("x" * LONG_BYTES)
        assert send(tree, "PUT", at("/a/long.json", ada, print="silent"), body=long) == 204
        with Wire(daemon.http) as leaving:  # in the middle of it
            leaving.bound_unread()
            leaving.send(print_request("GET", at("/a/long.json", ada), None, {}, HOST))
            leaving.socket.recv(1)
        assert send(tree, "DELETE", at("/a/long.json", ada)) == 200
        with tree.try_to_listen(at("/a.json", ada)) as stream:
            stream.next()
        with Wire(daemon.http) as leaving:  # before its body is there
            leaving.send(print_request("GET", at("/a.json", ada), None, EVENTS, HOST))
            leaving.socket.recv(1)
    with Tree(daemon, "shop") as tree:
        tree._secure = True
        assert send(tree, "GET", "/a.json") == 200
    return Logged(daemon, hidden, ids)


def send_raw(daemon: Daemon, begin: bytes, ids: list[str]) -> None:
    referer = b"https://me:password-in-referer@a.example/page?auth=hidden-in-referer"
    with Wire(daemon.http) as wire:
        wire.send(
            begin + b" HTTP/1.1\r\nHost: shop.db.test\r\nUser-Agent: " + AGENT + b"\r\n"
            b"Referer: " + referer + b"\r\nX-Request-Id: forged\r\n\r\n"
        )
        ids.append(wire.receive("GET").headers.get("X-Request-Id", ""))


def stop(daemon: Daemon) -> None:
    """Reload, in vain too, and stop."""
    assert "is done" in reload(daemon)
    rules = daemon.folder / "shop.rules.json"
    rules.write_text("{")
    assert "failed" in reload(daemon)
    assert daemon.stop() == 0


@pytest.fixture(scope="module")
def as_json(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Logged]:
    """Two workers that log all as JSON, and to which every request and rule is slow."""
    config = 'workers = 2\n[http]\naccess_log = true\n[log]\nformat = "json"\n'
    config += "slow_request_s = 0.000001\nslow_rule_ms = 0.000001\n"
    with make_daemon(tmp_path_factory.mktemp("json"), config) as daemon:
        logged = exercise(daemon)
        stop(daemon)
        yield logged


@pytest.fixture(scope="module")
def as_text(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Logged]:
    """A daemon of twistd that logs text, its access log too."""
    twistd = (str(TWISTD), "-n", "--pidfile=", "treedb")
    config = "[http]\naccess_log = true\n[log]\nslow_request_s = 0.000001\n"
    with make_daemon(tmp_path_factory.mktemp("text"), config, program=twistd) as daemon:
        logged = exercise(daemon)
        stop(daemon)
        yield logged


@pytest.fixture(scope="module")
def combined(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Logged]:
    """Two workers whose access log has the combined format."""
    config = 'workers = 2\n[http]\naccess_log = "combined"\n'
    with make_daemon(tmp_path_factory.mktemp("combined"), config) as daemon:
        logged = exercise(daemon)
        stop(daemon)
        yield logged


def test_every_line_is_a_json_object_with_the_common_members(as_json: Logged) -> None:
    for line in as_json.lines:
        shown = json.loads(line)
        assert line.isprintable()
        assert {"time", "level", "logger", "message"} <= shown.keys()
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", shown["time"])
        assert shown["level"] in ("debug", "info", "warn", "error", "critical")
    assert as_json.daemon.log.count("treedb ready ") == 1


def test_every_member_and_every_field_is_in_the_log(as_json: Logged) -> None:
    seen = {name for each in as_json.objects for name in each}
    assert seen == {*MEMBERS, *FIELDS, *RULE_FIELDS}
    assert {name for each in as_json.requests for name in each} == {
        *("time", "level", "logger", "message", "worker"),
        *FIELDS,
    }


def test_start_reloads_and_stop_are_in_the_log_of_both_workers(as_json: Logged) -> None:
    messages = [(each.get("worker", 0), each["message"]) for each in as_json.objects]
    text = "\n".join(f"{worker} {message}" for worker, message in messages)
    for words in ("0 treedb 0.", "0 Data directory: ", "files is done.", "files failed"):
        assert words in text
    assert "0 Server Shut Down." in text
    assert {1, 2} <= {worker for worker, _ in messages}
    invalid = [each for each in as_json.objects if each["level"] == "error"]
    assert any("shop.rules.json" in each["message"] for each in invalid)


def fields_of(logged: Logged, **wanted: object) -> dict[str, Any]:
    """Return the one request with these fields, or the last of several."""
    found = [each for each in logged.requests if wanted.items() <= each.items()]
    assert found, (wanted, logged.requests)
    return found[-1]


def test_a_request_has_its_fields(as_json: Logged) -> None:
    wrote = fields_of(as_json, method="PUT", path="/a/b.json")
    assert (wrote["status"], wrote["sent"], wrote["received"]) == (200, 7, 7)
    assert (wrote["uid"], wrote["project"], wrote["database"]) == ("ada", "shop", "default")
    assert (wrote["client"], wrote["protocol"], wrote["tls"]) == ("127.0.0.1", "HTTP/1.1", False)
    assert wrote["ms"] > 0
    assert "admin" not in wrote
    read = fields_of(as_json, path="/.settings/rules.json")
    assert (read["admin"], "uid" in read) == (True, False)
    assert fields_of(as_json, path="/a.json", tls=True)["status"] == 200
    assert "uid" not in fields_of(as_json, path="/a.json", status=401)
    assert fields_of(as_json, path="/a.json", status=404)["project"] == "nowhere"
    streamed = fields_of(as_json, stream=True)
    assert (streamed["uid"], streamed["disconnected"], streamed["status"]) == ("ada", True, 200)
    (part,) = [each for each in as_json.requests if "cut_off" in each]
    assert (part["cut_off"], part["status"], part["disconnected"]) == ("client", 200, True)
    assert 0 < part["sent"] < LONG_BYTES
    assert part["message"] == "GET /a/long.json 200, cut off"
    named = fields_of(as_json, referer="https://a.example/page")
    assert named["user_agent"] == 'cu"rl\\ \\x9b2J \\xff …'


def test_the_id_of_a_request_is_the_one_that_its_client_received(as_json: Logged) -> None:
    logged = {each["request_id"] for each in as_json.requests}
    assert len(set(as_json.ids)) == len(as_json.ids)
    assert set(as_json.ids) <= logged
    assert "forged" not in logged


def test_a_failure_is_one_object_with_its_traceback_and_the_id(as_json: Logged) -> None:
    (failed,) = [each for each in as_json.objects if "traceback" in each]
    assert failed["traceback"].startswith("Traceback")
    assert "injected \x1b[2J\n\u2028 on two lines" in failed["traceback"]
    assert failed["message"] == "A request failed: GET /favicon.ico."
    assert failed["request_id"] == fields_of(as_json, status=500)["request_id"]


def test_prints_warnings_and_other_libraries_are_objects_too(as_json: Logged) -> None:
    messages = [each["message"] for each in as_json.objects]
    for words in ("a stray", "print", "of a library"):
        assert words in messages
    assert any("UserWarning: an old way" in message for message in messages)


def test_slow_requests_and_rules_are_warned_of_with_the_remedy(as_json: Logged) -> None:
    warned = [each["message"] for each in as_json.objects if each["level"] == "warn"]
    slow = [each for each in warned if each.startswith("A request was slow: ")]
    assert any("PUT /a/b.json 200 took" in each and "slow disk" in each for each in slow)
    assert any("GET /u.json 200 took" in each and "Read less" in each for each in slow)
    rules = [each for each in warned if each.startswith("Rules were slow: ")]
    assert any("rules/u/.read at 1:" in each and "Make it read less" in each for each in rules)


def test_text_is_readable_and_each_line_begins_with_its_time(as_text: Logged) -> None:
    for line in as_text.lines:
        assert line.lstrip("\t").isprintable()
        assert re.match(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d[+-]\d{4} \[[^\]]+\] |\t", line), line
    log = as_text.daemon.log
    wrote = re.search(r"\[request#info\] PUT /a/b\.json 200 (.*)\n", log)
    assert wrote is not None
    for field in ("sent=7", "received=7", "uid=ada", "project=shop", "tls=false", "ms="):
        assert f" {field}" in f" {wrote[1]}"
    for name in {*FIELDS} - {"method", "path", "status"}:
        assert re.search(rf" {name}=\S", log), name
    assert re.search(r"\[request#warn\] A request was slow: GET /u\.json 200 took .* ms=", log)
    failed = re.search(r"A request failed: GET /favicon.ico\. request_id=(\w{16})\n\tTrace", log)
    assert failed is not None
    assert failed[1] in as_text.ids


COMBINED: Final = re.compile(
    r'(\S+) - (\S+) \[(\d\d/\w{3}/\d{4}:\d\d:\d\d:\d\d \+0000)\] "((?:[^"\\]|\\.)*)" (\d{3}) '
    r'(\d+|-) "((?:[^"\\]|\\.)*)" "((?:[^"\\]|\\.)*)"'
)


def test_the_combined_format_has_whole_lines_of_its_own(combined: Logged) -> None:
    prefixed = re.compile(r"\d{4}-\d\d-\d\dT|\t")
    lines = [line for line in combined.lines if not prefixed.match(line)]
    assert all(line.isascii() and line.isprintable() for line in lines)
    parsed = [COMBINED.fullmatch(line) for line in lines]
    found = [each.groups() for each in parsed if each is not None]
    assert len(found) == len(lines) >= len(combined.ids)
    rows = {(client, user, line, status) for client, user, _, line, status, *_ in found}
    assert ("127.0.0.1", "ada", "PUT /a/b.json HTTP/1.1", "200") in rows
    assert ("127.0.0.1", "-", "GET /favicon.ico HTTP/1.1", "500") in rows
    pages = {(page, agent) for *_, page, agent in found if page != "-"}
    shown = r"cu\"rl\\ \\x9b2J \\xff \xe2\x80\xa6"
    assert pages == {("https://a.example/page", shown)}


@pytest.mark.parametrize("form", ["as_json", "as_text", "combined"])
def test_no_token_and_no_secret_is_in_any_line_or_any_file(
    form: str, request: pytest.FixtureRequest
) -> None:
    logged: Logged = request.getfixturevalue(form)
    folder = logged.daemon.folder
    files = [each for each in folder.rglob("*") if each.is_file() and "patches" not in each.parts]
    written = [each for each in files if each.suffix not in (".secret", ".toml", ".pem", ".key")]
    assert any(each.suffix == ".shelf" for each in written)
    texts = [logged.daemon.log.encode(), *(each.read_bytes() for each in written)]
    for hidden in logged.hidden:
        assert len(hidden) >= 12
        assert not any(hidden.encode() in text for text in texts), hidden
    for words in ("auth=", "access_token", "Bearer", "?"):
        assert words not in "\n".join(line for line in logged.lines if "/a" in line)


def test_the_sample_is_of_the_ids_and_has_all_errors_of_the_server(tmp_path: pathlib.Path) -> None:
    config = '[http]\naccess_log = true\n[log]\nformat = "json"\nsample = 0.25\n'
    config += "slow_request_s = 0\n"
    ids: dict[str, int] = {}
    with make_daemon(tmp_path, config) as daemon, Tree(daemon, "shop") as tree:
        for number in range(60):
            target = "/favicon.ico" if number % 20 == 0 else "/a.json"
            response = tree.request("GET", target)
            ids[response.headers["X-Request-Id"]] = response.status
        assert daemon.stop() == 0
        logged = {each["request_id"] for each in Logged(daemon, [], []).requests}
    is_sampled = {each: zlib.crc32(each.encode()) < 0.25 * 2**32 for each in ids}
    assert logged == {each for each in ids if is_sampled[each] or ids[each] == 500}
    assert len(logged) < len(ids)


def test_what_was_sent_of_a_stream_includes_its_events(tmp_path: pathlib.Path) -> None:
    config = '[http]\naccess_log = true\n[log]\nformat = "json"\n'
    with make_daemon(tmp_path, config) as daemon, Tree(daemon, "shop") as tree:
        with Wire(daemon.http) as client:
            client.send(print_request("GET", "/a.json", None, EVENTS, HOST))
            client.receive_head()
            received = 0
            for number in range(5):
                assert tree.request("PUT", "/a.json", body=str(number)).status == 200
                while True:
                    line = client.file.readline()
                    received += len(line)
                    if b'"data":%d' % number in line:
                        break
                received += len(client.file.readline())
        daemon.await_line(r'.*"disconnected":true.*')
        assert daemon.stop() == 0
        (logged,) = (each for each in Logged(daemon, [], []).requests if each.get("stream"))
    assert logged["sent"] == received


def test_without_an_access_log_only_errors_of_the_server_have_an_id(tmp_path: pathlib.Path) -> None:
    with make_daemon(tmp_path, "") as daemon, Tree(daemon, "shop") as tree:
        assert "X-Request-Id" not in tree.request("GET", "/a.json").headers
        assert "X-Request-Id" not in tree.request("GET", "/closed.json").headers
        shown = tree.request("GET", "/favicon.ico").headers["X-Request-Id"]
        daemon.await_line(rf"A request failed: GET /favicon\.ico\. request_id={shown}")
        assert daemon.stop() == 0
        assert "GET /a.json" not in daemon.log


def test_a_file_that_logrotate_has_renamed_is_opened_again(tmp_path: pathlib.Path) -> None:
    file, old = tmp_path / "treedb.log", tmp_path / "treedb.log.1"
    config = '[http]\naccess_log = true\n[log]\nformat = "json"\n'
    program = (str(TWISTD), "-n", "--pidfile=", f"--logfile={file}", "treedb")
    with make_daemon(tmp_path, config, program=program) as daemon, Tree(daemon, "shop") as tree:
        tree.get("/a.json?x=before")
        file.rename(old)
        daemon.signal(signal.SIGUSR1)
        until_opened(file, tree)
        assert daemon.stop() == 0
        assert [line for line in daemon.log.splitlines() if "{" in line] == []
    before, after = old.read_text().splitlines(), file.read_text().splitlines()
    assert [json.loads(line)["logger"] for line in (*before, *after)]
    assert '"message":"GET /a.json 200"' in old.read_text()
    assert '"message":"Server Shut Down."' in file.read_text()


def test_in_the_background_each_line_of_the_file_is_an_object_too(tmp_path: pathlib.Path) -> None:
    (tmp_path / "treedb.toml").write_text('[log]\nformat = "json"\n[projects.shop]\n')
    file, pid = tmp_path / "twistd.log", tmp_path / "pid"
    command = [
        *(str(TWISTD), f"--pidfile={pid}", "treedb", "--config", "treedb.toml"),
        *("--data", str(tmp_path / "data"), "--listen", "tcp:0:interface=127.0.0.1"),
    ]
    file.touch()
    subprocess.run(command, cwd=tmp_path, check=True)
    number = pid.read_text()
    with subprocess.Popen(
        ["tail", "-n", "+1", "-f", f"--pid={number}", str(file)], stdout=subprocess.PIPE, text=True
    ) as tail:
        assert tail.stdout is not None
        while "treedb ready http://127.0.0.1:" not in (line := tail.stdout.readline()):
            assert line, "It ended early."
        os.kill(int(number), signal.SIGTERM)
        tail.communicate(timeout=STOP_SECONDS)
    messages = [json.loads(line)["message"] for line in file.read_text().splitlines()]
    assert messages[-1] == "Server Shut Down."


def until_opened(file: pathlib.Path, tree: Tree) -> None:
    """Send requests until the daemon has opened the file."""
    for _ in range(10_000):
        if file.exists():
            return
        tree.get("/a.json")
    raise AssertionError("The file was not opened.")


def test_a_logger_of_the_command_line_comes_before_the_setting(tmp_path: pathlib.Path) -> None:
    config = '[http]\naccess_log = true\n[log]\nformat = "json"\n'
    program = (
        *(str(TWISTD), "-n", "--pidfile=", "--logger=mine.observer"),
        "treedb",
    )
    daemon = make_daemon(tmp_path, config, program=program)
    (tmp_path / "patches/mine.py").write_text(
        "import sys\n"
        "from twisted.logger import textFileLogObserver\n"
        "def observer():\n"
        "    def show(event):\n"
        "        return f'mine: {event.get(\"treedb_fields\")}\\n'\n"
        "    from twisted.logger import FileLogObserver\n"
        "    return FileLogObserver(sys.__stdout__, show)\n"
    )
    with daemon, Tree(daemon, "shop") as tree:
        tree.get("/a.json")
        daemon.await_line(r"mine: \{.*'path': '/a.json'")
        assert '{"time"' not in daemon.log
