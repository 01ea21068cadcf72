"""Clients of one IPv6 network are one where an address has a bound: each has 2^64 addresses."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import attrs
import pytest

from tests.web.tree_server import PATIENT, SETTINGS, TreeServer
from tests.websocket_frames import KEY

VALUE = {f"k{number:04}": "x" * 190 for number in range(1000)}
SIZE = len(json.dumps(VALUE, separators=(",", ":")))
NEIGHBOURS = ("2001:db8:0:1::1", "2001:db8:0:1::2", "2001:db8:0:1:ffff::1")
ELSEWHERE = "2001:db8:0:2::1"


def serve(folder: pathlib.Path, **limits: Any) -> TreeServer:
    return TreeServer(
        folder, options=attrs.evolve(SETTINGS, limits=attrs.evolve(PATIENT, **limits))
    )


def request(server: TreeServer, address: str, head: str) -> int:
    """Send a head from an address, leave its reply unread, and return its status."""
    peer = server.connect(address)
    peer.transport.room = 10_000
    peer.send(f"{head}\r\nHost: demo.localhost\r\n\r\n".encode())
    server.clock.advance(0)
    return peer.status


def check(server: TreeServer, head: str, status: int, *, refused: int) -> None:
    """Check that the third client of a network is refused, and one of another network is not."""
    found = [request(server, address, head) for address in (*NEIGHBOURS, ELSEWHERE)]
    assert found == [status, status, refused, status]


def test_connections_of_a_network_are_limited_together(tmp_path: pathlib.Path) -> None:
    server = serve(tmp_path, connections_per_address=2)
    check(server, "GET /a.json HTTP/1.1", 200, refused=429)


def test_streams_of_a_network_are_limited_together(tmp_path: pathlib.Path) -> None:
    server = serve(tmp_path, streams_per_address=2)
    check(server, "GET /a.json HTTP/1.1\r\nAccept: text/event-stream", 200, refused=429)


def test_sockets_of_a_network_are_limited_together(tmp_path: pathlib.Path) -> None:
    server = serve(tmp_path, sockets_per_address=2)
    upgrade = "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13"
    check(
        server,
        f"GET /.ws?v=5 HTTP/1.1\r\n{upgrade}\r\nSec-WebSocket-Key: {KEY}",
        101,
        refused=503,
    )


def test_what_waits_for_a_network_is_bounded_together(tmp_path: pathlib.Path) -> None:
    server = serve(tmp_path, waiting_bytes=10 * SIZE)
    for number in range(3):
        server.write("PUT", f"/{number}", VALUE)
    found = [
        request(server, address, f"GET /{number}.json HTTP/1.1")
        for number, address in enumerate(NEIGHBOURS)
    ]
    assert found == [200, 200, 429]
    assert request(server, ELSEWHERE, "GET /2.json HTTP/1.1") == 200


def test_what_is_held_for_a_network_is_bounded_together(tmp_path: pathlib.Path) -> None:
    server = serve(tmp_path, held_bytes_per_address=300_000)
    long = "x" * 45_000
    check(
        server,
        f'GET /a.json?orderBy="$key"&startAt="{long}" HTTP/1.1\r\nAccept: text/event-stream',
        200,
        refused=503,
    )


def test_bodies_of_a_network_are_bounded_together(tmp_path: pathlib.Path) -> None:
    server = serve(tmp_path, held_body_bytes=10_000, write_body_bytes=2500)
    peers = []
    for address in (*NEIGHBOURS, ELSEWHERE):
        peers.append(server.connect(address))
        head = b"PUT /a.json HTTP/1.1\r\nHost: demo.localhost\r\nContent-Length: 2000\r\n\r\n"
        peers[-1].send(head + b" " * 1200)
    assert [peer.is_closed for peer in peers] == [False, False, True, False]


@pytest.mark.parametrize("address", ["192.0.2.1", "::ffff:192.0.2.1"])
def test_an_ipv4_address_is_one_however_it_is_written(tmp_path: pathlib.Path, address: str) -> None:
    server = serve(tmp_path, connections_per_address=2)
    heads = [request(server, each, "GET /a.json HTTP/1.1") for each in ["192.0.2.1"] * 2]
    assert heads == [200, 200]
    assert request(server, address, "GET /a.json HTTP/1.1") == 429
    assert request(server, "192.0.2.2", "GET /a.json HTTP/1.1") == 200
