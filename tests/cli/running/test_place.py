"""The file with what is done: after any end, for one run at a time."""

from __future__ import annotations

import json
import os
import pathlib
from collections.abc import Callable

import orjson
import pytest

from tests.cli.running.test_window import add, take_all
from treedbd.cli.exit import CommandFailed
from treedbd.cli.running import place
from treedbd.cli.running.place import CursorFile, SavedPlace
from treedbd.cli.running.window import Window


@pytest.fixture
def path(tmp_path: pathlib.Path) -> pathlib.Path:
    return tmp_path / "a.cursor"


def begin(path: pathlib.Path) -> tuple[CursorFile, Window]:
    file, window = CursorFile(path), Window("0")
    for sequence, name in enumerate("abcde", 1):
        add(window, sequence, name)
    file.begin("orders", "demo/default", window)
    return file, window


def test_what_is_done_is_there_afterwards(path: pathlib.Path) -> None:
    file, window = begin(path)
    a, b, c, *_ = take_all(window)
    for event in (b, a, c):
        window.finish(event)
        file.save(window, [event.number])
    assert file.load() == SavedPlace("orders", "demo/default", "3", frozenset({(2, 0), *_of(1, 3)}))
    file.close()


def _of(*numbers: int) -> set[tuple[int, int]]:
    return {(number, 0) for number in numbers}


@pytest.mark.parametrize("longest", [0, 100, 10_000])
def test_each_prefix_of_the_file_is_a_place(
    path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, longest: int
) -> None:
    monkeypatch.setattr(place, "LONGEST_BYTES", longest)
    file, window = begin(path)
    for event in reversed(take_all(window)):
        window.finish(event)
        file.save(window, [event.number])
    content = path.read_bytes()
    ends = [at for at, byte in enumerate(content, 1) if byte == ord("\n")]
    found = []
    for end in range(ends[0], len(content) + 1):
        path.write_bytes(content[:end])
        saved = file.load()
        assert saved is not None
        found.append((saved.at, len(saved.done)))
    file.close()
    assert found == sorted(found)
    assert found[-1][0] == "5"


def _link_to_zeros(path: pathlib.Path) -> None:
    path.symlink_to("/dev/zero")


def test_a_file_that_does_not_exist_says_nothing(path: pathlib.Path) -> None:
    file = CursorFile(path)
    assert file.load() is None
    file.close()


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]\n", b'{"version":2}\n', b'{"version":1,"at":"1","done":[]}\n']
)
def test_another_file_is_refused(path: pathlib.Path, content: bytes) -> None:
    path.write_bytes(content)
    file = CursorFile(path)
    with pytest.raises(CommandFailed, match="is not a cursor file"):
        file.load()
    file.close()
    assert path.read_bytes() == content


@pytest.mark.parametrize("make", [os.mkfifo, pathlib.Path.mkdir, _link_to_zeros])
def test_what_is_not_a_file_is_refused_before_anything_is_made(
    path: pathlib.Path, make: Callable[[pathlib.Path], None]
) -> None:
    make(path)
    with pytest.raises(CommandFailed, match=r"a\.cursor is not a regular file: choose another"):
        CursorFile(path)
    assert os.listdir(path.parent) == [path.name]


def test_a_file_that_is_too_long_is_not_read(
    path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(place, "MOST_BYTES", 1000)
    file, _ = begin(path)
    assert file.load() is not None
    path.write_bytes(path.read_bytes().ljust(1001, b"\n"))
    with pytest.raises(CommandFailed, match="is not a cursor file"):
        file.load()
    file.close()


def test_a_pipe_for_what_is_given_up_is_refused(path: pathlib.Path) -> None:
    file, window = begin(path)
    os.mkfifo(file.dead)
    with pytest.raises(CommandFailed, match=r"dead cannot be written"):
        file.give_up(take_all(window)[0], "exit status 1")
    file.close()


def test_a_file_is_used_by_one_run(path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(place, "LOCKED_S", 0.0)
    file = CursorFile(path)
    with pytest.raises(CommandFailed, match="Another treedb run uses"):
        CursorFile(path)
    file.close()
    CursorFile(path).close()


def test_an_event_that_is_given_up_is_kept(path: pathlib.Path) -> None:
    file, window = begin(path)
    a, b, *_ = take_all(window)
    a.failures = 2
    file.give_up(a, "exit status 1")
    file.give_up(b, "exit status 2")
    first, second = map(json.loads, file.dead.read_text().splitlines())
    assert (first["attempts"], first["end"], second["attempts"]) == (3, "exit status 1", 1)
    assert first["event"] == orjson.loads(a.json)
    assert file.dead.stat().st_mode & 0o077 == 0
    file.close()
