"""Queries without an index: what is said of them, and to whom."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Iterator

import pytest
from twisted.logger import capturedLogs, eventAsText

from tests.database.world import Disk
from tests.http1.peer import Peer
from tests.web.tree_server import TreeServer
from treedbd.database import apply
from treedbd.database.requests import ProjectSpec
from treedbd.names import DatabaseName
from treedbd.rules.ruleset import OPEN, parse_rules
from treedbd.store.nodes import ChildSource, Nodes
from treedbd.store.rows import ALL, Span
from treedbd.tree.types import Path
from treedbd.web import reading as missing_indexes

RULES = parse_rules(
    b"""{"rules": {
        "hidden": {".indexOn": "age"},
        "open": {".read": true, ".indexOn": ["age"]},
        "by_name": {".read": "query.orderByChild == 'name'"}
    }}"""
)
EVENTS = ("Accept: text/event-stream",)


def make_server(folder: pathlib.Path, *, require_index: bool) -> TreeServer:
    specs = [ProjectSpec("demo", dialect="standard", require_index=require_index)]
    return TreeServer(folder, RULES, projects=specs)


def query(server: TreeServer, path: str, child: str, *headers: str) -> tuple[int, str]:
    """Run a query; return the status, and the code and the message of the error."""
    reply = server.request("GET", f'{path}?orderBy="{child}"', headers=headers)
    found = json.loads(reply.body)
    return reply.status, f"{found['error']}: {found['message']}" if reply.status >= 400 else ""


@pytest.mark.parametrize("headers", [(), EVENTS])
def test_a_required_index_is_looked_for_after_the_right_to_read(
    tmp_path: pathlib.Path, headers: tuple[str, ...]
) -> None:
    server = make_server(tmp_path, require_index=True)
    for path in ("/hidden.json", "/by_name.json"):
        denied = query(server, path, "age", *headers)
        assert denied == (403, "permission_denied: The rules do not allow this read.")
        assert query(server, path, "size", *headers) == denied
    for path, child in (("/open.json", "name"), ("/by_name.json", "name")):
        status, error = query(server, path, child, *headers)
        assert status == 400
        index = (
            f'Index not defined, add ".indexOn": "{child}", for path "{path[:-5]}", to the rules'
        )
        assert error == f"invalid_query: {index}"
    assert len(server.resource.streams) == 0
    assert query(server, "/open.json", "age") == (200, "")


def test_a_missing_index_is_logged_once_and_promises_nothing(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(missing_indexes, "MAX_LOGGED", 2)
    server = make_server(tmp_path, require_index=False)
    with capturedLogs() as logged:
        for child in ("age", "size", "size", "name", "more"):
            assert query(server, "/open.json", child)[0] == 200
        assert query(server, "/hidden.json", "size")[0] == 403
    lines = [eventAsText(event, includeTimestamp=False) for event in logged]
    assert len(lines) == 2
    for line, child in zip(lines, ("size", "name"), strict=True):
        assert f'demo: no ".indexOn" names "{child}" for path "/open"' in line
        assert line.endswith("all children of the path. Add it to the rules there.")


RULES_OF_PEOPLE = b"""{"rules": {".write": true, "people": {".read": true, ".indexOn": "age"},
    "hidden": {".indexOn": "age"}}}"""
PEOPLE = {f"p{at:04}": {"age": at % 50, "name": "n" * 40} for at in range(500)}


class BuildingServer(TreeServer):
    """An index of `people` is being built, as far as `disk` lets it."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.disk = Disk()
        super().__init__(folder, OPEN, run_in_thread=self.disk.run)
        for path in ("people", "hidden"):
            self.begin_write("PUT", f"/{path}", PEOPLE)
            self.settle()
        database = self.catalog.find(DatabaseName("demo"))
        database.rules.current = parse_rules(RULES_OF_PEOPLE)
        database.indexes.rules_changed()
        database.indexes.check()
        self.clock.run()
        for _ in range(2):
            self.disk.finish()
            self.clock.run()

    def settle(self) -> None:
        """Let time pass until nothing waits for the disk."""
        self.clock.run()
        while self.disk.waiting:
            self.disk.finish()
            self.clock.advance(apply.LOOK_S)
            self.clock.run()

    def ask(self, target: str) -> Peer:
        peer = self.get(target)
        self.clock.run()
        return peer


@pytest.fixture
def building(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> BuildingServer:
    monkeypatch.setattr(apply, "STEP_CHILDREN", 50)
    monkeypatch.setattr(apply, "SHORT_ROWS", 4)
    return BuildingServer(tmp_path)


def test_many_queries_by_an_index_that_is_being_built_share_one_scan(
    building: BuildingServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    scans: list[Path] = []

    def sources(nodes: Nodes, path: Path, span: Span = ALL) -> Iterator[tuple[str, ChildSource]]:
        scans.append(path)
        return before(nodes, path, span)

    before = Nodes.sources
    peers = {
        at: building.ask(f'/people.json?orderBy="age"&startAt={at}&limitToFirst=1')
        for at in range(32)
    }
    assert not any(peer.transport.value() for peer in peers.values())
    assert building.ask("/people/p0001/age.json").read(b"GET")[0].body == b"1"
    monkeypatch.setattr(Nodes, "sources", sources)
    building.settle()
    for at, peer in peers.items():
        (reply,) = peer.read(b"GET")
        assert json.loads(reply.body) == {f"p{at:04}": PEOPLE[f"p{at:04}"]}
    # Two collections, some children in each step.
    assert len(scans) <= 2 * (len(PEOPLE) // apply.STEP_CHILDREN + 1)


def test_a_query_that_waits_for_an_index_needs_the_right_to_read_and_ends_in_time(
    building: BuildingServer,
) -> None:
    (denied,) = building.ask('/hidden.json?orderBy="age"').read(b"GET")
    assert denied.status == 403
    waiting = building.ask('/people.json?orderBy="age"&timeout=2s')
    building.clock.advance(1)
    assert not waiting.transport.value()
    left = building.ask('/people.json?orderBy="age"')
    left.disconnect()
    building.clock.advance(1.5)
    (late,) = waiting.read(b"GET")
    assert late.status == 504
    assert "before the index was built" in json.loads(late.body)["message"]
    building.settle()
    assert not left.transport.value()
