"""Hypothesis strategies for keys, paths, JSON bodies and values in normal form."""

from __future__ import annotations

from typing import Any, cast

from hypothesis import strategies as st

from treedbd.tree.edit import normalise
from treedbd.tree.types import Value

LEGAL = st.characters(
    exclude_categories=["Cs"],
    exclude_characters=[*map(chr, range(0x20)), "\x7f", *".#$[]/"],
)
NEAR_INTEGERS = st.sampled_from(
    ["0", "-0", "00", "01", "-1", "+1", " 1", "1 ", "1e3", "٣", "-", "--1", "9", "10", "100"]
    + ["001", "-00", "000", "-01", "010", "0000000001", "00000000001", "000000000001", "-000000001"]
    + [str(edge + step) for edge in (-(2**31), 2**31, 10**10) for step in (-1, 0, 1)]
    + ["02147483647", "02147483648", "-0000000001", "-00000000001"]
)
PADDED_INTEGERS = st.builds(
    lambda number, width: f"{number:0{width}d}", st.integers(-15, 15), st.integers(1, 12)
)
KEYS = st.one_of(
    st.text(LEGAL, min_size=1, max_size=6),
    st.integers(-(2**33), 2**33).map(str),
    st.integers(0, 12).map(str),
    PADDED_INTEGERS,
    NEAR_INTEGERS,
)
PATHS = st.lists(KEYS, max_size=4).map(tuple)

FEW_KEYS = st.sampled_from(["0", "1", "2", "01", "-3", "a", "b", "é", "\U0001f600", "\ufb33"])
"""So few that two paths of them often share keys."""
FEW_PATHS = st.lists(FEW_KEYS, max_size=4).map(tuple)

NUMBERS = st.one_of(
    st.integers(-(2**63), 2**63 - 1),
    st.integers(-5, 5),
    st.floats(allow_nan=False, allow_infinity=False),
)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
LEAVES = st.one_of(TEXTS, NUMBERS, st.booleans())
PRIORITIES = st.one_of(NUMBERS, TEXTS)


def normal(json: Any) -> Value:
    """Return JSON without server values in normal form."""
    return cast(Value, normalise(json).value)


def _with_priority(pair: tuple[Any, Any]) -> Any:
    body, priority = pair
    if isinstance(body, dict):
        return {**body, ".priority": priority} if ".value" not in body else body
    return {".value": body, ".priority": priority} if not isinstance(body, list) else body


def _containers(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(
        st.dictionaries(FEW_KEYS | KEYS, inner, max_size=5),
        st.lists(inner, max_size=4),
        st.tuples(inner, PRIORITIES).map(_with_priority),
    )


PLAIN_BODIES = st.recursive(
    st.none() | LEAVES,
    lambda inner: st.dictionaries(FEW_KEYS | KEYS, inner, max_size=5) | st.lists(inner, max_size=4),
    max_leaves=12,
)
"""JSON without priorities."""
BODIES = st.recursive(st.none() | LEAVES, _containers, max_leaves=12)
"""JSON as it may be written, without server values."""
VALUES = BODIES.map(normal)
"""Values in normal form."""
