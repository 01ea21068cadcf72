"""Moving a database: rules, data and what changes meanwhile, from one daemon to another."""

from __future__ import annotations

import contextlib
import json
import pathlib
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar
from urllib.parse import parse_qsl, urlsplit

import pytest

from tests.command import COMMAND, Lines, RunningCommand, environment, run_here
from tests.daemon import Daemon
from tests.proxy import CuttingProxy
from treedbd.cli.http_client import HttpClient
from treedbd.cli.migrate import LONGEST_LINE, ChangedPaths, Copying, Following
from treedbd.cli.options import parse_url
from treedbd.cli.parser import parse
from treedbd.tree.types import Path

RULES = '{"rules":{".read":true,".write":true,"a":{".indexOn":"x"}}}'


@pytest.fixture(scope="module")
def sides(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Daemon, Daemon]]:
    """The two daemons of all tests but those that end one."""
    folders = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("target")
    with Daemon(folders[0]) as source, Daemon(folders[1]) as target:
        yield source, target


@pytest.fixture(scope="module")
def first_rules(sides: tuple[Daemon, Daemon]) -> Any:
    """The rules that a new database has."""
    return send(sides[0], "GET", "/.settings/rules.json")


@pytest.fixture
def source(sides: tuple[Daemon, Daemon], first_rules: Any) -> Daemon:
    return emptied(sides[0], first_rules)


@pytest.fixture
def target(sides: tuple[Daemon, Daemon], first_rules: Any) -> Daemon:
    return emptied(sides[1], first_rules)


def emptied(daemon: Daemon, rules: Any) -> Daemon:
    """Return a daemon whose database `demo` is as at the beginning."""
    send(daemon, "PUT", "/.settings/rules.json", rules)
    send(daemon, "DELETE", "/.json")
    return daemon


def url(daemon: Daemon, project: str = "demo") -> str:
    return daemon.http.replace("127.0.0.1", f"{project}.localhost")


def send(daemon: Daemon, method: str, target: str, body: Any = None) -> Any:
    """Send a request to the database `demo`; return the JSON of the response."""
    headers = {"Host": "demo.localhost", "Authorization": "Bearer owner"}
    data = None if body is None else json.dumps(body).encode()
    response = daemon.request(method, target, data, headers)
    assert response.status in (200, 204), response
    return json.loads(response.body or b"null")


def exported(daemon: Daemon) -> Any:
    return send(daemon, "GET", "/.json?format=export")


def token_file(tmp_path: pathlib.Path) -> str:
    file = tmp_path / "token"
    file.write_text("owner")
    return str(file)


RECORDS = {f"k{at:04}": {"n": at, "text": "x" * 900, ".priority": at} for at in range(6000)}
TREE = {"a": RECORDS, "b": [1, None, {".value": 3, ".priority": "p"}], ".priority": 7}


def test_a_database_is_copied_with_its_rules_and_priorities(
    source: Daemon, target: Daemon, tmp_path: pathlib.Path
) -> None:
    send(source, "PUT", "/.json?print=silent", TREE)
    send(source, "PUT", "/.settings/rules.json", json.loads(RULES))
    words = ["migrate", url(source), url(target), "--once", "--quiet"]
    result = run_here(*words, "--source-token-file", token_file(tmp_path), token="owner")
    assert (result.status, result.errors) == (0, ""), result
    assert exported(target) == exported(source)
    assert send(target, "GET", "/.settings/rules.json") == json.loads(RULES)
    again = run_here(*words, token="owner")
    assert "is not empty" in again.errors
    send(target, "PUT", "/other.json", 1)
    send(source, "DELETE", "/a/k0003.json")
    assert run_here(*words, "--replace", token="owner").status == 0
    assert exported(target) == exported(source)


LARGE = {"a": "x" * 2_500_000, "b": "y" * 2_500_000}
"""More than one page, in children of which each is less."""
ROWS = {f"r{at:02}": {"n": at, "text": "x" * 900, ".priority": at} for at in range(50)}


@pytest.mark.parametrize(
    "tree",
    [
        {"orders": {"k": 1}, "users": {f"u{at}": {"text": "x" * 1000} for at in range(6000)}},
        {"a": LARGE, **ROWS},
        {**ROWS, "r25m": LARGE, "r30m": {"z": LARGE}},
        {**ROWS, "s": LARGE, "t": {**ROWS, "z": LARGE}},
        {"1": LARGE, "2": LARGE, "01": LARGE, "z": 1, ".priority": "p"},
        {**ROWS, "z": {"y": {**ROWS, "z": {"y": LARGE, "z": LARGE}}}},
        {"z": {".value": "\n" * 2_500_000, ".priority": 3}},
        {**ROWS, "w": "x" * 5_000_000, "x": LARGE, "y": 1},
    ],
    ids=["orders", "first", "middle", "last", "numbers", "nested", "string", "mixed"],
)
def test_children_larger_than_a_page_are_copied_wherever_they_are(
    source: Daemon, target: Daemon, tree: Any
) -> None:
    send(source, "PUT", "/.json?print=silent", tree)
    send(target, "PUT", "/.json", {"z": 1, "gone": {"x": 1}, ".priority": 8})
    words = ["migrate", url(source), url(target), "--once", "--quiet", "--replace"]
    result = run_here(*words, token="owner")
    assert result.status == 0, result.errors
    assert exported(target) == exported(source)


BEFORE = {"gone": {"x": 1}, "r01": "old", "z": 1, ".priority": 8}
"""What is in a target, some of it at paths that the source has, too."""


@pytest.mark.parametrize("before", [{}, BEFORE], ids=["empty", "full"])
def test_a_migration_that_is_killed_at_any_request_is_completed_when_it_is_run_again(
    source: Daemon, target: Daemon, tmp_path: pathlib.Path, before: Any
) -> None:
    tree = {**ROWS, "r25m": LARGE, "z": {"y": LARGE, "z": 1}, ".priority": "p"}
    send(source, "PUT", "/.json?print=silent", tree)
    send(target, "PUT", "/.json?print=silent", before)
    with CuttingProxy(target.http) as proxy:
        words = ["migrate", url(source), f"{proxy.url}/?ns=demo", "--once", "--quiet"]
        words += ["--source-token-file", token_file(tmp_path)]
        for requests in (1, 2, 4, 8):
            again = ["--replace"] if requests > 1 or before else []
            proxy.hold_from = held = proxy.accepted + requests
            with RunningCommand(*words, *again, token="owner") as command:
                proxy.await_accepted(held + 1)
                command.signal(signal.SIGKILL)
                assert command.wait() == -signal.SIGKILL
            proxy.release(target.http)
            assert exported(source) == tree
            assert is_made_of(exported(target), [before, tree])
        result = run_here(*words, "--replace", token="owner")
    assert (result.status, result.errors) == (0, "")
    assert exported(source) == tree
    assert exported(target) == tree


def test_the_configuration_may_be_named_before_the_command() -> None:
    assert parse(["--config", "x.toml", "migrate", "http://a", "http://b"]).config == "x.toml"


def is_made_of(found: Any, trees: list[Any]) -> bool:
    """Return whether each leaf is that of one of the trees, or there is none."""
    if not isinstance(found, dict):
        return found is None or found in trees
    children = [each for each in trees if isinstance(each, dict)]
    return all(is_made_of(found[key], [each.get(key) for each in children]) for key in found)


class HostedSource(BaseHTTPRequestHandler):
    """A service that returns few children at once, and prints some objects as arrays."""

    tree: ClassVar[Any] = {
        "list": ["x" * 3_000_000, None, "y", {"z": "z" * 3_000_000}],
        "k": {},
        "p": 1,
    }
    most = 7

    def do_GET(self) -> None:
        address = urlsplit(self.path)
        found: Any = self.tree
        for key in filter(None, address.path.removesuffix(".json").split("/")):
            members = dict(members_of(found))
            found = members.get(key)
        found = self._select(found, dict(parse_qsl(address.query)))
        body = json.dumps(found).encode()
        self.send_response(401 if ".settings" in self.path else 200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _select(self, found: Any, query: dict[str, str]) -> Any:
        if "shallow" in query:
            return {key: True for key, _ in members_of(found)} if members_of(found) else found
        if "orderBy" not in query:
            return found
        start = json.loads(query.get("startAt", '"0"'))
        chosen = [(key, value) for key, value in members_of(found) if key >= start]
        chosen = chosen[: min(int(query["limitToFirst"]), self.most)]
        if all(key.isdecimal() for key, _ in chosen):
            items = dict(chosen)
            return [items.get(str(at)) for at in range(max(map(int, items), default=-1) + 1)]
        return dict(chosen)

    def log_message(self, *_: object) -> None:
        """Print nothing."""


def members_of(found: Any) -> list[tuple[str, Any]]:
    if isinstance(found, list):
        return [(str(at), each) for at, each in enumerate(found) if each is not None]
    return sorted(found.items()) if isinstance(found, dict) else []


@contextlib.contextmanager
def answering(kind: type[BaseHTTPRequestHandler]) -> Iterator[str]:
    """Serve with a handler; yield the URL."""
    with ThreadingHTTPServer(("127.0.0.1", 0), kind) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def test_a_source_that_returns_few_children_and_arrays_is_copied_whole(target: Daemon) -> None:
    HostedSource.tree["k"] = {f"k{at:02}": "x" * 100_000 for at in range(50)}
    with answering(HostedSource) as address:
        words = [address, url(target), "--once", "--quiet"]
        result = run_here("migrate", *words, token="owner")
    assert result.status == 0, result.errors
    assert send(target, "GET", "/.json") == HostedSource.tree


def test_a_target_that_takes_short_bodies_only_receives_several(
    source: Daemon, tmp_path: pathlib.Path
) -> None:
    tree = {"a": LARGE, "z": {f"r{at:03}": {"text": "x" * 20_000} for at in range(200)}}
    send(source, "PUT", "/.json?print=silent", tree)
    config = (
        "default_project = 'demo'\nemulator = true\n[limits]\nwrite_body_bytes = 2_600_000\n"
        "[projects.demo]\ndatabases = '*'\nrules_file = 'open.json'\n"
    )
    (tmp_path / "short").mkdir()
    (tmp_path / "short" / "open.json").write_text(RULES)
    with Daemon(tmp_path / "short", config=config) as short:
        words = ["migrate", url(source), f"{short.http}/?ns=demo", "--once", "--quiet"]
        result = run_here(*words, token="owner")
        assert result.status == 0, result.errors
        assert short.request("GET", "/.json?ns=demo&format=export").json == tree


def test_what_changes_while_it_is_followed_is_copied(
    source: Daemon, target: Daemon, tmp_path: pathlib.Path
) -> None:
    few = {key: RECORDS[key] for key in [*RECORDS][:800]}
    send(source, "PUT", "/.json?print=silent", TREE | {"a": few})
    process = subprocess.Popen(
        [*COMMAND, "migrate", url(source), url(target), "--quiet"],
        env=environment("owner"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    ending = threading.Event()

    def write() -> None:
        for at in range(60):
            send(source, "PUT", f"/a/k{at * 7:04}/n.json", -at)
            send(source, "PATCH", "/.json", {f"c/x{at}": {"v": at, ".priority": at}, "b/1": None})
            send(source, "DELETE", f"/a/k{at * 11:04}.json")
        ending.set()

    writer = threading.Thread(target=write)
    writer.start()
    writer.join()
    assert ending.is_set()
    await_equal(source, target)
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    assert b"clients can be switched" in output
    assert exported(target) == exported(source)


def test_what_changes_in_the_first_copy_is_compared_and_not_only_added() -> None:
    class ChangingCopy(Copying):
        def __init__(self) -> None:
            self.copied: list[tuple[Path, bool]] = []

        def copy(self, path: Path, *, is_new: bool = False) -> None:
            if not self.copied:
                following.add(())
            self.copied.append((path, is_new))

        def give_up(self) -> None:
            raise AssertionError

    copying = ChangingCopy()
    address = parse_url("http://localhost")
    following = Following(HttpClient(), address, copying, is_new=True)
    following.add(())
    following.copy_changed()
    assert copying.copied == [((), True), ((), False)]


def await_equal(source: Daemon, target: Daemon) -> None:
    """Wait until both have the same, which must come."""
    end = time.monotonic() + 60
    while exported(target) != exported(source):
        assert time.monotonic() < end


def test_a_source_whose_rules_cannot_be_read_is_copied_without_them(
    source: Daemon, target: Daemon
) -> None:
    send(source, "PUT", "/a.json", 1)
    result = run_here("migrate", url(source), url(target), "--once", "--quiet", token="owner")
    assert result.status == 0
    assert "rules" in result.errors
    assert exported(target) == {"a": 1}


def test_a_refusal_names_the_side(source: Daemon, target: Daemon, tmp_path: pathlib.Path) -> None:
    send(source, "PUT", "/a.json", 1)
    send(source, "PUT", "/.settings/rules.json", {"rules": {}})
    words = ["migrate", url(source), url(target), "--quiet"]
    for options in (["--once"], []):
        result = run_here(*words, *options, token="owner")
        assert result.status == 1
        assert "treedb: The source: 403" in result.errors
    send(target, "PUT", "/.settings/rules.json", {"rules": {}})
    wrong = token_file(tmp_path)
    result = run_here(*words, "--source-token-file", wrong)
    assert "treedb: The target: 403" in result.errors


@pytest.mark.parametrize(
    ("below_source", "below_target"), [("", ""), ("", "/a"), ("/a", ""), ("/a", "/a.json")]
)
@pytest.mark.parametrize("once", [["--once"], []])
def test_a_database_is_not_migrated_into_itself(
    source: Daemon, below_source: str, below_target: str, once: list[str]
) -> None:
    send(source, "PUT", "/.json", {"a": {"b": 1}})
    there = f"{source.http}{below_target or '/'}?ns=demo"
    words = ["migrate", url(source) + below_source, there, "--replace", *once]
    result = run_here(*words, token="owner")
    assert (result.status, "cannot be migrated into itself" in result.errors) == (1, True)
    assert exported(source) == {"a": {"b": 1}}


def test_rules_are_not_copied_with_a_part_of_a_database(source: Daemon, target: Daemon) -> None:
    send(source, "PUT", "/a.json", {"b": 1})
    for below in ("", "/a"):
        words = ["migrate", f"{url(source)}/a", url(target) + below, "--once", "--replace"]
        result = run_here(*words, token="owner")
        assert result.status == 0
        assert "Only a part of a database is copied, so the rules are not." in result.errors
        assert exported(target) == ({"a": {"b": 1}, "b": 1} if below else {"b": 1})


class Answering(BaseHTTPRequestHandler):
    """A source of one value, which answers streams and some reads as the test says."""

    stream: ClassVar[tuple[str, bytes]] = ("text/event-stream", b"")
    body: ClassVar[bytes] = b"1"

    def do_GET(self) -> None:
        is_stream = self.headers.get("Accept") == "text/event-stream"
        kind, body = self.stream if is_stream else ("application/json", self.body)
        self.send_response(500 if ".settings" in self.path else 200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Print nothing."""


@pytest.mark.parametrize("body", [b"", b"<html>log in</html>", b'{"a": 1', b"NaN"])
def test_what_is_not_json_is_not_copied(target: Daemon, body: bytes) -> None:
    handler = type("Handler", (Answering,), {"body": body})
    with answering(handler) as address:
        words = ["migrate", address, url(target), "--once", "--replace"]
        result = run_here(*words, token="owner")
    assert result.status == 1
    assert f"treedb: {address} has answered a read with what is not JSON." in result.errors
    assert "Traceback" not in result.errors
    assert "returned the status 500. Its rules are not copied" in result.errors
    assert exported(target) is None


def test_a_source_without_streams_is_not_followed(target: Daemon) -> None:
    handler = type("Handler", (Answering,), {"stream": ("text/html", b"<html></html>")})
    with answering(handler) as address:
        result = run_here("migrate", address, url(target), token="owner")
    assert result.status == 1
    assert f"The source does not send a stream at {address}/.json." in result.errors


def await_line(lines: Lines, text: str) -> None:
    """Wait for a line that has a text."""
    while text not in lines.next():
        pass


@pytest.mark.parametrize("stream", [b"", b'event: put\ndata: {"path":"/","data":1}\n\n'])
def test_a_stream_that_ends_is_reported_and_ctrl_c_is_the_end(
    target: Daemon, stream: bytes
) -> None:
    handler = type("Handler", (Answering,), {"stream": ("text/event-stream", stream)})
    with (
        answering(handler) as address,
        RunningCommand("migrate", address, url(target), token="owner") as command,
    ):
        await_line(command.errors, "Trying again, with a whole copy.")
        command.signal(signal.SIGINT)
        assert command.wait() == 1
        assert "What changed in the source last may be missing" in command.errors.rest()[-1]


class Silent(Answering):
    """A source that sends no more than the first event, and does not end the stream."""

    opened: ClassVar[threading.Semaphore]
    is_over: ClassVar[threading.Event]

    def do_GET(self) -> None:
        if self.headers.get("Accept") != "text/event-stream":
            super().do_GET()
            return
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        self.wfile.write(b'event: put\ndata: {"path":"/","data":1}\n\n')
        self.opened.release()
        self.is_over.wait()


def test_a_stream_that_is_silent_for_too_long_is_opened_again(target: Daemon) -> None:
    opened, is_over = threading.Semaphore(0), threading.Event()
    handler = type("Handler", (Silent,), {"opened": opened, "is_over": is_over})
    words = ["--keep-alive", "0.2"]
    with (
        answering(handler) as address,
        RunningCommand("migrate", address, url(target), *words, token="owner") as command,
    ):
        try:
            await_line(command.errors, "What changes in the source is copied, too, until Ctrl-C.")
            await_line(command.errors, "was silent for 0.5 s. Trying again, with a whole copy.")
            for _ in range(2):
                assert opened.acquire(timeout=60)
        finally:
            is_over.set()


@pytest.mark.parametrize("gone", ["source", "target"])
def test_ctrl_c_ends_while_a_server_is_down(
    source: Daemon, target: Daemon, tmp_path: pathlib.Path, gone: str
) -> None:
    with Daemon(tmp_path) as ending:
        if gone == "source":
            source = ending
        else:
            target = ending
        assert interrupted(source, target, ending) == 1


def interrupted(source: Daemon, target: Daemon, ending: Daemon) -> int:
    """Follow the source, kill one of the two, and end the command by Ctrl-C; return its status."""
    send(source, "PUT", "/a.json", 1)
    with RunningCommand("migrate", url(source), url(target), token="owner") as command:
        await_line(command.errors, "What changes in the source is copied, too, until Ctrl-C.")
        ending.kill()
        if ending is target:
            send(source, "PUT", "/a.json", 2)
        await_line(command.errors, "Trying again")
        command.signal(signal.SIGINT)
        return command.wait()


@pytest.mark.parametrize("size", [1, 7, 10_000])
def test_the_changed_paths_of_a_stream_are_found(size: int) -> None:
    long = "x" * (LONGEST_LINE + 10)
    text = (
        'event: put\ndata: {"path":"/","data":{"a":1}}\n\n'
        "event: keep-alive\ndata: null\n\n"
        'event: patch\ndata: {"path":"/b","data":{"c/d":1,"e/.priority":2}}\n\n'
        f'event: patch\ndata: {{"path":"/f","data":{{"g":"{long if size > 7 else "x"}"}}}}\n\n'
        "event: cancel\ndata: null\n\n"
    ).encode()
    changes = ChangedPaths()
    assert not changes.has_begun
    found: list[tuple[str, ...]] = []
    for at in range(0, len(text), size):
        found += changes.feed(text[at : at + size])
    last = ("f",) if size > 7 else ("f", "g")
    assert found == [("b", "c", "d"), ("b", "e"), last]
    assert changes.ended == "cancel"
