"""How requests are counted, which are the slowest, and what an admin is shown of them."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import jwt
import pytest
from twisted.internet.defer import Deferred, succeed
from twisted.internet.task import Clock

from tests.access import secret_of
from tests.web.tree_server import SETTINGS, TreeServer, make_verifier
from treedbd.database.data_directory import stored_bytes
from treedbd.http1.parser import HeadMemory
from treedbd.http1.registry import ServerOptions
from treedbd.http1.request import shown_path
from treedbd.http1.server import Http1Factory
from treedbd.names import DatabaseName
from treedbd.web import activity as module
from treedbd.web.activity import SLOW_S, SLOWEST, Activity, ProjectActivity, add_up
from treedbd.web.request import Question

PLACE = "/.inspect/activity.json"


class Counted(TreeServer):
    """A server whose requests are counted."""

    def __init__(self, folder: pathlib.Path) -> None:
        verifiers = {each: make_verifier(secret_of(each)) for each in ("demo", "shop")}
        super().__init__(folder, verifier=verifiers.get)
        self.activity = Activity(self.clock)
        self.factory = Http1Factory(
            self.resource, SETTINGS.limits, self.clock, ServerOptions(activity=self.activity)
        )


@pytest.fixture
def server(tmp_path: pathlib.Path) -> Counted:
    return Counted(tmp_path)


def test_what_was_answered_is_counted_when_the_last_connection_has_gone(server: Counted) -> None:
    peer = server.get("/a.json")
    server.clock.advance(0)
    peer.disconnect()
    assert len(server.activity.answered) == 1
    server.pass_time(2)
    assert len(server.activity.answered) == 0
    assert server.activity.of_this_process("demo").totals["demo"][0] == 1


def question_of(server: Counted, target: str, host: str = "demo.localhost") -> HeadMemory:
    """Return what is remembered of a request."""
    server.request("GET", target, host=host)
    (memory, *_) = server.activity.answered[-1]
    assert isinstance(memory.question, Question)
    server.activity.count()
    return memory


def test_the_requests_of_a_project_are_counted_by_database(server: Counted) -> None:
    for host in ("demo.localhost", "demo.localhost", "eu--demo.localhost", "shop.localhost"):
        server.request("PUT", "/a.json", b"1", host=host)
    server.request("GET", "/a", host="demo.localhost")  # names no place, so no database is used
    counted = server.activity.of_this_process("demo").totals
    assert {label: requests for label, (requests, _) in counted.items()} == {
        "demo": 2,
        "eu--demo": 1,
    }
    assert all(seconds > 0 for _, seconds in counted.values())


def test_requests_are_counted_each_second_while_there_are_connections(server: Counted) -> None:
    peer = server.connect()
    peer.send(b"GET /a.json HTTP/1.1\r\nHost: demo.localhost\r\n\r\n")
    assert len(server.activity.answered) == 1
    server.clock.advance(2)
    assert not server.activity.answered
    assert server.activity.of_this_process("demo").totals["demo"][0] == 1


def test_a_stream_is_a_request_but_its_time_is_not_counted(server: Counted) -> None:
    server.open_stream("/a.json")
    server.resource.streams.end()
    shown = server.activity.of_this_process("demo")
    assert shown.totals == {"demo": (1, 0.0)}
    assert shown.slowest == []


def test_the_slowest_requests_are_kept_slowest_first(server: Counted) -> None:
    memory = question_of(server, "/a/b.json?auth=")
    for number in range(SLOWEST * 3):
        server.activity.answered.append((memory, b"GET", 200, 10.0 + number % (SLOWEST * 2), 0, 0))
    slowest = server.activity.of_this_process("demo").slowest
    assert len(slowest) == SLOWEST
    seconds = [each[0] for each in slowest]
    assert seconds == sorted(seconds, reverse=True)
    assert seconds[0] == 10.0 + SLOWEST * 2 - 1
    assert slowest[0][2:] == ("demo", "GET", "/a/b", 200)


def test_only_the_paths_that_are_kept_are_made_ready_to_be_shown(
    server: Counted, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = question_of(server, "/a/b.json")
    shown: list[bytes] = []

    def noted(path: bytes) -> str:
        shown.append(path)
        return shown_path(path)

    monkeypatch.setattr(module, "shown_path", noted)
    for number in range(SLOWEST * 10):
        server.activity.answered.append((memory, b"GET", 200, 10.0 + number, 0, 0))
    server.activity.count()
    server.activity.count()
    assert len(shown) == SLOWEST
    assert {each[4] for each in server.activity.of_this_process("demo").slowest} == {"/a/b"}


def test_what_was_slow_is_forgotten_after_two_minutes(server: Counted) -> None:
    memory = question_of(server, "/a.json")
    server.activity.answered.append((memory, b"GET", 200, 99.0, 0, 0))
    server.activity.count()
    ages = []
    for _ in range(3):
        slowest = server.activity.of_this_process("demo").slowest
        ages += [each[1] for each in slowest if each[0] == 99.0]
        server.clock.advance(SLOW_S)
        server.activity.count()
    assert ages == [0.0, SLOW_S]


def test_what_was_slow_is_forgotten_also_if_nothing_was_counted_since(server: Counted) -> None:
    memory = question_of(server, "/a.json")
    server.activity.answered.append((memory, b"GET", 200, 99.0, 0, 0))
    server.activity.count()
    server.clock.advance(2 * SLOW_S + 1)
    assert not [each for each in server.activity.of_this_process("demo").slowest if each[0] == 99.0]


def test_a_long_path_and_a_token_in_one_are_not_kept(server: Counted) -> None:
    token = jwt.encode({"uid": "ada"}, secret_of("demo"), "HS256").replace(".", "%2E")
    server.request("GET", f"/{'long' * 100}.json")
    server.request("GET", f"/{token.partition('%')[0]}.json")
    paths = [each[4] for each in server.activity.of_this_process("demo").slowest]
    assert max(map(len, paths)) == module.MAX_PATH + 1
    assert not [path for path in paths if "eyJ" in path]


def test_of_a_long_path_no_more_than_is_shown_is_looked_through(
    server: Counted, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[bytes] = []

    def noted(path: bytes) -> str:
        looked.append(path)
        return shown_path(path)

    monkeypatch.setattr(module, "shown_path", noted)
    server.request("GET", f"/{'/'.join(['eyJ' + 'x' * 97] * 31)}.json")
    (slow,) = server.activity.of_this_process("demo").slowest
    assert [len(path) for path in looked] == [2 * 101]
    assert slow[4] == "/…/……"


def test_databases_with_few_requests_make_room_for_others(
    server: Counted, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_DATABASES", 4)
    for _ in range(3):
        server.request("GET", "/a.json", host="busy--demo.localhost")
    for number in range(50):
        server.request("GET", "/a.json", host=f"d{number}--demo.localhost")
        server.activity.count()
    counted = server.activity.of_this_process("demo").totals
    assert counted["busy--demo"][0] == 3
    assert "d49--demo" in counted
    assert len(counted) <= 4


def test_what_several_processes_have_counted_is_added_up() -> None:
    slow = (2.0, 1.0, "demo", "GET", "/a", 200)
    slower = (3.0, 5.0, "eu--demo", "PUT", "/b", 200)
    first = ProjectActivity(10.0, {"demo": (3, 0.5)}, [slow])
    second = ProjectActivity(20.0, {"demo": (1, 0.25), "eu--demo": (2, 1.0)}, [slower])
    assert add_up([first, second]) == ProjectActivity(
        20.0, {"demo": (4, 0.75), "eu--demo": (2, 1.0)}, [slower, slow]
    )


def test_the_other_processes_are_asked() -> None:
    asked: list[str] = []

    def ask(project: str) -> Deferred[Any]:
        asked.append(project)
        return succeed([ProjectActivity(1.0, {"demo": (7, 0.0)}, [])])

    activity = Activity(Clock(), ask_others=ask)
    found: list[ProjectActivity] = []
    Deferred.fromCoroutine(activity.of("demo")).addCallback(found.append)
    assert asked == ["demo"]
    assert found[0].totals == {"demo": (7, 0.0)}


def test_an_admin_is_shown_the_databases_of_his_project(tmp_path: pathlib.Path) -> None:
    server = Counted(tmp_path)
    server.resource._admin._activity = server.activity
    server.request("PUT", "/a.json", b"1")
    server.request("PUT", "/a.json", b"1", host="eu--demo.localhost")
    server.request("PUT", "/a.json", b"1", host="shop.localhost")
    server.open_stream("/a.json")
    token = jwt.encode({"uid": "x", "admin": True}, secret_of("demo"), "HS256")
    shown = json.loads(server.request("GET", f"{PLACE}?auth={token}").body)
    assert [each["name"] for each in shown["databases"]] == ["demo", "eu--demo"]
    demo, eu = shown["databases"]
    assert (demo["requests"], demo["streams"], demo["bytes"]) == (1, 1, None)
    assert (eu["requests"], eu["streams"], eu["sockets"]) == (1, 0, 0)
    assert {each["name"] for each in shown["slowest"]} == {"demo", "eu--demo"}
    assert set(shown["slowest"][0]) == {"ms", "method", "name", "path", "status", "ago_s"}


@pytest.mark.parametrize(
    ("claims", "status"), [({"uid": "ada"}, 403), (None, 401), ({"uid": "a", "admin": True}, 200)]
)
def test_only_an_admin_is_shown_the_activity(
    server: Counted, claims: dict[str, Any] | None, status: int
) -> None:
    token = "" if claims is None else jwt.encode(claims, secret_of("demo"), "HS256")
    assert server.request("GET", f"{PLACE}?auth={token}").status == status
    assert server.request("PUT", f"{PLACE}?auth={token}", b"1").status == 405


def test_the_bytes_of_a_database_are_those_of_all_its_files(tmp_path: pathlib.Path) -> None:
    (tmp_path / "demo").mkdir()
    for name, size in (("eu.shelf", 10), ("eu.shelf-wal", 5), ("europe.shelf", 100)):
        (tmp_path / "demo" / name).write_bytes(bytes(size))
    names = [DatabaseName("none", "eu"), DatabaseName("demo", "eu"), DatabaseName("demo", "us")]
    assert stored_bytes(tmp_path, names) == [0, 15, 0]
