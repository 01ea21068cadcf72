"""The files of a series: appended, chained, continued after any stop, removed by age only."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import pathlib
import shutil
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import pytest

from treedbd.audit.chain import Verification, verify
from treedbd.audit.series import (
    HEAD,
    KEPT_FILES,
    REMOVE_EACH_S,
    AuditSeries,
    SeriesLocked,
    list_files,
    read_head,
)

DAY_S: Final = 86_400
BEGAN: Final = datetime(2026, 11, 29, 12, tzinfo=UTC)


class Clocks:
    """A clock that does not step, and one that may."""

    def __init__(self) -> None:
        self.monotonic = 1000.0
        self.wall = BEGAN

    def pass_by(self, **time: float) -> None:
        self.monotonic += timedelta(**time).total_seconds()
        self.wall += timedelta(**time)

    def open(
        self, folder: pathlib.Path, *, file_bytes: int = 10_000, days: int = 400
    ) -> AuditSeries:
        return AuditSeries(
            folder,
            file_bytes=file_bytes,
            keep_s=days * DAY_S,
            now_ms=lambda: int(self.wall.timestamp() * 1000),
            seconds=lambda: self.monotonic,
        )


def lines(*numbers: int) -> list[bytes]:
    return [b'{"n":%d}' % number for number in numbers]


def numbers_in(folder: pathlib.Path) -> list[int]:
    """Return the numbers in all lines of a series but those of headers."""
    read = [json.loads(line) for each in list_files(folder) for line in each.path.open()]
    return [each["n"] for each in read if "n" in each]


def headers_of(folder: pathlib.Path) -> list[dict[str, Any]]:
    return [json.loads(each.path.read_text().splitlines()[0]) for each in list_files(folder)]


def sound(folder: pathlib.Path) -> Verification:
    found = verify(folder)
    assert found.faults == ()
    return found


def test_lines_are_appended_and_each_is_linked_to_the_one_before(tmp_path: pathlib.Path) -> None:
    series = Clocks().open(tmp_path)
    series.append(lines(1, 2))
    series.append(lines(3))
    assert numbers_in(tmp_path) == [1, 2, 3]
    found = sound(tmp_path)
    assert (found.files, found.lines, found.unfinished) == (1, 3, 0)
    (file,) = list_files(tmp_path)
    assert file.path.stat().st_mode & 0o777 == 0o600
    head = read_head(tmp_path)
    assert head is not None
    assert head.sha256 == hashlib.sha256(file.path.read_bytes()).hexdigest()


def test_a_file_begins_each_day_or_when_the_last_is_full(tmp_path: pathlib.Path) -> None:
    clocks = Clocks()
    series = clocks.open(tmp_path, file_bytes=500)
    for number in range(20):
        series.append(lines(number))
    clocks.pass_by(days=1)
    series.append(lines(20))
    assert numbers_in(tmp_path) == list(range(21))
    files = list_files(tmp_path)
    assert [each.day for each in files][-2:] == ["20261129", "20261130"]
    assert [each.number for each in files] == list(range(1, len(files) + 1))
    assert len(files) > 3
    assert len(series.completed) == len(files) - 1
    for before, header in zip(files, headers_of(tmp_path)[1:], strict=False):
        sha256 = hashlib.sha256(before.path.read_bytes()).hexdigest()
        assert header["before"] == {"file": before.name, "sha256": sha256}
    sound(tmp_path)


def test_a_series_continues_its_last_file_and_shows_what_is_in_it(tmp_path: pathlib.Path) -> None:
    clocks = Clocks()
    first = clocks.open(tmp_path)
    first.append(lines(1, 2))
    first.close()
    second, seen = clocks.open(tmp_path), list[bytes]()
    second.open(seen.append)
    second.append(lines(3))
    assert [json.loads(line)["n"] for line in seen[1:]] == [1, 2]
    assert numbers_in(tmp_path) == [1, 2, 3]
    assert sound(tmp_path).files == 1


def test_files_that_ended_shortly_before_are_shown_too(tmp_path: pathlib.Path) -> None:
    clocks = Clocks()
    series = clocks.open(tmp_path, file_bytes=1)
    for number in range(10):
        series.append(lines(number))
        clocks.pass_by(seconds=10)
    series.close()
    seen = list[bytes]()
    clocks.open(tmp_path).open(seen.append)
    read = [json.loads(line) for line in seen]
    # The last was begun at 90 s, so what was written from 30 s on.
    assert [each["n"] for each in read if "n" in each] == [2, 3, 4, 5, 6, 7, 8, 9]


def test_one_process_writes_a_series_at_a_time(tmp_path: pathlib.Path) -> None:
    clocks = Clocks()
    first, second = clocks.open(tmp_path), clocks.open(tmp_path)
    first.append(lines(1))
    with pytest.raises(SeriesLocked):
        second.append(lines(2))
    first.close()
    second.append(lines(2))
    assert numbers_in(tmp_path) == [1, 2]


@pytest.mark.parametrize("cut", range(1, 9))
def test_part_of_a_line_at_the_end_is_recognised_and_kept(tmp_path: pathlib.Path, cut: int) -> None:
    clocks = Clocks()
    first = clocks.open(tmp_path)
    first.append(lines(1))
    first.close()
    (file,) = list_files(tmp_path)
    with file.path.open("ab") as content:  # as a process that is killed leaves it
        content.write(b'{"n":22,"chain":"0'[: cut * 2])
    assert verify(tmp_path).unfinished == cut * 2
    second = clocks.open(tmp_path)
    second.append(lines(3))
    assert [each.get("unfinished") for each in headers_of(tmp_path)] == [None, cut * 2]
    found = sound(tmp_path)
    assert (found.files, found.lines, found.unfinished) == (2, 2, 0)


def test_lines_that_the_head_does_not_know_yet_are_kept(tmp_path: pathlib.Path) -> None:
    clocks = Clocks()
    first = clocks.open(tmp_path)
    first.append(lines(1))
    head = (tmp_path / HEAD).read_bytes()
    first.append(lines(2))
    first.close()
    (tmp_path / HEAD).write_bytes(head)  # as if the process was killed between
    sound(tmp_path)
    second = clocks.open(tmp_path)
    second.append(lines(3))
    assert numbers_in(tmp_path) == [1, 2, 3]
    assert sound(tmp_path).files == 1


def test_a_write_that_fails_leaves_nothing_and_is_tried_again(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clocks = Clocks()
    series = clocks.open(tmp_path)
    series.append(lines(1))
    write, left = os.write, 5

    def write_some(descriptor: int, data: bytes) -> int:
        nonlocal left
        if not left:
            raise OSError(errno.ENOSPC, "No space left on device")
        written = write(descriptor, data[:left])
        left -= written
        return written

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", write_some)
        with pytest.raises(OSError, match="No space"):
            series.append(lines(2))
    sound(tmp_path)
    series.append(lines(2))
    assert numbers_in(tmp_path) == [1, 2]
    assert sound(tmp_path).files == 1


def test_a_directory_that_was_removed_is_made_again(tmp_path: pathlib.Path) -> None:
    series = Clocks().open(tmp_path / "writes")
    series.append(lines(1))
    shutil.rmtree(tmp_path / "writes")
    series.append(lines(2))
    assert numbers_in(tmp_path / "writes") == [2]
    (fault,) = verify(tmp_path / "writes").faults
    assert fault.reason.endswith("had been removed while it was written")
    (tmp_path / "writes" / HEAD).unlink()
    (tmp_path / "writes" / HEAD).mkdir()
    for _ in range(2):
        with pytest.raises(OSError, match="directory"):
            series.append(lines(3))
    (tmp_path / "writes" / HEAD).rmdir()
    series.append(lines(3))
    assert numbers_in(tmp_path / "writes")[-1] == 3


def test_nothing_is_written_to_a_file_that_was_removed(tmp_path: pathlib.Path) -> None:
    clocks = Clocks()
    series = clocks.open(tmp_path)
    series.append(lines(1))
    clocks.pass_by(days=1)
    series.append(lines(2))
    list_files(tmp_path)[1].path.unlink()
    series.append(lines(3))
    assert numbers_in(tmp_path) == [1, 3]
    assert [each.number for each in list_files(tmp_path)] == [1, 3]
    (fault,) = verify(tmp_path).faults
    assert fault.file == "audit-20261130-000003.jsonl"
    assert fault.reason.endswith("audit-20261130-000002.jsonl had been removed")


def filled(folder: pathlib.Path, clocks: Clocks, days: int, *, keep: int) -> AuditSeries:
    """Return a series with a file for each of some days."""
    series = clocks.open(folder, days=keep)
    for number in range(days):
        series.append(lines(number))
        clocks.pass_by(days=1)
    return series


def test_old_files_are_removed_one_by_one_and_the_newest_are_kept(tmp_path: pathlib.Path) -> None:
    clocks = Clocks()
    series = filled(tmp_path, clocks, KEPT_FILES + 10, keep=KEPT_FILES + 3)
    counts = []
    for _ in range(10):
        clocks.pass_by(seconds=REMOVE_EACH_S)
        series.prune()
        series.prune()  # at once: one at a time
        counts.append(len(list_files(tmp_path)))
        sound(tmp_path)
    assert counts[:4] == [KEPT_FILES + each for each in (10, 9, 8, 7)]
    assert counts[-1] == KEPT_FILES + 4  # with the file in which the removals are named
    days = [each.day for each in list_files(tmp_path)]
    assert days == sorted(days)


def test_a_clock_that_is_years_ahead_for_an_hour_costs_few_files(tmp_path: pathlib.Path) -> None:
    clocks = Clocks()
    series = filled(tmp_path, clocks, KEPT_FILES + 30, keep=400)
    right = clocks.wall
    clocks.wall += timedelta(days=3000)
    for _ in range(60):
        clocks.pass_by(minutes=1)
        series.append(lines(0))
        series.prune()
    clocks.wall = right
    for _ in range(60):
        clocks.pass_by(minutes=1)
        series.append(lines(0))
        series.prune()
    assert len(list_files(tmp_path)) >= KEPT_FILES + 30 - 6
    sound(tmp_path)
    # The file of the wrong day blocks no removal, and is removed in its turn.
    for _ in range(2000):
        clocks.pass_by(days=1)
        series.append(lines(0))
        series.prune()
        if not any(each.day > f"{clocks.wall:%Y%m%d}" for each in list_files(tmp_path)):
            break
    else:
        raise AssertionError("The file of a wrong clock is never removed.")


def test_the_newest_files_are_kept_however_old_they_seem(tmp_path: pathlib.Path) -> None:
    clocks = Clocks()
    series = filled(tmp_path, clocks, KEPT_FILES + 3, keep=400)
    clocks.wall += timedelta(days=3000)
    for _ in range(50):
        clocks.pass_by(seconds=REMOVE_EACH_S)
        series.prune()
    assert len(list_files(tmp_path)) == KEPT_FILES
    sound(tmp_path)


def test_a_clock_that_steps_back_removes_nothing(tmp_path: pathlib.Path) -> None:
    clocks = Clocks()
    series = filled(tmp_path, clocks, KEPT_FILES + 5, keep=400)
    clocks.wall = datetime(1970, 1, 1, 1, tzinfo=UTC)
    for _ in range(100):
        clocks.pass_by(minutes=10)
        series.append(lines(0))
        series.prune()
    assert len(list_files(tmp_path)) == KEPT_FILES + 6
    sound(tmp_path)


class Killed(BaseException):
    """The process ends here; no code of it runs any more but that of the test."""


class Killer:
    """Ends the process at one of the system calls that change files, or in the middle of it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.left: int | None = None
        for name in ("write", "fsync", "rename", "unlink", "ftruncate"):
            monkeypatch.setattr(os, name, self._make(name, getattr(os, name)))

    def _make(self, name: str, call: Any) -> Any:
        def killing(*words: Any, **more: Any) -> Any:
            if self.left is not None:
                self.left -= 1
                if self.left < 0:
                    if name == "write":
                        call(words[0], words[1][: len(words[1]) // 2])
                    self.left = 0
                    raise Killed
            return call(*words, **more)

        return killing


@pytest.mark.parametrize("calls", range(26))
def test_whatever_call_a_process_is_killed_in_no_line_is_lost_and_nothing_is_hidden(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, calls: int
) -> None:
    killer, clocks = Killer(monkeypatch), Clocks()
    acknowledged, number = list[int](), 0
    for _ in range(4):
        series = clocks.open(tmp_path, file_bytes=400)
        killer.left = calls
        try:
            while True:
                series.append(lines(number))
                acknowledged.append(number)
                number += 1
        except Killed:
            killer.left = None
            number += 1
            series.close()
        assert set(acknowledged) <= set(numbers_in_whole_lines(tmp_path))
        assert verify(tmp_path).faults == () if list_files(tmp_path) else calls < 4
    series = clocks.open(tmp_path, file_bytes=400)
    series.append(lines(1000))
    found = numbers_in_whole_lines(tmp_path)
    assert found == sorted(set(found))
    sound(tmp_path)


def numbers_in_whole_lines(folder: pathlib.Path) -> list[int]:
    """Return the numbers in all lines that are whole."""
    found = list[int]()
    for file in list_files(folder):
        whole = [line for line in file.path.open("rb") if line.endswith(b"\n")]
        found += [each["n"] for each in map(json.loads, whole) if "n" in each]
    return found
