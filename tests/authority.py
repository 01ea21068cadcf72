"""Certificates with any names, also invalid ones, signed by an authority for tests."""

from __future__ import annotations

import datetime
import ssl
from http.client import HTTPConnection

import trustme
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID


def dns(*names: str) -> x509.SubjectAlternativeName:
    """Return the extension with these DNS names, which need not be valid."""
    return x509.SubjectAlternativeName([x509.DNSName(name) for name in names])


def issue_like_public(
    authority: trustme.CA, name: str, key: rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey
) -> bytes:
    """Return a key and a certificate for `name`, in PEM, as public authorities issue them.

    It is valid for 90 days, names a revocation list, and has what verifiers are strict about.
    """
    signer = load_pem_private_key(authority.private_key_pem.bytes(), None)
    assert isinstance(signer, ec.EllipticCurvePrivateKey)
    now, day = datetime.datetime.now(datetime.UTC), datetime.timedelta(days=1)
    revoked = x509.UniformResourceIdentifier("http://authority.example/revoked.crl")
    signing = x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key())
    made = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
        .issuer_name(x509.load_pem_x509_certificate(authority.cert_pem.bytes()).subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - day)
        .not_valid_after(now + 89 * day)
        .add_extension(dns(name), critical=False)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(signing, critical=False)
        .add_extension(
            x509.CRLDistributionPoints([x509.DistributionPoint([revoked], None, None, None)]),
            critical=False,
        )
        .sign(signer, hashes.SHA256())
    )
    shown = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return shown + made.public_bytes(Encoding.PEM)


def issue(authority: trustme.CA, names: x509.ExtensionType | None) -> trustme.LeafCert:
    """Return a certificate with these names and no others; its common name is `localhost`."""
    signer = load_pem_private_key(authority.private_key_pem.bytes(), None)
    assert isinstance(signer, ec.EllipticCurvePrivateKey)
    key = ec.generate_private_key(ec.SECP256R1())
    now = datetime.datetime.now(datetime.UTC)
    day = datetime.timedelta(days=1)
    builder = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")]))
        .issuer_name(x509.load_pem_x509_certificate(authority.cert_pem.bytes()).subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - day)
        .not_valid_after(now + day)
    )
    if names is not None:
        builder = builder.add_extension(names, critical=False)
    return trustme.LeafCert(
        key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()),
        builder.sign(signer, hashes.SHA256()).public_bytes(Encoding.PEM),
        [],
    )


def serial_of(connection: HTTPConnection) -> object:
    """Return the serial number of the certificate that an open connection was shown."""
    assert isinstance(connection.sock, ssl.SSLSocket)
    certificate = connection.sock.getpeercert()
    assert certificate
    return certificate["serialNumber"]
