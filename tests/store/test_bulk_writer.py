"""Documents in fragments leave in the store what they leave that are written at once."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.examples import examples
from treedbd.store import bulk as bulk_patch
from treedbd.store.bulk import BulkPatch, BulkWriter
from treedbd.store.memory import MemoryEngine
from treedbd.store.node_writer import NodeWriter
from treedbd.store.nodes import Nodes
from treedbd.store.verify import verify
from treedbd.tree.edit import Edit, Resolver, make_patch, make_put, resolve
from treedbd.tree.fragments import Splitter
from treedbd.tree.types import STORED, Change, InvalidData, Place, Value

NOW = 1_700_000_000_000
LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-99, 99),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=5),
    st.just("long" * 12),
    st.just({".sv": "timestamp"}),
    st.builds(lambda by: {".sv": {"increment": by}}, st.integers(1, 3)),
)
KEYS = st.sampled_from(["a", "b", "c", "10", "9", "x" * 40, "é", ".priority", ".value"])
DOCUMENTS = st.recursive(
    LEAVES,
    lambda inner: st.one_of(st.lists(inner, max_size=6), st.dictionaries(KEYS, inner, max_size=5)),
    max_leaves=30,
)
MEMBERS = st.dictionaries(
    st.sampled_from(["a", "b/c", "b/d", "e", "e/.priority", "10", "f/g/h"]), DOCUMENTS, max_size=6
)
BEFORE: Value = {"a": 5, "b": {".priority": 1, "c": {"x": 1}}, "p": {".priority": 7, "q": "old"}}
PUT_AT = ("p", "q")


class Store:
    """A tree with small rows and pages."""

    def __init__(self) -> None:
        self.engine = MemoryEngine()
        transaction = self.engine.begin()
        self.writer = NodeWriter(transaction, row_bytes=60, page_bytes=200)
        self.writer.apply([Change(Place(()), BEFORE)])
        self.transaction = transaction

    def tree(self) -> Value:
        self.transaction.commit()
        assert self.engine.read(verify) == []
        return self.engine.read(lambda view: Nodes(view).get(()))


def written_at_once(make: Any) -> Value | InvalidData:
    store = Store()
    try:
        edit: Edit = resolve(make(), NOW, store.writer)
    except InvalidData as error:
        return error
    store.writer.apply(edit.changes)
    return store.tree()


def written_in_fragments(text: bytes, limit: int, *, patch: bool) -> Value | InvalidData:
    store, before = Store(), Store()
    before.transaction.commit()
    view = before.engine.snapshot()
    resolver = Resolver(NOW, Nodes(view))
    target: BulkWriter | BulkPatch
    if patch:
        target = BulkPatch(store.writer, (), resolver, 1000, 10_000)
    else:
        target = BulkWriter(store.writer, PUT_AT, resolver, 1000)
    splitter = Splitter(limit)
    try:
        for fragment in [*splitter.feed(text), *splitter.finish()]:
            target.add(fragment)
        target.finish()
    except InvalidData as error:
        return error
    return store.tree()


def check_same(one: Value | InvalidData, other: Value | InvalidData) -> None:
    if isinstance(one, InvalidData):
        assert isinstance(other, InvalidData)
    else:
        assert orjson.dumps(one) == orjson.dumps(other)


@settings(max_examples=examples(400))
@given(DOCUMENTS, st.integers(1, 120))
@example({".priority": 3, "a": {".value": "x" * 60, ".priority": 2}, "b": [1, None, 3]}, 10)
@example({".priority": "p", ".value": "x" * 60}, 5)
@example({"a": {".value": "x" * 60, "b": 1}}, 5)
@example([None, None, [None]], 2)
def test_a_put_in_fragments_is_a_put(document: Any, limit: int) -> None:
    at_once = written_at_once(lambda: make_put(Place(PUT_AT), document, 1000))
    check_same(at_once, written_in_fragments(orjson.dumps(document), limit, patch=False))


@settings(max_examples=examples(300))
@given(MEMBERS, st.integers(1, 120))
def test_a_patch_in_fragments_is_a_patch(document: Any, limit: int) -> None:
    at_once = written_at_once(lambda: make_patch((), document, 1000))
    check_same(at_once, written_in_fragments(orjson.dumps(document), limit, patch=True))


@pytest.mark.parametrize("limit", [1, 9, 25, 1000])
@pytest.mark.parametrize(
    "text",
    [
        b'{"a":{"x":[1,2,3,4]},"a":{"y":[5,6,7,8]}}',
        b'{"a":{"x":[1,2,3,4]},"a":null}',
        b'{"a":1,"b":{"c":{"d":"long long long long"}},"b":{"e":"long long long long"}}',
        b'{"a":{".priority":1,"b":"long long long"},"a":{"b":"long long long long"}}',
        b'{"a":{".sv":{"increment":1}},"b":"long long long","a":{".sv":{"increment":5}}}',
    ],
)
def test_the_last_of_a_repeated_member_counts(text: bytes, limit: int) -> None:
    at_once = written_at_once(lambda: make_put(Place(PUT_AT), orjson.loads(text)))
    check_same(at_once, written_in_fragments(text, limit, patch=False))


def test_a_patch_keeps_what_was_sent_if_it_is_short() -> None:
    text = b'{ "a": 1,\n "b/c": [1, 2], "e": null }'
    store = Store()
    patch = BulkPatch(store.writer, (), Resolver(NOW, store.writer), 1000, 100)
    splitter = Splitter(8)
    for fragment in [*splitter.feed(text), *splitter.finish()]:
        patch.add(fragment)
    assert b"".join(patch.sent or ()) in (b'{"a":1,"b/c":[1,2],"e":null}', b"")
    assert [change.place.path for change in patch.changes] == [("a",), ("b", "c"), ("e",)]
    assert [change.value for change in patch.changes[:2]] == [STORED, STORED]
    assert patch.changes[-1] == Change(Place(("e",)), None)
    with pytest.raises(IndexError):
        patch.changes[3]


def test_a_patch_has_so_many_members_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk_patch, "MAX_PATCH_MEMBERS", 3)
    written = written_in_fragments(b'{"a":1,"b":1,"c":1}', 8, patch=True)
    assert isinstance(written, dict)
    assert written.keys() == {"a", "b", "c", "p"}
    for limit in (8, 1000):
        refused = written_in_fragments(b'{"a":1,"b":1,"c":1,"d":1}', limit, patch=True)
        assert "at most 3 members" in str(refused)


NAMES = [
    "a",
    "b",
    "f/g",
    "f/g/h",
    "/a",
    "b/c",
    "b/d",
    "/b/c",
    "b//e",
    "b/f/",
    "e",
    "e/.priority",
    "10",
    "9",
    "é",
]
ODD_NAMES = [".priority", ".value", ".sv", "", "x.y", "b/x#y"]


def patched(text: bytes, limit: int) -> Any:
    """Return all that a PATCH in fragments leaves, or its error."""
    store = Store()
    patch = BulkPatch(store.writer, (), Resolver(NOW, store.writer), 1000, 10_000)
    splitter = Splitter(limit)
    try:
        for fragment in [*splitter.feed(text), *splitter.finish()]:
            patch.add(fragment)
        patch.finish()
    except InvalidData as error:
        return str(error)
    shown = [orjson.loads(b"".join(each or (b"0",))) for each in (patch.sent, patch.event)]
    return store.tree(), shown, list(patch.changes), patch.nodes, patch.has_placeholders


@settings(max_examples=examples(400))
@given(
    st.dictionaries(st.sampled_from(NAMES), DOCUMENTS, max_size=8)
    | st.dictionaries(st.sampled_from(NAMES + ODD_NAMES), st.integers(0, 9), max_size=5),
    st.integers(1, 120),
)
@example({"a": {}, "b/c": 1, "b/d": [], "9": None, "10": {"x": {}}}, 1000)
@example({"a": 1, "/a": 2}, 1000)
@example({"b/c": 1, "b//c": 1}, 1000)
@example({"a": 1e300, "b/c": 10**18 + 1, "b/d": 2.0}, 1000)
def test_members_that_are_read_together_are_what_they_are_one_by_one(
    document: Any, limit: int
) -> None:
    text = orjson.dumps(document)
    with pytest.MonkeyPatch.context() as patcher:
        patcher.setattr(bulk_patch, "_TOGETHER", 1)
        together = patched(text, limit)
        patcher.setattr(bulk_patch, "_TOGETHER", 99)
        assert together == patched(text, limit)


@pytest.mark.parametrize("limit", [10, 250, 10_000])
def test_of_siblings_that_come_twice_the_last_one_counts(limit: int) -> None:
    first: dict[str, int | None] = {f"k{at}": at for at in range(20)}
    last = {**dict.fromkeys(first), "k3": 3}
    for one, other in ((first, last), (last, first)):
        text = orjson.dumps(one)[:-1] + b"," + orjson.dumps(other)[1:]
        tree, _, changes, nodes, _ = patched(text, limit)
        assert {key: tree[key] for key in tree if key[0] == "k"} == {
            key: value for key, value in other.items() if value is not None
        }
        assert changes == [
            Change(Place((key,)), None if value is None else STORED) for key, value in other.items()
        ]
        assert nodes == (20 if limit == 10_000 else 40)
