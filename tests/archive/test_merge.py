from __future__ import annotations

import pathlib
from collections.abc import Iterable

import pytest

from tests.archive.written_archive import WrittenArchive, found_in
from treedbd.archive import merge as merging
from treedbd.archive.index import Archive
from treedbd.archive.merge import HOUR_MS, merge
from treedbd.archive.places import FolderPlace, PlaceFailed
from treedbd.archive.sealing import Damaged
from treedbd.archive.segments import Gap, Rules

DB = "app/default"


class Killed(Exception):
    """The process has ended here."""


class EndingPlace(FolderPlace):
    """A folder whose user is killed at one of its calls that change something."""

    def __init__(self, path: pathlib.Path, calls: int) -> None:
        super().__init__(path)
        self.left = calls

    def put(self, name: str, data: Iterable[bytes], *, is_new: bool) -> int:
        self._count()
        return super().put(name, data, is_new=is_new)

    def delete(self, name: str) -> None:
        self._count()
        super().delete(name)

    def _count(self) -> None:
        if not self.left:
            raise Killed
        self.left -= 1


@pytest.fixture
def world(tmp_path: pathlib.Path) -> WrittenArchive:
    made = WrittenArchive(tmp_path / "archive")
    made.now_ms -= made.now_ms % HOUR_MS
    for number in range(6):
        made.write(2)
        made.send(again=number % 3, extra=(Rules("app", f'"{number}"', made.now_ms),))
        made.now_ms += HOUR_MS // 4
    return made


def names(world: WrittenArchive) -> list[str]:
    return [each.name.split("/")[2].split(".")[0] for each in world.archive().all_segments()]


def test_the_segments_of_an_hour_that_is_over_become_one(world: WrittenArchive) -> None:
    before = found_in(world.archive())
    rules = list(world.archive().rules("app"))
    assert len(rules) == 6
    merge(world.archive(), world.now_ms)
    first, *rest = names(world)
    assert first == "000000000001-000000000004"
    assert rest == ["000000000005", "000000000006"]  # their hour lasts
    assert found_in(world.archive()) == before
    assert list(world.archive().rules("app")) == rules
    assert world.archive().next_number() == 7
    assert not merge(world.archive(), world.now_ms)


def test_a_merge_that_is_killed_anywhere_loses_nothing(world: WrittenArchive) -> None:
    before = found_in(world.archive())
    later = world.now_ms + HOUR_MS
    for calls in range(20):
        place = EndingPlace(pathlib.Path(world.place.text), calls % 4)
        try:
            merge(Archive(place), later)
        except Killed:
            assert found_in(world.archive()) == before
            assert world.archive().next_number() == 7
        else:
            break
    merge(world.archive(), later)
    assert all("-" in name for name in names(world))
    assert found_in(world.archive()) == before


def test_a_segment_that_is_damaged_is_not_merged_and_not_removed(world: WrittenArchive) -> None:
    second = world.archive().segments()[1].name
    file = pathlib.Path(world.place.text) / second
    content = file.read_bytes()
    file.write_bytes(content[:-9])  # the header can be read
    with pytest.raises(Damaged, match=second):
        merge(world.archive(), world.now_ms + HOUR_MS)
    assert names(world)[:4] == [f"00000000000{number}" for number in range(1, 5)]
    assert len(names(world)) == 5  # those of the other hour are merged
    file.write_bytes(b"")
    merge(world.archive(), world.now_ms + HOUR_MS)
    assert names(world)[:2] == ["000000000001", "000000000002"]
    assert file.exists()


def test_a_damaged_merged_segment_does_not_remove_small_ones(world: WrittenArchive) -> None:
    place = EndingPlace(pathlib.Path(world.place.text), 1)
    with pytest.raises(Killed):
        merge(Archive(place), world.now_ms + HOUR_MS)
    merged = next(each for each in world.archive().segments() if each.first < each.last)
    file = pathlib.Path(world.place.text) / merged.name
    before = found_in(world.archive())
    file.write_bytes(file.read_bytes()[:-9])
    with pytest.raises(Damaged):
        merge(world.archive(), world.now_ms + HOUR_MS)
    assert names(world)[1:5] == [f"00000000000{number}" for number in range(1, 5)]
    file.write_bytes(b"")
    assert found_in(world.archive()) == before  # from the small ones


def test_large_segments_stay_apart(world: WrittenArchive, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(merging, "MAX_BYTES", 1)
    assert not merge(world.archive(), world.now_ms + HOUR_MS)
    assert len(names(world)) == 6


def test_a_missing_number_is_not_merged_across(world: WrittenArchive) -> None:
    (pathlib.Path(world.place.text) / world.archive().segments()[1].name).unlink()
    merge(world.archive(), world.now_ms + HOUR_MS)
    assert "000000000001" in names(world)


def test_gaps_and_deletions_are_known_after_a_merge(tmp_path: pathlib.Path) -> None:
    world = WrittenArchive(tmp_path / "archive")
    world.write(1)
    world.send()
    gap = Gap(DB, "The cursor was dropped.", 1, world.now_ms)
    world.send(extra=(gap,))
    world.write(1)
    world.delete()
    merge(world.archive(), world.now_ms + HOUR_MS)
    archive = world.archive()
    assert len(archive.segments()) == 1
    assert archive.gaps(DB) == [gap]
    assert [each.at_ms for each in archive.deletions(DB)] == [world.now_ms]


def test_a_place_that_is_away_is_an_error(world: WrittenArchive) -> None:
    folder = pathlib.Path(world.place.text)
    folder.rename(folder.with_name("elsewhere"))
    archive = world.archive()
    with pytest.raises(PlaceFailed):
        FolderPlace(folder)
    folder.write_bytes(b"")
    with pytest.raises(PlaceFailed):
        archive.databases()
