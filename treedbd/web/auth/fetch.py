"""Small documents fetched over verified TLS: one GET, no redirect, a bounded body.

A fetch has no timeout of its own; cancelling its Deferred closes the connection.

A `TrustStore` verifies the certificate and the name of every server, without exception. Twisted's
own client options accept a server when the names in its certificate cannot be parsed: when there
are none, or when one is a wildcard like `*.localhost`, which development mode's certificate has.
Here such a name is ignored, and a certificate without a matching name is refused. The commands use
the same `TrustStore` for their connections.

Twisted's client takes about a megabyte of memory, and few daemons fetch anything. So it is imported
at the first fetch.
"""

from __future__ import annotations

import ipaddress
import pathlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast

from cryptography import x509
from OpenSSL import SSL
from OpenSSL.crypto import X509
from OpenSSL.SSL import Error as SSLError
from service_identity import CertificateError, VerificationError
from service_identity.hazmat import (
    DNS_ID,
    DNSPattern,
    IPAddress_ID,
    IPAddressPattern,
    ServiceID,
    verify_service_identity,
)
from twisted.internet.defer import Deferred
from twisted.internet.endpoints import HostnameEndpoint, wrapClientTLS
from twisted.internet.interfaces import (
    IOpenSSLClientConnectionCreator,
    IProtocol,
    IProtocolFactory,
    IStreamClientEndpoint,
)
from twisted.internet.protocol import Factory, Protocol
from twisted.internet.ssl import (
    Certificate,
    CertificateOptions,
    TLSVersion,
    platformTrust,
    trustRootFromCertificates,
)
from twisted.logger import Logger
from twisted.protocols.tls import TLSMemoryBIOProtocol
from twisted.python.failure import Failure
from twisted.python.reflect import namedAny
from twisted.web.http_headers import Headers
from twisted.web.iweb import IAgentEndpointFactory
from zope.interface import implementer

from treedbd.files import open_regular

if TYPE_CHECKING:
    from twisted.web.client import URI


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


class CertificateRefused(SSLError):
    """A certificate of a server that the trust store does not accept.

    Attributes:
        problem: what is wrong with it, from the verb on: "has expired".

    """

    def __init__(self, problem: str) -> None:
        super().__init__([("SSL routines", "", "certificate verify failed")])
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


class AuthorityFile:
    """A file of CA certificates, which is read again for each connection.

    One that cannot be used any longer changes nothing: the log says so, and what was read last
    counts. Files are read in the thread of the caller, so none but a regular one is read.
    """

    _log = Logger()

    def __init__(self, file: pathlib.Path, signer: str) -> None:
        """Read `file`; errors name the authorities in it `signer`. Raises `BadAuthority`."""
        self._file, self._signer = file, signer
        self._pem = self._read()
        self._store = TrustStore(parse_authority(self._pem), signer)
        self._logged = ""

    def creator_for(self, host: str) -> IOpenSSLClientConnectionCreator:
        """Return the creator of connections by what is in the file now, as a `TrustStore` does."""
        try:
            pem = self._read()
            if pem != self._pem:
                self._store = TrustStore(parse_authority(pem), self._signer)
                self._pem = pem
            self._logged = ""
        except BadAuthority as error:
            if error.problem != self._logged:
                self._logged = error.problem
                self._log.error(
                    "{file} {problem}: the certificates that were read from it before count.",
                    file=str(self._file),
                    problem=error.problem,
                )
        return self._store.creator_for(host)

    def _read(self) -> bytes:
        try:
            with open_regular(self._file) as opened:
                return opened.read(MAX_AUTHORITY_BYTES)
        except OSError as error:
            raise BadAuthority(f"cannot be read ({error.strerror})") from None


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
    if isinstance(error, CertificateRefused):
        return f"the certificate of the server {error.problem}"
    if isinstance(error, SSLError) and error.args[0]:
        return f"TLS failed: {error.args[0][0][-1]}"
    return f"{str(error) or 'the connection failed'} ({type(error).__name__})"


def make_fetch(reactor: Any, authority: bytes | None = None) -> Fetch:
    """Return a function that fetches documents from servers that an authority has certified.

    `authority` is a PEM text of CA certificates, None for those of the system. Raises
    `BadAuthority`.
    """
    authorities = None if authority is None else parse_authority(authority)
    # Each fetch has its own trust store: the system's authorities change while a daemon runs.
    return lambda url: Deferred.fromCoroutine(get(reactor, TrustStore(authorities), url))


async def get(reactor: Any, trust: AuthorityFile | TrustStore | None, url: str) -> bytes:
    """Return the document at an https URL, of a server that `trust` has certified.

    With None it is at an http URL, and nothing is certified. Raises `FetchFailed`, or the error of
    the connection.
    """
    # Not imported at the top, because of the memory that they take.
    agent: Any = namedAny("twisted.web.client.Agent")
    make_client: Any = namedAny("treq.client.HTTPClient")
    connector = _Connector(reactor, trust)
    client = make_client(agent.usingEndpointFactory(reactor, connector))
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


@implementer(IAgentEndpointFactory)
class _Connector:
    """Opens connections, with TLS if there is a trust store, and aborts all that it opened.

    An orderly close would have to wait for the peer, which may be what hangs.
    """

    def __init__(self, reactor: Any, trust: AuthorityFile | TrustStore | None) -> None:
        self._reactor = reactor
        self._trust = trust
        self._opened: list[IProtocol] = []

    def endpointForURI(self, uri: URI) -> IStreamClientEndpoint:
        scheme = "http" if self._trust is None else "https"
        if uri.scheme != scheme.encode():
            raise FetchFailed(f"is not at an {scheme} URL")
        endpoint: Any = HostnameEndpoint(self._reactor, uri.host, uri.port)
        if self._trust is not None:
            tls = self._trust.creator_for(uri.host.decode("ascii"))
            endpoint = wrapClientTLS(tls, endpoint, self._reactor)
        return _RecordingEndpoint(endpoint, self._opened)

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


_NOT_YET_VALID: Final = 9
_EXPIRED: Final = 10
_NO_SIGNER: Final = frozenset({2, 18, 19, 20, 21})
"""Errors of OpenSSL (`x509_vfy.h`): no certificate of an authority leads to the server's."""
_VERIFY_MODE: Final = SSL.VERIFY_PEER | SSL.VERIFY_FAIL_IF_NO_PEER_CERT


class TrustStore:
    """The CA certificates by which servers are verified.

    It knows neither what is requested of a server nor where CA certificates are stored.
    """

    def __init__(
        self,
        authorities: Sequence[Certificate] | None = None,
        signer: str = "a trusted authority",
    ) -> None:
        """Trust certificates that these authorities have signed; for None those of the system.

        Errors name one of them `signer`.
        """
        self._signer = signer
        roots: Any = (
            platformTrust() if authorities is None else trustRootFromCertificates(authorities)
        )
        self._context = CertificateOptions(
            trustRoot=roots, raiseMinimumTo=TLSVersion.TLSv1_2
        ).getContext()

    def creator_for(self, host: str) -> IOpenSSLClientConnectionCreator:
        """Return the creator of TLS connections to a host: a name or an address, in ASCII.

        The connection fails with `VerificationError` if the certificate is for another name.
        Raises `ValueError` for text that is not a host.
        """
        return _Creator(self._context, host, _service_id(host), self._signer)


@implementer(IOpenSSLClientConnectionCreator)
class _Creator:
    def __init__(self, context: SSL.Context, host: str, identity: ServiceID, signer: str) -> None:
        self._context = context
        self._signer = signer
        self._host = host
        self._identity = identity

    def clientConnectionForTLS(self, protocol: TLSMemoryBIOProtocol) -> SSL.Connection:
        connection = SSL.Connection(self._context, None)
        if isinstance(self._identity, DNS_ID):
            connection.set_tlsext_host_name(self._host.encode())

        def check(_: SSL.Connection, certificate: X509, code: int, depth: int, ok: int) -> bool:
            if not ok:
                protocol.failVerification(Failure(self._refusal_of(code, depth)))
                return False
            if depth:
                return True
            try:
                require_server_name(certificate.to_cryptography(), [self._identity])
            except Exception:  # any error refuses the server, and the connection fails with it
                protocol.failVerification(Failure())
                return False
            return True

        connection.set_verify(_VERIFY_MODE, check)
        return connection

    def _refusal_of(self, code: int, depth: int) -> CertificateRefused:
        """Return what an error of OpenSSL says about the certificate at a depth of the chain."""
        if code in _NO_SIGNER:
            return CertificateRefused(f"is not signed by {self._signer}")
        of = "is signed by one that " if depth else ""
        if code == _EXPIRED:
            return CertificateRefused(f"{of}has expired")
        if code == _NOT_YET_VALID:
            return CertificateRefused(f"{of}is not valid yet")
        return CertificateRefused(f"cannot be verified (error {code} of OpenSSL)")


def require_server_name(certificate: x509.Certificate, ids: Sequence[ServiceID]) -> None:
    """Raise `VerificationError` unless a certificate is for one of these names (RFC 9525).

    The common name in its subject does not count.
    """
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (x509.ExtensionNotFound, ValueError):
        raise VerificationError([]) from None
    patterns: list[Any] = [
        IPAddressPattern(address)
        for address in names.get_values_for_type(x509.IPAddress)
        if isinstance(address, ipaddress.IPv4Address | ipaddress.IPv6Address)
    ]
    for name in names.get_values_for_type(x509.DNSName):
        try:
            patterns.append(DNSPattern.from_bytes(name.encode()))
        except (CertificateError, ValueError):
            continue
    errors: list[Any] = []
    for each in ids:
        try:
            verify_service_identity(patterns, [each], [])
        except VerificationError as error:
            errors += error.errors
        except CertificateError:
            break
        else:
            return
    raise VerificationError(errors)


def _service_id(host: str) -> ServiceID:
    try:
        return IPAddress_ID(str(ipaddress.ip_address(host)))
    except ValueError:
        return DNS_ID(host)
