"""What is logged of requests, with requests in memory; `tests/test_logging.py` has real daemons."""

from __future__ import annotations

import pathlib
import zlib
from typing import Any

import pytest
from twisted.python.failure import Failure

from tests.http1.peer import Peer
from tests.http1.test_reply import RecordedLog
from tests.web.tree_server import SETTINGS, TreeServer
from treedbd.errors import BUDGET_LINES, BUDGET_S
from treedbd.http1.registry import NO_LOGGING, ServerOptions
from treedbd.http1.server import Http1Factory
from treedbd.web.auth.identity import Identity
from treedbd.web.request import RequestParser
from treedbd.web.request_log import CLIENT_CLOSED, MAX_PATH, RequestLog, RequestLogOptions

ALL_SLOW = 1e-9
NEVER_S = 1e9


class LoggedServer(TreeServer):
    """A server in memory with a request log; the clock of its budget is the server's."""

    def __init__(self, folder: pathlib.Path, **options: Any) -> None:
        super().__init__(folder)
        self.identity: Identity | None = None
        self.log = RequestLog(
            RequestLogOptions(**options),
            lambda _project, _token: self.identity,
            RequestParser(SETTINGS),
            self.clock.seconds,
        )
        logging = self.log.logging()
        self.factory = Http1Factory(
            self.resource, SETTINGS.limits, self.clock, ServerOptions(logs=logging)
        )


def fields(log: RecordedLog) -> list[dict[str, Any]]:
    """Return the fields of the lines of the access log."""
    return [event["treedb_fields"] for event in log.events if "treedb_line" in event]


def warnings(log: RecordedLog) -> list[str]:
    """Return the warnings of slow requests."""
    return [
        f"{event['method']} {event['path']} {event['status']} {event['where']}{event['note']}"
        for event in log.events
        if "where" in event
    ]


def test_nothing_is_called_if_nothing_is_to_be_logged(tmp_path: pathlib.Path) -> None:
    assert LoggedServer(tmp_path).log.logging() is NO_LOGGING


def test_only_slow_requests_are_called_for_without_an_access_log(tmp_path: pathlib.Path) -> None:
    logging = LoggedServer(tmp_path, slow_s=5.0).log.logging()
    assert (logging.least_s, logging.sends_ids) == (5.0, False)
    logging = LoggedServer(tmp_path, form="fields", slow_s=5.0).log.logging()
    assert (logging.least_s, logging.sends_ids) == (0.0, True)


def test_a_slow_request_is_logged_once_with_what_it_did_and_what_helps(
    tmp_path: pathlib.Path,
) -> None:
    server = LoggedServer(tmp_path, slow_s=ALL_SLOW)
    with RecordedLog() as log:
        server.request("PUT", "/a.json", b"1")
        server.request("GET", "/a.json")
        server.request("GET", '/a.json?orderBy="x"&limitToFirst=1')
        server.request("GET", '/a.json?where={"x":1}'.replace('"', "%22"))
        server.request("GET", "/%zz.json")
    assert fields(log) == []
    put, get, query, where, malformed = warnings(log)
    assert put.startswith("PUT /a.json 200 all of it before the response began. Writes to a")
    assert get.startswith("GET /a.json 200 all of it before the response began. Read less")
    assert ".indexOn" in query
    assert "where=" in where
    assert "busy machine" in malformed
    assert "orderBy" not in query.split(".indexOn")[0]


def test_a_long_response_says_how_long_it_took_to_send(tmp_path: pathlib.Path) -> None:
    server = LoggedServer(tmp_path, slow_s=ALL_SLOW)
    server.write("PUT", "/a", {f"k{n}": "x" * 1000 for n in range(300)})
    with RecordedLog() as log:
        server.request("GET", "/a.json")
    (warning,) = warnings(log)
    assert "s before the response began and" in warning


def test_fast_requests_and_streams_are_not_slow(tmp_path: pathlib.Path) -> None:
    server = LoggedServer(tmp_path, slow_s=NEVER_S)
    with RecordedLog() as log:
        server.request("GET", "/a.json")
    assert log.events == []
    server = LoggedServer(tmp_path, form="fields", slow_s=ALL_SLOW)
    with RecordedLog() as log:
        client = server.open_stream("/a.json")
        client.peer.connection.connectionLost(Failure(ConnectionError()))
    (logged,) = fields(log)
    assert (logged["stream"], logged["disconnected"], logged["status"]) == (True, True, 200)
    assert "cut_off" not in logged
    assert server.factory.connections.cut_off == {}
    assert warnings(log) == []


def test_the_warnings_of_a_minute_are_bounded_and_counted(tmp_path: pathlib.Path) -> None:
    server = LoggedServer(tmp_path, slow_s=ALL_SLOW)
    with RecordedLog() as log:
        for _ in range(BUDGET_LINES + 30):
            server.request("GET", "/a.json")
        assert len(warnings(log)) == BUDGET_LINES
        server.clock.advance(BUDGET_S)
        server.request("GET", "/a.json")
    assert len(warnings(log)) == BUDGET_LINES + 1
    assert warnings(log)[-1].endswith(" … 30 more such lines were left out before.")


def test_a_request_whose_client_goes_first_is_logged_as_499(tmp_path: pathlib.Path) -> None:
    server = LoggedServer(tmp_path, form="fields")
    with RecordedLog() as log:
        peer = server.begin_write("PUT", "/a", 1)
        peer.connection.connectionLost(Failure(ConnectionError()))
        server.clock.advance(0)
    (logged,) = fields(log)
    assert (logged["status"], logged["disconnected"], logged["method"]) == (
        CLIENT_CLOSED,
        True,
        "PUT",
    )


def begin_long_read(server: LoggedServer) -> Peer:
    """Begin to read a value of which the first bytes fill the transport."""
    server.write("PUT", "/a", "x" * 1_000_000)
    peer = server.connect()
    peer.transport.room = 0
    peer.send(b"GET /a.json HTTP/1.1\r\nHost: demo.localhost\r\n\r\n")
    return peer


@pytest.mark.parametrize("reason", ["client", "stop", "slow"])
def test_a_reader_that_was_cut_off_is_logged_and_counted_so(
    tmp_path: pathlib.Path, reason: str
) -> None:
    server = LoggedServer(tmp_path, form="fields")
    with RecordedLog() as log:
        peer = begin_long_read(server)
        if reason == "stop":
            server.factory.abort()
        elif reason == "slow":
            server.clock.pump([1.0, 2 * SETTINGS.limits.write_stalled_s, 1.0])
        assert peer.transport.disconnected is (reason != "client")
        peer.connection.connectionLost(Failure(ConnectionError()))
    logged = fields(log)[-1]
    assert (logged["status"], logged["disconnected"], logged["cut_off"]) == (200, True, reason)
    assert 0 < logged["sent"] < 1_000_000
    assert server.factory.connections.cut_off == {reason: 1}


def test_a_request_that_waits_when_the_server_stops_is_logged_as_cut_off(
    tmp_path: pathlib.Path,
) -> None:
    server = LoggedServer(tmp_path, form="fields")
    with RecordedLog() as log:
        peer = server.begin_write("PUT", "/a", 1)
        server.factory.abort()
        peer.connection.connectionLost(Failure(ConnectionError()))
        server.clock.advance(0)
    (logged,) = fields(log)
    assert (logged["status"], logged["cut_off"]) == (CLIENT_CLOSED, "stop")


def test_a_response_that_was_read_is_not_cut_off(tmp_path: pathlib.Path) -> None:
    server = LoggedServer(tmp_path, form="fields")
    with RecordedLog() as log:
        peer = begin_long_read(server)
        peer.read_slowly()
        peer.disconnect()
    logged = fields(log)[-1]
    assert (logged["sent"], "cut_off" in logged) == (1_000_002, False)
    assert server.factory.connections.cut_off == {}


@pytest.mark.parametrize(("sample", "least", "most"), [(0.0, 0, 0), (0.3, 1, 99), (1.0, 100, 100)])
def test_the_sample_is_a_fraction_by_the_id(
    tmp_path: pathlib.Path, sample: float, least: int, most: int
) -> None:
    server = LoggedServer(tmp_path, form="fields", sample=sample)
    with RecordedLog() as log:
        replies = [server.request("GET", "/a.json") for _ in range(100)]
    ids = [reply[b"x-request-id"] for reply in replies]
    chosen = [each.decode() for each in ids if zlib.crc32(each) < sample * 2**32]
    assert [each["request_id"] for each in fields(log)] == chosen
    assert least <= len(chosen) <= most


def test_slow_requests_are_in_every_sample(tmp_path: pathlib.Path) -> None:
    server = LoggedServer(tmp_path, form="fields", sample=0.0, slow_s=ALL_SLOW)
    with RecordedLog() as log:
        server.request("GET", "/a.json")
    assert len(fields(log)) == 1


def test_a_body_is_counted_however_it_is_framed(tmp_path: pathlib.Path) -> None:
    server = LoggedServer(tmp_path, form="fields")
    head = b"PUT /a.json HTTP/1.1\r\nHost: demo.localhost\r\n"
    with RecordedLog() as log:
        server.connect().send(head + b"Content-Length: 3\r\n\r\n123")
        server.connect().send(head + b"Transfer-Encoding: chunked\r\n\r\n4\r\n1234\r\n0\r\n\r\n")
        server.connect().send(head.replace(b"PUT", b"GET") + b"\r\n")
        server.clock.advance(0)
    assert sorted(each["received"] for each in fields(log)) == [0, 3, 4]


def test_a_repeated_head_has_the_same_fields_and_another_id(tmp_path: pathlib.Path) -> None:
    server = LoggedServer(tmp_path, form="fields")
    peer = server.connect()
    with RecordedLog() as log:
        for _ in range(4):
            peer.send(
                b"GET /a.json?auth=x HTTP/1.1\r\nHost: demo.localhost\r\nUser-Agent: u\r\n\r\n"
            )
    logged = fields(log)
    assert len({each["request_id"] for each in logged}) == 4
    for each in logged:
        assert (each["path"], each["project"], each["user_agent"]) == ("/a.json", "demo", "u")


def test_a_user_is_named_as_the_log_can_show_him(tmp_path: pathlib.Path) -> None:
    server = LoggedServer(tmp_path, form="fields")
    with RecordedLog() as log:
        for auth, is_admin in (
            ({"uid": "a\n\x1b" + "x" * 999}, False),
            ({"uid": 7}, False),
            (None, True),
        ):
            server.identity = Identity(is_admin, auth)  # type: ignore[arg-type]
            server.request("GET", "/a.json?auth=x")
    long, none, admin = fields(log)
    assert long["uid"].startswith("a\\n\\x1bxxx")
    assert len(long["uid"]) < 300
    assert "uid" not in none
    assert ("uid" in admin, admin["admin"]) == (False, True)


def test_a_very_long_path_is_cut(tmp_path: pathlib.Path) -> None:
    server = LoggedServer(tmp_path, form="fields")
    with RecordedLog() as log:
        server.request("GET", f"/{'a/' * 2 * MAX_PATH}.json")
    (logged,) = fields(log)
    assert len(logged["path"]) == MAX_PATH + 1


def test_a_request_for_no_database_names_none(tmp_path: pathlib.Path) -> None:
    server = LoggedServer(tmp_path, form="fields")
    with RecordedLog() as log:
        server.request("GET", "/a.json", host="elsewhere.example")
    (logged,) = fields(log)
    assert (logged["status"], "project" in logged) == (421, False)
