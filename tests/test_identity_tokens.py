"""Tokens that the project signs, over HTTP: the identity of each, and what it may do."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.access import (
    DATABASES,
    DOMAIN,
    RULES,
    Tree,
    admin,
    at,
    ending,
    secret_of,
    statuses_by_method,
    token,
    trusting,
    user,
    write_secret,
)
from tests.daemon import Daemon
from tests.rest import Headers, check_error, check_refused, escape
from tests.sse import EVENTS
from tests.web.auth.test_jwt import FORGED, MALFORMED
from tests.web.auth.test_jwt import SECRET as SECRET_OF_FORGERIES

OPEN = "/open/a.json"
RULE_SET = {
    "open": {".read": True, ".write": True},
    "mine": {"$uid": {".read": "auth.uid == $uid", ".write": "auth.uid == $uid"}},
    "anonymous": {".read": "auth == null", ".write": "auth == null"},
    "authenticated": {".read": "auth != null"},
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


def status_with_token_in(tree: Tree, place: str, token: str, path: str = "/mine/alice.json") -> int:
    query, headers = PLACES[place](token)
    return tree.request("GET", f"{path}?{query}", None, headers).status


# Where the token is.


@pytest.mark.parametrize("place", PLACES)
def test_a_token_is_found_in_any_of_its_places(shop: Tree, place: str) -> None:
    assert status_with_token_in(shop, place, user("shop", "alice")) == 200
    assert status_with_token_in(shop, place, user("shop", "bob")) == 403


@pytest.mark.parametrize("place", PLACES)
def test_an_empty_token_is_ignored(shop: Tree, place: str) -> None:
    assert status_with_token_in(shop, place, "", "/anonymous.json") == 200
    assert status_with_token_in(shop, place, "", "/authenticated.json") == 403


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
    response = shop.request(method, f"{path}?{query}", body, headers)
    check_error(response, 400, "invalid_query")


def test_an_authorization_of_another_scheme_is_ignored(shop: Tree) -> None:
    for field in ("Basic YTpi", "Digest a", user("shop", "alice")):
        header = {"Authorization": field}
        assert shop.request("GET", "/anonymous.json", None, header).status == 200
        target = at("/mine/alice.json", user("shop", "alice"))
        assert shop.request("GET", target, None, header).status == 200


# The identity that a token has.


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
        ("/authenticated.json", {}),
        ("/legacy.json", {"v": 0, "d": {"any": {"thing": 7}}}),
        ("/mine/alice.json", {"v": 0, "d": {"uid": "alice"}, "uid": "bob"}),
    ],
)
def test_the_rules_receive_the_claims(
    shared_daemon: Daemon, path: str, claims: dict[str, Any]
) -> None:
    for project, denied in (("shop", 403), ("firebase", 401)):
        with Tree(shared_daemon, project) as tree:
            assert tree.status("GET", at(path, token(project, **claims))) == 200
            assert tree.status("GET", path) == denied
            other = token(project, uid="x", provider="y", roles={})
            if path != "/authenticated.json":
                assert tree.status("GET", at(path, other)) == denied


@pytest.mark.parametrize("claims", [{"admin": True}, {"v": 0, "d": {}, "admin": True}])
def test_an_admin_skips_all_rules(shop: Tree, claims: dict[str, Any]) -> None:
    bearer = token("shop", **claims)
    assert statuses_by_method(shop, "/denied/to/all.json", bearer) == dict.fromkeys(
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
def test_other_claims_do_not_make_an_admin(shop: Tree, claims: dict[str, Any]) -> None:
    bearer = token("shop", **claims)
    assert set(statuses_by_method(shop, "/denied/to/all.json", bearer).values()) == {403}
    assert shop.status("GET", at(RULES, bearer)) == 403


# Overriding `auth`.


@pytest.mark.parametrize(
    ("override", "path", "status"),
    [
        ('{"uid":"alice"}', "/mine/alice.json", 200),
        ('{"uid":"alice"}', "/mine/bob.json", 403),
        ('{"uid":"alice"}', "/anonymous.json", 403),
        ("null", "/anonymous.json", 200),
        ("null", "/mine/alice.json", 403),
        ("{}", "/authenticated.json", 200),
        ('{"any":{"thing":7}}', "/legacy.json", 200),
        ('{"admin":true}', "/denied.json", 403),
    ],
)
def test_an_admin_can_have_the_rules_evaluated_with_another_auth(
    shop: Tree, override: str, path: str, status: int
) -> None:
    target = at(path, shop.admin, auth_variable_override=override)
    assert shop.status("GET", target) == status
    with shop.try_to_listen(target) as stream:
        assert stream.status == status


def test_an_override_applies_to_writes_too(shop: Tree) -> None:
    def put(uid: str) -> int:
        override = json.dumps({"uid": uid})
        target = at("/mine/alice.json", shop.admin, auth_variable_override=override)
        return shop.status("PUT", target, "1")

    assert (put("alice"), put("bob")) == (200, 403)


@pytest.mark.parametrize("override", ["", "1", "[]", '"a"', "{", "nul"])
def test_an_override_must_be_an_object_or_null(shop: Tree, override: str) -> None:
    for bearer in ("", shop.admin):
        target = at(f"{OPEN}?auth_variable_override={escape(override)}", bearer)
        check_error(shop.request("GET", target), 400, "invalid_query")


def test_only_an_admin_can_override_auth(shop: Tree, firebase: Tree) -> None:
    override = {"uid": "alice"}
    for method, body in (("GET", None), ("PUT", "1")):
        anonymous = shop.request(method, at(OPEN, auth_variable_override=override), body)
        check_error(anonymous, 401, "auth_required")
        bob = at(OPEN, user("shop", "bob"), auth_variable_override=override)
        check_error(shop.request(method, bob, body), 403, "permission_denied")
        bob = at(OPEN, user("firebase", "bob"), auth_variable_override=override)
        assert firebase.status(method, bob, body) == 401


# The emulator's token.


@pytest.mark.parametrize("place", PLACES)
def test_the_token_owner_is_valid_only_in_emulator_mode(
    shop: Tree, place: str, emulator: Tree
) -> None:
    assert status_with_token_in(shop, place, "owner", OPEN) == 401
    assert status_with_token_in(emulator, place, "owner", "/denied.json") == 200
    assert status_with_token_in(emulator, place, "Owner", OPEN) == 401
    assert status_with_token_in(emulator, place, "", "/denied.json") == 403


@pytest.fixture(scope="module")
def emulator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tree]:
    folder = tmp_path_factory.mktemp("emulator")
    with (
        trusting(folder, "emulator = true", ["shop"]) as daemon,
        Tree(daemon, "shop") as tree,
    ):
        response = tree.request(
            "PUT", RULES, json.dumps({"rules": RULE_SET}), {"Authorization": "Bearer owner"}
        )
        assert response.status == 200
        yield tree


def test_the_emulator_verifies_all_other_tokens(emulator: Tree) -> None:
    assert emulator.status("GET", at("/mine/a.json", user("shop", "a"))) == 200
    assert emulator.status("GET", at("/mine/a.json", user("other", "a"))) == 401
    unsigned = "eyJhbGciOiJub25lIn0.eyJ1aWQiOiJhIn0."
    assert emulator.status("GET", at("/mine/a.json", unsigned)) == 401


# Bad tokens.


def check_bad(tree: Tree, path: str, bad: str, word: str) -> None:
    assert set(statuses_by_method(tree, path, bad).values()) == {401}
    assert word in check_error(tree.request("GET", at(path, bad)), 401, "auth_required")


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
def test_a_bad_token_is_refused_everywhere_and_the_error_says_why(
    shop: Tree, word: str, make: Callable[[], str]
) -> None:
    for path in (OPEN, "/anonymous.json", "/denied.json"):
        check_bad(shop, path, make(), word)


def test_a_bad_token_is_refused_by_the_admins_resources(shop: Tree) -> None:
    for place in (RULES, DATABASES):
        for bad in ("rubbish", admin("other"), token("shop", admin=True, exp=1)):
            check_error(shop.request("GET", at(place, bad)), 401, "auth_required")
    document = '{"rules":{".read":true}}'
    check_error(shop.request("PUT", at(RULES, admin("other")), document), 401, "auth_required")
    assert shop.status("GET", "/denied.json") == 403


def test_a_bad_token_is_refused_if_an_explanation_is_requested(shop: Tree) -> None:
    headers = {"X-TreeDB-Explain": "true"}
    check_error(shop.request("GET", at(OPEN, "rubbish"), None, headers), 401, "auth_required")


def test_a_bad_token_is_refused_in_the_form_of_the_firebase_dialect(firebase: Tree) -> None:
    response = firebase.request("GET", at(OPEN, "rubbish"))
    check_refused(response, 401)
    assert list(response.json) == ["error"]
    assert response.body.endswith(b'"\n}\n')


@pytest.fixture(scope="module")
def forged(shared_daemon: Daemon) -> Iterator[Tree]:
    with Tree(shared_daemon, "forged") as tree:
        yield tree


@pytest.mark.parametrize("name", [*MALFORMED, *FORGED])
def test_a_hostile_token_is_refused(forged: Tree, name: str) -> None:
    hostile = {**MALFORMED, **FORGED}[name]
    if not hostile:
        return
    for path in (OPEN, "/anonymous.json"):
        response = forged.request("GET", f"{path}?auth={escape(hostile)}")
        check_error(response, 401, "auth_required")
        assert hostile not in response.body.decode()
    with forged.try_to_listen(f"{OPEN}?auth={escape(hostile)}") as stream:
        assert stream.status == 401


def test_times_are_checked_with_ten_seconds_of_leeway(shop: Tree) -> None:
    now = time.time()
    for claims in ({"exp": now - 5}, {"nbf": now + 5}, {"iat": now + 5}):
        assert shop.status("GET", at("/mine/a.json", user("shop", "a", **claims))) == 200
    for claims in ({"exp": now - 15}, {"nbf": now + 15}, {"iat": now + 15}):
        assert shop.status("GET", at("/mine/a.json", user("shop", "a", **claims))) == 401


def test_a_project_can_limit_the_life_of_tokens(shared_daemon: Daemon) -> None:
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


def test_any_secret_of_a_project_verifies_tokens(shared_daemon: Daemon) -> None:
    with Tree(shared_daemon, "rotating") as tree:
        for secret in ("new", "old"):
            bearer = token("rotating", secret_of(secret), admin=True)
            assert tree.status("GET", at("/a.json", bearer)) == 200
        assert tree.status("GET", at("/a.json", admin("rotating"))) == 401


@pytest.mark.parametrize("make", [lambda: admin("shop"), lambda: user("shop", "alice")])
def test_a_token_of_one_project_is_refused_by_another(
    shared_daemon: Daemon, make: Callable[[], str]
) -> None:
    for project in ("other", "firebase", "auto", "rotating", "secretless"):
        with Tree(shared_daemon, project) as tree:
            assert set(statuses_by_method(tree, OPEN, make()).values()) == {401}
            for place in (RULES, DATABASES):
                assert tree.status("GET", at(place, make())) == 401
            assert tree.status("PUT", at(RULES, make()), '{"rules":{".read":true}}') in (401, 409)


def test_a_token_is_verified_by_the_addressed_project_however_it_is_addressed(
    shared_daemon: Daemon,
) -> None:
    with Tree(shared_daemon, "shop", "eu") as eu:
        assert eu.status("GET", at("/denied.json", admin("shop"))) == 200
        assert eu.status("GET", at("/denied.json", admin("other"))) == 401
        eu.host = DOMAIN
        assert eu.status("GET", at("/denied.json", admin("shop"), ns="shop")) == 200
        assert eu.status("GET", at("/denied.json", admin("shop"), ns="other")) == 401


# The dialect that an Authorization header chooses.


def test_an_authorization_header_chooses_the_firebase_dialect_if_the_setting_is_auto(
    shared_daemon: Daemon,
) -> None:
    header = {"Authorization": f"Bearer {user('auto', 'bob')}"}
    with Tree(shared_daemon, "auto") as tree:
        plain = tree.request("GET", at("/mine/alice.json", user("auto", "bob")))
        check_error(plain, 403, "permission_denied")
        firebase = tree.request("GET", "/mine/alice.json", None, header)
        assert firebase.status == 401
        assert firebase.body == b'{\n  "error" : "Permission denied"\n}\n'
    with Tree(shared_daemon, "shop") as tree:
        header = {"Authorization": f"Bearer {user('shop', 'bob')}"}
        check_error(tree.request("GET", "/mine/alice.json", None, header), 403, "permission_denied")


# Headers of the responses.


def test_responses_to_requests_with_a_token_must_not_be_stored(shop: Tree) -> None:
    for bearer in (user("shop", "alice"), "rubbish"):
        for method in ("GET", "PUT"):
            response = shop.request(method, at(OPEN, bearer), "1")
            assert response.headers["Cache-Control"] == "no-store"
    with shop.listen(at(OPEN, user("shop", "alice"))) as stream:
        assert stream.headers["Cache-Control"] == "no-cache"


def test_a_preflight_needs_no_token_and_verifies_none(shop: Tree) -> None:
    for target, header in (
        (at(OPEN, "rubbish"), {}),
        (OPEN, {"Authorization": "Bearer rubbish"}),
        (f"{OPEN}?auth=one&access_token=other", {}),
    ):
        response = shop.request("OPTIONS", target, None, header)
        assert (response.status, response.headers["Cache-Control"]) == (204, "no-store")
    assert shop.status("OPTIONS", at(RULES, "rubbish")) == 204


def test_the_health_needs_no_token(shop: Tree) -> None:
    assert shop.status("GET", "/.health?auth=rubbish") == 200


def test_an_event_stream_is_requested_with_a_token_in_the_header(shop: Tree) -> None:
    header = {**EVENTS, "Authorization": f"Bearer {user('shop', 'alice')}"}
    with shop.listen("/mine/alice.json", header) as stream:
        assert stream.next().kind == "put"
