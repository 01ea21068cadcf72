"""What a line says of an entry of the change log."""

from __future__ import annotations

import json
from typing import Any

import pytest

from treedbd.audit.lines import last_write, print_begin, print_write
from treedbd.names import DatabaseName, Origin
from treedbd.store.changelog import Writer, encode
from treedbd.store.engine import LogEntry
from treedbd.tree.edit import Edit, make_patch, make_put, make_remove
from treedbd.tree.types import Place

NAME = DatabaseName("shop", "eu")
NOW = 1_700_000_000_007


def line_of(edit: Edit, body_bytes: int = 0, **more: Any) -> dict[str, Any]:
    entry = LogEntry(7, b"\x01\x02", encode(edit, NOW, **more))
    found: dict[str, Any] = json.loads(print_write(NAME, entry, body_bytes))
    return found


def test_a_line_has_what_the_entry_says() -> None:
    origin = Origin("2001:db8::7", "order-7", "socket")
    writer = Writer('ada "x"\n', is_admin=True, origin=origin)
    assert line_of(make_put(Place(("a", "é")), {"secret": 1}), writer=writer) == {
        "time": "2023-11-14T22:13:20.007Z",
        "kind": "write",
        "project": "shop",
        "database": "eu",
        "seq": 7,
        "op": "0102",
        "uid": 'ada "x"\n',
        "admin": True,
        "from": "2001:db8::7",
        "token_id": "order-7",
        "means": "socket",
        "method": "PUT",
        "path": "/a/é",
        "size": 12,
    }


@pytest.mark.parametrize(
    ("edit", "method", "path"),
    [
        (make_put(Place(()), 1), "PUT", "/"),
        (make_put(Place((), True), 1), "PUT", "/.priority"),
        (make_put(Place(("a",), True), 1), "PUT", "/a/.priority"),
        (make_remove(Place(("a",))), "DELETE", "/a"),
        (make_patch(("a",), {"b": None}), "PATCH", "/a"),
    ],
)
def test_a_line_names_method_and_place(edit: Edit, method: str, path: str) -> None:
    found = line_of(edit)
    assert (found["method"], found["path"]) == (method, path)
    assert found["uid"] is None
    assert not {"admin", "from", "token_id", "means"} & found.keys()


def test_a_body_is_kept_up_to_a_length() -> None:
    edit = make_put(Place(("a",)), {"chain": '"', "n": [1, None]})
    size = line_of(edit)["size"]
    assert line_of(edit, size)["data"] == {"chain": '"', "n": [1, None]}
    assert "data" not in line_of(edit, size - 1)
    assert line_of(make_remove(Place(("a",))), 4)["data"] is None
    assert "data" not in line_of(edit, 64_000, max_bytes=10)


@pytest.mark.parametrize(
    "content", [b"", b"{}", b"[1]", b'{"time":1,"method":1,"path":[]}', b"\xff"]
)
def test_a_damaged_entry_is_named_and_stops_nothing(content: bytes) -> None:
    found = json.loads(print_write(NAME, LogEntry(7, b"", content), 0))
    assert (found["kind"], found["after"]) == ("begin", 7)
    assert "damaged" in found["reason"]


def test_the_last_write_is_known_by_its_line() -> None:
    entry = LogEntry(7, b"\x01\x02", encode(make_put(Place(("a",)), 1), NOW))
    assert last_write(print_write(NAME, entry, 0)) == (NAME, 7, b"\x01\x02")
    assert last_write(print_begin(NAME, NOW, 5, None)) is None
    assert last_write(b'{"op":"zz","project":1}') is None
