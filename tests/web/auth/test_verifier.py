"""From a token to an identity: with secrets, with a real provider, and never without either."""

from __future__ import annotations

import hashlib
import io
import json
import time
from collections.abc import Iterator
from typing import Any

import attrs
import pytest
import pytest_twisted
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from twisted.internet import reactor as installed_reactor
from twisted.internet.defer import Deferred, fail, succeed
from twisted.logger import capturedLogs, eventAsText

from tests.oidc import AUDIENCE, DISCOVERY, KEYS, Answer, OidcProvider, authority_pem, public_jwk
from tests.web.auth.test_jwt import FORGED, MALFORMED, forge
from treedbd.tree.types import InvalidData, Json
from treedbd.web.auth import jwt
from treedbd.web.auth.fetch import BadAuthority, make_fetch
from treedbd.web.auth.identity import (
    ANONYMOUS,
    OWNER,
    AuthOverride,
    Identity,
    NotAdmin,
    override_auth,
)
from treedbd.web.auth.jwt import BadToken, Claims, mint
from treedbd.web.auth.minting import NoSigningSecret, TokenRequest
from treedbd.web.auth.providers import Provider, ProviderKeys, ProviderUnavailable
from treedbd.web.auth.verifier import (
    MAX_CACHED_TOKEN_CHARACTERS,
    MAX_CACHED_TOKENS,
    Authenticator,
    Verifier,
    identity_of,
)
from treedbd.web.request import find_token

reactor: Any = installed_reactor

SECRET = b"0123456789abcdef0123456789abcdef"
OTHER = b"another secret of 32 bytes or so."
NOW = 1_700_000_000.0
LAN_TOKEN = "0123456789abcdef0123456789abcdef"


def open_keys(provider: Provider) -> ProviderKeys:
    return ProviderKeys(provider, make_fetch(reactor, provider.authority), reactor)


def verifier(
    *secrets: bytes,
    emulator: bool = False,
    admin_token: str | None = None,
    life: float | None = None,
) -> Verifier:
    return Verifier(
        secrets,
        open_keys=open_keys,
        emulator=emulator,
        admin_token=admin_token,
        max_token_life_s=life,
    )


def verify(verifier: Verifier, token: str, now: float = NOW) -> Identity:
    """Verify a token that needs no fetch."""
    found = verifier.verify(token, now)
    assert isinstance(found, Identity)
    return found


# Tokens that are made here.

ADA = TokenRequest({"uid": "ada", "role": "editor"}, None)


def admin_token(secret: bytes = SECRET, ttl_s: float | None = 1800, **claims: Any) -> str:
    return mint(secret, {"uid": "root", "admin": True, **claims}, now=NOW, ttl_s=ttl_s)


def test_a_made_token_is_signed_with_the_first_secret_and_is_a_users() -> None:
    made = verifier(SECRET, OTHER).make(ADA, NOW + 0.9)
    assert made.expires_at == NOW + 3600
    assert made.text not in repr(made)
    found = verify(verifier(SECRET), made.text)
    assert (found.is_admin, found.uid, found.expires_at) == (False, "ada", NOW + 3610)
    with pytest.raises(BadToken, match="signature is wrong"):
        verify(verifier(OTHER), made.text)


def test_a_token_that_no_verifier_would_accept_is_not_made() -> None:
    long = TokenRequest({"uid": "ada", "x": "y" * 10_000}, None)
    with pytest.raises(InvalidData, match="longer than 8192 characters"):
        verifier(SECRET).make(long, NOW)
    with pytest.raises(InvalidData, match="at most 60 seconds"):
        verifier(SECRET, life=60).make(TokenRequest({"uid": "ada"}, 61), NOW)
    assert verifier(SECRET, life=60).make(ADA, NOW).expires_at == NOW + 60


def test_without_a_secret_no_token_is_made() -> None:
    with pytest.raises(NoSigningSecret, match="secret_files"):
        verifier(emulator=True).make(ADA, NOW)


def test_a_renewed_token_is_signed_with_the_first_secret() -> None:
    made = verifier(OTHER, SECRET).renew(admin_token(SECRET, read_only=True), NOW + 60)
    found = verify(verifier(OTHER), made.text, NOW + 60)
    assert (found.is_admin, found.is_read_only, found.expires_at) == (True, True, NOW + 1870)
    assert auth_of(found)["token"] == {
        "uid": "root",
        "admin": True,
        "read_only": True,
        "auth_time": NOW,
        "iat": NOW + 60,
        "exp": NOW + 1860,
    }


def test_an_admin_whom_the_application_names_has_no_token_to_renew() -> None:
    projects = {"shop": verifier(SECRET)}
    authenticator = Authenticator(projects.get, reactor, lambda: NOW)
    assert authenticator.make_token("shop", ADA, None).expires_at == NOW + 3600
    with pytest.raises(InvalidData, match="no token to renew"):
        authenticator.make_token("shop", None, None)
    for request in (ADA, None):
        with pytest.raises(NoSigningSecret):
            authenticator.make_token("other", request, admin_token())


def test_only_the_valid_token_of_an_admin_is_renewed() -> None:
    trusting = verifier(SECRET)
    for text, kind in (
        (admin_token(OTHER), BadToken),
        (admin_token(ttl_s=30), BadToken),
        (admin_token(nbf=NOW + 1000), BadToken),
        (mint(SECRET, {"uid": "ada"}, now=NOW, ttl_s=1800), NotAdmin),
        (mint(SECRET, {"uid": "ada", "admin": 1}, now=NOW, ttl_s=1800), NotAdmin),
        (admin_token(ttl_s=None), InvalidData),
        ("owner", BadToken),
        ("", BadToken),
    ):
        with pytest.raises(kind):
            trusting.renew(text, NOW + 60)
    with pytest.raises(InvalidData, match="does not end"):
        verifier(SECRET, emulator=True).renew("owner", NOW)
    with pytest.raises(InvalidData, match="does not end"):
        verifier(SECRET, admin_token=LAN_TOKEN).renew(LAN_TOKEN, NOW)


# Service tokens.


def test_a_service_token_has_the_identity_of_its_claims() -> None:
    token = mint(SECRET, {"uid": "alice", "provider": "password"}, now=NOW, ttl_s=60)
    claims = {"uid": "alice", "provider": "password", "iat": NOW, "exp": NOW + 60}
    found = verify(verifier(OTHER, SECRET), token)
    assert found.auth == {"uid": "alice", "provider": "password", "token": claims}
    assert (found.is_admin, found.expires_at) == (False, NOW + 70)


@pytest.mark.parametrize(
    ("admin", "is_admin"),
    [(True, True), (False, False), (None, False), ("true", False), (1, False), ([True], False)],
)
def test_only_the_claim_true_makes_an_admin(admin: Any, is_admin: bool) -> None:
    found = verify(verifier(SECRET), mint(SECRET, {"admin": admin}, now=NOW))
    assert found.is_admin is is_admin


def test_an_admin_may_only_read_if_the_token_says_so() -> None:
    for read_only, may_only_read in ((True, True), (False, False)):
        token = mint(SECRET, {"admin": True, "read_only": read_only}, now=NOW)
        assert verify(verifier(SECRET), token).is_read_only is may_only_read
    legacy = mint(SECRET, {"v": 0, "d": {}, "admin": True, "read_only": True}, now=NOW)
    assert verify(verifier(SECRET), legacy).is_read_only
    with pytest.raises(BadToken, match="read_only must be true or false"):
        verify(verifier(SECRET), mint(SECRET, {"admin": True, "read_only": "yes"}, now=NOW))


def test_the_claim_read_only_of_a_user_is_one_as_any_other() -> None:
    for claim in (True, "yes"):
        token = mint(SECRET, {"uid": "ada", "read_only": claim}, now=NOW)
        found = verify(verifier(SECRET), token)
        assert (found.is_admin, found.is_read_only) == (False, False)
        assert auth_of(found)["token"] == {"uid": "ada", "read_only": claim, "iat": NOW}


def test_the_auth_of_a_legacy_token_is_its_d_and_it_may_be_an_admins() -> None:
    project = verifier(SECRET)
    user: Claims = {"v": 0, "d": {"uid": "a", "admin": True}}
    assert verify(project, mint(SECRET, user, now=NOW)).auth == user["d"]
    assert not verify(project, mint(SECRET, user, now=NOW)).is_admin
    assert verify(project, mint(SECRET, {**user, "admin": True}, now=NOW)).is_admin


def test_a_token_without_exp_is_valid_until_its_secret_is_withdrawn() -> None:
    project = verifier(SECRET)
    token = mint(SECRET, {"uid": "a"}, now=NOW)
    found = verify(project, token, NOW + 1e9)
    assert found.expires_at is None
    project.reload([OTHER])
    assert not project.trusts(found)
    with pytest.raises(BadToken, match="signature"):
        project.verify(token, NOW)


def test_a_maximum_life_ends_tokens_without_exp() -> None:
    project = verifier(SECRET, life=3600)
    token = mint(SECRET, {"uid": "a"}, now=NOW)
    assert verify(project, token).expires_at == NOW + 3610
    with pytest.raises(BadToken, match="expired"):
        project.verify(token, NOW + 3610)


def test_a_token_of_one_project_is_refused_by_another() -> None:
    token = mint(SECRET, {"uid": "a", "admin": True}, now=NOW)
    found = verify(verifier(SECRET), token)
    for other in (verifier(OTHER), verifier()):
        assert not other.trusts(found)
        with pytest.raises(BadToken, match="signature"):
            other.verify(token, NOW)


@pytest.mark.parametrize("text", [*MALFORMED.values(), *FORGED.values()], ids=[*MALFORMED, *FORGED])
@pytest.mark.parametrize("emulator", [False, True])
def test_a_hostile_token_is_refused(text: str, emulator: bool) -> None:
    if text == "owner" and emulator:
        return
    with pytest.raises(BadToken):
        verifier(SECRET, emulator=emulator).verify(text, NOW)


@pytest.mark.parametrize("algorithm", ["RS256", "ES256"])
def test_a_token_of_a_provider_that_is_not_configured_has_an_unknown_issuer(algorithm: str) -> None:
    with pytest.raises(BadToken, match="unknown issuer"):
        verifier(SECRET).verify(OidcProvider(algorithm=algorithm).token(), NOW)


# Cached tokens.


@pytest.mark.parametrize("claims", [{"exp": NOW + 60}, {"exp": NOW + 60, "nbf": NOW - 60}])
def test_a_cached_token_is_refused_when_it_expires(claims: dict[str, Any]) -> None:
    project = verifier(SECRET)
    token = mint(SECRET, claims, now=NOW)
    assert verify(project, token) is verify(project, token, NOW + 69.9)
    with pytest.raises(BadToken, match="expired"):
        project.verify(token, NOW + 70)
    assert verify(project, token).expires_at == NOW + 70


def test_a_cached_token_is_not_yet_valid_when_the_clock_is_set_back() -> None:
    project = verifier(SECRET)
    token = mint(SECRET, {"nbf": NOW}, now=NOW - 100)
    verify(project, token)
    with pytest.raises(BadToken, match="not yet valid"):
        project.verify(token, NOW - 11)


def test_the_cache_is_bounded_and_keeps_the_tokens_used_last() -> None:
    project = verifier(SECRET)
    used, unused = (mint(SECRET, {"uid": uid}, now=NOW) for uid in ("used", "unused"))
    identities = verify(project, used), verify(project, unused)
    for number in range(MAX_CACHED_TOKENS):
        verify(project, mint(SECRET, {"uid": str(number)}, now=NOW))
        if number % 1000 == 0:
            assert verify(project, used) is identities[0]
    assert verify(project, used) is identities[0]
    assert verify(project, unused) is not identities[1]
    assert verify(project, unused) == identities[1]


def test_the_cache_is_bounded_by_the_length_of_tokens_too() -> None:
    project = verifier(SECRET)
    tokens = [
        mint(SECRET, {"uid": f"{each}", "exp": NOW + 60, "x": "x" * 5000}, now=NOW)
        for each in range(700)
    ]
    identities = [verify(project, each) for each in tokens]
    kept = [project.recall(each, NOW) is who for each, who in zip(tokens, identities, strict=True)]
    fit = MAX_CACHED_TOKEN_CHARACTERS // max(map(len, tokens))
    assert kept == [False] * (len(tokens) - fit) + [True] * fit
    assert project.recall(tokens[-1], NOW + 3600) is None  # it has expired, and is forgotten
    verify(project, tokens[0])
    assert project.recall(tokens[-fit], NOW) is identities[-fit]


def test_a_refused_token_is_not_cached() -> None:
    project = verifier(SECRET)
    token = mint(OTHER, {"uid": "a"}, now=NOW)
    with pytest.raises(BadToken):
        project.verify(token, NOW)
    project.reload([SECRET, OTHER])
    assert verify(project, token).auth is not None


def test_a_secret_that_stays_keeps_its_identities() -> None:
    project = verifier(SECRET, OTHER)
    kept, removed = (verify(project, mint(each, {}, now=NOW)) for each in (SECRET, OTHER))
    project.reload([SECRET])
    assert project.trusts(kept)
    assert not project.trusts(removed)


def test_anonymous_callers_are_always_trusted() -> None:
    assert verifier().trusts(ANONYMOUS)


def test_an_override_is_trusted_as_long_as_its_admin() -> None:
    project = verifier(SECRET)
    admin = verify(project, mint(SECRET, {"admin": True}, now=NOW))
    overridden = override_auth(admin, AuthOverride(None))
    assert project.trusts(overridden)
    project.reload([])
    assert not project.trusts(overridden)


# The owner in an emulator.


@pytest.mark.parametrize(
    ("headers", "parameters"),
    [
        ({b"authorization": [b"Bearer owner"]}, {}),
        ({}, {"auth": "owner"}),
        ({}, {"access_token": "owner"}),
    ],
)
def test_owner_is_an_admin_in_an_emulator_and_malformed_elsewhere(
    headers: dict[bytes, list[bytes]], parameters: dict[str, str]
) -> None:
    token = find_token(headers, parameters)
    assert token is not None
    assert verify(verifier(emulator=True), token) is OWNER
    assert verifier(emulator=True).trusts(OWNER)
    assert not verifier().trusts(OWNER)
    with pytest.raises(BadToken, match="malformed"):
        verifier().verify(token, NOW)


@pytest.mark.parametrize("token", ["Owner", "owner ", "owners", "any", "Bearer owner"])
def test_an_emulator_has_one_owner(token: str) -> None:
    with pytest.raises(BadToken, match="malformed"):
        verifier(emulator=True).verify(token, NOW)


# Providers.


@pytest.fixture
def issuer() -> Iterator[OidcProvider]:
    with OidcProvider() as running:
        yield running


def settings_of(issuer: OidcProvider, **changes: Any) -> Provider:
    return attrs.evolve(Provider(issuer.issuer, AUDIENCE, None, authority_pem()), **changes)


@pytest.fixture
def project(issuer: OidcProvider) -> Iterator[Verifier]:
    project = Verifier([SECRET], [settings_of(issuer)], open_keys=open_keys)
    yield project
    project.close()


def verify_later(project: Verifier, token: str, now: float | None = None) -> Deferred[Identity]:
    """Verify a token that may need a fetch."""
    try:
        found = project.verify(token, time.time() if now is None else now)
    except (BadToken, ProviderUnavailable):
        return fail()
    return found if isinstance(found, Deferred) else succeed(found)


def auth_of(identity: Identity) -> dict[str, Json]:
    assert identity.auth is not None
    return identity.auth


@pytest.mark.parametrize("algorithm", ["RS256", "ES256"])
@pytest_twisted.ensureDeferred
async def test_a_providers_token_has_the_identity_of_its_claims(
    issuer: OidcProvider, project: Verifier, algorithm: str
) -> None:
    issuer.rotate(algorithm)
    expires = int(time.time()) + 60
    token = issuer.token(email="a@example.com", exp=expires)
    found = await verify_later(project, token)
    claims = jwt.parse(token).claims
    assert found.auth == {"uid": "alice", "provider": "127.0.0.1", "token": claims}
    assert found.expires_at == expires + jwt.LEEWAY_S
    assert issuer.requests == [DISCOVERY, KEYS]


@pytest_twisted.ensureDeferred
async def test_only_the_first_token_waits(issuer: OidcProvider, project: Verifier) -> None:
    first = project.verify(issuer.token(), time.time())
    assert isinstance(first, Deferred)
    await first
    verify(project, issuer.token(sub="bob"), time.time())
    assert len(issuer.requests) == 2


@pytest_twisted.ensureDeferred
async def test_a_providers_token_is_never_an_admins_nor_legacy(
    issuer: OidcProvider, project: Verifier
) -> None:
    found = await verify_later(project, issuer.token(admin=True, v=0, d={"uid": "root"}))
    assert not found.is_admin
    assert auth_of(found)["uid"] == "alice"


@pytest_twisted.ensureDeferred
async def test_the_sign_in_provider_in_a_firebase_token_is_known(
    issuer: OidcProvider, project: Verifier
) -> None:
    found = await verify_later(project, issuer.token(firebase={"sign_in_provider": "anonymous"}))
    assert auth_of(found)["provider"] == "anonymous"


@pytest.mark.parametrize(
    ("audience", "is_valid"),
    [
        (AUDIENCE, True),
        ([AUDIENCE], True),
        (["other", AUDIENCE], True),
        ("other", False),
        (["other"], False),
        ([], False),
        ([[AUDIENCE]], False),
        ([AUDIENCE, 7], False),
        ([AUDIENCE, None], False),
        ({AUDIENCE: True}, False),
        (f"{AUDIENCE} other", False),
        (AUDIENCE.upper(), False),
        (True, False),
        (None, False),
    ],
)
@pytest_twisted.ensureDeferred
async def test_the_audience_must_be_named(
    issuer: OidcProvider, project: Verifier, audience: Any, is_valid: bool
) -> None:
    if is_valid:
        await verify_later(project, issuer.token(aud=audience))
    else:
        with pytest.raises(BadToken, match="another audience"):
            await verify_later(project, issuer.token(aud=audience))


@pytest_twisted.ensureDeferred
async def test_the_uid_of_a_provider_has_its_prefix_and_no_other_ones(
    issuer: OidcProvider, project: Verifier
) -> None:
    with OidcProvider() as second:
        prefixed = settings_of(second, uid_prefix="second:")
        project.reload([SECRET], [settings_of(issuer), prefixed])
        assert auth_of(await verify_later(project, issuer.token()))["uid"] == "alice"
        of_second = await verify_later(project, second.token())
        assert auth_of(of_second)["uid"] == "second:alice"
        with pytest.raises(BadToken, match="another provider's prefix"):
            await verify_later(project, issuer.token(sub="second:alice"))
        project.reload([SECRET], [settings_of(issuer), attrs.evolve(prefixed, uid_prefix="2:")])
        assert not project.trusts(of_second)


@pytest_twisted.ensureDeferred
async def test_one_issuer_can_serve_several_audiences(issuer: OidcProvider) -> None:
    web, phone = settings_of(issuer), settings_of(issuer, audience="phone")
    project = Verifier([], [web, phone], open_keys=open_keys)
    by_web = await verify_later(project, issuer.token())
    by_phone = await verify_later(project, issuer.token(aud="phone"))
    assert by_web != by_phone
    project.close()


@pytest_twisted.ensureDeferred
async def test_a_token_of_one_provider_with_the_issuer_of_another_is_refused(
    issuer: OidcProvider, project: Verifier
) -> None:
    with OidcProvider() as other:
        project.reload([SECRET], [settings_of(issuer), settings_of(other)])
        await verify_later(project, issuer.token())
        await verify_later(project, other.token())
        with pytest.raises(BadToken, match="signature"):
            await verify_later(project, other.token(iss=issuer.issuer))
        kid = {"kid": issuer.signing.key_id}
        with pytest.raises(BadToken, match="signature"):
            await verify_later(project, other.token(iss=issuer.issuer, header=kid))


@pytest.mark.parametrize("issuer_claim", ["https://evil.example", "", None, 7, ["x"]])
@pytest_twisted.ensureDeferred
async def test_a_wrong_issuer_is_unknown_and_starts_no_fetch(
    issuer: OidcProvider, project: Verifier, issuer_claim: Any
) -> None:
    with pytest.raises(BadToken, match="unknown issuer"):
        await verify_later(project, issuer.token(iss=issuer_claim))
    with pytest.raises(BadToken, match="unknown issuer"):
        await verify_later(project, issuer.token(iss=issuer.issuer + "/"))
    assert not issuer.requests


@pytest_twisted.ensureDeferred
async def test_no_token_of_a_provider_is_renewed(issuer: OidcProvider, project: Verifier) -> None:
    own = issuer.token(sub="1", admin=True)
    await verify_later(project, own)
    with pytest.raises(BadToken):
        project.renew(own, time.time())
    claims: Claims = {"iss": issuer.issuer, "aud": AUDIENCE, "sub": "1", "admin": True}
    forged = mint(SECRET, claims, now=time.time(), ttl_s=60)
    with pytest.raises(NotAdmin):
        project.renew(forged, time.time())


@pytest_twisted.ensureDeferred
async def test_a_secret_cannot_sign_a_providers_token(
    issuer: OidcProvider, project: Verifier
) -> None:
    await verify_later(project, issuer.token())
    public: Any = issuer.signing.private.public_key()
    secrets = [
        SECRET,
        public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo),
        public.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo),
        json.dumps(public_jwk(issuer.signing.private, kid=issuer.signing.key_id)).encode(),
        b"",
    ]
    claims = jwt.parse(issuer.token()).claims
    for secret in secrets:
        for name in ("HS256", "RS256", "none"):
            header = {"alg": name, "kid": issuer.signing.key_id}
            with pytest.raises(BadToken, match="signature"):
                await verify_later(project, forge(header, claims, secret))


@pytest_twisted.ensureDeferred
async def test_a_providers_token_must_have_exp_and_its_times_are_checked(
    issuer: OidcProvider, project: Verifier
) -> None:
    now = time.time()
    cases: list[tuple[dict[str, Any], str]] = [
        ({"exp": None}, "must have exp"),
        ({"exp": now - 11}, "expired"),
        ({"exp": str(now + 60)}, "malformed: exp"),
        ({"nbf": now + 60}, "not yet valid"),
        ({"iat": now + 60}, "not yet valid"),
        ({"sub": 7}, "malformed: its sub"),
    ]
    for claims, problem in cases:
        with pytest.raises(BadToken, match=problem):
            await verify_later(project, issuer.token(**claims), now)
    assert not issuer.requests


@pytest_twisted.ensureDeferred
async def test_after_a_rotation_new_tokens_are_valid_and_forged_ones_are_not(
    issuer: OidcProvider, project: Verifier
) -> None:
    await verify_later(project, issuer.token())
    issuer.rotate()
    await verify_later(project, issuer.token(sub="bob"))
    with pytest.raises(BadToken, match="key that its issuer does not have"):
        await verify_later(project, issuer.token(header={"kid": "forged"}))
    assert issuer.requests == [DISCOVERY, KEYS] * 2


@pytest_twisted.ensureDeferred
async def test_a_cached_token_is_refused_once_its_key_is_withdrawn(
    issuer: OidcProvider, project: Verifier
) -> None:
    old = issuer.token()
    await verify_later(project, old)
    issuer.rotate()
    await verify_later(project, issuer.token())
    with pytest.raises(BadToken, match="key that its issuer does not have"):
        await verify_later(project, old)


@pytest_twisted.ensureDeferred
async def test_a_token_without_kid_is_valid_if_there_is_one_key(
    issuer: OidcProvider, project: Verifier
) -> None:
    now = int(time.time())
    claims: dict[str, Any] = {"iat": now, "exp": now + 3600}
    found = await verify_later(project, issuer.token(header={"kid": None}, **claims))
    assert found == await verify_later(project, issuer.token(**claims))


@pytest_twisted.ensureDeferred
async def test_while_a_provider_hangs_only_its_tokens_wait(
    issuer: OidcProvider, project: Verifier
) -> None:
    with OidcProvider() as other:
        project.reload([SECRET], [settings_of(issuer), settings_of(other)])
        issuer.hang()
        waiting = verify_later(project, issuer.token())
        verify(project, mint(SECRET, {"uid": "a"}, now=NOW))
        await verify_later(project, other.token())
        assert not waiting.called
        issuer.go_on()
        await waiting


@pytest_twisted.ensureDeferred
async def test_while_a_provider_is_stopped_only_its_new_keys_are_unavailable(
    issuer: OidcProvider, project: Verifier
) -> None:
    known = issuer.token()
    await verify_later(project, known)
    issuer.stop()
    await verify_later(project, known)
    await verify_later(project, issuer.token(sub="bob"))
    verify(project, mint(SECRET, {"uid": "a"}, now=NOW))
    with pytest.raises(ProviderUnavailable):
        await verify_later(project, issuer.token(header={"kid": "new"}))


@pytest_twisted.ensureDeferred
async def test_a_provider_that_starts_later_is_found(
    issuer: OidcProvider, project: Verifier
) -> None:
    issuer.stop()
    with pytest.raises(ProviderUnavailable):
        await verify_later(project, issuer.token())
    with pytest.raises(BadToken, match="expired"):
        await verify_later(project, issuer.token(exp=0))
    issuer.start()
    # With new `ProviderKeys`, because the first ones do not retry until `RETRY_S` after a failure.
    again = Verifier([], [settings_of(issuer)], open_keys=open_keys)
    await verify_later(again, issuer.token())
    again.close()


@pytest_twisted.ensureDeferred
async def test_a_provider_with_another_issuer_in_its_discovery_document_is_unavailable(
    issuer: OidcProvider, project: Verifier
) -> None:
    issuer.announced_issuer = "https://evil.example"
    with pytest.raises(ProviderUnavailable):
        await verify_later(project, issuer.token())
    assert issuer.requests == [DISCOVERY]


@pytest_twisted.ensureDeferred
async def test_a_redirect_is_not_followed_and_leaves_the_provider_unavailable(
    issuer: OidcProvider, project: Verifier
) -> None:
    issuer.answers[DISCOVERY] = Answer(b"", 302, {"Location": issuer.issuer + "/elsewhere"})
    with pytest.raises(ProviderUnavailable):
        await verify_later(project, issuer.token())
    assert issuer.requests == [DISCOVERY]


@pytest_twisted.ensureDeferred
async def test_after_a_prefetch_no_token_waits(issuer: OidcProvider, project: Verifier) -> None:
    project.prefetch()
    await verify_later(project, issuer.token())
    assert issuer.requests == [DISCOVERY, KEYS]
    verify(project, issuer.token(sub="bob"), time.time())


@pytest_twisted.ensureDeferred
async def test_a_provider_that_stays_keeps_its_keys_and_identities(
    issuer: OidcProvider, project: Verifier
) -> None:
    found = await verify_later(project, issuer.token())
    project.reload([OTHER], [settings_of(issuer)])
    assert project.trusts(found)
    verify(project, issuer.token(), time.time())
    project.reload([OTHER], [settings_of(issuer, jwks_uri=issuer.keys_uri)])
    assert project.trusts(found)
    await verify_later(project, issuer.token())
    assert issuer.requests == [DISCOVERY, KEYS, KEYS]


@pytest_twisted.ensureDeferred
async def test_a_provider_that_cannot_be_opened_changes_nothing(
    issuer: OidcProvider, project: Verifier
) -> None:
    found = await verify_later(project, issuer.token())
    with pytest.raises(BadAuthority):
        project.reload([OTHER], [settings_of(issuer, authority=b"no PEM")])
    assert project.trusts(found)
    verify(project, issuer.token(sub="bob"), time.time())
    verify(project, mint(SECRET, {}, now=NOW))


@pytest_twisted.ensureDeferred
async def test_a_withdrawn_provider_verifies_no_token(
    issuer: OidcProvider, project: Verifier
) -> None:
    found = await verify_later(project, issuer.token())
    project.reload([SECRET])
    assert not project.trusts(found)
    with pytest.raises(BadToken, match="unknown issuer"):
        await verify_later(project, issuer.token())


@pytest_twisted.ensureDeferred
async def test_a_token_is_refused_if_its_provider_is_withdrawn_while_it_waits(
    issuer: OidcProvider, project: Verifier
) -> None:
    issuer.hang()
    waiting = verify_later(project, issuer.token())
    project.reload([SECRET])
    with pytest.raises(ProviderUnavailable):
        await waiting


@pytest_twisted.ensureDeferred
async def test_a_token_is_refused_if_an_earlier_callback_withdraws_its_provider(
    issuer: OidcProvider, project: Verifier
) -> None:
    first, second = (
        verify_later(project, issuer.token()),
        verify_later(project, issuer.token(sub="bob")),
    )
    first.addCallback(lambda _: project.reload([SECRET]))
    with pytest.raises(BadToken, match="unknown issuer"):
        await second


# Logs and errors.


@pytest_twisted.ensureDeferred
async def test_no_token_and_no_secret_is_logged_or_in_an_error(
    issuer: OidcProvider, project: Verifier
) -> None:
    good = [
        mint(SECRET, {"uid": "a"}, now=time.time()),
        mint(SECRET, {"admin": True}, now=time.time()),
        issuer.token(),
    ]
    bad = [
        *(text for text in (*MALFORMED.values(), *FORGED.values()) if len(text) > 40),
        issuer.token(exp=0),
        issuer.token(aud="other"),
        issuer.token(header={"kid": "new"}),
        issuer.token()[:-8] + "AAAAAAAA",
    ]
    shown = io.StringIO()
    with capturedLogs() as events:
        for token in [*good, *bad]:
            try:
                print(repr(await verify_later(project, token)), file=shown)
            except (BadToken, ProviderUnavailable) as error:
                print(repr(error), str(error), repr(error.__context__), file=shown)
        issuer.stop()
        project.reload([SECRET], [settings_of(issuer, jwks_uri=issuer.keys_uri)])
        with pytest.raises(ProviderUnavailable):
            await verify_later(project, issuer.token())
        print(repr(vars(project)["_verified"]), repr(settings_of(issuer)), file=shown)
    for event in events:
        print(eventAsText(event, includeTraceback=True), repr(event), file=shown)
    text = shown.getvalue()
    assert "could not be fetched" in text
    assert "The token is expired." in text
    assert SECRET.decode() not in text
    for token in [*good, *bad]:
        assert not [part for part in token.split(".") if len(part) > 16 and part in text]


def test_the_token_of_lan_replaces_owner() -> None:
    lan = verifier(admin_token=LAN_TOKEN)
    assert verify(lan, LAN_TOKEN) is OWNER
    assert lan.trusts(OWNER)
    with pytest.raises(BadToken, match=r"^The token owner does not count with --lan"):
        lan.verify("owner", NOW)
    for token in (LAN_TOKEN[:-1], f"{LAN_TOKEN}0", LAN_TOKEN.upper(), "\udcff", "ö"):
        with pytest.raises(BadToken) as refused:
            lan.verify(token, NOW)
        assert token not in str(refused.value)


def test_a_token_has_an_id_that_names_it_and_is_not_it() -> None:
    for jti, shown in (
        ("order-7", True),
        ("x" * 128, True),
        ("x" * 129, False),
        ("a b", False),
        ("", False),
        ("sha256:0011", False),
        (7, False),
        ("é", False),
    ):
        token = mint(SECRET, {"uid": "ada", "jti": jti}, now=NOW)
        found = verify(verifier(SECRET), token).token_id
        digest = "sha256:" + hashlib.sha256(token.encode()).hexdigest()[:16]
        assert found == (jti if shown else digest)
    assert verify(verifier(SECRET, emulator=True), "owner").token_id == "owner"
    assert identity_of({"uid": "ada"}).token_id is None
