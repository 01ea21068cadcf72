"""Access to files by other users, and its removal."""

from __future__ import annotations

import pathlib
import stat

import pytest

from treedbd.files import close_to_others, is_open_to_others


@pytest.mark.parametrize(
    ("mode", "is_open"), [(0o600, False), (0o400, False), (0o640, True), (0o604, True)]
)
def test_a_file_that_is_open_to_others_can_be_closed_to_them(
    tmp_path: pathlib.Path, mode: int, is_open: bool
) -> None:
    file = tmp_path / "secret"
    file.touch()
    file.chmod(mode)
    assert is_open_to_others(file) is is_open
    assert close_to_others(file) is is_open
    assert stat.S_IMODE(file.stat().st_mode) == (0o600 if is_open else mode)
    assert not close_to_others(file)


def test_a_missing_file_is_not_open_to_others(tmp_path: pathlib.Path) -> None:
    assert not is_open_to_others(tmp_path / "none")
    assert not close_to_others(tmp_path / "none")
