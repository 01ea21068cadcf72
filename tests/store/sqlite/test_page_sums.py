"""A bit of a file that has changed is noticed, and nothing else counts as damage."""

from __future__ import annotations

import contextlib
import operator
import pathlib
import random
import shutil
from collections.abc import Iterator
from typing import Any, Final

import apsw
import pytest

from tests.store.conformance import everything
from tests.store.sqlite.file_pages import INDEX_LEAF, TABLE_LEAF, pages_of, table_leaf_with
from treedbd.store.engine import (
    CannotOpenStore,
    Damage,
    DamagedPage,
    Row,
    StoreDamaged,
    StoreFailed,
)
from treedbd.store.sqlite import file as page_sums
from treedbd.store.sqlite.copy import Moment
from treedbd.store.sqlite.engine import SqliteEngine
from treedbd.store.sqlite.file import PAGE_BYTES, connect_reader, log_of

HIGH: Final = b"\xff"
SECTOR: Final = 512
"""What a disk writes whole or not at all."""


def fill(
    engine: SqliteEngine, source: random.Random, commits: int = 30, row_bytes: int = 900
) -> None:
    """Change rows of many lengths, so that pages of all kinds are used and some become free."""
    for _ in range(commits):
        transaction = engine.begin()
        for _ in range(20):
            key = b"%0*d" % (source.choice((3, 3, 400)), source.randrange(300))
            if source.random() < 0.3:
                transaction.delete(key)
            else:
                transaction.put(key, source.randbytes(source.choice((10, row_bytes, 9000))))
        transaction.append(source.randbytes(16), source.randbytes(500))
        transaction.commit()


@pytest.fixture
def path(tmp_path: pathlib.Path) -> pathlib.Path:
    """A file of rows, which was closed cleanly."""
    path = tmp_path / "demo" / "default.shelf"
    engine = SqliteEngine.create(path, reserve_bytes=0)
    fill(engine, random.Random(31))
    engine.close()
    return path


@contextlib.contextmanager
def opened(path: pathlib.Path) -> Iterator[SqliteEngine]:
    engine = SqliteEngine.open(path, reserve_bytes=0)
    try:
        yield engine
    finally:
        engine.close()


def content_of(path: pathlib.Path) -> object:
    with opened(path) as engine:
        assert engine.verify() == []
        return engine.read(everything)


def flip(path: pathlib.Path, bit: int) -> None:
    content = bytearray(path.read_bytes())
    content[bit // 8] ^= 1 << bit % 8
    path.write_bytes(content)


def scan(engine: SqliteEngine, name: str, *, reverse: bool) -> list[Any]:
    call = operator.methodcaller(name, b"", HIGH, reverse=reverse)
    return engine.read(lambda view: list(call(view)))


def answers(path: pathlib.Path, keys: list[bytes]) -> tuple[list[Row], list[list[bytes]]]:
    """Read all rows in several ways; return the rows, and the lists of keys, that are answered."""
    rows: list[Row] = []
    lists: list[list[bytes]] = []
    with contextlib.suppress(CannotOpenStore), opened(path) as engine:
        for key in keys:
            with contextlib.suppress(StoreFailed):
                rows.append((key, engine.read(operator.methodcaller("get", key))))
        for reverse in (False, True):
            with contextlib.suppress(StoreFailed):
                rows += scan(engine, "scan", reverse=reverse)
            with contextlib.suppress(StoreFailed):
                lists.append(sorted(scan(engine, "scan_keys", reverse=reverse)))
    return rows, lists


def test_no_bit_that_changes_is_answered(path: pathlib.Path, tmp_path: pathlib.Path) -> None:
    with opened(path) as engine:
        rows: dict[bytes, bytes] = dict(engine.read(lambda view: list(view.scan(b"", HIGH))))
    keys = sorted(rows)
    source = random.Random(31)
    size = path.stat().st_size
    refused = 0
    for number in range(60):
        copy = tmp_path / str(number) / path.name
        shutil.copytree(path.parent, copy.parent)
        flip(copy, source.randrange(100 * 8 if number % 6 == 0 else size * 8))
        found, lists = answers(copy, [*keys, b"absent"])
        refused += (len(found), len(lists)) != (3 * len(keys) + 1, 2)
        assert all(value == rows.get(key) for key, value in found)
        assert all(each == keys for each in lists)
    assert refused > 30  # the other bits are in pages that nothing occupies


def test_a_power_cut_in_a_checkpoint_is_no_damage(
    path: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    engine = SqliteEngine.open(path, reserve_bytes=0)
    source = random.Random(7)
    fill(engine, source, commits=5)
    before = tmp_path / "before"
    shutil.copytree(path.parent, before)
    expected = engine.read(everything)
    engine.checkpoint()
    after = path.read_bytes()
    engine.close()
    old = (before / path.name).read_bytes().ljust(len(after), b"\0")
    assert old != after
    for number in range(20):
        image = tmp_path / str(number)
        shutil.copytree(before, image)
        share = source.random()
        torn = b"".join(
            (after if source.random() < share else old)[at : at + SECTOR]
            for at in range(0, len(after), SECTOR)
        )
        (image / path.name).write_bytes(torn)
        assert content_of(image / path.name) == expected


def test_every_connection_compares(path: pathlib.Path, tmp_path: pathlib.Path) -> None:
    found: list[Damage] = []
    for leaf in pages_of(path.read_bytes(), INDEX_LEAF):
        flip(path, (leaf + 3000) * 8)
    with opened(path) as engine:
        engine.report_damage(found.append)
        with pytest.raises(DamagedPage):
            engine.read(everything)
        snapshot = engine.snapshot()
        with pytest.raises(DamagedPage):
            list(snapshot.scan(b"", HIGH))
        snapshot.close()
        transaction = engine.begin()
        with pytest.raises(DamagedPage):
            list(transaction.scan(b"", HIGH))
        assert isinstance(engine.find_damage(lambda: False), DamagedPage)
        assert engine.verify() != []
        moment = Moment(path)
        with pytest.raises(DamagedPage):
            moment.copy(tmp_path / "target", lambda _: None)
        moment.close()
    assert len(found) == 3
    assert not any(isinstance(each, StoreDamaged) for each in found)
    with contextlib.closing(connect_reader(path, is_known=False)) as connection:
        assert page_sums.compares_sums(connection)


def assert_right_sums(path: pathlib.Path) -> None:
    """Assert that each page of a file that nothing has open has the sum of its content."""
    content = path.read_bytes()
    summed = bytearray(content)
    page_sums.write_sums(summed, PAGE_BYTES)
    assert content == summed


@pytest.mark.parametrize("row_bytes", [900, 700_000])
def test_a_copy_has_right_sums(path: pathlib.Path, tmp_path: pathlib.Path, row_bytes: int) -> None:
    target = tmp_path / "copied" / path.name
    target.parent.mkdir()
    with opened(path) as engine, contextlib.closing(Moment(path)) as before:
        fill(engine, random.Random(5), commits=3, row_bytes=row_bytes)
        with contextlib.closing(Moment(path)) as moment:
            assert log_of(path).stat().st_size > moment.size - before.size  # all is in the log
            moment.copy(target, lambda _: None)
        assert_right_sums(target)


@pytest.mark.parametrize("row_bytes", [900, 700_000])
def test_compacting_keeps_the_sums(path: pathlib.Path, row_bytes: int) -> None:
    with opened(path) as engine:
        fill(engine, random.Random(5), commits=3, row_bytes=row_bytes)
        expected = engine.read(everything)
        engine.compact()
    assert_right_sums(path)
    assert content_of(path) == expected
    for at in pages_of(path.read_bytes(), INDEX_LEAF)[:1]:
        flip(path, (at + 3000) * 8)
        with opened(path) as engine, pytest.raises(StoreFailed):
            engine.read(everything)


def test_a_header_that_says_there_are_no_sums_is_damage(path: pathlib.Path) -> None:
    with opened(path) as engine:
        engine.snapshot()  # needs no other connection yet
        flip(path, page_sums.RESERVED_AT * 8 + 3)
        with pytest.raises(StoreDamaged, match="its header"):
            engine.snapshot()
    with pytest.raises(CannotOpenStore, match="its header does not say"):
        SqliteEngine.open(path)


def test_a_page_of_zeros_is_noticed_where_rows_were(path: pathlib.Path) -> None:
    content = bytearray(path.read_bytes())
    at = pages_of(path.read_bytes(), TABLE_LEAF)[-1]
    content[at : at + PAGE_BYTES] = bytes(PAGE_BYTES)
    path.write_bytes(content)
    with opened(path) as engine, pytest.raises(StoreDamaged):
        engine.read(everything)


def test_what_another_program_writes_without_sums_is_not_read(path: pathlib.Path) -> None:
    with contextlib.closing(apsw.Connection(str(path))) as foreign:
        assert foreign.execute("SELECT count(*) FROM kv").get  # it can be read
        foreign.execute("UPDATE kv SET v = zeroblob(10)")
    with pytest.raises(CannotOpenStore, match="a page does not match its check sum"):
        SqliteEngine.open(path)


@pytest.mark.parametrize("extension", ["cksumvfs", "carray"])
def test_without_an_extension_nothing_is_opened(
    path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, extension: str
) -> None:
    if extension == "cksumvfs":
        monkeypatch.setattr(page_sums, "load_sums", lambda: False)
    else:
        monkeypatch.setattr(apsw, "compile_options", ())
    sentence = rf"install an apsw that includes SQLite's extension {extension}"
    with pytest.raises(CannotOpenStore, match=sentence):
        SqliteEngine.open(path)
    with pytest.raises(CannotOpenStore, match=sentence):
        SqliteEngine.create(path.with_name("other.shelf"))
    assert not path.with_name("other.shelf").exists()


def test_a_page_of_rows_in_place_of_one_of_the_change_log_is_damage(path: pathlib.Path) -> None:
    with opened(path) as engine:
        (entry, *_) = engine.read(lambda view: list(view.entries(0)))
        rows = engine.read(lambda view: list(view.scan(b"", HIGH)))
    short = next(value for _, value in rows if len(value) == 900)
    content = path.read_bytes()
    to, of = (table_leaf_with(content, text) for text in (entry.op_id, short))
    page = content[of : of + PAGE_BYTES]
    path.write_bytes(content[:to] + page + content[to + PAGE_BYTES :])
    with opened(path) as engine, pytest.raises(StoreDamaged, match="has no content"):
        engine.read(lambda view: list(view.entries(0)))
