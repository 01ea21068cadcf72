"""Names of projects, databases and issuers, and the proxies that are trusted.

A label addresses a database: `<database>--<project>`, or `<project>` alone for the database
`default`. It is a subdomain of a configured domain in the host, or the parameter `ns`. The choices
that the configuration names, such as dialects, are here too.

Any client may send `Forwarded` and `X-Forwarded-*`, and the header of the PROXY protocol too. What
they say of the client, the scheme and the host counts if a proxy of `TrustedProxies` has sent it:
one that connects from a configured address, or over a Unix socket if that is configured.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Iterable
from typing import Any, Final, Literal, NamedTuple, TypeAlias
from urllib.parse import urlsplit

import attrs

from treedbd.caches import short_cache
from treedbd.limits import MAX_LABEL_CHARACTERS

DialectName: TypeAlias = Literal["auto", "standard", "firebase"]
ReadsName: TypeAlias = Literal["strict", "local"]
CreatorName: TypeAlias = Literal["rules", "admin"]
"""Whose write may create a database: one that the rules allow, or an admin's alone."""

DEFAULT_DATABASE: Final = "default"
SERVICE_PROVIDER: Final = "custom"
"""`auth.provider` of service tokens that name none: the project itself vouches for the user."""

HTTPS_URL: Final = "an https URL"
"""How messages describe what `is_https_url` accepts."""
ISSUER_URL: Final = f"{HTTPS_URL} without a query and a fragment"
"""How messages describe what `is_issuer_url` accepts."""

NAME_PATTERN: Final = r"[a-z0-9](?:-?[a-z0-9])*"
"""What the name of a project or a database looks like, in lower case."""

_LABEL = re.compile(rf"(?:(?P<database>{NAME_PATTERN})--)?(?P<project>{NAME_PATTERN})", re.ASCII)


@attrs.frozen
class DatabaseName:
    """The name of a database of a project.

    Attributes:
        label: addresses the database: `shop`, or `eu--shop`.

    """

    project: str
    database: str = DEFAULT_DATABASE
    label: str = attrs.field(init=False, eq=False, repr=False)

    @label.default
    def _label(self) -> str:
        if self.database == DEFAULT_DATABASE:
            return self.project
        return f"{self.database}--{self.project}"


def parse_label(label: str) -> DatabaseName | None:
    """Return the database that a label names, in letters of either case; None if it is illegal."""
    found = _LABEL.fullmatch(label.lower())
    if found is None or len(label) > MAX_LABEL_CHARACTERS:
        return None
    return DatabaseName(found["project"], found["database"] or DEFAULT_DATABASE)


def is_https_url(url: str) -> bool:
    """Return whether treedb can fetch `url`: https, a host, no user name and no password."""
    try:
        parts = urlsplit(url)
        has_host = bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False
    is_plain = url.isascii() and url.isprintable() and " " not in url
    return url.startswith("https://") and has_host and is_plain and parts.username is None


def is_issuer_url(url: str) -> bool:
    """Return whether `url` can be an issuer identifier (OpenID Connect Core 1.0, section 2)."""
    return is_https_url(url) and not (urlsplit(url).query or urlsplit(url).fragment)


Network: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network

UNIX: Final = "unix"
"""The entry for all that connect over a Unix socket."""
_CACHED_ADDRESSES: Final = 4096


class InvalidProxy(ValueError):
    """An entry is neither an address nor a network; the message is a clause about it."""


@attrs.frozen
class TrustedProxies:
    """The networks of the proxies; with `unix` also all peers on a Unix socket.

    Attributes:
        trusts: returns whether the peer with an address is a trusted proxy; the address is empty
            for a peer on a Unix socket. Results are cached.

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


class Origin(NamedTuple):
    """Where a request came from; it is logged for the audit only.

    Attributes:
        address: that of the client, empty if it has none.
        token: the id of its token, None without one; never the token.
        means: `http`; `socket` for the real-time protocol; `end` for a write that was set for the
            end of a session; `local` for the program that embeds the service.
        admin: the uid of the admin who has sent it with the `auth` of another caller, empty if the
            admin has none; None for all other requests.

    """

    address: str
    token: str | None
    means: str
    admin: str | None = None

    def to_json(self) -> list[Any]:
        """Return what is stored: `Origin(*json)` is the same again."""
        return list(self if self.admin is not None else self[:3])
