"""`treedb database`: databases listed, created and deleted, with the name given or typed."""

from __future__ import annotations

import json
import os
import pathlib
import pty
import subprocess
from collections.abc import Iterator

import pytest

from tests.command import COMMAND, CommandResult, environment, run_command
from tests.daemon import Daemon


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    with Daemon(tmp_path_factory.mktemp("daemon")) as running:
        yield running


def run(daemon: Daemon, *words: str, name: str) -> CommandResult:
    command, *options = words
    url = f"{daemon.http}/?ns={name}"
    return run_command("database", command, url, *options, token="owner")


def test_a_database_is_created_listed_and_deleted(daemon: Daemon) -> None:
    assert run(daemon, "create", name="room--cli").text == "room--cli: created"
    again = run(daemon, "create", name="room--cli")
    assert again.status == 1
    assert "exists already" in again.error
    rows = [line.split() for line in run(daemon, "ls", name="cli").text.splitlines()]
    assert [row[-1] for row in rows if row[-1].endswith("cli")] == ["cli", "room--cli"]
    assert run(daemon, "delete", "--yes", "room--cli", name="room--cli").text == (
        "room--cli: deleted"
    )
    listed = json.loads(run(daemon, "ls", "--json", name="cli").text)
    (project,) = [each for each in listed if each["name"] == "cli"]
    assert [each["name"] for each in project["databases"]] == ["cli"]


def test_another_name_deletes_nothing(daemon: Daemon) -> None:
    daemon.request("PUT", "/a.json?ns=kept", "1")
    refused = run(daemon, "delete", "--yes", "other", name="kept")
    assert refused.status == 1
    assert "confirm must be the name of the database" in refused.error
    assert daemon.request("GET", "/a.json?ns=kept").body == b"1"


def test_without_a_terminal_the_name_must_be_given(daemon: Daemon) -> None:
    daemon.request("PUT", "/a.json?ns=kept", "1")
    refused = run(daemon, "delete", name="kept")
    assert refused.status == 1
    assert "give the name of the database by --yes" in refused.error
    assert daemon.request("GET", "/a.json?ns=kept").body == b"1"


@pytest.mark.parametrize(("typed", "left"), [("typed\n", b"null"), ("other\n", b"1"), ("\n", b"1")])
def test_the_name_is_typed_at_a_terminal(
    daemon: Daemon, tmp_path: pathlib.Path, typed: str, left: bytes
) -> None:
    daemon.request("PUT", "/a.json?ns=typed", "1")
    terminal, own = pty.openpty()
    words = ["database", "delete", f"{daemon.http}/?ns=typed"]
    with subprocess.Popen(
        [*COMMAND, *words], stdin=own, stderr=subprocess.PIPE, env=environment("owner")
    ) as command:
        os.close(own)
        assert command.stderr is not None
        assert command.stderr.read(8) == b"The name"
        os.write(terminal, typed.encode())
        command.communicate()
    os.close(terminal)
    assert command.returncode == (0 if left == b"null" else 1)
    assert daemon.request("GET", "/a.json?ns=typed").body == left
