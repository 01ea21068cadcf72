"""From a token to an identity: the verifier of one project.

Which key verifies a token, and by which algorithm, is decided by the project's configuration: a
token whose issuer is one of the providers is verified with that provider's keys, any other with
the project's secrets. What was found out about a token is remembered, because the same one comes
with every request of its bearer.

A token that is not good is refused; it never makes an anonymous caller.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Final

import attrs
from twisted.internet.defer import Deferred

from treedbd.web.identity.identity import ANONYMOUS, OWNER, Identity, service_auth, user_auth
from treedbd.web.identity.jwks import Key
from treedbd.web.identity.providers import Provider, ProviderKeys
from treedbd.web.identity.tokens import (
    BadToken,
    Claims,
    Lifetime,
    Token,
    fingerprint,
    lifetime,
    parse,
    verify_by_secret,
)

# What admin clients of the vendor's emulators send as their token.
OWNER_TOKEN: Final = "owner"  # noqa: S105 - known to everybody
REMEMBERED_TOKENS: Final = 4096

_ASYMMETRIC: Final = frozenset({"RS256", "ES256"})


@attrs.frozen
class _Known:
    """A token that was verified, and until when that holds."""

    identity: Identity
    life: Lifetime
    keys: ProviderKeys | None = None
    generation: int = 0

    def holds(self, now: float) -> bool:
        return self.life.since <= now < self.life.until and (
            self.keys is None or self.keys.generation() == self.generation
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
        max_token_life_s: float | None = None,
    ) -> None:
        """Trust the secrets, which were checked, and the providers; see `reload`.

        `open_keys` gives the keys of a provider. With `emulator` the token `owner` is an admin's.
        """
        self._open_keys = open_keys
        self._emulator = emulator
        self._max_life_s = max_token_life_s
        self._secrets: dict[bytes, str] = {}
        self._providers: dict[Provider, ProviderKeys] = {}
        self._issuers: frozenset[str] = frozenset()
        self._sources: frozenset[str] = frozenset()
        self._known: OrderedDict[str, _Known] = OrderedDict()
        self.reload(secrets, providers)

    def reload(self, secrets: Iterable[bytes], providers: Iterable[Provider] = ()) -> None:
        """Trust these and nothing else from now on; a provider that stays keeps its keys.

        What `open_keys` raises leaves everything as it was.
        """
        before = self._providers
        self._providers = {
            each: before.get(each) or self._open_keys(each) for each in dict.fromkeys(providers)
        }
        for withdrawn in before.keys() - self._providers.keys():
            before[withdrawn].close()
        self._known.clear()
        self._secrets = {secret: fingerprint(b"secret", secret) for secret in secrets}
        self._issuers = frozenset(each.issuer for each in self._providers)
        own = [ANONYMOUS.source, OWNER.source] if self._emulator else [ANONYMOUS.source]
        self._sources = frozenset(
            (*own, *self._secrets.values(), *map(_provider_source, self._providers))
        )

    def close(self) -> None:
        """Trust nobody any more, and fetch nothing."""
        self.reload(())

    def prefetch(self) -> None:
        """Begin to fetch the keys of all providers, so that their first tokens need not wait."""
        for keys in self._providers.values():
            keys.prefetch()

    def trusts(self, identity: Identity) -> bool:
        """Tell whether what vouches for an identity is still trusted."""
        return identity.source in self._sources

    def verify(self, token: str, now: float) -> Identity | Deferred[Identity]:
        """Return whose token it is, at `now` in seconds since 1970.

        A Deferred only where keys have to be fetched first. It fails with, or this raises,
        `BadToken` or `ProviderUnavailable`.
        """
        known = self._known.get(token)
        if known is not None:
            if known.holds(now):
                self._known.move_to_end(token)
                return known.identity
            del self._known[token]
        if self._emulator and token == OWNER_TOKEN:
            return OWNER
        parsed = parse(token)
        issuer = parsed.claims.get("iss")
        if isinstance(issuer, str) and issuer in self._issuers:
            return self._verify_by_provider(token, parsed, issuer, now)
        return self._verify_by_project(token, parsed, now)

    def _verify_by_project(self, text: str, token: Token, now: float) -> Identity:
        if token.algorithm in _ASYMMETRIC:
            raise BadToken("The token has an unknown issuer.")
        secret = verify_by_secret(token, self._secrets)
        life = lifetime(token.claims, now, self._max_life_s)
        is_admin = token.claims.get("admin") is True
        identity = Identity(
            is_admin, service_auth(token.claims), _end_of(life), self._secrets[secret]
        )
        return self._remember(text, _Known(identity, life))

    def _verify_by_provider(
        self, text: str, token: Token, issuer: str, now: float
    ) -> Identity | Deferred[Identity]:
        """Verify with the keys of a provider; what needs no key comes first, and spares a fetch."""
        keys = self._keys_for(issuer, _audiences(token.claims))
        if token.algorithm not in _ASYMMETRIC:
            raise BadToken("The token's signature must be made with RS256 or ES256.")
        if "exp" not in token.claims:
            raise BadToken("The token is malformed: one of a provider must have exp.")
        life = lifetime(token.claims, now, self._max_life_s)
        identity = Identity(
            False, user_auth(token.claims), _end_of(life), _provider_source(keys.provider)
        )

        def finish(key: Key | None) -> Identity:
            if key is None:
                raise BadToken("The token's signature is by a key that its issuer does not have.")
            if not key.verify(token.signed, token.signature):
                raise BadToken("The token's signature is wrong.")
            if self._providers.get(keys.provider) is not keys:
                raise BadToken("The token has an unknown issuer.")
            return self._remember(text, _Known(identity, life, keys, keys.generation()))

        found = keys.find(token.key_id, token.algorithm)
        if isinstance(found, Deferred):
            return found.addCallback(finish)
        return finish(found)

    def _keys_for(self, issuer: str, audiences: list[str]) -> ProviderKeys:
        for provider, keys in self._providers.items():
            if provider.issuer == issuer and provider.audience in audiences:
                return keys
        raise BadToken("The token is for another audience.")

    def _remember(self, text: str, known: _Known) -> Identity:
        self._known[text] = known
        if len(self._known) > REMEMBERED_TOKENS:
            self._known.popitem(last=False)
        return known.identity


def _provider_source(provider: Provider) -> str:
    return fingerprint(b"provider", provider.issuer.encode(), provider.audience.encode())


def _end_of(life: Lifetime) -> float | None:
    return None if math.isinf(life.until) else life.until


def _audiences(claims: Claims) -> list[str]:
    """Return whom a token is for; an `aud` that is neither text nor a list of it names nobody."""
    audience = claims.get("aud")
    named = audience if isinstance(audience, list) else [audience]
    texts = [each for each in named if isinstance(each, str)]
    return texts if len(texts) == len(named) else []
