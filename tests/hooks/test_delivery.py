"""Delivery: each event at least once, in order per path, whatever receivers and processes do."""

from __future__ import annotations

import pathlib
from collections import defaultdict
from types import SimpleNamespace
from typing import Any

import attrs
import pytest
from twisted.internet.defer import Deferred
from twisted.logger import capturedLogs, eventAsText

from tests.database.catalogs import problems
from tests.hooks.network import Posted, reply
from tests.hooks.world import LIMITS, NAME, URL, HookWorld, make_hook
from treedbd.hooks import delivery
from treedbd.hooks.delivery import AWAY_AFTER, WINDOW_EVENTS
from treedbd.limits import HookLimits, ReaderLimits
from treedbd.operating.metrics import METRICS
from treedbd.store.cursors import read_cursor


@pytest.fixture
def world(tmp_path: pathlib.Path) -> HookWorld:
    return HookWorld(tmp_path, make_hook())


def by_path(posted: list[Posted]) -> dict[str, list[Any]]:
    """Return the values of each path in the order in which they came first."""
    found: dict[str, dict[Any, None]] = defaultdict(dict)
    for each in posted:
        found[each.event["path"]].setdefault(each.value)
    return {path: list(values) for path, values in found.items()}


def test_an_event_is_sent_once_it_is_written_and_the_cursor_moves(world: HookWorld) -> None:
    world.put({"n": 1}, "orders", "a")
    world.put(1, "others", "a")
    world.run(3)
    (posted,) = world.network.posted
    assert posted.head == "POST /hook?token=in-the-url HTTP/1.1"
    assert posted.event["id"].startswith("p/a/1/0-")
    assert (posted.event["kind"], posted.event["after"]) == ("created", {"n": 1})
    world.put({"n": 2}, "orders", "a")
    world.network.advance(0.01)
    world.network.run()
    assert world.values() == [{"n": 1}, {"n": 2}]  # at once, since the database is known
    world.run(3)
    cursor = world.database.read(lambda nodes: read_cursor(nodes.rows.stored, "hook-orders"))
    assert cursor is not None
    assert cursor.sequence == 3
    world.kill()
    world.start()
    world.run(3)
    assert len(world.network.posted) == 2


def test_events_of_one_path_are_in_order_and_of_others_at_the_same_time(world: HookWorld) -> None:
    world.network.respond = lambda _: None
    for number in range(3):
        for path in ("a", "b"):
            world.put(number, "orders", path)
    world.run(2)
    assert world.values() == [0, 0]
    for _ in range(3):
        for connection in list(world.network.unanswered):
            connection.send(reply())
        world.network.run()
    assert by_path(world.network.posted) == {"/orders/a": [0, 1, 2], "/orders/b": [0, 1, 2]}
    assert world.network.most == 2


def test_no_more_than_the_concurrency_is_under_way(world: HookWorld) -> None:
    world.network.respond = lambda _: None
    world.patch({f"k{n}": n for n in range(50)}, "orders")
    world.run(2)
    assert world.network.most == LIMITS.concurrency


def test_a_receiver_that_fails_half_the_time_gets_each_event_in_order(
    tmp_path: pathlib.Path,
) -> None:
    world = HookWorld(tmp_path, make_hook(), limits=HookLimits())

    def respond(posted: Posted) -> bytes | None:
        count = len(world.network.posted) * 7 % 11
        if count < 4:
            return reply(500)
        if count == 5:
            raise ConnectionResetError
        return None if count == 7 else reply()

    world.network.respond = respond
    for number in range(120):
        world.put(number, "orders", f"k{number % 6}")
    expected = {f"/orders/k{at}": list(range(at, 120, 6)) for at in range(6)}
    for _ in range(50):  # waits are random, and of a path that fails often they are long
        world.run(600)
        if by_path(world.network.posted) == expected:
            break
    assert by_path(world.network.posted) == expected
    ids: dict[tuple[str, Any], set[str]] = defaultdict(set)
    for each in world.network.posted:
        ids[each.event["path"], each.value].add(each.headers["X-TreeDB-Event-Id"])
    assert all(len(found) == 1 for found in ids.values())
    assert world.letters() == []
    assert world.deliverer.lag_s() == 0


def test_what_was_not_acknowledged_is_sent_again_after_the_process_is_killed(
    world: HookWorld,
) -> None:
    accepted: list[Any] = []

    def respond(posted: Posted) -> bytes | None:
        if len(world.network.posted) % 5 == 0:
            return None
        accepted.append((posted.event["path"], posted.value))
        return reply()

    world.network.respond = respond
    for number in range(60):
        world.put(number, "orders", f"k{number % 3}")
        if number % 17 == 0:
            world.run(0.5)
            world.kill()
            world.start()
    world.run(200)
    assert {value for _, value in accepted} == set(range(60))
    for at in range(3):
        path = f"/orders/k{at}"
        assert by_path(world.network.posted)[path] == list(range(at, 60, 3))


def test_a_receiver_that_is_away_is_probed_and_loses_nothing(world: HookWorld) -> None:
    world.network.is_away = True
    for number in range(30):
        world.put(number, "orders", f"k{number}")
    world.run(5)
    before = len(world.network.connected)
    assert AWAY_AFTER <= before <= AWAY_AFTER + 8 + 4
    world.run(3600)
    tried = len(world.network.connected) - before
    assert 3600 / LIMITS.longest_wait_s - 5 <= tried <= 2 * 3600 / LIMITS.longest_wait_s + 12
    assert world.letters() == []
    assert world.state().paused == "The receiver accepts no events; it is tried again."
    assert world.state().error == "it refused the connection"
    world.network.is_away = False
    world.run(LIMITS.longest_wait_s)
    assert sorted(world.values()) == list(range(30))
    world.run(11)
    assert world.state().paused == ""


def test_an_event_that_its_receiver_never_accepts_is_a_dead_letter(world: HookWorld) -> None:
    world.network.respond = lambda posted: reply(500 if posted.value == "bad" else 200, "oh\x07no")
    world.put("bad", "orders", "a")
    world.put("next", "orders", "a")
    for number in range(200):
        world.put(number, "orders", "b")
        world.run(1)
    assert world.values().count("bad") == LIMITS.attempts + 1  # the first had no success before
    assert world.values().count("next") == 1
    (letter,) = world.letters()
    assert letter.is_dead
    assert letter.error == "it answered 500: oh\\x07no"
    event_id = letter.message.event_id
    assert world.state().dead == 1
    world.network.respond = lambda _: reply()
    assert world.change_letters("replay") == 1
    world.put(0, "others")
    world.run(3)
    last = world.network.posted[-1]
    assert (last.value, last.headers["X-TreeDB-Event-Id"]) == ("bad", event_id)
    assert world.letters() == []
    assert world.state().dead == 0


def test_what_is_sent_is_counted(world: HookWorld) -> None:
    def read() -> dict[str, Any]:
        sources: Any = SimpleNamespace(deliverer=world.deliverer)
        named = [metric for metric in METRICS if metric.name.startswith("treedb_webhook_")]
        return {metric.name: metric.read(sources) for metric in named}

    world.network.respond = lambda posted: None if len(world.network.posted) < 3 else reply(422)
    world.put(1, "orders", "a")
    world.run(15)
    assert read()["treedb_webhook_lag_seconds"] > 10
    world.run(60)
    found = read()
    assert found["treedb_webhook_requests_total"] == {("accepted",): 0, ("failed",): 6}
    assert found["treedb_webhook_retries_total"] == 5
    assert found["treedb_webhook_dead_letters"] == 1
    assert found["treedb_webhook_lag_seconds"] == 0
    assert found["treedb_webhook_losses_total"] == 0
    assert (sum(found["treedb_webhook_seconds"].counts), found["treedb_webhook_seconds"].total) == (
        6,
        20,
    )


def test_a_status_that_refuses_one_event_counts_without_any_success(world: HookWorld) -> None:
    world.network.respond = lambda _: reply(422)
    world.put(1, "orders", "a")
    world.run(60)
    assert world.values() == [1] * LIMITS.attempts
    assert [letter.is_dead for letter in world.letters()] == [True]


def test_what_a_receiver_says_of_its_url_is_shown_to_admins_and_not_logged(
    world: HookWorld,
) -> None:
    world.network.respond = lambda _: reply(422, "Cannot POST /hook?token=in-the-url")
    world.put(0, "orders", "a")
    with capturedLogs() as dead:
        world.run(60)
    world.network.respond = lambda _: reply(404, "Cannot POST /hook?token=in-the-url")
    for number in range(AWAY_AFTER):
        world.put(number, "orders", f"k{number}")
    with capturedLogs() as away:
        world.run(60)
    logged = "\n".join(map(eventAsText, [*away, *dead]))
    assert "accepts no events, and is tried again (it answered 404)." in logged
    assert "has a dead letter (it answered 422)." in logged
    assert "in-the-url" not in logged
    assert "in-the-url" in world.state().error
    assert {"in-the-url" in letter.error for letter in world.letters()} == {True}


def test_with_as_many_dead_letters_as_there_may_be_the_hook_stops(world: HookWorld) -> None:
    world.network.respond = lambda posted: reply(400)
    for number in range(LIMITS.dead_letters + 1):
        world.put(number, "orders", f"k{number}")
    world.run(120)
    assert len(world.letters()) == LIMITS.dead_letters
    sent = len(world.network.posted)
    world.put("later", "orders", "z")
    world.run(120)
    assert len(world.network.posted) == sent
    assert "as many dead letters" in world.state().paused
    assert [each.reason for each in problems(world.catalog)] == [
        "The webhook orders is stopped. "
        "It has as many dead letters as there may be: replay or discard some."
    ]
    world.network.respond = lambda _: reply()
    assert world.change_letters("discard", {world.letters()[0].message.event_id}) == 1
    world.run(120)
    assert world.values()[-1] == "later"
    assert len(world.letters()) == LIMITS.dead_letters - 1
    assert problems(world.catalog) == []


def test_a_hook_that_had_too_many_dead_letters_goes_on_when_they_are_replayed(
    world: HookWorld,
) -> None:
    world.network.respond = lambda posted: reply(400)
    for number in range(LIMITS.dead_letters + 1):
        world.put(number, "orders", f"k{number}")
    world.run(120)
    world.put("later", "orders", "z")
    assert world.state().paused
    world.network.respond = lambda _: reply()
    world.network.posted.clear()
    assert world.change_letters("replay") == LIMITS.dead_letters
    world.run(120)
    assert {*world.values()} == {*range(LIMITS.dead_letters + 1), "later"}
    assert (world.letters(), world.state().paused) == ([], "")
    assert problems(world.catalog) == []


def test_a_letter_that_is_sent_again_after_a_kill_comes_before_what_followed_it(
    world: HookWorld,
) -> None:
    world.network.respond = lambda _: reply(400)
    world.put(1, "orders", "a")
    world.run(60)
    world.network.respond = lambda _: reply()
    world.put(0, "orders", "b")  # the cursor is stored a second after it
    world.run(0.75)
    world.change_letters("replay")
    world.put(2, "orders", "a")
    world.run(0.5)
    assert world.values()[-2:] == [1, 2]
    world.kill()
    world.start()
    world.run(30)
    assert world.values()[-1] == 2
    assert world.letters() == []


def test_letters_that_are_sent_while_an_admin_changes_others_are_not_sent_again(
    world: HookWorld,
) -> None:
    world.network.respond = lambda _: reply(400)
    for number in range(LIMITS.dead_letters):
        world.put(number, "orders", f"k{number}")
    world.run(60)
    first, *others = [letter.message.event_id for letter in world.letters()]
    world.network.respond = lambda _: None
    assert world.change_letters("replay", {*others}) == LIMITS.dead_letters - 1
    world.put(0, "others")
    world.run(1)
    loading = world.delivery()._load_letters()
    next(loading)  # one letter is read
    world.network.respond = lambda _: reply()
    world.run(30)  # all are sent
    assert list(loading) == []
    world.run(30)
    assert [letter.message.event_id for letter in world.letters()] == [first]
    assert world.state().dead == len(world.delivery()._letters) == 1


def test_letters_that_wait_stop_no_hook_however_many_there_are(world: HookWorld) -> None:
    world.network.respond = lambda posted: reply(400)
    for number in range(LIMITS.dead_letters + 1):
        world.put(number, "orders", f"k{number}")
    world.run(120)
    assert world.change_letters("replay") == LIMITS.dead_letters
    world.network.respond = lambda posted: reply(200 if posted.value == "later" else 500)
    world.put("later", "orders", "z")
    world.run(600)
    assert "later" in world.values()  # there is room for no dead letter, and no letter is dead
    assert [letter.is_dead for letter in world.letters()] == [False] * LIMITS.dead_letters


def test_events_that_wait_become_letters_when_they_hold_up_too_many(
    tmp_path: pathlib.Path,
) -> None:
    limits = attrs.evolve(LIMITS, attempts=50, dead_letters=100)
    world = HookWorld(tmp_path, make_hook(), limits=limits)
    is_bad = True
    world.network.respond = lambda posted: reply(
        500 if is_bad and posted.event["path"] == "/orders/bad" else 200
    )
    world.put(-1, "orders", "bad")
    world.put(-2, "orders", "bad")
    for number in range(40):
        world.put(number, "orders", "good")
        world.run(1)
    for number in range(0, 3 * WINDOW_EVENTS, 100):
        world.patch({f"k{at}": at for at in range(number, number + 100)}, "orders")
        world.patch({f"k{at}": None for at in range(number, number + 100)}, "orders")
    for number in range(12 * WINDOW_EVENTS // 10):
        world.put(number, "others")
    for number in range(WINDOW_EVENTS * 10):
        world.put(number, "others")
    world.run(5)
    assert [letter.message.number for letter in world.letters()] == [0, 0]
    assert [letter.is_dead for letter in world.letters()] == [False, False]
    world.kill()
    world.start()
    is_bad = False
    world.network.posted.clear()
    world.run(120)
    assert by_path(world.network.posted)["/orders/bad"] == [-1, -2]
    assert world.letters() == []


def test_a_path_that_fills_the_window_and_fails_does_not_hold_up_others(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delivery, "WINDOW_EVENTS", 20)
    limits = attrs.evolve(LIMITS, attempts=50, dead_letters=100)
    world = HookWorld(tmp_path, make_hook(), limits=limits)
    world.network.respond = lambda posted: reply(
        500 if posted.event["path"] == "/orders/bad" else 200
    )
    for number in range(100):
        world.put(number, "orders", "bad")
    world.put("good", "orders", "good")
    world.run(1200)
    assert "good" in world.values()
    assert by_path(world.network.posted)["/orders/bad"] == [0]
    world.network.respond = lambda _: reply()
    world.run(120)
    assert by_path(world.network.posted)["/orders/bad"] == [*range(100)]
    assert world.letters() == []


def test_the_events_of_one_write_are_printed_in_steps(world: HookWorld) -> None:
    world.put(0, "orders", "a")
    world.run(2)
    world.network.respond = lambda _: None
    world.patch({f"k{at}": at for at in range(5 * delivery.PRINTED_AT_ONCE)}, "orders")
    assert len(list(world.delivery().fill())) >= 5
    world.network.respond = lambda _: reply()
    world.run(30)
    assert len(world.values()) >= 5 * delivery.PRINTED_AT_ONCE


def test_a_database_is_looked_at_once_at_a_time(world: HookWorld) -> None:
    world.put(1, "orders", "a")
    world.run(2)
    looks = 0

    async def look(_: object) -> None:
        nonlocal looks
        looks += 1
        await waiting

    waiting: Deferred[None] = Deferred()
    world.deliverer._look = look  # type: ignore[method-assign,assignment]
    world.run(5)
    assert looks == 1
    waiting.callback(None)
    world.run(2)
    assert looks > 1


def test_a_hook_that_is_changed_or_removed_sends_by_what_it_is_now(tmp_path: pathlib.Path) -> None:
    world = HookWorld(tmp_path)
    world.put(0, "orders", "a")
    world.put_hooks(make_hook(), make_hook("others", "/others/$id"))
    world.put(1, "orders", "a")
    world.put(1, "others", "a")
    world.run(3)
    assert [(each.event["hook"], each.value) for each in world.network.posted] == [
        ("orders", 1),
        ("others", 1),
    ]
    kept = world.delivery("others")
    world.put_hooks(make_hook(url=URL.replace("hook", "moved")), make_hook("others", "/others/$id"))
    world.run(2)
    world.put(2, "orders", "a")
    world.run(2)
    assert world.network.posted[-1].head == "POST /moved?token=in-the-url HTTP/1.1"
    assert world.delivery("others") is kept
    world.put_hooks()
    world.run(2)
    world.put(3, "orders", "a")
    world.run(3)
    assert len(world.network.posted) == 3
    assert world.state().sent == 0  # its row is gone


def test_a_database_that_is_deleted_ends_its_hooks(world: HookWorld) -> None:
    world.network.respond = lambda _: None
    world.put(1, "orders", "a")
    world.run(2)
    world.wait(world.catalog.delete(NAME))
    world.run(2)
    assert world.network.open == []
    assert world.deliverer.find_delivery(NAME, "orders") is None
    world.network.respond = lambda _: reply()
    world.put(2, "orders", "a")
    world.run(3)
    assert world.values() == [1, 2]


def test_a_standby_sends_nothing_until_it_is_promoted(world: HookWorld) -> None:
    world.put(1, "orders", "a")
    world.runtime.gate.refusal = "This is a standby."
    world.run(5)
    assert world.network.posted == []
    world.runtime.gate.refusal = None
    world.run(3)
    assert world.values() == [1]


@pytest.mark.parametrize(
    ("asked", "least", "most"), [(20, 20, 22), (10_000, 60, 62), ("9" * 23, 60, 62), ("x", 0, 2)]
)
def test_a_receiver_says_for_how_long_it_wants_nothing(
    world: HookWorld, asked: object, least: float, most: float
) -> None:
    answers = [reply(), reply(429, Retry_After=asked)]
    world.network.respond = lambda _: answers.pop() if answers else reply()
    world.put(1, "orders", "a")
    world.run(2)
    world.put(2, "orders", "b")
    world.run(100)
    first, second, *_ = world.network.posted
    assert least <= second.at - first.at <= most


def test_a_receiver_that_is_gone_is_tried_rarely_and_is_a_problem(world: HookWorld) -> None:
    world.network.respond = lambda _: reply(410)
    world.put(1, "orders", "a")
    world.run(LIMITS.longest_wait_s * 3)
    assert 3 <= len(world.network.posted) <= 4
    assert ["410 Gone" in each.reason for each in problems(world.catalog)] == [True]


def test_a_hook_whose_log_was_not_kept_says_so_and_goes_on(tmp_path: pathlib.Path) -> None:
    world = HookWorld(tmp_path, make_hook(), readers=ReaderLimits(lag_bytes=50_000))
    world.network.is_away = True
    world.put(0, "orders", "a")
    world.run(3)
    world.kill()
    for number in range(600):
        world.start() if number == 0 else None
        world.deliverer._is_over = True
        world.put("x" * 500, "others", f"k{number}")
    world.kill()
    world.network.is_away = False
    world.start()
    world.run(3)
    assert world.state().lost_ms
    assert ["were lost" in each.reason for each in problems(world.catalog)] == [True]
    world.put("new", "orders", "a")
    world.run(3)
    assert world.values() == ["new"]


def test_a_stop_leaves_what_is_under_way_to_the_next_process(world: HookWorld) -> None:
    world.network.respond = lambda _: None
    world.put(1, "orders", "a")
    world.run(2)
    world.stop()
    world.network.respond = lambda _: reply()
    world.start()
    world.run(3)
    assert world.values() == [1, 1]


def test_hooks_of_a_closed_database_are_found_in_its_file(tmp_path: pathlib.Path) -> None:
    world = HookWorld(tmp_path)
    world.put(0, "others")
    world.put_hooks(make_hook())
    world.network.is_away = True
    world.put(1, "orders", "a")
    world.run(2)
    world.kill()
    world.network.is_away = False
    world.start()
    world.run(3)
    assert world.values() == [1]
