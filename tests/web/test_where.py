"""`where` over HTTP: reads, their statuses and forms, and streams."""

from __future__ import annotations

import json
import pathlib
from typing import Any
from urllib.parse import quote

import attrs
import pytest

from tests.web.tree_server import PATIENT, SETTINGS, TreeServer, patch, put
from treedbd.rules.ruleset import parse_rules

PEOPLE = {"ada": {"age": 36}, "alan": {"age": 41}, "grace": {"age": 85}, "tim": {"name": "Tim"}}
MANY = 3000
ADULT = {"age": {">=": 40}}


def serve(folder: pathlib.Path, most: int = 100, rules: str | None = None) -> TreeServer:
    limits = attrs.evolve(PATIENT, where_children=most)
    options = attrs.evolve(SETTINGS, limits=limits)
    if rules is None:
        return TreeServer(folder, options=options)
    return TreeServer(folder, parse_rules(rules), options=options)


@pytest.fixture
def server(tmp_path: pathlib.Path) -> TreeServer:
    server = serve(tmp_path)
    server.write("PUT", "/people", PEOPLE)
    return server


def target(where: Any, more: str = "", path: str = "/people.json") -> str:
    return f"{path}?where={quote(json.dumps(where))}{more}"


def read(server: TreeServer, where: Any, more: str = "") -> Any:
    reply = server.request("GET", target(where, more))
    assert reply.status == 200
    return json.loads(reply.body)


def test_the_result_is_an_object_in_the_order_of_keys(server: TreeServer) -> None:
    assert list(read(server, ADULT)) == ["alan", "grace"]
    assert list(read(server, ADULT, "&limitToLast=1")) == ["grace"]
    assert read(server, {"age": 5}) is None
    server.write("PUT", "/people", [1, 2, 3])
    assert read(server, {"$value": {"<": 3}}) == {"0": 1, "1": 2}


def test_reads_with_other_conditions_are_kept_apart(server: TreeServer) -> None:
    for _ in range(2):
        assert list(read(server, {"age": {"==": 36}})) == ["ada"]
        assert read(server, {"age": {"==": "36"}}) is None
        assert list(read(server, {"age": {"!=": 36}})) == ["alan", "grace", "tim"]
    server.write("PUT", "/people/tim/age", 36)
    assert list(read(server, {"age": {"==": 36}})) == ["ada", "tim"]


def test_the_forms_of_a_read_work(server: TreeServer) -> None:
    assert server.request("HEAD", target(ADULT)).status == 200
    assert server.request("GET", target(ADULT, "&print=silent")).status == 204
    assert server.request("GET", target(ADULT, "&print=pretty")).body.startswith(b'{\n  "alan"')
    assert server.request("GET", target(ADULT, "&callback=f")).body.startswith(b'/**/f({"alan"')
    server.write("PUT", "/people/alan/.priority", 3)
    assert read(server, ADULT, "&format=export")["alan"] == {".priority": 3, "age": 41}
    tagged = server.request("GET", target(ADULT), headers=["X-TreeDB-ETag: true"])
    assert b"etag" not in {name for name, _ in tagged.fields}
    plain = server.request("GET", "/people.json", headers=["X-TreeDB-ETag: true"])
    assert b"etag" in {name for name, _ in plain.fields}


@pytest.mark.parametrize("more", ["&shallow=true", "&startAt=1", "&equalTo=1"])
def test_what_does_not_work_with_it_is_refused(server: TreeServer, more: str) -> None:
    reply = server.request("GET", target(ADULT, more))
    assert (reply.status, json.loads(reply.body)["error"]) == (400, "invalid_query")


@pytest.mark.parametrize("lag", [0.0, 0.001])
def test_too_many_children_are_400_before_anything_is_sent(
    tmp_path: pathlib.Path, lag: float
) -> None:
    server = serve(tmp_path, most=MANY)
    server.write("PUT", "/people", {f"k{at:04}": {"age": 50} for at in range(MANY + 1)})
    for accept in ("", "Accept: text/event-stream\r\n"):
        server.clock.lag = lag
        peer = server.get(target({"age": {"<": 0}}), accept)
        while not peer.transport.value():
            server.clock.advance(0.01)
        server.clock.lag = 0.0
        received = peer.transport.value()
        assert received.startswith(b"HTTP/1.1 400 ")
        assert b"invalid_query" in received
        assert b"raise where_children" in received
        peer.transport.clear()
    server.write("PUT", "/people/k0000", None)
    assert read(server, {"age": {"<": 0}}) is None


def test_a_child_of_a_stream_enters_and_leaves_by_any_condition(server: TreeServer) -> None:
    client = server.open_stream(target({**ADULT, "city": None}, "&limitToFirst=2"))
    people = {"alan": {"age": 41}, "grace": {"age": 85}}
    assert client.read_events() == [put("/", people)]
    server.write("PUT", "/people/ada/age", 40)
    assert client.read_events() == [patch("/", {"grace": None, "ada": {"age": 40}})]
    server.write("PUT", "/people/alan/city", "London")
    assert client.read_events() == [patch("/", {"alan": None, "grace": {"age": 85}})]
    server.write("PUT", "/people/tim/age", 20)
    assert client.read_events() == []


def test_a_stream_that_would_look_through_too_many_children_ends_with_cancel(
    server: TreeServer,
) -> None:
    client = server.open_stream(target(ADULT))
    client.read_events()
    server.write("PUT", "/people", {f"k{at}": {"age": 50} for at in range(101)})
    assert client.read_events() == [("cancel", "null")]


def test_rules_see_that_there_are_conditions(tmp_path: pathlib.Path) -> None:
    rule = "query.limitToFirst <= 2 && query.orderByKey && !query.where"
    server = serve(tmp_path, rules=f'{{"rules": {{".read": "{rule}", ".write": true}}}}')
    server.write("PUT", "/people", PEOPLE)
    assert server.request("GET", target(ADULT, "&limitToFirst=1")).status == 403
    assert server.request("GET", "/people.json?orderBy=%22$key%22&limitToFirst=1").status == 200
    rules = '{"rules": {".read": "query.where && query.orderByKey", ".write": true}}'
    server = serve(tmp_path / "other", rules=rules)
    server.write("PUT", "/people", PEOPLE)
    assert list(read(server, ADULT, "&limitToFirst=1")) == ["alan"]
    assert server.request("GET", target(ADULT)).status == 200
    assert server.request("GET", "/people.json").status == 403
