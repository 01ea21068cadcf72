"""Connections of the blocking client: opened to a host or a socket, and verified.

Names of this machine are loopback, without a lookup.
"""

from __future__ import annotations

import pathlib
import socket
import ssl
from collections.abc import Iterable, Sequence
from typing import Final

from treedbd.cli.exit import CommandFailed
from treedbd.cli.failures import (
    CLOSED,
    LOOPBACK,
    NO_SERVER,
    NOT_CONNECTED,
    OTHER_NAME,
    UNKNOWN_NAME,
    NoResponse,
    describe_tls_failure,
)
from treedbd.cli.url import LOCALHOST, Url, is_local_name

_WRONG_NAME: Final = frozenset({62, 64})
"""OpenSSL's X509_V_ERR_HOSTNAME_MISMATCH and X509_V_ERR_IP_ADDRESS_MISMATCH."""


def open_socket(url: Url, timeout_s: float | None) -> socket.socket:
    """Connect to the server of a URL; raise `NoResponse`, or TimeoutError."""
    if url.socket:
        addresses = [(url.socket, 0)]
    elif is_local_name(url.host):
        addresses = [(each, url.port) for each in LOOPBACK]
    else:
        addresses = [(url.host, url.port)]
    failures: list[OSError] = []
    for address in addresses:
        try:
            if url.socket:
                return _connect_unix(url.socket, timeout_s)
            return socket.create_connection(address, timeout_s)
        except TimeoutError:
            raise
        except OSError as error:
            failures.append(error)
    raise NoResponse(_describe_connect(failures[0]).format(url.origin))


def _connect_unix(file: str, timeout_s: float | None) -> socket.socket:
    opened = socket.socket(socket.AF_UNIX)
    try:
        opened.settimeout(timeout_s)
        opened.connect(file)
    except OSError:
        opened.close()
        raise
    return opened


def _describe_connect(error: OSError) -> str:
    if isinstance(error, ConnectionRefusedError | FileNotFoundError):
        return NO_SERVER
    return UNKNOWN_NAME if isinstance(error, socket.gaierror) else NOT_CONNECTED


def make_context(authorities: Sequence[pathlib.Path]) -> ssl.SSLContext:
    """Return the context of connections verified by the certificates in files.

    Without files those of the system verify. Raises `CommandFailed`.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.hostname_checks_common_name = False
    if not authorities:
        context.load_default_certs()
    for file in authorities:
        try:
            context.load_verify_locations(cafile=file)
        except ssl.SSLError:
            raise CommandFailed(f"{file} holds no certificate in PEM.") from None
        except OSError as error:
            raise CommandFailed(f"{file} cannot be read ({error.strerror}).") from None
    return context


def secure(opened: socket.socket, url: Url, context: ssl.SSLContext) -> ssl.SSLSocket:
    """Return a connection over TLS to a server that is verified.

    Raises `CommandFailed`, `NoResponse` if it does not respond, or TimeoutError.
    """
    is_here = is_local_name(url.host)
    # A name below `localhost` always means this machine, so a certificate for `localhost` is
    # enough: no client accepts a wildcard directly under a top-level name.
    context.check_hostname = not is_here
    try:
        wrapped = context.wrap_socket(opened, server_hostname=url.host)
        if is_here:
            _require_local_name(wrapped, url)
    except ssl.SSLCertVerificationError as error:
        if error.verify_code in _WRONG_NAME:
            raise CommandFailed(OTHER_NAME.format(url.origin)) from None
        raise describe_tls_failure("certificate verify failed", url.origin) from None
    except TimeoutError:
        raise
    except ssl.SSLError as error:
        raise describe_tls_failure(str(error), url.origin) from None
    except OSError:
        raise NoResponse(CLOSED.format(url.origin)) from None
    return wrapped


def _require_local_name(wrapped: ssl.SSLSocket, url: Url) -> None:
    """Raise `CommandFailed` unless a certificate is for a name of this machine or `localhost`.

    A wildcard stands for one label, and is not directly under a top-level name (RFC 9525).
    """
    host = url.host.lower().removesuffix(".")
    rest = host.partition(".")[2]
    accepted = {host, LOCALHOST, *([f"*.{rest}"] if "." in rest else [])}
    certificate = wrapped.getpeercert() or {}
    names: Iterable[tuple[str, str]] = certificate.get("subjectAltName", ())  # type: ignore[assignment]
    if not any(kind == "DNS" and name.lower() in accepted for kind, name in names):
        wrapped.close()
        raise CommandFailed(OTHER_NAME.format(url.origin))
