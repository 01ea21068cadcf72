"""Snapshots read only what a rule needs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.rules.evaluating import view
from treedbd.limits import MAX_DEPTH, RulesLimits
from treedbd.loop import finish
from treedbd.rules.compile import CACHED_PATH, Snapshot, compile_rule, equal, split_path
from treedbd.rules.context import DEFAULT_CHARACTERS, Budget, Context, EvaluationError, Scope
from treedbd.rules.grammar import parse_expression
from treedbd.rules.typecheck import typecheck_rule
from treedbd.tree.types import Charge, Container, Json, Leaf, Path, Priority, Value, free


class RecordingView:
    """A view that records which methods are called for which paths."""

    def __init__(self, json: object) -> None:
        self.view = view(json)
        self.reads: list[tuple[str, Path]] = []

    def get(self, path: Path) -> Value:
        self.reads.append(("get", path))
        return self.view.get(path)

    def peek(self, path: Path, charge: Charge = free) -> Leaf | Container | None:
        self.reads.append(("peek", path))
        return self.view.peek(path, charge)

    def type_at(self, path: Path, charge: Charge = free) -> type[Leaf] | type[Container] | None:
        self.reads.append(("type_at", path))
        return self.view.type_at(path, charge)

    def size(self, path: Path, limit: int) -> int:
        self.reads.append(("size", path))
        return self.view.size(path, limit)

    def priority(self, path: Path, charge: Charge = free) -> Priority | None:
        self.reads.append(("priority", path))
        return self.view.priority(path, charge)

    def keys(self, path: Path) -> Iterator[str]:
        self.reads.append(("keys", path))
        return self.view.keys(path)


@pytest.fixture
def recording() -> RecordingView:
    return RecordingView({"a": {"b": 1}, "c": {"b": 1}})


def test_naming_a_node_reads_nothing(recording: RecordingView) -> None:
    Snapshot(recording, ()).child("a").child("b").parent().child("x/y")
    assert recording.reads == []


def test_methods_of_a_node_read_only_the_node(recording: RecordingView) -> None:
    node = Snapshot(recording, ("a",))
    assert node.exists()
    assert node.has_children()
    assert not node.is_string()
    assert not node.is_number()
    assert not node.is_boolean()
    assert node.val() is not None
    assert node.get_priority() is None
    assert {method for method, _ in recording.reads} == {"peek", "type_at", "priority"}
    assert {path for _, path in recording.reads} == {("a",)}


def test_a_container_is_read_when_it_is_compared_with_another(recording: RecordingView) -> None:
    scope = Scope(Context(None, 0, recording), recording, recording, Budget())
    one, other = Snapshot(recording, ("a",)).val(), Snapshot(recording, ("c",)).val()
    assert not equal(one, 1, scope)
    assert not equal(None, one, scope)
    assert all(method == "peek" for method, _ in recording.reads)
    assert equal(one, other, scope)
    assert ("get", ("a",)) in recording.reads
    assert ("get", ("c",)) in recording.reads


@pytest.mark.parametrize(
    "path", ["a.b", "a/b.c", "$a", "a\x00b", "a\x7f", "k" * 769, "é" * 400, "/".join("a" * 33)]
)
def test_an_invalid_path_is_never_passed_to_the_view(path: str, recording: RecordingView) -> None:
    node = Snapshot(recording, ()).child(path)
    assert not node.exists()
    assert node.val() is None
    assert node.get_priority() is None
    assert not node.has_children()
    assert not node.is_string()
    assert not node.child("a").exists()
    assert not Snapshot(recording, ()).has_child(path)
    assert recording.reads == []


def test_the_ancestors_of_an_absent_node_can_exist(recording: RecordingView) -> None:
    node = Snapshot(recording, ("a",)).child("b").child("x.y").child("z")
    assert not node.parent().exists()
    assert node.parent().parent().val() == 1
    deep = Snapshot(recording, ("a",) * MAX_DEPTH).child("b/c")
    assert deep.excess == 2
    assert deep.parent().parent().excess == 0


def test_the_parent_of_the_root_is_an_error(recording: RecordingView) -> None:
    with pytest.raises(EvaluationError):
        Snapshot(recording, ()).parent()


@pytest.mark.parametrize(
    ("path", "keys", "excess"),
    [
        ("", (), 0),
        ("/", (), 0),
        ("a", ("a",), 0),
        ("/a//b/", ("a", "b"), 0),
        ("a/b.c/d", ("a", "b.c", "d"), 2),
        ("..", ("..",), 1),
    ],
)
def test_a_slash_path_splits(path: str, keys: Path, excess: int) -> None:
    assert split_path(path) == (keys, excess)


def test_a_path_too_long_for_any_node_is_not_split() -> None:
    keys, excess = split_path("a/" * 100_000)
    assert len(keys) == 1
    node = Snapshot(view({"a": 1}), ("a",)).descend(keys, excess)
    assert not node.exists()
    assert not node.parent().exists()
    assert split_path("a" * 500 + "/" + "b" * 500) == (("a" * 500, "b" * 500), 0)


LONG_KEY = "k" * (CACHED_PATH + 1)
PLACE: Path = ("a", LONG_KEY, "b")
CAPTURES = {"$one": 0, "$long": 1, "$two": 2}
NAMED: Json = {
    "a": {LONG_KEY: {"b": {"s": "x", "n": 1, "a": {"b": {"t": True}}}}, "b": "leaf"},
    "s": 2,
}
DEEP = "/".join(["d"] * (MAX_DEPTH - 2))


def run(expression: str, place: Path = PLACE) -> tuple[object, int, list[tuple[str, Path]]]:
    """Return the result of a rule, the characters that it spends, and what it reads."""
    parsed = finish(parse_expression(expression, RulesLimits()))
    types = finish(typecheck_rule(parsed, CAPTURES, for_read=False))
    test = finish(compile_rule(parsed, types, CAPTURES))
    recording = RecordingView(NAMED)
    budget = Budget()
    scope = Scope(Context(None, 0, recording), recording, recording, budget)
    scope.path = place
    result = test(scope)
    return result, DEFAULT_CHARACTERS - budget.characters, recording.reads


@pytest.mark.parametrize("variable", ["root", "data", "newData"])
@pytest.mark.parametrize(
    "children",
    [
        "",
        ".child('s')",
        ".child('a/b')",
        ".child('')",
        ".child($one)",
        ".child($one).child($two)",
        ".child('a').child($long).child($two).child('n')",
        ".child($long)",
        ".child('a.b')",
        f".child('{DEEP}')",
        f".child('{DEEP}/d/d')",
        f".child('{DEEP}').child($one).child($two)",
        f".child('{DEEP}/d/d/d')",
    ],
)
@pytest.mark.parametrize(
    "method",
    [
        "val() == 'x'",
        "val() != null",
        "exists()",
        "isString()",
        "isNumber()",
        "isBoolean()",
        "hasChildren()",
        "hasChildren(['a', 's/t'])",
        "hasChildren(['a.b'])",
        "hasChildren(['d/d/d'])",
        "hasChild('a/b')",
        "hasChild($long)",
        f"hasChild('{LONG_KEY}')",
    ],
)
def test_a_node_named_at_once_is_the_one_that_is_reached_step_by_step(
    variable: str, children: str, method: str
) -> None:
    named = run(f"{variable}{children}.{method}")
    stepwise = run(f"{variable}{children}.child('q').parent().{method}")
    assert named == stepwise
    assert all(len(path) <= MAX_DEPTH for _, path in named[2])


def test_a_long_capture_costs_the_same_wherever_it_names_a_node() -> None:
    _, spent, _ = run("root.child($one).child($long).exists()")
    assert spent == 16 * len(LONG_KEY)
