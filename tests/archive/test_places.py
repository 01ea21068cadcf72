from __future__ import annotations

import os
import pathlib
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator

import pytest

from tests.archive.contract import PlaceContract
from treedbd.archive.places import (
    MARKER,
    FolderPlace,
    ObjectInfo,
    PlaceFailed,
    initialise,
    open_place,
)


@pytest.fixture
def place(tmp_path: pathlib.Path) -> FolderPlace:
    return FolderPlace(tmp_path / "archive", may_create=True)


class TestFolder(PlaceContract):
    """The contract over a folder."""


def test_a_folder_that_is_missing_is_not_made_unasked(tmp_path: pathlib.Path) -> None:
    with pytest.raises(PlaceFailed, match="not a folder"):
        open_place(str(tmp_path / "a"))
    assert not (tmp_path / "a").exists()
    with pytest.raises(PlaceFailed, match="not supported"):
        open_place("gs://a/b")


def test_a_bucket_without_its_library_is_an_error_with_the_remedy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "obstore", None)
    monkeypatch.delitem(sys.modules, "treedbd.archive.bucket", raising=False)
    with pytest.raises(PlaceFailed, match=r"run .* install .*s3"):
        open_place("s3://attic/p")


def test_nothing_is_written_where_the_disk_is_not_mounted(place: FolderPlace) -> None:
    folder = pathlib.Path(place.text)
    initialise(place, None, 1)
    (folder / MARKER).unlink()
    with pytest.raises(PlaceFailed, match="mounted"):
        place.put("a/b", [b"1"], is_new=True)
    assert not list(folder.iterdir())


def test_a_folder_with_other_files_is_not_made_an_archive(place: FolderPlace) -> None:
    folder = pathlib.Path(place.text)
    (folder / "lost+found").mkdir()
    (folder / "photo 1.jpg").write_bytes(b"")
    with pytest.raises(PlaceFailed, match="not empty"):
        initialise(place, None, 1)
    (folder / "photo 1.jpg").unlink()
    initialise(place, None, 1)


def test_links_and_odd_files_are_not_objects(place: FolderPlace) -> None:
    folder = pathlib.Path(place.text)
    initialise(place, None, 1)
    place.put("a/b", [b"1"], is_new=True)
    (folder / "a" / "c").symlink_to("b")
    (folder / "a" / "d~").write_bytes(b"")
    (folder / "e").symlink_to("a")
    os.mkfifo(folder / "f")
    assert list(place.list("a/")) == [ObjectInfo("a/b", 1)]
    assert [info.name for info in place.list("")] == ["a/b", MARKER]


KILLED = textwrap.dedent(
    """
    import pathlib, sys
    from treedbd.archive.places import FolderPlace
    FolderPlace(pathlib.Path(sys.argv[1])).put("a/b", [b"x" * 100_000] * 30, is_new=True)
    """
)


def run_until_killed(place: FolderPlace, call: str, number: int, trace: pathlib.Path) -> bool:
    """Put an object in a process that is killed at a system call; return whether it was."""
    command = ["strace", "-f", "-o", str(trace), "-e", f"trace={call}"]
    command += ["-e", f"inject={call}:signal=SIGKILL:when={number}"]
    command += [sys.executable, "-B", "-c", KILLED, place.text]
    ended = subprocess.run(command, check=False)
    return ended.returncode in (-signal.SIGKILL, 128 + signal.SIGKILL)


@pytest.mark.parametrize(
    ("call", "number", "may_be_there"),
    [
        ("mkdir", 1, {False}),
        ("fsync", 3, {False}),  # of the file, after those of the two directories
        ("link", 1, {False, True}),
        ("unlink", 1, {True}),
        ("fsync", 4, {True}),
    ],
)
def test_a_killed_writer_leaves_a_whole_object_or_none(
    place: FolderPlace, tmp_path: pathlib.Path, call: str, number: int, may_be_there: set[bool]
) -> None:
    initialise(place, None, 1)
    assert run_until_killed(place, call, number, tmp_path / "trace")
    found = list(place.list("a/"))
    assert found in ([], [ObjectInfo("a/b", 3_000_000)])
    assert bool(found) in may_be_there
    if not found:
        place.put("a/b", [b"1"], is_new=True)
    place.clean()
    assert [each.name for each in (pathlib.Path(place.text) / "a").iterdir()] == ["b"]


def test_a_file_that_is_being_written_is_not_cleaned_away(place: FolderPlace) -> None:
    initialise(place, None, 1)

    def pieces() -> Iterator[bytes]:
        place.clean()
        yield b"1"

    assert place.put("a/b", pieces(), is_new=True) == 1
    assert b"".join(place.get("a/b")) == b"1"


def test_the_file_is_synced_before_it_has_its_name(
    place: FolderPlace, tmp_path: pathlib.Path
) -> None:
    initialise(place, None, 1)
    trace = tmp_path / "trace"
    calls = "fsync,fdatasync,link,linkat,rename,write"
    command = ["strace", "-f", "-y", "-o", str(trace), "-e", f"trace={calls}"]
    subprocess.run([*command, sys.executable, "-c", KILLED, place.text], check=True)
    lines = [line for line in trace.read_text().splitlines() if f"{place.text}/a" in line]
    named = next(i for i, line in enumerate(lines) if "link" in line.split("(")[0])
    synced = [i for i, line in enumerate(lines) if "fsync" in line and ".unfinished" in line]
    written = [i for i, line in enumerate(lines) if "write(" in line and ".unfinished" in line]
    folder = [i for i, line in enumerate(lines) if "fsync" in line and f"{place.text}/a>" in line]
    assert max(written) < synced[0] < named < folder[-1]
    root = [line for line in trace.read_text().splitlines() if f"{place.text}>" in line]
    assert any("fsync" in line for line in root)
