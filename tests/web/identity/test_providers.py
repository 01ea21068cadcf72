"""When a provider's keys are fetched, how long they serve, and who has to wait for them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from twisted.internet.defer import Deferred
from twisted.internet.error import ConnectError
from twisted.internet.task import Clock
from twisted.logger import capturedLogs, formatEvent
from twisted.python.failure import Failure

from tests.oidc import private_key, public_jwk
from treedbd.web.identity import providers
from treedbd.web.identity.jwks import Key
from treedbd.web.identity.providers import (
    InvalidProvider,
    Provider,
    ProviderKeys,
    ProviderUnavailable,
)

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
    """What the other end of the fetches does: it answers when it is told to."""

    def __init__(self) -> None:
        self.clock = Clock()
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


def waits(keys: ProviderKeys, key_id: str | None = "old") -> Deferred[Key | None]:
    found = keys.find(key_id, "ES256")
    assert isinstance(found, Deferred)
    return found


def now_there(waiting: Deferred[Key | None]) -> Key | None:
    results: list[Key | None] = []
    waiting.addCallback(results.append)
    assert len(results) == 1
    return results[0]


def failed(waiting: Deferred[Any]) -> bool:
    failures: list[Failure] = []
    waiting.addErrback(failures.append)
    return bool(failures and failures[0].check(ProviderUnavailable))


def test_the_first_token_has_the_keys_fetched_where_discovery_says(network: Network) -> None:
    waiting = waits(network.keys())
    network.answer(DISCOVERY)
    assert not waiting.called
    network.answer(key_set("old"))
    key = now_there(waiting)
    assert key is not None
    assert key.key_id == "old"
    assert network.urls == [f"{ISSUER}/.well-known/openid-configuration", KEYS_URI]


@pytest.mark.parametrize("issuer", ["https://a.example/tenant", "https://a.example/tenant/"])
def test_discovery_stands_below_the_path_of_the_issuer(network: Network, issuer: str) -> None:
    network.keys(Provider(issuer, "shop")).prefetch()
    assert network.urls == ["https://a.example/tenant/.well-known/openid-configuration"]


def test_a_configured_place_of_keys_needs_no_discovery(network: Network) -> None:
    waiting = waits(network.keys(Provider(ISSUER, "shop", KEYS_URI)))
    network.answer(key_set("old"))
    assert now_there(waiting) is not None
    assert network.urls == [KEYS_URI]


def test_all_who_wait_wait_for_one_fetch(network: Network) -> None:
    keys = network.keys()
    keys.prefetch()
    first, second, other = waits(keys), waits(keys), waits(keys, "other")
    network.answer(DISCOVERY, key_set("old"))
    assert len(network.urls) == 2
    assert now_there(first) is now_there(second) is not None
    assert now_there(other) is None


def test_one_who_leaves_does_not_take_the_keys_from_the_others(network: Network) -> None:
    keys = network.keys()
    leaving, staying = waits(keys), waits(keys)
    leaving.addErrback(lambda _: None)
    leaving.cancel()
    network.answer(DISCOVERY, key_set("old"))
    assert now_there(staying) is not None


def test_a_key_that_is_known_is_found_at_once(network: Network, keys: ProviderKeys) -> None:
    assert isinstance(keys.find("old", "ES256"), Key)
    assert isinstance(keys.find(None, "ES256"), Key)
    assert not network.urls


def test_an_unknown_kid_has_the_keys_fetched_again(network: Network, keys: ProviderKeys) -> None:
    generation = keys.generation()
    waiting = waits(keys, "new")
    network.answer(DISCOVERY, key_set("old", "new"))
    assert now_there(waiting) is not None
    assert keys.generation() != generation


def test_unknown_kids_have_them_fetched_once_in_30_seconds(
    network: Network, keys: ProviderKeys
) -> None:
    waiting = [waits(keys, "forged"), waits(keys, "forged too")]
    network.answer(DISCOVERY, key_set("old"))
    assert [now_there(each) for each in waiting] == [None, None]
    network.clock.advance(29.9)
    assert keys.find("forged", "ES256") is None
    assert len(network.urls) == 2
    network.clock.advance(0.2)
    waits(keys, "forged")
    assert len(network.urls) == 3


def test_a_known_kid_with_another_algorithm_starts_no_search(
    network: Network, keys: ProviderKeys
) -> None:
    assert keys.find("old", "RS256") is None
    assert not network.urls
    waiting = waits(keys, "new")
    assert keys.find("old", "RS256") is None
    network.answer(DISCOVERY, key_set("old", "new"))
    assert now_there(waiting) is not None


def test_keys_known_meanwhile_are_found_while_an_unknown_one_is_looked_for(
    network: Network, keys: ProviderKeys
) -> None:
    waits(keys, "new").addErrback(lambda _: None)
    assert isinstance(keys.find("old", "ES256"), Key)
    network.fail()
    assert isinstance(keys.find("old", "ES256"), Key)


def test_an_unknown_kid_is_out_of_reach_while_the_provider_is(
    network: Network, keys: ProviderKeys
) -> None:
    waiting = waits(keys, "new")
    network.fail()
    assert failed(waiting)
    with pytest.raises(ProviderUnavailable):
        keys.find("new", "ES256")
    assert len(network.urls) == 1


def test_no_kid_where_several_keys_could_be_meant_causes_no_fetch(
    network: Network, keys: ProviderKeys
) -> None:
    waits(keys, "new")
    network.answer(DISCOVERY, key_set("old", "new"))
    network.urls.clear()
    assert keys.find(None, "ES256") is None
    assert not network.urls


def test_a_withdrawn_key_is_gone_at_the_next_fetch(network: Network, keys: ProviderKeys) -> None:
    generation = keys.generation()
    network.clock.advance(providers.REFRESH_S)
    assert isinstance(keys.find("old", "ES256"), Key)
    assert keys.generation() == generation
    network.answer(DISCOVERY, key_set("new"))
    assert keys.generation() != generation
    waiting = waits(keys, "old")
    network.answer(DISCOVERY, key_set("new"))
    assert now_there(waiting) is None


def test_a_fetch_that_finds_the_same_keys_changes_nothing(
    network: Network, keys: ProviderKeys
) -> None:
    generation = keys.generation()
    network.clock.advance(providers.REFRESH_S)
    keys.generation()
    network.answer(DISCOVERY, key_set("old"))
    assert keys.generation() == generation
    assert len(network.urls) == 2


def test_keys_that_nobody_uses_are_not_fetched_again(network: Network, keys: ProviderKeys) -> None:
    network.clock.advance(10 * providers.REFRESH_S)
    assert not network.urls
    assert not network.clock.getDelayedCalls()


def test_after_a_long_pause_the_first_token_waits_for_the_keys_of_now(
    network: Network, keys: ProviderKeys
) -> None:
    network.clock.advance(2 * providers.REFRESH_S)
    waiting = waits(keys, "old")
    network.answer(DISCOVERY, key_set("new"))
    assert now_there(waiting) is None


def test_after_a_long_pause_the_old_keys_serve_if_the_provider_is_out_of_reach(
    network: Network, keys: ProviderKeys
) -> None:
    network.clock.advance(2 * providers.REFRESH_S)
    known, unknown = waits(keys, "old"), waits(keys, "new")
    network.fail()
    assert now_there(known) is not None
    assert failed(unknown)
    assert isinstance(keys.find("old", "ES256"), Key)


def test_keys_outlive_their_provider_for_a_day(network: Network, keys: ProviderKeys) -> None:
    generation = keys.generation()
    left = providers.KEEP_S
    while left > providers.REFRESH_S:
        network.clock.advance(providers.REFRESH_S)
        left -= providers.REFRESH_S
        assert isinstance(keys.find("old", "ES256"), Key)
        network.fail()
    assert keys.generation() == generation
    network.clock.advance(left)
    waiting = waits(keys, "old")
    assert keys.generation() != generation
    network.fail()
    assert failed(waiting)


def test_in_the_background_a_failure_is_tried_again_after_30_seconds(
    network: Network, keys: ProviderKeys
) -> None:
    network.clock.advance(providers.REFRESH_S)
    keys.generation()
    network.fail()
    network.clock.advance(providers.SEARCH_S - 1)
    keys.generation()
    assert len(network.urls) == 1
    network.clock.advance(1)
    keys.generation()
    assert len(network.urls) == 2


def test_a_provider_out_of_reach_fails_who_waits_and_is_tried_again_soon(network: Network) -> None:
    keys = network.keys()
    waiting = waits(keys)
    network.fail()
    assert failed(waiting)
    with pytest.raises(ProviderUnavailable):
        keys.find("old", "ES256")
    assert len(network.urls) == 1
    network.clock.advance(providers.RETRY_S)
    again = waits(keys)
    network.answer(DISCOVERY, key_set("old"))
    assert now_there(again) is not None


def test_a_provider_that_hangs_fails_who_waits_after_a_while(network: Network) -> None:
    waiting = waits(network.keys())
    network.clock.advance(providers.FETCH_S - 0.1)
    assert not waiting.called
    network.clock.advance(0.1)
    assert failed(waiting)


def test_the_time_for_both_documents_is_one(network: Network) -> None:
    waiting = waits(network.keys())
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
def test_documents_that_do_not_fit_leave_the_provider_out_of_reach(
    network: Network, bodies: list[bytes]
) -> None:
    waiting = waits(network.keys())
    network.answer(*bodies)
    assert failed(waiting)


def test_a_provider_without_keys_knows_no_token(network: Network) -> None:
    waiting = waits(network.keys())
    network.answer(DISCOVERY, NO_KEYS)
    assert now_there(waiting) is None


def test_closed_keys_end_the_fetch_and_tell_who_waits(network: Network) -> None:
    keys = network.keys()
    waiting = waits(keys)
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
    keys.generation()
    assert not network.urls


@pytest.mark.parametrize(
    ("bodies", "why"),
    [
        ([], "ConnectError"),
        ([b"<html>"], "its discovery document is no JSON object"),
        ([DISCOVERY, b"<html>"], "it is no JWK set"),
    ],
)
def test_the_log_says_whose_keys_could_not_be_had_and_why(
    network: Network, bodies: list[bytes], why: str
) -> None:
    with capturedLogs() as events:
        waiting = waits(network.keys())
        network.answer(*bodies)
        if not bodies:
            network.fail()
    assert failed(waiting)
    (event,) = events
    text = formatEvent(event)
    assert text.startswith(f"The keys of the provider {ISSUER} could not be fetched: ")
    assert why in text


@pytest.mark.parametrize(
    ("issuer", "audience", "jwks_uri", "why"),
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
def test_settings_that_cannot_be_are_refused(
    issuer: str, audience: str, jwks_uri: str | None, why: str
) -> None:
    with pytest.raises(InvalidProvider, match=why):
        Provider(issuer, audience, jwks_uri)


def test_the_place_of_keys_may_have_a_query() -> None:
    assert Provider("https://a.example", "shop", "https://a.example/keys?p=1").jwks_uri is not None
