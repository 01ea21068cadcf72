from __future__ import annotations

from tests.web.channel.peer import BODY, GET, Scripted, Server, send_small
from treedbd.web.channel.limits import ChannelLimits

LIMITS = ChannelLimits(connections=3, connections_per_address=2)


def test_an_address_may_have_so_many_connections() -> None:
    server = Server(Scripted(send_small), LIMITS)
    first, _ = server.connect("192.0.2.1"), server.connect("192.0.2.1")
    third = server.connect("192.0.2.1")
    (answer,) = third.read()
    assert answer.status == 429
    assert answer.body.startswith(b'{"error":"too_many_requests"')
    assert third.is_closed
    assert len(server.connect("192.0.2.2").ask(GET)) == 1
    first.hang_up()
    assert server.connect("192.0.2.1").ask(GET)[0].status == 200


def test_there_may_be_so_many_connections_in_all() -> None:
    server = Server(Scripted(send_small), LIMITS)
    peers = [server.connect(f"192.0.2.{number}") for number in range(3)]
    refused = server.connect("192.0.2.9")
    assert server.factory.connections == 3
    assert refused.read()[0].status == 503
    assert refused.is_closed
    peers[0].hang_up()
    assert server.factory.connections == 2
    assert server.connect("192.0.2.9").ask(GET)[0].status == 200


def test_a_refused_connection_is_dropped_if_it_stays() -> None:
    server = Server(Scripted(send_small), ChannelLimits(connections=1))
    server.connect()
    refused = server.connect()
    server.pass_time(6)
    assert refused.is_dropped


def test_refused_connections_that_stay_cost_no_answers_past_a_bound() -> None:
    server = Server(Scripted(send_small), ChannelLimits(connections=1))
    server.connect()
    refused = [server.connect() for _ in range(260)]
    assert refused[255].is_closed
    assert refused[259].is_dropped
    assert refused[259].read() == []


def test_there_is_one_timer_while_there_are_connections_and_none_else() -> None:
    server = Server(Scripted(send_small))
    assert server.clock.getDelayedCalls() == []
    peers = [server.connect() for _ in range(50)]
    assert len(server.clock.getDelayedCalls()) == 1
    for peer in peers:
        peer.hang_up()
    assert server.clock.getDelayedCalls() == []


def test_every_byte_sent_is_counted() -> None:
    server = Server(Scripted(send_small))
    first, second = server.connect(), server.connect()
    first.send(GET)
    second.send(b"BAD\r\n\r\n")
    size = len(first.transport.value()) + len(second.transport.value())
    assert server.factory.bytes_sent == size
    first.hang_up()
    assert server.factory.bytes_sent == size


def test_the_date_is_kept_up() -> None:
    times = iter([784111777.0, 784111778.0, 784111779.0])
    server = Server(Scripted(send_small))
    server.factory._register._wall_clock = lambda: next(times)
    peer = server.connect()
    assert peer.ask(GET)[0][b"date"] == b"Sun, 06 Nov 1994 08:49:37 GMT"
    server.pass_time(1)
    assert peer.ask(GET)[0][b"date"] == b"Sun, 06 Nov 1994 08:49:38 GMT"


def test_draining_nothing_is_done_at_once() -> None:
    ended: list[object] = []
    Server(Scripted()).factory.drain().addCallback(ended.append)
    assert ended == [None]


def test_draining_closes_what_is_idle_and_waits_for_the_rest() -> None:
    resource = Scripted()
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
        (answer,) = peer.read()
        assert answer[b"connection"] == b"close"
        assert peer.is_closed
    for peer in (idle, busy):
        peer.hang_up()
    assert ended == []
    arriving.hang_up()
    assert ended == [None]
    assert server.clock.getDelayedCalls() == []


def test_while_draining_nobody_gets_in() -> None:
    server = Server(Scripted(send_small))
    server.connect()
    server.factory.drain()
    late = server.connect()
    (answer,) = late.ask(GET)
    assert answer.status == 503
    assert answer.body.startswith(b'{"error":"unavailable"')


def test_whoever_drains_twice_is_told_twice() -> None:
    server = Server(Scripted(send_small))
    peer = server.connect()
    ended: list[object] = []
    server.factory.drain().addCallback(ended.append)
    server.factory.drain().addCallback(ended.append)
    peer.hang_up()
    assert ended == [None, None]


def test_aborting_drops_what_is_left() -> None:
    server = Server(Scripted())
    peer = server.connect()
    peer.send(GET)
    server.factory.abort()
    assert peer.is_dropped
