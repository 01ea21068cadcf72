"""`/.health`: a word for everyone, reasons for the admins of a project, and the two probes."""

from __future__ import annotations

import pathlib
from typing import Any

import attrs
import pytest
from twisted.internet.defer import Deferred, succeed

from tests.http1.peer import ParsedReply
from tests.web.tree_server import WALL, TreeServer
from treedbd.database.runtime import Problem
from treedbd.loop import Turns
from treedbd.rules.ruleset import DENY, OPEN
from treedbd.web.auth.identity import OWNER, Identity
from treedbd.web.auth.jwt import BadToken
from treedbd.web.auth.verifier import Authenticator

FULL = Problem("demo", "default", "The disk is full.")
RULES = Problem("demo", None, "The rules are damaged.", refuses_writes=False)
OTHER = Problem("other", "eu", "It is gone.")
VEILED = "Not everything can be served at present."


class AdminVerifier:
    """Takes `admin` for an admin's token and `user` for another; waits for `slow` for ever."""

    def verify(self, token: str, _now: float) -> Identity | Deferred[Identity]:
        if token == "slow":
            return Deferred()
        if token not in ("admin", "user"):
            raise BadToken("The token is malformed.")
        return attrs.evolve(OWNER, is_admin=token == "admin")


@pytest.fixture
def server(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> TreeServer:
    """A service with the problems of the tests; every project takes the same tokens."""
    server = TreeServer(tmp_path)
    verifier: Any = AdminVerifier()
    authenticator = Authenticator(lambda _: verifier, server.clock, lambda: WALL)
    monkeypatch.setattr(server.resource._health, "_authenticator", authenticator)
    monkeypatch.setattr(server.catalog, "find_problems", lambda: succeed([FULL, RULES, OTHER]))
    return server


def ask(
    server: TreeServer, query: str = "", *, host: str = "localhost", token: str = ""
) -> ParsedReply:
    headers = f"Host: {host}\r\n" + (f"Authorization: Bearer {token}\r\n" if token else "")
    peer = server.connect()
    (reply,) = peer.exchange(f"GET /.health{query} HTTP/1.1\r\n{headers}\r\n".encode())
    return reply


def test_without_a_problem_everything_is_ok(
    server: TreeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server.catalog, "find_problems", lambda: succeed([]))
    for query in ("", "?ready", "?live", "?ready&live", "?ready=1&x=%FF"):
        reply = ask(server, query)
        assert (reply.status, reply.body) == (200, b'{"status":"ok"}')


@pytest.mark.parametrize(
    ("host", "token"),
    [
        ("localhost", ""),
        ("demo.localhost", ""),
        ("demo.localhost", "user"),
        ("demo.localhost", "rubbish"),
        ("localhost", "admin"),
        ("third.localhost", "admin"),
        ("no..name", "admin"),
    ],
)
def test_nobody_but_an_admin_sees_names(server: TreeServer, host: str, token: str) -> None:
    reply = ask(server, host=host, token=token)
    assert reply.status == 503
    assert VEILED.encode() in reply.body
    assert b"default" not in reply.body
    assert b"eu" not in reply.body


def test_an_admin_sees_the_reasons_of_his_project_alone(server: TreeServer) -> None:
    reply = ask(server, host="demo.localhost", token="admin")
    assert b"demo: The disk is full. demo: The rules are damaged." in reply.body
    assert b"gone" not in reply.body
    reply = ask(server, host="other.localhost", token="admin")
    assert b"eu--other: It is gone." in reply.body
    assert b"disk" not in reply.body


def test_a_probe_for_life_is_answered_whatever_is_wrong(server: TreeServer) -> None:
    assert ask(server, "?live").status == 200
    server.resource.refuse_writes()
    assert ask(server, "?live").status == 200
    assert ask(server).status == 503


@pytest.mark.parametrize(
    ("problems", "host", "status"),
    [
        ([FULL], "localhost", 503),
        ([FULL], "demo.localhost", 503),
        ([FULL], "eu--demo.localhost", 200),
        ([FULL], "other.localhost", 200),
        ([RULES], "demo.localhost", 200),
        ([attrs.evolve(FULL, database=None)], "eu--demo.localhost", 503),
    ],
)
def test_a_probe_for_readiness_asks_for_writes_to_the_addressed_database(
    server: TreeServer,
    monkeypatch: pytest.MonkeyPatch,
    problems: list[Problem],
    host: str,
    status: int,
) -> None:
    monkeypatch.setattr(server.catalog, "find_problems", lambda: succeed(problems))
    assert ask(server, "?ready", host=host).status == status
    assert ask(server, host=host).status == 503


def test_a_provider_that_does_not_answer_ends_as_for_anybody(server: TreeServer) -> None:
    peer = server.connect()
    peer.send(b"GET /.health?auth=slow HTTP/1.1\r\nHost: demo.localhost\r\n\r\n")
    assert peer.read() == []
    server.clock.advance(31)
    (reply,) = peer.read()
    assert (reply.status, VEILED.encode() in reply.body) == (503, True)


def test_a_server_that_ends_refuses_writes_before_it_parses_them_and_still_reads(
    server: TreeServer,
) -> None:
    server.write("PUT", "/a", 1)
    server.resource.refuse_writes()
    for method, body in (("PUT", b"{"), ("DELETE", b""), ("PATCH", b"{"), ("POST", b"{")):
        peer = server.connect()
        head = f"{method} /a.json HTTP/1.1\r\nHost: demo.localhost\r\nContent-Length: {len(body)}"
        (reply,) = peer.exchange(f"{head}\r\n\r\n".encode() + body)
        assert (reply.status, b"shutting down" in reply.body) == (503, True)
    (reply,) = server.connect().exchange(b"GET /a.json HTTP/1.1\r\nHost: demo.localhost\r\n\r\n")
    assert (reply.status, reply.body) == (200, b"1")


@pytest.mark.parametrize(("token", "is_shown"), [("admin", True), ("user", False), ("", False)])
def test_only_an_admin_sees_how_long_the_turns_of_the_process_last(
    server: TreeServer, monkeypatch: pytest.MonkeyPatch, token: str, *, is_shown: bool
) -> None:
    monkeypatch.setattr(server.catalog, "find_problems", lambda: succeed([]))
    turns = Turns(lambda *_: None)
    server.resource.show_turns(turns)
    for length_ms in (1, 1, 7):
        turns.add(length_ms * 1_000_000)
    shown = b'{"count":3,"p50_ms":1.0,"p99_ms":7.0,"longest_ms":7.0}'
    expected = b'{"status":"ok","turns":%s}' % shown if is_shown else b'{"status":"ok"}'
    assert ask(server, host="demo.localhost", token=token).body == expected
    assert ask(server, "?live", host="demo.localhost", token=token).body == b'{"status":"ok"}'


@pytest.mark.parametrize("is_open", [False, True])
def test_the_database_of_an_address_is_named_to_admins_and_where_rules_are_open(
    server: TreeServer, monkeypatch: pytest.MonkeyPatch, is_open: bool
) -> None:
    rules = OPEN if is_open else DENY
    monkeypatch.setattr(server.catalog.rules("demo"), "current", rules)
    named = b'{"status":"ok","database":"demo"}'
    unnamed = named if is_open else b'{"status":"ok"}'
    assert ask(server, "?database", host="demo.localhost").body == unnamed
    assert ask(server, "?database", host="demo.localhost", token="admin").body == named
    assert ask(server, "?database=true", host="[::1]").body == b'{"status":"ok"}'
