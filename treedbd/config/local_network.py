"""The names and addresses of this machine in its local network, for `--lan`.

They are read from the operating system: nothing is sent, and no name is looked up.
"""

from __future__ import annotations

import contextlib
import ipaddress
import re
import secrets
import socket
from typing import Final, TypeAlias

import attrs
import ifaddr

TOKEN_BYTES: Final = 16
"""Random bytes of an admin's token: it can be typed on a phone, and not be guessed."""
_NAME = re.compile(r"(?:[a-z0-9](?:[a-z0-9-]*[a-z0-9])?\.)*[a-z0-9](?:[a-z0-9-]*[a-z0-9])?")
_ELSEWHERE: Final = ((socket.AF_INET, "192.0.2.1"), (socket.AF_INET6, "2001:db8::1"))
"""Addresses for documentation (RFC 5737 and 3849), which no machine has."""

Address: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address


@attrs.frozen
class LocalNetwork:
    """What other machines reach this one by, and the token of their admin.

    The first of `addresses` is that of the default route. There may be neither names nor addresses.
    """

    admin_token: str = attrs.field(repr=False)
    names: tuple[str, ...]
    addresses: tuple[str, ...]

    @property
    def hosts(self) -> tuple[str, ...]:
        """The hosts of this machine, and the pattern of multicast DNS names (RFC 6762)."""
        return (*self.names, *self.addresses, "*.local")


def find_local_network() -> LocalNetwork:
    """Return this machine as it is now, with a new token."""
    return LocalNetwork(
        secrets.token_hex(TOKEN_BYTES), names_of(socket.gethostname()), find_addresses()
    )


def names_of(host_name: str) -> tuple[str, ...]:
    """Return the names of a machine: its host name, and that of multicast DNS."""
    name = host_name.lower().rstrip(".")
    label = name.partition(".")[0]
    if not _NAME.fullmatch(name) or label == "localhost":
        return ()
    return tuple(dict.fromkeys((name, label, f"{label}.local")))


def find_addresses() -> tuple[str, ...]:
    """Return the addresses of all interfaces at which other machines reach this one."""
    found: list[Address] = []
    with contextlib.suppress(OSError):  # it may be forbidden; then none is known
        for adapter in ifaddr.get_adapters():
            # IPv6 addresses are tuples: the address, flow information and the interface.
            texts = [each.ip if isinstance(each.ip, str) else each.ip[0] for each in adapter.ips]
            found += map(ipaddress.ip_address, texts)
    routed = [address for address in map(_find_routed, *zip(*_ELSEWHERE, strict=True)) if address]
    usable = [*(each for each in routed if each in found), *found]
    # A URL cannot say of which interface a link-local address of IPv6 is.
    return tuple(
        dict.fromkeys(
            str(each)
            for each in usable
            if not each.is_loopback and not (each.version == 6 and each.is_link_local)
        )
    )


def _find_routed(family: int, elsewhere: str) -> Address | None:
    """Return the address that packets to `elsewhere` would come from; none is sent."""
    with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as unused:
        unused.connect((elsewhere, 9))
        return ipaddress.ip_address(unused.getsockname()[0])
    return None
