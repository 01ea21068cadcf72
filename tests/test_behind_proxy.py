"""`haproxy:` endpoints: a real daemon behind proxies that speak the PROXY protocol."""

from __future__ import annotations

import contextlib
import json
import pathlib
import socket
import ssl
import struct
import subprocess
from collections.abc import Iterator
from typing import NamedTuple

import pytest

from tests.daemon import Daemon
from tests.realtime import RealtimeClient
from tests.rest import Wire
from tests.system import find_port, wait_until

CONFIG = """
default_project = "shop"
[http]
access_log = true
[limits]
handshake_s = 1.0
connections_per_address = 3
[projects.shop]
"""
GET = b"GET /.health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
CLIENT = "203.0.113.9"
LINE = f"PROXY TCP4 {CLIENT} 127.0.0.1 4000 443\r\n".encode()
BINARY = (
    b"\r\n\r\n\x00\r\nQUIT\n\x21\x11"
    + struct.pack("!H", 12)
    + socket.inet_aton(CLIENT)
    + socket.inet_aton("127.0.0.1")
    + struct.pack("!HH", 4000, 443)
)


def addresses(daemon: Daemon) -> list[tuple[str, int]]:
    """Return where the daemon listens: with TLS, then without."""
    ports = [int(url.rpartition(":")[2]) for url in daemon.urls]
    return [("127.0.0.1", port) for port in ports]


def make_daemon(folder: pathlib.Path, *arguments: str) -> Daemon:
    """Return a daemon that listens with TLS and without, behind a proxy."""
    plain = Daemon(folder, config=CONFIG)
    listen = [f"haproxy:{each}" for each in plain._make_endpoints(CONFIG)]
    return Daemon(folder, config=CONFIG, listen=listen, arguments=arguments)


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    with make_daemon(tmp_path_factory.mktemp("proxied")) as running:
        yield running


def receive_all(connected: socket.socket) -> bytes:
    """Return what a server sends until it closes, or resets."""
    received = b""
    with contextlib.suppress(ConnectionResetError):
        while piece := connected.recv(65_536):
            received += piece
    return received


def exchange(address: tuple[str, int], *pieces: bytes) -> bytes:
    """Send pieces on a new connection; return the response."""
    with socket.create_connection(address, 30) as connected:
        with contextlib.suppress(ConnectionResetError, BrokenPipeError):
            for piece in pieces:
                connected.sendall(piece)
        return receive_all(connected)


@pytest.mark.parametrize("header", [LINE, BINARY])
def test_the_log_names_the_client_of_a_header(daemon: Daemon, header: bytes) -> None:
    _, plain = addresses(daemon)
    assert exchange(plain, header + GET).startswith(b"HTTP/1.1 200 ")
    daemon.await_line(rf"GET /\.health 200 .*client={CLIENT} ")


def test_the_header_comes_before_tls(daemon: Daemon) -> None:
    secure, _ = addresses(daemon)
    context = ssl.create_default_context(cafile=str(daemon.ca))
    with socket.create_connection(secure, 30) as connected:
        connected.sendall(BINARY)
        with context.wrap_socket(connected, server_hostname="localhost") as encrypted:
            encrypted.sendall(GET)
            assert receive_all(encrypted).startswith(b"HTTP/1.1 200 ")
    daemon.await_line(rf"GET /\.health 200 .*client={CLIENT} ")


def test_ready_names_what_only_a_proxy_can_use(daemon: Daemon) -> None:
    assert [url.rpartition(":")[0] for url in daemon.urls] == [
        "haproxy:https://127.0.0.1",
        "haproxy:http://127.0.0.1",
    ]


@pytest.mark.parametrize(
    "begin",
    [GET, LINE.replace(b"4000", b"x"), BINARY[:12] + b"\x31" + BINARY[13:], b"\x16\x03\x01"],
)
def test_what_does_not_begin_with_a_header_is_closed_without_a_response(
    daemon: Daemon, begin: bytes
) -> None:
    for address in addresses(daemon):
        assert exchange(address, begin, GET) == b""


def test_a_header_that_never_comes_ends_with_the_time_of_a_handshake(daemon: Daemon) -> None:
    for address in addresses(daemon):
        assert exchange(address, LINE[:10]) == b""  # the socket's own timeout is an error
    assert "Traceback" not in daemon.log
    assert "Unhandled" not in daemon.log


def test_connections_per_address_count_clients_over_all_workers(tmp_path: pathlib.Path) -> None:
    with make_daemon(tmp_path, "--workers", "2") as daemon, contextlib.ExitStack() as stack:
        _, plain = addresses(daemon)

        def status_of(client: str) -> bytes:
            connected = stack.enter_context(socket.create_connection(plain, 30))
            connected.sendall(LINE.replace(CLIENT.encode(), client.encode()))
            connected.sendall(GET.replace(b"Connection: close\r\n", b""))
            return connected.recv(12)[9:]

        assert [status_of(CLIENT) for _ in range(4)] == [b"200", b"200", b"200", b"429"]
        assert [status_of(f"203.0.113.{n}") for n in range(10, 16)] == [b"200"] * 6


HAPROXY = """
defaults
    mode tcp
    timeout connect 10s
    timeout client 30s
    timeout server 30s
listen text
    bind 127.0.0.1:{text}
    server treedb 127.0.0.1:{plain} send-proxy
listen binary
    bind 127.0.0.1:{binary}
    server treedb 127.0.0.1:{secure} send-proxy-v2 check
listen requests
    mode http
    timeout tunnel 1h
    bind 127.0.0.1:{requests}
    server treedb 127.0.0.1:{plain} send-proxy
"""


def test_haproxy_of_debian_passes_clients_on(tmp_path: pathlib.Path, daemon: Daemon) -> None:
    ports = {name: find_port() for name in ("text", "binary", "requests")}
    (_, secure), (_, plain) = addresses(daemon)
    file = tmp_path / "haproxy.cfg"
    file.write_text(HAPROXY.format(**ports, secure=secure, plain=plain))
    proxy = subprocess.Popen(["haproxy", "-db", "-q", "-f", str(file)])
    try:
        wait_until(lambda: all(map(can_connect, ports.values())))
        assert json.loads(exchange(("127.0.0.1", ports["text"]), GET).rpartition(b"\r\n")[2]) == {
            "status": "ok"
        }
        for name, port in ports.items():
            url = f"http{'s' * (name == 'binary')}://127.0.0.1:{port}"
            with RealtimeClient(Passed(url, daemon.ca)) as client:
                assert client.ping() == {"t": "o", "d": None}
                assert client.request("g", {"p": "a"}).status == "permission_denied"
        context = ssl.create_default_context(cafile=str(daemon.ca))
        with (
            socket.create_connection(("127.0.0.1", ports["binary"]), 30) as connected,
            context.wrap_socket(connected, server_hostname="localhost") as encrypted,
        ):
            encrypted.sendall(GET)
            assert receive_all(encrypted).startswith(b"HTTP/1.1 200 ")
    finally:
        proxy.terminate()
        proxy.wait(30)


class Passed(NamedTuple):
    """What a client of HAProxy connects to."""

    url: str
    ca: pathlib.Path | None
    host: str = "localhost"

    def connect(self) -> Wire:
        return Wire(self.url, self.ca)


def can_connect(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 30):
        return True
    return False
