"""`treedb cursors`: the readers of change logs shown page by page, and their cursors removed."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Iterator

import pytest

from tests.access import admin, at, write_secret
from tests.command import CommandResult, run_command
from tests.cursors import seed_readers
from tests.daemon import Daemon
from treedbd.web.cursors import MAX_DATABASES

LISTED = ["default", "gone", "room", *(f"d{number:02}" for number in range(MAX_DATABASES))]
CONFIG = f"""
[projects.cli]
secret_files = ["cli.secret"]
databases = {LISTED}
"""
ADMIN = admin("cli")


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    folder = tmp_path_factory.mktemp("daemon")
    write_secret(folder, "cli")
    seed_readers(folder / "data", ["room--cli", "cli", "d00--cli"])
    seed_readers(folder / "data", ["room--cli", "gone--cli"], "copy")
    with Daemon(folder, config=CONFIG) as running:
        yield running


def cursors(daemon: Daemon, *options: str) -> CommandResult:
    return run_command("cursors", f"{daemon.http}/?ns=cli", *options, token=ADMIN)


def shown(daemon: Daemon, *options: str) -> list[tuple[str, str]]:
    listed = cursors(daemon, "--json", *options)
    assert (listed.status, listed.errors) == (0, "")
    return [
        (each["name"], each["database"]) for each in map(json.loads, listed.output.splitlines())
    ]


def test_all_readers_are_shown_whatever_pages_the_daemon_sends(daemon: Daemon) -> None:
    assert shown(daemon) == [
        *(("archive", "d00--cli"), ("archive", "cli"), ("copy", "gone--cli")),
        *(("archive", "room--cli"), ("copy", "room--cli")),
    ]


def test_a_line_says_how_far_a_reader_is(daemon: Daemon) -> None:
    written = daemon.request("PUT", at("/a.json", ADMIN, ns="room--cli"), '"unread"')
    assert written.status == 200
    head, *lines = cursors(daemon, "--database", "room--cli").text.splitlines()
    assert head.split() == ["SEQ", "UNREAD", "SIZE", "AGE", "WHOLE", "READER"]
    archive, copy = (line.split() for line in lines)
    assert archive[:2] == ["1", "2"]
    assert archive[6:] == ["yes", "archive", "of", "room--cli"]
    assert copy[:2] == ["2", "1"]
    assert copy[6:] == ["yes", "copy", "of", "room--cli"]


def test_the_cursors_of_a_reader_are_removed(daemon: Daemon) -> None:
    removed = cursors(daemon, "--remove", "copy", "--database", "gone--cli")
    assert removed.text == "gone--cli: the cursor copy is removed"
    assert shown(daemon, "--database", "gone--cli") == []
    assert cursors(daemon, "--remove", "copy").text == "room--cli: the cursor copy is removed"
    again = cursors(daemon, "--remove", "copy")
    assert (again.status, again.output) == (1, b"")
    assert "No database that is shown has a cursor copy." in again.error
    assert "copy" not in {name for name, _ in shown(daemon)}


@pytest.mark.parametrize(
    ("options", "error"),
    [
        (["--database", "none--cli"], "The project cli has no database none."),
        (["--database", "a/b"], "database must be the name of a database"),
        (["--remove", "No Name"], "No database that is shown has a cursor No Name."),
    ],
)
def test_what_cannot_be_shown_is_an_error(daemon: Daemon, options: list[str], error: str) -> None:
    failed = cursors(daemon, *options)
    assert (failed.status, failed.output) == (1, b"")
    assert error in failed.error


def test_databases_that_cannot_be_read_are_named_at_the_end(tmp_path: pathlib.Path) -> None:
    data = tmp_path / "data"
    write_secret(tmp_path, "cli")
    seed_readers(data, ["gone--cli", "room--cli"])
    (data / "cli" / "gone.shelf").write_bytes(b"not a database" * 1000)
    with Daemon(tmp_path, config=CONFIG) as daemon:
        listed = cursors(daemon)
        assert listed.status == 1
        assert b"archive of room--cli" in listed.output
        assert "The readers of 1 database cannot be shown: gone--cli." in listed.errors
