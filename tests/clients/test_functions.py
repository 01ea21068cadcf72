"""Functions of Firebase run against treedb, of both generations, by the packages on npm.

The tools of Firebase register the functions in `functions`, the functions framework runs them, and
they write what they have seen by the admin SDK. One process runs all of them, at the paths of the
functions emulator.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlsplit

import attrs
import pytest

from tests.clients.harness import converse_with_node
from tests.daemon import Daemon
from tests.rest import Client
from tests.system import find_port, wait_until

PROJECT = "demo-x"
CONFIG = """
emulator = true
domains = ["localhost"]
default_project = "demo-x"

[functions]
url = "http://127.0.0.1:{port}"

[webhooks]
allow = ["127.0.0.1"]
first_wait_s = 0.1
longest_wait_s = 0.2

[projects.demo-x]
databases = "*"
"""
ORDER = {"lines": ["pen", "ink"], "paid": False, "to": {"city": "Kyiv", "street": "Street"}}
PAID = {"lines": ["pen"], "paid": True, "to": {"city": "Kyiv"}}
TRIGGERS = "/.settings/functionTriggers.json"


@attrs.frozen
class Functions:
    """A daemon, and the process that runs the functions and has registered them."""

    daemon: Daemon
    ask: Callable[[Any], Any]
    port: int

    def request(self, method: str, path: str, value: Any = None, ns: str = PROJECT) -> Any:
        """Send a request as the owner; return the answer."""
        body = None if value is None else json.dumps(value)
        with Client(self.daemon, "localhost") as client:
            target = f"{path}?ns={ns}"
            reply = client.request(method, target, body, {"Authorization": "Bearer owner"})
            assert reply.status == 200, reply
            return reply.json

    def seen(self, order: str, calls: int, ns: str = PROJECT) -> dict[str, list[Any]]:
        """Return what each function has seen of an order, when there were so many calls."""

        def find() -> dict[str, list[Any]]:
            seen = self.request("GET", "/seen.json", ns=ns) or {}
            return {name: [*each[order].values()] for name, each in seen.items() if order in each}

        wait_until(lambda: sum(map(len, find().values())) >= calls)
        return find()


@pytest.fixture(scope="module")
def functions(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Functions]:
    folder = tmp_path_factory.mktemp("functions")
    port = find_port()
    with Daemon(folder, config=CONFIG.format(port=port)) as daemon:
        host = urlsplit(daemon.http).netloc
        variables = {
            "FIREBASE_CONFIG": json.dumps(
                {"projectId": PROJECT, "databaseURL": f"http://{host}/?ns={PROJECT}"}
            ),
            "FIREBASE_DATABASE_EMULATOR_HOST": host,
            "GCLOUD_PROJECT": PROJECT,
            "PLAY_PORT": str(port),
        }
        with converse_with_node("play_functions.cjs", folder, variables) as ask:
            assert len(ask({"register": True})) == 8
            yield Functions(daemon, ask, port)


def test_functions_of_both_generations_see_what_happens(functions: Functions) -> None:
    functions.request("PUT", "/orders/a.json", ORDER)
    functions.request("PUT", "/orders/a.json", PAID)
    functions.request("DELETE", "/orders/a.json")
    seen = functions.seen("a", 12)
    written = [{"after": ORDER}, {"before": ORDER, "after": PAID}, {"before": PAID}]
    assert seen["writtenFirst"] == seen["writtenSecond"] == written
    assert seen["updatedFirst"] == seen["updatedSecond"] == [written[1]]
    assert seen["deletedFirst"] == seen["deletedSecond"] == [written[2]]
    assert seen["createdFirst"] == [{"after": ORDER, "authType": "ADMIN"}]
    assert seen["createdSecond"] == [{"after": ORDER, "authType": "admin"}]
    functions.ask({"calls": True})


def test_functions_of_the_second_generation_are_of_all_databases(functions: Functions) -> None:
    functions.request("PUT", "/orders/b.json", 1, ns="eu--demo-x")
    seen = functions.seen("b", 2, ns="eu--demo-x")
    assert {*seen} == {"createdSecond", "writtenSecond"}


def test_the_triggers_are_listed_as_they_were_registered(functions: Functions) -> None:
    listed = {each["name"]: each for each in functions.request("GET", TRIGGERS)}
    assert len(listed) == 8
    name = f"projects/{PROJECT}/locations/_/functions/us-central1-createdFirst-0"
    assert listed[name] == {
        "name": name,
        "path": "/orders/{id}",
        "event": "providers/google.firebase.database/eventTypes/ref.create",
        "topic": f"projects/{PROJECT}/topics/us-central1-createdFirst-0",
    }


def test_a_function_that_fails_is_called_once_and_one_that_is_busy_again(
    functions: Functions,
) -> None:
    def calls() -> list[Any]:
        found.extend(functions.ask({"calls": True}))
        return found

    found: list[Any] = []
    functions.ask({"status": 500})
    functions.request("PUT", "/orders/c.json", 1)
    wait_until(lambda: len(calls()) >= 4)
    functions.ask({"status": 503})
    functions.request("PUT", "/orders/d.json", 1)
    wait_until(lambda: len(calls()) >= 12)
    functions.ask({"status": 0})
    assert {*functions.seen("d", 4)} == {
        *("createdFirst", "createdSecond", "writtenFirst", "writtenSecond")
    }
    assert [each["status"] for each in calls()].count(500) == 4
    assert functions.request("GET", "/seen/createdFirst/c.json") is None


def test_a_webhook_of_their_form_calls_a_function_without_registration(
    functions: Functions,
) -> None:
    functions.request("PUT", TRIGGERS, [])
    port = functions.port
    url = f"http://127.0.0.1:{port}/functions/projects/{PROJECT}/triggers"
    hooks = [
        {
            "name": name.lower(),
            "on": "/orders/$id",
            "events": ["updated"],
            "url": f"{url}/us-central1-{name}-0",
            "form": form,
        }
        for name, form in (("updatedFirst", "functions-1"), ("updatedSecond", "functions-2"))
    ]
    functions.request("PUT", "/.settings/webhooks.json", hooks)
    for value in (1, 2):
        functions.request("PUT", "/orders/f.json", value)
    seen = functions.seen("f", 2)
    assert seen["updatedFirst"] == seen["updatedSecond"] == [{"before": 1, "after": 2}]


def test_a_put_of_none_removes_them_everywhere(functions: Functions) -> None:
    functions.request("PUT", "/orders/e.json", 1, ns="eu--demo-x")
    functions.request("PUT", TRIGGERS, [])
    for ns in (PROJECT, "eu--demo-x", "later--demo-x"):
        assert functions.request("GET", TRIGGERS, ns=ns) == []
