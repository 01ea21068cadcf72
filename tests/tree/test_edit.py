from __future__ import annotations

import gc
from collections.abc import Callable
from functools import partial
from typing import Any

import attrs
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tests.tree.strategies import BODIES, FEW_PATHS, PRIORITIES, VALUES, normal
from tests.tree.test_normalise import assert_normal, nest
from tests.tree.value_view import ValueView
from treedbd.loop import in_steps
from treedbd.tree import edit
from treedbd.tree import value as printing
from treedbd.tree.edit import (
    DEFAULT_STRING_BYTES,
    Edit,
    Increment,
    Resolver,
    check_priority,
    make_patch,
    make_put,
    make_remove,
    normalise,
)
from treedbd.tree.path import is_at_or_above
from treedbd.tree.types import (
    Change,
    Charge,
    Container,
    InvalidData,
    Json,
    Leaf,
    Path,
    Place,
    Value,
    free,
)
from treedbd.tree.value import as_json, with_priority, without_priority

NOW = 1_700_000_000_123
STAMP: Json = {".sv": "timestamp"}
ADD_TWO: Json = {".sv": {"increment": 2}}


def after(root: Value, *edits: Edit) -> Value:
    """Return `root` with the edits applied, one after the other."""
    for one in edits:
        root = edit.apply(root, one.changes)
    return root


def put(path: Path, body: Json) -> Edit:
    return make_put(Place(path), body)


def put_priority(path: Path, body: Json) -> Edit:
    return make_put(Place(path, is_priority=True), body)


def value_at(root: Value, path: Path) -> Value:
    return ValueView(root).get(path)


def are_disjoint(one: Path, other: Path) -> bool:
    return not is_at_or_above(one, other) and not is_at_or_above(other, one)


@given(VALUES, FEW_PATHS, BODIES)
def test_a_value_that_was_put_is_read_back(root: Value, path: Path, body: Json) -> None:
    changed = after(root, put(path, body))
    assert value_at(changed, path) == normal(body)
    assert_normal(changed)


@given(VALUES, FEW_PATHS, FEW_PATHS, BODIES)
def test_a_put_changes_nothing_beside_its_place(
    root: Value, path: Path, other: Path, body: Json
) -> None:
    if are_disjoint(path, other):
        before = value_at(root, other)
        # A leaf on the way is replaced by a container; nothing was beside the new child in it.
        assert value_at(after(root, put(path, body)), other) == before


@given(VALUES, FEW_PATHS, BODIES)
def test_applying_an_edit_does_not_modify_the_value(root: Value, path: Path, body: Json) -> None:
    before = repr(root)
    after(root, put(path, body), make_remove(Place(path)), put_priority(path, 1))
    assert repr(root) == before


@given(VALUES, FEW_PATHS, BODIES, BODIES)
def test_the_last_put_wins(root: Value, path: Path, first: Json, last: Json) -> None:
    # Not true of removals: they keep a leaf on the way, and drop containers that become empty.
    assume(normal(first) is not None)
    assume(normal(last) is not None)
    assert after(root, put(path, first), put(path, last)) == after(root, put(path, last))


@given(VALUES, FEW_PATHS)
def test_putting_the_present_value_changes_nothing(root: Value, path: Path) -> None:
    changed = after(root, put(path, as_json(value_at(root, path))))
    assert printing.compact(changed) == printing.compact(root)


@given(VALUES, FEW_PATHS)
def test_a_removal_leaves_nothing_and_no_empty_container(root: Value, path: Path) -> None:
    changed = after(root, make_remove(Place(path)))
    assert value_at(changed, path) is None
    assert_normal(changed)
    assert changed == after(root, put(path, None)) == after(root, put(path, {"a": {"b": []}}))


@given(VALUES, FEW_PATHS, BODIES)
def test_removing_what_was_put_where_nothing_was_restores_the_tree(
    root: Value, path: Path, body: Json
) -> None:
    is_inside_leaf = any(
        value_at(root, path[:end]) is not None and not list(ValueView(root).keys(path[:end]))
        for end in range(len(path))
    )
    if value_at(root, path) is None and not is_inside_leaf:
        assert after(root, put(path, body), make_remove(Place(path))) == root


@given(VALUES, FEW_PATHS, st.dictionaries(FEW_PATHS, BODIES, max_size=4))
def test_a_patch_equals_the_puts_of_its_members(
    root: Value, path: Path, members: dict[Path, Json]
) -> None:
    paths = list(members)
    is_disjoint = all(
        are_disjoint(one, other) for at, one in enumerate(paths) for other in paths[at + 1 :]
    )
    body = {"/".join(below): item for below, item in members.items()}
    if not is_disjoint or () in members:
        with pytest.raises(InvalidData):
            make_patch(path, body)
        return
    puts = [put(path + below, item) for below, item in members.items()]
    removals_last = sorted(puts, key=lambda one: one.changes[0].value is None)
    patched = after(root, make_patch(path, body))
    assert patched == after(root, *removals_last)
    assert patched == after(root, make_patch(path, dict(reversed(body.items()))))
    assert_normal(patched)


@given(VALUES, FEW_PATHS, PRIORITIES | st.none())
def test_setting_a_priority_keeps_the_value(root: Value, path: Path, priority: Any) -> None:
    changed = after(root, put_priority(path, priority))
    assert_normal(changed)
    assert without_priority(value_at(changed, path)) == without_priority(value_at(root, path))
    expected = normal({".value": 1, ".priority": priority})
    if value_at(root, path) is None:
        assert changed == root
    else:
        assert ValueView(changed).priority(path) == ValueView(expected).priority(())


@pytest.mark.parametrize(
    ("root", "path", "body", "changed"),
    [
        (None, (), None, None),
        (None, ("a", "b"), 1, {"a": {"b": 1}}),
        (None, ("a", "b"), None, None),
        ({"a": {"b": 1}}, ("a", "b"), None, None),
        ({"a": {"b": {"c": 1}}, "d": 1}, ("a", "b", "c"), None, {"d": 1}),
        ({"a": 1}, ("a", "b"), 2, {"a": {"b": 2}}),
        ({"a": 1}, ("a", "b"), None, {"a": 1}),
        (5, ("a",), 1, {"a": 1}),
        (5, ("a",), None, 5),
        ({"b": 1, "c": 2}, ("a",), 0, {"a": 0, "b": 1, "c": 2}),
        ({"10": 1}, ("9",), 0, {"9": 0, "10": 1}),
        ({"a": {"b": 1, "c": 2}}, ("a",), {"d": 3}, {"a": {"d": 3}}),
        ({"a": 1}, (), "x", "x"),
        ({"0": 1, "1": 2}, ("0",), None, {"1": 2}),
    ],
)
def test_a_put_replaces_what_is_at_its_place(
    root: Value, path: Path, body: Json, changed: Value
) -> None:
    assert printing.compact(after(root, put(path, body))) == printing.compact(changed)


@pytest.mark.parametrize(
    ("root", "change", "changed"),
    [
        ({".priority": 1, "a": 2}, put((), {"a": 3}), {"a": 3}),
        ({".value": 2, ".priority": 1}, put((), 3), 3),
        ({".priority": 1, "a": 2}, put(("b",), 3), {".priority": 1, "a": 2, "b": 3}),
        ({".priority": 1, "a": 2}, put(("a",), None), None),
        ({".priority": 1, "a": 2, "b": 3}, put(("a",), None), {".priority": 1, "b": 3}),
        ({".value": 2, ".priority": 1}, put(("a",), 3), {".priority": 1, "a": 3}),
        ({".value": 2, ".priority": 1}, put(("a",), None), {".value": 2, ".priority": 1}),
        ({"a": 2}, put_priority((), 1), {".priority": 1, "a": 2}),
        ({"a": 2}, put_priority(("a",), "x"), {"a": {".value": 2, ".priority": "x"}}),
        ({"a": 2}, put_priority(("b",), "x"), {"a": 2}),
        ({"a": 2}, put_priority(("a", "b"), "x"), {"a": 2}),
        (None, put_priority((), 1), None),
        ({".priority": 1, "a": 2}, put_priority((), None), {"a": 2}),
        ({"a": {".value": 2, ".priority": 1}}, put_priority(("a",), None), {"a": 2}),
        ({".priority": 1, "a": 2}, make_patch((), {"b": 3}), {".priority": 1, "a": 2, "b": 3}),
        ({"a": 2}, make_patch((), {".priority": 4}), {".priority": 4, "a": 2}),
        ({"a": 2}, make_patch((), {".priority": 4, "a": None}), None),
        (None, make_patch((), {".priority": 4, "a": 2}), {".priority": 4, "a": 2}),
        (None, make_patch((), {".priority": 4}), None),
        ({"a": 2}, make_patch((), {"a/.priority": 4}), {"a": {".value": 2, ".priority": 4}}),
        ({".priority": 1, "a": 2}, make_patch((), {".priority": None}), {"a": 2}),
        (
            {".priority": 1, "a": {"b": 2}},
            make_patch(("a",), {"b": 3}),
            {".priority": 1, "a": {"b": 3}},
        ),
    ],
)
def test_a_put_drops_the_priority_and_a_patch_of_children_keeps_it(
    root: Value, change: Edit, changed: Value
) -> None:
    assert printing.compact(after(root, change)) == printing.compact(changed)


@pytest.mark.parametrize("body", [{"a/b": None, "a/c": 1}, {"a/c": 1, "a/b": None}])
def test_a_patch_that_replaces_all_children_keeps_the_priority(body: Json) -> None:
    root: Value = {"a": {".priority": 1, "b": 2}}
    assert after(root, make_patch((), body)) == {"a": {".priority": 1, "c": 1}}


@pytest.mark.parametrize(
    "keys",
    [
        ("a", "a/b"),
        ("a/b", "a"),
        ("a", "/a"),
        ("a", "a/"),
        ("a//b", "a/b"),
        ("a/b", "a/b/c/d"),
        ("a", "a/.priority"),
        (".priority", "/.priority"),
        ("a", "a-b", "a/b"),
        ("a!", "a", "a/b"),
    ],
)
def test_two_keys_of_a_patch_that_overlap_are_refused(keys: tuple[str, ...]) -> None:
    with pytest.raises(InvalidData, match="overlap"):
        make_patch(("x",), dict.fromkeys(keys, 1))


def test_keys_with_a_common_prefix_do_not_overlap() -> None:
    body: Json = {"a": 1, "ab": 2, "a-b": 3, "b/a": 4, "b/ab": 5, ".priority": 6}
    assert after(None, make_patch((), body)) == {
        ".priority": 6,
        "a": 1,
        "a-b": 3,
        "ab": 2,
        "b": {"a": 4, "ab": 5},
    }


@pytest.mark.parametrize("names", [("b", "a/c", "/d"), ("b", "a", "a/.priority/x", "c")])
def test_the_same_names_again_name_places_below_another_node(names: tuple[str, ...]) -> None:
    def changes(path: Path, body: Json) -> object:
        try:
            return make_patch(path, body).changes
        except InvalidData as error:
            return str(error)

    for path in ((), ("x",), ("y", "z"), ("k",) * 32):
        for removed in (None, *names):
            body: Json = {name: None if name == removed else 1 for name in names}
            again = changes(path, body)
            edit._known_members.cache_clear()
            assert changes(path, body) == again


def test_a_priority_and_removals_come_last_among_known_names() -> None:
    for _ in range(2):
        patched = make_patch((), {"c/.priority": 1, "b": 2, "a": None})
        assert [change.place for change in patched.changes] == [
            Place(("b",)),
            Place(("a",)),
            Place(("c",), is_priority=True),
        ]


def test_known_names_are_too_deep_below_a_deep_node() -> None:
    body: Json = {"a/b": 1}
    assert make_patch(("k",) * 30, body).changes[0].place.path[30:] == ("a", "b")
    with pytest.raises(InvalidData, match="deeper than 32"):
        make_patch(("k",) * 31, body)


def test_only_a_few_short_names_are_remembered() -> None:
    edit._known_members.cache_clear()
    make_patch((), {str(at): at for at in range(17)})
    make_patch((), {"k" * 513: 1})
    assert edit._known_members.cache_info().currsize == 0


@pytest.mark.parametrize("key", ["", "/", "a.b", ".value", "a/.value", "$a", "a//#", "k" * 769])
def test_an_illegal_key_of_a_patch_is_refused(key: str) -> None:
    with pytest.raises(InvalidData):
        make_patch((), {key: 1})


@pytest.mark.parametrize("body", [1, "x", True, [], [1]])
def test_the_body_of_a_patch_must_be_an_object_or_null(body: Json) -> None:
    with pytest.raises(InvalidData, match="must be an object"):
        make_patch((), body)


def test_a_patch_with_null_removes_the_node() -> None:
    assert make_patch(("a",), None) == make_remove(Place(("a",)))


def test_an_empty_patch_changes_nothing() -> None:
    empty = make_patch(("a",), {})
    assert (empty.method, empty.changes) == ("patch", ())


def test_an_edit_holds_what_was_sent_and_its_changes() -> None:
    body: Json = {".priority": 2, "/a/b": [1.0], "c": {}}
    made = make_patch(("x",), body)
    assert made == Edit(
        "patch",
        Place(("x",)),
        body,
        (
            Change(Place(("x", "a", "b")), {"0": 1}),
            Change(Place(("x", "c")), None),
            Change(Place(("x",), is_priority=True), 2),
        ),
    )


@pytest.mark.parametrize(
    ("sent", "printed"),
    [
        (1.0, "1"),
        (1e2, "100"),
        (12345678901234567890, "12345678901234567000"),
        (-9223372036854775809, "-9223372036854776000"),
        ({"b": [1.5, {"c": -0.0}, True]}, '{"b":[1.5,{"c":0},true]}'),
    ],
)
def test_numbers_in_sent_are_as_the_tree_stores_them(sent: Json, printed: str) -> None:
    for key in ("a", "a/.priority") if isinstance(sent, int | float) else ("a",):
        change = make_patch((), {key: sent, "z": 1})
        assert printing.compact(change.sent) == f'{{"{key}":{printed},"z":1}}'.encode()


def test_no_edit_writes_deeper_than_32_keys() -> None:
    path = ("p",) * 20
    assert after(None, make_patch(path, {"/".join("k" * 12): 1}))
    assert after(None, make_patch(path, {"/".join("k" * 6): nest(6, 1)}))
    bodies: list[Json] = [
        {"/".join("k" * 13): 1},
        {"/".join("k" * 13): None},
        {"/".join("k" * 13) + "/.priority": 1},
        {"/".join("k" * 6): nest(7, 1)},
        {"/".join("k" * 12): [1]},
    ]
    for body in bodies:
        with pytest.raises(InvalidData, match="deeper than 32"):
            make_patch(path, body)
    with pytest.raises(InvalidData, match="deeper than 32"):
        put((*path, *path), 1)


def test_strings_of_every_edit_are_limited() -> None:
    for place in (Place(()), Place((), is_priority=True)):
        with pytest.raises(InvalidData, match="longer than 4 bytes"):
            make_put(place, "12345", 4)
    for key in ("a", ".priority"):
        with pytest.raises(InvalidData, match="longer than 4 bytes"):
            make_patch((), {key: "12345"}, 4)


def test_resolving_does_not_check_the_length_of_strings_again() -> None:
    long = "x" * (DEFAULT_STRING_BYTES + 1)
    body: Json = {"s": long, "t": STAMP}
    for change in (
        make_put(Place(("a",)), body, len(long)),
        make_patch(("a",), body, len(long)),
    ):
        resolved = edit.resolve(change, NOW, ValueView(None))
        assert after(None, resolved) == {"a": {"s": long, "t": NOW}}
        assert edit.echo_without_reading(change, NOW) == {"s": long, "t": NOW}


@pytest.mark.parametrize("body", [True, {}, {"a": 1}, [1]])
def test_only_a_priority_can_be_put_at_a_priority(body: Json) -> None:
    with pytest.raises(InvalidData, match="priority"):
        put_priority(("a",), body)


@pytest.mark.parametrize(
    ("root", "change", "changed", "sent"),
    [
        (None, put(("a",), STAMP), {"a": NOW}, NOW),
        ({"a": 1}, put(("a",), ADD_TWO), {"a": 3}, 3),
        ({"a": "x"}, put(("a",), ADD_TWO), {"a": 2}, 2),
        ({"a": {"b": 1}}, put((), {"a": {"b": ADD_TWO}}), {"a": {"b": 3}}, {"a": {"b": 3}}),
        ({"a": 1}, put_priority(("a",), STAMP), {"a": {".value": 1, ".priority": NOW}}, NOW),
        (
            {"a": {".value": 1, ".priority": 5}},
            put_priority(("a",), ADD_TWO),
            {"a": {".value": 1, ".priority": 7}},
            7,
        ),
        (
            {"a": {"b": 1}},
            make_patch(("a",), {"b": ADD_TWO, "c/d": STAMP, ".priority": ADD_TWO}),
            {"a": {".priority": 2, "b": 3, "c": {"d": NOW}}},
            {"b": 3, "c/d": NOW, ".priority": 2},
        ),
        ({"a": 1}, put(("a",), 5), {"a": 5}, 5),
    ],
)
def test_server_values_are_resolved_against_the_tree_before_the_edit(
    root: Value, change: Edit, changed: Value, sent: Json
) -> None:
    resolved = edit.resolve(change, NOW, ValueView(root))
    assert after(root, resolved) == changed
    assert resolved.sent == sent
    assert not resolved.has_placeholders


def test_a_patch_with_server_values_is_normalised_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Resolving it, and making its echo, use the normal form that `make_patch` made."""
    body: dict[str, Json]
    body = {"a": ADD_TWO, "b/c": [1.0, {"at": STAMP}], "d": {"e": 1}, ".priority": STAMP}
    normalised: list[Json] = []

    def recording(check: Callable[..., Any]) -> Callable[..., Any]:
        def record(json: Json, *options: int) -> Any:
            normalised.append(json)
            return check(json, *options)

        return record

    monkeypatch.setattr(edit, "normalise", recording(normalise))
    monkeypatch.setattr(edit, "check_priority", recording(check_priority))
    change = make_patch((), body)
    resolved = edit.resolve(change, NOW, ValueView({"a": 1}))
    assert edit.echo_without_reading(change, NOW) != resolved.sent
    assert resolved.sent == {"a": 3, "b/c": [1, {"at": NOW}], "d": {"e": 1}, ".priority": NOW}
    assert normalised == list(body.values())


def test_an_increment_out_of_range_is_refused() -> None:
    change = put((), {".sv": {"increment": 1.7e308}})
    with pytest.raises(InvalidData, match="out of range"):
        edit.resolve(change, NOW, ValueView(1.7e308))


@given(VALUES, PRIORITIES)
def test_a_priority_written_with_the_value_equals_one_written_after_it(
    node: Value, priority: Any
) -> None:
    bare = without_priority(node)
    at_once = after(None, put(("a",), as_json(with_priority(bare, priority))))
    one_by_one = after(None, put(("a",), as_json(bare)), put_priority(("a",), priority))
    assert at_once == one_by_one


@given(
    VALUES,
    st.dictionaries(FEW_PATHS, BODIES | st.none(), max_size=4),
    st.dictionaries(FEW_PATHS, PRIORITIES | st.none(), min_size=1, max_size=3),
)
def test_a_lone_priority_is_that_of_what_is_not_there_before_or_after(
    root: Value, values: dict[Path, Json], priorities: dict[Path, Json]
) -> None:
    body = {"/".join(path): value for path, value in values.items() if path}
    body |= {"/".join((*path, ".priority")): value for path, value in priorities.items()}
    try:
        patch = make_patch((), body)
    except InvalidData:
        assume(False)
    written = after(root, patch)
    lone = [
        path
        for path, priority in priorities.items()
        if priority is not None and value_at(root, path) is None and value_at(written, path) is None
    ]
    found = edit.find_lone_priority(patch, ValueView(root))
    assert (found in lone) if lone else (found is None)


def test_a_priority_that_is_put_is_alone_where_nothing_is() -> None:
    view = ValueView(normal({"a": {"b": 1}}))
    assert edit.find_lone_priority(put_priority(("a", "c"), 1), view) == ("a", "c")
    assert edit.find_lone_priority(put_priority(("a", "b"), 1), view) is None
    assert edit.find_lone_priority(put_priority(("a", "c"), None), view) is None
    assert edit.find_lone_priority(put_priority((), 1), ValueView(None)) == ()


class CountingView(ValueView):
    """A view that counts what is read of it."""

    reads = 0

    def peek(self, path: Path, charge: Charge = free) -> Leaf | Container | None:
        """Count, and read."""
        self.reads += 1
        return super().peek(path, charge)


def most_reads_in_a_step(view: CountingView, work: Callable[[], object]) -> int:
    """Return how often a view is read in one step of work, at most."""
    most = before = 0
    for _ in in_steps(work):
        most = max(most, view.reads - before)
        before = view.reads
    return max(most, view.reads - before)


def test_a_look_for_lone_priorities_ends_its_step_after_some_however_many_there_are() -> None:
    count = 5000
    body: dict[str, Json] = {f"a{at}/.priority": 1 for at in range(count)}
    changes = [
        *(Change(Place((f"a{at}",), is_priority=True), 1) for at in range(count)),
        *(Change(Place((f"a{at}", "b")), 1) for at in range(count)),
    ]
    view = CountingView(None)
    patch = Edit("patch", Place(()), body, tuple(changes))
    assert most_reads_in_a_step(view, lambda: edit.find_lone_priority(patch, view)) <= 64
    assert view.reads == count
    lone = attrs.evolve(patch, changes=tuple(changes[:-1]))
    assert edit.find_lone_priority(lone, view) == (f"a{count - 1}",)


def test_increments_end_their_step_one_by_one_if_they_take_long() -> None:
    view = CountingView(None)
    for body in ({f"k{at}": ADD_TWO for at in range(900)}, {"k": [ADD_TWO] * 900}):
        view.reads = 0
        patch = make_patch((), dict(body))
        assert most_reads_in_a_step(view, partial(edit.resolve, patch, NOW, view)) == 1
        assert view.reads == 900


def test_what_is_kept_of_increments_is_nothing_to_the_garbage_collector() -> None:
    view = ValueView(None)
    resolver = Resolver(NOW, view)
    for at in range(1000):
        resolver.resolve_value(Increment(at), ("k", str(at)))
    gc.collect()
    assert [
        each for each in gc.get_objects() if isinstance(each, tuple) and each[:1] == ("k",)
    ] == []
