"""How the tree is stored in rows, and what reading and writing it touches."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any, cast

import pytest

from tests.store.normal_form import normal_form
from treedbd.limits import MAX_WHOLE_NODES
from treedbd.loop import in_steps
from treedbd.store import node_writer, pages
from treedbd.store.engine import DamagedRow, Transaction
from treedbd.store.memory import MemoryEngine
from treedbd.store.node_writer import MERGE_ROWS, NodeWriter
from treedbd.store.nodes import Child, Nodes
from treedbd.store.rows import END, FIRST, ROW_KEY_BYTES, SPREAD_BYTES, PagedRows, Span, seal
from treedbd.tree.edit import make_patch, make_put
from treedbd.tree.path import decode_path, encode_path
from treedbd.tree.types import CONTAINER, Change, InvalidData, Json, Path, Place, Value
from treedbd.tree.value import compact, plain

ROW_BYTES = 100
TEXT = "x" * 60


@pytest.fixture
def transaction() -> Transaction:
    return MemoryEngine().begin()


@pytest.fixture
def nodes(transaction: Transaction) -> NodeWriter:
    return NodeWriter(transaction, ROW_BYTES)


def export(nodes: NodeWriter, *path: str) -> bytes:
    return b"".join(nodes.chunks(path, export=True))


def printed(children: Iterable[Child]) -> list[tuple[str, bytes]]:
    return [(child.key, b"".join(child.chunks())) for child in children]


def put(nodes: NodeWriter, path: str, body: Any) -> None:
    nodes.apply(make_put(Place(keys_of(path)), body).changes)


def put_priority(nodes: NodeWriter, path: str, priority: Any) -> None:
    nodes.apply(make_put(Place(keys_of(path), True), priority).changes)


def keys_of(path: str) -> Path:
    return tuple(path.split("/")) if path else ()


def rows_of(transaction: Transaction) -> dict[str, bytes]:
    return {
        "/".join(decode_path(key)[0]): raw for key, raw in PagedRows(transaction).scan(FIRST, END)
    }


def test_a_small_tree_is_one_row_with_the_empty_key(
    nodes: NodeWriter, transaction: Transaction
) -> None:
    put(nodes, "a/b", 1)
    put(nodes, "a/c", [1, 2])
    assert rows_of(transaction) == {"": b'{"a":{"b":1,"c":[1,2]}}'}


def test_a_container_that_is_too_long_is_spread_one_level_deep(
    nodes: NodeWriter, transaction: Transaction
) -> None:
    put(nodes, "", {"a": {"b": TEXT}, "c": {"d": TEXT}, "e": 1})
    assert rows_of(transaction) == {
        "a": b'{"b":"%b"}' % TEXT.encode(),
        "c": b'{"d":"%b"}' % TEXT.encode(),
        "e": b"1",
    }


def test_a_row_may_be_exactly_as_long_as_the_limit(
    nodes: NodeWriter, transaction: Transaction
) -> None:
    put(nodes, "", {"a": "x" * (ROW_BYTES - 8)})
    assert [len(raw) for raw in rows_of(transaction).values()] == [ROW_BYTES]
    put(nodes, "", {"a": "x" * (ROW_BYTES - 7)})
    assert list(rows_of(transaction)) == ["a"]


def test_a_leaf_is_one_row_of_any_size(nodes: NodeWriter, transaction: Transaction) -> None:
    put(nodes, "a", {".value": "x" * 1000, ".priority": 1})
    put(nodes, "b", "y" * 1000)
    assert sorted(map(len, rows_of(transaction).values())) == [1002, 1028]


def test_a_spread_container_keeps_its_priority_in_a_row_of_its_own(
    nodes: NodeWriter, transaction: Transaction
) -> None:
    put(nodes, "a", {"b": TEXT, "c": TEXT, ".priority": 5})
    assert rows_of(transaction)["a"] == b' {".priority":5}'
    assert nodes.priority(("a",)) == 5
    put_priority(nodes, "a", "p")
    assert rows_of(transaction)["a"] == b' {".priority":"p"}'
    put_priority(nodes, "a", None)
    assert list(rows_of(transaction)) == ["a/b", "a/c"]


def test_children_whose_keys_are_too_long_share_a_bucket(
    nodes: NodeWriter, transaction: Transaction
) -> None:
    names = ["k" * 500 + end for end in "ab"]
    put(nodes, "p", {names[0]: TEXT, names[1]: {"deep": 1}, "k": TEXT, "z" * 500: 2})
    assert [len(key) for key in PagedRows(transaction).scan_keys(FIRST, END)] == [
        6,
        ROW_KEY_BYTES,
        ROW_KEY_BYTES,
    ]
    assert nodes.get(("p", names[1], "deep")) == 1
    assert nodes.get(("p", "k" * 500 + "c")) is None
    assert list(nodes.keys(("p",))) == ["k", *names, "z" * 500]
    put(nodes, f"p/{names[1]}", None)
    assert list(nodes.keys(("p",))) == ["k", names[0], "z" * 500]
    put(nodes, f"p/{names[0]}", None)
    assert list(nodes.keys(("p",))) == ["k", "z" * 500]


def test_a_container_whose_key_is_too_long_is_never_spread(
    nodes: NodeWriter, transaction: Transaction
) -> None:
    path = ("k" * (SPREAD_BYTES - 2),)
    assert len(encode_path(path)) == SPREAD_BYTES
    put(nodes, path[0], {"a": TEXT, "b": TEXT})
    assert len(rows_of(transaction)) == 2
    put(nodes, path[0], None)
    put(nodes, path[0] + "k", {"a": TEXT, "b": TEXT})
    assert list(rows_of(transaction)) == [path[0] + "k"]


def test_the_longest_path_that_may_be_is_written_and_read(nodes: NodeWriter) -> None:
    path = ("k" * 768,) * 32
    nodes.apply(make_put(Place(path), TEXT).changes)
    assert nodes.peek(path) == TEXT
    assert nodes.peek(path[:31]) is CONTAINER
    nodes.apply(make_put(Place(path), None).changes)
    assert nodes.peek(()) is None


def test_a_write_inside_a_spread_container_touches_one_row(
    nodes: NodeWriter, transaction: Transaction
) -> None:
    put(nodes, "", {str(at): {"a": TEXT, "n": 1} for at in range(20)})
    before = rows_of(transaction)
    put(nodes, "7/n", 2)
    after = rows_of(transaction)
    assert {key for key in before if before[key] != after[key]} == {"7"}
    assert after["7"] == b'{"a":"%b","n":2}' % TEXT.encode()


def test_a_new_child_of_a_spread_container_gets_one_row(
    nodes: NodeWriter, transaction: Transaction
) -> None:
    put(nodes, "a", {"b": TEXT, "d": TEXT})
    put(nodes, "a/c/x/y", 1)
    put(nodes, "0/x", 1)
    put(nodes, "z", 1)
    assert rows_of(transaction).keys() == {"0", "a/b", "a/c", "a/d", "z"}
    assert rows_of(transaction)["a/c"] == b'{"x":{"y":1}}'


def test_a_new_first_child_is_stored_after_the_priority_row_of_its_container(
    nodes: NodeWriter, transaction: Transaction
) -> None:
    put(nodes, "a", {"c": TEXT, "d": TEXT, ".priority": 1})
    put(nodes, "a/b", 2)
    assert rows_of(transaction).keys() == {"a", "a/b", "a/c", "a/d"}
    assert nodes.priority(("a",)) == 1


@pytest.mark.parametrize("path", ["x", "a/x", "a/b/x", "a/b", "l/5", "long/x/y", "0", "k" * 600])
def test_removing_what_does_not_exist_changes_no_row(
    nodes: NodeWriter, transaction: Transaction, path: str
) -> None:
    put(nodes, "", {"a": {"c": TEXT}, "l": [1, 2], "long": {"p": TEXT, "q": TEXT}})
    before = rows_of(transaction)
    put(nodes, path, None)
    put_priority(nodes, path if path != "a/b" else "a/b/c", 5)
    assert rows_of(transaction) == before


def test_removals_in_an_empty_tree_create_no_row(
    nodes: NodeWriter, transaction: Transaction
) -> None:
    put(nodes, "", None)
    put(nodes, "a/b", None)
    put_priority(nodes, "", 1)
    put_priority(nodes, "a", 1)
    nodes.apply(make_patch((), {"a/b": None, "c": {}}).changes)
    assert rows_of(transaction) == {}


def test_containers_without_children_are_removed_upwards_with_their_priorities(
    nodes: NodeWriter, transaction: Transaction
) -> None:
    inner = {"c": "x" * 200, ".priority": 1}
    put(nodes, "", {"a": {"b": inner, ".priority": 2}, "z": TEXT, ".priority": 3})
    assert rows_of(transaction).keys() == {"", "a", "a/b", "a/b/c", "z"}
    put(nodes, "a/b/c", None)
    assert nodes.get(()) == {".priority": 3, "z": TEXT}
    put(nodes, "z", None)
    assert rows_of(transaction) == {}


def test_a_container_whose_only_child_is_replaced_keeps_its_priority(
    nodes: NodeWriter, transaction: Transaction
) -> None:
    put(nodes, "a", {"b": {"c": TEXT, "d": TEXT}, ".priority": 2})
    put(nodes, "z", TEXT)
    put(nodes, "a/b", 1)
    assert nodes.get(("a",)) == {".priority": 2, "b": 1}
    assert rows_of(transaction).keys() == {"a", "z"}


def test_a_leaf_that_gets_a_child_becomes_a_container_and_keeps_its_priority(
    nodes: NodeWriter,
) -> None:
    put(nodes, "", {"a": {".value": TEXT, ".priority": 1}, "b": TEXT})
    put(nodes, "a/x", 2)
    assert nodes.get(("a",)) == {".priority": 1, "x": 2}


def test_a_container_that_is_short_again_is_merged_into_one_row(
    nodes: NodeWriter, transaction: Transaction
) -> None:
    put(nodes, "", {"a": TEXT, "b": {"c": 1, "d": [1, 2]}, "e": TEXT, ".priority": 9})
    put(nodes, "a", None)
    assert rows_of(transaction).keys() == {"", "b", "e"}
    put(nodes, "e", None)
    assert rows_of(transaction) == {"": b' {".priority":9,"b":{"c":1,"d":{"0":1,"1":2}}}'}


def test_a_container_of_many_rows_stays_spread_however_short(transaction: Transaction) -> None:
    nodes = NodeWriter(transaction, 1000)
    put(nodes, "", {f"k{at:03}": 1 for at in range(120)})
    for at in range(120 - MERGE_ROWS - 1):
        put(nodes, f"k{at:03}", None)
        assert len(rows_of(transaction)) == 119 - at
    put(nodes, "k119", None)
    assert list(rows_of(transaction)) == [""]


def test_a_container_that_is_not_much_shorter_than_the_limit_stays_spread(
    nodes: NodeWriter, transaction: Transaction
) -> None:
    put(nodes, "", {"a": "x" * 45, "b": "x" * 45, "c": "x" * 5})
    put(nodes, "c", None)
    assert list(rows_of(transaction)) == ["a", "b"]
    put(nodes, "b", "")
    put(nodes, "a", None)
    assert list(rows_of(transaction)) == [""]


def test_a_container_with_long_keys_is_not_merged(
    nodes: NodeWriter, transaction: Transaction
) -> None:
    put(nodes, "", {"k" * 200 + "a": 1, "k" * 200 + "b": 2, "x": 3})
    put(nodes, "x", None)
    assert len(rows_of(transaction)) == 2


def test_changes_are_made_one_after_the_other(nodes: NodeWriter) -> None:
    body: Json = {"a/b": TEXT, "a/c": TEXT, "d": {"e": 1}, "a/.priority": 1, "b/.priority": 2}
    put(nodes, "b", 3)
    nodes.apply(make_patch((), body).changes)
    assert nodes.get(()) == normal_form(
        {
            "a": {"b": TEXT, "c": TEXT, ".priority": 1},
            "b": {".value": 3, ".priority": 2},
            "d": {"e": 1},
        }
    )


class CountingTransaction:
    """A transaction that counts the uses of its methods, and the bytes that are put."""

    def __init__(self, inner: Transaction) -> None:
        self.calls: Counter[str] = Counter()
        self.put_bytes = 0
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        self.calls[name] += 1
        return getattr(self._inner, name)

    def put(self, key: bytes, value: bytes) -> None:
        self.put_bytes += len(value)
        self._inner.put(key, value)


@pytest.mark.parametrize("path", [("k" * 475,), ("k" * 600,), ("k" * 600, "a", "b")])
@pytest.mark.parametrize("has_neighbour", [False, True])
def test_many_changes_in_a_row_that_is_never_split_write_it_few_times(
    transaction: Transaction, path: Path, has_neighbour: bool
) -> None:
    counting = CountingTransaction(transaction)
    nodes = NodeWriter(cast(Transaction, counting), ROW_BYTES)
    members: dict[str, Json] = {}
    for at in range(1000):
        members["/".join((*path, f"m{at}"))] = at
        if has_neighbour:
            members["/".join(("z" * 600, f"m{at}"))] = at
    bodies: list[dict[str, Json]] = [
        members,
        dict.fromkeys(members, 5),
        dict.fromkeys(list(members)[2:]),
    ]
    for body in bodies:
        counting.put_bytes = 0
        nodes.apply(make_patch((), body).changes)
        assert counting.put_bytes < 50 * len(members)
    assert nodes.get(path) == ({"m0": 5} if has_neighbour else {"m0": 5, "m1": 5})


def test_many_changes_in_a_row_that_stays_short_write_it_once(transaction: Transaction) -> None:
    counting = CountingTransaction(transaction)
    nodes = NodeWriter(cast(Transaction, counting))
    records = {f"r{at}": {f"k{field}": field * 1000 for field in range(200)} for at in range(5)}
    put(nodes, "", records)
    counting.put_bytes = 0
    for value in (7, None):
        body: Json = {f"{name}/{key}": value for key in list(records["r0"])[2:] for name in records}
        nodes.apply(make_patch((), body).changes)
    assert counting.put_bytes < sum(len(raw) for raw in rows_of(transaction).values()) + 20_000
    assert nodes.get(("r4",)) == {"k0": 0, "k1": 1000}


def test_new_neighbouring_children_need_no_lookup(transaction: Transaction) -> None:
    counting = CountingTransaction(transaction)
    nodes = NodeWriter(cast(Transaction, counting), ROW_BYTES)
    put(nodes, "", {f"k{at:04}": TEXT for at in range(0, 1000, 100)} | {"long": "x" * 5000})
    counting.calls.clear()
    nodes.apply(make_patch((), {f"k{at:04}": 1 for at in range(1000) if at % 100}).changes)
    assert counting.calls["floor"] + counting.calls["scan_keys"] < 50
    assert len(list(nodes.keys(()))) == 1001


def test_the_rows_of_a_container_are_not_counted_at_each_removal(
    transaction: Transaction,
) -> None:
    counting = CountingTransaction(transaction)
    nodes = NodeWriter(cast(Transaction, counting), ROW_BYTES)
    put(nodes, "", {f"k{at:04}": TEXT for at in range(1000)})
    counting.calls.clear()
    nodes.apply(make_patch((), {f"k{at:04}": None for at in range(999)}).changes)
    assert counting.calls["scan_keys"] < 50
    assert list(rows_of(transaction)) == ["k0999"]


def test_plain_rows_are_printed_unparsed(nodes: NodeWriter, transaction: Transaction) -> None:
    key = encode_path(("long",))
    put(nodes, "", {"a": 1, "b": {"c": [TEXT]}, "long": TEXT * 50})
    transaction.put(key, seal(key, b"{not JSON}"))
    assert nodes.print(("long",)) == b"{not JSON}"
    assert nodes.print(()) == b'{"a":1,"b":{"c":["%b"]},"long":{not JSON}}' % TEXT.encode()


@pytest.mark.parametrize(
    ("keys", "is_array"),
    [
        (["0", "1", "2"], True),
        (["1", "3"], True),
        (["0", "1", "4"], True),
        (["3"], False),
        (["1", "2", "6"], False),
        (["-1", "0", "1"], False),
        (["0", "1", "a"], False),
        (["0", "1", "01"], False),
        (["0", "00", "2"], False),
        (["0", "-0", "2"], False),
        ([*map(str, range(100)), "0100", "101", "102"], False),
        ([*map(str, range(150))], True),
        (["a", "b"], False),
    ],
)
def test_a_spread_container_is_an_array_if_its_keys_are_indices(
    nodes: NodeWriter, keys: list[str], is_array: bool
) -> None:
    put(nodes, "l/m", {key: {"t": "x" * ROW_BYTES, "u": [1]} for key in keys})
    opening = b'{"m":[' if is_array else b'{"m":{'
    assert nodes.print(("l",)).startswith(opening)
    assert nodes.print(("l",)) == b'{"m":%b}' % nodes.print(("l", "m"))
    assert nodes.print(("l", "m")).count(b"null") == (
        int(keys[-1]) + 1 - len(keys) if is_array else 0
    )
    assert export(nodes, "l", "m").startswith(b"{")


def test_priorities_are_shown_by_an_export_only(nodes: NodeWriter) -> None:
    put(nodes, "", {"a": {"b": TEXT, "c": {".value": TEXT, ".priority": 1}, ".priority": 2}})
    text = TEXT.encode()
    assert nodes.print(()) == b'{"a":{"b":"%b","c":"%b"}}' % (text, text)
    assert export(nodes) == (
        b'{"a":{".priority":2,"b":"%b","c":{".value":"%b",".priority":1}}}' % (text, text)
    )


@pytest.mark.parametrize("is_export", [False, True])
def test_chunks_are_short_however_many_rows(nodes: NodeWriter, is_export: bool) -> None:
    put(nodes, "", {"long": "x" * 300_000, "many": {f"k{at}": TEXT for at in range(3000)}})
    for path in [(), ("many",), ("long",)]:
        chunks = list(nodes.chunks(path, export=is_export))
        assert max(map(len, chunks)) <= 65_536
        assert b"".join(chunks) == nodes.print(path)


LEAVES = {f"k{at:02}": TEXT for at in range(5)}


@pytest.mark.parametrize(
    "body",
    [
        LEAVES,
        {**LEAVES, 'k"': TEXT, "k\\": TEXT, "ké": TEXT},
        {**LEAVES, "k02": LEAVES},
        {**LEAVES, "k02": {"3": LEAVES, "-2130640639": LEAVES}, "l" * 480: 1, "l" * 481: 2},
        {**LEAVES, "k02": {".value": TEXT, ".priority": 1}},
        {str(at): TEXT for at in range(9)},
        {str(at): TEXT for at in range(9) if at != 4},
        {str(at): TEXT for at in range(1, 9)},
        {**{str(at): TEXT for at in range(9)}, "3": LEAVES},
        {**{str(at): TEXT for at in range(9) if at != 4}, "3": {"x": TEXT, "y": TEXT}},
        {**{str(at): TEXT for at in range(9)}, "x": TEXT},
        {str(at): TEXT for at in range(-4, 4)},
        [[TEXT, TEXT, TEXT, TEXT], [TEXT, TEXT, TEXT, TEXT], LEAVES, LEAVES, TEXT],
        {"a": LEAVES, "b": LEAVES, "c": LEAVES, "d": 1},
    ],
)
def test_rows_are_printed_as_what_was_put_whatever_is_among_them(
    nodes: NodeWriter, body: Any
) -> None:
    put(nodes, "", body)
    value = normal_form(body)
    assert nodes.print(()) == compact(plain(value))
    assert export(nodes) == compact(value)


def test_chunks_are_read_as_they_are_consumed_from_one_moment() -> None:
    engine = MemoryEngine()
    transaction = engine.begin()
    put(NodeWriter(transaction), "", {f"k{at}": TEXT for at in range(3000)})
    whole = NodeWriter(transaction).print(())
    transaction.commit()
    snapshot = engine.snapshot()
    chunks = Nodes(snapshot).chunks(())
    first = next(chunks)
    transaction = engine.begin()
    put(NodeWriter(transaction), "", None)
    transaction.commit()
    assert len(first) < 65_536 < len(whole)
    assert first + b"".join(chunks) == whole
    snapshot.close()


def test_children_begin_at_any_key_from_either_end(nodes: NodeWriter) -> None:
    put(nodes, "", {"a": 1, "b": {"c": TEXT, "d": TEXT}, "e": [TEXT]})
    spread = b'{"c":"%b","d":"%b"}' % (TEXT.encode(), TEXT.encode())
    assert printed(nodes.children((), Span(after="a"))) == [
        ("b", spread),
        ("e", b'["%b"]' % TEXT.encode()),
    ]
    assert printed(nodes.children((), Span(at="b", reverse=True))) == [("b", spread), ("a", b"1")]
    assert next(nodes.children((), Span(after="b", reverse=True))).key == "a"
    assert [child.value() for child in nodes.children(("b",), Span(at="bb"))] == [TEXT, TEXT]


def test_a_missing_node_has_no_children_and_is_printed_as_null(nodes: NodeWriter) -> None:
    put(nodes, "", {"a": TEXT, "b": TEXT})
    for path in [("c",), ("a", "b"), ("a",) * 32, ("0",)]:
        assert nodes.print(path) == b"null"
        assert list(nodes.chunks(path)) == [b"null"]
        assert export(nodes, *path) == b"null"
        assert nodes.get(path) is nodes.peek(path) is nodes.priority(path) is None
        assert list(nodes.keys(path)) == []
        assert list(nodes.children(path)) == []


@pytest.mark.parametrize("value", [None, 1])
def test_a_node_whose_own_row_is_damaged_can_be_replaced_and_removed(value: Value) -> None:
    engine = MemoryEngine()
    transaction = engine.begin()
    large = "x" * 2000
    NodeWriter(transaction).apply([Change(Place(()), {"a": large, "b": large, "c": large})])
    transaction.put(encode_path(("b",)), b"damaged")
    with pytest.raises(DamagedRow):
        NodeWriter(transaction).get(("b",))
    NodeWriter(transaction).apply([Change(Place(("b",)), value)])
    assert NodeWriter(transaction).get(("b",)) == value
    assert NodeWriter(transaction).get(("c",)) == large


def test_writes_of_siblings_that_share_a_writer_write_their_page_once_or_twice() -> None:
    transaction = MemoryEngine().begin()
    NodeWriter(transaction).apply(
        make_put(Place(("u",)), dict.fromkeys(map(str, range(900)), 1)).changes
    )
    NodeWriter(transaction).apply(
        make_put(Place(("v",)), {f"k{at}": at for at in range(900)}).changes
    )
    puts: list[bytes] = []
    put_row = transaction.put
    transaction.put = lambda key, value: (puts.append(key), put_row(key, value))  # type: ignore[method-assign, assignment, func-returns-value]
    writer = NodeWriter(transaction)
    for at in range(20):
        writer.change([Change(Place(("v", f"zz{at:02}")), at)])
        assert writer.peek(("v", f"zz{at:02}")) == at
        assert writer.peek(("v", f"zz{at:02}", "below")) is None
    writer.flush()
    assert 1 <= len(puts) <= 3
    assert Nodes(transaction).peek(("v", "zz19")) == 19


def shorten(writer: NodeWriter, numbers: Iterable[int]) -> None:
    for at in numbers:
        writer.change([Change(Place((f"k{at:03}",)), "y")])


def test_damage_beside_a_page_fails_the_change_that_meets_it() -> None:
    transaction = MemoryEngine().begin()
    NodeWriter(transaction).apply(
        [Change(Place(()), {f"k{at:03}": "x" * 100 for at in range(100)})]
    )
    pages_of = [key for key, _ in transaction.scan(FIRST, END)]
    transaction.put(pages_of[1], b"damaged")
    writer = NodeWriter(transaction)
    writer.change([Change(Place(("k000",)), "y" * 100)])
    writer.change([Change(Place(("k001",)), "y" * 100)])
    with pytest.raises(DamagedRow):
        shorten(writer, range(20))
    writer = NodeWriter(transaction)
    writer.change([Change(Place(("k000",)), "z" * 100)])
    writer.change([Change(Place(("k001",)), "z" * 100)])
    writer.flush()  # it has nothing to join, so it reads nothing
    assert Nodes(transaction).peek(("k000",)) == "z" * 100


@pytest.mark.parametrize("is_priority", [True, False])
def test_a_change_in_a_long_row_is_divided_into_steps(
    nodes: NodeWriter, monkeypatch: pytest.MonkeyPatch, *, is_priority: bool
) -> None:
    put(nodes, "a", TEXT if is_priority else {"b": 1})
    change = make_put(Place(("a",), True), 5) if is_priority else make_put(Place(("a", "b")), 2)
    plain_steps = len(list(in_steps(lambda: nodes.apply(change.changes))))
    for module in (pages, node_writer):
        monkeypatch.setattr(module, "LONG_ROW_BYTES", 1)
    again = make_put(change.place, 7)
    steps = len(list(in_steps(lambda: nodes.apply(again.changes))))
    # It is found, parsed, printed, sealed, each in a step of its own.
    assert steps >= plain_steps + 5
    assert export(nodes, "a") != b""


LONG_KEY = "k" * SPREAD_BYTES
TOO_LONG = "k" * ROW_KEY_BYTES
"""Of two children of one container whose keys begin so, both are in one row."""


def stored_whole(value: Json, *path: str) -> NodeWriter:
    nodes = NodeWriter(MemoryEngine().begin())
    nodes.apply(make_put(Place(path), value).changes)
    return nodes


def test_what_is_below_long_keys_grows_only_so_far() -> None:
    many: Any = {f"c{number:05}": "x" * 50 for number in range(MAX_WHOLE_NODES + 1)}
    nodes = stored_whole(many, LONG_KEY)
    with pytest.raises(InvalidData, match="at most 10000 members and items"):
        nodes.check_room([(LONG_KEY, "c00001")])
    nodes.check_room([(LONG_KEY,)])  # to be replaced as a whole
    nodes.check_room([("other",)])
    nodes.check_room([("k" * 768,)])
    few: Any = dict(list(many.items())[:MAX_WHOLE_NODES])
    stored_whole(few, LONG_KEY).check_room([(LONG_KEY, "c")])
    short: Any = dict.fromkeys(many, 1)
    stored_whole(short, LONG_KEY).check_room([(LONG_KEY, "c")])
    stored_whole(many, "list").check_room([("list", "k" * 768)])


def test_children_whose_long_keys_begin_alike_grow_together_only_so_far() -> None:
    value: Any = {f"c{number:05}": "x" * 50 for number in range(MAX_WHOLE_NODES + 1)}
    nodes = stored_whole({TOO_LONG + "a": value, "b": "y" * 5000}, "list")
    with pytest.raises(InvalidData, match="shorter keys"):
        nodes.check_room([("list", TOO_LONG + "b")])
    nodes.check_room([("list", "b")])
    text: Any = {TOO_LONG + "a": "x" * 9_000_000, "b": "y" * 5000}
    nodes = stored_whole(text, "list")
    nodes.check_room([("list", TOO_LONG + "a")])
    nodes.apply(make_put(Place(("list", TOO_LONG + "b")), "x" * 9_000_000).changes)
    with pytest.raises(InvalidData, match="16777216 bytes"):
        nodes.check_room([("list", TOO_LONG + "b")])
