"""An engine that does not exist before its first commit behaves as one that does."""

from __future__ import annotations

import pathlib
from collections.abc import Callable, Iterator

import pytest

from tests.store.conformance import EngineContract, append_all, everything, put_all
from treedbd.store.engine import CannotCreateStore, DiskFull, Engine
from treedbd.store.memory import MemoryEngine
from treedbd.store.on_demand import CreateOnWriteEngine
from treedbd.store.sqlite.engine import SqliteEngine


def ignore(_: Engine) -> None:
    pass


class TestCreateOnWriteEngine(EngineContract):
    @pytest.fixture
    def engine(self) -> Iterator[CreateOnWriteEngine[MemoryEngine]]:
        engine = CreateOnWriteEngine(MemoryEngine, ignore)
        yield engine
        engine.close()


class Creator:
    """Creates the real engine, or raises DiskFull."""

    def __init__(self) -> None:
        self.engines: list[MemoryEngine] = []
        self.is_full = False
        self.notified = 0

    def create(self) -> Engine:
        if self.is_full:
            raise DiskFull("The disk is full.")
        self.engines.append(MemoryEngine())
        return self.engines[-1]

    def notify(self, engine: Engine) -> None:
        assert engine is self.engines[-1]
        self.notified += 1


def test_reading_and_rolling_back_create_nothing() -> None:
    creator = Creator()
    engine = CreateOnWriteEngine(creator.create, creator.notify)
    assert engine.read(everything) == {}
    transaction = engine.begin()
    transaction.put(b"key", b"value")
    transaction.rollback()
    assert (creator.engines, creator.notified) == ([], 0)
    assert engine.read(everything) == {}


def test_the_first_commit_creates_it_with_all_that_was_written() -> None:
    creator = Creator()
    engine = CreateOnWriteEngine(creator.create, creator.notify)
    transaction = engine.begin()
    transaction.put(b"", b"root")
    transaction.put(b"\xfe", b"last")
    assert transaction.append(b"op", b"entry") == 1
    transaction.commit()
    assert creator.notified == 1
    assert creator.engines[0].read(everything) == {b"": b"root", b"\xfe": b"last"}
    assert creator.engines[0].read(lambda rows: rows.sequence()) == 1
    assert append_all(engine, b"next") == [2]


def test_it_is_used_by_nobody_before_it_was_made_ready() -> None:
    seen: list[dict[bytes, bytes]] = []
    engine = CreateOnWriteEngine(MemoryEngine, lambda _: seen.append(engine.read(everything)))
    put_all(engine, [(b"key", b"value")])
    assert seen == [{}]
    assert engine.read(everything) == {b"key": b"value"}


def test_after_an_error_in_creation_it_is_empty_and_the_next_commit_tries_again() -> None:
    creator = Creator()
    creator.is_full = True
    engine = CreateOnWriteEngine(creator.create, creator.notify)
    with pytest.raises(DiskFull):
        put_all(engine, [(b"key", b"value")])
    assert engine.read(everything) == {}
    creator.is_full = False
    put_all(engine, [(b"key", b"value")])
    assert engine.read(everything) == {b"key": b"value"}


def put_one(engine: Engine) -> None:
    put_all(engine, [(b"there", b"before")])


def append_one(engine: Engine) -> None:
    append_all(engine, b"before")


@pytest.mark.parametrize("fill", [put_one, append_one])
def test_a_file_that_has_data_already_is_neither_changed_nor_served(
    fill: Callable[[Engine], None], tmp_path: pathlib.Path
) -> None:
    path = tmp_path / "default.shelf"
    existing = SqliteEngine.create(path)
    fill(existing)
    before = existing.read(everything), existing.read(lambda rows: list(rows.entries(0)))
    existing.close()
    engine = CreateOnWriteEngine(lambda: SqliteEngine.open(path), ignore)
    for _ in range(2):
        with pytest.raises(CannotCreateStore, match="A file with data has appeared"):
            put_all(engine, [(b"key", b"value")])
    assert engine.read(everything) == {}
    engine.close()
    existing = SqliteEngine.open(path)
    assert before == (existing.read(everything), existing.read(lambda rows: list(rows.entries(0))))
    existing.close()
