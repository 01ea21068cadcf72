"""What is known of an open endpoint: who can connect to it, and by which URL."""

from __future__ import annotations

import pathlib

import pytest
from twisted.internet.address import IPv4Address, IPv6Address, UNIXAddress

from treedbd.config.endpoints import parse_endpoint
from treedbd.config.listen import is_local, url_of


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
