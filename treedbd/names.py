"""Names of projects, databases and issuers, the proxies that are trusted, the targets of hooks.

A label addresses a database: `<database>--<project>`, or `<project>` alone for the database
`default`. It is a subdomain of a configured domain in the host, or the parameter `ns`. The choices
that the configuration names, such as dialects, are here too.

Any client may send `Forwarded` and `X-Forwarded-*`, and the header of the PROXY protocol too. What
they say of the client, the scheme and the host counts if a proxy of `TrustedProxies` has sent it:
one that connects from a configured address, or over a Unix socket if that is configured.

What hooks call is chosen by admins of projects. So an address inside (loopback, private, of this
link) is called only if it, or the host that was named, is one of `AllowedTargets`. A URL is checked
by `check_hook_url` when it is configured, and each address again when it is resolved.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Iterable
from typing import Any, Final, Literal, NamedTuple, TypeAlias
from urllib.parse import urlsplit

import attrs

from treedbd.caches import short_cache
from treedbd.limits import MAX_HOOK_URL_CHARACTERS, MAX_LABEL_CHARACTERS

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
    networks = tuple(_parse_network(name, f'"{UNIX}"') for name in names if name != UNIX)
    return TrustedProxies(networks, UNIX in names)


def without_mapping(
    address: ipaddress.IPv4Address | ipaddress.IPv6Address,
) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """Return the IPv4 address of `::ffff:10.0.0.1`, as a socket for both versions shows it."""
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return address if mapped is None else mapped


def _parse_network(text: str, other: str) -> Network:
    """Return a network; `other` is what an entry may be besides. Raises `InvalidProxy`."""
    try:
        return ipaddress.ip_network(text)
    except ValueError:
        pass
    try:
        network = ipaddress.ip_network(text, strict=False)
    except ValueError:
        raise InvalidProxy(
            f'"{text}" is neither an address, a network such as 10.0.0.0/8, nor {other}'
        ) from None
    raise InvalidProxy(f'"{text}" has bits beyond its prefix; the network is {network}')


Address: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address

_HOST_NAME: Final = re.compile(
    r"(?:\*\.)?(?:[a-z0-9_](?:[a-z0-9_-]*[a-z0-9_])?\.)*[a-z0-9_](?:[a-z0-9_-]*[a-z0-9_])?"
)
_IS_NUMBER: Final = re.compile(r"(?:.*\.)?(?:[0-9]+|0x[0-9a-f]*)")
"""Hosts that resolvers take for IPv4 addresses, such as `127.1`."""
_MAX_HOST_CHARACTERS: Final = 253
_LOCALHOST: Final = "localhost"
_NAT64: Final = ipaddress.ip_network("64:ff9b::/96")
_INSIDE: Final = tuple(
    map(
        ipaddress.ip_network,
        (
            *("192.0.0.0/24", "192.88.99.0/24", "64:ff9b:1::/48", "2001::/23"),
            "168.63.129.16/32",  # public, but what the machines of a cloud get their settings from
        ),
    )
)
"""Networks of special purposes that `ipaddress` takes for public, in some versions of Python."""


class InvalidTarget(ValueError):
    """A URL that hooks must not call; the message is a clause about it, from the verb on."""


@attrs.frozen
class AllowedTargets:
    """What hooks may call besides addresses that are not inside: networks, and hosts by name.

    A host may be `*.internal`, for all names below it.
    """

    networks: tuple[Network, ...] = ()
    hosts: frozenset[str] = frozenset()

    def has_host(self, host: str) -> bool:
        """Return whether a host, in lower case, is named: by its name, or as an address."""
        address = _parse_address(host)
        if address is not None:
            return any(address in network for network in self.networks)
        parents = (host[at:] for at, each in enumerate(host) if each == ".")
        return host in self.hosts or any(f"*{parent}" in self.hosts for parent in parents)

    def may_call(self, host: str, address: str) -> bool:
        """Return whether an address may be called that a host, in lower case, has."""
        parsed = _parse_address(address)
        if parsed is None:
            return False
        return not is_inside(parsed) or self.has_host(host) or self.has_host(str(parsed))


NO_TARGETS: Final = AllowedTargets()
EVERYTHING: Final = AllowedTargets(
    (ipaddress.ip_network("0.0.0.0/0"), ipaddress.ip_network("::/0"))
)
"""What the operator has chosen himself may be anywhere."""


def parse_allowed_targets(entries: Iterable[str]) -> AllowedTargets:
    """Return the targets of a list such as `10.0.0.0/8` and `hooks.internal`.

    Raises `InvalidProxy`, which names the first entry that is neither.
    """
    networks, hosts = [], []
    for text in entries:
        name = text.lower()
        is_host = bool(_HOST_NAME.fullmatch(name)) and not _IS_NUMBER.fullmatch(name)
        if is_host and len(name) <= _MAX_HOST_CHARACTERS:
            hosts.append(name)
        else:
            networks.append(_parse_network(text, "a host"))
    return AllowedTargets(tuple(networks), frozenset(hosts))


def is_inside(address: Address) -> bool:
    """Return whether an address is none of the internet: of this machine, private, of this link.

    An address in which one of IPv4 is embedded, by which it is reached, is what that is.
    """
    address = without_mapping(address)
    if isinstance(address, ipaddress.IPv6Address):
        embedded = address.sixtofour
        if address in _NAT64:
            embedded = ipaddress.IPv4Address(int(address) & 0xFFFF_FFFF)
        if embedded is not None:
            return is_inside(embedded)
        if address.is_site_local or address.scope_id is not None:
            return True
    is_special = address.is_multicast or address.is_reserved
    return not address.is_global or is_special or any(address in each for each in _INSIDE)


def _parse_address(text: str) -> Address | None:
    try:
        return without_mapping(ipaddress.ip_address(text))
    except ValueError:
        return None


def check_hook_url(url: str, allowed: AllowedTargets, *, is_development: bool = False) -> None:
    """Raise `InvalidTarget` for a URL that hooks must not call.

    It is https, or http if its host is one of those that are `allowed`, or in development mode. An
    address is checked too; a name is checked when it is resolved.
    """
    if len(url) > MAX_HOOK_URL_CHARACTERS:
        raise InvalidTarget(f"has more than {MAX_HOOK_URL_CHARACTERS} characters")
    try:
        parts = urlsplit(url)
        host = (parts.hostname or "").removesuffix(".")
        is_url = parts.scheme in ("http", "https") and bool(host) and parts.port != 0
    except ValueError:
        is_url = False
    if not is_url or not url.isascii() or not url.isprintable() or " " in url:
        raise InvalidTarget("is not an http or https URL")
    if "@" in parts.netloc:
        raise InvalidTarget("has a user name or a password, which a receiver does not get")
    if parts.fragment or url.endswith("#"):
        raise InvalidTarget("has a fragment, which a receiver does not get")
    _check_host(host, allowed)
    if parts.scheme == "http" and not (is_development or allowed.has_host(host)):
        raise InvalidTarget("is not https, and its host is not one of allow in [webhooks]")


def _check_host(host: str, allowed: AllowedTargets) -> None:
    if _parse_address(host) is None:
        if not _HOST_NAME.fullmatch(host) or "*" in host or _IS_NUMBER.fullmatch(host):
            raise InvalidTarget("does not have the name of a host, or an address")
        if len(host) > _MAX_HOST_CHARACTERS:
            raise InvalidTarget("has a host whose name is too long")
        is_near = host == _LOCALHOST or host.endswith("." + _LOCALHOST)  # RFC 6761, section 6.3
        if not is_near or allowed.has_host(host) or allowed.has_host("127.0.0.1"):
            return
    elif allowed.may_call(host, host):
        return
    raise InvalidTarget("has an address inside, which is not one of allow in [webhooks]")


class Origin(NamedTuple):
    """Where a request came from; it is logged for the audit only.

    Attributes:
        address: that of the client, empty if it has none.
        token: the id of its token, None without one; never the token.
        means: `http`; `socket` for the real-time protocol; `end` for a write that was set for the
            end of a session; `local` for the program that embeds the service; `expiry` for the
            removal of nodes whose time is over.
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
