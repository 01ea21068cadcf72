"""`/.settings/functionTriggers.json`: functions of Firebase that register, for admins."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Iterator
from typing import Any

import attrs
import pytest

from tests.access import admin, secret_of, user
from tests.database.catalogs import close
from tests.http1.peer import ParsedReply
from tests.web.tree_server import SETTINGS, TreeServer, make_verifier
from treedbd.config.settings import FunctionsSettings
from treedbd.database.first_hooks import FILE, FirstHooks
from treedbd.database.requests import ProjectSpec
from treedbd.hooks.triggers import parse_trigger
from treedbd.limits import (
    MAX_FUNCTION_DATABASES,
    MAX_FUNCTION_PATTERNS,
    MAX_FUNCTIONS,
    MAX_FUNCTIONS_BYTES,
)
from treedbd.names import DatabaseName
from treedbd.store.changelog import events_of

PATH = "/.settings/functionTriggers.json"
ADMIN = admin("own")
OPTIONS = attrs.evolve(SETTINGS, functions=FunctionsSettings(url="http://127.0.0.1:5001"))


def second(name: str, pattern: str = "*", path: str = "orders/{id}") -> dict[str, str]:
    return {
        "name": f"projects/demo-x/locations/us-central1/triggers/us-central1-{name}-0",
        "path": path,
        "event": "google.firebase.database.ref.v1.written",
        "topic": f"projects/demo-x/topics/us-central1-{name}-0",
        "namespacePattern": pattern,
    }


def first(name: str, generation: int = 0) -> dict[str, str]:
    return {
        "name": f"projects/demo-x/locations/_/functions/us-central1-{name}-{generation}",
        "path": "/orders/{id}",
        "event": "providers/google.firebase.database/eventTypes/ref.create",
        "topic": f"projects/demo-x/topics/us-central1-{name}-{generation}",
    }


class FunctionServer(TreeServer):
    """A server of the projects `own` and `foreign`, with a token for each."""

    def __init__(
        self, folder: pathlib.Path, options: Any = OPTIONS, *, engine: str = "sqlite"
    ) -> None:
        verifiers = {name: make_verifier(secret_of(name)) for name in ("own", "foreign")}
        super().__init__(
            folder,
            projects=[ProjectSpec("own", None), ProjectSpec("foreign", None), ProjectSpec("one")],
            verifier=verifiers.get,
            engine=engine,
            options=options,
            first_hooks=FirstHooks(folder),
        )
        self.catalog.open()

    def ask(
        self,
        method: str,
        body: Any = None,
        *headers: str,
        ns: str = "own",
        query: str = "",
        token: str = ADMIN,
    ) -> ParsedReply:
        """Send a request for the resource."""
        sent = body if isinstance(body, bytes) else json.dumps(body).encode()
        fields = (f"Authorization: Bearer {token}", "X-TreeDB-Dialect: standard", *headers)
        has_body = method in ("PUT", "POST")
        target = f"{PATH}?ns={ns}{query}"
        return self.request(method, target, sent if has_body else b"", fields, "localhost")

    def register(self, method: str, body: Any, ns: str = "own", token: str = ADMIN) -> None:
        reply = self.ask(method, body, ns=ns, token=token)
        assert (reply.status, reply.body) == (200, b'{"status":"ok"}'), reply

    def listed(self, ns: str = "own", token: str = ADMIN) -> list[dict[str, str]]:
        reply = self.ask("GET", ns=ns, token=token)
        assert reply.status == 200, reply
        found: list[dict[str, str]] = json.loads(reply.body)
        return found

    def keys(self, ns: str = "own", token: str = ADMIN) -> set[str]:
        return {each["name"].rpartition("/")[2] for each in self.listed(ns, token)}

    def put_order(self, ns: str, order: str = "a") -> None:
        body = json.dumps(order).encode()
        assert (
            self.request("PUT", f"/orders/{order}.json?ns={ns}", body, (), "localhost").status
            == 200
        )

    def events(self, label: str) -> int:
        """Return how many events are in the log of a database of the project `own`."""
        database, _, project = label.rpartition("--")
        name = DatabaseName(project, database or "default")
        entries = self.catalog.find(name).read(lambda nodes: [*nodes.rows.stored.entries(0)])
        return sum(len(events_of(each.content)) for each in entries)

    def refuse(self, status: int, body: Any, method: str = "POST", **options: Any) -> str:
        """Register what is refused; return the message."""
        reply = self.ask(method, body, **options)
        assert reply.status == status, reply
        return str(json.loads(reply.body)["message"])


@pytest.fixture
def server(tmp_path: pathlib.Path) -> Iterator[FunctionServer]:
    server = FunctionServer(tmp_path)
    yield server
    close(server.catalog)


def test_those_who_read_the_log_look_when_functions_have_changed(server: FunctionServer) -> None:
    server.put_order("own")
    noted: list[DatabaseName] = []
    server.catalog.news.append(noted.append)
    server.register("POST", first("f"))
    server.register("PUT", [])
    assert noted == [DatabaseName("own", "default")] * 2


def test_a_function_of_one_database_is_listed_there(server: FunctionServer) -> None:
    server.register("POST", first("f"))
    assert server.listed() == [first("f")]
    assert server.listed("eu--own") == []
    server.put_order("own")
    server.put_order("eu--own")
    assert (server.events("own"), server.events("eu--own")) == (1, 0)


def test_a_function_that_registers_again_replaces_itself(server: FunctionServer) -> None:
    for generation in (0, 1, 2):
        server.register("POST", first("f", generation))
        server.register("POST", [first("g", generation)])
    assert server.listed() == [first("f", 2), first("g", 2)]


def test_a_put_replaces_all_functions(server: FunctionServer) -> None:
    server.register("POST", [first("a"), second("b")])
    server.put_order("eu--own")
    assert server.keys("eu--own") == {"us-central1-b-0"}
    server.register("PUT", [first("c"), second("d")])
    assert server.keys() == {"us-central1-c-0", "us-central1-d-0"}
    assert server.keys("eu--own") == {"us-central1-d-0"}
    server.register("PUT", [])
    assert server.keys() == server.keys("eu--own") == server.keys("later--own") == set()


def test_a_pattern_is_of_the_databases_that_are_there_and_of_later_ones(
    server: FunctionServer,
) -> None:
    server.put_order("eu--own")
    server.put_order("us--own")
    server.put_order("foreign")
    server.register("POST", second("f", "eu*"))
    assert server.keys("eu--own") == {"us-central1-f-0"}
    assert server.keys("eu2--own") == {"us-central1-f-0"}
    assert server.keys("us--own") == server.keys("own") == set()
    server.put_order("eu--own", "b")
    server.put_order("eu2--own", "b")
    assert (server.events("eu--own"), server.events("eu2--own")) == (1, 1)
    server.register("POST", second("g", "*"))
    assert server.keys("eu2--own") == {"us-central1-f-0", "us-central1-g-0"}
    assert server.keys("foreign", admin("foreign")) == set()
    server.put_order("new--foreign")
    assert server.events("new--foreign") == 0


def test_a_function_of_one_database_leaves_those_of_patterns_there(
    server: FunctionServer,
) -> None:
    server.register("POST", second("f"))
    server.register("POST", first("g"))
    assert server.keys() == {"us-central1-f-0", "us-central1-g-0"}
    server.put_order("own")
    assert server.keys() == {"us-central1-f-0", "us-central1-g-0"}
    assert server.events("own") == 1


def test_a_function_that_becomes_one_of_fewer_databases_leaves_the_others(
    server: FunctionServer,
) -> None:
    server.put_order("eu--own")
    server.register("POST", second("f", "*"))
    server.register("POST", second("f", "own"))
    assert server.keys("eu--own") == server.keys("later--own") == set()
    assert server.keys("own") == {"us-central1-f-0"}


def test_a_function_of_another_database_needs_its_admin(server: FunctionServer) -> None:
    server.register("POST", second("f", "eu--own"))
    assert server.keys("eu--own") == {"us-central1-f-0"}
    assert "foreign" in server.refuse(404, second("f", "foreign"))
    assert server.refuse(404, second("f", "nobody-has-it"))


def test_only_admins_register_functions(server: FunctionServer) -> None:
    for method in ("GET", "PUT", "POST"):
        assert server.ask(method, first("f"), token=user("own", "ada")).status == 403
        assert server.ask(method, first("f"), token="owner").status == 401
    assert server.ask("DELETE").status == 405


def test_bad_functions_are_refused_and_none_is_registered(server: FunctionServer) -> None:
    assert "event must be" in server.refuse(400, [first("f"), {**first("g"), "event": "x"}])
    assert "Not valid JSON" in server.refuse(400, b"{")
    assert "at most" in server.refuse(400, [first("f")] * (MAX_FUNCTIONS + 1))
    assert server.ask("POST", b" " * (MAX_FUNCTIONS_BYTES + 1)).status == 413
    assert "If-Match" in str(server.ask("PUT", [], "If-Match: x").body)
    assert server.keys() == set()


def test_a_database_has_only_so_many_functions(server: FunctionServer) -> None:
    names = [f"f{number}" for number in range(MAX_FUNCTIONS)]
    server.register("POST", [first(name) for name in names])
    server.register("POST", [first(name, 1) for name in names])
    assert "PUT [] removes all" in server.refuse(409, first("more"))
    server.register("PUT", first("more"))
    assert server.keys() == {"us-central1-more-0"}


def test_patterns_have_only_so_many_functions(server: FunctionServer) -> None:
    for at in range(0, MAX_FUNCTION_PATTERNS, MAX_FUNCTIONS):
        numbers = range(at, at + MAX_FUNCTIONS)
        server.register("POST", [second(f"f{number}", "none-*") for number in numbers])
    assert "PUT all that are needed" in server.refuse(400, second("more", "none-*"))
    server.register("PUT", [second("more", "none-*")])


def test_a_webhook_with_the_name_of_a_function_stays(server: FunctionServer) -> None:
    name = parse_trigger(dict(first("f"))).make_hook("", 0).name
    target = f"/.settings/webhooks.json?ns=own&auth={ADMIN}"
    hook = {"name": name, "on": "/a", "events": ["written"], "url": "https://a.example.com"}
    put = server.request("PUT", target, json.dumps(hook).encode(), (), "localhost")
    assert put.status == 200
    assert "is not a function" in server.refuse(409, first("f"))
    assert server.keys() == set()


def test_a_pattern_of_very_many_databases_is_refused(server: FunctionServer) -> None:
    for number in range(MAX_FUNCTION_DATABASES + 1):
        server.catalog.written.add(DatabaseName("own", f"d{number}"))
    assert "more than 100 databases" in server.refuse(400, second("f", "d*"))
    assert server.keys("d-later--own") == set()


def test_functions_of_patterns_outlive_the_process(tmp_path: pathlib.Path) -> None:
    server = FunctionServer(tmp_path)
    server.register("POST", second("f"))
    close(server.catalog)
    again = FunctionServer(tmp_path)
    again.put_order("eu--own")
    assert (again.events("eu--own"), again.keys("eu--own")) == (1, {"us-central1-f-0"})
    close(again.catalog)


def test_a_file_of_patterns_that_is_damaged_is_replaced(
    tmp_path: pathlib.Path, server: FunctionServer
) -> None:
    (tmp_path / FILE).write_text("{")
    assert server.keys("eu--own") == set()
    server.register("POST", second("f"))
    assert server.keys("eu--own") == {"us-central1-f-0"}


def test_a_service_without_functions_says_so(tmp_path: pathlib.Path) -> None:
    server = FunctionServer(tmp_path, SETTINGS)
    assert "has no [functions] url" in server.refuse(404, first("f"))
    assert server.listed() == []
    close(server.catalog)


def test_it_is_explained_without_doing_it(server: FunctionServer) -> None:
    reply = server.ask("PUT", [first("f")], "X-TreeDB-Explain: true")
    assert (reply.status, json.loads(reply.body)["allowed"]) == (200, True)
    assert server.keys() == set()
