"""A log that was applied is told from one that would change its file, frame by frame."""

from __future__ import annotations

import contextlib
import os
import pathlib
import subprocess

import pytest

from treedbd.store.sqlite.engine import SqliteEngine
from treedbd.store.sqlite.file import SUM_BYTES
from treedbd.store.sqlite.history import is_applied

FRAME_BYTES = 24 + 4096
LOG_HEADER_BYTES = 32


def commit(engine: SqliteEngine, size: int) -> None:
    transaction = engine.begin()
    transaction.put(b"key", os.urandom(size))
    transaction.commit()


@pytest.fixture
def shelf(tmp_path: pathlib.Path) -> pathlib.Path:
    """A copy of a file with a log of three commits, which nobody has open."""
    path = tmp_path / "demo" / "default.shelf"
    with contextlib.closing(SqliteEngine.create(path, reserve_bytes=0)) as engine:
        for size in (100, 50_000, 100):
            commit(engine, size)
        copy = tmp_path / "copy"
        subprocess.run(["cp", "-r", path.parent, copy], check=True)
    return copy / path.name


@pytest.fixture
def log(shelf: pathlib.Path) -> pathlib.Path:
    return shelf.with_name(f"{shelf.name}-wal")


def apply(shelf: pathlib.Path, log: pathlib.Path) -> bytes:
    """Apply a log and put it back; return it."""
    content = log.read_bytes()
    SqliteEngine.open(shelf, reserve_bytes=0).close()
    log.write_bytes(content)
    return content


def test_a_log_is_applied_when_its_commits_are_in_the_file(
    shelf: pathlib.Path, log: pathlib.Path
) -> None:
    assert not is_applied(log, shelf)
    apply(shelf, log)
    assert is_applied(log, shelf)


def test_every_page_of_a_commit_counts(shelf: pathlib.Path, log: pathlib.Path) -> None:
    apply(shelf, log)
    content = bytearray(shelf.read_bytes())
    content[-1 - SUM_BYTES] ^= 1
    shelf.write_bytes(content)
    assert not is_applied(log, shelf)


def test_a_part_of_a_log_would_take_the_file_back(shelf: pathlib.Path, log: pathlib.Path) -> None:
    content = apply(shelf, log)
    frames = (len(content) - LOG_HEADER_BYTES) // FRAME_BYTES
    found = []
    for count in range(frames + 1):
        log.write_bytes(content[: LOG_HEADER_BYTES + count * FRAME_BYTES])
        found.append(is_applied(log, shelf))
    assert found[0]
    assert found[-1]
    assert not all(found)


def test_frames_after_the_last_commit_mean_nothing(shelf: pathlib.Path, log: pathlib.Path) -> None:
    content = apply(shelf, log)
    log.write_bytes(content + content[LOG_HEADER_BYTES : LOG_HEADER_BYTES + FRAME_BYTES])
    assert is_applied(log, shelf)
    log.write_bytes(content + b"x" * 100)
    assert is_applied(log, shelf)


@pytest.mark.parametrize("content", [b"", b"x" * 31, bytes(10_000), b"x" * 10_000])
def test_what_is_no_log_has_nothing_to_apply(
    shelf: pathlib.Path, log: pathlib.Path, content: bytes
) -> None:
    log.write_bytes(content)
    assert is_applied(log, shelf)


def test_a_file_of_another_length_is_not_the_one_of_the_log(
    shelf: pathlib.Path, log: pathlib.Path
) -> None:
    apply(shelf, log)
    content = bytearray(shelf.read_bytes())
    content[31] += 1
    shelf.write_bytes(content)
    assert not is_applied(log, shelf)
