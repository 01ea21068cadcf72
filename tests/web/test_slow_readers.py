"""Clients that do not read: what waits for them is shared, bounded, and costs others nothing."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import attrs
import pytest

from tests.http1.peer import Peer
from tests.web.tree_server import PATIENT, SETTINGS, StreamClient, TreeServer, put
from treedbd.config.settings import Settings
from treedbd.rules.ruleset import parse_rules
from treedbd.web.reading import IN_MEMORY_BYTES

VALUE = {f"k{number:04}": "x" * 190 for number in range(1000)}
VALUE_BYTES = len(json.dumps(VALUE, separators=(",", ":")))
LIMIT = 7 * VALUE_BYTES + 1000
ROOM = 10_000
EVENTS = "Accept: text/event-stream\r\n"


def limited(**changed: Any) -> Settings:
    """Return options of a server for which little may wait."""
    return attrs.evolve(
        SETTINGS, limits=attrs.evolve(PATIENT, **({"waiting_bytes": LIMIT} | changed))
    )


def address(number: int) -> str:
    return f"198.51.100.{number}"


@pytest.fixture
def server(tmp_path: pathlib.Path) -> TreeServer:
    """A server with the same long value at four places, and a short one."""
    made = TreeServer(tmp_path, options=limited())
    for key in "abcdefgh":
        made.write("PUT", f"/{key}", VALUE)
    made.write("PUT", "/short", 1)
    return made


def error_of(peer: Peer) -> tuple[int, str]:
    (reply,) = peer.read()
    return reply.status, json.loads(reply.body)["error"]


def fill(server: TreeServer) -> list[Peer]:
    """Leave as many responses unread as may wait, each from another address; one more is 503."""
    return [
        server.get(f"/{key}.json", host=address(number), room=ROOM)
        for number, key in enumerate("abcdefgh")
    ]


# Reads.


def test_unread_responses_of_the_same_value_cost_one_copy(server: TreeServer) -> None:
    peers = [server.get("/a.json", host=address(number % 9), room=ROOM) for number in range(40)]
    assert server.resource.shared_reads.memory.total == VALUE_BYTES
    for peer in peers:
        (reply,) = peer.read_slowly()
        assert json.loads(reply.body) == VALUE
    assert server.resource.shared_reads.memory.total == 0


def test_reads_in_different_forms_are_not_mixed_up(server: TreeServer) -> None:
    part = dict(list(VALUE.items())[:400])
    server.write("PUT", "/mixed", {"1": part, "2": {**part, "v": True}, "3": {**part, "v": 1}})
    queries = ("", "callback=f", 'orderBy="v"&equalTo=1', 'orderBy="v"&equalTo=true')
    peers = [
        server.get(f"/mixed.json?{query}", host=address(number), room=ROOM)
        for number, query in enumerate(queries)
    ]
    plain, wrapped, number, boolean = (peer.read_slowly()[0].body for peer in peers)
    assert wrapped == b"/**/f(" + plain + b");"
    assert [list(json.loads(each)) for each in (number, boolean)] == [["3"], ["2"]]


def test_a_tagged_read_shares_the_body_of_a_plain_one(server: TreeServer) -> None:
    plain = server.get("/a.json", room=ROOM)
    tagged = server.get("/a.json", "X-TreeDB-ETag: true\r\n", room=ROOM)
    assert server.resource.shared_reads.memory.total == VALUE_BYTES
    (reply,) = tagged.read_slowly()
    assert b"etag" in reply
    assert reply.body == plain.read_slowly()[0].body


def test_after_a_write_a_read_shows_it_though_others_still_read(server: TreeServer) -> None:
    slow = server.get("/a.json", room=ROOM)
    server.write("PUT", "/a/new", 1)
    (reply,) = server.get("/a.json", host=address(1)).read()
    assert json.loads(reply.body) == {**VALUE, "new": 1}
    assert json.loads(slow.read_slowly()[0].body) == VALUE


def test_each_reader_of_a_shared_value_needs_the_right(tmp_path: pathlib.Path) -> None:
    rules = '{"rules": {".read": "query.limitToFirst != 5", ".write": true}}'
    server = TreeServer(tmp_path, parse_rules(rules), options=limited())
    server.write("PUT", "/a", VALUE)
    server.get("/a.json", room=ROOM)
    denied = server.get('/a.json?orderBy="$key"&limitToFirst=5')
    assert error_of(denied) == (403, "permission_denied")


def test_beyond_the_bound_long_responses_are_503_and_short_ones_are_sent(
    server: TreeServer,
) -> None:
    slow = fill(server)
    assert [peer.status for peer in slow] == [200] * 7 + [503]
    assert server.resource.shared_reads.memory.total <= LIMIT
    (reply,) = server.get("/short.json", host=address(50)).read()
    assert reply.body == b"1"
    (reply,) = server.get("/a.json?shallow=true", host=address(50)).read()
    assert reply.status == 200
    assert error_of(server.get("/h.json", host=address(50))) == (503, "unavailable")
    slow[0].read_slowly()
    assert server.get("/h.json", host=address(50)).status == 200


def test_beyond_the_bound_what_waits_already_is_sent_to_others_too(server: TreeServer) -> None:
    fill(server)
    assert server.get("/a.json", host=address(50)).status == 200


def test_one_address_has_a_share_and_leaves_the_rest_to_others(server: TreeServer) -> None:
    slow = [server.get(f"/{key}.json", host=address(1), room=ROOM) for key in "abcd"]
    assert slow[0].status == 200
    assert [error_of(peer) for peer in slow[1:]] == [(429, "too_many_requests")] * 3
    (reply,) = server.get("/c.json", host=address(2)).read()
    assert json.loads(reply.body) == VALUE


def test_a_client_that_disconnects_makes_room(server: TreeServer) -> None:
    slow = fill(server)
    for peer in slow[:7]:
        peer.disconnect()
    assert server.resource.shared_reads.memory.total == 0
    assert server.get("/h.json", host=address(50)).status == 200


# Writes.


def test_a_write_whose_echo_has_no_room_is_refused_before_it_is_applied(
    server: TreeServer,
) -> None:
    fill(server)
    refused = server.begin_write("PUT", "/new", VALUE)
    silent = server.begin_write("PUT", "/short", 2)
    server.clock.advance(0)
    assert error_of(refused) == (503, "unavailable")
    assert silent.status == 200
    assert server.get("/new.json").read()[0].body == b"null"


def test_an_unread_echo_is_counted_and_a_write_that_was_applied_is_always_answered(
    server: TreeServer,
) -> None:
    peers = []
    for number in range(20):
        peer = server.connect()
        peer.transport.room = ROOM
        body = json.dumps(VALUE).encode()
        head = f"PUT /n/{number}.json HTTP/1.1\r\nHost: demo.localhost\r\n"
        peer.send(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        peers.append(peer)
    server.clock.advance(0)
    assert [peer.status for peer in peers] == [200] * 20
    assert server.resource.shared_reads.memory.total == 20 * VALUE_BYTES
    assert error_of(server.begin_write("PUT", "/n/20", VALUE))[0] in (429, 503)


def test_an_error_that_shows_a_large_value_is_replaced_by_503(server: TreeServer) -> None:
    fill(server)
    peer = server.connect(address(50))
    peer.send(b'DELETE /h.json HTTP/1.1\r\nHost: demo.localhost\r\nIf-Match: "other"\r\n\r\n')
    server.clock.advance(0)
    assert error_of(peer) == (503, "unavailable")


# Streams.


def test_unread_streams_of_the_same_value_cost_one_copy(server: TreeServer) -> None:
    clients = [
        server.open_stream("/a.json", host=address(number % 9), room=ROOM) for number in range(20)
    ]
    waiting = server.resource.shared_reads.memory
    assert VALUE_BYTES < waiting.total < VALUE_BYTES + 20 * 100
    read = server.get("/a.json", room=ROOM)
    assert waiting.total < VALUE_BYTES + 20 * 100
    for client in clients:
        assert read_all(client) == [put("/", VALUE)]
    read.read_slowly()
    assert waiting.total == 0


def test_unread_streams_of_the_same_query_cost_one_copy_and_each_goes_on(
    server: TreeServer,
) -> None:
    target = '/a.json?orderBy="$key"&limitToFirst=900'
    clients = [server.open_stream(target, room=ROOM) for _ in range(10)]
    assert server.resource.shared_reads.memory.total < VALUE_BYTES + 10 * 100
    server.write("PUT", "/a/k0001", "changed")
    for client in clients:
        (_, first), second = read_all(client)
        assert len(json.loads(first)["data"]) == 900
        assert second == put("/k0001", "changed")


def read_all(client: StreamClient) -> list[tuple[str, str]]:
    """Read at the speed of a client that empties a full transport again and again."""
    transport: Any = client.peer.transport
    data = b""
    while piece := transport.value():
        data += piece
        transport.clear()
        transport.producer.resumeProducing()
    transport.write(data)
    return client.read_events()


def test_a_large_value_is_rendered_once_for_all_streams_and_reads(server: TreeServer) -> None:
    server.write("PUT", "/long", {str(key): "x" * 400_000 for key in range(6)})
    clients = [server.open_stream("/long.json", room=ROOM) for _ in range(20)]
    reads = [server.get("/long.json", room=ROOM) for _ in range(20)]
    server.clock.advance(0)
    assert IN_MEMORY_BYTES < server.resource.shared_reads.files.total < 2_500_000
    texts = {client.peer.transport.value()[-100:] for client in clients}
    assert texts == {b"x" * 100}
    assert {len(read.read_slowly()[0].body) for read in reads} == {
        len(json.dumps(["x" * 400_000] * 6, separators=(",", ":")))
    }
    for client in clients:
        client.peer.disconnect()
    assert server.resource.shared_reads.files.total == 0


def test_a_stream_that_would_exceed_the_bound_is_503_and_leaves_nothing(
    server: TreeServer,
) -> None:
    fill(server)
    before = len(server.resource.streams)
    client = server.open_stream("/h.json", host=address(50))
    assert error_of(client.peer) == (503, "unavailable")
    assert len(server.resource.streams) == before
    assert server.open_stream("/short.json", host=address(50)).read_events() == [put("/", 1)]


def test_a_stream_of_a_large_value_beyond_the_bound_is_503(tmp_path: pathlib.Path) -> None:
    server = TreeServer(tmp_path, options=limited(waiting_file_bytes=3_000_000))
    for key in "ab":
        server.write("PUT", f"/{key}", {str(part): "x" * 400_000 for part in range(6)})
    server.get("/a.json", host=address(1), room=ROOM)
    server.clock.advance(0)
    stream = server.open_stream("/b.json", host=address(2)).peer
    read = server.get("/b.json", host=address(3))
    server.clock.advance(0)
    assert error_of(stream) == (503, "unavailable")
    assert read.is_dropped  # it flowed already
    assert len(server.resource.streams) == 0


def test_events_that_wait_for_several_streams_are_counted_once(server: TreeServer) -> None:
    clients = [server.open_stream("/events.json") for _ in range(10)]
    for client in clients:
        client.producer.pauseProducing()
    for number in range(3):
        server.write("PUT", f"/events/{number}", "y" * 1000)
    assert 3000 < server.resource.shared_reads.memory.total < 3500
    for client in clients:
        client.producer.resumeProducing()
        assert len(client.read_events()) == 4
    assert server.resource.shared_reads.memory.total == 0


def test_a_stream_without_room_for_its_value_gets_it_as_soon_as_there_is_room(
    server: TreeServer,
) -> None:
    client = server.open_stream("/late.json", host=address(50))
    client.read_events()
    slow = fill(server)
    for number in range(10):
        server.write("PUT", f"/late/{number}", "y" * 9000)
    client.read_events()
    client.producer.pauseProducing()
    for number in range(10):
        server.write("PUT", f"/late/{number}", "z" * 9000)
    assert server.resource.streams.overflowed == 1
    client.producer.resumeProducing()
    assert client.read_events() == []
    server.pass_time(3)
    assert client.read_events() == []
    for peer in slow:
        peer.disconnect()
    server.pass_time(1)
    assert client.read_events() == [put("/", ["z" * 9000] * 10)]
    server.write("PUT", "/late/0", 1)
    assert client.read_events() == [put("/0", 1)]


def test_a_stream_that_is_postponed_and_disconnects_is_gone(server: TreeServer) -> None:
    client = server.open_stream("/late.json", host=address(50))
    slow = fill(server)
    for number in range(10):
        server.write("PUT", f"/late/{number}", "y" * 9000)
    client.producer.pauseProducing()
    for number in range(10):
        server.write("PUT", f"/late/{number}", "z" * 9000)
    client.producer.resumeProducing()
    client.peer.disconnect()
    assert len(server.resource.streams) == 0
    for peer in slow:
        peer.disconnect()
    server.pass_time(3)
    assert server.resource.shared_reads.memory.total == 0
