"""Functions that have registered: what they are sent, where, and how often."""

from __future__ import annotations

import pathlib
from typing import Any

import pytest

from tests.hooks.network import reply
from tests.hooks.world import HookWorld, make_hook
from treedbd.hooks.functions import FunctionService
from treedbd.hooks.triggers import parse_trigger
from treedbd.store.hooks import Hook

URL = "http://127.0.0.1:5001"
HERE = FunctionService(URL, "db.example.com")


def make_function(url: str = URL) -> Hook:
    return parse_trigger(
        {
            "name": "projects/demo-x/locations/us-central1/triggers/us-central1-f-0",
            "path": "orders/{id}",
            "event": "google.firebase.database.ref.v1.written",
        }
    ).make_hook(url, 1)


@pytest.fixture
def world(tmp_path: pathlib.Path) -> HookWorld:
    world = HookWorld(tmp_path, functions=HERE)
    world.put_hooks(make_function())
    return world


def references(world: HookWorld) -> list[Any]:
    return [each.event["ref"] for each in world.network.posted]


def test_a_function_is_called_at_its_own_address_in_its_own_form(world: HookWorld) -> None:
    world.put({"n": 1}, "orders", "a")
    world.run(3)
    (posted,) = world.network.posted
    target = "/functions/projects/demo-x/triggers/us-central1-f-0"
    assert posted.head == f"POST {target} HTTP/1.1"
    assert posted.headers["Content-Type"] == "application/cloudevents+json; charset=utf-8"
    assert world.network.connected == [("127.0.0.1", 5001)]
    event = posted.event
    assert event["type"] == "google.firebase.database.ref.v1.written"
    assert (event["instance"], event["ref"]) == ("a--p", "orders/a")
    assert (event["firebasedatabasehost"], event["authid"]) == ("db.example.com", "ada")
    assert (event["data"]["data"], event["data"]["delta"]) == (None, {"n": 1})


def test_a_function_that_fails_is_not_called_again_and_the_next_event_is_sent(
    world: HookWorld,
) -> None:
    world.network.respond = lambda _: reply(500, "It threw.")
    for key in "ab":
        world.put(1, "orders", key)
    world.put(2, "orders", "a")
    world.run(30)
    assert sorted(references(world)) == ["orders/a", "orders/a", "orders/b"]
    name = make_function().name
    assert "it answered 500: It threw." in world.delivery(name).state().error
    assert world.letters(name) == []
    assert (world.deliverer.counts.failed, world.deliverer.counts.accepted) == (3, 0)


def test_a_call_that_is_not_answered_is_repeated(world: HookWorld) -> None:
    world.network.is_away = True
    world.put(1, "orders", "a")
    world.run(10)
    world.network.is_away = False
    world.run(20)
    assert references(world) == ["orders/a"]


def test_a_function_that_registers_again_is_called_at_once(world: HookWorld) -> None:
    world.network.is_away = True
    world.put(1, "orders", "a")
    world.run(600)
    world.network.is_away = False
    again = make_function()
    world.put_hooks(parse_trigger(_described(again)).make_hook(URL, 2))
    world.run(2)
    assert references(world) == ["orders/a"]


def _described(hook: Hook) -> Any:
    event = "google.firebase.database.ref.v1.written"
    return {"name": hook.trigger, "path": "orders/{id}", "event": event}


def test_a_function_has_few_calls_at_a_time(world: HookWorld) -> None:
    world.network.respond = lambda _: None
    world.patch({f"k{n}": n for n in range(50)}, "orders")
    world.run(2)
    assert world.network.most == HERE.limits.concurrency


def test_a_function_may_take_longer_than_a_webhook(world: HookWorld) -> None:
    world.network.respond = lambda _: None
    world.put(1, "orders", "a")
    world.run(HERE.limits.timeout_s - 5)
    assert len(world.network.posted) == 1
    world.run(10)
    assert len(world.network.posted) == 2


def test_no_other_address_inside_is_called(tmp_path: pathlib.Path) -> None:
    world = HookWorld(tmp_path, functions=HERE)
    webhook = make_hook("inside", url=f"{URL}/x", form="functions-2")
    world.put_hooks(make_function("http://127.0.0.1:50011"), webhook)
    world.put(1, "orders", "a")
    world.run(10)
    assert world.network.connected == []


def test_a_webhook_of_a_form_is_sent_again_as_any_other(tmp_path: pathlib.Path) -> None:
    world = HookWorld(tmp_path, make_hook(form="functions-1"))
    world.network.respond = lambda _: reply(500 if len(world.network.posted) < 3 else 200)
    world.put(1, "orders", "a")
    world.run(30)
    assert len(world.network.posted) == 3
    posted = world.network.posted[-1]
    assert posted.event["context"]["params"] == {"id": "a"}
    assert posted.headers["X-TreeDB-Signature"].startswith("v1=")
