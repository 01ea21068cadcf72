"""Streams in memory: what is written to a connection, when, and in how many writes."""

from __future__ import annotations

import errno
import io
import json
import pathlib
import tempfile
from typing import Any

import pytest

from tests.http1.peer import parse_replies
from tests.web.tree_server import BUFFER_BYTES, StreamClient, TreeServer, patch, put
from treedbd.database.watchers import ReadGrants
from treedbd.names import DatabaseName
from treedbd.rules.ruleset import DENY
from treedbd.tree.window import Window
from treedbd.web.write import LARGE_BODY_BYTES

LONG_BYTES = 3 * 1_048_576


@pytest.fixture
def server(tmp_path: pathlib.Path) -> TreeServer:
    return TreeServer(tmp_path)


def test_a_batch_is_one_write_to_each_stream(server: TreeServer) -> None:
    clients = [server.open_stream("/a.json") for _ in range(3)]
    for client in clients:
        assert client.read_events() == [put("/", None)]
        client.peer.transport.writes = 0
    for number in range(5):
        server.begin_write("PUT", f"/a/{number}", number)
    server.clock.advance(0)
    for client in clients:
        assert client.read_events() == [put(f"/{number}", number) for number in range(5)]
        assert client.peer.transport.writes == 1


def test_the_first_value_comes_with_the_head_in_one_write(server: TreeServer) -> None:
    client = server.open_stream("/a.json")
    assert client.peer.transport.writes == 1
    assert client.read_events() == [put("/", None)]


def test_a_silent_stream_gets_a_keep_alive_unless_its_reader_is_paused(
    server: TreeServer,
) -> None:
    client, paused = server.open_stream("/a.json"), server.open_stream("/a.json")
    for each in (client, paused):
        each.read_events()
    paused.producer.pauseProducing()
    server.pass_time(29)
    assert client.read_events() == []
    server.pass_time(1)
    assert client.read_events() == [("keep-alive", "null")]
    paused.producer.resumeProducing()
    assert paused.read_events() == []
    server.write("PUT", "/a", 1)
    server.pass_time(29)
    assert client.read_events() == [put("/", 1)]
    server.pass_time(1)
    assert client.read_events() == [("keep-alive", "null")]


def test_a_few_events_wait_for_a_paused_reader(server: TreeServer) -> None:
    client = server.open_stream("/a.json")
    client.read_events()
    client.producer.pauseProducing()
    for number in range(10):
        server.write("PUT", "/a", number)
    assert client.read_events() == []
    client.producer.resumeProducing()
    assert client.read_events() == [put("/", number) for number in range(10)]


@pytest.mark.parametrize(
    ("query", "selected"),
    [("", {"n": 49, "z": 1}), ("?orderBy=%22$key%22&limitToLast=1", {"z": 1})],
)
def test_after_too_many_events_a_paused_reader_gets_the_present_value_and_later_events(
    server: TreeServer, query: str, selected: Any
) -> None:
    server.write("PUT", "/a", {"z": 1})
    client = server.open_stream(f"/a.json{query}")
    client.read_events()
    client.producer.pauseProducing()
    server.write("PUT", "/a/zz", "x" * BUFFER_BYTES)
    for number in range(50):
        server.write("PUT", "/a/n", number)
    server.write("DELETE", "/a/zz", None)
    assert server.resource.streams.overflowed == 1
    client.producer.resumeProducing()
    assert client.read_events() == [put("/", selected)]
    server.write("PUT", "/a/z", 3)
    assert client.read_events() == [put("/z", 3)]


@pytest.mark.parametrize("inner", ["x" * 50, "x" * BUFFER_BYTES])
def test_what_a_large_write_has_set_below_comes_after_what_waits(
    server: TreeServer, inner: str
) -> None:
    client = server.open_stream("/a/b.json")
    client.read_events()
    client.producer.pauseProducing()
    server.write("PUT", "/a/b", 1)
    server.write("PUT", "/a", {"b": inner, "c": "x" * LARGE_BODY_BYTES})
    server.write("PUT", "/a/b", 3)
    client.producer.resumeProducing()
    told = (1, inner, 3) if len(inner) < BUFFER_BYTES else (3,)
    assert client.read_events() == [put("/", each) for each in told]


def test_a_reader_that_does_not_read_for_too_long_is_dropped(server: TreeServer) -> None:
    client, other = server.open_stream("/a.json"), server.open_stream("/a.json")
    client.producer.pauseProducing()
    server.pass_time(59)
    assert not client.peer.is_dropped
    server.pass_time(1)
    assert client.peer.is_dropped
    assert not other.peer.is_dropped
    assert len(server.resource.streams) == 1


def test_a_reader_that_reads_again_is_not_dropped(server: TreeServer) -> None:
    client = server.open_stream("/a.json")
    client.producer.pauseProducing()
    server.pass_time(59)
    client.producer.resumeProducing()
    server.pass_time(10)
    assert not client.peer.is_dropped


def write_long_value(server: TreeServer) -> None:
    """Write a value that is too long to be sent at once."""
    for number in range(12):
        server.write("PUT", f"/long/{number}", "x" * (LONG_BYTES // 12))


def test_a_long_value_is_sent_at_the_speed_of_the_reader(server: TreeServer) -> None:
    write_long_value(server)
    client = server.open_stream("/long.json", room=LONG_BYTES // 2)
    server.clock.advance(0)
    sent = len(client.peer.transport.value())
    assert 0 < sent < LONG_BYTES
    server.write("PUT", "/long/12", "later")
    assert len(client.peer.transport.value()) == sent
    client.peer.transport.room = None
    client.producer.resumeProducing()
    server.clock.advance(0)
    (kind, data), *rest = client.read_events()
    assert kind == "put"
    assert [len(part) for part in json.loads(data)["data"]] == [LONG_BYTES // 12] * 12
    assert rest == [put("/12", "later")]


def open_stream_slowly(server: TreeServer) -> StreamClient:
    """Open a stream whose long value is still being rendered."""
    write_long_value(server)
    server.clock.lag = 0.001
    client = server.open_stream("/long.json")
    assert client.peer.transport.value() == b""
    return client


def test_a_write_while_a_long_value_is_rendered_is_sent_after_it(server: TreeServer) -> None:
    client = open_stream_slowly(server)
    server.begin_write("PUT", "/long/12", "later")
    server.clock.advance(0)
    first, second = client.read_events()
    assert len(json.loads(first[1])["data"]) == 12
    assert second == put("/12", "later")


def test_a_stream_whose_client_disconnects_during_rendering_is_removed(server: TreeServer) -> None:
    client = open_stream_slowly(server)
    assert len(server.resource.streams) == 1
    waiting = len(server.clock.getDelayedCalls())
    client.peer.disconnect()
    assert len(server.resource.streams) == 0
    # The next slice, and the tick of the registry, were cancelled.
    assert len(server.clock.getDelayedCalls()) == waiting - 2


def test_a_full_disk_during_rendering_is_a_503(
    server: TreeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    class FullFile(io.BytesIO):
        def write(self, _: Any) -> int:
            raise OSError(errno.ENOSPC, "No space left on device")

    write_long_value(server)
    monkeypatch.setattr(tempfile, "TemporaryFile", FullFile)
    client = server.open_stream("/long.json")
    server.clock.advance(0)
    (reply,) = client.peer.read()
    assert reply.status == 503
    assert json.loads(reply.body)["error"] == "unavailable"
    assert len(server.resource.streams) == 0


def test_a_stream_that_ends_during_rendering_ends_cleanly(server: TreeServer) -> None:
    client = open_stream_slowly(server)
    server.resource.streams.end()
    server.clock.lag = 0.0
    server.clock.pump([0.01] * 10)
    (reply,) = client.peer.read()
    assert (reply.status, reply.body) == (200, b"")


def test_a_stream_that_ends_during_a_long_frame_ends_after_it_for_the_first_reason(
    server: TreeServer,
) -> None:
    client = server.open_stream("/a.json")
    client.read_events()
    client.peer.transport.room = LONG_BYTES // 2
    server.write("PUT", "/a", "x" * LONG_BYTES)
    server.resource.streams.recheck(lambda *_: False)
    server.resource.streams.end()
    client.peer.transport.room = None
    client.producer.resumeProducing()
    server.clock.advance(0)
    assert [kind for kind, _ in client.read_events()] == ["put", "auth_revoked"]
    assert len(server.resource.streams) == 0


@pytest.mark.parametrize("version", ["1.0", "1.1"])
def test_a_stream_is_not_chunked_and_ends_with_its_connection(
    server: TreeServer, version: str
) -> None:
    peer = server.connect()
    head = (
        f"GET /a.json HTTP/{version}\r\nHost: demo.localhost\r\nAccept: text/event-stream\r\n\r\n"
    )
    peer.send(head.encode())
    server.write("PUT", "/a", 1)
    server.write("PUT", "/a", 2)
    server.resource.streams.end()
    sent = peer.transport.value()
    (reply,) = parse_replies(sent)
    assert reply[b"connection"] == b"close"
    assert b"transfer-encoding" not in reply
    assert b"content-length" not in reply
    assert reply.body == b"".join(
        b'event: put\ndata: {"path":"/","data":%b}\n\n' % each for each in (b"null", b"1", b"2")
    )
    assert peer.is_closed
    assert len(server.resource.streams) == 0


def test_requests_sent_on_the_connection_of_a_stream_are_ignored(server: TreeServer) -> None:
    client = server.open_stream("/a.json")
    client.read_events()
    client.peer.send(b"PUT /b.json HTTP/1.1\r\nHost: demo.localhost\r\nContent-Length: 1\r\n\r\n1")
    server.write("PUT", "/a", 1)
    assert client.read_events() == [put("/", 1)]
    server.resource.streams.end()
    assert client.peer.transport.value() == b""
    assert client.peer.is_closed
    assert server.open_stream("/b.json").read_events() == [put("/", None)]


def test_head_opens_no_stream(server: TreeServer) -> None:
    peer = server.connect()
    peer.send(b"HEAD /a.json HTTP/1.1\r\nHost: demo.localhost\r\nAccept: text/event-stream\r\n\r\n")
    (reply,) = peer.read(b"HEAD")
    assert reply.status == 200
    opened = parse_replies(server.open_stream("/a.json").peer.transport.value())[0]
    assert [each for each in reply.fields if each[0] != b"date"] == [
        each for each in opened.fields if each[0] != b"date"
    ]
    assert peer.is_closed
    assert len(server.resource.streams) == 1


def test_events_are_counted(server: TreeServer) -> None:
    clients = [
        server.open_stream("/a.json"),
        server.open_stream("/a.json?orderBy=%22$key%22&limitToFirst=1"),
    ]
    server.write("PATCH", "/a", {"x": 1, "y": 2})
    assert [len(client.read_events()) for client in clients] == [2, 2]
    assert server.resource.streams.opened == 2
    assert server.resource.streams.events_sent == 2


def test_a_stream_that_ended_watches_no_more(server: TreeServer) -> None:
    database = server.catalog.find(DatabaseName("demo"))
    clients = [server.open_stream(target) for target in ("/a.json", "/a.json?orderBy=%22$key%22")]
    assert database._watchers.count == 2
    assert len(database._grants.held) == 2
    clients[0].peer.disconnect()
    server.resource.streams.end()
    assert database._watchers.count == 0
    assert len(database._grants.held) == 0


def test_each_stream_of_a_path_gets_what_it_requested(server: TreeServer) -> None:
    server.write("PUT", "/a", {"b": 1, "c": 2})
    query = "orderBy=%22$key%22&limitToFirst=1"
    targets = ["", "?resume=true", f"?{query}", f"?{query}&resume=true"]
    clients = [server.open_stream(f"/a.json{target}") for target in targets]
    for client in clients:
        client.read_events()
    server.write("PATCH", "/a", {"b": 3, "c": 4})
    patched = ("patch", '{"path":"/","data":{"b":3,"c":4}}')
    assert [client.read_events() for client in clients] == [
        [patched],
        [patched],
        [put("/b", 3)],
        [put("/b", 3)],
    ]
    assert [len(client.ids) for client in clients] == [0, 1, 0, 1]


QUERY = "/a.json?orderBy=%22$key%22&limitToFirst=1"


@pytest.mark.parametrize("target", ["/a.json?resume=true", f"{QUERY}&resume=true"])
def test_what_cannot_be_replayed_is_replaced_by_one_put_of_the_value(
    server: TreeServer, target: str
) -> None:
    server.write("PUT", "/a", {"b": 1})
    first = server.open_stream(target)
    first.read_events()
    (last,) = first.ids
    first.peer.disconnect()
    server.write("PUT", "/a/b", 2)
    if "orderBy" not in target:  # a missed write of a value can be replayed, of a priority not
        server.write("PUT", "/a/b/.priority", 5)
    again = server.open_stream(target, f"Last-Event-ID: {last}\r\n")
    assert again.read_events() == [put("/", {"b": 2})]


def test_streams_of_the_same_query_share_one_window(server: TreeServer) -> None:
    server.write("PUT", "/a", {"b": 1, "c": 2})
    clients = [server.open_stream(QUERY) for _ in range(5)]
    assert [client.read_events() for client in clients] == [[put("/", {"b": 1})]] * 5
    assert server.catalog.find(DatabaseName("demo"))._watchers.count == 1
    server.write("DELETE", "/a/b", None)
    assert [client.read_events() for client in clients] == [[patch("/", {"b": None, "c": 2})]] * 5


def test_streams_whose_window_fails_are_dropped_and_no_others(
    server: TreeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.write("PUT", "/a", {"b": 1, "c": 2})
    failing = [server.open_stream(QUERY), server.open_stream(QUERY)]
    plain = server.open_stream("/a.json")
    for client in (*failing, plain):
        client.read_events()

    def fail(*_: Any) -> Any:
        raise OSError("the disk of a test")

    monkeypatch.setattr(Window, "move", fail)
    server.write("DELETE", "/a/b", None)
    assert [client.peer.is_dropped for client in failing] == [True, True]
    assert plain.read_events() == [put("/b", None)]
    assert len(server.resource.streams) == 1


def test_a_reader_that_reads_again_receives_nothing_under_rules_that_deny_it(
    server: TreeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = server.open_stream("/a.json")
    client.read_events()
    client.producer.pauseProducing()
    server.write("PUT", "/a", 1)
    monkeypatch.setattr(ReadGrants, "recheck", lambda _: iter(()))  # its turn has not come yet
    server.catalog.rules("demo").manage_by_file(DENY)
    client.producer.resumeProducing()
    assert [kind for kind, _ in client.read_events()] == ["cancel"]
    assert len(server.resource.streams) == 0


def resume_after(server: TreeServer, writes: int) -> StreamClient:
    """Return a stream that missed some writes, of 1 and the numbers that follow."""
    first = server.open_stream("/a.json?resume=true")
    server.write("PUT", "/a", 0)
    first.read_events()
    first.peer.disconnect()
    for number in range(writes):
        server.write("PUT", "/a", number + 1)
    server.clock.lag = 0.003
    return server.open_stream("/a.json?resume=true", f"Last-Event-ID: {first.ids[-1]}\r\n")


def test_missed_events_may_take_some_turns_and_come_before_later_ones(server: TreeServer) -> None:
    client = resume_after(server, 90)
    assert client.peer.transport.value() == b""
    server.begin_write("PUT", "/a", "later")
    server.clock.advance(0)
    expected = [put("/", number) for number in range(1, 91)] + [put("/", "later")]
    assert client.read_events() == expected


def test_a_stream_that_missed_nothing_begins_with_its_head(server: TreeServer) -> None:
    client = resume_after(server, 0)
    server.clock.lag = 0.0
    server.clock.advance(0)
    assert client.read_events() == []
    server.write("PUT", "/a", "later")
    assert client.read_events() == [put("/", "later")]


def test_a_stream_that_ends_while_it_resumes_watches_nothing(server: TreeServer) -> None:
    client = resume_after(server, 90)
    client.peer.disconnect()
    server.clock.advance(0)
    assert server.catalog.find(DatabaseName("demo"))._watchers.count == 0
    assert len(server.resource.streams) == 0


def test_a_first_value_of_a_query_that_takes_many_turns_is_followed_by_what_was_written_meanwhile(
    server: TreeServer,
) -> None:
    server.write("PUT", "/a", {f"k{number:04}": number for number in range(1000)})
    server.clock.lag = 0.002
    client = server.open_stream("/a.json?orderBy=%22$value%22&limitToLast=2")
    assert client.peer.transport.value() == b""
    server.begin_write("PUT", "/a/k1000", 1000)
    server.clock.advance(0)
    first, *later = client.read_events()
    assert first == put("/", {"k0998": 998, "k0999": 999})
    assert later == [patch("/", {"k0998": None, "k1000": 1000})]
