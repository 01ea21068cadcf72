"""An engine that is closed and opened again is the same to those who use it."""

from __future__ import annotations

import pathlib
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from tests.store.conformance import EngineContract, append_all, everything, put_all
from treedbd.limits import KIB, MIB
from treedbd.store.engine import CannotOpenStore, StoreFailed
from treedbd.store.memory import MemoryEngine
from treedbd.store.on_demand import ReopeningEngine
from treedbd.store.sqlite.engine import SqliteEngine


class Engines:
    """Opens the engines of one file, and opens a closed one in place when it is used."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.path = folder / "p" / "d.shelf"
        SqliteEngine.create(self.path).close()
        self.opened: list[SqliteEngine] = []
        self.engine = ReopeningEngine(self.open, lambda: self.engine.open(MIB))

    def open(self) -> SqliteEngine:
        self.opened.append(SqliteEngine.open(self.path))
        return self.opened[-1]

    def close(self) -> None:
        """Close the file, as if it had been idle."""
        self.engine.detach()
        self.engine.close_detached()


@pytest.fixture
def engines(tmp_path: pathlib.Path) -> Iterator[Engines]:
    """An engine that is closed."""
    engines = Engines(tmp_path)
    yield engines
    engines.engine.close()


class TestReopeningEngine(EngineContract):
    @pytest.fixture
    def engine(self, engines: Engines) -> ReopeningEngine:
        """An engine that has been closed and opened several times."""
        for _ in range(2):
            assert engines.engine.read(everything) == {}
            engines.close()
        return engines.engine


def test_every_use_opens_the_file(engines: Engines) -> None:
    engine = engines.engine
    uses: list[Any] = [
        lambda: engine.read(everything),
        lambda: engine.begin().rollback(),
        lambda: engine.snapshot().close(),
        engine.recover,
        engine.release_reserve,
        engine.restore_reserve,
        engine.verify,
        engine.size,
    ]
    for use in uses:
        assert not engine.is_open
        use()
        assert engine.is_open
        engines.close()
    assert len(engines.opened) == len(uses)


def test_asking_whether_files_are_in_place_does_not_open_them(engines: Engines) -> None:
    assert engines.engine.find_misplaced() is None
    assert not engines.engine.has_snapshots
    assert engines.opened == []
    with pytest.raises(StoreFailed):
        _ = engines.engine.file


def test_what_was_written_is_there_after_it_was_closed(engines: Engines) -> None:
    put_all(engines.engine, [(b"a", b"1")])
    engines.close()
    assert engines.engine.read(everything) == {b"a": b"1"}
    assert engines.engine.file is engines.opened[1]


def test_a_first_engine_is_replaced_by_the_file_that_is_created(engines: Engines) -> None:
    engine = ReopeningEngine(engines.open, lambda: engine.open(MIB), MemoryEngine())
    assert engine.is_open
    assert engine.read(everything) == {}
    file = engines.open()
    put_all(file, [(b"a", b"1")])
    engine.attach(file, MIB)
    assert engine.read(everything) == {b"a": b"1"}
    engine.detach()
    engine.close_detached()
    assert engine.read(everything) == {b"a": b"1"}
    engine.close()


def test_a_file_that_is_created_has_its_cache_before_it_is_used(
    engines: Engines, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is created in the thread of a commit, while others may read."""
    engine = ReopeningEngine(engines.open, lambda: engine.open(MIB), MemoryEngine())
    file = engines.open()
    put_all(file, [(b"a", b"1")])
    seen: list[dict[bytes, bytes]] = []
    monkeypatch.setattr(file, "limit_cache", lambda _: seen.append(engine.read(everything)))
    engine.attach(file, 64 * KIB)
    assert (seen, engine.cache_size) == ([{}], 64 * KIB)
    engine.close()


def test_one_that_is_used_before_it_was_closed_stays_open(engines: Engines) -> None:
    engines.engine.read(everything)
    engines.engine.detach()
    engines.engine.read(everything)
    engines.engine.close_detached()
    assert engines.engine.is_open
    assert len(engines.opened) == 1
    assert engines.engine.read(everything) == {}


def test_an_opening_waits_for_the_end_of_a_close(
    engines: Engines, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = engines.engine
    engine.read(everything)
    begun, may_end = threading.Event(), threading.Event()
    events: list[str] = []
    close = SqliteEngine.close

    def close_slowly(file: SqliteEngine) -> None:
        begun.set()
        assert may_end.wait(60)
        close(file)
        events.append("closed")

    def reopen() -> None:
        engine.open(MIB)
        events.append("opened")

    monkeypatch.setattr(SqliteEngine, "close", close_slowly)
    engine.detach()
    closing = threading.Thread(target=engine.close_detached)
    closing.start()
    assert begun.wait(60)
    opening = threading.Thread(target=reopen)
    opening.start()
    assert events == []
    may_end.set()
    closing.join()
    opening.join()
    assert events == ["closed", "opened"]
    assert engine.read(everything) == {}


@pytest.mark.parametrize("is_newer", [True, False])
def test_only_the_state_that_was_left_is_opened_again(engines: Engines, is_newer: bool) -> None:
    append_all(engines.engine, b"1", b"2")
    engines.close()
    if is_newer:
        other = SqliteEngine.open(engines.path)
        append_all(other, b"3")
        other.close()
    else:
        for file in engines.path.parent.iterdir():
            file.unlink()
        SqliteEngine.create(engines.path).close()
    with pytest.raises(CannotOpenStore, match="was changed by another program") as caught:
        engines.engine.read(everything)
    assert str(engines.path) in str(caught.value)
    assert not engines.engine.is_open


def test_a_closed_engine_is_not_opened_again(engines: Engines) -> None:
    engines.engine.read(everything)
    engines.engine.close()
    with pytest.raises(StoreFailed, match="closed"):
        engines.engine.read(everything)
    assert len(engines.opened) == 1


def test_an_opening_that_fails_leaves_it_closed(
    engines: Engines, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError("no")

    with monkeypatch.context() as patch:
        patch.setattr(SqliteEngine, "open", fail)
        with pytest.raises(OSError, match="no"):
            engines.engine.read(everything)
    assert not engines.engine.is_open
    assert engines.engine.read(everything) == {}


def test_the_limit_of_its_cache_survives_a_recovery(engines: Engines) -> None:
    engines.engine.open(512 * KIB)
    assert engines.engine.cache_size == 512 * KIB
    assert cache_sizes(engines.opened[0]) == [-256, -256]
    engines.engine.recover()
    assert cache_sizes(engines.opened[0]) == [-256, -256]
    engines.engine.limit_cache(64 * KIB)
    assert cache_sizes(engines.opened[0]) == [-32, -32]
    engines.close()
    assert engines.engine.cache_size == 0


def cache_sizes(engine: SqliteEngine) -> list[int]:
    """Return what SQLite says of the caches of the reader and the writer: KiB, negative."""
    connections = (engine.readers.present.cached.connection, engine.writer._connection)
    return [connection.pragma("cache_size") for connection in connections]
