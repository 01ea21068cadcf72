"""Rules from the command line: checked without a daemon, read, set and explained by one."""

from __future__ import annotations

import json
import pathlib

import pytest
import pytest_twisted

from tests.command import mint, sentence, text, treedb
from tests.daemon import Daemon
from treedbd.cli.rules import show_verdict

OPEN = '{"rules":{".read":true,".write":true}}'
RULES = """{
  // Users have a place of their own.
  "rules": {"users": {"$user": {
    ".read": "auth.uid === $user",
    ".write": "auth.uid === $user",
    ".validate": "newData.child('age').val() + 1 > 1"
  }}}
}
"""


@pytest.fixture
def host(request: pytest.FixtureRequest) -> str:
    """The host of a project that no other test uses."""
    name = request.node.name.replace("_", "-").replace("[", "-").rstrip("]")[-60:].strip("-")
    return f"{name}.localhost"


@pytest.fixture
def project(shared_daemon: Daemon, host: str) -> str:
    """The URL of the project."""
    return shared_daemon.http.replace("127.0.0.1", host)


@pytest.fixture
def admin(shared_daemon: Daemon, host: str) -> str:
    """The token of an administrator of the project."""
    return mint(shared_daemon, host, "root", "--admin")


@pytest_twisted.ensureDeferred
async def test_good_rules_are_said_to_be(tmp_path: pathlib.Path) -> None:
    file = tmp_path / "rules.json"
    file.write_text(RULES)
    assert await text("rules", "check", file) == f"{file}: ok"
    assert await text("rules", "check", "-", given=OPEN.encode()) == "-: ok"


@pytest_twisted.ensureDeferred
async def test_bad_rules_are_told_with_their_place(tmp_path: pathlib.Path) -> None:
    file = tmp_path / "rules.json"
    file.write_text('{"rules": {\n  ".read": "nobody"\n}}')
    assert await sentence("rules", "check", file) == f"{file}:2:13: Unknown variable 'nobody'."
    missing = tmp_path / "none"
    assert "cannot be read (No such file" in await sentence("rules", "check", missing)


@pytest_twisted.ensureDeferred
async def test_rules_are_checked_by_the_limits_of_the_configuration(tmp_path: pathlib.Path) -> None:
    config = tmp_path / "treedb.toml"
    config.write_text("[rules]\nexpression_bytes = 10\n")
    told = await sentence("rules", "check", "-", "--config", config, given=RULES.encode())
    assert told.startswith("-:4:15: ")
    assert await text("rules", "check", "-", "--config", config, given=OPEN.encode()) == "-: ok"


@pytest_twisted.ensureDeferred
async def test_rules_are_put_and_read_back_as_they_were(
    project: str, admin: str, tmp_path: pathlib.Path
) -> None:
    file = tmp_path / "rules.json"
    file.write_text(RULES)
    assert await text("rules", "get", project, token=admin) == OPEN
    assert await text("rules", "put", project, file, token=admin) == '{"status":"ok"}'
    assert (await treedb("rules", "get", project, token=admin)).output.decode() == RULES
    assert "403 permission_denied" in await sentence("get", project)


@pytest.mark.parametrize("words", [[], ["-"], ['{"rules": {}}']])
@pytest_twisted.ensureDeferred
async def test_rules_come_from_standard_input_too_or_stand_there(
    project: str, admin: str, words: list[str]
) -> None:
    given = b'{"rules": {}}'
    assert await text("rules", "put", project, *words, token=admin, given=given)
    assert await text("rules", "get", f"{project}/.json", token=admin) == '{"rules": {}}'


@pytest_twisted.ensureDeferred
async def test_a_dry_run_changes_nothing(project: str, admin: str) -> None:
    assert await text("rules", "put", project, "--dry-run", '{"rules":{}}', token=admin)
    assert await text("rules", "get", project, token=admin) == OPEN
    told = await sentence(
        "rules", "put", project, "--dry-run", '{"rules":{".read":"no"}}', token=admin
    )
    assert told == "400: 1:20: Unknown variable 'no'."


@pytest_twisted.ensureDeferred
async def test_rules_are_for_administrators(shared_daemon: Daemon, host: str, project: str) -> None:
    user = mint(shared_daemon, host, "ada")
    for command in (["get", project], ["put", project, OPEN], ["explain", project]):
        assert "401 auth_required" in await sentence("rules", *command)
        assert "401: Permission denied" in await sentence("rules", *command, token=user)


@pytest_twisted.ensureDeferred
async def test_a_verdict_is_explained(project: str, admin: str) -> None:
    assert await text("rules", "put", project, RULES, token=admin)
    ada, eve = '{"uid": "ada"}', '{"uid": "eve"}'
    place = f"{project}/users/ada"

    async def explain(*words: str) -> list[str]:
        return (await text("rules", "explain", place, *words, token=admin)).splitlines()

    assert await explain("--auth", ada) == [
        "allowed",
        "  rules/users/$user/.read (4:15) at /users/ada: true",
    ]
    assert await explain("--auth", eve) == [
        "denied",
        "  rules/users/$user/.read (4:15) at /users/ada: false",
    ]
    assert (await explain("--auth", ada, "--method", "put", '{"age": 7}'))[0] == "allowed"
    assert await explain("--auth", ada, "--method", "PUT", '{"age": true}') == [
        "denied",
        "  rules/users/$user/.write (5:16) at /users/ada: true",
        "  rules/users/$user/.validate (6:19) at /users/ada: error: + takes numbers and strings.",
    ]
    assert (await explain())[0] == "allowed: an administrator skips the rules"
    assert (await explain("--auth", "null"))[0] == "denied"
    (raw,) = await explain("--auth", eve, "--json")
    assert json.loads(raw)["allowed"] is False
    assert await text("get", place, token=admin) == "null"


def test_an_explanation_cannot_move_a_cursor() -> None:
    rule = {"rule": "r", "path": "/\x1b[2J\n", "line": 1, "column": 1, "result": True}
    lines = show_verdict({"allowed": True, "admin": False, "rules": [rule]})
    assert lines == ["allowed", "  r (1:1) at /�[2J�: true"]
