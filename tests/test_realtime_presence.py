"""Writes that are kept for the end of a connection: set, merged, cancelled, judged, and run."""

from __future__ import annotations

import pathlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.access import Tree, ending, trusting, user
from tests.daemon import Daemon
from tests.realtime import RealtimeClient
from tests.rest import OPEN_RULES, Client
from tests.system import wait_until

KEEP_ALIVE_S = 1.0
IMPATIENT = f"""
default_project = "shop"
[streams]
keep_alive_s = {KEEP_ALIVE_S}
[projects.shop]
rules_file = "open.json"
"""
RULES = {
    "users": {"$uid": {".read": True, ".write": "auth.uid === $uid"}},
    "gate": {".read": True, ".write": True},
    "gated": {".read": True, ".write": "root.child('gate').val() === true"},
    "valid": {".read": True, ".write": True, ".validate": "newData.isString()"},
}

ENDS: dict[str, Callable[[RealtimeClient], None]] = {
    "close frame": lambda client: client.leave(),
    "closed socket": lambda client: client.close(),
    "reset": lambda client: client.reset(),
    "protocol error": lambda client: client.send(b"\xff\xff"),
    "no envelope": lambda client: client.send_text("x"),
}


def await_value(tree: Client, path: str, expected: Any) -> None:
    wait_until(lambda: tree.get(f"/{path}.json?format=export") == expected)


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("secure", [False, True])
def test_writes_run_however_the_connection_ends(tree: Client, end: str, secure: bool) -> None:
    with RealtimeClient(Client(tree.daemon, tree.host, secure=secure)) as client:
        client.put("online", True)
        client.succeed("o", {"p": "online", "d": False})
        client.succeed("om", {"p": "left", "d": {"a": 1, "b/c": {".sv": "timestamp"}}})
        client.succeed("o", {"p": "count", "d": {".sv": {"increment": 2}}})
        assert tree.get("/.json") == {"online": True}
        ENDS[end](client)
        await_value(tree, "online", False)
        wait_until(lambda: tree.get("/count.json") == 2)
        assert tree.get("/left/a.json") == 1
        assert abs(tree.get("/left/b/c.json") - client.hello["ts"]) < 120_000


def test_writes_run_in_the_order_in_which_they_were_set(tree: Client) -> None:
    with RealtimeClient(tree) as client, RealtimeClient(tree) as observer:
        observer.listen("log")
        observer.received.clear()
        for at in (3, 1, 2):
            client.succeed("o", {"p": f"log/{at}", "d": at})
        client.leave()
        observer.read_until(lambda: len(observer.pushed) == 3)
        assert [push.body["d"] for push in observer.pushed] == [3, 1, 2]


def test_a_write_set_again_at_a_place_replaces_the_former_ones_at_and_below(tree: Client) -> None:
    with RealtimeClient(tree) as client, RealtimeClient(tree) as observer:
        observer.listen("p")
        observer.received.clear()
        client.succeed("o", {"p": "p/a/b", "d": 1})
        client.succeed("o", {"p": "p/a", "d": 2})
        client.succeed("o", {"p": "p/a", "d": 3})
        client.leave()
        observer.read_until(lambda: bool(observer.pushed))
        await_value(tree, "p", {"a": 3})
        assert [push.change for push in observer.pushed] == [("d", "p/a", 3, None)]


def test_cancelling_drops_what_is_at_or_below_the_path_only(tree: Client) -> None:
    with RealtimeClient(tree) as client:
        for path in ("p", "p/a", "p/a/b", "p/ab", "q"):
            client.succeed("o", {"p": path, "d": {"x": path}})
        client.succeed("om", {"p": "m", "d": {"a": 1, "b/c": 2}})
        client.succeed("oc", {"p": "p/a"})
        client.succeed("oc", {"p": "m/b", "d": None})
        client.leave()
        await_value(tree, "q", {"x": "q"})
        wait_until(lambda: tree.get("/m.json") == {"a": 1})
        assert tree.get("/p.json") == {"x": "p", "ab": {"x": "p/ab"}}


def test_everything_can_be_cancelled_at_the_root(tree: Client) -> None:
    with RealtimeClient(tree) as client:
        client.succeed("o", {"p": "a", "d": 1})
        client.succeed("om", {"p": "b", "d": {"x": 1}})
        client.succeed("oc", {"p": ""})
        client.leave()
    with RealtimeClient(tree, f"/.ws?v=5&ls={client.session}") as again:
        assert again.get("") is None


def test_a_removal_and_a_priority_can_wait(tree: Client) -> None:
    tree.put("/.json", {"gone": 1, "kept": 1})
    with RealtimeClient(tree) as client:
        client.succeed("o", {"p": "gone", "d": None})
        client.succeed("o", {"p": "kept/.priority", "d": 5})
        client.succeed("o", {"p": "both", "d": {".value": 1, ".priority": 2}})
        client.leave()
        await_value(tree, "both", {".value": 1, ".priority": 2})
        await_value(tree, "kept", {".value": 1, ".priority": 5})
        assert tree.get("/gone.json") is None


def test_writes_of_two_sessions_are_apart(tree: Client) -> None:
    with RealtimeClient(tree) as one, RealtimeClient(tree) as two:
        one.succeed("o", {"p": "one", "d": 1})
        two.succeed("o", {"p": "two", "d": 2})
        two.succeed("oc", {"p": ""})
        one.leave()
        await_value(tree, "one", 1)
        two.leave()
        assert tree.get("/two.json") is None


def test_what_is_malformed_fails_and_is_not_kept(tree: Client) -> None:
    bad: list[Any] = [{"a.b": 1}, {".sv": "x"}, {"k" * 769: 1}]
    with RealtimeClient(tree) as client:
        for value in bad:
            assert client.request("o", {"p": "a", "d": value}).status == "failure"
        for members in (7, [1], {"a": 1, "a/b": 2}):
            assert client.request("om", {"p": "a", "d": members}).status == "failure"
        client.succeed("o", {"p": "b", "d": 1})
        client.leave()
        await_value(tree, "b", 1)
        assert tree.get("/a.json") is None


def test_what_has_too_many_members_is_not_kept(tree: Client) -> None:
    most = {f"k{at}": at for at in range(2000)}
    with RealtimeClient(tree) as client:
        assert client.request("o", {"p": "a", "d": [1] * 2001}).status == "too_big"
        assert client.request("om", {"p": "a", "d": {"b": most}}).status == "too_big"
        client.succeed("o", {"p": "b", "d": most})
        client.leave()
        await_value(tree, "b", most)
        assert tree.get("/a.json") is None


def test_a_silent_peer_is_gone_after_two_intervals(tmp_path: pathlib.Path) -> None:
    (tmp_path / "open.json").write_text(OPEN_RULES)
    with (
        Daemon(tmp_path, config=IMPATIENT) as daemon,
        RealtimeClient(Client(daemon)) as silent,
        RealtimeClient(Client(daemon)) as observer,
    ):
        silent.put("online", True)
        silent.succeed("o", {"p": "online", "d": False})
        observer.listen("online")
        observer.received.clear()
        observer.read_until(lambda: bool(observer.pushed), 20)  # it answers pings meanwhile
        assert observer.pushed[0].change == ("d", "online", False, None)
        assert observer.pings >= 1
        observer.put("x", 1)


# Rights.


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tree]:
    folder = tmp_path_factory.mktemp("presence")
    with trusting(folder, "", ["shop"]) as daemon, Tree(daemon, "shop") as tree:
        tree.put_rules(RULES)
        yield tree


def test_a_write_that_is_denied_when_it_is_set_is_not_kept(shop: Tree) -> None:
    with RealtimeClient(shop) as client:
        for action, data in (("o", 1), ("om", {"x": 1})):
            answer = client.request(action, {"p": "users/eve", "d": data})
            assert answer == ("permission_denied", "Permission denied")
        client.leave()
    assert shop.see("/users/eve.json") is None


def test_a_write_that_is_denied_when_it_runs_changes_nothing(shop: Tree) -> None:
    shop.seed("/gate.json", True)
    with RealtimeClient(shop) as client:
        client.succeed("o", {"p": "gated/a", "d": 1})
        client.succeed("o", {"p": "gate", "d": "after"})
        shop.seed("/gate.json", False)
        client.leave()
    wait_until(lambda: shop.see("/gate.json") == "after")
    assert shop.see("/gated.json") is None


@pytest.mark.parametrize("then", ["unauth", "another user", "nothing"])
def test_a_write_runs_as_the_identity_that_has_set_it(shop: Tree, then: str) -> None:
    uid = f"u{then.replace(' ', '')}"
    with RealtimeClient(shop) as client:
        client.succeed("auth", {"cred": user("shop", uid)})
        client.succeed("o", {"p": f"users/{uid}/online", "d": False})
        if then == "unauth":
            client.succeed("unauth")
        if then == "another user":
            client.succeed("auth", {"cred": user("shop", "somebody")})
        client.close()
    wait_until(lambda: shop.see(f"/users/{uid}/online.json") is not None)
    assert shop.see(f"/users/{uid}/online.json") is False


def test_a_write_runs_though_the_token_has_expired_since(shop: Tree) -> None:
    with RealtimeClient(shop) as client:
        client.succeed("auth", {"cred": user("shop", "late", exp=ending(1.5))})
        client.succeed("o", {"p": "users/late/online", "d": False})
        assert client.next_push(20).action == "ac"
        client.close()
    wait_until(lambda: shop.see("/users/late/online.json") is False)


def test_validation_is_judged_when_set_and_when_run(shop: Tree) -> None:
    with RealtimeClient(shop) as client:
        answer = client.request("o", {"p": "valid", "d": 7})
        assert answer.status == "permission_denied"
        client.succeed("o", {"p": "valid", "d": "text"})
        client.leave()
    wait_until(lambda: shop.see("/valid.json") == "text")


# The server's own end.


def test_presence_is_right_after_a_stop_and_after_a_crash(daemon: Daemon) -> None:
    for end in (daemon.stop, daemon.kill):
        with Client(daemon, "demo.localhost") as tree, RealtimeClient(tree) as client:
            client.put("online", True)
            client.succeed("o", {"p": "online", "d": False})
            client.succeed("o", {"p": "runs", "d": {".sv": {"increment": 1}}})
            end()
        daemon.start()
        with Client(daemon, "demo.localhost") as tree:
            assert tree.get("/online.json") is False
    with Client(daemon, "demo.localhost") as tree:
        assert tree.get("/runs.json") == 2


def test_a_client_that_is_back_after_a_crash_is_online(daemon: Daemon) -> None:
    with Client(daemon, "demo.localhost") as tree, RealtimeClient(tree) as client:
        client.put("online", True)
        client.succeed("o", {"p": "online", "d": False})
        daemon.kill()
    daemon.start()
    with Client(daemon, "demo.localhost") as tree:
        with RealtimeClient(tree, f"/.ws?v=5&ls={client.session}") as again:
            assert again.get("online") is False
            again.put("online", True)
            again.succeed("o", {"p": "online", "d": False})
            assert tree.get("/online.json") is True
        await_value(tree, "online", False)
