"""What trusted proxies say of a request: `Forwarded` (RFC 7239) and `X-Forwarded-*`.

Each proxy appends what it knows at the right, so a list is read from there: past the addresses of
trusted proxies to the first other one, which is the client. What is further left the client has
sent, and it may be anything. Scheme and host are those that the outermost trusted proxy names.

Most proxies write one family of headers and pass on the other as the client sent it. So if both are
there and disagree, neither counts.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import Final, TypeAlias, TypeVar

import attrs
from twisted.internet.address import IPv4Address, IPv6Address
from twisted.internet.interfaces import IAddress
from zope.interface import implementer

from treedbd.http1.headers import Headers, joined
from treedbd.limits import MAX_HOST_BYTES
from treedbd.names import without_mapping

T = TypeVar("T")

FORWARDED: Final = b"forwarded"
X_FOR: Final = b"x-forwarded-for"
X_PROTO: Final = b"x-forwarded-proto"
X_HOST: Final = b"x-forwarded-host"
X_PORT: Final = b"x-forwarded-port"
UNKNOWN: Final = "unknown"
"""The address of all clients of which a proxy says that it does not know theirs."""

_HOST: Final = b"host"
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
    """The address of a client that a proxy does not show: its own name for it, or `unknown`."""

    host: str
    port: int = 0


Client: TypeAlias = IPv4Address | IPv6Address | HiddenAddress


@attrs.frozen
class ForwardedRequest:
    """What counts of a request instead of what its connection shows; None if nothing is said.

    `headers` are the fields, with the Host that the client has sent. `client` is its address,
    `secure` whether it uses TLS.
    """

    headers: Headers = attrs.field(repr=False)
    client: Client | None = None
    secure: bool | None = None


@attrs.frozen
class _Said:
    """What one family of headers says: of the client, and of the request as the client sent it."""

    client: Client | None = None
    secure: bool | None = None
    host: str | None = None


def read_forwarded(headers: Headers, trusts: Callable[[str], bool]) -> ForwardedRequest:
    """Return what the headers of a request from a trusted proxy say; malformed ones say nothing.

    `trusts` returns whether an address is a proxy whose word counts.
    """
    standard = _read_standard(headers, trusts) if FORWARDED in headers else _Said()
    common = _read_common(headers, trusts)
    secure = _agreed(standard.secure, common.secure, bool)
    host = _agreed(standard.host, common.host, _name_of)
    if X_PORT in headers and standard.host is None:
        host = _add_port(host, headers, secure)
    has_several = len(headers.get(_HOST, ())) > 1  # which stays the error that it is
    if host is not None and not has_several:
        headers = {**headers, _HOST: [host.encode("ascii")]}
    return ForwardedRequest(headers, _agreed_client(standard.client, common.client), secure)


def _agreed(one: T | None, other: T | None, what: Callable[[T], object]) -> T | None:
    """Return what both families say, or the one that says anything; None if they disagree."""
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

    What a client has sent before it may be malformed, and open a quoted string. The element of the
    proxy has whole ones, so it is the shortest part up to `end` that is an element: a part that
    starts within a quoted string has an odd number of quotation marks, and is none.
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
    """Return what the proxy at `depth` has said, or the outermost one that has said anything."""
    if name not in headers:
        return ""
    return ["", *islice(_split_list(headers, name), depth)][-1]


def parse_node(text: str) -> Client | None:
    """Return the address that a node stands for (RFC 7239, section 6), None if it is malformed.

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
    """Return a host with its port; None for what is none."""
    is_host = len(text) <= MAX_HOST_BYTES and _HOST_VALUE.fullmatch(text)
    return text if is_host else None


def _name_of(host: str) -> str:
    """Return a host without its port, in lower case."""
    found = _HOST_VALUE.fullmatch(host)
    return host if found is None else found[1].lower()


def _add_port(host: str | None, headers: Headers, secure: bool | None) -> str | None:
    """Return a host with the port of `X-Forwarded-Port`, unless it has one or that is usual."""
    named = host or _checked_host(joined(headers, _HOST) or "")
    port = _nth_from_right(headers, X_PORT, 1)
    if named is None or not _PORT.fullmatch(port) or port in _USUAL_PORTS[secure]:
        return host
    found = _HOST_VALUE.fullmatch(named)
    return host if found is None or found[2] else f"{named}:{port}"
