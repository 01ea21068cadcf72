"""The dispatch of requests agrees with the declaration of the routes on the Klein application."""

from __future__ import annotations

import os
import pathlib
from typing import Any
from urllib.parse import unquote

import pytest
from twisted.internet.defer import execute

from tests.http1.peer import ScriptedResource, Server
from tests.web.tree_server import TreeServer
from treedbd.config.settings import Settings
from treedbd.database.catalog import Catalog
from treedbd.database.runtime import Runtime
from treedbd.http1.request import IHttp1Request
from treedbd.http1.server import Http1Factory
from treedbd.limits import Limits
from treedbd.rules.ruleset import OPEN
from treedbd.web.auth.verifier import Authenticator
from treedbd.web.context import make_context
from treedbd.web.pages import DOCUMENT_FILE_PATHS, DOCUMENT_PATHS
from treedbd.web.resource import RESERVED, TreeResource, split_segments

ROUTES = {rule.endpoint: rule for rule in TreeResource.app.url_map.iter_rules()}
RESERVED_PATHS = [
    "/",
    "/favicon.ico",
    *DOCUMENT_PATHS,
    *DOCUMENT_FILE_PATHS,
    "/.console",
    "/.health",
    "/.openapi.json",
    "/.settings/rules.json",
    "/.settings/rules/trial.json",
    "/.settings/rules/versions.json",
    "/.settings/audit.json",
    "/.settings/log.json",
    "/.settings/compact.json",
    "/.settings/backup.json",
    "/.settings/database.json",
    "/.settings/cursors.json",
    "/.settings/events.json",
    "/.settings/webhooks.json",
    "/.settings/profile.json",
    "/.settings/webhooks/dead.json",
    "/.settings/webhooks/test.json",
    "/.settings/functionTriggers.json",
    "/.settings/tokens.json",
    "/.standby/base",
    "/.standby/promote.json",
    "/.standby/reached.json",
    "/.standby/state.json",
    "/.standby/stream.json",
    "/.standby/superseded.json",
    "/.standby/term.json",
    "/.inspect/caller.json",
    "/.inspect/databases.json",
    "/.inspect/activity.json",
    "/.inspect/connections.json",
    "/.inspect/requests.json",
    "/.inspect/projects.json",
    "/.inspect/backups.json",
    "/.ws",
    "/.lp",
]
POSTED = [
    "/.settings/webhooks/test.json",
    "/.settings/compact.json",
    "/.settings/rules/trial.json",
    "/.settings/backup.json",
    "/.settings/functionTriggers.json",
    "/.settings/tokens.json",
    "/.standby/promote.json",
    "/.standby/reached.json",
    "/.standby/stream.json",
    "/.standby/superseded.json",
]
TREE_PATHS = [
    "/.json",
    "/a.json",
    "/a/b/c.json",
    "/a",
    "/a/",
    "/.priority.json",
    "/a/.priority.json",
    "/.health.json",
    "/.healthy",
    "/health",
    "/a/.health",
    "/.settings",
    "/.settings.json",
    "/.settings/rules",
    "/.settings/rules.jso",
    "/.settings/rules.json/a.json",
    "/.settings/other.json",
    "/.inspect/rules.json",
    "/a/.settings/rules.json",
    "/.HEALTH",
    "/%2Ehealth.json",
    "/a%20b.json",
    "/%25.json",
    "/\u00fc.json",
]


class RecordingResource(TreeResource):
    """Records the route to which a request is dispatched, and answers with 200."""

    route = ""

    async def root(self, request: IHttp1Request) -> None:
        self._record("root", request)

    async def icon(self, request: IHttp1Request) -> None:
        self._record("icon", request)

    async def document(self, request: IHttp1Request) -> None:
        self._record("document", request)

    async def document_file(self, request: IHttp1Request) -> None:
        self._record("document_file", request)

    async def health(self, request: IHttp1Request) -> None:
        self._record("health", request)

    async def openapi(self, request: IHttp1Request) -> None:
        self._record("openapi", request)

    async def socket(self, request: IHttp1Request) -> None:
        self._record("socket", request)

    async def long_poll(self, request: IHttp1Request) -> None:
        self._record("long_poll", request)

    async def standby_term(self, request: IHttp1Request) -> None:
        self._record("standby_term", request)

    async def admin(self, request: IHttp1Request, endpoint: str) -> None:
        self._record(endpoint, request)

    async def _answer_admin(self, request: IHttp1Request, endpoint: str, handler: object) -> None:
        self._record(endpoint, request)

    def tree(self, request: IHttp1Request, place: str = "") -> None:
        self._record("tree", request)

    def _record(self, route: str, request: IHttp1Request) -> None:
        self.route = route
        request.send(200, (), b"")


class RecordingServer(Server):
    """A server of a `RecordingResource`."""

    def __init__(self, folder: pathlib.Path) -> None:
        super().__init__(ScriptedResource())
        catalog = Catalog(
            folder,
            "memory",
            {},
            any_project=True,
            first_rules=OPEN,
            runtime=Runtime(self.clock, os.urandom, execute),
            retain_events=0,
        )
        authenticator = Authenticator(lambda _: None, self.clock, lambda: 0.0)
        context = make_context(
            settings=Settings(),
            authenticator=authenticator,
            clock=self.clock,
            wall_clock=lambda: 0.0,
        )
        self.resource = RecordingResource(context, catalog)
        self.factory = Http1Factory(self.resource, Limits(), self.clock)

    def find_route(self, target: str, method: str = "GET") -> str:
        """Return the route to which a request is dispatched."""
        self.resource.route = ""
        peer = self.connect()
        peer.send(f"{method} {target} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        return self.resource.route


@pytest.fixture
def server(tmp_path: pathlib.Path) -> RecordingServer:
    return RecordingServer(tmp_path)


def find_declared(target: str, method: str) -> str:
    """Return the route that Klein's router finds; it matches the decoded path."""
    adapter: Any = TreeResource.app.url_map.bind("localhost")
    endpoint, _ = adapter.match(unquote(target), method)
    return str(endpoint)


@pytest.mark.parametrize(
    "target",
    [
        *(each for each in RESERVED_PATHS if each != "/.console"),  # only at some ports
        "/%2Ehealth",
        "/.settings/rules%2Ejson",
    ],
)
def test_a_reserved_path_is_dispatched_as_the_router_does(
    server: RecordingServer, target: str
) -> None:
    method = "PUT" if target == "/.settings/database.json" else "GET"
    declared = find_declared(target, "POST" if target in POSTED else method)
    assert declared != "tree"
    for method in ROUTES[declared].methods or ():
        assert find_declared(target, method) == declared
        assert server.find_route(target, method) == declared


@pytest.mark.parametrize("target", TREE_PATHS)
def test_any_other_path_is_dispatched_as_the_router_does(
    server: RecordingServer, target: str
) -> None:
    for method in ROUTES["tree"].methods or ():
        assert find_declared(target, method) == "tree"
        assert server.find_route(target, method) == "tree"


def test_the_reserved_paths_are_the_routes_without_variables() -> None:
    declared = {
        split_segments(rule.rule.encode().split(b"/")): rule.endpoint
        for rule in TreeResource.app.url_map.iter_rules()
        if "<" not in rule.rule
    }
    assert declared == RESERVED
    expected = {split_segments(path.encode().split(b"/")) for path in RESERVED_PATHS}
    assert RESERVED.keys() == expected
    assert [endpoint for endpoint in ROUTES if endpoint not in RESERVED.values()] == ["tree"]


@pytest.mark.parametrize(
    ("target", "route"),
    [
        ("//", "root"),
        ("/favicon.ico/", "icon"),
        ("/favicon.ico/a.json", "tree"),
        ("/.docs//rules.md", "document"),
        ("/.docs/../pyproject.toml", "tree"),
        ("/.docs%2Frules.md", "tree"),
        ("/.docs", "document"),
        ("/.health/", "health"),
        ("//.health", "health"),
        ("/.settings//rules.json", "rules"),
        ("/.settings/rules/.json", "rules"),
        ("/.settings%2Frules.json", "tree"),
        ("/.inspect/databases/.json", "databases"),
        ("/.json/.health", "tree"),
    ],
)
def test_empty_segments_collapse_and_an_encoded_slash_does_not_separate(
    server: RecordingServer, target: str, route: str
) -> None:
    """Here the dispatch differs from the router, which decodes the path before it splits it."""
    assert server.find_route(target) == route


@pytest.mark.parametrize(
    ("target", "endpoint"),
    [
        ("/.health", "health"),
        ("/favicon.ico", "icon"),
        ("/.docs/interface.md", "document"),
        ("/.settings/rules.json", "rules"),
        ("/.inspect/databases.json", "databases"),
        ("/a.json", "tree"),
    ],
)
def test_a_405_and_a_preflight_list_the_declared_methods(
    tmp_path: pathlib.Path, target: str, endpoint: str
) -> None:
    declared = ROUTES[endpoint].methods or set()
    server = TreeServer(tmp_path)
    for method in ("BREW", "TRACE", *({"PUT", "POST", "PATCH", "DELETE"} - declared)):
        peer = server.connect()
        (reply,) = peer.exchange(
            f"{method} {target} HTTP/1.1\r\nHost: demo.localhost\r\n\r\n".encode()
        )
        assert reply.status == 405
        assert set(reply[b"allow"].decode().split(", ")) == declared
    (reply,) = server.connect().exchange(
        f"OPTIONS {target} HTTP/1.1\r\nHost: demo.localhost\r\n\r\n".encode()
    )
    assert (reply.status, set(reply[b"allow"].decode().split(", "))) == (204, declared)
