"""Descriptions show what a reader of the whole value would count, whatever was written before."""

from __future__ import annotations

import json
import pathlib
from typing import Any
from urllib.parse import quote

import attrs
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.examples import examples
from tests.expected import compact, rank_key
from tests.web.tree_server import SETTINGS, TreeServer
from treedbd.limits import MAX_DESCRIBED_CHARACTERS, MAX_DESCRIBED_CHILDREN
from treedbd.rules.ruleset import parse_rules
from treedbd.store import outline as outline_module
from treedbd.store.rows import parse_stored
from treedbd.tree.types import Path
from treedbd.web import descriptions
from treedbd.web.descriptions import count_characters

KEYS = [*("a", "b", 'é"', "0", "1", "2", "10", "-1", "01"), "k" * 300, "k" * 300 + "1", "z" * 700]
LEAVES: st.SearchStrategy[Any] = st.sampled_from(
    [True, False, 0, 1.5, "", "x", 'é\n"\\', "w" * 200, "é" * 201, "\\" * 300, "y" * 5000]
)
CHILDREN: st.SearchStrategy[Any] = (
    LEAVES
    | st.builds(lambda v, p: {".value": v, ".priority": p}, LEAVES, st.integers(0, 2))
    | st.dictionaries(st.sampled_from(KEYS), LEAVES, min_size=1, max_size=4)
    | st.lists(LEAVES, min_size=1, max_size=4)
    | st.builds(lambda v, p: {"v": v, ".priority": p}, LEAVES, st.sampled_from(["p", 7]))
    | st.builds(lambda n: {f"m{at}": "t" * 60 for at in range(n)}, st.integers(50, 150))
)
BODIES = (
    st.dictionaries(st.sampled_from(KEYS), CHILDREN, min_size=1, max_size=8)
    | st.builds(lambda n: {f"c{at}": {"v": at} for at in range(n)}, st.integers(100, 600))
    | st.builds(lambda n: ["item" * 9 for _ in range(n)], st.integers(5, 200))
    | LEAVES
)
WRITES = st.tuples(st.sampled_from([*KEYS, "c50", "c51", "a/b", ""]), CHILDREN | BODIES | st.none())


class Service:
    """A service in memory, and what it shows at `/p`."""

    def __init__(self, folder: pathlib.Path, kept_answer_bytes: int = 1 << 24) -> None:
        limits = attrs.evolve(SETTINGS.limits, kept_answer_bytes=kept_answer_bytes)
        self.server = TreeServer(folder, options=attrs.evolve(SETTINGS, limits=limits))

    def put(self, path: str, value: Any) -> None:
        self.server.write("PUT", f"/{quote(path)}", value)

    def get(self, target: str) -> Any:
        return self.server.request("GET", target)

    def describe(self, path: str = "p", **parameters: Any) -> Any:
        """Return the description of a place."""
        query = "".join(f"&{name}={quote(str(text))}" for name, text in parameters.items())
        reply = self.get(f"/{quote(path)}.json?describe=true{query}")
        assert reply.status == 200, reply.body
        return json.loads(reply.body)

    def expected(self, path: str = "p") -> Any:
        """Return the description of all of a place, from what reads of it print."""
        exported = json.loads(self.get(f"/{quote(path)}.json?format=export").body)
        size = len(self.get(f"/{quote(path)}.json").body)
        if exported is None:
            return {"type": "null"}
        members = children_of(exported)
        if members is None:
            return {**leaf_facts(exported), "bytes": size}
        plain = json.loads(self.get(f"/{quote(path)}.json").body)
        if isinstance(plain, list):
            plain = {str(at): value for at, value in enumerate(plain)}
        shown = [
            self._child(key, members[key], plain[key]) for key in sorted(members, key=rank_key)
        ]
        return {
            "type": "object",
            "count": len(members),
            "bytes": size,
            **priority_of(exported),
            "children": shown,
        }

    def _child(self, key: str, exported: Any, plain: Any) -> dict[str, Any]:
        members = children_of(exported)
        if members is None:
            return {"key": key, **leaf_facts(exported)}
        counted = {"count": len(members), "bytes": len(compact(plain))}
        return {"key": key, "type": "object", **counted, **priority_of(exported)}


def children_of(exported: Any) -> dict[str, Any] | None:
    """Return the children of a value in export form, None if it is a leaf."""
    if not isinstance(exported, dict) or ".value" in exported:
        return None
    return {key: value for key, value in exported.items() if key != ".priority"}


def priority_of(exported: Any) -> dict[str, Any]:
    has_one = isinstance(exported, dict) and ".priority" in exported
    return {"priority": exported[".priority"]} if has_one else {}


def leaf_facts(exported: Any) -> dict[str, Any]:
    leaf = exported[".value"] if isinstance(exported, dict) else exported
    kind = {bool: "boolean", str: "string"}.get(type(leaf), "number")
    facts = {"type": kind, "value": leaf, **priority_of(exported)}
    if kind == "string" and len(leaf) > MAX_DESCRIBED_CHARACTERS:
        facts |= {"value": leaf[:MAX_DESCRIBED_CHARACTERS], "length": len(leaf)}
    return facts


@settings(
    max_examples=examples(60),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    body=BODIES,
    writes=st.lists(WRITES, max_size=5),
    kept=st.sampled_from([0, 1 << 24]),
    page=st.sampled_from([1, 3, 50, 1000]),
    at=st.integers(0, 700),
)
def test_a_description_is_what_a_reader_of_all_would_count(
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
    body: Any,
    writes: list[tuple[str, Any]],
    kept: int,
    page: int,
    at: int,
) -> None:
    monkeypatch.setattr(descriptions, "MAX_COUNTED_CHILD_BYTES", 1 << 40)
    monkeypatch.setattr(descriptions, "MAX_COUNTED_CHILDREN_BYTES", 1 << 40)
    service = Service(tmp_path_factory.mktemp("data"), kept)
    for key, value in [("", body), *writes]:
        service.put(f"p/{key}" if key else "p", value)
        whole = service.expected()
        children = whole.pop("children", None)
        if children is None:
            assert service.describe(limitToFirst=page) == whole
            continue
        shown = service.describe(limitToFirst=page)
        assert shown == {**whole, "first": 0, "children": children[:page]}
        shown = service.describe(limitToFirst=page, at=at)
        first = min(at, len(children))
        assert shown == {**whole, "first": first, "children": children[at : at + page]}
        shown = service.describe(limitToLast=page)
        first = max(0, len(children) - page)
        assert shown == {**whole, "first": first, "children": children[-page:]}
        middle = len(children) // 2
        shown = service.describe(limitToFirst=page, startAt=json.dumps(children[middle]["key"]))
        expected = children[middle : middle + page]
        assert shown == {**whole, "first": middle, "children": expected}


@pytest.fixture
def service(tmp_path: pathlib.Path) -> Service:
    """A service with 400 children at `/p`."""
    service = Service(tmp_path)
    service.put("p", {f"c{at:03}": {"v": at, "text": "x" * 40} for at in range(400)})
    return service


def test_a_page_has_50_children_unless_it_says_otherwise(service: Service) -> None:
    assert len(service.describe()["children"]) == 50
    assert len(service.describe(limitToFirst=1000)["children"]) == 400


@pytest.mark.parametrize(
    ("parameters", "keys"),
    [
        ({"startAfter": "c100", "limitToFirst": 2}, ["c101", "c102"]),
        ({"startAt": '"c100"', "endAt": "c101"}, ["c100", "c101"]),
        ({"startAt": "c100", "endBefore": "c101"}, ["c100"]),
        ({"endAt": "c100", "limitToLast": 2}, ["c099", "c100"]),
        ({"startAfter": "c399"}, []),
        ({"at": 400}, []),
    ],
)
def test_bounds_select_a_page(
    service: Service, parameters: dict[str, Any], keys: list[str]
) -> None:
    shown = service.describe(**parameters)
    assert [child["key"] for child in shown["children"]] == keys
    assert shown["count"] == 400
    assert shown.get("first") == (int(keys[0][1:]) if keys else parameters.get("at"))


def test_a_query_is_described_in_its_order(service: Service) -> None:
    shown = service.describe(orderBy='"v"', startAt="7", limitToFirst=2)
    size = len(service.get("/p/c007.json").body)
    assert shown == {
        "type": "object",
        "children": [
            {"key": key, "type": "object", "count": 2, "bytes": size} for key in ("c007", "c008")
        ],
        "index": {"missing": True, "rule": '"p": {".indexOn": ["v"]}'},
    }
    shown = service.describe(where='{"v":{">=":398}}')
    assert [child["key"] for child in shown["children"]] == ["c398", "c399"]
    assert "index" not in shown
    shown = service.describe(orderBy='"v"', limitToLast=1)
    assert [child["key"] for child in shown["children"]] == ["c399"]
    assert service.describe("p/c001", orderBy='"v"', startAt=1)["children"] == []
    assert service.describe("p/c001/v", orderBy='"$value"') == {"type": "null"}
    assert len(service.describe(orderBy='"v"')["children"]) == 50


@pytest.mark.parametrize(
    ("query", "reason"),
    [
        ("shallow=true", "shallow"),
        ("format=export", "format"),
        ("download=a", "download"),
        (f"limitToFirst={MAX_DESCRIBED_CHILDREN + 1}", "at most 1000"),
        (f'orderBy="v"&limitToLast={MAX_DESCRIBED_CHILDREN + 1}', "at most 1000"),
        ("limitToFirst=0", "limitToFirst"),
        ("at=-1", "at must be"),
        ("at=x", "at must be"),
        ("at=", "at must be"),
        ("at=1&startAt=a", "startAt"),
        ("at=1&limitToLast=3", "limitToLast"),
        ('at=1&orderBy="v"', "query"),
        ('equalTo="a"', "orderBy"),
        ("startAt=a.b", "startAt is not a key"),
        ("startAt=a&startAfter=b", "cannot be combined"),
        ("limitToFirst=1&limitToLast=1", "cannot be combined"),
        ('orderBy="v', "orderBy"),
        ("v=3", "v must be 2"),
    ],
)
def test_parameters_that_exclude_it_are_refused(service: Service, query: str, reason: str) -> None:
    reply = service.get(f"/p.json?describe=true&{query}")
    error = json.loads(reply.body)
    assert (reply.status, error["error"]) == (400, "invalid_query")
    assert reason in error["message"]


def test_it_must_be_true_or_false(service: Service) -> None:
    assert service.get("/p.json?describe=yes").status == 400
    assert service.get("/p.json?describe=false").body == service.get("/p.json").body
    assert service.get("/p.json?at=7").body == service.get("/p.json").body


def test_it_has_no_tag_and_is_wrapped_and_indented(service: Service) -> None:
    reply = service.server.request(
        "GET", "/p/c001.json?describe=true", headers=["X-Firebase-ETag: true"]
    )
    assert b"etag" not in dict(reply.fields)
    pretty = service.get("/p/c001.json?describe=true&print=pretty").body
    assert pretty.startswith(b'{\n  "type": "object",\n')
    assert service.get("/p/c001.json?describe=true&callback=f").body.startswith(b"/**/f({")
    assert service.get("/p.json?describe=true&print=silent").status == 204
    reply = service.server.request("HEAD", "/p.json?describe=true")
    assert (reply.status, reply.body) == (200, b"")
    length = dict(reply.fields)[b"content-length"]
    assert int(length) == len(service.get("/p.json?describe=true").body)


def test_a_priority_is_described_as_a_leaf(service: Service) -> None:
    service.put("p/c001/.priority", 7)
    assert service.describe("p/c001/.priority") == {"type": "number", "value": 7, "bytes": 1}
    assert service.describe("p/c002/.priority") == {"type": "null"}


def test_a_database_without_data_is_null(service: Service) -> None:
    service.put("p", None)
    assert service.describe("") == {"type": "null"}


RULES = {
    "all": {".read": "query.orderByKey == false && query.limitToFirst == null"},
    "first": {".read": "query.orderByKey && query.limitToFirst <= 2 && query.startAt == null"},
    "by_age": {".read": "query.orderByChild == 'age'"},
    ".write": True,
}


@pytest.mark.parametrize(
    ("target", "status"),
    [
        ("all.json?describe=true", 200),
        ("all.json?describe=true&at=1&limitToFirst=2", 200),
        ("all.json?describe=true&startAfter=a&limitToLast=1", 200),
        ('all.json?describe=true&orderBy="$key"', 403),
        ("first.json?describe=true", 403),
        ("first.json?describe=true&limitToFirst=2", 403),
        ("first.json?describe=true&limitToFirst=2&at=1", 403),
        ('first.json?describe=true&orderBy="$key"&limitToFirst=2', 200),
        ('first.json?describe=true&orderBy="$key"&limitToFirst=3', 403),
        ('first.json?describe=true&orderBy="$key"', 403),
        ('first.json?describe=true&orderBy="$key"&limitToFirst=2&startAt="b"', 403),
        ("by_age.json?describe=true", 403),
        ('by_age.json?describe=true&orderBy="age"', 200),
    ],
)
def test_rules_see_the_query_and_without_one_a_read_of_all(
    tmp_path: pathlib.Path, target: str, status: int
) -> None:
    server = TreeServer(tmp_path, parse_rules(json.dumps({"rules": RULES})))
    for name in ("all", "first", "by_age"):
        server.write("PUT", f"/{name}", {"a": {"age": 1}, "b": 2})
    reply = server.request("GET", f"/{target}")
    assert reply.status == status
    assert (b'"count":2,"bytes"' in reply.body) == (status == 200 and "orderBy" not in target)


def counted_segments(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Return a list to which the path of each segment that is counted from now on is added."""
    counted: list[Path] = []
    count = outline_module._Counting.count

    def note(self: Any, *arguments: Any) -> Any:
        counted.append(self._path)
        return count(self, *arguments)

    monkeypatch.setattr(outline_module._Counting, "count", note)
    return counted


def test_what_was_counted_is_kept_until_it_is_written(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outline_module, "SEGMENT_BYTES", 4096)
    counted = counted_segments(monkeypatch)
    assert service.describe()["count"] == 400
    assert len(counted) > 4
    counted.clear()
    assert service.describe(at=200)["first"] == 200
    assert service.describe(limitToLast=1)["first"] == 399
    assert not counted
    service.put("q", {"elsewhere": 1})
    service.describe(at=200)
    assert not counted
    service.put("p/c150", None)
    service.put("p/c151/v", 7)
    assert service.describe(at=200)["count"] == 399
    assert counted == [("p",)]
    counted.clear()
    service.server.write("PATCH", "/p", {f"c{at:03}": None for at in range(300)})
    assert service.describe()["count"] == 100
    assert len(counted) > 1  # a write of so many places is not followed


def test_a_large_child_is_counted_a_bit_and_further_once_it_was_described(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(descriptions, "MAX_COUNTED_CHILD_BYTES", 20_000)
    monkeypatch.setattr(outline_module, "SEGMENT_BYTES", 4096)
    (child,) = service.describe("")["children"]
    assert child["least"]
    assert 0 < child["count"] < 400
    whole = service.describe("p")
    (child,) = service.describe("")["children"]
    assert child == {
        **{name: whole[name] for name in ("type", "count", "bytes")},
        "key": "p",
    }
    service.put("p/c000", None)
    (child,) = service.describe("")["children"]
    assert (child["count"], "least" in child) == (399, False)


def test_one_request_counts_a_part_and_the_next_goes_on(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(descriptions, "MAX_COUNTED_BYTES", 4000)
    monkeypatch.setattr(outline_module, "SEGMENT_BYTES", 4096)
    first, second = service.describe(), service.describe()
    assert first["least"]
    assert second["least"]
    assert first["count"] < second["count"] < 400
    assert "first" not in service.describe(limitToLast=1)
    far = service.describe(at=390, limitToFirst=1)
    assert (far["first"], far["children"][0]["key"]) == (390, "c390")
    for _ in range(8):
        shown = service.describe()
    assert (shown["count"], "least" in shown) == (400, False)


def test_large_children_leave_the_count_exact(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outline_module, "LARGEST_CHILD_BYTES", 5000)
    for at in range(3):
        service.put(f"rooms/r{at}", {f"m{n}": "x" * 600 for n in range(200)})
    shown = service.describe("rooms")
    assert (shown["count"], shown["least"], shown["counted"]) == (3, True, True)
    assert 15_000 < shown["bytes"] < len(service.get("/rooms.json").body)


def test_reads_of_many_children_wait_for_no_other(service: Service) -> None:
    """It is rendered in slices of a turn, as a large read is; others are answered in between."""
    service.put("p", {f"c{at:05}": {"text": "x" * 90} for at in range(20_000)})
    service.server.clock.lag = 0.001  # each look at the clock takes as long
    slow = service.server.get("/p.json?describe=true")
    turns = 0
    while not slow.transport.value():
        reply = service.server.get("/p/c00007/text.json").read(b"GET")
        assert [each.status for each in reply] == [200]
        service.server.clock.take_turn()
        turns += 1
    assert turns > 3
    assert json.loads(slow.read(b"GET")[0].body)["count"] == 20_000


def test_characters_are_counted_in_parts() -> None:
    text = 'é\\\\"\n\x01\U0001f600' * 50 + "\\" * 7
    row = compact(text)[1:-1]
    for size in (7, 16, 64):
        at = total = 0
        while at < len(row):
            piece = descriptions._without_cut_escape(row[at : at + size])
            total += count_characters(piece)
            at += len(piece)
        assert total == len(text)


def test_a_long_string_is_cut_without_being_parsed(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = 'é\n"\\\U0001f600' * 100_000
    for value in (long, {".value": long, ".priority": "p"}):
        service.put("p/c001", value)
        monkeypatch.setattr(descriptions, "load_row", None)
        monkeypatch.setattr(descriptions, "parse_stored", parse_stored)
        shown = service.describe("p/c001")
        assert shown["value"] == long[:MAX_DESCRIBED_CHARACTERS]
        assert shown["length"] == len(long)
        monkeypatch.undo()
