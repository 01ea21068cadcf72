"""The places of administrators inside a host program: a stock site, and providers that take time.

What they answer in every case is told over HTTP by `tests/test_rules_settings.py`.
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
from treedbd.database.catalog import Catalog, ProjectSpec
from treedbd.database.platform import Platform
from treedbd.rules.ruleset import DENY
from treedbd.web.identity.fetch import FetchFailed
from treedbd.web.identity.gate import Gate
from treedbd.web.identity.providers import Provider, ProviderKeys
from treedbd.web.identity.tokens import BadToken
from treedbd.web.identity.verifier import Verifier
from treedbd.web.options import WebOptions
from treedbd.web.resource import TreeResource
from treedbd.web.streams import StreamLimits

RULES = "http://shop.localhost/.settings/rules.json"
DATABASES = "http://shop.localhost/.inspect/databases.json"
NOW = 1_700_000_000.0


class World:
    """The interface on a stock site; one provider, whose keys come when the test says so."""

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
            platform=Platform(self.clock, os.urandom, self.disk.run),
            retain_events=1,
        )
        self.gate = Gate({"shop": verifier}.get, lambda: NOW)
        resource = TreeResource(
            catalog=self.catalog,
            options=WebOptions(domains=("localhost",)),
            gate=self.gate,
            stream_limits=StreamLimits(),
            clock=self.clock,
            wall_clock=lambda: NOW,
        )
        self.web: Any = StubTreq(resource)

    def fetch(self, url: str) -> Deferred[bytes]:
        assert url.endswith(KEYS)
        self.fetches.append(Deferred())
        return self.fetches[-1]

    def ask(self, method: str, url: str, bearer: str, body: bytes | None = None) -> list[Any]:
        """Ask; return a list that holds the status and the body once they are there."""
        answers: list[Any] = []
        asked = self.web.request(method, url, params={"auth": bearer}, data=body)
        asked.addCallback(
            lambda answer: self.web.content(answer).addCallback(
                lambda content: answers.append((answer.code, content))
            )
        )
        self.web.flush()
        return answers


@pytest.fixture
def world(tmp_path: pathlib.Path) -> World:
    return World(tmp_path)


def provider_token(world: World, **claims: Any) -> str:
    return world.provider.token(iat=int(NOW), exp=int(NOW) + 60, **claims)


def keys_of(world: World) -> bytes:
    return world.provider.answer(KEYS).body


def test_a_stock_site_serves_them_too(world: World) -> None:
    text = b'{"rules": {"a": {".read": true}}}'
    put = world.ask("PUT", RULES, admin("shop"), text)
    world.disk.finish()
    world.web.flush()
    assert put == [(200, b'{"status":"ok"}')]
    assert world.ask("GET", RULES, admin("shop")) == [(200, text)]
    assert world.ask("GET", DATABASES, admin("shop")) == [(200, b'[{"name":"shop"}]')]
    assert world.ask("HEAD", RULES, admin("shop")) == [(200, b"")]
    assert [answer[0] for answer in world.ask("GET", RULES, "")] == [401]
    assert [answer[0] for answer in world.ask("DELETE", RULES, admin("shop"))] == [405]


def test_rules_are_answered_once_they_are_kept(world: World) -> None:
    put = world.ask("PUT", RULES, admin("shop"), b'{"rules": {}}')
    assert put == []
    world.disk.finish()
    world.web.flush()
    assert put == [(200, b'{"status":"ok"}')]


def test_whoever_has_a_providers_token_waits_for_its_keys(world: World) -> None:
    answers = world.ask("GET", RULES, provider_token(world, admin=True))
    others = world.ask("GET", RULES, admin("shop"))
    assert (answers, others) == ([], [(200, b'{"rules":{}}')])
    world.fetches[0].callback(keys_of(world))
    world.web.flush()
    ((status, body),) = answers
    assert status == 403
    assert b"permission_denied" in body


def test_a_provider_out_of_reach_is_said(world: World) -> None:
    answers = world.ask("GET", DATABASES, provider_token(world))
    world.fetches[0].errback(FetchFailed("answered nothing"))
    world.web.flush()
    ((status, body),) = answers
    assert status == 503
    assert b"unavailable" in body


def test_a_token_for_a_project_without_a_verifier_is_refused(world: World) -> None:
    with pytest.raises(BadToken, match="unknown issuer"):
        world.gate.identify("other", admin("shop"), None)
