"""`treedb audit verify` and `export`: what they print, and how they end."""

from __future__ import annotations

import json
import pathlib

import pytest

from tests.audit.test_search import line
from tests.audit.test_series import Clocks
from tests.command import CommandResult, run_here
from treedbd.audit.series import HEAD, list_files


@pytest.fixture
def folder(tmp_path: pathlib.Path) -> pathlib.Path:
    """Two series, one with files of three days."""
    clocks = Clocks()
    writes, access = clocks.open(tmp_path / "writes"), clocks.open(tmp_path / "access-1")
    for number in range(6):
        writes.append([line(number, uid="ada" if number % 2 else None, path=f"/n/{number}")])
        if number % 2:
            clocks.pass_by(days=1)
    access.append([line(100, kind="denied", uid="eve", path="/n/1", project="other")])
    writes.close()
    access.close()
    return tmp_path


def verify(folder: pathlib.Path, *words: str) -> CommandResult:
    return run_here("audit", "verify", folder, *words)


def test_files_that_are_whole_are_verified_with_a_mark_for_later(folder: pathlib.Path) -> None:
    done = verify(folder)
    assert (done.status, done.errors) == (0, "")
    found = done.text.splitlines()
    assert found[0] == "access-1: 1 file, 1 line: as they were written"
    assert found[2] == "writes: 3 files, 6 lines: as they were written"
    assert found[3].startswith("  mark writes/audit-20261201-000003.jsonl:")
    mark = found[3].split()[1]
    assert verify(folder, "--mark", mark).status == 0
    for each in list_files(folder / "writes")[1:]:
        each.path.unlink()
    (folder / "writes" / HEAD).unlink()
    forged = Clocks().open(folder / "writes")
    forged.append([line(1000)])
    forged.close()
    assert verify(folder).status == 0  # who writes all files is found by the mark alone
    again = verify(folder, "--mark", mark)
    assert again.status == 1
    assert "a mark names it" in again.output.decode()


def test_the_first_thing_that_was_changed_is_named(folder: pathlib.Path) -> None:
    file = list_files(folder / "writes")[1]
    file.path.write_bytes(file.path.read_bytes().replace(b"/n/3", b"/n/7"))
    done = verify(folder)
    assert done.status == 1
    assert f"writes/{file.name}:3: this line, or one before it, was changed" in done.output.decode()
    assert "access-1: 1 file, 1 line: as they were written" in done.output.decode()
    (_, shown) = [json.loads(each) for each in verify(folder, "--json").output.splitlines()]
    assert (shown["series"], shown["files"], shown["lines"]) == ("writes", 3, 6)
    assert shown["faults"][0]["line"] == 3


def test_a_series_that_was_removed_is_missed_by_its_mark(folder: pathlib.Path) -> None:
    mark = f"gone/audit-20261129-000001.jsonl:10:{'0' * 64}"
    assert "gone: the series was removed" in verify(folder, "--mark", mark).output.decode()


def test_lines_are_printed_that_are_chosen(folder: pathlib.Path) -> None:
    def numbers(*words: str) -> list[int]:
        done = run_here("audit", "export", folder, *words)
        assert done.status == 0
        return [json.loads(each)["seq"] for each in done.text.splitlines()]

    assert numbers() == [0, 1, 2, 3, 4, 5, 100]
    assert numbers("--uid", "ada") == [1, 3, 5]
    assert numbers("--path", "/n/1", "--project", "p") == [1]
    assert numbers("--since", "2026-11-29T14:00:00Z", "--until", "2026-11-29T17:00+01:00") == [2, 3]
    assert numbers("--since", "100000000min ago") == [0, 1, 2, 3, 4, 5, 100]
    late = numbers("--since", "1min ago")  # the lines have times of a day, which this may be
    assert late == [0, 1, 2, 3, 4, 5, 100][7 - len(late) :]
    assert b"chain" not in run_here("audit", "export", folder).output


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["verify", "missing"], "cannot be read (No such file or directory)"),
        (["verify", "."], "has no audit files"),
        (["verify"], "Name the directory"),
        (["export", "missing"], "cannot be read (No such file or directory)"),
    ],
)
def test_what_is_not_there_is_said(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, words: list[str], sentence: str
) -> None:
    monkeypatch.chdir(tmp_path)
    assert sentence in run_here("audit", *words).error


@pytest.mark.parametrize("words", [["--since", "noon"], ["--until", "2026-11-28T10:00"]])
def test_a_time_without_a_zone_is_refused(folder: pathlib.Path, words: list[str]) -> None:
    done = run_here("audit", "export", folder, *words)
    assert done.status == 2
    assert "2h ago" in done.errors


def test_the_directory_is_that_of_the_configuration(folder: pathlib.Path) -> None:
    config = folder / "treedb.toml"
    config.write_text('data = "data"\n[audit]\ndirectory = "."\n')
    done = run_here("audit", "verify", "--config", config)
    assert done.status == 0
    assert "writes: 3 files" in done.output.decode()
