"""The proxies whose word counts: for whom they forward a request, by which scheme and host.

Any client may send `Forwarded` and `X-Forwarded-*`, and the header of the PROXY protocol too;
only those of the configured addresses count. A trusted proxy is known by the address that it
connects from, or by connecting over a Unix socket.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Iterable
from typing import Final, TypeAlias

import attrs

from treedbd.bounded_cache import short_cache

Network: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network

UNIX: Final = "unix"
"""The entry for all that connect over a Unix socket."""
_CACHED_ADDRESSES: Final = 4096


class InvalidProxy(ValueError):
    """An entry that is neither an address nor a network; the message is a clause about it."""


@attrs.frozen
class TrustedProxies:
    """The networks of the proxies; with `unix` also all that connect over a Unix socket.

    Attributes:
        trusts: whether the peer with an address is a trusted proxy; the address is empty for a peer
            on a Unix socket. Results are cached.

    """

    networks: tuple[Network, ...] = ()
    unix: bool = False
    trusts: Callable[[str], bool] = attrs.field(
        init=False,
        eq=False,
        repr=False,
        default=attrs.Factory(
            lambda self: short_cache(_CACHED_ADDRESSES)(self._trusts), takes_self=True
        ),
    )

    def __bool__(self) -> bool:
        """Return whether any proxy is trusted."""
        return self.unix or bool(self.networks)

    def _trusts(self, address: str) -> bool:
        if not address:
            return self.unix
        try:
            parsed = ipaddress.ip_address(address)
        except ValueError:
            return False
        parsed = without_mapping(parsed)
        return any(parsed in network for network in self.networks)


NO_PROXIES: Final = TrustedProxies()


def parse_trusted_proxies(entries: Iterable[str]) -> TrustedProxies:
    """Return the proxies of a list such as `10.0.0.0/8`, `::1` and `unix`.

    Raises `InvalidProxy`, which names the first entry that is neither.
    """
    names = list(entries)
    networks = tuple(_parse_network(name) for name in names if name != UNIX)
    return TrustedProxies(networks, UNIX in names)


def without_mapping(
    address: ipaddress.IPv4Address | ipaddress.IPv6Address,
) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """Return the IPv4 address of `::ffff:10.0.0.1`, as a socket for both versions shows it."""
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return address if mapped is None else mapped


def _parse_network(text: str) -> Network:
    try:
        return ipaddress.ip_network(text)
    except ValueError:
        pass
    try:
        network = ipaddress.ip_network(text, strict=False)
    except ValueError:
        raise InvalidProxy(
            f'"{text}" is neither an address, a network such as 10.0.0.0/8, nor "{UNIX}"'
        ) from None
    raise InvalidProxy(f'"{text}" has bits beyond its prefix; the network is {network}')
