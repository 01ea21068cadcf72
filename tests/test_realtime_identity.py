"""Identity over the real-time protocol: tokens, overrides, ends of identities, revoked listens."""

from __future__ import annotations

import json
import pathlib
import signal
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import jwt
import pytest

from tests.access import Tree, admin, ending, token, trusting, user, write_secret
from tests.daemon import Daemon
from tests.realtime import Push, RealtimeClient
from tests.rest import Client

DENIED = ("permission_denied", "Permission denied")
RULES = {
    "open": {".read": True, ".write": True},
    "mine": {"$uid": {".read": "auth.uid === $uid", ".write": "auth.uid === $uid"}},
    "members": {".read": "auth != null"},
    "role": {".read": "auth.token.role === 'chief'", ".write": "auth.provider === 'anonymous'"},
    "gated": {".read": "root.child('open/gate').val() === true"},
    "ordered": {".read": "query.orderByChild === 'age' && query.limitToFirst <= 10"},
    "beginning": {
        ".read": "query.startAt == null && query.endAt == null && query.limitToFirst <= 2"
    },
    "zz-barrier": {".write": True},
    "valid": {".write": True, "n": {".validate": "newData.isNumber()"}},
}


@pytest.fixture(scope="module")
def identity_daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    with trusting(tmp_path_factory.mktemp("identity"), "", ["shop", "other"]) as running:
        yield running


@pytest.fixture
def shop(identity_daemon: Daemon) -> Iterator[Tree]:
    with Tree(identity_daemon, "shop") as tree:
        tree.put_rules(RULES)
        tree.seed("/.json", {"open": {"gate": True}, "mine": {"ann": 1}, "members": "m", "role": 1})
        yield tree


def statuses(client: RealtimeClient, path: str) -> set[tuple[str, Any]]:
    """Return the answers to a listen, a get and a put; the listen is ended again."""
    answers = {
        (answer.status, json.dumps(answer.data))
        for answer in (
            client.request("q", {"p": path, "h": ""}),
            client.request("g", {"p": path}),
            client.request("p", {"p": path, "d": 1}),
        )
    }
    client.request("n", {"p": path})
    return {(status, json.loads(data)) for status, data in answers}


def test_nobody_may_do_what_rules_deny_to_the_anonymous(shop: Tree) -> None:
    with RealtimeClient(shop) as client:
        assert statuses(client, "mine/ann") == {DENIED}
        assert client.request("m", {"p": "mine", "d": {"ann": 1}}) == DENIED
        assert client.pushed == []
        client.put("open/a", 1)


BOUNDS: list[dict[str, Any]] = [
    *({"sp": "b"}, {"sp": "b", "sin": False}, {"sn": "b"}, {"ep": "c", "ein": False}),
    {"i": "age", "sp": None, "sn": "b", "sin": False},
    {"i": "age", "sp": None, "sn": "[MAX_NAME]"},
    {"i": ".value", "sp": 2, "sin": False},
    {"i": ".value", "ep": 3, "ein": False},
]


def test_no_bound_reads_past_a_rule_that_wants_none(shop: Tree) -> None:
    shop.seed("/beginning.json", {"a": 1, "b": 2, "c": 3})
    first: dict[str, Any] = {"i": ".key", "l": 2, "vf": "l"}
    with RealtimeClient(shop) as client:
        assert client.listen("beginning", first, 1) == {"a": 1, "b": 2}
        assert client.get("beginning", first) == {"a": 1, "b": 2}
        assert client.get("beginning", {**first, "i": "age", "sp": None}) == {"a": 1, "b": 2}
        for tag, bounds in enumerate(BOUNDS):
            query = {**first, **bounds}
            assert client.request("g", {"p": "beginning", "q": query}) == DENIED, query
            listen = {"p": "beginning", "h": "", "q": query, "t": tag + 2}
            assert client.request("q", listen) == DENIED, query


def test_a_token_gives_an_identity_to_what_follows(shop: Tree) -> None:
    with RealtimeClient(shop) as client:
        data = client.succeed("auth", {"cred": user("shop", "ann", role="chief")})
        assert data["auth"]["uid"] == "ann"
        assert data["auth"]["token"]["role"] == "chief"
        assert client.listen("mine/ann") == 1
        client.put("mine/ann", 2)
        assert client.get("role") == 1
        assert client.request("p", {"p": "mine/bob", "d": 1}) == DENIED


def test_requests_behind_a_token_are_judged_by_it(shop: Tree) -> None:
    with RealtimeClient(shop) as client:
        auth = client.send_request("auth", {"cred": user("shop", "ann")})
        put = client.send_request("p", {"p": "mine/ann", "d": 3})
        unauth = client.send_request("unauth")
        denied = client.send_request("p", {"p": "mine/ann", "d": 4})
        assert client.await_answer(auth).status == "ok"
        assert client.await_answer(put).status == "ok"
        assert client.await_answer(unauth).status == "ok"
        assert client.await_answer(denied) == DENIED
        assert shop.see("/mine/ann.json") == 3


def test_what_is_read_later_is_judged_by_who_asked_for_it(shop: Tree) -> None:
    """The second get is read when the first has been sent, and the client reads nothing yet."""
    shop.seed("/open/large.json", "x" * 3_000_000)
    with RealtimeClient(shop) as client:
        client.succeed("auth", {"cred": user("shop", "ann")})
        client.send_request("g", {"p": "open/large"})
        get = client.send_request("g", {"p": "members"})
        unauth = client.send_request("unauth")
        denied = client.send_request("g", {"p": "members"})
        assert client.await_answer(denied) == DENIED
        assert client.await_answer(get) == ("ok", "m")
        assert client.await_answer(unauth).status == "ok"


@pytest.mark.parametrize("action", ["auth", "gauth"])
def test_the_token_of_an_admin_may_do_everything(shop: Tree, action: str) -> None:
    with RealtimeClient(shop) as client:
        client.succeed(action, {"cred": admin("shop")})
        client.put("mine/nobody", 1)
        assert client.get("mine")["nobody"] == 1
        client.put("valid/n", "text")


@pytest.mark.parametrize("action", ["auth", "gauth"])
def test_an_admin_may_act_as_another_user_or_as_none(shop: Tree, action: str) -> None:
    cred = admin("shop")
    with RealtimeClient(shop) as client:
        client.succeed(action, {"cred": cred, "authvar": {"uid": "ann"}})
        assert client.get("mine/ann") == 1
        assert client.request("g", {"p": "mine/bob"}) == DENIED
        client.succeed(action, {"cred": cred, "authvar": {"token": {"role": "chief"}}})
        assert client.get("role") == 1
        for nobody in ({"noauth": True}, {"authvar": None}):
            client.succeed(action, {"cred": cred, **nobody})
            assert client.request("g", {"p": "members"}) == DENIED
        client.succeed(action, {"cred": cred})
        assert client.get("members") == "m"


def test_only_an_admin_may_act_as_another_user(shop: Tree) -> None:
    cred = user("shop", "ann")
    with RealtimeClient(shop) as client:
        for override in ({"authvar": {"uid": "bob"}}, {"noauth": True}):
            assert client.request("gauth", {"cred": cred, **override}).status != "ok"
            assert client.request("g", {"p": "mine/bob"}) == DENIED


BAD_TOKENS = {
    "expired": ("expired_token", lambda: user("shop", "ann", exp=time.time() - 60)),
    "of another project": ("invalid_token", lambda: user("other", "ann")),
    "of another secret": ("invalid_token", lambda: token("shop", secret="y" * 48, uid="ann")),
    "unsigned": ("invalid_token", lambda: jwt.encode({"uid": "ann"}, "", "none")),
    "not yet valid": ("invalid_token", lambda: user("shop", "ann", nbf=time.time() + 600)),
    "no token": ("invalid_token", lambda: "x"),
    "empty": ("invalid_token", lambda: ""),
    "long": ("invalid_token", lambda: user("shop", "ann", filler="x" * 20_000)),
    "owner": ("invalid_token", lambda: "owner"),
}


@pytest.mark.parametrize("action", ["auth", "gauth"])
@pytest.mark.parametrize("kind", BAD_TOKENS)
def test_a_bad_token_ends_the_former_identity_and_the_socket_stays_open(
    shop: Tree, kind: str, action: str
) -> None:
    status, make = BAD_TOKENS[kind]
    with RealtimeClient(shop) as client:
        client.succeed("auth", {"cred": user("shop", "ann")})
        client.listen("mine/ann")
        answer = client.request(action, {"cred": make()})
        assert answer.status == status
        assert isinstance(answer.data, str)
        assert ("c", "mine/ann") in [
            (push.action, push.body["p"].strip("/")) for push in client.pushed
        ]
        assert statuses(client, "mine/ann") == {DENIED}
        client.put("open/a", 1)


@pytest.mark.parametrize("action", ["auth", "gauth"])
@pytest.mark.parametrize(
    "cred",
    [
        None,
        7,
        1e19,
        {},
        [],
        ["x"],
        True,
        "",
        " ",
        "x",
        "a.b",
        "a.b.c",
        "a.b.c.d",
        "\x00",
        "é",
        "x" * 9000,
    ],
    ids=lambda cred: json.dumps(cred)[:20],
)
def test_what_is_no_token_is_an_invalid_one(shop: Tree, action: str, cred: Any) -> None:
    with RealtimeClient(shop) as client:
        client.succeed("auth", {"cred": user("shop", "ann")})
        answer = client.request(action, {"cred": cred})
        assert answer.status == "invalid_token"
        assert isinstance(answer.data, str)
        assert client.request("g", {"p": "mine/ann"}) == DENIED  # the former identity has ended
        assert client.request(action, {}).status == "invalid_token"
        assert client.request(action, {"cred": cred, "noauth": True}).status == "invalid_token"
        client.put("open/a", 1)


@pytest.mark.parametrize("override", [7, "x", [], [{}]], ids=json.dumps)
def test_an_override_that_is_no_object_fails(shop: Tree, override: Any) -> None:
    with RealtimeClient(shop) as client:
        answer = client.request("gauth", {"cred": admin("shop"), "authvar": override})
        assert answer.status != "ok"
        assert client.request("g", {"p": "members"}) == DENIED


# Listens that are revoked.


def revoked(push: Push) -> tuple[str, str, Any]:
    return push.action, push.body["p"].strip("/"), push.body.get("q")


def test_signing_out_revokes_what_nobody_may_read_and_only_that(shop: Tree) -> None:
    with RealtimeClient(shop) as client:
        client.succeed("auth", {"cred": user("shop", "ann")})
        client.listen("mine/ann")
        client.listen("open")
        client.received.clear()
        client.succeed("unauth")
        assert [revoked(push)[:2] for push in client.pushed] == [("c", "mine/ann")]
        pushed = client.pushes_during(partial(shop.seed, "/mine/ann.json", 5))
        assert pushed == []
        assert client.pushes_during(partial(shop.seed, "/open/x.json", 5)) != []


def test_a_token_of_the_same_user_keeps_the_listens(shop: Tree) -> None:
    with RealtimeClient(shop) as client:
        client.succeed("auth", {"cred": user("shop", "ann")})
        client.listen("mine/ann")
        client.received.clear()
        client.succeed("auth", {"cred": user("shop", "ann", iat=int(time.time()))})
        assert client.pushed == []
        assert len(client.pushes_during(partial(shop.seed, "/mine/ann.json", 6))) == 1


def test_data_that_the_rules_read_revokes_a_listen(shop: Tree) -> None:
    with RealtimeClient(shop) as client:
        client.listen("gated")
        client.received.clear()
        pushed = client.pushes_during(partial(shop.seed, "/open/gate.json", False))
        assert [revoked(push)[:2] for push in pushed] == [("c", "gated")]
        assert client.request("q", {"p": "gated", "h": ""}) == DENIED


def test_new_rules_revoke_a_listen(shop: Tree) -> None:
    with RealtimeClient(shop) as client:
        client.listen("open")
        client.received.clear()
        shop.put_rules({**RULES, "open": {".read": False, ".write": True}})
        assert revoked(client.next_push())[:2] == ("c", "open")


def test_a_revoked_query_is_named(shop: Tree) -> None:
    query = {"i": "age", "l": 3, "vf": "l"}
    with RealtimeClient(shop) as client:
        client.listen("ordered", query, 7)
        assert client.request("q", {"p": "ordered", "h": ""}) == DENIED
        client.received.clear()
        shop.put_rules({"open": {".read": True, ".write": True}})
        action, path, queries = revoked(client.next_push())
        assert (action, path) == ("c", "ordered")
        assert queries == [query]


def test_a_put_that_ends_the_right_to_see_it_is_answered(shop: Tree) -> None:
    with RealtimeClient(shop) as client:
        client.listen("gated")
        client.received.clear()
        client.put("open/gate", False)
        assert [revoked(push)[:2] for push in client.pushed] == [("c", "gated")]


# Identities that end.


def test_an_identity_ends_with_its_token(shop: Tree) -> None:
    with RealtimeClient(shop) as client:
        client.succeed("auth", {"cred": user("shop", "ann", exp=ending(2.5))})
        client.listen("mine/ann")
        client.listen("open")
        client.received.clear()
        client.read_until(lambda: len(client.pushed) >= 2, 20)
        actions = {push.action: push.body for push in client.pushed}
        assert actions.keys() == {"ac", "c"}
        assert actions["ac"]["s"] == "expired_token"
        assert isinstance(actions["ac"]["d"], str)
        assert actions["c"]["p"].strip("/") == "mine/ann"
        assert client.request("p", {"p": "mine/ann", "d": 1}) == DENIED
        client.succeed("auth", {"cred": user("shop", "ann")})
        assert client.get("mine/ann") is not None


def test_an_identity_ends_with_its_secret(tmp_path: pathlib.Path) -> None:
    with trusting(tmp_path, "", ["shop"]) as daemon, Tree(daemon, "shop") as tree:
        tree.put_rules(RULES)
        with RealtimeClient(tree) as client:
            client.succeed("auth", {"cred": user("shop", "ann")})
            client.listen("mine/ann")
            client.received.clear()
            write_secret(tmp_path, "shop", "another secret of the project ".ljust(48, "-"))
            daemon.signal(signal.SIGHUP)
            client.read_until(lambda: len(client.pushed) >= 2, 20)
            assert {push.action for push in client.pushed} == {"ac", "c"}
            assert client.request("g", {"p": "mine/ann"}) == DENIED


# Development mode and explanations.


def explanations(client: RealtimeClient) -> list[str]:
    return [push.body["msg"] for push in client.pushed if push.action == "sd"]


def test_development_mode_explains_denials(daemon: Daemon) -> None:
    rules = json.dumps({"rules": {"a": {".read": "auth.uid == 'x'", ".write": False}}})
    with Client.of_new_tree(daemon) as tree:
        response = tree.request(
            "PUT", "/.settings/rules.json", rules, {"Authorization": "Bearer owner"}
        )
        assert response.status == 200
        with RealtimeClient(tree) as client:
            for action, body in (("q", {"p": "a", "h": ""}), ("p", {"p": "a", "d": 1})):
                client.received.clear()
                assert client.request(action, body) == DENIED
                [text] = explanations(client)
                assert "auth.uid" in text or "rules" in text or "/a" in text
                assert isinstance(client.received[0], Push), "The explanation precedes the answer."


def test_elsewhere_only_an_admin_with_an_override_receives_the_reason(shop: Tree) -> None:
    with RealtimeClient(shop) as client:
        for cred in (None, user("shop", "bob")):
            if cred:
                client.succeed("auth", {"cred": cred})
            assert client.request("g", {"p": "mine/ann"}) == DENIED
            assert client.request("p", {"p": "mine/ann", "d": 1}) == DENIED
            assert client.request("q", {"p": "mine/ann", "h": ""}) == DENIED
        assert explanations(client) == []
        client.succeed("gauth", {"cred": admin("shop"), "authvar": {"uid": "bob"}})
        assert client.request("g", {"p": "mine/ann"}) == DENIED
        assert explanations(client)


def test_the_token_of_the_emulator_is_an_admins_in_development_mode(tree: Client) -> None:
    with RealtimeClient(tree) as client:
        client.succeed("gauth", {"cred": "owner"})
        client.put("a", 1)
    assert tree.get("/a.json") == 1


def test_unsigned_tokens_count_in_emulator_mode_only(tree: Client, shop: Tree) -> None:
    unsigned = jwt.encode({"sub": "ann", "user_id": "ann", "iat": 1}, "", "none")
    with RealtimeClient(tree) as client:
        assert client.succeed("auth", {"cred": unsigned})["auth"]["uid"] == "ann"
    with RealtimeClient(shop) as client:
        assert client.request("auth", {"cred": unsigned}).status == "invalid_token"


def test_no_token_is_logged(shop: Tree) -> None:
    made = [user("shop", "ann"), admin("shop"), user("other", "x"), "owner.x.secretpart"]
    with RealtimeClient(
        shop, f"/.ws?v=5&ac={made[0]}", {"Authorization": f"Bearer {made[1]}"}
    ) as client:
        for cred in made:
            client.request("auth", {"cred": cred})
            client.request("gauth", {"cred": cred, "authvar": {"uid": "u"}})
        client.send_text(json.dumps({"t": "d", "d": {"r": 1, "a": "auth", "b": made[0]}}))
        client.send_text(made[0])
        client.await_close()
    log = shop.daemon.log
    assert not [cred for cred in made if cred in log or cred.split(".")[-1] in log]
    assert "Traceback" not in log
