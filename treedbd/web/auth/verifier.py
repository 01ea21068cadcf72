"""From a token to an identity: the verifier of one project.

The project's configuration determines the key and the algorithm: a token whose issuer is one of
the providers is verified with that provider's keys, any other with the project's secrets. Verified
tokens are cached, because a client sends the same one with every request.

An invalid token is an error; its sender is never treated as an anonymous caller.
"""

from __future__ import annotations

import hmac
import math
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Final

import attrs
from twisted.internet.defer import Deferred

from treedbd.web.auth.identity import (
    ANONYMOUS,
    OWNER,
    Identity,
    auth_of_provider_token,
    auth_of_service_token,
)
from treedbd.web.auth.jwks import PublicKey
from treedbd.web.auth.jwt import (
    BadToken,
    Claims,
    Lifetime,
    Token,
    fingerprint,
    lifetime,
    parse,
    verify_by_secret,
)
from treedbd.web.auth.providers import Provider, ProviderKeys

# The token that admin clients of Firebase send to an emulator.
OWNER_TOKEN: Final = "owner"  # noqa: S105 - not a secret
MAX_CACHED_TOKENS: Final = 4096

_ASYMMETRIC: Final = frozenset({"RS256", "ES256"})


@attrs.frozen
class _Verified:
    """What a verified token yielded, and what that depends on: the time, and a provider's keys."""

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
        self._secrets = {secret: fingerprint(b"secret", secret) for secret in secrets}
        self._issuers = frozenset(each.issuer for each in self._providers)
        has_owner = self._emulator or self._admin_token is not None
        own = [ANONYMOUS.source, OWNER.source] if has_owner else [ANONYMOUS.source]
        self._sources = frozenset(
            (*own, *self._secrets.values(), *map(_provider_source, self._providers))
        )

    def close(self) -> None:
        """Trust no token any more, and fetch no keys."""
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
        issuer = parsed.claims.get("iss")
        if isinstance(issuer, str) and issuer in self._issuers:
            return self._verify_by_provider(token, parsed, issuer, now)
        return self._verify_by_project(token, parsed, now)

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
            del self._verified[token]
            return None
        self._verified.move_to_end(token)
        return verified.identity

    def _verify_by_project(self, text: str, token: Token, now: float) -> Identity:
        if token.algorithm in _ASYMMETRIC:
            raise BadToken("The token has an unknown issuer.", "issuer")
        secret = verify_by_secret(token, self._secrets)
        life = lifetime(token.claims, now, self._max_life_s)
        is_admin = token.claims.get("admin") is True
        identity = Identity(
            is_admin, auth_of_service_token(token.claims), _end_of(life), self._secrets[secret]
        )
        return self._cache(text, _Verified(identity, life))

    def _verify_by_provider(
        self, text: str, token: Token, issuer: str, now: float
    ) -> Identity | Deferred[Identity]:
        """Verify with a provider's keys; first come the checks without one, to save a fetch."""
        keys = self._keys_for(issuer, _audiences(token.claims))
        if token.algorithm not in _ASYMMETRIC:
            raise _unsigned("The token's signature must be made with RS256 or ES256.")
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
        identity = Identity(False, auth, _end_of(life), _provider_source(provider))

        def finish(key: PublicKey | None) -> Identity:
            if key is None:
                raise _unsigned("The token's signature is by a key that its issuer does not have.")
            if not key.verify(token.signed, token.signature):
                raise _unsigned("The token's signature is wrong.")
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
        self._verified[text] = verified
        if len(self._verified) > MAX_CACHED_TOKENS:
            self._verified.popitem(last=False)
        return verified.identity


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


def _unsigned(message: str) -> BadToken:
    return BadToken(message, "signature")
