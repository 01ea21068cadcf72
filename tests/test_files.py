"""Access to files by other users, its removal, and files that nobody else can place."""

from __future__ import annotations

import io
import os
import pathlib
import stat
import threading
from collections.abc import Callable

import pytest

from tests.store.sqlite.test_engine import umask
from treedbd import files
from treedbd.cli.data import (
    opened_output,
)
from treedbd.cli.loading import exporting as part_file
from treedbd.cli.loading import importing as resume_file
from treedbd.cli.loading.exporting import PartFile
from treedbd.cli.loading.importing import ResumeFile, SentContent
from treedbd.files import (
    close_temporary,
    close_to_others,
    copy_private,
    create_private,
    is_open_to_others,
    write_atomically,
)


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


def write_output(file: pathlib.Path) -> None:
    with opened_output(str(file)) as write:
        write(b"new")


def export(file: pathlib.Path) -> None:
    part = PartFile(str(file), "source")
    part.begin()
    part.write(b"new")
    part.finish()


def note_import(file: pathlib.Path) -> None:
    ResumeFile(file, "target", "json", "new", is_restarted=False).save_sent(SentContent(1, "x"))


def copy(file: pathlib.Path) -> None:
    source = file.with_name("source")
    source.write_bytes(b"new")
    source.chmod(0o644)
    copy_private(source, file)
    source.unlink()


def write_whole(file: pathlib.Path) -> None:
    write_atomically(file, b"new")


WRITERS = (write_output, export, note_import, copy, write_whole)


@pytest.mark.parametrize("mask", [0, 0o022, 0o777])
@pytest.mark.parametrize("write", WRITERS)
def test_a_new_file_is_for_its_owner_alone_whatever_the_umask(
    tmp_path: pathlib.Path, write: Callable[[pathlib.Path], None], mask: int
) -> None:
    with umask(mask):
        write(tmp_path / "file")
    assert {stat.S_IMODE(each.stat().st_mode) for each in tmp_path.iterdir()} == {0o600}


@pytest.mark.parametrize("write", [export, note_import, write_whole])
def test_a_link_in_the_place_of_an_unfinished_file_is_not_followed(
    tmp_path: pathlib.Path, write: Callable[[pathlib.Path], None]
) -> None:
    folder, other = tmp_path / "folder", tmp_path / "other"
    folder.mkdir()
    opened = []

    def note(path: pathlib.Path) -> int:
        opened.append(path)
        return create_private(path)

    with pytest.MonkeyPatch.context() as patched:
        for module in (files, part_file, resume_file):
            patched.setattr(module, "create_private", note)
        write(folder / "file")
    other.write_text("not to be overwritten")
    for unfinished in opened:
        unfinished.unlink(missing_ok=True)
        unfinished.symlink_to(other)
    write(folder / "file")
    assert opened
    assert other.read_text() == "not to be overwritten"


def test_a_copy_is_made_of_a_regular_file_and_replaces_nothing(tmp_path: pathlib.Path) -> None:
    source, target, pipe = (tmp_path / name for name in ("source", "target", "pipe"))
    source.write_bytes(b"new")
    target.symlink_to(tmp_path / "other")
    with pytest.raises(FileExistsError):
        copy_private(source, target)
    os.mkfifo(pipe)
    with pytest.raises(OSError, match="Not a regular file"):
        copy_private(pipe, tmp_path / "copy")
    assert not (tmp_path / "other").exists()
    assert not (tmp_path / "copy").exists()
