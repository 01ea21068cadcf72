"""Who is believed to be the server: certificates and names, checked without exception.

Twisted's own options for clients let a connection pass when the names in a certificate cannot be
read, be it that there are none or that one is a wildcard like `*.localhost`, which development
mode's certificate carries. Here such a name counts as absent, and no name that fits is a refusal.
"""

from __future__ import annotations

import ipaddress
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
    CertificateOptions,
    TLSVersion,
    platformTrust,
    trustRootFromCertificates,
)
from twisted.protocols.tls import TLSMemoryBIOProtocol
from twisted.python.failure import Failure
from zope.interface import implementer

from treedbd.cli.url import LOCALHOST, is_local_name
from treedbd.web.fetch import parse_authority

_MUST: Final = SSL.VERIFY_PEER | SSL.VERIFY_FAIL_IF_NO_PEER_CERT


class Trust:
    """By whose certificates servers are verified."""

    def __init__(self, authority: bytes | None = None) -> None:
        """Take the certificates of a PEM text, or the system's; raise `BadAuthority`."""
        roots: Any = (
            platformTrust()
            if authority is None
            else trustRootFromCertificates(parse_authority(authority))
        )
        self._context = CertificateOptions(
            trustRoot=roots, raiseMinimumTo=TLSVersion.TLSv1_2
        ).getContext()

    def creator_for(self, host: str) -> IOpenSSLClientConnectionCreator:
        """Return what makes the TLS side of connections to a host, a name or an address."""
        return _Creator(self._context, host)


@implementer(IOpenSSLClientConnectionCreator)
class _Creator:
    def __init__(self, context: SSL.Context, host: str) -> None:
        self._context = context
        self._host = host
        self._ids = _ids(host)

    def clientConnectionForTLS(self, protocol: TLSMemoryBIOProtocol) -> SSL.Connection:
        connection = SSL.Connection(self._context, None)
        if isinstance(self._ids[0], DNS_ID):
            connection.set_tlsext_host_name(self._host.encode())

        def check(_: SSL.Connection, certificate: X509, __: int, depth: int, ok: int) -> bool:
            if depth or not ok:
                return bool(ok)
            try:
                is_named(certificate.to_cryptography(), self._ids)
            except Exception:  # an error that left this callback would count as consent
                protocol.failVerification(Failure())
                return False
            return True

        connection.set_verify(_MUST, check)
        return connection


def is_named(certificate: x509.Certificate, ids: list[ServiceID]) -> None:
    """Raise `VerificationError` unless a certificate carries one of these names."""
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


def _ids(host: str) -> list[ServiceID]:
    """Return the names of which a certificate must carry one.

    A name below `localhost` is connected to nothing but this machine, so that of this machine will
    do: no client takes a wildcard directly under a top-level name.
    """
    try:
        return [IPAddress_ID(str(ipaddress.ip_address(host)))]
    except ValueError:
        own = DNS_ID(host)
    return [own, DNS_ID(LOCALHOST)] if is_local_name(host) else [own]
