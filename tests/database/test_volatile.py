"""Volatile nodes: in memory alone, and otherwise as all others are."""

from __future__ import annotations

import json
from contextlib import closing
from typing import Any

import attrs
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from twisted.python.failure import Failure

from tests.database.world import Disk, Recorder, TurnClock, World
from tests.examples import examples
from tests.replica import Replica
from treedbd.database import apply
from treedbd.database.requests import (
    Caller,
    Condition,
    ConditionFailed,
    LargeBody,
    Outcome,
    PermissionDenied,
    QuotaExceeded,
    TooLarge,
)
from treedbd.database.rights import ReadRequest
from treedbd.database.volatile import TOP_BYTES, VolatileFull
from treedbd.database.watchers import Notification, Subscription
from treedbd.rules.ruleset import OPEN, parse_rules
from treedbd.store.engine import StoreDamaged
from treedbd.store.nodes import Nodes
from treedbd.tree.edit import Edit, Method, make_patch, make_put, make_remove
from treedbd.tree.fragments import Splitter
from treedbd.tree.hashes import etag, parse_etags
from treedbd.tree.query import Query, parse_query
from treedbd.tree.types import STORED, Change, InvalidData, Json, Path, Place
from treedbd.tree.value import plain

RULES = parse_rules(
    """{"rules": {".read": true, ".write": true, "boards": {"$board": {
        "cursors": {"$user": {".volatile": true, "x": {".validate": "newData.isNumber()"}}},
        "typing": {".volatile": {"hz": 10}}}}}}"""
)


def keys_of(path: str) -> Path:
    """Return the keys of a path."""
    return tuple(key for key in path.split("/") if key)


def put(path: str, value: Any) -> Edit:
    """Return the edit that sets a path."""
    return make_put(Place(keys_of(path)), value)


def make_world(rules: Any = RULES, **options: Any) -> World:
    """Return a database that exists, with rules that have volatile nodes."""
    world = World(rules=rules, **options)
    world.begin(put("exists", True))
    world.clock.run()
    world.disk.finish_all()
    world.clock.run()
    return world


def watch(world: World, path: str = "") -> Recorder:
    """Watch a path from now on."""
    recorder = Recorder()
    world.database.watching.watch(keys_of(path), recorder, lambda _: None)
    return recorder


def logged(world: World) -> int:
    """Return how many writes are in the change log."""
    return world.engine.read(lambda view: view.sequence())


def test_a_volatile_write_is_read_at_once_and_stored_nowhere() -> None:
    world = make_world(disk=Disk())
    outcome: list[Any] = []
    world.begin(put("boards/a/cursors/ada", {"x": 1})).addCallback(outcome.append)
    assert outcome[0].echo == {"x": 1}
    assert outcome[0].commit is None
    assert world.get("boards", "a", "cursors", "ada", "x") == 1
    assert world.get() == {"exists": True, "boards": {"a": {"cursors": {"ada": {"x": 1}}}}}
    assert not world.disk.waiting
    assert logged(world) == 1
    rows = world.engine.read(lambda view: list(view.scan(b"", b"\xff" * 8)))
    assert b"ada" not in repr(rows).encode()


def test_watchers_are_notified_of_the_last_value_in_the_next_turn() -> None:
    world = make_world()
    at_root, at_node = watch(world), watch(world, "boards/a/cursors/ada")
    for x in range(5):
        world.begin(put("boards/a/cursors/ada/x", x))
    world.clock.run()
    assert [(event.kind, event.path, event.data) for event in at_node.events] == [
        ("put", ("x",), 4)
    ]
    assert [event.data for event in at_root.events] == [4]


def test_watchers_do_not_wait_for_a_commit_under_way() -> None:
    world = make_world(disk=Disk())
    recorder = watch(world)
    world.begin(put("boards/a/title", "A"))
    world.clock.run()
    assert world.disk.waiting
    world.begin(put("boards/a/cursors/ada/x", 1))
    world.clock.run()
    assert recorder.data == [1]
    world.disk.finish_all()
    world.clock.run()
    assert recorder.data == [1, "A"]
    assert world.get("boards", "a") == {"title": "A", "cursors": {"ada": {"x": 1}}}


def test_several_nodes_are_one_event() -> None:
    world = make_world()
    recorder = watch(world, "boards/a")
    world.begin(put("boards/a/cursors/ada", {"x": 1}))
    world.begin(put("boards/a/cursors/bob/x", 2))
    world.clock.run()
    (event,) = recorder.events
    assert (event.kind, event.path) == ("patch", ("cursors",))
    assert event.data == {"ada": {"x": 1}, "bob/x": 2}


def test_a_node_with_a_rate_has_at_most_so_many_events() -> None:
    world = make_world()
    recorder = watch(world, "boards/a/typing")
    for number in range(100):
        world.begin(put("boards/a/typing/ada", number))
        world.clock.run()
        world.clock.advance(0.01)
    world.clock.advance(1)
    world.clock.run()
    assert recorder.data[0] == 0
    assert recorder.data[-1] == 99
    assert len(recorder.data) in (10, 11)


def test_a_write_above_is_divided_and_one_event() -> None:
    world = make_world(disk=Disk())
    recorder = watch(world, "boards/a")
    world.begin(put("boards/a/cursors/old", {"x": 0}))
    world.clock.run()
    world.begin(put("boards/a", {"title": "A", "cursors": {"ada": {"x": 1}}}))
    world.clock.run()
    assert world.get("boards", "a") == {"cursors": {"old": {"x": 0}}}
    world.disk.finish_all()
    assert world.get("boards", "a") == {"title": "A", "cursors": {"ada": {"x": 1}}}
    world.clock.run()
    assert recorder.data[1:] == [{"title": "A", "cursors": {"ada": {"x": 1}}}]
    entries = world.engine.read(lambda view: list(view.entries(0)))
    assert b"ada" not in b"".join(entry.content for entry in entries)
    stored = world.database.read_stored(lambda nodes: plain(nodes.get(("boards",))))
    assert stored == {"a": {"title": "A"}}


def test_a_removal_above_removes_both_kinds() -> None:
    world = make_world()
    world.write(put("boards/a/title", "A"))
    world.write(put("boards/a/cursors/ada/x", 1))
    recorder = watch(world)
    world.write(make_remove(Place(("boards",))))
    assert world.get() == {"exists": True}
    assert recorder.data == [None]


def test_a_patch_of_both_kinds_is_applied_or_refused_as_a_whole() -> None:
    world = make_world()
    anyone = Caller(None)
    edit = make_patch(
        keys_of("boards/a"), {"title": "A", "cursors/ada": {"x": "no"}, "typing": {"ada": True}}
    )
    assert isinstance(world.write(edit, caller=anyone), PermissionDenied)
    assert world.get("boards") is None
    edit = make_patch(keys_of("boards/a"), {"title": "A", "cursors/ada": {"x": 1}})
    outcome = world.write(edit, caller=anyone)
    assert [change.place.path[-1] for change in outcome.volatile] == ["ada"]
    assert world.get("boards", "a") == {"title": "A", "cursors": {"ada": {"x": 1}}}
    entry = world.engine.read(lambda view: list(view.entries(0)))[-1]
    assert json.loads(entry.content)["sent"] == {"title": "A"}


def test_the_writes_of_one_client_are_applied_in_their_order() -> None:
    world = make_world(disk=Disk())
    world.begin(put("boards/a", {"title": "A"}))
    world.begin(put("boards/a/cursors/ada/x", 1))  # waits for the write above it
    world.begin(put("boards/b/cursors/ada/x", 1))  # does not
    assert world.get("boards") == {"b": {"cursors": {"ada": {"x": 1}}}}
    world.clock.run()
    world.disk.finish_all()
    world.clock.run()
    assert world.get("boards", "a") == {"title": "A", "cursors": {"ada": {"x": 1}}}


def test_rules_see_volatile_values() -> None:
    rules = parse_rules(
        """{"rules": {".read": true, "locks": {"$key": {".volatile": true,
            ".write": "!data.exists() || data.val() === newData.val()"}},
            "pages": {"$key": {".write": "root.child('locks').child($key).exists()"}}}}"""
    )
    world = make_world(rules)
    anyone = Caller(None)
    assert isinstance(world.write(put("pages/a", 1), caller=anyone), PermissionDenied)
    world.write(put("locks/a", "ada"), caller=anyone)
    assert isinstance(world.write(put("locks/a", "bob"), caller=anyone), PermissionDenied)
    world.write(put("pages/a", 1), caller=anyone)
    assert world.get("pages", "a") == 1


def test_conditions_hold_and_tags_are_those_of_what_is_read() -> None:
    world = make_world()
    place = Place(keys_of("boards/a/cursors/ada"))
    outcome = world.write(make_put(place, {"x": 1}), wants_etag=True)
    assert outcome.etag == etag({"x": 1})
    condition = Condition(place, parse_etags(outcome.etag))
    assert world.write(make_put(place, {"x": 2}), condition).echo == {"x": 2}
    assert isinstance(world.write(make_put(place, {"x": 3}), condition), ConditionFailed)
    above = Place(("boards", "a"))
    condition = Condition(above, parse_etags(etag({"cursors": {"ada": {"x": 2}}})))
    world.write(make_put(above, {"title": "A"}), condition)
    assert world.get("boards", "a") == {"title": "A"}


@pytest.mark.parametrize(
    "parameters",
    [
        {"orderBy": '"typing/who"', "equalTo": '"ada"'},
        {"orderBy": '"typing/who"', "startAt": '"a"', "endAt": '"b"'},
        {"orderBy": '"typing/who"', "startAt": '"a"', "endAt": '"b"', "limitToLast": "2"},
    ],
)
def test_children_enter_and_leave_queries_by_volatile_values(parameters: dict[str, str]) -> None:
    world = make_world()
    for board in "abc":
        world.write(put(f"boards/{board}/title", board))
    world.write(put("boards/a/typing/who", "ada"))
    reader = Reader(world, ("boards",), parse_query(parameters))
    reader.start()
    assert reader.replica.tree == {"a": {"title": "a", "typing": {"who": "ada"}}}
    for board, who in [("b", "ada"), ("a", "zoe"), ("c", "zoe"), ("b", None), ("c", "ada")]:
        world.clock.advance(0.2)
        world.write(put(f"boards/{board}/typing/who", who))
        world.clock.advance(0.2)
        world.clock.run()
        fresh = Reader(world, reader.path, reader.query)
        fresh.start()
        assert reader.replica.tree == fresh.replica.tree
    world.write(put("boards", {"d": {"typing": {"who": "ada"}}}))
    assert reader.replica.tree == {"d": {"typing": {"who": "ada"}}}


@pytest.mark.parametrize(
    "parameters",
    [{"orderBy": '"$key"', "limitToFirst": "2"}, {"orderBy": '"x"', "startAt": "2"}],
)
def test_a_query_begins_with_what_the_other_watchers_know(parameters: dict[str, str]) -> None:
    world = make_world()
    world.write(put("boards/a/cursors", {"ada": {"x": 1}, "bob": {"x": 2, "y": 1}}))
    path, query = ("boards", "a", "cursors"), parse_query(parameters)
    readers = [Reader(world, path, query) for _ in range(4)]
    readers[0].start()
    for reader, edit in zip(
        readers[1:],
        [
            put("boards/a/cursors/ada", {"x": 3, "y": 3}),
            put("boards/a/cursors/bob/x", 0),
            make_patch(path, {"ada/x": 1, "bob/x": 4, "a": {"x": 1}}),
        ],
        strict=True,
    ):
        world.begin(edit)
        reader.start()
    with closing(world.database.hold_first(query)) as held:
        assert plain(held.get(path)) == {"ada": {"x": 1}, "bob": {"x": 2, "y": 1}}
    world.begin(put("boards/a/cursors/a", None))
    assert world.get(*path) == {"ada": {"x": 1, "y": 3}, "bob": {"x": 4, "y": 1}}
    world.clock.run()
    fresh = Reader(world, path, query)
    fresh.start()
    assert fresh.replica.tree
    assert [reader.replica.tree for reader in readers] == [fresh.replica.tree] * 4


@pytest.mark.parametrize(
    ("edit", "part"),
    [
        (put("boards/a/typing", 1), "all"),
        (put("boards/a", {"typing": 1}), "part"),
        (put("boards/a", {"title": 1}), ""),
        (put("others", 1), ""),
        (make_patch(("boards", "a"), {"typing": 1, "title": 2}), "part"),
        (make_patch(("boards", "a"), {"typing": 1, "cursors/ada": 2}), "all"),
        (make_patch((), {}), ""),
    ],
)
def test_what_is_volatile_of_a_write_is_known_before_it(edit: Edit, part: str) -> None:
    volatile = make_world().database.volatile
    assert volatile is not None
    assert volatile.part_of(edit) == part


def test_a_write_with_an_unexpected_error_is_refused_and_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = make_world()

    def find_damage(work: Any) -> Any:
        raise StoreDamaged("The file is damaged.")

    with monkeypatch.context() as patched:
        patched.setattr(world.engine, "read", find_damage)
        assert isinstance(world.write(put("boards/a/typing", 1)), StoreDamaged)
    world.write(put("boards/a/typing", 2))
    assert world.get("boards") == {"a": {"typing": 2}}


def test_increments_count_on() -> None:
    world = make_world()
    for _ in range(3):
        world.write(put("boards/a/typing/count", {".sv": {"increment": 2}}))
    assert world.get("boards", "a", "typing", "count") == 6


def test_stored_data_stays_stored_until_it_is_removed() -> None:
    world = World()
    world.write(put("boards/a/cursors/ada", {"x": 1, "y": 2}))
    world.wait(world.rules.put(RULES.text.encode(), world.clock.seconds() + 60))
    world.write(put("boards/a/cursors/ada/x", 3))
    assert logged(world) == 2
    world.write(put("boards/a/cursors/ada", None))
    world.write(put("boards/a/cursors/ada/x", 4))
    assert logged(world) == 3
    assert world.get("boards", "a", "cursors") == {"ada": {"x": 4}}


def test_what_is_no_longer_volatile_is_dropped() -> None:
    world = make_world()
    world.write(put("boards/a/cursors/ada", {"x": 1}))
    recorder = watch(world)
    other = '{"rules": {".read": true, ".write": true}}'
    world.wait(world.rules.put(other.encode(), world.clock.seconds() + 60))
    world.clock.run()
    assert world.get() == {"exists": True}
    assert recorder.data == [None]


@pytest.mark.parametrize("is_busy", [False, True])
def test_what_other_rules_drop_is_shown_before_what_is_written_under_them(*, is_busy: bool) -> None:
    world = make_world(disk=Disk())
    world.begin(put("boards/a/typing", {"ada": True}))  # which has 10 events a second
    recorder = watch(world, "boards/a")
    world.clock.run()
    world.begin(put("boards/a/typing", {"ada": True, "bob": True}))
    if is_busy:
        world.begin(put("boards/a/title", "A"))
        world.clock.run()
    other = b'{"rules": {".read": true, ".write": true}}'
    done = world.rules.put(other, world.clock.seconds() + 60)
    while not done.called:  # the work that was begun last is that of the rules
        world.disk.waiting.insert(0, world.disk.waiting.pop())
        world.disk.finish()
        world.clock.run()
    for user in ("eve", "joe"):
        world.begin(put(f"boards/a/typing/{user}", True))
        for _ in range(3):
            world.disk.finish_all()
            world.clock.run()
    world.clock.advance(1)
    world.clock.run()
    replica = Replica()
    for event in recorder.events:
        replica.apply(event.kind, "/".join(event.path), event.data)
    assert replica.tree == world.get("boards", "a")
    assert replica.tree["typing"] == {"eve": True, "joe": True}


@pytest.mark.parametrize("is_busy", [False, True])
def test_who_loses_the_right_to_read_receives_nothing_later_whatever_the_rate(
    *, is_busy: bool
) -> None:
    rules = """{"rules": {".write": true, "gate": {".volatile": {"hz": 1}},
        "room": {".read": "root.child('gate').val() == true"}}}"""
    world = make_world(parse_rules(rules))
    world.write(put("gate", True))
    world.write(put("gate", True))  # so the next flush of its rate is a second later
    recorder, lost = watch(world, "room"), list[str]()
    request = ReadRequest(Caller(None), ("room",), None, lambda: 0)
    grant = world.database.make_grant(
        request, lambda: lost.append(str(recorder.data)), lambda: None
    )
    world.database.read(grant.check)
    if is_busy:
        world.database.run_beside_batches(None for _ in range(3))
    world.begin(put("gate", False))
    world.write(put("room/text", "secret"))
    assert lost == ["[]"]


def test_a_node_with_volatile_children_alone_has_no_priority() -> None:
    world = make_world()
    world.write(put("boards/a/typing", "ada"))
    recorder, before = watch(world, "boards"), logged(world)
    world.write(make_put(Place(("boards", "a"), is_priority=True), 5))
    world.clock.run()
    assert logged(world) == before
    assert not recorder.events
    assert world.database.read(lambda nodes: nodes.priority(("boards", "a"))) is None


def test_nothing_volatile_is_below_a_stored_leaf() -> None:
    world = make_world()
    world.write(put("boards/a", "text"))
    assert isinstance(world.write(put("boards/a/cursors/ada", {"x": 1})), InvalidData)
    world.write(put("boards/a", None))
    world.write(put("boards/a/cursors/ada", {"x": 1}))
    world.write(put("boards/a", "text"))
    assert world.get("boards") == {"a": "text"}
    assert isinstance(world.write(put("boards/a/cursors/ada", {"x": 1})), InvalidData)


def test_volatile_nodes_take_a_bounded_number_of_bytes() -> None:
    world = make_world()
    volatile = world.database.volatile
    assert volatile is not None
    volatile._limit = 2000  # type: ignore[misc]
    world.write(put("boards/a/typing", {"text": "x" * 1500}))
    assert isinstance(world.write(put("boards/b/typing", "y" * 500)), VolatileFull)
    world.write(put("boards/a/typing/text", "x" * 1400))
    world.write(put("boards/a/typing", None))
    assert volatile.size == 0
    world.write(put("boards/b/typing", "y" * 500))
    world.write(put("boards/c/typing", "y" * 500))
    volatile._limit = volatile.size  # type: ignore[misc]
    moved: dict[str, Json] = {"b/typing": None, "d/typing": "y" * 500}
    assert not isinstance(world.write(make_patch(("boards",), moved)), VolatileFull)
    assert set(world.get("boards")) == {"c", "d"}


def sized(world: World, limit: int) -> Any:
    """Return what a database keeps of volatile nodes, which may take some bytes."""
    volatile = world.database.volatile
    assert volatile is not None
    volatile._limit = limit  # type: ignore[misc]
    return volatile


def test_what_volatile_nodes_take_is_the_length_of_their_json() -> None:
    world = make_world()
    volatile = sized(world, 10**6)
    for edit in [
        put("boards/a/cursors/ada", {"x": 1, "more": "m" * 300, "text": "x" * 90}),
        put("boards/a/cursors/ada/text", "y" * 900),
        put("boards/a/cursors/bob", {"x": 2}),
        put("boards/a/cursors/bob", {"x": 1, "n": {"a": 1, "b": 2}}),
        put("boards/a/cursors/ada/text", None),
        make_patch(("boards", "a"), {"title": "A", "typing": {"ada": "z" * 50}}),
        put("boards/a", {"cursors": {"eve": {"x": 1}, "ada": {"x": 10}}, "title": "B"}),
    ]:
        world.write(edit)
        sizes = [len(json.dumps(plain(top.value), separators=(",", ":"))) for top in volatile._tops]
        # A part that is set or removed within a node is counted without its key.
        assert abs(volatile.size - sum(sizes) - TOP_BYTES * len(sizes)) <= 16
    world.write(make_remove(Place(("boards", "a"))))
    assert volatile.size == 0


@pytest.mark.parametrize(
    ("edit", "is_accepted"),
    [
        (put("boards/a/typing", "x" * 1500), True),  # as long as what it replaces
        (put("boards/a/typing", "x" * 1700), True),
        (put("boards/a/typing/text", "x" * 1480), True),
        (put("boards/a/typing", "x" * 1900), False),
        (put("boards/a/cursors/ada", {"x": 1}), False),  # there is room for its value alone
        (put("boards/a", {"typing": {"text": "y" * 1490}}), True),
        (put("boards/a", {"title": 1, "typing": {"text": "y" * 1900}}), False),
        (make_patch(("boards",), {"a/title": 1, "b/typing": 1}), False),
        (put("boards", {f"b{number}": {"typing": 1} for number in range(8)}), False),
        (put("boards/a/title", "A"), True),
        (put("boards/a", None), True),
    ],
)
def test_a_write_may_replace_as_much_as_it_sets(edit: Edit, is_accepted: bool) -> None:
    world = make_world()
    volatile = sized(world, 2000)
    world.write(put("boards/a/typing", {"text": "x" * 1500}))
    before = world.get()
    outcome = world.write(edit)
    assert isinstance(outcome, Outcome if is_accepted else VolatileFull)
    assert volatile.size <= 2000
    if not is_accepted:
        assert world.get() == before


def test_a_write_that_makes_it_less_is_accepted_though_it_is_too_much() -> None:
    world = make_world()
    volatile = sized(world, 2000)
    world.write(put("boards/a/typing", "x" * 1500))
    sized(world, 1000)  # other processes may have made it more
    assert isinstance(world.write(put("boards/a/typing", "x" * 1501)), VolatileFull)
    assert isinstance(world.write(put("boards/a/typing", "x" * 1400)), Outcome)
    assert volatile.size > 1000


@pytest.mark.parametrize(
    ("path", "value", "error"),
    [
        ("boards/a/typing", "x" * 33_000, TooLarge),
        ("boards/a/typing/text", "x" * 33_000, TooLarge),
        ("boards/a", {"typing": "x" * 33_000, "title": 1}, TooLarge),
        ("boards/a/cursors/" + "k" * 480, {"x": 1}, InvalidData),
        ("boards/a/cursors/" + "k" * 480 + "/x", 1, InvalidData),
        ("boards/a/cursors", {"k" * 480: {"x": 1}}, InvalidData),
    ],
)
def test_a_volatile_node_has_a_bounded_value_and_path(
    path: str, value: Any, error: type[Exception]
) -> None:
    world = make_world()
    assert isinstance(world.write(put(path, value)), error)
    assert world.get() == {"exists": True}


def test_what_is_volatile_does_not_count_for_the_quota_of_the_database() -> None:
    world = make_world(database_bytes=1000)
    refused = world.write(put("boards/a", {"title": "t" * 1500, "typing": 1}))
    assert isinstance(refused, QuotaExceeded)
    assert not isinstance(refused, VolatileFull)
    assert world.get() == {"exists": True}
    world.write(put("boards/a/typing", "x" * 5000))
    world.write(put("boards/b", {"title": "t" * 500, "typing": "y" * 5000}))
    assert world.get("boards") == {
        "a": {"typing": "x" * 5000},
        "b": {"title": "t" * 500, "typing": "y" * 5000},
    }


def test_one_write_sets_a_bounded_number_of_volatile_places() -> None:
    world = make_world()
    members: dict[str, Json] = {f"boards/a/cursors/u{number}/x": 1 for number in range(1001)}
    assert isinstance(world.write(make_patch((), members)), InvalidData)
    boards = {f"b{number}": {"typing": 1} for number in range(1001)}
    assert isinstance(world.write(put("boards", boards)), InvalidData)
    titles: dict[str, Json] = {f"boards/b{number}/title": 1 for number in range(1001)}
    assert world.write(make_patch((), titles)).volatile == ()
    members.popitem()
    world.write(make_patch((), members))
    assert len(world.get("boards", "a", "cursors")) == 1000


def test_many_nodes_are_several_events() -> None:
    world = make_world()
    recorder = watch(world, "boards/a/cursors")
    for number in range(1000):
        world.begin(put(f"boards/a/cursors/u{number}/x", number))
    world.clock.run()
    assert len(recorder.events) == 4
    keys: set[str] = set()
    for event in recorder.events:
        assert isinstance(event.data, dict)
        keys |= event.data.keys()
    assert keys == {f"u{number}/x" for number in range(1000)}


@pytest.mark.parametrize("limit", [{}, {"limitToFirst": "600"}])
def test_a_commit_comes_between_the_events_of_many_nodes(limit: dict[str, str]) -> None:
    world = make_world(disk=Disk())
    boards: dict[str, Json] = {f"b{number:03}": {"title": 1} for number in range(600)}
    world.begin(put("boards", boards))
    world.clock.run()
    world.disk.finish_all()
    world.clock.run()
    query = parse_query({"orderBy": '"typing/who"', "equalTo": '"ada"'} | limit)
    reader = Reader(world, ("boards",), query)
    reader.start()
    for who in ("ada", "zoe"):
        for board in boards:
            world.begin(put(f"boards/{board}/typing/who", who))
        if who == "ada":
            world.clock.advance(1)
            world.clock.run()
            assert set(reader.replica.tree or ()) == boards.keys()
    world.begin(put("boards/b599/title", 2))
    world.clock.run_until(lambda: world.disk.waiting)
    world.clock.lag = 0.001
    world.clock.rightNow += 1
    world.clock.run_until(lambda: len(reader.replica.tree or ()) < 600)
    assert reader.replica.tree
    world.disk.finish()
    world.clock.run()
    assert reader.replica.tree is None


def test_the_first_write_creates_the_database() -> None:
    world = World(rules=RULES, disk=Disk())
    world.begin(put("boards/a/typing/ada", True))
    world.clock.run()
    assert world.disk.waiting
    world.disk.finish_all()
    world.clock.run()
    assert world.get("boards") == {"a": {"typing": {"ada": True}}}
    world.begin(put("boards/a/typing/bob", True))
    assert world.get("boards", "a", "typing") == {"ada": True, "bob": True}


# A model: what is read is what is stored and what is volatile, and who watches has the same.


@attrs.define(eq=False)
class Reader:
    """A watcher that applies its events to what it has read first."""

    world: World
    path: Path
    query: Query | None
    replica: Replica = attrs.field(factory=Replica)
    subscription: Subscription = attrs.field(init=False)

    @subscription.default
    def _(self) -> Subscription:
        return self.world.database.subscribe(self.path, self.query, self)

    def start(self) -> None:
        """Begin, or begin again, with the present value."""

        def render(nodes: Nodes) -> bytes:
            return b"".join(self.subscription.chunks(nodes))

        text, _ = self.subscription.watch(render)
        self.replica.apply("put", "/", json.loads(text))

    def notify(self, notification: Notification) -> None:
        """Apply events."""
        if notification.is_missed:
            self.start()
            return
        for _, event in notification.events:
            self.replica.apply(event.kind, "/" + "/".join(event.path), event.data)

    def fail(self) -> None:
        """Fail the test."""
        raise AssertionError

    def revoke(self) -> None:
        """Fail the test."""
        raise AssertionError


MODEL_RULES = parse_rules(
    """{"rules": {".read": true, ".write": true, "$a": {
        "v": {".volatile": true}, "w": {"$b": {".volatile": {"hz": 50}}}}}}"""
)
KEYS = st.sampled_from(["a", "b", "v", "w"])
PATHS = st.lists(KEYS, max_size=4).map(tuple)
LEAVES = st.integers(0, 3) | st.booleans()
VALUES = st.recursive(
    LEAVES, lambda inner: st.dictionaries(KEYS, inner, min_size=1, max_size=3), max_leaves=6
)
QUERIES = st.sampled_from(
    [
        None,
        {"orderBy": '"$key"', "limitToFirst": "2"},
        {"orderBy": '"v"', "limitToLast": "2"},
        {"orderBy": '"v/a"', "equalTo": "1"},
        {"orderBy": '"$value"', "startAt": "1"},
        {"orderBy": '"w/a"'},
    ]
)


class VolatileMachine(RuleBasedStateMachine):
    """Writes of all kinds, with a plain tree as their model."""

    @initialize(lag=st.sampled_from([0.0, 0.002]))
    def start(self, lag: float) -> None:
        """Begin; with a lag, work in slices takes more turns."""
        self.world = make_world(MODEL_RULES, disk=Disk(), clock=TurnClock(lag))
        self.model = World()
        self.model.write(put("exists", True))
        self.readers: list[Reader] = []
        self.under_way = 0

    def _begin(self, edit: Edit) -> None:
        self.under_way += 1

        def end(result: Any) -> None:
            self.under_way -= 1
            if not isinstance(result, Failure):
                self.model.write(edit)  # writes are answered in the order in which they are made
            elif not result.check(InvalidData):
                result.raiseException()

        self.world.begin(edit).addBoth(end)

    def _write(self, edit: Edit) -> None:
        self._begin(edit)
        self._finish()

    def _finish(self) -> None:
        self.world.clock.run()
        while self.world.disk.waiting:
            self.world.disk.finish_all()
            self.world.clock.run()

    @rule(path=PATHS, value=st.none() | VALUES)
    def put(self, path: Path, value: Json) -> None:
        """Set a place, or remove it."""
        self._write(make_put(Place(path), value))

    @rule(path=PATHS, value=st.none() | VALUES)
    def begin(self, path: Path, value: Json) -> None:
        """Set a place whose commit is not finished yet, if it needs one."""
        self._begin(make_put(Place(path), value))

    @rule(path=st.tuples(KEYS, st.just("v"), KEYS), value=st.none() | VALUES, ends=st.booleans())
    def put_volatile(self, path: Path, value: Json, ends: bool) -> None:
        """Set a volatile place in its turn, of which watchers may not be notified yet."""
        self._begin(make_put(Place(path), value))
        if ends:
            self._finish()

    @rule(path=PATHS, members=st.dictionaries(KEYS, st.none() | VALUES, min_size=1, max_size=3))
    def patch(self, path: Path, members: dict[str, Json]) -> None:
        """Merge members, some of which may be volatile."""
        if len(path) < 4:
            self._write(make_patch(path, members))

    @rule(path=PATHS, query=QUERIES)
    def watch(self, path: Path, query: dict[str, str] | None) -> None:
        """Begin to watch."""
        if len(self.readers) < 4:
            parsed = None if query is None else parse_query(query)
            self.readers.append(Reader(self.world, path, parsed))
            self.readers[-1].start()

    @rule()
    def turn(self) -> None:
        """Take one turn of the reactor."""
        self.world.clock.take_turn()

    @rule()
    def commit(self) -> None:
        """Finish a commit, but not what follows it."""
        if self.world.disk.waiting:
            self.world.disk.finish()

    @rule(seconds=st.sampled_from([0.001, 0.02]))
    def wait(self, seconds: float) -> None:
        """Let time pass."""
        self.world.clock.advance(seconds)

    @invariant()
    def reads_are_the_model(self) -> None:
        """What is read is what the model has, and so is what readers have when all is flushed."""
        if not self.under_way:
            assert self.world.get() == self.model.get()

    def teardown(self) -> None:
        """Flush, and compare what the readers have."""
        self._finish()
        self.world.clock.advance(0.1)
        self._finish()
        for reader in self.readers:
            fresh = Reader(self.world, reader.path, reader.query)
            fresh.start()
            assert reader.replica.tree == fresh.replica.tree, (reader.path, reader.query)


TestVolatileMachine = VolatileMachine.TestCase
TestVolatileMachine.settings = settings(deadline=None, max_examples=examples(40))


def test_when_a_node_goes_depends_on_nothing_volatile() -> None:
    rules = parse_rules(
        """{"rules": {".read": true, ".write": true, "boards": {"$board": {
            ".ttl": "data.child('until').val()", "until": {".volatile": true}}}}}"""
    )
    world = make_world(rules)
    world.begin(put("boards/a", {"until": 5000}))
    world.clock.run()
    (shown,) = world.database.explain_expiry(("boards", "a", "until"))
    assert isinstance(shown, dict)
    assert (shown["path"], shown["expires"]) == ("/boards/a", None)


def write_large(world: World, method: Method, path: str, body: Any) -> Any:
    """Do a write that is applied fragment by fragment, each of which is short."""
    text, place = orjson.dumps(body), Place(keys_of(path))
    edit = Edit(method, place, None, (Change(place, STORED),))
    large = LargeBody(lambda: iter([text]), len(text), 10_000, 10_000)
    results: list[Any] = []
    write = world.begin(edit, now=1, caller=Caller(None), wants_echo=False, large=large)
    write.addBoth(results.append)
    world.clock.run_until(lambda: bool(results))
    world.clock.run()
    return results[0]


def without_volatile(json: Any, path: Path = ()) -> Any:
    """Return JSON without what `RULES` call volatile, with objects in place of arrays."""
    is_volatile = path[2:3] == ("typing",) or (len(path) == 4 and path[2] == "cursors")
    if isinstance(json, list):
        json = {str(number): item for number, item in enumerate(json)}
    if is_volatile or not isinstance(json, dict):
        return None if is_volatile else json
    left = {key: without_volatile(item, (*path, key)) for key, item in json.items()}
    return {key: item for key, item in left.items() if item is not None} or None


SENT_LEAVES = st.sampled_from([1, "a string that is not short", True, None])
SENT_VALUES = st.recursive(
    SENT_LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.sampled_from(["x", "cursors", "typing", "0"]), inner, max_size=4),
    ),
    max_leaves=8,
)
BOARDS = st.dictionaries(
    st.sampled_from("abc"),
    st.dictionaries(st.sampled_from(["title", "cursors", "typing"]), SENT_VALUES, max_size=3),
    max_size=3,
)


@settings(max_examples=examples(100), deadline=None)
@given(boards=BOARDS, fragment_bytes=st.integers(20, 200), method=st.sampled_from(["put", "patch"]))
def test_a_large_body_is_stored_without_what_is_volatile(
    boards: Any, fragment_bytes: int, method: Method
) -> None:
    world = make_world()
    world.begin(put("boards/a", {"title": "before", "cursors": {"ada": 1}}))
    world.clock.run()
    body, model = boards, {"a": {"title": "before", "cursors": {"ada": 1}}}
    if method == "patch":
        body = {f"{board}/{key}": boards[board][key] for board in boards for key in boards[board]}
        for board, values in boards.items():
            cut = {key: without_volatile(values[key], ("boards", board, key)) for key in values}
            model[board] = model.get(board, {}) | cut
    else:
        model = {board: without_volatile(boards[board], ("boards", board)) for board in boards}
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(apply, "Splitter", lambda: Splitter(fragment_bytes))
        assert not isinstance(write_large(world, method, "boards", body), Failure)
    assert without_volatile(world.get("boards")) == without_volatile(model)


def test_no_row_has_what_is_volatile_of_a_large_body() -> None:
    world = make_world()
    world.begin(put("boards/a/typing", "before"))
    world.clock.run()
    merged = write_large(world, "patch", "boards", {"a/title": 1, "a/typing": "volatile-value"})
    assert merged.volatile_part == "dropped"
    assert world.get("boards") == {"a": {"title": 1}}
    write_large(world, "put", "boards", {"a": {"title": 2, "typing": "volatile-value"}})
    assert world.get("boards") == {"a": {"title": 2}}
    rows = repr(world.engine.read(lambda view: list(view.scan(b"", b"\xff" * 8))))
    entries = repr(world.engine.read(lambda view: list(view.entries(0))))
    assert "title" in rows + entries
    assert "volatile-value" not in rows + entries


def test_a_large_body_replaces_what_is_stored_at_a_volatile_node() -> None:
    world = make_world(OPEN)
    world.begin(put("boards", {"a": {"typing": "stored"}, "b": {"title": "b"}}))
    world.clock.run()
    world.rules.current = RULES
    world.rules_changed()
    write_large(world, "put", "boards", {"a": {"typing": "again"}, "b": {"typing": 1, "title": 2}})
    assert world.get("boards") == {"a": {"typing": "again"}, "b": {"title": 2}}


def test_the_rules_of_a_large_body_see_the_volatile_nodes_that_remain() -> None:
    world = make_world(
        parse_rules(
            """{"rules": {".read": true, ".write": true, "boards": {"$board": {
            ".validate": "newData.child('typing').val() == 1", "typing": {".volatile": true}}}}}"""
        )
    )
    world.begin(put("boards/a/typing", 1))
    world.clock.run()
    assert not isinstance(write_large(world, "patch", "boards/a", {"title": 2}), Failure)
    assert isinstance(write_large(world, "put", "boards/a", {"title": 3}), Failure)
    assert world.get("boards", "a") == {"title": 2, "typing": 1}


def test_a_leaf_that_was_replaced_by_what_is_removed_again_is_removed_for_watchers() -> None:
    world = make_world()
    world.write(put("boards/a/cursors/ada", {"x": 1, "y": 2}))
    recorder = watch(world, "boards/a/cursors/ada")
    world.begin(put("boards/a/cursors/ada/y/z", 3))
    world.begin(put("boards/a/cursors/ada/y/z", None))
    world.clock.run()
    assert world.get("boards", "a", "cursors", "ada") == {"x": 1}
    assert [(event.path, event.data) for event in recorder.events] == [(("y",), None)]


def test_rules_that_change_before_a_flush_leave_watchers_with_what_is_there_now() -> None:
    rules = '{"rules": {".read": true, ".write": true, "m": %s}}'
    world = make_world(parse_rules(rules % '{".volatile": {"hz": 1}}'))
    reader = Reader(world, (), None)
    reader.start()
    for number in range(3):
        world.write(put("m/z", number))
    world.rules.current = parse_rules(rules % "{}")
    world.rules_changed()
    world.write(put("m/n", "stored"))
    world.clock.advance(1)
    world.clock.run()
    assert world.get("m") == {"n": "stored"}
    assert reader.replica.equals(world.get())
