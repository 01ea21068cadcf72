"""`treedb hooks`: hooks listed, put and removed; `treedb import` without events for them."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Iterator
from typing import Any

import pytest

from tests.access import admin, at, write_secret
from tests.command import CommandResult, run_command
from tests.daemon import Daemon

CONFIG = """
[webhooks]
events_per_write = 100
allow = ["127.0.0.1/32"]
[projects.cli]
secret_files = ["cli.secret"]
databases = "*"
[[projects.cli.webhooks]]
name = "fixed"
on = "/fixed/$id"
url = "http://127.0.0.1:9/"
secret_file = "cli.secret"
databases = ["default"]
"""
ADMIN = admin("cli")
RECEIVER = "https://shop.example.com/orders"


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    folder = tmp_path_factory.mktemp("daemon")
    write_secret(folder, "cli")
    with Daemon(folder, config=CONFIG) as running:
        for label in ("cli", "room--cli"):
            assert running.request("PUT", at("/a.json", ADMIN, ns=label), "1").status == 200
        yield running


def hooks(daemon: Daemon, command: str, *words: str, ns: str = "cli") -> CommandResult:
    return run_command("hooks", command, f"{daemon.http}/?ns={ns}", *words, token=ADMIN)


def put(daemon: Daemon, *options: str) -> CommandResult:
    return hooks(daemon, "put", "orders", "/orders/$id", RECEIVER, *options)


def listed(daemon: Daemon) -> dict[str, Any]:
    lines = map(json.loads, hooks(daemon, "list", "--json").text.splitlines())
    return {each["name"]: each for each in lines}


def test_a_hook_is_put_listed_and_removed(daemon: Daemon) -> None:
    made = put(daemon, "--events", "created,deleted")
    assert made.status == 0
    first, second = made.output.decode().splitlines()
    assert first == "orders: put on /orders/$id"
    assert len(second.removeprefix("secret: ")) == 64
    assert "is not shown again" in made.errors
    head, fixed, orders = hooks(daemon, "list").text.splitlines()
    assert head.split() == ["UNSENT", "AGE", "EVENTS", "HOOK"]
    assert fixed.endswith(
        "written                  fixed on /fixed/$id to http://127.0.0.1:9/, in the configuration"
    )
    assert orders.split(None, 3)[3] == (
        f"created,deleted          orders on /orders/$id to {RECEIVER}"
    )
    assert put(daemon).text == "orders: put on /orders/$id"
    assert listed(daemon)["orders"]["events"] == ["written"]
    assert hooks(daemon, "remove", "orders").text == "orders: removed"
    assert listed(daemon).keys() == {"fixed"}


def test_a_hook_for_what_is_volatile_alone_is_warned_of(daemon: Daemon) -> None:
    rules = '{"rules": {"here": {"$user": {".volatile": true}}}}'
    path = at("/.settings/rules.json", ADMIN, ns="cli")
    assert daemon.request("PUT", path, rules).status == 200
    made = hooks(daemon, "put", "here", "/here/$user/x", RECEIVER)
    assert made.status == 0
    assert "There are no events of /here/$user/x: the rules make it volatile" in made.errors
    assert listed(daemon)["here"]["volatile"] is True
    assert "volatile" not in listed(daemon)["fixed"]
    assert "volatile: no events" in hooks(daemon, "list").text
    words = ("--url", f"{daemon.http}/?ns=cli", "--on", "/here/$user", "--once", "--", "true")
    run = run_command("run", *words, token=ADMIN, folder=daemon.folder)
    assert (run.status, "There are no events of /here/$user:" in run.errors) == (0, True)
    hooks(daemon, "remove", "here")


def test_secrets_are_replaced(daemon: Daemon, tmp_path: pathlib.Path) -> None:
    file = tmp_path / "secret"
    file.write_text("s" * 32 + "\n")
    assert put(daemon, "--secret-file", str(file)).text == "orders: put on /orders/$id"
    both = put(daemon, "--new-secret", "--keep-old-secret", "--json")
    shown = json.loads(both.text)
    assert (shown["secrets"], len(shown["secret"])) == (2, 64)
    put(daemon, "--drop-old-secret")
    assert listed(daemon)["orders"]["secrets"] == 1
    hooks(daemon, "remove", "orders")


def test_what_is_wrong_is_one_sentence(daemon: Daemon, tmp_path: pathlib.Path) -> None:
    file = tmp_path / "secret"
    missing = put(daemon, "--secret-file", str(file)).error
    assert missing == f"{file} cannot be read (No such file or directory)."
    file.write_bytes(b"\xff" * 32)
    assert "more than characters of ASCII" in put(daemon, "--secret-file", str(file)).error
    file.write_text("short")
    assert "secret must have 32" in put(daemon, "--secret-file", str(file)).error
    assert "events must be an array" in put(daemon, "--events", "made").error
    assert "There is no hook none." in hooks(daemon, "remove", "none").error
    assert "in the configuration" in hooks(daemon, "remove", "fixed").error
    inside = hooks(daemon, "put", "inside", "/a", "https://10.0.0.1/")
    assert "url has an address inside" in inside.error


def test_an_import_has_no_events_if_they_are_disabled(
    daemon: Daemon, tmp_path: pathlib.Path
) -> None:
    hooks(daemon, "put", "orders", "/$all/$id", RECEIVER, ns="room--cli")
    file = tmp_path / "orders.json"
    file.write_text(json.dumps({f"o{number}": {"n": number} for number in range(1000)}))
    words = ("import", str(file), f"{daemon.http}/orders?ns=room--cli", "--quiet")
    refused = run_command(*words, token=ADMIN)
    assert refused.status == 1
    assert "This write would have more than 100 events (events_per_write)" in refused.errors
    assert run_command(*words, "--disable-triggers", token=ADMIN).status == 0
    value = daemon.request("GET", at("/orders.json", ADMIN, ns="room--cli")).json
    assert len(value) == 1000
