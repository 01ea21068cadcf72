"""What a standby makes of lines that a first should not send: nothing of it is applied."""

from __future__ import annotations

import json
import pathlib
import resource
import signal
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import chain, repeat
from typing import Any, Final

import pytest

from tests.access import Tree
from tests.closing import Closing
from tests.daemon import Daemon
from tests.standby.pair import LAG, PROJECT, ask, make_daemon, see, until
from treedbd.standby.client import Stream
from treedbd.standby.follower import (
    MAX_LINE_BYTES,
    CannotFollow,
    LineReceiver,
    parse_line,
)
from treedbd.standby.term import read_term
from treedbd.store.engine import LogEntry

ID: Final = "ab" * 16


class OtherFirst(Closing):
    """A program in place of a first, which sends the lines of a script on each stream.

    Attributes:
        scripts: the lines of the streams to come; the last one is sent again and again.
        asked: what the streams have been asked for.
        status: that of the streams.
        id: what it says that its id is.

    """

    def __init__(self) -> None:
        self.scripts: list[list[bytes]] = [[]]
        self.asked: list[Any] = []
        self.status, self.id = 200, ID
        first = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if "stream" not in self.path:
                    self._answer(b'{"term":1}')
                    return
                first.asked.append(json.loads(body))
                script = first.scripts.pop(0) if len(first.scripts) > 1 else first.scripts[0]
                self._answer(b"".join(script), first.status)

            def do_GET(self) -> None:
                if "term" in self.path:
                    self._answer(json.dumps({"id": first.id}).encode())
                    return
                self._answer(b"not a base" * 500_000)

            def _answer(self, content: bytes, status: int = 200) -> None:
                self.send_response(status)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def close(self) -> None:
        """Stop it."""
        self._server.shutdown()
        self._server.server_close()


def line(**members: Any) -> bytes:
    return json.dumps(members, separators=(",", ":")).encode() + b"\n"


def entry(sequence: int, value: Any, op: int = 1, db: str = "shop/default") -> bytes:
    content = {"time": 1, "method": "put", "path": ["n"], "size": 1, "sent": value}
    return line(db=db, seq=sequence, op=f"{op:032x}", entry=content)


OPEN: Final = '{"rules": {".read": true}}'
HELLO: Final = line(hello={"term": 1, "id": ID, "now": 1})
BEGINS: Final = line(db="shop/default", begins=[0, ""])


@pytest.fixture(scope="module")
def first() -> Iterator[OtherFirst]:
    with OtherFirst() as first:
        yield first


@pytest.fixture(scope="module")
def standby(first: OtherFirst, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    first.scripts = [[HELLO, BEGINS, entry(1, "one")], [HELLO]]
    folder: pathlib.Path = tmp_path_factory.mktemp("other")
    with make_daemon(folder / "standby", standby_of=first.url) as daemon, tree_of(daemon) as tree:
        until(lambda: see(tree, "/n") == "one", "the first entry")
        yield daemon


def tree_of(daemon: Daemon) -> Tree:
    return Tree(daemon, PROJECT)


def send(first: OtherFirst, *lines: bytes, count: int = 1) -> None:
    """Send lines on the next stream, or on some of them, and wait for the one after it."""
    before = len(first.asked) + count - 1
    first.scripts = [list(lines)] * count + [[HELLO]]
    until(lambda: len(first.scripts) == 1 and len(first.asked) > before + 1, "the next stream")


def test_the_lag_counts_from_when_a_state_was_sent_not_from_when_it_came(
    first: OtherFirst, standby: Daemon
) -> None:
    hello = line(hello={"term": 1, "id": ID, "now": 10_000_000})
    send(first, hello, line(beat=10_000_000 - 3_600_000, heads={}))
    with tree_of(standby) as tree:
        response = tree.request("GET", f"/n.json?auth={tree.admin}")
    assert int(response.headers[LAG]) > 3_600_000


def test_what_cannot_be_applied_ends_the_stream_and_changes_nothing(
    first: OtherFirst, standby: Daemon
) -> None:
    other = line(hello={"term": 1, "id": "cd" * 16, "now": 1})
    for reason, lines in {
        "not a line of a stream": [HELLO, b"\x00not json\n"],
        "does not follow": [HELLO, entry(5, "five")],
        "the base is damaged": [HELLO, line(db="shop/default", base=True)],
        "does not have are kept": [other, line(db="shop/default", missing=True)],
    }.items():
        mark = standby.mark()
        first.scripts = [lines]
        standby.await_line(reason, mark, 30)
        assert first.asked[-1]["positions"] == {"shop/default": [1, f"{1:032x}"]}
        assert "Traceback" not in standby.log_since(mark)
    with tree_of(standby) as tree:
        assert see(tree, "/n") == "one"


def test_a_base_for_which_there_is_no_room_keeps_no_other_database_from_following(
    first: OtherFirst, standby: Daemon
) -> None:
    before = resource.prlimit(standby.pid, resource.RLIMIT_FSIZE)
    mark = standby.mark()
    resource.prlimit(standby.pid, resource.RLIMIT_FSIZE, (2_500_000, before[1]))
    base, begins = line(db="shop/default", base=True), line(db="shop/other", begins=[0, ""])
    first.scripts = [[HELLO, base, begins, entry(1, "there", db="shop/other")], [HELLO]]
    standby.await_line(r"The disk of this standby is full \(shop/default\)", mark, 30)
    resource.prlimit(standby.pid, resource.RLIMIT_FSIZE, before)
    with Tree(standby, PROJECT, "other") as tree:
        until(lambda: see(tree, "/n") == "there", "the other database")
    with tree_of(standby) as tree:
        assert see(tree, "/n") == "one"


def test_a_server_that_is_the_standby_itself_is_recognised(
    first: OtherFirst, standby: Daemon
) -> None:
    first.id = read_term(standby.data).id
    mark = standby.mark()
    first.status = 503
    standby.await_line("standby_of names this server itself, or a copy of its data", mark, 30)
    first.status = 200


def test_rules_of_the_first_that_cannot_be_used_deny_everything(
    first: OtherFirst, standby: Daemon
) -> None:
    def send_rules(text: str, status: int) -> None:
        with tree_of(standby) as tree:
            first.scripts = [[HELLO, line(rules=text)], [HELLO]]
            until(lambda: tree.status("GET", "/n.json") == status, "the rules")

    send_rules(OPEN, 200)
    send_rules("{", 403)
    with tree_of(standby) as tree:
        health = tree.request("GET", f"/.health?auth={tree.admin}")
    assert (health.status, "rules cannot be used" in str(health.json)) == (503, True)
    answer = ask(standby, "POST", "promote.json", {})
    assert (answer.status, "rules cannot be used" in str(answer.json)) == (503, True)
    standby.restart()
    with tree_of(standby) as tree:
        assert tree.status("GET", "/n.json") == 403
    send_rules(OPEN, 200)


def test_a_database_that_another_first_does_not_have_is_kept_until_it_is_deleted(
    first: OtherFirst, standby: Daemon
) -> None:
    gone = "shop/default"
    other = line(hello={"term": 1, "id": "ef" * 16, "now": 1})
    send(first, other, line(db=gone, missing=True), count=2)  # the second one has met it before
    assert gone in first.asked[-1]["positions"]
    send(first, HELLO, line(db="shop/eu", begins=[0, ""]), line(db=gone, deleted=True))
    assert gone not in first.asked[-1]["positions"]
    assert "shop/eu" in first.asked[-1]["positions"]
    send(first, HELLO, line(db="shop/eu", missing=True))
    assert "shop/eu" not in first.asked[-1]["positions"]


def test_a_standby_that_has_not_received_all_data_says_so(tmp_path: pathlib.Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        with make_daemon(tmp_path / "standby", standby_of=url) as daemon:
            connection, _ = listener.accept()
            assert connection.recv(65_536)
            connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n" + HELLO)
            daemon.await_line("The project shop follows")
            assert "has not received all data" in str(ask(daemon, "GET", "state.json").json)
            connection.sendall(line(beat=1, heads={}))
            until(lambda: ask(daemon, "GET", "state.json").json["is_complete"], "all data")


def test_a_standby_stops_while_it_begins_to_follow(tmp_path: pathlib.Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        with make_daemon(tmp_path / "standby", standby_of=url) as daemon:
            connection, _ = listener.accept()
            assert connection.recv(65_536)
            daemon.signal(signal.SIGTERM)
            connection.settimeout(0.2)  # between two lines
            lines = chain([b"", b"HTTP/1.1 200 OK\r\n\r\n"], repeat(line(alive=True)))

            def is_ended() -> bool:
                try:
                    connection.sendall(next(lines))
                    return not connection.recv(65_536)
                except TimeoutError:
                    return False
                except ConnectionError:
                    return True

            until(is_ended, "the end of the stream")
            assert daemon.wait() == 0


def test_an_entry_is_taken_out_of_its_line_as_it_is() -> None:
    content = b'{"time":1,"sent":{"a":",\\"entry\\":"}}'
    text = b'{"db":"shop/a","seq":3,"op":"00ff","entry":' + content + b"}"
    assert parse_line(text).entry == LogEntry(3, b"\x00\xff", content)
    assert parse_line(b'{"beat":1,"heads":{}}').entry is None


@pytest.mark.parametrize(
    "text",
    [b"", b"{", b'{"db":"a/b","seq":1.5,"op":"","entry":{}}', b'{"db":"a/b","seq":1,"entry":1'],
)
def test_other_lines_are_errors(text: bytes) -> None:
    with pytest.raises((ValueError, LookupError, TypeError)):
        parse_line(text)


def test_lines_are_divided_wherever_they_are_cut() -> None:
    found: list[bytes] = []
    receiver, stream = LineReceiver(found.append), Stream(None, LineReceiver(found.append))
    stream.status = 200
    for piece in (b"a", b"b\nc", b"\n\nd\ne\nf"):
        receiver.received(piece, stream)
    assert found == [b"ab", b"c", b"", b"d", b"e"]
    receiver.received(bytes(MAX_LINE_BYTES - 1), stream)
    with pytest.raises(CannotFollow, match="too long"):
        receiver.received(b"xx", stream)
