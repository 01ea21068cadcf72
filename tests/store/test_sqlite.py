"""The embedded engine as a mapping: the contract, its files, and what it refuses to open."""

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

from tests.store.conformance import (
    HIGH,
    MappingContract,
    append_all,
    everything,
    put_all,
    with_snapshot,
)
from tests.store.room import room
from treedbd.store.mapping import Failed, Full, Refused, Rows
from treedbd.store.sqlite import SqliteMapping

STEPS = (
    *("openat", "fchmod", "write", "pwrite64", "fsync", "ftruncate", "fallocate"),
    *("?mkdir", "?mkdirat", "?chmod", "?fchmodat", "?unlink", "?unlinkat"),
    *("?rename", "?renameat", "?renameat2"),
)
"""Calls between which a file that is being made has different states on disk."""

CREATE = """
import pathlib, sys
from treedbd.store.sqlite import SqliteMapping
SqliteMapping.create(pathlib.Path(sys.argv[1]), reserve_bytes=4096).close()
"""

WRITE_FOR_EVER = """
import itertools, pathlib, sys
from treedbd.store.sqlite import SqliteMapping
mapping = SqliteMapping.open(pathlib.Path(sys.argv[1]))
for number in itertools.count(mapping.read(lambda rows: rows.sequence()) + 1):
    transaction = mapping.begin()
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
def mapping(path: pathlib.Path) -> Iterator[SqliteMapping]:
    mapping = SqliteMapping.create(path)
    yield mapping
    with contextlib.suppress(OSError):
        mapping.close()


@pytest.fixture
def closed(path: pathlib.Path) -> pathlib.Path:
    """A file with some rows that nobody has open."""
    mapping = SqliteMapping.create(path, reserve_bytes=4096)
    put_all(mapping, [(b"%03d" % number, b"x" * 1000) for number in range(100)])
    append_all(mapping, b"one", b"two", b"three")
    mapping.close()
    return path


@contextlib.contextmanager
def reopened(path: pathlib.Path) -> Iterator[SqliteMapping]:
    mapping = SqliteMapping.open(path, reserve_bytes=4096)
    try:
        yield mapping
    finally:
        mapping.close()


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
    connection = apsw.Connection(str(path))
    connection.execute(statement)
    connection.close()


class TestSqliteMapping(MappingContract):
    @pytest.fixture
    def mapping(self, path: pathlib.Path) -> Iterator[SqliteMapping]:
        mapping = SqliteMapping.create(path)
        yield mapping
        with contextlib.suppress(OSError):
            mapping.close()


# moments


def test_a_commit_ends_while_a_read_goes_on_and_is_not_seen_by_it(mapping: SqliteMapping) -> None:
    put_all(mapping, [(b"a", b"old")])
    transaction = mapping.begin()
    transaction.put(b"a", b"new")
    thread = threading.Thread(target=transaction.commit)

    def look(rows: Rows) -> tuple[bytes | None, bytes | None, int]:
        before = rows.get(b"a")
        thread.start()
        thread.join()
        return before, rows.get(b"a"), len(everything(rows))

    assert mapping.read(look) == (b"old", b"old", 1)
    assert mapping.read(lambda rows: rows.get(b"a")) == b"new"


def test_forgotten_iterators_do_not_make_the_log_grow(
    mapping: SqliteMapping, path: pathlib.Path
) -> None:
    put_all(mapping, [(b"%d" % number, b"x") for number in range(10)])
    leaked: list[Iterator[bytes]] = []

    def leak(rows: Rows) -> None:
        leaked.append(rows.scan_keys(b"", HIGH))
        next(leaked[-1])

    for number in range(250):
        mapping.read(leak)
        with_snapshot(mapping, leak)
        put_all(mapping, [(b"k", b"%d" % number * 10_000)])
    assert beside(path, "-wal").stat().st_size < 3_000_000


def test_the_log_is_begun_anew_once_a_snapshot_is_closed(
    mapping: SqliteMapping, path: pathlib.Path
) -> None:
    snapshot = mapping.snapshot()
    for number in range(8):
        put_all(mapping, [(b"k", b"%d" % number * 1_000_000)])
    grown = beside(path, "-wal").stat().st_size
    snapshot.close()
    for number in range(60):
        put_all(mapping, [(b"k", b"%d" % number * 500_000)])
    assert grown > 8_000_000
    assert beside(path, "-wal").stat().st_size <= grown + 2_000_000


def test_a_commit_has_the_room_to_be_folded_or_does_not_happen(
    mapping: SqliteMapping, path: pathlib.Path
) -> None:
    put_all(mapping, [(b"kept", b"x" * 100_000)])
    mapping.release_reserve()
    size = path.stat().st_size
    with room(size + 1_000_000), pytest.raises(Full):
        put_all(mapping, [(b"large", b"x" * 1_100_000)])
    assert path.stat().st_size == size
    snapshot = mapping.snapshot()
    put_all(mapping, [(b"other", b"x" * 500_000)])
    assert path.stat().st_size > size + 490_000
    with room(path.stat().st_size):
        snapshot.close()
        mapping.release_reserve()
        put_all(mapping, [(b"kept", b"")])
    assert mapping.read(lambda rows: list(rows.scan_keys(b"", b"z"))) == [b"kept", b"other"]
    assert mapping.verify() == []


def test_another_program_that_writes_is_waited_for_and_then_named(
    mapping: SqliteMapping, path: pathlib.Path
) -> None:
    other = apsw.Connection(str(path))
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(Failed, match="locked"):
        mapping.begin()
    assert mapping.read(lambda rows: rows.sequence()) == 0
    other.close()
    assert append_all(mapping, b"one") == [1]


# files


@pytest.mark.parametrize("mask", [0, 0o022, 0o277])
def test_files_are_for_their_owner_alone_whatever_the_umask(path: pathlib.Path, mask: int) -> None:
    with umask(mask):
        mapping = SqliteMapping.create(path)
        put_all(mapping, [(b"a", b"b")])
        modes = {file.name: file.stat().st_mode & 0o777 for file in path.parent.iterdir()}
        mapping.close()
    assert path.parent.stat().st_mode & 0o777 == 0o700
    names = [f"default.shelf{suffix}" for suffix in ("", "-reserve", "-shm", "-wal")]
    assert modes == dict.fromkeys(names, 0o600)


def test_a_closed_database_is_one_file_and_its_reserve(closed: pathlib.Path) -> None:
    assert sorted(file.name for file in closed.parent.iterdir()) == [
        "default.shelf",
        "default.shelf-reserve",
    ]
    lonely = closed.with_name("copy.shelf")
    shutil.copy(closed, lonely)
    with reopened(lonely) as mapping:
        assert mapping.read(lambda rows: (len(everything(rows)), rows.sequence())) == (100, 3)


def test_a_database_is_as_it_was_when_it_is_opened_again(closed: pathlib.Path) -> None:
    for _ in range(3):
        with reopened(closed) as mapping:
            found = mapping.read(everything)
            assert found == {b"%03d" % number: b"x" * 1000 for number in range(100)}
            contents = mapping.read(lambda rows: [entry.content for entry in rows.entries(0)])
            assert contents == [b"one", b"two", b"three"]
            assert mapping.verify() == []
    with reopened(closed) as mapping:
        assert append_all(mapping, b"four") == [4]


def test_a_transaction_that_is_open_at_the_close_is_not_kept(closed: pathlib.Path) -> None:
    with reopened(closed) as mapping:
        mapping.begin().put(b"a", b"b")
    with reopened(closed) as mapping:
        assert mapping.read(lambda rows: rows.get(b"a")) is None


def test_the_sizes_of_all_files_count(mapping: SqliteMapping, path: pathlib.Path) -> None:
    put_all(mapping, [(b"a", b"b")])
    assert mapping.size() == sum(file.stat().st_size for file in path.parent.iterdir())


def test_create_leaves_alone_what_is_there(closed: pathlib.Path) -> None:
    with pytest.raises(Refused, match=r"default\.shelf is there already"):
        SqliteMapping.create(closed)
    closed.rename(closed.with_name("elsewhere"))
    beside(closed, "-wal").write_bytes(b"")
    with pytest.raises(Refused, match=r"default\.shelf-wal is there already"):
        SqliteMapping.create(closed)


def test_create_says_where_it_cannot(tmp_path: pathlib.Path) -> None:
    (tmp_path / "demo").write_bytes(b"")
    with pytest.raises(Refused, match=r"demo/default\.shelf cannot be made"):
        SqliteMapping.create(tmp_path / "demo" / "default.shelf")


def test_create_that_is_killed_leaves_a_good_file_or_none(tmp_path: pathlib.Path) -> None:
    outcomes = []
    for call in STEPS:
        for step in itertools.count(1):
            path = tmp_path / f"{call}{step}" / "default.shelf"
            if not create_killed(path, call, step):
                break
            outcomes.append(path.exists())
            with contextlib.ExitStack() as stack:
                if path.exists():
                    mapping = stack.enter_context(reopened(path))
                else:
                    mapping = stack.enter_context(contextlib.closing(SqliteMapping.create(path)))
                assert mapping.verify() == []
                assert append_all(mapping, b"one") == [1]
    assert outcomes.count(False) > 5
    assert outcomes.count(True) > 10


def create_killed(path: pathlib.Path, call: str, step: int) -> bool:
    """Create a database in a process that is killed at such a call; return whether it was."""
    files = [beside(path, suffix) for suffix in ("", ".new", "-wal", "-shm", "-reserve")]
    watched = itertools.chain.from_iterable(("-P", str(file)) for file in (path.parent, *files))
    fault = ("-e", f"trace={call}", "-e", f"inject={call}:signal=KILL:when={step}")
    strace = ("strace", "-f", "-o", os.devnull, *watched, *fault)
    program = (sys.executable, "-c", CREATE, str(path))
    return subprocess.run([*strace, *program], check=False).returncode < 0


# crashes


def test_what_was_acknowledged_outlives_a_killed_process(closed: pathlib.Path) -> None:
    for _ in range(3):
        program = [sys.executable, "-c", WRITE_FOR_EVER, str(closed)]
        with subprocess.Popen(program, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            lines = list(itertools.islice(process.stdout, 100))
            process.send_signal(signal.SIGKILL)
            lines += list(process.stdout)
        acknowledged = int(lines[-1])
        with reopened(closed) as mapping:
            last = mapping.read(lambda rows: rows.sequence())
            assert last in (acknowledged, acknowledged + 1)
            assert mapping.read(lambda rows: rows.get(b"last")) == b"%d" % last
            found = mapping.read(everything)
            for number in range(4, last + 1):
                assert found[b"%d" % number] == b"x" * (number * 977 % 60000)
            assert mapping.verify() == []


def test_a_log_that_was_left_behind_is_folded_before_anything_else(
    mapping: SqliteMapping, path: pathlib.Path
) -> None:
    put_all(mapping, [(b"a", b"x" * 10_000)])
    left = path.parent.with_name("left") / path.name
    subprocess.run(["cp", "-r", path.parent, left.parent], check=True)
    assert beside(left, "-wal").stat().st_size > 10_000
    with reopened(left) as opened:
        assert beside(left, "-wal").stat().st_size == 0
        assert opened.read(everything) == {b"a": b"x" * 10_000}


def test_recovery_goes_on_beside_snapshots_and_readers(mapping: SqliteMapping) -> None:
    put_all(mapping, [(b"a", b"1")])
    snapshot = mapping.snapshot()
    put_all(mapping, [(b"a", b"2")])
    thread = threading.Thread(target=mapping.recover)
    thread.start()
    while thread.is_alive():
        assert mapping.read(lambda rows: rows.get(b"a")) == b"2"
    thread.join()
    assert snapshot.get(b"a") == b"1"
    put_all(mapping, [(b"a", b"3")])
    assert (snapshot.get(b"a"), mapping.read(lambda rows: rows.get(b"a"))) == (b"1", b"3")
    snapshot.close()


def test_recovery_leaves_alone_a_file_that_has_been_put_in_place_of_ours(
    mapping: SqliteMapping, path: pathlib.Path
) -> None:
    put_all(mapping, [(b"a", b"1")])
    other = path.with_name("other.shelf")
    SqliteMapping.create(other).close()
    path.rename(path.with_name("moved"))
    with pytest.raises(Failed, match="cannot be opened again"):
        mapping.recover()
    content = other.read_bytes()
    other.rename(path)
    with pytest.raises(Failed, match="replaced"):
        mapping.recover()
    assert path.read_bytes() == content


# what is refused


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
    path.unlink()
    sql(path, "CREATE TABLE cookies(name, value); INSERT INTO cookies VALUES(1, 2)")


def statement(text: str) -> Callable[[pathlib.Path], None]:
    return lambda path: sql(path, text)


def directory(path: pathlib.Path) -> None:
    path.unlink()
    path.mkdir()


def pipe(path: pathlib.Path) -> None:
    path.unlink()
    os.mkfifo(path)


@pytest.mark.parametrize(
    ("harm", "sentence"),
    [
        (empty, "is empty, which no database is: remove it, with the -wal and the -shm beside it"),
        (garbage, "is not a database of treedb: move it out"),
        (garbage_header, "is not a database of treedb: move it out"),
        (garbage_schema, r"is damaged \(.*\): restore it from a backup"),
        (truncated(50), "is not a database of treedb: move it out"),
        (truncated(4096), r"is damaged \(.*\): restore it from a backup"),
        (truncated(50_001), r"is damaged \(.*\): restore it from a backup"),
        (foreign, "is not a database of treedb: move it out"),
        (statement("PRAGMA application_id = 7"), "is not a database of treedb: move it out"),
        (statement("PRAGMA user_version = 2"), "has format 2 .* use the version that wrote it"),
        (statement("PRAGMA user_version = 0"), "has format 0 .* use the version that wrote it"),
        (statement("DROP TABLE log"), r"is damaged \(its tables .*\): restore it"),
        (statement("ALTER TABLE kv ADD COLUMN x ANY"), r"is damaged \(its tables .*\): restore it"),
        (statement("DELETE FROM dbs"), r"is damaged \(its sequence number .*\): restore it"),
        (directory, "is not a file: move it"),
        (pipe, "is not a file: move it"),
    ],
)
def test_a_file_that_is_no_good_is_refused_in_one_sentence(
    closed: pathlib.Path, harm: Callable[[pathlib.Path], None], sentence: str
) -> None:
    harm(closed)
    with pytest.raises(Refused, match=sentence) as refused:
        SqliteMapping.open(closed)
    text = str(refused.value)
    assert text.startswith(f"{closed} ")
    assert text.endswith(".")
    assert "\n" not in text


def test_a_missing_file_is_missing(path: pathlib.Path) -> None:
    with pytest.raises(FileNotFoundError):
        SqliteMapping.open(path)
    assert not path.parent.exists()


def test_a_file_of_another_user_is_refused(closed: pathlib.Path) -> None:
    for place in (closed, closed.parent):
        mode = place.stat().st_mode
        place.chmod(0)
        with someone_else(), pytest.raises(Refused, match="let the user that runs treedb read"):
            SqliteMapping.open(closed)
        place.chmod(mode)
    with reopened(closed) as mapping:
        assert mapping.verify() == []


def test_a_file_that_another_program_has_locked_is_refused(closed: pathlib.Path) -> None:
    other = apsw.Connection(str(closed))
    other.pragma("locking_mode", "exclusive")
    other.execute("BEGIN EXCLUSIVE; UPDATE dbs SET seq = 3; COMMIT")
    with pytest.raises(Refused, match="is locked by another program"):
        SqliteMapping.open(closed)
    other.close()
    with reopened(closed) as mapping:
        assert mapping.verify() == []


def test_a_refusal_leaves_the_file_as_it_was(closed: pathlib.Path) -> None:
    sql(closed, "PRAGMA user_version = 2")
    before = closed.read_bytes()
    with pytest.raises(Refused):
        SqliteMapping.open(closed)
    assert closed.read_bytes() == before
    assert not beside(closed, "-wal").exists()


def test_a_library_that_damages_files_is_refused(
    closed: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(apsw, "sqlite_lib_version", lambda: "3.51.2")
    with pytest.raises(Refused, match=r"SQLite library 3\.51\.2 can damage files"):
        SqliteMapping.open(closed)


# damage inside


def test_verify_finds_pages_that_have_changed(closed: pathlib.Path) -> None:
    with closed.open("r+b") as file:
        file.seek(8 * 4096)
        file.write(b"\xa5" * (4 * 4096))
    with reopened(closed) as mapping:
        damage = mapping.verify()
    assert damage
    assert all(line.startswith("The file ") and line.endswith(".") for line in damage)


@pytest.mark.parametrize(
    "harm",
    ["DELETE FROM log WHERE seq = 2", "DELETE FROM log WHERE seq = 3", "UPDATE dbs SET seq = 9"],
)
def test_verify_finds_gaps_in_the_log(closed: pathlib.Path, harm: str) -> None:
    sql(closed, harm)
    with reopened(closed) as mapping:
        (sentence,) = mapping.verify()
    assert sentence.startswith("The log has ")


def test_reading_a_damaged_page_fails_and_reading_others_goes_on(closed: pathlib.Path) -> None:
    size = closed.stat().st_size
    with closed.open("r+b") as file:
        file.seek(size - 8 * 4096)
        file.write(b"\xa5" * (8 * 4096))
    with reopened(closed) as mapping:
        for work in (everything, lambda rows: list(rows.scan(b"", HIGH, reverse=True))):
            with pytest.raises(Failed, match="malformed"):
                mapping.read(work)
            with pytest.raises(Failed, match="malformed"):
                with_snapshot(mapping, work)
        assert mapping.read(lambda rows: rows.get(b"000")) == b"x" * 1000


@contextlib.contextmanager
def someone_else() -> Iterator[None]:
    """Give up the rights of the superuser, if they are held."""
    before = os.geteuid()
    if before == 0:
        os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(before)
