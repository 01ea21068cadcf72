"""A database that its project does not list looks like one to which the caller has no right."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Iterable

import pytest

from tests.access import admin, at, secret_of, user
from tests.http1.peer import ParsedReply
from tests.web.tree_server import TreeServer, make_verifier
from treedbd.database.requests import ProjectSpec, UnknownDatabase
from treedbd.names import DatabaseName
from treedbd.rules.ruleset import parse_rules

RULES = parse_rules(
    json.dumps(
        {
            "rules": {
                "public": {".read": True, ".write": True},
                "users": {"$uid": {".read": "auth.uid == $uid", ".write": "auth.uid == $uid"}},
                "valid": {".read": True, ".write": True, ".validate": "newData.isNumber()"},
                "full": {".read": "root.child('public').exists()"},
            }
        }
    ).encode()
)
LISTED = frozenset({"default", "eu"})
EVENTS = ("Accept: text/event-stream",)
METHODS = ["GET", "HEAD", "PUT", "POST", "PATCH", "DELETE"]
BODIES = {"PUT": b"1", "POST": b"1", "PATCH": b'{"a":1}'}


class ListedServer(TreeServer):
    """Two projects that list their databases."""

    def __init__(self, folder: pathlib.Path) -> None:
        specs = [ProjectSpec("shop", LISTED, "standard"), ProjectSpec("fire", LISTED, "firebase")]
        verifiers = {each.name: make_verifier(secret_of(each.name)) for each in specs}
        super().__init__(folder, RULES, projects=specs, verifier=verifiers.get)

    def ask(
        self, method: str, target: str, body: bytes, headers: Iterable[str] = ()
    ) -> list[ParsedReply]:
        """Send a request to a listed and to an absent database; return both replies."""
        hosts = ("eu--shop.localhost", "xx--shop.localhost")
        return [self.request(method, target, body, headers, host) for host in hosts]

    def absent(self, method: str, target: str, headers: Iterable[str] = ()) -> tuple[int, str]:
        """Send a request to an absent database; return the status and the code of the error."""
        host = "xx--shop.localhost"
        reply = self.request(method, target, BODIES.get(method, b""), headers, host)
        return reply.status, json.loads(reply.body)["error"] if reply.body else ""


@pytest.fixture
def world(tmp_path: pathlib.Path) -> ListedServer:
    return ListedServer(tmp_path)


def without_date(reply: ParsedReply) -> tuple[int, list[tuple[bytes, bytes]], bytes]:
    fields = [field for field in reply.fields if field[0] != b"date"]
    return reply.status, fields, reply.body


@pytest.mark.parametrize("headers", [(), EVENTS, ('If-Match: "x"',), ("X-TreeDB-ETag: true",)])
@pytest.mark.parametrize("token", ["", user("shop", "ada"), admin("fire"), "rubbish"])
@pytest.mark.parametrize("method", METHODS)
def test_without_a_right_both_answer_alike(
    world: ListedServer, method: str, token: str, headers: tuple[str, ...]
) -> None:
    target, body = at("/users/bob.json", token), BODIES.get(method, b"")
    listed, absent = world.ask(method, target, body, headers)
    assert listed.status == (401 if token and token != user("shop", "ada") else 403)
    assert without_date(absent) == without_date(listed)


@pytest.mark.parametrize(
    ("method", "target", "body"),
    [
        ("BREW", "/a.json", b""),
        ("GET", "/a", b""),
        ("GET", "/a.b.json", b""),
        ("GET", "/a.json?print=%zz", b""),
        ("GET", "/a.json?orderBy=1", b""),
        ("PUT", "/users/bob.json", b"{"),
        ("PUT", "/valid.json", b'"x"'),
        ("PATCH", "/users/bob.json", b"{}"),
        ("GET", "/full.json", b""),
        ("GET", "/.settings/rules.json", b""),
        ("GET", "/.inspect/databases.json", b""),
        ("GET", "/users/bob.json?auth_variable_override=null", b""),
    ],
)
def test_other_errors_and_a_write_of_nothing_tell_no_difference_either(
    world: ListedServer, method: str, target: str, body: bytes
) -> None:
    listed, absent = world.ask(method, target, body)
    assert without_date(absent) == without_date(listed)


@pytest.mark.parametrize("method", METHODS)
def test_with_a_right_an_absent_database_is_not_found(world: ListedServer, method: str) -> None:
    for target in (
        "/public.json",
        at("/users/ada.json", user("shop", "ada")),
        at("/any.json", admin("shop")),
    ):
        expected = (404, "" if method == "HEAD" else "not_found")
        assert world.absent(method, target) == expected


@pytest.mark.parametrize(
    ("target", "headers"),
    [
        ("/public.json", EVENTS),
        ('/public.json?orderBy="a"', ()),
        (at("/.settings/rules.json", admin("shop")), ()),
        (at("/.inspect/databases.json", admin("shop")), ()),
        (at("/public.json", admin("shop")), ("X-TreeDB-Explain: true",)),
    ],
)
def test_streams_queries_and_resources_of_admins_are_not_found_either(
    world: ListedServer, target: str, headers: tuple[str, ...]
) -> None:
    assert world.absent("GET", target, headers=headers) == (404, "not_found")
    assert len(world.resource.streams) == 0


def test_a_stream_of_headers_only_is_not_found(world: ListedServer) -> None:
    assert world.absent("HEAD", "/public.json", headers=EVENTS) == (404, "")


def test_nothing_is_written_to_an_absent_database(world: ListedServer) -> None:
    for method in ("PUT", "POST", "PATCH"):
        world.absent(method, at("/public.json", admin("shop")))
    spec = ProjectSpec("shop", LISTED)
    labels = {name.label for name in world.catalog.names(spec)}
    assert labels == {"shop", "eu--shop"}
    with pytest.raises(UnknownDatabase):
        world.catalog.find(DatabaseName("shop", "xx"))


def test_in_the_firebase_dialect_it_is_401_and_404(world: ListedServer) -> None:
    for host in ("eu--fire.localhost", "xx--fire.localhost"):
        reply = world.request("GET", "/users/ada.json", host=host)
        assert reply.status == 401
        assert json.loads(reply.body) == {"error": "Permission denied"}
    reply = world.request("GET", "/public.json", host="xx--fire.localhost")
    assert reply.status == 404
    assert json.loads(reply.body) == {"error": "The project fire has no database xx."}


def test_an_unknown_project_is_not_found_by_anybody(world: ListedServer) -> None:
    reply = world.request("GET", "/users/ada.json", host="eu--nowhere.localhost")
    assert reply.status == 404
