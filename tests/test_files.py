"""Access to files by other users, and its removal."""

from __future__ import annotations

import io
import pathlib
import stat
import threading

import pytest

from treedbd.files import close_temporary, close_to_others, is_open_to_others


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


@pytest.mark.parametrize("size", [10, 100_000_000])
def test_a_temporary_file_is_closed_and_a_large_one_elsewhere(size: int) -> None:
    closed_in = []

    class File(io.BytesIO):
        def close(self) -> None:
            closed_in.append(threading.current_thread())
            super().close()

    file = File()
    close_temporary(file, size)
    for thread in threading.enumerate():
        if thread.name == "close a temporary file":
            thread.join()
    assert (closed_in == [threading.main_thread()]) == (size == 10)
    assert len(closed_in) == 1
    assert file.closed
