"""What is known of an open endpoint: who can connect to it, and by which URL."""

from __future__ import annotations

import contextlib
import pathlib
import socket
from typing import Any

import pytest
from twisted.internet import reactor
from twisted.internet.address import IPv4Address, IPv6Address, UNIXAddress
from twisted.internet.protocol import Factory

from treedbd.config.endpoints import parse_endpoint
from treedbd.config.listening import ACCEPTED_AT_ONCE, is_local, open_endpoint, url_of


@pytest.mark.parametrize(
    ("address", "is_near"),
    [
        (IPv4Address("TCP", "127.0.0.1", 80), True),
        (IPv4Address("TCP", "127.1.2.3", 80), True),
        (IPv6Address("TCP", "::1", 80), True),
        (UNIXAddress(b"/run/treedb.sock"), True),
        (IPv4Address("TCP", "0.0.0.0", 80), False),
        (IPv4Address("TCP", "192.0.2.1", 80), False),
        (IPv6Address("TCP", "::", 80), False),
        (IPv6Address("TCP", "2001:db8::1", 80), False),
        (object(), False),
    ],
)
def test_only_this_machine_reaches_loopback_and_paths(address: object, is_near: bool) -> None:
    assert is_local(address) is is_near


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("systemd:web", "http://127.0.0.1:8080"),
        ("systemd:web:privateKey=k", "https://127.0.0.1:8080"),
        ("haproxy:tcp:8080", "haproxy:http://127.0.0.1:8080"),
        ("haproxy:ssl:8080:privateKey=k", "haproxy:https://127.0.0.1:8080"),
        ("haproxy:systemd:web", "haproxy:http://127.0.0.1:8080"),
    ],
)
def test_the_url_of_an_endpoint_says_who_can_use_it(text: str, url: str) -> None:
    address = IPv4Address("TCP", "0.0.0.0", 8080)
    assert url_of(parse_endpoint(text, pathlib.Path("/")), address) == url


def test_a_port_accepts_a_few_connections_at_a_time_however_many_there_are() -> None:
    accepted: list[object] = []
    factory: Any = Factory()
    factory.buildProtocol = accepted.append
    endpoint = parse_endpoint("tcp:0:interface=127.0.0.1:backlog=200", pathlib.Path())
    port: Any = open_endpoint(endpoint, reactor, factory, None)
    with contextlib.ExitStack() as stack:
        for _ in range(5 * ACCEPTED_AT_ONCE):
            stack.enter_context(socket.create_connection(("127.0.0.1", port.getHost().port)))
        for at in range(1, 6):
            port.doRead()
            assert len(accepted) == at * ACCEPTED_AT_ONCE
        port.stopListening()
