"""The resources of admins in the `Site` of a host program, and providers that are slow.

`tests/test_rules_settings.py` tests their responses over HTTP.
"""

from __future__ import annotations

import gzip
import json
import os
import pathlib
from typing import Any

import pytest
import pytest_twisted
from treq.testing import StubTreq
from twisted.internet import reactor as installed_reactor
from twisted.internet.defer import Deferred
from twisted.internet.task import deferLater

from tests.access import admin, secret_of
from tests.database.test_rules_work import LARGE
from tests.database.world import Disk, TurnClock
from tests.oidc import AUDIENCE, KEYS, OidcProvider
from tests.web.tree_server import LISTEN
from treedbd.config.settings import Settings
from treedbd.database.catalog import Catalog
from treedbd.database.requests import ProjectSpec
from treedbd.database.runtime import Runtime
from treedbd.database.slices import SLICE_SECONDS
from treedbd.limits import WAITING_DRAFTS, Limits
from treedbd.rules.ruleset import DENY
from treedbd.web.auth.fetch import FetchFailed
from treedbd.web.auth.jwt import BadToken
from treedbd.web.auth.providers import Provider, ProviderKeys
from treedbd.web.auth.verifier import Authenticator, Verifier
from treedbd.web.context import make_context
from treedbd.web.request import FIREBASE
from treedbd.web.resource import TreeResource

reactor: Any = installed_reactor
RULES = "http://shop.localhost/.settings/rules.json"
TRIAL = "http://shop.localhost/.settings/rules/trial.json"
DATABASES = "http://shop.localhost/.inspect/databases.json"
NOW = 1_700_000_000.0


class AdminSite:
    """The interface in a stock `Site`; one provider, whose keys arrive when the test says so."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.clock = TurnClock()
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
        context = make_context(
            settings=Settings(listen=LISTEN, domains=("localhost",)),
            authenticator=self.authenticator,
            clock=self.clock,
            wall_clock=lambda: NOW,
        )
        self.web: Any = StubTreq(TreeResource(context, self.catalog))

    def fetch(self, url: str) -> Deferred[bytes]:
        assert url.endswith(KEYS)
        self.fetches.append(Deferred())
        return self.fetches[-1]

    def request(
        self, method: str, url: str, token: str, body: bytes | None = None, **headers: str
    ) -> list[Any]:
        """Send a request; return a list that gets the status and the body once they arrive."""
        responses: list[Any] = []
        sent = {name.replace("_", "-"): [value] for name, value in headers.items()}
        arriving = self.web.request(method, url, params={"auth": token}, data=body, headers=sent)
        arriving.addCallback(
            lambda response: self.web.content(response).addCallback(
                lambda content: responses.append((response.code, content))
            )
        )
        self.web.flush()
        self.arriving = arriving
        return responses

    def run(self) -> None:
        """Work until nothing is left to do."""
        while self.clock.calls or self.disk.waiting:
            self.clock.take_turn()
            if self.disk.waiting:
                self.disk.finish()
            self.web.flush()

    async def receive(self, responses: list[Any]) -> Any:
        """Return a long response, which Twisted sends in turns of its own reactor."""
        self.run()
        while not responses:
            await deferLater(reactor, 0)
            self.web.flush()
        (response,) = responses
        return response


@pytest.fixture
def world(tmp_path: pathlib.Path) -> AdminSite:
    return AdminSite(tmp_path)


def provider_token(world: AdminSite, **claims: Any) -> str:
    return world.provider.token(iat=int(NOW), exp=int(NOW) + 60, **claims)


def keys_of(world: AdminSite) -> bytes:
    return world.provider.answer(KEYS).body


def test_a_stock_site_serves_them(world: AdminSite) -> None:
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


def test_rules_may_be_compressed_within_the_limit_of_a_body(world: AdminSite) -> None:
    text = b'{"rules": {"a": {".read": true}}}'
    put = world.request("PUT", RULES, admin("shop"), gzip.compress(text), content_encoding="gzip")
    world.disk.finish()
    world.web.flush()
    assert put == [(200, b'{"status":"ok"}')]
    assert world.request("GET", RULES, admin("shop")) == [(200, text)]
    bomb = gzip.compress(bytes(Limits().write_body_bytes + 1))
    ((status, _),) = world.request("PUT", RULES, admin("shop"), bomb, content_encoding="gzip")
    assert status == 413


def test_a_put_of_rules_is_answered_once_they_are_stored(world: AdminSite) -> None:
    put = world.request("PUT", RULES, admin("shop"), b'{"rules": {}}')
    assert put == []
    world.disk.finish()
    world.web.flush()
    assert put == [(200, b'{"status":"ok"}')]


def test_a_request_with_a_token_of_a_provider_waits_for_its_keys(world: AdminSite) -> None:
    responses = world.request("GET", RULES, provider_token(world, admin=True))
    others = world.request("GET", RULES, admin("shop"))
    assert (responses, others) == ([], [(200, b'{"rules":{}}')])
    world.fetches[0].callback(keys_of(world))
    world.web.flush()
    ((status, body),) = responses
    assert status == 403
    assert b"permission_denied" in body


def test_an_unreachable_provider_is_a_503(world: AdminSite) -> None:
    responses = world.request("GET", DATABASES, provider_token(world))
    world.fetches[0].errback(FetchFailed("answered nothing"))
    world.web.flush()
    ((status, body),) = responses
    assert status == 503
    assert b"unavailable" in body


def test_a_token_for_a_project_without_a_verifier_is_an_error(world: AdminSite) -> None:
    with pytest.raises(BadToken, match="unknown issuer"):
        world.authenticator.identify("other", admin("shop"), None, 30.0).send(None)


# Large documents.


@pytest.fixture
def busy(world: AdminSite) -> AdminSite:
    """A world whose clock advances with the work that is done."""
    world.clock.lag = SLICE_SECONDS / 4
    return world


@pytest.mark.parametrize("query", ["", "?dryRun=true"])
@pytest_twisted.ensureDeferred
async def test_others_are_answered_while_large_rules_are_checked(
    busy: AdminSite, query: str
) -> None:
    put = busy.request("PUT", RULES + query, admin("shop"), LARGE)
    for _ in range(10):
        busy.clock.take_turn()
        assert busy.request("GET", RULES, admin("shop")) == [(200, b'{"rules":{}}')]
    assert put == []
    busy.run()
    assert put == [(200, b'{"status":"ok"}')]
    read = await busy.receive(busy.request("GET", RULES, admin("shop")))
    assert read == (200, b'{"rules":{}}' if query else LARGE)


@pytest.mark.parametrize("query", ["", "&dryRun=true"])
def test_rules_that_are_checked_beyond_the_timeout_are_a_504(busy: AdminSite, query: str) -> None:
    put = busy.request("PUT", f"{RULES}?timeout=40ms{query}", admin("shop"), LARGE)
    others = busy.request("PUT", f"{RULES}?timeout=9ms{query}", admin("shop"), b'{"rules":{}}')
    busy.run()
    for responses in (put, others):
        ((status, body),) = responses
        assert status == 504
        assert json.loads(body) == {
            "error": "timeout",
            "message": "The request timed out before the rules were checked and stored.",
        }
    assert busy.request("GET", RULES, admin("shop")) == [(200, b'{"rules":{}}')]


@pytest.mark.parametrize("query", ["", "?dryRun=true"])
def test_the_check_of_rules_ends_when_the_client_disconnects(busy: AdminSite, query: str) -> None:
    responses = busy.request("PUT", RULES + query, admin("shop"), LARGE)
    assert busy.clock.calls
    busy.arriving.addErrback(lambda _: None).cancel()
    busy.web.flush()
    assert not busy.clock.calls
    busy.run()
    assert responses == []
    assert busy.request("GET", RULES, admin("shop")) == [(200, b'{"rules":{}}')]


def test_rules_are_put_before_those_of_dry_runs_and_trials(busy: AdminSite) -> None:
    trial = json.dumps({"method": "GET", "path": "/a", "rules": LARGE.decode()}).encode()
    checks = [
        busy.request("PUT", f"{RULES}?dryRun=true", admin("shop"), LARGE),
        busy.request("POST", TRIAL, admin("shop"), trial),
    ]
    put = busy.request("PUT", RULES, admin("shop"), b'{"rules":{"a":{}}}')
    while not put:
        busy.clock.take_turn()
        if busy.disk.waiting:
            busy.disk.finish()
        busy.web.flush()
    assert (put, checks) == ([(200, b'{"status":"ok"}')], [[], []])
    busy.run()
    assert [responses[0][0] for responses in checks] == [200, 200]


def test_more_dry_runs_than_wait_are_a_429_and_a_put_is_not(busy: AdminSite) -> None:
    checks = [
        busy.request("PUT", f"{RULES}?dryRun=true", admin("shop"), LARGE)
        for _ in range(1 + WAITING_DRAFTS)
    ]
    ((status, body),) = busy.request("PUT", f"{RULES}?dryRun=true", admin("shop"), b"{}")
    assert status == 429
    assert json.loads(body) == {
        "error": "too_many_requests",
        "message": "4 rules documents of this project wait to be checked already: try again when "
        "one of them has been.",
    }
    put = busy.request("PUT", RULES, admin("shop"), b'{"rules":{"a":{}}}')
    busy.run()
    assert [responses[0][0] for responses in (*checks, put)] == [200] * (2 + WAITING_DRAFTS)


@pytest_twisted.ensureDeferred
async def test_large_rules_are_read_as_plain_json_in_slices(busy: AdminSite) -> None:
    put = busy.request("PUT", RULES, admin("shop"), b"// All of them.\n" + LARGE)
    busy.run()
    assert put
    strict = busy.request("GET", f"{RULES}?format=strict", admin("shop"))
    assert strict == []
    status, body = await busy.receive(strict)
    assert (status, json.loads(body)) == (200, json.loads(LARGE))


# What is shown beside an error or an ok.

MISSPELT = b'{"rules": {".raed": "true"}}'
ANCHORED = b'{"rules": {".read": "auth.uid.matches(/^a|b$/)"}}'


def test_a_hint_is_a_member_of_its_own_and_none_for_clients_of_firebase(world: AdminSite) -> None:
    ((status, body),) = world.request("PUT", RULES, admin("shop"), MISSPELT)
    assert status == 400
    assert json.loads(body) == {
        "error": "invalid_data",
        "message": "1:21: Expected '{'.",
        "hint": "Did you mean '.read'?",
        "errors": [
            {
                "line": 1,
                "column": 21,
                "message": "Expected '{'.",
                "hint": "Did you mean '.read'?",
            }
        ],
    }
    without = world.request("PUT", RULES, admin("shop"), b'{"rules": {".foo": "true"}}')
    assert list(json.loads(without[0][1])) == ["error", "message", "errors"]
    assert FIREBASE.error_body("invalid_data", "1:21: Expected '{'.\n", "Did you mean?") == (
        b'{\n  "error" : "1:21: Expected \'{\'.\\n"\n}\n'
    )


@pytest.mark.parametrize("query", ["", "?dryRun=true"])
def test_warnings_about_rules_are_a_member_of_the_response(world: AdminSite, query: str) -> None:
    put = world.request("PUT", RULES + query, admin("shop"), ANCHORED)
    world.run()
    ((status, body),) = put
    assert status == 200
    answer = json.loads(body)
    assert answer["status"] == "ok"
    (warning,) = answer["warnings"]
    assert warning.startswith("1:42: ^ and $ bind the whole pattern")
