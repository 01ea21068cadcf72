"""The events of hooks: what each write leaves in the change log, and from which write on."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import attrs
import pytest

from tests.database.world import ADMIN, Disk, World, logged_failures
from treedbd.database import event_capture
from treedbd.database.apply import WriteApplier
from treedbd.database.event_capture import ChangeHooks, EventCapture, cursor_at_end
from treedbd.database.requests import (
    HookConflict,
    LargeBody,
    Outcome,
    TooManyCursors,
    TooManyEvents,
    TooManyHooks,
    Unavailable,
    Write,
)
from treedbd.limits import KIB, MAX_CURSORS, MAX_HOOKS, HookLimits
from treedbd.store.changelog import LoggedEvent, events_of, is_whole
from treedbd.store.cursors import put_cursor, read_cursor, read_cursors
from treedbd.store.engine import StoreFailed, Transaction
from treedbd.store.hooks import HOOK_FIRST, Hook, Kind, read_hooks
from treedbd.store.nodes import Nodes
from treedbd.store.verify import verify_indexes
from treedbd.tree.edit import ANY_LENGTH, Edit, Method, make_patch, make_put, make_remove
from treedbd.tree.pattern import parse_pattern
from treedbd.tree.types import ROOT, STORED, Change, Json, Place

NOTHING = make_remove(Place(ROOT))
Shown = tuple[str, str, Any, Any]
"""The kind of an event, its path, and the values before and after; "…" for one that is cut."""


def make_hook(name: str = "all", on: str = "/orders/$id", *kinds: Kind, **more: Any) -> Hook:
    return Hook(
        name, parse_pattern(on), frozenset(kinds or ("created", "updated", "deleted")), **more
    )


CONFIGURED = make_hook(is_configured=True)
ORDERS = {"a": {"n": 1}, "b": {"n": 2}}


class HookWorld(World):
    """A database with hooks of the configuration, by default one for `/orders/$id`."""

    def __init__(self, *configured: Hook, limits: HookLimits | None = None, **more: Any) -> None:
        of_runtime = {"hooks_of": lambda _: configured, "hook_limits": limits or HookLimits()}
        super().__init__(of_runtime=of_runtime, **more)

    def put(self, path: str, value: Any, **options: Any) -> Any:
        return self.write(make_put(Place(keys_of(path)), value, ANY_LENGTH), **options)

    def patch(self, path: str, members: Any, **options: Any) -> Any:
        return self.write(make_patch(keys_of(path), members, ANY_LENGTH), **options)

    def put_large(self, path: str, value: Any) -> Any:
        """Write a value as one whose body is parsed piece by piece."""
        return self.wait(self.begin_large(path, value))

    def begin_large(self, path: str, value: Any, method: Method = "put") -> Any:
        text = json.dumps(value).encode()
        place = Place(keys_of(path))
        target = Edit(method, place, None, (Change(place, STORED),))
        body = LargeBody(lambda: iter([text]), len(text), ANY_LENGTH, 10**6)
        return self.begin(target, large=body, wants_echo=False)

    def change_hooks(self, change: Callable[[list[Hook]], list[Hook]]) -> Any:
        """Change the stored hooks; return the outcome, or the error."""
        return self.write(NOTHING, task=self.task(change))

    def task(self, change: Callable[[list[Hook]], list[Hook]]) -> ChangeHooks:
        self.stamps = getattr(self, "stamps", 0) + 1
        return ChangeHooks(change, str(self.stamps).encode(), 5)

    def add(self, *hooks: Hook) -> Any:
        return self.change_hooks(lambda before: [*before, *hooks])

    def logged(self) -> list[list[LoggedEvent]]:
        """Return the events of each entry."""
        entries = self.database.read(lambda nodes: list(nodes.rows.entries(0)))
        return [events_of(entry.content) for entry in entries]

    def last(self) -> list[Shown]:
        """Return the events of the last entry."""
        return [show(event) for event in self.logged()[-1]]

    def task_events(self) -> EventCapture:
        """Return what captures the events, which only tasks of writes see."""
        found: list[EventCapture] = []

        def find(applier: WriteApplier, _: Transaction, write: Write) -> Outcome:
            found.append(applier.events)
            return Outcome(write.edit, None, None, None)

        self.write(NOTHING, task=find)
        return found[0]

    def cursors(self) -> dict[str, int]:
        view = self.database.read(lambda nodes: read_cursors(nodes.rows.stored))
        return {each.name: each.sequence for each in view}

    def stored(self) -> list[str]:
        """Return the names of the stored hooks; nothing of the database may be damaged."""

        def look(nodes: Nodes) -> tuple[list[str], list[Hook]]:
            view = nodes.rows.stored
            return list(verify_indexes(view)), read_hooks(view)

        problems, hooks = self.database.read(look)
        assert problems == []
        return [hook.name for hook in hooks]


def keys_of(path: str) -> tuple[str, ...]:
    return tuple(path.split("/")) if path else ()


def show(event: LoggedEvent) -> Shown:
    before, after = (
        "…" if name in event.cut else getattr(event, name) for name in ("before", "after")
    )
    return event.kind, "/".join(event.path), before, after


def test_events_are_of_places_that_are_created_updated_and_deleted() -> None:
    world = HookWorld(CONFIGURED)
    world.put("orders/a", {"n": 1})
    assert world.last() == [("created", "orders/a", None, {"n": 1})]
    world.put("orders/a", {"n": 2})
    assert world.last() == [("updated", "orders/a", {"n": 1}, {"n": 2})]
    world.write(make_remove(Place(("orders", "a"))))
    assert world.last() == [("deleted", "orders/a", {"n": 2}, None)]


def test_a_write_below_a_place_is_one_of_it() -> None:
    world = HookWorld(CONFIGURED)
    world.put("orders/a/lines/x/n", 1)
    after = {"lines": {"x": {"n": 1}}}
    assert world.last() == [("created", "orders/a", None, after)]
    world.patch("orders/a", {"m": 2, "lines/x/n": 3, "lines/y": 4})
    changed = {"lines": {"x": {"n": 3}, "y": 4}, "m": 2}
    assert world.last() == [("updated", "orders/a", after, changed)]
    world.put("orders/a", None)
    world.put("orders/a/x", 1)
    world.put("orders/a/x", None)
    assert world.last() == [("deleted", "orders/a", {"x": 1}, None)]


def test_a_write_above_places_is_one_of_each_that_it_changes() -> None:
    world = HookWorld(CONFIGURED)
    world.put("", {"orders": ORDERS, "other": 1})
    assert [each[:2] for each in world.last()] == [("created", "orders/a"), ("created", "orders/b")]
    world.put("orders", {"b": {"n": 2}, "c": 3, "a": {"n": 7}})
    assert world.last() == [
        ("updated", "orders/a", {"n": 1}, {"n": 7}),
        ("created", "orders/c", None, 3),
    ]
    world.patch("", {"orders/a": None, "orders/d": 1, "other": 2})
    assert [each[:2] for each in world.last()] == [("created", "orders/d"), ("deleted", "orders/a")]
    world.write(NOTHING)
    assert [each[0] for each in world.last()] == ["deleted"] * 3


def test_what_changes_nothing_at_a_place_is_no_event() -> None:
    world = HookWorld(CONFIGURED)
    world.put("orders", ORDERS)
    count = len(world.logged())
    for edit in (
        make_put(Place(("orders", "a")), {"n": 1}, ANY_LENGTH),
        make_put(Place(("orders", "a"), is_priority=True), 5, ANY_LENGTH),
        make_put(Place(("other",)), 5, ANY_LENGTH),
        make_patch(("orders",), {"b": {"n": 2}}, ANY_LENGTH),
        make_remove(Place(("orders", "none"))),
    ):
        world.write(edit)
    assert not any(world.logged()[count:])
    world.write(make_put(Place(("orders", "a", "n")), 3, ANY_LENGTH), has_events=False)
    assert world.last() == []
    assert world.get("orders", "a") == {"n": 3}


def test_server_values_are_resolved_in_events() -> None:
    world = HookWorld(CONFIGURED)
    world.put("orders/a", {"at": {".sv": "timestamp"}, "n": {".sv": {"increment": 2}}}, now=1234)
    assert world.last() == [("created", "orders/a", None, {"at": 1234, "n": 2})]


def test_only_kinds_that_a_hook_is_for_are_captured() -> None:
    world = HookWorld(make_hook("a", "/a/$id", "created"), make_hook("b", "/$x/$y", "deleted"))
    for value in (1, 2, None):
        world.put("a/k", value)
    assert [[each[0] for each in map(show, events)] for events in world.logged()] == [
        ["created"],
        [],
        ["deleted"],
    ]


def test_values_that_are_too_long_are_cut() -> None:
    world = HookWorld(CONFIGURED, limits=HookLimits(value_bytes=20))
    long = "x" * 19  # with quotes one more than there may be
    world.put("orders/a", long)
    assert world.last() == [("created", "orders/a", None, "…")]
    world.put("orders/a", "x" * 18)
    assert world.last() == [("updated", "orders/a", "…", "x" * 18)]
    world.put("orders/a", long * 1000)
    world.put("orders/a", None)
    assert world.last() == [("deleted", "orders/a", "…", None)]


def test_values_of_one_write_are_cut_together() -> None:
    world = HookWorld(CONFIGURED, limits=HookLimits(write_value_bytes=10))
    world.put("orders", {"a": "12345678", "b": 1, "c": 2})
    assert [each[3] for each in world.last()] == ["12345678", "…", "…"]


def test_a_write_with_too_many_events_changes_nothing() -> None:
    world = HookWorld(CONFIGURED, limits=HookLimits(events_per_write=3))
    world.put("orders", {"a": 1, "b": 1, "c": 1})
    cursors, logged = world.cursors(), len(world.logged())
    for value in ({"d": 1}, {str(number): 1 for number in range(4)}):
        refused = world.put("orders", value)
        assert isinstance(refused, TooManyEvents)
        assert isinstance(world.put_large("orders", value), TooManyEvents)
    assert "more than 3 events (events_per_write)" in str(refused)
    assert (world.cursors(), len(world.logged())) == (cursors, logged)
    assert world.get("orders") == {"a": 1, "b": 1, "c": 1}
    world.put("orders", {}, has_events=False)
    assert world.get("orders") is None


def test_the_paths_of_the_events_of_one_write_are_bounded_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(event_capture, "PATHS_CHARACTERS", 3 * len("orders") + 3 * 10)
    world = HookWorld(CONFIGURED)
    world.put("orders", {f"{number:010}": 1 for number in range(3)})
    refused = world.put("orders", {f"{number:010}": 2 for number in range(4)})
    assert isinstance(refused, TooManyEvents)
    assert "events whose paths have more than 48 characters" in str(refused)
    assert len(world.logged()) == 1


def test_a_refused_write_of_a_batch_leaves_the_others() -> None:
    world = HookWorld(CONFIGURED, limits=HookLimits(events_per_write=1))
    edits = [
        make_put(Place(("orders", "a")), 1, ANY_LENGTH),
        make_put(Place(("orders",)), {"x": 1, "y": 2}, ANY_LENGTH),
        make_put(Place(("orders", "b")), 2, ANY_LENGTH),
    ]
    done = [world.begin(edit) for edit in edits]
    results = [world.wait(each) for each in done]
    assert isinstance(results[1], TooManyEvents)
    assert world.get() == {"orders": {"a": 1, "b": 2}}
    assert [[show(event)[1] for event in events] for events in world.logged()] == [
        ["orders/a"],
        ["orders/b"],
    ]


def test_a_write_at_the_end_of_a_session_has_events_or_is_refused_with_too_many() -> None:
    world = HookWorld(CONFIGURED, limits=HookLimits(events_per_write=1))
    kept = world.database.disconnect_writes
    values: tuple[Json, ...] = ({"a": 1}, {"b": 1, "c": 1}, None)
    for number, value in enumerate(values):
        edit = make_put(Place(("orders",)), value, ANY_LENGTH)
        world.wait(kept.set(str(number), edit, ADMIN, 1, 100))
    with logged_failures() as failures:
        for number, expected in enumerate(({"a": 1}, {"a": 1}, None)):
            assert world.wait(kept.run(str(number))) is None
            assert world.get("orders") == expected
    assert failures == []
    assert [len(events) for events in world.logged()] == [1, 1]


def test_a_large_write_has_the_same_events() -> None:
    small, large = HookWorld(CONFIGURED), HookWorld(CONFIGURED)
    for value in (ORDERS, {"b": {"n": 2}, "c": [1, {"d": 'é"\\'}]}, None):
        small.put("orders", value)
        large.put_large("orders", value)
    assert large.logged() == small.logged()
    assert [len(events) for events in large.logged()] == [2, 2, 2]
    merged = HookWorld(CONFIGURED)
    merged.put("orders", ORDERS)
    merged.wait(merged.begin_large("", {"orders/a/n": 5, "orders/z": 1}, "patch"))
    assert [each[:2] for each in merged.last()] == [
        ("updated", "orders/a"),
        ("created", "orders/z"),
    ]


def test_a_large_write_has_no_events_if_it_is_to_have_none() -> None:
    world = HookWorld(CONFIGURED)
    text = json.dumps(ORDERS).encode()
    place = Place(("orders",))
    world.write(
        Edit("put", place, None, (Change(place, STORED),)),
        large=LargeBody(lambda: iter([text]), len(text), ANY_LENGTH, 10**6),
        has_events=False,
    )
    assert world.last() == []


def test_events_do_not_displace_the_body_of_an_entry() -> None:
    world = HookWorld(CONFIGURED)
    value = "x" * (60 * KIB)
    world.put("orders/a", value)
    entries = world.database.read(lambda nodes: list(nodes.rows.entries(0)))
    assert world.last() == [("created", "orders/a", None, value)]
    assert is_whole(entries[-1].content)


def test_keys_and_values_may_hold_the_marks_of_an_entry() -> None:
    world = HookWorld(CONFIGURED)
    nasty = {',"sent":': '"events":"[', "é\\": '"}],"events":'}
    world.put('orders/,"sent":', nasty)
    assert world.last() == [("created", 'orders/,"sent":', None, nasty)]


# Cursors.


def test_the_first_event_of_a_configured_hook_puts_its_cursor_before_it() -> None:
    world = HookWorld(CONFIGURED, make_hook("rare", "/rare", "deleted", is_configured=True))
    world.put("other", 1)
    assert world.cursors() == {}
    world.put("orders/a", 1)
    assert world.cursors() == {"hook-all": 1}
    world.put("orders/b", 1)
    world.put("rare", 1)
    assert world.cursors() == {"hook-all": 1}
    world.put("rare", None)
    assert world.cursors() == {"hook-all": 1, "hook-rare": 4}


def test_with_all_cursors_in_use_writes_go_on() -> None:
    world = HookWorld(CONFIGURED)
    fill_cursors(world)
    world.put("orders/a", 1)
    assert world.last() == [("created", "orders/a", None, 1)]
    assert "hook-all" not in world.cursors()
    assert isinstance(world.add(make_hook("b")), TooManyCursors)
    assert world.stored() == []


def fill_cursors(world: HookWorld, count: int = MAX_CURSORS) -> None:
    """Put so many cursors of other readers."""

    def put(_: object, transaction: Transaction, write: Write) -> Outcome:
        for number in range(count):
            put_cursor(transaction, cursor_at_end(transaction, f"r{number}", 1))
        return Outcome(write.edit, None, None, None, has_changed_rows=True)

    world.write(NOTHING, task=put)


# Stored hooks.


def test_a_stored_hook_applies_from_the_next_write_on() -> None:
    world = HookWorld()
    edits = [make_put(Place(("orders", key)), 1, ANY_LENGTH) for key in "ab"]
    begun = [
        world.begin(edits[0]),
        world.begin(NOTHING, task=world.task(lambda _: [make_hook()])),
        world.begin(edits[1]),
    ]  # all in one batch
    for each in begun:
        world.wait(each)
    assert [[show(event)[1] for event in events] for events in world.logged()] == [
        [],
        ["orders/b"],
    ]
    assert world.cursors() == {"hook-all": 1}
    assert world.stored() == ["all"]


def test_a_hook_that_was_not_stored_durably_captures_nothing() -> None:
    disk = Disk()
    world = HookWorld(disk=disk)
    edit = make_put(Place(("orders", "a")), 1, ANY_LENGTH)
    failed = [
        world.begin(NOTHING, task=world.task(lambda _: [make_hook()])),
        world.begin(edit),  # it sees the hook
    ]
    world.clock.run()
    disk.fail(StoreFailed("a sync failed"))
    assert all(isinstance(world.wait(each), Unavailable) for each in failed)
    disk.finish_all()
    world.clock.run()
    written = world.begin(edit)
    world.clock.run()
    disk.finish_all()
    world.wait(written)
    assert world.logged() == [[]]
    assert world.stored() == []


def test_changed_and_removed_hooks_capture_what_they_are_for_now() -> None:
    world = HookWorld()
    world.add(make_hook(), make_hook("other", "/other"))
    world.put("orders/a", 1)
    world.change_hooks(lambda before: [make_hook(on="/x/$id"), before[1]])
    world.put("x/a", 1)
    world.put("orders/b", 1)
    assert [len(events) for events in world.logged()] == [1, 1, 0]
    assert world.cursors() == {"hook-all": 0, "hook-other": 0}
    world.change_hooks(lambda before: before[1:])
    assert world.cursors() == {"hook-other": 0}
    world.put("x/a", 2)
    assert world.last() == []
    world.add(make_hook())
    assert world.cursors() == {"hook-all": 4, "hook-other": 0}
    assert world.stored() == ["all", "other"]


def test_a_process_alone_looks_for_hooks_once() -> None:
    world = HookWorld()
    events = world.task_events()
    world.put("a", 1)
    assert not events.is_used
    world.add(make_hook())
    assert events.is_used
    world.put("orders/a", 1)
    assert len(world.last()) == 1


def test_a_refused_change_of_hooks_changes_nothing() -> None:
    world = HookWorld(CONFIGURED)
    many = [make_hook(f"h{number}", "/h") for number in range(MAX_HOOKS - 1)]
    world.add(*many)
    before = world.cursors()
    fill_cursors(world, MAX_CURSORS - len(before))
    for change, error in (
        (lambda hooks: [*hooks, make_hook("one-more")], TooManyHooks),
        (lambda hooks: [*hooks[1:], make_hook("all")], HookConflict),
        (lambda hooks: [*hooks[2:], make_hook("x"), make_hook("y"), make_hook("z")], TooManyHooks),
    ):
        assert isinstance(world.change_hooks(change), error)
        assert world.stored() == sorted(hook.name for hook in many)
        assert before.items() <= world.cursors().items()
    world.change_hooks(lambda hooks: [*hooks[1:], make_hook("x")])
    assert "x" in world.stored()
    assert "hook-x" in world.cursors()
    assert "hook-h0" not in world.cursors()


def test_without_a_free_cursor_no_hook_is_stored() -> None:
    world = HookWorld()
    world.add(make_hook("a"))
    fill_cursors(world, MAX_CURSORS - 1)
    before = world.cursors()
    refused = world.change_hooks(lambda _: [make_hook("b"), make_hook("c")])
    assert isinstance(refused, TooManyCursors)
    assert (world.stored(), world.cursors()) == (["a"], before)
    assert world.add().commit is None


def test_a_hook_of_the_configuration_replaces_a_stored_one() -> None:
    stored = HookWorld()
    stored.add(make_hook(on="/old/$id"))
    stored.put("a", 1)
    world = HookWorld(CONFIGURED, engine=stored.engine)
    world.put("old/a", 1)
    assert world.last() == []
    world.put("orders/a", 1)
    assert len(world.last()) == 1
    assert [hook.on.text for hook in world.database.hooks()] == ["/orders/$id"]
    assert world.cursors() == {"hook-all": 0}
    world.change_hooks(lambda _: [])
    assert (world.stored(), world.cursors()) == ([], {"hook-all": 0})


def test_a_hook_whose_cursor_was_dropped_begins_again_when_it_is_changed() -> None:
    world = HookWorld()
    world.add(make_hook())
    world.put("orders/a", 1)

    def drop(_: object, transaction: Transaction, write: Write) -> Outcome:
        cursor = read_cursor(transaction, "hook-all")
        assert cursor is not None
        put_cursor(transaction, attrs.evolve(cursor, dropped_ms=1))
        return Outcome(write.edit, None, None, None, has_changed_rows=True)

    def shown() -> list[tuple[int, int | None]]:
        cursors = world.database.read(lambda nodes: read_cursors(nodes.rows.stored))
        return [(each.sequence, each.dropped_ms) for each in cursors]

    world.write(NOTHING, task=drop)
    world.add(make_hook("other"))  # which must not hide that events of the first are lost
    assert shown() == [(0, 1), (1, None)]
    world.change_hooks(lambda _: [make_hook(on="/orders/$key")])
    assert shown() == [(1, None)]


def test_writes_go_on_if_the_hooks_are_damaged() -> None:
    world = HookWorld(CONFIGURED)
    world.add(make_hook("b"))

    def damage(_: object, transaction: Transaction, write: Write) -> Outcome:
        transaction.put(HOOK_FIRST, b"other")
        transaction.put(HOOK_FIRST + b"d", b"nonsense")
        return Outcome(write.edit, None, None, None, has_changed_rows=True)

    world.write(NOTHING, task=damage)
    world.put("orders/a", 1)
    assert world.last() == [("created", "orders/a", None, 1)]
