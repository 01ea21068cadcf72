"""From a token to an identity: the verifiers of all projects, and the application's own login.

An `Authenticator` identifies the callers of each project by its `Verifier`. The project's
configuration determines the key and the algorithm: a token whose issuer is one of the providers is
verified with that provider's keys, any other with the project's secrets. Verified tokens are
cached, because a client sends the same one with every request. An invalid token is an error; its
sender is never treated as an anonymous caller.

Unsigned tokens (`"alg": "none"`), with which clients of the Firebase emulator name a user, count in
emulator mode only, where every client may be any user, and only for the real-time protocol
(`unsigned_identity`).

An application that embeds the service may say itself who sends a request (`HostLogin`).
"""

from __future__ import annotations

import asyncio
import hmac
import math
import traceback
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from enum import Enum
from typing import Any, Final, NoReturn, TypeAlias

import attrs
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger
from twisted.python.failure import Failure

from treedbd.database.requests import DeadlinePassed
from treedbd.limits import MAX_CLAIM_LEVELS, MIB
from treedbd.names import SERVICE_PROVIDER
from treedbd.tree.types import InvalidData, Json
from treedbd.tree.value import compact
from treedbd.tree.value import parse as parse_json
from treedbd.web.auth.identity import (
    ADMIN_CLAIM,
    ANONYMOUS,
    HOST_SOURCE,
    OWNER,
    AuthOverride,
    Identity,
    NotAdmin,
    auth_of_provider_token,
    auth_of_service_token,
    is_read_only,
    name_token,
    override_auth,
)
from treedbd.web.auth.jwt import (
    BadToken,
    Claims,
    Lifetime,
    PublicKey,
    Token,
    exceeds_levels,
    fingerprint,
    lifetime,
    mint,
    parse,
    verify_by_secret,
)
from treedbd.web.auth.minting import (
    MadeToken,
    NoSigningSecret,
    TokenRequest,
    renew_claims,
)
from treedbd.web.auth.providers import Provider, ProviderKeys

# The token that admin clients of Firebase send to an emulator.
OWNER_TOKEN: Final = "owner"  # noqa: S105 - not a secret
MAX_CACHED_TOKENS: Final = 4096
MAX_CACHED_TOKEN_CHARACTERS: Final = 4 * MIB
"""Characters of all tokens that are cached; with what they say they take about four times that."""

_ASYMMETRIC: Final = frozenset({"RS256", "ES256"})


class Authenticator:
    """Identifies the callers of each project."""

    def __init__(
        self,
        verifier: Callable[[str], Verifier | None],
        clock: IReactorTime,
        wall_clock: Callable[[], float],
    ) -> None:
        """Identify by the verifier of a project; `verifier` returns None if it trusts no token.

        `clock` measures timeouts; `wall_clock` returns seconds since 1970, for the times in tokens.
        """
        self._verifier = verifier
        self._clock = clock
        self._wall_clock = wall_clock

    async def identify(
        self,
        project: str,
        token: str | None,
        override: AuthOverride | None,
        timeout_s: float,
        known: Identity | None = None,
    ) -> Identity:
        """Return the identity that a token has in a project; waits only for a provider's keys.

        If the sender is `known` already, no token is needed. Raises `BadToken`,
        `ProviderUnavailable`, `AuthRequired`, `NotAdmin` or `DeadlinePassed`.
        """
        if known is not None:
            return override_auth(known, override)
        if token is None:
            return override_auth(ANONYMOUS, override)
        verifier = self._verifier(project)
        if verifier is None:
            raise BadToken("The token has an unknown issuer.", "issuer")
        identity = verifier.verify(token, self._wall_clock())
        if isinstance(identity, Deferred):
            identity = await identity.addTimeout(timeout_s, self._clock, _time_out_keys)
        return override_auth(identity, override)

    def recall(self, project: str, token: str) -> Identity | None:
        """Return the identity of a token that was verified before, None if it must be verified."""
        verifier = self._verifier(project)
        return None if verifier is None else verifier.recall(token, self._wall_clock())

    def make_token(
        self, project: str, request: TokenRequest | None, token: str | None
    ) -> MadeToken:
        """Return the token that an admin requests; None requests one that renews `token`.

        Raises as `Verifier.make` and `Verifier.renew`. The caller has identified the admin.
        """
        verifier = self._verifier(project)
        if verifier is None:
            raise NoSigningSecret
        now = self._wall_clock()
        if request is not None:
            return verifier.make(request, now)
        if token is None:  # the application has named the admin
            raise InvalidData("There is no token to renew.")
        return verifier.renew(token, now)

    def trusts(self, project: str, identity: Identity) -> bool:
        """Return whether a project still trusts the secret or provider that an identity is from."""
        if identity.source == HOST_SOURCE:
            return True
        verifier = self._verifier(project)
        return verifier is not None and verifier.trusts(identity)


def _time_out_keys(_: object, __: float) -> NoReturn:
    raise DeadlinePassed("the identity provider answered")


@attrs.frozen
class _Verified:
    """The result of a verified token, and what it depends on: the time, and a provider's keys."""

    identity: Identity
    life: Lifetime
    keys: ProviderKeys | None = None
    generation: int = 0

    def is_valid(self, now: float) -> bool:
        return self.life.since <= now < self.life.until and (
            self.keys is None or self.keys.check_generation() == self.generation
        )


class Verifier:
    """Verifies the tokens of one project."""

    def __init__(
        self,
        secrets: Iterable[bytes],
        providers: Iterable[Provider] = (),
        *,
        open_keys: Callable[[Provider], ProviderKeys],
        emulator: bool = False,
        admin_token: str | None = None,
        max_token_life_s: float | None = None,
    ) -> None:
        """Trust the secrets, which the caller has checked, and the providers; see `reload`.

        `open_keys` returns the keys of a provider. With `emulator` the token `owner` is an admin's;
        `admin_token` is, if there is one.
        """
        self._open_keys = open_keys
        self._emulator = emulator
        self._admin_token = admin_token
        self._max_life_s = max_token_life_s
        self._secrets: dict[bytes, str] = {}
        self._providers: dict[Provider, ProviderKeys] = {}
        self._issuers: frozenset[str] = frozenset()
        self._sources: frozenset[str] = frozenset()
        self._verified: OrderedDict[str, _Verified] = OrderedDict()  # the last used at the end
        self._verified_characters = 0
        self.reload(secrets, providers)

    def reload(self, secrets: Iterable[bytes], providers: Iterable[Provider] = ()) -> None:
        """Replace what is trusted; a provider that is still configured keeps its keys.

        If `open_keys` raises, nothing changes.
        """
        before = self._providers
        self._providers = {
            each: before.get(each) or self._open_keys(each) for each in dict.fromkeys(providers)
        }
        for removed in before.keys() - self._providers.keys():
            before[removed].close()
        self._verified.clear()
        self._verified_characters = 0
        self._secrets = {secret: fingerprint(b"secret", secret) for secret in secrets}
        self._issuers = frozenset(each.issuer for each in self._providers)
        has_owner = self._emulator or self._admin_token is not None
        own = [ANONYMOUS.source, OWNER.source] if has_owner else [ANONYMOUS.source]
        self._sources = frozenset(
            (*own, *self._secrets.values(), *map(_provider_source, self._providers))
        )

    def close(self) -> None:
        """Trust no token, and fetch no keys, from now on."""
        self.reload(())

    def prefetch(self) -> None:
        """Start to fetch the keys of all providers, so that their first tokens need not wait."""
        for keys in self._providers.values():
            keys.prefetch()

    def trusts(self, identity: Identity) -> bool:
        """Return whether the secret or provider that an identity is from is still trusted."""
        return identity.source in self._sources

    def verify(self, token: str, now: float) -> Identity | Deferred[Identity]:
        """Return the identity that a token has at `now`, in seconds since 1970.

        Returns a Deferred only if keys have to be fetched first. Raises `BadToken` or
        `ProviderUnavailable`; the Deferred fails with the same.
        """
        known = self.recall(token, now)
        if known is not None:
            return known
        if self._is_owner(token):
            return OWNER
        parsed = parse(token)
        if self._is_issued(parsed.claims):
            return self._verify_by_provider(token, parsed, str(parsed.claims["iss"]), now)
        return self._verify_by_project(token, parsed, now)

    def _is_issued(self, claims: Claims) -> bool:
        """Return whether one of the providers has issued a token, as the token says."""
        issuer = claims.get("iss")
        return isinstance(issuer, str) and issuer in self._issuers

    def _is_owner(self, token: str) -> bool:
        """Return whether a token is that of the emulator's owner, or what replaces it."""
        if self._admin_token is None:
            return self._emulator and token == OWNER_TOKEN
        if token == OWNER_TOKEN:
            raise BadToken(
                "The token owner does not count with --lan: use the one that was printed at the "
                "start.",
                "origin",
            )
        return hmac.compare_digest(token.encode(errors="replace"), self._admin_token.encode())

    def recall(self, token: str, now: float) -> Identity | None:
        """Return the identity of a token that was verified before and is still valid at `now`."""
        verified = self._verified.get(token)
        if verified is None:
            is_owner = self._emulator and self._admin_token is None and token == OWNER_TOKEN
            return OWNER if is_owner else None
        if not verified.is_valid(now):
            self._forget(token)
            return None
        self._verified.move_to_end(token)
        return verified.identity

    def make(self, request: TokenRequest, now: float) -> MadeToken:
        """Return the token of a user, signed with the first secret of the project.

        Raises `InvalidData` or `NoSigningSecret`.
        """
        end = int(now + request.life_s(self._max_life_s))
        return self._sign({**request.claims, "iat": int(now)}, end, now)

    def renew(self, token: str, now: float) -> MadeToken:
        """Return the token that replaces an admin's, with the same claims (`renew_claims`).

        The token is verified here, whatever is known of its sender: signature, times and kind.
        Raises `BadToken`, `NotAdmin`, `InvalidData` or `NoSigningSecret`.
        """
        if self._is_owner(token):
            raise InvalidData("This token does not end, so it is not renewed.")
        parsed = parse(token)
        verify_by_secret(parsed, self._secrets)
        lifetime(parsed.claims, now, self._max_life_s)
        if parsed.claims.get(ADMIN_CLAIM) is not True or self._is_issued(parsed.claims):
            raise NotAdmin("The renewal of a token")
        return self._sign(*renew_claims(parsed.claims, now, self._max_life_s), now)

    def make_own(self, uid: str, ttl_s: float, now: float) -> str:
        """Return an admin's token that this daemon uses itself, at another one of the project.

        It lives as long as the project allows, `ttl_s` at most. Raises `NoSigningSecret`.
        """
        life_s = ttl_s if self._max_life_s is None else min(ttl_s, self._max_life_s)
        claims: Claims = {"uid": uid, ADMIN_CLAIM: True, "iat": int(now)}
        return self._sign(claims, int(now + life_s), now).text

    def _sign(self, claims: Claims, end: int, now: float) -> MadeToken:
        secret = next(iter(self._secrets), None)
        if secret is None:
            raise NoSigningSecret
        try:
            return MadeToken(mint(secret, {**claims, "exp": end}, now=now), end)
        except BadToken as error:
            raise InvalidData(str(error)) from None  # the sender's own token is valid

    def _verify_by_project(self, text: str, token: Token, now: float) -> Identity:
        if token.algorithm in _ASYMMETRIC:
            raise BadToken("The token has an unknown issuer.", "issuer")
        secret = verify_by_secret(token, self._secrets)
        life = lifetime(token.claims, now, self._max_life_s)
        is_admin = token.claims.get(ADMIN_CLAIM) is True
        identity = Identity(
            is_admin,
            auth_of_service_token(token.claims),
            _end_of(life),
            self._secrets[secret],
            is_read_only=is_admin and is_read_only(token.claims),
            token_id=name_token(text, token.claims),
        )
        return self._cache(text, _Verified(identity, life))

    def _verify_by_provider(
        self, text: str, token: Token, issuer: str, now: float
    ) -> Identity | Deferred[Identity]:
        """Verify with a provider's keys, after the checks that need none, to save a fetch."""
        keys = self._keys_for(issuer, _audiences(token.claims))
        if token.algorithm not in _ASYMMETRIC:
            raise _refused("The token's signature must be made with RS256 or ES256.")
        if "exp" not in token.claims:
            raise BadToken("The token is malformed: a provider's token must have exp.")
        life = lifetime(token.claims, now, self._max_life_s)
        provider = keys.provider
        auth = auth_of_provider_token(
            token.claims,
            provider.sign_in_provider,
            provider.uid_prefix,
            [each.uid_prefix for each in self._providers],
        )
        named = name_token(text, token.claims)
        identity = Identity(False, auth, _end_of(life), _provider_source(provider), token_id=named)

        def finish(key: PublicKey | None) -> Identity:
            if key is None:
                raise _refused("The token's signature is by a key that its issuer does not have.")
            if not key.verify(token.signed, token.signature):
                raise _refused("The token's signature is wrong.")
            # A reload may have removed the provider while the keys were fetched.
            if self._providers.get(keys.provider) is not keys:
                raise BadToken("The token has an unknown issuer.", "issuer")
            return self._cache(text, _Verified(identity, life, keys, keys.check_generation()))

        found = keys.find(token.key_id, token.algorithm)
        if isinstance(found, Deferred):
            return found.addCallback(finish)
        return finish(found)

    def _keys_for(self, issuer: str, audiences: list[str]) -> ProviderKeys:
        for provider, keys in self._providers.items():
            if provider.issuer == issuer and provider.audience in audiences:
                return keys
        raise BadToken("The token is for another audience.", "audience")

    def _cache(self, text: str, verified: _Verified) -> Identity:
        self._forget(text)
        self._verified[text] = verified
        self._verified_characters += len(text)
        while (
            len(self._verified) > MAX_CACHED_TOKENS
            or self._verified_characters > MAX_CACHED_TOKEN_CHARACTERS
        ):
            self._forget(next(iter(self._verified)))
        return verified.identity

    def _forget(self, text: str) -> None:
        if self._verified.pop(text, None) is not None:
            self._verified_characters -= len(text)


def _provider_source(provider: Provider) -> str:
    parts = (provider.issuer, provider.audience, provider.name, provider.uid_prefix)
    return fingerprint(b"provider", *(part.encode() for part in parts))


def _end_of(life: Lifetime) -> float | None:
    return None if math.isinf(life.until) else life.until


def _audiences(claims: Claims) -> list[str]:
    """Return the audiences of a token: none if `aud` is neither a string nor a list of strings."""
    audience = claims.get("aud")
    entries = audience if isinstance(audience, list) else [audience]
    strings = [each for each in entries if isinstance(each, str)]
    return strings if len(strings) == len(entries) else []


def _refused(message: str) -> BadToken:
    """Return the error of a token that is refused for its signature."""
    return BadToken(message, "signature")


_NO_ALGORITHM: Final = "none"


def unsigned_identity(text: str) -> Identity | None:
    """Return the identity that an unsigned token names, None for a token of any other kind.

    Nothing of it is verified, and times in it do not count. Raises `BadToken` for an unsigned one
    without a valid `sub`.
    """
    try:
        token = parse(text)
    except BadToken:
        return None  # the verifier accepts other tokens too, and says what is wrong
    if token.algorithm.lower() != _NO_ALGORITHM or token.signature:
        return None
    return Identity(
        False,
        auth_of_provider_token(token.claims, SERVICE_PROVIDER),
        source="unsigned",
        token_id="unsigned",  # noqa: S106 - a name
    )


class HostAdmin(Enum):
    """The type of `ADMIN`."""

    ADMIN = "admin"


ADMIN: Final = HostAdmin.ADMIN
"""The caller to whom no rules apply: returned by `identify`, or the `auth` of a database."""

Auth: TypeAlias = Mapping[str, Json] | HostAdmin | None
"""Who uses a database: the variable `auth` of the rules, None for anonymous, or `ADMIN`."""
Identify: TypeAlias = Callable[[Any], Auth | Awaitable[Auth]]
"""Returns the sender of a request of `twisted.web`; None if no user is logged in."""


class IdentifyFailed(Exception):
    """The application did not say who sends a request; its error has been logged."""

    def __init__(self) -> None:
        super().__init__("An internal error occurred; it has been logged.")


class ClientGone(Exception):
    """The client disconnected before its identity was known; no response is needed."""


class HostLogin:
    """Asks the application that embeds the service who sends a request.

    The application is called for each request that needs a caller, and nothing that it returns is
    kept: the next request of the same connection may be another user's. An exception that it raises
    refuses the request. Only the kind and the place of such an error are logged, because its text
    may contain secrets of the request.
    """

    _log = Logger()

    def __init__(self, identify: Identify, clock: IReactorTime) -> None:
        """Ask `identify`, and wait by `clock` for its answer."""
        self._identify = identify
        self._clock = clock

    async def find(
        self, request: object, timeout_s: float, until: Callable[[], Deferred[None]]
    ) -> Identity | None:
        """Return the sender of a request, None if the application knows no user of it.

        What `until` returns fails when the client disconnects: then an answer that is awaited is
        cancelled. Raises `IdentifyFailed`, `ClientGone`, or `DeadlinePassed` if the answer takes
        longer than `timeout_s`.
        """
        try:
            auth: Any = self._identify(request)
            if isinstance(auth, Awaitable):
                auth = await self._wait(as_deferred(auth), timeout_s, until())
            return None if auth is None else identity_of(auth)
        except (DeadlinePassed, ClientGone):
            raise
        except (Exception, asyncio.CancelledError) as error:
            self._log.error(
                "identify raised {kind} at {place}: the request was answered with 500.",
                kind=type(error).__name__,
                place=_place_of(error),
            )
            raise IdentifyFailed from None

    async def _wait(self, waiting: Deferred[Any], timeout_s: float, until: Deferred[None]) -> Auth:
        gone: list[Failure] = []

        def cancel(failure: Failure) -> None:
            gone.append(failure)
            waiting.cancel()

        until.addErrback(cancel)
        try:
            auth: Auth = await waiting.addTimeout(timeout_s, self._clock, _time_out_login)
        except (Exception, asyncio.CancelledError):
            if gone:
                raise ClientGone from None
            raise
        if gone:
            raise ClientGone
        return auth


def as_deferred(waiting: Awaitable[Any]) -> Deferred[Any]:
    """Return a Deferred for an awaitable: a coroutine, a future of asyncio, or a Deferred."""
    if isinstance(waiting, Deferred):
        return waiting
    if asyncio.isfuture(waiting):
        return Deferred.fromFuture(waiting)
    if isinstance(waiting, Coroutine):
        return Deferred.fromCoroutine(waiting)
    raise TypeError(f"{type(waiting).__name__} is not a Deferred, a coroutine or a future")


def identity_of(auth: Auth) -> Identity:
    """Return the identity for an `auth`, of which it keeps a copy.

    Raises `TypeError` for what is not one, or `InvalidData` for what is not JSON.
    """
    if auth is None:
        return ANONYMOUS
    if isinstance(auth, HostAdmin):
        return Identity(True, None, source=HOST_SOURCE)
    if not isinstance(auth, Mapping):
        raise TypeError(f"auth must be a dict, None or ADMIN, not {type(auth).__name__}")
    try:
        copied = parse_json(compact(dict(auth)))
    except TypeError as error:
        raise InvalidData(f"auth is not JSON: {error}.") from None
    if not isinstance(copied, dict) or exceeds_levels(copied, MAX_CLAIM_LEVELS):
        raise InvalidData(f"auth is nested deeper than {MAX_CLAIM_LEVELS} levels.")
    return Identity(False, copied, source=HOST_SOURCE)


def _place_of(error: BaseException) -> str:
    """Return where an error was raised, without its text."""
    frames = traceback.extract_tb(error.__traceback__)
    last = frames[-1]
    return f"{last.filename}:{last.lineno}, in {last.name}"


def _time_out_login(_: object, __: float) -> NoReturn:
    raise DeadlinePassed("the application said who the caller is")
