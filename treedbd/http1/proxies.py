"""What trusted proxies say of their clients: the PROXY protocol, `Forwarded`, `X-Forwarded-*`.

A header of the PROXY protocol, versions 1 and 2, begins a connection and names the client for whom
the proxy has opened it (https://www.haproxy.org/download/3.0/doc/proxy-protocol.txt). Nothing here
does I/O: `read_proxy_header` parses bytes. The parsers of Twisted accept text in place of an
address, raise other errors for some malformed headers, and need the header in one piece.

The fields `Forwarded` (RFC 7239) and `X-Forwarded-*` are in each request (`read_forwarded`). Each
proxy appends what it knows at the right, so a list is read from there: past the addresses of
trusted proxies to the first other one, which is the client. Everything further left was sent by the
client and may be false. Scheme and host are those that the outermost trusted proxy names. Most
proxies write one family of fields and pass on the other as the client sent it. So if both are
present and disagree, neither counts. A `ProxiedRequest` shows the request that the client sent to
the proxy.
"""

from __future__ import annotations

import ipaddress
import re
import struct
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias, TypeVar

import attrs
from twisted.internet.address import IPv4Address, IPv6Address
from twisted.internet.interfaces import IAddress
from zope.interface import implementer

from treedbd.http1.parser import Headers, Http1Parser, joined
from treedbd.http1.request import Request
from treedbd.limits import MAX_HOST_BYTES
from treedbd.names import without_mapping

if TYPE_CHECKING:
    from treedbd.http1.connection import Http1Connection

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
    """The connection begins with a malformed header of the PROXY protocol, or without one."""


class ProxyHeader(NamedTuple):
    """A header of `length` bytes: from which address the client has connected, and to which.

    Both are None if the proxy connects for itself, or does not name them.
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
    if command == _LOCAL:  # its family and addresses do not count
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
    """Return an address in its canonical form, by which clients are counted."""
    kind = ipaddress.IPv4Address if version == 4 else ipaddress.IPv6Address
    try:
        shown = str(kind(host))
    except ValueError:
        raise InvalidProxyHeader from None
    if port > 65_535:
        raise InvalidProxyHeader
    return IPv4Address("TCP", shown, port) if version == 4 else IPv6Address("TCP", shown, port)


T = TypeVar("T")

FORWARDED: Final = b"forwarded"
X_FOR: Final = b"x-forwarded-for"
X_PROTO: Final = b"x-forwarded-proto"
X_HOST: Final = b"x-forwarded-host"
X_PORT: Final = b"x-forwarded-port"
UNKNOWN: Final = "unknown"
"""The address of all clients whose address a proxy does not know."""

_HOST: Final = b"host"
_LENGTH: Final = b"content-length"
_MAX_PROXIES: Final = 32
_MAX_COMMAS: Final = 16
_MAX_ELEMENT_CHARACTERS: Final = 4096
"""How many commas, in quoted strings, and characters one element of Forwarded may hold."""
_USUAL_PORTS: Final = {True: ("443",), False: ("80",), None: ("80", "443")}
_SCHEMES: Final = {"https": True, "wss": True, "http": False, "ws": False}

_WORD: Final = r"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
_PAIR: Final = re.compile(rf'[ \t]*(?:({_WORD})=(?:({_WORD})|"((?:[^"\\]|\\.)*)"))?(?:;|\Z)')
_ESCAPED: Final = re.compile(r"\\(.)")
_NODE: Final = re.compile(
    r"(?:\[([0-9a-fA-F:.]{2,45})\]|([0-9.]{7,15})|(unknown)|(_[A-Za-z0-9._-]{1,63}))"
    r"(?::(?:([0-9]{1,5})|_[A-Za-z0-9._-]{1,63}))?",
    re.ASCII,
)
_BARE_IPV6: Final = re.compile(r"[0-9a-fA-F:.]{2,45}", re.ASCII)
_HOST_VALUE: Final = re.compile(
    r"(\[[0-9a-fA-F:.]+\]|[A-Za-z0-9._~!$&'()*+;=%-]+)(:[0-9]{1,5})?", re.ASCII
)
_PORT: Final = re.compile(r"[0-9]{1,5}", re.ASCII)


@implementer(IAddress)
@attrs.frozen
class HiddenAddress:
    """The address of a client that a proxy hides: the proxy's name for it, or `unknown`."""

    host: str
    port: int = 0


Client: TypeAlias = ClientAddress | HiddenAddress


@attrs.frozen(eq=False)
class ForwardedRequest:
    """What trusted proxies say of a request, in place of its connection; None if nothing.

    `headers` are the fields, with the Host that the client has sent. `client` is its address,
    `secure` whether it uses TLS. `size` is about how many bytes all this takes in memory.
    """

    headers: Headers = attrs.field(repr=False)
    client: Client | None = None
    secure: bool | None = None
    size: int = 0


@attrs.frozen
class _Said:
    """What one family of headers says of the client, and of the request that it sent."""

    client: Client | None = None
    secure: bool | None = None
    host: str | None = None


def read_forwarded(headers: Headers, trusts: Callable[[str], bool]) -> ForwardedRequest:
    """Return what the headers of a request from a trusted proxy say; malformed ones do not count.

    `trusts` returns whether an address is that of a trusted proxy.
    """
    standard = _read_standard(headers, trusts) if FORWARDED in headers else _Said()
    common = _read_common(headers, trusts)
    secure = _agreed(standard.secure, common.secure, bool)
    host = _agreed(standard.host, common.host, _name_of)
    if X_PORT in headers and standard.host is None:
        host = _add_port(host, headers, secure)
    has_several = len(headers.get(_HOST, ())) > 1  # it stays an error of the request
    if host is not None and not has_several:
        headers = {**headers, _HOST: [host.encode("ascii")]}
    return ForwardedRequest(headers, _agreed_client(standard.client, common.client), secure)


def _agreed(one: T | None, other: T | None, what: Callable[[T], object]) -> T | None:
    """Return what both families say, or what one says alone; None if they disagree."""
    if one is None:
        return other
    return one if other is None or what(one) == what(other) else None


def _agreed_client(one: Client | None, other: Client | None) -> Client | None:
    if one is None or other is None:
        return one or other
    return one if one.host == other.host else None


def _read_standard(headers: Headers, trusts: Callable[[str], bool]) -> _Said:
    """Return what `Forwarded` says."""
    elements: list[Mapping[str, str]] = []
    client = None
    for element in islice(_split_elements(joined(headers, FORWARDED) or ""), _MAX_PROXIES):
        if not element:
            continue  # RFC 9110, section 5.6.1
        address = parse_node(element.get("for", ""))
        if address is not None or not elements:
            elements.append(element)
        if address is None:
            break
        client = address
        if not trusts(client.host):
            break
    if not elements:
        return _Said()
    outermost = elements[-1]
    return _Said(
        client,
        _SCHEMES.get(outermost.get("proto", "").lower()),
        _checked_host(outermost.get("host", "")),
    )


def _split_elements(text: str) -> Iterator[Mapping[str, str]]:
    """Yield the elements of `Forwarded` from right to left, until one is malformed."""
    end = len(text)
    while end > 0:
        start, pairs = _find_last_element(text, end)
        if pairs is None:
            return
        element = dict(pairs)
        if len(element) < len(pairs):
            return
        yield element
        end = start


def _find_last_element(text: str, end: int) -> tuple[int, list[tuple[str, str]] | None]:
    """Return where the last element before `end` starts, and its pairs; None if it is malformed.

    What the client sent to the left may be malformed, and open a quoted string. The element of the
    proxy is well-formed, so it is the shortest part up to `end` that is an element: a part that
    starts within a quoted string has an odd number of quotation marks and is not an element.
    """
    start = end
    for _ in range(_MAX_COMMAS):
        start = text.rfind(",", 0, start)
        if end - start > _MAX_ELEMENT_CHARACTERS:
            break
        pairs = _parse_pairs(text[start + 1 : end].strip(" \t"))
        if pairs is not None:
            return start, pairs
        if start < 0:
            break
    return start, None


def _parse_pairs(element: str) -> list[tuple[str, str]] | None:
    """Return the names, in lower case, and values of an element; None if it is malformed."""
    pairs = []
    position = 0
    while position < len(element):
        found = _PAIR.match(element, position)
        if found is None:
            return None
        position = found.end()
        name, plain, quoted = found.groups()
        if name is not None:
            pairs.append((name.lower(), plain or _ESCAPED.sub(r"\1", quoted)))
    return pairs


def _read_common(headers: Headers, trusts: Callable[[str], bool]) -> _Said:
    """Return what the headers `X-Forwarded-*` say."""
    client = None
    depth = 1
    if X_FOR in headers:
        for at, node in enumerate(islice(_split_list(headers, X_FOR), _MAX_PROXIES), 1):
            address = parse_node(node)
            if address is None:
                break
            client, depth = address, at
            if not trusts(client.host):
                break
    return _Said(
        client,
        _SCHEMES.get(_nth_from_right(headers, X_PROTO, depth).lower()),
        _checked_host(_nth_from_right(headers, X_HOST, depth)),
    )


def _split_list(headers: Headers, name: bytes) -> Iterator[str]:
    """Yield the elements of a list from right to left."""
    rest = joined(headers, name) or ""
    while rest:
        rest, _, element = rest.rpartition(",")
        yield element.strip()


def _nth_from_right(headers: Headers, name: bytes, depth: int) -> str:
    """Return what the proxy at `depth` says, or else the outermost one that says anything."""
    if name not in headers:
        return ""
    return ["", *islice(_split_list(headers, name), depth)][-1]


def parse_node(text: str) -> Client | None:
    """Return the address that a node names (RFC 7239, section 6), None if it is malformed.

    An IPv6 address may be without brackets, as it is in X-Forwarded-For.
    """
    found = _NODE.fullmatch(text)
    if found is None:
        return _parse_address(text, 0) if _BARE_IPV6.fullmatch(text) else None
    ipv6, ipv4, unknown, hidden, port = found.groups()
    if unknown or hidden:
        return HiddenAddress(unknown or hidden)
    return _parse_address(ipv6 or ipv4, int(port or 0))


def _parse_address(text: str, port: int) -> Client | None:
    try:
        parsed = without_mapping(ipaddress.ip_address(text))
    except ValueError:
        return None
    kind = IPv4Address if parsed.version == 4 else IPv6Address
    return kind("TCP", str(parsed), port)


def _checked_host(text: str) -> str | None:
    """Return a host with its port; None for a malformed one."""
    is_host = len(text) <= MAX_HOST_BYTES and _HOST_VALUE.fullmatch(text)
    return text if is_host else None


def _name_of(host: str) -> str:
    """Return a host without its port, in lower case."""
    found = _HOST_VALUE.fullmatch(host)
    return host if found is None else found[1].lower()


def _add_port(host: str | None, headers: Headers, secure: bool | None) -> str | None:
    """Return a host with the port of `X-Forwarded-Port`, unless it has one or the port is usual."""
    named = host or _checked_host(joined(headers, _HOST) or "")
    port = _nth_from_right(headers, X_PORT, 1)
    if named is None or not _PORT.fullmatch(port) or port in _USUAL_PORTS[secure]:
        return host
    found = _HOST_VALUE.fullmatch(named)
    return host if found is None or found[2] else f"{named}:{port}"


class ProxiedRequest(Request):
    """One request of a client, and its reply, by way of a trusted proxy.

    Its address, its scheme and its Host header are those that the proxy names, else those of the
    connection. They are read once for each header block.

    Attributes:
        trusts: returns whether an address is that of a trusted proxy.

    """

    came_by_trusted_proxy = True
    trusts: Callable[[str], bool]

    def __init__(self, connection: Http1Connection, parser: Http1Parser) -> None:
        """Represent the request that `parser` has just completed."""
        super().__init__(connection, parser)
        block: Any = parser.head_memory.block
        origin = block.origin or block
        found = origin.forwarded
        if not isinstance(found, ForwardedRequest):
            said = read_forwarded(origin.fields, self.trusts)
            found = origin.forwarded = attrs.evolve(said, size=2 * origin.size)
        if parser.head_memory.fields_key is not None:
            parser.head_memory.fields_key = found  # of another peer the fields mean something else
        self.headers = found.headers
        if origin is not block:  # they differ in the length of the body
            self.headers = {**found.headers, _LENGTH: block.fields[_LENGTH]}
        self._is_said_secure = found.secure
        if found.client is not None:
            self.client = found.client

    def isSecure(self) -> bool:
        """Return whether the client uses TLS."""
        return super().isSecure() if self._is_said_secure is None else self._is_said_secure


def proxied_request(trusts: Callable[[str], bool]) -> type[ProxiedRequest]:
    """Return the class of the requests from proxies; `trusts` says which addresses are theirs."""
    return type(ProxiedRequest.__name__, (ProxiedRequest,), {"trusts": staticmethod(trusts)})
