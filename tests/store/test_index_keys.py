"""The keys of index entries: they sort as a query sorts, and say what they were made of."""

from __future__ import annotations

from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.examples import examples
from treedbd.store.indexes import ChildIndex, Entry, decode_entry, encode_entry
from treedbd.store.rows import ROW_KEY_BYTES
from treedbd.tree.path import rank_key, rank_value
from treedbd.tree.query import BY_PRIORITY, BY_VALUE, Order
from treedbd.tree.types import CONTAINER

TEXTS = st.characters(codec="utf-8")
KEYS = st.one_of(
    st.text(st.characters(min_codepoint=33, exclude_characters=".#$[]/\x7f"), min_size=1)
    .filter(lambda key: key.isprintable())
    .map(lambda key: key * 3),
    st.text("ab", min_size=90, max_size=110),
    st.integers(-(2**32), 2**32).map(str),
)
VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(TEXTS, max_size=140),
    st.sampled_from("\x00b").map(lambda end: "a" * 97 + end),
    st.just(CONTAINER),
)
INDEX = ChildIndex(("users", None), Order("child", ("age",)))
COLLECTION = INDEX.collection(("users", "ada")) or b""


def decoded(value: object, key: str) -> tuple[bytes, Entry]:
    encoded, content = encode_entry(COLLECTION, value, key)
    return encoded, decode_entry(COLLECTION, encoded, content)


@given(VALUES, KEYS)
def test_an_entry_says_which_child_it_is_of_and_its_rank(value: object, key: str) -> None:
    encoded, entry = decoded(value, key)
    assert len(encoded) <= ROW_KEY_BYTES
    assert entry.child == key
    assert entry.rank in (None, rank_value(value))
    assert (entry.rank is None) <= entry.is_cut


@settings(max_examples=examples(300))
@given(VALUES, KEYS, VALUES, KEYS)
@example("a" * 97, "k", "a" * 97 + "\x00", "k")
@example("a" * 99 + "b", "k", "a" * 99 + "c", "j")
def test_entries_sort_by_rank_then_key_unless_they_tie(
    one: object, one_key: str, other: object, other_key: str
) -> None:
    first, first_entry = decoded(one, one_key)
    second, second_entry = decoded(other, other_key)
    positions = [(rank_value(one), rank_key(one_key)), (rank_value(other), rank_key(other_key))]
    tie = max(first_entry.tie, second_entry.tie)
    if first[:tie] == second[:tie] and first != second:
        assert first_entry.is_cut or second_entry.is_cut
    else:
        assert (first < second) == (positions[0] < positions[1])


def test_the_entries_of_a_collection_are_below_its_path_in_the_index_alone() -> None:
    encoded, _ = encode_entry(COLLECTION, 36, "x")
    low, high = INDEX.below(("users",))
    assert low < encoded < high
    low, high = INDEX.below(("users", "ad"))
    assert not low <= encoded < high
    low, high = ChildIndex(("users", None), BY_VALUE).range
    assert not low <= encoded < high


def test_an_index_matches_the_paths_of_its_pattern() -> None:
    assert INDEX.matches(("users", "ada"))
    assert not INDEX.matches(("groups", "ada"))
    assert not INDEX.matches(("users",))


def test_indexes_are_called_as_rules_call_them() -> None:
    orders = [Order("child", ("a", "b")), BY_VALUE, BY_PRIORITY]
    assert [ChildIndex((), order).name for order in orders] == ["a/b", ".value", "$priority"]


def test_a_collection_with_too_long_a_path_has_no_entries() -> None:
    assert INDEX.collection(("users", "a" * 300)) is None
