"""The mark of a shelf: the last one is read, and a torn write leaves the one before it."""

from __future__ import annotations

import pathlib
import stat

import pytest

from treedbd.store.sqlite.history import Mark, MarkFile

FIRST = Mark(7, b"first")
SECOND = Mark(8, b"second", is_closed=True)
SLOT_BYTES = 4096


@pytest.fixture
def path(tmp_path: pathlib.Path) -> pathlib.Path:
    return tmp_path / "default.shelf-mark"


def write(path: pathlib.Path, *marks: Mark) -> None:
    """Write marks, each over a file that is opened again."""
    for mark in marks:
        file = MarkFile(path)
        file.read()
        file.write(mark, sync=True)
        file.close()


def alter(path: pathlib.Path, at: int) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)


def test_a_missing_file_has_no_mark(path: pathlib.Path) -> None:
    assert MarkFile(path).read() is None
    assert not path.exists()


def test_the_last_mark_is_read_and_its_file_is_private(path: pathlib.Path) -> None:
    file = MarkFile(path)
    for number in range(5):
        file.write(Mark(number, b"%d" % number))
        assert MarkFile(path).read() == Mark(number, b"%d" % number)
    file.close()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert sorted(each.name for each in path.parent.iterdir()) == [path.name]


def test_marks_over_files_that_are_opened_again_follow_each_other(path: pathlib.Path) -> None:
    write(path, FIRST, SECOND, FIRST)
    assert MarkFile(path).read() == FIRST


@pytest.mark.parametrize("offset", [0, 8, 15, 16, 24, 40, 41, 44])
@pytest.mark.parametrize("count", [2, 3])
def test_a_mark_that_is_torn_leaves_the_one_before_it(
    path: pathlib.Path, count: int, offset: int
) -> None:
    marks = [FIRST, SECOND, FIRST][:count]
    write(path, *marks)
    alter(path, count % 2 * SLOT_BYTES + offset)
    assert MarkFile(path).read() == marks[-2]
    write(path, SECOND)
    assert MarkFile(path).read() == SECOND


@pytest.mark.parametrize("content", [b"", b"x", b"\0" * 2 * SLOT_BYTES, b"garbage" * 9999])
def test_a_file_without_a_whole_mark_has_none_and_is_replaced(
    path: pathlib.Path, content: bytes
) -> None:
    path.write_bytes(content)
    assert MarkFile(path).read() is None
    write(path, SECOND)
    assert MarkFile(path).read() == SECOND
    assert path.stat().st_size == 2 * SLOT_BYTES


def test_later_marks_need_no_new_space(path: pathlib.Path) -> None:
    write(path, FIRST)
    blocks = path.stat().st_blocks
    assert blocks * 512 >= 2 * SLOT_BYTES
    write(path, SECOND, FIRST)
    assert path.stat().st_blocks == blocks


def test_only_the_beginning_of_an_id_counts() -> None:
    assert Mark(1, b"x" * 16 + b"a") == Mark(1, b"x" * 16 + b"b") != Mark(1, b"x" * 15)
