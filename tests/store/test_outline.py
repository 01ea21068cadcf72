"""What an outline knows of a container is what a reader of all of it counts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.examples import examples
from treedbd.store import outline as outline_module
from treedbd.store.memory import MemoryEngine
from treedbd.store.node_writer import NodeWriter
from treedbd.store.nodes import Nodes
from treedbd.store.outline import Budget, Outline
from treedbd.tree.edit import make_put
from treedbd.tree.types import InvalidData, Path, Place, Priority

PATH = ("list",)
LONG = "k" * 300
KEYS = [
    *("a", "b", "c", 'é"\\', "10", "2", "-1", "0", "1", "3", "01", "11111111111"),
    *(LONG, LONG + "1", LONG + "é" * 100, LONG + "é" * 100 + "a", "z" * 470, "z" * 768),
]
LEAVES: st.SearchStrategy[Any] = st.sampled_from([True, 1, -0.5, "", "s", 'é[{"1":', "x" * 70])
CHILDREN: st.SearchStrategy[Any] = (
    LEAVES
    | st.builds(lambda v, p: {".value": v, ".priority": p}, LEAVES, st.integers(0, 2))
    | st.dictionaries(st.sampled_from(["v", "w", "0", "1"]), LEAVES, min_size=1, max_size=3)
    | st.lists(LEAVES, min_size=1, max_size=4)
    | st.builds(lambda v: {"0": {"v": v, ".priority": 3}, "deep": ["t" * 40, "u" * 40]}, LEAVES)
)
BODIES = (
    st.dictionaries(st.sampled_from(KEYS), CHILDREN, min_size=2, max_size=14)
    | st.dictionaries(st.integers(0, 12).map(str), CHILDREN, min_size=2, max_size=9)
    | st.dictionaries(st.integers(0, 12).map(str), LEAVES, min_size=2, max_size=9)
)
WRITES = st.lists(st.tuples(st.sampled_from([*KEYS, "4", "5"]), CHILDREN | st.none()), max_size=6)


class Tree:
    """Rows with the container at `PATH`; each write has a number, which `sequence` returns."""

    def __init__(self, row_bytes: int) -> None:
        self.transaction = MemoryEngine().begin()
        self.row_bytes = row_bytes
        self.nodes = Nodes(self.transaction)

    def write(self, path: Path, value: Any) -> int:
        """Put a value; return the number of the write."""
        writer = NodeWriter(self.transaction, self.row_bytes)
        writer.apply(make_put(Place(path), value).changes)
        writer.flush()
        return self.transaction.append(b"", b"")

    @property
    def is_spread(self) -> bool:
        """Whether the container is spread."""
        return self.nodes.is_spread(PATH)


def find_nothing(_: Path) -> None:
    """Find no other outline."""


def run(steps: Iterator[None]) -> int:
    """Run all steps; return how many they were."""
    return sum(1 for _ in steps)


def count(tree: Tree, outline: Outline, budget: int = 1 << 40) -> None:
    """Count all of the container that is not known."""
    run(outline.renew(tree.nodes, find_nothing, Budget(budget)))
    run(outline.extend(tree.nodes, find_nothing, Budget(budget)))


def check_exact(tree: Tree, outline: Outline) -> None:
    """Compare an outline with the container."""
    keys = list(tree.nodes.keys(PATH))
    totals = outline.totals
    assert (totals.is_counted, totals.is_least, totals.is_about) == (True, False, False)
    assert totals.count == len(keys)
    if keys:
        assert totals.size == len(tree.nodes.print(PATH))
    assert [outline.key_at(tree.nodes, at) for at in range(len(keys) + 1)] == [*keys, None]
    assert [outline.position_of(tree.nodes, key) for key in keys] == list(range(len(keys)))


@settings(
    max_examples=examples(300),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    body=BODIES,
    priority=st.none() | st.integers(0, 3),
    row_bytes=st.sampled_from([30, 200]),
    grain=st.sampled_from([1, 600, 2000, 1 << 17]),
    most=st.sampled_from([2, 3, 4096]),
    writes=WRITES,
)
def test_an_outline_counts_what_a_get_prints(
    monkeypatch: pytest.MonkeyPatch,
    body: dict[str, Any],
    priority: Priority | None,
    row_bytes: int,
    grain: int,
    most: int,
    writes: list[tuple[str, Any]],
) -> None:
    monkeypatch.setattr(outline_module, "SEGMENT_BYTES", grain)
    monkeypatch.setattr(outline_module, "MAX_SEGMENTS", most)
    tree = Tree(row_bytes)
    for name in ("beside", "lis", "list0"):
        tree.write((name,), {"x": "y" * 60})
    tree.write(PATH, body if priority is None else {**body, ".priority": priority})
    if not tree.is_spread:
        return
    outline = Outline(PATH)
    count(tree, outline)
    check_exact(tree, outline)
    for key, value in writes:
        with suppress(InvalidData):
            outline.note(key, tree.write((*PATH, key), value))
        if not tree.is_spread:
            return
        count(tree, outline)
        check_exact(tree, outline)


@settings(max_examples=examples(100), deadline=None)
@given(body=BODIES, writes=WRITES, steps=st.lists(st.integers(0, 3), min_size=6, max_size=6))
def test_writes_while_it_is_counted_from_an_older_state_are_counted_afterwards(
    body: dict[str, Any], writes: list[tuple[str, Any]], steps: list[int]
) -> None:
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(outline_module, "SEGMENT_BYTES", 600)
        monkeypatch.setattr(outline_module, "_MAX_LATE", 2)
        engine = MemoryEngine()
        tree = Tree(30)
        tree.transaction = engine.begin()
        tree.write(PATH, body)
        tree.transaction.commit()
        engine.advance()
        held = engine.snapshot()
        old = Nodes(held)
        if not old.is_spread(PATH):
            return
        outline = Outline(PATH)
        counting = outline.extend(old, find_nothing, Budget(1 << 40))
        for (key, value), some in zip(writes, steps, strict=False):
            for _ in range(some):
                next(counting, None)
            tree.transaction = engine.begin()
            outline.note(key, tree.write((*PATH, key), value))
            tree.transaction.commit()
            engine.advance()
        run(counting)
        held.close()
        tree.nodes = Nodes(engine.snapshot())
        if tree.is_spread:
            count(tree, outline)
            check_exact(tree, outline)


class CountedRows:
    """A transaction that counts the stored rows that are read, and looked up."""

    def __init__(self, transaction: Any) -> None:
        self.read = 0
        self._transaction = transaction

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._transaction, name)

        def scan(*bounds: Any, **options: Any) -> Iterator[Any]:
            for row in method(*bounds, **options):
                self.read += 1
                yield row

        def call(*arguments: Any) -> Any:
            self.read += name in ("get", "floor")
            return method(*arguments)

        return scan if name.startswith("scan") else call


MANY = 50_000


@pytest.fixture(scope="module")
def large() -> Tree:
    """A container with many children, in about a thousand pages."""
    tree = Tree(4096)
    tree.write(PATH, {f"-N{at:06}": {"name": "x" * 50, "at": at} for at in range(MANY)})
    return tree


def test_each_step_reads_some_pages_and_a_kept_outline_some_more(large: Tree) -> None:
    rows = CountedRows(large.transaction)
    nodes = Nodes(rows)
    outline = Outline(PATH)
    steps = []
    for _ in outline.extend(nodes, find_nothing, Budget(1 << 40)):
        steps.append(rows.read)
        rows.read = 0
    assert len(steps) > 10
    assert max(steps) < 60  # pages of 4 KiB
    assert outline.totals.count == MANY
    assert outline.size < 20_000
    assert outline.key_at(nodes, MANY // 2) == f"-N{MANY // 2:06}"
    assert outline.position_of(nodes, f"-N{MANY - 2:06}") == MANY - 2
    assert rows.read < 120
    large.write((*PATH, "-N010000x"), {"new": True})
    outline.note("-N010000x", large.transaction.sequence())
    rows.read = 0
    run(outline.renew(nodes, find_nothing, Budget(1 << 40)))
    run(outline.extend(nodes, find_nothing, Budget(1 << 40)))
    assert rows.read < 60
    assert outline.totals.count == MANY + 1
    large.write((*PATH, "-N010000x"), None)


def test_counting_ends_with_the_budget_and_goes_on_with_the_next(large: Tree) -> None:
    outline = Outline(PATH)
    counts = [0]
    while outline.tail is not None:
        run(outline.extend(large.nodes, find_nothing, Budget(1_000_000)))
        counts.append(outline.totals.count)
        assert outline.totals.is_least == (outline.tail is not None)
    assert counts == sorted(set(counts))
    assert 3 < len(counts) < 10
    check_totals(large, outline)


def test_a_position_is_counted_up_to_whatever_the_budget(large: Tree) -> None:
    outline = Outline(PATH)
    run(outline.extend(large.nodes, find_nothing, Budget(0), position=MANY // 2))
    assert MANY // 2 < outline.totals.count < MANY
    assert outline.key_at(large.nodes, MANY // 2) == f"-N{MANY // 2:06}"
    assert outline.key_at(large.nodes, MANY - 1) is None
    assert outline.position_of(large.nodes, f"-N{MANY - 1:06}") is None


def test_a_large_child_is_counted_up_to_a_bound_and_further_with_a_larger_budget() -> None:
    tree = Tree(4096)
    for name in "abc":
        tree.write((*PATH, name), {f"k{at:05}": "y" * 50 for at in range(3000)})
    outline = Outline(PATH)
    count(tree, outline, 200_000)
    totals = outline.totals
    assert (totals.count, totals.is_counted, totals.is_least) == (3, True, True)
    assert totals.size < len(tree.nodes.print(PATH))
    count(tree, outline)
    check_exact(tree, outline)


def test_what_is_known_of_a_child_is_not_counted_again() -> None:
    tree = Tree(4096)
    for name in "abc":
        tree.write((*PATH, name), {f"k{at:05}": "y" * 50 for at in range(3000)})
    known: dict[Path, Outline] = {(*PATH, name): Outline((*PATH, name)) for name in "abc"}
    for each in known.values():
        count(tree, each)
    rows = CountedRows(tree.transaction)
    outline = Outline(PATH)
    run(outline.extend(Nodes(rows), known.get, Budget(1 << 40)))
    assert rows.read < 30
    check_exact(tree, outline)


def test_a_stale_segment_is_about_until_a_later_state_is_read() -> None:
    engine = MemoryEngine()
    tree = Tree(200)
    tree.transaction = engine.begin()
    tree.write(PATH, {f"k{at}": "y" * 50 for at in range(50)})
    tree.transaction.commit()
    engine.advance()
    held = engine.snapshot()
    tree.nodes = Nodes(held)
    outline = Outline(PATH)
    count(tree, outline)
    tree.transaction = engine.begin()
    outline.note("k7", tree.write((*PATH, "k7"), None))
    tree.transaction.commit()
    engine.advance()
    count(tree, outline)
    assert (outline.totals.count, outline.totals.is_about) == (50, True)
    tree.nodes = Nodes(engine.snapshot())
    count(tree, outline)
    check_exact(tree, outline)
    held.close()


def test_what_is_counted_in_an_older_state_than_it_notes_writes_from_is_counted_again() -> None:
    engine = MemoryEngine()
    tree = Tree(200)
    tree.transaction = engine.begin()
    tree.write(PATH, {f"k{at}": "y" * 50 for at in range(50)})
    tree.transaction.commit()
    engine.advance()
    held = engine.snapshot()
    tree.transaction = engine.begin()
    tree.write((*PATH, "k7"), None)
    tree.transaction.commit()
    engine.advance()
    outline = Outline(PATH)
    outline.since = 2
    tree.nodes = Nodes(held)
    count(tree, outline)
    assert (outline.totals.count, outline.totals.is_about) == (50, True)
    tree.nodes = Nodes(engine.snapshot())
    count(tree, outline)
    check_exact(tree, outline)
    held.close()


def check_totals(tree: Tree, outline: Outline) -> None:
    """Compare what an outline has counted with the container."""
    totals = outline.totals
    assert (totals.count, totals.size) == (MANY, len(tree.nodes.print(PATH)))
