"""Who is believed to be the server: certificates and names, checked without exception.

Twisted's own options for clients let a connection pass when the names in a certificate cannot be
read, be it that there are none or that one is a wildcard like `*.localhost`, which development
mode's certificate carries. Here such a name counts as absent, and no name that fits is a refusal.

What is asked of the server, and where the certificates of authorities are kept, is not known here.
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

_MUST: Final = SSL.VERIFY_PEER | SSL.VERIFY_FAIL_IF_NO_PEER_CERT


class Trust:
    """By whose certificates servers are verified."""

    def __init__(self, authorities: Sequence[Certificate] | None = None) -> None:
        """Trust what these have signed; without any named, the system's authorities."""
        roots: Any = (
            platformTrust() if authorities is None else trustRootFromCertificates(authorities)
        )
        self._context = CertificateOptions(
            trustRoot=roots, raiseMinimumTo=TLSVersion.TLSv1_2
        ).getContext()

    def creator_for(self, host: str, *also: str) -> IOpenSSLClientConnectionCreator:
        """Return what makes the TLS side of connections to a host, a name or an address, in ASCII.

        A certificate for one of the names in `also` will do as well. The connection fails with
        `VerificationError` if there is none for any. Raises `ValueError` for what is no host.
        """
        return _Creator(self._context, host, [_id(name) for name in (host, *also)])


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
                require_name(certificate.to_cryptography(), self._ids)
            except Exception:  # whatever goes wrong here refuses, and is told as the reason
                protocol.failVerification(Failure())
                return False
            return True

        connection.set_verify(_MUST, check)
        return connection


def require_name(certificate: x509.Certificate, ids: Sequence[ServiceID]) -> None:
    """Raise `VerificationError` unless a certificate carries one of these names (RFC 9525).

    The common name in its subject is none.
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


def _id(host: str) -> ServiceID:
    try:
        return IPAddress_ID(str(ipaddress.ip_address(host)))
    except ValueError:
        return DNS_ID(host)
