from __future__ import annotations

from tests.database.world import TurnClock
from tests.http1.peer import BODY, GET, ScriptedResource, Server, send_small
from treedbd.http1.parser import CutOff
from treedbd.http1.registry import SWEPT_AT_ONCE, Connections, RequestLogging
from treedbd.limits import Limits

LIMITS = Limits(connections=3, connections_per_address=2)
SHARED_KEYS = 30
"""An object of so many attributes has a dictionary of its own (CPython), and they cost more."""


def test_the_connections_of_one_address_are_limited() -> None:
    server = Server(ScriptedResource(send_small), LIMITS)
    first, _ = server.connect("192.0.2.1"), server.connect("192.0.2.1")
    third = server.connect("192.0.2.1")
    (reply,) = third.read()
    assert reply.status == 429
    assert reply.body.startswith(b'{"error":"too_many_requests"')
    assert third.is_closed
    assert len(server.connect("192.0.2.2").exchange(GET)) == 1
    first.disconnect()
    assert server.connect("192.0.2.1").exchange(GET)[0].status == 200


def test_what_each_request_reads_has_few_attributes() -> None:
    server = Server(ScriptedResource(send_small), LIMITS)
    assert len(vars(server.factory.connections)) < SHARED_KEYS


def test_all_connections_together_are_limited() -> None:
    server = Server(ScriptedResource(send_small), LIMITS)
    peers = [server.connect(f"192.0.2.{number}") for number in range(3)]
    refused = server.connect("192.0.2.9")
    assert server.factory.connections.count == 3
    assert refused.read()[0].status == 503
    assert refused.is_closed
    peers[0].disconnect()
    assert server.factory.connections.count == 2
    assert server.connect("192.0.2.9").exchange(GET)[0].status == 200


def test_a_refused_connection_is_dropped_if_the_peer_does_not_close() -> None:
    server = Server(ScriptedResource(send_small), Limits(connections=1))
    server.connect()
    refused = server.connect()
    server.pass_time(6)
    assert refused.is_dropped


def test_refused_connections_beyond_a_limit_get_no_reply() -> None:
    server = Server(ScriptedResource(send_small), Limits(connections=1))
    server.connect()
    refused = [server.connect() for _ in range(260)]
    assert refused[255].is_closed
    assert refused[259].is_dropped
    assert refused[259].read() == []


def test_there_is_one_timer_while_there_are_connections_and_otherwise_none() -> None:
    server = Server(ScriptedResource(send_small))
    assert server.clock.getDelayedCalls() == []
    peers = [server.connect() for _ in range(50)]
    assert len(server.clock.getDelayedCalls()) == 1
    for peer in peers:
        peer.disconnect()
    server.pass_time(2)
    assert server.clock.getDelayedCalls() == []


class SweptConnection:
    """A connection that records when it was swept."""

    bytes_sent = 0

    def __init__(self) -> None:
        self.swept: list[float] = []

    def sweep(self, now: float) -> None:
        self.swept.append(now)

    def set_logs(self, logs: RequestLogging) -> None:
        raise AssertionError

    def drain(self) -> None:
        pass

    def abort(self, _: CutOff = "failed") -> None:
        pass


def test_many_connections_are_swept_over_several_turns() -> None:
    clock = TurnClock()
    resource = ScriptedResource(send_small)
    limits = Limits(connections=10_000, connections_per_address=10_000)
    connections = Connections(resource, limits, clock, lambda: 0.0)
    tracked = [SweptConnection() for _ in range(2 * SWEPT_AT_ONCE + 1)]
    for each in tracked:
        connections.admit(each, "")
    clock.rightNow += 1
    clock.take_turn()
    assert sum(1.0 in each.swept for each in tracked) == SWEPT_AT_ONCE
    connections.remove(tracked[-1])
    clock.run()
    assert [1.0 in each.swept for each in tracked] == [True] * 2 * SWEPT_AT_ONCE + [False]


def test_every_byte_sent_is_counted() -> None:
    server = Server(ScriptedResource(send_small))
    first, second = server.connect(), server.connect()
    first.send(GET)
    second.send(b"BAD\r\n\r\n")
    size = len(first.transport.value()) + len(second.transport.value())
    assert server.factory.connections.bytes_sent == size
    first.disconnect()
    assert server.factory.connections.bytes_sent == size


def test_the_date_is_kept_current() -> None:
    times = iter([784111777.0, 784111778.0, 784111779.0])
    server = Server(ScriptedResource(send_small))
    server.factory.connections._wall_clock = lambda: next(times)
    peer = server.connect()
    assert peer.exchange(GET)[0][b"date"] == b"Sun, 06 Nov 1994 08:49:37 GMT"
    server.pass_time(1)
    assert peer.exchange(GET)[0][b"date"] == b"Sun, 06 Nov 1994 08:49:38 GMT"


def test_draining_without_connections_ends_at_once() -> None:
    ended: list[object] = []
    Server(ScriptedResource()).factory.drain().addCallback(ended.append)
    assert ended == [None]


def test_draining_closes_idle_connections_and_waits_for_the_others() -> None:
    resource = ScriptedResource()
    server = Server(resource)
    idle, busy, arriving = (server.connect() for _ in range(3))
    busy.send(GET + GET)
    arriving.send(GET[:10])
    ended: list[object] = []
    server.factory.drain().addCallback(ended.append)
    assert idle.is_closed
    assert not busy.is_closed
    assert not arriving.is_closed
    arriving.send(GET[10:])
    for request in resource.requests:
        request.send(200, [], BODY)
    for peer in (busy, arriving):
        (reply,) = peer.read()
        assert reply[b"connection"] == b"close"
        assert peer.is_closed
    for peer in (idle, busy):
        peer.disconnect()
    assert ended == []
    arriving.disconnect()
    assert ended == [None]
    assert server.clock.getDelayedCalls() == []


def test_while_draining_new_connections_are_refused() -> None:
    server = Server(ScriptedResource(send_small))
    server.connect()
    server.factory.drain()
    late = server.connect()
    (reply,) = late.exchange(GET)
    assert reply.status == 503
    assert reply.body.startswith(b'{"error":"unavailable"')


def test_both_deferreds_fire_if_draining_is_requested_twice() -> None:
    server = Server(ScriptedResource(send_small))
    peer = server.connect()
    ended: list[object] = []
    server.factory.drain().addCallback(ended.append)
    server.factory.drain().addCallback(ended.append)
    peer.disconnect()
    assert ended == [None, None]


def test_aborting_drops_all_connections() -> None:
    server = Server(ScriptedResource())
    peer = server.connect()
    peer.send(GET)
    server.factory.abort()
    assert peer.is_dropped
