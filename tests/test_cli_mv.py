"""`treedb mv`: one write that is done whole or not at all, also while others write."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Mapping
from typing import Any

import pytest
import pytest_twisted

from tests.command import error_of, output_of, run_command, treedb
from tests.daemon import Daemon
from treedbd.cli.cp import (
    Move,
)
from treedbd.cli.exit import CommandFailed
from treedbd.cli.http_client import Body, HttpClient, UnreadResponse
from treedbd.cli.options import Url, parse_url
from treedbd.tree.types import Path

TREE: Any = {
    "users": {
        "ada": {"age": 36, "tags": {"0": "a", "2": "b"}, ".priority": 3},
        "leaf": {".value": "x", ".priority": "p"},
        ".priority": 1,
    },
    "z": 1,
}


@pytest.fixture
def root(shared_daemon: Daemon, request: pytest.FixtureRequest) -> str:
    """The URL of a database that no other test uses, with the tree."""
    name = request.node.name.partition("[")[0].replace("_", "-")[-60:].strip("-")
    root = shared_daemon.http.replace("127.0.0.1", f"{name}.localhost")
    assert run_command("set", root, json.dumps(TREE), "--silent").status == 0
    return root


async def exported(root: str) -> Any:
    return json.loads(await output_of("get", root, "--export"))


@pytest.mark.parametrize(
    ("source", "target", "expected"),
    [
        (
            "users/ada",
            "people/1/ada",
            {
                "people": {"1": {"ada": TREE["users"]["ada"]}},
                "users": {"leaf": TREE["users"]["leaf"], ".priority": 1},
                "z": 1,
            },
        ),
        (
            "users/leaf",
            "users/other",
            {
                "users": {
                    "ada": TREE["users"]["ada"],
                    "other": TREE["users"]["leaf"],
                    ".priority": 1,
                },
                "z": 1,
            },
        ),
        ("users", "people", {"people": TREE["users"], "z": 1}),
    ],
)
@pytest_twisted.ensureDeferred
async def test_a_value_is_moved_with_its_priorities(
    root: str, source: str, target: str, expected: object
) -> None:
    assert (await treedb("mv", f"{root}/{source}", f"{root}/{target}")).output == b""
    assert await exported(root) == expected


@pytest.mark.parametrize(
    ("source", "target", "sentence"),
    [
        ("users", "users/ada/x", "/users cannot be moved into itself."),
        ("users", "users", "/users cannot be moved into itself."),
        ("", "x", "/ cannot be moved into itself."),
        ("nothing", "x", "There is nothing at /nothing, so nothing was moved."),
        ("users", "z", "There is a value at /z already. --force replaces it."),
        ("users/ada", "users", "There is a value at /users already. --force replaces it."),
        ("users", "?ns=other", "mv moves within one database"),
        ("users?print=pretty", "x", "must have no other parameter than ns"),
    ],
)
@pytest_twisted.ensureDeferred
async def test_what_cannot_be_moved_is_refused_and_nothing_changes(
    root: str, source: str, target: str, sentence: str
) -> None:
    assert sentence in await error_of("mv", f"{root}/{source}", f"{root}/{target}")
    assert await exported(root) == TREE


@pytest_twisted.ensureDeferred
@pytest.mark.parametrize("target", ["z/x", "z/deep/er", "users/leaf/x"])
async def test_a_leaf_above_the_target_is_not_replaced(root: str, target: str) -> None:
    error = await error_of("mv", f"{root}/users/ada", f"{root}/{target}")
    assert error.startswith("There is a value at /")
    assert await exported(root) == TREE


@pytest_twisted.ensureDeferred
async def test_a_token_that_is_refused_is_what_the_error_says(root: str) -> None:
    urls = (f"{root}/users/ada", f"{root}/users/x")
    assert "token" in await error_of("mv", *urls, token="garbage")
    assert await exported(root) == TREE


@pytest_twisted.ensureDeferred
async def test_force_replaces_the_target_also_above_the_source(root: str) -> None:
    assert (await treedb("mv", f"{root}/users/leaf", f"{root}/z", "--force")).status == 0
    assert await exported(f"{root}/z") == TREE["users"]["leaf"]
    assert (await treedb("mv", f"{root}/users/ada", f"{root}/users", "--force")).status == 0
    assert await exported(root) == {"users": TREE["users"]["ada"], "z": TREE["users"]["leaf"]}


class Interrupted(HttpClient):
    """A client before whose writes another one writes, some times."""

    left = 1
    at = "/users/ada/age"

    def send(
        self,
        method: str,
        url: Url,
        headers: Mapping[str, str] | None = None,
        body: Body | None = None,
    ) -> UnreadResponse:
        if method == "PATCH" and self.left:
            self.left -= 1
            text = str(self.left).encode()
            other = parse_url(f"{url.origin}{self.at}.json")
            HttpClient().request("PUT", other, None, Body((text,), len(text))).content()
        return super().send(method, url, headers, body)


def test_a_change_in_between_is_moved_too_and_not_lost(root: str) -> None:
    def url_of(path: Path, parameters: dict[str, str]) -> Url:
        return parse_url(root).below(path).to_json().with_parameters(parameters)

    client = Interrupted()
    Move(client, url_of, ("users", "ada"), ("users", "eve")).run(replaces=False)
    moved = json.loads(run_command("get", root, "--export").text)["users"]
    assert moved.pop("eve") == {**TREE["users"]["ada"], "age": 0}
    assert "ada" not in moved
    client.left, client.at = 5, "/users/eve/age"
    with pytest.raises(CommandFailed, match=r"Others have changed /users each time, 3 times"):
        Move(client, url_of, ("users", "eve"), ("users", "ada")).run(3, replaces=False)
    assert "eve" in json.loads(run_command("get", root).text)["users"]


def test_a_value_larger_than_a_body_stays_where_it_is(tmp_path: pathlib.Path) -> None:
    config = (
        "default_project = 'demo'\nemulator = true\n[limits]\nwrite_body_bytes = 10_000\n"
        "[projects.demo]\nrules_file = 'open.json'\n"
    )
    rules = {"rules": {"a": {".read": True, ".write": True}}}
    (tmp_path / "open.json").write_text(json.dumps(rules))
    with Daemon(tmp_path, config=config) as daemon:
        value = json.dumps({"x": "x" * 6000, "y": "y" * 6000})
        for part in ("x", "y"):
            url = f"{daemon.http}/a/b/{part}"
            assert run_command("set", url, json.dumps(part * 6000), "--silent").status == 0
        error = run_command("mv", f"{daemon.http}/a/b", f"{daemon.http}/a/c").error
        assert error.startswith("413 payload_too_large")
        assert "Nothing was moved" in error
        assert json.loads(run_command("get", f"{daemon.http}/a").text) == {"b": json.loads(value)}
        error = run_command("mv", f"{daemon.http}/a/b", f"{daemon.http}/d").error
        assert error.startswith("403 permission_denied")
        assert "mv reads /, which is above both paths" in error


def test_the_shell_moves_and_needs_a_flag_to_replace(root: str) -> None:
    done = run_command("shell", f"{root}/users", "-c", "mv ada ../eve; ls; ls /")
    assert done.text.splitlines() == ["leaf", "eve", "users", "z"]
    assert "--force replaces it" in run_command("shell", root, "-c", "mv eve z").errors
    assert run_command("shell", root, "-c", "mv -f eve z; ls").text.splitlines() == ["users", "z"]
