"""Endpoint strings, at which the daemon listens, and this machine in its local network.

The syntax is that of `twisted.internet.endpoints.serverFromString`. Parsed is what is needed before
the endpoint opens: whether it is loopback, and which files hold its certificate. Endpoints of kinds
that Twisted's plugins add are not parsed. `listening` opens the ports. This module loads Twisted
only to look up such a kind.

Two kinds have more options here than in Twisted. `systemd`, a socket that systemd has opened, may
have a certificate as `ssl` has, and its address family is that of the socket. `haproxy:` before
another endpoint, which may be `ssl`, means that connections begin with a header of the PROXY
protocol. A `unix` socket without a mode is for the user of the daemon and its group.

The names and addresses of this machine (`LocalNetwork`), for `--lan`, are read from the operating
system: nothing is sent, and no name is looked up.
"""

from __future__ import annotations

import contextlib
import importlib
import ipaddress
import pathlib
import re
import secrets
import socket
from typing import Any, Final, TypeAlias

import attrs
import ifaddr

BACKLOG: Final = "1024"
UNIX_MODE: Final = "660"
"""The mode of a Unix socket; by Twisted's default every user of the machine may connect."""
LOCAL_KEY: Final = "localhost.key.pem"
LOCAL_CERTIFICATE: Final = "localhost.cert.pem"
"""The certificate of development mode, in the data directory."""
AUTHORITY_CERTIFICATE: Final = "authority.cert.pem"
"""The certificate of the authority that development mode has on a local network."""

# The parameters of Twisted's own kinds, in the order in which they may be given without a name.
_PARAMETERS: Final = {
    "tcp": ("port", "interface", "backlog"),
    "tcp6": ("port", "backlog", "interface"),
    "ssl": (
        *("port", "privateKey", "certKey", "sslmethod", "interface"),
        *("backlog", "extraCertChain", "dhParameters"),
    ),
    "unix": ("address", "mode", "backlog", "lockfile"),
    "systemd": (
        *("name", "index", "domain", "privateKey", "certKey"),
        *("extraCertChain", "dhParameters"),
    ),
}
_PROXIED: Final = "haproxy"
_DOMAINS: Final = ("INET", "INET6", "UNIX")
_WHICH: Final = frozenset({"name", "index"})
_MAX_PASSED: Final = 1000
# Standard input and output are not a port; `ssl`, whose files a reload reads, replaces `tls`.
_EXCLUDED: Final = frozenset({"stdio", "tls"})
_FILES: Final = frozenset({"privateKey", "certKey", "extraCertChain", "dhParameters", "address"})
_ARGUMENT = re.compile(r"((?:\\.|[^:\\])*)(:|\Z)", re.DOTALL)
_NAMED = re.compile(r"([A-Za-z0-9_]+)=(.*)", re.DOTALL)
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)
_TO_ESCAPE = re.compile(r"([\\:])")


class InvalidEndpoint(ValueError):
    """A string that is not an endpoint; the message says why, as a clause without a full stop."""


@attrs.frozen
class CertificateFiles:
    """The files of a certificate, in PEM.

    Further certificates of the chain follow the first one in `certificate`, or are in `chain`.
    `parameters` holds Diffie-Hellman parameters.
    """

    key: pathlib.Path
    certificate: pathlib.Path
    chain: pathlib.Path | None = None
    parameters: pathlib.Path | None = None


@attrs.frozen
class Endpoint:
    """An endpoint to listen on.

    `text` is what the operator wrote, `twisted_string` the string for Twisted, with absolute paths.
    `certificate` is None for an `ssl` endpoint without a key, and for every endpoint without TLS.
    With `is_proxied` each connection begins with a header of the PROXY protocol, before TLS.
    """

    kind: str
    text: str
    twisted_string: str
    port: int = 0
    interface: str = ""
    backlog: int = int(BACKLOG)
    certificate: CertificateFiles | None = None
    is_proxied: bool = False

    @property
    def is_passed(self) -> bool:
        """Whether systemd passes its socket, whose address is known only when it is adopted."""
        return self.kind == "systemd"

    @property
    def place(self) -> tuple[object, ...]:
        """What two endpoints have in common that are the same, however they are written."""
        return self.kind, self.twisted_string, self.certificate, self.is_proxied

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can connect; False for a socket whose address is not known."""
        if self.kind == "unix":
            return True
        if self.interface == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.interface).is_loopback
        except ValueError:
            return False

    @property
    def is_secure(self) -> bool:
        """Whether connections use TLS."""
        return self.kind == "ssl" or self.certificate is not None

    def at_port(self, port: int) -> Endpoint:
        """Return the same endpoint, of a kind that has ports, at another port."""
        return attrs.evolve(
            self,
            port=port,
            text=self.text.replace(str(self.port), str(port), 1),
            twisted_string=self.twisted_string.replace(f"port={self.port}", f"port={port}", 1),
        )


def parse_endpoint(text: str, folder: pathlib.Path) -> Endpoint:
    """Parse an endpoint string; relative paths start from `folder`. Raises `InvalidEndpoint`."""
    kind, *arguments = _split(text)
    if not kind or not arguments:
        raise InvalidEndpoint(f'"{text}" is not an endpoint such as tcp:8080 or ssl:8443')
    if kind == _PROXIED:
        return _parse_proxied(text, folder)
    names = _PARAMETERS.get(kind)
    if names is None:
        plugin_kinds = _kinds_of_plugins()
        if kind not in plugin_kinds:
            kinds = ", ".join((*_PARAMETERS, _PROXIED, *plugin_kinds))
            raise InvalidEndpoint(f'"{text}" is of an unknown kind; the kinds are {kinds}')
        return Endpoint(kind, text, text)
    given = _name_arguments(kind, names, arguments)
    given = {
        name: str(folder / value) if name in _FILES else value for name, value in given.items()
    }
    if kind == "unix":
        return Endpoint(kind, text, _describe(kind, {"mode": UNIX_MODE, **given}))
    if kind == "systemd":
        return _parse_passed(text, given)
    given.setdefault("backlog", BACKLOG)
    return Endpoint(
        kind,
        text,
        _describe(kind, given),
        port=_parse_integer(kind, "port", given.get("port"), 65_535),
        interface=given.get("interface", "::" if kind == "tcp6" else ""),
        backlog=_parse_integer(kind, "backlog", given["backlog"], 65_535),
        certificate=_certificate_files(given) if kind == "ssl" else None,
    )


def _parse_proxied(text: str, folder: pathlib.Path) -> Endpoint:
    """Parse an endpoint whose connections begin with a header of the PROXY protocol."""
    inner = text.partition(":")[2]
    if inner.startswith(f"{_PROXIED}:"):
        raise InvalidEndpoint(f'"{text}" has {_PROXIED} twice; a connection has one such header')
    return attrs.evolve(parse_endpoint(inner, folder), text=text, is_proxied=True)


def _parse_passed(text: str, given: dict[str, str]) -> Endpoint:
    """Return the endpoint of a socket that systemd passes; its string for Twisted finds it."""
    which = {name: value for name, value in given.items() if name in _WHICH}
    if len(which) != 1 or not all(which.values()):
        raise InvalidEndpoint(
            "systemd needs the name of a socket (FileDescriptorName=), or its index, not both"
        )
    if "index" in which:
        _parse_integer("systemd", "index", which["index"], _MAX_PASSED)
    if given.get("domain", "INET") not in _DOMAINS:
        raise InvalidEndpoint(f"the domain of systemd is one of {', '.join(_DOMAINS)}")
    certificate = _certificate_files(given)
    if certificate is None and _FILES & set(given):
        raise InvalidEndpoint("systemd with a certificate needs its privateKey")
    # Twisted wants a domain, though it is not needed to find the socket.
    twisted_string = _describe("systemd", {"domain": "INET", **which})
    return Endpoint("systemd", text, twisted_string, certificate=certificate)


def _escape(value: str) -> str:
    return _TO_ESCAPE.sub(r"\\\1", value)


def _kinds_of_plugins() -> list[str]:
    interfaces: Any = importlib.import_module("twisted.internet.interfaces")
    plugin: Any = importlib.import_module("twisted.plugin")
    plugins = plugin.getPlugins(interfaces.IStreamServerEndpointStringParser)
    return sorted({str(each.prefix) for each in plugins} - {*_PARAMETERS, *_EXCLUDED, _PROXIED})


def _split(text: str) -> list[str]:
    arguments = []
    position, more = 0, True
    while more:
        found = _ARGUMENT.match(text, position)
        if found is None:
            raise InvalidEndpoint(f'"{text}" ends with a backslash')
        arguments.append(found[1])
        position, more = found.end(), bool(found[2])
    return arguments


def _name_arguments(kind: str, names: tuple[str, ...], arguments: list[str]) -> dict[str, str]:
    unnamed = iter(names)
    given = {}
    for argument in arguments:
        named = _NAMED.fullmatch(argument)
        name = named[1] if named else next(unnamed, None)
        if name not in names:
            known = ", ".join(names)
            raise InvalidEndpoint(f'"{argument}" is not a parameter of {kind}, which has {known}')
        if name == "sslmethod":
            raise InvalidEndpoint(
                f'"{argument}" has no effect, TLS 1.2 and newer are used: leave it out'
            )
        given[name] = _ESCAPED.sub(r"\1", named[2] if named else argument)
    if names[0] not in given and kind != "systemd":
        raise InvalidEndpoint(f"{kind} needs its {names[0]}")
    return given


def _parse_integer(kind: str, name: str, value: str | None, high: int) -> int:
    if value is None or not re.fullmatch(r"[0-9]{1,9}", value, re.ASCII) or int(value) > high:
        raise InvalidEndpoint(f"the {name} of {kind} is a number from 0 to {high}")
    return int(value)


def _certificate_files(given: dict[str, str]) -> CertificateFiles | None:
    key = given.get("privateKey")
    if key is None:
        return None
    chain, parameters = given.get("extraCertChain"), given.get("dhParameters")
    return CertificateFiles(
        pathlib.Path(key),
        pathlib.Path(given.get("certKey", key)),
        pathlib.Path(chain) if chain else None,
        pathlib.Path(parameters) if parameters else None,
    )


def _describe(kind: str, given: dict[str, str]) -> str:
    named = (f"{name}={_escape(value)}" for name, value in given.items())
    return ":".join((kind, *named))


TOKEN_BYTES: Final = 16
"""Random bytes of an admin's token: few enough to type on a phone, too many to guess."""
_HOST_NAME = re.compile(r"(?:[a-z0-9](?:[a-z0-9-]*[a-z0-9])?\.)*[a-z0-9](?:[a-z0-9-]*[a-z0-9])?")
_ELSEWHERE: Final = ((socket.AF_INET, "192.0.2.1"), (socket.AF_INET6, "2001:db8::1"))
"""Addresses for documentation (RFC 5737 and 3849), which no machine has."""

Address: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address


@attrs.frozen
class LocalNetwork:
    """The names and addresses at which other machines reach this one, and its admin's token.

    The first of `addresses` is that of the default route. Both tuples may be empty.
    """

    admin_token: str = attrs.field(repr=False)
    names: tuple[str, ...]
    addresses: tuple[str, ...]

    @property
    def hosts(self) -> tuple[str, ...]:
        """The hosts of this machine, and the pattern of multicast DNS names (RFC 6762)."""
        return (*self.names, *self.addresses, "*.local")


def find_local_network() -> LocalNetwork:
    """Return the present names and addresses of this machine, and a new token."""
    return LocalNetwork(
        secrets.token_hex(TOKEN_BYTES), names_of(socket.gethostname()), find_addresses()
    )


def names_of(host_name: str) -> tuple[str, ...]:
    """Return the names of a machine: its host name, and that of multicast DNS."""
    name = host_name.lower().rstrip(".")
    label = name.partition(".")[0]
    if not _HOST_NAME.fullmatch(name) or label == "localhost":
        return ()
    return tuple(dict.fromkeys((name, label, f"{label}.local")))


def find_addresses() -> tuple[str, ...]:
    """Return the addresses of all interfaces at which other machines reach this one."""
    found: list[Address] = []
    with contextlib.suppress(OSError):  # where it is forbidden, no address is known
        for adapter in ifaddr.get_adapters():
            # IPv6 addresses are tuples: the address, flow information and the interface.
            texts = [each.ip if isinstance(each.ip, str) else each.ip[0] for each in adapter.ips]
            found += map(ipaddress.ip_address, texts)
    routed = [address for address in map(_find_routed, *zip(*_ELSEWHERE, strict=True)) if address]
    usable = [*(each for each in routed if each in found), *found]
    # A URL cannot name the interface of a link-local address of IPv6.
    return tuple(
        dict.fromkeys(
            str(each)
            for each in usable
            if not each.is_loopback and not (each.version == 6 and each.is_link_local)
        )
    )


def _find_routed(family: int, elsewhere: str) -> Address | None:
    """Return the source address of packets to `elsewhere`; none is sent."""
    with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as unused:
        unused.connect((elsewhere, 9))
        return ipaddress.ip_address(unused.getsockname()[0])
    return None
