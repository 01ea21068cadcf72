"""`.ttl` in rules: what it may be, what it applies to, and the time that it yields."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from treedbd.rules.document import InvalidRules
from treedbd.rules.expiry import LATEST_MS, ExpiryRules, Instance
from treedbd.rules.ruleset import parse_rules
from treedbd.store.memory import MemoryEngine
from treedbd.store.node_writer import NodeWriter
from treedbd.store.nodes import Nodes
from treedbd.store.rows import ALL, Span
from treedbd.tree.edit import make_put
from treedbd.tree.types import ROOT, Path, Place

DAY = 86_400_000


def rules_of(rules: Any) -> ExpiryRules:
    found = parse_rules(json.dumps({"rules": rules})).expiry
    assert found is not None
    return found


def of_ttl(ttl: object) -> ExpiryRules:
    return rules_of({"chat": {"$id": {".ttl": ttl}}})


def nodes_of(data: Any) -> Nodes:
    transaction = MemoryEngine().begin()
    NodeWriter(transaction).apply(make_put(Place(ROOT), data).changes)
    return Nodes(transaction)


def due(ttl: object, data: Any, written: int = 0) -> int | None:
    """Return when the node `/chat/a` with some data goes."""
    rules, path = of_ttl(ttl), ("chat", "a")
    lifetime = rules.at(path)
    assert lifetime is not None
    return rules.due(Instance(path, lifetime), nodes_of({"chat": {"a": data}}), written)


@pytest.mark.parametrize(
    ("ttl", "data", "expected"),
    [
        (60, {"x": 1}, 61_000),
        (0.0005, 1, 1_001),
        ("data.child('at').val() + 86400000", {"at": 5}, DAY + 5),
        ("data.child('at').val()", {"at": 1.5}, 2),
        ("data.val()", -7, 0),
        ("data.child('at').val()", {"at": "soon"}, None),
        ("data.child('at').val()", {"other": 1}, None),
        ("data.child('at').val() + 1", {"other": 1}, None),
        ("data.hasChild('pinned') ? null : data.child('at').val()", {"at": 9, "pinned": 1}, None),
        ("data.hasChild('pinned') ? null : data.child('at').val()", {"at": 9}, 9),
        ("data.val()", LATEST_MS, LATEST_MS),
        ("data.val()", LATEST_MS + 1, None),
        ("data.val()", 1e300, None),
        ("data.val() / 0", 1, None),
        ("$id == 'a' ? data.val() : null", 8, 8),
        ("data.getPriority()", {".value": 1, ".priority": 12}, 12),
    ],
)
def test_a_node_goes_when_its_rule_says(ttl: object, data: Any, expected: int | None) -> None:
    assert due(ttl, data, written=1_000) == expected


@pytest.mark.parametrize(
    ("ttl", "column", "text"),
    [
        (0, 37, "The seconds of a .ttl are more than 0 and at most 315360000."),
        (-1, 37, "The seconds of a .ttl are more than 0 and at most 315360000."),
        (1e12, 37, "The seconds of a .ttl are more than 0 and at most 315360000."),
        (True, 37, "Invalid .ttl.  Expected a number of seconds, or an expression string."),
        (None, 37, "Invalid .ttl.  Expected a number of seconds, or an expression string."),
        ({}, 37, "Invalid .ttl.  Expected a number of seconds, or an expression string."),
        ("60", 38, "A .ttl expression must read 'data'."),
        ("null", 38, "A .ttl expression must read 'data'."),
        ("data.exists()", 38, "A .ttl must evaluate to a number."),
        ("data.isNumber() ? 'a' : 1", 56, "A .ttl must evaluate to a number."),
        ("data.child('at')", 38, "A .ttl must evaluate to a number."),
        ("data.val() +", 50, "Unexpected end of expression."),
        *(
            (f"data.val() + {name}", 51, f"its own node: 'data' and the captures. Not '{shown}'.")
            for name, shown in (
                ("now", "now"),
                ("auth.iat", "auth"),
                ("root.child('x').val()", "root"),
                ("newData.val()", "newData"),
            )
        ),
        ("data.parent().val()", 43, "its own node: 'data' and the captures. Not its parent."),
        ("data.val() + $key.length", 51, "Unknown variable '$key'."),
    ],
)
def test_what_is_no_ttl_is_refused_where_it_is(ttl: object, column: int, text: str) -> None:
    with pytest.raises(InvalidRules) as refusal:
        of_ttl(ttl)
    assert (refusal.value.line, refusal.value.column) == (1, column)
    assert text in refusal.value.text


def test_the_root_has_no_ttl_and_a_mistyped_one_is_suggested() -> None:
    with pytest.raises(InvalidRules, match=r"The root of a database cannot have a \.ttl"):
        rules_of({".ttl": 5})
    with pytest.raises(InvalidRules) as refusal:
        rules_of({"a": {".tll": 5}})
    assert refusal.value.hint == "Did you mean '.ttl'?"


def test_rules_without_ttl_have_no_expiry() -> None:
    assert parse_rules('{"rules":{"a":{"$b":{".read":true}}}}').expiry is None


TREE = {
    "rooms": {
        "lobby": {"messages": {"m1": 1}},
        "r1": {"messages": {"m1": 1, "m2": 2}},
        "r2": {"topic": "x"},
        "r3": {"messages": {"7": 1}},
    },
    "jobs": {"one": 1, "two": 2},
}
SHAPE = {
    "rooms": {"$room": {"messages": {"$m": {".ttl": 1}}, ".ttl": 9}, "lobby": {}},
    "jobs": {"two": {".ttl": 3}, "none": {".ttl": 3}},
}


def below(rules: ExpiryRules, nodes: Nodes, path: Path, start: Path = ()) -> list[str]:
    def keys_from(container: Path, first: str | None) -> Iterator[str]:
        return nodes.keys(container, ALL if first is None else Span(at=first))

    return ["/".join(each.path) for each in rules.below(path, nodes, keys_from, start)]


def test_instances_are_found_above_and_below_a_path() -> None:
    rules, nodes = rules_of(SHAPE), nodes_of(TREE)
    assert [each.path for each in rules.above(("rooms", "r1", "messages", "m1", "x"))] == [
        ("rooms", "r1"),
        ("rooms", "r1", "messages", "m1"),
    ]
    assert rules.above(("rooms", "lobby", "messages", "m1")) == []
    assert rules.at(("rooms", "r9")) is not None
    assert rules.at(("rooms", "lobby")) is None
    assert rules.at(("rooms", "r9", "messages")) is None
    assert below(rules, nodes, ("rooms", "r1")) == ["rooms/r1/messages/m1", "rooms/r1/messages/m2"]
    assert below(rules, nodes, ("rooms", "r1", "messages", "m1")) == []
    assert below(rules, nodes, ()) == [
        "jobs/two",
        "rooms/r1",
        "rooms/r1/messages/m1",
        "rooms/r1/messages/m2",
        "rooms/r2",
        "rooms/r3",
        "rooms/r3/messages/7",
    ]


def test_a_walk_continues_at_any_place_of_it_that_may_be_gone() -> None:
    rules, nodes = rules_of(SHAPE), nodes_of(TREE)
    every = below(rules, nodes, ())
    for at, path in enumerate(every):
        assert below(rules, nodes, (), tuple(path.split("/"))) == every[at:]
    assert below(rules, nodes, (), ("rooms", "r1", "messages", "m11")) == every[3:]
    assert below(rules, nodes, (), ("rooms", "r0", "messages", "m1")) == every[1:]
    assert below(rules, nodes, (), ("rooms", "r9", "messages", "m1")) == []


def test_patterns_are_named_by_the_places_that_they_apply_to() -> None:
    def names(rules: Any) -> frozenset[str]:
        return frozenset(rules_of(rules).patterns.values())

    first = names({"a": {"$x": {".ttl": 1}}})
    assert len(first) == 1
    assert names({"a": {"$y": {".ttl": 2, ".read": True}}, "b": {}}) == first
    assert names({"a": {"$x": {".ttl": "data.val()"}}}) != first
    assert names({"a": {"$x": {".ttl": 1}, "other": {}}}) != first
    assert names({"b": {"$x": {".ttl": 1}}}) != first
