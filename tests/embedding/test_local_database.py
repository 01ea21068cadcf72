"""Databases that the program uses in its own process."""

from __future__ import annotations

import dataclasses
import datetime
import math
import pathlib
from collections.abc import Callable
from typing import Any

import pytest
import pytest_twisted
from treq.testing import StubTreq
from twisted.internet.defer import CancelledError, Deferred, gatherResults
from twisted.internet.task import LoopingCall

from tests.embedding.embedded import running, settings_in
from treedbd import (
    ABORT,
    ADMIN,
    ConditionFailed,
    InvalidData,
    InvalidPath,
    InvalidQuery,
    LocalDatabase,
    PermissionDenied,
    QueryOptions,
    TooLarge,
    TreeService,
    Unavailable,
    UnknownDatabase,
)

URL = "http://127.0.0.1"


async def over_http(service: TreeService, method: str, path: str, **options: Any) -> Any:
    """Return what a request without a token is answered."""
    client: Any = StubTreq(service.resource())
    flushing = LoopingCall(client.flush)  # a write is answered in a later turn
    flushing.start(0)
    try:
        response = await client.request(method, URL + path, **options)
        return await response.json()
    finally:
        flushing.stop()


@pytest_twisted.ensureDeferred
async def test_what_is_written_reads_as_over_http(tmp_path: pathlib.Path) -> None:
    async with running(settings_in(tmp_path)) as service:
        database = service.database("app")
        value = {"list": [1, 2.0, None, {}], "text": "ä", "yes": True, "at": {".sv": "timestamp"}}
        echo = await database.put("public", value)
        assert echo.keys() == {"at", "list", "text", "yes"}
        assert echo["list"] == [1, 2]
        assert echo["at"] > 1_700_000_000_000
        assert await database.get("/public/") == echo
        assert await over_http(service, "GET", "/public.json") == echo
        assert await database.get() == {"public": echo}


@pytest_twisted.ensureDeferred
async def test_patch_push_and_remove_do_what_the_requests_do(tmp_path: pathlib.Path) -> None:
    async with running(settings_in(tmp_path)) as service:
        database = service.database("app")
        await database.put("a", {"b": 1, "c": 2})
        sent = {"c/d": 3, "e": {".sv": {"increment": 4}}}
        assert await database.patch("a", sent) == {"c/d": 3, "e": 4}
        assert await database.get("a") == {"b": 1, "c": {"d": 3}, "e": 4}
        keys = [await database.push("list", number) for number in range(3)]
        assert keys == sorted(keys)
        assert list((await database.get("list")).values()) == [0, 1, 2]
        await database.remove("list")
        assert await database.get("list") is None


@pytest.mark.parametrize(
    ("query", "shown"),
    [
        ({"order_by": "age"}, ["c", "a", "b"]),
        ({"order_by": "age", "limit_to_first": 1}, ["c"]),
        ({"order_by": "age", "limit_to_last": 1}, ["b"]),
        ({"order_by": "age", "start_at": 20}, ["a", "b"]),
        ({"order_by": "age", "start_after": (20, "a")}, ["b"]),
        ({"order_by": "age", "end_before": 20}, ["c"]),
        ({"order_by": "age", "end_at": None}, []),
        ({"order_by": "$key", "equal_to": "b"}, ["b"]),
        ({"where": {"age": {">=": 20}}, "limit_to_first": 1}, ["a"]),
    ],
)
@pytest_twisted.ensureDeferred
async def test_queries_take_python_values(
    tmp_path: pathlib.Path, query: QueryOptions, shown: list[str]
) -> None:
    async with running(settings_in(tmp_path)) as service:
        database = service.database("app")
        await database.put("p", {"a": {"age": 20}, "b": {"age": 30}, "c": {"age": 10}})
        assert list(await database.get("p", **query) or {}) == shown


@pytest.mark.parametrize(
    ("query", "sentence"),
    [
        ({"limit_to_first": 1}, "limit_to_first needs order_by."),
        ({"start_after": 1}, "start_after needs order_by."),
        (
            {"order_by": "a", "end_at": 1, "end_before": 2},
            "end_at and end_before cannot be combined.",
        ),
    ],
)
@pytest_twisted.ensureDeferred
async def test_queries_are_refused_in_the_words_of_python(
    tmp_path: pathlib.Path, query: QueryOptions, sentence: str
) -> None:
    async with running(settings_in(tmp_path)) as service:
        with pytest.raises(InvalidQuery) as refused:
            await service.database("app").get("p", **query)
    assert str(refused.value) == sentence


@pytest_twisted.ensureDeferred
async def test_other_forms_of_a_read(tmp_path: pathlib.Path) -> None:
    async with running(settings_in(tmp_path)) as service:
        database = service.database("app")
        await database.put("a", {"x": {"y": 1, ".priority": 7}, "z": 2})
        assert await database.get("a", shallow=True) == {"x": True, "z": True}
        assert await database.get("a", sizes=True) == {"x": {".sz": 7}, "z": 2}
        assert await database.get("a/x", export=True) == {"y": 1, ".priority": 7}
        assert await database.get("a/x/.priority") == 7


def a_call(name: str, *arguments: Any, **options: Any) -> Callable[[LocalDatabase], Any]:
    return lambda database: getattr(database, name)(*arguments, **options)


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (a_call("get", "a.b"), InvalidPath),
        (a_call("get", ".settings/rules"), InvalidPath),
        (a_call("get", "\ud800"), InvalidPath),
        (a_call("get", limit_to_first=0, order_by="$key"), InvalidQuery),
        (a_call("get", limit_to_first=True, order_by="$key"), InvalidQuery),
        (a_call("get", equal_to=math.nan, order_by="a"), InvalidQuery),
        (a_call("get", limit=1), TypeError),
        (a_call("get", timeout=0), InvalidQuery),
        (a_call("get", shallow=True, export=True), InvalidQuery),
        (a_call("push", ".priority", 1), InvalidPath),
        (a_call("put", "a", {"x": math.nan}), InvalidData),
        (a_call("put", "a", [math.inf]), InvalidData),
        (a_call("put", "a", 10**400), InvalidData),
        (a_call("put", "a", {1: "x"}), InvalidData),
        (a_call("put", "a", {"x": "\ud800"}), InvalidData),
        (a_call("put", "a", {"x": b"bytes"}), InvalidData),
        (a_call("put", "a", datetime.datetime(2026, 1, 1)), InvalidData),
        (a_call("put", "a", {"a/b": 1}), InvalidData),
        (a_call("put", "a", "x" * 20_000_000), TooLarge),
        (a_call("patch", "a", {"x": 1, "x/y": 2}), InvalidData),
        (a_call("watch", "a/.priority"), InvalidPath),
    ],
)
@pytest_twisted.ensureDeferred
async def test_what_cannot_be_is_refused_with_nothing_written(
    tmp_path: pathlib.Path, call: Callable[[LocalDatabase], Any], error: type[Exception]
) -> None:
    async with running(settings_in(tmp_path)) as service:
        database = service.database("app")
        with pytest.raises(error):
            await call(database)
        assert await database.get() is None


@pytest_twisted.ensureDeferred
async def test_circular_and_deep_values_are_refused(tmp_path: pathlib.Path) -> None:
    circular: dict[str, Any] = {}
    circular["again"] = circular
    async with running(settings_in(tmp_path)) as service:
        with pytest.raises(InvalidData, match="nested deeper"):
            await service.database("app").put("a", circular)


@pytest_twisted.ensureDeferred
async def test_large_integers_and_tuples_are_taken(tmp_path: pathlib.Path) -> None:
    async with running(settings_in(tmp_path)) as service:
        database = service.database("app")
        assert await database.put("a", (2**63 - 1, 2**70)) == [2**63 - 1, float(2**70)]


@pytest_twisted.ensureDeferred
async def test_no_value_is_shared_with_the_program(tmp_path: pathlib.Path) -> None:
    async with running(settings_in(tmp_path)) as service:
        database = service.database("app")
        value: dict[str, Any] = {"x": {"y": 1}}
        writing = Deferred.fromCoroutine(database.put("a", value))
        value["x"]["y"] = 2
        echo = await writing
        echo["x"]["y"] = 3
        first = await database.get("a")
        first["x"]["y"] = 4
        assert await database.get("a") == {"x": {"y": 1}}
        with pytest.raises(ConditionFailed) as raised:
            await database.put("a", 1, if_match="other")
        current: Any = raised.value.current
        current["x"]["y"] = 5
        assert await database.get("a") == {"x": {"y": 1}}


@pytest_twisted.ensureDeferred
async def test_a_condition_fails_with_the_present_value_and_its_tag(
    tmp_path: pathlib.Path,
) -> None:
    async with running(settings_in(tmp_path)) as service:
        database = service.database("app")
        nothing = await database.get_with_etag("a")
        assert nothing.value is None
        await database.put("a", 1, if_match=nothing.etag)
        with pytest.raises(ConditionFailed) as raised:
            await database.remove("a", if_match=nothing.etag)
        assert (raised.value.current, raised.value.tag) == (
            1,
            (await database.get_with_etag("a")).etag,
        )
        await database.patch("a", {"b": 1}, if_match=raised.value.tag)
        assert await database.get("a") == {"b": 1}


@pytest_twisted.ensureDeferred
async def test_rules_bind_whoever_is_not_an_admin(tmp_path: pathlib.Path) -> None:
    async with running(settings_in(tmp_path)) as service:
        admin = service.database("app")
        ada = admin.as_auth({"uid": "ada"})
        await ada.put("users/ada", {"age": 36})
        assert await ada.get("users/ada/age") == 36
        for refused in (
            ada.put("users/ada/age", "old"),
            ada.get("users/alan"),
            admin.as_auth(None).get("users/ada"),
            service.database("app", auth=None).put("public", 1),
        ):
            with pytest.raises(PermissionDenied):
                await refused
        assert await admin.as_auth(None).get("public") is None
        assert await ada.as_auth(ADMIN).get() == {"users": {"ada": {"age": 36}}}


@pytest_twisted.ensureDeferred
async def test_no_way_of_selecting_passes_a_rule_unseen(tmp_path: pathlib.Path) -> None:
    async with running(settings_in(tmp_path)) as service:
        await service.database("app").put("beginning", {"a": 1, "b": 2, "c": 3})
        ada = service.database("app").as_auth({"uid": "ada"})
        found = await ada.get("beginning", order_by="$key", limit_to_first=2)
        assert found == {"a": 1, "b": 2}
        ways: list[dict[str, Any]] = [
            {"order_by": "$key", "start_after": "a"},
            {"order_by": "$value", "start_after": 1},
            {"order_by": "none", "start_after": (None, "a")},
            {"where": {"$key": {">": "a"}}},
        ]
        for way in ways:
            with pytest.raises(PermissionDenied):
                await ada.get("beginning", limit_to_first=2, **way)
            with pytest.raises(PermissionDenied):
                async with ada.watch("beginning", limit_to_first=2, **way) as events:
                    await anext(events)


@pytest_twisted.ensureDeferred
async def test_transactions_of_many_add_up(tmp_path: pathlib.Path) -> None:
    async with running(settings_in(tmp_path)) as service:
        database = service.database("app")

        async def add(value: int | None) -> int:
            return (value or 0) + 1

        adding = [Deferred.fromCoroutine(database.transaction("n", add)) for _ in range(50)]
        assert sorted(await gatherResults(adding)) == list(range(1, 51))
        assert await database.get("n") == 50


@pytest_twisted.ensureDeferred
async def test_nobody_starves_in_transactions_under_contention(tmp_path: pathlib.Path) -> None:
    async with running(settings_in(tmp_path)) as service:
        database = service.database("app")

        async def add_often() -> None:
            for _ in range(100):
                await database.transaction("n", lambda value: (value or 0) + 1, tries=26)

        await gatherResults([Deferred.fromCoroutine(add_often()) for _ in range(8)])
        assert await database.get("n") == 800


@pytest_twisted.ensureDeferred
async def test_a_transaction_can_be_aborted_and_ends_after_its_tries(
    tmp_path: pathlib.Path,
) -> None:
    async with running(settings_in(tmp_path)) as service:
        database = service.database("app")
        await database.put("a", {"n": 1})

        def change_and_abort(value: dict[str, int]) -> Any:
            value["n"] = 2
            return ABORT

        assert await database.transaction("a", change_and_abort) == {"n": 1}
        tried = []

        async def interfere(value: Any) -> Any:
            tried.append(value)
            await database.put("a", len(tried))
            return 0

        with pytest.raises(ConditionFailed):
            await database.transaction("a", interfere, tries=3)
        assert tried == [{"n": 1}, 1, 2]
        with pytest.raises(ZeroDivisionError):
            await database.transaction("a", lambda value: value // 0)
        assert await database.get("a") == 3


@pytest_twisted.ensureDeferred
async def test_a_cancelled_write_is_still_done(tmp_path: pathlib.Path) -> None:
    async with running(settings_in(tmp_path, engine="sqlite")) as service:
        database = service.database("app")
        await database.put("a", 0)
        writing = Deferred.fromCoroutine(database.put("a", 1))
        writing.cancel()
        with pytest.raises(CancelledError):
            await writing
        await database.put("b", 2)
        assert await database.get() == {"a": 1, "b": 2}
        (used,) = service.catalog.names(service.catalog.find(database.name).project)
        assert service.catalog.find(used).requests == 0


@pytest_twisted.ensureDeferred
async def test_large_values_are_written_in_pieces_and_read_whole(tmp_path: pathlib.Path) -> None:
    value = {f"k{number:05}": "x" * 100 for number in range(20_000)}
    async with running(settings_in(tmp_path, engine="sqlite")) as service:
        database = service.database("app")
        assert await database.put("large", value) == value
        assert await database.get("large") == value
        tagged = await database.get_with_etag("large")
        await database.put("large/k00000", 1, if_match="*")
        with pytest.raises(ConditionFailed):
            await database.put("large", 1, if_match=tagged.etag)


@pytest_twisted.ensureDeferred
async def test_data_survives_a_restart_and_databases_are_apart(tmp_path: pathlib.Path) -> None:
    settings = settings_in(tmp_path, engine="sqlite")
    async with running(settings) as service:
        await service.database("app").put("a", 1)
        await service.database("app", "eu").put("a", 2)
    async with running(settings) as service:
        assert await service.database("app").get("a") == 1
        assert await service.database("app", "eu").get("a") == 2


@pytest_twisted.ensureDeferred
async def test_a_service_that_does_not_run_serves_nothing(tmp_path: pathlib.Path) -> None:
    async with running(settings_in(tmp_path, engine="sqlite")) as service:
        database = service.database("app")
    stopped = [database, TreeService(settings_in(tmp_path)).database("app")]
    for each in stopped:
        for refused in (each.get(), each.put("a", 1), anext(each.watch())):
            with pytest.raises(Unavailable):
                await refused


@pytest_twisted.ensureDeferred
async def test_unknown_projects_and_databases(tmp_path: pathlib.Path) -> None:
    settings = settings_in(tmp_path, project={"databases": ["default"]})
    async with running(settings) as service:
        for names in (("other", "default"), ("app", "../../etc"), ("APP", "default")):
            with pytest.raises(UnknownDatabase):
                service.database(*names)
        database = service.database("app", "eu")
        for refused in (database.get(), database.put("a", 1), anext(database.watch())):
            with pytest.raises(UnknownDatabase):
                await refused
        with pytest.raises(PermissionDenied):
            await database.as_auth(None).get("users")


@dataclasses.dataclass
class Record:
    """What is not JSON."""

    age: int


def test_auth_must_be_json(tmp_path: pathlib.Path) -> None:
    database = TreeService(settings_in(tmp_path)).database("app")
    with pytest.raises(InvalidData):
        database.as_auth({"uid": {1}})  # type: ignore[dict-item]
    with pytest.raises(TypeError):
        database.as_auth("ada")  # type: ignore[arg-type]


@pytest_twisted.ensureDeferred
async def test_the_program_itself_has_no_rates(tmp_path: pathlib.Path) -> None:
    rates = {"requests_per_uid": 1, "requests_per_project": 1, "writes_per_uid": 1}
    settings = settings_in(tmp_path, rates={"burst_s": 1.0, **rates})
    async with running(settings) as service:
        ada = service.database("app", auth={"uid": "ada"})
        for number in range(5):
            await ada.put("users/ada/age", number)
            assert await ada.get("users/ada/age") == number
