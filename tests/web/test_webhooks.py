"""`/.settings/webhooks.json`: the hooks of a database listed, put and removed by admins."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Iterator
from typing import Any

import attrs
import pytest

from tests.access import admin, secret_of, token, user
from tests.database.catalogs import close
from tests.http1.peer import ParsedReply
from tests.web.tree_server import SETTINGS, TreeServer, make_verifier
from treedbd.config.settings import WebhookSettings
from treedbd.database.requests import ProjectSpec
from treedbd.limits import MAX_CURSORS, MAX_HOOKS, MAX_HOOKS_BODY_BYTES
from treedbd.names import DatabaseName, parse_allowed_targets
from treedbd.store.hooks import Hook
from treedbd.tree.pattern import parse_pattern

PATH = "/.settings/webhooks.json"
ADMIN = admin("own")
SECRET = "s" * 32
URL = "https://hooks.example.com/x?token=secret"
CONFIGURED = Hook(
    "fixed",
    parse_pattern("/fixed/$id"),
    frozenset({"created"}),
    "https://a.example.com/",
    secrets=("c" * 32,),
    is_configured=True,
)
OPTIONS = attrs.evolve(
    SETTINGS, webhooks=WebhookSettings(allow=parse_allowed_targets(["10.0.0.0/8"]))
)


class HookServer(TreeServer):
    """A server of the projects `own`, whose databases have a configured hook, and `foreign`."""

    def __init__(self, folder: pathlib.Path) -> None:
        verifiers = {name: make_verifier(secret_of(name)) for name in ("own", "foreign")}
        super().__init__(
            folder,
            projects=[ProjectSpec("own", None), ProjectSpec("foreign"), ProjectSpec("one")],
            verifier=verifiers.get,
            engine="sqlite",
            options=OPTIONS,
            hooks_of=lambda name: (CONFIGURED,) if name.project == "own" else (),
        )
        self.catalog.open()

    def ask(
        self,
        method: str,
        body: Any = None,
        query: str = "",
        *headers: str,
        token: str = ADMIN,
        ns: str = "own",
    ) -> ParsedReply:
        """Send a request for the resource; a body that is no bytes is sent as JSON."""
        sent = body if isinstance(body, bytes) else json.dumps(body).encode()
        fields = (f"Authorization: Bearer {token}", "X-TreeDB-Dialect: standard", *headers)
        target = f"{PATH}?ns={ns}{query}"
        return self.request(method, target, sent if method == "PUT" else b"", fields, "localhost")

    def put(self, **members: Any) -> Any:
        """Put a hook, and return the answer; None as a member omits it."""
        reply = self.ask("PUT", definition(**members))
        assert reply.status == 200, reply
        return json.loads(reply.body)

    def listed(self, ns: str = "own") -> dict[str, Any]:
        """Return all hooks by their names."""
        reply = self.ask("GET", ns=ns)
        assert reply.status == 200, reply
        return {each["name"]: each for each in json.loads(reply.body)["webhooks"]}

    def secrets_of(self, name: str) -> tuple[str, ...]:
        hooks = self.catalog.find(DatabaseName("own")).hooks()
        return next(hook.secrets for hook in hooks if hook.name == name)

    def write(self, method: str, path: str, value: Any) -> None:
        body = json.dumps(value).encode()
        reply = self.request(method, f"{path}.json?ns=own", body, host="localhost")
        assert reply.status == 200


def definition(**members: Any) -> dict[str, Any]:
    usual = {"name": "orders", "on": "/orders/$id", "events": ["created"], "url": URL}
    return {name: value for name, value in (usual | members).items() if value is not ...}


@pytest.fixture
def server(tmp_path: pathlib.Path) -> Iterator[HookServer]:
    made = HookServer(tmp_path)
    yield made
    close(made.catalog)


def check_refused(reply: ParsedReply, status: int, code: str) -> str:
    error = json.loads(reply.body)
    assert (reply.status, error["error"]) == (status, code), error
    return str(error["message"])


def test_a_hook_is_put_shown_and_removed(server: HookServer) -> None:
    made = server.put()
    secret = made.pop("secret")
    assert len(secret) == 64
    assert server.secrets_of("orders") == (secret,)
    created = "2023-11-14T22:13:20Z"
    assert made == {
        "name": "orders",
        "on": "/orders/$id",
        "events": ["created"],
        "url": URL,
        "configured": False,
        "secrets": 1,
        "created": created,
        "state": {"seq": 0, "entries": 0, "seconds": 0.0, "dropped": None},
    }
    listed = server.ask("GET").body.decode()
    assert secret not in listed
    assert "c" * 32 not in listed
    assert server.listed() == {"orders": made, "fixed": server.listed()["fixed"]}
    assert server.listed()["fixed"]["configured"] is True
    assert server.listed("room--own").keys() == {"fixed"}
    reply = server.ask("DELETE", query="&name=orders")
    assert json.loads(reply.body) == {"database": "own", "name": "orders"}
    assert server.listed().keys() == {"fixed"}
    check_refused(server.ask("DELETE", query="&name=orders"), 404, "not_found")


def test_the_state_shows_what_is_not_sent_yet(server: HookServer) -> None:
    server.write("PUT", "/orders/before", 1)
    server.put()
    server.resource.hooks.describe = lambda database, hook: {
        "more": database.name.label + hook.name
    }
    for number in range(3):
        server.write("PUT", f"/orders/{number}", number)
    state = server.listed()["orders"]["state"]
    assert (state["seq"], state["entries"], state["more"]) == (1, 3, "ownorders")
    assert server.listed()["fixed"]["state"]["seq"] is None
    server.write("PUT", "/fixed/a", 1)
    assert server.listed()["fixed"]["state"]["seq"] == 4


def test_replacing_keeps_the_secret_and_the_place_in_the_log(server: HookServer) -> None:
    secret = server.put()["secret"]
    server.write("PUT", "/orders/a", 1)
    replaced = server.put(on="/other/$id", events=["updated", "deleted"])
    assert "secret" not in replaced
    assert (replaced["on"], replaced["events"]) == ("/other/$id", ["updated", "deleted"])
    assert replaced["state"]["seq"] == 0
    assert server.secrets_of("orders") == (secret,)


def test_two_secrets_sign_while_one_replaces_the_other(server: HookServer) -> None:
    first = server.put()["secret"]
    assert server.put(secret=SECRET, keep_old_secret=True)["secrets"] == 2
    assert server.secrets_of("orders") == (SECRET, first)
    server.put()
    server.put(secret=SECRET)
    assert server.secrets_of("orders") == (SECRET, first)
    third = server.put(secret=None, keep_old_secret=True)["secret"]
    assert server.secrets_of("orders") == (third, SECRET)
    server.put(keep_old_secret=False)
    assert server.secrets_of("orders") == (third,)
    server.put(secret=SECRET)
    assert server.secrets_of("orders") == (SECRET,)


def test_several_are_put_together_or_not_at_all(server: HookServer) -> None:
    two = [definition(name="b"), definition(name="a", events=["written"])]
    put = json.loads(server.ask("PUT", two).body)["webhooks"]
    assert [each["name"] for each in put] == ["b", "a"]
    assert put[1]["events"] == ["written"]
    assert put[0]["secret"] != put[1]["secret"]
    check_refused(
        server.ask("PUT", [definition(name="c"), definition(name="fixed")]), 409, "conflict"
    )
    assert server.listed().keys() == {"a", "b", "fixed"}


def test_a_hook_of_the_configuration_is_not_changed_here(server: HookServer) -> None:
    for reply in (
        server.ask("PUT", definition(name="fixed")),
        server.ask("DELETE", query="&name=fixed"),
    ):
        assert "in the configuration" in check_refused(reply, 409, "conflict")


def test_a_hook_may_have_the_form_of_functions(server: HookServer) -> None:
    assert server.put(form="functions-2")["form"] == "functions-2"
    assert server.listed()["orders"]["form"] == "functions-2"
    assert "form" not in server.put(form="event")
    assert "form" not in server.put()


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        (1, "A hook is an object with name"),
        ([], "An array has 1 to 32 hooks."),
        ([definition()] * 2, "The array has two hooks with the name orders."),
        ([definition(name=f"a{n}") for n in range(MAX_HOOKS + 1)], "An array has 1 to 32 hooks."),
        (definition(name=...), "A hook needs name."),
        (definition(url=...), "A hook needs url."),
        (definition(event=[]), "A hook has no member 'event': did you mean events?"),
        (definition(name="Orders"), "name must have a-z"),
        (definition(name=1), "name must have a-z"),
        (definition(on=1), "on must be the pattern of a path"),
        (definition(on="/a/$1"), "on: The name of a capture has letters"),
        (definition(on="/a" * 33), "on: A pattern has at most 32 keys."),
        (definition(on="/" + "a" * 2048), "on: A pattern has at most 2048 characters."),
        (definition(events=[]), "events must be an array of"),
        (definition(events="created"), "events must be an array of"),
        (definition(events=["written", "created"]), "events must be an array of"),
        (definition(events=[["created"]]), "events must be an array of"),
        (definition(url="http://hooks.example.com/"), "url is not https"),
        (definition(url="https://127.0.0.1/"), "url has an address inside"),
        (definition(url="https://u:p@hooks.example.com/"), "url has a user name"),
        (definition(url="https://a.example.com/" + "x" * 2048), "url has more than 2048"),
        (definition(url=1), "url must be a string."),
        (definition(form="functions"), "form must be event, functions-1 or functions-2."),
        (definition(form=[]), "form must be event, functions-1 or functions-2."),
        (definition(secret="short"), "secret must have 32 to 512 printable characters"),
        (definition(secret="\n" * 32), "secret must have 32 to 512 printable characters"),
        (definition(secret=1), "secret must have 32 to 512 printable characters"),
        (definition(keep_old_secret=1), "keep_old_secret must be true or false."),
        (b"{", "JSON"),
    ],
)
def test_a_bad_definition_is_refused_and_nothing_is_put(
    server: HookServer, body: Any, sentence: str
) -> None:
    assert sentence in check_refused(server.ask("PUT", body), 400, "invalid_data")
    assert server.listed().keys() == {"fixed"}


def test_a_receiver_inside_is_accepted_if_the_operator_allows_it(server: HookServer) -> None:
    assert server.put(url="http://10.1.2.3:8000/")["url"] == "http://10.1.2.3:8000/"


def test_what_is_too_large_is_refused(server: HookServer) -> None:
    large = b'{"name":"' + b"a" * MAX_HOOKS_BODY_BYTES
    check_refused(server.ask("PUT", large), 413, "payload_too_large")


def test_a_database_has_a_number_of_hooks_at_most(server: HookServer) -> None:
    many = [definition(name=f"a{number}") for number in range(MAX_HOOKS - 1)]
    assert server.ask("PUT", many).status == 200
    message = check_refused(server.ask("PUT", definition()), 409, "conflict")
    assert message.startswith("The database has 32 hooks")
    assert server.ask("PUT", many).status == 200  # the same ones
    assert server.ask("DELETE", query="&name=a0").status == 200
    assert server.put()["name"] == "orders"
    assert MAX_HOOKS < MAX_CURSORS


@pytest.mark.parametrize("query", ["", "&name=", "&name=A", "&name=a&name=b", "&name=%ff"])
def test_a_bad_name_is_not_removed(server: HookServer, query: str) -> None:
    check_refused(server.ask("DELETE", query=query), 400, "invalid_query")


def test_neither_conditions_nor_trials_are_possible(server: HookServer) -> None:
    for method in ("PUT", "DELETE"):
        reply = server.ask(method, definition(), "&name=a", 'If-Match: "x"')
        check_refused(reply, 400, "invalid_query")
        check_refused(server.ask(method, definition(), "&dryRun=true"), 400, "invalid_query")


def test_only_admins_see_and_change_hooks(server: HookServer) -> None:
    server.put()
    reader = token("own", admin=True, read_only=True)
    for sender, status, code in (
        ("rubbish", 401, "auth_required"),
        (user("own", "ada"), 403, "permission_denied"),
        (admin("foreign"), 401, "auth_required"),
    ):
        for method in ("GET", "PUT", "DELETE"):
            reply = server.ask(method, definition(), "&name=orders", token=sender)
            check_refused(reply, status, code)
    assert server.ask("GET", token=reader).status == 200
    for method in ("PUT", "DELETE"):
        refused = server.ask(method, definition(name="x"), "&name=orders", token=reader)
        check_refused(refused, 403, "permission_denied")
    assert server.listed().keys() == {"orders", "fixed"}
    check_refused(server.ask("GET", ns="room--foreign", token=admin("foreign")), 404, "not_found")


def test_an_explanation_changes_nothing(server: HookServer) -> None:
    for method in ("PUT", "DELETE", "GET"):
        reply = server.ask(method, definition(), "&name=x", "X-TreeDB-Explain: true")
        assert json.loads(reply.body)["allowed"] is True
    assert server.listed().keys() == {"fixed"}


def test_errors_are_in_the_dialect_of_the_client(server: HookServer) -> None:
    sent = json.dumps(definition(name=...)).encode()
    fields = (f"Authorization: Bearer {ADMIN}", "X-TreeDB-Dialect: firebase")
    reply = server.request("PUT", f"{PATH}?ns=own", sent, fields, "localhost")
    assert (reply.status, json.loads(reply.body)) == (400, {"error": "A hook needs name."})


def test_hooks_stay_over_a_restart(server: HookServer, tmp_path: pathlib.Path) -> None:
    server.put()
    before = server.listed()
    close(server.catalog)
    again = HookServer(tmp_path)
    assert again.listed() == before
    close(again.catalog)
