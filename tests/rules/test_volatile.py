"""`.volatile` in rules: what it says, what it cannot say, and how values divide at it."""

from __future__ import annotations

import pytest

from treedbd.rules.document import InvalidRules
from treedbd.rules.ruleset import parse_rules
from treedbd.rules.volatile import ABOVE, BESIDE, VolatilePaths
from treedbd.tree.types import Value

RULES = """{"rules": {"boards": {"$board": {
    "cursors": {".volatile": {"hz": 20}, "$user": {".validate": "true"}},
    "kept": {"$any": {}}, "off": {".volatile": false},
    "$other": {"typing": {".volatile": true}}}}}}"""


def paths() -> VolatilePaths:
    """Return the volatile nodes of the rules above."""
    found = parse_rules(RULES).volatile
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("pattern", "is_covered"),
    [
        ("boards/*/cursors", True),
        ("boards/*/cursors/*/x", True),
        ("boards/a/b/typing", True),
        ("boards/*/*/typing", False),
        ("boards/*/*", False),
        ("boards/*", False),
        ("*/a/cursors", False),
        ("boards/*/kept/*", False),
        ("", False),
    ],
)
def test_a_pattern_is_covered_if_all_its_places_are_volatile(
    pattern: str, is_covered: bool
) -> None:
    keys = [None if key == "*" else key for key in pattern.split("/") if key]
    assert paths().covers(keys) is is_covered


@pytest.mark.parametrize(
    ("path", "depth"),
    [
        ("", ABOVE),
        ("boards/a", ABOVE),
        ("boards/a/b", ABOVE),
        ("boards/a/cursors", 3),
        ("boards/a/cursors/ada/x", 3),
        ("boards/a/b/typing", 4),
        ("boards/a/kept/typing", BESIDE),
        ("boards/a/off", BESIDE),
        ("boards/a/b/c", BESIDE),
        ("others", BESIDE),
    ],
)
def test_a_path_is_at_or_below_or_above_or_beside_volatile_nodes(path: str, depth: int) -> None:
    assert paths().depth(tuple(path.split("/")) if path else ()) == depth


def test_the_rate_is_that_of_the_node() -> None:
    assert paths().rate(("boards", "a", "cursors", "ada")) == 20
    assert paths().rate(("boards", "a", "b", "typing")) == 0


def test_a_value_is_cut_at_volatile_nodes() -> None:
    board: Value = {"cursors": {"ada": 1}, "title": "A", "z": {"typing": True}}
    rest, parts = paths().cut((), {"boards": {"a": board}, "x": 1})
    assert rest == {"boards": {"a": {"title": "A"}}, "x": 1}
    assert dict(parts) == {
        ("boards", "a", "cursors"): {"ada": 1},
        ("boards", "a", "z", "typing"): True,
    }
    value: Value = {"title": "A"}
    assert paths().cut(("boards", "a"), value) == (value, [])
    assert paths().cut(("boards", "a"), {"cursors": 1, ".priority": 2})[0] is None


def test_the_nodes_are_listed_as_the_document_has_them() -> None:
    assert parse_rules(RULES).volatile_nodes() == [
        ("/boards/$board/$other/typing", 0),
        ("/boards/$board/cursors", 20),
    ]


def test_rules_without_it_have_no_volatile_nodes() -> None:
    assert parse_rules('{"rules": {"a": {".volatile": false}}}').volatile is None


@pytest.mark.parametrize(
    ("rules", "position", "text"),
    [
        ('{"a": {".volatile": 1}}', "1:30", "Invalid volatile expression"),
        ('{"a": {".volatile": "true"}}', "1:30", "Invalid volatile expression"),
        ('{"a": {".volatile": {"hz": 0}}}', "1:37", "Invalid volatile expression"),
        ('{"a": {".volatile": {"hz": 1001}}}', "1:37", "Invalid volatile expression"),
        ('{"a": {".volatile": {"hz": true}}}', "1:37", "Invalid volatile expression"),
        ('{"a": {".volatile": {"rate": 1}}}', "1:30", "Invalid volatile expression"),
        ('{".volatile": true}', "1:24", "The root cannot be volatile"),
        ('{"a": {"b": {".volatile": true}, ".volatile": true}}', "1:56", "volatile already"),
        ('{"a": {".ttl": 60, ".volatile": true}}', "1:42", "cannot have a .ttl"),
        ('{"a": {".volatile": true, "$b": {".ttl": 60}}}', "1:30", "cannot have a .ttl"),
    ],
)
def test_what_it_cannot_say_is_an_error_at_its_place(rules: str, position: str, text: str) -> None:
    with pytest.raises(InvalidRules, match=text) as raised:
        parse_rules(f'{{"rules":{rules}}}')
    assert str(raised.value).startswith(position)
