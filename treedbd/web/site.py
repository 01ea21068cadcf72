"""From an address to the name of a database: by host, by `ns`, or by default.

A label is `<database>--<project>` or `<project>`; the host carries it as a subdomain of a
configured domain, the parameter `ns` where the host cannot.
"""

from __future__ import annotations

import ipaddress
import re
from functools import lru_cache
from typing import Final

from treedbd.database.catalog import DEFAULT_DATABASE, DatabaseName, UnknownDatabase
from treedbd.tree.path import InvalidPath
from treedbd.tree.query import InvalidQuery

MAX_LABEL: Final = 63
MAX_HOST_BYTES: Final = 255 + len(":65535")

_NAME = r"[a-z0-9](?:-?[a-z0-9])*"
_LABEL = re.compile(rf"(?:(?P<database>{_NAME})--)?(?P<project>{_NAME})", re.ASCII)
_HOST = re.compile(r"(\[[0-9a-fA-F:.]+\]|[^:\[\]/@\s]+)(?::[0-9]{0,5})?", re.ASCII)
_ABSOLUTE = re.compile(rb"(?i:https?)://([^/?#]*)")


class Misdirected(LookupError):
    """A host that is not under any configured domain."""


def parse_label(label: str) -> DatabaseName | None:
    """Return what a label names, None for an illegal one."""
    found = _LABEL.fullmatch(label.lower())
    if found is None or len(label) > MAX_LABEL:
        return None
    return DatabaseName(found["project"], found["database"] or DEFAULT_DATABASE)


def split_target(uri: bytes) -> tuple[bytes | None, bytes]:
    """Split a request target into the authority of an absolute form, if it is one, and the rest."""
    if uri[:1] == b"/":
        return None, uri
    found = _ABSOLUTE.match(uri)
    if found is None:
        raise InvalidPath("The request target must be a path or an absolute address.")
    rest = uri[found.end() :]
    return found[1], rest if rest[:1] == b"/" else b"/" + rest


class Addressing:
    """The domains of a service and the project that answers by default."""

    def __init__(self, domains: tuple[str, ...], default_project: str) -> None:
        """Take lower-case domains; an empty `default_project` means that none answers."""
        self._domains = sorted(domains, key=len, reverse=True)
        self._default = DatabaseName(default_project) if default_project else None
        self.name_of_host = lru_cache(maxsize=1024)(self._name_of_host)

    def find(self, hosts: list[bytes], authority: bytes | None, ns: str | None) -> DatabaseName:
        """Return the database that a request addresses.

        `hosts` are the values of its Host header, `authority` that of an absolute target. Raises
        `InvalidPath`, `InvalidQuery`, `Misdirected` or `UnknownDatabase`.
        """
        host = self.check_host(hosts, authority)
        named = self.name_of_host(host)
        if ns is not None:
            by_parameter = parse_label(ns)
            if by_parameter is None:
                raise InvalidQuery("ns must be <project> or <database>--<project>.")
            if named is not None and named != by_parameter:
                raise InvalidQuery("The host and ns name different databases.")
            return by_parameter
        if named is None:
            named = self._default
        if named is None:
            raise UnknownDatabase(
                "The address names no project: use a host <project>.<domain>, or ns=<project>."
            )
        return named

    def check_host(self, hosts: list[bytes], authority: bytes | None) -> str:
        """Return the host of a request in lower case, without its port."""
        if len(hosts) != 1:
            raise InvalidPath("A request must carry exactly one Host header.")
        host = _parse_host(hosts[0])
        if authority is not None and _parse_host(authority) != host:
            raise InvalidPath("The request target and the Host header name different hosts.")
        return host

    def _name_of_host(self, host: str) -> DatabaseName | None:
        for domain in self._domains:
            if host == domain:
                return None
            if host.endswith("." + domain):
                named = parse_label(host[: -len(domain) - 1])
                if named is None:
                    raise UnknownDatabase(f"No database can have the address {host}.")
                return named
        if host == "localhost" or _is_address(host):
            return None
        raise Misdirected(f"The host {host} is not served here.")


def _parse_host(raw: bytes) -> str:
    if len(raw) > MAX_HOST_BYTES:
        raise InvalidPath("The Host header is too long for a host name.")
    return _parse_short_host(raw)


@lru_cache(maxsize=1024)
def _parse_short_host(raw: bytes) -> str:
    found = _HOST.fullmatch(raw.decode("latin-1"))
    if found is None:
        raise InvalidPath("The Host header is not a host name.")
    return found[1].lower().removesuffix(".")


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return False
    return True
