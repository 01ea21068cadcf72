"""The tree on the shelf against the tree in memory: the same writes, then the same answers.

Rows are kept so short that they split and are gathered all the time. `tree.edit.apply` says what a
write means, `tree.value.plain` what a read shows; the rows must never be told from them.
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

from treedbd.store.layout import END, FIRST, KEY_BYTES, Span
from treedbd.store.mapping import Mapping, Rows
from treedbd.store.memory import MemoryMapping
from treedbd.store.node_writer import NodeWriter
from treedbd.store.nodes import Nodes
from treedbd.store.row import is_crown, load_row
from treedbd.store.sqlite import SqliteMapping
from treedbd.store.verification import verify
from treedbd.tree.body import normalise
from treedbd.tree.edit import Change, apply, make_patch
from treedbd.tree.order import decode_path, rank_key
from treedbd.tree.path import Path, Place
from treedbd.tree.printing import compact
from treedbd.tree.query import BY_PRIORITY, BY_VALUE, Order, Query
from treedbd.tree.value import CONTAINER, InvalidData, Value, leaf_of, members, plain
from treedbd.tree.view import ValueView

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
    ["a", LONG, LONG + "1", "z" * 470],
    ["0", "b", LONGER, LONGER + "a", "z" * 768],
]
EDGES = [*itertools.chain(*ALPHABETS), "", "a\x00b", "5\x00", LONGER + "\x00", "m" * 500]

leaves = st.sampled_from([True, 1, -0.5, 1e300, 2**63, "", "s", 'é[{"1":', "x" * 70, None])
priorities = st.sampled_from([1, 2.5, "p"])


def bodies(keys: st.SearchStrategy[str]) -> st.SearchStrategy[Any]:
    def containers(children: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
        plain_ones = st.dictionaries(keys, children, max_size=6)
        return plain_ones | st.builds(lambda c, p: {**c, ".priority": p}, plain_ones, priorities)

    alone = st.builds(lambda v, p: {".value": v, ".priority": p}, leaves, priorities)
    return st.recursive(leaves | alone, containers, max_leaves=10)


def histories(alphabet: list[str]) -> st.SearchStrategy[list[Commit]]:
    """Make commits that use few keys, so that they meet."""
    keys = st.sampled_from(alphabet)
    paths = st.lists(keys, max_size=3).map(tuple)
    changes = st.one_of(
        st.builds(
            lambda path, body: Change(Place(path), normalise(body).value), paths, bodies(keys)
        ),
        st.builds(lambda path: Change(Place(path), None), paths),
        st.builds(lambda path, to: Change(Place(path, True), to), paths, priorities | st.none()),
    )
    return st.lists(st.lists(changes, min_size=1, max_size=3).map(tuple), max_size=7)


commits = st.sampled_from(ALPHABETS).flatmap(histories)
spans = st.builds(
    lambda edge, inclusive, reverse: (
        Span(at=edge, reverse=reverse) if inclusive else Span(after=edge, reverse=reverse)
    ),
    st.none() | st.sampled_from(EDGES),
    st.booleans(),
    st.booleans(),
)
bounded = settings(max_examples=250, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@pytest.fixture(scope="module")
def shelves(tmp_path_factory: pytest.TempPathFactory) -> Iterator[File]:
    """Give names for new shelf files."""
    folder = tmp_path_factory.mktemp("shelves")
    return (folder / f"{number}.shelf" for number in itertools.count())


def every_path(value: Value, path: Path = ()) -> Iterator[Path]:
    yield path
    for key, child in members(value):
        yield from every_path(child, (*path, key))


def write(mapping: Mapping, commit: Commit, row_bytes: int) -> None:
    transaction = mapping.begin()
    NodeWriter(transaction, row_bytes).apply(commit)
    transaction.commit()


def assert_reads_like(rows: Rows, model: Value, interesting: set[Path]) -> None:
    nodes, view = Nodes(rows), ValueView(model)
    for path in interesting:
        value = view.get(path)
        text = compact(plain(value))
        assert compact(nodes.get(path)) == compact(value)
        assert repr(nodes.peek(path)) == repr(view.peek(path))
        assert nodes.priority(path) == view.priority(path)
        assert nodes.print(path) == text
        assert b"".join(nodes.pieces(path)) == text
        assert b"".join(nodes.pieces(path, export=True)) == compact(value)
        assert_children_like(nodes, view, path, Span())


def assert_children_like(nodes: Nodes, view: ValueView, path: Path, span: Span) -> None:
    names = sorted(filter(span.holds, view.keys(path)), key=rank_key, reverse=span.reverse)
    prints = [compact(plain(view.get((*path, name)))) for name in names]
    assert list(nodes.keys(path, span)) == names
    values = [view.get((*path, name)) for name in names]
    children = list(nodes.children(path, span))
    for is_held in (True, False):
        if not is_held:
            for child in children:
                child.forget()
        assert [child.key for child in children] == names
        assert [b"".join(child.pieces()) for child in children] == prints
        assert [child.value() for child in children] == values
        exports = [b"".join(child.pieces(export=True)) for child in children]
        assert exports == list(map(compact, values))
        for query in QUERIES:
            ranks = [child.rank(query) for child in children]
            assert ranks == list(map(query.sort_value, values))
    assert not any(child.weight for child in children)


def assert_spans_like(rows: Rows, view: ValueView, spans: list[Span]) -> None:
    for path in every_path(view.root):
        for span in spans:
            assert_children_like(Nodes(rows), view, path, span)


def assert_rows_are_sound(rows: Rows, row_bytes: int) -> None:
    assert verify(rows) == []
    for key, raw in rows.scan(FIRST, END):
        path, cut = decode_path(key)
        is_large = len(raw) > row_bytes and not is_crown(raw)
        may_be_large = leaf_of(load_row(raw)) is not CONTAINER or len(key) > 470
        assert len(key) <= KEY_BYTES
        assert not is_large or may_be_large, (path, cut)


def assert_writes_read_back(mapping: Mapping, commits: list[Commit], row_bytes: int) -> None:
    model = None
    for commit in commits:
        write(mapping, commit, row_bytes)
        model = apply(model, commit)
        touched = {change.place.path for change in commit} | {()}
        mapping.read(partial(assert_rows_are_sound, row_bytes=row_bytes))
        mapping.read(partial(assert_reads_like, model=model, interesting=touched))
    mapping.read(partial(assert_reads_like, model=model, interesting=set(every_path(model))))
    mapping.close()


@bounded
@given(commits=commits, row_bytes=st.sampled_from([20, 40, 100, 300]))
def test_rows_read_like_the_tree_that_was_written(commits: list[Commit], row_bytes: int) -> None:
    assert_writes_read_back(MemoryMapping(), commits, row_bytes)


@settings(bounded, max_examples=100)
@given(commits=commits, row_bytes=st.sampled_from([20, 40, 100, 300]))
def test_rows_in_a_file_read_like_the_tree_that_was_written(
    shelves: Iterator[File], commits: list[Commit], row_bytes: int
) -> None:
    mapping = SqliteMapping.create(next(shelves), reserve_bytes=0)
    assert_writes_read_back(mapping, commits, row_bytes)


def assert_spans_read_back(mapping: Mapping, commits: list[Commit], spans: list[Span]) -> None:
    model = None
    for commit in commits:
        write(mapping, commit, 40)
        model = apply(model, commit)
    mapping.read(partial(assert_spans_like, view=ValueView(model), spans=spans))
    mapping.close()


@bounded
@given(commits=commits, spans=st.lists(spans, min_size=1, max_size=8))
def test_a_span_gives_the_children_from_its_edge_on(
    commits: list[Commit], spans: list[Span]
) -> None:
    assert_spans_read_back(MemoryMapping(), commits, spans)


@settings(bounded, max_examples=100)
@given(commits=commits, spans=st.lists(spans, min_size=1, max_size=8))
def test_a_span_in_a_file_gives_the_children_from_its_edge_on(
    shelves: Iterator[File], commits: list[Commit], spans: list[Span]
) -> None:
    mapping = SqliteMapping.create(next(shelves), reserve_bytes=0)
    assert_spans_read_back(mapping, commits, spans)


@bounded
@given(commits=commits, limits=st.lists(st.sampled_from([20, 40, 100, 300]), min_size=1))
def test_the_limit_of_a_row_may_change_between_writes(
    commits: list[Commit], limits: list[int]
) -> None:
    mapping, model = MemoryMapping(), None
    for at, commit in enumerate(commits):
        write(mapping, commit, limits[at % len(limits)])
        model = apply(model, commit)
    mapping.read(partial(assert_reads_like, model=model, interesting=set(every_path(model))))
    assert mapping.read(verify) == []


@st.composite
def patches(draw: st.DrawFn) -> tuple[list[Commit], Commit]:
    """Make a history, and a PATCH whose members are many and meet."""
    alphabet = draw(st.sampled_from(ALPHABETS))
    keys = st.sampled_from(alphabet)
    names = st.lists(keys, min_size=1, max_size=3).map("/".join)
    members = names.flatmap(
        lambda name: (
            st.tuples(st.just(name), st.none() | leaves | bodies(keys))
            | st.tuples(st.just(f"{name}/.priority"), priorities | st.none())
        )
    )
    body: dict[str, Any] = {}
    for name, item in draw(st.lists(members, min_size=2, max_size=12)):
        with suppress(InvalidData):
            make_patch((), {**body, name: item})
            body[name] = item
    path = tuple(draw(st.lists(keys, max_size=2)))
    return draw(histories(alphabet)), make_patch(path, body).changes


@bounded
@given(patched=patches(), row_bytes=st.sampled_from([20, 40, 100, 300]))
def test_a_patch_leaves_the_rows_that_its_changes_leave_one_by_one(
    patched: tuple[list[Commit], Commit], row_bytes: int
) -> None:
    commits, changes = patched
    together, apart = MemoryMapping(), MemoryMapping()
    for mapping in (together, apart):
        for commit in commits:
            write(mapping, commit, row_bytes)
    write(together, changes, row_bytes)
    for change in changes:
        write(apart, (change,), row_bytes)
    rows = together.read(lambda rows: list(rows.scan(FIRST, END)))
    assert rows == apart.read(lambda rows: list(rows.scan(FIRST, END)))


@bounded
@given(commits=commits)
def test_what_removes_everything_leaves_no_row(commits: list[Commit]) -> None:
    mapping, model = MemoryMapping(), None
    for commit in commits:
        write(mapping, commit, 40)
        model = apply(model, commit)
    while model is not None:
        path = max(every_path(model), key=len)
        write(mapping, (Change(Place(path), None),), 40)
        model = apply(model, [Change(Place(path), None)])
        mapping.read(partial(assert_reads_like, model=model, interesting={()}))
    assert mapping.read(lambda rows: list(rows.scan(FIRST, END))) == []
