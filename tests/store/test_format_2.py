"""A file of format 2 is checked in its own format, and becomes a sound one that holds the same."""

from __future__ import annotations

import pathlib
from typing import Any

import pytest

from tests.store.older_files import check_content, ignore, unpack_file
from treedbd.store.engine import CannotOpenStore, Row
from treedbd.store.sqlite.convert import OLDER, check_older
from treedbd.store.sqlite.engine import SqliteEngine
from treedbd.store.sqlite.file import connect
from treedbd.tree.path import encode_path


@pytest.fixture
def old(tmp_path: pathlib.Path) -> pathlib.Path:
    path = tmp_path / "demo" / "default.shelf"
    unpack_file(2, path)
    return path


def execute(path: pathlib.Path, statement: str) -> None:
    connection = connect(path)
    connection.execute(statement)
    connection.close()


def test_a_file_that_treedb_has_written_is_converted(old: pathlib.Path) -> None:
    check_content(old, 7)


def test_a_sound_file_is_checked_and_not_changed(old: pathlib.Path) -> None:
    before = old.read_bytes()
    assert check_older(old, 2) == []
    assert old.read_bytes() == before


@pytest.mark.parametrize(
    ("statement", "finding"),
    [
        ("UPDATE kv SET v = CAST('{' AS BLOB) WHERE k = (SELECT max(k) FROM kv)", "cannot be read"),
        ("INSERT INTO kv VALUES(1, x'036c6f6e6700036100', x'31')", "/long/a is below another row"),
    ],
)
def test_a_damaged_file_is_reported_and_not_converted(
    old: pathlib.Path, statement: str, finding: str
) -> None:
    execute(old, statement)
    assert any(finding in sentence for sentence in check_older(old, 2))
    with pytest.raises(CannotOpenStore, match=finding):
        SqliteEngine.open(old, report=ignore)
    assert any(finding in sentence for sentence in check_older(old, 2))


def test_every_row_is_stored_in_another_way() -> None:
    assert not OLDER[2].is_same((b"", b"1"))


def test_a_page_is_kept_in_memory_at_most() -> None:
    consumed = 0

    def rows() -> Any:
        nonlocal consumed
        for at in range(2000):
            consumed += 1
            yield encode_path(("c", f"{at:05}x")), b"1"

    lags = []
    done: list[Row] = []
    for row in OLDER[2].convert(rows()):
        lags.append(consumed - 1)
        done.append(row)
        consumed = 1
    assert max(lags) < 400
    assert len(done) < 30
