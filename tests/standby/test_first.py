"""A first: what its standbys receive, what it holds for them, and when it refuses to go on."""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import pathlib
import signal
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any, Final

import pytest

from tests.access import DATABASES, Tree, admin, at, token, write_secret
from tests.daemon import Daemon
from tests.standby.pair import until
from tests.standby.small_standby import ID, SmallStandby, ask, reached
from treedbd.archive.bases import load
from treedbd.config.certificate import ensure_local_certificate
from treedbd.config.endpoints import LOCAL_CERTIFICATE
from treedbd.database.log_reader import LogPosition
from treedbd.standby.term import Peer, Term, read_term, write_term
from treedbd.store.sqlite.file import connect_reader
from treedbd.store.sqlite.reader import SqliteReader
from treedbd.web.standby import BASES_AT_ONCE

CONFIG: Final = """
domains = ["db.test"]
[streams]
retain_events = 4
[readers]
logged_bytes = 2_000_000
lag_bytes = 9_000_000
[projects.shop]
secret_files = ["shop.secret"]
dialect = "standard"
databases = "*"
"""
SETTINGS: Final = "/.settings/database.json"


def serve(folder: pathlib.Path, *arguments: str, more: str = "") -> Daemon:
    write_secret(folder, "shop")
    return Daemon(folder, config=more + CONFIG, arguments=arguments)


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    with serve(tmp_path_factory.mktemp("first")) as daemon:
        yield daemon


@pytest.fixture
def tree(first: Daemon, request: pytest.FixtureRequest) -> Iterator[Tree]:
    """A database that the test has for itself, named after it; `default` exists too."""
    with Tree(first, "shop", f"t{abs(hash(request.node.name)) % 10**9}") as tree:
        tree.put(at(SETTINGS, tree.admin), {})
        yield tree


def db_of(tree: Tree) -> str:
    return f"shop/{tree.host.partition('--')[0]}"


def put_many(tree: Tree, count: int, key: str = "n") -> None:
    for number in range(count):
        tree.put(at(f"/{key}.json", tree.admin), number)


# What a standby receives.


def test_a_standby_receives_the_entries_of_all_databases_in_order(
    first: Daemon, tree: Tree
) -> None:
    db = db_of(tree)
    with SmallStandby(first) as standby, Tree(first, "shop", "other") as other:
        standby.until_complete()
        put_many(tree, 150)
        put_many(other, 1)
        standby.until_entry(db, 150)
        assert list(standby.bodies[db].items()) == [(n + 1, n) for n in range(150)]
        standby.until(lambda line: line.get("db") == "shop/other" and "entry" in line)
        (entry,) = (each for each in standby.lines if each.get("seq") == 150 and each["db"] == db)
        assert entry["entry"]["path"] == ["n"]
        assert entry["entry"]["is_admin"] is True


def test_a_line_with_the_time_says_how_far_the_logs_reach(first: Daemon, tree: Tree) -> None:
    db = db_of(tree)
    with SmallStandby(first) as standby:
        hello = standby.until(lambda line: True)["hello"]
        assert (hello["term"], hello["role"], hello["project"]) == (1, "first", "shop")
        assert hello["id"] == read_term(first.data).id
        beat = standby.until_complete()
        assert beat["heads"][db] == 0
        assert abs(beat["beat"] - hello["now"]) < 60_000
        put_many(tree, 7)
        beat = standby.until(lambda line: bool(line.get("heads")))
        while beat["heads"] != {db: 7}:
            beat = standby.until(lambda line: bool(line.get("heads")))
        assert standby.positions[db][0] == 7
        assert standby.until_complete()["heads"] == {}


def test_a_long_value_comes_whole(first: Daemon, tree: Tree) -> None:
    long = "ä" * 700_000
    with SmallStandby(first) as standby:
        standby.until_complete()
        tree.put(at("/long.json", tree.admin), long)
        standby.until_entry(db_of(tree), 1)
        assert standby.bodies[db_of(tree)] == {1: long}


def test_rules_come_at_the_beginning_and_when_they_change(first: Daemon, tree: Tree) -> None:
    with SmallStandby(first) as standby:
        standby.until(lambda line: "rules" in line)
        for value in ("auth != null", "false"):
            tree.put_rules({".read": value})
            text = standby.until(lambda line: "rules" in line)["rules"]
            assert json.loads(text) == {"rules": {".read": value}}


def test_writes_that_wait_for_the_end_of_a_session_come_and_go(first: Daemon, tree: Tree) -> None:
    db = db_of(tree)

    def is_about_rows(line: dict[str, Any]) -> bool:
        return line.get("db") == db and "disconnect" in line

    with SmallStandby(first) as standby:
        standby.until_complete()
        stream = tree.listen(at("/.json", tree.admin, onDisconnect={"last": "gone"}))
        with stream:
            line = standby.until(is_about_rows)
            ((key, value),) = line["disconnect"]
            assert bytes.fromhex(key).startswith(b"\x06d")
            assert b"gone" in bytes.fromhex(value)
            assert line["seq"] == 0
        assert standby.until(is_about_rows) == {"db": db, "disconnect": [], "seq": 1}
        assert standby.bodies[db] == {1: {"last": "gone"}}
        # Another standby is not sent what is over.
        with SmallStandby(first, standby=ID[::-1]) as late:
            late.until_complete()
            assert not any(map(is_about_rows, late.lines))


def test_a_deleted_database_is_named_and_a_new_one_begins(first: Daemon, tree: Tree) -> None:
    db = db_of(tree)
    put_many(tree, 3)
    with SmallStandby(first) as standby:
        standby.until_complete()
        at_three = dict(standby.positions)
    with SmallStandby(first, at_three) as standby:
        standby.until_complete()
        deleted = tree.request("DELETE", at(SETTINGS, tree.admin, confirm=db_name(tree)))
        assert deleted.status == 200, deleted
        standby.until(lambda line: line == {"db": db, "deleted": True})
        tree.put(at(SETTINGS, tree.admin), {})
        tree.put(at("/n.json", tree.admin), "new")
        standby.until_entry(db, 1)
        assert {"db": db, "begins": [0, ""]} in standby.lines[-5:]
    tree.request("DELETE", at(SETTINGS, tree.admin, confirm=db_name(tree)))
    with SmallStandby(first, at_three) as standby:
        standby.until_complete()
        assert {"db": db, "missing": True} in standby.lines


def db_name(tree: Tree) -> str:
    return tree.host.partition(".")[0]


def test_a_stream_is_no_slow_request(first: Daemon, tree: Tree) -> None:
    with SmallStandby(first) as standby:
        standby.until_complete()
    put_many(tree, 1)
    shown = tree.see("/.inspect/activity.json")
    assert shown["slowest"]
    assert not [each for each in shown["slowest"] if each["path"] == "/.standby/stream.json"]


# What is held for it.


def test_the_log_is_held_until_the_standby_has_reached_it(first: Daemon, tree: Tree) -> None:
    db = db_of(tree)
    put_many(tree, 3)
    with SmallStandby(first) as standby:
        standby.until_complete()  # and it ends before it has stored anything
    put_many(tree, 140)
    with SmallStandby(first) as standby:
        standby.until_complete()
        assert list(standby.bodies[db]) == list(range(1, 144))
        held = standby.positions[db]
        assert reached(first, {db: held})["term"] == 1
    put_many(tree, 140)  # far more than are retained
    with SmallStandby(first, {db: held}) as standby:
        standby.until_complete()
        assert list(standby.bodies[db]) == list(range(144, 284))
        reached(first, standby.positions)
    put_many(tree, 140)
    with SmallStandby(first, {db: held}) as standby:
        standby.until(lambda line: line == {"db": db, "base": True})


def test_a_first_that_is_killed_goes_on_where_its_standby_is(tmp_path: pathlib.Path) -> None:
    with serve(tmp_path) as daemon:
        with Tree(daemon, "shop") as tree:
            put_many(tree, 5)
            with SmallStandby(daemon) as standby:
                standby.until_entry("shop/default", 5)
                positions = dict(standby.positions)
            put_many(tree, 100)
        daemon.kill()
        daemon.start()
        with SmallStandby(daemon, positions, receive_bytes=262_144) as standby:
            standby.until_complete()
            assert list(standby.bodies["shop/default"]) == list(range(6, 106))
            with Tree(daemon, "shop") as tree:
                for key in "abcdef":  # more than is sent before it is read
                    tree.put(at(f"/{key}.json", tree.admin), key * 1_300_000)
            daemon.signal(signal.SIGTERM)
            # A stop that was planned leaves nothing unsent.
            assert [each["seq"] for each in standby.read() if "entry" in each] == list(
                range(106, 112)
            )
            assert daemon.wait() == 0


# Bases.


def test_a_standby_with_another_history_begins_with_a_base(
    first: Daemon, tree: Tree, tmp_path: pathlib.Path
) -> None:
    db, name = db_of(tree), db_name(tree).partition("--")[0]
    put_many(tree, 150)
    tree.put(at("/more.json", tree.admin), {"a": {"b": "c" * 5000}})
    with SmallStandby(first, {db: (151, "00" * 16)}) as standby:
        standby.until(lambda line: line == {"db": db, "base": True})
        put_many(tree, 2, "late")
        standby.until_complete()
        assert db not in standby.bodies
        response = ask(first, "GET", "base", db=name)
        assert response.status == 200
        header = load([response.body], tmp_path / "copy.shelf")
        assert (header.db, header.sequence) == (db, 153)
        assert rows_of(tmp_path / "copy.shelf") == rows_of(first.data / "shop" / f"{name}.shelf")
        put_many(tree, 2, "later")
        reached(first, {db: (header.sequence, header.op_id.hex())})
        standby.until_entry(db, 155)
        assert {"db": db, "begins": [153, header.op_id.hex()]} in standby.lines
        assert standby.bodies[db] == {154: 0, 155: 1}


def rows_of(file: pathlib.Path) -> list[tuple[bytes, bytes]]:
    connection = connect_reader(file, is_known=False)
    try:
        reader = SqliteReader(connection)
        reader.begin()
        return list(reader.scan(b"", b"\x06"))
    finally:
        connection.close()


def test_an_entry_that_has_lost_its_body_is_replaced_by_a_base(first: Daemon, tree: Tree) -> None:
    db, name = db_of(tree), db_name(tree).partition("--")[0]
    with SmallStandby(first) as standby:
        standby.until_complete()
        put_many(tree, 2)
        tree.put(at("/long.json", tree.admin), "x" * 2_500_000)
        put_many(tree, 1)
        standby.until(lambda line: line == {"db": db, "base": True})
        assert list(standby.bodies[db]) == [1, 2]
        reached_base(first, name)
        put_many(tree, 1, "last")
        standby.until_entry(db, 5)
        assert list(standby.bodies[db]) == [1, 2, 5]


def reached_base(daemon: Daemon, name: str) -> None:
    """Say that a standby has all that there is."""
    at_end = last_position(daemon, name)
    reached(daemon, {f"shop/{name}": (at_end.sequence, at_end.op_id.hex())})


def test_a_standby_that_was_away_too_long_begins_with_a_base(first: Daemon, tree: Tree) -> None:
    db, name = db_of(tree), db_name(tree).partition("--")[0]
    with SmallStandby(first) as standby:
        standby.until_complete()
        put_many(tree, 1)
        standby.until_entry(db, 1)
        reached(first, standby.positions)
    for key in "abcdefg":
        tree.put(at(f"/{key}.json", tree.admin), key * 1_300_000)
    put_many(tree, 130)
    with SmallStandby(first, standby.positions) as again:
        again.until(lambda line: line == {"db": db, "base": True})
        reached_base(first, name)
        again.until(lambda line: line.get("db") == db and "begins" in line)
        put_many(tree, 1)
        again.until_entry(db, 139)
        assert list(again.bodies[db]) == [139]


def test_bases_are_read_a_few_at_a_time(first: Daemon, tree: Tree) -> None:
    name = db_name(tree).partition("--")[0]
    for key in "ab":  # more than fits into buffers
        tree.put(at(f"/{key}.json", tree.admin), os.urandom(5_000_000).hex())
    headers = {"Authorization": f"Bearer {admin('shop')}"}

    def ask_again() -> int:
        return ask(first, "GET", "base", db=name).status

    with contextlib.ExitStack() as stack:
        for _ in range(BASES_AT_ONCE):
            connection = stack.enter_context(contextlib.closing(first.connect()))
            connection.connect()
            connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            connection.request("GET", f"/.standby/base?ns=shop&db={name}", None, headers)
            assert connection.getresponse().status == 200
        assert ask_again() == 503
    until(lambda: ask_again() == 200, "the end of those that were cut off")


def test_a_base_that_is_as_old_as_the_cursor_is_recognised(first: Daemon, tree: Tree) -> None:
    db, name = db_of(tree), db_name(tree).partition("--")[0]
    put_many(tree, 130)
    with SmallStandby(first) as standby:
        standby.until(lambda line: line == {"db": db, "base": True})
        assert ask(first, "GET", "base", db=name).status == 200
        with SmallStandby(first, standby=ID[::-1]) as other:  # which needs one too, for its own
            other.until(lambda line: line == {"db": db, "base": True})
        (shown,) = (each for each in logged(tree) if each["seq"] == 130)
        assert shown["path"] == "/n"
        at_end = last_position(first, name)
        reached(first, {db: (at_end.sequence, at_end.op_id.hex())})
        standby.until(lambda line: line == {"db": db, "begins": [130, at_end.op_id.hex()]})


def logged(tree: Tree) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = tree.see("/.settings/log.json")
    return found


def last_position(daemon: Daemon, name: str) -> LogPosition:
    connection = connect_reader(daemon.data / "shop" / f"{name}.shelf", is_known=False)
    try:
        reader = SqliteReader(connection)
        reader.begin()
        sequence = reader.sequence()
        last = next(iter(reader.entries(sequence - 1)))
        return LogPosition(sequence, last.op_id)
    finally:
        connection.close()


# Terms.


def test_a_standby_with_the_id_of_the_first_is_refused(first: Daemon) -> None:
    mark = first.mark()
    with SmallStandby(first, standby=read_term(first.data).id) as standby:
        assert standby.status != 200
        assert "names this server itself, or a copy of its data" in standby.refusal["message"]
    assert "follows the project" not in first.log_since(mark)


def test_a_first_that_was_superseded_refuses_writes_and_does_not_start_again(
    tmp_path: pathlib.Path,
) -> None:
    url = "https://second.test:8443"
    with serve(tmp_path) as daemon, Tree(daemon, "shop") as tree:
        tree.put(at("/a.json", tree.admin), 1)
        with SmallStandby(daemon) as standby:
            assert "last" not in standby.until_complete()
            assert (
                ask(daemon, "POST", "superseded.json", {"term": 1, "url": url}).json["role"]
                == "first"
            )
            tree.put(at("/a.json", tree.admin), 2)
            shown = ask(daemon, "POST", "superseded.json", {"term": 2, "url": url}).json
            assert (shown["role"], shown["term"], shown["url"]) == ("superseded", 2, url)
            refused = tree.request("PUT", at("/a.json", tree.admin), "3")
            assert (refused.status, url in refused.json["message"]) == (503, True)
            assert tree.see("/a.json") == 2
            health = tree.request("GET", at("/.health", tree.admin))
            assert (health.status, url in health.json["message"]) == (503, True)
            standby.until_entry("shop/default", 2)
            standby.until(lambda line: line.get("last") is True)  # the standby may lack something
        assert daemon.log.count("This server was superseded") == 1
        daemon.kill()
        ended = daemon.run()
        assert (ended.returncode, "--force" in ended.stderr, url in ended.stderr) == (1, True, True)


def test_what_concerns_all_projects_requires_admins_of_all(tmp_path: pathlib.Path) -> None:
    write_secret(tmp_path, "shop")
    write_secret(tmp_path, "games")
    more = '[projects.games]\nsecret_files = ["games.secret"]\n'
    with Daemon(tmp_path, config=CONFIG + more) as daemon, Tree(daemon, "shop") as tree:
        tree.put(at("/a.json", tree.admin), 1)
        notice: dict[str, Any] = {"term": 2, "url": "https://second.test"}
        others: list[Any] = [{}, {"games": admin("shop")}, {"games": token("games", uid="ada")}]
        for tokens in others:
            refused = ask(daemon, "POST", "superseded.json", {**notice, "tokens": tokens})
            assert (refused.status, "all projects" in refused.json["message"]) == (409, True)
        with SmallStandby(daemon, url="https://second.test") as standby:
            standby.until_complete()
        with SmallStandby(daemon, term=2) as standby:
            assert (standby.status, standby.refusal["role"]) == (409, "first")
        assert read_term(daemon.data).peers == ()
        tree.put(at("/a.json", tree.admin), 2)
        body = {**notice, "tokens": {"games": admin("games")}}
        assert ask(daemon, "POST", "superseded.json", body).json["role"] == "superseded"
        assert tree.request("PUT", at("/a.json", tree.admin), "3").status == 503


@contextmanager
def answering(term: dict[str, Any], certificate: pathlib.Path | None = None) -> Iterator[str]:
    """Be a peer that answers with a term; yields its URL.

    With a folder for its certificate it is an https URL.
    """

    class Peers(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = json.dumps(term).encode()
            self.send_response(200 if self.path == "/.standby/term.json" else 404)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server, scheme = HTTPServer(("127.0.0.1", 0), Peers), "http"
    if certificate is not None:
        certificate.mkdir()
        files = ensure_local_certificate(certificate, datetime.datetime.now(datetime.UTC))
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(files.certificate, files.key)
        server.socket, scheme = context.wrap_socket(server.socket, server_side=True), "https"
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield f"{scheme}://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_a_first_asks_its_standbys_before_it_accepts_writes(tmp_path: pathlib.Path) -> None:
    folder = tmp_path / "peer"
    key = f'standby_ca_file = "{folder / LOCAL_CERTIFICATE}"\n'
    with (
        answering({"term": 2, "id": ID, "role": "first"}, folder) as url,
        serve(tmp_path, more=key) as daemon,
    ):
        with SmallStandby(daemon, url=url) as standby:
            standby.until_complete()
        assert [(each.id, each.url) for each in read_term(daemon.data).peers] == [(ID, url)]
        daemon.kill()
        daemon.start()
        daemon.await_line("This server was superseded")
        with Tree(daemon, "shop") as tree:
            refused = tree.request("PUT", at("/a.json", tree.admin), "3")
            assert (refused.status, url in refused.json["message"]) == (503, True)
        assert read_term(daemon.data).role == "superseded"


def test_peers_that_do_not_answer_or_are_others_keep_no_first_from_its_work(
    tmp_path: pathlib.Path,
) -> None:
    with answering({"term": 9, "id": "another", "role": "first"}) as url:
        peers = (Peer("f" * 32, url), Peer("e" * 32, "http://127.0.0.1:1"))
        (tmp_path / "data").mkdir(mode=0o700)
        write_term(tmp_path / "data", Term(id="a" * 32, peers=peers))
        with serve(tmp_path) as daemon, Tree(daemon, "shop") as tree:
            daemon.await_line("cannot be asked whether it was promoted")
            while (response := tree.request("PUT", at("/a.json", tree.admin), "3")).status == 503:
                assert "asks its standbys" in response.json["message"]
            assert response.status == 200


def test_a_standby_that_has_followed_a_later_first_supersedes_this_one(
    tmp_path: pathlib.Path,
) -> None:
    with serve(tmp_path) as daemon, Tree(daemon, "shop") as tree:
        with SmallStandby(daemon, term=2) as stranger:  # which never followed this one
            assert stranger.status == 409
            assert stranger.refusal["term"] == 1
        tree.put(at("/a.json", tree.admin), 1)
        with SmallStandby(daemon) as standby:
            standby.until_complete()
        with SmallStandby(daemon, term=2) as standby:
            assert (standby.status, standby.refusal["role"]) == (409, "superseded")
        assert tree.request("PUT", at("/a.json", tree.admin), "2").status == 503


# Who may follow, and what.


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        ([], "The body must be a JSON object."),
        ({}, "standby must be an id of hexadecimal digits."),
        ({"standby": "../../etc"}, "standby must be an id of hexadecimal digits."),
        ({"standby": ID, "positions": []}, "positions must be an object."),
        (
            {"standby": ID, "positions": {"shop/a": [1]}, "term": 1},
            "The position of shop/a must be",
        ),
        ({"standby": ID, "positions": {"shop/a": [-1, ""]}, "term": 1}, "The position of shop/a"),
        ({"standby": ID, "positions": {"shop/a": [1, "xy"]}, "term": 1}, "The position of shop/a"),
        ({"standby": ID, "url": "file:///etc", "term": 1}, "url must begin with http"),
        ({"standby": ID, "term": True}, "term must be a number from 1."),
    ],
)
def test_what_is_no_request_of_a_standby_is_refused(
    first: Daemon, body: Any, sentence: str
) -> None:
    response = ask(first, "POST", "stream.json", body)
    assert (response.status, response.json["error"]) == (400, "invalid_data")
    assert sentence in response.json["message"]


def test_only_admins_who_may_write_follow_a_project(first: Daemon) -> None:
    body = json.dumps({"standby": ID, "term": 1})
    for path in ("stream.json", "reached.json", "superseded.json", "promote.json"):
        target = f"/.standby/{path}?ns=shop"
        assert first.request("POST", target, body).status == 401
        for caller in (token("shop", uid="ada"), token("shop", admin=True, read_only=True)):
            assert first.request("POST", at(target, caller), body).status == 403
    assert first.request("GET", "/.standby/base?ns=shop&db=default").status == 401
    assert ask(first, "POST", "promote.json").status == 409
    assert ask(first, "GET", "base", db="nothing").status == 404
    assert ask(first, "GET", "base").status == 400
    assert ask(first, "GET", "state.json").json["role"] == "first"
    listed = first.request("GET", at(f"{DATABASES}?ns=shop", admin("shop"))).json
    assert all("nothing" not in each["name"] for each in listed)


def test_what_is_in_memory_cannot_be_followed(tmp_path: pathlib.Path) -> None:
    with serve(tmp_path, "--engine", "memory") as daemon:
        with SmallStandby(daemon) as standby:
            assert (standby.status, standby.refusal["error"]) == (409, "conflict")
        assert daemon.request("GET", "/.standby/term.json").status == 409


class Writers:
    """Write at the same time on connections of their own, until a write is refused.

    Attributes:
        acknowledged: what was acknowledged.

    """

    def __init__(self, daemon: Daemon, count: int) -> None:
        self.acknowledged: list[str] = []
        self._daemon = daemon
        self._threads = [
            threading.Thread(target=self._write, args=(number,)) for number in range(count)
        ]
        for each in self._threads:
            each.start()

    def _write(self, writer: int) -> None:
        with Tree(self._daemon, "shop") as tree:
            for number in range(100_000):
                value = f"{writer} {number}"
                target = at(f"/w{writer}.json", tree.admin)
                if tree.request("PUT", target, json.dumps(value)).status != 200:
                    return
                self.acknowledged.append(value)

    def join(self) -> None:
        """Wait until all were refused."""
        for each in self._threads:
            each.join()


@pytest.mark.parametrize("workers", ["1", "2"])
def test_what_was_acknowledged_before_the_notice_is_in_the_stream(
    tmp_path: pathlib.Path, workers: str
) -> None:
    db = "shop/default"
    with serve(tmp_path, "--workers", workers) as daemon, SmallStandby(daemon) as standby:
        standby.until_complete()
        writers = Writers(daemon, 6)
        standby.until(lambda line: line.get("seq", 0) > 100)
        reached(daemon, standby.positions)
        assert ask(daemon, "POST", "superseded.json", {"term": 2}).json["role"] == "superseded"
        writers.join()
        standby.until(lambda line: line.get("last") is True)
        assert list(standby.bodies[db]) == list(range(1, len(standby.bodies[db]) + 1))
        assert set(writers.acknowledged) <= set(standby.bodies[db].values())


def test_a_standby_of_workers_continues_at_either(tmp_path: pathlib.Path) -> None:
    with serve(tmp_path, "--workers", "2") as daemon:
        with Tree(daemon, "shop") as tree:
            put_many(tree, 20)
            with SmallStandby(daemon) as standby:
                standby.until_complete()
                for _ in range(6):  # at both workers
                    reached(daemon, standby.positions)
            put_many(tree, 130)
        for _ in range(4):
            with SmallStandby(daemon, standby.positions) as again:
                again.until_complete()
                assert list(again.bodies["shop/default"]) == list(range(21, 151))
