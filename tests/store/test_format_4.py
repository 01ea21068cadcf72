"""A file of format 4 is checked, and written again with check sums of its pages."""

from __future__ import annotations

import contextlib
import os
import pathlib
import stat

import apsw
import pytest

from tests.store.older_files import check_content, ignore, unpack_file
from tests.store.sqlite.file_pages import INDEX_LEAF, pages_of
from treedbd.store.engine import CannotOpenStore
from treedbd.store.sqlite import convert
from treedbd.store.sqlite.convert import check_older
from treedbd.store.sqlite.engine import SqliteEngine
from treedbd.store.sqlite.file import PAGE_BYTES, compares_sums, connect, write_sums
from treedbd.tree.path import encode_path

KEY = encode_path(("people", "p000"))


@pytest.fixture
def old(tmp_path: pathlib.Path) -> pathlib.Path:
    path = tmp_path / "demo" / "default.shelf"
    unpack_file(4, path)
    return path


def test_a_file_that_treedb_has_written_is_converted(old: pathlib.Path) -> None:
    check_content(old, 8)
    content = old.read_bytes()
    summed = bytearray(content)
    write_sums(summed, PAGE_BYTES)
    assert summed == content
    with contextlib.closing(connect(old)) as connection:
        assert compares_sums(connection)


def test_a_sound_file_is_checked_and_not_changed(old: pathlib.Path) -> None:
    before = old.read_bytes()
    assert check_older(old, 4) == []
    assert old.read_bytes() == before


def test_a_damaged_row_stays_as_it_is_and_all_others_are_converted(old: pathlib.Path) -> None:
    with contextlib.closing(apsw.Connection(str(old))) as connection:
        connection.execute("UPDATE kv SET v = CAST('{' AS BLOB) WHERE rowid = 9")
        rows = list(connection.execute("SELECT k, v FROM kv ORDER BY k"))
    with contextlib.closing(SqliteEngine.open(old, reserve_bytes=0, report=ignore)) as engine:
        assert engine.read(lambda view: list(view.scan(b"", b"\xff" * 9))) == rows


@pytest.mark.parametrize(
    "statement", ["DELETE FROM kv WHERE rowid = 9", "UPDATE log SET entry = x'00' WHERE seq = 8"]
)
def test_a_new_file_that_lacks_something_does_not_replace_the_old_one(
    old: pathlib.Path, statement: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sync = convert._sync

    def lose(new: pathlib.Path) -> None:
        with contextlib.closing(connect(new)) as connection:
            connection.execute(statement)
        sync(new)

    with monkeypatch.context() as patch:
        patch.setattr(convert, "_sync", lose)
        with pytest.raises(CannotOpenStore, match="its rows are not those that were written"):
            SqliteEngine.open(old, report=ignore)
    check_content(old, 8)


def test_a_file_with_a_damaged_index_is_not_converted(old: pathlib.Path) -> None:
    content = bytearray(old.read_bytes())
    leaves = pages_of(content, INDEX_LEAF)
    (key,) = (found for at in leaves if (found := content.find(KEY, at, at + PAGE_BYTES)) > 0)
    content[key + len(KEY) - 1] ^= 1
    old.write_bytes(content)
    assert check_older(old, 4) != []
    with pytest.raises(CannotOpenStore):
        SqliteEngine.open(old, report=ignore)
    assert old.read_bytes() == content


@pytest.mark.parametrize(
    ("at", "bit", "reason"),
    [
        (47, 1, "its schema cannot be read"),  # the number of the schema's format
        ("op_id", 128, "its schema cannot be read"),  # no UTF-8 any more
        ("STRICT", 1, "tables are not those|malformed"),
    ],
)
def test_a_file_with_a_damaged_schema_is_refused(
    old: pathlib.Path, at: int | str, bit: int, reason: str
) -> None:
    content = bytearray(old.read_bytes())
    content[content.index(at.encode()) + 1 if isinstance(at, str) else at] ^= bit
    old.write_bytes(content)
    with pytest.raises(CannotOpenStore, match=reason):
        SqliteEngine.open(old, report=ignore)
    (finding,) = check_older(old, 4)
    assert str(old) in finding
    assert old.read_bytes() == content


def test_a_file_of_a_group_that_cannot_be_given_is_converted(
    old: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError

    is_root = os.geteuid() == 0  # others cannot make such a file
    os.chown(old, -1, os.getgid() + 1 if is_root else -1)
    old.chmod(0o640)
    monkeypatch.setattr(os, "chown", refuse)
    check_content(old, 8)
    assert old.stat().st_gid == os.getgid()
    assert stat.S_IMODE(old.stat().st_mode) == (0o600 if is_root else 0o640)
