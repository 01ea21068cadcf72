"""TLS clients that verify their server: its certificate and its name, without exception.

Twisted's own client options accept a server when the names in its certificate cannot be parsed:
when there are none, or when one is a wildcard like `*.localhost`, which development mode's
certificate has. Here such a name is ignored, and a certificate without a matching name is refused.

This module knows neither what is requested of a server nor where CA certificates are stored.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from typing import Any, Final

from cryptography import x509
from OpenSSL import SSL
from OpenSSL.crypto import X509
from service_identity import CertificateError, VerificationError
from service_identity.hazmat import (
    DNS_ID,
    DNSPattern,
    IPAddress_ID,
    IPAddressPattern,
    ServiceID,
    verify_service_identity,
)
from twisted.internet.interfaces import IOpenSSLClientConnectionCreator
from twisted.internet.ssl import (
    Certificate,
    CertificateOptions,
    TLSVersion,
    platformTrust,
    trustRootFromCertificates,
)
from twisted.protocols.tls import TLSMemoryBIOProtocol
from twisted.python.failure import Failure
from zope.interface import implementer

_VERIFY_MODE: Final = SSL.VERIFY_PEER | SSL.VERIFY_FAIL_IF_NO_PEER_CERT


class TrustStore:
    """The CA certificates by which servers are verified."""

    def __init__(self, authorities: Sequence[Certificate] | None = None) -> None:
        """Trust certificates that these authorities have signed; for None those of the system."""
        roots: Any = (
            platformTrust() if authorities is None else trustRootFromCertificates(authorities)
        )
        self._context = CertificateOptions(
            trustRoot=roots, raiseMinimumTo=TLSVersion.TLSv1_2
        ).getContext()

    def creator_for(self, host: str, *also: str) -> IOpenSSLClientConnectionCreator:
        """Return the creator of TLS connections to a host: a name or an address, in ASCII.

        A certificate for one of the names in `also` is accepted too. The connection fails with
        `VerificationError` if the certificate is for none of them. Raises `ValueError` for text
        that is not a host.
        """
        return _Creator(self._context, host, [_service_id(name) for name in (host, *also)])


@implementer(IOpenSSLClientConnectionCreator)
class _Creator:
    def __init__(self, context: SSL.Context, host: str, ids: Sequence[ServiceID]) -> None:
        self._context = context
        self._host = host
        self._ids = ids

    def clientConnectionForTLS(self, protocol: TLSMemoryBIOProtocol) -> SSL.Connection:
        connection = SSL.Connection(self._context, None)
        if isinstance(self._ids[0], DNS_ID):
            connection.set_tlsext_host_name(self._host.encode())

        def check(_: SSL.Connection, certificate: X509, __: int, depth: int, ok: int) -> bool:
            if depth or not ok:
                return bool(ok)
            try:
                require_server_name(certificate.to_cryptography(), self._ids)
            except Exception:  # any error refuses the server, and the connection fails with it
                protocol.failVerification(Failure())
                return False
            return True

        connection.set_verify(_VERIFY_MODE, check)
        return connection


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
