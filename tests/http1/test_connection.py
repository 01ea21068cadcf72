from __future__ import annotations

import gc
import socket
import weakref
from functools import partial
from typing import Any

import pytest
from twisted.internet.interfaces import IPushProducer

from tests.http1.peer import (
    BODY,
    GET,
    ParsedReply,
    Peer,
    ScriptedResource,
    Server,
    send_small,
)
from tests.http1.test_direct_send import SocketTransport
from treedbd.http1.registry import ServerOptions
from treedbd.http1.request import Request
from treedbd.limits import Limits

POST = b"POST /a.json HTTP/1.1\r\nHost: localhost\r\n"
CLOSE = b"GET / HTTP/1.1\r\nConnection: close\r\n\r\n"


def connect(limits: Limits | None = None) -> Peer:
    """Return a client of a resource that replies at once."""
    return Server(ScriptedResource(send_small), limits).connect()


def connect_open(limits: Limits | None = None) -> tuple[Peer, list[Request]]:
    """Return a client of a resource whose requests the test answers, and these requests."""
    resource = ScriptedResource()
    return Server(resource, limits).connect(), resource.requests


def pass_turn(peer: Peer) -> list[ParsedReply]:
    """Let a turn of the reactor pass; return the replies that came in it."""
    run_turn(peer.server)
    return peer.read()


def run_turn(server: Server) -> None:
    """Make the calls that are due; a clock that is advanced makes those that they add, too."""
    due = [call for call in server.clock.calls if call.getTime() <= server.clock.seconds()]
    for call in due:
        made = partial(call.func, *call.args, **call.kw)
        call.cancel()
        made()


def echo(request: Request) -> None:
    request.send(200, [], request.method + b" " + request.uri + b" " + request.content.read())


# Requests and replies.


def test_a_connection_serves_several_requests() -> None:
    peer = connect()
    assert [reply.body for reply in peer.exchange(GET) + peer.exchange(GET)] == [BODY, BODY]
    assert not peer.is_closed


def test_requests_sent_together_are_answered_in_order_one_at_a_time() -> None:
    peer, requests = connect_open()
    peer.send(b"GET /1 HTTP/1.1\r\n\r\nGET /2 HTTP/1.1\r\n\r\n", b"GET /3 HTTP/1.1\r\n\r\n")
    for number in (b"/1", b"/2", b"/3"):
        assert requests[-1].uri == number
        requests[-1].send(200, [], number)
    assert [reply.body for reply in peer.read()] == [b"/1", b"/2", b"/3"]
    assert len(requests) == 3


def test_immediate_and_later_replies_are_sent_in_order() -> None:
    waiting: list[Request] = []
    resource = ScriptedResource(
        lambda r: waiting.append(r) if r.method == b"PUT" else send_small(r)
    )
    peer = Server(resource).connect()
    put = b"PUT / HTTP/1.1\r\nContent-Length: 2\r\n\r\nhi"
    peer.send(GET + put + GET, put + GET)
    assert len(peer.read()) == 1
    peer.server.clock.advance(0)
    waiting[0].finish()
    assert len(peer.read()) == 2
    peer.server.clock.advance(0)
    waiting[1].finish()
    assert len(peer.read()) == 2
    assert len(resource.requests) == 5


# More requests than are rendered at once: the ring.


def test_of_requests_sent_together_the_first_one_is_answered_at_once_the_others_in_turns() -> None:
    peer = connect()
    peer.send(GET * 200)
    assert len(peer.read()) == 1
    peer.send(GET)
    assert peer.read() == []
    in_turns = []
    while replies := pass_turn(peer):
        in_turns.append(len(replies))
    assert in_turns == [64, 64, 64, 8]


def test_however_many_connections_have_more_requests_they_share_each_turn_in_order() -> None:
    server = Server(ScriptedResource(send_small))
    peers = [server.connect() for _ in range(20)]
    for peer in peers:
        peer.send(GET * 17)
        assert len(peer.read()) == 1
    answered = []
    for _ in range(5):
        run_turn(server)
        answered.append([len(peer.read()) for peer in peers])
    assert answered == [
        [8] * 8 + [0] * 12,
        [0] * 8 + [8] * 8 + [0] * 4,
        [8] * 4 + [0] * 12 + [8] * 4,
        [0] * 4 + [8] * 8 + [0] * 8,
        [0] * 12 + [8] * 8,
    ]


def test_a_client_that_sends_one_request_waits_for_no_turn_of_those_that_send_many() -> None:
    server = Server(ScriptedResource(send_small))
    for _ in range(20):
        server.connect().send(GET * 100)
    peer = server.connect()
    peer.send(GET)
    assert len(peer.read()) == 1


def test_a_connection_that_ends_in_the_ring_leaves_it_to_the_others() -> None:
    server = Server(ScriptedResource(send_small))
    lost, aborted, last = (server.connect() for _ in range(3))
    for peer in (lost, aborted, last):
        peer.send(GET * 9)
        assert len(peer.read()) == 1
    lost.disconnect()
    aborted.connection.abort()
    run_turn(server)
    assert [len(peer.read()) for peer in (lost, aborted, last)] == [0, 0, 8]


def test_what_goes_wrong_in_the_ring_ends_no_turn_of_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server = Server(ScriptedResource(send_small))
    bad, good = server.connect(), server.connect()
    for peer in (bad, good):
        peer.send(GET * 9)
        peer.read()

    def fail() -> bool:
        raise RuntimeError

    monkeypatch.setattr(bad.connection, "_is_occupied", fail)
    run_turn(server)
    assert len(good.read()) == 8


def test_requests_in_the_ring_are_bounded_refused_and_ended_like_any_other() -> None:
    for last, statuses in (
        (CLOSE + GET, [200]),
        (b"GET / HTTP/1.0\r\n\r\n" + GET, [200]),
        (b"NONSENSE\r\n\r\n" + GET, [400]),
        (POST + b"Expect: 100-continue\r\nContent-Length: 2\r\n\r\n", [100]),
    ):
        peer = connect()
        peer.send(GET + GET + last)
        assert len(peer.read()) == 1
        assert [reply.status for reply in pass_turn(peer)] == [200, *statuses]
        assert pass_turn(peer) == []
        assert peer.is_closed is (statuses != [100])


def test_a_connection_in_the_ring_ends_after_its_next_request_when_the_server_drains() -> None:
    peer = connect()
    peer.send(GET * 9)
    peer.read()
    peer.server.factory.drain()
    assert not peer.is_closed
    (reply,) = pass_turn(peer)
    assert reply[b"connection"] == b"close"
    assert peer.is_closed


def test_a_client_that_does_not_read_is_passed_over_in_the_ring_and_goes_on_later() -> None:
    peer = connect()
    peer.send(GET * 3)
    assert len(peer.read()) == 1
    producer = pause_transport(peer)
    assert pass_turn(peer) == []
    producer.resumeProducing()
    assert len(peer.read() + pass_turn(peer)) == 2


def test_connection_close_is_obeyed_and_confirmed() -> None:
    peer = connect()
    (reply,) = peer.exchange(CLOSE)
    assert reply[b"connection"] == b"close"
    assert peer.is_closed
    assert not peer.transport.half_closed
    assert peer.exchange(GET) == []


def test_no_request_is_answered_after_connection_close() -> None:
    peer = connect()
    assert len(peer.exchange(CLOSE + GET)) == 1
    assert peer.is_closed
    assert peer.transport.half_closed


def test_an_http_1_0_connection_is_kept_only_if_the_client_requests_it() -> None:
    peer = connect()
    (reply,) = peer.exchange(b"GET / HTTP/1.0\r\nConnection: Keep-Alive\r\n\r\n")
    assert reply[b"connection"] == b"keep-alive"
    (reply,) = peer.exchange(b"GET / HTTP/1.0\r\n\r\n")
    assert reply[b"connection"] == b"close"
    assert peer.is_closed


def test_a_body_may_arrive_in_pieces() -> None:
    peer = Server(ScriptedResource(echo)).connect()
    head = POST + b"Content-Length: 5\r\n\r\n"
    assert peer.exchange(head, b"he", b"llo")[0].body == b"POST /a.json hello"
    chunked = POST + b"Transfer-Encoding: chunked\r\n\r\n"
    assert (
        peer.exchange(chunked + b"2\r\nhe\r", b"\n3\r\nllo\r\n0\r\n", b"\r\n")[0].body[-5:]
        == b"hello"
    )


def test_100_continue_is_sent_once_to_a_client_that_expects_it() -> None:
    peer = Server(ScriptedResource(echo)).connect()
    peer.send(POST + b"Content-Length: 5\r\nExpect: 100-continue\r\n\r\n")
    assert peer.transport.value() == b"HTTP/1.1 100 Continue\r\n\r\n"
    statuses = [reply.status for reply in peer.exchange(b"he", b"llo")]
    assert statuses == [100, 200]


def test_100_continue_is_not_sent_for_a_body_that_is_too_large() -> None:
    peer = connect(Limits(write_body_bytes=4))
    (reply,) = peer.exchange(POST + b"Content-Length: 5\r\nExpect: 100-continue\r\n\r\n")
    assert reply.status == 413


def test_an_upgrade_is_answered_in_http_1() -> None:
    peer = connect()
    upgrade = b"GET / HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"
    assert [reply.status for reply in peer.exchange(upgrade, GET)] == [200, 200]


# Errors.


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
def test_errors_are_json_and_end_the_connection(data: bytes, status: int, code: bytes) -> None:
    limits = Limits(request_line_bytes=100, header_bytes=200, header_count=7, write_body_bytes=16)
    peer = connect(limits)
    (reply,) = peer.exchange(data)
    assert reply.status == status
    assert reply.body.startswith(b'{"error":"' + code + b'","message":"')
    assert reply[b"content-type"] == b"application/json; charset=utf-8"
    assert reply[b"x-content-type-options"] == b"nosniff"
    assert reply[b"cache-control"] == b"no-store"
    assert reply[b"connection"] == b"close"
    assert reply[b"date"]
    assert b"server" not in reply
    assert b"access-control-allow-origin" not in reply
    assert peer.is_closed
    assert peer.transport.half_closed
    assert peer.server.factory.connections.errors == {status: 1}
    assert peer.exchange(GET) == []


def test_errors_carry_the_error_headers() -> None:
    headers = ((b"Access-Control-Allow-Origin", b"*"), (b"X-One", b"1"))
    peer = Server(
        ScriptedResource(send_small), options=ServerOptions(refusal_headers=headers)
    ).connect()
    (reply,) = peer.exchange(b"GET /a.json HTTP/9\r\n\r\n")
    assert (reply[b"access-control-allow-origin"], reply[b"x-one"]) == (b"*", b"1")
    (reply,) = peer.server.connect().exchange(GET)
    assert b"x-one" not in reply


@pytest.mark.parametrize("secure", [True, False])
def test_all_replies_over_tls_and_no_others_carry_the_secure_headers(*, secure: bool) -> None:
    def begin(request: Request) -> None:
        request.start(200, [(b"X-One", b"1")])
        request.write(BODY)
        request.finish()

    def fail(request: Request) -> None:
        raise RuntimeError("This is in the log.")

    options = ServerOptions(secure_headers=((b"Strict-Transport-Security", b"max-age=1"),))
    replies = []
    for answer, sent in (
        (send_small, GET),
        (send_small, POST + b"Content-Length: 99999999999\r\n\r\n"),
        (send_small, b"GET /a.json HTTP/9\r\n\r\n"),
        (begin, GET),
        (fail, GET),
    ):
        peer = Server(ScriptedResource(answer), options=options).connect(secure=secure)
        replies += peer.exchange(sent)
    assert [reply.status for reply in replies] == [200, 413, 400, 200, 500]
    expected = [b"max-age=1"] if secure else []
    for reply in replies:
        found = [value for name, value in reply.fields if name == b"strict-transport-security"]
        assert found == expected


def test_a_valid_request_is_answered_before_an_invalid_one_that_follows() -> None:
    peer, requests = connect_open()
    peer.send(GET + b"BAD\r\n\r\n")
    assert peer.read() == []
    requests[0].send(200, [], BODY)
    assert [reply.status for reply in peer.read()] == [200, 400]
    assert peer.is_closed


def test_the_bodies_of_all_connections_together_are_bounded() -> None:
    server = Server(ScriptedResource(), Limits(write_body_bytes=60, held_body_bytes=100))
    head = POST + b"Content-Length: 60\r\n\r\n"
    peers = [server.connect(f"192.0.2.{number}") for number in range(3)]
    peers[0].send(head, b"x" * 50)
    peers[1].send(head, b"x" * 50)
    peers[2].send(head, b"x")
    assert peers[2].read()[0].status == 503
    peers[0].disconnect()
    again = server.connect("192.0.2.9")
    again.send(head, b"x" * 50)
    assert again.read() == []


def test_the_bodies_of_one_address_leave_room_for_those_of_others() -> None:
    server = Server(ScriptedResource(), Limits(write_body_bytes=60, held_body_bytes=400))
    head = POST + b"Content-Length: 60\r\n\r\n"
    peers = [server.connect() for _ in range(3)]
    peers[0].send(head, b"x" * 50)
    peers[1].send(head, b"x" * 50)
    peers[2].send(head, b"x")
    assert peers[2].read()[0].status == 503
    other = server.connect("192.0.2.2")
    other.send(head, b"x" * 50)
    assert other.read() == []
    peers[0].disconnect()
    again = server.connect()
    again.send(head, b"x" * 50)
    assert again.read() == []


def test_a_body_counts_until_its_request_is_answered() -> None:
    resource = ScriptedResource()
    server = Server(resource, Limits(write_body_bytes=60, held_body_bytes=100))
    head = POST + b"Content-Length: 60\r\n\r\n"
    first, second, third = (server.connect() for _ in range(3))
    first.send(head, b"x" * 59, b"x")
    second.send(head, b"x" * 59)
    assert second.read()[0].status == 503
    resource.requests[0].finish()
    third.send(head, b"x" * 59)
    assert third.read() == []


# Deadlines.


def test_an_idle_connection_is_closed_without_a_reply() -> None:
    peer = connect()
    peer.server.pass_time(74)
    assert not peer.is_closed
    peer.server.pass_time(2)
    assert peer.is_closed
    assert peer.transport.value() == b""


def test_a_connection_that_follows_one_that_has_gone_is_idle_for_the_whole_time() -> None:
    peer = connect()
    server = peer.server
    peer.disconnect()
    server.clock.advance(0.9)
    other = server.connect()
    server.clock.advance(0.1)
    server.pass_time(74)
    assert not other.is_closed
    server.pass_time(1)
    assert other.is_closed


def test_the_idle_time_starts_again_with_every_reply() -> None:
    peer = connect()
    peer.server.pass_time(50)
    peer.exchange(GET)
    peer.server.pass_time(70)
    assert not peer.is_closed
    peer.server.pass_time(6)
    assert peer.is_closed


def test_a_head_that_arrives_too_slowly_is_an_error() -> None:
    peer = connect()
    peer.server.pass_time(60)
    for at in range(19):
        peer.send(GET[at : at + 1])
        peer.server.pass_time(1)
    assert not peer.is_closed
    peer.server.pass_time(2)
    (reply,) = peer.read()
    assert reply.status == 408
    assert reply.body.startswith(b'{"error":"request_timeout","message":"The request took too long')
    assert peer.is_closed


def test_a_body_must_arrive_at_the_least_rate() -> None:
    peer = connect()
    peer.send(POST + b"Content-Length: 1000000\r\n\r\n")
    for _ in range(40):
        peer.send(b"x" * 4096)
        peer.server.pass_time(1)
    assert not peer.is_closed
    peer.server.pass_time(29)
    assert not peer.is_closed
    peer.server.pass_time(3)
    (reply,) = peer.read()
    assert reply.status == 408
    assert peer.is_closed


def test_chunk_framing_does_not_extend_the_time_for_a_body() -> None:
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


def pause_transport(peer: Peer) -> IPushProducer:
    """Pause the producer as a full transport does; return it, for the test to resume."""
    producer = IPushProducer(peer.transport.producer)
    producer.pauseProducing()
    return producer


def test_a_peer_that_does_not_read_is_dropped() -> None:
    peer, requests = connect_open()
    peer.send(GET)
    requests[0].write(b"x")
    pause_transport(peer)
    peer.server.pass_time(59)
    assert not peer.is_dropped
    peer.server.pass_time(3)
    assert peer.is_dropped


def test_a_peer_that_reads_from_time_to_time_is_not_dropped() -> None:
    peer, requests = connect_open()
    peer.send(GET)
    requests[0].write(b"x")
    for _ in range(4):
        producer = pause_transport(peer)
        peer.server.pass_time(50)
        producer.resumeProducing()
    assert not peer.is_dropped


def test_a_connection_is_not_idle_while_the_peer_is_still_reading() -> None:
    peer = connect()
    peer.send(GET)
    for _ in range(3):
        producer = pause_transport(peer)
        peer.server.pass_time(50)
        producer.resumeProducing()
    peer.server.pass_time(70)
    assert not peer.is_closed
    peer.server.pass_time(6)
    assert peer.is_closed


def test_a_connection_is_not_idle_while_a_small_rest_is_unread() -> None:
    transport = SocketTransport()
    transport.tcp.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    resource = ScriptedResource(lambda request: request.send(200, [], b"x" * 10_800))
    server = Server(resource, Limits(write_stalled_s=1000))
    connection: Any = server.factory.buildProtocol(None)
    connection.makeConnection(transport.tcp)
    connection.dataReceived(GET)
    assert transport.is_waiting
    assert not connection.writer.is_paused
    for _ in range(3):
        server.pass_time(50)
        transport.receive_some()
        transport.flush()
    assert not transport.tcp.disconnecting
    while transport.is_waiting:
        transport.receive()
        transport.flush()
    server.pass_time(70)
    assert not transport.tcp.disconnecting
    server.pass_time(6)
    assert transport.tcp.disconnecting
    transport.close()


def test_requests_wait_while_the_peer_does_not_read() -> None:
    peer = connect()
    producer = pause_transport(peer)
    peer.send(GET + GET)
    assert peer.read() == []
    producer.resumeProducing()
    assert len(peer.read() + pass_turn(peer)) == 2


def test_bytes_held_for_later_requests_are_bounded() -> None:
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


def test_a_connection_whose_reading_was_paused_is_read_while_it_closes() -> None:
    peer, requests = connect_open()
    peer.send(CLOSE, GET * 2000)
    assert peer.transport.producerState == "paused"
    requests[0].send(200, [], BODY)
    assert peer.is_closed
    assert peer.transport.producerState == "producing"


def test_after_an_error_a_peer_may_send_a_bounded_rest() -> None:
    peer = connect(Limits(write_body_bytes=1000))
    peer.send(POST + b"Content-Length: 1001\r\n\r\n")
    assert peer.is_closed
    for _ in range(20):
        peer.send(b"x" * 90)
        peer.server.pass_time(1)
    assert not peer.is_dropped
    peer.send(b"x" * 201)
    assert peer.is_dropped


def test_after_an_error_a_peer_that_does_not_close_is_dropped() -> None:
    peer = connect()
    peer.send(b"BAD\r\n\r\n")
    peer.server.pass_time(4)
    assert not peer.is_dropped
    peer.server.pass_time(2)
    assert peer.is_dropped


def test_after_an_error_a_peer_that_sends_slowly_is_dropped() -> None:
    peer = connect()
    peer.send(b"BAD\r\n\r\n")
    for _ in range(29):
        peer.send(b"x")
        peer.server.pass_time(1)
    assert not peer.is_dropped
    peer.send(b"x")
    peer.server.pass_time(2)
    assert peer.is_dropped


def test_a_request_is_notified_that_its_client_has_disconnected() -> None:
    peer, requests = connect_open()
    lost: list[Any] = []
    peer.send(GET + GET)
    requests[0].notifyFinish().addErrback(lost.append)
    peer.disconnect()
    assert len(lost) == 1
    requests[0].finish()
    assert len(requests) == 1


def test_a_closed_connection_is_freed_without_the_garbage_collector() -> None:
    gc.collect()
    gc.disable()
    try:
        resource = ScriptedResource(send_small)
        peer = Server(resource).connect()
        peer.exchange(GET, GET[:10])
        resource.requests.clear()
        connection = weakref.ref(peer.connection)
        peer.disconnect()
        del peer
        assert connection() is None
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


def test_a_peer_may_disconnect_while_its_requests_yield_to_others() -> None:
    peer = connect()
    peer.send(GET * 200)
    peer.disconnect()
    peer.server.pass_time(2)
    assert peer.server.clock.getDelayedCalls() == []
    assert len(peer.read()) == 1


def test_a_pull_producer_is_called_until_it_has_finished() -> None:
    peer, requests = connect_open()
    peer.send(GET)
    request = requests[0]

    class CountingProducer:
        remaining = 3

        def resumeProducing(self) -> None:
            self.remaining -= 1
            request.write(b"x")
            if self.remaining == 2:
                pause_transport(peer)
            if not self.remaining:
                request.unregisterProducer()
                request.finish()

        def stopProducing(self) -> None:
            raise AssertionError

    producer: Any = CountingProducer()
    request.registerProducer(producer, False)
    peer.server.clock.advance(0)
    assert producer.remaining == 2
    IPushProducer(peer.transport.producer).resumeProducing()
    peer.server.clock.advance(0)
    assert [reply.body for reply in peer.read()] == [b"xxx"]
    assert not peer.is_closed


def test_a_pull_producer_that_raises_drops_the_connection() -> None:
    peer, requests = connect_open()
    peer.send(GET)
    stopped = []

    class RaisingProducer:
        def resumeProducing(self) -> None:
            raise KeyError("inside")

        def stopProducing(self) -> None:
            stopped.append(True)

    producer: Any = RaisingProducer()
    requests[0].registerProducer(producer, False)
    peer.server.clock.advance(0)
    peer.server.clock.advance(0)
    assert peer.is_dropped
    peer.disconnect()
    assert stopped == [True]
