"""OpenID providers: the keys with which each signs its tokens, fetched, kept, and fetched again.

A provider that is not heard of keeps nobody waiting but those whose token it signed. Its keys are
fetched when the first such token comes, unless `prefetch` was called before, and from then on as
follows.

- In the background, when tokens come and the keys are older than `REFRESH_S`. If that fails, the
  keys stay good until they are `KEEP_S` old. After a long pause the first token waits for it, so
  that a key which the provider withdrew meanwhile does not serve once more.
- For a token whose `kid` is not among the keys, at most once in `SEARCH_S`; the token waits.
- While there are no keys: for any token, but not sooner than `RETRY_S` after a failure.

There is never more than one fetch at a time, and none takes longer than `FETCH_S`. Key ids are
the only thing in a token that this room sees.
"""

from __future__ import annotations

import math
from typing import Final
from urllib.parse import urlsplit

import attrs
import orjson
from twisted.internet import defer
from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger
from twisted.python.failure import Failure

from treedbd.web.identity.fetch import Fetch, explain
from treedbd.web.identity.jwks import InvalidKeySet, Key, KeySet, parse_key_set

FETCH_S: Final = 5.0
REFRESH_S: Final = 600.0
KEEP_S: Final = 86_400.0
SEARCH_S: Final = 30.0
RETRY_S: Final = 1.0

AN_HTTPS_URL: Final = "an https URL"
AN_ISSUER: Final = f"{AN_HTTPS_URL} without a query and a fragment"
DISCOVERY: Final = "/.well-known/openid-configuration"


class ProviderUnavailable(Exception):
    """A provider's keys are needed and cannot be had; the message is a sentence for the caller."""


class InvalidProvider(ValueError):
    """Settings of a provider that cannot be; the message is a sentence that says why."""


class WrongDiscovery(ValueError):
    """A discovery document that does not fit the settings; the message is the end of a sentence."""


def is_issuer(url: str) -> bool:
    """Tell whether a URL can be that of an issuer: `AN_ISSUER`."""
    return is_https(url) and not (urlsplit(url).query or urlsplit(url).fragment)


def _check_issuer(_: object, __: object, issuer: str) -> None:
    if not is_issuer(issuer):
        raise InvalidProvider(f"The issuer must be {AN_ISSUER}.")


def _check_jwks_uri(_: object, __: object, uri: str | None) -> None:
    if uri is not None and not is_https(uri):
        raise InvalidProvider(f"The jwks_uri must be {AN_HTTPS_URL}.")


def _check_audience(_: object, __: object, audience: str) -> None:
    if not audience:
        raise InvalidProvider("The audience must not be empty.")


@attrs.frozen
class Provider:
    """The settings of one provider (OpenID Connect Discovery 1.0); raises `InvalidProvider`.

    `jwks_uri` stands in for discovery. `authority` is the PEM text of the certificates that verify
    the provider's servers, None for those of the system.
    """

    issuer: str = attrs.field(validator=_check_issuer)
    audience: str = attrs.field(validator=_check_audience)
    jwks_uri: str | None = attrs.field(default=None, validator=_check_jwks_uri)
    authority: bytes | None = attrs.field(default=None, repr=False)


class ProviderKeys:
    """The keys of one provider."""

    _log = Logger()

    def __init__(self, provider: Provider, fetch: Fetch, clock: IReactorTime) -> None:
        """Fetch with `fetch`, by the time of `clock`; nothing is fetched yet."""
        self.provider: Final = provider
        self._fetch = fetch
        self._clock = clock
        self._keys: KeySet | None = None
        self._generation = 0
        self._fetching: Deferred[KeySet] | None = None
        self._waiting: list[Deferred[KeySet]] = []
        self._is_closed = False
        self._has_failed = False
        # Times of the clock: when the keys are to be fetched again, when they are no good any
        # more, and from when on a token may cause a fetch.
        self._due_at = math.inf
        self._stale_at = math.inf
        self._search_at = -math.inf
        self._retry_at = -math.inf

    def generation(self) -> int:
        """Return a number that changes whenever the keys do; to be called at each use of one."""
        now = self._clock.seconds()
        if now >= self._due_at:
            self._renew(now)
        return self._generation

    def find(self, key_id: str | None, algorithm: str) -> Key | Deferred[Key | None] | None:
        """Return the key for a token, None where the provider has none such.

        A Deferred where that has to be asked of the provider. It fails with, or this raises,
        `ProviderUnavailable`.
        """
        now = self._clock.seconds()
        had_pause = now >= self._due_at + REFRESH_S
        self.generation()
        if self._keys is None:
            if self._is_closed or (self._fetching is None and now < self._retry_at):
                raise _unavailable()
            return self._ask(key_id, algorithm)
        key = self._keys.find(key_id, algorithm)
        if had_pause:
            return self._ask(key_id, algorithm).addErrback(_keep, key)
        if key is not None or key_id is None or self._keys.has(key_id):
            return key
        if self._fetching is not None:
            return self._ask(key_id, algorithm)
        if now >= self._search_at:
            self._search_at = now + SEARCH_S
            return self._ask(key_id, algorithm)
        if self._has_failed:
            raise _unavailable()
        return None

    def prefetch(self) -> None:
        """Begin to fetch the keys, so that the first token finds them."""
        if self._keys is None and not self._is_closed:
            self._begin()

    def close(self) -> None:
        """Fetch no more; who waits is told that the provider is out of reach."""
        self._is_closed = True
        self._due_at = math.inf
        if self._fetching is not None:
            self._fetching.cancel()

    def _ask(self, key_id: str | None, algorithm: str) -> Deferred[Key | None]:
        waiting: Deferred[KeySet] = Deferred()
        self._waiting.append(waiting)
        found = waiting.addCallback(lambda keys: keys.find(key_id, algorithm))
        self._begin()
        return found

    def _renew(self, now: float) -> None:
        if now >= self._stale_at:
            self._keys = None
            self._generation += 1
            self._due_at = math.inf
        else:
            self._begin()

    def _begin(self) -> None:
        if self._fetching is not None or self._is_closed:
            return
        fetching = self._fetching = Deferred.fromCoroutine(self._fetch_keys())
        fetching.addTimeout(FETCH_S, self._clock)
        fetching.addCallbacks(self._take, self._fail)

    async def _fetch_keys(self) -> KeySet:
        provider = self.provider
        uri = provider.jwks_uri
        if uri is None:
            document = await self._fetch(provider.issuer.rstrip("/") + DISCOVERY)
            uri = parse_discovery(document, provider.issuer)
        return parse_key_set(await self._fetch(uri))

    def _take(self, keys: KeySet) -> None:
        if self._keys is None or keys.keys != self._keys.keys:
            self._generation += 1
        self._keys = keys
        self._has_failed = False
        now = self._clock.seconds()
        self._due_at, self._stale_at = now + REFRESH_S, now + KEEP_S
        self._release(keys)

    def _fail(self, failure: Failure) -> None:
        self._has_failed = True
        now = self._clock.seconds()
        self._retry_at = now + RETRY_S
        if self._keys is not None and not self._is_closed:
            self._due_at = now + SEARCH_S
        if not self._is_closed:
            self._log.warn(
                "The keys of the provider {issuer} could not be fetched: {reason}.",
                issuer=self.provider.issuer,
                reason=_reason(failure),
            )
        self._release(None)

    def _release(self, keys: KeySet | None) -> None:
        """Let those go on who waited for the fetch that has ended: with keys, or in vain."""
        self._fetching = None
        waiting, self._waiting = self._waiting, []
        for each in waiting:
            if keys is None:
                each.errback(_unavailable())
            else:
                each.callback(keys)


def parse_discovery(body: bytes, issuer: str) -> str:
    """Return the `jwks_uri` of a discovery document; raise `WrongDiscovery`."""
    try:
        document = orjson.loads(body)
    except ValueError:
        document = None
    if not isinstance(document, dict):
        raise WrongDiscovery("its discovery document is no JSON object")
    if document.get("issuer") != issuer:
        raise WrongDiscovery("its discovery document is that of another issuer")
    uri = document.get("jwks_uri")
    if not isinstance(uri, str) or not is_https(uri):
        raise WrongDiscovery("its discovery document names no jwks_uri with https")
    return uri


def _keep(_: Failure, key: Key | None) -> Key:
    """Make do with the key that was known, if one was."""
    if key is None:
        raise _unavailable()
    return key


def _unavailable() -> ProviderUnavailable:
    return ProviderUnavailable("The identity provider of the token is out of reach.")


def is_https(url: str) -> bool:
    """Tell whether a URL can be fetched: `AN_HTTPS_URL`, without a name and a password in it."""
    try:
        parts = urlsplit(url)
        has_host = bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False
    is_plain = url.isascii() and url.isprintable() and " " not in url
    return url.startswith("https://") and has_host and is_plain and parts.username is None


def _reason(failure: Failure) -> str:
    """Return the end of a sentence that says why a fetch failed."""
    if failure.check(defer.TimeoutError, CancelledError):
        return f"it took longer than {FETCH_S:g} seconds"
    if failure.check(InvalidKeySet):
        return f"it {failure.getErrorMessage()}"
    if failure.check(WrongDiscovery):
        return failure.getErrorMessage()
    return explain(failure.value)
