"""OpenID providers: the keys that verify the tokens of each, fetched, cached and refreshed.

A provider that does not respond delays only the tokens that it signed. Its keys are fetched for
the first such token, unless `prefetch` was called before, and after that as follows.

- In the background, when a token is verified and the keys are older than `REFRESH_S`. If that
  fails, the keys stay valid until they are `KEEP_S` old. If the refresh is overdue by `REFRESH_S`,
  the first token waits for it, so that a key which was withdrawn meanwhile verifies nothing.
- For a token whose `kid` is not among the keys, at most once in `SEARCH_S`; the token waits.
- While there are no keys: for any token, but not sooner than `RETRY_S` after a failure.

There is at most one fetch at a time, and it is cancelled after `FETCH_S`. Of a token this module
knows only its key id and its algorithm.
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

from treedbd.database.slices import in_slices
from treedbd.names import HTTPS_URL, ISSUER_URL, is_https_url, is_issuer_url
from treedbd.web.auth.fetch import Fetch, failure_reason
from treedbd.web.auth.jwt import InvalidKeySet, KeySet, PublicKey, parse_key_set

FETCH_S: Final = 5.0
REFRESH_S: Final = 600.0
KEEP_S: Final = 86_400.0
SEARCH_S: Final = 30.0
RETRY_S: Final = 1.0
FIRED_AT_ONCE: Final = 16
"""Waiting tokens that are verified in one turn of the reactor after a fetch."""

DISCOVERY: Final = "/.well-known/openid-configuration"


class ProviderUnavailable(Exception):
    """A provider's keys are needed and cannot be fetched; the message is for the client."""


class InvalidProvider(ValueError):
    """Settings of a provider that cannot be used.

    Attributes:
        field: the name of the setting.
        problem: what is wrong with its value, from the verb on.

    """

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"The {field} {problem}.")
        self.field = field
        self.problem = problem


class InvalidDiscovery(ValueError):
    """A discovery document that is malformed or does not match the settings.

    Attributes:
        problem: what is wrong with the document, from the verb on.

    """

    def __init__(self, problem: str) -> None:
        super().__init__(f"The discovery document {problem}.")
        self.problem = problem


def _check_issuer(_: object, __: object, issuer: str) -> None:
    if not is_issuer_url(issuer):
        raise InvalidProvider("issuer", f"must be {ISSUER_URL}")


def _check_jwks_uri(_: object, __: object, uri: str | None) -> None:
    if uri is not None and not is_https_url(uri):
        raise InvalidProvider("jwks_uri", f"must be {HTTPS_URL}")


def _check_audience(_: object, __: object, audience: str) -> None:
    if not audience:
        raise InvalidProvider("audience", "must not be empty")


@attrs.frozen
class Provider:
    """The settings of one provider (OpenID Connect Discovery 1.0); raises `InvalidProvider`.

    With `jwks_uri` there is no discovery. `authority` is a PEM text of the CA certificates that
    verify the provider's servers, None for those of the system. `uid_prefix` precedes the uids of
    its users; `name` is for `sign_in_provider`.
    """

    issuer: str = attrs.field(validator=_check_issuer)
    audience: str = attrs.field(validator=_check_audience)
    jwks_uri: str | None = attrs.field(default=None, validator=_check_jwks_uri)
    authority: bytes | None = attrs.field(default=None, repr=False)
    name: str = ""
    uid_prefix: str = ""

    @property
    def sign_in_provider(self) -> str:
        """The `auth.provider` of its users: its name, else the host of its issuer."""
        return self.name or urlsplit(self.issuer).hostname or self.issuer


class ProviderKeys:
    """The keys of one provider, fetched as the module describes."""

    _log = Logger()

    def __init__(self, provider: Provider, fetch: Fetch, clock: IReactorTime) -> None:
        """Prepare; nothing is fetched yet."""
        self.provider: Final = provider
        self._fetch = fetch
        self._clock = clock
        self._keys: KeySet | None = None
        self._generation = 0
        self._fetching: Deferred[KeySet] | None = None
        self._waiting: list[Deferred[KeySet]] = []
        self._is_closed = False
        self._has_failed = False
        # Times of the clock: when the keys are refreshed, when they are discarded, and from when on
        # a token may start a fetch, for an unknown key id and after a failure.
        self._refresh_at = math.inf
        self._discard_at = math.inf
        self._search_at = -math.inf
        self._retry_at = -math.inf

    def check_generation(self) -> int:
        """Return a number that changes whenever the keys do; to be called at each use of a key.

        The call also starts the refresh in the background.
        """
        now = self._clock.seconds()
        if now >= self._refresh_at:
            self._refresh(now)
        return self._generation

    def find(
        self, key_id: str | None, algorithm: str
    ) -> PublicKey | Deferred[PublicKey | None] | None:
        """Return the key for a token, None if the provider has no such key.

        Returns a Deferred if the keys have to be fetched first. Raises `ProviderUnavailable`; the
        Deferred fails with the same.
        """
        now = self._clock.seconds()
        # Computed first, because `generation` may change `_refresh_at`.
        is_overdue = now >= self._refresh_at + REFRESH_S
        self.check_generation()
        if self._keys is None:
            if self._is_closed or (self._fetching is None and now < self._retry_at):
                raise _unavailable()
            return self._fetch_and_find(key_id, algorithm)
        key = self._keys.find(key_id, algorithm)
        if is_overdue:
            return self._fetch_and_find(key_id, algorithm).addErrback(_fall_back, key)
        if key is not None or key_id is None or self._keys.has(key_id):
            return key
        if self._fetching is not None:
            return self._fetch_and_find(key_id, algorithm)
        if now >= self._search_at:
            self._search_at = now + SEARCH_S
            return self._fetch_and_find(key_id, algorithm)
        if self._has_failed:
            raise _unavailable()
        return None

    def prefetch(self) -> None:
        """Start to fetch the keys, so that the first token need not wait."""
        if self._keys is None and not self._is_closed:
            self._start_fetch()

    def close(self) -> None:
        """Cancel the fetch and start no other; tokens that wait fail with `ProviderUnavailable`."""
        self._is_closed = True
        self._refresh_at = math.inf
        if self._fetching is not None:
            self._fetching.cancel()

    def _fetch_and_find(self, key_id: str | None, algorithm: str) -> Deferred[PublicKey | None]:
        waiting: Deferred[KeySet] = Deferred()
        self._waiting.append(waiting)  # before the fetch starts, because it may end at once
        found = waiting.addCallback(lambda keys: keys.find(key_id, algorithm))
        self._start_fetch()
        return found

    def _refresh(self, now: float) -> None:
        if now >= self._discard_at:
            self._keys = None
            self._generation += 1
            self._refresh_at = math.inf
        else:
            self._start_fetch()

    def _start_fetch(self) -> None:
        if self._fetching is not None or self._is_closed:
            return
        fetching = self._fetching = Deferred.fromCoroutine(self._fetch_keys())
        fetching.addTimeout(FETCH_S, self._clock)
        fetching.addCallbacks(self._keep, self._fail)

    async def _fetch_keys(self) -> KeySet:
        provider = self.provider
        uri = provider.jwks_uri
        if uri is None:
            document = await self._fetch(provider.issuer.rstrip("/") + DISCOVERY)
            uri = parse_discovery(document, provider.issuer)
        return parse_key_set(await self._fetch(uri))

    def _keep(self, keys: KeySet) -> None:
        if self._keys is None or keys.keys != self._keys.keys:
            self._generation += 1
        self._keys = keys
        self._has_failed = False
        now = self._clock.seconds()
        self._refresh_at, self._discard_at = now + REFRESH_S, now + KEEP_S
        self._fire_waiting(keys)

    def _fail(self, failure: Failure) -> None:
        self._has_failed = True
        now = self._clock.seconds()
        self._retry_at = now + RETRY_S
        if self._keys is not None and not self._is_closed:
            self._refresh_at = now + SEARCH_S
        if not self._is_closed:
            self._log.warn(
                "The keys of the provider {issuer} could not be fetched: {reason}.",
                issuer=self.provider.issuer,
                reason=_reason(failure),
            )
        self._fire_waiting(None)

    def _fire_waiting(self, keys: KeySet | None) -> None:
        """Fire the Deferreds of all tokens that waited for the fetch; `keys` is None if it failed.

        The list is emptied first: a callback may start the next fetch, or close these keys. Each
        goes on with its request, so there are only some in a turn.
        """
        self._fetching = None
        waiting, self._waiting = self._waiting, []

        def fire(each: Deferred[KeySet]) -> None:
            if keys is None:
                each.errback(_unavailable())
            else:
                each.callback(keys)

        in_slices(self._clock, waiting, FIRED_AT_ONCE, fire)


def parse_discovery(body: bytes, issuer: str) -> str:
    """Return the `jwks_uri` of a discovery document; raise `InvalidDiscovery`."""
    try:
        document = orjson.loads(body)
    except ValueError:
        document = None
    if not isinstance(document, dict):
        raise InvalidDiscovery("is not a JSON object")
    if document.get("issuer") != issuer:
        raise InvalidDiscovery("is that of another issuer")
    uri = document.get("jwks_uri")
    if not isinstance(uri, str) or not is_https_url(uri):
        raise InvalidDiscovery("has no jwks_uri that is an https URL")
    return uri


def _fall_back(_: Failure, key: PublicKey | None) -> PublicKey:
    """Return the key known before a fetch that failed; raise `ProviderUnavailable` for None."""
    if key is None:
        raise _unavailable()
    return key


def _unavailable() -> ProviderUnavailable:
    return ProviderUnavailable("The identity provider of the token is unreachable.")


def _reason(failure: Failure) -> str:
    """Return why the keys could not be fetched, as a clause without a full stop."""
    error = failure.value
    if isinstance(error, defer.TimeoutError | CancelledError):
        return f"the provider took longer than {FETCH_S:g} seconds"
    if isinstance(error, InvalidDiscovery):
        return f"its discovery document {error.problem}"
    if isinstance(error, InvalidKeySet):
        return f"its key set {error.problem}"
    return failure_reason(error)
