"""Tokens that an admin requests over HTTP, and what a token's sender is shown of himself."""

from __future__ import annotations

import gzip
import hashlib
import json
import pathlib
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

from tests.access import Tree, admin, at, reload, token, trusting, user, write_secret
from tests.daemon import Daemon, Response
from tests.oidc import AUDIENCE, OidcProvider, authority_pem
from tests.rest import Client, check_error
from tests.workers_of import one_of_each
from treedbd import __version__
from treedbd.limits import MAX_TOKEN_REQUEST_BYTES
from treedbd.web.auth.jwt import parse

TOKENS = "/.settings/tokens.json"
CALLER = "/.inspect/caller.json"
ADA = '{"uid":"ada","claims":{"role":"editor"},"ttl":"2h"}'
RENEW = '{"renew":true}'
RULES: dict[str, Any] = {
    "me": {"$uid": {".read": "auth.uid === $uid && auth.token.role === 'editor'"}}
}


@pytest.fixture(scope="module")
def token_daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    with trusting(tmp_path_factory.mktemp("tokens"), "", ["shop", "other", "firebase"]) as running:
        yield running


@pytest.fixture
def shop(token_daemon: Daemon) -> Iterator[Tree]:
    with Tree(token_daemon, "shop") as tree:
        tree.put_rules(RULES)
        yield tree


def ask(tree: Client, sender: str, body: str, **headers: str) -> Response:
    return tree.request("POST", at(TOKENS, sender), body, headers)


def made(tree: Client, sender: str, body: str) -> str:
    """Return the token that a request makes."""
    response = ask(tree, sender, body)
    assert response.status == 200, response
    assert response.headers["Cache-Control"] == "no-store"
    assert list(response.json) == ["token", "expires"]
    text: str = response.json["token"]
    assert seconds_of(response.json["expires"]) == claims_of(text)["exp"]
    return text


def claims_of(text: str) -> Any:
    return parse(text).claims


def seconds_of(text: str) -> float:
    return datetime.strptime(text, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC).timestamp()


def root(life: float = 1800, project: str = "shop", **claims: Any) -> str:
    """Return the token of an admin, made now."""
    now = int(time.time())
    times = {"iat": now, "exp": now + int(life)}
    return token(project, **{"uid": "root", "admin": True, **times, **claims})


# Tokens of users.


def test_a_token_identifies_the_user_with_the_claims_for_the_time(shop: Tree) -> None:
    text = made(shop, root(), ADA)
    claims = claims_of(text)
    assert claims["exp"] - claims["iat"] == 7200
    assert {**claims, "iat": 0, "exp": 0} == {"uid": "ada", "role": "editor", "iat": 0, "exp": 0}
    assert shop.status("GET", at("/me/ada.json", text)) == 200
    assert shop.status("GET", at("/me/bob.json", text)) == 403
    assert shop.status("GET", at("/.settings/rules.json", text)) == 403


def test_it_is_valid_in_its_project_only(shop: Tree) -> None:
    text = made(shop, root(), ADA)
    with Tree(shop.daemon, "other") as other:
        check_error(other.request("GET", at(CALLER, text)), 401, "auth_required")
        check_error(ask(other, root(), ADA), 401, "auth_required")


def test_an_admin_alone_has_tokens_made(shop: Tree) -> None:
    for sender in (user("shop", "ada"), user("shop", "ada", admin="true"), made(shop, root(), ADA)):
        for body in (ADA, RENEW, "{"):
            assert ask(shop, sender, body).status == 403
    check_error(ask(shop, "", ADA), 401, "auth_required")
    override = at(TOKENS, user("shop", "ada"), auth_variable_override={"uid": "root"})
    assert shop.status("POST", override, ADA) == 403


@pytest.mark.parametrize(
    "body",
    [
        '{"uid":"ada","claims":{"admin":true}}',
        '{"uid":"ada","claims":{"admin":false}}',
        '{"uid":"ada","claims":{"read_only":true}}',
        '{"uid":"ada","claims":{"v":0,"d":{"uid":"eve"}}}',
        '{"uid":"ada","claims":{"exp":9999999999}}',
        '{"uid":"ada","admin":true}',
        '{"uid":"ada","ttl":"31d"}',
        '{"uid":"ada","ttl":"never"}',
        '{"uid":"a/b"}',
        "{}",
        "",
        '{"uid":"ada","claims":{"a":' + "[" * 40 + "]" * 40 + "}}",
    ],
)
def test_what_is_more_than_a_users_token_is_refused(shop: Tree, body: str) -> None:
    check_error(ask(shop, root(), body), 400, "invalid_data")


def test_a_request_has_a_limit_also_when_it_is_decoded(shop: Tree) -> None:
    long = json.dumps({"uid": "ada", "claims": {"x": "y" * MAX_TOKEN_REQUEST_BYTES}})
    check_error(ask(shop, root(), long), 413, "payload_too_large")
    too_long = json.dumps({"uid": "ada", "claims": {"x": "y" * 9000}})
    message = check_error(ask(shop, root(), too_long), 400, "invalid_data")
    assert "longer than 8192 characters" in message
    for text, status in ((ADA, 200), (long, 413)):
        target = at(TOKENS, root())
        packed = gzip.compress(text.encode()).decode("latin-1")
        response = post_bytes(shop, target, packed.encode("latin-1"))
        assert response.status == status


def post_bytes(tree: Tree, target: str, body: bytes) -> Response:
    with tree.connect() as wire:
        head = f"POST {target} HTTP/1.1\r\nHost: {tree.host}\r\nContent-Encoding: gzip\r\n"
        wire.send(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        return wire.receive("POST")


def test_other_methods_are_not_there_and_an_explanation_makes_nothing(shop: Tree) -> None:
    assert shop.status("GET", at(TOKENS, root())) == 405
    assert shop.request("OPTIONS", TOKENS).headers["Allow"] == "POST, OPTIONS"
    explained = ask(shop, root(), '{"uid":"explained"}', **{"X-TreeDB-Explain": "true"})
    assert (explained.status, explained.json["allowed"]) == (200, True)
    assert "token" not in explained.json
    assert "uid=explained" not in shop.daemon.log


# Renewed tokens.


def test_an_admins_token_is_renewed_for_as_long_again(shop: Tree) -> None:
    now = int(time.time())
    old = token("shop", uid="root", admin=True, iat=now - 1000, exp=now + 800, note="x")
    claims = claims_of(made(shop, old, RENEW))
    assert now <= claims["iat"] <= time.time()
    assert claims["exp"] - claims["iat"] == 1800
    assert {name: claims[name] for name in ("uid", "admin", "note", "auth_time")} == {
        "uid": "root",
        "admin": True,
        "note": "x",
        "auth_time": now - 1000,
    }
    again = made(shop, made(shop, old, RENEW), RENEW)
    assert claims_of(again)["auth_time"] == now - 1000
    assert shop.status("GET", at("/.settings/rules.json", again)) == 200


def test_twelve_hours_after_the_first_it_is_not_renewed(shop: Tree) -> None:
    now = int(time.time())
    last = made(shop, root(auth_time=now - 12 * 3600 + 1900), RENEW)
    assert claims_of(last)["exp"] <= now + 1900
    ended = root(auth_time=now - 12 * 3600 + 1800)
    message = check_error(ask(shop, ended, RENEW), 400, "invalid_data")
    assert "12 hours after the first was made" in message
    for sender in (admin("shop"), root(7 * 86_400), root(auth_time=now + 3600)):
        check_error(ask(shop, sender, RENEW), 400, "invalid_data")


def test_a_token_that_may_only_read_renews_itself_and_makes_no_other(shop: Tree) -> None:
    reader = root(read_only=True)
    renewed = made(shop, reader, RENEW)
    assert claims_of(renewed)["read_only"] is True
    for each in (reader, renewed):
        assert shop.get(at(CALLER, each))["read_only"] is True
        check_error(ask(shop, each, ADA), 403, "permission_denied")
        assert shop.status("PUT", at("/a.json", each), "1") == 403


def test_the_first_secret_signs_and_a_withdrawn_one_renews_nothing(tmp_path: pathlib.Path) -> None:
    new = "another secret of the project shop".ljust(48, "-")
    with trusting(tmp_path, "", ["shop"]) as daemon, Tree(daemon, "shop") as shop:
        file = tmp_path / "treedb.toml"
        write_secret(tmp_path, "new", new)
        old_config = file.read_text()
        file.write_text(old_config.replace('["shop.secret"]', '["new.secret", "shop.secret"]'))
        reload(daemon)
        sender = root()
        texts = [made(shop, sender, ADA), made(shop, sender, RENEW)]
        file.write_text(old_config.replace('["shop.secret"]', '["new.secret"]'))
        reload(daemon)
        for text in texts:
            assert shop.status("GET", at(CALLER, text)) == 200
        for body in (ADA, RENEW):
            check_error(ask(shop, sender, body), 401, "auth_required")


def test_no_token_of_a_provider_makes_or_renews_any(tmp_path: pathlib.Path) -> None:
    (tmp_path / "ca.pem").write_bytes(authority_pem())
    with OidcProvider() as provider:
        table = (
            f'[[projects.shop.providers]]\nissuer = "{provider.issuer}"\n'
            f'audience = "{AUDIENCE}"\nca_file = "ca.pem"\n'
        )
        write_secret(tmp_path, "shop")
        config = f'[projects.shop]\nsecret_files = ["shop.secret"]\ndialect = "standard"\n{table}'
        with trusting(tmp_path, config, []) as daemon, Tree(daemon, "shop") as shop:
            own = provider.token(sub="1", admin=True, auth_time=int(time.time()))
            assert shop.get(at(CALLER, own))["admin"] is False
            for body in (ADA, RENEW):
                check_error(ask(shop, own, body), 403, "permission_denied")


# Where there is no secret, or a short life.


def test_without_a_secret_no_token_is_made(tmp_path: pathlib.Path) -> None:
    config = 'emulator = true\n[projects.shop]\ndatabases = ["default"]\ndialect = "standard"\n'
    with Daemon(tmp_path, config=config) as daemon, Client(daemon) as client:
        for body, status, code in ((ADA, 409, "conflict"), (RENEW, 400, "invalid_data")):
            target = f"{TOKENS}?ns=shop&auth=owner"
            check_error(client.request("POST", target, body), status, code)


def test_the_longest_life_in_the_project_holds_for_made_tokens(tmp_path: pathlib.Path) -> None:
    config = (
        '[projects.shop]\nsecret_files = ["shop.secret"]\ndialect = "standard"\n'
        "max_token_life_s = 600\n"
    )
    write_secret(tmp_path, "shop")
    with trusting(tmp_path, config, []) as daemon, Tree(daemon, "shop") as shop:
        message = check_error(ask(shop, root(600), ADA), 400, "invalid_data")
        assert message == "A token that is made here lives for at most 600 seconds."
        claims = claims_of(made(shop, root(600), '{"uid":"ada"}'))
        assert claims["exp"] - claims["iat"] == 600
        claims = claims_of(made(shop, root(1800), RENEW))
        assert claims["exp"] - claims["iat"] == 600


def test_the_token_of_development_mode_makes_others_and_is_not_renewed(daemon: Daemon) -> None:
    with Client(daemon) as client:
        text = made(client, "owner", ADA)
        assert client.get(at(CALLER, text))["uid"] == "ada"
        message = check_error(ask(client, "owner", RENEW), 400, "invalid_data")
        assert message == "This token does not end, so it is not renewed."


# The log, and several workers.


def test_each_made_token_is_logged_and_none_is_in_the_log(shop: Tree) -> None:
    sender = root(uid="of-the-log")
    texts = [made(shop, sender, '{"uid":"in-the-log"}'), made(shop, sender, RENEW)]
    end = r"by=of-the-log expires=20\d\d-\d\d-\d\dT\d\d:\d\d:\d\dZ$"
    shop.daemon.await_line(rf"A token was made\. project=shop uid=in-the-log {end}")
    shop.daemon.await_line(rf"was renewed\. project=shop uid=of-the-log {end}")
    for text in (sender, *texts):
        assert not [part for part in text.split(".")[1:] if part in shop.daemon.log]


def test_what_a_uid_has_in_it_does_not_begin_another_line(shop: Tree) -> None:
    made(shop, root(), json.dumps({"uid": "ada\u2028[fake#info] x"}))
    shop.daemon.await_line(r"A token was made\. .*uid=.*ada\\u2028")


def test_a_token_that_one_worker_made_is_valid_at_all(tmp_path: pathlib.Path) -> None:
    with (
        trusting(tmp_path, "", ["shop"], "--workers", "2") as daemon,
        Tree(daemon, "shop") as shop,
    ):
        shop.put_rules(RULES)

        def make() -> Tree:
            tree = Tree(daemon, "shop")
            tree.request("GET", "/.health")
            return tree

        trees = one_of_each(daemon, make, lambda tree: tree.wire.socket)
        for maker in trees:
            renewed = made(maker, root(), RENEW)
            reader = made(maker, root(read_only=True), RENEW)
            text = made(maker, renewed, ADA)
            daemon.await_line(r"Worker \d: A token was made")
            for tree in trees:
                assert tree.get(at(CALLER, text))["uid"] == "ada"
                assert tree.get(at("/me/ada.json", text)) is None
                assert tree.status("PUT", at("/a.json", reader), "1") == 403
                assert tree.status("PUT", at("/a.json", renewed), "1") == 200


# Who the caller is.


def test_a_caller_sees_who_he_is(shop: Tree) -> None:
    common = {"project": "shop", "database": "shop", "version": __version__, "development": False}
    end = int(time.time()) + 100
    for sender, shown in (
        (user("shop", "ada", exp=end), {"uid": "ada", "admin": False, "read_only": False}),
        (root(100, exp=end), {"uid": None, "admin": True, "read_only": False}),
        (root(exp=end, read_only=True), {"uid": None, "admin": True, "read_only": True}),
    ):
        response = shop.request("GET", at(CALLER, sender))
        expires = f"{datetime.fromtimestamp(end, UTC):%Y-%m-%dT%H:%M:%SZ}"
        digest = hashlib.sha256(sender.encode()).hexdigest()[:16]
        expected = {**common, **shown, "token_id": f"sha256:{digest}", "expires": expires}
        assert response.json == expected
        assert response.headers["Cache-Control"] == "no-store"
    assert shop.get(at(CALLER, admin("shop")))["expires"] is None
    with Tree(shop.daemon, "shop", "stock") as stock:
        shown = stock.get(at(CALLER, user("shop", "ada")))
        assert (shown["project"], shown["database"]) == ("shop", "stock--shop")


def test_an_admin_sees_what_another_auth_makes_of_him(shop: Tree) -> None:
    for override, uid in (({"uid": "ada"}, "ada"), (None, None)):
        shown = shop.get(at(CALLER, root(), auth_variable_override=override))
        assert (shown["uid"], shown["admin"]) == (uid, False)
    denied = at(CALLER, user("shop", "ada"), auth_variable_override={"uid": "eve"})
    assert shop.status("GET", denied) == 403


def test_without_a_valid_token_nothing_is_shown(shop: Tree) -> None:
    message = check_error(shop.request("GET", CALLER), 401, "auth_required")
    assert message == "To see who the caller is requires a token."
    for bad in ("x", user("other", "ada"), user("shop", "ada", exp=1)):
        check_error(shop.request("GET", at(CALLER, bad)), 401, "auth_required")
    assert shop.status("HEAD", at(CALLER, root())) == 200
    assert shop.status("PUT", at(CALLER, root()), "1") == 405
    explained = shop.request("GET", at(CALLER, root()), None, {"X-TreeDB-Explain": "true"})
    assert explained.json["allowed"] is True


def test_development_mode_says_so(daemon: Daemon) -> None:
    with Client(daemon) as client:
        shown = client.get(at(CALLER, "owner", ns="demo"))
    assert shown == {
        "project": "demo",
        "database": "demo",
        "uid": None,
        "admin": True,
        "read_only": False,
        "token_id": "owner",
        "expires": None,
        "version": __version__,
        "development": True,
    }


def test_in_the_dialect_of_firebase_its_errors_have_that_form(token_daemon: Daemon) -> None:
    with Tree(token_daemon, "firebase") as tree:
        response = ask(tree, user("firebase", "ada"), ADA)
        assert (response.status, response.json) == (401, {"error": "Permission denied"})
        response = ask(tree, root(project="firebase"), "{}")
        assert (response.status, list(response.json)) == (400, ["error"])
