"""Backups: each database at one moment, restored whole or not at all; and compacting."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import pathlib
import shutil
import subprocess
import threading
from typing import Any, Self

import apsw
import pytest
import pytest_twisted

from tests.command import COMMAND, environment, error_of, output_of, run_command, treedb
from tests.daemon import Daemon
from tests.store.older_files import unpack_file
from tests.store.sqlite.disk_space import limited_file_size
from tests.store.sqlite.file_pages import TABLE_LEAF, pages_of
from treedbd.cli import backup as backup_module
from treedbd.cli import backup as restore_module
from treedbd.cli.backup import numbered
from treedbd.cli.main import main
from treedbd.database import data_directory
from treedbd.database.data_directory import BACKUP_NOTE, READER_FILE
from treedbd.files import copy_private
from treedbd.store.directory_lock import DirectoryInUse, DirectoryLock
from treedbd.store.nodes import Nodes
from treedbd.store.sqlite.engine import SqliteEngine
from treedbd.store.sqlite.file import connect


@pytest.fixture
def data(tmp_path: pathlib.Path) -> pathlib.Path:
    return tmp_path / "data"


def value_in(folder: pathlib.Path, name: str = "demo/default.shelf") -> tuple[Any, int]:
    """Return what a restored database holds, and the number of its last write."""
    engine = SqliteEngine.open(folder / name)
    found = engine.read(lambda view: (Nodes(view).get(()), view.sequence()))
    assert engine.warning is None
    engine.close()
    return found


def send(daemon: Daemon, method: str, target: str, body: bytes = b"") -> int:
    """Send a request to the database `demo`; return the status."""
    return daemon.request(method, target, body, {"Host": "demo.localhost"}).status


def put(daemon: Daemon, path: str, value: Any) -> None:
    assert send(daemon, "PUT", path, json.dumps(value).encode()) == 200


class Writers:
    """Threads that count up two places in one PATCH each, until they are stopped."""

    def __init__(self, daemon: Daemon, count: int) -> None:
        self.statuses: set[int] = set()
        self._daemon = daemon
        self._ending = threading.Event()
        self._threads = [threading.Thread(target=self._write) for _ in range(count)]

    def _write(self) -> None:
        body = b'{"one":{".sv":{"increment":1}},"deep/two":{".sv":{"increment":1}}}'
        connection = self._daemon.connect()
        while not self._ending.is_set():
            connection.request("PATCH", "/.json?print=silent", body, {"Host": "demo.localhost"})
            response = connection.getresponse()
            response.read()
            self.statuses.add(response.status)
        connection.close()

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        for thread in self._threads:
            thread.join()


def test_backups_under_writes_restore_to_one_moment(
    data: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    with Daemon(data.parent) as daemon:
        put(daemon, "/.json", {"one": 0, "deep": {"two": 0}})
        with Writers(daemon, 4) as writers:
            for at in range(3):
                result = run_command("backup", "--data", str(data), str(tmp_path / f"b{at}"))
                assert result.status == 0, result
    assert writers.statuses == {204}
    before = 0
    for at in range(3):
        restored = tmp_path / f"r{at}"
        result = run_command("restore", str(tmp_path / f"b{at}"), "--data", str(restored))
        assert result.status == 0, result
        value, sequence = value_in(restored)
        assert value["one"] == value["deep"]["two"] == sequence - 1 >= before
        before = value["one"]
    assert before > 0


@pytest_twisted.ensureDeferred
async def test_numbered_backups_are_kept_and_old_ones_removed(
    data: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    with Daemon(data.parent) as daemon:
        put(daemon, "/a.json", 1)
    folder = tmp_path / "backups"
    (folder / "0007.unfinished").mkdir(parents=True)
    for _ in range(3):
        await output_of("backup", "--data", data, "--keep", "2", folder)
    assert sorted(each.name for each in folder.iterdir()) == ["0002", "0003"]
    restored = tmp_path / "restored"
    assert "0003" in await output_of("restore", folder, "--data", restored)
    assert value_in(restored)[0] == {"a": 1}


@pytest_twisted.ensureDeferred
async def test_a_backup_leaves_a_note_and_a_reader_a_file_which_are_not_in_the_way_of_a_restore(
    data: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    with Daemon(data.parent) as daemon:
        put(daemon, "/a.json", 1)
    (data / "demo/broken.shelf").write_bytes(b"not a database")
    assert (await treedb("backup", "--data", data, tmp_path / "b1")).status == 3
    assert not (data / BACKUP_NOTE).exists()
    (data / "demo/broken.shelf").unlink()
    await output_of("backup", "--data", data, tmp_path / "b2")
    assert (data / BACKUP_NOTE).exists()
    shutil.rmtree(data / "demo")
    for left in data.iterdir():  # the certificate, too
        if left.name != BACKUP_NOTE:
            left.unlink()
    (data / f"{READER_FILE}archive").touch()  # of a daemon that was killed
    await output_of("restore", tmp_path / "b2", "--data", data)
    assert value_in(data)[0] == {"a": 1}
    assert not {BACKUP_NOTE, f"{READER_FILE}archive"} & {each.name for each in data.iterdir()}


@pytest_twisted.ensureDeferred
async def test_a_backup_that_cannot_be_noted_is_complete_all_the_same(
    data: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    with Daemon(data.parent) as daemon:
        put(daemon, "/a.json", 1)
    (data / BACKUP_NOTE).mkdir()
    done = await treedb("backup", "--data", data, tmp_path / "b")
    assert (done.status, "is complete, but not noted" in done.errors) == (0, True)


@pytest_twisted.ensureDeferred
async def test_what_is_not_empty_or_in_use_is_refused(
    data: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    with Daemon(data.parent) as daemon:
        put(daemon, "/a.json", 1)
        backup = tmp_path / "b"
        await output_of("backup", "--data", data, backup)
        assert "not an empty folder" in await error_of("backup", "--data", data, backup)
        assert "in use" in await error_of("restore", backup, "--data", data)
    lock = DirectoryLock(data)  # of a program that does not say where it serves the data
    assert "give the URL" in await error_of("compact", "--data", data)
    lock.release()
    assert "is not empty" in await error_of("restore", backup, "--data", data)
    assert "no data directory" in await error_of("backup", "--data", tmp_path / "none", backup)
    assert "There is no folder" in await error_of(
        "restore", tmp_path / "none", "--data", tmp_path / "x"
    )
    assert (await treedb("backup", "--data", data, "--keep", "0", backup)).status == 2


def test_a_folder_that_cannot_be_read_is_one_sentence(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(folder: pathlib.Path) -> Any:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(folder))

    monkeypatch.setattr(pathlib.Path, "iterdir", refuse)
    assert main(["restore", str(tmp_path), "--data", str(tmp_path / "data")]) == 1
    sentence = f"treedb: The restore failed (Permission denied: {tmp_path}).\n"
    assert capsys.readouterr().err == sentence


@pytest_twisted.ensureDeferred
async def test_a_backup_that_was_changed_is_not_restored(
    data: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    with Daemon(data.parent) as daemon:
        put(daemon, "/a.json", 1)
    backup, restored = tmp_path / "b", tmp_path / "r"
    await output_of("backup", "--data", data, backup)
    manifest = backup / "manifest.json"
    good = manifest.read_bytes()
    for bad, error in (
        (good.replace(b'"format": 1', b'"format": 2'), "newer version"),
        (good.replace(b"demo/default", b"../default"), "names a file that no backup has"),
        (b"{", "is damaged"),
        (good.replace(b"demo/default", b"demo/other"), "is missing"),
    ):
        manifest.write_bytes(bad)
        assert error in await error_of("restore", backup, "--data", restored)
    manifest.unlink()
    assert "not a complete backup" in await error_of("restore", backup, "--data", restored)
    manifest.write_bytes(good)
    shelf = backup / "demo" / "default.shelf"
    content = bytearray(shelf.read_bytes())
    content[-1] ^= 1
    shelf.write_bytes(content)
    assert "is not what was saved" in await error_of("restore", backup, "--data", restored)
    assert not list(restored.parent.glob(f"{restored.name}*"))  # nor what it had copied


@pytest_twisted.ensureDeferred
async def test_a_backup_that_an_older_version_has_made_is_restored(
    data: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    with Daemon(data.parent) as daemon:
        put(daemon, "/a.json", 1)
    backup, restored = tmp_path / "b", tmp_path / "again" / "data"
    await output_of("backup", "--data", data, backup)
    shelf = backup / "demo" / "default.shelf"
    shutil.rmtree(shelf.parent)
    unpack_file(4, shelf)
    content = json.loads((backup / "manifest.json").read_bytes())
    (saved,) = (each for each in content["files"] if each["path"] == "demo/default.shelf")
    saved |= {
        "size": shelf.stat().st_size,
        "sha256": hashlib.sha256(shelf.read_bytes()).hexdigest(),
        "sequence": 8,
        "op_id": op_id_of(shelf),
    }
    content["files"] = [saved]
    (backup / "manifest.json").write_text(json.dumps(content))
    await output_of("restore", backup, "--data", restored)
    with Daemon(restored.parent) as daemon:
        assert send(daemon, "GET", "/people/p000.json") == 200
    assert value_in(restored)[1] == 8


@pytest.mark.parametrize(
    "path",
    [
        "demo/\0.shelf",
        "de\0mo/default.shelf",
        ".secrets/default.shelf",
        ".secrets/rules.json",
        "demo/.shelf",
        "demo/.default.shelf",
        "demo/treedb.toml",
        "demo/default.shelf-mark",
        "demo/../../x.shelf",
        "../default.shelf",
        "./default.shelf",
        "demo/..",
        "/default.shelf",
        "//default.shelf",
        "/etc/default.shelf",
        "default.shelf",
        "demo/default.shelf/",
        "demo/sub/default.shelf",
        "treedb.lock/default.shelf",
        "demo/a\nb.shelf",
        "demo/rules.json",  # with the number of a write
        "",
        f"demo/{'x' * 250}.shelf",
        None,
        1,
        ["demo/default.shelf"],
    ],
)
@pytest_twisted.ensureDeferred
async def test_names_in_a_manifest_lead_to_files_of_a_backup_alone(
    tmp_path: pathlib.Path, path: Any
) -> None:
    await expect_refusal(tmp_path, {"path": path})


@pytest.mark.parametrize(
    "changed",
    [
        {"op_id": "zz"},
        {"op_id": 1},
        {"sequence": -1},
        {"sequence": 2**63},
        {"sequence": "1"},
        {"sequence": None},
        {"size": "1"},
        {"size": -1},
        {"sha256": "x"},
        {"sha256": None},
        {"more": 1},
    ],
)
@pytest_twisted.ensureDeferred
async def test_a_manifest_with_other_values_is_damaged(
    tmp_path: pathlib.Path, changed: dict[str, Any]
) -> None:
    await expect_refusal(tmp_path, changed)


@pytest_twisted.ensureDeferred
async def test_a_manifest_that_is_something_else_is_damaged(tmp_path: pathlib.Path) -> None:
    for content in ({"time": 1}, {"skipped": [1]}, {"skipped": 1}, {"files": "x"}, {"files": [1]}):
        await expect_refusal(tmp_path, {}, content)
    await expect_refusal(tmp_path, {}, {"files": [SAVED, SAVED]})


SAVED = {
    "path": "demo/default.shelf",
    "size": 1,
    "sha256": hashlib.sha256(b"x").hexdigest(),
    "sequence": 1,
    "op_id": "00",
}


async def expect_refusal(
    folder: pathlib.Path, saved: dict[str, Any], content: dict[str, Any] | None = None
) -> None:
    """Restore a backup whose manifest has other members; one sentence refuses it."""
    backup = folder / "backup"
    (backup / "demo").mkdir(parents=True, exist_ok=True)
    (backup / "demo/default.shelf").write_bytes(b"x")
    manifest = {"format": 1, "time": "now", "files": [SAVED | saved], "skipped": []}
    (backup / "manifest.json").write_text(json.dumps(manifest | (content or {})))
    error = await error_of("restore", backup, "--data", folder / "data")
    assert "use another backup" in error
    assert "is missing" not in error
    assert [each.name for each in folder.iterdir()] == ["backup"]


@pytest.mark.parametrize("mask", [0, 0o022, 0o777])
def test_files_of_a_backup_are_for_their_owner_alone_whatever_the_umask(
    data: pathlib.Path, tmp_path: pathlib.Path, mask: int
) -> None:
    SqliteEngine.create(data / "demo" / "default.shelf").close()
    (data / "demo" / "rules.json").write_text('{"rules": {}}')
    (data / "demo" / "rules.json").chmod(0o644)
    backup, restored = tmp_path / "backup", tmp_path / "restored"
    before = os.umask(mask)
    try:
        assert main(["backup", "--data", str(data), "--keep", "2", str(backup)]) == 0
        assert main(["restore", str(backup), "--data", str(restored)]) == 0
    finally:
        os.umask(before)
    found = [backup, restored, *backup.rglob("*"), *restored.rglob("*")]
    assert "rules.json" in {each.name for each in found}
    modes = {(each.is_dir(), each.stat().st_mode & 0o777) for each in found}
    assert modes == {(True, 0o700), (False, 0o600)}


def test_a_link_that_was_put_into_the_folder_meanwhile_is_not_followed(
    data: pathlib.Path,
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    SqliteEngine.create(data / "demo" / "default.shelf").close()
    other, backup = tmp_path / "other", tmp_path / "backup"
    other.mkdir()

    def walk(*arguments: Any) -> Any:
        with contextlib.suppress(FileExistsError):
            (backup / "demo").symlink_to(other)
        return data_directory.walk(*arguments)

    monkeypatch.setattr(backup_module, "walk", walk)
    assert main(["backup", "--data", str(data), str(backup)]) == 1
    assert "File exists" in capsys.readouterr().err
    assert not list(other.iterdir())


@pytest_twisted.ensureDeferred
async def test_a_restore_keeps_daemons_and_other_restores_out_until_its_end(
    data: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    SqliteEngine.create(data / "demo" / "default.shelf").close()
    backup, restored = tmp_path / "backup", tmp_path / "restored"
    await output_of("backup", "--data", data, backup)
    DirectoryLock(restored).release()
    attempts: list[Any] = []

    def copy(source: pathlib.Path, target: pathlib.Path) -> None:
        for folder in (restored, restored.with_name(restored.name + restore_module.WORK)):
            with pytest.raises(DirectoryInUse):
                DirectoryLock(folder)
            attempts.append(folder)
        copy_private(source, target)

    monkeypatch.setattr(restore_module, "copy_private", copy)
    await output_of("restore", backup, "--data", restored)
    assert len(attempts) == 2
    assert sorted(os.listdir(restored)) == ["demo", "treedb.lock"]
    DirectoryLock(restored).release()


def op_id_of(shelf: pathlib.Path) -> str:
    """Return the id of the newest write in a file of an older format."""
    with contextlib.closing(connect(shelf, apsw.SQLITE_OPEN_READONLY)) as connection:
        op_id: bytes = connection.execute("SELECT op_id FROM log ORDER BY seq DESC").get[0]
    for suffix in ("-wal", "-shm"):
        shelf.with_name(shelf.name + suffix).unlink(missing_ok=True)
    return op_id.hex()


@pytest_twisted.ensureDeferred
async def test_a_damaged_database_is_skipped_and_the_others_are_saved(
    data: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    with Daemon(data.parent) as daemon:
        put(daemon, "/a.json", 1)
    (data / "demo" / "broken.shelf").write_bytes(b"SQLite format 3\0" + b"x" * 5000)
    result = await treedb("backup", "--data", data, tmp_path / "b")
    assert result.status == 3
    assert "broken.shelf" in result.errors
    await output_of("restore", tmp_path / "b", "--data", tmp_path / "r")
    assert value_in(tmp_path / "r")[0] == {"a": 1}


@pytest_twisted.ensureDeferred
async def test_a_backup_and_a_data_directory_are_not_in_each_other(
    data: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    with Daemon(data.parent) as daemon:
        put(daemon, "/a.json", 1)
    assert "is in the data directory" in await error_of("backup", "--data", data, data / "b")
    await output_of("backup", "--data", data, tmp_path / "b")
    assert "is in the backup" in await error_of(
        "restore", tmp_path / "b", "--data", tmp_path / "b/d"
    )
    assert not (data / "b").exists()
    assert not (tmp_path / "b/d").exists()


@pytest.mark.parametrize("keep", [[], ["--keep", "1"]])
@pytest_twisted.ensureDeferred
async def test_nothing_is_saved_if_no_database_can_be(
    tmp_path: pathlib.Path, keep: list[str]
) -> None:
    unpack_file(4, tmp_path / "data" / "demo" / "default.shelf")
    folder = tmp_path / "b"
    result = await treedb("backup", "--data", tmp_path / "data", *keep, folder)
    assert result.status == 1
    assert "treedb: No database could be saved.\n" in result.errors
    assert "default.shelf has format 4" in result.errors
    assert not folder.exists() or [*folder.iterdir()] == []


@pytest_twisted.ensureDeferred
async def test_nothing_old_is_removed_while_a_database_cannot_be_saved(
    data: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    with Daemon(data.parent) as daemon:
        put(daemon, "/a.json", 1)
    broken = data / "demo" / "broken.shelf"
    shutil.copyfile(data / "demo" / "default.shelf", broken)
    words = ["backup", "--data", str(data), "--keep", "1", str(tmp_path / "b")]
    await output_of(*words)
    broken.write_bytes(b"SQLite format 3\0" + b"x" * 5000)
    assert (await treedb(*words)).status == 3
    assert sorted(each.name for each in (tmp_path / "b").iterdir()) == ["0001", "0002"]
    result = await treedb("restore", "--data", tmp_path / "r", tmp_path / "b")
    assert (result.status, "0002 is newer, but lacks" in result.errors) == (0, True)
    assert (tmp_path / "r/demo/broken.shelf").exists()
    result = await treedb("restore", "--data", tmp_path / "r2", tmp_path / "b" / "0002")
    assert "Note: it lacks what could not be saved. " in result.output.decode()
    assert not (tmp_path / "r2/demo/broken.shelf").exists()
    for file in broken.parent.glob("broken.*"):
        file.unlink()
    await output_of(*words)
    assert [each.name for each in (tmp_path / "b").iterdir()] == ["0003"]


def test_a_backup_without_space_is_no_damage_and_leaves_the_older_ones(
    data: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    with Daemon(data.parent) as daemon:
        put(daemon, "/a.json", {f"k{at}": "x" * 1000 for at in range(2000)})
    words = ["backup", "--data", str(data), "--keep", "1", str(tmp_path / "b")]
    assert run_command(*words).status == 0
    with limited_file_size(1_000_000):
        result = run_command(*words)
    assert result.status == 1
    assert "there is no space left" in result.errors
    assert [each.name for each in numbered(tmp_path / "b")] == ["0001"]


@pytest_twisted.ensureDeferred
async def test_two_backups_into_one_folder_do_not_meet(
    data: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    with Daemon(data.parent) as daemon:
        put(daemon, "/a.json", 1)
    words = ["backup", "--data", str(data), "--keep", "1", str(tmp_path)]
    descriptor = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    assert "under way" in await error_of(*words)
    os.close(descriptor)
    await output_of(*words)
    assert len(numbered(tmp_path)) == 1


@pytest.mark.parametrize("command", ["backup", "restore"])
def test_a_command_that_is_killed_leaves_nothing_half(
    data: pathlib.Path, tmp_path: pathlib.Path, command: str
) -> None:
    with Daemon(data.parent) as daemon:
        put(daemon, "/a.json", {f"k{at}": "x" * 1000 for at in range(2000)})
    backup, restored = tmp_path / "b", tmp_path / "r"
    words = ["backup", "--data", str(data), "--keep", "1", str(backup)]
    assert run_command(*words).status == 0
    if command == "restore":
        words = ["restore", str(backup), "--data", str(restored)]
    for at in range(3):
        process = subprocess.Popen([*COMMAND, *words], env=environment(), stderr=subprocess.DEVNULL)
        try:
            process.wait(0.1 + 0.15 * at)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if restored.exists():
            break
    if command == "backup":
        assert run_command(*words).status == 0
        assert len(list(backup.iterdir())) == 1
    if not restored.exists():
        assert run_command("restore", str(backup), "--data", str(restored)).status == 0
    assert len(value_in(restored)[0]["a"]) == 2000


@pytest_twisted.ensureDeferred
async def test_a_database_is_compacted_while_it_is_served_and_when_not(
    data: pathlib.Path,
) -> None:
    with Daemon(data.parent) as daemon:
        url = daemon.http.replace("127.0.0.1", "demo.localhost")
        for at in range(2):
            records = {f"k{key}": "x" * 1000 for key in range(3000)}
            body = json.dumps(records).encode()
            assert send(daemon, "PUT", f"/a{at}.json?print=silent", body) == 204
            assert send(daemon, "DELETE", f"/a{at}.json") == 200
            if at == 0:
                text = await output_of("compact", url, token="owner")
                before, after = sizes(text)
                assert after < before / 2
            if at == 1:
                lines = run_command("compact", "--data", str(data)).text
                assert lines.startswith("demo/default.shelf: ")
                before, after = sizes(lines)
                assert after < before / 2
        put(daemon, "/left.json", {f"k{key}": "x" * 1000 for key in range(3000)})
        put(daemon, "/left.json", 1)
    before, after = sizes((await output_of("compact", "--data", data)).splitlines()[0])
    assert after < before / 2
    assert value_in(data)[0] == {"left": 1}


@pytest_twisted.ensureDeferred
async def test_a_damaged_database_is_not_compacted_and_the_others_are(
    data: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    with Daemon(data.parent) as daemon:
        put(daemon, "/a.json", {f"k{at}": "x" * 1000 for at in range(200)})
    damaged = data / "demo" / "a.shelf"
    content = bytearray((data / "demo" / "default.shelf").read_bytes())
    content[pages_of(content, TABLE_LEAF)[-1] + 2000] ^= 1
    damaged.write_bytes(content)
    result = await treedb("compact", "--data", data)
    assert result.status == 1
    sentence = "demo/a.shelf is not compacted: "
    assert sentence in result.errors
    assert "a page does not match its check sum" in result.errors
    assert result.output.startswith(b"demo/default.shelf: ")
    assert damaged.read_bytes() == content


def test_a_served_directory_is_compacted_whose_domain_does_not_lead_here(
    tmp_path: pathlib.Path,
) -> None:
    (tmp_path / "shop.secret").write_text("s" * 32)
    (tmp_path / "shop.secret").chmod(0o600)
    config = (
        'domains = ["db.invalid"]\ndefault_project = "shop"\n'
        '[projects.shop]\nsecret_files = ["shop.secret"]\n'
    )
    with Daemon(tmp_path, config=config, listen=["tcp:0:interface=127.0.0.1"]) as daemon:
        file = str(tmp_path / "treedb.toml")
        words = ("token", "--config", file, "--project", "shop", "--admin", "--data", daemon.data)
        token = run_command(*words).text
        path = f"{daemon.http}/a"
        assert run_command("set", path, "1", "--silent", token=token).errors == ""
        done = run_command("compact", "--config", file, "--data", daemon.data)
        assert done.text.startswith("shop/default.shelf: ")


def sizes(text: str) -> tuple[int, int]:
    """Return the sizes that `treedb compact` prints."""
    numbers = text.rpartition(": ")[2].replace(",", "").rstrip(".").split()
    return int(numbers[0]), int(numbers[-1])
