"""Requests open the databases that they need, and are answered in form if that cannot be done."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import pytest

from tests.injection import no_descriptors
from tests.web.tree_server import TreeServer
from treedbd.database.open_databases import SWEEP_S, UNUSED_S
from treedbd.names import DatabaseName

BUSY = "The server cannot open more files at present; try again later."


@pytest.fixture
def server(tmp_path: pathlib.Path) -> TreeServer:
    """A service of SQLite files, of which `demo` and `other` exist and are closed."""
    server = TreeServer(tmp_path, engine="sqlite")
    server.catalog.open()
    for project in ("demo", "other"):
        server.request("PUT", "/a.json", json.dumps(project).encode(), host=f"{project}.localhost")
    server.clock.pump([SWEEP_S] * int(UNUSED_S / SWEEP_S + 2))
    assert not any(server.catalog.find(DatabaseName(each)).is_open for each in ("demo", "other"))
    return server


def test_a_closed_database_is_opened_for_a_request(server: TreeServer) -> None:
    assert server.request("GET", "/a.json").body == b'"demo"'
    assert server.request("PUT", "/a.json", b"1", host="other.localhost").status == 200
    for project in ("demo", "other"):
        database = server.catalog.find(DatabaseName(project))
        assert database.is_open
        assert database.requests == 0
    server.catalog.close()


def test_a_stream_keeps_its_database_open(server: TreeServer) -> None:
    stream = server.open_stream("/a.json")
    assert stream.read_events()[0][0] == "put"
    server.clock.pump([SWEEP_S] * int(UNUSED_S / SWEEP_S + 2))
    assert server.catalog.find(DatabaseName("demo")).is_open
    stream.peer.disconnect()
    server.clock.pump([SWEEP_S] * int(UNUSED_S / SWEEP_S + 2))
    assert not server.catalog.find(DatabaseName("demo")).is_open


@pytest.mark.parametrize(
    ("method", "path", "project"),
    [
        ("GET", "/a.json", "demo"),
        ("PUT", "/a.json", "demo"),
        ("DELETE", "/a.json", "demo"),
        ("PUT", "/a.json", "eu--demo"),
        ("PUT", "/a.json", "unheard-of"),
        ("GET", "/a.json", "unheard-of"),
    ],
)
def test_without_descriptors_a_request_is_unavailable_and_the_health_is_in_form(
    server: TreeServer, method: str, path: str, project: str
) -> None:
    assert server.request("GET", "/a.json", host="other.localhost").status == 200
    body = b"1" if method == "PUT" else b""
    with no_descriptors():
        reply = server.request(method, path, body, host=f"{project}.localhost")
        health = server.request("GET", "/.health")
        served = server.request("GET", "/a.json", host="other.localhost")
    answer: Any = json.loads(reply.body)
    assert (reply.status, answer["error"], answer["message"]) == (503, "unavailable", BUSY)
    assert (health.status, health.body) == (200, b'{"status":"ok"}')
    assert served.body == b'"other"'
    assert server.request(method, path, body, host=f"{project}.localhost").status == 200
    server.catalog.close()
