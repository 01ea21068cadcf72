"""Rows in pages against a dictionary of rows: after the same changes, both have the same."""

from __future__ import annotations

from itertools import pairwise
from typing import TypeAlias

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.examples import examples
from treedbd.store.engine import LONG_BYTES, Row, Transaction
from treedbd.store.memory import MemoryEngine
from treedbd.store.pages import PageWriter, container_of_row, place_rows
from treedbd.store.rows import (
    END,
    FIRST,
    LARGE_ROW_BYTES,
    Page,
    PagedRows,
    below,
    end_of_key,
    is_page,
    is_priority_row,
    unseal,
)
from treedbd.store.verify import check_page
from treedbd.tree.path import decode_path, encode_path
from treedbd.tree.types import Path

NAMES = [str(at) for at in range(12)] + [f"k{at:02}" for at in range(12)] + ['q"', "é", "\\"]
PATHS: list[Path] = [
    *[(name,) for name in NAMES],
    *[("s", name) for name in NAMES],
    *[("k05x", "t", name) for name in NAMES],
]
RAWS = [
    *[b"1", b"22", b"[3]", b'{"a":"bc"}', b' {".value":1,".priority":2}'],
    *[b'"%b"' % (b"x" * size) for size in (200, LARGE_ROW_BYTES)],
]
Step: TypeAlias = tuple[str, Path, bytes]
STEPS = st.tuples(
    st.sampled_from(["put", "put", "put", "delete", "range", "flush", "look"]),
    st.sampled_from(PATHS),
    st.sampled_from(RAWS),
)
RUNS = st.builds(
    lambda path, count, raw: [("put", each, raw) for each in PATHS[path : path + count]],
    st.integers(0, len(PATHS) - 1),
    st.integers(1, 30),
    st.sampled_from(RAWS),
)
REMOVALS = st.builds(
    lambda path, count: [("delete", each, b"") for each in PATHS[path : path + count]],
    st.integers(0, len(PATHS) - 1),
    st.integers(1, 15),
)
HISTORIES = st.lists(st.one_of(STEPS.map(lambda step: [step]), RUNS, REMOVALS), max_size=12)


def change(writer: PageWriter, model: dict[bytes, bytes], step: Step) -> None:
    what, path, raw = step
    key = encode_path(path)
    if what == "put":
        writer.put(key, raw)
        model[key] = raw
    elif what == "delete":
        writer.delete(key)
        model.pop(key, None)
    elif what == "range":
        low, high = below(key)
        writer.delete_range(low, high)
        for each in [each for each in model if low <= each < high]:
            del model[each]
    elif what == "flush":
        writer.flush()
    else:
        check_lookups(writer, model, key)


def check_lookups(rows: PagedRows, model: dict[bytes, bytes], key: bytes) -> None:
    ordered = sorted(model.items())
    covers = [row for row in ordered if key.startswith(row[0])]
    assert rows.find(key) == (covers[-1] if covers else None)
    assert rows.get(key) == model.get(key)
    assert rows.floor(key) == next((row for row in reversed(ordered) if row[0] <= key), None)
    after = [row[0] for row in ordered if row[0] >= key]
    assert next(rows.scan_keys(key, END), None) == (after[0] if after else None)
    check_children(rows, model, encode_path(decode_path(key)[0][:-1]), key)


def check_children(
    rows: PagedRows, model: dict[bytes, bytes], container: bytes, other: bytes
) -> None:
    start = len(container)
    children = {
        key[start:]: raw
        for key, raw in model.items()
        if key.startswith(container) and end_of_key(key + END, start) == len(key) > start
    }
    wanted = {*children, *([other[start:]] if len(other) > start else [])}
    assert rows.find_children(container, wanted) == {
        key: raw
        for key, raw in children.items()
        if len(raw) <= LARGE_ROW_BYTES and not is_priority_row(raw)
    }


def check_scans(rows: PagedRows, model: dict[bytes, bytes], low: bytes, high: bytes) -> None:
    wanted = [row for row in sorted(model.items()) if low <= row[0] < high]
    assert list(rows.scan(low, high)) == wanted
    assert list(rows.scan(low, high, reverse=True)) == wanted[::-1]
    keys = [key for key, _ in wanted]
    assert list(rows.scan_keys(low, high)) == keys
    assert list(rows.scan_keys(low, high, reverse=True)) == keys[::-1]


def check_pages(transaction: Transaction, page_bytes: int) -> None:
    stored: list[Row] = [(key, unseal(key, raw)) for key, raw in transaction.scan(FIRST, END)]
    for key, content in stored:
        if is_page(key):
            assert len(key) + len(content) <= page_bytes
            check_page(key, content)


@settings(max_examples=examples(300), deadline=None)
@given(
    HISTORIES,
    st.sampled_from([150, 300, 4040]),
    st.sampled_from(PATHS),
    st.sampled_from(PATHS),
)
def test_rows_in_pages_are_the_rows_that_were_put(
    history: list[list[Step]], page_bytes: int, one: Path, other: Path
) -> None:
    transaction = MemoryEngine().begin()
    writer, model = PageWriter(transaction, page_bytes), dict[bytes, bytes]()
    for steps in history:
        for step in steps:
            change(writer, model, step)
    writer.flush()
    check_pages(transaction, page_bytes)
    rows = PagedRows(transaction)
    check_scans(rows, model, FIRST, END)
    check_scans(rows, model, *sorted([encode_path(one), encode_path(other)]))
    for path in (one, other):
        check_lookups(rows, model, encode_path(path))


def test_reads_before_the_open_run_leave_it_open_and_find_nothing_that_was_removed() -> None:
    transaction = MemoryEngine().begin()
    load(transaction, numbered(20))
    first, *others = numbered(20)
    new = [(encode_path(("c", name)), b'"new"') for name in ("n00004a", "n00004b")]
    writer, apart = PageWriter(transaction), encode_path(("b",))
    writer.put(*new[0])
    before = stored_of(transaction)
    writer.put(*new[1])  # the second change of a page opens the run
    assert writer.find(apart) is None
    assert writer.floor(apart) is None
    assert next(writer.scan_keys(*below(apart)), None) is None
    assert stored_of(transaction) == before  # the run is open
    writer.delete(first[0])
    assert writer.find(first[0]) is None
    assert writer.floor(first[0]) is None
    writer.flush()
    assert dict(PagedRows(transaction).scan(FIRST, END)) == dict([*others, *new])


def numbered(count: int, start: int = 0) -> list[Row]:
    return [(encode_path(("c", f"n{at:05}")), b"%d" % at) for at in range(start, start + count)]


def stored_of(transaction: Transaction) -> dict[bytes, bytes]:
    return dict(transaction.scan(FIRST, END))


def load(transaction: Transaction, rows: list[Row]) -> None:
    writer = PageWriter(transaction)
    writer.put_all(place_rows(rows))
    writer.flush()


def changed(transaction: Transaction, before: dict[bytes, bytes]) -> int:
    """Return how many stored rows differ from what they were."""
    after = stored_of(transaction)
    return sum(after.get(key) != before.get(key) for key in after.keys() | before.keys())


def test_many_rows_are_put_into_full_pages() -> None:
    transaction = MemoryEngine().begin()
    load(transaction, numbered(2000))
    lengths = [len(key) + len(raw) for key, raw in transaction.scan(FIRST, END)]
    assert all(3950 < length <= 4044 for length in lengths[:-1])


def test_rows_that_are_appended_one_by_one_fill_pages() -> None:
    transaction = MemoryEngine().begin()
    for row in numbered(2000):
        before = stored_of(transaction) if row[1].endswith(b"7") else None
        writer = PageWriter(transaction)
        writer.put(*row)
        writer.flush()
        assert before is None or changed(transaction, before) <= 2
    lengths = [len(key) + len(raw) for key, raw in transaction.scan(FIRST, END)]
    assert all(3950 < length <= 4044 for length in lengths[:-1])


def test_a_row_between_others_divides_a_full_page_in_two() -> None:
    transaction = MemoryEngine().begin()
    load(transaction, numbered(1000))
    before = stored_of(transaction)
    writer = PageWriter(transaction)
    writer.put(encode_path(("c", "n00020x")), b"1" * 20)
    writer.flush()
    assert changed(transaction, before) == 2
    assert len(stored_of(transaction)) == len(before) + 1


def test_one_row_of_a_page_is_replaced_or_removed_in_one_write() -> None:
    transaction = MemoryEngine().begin()
    load(transaction, numbered(1000))
    before = stored_of(transaction)
    writer = PageWriter(transaction)
    writer.put(encode_path(("c", "n00020")), b"7")
    writer.flush()
    assert changed(transaction, before) == 1
    writer.delete(encode_path(("c", "n00021")))
    writer.flush()
    assert changed(transaction, before) == 1
    writer.delete(encode_path(("c", "n00000")))
    writer.flush()
    assert changed(transaction, before) == 2  # under the key of its new first member


def test_pages_that_have_become_short_are_joined() -> None:
    transaction = MemoryEngine().begin()
    load(transaction, numbered(1000))
    for at in range(1000):
        if at % 10:
            writer = PageWriter(transaction)
            writer.delete(encode_path(("c", f"n{at:05}")))
            writer.flush()
    lengths = [len(raw) for raw in stored_of(transaction).values()]
    assert len(lengths) <= 3
    assert len(list(PagedRows(transaction).scan(FIRST, END))) == 100


class CountingPuts:
    """A transaction that counts what is put into it."""

    def __init__(self, inner: Transaction) -> None:
        self.puts = 0
        self._inner = inner
        self.floor = inner.floor
        self.get = inner.get
        self.scan_keys = inner.scan_keys
        self.delete = inner.delete

    def put(self, key: bytes, value: bytes) -> None:
        self.puts += 1
        self._inner.put(key, value)


def test_many_changes_of_siblings_write_each_page_once_or_twice() -> None:
    transaction = MemoryEngine().begin()
    load(transaction, numbered(1000))
    pages = len(stored_of(transaction))
    counting = CountingPuts(transaction)
    writer = PageWriter(counting)  # type: ignore[arg-type]
    for key, _ in numbered(1000):
        writer.find(key)
        writer.put(key, b"7")
    writer.flush()
    assert counting.puts <= 2 * pages


def test_a_page_holds_children_of_one_container_in_their_order() -> None:
    transaction = MemoryEngine().begin()
    load(transaction, [(encode_path(path), b"1") for path in PATHS[:24]])
    pages = [Page(key, unseal(key, raw)) for key, raw in transaction.scan(FIRST, END)]
    assert [page.count for page in pages] == [12, 12]
    for page in pages:
        keys = [key for key, _ in page.rows()]
        assert all(one < other for one, other in pairwise(keys))
        assert {container_of_row(key) for key in keys} == {b""}


def test_a_short_row_after_a_long_one_is_stored_by_itself() -> None:
    transaction = MemoryEngine().begin()
    keys = [encode_path(("s", name)) for name in ("bio", "city", "name")]
    values = [b'"%b"' % (b"x" * LONG_BYTES), b"1", b"2"]
    for key, value in zip(keys, values, strict=True):
        rows = PageWriter(transaction)
        rows.put(key, value)
        rows.flush()
    assert list(PagedRows(transaction).scan(FIRST, END)) == list(zip(keys, values, strict=True))
