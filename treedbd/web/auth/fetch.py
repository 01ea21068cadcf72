"""Small documents fetched over verified TLS: one GET, no redirect, a bounded body.

This module sets no timeout; cancelling the Deferred of a fetch closes the connection.
"""

from __future__ import annotations

import pathlib
from collections.abc import Callable
from typing import Any, Final, TypeAlias, cast

from cryptography import x509
from OpenSSL.crypto import X509
from OpenSSL.SSL import Error as SSLError
from service_identity import VerificationError
from treq.client import HTTPClient
from twisted.internet.defer import Deferred
from twisted.internet.endpoints import HostnameEndpoint, wrapClientTLS
from twisted.internet.interfaces import IProtocol, IProtocolFactory, IStreamClientEndpoint
from twisted.internet.protocol import Factory, Protocol
from twisted.internet.ssl import Certificate
from twisted.protocols.tls import TLSMemoryBIOProtocol
from twisted.web.client import URI, Agent, ResponseFailed
from twisted.web.http_headers import Headers
from twisted.web.iweb import IAgentEndpointFactory
from zope.interface import implementer

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
    return lambda url: Deferred.fromCoroutine(_fetch(reactor, TrustStore(authorities), url))


async def _fetch(reactor: Any, trust: TrustStore, url: str) -> bytes:
    connector = _Connector(reactor, trust)
    client = HTTPClient(Agent.usingEndpointFactory(reactor, connector))
    body = bytearray()

    def collect(data: bytes) -> None:
        if len(body) + len(data) > MAX_BODY_BYTES:
            raise FetchFailed(f"sent more than {MAX_BODY_BYTES} bytes")
        body.extend(data)

    try:
        response = await client.get(
            url,
            headers=Headers({"Accept": ["application/json"]}),
            allow_redirects=False,
            unbuffered=True,
            reactor=reactor,
        )
        if response.code != 200:
            raise FetchFailed(f"answered with the status {response.code}")
        await response.collect(collect)
    finally:
        connector.abort()
    return bytes(body)


def failure_reason(error: BaseException | None) -> str:
    """Return why a fetch failed with an error, as a clause without a full stop."""
    if isinstance(error, FetchFailed):
        return f"the server {error.problem}"
    if isinstance(error, ResponseFailed) and error.reasons:
        return failure_reason(error.reasons[0].value)
    if isinstance(error, VerificationError):
        return "the certificate of the server is for another name"
    if isinstance(error, SSLError) and error.args[0]:
        return f"TLS failed: {error.args[0][0][-1]}"
    return f"{str(error) or 'the connection failed'} ({type(error).__name__})"


@implementer(IAgentEndpointFactory)
class _Connector:
    """Opens TLS connections, and aborts all that it opened.

    An orderly close would have to wait for the peer, which may be what hangs.
    """

    def __init__(self, reactor: Any, trust: TrustStore) -> None:
        self._reactor = reactor
        self._trust = trust
        self._opened: list[IProtocol] = []

    def endpointForURI(self, uri: URI) -> IStreamClientEndpoint:
        if uri.scheme != b"https":
            raise FetchFailed("is not at an https URL")
        tls = self._trust.creator_for(uri.host.decode("ascii"))
        endpoint = HostnameEndpoint(self._reactor, uri.host, uri.port)
        return _RecordingEndpoint(wrapClientTLS(tls, endpoint, self._reactor), self._opened)

    def abort(self) -> None:
        for protocol in self._opened:
            cast(TLSMemoryBIOProtocol, cast(Protocol, protocol).transport).abortConnection()


@implementer(IStreamClientEndpoint)
class _RecordingEndpoint:
    """An endpoint that records the protocols it connected."""

    def __init__(self, endpoint: IStreamClientEndpoint, opened: list[IProtocol]) -> None:
        self._endpoint = endpoint
        self._opened = opened

    def connect(self, protocolFactory: IProtocolFactory) -> Deferred[IProtocol]:
        def record(protocol: IProtocol) -> IProtocol:
            self._opened.append(protocol)
            return protocol

        cast(Factory, protocolFactory).noisy = False  # else each fetch is logged
        connected: Deferred[IProtocol] = self._endpoint.connect(protocolFactory)
        return connected.addCallback(record)
