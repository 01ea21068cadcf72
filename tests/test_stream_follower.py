"""A follower goes on where it was cut, and shows what it received."""

from __future__ import annotations

import pathlib
from collections.abc import Iterator

import pytest

from tests.daemon import Daemon
from tests.history import BadHistory
from tests.rest import Client
from tests.sse import Frame
from tests.stream_follower import Event, Follower

TARGET = "/watched.json?resume=true"


@pytest.fixture
def client(daemon: Daemon) -> Iterator[Client]:
    with Client(daemon) as connected:
        yield connected


def test_a_follower_applies_puts_and_patches(daemon: Daemon, client: Client) -> None:
    with Follower([daemon.http], TARGET) as follower:
        client.put("/watched/a.json", 1)
        assert client.request("PATCH", "/watched.json", '{"b":2,"c":{"d":3}}').status == 200
        follower.await_child("b", 2)
        assert follower.replica.equals(client.get("/watched.json"))
        kinds = [(event.kind, event.path, event.sequence) for event in follower.events]
    assert kinds == [("put", "/", 0), ("put", "/a", 1), ("patch", "/", 2)]


def test_a_follower_that_is_cut_goes_on_at_the_next_url(daemon: Daemon, client: Client) -> None:
    urls = [daemon.http, daemon.http.replace("127.0.0.1", "localhost")]
    with Follower(urls, TARGET) as follower:
        for number in range(1, 6):
            client.put("/watched/a.json", number)
            follower.await_child("a", number)
            follower.cut()
        client.put("/watched/a.json", 6)
        follower.await_child("a", 6)
        assert follower.connections >= 5
        assert {event.connection for event in follower.events} >= {0, follower.connections}
        sequences = [event.sequence for event in follower.events]
    assert sequences == list(range(7))


def test_a_follower_waits_for_a_daemon_that_starts_again(daemon: Daemon, client: Client) -> None:
    urls = [daemon.http]
    with Follower(urls, TARGET) as follower:
        client.put("/watched/a.json", 1)
        follower.await_child("a", 1)
        daemon.kill()
        daemon.start()
        urls[0] = daemon.http
        with Client(daemon) as other:
            other.put("/watched/a.json", 2)
        follower.await_child("a", 2)
        assert [event.sequence for event in follower.events] == [0, 1, 2]


def test_a_follower_whose_position_is_not_known_starts_again(tmp_path: pathlib.Path) -> None:
    with Daemon(tmp_path, arguments=["--engine", "memory"]) as daemon:
        urls = [daemon.http]
        with Follower(urls, TARGET) as follower:
            daemon.request("PUT", "/watched/a.json", "1")
            follower.await_child("a", 1)
            daemon.kill()
            daemon.start()
            urls[0] = daemon.http
            daemon.request("PUT", "/watched/b.json", "1")
            follower.await_child("b", 1)
            assert follower.replica.tree == {"b": 1}
            assert sum(event.is_whole for event in follower.events) == 2


def test_what_ends_a_follower_is_raised_to_those_who_wait(daemon: Daemon) -> None:
    with pytest.raises(BadHistory, match="without a position"):
        Follower([daemon.http], "/watched.json")


def test_the_position_of_an_event_is_in_its_identifier() -> None:
    data = '{"path":"/a","data":1}'
    event = Event.of(Frame("put", data, "42-9f3ac1d2e4b5a697-1"), 3)
    assert (event.sequence, event.part, event.path, event.value) == (42, 1, "/a", 1)
    assert Event.of(Frame("put", data, "42-9f3ac1d2e4b5a697"), 3).part is None
    assert Event.of(Frame("put", data, "0"), 3).sequence == 0


@pytest.mark.parametrize(
    "frame", [Frame("put", "{}", None), Frame("put", "{}", "x1"), Frame("cancel", "null", "1")]
)
def test_an_event_without_a_position_is_wrong(frame: Frame) -> None:
    with pytest.raises(BadHistory, match="without a position"):
        Event.of(frame, 0)
