"""One data directory writes an archive; copies of it beside do not."""

from __future__ import annotations

import pathlib

import pytest

from treedbd.archive.ownership import (
    NOTE,
    WRITER,
    adopt,
    check_writer,
    open_as_writer,
    open_ordered,
)
from treedbd.archive.places import MARKER, FolderPlace, PlaceFailed


@pytest.fixture
def place(tmp_path: pathlib.Path) -> FolderPlace:
    return FolderPlace(tmp_path / "archive", may_create=True)


def data(folder: pathlib.Path, name: str) -> pathlib.Path:
    (folder / name).mkdir(exist_ok=True)
    return folder / name


def test_the_first_data_directory_is_the_writer_and_known_again(
    tmp_path: pathlib.Path, place: FolderPlace
) -> None:
    first = data(tmp_path, "first")
    note = open_as_writer(place, first, "a", 1)
    assert open_as_writer(place, first, "a", 2) == note
    moved = open_as_writer(place, first, "b", 3)  # the same archive, mounted elsewhere
    assert (moved.id, moved.writer, moved.to) == (note.id, note.writer, "b")
    check_writer(place, note)


def test_another_data_directory_writes_only_after_it_has_adopted_the_archive(
    tmp_path: pathlib.Path, place: FolderPlace
) -> None:
    first, second = data(tmp_path, "first"), data(tmp_path, "second")
    note = open_as_writer(place, first, "a", 1)
    with pytest.raises(PlaceFailed, match="run treedb archive adopt"):
        open_as_writer(place, second, "a", 2)
    assert not (second / NOTE).exists()
    check_writer(place, note)
    adopt(place, second, "a", 3)
    open_as_writer(place, second, "a", 4)
    with pytest.raises(PlaceFailed, match="another data directory"):
        check_writer(place, note)
    with pytest.raises(PlaceFailed, match="another data directory"):
        open_as_writer(place, first, "a", 5)


def test_a_start_that_was_killed_in_between_begins_again(
    tmp_path: pathlib.Path, place: FolderPlace
) -> None:
    first = data(tmp_path, "first")
    note = open_as_writer(place, first, "a", 1)
    place.delete(WRITER)
    assert open_as_writer(place, first, "a", 2) == note
    (first / NOTE).unlink()
    place.delete(WRITER)
    open_as_writer(place, first, "a", 3)


def test_daemons_that_share_their_databases_write_one_archive(
    tmp_path: pathlib.Path, place: FolderPlace
) -> None:
    notes = [
        open_as_writer(place, data(tmp_path, name), "a", 1, is_shared=True) for name in ("x", "y")
    ]
    assert notes[0] == notes[1]


def test_a_process_that_was_ordered_ends_if_the_archive_is_another_one_by_now(
    tmp_path: pathlib.Path, place: FolderPlace
) -> None:
    note = open_as_writer(place, data(tmp_path, "first"), "a", 1)
    order = {"to": place.text, "archive": note.id, "writer": note.writer}
    assert open_ordered(order).text == place.text
    with pytest.raises(PlaceFailed, match="another data directory"):
        open_ordered({**order, "writer": "other"})
    with pytest.raises(PlaceFailed, match="another archive"):
        open_ordered({**order, "archive": "other"})
    place.delete(MARKER)
    with pytest.raises(PlaceFailed, match="mount its disk"):
        open_ordered(order)


@pytest.mark.parametrize("content", [b"", b"{}", b"[1]", b"\xff"])
def test_a_damaged_note_or_writer_is_an_error_that_names_the_remedy(
    tmp_path: pathlib.Path, place: FolderPlace, content: bytes
) -> None:
    first = data(tmp_path, "first")
    open_as_writer(place, first, "a", 1)
    (first / NOTE).write_bytes(content)
    with pytest.raises(PlaceFailed, match="is damaged: run treedb archive adopt"):
        open_as_writer(place, first, "a", 2)
    adopt(place, first, "a", 3)
    place.put(WRITER, [content], is_new=False)
    with pytest.raises(PlaceFailed, match="is damaged: run treedb archive adopt"):
        open_as_writer(place, first, "a", 4)
    adopt(place, first, "a", 5)
    open_as_writer(place, first, "a", 6)
    assert (tmp_path / "archive" / MARKER).exists()
