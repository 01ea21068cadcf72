"""Connections that begin with a header of the PROXY protocol, in memory and by the clock."""

from __future__ import annotations

from typing import Any, cast

from twisted.internet.address import IPv4Address, UNIXAddress
from twisted.logger import capturedLogs

from tests.http1.peer import BODY, GET, CountingTransport, ScriptedResource, Server, send_small
from treedbd.http1.request import Request
from treedbd.http1.server import ProxiedFactory
from treedbd.limits import Limits

PROXY = "10.0.0.1"


def line_of(client: str) -> bytes:
    return f"PROXY TCP4 {client} 192.0.2.80 4000 443\r\n".encode()


class Proxied:
    """A server behind a proxy at `PROXY`."""

    def __init__(self, limits: Limits | None = None) -> None:
        self.requests: list[Request] = []
        self.server = Server(ScriptedResource(self._answer), limits)
        self.factory = ProxiedFactory(
            self.server.factory.connections, self.server.factory, PROXY.__eq__
        )

    def _answer(self, request: Request) -> None:
        self.requests.append(request)
        send_small(request)

    def connect(self, *pieces: bytes, proxy: str = PROXY) -> CountingTransport:
        """Connect, and send pieces as the transport would deliver them."""
        transport = CountingTransport(proxy)
        protocol: Any = self.factory.buildProtocol(transport.getPeer())
        cast(Any, transport).protocol = protocol
        protocol.makeConnection(transport)
        for piece in pieces:
            cast(Any, transport).protocol.dataReceived(piece)
        return transport

    def lose(self, transport: CountingTransport) -> None:
        """Let a connection end."""
        cast(Any, transport).protocol.connectionLost()


def test_the_client_of_a_request_is_the_one_that_the_header_names() -> None:
    proxied = Proxied()
    transport = proxied.connect(line_of("203.0.113.9") + GET)
    assert transport.value().endswith(BODY)
    (request,) = proxied.requests
    assert request.client == IPv4Address("TCP", "203.0.113.9", 4000)
    assert request.getHost() == IPv4Address("TCP", "192.0.2.80", 443)


def test_a_header_in_pieces_is_read_and_the_rest_is_served() -> None:
    proxied = Proxied()
    header = line_of("203.0.113.9")
    transport = proxied.connect(header[:7], header[7:] + GET[:9], GET[9:])
    assert transport.value().endswith(BODY)
    assert len(proxied.requests) == 1


def test_a_proxy_that_connects_for_itself_has_its_own_address() -> None:
    proxied = Proxied()
    proxied.connect(b"PROXY UNKNOWN\r\n" + GET)
    assert proxied.requests[0].getClientAddress().host == PROXY


def test_limits_per_address_count_the_clients_and_not_the_proxy() -> None:
    proxied = Proxied(Limits(connections_per_address=1))
    first, other = (proxied.connect(line_of(f"203.0.113.{n}") + GET) for n in (1, 2))
    again = proxied.connect(line_of("203.0.113.1") + GET)
    assert [each.value()[9:12] for each in (first, other, again)] == [b"200", b"200", b"429"]
    proxied.lose(first)
    assert proxied.connect(line_of("203.0.113.1") + GET).value()[9:12] == b"200"


def test_a_connection_without_a_header_is_dropped_and_its_request_not_served() -> None:
    proxied = Proxied()
    with capturedLogs() as events:
        transports = [proxied.connect(GET) for _ in range(3)]
    assert all(each.disconnected for each in transports)
    assert [each.value() for each in transports] == [b"", b"", b""]
    assert proxied.requests == []
    (warning,) = [each for each in events if "peer" in each]
    assert "does not begin with a header" in warning["log_format"]


def test_a_peer_that_is_not_trusted_gets_no_connection() -> None:
    proxied = Proxied()
    with capturedLogs() as events:
        assert proxied.factory.buildProtocol(IPv4Address("TCP", "203.0.113.66", 1)) is None
        proxied.server.clock.advance(61)
        assert proxied.factory.buildProtocol(UNIXAddress(b"/run/socket")) is None
    assert [each["peer"] for each in events if "peer" in each] == ["203.0.113.66", ""]


def test_a_header_that_does_not_come_has_a_deadline_that_no_byte_extends() -> None:
    proxied = Proxied(Limits(handshake_s=10))
    transport = proxied.connect(b"PROXY ")
    for byte in b"TCP4 203.":  # a byte each second
        proxied.server.pass_time(1)
        cast(Any, transport).protocol.dataReceived(bytes([byte]))
    assert not transport.disconnected
    proxied.server.pass_time(2)
    assert transport.disconnected


def test_connections_without_a_header_yet_are_counted_and_limited() -> None:
    proxied = Proxied(Limits(connections=2))
    waiting = [proxied.connect(), proxied.connect()]
    assert proxied.server.factory.connections.count == 2
    assert proxied.connect().disconnected
    proxied.lose(waiting[0])
    served = proxied.connect(line_of("203.0.113.9") + GET)
    assert served.value()[9:12] == b"200"
    assert proxied.server.factory.connections.count == 2


def test_a_server_that_stops_drops_connections_without_a_header() -> None:
    proxied = Proxied()
    transport = proxied.connect()
    drained: list[None] = []
    proxied.server.factory.drain().addCallback(drained.append)
    assert transport.disconnected
    proxied.lose(transport)
    assert drained == [None]
    assert proxied.connect().disconnected
