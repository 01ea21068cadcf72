"""The dependencies of a verdict: which paths it depends on, and which changes touch them."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.examples import examples
from tests.rules.evaluating import NOW, normal, rules, view
from tests.tree.value_view import ValueView
from treedbd.rules.context import Context, Dependencies, Recorder, WrittenPaths
from treedbd.rules.ruleset import RuleSet
from treedbd.tree.edit import apply
from treedbd.tree.types import Change, Json, Path, Place, Value

DATA = {"rooms": {"r": {"members": {"u": True}, "open": False}}, "admins": {"v": True}}
MEMBERS = rules(
    {
        "rooms": {
            "$r": {
                ".read": "auth != null && (data.child('members/' + auth.uid).val() == true"
                " || root.child('admins').hasChild(auth.uid))"
            }
        },
        "mine": {"$u": {".read": "auth.uid == $u"}},
        "late": {".read": "now > 5"},
        "lazy": {".read": "auth == null || data.exists()"},
    }
)


ONLY_AUTH = Dependencies(frozenset(), reads_time=False)


def record(rule_set: RuleSet, path: Path, uid: str | None) -> Dependencies:
    auth: Json = None if uid is None else {"uid": uid}
    verdict = rule_set.may_read(path, Context(auth, NOW, view(DATA)), record=True)
    assert verdict.dependencies is not None
    return verdict.dependencies


def test_the_paths_that_a_rule_reads_are_recorded() -> None:
    members = ("rooms", "r", "members")
    assert record(MEMBERS, ("rooms", "r"), "u").paths == {(*members, "u")}
    assert record(MEMBERS, ("rooms", "r"), "v").paths == {(*members, "v"), ("admins", "v")}


def test_what_is_not_evaluated_is_not_recorded() -> None:
    assert record(MEMBERS, ("rooms", "r"), None) == ONLY_AUTH
    assert record(MEMBERS, ("mine", "u"), "u") == ONLY_AUTH
    assert record(MEMBERS, ("lazy",), None) == ONLY_AUTH
    assert record(MEMBERS, ("lazy",), "u") != ONLY_AUTH
    assert record(MEMBERS, ("no", "rules"), "u") == ONLY_AUTH


def test_a_read_of_the_time_is_recorded() -> None:
    late = record(MEMBERS, ("late",), None)
    assert late == Dependencies(frozenset(), reads_time=True)
    assert not record(MEMBERS, ("rooms", "r"), "u").reads_time


def test_every_method_of_the_view_is_recorded() -> None:
    recorder = Recorder(view(DATA), set())
    assert list(recorder.keys(("rooms",))) == ["r"]
    assert recorder.get(("rooms", "r", "open")) is False
    assert recorder.priority(("admins",)) is None
    assert recorder.peek(("x",)) is None
    assert recorder.paths == {("rooms",), ("rooms", "r", "open"), ("admins",), ("x",)}


@pytest.mark.parametrize(
    ("changed", "touched"),
    [
        (("a", "b"), True),
        (("a",), True),
        ((), True),
        (("a", "b", "c", "d"), True),
        (("a", "c"), False),
        (("ab",), False),
        (("x",), True),
        (("x", "y"), True),
    ],
)
def test_a_change_at_above_or_below_touches(changed: Path, touched: bool) -> None:
    dependencies = Dependencies(frozenset({("a", "b"), ("x",)}), reads_time=False)
    assert dependencies.touched_by(WrittenPaths([changed])) is touched
    assert dependencies.touched_by(WrittenPaths([("z",), changed])) is touched


def test_no_change_touches_empty_dependencies() -> None:
    assert not Dependencies(frozenset(), reads_time=True).touched_by(WrittenPaths([(), ("a",)]))
    assert Dependencies(frozenset({()}), reads_time=False).touched_by(WrittenPaths([("a", "b")]))


KEYS = st.sampled_from(["a", "b", "c"])
PATHS = st.lists(KEYS, max_size=3).map(tuple)
TREES = st.recursive(
    st.sampled_from([1, "a", True, None]),
    lambda inner: st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=8,
).map(normal)
NODES = st.sampled_from(["data", "root", "data.parent()", "root.child('a/b')", "data.child('c')"])
TESTS = st.tuples(
    NODES,
    st.sampled_from(
        [
            ".exists()",
            ".hasChildren()",
            ".isString()",
            ".val() == root.child('b').val()",
            ".child('b').val() == 1",
            ".hasChildren(['a', 'b'])",
            ".hasChild(data.child('a').val())",
            ".getPriority() == null",
        ]
    ),
).map("".join)
RULES = st.lists(TESTS, min_size=1, max_size=3).flatmap(
    lambda tests: st.sampled_from([" && ", " || "]).map(lambda joint: joint.join(tests))
)


@settings(max_examples=examples(300))
@given(RULES, TREES, st.lists(st.tuples(PATHS, TREES), max_size=3))
def test_a_verdict_stays_the_same_until_its_dependencies_are_touched(
    rule: str, before: Value, edits: list[tuple[Path, Value]]
) -> None:
    rule_set = rules({"a": {".read": rule}})
    verdict = rule_set.may_read(("a",), Context(None, NOW, ValueView(before)), record=True)
    assert verdict.dependencies is not None
    changes = [Change(Place(path), value) for path, value in edits]
    after = ValueView(apply(before, changes))
    if not verdict.dependencies.touched_by(WrittenPaths(path for path, _ in edits)):
        again = rule_set.may_read(("a",), Context(None, NOW, after))
        assert again.allowed == verdict.allowed
