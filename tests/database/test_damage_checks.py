"""Files that were not closed cleanly are read after the start; what is damaged is not written."""

from __future__ import annotations

import errno
import pathlib
import shutil
from collections.abc import Callable

import apsw
import pytest

from tests.database.catalogs import (
    PROJECT,
    close,
    find,
    make_catalog,
    make_write,
    problems,
    put,
    read,
    use,
)
from tests.database.world import Disk
from tests.injection import corrupt_row
from tests.store.conformance import put_all
from tests.store.sqlite.file_pages import (
    INDEX_INNER,
    INDEX_LEAF,
    TABLE_INNER,
    TABLE_LEAF,
    pages_of,
    table_leaf_with,
)
from treedbd.database import open_databases as damage_checks
from treedbd.database.files import DAMAGED, UNREADABLE
from treedbd.database.open_databases import RETRY_S, SWEEP_S, UNUSED_S
from treedbd.database.requests import Outcome, Unavailable
from treedbd.store.engine import Damage, DamagedRow, StoreDamaged, StoreFailed
from treedbd.store.sqlite import check as damage
from treedbd.store.sqlite.check import CheckStopped, find_damage
from treedbd.store.sqlite.engine import SqliteEngine
from treedbd.store.sqlite.file import PAGE_BYTES, write_sums
from treedbd.tree.path import encode_path
from treedbd.tree.types import Json

VALUE: dict[str, Json] = {f"k{number}": "x" * 3000 for number in range(200)}


def create(folder: pathlib.Path, *, is_clean: bool, value: Json = VALUE) -> pathlib.Path:
    """Create a database, as a stop or as a crash leaves it; return its file."""
    source = folder if is_clean else folder.with_name(f"{folder.name}-running")
    source.mkdir(exist_ok=True)
    catalog, clock = make_catalog(source, PROJECT)
    put(find(catalog, "d"), clock, value)
    if not is_clean:
        shutil.copytree(source, folder, dirs_exist_ok=True)
    close(catalog)
    return folder / "p" / "d.shelf"


@pytest.fixture
def checked(monkeypatch: pytest.MonkeyPatch) -> list[pathlib.Path]:
    """The files that are read, in order."""
    files: list[pathlib.Path] = []
    check = SqliteEngine.find_damage

    def record(engine: SqliteEngine, pause: Callable[[], bool]) -> Damage | None:
        files.append(engine.path)
        return check(engine, pause)

    monkeypatch.setattr(SqliteEngine, "find_damage", record)
    monkeypatch.setattr(damage_checks, "PAUSE_S", 0)
    return files


def test_after_a_clean_stop_no_file_is_read(
    tmp_path: pathlib.Path, checked: list[pathlib.Path]
) -> None:
    create(tmp_path, is_clean=True)
    catalog, clock = make_catalog(tmp_path, PROJECT)
    clock.advance(0)
    assert checked == []
    close(catalog)


def test_after_a_crash_each_file_is_read_once_after_the_start(
    tmp_path: pathlib.Path, checked: list[pathlib.Path]
) -> None:
    file = create(tmp_path, is_clean=False)
    catalog, clock = make_catalog(tmp_path, PROJECT)
    assert checked == []
    clock.advance(0)
    assert checked == [file]
    assert problems(catalog) == []
    assert use(catalog, find(catalog, "d")) is None
    close(catalog)
    again, clock = make_catalog(tmp_path, PROJECT)
    clock.advance(0)
    assert checked == [file]
    close(again)


def test_a_database_is_served_while_its_file_is_read(
    tmp_path: pathlib.Path, checked: list[pathlib.Path]
) -> None:
    file = create(tmp_path, is_clean=False)
    disk = Disk()
    catalog, clock = make_catalog(tmp_path, PROJECT, run_in_thread=disk.run)
    database = find(catalog, "d")
    assert read(database) == {"a": VALUE}
    clock.advance(0)
    outcomes: list[object] = []
    write = database.write(make_write(1))
    write.addCallback(outcomes.append)
    clock.advance(0)
    check, commit = disk.waiting
    disk.waiting = [commit, check]
    disk.finish()
    assert len(outcomes) == 1
    assert checked == []
    disk.finish()
    assert checked == [file]
    assert database.write_problem is None
    assert database.requests == 0


def test_a_damaged_file_is_not_written_and_what_can_be_read_is_served(
    tmp_path: pathlib.Path, checked: list[pathlib.Path]
) -> None:
    file = create(tmp_path, is_clean=True)
    corrupt_row(file, "a", "k7")
    file.with_name("d.shelf-mark").unlink()
    catalog, clock = make_catalog(tmp_path, PROJECT)
    clock.advance(0)
    assert checked == [file]
    for database in (find(catalog, "d"), find(catalog, "d")):
        refusal = put(database, clock, 1)
        assert isinstance(refusal, Unavailable)
        assert str(refusal) == DAMAGED
        (problem,) = problems(catalog)
        assert (problem.database, problem.reason) == ("d", DAMAGED)
        assert database.read(lambda nodes: nodes.get(("a", "k8"))) == "x" * 3000
        with pytest.raises(DamagedRow):
            database.read(lambda nodes: nodes.get(("a", "k7")))
        clock.pump([SWEEP_S] * int(UNUSED_S / SWEEP_S + 2))
        assert not database.is_open
    assert checked == [file]
    close(catalog)
    again, clock = make_catalog(tmp_path, PROJECT)
    clock.advance(0)
    assert checked == [file, file]  # it was not closed as a sound file
    close(again)


def test_a_damaged_page_is_found(tmp_path: pathlib.Path, checked: list[pathlib.Path]) -> None:
    file = create(tmp_path, is_clean=True)
    content = bytearray(file.read_bytes())
    content[20 * 4096 : 40 * 4096] = b"\x5a" * (20 * 4096)
    write_sums(content, PAGE_BYTES)
    file.write_bytes(content)
    file.with_name("d.shelf-mark").unlink()
    catalog, clock = make_catalog(tmp_path, PROJECT)
    clock.advance(0)
    (problem,) = problems(catalog)
    assert problem.reason == UNREADABLE
    close(catalog)


def hide_row(file: pathlib.Path, *path: str) -> None:
    """Let the index have another key for a row, though the check sum of the page is right."""
    content = bytearray(file.read_bytes())
    key = encode_path(path)
    pages = pages_of(content, INDEX_INNER, INDEX_LEAF)
    (at,) = (found for page in pages if (found := content.find(key, page, page + PAGE_BYTES)) > 0)
    content[at + len(key) - 2] ^= 1
    write_sums(content, PAGE_BYTES)
    file.write_bytes(content)


def test_nothing_is_read_from_a_file_whose_index_lacks_a_row(
    tmp_path: pathlib.Path, checked: list[pathlib.Path]
) -> None:
    file = create(tmp_path, is_clean=True)
    hide_row(file, "a", "k7")
    file.with_name("d.shelf-mark").unlink()
    catalog, clock = make_catalog(tmp_path, PROJECT)
    clock.advance(0)
    for database in (find(catalog, "d"), find(catalog, "d")):
        with pytest.raises(StoreDamaged):
            read(database)
        with pytest.raises(StoreDamaged):
            database.hold()
        refusal = put(database, clock, 1)
        assert isinstance(refusal, Unavailable)
        assert str(refusal) == UNREADABLE
        (problem,) = problems(catalog)
        assert (problem.database, problem.reason) == ("d", UNREADABLE)
        clock.pump([SWEEP_S] * int(UNUSED_S / SWEEP_S + 2))
    close(catalog)


def test_a_read_that_finds_damage_is_the_last_one(
    tmp_path: pathlib.Path, checked: list[pathlib.Path]
) -> None:
    file = create(tmp_path, is_clean=True)
    content = bytearray(file.read_bytes())
    at = table_leaf_with(content, encode_path(("a", "k7")))
    content[at : at + PAGE_BYTES] = b"\x5a" * PAGE_BYTES
    write_sums(content, PAGE_BYTES)
    file.write_bytes(content)
    catalog, clock = make_catalog(tmp_path, PROJECT)
    clock.advance(0)
    assert checked == []  # it was closed cleanly
    database = find(catalog, "d")
    with pytest.raises(StoreFailed):
        read(database)
    clock.advance(0)
    (problem,) = problems(catalog)
    assert (problem.database, problem.reason) == ("d", UNREADABLE)
    with pytest.raises(StoreDamaged, match=UNREADABLE):
        database.read(lambda nodes: nodes.get(("a", "k0")))
    close(catalog)
    again, clock = make_catalog(tmp_path, PROJECT)
    clock.advance(0)
    assert checked == [file]
    close(again)


@pytest.mark.parametrize("kind", [INDEX_INNER, TABLE_INNER, INDEX_LEAF, TABLE_LEAF])
@pytest.mark.parametrize("at", [3, 9, 2000, PAGE_BYTES - 1])
def test_a_page_whose_bit_has_changed_is_never_read(
    tmp_path: pathlib.Path, checked: list[pathlib.Path], kind: int, at: int
) -> None:
    file = create(tmp_path, is_clean=True, value={**VALUE, **{"y" * 400 + k: 1 for k in VALUE}})
    content = bytearray(file.read_bytes())
    content[pages_of(content, kind)[-1] + at] ^= 1
    file.write_bytes(content)
    catalog, clock = make_catalog(tmp_path, PROJECT)
    clock.advance(0)
    assert checked == []  # it was closed cleanly
    database = find(catalog, "d")
    with pytest.raises(StoreFailed):
        read(database)
    clock.advance(0)
    (problem,) = problems(catalog)
    assert problem.reason == DAMAGED
    if kind == TABLE_LEAF:
        assert database.read(lambda nodes: nodes.get(("a", "k0"))) == "x" * 3000
    close(catalog)


def test_a_write_that_meets_a_damaged_page_is_refused_and_reported(
    tmp_path: pathlib.Path, checked: list[pathlib.Path]
) -> None:
    file = create(tmp_path, is_clean=True)
    content = bytearray(file.read_bytes())
    at = table_leaf_with(content, encode_path(("a", "k7")))
    content[at + 2000] ^= 1
    file.write_bytes(content)
    catalog, clock = make_catalog(tmp_path, PROJECT)
    clock.advance(0)
    assert checked == []
    database = find(catalog, "d")
    refusal = put(database, clock, 1)  # which removes the row
    assert isinstance(refusal, Unavailable)
    clock.advance(0)
    (problem,) = problems(catalog)
    assert (problem.database, problem.reason) == ("d", DAMAGED)
    assert database.read(lambda nodes: nodes.get(("a", "k0"))) == "x" * 3000
    clock.pump([1] * 20)
    assert database.write_problem == DAMAGED
    close(catalog)
    again, clock = make_catalog(tmp_path, PROJECT)
    clock.advance(0)
    assert checked == [file]
    close(again)


def test_a_large_file_is_not_read(
    tmp_path: pathlib.Path, checked: list[pathlib.Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    create(tmp_path, is_clean=False)
    monkeypatch.setattr(damage_checks, "CHECKED_BYTES", 4096)
    catalog, clock = make_catalog(tmp_path, PROJECT)
    clock.advance(0)
    assert checked == []
    assert isinstance(put(find(catalog, "d"), clock, 1), Outcome)
    close(catalog)


def test_a_check_waits_until_a_database_can_be_opened(
    tmp_path: pathlib.Path, checked: list[pathlib.Path]
) -> None:
    file = create(tmp_path, is_clean=False)
    (tmp_path / "p" / "other.shelf").write_bytes(file.read_bytes())
    catalog, clock = make_catalog(tmp_path, PROJECT, max_open=1)
    other = find(catalog, "other")
    other.requests += 1
    read(other)
    clock.advance(0)
    assert checked == []
    other.requests -= 1
    clock.advance(RETRY_S)
    assert [each.stem for each in checked] == ["d", "other"]
    close(catalog)


def test_a_stop_ends_a_check(tmp_path: pathlib.Path, checked: list[pathlib.Path]) -> None:
    create(tmp_path, is_clean=False)
    disk = Disk()
    catalog, clock = make_catalog(tmp_path, PROJECT, run_in_thread=disk.run)
    clock.advance(0)
    disk.finish()  # the opening; the check waits for the thread
    closed: list[None] = []
    catalog.close().addCallback(closed.append)
    assert closed == []
    while disk.waiting:
        disk.finish()
    assert closed == [None]
    again, clock = make_catalog(tmp_path, PROJECT)
    clock.advance(0)
    assert len(checked) == 2  # it was not read to its end
    close(again)


def test_a_check_pauses_between_pieces_of_work(tmp_path: pathlib.Path) -> None:
    file = create(tmp_path, is_clean=True)
    engine = SqliteEngine.open(file)
    pauses: list[int] = []

    def pause() -> bool:
        pauses.append(1)
        return False

    assert find_damage(file, pause) is None
    assert len(pauses) >= 200 * 3000 // (256 * 1024)
    engine.close()


@pytest.mark.parametrize(("code", "is_damage"), [(10, False), (266, False), (11, True)])
def test_a_page_that_cannot_be_read_is_no_damage(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, code: int, is_damage: bool
) -> None:
    file = create(tmp_path, is_clean=True)
    engine = SqliteEngine.open(file)
    found = f"*** in database main ***\nTree 3 page 5: unable to get the page. error code={code}"
    monkeypatch.setattr(damage, "connect_reader", lambda _: Checked(found))
    if is_damage:
        assert str(find_damage(file, lambda: False)) == found.partition("\n")[2]
    else:
        with pytest.raises(StoreFailed, match="unable to get the page"):
            find_damage(file, lambda: False)
    engine.close()


@pytest.mark.parametrize("failed_read", [0, errno.EIO])
def test_a_check_that_cannot_read_finds_no_damage(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, failed_read: int
) -> None:
    connection = Checked(apsw.CorruptError("malformed"))
    monkeypatch.setattr(damage, "connect_reader", lambda _: connection)
    monkeypatch.setattr(damage, "find_failed_read", lambda _: failed_read)
    if failed_read:
        with pytest.raises(StoreFailed, match="malformed"):
            find_damage(tmp_path, lambda: False)
    else:
        assert str(find_damage(tmp_path, lambda: False)) == "malformed"


class Checked:
    """A connection whose check has found something; SQLite fails on a sound disk only so."""

    def __init__(self, found: str | apsw.Error) -> None:
        self.get = found

    def execute(self, _: str) -> Checked:
        if isinstance(self.get, apsw.Error):
            raise self.get
        return self

    def set_progress_handler(self, *_: object) -> None:
        pass

    def pragma(self, *_: object) -> None:
        pass

    def close(self) -> None:
        pass


def test_a_check_of_the_structure_can_be_stopped(tmp_path: pathlib.Path) -> None:
    file = tmp_path / "p" / "d.shelf"
    engine = SqliteEngine.create(file)
    put_all(engine, [(b"%06d" % number, b"1") for number in range(50_000)])
    calls: list[int] = []

    def stop() -> bool:
        calls.append(1)
        return True

    with pytest.raises(CheckStopped):
        find_damage(file, stop)
    assert len(calls) == 1
    engine.close()
