"""Backups that admins take over HTTP: complete or not there, a few kept, and restored."""

from __future__ import annotations

import datetime
import fcntl
import json
import os
import pathlib
import re
import resource
import shutil
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.access import admin, token, user, write_secret
from tests.command import run_command
from tests.daemon import Daemon, Response
from tests.rest import Client, check_error
from tests.system import wait_until
from treedbd.database.backup_folder import (
    MANIFEST,
    MAX_LISTED,
    BackupState,
    BackupUnderWay,
    clean,
    find_complete,
    list_backups,
    locked,
    name_at,
)

TAKE = "/.settings/backup.json"
LIST = "/.inspect/backups.json"
HOOKS = "/.settings/webhooks.json"
KEPT = 2
NAME = re.compile(r"\d{4}-\d\d-\d\dT\d\d\.\d\d\.\d\dZ(-\d+)?")
CONFIG = """
backups = "backups"
backups_kept = 2
default_project = "shop"
[projects.shop]
databases = "*"
secret_files = ["shop.secret"]
"""


def prepare(folder: pathlib.Path) -> pathlib.Path:
    """Write the secret of the project; return the directory of backups."""
    write_secret(folder, "shop")
    return folder / "backups"


def send(daemon: Daemon, method: str, target: str, body: Any = None) -> Response:
    headers = {"Authorization": f"Bearer {admin('shop')}", "X-TreeDB-Dialect": "standard"}
    sent = None if body is None else json.dumps(body)
    with Client(daemon, "localhost") as client:
        return client.request(method, target, sent, headers)


def take(daemon: Daemon) -> Any:
    response = send(daemon, "POST", TAKE)
    assert response.status == 200, response
    return response.json


def listed(daemon: Daemon) -> list[Any]:
    found = send(daemon, "GET", LIST).json
    assert found["directory_set"] is True
    return list(found["backups"])


@pytest.fixture(scope="module", params=["1", "2"], ids=["alone", "workers"])
def daemon(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Daemon]:
    folder = tmp_path_factory.mktemp("daemon")
    prepare(folder)
    with Daemon(folder, config=CONFIG, arguments=["--workers", request.param]) as running:
        yield running


def test_a_backup_is_taken_and_restored(daemon: Daemon, tmp_path: pathlib.Path) -> None:
    send(daemon, "PUT", "/a.json", {"b": "x" * 10_000})
    send(daemon, "PUT", "/c.json?ns=eu--shop", 1)
    hook = {"name": "h", "on": "/$id", "events": ["written"], "url": "https://a.example.com/"}
    assert send(daemon, "PUT", HOOKS, hook).status == 200
    taken = take(daemon)
    assert NAME.fullmatch(taken["name"])
    assert (taken["skipped"], taken["others_skipped"]) == ([], 0)
    assert listed(daemon)[0] == {
        "name": taken["name"],
        "time": taken["name"][:20].replace(".", ":"),
        "bytes": taken["bytes"],
        "state": "done",
    }
    folder = daemon.folder / "backups" / taken["name"]
    restored = run_command("restore", folder, "--data", tmp_path / "data")
    assert restored.status == 0, restored
    with Daemon(tmp_path) as other, Client(other, "shop.localhost") as client:
        assert client.get("/a.json") == {"b": "x" * 10_000}
        assert Client(other, "eu--shop.localhost").get("/c.json") == 1
        (kept,) = client.request("GET", f"{HOOKS}?auth=owner").json["webhooks"]
        assert (kept["name"], kept["secrets"]) == ("h", 1)


def test_the_newest_are_kept(daemon: Daemon) -> None:
    names = [take(daemon)["name"] for _ in range(KEPT + 1)]
    assert len(set(names)) == KEPT + 1
    kept = sorted(each.name for each in (daemon.folder / "backups").iterdir())
    assert kept == sorted(names[1:])
    assert {each["name"] for each in listed(daemon)} == set(names[1:])


def test_one_is_taken_at_a_time(daemon: Daemon) -> None:
    with locked(daemon.folder / "backups"):
        check_error(send(daemon, "POST", TAKE), 409, "conflict")
    take(daemon)


def test_the_log_says_who_has_taken_one(daemon: Daemon) -> None:
    headers = {"Authorization": f"Bearer {token('shop', admin=True, uid='root')}"}
    with Client(daemon, "localhost") as client:
        name = client.request("POST", TAKE, None, headers).json["name"]
    daemon.await_line(rf"A backup was taken\. backup={name} project=shop by=root")
    name = take(daemon)["name"]
    daemon.await_line(rf"A backup was taken\. backup={name} project=shop$")


def test_only_admins_take_and_see_them(daemon: Daemon) -> None:
    with Client(daemon, "localhost") as client:
        for method, target in (("POST", TAKE), ("GET", LIST)):
            assert client.request(method, target).status == 401
            headers = {"Authorization": f"Bearer {user('shop', 'ada')}"}
            assert client.request(method, target, None, headers).status in {401, 403}


def test_no_answer_shows_a_path_of_the_machine(daemon: Daemon) -> None:
    taken = send(daemon, "POST", TAKE).body + send(daemon, "GET", LIST).body
    assert b"/" not in taken.replace(b"//", b"")


def test_without_a_directory_none_is_taken(tmp_path: pathlib.Path) -> None:
    with Daemon(tmp_path) as daemon, Client(daemon, "demo.localhost") as client:
        headers = {"Authorization": "Bearer owner", "X-TreeDB-Dialect": "standard"}
        found = client.request("GET", LIST, None, headers).json
        assert found == {"directory_set": False, "backups": []}
        check_error(client.request("POST", TAKE, None, headers), 404, "not_found")


def test_a_full_disk_is_a_clear_error_and_leaves_the_older_ones(tmp_path: pathlib.Path) -> None:
    folder = prepare(tmp_path)
    with Daemon(tmp_path, config=CONFIG) as daemon:
        send(daemon, "PUT", "/a.json", "x" * 500_000)
        first = take(daemon)["name"]
        # The processes of backups are children, and have the limit; no file of the daemon grows.
        before = resource.prlimit(daemon.pid, resource.RLIMIT_FSIZE)
        resource.prlimit(daemon.pid, resource.RLIMIT_FSIZE, (100_000, before[1]))
        error = check_error(send(daemon, "POST", TAKE), 503, "unavailable")
        assert "no space left" in error
        assert str(tmp_path) not in error
        states = [(each["state"], each["name"] == first) for each in listed(daemon)]
        assert states == [("failed", False), ("done", True)]
        resource.prlimit(daemon.pid, resource.RLIMIT_FSIZE, before)
        second = take(daemon)["name"]
        assert [each["name"] for each in listed(daemon)] == [second, first]
    assert sorted(each.name for each in folder.iterdir()) == [first, second]


def test_what_was_broken_off_is_marked_and_removed_at_the_next_start(
    tmp_path: pathlib.Path,
) -> None:
    folder = prepare(tmp_path)
    with Daemon(tmp_path, config=CONFIG) as daemon:
        send(daemon, "PUT", "/a.json", 1)
        name = take(daemon)["name"]
        left = folder / "2020-01-01T00.00.00Z.unfinished"
        (left / "shop").mkdir(parents=True)
        (left / "shop" / "default.shelf").write_bytes(b"x" * 1000)
        assert listed(daemon)[1] == {
            "name": "2020-01-01T00.00.00Z",
            "time": "2020-01-01T00:00:00Z",
            "bytes": 1000 + (left / "shop").stat().st_size,
            "state": "failed",
        }
        with locked(folder):
            assert listed(daemon)[1]["state"] == "running"
        assert daemon.stop() == 0
        daemon.start()
        wait_until(lambda: not left.exists())  # removed in a thread, while lists are made
        assert [each["name"] for each in listed(daemon)] == [name]


def test_a_deleted_database_is_in_the_backups_before_it(tmp_path: pathlib.Path) -> None:
    folder = prepare(tmp_path)
    with Daemon(tmp_path, config=CONFIG) as daemon:
        send(daemon, "PUT", "/a.json?ns=eu--shop", 1)
        send(daemon, "PUT", "/a.json", 1)
        names = [take(daemon)["name"]]
        target = "/.settings/database.json?ns=eu--shop&confirm=eu--shop"
        assert send(daemon, "DELETE", target).status == 200
        names.append(take(daemon)["name"])
    files = [{each.name for each in (folder / name / "shop").iterdir()} for name in names]
    assert files == [{"default.shelf", "eu.shelf"}, {"default.shelf"}]


def test_no_names_of_databases_of_other_projects_are_told(tmp_path: pathlib.Path) -> None:
    prepare(tmp_path)
    write_secret(tmp_path, "blog")
    blog = '[projects.blog]\ndatabases = "*"\nsecret_files = ["blog.secret"]\n'
    with Daemon(tmp_path, config=CONFIG + blog) as daemon:
        send(daemon, "PUT", "/a.json", 1)
        for project in ("shop", "blog"):
            folder = tmp_path / "data" / project
            folder.mkdir(exist_ok=True)
            (folder / f"hidden-{project}.shelf").write_bytes(b"SQLite format 3\0" + b"x" * 5000)
        taken = take(daemon)
        assert (taken["skipped"], taken["others_skipped"]) == (["hidden-shop--shop"], 1)
        headers = {"Authorization": f"Bearer {admin('blog')}"}
        with Client(daemon, "localhost") as client:
            taken = client.request("POST", f"{TAKE}?ns=blog", None, headers).json
        assert (taken["skipped"], taken["others_skipped"]) == (["hidden-blog--blog"], 1)


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ('engine = "memory"', "only databases in files are saved there"),
        ('data = "backups"', "is in the data directory"),
        ("backups_kept = 0", "must be"),
    ],
)
def test_a_directory_that_cannot_be_used_is_refused(
    tmp_path: pathlib.Path, line: str, error: str
) -> None:
    key = line.partition(" ")[0]
    kept = [each for each in CONFIG.splitlines() if not each.startswith(key)]
    write_secret(tmp_path, "shop")
    (tmp_path / "treedb.toml").write_text("\n".join([line, *kept]))
    done = run_command("serve", "--config", "treedb.toml", "--listen", "tcp:0", folder=tmp_path)
    assert done.status == 1
    assert error in done.error


# The directory.


def make_backup(folder: pathlib.Path, name: str, time: str = "2026-01-01T00:00:00Z") -> None:
    (folder / name).mkdir(parents=True)
    content = {"format": 1, "time": time, "files": [{"size": 3}, {"size": 4}]}
    (folder / name / MANIFEST).write_text(json.dumps(content))


def test_numbered_backups_are_listed_too_but_not_what_is_no_backup(tmp_path: pathlib.Path) -> None:
    make_backup(tmp_path, "0001", "2026-02-01T00:00:00Z")
    make_backup(tmp_path, "2026-01-01T00.00.00Z")
    make_backup(tmp_path, "other")
    (tmp_path / "2026-03-01T00.00.00Z").mkdir()
    (tmp_path / "0002").mkdir()
    (tmp_path / "0002" / MANIFEST).write_text("no JSON")
    found = [(each.name, each.bytes) for each in list_backups(tmp_path)]
    assert found == [("0001", 7), ("2026-01-01T00.00.00Z", 7)]
    assert [each.name for each in find_complete(tmp_path)] == ["2026-01-01T00.00.00Z"]


def test_backups_of_a_second_are_in_the_order_of_their_numbers(tmp_path: pathlib.Path) -> None:
    now = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
    names = []
    for _ in range(12):
        names.append(name_at(tmp_path, now))
        make_backup(tmp_path, names[-1])
        assert [each.name for each in find_complete(tmp_path)] == names[-3:]
        assert [each.name for each in list_backups(tmp_path)] == names[-3:][::-1]
        if len(names) >= 3:
            shutil.rmtree(tmp_path / names[-3])
    assert names == ["2026-01-01T00.00.00Z", *(f"2026-01-01T00.00.00Z-{at}" for at in range(2, 13))]


def test_lists_refuse_no_backup_and_show_none_that_is_not_there(tmp_path: pathlib.Path) -> None:
    (tmp_path / "2020-01-01T00.00.00Z.unfinished").mkdir()
    is_over = threading.Event()

    def list_again() -> set[BackupState]:
        states: set[BackupState] = set()
        while not is_over.is_set():
            states |= {each.state for each in list_backups(tmp_path)}
        return states

    with ThreadPoolExecutor(1) as pool:
        listing = pool.submit(list_again)
        try:
            for _ in range(500):
                with locked(tmp_path):
                    pass
            sole = os.open(tmp_path, os.O_RDONLY)
            fcntl.flock(sole, fcntl.LOCK_SH)  # as a list does
            assert [each.state for each in list_backups(tmp_path)] == ["failed"]
            os.close(sole)
        finally:
            is_over.set()
        assert "failed" in listing.result()


def test_a_list_is_bounded(tmp_path: pathlib.Path) -> None:
    for number in range(MAX_LISTED + 5):
        make_backup(tmp_path, f"{number}", f"2026-01-01T00:{number:03}")
    assert len(list_backups(tmp_path)) == MAX_LISTED
    shutil.rmtree(tmp_path)
    assert list_backups(tmp_path) == []


def test_the_lock_is_of_one_holder(tmp_path: pathlib.Path) -> None:
    with locked(tmp_path):
        (tmp_path / "1.unfinished").mkdir()
        with pytest.raises(BackupUnderWay), locked(tmp_path):
            pass
        clean(tmp_path)
        assert (tmp_path / "1.unfinished").exists()
    clean(tmp_path)
    assert not (tmp_path / "1.unfinished").exists()
