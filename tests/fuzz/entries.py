"""Entries of the change log: those of any bytes, and what becomes of an edit that is logged."""

from __future__ import annotations

from typing import Final

from tests.fuzz.expecting import outcome
from treedbd.database.resume import MissedEvents, decode_entry
from treedbd.store import changelog
from treedbd.store.changelog import NotRetained, Writer
from treedbd.store.engine import LogEntry
from treedbd.store.memory import MemoryEngine
from treedbd.tree.edit import Edit, make_patch, make_put
from treedbd.tree.event import Position
from treedbd.tree.types import InvalidData, Place
from treedbd.tree.value import compact, parse

TOKENS: Final = (
    *(b'{"time":1,"method":"put","path":["a"],"size":1,"sent":1}', b'"method":"patch"', b'"sent":'),
    *(b'"path":[]', b'"path":"ab"', b'"path":[1,null]', b'"path":{"a":1}', b'"is_priority":true'),
    *(
        b'"uid":"ada"',
        b'"is_admin":true',
        b'"rules":"x"',
        b'"pushed":9',
        b'"is_printed":true',
        b",",
    ),
    *(
        b'"time":"x"',
        b'"time":1e999',
        b'"size":-1',
        b"{}",
        b"[]",
        b"null",
        b"true",
        b'"',
        b"{",
        b"}",
    ),
    *(
        b'{"a/b":1,"c":{".sv":"timestamp"}}',
        b'{".priority":1}',
        b"\xff",
        b"\\u0000",
        b"[[[[",
        b'""',
    ),
)
_OP: Final = bytes(16)


def check(data: bytes) -> None:
    """Read the bytes as an entry; log what they are as the body of a write, and read that."""
    _check_entry(data)
    body = outcome(lambda: parse(data), InvalidData)
    if isinstance(body, InvalidData):
        return
    for edit in (
        outcome(lambda: make_put(Place(("a", "b")), body), InvalidData),
        outcome(lambda: make_patch(("a",), body), InvalidData),
    ):
        if isinstance(edit, Edit) and not edit.has_placeholders:
            _check_logged(edit, 200 if len(data) & 1 else changelog.MAX_ENTRY_BYTES)


def _check_entry(content: bytes) -> None:
    entry = LogEntry(1, _OP, content)
    edit = outcome(lambda: changelog.decode(content), ValueError)
    outcome(lambda: changelog.describe_entry(entry), ValueError)
    assert changelog.without_body(content).count(b'"sent":') <= content.count(b'"sent":')
    transaction = MemoryEngine().begin()
    transaction.append(_OP, content)
    assert isinstance(changelog.push_time(transaction), int)
    if isinstance(edit, ValueError):
        decoded = outcome(lambda: decode_entry(entry), ValueError)
        assert isinstance(decoded, ValueError)
        return
    assert all(isinstance(key, str) for key in edit.place.path), "A key is no text."
    for path in ((), ("a",), ("a", "b")):
        missed = MissedEvents(path, Position(0, _OP))
        missed.add(decode_entry(entry))


def _check_logged(edit: Edit, max_bytes: int) -> None:
    writer = Writer("ada", is_admin=True)
    content = changelog.encode(edit, 5, max_bytes, writer=writer, rules="r", pushed=9)
    assert len(content) <= max(max_bytes, 300)
    again = changelog.decode(content)
    described = changelog.describe_entry(LogEntry(1, _OP, content))
    assert (described.writer, described.time, described.place) == (writer, 5, edit.place)
    if isinstance(again, NotRetained):
        assert not described.has_body
        assert again.place == edit.place
        return
    assert [compact(each.value) for each in again.changes] == [
        compact(each.value) for each in edit.changes
    ]
    head = changelog.without_body(content)
    assert content == head[:-1] + b',"sent":%b}' % compact(edit.sent)
    assert isinstance(changelog.decode(head), NotRetained)
