"""The file with the history of the shell."""

from __future__ import annotations

import pathlib
import stat

import pytest

from treedbd.cli.shell import prompt as history
from treedbd.cli.shell.prompt import MAX_ENTRIES, BoundedHistory, history_file, is_kept

TOKEN = "eyJhbGciOiJIUzI1NiJ9.eyJ1aWQiOiJhZGEifQ.c2ln"


def loaded(file: pathlib.Path) -> list[str]:
    """Return the lines of a file as a new shell loads them, the oldest first."""
    return list(BoundedHistory(file).load_history_strings())[::-1]


def test_lines_are_kept_in_a_private_file(tmp_path: pathlib.Path) -> None:
    file = tmp_path / "state" / "treedb" / "shell-history"
    kept = BoundedHistory(file)
    for line in ("ls", 'set a {\n"x": 1}', "grüße", "grüße"):
        kept.append_string(line)
    assert loaded(file) == ["ls", 'set a {\n"x": 1}', "grüße"]
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700


def test_a_file_that_others_could_read_is_closed_to_them(tmp_path: pathlib.Path) -> None:
    file = tmp_path / "history"
    file.touch(0o644)
    BoundedHistory(file).append_string("ls")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


@pytest.mark.parametrize(
    "line",
    ["", " ls", "x" * 5000, f'set a "{TOKEN}"', "cat a?auth=x", "access_token=x", "Bearer owner"],
)
def test_a_line_that_might_hold_a_token_is_not_kept(line: str, tmp_path: pathlib.Path) -> None:
    assert not is_kept(line)
    kept = BoundedHistory(tmp_path / "history")
    kept.append_string(line)
    assert kept.get_strings() == []
    assert not (tmp_path / "history").exists()


def test_the_file_is_bounded(tmp_path: pathlib.Path) -> None:
    file = tmp_path / "history"
    lines = [f"cat {number}" for number in range(2 * MAX_ENTRIES + 1)]
    kept = BoundedHistory(file)
    for line in lines:
        kept.store_string(line)
    assert loaded(file) == lines[-MAX_ENTRIES:]
    assert len(file.read_text().splitlines()) == MAX_ENTRIES
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_a_damaged_file_is_no_error(tmp_path: pathlib.Path) -> None:
    file = tmp_path / "history"
    file.write_bytes(b'"ls"\n\xff{\n5\n"cat"\n')
    assert loaded(file) == ["ls", "cat"]
    folder = tmp_path / "folder"
    folder.mkdir()
    kept = BoundedHistory(folder)
    kept.append_string("ls")
    assert kept.get_strings() == ["ls"]
    assert loaded(folder) == []


def test_a_huge_file_is_not_read_whole(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "history"
    file.write_bytes(b'"ls"\n' * 100)
    monkeypatch.setattr(history, "MAX_FILE_BYTES", 10)
    assert loaded(file) == ["ls", "ls"]


def test_the_file_is_where_the_user_keeps_state(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert history_file() == tmp_path / "treedb" / "shell-history"
    monkeypatch.setenv("XDG_STATE_HOME", "relative")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert history_file() == tmp_path / ".local/state/treedb/shell-history"
