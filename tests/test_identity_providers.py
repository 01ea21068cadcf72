"""Tokens of OpenID providers, whose keys the daemon fetches over TLS from real servers."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from tests.access import DATABASES, RULES, Tree, at, statuses_by_method, token, trusting, user
from tests.oidc import AUDIENCE, DISCOVERY, KEYS, Answer, OidcProvider, authority_pem, private_key
from tests.rest import check_error
from tests.web.auth.test_jwt import forge

TIMEOUT_S = 20
FETCH_S = 5
MINE = "auth.uid == $uid || auth.uid == auth.provider + ':' + $uid"
RULE_SET = {
    "anonymous": {".read": "auth == null"},
    "mine": {"$uid": {".read": MINE, ".write": MINE}},
    "provider": {"$provider": {".read": "auth.provider == $provider"}},
    "role": {"$role": {".read": "auth.token.role == $role"}},
    "d": {".read": "auth.d.uid == 'alice' || auth.uid == null"},
}


class ManyProviders:
    """A daemon and its providers, which keep their ports."""

    def __init__(self) -> None:
        self.usual = OidcProvider()
        self.direct = OidcProvider(algorithm="ES256")
        self.rotating = OidcProvider()
        self.misnamed = OidcProvider()
        self.uncertified = OidcProvider(certified_for="elsewhere.example")
        self.stopped = OidcProvider()
        self.hanging = OidcProvider()
        self.malformed = OidcProvider()

    @property
    def providers(self) -> list[OidcProvider]:
        return [each for each in vars(self).values() if isinstance(each, OidcProvider)]

    def config(self) -> str:
        lines = ["[projects.shop]", 'secret_files = ["shop.secret"]', 'dialect = "standard"']
        for number, provider in enumerate(self.providers):
            lines += ["[[projects.shop.providers]]", f'issuer = "{provider.issuer}"']
            if provider is self.usual:
                lines += ['uid_prefix = ""', 'name = "usual"']
            else:
                lines += [f'uid_prefix = "{number}:"', f'name = "{number}"']
            lines += [f'audience = "{AUDIENCE}"', 'ca_file = "ca.pem"']
            if provider is self.direct:
                lines.append(f'jwks_uri = "{provider.keys_uri}"')
        lines += ["[[projects.other.providers]]", f'issuer = "{self.usual.issuer}"']
        lines += ['audience = "other"', 'ca_file = "ca.pem"']
        return "\n".join(lines)


@pytest.fixture(scope="module")
def world() -> Iterator[ManyProviders]:
    found = ManyProviders()
    with contextlib.ExitStack() as running:
        for provider in found.providers:
            running.enter_context(provider)
        yield found


@pytest.fixture(scope="module")
def shop(world: ManyProviders, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tree]:
    folder = tmp_path_factory.mktemp("providers")
    (folder / "ca.pem").write_bytes(authority_pem())
    (folder / "shop.secret").write_text("the secret of the project shop ".ljust(48, "-"))
    (folder / "shop.secret").chmod(0o600)
    world.misnamed.announced_issuer = "https://127.0.0.1:1"
    world.malformed.answers[KEYS] = Answer(b'{"keys": 7}')
    world.stopped.stop()
    world.hanging.hang()
    with trusting(folder, world.config(), []) as daemon, Tree(daemon, "shop") as tree:
        tree.put_rules(RULE_SET)
        yield tree


def mine(bearer: str, uid: str = "alice", **parameters: Any) -> str:
    return at(f"/mine/{uid}.json", bearer, **parameters)


def are_other_callers_served(shop: Tree, world: ManyProviders) -> bool:
    targets = ["/anonymous.json", mine(user("shop", "alice")), mine(world.usual.token())]
    return [shop.status("GET", target) for target in targets] == [200] * 3


# Valid tokens.


def test_the_token_of_a_provider_is_accepted_with_every_method(
    shop: Tree, world: ManyProviders
) -> None:
    for provider in (world.usual, world.direct):
        assert set(statuses_by_method(shop, "/mine/alice.json", provider.token()).values()) == {200}
        assert set(statuses_by_method(shop, "/mine/bob.json", provider.token()).values()) == {403}


@pytest.mark.parametrize(
    ("path", "claims"),
    [
        ("/mine/bob.json", {"sub": "bob"}),
        ("/mine/alice.json", {"sub": "alice", "uid": "bob"}),
        ("/provider/usual.json", {}),
        ("/provider/usual.json", {"provider": "x"}),
        ("/provider/password.json", {"firebase": {"sign_in_provider": "password"}}),
        ("/role/cook.json", {"role": "cook"}),
        ("/mine/alice.json", {"aud": ["elsewhere", AUDIENCE]}),
        ("/mine/alice.json", {"nbf": int(time.time())}),
    ],
)
def test_the_rules_receive_the_claims(
    shop: Tree, world: ManyProviders, path: str, claims: dict[str, Any]
) -> None:
    assert shop.status("GET", at(path, world.usual.token(**claims))) == 200


def test_the_token_of_a_provider_is_never_an_admins_and_never_legacy(
    shop: Tree, world: ManyProviders
) -> None:
    bearer = world.usual.token(admin=True, v=0, d={"uid": "alice"}, sub="bob")
    assert shop.status("GET", at("/denied.json", bearer)) == 403
    assert shop.status("GET", at("/d.json", bearer)) == 403
    assert shop.status("GET", mine(bearer, "bob")) == 200
    for place in (RULES, DATABASES):
        check_error(shop.request("GET", at(place, bearer)), 403, "permission_denied")
    override = at("/anonymous.json", bearer, auth_variable_override="null")
    assert shop.status("GET", override) == 403


def test_the_keys_are_fetched_once(shop: Tree, world: ManyProviders) -> None:
    for number in range(20):
        assert shop.status("GET", mine(world.usual.token(nonce=number))) == 200
        assert shop.status("GET", mine(world.direct.token(nonce=number))) == 200
    # Two projects trust this provider, each for an audience of its own.
    assert sorted(world.usual.requests) == [DISCOVERY, DISCOVERY, KEYS, KEYS]
    assert world.direct.requests == [KEYS]


# Refused tokens.


@pytest.mark.parametrize(
    ("word", "changes"),
    [
        ("audience", {"aud": "other"}),
        ("audience", {"aud": None}),
        ("audience", {"aud": ["a", "b"]}),
        ("audience", {"aud": {"shop": 1}}),
        ("issuer", {"iss": "https://127.0.0.1:1"}),
        ("issuer", {"iss": None}),
        ("issuer", {"iss": 7}),
        ("expired", {"exp": 1, "iat": 0}),
        ("exp", {"exp": None}),
        ("malformed", {"exp": "never"}),
        ("not yet valid", {"nbf": int(time.time()) + 3600}),
        ("malformed", {"sub": 7}),
        ("malformed", {"sub": None, "uid": "alice"}),
        ("malformed", {"sub": ""}),
        ("malformed", {"sub": "a/b"}),
        ("another provider's prefix", {"sub": "1:alice"}),
    ],
)
def test_the_error_of_an_invalid_token_says_why(
    shop: Tree, world: ManyProviders, word: str, changes: dict[str, Any]
) -> None:
    bad = world.usual.token(**changes)
    assert set(statuses_by_method(shop, "/anonymous.json", bad).values()) == {401}
    assert word in check_error(
        shop.request("GET", at("/anonymous.json", bad)), 401, "auth_required"
    )


def test_the_key_determines_how_a_token_is_verified(shop: Tree, world: ManyProviders) -> None:
    usual = world.usual
    now = int(time.time())
    claims: dict[str, Any] = {
        "iss": usual.issuer,
        "aud": AUDIENCE,
        "sub": "alice",
        "iat": now,
        "exp": now + 60,
    }
    pem = (
        private_key("RS256")
        .public_key()
        .public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    )
    kid = usual.signing.key_id
    for forged in (
        token("shop", **claims),
        forge({"alg": "HS256", "kid": kid}, claims, pem),
        forge({"alg": "none", "kid": kid}, claims),
        forge({"alg": "RS256", "kid": kid}, claims, pem),
        usual.token(header={"kid": world.direct.signing.key_id}),
        usual.token(header={"jku": usual.keys_uri}),
        usual.token(header={"crit": ["exp"]}),
        world.direct.token(iss=usual.issuer),
        usual.token() + "=",
    ):
        check_error(shop.request("GET", at("/anonymous.json", forged)), 401, "auth_required")


def test_a_token_for_one_project_is_refused_by_another(shop: Tree, world: ManyProviders) -> None:
    with Tree(shop.daemon, "other") as other:
        check_error(other.request("GET", at("/a.json", world.usual.token())), 401, "auth_required")
        assert other.status("GET", at("/a.json", world.usual.token(aud="other"))) != 401
        assert shop.status("GET", at("/anonymous.json", world.usual.token(aud="other"))) == 401


# Keys that change.


def test_a_new_key_is_fetched_and_a_withdrawn_one_verifies_nothing(
    shop: Tree, world: ManyProviders
) -> None:
    rotating = world.rotating
    before = rotating.token()
    assert shop.status("GET", mine(before)) == 200
    before_rotation = len(rotating.requests)
    rotating.rotate()
    assert shop.status("GET", mine(rotating.token())) == 200
    assert rotating.requests[before_rotation:] == [DISCOVERY, KEYS]
    check_error(shop.request("GET", mine(before)), 401, "auth_required")
    # Made-up key ids do not start a fetch each.
    for number in range(5):
        unknown = rotating.token(header={"kid": f"made up {number}"})
        check_error(shop.request("GET", mine(unknown)), 401, "auth_required")
    assert len(rotating.requests) == before_rotation + 2


# Unreachable providers.


def check_unavailable(shop: Tree, bearer: str) -> None:
    response = shop.request("GET", mine(bearer))
    assert "unreachable" in check_error(response, 503, "unavailable")
    with shop.try_to_listen(mine(bearer)) as stream:
        assert stream.status == 503
    assert shop.status("PUT", mine(bearer), "1") == 503


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("misnamed", "is that of another issuer"),
        ("uncertified", "the certificate of the server is for another name"),
        ("malformed", "its key set is not a JWK set"),
        ("stopped", "refused"),
    ],
)
def test_a_provider_without_valid_keys_is_unavailable_for_its_own_tokens_only(
    shop: Tree, world: ManyProviders, name: str, reason: str
) -> None:
    provider: OidcProvider = getattr(world, name)
    check_unavailable(shop, provider.token())
    assert are_other_callers_served(shop, world)
    start = f"The keys of the provider {provider.issuer} could not be fetched: "
    lines = [line for line in shop.daemon.log.splitlines() if start in line]
    assert lines
    assert all(reason in line for line in lines), lines
    assert "factory" not in shop.daemon.log


def test_errors_that_need_no_key_are_found_while_the_provider_is_unreachable(
    shop: Tree, world: ManyProviders
) -> None:
    for changes in ({"exp": 1, "iat": 0}, {"aud": "other"}):
        assert shop.status("GET", mine(world.stopped.token(**changes))) == 401


def test_a_provider_that_starts_again_is_used_again(shop: Tree, world: ManyProviders) -> None:
    bearer = world.stopped.token()
    check_unavailable(shop, bearer)
    world.stopped.start()
    until = time.monotonic() + TIMEOUT_S
    while shop.status("GET", mine(bearer)) == 503:
        assert time.monotonic() < until
    assert shop.status("GET", mine(bearer)) == 200


def test_known_keys_are_used_while_their_provider_is_stopped(
    shop: Tree, world: ManyProviders
) -> None:
    assert shop.status("GET", mine(world.direct.token())) == 200
    world.direct.stop()
    assert shop.status("GET", mine(world.direct.token(nonce=1))) == 200
    world.direct.start()


def test_a_hanging_provider_delays_its_own_tokens_only(shop: Tree, world: ManyProviders) -> None:
    bearer = world.hanging.token()
    start = time.monotonic()
    with ThreadPoolExecutor() as threads, Tree(shop.daemon, "shop") as waiting:
        unavailable = threads.submit(waiting.request, "GET", mine(bearer))
        for _ in range(50):
            assert are_other_callers_served(shop, world)
        check_error(unavailable.result(), 503, "unavailable")
    assert time.monotonic() - start < FETCH_S * 2
    impatient = mine(bearer, timeout="300ms")
    while (response := shop.request("PUT", impatient, "1")).status == 503:  # until the next fetch
        assert time.monotonic() < start + TIMEOUT_S
    check_error(response, 504, "timeout")
    assert shop.see("/mine/alice.json") is None
    world.hanging.go_on()
    while shop.status("PUT", mine(bearer), "1") == 503:
        assert time.monotonic() < start + TIMEOUT_S
    assert shop.see("/mine/alice.json") == 1


def test_no_failure_of_a_provider_is_logged_as_an_internal_error(shop: Tree) -> None:
    assert "Traceback" not in shop.daemon.log
    assert json.dumps("eyJ")[1:-1] not in shop.daemon.log
