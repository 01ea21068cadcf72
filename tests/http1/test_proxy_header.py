"""The header of the PROXY protocol: what is accepted, what is not, and what of it counts."""

from __future__ import annotations

import contextlib
import ipaddress
import socket
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from twisted.internet.address import IPv4Address, IPv6Address

from treedbd.http1.proxies import (
    MAX_BINARY_BYTES,
    InvalidProxyHeader,
    ProxyHeader,
    read_proxy_header,
)

SIGNATURE = b"\r\n\r\n\x00\r\nQUIT\n"
V4 = struct.pack("!4s4sHH", bytes([203, 0, 113, 9]), bytes([127, 0, 0, 1]), 4000, 80)
PORTS = st.integers(0, 65_535)


def binary(family: int, rest: bytes, *, command: int = 0x21, length: int | None = None) -> bytes:
    """Return a header of version 2."""
    size = len(rest) if length is None else length
    return SIGNATURE + struct.pack("!BBH", command, family, size) + rest


def test_the_address_of_a_client_is_read_from_both_versions() -> None:
    line = b"PROXY TCP4 203.0.113.9 127.0.0.1 4000 80\r\n"
    for header in (line, binary(0x11, V4)):
        assert read_proxy_header(header + b"GET / HTTP/1.1\r\n") == ProxyHeader(
            len(header),
            IPv4Address("TCP", "203.0.113.9", 4000),
            IPv4Address("TCP", "127.0.0.1", 80),
        )


@given(st.ip_addresses(), st.ip_addresses(v=4), PORTS, PORTS, st.binary(max_size=50))
def test_every_address_is_read_in_its_usual_form(
    source: ipaddress.IPv4Address | ipaddress.IPv6Address,
    destination: ipaddress.IPv4Address,
    source_port: int,
    port: int,
    more: bytes,
) -> None:
    is_4 = source.version == 4
    target = destination if is_4 else ipaddress.IPv6Address(int(destination))
    kind = IPv4Address if is_4 else IPv6Address
    line = f"PROXY TCP{source.version} {source.exploded} {target} {source_port} {port}\r\n".encode()
    packed = source.packed + target.packed + struct.pack("!HH", source_port, port) + more
    for header in (line, binary(0x11 if is_4 else 0x21, packed)):
        found = read_proxy_header(header)
        assert found is not None
        assert found.length == len(header)
        assert found.source == kind("TCP", str(source), source_port)
        assert found.destination == kind("TCP", str(target), port)


@pytest.mark.parametrize(
    "header",
    [
        b"PROXY UNKNOWN\r\n",
        b"PROXY UNKNOWN ffff::1 ffff::2 65535 65535\r\n",
        binary(0x00, b"", command=0x20),
        binary(0x11, V4, command=0x20),
        binary(0x77, b"whatever", command=0x20),
        binary(0x00, b"\x03\x00\x04abcd"),
        binary(0x31, bytes(216)),
    ],
)
def test_a_header_without_an_address_leaves_that_of_the_proxy(header: bytes) -> None:
    assert read_proxy_header(header) == ProxyHeader(len(header), None, None)


@pytest.mark.parametrize(
    "header",
    [b"PROXY TCP4 203.0.113.9 127.0.0.1 4000 80\r\n", binary(0x11, V4 + b"\x03\x00\x04abcd")],
)
def test_a_header_may_arrive_byte_by_byte(header: bytes) -> None:
    assert [read_proxy_header(header[:n]) for n in range(len(header))] == [None] * len(header)
    assert read_proxy_header(header) is not None


@pytest.mark.parametrize(
    "header",
    [
        b"GET / HTTP/1.1\r\n",
        b"PROXY",
        b"PROXY \r\n",
        b"PROXY TCP4\r\n",
        b"PROXY TCP4 203.0.113.9 127.0.0.1 4000\r\n",
        b"PROXY TCP4 203.0.113.9 127.0.0.1 4000 80 \r\n",
        b"PROXY TCP4 203.0.113.9  127.0.0.1 4000 80\r\n",
        b"PROXY TCP4 203.0.113.9 127.0.0.1 04000 80\r\n",
        b"PROXY TCP4 203.0.113.9 127.0.0.1 4000 65536\r\n",
        b"PROXY TCP4 203.0.113.9 127.0.0.1 -1 80\r\n",
        b"PROXY TCP4 203.0.113.256 127.0.0.1 4000 80\r\n",
        b"PROXY TCP4 ::1 ::1 4000 80\r\n",
        b"PROXY TCP6 203.0.113.9 127.0.0.1 4000 80\r\n",
        b"PROXY TCP6 ::1%eth0 ::1 4000 80\r\n",
        b"PROXY TCP4 evil\x1b[2J 127.0.0.1 4000 80\r\n",
        b"PROXY TCP4 203.0.113.9 127.0.0.1 4000 80\n\r\n",
        b"PROXY UNIX a b\r\n",
        b"PROXY UNKNOWN \n\r\n",
        b"proxy TCP4 203.0.113.9 127.0.0.1 4000 80\r\n",
        b"PROXY UNKNOWN" + b" " * 200,
        b"PROXY UNKNOWN" + b" " * 100 + b"\r\n",
        SIGNATURE[:-1] + b"X" + bytes(4),
        binary(0x11, V4, command=0x11),
        binary(0x11, V4, command=0x22),
        binary(0x11, V4[:-1]),
        binary(0x12, V4),
        binary(0x21, V4),
        binary(0x41, V4),
        binary(0x11, V4, length=65_535),
        binary(0x11, b"", length=MAX_BINARY_BYTES, command=0x20),
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    ],
)
def test_what_is_no_header_is_refused(header: bytes) -> None:
    # The shortest of these could still become one, if it were cut off here.
    with pytest.raises(InvalidProxyHeader):
        read_proxy_header(header if len(header) > 6 else header + b"X")


@given(st.one_of(st.binary(max_size=300), st.binary(max_size=300).map(SIGNATURE.__add__)))
def test_any_bytes_are_a_header_or_incomplete_or_refused(received: bytes) -> None:
    with contextlib.suppress(InvalidProxyHeader):
        found = read_proxy_header(received)
        assert found is None or found.length <= len(received)


HOSTS = st.one_of(
    st.ip_addresses().map(str), st.text("0123456789abcdef:.", min_size=1, max_size=20)
)


@given(st.sampled_from("46"), HOSTS, HOSTS, st.integers(0, 70_000), PORTS)
def test_what_text_is_accepted_names_addresses_that_sockets_know(
    version: str, source: str, destination: str, source_port: int, port: int
) -> None:
    line = f"PROXY TCP{version} {source} {destination} {source_port} {port}\r\n".encode()
    with contextlib.suppress(InvalidProxyHeader):
        found = read_proxy_header(line)
        assert found is not None
        for address in (found.source, found.destination):
            assert address is not None
            numeric = socket.AI_NUMERICHOST | socket.AI_NUMERICSERV
            assert socket.getaddrinfo(address.host, address.port, flags=numeric)
