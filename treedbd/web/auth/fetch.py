"""Small documents fetched over verified TLS: one GET, no redirect, a bounded body.

This module sets no timeout; cancelling the Deferred of a fetch closes the connection.
"""

from __future__ import annotations

import pathlib
from collections.abc import Callable
from typing import Any, Final, TypeAlias

from cryptography import x509
from OpenSSL.crypto import X509
from OpenSSL.SSL import Error as SSLError
from service_identity import VerificationError
from twisted.internet.defer import Deferred
from twisted.internet.ssl import Certificate
from twisted.python.reflect import namedAny

from treedbd.web.auth.tls import TrustStore

Fetch: TypeAlias = Callable[[str], Deferred[bytes]]
"""From an https URL to the document there.

The Deferred fails with `FetchFailed`, or with the error of the connection.
"""

MAX_BODY_BYTES: Final = 262_144
MAX_AUTHORITY_BYTES: Final = 1_048_576


class FetchFailed(Exception):
    """A document that could not be fetched.

    Attributes:
        problem: what the server did wrong, from the verb on: "answered with the status 404".

    """

    def __init__(self, problem: str) -> None:
        super().__init__(f"The server {problem}.")
        self.problem = problem


class BadAuthority(ValueError):
    """A file of CA certificates that cannot be used.

    Attributes:
        problem: what is wrong with the file, from the verb on.

    """

    def __init__(self, problem: str) -> None:
        super().__init__(f"The file of CA certificates {problem}.")
        self.problem = problem


def read_authority(file: pathlib.Path) -> bytes:
    """Return the PEM text of the CA certificates in a file; raise `BadAuthority`."""
    try:
        with file.open("rb") as opened:
            pem = opened.read(MAX_AUTHORITY_BYTES)
    except OSError as error:
        raise BadAuthority(f"cannot be read ({error.strerror})") from None
    parse_authority(pem)
    return pem


def parse_authority(pem: bytes) -> list[Certificate]:
    """Return the CA certificates in a PEM text, at least one; raise `BadAuthority`."""
    try:
        found = x509.load_pem_x509_certificates(pem)
    except ValueError:
        raise BadAuthority("holds no certificate in PEM") from None
    return [Certificate(X509.from_cryptography(each)) for each in found]


def make_fetch(reactor: Any, authority: bytes | None = None) -> Fetch:
    """Return a function that fetches documents from servers that an authority has certified.

    `authority` is a PEM text of CA certificates, None for those of the system. Raises
    `BadAuthority`.
    """
    authorities = None if authority is None else parse_authority(authority)
    # Each fetch has its own trust store: the system's authorities change while a daemon runs.
    return lambda url: _get(reactor, TrustStore(authorities), url)


def _get(reactor: Any, trust: TrustStore, url: str) -> Deferred[bytes]:
    # Not imported at the top, because of the memory that it takes.
    get = namedAny("treedbd.web.auth.https_get.get")
    return Deferred.fromCoroutine(get(reactor, trust, url))


def failure_reason(error: BaseException | None) -> str:
    """Return why a fetch failed with an error, as a clause without a full stop."""
    if isinstance(error, FetchFailed):
        return f"the server {error.problem}"
    # `ResponseFailed` has the errors that caused it; to import it is to import the whole client.
    causes = getattr(error, "reasons", None)
    if causes:
        return failure_reason(causes[0].value)
    if isinstance(error, VerificationError):
        return "the certificate of the server is for another name"
    if isinstance(error, SSLError) and error.args[0]:
        return f"TLS failed: {error.args[0][0][-1]}"
    return f"{str(error) or 'the connection failed'} ({type(error).__name__})"
