"""Reading a whole store: what is sound is said to be, and what is damaged is found."""

from __future__ import annotations

import pathlib
from collections.abc import Callable

import apsw
import pytest

from tests.command import process
from tests.daemon import Daemon
from tests.rights import someone_else
from treedbd.cli.main import main
from treedbd.store.lock import DirectoryLock
from treedbd.store.node_writer import NodeWriter
from treedbd.store.sqlite import SqliteMapping
from treedbd.tree.edit import make_put
from treedbd.tree.path import ROOT, Place

MANY = {f"k{number}": "v" * 100 for number in range(2000)}


@pytest.fixture
def data(tmp_path: pathlib.Path) -> pathlib.Path:
    """A data directory with two databases."""
    folder = tmp_path / "data"
    for name in ("demo/default", "demo/eu"):
        mapping = SqliteMapping.create(folder / f"{name}.shelf", reserve_bytes=0)
        transaction = mapping.begin()
        NodeWriter(transaction).apply(make_put(Place(ROOT), MANY).changes)
        transaction.append(b"", b'{"time":1,"method":"put","path":[],"sent":1}')
        transaction.commit()
        mapping.close()
    return folder


def check(capsys: pytest.CaptureFixture[str], data: pathlib.Path) -> tuple[int, list[str], str]:
    """Return the status, the lines and the sentence of the command."""
    status = main(["check", "--data", str(data)])
    captured = capsys.readouterr()
    return status, captured.out.splitlines(), captured.err


def change(statement: str) -> Callable[[pathlib.Path], None]:
    def apply(file: pathlib.Path) -> None:
        connection = apsw.Connection(str(file))
        connection.execute(statement)
        connection.close()

    return apply


def spoil_pages(file: pathlib.Path) -> None:
    content = bytearray(file.read_bytes())
    for page in range(8, len(content) // 4096, 2):
        content[page * 4096 : page * 4096 + 64] = b"\xff" * 64
    file.write_bytes(content)


def spoil_head(file: pathlib.Path) -> None:
    file.write_bytes(b"x" * 4096)


def empty(file: pathlib.Path) -> None:
    file.write_bytes(b"")


def lose(file: pathlib.Path) -> None:
    file.rename(file.with_name(file.name + "-wal"))


def test_a_sound_store_is_said_to_be(
    capsys: pytest.CaptureFixture[str], data: pathlib.Path
) -> None:
    (data / "demo/rules.json").write_text('{"rules": {}}')
    status, lines, errors = check(capsys, data)
    expected = ["demo/default.shelf: ok", "demo/eu.shelf: ok", "demo/rules.json: ok"]
    assert (status, lines, errors) == (0, expected, "")


@pytest.mark.parametrize(
    ("spoil", "finding"),
    [
        (change("UPDATE kv SET v = CAST('{' AS BLOB) WHERE rowid = 9"), "The row /k"),
        (change("UPDATE log SET entry = CAST('{' AS BLOB)"), "Entry 1 of the change log cannot"),
        (change("UPDATE dbs SET seq = 7"), "The log has 1 entries"),
        (change("PRAGMA user_version = 99"), "99"),
        (spoil_pages, "cannot be read"),
        (spoil_head, "restore the database from a backup"),
        (empty, "is empty, which no database is"),
        (lose, "is the log of a database whose own file, eu.shelf, is missing"),
    ],
)
def test_damage_is_found_and_the_rest_is_read(
    capsys: pytest.CaptureFixture[str],
    data: pathlib.Path,
    spoil: Callable[[pathlib.Path], None],
    finding: str,
) -> None:
    spoil(data / "demo/eu.shelf")
    status, lines, errors = check(capsys, data)
    assert status == 1
    assert errors == f"treedb: 1 of the 2 files in {data} is not in order.\n"
    assert lines[0] == "demo/default.shelf: ok"
    assert finding in "\n".join(lines[1:])
    assert all(line.startswith("demo/eu.shelf") for line in lines[1:])


def test_rules_that_are_no_good_are_found(
    capsys: pytest.CaptureFixture[str], data: pathlib.Path
) -> None:
    (data / "demo/rules.json").write_text('{"rules": {".read": "nobody"}}')
    status, lines, _ = check(capsys, data)
    assert status == 1
    assert lines[2].startswith("demo/rules.json: The rules are no good: 1:")


def test_rules_that_exceed_the_limits_of_the_configuration_are_found(
    capsys: pytest.CaptureFixture[str], data: pathlib.Path
) -> None:
    (data / "demo/rules.json").write_text('{"rules": {}}')
    config = data.parent / "treedb.toml"
    config.write_text('data = "data"\n[rules]\ndocument_bytes = 5\n')
    assert main(["check", "--config", str(config)]) == 1
    assert "demo/rules.json: The rules are no good: " in capsys.readouterr().out


def test_what_stands_where_a_project_should_is_found(
    capsys: pytest.CaptureFixture[str], data: pathlib.Path
) -> None:
    config = data.parent / "treedb.toml"
    config.write_text('data = "data"\n[projects.demo]\n[projects.shop]\n')
    (data / "shop").touch()
    assert main(["check", "--config", str(config)]) == 1
    captured = capsys.readouterr()
    assert captured.out.splitlines()[2].startswith(f"shop: {data / 'shop'} is not a directory")
    assert captured.err == f"treedb: 1 of the 3 files in {data} is not in order.\n"


def test_a_folder_that_cannot_be_entered_is_found(
    capsys: pytest.CaptureFixture[str], data: pathlib.Path
) -> None:
    (data / "shop").mkdir(mode=0)
    with someone_else(data):
        status, lines, _ = check(capsys, data)
    assert status == 1
    assert lines[2].startswith(f"shop: {data / 'shop'} cannot be looked into (Permission denied)")


def test_of_much_damage_not_everything_is_said(
    capsys: pytest.CaptureFixture[str], data: pathlib.Path
) -> None:
    change("UPDATE kv SET v = CAST('{' AS BLOB)")(data / "demo/eu.shelf")
    _, lines, _ = check(capsys, data)
    assert len(lines) == 1 + 100 + 1
    assert "There may be more" in lines[-1]


def test_a_store_in_use_is_not_read(capsys: pytest.CaptureFixture[str], data: pathlib.Path) -> None:
    lock = DirectoryLock(data)
    status, lines, errors = check(capsys, data)
    lock.release()
    assert (status, lines) == (1, [])
    assert f"{data} is in use by another treedb" in errors
    assert check(capsys, data)[0] == 0


def test_a_directory_that_is_not_there_is_not_made(
    capsys: pytest.CaptureFixture[str], tmp_path: pathlib.Path
) -> None:
    status, lines, errors = check(capsys, tmp_path / "none")
    assert (status, lines) == (1, [])
    assert "There is no data directory" in errors
    assert not (tmp_path / "none").exists()


def test_the_memory_engine_keeps_nothing_to_read(
    capsys: pytest.CaptureFixture[str], tmp_path: pathlib.Path
) -> None:
    config = tmp_path / "treedb.toml"
    config.write_text('engine = "memory"')
    assert main(["check", "--config", str(config)]) == 1
    assert "keeps nothing" in capsys.readouterr().err


def test_what_a_killed_daemon_leaves_is_sound_and_a_running_one_is_left_alone(
    daemon: Daemon,
) -> None:
    assert daemon.request("PUT", "/a.json", "[1, 2]").status == 200
    in_use = process("check", "--data", daemon.data).sentence
    assert f"process {daemon.pid}" in in_use
    daemon.kill()
    assert process("check", "--data", daemon.data).text == "demo/default.shelf: ok"
    daemon.start()
    assert daemon.request("GET", "/a.json").body == b"[1,2]"
