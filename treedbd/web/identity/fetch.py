"""Small documents fetched over verified TLS: one GET, no redirect, a bounded body.

How long it may take is not known here: cancelling what `fetcher` returns ends the connection.
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

from treedbd.web.identity.tls import Trust

Fetch: TypeAlias = Callable[[str], Deferred[bytes]]
"""From an https URL to what is there; fails with `FetchFailed`, or as the connection fails."""

MAX_BODY_BYTES: Final = 262_144
MAX_AUTHORITY_BYTES: Final = 1_048_576


class FetchFailed(Exception):
    """What came is no document; the message is the end of a sentence."""


class BadAuthority(ValueError):
    """A file of certificates that cannot be used; the message is a sentence that says why."""


def read_authority(file: pathlib.Path) -> bytes:
    """Return the PEM text of the certificates in a file; raise `BadAuthority`."""
    try:
        with file.open("rb") as opened:
            pem = opened.read(MAX_AUTHORITY_BYTES)
    except OSError as error:
        raise BadAuthority(f"The certificates cannot be read: {error.strerror}.") from None
    parse_authority(pem)
    return pem


def parse_authority(pem: bytes) -> list[Certificate]:
    """Return the certificates in a PEM text, one at least; raise `BadAuthority`."""
    try:
        found = x509.load_pem_x509_certificates(pem)
    except ValueError:
        raise BadAuthority("There is no certificate in PEM in the file.") from None
    return [Certificate(X509.from_cryptography(each)) for each in found]


def fetcher(reactor: Any, authority: bytes | None = None) -> Fetch:
    """Return what fetches: servers are verified by the certificates of a PEM text.

    Without one the system's authorities verify them. Raises `BadAuthority`.
    """
    authorities = None if authority is None else parse_authority(authority)
    # Trust is made anew for each: what the system's authorities are changes while a daemon runs.
    return lambda url: Deferred.fromCoroutine(_fetch(reactor, Trust(authorities), url))


async def _fetch(reactor: Any, trust: Trust, url: str) -> bytes:
    door = _Door(reactor, trust)
    client = HTTPClient(Agent.usingEndpointFactory(reactor, door))
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
        door.shut()
    return bytes(body)


def explain(error: BaseException | None) -> str:
    """Return the end of a sentence that says why a fetch failed with an error."""
    if isinstance(error, FetchFailed):
        return f"it {error}"
    if isinstance(error, ResponseFailed) and error.reasons:
        return explain(error.reasons[0].value)
    if isinstance(error, VerificationError):
        return "its certificate is for another name"
    if isinstance(error, SSLError) and error.args[0]:
        return f"TLS says: {error.args[0][0][-1]}"
    return f"{str(error) or 'the connection failed'} ({type(error).__name__})"


@implementer(IAgentEndpointFactory)
class _Door:
    """Opens TLS connections, and drops all that it opened.

    To close one in good order would mean to wait for the peer, who may be what hangs.
    """

    def __init__(self, reactor: Any, trust: Trust) -> None:
        self._reactor = reactor
        self._trust = trust
        self._opened: list[IProtocol] = []

    def endpointForURI(self, uri: URI) -> IStreamClientEndpoint:
        if uri.scheme != b"https":
            raise FetchFailed("is not at an https URL")
        tls = self._trust.creator_for(uri.host.decode("ascii"))
        endpoint = HostnameEndpoint(self._reactor, uri.host, uri.port)
        return _Noted(wrapClientTLS(tls, endpoint, self._reactor), self._opened)

    def shut(self) -> None:
        for protocol in self._opened:
            cast(TLSMemoryBIOProtocol, cast(Protocol, protocol).transport).abortConnection()


@implementer(IStreamClientEndpoint)
class _Noted:
    """An endpoint that notes the protocols it connected."""

    def __init__(self, endpoint: IStreamClientEndpoint, opened: list[IProtocol]) -> None:
        self._endpoint = endpoint
        self._opened = opened

    def connect(self, protocolFactory: IProtocolFactory) -> Deferred[IProtocol]:
        def note(protocol: IProtocol) -> IProtocol:
            self._opened.append(protocol)
            return protocol

        cast(Factory, protocolFactory).noisy = False  # a line in the log for each fetch otherwise
        connected: Deferred[IProtocol] = self._endpoint.connect(protocolFactory)
        return connected.addCallback(note)
