"""Replies with long content: sent as the client reads, from one copy that all readers share."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import pytest
from twisted.internet.task import Clock

from tests.database.world import TurnClock
from tests.http1.peer import GET, ScriptedResource, Server
from tests.http1.test_direct_send import SocketTransport
from treedbd.http1.connection import ConnectionWriter
from treedbd.http1.content import Content, ContentReader, WaitingBytes
from treedbd.http1.request import Request
from treedbd.http1.senders import Ring
from treedbd.limits import Limits

MB = 1_048_576
HEAD = b"head\r\n\r\n"
BUFFERED = 8 * 1024
TEXT = b"y" * 500_000


class Sending:
    """One reply with a body of numbers, that can be told apart."""

    def __init__(
        self,
        transport: SocketTransport,
        size: int,
        *,
        in_file: bool = False,
        ring: Ring | None = None,
    ) -> None:
        self.clock = Clock()
        self.waiting = WaitingBytes(10 * size)
        self.body = b"".join(b"%07d\n" % number for number in range(size // 8))
        self.done = 0
        self.received = b""
        self.transport = transport
        source: Any = self.body
        if in_file:
            source = tempfile.TemporaryFile()  # noqa: SIM115 - the content closes it
            source.write(self.body)
        self.content = Content(self.waiting, source)
        self.writer = ConnectionWriter(transport.tcp, ring or Ring(self.clock), lambda: None)

    def begin(self) -> ContentReader:
        reader = self.content.open("192.0.2.1")
        self.writer.send_content(HEAD, reader, self._finish)
        return reader

    def read_all(self) -> None:
        """Read until nothing is left, as slowly as the socket buffer is small."""
        self.received += self.transport.receive()
        while self.transport.is_waiting or self.clock.getDelayedCalls():
            if self.transport.is_waiting:
                self.transport.flush()
            self.clock.advance(0)
            self.received += self.transport.receive()

    @property
    def buffered_bytes(self) -> int:
        tcp = self.transport.tcp
        return len(tcp.dataBuffer) - tcp.offset + tcp._tempDataLen

    def _finish(self) -> None:
        self.done += 1


MakeFast: TypeAlias = Callable[[Ring], Sending]


@pytest.fixture
def make_fast() -> Iterator[MakeFast]:
    """Make a reply of 3 MiB whose client reads at once all that it is sent."""
    with contextlib.ExitStack() as stack:

        def make(ring: Ring) -> Sending:
            transport = SocketTransport()
            stack.callback(transport.close)
            sending = Sending(transport, 3 * MB, ring=ring)
            sending.writer._send_directly = len
            return sending

        yield make


@pytest.mark.parametrize("in_file", [False, True])
@pytest.mark.parametrize("size", [8, 20_000, 3 * MB])
def test_a_client_that_reads_slowly_receives_every_byte(
    transport: SocketTransport, size: int, in_file: bool
) -> None:
    sending = Sending(transport, size, in_file=in_file)
    sending.begin()
    sending.read_all()
    assert sending.received == HEAD + sending.body
    assert (sending.done, sending.waiting.total) == (1, 0)


def test_what_a_client_does_not_read_is_not_copied(transport: SocketTransport) -> None:
    sending = Sending(transport, 3 * MB)
    reader = sending.begin()
    assert sending.writer.is_paused
    assert 0 < sending.buffered_bytes < BUFFERED
    assert reader.remaining > 2 * MB
    assert (sending.done, sending.waiting.total) == (0, 3 * MB)
    for _ in range(5):
        sending.received += transport.receive()
        transport.flush()
        assert sending.buffered_bytes < BUFFERED


def test_a_client_that_has_gone_releases_it(transport: SocketTransport) -> None:
    sending = Sending(transport, 3 * MB)
    sending.begin()
    sending.writer.release()
    sending.clock.advance(0)
    assert (sending.done, sending.waiting.total) == (0, 0)


def test_while_the_transport_is_paused_only_the_head_is_written(
    transport: SocketTransport,
) -> None:
    sending = Sending(transport, 20_000)
    sending.writer.write(b"x" * 100_000)
    reader = sending.begin()
    assert reader.remaining == len(sending.body)
    sending.read_all()
    assert sending.received == b"x" * 100_000 + HEAD + sending.body


def test_a_client_that_reads_at_once_gets_no_more_than_its_turn(
    transport: SocketTransport,
) -> None:
    sending = Sending(transport, 3 * MB)
    sending.writer._send_directly = len  # a client as fast as no other
    reader = sending.begin()
    assert MB <= 3 * MB - reader.remaining < 2 * MB
    sending.clock.advance(0)
    assert sending.done == 1


def test_many_clients_that_read_at_once_share_each_turn_in_order(
    make_fast: MakeFast,
) -> None:
    clock = TurnClock()
    ring = Ring(clock)
    sendings = [make_fast(ring) for _ in range(30)]
    readers = [each.begin() for each in sendings]
    left = sum(reader.remaining for reader in readers)
    while left:
        assert clock.take_turn()
        before, left = left, sum(reader.remaining for reader in readers)
        assert before - left <= 3 * MB
        counts = [reader.remaining for reader in readers]
        assert max(counts) - min(counts) <= MB
    assert [each.done for each in sendings] == [1] * 30
    assert not clock.take_turn()


def test_a_client_that_has_gone_leaves_the_ring_to_the_others(make_fast: MakeFast) -> None:
    clock = TurnClock()
    ring = Ring(clock)
    gone, other = make_fast(ring), make_fast(ring)
    gone.begin()
    other.begin()
    gone.writer.release()
    while clock.take_turn():
        pass
    assert (gone.done, gone.waiting.total) == (0, 0)
    assert (other.done, other.waiting.total) == (1, 0)


def test_a_reply_that_fails_in_the_middle_is_dropped(
    transport: SocketTransport, monkeypatch: pytest.MonkeyPatch
) -> None:
    sending = Sending(transport, 3 * MB, in_file=True)
    sending.begin()
    sending.content._file.truncate(0)  # type: ignore[union-attr]
    aborted: list[None] = []
    monkeypatch.setattr(transport.tcp, "abortConnection", lambda: aborted.append(None))
    while not aborted:
        transport.receive()
        transport.flush()
    assert (sending.done, sending.waiting.total) == (0, 0)


# On a connection.


def send_text(waiting: WaitingBytes) -> ScriptedResource:
    """Answer every request with the same content."""
    content = Content(waiting, TEXT)

    def answer(request: Request) -> None:
        request.send_content(200, [(b"Content-Type", b"text/plain")], content.open(""))

    return ScriptedResource(answer)


def test_pipelined_requests_are_answered_one_after_the_other() -> None:
    waiting = WaitingBytes(MB)
    peer = Server(send_text(waiting)).connect()
    peer.transport.room = 20_000
    peer.send(GET * 3)
    assert len(peer.transport.value()) < 2 * len(TEXT)
    replies = peer.read_slowly()
    assert [reply.body for reply in replies] == [TEXT] * 3
    assert [reply[b"content-length"] for reply in replies] == [b"500000"] * 3
    assert waiting.total == 0


def test_a_reply_to_head_has_the_length_and_no_body() -> None:
    waiting = WaitingBytes(MB)
    peer = Server(send_text(waiting)).connect()
    both = GET.replace(b"GET", b"HEAD") + GET
    head, whole = peer.exchange(both, methods=(b"HEAD", b"GET"))
    assert (head[b"content-length"], head.body) == (b"500000", b"")
    assert len(whole.body) == 500_000
    assert waiting.total == 0


def test_a_connection_that_is_to_be_closed_is_closed_after_the_last_byte() -> None:
    peer = Server(send_text(WaitingBytes(MB))).connect()
    peer.transport.room = 20_000
    peer.send(GET.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))
    assert not peer.is_closed
    (reply,) = peer.read_slowly()
    assert len(reply.body) == 500_000
    assert peer.is_closed


def test_a_client_that_disconnects_in_the_middle_releases_the_content() -> None:
    waiting = WaitingBytes(MB)
    peer = Server(send_text(waiting)).connect()
    peer.transport.room = 20_000
    peer.send(GET)
    assert waiting.total == 500_000
    peer.disconnect()
    assert waiting.total == 0


def test_a_client_that_reads_nothing_is_dropped(
    transport: SocketTransport, monkeypatch: pytest.MonkeyPatch
) -> None:
    aborted: list[None] = []
    monkeypatch.setattr(transport.tcp, "abortConnection", lambda: aborted.append(None))
    waiting = WaitingBytes(MB)
    server = Server(send_text(waiting), Limits(write_stalled_s=10))
    connection: Any = server.factory.buildProtocol(None)
    connection.makeConnection(transport.tcp)
    connection.dataReceived(GET)
    server.pass_time(9)
    assert not aborted
    server.pass_time(3)
    assert aborted


@pytest.mark.parametrize(("read_bytes_per_s", "is_dropped"), [(1, False), (MB, True)])
def test_a_client_that_reads_more_slowly_than_the_least_rate_is_dropped(
    transport: SocketTransport,
    monkeypatch: pytest.MonkeyPatch,
    read_bytes_per_s: int,
    *,
    is_dropped: bool,
) -> None:
    aborted: list[None] = []
    monkeypatch.setattr(transport.tcp, "abortConnection", lambda: aborted.append(None))
    limits = Limits(write_stalled_s=10, read_bytes_per_s=read_bytes_per_s)
    server = Server(send_text(WaitingBytes(MB)), limits)
    connection: Any = server.factory.buildProtocol(None)
    connection.makeConnection(transport.tcp)
    connection.dataReceived(GET)
    for _ in range(9):
        server.pass_time(1)
        transport.receive_some()
        transport.flush()
    assert not aborted
    server.pass_time(3)
    assert bool(aborted) is is_dropped


def test_a_client_that_was_gone_before_releases_the_content() -> None:
    waiting = WaitingBytes(MB)
    resource = ScriptedResource()
    peer = Server(resource).connect()
    peer.send(GET)
    peer.disconnect()
    resource.requests[0].send_content(200, [], Content(waiting, TEXT).open(""))
    assert waiting.total == 0
