"""The file of a shelf: who may open it, what is durable, and what readers see."""

from __future__ import annotations

import contextlib
import os
import pathlib
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.rights import someone_else
from tests.store.shelf_files import entries_of, read_once
from tests.store.sqlite.disk_space import limited_file_size
from treedbd.store import changelog
from treedbd.store.directory_lock import DirectoryLock
from treedbd.store.engine import CannotOpenStore, DiskFull, StoreFailed
from treedbd.store.shelf import ReadOnlyShelf, Shelf, open_shelf
from treedbd.store.sqlite.file import connect
from treedbd.tree.edit import make_put, make_remove
from treedbd.tree.types import Place

WRITE_STEP_BY_STEP = """
import sys
from treedbd.store.shelf import open_shelf
shelf = open_shelf(sys.argv[1], "w")
for step in sys.stdin:
    exec(step)
    print("done", flush=True)
"""
"""A program that writes: each line of its input is one step, answered by a line."""


@pytest.fixture
def closed(path: pathlib.Path) -> pathlib.Path:
    """The file of a database with one leaf."""
    with open_shelf(path, "c") as shelf:
        shelf["a"] = 1
    return path


# reading


def test_a_shelf_for_reading_cannot_be_written(closed: pathlib.Path) -> None:
    with open_shelf(closed) as shelf:
        for change in (
            lambda: shelf.__setitem__("a", 2),
            lambda: shelf.__setitem__("b", 2),
            lambda: shelf.__delitem__("a"),
            lambda: shelf.at("b").update(c=1),
            lambda: shelf.pop("a"),
            shelf.popitem,
            shelf.clear,
        ):
            with pytest.raises(ReadOnlyShelf, match='flag "w"'):
                change()
        shelf.sync()
        assert dict(shelf) == {"a": 1}
    assert read_once(closed, "") == {"a": 1}
    assert len(entries_of(closed)) == 1


def test_a_reader_sees_what_is_committed_and_nothing_else(shelf: Shelf, path: pathlib.Path) -> None:
    with open_shelf(path) as reader:
        shelf["a"] = 1
        assert shelf["a"] == 1
        assert "a" not in reader
        assert list(reader) == []
        shelf.sync()
        assert reader["a"] == 1
        shelf["a"] = 2
        assert reader["a"] == 1
        assert list(shelf.values()) == [2]
        shelf.close()
        assert reader["a"] == 2


def test_a_reader_sees_what_another_process_commits(closed: pathlib.Path) -> None:
    with open_shelf(closed) as reader, writing_process(closed) as step:
        step("shelf['a'] = 2")
        assert reader["a"] == 1
        step("shelf.sync()")
        assert reader["a"] == 2
        step("shelf['a'] = 3; shelf['b'] = 4")
        assert reader.export() == {"a": 2}
        step("shelf.close()")
        assert reader.export() == {"a": 3, "b": 4}


def test_several_readers_share_a_file_with_a_writer(shelf: Shelf, path: pathlib.Path) -> None:
    shelf["a"] = 1
    shelf.sync()
    readers = [open_shelf(path) for _ in range(3)]
    assert [reader["a"] for reader in readers] == [1, 1, 1]
    readers[0].close()
    assert [reader["a"] for reader in readers[1:]] == [1, 1]
    shelf["a"] = 2
    shelf.sync()
    assert [reader["a"] for reader in readers[1:]] == [2, 2]
    for reader in readers:
        reader.close()


@pytest.mark.parametrize("has_index", [True, False])
def test_a_file_that_a_killed_process_left_with_its_log_can_be_read_and_written(
    closed: pathlib.Path, has_index: bool
) -> None:
    with writing_process(closed) as step:
        step("shelf['a'] = {'b': 'x' * 50_000}; shelf.sync(); shelf['c'] = 1")
        step("import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
    log = closed.with_name("default.shelf-wal")
    assert log.stat().st_size > 50_000
    if not has_index:
        closed.with_name("default.shelf-shm").unlink()
    with open_shelf(closed) as shelf:
        assert dict(shelf) == {"a": {"b": "x" * 50_000}}
    assert log.stat().st_size > 50_000
    with open_shelf(closed, "w") as shelf:
        assert dict(shelf) == {"a": {"b": "x" * 50_000}}
        del shelf["a"]
    assert read_once(closed, "") is None


# durability


def test_close_makes_durable_what_was_written(path: pathlib.Path) -> None:
    shelf = open_shelf(path, "c")
    shelf["a"] = 1
    shelf.close()
    shelf.close()
    assert read_once(path, "a") == 1


def test_sync_makes_durable_what_was_written_so_far(path: pathlib.Path) -> None:
    shelf = open_shelf(path, "c")
    shelf.sync()
    shelf["a"] = 1
    shelf.sync()
    shelf.sync()
    copy = path.parents[1] / "copy" / path.name  # as a machine that stops now would leave it
    shutil.copytree(path.parent, copy.parent)
    shelf["a"] = 2
    shelf.close()
    assert read_once(copy, "a") == 1
    assert read_once(path, "a") == 2


def test_an_exception_discards_what_was_not_synced(closed: pathlib.Path) -> None:
    def write(shelf: Shelf) -> None:
        with shelf:
            shelf["a"] = 2
            shelf.sync()
            shelf["a"] = 3
            shelf["b"] = 4
            raise LookupError("from the body")

    shelf = open_shelf(closed, "w")
    with pytest.raises(LookupError, match="from the body"):
        write(shelf)
    with pytest.raises(ValueError, match="closed"):
        shelf["a"]
    assert read_once(closed, "") == {"a": 2}
    assert len(entries_of(closed)) == 2
    with open_shelf(closed, "w") as shelf:
        shelf["a"] = 5
    assert read_once(closed, "a") == 5


def test_a_closed_shelf_cannot_be_used(closed: pathlib.Path) -> None:
    for flag in ("r", "w"):
        shelf = open_shelf(closed, flag)
        iteration = iter(shelf)
        shelf.close()
        for use in (
            lambda: shelf["a"],  # noqa: B023 - used at once
            lambda: shelf.__setitem__("a", 2) if flag == "w" else shelf["a"],  # noqa: B023
            lambda: "a" in shelf,  # noqa: B023
            lambda: next(iteration),  # noqa: B023
            shelf.export,
            shelf.clear,
        ):
            with pytest.raises(ValueError, match="closed"):
                use()
        shelf.sync()
    assert read_once(closed, "a") == 1


def test_a_shelf_that_is_never_closed_releases_the_lock_and_discards_what_was_not_synced(
    closed: pathlib.Path,
) -> None:
    shelf = open_shelf(closed, "w")
    below = shelf.at("b")
    shelf["a"] = 2
    del shelf
    below["c"] = 3
    del below
    with open_shelf(closed, "w") as shelf:
        assert shelf[""] == {"a": 1}


def test_a_write_that_fails_half_way_is_not_committed(
    shelf: Shelf, path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(_size: int) -> bytes:
        raise KeyboardInterrupt

    shelf["a"] = 1
    shelf.sync()
    with monkeypatch.context() as patch:
        patch.setattr(os, "urandom", interrupt)  # called between the change and its log entry
        with pytest.raises(KeyboardInterrupt):
            shelf["a"] = 2
    assert shelf["a"] == 1
    shelf["b"] = 2
    shelf.close()
    assert read_once(path, "") == {"a": 1, "b": 2}
    assert len(entries_of(path)) == 2


def test_a_commit_on_a_full_disk_discards_what_was_not_synced(
    shelf: Shelf, path: pathlib.Path
) -> None:
    shelf["a"] = 1
    shelf.sync()
    with limited_file_size(path.stat().st_size + 100_000):
        shelf["a"] = "x" * 1_000_000
        with pytest.raises(DiskFull):
            shelf.sync()
        assert shelf["a"] == 1
        shelf["a"] = 2
        shelf.sync()
        shelf["a"] = "x" * 1_000_000
        with pytest.raises(DiskFull):
            shelf.close()
    with open_shelf(path, "w") as again:  # the lock has been released
        assert again["a"] == 2


def test_an_error_of_the_engine_in_a_read_discards_what_was_not_synced(
    closed: pathlib.Path,
) -> None:
    with open_shelf(closed, "w") as shelf:
        shelf["z"] = "x" * 100_000
    with closed.open("r+b") as file:
        file.seek(-8 * 4096, os.SEEK_END)
        file.write(b"\xa5" * (8 * 4096))
    with open_shelf(closed, "w") as shelf:
        shelf["a"] = 2
        with pytest.raises(StoreFailed, match="does not match its check sum"):
            shelf.export()
        assert shelf["a"] == 1
        with pytest.raises(StoreFailed, match="does not match its check sum"):
            shelf["a"] = 3
    with open_shelf(closed, "w") as shelf:
        shelf["a"] = 3
    with open_shelf(closed) as reader:
        with pytest.raises(StoreFailed, match="does not match its check sum"):
            reader.export()
        assert reader["a"] == 3


# the lock


def test_one_writer_at_a_time_has_the_lock_of_the_data_directory(
    shelf: Shelf, path: pathlib.Path
) -> None:
    shelf["a"] = 1
    other = path.parents[1] / "other" / "default.shelf"
    for locked, flag in ((path, "w"), (path, "c"), (other, "c")):
        with pytest.raises(CannotOpenStore, match="is in use by another treedb"):
            open_shelf(locked, flag)  # type: ignore[arg-type]  # a Flag
    with pytest.raises(CannotOpenStore, match="is in use by another treedb"):
        DirectoryLock(path.parents[1])
    assert not other.exists()
    shelf.close()
    with open_shelf(path, "w") as again:
        assert again["a"] == 1


def test_a_daemon_locks_out_writers_and_not_readers(closed: pathlib.Path) -> None:
    lock = DirectoryLock(closed.parents[1])
    with pytest.raises(CannotOpenStore, match="is in use by another treedb"):
        open_shelf(closed, "w")
    assert read_once(closed, "a") == 1
    lock.release()
    open_shelf(closed, "w").close()


def test_a_link_does_not_lead_past_the_lock(closed: pathlib.Path, tmp_path: pathlib.Path) -> None:
    link = tmp_path / "elsewhere" / "here" / "linked.shelf"
    link.parent.mkdir(parents=True)
    link.symlink_to(closed)
    lock = DirectoryLock(closed.parent.parent)
    with pytest.raises(CannotOpenStore, match="is in use by another treedb"):
        open_shelf(link, "w")
    lock.release()
    with open_shelf(link, "w") as shelf:
        shelf["b"] = 2
        with pytest.raises(CannotOpenStore, match="is in use by another treedb"):
            DirectoryLock(closed.parent.parent)
    assert read_once(closed, "b") == 2


def test_another_process_locks_out_a_writer(closed: pathlib.Path) -> None:
    with writing_process(closed):
        with pytest.raises(CannotOpenStore, match=r"is in use by another treedb \(process [0-9]"):
            open_shelf(closed, "w")
        assert read_once(closed, "a") == 1


# the change log


def test_each_write_adds_one_entry_that_decodes_to_its_edit(path: pathlib.Path) -> None:
    with open_shelf(path, "c") as shelf:
        shelf["a/b"] = {"x": [1, None]}
        shelf["a/.priority"] = 5
        shelf["missing/.priority"] = 5  # no node, so nothing is written
        shelf["n"] = {".sv": {"increment": 2}}
        shelf.sync()
        shelf.at("a")["c"] = None
        del shelf["a/b"]
    entries = entries_of(path)
    assert [entry.sequence for entry in entries] == [1, 2, 3, 4, 5]
    assert [changelog.decode(entry.content) for entry in entries] == [
        make_put(Place(("a", "b")), {"x": [1, None]}),
        make_put(Place(("a",), True), 5),
        make_put(Place(("n",)), 2),
        make_put(Place(("a", "c")), None),
        make_remove(Place(("a", "b"))),
    ]
    assert len({entry.op_id for entry in entries}) == 5
    assert {len(entry.op_id) for entry in entries} == {16}


def test_writes_continue_the_numbers_of_the_log(closed: pathlib.Path) -> None:
    for _ in range(2):
        with open_shelf(closed, "w") as shelf:
            shelf["a"] = 2
    assert [entry.sequence for entry in entries_of(closed)] == [1, 2, 3]


@pytest.mark.parametrize("retain", [0, 10])
def test_old_entries_are_trimmed(path: pathlib.Path, retain: int) -> None:
    last = 2 * changelog.TRIM_EVERY
    with open_shelf(path, "c", retain_events=retain) as shelf:
        for number in range(last):
            shelf["a"] = number
    sequences = [entry.sequence for entry in entries_of(path)]
    assert sequences == list(range(last - retain, last + 1))


def test_as_many_entries_are_retained_as_the_daemon_retains(path: pathlib.Path) -> None:
    last = 1000 + 2 * changelog.TRIM_EVERY
    with open_shelf(path, "c") as shelf:
        for number in range(last):
            shelf["a"] = number
    sequences = [entry.sequence for entry in entries_of(path)]
    assert sequences[-1] == last
    assert 1000 < len(sequences) <= 1000 + changelog.TRIM_EVERY


# files


def test_flag_c_creates_a_missing_file_and_opens_one_that_exists(path: pathlib.Path) -> None:
    for number in range(2):
        with open_shelf(os.fspath(path), "c") as shelf:
            assert shelf.get("a") == (number or None)
            shelf["a"] = number + 1
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert (path.parents[1] / "treedb.lock").exists()


@pytest.mark.parametrize("flag", ["r", "w"])
def test_a_missing_file_is_not_created(tmp_path: pathlib.Path, flag: Any) -> None:
    for path in (tmp_path / "default.shelf", tmp_path / "data" / "demo" / "default.shelf"):
        with pytest.raises(FileNotFoundError):
            open_shelf(path, flag)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("flag", ["n", "", "rw", None])
def test_an_unknown_flag_is_an_error(closed: pathlib.Path, flag: Any) -> None:
    with pytest.raises(ValueError, match="one of r, w, c"):
        open_shelf(closed, flag)
    assert read_once(closed, "a") == 1


def sql(statement: str) -> Callable[[pathlib.Path], None]:
    def run(path: pathlib.Path) -> None:
        connection = connect(path)
        connection.execute(statement)
        connection.close()

    return run


def foreign(path: pathlib.Path) -> None:
    path.write_bytes(b"")
    sql("CREATE TABLE cookies(name, value)")(path)


def garbage(path: pathlib.Path) -> None:
    path.write_bytes(b"not a database at all" * 1000)


def empty(path: pathlib.Path) -> None:
    path.write_bytes(b"")


def truncated(path: pathlib.Path) -> None:
    os.truncate(path, 4096)


def directory(path: pathlib.Path) -> None:
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize("flag", ["r", "w", "c"])
@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (foreign, "is not a database of treedb: move it out"),
        (garbage, "is not a database of treedb: move it out"),
        (empty, "is empty, which no database is: remove it"),
        (truncated, r"is damaged \(.*\): restore it from a backup"),
        (sql("PRAGMA user_version = 6"), "has format 6 .* use the version that wrote it"),
        (sql("DROP TABLE log"), r"is damaged \(its tables .*\): restore it"),
        (directory, "is not a file: move it"),
    ],
)
def test_a_file_that_cannot_be_used_is_named_and_not_changed(
    closed: pathlib.Path, damage: Callable[[pathlib.Path], None], sentence: str, flag: Any
) -> None:
    damage(closed)
    before = closed.read_bytes() if closed.is_file() else None
    with pytest.raises(CannotOpenStore, match=sentence) as caught:
        open_shelf(closed, flag)
    assert str(caught.value).startswith(f"{closed} ")
    assert (closed.read_bytes() if closed.is_file() else None) == before
    DirectoryLock(closed.parents[1]).release()


@pytest.mark.parametrize("flag", ["r", "w"])
def test_a_path_that_cannot_be_a_file_is_an_error(closed: pathlib.Path, flag: Any) -> None:
    with pytest.raises(CannotOpenStore, match=r"cannot be opened .Not a directory"):
        open_shelf(closed / "below", flag)


@pytest.mark.parametrize("flag", ["r", "w"])
def test_a_file_of_another_user_is_an_error(closed: pathlib.Path, flag: Any) -> None:
    closed.chmod(0)
    with someone_else(closed.parents[1]), pytest.raises(CannotOpenStore, match="Permission denied"):
        open_shelf(closed, flag)


@contextlib.contextmanager
def writing_process(path: pathlib.Path) -> Iterator[Callable[[str], None]]:
    """Open a shelf for writing in another process; yield a function that runs a step there."""
    program = [sys.executable, "-c", WRITE_STEP_BY_STEP, str(path)]
    with subprocess.Popen(
        program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        to_process, from_process = process.stdin, process.stdout

        def step(code: str) -> None:
            print(code, file=to_process, flush=True)
            assert from_process.readline() or process.wait() == -signal.SIGKILL

        step("pass")
        yield step
