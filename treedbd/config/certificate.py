"""The TLS side of an endpoint: certificates loaded, reloaded, or created for development.

A `ServerContext` serves every new connection with the certificate that was loaded last; open
connections keep theirs. Versions, ciphers and groups are those of Mozilla's profile "intermediate",
https://ssl-config.mozilla.org: TLS 1.2 and 1.3, and only with forward secrecy and authenticated
encryption.

A client may resume a session with a ticket, which saves both sides most of a handshake. The keys of
tickets belong to the context and never leave it, so no session outlives a reload or the process.
"""

from __future__ import annotations

import datetime
import ipaddress
import os
import pathlib
from typing import Any, Final, TypeAlias, cast

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.bindings.openssl.binding import Binding
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed448, ed25519, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from OpenSSL import SSL
from twisted.internet.interfaces import IOpenSSLServerConnectionCreator
from twisted.internet.ssl import AcceptableCiphers, CertificateOptions, TLSVersion
from twisted.protocols.tls import TLSMemoryBIOProtocol
from zope.interface import implementer

from treedbd.config.endpoints import LOCAL_CERTIFICATE, LOCAL_KEY, CertificateFiles
from treedbd.errors import OperatorError
from treedbd.files import write_atomically

CIPHERS: Final = (
    "ECDHE-ECDSA-AES128-GCM-SHA256",
    "ECDHE-RSA-AES128-GCM-SHA256",
    "ECDHE-ECDSA-AES256-GCM-SHA384",
    "ECDHE-RSA-AES256-GCM-SHA384",
    "ECDHE-ECDSA-CHACHA20-POLY1305",
    "ECDHE-RSA-CHACHA20-POLY1305",
    "DHE-RSA-AES128-GCM-SHA256",
    "DHE-RSA-AES256-GCM-SHA384",
    "DHE-RSA-CHACHA20-POLY1305",
)
"""The cipher suites of TLS 1.2, the preferred first; those with DHE need `dhParameters`.

Those of TLS 1.3 are the three that OpenSSL has by default.
"""
GROUPS: Final = ("X25519MLKEM768:X25519:P-256:P-384", "X25519:P-256:P-384")
"""The groups of key exchanges; the second list is for an OpenSSL without the post-quantum one.

No preference is worth a further round trip: a client that has sent a share for any of them is
served with that. Signing with a certificate's key is not bound to these groups.
"""
LOCAL_LIFE: Final = datetime.timedelta(days=365)

# OpenSSL does not accept a wildcard directly under a top-level name, so the project of development
# mode is listed in full as well.
LOCAL_NAMES: Final = ("localhost", "*.localhost", "demo.localhost", "default--demo.localhost")
LOCAL_ADDRESSES: Final = ("127.0.0.1", "::1")
_ACCEPTABLE_CIPHERS: Final = AcceptableCiphers.fromOpenSSLCipherString(":".join(CIPHERS))
_SESSION_ID: Final = b"treedb"
_RENEW_BEFORE: Final = datetime.timedelta(days=1)

PrivateKey: TypeAlias = (
    rsa.RSAPrivateKey
    | ec.EllipticCurvePrivateKey
    | ed25519.Ed25519PrivateKey
    | ed448.Ed448PrivateKey
)


class BadCertificate(OperatorError):
    """A certificate or key that cannot be used."""


@implementer(IOpenSSLServerConnectionCreator)
class ServerContext:
    """The TLS context of one endpoint; `reload` replaces it as a whole."""

    def __init__(self, files: CertificateFiles) -> None:
        """Read the files; raise `BadCertificate`."""
        self._files = files
        self._context = read_context(files)

    def reload(self) -> None:
        """Read the files again, for new connections; on `BadCertificate` nothing changes."""
        self._context = read_context(self._files)

    def ends_at(self) -> float | None:
        """Return when the certificate in use ends, in seconds since 1970; None if it cannot say."""
        certificate = SSL.Connection(self._context, None).get_certificate()
        if certificate is None:
            return None
        return certificate.to_cryptography().not_valid_after_utc.timestamp()

    def serverConnectionForTLS(self, protocol: TLSMemoryBIOProtocol) -> SSL.Connection:
        """Make the TLS side of one connection."""
        return SSL.Connection(self._context, None)


def read_context(files: CertificateFiles) -> SSL.Context:
    """Read a certificate and its key; raise `BadCertificate`."""
    key = read_key(files.key)
    certificate, *chain = read_certificates(files.certificate, "certKey")
    if files.chain is not None:
        chain += read_certificates(files.chain, "extraCertChain")
    _check_pair(certificate, key, files)
    try:
        # pyOpenSSL accepts the objects of cryptography and deprecates its own; the types of Twisted
        # do not know that yet.
        context = CertificateOptions(
            privateKey=cast(Any, key),
            certificate=cast(Any, certificate),
            extraCertChain=cast(Any, chain),
            raiseMinimumTo=TLSVersion.TLSv1_2,
            acceptableCiphers=_ACCEPTABLE_CIPHERS,
            enableSessionTickets=True,
        ).getContext()
        context.set_session_id(_SESSION_ID)
        _restrict_groups(context)
    except (SSL.Error, ValueError, TypeError):
        raise BadCertificate(
            f"the certificate in {files.certificate}",
            "is not accepted by TLS with its key and chain",
            "use a stronger one",
        ) from None
    if files.parameters is not None:
        _load_parameters(context, files.parameters)
    return context


def _check_pair(certificate: x509.Certificate, key: PrivateKey, files: CertificateFiles) -> None:
    if certificate.public_key() != key.public_key():
        raise BadCertificate(
            f"the privateKey in {files.key}",
            f"is not that of the certificate in {files.certificate}",
            "use a key and a certificate that belong together",
        )


def ensure_local_certificate(folder: pathlib.Path, now: datetime.datetime) -> CertificateFiles:
    """Return the certificate of development mode; create it if it is missing, bad or expired.

    `now` is in UTC. The files are in `folder`, with access for their owner only. Raises
    `BadCertificate`.
    """
    files = CertificateFiles(folder / LOCAL_KEY, folder / LOCAL_CERTIFICATE)
    if not _is_current(files, now):
        key = ec.generate_private_key(ec.SECP256R1())
        certificate = _make_local_certificate(key, now)
        try:
            write_atomically(
                files.key,
                key.private_bytes(
                    serialization.Encoding.PEM,
                    serialization.PrivateFormat.PKCS8,
                    serialization.NoEncryption(),
                ),
            )
            write_atomically(
                files.certificate, certificate.public_bytes(serialization.Encoding.PEM)
            )
        except OSError as error:
            raise BadCertificate(
                f"the certificate for localhost in {folder}",
                f"cannot be written ({error.strerror})",
                "let the user that runs treedb write there, or choose another data directory",
            ) from None
    return files


def _is_current(files: CertificateFiles, now: datetime.datetime) -> bool:
    try:
        read_context(files)
    except BadCertificate:
        return False
    certificate = read_certificates(files.certificate, "certKey")[0]
    return certificate.not_valid_before_utc <= now < certificate.not_valid_after_utc - _RENEW_BEFORE


def _make_local_certificate(
    key: ec.EllipticCurvePrivateKey, now: datetime.datetime
) -> x509.Certificate:
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "treedb development")])
    names = [x509.DNSName(each) for each in LOCAL_NAMES]
    addresses = [x509.IPAddress(ipaddress.ip_address(each)) for each in LOCAL_ADDRESSES]
    identifier = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    return (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + LOCAL_LIFE)
        .add_extension(x509.SubjectAlternativeName([*names, *addresses]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(identifier, critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(identifier),
            critical=False,
        )
        .sign(key, hashes.SHA256())
    )


def _read(file: pathlib.Path, what: str) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise BadCertificate(
            f"the {what} {file}",
            f"cannot be read ({error.strerror})",
            "let the user that runs treedb read it, or choose another file",
        ) from None


def read_key(file: pathlib.Path) -> PrivateKey:
    """Read a private key; raise `BadCertificate`."""
    try:
        key = serialization.load_pem_private_key(_read(file, "privateKey"), password=None)
    except TypeError:
        raise BadCertificate(
            f"the privateKey in {file}", "has a passphrase", "use a file with a key without one"
        ) from None
    except (ValueError, UnsupportedAlgorithm):
        raise BadCertificate(
            file, "holds no private key in PEM", "name a file with a private key as privateKey"
        ) from None
    if not isinstance(key, PrivateKey):
        raise BadCertificate(
            f"the privateKey in {file}",
            "is of a kind that TLS servers do not use",
            "use an RSA, elliptic curve or Ed25519 key",
        )
    return key


def read_certificates(file: pathlib.Path, what: str) -> list[x509.Certificate]:
    """Read all certificates of a file; messages call it `what`. Raises `BadCertificate`."""
    try:
        return x509.load_pem_x509_certificates(_read(file, what))
    except ValueError:
        raise BadCertificate(
            file, "holds no certificate in PEM", f"name a file with a certificate as {what}"
        ) from None


def _restrict_groups(context: SSL.Context) -> None:
    """Let key exchanges use `GROUPS` only."""
    # pyOpenSSL has no method for that: its `set_tmp_ecdh` leaves a single group.
    lib = Binding.lib
    for groups in GROUPS:
        if lib.SSL_CTX_set1_curves_list(context._context, groups.encode()):
            return
        lib.ERR_clear_error()
    raise ValueError("OpenSSL knows none of the groups")


def _load_parameters(context: SSL.Context, file: pathlib.Path) -> None:
    _read(file, "dhParameters")
    try:
        context.load_tmp_dh(os.fsencode(file))
    except SSL.Error:
        raise BadCertificate(
            f"the dhParameters in {file}",
            "are not accepted by TLS",
            "use others, of 2048 bits or more and in PEM, or leave them out",
        ) from None
