from __future__ import annotations

import pathlib

import pytest

from tests.store.sqlite.disk_space import limited_file_size
from treedbd.store.sqlite.engine import Reserve

SIZE = 256 * 1024


@pytest.fixture
def path(tmp_path: pathlib.Path) -> pathlib.Path:
    return tmp_path / "reserve"


def test_a_reserve_allocates_real_space_and_releases_it(path: pathlib.Path) -> None:
    reserve = Reserve(path, SIZE)
    assert not path.exists()
    assert reserve.restore() is True
    status = path.stat()
    assert (status.st_size, status.st_mode & 0o777) == (SIZE, 0o600)
    assert status.st_blocks * 512 >= SIZE
    reserve.release()
    reserve.release()
    assert not path.exists()


def test_a_reserve_that_is_held_stays_as_it_is(path: pathlib.Path) -> None:
    assert Reserve(path, SIZE).restore() is True
    before = path.stat()
    with limited_file_size(SIZE):
        assert Reserve(path, SIZE).restore() is True
    assert path.stat() == before


@pytest.mark.parametrize("available", [0, SIZE // 2, SIZE, 2 * SIZE - 1])
def test_it_is_not_restored_without_space_for_it_twice(path: pathlib.Path, available: int) -> None:
    with limited_file_size(available):
        assert Reserve(path, SIZE).restore() is False
    assert not path.exists()
    assert Reserve(path, SIZE).restore() is True


@pytest.mark.parametrize("content", [b"", b"x" * SIZE * 2])
def test_an_unfinished_one_is_allocated_again(path: pathlib.Path, content: bytes) -> None:
    path.write_bytes(content)
    assert Reserve(path, SIZE).restore() is True
    assert path.stat().st_size == SIZE


def test_a_sparse_file_is_not_a_reserve(path: pathlib.Path) -> None:
    with path.open("wb") as file:
        file.truncate(SIZE)
    assert Reserve(path, SIZE).restore() is True
    assert path.stat().st_blocks * 512 >= SIZE


def test_other_errors_are_raised(tmp_path: pathlib.Path) -> None:
    with pytest.raises(FileNotFoundError):
        Reserve(tmp_path / "missing" / "reserve", SIZE).restore()
