"""Rules from the command line: checked without a daemon; read, put and explained with one."""

from __future__ import annotations

import json
import pathlib
import re

import pytest
import pytest_twisted

from tests.command import error_of, mint, output_of, treedb
from tests.daemon import Daemon
from treedbd.cli.rules import explanation_lines, show_versions

OPEN = '{"rules":{".read":true,".write":true}}'
RULES = """{
  // Each user has a path of their own.
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
    """The token of an admin of the project."""
    return mint(shared_daemon, host, "root", "--admin")


@pytest_twisted.ensureDeferred
async def test_valid_rules_are_reported_as_ok(tmp_path: pathlib.Path) -> None:
    file = tmp_path / "rules.json"
    file.write_text(RULES)
    assert await output_of("rules", "check", file) == f"{file}: ok"
    assert await output_of("rules", "check", "-", stdin=OPEN.encode()) == "-: ok"
    volatile = b'{"rules": {"a": {".volatile": true}, "b": {"$c": {".volatile": {"hz": 7}}}}}'
    assert (await output_of("rules", "check", "-", stdin=volatile)).splitlines() == [
        "-: /a is volatile: in memory alone",
        "-: /b/$c is volatile: in memory alone, at most 7 events a second",
        "-: ok",
    ]


@pytest_twisted.ensureDeferred
async def test_invalid_rules_are_reported_with_line_and_column(tmp_path: pathlib.Path) -> None:
    file = tmp_path / "rules.json"
    file.write_text('{"rules": {\n  ".read": "nobody"\n}}')
    result = await treedb("rules", "check", file)
    assert (result.status, result.output) == (1, b"")
    assert result.errors.splitlines() == [
        f"treedb: {file}:2:13: Unknown variable 'nobody'.",
        '      ".read": "nobody"',
        "                ^",
    ]
    missing = tmp_path / "none"
    assert "cannot be read (No such file" in await error_of("rules", "check", missing)


@pytest_twisted.ensureDeferred
async def test_the_errors_of_all_rules_are_reported() -> None:
    text = b'{"rules": {\n  ".read": "nobody",\n  "a": {".write": "1"}\n}}'
    result = await treedb("rules", "check", "-", stdin=text)
    assert result.status == 1
    assert result.errors.splitlines() == [
        "treedb: -:2:13: Unknown variable 'nobody'.",
        '      ".read": "nobody",',
        "                ^",
        "treedb: -:3:20: Expression must evaluate to a boolean. Compare it, as in … > 0.",
        '      "a": {".write": "1"}',
        "                       ^",
    ]


@pytest_twisted.ensureDeferred
async def test_rules_are_checked_by_the_limits_of_the_configuration(tmp_path: pathlib.Path) -> None:
    config = tmp_path / "treedb.toml"
    config.write_text("[rules]\nexpression_bytes = 10\n")
    result = await treedb("rules", "check", "-", "--config", config, stdin=RULES.encode())
    assert result.status == 1
    assert result.errors.startswith("treedb: -:4:15: ")
    assert (
        await output_of("rules", "check", "-", "--config", config, stdin=OPEN.encode()) == "-: ok"
    )


@pytest_twisted.ensureDeferred
async def test_a_misspelt_name_is_shown_with_a_hint(tmp_path: pathlib.Path) -> None:
    file = tmp_path / "rules.json"
    file.write_text('{"rules": {\n\t".write": "root\n\t\t.child(\'a\')\n\t\t.exist()"\n}}')
    result = await treedb("rules", "check", file)
    assert result.errors.splitlines() == [
        f"treedb: {file}:4:4: No such method/property 'exist'. Did you mean 'exists'?",
        '    \t\t.exist()"',
        "    \t\t ^",
    ]


@pytest_twisted.ensureDeferred
async def test_rules_with_a_warning_are_ok_and_it_is_shown() -> None:
    document = b'{"rules": {".read": "auth.uid.matches(/^a|b$/)"}}'
    result = await treedb("rules", "check", "-", stdin=document)
    assert (result.status, result.output) == (0, b"-: ok\n")
    warning, line, caret = result.errors.splitlines()
    assert warning.startswith("treedb: -:1:42: warning: ^ and $ bind the whole pattern")
    assert line == f"    {document.decode()}"
    assert caret == " " * (4 + 41) + "^"


@pytest_twisted.ensureDeferred
async def test_text_that_is_not_utf_8_is_shown_as_far_as_it_can_be() -> None:
    result = await treedb("rules", "check", "-", stdin=b'{"rules": {"\xff": 1}}')
    assert result.errors.splitlines() == [
        "treedb: -:1:13: The text is not UTF-8.",
        '    {"rules": {"\ufffd": 1}}',
        "                ^",
    ]


@pytest_twisted.ensureDeferred
async def test_rules_are_put_and_read_back_as_they_were(
    project: str, admin: str, tmp_path: pathlib.Path
) -> None:
    file = tmp_path / "rules.json"
    file.write_text(RULES)
    assert await output_of("rules", "get", project, token=admin) == OPEN
    assert await output_of("rules", "put", project, file, token=admin) == '{"status":"ok"}'
    assert (await treedb("rules", "get", project, token=admin)).output.decode() == RULES
    assert "403 permission_denied" in await error_of("get", project)


@pytest_twisted.ensureDeferred
async def test_versions_are_listed_and_printed(
    shared_daemon: Daemon, host: str, project: str, admin: str
) -> None:
    assert (await treedb("rules", "log", project, token=admin)).output == b""
    other = mint(shared_daemon, host, "ada", "--admin")
    for text, token in ((OPEN, admin), ('{"rules":{}}', other)):
        assert await output_of("rules", "put", project, text, token=token)
    second, first = (await output_of("rules", "log", project, token=admin)).split("\n")
    assert re.fullmatch(r"2  20\S+\+00:00  12 bytes  ada  in force", second)
    assert re.fullmatch(r"1  20\S+\+00:00  38 bytes  root", first)
    listed = json.loads(await output_of("rules", "log", project, "--json", token=admin))
    assert [each["uid"] for each in listed] == ["ada", "root"]
    assert await output_of("rules", "get", project, "--version", "1", token=admin) == OPEN
    error = await error_of("rules", "get", project, "--version", "7", token=admin)
    assert error.startswith("404 not_found: There is no version 7 of the rules")
    result = await treedb("rules", "get", project, "--version", "0", token=admin)
    assert result.status == 2


def test_what_is_not_known_of_a_version_is_said() -> None:
    version = {"version": 1, "bytes": 1000, "is_current": True}
    named = version | {"time": "2026-11-28T18:00:00.000+00:00", "uid": None, "admin": True}
    unknown = version | {"version": 10, "time": None, "uid": None, "admin": False}
    assert show_versions([unknown, named]) == [
        "10  not known                      1000 bytes  not known  in force",
        " 1  2026-11-28T18:00:00.000+00:00  1000 bytes  an admin  in force",
    ]


@pytest.mark.parametrize("words", [[], ["-"], ['{"rules": {}}']])
@pytest_twisted.ensureDeferred
async def test_rules_may_come_from_standard_input_or_the_command_line(
    project: str, admin: str, words: list[str]
) -> None:
    document = b'{"rules": {}}'
    assert await output_of("rules", "put", project, *words, token=admin, stdin=document)
    assert await output_of("rules", "get", f"{project}/.json", token=admin) == '{"rules": {}}'


@pytest_twisted.ensureDeferred
async def test_a_dry_run_changes_nothing(project: str, admin: str) -> None:
    assert await output_of("rules", "put", project, "--dry-run", '{"rules":{}}', token=admin)
    assert await output_of("rules", "get", project, token=admin) == OPEN
    error = await error_of(
        "rules", "put", project, "--dry-run", '{"rules":{".read":"no"}}', token=admin
    )
    assert error == "400 invalid_data: 1:20: Unknown variable 'no'."


@pytest_twisted.ensureDeferred
async def test_rules_are_for_admins_only(shared_daemon: Daemon, host: str, project: str) -> None:
    user = mint(shared_daemon, host, "ada")
    for command in (
        ["get", project],
        ["log", project],
        ["put", project, OPEN],
        ["explain", project],
    ):
        assert "401 auth_required" in await error_of("rules", *command)
        assert "403 permission_denied: " in await error_of("rules", *command, token=user)


@pytest_twisted.ensureDeferred
async def test_a_verdict_is_explained(project: str, admin: str) -> None:
    assert await output_of("rules", "put", project, RULES, token=admin)
    ada, eve = '{"uid": "ada"}', '{"uid": "eve"}'
    url = f"{project}/users/ada"

    async def explain(*words: str) -> list[str]:
        return (await output_of("rules", "explain", url, *words, token=admin)).splitlines()

    assert await explain("--auth", ada) == [
        "allowed",
        "  rules/users/$user/.read (4:15) at /users/ada: true",
    ]
    assert await explain("--auth", eve) == [
        "denied: No .read rule on the path is true.",
        '  auth is {"uid":"eve"}',
        "  rules/users/$user/.read (4:15) at /users/ada: false",
        "    $user is ada",
    ]
    assert (await explain("--auth", ada, "--method", "put", '{"age": 7}'))[0] == "allowed"
    assert await explain("--auth", ada, "--method", "PUT", '{"age": true}') == [
        "denied: The rule rules/users/$user/.validate is not true.",
        '  auth is {"uid":"ada"}',
        "  rules/users/$user/.write (5:16) at /users/ada: true",
        "  rules/users/$user/.validate (6:19) at /users/ada: error: + takes numbers and strings.",
        "    $user is ada",
        "    newData at /users/ada/age is true",
    ]
    assert (await explain())[0] == "allowed: rules do not apply to an admin"
    assert (await explain("--auth", "null"))[0].startswith("denied: ")
    (raw,) = await explain("--auth", eve, "--json")
    assert json.loads(raw)["allowed"] is False
    assert await output_of("get", url, token=admin) == "null"


def test_an_explanation_cannot_move_a_cursor() -> None:
    rule = {"rule": "r", "path": "/\x1b[2J\n", "line": 1, "column": 1, "result": True}
    body = json.dumps({"allowed": True, "admin": False, "rules": [rule]}).encode()
    lines = explanation_lines(body)
    assert lines == ["allowed", "  r (1:1) at /�[2J�: true"]
