"""Requests by way of a proxy: of a trusted one what it says counts, of any other nothing does."""

from __future__ import annotations

import pytest

from tests.http1.peer import Peer, ScriptedResource, Server, send_small
from treedbd.http1.proxies import ProxiedRequest
from treedbd.http1.registry import ServerOptions
from treedbd.http1.request import Request
from treedbd.limits import Limits
from treedbd.names import parse_trusted_proxies
from treedbd.web.response import address_of

PROXY = "10.0.0.1"
FIELDS = (
    b"X-Forwarded-For: 198.51.100.7\r\nX-Forwarded-Proto: https\r\n"
    b"X-Forwarded-Host: shop.example.com\r\n"
)


def get(*fields: bytes) -> bytes:
    return b"GET /a.json HTTP/1.1\r\nHost: localhost\r\n" + b"".join(fields) + b"\r\n"


def serve(limits: Limits | None = None) -> tuple[Server, list[Request]]:
    """Return a server that trusts `PROXY`, and the requests that it receives."""
    resource = ScriptedResource(send_small)
    options = ServerOptions(trusted_proxies=parse_trusted_proxies([PROXY]))
    return Server(resource, limits, options=options), resource.requests


def facts(request: Request) -> tuple[str, bool, bytes | None, bool]:
    host = request.getHeader(b"host")
    return address_of(request), request.isSecure(), host, request.came_by_trusted_proxy


def test_of_a_trusted_proxy_address_scheme_and_host_count() -> None:
    server, requests = serve()
    server.connect(PROXY).send(get(FIELDS))
    (request,) = requests
    assert facts(request) == ("198.51.100.7", True, b"shop.example.com", True)
    assert request.client.host == "198.51.100.7"
    assert request.requestHeaders.getRawHeaders(b"host") == [b"shop.example.com"]
    assert request.getRequestHostname() == b"shop.example.com"


def test_of_any_other_peer_they_are_ignored() -> None:
    server, requests = serve()
    server.connect("192.0.2.1").send(get(FIELDS, b"Forwarded: for=198.51.100.7;proto=https\r\n"))
    (request,) = requests
    assert facts(request) == ("192.0.2.1", False, b"localhost", False)
    assert type(request) is Request


def test_without_trusted_proxies_nobody_is_one() -> None:
    resource = ScriptedResource(send_small)
    Server(resource).connect(PROXY).send(get(FIELDS))
    assert facts(resource.requests[0]) == (PROXY, False, b"localhost", False)


def test_what_a_trusted_proxy_does_not_say_is_that_of_its_connection() -> None:
    server, requests = serve()
    server.connect(PROXY).send(get())
    assert facts(requests[0]) == (PROXY, False, b"localhost", True)


def test_each_request_of_a_connection_has_its_own_client() -> None:
    server, requests = serve()
    peer = server.connect(PROXY)
    heads = [get(b"X-Forwarded-For: 198.51.100.%d\r\n" % n) for n in (1, 1, 2, 2, 1)]
    for head in (*heads, get()):
        peer.send(head)
    addresses = [address_of(request) for request in requests]
    assert addresses == [f"198.51.100.{n}" for n in (1, 1, 2, 2, 1)] + [PROXY]
    assert requests[2].head_memory is not requests[1].head_memory


def test_a_client_that_sends_the_head_of_a_proxy_has_not_what_the_proxy_says() -> None:
    server, requests = serve()
    others = (PROXY, "192.0.2.1", PROXY, "192.0.2.2")
    for address in others * 2:
        peer = server.connect(address)
        for _ in range(3):
            peer.send(get(FIELDS))
            is_proxy = address == PROXY
            said = ("198.51.100.7", True, b"shop.example.com", True)
            own = (address, False, b"localhost", False)
            assert facts(requests[-1]) == (said if is_proxy else own)


def test_bodies_of_any_length_come_by_a_proxy() -> None:
    server, requests = serve()
    peer = server.connect(PROXY)
    for length in (1, 2, 2, 10, 1):
        head = get(FIELDS, b"Content-Length: %d\r\n" % length).replace(b"GET", b"PUT")
        peer.send(head + b"1" * length)
        request = requests[-1]
        assert facts(request) == ("198.51.100.7", True, b"shop.example.com", True)
        assert request.headers[b"content-length"] == [b"%d" % length]
        assert request.content.read() == b"1" * length


def test_what_a_repeated_head_says_is_read_once() -> None:
    server, requests = serve()
    peer = server.connect(PROXY)
    for _ in range(3):
        peer.send(get(FIELDS))
    assert requests[2].headers is requests[1].headers
    assert all(isinstance(request, ProxiedRequest) for request in requests)


def test_the_limit_of_connections_per_address_does_not_count_a_trusted_proxy() -> None:
    limits = Limits(connections=4, connections_per_address=1)
    server, _ = serve(limits)
    proxied = [server.connect(PROXY) for _ in range(3)]
    assert [_status(peer) for peer in proxied] == [200, 200, 200]
    first, second = server.connect("192.0.2.1"), server.connect("192.0.2.1")
    assert _status(first) == 200
    (refusal,) = second.read()
    assert refusal.status == 503
    proxied[0].disconnect()
    first.disconnect()
    second.disconnect()
    assert [_status(server.connect("192.0.2.1")), _status(server.connect(PROXY))] == [200, 200]
    (refusal,) = server.connect(PROXY).read()
    assert refusal.status == 503


def _status(peer: Peer) -> int:
    (reply,) = peer.exchange(get())
    return reply.status


@pytest.mark.parametrize("name", [b"Forwarded", b"X-Forwarded-For", b"X-Forwarded-Host"])
def test_malformed_words_of_a_proxy_change_nothing(name: bytes) -> None:
    server, requests = serve()
    server.connect(PROXY).send(get(name, b': "\xff <>\r\n'))
    assert facts(requests[0]) == (PROXY, False, b"localhost", True)
