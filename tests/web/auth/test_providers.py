"""When a provider's keys are fetched, how long they are used, and which tokens wait for them."""

from __future__ import annotations

import json
from typing import Any

import attrs
import pytest
from twisted.internet.defer import Deferred
from twisted.internet.error import ConnectError
from twisted.internet.task import Clock
from twisted.logger import capturedLogs, formatEvent
from twisted.python.failure import Failure

from tests.database.world import TurnClock
from tests.oidc import private_key, public_jwk
from treedbd.web.auth import providers
from treedbd.web.auth.jwt import PublicKey
from treedbd.web.auth.providers import InvalidProvider, Provider, ProviderKeys, ProviderUnavailable

ISSUER = "https://accounts.example.com"
PROVIDER = Provider(ISSUER, "shop")
KEYS_URI = "https://keys.example.com/jwks"
DISCOVERY = json.dumps({"issuer": ISSUER, "jwks_uri": KEYS_URI}).encode()
NO_KEYS = b'{"keys":[]}'


def key_set(*key_ids: str) -> bytes:
    return json.dumps(
        {"keys": [public_jwk(private_key("ES256"), kid=key_id) for key_id in key_ids]}
    ).encode()


class Network:
    """The other end of the fetches; it responds when a test calls `answer` or `fail`."""

    def __init__(self) -> None:
        self.clock: Clock = Clock()
        self.urls: list[str] = []
        self._open: list[Deferred[bytes]] = []

    def fetch(self, url: str) -> Deferred[bytes]:
        self.urls.append(url)
        fetching: Deferred[bytes] = Deferred()
        self._open.append(fetching)
        return fetching

    def answer(self, *bodies: bytes) -> None:
        for body in bodies:
            self._open.pop(0).callback(body)

    def fail(self) -> None:
        self._open.pop(0).errback(Failure(ConnectError()))

    def keys(self, provider: Provider = PROVIDER) -> ProviderKeys:
        return ProviderKeys(provider, self.fetch, self.clock)


@pytest.fixture
def network() -> Network:
    return Network()


@pytest.fixture
def keys(network: Network) -> ProviderKeys:
    """Keys that have been fetched once: `old`."""
    keys = network.keys()
    keys.prefetch()
    network.answer(DISCOVERY, key_set("old"))
    network.urls.clear()
    return keys


def find_later(keys: ProviderKeys, key_id: str | None = "old") -> Deferred[PublicKey | None]:
    """Find a key that has to be fetched."""
    found = keys.find(key_id, "ES256")
    assert isinstance(found, Deferred)
    return found


def result_of(waiting: Deferred[PublicKey | None]) -> PublicKey | None:
    results: list[PublicKey | None] = []
    waiting.addCallback(results.append)
    assert len(results) == 1
    return results[0]


def failed(waiting: Deferred[Any]) -> bool:
    failures: list[Failure] = []
    waiting.addErrback(failures.append)
    return bool(failures and failures[0].check(ProviderUnavailable))


def test_the_first_token_starts_a_fetch_by_the_discovery_document(
    network: Network,
) -> None:
    waiting = find_later(network.keys())
    network.answer(DISCOVERY)
    assert not waiting.called
    network.answer(key_set("old"))
    key = result_of(waiting)
    assert key is not None
    assert key.key_id == "old"
    assert network.urls == [f"{ISSUER}/.well-known/openid-configuration", KEYS_URI]


@pytest.mark.parametrize("issuer", ["https://a.example/tenant", "https://a.example/tenant/"])
def test_the_discovery_document_is_below_the_issuer(network: Network, issuer: str) -> None:
    network.keys(Provider(issuer, "shop")).prefetch()
    assert network.urls == ["https://a.example/tenant/.well-known/openid-configuration"]


def test_with_a_configured_jwks_uri_there_is_no_discovery(network: Network) -> None:
    waiting = find_later(network.keys(Provider(ISSUER, "shop", KEYS_URI)))
    network.answer(key_set("old"))
    assert result_of(waiting) is not None
    assert network.urls == [KEYS_URI]


def test_all_tokens_wait_for_the_same_fetch(network: Network) -> None:
    keys = network.keys()
    keys.prefetch()
    first, second, other = find_later(keys), find_later(keys), find_later(keys, "other")
    network.answer(DISCOVERY, key_set("old"))
    assert len(network.urls) == 2
    assert result_of(first) is result_of(second) is not None
    assert result_of(other) is None


@pytest.mark.parametrize("fails", [False, True])
def test_many_tokens_that_wait_go_on_in_turns_in_their_order(network: Network, fails: bool) -> None:
    network.clock = clock = TurnClock()
    keys = network.keys(Provider(ISSUER, "shop", KEYS_URI))
    went_on: list[int] = []

    def go_on(_: object, number: int) -> None:
        went_on.append(number)

    for number in range(100):
        find_later(keys).addBoth(go_on, number)
    network.fail() if fails else network.answer(key_set("old"))
    turns = [len(went_on)]
    while len(went_on) < 100:
        clock.take_turn()
        turns.append(len(went_on))
    assert turns == [16, 32, 48, 64, 80, 96, 100]
    assert went_on == list(range(100))


def test_a_cancelled_wait_does_not_cancel_the_fetch(network: Network) -> None:
    keys = network.keys()
    leaving, staying = find_later(keys), find_later(keys)
    leaving.addErrback(lambda _: None)
    leaving.cancel()
    network.answer(DISCOVERY, key_set("old"))
    assert result_of(staying) is not None


def test_a_known_key_is_found_at_once(network: Network, keys: ProviderKeys) -> None:
    assert isinstance(keys.find("old", "ES256"), PublicKey)
    assert isinstance(keys.find(None, "ES256"), PublicKey)
    assert not network.urls


def test_an_unknown_kid_starts_a_fetch(network: Network, keys: ProviderKeys) -> None:
    generation = keys.check_generation()
    waiting = find_later(keys, "new")
    network.answer(DISCOVERY, key_set("old", "new"))
    assert result_of(waiting) is not None
    assert keys.check_generation() != generation


def test_unknown_kids_start_at_most_one_fetch_in_30_seconds(
    network: Network, keys: ProviderKeys
) -> None:
    waiting = [find_later(keys, "forged"), find_later(keys, "forged too")]
    network.answer(DISCOVERY, key_set("old"))
    assert [result_of(each) for each in waiting] == [None, None]
    network.clock.advance(29.9)
    assert keys.find("forged", "ES256") is None
    assert len(network.urls) == 2
    network.clock.advance(0.2)
    find_later(keys, "forged")
    assert len(network.urls) == 3


def test_a_known_kid_with_another_algorithm_starts_no_fetch(
    network: Network, keys: ProviderKeys
) -> None:
    assert keys.find("old", "RS256") is None
    assert not network.urls
    waiting = find_later(keys, "new")
    assert keys.find("old", "RS256") is None
    network.answer(DISCOVERY, key_set("old", "new"))
    assert result_of(waiting) is not None


def test_known_keys_are_found_while_an_unknown_one_is_fetched(
    network: Network, keys: ProviderKeys
) -> None:
    find_later(keys, "new").addErrback(lambda _: None)
    assert isinstance(keys.find("old", "ES256"), PublicKey)
    network.fail()
    assert isinstance(keys.find("old", "ES256"), PublicKey)


def test_an_unknown_kid_is_unavailable_while_the_provider_is_unreachable(
    network: Network, keys: ProviderKeys
) -> None:
    waiting = find_later(keys, "new")
    network.fail()
    assert failed(waiting)
    with pytest.raises(ProviderUnavailable):
        keys.find("new", "ES256")
    assert len(network.urls) == 1


def test_without_a_kid_several_candidates_start_no_fetch(
    network: Network, keys: ProviderKeys
) -> None:
    find_later(keys, "new")
    network.answer(DISCOVERY, key_set("old", "new"))
    network.urls.clear()
    assert keys.find(None, "ES256") is None
    assert not network.urls


def test_a_withdrawn_key_is_gone_at_the_next_fetch(network: Network, keys: ProviderKeys) -> None:
    generation = keys.check_generation()
    network.clock.advance(providers.REFRESH_S)
    assert isinstance(keys.find("old", "ES256"), PublicKey)
    assert keys.check_generation() == generation
    network.answer(DISCOVERY, key_set("new"))
    assert keys.check_generation() != generation
    waiting = find_later(keys, "old")
    network.answer(DISCOVERY, key_set("new"))
    assert result_of(waiting) is None


def test_a_fetch_of_the_same_keys_changes_nothing(network: Network, keys: ProviderKeys) -> None:
    generation = keys.check_generation()
    network.clock.advance(providers.REFRESH_S)
    keys.check_generation()
    network.answer(DISCOVERY, key_set("old"))
    assert keys.check_generation() == generation
    assert len(network.urls) == 2


def test_unused_keys_are_not_fetched_again(network: Network, keys: ProviderKeys) -> None:
    network.clock.advance(10 * providers.REFRESH_S)
    assert not network.urls
    assert not network.clock.getDelayedCalls()


def test_after_a_long_pause_the_first_token_waits_for_a_fetch(
    network: Network, keys: ProviderKeys
) -> None:
    network.clock.advance(2 * providers.REFRESH_S)
    waiting = find_later(keys, "old")
    network.answer(DISCOVERY, key_set("new"))
    assert result_of(waiting) is None


def test_after_a_long_pause_the_old_keys_are_used_if_the_provider_is_unreachable(
    network: Network, keys: ProviderKeys
) -> None:
    network.clock.advance(2 * providers.REFRESH_S)
    known, unknown = find_later(keys, "old"), find_later(keys, "new")
    network.fail()
    assert result_of(known) is not None
    assert failed(unknown)
    assert isinstance(keys.find("old", "ES256"), PublicKey)


def test_keys_are_used_for_a_day_if_refreshes_fail(network: Network, keys: ProviderKeys) -> None:
    generation = keys.check_generation()
    remaining = providers.KEEP_S
    while remaining > providers.REFRESH_S:
        network.clock.advance(providers.REFRESH_S)
        remaining -= providers.REFRESH_S
        assert isinstance(keys.find("old", "ES256"), PublicKey)
        network.fail()
    assert keys.check_generation() == generation
    network.clock.advance(remaining)
    waiting = find_later(keys, "old")
    assert keys.check_generation() != generation
    network.fail()
    assert failed(waiting)


def test_a_failed_refresh_is_retried_after_30_seconds(network: Network, keys: ProviderKeys) -> None:
    network.clock.advance(providers.REFRESH_S)
    keys.check_generation()
    network.fail()
    network.clock.advance(providers.SEARCH_S - 1)
    keys.check_generation()
    assert len(network.urls) == 1
    network.clock.advance(1)
    keys.check_generation()
    assert len(network.urls) == 2


def test_an_unreachable_provider_fails_waiting_tokens_and_is_soon_retried(
    network: Network,
) -> None:
    keys = network.keys()
    waiting = find_later(keys)
    network.fail()
    assert failed(waiting)
    with pytest.raises(ProviderUnavailable):
        keys.find("old", "ES256")
    assert len(network.urls) == 1
    network.clock.advance(providers.RETRY_S)
    again = find_later(keys)
    network.answer(DISCOVERY, key_set("old"))
    assert result_of(again) is not None


def test_a_hanging_provider_fails_waiting_tokens_after_a_timeout(network: Network) -> None:
    waiting = find_later(network.keys())
    network.clock.advance(providers.FETCH_S - 0.1)
    assert not waiting.called
    network.clock.advance(0.1)
    assert failed(waiting)


def test_one_timeout_covers_both_documents(network: Network) -> None:
    waiting = find_later(network.keys())
    network.clock.advance(providers.FETCH_S - 1)
    network.answer(DISCOVERY)
    network.clock.advance(1)
    assert failed(waiting)


@pytest.mark.parametrize(
    "bodies",
    [
        [b"<html>"],
        [b"[]"],
        [b'{"issuer":"https://accounts.example.com"}'],
        [json.dumps({"issuer": ISSUER, "jwks_uri": "http://keys.example.com/jwks"}).encode()],
        [json.dumps({"issuer": ISSUER, "jwks_uri": "file:///etc/passwd"}).encode()],
        [json.dumps({"issuer": ISSUER, "jwks_uri": ["https://a.example"]}).encode()],
        [json.dumps({"issuer": ISSUER + "/", "jwks_uri": KEYS_URI}).encode()],
        [json.dumps({"issuer": "https://evil.example", "jwks_uri": KEYS_URI}).encode()],
        [json.dumps({"jwks_uri": KEYS_URI}).encode()],
        [DISCOVERY, b"<html>"],
        [DISCOVERY, b'{"keys":7}'],
    ],
)
def test_invalid_documents_leave_the_provider_unavailable(
    network: Network, bodies: list[bytes]
) -> None:
    waiting = find_later(network.keys())
    network.answer(*bodies)
    assert failed(waiting)


def test_a_provider_without_keys_verifies_no_token(network: Network) -> None:
    waiting = find_later(network.keys())
    network.answer(DISCOVERY, NO_KEYS)
    assert result_of(waiting) is None


def test_closing_keys_cancels_the_fetch_and_fails_waiting_tokens(network: Network) -> None:
    keys = network.keys()
    waiting = find_later(keys)
    keys.close()
    assert failed(waiting)
    assert not network.clock.getDelayedCalls()
    network.clock.advance(providers.RETRY_S)
    keys.prefetch()
    with pytest.raises(ProviderUnavailable):
        keys.find("old", "ES256")
    assert len(network.urls) == 1


def test_closed_keys_are_not_fetched_in_the_background(
    network: Network, keys: ProviderKeys
) -> None:
    keys.close()
    network.clock.advance(providers.REFRESH_S)
    keys.check_generation()
    assert not network.urls


@pytest.mark.parametrize(
    ("bodies", "reason"),
    [
        ([], "ConnectError"),
        ([b"<html>"], "its discovery document is not a JSON object"),
        ([DISCOVERY, b"<html>"], "its key set is not a JWK set"),
    ],
)
def test_the_log_says_whose_keys_could_not_be_fetched_and_why(
    network: Network, bodies: list[bytes], reason: str
) -> None:
    with capturedLogs() as events:
        waiting = find_later(network.keys())
        network.answer(*bodies)
        if not bodies:
            network.fail()
    assert failed(waiting)
    (event,) = events
    text = formatEvent(event)
    assert text.startswith(f"The keys of the provider {ISSUER} could not be fetched: ")
    assert reason in text


@pytest.mark.parametrize(
    ("issuer", "audience", "jwks_uri", "field"),
    [
        ("http://accounts.example.com", "shop", None, "issuer"),
        ("accounts.example.com", "shop", None, "issuer"),
        ("https://", "shop", None, "issuer"),
        ("https://:443", "shop", None, "issuer"),
        ("https://a.example:99999", "shop", None, "issuer"),
        ("https://a.example?tenant=1", "shop", None, "issuer"),
        ("https://a.example#x", "shop", None, "issuer"),
        ("https://user:pass@a.example", "shop", None, "issuer"),
        ("https://a.example/a b", "shop", None, "issuer"),
        ("https://é.example", "shop", None, "issuer"),
        ("https://a.example", "", None, "audience"),
        ("https://a.example", "shop", "http://a.example/keys", "jwks_uri"),
        ("https://a.example", "shop", "/keys", "jwks_uri"),
    ],
)
def test_invalid_settings_are_refused(
    issuer: str, audience: str, jwks_uri: str | None, field: str
) -> None:
    with pytest.raises(InvalidProvider, match=field):
        Provider(issuer, audience, jwks_uri)


def test_a_jwks_uri_may_have_a_query() -> None:
    assert Provider("https://a.example", "shop", "https://a.example/keys?p=1").jwks_uri is not None


def test_a_provider_is_called_by_its_name_or_the_host_of_its_issuer() -> None:
    provider = Provider("https://Accounts.example.com:8443/realm", "shop")
    assert provider.sign_in_provider == "accounts.example.com"
    assert attrs.evolve(provider, name="accounts").sign_in_provider == "accounts"
