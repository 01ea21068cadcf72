"""A shelf from which changes are missing is refused, whatever happened to it and to its log."""

from __future__ import annotations

import contextlib
import errno
import os
import pathlib
import shutil
import struct
import subprocess
import threading
from collections.abc import Callable, Iterator

import pytest

from tests.store.conformance import everything
from tests.store.sqlite.forgetful import ForgetfulDirectory
from treedbd.store.engine import CannotOpenStore, DiskFull, StoreFailed
from treedbd.store.sqlite.engine import SqliteEngine
from treedbd.store.sqlite.file import connect
from treedbd.store.sqlite.history import History, Mark, MarkFile
from treedbd.store.sqlite.writer import SqliteWriter

COMMITS = 12
FRAME_BYTES = 24 + 4096
LOG_HEADER_BYTES = 32


@pytest.fixture
def path(tmp_path: pathlib.Path) -> pathlib.Path:
    return tmp_path / "demo" / "default.shelf"


def beside(path: pathlib.Path, suffix: str) -> pathlib.Path:
    return path.with_name(path.name + suffix)


@contextlib.contextmanager
def opened(path: pathlib.Path, *, accept_loss: bool = False) -> Iterator[SqliteEngine]:
    """Open or create a shelf, and close it."""
    if path.exists():
        engine = SqliteEngine.open(path, accept_loss=accept_loss, reserve_bytes=0)
    else:
        engine = SqliteEngine.create(path, reserve_bytes=0)
    try:
        yield engine
    finally:
        engine.close()


def commit(engine: SqliteEngine, count: int = 1) -> int:
    """Commit so many changes, each with an id of its own; return the number of the last."""
    for _ in range(count):
        transaction = engine.begin()
        number = transaction.append(os.urandom(16), b"entry")
        transaction.put(b"%d" % number, b"x" * 2000)
        transaction.commit()
    return last(engine)


def last(engine: SqliteEngine) -> int:
    return engine.read(lambda rows: rows.sequence())


def mark_of(path: pathlib.Path) -> Mark | None:
    return MarkFile(beside(path, "-mark")).read()


def copy(path: pathlib.Path, target: pathlib.Path) -> pathlib.Path:
    """Copy a shelf and what is beside it, as a killed process would leave them.

    Another program does it: to close a file here would drop the locks of the engine.
    """
    target.mkdir(parents=True)
    subprocess.run(["cp", "-r", f"{path.parent}/.", target], check=True)
    return target / path.name


def contents(path: pathlib.Path) -> dict[str, bytes]:
    """Return what is in a shelf and in the files beside it.

    The index of the log, which every reader writes, does not count, nor does an empty log.
    """
    found = {each.name: each.read_bytes() for each in path.parent.iterdir()}
    return {name: content for name, content in found.items() if content and "-shm" not in name}


def crash(path: pathlib.Path, *, checkpoint_at: int | None = None) -> pathlib.Path:
    """Return the shelf of a process that was killed after some commits."""
    with opened(path) as engine:
        for number in range(1, COMMITS + 1):
            commit(engine)
            if number == checkpoint_at:
                engine.release_reserve()
        return copy(path, path.parent.with_name("crashed"))


# after a crash: the log


def cut(fraction: float) -> Callable[[pathlib.Path], None]:
    return lambda log: os.truncate(log, int(used_bytes(log) * fraction))


def flip(fraction: float) -> Callable[[pathlib.Path], None]:
    def apply(log: pathlib.Path) -> None:
        content = bytearray(log.read_bytes())
        content[int((used_bytes(log) - 1) * fraction)] ^= 0x10
        log.write_bytes(content)

    return apply


def used_bytes(log: pathlib.Path) -> int:
    """Return how much of a log is in use: up to the last frame of its present round."""
    content = log.read_bytes()
    salts = content[16:24]
    used = LOG_HEADER_BYTES
    while content[used + 8 : used + 16] == salts:
        used += FRAME_BYTES
    return used


def empty_last_frame(log: pathlib.Path) -> None:
    content = bytearray(log.read_bytes())
    used = used_bytes(log)
    content[used - FRAME_BYTES : used] = bytes(FRAME_BYTES)
    log.write_bytes(content)


DAMAGES = {
    "removed": pathlib.Path.unlink,
    "cut to nothing": cut(0),
    "cut at the start": cut(0.1),
    "cut in the middle": cut(0.5),
    "cut at the end": lambda log: os.truncate(log, used_bytes(log) - 1),
    "flipped in its header": flip(0),
    "flipped at the start": flip(0.1),
    "flipped in the middle": flip(0.5),
    "flipped at the end": flip(1),
    "emptied at the end": empty_last_frame,
}


@pytest.mark.parametrize("checkpoint_at", [None, COMMITS // 2])
@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES.keys())
def test_a_log_that_was_altered_after_a_crash_is_noticed(
    path: pathlib.Path, damage: Callable[[pathlib.Path], None], checkpoint_at: int | None
) -> None:
    crashed = crash(path, checkpoint_at=checkpoint_at)
    log = beside(crashed, "-wal")
    whole = log.read_bytes()
    damage(log)
    before = contents(crashed)
    sentence = rf"ends with change \d+, but change {COMMITS} had been made durable: put back"
    for _ in range(2):
        with pytest.raises(CannotOpenStore, match=sentence) as caught, opened(crashed):
            raise AssertionError
        assert "--accept-loss" in str(caught.value)
        assert contents(crashed) == before
    log.write_bytes(whole)
    with opened(crashed) as engine:
        assert last(engine) == COMMITS
        assert len(engine.read(everything)) == COMMITS


@pytest.mark.parametrize("damage", ["removed", "cut in the middle"])
def test_a_loss_that_is_accepted_is_accepted_once(path: pathlib.Path, damage: str) -> None:
    crashed = crash(path, checkpoint_at=COMMITS // 2)
    DAMAGES[damage](beside(crashed, "-wal"))
    with opened(crashed, accept_loss=True) as engine:
        found = last(engine)
        assert COMMITS // 2 <= found < COMMITS
        assert engine.warning is not None
        assert f"{crashed} ends with change {found}, but change {COMMITS} had" in engine.warning
        assert "because of --accept-loss" in engine.warning
        assert not engine.was_closed_cleanly
    for expected in (found + 1, found + 2):
        with opened(crashed) as engine:
            assert engine.warning is None
            assert commit(engine) == expected


def test_an_accepted_loss_is_not_noticed_again_after_a_crash(path: pathlib.Path) -> None:
    crashed = crash(path)
    beside(crashed, "-wal").unlink()
    with opened(crashed, accept_loss=True):
        again = copy(crashed, crashed.parent.with_name("again"))
    with opened(again) as engine:
        assert last(engine) == 0


def test_what_a_log_held_is_not_missed_once_it_is_in_the_file(path: pathlib.Path) -> None:
    crashed = crash(path, checkpoint_at=COMMITS)
    beside(crashed, "-wal").unlink()
    with opened(crashed) as engine:
        assert last(engine) == COMMITS
        assert engine.warning is None


def test_the_history_that_was_lost_cannot_come_back_after_another_was_begun(
    path: pathlib.Path,
) -> None:
    crashed = crash(path)
    lost = copy(crashed, crashed.parent.with_name("lost"))
    beside(crashed, "-wal").unlink()
    with opened(crashed, accept_loss=True) as engine:
        commit(engine, 3)
    for suffix in ("", "-wal"):
        shutil.copy(beside(lost, suffix), beside(crashed, suffix))
    beside(crashed, "-wal").unlink()
    with opened(lost):
        pass
    shutil.copy(lost, crashed)
    with pytest.raises(CannotOpenStore, match="has another change 3 than the one"), opened(crashed):
        raise AssertionError


def test_the_mark_of_a_killed_process_names_its_last_commit(path: pathlib.Path) -> None:
    mark = mark_of(crash(path))
    assert mark is not None
    assert (mark.sequence, mark.is_closed) == (COMMITS, False)


# after a close: the shelf


def test_a_process_that_is_killed_after_compacting_loses_nothing(
    path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(path) as engine:
        commit(engine, COMMITS)
    with opened(path) as engine:
        monkeypatch.setattr(SqliteWriter, "truncate_log", lambda _: None)
        engine.compact()
        killed = copy(path, path.parent.with_name("killed"))
    assert used_bytes(beside(killed, "-wal")) > 0
    with opened(killed) as engine:
        assert last(engine) == COMMITS


def test_compacting_empties_the_log_while_reads_go_on(path: pathlib.Path) -> None:
    with opened(path) as engine:
        transaction = engine.begin()
        for number in range(2000):
            transaction.put(b"%d" % number, b"x" * 1000)
        transaction.append(os.urandom(16), b"{}")
        transaction.commit()
        transaction = engine.begin()
        transaction.delete_range(b"1", b"2")
        transaction.append(os.urandom(16), b"{}")
        transaction.commit()
        ending = threading.Event()

        def read() -> None:
            while not ending.wait(0.001):
                assert last(engine) == 2

        reader = threading.Thread(target=read)
        reader.start()
        before = engine.size()
        engine.compact()
        ending.set()
        reader.join()
        assert engine.size() < before * 0.7
        assert beside(path, "-wal").stat().st_size == 0


def test_an_older_copy_of_a_shelf_is_noticed_unless_its_mark_is_restored_too(
    path: pathlib.Path,
) -> None:
    with opened(path) as engine:
        commit(engine, 3)
    older = copy(path, path.parent.with_name("older"))
    with opened(path) as engine:
        commit(engine)
    shutil.copy(older, path)
    with pytest.raises(CannotOpenStore, match="ends with change 3, but change 4"), opened(path):
        raise AssertionError
    shutil.copy(beside(older, "-mark"), beside(path, "-mark"))
    with opened(path) as engine:
        assert last(engine) == 3
        assert engine.was_closed_cleanly


@pytest.mark.parametrize(("count", "sentence"), [(2, "ends with change 2"), (3, "has another")])
def test_another_database_in_the_place_of_a_shelf_is_noticed(
    path: pathlib.Path, count: int, sentence: str
) -> None:
    with opened(path) as engine:
        commit(engine, 3)
    other = path.with_name("other.shelf")
    with opened(other) as engine:
        commit(engine, count)
    shutil.copy(other, path)
    with pytest.raises(CannotOpenStore, match=sentence), opened(path):
        raise AssertionError


def test_a_log_beside_a_shelf_that_was_closed_without_one_is_not_applied(
    path: pathlib.Path,
) -> None:
    with opened(path) as engine:
        commit(engine)
    stray = beside(path, "-wal")
    log = beside(crash(path.parent.with_name("elsewhere") / path.name), "-wal")
    shutil.copy(log, stray)
    before = contents(path)
    with pytest.raises(CannotOpenStore, match=rf"{stray} is not the log of .*: remove it"):
        SqliteEngine.open(path)
    assert contents(path) == before
    stray.unlink()
    with opened(path) as engine:
        assert last(engine) == 1


def test_a_log_that_another_process_begins_while_the_mark_is_read_is_its_own(
    path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(path) as engine:
        commit(engine)
    read = MarkFile.read
    marks = [read(MarkFile(beside(path, "-mark")))]
    assert marks[0] is not None
    assert marks[0].is_closed
    with opened(path) as other:
        commit(other)
        monkeypatch.setattr(MarkFile, "read", lambda file: marks.pop() if marks else read(file))
        History(path)
        assert not marks


def test_who_follows_a_shelf_that_nobody_has_changed_begins_before_the_first_change(
    path: pathlib.Path,
) -> None:
    with opened(path) as engine:
        commit(engine)
    with opened(path) as engine:
        engine.writer.refresh()
        transaction = engine.begin()
        transaction.put(b"only a row", b"1")  # as of an index: the change log has no entry of it
        transaction.commit()
        mark = mark_of(path)
        assert mark is not None
        assert not mark.is_closed
        History(path)


@pytest.mark.parametrize("is_used_again", [False, True])
def test_after_a_clean_close_a_power_failure_does_not_bring_the_log_back(
    path: pathlib.Path,
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
    is_used_again: bool,
) -> None:
    with opened(path) as engine:
        commit(engine, COMMITS)
        directory = ForgetfulDirectory(path.parent, tmp_path / "kept", monkeypatch)
    if is_used_again:
        with opened(path) as engine:
            commit(engine)
            directory.sync()  # SQLite does, for the name of a new log
    directory.cut_power(tmp_path / "cut")
    assert not beside(tmp_path / "cut" / path.name, "-wal").exists()
    with opened(tmp_path / "cut" / path.name) as engine:
        assert last(engine) == COMMITS + is_used_again
        assert engine.was_closed_cleanly


def test_the_mark_does_not_say_closed_while_the_log_may_come_back(
    path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: pathlib.Path) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with opened(path) as engine:
        commit(engine)
        monkeypatch.setattr("treedbd.store.sqlite.writer.sync_directory", fail)
    mark = mark_of(path)
    assert mark is not None
    assert not mark.is_closed


def close_and_bring_back(path: pathlib.Path) -> pathlib.Path:
    """Close a shelf after some commits, put its log back, and return that."""
    log = beside(path, "-wal")
    with opened(path) as engine:
        commit(engine, COMMITS)
        subprocess.run(["cp", log, beside(path, "-saved")], check=True)
    beside(path, "-saved").rename(log)
    return log


def test_a_log_that_was_applied_already_is_none(path: pathlib.Path) -> None:
    log = close_and_bring_back(path)
    assert log.stat().st_size
    with opened(path) as engine:
        assert last(engine) == COMMITS
        assert engine.was_closed_cleanly
        assert engine.warning is None
        assert not log.stat().st_size
        assert commit(engine) == COMMITS + 1
    with opened(path) as engine:
        assert last(engine) == COMMITS + 1


def test_a_log_of_the_same_shelf_that_would_take_it_back_is_refused(path: pathlib.Path) -> None:
    log = close_and_bring_back(path)
    saved = log.read_bytes()
    log.unlink()
    with opened(path) as engine:
        commit(engine)
    log.write_bytes(saved)
    with pytest.raises(CannotOpenStore, match="is not the log of"):
        SqliteEngine.open(path)
    assert log.read_bytes() == saved


def test_a_log_that_cannot_be_read_is_no_foreign_one(path: pathlib.Path) -> None:
    log = close_and_bring_back(path)
    log.unlink()
    log.mkdir()
    (log / "content").touch()
    with pytest.raises(CannotOpenStore, match=r"default\.shelf-wal cannot be read"):
        SqliteEngine.open(path)


def test_a_shelf_is_not_created_where_the_mark_of_another_is(path: pathlib.Path) -> None:
    with opened(path) as engine:
        commit(engine)
    path.unlink()
    with pytest.raises(CannotOpenStore, match=r"default\.shelf-mark exists already"):
        SqliteEngine.create(path)


# the mark itself


@pytest.mark.parametrize("is_damaged", [True, False])
def test_a_shelf_without_its_mark_is_opened_with_a_warning_and_receives_one(
    path: pathlib.Path, is_damaged: bool
) -> None:
    crashed = crash(path)
    if is_damaged:
        beside(crashed, "-mark").write_bytes(b"garbage")
    else:
        beside(crashed, "-mark").unlink()
    with opened(crashed) as engine:
        assert engine.warning is not None
        assert "has no readable mark (default.shelf-mark)" in engine.warning
        assert commit(engine) == COMMITS + 1
    with opened(crashed) as engine:
        assert engine.warning is None


def test_an_empty_shelf_needs_no_mark(path: pathlib.Path) -> None:
    with opened(path):
        copied = copy(path, path.parent.with_name("copy"))
    with opened(copied) as engine:
        assert engine.warning is None


def test_a_mark_that_cannot_be_read_is_reported(path: pathlib.Path) -> None:
    with opened(path) as engine:
        commit(engine)
    beside(path, "-mark").unlink()
    beside(path, "-mark").mkdir()
    with pytest.raises(CannotOpenStore, match=r"default\.shelf-mark cannot be read or written"):
        SqliteEngine.open(path)


def test_a_shelf_behind_a_link_has_its_mark_beside_it(path: pathlib.Path) -> None:
    crashed = crash(path)
    link = path.parent.with_name("links") / path.name
    link.parent.mkdir()
    link.symlink_to(crashed)
    with opened(link) as engine:
        assert commit(engine) == COMMITS + 1
    assert [each.name for each in link.parent.iterdir() if "mark" in each.name] == []
    with opened(crashed) as engine:
        assert (engine.warning, last(engine)) == (None, COMMITS + 1)


# closed cleanly


def test_a_shelf_that_was_closed_cleanly_is_known_to_be_sound(path: pathlib.Path) -> None:
    with opened(path) as engine:
        commit(engine, 2)
    for _ in range(2):
        with opened(path) as engine:
            assert engine.was_closed_cleanly
            commit(engine)


def test_a_shelf_that_is_only_read_keeps_its_mark_as_it_is(path: pathlib.Path) -> None:
    with opened(path) as engine:
        commit(engine)
    before = contents(path)
    with opened(path) as engine:
        assert last(engine) == 1
        killed = copy(path, path.parent.with_name("killed"))
    assert contents(path) == before
    with opened(killed) as engine:
        assert engine.was_closed_cleanly


def test_a_killed_process_has_not_closed_cleanly(path: pathlib.Path) -> None:
    with opened(path) as engine:
        commit(engine)
    with opened(path) as engine:
        commit(engine)
        engine.release_reserve()
        crashed = copy(path, path.parent.with_name("crashed"))
    with opened(crashed) as engine:
        assert not engine.was_closed_cleanly


def test_after_a_crash_only_a_shelf_that_was_checked_is_closed_cleanly(path: pathlib.Path) -> None:
    crashed = crash(path)
    with opened(crashed):
        pass
    with opened(crashed) as engine:
        assert not engine.was_closed_cleanly
        commit(engine)
    with opened(crashed) as engine:
        assert not engine.was_closed_cleanly
        engine.confirm_sound()
    with opened(crashed) as engine:
        assert engine.was_closed_cleanly


def test_a_shelf_whose_log_is_left_has_not_been_closed_cleanly(path: pathlib.Path) -> None:
    with opened(path) as engine:
        commit(engine)
        reader = connect(path)
        reader.execute("BEGIN; SELECT count(*) FROM kv").fetchall()
    assert beside(path, "-wal").stat().st_size
    reader.close()
    with opened(path) as engine:
        assert (last(engine), engine.was_closed_cleanly, engine.warning) == (1, False, None)


# failures


def fail_write(monkeypatch: pytest.MonkeyPatch, code: int, *, is_synced: bool) -> None:
    """Let the writes of marks fail that are synced, or those that are not."""
    write = MarkFile.write

    def fail(file: MarkFile, mark: Mark, *, sync: bool = False) -> None:
        if sync is is_synced:
            raise OSError(code, os.strerror(code))
        write(file, mark, sync=sync)

    monkeypatch.setattr(MarkFile, "write", fail)


def test_nothing_is_committed_before_the_mark_says_that_the_shelf_is_open(
    path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(path) as engine:
        commit(engine)
    with opened(path) as engine:
        with monkeypatch.context() as patched:
            fail_write(patched, errno.EIO, is_synced=True)
            with pytest.raises(StoreFailed, match=r"mark .* cannot be written: Input/output error"):
                commit(engine)
            with pytest.raises(StoreFailed):
                engine.begin()
            with pytest.raises(StoreFailed, match=r"mark .* cannot be written"):
                engine.recover()
            assert not beside(path, "-wal").stat().st_size
        engine.recover()
        assert commit(engine) == 2
        mark = mark_of(path)
        assert mark is not None
        assert (mark.sequence, mark.is_closed) == (2, False)


def test_a_full_disk_under_the_mark_is_a_full_disk(
    path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(path) as engine:
        with monkeypatch.context() as patched:
            fail_write(patched, errno.ENOSPC, is_synced=True)
            with pytest.raises(DiskFull):
                commit(engine)
        assert commit(engine) == 1


def test_a_commit_is_acknowledged_although_its_mark_fails_and_no_other_begins(
    path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(path) as engine:
        with monkeypatch.context() as patched:
            fail_write(patched, errno.EIO, is_synced=False)
            assert commit(engine) == 1
            with pytest.raises(StoreFailed, match="mark"):
                engine.begin()
        engine.recover()
        mark = mark_of(path)
        assert mark is not None
        assert mark.sequence == 1
        assert commit(engine) == 2


def test_the_mark_is_synced_once_for_an_opening_each_checkpoint_and_the_close(
    path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    syncs: list[int] = []
    sync = MarkFile.sync

    def count(file: MarkFile) -> None:
        syncs.append(last_number[-1])
        sync(file)

    monkeypatch.setattr(MarkFile, "sync", count)
    last_number = [0]
    with opened(path) as engine:
        last_number.append(commit(engine, 5))
        engine.release_reserve()
        last_number.append(commit(engine))
    assert syncs == [0, 5, 6]


def test_the_record_of_a_mark_is_as_documented(path: pathlib.Path) -> None:
    with opened(path) as engine:
        commit(engine, 2)
    slots = [beside(path, "-mark").read_bytes()[at:][:41] for at in (0, 4096)]
    magic, _, sequence, _, is_closed = max(
        (struct.unpack(">8sQQ16s?", slot) for slot in slots), key=lambda record: record[1]
    )
    assert (magic, sequence, is_closed) == (b"treedb\0\1", 2, True)
