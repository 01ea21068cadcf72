"""The change log: who has written what and when, over HTTP and from the command line."""

from __future__ import annotations

import json
from typing import Any

import pytest
import pytest_twisted

from tests.command import error_of, mint, output_of, treedb
from tests.daemon import Daemon


@pytest.fixture
def host(request: pytest.FixtureRequest) -> str:
    """The host of a project that no other test uses."""
    return f"{request.node.name.replace('_', '-')[-60:].strip('-')}.localhost"


@pytest.fixture
def project(shared_daemon: Daemon, host: str) -> str:
    """The URL of the project."""
    return shared_daemon.http.replace("127.0.0.1", host)


@pytest.fixture
def admin(shared_daemon: Daemon, host: str) -> str:
    """The token of an admin of the project."""
    return mint(shared_daemon, host, "root", "--admin")


async def entries(project: str, token: str, *options: str) -> list[Any]:
    """Return what `treedb log` prints."""
    lines = (await output_of("log", project, *options, token=token)).splitlines()
    return [json.loads(line) for line in lines]


@pytest_twisted.ensureDeferred
async def test_the_log_names_who_wrote_what(
    shared_daemon: Daemon, project: str, host: str, admin: str
) -> None:
    ada = mint(shared_daemon, host, "ada")
    await output_of("set", f"{project}/a", '{"b":1}')
    await output_of("update", f"{project}/a", '{"c":{".sv":{"increment":2}}}', token=ada)
    await output_of("remove", f"{project}/a/b", token=admin)
    found = await entries(project, admin)
    shown = [
        (each["seq"], each["uid"], each.get("admin"), each["method"], each["path"], each["size"])
        for each in found
    ]
    assert shown == [
        (1, None, None, "PUT", "/a", 7),
        (2, "ada", None, "PATCH", "/a", 7),
        (3, "root", True, "DELETE", "/a/b", 4),
    ]
    assert all(each["time"].startswith("20") for each in found)
    with_data = await entries(project, admin, "--data", "--after", "1")
    assert [(each["kept"], each["data"]) for each in with_data] == [(True, {"c": 2}), (True, None)]


@pytest_twisted.ensureDeferred
async def test_the_log_is_read_in_pages(project: str, admin: str) -> None:
    for at in range(5):
        await output_of("set", f"{project}/n", str(at))
    assert [each["seq"] for each in await entries(project, admin, "--limit", "2")] == [4, 5]
    after = await entries(project, admin, "--after", "2", "--limit", "2")
    assert [each["seq"] for each in after] == [3, 4]
    assert (await treedb("log", project, "--after", "5", token=admin)).output == b""


@pytest_twisted.ensureDeferred
async def test_a_body_too_long_for_the_log_is_left_out(project: str, admin: str) -> None:
    await treedb("set", f"{project}/n", json.dumps("x" * 100_000), "--silent")
    (entry,) = await entries(project, admin, "--data")
    assert (entry["size"], entry["kept"], entry["data"]) == (100_002, False, None)


@pytest_twisted.ensureDeferred
async def test_only_an_admin_may_read_the_log(
    shared_daemon: Daemon, project: str, host: str
) -> None:
    await output_of("set", f"{project}/n", "1")
    assert "auth_required" in await error_of("log", project)
    token = mint(shared_daemon, host, "ada")
    assert "403 permission_denied: " in await error_of("log", project, token=token)


def test_a_number_that_is_none_is_refused(shared_daemon: Daemon) -> None:
    answer = shared_daemon.request("GET", "/.settings/log.json?startAfter=-3&auth=owner")
    assert answer.status == 400
    assert "startAfter must be" in json.loads(answer.body)["message"]


@pytest.mark.parametrize(("option", "bad"), [("--limit", "-3"), ("--limit", "0"), ("--after", "x")])
@pytest_twisted.ensureDeferred
async def test_a_bad_number_is_a_usage_error(option: str, bad: str) -> None:
    result = await treedb("log", "http://localhost", option, bad)
    assert result.status == 2
    assert f"argument {option}: must be a number of at least" in result.errors
