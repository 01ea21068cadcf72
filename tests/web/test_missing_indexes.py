"""Queries without an index: what is said of them, and to whom."""

from __future__ import annotations

import json
import pathlib

import pytest
from twisted.logger import capturedLogs, eventAsText

from tests.web.tree_server import TreeServer
from treedbd.database.requests import ProjectSpec
from treedbd.rules.ruleset import parse_rules
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
