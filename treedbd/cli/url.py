"""URLs on the command line: parsed once, as leniently as in a browser, and sent byte for byte.

`.json` may be omitted. What a URL cannot contain (quotation marks, blanks, letters beyond ASCII) is
percent-encoded; what is encoded already stays as it is. A URL with a token is an error: other users
of the machine can read command lines.

`unix:/run/treedb.sock:/users/ada` is a path of the daemon that listens on a Unix socket: the file
of the socket, in which `%3A` is a colon, and after the next colon the path and the query.
"""

from __future__ import annotations

import argparse
import ipaddress
import re
from collections.abc import Mapping
from typing import Final
from urllib.parse import SplitResult, parse_qsl, quote, unquote, urlsplit

import attrs

from treedbd.tree.types import Path

SUFFIX: Final = ".json"
ACTIVITY: Final = "/.inspect/activity.json"
RULES: Final = "/.settings/rules.json"
_RULES_NAME: Final = "rules.json"
LOCALHOST: Final = "localhost"

_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_NAME = re.compile(r"[A-Za-z0-9._-]+")
_KEPT: Final = "/%:@!$&'()*+,;=-._~"
_PORTS: Final = {"http": 80, "https": 443}
_UNIX: Final = "unix"
_HEALTH: Final = "/.health"
_TOKENS: Final = frozenset({"auth", "access_token"})


class InvalidUrl(argparse.ArgumentTypeError):
    """A text that cannot be used as a URL; the message says why, without the text."""


@attrs.frozen
class Url:
    """An http or https URL in ASCII, or a path of the daemon at a Unix socket.

    `host` is without the brackets of IPv6. `socket` is the file of the socket; the host is
    `localhost` then, which names no database.
    """

    scheme: str
    host: str
    port: int
    path: str
    query: str = ""
    socket: str = ""

    def __str__(self) -> str:
        """Return the URL; one with a host as it is sent."""
        separator = ":" if self.socket else ""
        return f"{self.origin}{separator}{self.target}"

    @property
    def target(self) -> str:
        """The path and the query."""
        return f"{self.path}?{self.query}" if self.query else self.path

    @property
    def authority(self) -> str:
        """Host and port, as in the header `Host`: without the port if it is the default."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _PORTS.get(self.scheme, self.port) else f"{host}:{self.port}"

    @property
    def origin(self) -> str:
        """Scheme, host and port, without the port if it is the default; or the socket."""
        if self.socket:
            return f"{_UNIX}:{quote(self.socket, safe=_KEPT.replace(':', ''))}"
        return f"{self.scheme}://{self.authority}"

    @property
    def is_secure(self) -> bool:
        """Whether it is an https URL."""
        return self.scheme == "https"

    @property
    def has_path(self) -> bool:
        """Whether it names a part of a database, not the whole."""
        return bool(self.path.removesuffix(SUFFIX).strip("/"))

    def to_json(self) -> Url:
        """Return the URL with `.json` at the end of its path."""
        has_suffix = self.path.endswith(SUFFIX)
        return self if has_suffix else attrs.evolve(self, path=(self.path or "/") + SUFFIX)

    def below(self, path: Path) -> Url:
        """Return the URL of a path below the one that this names."""
        root = self.path.removesuffix(SUFFIX).rstrip("/")
        keys = "".join("/" + quote(key, safe="") for key in path)
        return attrs.evolve(self, path=root + keys)

    def to_rules(self) -> Url:
        """Return the URL of the rules of the project whose root this is."""
        root = self.path.removesuffix(RULES).removesuffix(f"/{SUFFIX}").rstrip("/")
        return attrs.evolve(self, path=root + RULES)

    def to_settings(self, name: str) -> Url:
        """Return the URL of a resource for admins of the database whose root this is."""
        rules = self.to_rules()
        return attrs.evolve(rules, path=rules.path.removesuffix(_RULES_NAME) + name)

    def to_activity(self) -> Url:
        """Return the URL of what clients do with the project whose root this is."""
        root = self.to_rules().path.removesuffix(RULES)
        return attrs.evolve(self, path=root + ACTIVITY)

    def to_health(self) -> Url:
        """Return the URL that says which database the root that this is belongs to."""
        return attrs.evolve(self, path=self.path + _HEALTH).with_parameters({"database": "true"})

    def has(self, name: str) -> bool:
        """Return whether the query has a parameter."""
        return any(name == given for given, _ in parse_qsl(self.query, keep_blank_values=True))

    def with_parameters(self, parameters: Mapping[str, str]) -> Url:
        """Return the URL with more parameters."""
        more = (f"{name}={quote(value, safe='')}" for name, value in parameters.items())
        return attrs.evolve(self, query="&".join(filter(None, (self.query, *more))))


def parse_url(text: str) -> Url:
    """Parse a URL of a command line; raise `InvalidUrl`."""
    if _CONTROL.search(text):
        raise InvalidUrl("must not contain control characters")
    try:
        parts = urlsplit(text)
        port = parts.port
        path, query = quote(parts.path, safe=_KEPT), quote(parts.query, safe=_KEPT + "?")
    except ValueError:  # UnicodeEncodeError is one
        raise InvalidUrl("must be a URL") from None
    if parts.scheme not in _PORTS and parts.scheme != _UNIX:
        raise InvalidUrl("must begin with https://, http:// or unix:")
    if parts.fragment:
        raise InvalidUrl("must not contain #; write %23 in a query")
    if parts.scheme == _UNIX:
        url = _at_socket(parts, path, query)
    else:
        url = Url(parts.scheme, _host(parts), port or _PORTS[parts.scheme], path, query)
    if parts.username is not None or any(map(url.has, _TOKENS)):
        raise InvalidUrl("must not contain a token; use TREEDB_TOKEN or --token-file")
    return url


def _at_socket(parts: SplitResult, quoted: str, query: str) -> Url:
    socket, _, path = quoted.partition(":")
    if parts.netloc or not socket or (path and not path.startswith("/")):
        raise InvalidUrl("must be unix:SOCKET:/PATH, as in unix:/run/treedb.sock:/users/ada")
    return Url(_UNIX, LOCALHOST, 0, path or "/", query, unquote(socket))


def is_local_name(host: str) -> bool:
    """Return whether a name always means this machine (RFC 6761, section 6.3)."""
    name = host.lower().removesuffix(".")
    return name == LOCALHOST or name.endswith("." + LOCALHOST)


def is_local(host: str) -> bool:
    """Return whether a name or an address means this machine."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return is_local_name(host)


def _host(parts: SplitResult) -> str:
    host = parts.hostname or ""
    try:
        if ":" in host:
            return str(ipaddress.IPv6Address(host))
        encoded = host.encode("idna").decode()
    except ValueError:
        encoded = ""
    if not _NAME.fullmatch(encoded):
        raise InvalidUrl("must have a host, as in https://localhost:8443/a.json")
    return encoded
