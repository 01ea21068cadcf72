from __future__ import annotations

from typing import cast

import pytest

from treedbd.store.engine import ReadView, Row, Transaction
from treedbd.store.memory import MemoryEngine
from treedbd.store.node_writer import NodeWriter
from treedbd.store.rows import seal, seal_row
from treedbd.store.verify import verify
from treedbd.tree.edit import make_put
from treedbd.tree.path import encode_path
from treedbd.tree.types import Json, Place

A = encode_path(("a",))
LONG = "x" * 600
BUCKET = encode_path(("a", LONG))[:480]


def rows_of(content: dict[bytes, bytes]) -> Transaction:
    transaction = MemoryEngine().begin()
    for key, raw in content.items():
        transaction.put(key, seal(key, raw))
    return transaction


@pytest.mark.parametrize("row_bytes", [20, 4096])
def test_what_the_writer_writes_is_sound(row_bytes: int) -> None:
    transaction = MemoryEngine().begin()
    long: Json = {LONG: {"p": {".value": 1, ".priority": 2}}}
    body: Json = {"l": [1, None, 3], LONG: long, ".priority": 1}
    NodeWriter(transaction, row_bytes).apply(make_put(Place(("a",)), body).changes)
    assert verify(transaction) == []


def test_an_empty_store_is_sound() -> None:
    assert verify(rows_of({})) == []


@pytest.mark.parametrize(
    ("content", "finding"),
    [
        ({A: b"{"}, "The row /a cannot be read."),
        ({A: b' {".priority":'}, "The row /a cannot be read."),
        ({A: b""}, "The row /a is not in normal form."),
        ({A: b"null"}, "The row /a is not in normal form."),
        ({A: b"{}"}, "The row /a is not in normal form."),
        ({A: b'{"b": 1}'}, "The row /a is not in normal form."),
        ({A: b'{"b":1,"a":1}'}, "The row /a is not in normal form."),
        ({A: b'{"0":1}'}, "The row /a is not in normal form."),
        ({A: b'{".value":1,".priority":1}'}, "The row /a is not in normal form."),
        ({A: b'{"a/b":1}'}, "The row /a cannot be read."),
        ({A: b"[" * 900 + b"1" + b"]" * 900}, "The row /a cannot be read."),
        ({A: b'{"b":1}', A + A: b"1"}, "The row /a/a is below another row."),
        ({b"": b"1", A: b"1"}, "The row /a is below another row."),
        ({A: b' {".priority":1}'}, "The row /a holds a priority, but there is nothing below it."),
        (
            {A: b' {".priority":1}', encode_path(("b",)): b"1"},
            "The row /a holds a priority, but there is nothing below it.",
        ),
        ({A: b' {".priority":true}', A + A: b"1"}, "The row /a cannot be read."),
        ({b"\x03\xff\x00": b"1"}, "The row 0x03ff00 has a key that no path encodes to."),
        ({b"\x03.\x00": b"1"}, "The row /. has a key that no path encodes to."),
        ({b"\x03" + b"5\x00": b"1"}, "The row /5 has a key that no path encodes to."),
        ({b"\x01a\x00": b"1"}, "The row /a has a key that no path encodes to."),
        ({A * 33: b"1"}, f"The row {'/a' * 33} has a key that no path encodes to."),
        ({A + b"\x03ab": b"1"}, "The row /a/… has a key that is cut off."),
        ({BUCKET: b'{"x":1}'}, "The row /a/… holds children that do not belong there."),
        ({BUCKET: b"1"}, "The row /a/… holds children that do not belong there."),
        ({BUCKET + b"x": b"1"}, "The row /a/… has a key of more than 480 bytes."),
    ],
)
def test_what_is_malformed_is_reported(content: dict[bytes, bytes], finding: str) -> None:
    assert verify(rows_of(content)) == [finding]


def test_rows_out_of_order_are_reported() -> None:
    class Unordered:
        def scan(self, low: bytes, high: bytes) -> list[Row]:
            return [seal_row((encode_path((name,)), b"1")) for name in "acbd"]

    assert verify(cast(ReadView, Unordered())) == ["The row /b is out of order."]


def test_damage_does_not_hide_other_damage() -> None:
    content = {encode_path((name,)): b"{" for name in "abc"}
    assert len(verify(rows_of(content))) == 3


def test_the_number_of_findings_is_bounded() -> None:
    content = {encode_path((str(at),)): b"{" for at in range(50)}
    assert len(verify(rows_of(content), limit=7)) == 7
