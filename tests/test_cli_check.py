"""`treedb check`: sound files are reported as ok, damaged ones with what is wrong."""

from __future__ import annotations

import pathlib
import shutil
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from tests.command import run_command
from tests.daemon import Daemon
from tests.rights import someone_else
from tests.store import format_1
from tests.store.older_files import unpack_file
from treedbd.cli.main import main
from treedbd.store.directory_lock import DirectoryLock
from treedbd.store.node_writer import NodeWriter
from treedbd.store.sqlite.engine import SqliteEngine
from treedbd.store.sqlite.file import connect
from treedbd.tree.edit import make_put
from treedbd.tree.types import ROOT, Json, Place

MANY: Json = {f"k{number}": "v" * 100 for number in range(4000)}


@pytest.fixture
def data(tmp_path: pathlib.Path) -> pathlib.Path:
    """A data directory with two databases."""
    folder = tmp_path / "data"
    for name in ("demo/default", "demo/eu"):
        engine = SqliteEngine.create(folder / f"{name}.shelf", reserve_bytes=0)
        transaction = engine.begin()
        NodeWriter(transaction).apply(make_put(Place(ROOT), MANY).changes)
        transaction.append(b"", b'{"time":1,"method":"put","path":[],"sent":1}')
        transaction.commit()
        engine.close()
    return folder


def check(capsys: pytest.CaptureFixture[str], data: pathlib.Path) -> tuple[int, list[str], str]:
    """Return the status, the lines and the error of the command."""
    status = main(["check", "--data", str(data)])
    captured = capsys.readouterr()
    return status, captured.out.splitlines(), captured.err


def execute(statement: str) -> Callable[[pathlib.Path], None]:
    def apply(file: pathlib.Path) -> None:
        connection = connect(file)
        connection.execute(statement)
        connection.close()

    return apply


def overwrite_pages(file: pathlib.Path) -> None:
    content = bytearray(file.read_bytes())
    for page in range(8, len(content) // 4096, 2):
        content[page * 4096 : page * 4096 + 64] = b"\xff" * 64
    file.write_bytes(content)


def overwrite_header(file: pathlib.Path) -> None:
    file.write_bytes(b"x" * 4096)


def truncate(file: pathlib.Path) -> None:
    file.write_bytes(b"")


def rename_to_log(file: pathlib.Path) -> None:
    file.rename(file.with_name(file.name + "-wal"))


def test_sound_files_are_reported_as_ok(
    capsys: pytest.CaptureFixture[str], data: pathlib.Path
) -> None:
    (data / "demo/rules.json").write_text('{"rules": {}}')
    status, lines, errors = check(capsys, data)
    expected = ["demo/default.shelf: ok", "demo/eu.shelf: ok", "demo/rules.json: ok"]
    assert (status, lines, errors) == (0, expected, "")


@pytest.mark.parametrize(
    ("damage", "finding"),
    [
        (execute("UPDATE kv SET v = CAST('{' AS BLOB) WHERE rowid = 9"), "The row /k"),
        (execute("UPDATE log SET entry = CAST('{' AS BLOB)"), "Entry 1 of the change log is not"),
        (execute("UPDATE dbs SET seq = 7"), "The change log has 1 entries"),
        (execute("PRAGMA user_version = 99"), "99"),
        (overwrite_pages, "cannot be read"),
        (overwrite_header, "restore the database from a backup"),
        (truncate, "is empty, which no database is"),
        (rename_to_log, "of a database whose own file, eu.shelf, is missing"),
    ],
)
def test_damage_is_reported_and_the_other_files_are_checked(
    capsys: pytest.CaptureFixture[str],
    data: pathlib.Path,
    damage: Callable[[pathlib.Path], None],
    finding: str,
) -> None:
    damage(data / "demo/eu.shelf")
    status, lines, errors = check(capsys, data)
    assert status == 1
    assert errors == f"treedb: 1 of 2 files in {data} has errors.\n"
    assert lines[0] == "demo/default.shelf: ok"
    assert finding in "\n".join(lines[1:])
    assert all(line.startswith("demo/eu.shelf") for line in lines[1:])


def test_what_a_check_finds_is_looked_for_by_the_next_start(
    capsys: pytest.CaptureFixture[str], data: pathlib.Path
) -> None:
    execute("UPDATE kv SET v = CAST('{' AS BLOB) WHERE rowid = 9")(data / "demo/eu.shelf")
    check(capsys, data)
    for name, is_sound in (("default", True), ("eu", False)):
        engine = SqliteEngine.open(data / f"demo/{name}.shelf")
        assert engine.was_closed_cleanly == is_sound
        engine.close()


def test_a_file_of_an_older_format_is_checked_and_not_converted(
    capsys: pytest.CaptureFixture[str], data: pathlib.Path
) -> None:
    file = data / "demo/old.shelf"
    format_1.create_file(file, format_1.rows_of({"01": 1, "9": {"x": 2}}))
    before = file.read_bytes()
    status, lines, errors = check(capsys, data)
    assert (status, errors) == (0, "")
    assert lines[2:] == [
        f"Note: {file} has format 1; the next start converts it.",
        "demo/old.shelf: ok",
    ]
    assert file.read_bytes() == before
    execute("UPDATE kv SET v = CAST('{' AS BLOB)")(file)
    status, lines, errors = check(capsys, data)
    assert status == 1
    assert lines[3:] == ["demo/old.shelf: The row / cannot be read."]


def test_an_older_file_without_room_for_its_conversion_is_reported(
    capsys: pytest.CaptureFixture[str], data: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = data / "demo/old.shelf"
    unpack_file(4, file)
    size = file.stat().st_size
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=size - 1))
    status, lines, _ = check(capsys, data)
    assert status == 1
    room = f"{size:,} bytes are needed beside it, {size - 1:,} are free"
    assert lines[3:] == [f"demo/old.shelf: It cannot be converted: {room}."]


def test_an_older_file_that_cannot_be_opened_does_not_end_the_check(
    capsys: pytest.CaptureFixture[str], data: pathlib.Path
) -> None:
    file = data / "demo/a.shelf"
    unpack_file(4, file)
    content = bytearray(file.read_bytes())
    content[47] ^= 1
    file.write_bytes(content)
    status, lines, _ = check(capsys, data)
    assert status == 1
    assert "its schema cannot be read" in "".join(lines)
    assert lines[-2:] == ["demo/default.shelf: ok", "demo/eu.shelf: ok"]


def restore_older(file: pathlib.Path) -> None:
    """Replace a shelf by its state before the last change."""
    older = file.read_bytes()
    engine = SqliteEngine.open(file)
    transaction = engine.begin()
    transaction.append(b"", b'{"time":1,"method":"put","path":[],"sent":1}')
    transaction.commit()
    engine.close()
    file.write_bytes(older)


def remove_shelf(file: pathlib.Path) -> None:
    file.unlink()


@pytest.mark.parametrize(
    ("lose", "finding"),
    [
        (restore_older, "eu.shelf ends with change 1, but change 2 had been made durable: "),
        (remove_shelf, "is the mark of a database whose own file, eu.shelf, is missing"),
    ],
)
def test_lost_changes_are_reported_each_time_and_nothing_is_changed(
    capsys: pytest.CaptureFixture[str],
    data: pathlib.Path,
    lose: Callable[[pathlib.Path], None],
    finding: str,
) -> None:
    lose(data / "demo/eu.shelf")
    before = contents(data)
    for _ in range(2):
        status, lines, _ = check(capsys, data)
        assert status == 1
        assert lines[0] == "demo/default.shelf: ok"
        assert finding in lines[1]
    assert contents(data) == before


def contents(data: pathlib.Path) -> dict[str, bytes]:
    """Return the files of a database that are not empty, without the index of its log."""
    found = {file.name: file.read_bytes() for file in (data / "demo").glob("eu.*")}
    return {name: content for name, content in found.items() if content and "-shm" not in name}


def test_a_missing_mark_is_a_warning(
    capsys: pytest.CaptureFixture[str], data: pathlib.Path
) -> None:
    (data / "demo/eu.shelf-mark").unlink()
    for _ in range(2):
        status, lines, _ = check(capsys, data)
        assert status == 0
        assert lines[1].startswith(f"Warning: {data}/demo/eu.shelf has no readable mark (eu.shelf-")
        assert [lines[0], lines[2]] == ["demo/default.shelf: ok", "demo/eu.shelf: ok"]


def test_invalid_rules_are_reported(capsys: pytest.CaptureFixture[str], data: pathlib.Path) -> None:
    (data / "demo/rules.json").write_text('{"rules": {".read": "nobody"}}')
    status, lines, _ = check(capsys, data)
    assert status == 1
    assert lines[2].startswith("demo/rules.json: The rules are not valid: 1:")


def test_rules_that_exceed_the_limits_of_the_configuration_are_reported(
    capsys: pytest.CaptureFixture[str], data: pathlib.Path
) -> None:
    (data / "demo/rules.json").write_text('{"rules": {}}')
    config = data.parent / "treedb.toml"
    config.write_text('data = "data"\n[rules]\ndocument_bytes = 5\n')
    assert main(["check", "--config", str(config)]) == 1
    assert "demo/rules.json: The rules are not valid: " in capsys.readouterr().out


def test_a_file_in_place_of_a_project_directory_is_reported(
    capsys: pytest.CaptureFixture[str], data: pathlib.Path
) -> None:
    config = data.parent / "treedb.toml"
    config.write_text('data = "data"\n[projects.demo]\n[projects.shop]\n')
    (data / "shop").touch()
    assert main(["check", "--config", str(config)]) == 1
    captured = capsys.readouterr()
    assert captured.out.splitlines()[2].startswith(f"shop: {data / 'shop'} is not a directory")
    assert captured.err == f"treedb: 1 of 3 files in {data} has errors.\n"


def test_a_folder_that_cannot_be_entered_is_reported(
    capsys: pytest.CaptureFixture[str], data: pathlib.Path
) -> None:
    (data / "shop").mkdir(mode=0)
    with someone_else(data):
        status, lines, _ = check(capsys, data)
    assert status == 1
    assert lines[2].startswith(f"shop: {data / 'shop'} cannot be read (Permission denied)")


def test_at_most_100_findings_of_a_file_are_printed(
    capsys: pytest.CaptureFixture[str], data: pathlib.Path
) -> None:
    execute("UPDATE kv SET v = CAST('{' AS BLOB)")(data / "demo/eu.shelf")
    _, lines, _ = check(capsys, data)
    assert len(lines) == 1 + 100 + 1
    assert "There may be more" in lines[-1]


def test_a_data_directory_in_use_is_not_checked(
    capsys: pytest.CaptureFixture[str], data: pathlib.Path
) -> None:
    lock = DirectoryLock(data)
    status, lines, errors = check(capsys, data)
    lock.release()
    assert (status, lines) == (1, [])
    assert f"{data} is in use by another treedb" in errors
    assert check(capsys, data)[0] == 0


@pytest.mark.parametrize("command", ["check", "compact", "restore", "import", "export"])
def test_commands_find_a_directory_in_use_whose_lock_file_was_removed(
    capsys: pytest.CaptureFixture[str], data: pathlib.Path, tmp_path: pathlib.Path, command: str
) -> None:
    backup, values = tmp_path / "backup", tmp_path / "values.json"
    values.write_bytes(b"{}")
    assert main(["backup", str(backup), "--data", str(data)]) == 0
    arguments = {
        "restore": [str(backup)],
        "import": [str(values), "http://demo.localhost/"],
        "export": ["http://demo.localhost/", str(tmp_path / "exported.json")],
    }
    capsys.readouterr()
    lock = DirectoryLock(data)
    (data / "treedb.lock").unlink()
    before = sorted(data.rglob("*"))
    assert main([command, *arguments.get(command, []), "--data", str(data)]) == 1
    assert "is in use by another treedb" in capsys.readouterr().err
    assert sorted(data.rglob("*")) == before
    lock.release()


def test_a_missing_directory_is_not_created(
    capsys: pytest.CaptureFixture[str], tmp_path: pathlib.Path
) -> None:
    status, lines, errors = check(capsys, tmp_path / "none")
    assert (status, lines) == (1, [])
    assert "There is no data directory" in errors
    assert not (tmp_path / "none").exists()


def test_the_memory_engine_stores_nothing_to_check(
    capsys: pytest.CaptureFixture[str], tmp_path: pathlib.Path
) -> None:
    config = tmp_path / "treedb.toml"
    config.write_text('engine = "memory"')
    assert main(["check", "--config", str(config)]) == 1
    assert "stores nothing" in capsys.readouterr().err


def test_the_files_of_a_killed_daemon_are_sound_and_those_of_a_running_one_are_not_checked(
    daemon: Daemon,
) -> None:
    assert daemon.request("PUT", "/a.json", "[1, 2]").status == 200
    error = run_command("check", "--data", daemon.data).error
    assert f"process {daemon.pid}" in error
    daemon.kill()
    assert run_command("check", "--data", daemon.data).text == "demo/default.shelf: ok"
    daemon.start()
    assert daemon.request("GET", "/a.json").body == b"[1,2]"
