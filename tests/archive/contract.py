"""What every place promises, as a class of tests over the fixture `place`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from treedbd.archive.places import (
    MARKER,
    NameTaken,
    ObjectInfo,
    ObjectMissing,
    Place,
    PlaceFailed,
    initialise,
    read_marker,
)


def broken(*pieces: bytes) -> Iterator[bytes]:
    yield from pieces
    raise ValueError("broken off")


class PlaceContract:
    """The tests; `place` is empty."""

    def test_an_object_is_read_as_it_was_put(self, place: Place) -> None:
        initialise(place, None, 1)
        content = [b"a" * 70_000, b"", b"b" * 3_000_000]
        assert place.put("segments/1/x", content, is_new=True) == 3_070_000
        assert b"".join(place.get("segments/1/x")) == b"".join(content)
        assert place.put("e", [], is_new=True) == 0
        assert not b"".join(place.get("e"))

    def test_a_name_is_taken_once(self, place: Place) -> None:
        initialise(place, None, 1)
        place.put("a/b", [b"1"], is_new=True)
        with pytest.raises(NameTaken):
            place.put("a/b", [b"2"], is_new=True)
        assert b"".join(place.get("a/b")) == b"1"
        place.put("a/b", [b"3"], is_new=False)
        assert b"".join(place.get("a/b")) == b"3"

    def test_of_an_object_that_is_broken_off_there_is_nothing(self, place: Place) -> None:
        initialise(place, None, 1)
        for is_new in (True, False):
            with pytest.raises(ValueError, match="broken off"):
                place.put("a/b", broken(b"1" * 100_000), is_new=is_new)
        with pytest.raises(ObjectMissing):
            next(place.get("a/b"))
        assert [info.name for info in place.list("")] == [MARKER]

    def test_objects_are_listed_in_the_order_of_their_names(self, place: Place) -> None:
        initialise(place, None, 1)
        names = ["a-b/c", "a/b", "a/b.c/d", "a/b/../c", "ab", "b/1", "b/10", "b/2"]
        names.remove("a/b/../c")
        names.remove("a/b")
        for name in names:
            place.put(name, [b"12"], is_new=True)
        listed = [info for info in place.list("") if info.name != MARKER]
        assert listed == [ObjectInfo(name, 2) for name in sorted(names)]
        assert [info.name for info in place.list("b/")] == ["b/1", "b/10", "b/2"]
        assert [info.name for info in place.list("b/", after="b/1")] == ["b/10", "b/2"]
        assert not list(place.list("c/"))

    def test_a_removed_object_is_gone(self, place: Place) -> None:
        initialise(place, None, 1)
        place.put("a/b", [b"1"], is_new=True)
        place.delete("a/b")
        place.delete("a/b")
        assert not list(place.list("a/"))
        place.put("a/b", [b"2"], is_new=True)
        assert b"".join(place.get("a/b")) == b"2"

    def test_only_names_of_objects_are_accepted(self, place: Place) -> None:
        for name in ("", "/a", "a/", "a//b", "../a", "a/../b", ".a", "a\n", "a b", "ä"):
            with pytest.raises(ValueError, match="not the name"):
                place.put(name, [b"1"], is_new=True)

    def test_an_archive_begins_in_an_empty_place_and_is_known_again(self, place: Place) -> None:
        assert read_marker(place) is None
        made = initialise(place, None, 1)
        assert initialise(place, made.id, 2) == initialise(place, None, 2) == made
        with pytest.raises(PlaceFailed, match="another archive"):
            initialise(place, "0" * 32, 2)
        place.put(MARKER, [b"{"], is_new=False)
        with pytest.raises(PlaceFailed, match="damaged"):
            initialise(place, None, 2)
        place.delete(MARKER)
        with pytest.raises(PlaceFailed, match="was there before"):
            initialise(place, made.id, 2)
