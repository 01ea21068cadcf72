"""Who somebody is, by a token of the project, and what that token is worth, over HTTP."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.access import (
    DATABASES,
    DOMAIN,
    EVENTS,
    RULES,
    Tree,
    admin,
    ask_all_ways,
    at,
    ending,
    secret_of,
    token,
    trusting,
    user,
    write_secret,
)
from tests.daemon import Daemon
from tests.rest import Headers, check_error, check_refused, escape
from tests.web.identity.test_tokens import FORGED, MALFORMED
from tests.web.identity.test_tokens import SECRET as SECRET_OF_FORGERIES

OPEN = "/open/a.json"
RULE_SET = {
    "open": {".read": True, ".write": True},
    "mine": {"$uid": {".read": "auth.uid == $uid", ".write": "auth.uid == $uid"}},
    "nobody": {".read": "auth == null", ".write": "auth == null"},
    "somebody": {".read": "auth != null"},
    "provider": {"$provider": {".read": "auth.provider == $provider"}},
    "role": {"$role": {".read": "auth.token.roles.main == $role"}},
    "legacy": {".read": "auth.any.thing == 7 && auth.uid == null && auth.token == null"},
}
CONFIG = """
[projects.rotating]
secret_files = ["new.secret", "old.secret"]
[projects.shortlived]
secret_files = ["shortlived.secret"]
max_token_life_s = 60
[projects.forged]
secret_files = ["forged.secret"]
rules_file = "rules.json"
dialect = "standard"
[projects.secretless]
rules_file = "rules.json"
dialect = "standard"
"""
PLACES: dict[str, Callable[[str], tuple[str, Headers]]] = {
    "auth": lambda token: (f"auth={escape(token)}", {}),
    "access_token": lambda token: (f"access_token={escape(token)}", {}),
    "Authorization": lambda token: ("", {"Authorization": f"Bearer {token}"}),
    "authorization": lambda token: ("", {"authorization": f"bEARER  {token} "}),
    "both parameters": lambda token: (f"auth={token}&access_token={token}", {}),
    "all": lambda token: (f"auth={token}", {"Authorization": f"Bearer {token}"}),
    "with empty ones": lambda token: (f"auth=&access_token={token}", {"Authorization": "Bearer"}),
}


@pytest.fixture(scope="module")
def shared_daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    folder = tmp_path_factory.mktemp("tokens")
    write_secret(folder, "new", secret_of("new"))
    write_secret(folder, "old", secret_of("old"))
    write_secret(folder, "shortlived")
    write_secret(folder, "forged", SECRET_OF_FORGERIES.decode())
    (folder / "rules.json").write_text(json.dumps({"rules": RULE_SET}))
    with trusting(folder, CONFIG, ["shop", "other", "firebase", "auto"]) as running:
        for project in ("shop", "other", "firebase", "auto"):
            with Tree(running, project) as tree:
                tree.put_rules(RULE_SET)
        yield running


@pytest.fixture(scope="module")
def shop(shared_daemon: Daemon) -> Iterator[Tree]:
    with Tree(shared_daemon, "shop") as tree:
        yield tree


@pytest.fixture(scope="module")
def firebase(shared_daemon: Daemon) -> Iterator[Tree]:
    with Tree(shared_daemon, "firebase") as tree:
        yield tree


def ask_in(tree: Tree, place: str, token: str, path: str = "/mine/alice.json") -> int:
    query, headers = PLACES[place](token)
    return tree.ask("GET", f"{path}?{query}", None, headers).status


# Where a token stands.


@pytest.mark.parametrize("place", PLACES)
def test_a_token_is_taken_from_any_of_its_places(shop: Tree, place: str) -> None:
    assert ask_in(shop, place, user("shop", "alice")) == 200
    assert ask_in(shop, place, user("shop", "bob")) == 403


@pytest.mark.parametrize("place", PLACES)
def test_an_empty_token_is_no_token(shop: Tree, place: str) -> None:
    assert ask_in(shop, place, "", "/nobody.json") == 200
    assert ask_in(shop, place, "", "/somebody.json") == 403


@pytest.mark.parametrize(
    ("query", "headers"),
    [
        ("auth=a&access_token=b", {}),
        ("auth=a", {"Authorization": "Bearer b"}),
        ("access_token=a", {"Authorization": "Bearer b"}),
        ("auth=a&auth=b", {}),
        ("", [("Authorization", "Bearer a"), ("Authorization", "Bearer b")]),
    ],
)
@pytest.mark.parametrize(
    ("method", "path", "body"),
    [("GET", OPEN, None), ("PUT", OPEN, "1"), ("DELETE", OPEN, None), ("GET", RULES, None)],
)
def test_two_different_tokens_are_refused(
    shop: Tree, query: str, headers: Headers, method: str, path: str, body: str | None
) -> None:
    answer = shop.ask(method, f"{path}?{query}", body, headers)
    check_error(answer, 400, "invalid_query")


def test_an_authorization_of_another_scheme_is_no_token(shop: Tree) -> None:
    for field in ("Basic YTpi", "Digest a", user("shop", "alice")):
        header = {"Authorization": field}
        assert shop.ask("GET", "/nobody.json", None, header).status == 200
        target = at("/mine/alice.json", user("shop", "alice"))
        assert shop.ask("GET", target, None, header).status == 200


# What a token makes of its bearer.


@pytest.mark.parametrize(
    ("path", "claims"),
    [
        ("/mine/alice.json", {"uid": "alice"}),
        ("/mine/alice.json", {"sub": "alice"}),
        ("/mine/alice.json", {"uid": "alice", "sub": "bob"}),
        ("/provider/custom.json", {"uid": "a"}),
        ("/provider/password.json", {"uid": "a", "provider": "password"}),
        ("/provider/google.json", {"sub": "a", "firebase": {"sign_in_provider": "google"}}),
        ("/role/cook.json", {"uid": "a", "roles": {"main": "cook"}}),
        ("/role/cook.json", {"roles": {"main": "cook"}}),
        ("/somebody.json", {}),
        ("/legacy.json", {"v": 0, "d": {"any": {"thing": 7}}}),
        ("/mine/alice.json", {"v": 0, "d": {"uid": "alice"}, "uid": "bob"}),
    ],
)
def test_the_rules_see_what_the_claims_say(
    shared_daemon: Daemon, path: str, claims: dict[str, Any]
) -> None:
    for project, denied in (("shop", 403), ("firebase", 401)):
        with Tree(shared_daemon, project) as tree:
            assert tree.status("GET", at(path, token(project, **claims))) == 200
            assert tree.status("GET", path) == denied
            other = token(project, uid="x", provider="y", roles={})
            if path != "/somebody.json":
                assert tree.status("GET", at(path, other)) == denied


@pytest.mark.parametrize("claims", [{"admin": True}, {"v": 0, "d": {}, "admin": True}])
def test_an_admin_skips_all_rules(shop: Tree, claims: dict[str, Any]) -> None:
    bearer = token("shop", **claims)
    assert ask_all_ways(shop, "/denied/to/all.json", bearer) == dict.fromkeys(
        ["GET", "HEAD", "PUT", "POST", "PATCH", "DELETE", "stream"], 200
    )


@pytest.mark.parametrize(
    "claims",
    [
        {"admin": False},
        {"admin": "true"},
        {"admin": 1},
        {"Admin": True},
        {"v": 0, "d": {"admin": True}},
        {"token": {"admin": True}},
    ],
)
def test_nothing_else_makes_an_admin(shop: Tree, claims: dict[str, Any]) -> None:
    bearer = token("shop", **claims)
    assert set(ask_all_ways(shop, "/denied/to/all.json", bearer).values()) == {403}
    assert shop.status("GET", at(RULES, bearer)) == 403


# Overriding `auth`.


@pytest.mark.parametrize(
    ("override", "path", "status"),
    [
        ('{"uid":"alice"}', "/mine/alice.json", 200),
        ('{"uid":"alice"}', "/mine/bob.json", 403),
        ('{"uid":"alice"}', "/nobody.json", 403),
        ("null", "/nobody.json", 200),
        ("null", "/mine/alice.json", 403),
        ("{}", "/somebody.json", 200),
        ('{"any":{"thing":7}}', "/legacy.json", 200),
        ('{"admin":true}', "/denied.json", 403),
    ],
)
def test_an_admin_has_the_rules_judge_by_another_auth(
    shop: Tree, override: str, path: str, status: int
) -> None:
    target = at(path, shop.admin, auth_variable_override=override)
    assert shop.status("GET", target) == status
    with shop.try_to_listen(target) as stream:
        assert stream.status == status


def test_an_override_judges_writes_too(shop: Tree) -> None:
    def put(uid: str) -> int:
        override = json.dumps({"uid": uid})
        target = at("/mine/alice.json", shop.admin, auth_variable_override=override)
        return shop.status("PUT", target, "1")

    assert (put("alice"), put("bob")) == (200, 403)


@pytest.mark.parametrize("override", ["", "1", "[]", '"a"', "{", "nul"])
def test_an_override_must_be_an_object_or_null(shop: Tree, override: str) -> None:
    for bearer in ("", shop.admin):
        target = at(f"{OPEN}?auth_variable_override={escape(override)}", bearer)
        check_error(shop.ask("GET", target), 400, "invalid_query")


def test_nobody_else_overrides(shop: Tree, firebase: Tree) -> None:
    override = {"uid": "alice"}
    for method, body in (("GET", None), ("PUT", "1")):
        anonymous = shop.ask(method, at(OPEN, auth_variable_override=override), body)
        check_error(anonymous, 401, "auth_required")
        bob = at(OPEN, user("shop", "bob"), auth_variable_override=override)
        check_error(shop.ask(method, bob, body), 403, "permission_denied")
        bob = at(OPEN, user("firebase", "bob"), auth_variable_override=override)
        assert firebase.status(method, bob, body) == 401


# The emulator's token.


@pytest.mark.parametrize("place", PLACES)
def test_owner_is_nobodys_token_but_in_emulator_mode(
    shop: Tree, place: str, emulator: Tree
) -> None:
    assert ask_in(shop, place, "owner", OPEN) == 401
    assert ask_in(emulator, place, "owner", "/denied.json") == 200
    assert ask_in(emulator, place, "Owner", OPEN) == 401
    assert ask_in(emulator, place, "", "/denied.json") == 403


@pytest.fixture(scope="module")
def emulator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tree]:
    folder = tmp_path_factory.mktemp("emulator")
    with (
        trusting(folder, "emulator = true", ["shop"]) as daemon,
        Tree(daemon, "shop") as tree,
    ):
        answer = tree.ask(
            "PUT", RULES, json.dumps({"rules": RULE_SET}), {"Authorization": "Bearer owner"}
        )
        assert answer.status == 200
        yield tree


def test_the_emulator_verifies_all_other_tokens(emulator: Tree) -> None:
    assert emulator.status("GET", at("/mine/a.json", user("shop", "a"))) == 200
    assert emulator.status("GET", at("/mine/a.json", user("other", "a"))) == 401
    unsigned = "eyJhbGciOiJub25lIn0.eyJ1aWQiOiJhIn0."
    assert emulator.status("GET", at("/mine/a.json", unsigned)) == 401


# Bad tokens.


def check_bad(tree: Tree, path: str, bad: str, word: str) -> None:
    assert set(ask_all_ways(tree, path, bad).values()) == {401}
    assert word in check_error(tree.ask("GET", at(path, bad)), 401, "auth_required")


@pytest.mark.parametrize(
    ("word", "make"),
    [
        ("malformed", lambda: "rubbish"),
        ("malformed", lambda: "owner"),
        ("malformed", lambda: token("shop", uid=7)),
        ("malformed", lambda: token("shop", v=0, d=[1])),
        ("malformed", lambda: token("shop", uid="a", exp="soon")),
        ("malformed", lambda: token("shop", uid="a") + "="),
        ("signature", lambda: user("other", "alice")),
        ("signature", lambda: admin("other")),
        ("signature", lambda: user("shop", "alice")[:-4] + "AAAA"),
        ("expired", lambda: user("shop", "alice", exp=ending(-1))),
        ("expired", lambda: user("shop", "alice", exp=0)),
        ("expired", lambda: token("shop", admin=True, exp=ending(-1))),
        ("not yet valid", lambda: user("shop", "alice", nbf=time.time() + 60)),
        ("not yet valid", lambda: user("shop", "alice", iat=time.time() + 60)),
    ],
)
def test_a_bad_token_is_refused_everywhere_and_says_why(
    shop: Tree, word: str, make: Callable[[], str]
) -> None:
    for path in (OPEN, "/nobody.json", "/denied.json"):
        check_bad(shop, path, make(), word)


def test_a_bad_token_is_refused_at_the_places_of_administrators(shop: Tree) -> None:
    for place in (RULES, DATABASES):
        for bad in ("rubbish", admin("other"), token("shop", admin=True, exp=1)):
            check_error(shop.ask("GET", at(place, bad)), 401, "auth_required")
    document = '{"rules":{".read":true}}'
    check_error(shop.ask("PUT", at(RULES, admin("other")), document), 401, "auth_required")
    assert shop.status("GET", "/denied.json") == 403


def test_a_bad_token_is_refused_where_an_explanation_is_asked(shop: Tree) -> None:
    headers = {"X-TreeDB-Explain": "true"}
    check_error(shop.ask("GET", at(OPEN, "rubbish"), None, headers), 401, "auth_required")


def test_a_bad_token_is_refused_in_the_words_of_the_firebase_dialect(firebase: Tree) -> None:
    answer = firebase.ask("GET", at(OPEN, "rubbish"))
    check_refused(answer, 401)
    assert list(answer.json) == ["error"]
    assert answer.body.endswith(b'"\n}\n')


@pytest.fixture(scope="module")
def forged(shared_daemon: Daemon) -> Iterator[Tree]:
    with Tree(shared_daemon, "forged") as tree:
        yield tree


@pytest.mark.parametrize("name", [*MALFORMED, *FORGED])
def test_a_hostile_token_makes_nobody(forged: Tree, name: str) -> None:
    hostile = {**MALFORMED, **FORGED}[name]
    if not hostile:
        return
    for path in (OPEN, "/nobody.json"):
        answer = forged.ask("GET", f"{path}?auth={escape(hostile)}")
        check_error(answer, 401, "auth_required")
        assert hostile not in answer.body.decode()
    with forged.try_to_listen(f"{OPEN}?auth={escape(hostile)}") as stream:
        assert stream.status == 401


def test_times_are_taken_with_ten_seconds_of_leeway(shop: Tree) -> None:
    now = time.time()
    for claims in ({"exp": now - 5}, {"nbf": now + 5}, {"iat": now + 5}):
        assert shop.status("GET", at("/mine/a.json", user("shop", "a", **claims))) == 200
    for claims in ({"exp": now - 15}, {"nbf": now + 15}, {"iat": now + 15}):
        assert shop.status("GET", at("/mine/a.json", user("shop", "a", **claims))) == 401


def test_a_project_can_bound_the_life_of_tokens(shared_daemon: Daemon) -> None:
    now = time.time()
    with Tree(shared_daemon, "shortlived") as tree:
        for claims, status in (
            ({}, 401),
            ({"iat": now}, 403),
            ({"iat": now - 100}, 401),
            ({"iat": now - 100, "exp": now + 1000}, 401),
            ({"exp": now + 30}, 403),
            ({"exp": now + 1000}, 401),
        ):
            assert tree.status("GET", at("/a.json", user("shortlived", "a", **claims))) == status


# Several secrets, several projects.


def test_any_secret_of_a_project_vouches(shared_daemon: Daemon) -> None:
    with Tree(shared_daemon, "rotating") as tree:
        for secret in ("new", "old"):
            bearer = token("rotating", secret_of(secret), admin=True)
            assert tree.status("GET", at("/a.json", bearer)) == 200
        assert tree.status("GET", at("/a.json", admin("rotating"))) == 401


@pytest.mark.parametrize("make", [lambda: admin("shop"), lambda: user("shop", "alice")])
def test_a_token_of_one_project_is_worth_nothing_at_another(
    shared_daemon: Daemon, make: Callable[[], str]
) -> None:
    for project in ("other", "firebase", "auto", "rotating", "secretless"):
        with Tree(shared_daemon, project) as tree:
            assert set(ask_all_ways(tree, OPEN, make()).values()) == {401}
            for place in (RULES, DATABASES):
                assert tree.status("GET", at(place, make())) == 401
            assert tree.status("PUT", at(RULES, make()), '{"rules":{".read":true}}') in (401, 409)


def test_a_token_counts_by_the_project_that_is_asked_however_it_is_addressed(
    shared_daemon: Daemon,
) -> None:
    with Tree(shared_daemon, "shop", "eu") as eu:
        assert eu.status("GET", at("/denied.json", admin("shop"))) == 200
        assert eu.status("GET", at("/denied.json", admin("other"))) == 401
        eu.host = DOMAIN
        assert eu.status("GET", at("/denied.json", admin("shop"), ns="shop")) == 200
        assert eu.status("GET", at("/denied.json", admin("shop"), ns="other")) == 401


# The dialect that an Authorization header chooses.


def test_an_authorization_header_chooses_the_vendors_dialect_where_that_is_open(
    shared_daemon: Daemon,
) -> None:
    header = {"Authorization": f"Bearer {user('auto', 'bob')}"}
    with Tree(shared_daemon, "auto") as tree:
        plain = tree.ask("GET", at("/mine/alice.json", user("auto", "bob")))
        check_error(plain, 403, "permission_denied")
        vendors = tree.ask("GET", "/mine/alice.json", None, header)
        assert vendors.status == 401
        assert vendors.body == b'{\n  "error" : "Permission denied"\n}\n'
    with Tree(shared_daemon, "shop") as tree:
        header = {"Authorization": f"Bearer {user('shop', 'bob')}"}
        check_error(tree.ask("GET", "/mine/alice.json", None, header), 403, "permission_denied")


# What answers say of themselves.


def test_answers_to_whoever_has_a_token_are_not_to_be_stored(shop: Tree) -> None:
    for bearer in (user("shop", "alice"), "rubbish"):
        for method in ("GET", "PUT"):
            answer = shop.ask(method, at(OPEN, bearer), "1")
            assert answer.headers["Cache-Control"] == "no-store"
    with shop.listen(at(OPEN, user("shop", "alice"))) as stream:
        assert stream.headers["Cache-Control"] == "no-cache"


def test_a_preflight_needs_no_token_and_verifies_none(shop: Tree) -> None:
    for target, header in (
        (at(OPEN, "rubbish"), {}),
        (OPEN, {"Authorization": "Bearer rubbish"}),
        (f"{OPEN}?auth=one&access_token=other", {}),
    ):
        answer = shop.ask("OPTIONS", target, None, header)
        assert (answer.status, answer.headers["Cache-Control"]) == (204, "no-store")
    assert shop.status("OPTIONS", at(RULES, "rubbish")) == 204


def test_the_health_is_told_to_anybody(shop: Tree) -> None:
    assert shop.status("GET", "/.health?auth=rubbish") == 200


def test_an_event_stream_is_asked_for_with_any_of_the_places(shop: Tree) -> None:
    header = {**EVENTS, "Authorization": f"Bearer {user('shop', 'alice')}"}
    with shop.listen("/mine/alice.json", header) as stream:
        assert stream.next().kind == "put"
