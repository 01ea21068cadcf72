"""`treedb rules test`: what it prints, how it ends, and that a daemon judges in the same way."""

from __future__ import annotations

import json
import os
import pathlib
import pty
import subprocess
import sys
from typing import Any
from urllib.parse import quote
from xml.etree import ElementTree

import pytest
import pytest_twisted

from tests.command import COMMAND, CommandResult, treedb
from tests.daemon import Daemon
from tests.rest import Client
from treedbd.cli.rules_testing import parse_request, run

SUITE = pathlib.Path(__file__).parent.parent / "docs" / "rules" / "chat.test.json"
RULES = """{"rules": {
  "users": {"$uid": {
    ".read": "auth.uid == $uid",
    ".write": "auth.uid == $uid",
    ".validate": "newData.hasChildren(['name'])"
  }},
  "open": {".read": true}
}}
"""
ADA = {"uid": "ada"}
READ = {"as": ADA, "read": "/users/ada", "allowed": True}
DENIED_READ = {"as": None, "read": "/users/ada", "allowed": False}
WRITE = {"as": ADA, "write": "/users/ada", "value": {"name": "Ada"}, "allowed": True}


@pytest.fixture(autouse=True)
def folder(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "r.json").write_text(RULES)
    return tmp_path


async def check(document: Any, *options: str) -> CommandResult:
    pathlib.Path("t.json").write_text(json.dumps(document))
    return await treedb("rules", "test", "t.json", *options)


async def check_cases(cases: list[Any], *options: str, data: Any = None) -> CommandResult:
    return await check({"rules": "r.json", "data": data, "cases": cases}, *options)


async def verdicts(cases: list[Any], data: Any = None, rules: Any = "r.json") -> list[bool]:
    """Return the verdicts on cases that expect nothing."""
    suite = {"rules": rules, "data": data, "cases": [{**case, "allowed": True} for case in cases]}
    result = await check(suite, "--json")
    return [case["allowed"] for case in json.loads(result.output)["cases"]]


# The output.


@pytest_twisted.ensureDeferred
async def test_a_run_without_surprises_ends_with_0() -> None:
    result = await check_cases([READ, DENIED_READ])
    assert result.text.splitlines() == [
        "2 cases, all as expected",
        "coverage 28.5 %: 2 of 7 results of rules",
        "  r.json:4:16: rules/users/$uid/.write: never evaluated",
        "  r.json:5:19: rules/users/$uid/.validate: never evaluated",
        "  r.json:7:21: rules/open/.read: never evaluated",
    ]


@pytest_twisted.ensureDeferred
async def test_a_surprise_is_shown_with_the_rule_that_decided_and_what_it_saw() -> None:
    wrong = {**WRITE, "name": "no name", "value": {"age": 36}}
    result = await check_cases([wrong, {**READ, "allowed": False}])
    assert (result.status, result.errors) == (1, "")
    assert result.output.decode().splitlines()[:-2] == [
        't.json: case 1 "no name": PUT /users/ada as ada is denied, expected allowed: '
        "The rule rules/users/$uid/.validate is not true.",
        '  auth is {"uid":"ada"}',
        "  rules/users/$uid/.write (4:16) at /users/ada: true",
        "    $uid is ada",
        "  rules/users/$uid/.validate (5:19) at /users/ada: false",
        "    $uid is ada",
        "    newData at /users/ada/name is null",
        "t.json: case 2: GET /users/ada as ada is allowed, expected denied: "
        "The rule rules/users/$uid/.read (3:15) is true.",
        '  auth is {"uid":"ada"}',
        "  rules/users/$uid/.read (3:15) at /users/ada: true",
        "    $uid is ada",
        "2 cases, 2 not as expected",
        "coverage 42.8 %: 3 of 7 results of rules",
        "  r.json:3:15: rules/users/$uid/.read: never false",
        "  r.json:4:16: rules/users/$uid/.write: never false",
    ]


@pytest_twisted.ensureDeferred
async def test_verbose_lists_all_cases() -> None:
    admin = {"as": "admin", "write": "/x", "method": "delete", "allowed": True}
    lines = (await check_cases([READ, admin], "-v")).text.splitlines()
    assert lines[:2] == [
        "t.json: case 1: GET /users/ada as ada is allowed, as expected",
        "t.json: case 2: DELETE /x as admin is allowed, as expected",
    ]


@pytest_twisted.ensureDeferred
async def test_a_surprise_about_an_admin_says_that_rules_do_not_apply() -> None:
    result = await check_cases([{"as": "admin", "read": "/x", "allowed": False}])
    assert "expected denied: Rules do not apply to an admin." in result.output.decode()


@pytest_twisted.ensureDeferred
async def test_the_coverage_may_be_required() -> None:
    every = [
        *(READ, DENIED_READ, WRITE),
        {**WRITE, "as": None, "allowed": False},
        {**WRITE, "value": 1, "allowed": False},
        {"as": None, "read": "/open", "allowed": True},
    ]
    assert (await check_cases(every, "--require-coverage")).text.splitlines()[-1] == (
        "coverage 100 %: 7 of 7 results of rules"
    )
    result = await check_cases(every[:-1], "--require-coverage")
    assert (result.status, result.output.decode().splitlines()) == (
        1,
        [
            "5 cases, all as expected",
            "coverage 85.7 %: 6 of 7 results of rules, 100 % is required",
            "  r.json:7:21: rules/open/.read: never evaluated",
        ],
    )
    assert (await check_cases(every[:-1], "--least-coverage", "85.7")).status == 0
    assert (await check_cases(every[:-1], "--least-coverage", "86%")).status == 1
    for wrong in ("101", "-1", "x"):
        assert (await check_cases(every, "--least-coverage", wrong)).status == 2


@pytest_twisted.ensureDeferred
async def test_an_error_in_a_rule_counts_as_false_and_constant_rules_have_one_result() -> None:
    rules = {"rules": {"a": {".read": "data.val() + 1 > 1"}, "b": {".read": "false"}}}
    cases = [
        {"as": None, "read": "/a", "allowed": False},
        {"as": None, "read": "/b", "allowed": False},
    ]
    document = {"rules": rules, "data": {"a": True}, "cases": cases}
    report = json.loads((await check(document, "--json")).text)
    failing, constant = report["coverage"]["documents"][0]["rules"]
    assert (failing["failed"], failing["missing"]) == (1, "never true")
    assert (constant["false"], constant["missing"]) == (1, None)
    assert report["coverage"]["percent"] == pytest.approx(200 / 3)


@pytest_twisted.ensureDeferred
async def test_several_files_cover_the_same_rules_together() -> None:
    pathlib.Path("u.json").write_text(json.dumps({"rules": "./r.json", "cases": [DENIED_READ]}))
    lines = (await check_cases([READ], "u.json")).text.splitlines()
    assert lines[:2] == ["2 cases, all as expected", "coverage 28.5 %: 2 of 7 results of rules"]


@pytest_twisted.ensureDeferred
async def test_the_report_as_json_has_every_case() -> None:
    result = await check_cases([{**READ, "name": "n", "allowed": False}], "--json")
    report = json.loads(result.output)
    (case,) = report["cases"]
    assert (result.status, report["success"], report["surprises"]) == (1, False, 1)
    assert case.pop("seconds") >= 0
    assert case.pop("rules")[0]["rule"] == "rules/users/$uid/.read"
    assert case == {
        "file": "t.json",
        "case": 1,
        "name": "n",
        "as": ADA,
        "method": "GET",
        "path": "/users/ada",
        "expected": False,
        "allowed": True,
        "reason": "The rule rules/users/$uid/.read (3:15) is true.",
    }


@pytest_twisted.ensureDeferred
async def test_junit_has_a_failure_for_each_surprise() -> None:
    cases = [{**READ, "name": "<a> & \x1b"}, {**READ, "allowed": False}]
    result = await check_cases(cases, "--junit", "out.xml", "--require-coverage")
    assert result.status == 1
    suite, coverage = ElementTree.parse("out.xml").getroot()
    assert (suite.get("tests"), suite.get("failures"), suite.get("errors")) == ("2", "1", "0")
    good, bad = suite
    assert good.get("name") == '1 "<a> & \ufffd": GET /users/ada as ada'
    assert len(good) == 0
    (failure,) = bad
    assert failure.get("message") == (
        "allowed, expected denied: The rule rules/users/$uid/.read (3:15) is true."
    )
    assert "$uid is ada" in (failure.text or "")
    (failure,) = coverage[0]
    assert "100 % is required" in (failure.get("message") or "")
    assert "rules/open/.read: never evaluated" in (failure.text or "")
    result = await check_cases([READ], "--junit", "none/out.xml")
    assert result.error == "none/out.xml cannot be written (No such file or directory)."


@pytest.mark.parametrize(
    ("variables", "is_coloured"),
    [
        ({"NO_COLOR": "", "TERM": "xterm"}, True),
        ({"NO_COLOR": "1", "TERM": "xterm"}, False),
        ({"NO_COLOR": "", "TERM": "dumb"}, False),
    ],
)
def test_a_terminal_is_shown_colours_unless_it_wants_none(
    variables: dict[str, str], is_coloured: bool
) -> None:
    suite = {"rules": "r.json", "cases": [READ]}
    pathlib.Path("t.json").write_text(json.dumps(suite))
    ours, terminal = pty.openpty()
    command = [*COMMAND, "rules", "test", "t.json"]
    done = subprocess.run(command, stdout=terminal, env={**os.environ, **variables}, check=False)
    os.close(terminal)
    output = os.read(ours, 65_536)
    os.close(ours)
    assert done.returncode == 0
    assert (b"\x1b[32m1 case, all as expected\x1b[0m" in output) is is_coloured
    assert (b"\x1b" in output) is is_coloured


# What a case means.


@pytest_twisted.ensureDeferred
async def test_each_case_is_judged_by_the_data_alone() -> None:
    rules = {"rules": {"$k": {".write": "!data.exists()"}}}
    write = {"as": None, "write": "/a", "value": 1}
    assert await verdicts([write, write], rules=rules) == [True, True]
    assert await verdicts([write], {"a": 1}, rules) == [False]


@pytest_twisted.ensureDeferred
async def test_a_write_has_the_methods_of_the_interface() -> None:
    rules = {"rules": {"a": {".write": "newData.child('x').val() == data.child('x').val()"}}}
    write = {"as": None, "write": "/a"}
    data = {"a": {"x": 1}}
    cases = [
        {**write, "value": {"y": 2}},
        {**write, "method": "PATCH", "value": {"y": 2}},
        {**write, "method": "push", "value": {"y": 2}},
        {**write, "method": "delete"},
        {**write, "method": "patch", "value": {"y/z": 2, "x": None}},
    ]
    assert await verdicts(cases, data, rules) == [False, True, True, False, False]


@pytest_twisted.ensureDeferred
async def test_now_is_that_of_the_case_or_of_the_file_or_the_present() -> None:
    rules = {"rules": {"$k": {".read": "now == 5", ".write": "newData.val() == 5"}}}
    write = {"as": None, "write": "/a", "value": {".sv": "timestamp"}, "allowed": True}
    cases = [
        write,
        {**write, "now": 6, "allowed": False},
        {"as": None, "read": "/a", "allowed": True},
    ]
    assert (await check({"rules": rules, "now": 5, "cases": cases})).status == 0
    assert (await check({"rules": rules, "cases": cases[:1]})).status == 1


@pytest_twisted.ensureDeferred
async def test_rules_see_a_query_as_in_a_request() -> None:
    rules = {
        "rules": {
            "a": {".read": "query.orderByChild == 'age' && query.limitToFirst == 10"},
            "b": {".read": "query.orderByKey && query.startAt == 'k' && query.endAt == 'z'"},
            "c": {".read": "query.equalTo == 5 && query.orderByValue"},
            "d": {".read": "query.startAt == null && query.limitToFirst <= 2 && !query.where"},
        }
    }
    cases: list[dict[str, Any]] = [
        {"read": "/a", "query": {"orderBy": "age", "limitToFirst": 10}},
        {"read": "/a", "query": {"orderBy": "age", "limitToFirst": 11}},
        {"read": "/a"},
        {"read": "/b", "query": {"orderBy": "$key", "startAt": "k", "endBefore": "z"}},
        {"read": "/c", "query": {"orderBy": "$value", "equalTo": [5, "key"]}},
        {"read": "/c", "query": {"shallow": True}},
        {"read": "/d", "query": {"shallow": True, "limitToFirst": 2}},
        {"read": "/d", "query": {"shallow": True, "limitToFirst": 2, "startAfter": "k"}},
        {"read": "/d", "query": {"orderBy": "a", "limitToFirst": 2, "startAfter": [None, "k"]}},
        {"read": "/d", "query": {"limitToFirst": 2, "where": {"a": 1}}},
    ]
    found = await verdicts([{"as": None, **case} for case in cases], rules=rules)
    assert found == [True, False, False, True, True, False, True, False, False, False]


@pytest_twisted.ensureDeferred
async def test_rules_in_the_test_file_have_their_position_there() -> None:
    document = '{"cases": [{"as": null, "read": "/", "allowed": true}],\n "rules": {"rules": {%s}}}'
    pathlib.Path("t.json").write_text(document % '".read": "auth != null"')
    result = await treedb("rules", "test", "t.json")
    assert "rules/.read (2:32) at /: false" in result.output.decode()
    pathlib.Path("t.json").write_text(document % '".read": "auht != null"')
    result = await treedb("rules", "test", "t.json")
    assert result.errors.splitlines() == [
        "treedb: t.json:2:32: Unknown variable 'auht'. Did you mean 'auth'?",
        '     "rules": {"rules": {".read": "auht != null"}}}',
        " " * 35 + "^",
    ]


# Errors.

CASE_ERRORS: list[tuple[dict[str, Any], str]] = [
    ({"alowed": 1}, "\"alowed\" is not a member here. Did you mean 'allowed'?"),
    ({"xyz": 1}, '"xyz" is not a member here. Members are name, as, read, write, '),
    ({"allowed": None}, '"allowed" must be true or false'),
    ({"as": "ada"}, '"as" must say who requests it: null for a caller without a token'),
    ({"as": 1}, '"as" must say who requests it'),
    ({"read": "users"}, 'The path "users" must begin with a slash.'),
    ({"read": "/a.json"}, "keys must not contain . # $ [ ] / or control characters. Paths are"),
    ({"read": 1}, 'A path is a string, such as "/users/ada".'),
    ({"write": "/a"}, 'A case has either "read" or "write", with the path.'),
    ({"value": 1}, '"value" belongs to a "write".'),
    ({"method": "put"}, '"method" belongs to a "write".'),
    ({"query": 5}, '"query" must be an object, such as {"orderBy": "age"}.'),
    ({"query": {"limitTofirst": 5}}, "Did you mean 'limitToFirst'?"),
    ({"query": {"limitToFirst": 5}}, '"query": limitToFirst needs orderBy.'),
    ({"query": {"orderBy": '"age"'}}, '"orderBy" is the name itself here'),
    ({"query": {"orderBy": "a", "limitToFirst": "5"}}, "limitToFirst must be an integer"),
    ({"now": "2026"}, '"now" must be a whole number of milliseconds since 1970.'),
    ({"name": 1}, '"name" must be a string.'),
]
WRITE_ERRORS: list[tuple[dict[str, Any], str]] = [
    ({"method": "delte"}, "\"method\" must be put, patch, post or delete. Did you mean 'delete'?"),
    ({"method": "delete"}, 'A write with the method "delete" has no "value".'),
    ({"query": {}}, '"query" belongs to a "read".'),
    ({"value": {"a.b": 1}}, '"value" is not valid: '),
    ({"value": 1, "method": "patch"}, "The body of a PATCH must be an object"),
    ({"write": "/a/.priority", "method": "push"}, "A priority can only be read, put and deleted."),
    ({"write": "/a" * 32, "method": "push"}, '"write": The path is deeper than 32 keys.'),
]


@pytest_twisted.ensureDeferred
@pytest.mark.parametrize(
    ("case", "error"),
    [({**READ, **wrong}, error) for wrong, error in CASE_ERRORS]
    + [({**WRITE, **wrong}, error) for wrong, error in WRITE_ERRORS],
)
async def test_what_is_wrong_with_a_case_is_one_sentence_with_its_number(
    case: dict[str, Any], error: str
) -> None:
    found = (await check_cases([READ, case])).error
    assert found.startswith("t.json: case 2")
    assert error in found


@pytest_twisted.ensureDeferred
async def test_a_missing_member_of_a_case_is_an_error() -> None:
    for name, error in {
        "allowed": '"allowed" must be true or false',
        "as": '"as" must say',
        "value": 'A write has a "value", or "method": "delete".',
        "write": 'either "read" or "write"',
    }.items():
        case = {key: value for key, value in WRITE.items() if key != name}
        assert error in (await check_cases([{**case, "name": "n"}])).error.removeprefix(
            't.json: case 1 "n": '
        )
    assert (await check_cases([5])).error == "t.json: case 1: A case is an object."


@pytest_twisted.ensureDeferred
@pytest.mark.parametrize(
    ("document", "error"),
    [
        ({"case": []}, "t.json: \"case\" is not a member here. Did you mean 'cases'?"),
        ({"cases": [READ]}, 't.json: There is no "rules": name the file of the rules.'),
        ({"rules": "r.json"}, 't.json: "cases" must be an array of at least one case.'),
        ({"rules": "r.json", "cases": []}, 't.json: "cases" must be an array of at least one'),
        ({"rules": 5, "cases": [READ]}, 't.json: "rules" must be the name of a file, or a rules'),
        ({"rules": "x", "cases": [READ]}, "t.json: The rules x cannot be read (No such file"),
        ({"rules": {}, "cases": [READ]}, "t.json:1:12: Expected 'rules' property."),
        ({"rules": "r.json", "data": {"a.b": 1}, "cases": [READ]}, 't.json: "data" is not valid:'),
        ([], 't.json: A test file is an object with "rules", "data" and "cases".'),
    ],
)
async def test_what_is_wrong_with_a_file_is_one_sentence(document: Any, error: str) -> None:
    result = await check(document)
    assert (result.status, result.output) == (1, b"")
    assert result.errors.startswith(f"treedb: {error}")


@pytest_twisted.ensureDeferred
async def test_a_file_that_is_no_json_or_not_there_is_an_error() -> None:
    pathlib.Path("t.json").write_text('{"rules": "r.json",\n "cases": [}')
    error = (await treedb("rules", "test", "t.json")).error
    assert error.startswith("t.json:2:12: Not valid JSON: ")
    error = (await treedb("rules", "test", "none.json")).error
    assert error == "none.json cannot be read (No such file or directory)."
    assert (await treedb("rules", "test")).status == 2


@pytest_twisted.ensureDeferred
async def test_a_value_that_cannot_be_written_is_an_error() -> None:
    case = {**WRITE, "write": "/n", "value": {".sv": {"increment": 1.7e308}}}
    error = (await check_cases([case], data={"n": 1e308})).error
    assert error.startswith('t.json: case 1: "value" is not valid: ')


@pytest_twisted.ensureDeferred
async def test_the_limits_of_a_configuration_apply() -> None:
    pathlib.Path("treedb.toml").write_text("[rules]\nexpression_bytes = 10\n")
    result = await check_cases([READ], "--config", "treedb.toml")
    assert result.status == 1
    assert "r.json:3:15: The expression is longer than 10 bytes." in result.errors


# Without a daemon, and as a daemon.


def test_the_command_needs_no_twisted() -> None:
    code = f"import sys; import {run.__module__}; sys.exit('twisted' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest_twisted.ensureDeferred
async def test_the_suite_of_the_docs_covers_its_rules() -> None:
    result = await treedb("rules", "test", SUITE, "--require-coverage")
    assert result.text.splitlines() == [
        "30 cases, all as expected",
        "coverage 100 %: 37 of 37 results of rules",
    ]


def test_a_daemon_judges_the_suite_of_the_docs_in_the_same_way(shared_daemon: Daemon) -> None:
    suite = json.loads(SUITE.read_text())
    with Client.of_new_tree(shared_daemon) as client:
        rules = SUITE.with_name(suite["rules"]).read_bytes()
        owner = {"Authorization": "Bearer owner"}
        put = client.request("PUT", "/.settings/rules.json", rules, headers=owner)
        assert put.status == 200
        for case in suite["cases"]:
            data = json.dumps(suite["data"]).encode()
            assert client.request("PUT", "/.json", data, headers=owner).status == 200
            request = parse_request(case, suite["now"])
            target = f"{request.path}.json?"
            for name, value in case.get("query", {}).items():
                target += f"{name}={quote(json.dumps(value))}&"
            if case["as"] != "admin":
                target += f"auth_variable_override={quote(json.dumps(case['as']))}"
            sent = json.dumps(case["value"]).encode() if "value" in case else None
            response = client.request(request.method, target, sent, headers=owner)
            assert (response.status == 200) is case["allowed"], (case, response)
