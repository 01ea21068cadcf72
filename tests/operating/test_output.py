from __future__ import annotations

import io
import os
import pathlib
import stat

import pytest
from twisted.logger import Logger

from treedbd.operating.log import LogFile, LogWriter, format_json, format_text, write_to_stream


def test_a_file_is_appended_to_and_only_its_group_may_read_it(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "log"
    LogFile(str(path)).write(b"1\n")
    LogFile(str(path)).write(b"2\n")
    assert path.read_bytes() == b"1\n2\n"
    assert stat.S_IMODE(path.stat().st_mode) & 0o137 == 0


def test_a_file_that_is_cut_goes_on_at_its_beginning(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "log"
    file = LogFile(str(path))
    file.write(b"before\n")
    os.truncate(path, 0)
    file.write(b"after\n")
    assert path.read_bytes() == b"after\n"


def test_a_file_that_was_renamed_is_opened_again_by_its_name(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "log"
    file = LogFile(str(path))
    path.rename(tmp_path / "log.1")
    file.write(b"still there\n")
    file.reopen()
    file.write(b"new\n")
    assert (tmp_path / "log.1").read_bytes() == b"still there\n"
    assert path.read_bytes() == b"new\n"


def test_a_file_that_cannot_be_opened_again_is_kept(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "folder" / "log"
    path.parent.mkdir()
    file = LogFile(str(path))
    path.parent.rename(tmp_path / "elsewhere")
    file.reopen()
    file.write(b"kept\n")
    assert (tmp_path / "elsewhere/log").read_bytes() == b"kept\n"


@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_a_stream_receives_utf_8_whatever_its_encoding(encoding: str) -> None:
    binary = io.BytesIO()
    stream = io.TextIOWrapper(binary, encoding)
    write_to_stream(stream)("ä…\n".encode())
    assert binary.getvalue() == "ä…\n".encode()


def test_a_stream_in_memory_receives_text() -> None:
    stream = io.StringIO()
    write_to_stream(stream)("ä\n".encode())
    assert stream.getvalue() == "ä\n"


@pytest.mark.parametrize("form", [format_text, format_json])
def test_what_is_not_unicode_is_written_with_escapes(form: object) -> None:
    written: list[bytes] = []
    writer = LogWriter(written.append, form)  # type: ignore[arg-type]
    Logger("a", observer=writer).info("{text}", text="\ud800")
    assert b"\\ud800" in b"".join(written)
