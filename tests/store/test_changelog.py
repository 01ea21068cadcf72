from __future__ import annotations

import tracemalloc
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tree.value_view import ValueView
from treedbd.names import Origin
from treedbd.store.changelog import (
    FOLLOWED,
    MAX_DECODED_NODES,
    TRIM_EVERY,
    NotRetained,
    Writer,
    append,
    cut_body,
    decode,
    describe_entry,
    encode,
    rules_of,
)
from treedbd.store.engine import LogEntry
from treedbd.store.memory import MemoryEngine
from treedbd.tree.edit import Edit, make_patch, make_put, make_remove, resolve
from treedbd.tree.types import Place
from treedbd.tree.value import compact

NOW = 1_700_000_000_123
PLACE = Place(("a", "b"))

leaves = (
    st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(alphabet=st.characters(exclude_categories=["Cs"]))
    | st.none()
)
names = st.text(alphabet="ab01é", min_size=1, max_size=3)
bodies = st.recursive(
    leaves, lambda inner: st.lists(inner) | st.dictionaries(names, inner), max_leaves=10
)


def assert_same(decoded: Edit | NotRetained, edit: Edit) -> None:
    """Compare effects and printed forms: a double may be decoded as the integer that it prints."""
    assert isinstance(decoded, Edit)
    assert compact(decoded.sent) == compact(edit.sent)
    assert attrs.evolve(decoded, sent=None) == attrs.evolve(edit, sent=None)


@given(body=bodies)
def test_a_put_comes_back_as_it_was(body: Any) -> None:
    edit = make_put(PLACE, body)
    assert_same(decode(encode(edit, NOW, 1_000_000)), edit)


@given(body=st.dictionaries(names, bodies, max_size=4))
def test_a_patch_comes_back_as_it_was(body: Any) -> None:
    edit = make_patch(PLACE.path, body)
    assert_same(decode(encode(edit, NOW, 1_000_000)), edit)


@pytest.mark.parametrize(
    "edit",
    [
        make_remove(PLACE),
        make_remove(Place(())),
        make_patch(("a",), None),
        make_put(Place((), True), 5),
        make_put(Place(("a",), True), None),
        make_put(PLACE, {".value": 1, ".priority": "p"}),
        make_put(PLACE, [1, None, {"x": [2]}]),
        make_patch((), {"/a/b": {"c": 1}, ".priority": 3, "d/.priority": "q"}),
        make_patch((), {}),
    ],
)
def test_every_shape_of_edit_comes_back_as_it_was(edit: Edit) -> None:
    assert decode(encode(edit, NOW)) == edit


def test_what_was_sent_is_kept_with_its_server_values_resolved() -> None:
    edit = make_patch((), {"at": {".sv": "timestamp"}, "n/m": {".sv": {"increment": 2}}})
    decoded = decode(encode(resolve(edit, NOW, ValueView({"n": {"m": 5}})), NOW))
    assert isinstance(decoded, Edit)
    assert decoded.sent == {"at": NOW, "n/m": 7}


def test_an_edit_with_unresolved_server_values_is_an_error() -> None:
    with pytest.raises(ValueError, match="resolved"):
        encode(make_put(PLACE, {".sv": "timestamp"}), NOW)


@pytest.mark.parametrize("body", ["x" * 100, {"k": ["x" * 50, "x" * 50]}, [1] * 100])
def test_a_body_over_the_limit_is_dropped(body: Any) -> None:
    content = encode(make_put(PLACE, body), NOW, 120)
    assert len(content) < 120
    assert decode(content) == NotRetained("put", PLACE)


@pytest.mark.parametrize(
    "edit",
    [
        make_put(PLACE, [1] * 9000),
        make_put(PLACE, ["x" * 59_996]),
        make_patch((), {f"{at}": 1 for at in range(7000)}),
        make_patch((), dict.fromkeys("abcdefghi", "")),
    ],
)
def test_a_body_is_kept_up_to_the_limit_and_not_beyond(edit: Edit) -> None:
    length = len(encode(edit, NOW, 1_000_000))
    assert decode(encode(edit, NOW, length)) == edit
    assert isinstance(decode(encode(edit, NOW, length - 1)), NotRetained)


def test_a_body_with_very_many_members_is_not_parsed() -> None:
    for count in (MAX_DECODED_NODES, MAX_DECODED_NODES + 1):
        edit = make_put(PLACE, [1] * count)
        content = encode(edit, NOW, 1_000_000)
        kept = count == MAX_DECODED_NODES
        assert decode(content) == (edit if kept else NotRetained("put", PLACE))
        assert describe_entry(LogEntry(1, b"", content)).sent == [1] * count


def test_a_patch_over_the_limit_keeps_its_place() -> None:
    content = encode(make_patch(PLACE.path, {"x/.priority": "p" * 100}), NOW, 100)
    assert decode(content) == NotRetained("patch", PLACE)


def test_a_priority_over_the_limit_keeps_its_place() -> None:
    place = Place(("a",), True)
    assert decode(encode(make_put(place, "p" * 100), NOW, 90)) == NotRetained("put", place)


def test_an_entry_of_exactly_the_limit_keeps_its_body() -> None:
    edit = make_put(PLACE, "x" * 50)
    length = len(encode(edit, NOW))
    assert decode(encode(edit, NOW, length)) == edit
    assert decode(encode(edit, NOW, length - 1)) == NotRetained("put", PLACE)


def test_a_string_of_any_accepted_length_comes_back() -> None:
    edit = make_put(PLACE, "x" * 11_000_000, max_string_bytes=12_000_000)
    assert decode(encode(edit, NOW, 20_000_000)) == edit


def test_the_fingerprint_of_the_rules_is_kept_without_the_body_too() -> None:
    assert rules_of(encode(make_put(PLACE, 1), NOW, rules="r1")) == "r1"
    assert rules_of(encode(make_put(PLACE, "x" * 100), NOW, 90, rules="r1")) == "r1"
    assert rules_of(encode(make_put(PLACE, 1), NOW)) == ""


@pytest.mark.parametrize(
    "content",
    [
        *(b"", b"1", b"[]", b"{}", b'{"method":"put"}', b'{"method":"get","path":[],"sent":1}'),
        *(b'{"time":1,"method":"put","path":"ab","sent":1}', b'{"time":1,"method":{},"path":[]}'),
        *(
            b'{"time":1,"method":"put","path":[1],"sent":1}',
            b'{"time":"x","method":"put","path":[]}',
        ),
        b'{"time":1,"method":"put","path":["a"],"rules":{"a":1},"sent":1}',
        b'{"time":1,"method":"put","path":["a"],"uid":[],"sent":1}',
    ],
)
def test_bytes_that_are_not_an_entry_are_an_error(content: bytes) -> None:
    for read in (decode, lambda each: describe_entry(LogEntry(1, b"", each))):
        with pytest.raises(ValueError):  # noqa: PT011
            read(content)


def test_long_bodies_among_short_ones_are_cut_soon() -> None:
    transaction = MemoryEngine().begin()
    entry = encode(make_put(Place(("a",)), "x" * 1000), 1, 2000)
    for number in range(1, 12 * TRIM_EVERY):
        append(transaction, b"op", entry if number % 7 else b"{}", 10_000, 500)
        if number % 50 == 0:
            append(transaction, b"op", b"{}", 10_000, 500)
    for _ in range(TRIM_EVERY):
        append(transaction, b"op", b"{}", 10_000, 500)
    last = transaction.sequence()
    long = [each.sequence for each in transaction.entries(0) if len(each.content) > 500]
    assert not long or long[0] > last - FOLLOWED - TRIM_EVERY
    assert len(list(transaction.entries(0))) == last


@pytest.mark.parametrize("retain", [0, 3, 100])
def test_an_append_drops_old_entries_and_never_the_newest(retain: int) -> None:
    transaction = MemoryEngine().begin()
    for number in range(1, 3 * TRIM_EVERY + retain):
        assert append(transaction, b"op", b"%d" % number, retain) == number
        kept = [entry.sequence for entry in transaction.entries(0)]
        assert kept == list(range(kept[0], number + 1))
        assert min(number, retain + 1) <= len(kept) <= retain + TRIM_EVERY


def test_an_entry_without_its_body_has_memory_of_its_own_size() -> None:
    edit = make_put(PLACE, "long" * 100)
    length = len(encode(edit, NOW, 300))
    tracemalloc.start()
    kept = [encode(edit, NOW, 300) for _ in range(50)]
    taken, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert taken < len(kept) * (length + 100)


def test_where_a_write_came_from_is_in_its_entry_only_if_it_is_known() -> None:
    edit = make_put(PLACE, {"n": 1})
    plain = encode(edit, NOW, writer=Writer("ada"))
    assert b"from" not in plain
    assert describe_entry(LogEntry(1, b"", plain)).writer == Writer("ada")
    for origin in (Origin("2001:db8::1", None, "socket"), Origin("", 'a","sent":1', "local")):
        content = encode(edit, NOW, writer=Writer("ada", origin=origin))
        assert describe_entry(LogEntry(1, b"", content)).writer == Writer("ada", origin=origin)
        assert_same(decode(content), edit)
        assert cut_body(content)[1] == b'{"n":1}'


@pytest.mark.parametrize("sent", [b'["a"]', b'["a",1,"http"]', b"[]", b'{"a":1}', b'"a"'])
def test_an_entry_with_another_origin_is_damaged(sent: bytes) -> None:
    content = encode(make_put(PLACE, 1), NOW)
    damaged = content.replace(b'"size"', b'"from":' + sent + b',"size"')
    with pytest.raises(ValueError, match=r"entry|came from"):
        describe_entry(LogEntry(1, b"", damaged))
