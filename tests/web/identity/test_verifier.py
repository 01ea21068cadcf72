"""From a token to an identity: with secrets, with a real provider, and never by accident."""

from __future__ import annotations

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
from tests.web.identity.test_tokens import FORGED, MALFORMED, forge
from treedbd.web.identity import tokens
from treedbd.web.identity.fetch import BadAuthority, fetcher
from treedbd.web.identity.identity import (
    ANONYMOUS,
    OWNER,
    Identity,
    Override,
    find_token,
    override_auth,
)
from treedbd.web.identity.providers import Provider, ProviderKeys, ProviderUnavailable
from treedbd.web.identity.tokens import BadToken, mint
from treedbd.web.identity.verifier import REMEMBERED_TOKENS, Verifier

reactor: Any = installed_reactor

SECRET = b"0123456789abcdef0123456789abcdef"
OTHER = b"another secret of 32 bytes or so."
NOW = 1_700_000_000.0


def open_keys(provider: Provider) -> ProviderKeys:
    return ProviderKeys(provider, fetcher(reactor, provider.authority), reactor)


def verifier(*secrets: bytes, emulator: bool = False, life: float | None = None) -> Verifier:
    return Verifier(secrets, open_keys=open_keys, emulator=emulator, max_token_life_s=life)


def verify(verifier: Verifier, token: str, now: float = NOW) -> Identity:
    """Verify what needs no fetch."""
    found = verifier.verify(token, now)
    assert isinstance(found, Identity)
    return found


# Service tokens.


def test_a_service_token_is_who_its_claims_say() -> None:
    token = mint(SECRET, {"uid": "alice", "provider": "password"}, now=NOW, ttl_s=60)
    claims = {"uid": "alice", "provider": "password", "iat": NOW, "exp": NOW + 60}
    found = verify(verifier(OTHER, SECRET), token)
    assert found.auth == {"uid": "alice", "provider": "password", "token": claims}
    assert (found.is_admin, found.expires_at) == (False, NOW + 70)


@pytest.mark.parametrize(
    ("admin", "is_admin"),
    [(True, True), (False, False), (None, False), ("true", False), (1, False), ([True], False)],
)
def test_only_true_makes_an_admin(admin: Any, is_admin: bool) -> None:
    found = verify(verifier(SECRET), mint(SECRET, {"admin": admin}, now=NOW))
    assert found.is_admin is is_admin


def test_a_legacy_token_is_its_d_and_may_be_an_admins() -> None:
    project = verifier(SECRET)
    user = {"v": 0, "d": {"uid": "a", "admin": True}}
    assert verify(project, mint(SECRET, user, now=NOW)).auth == user["d"]
    assert not verify(project, mint(SECRET, user, now=NOW)).is_admin
    assert verify(project, mint(SECRET, {**user, "admin": True}, now=NOW)).is_admin


def test_a_token_without_exp_lives_until_its_secret_is_withdrawn() -> None:
    project = verifier(SECRET)
    token = mint(SECRET, {"uid": "a"}, now=NOW)
    found = verify(project, token, NOW + 1e9)
    assert found.expires_at is None
    project.reload([OTHER])
    assert not project.trusts(found)
    with pytest.raises(BadToken, match="signature"):
        project.verify(token, NOW)


def test_a_longest_life_ends_tokens_without_exp() -> None:
    project = verifier(SECRET, life=3600)
    token = mint(SECRET, {"uid": "a"}, now=NOW)
    assert verify(project, token).expires_at == NOW + 3610
    with pytest.raises(BadToken, match="expired"):
        project.verify(token, NOW + 3610)


def test_a_token_of_one_project_is_worth_nothing_at_another() -> None:
    token = mint(SECRET, {"uid": "a", "admin": True}, now=NOW)
    found = verify(verifier(SECRET), token)
    for other in (verifier(OTHER), verifier()):
        assert not other.trusts(found)
        with pytest.raises(BadToken, match="signature"):
            other.verify(token, NOW)


@pytest.mark.parametrize("text", [*MALFORMED.values(), *FORGED.values()], ids=[*MALFORMED, *FORGED])
@pytest.mark.parametrize("emulator", [False, True])
def test_a_hostile_token_is_refused_and_makes_nobody(text: str, emulator: bool) -> None:
    if text == "owner" and emulator:
        return
    with pytest.raises(BadToken):
        verifier(SECRET, emulator=emulator).verify(text, NOW)


@pytest.mark.parametrize("algorithm", ["RS256", "ES256"])
def test_a_token_of_a_provider_that_is_not_configured_has_an_unknown_issuer(algorithm: str) -> None:
    with pytest.raises(BadToken, match="unknown issuer"):
        verifier(SECRET).verify(OidcProvider(algorithm=algorithm).token(), NOW)


# What is remembered.


@pytest.mark.parametrize("claims", [{"exp": NOW + 60}, {"exp": NOW + 60, "nbf": NOW - 60}])
def test_a_token_that_was_good_is_refused_when_its_time_is_over(claims: dict[str, Any]) -> None:
    project = verifier(SECRET)
    token = mint(SECRET, claims, now=NOW)
    assert verify(project, token) is verify(project, token, NOW + 69.9)
    with pytest.raises(BadToken, match="expired"):
        project.verify(token, NOW + 70)
    assert verify(project, token).expires_at == NOW + 70


def test_a_clock_set_back_makes_a_token_not_yet_valid_again() -> None:
    project = verifier(SECRET)
    token = mint(SECRET, {"nbf": NOW}, now=NOW - 100)
    verify(project, token)
    with pytest.raises(BadToken, match="not yet valid"):
        project.verify(token, NOW - 11)


def test_only_so_many_tokens_are_remembered_and_the_used_ones_stay() -> None:
    project = verifier(SECRET)
    used, unused = (mint(SECRET, {"uid": uid}, now=NOW) for uid in ("used", "unused"))
    identities = verify(project, used), verify(project, unused)
    for number in range(REMEMBERED_TOKENS):
        verify(project, mint(SECRET, {"uid": str(number)}, now=NOW))
        if number % 1000 == 0:
            assert verify(project, used) is identities[0]
    assert verify(project, used) is identities[0]
    assert verify(project, unused) is not identities[1]
    assert verify(project, unused) == identities[1]


def test_a_refused_token_is_not_remembered() -> None:
    project = verifier(SECRET)
    token = mint(OTHER, {"uid": "a"}, now=NOW)
    with pytest.raises(BadToken):
        project.verify(token, NOW)
    project.reload([SECRET, OTHER])
    assert verify(project, token).auth is not None


def test_a_secret_that_stays_keeps_its_bearers() -> None:
    project = verifier(SECRET, OTHER)
    stays, goes = (verify(project, mint(each, {}, now=NOW)) for each in (SECRET, OTHER))
    project.reload([SECRET])
    assert project.trusts(stays)
    assert not project.trusts(goes)


def test_anonymous_callers_are_no_matter_of_trust() -> None:
    assert verifier().trusts(ANONYMOUS)


def test_an_override_is_trusted_as_long_as_its_admin() -> None:
    project = verifier(SECRET)
    judged = override_auth(verify(project, mint(SECRET, {"admin": True}, now=NOW)), Override(None))
    assert project.trusts(judged)
    project.reload([])
    assert not project.trusts(judged)


# The emulator's owner.


@pytest.mark.parametrize(
    ("head", "parameters"),
    [
        ({b"authorization": [b"Bearer owner"]}, {}),
        ({}, {"auth": "owner"}),
        ({}, {"access_token": "owner"}),
    ],
)
def test_owner_is_an_admin_in_an_emulator_and_malformed_elsewhere(
    head: dict[bytes, list[bytes]], parameters: dict[str, str]
) -> None:
    token = find_token(head, parameters)
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


def ask(project: Verifier, token: str, now: float | None = None) -> Deferred[Identity]:
    """Verify what may need a fetch."""
    try:
        found = project.verify(token, time.time() if now is None else now)
    except (BadToken, ProviderUnavailable):
        return fail()
    return found if isinstance(found, Deferred) else succeed(found)


@pytest.mark.parametrize("algorithm", ["RS256", "ES256"])
@pytest_twisted.ensureDeferred
async def test_a_providers_token_is_who_it_says(
    issuer: OidcProvider, project: Verifier, algorithm: str
) -> None:
    issuer.rotate(algorithm)
    token = issuer.token(email="a@example.com", exp=int(time.time()) + 60)
    found = await ask(project, token)
    claims = tokens.parse(token).claims
    assert found.auth == {"uid": "alice", "provider": "custom", "token": claims}
    assert found.expires_at == claims["exp"] + tokens.LEEWAY_S
    assert issuer.requests == [DISCOVERY, KEYS]


@pytest_twisted.ensureDeferred
async def test_only_the_first_token_waits(issuer: OidcProvider, project: Verifier) -> None:
    first = project.verify(issuer.token(), time.time())
    assert isinstance(first, Deferred)
    await first
    verify(project, issuer.token(sub="bob"), time.time())
    assert len(issuer.requests) == 2


@pytest_twisted.ensureDeferred
async def test_what_a_provider_signs_is_never_an_admins_nor_legacy(
    issuer: OidcProvider, project: Verifier
) -> None:
    found = await ask(project, issuer.token(admin=True, v=0, d={"uid": "root"}))
    assert not found.is_admin
    assert found.auth["uid"] == "alice"  # type: ignore[index]


@pytest_twisted.ensureDeferred
async def test_the_vendors_way_to_say_how_a_user_signed_in_is_known(
    issuer: OidcProvider, project: Verifier
) -> None:
    found = await ask(project, issuer.token(firebase={"sign_in_provider": "anonymous"}))
    assert found.auth["provider"] == "anonymous"  # type: ignore[index]


@pytest.mark.parametrize(
    ("audience", "is_good"),
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
    issuer: OidcProvider, project: Verifier, audience: Any, is_good: bool
) -> None:
    if is_good:
        await ask(project, issuer.token(aud=audience))
    else:
        with pytest.raises(BadToken, match="another audience"):
            await ask(project, issuer.token(aud=audience))


@pytest_twisted.ensureDeferred
async def test_one_issuer_can_serve_several_audiences(issuer: OidcProvider) -> None:
    web, phone = settings_of(issuer), settings_of(issuer, audience="phone")
    project = Verifier([], [web, phone], open_keys=open_keys)
    assert await ask(project, issuer.token()) != await ask(project, issuer.token(aud="phone"))
    project.close()


@pytest_twisted.ensureDeferred
async def test_a_token_of_one_provider_is_worth_nothing_by_anothers_name(
    issuer: OidcProvider, project: Verifier
) -> None:
    with OidcProvider() as other:
        project.reload([SECRET], [settings_of(issuer), settings_of(other)])
        await ask(project, issuer.token())
        await ask(project, other.token())
        with pytest.raises(BadToken, match="signature"):
            await ask(project, other.token(iss=issuer.issuer))
        kid = {"kid": issuer.signing.key_id}
        with pytest.raises(BadToken, match="signature"):
            await ask(project, other.token(iss=issuer.issuer, header=kid))


@pytest.mark.parametrize("issuer_claim", ["https://evil.example", "", None, 7, ["x"]])
@pytest_twisted.ensureDeferred
async def test_a_wrong_issuer_is_unknown_and_asked_nothing(
    issuer: OidcProvider, project: Verifier, issuer_claim: Any
) -> None:
    with pytest.raises(BadToken, match="unknown issuer"):
        await ask(project, issuer.token(iss=issuer_claim))
    with pytest.raises(BadToken, match="unknown issuer"):
        await ask(project, issuer.token(iss=issuer.issuer + "/"))
    assert not issuer.requests


@pytest_twisted.ensureDeferred
async def test_a_secret_signs_nothing_in_the_name_of_a_provider(
    issuer: OidcProvider, project: Verifier
) -> None:
    await ask(project, issuer.token())
    public: Any = issuer.signing.private.public_key()
    secrets = [
        SECRET,
        public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo),
        public.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo),
        json.dumps(public_jwk(issuer.signing.private, kid=issuer.signing.key_id)).encode(),
        b"",
    ]
    claims = tokens.parse(issuer.token()).claims
    for secret in secrets:
        for name in ("HS256", "RS256", "none"):
            header = {"alg": name, "kid": issuer.signing.key_id}
            with pytest.raises(BadToken, match="signature"):
                await ask(project, forge(header, claims, secret))


@pytest_twisted.ensureDeferred
async def test_a_providers_token_must_end_and_its_times_hold(
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
    for claims, why in cases:
        with pytest.raises(BadToken, match=why):
            await ask(project, issuer.token(**claims), now)
    assert not issuer.requests


@pytest_twisted.ensureDeferred
async def test_after_a_rotation_new_tokens_are_good_and_forged_ones_are_not(
    issuer: OidcProvider, project: Verifier
) -> None:
    await ask(project, issuer.token())
    issuer.rotate()
    await ask(project, issuer.token(sub="bob"))
    with pytest.raises(BadToken, match="key that its issuer does not have"):
        await ask(project, issuer.token(header={"kid": "forged"}))
    assert issuer.requests == [DISCOVERY, KEYS] * 2


@pytest_twisted.ensureDeferred
async def test_what_a_withdrawn_key_signed_is_refused_though_it_was_remembered(
    issuer: OidcProvider, project: Verifier
) -> None:
    old = issuer.token()
    await ask(project, old)
    issuer.rotate()
    await ask(project, issuer.token())
    with pytest.raises(BadToken, match="key that its issuer does not have"):
        await ask(project, old)


@pytest_twisted.ensureDeferred
async def test_a_token_without_kid_is_good_where_there_is_one_key(
    issuer: OidcProvider, project: Verifier
) -> None:
    await ask(project, issuer.token(header={"kid": None}))


@pytest_twisted.ensureDeferred
async def test_while_a_provider_hangs_only_its_tokens_wait(
    issuer: OidcProvider, project: Verifier
) -> None:
    with OidcProvider() as other:
        project.reload([SECRET], [settings_of(issuer), settings_of(other)])
        issuer.hang()
        waiting = ask(project, issuer.token())
        verify(project, mint(SECRET, {"uid": "a"}, now=NOW))
        await ask(project, other.token())
        assert not waiting.called
        issuer.go_on()
        await waiting


@pytest_twisted.ensureDeferred
async def test_while_a_provider_is_dead_only_its_new_keys_are_missed(
    issuer: OidcProvider, project: Verifier
) -> None:
    known = issuer.token()
    await ask(project, known)
    issuer.stop()
    await ask(project, known)
    await ask(project, issuer.token(sub="bob"))
    verify(project, mint(SECRET, {"uid": "a"}, now=NOW))
    with pytest.raises(ProviderUnavailable):
        await ask(project, issuer.token(header={"kid": "new"}))


@pytest_twisted.ensureDeferred
async def test_a_provider_that_was_dead_from_the_start_is_found_when_it_lives(
    issuer: OidcProvider, project: Verifier
) -> None:
    issuer.stop()
    with pytest.raises(ProviderUnavailable):
        await ask(project, issuer.token())
    with pytest.raises(BadToken, match="expired"):
        await ask(project, issuer.token(exp=0))
    issuer.start()
    # Keys of their own, so that nothing has to wait until the failure is old enough.
    again = Verifier([], [settings_of(issuer)], open_keys=open_keys)
    await ask(again, issuer.token())
    again.close()


@pytest_twisted.ensureDeferred
async def test_a_provider_that_says_it_is_another_is_out_of_reach(
    issuer: OidcProvider, project: Verifier
) -> None:
    issuer.announced_issuer = "https://evil.example"
    with pytest.raises(ProviderUnavailable):
        await ask(project, issuer.token())
    assert issuer.requests == [DISCOVERY]


@pytest_twisted.ensureDeferred
async def test_a_redirect_is_not_followed_and_leaves_it_out_of_reach(
    issuer: OidcProvider, project: Verifier
) -> None:
    issuer.answers[DISCOVERY] = Answer(b"", 302, {"Location": issuer.issuer + "/elsewhere"})
    with pytest.raises(ProviderUnavailable):
        await ask(project, issuer.token())
    assert issuer.requests == [DISCOVERY]


@pytest_twisted.ensureDeferred
async def test_prefetched_keys_make_nobody_wait(issuer: OidcProvider, project: Verifier) -> None:
    project.prefetch()
    await ask(project, issuer.token())
    assert issuer.requests == [DISCOVERY, KEYS]
    verify(project, issuer.token(sub="bob"), time.time())


@pytest_twisted.ensureDeferred
async def test_a_provider_that_stays_keeps_keys_and_bearers(
    issuer: OidcProvider, project: Verifier
) -> None:
    found = await ask(project, issuer.token())
    project.reload([OTHER], [settings_of(issuer)])
    assert project.trusts(found)
    verify(project, issuer.token(), time.time())
    project.reload([OTHER], [settings_of(issuer, jwks_uri=issuer.keys_uri)])
    assert project.trusts(found)
    await ask(project, issuer.token())
    assert issuer.requests == [DISCOVERY, KEYS, KEYS]


@pytest_twisted.ensureDeferred
async def test_a_provider_that_cannot_be_opened_leaves_all_as_it_was(
    issuer: OidcProvider, project: Verifier
) -> None:
    found = await ask(project, issuer.token())
    with pytest.raises(BadAuthority):
        project.reload([OTHER], [settings_of(issuer, authority=b"no PEM")])
    assert project.trusts(found)
    verify(project, issuer.token(sub="bob"), time.time())
    verify(project, mint(SECRET, {}, now=NOW))


@pytest_twisted.ensureDeferred
async def test_a_withdrawn_provider_vouches_for_nobody(
    issuer: OidcProvider, project: Verifier
) -> None:
    found = await ask(project, issuer.token())
    project.reload([SECRET])
    assert not project.trusts(found)
    with pytest.raises(BadToken, match="unknown issuer"):
        await ask(project, issuer.token())


@pytest_twisted.ensureDeferred
async def test_a_provider_withdrawn_while_a_token_waits_does_not_let_it_in(
    issuer: OidcProvider, project: Verifier
) -> None:
    issuer.hang()
    waiting = ask(project, issuer.token())
    project.reload([SECRET])
    with pytest.raises(ProviderUnavailable):
        await waiting


@pytest_twisted.ensureDeferred
async def test_a_provider_withdrawn_by_one_who_waited_does_not_let_in_the_next(
    issuer: OidcProvider, project: Verifier
) -> None:
    first, second = ask(project, issuer.token()), ask(project, issuer.token(sub="bob"))
    first.addCallback(lambda _: project.reload([SECRET]))
    with pytest.raises(BadToken, match="unknown issuer"):
        await second


# What is said about it all.


@pytest_twisted.ensureDeferred
async def test_no_token_and_no_secret_is_ever_logged_or_told(
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
    told = io.StringIO()
    with capturedLogs() as events:
        for token in [*good, *bad]:
            try:
                print(repr(await ask(project, token)), file=told)
            except (BadToken, ProviderUnavailable) as error:
                print(repr(error), str(error), repr(error.__context__), file=told)
        issuer.stop()
        project.reload([SECRET], [settings_of(issuer, jwks_uri=issuer.keys_uri)])
        with pytest.raises(ProviderUnavailable):
            await ask(project, issuer.token())
        print(repr(vars(project)["_known"]), repr(settings_of(issuer)), file=told)
    for event in events:
        print(eventAsText(event, includeTraceback=True), repr(event), file=told)
    text = told.getvalue()
    assert "could not be fetched" in text
    assert "The token is expired." in text
    assert SECRET.decode() not in text
    for token in [*good, *bad]:
        assert not [part for part in token.split(".") if len(part) > 16 and part in text]
