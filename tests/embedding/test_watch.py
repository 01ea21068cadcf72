"""What a program watches in its own process."""

from __future__ import annotations

import asyncio
import gc
import pathlib
from typing import Any

import pytest
import pytest_twisted
from twisted.internet import reactor
from twisted.internet.defer import CancelledError, Deferred, gatherResults

from tests.embedding.embedded import running, settings_in
from tests.embedding.test_local_database import over_http
from treedbd import (
    InvalidQuery,
    LocalDatabase,
    PermissionDenied,
    QuotaExceeded,
    TreeService,
    Unavailable,
    Watch,
    WatchEvent,
)
from treedbd.embedding.requests import wait_for
from treedbd.rules.ruleset import OPEN

clock: Any = reactor
WRITES = 10_000
IN_FLIGHT = 500


def shown(event: WatchEvent) -> tuple[str, str, Any]:
    return event.kind, event.path, event.data


async def take(watch: Watch, count: int) -> list[tuple[str, str, Any]]:
    """Return the next events."""
    return [shown(await anext(watch)) for _ in range(count)]


async def next_turn() -> None:
    """Wait for what has been called from a thread before."""
    called: Deferred[None] = Deferred()
    clock.callFromThread(called.callback, None)
    await called


async def put_long(database: LocalDatabase, path: str, count: int) -> None:
    """Put so many long children of a path."""
    for number in range(count):
        await database.put(f"{path}/{number}", "x" * 30_000)


def watchers_of(service: TreeService) -> int:
    return len(service.resource().streams)


@pytest_twisted.ensureDeferred
async def test_the_present_value_is_first_and_writes_follow(tmp_path: pathlib.Path) -> None:
    async with running(settings_in(tmp_path)) as service:
        database = service.database("app")
        await database.put("users/ada", {"age": 36})
        async with database.watch("users") as events:
            await database.put("users/ada/age", 37)
            await database.patch("users", {"alan/age": 41, "ada/age": None})
            await database.put("other", 1)
            await database.remove("users")
            assert await take(events, 4) == [
                ("put", "/", {"ada": {"age": 36}}),
                ("put", "/ada/age", 37),
                ("patch", "/", {"alan/age": 41, "ada/age": None}),
                ("put", "/", None),
            ]


@pytest_twisted.ensureDeferred
async def test_requests_and_the_program_see_each_others_writes(tmp_path: pathlib.Path) -> None:
    async with running(settings_in(tmp_path)) as service:
        database = service.database("app")
        async with database.watch("public") as events:
            await database.put("public", 1)
            assert await over_http(service, "GET", "/public.json") == 1
            assert await take(events, 2) == [("put", "/", None), ("put", "/", 1)]
            refused = await over_http(service, "PUT", "/public.json", data=b"2")
            assert refused["error"] == "permission_denied"
            rules = service.catalog.rules("app")
            rules.current = OPEN
            assert await over_http(service, "PUT", "/public.json", data=b"2") == 2
            assert await take(events, 1) == [("put", "/", 2)]
            assert await database.get("public") == 2


@pytest_twisted.ensureDeferred
async def test_a_query_can_be_watched(tmp_path: pathlib.Path) -> None:
    async with running(settings_in(tmp_path)) as service:
        database = service.database("app")
        await database.put("p", {"a": 1, "b": 2, "c": 3})
        async with database.watch("p", order_by="$value", limit_to_last=2) as events:
            await database.put("p/d", 4)
            first, moved = await take(events, 2)
            assert first == ("put", "/", {"b": 2, "c": 3})
            assert moved == ("patch", "/", {"b": None, "d": 4})


@pytest_twisted.ensureDeferred
async def test_ten_thousand_writes_and_none_is_missed(tmp_path: pathlib.Path) -> None:
    async with running(settings_in(tmp_path, engine="sqlite")) as service:
        database = service.database("app")
        async with database.watch("n") as events:

            async def write(first: int) -> None:
                for number in range(first, WRITES, IN_FLIGHT):
                    await database.put(f"n/k{number}", number)

            writing = [Deferred.fromCoroutine(write(first)) for first in range(IN_FLIGHT)]
            found = await take(events, WRITES + 1)
            await gatherResults(writing)
        assert found[0] == ("put", "/", None)
        assert sorted(data for _, _, data in found[1:]) == list(range(WRITES))


@pytest_twisted.ensureDeferred
async def test_a_slow_program_gets_the_present_value_in_place_of_what_it_missed(
    tmp_path: pathlib.Path,
) -> None:
    settings = settings_in(tmp_path, streams={"buffer_bytes": 2048})
    async with running(settings) as service:
        database = service.database("app")
        async with database.watch("n") as events, database.watch("n") as quick:
            assert len(await take(quick, 1)) == 1
            for number in range(100):
                await database.put("n/k", number)
                assert await take(quick, 1) == [("put", "/k", number)]
            await database.put("n/last", True)
            assert await take(events, 1) == [("put", "/", {"k": 99, "last": True})]
            await database.put("n/k", 100)
            assert await take(events, 1) == [("put", "/k", 100)]
        assert service.resource().shared_reads.memory.total == 0


@pytest.mark.parametrize("engine", ["memory", "sqlite"])
@pytest_twisted.ensureDeferred
async def test_a_watch_resumes_with_what_it_missed(tmp_path: pathlib.Path, engine: str) -> None:
    async with running(settings_in(tmp_path, engine=engine)) as service:
        database = service.database("app")
        async with database.watch("n") as events:
            await database.put("n/a", 1)
            await anext(events)
            last = await anext(events)
        await database.put("n/b", 2)
        await database.put("n/c", 3)
        async with database.watch("n", resume_after=last.id) as events:
            await database.put("n/d", 4)
            assert await take(events, 3) == [
                ("put", "/b", 2),
                ("put", "/c", 3),
                ("put", "/d", 4),
            ]
        for unknown in ("99-0011223344556677", "nonsense", ""):
            async with database.watch("n/b", resume_after=unknown) as events:
                assert await take(events, 1) == [("put", "/", 2)]


@pytest_twisted.ensureDeferred
async def test_a_watch_near_volatile_nodes_begins_with_the_present_value(
    tmp_path: pathlib.Path,
) -> None:
    async with running(settings_in(tmp_path, volatile="cursors")) as service:
        database = service.database("app")
        await database.put("cursors", {"ada": 1})
        async with database.watch("") as events:
            last = await anext(events)
        await database.put("n", 2)
        async with database.watch("", resume_after=last.id) as events:
            assert await take(events, 1) == [("put", "/", {"cursors": {"ada": 1}, "n": 2})]
        with pytest.raises(QuotaExceeded, match="volatile_bytes"):
            await put_long(database, "cursors", 200)


@pytest_twisted.ensureDeferred
async def test_a_watch_resumes_after_a_restart(tmp_path: pathlib.Path) -> None:
    settings = settings_in(tmp_path, engine="sqlite")
    async with running(settings) as service:
        async with service.database("app").watch("n") as events:
            last = await anext(events)
        await service.database("app").put("n/a", 1)
    async with (
        running(settings) as service,
        service.database("app").watch("n", resume_after=last.id) as events,
    ):
        assert await take(events, 1) == [("put", "/a", 1)]


@pytest_twisted.ensureDeferred
async def test_a_watch_ends_when_its_right_is_lost(tmp_path: pathlib.Path) -> None:
    async with running(settings_in(tmp_path)) as service:
        admin = service.database("app")
        await admin.put("open", True)
        async with admin.as_auth({"uid": "ada"}).watch("shared") as events:
            assert await take(events, 1) == [("put", "/", None)]
            await admin.put("shared", 1)
            await admin.put("open", False)
            await admin.put("shared", "secret")
            with pytest.raises(PermissionDenied):
                await anext(events)
            with pytest.raises(StopAsyncIteration):
                await anext(events)
        assert watchers_of(service) == 0
        with pytest.raises(PermissionDenied):
            await anext(admin.as_auth(None).watch("shared"))


@pytest_twisted.ensureDeferred
async def test_a_watch_ends_when_the_service_stops_after_what_was_written(
    tmp_path: pathlib.Path,
) -> None:
    async with running(settings_in(tmp_path)) as service:
        database = service.database("app")
        events, waiting = database.watch("n"), database.watch("n")
        await take(events, 1)
        await take(waiting, 1)
        await database.put("n", 1)
        await take(waiting, 1)
        ending = Deferred.fromCoroutine(anext_of(waiting))
    assert await take(events, 1) == [("put", "/", 1)]
    for each in (Deferred.fromCoroutine(anext_of(events)), ending):
        with pytest.raises(Unavailable):
            await each


async def anext_of(watch: Watch) -> WatchEvent:
    return await anext(watch)


async def use_and_break(database: LocalDatabase) -> None:
    async for event in database.watch("n"):
        assert event.path == "/"
        break


async def use_and_close(database: LocalDatabase) -> None:
    events = database.watch("n")
    await anext(events)
    waiting = Deferred.fromCoroutine(anext_of(events))
    await events.aclose()
    with pytest.raises(StopAsyncIteration):
        await waiting_for_end(waiting, events)


async def waiting_for_end(waiting: Deferred[WatchEvent], events: Watch) -> WatchEvent:
    waiting.addErrback(lambda _: None)
    await waiting
    return await anext(events)


async def use_and_cancel(database: LocalDatabase) -> None:
    async def watch() -> None:
        async for _ in database.watch("n"):
            pass

    watching = Deferred.fromCoroutine(watch())
    watching.cancel()
    with pytest.raises(CancelledError):
        await watching


async def use_and_fail(database: LocalDatabase) -> None:
    with pytest.raises(ZeroDivisionError):  # noqa: PT012 - the block is what fails
        async with database.watch("n") as events:
            await anext(events)
            raise ZeroDivisionError


@pytest_twisted.ensureDeferred
async def test_collecting_garbage_changes_nothing_within_a_turn(tmp_path: pathlib.Path) -> None:
    async with running(settings_in(tmp_path)) as service:
        cycle: list[Any] = [service.database("app").watch("n")]
        cycle.append(cycle)
        await anext(cycle[0])
        del cycle
        gc.collect()  # as may happen while somebody goes through the streams
        assert watchers_of(service) == 1
        await next_turn()
        assert watchers_of(service) == 0


@pytest.mark.parametrize("use", [use_and_break, use_and_close, use_and_cancel, use_and_fail])
@pytest_twisted.ensureDeferred
async def test_whatever_ends_it_releases_everything(tmp_path: pathlib.Path, use: Any) -> None:
    async with running(settings_in(tmp_path)) as service:
        database = service.database("app")
        await database.put("n", 1)
        await use(database)
        gc.collect()
        await next_turn()
        assert watchers_of(service) == 0
        found = service.catalog.find(database.name)
        assert (found.requests, found._watchers.count, len(found._grants.held)) == (0, 0, 0)


@pytest_twisted.ensureDeferred
async def test_waiting_that_is_cancelled_loses_no_event(tmp_path: pathlib.Path) -> None:
    async with running(settings_in(tmp_path)) as service:
        database = service.database("app")
        events = database.watch("n")
        await anext(events)
        waiting = Deferred.fromCoroutine(anext_of(events))
        with pytest.raises(RuntimeError, match="already"):
            await anext(events)
        waiting.cancel()
        with pytest.raises(CancelledError):
            await waiting
        await database.put("n", 1)
        assert await take(events, 1) == [("put", "/", 1)]


@pytest_twisted.ensureDeferred
async def test_a_large_first_value_and_what_follows_it(tmp_path: pathlib.Path) -> None:
    value = {f"k{number:05}": "x" * 100 for number in range(20_000)}
    async with running(settings_in(tmp_path, engine="sqlite")) as service:
        database = service.database("app")
        await database.put("n", value)
        async with database.watch("n") as events:
            await database.put("n/k00000", 1)
            first, second = await take(events, 2)
        assert first[2] in (value, {**value, "k00000": 1})
        assert second == ("put", "/k00000", 1)


@pytest_twisted.ensureDeferred
async def test_watches_count_as_streams(tmp_path: pathlib.Path) -> None:
    async with running(settings_in(tmp_path, limits={"streams": 1})) as service:
        database = service.database("app")
        async with database.watch("a"):
            with pytest.raises(Unavailable, match="too many streams"):
                await anext(database.watch("b"))
        assert await take(database.watch("b"), 1) == [("put", "/", None)]


@pytest_twisted.ensureDeferred
async def test_a_project_that_requires_indexes_requires_them_of_watches(
    tmp_path: pathlib.Path,
) -> None:
    settings = settings_in(tmp_path, project={"require_index": True})
    async with running(settings) as service:
        with pytest.raises(InvalidQuery):
            await anext(service.database("app").watch("p", order_by="age"))


def test_in_a_task_of_asyncio_a_deferred_is_awaited_as_a_future() -> None:
    async def main() -> list[str]:
        waiting: Deferred[str] = Deferred()

        async def work() -> str:
            return await waiting

        asyncio.get_running_loop().call_soon(waiting.callback, "done")
        found = [await wait_for(work())]
        never: Deferred[str] = Deferred()

        async def wait_for_ever() -> str:
            return await never

        task = asyncio.create_task(wait_for(wait_for_ever()))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return [*found, str(never.called)]

    assert asyncio.run(main()) == ["done", "True"]
