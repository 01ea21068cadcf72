"""The SQLite engine: the contract, its files, and what it cannot open."""

from __future__ import annotations

import contextlib
import itertools
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator

import apsw
import pytest

from tests.faulty_runs import FaultyRuns
from tests.store.conformance import (
    HIGH,
    EngineContract,
    append_all,
    everything,
    put_all,
    with_snapshot,
)
from tests.store.sqlite.disk_space import limited_file_size
from treedbd.store.engine import CannotOpenStore, DiskFull, LogEntry, ReadView, StoreFailed
from treedbd.store.sqlite.engine import SqliteEngine, remove_files
from treedbd.store.sqlite.file import FORMAT, PAGE_BYTES, connect
from treedbd.store.sqlite.writer import CHECKPOINT_FRAMES

STEPS = (
    *("openat", "fchmod", "write", "pwrite64", "fsync", "ftruncate", "fallocate"),
    *("?mkdir", "?mkdirat", "?chmod", "?fchmodat", "?unlink", "?unlinkat"),
    *("?rename", "?renameat", "?renameat2"),
)
"""Calls between which a file that is being created has different states on disk."""

SUFFIXES = ("", ".new", "-wal", "-shm", "-reserve", "-mark", "-mark.new")

WRITE_FOREVER = """
import itertools, pathlib, sys
from treedbd.store.sqlite.engine import SqliteEngine
engine = SqliteEngine.open(pathlib.Path(sys.argv[1]))
for number in itertools.count(engine.read(lambda rows: rows.sequence()) + 1):
    transaction = engine.begin()
    transaction.put(b"%d" % number, b"x" * (number * 977 % 60000))
    transaction.put(b"last", b"%d" % number)
    assert transaction.append(b"op", b"%d" % number) == number
    transaction.commit()
    print(number, flush=True)
"""


@pytest.fixture
def path(tmp_path: pathlib.Path) -> pathlib.Path:
    return tmp_path / "demo" / "default.shelf"


@pytest.fixture
def engine(path: pathlib.Path) -> Iterator[SqliteEngine]:
    engine = SqliteEngine.create(path)
    yield engine
    with contextlib.suppress(OSError):
        engine.close()


@pytest.fixture
def closed(path: pathlib.Path) -> pathlib.Path:
    """A file with some rows that no process has open."""
    engine = SqliteEngine.create(path, reserve_bytes=4096)
    put_all(engine, [(b"%03d" % number, b"x" * 1000) for number in range(100)])
    append_all(engine, b"one", b"two", b"three")
    engine.close()
    return path


@contextlib.contextmanager
def reopened(path: pathlib.Path) -> Iterator[SqliteEngine]:
    engine = SqliteEngine.open(path, reserve_bytes=4096)
    try:
        yield engine
    finally:
        engine.close()


@contextlib.contextmanager
def cache(path: pathlib.Path) -> Iterator[SqliteEngine]:
    """Open a file as a cache; it is made if there is none."""
    kind = SqliteEngine.open if path.exists() else SqliteEngine.create
    engine = kind(path, reserve_bytes=4096, is_cache=True)
    try:
        yield engine
    finally:
        engine.close()


@contextlib.contextmanager
def umask(mask: int) -> Iterator[None]:
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


def beside(path: pathlib.Path, suffix: str) -> pathlib.Path:
    return path.with_name(path.name + suffix)


def sql(path: pathlib.Path, statement: str) -> None:
    connection = connect(path)
    connection.execute(statement)
    connection.close()


class TestSqliteEngine(EngineContract):
    @pytest.fixture
    def engine(self, path: pathlib.Path) -> Iterator[SqliteEngine]:
        engine = SqliteEngine.create(path)
        yield engine
        with contextlib.suppress(OSError):
            engine.close()


# moments


def test_a_commit_ends_while_a_read_goes_on_and_is_not_seen_by_it(engine: SqliteEngine) -> None:
    put_all(engine, [(b"a", b"old")])
    transaction = engine.begin()
    transaction.put(b"a", b"new")
    thread = threading.Thread(target=transaction.commit)

    def read(rows: ReadView) -> tuple[bytes | None, bytes | None, int]:
        before = rows.get(b"a")
        thread.start()
        thread.join()
        return before, rows.get(b"a"), len(everything(rows))

    assert engine.read(read) == (b"old", b"old", 1)
    assert engine.read(lambda rows: rows.get(b"a")) == b"new"


def test_iterators_that_were_not_consumed_do_not_make_the_log_grow(
    engine: SqliteEngine, path: pathlib.Path
) -> None:
    put_all(engine, [(b"%d" % number, b"x") for number in range(10)])
    leaked: list[Iterator[bytes]] = []

    def leak(rows: ReadView) -> None:
        leaked.append(rows.scan_keys(b"", HIGH))
        next(leaked[-1])

    for number in range(750):
        engine.read(leak)
        with_snapshot(engine, leak)
        put_all(engine, [(b"k", b"%d" % number * 10_000)])
    assert beside(path, "-wal").stat().st_size < 2 * CHECKPOINT_FRAMES * PAGE_BYTES


@pytest.mark.parametrize("checkpoints", ["in commits", "as steps"])
def test_readers_between_all_steps_do_not_make_the_log_grow(
    engine: SqliteEngine, path: pathlib.Path, checkpoints: str
) -> None:
    def look() -> int:
        return engine.read(lambda rows: rows.sequence())

    sizes = []
    for number in range(2000):
        assert look() == number
        transaction = engine.begin()
        look()
        transaction.put(b"%d" % (number % 50), b"x" * 2000)
        transaction.append(b"op", b"entry")
        if checkpoints == "as steps":
            engine.pin()
            transaction.commit()
            assert look() == number
            engine.advance()
            if engine.needs_checkpoint():
                look()
                engine.checkpoint()
        else:
            transaction.commit()
        sizes.append(beside(path, "-wal").stat().st_size)
    assert not engine.needs_checkpoint()
    assert max(sizes) < 3 * CHECKPOINT_FRAMES * PAGE_BYTES


def test_a_moment_cannot_be_held_once_a_commit_that_it_must_not_show_is_made(
    engine: SqliteEngine,
) -> None:
    transaction = engine.begin()
    transaction.append(b"op", b"entry")
    engine.pin()
    held = engine.read(lambda rows: rows.hold())
    assert held is not None
    transaction.commit()
    assert engine.read(lambda rows: rows.hold()) is None
    assert engine.read(lambda rows: rows.sequence()) == 0
    engine.advance()
    assert engine.read(lambda rows: rows.sequence()) == 1
    assert held.sequence() == 0
    held.close()


def test_a_read_that_fails_ends_the_transaction(engine: SqliteEngine) -> None:
    put_all(engine, [(b"a", b"1")])

    def fail(rows: ReadView) -> None:
        assert rows.get(b"a") == b"1"
        raise StoreFailed("as if the disk had failed")

    with pytest.raises(StoreFailed):
        engine.read(fail)
    assert engine.read(lambda rows: rows.get(b"a")) == b"1"


def test_the_log_restarts_after_a_snapshot_is_closed(
    engine: SqliteEngine, path: pathlib.Path
) -> None:
    snapshot = engine.snapshot()
    for number in range(8):
        put_all(engine, [(b"k", b"%d" % number * 1_000_000)])
    grown = beside(path, "-wal").stat().st_size
    snapshot.close()
    for number in range(60):
        put_all(engine, [(b"k", b"%d" % number * 500_000)])
    assert grown > 8_000_000
    assert beside(path, "-wal").stat().st_size <= grown + 2_000_000


def test_a_commit_has_the_space_for_its_checkpoint_or_fails(
    engine: SqliteEngine, path: pathlib.Path
) -> None:
    put_all(engine, [(b"kept", b"x" * 100_000)])
    engine.release_reserve()
    size = path.stat().st_size
    with limited_file_size(size + 1_000_000), pytest.raises(DiskFull):
        put_all(engine, [(b"large", b"x" * 1_100_000)])
    assert path.stat().st_size == size
    snapshot = engine.snapshot()
    put_all(engine, [(b"other", b"x" * 500_000)])
    assert path.stat().st_size > size + 490_000
    with limited_file_size(path.stat().st_size):
        snapshot.close()
        engine.release_reserve()
        put_all(engine, [(b"kept", b"")])
    assert engine.read(lambda rows: list(rows.scan_keys(b"", b"z"))) == [b"kept", b"other"]
    assert engine.verify() == []


def test_begin_waits_for_another_program_that_writes_and_then_fails(
    engine: SqliteEngine, path: pathlib.Path
) -> None:
    other = connect(path)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreFailed, match="locked"):
        engine.begin()
    assert engine.read(lambda rows: rows.sequence()) == 0
    other.close()
    assert append_all(engine, b"one") == [1]


# files


@pytest.mark.parametrize("mask", [0, 0o022, 0o277])
def test_files_are_for_their_owner_alone_whatever_the_umask(path: pathlib.Path, mask: int) -> None:
    with umask(mask):
        engine = SqliteEngine.create(path)
        put_all(engine, [(b"a", b"b")])
        modes = {file.name: file.stat().st_mode & 0o777 for file in path.parent.iterdir()}
        engine.close()
    assert path.parent.stat().st_mode & 0o777 == 0o700
    names = [f"default.shelf{suffix}" for suffix in ("", "-mark", "-reserve", "-shm", "-wal")]
    assert modes == dict.fromkeys(names, 0o600)


def test_a_closed_database_is_one_file_with_its_mark_and_reserve(closed: pathlib.Path) -> None:
    assert sorted(file.name for file in closed.parent.iterdir()) == [
        "default.shelf",
        "default.shelf-mark",
        "default.shelf-reserve",
    ]
    copy = closed.with_name("copy.shelf")
    shutil.copy(closed, copy)
    with reopened(copy) as engine:
        assert engine.read(lambda rows: (len(everything(rows)), rows.sequence())) == (100, 3)


def test_a_database_that_is_opened_again_is_as_it_was(closed: pathlib.Path) -> None:
    for _ in range(3):
        with reopened(closed) as engine:
            found = engine.read(everything)
            assert found == {b"%03d" % number: b"x" * 1000 for number in range(100)}
            contents = engine.read(lambda rows: [entry.content for entry in rows.entries(0)])
            assert contents == [b"one", b"two", b"three"]
            assert engine.verify() == []
    with reopened(closed) as engine:
        assert append_all(engine, b"four") == [4]


def test_a_transaction_that_is_open_at_the_close_is_not_kept(closed: pathlib.Path) -> None:
    with reopened(closed) as engine:
        engine.begin().put(b"a", b"b")
    with reopened(closed) as engine:
        assert engine.read(lambda rows: rows.get(b"a")) is None


def test_the_sizes_of_all_files_count(engine: SqliteEngine, path: pathlib.Path) -> None:
    put_all(engine, [(b"a", b"b")])
    assert engine.size() == sum(file.stat().st_size for file in path.parent.iterdir())


def test_create_does_not_touch_what_exists(closed: pathlib.Path) -> None:
    with pytest.raises(CannotOpenStore, match=r"default\.shelf exists already"):
        SqliteEngine.create(closed)
    closed.rename(closed.with_name("elsewhere"))
    beside(closed, "-wal").write_bytes(b"")
    with pytest.raises(CannotOpenStore, match=r"default\.shelf-wal exists already"):
        SqliteEngine.create(closed)


def test_an_error_in_creation_names_the_file(tmp_path: pathlib.Path) -> None:
    (tmp_path / "demo").write_bytes(b"")
    with pytest.raises(CannotOpenStore, match=r"demo/default\.shelf cannot be created"):
        SqliteEngine.create(tmp_path / "demo" / "default.shelf")


def test_create_that_is_killed_leaves_a_good_file_or_none(tmp_path: pathlib.Path) -> None:
    outcomes = []
    with FaultyRuns("tests.store.sqlite.created_file:main") as runs:
        for call in STEPS:
            for step in itertools.count(1):
                path = tmp_path / f"{call}{step}" / "default.shelf"
                if not create_killed(runs, path, call, step):
                    break
                outcomes.append(path.exists())
                check_created(path)
    assert outcomes.count(False) > 5
    assert outcomes.count(True) > 10


def create_killed(runs: FaultyRuns, path: pathlib.Path, call: str, step: int) -> bool:
    """Create a database in a process that is killed at such a call; return whether it was."""
    files = [path.parent, *(beside(path, suffix) for suffix in SUFFIXES)]
    effect = f"signal=KILL:when={step}"
    status = runs.run([str(path)], call, effect, files)
    assert status in (0, -signal.SIGKILL)
    return status < 0


def check_created(path: pathlib.Path) -> None:
    """Check that a file that is there is good, and that one that is not can be created."""
    with contextlib.ExitStack() as stack:
        if path.exists():
            engine = stack.enter_context(reopened(path))
        else:
            engine = stack.enter_context(contextlib.closing(SqliteEngine.create(path)))
        assert engine.verify() == []
        assert append_all(engine, b"one") in ([1], [2])


# crashes


def test_what_was_acknowledged_outlives_a_killed_process(closed: pathlib.Path) -> None:
    for _ in range(3):
        program = [sys.executable, "-c", WRITE_FOREVER, str(closed)]
        with subprocess.Popen(program, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            lines = list(itertools.islice(process.stdout, 100))
            process.send_signal(signal.SIGKILL)
            lines += list(process.stdout)
        acknowledged = int(lines[-1])
        with reopened(closed) as engine:
            last = engine.read(lambda rows: rows.sequence())
            assert last in (acknowledged, acknowledged + 1)
            assert engine.read(lambda rows: rows.get(b"last")) == b"%d" % last
            found = engine.read(everything)
            for number in range(4, last + 1):
                assert found[b"%d" % number] == b"x" * (number * 977 % 60000)
            assert engine.verify() == []


def test_the_log_of_a_killed_process_is_checkpointed_before_anything_else(
    engine: SqliteEngine, path: pathlib.Path
) -> None:
    put_all(engine, [(b"a", b"x" * 10_000)])
    copy = path.parent.with_name("copy") / path.name
    subprocess.run(["cp", "-r", path.parent, copy.parent], check=True)
    assert beside(copy, "-wal").stat().st_size > 10_000
    with reopened(copy) as opened:
        assert beside(copy, "-wal").stat().st_size == 0
        assert opened.read(everything) == {b"a": b"x" * 10_000}


def test_recovery_goes_on_beside_snapshots_and_readers(engine: SqliteEngine) -> None:
    put_all(engine, [(b"a", b"1")])
    snapshot = engine.snapshot()
    put_all(engine, [(b"a", b"2")])
    thread = threading.Thread(target=engine.recover)
    thread.start()
    while thread.is_alive():
        assert engine.read(lambda rows: rows.get(b"a")) == b"2"
    thread.join()
    assert snapshot.get(b"a") == b"1"
    put_all(engine, [(b"a", b"3")])
    assert (snapshot.get(b"a"), engine.read(lambda rows: rows.get(b"a"))) == (b"1", b"3")
    snapshot.close()


def test_recovery_does_not_touch_a_file_that_has_replaced_ours(
    engine: SqliteEngine, path: pathlib.Path
) -> None:
    put_all(engine, [(b"a", b"1")])
    other = path.with_name("other.shelf")
    SqliteEngine.create(other).close()
    path.rename(path.with_name("moved"))
    with pytest.raises(StoreFailed, match="was moved, removed or replaced"):
        engine.recover()
    content = other.read_bytes()
    other.rename(path)
    with pytest.raises(StoreFailed, match="was moved, removed or replaced"):
        engine.recover()
    assert path.read_bytes() == content


# what cannot be opened


def empty(path: pathlib.Path) -> None:
    path.write_bytes(b"")


def garbage(path: pathlib.Path) -> None:
    path.write_bytes(b"not a database at all" * 1000)


def garbage_header(path: pathlib.Path) -> None:
    with path.open("r+b") as file:
        file.write(os.urandom(100))


def garbage_schema(path: pathlib.Path) -> None:
    with path.open("r+b") as file:
        file.seek(100)
        file.write(b"\xff" * 1000)


def truncated(size: int) -> Callable[[pathlib.Path], None]:
    return lambda path: os.truncate(path, size)


def foreign(path: pathlib.Path) -> None:
    path.write_bytes(b"")
    sql(path, "CREATE TABLE cookies(name, value); INSERT INTO cookies VALUES(1, 2)")


def run_sql(text: str) -> Callable[[pathlib.Path], None]:
    return lambda path: sql(path, text)


def directory(path: pathlib.Path) -> None:
    path.unlink()
    path.mkdir()


def pipe(path: pathlib.Path) -> None:
    path.unlink()
    os.mkfifo(path)


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (empty, "is empty, which no database is: remove it, with the -wal and the -shm beside it"),
        (garbage, "is not a database of treedb: move it out"),
        (garbage_header, "is not a database of treedb: move it out"),
        (garbage_schema, r"is damaged \(.*\): restore it from a backup"),
        (truncated(50), "is not a database of treedb: move it out"),
        (truncated(4096), r"is damaged \(.*\): restore it from a backup"),
        (truncated(50_001), r"is damaged \(.*\): restore it from a backup"),
        (foreign, "is not a database of treedb: move it out"),
        (run_sql("PRAGMA application_id = 7"), "is not a database of treedb: move it out"),
        (run_sql("PRAGMA user_version = 6"), "has format 6 .* use the version that wrote it"),
        (run_sql("PRAGMA user_version = 0"), "has format 0 .* use the version that wrote it"),
        (run_sql("DROP TABLE log"), r"is damaged \(its tables .*\): restore it"),
        (run_sql("ALTER TABLE kv ADD COLUMN x ANY"), r"is damaged \(its tables .*\): restore it"),
        (run_sql("DELETE FROM dbs"), r"is damaged \(its sequence number .*\): restore it"),
        (directory, "is not a file: move it"),
        (pipe, "is not a file: move it"),
    ],
)
def test_a_file_that_cannot_be_opened_is_reported_in_one_sentence(
    closed: pathlib.Path, damage: Callable[[pathlib.Path], None], sentence: str
) -> None:
    damage(closed)
    with pytest.raises(CannotOpenStore, match=sentence) as caught:
        SqliteEngine.open(closed)
    text = str(caught.value)
    assert text.startswith(f"{closed} ")
    assert text.endswith(".")
    assert "\n" not in text


def test_a_missing_file_is_missing(path: pathlib.Path) -> None:
    with pytest.raises(FileNotFoundError):
        SqliteEngine.open(path)
    assert not path.parent.exists()


def test_a_file_of_another_user_cannot_be_opened(closed: pathlib.Path) -> None:
    for place in (closed, closed.parent):
        mode = place.stat().st_mode
        place.chmod(0)
        with (
            someone_else(),
            pytest.raises(CannotOpenStore, match="let the user that runs treedb read"),
        ):
            SqliteEngine.open(closed)
        place.chmod(mode)
    with reopened(closed) as engine:
        assert engine.verify() == []


def test_a_file_that_another_program_has_locked_cannot_be_opened(closed: pathlib.Path) -> None:
    other = connect(closed)
    other.pragma("locking_mode", "exclusive")
    other.execute("BEGIN EXCLUSIVE; UPDATE dbs SET seq = 3; COMMIT")
    with pytest.raises(CannotOpenStore, match="is locked by another program"):
        SqliteEngine.open(closed)
    other.close()
    with reopened(closed) as engine:
        assert engine.verify() == []


def test_a_file_that_cannot_be_opened_is_not_changed(closed: pathlib.Path) -> None:
    sql(closed, f"PRAGMA user_version = {FORMAT + 1}")
    before = closed.read_bytes()
    with pytest.raises(CannotOpenStore):
        SqliteEngine.open(closed)
    assert closed.read_bytes() == before
    assert not beside(closed, "-wal").exists()


def test_a_library_that_damages_files_is_not_used(
    closed: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(apsw, "sqlite_lib_version", lambda: "3.51.2")
    with pytest.raises(
        CannotOpenStore, match=r"SQLite library 3\.51\.2 can damage databases that are in use"
    ):
        SqliteEngine.open(closed)


# damage inside


def test_verify_finds_pages_that_have_changed(closed: pathlib.Path) -> None:
    with closed.open("r+b") as file:
        file.seek(8 * 4096)
        file.write(b"\xa5" * (4 * 4096))
    with reopened(closed) as engine:
        damage = engine.verify()
    assert damage
    assert all(line.startswith("The file ") and line.endswith(".") for line in damage)


@pytest.mark.parametrize(
    "statement",
    ["DELETE FROM log WHERE seq = 2", "DELETE FROM log WHERE seq = 3", "UPDATE dbs SET seq = 9"],
)
def test_verify_finds_gaps_in_the_log(closed: pathlib.Path, statement: str) -> None:
    sql(closed, statement)
    with reopened(closed) as engine:
        (sentence,) = engine.verify()
    assert sentence.startswith("The change log has ")


def test_reading_a_damaged_page_fails_and_reading_others_goes_on(closed: pathlib.Path) -> None:
    size = closed.stat().st_size
    with closed.open("r+b") as file:
        file.seek(size - 8 * 4096)
        file.write(b"\xa5" * (8 * 4096))
    with reopened(closed) as engine:
        for work in (everything, lambda rows: list(rows.scan(b"", HIGH, reverse=True))):
            with pytest.raises(StoreFailed, match="does not match its check sum"):
                engine.read(work)
            with pytest.raises(StoreFailed, match="does not match its check sum"):
                with_snapshot(engine, work)
        assert engine.read(lambda rows: rows.get(b"000")) == b"x" * 1000


@contextlib.contextmanager
def someone_else() -> Iterator[None]:
    """Give up the rights of the superuser, if this process has them."""
    before = os.geteuid()
    if before == 0:
        os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(before)


def test_a_cache_that_has_lost_its_end_is_opened(path: pathlib.Path) -> None:
    with cache(path) as engine:
        append_all(engine, b"one")
    kept = path.read_bytes()
    with cache(path) as engine:
        append_all(engine, b"two")
    path.write_bytes(kept)
    with pytest.raises(CannotOpenStore, match="had been made durable"):
        SqliteEngine.open(path)
    with cache(path) as engine:
        assert engine.read(lambda rows: rows.sequence()) == 1
        assert append_all(engine, b"three") == [2]


def test_the_log_of_a_cache_can_be_replaced(path: pathlib.Path) -> None:
    with cache(path) as engine:
        append_all(engine, b"one", b"two")
        for sequence, entries in ((7, [LogEntry(7, b"op", b"seven")]), (3, []), (0, [])):
            transaction = engine.begin()
            transaction.replace_log(sequence, entries)
            assert transaction.sequence() == sequence
            transaction.commit()
            assert engine.read(lambda rows: rows.sequence()) == sequence
            assert engine.read(lambda rows: list(rows.entries(0))) == entries
        engine.recover()
        assert append_all(engine, b"first") == [1]


def count_syncs(path: pathlib.Path, *, is_cache: bool) -> int:
    """Return how often a process that makes ten commits syncs a file."""
    script = """
import pathlib, sys
from treedbd.store.sqlite.engine import SqliteEngine
path = pathlib.Path(sys.argv[1])
engine = SqliteEngine.create(path, reserve_bytes=4096, is_cache=sys.argv[2] == "True")
for number in range(10):
    transaction = engine.begin()
    transaction.append(b"op", b"entry")
    transaction.commit()
"""
    command = [sys.executable, "-c", script, str(path), str(is_cache)]
    trace = path.with_name("trace")
    path.parent.mkdir(parents=True, exist_ok=True)
    tracing = ["strace", "-f", "--seccomp-bpf", "-e", "trace=fsync,fdatasync", "-o", str(trace)]
    subprocess.run([*tracing, *command], check=True, timeout=60)
    return trace.read_text().count("sync(")


def test_a_commit_of_a_cache_is_not_synced(tmp_path: pathlib.Path) -> None:
    durable = count_syncs(tmp_path / "durable" / "a.shelf", is_cache=False)
    cached = count_syncs(tmp_path / "cached" / "a.shelf", is_cache=True)
    assert durable >= cached + 10


def test_a_file_is_removed_when_what_is_beside_it_is_durably_gone(
    closed: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    durable = []

    def record(folder: pathlib.Path) -> None:
        durable.append([file.name for file in folder.iterdir()])

    monkeypatch.setattr("treedbd.store.sqlite.engine.sync_directory", record)
    for _ in range(2):
        remove_files(closed)
    assert durable == [["default.shelf"], []]


def test_a_moment_is_held_of_a_file_that_was_removed(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "demo" / "default.shelf"
    with contextlib.closing(SqliteEngine.create(path, reserve_bytes=0)) as engine:
        transaction = engine.begin()
        transaction.put(b"a", b"x" * 100_000)
        transaction.commit()
    with contextlib.closing(SqliteEngine.open(path, reserve_bytes=0)) as engine:
        path.unlink()
        with contextlib.closing(engine.snapshot()) as snapshot:
            assert snapshot.get(b"a") == b"x" * 100_000


def test_a_long_value_is_held_no_longer_than_it_takes_to_store_and_to_read_it(
    path: pathlib.Path,
) -> None:
    long, cached = bytes(10 * 1_048_576), 1_048_576
    with contextlib.closing(SqliteEngine.create(path, reserve_bytes=4096)) as engine:
        engine.limit_cache(cached)
        before = apsw.memory_used()
        for key in (b"a", b"b"):
            transaction = engine.begin()
            transaction.put(key, long)
            assert transaction.floor(key) == (key, long)
            transaction.append(b"op", long)
            transaction.commit()
            assert apsw.memory_used() - before < 2 * cached
