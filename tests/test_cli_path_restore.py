"""One path brought back into a running database: shown first, written if nothing has changed."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Iterator
from typing import Any

import pytest

from tests.archive.written_history import WrittenHistory
from tests.command import CommandResult, run_here
from tests.daemon import Daemon
from treedbd.cli import path_restore
from treedbd.rules.ruleset import OPEN
from treedbd.tree.types import Json

DB = "demo/default"
ADA: Json = {"name": "Ada", "age": 36, ".priority": 1}
CONFIG = """
default_project = "demo"
emulator = true
[limits]
write_body_bytes = 100_000
[projects.demo]
rules_file = "open.json"
[projects.shop]
rules_file = "open.json"
"""


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """Return an archive, in which write 1 is of Ada, 2 is long, and 3 removes all."""
    folder = tmp_path_factory.mktemp("archived")
    history = WrittenHistory(folder, 1)
    history.put(DB, "users", {"ada": ADA, "bob": {".value": 5, ".priority": "p"}, "eve": 1})
    history.put(DB, "long", {f"k{number}": "x" * 5000 for number in range(100)})
    history.put(DB, "", None)
    history.put("app/default", "other", 1)
    history.deliver()
    history.close()
    return folder / "archive"


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    folder = tmp_path_factory.mktemp("daemon")
    (folder / "open.json").write_text(OPEN.text)
    with Daemon(folder, config=CONFIG) as running:
        yield running


def bring_back(
    archive: pathlib.Path, daemon: Daemon, path: str, *more: str, to: str = "2"
) -> CommandResult:
    words = ["--to", to, "--path", path, *more]
    if to.isdecimal():
        words += ["--database", DB]
    return run_here("restore", *words, archive, f"{daemon.http}/?ns=demo", token="owner")


def put(daemon: Daemon, path: str, value: Any) -> None:
    body = json.dumps(value).encode()
    assert daemon.request("PUT", f"{path}.json?ns=demo", body).status == 200


def get(daemon: Daemon, path: str) -> Any:
    return json.loads(daemon.request("GET", f"{path}.json?ns=demo&format=export").body)


def test_what_would_change_is_shown_and_then_written(archive: pathlib.Path, daemon: Daemon) -> None:
    put(daemon, "/users", {"ada": {"name": "Eve", "age": 36}, "bob": 5, "new": [1], "eve": 1})
    before = get(daemon, "/users")
    text = bring_back(archive, daemon, "/users", "--dry-run").text
    assert text.splitlines()[1:] == [
        '~ /users/ada/name  "Eve" → "Ada"',
        "+ /users/ada/.priority  1",
        '+ /users/bob/.priority  "p"',
        '- /users/new  {"0":1}',
        "2 added, 1 changed, 1 removed",
    ]
    assert "Nothing is written: agree by --yes" in bring_back(archive, daemon, "/users").errors
    assert get(daemon, "/users") == before
    (line,) = bring_back(archive, daemon, "/users", "--yes", "--json").text.splitlines()
    found = json.loads(line)
    assert (found["database"], found["number"], found["added"]) == (DB, 2, 2)
    assert found["changes"][0]["before"] == "Eve"
    assert get(daemon, "/users") == {
        "ada": ADA,
        "bob": {".value": 5, ".priority": "p"},
        "eve": 1,
    }
    assert "nothing changes" in bring_back(archive, daemon, "/users", "--yes").text


def test_a_path_is_removed_where_nothing_was(archive: pathlib.Path, daemon: Daemon) -> None:
    put(daemon, "/gone", {"a": 1})
    text = bring_back(archive, daemon, "/gone/a", "--yes", to="latest").text
    assert "- /gone/a  1" in text
    assert get(daemon, "/gone") is None


def test_a_value_that_is_too_long_for_one_request_is_written_in_parts(
    archive: pathlib.Path, daemon: Daemon
) -> None:
    put(daemon, "/long", {"k7": 1, "old": 2})
    text = bring_back(archive, daemon, "/long", "--yes").text
    assert "99 added, 1 changed, 1 removed" in text
    assert get(daemon, "/long") == {f"k{number}": "x" * 5000 for number in range(100)}


def test_what_has_changed_since_it_was_shown_is_not_overwritten(
    archive: pathlib.Path, daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(daemon, "/users", {"ada": 1})
    show = path_restore._show

    def write_meanwhile(*arguments: Any) -> None:
        show(*arguments)
        put(daemon, "/users", {"ada": 2})

    monkeypatch.setattr(path_restore, "_show", write_meanwhile)
    result = bring_back(archive, daemon, "/users", "--yes")
    assert result.status == 1
    assert "has changed since it was compared. Nothing is written." in result.errors
    assert get(daemon, "/users") == {"ada": 2}


def test_the_database_of_the_archive_is_that_of_the_url_or_the_one_that_is_named(
    archive: pathlib.Path, daemon: Daemon
) -> None:
    words = ["restore", "--to", "latest", "--path", "/other", "--dry-run"]
    url = f"{daemon.http}/?ns=shop"
    error = run_here(*words, archive, url, token="owner").error
    assert "no database shop/default" in error
    text = run_here(*words, "--database", "app/default", archive, url, token="owner").text
    assert "+ /other  1" in text
    error = run_here(*words, archive, "http://localhost:1/", token="owner").error
    assert "No server listens" in error
