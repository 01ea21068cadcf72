"""Snapshots read what a rule names and no more."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.rules.asking import view
from treedbd.rules.evaluation import Context, EvaluationError, Scope
from treedbd.rules.operators import equal
from treedbd.rules.snapshot import Snapshot, split_path
from treedbd.tree.path import MAX_DEPTH, Path
from treedbd.tree.value import Container, Leaf, Priority, Value


class Watched:
    """A view that keeps the questions it is asked."""

    def __init__(self, json: object) -> None:
        self.view = view(json)
        self.asked: list[tuple[str, Path]] = []

    def get(self, path: Path) -> Value:
        self.asked.append(("get", path))
        return self.view.get(path)

    def peek(self, path: Path) -> Leaf | Container | None:
        self.asked.append(("peek", path))
        return self.view.peek(path)

    def size(self, path: Path, most: int) -> int:
        self.asked.append(("size", path))
        return self.view.size(path, most)

    def priority(self, path: Path) -> Priority | None:
        self.asked.append(("priority", path))
        return self.view.priority(path)

    def keys(self, path: Path) -> Iterator[str]:
        self.asked.append(("keys", path))
        return self.view.keys(path)


@pytest.fixture
def watched() -> Watched:
    return Watched({"a": {"b": 1}, "c": {"b": 1}})


def test_to_name_a_node_reads_nothing(watched: Watched) -> None:
    Snapshot(watched, ()).child("a").child("b").parent().child("x/y")
    assert watched.asked == []


def test_questions_about_a_node_read_the_node_alone(watched: Watched) -> None:
    node = Snapshot(watched, ("a",))
    assert node.exists()
    assert node.has_children()
    assert not node.is_string()
    assert not node.is_number()
    assert not node.is_boolean()
    assert node.val() is not None
    assert node.get_priority() is None
    assert {kind for kind, _ in watched.asked} == {"peek", "priority"}
    assert {path for _, path in watched.asked} == {("a",)}


def test_a_container_is_read_when_it_is_compared_with_another(watched: Watched) -> None:
    scope = Scope(Context(None, 0, watched), watched, watched)
    one, other = Snapshot(watched, ("a",)).val(), Snapshot(watched, ("c",)).val()
    assert not equal(one, 1, scope)
    assert not equal(None, one, scope)
    assert all(kind == "peek" for kind, _ in watched.asked)
    assert equal(one, other, scope)
    assert ("get", ("a",)) in watched.asked
    assert ("get", ("c",)) in watched.asked


@pytest.mark.parametrize(
    "path", ["a.b", "a/b.c", "$a", "a\x00b", "a\x7f", "k" * 769, "é" * 400, "/".join("a" * 33)]
)
def test_a_view_is_never_asked_for_a_path_that_cannot_be(path: str, watched: Watched) -> None:
    node = Snapshot(watched, ()).child(path)
    assert not node.exists()
    assert node.val() is None
    assert node.get_priority() is None
    assert not node.has_children()
    assert not node.is_string()
    assert not node.child("a").exists()
    assert not Snapshot(watched, ()).has_child(path)
    assert watched.asked == []


def test_the_way_back_from_an_absent_node_leads_to_real_ones(watched: Watched) -> None:
    node = Snapshot(watched, ("a",)).child("b").child("x.y").child("z")
    assert not node.parent().exists()
    assert node.parent().parent().val() == 1
    deep = Snapshot(watched, ("a",) * MAX_DEPTH).child("b/c")
    assert deep.beyond == 2
    assert deep.parent().parent().beyond == 0


def test_above_the_root_is_an_error(watched: Watched) -> None:
    with pytest.raises(EvaluationError):
        Snapshot(watched, ()).parent()


@pytest.mark.parametrize(
    ("path", "keys", "beyond"),
    [
        ("", (), 0),
        ("/", (), 0),
        ("a", ("a",), 0),
        ("/a//b/", ("a", "b"), 0),
        ("a/b.c/d", ("a", "b.c", "d"), 2),
        ("..", ("..",), 1),
    ],
)
def test_a_slash_path_splits(path: str, keys: Path, beyond: int) -> None:
    assert split_path(path) == (keys, beyond)


def test_a_path_too_long_for_any_node_is_not_even_split() -> None:
    assert split_path("a/" * 100_000)[1] == 1
    assert split_path("a" * 500 + "/" + "b" * 500) == (("a" * 500, "b" * 500), 0)
