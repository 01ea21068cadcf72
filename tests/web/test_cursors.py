"""`/.settings/cursors.json`: the readers of change logs listed for admins, a cursor removed."""

from __future__ import annotations

import json
import math
import pathlib
from collections.abc import Iterator
from typing import Any

import pytest

from tests.access import admin, secret_of, token, user
from tests.cursors import CREATED_MS, begin_reader
from tests.database.catalogs import close, problems
from tests.http1.peer import ParsedReply
from tests.web.tree_server import TreeServer, make_verifier
from treedbd.database.requests import ProjectSpec
from treedbd.names import parse_label
from treedbd.web import cursors as resource
from treedbd.web.databases import AT_ONCE

PATH = "/.settings/cursors.json"
SECRETS = {"also": secret_of("own"), "own": secret_of("own"), "foreign": secret_of("foreign")}
ADMIN = admin("own")
TIME = "2023-11-14T22:13:20Z"


class CursorServer(TreeServer):
    """A server of three projects, of whose first two the caller is an admin."""

    def __init__(self, folder: pathlib.Path) -> None:
        verifiers = {name: make_verifier(secret) for name, secret in SECRETS.items()}
        super().__init__(
            folder,
            projects=[ProjectSpec(name, None) for name in SECRETS],
            verifier=verifiers.get,
            engine="sqlite",
        )
        self.catalog.open()

    def seed(self, label: str, *readers: str, dropped_ms: int | None = None) -> None:
        """Write twice to a database; its readers have read the first of that."""
        name = parse_label(label)
        assert name is not None
        self.put(label)
        for reader in readers:
            begin_reader(self.catalog.find(name), reader, dropped_ms=dropped_ms)
            self.clock.run()
        self.put(label)

    def put(self, label: str) -> None:
        reply = self.request("PUT", f"/a.json?ns={label}", b"1", host="localhost")
        assert reply.status == 200

    def ask(
        self, query: str = "", method: str = "GET", *, ns: str = "own", token: str = ADMIN
    ) -> ParsedReply:
        """Send a request for the resource, and wait for its reply."""
        lines = (
            f"{method} {PATH}?ns={ns}{query} HTTP/1.1",
            *("Host: localhost", f"Authorization: Bearer {token}"),
            *("X-TreeDB-Dialect: standard", "Content-Length: 0", "", ""),
        )
        peer = self.connect()
        peer.send("\r\n".join(lines).encode())
        self.clock.run()
        (reply,) = peer.read(method.encode())
        return reply

    def listed(self, query: str = "") -> Any:
        reply = self.ask(query)
        assert reply.status == 200, reply
        return json.loads(reply.body)

    def names(self, query: str = "") -> list[tuple[str, str]]:
        """Return databases and readers."""
        return [(each["database"], each["name"]) for each in self.listed(query)["cursors"]]


@pytest.fixture
def server(tmp_path: pathlib.Path) -> Iterator[CursorServer]:
    made = CursorServer(tmp_path)
    yield made
    close(made.catalog)


def check_refused(reply: ParsedReply, status: int, code: str) -> str:
    error = json.loads(reply.body)
    assert (reply.status, error["error"]) == (status, code)
    return str(error["message"])


def test_an_admin_sees_where_each_reader_is(server: CursorServer) -> None:
    server.seed("room--own", "archive")
    (cursor,) = server.listed()["cursors"]
    assert cursor.pop("bytes") > 0
    assert cursor.pop("seconds") >= 0
    where = {"database": "room--own", "name": "archive", "seq": 1, "entries": 1, "whole": True}
    assert cursor == where | {"created": TIME, "moved": TIME, "dropped": None}
    server.seed("lost--own", "archive", dropped_ms=CREATED_MS)
    assert server.listed("&database=lost--own")["cursors"][0]["dropped"] == TIME


def test_the_readers_of_all_databases_of_the_caller_are_listed_in_order(
    server: CursorServer,
) -> None:
    for label in ("own", "b--own", "a--own", "also", "foreign", "z--also"):
        server.seed(label, "two", "one")
    server.seed("unread--own")
    databases = ["also", "z--also", "a--own", "b--own", "own"]
    expected = [(name, reader) for name in databases for reader in ("one", "two")]
    assert server.names() == expected
    assert server.listed()["next"] is None
    assert server.names("&database=b--own") == [("b--own", "one"), ("b--own", "two")]


@pytest.mark.parametrize("size", [1, 2, 3])
def test_a_list_has_pages(server: CursorServer, size: int) -> None:
    for label in ("a--own", "b--own", "c--own", "also", "foreign"):
        server.seed(label, "archive")
    found, after, pages = [], "", 0
    while after is not None:
        page = server.listed(f"&limitToFirst={size}" + (f"&startAfter={after}" if after else ""))
        found += [each["database"] for each in page["cursors"]]
        after, pages = page["next"], pages + 1
    assert found == ["also", "a--own", "b--own", "c--own"]
    # The default databases of both projects count too.
    assert pages == math.ceil(5 / size)


def test_an_answer_that_takes_long_ends_early_and_is_continued(
    server: CursorServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for label in ("a--own", "b--own"):
        server.seed(label, "archive")
    monkeypatch.setattr(resource, "ANSWER_S", 0.0)
    page = server.listed("&startAfter=also")
    assert page["next"] == "a--own"
    assert [each["database"] for each in page["cursors"]] == ["a--own"]
    assert server.listed("&startAfter=a--own")["next"] == "b--own"


def test_a_database_that_cannot_be_read_is_named(tmp_path: pathlib.Path) -> None:
    server = CursorServer(tmp_path)
    for label in ("a--own", "b--own"):
        server.seed(label, "archive")
    close(server.catalog)
    (tmp_path / "own" / "a.shelf").write_bytes(b"not a database" * 1000)
    server = CursorServer(tmp_path)
    listed = server.listed()
    assert [each["database"] for each in listed["cursors"]] == ["b--own"]
    assert listed["unreadable"] == ["a--own"]
    close(server.catalog)


def test_callers_are_identified_in_several_turns(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    many = {f"x{number}": secret_of("foreign") for number in range(3 * AT_ONCE)}
    for name, secret in many.items():
        monkeypatch.setitem(SECRETS, name, secret)
    server = CursorServer(tmp_path)
    server.seed("own", "archive")
    before = server.clock.turns
    assert server.names() == [("own", "archive")]
    assert server.clock.turns - before >= 3
    close(server.catalog)


def test_a_cursor_is_removed_and_its_problem_with_it(server: CursorServer) -> None:
    server.seed("room--own", "archive", dropped_ms=CREATED_MS)
    server.seed("also", "archive", "copy")
    server.clock.advance(10)
    assert [each.database for each in problems(server.catalog)] == ["room"]
    reply = server.ask("&cursor=archive", "DELETE", ns="room--own")
    assert json.loads(reply.body) == {"database": "room--own", "name": "archive"}
    assert problems(server.catalog) == []
    assert server.ask("&cursor=archive&database=also", "DELETE").status == 200
    assert server.names() == [("also", "copy")]


def test_what_is_not_there_cannot_be_removed(server: CursorServer) -> None:
    server.seed("room--own", "archive")
    server.seed("foreign", "archive")
    asked = "&cursor=other&database=room--own"
    message = check_refused(server.ask(asked, "DELETE"), 404, "not_found")
    assert message == "The change log of room--own has no cursor other."
    for label in ("none--own", "foreign", "x--foreign", "nothing"):
        asked = f"&cursor=archive&database={label}"
        check_refused(server.ask(asked, "DELETE"), 404, "not_found")
        check_refused(server.ask(f"&database={label}"), 404, "not_found")
    assert server.names() == [("room--own", "archive")]


@pytest.mark.parametrize(
    ("method", "query"),
    [
        *(("DELETE", ""), ("DELETE", "&cursor="), ("DELETE", "&cursor=Archive")),
        *(("DELETE", "&cursor=a&cursor=b"), ("DELETE", "&cursor=archive&database=-")),
        *(("DELETE", "&cursor=" + 64 * "a"), ("GET", "&database=a/b"), ("GET", "&startAfter=")),
        *(("GET", "&limitToFirst=0"), ("GET", "&limitToFirst=x"), ("GET", "&database=%ff")),
    ],
)
def test_a_bad_parameter_is_refused(server: CursorServer, method: str, query: str) -> None:
    server.seed("own", "archive")
    check_refused(server.ask(query, method), 400, "invalid_query")


def test_only_admins_see_and_remove_cursors(server: CursorServer) -> None:
    server.seed("own", "archive")
    reader = token("own", admin=True, read_only=True)
    for sender, status, code in (
        ("rubbish", 401, "auth_required"),
        (user("own", "ada"), 403, "permission_denied"),
        (admin("foreign"), 401, "auth_required"),
    ):
        for method in ("GET", "DELETE"):
            check_refused(server.ask("&cursor=archive", method, token=sender), status, code)
    assert server.ask(token=reader).status == 200
    refused = server.ask("&cursor=archive", "DELETE", token=reader)
    check_refused(refused, 403, "permission_denied")
    assert server.names() == [("own", "archive")]
