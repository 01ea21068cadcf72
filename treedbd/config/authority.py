"""The certificate authority of development mode with `--lan`, kept in the data directory.

A device that trusts its certificate trusts what it issues. So it issues no other authority, and its
name constraints (RFC 5280, section 4.2.1.10) permit no names but those of this machine, `localhost`
and `local`. They are not marked as critical, because the TLS libraries of small boards refuse a
critical extension that they do not know; browsers and systems obey them all the same. Addresses
are not constrained: they change.

A certificate and its key are in one file, which is replaced as a whole.
"""

from __future__ import annotations

import datetime
import ipaddress
import pathlib
from collections.abc import Iterable
from typing import Final

import attrs
from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from treedbd.config.certificate import (
    LOCAL_ADDRESSES,
    LOCAL_LIFE,
    LOCAL_NAMES,
    BadCertificate,
    read_certificates,
    read_context,
    read_key,
)
from treedbd.config.endpoints import AUTHORITY_CERTIFICATE, CertificateFiles
from treedbd.config.local_network import LocalNetwork
from treedbd.files import write_atomically

AUTHORITY_KEY: Final = "authority.key.pem"
LAN_CERTIFICATE: Final = "lan.pem"
"""The file of the issued certificate and its key."""
AUTHORITY_LIFE: Final = datetime.timedelta(days=3650)
_RENEW_BEFORE: Final = datetime.timedelta(days=30)
_MULTICAST_DOMAIN: Final = "local"
_REMEDY: Final = (
    "restore it, or remove both files of the authority: the next start makes another, which every "
    "device has to trust anew"
)


@attrs.frozen
class Authority:
    """An authority: its certificate, and the key that signs what it issues."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey = attrs.field(repr=False)

    def permits(self, name: str) -> bool:
        """Return whether its name constraints permit a host name."""
        try:
            found = self.certificate.extensions.get_extension_for_class(x509.NameConstraints)
        except x509.ExtensionNotFound:
            return True
        permitted = [each.value for each in found.value.permitted_subtrees or ()]
        return any(name == each or name.endswith(f".{each}") for each in permitted)


def ensure_lan_certificate(
    folder: pathlib.Path, network: LocalNetwork, now: datetime.datetime
) -> CertificateFiles:
    """Return the certificate for this machine in its network, issued again if that has changed.

    `now` is in UTC. The authority is created if it is missing. Raises `BadCertificate`.
    """
    file = folder / LAN_CERTIFICATE
    try:
        authority = _ensure_authority(folder, network, now)
        names = [each for each in (*LOCAL_NAMES, *network.names) if authority.permits(each)]
        addresses = [*LOCAL_ADDRESSES, *network.addresses]
        if not _is_current(file, authority, {*names, *addresses}, now):
            write_atomically(file, issue(authority, names, addresses, now))
    except OSError as error:
        raise BadCertificate(
            f"the certificate for --lan in {folder}",
            f"cannot be written ({error.strerror})",
            "let the user that runs treedb write there, or choose another data directory",
        ) from None
    return CertificateFiles(file, file)


def _ensure_authority(
    folder: pathlib.Path, network: LocalNetwork, now: datetime.datetime
) -> Authority:
    """Return the authority; one that is there is never replaced, for devices trust it."""
    certificate_file, key_file = folder / AUTHORITY_CERTIFICATE, folder / AUTHORITY_KEY
    if not certificate_file.exists():
        authority = _make_authority(network, now)
        write_atomically(key_file, _private_pem(authority.key))
        write_atomically(certificate_file, _public_pem(authority.certificate))
    certificate = read_certificates(certificate_file, "authority")[0]
    key = read_key(key_file)
    is_pair = certificate.public_key() == key.public_key()
    if not is_pair or not isinstance(key, ec.EllipticCurvePrivateKey):
        raise BadCertificate(key_file, f"is not the key of {certificate_file}", _REMEDY)
    if not certificate.not_valid_before_utc <= now < certificate.not_valid_after_utc:
        raise BadCertificate(certificate_file, "is not valid now", f"set the clock, or {_REMEDY}")
    return Authority(certificate, key)


def _make_authority(network: LocalNetwork, now: datetime.datetime) -> Authority:
    key = ec.generate_private_key(ec.SECP256R1())
    machine = network.names[0] if network.names else "this machine"
    permitted = dict.fromkeys(("localhost", _MULTICAST_DOMAIN, *network.names))
    title = _name(f"treedb development on {machine}"[:64])
    builder = _begin(title, title, key, now, now + AUTHORITY_LIFE)
    certificate = (
        builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
        .add_extension(
            x509.NameConstraints([x509.DNSName(each) for each in permitted], None), critical=False
        )
        .sign(key, hashes.SHA256())
    )
    return Authority(certificate, key)


def issue(
    authority: Authority, names: Iterable[str], addresses: Iterable[str], now: datetime.datetime
) -> bytes:
    """Return a new certificate for names and addresses, and its key, in PEM."""
    key = ec.generate_private_key(ec.SECP256R1())
    issuer = authority.certificate
    end = min(now + LOCAL_LIFE, issuer.not_valid_after_utc)
    subjects = [
        *(x509.DNSName(each) for each in names),
        *(x509.IPAddress(ipaddress.ip_address(each)) for each in addresses),
    ]
    identifier = issuer.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
    certificate = (
        _begin(_name("treedb development"), issuer.subject, key, now, end)
        .add_extension(x509.SubjectAlternativeName(subjects), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(identifier),
            critical=False,
        )
        .sign(authority.key, hashes.SHA256())
    )
    return _private_pem(key) + _public_pem(certificate)


def _is_current(
    file: pathlib.Path, authority: Authority, hosts: set[str], now: datetime.datetime
) -> bool:
    """Return whether a certificate is valid for all hosts, and for long enough."""
    try:
        read_context(CertificateFiles(file, file))
        certificate = read_certificates(file, "certKey")[0]
        certificate.verify_directly_issued_by(authority.certificate)
        found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (BadCertificate, InvalidSignature, ValueError, TypeError, x509.ExtensionNotFound):
        return False
    named = set(found.get_values_for_type(x509.DNSName))
    named |= {str(each) for each in found.get_values_for_type(x509.IPAddress)}
    end = min(certificate.not_valid_after_utc, now + LOCAL_LIFE)
    is_ending = end - _RENEW_BEFORE <= now and end < authority.certificate.not_valid_after_utc
    return hosts <= named and certificate.not_valid_before_utc <= now < end and not is_ending


def _begin(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    now: datetime.datetime,
    end: datetime.datetime,
) -> x509.CertificateBuilder:
    public = key.public_key()
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(end)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
    )


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _private_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


def _public_pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)
