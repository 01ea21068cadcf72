"""However many read the change log at once, they share the reactor."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import pytest

from tests.database.world import TurnClock
from tests.web.tree_server import TreeServer
from treedbd.database.slices import SLICE_SECONDS, Slices
from treedbd.names import DatabaseName
from treedbd.store.changelog import describe_entry
from treedbd.tree.value import indent
from treedbd.web import admin as change_log
from treedbd.web.admin import print_log
from treedbd.web.request import FIREBASE, STANDARD

COUNT = 30
LOOKS = 10
"""So often the clock is looked at in a slice."""


@pytest.fixture
def database(tmp_path: pathlib.Path) -> Any:
    server = TreeServer(tmp_path)
    for number in range(COUNT):
        server.write("PUT", f"/k{number}", {"n": number, "list": [number, "\u00e9: x"]})
    return server.catalog.find(DatabaseName("demo", "default"))


def printed(steps: Any) -> bytes:
    while True:
        try:
            next(steps)
        except StopIteration as stop:
            return bytes(stop.value)


def test_the_log_is_printed_in_steps_of_one_entry(database: Any) -> None:
    parameters = {"format": "export"}
    steps = list(print_log(database, parameters, None))
    assert len(steps) >= COUNT
    text = printed(print_log(database, parameters, None))
    entries = json.loads(text)
    assert [each["data"]["n"] for each in entries] == list(range(COUNT))
    for layout in (STANDARD, FIREBASE):
        expected = b"".join(indent([text], spaces_colons=layout.is_firebase))
        assert printed(print_log(database, parameters, layout)) == expected


@pytest.mark.parametrize("layout", [None, STANDARD, FIREBASE])
def test_an_empty_log_is_an_empty_array(database: Any, layout: Any) -> None:
    assert printed(print_log(database, {"startAfter": "1000"}, layout)) == b"[]"


def test_however_many_read_the_log_they_share_a_slice_of_each_turn(
    database: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    described: list[object] = []

    def noted(entry: Any) -> Any:
        described.append(entry)
        return describe_entry(entry)

    monkeypatch.setattr(change_log, "describe_entry", noted)
    clock = TurnClock(lag=SLICE_SECONDS / LOOKS)
    slices = Slices(clock)
    readers = [slices.run(print_log(database, {}, None)) for _ in range(10)]
    counts = [len(described)]
    while not all(each.called for each in readers):
        assert clock.take_turn()
        counts.append(len(described))
    assert len(described) == 10 * COUNT
    assert (
        max(after - before for before, after in zip([0, *counts], counts, strict=False))
        <= LOOKS + 1
    )
