"""Few databases are open at a time, and nobody notices which."""

from __future__ import annotations

import gc
import itertools
import os
import pathlib
import random
import weakref
from collections import Counter
from collections.abc import Callable
from typing import Any

import attrs
import pytest
from twisted.internet.defer import Deferred, maybeDeferred
from twisted.internet.task import Clock
from twisted.python.failure import Failure

from tests.database.catalogs import (
    PROJECT,
    acquire,
    close,
    find,
    make_catalog,
    make_write,
    problems,
    put,
    read,
    shelves,
    use,
)
from tests.database.world import Disk, Recorder
from tests.injection import no_descriptors
from treedbd.database.catalog import Catalog
from treedbd.database.database import Database
from treedbd.database.open_databases import (
    CREATED_BEYOND,
    MIN_SHARE,
    SWEEP_S,
    UNUSED_S,
    cache_share,
)
from treedbd.database.requests import (
    Caller,
    DeadlinePassed,
    NoDescriptors,
    Outcome,
    TooManyInUse,
    Unavailable,
)
from treedbd.database.rights import ReadRequest
from treedbd.database.slices import SLICE_SECONDS
from treedbd.limits import KIB, MIB
from treedbd.names import DatabaseName
from treedbd.rules.ruleset import parse_rules
from treedbd.store.engine import DiskFull
from treedbd.store.sqlite.engine import DESCRIPTORS_PER_FILE, SqliteEngine
from treedbd.tree.edit import make_put
from treedbd.tree.types import Json, Place


class Files:
    """Counts the open engines of each file, and fails if there are two of one file."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.open: Counter[str] = Counter()
        self.most = 0
        opened, closed = SqliteEngine.__init__, SqliteEngine.close

        def count(engine: SqliteEngine, path: pathlib.Path, *rest: Any) -> None:
            self.open[path.stem] += 1
            assert self.open[path.stem] == 1
            self.most = max(self.most, self.open.total())
            opened(engine, path, *rest)

        def discount(engine: SqliteEngine) -> None:
            closed(engine)
            self.open[engine.path.stem] -= 1

        monkeypatch.setattr(SqliteEngine, "__init__", count)
        monkeypatch.setattr(SqliteEngine, "close", discount)

    @property
    def names(self) -> set[str]:
        """The databases whose files are open."""
        return {name for name, count in self.open.items() if count}


@pytest.fixture
def files(monkeypatch: pytest.MonkeyPatch) -> Files:
    """The engines that are open."""
    return Files(monkeypatch)


def create(folder: pathlib.Path, names: str) -> None:
    """Create databases, each with its own name at `/a`."""
    catalog, clock = make_catalog(folder, PROJECT)
    for name in names:
        put(find(catalog, name), clock, name)
    close(catalog)


def test_beyond_the_bound_the_database_used_least_recently_is_closed(
    tmp_path: pathlib.Path, files: Files
) -> None:
    create(tmp_path, "abc")
    files.most = 0
    catalog, clock = make_catalog(tmp_path, PROJECT, max_open=2)
    for name in "abac":
        clock.rightNow += 1
        assert use(catalog, find(catalog, name)) is None
    assert files.names == {"a", "c"}
    assert files.most <= 2
    assert [read(find(catalog, name)) for name in "abc"] == [{"a": name} for name in "abc"]
    assert files.most <= 2
    close(catalog)
    assert files.names == set()


def test_a_database_object_stays_the_same_while_its_file_is_closed(
    tmp_path: pathlib.Path, files: Files
) -> None:
    create(tmp_path, "ab")
    catalog, clock = make_catalog(tmp_path, PROJECT, max_open=1)
    a = find(catalog, "a")
    assert use(catalog, a) is None
    assert use(catalog, find(catalog, "b")) is None
    assert files.names == {"b"}
    assert find(catalog, "a") is a
    assert isinstance(put(a, clock, "new"), Outcome)
    assert files.names == {"a"}
    assert read(a) == {"a": "new"}
    close(catalog)


def test_a_closed_database_is_in_memory_only_while_somebody_refers_to_it(
    tmp_path: pathlib.Path,
) -> None:
    create(tmp_path, "ab")
    catalog, _ = make_catalog(tmp_path, PROJECT, max_open=1)
    forgotten = weakref.ref(find(catalog, "a"))
    use(catalog, find(catalog, "a"))
    gc.collect()
    assert forgotten() is not None
    use(catalog, find(catalog, "b"))
    gc.collect()
    assert forgotten() is None
    assert read(find(catalog, "a")) == {"a": "a"}
    close(catalog)


def watch(catalog: Catalog, database: Database, clock: Clock) -> Callable[[], object]:
    watcher = Recorder()
    database.watching.watch((), watcher, lambda _: None)
    return lambda: database.watching.watchers.remove((), watcher)


def grant(catalog: Catalog, database: Database, clock: Clock) -> Callable[[], object]:
    request = ReadRequest(Caller(None), (), None, lambda: 0)
    granted = database.make_grant(request, lambda: None, lambda: None)
    database.read(granted.check)
    return granted.close


def hold(catalog: Catalog, database: Database, clock: Clock) -> Callable[[], object]:
    return database.hold().close


def request(catalog: Catalog, database: Database, clock: Clock) -> Callable[[], object]:
    assert acquire(catalog, database) is None
    return lambda: catalog.release(database)


def write_later(catalog: Catalog, database: Database, clock: Clock) -> Callable[[], object]:
    database.write(make_write(1))
    return lambda: clock.advance(0)


def test_volatile_values_keep_a_database_open_until_another_one_is_needed(
    tmp_path: pathlib.Path, files: Files
) -> None:
    create(tmp_path, "ab")
    catalog, clock = make_catalog(tmp_path, PROJECT, max_open=1)
    rules = '{"rules": {".read": true, ".write": true, "v": {".volatile": true}}}'
    catalog.rules("p").manage_by_file(parse_rules(rules))
    clock.advance(0)
    a, b = find(catalog, "a"), find(catalog, "b")
    assert use(catalog, a) is None
    edit = make_put(Place(("v",)), 5)
    a.write(attrs.evolve(make_write(None), edit=edit))
    clock.advance(UNUSED_S + SWEEP_S)
    clock.advance(SWEEP_S)
    assert files.names == {"a"}
    assert use(catalog, b) is None
    assert files.names == {"b"}
    close(catalog)


@pytest.mark.parametrize("begin", [watch, grant, hold, request, write_later])
def test_a_database_in_use_is_not_closed(
    tmp_path: pathlib.Path,
    files: Files,
    begin: Callable[[Catalog, Database, Clock], Callable[[], object]],
) -> None:
    create(tmp_path, "ab")
    catalog, clock = make_catalog(tmp_path, PROJECT, max_open=1)
    clock.advance(0)  # the check of each file
    a, b = find(catalog, "a"), find(catalog, "b")
    assert use(catalog, a) is None
    end = begin(catalog, a, clock)
    assert isinstance(use(catalog, b), TooManyInUse)
    with pytest.raises(TooManyInUse):
        read(b)
    assert isinstance(put_later(b), TooManyInUse)
    assert files.names == {"a"}
    assert problems(catalog) == []
    end()
    assert use(catalog, b) is None
    assert files.names == {"b"}
    clock.advance(UNUSED_S)
    close(catalog)


def _add_to(refusals: list[Any]) -> Callable[[Failure], None]:
    return lambda failure: refusals.append(failure.value)


def put_later(database: Database) -> Exception:
    refusals: list[Exception] = []
    database.write(make_write(1)).addErrback(_add_to(refusals))
    (refusal,) = refusals
    return refusal


def test_a_database_that_is_being_committed_or_recovered_is_not_closed(
    tmp_path: pathlib.Path, files: Files
) -> None:
    create(tmp_path, "ab")
    disk = Disk()
    catalog, clock = make_catalog(tmp_path, PROJECT, max_open=1, run_in_thread=disk.run)
    a, b = find(catalog, "a"), find(catalog, "b")
    read(a)
    outcomes: list[object] = []
    a.write(make_write(1)).addBoth(outcomes.append)
    clock.advance(0)
    assert not outcomes
    with pytest.raises(TooManyInUse):
        read(b)
    disk.fail(DiskFull())
    assert a.write_problem is not None
    while disk.waiting:
        disk.finish()
        with pytest.raises(TooManyInUse):
            read(b)
    clock.advance(1)
    while disk.waiting:
        disk.finish()
    assert a.write_problem is None
    assert read(b) == {"a": "b"}
    assert files.names == {"b"}


def test_idle_databases_are_closed_after_a_while(tmp_path: pathlib.Path, files: Files) -> None:
    create(tmp_path, "abc")
    catalog, clock = make_catalog(tmp_path, PROJECT)
    clock.advance(0)
    assert files.names == set()  # the check of each has closed it again
    for name in "abc":
        use(catalog, find(catalog, name))
    clock.pump([SWEEP_S] * int(UNUSED_S / SWEEP_S - 1))
    assert files.names == {"a", "b", "c"}
    end = watch(catalog, find(catalog, "b"), clock)
    use(catalog, find(catalog, "c"))
    clock.pump([SWEEP_S] * 2)
    assert files.names == {"b", "c"}
    end()
    clock.pump([SWEEP_S] * int(UNUSED_S / SWEEP_S + 1))
    assert files.names == set()
    assert read(find(catalog, "a")) == {"a": "a"}
    close(catalog)


def test_a_database_that_is_created_is_closed_when_it_is_idle(
    tmp_path: pathlib.Path, files: Files
) -> None:
    catalog, clock = make_catalog(tmp_path, PROJECT)
    put(find(catalog, "new"), clock, 1)
    assert files.names == {"new"}
    clock.pump([SWEEP_S] * int(UNUSED_S / SWEEP_S + 2))
    assert files.names == set()
    assert isinstance(put(find(catalog, "new"), clock, 2), Outcome)
    assert read(find(catalog, "new")) == {"a": 2}
    close(catalog)


def test_first_writes_do_not_open_many_files_beyond_the_bound(
    tmp_path: pathlib.Path, files: Files
) -> None:
    catalog, clock = make_catalog(tmp_path, PROJECT, max_open=1)
    databases = [find(catalog, f"d{number}") for number in range(CREATED_BEYOND + 3)]
    ends = [watch(catalog, database, clock) for database in databases]
    results = [put(database, clock, 1) for database in databases]
    refused = [each for each in results if not isinstance(each, Outcome)]
    assert [str(each) for each in refused] == [str(TooManyInUse())] * 2
    assert all(isinstance(each, Unavailable) for each in refused)
    assert files.most == len(shelves(tmp_path)) == CREATED_BEYOND + 1
    for end in ends:
        end()
    assert use(catalog, databases[0]) is None
    clock.pump([SWEEP_S] * int(UNUSED_S / SWEEP_S + 3))
    assert isinstance(put(databases[-1], clock, 1), Outcome)
    close(catalog)


def acquire_often(catalog: Catalog, database: Database, times: int) -> list[object]:
    """Wait for a database that has to be opened; return what receives None for each who goes on."""
    opened: list[object] = []
    for _ in range(times):
        opening = acquire(catalog, database)
        assert opening is not None
        opening.addCallback(opened.append)
    return opened


def test_those_who_wait_for_one_database_share_its_opening(
    tmp_path: pathlib.Path, files: Files
) -> None:
    create(tmp_path, "a")
    disk = Disk()
    catalog, _ = make_catalog(tmp_path, PROJECT, run_in_thread=disk.run)
    a = find(catalog, "a")
    opened = acquire_often(catalog, a, 5)
    assert opened == []
    disk.finish()
    assert opened == [None] * 5
    assert disk.waiting == []
    assert acquire(catalog, a) is None


def test_those_who_wait_for_one_database_go_on_in_slices(
    tmp_path: pathlib.Path, files: Files
) -> None:
    create(tmp_path, "a")
    disk = Disk()
    catalog, clock = make_catalog(tmp_path, PROJECT, run_in_thread=disk.run)
    a = find(catalog, "a")
    opened = acquire_often(catalog, a, 100)
    clock.lag = SLICE_SECONDS / 4
    disk.finish()
    begun = [len(opened)]
    while begun[-1] < 100:
        clock.take_turn()
        begun.append(len(opened))
    assert max(later - former for former, later in itertools.pairwise([0, *begun])) <= 5


def test_a_request_waits_for_an_opening_as_long_as_it_may(
    tmp_path: pathlib.Path, files: Files
) -> None:
    create(tmp_path, "a")
    disk = Disk()
    catalog, clock = make_catalog(tmp_path, PROJECT, run_in_thread=disk.run)
    a = find(catalog, "a")
    refusals: list[Any] = []
    for timeout_s in (1, 3):
        opening = catalog.acquire(a, timeout_s)
        assert opening is not None
        opening.addErrback(lambda failure: refusals.append(failure.value))
    clock.advance(2)
    assert [type(each) for each in refusals] == [DeadlinePassed]
    assert str(refusals[0]) == "The request timed out before the database was opened."
    catalog.release(a)
    disk.finish()
    assert a.is_open
    assert a.requests == 1
    assert len(refusals) == 1


def test_a_database_is_used_in_place_while_a_thread_is_about_to_close_it(
    tmp_path: pathlib.Path, files: Files
) -> None:
    create(tmp_path, "a")
    disk = Disk()
    catalog, clock = make_catalog(tmp_path, PROJECT, run_in_thread=disk.run)
    a = find(catalog, "a")
    read(a)
    clock.rightNow += UNUSED_S - SWEEP_S
    clock.advance(SWEEP_S)
    assert not a.is_open
    assert files.names == {"a"}
    assert read(a) == {"a": "a"}
    while disk.waiting:
        disk.finish()
    assert files.names == {"a"}
    assert read(a) == {"a": "a"}


@pytest.mark.parametrize("is_first_closed", [True, False])
def test_a_stop_closes_what_is_being_opened_and_closed(
    tmp_path: pathlib.Path, files: Files, is_first_closed: bool
) -> None:
    create(tmp_path, "ab")
    disk = Disk()
    catalog, clock = make_catalog(tmp_path, PROJECT, max_open=1, run_in_thread=disk.run)
    read(find(catalog, "a"))
    opening = acquire(catalog, find(catalog, "b"))
    assert opening is not None
    refusals: list[Any] = []
    opening.addErrback(_add_to(refusals))
    closed: list[None] = []
    catalog.close().addCallback(closed.append)
    gc.collect()
    if is_first_closed:
        disk.waiting.reverse()
    while disk.waiting:
        disk.finish()
    assert closed == [None]
    assert files.names == set()
    assert clock.getDelayedCalls() == []
    assert bool(refusals) == is_first_closed


def test_a_file_that_was_changed_while_it_was_closed_is_refused(tmp_path: pathlib.Path) -> None:
    create(tmp_path, "ab")
    catalog, clock = make_catalog(tmp_path, PROJECT, max_open=1)
    a = find(catalog, "a")
    end = watch(catalog, a, clock)
    end()
    read(find(catalog, "b"))
    other = tmp_path / "other"
    other.mkdir()
    create(other, "a")
    for suffix in ("", "-mark"):
        file = tmp_path / "p" / f"a.shelf{suffix}"
        (other / "p" / f"a.shelf{suffix}").rename(file)
    assert isinstance(use(catalog, a), Unavailable)
    (found,) = problems(catalog)
    assert "was changed by another program" in found.reason
    close(catalog)


def test_without_descriptors_databases_are_unavailable_and_not_refused(
    tmp_path: pathlib.Path, files: Files
) -> None:
    create(tmp_path, "ab")
    catalog, clock = make_catalog(tmp_path, PROJECT, any_project=True)
    a, b = find(catalog, "a"), find(catalog, "b")
    assert isinstance(put(a, clock, 1), Outcome)
    new = find(catalog, "new")
    with no_descriptors():
        assert isinstance(use(catalog, b), NoDescriptors)
        with pytest.raises(NoDescriptors):
            read(b)
        assert isinstance(put_later(b), NoDescriptors)
        refusal = put(new, clock, 1)
        assert isinstance(refusal, Unavailable)
        assert str(refusal) == str(NoDescriptors())
        with pytest.raises(NoDescriptors):
            catalog.find(DatabaseName("unconfigured"))  # its rules are not known
        assert isinstance(put(a, clock, 2), Outcome)
        assert read(a) == {"a": 2}
        assert problems(catalog) == []
    assert shelves(tmp_path) == ["p/a.shelf", "p/b.shelf"]
    assert use(catalog, b) is None
    assert read(b) == {"a": "b"}
    assert isinstance(put(new, clock, 1), Outcome)
    assert isinstance(put(catalog.find(DatabaseName("unconfigured")), clock, 1), Outcome)
    close(catalog)


def test_an_open_database_has_no_more_descriptors_than_are_planned_for(
    tmp_path: pathlib.Path,
) -> None:
    catalog, clock = make_catalog(tmp_path, PROJECT)
    a = find(catalog, "a")
    before = len(os.listdir("/dev/fd"))
    put(a, clock, 1)
    a.hold().close()
    assert len(os.listdir("/dev/fd")) - before == DESCRIPTORS_PER_FILE
    use(catalog, a)
    clock.pump([SWEEP_S] * int(UNUSED_S / SWEEP_S + 2))
    assert len(os.listdir("/dev/fd")) == before
    close(catalog)


@pytest.mark.parametrize(
    ("count", "share"),
    [
        (0, 16 * MIB),
        (1, 16 * MIB),
        (16, 16 * MIB),
        (17, 8 * MIB),
        (32, 8 * MIB),
        (1000, 256 * KIB),
        (4096, 64 * KIB),
        (100_000, MIN_SHARE),
    ],
)
def test_all_open_databases_share_the_memory_for_pages(count: int, share: int) -> None:
    assert cache_share(256 * MIB, count) == share


def cache_sizes(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """Return, by database, how many bytes of pages each may keep; it is kept up to date."""
    sizes: dict[str, int] = {}
    limit = SqliteEngine.limit_cache

    def record(engine: SqliteEngine, size: int) -> None:
        sizes[engine.path.stem] = size
        limit(engine, size)

    monkeypatch.setattr(SqliteEngine, "limit_cache", record)
    return sizes


def test_the_memory_is_divided_again_when_more_or_fewer_are_open(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    create(tmp_path, "abcdefgh")
    sizes = cache_sizes(monkeypatch)
    disk = Disk()
    catalog, clock = make_catalog(
        tmp_path, PROJECT, cache_bytes=MIB, run_in_thread=disk.run, max_open=8
    )
    read(find(catalog, "a"))
    assert sizes == {"a": MIB}
    a = find(catalog, "a")
    a.write(make_write(1))
    clock.advance(0)
    commit = disk.waiting.pop()
    for name in "bcdefgh":
        read(find(catalog, name))
    clock.advance(2)
    assert sizes == {"a": MIB} | dict.fromkeys("bcdefgh", 128 * KIB)  # `a` is being committed
    maybeDeferred(commit[0]).chainDeferred(commit[1])
    clock.advance(2)
    assert sizes == dict.fromkeys("abcdefgh", 128 * KIB)


def test_a_hundred_databases_are_the_same_with_ten_open(
    tmp_path: pathlib.Path, files: Files
) -> None:
    world = RandomWorld(tmp_path, seed=9)
    for _ in range(1200):
        world.step()
    world.settle()
    assert files.most <= 10 + CREATED_BEYOND
    assert len(files.names) <= 10 + CREATED_BEYOND
    world.check_all()
    assert world.opened > 200


class RandomWorld:
    """Does random reads, writes and watches on many databases, and compares them with a model.

    What waits for the disk is done in random order, as threads might do it.
    """

    def __init__(self, folder: pathlib.Path, seed: int) -> None:
        self.random = random.Random(seed)
        self.disk = Disk()
        self.catalog, self.clock = make_catalog(
            folder, PROJECT, max_open=10, max_databases=100, run_in_thread=self.disk.run
        )
        self.names = [f"d{number}" for number in range(100)]
        self.model: dict[str, int] = {}
        self.watched: dict[str, tuple[Database, Recorder, list[Json]]] = {}
        self.opened = 0
        self.count = 0

    def step(self) -> None:
        name = self.random.choice(self.names)
        self.random.choice([self.write, self.read, self.toggle_watch, self.work, self.work])(name)

    def work(self, _: str) -> None:
        """Let the disk do something, or the time pass."""
        if self.disk.waiting:
            waiting = self.disk.waiting
            at = self.random.randrange(len(waiting))
            waiting[0], waiting[at] = waiting[at], waiting[0]
            self.disk.finish()
        self.clock.advance(self.random.choice([0, 0, 0.5]))

    def settle(self) -> None:
        while self.disk.waiting or self.pending():
            self.work("")

    def pending(self) -> bool:
        return any(find(self.catalog, name).requests for name in self.model)

    def request(self, name: str, work: Callable[[Database], Deferred[Any] | None]) -> None:
        """Do a request, as the web does it; one may be refused while all are in use."""
        database = find(self.catalog, name)
        opening = acquire(self.catalog, database)
        done = maybeDeferred(lambda: opening)
        self.opened += opening is not None
        done.addCallback(lambda _: work(database))
        done.addErrback(lambda failure: failure.trap(Unavailable) and None)
        done.addBoth(lambda _: self.catalog.release(database))

    def write(self, name: str) -> None:
        self.count += 1
        value = self.count

        def written(_: object) -> None:
            self.model[name] = value
            if name in self.watched:
                self.watched[name][2].append(value)

        # Two writes of one database are committed in the order in which they were submitted.
        self.request(name, lambda database: database.write(make_write(value)).addCallback(written))

    def read(self, name: str) -> None:
        def compare(database: Database) -> None:
            assert read(database) == self.expected(name)

        self.request(name, compare)

    def toggle_watch(self, name: str) -> None:
        if name in self.watched:
            database, recorder, expected = self.watched.pop(name)
            database.watching.watchers.remove(("a",), recorder)
            assert recorder.data == expected
        elif len(self.watched) < 5 and not find(self.catalog, name).requests:
            recorder = Recorder()

            def begin(database: Database) -> None:
                database.watching.watch(("a",), recorder, lambda _: None)
                self.watched[name] = (database, recorder, [])

            self.request(name, begin)

    def expected(self, name: str) -> Json:
        return {"a": self.model[name]} if name in self.model else None

    def check_all(self) -> None:
        for database, recorder, expected in self.watched.values():
            assert recorder.data == expected
            database.watching.watchers.remove(("a",), recorder)
        self.watched.clear()
        for name in self.names:
            assert read(find(self.catalog, name)) == self.expected(name)
        closed: list[object] = []
        self.catalog.close().addCallback(closed.append)
        while self.disk.waiting:
            self.disk.finish()
        assert closed == [None]
