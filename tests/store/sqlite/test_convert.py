"""A file of format 1 is converted whole or not at all, and nothing in it is lost."""

from __future__ import annotations

import contextlib
import errno
import os
import pathlib
import shutil
import sys
from collections.abc import Callable
from types import FrameType, SimpleNamespace
from typing import Any

import apsw
import pytest

from tests.store import format_1
from tests.store.normal_form import normal_form
from tests.store.sqlite.disk_space import limited_file_size
from treedbd.store import changelog
from treedbd.store.engine import CannotOpenStore, LogEntry
from treedbd.store.nodes import Nodes
from treedbd.store.shelf import open_shelf
from treedbd.store.sqlite import convert
from treedbd.store.sqlite.convert import CONVERTED, check_older
from treedbd.store.sqlite.engine import SqliteEngine
from treedbd.store.sqlite.file import FORMAT, OlderFormat, connect
from treedbd.store.sqlite.history import MARK, Mark, MarkFile
from treedbd.store.verify import verify
from treedbd.tree.edit import make_put
from treedbd.tree.types import ROOT, Place, Value

TEXT = "x" * 300
YEAR: Any = {f"{month:02d}": {"title": TEXT, "9": 1, "09": 2} for month in range(12, 0, -1)}
TREE: Any = {"year": {**YEAR, ".priority": 3}, "list": [TEXT] * 20, "k" * 600: {"01": TEXT}}
BODY: Any = {**TREE, "list": {str(at): TEXT for at in range(20)}}
SAME: Any = {"a": {"b": TEXT}, "c": {f"k{at}": TEXT for at in range(30)}, "+1": 1}
ENTRIES = [changelog.encode(make_put(Place(("a", "01")), number), number) for number in range(5)]
NO_MARK = (
    "{0} has no readable mark (default.shelf-mark): whether its newest changes are missing cannot "
    "be noticed."
)


@pytest.fixture
def path(tmp_path: pathlib.Path) -> pathlib.Path:
    return tmp_path / "data" / "demo" / "default.shelf"


@pytest.fixture
def old(path: pathlib.Path) -> pathlib.Path:
    """A closed file of format 1, whose rows change."""
    format_1.create_file(path, format_1.rows_of(BODY), ENTRIES)
    return path


@pytest.fixture
def same(path: pathlib.Path) -> pathlib.Path:
    """A closed file of format 1, whose rows stay as they are."""
    format_1.create_file(path, format_1.rows_of(SAME), ENTRIES)
    return path


def open_and_read(path: pathlib.Path) -> tuple[Value, int, list[LogEntry]]:
    """Open a file for serving; return its tree, its sequence number and its log."""
    engine = SqliteEngine.open(path, reserve_bytes=0, report=ignore)
    try:
        assert engine.verify() == []
        assert engine.read(verify) == []
        return engine.read(
            lambda view: (Nodes(view).get(ROOT), view.sequence(), list(view.entries(0)))
        )
    finally:
        engine.close()


def ignore(_: str) -> None:
    """Receive a sentence about the progress."""


def check_content(path: pathlib.Path, body: Any = TREE) -> None:
    tree, sequence, entries = open_and_read(path)
    assert tree == normal_form(body)
    assert sequence == len(ENTRIES)
    assert [entry.content for entry in entries] == ENTRIES
    assert [entry.op_id for entry in entries] == [b"1", b"2", b"3", b"4", b"5"]


def format_of(path: pathlib.Path) -> int:
    connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
    with contextlib.closing(connection):
        version: int = connection.pragma("user_version")
        return version


def files_of(path: pathlib.Path) -> set[str]:
    others = {f"{path.name}-reserve", f"{path.name}{MARK}"}
    return {file.name for file in path.parent.iterdir()} - others


# what is converted


def test_a_file_that_treedb_has_written_is_converted(path: pathlib.Path) -> None:
    format_1.unpack_fixture(path)
    tree, sequence, entries = open_and_read(path)
    assert (sequence, len(entries)) == (7, 7)
    assert isinstance(tree, dict)
    with open_shelf(path) as shelf:
        assert list(shelf.at("months")) == [f"{month:02d}" for month in range(1, 13)]
        assert list(shelf.at("mixed")) == [
            *("-2147483648", "-1", "-01", "0", "-0", "00", "7", "07", "007", "9", "09", "10"),
            *("02147483647", "+5", "0123456789012", "02147483648", "2147483648", "a", "é"),
        ]
        assert shelf["small/a"] == {"0": 2, "-0": 1, "00": 3}
        assert list(shelf.at("small")) == ["1", "01", "001", "a", "list"]
        assert shelf["small/list"] == [1, 2, 3]
        assert shelf["months/.priority"] == 3
        assert shelf["months/01/.priority"] == "p"
        assert shelf["k" * 600] == {"9": 2, "09": 1}
        assert shelf["k" * 601] == {"09": 3}
        assert len(shelf.at("0/" * 8 + "b" * 420)) == 20
        assert len(shelf.at("1/" * 8 + "b" * 425)) == 20
        assert shelf["1/" * 8 + "b" * 425 + "/.priority"] == 9
        assert shelf["2/3/" + "long" * 119] == 1


def test_nothing_is_lost(old: pathlib.Path) -> None:
    check_content(old)
    assert format_of(old) == FORMAT
    assert files_of(old) <= {f"{old.name}{suffix}" for suffix in ("", "-wal", "-shm")}


def test_it_is_converted_once(old: pathlib.Path) -> None:
    sentences: list[str] = []
    for _ in range(2):
        SqliteEngine.open(old, report=sentences.append).close()
    assert sentences == [
        f"{old} has format 1 and is converted to format 2.",
        NO_MARK.format(old),
        f"{old} is converted: the new file is checked.",
        f"{old} has been converted to format 2.",
        f"{old} has format 2 and is converted to format 3.",
        f"{old} is converted: the new file is checked.",
        f"{old} has been converted to format 3.",
        f"{old} has format 3 and is converted to format 4.",
        f"{old} has been converted to format 4.",
        f"{old} has format 4 and is converted to format 5.",
        f"{old} is converted: the new file is checked.",
        f"{old} has been converted to format 5.",
    ]


def test_the_progress_of_a_large_file_is_reported(
    old: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(convert, "REPORT_BYTES", 4000)
    sentences: list[str] = []
    SqliteEngine.open(old, report=sentences.append).close()
    assert sentences.count(f"{old} is converted: 0 MiB of about 0 have been read.") > 2
    assert len(sentences) < 20


def test_a_file_whose_rows_stay_as_they_are_is_not_written_anew(same: pathlib.Path) -> None:
    sentences: list[str] = []
    SqliteEngine.open(same, report=sentences.append).close()
    written = [sentence for sentence in sentences if "the new file is checked" in sentence]
    assert len(written) == 2  # for the formats 3 and 5
    check_content(same, SAME)
    assert format_of(same) == FORMAT


def test_an_empty_database_is_converted(path: pathlib.Path) -> None:
    format_1.create_file(path, [])
    assert open_and_read(path) == (None, 0, [])
    assert format_of(path) == FORMAT


@pytest.mark.parametrize("body", [BODY, SAME])
@pytest.mark.parametrize("has_index", [True, False])
def test_what_is_only_in_the_log_of_a_killed_process_is_converted(
    path: pathlib.Path, tmp_path: pathlib.Path, body: Any, has_index: bool
) -> None:
    killed = tmp_path / "killed" / "demo" / path.name
    with format_1.open_file(path, format_1.rows_of(body), ENTRIES):
        shutil.copytree(path.parent, killed.parent)
    assert killed.with_name(f"{path.name}-wal").stat().st_size > 4096
    if not has_index:
        killed.with_name(f"{path.name}-shm").unlink()
    check_content(killed, body)


def test_the_new_file_belongs_to_whom_the_old_one_belonged(old: pathlib.Path) -> None:
    owner = 65534 if os.geteuid() == 0 else os.geteuid()
    os.chown(old, owner, -1)
    old.chmod(0o640)
    check_content(old)
    status = old.stat()
    assert (status.st_uid, status.st_mode & 0o777) == (owner, 0o640)


def test_a_link_to_a_file_stays_a_link(old: pathlib.Path, tmp_path: pathlib.Path) -> None:
    link = tmp_path / "linked" / "demo" / "default.shelf"
    link.parent.mkdir(parents=True)
    link.symlink_to(old)
    check_content(link)
    assert link.is_symlink()
    assert format_of(old) == FORMAT


def test_a_shelf_that_is_opened_for_writing_is_converted(old: pathlib.Path) -> None:
    with open_shelf(old, "w") as shelf:
        shelf["year/01/title"] = "new"
    with open_shelf(old) as shelf:
        assert list(shelf.at("year"))[:3] == ["01", "02", "03"]
        assert shelf["year/01/title"] == "new"


# what is refused, and leaves the file as it was


def check_untouched(path: pathlib.Path, before: bytes) -> None:
    assert path.read_bytes() == before
    assert files_of(path) <= {f"{path.name}{suffix}" for suffix in ("", "-wal", "-shm")}


def test_a_reader_is_told_how_the_file_is_converted(old: pathlib.Path) -> None:
    before = old.read_bytes()
    with pytest.raises(
        OlderFormat, match=r"has format 1, .*: start the daemon once, or open"
    ) as it:
        open_shelf(old)
    assert str(it.value).startswith(f"{old} ")
    check_untouched(old, before)


def test_a_newer_format_is_refused(old: pathlib.Path) -> None:
    check_content(old)
    connection = connect(old)
    connection.pragma("user_version", FORMAT + 1)
    connection.close()
    with pytest.raises(
        CannotOpenStore, match=rf"has format {FORMAT + 1} .* use the version that wrote it"
    ):
        SqliteEngine.open(old, report=ignore)


@pytest.mark.parametrize(
    ("statement", "sentence"),
    [
        ("UPDATE kv SET v = CAST('{\"01\":' AS BLOB) WHERE k = (SELECT min(k) FROM kv)", "JSON"),
        ("UPDATE kv SET v = CAST('{' AS BLOB) WHERE k = (SELECT max(k) FROM kv)", "cannot be read"),
        (
            "UPDATE kv SET k = x'0280000001017800' WHERE k = (SELECT min(k) FROM kv)",
            "no path encodes to",
        ),
        ("DELETE FROM log WHERE seq = 3", "The change log has 4 entries"),
        ("DROP TABLE log", "its tables are not those"),
    ],
)
def test_a_damaged_file_is_not_converted(old: pathlib.Path, statement: str, sentence: str) -> None:
    connection = connect(old)
    connection.execute(statement)
    connection.close()
    before = content_of(old)
    with pytest.raises(CannotOpenStore, match=f"is damaged .*{sentence}.*: restore it from a"):
        SqliteEngine.open(old, report=ignore)
    assert content_of(old) == before
    assert format_of(old) == 1
    assert not any(CONVERTED in name for name in files_of(old))


def content_of(path: pathlib.Path) -> dict[str, list[tuple[Any, ...]]]:
    connection = connect(path)
    with contextlib.closing(connection):
        tables = [name for (name,) in connection.execute("SELECT name FROM sqlite_schema")]
        return {
            name: list(connection.execute(f"SELECT * FROM {name}"))
            for name in tables
            if not name.startswith("sqlite_")
        }


def test_damaged_pages_keep_a_file_from_being_converted(old: pathlib.Path) -> None:
    pages = old.stat().st_size // 4096
    with old.open("r+b") as file:
        file.seek((pages - 2) * 4096)
        file.write(b"\xa5" * 8192)
    with pytest.raises(CannotOpenStore, match=r"is damaged \(.*malformed"):
        SqliteEngine.open(old, report=ignore)
    assert files_of(old) == {old.name}


def test_a_file_that_another_program_reads_is_not_converted(
    old: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("treedbd.store.sqlite.file.BUSY_MS", 1)
    with contextlib.closing(connect(old)) as reader:
        assert reader.execute("SELECT count(*) FROM kv").get > 1
        with pytest.raises(CannotOpenStore, match="is locked by another program: stop that"):
            SqliteEngine.open(old, report=ignore)
        assert reader.pragma("user_version") == 1
    check_content(old)


@pytest.mark.parametrize("room", [4096, 16_384, 100_000])
def test_a_full_disk_leaves_the_file_as_it_was(path: pathlib.Path, room: int) -> None:
    many = {f"k{at}": TEXT for at in range(1000)}
    format_1.create_file(path, format_1.rows_of({**BODY, "many": many}), ENTRIES)
    before = content_of(path)
    with (
        limited_file_size(room),
        pytest.raises(CannotOpenStore, match=r"disk is full.*: make room") as caught,
    ):
        SqliteEngine.open(path, report=ignore)
    assert str(caught.value).startswith(f"{path} ")
    assert content_of(path) == before
    assert format_of(path) == 1
    assert not any(CONVERTED in name for name in files_of(path))
    check_content(path, {**TREE, "many": many})


def test_a_disk_without_room_is_not_filled_up(
    old: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = old.stat().st_size
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=size - 1))
        patch.setattr(convert, "open_private", None)  # no file is created
        with pytest.raises(CannotOpenStore, match=r"disk is full.*: make room for another file"):
            SqliteEngine.open(old, report=ignore)
    check_content(old)


def test_a_full_disk_keeps_the_format_from_being_raised_in_place(same: pathlib.Path) -> None:
    before = content_of(same)
    with limited_file_size(100), pytest.raises(CannotOpenStore, match="disk is full"):
        SqliteEngine.open(same, report=ignore)
    assert content_of(same) == before
    assert format_of(same) == 1
    check_content(same, SAME)


@pytest.mark.parametrize("call", ["fsync", "rename", "sync_directory", "open_private"])
def test_an_error_of_the_disk_is_one_sentence(
    old: pathlib.Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    def fail(*_: object) -> int:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    before = content_of(old)
    with monkeypatch.context() as patch:
        if call == "fsync":
            patch.setattr(os, call, fail)
        elif call == "rename":
            patch.setattr(pathlib.Path, call, fail)
        else:
            patch.setattr(convert, call, fail)
        with pytest.raises(CannotOpenStore, match=r"cannot be converted .*\(Input/output error\):"):
            SqliteEngine.open(old, report=ignore)
    assert content_of(old) == before
    assert files_of(old) == {old.name}
    check_content(old)


# crashes


def test_a_process_that_is_killed_at_any_step_leaves_a_good_file(
    old: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    images = images_of_steps(old, tmp_path)
    formats = [format_of(image / old.name) for image in images]
    assert formats == sorted(formats)
    assert set(formats) == {1, 2, 3, 4, FORMAT}
    assert any((image / f"{old.name}{CONVERTED}").exists() for image in images)
    for image in images:
        check_content(image / old.name)
        assert not any(CONVERTED in name for name in files_of(image / old.name))


def test_a_process_that_is_killed_while_it_raises_the_format_leaves_a_good_file(
    same: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    images = images_of_steps(same, tmp_path)
    assert {format_of(image / same.name) for image in images} == {1, 2, 3, 4, FORMAT}
    for image in images:
        check_content(image / same.name, SAME)


def images_of_steps(path: pathlib.Path, folder: pathlib.Path) -> list[pathlib.Path]:
    """Convert a file; return the folders that a kill at each line of the conversion would leave.

    Equal ones are returned once.
    """
    images: dict[tuple[tuple[str, bytes], ...], pathlib.Path] = {}

    def keep(frame: FrameType, event: str, _: object) -> Any:
        if frame.f_code.co_filename != convert.__file__:
            return None
        files = sorted(path.parent.iterdir())
        state = tuple((file.name, file.read_bytes()) for file in files)
        if event == "line" and state not in images:
            image = images[state] = folder / "images" / str(len(images))
            shutil.copytree(path.parent, image)
        return keep

    before = sys.gettrace()
    sys.settrace(keep)
    try:
        SqliteEngine.open(path, report=ignore).close()
    finally:
        sys.settrace(before)
    return list(images.values())


def test_the_new_file_is_durable_before_it_replaces_the_old_one(
    old: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[str] = []

    def record(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def run(*arguments: Any) -> Any:
            if name == "rename" and not arguments[0].name.endswith(CONVERTED):
                return function(*arguments)
            steps.append(name)
            log, journal = (old.with_name(f"{old.name}{end}") for end in ("-wal", "-journal"))
            assert name == "_fill" or not (log.exists() or journal.exists())
            return function(*arguments)

        return run

    for name in ("sync_directory", "_fill", "_sync", "_check"):
        monkeypatch.setattr(convert, name, record(name, getattr(convert, name)))
    monkeypatch.setattr(pathlib.Path, "rename", record("rename", pathlib.Path.rename))
    check_content(old)
    step = ["sync_directory", "_fill", "_sync", "_check", "rename", "sync_directory"]
    assert steps == step * 3


def test_what_an_unfinished_conversion_has_left_is_removed(old: pathlib.Path) -> None:
    for suffix in ("", "-wal", "-shm", "-journal"):
        old.with_name(f"{old.name}{CONVERTED}{suffix}").write_bytes(b"unfinished" * 1000)
    check_content(old)
    assert files_of(old) == {old.name}


# what is missing is noticed before anything is changed


def test_a_file_from_which_changes_are_missing_is_not_converted(old: pathlib.Path) -> None:
    mark = MarkFile(old.with_name(f"{old.name}{MARK}"))
    mark.write(Mark(9, b"9"), sync=True)
    mark.close()
    before = content_of(old)
    with pytest.raises(CannotOpenStore, match="ends with change 5, but change 9 had been made"):
        SqliteEngine.open(old, report=ignore)
    assert content_of(old) == before
    assert format_of(old) == 1
    sentences: list[str] = []
    SqliteEngine.open(old, accept_loss=True, report=sentences.append).close()
    assert sum("because of --accept-loss" in sentence for sentence in sentences) == 1
    check_content(old)


def test_a_file_that_was_closed_is_marked_as_open_before_it_is_changed(
    same: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    mark = MarkFile(same.with_name(f"{same.name}{MARK}"))
    mark.write(Mark(5, b"5", is_closed=True), sync=True)
    mark.close()
    for image in images_of_steps(same, tmp_path):
        check_content(image / same.name, SAME)


# the check


def test_a_sound_file_of_an_older_format_is_checked_and_not_changed(old: pathlib.Path) -> None:
    before = old.read_bytes()
    assert check_older(old, 1) == []
    check_untouched(old, before)


@pytest.mark.parametrize(
    ("statement", "finding"),
    [
        ("UPDATE kv SET v = CAST('{\"01\":' AS BLOB) WHERE k = (SELECT min(k) FROM kv)", "JSON"),
        ("UPDATE kv SET v = CAST('{' AS BLOB) WHERE k = (SELECT max(k) FROM kv)", "cannot be read"),
        (
            "UPDATE kv SET k = x'0280000001017800' WHERE k = (SELECT min(k) FROM kv)",
            "no path encodes to",
        ),
        ("DELETE FROM log WHERE seq = 3", "The change log has 4 entries"),
    ],
)
def test_what_is_wrong_with_a_file_of_an_older_format_is_found(
    old: pathlib.Path, statement: str, finding: str
) -> None:
    connection = connect(old)
    connection.execute(statement)
    connection.close()
    (sentence,) = check_older(old, 1)
    assert finding in sentence
    assert sentence.endswith(".")
