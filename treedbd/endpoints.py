"""Where the daemon listens: endpoint strings, parsed once, and the ports they open.

The syntax is that of `twisted.internet.endpoints.serverFromString`. What we must know of an
endpoint before it opens (is it loopback, which files does its certificate lie in) is read here; the
kinds that Twisted's plugins add are passed to it as they are. This module knows no HTTP.
"""

from __future__ import annotations

import errno
import ipaddress
import os
import pathlib
import re
from typing import Final

import attrs
from twisted.internet.defer import Deferred
from twisted.internet.endpoints import SSL4ServerEndpoint, quoteStringArgument, serverFromString
from twisted.internet.error import CannotListenError
from twisted.internet.interfaces import (
    IListeningPort,
    IProtocolFactory,
    IStreamServerEndpointStringParser,
)
from twisted.plugin import getPlugins
from twisted.python.failure import Failure

from treedbd.certificate import CertificateFiles, ServerContext

BACKLOG: Final = "1024"

# The parameters of Twisted's own kinds, in the order in which they may stand without a name.
_PARAMETERS: Final = {
    "tcp": ("port", "interface", "backlog"),
    "tcp6": ("port", "backlog", "interface"),
    "ssl": (
        *("port", "privateKey", "certKey", "sslmethod", "interface"),
        *("backlog", "extraCertChain", "dhParameters"),
    ),
    "unix": ("address", "mode", "backlog", "lockfile"),
}
# Standard input and output are no port, and for TLS there is `ssl`, whose files are read again.
_UNFIT: Final = frozenset({"stdio", "tls"})
_FILES: Final = frozenset({"privateKey", "certKey", "extraCertChain", "dhParameters", "address"})
_ARGUMENT = re.compile(r"((?:\\.|[^:\\])*)(:|\Z)", re.DOTALL)
_NAMED = re.compile(r"([A-Za-z0-9_]+)=(.*)", re.DOTALL)
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)


class InvalidEndpoint(ValueError):
    """A string that is no endpoint; the message says what is wrong with it."""


class CannotListen(Exception):
    """An endpoint that does not open.

    The message says which, why, and what to do; it goes on after who names the endpoint, and ends
    without a dot.
    """


@attrs.frozen
class Endpoint:
    """A place to listen at.

    `text` is what the operator wrote, `described` the string for Twisted, with absolute paths.
    `certificate` is None for an `ssl` endpoint that names no key, and for every other kind.
    """

    kind: str
    text: str
    described: str
    port: int = 0
    interface: str = ""
    backlog: int = int(BACKLOG)
    certificate: CertificateFiles | None = None

    @property
    def is_loopback(self) -> bool:
        """Whether nobody but this machine can reach it."""
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
        """Whether it speaks TLS."""
        return self.kind == "ssl"


def parse_endpoint(text: str, folder: pathlib.Path) -> Endpoint:
    """Parse an endpoint string; relative files are those of `folder`; raise `InvalidEndpoint`."""
    kind, *arguments = _split(text)
    if not kind or not arguments:
        raise InvalidEndpoint(f'"{text}" is no endpoint, which reads like tcp:8080 or ssl:8443')
    names = _PARAMETERS.get(kind)
    if names is None:
        known = _kinds_of_plugins()
        if kind not in known:
            kinds = ", ".join((*_PARAMETERS, *known))
            raise InvalidEndpoint(f'"{text}" is of no kind that is known, which are {kinds}')
        return Endpoint(kind, text, text)
    given = _name_arguments(kind, names, arguments)
    given = {
        name: str(folder / value) if name in _FILES else value for name, value in given.items()
    }
    if kind == "unix":
        return Endpoint(kind, text, _describe(kind, given))
    given.setdefault("backlog", BACKLOG)
    return Endpoint(
        kind,
        text,
        _describe(kind, given),
        _whole(kind, "port", given.get("port"), 65_535),
        given.get("interface", "::" if kind == "tcp6" else ""),
        _whole(kind, "backlog", given["backlog"], 65_535),
        _certificate_files(given) if kind == "ssl" else None,
    )


def open_endpoint(
    endpoint: Endpoint, reactor: object, factory: IProtocolFactory, context: ServerContext | None
) -> IListeningPort:
    """Listen, at once; `context` is for `ssl`. Raises `CannotListen`."""
    opened: list[IListeningPort | Failure] = []
    try:
        listening: Deferred[IListeningPort] = (
            serverFromString(reactor, endpoint.described)
            if context is None
            else SSL4ServerEndpoint(
                reactor, endpoint.port, context, endpoint.backlog, endpoint.interface
            )
        ).listen(factory)
    except LookupError:
        raise CannotListen(
            f"{endpoint.text} cannot be opened (there is no such socket): let a socket unit of "
            "systemd hand it over, or name another endpoint"
        ) from None
    except (ValueError, TypeError) as error:
        raise CannotListen(
            f"{endpoint.text} cannot be opened ({error}): correct it, or name another endpoint"
        ) from None
    listening.addBoth(opened.append)
    if not opened:
        listening.cancel()
        raise _refuse(endpoint, TimeoutError("it does not open at once"))
    port = opened[0]
    if isinstance(port, Failure):
        raise _refuse(endpoint, port.value)
    return port


def _kinds_of_plugins() -> list[str]:
    plugins = getPlugins(IStreamServerEndpointStringParser)
    return sorted({str(each.prefix) for each in plugins} - {*_PARAMETERS, *_UNFIT})


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
            raise InvalidEndpoint(f'"{argument}" says nothing to {kind}, which knows {known}')
        if name == "sslmethod":
            raise InvalidEndpoint(
                f'"{argument}" has no effect, TLS 1.2 and newer are spoken: leave it out'
            )
        given[name] = _ESCAPED.sub(r"\1", named[2] if named else argument)
    if names[0] not in given:
        raise InvalidEndpoint(f"{kind} needs its {names[0]}")
    return given


def _whole(kind: str, name: str, value: str | None, most: int) -> int:
    if value is None or not re.fullmatch(r"[0-9]{1,9}", value, re.ASCII) or int(value) > most:
        raise InvalidEndpoint(f"the {name} of {kind} is a number from 0 to {most}")
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
    named = (f"{name}={quoteStringArgument(value)}" for name, value in given.items())
    return ":".join((kind, *named))


def _refuse(endpoint: Endpoint, error: BaseException | None) -> CannotListen:
    if isinstance(error, CannotListenError) and isinstance(error.socketError, OSError):
        error = error.socketError
    number = error.errno if isinstance(error, OSError) else None
    reason = os.strerror(number) if number else str(error)
    remedy = "end what is in its place, or name another endpoint"
    if number == errno.EACCES and endpoint.kind == "unix":
        remedy = "let the user that runs treedb write to its directory, or name another endpoint"
    elif number == errno.EACCES:
        remedy = (
            "a port below 1024 needs the right CAP_NET_BIND_SERVICE, AmbientCapabilities= in a "
            "unit of systemd; grant it, or name another port"
        )
    elif number == errno.EADDRNOTAVAIL:
        remedy = "name an address of this machine as its interface"
    return CannotListen(f"{endpoint.text} cannot be opened ({reason}): {remedy}")
