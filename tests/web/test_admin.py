"""The resources of admins in the `Site` of a host program, and providers that are slow.

`tests/test_rules_settings.py` tests their responses over HTTP.
"""

from __future__ import annotations

import os
import pathlib
from typing import Any

import pytest
from treq.testing import StubTreq
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock

from tests.access import admin, secret_of
from tests.database.world import Disk
from tests.oidc import AUDIENCE, KEYS, OidcProvider
from treedbd.database.catalog import Catalog
from treedbd.database.database import ProjectSpec
from treedbd.database.runtime import Runtime
from treedbd.rules.ruleset import DENY
from treedbd.web.auth.authenticator import Authenticator
from treedbd.web.auth.fetch import FetchFailed
from treedbd.web.auth.jwt import BadToken
from treedbd.web.auth.providers import Provider, ProviderKeys
from treedbd.web.auth.verifier import Verifier
from treedbd.web.options import WebOptions
from treedbd.web.resource import TreeResource

RULES = "http://shop.localhost/.settings/rules.json"
DATABASES = "http://shop.localhost/.inspect/databases.json"
NOW = 1_700_000_000.0


class World:
    """The interface in a stock `Site`; one provider, whose keys arrive when the test says so."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.clock = Clock()
        self.disk = Disk()
        self.fetches: list[Deferred[bytes]] = []
        self.provider = OidcProvider()  # not started: it only signs
        self.provider.port = 1
        verifier = Verifier(
            [secret_of("shop").encode()],
            [Provider(self.provider.issuer, AUDIENCE, self.provider.keys_uri)],
            open_keys=lambda each: ProviderKeys(each, self.fetch, self.clock),
        )
        self.catalog = Catalog(
            folder,
            "sqlite",
            {"shop": ProjectSpec("shop", dialect="standard")},
            any_project=False,
            first_rules=DENY,
            runtime=Runtime(self.clock, os.urandom, self.disk.run),
            retain_events=1,
        )
        self.authenticator = Authenticator({"shop": verifier}.get, self.clock, lambda: NOW)
        resource = TreeResource(
            catalog=self.catalog,
            options=WebOptions(domains=("localhost",)),
            authenticator=self.authenticator,
            clock=self.clock,
            wall_clock=lambda: NOW,
        )
        self.web: Any = StubTreq(resource)

    def fetch(self, url: str) -> Deferred[bytes]:
        assert url.endswith(KEYS)
        self.fetches.append(Deferred())
        return self.fetches[-1]

    def request(self, method: str, url: str, token: str, body: bytes | None = None) -> list[Any]:
        """Send a request; return a list that gets the status and the body once they arrive."""
        responses: list[Any] = []
        arriving = self.web.request(method, url, params={"auth": token}, data=body)
        arriving.addCallback(
            lambda response: self.web.content(response).addCallback(
                lambda content: responses.append((response.code, content))
            )
        )
        self.web.flush()
        return responses


@pytest.fixture
def world(tmp_path: pathlib.Path) -> World:
    return World(tmp_path)


def provider_token(world: World, **claims: Any) -> str:
    return world.provider.token(iat=int(NOW), exp=int(NOW) + 60, **claims)


def keys_of(world: World) -> bytes:
    return world.provider.answer(KEYS).body


def test_a_stock_site_serves_them(world: World) -> None:
    text = b'{"rules": {"a": {".read": true}}}'
    put = world.request("PUT", RULES, admin("shop"), text)
    world.disk.finish()
    world.web.flush()
    assert put == [(200, b'{"status":"ok"}')]
    assert world.request("GET", RULES, admin("shop")) == [(200, text)]
    assert world.request("GET", DATABASES, admin("shop")) == [(200, b'[{"name":"shop"}]')]
    assert world.request("HEAD", RULES, admin("shop")) == [(200, b"")]
    assert [response[0] for response in world.request("GET", RULES, "")] == [401]
    assert [response[0] for response in world.request("DELETE", RULES, admin("shop"))] == [405]


def test_a_put_of_rules_is_answered_once_they_are_stored(world: World) -> None:
    put = world.request("PUT", RULES, admin("shop"), b'{"rules": {}}')
    assert put == []
    world.disk.finish()
    world.web.flush()
    assert put == [(200, b'{"status":"ok"}')]


def test_a_request_with_a_token_of_a_provider_waits_for_its_keys(world: World) -> None:
    responses = world.request("GET", RULES, provider_token(world, admin=True))
    others = world.request("GET", RULES, admin("shop"))
    assert (responses, others) == ([], [(200, b'{"rules":{}}')])
    world.fetches[0].callback(keys_of(world))
    world.web.flush()
    ((status, body),) = responses
    assert status == 403
    assert b"permission_denied" in body


def test_an_unreachable_provider_is_a_503(world: World) -> None:
    responses = world.request("GET", DATABASES, provider_token(world))
    world.fetches[0].errback(FetchFailed("answered nothing"))
    world.web.flush()
    ((status, body),) = responses
    assert status == 503
    assert b"unavailable" in body


def test_a_token_for_a_project_without_a_verifier_is_an_error(world: World) -> None:
    with pytest.raises(BadToken, match="unknown issuer"):
        world.authenticator.identify("other", admin("shop"), None, 30.0).send(None)
