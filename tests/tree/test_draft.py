from __future__ import annotations

import copy

from hypothesis import given
from hypothesis import strategies as st

from tests.tree.strategies import FEW_PATHS, PRIORITIES, VALUES
from treedbd.tree.edit import Draft, apply
from treedbd.tree.types import Change, Place, Value
from treedbd.tree.value import as_priority, compact

CHANGES = st.one_of(
    st.builds(lambda path, value: Change(Place(path), value), FEW_PATHS, VALUES),
    st.builds(lambda path: Change(Place(path), None), FEW_PATHS),
    st.builds(lambda path, to: Change(Place(path, True), to), FEW_PATHS, PRIORITIES | st.none()),
)


@given(VALUES, st.lists(CHANGES, max_size=8))
def test_a_draft_results_in_what_apply_returns(value: Value, changes: list[Change]) -> None:
    before = [compact(change.value) for change in changes]
    draft = Draft(copy.deepcopy(value))
    for change in changes:
        if change.place.is_priority:
            draft.set_priority(change.place.path, as_priority(change.value))
        else:
            draft.set(change.place.path, change.value)
    assert compact(draft.finish()) == compact(apply(value, changes))
    assert [compact(change.value) for change in changes] == before


def test_changes_in_a_container_are_made_in_place_and_it_is_sorted_once() -> None:
    value: dict[str, Value] = {"m": 1}
    draft = Draft(value)
    draft.set(("b",), 2)
    draft.set(("a",), 3)
    assert draft.finish() is value
    assert list(value) == ["a", "b", "m"]
