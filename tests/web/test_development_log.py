"""What development mode logs of each request, and when it logs nothing."""

from __future__ import annotations

import contextlib
import gc
import os
import pathlib
from collections.abc import Callable, Iterator
from typing import Any, cast

import attrs
import jwt
import pytest
from twisted.logger import capturedLogs, eventAsText

from tests.access import admin, secret_of
from tests.web.tree_server import SETTINGS, TreeServer, make_verifier
from treedbd.config.endpoints import LocalNetwork
from treedbd.http1.registry import RequestLogging, ServerOptions
from treedbd.http1.request import Request
from treedbd.http1.server import Http1Factory
from treedbd.rules.ruleset import parse_rules
from treedbd.web import request_log

RULES = parse_rules(
    '{"rules": {"gate": {".write": true}, "room": {".read": "root.child(\'gate\').val() == 1"},'
    '"open": {".read": true, ".write": true, "$n": {".validate": "newData.isNumber()"}},'
    '"notes": {"$uid": {".read": "auth.uid == $uid", ".write": "root.child(\'on\').val() == 1"}}}}'
)
BEARER = "Authorization: Bearer "


def logging(log: Callable[[Request], None] | None) -> ServerOptions:
    """Return the options of a server that logs requests by `log`."""
    assert log is not None
    return ServerOptions(logs=RequestLogging(log, log))


@pytest.fixture
def server(tmp_path: pathlib.Path) -> TreeServer:
    options = attrs.evolve(SETTINGS, development=True)
    verifier = make_verifier(secret_of("demo"))
    made = TreeServer(tmp_path, RULES, options=options, verifier=lambda _: verifier)
    made.factory = Http1Factory(
        made.resource, SETTINGS.limits, made.clock, logging(made.resource.log_request)
    )
    return made


@pytest.fixture
def log() -> Iterator[list[Any]]:
    gc.collect()  # what other tests have left is not logged meanwhile
    with capturedLogs() as captured:
        yield cast(list[Any], captured)


def lines(log: list[Any]) -> list[str]:
    shown = [(each["log_level"].name, eventAsText(each, False, False, False)) for each in log]
    log.clear()
    return [f"{level}: {text}" for level, text in shown]


def fill(pipe: int) -> None:
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(pipe, bytes(4096))


def token_for(**claims: Any) -> str:
    return jwt.encode(claims, secret_of("demo"), "HS256")


def test_a_request_is_one_line_with_method_path_status_time_and_caller(
    server: TreeServer, log: list[Any]
) -> None:
    server.request("PUT", "/open/a.json", b"1")
    server.request("GET", "/open/a.json", headers=[BEARER + token_for(uid="ada")])
    server.request("GET", "/open/a.json", headers=[BEARER + token_for(uid="x", admin=True)])
    server.request("GET", "/open/a")
    server.request("GET", "/open/a.json", headers=[BEARER + "nonsense"])
    found = [line.split() for line in lines(log)]
    assert [(*line[:4], " ".join(line[6:])) for line in found] == [
        ("info:", "PUT", "/open/a.json", "200", "anonymous"),
        ("info:", "GET", "/open/a.json", "200", "uid ada"),
        ("info:", "GET", "/open/a.json", "200", "admin"),
        ("info:", "GET", "/open/a", "404", "anonymous"),
        ("info:", "GET", "/open/a.json", "401", "with a token"),
    ]
    assert {line[5] for line in found} == {"ms"}
    assert all(float(line[4]) >= 0 for line in found)


def test_the_files_of_the_console_are_no_lines(server: TreeServer, log: list[Any]) -> None:
    for target in ("/.console", "/.console/", "/.console/main.js"):
        assert server.request("GET", target).status in (200, 308)
    tag = server.request("GET", "/.console/")[b"etag"].decode()
    assert server.request("GET", "/.console/", b"", [f"If-None-Match: {tag}"]).status == 304
    assert [line for line in lines(log) if "/.console/" in line] == []
    assert server.request("GET", "/.console/none.js").status == 404
    assert [line for line in lines(log) if "GET /.console/none.js 404" in line]


def test_neither_a_token_nor_a_query_is_logged(server: TreeServer, log: list[Any]) -> None:
    token = token_for(uid="ada")
    server.request("GET", f"/open/a.json?auth={token}&orderBy=%22private%22")
    server.request("GET", f"/open/{token}.json?acess_token={token}")
    shown = "\n".join(lines(log))
    assert shown.count("GET /open/") == 2
    assert token not in shown
    assert "private" not in shown.replace('names "private"', "")


@pytest.mark.parametrize(
    ("query", "warning"),
    [
        (
            "limitTofirst=2",
            "no parameter limitTofirst (did you mean limitToFirst?): it is ignored.",
        ),
        ("prnt=pretty", "no parameter prnt (did you mean print?): it is ignored."),
        ("zzzzzz", "no parameter zzzzzz: it is ignored."),
    ],
)
def test_an_unknown_parameter_is_warned_of(
    server: TreeServer, log: list[Any], query: str, warning: str
) -> None:
    assert server.request("GET", f"/open/a.json?{query}").status == 200
    warned, shown = lines(log)
    assert warned == f"warn: The interface has {warning}"
    assert shown.startswith("info: GET /open/a.json 200 ")


@pytest.mark.parametrize(
    "query",
    [
        "0123456789abcdef0123456789abcdef",
        "auth%3D0123456789abcdef0123456789abcdef",
        "auth%253D0123456789abcdef0123456789abcdef=1",
        "auth:abcdef=&a%0Ab=1",
        "a" * 31,
    ],
)
def test_what_may_be_a_token_in_the_place_of_a_name_is_not_shown(
    server: TreeServer, log: list[Any], query: str
) -> None:
    server.request("GET", f"/open/a.json?{query}")
    *warned, _ = lines(log)
    hidden = "warn: A parameter is ignored whose name is not shown, because it may be a token."
    assert set(warned) == {hidden}


def test_the_token_of_lan_is_not_shown_in_a_path(tmp_path: pathlib.Path, log: list[Any]) -> None:
    token = "0123456789abcdef0123456789abcdef"
    options = attrs.evolve(SETTINGS, development=True, network=LocalNetwork(token, (), ()))
    server = TreeServer(tmp_path, RULES, options=options)
    server.factory = Http1Factory(
        server.resource, SETTINGS.limits, server.clock, logging(server.resource.log_request)
    )
    server.request("GET", f"/open/{token}.json")
    assert lines(log)[-1].startswith("info: GET /open/….json 200 ")


def test_known_parameters_are_not_warned_of(server: TreeServer, log: list[Any]) -> None:
    server.request("GET", "/open/a.json?print=pretty&ns=demo&timeout=3s")
    assert len(lines(log)) == 1


def test_a_denied_read_is_explained_by_the_rule_that_denied_it(
    server: TreeServer, log: list[Any]
) -> None:
    server.request("GET", "/notes/ada.json", headers=[BEARER + token_for(uid="eve")])
    denied, shown = lines(log)
    assert denied.startswith("warn: denied: No .read rule on the path is true. auth is {")
    assert '"uid":"eve"' in denied
    assert denied.endswith("rules/notes/$uid/.read (1:201) at /notes/ada: false; $uid is ada")
    assert shown.startswith("info: GET /notes/ada.json 401 ")


@pytest.mark.parametrize(
    ("method", "target", "body", "reason"),
    [
        ("PUT", "/notes/ada.json", b'{"t":1}', "No .write rule on the path is true."),
        ("PATCH", "/notes/ada.json", b'{"t":1}', "No .write rule on the path is true."),
        ("DELETE", "/notes/ada.json", b"", "No .write rule on the path is true."),
        ("PUT", "/open/a.json", b'"x"', "The rule rules/open/$n/.validate is not true."),
        ("POST", "/open.json", b'"x"', "The rule rules/open/$n/.validate is not true."),
        ("PUT", "/else.json", b"1", "There is no rule on the path"),
        ("PUT", "/else.json?print=silent", b"1", "There is no rule on the path"),
        ("PUT", "/else.json?print=pretty", b"1", "There is no rule on the path"),
    ],
)
def test_a_denied_write_is_explained_and_still_not_done(
    server: TreeServer, log: list[Any], method: str, target: str, body: bytes, reason: str
) -> None:
    assert server.request(method, target, body).status == 403
    denied, shown = lines(log)
    assert denied.startswith(f"warn: denied: {reason}")
    assert shown.startswith(f"info: {method} {target.partition('?')[0]} 403 ")
    token = BEARER + token_for(admin=True)
    assert server.request("GET", "/.json", headers=[token]).body == b"null"


@pytest.mark.parametrize("parameter", ["callback=f", "download=f", "format=export", "shallow=true"])
def test_a_denied_read_is_explained_whatever_form_it_asks_for(
    server: TreeServer, log: list[Any], parameter: str
) -> None:
    page = ["Referer: http://localhost:3000/"]
    assert server.request("GET", f"/notes/ada.json?{parameter}", b"", page).status == 403
    denied, _ = lines(log)
    assert denied.startswith("warn: denied: No .read rule on the path is true.")


@pytest.mark.parametrize(
    ("method", "body", "headers", "reason"),
    [
        ("PUT", b"{", [], "Not valid JSON"),
        ("PUT", b'{"a\\u0000":1}', [], "The key 'a\\x00' is not allowed"),
        ("PATCH", b"1", [], "The body of a PATCH must be"),
        ("POST", b"1", ["Content-Encoding: gzip"], "The body is not valid gzip:"),
    ],
)
def test_of_a_denied_write_with_a_bad_body_the_error_is_shown_in_one_line(
    server: TreeServer, log: list[Any], method: str, body: bytes, headers: list[str], reason: str
) -> None:
    assert server.request(method, "/else.json", body, headers).status == 403
    denied, shown = lines(log)
    assert denied.startswith(f"warn: denied, whatever the body is, and it is an error: {reason}")
    assert "\n" not in denied
    assert shown.startswith(f"info: {method} /else.json 403 ")


def test_a_denial_that_cannot_be_explained_is_answered_all_the_same(
    server: TreeServer, log: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(request_log, "format_explanation", lambda _: 1 / 0)
    assert server.request("GET", "/notes/ada.json").status == 403
    assert lines(log)[0].startswith("critical: A denial could not be explained.")


def test_a_denied_stream_is_explained(server: TreeServer, log: list[Any]) -> None:
    server.request("GET", "/notes/ada.json", headers=["Accept: text/event-stream"])
    assert "rules/notes/$uid/.read" in lines(log)[0]


def test_a_read_that_its_connection_repeats_is_explained_when_it_is_denied(
    server: TreeServer, log: list[Any]
) -> None:
    peer = server.connect()
    head = b"GET /room.json HTTP/1.1\r\nHost: demo.localhost\r\n\r\n"
    server.request("PUT", "/gate.json", b"1")
    peer.send(head + head)
    server.clock.advance(0)  # the second one has a turn of its own
    assert [reply.status for reply in peer.read(b"GET", b"GET")] == [200, 200]
    server.request("PUT", "/gate.json", b"2")
    lines(log)
    peer.send(head)
    assert [reply.status for reply in peer.read(b"GET")] == [403]
    denied, _ = lines(log)
    assert denied.endswith("at /room: false; data at /gate is 2")


def test_requests_for_events_of_hooks_are_no_streams_and_their_parameters_are_known(
    server: TreeServer, log: list[Any]
) -> None:
    owner = (BEARER + admin("demo"),)
    server.request("PUT", "/.settings/events.json", b'{"name":"a","on":"/a"}', owner)
    server.request("GET", "/.settings/events.json?name=a&reader=x&limit=2&wait=0", b"", owner)
    server.request("GET", "/.settings/webhooks/dead.json?name=a", b"", owner)
    assert [line.partition(" ms")[0].rpartition(" ")[0] for line in lines(log)] == [
        "info: PUT /.settings/events.json 200",
        "info: GET /.settings/events.json 409",
        "info: GET /.settings/webhooks/dead.json 200",
    ]


def test_a_stream_is_logged_when_it_begins_and_when_it_ends(
    server: TreeServer, log: list[Any]
) -> None:
    stream = server.open_stream("/open.json", host="192.0.2.7")
    assert lines(log) == ["info: GET /open.json stream opened anonymous"]
    stream.read_events()
    server.resource.streams.end()
    (ended,) = lines(log)
    assert ended.startswith("info: GET /open.json stream ended after ")


def test_a_reader_that_was_cut_off_is_logged_so(server: TreeServer, log: list[Any]) -> None:
    server.write("PUT", "/open", "x" * 1_000_000)
    log.clear()
    peer = server.connect()
    peer.transport.room = 0
    peer.send(b"GET /open.json HTTP/1.1\r\nHost: demo.localhost\r\n\r\n")
    assert lines(log) == []
    server.factory.abort()
    peer.disconnect()
    (line,) = lines(log)
    assert line.startswith("info: GET /open.json 200 cut off: stop, ")


def test_lines_that_nobody_reads_are_dropped_and_counted(
    server: TreeServer, log: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    reading, writing = os.pipe()
    try:
        os.set_blocking(writing, False)
        monkeypatch.setattr(request_log, "_STANDARD_OUTPUT", writing)
        record = request_log.DevelopmentLog({}).record
        server.factory = Http1Factory(
            server.resource, SETTINGS.limits, server.clock, logging(record)
        )
        server.request("GET", "/open/a.json")
        assert len(lines(log)) == 1
        fill(writing)
        server.request("GET", "/open/a.json")
        server.request("GET", "/open/a.json")
        assert lines(log) == []
        os.read(reading, 1 << 20)
        server.request("GET", "/open/a.json")
        warned, shown = lines(log)
    finally:
        os.close(reading)
        os.close(writing)
    assert warned == "warn: 2 lines were not logged: the output was not read."
    assert shown.startswith("info: GET /open/a.json 200 ")


def test_outside_development_mode_nothing_is_logged(tmp_path: pathlib.Path, log: list[Any]) -> None:
    server = TreeServer(tmp_path, RULES)
    assert server.resource.log_request is None
    assert server.request("PUT", "/notes/ada.json", b"1").status == 403
    assert server.request("GET", "/open.json?nonsense=1").status == 200
    assert lines(log) == []
