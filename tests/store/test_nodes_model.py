"""The tree in the store against the tree in memory: after the same writes, reads are the same.

Rows are kept so short that they are split and merged all the time. `tree.edit.apply` defines what a
write means, `tree.value.plain` what a read returns; the rows must behave as they do.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path as File
from typing import Any, TypeAlias

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.examples import examples
from tests.store.normal_form import normal_form
from tests.tree.value_view import ValueView
from treedbd.store.engine import Engine, ReadView, Row
from treedbd.store.indexes import ranks_of
from treedbd.store.memory import MemoryEngine
from treedbd.store.node_writer import NodeWriter
from treedbd.store.nodes import Child, Nodes
from treedbd.store.pages import PAGE_BYTES
from treedbd.store.rows import END, FIRST, ROW_KEY_BYTES, PagedRows, Span, is_priority_row, load_row
from treedbd.store.sqlite.engine import SqliteEngine
from treedbd.store.verify import verify
from treedbd.tree.edit import apply, make_patch
from treedbd.tree.path import decode_path, rank_key
from treedbd.tree.query import BY_PRIORITY, BY_VALUE, Order, Query
from treedbd.tree.types import CONTAINER, Change, InvalidData, Path, Place, Value
from treedbd.tree.value import compact, leaf_of, members, plain

QUERIES = [
    Query(BY_VALUE),
    Query(BY_PRIORITY),
    Query(Order("child", ("a",))),
    Query(Order("child", ("b", "0"))),
]

Commit: TypeAlias = tuple[Change, ...]

LONG = "k" * 300
LONGER = LONG + "é" * 100
ALPHABETS = [
    ["a", "b", "c", 'é"\\'],
    ["0", "1", "2", "3"],
    ["-5", "0", "1", "01", "11111111111", "a"],
    ["0", "-0", "00", "1", "2", "3"],
    ["a", LONG, LONG + "1", "z" * 470],
    ["0", "b", LONGER, LONGER + "a", "z" * 768],
]
EDGES = [*itertools.chain(*ALPHABETS), "", "a\x00b", "5\x00", LONGER + "\x00", "m" * 500]

leaves = st.sampled_from([True, 1, -0.5, 1e300, 2**63, "", "s", 'é[{"1":', "x" * 70, None])
priorities = st.sampled_from([1, 2.5, "p"])


def bodies(keys: st.SearchStrategy[str]) -> st.SearchStrategy[Any]:
    def containers(children: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
        without_priority = st.dictionaries(keys, children, max_size=6)
        return without_priority | st.builds(
            lambda c, p: {**c, ".priority": p}, without_priority, priorities
        )

    leaves_with_priority = st.builds(lambda v, p: {".value": v, ".priority": p}, leaves, priorities)
    return st.recursive(leaves | leaves_with_priority, containers, max_leaves=10)


def histories(alphabet: list[str]) -> st.SearchStrategy[list[Commit]]:
    """Generate commits of few keys, so that they often change the same nodes."""
    keys = st.sampled_from(alphabet)
    paths = st.lists(keys, max_size=3).map(tuple)
    changes = st.one_of(
        st.builds(lambda path, body: Change(Place(path), normal_form(body)), paths, bodies(keys)),
        st.builds(lambda path: Change(Place(path), None), paths),
        st.builds(lambda path, to: Change(Place(path, True), to), paths, priorities | st.none()),
    )
    return st.lists(st.lists(changes, min_size=1, max_size=3).map(tuple), max_size=7)


# A strategy is made once, not once for each example: that takes longer than to write and to read.
commits = st.one_of(*map(histories, ALPHABETS))
spans = st.builds(
    lambda edge, inclusive, reverse: (
        Span(at=edge, reverse=reverse) if inclusive else Span(after=edge, reverse=reverse)
    ),
    st.none() | st.sampled_from(EDGES),
    st.booleans(),
    st.booleans(),
)
row_limits = st.sampled_from([20, 40, 100, 300])
page_limits = st.sampled_from([100, 200, 400, PAGE_BYTES])
"""The shortest of them has room for two or three members."""
bounded = settings(
    max_examples=examples(250), deadline=None, suppress_health_check=[HealthCheck.too_slow]
)


@pytest.fixture(scope="module")
def shelves(tmp_path_factory: pytest.TempPathFactory) -> Iterator[File]:
    """Paths of new shelf files."""
    folder = tmp_path_factory.mktemp("shelves")
    return (folder / f"{number}.shelf" for number in itertools.count())


def single_rows(engine: Engine) -> list[Row]:
    return engine.read(lambda rows: list(PagedRows(rows).scan(FIRST, END)))


def every_path(value: Value, path: Path = ()) -> Iterator[Path]:
    yield path
    for key, child in members(value):
        yield from every_path(child, (*path, key))


def write(engine: Engine, commit: Commit, row_bytes: int, page_bytes: int = PAGE_BYTES) -> None:
    transaction = engine.begin()
    NodeWriter(transaction, row_bytes, page_bytes).apply(commit)
    transaction.commit()


def assert_reads_like(rows: ReadView | PagedRows, model: Value, paths: set[Path]) -> None:
    nodes, view = Nodes(rows), ValueView(model)
    for path in paths:
        value = view.get(path)
        text = compact(plain(value))
        assert compact(nodes.get(path)) == compact(value)
        assert repr(nodes.peek(path)) == repr(view.peek(path))
        assert nodes.priority(path) == view.priority(path)
        assert nodes.print(path) == text
        assert b"".join(nodes.chunks(path)) == text
        assert b"".join(nodes.chunks(path, export=True)) == compact(value)
        assert_children_like(nodes, view, path, Span())


def assert_children_like(nodes: Nodes, view: ValueView, path: Path, span: Span) -> None:
    names = sorted(filter(span.holds, view.keys(path)), key=rank_key, reverse=span.reverse)
    prints = [compact(plain(view.get((*path, name)))) for name in names]
    assert list(nodes.keys(path, span)) == names
    values = [view.get((*path, name)) for name in names]
    unread = [Child(nodes, path, name, None) for name in names]
    for children in (list(nodes.children(path, span)), unread):
        assert [child.key for child in children] == names
        assert [b"".join(child.chunks()) for child in children] == prints
        assert [child.value() for child in children] == values
        exports = [b"".join(child.chunks(export=True)) for child in children]
        assert exports == list(map(compact, values))
    for query in QUERIES:
        ranks = ranks_of(nodes, path, query, list(nodes.sources(path, span)))
        assert ranks == list(map(query.sort_value, values))


def assert_spans_like(rows: ReadView, view: ValueView, spans: list[Span]) -> None:
    for path in every_path(view.root):
        for span in spans:
            assert_children_like(Nodes(rows), view, path, span)


def assert_rows_are_sound(rows: ReadView, row_bytes: int) -> None:
    assert verify(rows) == []
    for key, raw in PagedRows(rows).scan(FIRST, END):
        path, cut = decode_path(key)
        is_large = len(raw) > row_bytes and not is_priority_row(raw)
        may_be_large = leaf_of(load_row(raw)) is not CONTAINER or len(key) > 470
        assert len(key) <= ROW_KEY_BYTES
        assert not is_large or may_be_large, (path, cut)


def assert_writes_read_back(
    engine: Engine, commits: list[Commit], row_bytes: int, page_bytes: int
) -> None:
    model = None
    for commit in commits:
        write(engine, commit, row_bytes, page_bytes)
        model = apply(model, commit)
        touched = {change.place.path for change in commit} | {()}
        engine.read(partial(assert_rows_are_sound, row_bytes=row_bytes))
        engine.read(partial(assert_reads_like, model=model, paths=touched))
    engine.read(partial(assert_reads_like, model=model, paths=set(every_path(model))))
    engine.close()


@bounded
@given(commits=commits, row_bytes=row_limits, page_bytes=page_limits)
def test_rows_read_like_the_tree_that_was_written(
    commits: list[Commit], row_bytes: int, page_bytes: int
) -> None:
    assert_writes_read_back(MemoryEngine(), commits, row_bytes, page_bytes)


@settings(bounded, max_examples=examples(100))
@given(commits=commits, row_bytes=row_limits, page_bytes=page_limits)
def test_rows_in_a_file_read_like_the_tree_that_was_written(
    shelves: Iterator[File], commits: list[Commit], row_bytes: int, page_bytes: int
) -> None:
    engine = SqliteEngine.create(next(shelves), reserve_bytes=0)
    assert_writes_read_back(engine, commits, row_bytes, page_bytes)


def assert_spans_read_back(
    engine: Engine, commits: list[Commit], spans: list[Span], page_bytes: int
) -> None:
    model = None
    for commit in commits:
        write(engine, commit, 40, page_bytes)
        model = apply(model, commit)
    engine.read(partial(assert_spans_like, view=ValueView(model), spans=spans))
    engine.close()


@bounded
@given(commits=commits, spans=st.lists(spans, min_size=1, max_size=8), page_bytes=page_limits)
def test_a_span_has_the_children_from_its_edge_on(
    commits: list[Commit], spans: list[Span], page_bytes: int
) -> None:
    assert_spans_read_back(MemoryEngine(), commits, spans, page_bytes)


@settings(bounded, max_examples=examples(100))
@given(commits=commits, spans=st.lists(spans, min_size=1, max_size=8), page_bytes=page_limits)
def test_a_span_in_a_file_has_the_children_from_its_edge_on(
    shelves: Iterator[File], commits: list[Commit], spans: list[Span], page_bytes: int
) -> None:
    engine = SqliteEngine.create(next(shelves), reserve_bytes=0)
    assert_spans_read_back(engine, commits, spans, page_bytes)


@bounded
@given(commits=commits, limits=st.lists(st.sampled_from([20, 40, 100, 300]), min_size=1))
def test_the_limit_of_a_row_may_change_between_writes(
    commits: list[Commit], limits: list[int]
) -> None:
    engine, model = MemoryEngine(), None
    for at, commit in enumerate(commits):
        write(engine, commit, limits[at % len(limits)])
        model = apply(model, commit)
    engine.read(partial(assert_reads_like, model=model, paths=set(every_path(model))))
    assert engine.read(verify) == []


def patches(alphabet: list[str]) -> st.SearchStrategy[tuple[list[Commit], Commit]]:
    """Generate a history, and a PATCH with many members that change neighbouring nodes."""
    keys = st.sampled_from(alphabet)
    names = st.lists(keys, min_size=1, max_size=3).map("/".join)
    members = st.one_of(
        st.tuples(names, st.none() | leaves | bodies(keys)),
        st.tuples(names.map("{}/.priority".format), priorities | st.none()),
    )
    paths = st.lists(keys, max_size=2).map(tuple)
    changes = st.builds(changes_of, paths, st.lists(members, min_size=2, max_size=12))
    return st.tuples(histories(alphabet), changes)


def changes_of(path: Path, members: list[tuple[str, Any]]) -> Commit:
    """Return the changes of a PATCH with as many of these members as may stand in one."""
    body: dict[str, Any] = {}
    for name, item in members:
        with suppress(InvalidData):
            body_with_item = {**body, name: item}
            make_patch((), body_with_item)
            body = body_with_item
    return tuple(make_patch(path, body).changes)


@bounded
@given(patched=st.one_of(*map(patches, ALPHABETS)), row_bytes=st.sampled_from([20, 40, 100, 300]))
def test_a_patch_leaves_the_rows_that_its_changes_leave_one_by_one(
    patched: tuple[list[Commit], Commit], row_bytes: int
) -> None:
    commits, changes = patched
    together, apart = MemoryEngine(), MemoryEngine()
    for engine in (together, apart):
        for commit in commits:
            write(engine, commit, row_bytes)
    write(together, changes, row_bytes)
    for change in changes:
        write(apart, (change,), row_bytes)
    assert single_rows(together) == single_rows(apart)


@settings(bounded, max_examples=examples(400))
@given(
    commits=commits,
    are_read=st.lists(st.booleans(), min_size=1, max_size=4),
    row_bytes=row_limits,
    page_bytes=page_limits,
)
def test_writes_that_share_a_writer_leave_the_rows_of_writers_of_their_own(
    commits: list[Commit], are_read: list[bool], row_bytes: int, page_bytes: int
) -> None:
    together, apart = MemoryEngine(), MemoryEngine()
    transaction = together.begin()
    writer, model = NodeWriter(transaction, row_bytes, page_bytes), None
    for commit, is_read in zip(commits, itertools.cycle(are_read), strict=False):
        write(apart, commit, row_bytes, page_bytes)
        writer.change(commit)
        model = apply(model, commit)
        if is_read:
            assert_reads_like(writer.rows, model, {change.place.path for change in commit})
    writer.flush()
    transaction.commit()
    assert single_rows(together) == single_rows(apart)
    assert together.read(verify) == []


@bounded
@given(commits=commits)
def test_what_removes_everything_leaves_no_row(commits: list[Commit]) -> None:
    engine, model = MemoryEngine(), None
    for commit in commits:
        write(engine, commit, 40)
        model = apply(model, commit)
    while model is not None:
        path = max(every_path(model), key=len)
        write(engine, (Change(Place(path), None),), 40)
        model = apply(model, [Change(Place(path), None)])
        engine.read(partial(assert_reads_like, model=model, paths={()}))
    assert engine.read(lambda rows: list(rows.scan(FIRST, END))) == []
