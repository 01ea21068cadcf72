"""Addressing: from the address of a request to a database and a place in it.

A database is named by the host, by the parameter `ns`, or by the default project; a host carries
the label of a database (`names`) as a subdomain of a configured domain. The path names the place.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Sequence
from typing import Final

from treedbd.caches import short_cache
from treedbd.http1.parser import BadEncoding, decode, decode_leniently
from treedbd.limits import MAX_HOST_BYTES
from treedbd.names import DatabaseName, parse_label
from treedbd.tree.path import make_place
from treedbd.tree.types import InvalidPath, InvalidQuery, Place

SUFFIX: Final = ".json"
CACHED_PATH_BYTES: Final = 256
"""Longer paths are parsed each time, so that clients cannot fill the memory."""

_HOST = re.compile(r"(\[[0-9a-fA-F:.]+\]|[^:\[\]/@\s]+)(?::[0-9]{0,5})?", re.ASCII)
_ABSOLUTE = re.compile(rb"(?i:https?)://([^/?#]*)")


class Misdirected(LookupError):
    """A host that is not under any configured domain."""


class NoDatabaseNamed(LookupError):
    """An address that names no database, or one that no database can have."""


class MissingSuffix(LookupError):
    """A path without `.json` at its end: it names nothing."""

    def __init__(self) -> None:
        super().__init__("Append .json to the path to address data: /a/b.json.")


def split_target(uri: bytes) -> tuple[bytes | None, bytes]:
    """Split a request target into its authority, None unless it is absolute, and the rest."""
    if uri[:1] == b"/":
        return None, uri
    found = _ABSOLUTE.match(uri)
    if found is None:
        raise InvalidPath("The request target must be a path or an absolute address.")
    rest = uri[found.end() :]
    return found[1], rest if rest[:1] == b"/" else b"/" + rest


def parse_path(raw_path: bytes, prefix_segments: int) -> Place:
    """Return the place that a raw path names, below the `prefix_segments` segments of a prefix.

    Raises `MissingSuffix`, or `InvalidPath` for a path that no node can have.
    """
    return parse_segments(raw_path[1:].split(b"/")[prefix_segments:])


parse_short_path: Final = short_cache(4096)(parse_path)
"""`parse_path` with its results cached, for paths of at most `CACHED_PATH_BYTES`."""


def parse_segments(segments: list[bytes]) -> Place:
    """Return the place that the segments of a path name, split at `/` before decoding.

    Empty segments collapse: `[b"a", b"", b"b.json"]` is `a/b`.
    """
    named = [segment for segment in segments if segment]
    if not named or not _ends_with_suffix(named[-1]):
        raise MissingSuffix
    try:
        decoded = [each.decode() if _needs_no_decoding(each) else decode(each) for each in named]
    except BadEncoding as error:
        raise InvalidPath(f"The path {error.problem}.") from None
    decoded[-1] = decoded[-1][: -len(SUFFIX)]
    return make_place([segment for segment in decoded if segment])


def _needs_no_decoding(segment: bytes) -> bool:
    """Return whether a segment is ASCII without `%`, as most are."""
    return segment.isascii() and b"%" not in segment


def _ends_with_suffix(segment: bytes) -> bool:
    decoded = segment if _needs_no_decoding(segment) else decode_leniently(segment)
    return decoded.endswith(SUFFIX.encode())


class Addressing:
    """Finds databases by the domains of a service and its default project.

    Attributes:
        find: the database of a Host header and of the parameter `ns`, if there is one. Raises
            `InvalidPath`, `InvalidQuery`, `Misdirected` or `NoDatabaseNamed`. Results are cached.

    """

    def __init__(
        self,
        domains: tuple[str, ...],
        default_project: str,
        *,
        any_host: bool = False,
        own_hosts: Iterable[str] = (),
    ) -> None:
        """Serve `domains`, in lower case; with an empty `default_project` there is none.

        With `any_host` other hosts name no database. Without it they are misdirected, except
        `own_hosts`, which name none either; `*.local` among these is a pattern.
        """
        self._own_hosts = frozenset(own_hosts)
        self._own_suffixes = tuple(each[1:] for each in self._own_hosts if each[:2] == "*.")
        self._domains = sorted(domains, key=len, reverse=True)
        self._any_host = any_host
        self._default = DatabaseName(default_project) if default_project else None
        self.find: Final = short_cache(4096)(self._find)

    def check_host(self, hosts: Sequence[bytes], authority: bytes | None) -> DatabaseName | None:
        """Return the database that the host of a request names, None if it names none.

        `hosts` are the values of its Host header, `authority` is that of an absolute target. Raises
        `InvalidPath`, `Misdirected` or `NoDatabaseNamed`.
        """
        if len(hosts) != 1:
            raise InvalidPath("A request must carry exactly one Host header.")
        host = _parse_host(hosts[0])
        if authority is not None and _parse_host(authority) != host:
            raise InvalidPath("The request target and the Host header name different hosts.")
        return self._name_of_host(host)

    def _find(self, host: bytes, ns: str | None) -> DatabaseName:
        named = self._name_of_host(_parse_host(host))
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
            raise NoDatabaseNamed(
                "The address names no project: use a host <project>.<domain>, or ns=<project>."
            )
        return named

    def _name_of_host(self, host: str) -> DatabaseName | None:
        for domain in self._domains:
            if host == domain:
                return None
            if host.endswith("." + domain):
                named = parse_label(host[: -len(domain) - 1])
                if named is None:
                    raise NoDatabaseNamed(f"No database can have the address {host}.")
                return named
        if self._any_host or host == "localhost" or _is_address(host):
            return None
        if host in self._own_hosts or host.endswith(self._own_suffixes):
            return None
        raise Misdirected(f"The host {host} is not served here.")


def _parse_host(raw: bytes) -> str:
    """Return a host in lower case, without its port; raise `InvalidPath`."""
    if len(raw) > MAX_HOST_BYTES:
        raise InvalidPath("The Host header is too long for a host name.")
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
