"""How many requests, errors and commits there were in each of the last seconds."""

from __future__ import annotations

import pathlib
from typing import Any

import pytest

from tests.web.inspected_server import InspectedServer, send, token_of
from tests.web.test_freed_at_the_end import open_socket
from treedbd.web.series import COUNTS, MAX_RECORDED, RECORDED_S, STEPS

PLACE = "/.inspect/activity.json"


@pytest.fixture
def server(tmp_path: pathlib.Path) -> InspectedServer:
    return InspectedServer(tmp_path)


def series(server: InspectedServer, project: str = "demo") -> dict[str, Any]:
    """Return the series that an admin is shown."""
    shown: dict[str, Any] = server.ask(PLACE, project)["series"]
    return shown


def sums(shown: dict[str, Any]) -> dict[str, int]:
    """Return what was counted in all seconds together."""
    return {name: sum(shown[name]) for name in COUNTS}


def test_nothing_is_recorded_before_it_is_asked_for(server: InspectedServer) -> None:
    server.write("PUT", "/open", 1)
    shown = series(server)
    assert (shown["step_s"], shown["since"]) == (1, None)
    assert all(shown[name] == [0] * STEPS for name in COUNTS)
    assert shown["commit_p50_ms"] == shown["commit_p99_ms"] == [None] * STEPS


def test_each_second_has_what_happened_in_it(
    server: InspectedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    series(server)
    server.ask("/.inspect/databases.json")  # which only looks
    server.pass_s(monkeypatch, 1)
    server.write("PUT", "/open/a", 1)
    server.write("PUT", "/open/b", 1)
    server.pass_s(monkeypatch, 1)
    server.request("PUT", "/own/a.json", b"1")
    server.request("GET", "/open.json?orderBy=age")
    server.request("GET", "/open.json", host="shop.localhost")
    server.pass_s(monkeypatch, 1)
    shown = series(server)
    assert shown["requests"][-3:] == [0, 2, 2]
    assert shown["errors"][-3:] == [0, 0, 1]
    assert shown["denied"][-3:] == [0, 0, 1]
    assert shown["writes"][-3:] == [0, 2, 0]
    assert shown["commits"][-3:] == [0, 2, 0]
    assert shown["commit_p50_ms"][-3::2] == [None, None]
    assert 0 < shown["commit_p50_ms"][-2] <= shown["commit_p99_ms"][-2]
    assert shown["since"] == "2023-11-14T22:13:19.500Z"
    assert shown["to"] == "2023-11-14T22:13:22.500Z"


def test_denials_and_writes_of_sockets_are_counted(
    server: InspectedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    peer = open_socket(server)
    series(server)
    server.pass_s(monkeypatch, 1)
    send(server, peer, 1, "p", {"p": "open/a", "d": 1})
    send(server, peer, 2, "p", {"p": "own/a", "d": 1})
    send(server, peer, 3, "o", {"p": "own/a", "d": 1})
    server.pass_s(monkeypatch, 1)
    shown = series(server)
    assert (shown["denied"][-1], shown["writes"][-1], shown["errors"][-1]) == (2, 1, 0)


def test_a_request_with_a_bad_token_is_an_error_and_no_denial(
    server: InspectedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    series(server)
    server.request("GET", "/open.json?auth=nonsense")
    server.pass_s(monkeypatch, 1)
    shown = series(server)
    assert (sum(shown["errors"]), sum(shown["denied"])) == (1, 0)


def test_nothing_is_recorded_after_a_minute_in_which_nothing_was_asked(
    server: InspectedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    activity, statistics = server.resource._admin._activity, server.catalog.statistics
    series(server)
    assert activity.see is not None
    assert statistics.time_commit is not None
    server.pass_s(monkeypatch, RECORDED_S + 2)
    assert activity.see is None
    assert statistics.time_commit is None
    assert server.resource._refuse.watchers == []
    assert server.resource.realtime.sockets.denied == []
    server.write("PUT", "/open", 1)
    assert sums(series(server)) == dict.fromkeys(COUNTS, 0)


def test_the_last_seconds_are_shown(
    server: InspectedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    series(server)
    for _ in range(STEPS // 30 + 1):
        server.request("GET", "/open.json")
        server.pass_s(monkeypatch, 30)
        shown = series(server)
    assert len(shown["requests"]) == STEPS
    assert sum(shown["requests"]) == STEPS // 30


def test_only_so_many_projects_are_recorded(server: InspectedServer) -> None:
    recorder = server.inspection.series
    for number in range(MAX_RECORDED + 5):
        recorder.of_this_process(f"p{number}")
    assert len(recorder._recorded) == MAX_RECORDED
    assert f"p{MAX_RECORDED + 4}" in recorder._recorded


def test_the_series_of_several_processes_are_added_up(
    server: InspectedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    last = 1_700_000_000
    monkeypatch.setattr("tests.web.tree_server.WALL", last + 0.7)
    first = [(last - 1, [1, 0, 0, 1, 1], [2.0, 3.0]), (last, [5, 1, 1, 1, 1], [4.0, 5.0])]
    second = [(last, [10, 0, 1, 2, 1], [3.0, 6.0]), (last - STEPS, [9] * 5, None)]
    shown: Any = server.inspection.series.show([first, second, []])
    assert shown["requests"][-2:] == [1, 15]
    assert shown["denied"][-2:] == [0, 2]
    assert shown["commit_p50_ms"][-2:] == [2.0, 4.0]
    assert shown["commit_p99_ms"][-2:] == [3.0, 6.0]
    assert sums(shown)["requests"] == 16


def test_the_other_processes_are_asked(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "other").mkdir()
    first, second = InspectedServer(tmp_path), InspectedServer(tmp_path / "other")

    async def ask(question: bytes) -> dict[int, bytes]:
        return {1: await second.inspection.answer(question, 1)}

    first.inspection.ask_others = ask
    series(first)
    second.request("GET", "/open.json")
    for wall in (1_700_000_000.5, 1_700_000_001.5):
        monkeypatch.setattr("tests.web.tree_server.WALL", wall)
        first.clock.advance(1)
        second.clock.advance(1)
    assert sum(series(first)["requests"]) == 1


def test_users_are_not_shown_the_series(server: InspectedServer) -> None:
    assert server.request("GET", f"{PLACE}?auth={token_of(uid='ada')}").status == 403
