"""Webhooks of a real daemon: delivered over kills, dead letters over HTTP and by the command."""

from __future__ import annotations

import hashlib
import hmac
import json
import pathlib
import ssl
import threading
from collections import defaultdict
from collections.abc import Iterator
from typing import Any, Final

import pytest
import trustme

from tests.access import admin, at, user, write_secret
from tests.command import run_command
from tests.daemon import Daemon, Response
from tests.hooks.receiver import Received, Receiver

ADMIN: Final = admin("shop")
EVENTS: Final = 300
PATHS: Final = 12
CONFIG: Final = """
[webhooks]
allow = ["127.0.0.1/32", "localhost"]
first_wait_s = 0.02
longest_wait_s = 0.2
timeout_s = 2.0
attempts = {attempts}
[projects.shop]
secret_files = ["shop.secret"]
[[projects.shop.webhooks]]
name = "orders"
on = "/orders/$id"
url = "http://127.0.0.1:{port}/orders?key=hidden-in-the-url"
secret_file = "shop.secret"
"""


@pytest.fixture(scope="module")
def receiver() -> Iterator[Receiver]:
    with Receiver() as made:
        yield made


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture(scope="module")
def daemon(
    tmp_path_factory: pytest.TempPathFactory, receiver: Receiver, authority: trustme.CA
) -> Iterator[Daemon]:
    folder = tmp_path_factory.mktemp("daemon")
    write_secret(folder, "shop")
    authority.cert_pem.write_to_path(str(folder / "ca.pem"))
    config = CONFIG.format(port=receiver.port, attempts=3)
    environment = {"SSL_CERT_FILE": str(folder / "ca.pem")}
    with Daemon(folder, config=config, environment=environment) as running:
        yield running


def send(daemon: Daemon, method: str, path: str, body: object = None) -> Response:
    text = "" if body is None else json.dumps(body)
    return daemon.request(method, at(path, ADMIN, ns="shop"), text)


def put(daemon: Daemon, path: str, value: object) -> None:
    assert send(daemon, "PUT", f"/{path}.json", value).status == 200


def test_events_reach_a_receiver_that_fails_half_the_time_over_kills(
    tmp_path: pathlib.Path,
) -> None:
    write_secret(tmp_path, "shop")
    seen: dict[str, list[int]] = defaultdict(list)
    done: dict[str, set[int]] = defaultdict(set)
    is_counting = threading.Lock()

    def respond(received: Received) -> int:
        event = received.event
        with is_counting:
            count = sum(map(len, seen.values()))
            seen[event["path"]].append(event["after"])
            if count * 7 % 13 < 6:
                return 500 if count % 5 else 0
            done[event["path"]].add(event["after"])
        return 200

    with Receiver() as receiver:
        receiver.respond = respond
        config = CONFIG.format(port=receiver.port, attempts=100)
        with Daemon(tmp_path, config=config) as daemon:
            for number in range(EVENTS // PATHS):
                values = {f"k{key}": number * PATHS + key for key in range(PATHS)}
                assert send(daemon, "PATCH", "/orders.json", values).status == 200
                if number % 8 == 7:
                    receiver.wait(lambda: sum(map(len, done.values())))
                    daemon.kill()
                    daemon.start()
            receiver.wait(lambda: sum(map(len, done.values())) == EVENTS)
    for key in range(PATHS):
        firsts = list(dict.fromkeys(seen[f"/orders/k{key}"]))
        assert firsts == list(range(key, EVENTS, PATHS))
        assert done[f"/orders/k{key}"] == set(firsts)


def verify(received: Received, secret: str) -> bool:
    """Return whether a request is signed, as `docs/webhooks.md` says."""
    signed = received.headers["X-TreeDB-Timestamp"].encode() + b"." + received.body
    expected = "v1=" + hmac.new(secret.encode(), signed, hashlib.sha256).hexdigest()
    return expected in received.headers["X-TreeDB-Signature"].split(",")


def dead(daemon: Daemon, query: str = "&name=orders") -> Any:
    found = daemon.request("GET", at("/.settings/webhooks/dead.json", ADMIN, ns="shop") + query)
    assert found.status == 200, found.body
    return found.json


def command(daemon: Daemon, name: str, *words: str) -> Any:
    return run_command("hooks", name, f"{daemon.http}/?ns=shop", "orders", *words, token=ADMIN)


def test_dead_letters_are_listed_replayed_and_discarded(daemon: Daemon, receiver: Receiver) -> None:
    receiver.respond = lambda received: 422
    begin = len(receiver.received)
    for number in range(3):
        put(daemon, f"orders/dead{number}", number)
    receiver.wait(lambda: len(receiver.received) >= begin + 9)
    while len(dead(daemon)["letters"]) < 3:
        put(daemon, "others", 1)
    listed = dead(daemon)
    assert [each["event"]["after"] for each in listed["letters"]] == [0, 1, 2]
    assert listed["letters"][0].items() >= {"attempts": 3, "error": "it answered 422: said"}.items()
    ids = [each["id"] for each in listed["letters"]]
    page = dead(daemon, "&name=orders&limitToFirst=1")
    assert (page["next"], [each["id"] for each in page["letters"]]) == (ids[0], ids[:1])
    rest = dead(daemon, f"&name=orders&startAfter={ids[0]}")
    assert (rest["next"], [each["id"] for each in rest["letters"]]) == (None, ids[1:])
    assert (
        command(daemon, "dead")
        .text.splitlines()[0]
        .startswith(f"{ids[0]}  created /orders/dead0, 3 attempts, the last at ")
    )
    receiver.respond = lambda received: 200
    begin = len(receiver.received)
    assert command(daemon, "replay", ids[1]).text == "orders: 1 event delivered again"
    receiver.wait(lambda: len(receiver.received) > begin)
    assert receiver.received[-1].headers["X-TreeDB-Event-Id"] == ids[1]
    assert receiver.received[-1].headers["X-TreeDB-Attempt"] == "4"
    assert command(daemon, "discard", ids[0]).text == "orders: 1 event discarded"
    assert command(daemon, "discard", "--all").text == "orders: 1 event discarded"
    assert dead(daemon)["letters"] == []
    assert command(daemon, "replay").status == 1


def test_the_state_of_a_hook_is_shown_without_its_url_or_secrets(
    daemon: Daemon, receiver: Receiver
) -> None:
    receiver.respond = lambda received: 200
    begin = len(receiver.received)
    put(daemon, "orders/shown", 1)
    receiver.wait(lambda: len(receiver.received) > begin)
    assert verify(receiver.received[-1], (daemon.folder / "shop.secret").read_text().strip())
    (shown,) = send(daemon, "GET", "/.settings/webhooks.json").json["webhooks"]
    assert shown["state"].keys() >= {"underWay", "sent", "lastSuccess", "lastError", "nextAttempt"}
    assert shown["state"]["paused"] is None
    assert "hidden-in-the-url" not in daemon.log
    assert str(receiver.port) not in json.dumps(shown["state"])


def test_a_webhook_is_tried(daemon: Daemon, receiver: Receiver) -> None:
    receiver.respond = lambda received: 200
    assert command(daemon, "test").text == "orders: the receiver answered 200: said"
    assert receiver.received[-1].event["kind"] == "test"
    receiver.respond = lambda received: 503
    assert "the receiver answered 503" in command(daemon, "test").errors


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("localhost", None),
        ("other.example.com", "its certificate is for another name"),
        ("", "its certificate is not signed by a trusted authority"),
    ],
)
def test_the_certificate_of_a_receiver_is_verified(
    daemon: Daemon, authority: trustme.CA, name: str, problem: str | None
) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    signer = authority if name else trustme.CA()
    signer.issue_cert(name or "localhost").configure_cert(context)
    with Receiver(context) as receiver:
        hook = {"name": "tls", "on": "/tls/$id", "events": ["written"]}
        hook["url"] = f"https://localhost:{receiver.port}/"
        assert send(daemon, "PUT", "/.settings/webhooks.json", hook).status == 200
        tried = send(daemon, "POST", "/.settings/webhooks/test.json", {"name": "tls"}).json
        assert (tried["status"], tried["answer"]) == (
            (200, "said") if problem is None else (None, problem)
        )
        assert len(receiver.received) == (problem is None)


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("GET", "dead.json", None, 400),
        ("DELETE", "dead.json", None, 400),
        ("POST", "dead.json", {"name": "orders"}, 400),
        ("POST", "dead.json", {"name": "orders", "ids": []}, 400),
        ("POST", "dead.json", {"name": "orders", "ids": ["x"]}, 400),
        ("POST", "dead.json", {"name": "orders", "ids": "all", "x": 1}, 400),
        ("POST", "dead.json", {"name": "none", "ids": "all"}, 404),
        ("POST", "dead.json", [], 400),
        ("POST", "test.json", {"name": "none"}, 404),
        ("POST", "test.json", {"name": 1}, 400),
    ],
)
def test_requests_that_are_refused(
    daemon: Daemon, method: str, path: str, body: object, status: int
) -> None:
    assert send(daemon, method, f"/.settings/webhooks/{path}", body).status == status


def test_only_admins_see_dead_letters(daemon: Daemon) -> None:
    target = at("/.settings/webhooks/dead.json", user("shop", "ada"), ns="shop")
    assert daemon.request("GET", target + "&name=orders").status == 401
