from __future__ import annotations

from typing import Any

import pytest

from tests.tree.value_view import ValueView
from treedbd.tree.types import CONTAINER, Path

TREE: dict[str, Any] = {
    ".priority": "top",
    "a": {"b": 1, "c": {".value": "x", ".priority": 2}},
    "f": False,
}


@pytest.mark.parametrize(
    ("path", "whole", "leaf", "priority", "keys"),
    [
        ((), TREE, CONTAINER, "top", ["a", "f"]),
        (("a",), TREE["a"], CONTAINER, None, ["b", "c"]),
        (("a", "b"), 1, 1, None, []),
        (("a", "c"), {".value": "x", ".priority": 2}, "x", 2, []),
        (("f",), False, False, None, []),
        (("f", "g"), None, None, None, []),
        (("a", "c", "d"), None, None, None, []),
        (("z",), None, None, None, []),
        (("z", "y"), None, None, None, []),
    ],
)
def test_any_path_of_a_value_can_be_read(
    path: Path, whole: Any, leaf: Any, priority: Any, keys: list[str]
) -> None:
    view = ValueView(TREE)
    assert view.get(path) == whole
    assert view.peek(path) == leaf
    assert view.priority(path) == priority
    assert list(view.keys(path)) == keys


def test_every_read_of_an_empty_tree_returns_nothing() -> None:
    view = ValueView(None)
    assert view.get(()) is None
    assert view.peek(("a",)) is None
    assert view.priority(()) is None
    assert list(view.keys(())) == []
