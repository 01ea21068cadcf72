"""The header of the PROXY protocol, with which a proxy begins a connection: versions 1 and 2.

It names the client for whom the proxy has opened the connection
(https://www.haproxy.org/download/3.0/doc/proxy-protocol.txt). Nothing here reads or writes: bytes
are parsed. Twisted has parsers too, but these accept text in place of an address, end with other
errors for some malformed headers, and need the header in one piece.
"""

from __future__ import annotations

import ipaddress
import re
import struct
from typing import Final, NamedTuple, TypeAlias

from twisted.internet.address import IPv4Address, IPv6Address

ClientAddress: TypeAlias = IPv4Address | IPv6Address

MAX_TEXT_BYTES: Final = 107
"""The longest header of version 1, with its line end (section 2.1)."""
MAX_BINARY_BYTES: Final = 4096
"""The longest header of version 2 that is accepted; what proxies add to addresses is short."""

_TEXT: Final = b"PROXY "
_LINE_END: Final = b"\r\n"
_LINE: Final = re.compile(
    rb"PROXY (?:UNKNOWN(?: [^\r\n]*)?|(TCP[46]) ([0-9A-Fa-f:.]+) ([0-9A-Fa-f:.]+) "
    rb"(0|[1-9][0-9]{0,4}) (0|[1-9][0-9]{0,4}))"
)
_SIGNATURE: Final = b"\r\n\r\n\x00\r\nQUIT\n"
_START: Final = struct.Struct("!12sBBH")
_VERSION: Final = 0x20
_LOCAL: Final = 0x0
_PROXY: Final = 0x1
# Families and protocols: bytes of the addresses, and how those of TCP are packed.
_NO_ADDRESS: Final = {0x00: 0, 0x31: 216}
_ADDRESSES: Final = {0x11: struct.Struct("!4s4sHH"), 0x21: struct.Struct("!16s16sHH")}


class InvalidProxyHeader(ValueError):
    """What a connection begins with is no header of the PROXY protocol, or a malformed one."""


class ProxyHeader(NamedTuple):
    """A header of `length` bytes: whence the client has connected, and where to.

    Both are None where the proxy connects for itself, or does not say.
    """

    length: int
    source: ClientAddress | None = None
    destination: ClientAddress | None = None


def read_proxy_header(received: bytes) -> ProxyHeader | None:
    """Return the header at the beginning of a connection; None while it is incomplete.

    Raises `InvalidProxyHeader`.
    """
    if received[: len(_TEXT)] == _TEXT[: len(received)]:
        return _read_text(received)
    if received[: len(_SIGNATURE)] == _SIGNATURE[: len(received)]:
        return _read_binary(received)
    raise InvalidProxyHeader


def _read_text(received: bytes) -> ProxyHeader | None:
    end = received.find(_LINE_END, 0, MAX_TEXT_BYTES)
    if end == -1:
        if len(received) >= MAX_TEXT_BYTES:
            raise InvalidProxyHeader
        return None
    line = _LINE.fullmatch(received[:end])
    if line is None:
        raise InvalidProxyHeader
    length = end + len(_LINE_END)
    if line[1] is None:
        return ProxyHeader(length)
    version = int(line[1][-1:])
    return ProxyHeader(
        length,
        _address(version, line[2].decode(), int(line[4])),
        _address(version, line[3].decode(), int(line[5])),
    )


def _read_binary(received: bytes) -> ProxyHeader | None:
    if len(received) < _START.size:
        return None
    _, version_command, family, rest = _START.unpack_from(received)
    length, command = _START.size + rest, version_command ^ _VERSION
    addresses = _ADDRESSES.get(family)
    size = _NO_ADDRESS.get(family) if addresses is None else addresses.size
    if command == _LOCAL:  # its family and addresses say nothing
        addresses, size = None, 0
    elif command != _PROXY or size is None:
        raise InvalidProxyHeader
    if length > MAX_BINARY_BYTES or rest < (size or 0):
        raise InvalidProxyHeader
    if len(received) < length:
        return None
    if addresses is None:
        return ProxyHeader(length)
    source, destination, source_port, port = addresses.unpack_from(received, _START.size)
    version = 4 if len(source) == 4 else 6
    return ProxyHeader(
        length, _address(version, source, source_port), _address(version, destination, port)
    )


def _address(version: int, host: str | bytes, port: int) -> ClientAddress:
    """Return an address in its one usual form, by which clients are counted."""
    kind = ipaddress.IPv4Address if version == 4 else ipaddress.IPv6Address
    try:
        shown = str(kind(host))
    except ValueError:
        raise InvalidProxyHeader from None
    if port > 65_535:
        raise InvalidProxyHeader
    return IPv4Address("TCP", shown, port) if version == 4 else IPv6Address("TCP", shown, port)
