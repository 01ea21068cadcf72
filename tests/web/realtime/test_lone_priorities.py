"""Who may write but not read does not learn by a priority whether a node is there."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import pytest

from tests.web.realtime.test_expiry import ask
from tests.web.test_freed_at_the_end import open_socket
from tests.web.tree_server import TreeServer
from treedbd.rules.ruleset import parse_rules

RULES = {
    "drop": {".write": True, "$name": {"shown": {".read": True}}},
    "open": {".read": True, ".write": True},
}


@pytest.mark.parametrize("size", [0, 300_000])
@pytest.mark.parametrize(
    ("path", "status"),
    [("drop/there", "ok"), ("drop/no", "ok"), ("drop/no/shown", "failure"), ("open/no", "failure")],
)
def test_only_who_may_read_learns_that_there_is_nothing(
    tmp_path: pathlib.Path, path: str, status: str, size: int
) -> None:
    server = TreeServer(tmp_path, parse_rules(json.dumps({"rules": RULES}).encode()))
    server.write("PUT", "/drop/there", 1)
    peer = open_socket(server)
    if not size:
        assert ask(server, peer, 1, "p", {"p": f"{path}/.priority", "d": 1}) == status
    parent, _, key = path.rpartition("/")
    members: dict[str, Any] = {f"{key}/.priority": 1, "other": "x" * size}
    assert ask(server, peer, 2, "m", {"p": parent, "d": members}) == status
