from __future__ import annotations

import gc
import socket
import weakref
from typing import Any

import pytest
from twisted.internet.interfaces import IPushProducer

from tests.web.channel.peer import BODY, GET, Peer, Scripted, Server, send_small
from tests.web.channel.test_shortcut import Wire
from treedbd.web.channel.lean import LeanRequest
from treedbd.web.channel.limits import ChannelLimits

POST = b"POST /a.json HTTP/1.1\r\nHost: localhost\r\n"
CLOSE = b"GET / HTTP/1.1\r\nConnection: close\r\n\r\n"


def connect(limits: ChannelLimits | None = None) -> Peer:
    """Return a client of a resource that answers at once."""
    return Server(Scripted(send_small), limits).connect()


def connect_open(limits: ChannelLimits | None = None) -> tuple[Peer, list[LeanRequest]]:
    """Return a client of a resource that answers when told to, and its requests."""
    resource = Scripted()
    return Server(resource, limits).connect(), resource.requests


def echo(request: LeanRequest) -> None:
    request.send(200, [], request.method + b" " + request.uri + b" " + request.content.read())


# Requests and replies.


def test_a_connection_is_used_again() -> None:
    peer = connect()
    assert [answer.body for answer in peer.ask(GET) + peer.ask(GET)] == [BODY, BODY]
    assert not peer.is_closed


def test_requests_sent_together_are_answered_in_order_one_at_a_time() -> None:
    peer, requests = connect_open()
    peer.send(b"GET /1 HTTP/1.1\r\n\r\nGET /2 HTTP/1.1\r\n\r\n", b"GET /3 HTTP/1.1\r\n\r\n")
    for number in (b"/1", b"/2", b"/3"):
        assert requests[-1].uri == number
        requests[-1].send(200, [], number)
    assert [answer.body for answer in peer.read()] == [b"/1", b"/2", b"/3"]
    assert len(requests) == 3


def test_answers_at_once_and_later_mix() -> None:
    later: list[LeanRequest] = []
    resource = Scripted(lambda r: later.append(r) if r.method == b"PUT" else send_small(r))
    peer = Server(resource).connect()
    put = b"PUT / HTTP/1.1\r\nContent-Length: 2\r\n\r\nhi"
    peer.send(GET + put + GET, put + GET)
    assert len(peer.read()) == 1
    later[0].finish()
    assert len(peer.read()) == 2
    later[1].finish()
    assert len(peer.read()) == 2
    assert len(resource.requests) == 5


def test_many_requests_sent_together_let_others_have_their_turn() -> None:
    peer = connect()
    assert len(peer.ask(GET * 200)) == 64
    peer.send(GET)
    assert peer.read() == []
    peer.server.clock.advance(0)
    assert len(peer.read()) == 137


def test_close_is_obeyed_and_said() -> None:
    peer = connect()
    (answer,) = peer.ask(CLOSE)
    assert answer[b"connection"] == b"close"
    assert peer.is_closed
    assert not peer.transport.half_closed
    assert peer.ask(GET) == []


def test_nothing_is_answered_after_close() -> None:
    peer = connect()
    assert len(peer.ask(CLOSE + GET)) == 1
    assert peer.is_closed
    assert peer.transport.half_closed


def test_an_old_client_is_kept_only_if_it_asks() -> None:
    peer = connect()
    (answer,) = peer.ask(b"GET / HTTP/1.0\r\nConnection: Keep-Alive\r\n\r\n")
    assert answer[b"connection"] == b"keep-alive"
    (answer,) = peer.ask(b"GET / HTTP/1.0\r\n\r\n")
    assert answer[b"connection"] == b"close"
    assert peer.is_closed


def test_a_body_may_come_in_pieces() -> None:
    peer = Server(Scripted(echo)).connect()
    head = POST + b"Content-Length: 5\r\n\r\n"
    assert peer.ask(head, b"he", b"llo")[0].body == b"POST /a.json hello"
    chunked = POST + b"Transfer-Encoding: chunked\r\n\r\n"
    assert (
        peer.ask(chunked + b"2\r\nhe\r", b"\n3\r\nllo\r\n0\r\n", b"\r\n")[0].body[-5:] == b"hello"
    )


def test_a_patient_client_is_told_to_continue_once() -> None:
    peer = Server(Scripted(echo)).connect()
    peer.send(POST + b"Content-Length: 5\r\nExpect: 100-continue\r\n\r\n")
    assert peer.transport.value() == b"HTTP/1.1 100 Continue\r\n\r\n"
    statuses = [answer.status for answer in peer.ask(b"he", b"llo")]
    assert statuses == [100, 200]


def test_a_patient_client_with_too_much_is_not_told_to_continue() -> None:
    peer = connect(ChannelLimits(body_bytes=4))
    (answer,) = peer.ask(POST + b"Content-Length: 5\r\nExpect: 100-continue\r\n\r\n")
    assert answer.status == 413


def test_an_upgrade_is_answered_in_http_1() -> None:
    peer = connect()
    upgrade = b"GET / HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"
    assert [answer.status for answer in peer.ask(upgrade, GET)] == [200, 200]


# Refusals.


@pytest.mark.parametrize(
    ("data", "status", "code"),
    [
        (b"\x16\x03\x01\x02\x00\x01\x00", 400, b"invalid_data"),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400, b"invalid_data"),
        (b"CONNECT db.example:443 HTTP/1.1\r\nHost: db.example\r\n\r\n", 400, b"invalid_path"),
        (POST + b"Content-Length: 17\r\n\r\n", 413, b"payload_too_large"),
        (POST + b"Transfer-Encoding: chunked\r\n\r\n11\r\n", 413, b"payload_too_large"),
        (b"GET /" + b"a" * 200, 414, b"too_long"),
        (b"GET / HTTP/1.1\r\nA: " + b"b" * 300, 431, b"too_long"),
        (b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 8 + b"\r\n", 431, b"too_long"),
    ],
)
def test_refusals_are_json_and_end_the_connection(data: bytes, status: int, code: bytes) -> None:
    limits = ChannelLimits(request_line_bytes=100, header_bytes=200, header_count=7, body_bytes=16)
    peer = connect(limits)
    (answer,) = peer.ask(data)
    assert answer.status == status
    assert answer.body.startswith(b'{"error":"' + code + b'","message":"')
    assert answer[b"content-type"] == b"application/json; charset=utf-8"
    assert answer[b"x-content-type-options"] == b"nosniff"
    assert answer[b"cache-control"] == b"no-store"
    assert answer[b"connection"] == b"close"
    assert answer[b"date"]
    assert b"server" not in answer
    assert b"access-control-allow-origin" not in answer
    assert peer.is_closed
    assert peer.transport.half_closed
    assert peer.server.factory.refusals == {status: 1}
    assert peer.ask(GET) == []


def test_refusals_carry_the_headers_that_they_are_given() -> None:
    own = ((b"Access-Control-Allow-Origin", b"*"), (b"X-One", b"1"))
    peer = Server(Scripted(send_small), refusal_headers=own).connect()
    (answer,) = peer.ask(b"GET /a.json HTTP/9\r\n\r\n")
    assert (answer[b"access-control-allow-origin"], answer[b"x-one"]) == (b"*", b"1")
    (answer,) = peer.server.connect().ask(GET)
    assert b"x-one" not in answer


def test_what_came_before_a_bad_request_is_answered_first() -> None:
    peer, requests = connect_open()
    peer.send(GET + b"BAD\r\n\r\n")
    assert peer.read() == []
    requests[0].send(200, [], BODY)
    assert [answer.status for answer in peer.read()] == [200, 400]
    assert peer.is_closed


def test_all_bodies_together_are_bounded() -> None:
    server = Server(Scripted(), ChannelLimits(body_bytes=60, held_body_bytes=100))
    head = POST + b"Content-Length: 60\r\n\r\n"
    peers = [server.connect() for _ in range(3)]
    peers[0].send(head, b"x" * 50)
    peers[1].send(head, b"x" * 50)
    peers[2].send(head, b"x")
    assert peers[2].read()[0].status == 503
    peers[0].hang_up()
    again = server.connect()
    again.send(head, b"x" * 50)
    assert again.read() == []


def test_a_body_counts_until_its_request_is_answered() -> None:
    resource = Scripted()
    server = Server(resource, ChannelLimits(body_bytes=60, held_body_bytes=100))
    head = POST + b"Content-Length: 60\r\n\r\n"
    first, second, third = (server.connect() for _ in range(3))
    first.send(head, b"x" * 59, b"x")
    second.send(head, b"x" * 59)
    assert second.read()[0].status == 503
    resource.requests[0].finish()
    third.send(head, b"x" * 59)
    assert third.read() == []


# Deadlines.


def test_an_idle_connection_is_closed_without_a_word() -> None:
    peer = connect()
    peer.server.pass_time(74)
    assert not peer.is_closed
    peer.server.pass_time(2)
    assert peer.is_closed
    assert peer.transport.value() == b""


def test_idleness_begins_anew_with_every_answer() -> None:
    peer = connect()
    peer.server.pass_time(50)
    peer.ask(GET)
    peer.server.pass_time(70)
    assert not peer.is_closed
    peer.server.pass_time(6)
    assert peer.is_closed


def test_a_head_that_drips_is_cut_off() -> None:
    peer = connect()
    peer.server.pass_time(60)
    for at in range(19):
        peer.send(GET[at : at + 1])
        peer.server.pass_time(1)
    assert not peer.is_closed
    peer.server.pass_time(2)
    (answer,) = peer.read()
    assert answer.status == 408
    assert answer.body == b'{"error":"timeout","message":"The request took too long to arrive."}'
    assert peer.is_closed


def test_a_body_must_come_at_its_least_rate() -> None:
    peer = connect()
    peer.send(POST + b"Content-Length: 1000000\r\n\r\n")
    for _ in range(40):
        peer.send(b"x" * 4096)
        peer.server.pass_time(1)
    assert not peer.is_closed
    peer.server.pass_time(29)
    assert not peer.is_closed
    peer.server.pass_time(3)
    (answer,) = peer.read()
    assert answer.status == 408
    assert peer.is_closed


def test_chunk_framing_buys_no_time() -> None:
    peer = connect()
    peer.send(POST + b"Transfer-Encoding: chunked\r\n\r\n")
    for _ in range(32):
        peer.send(b"1;" + b"a" * 1000 + b"\r\nx\r\n")
        peer.server.pass_time(1)
    assert peer.read()[0].status == 408


def test_a_request_under_way_has_no_deadline_here() -> None:
    peer, requests = connect_open()
    peer.send(GET)
    peer.server.pass_time(3600)
    requests[0].send(200, [], BODY)
    assert peer.read()[0].status == 200
    assert not peer.is_closed


def choke(peer: Peer) -> IPushProducer:
    """Let the transport be full, as it is where the peer does not read; return who paces it."""
    producer = IPushProducer(peer.transport.producer)
    producer.pauseProducing()
    return producer


def test_a_peer_that_does_not_read_is_dropped() -> None:
    peer, requests = connect_open()
    peer.send(GET)
    requests[0].write(b"x")
    choke(peer)
    peer.server.pass_time(59)
    assert not peer.is_dropped
    peer.server.pass_time(3)
    assert peer.is_dropped


def test_a_peer_that_reads_now_and_then_is_not_dropped() -> None:
    peer, requests = connect_open()
    peer.send(GET)
    requests[0].write(b"x")
    for _ in range(4):
        pace = choke(peer)
        peer.server.pass_time(50)
        pace.resumeProducing()
    assert not peer.is_dropped


def test_idleness_does_not_count_while_the_peer_is_still_reading() -> None:
    peer = connect()
    peer.send(GET)
    for _ in range(3):
        pace = choke(peer)
        peer.server.pass_time(50)
        pace.resumeProducing()
    peer.server.pass_time(70)
    assert not peer.is_closed
    peer.server.pass_time(6)
    assert peer.is_closed


def test_idleness_does_not_count_while_a_little_is_left_to_read() -> None:
    wire = Wire()
    wire.tcp.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    server = Server(Scripted(lambda request: request.send(200, [], b"x" * 40_000)))
    channel = server.factory.buildProtocol(None)
    channel.makeConnection(wire.tcp)
    channel.dataReceived(GET)
    assert wire.waits
    assert not channel.outlet.choked
    for _ in range(3):
        server.pass_time(50)
        wire.receive_some()
        wire.turn()
    assert not wire.tcp.disconnecting
    while wire.waits:
        wire.receive()
        wire.turn()
    server.pass_time(70)
    assert not wire.tcp.disconnecting
    server.pass_time(6)
    assert wire.tcp.disconnecting
    wire.close()


def test_requests_wait_while_the_peer_does_not_read() -> None:
    peer = connect()
    pace = choke(peer)
    peer.send(GET + GET)
    assert peer.read() == []
    pace.resumeProducing()
    assert len(peer.read()) == 2


def test_what_is_held_is_bounded() -> None:
    peer, requests = connect_open()
    peer.send(GET)
    peer.send(GET * 1000)
    assert peer.transport.producerState == "producing"
    peer.send(GET * 1000)
    assert peer.transport.producerState == "paused"
    requests[0].send(200, [], BODY)
    assert peer.transport.producerState == "paused"
    while len(requests) < 2001:
        requests[-1].send(200, [], BODY)
    requests[-1].send(200, [], BODY)
    assert peer.transport.producerState == "producing"
    assert len(peer.read()) == 2001


# The end.


def test_a_connection_that_was_not_read_from_is_read_from_while_it_closes() -> None:
    peer, requests = connect_open()
    peer.send(CLOSE, GET * 2000)
    assert peer.transport.producerState == "paused"
    requests[0].send(200, [], BODY)
    assert peer.is_closed
    assert peer.transport.producerState == "producing"


def test_a_refused_peer_may_finish_sending_but_not_for_ever() -> None:
    peer = connect(ChannelLimits(body_bytes=1000))
    peer.send(POST + b"Content-Length: 1001\r\n\r\n")
    assert peer.is_closed
    for _ in range(20):
        peer.send(b"x" * 90)
        peer.server.pass_time(1)
    assert not peer.is_dropped
    peer.send(b"x" * 201)
    assert peer.is_dropped


def test_a_refused_peer_that_keeps_the_connection_is_dropped() -> None:
    peer = connect()
    peer.send(b"BAD\r\n\r\n")
    peer.server.pass_time(4)
    assert not peer.is_dropped
    peer.server.pass_time(2)
    assert peer.is_dropped


def test_a_refused_peer_that_drips_is_dropped() -> None:
    peer = connect()
    peer.send(b"BAD\r\n\r\n")
    for _ in range(29):
        peer.send(b"x")
        peer.server.pass_time(1)
    assert not peer.is_dropped
    peer.send(b"x")
    peer.server.pass_time(2)
    assert peer.is_dropped


def test_a_request_learns_that_its_client_has_gone() -> None:
    peer, requests = connect_open()
    lost: list[Any] = []
    peer.send(GET + GET)
    requests[0].notifyFinish().addErrback(lost.append)
    peer.hang_up()
    assert len(lost) == 1
    requests[0].finish()
    assert len(requests) == 1


def test_a_closed_connection_leaves_nothing_to_the_garbage_collector() -> None:
    gc.collect()
    gc.disable()
    try:
        resource = Scripted(send_small)
        peer = Server(resource).connect()
        peer.ask(GET, GET[:10])
        resource.requests.clear()
        channel = weakref.ref(peer.channel)
        peer.hang_up()
        del peer
        assert channel() is None
    finally:
        gc.enable()


def test_a_request_may_close_its_connection() -> None:
    peer, requests = connect_open()
    peer.send(GET + GET)
    requests[0].write(b"x")
    requests[0].loseConnection()
    requests[0].finish()
    assert peer.is_closed
    assert len(requests) == 1


def test_a_peer_may_go_while_others_have_their_turn() -> None:
    peer = connect()
    peer.send(GET * 200)
    peer.hang_up()
    assert peer.server.clock.getDelayedCalls() == []
    assert len(peer.read()) == 64


def test_a_pull_producer_is_asked_until_it_is_done() -> None:
    peer, requests = connect_open()
    peer.send(GET)
    request = requests[0]

    class Pulled:
        left = 3

        def resumeProducing(self) -> None:
            self.left -= 1
            request.write(b"x")
            if self.left == 2:
                choke(peer)
            if not self.left:
                request.unregisterProducer()
                request.finish()

        def stopProducing(self) -> None:
            raise AssertionError

    producer: Any = Pulled()
    request.registerProducer(producer, False)
    peer.server.clock.advance(0)
    assert producer.left == 2
    IPushProducer(peer.transport.producer).resumeProducing()
    peer.server.clock.advance(0)
    assert [answer.body for answer in peer.read()] == [b"xxx"]
    assert not peer.is_closed


def test_a_pull_producer_that_breaks_drops_the_connection() -> None:
    peer, requests = connect_open()
    peer.send(GET)
    stopped = []

    class Broken:
        def resumeProducing(self) -> None:
            raise KeyError("inside")

        def stopProducing(self) -> None:
            stopped.append(True)

    producer: Any = Broken()
    requests[0].registerProducer(producer, False)
    peer.server.clock.advance(0)
    peer.server.clock.advance(0)
    assert peer.is_dropped
    peer.hang_up()
    assert stopped == [True]
