"""The canonical form in pieces is that of the whole value, however the value is stored."""

from __future__ import annotations

from itertools import islice
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from treedbd.store import nodes as canonical
from treedbd.store.engine import Row
from treedbd.store.memory import MemoryEngine
from treedbd.store.node_writer import NodeWriter
from treedbd.store.nodes import canonical_chunks, etag_in_steps
from treedbd.store.rows import PagedRows
from treedbd.tree.edit import make_put
from treedbd.tree.hashes import canonicalise, etag
from treedbd.tree.types import Json, Place
from treedbd.tree.value import plain

ROW_BYTES = 20
KEYS = st.text(st.sampled_from("0129abäz\uffee\U0001f600"), min_size=1, max_size=3)
LEAVES = st.booleans() | st.integers(-(10**6), 10**6) | st.floats(allow_nan=False) | st.text()
TREES: st.SearchStrategy[Any] = st.recursive(
    LEAVES.filter(lambda leaf: leaf not in (float("inf"), float("-inf"))),
    lambda values: (
        st.dictionaries(KEYS, values, min_size=1, max_size=12)
        | st.lists(values, min_size=1, max_size=12)
    ),
    max_leaves=40,
)


def stored(json: Json) -> NodeWriter:
    nodes = NodeWriter(MemoryEngine().begin(), ROW_BYTES)
    nodes.apply(make_put(Place(("at",)), json).changes)
    nodes.apply(make_put(Place(("beside",)), "x" * 100).changes)
    return nodes


@pytest.fixture(autouse=True, scope="module")
def few_at_once() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(canonical, "SORTED_AT_ONCE", 2)
        yield


@given(TREES)
@example({str(at): "x" * 9 for at in range(12)})
@example({str(at): "x" * 9 for at in range(0, 40, 3)})
@example({"a": {str(at): "x" * 9 for at in (0, 2, 11, 100)}, "b": 1})
@example({"\uffee": "x" * 20, "\U0001f600": "y" * 20, "a": "z" * 20})
@example(None)
def test_the_pieces_are_those_of_the_whole_value(json: Json) -> None:
    nodes = stored(json)
    shown = plain(nodes.get(("at",)))
    assert b"".join(canonical_chunks(nodes, ("at",))) == canonicalise(shown)
    *steps, tag = etag_in_steps(nodes, ("at",))
    assert set(steps) <= {None}
    assert tag == etag(shown)


def test_a_large_value_is_hashed_in_many_small_steps() -> None:
    nodes = stored({f"k{at}": {"name": "x" * 30, "at": at} for at in range(100)})
    chunks = list(canonical_chunks(nodes, ("at",)))
    assert len(chunks) > 200
    assert max(map(len, chunks)) < 100


@pytest.mark.parametrize("steps", [5, 15, None])
def test_keys_that_were_sorted_are_freed_beside_if_a_value_is_left_before_its_end(
    monkeypatch: pytest.MonkeyPatch, steps: int | None
) -> None:
    nodes = stored({str(at): "x" * 20 for at in range(0, 140, 7)})
    freed: list[int] = []
    monkeypatch.setattr(canonical, "free_beside", lambda runs: freed.append(len(runs)))
    chunks = canonical.etag_in_steps(nodes, ("at",))
    list(islice(chunks, steps))
    chunks.close()  # type: ignore[attr-defined]
    assert bool(sum(freed)) is (steps is not None)


def test_a_long_string_is_digested_in_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(canonical, "DIGESTED_AT_ONCE", 10)
    text = "\u00e9 " * 50
    *steps, tag = etag_in_steps(stored(text), ("at",))
    assert len(steps) >= len(text.encode()) / 10
    assert tag == etag(text)


@pytest.mark.parametrize("json", [{"a": 1}, "x", None])
def test_a_value_in_one_row_is_looked_up_once_for_its_tag(
    monkeypatch: pytest.MonkeyPatch, json: Json
) -> None:
    nodes, found = stored(json), []
    find = PagedRows.find

    def noted(rows: PagedRows, key: bytes) -> Row | None:
        found.append(key)
        return find(rows, key)

    monkeypatch.setattr(PagedRows, "find", noted)
    assert list(etag_in_steps(nodes, ("at",)))[-1] == etag(json)
    assert len(found) == 1
