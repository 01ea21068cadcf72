"""A mapping that is not there before its first commit behaves as one that is."""

from __future__ import annotations

import pathlib
from collections.abc import Callable, Iterator

import pytest

from tests.store.conformance import MappingContract, append_all, everything, put_all
from treedbd.store.lazy import LazyMapping
from treedbd.store.mapping import Full, Mapping, NotMade
from treedbd.store.memory import MemoryMapping
from treedbd.store.sqlite import SqliteMapping


class TestLazyMapping(MappingContract):
    @pytest.fixture
    def mapping(self) -> Iterator[LazyMapping]:
        mapping = LazyMapping(MemoryMapping, lambda: None)
        yield mapping
        mapping.close()


class Maker:
    """Makes the real mapping, or refuses to."""

    def __init__(self) -> None:
        self.made: list[MemoryMapping] = []
        self.is_full = False
        self.told = 0

    def make(self) -> Mapping:
        if self.is_full:
            raise Full("The disk is full.")
        self.made.append(MemoryMapping())
        return self.made[-1]

    def tell(self) -> None:
        self.told += 1


def test_reading_and_rolling_back_make_nothing() -> None:
    maker = Maker()
    lazy = LazyMapping(maker.make, maker.tell)
    assert lazy.read(everything) == {}
    transaction = lazy.begin()
    transaction.put(b"key", b"value")
    transaction.rollback()
    assert (maker.made, maker.told) == ([], 0)
    assert lazy.read(everything) == {}


def test_the_first_commit_makes_it_with_all_that_was_written() -> None:
    maker = Maker()
    lazy = LazyMapping(maker.make, maker.tell)
    transaction = lazy.begin()
    transaction.put(b"", b"root")
    transaction.put(b"\xfe", b"last")
    assert transaction.append(b"op", b"entry") == 1
    transaction.commit()
    assert maker.told == 1
    assert maker.made[0].read(everything) == {b"": b"root", b"\xfe": b"last"}
    assert maker.made[0].read(lambda rows: rows.sequence()) == 1
    assert append_all(lazy, b"next") == [2]


def test_what_cannot_be_made_leaves_it_empty_and_ready_to_try_again() -> None:
    maker = Maker()
    maker.is_full = True
    lazy = LazyMapping(maker.make, maker.tell)
    with pytest.raises(Full):
        put_all(lazy, [(b"key", b"value")])
    assert lazy.read(everything) == {}
    maker.is_full = False
    put_all(lazy, [(b"key", b"value")])
    assert lazy.read(everything) == {b"key": b"value"}


def put_one(mapping: Mapping) -> None:
    put_all(mapping, [(b"there", b"before")])


def append_one(mapping: Mapping) -> None:
    append_all(mapping, b"before")


@pytest.mark.parametrize("fill", [put_one, append_one])
def test_what_has_data_already_is_neither_changed_nor_served(
    fill: Callable[[Mapping], None], tmp_path: pathlib.Path
) -> None:
    path = tmp_path / "default.shelf"
    there = SqliteMapping.create(path)
    fill(there)
    before = there.read(everything), there.read(lambda rows: list(rows.entries(0)))
    there.close()
    lazy = LazyMapping(lambda: SqliteMapping.open(path), lambda: None)
    for _ in range(2):
        with pytest.raises(NotMade, match="Data has appeared"):
            put_all(lazy, [(b"key", b"value")])
    assert lazy.read(everything) == {}
    lazy.close()
    there = SqliteMapping.open(path)
    assert before == (there.read(everything), there.read(lambda rows: list(rows.entries(0))))
    there.close()
