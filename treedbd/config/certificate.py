"""The TLS side of an endpoint: certificates loaded, reloaded, or created for development.

A `ServerContext` serves every new connection with the certificate that was loaded last; open
connections keep theirs. Versions, ciphers and groups are those of Mozilla's profile "intermediate",
https://ssl-config.mozilla.org: TLS 1.2 and 1.3, and only with forward secrecy and authenticated
encryption.

A client may resume a session with a ticket, which saves both sides most of a handshake. The keys of
tickets belong to the context and never leave it, so no session outlives a reload or the process.

Development mode has a certificate for this machine that signs itself (`ensure_local_certificate`).
With `--lan` it has a certificate authority (`ensure_lan_certificate`), which is kept in the data
directory. A device that trusts the certificate of the authority trusts all that the authority
issues. Therefore the authority must not issue other authorities, and its name constraints (RFC
5280, section 4.2.1.10) permit only the names of this machine, `localhost` and `local`. The
constraints are not marked as critical, because the TLS libraries of small boards refuse a critical
extension that they do not know; browsers and systems obey them nevertheless. Addresses are not
constrained, since they change. The issued certificate and its key are in one file, so they are
replaced together.
"""

from __future__ import annotations

import contextlib
import datetime
import ipaddress
import os
import pathlib
from collections.abc import Iterable, Iterator
from typing import Any, Final, TypeAlias, cast

import attrs
from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.bindings.openssl.binding import Binding
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed448, ed25519, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from OpenSSL import SSL
from twisted.internet.interfaces import IOpenSSLServerConnectionCreator
from twisted.internet.ssl import AcceptableCiphers, CertificateOptions, TLSVersion
from twisted.protocols.tls import TLSMemoryBIOProtocol
from zope.interface import implementer

from treedbd.config.endpoints import (
    AUTHORITY_CERTIFICATE,
    LOCAL_CERTIFICATE,
    LOCAL_KEY,
    CertificateFiles,
    LocalNetwork,
)
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

A client that has sent a share for any of them is served with that group: a preferred one is not
worth another round trip. The key of a certificate may be of another group.
"""
_ACCEPTABLE_CIPHERS: Final = AcceptableCiphers.fromOpenSSLCipherString(":".join(CIPHERS))
_SESSION_ID: Final = b"treedb"

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
        """Return when the certificate in use ends, in seconds since 1970; None if it is unknown."""
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
        # pyOpenSSL accepts the objects of cryptography and deprecates its own, which the types of
        # Twisted do not declare yet.
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
    """Read all certificates of a file, which messages name `what`; raise `BadCertificate`."""
    try:
        return x509.load_pem_x509_certificates(_read(file, what))
    except ValueError:
        raise BadCertificate(
            file, "holds no certificate in PEM", f"name a file with a certificate as {what}"
        ) from None


def _read(file: pathlib.Path, what: str) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise BadCertificate(
            f"the {what} {file}",
            f"cannot be read ({error.strerror})",
            "let the user that runs treedb read it, or choose another file",
        ) from None


def _check_pair(certificate: x509.Certificate, key: PrivateKey, files: CertificateFiles) -> None:
    if certificate.public_key() != key.public_key():
        raise BadCertificate(
            f"the privateKey in {files.key}",
            f"is not that of the certificate in {files.certificate}",
            "use a key and a certificate that belong together",
        )


def _restrict_groups(context: SSL.Context) -> None:
    """Restrict key exchanges to `GROUPS`."""
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


LOCAL_LIFE: Final = datetime.timedelta(days=365)

# OpenSSL does not accept a wildcard directly under a top-level name, so the project of development
# mode is listed in full as well.
LOCAL_NAMES: Final = ("localhost", "*.localhost", "demo.localhost", "default--demo.localhost")
LOCAL_ADDRESSES: Final = ("127.0.0.1", "::1")
_RENEW_LOCAL_BEFORE: Final = datetime.timedelta(days=1)


def ensure_local_certificate(folder: pathlib.Path, now: datetime.datetime) -> CertificateFiles:
    """Return the certificate of development mode; create it if it is missing, bad or expired.

    `now` is in UTC. The files are in `folder`, with access for their owner only. Raises
    `BadCertificate`.
    """
    files = CertificateFiles(folder / LOCAL_KEY, folder / LOCAL_CERTIFICATE)
    if not _is_local_current(files, now):
        key = ec.generate_private_key(ec.SECP256R1())
        certificate = _make_local_certificate(key, now)
        with _written(f"the certificate for localhost in {folder}"):
            write_atomically(files.key, _private_pem(key))
            write_atomically(files.certificate, _public_pem(certificate))
    return files


@contextlib.contextmanager
def _written(subject: str) -> Iterator[None]:
    """In a `with` block, raise an OSError as the `BadCertificate` of what is being written."""
    try:
        yield
    except OSError as error:
        raise BadCertificate(
            subject,
            f"cannot be written ({error.strerror})",
            "let the user that runs treedb write there, or choose another data directory",
        ) from None


def _is_local_current(files: CertificateFiles, now: datetime.datetime) -> bool:
    try:
        read_context(files)
    except BadCertificate:
        return False
    certificate = read_certificates(files.certificate, "certKey")[0]
    end = certificate.not_valid_after_utc - _RENEW_LOCAL_BEFORE
    return certificate.not_valid_before_utc <= now < end


def _make_local_certificate(
    key: ec.EllipticCurvePrivateKey, now: datetime.datetime
) -> x509.Certificate:
    name = _name("treedb development")
    builder = _begin(name, name, key, now, now + LOCAL_LIFE)
    identifier = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    builder = _for_server(builder, LOCAL_NAMES, LOCAL_ADDRESSES, identifier)
    return builder.sign(key, hashes.SHA256())


AUTHORITY_KEY: Final = "authority.key.pem"
LAN_CERTIFICATE: Final = "lan.pem"
"""The file of the issued certificate and its key."""
AUTHORITY_LIFE: Final = datetime.timedelta(days=3650)
_RENEW_ISSUED_BEFORE: Final = datetime.timedelta(days=30)
_MULTICAST_DOMAIN: Final = "local"
_REMEDY: Final = (
    "restore it, or remove both files of the authority: the next start makes another, which every "
    "device has to trust again"
)


@attrs.frozen
class Authority:
    """An authority: its certificate, and the key that signs the certificates that it issues."""

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
    """Return the certificate for this machine in its network, renewed if the network has changed.

    `now` is in UTC. The authority is created if it is missing. Raises `BadCertificate`.
    """
    file = folder / LAN_CERTIFICATE
    with _written(f"the certificate for --lan in {folder}"):
        authority = _ensure_authority(folder, network, now)
        names = [each for each in (*LOCAL_NAMES, *network.names) if authority.permits(each)]
        addresses = [*LOCAL_ADDRESSES, *network.addresses]
        if not _is_issued_current(file, authority, {*names, *addresses}, now):
            write_atomically(file, issue(authority, names, addresses, now))
    return CertificateFiles(file, file)


def _ensure_authority(
    folder: pathlib.Path, network: LocalNetwork, now: datetime.datetime
) -> Authority:
    """Return the authority; an existing one is never replaced, since devices trust it."""
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
    identifier = issuer.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
    builder = _begin(_name("treedb development"), issuer.subject, key, now, end)
    certificate = (
        _for_server(builder, names, addresses, identifier)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .sign(authority.key, hashes.SHA256())
    )
    return _private_pem(key) + _public_pem(certificate)


def _is_issued_current(
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
    is_ending = (
        end - _RENEW_ISSUED_BEFORE <= now and end < authority.certificate.not_valid_after_utc
    )
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


def _for_server(
    builder: x509.CertificateBuilder,
    names: Iterable[str],
    addresses: Iterable[str],
    issuer: x509.SubjectKeyIdentifier,
) -> x509.CertificateBuilder:
    """Add the extensions of a server at names and addresses, and the key of the issuer."""
    subjects = [
        *(x509.DNSName(each) for each in names),
        *(x509.IPAddress(ipaddress.ip_address(each)) for each in addresses),
    ]
    return (
        builder.add_extension(x509.SubjectAlternativeName(subjects), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(issuer), critical=False
        )
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
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _public_pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)
