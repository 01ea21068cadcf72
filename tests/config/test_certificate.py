"""Certificates: created, kept, loaded, refused, and served in a real handshake in memory."""

from __future__ import annotations

import contextlib
import datetime
import ipaddress
import pathlib
import ssl
import stat
from collections.abc import Callable

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa, x25519
from cryptography.hazmat.primitives.asymmetric.types import CertificateIssuerPrivateKeyTypes
from cryptography.x509.oid import NameOID
from OpenSSL import SSL
from twisted.internet.protocol import Factory, Protocol
from twisted.internet.testing import StringTransport
from twisted.protocols.tls import TLSMemoryBIOFactory

from treedbd.config.certificate import (
    LOCAL_LIFE,
    BadCertificate,
    ServerContext,
    ensure_local_certificate,
    read_context,
)
from treedbd.config.endpoints import CertificateFiles

NOW = datetime.datetime(2030, 1, 1, tzinfo=datetime.UTC)


def load(files: CertificateFiles) -> x509.Certificate:
    return x509.load_pem_x509_certificate(files.certificate.read_bytes())


def shake_hands(context: ServerContext, client: ssl.SSLContext) -> tuple[str | None, bytes | None]:
    """Return the version that both sides agree on and the certificate served, in DER."""
    factory = TLSMemoryBIOFactory(context, False, Factory.forProtocol(Protocol))
    server = factory.buildProtocol(None)
    assert server is not None
    transport = StringTransport()
    server.makeConnection(transport)
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    connection = client.wrap_bio(incoming, outgoing, server_hostname="localhost")
    for _ in range(4):
        try:
            connection.do_handshake()
        except ssl.SSLWantReadError:
            server.dataReceived(outgoing.read())
            incoming.write(transport.value())
            transport.clear()
    return connection.version(), connection.getpeercert(binary_form=True)


def unverifying_client() -> ssl.SSLContext:
    client = ssl.create_default_context()
    client.check_hostname = False
    client.verify_mode = ssl.CERT_NONE
    return client


def test_the_local_certificate_names_this_machine_and_its_projects(tmp_path: pathlib.Path) -> None:
    names = load(ensure_local_certificate(tmp_path, NOW)).extensions.get_extension_for_class(
        x509.SubjectAlternativeName
    )
    assert {"localhost", "*.localhost"} <= set(names.value.get_values_for_type(x509.DNSName))
    assert ipaddress.ip_address("127.0.0.1") in names.value.get_values_for_type(x509.IPAddress)


def test_only_the_owner_can_read_the_local_certificate(tmp_path: pathlib.Path) -> None:
    files = ensure_local_certificate(tmp_path, NOW)
    assert stat.S_IMODE(files.key.stat().st_mode) == 0o600
    assert stat.S_IMODE(files.certificate.stat().st_mode) == 0o600


@pytest.mark.parametrize(
    ("later", "is_kept"),
    [
        (datetime.timedelta(0), True),
        (LOCAL_LIFE - datetime.timedelta(days=2), True),
        (LOCAL_LIFE, False),
        (-datetime.timedelta(days=2), False),
    ],
)
def test_the_local_certificate_is_kept_while_it_is_valid(
    tmp_path: pathlib.Path, later: datetime.timedelta, is_kept: bool
) -> None:
    first = load(ensure_local_certificate(tmp_path, NOW))
    assert (load(ensure_local_certificate(tmp_path, NOW + later)) == first) is is_kept


@pytest.mark.parametrize("broken", ["key", "certificate"])
def test_a_local_certificate_with_a_missing_file_is_created_again(
    tmp_path: pathlib.Path, broken: str
) -> None:
    files = ensure_local_certificate(tmp_path, NOW)
    lost = load(files)
    getattr(files, broken).unlink()
    made = ensure_local_certificate(tmp_path, NOW)
    assert made == files
    assert load(made) != lost
    read_context(made)


def test_the_error_of_a_local_certificate_that_cannot_be_written_names_the_directory(
    tmp_path: pathlib.Path,
) -> None:
    with pytest.raises(BadCertificate, match="missing"):
        ensure_local_certificate(tmp_path / "missing", NOW)


def test_a_new_connection_is_served_the_latest_certificate(
    tmp_path: pathlib.Path,
) -> None:
    files = ensure_local_certificate(tmp_path, NOW)
    context = ServerContext(files)
    old = load(files)
    files.key.unlink()
    new = load(ensure_local_certificate(tmp_path, NOW))
    client = unverifying_client()
    assert shake_hands(context, client)[1] == old.public_bytes(serialization.Encoding.DER)
    context.reload()
    assert shake_hands(context, client)[1] == new.public_bytes(serialization.Encoding.DER)


def test_after_a_bad_certificate_the_old_one_stays_in_use(tmp_path: pathlib.Path) -> None:
    files = ensure_local_certificate(tmp_path, NOW)
    context = ServerContext(files)
    old = load(files)
    files.certificate.write_bytes(b"")
    with pytest.raises(BadCertificate):
        context.reload()
    served = shake_hands(context, unverifying_client())[1]
    assert served == old.public_bytes(serialization.Encoding.DER)


def exchange(client: SSL.Connection, server: SSL.Connection) -> None:
    """Let both sides do their handshake."""
    server.set_accept_state()
    client.set_connect_state()
    for _ in range(3):
        for here, there in ((client, server), (server, client)):
            with contextlib.suppress(SSL.WantReadError):
                here.do_handshake()
            with contextlib.suppress(SSL.WantReadError):
                there.bio_write(here.bio_read(65536))


def test_further_certificates_of_a_chain_are_served_from_both_files(
    tmp_path: pathlib.Path,
) -> None:
    files = []
    for name in ("leaf", "middle", "upper"):
        (tmp_path / name).mkdir()
        files.append(ensure_local_certificate(tmp_path / name, NOW))
    leaf, middle, upper = files
    with leaf.certificate.open("ab") as chain:
        chain.write(middle.certificate.read_bytes())
    context = read_context(CertificateFiles(leaf.key, leaf.certificate, upper.certificate))
    server = SSL.Connection(context, None)
    client = SSL.Connection(SSL.Context(SSL.TLS_CLIENT_METHOD), None)
    exchange(client, server)
    served = client.get_peer_cert_chain(as_cryptography=True)
    assert served == [load(each) for each in (leaf, middle, upper)]


def resume(
    context: ServerContext, client: ssl.SSLContext, session: ssl.SSLSession | None
) -> tuple[bool, ssl.SSLSession | None]:
    """Return whether a handshake resumed `session`, and the session to resume next."""
    server = TLSMemoryBIOFactory(context, False, Factory.forProtocol(Protocol)).buildProtocol(None)
    assert server is not None
    transport = StringTransport()
    server.makeConnection(transport)
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    connection = client.wrap_bio(incoming, outgoing, server_hostname="localhost", session=session)
    for step in (*[connection.do_handshake] * 4, lambda: connection.read(1)):
        with contextlib.suppress(ssl.SSLWantReadError):
            step()
        if outgoing.pending:
            server.dataReceived(outgoing.read())
        incoming.write(transport.value())
        transport.clear()
    return bool(connection.session_reused), connection.session


@pytest.mark.parametrize("version", ["TLSv1_2", "TLSv1_3"])
def test_a_session_is_resumed_until_the_certificate_is_read_again(
    tmp_path: pathlib.Path, version: str
) -> None:
    client = unverifying_client()
    client.minimum_version = client.maximum_version = ssl.TLSVersion[version]
    context = ServerContext(ensure_local_certificate(tmp_path, NOW))
    is_resumed, session = resume(context, client, None)
    assert not is_resumed
    is_resumed, session = resume(context, client, session)
    assert is_resumed
    context.reload()
    is_resumed, session = resume(context, client, session)
    assert not is_resumed
    assert resume(context, client, session)[0]


@pytest.mark.parametrize(
    ("version", "is_accepted"), [("TLSv1_1", False), ("TLSv1_2", True), ("TLSv1_3", True)]
)
def test_nothing_below_tls_1_2_is_accepted(
    tmp_path: pathlib.Path, version: str, is_accepted: bool
) -> None:
    client = unverifying_client()
    client.set_ciphers("ALL:@SECLEVEL=0")
    with pytest.warns() if not is_accepted else contextlib.nullcontext():
        client.minimum_version = client.maximum_version = ssl.TLSVersion[version]
    context = ServerContext(ensure_local_certificate(tmp_path, NOW))
    if is_accepted:
        agreed, _ = shake_hands(context, client)
        assert agreed == version.replace("_", ".")
    else:
        with pytest.raises(ssl.SSLError):
            shake_hands(context, client)


def write_own(folder: pathlib.Path, key: CertificateIssuerPrivateKeyTypes) -> CertificateFiles:
    """Write a key and a certificate for it that it has signed itself."""
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    is_edwards = isinstance(key, ed25519.Ed25519PrivateKey)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(NOW)
        .not_valid_after(NOW + LOCAL_LIFE)
        .sign(key, None if is_edwards else hashes.SHA256())
    )
    files = CertificateFiles(folder / "key.pem", folder / "cert.pem")
    encoding, kind = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    files.key.write_bytes(key.private_bytes(encoding, kind, serialization.NoEncryption()))
    files.certificate.write_bytes(made.public_bytes(encoding))
    return files


@pytest.mark.parametrize("version", ["TLSv1_2", "TLSv1_3"])
@pytest.mark.parametrize(
    "make_key",
    [
        lambda: rsa.generate_private_key(65537, 2048),
        lambda: ec.generate_private_key(ec.SECP256R1()),
        lambda: ec.generate_private_key(ec.SECP384R1()),
        lambda: ec.generate_private_key(ec.SECP521R1()),
        ed25519.Ed25519PrivateKey.generate,
    ],
    ids=["RSA", "P-256", "P-384", "P-521", "Ed25519"],
)
def test_a_key_of_each_kind_serves_both_versions(
    tmp_path: pathlib.Path,
    make_key: Callable[[], CertificateIssuerPrivateKeyTypes],
    version: str,
) -> None:
    client = unverifying_client()
    client.minimum_version = client.maximum_version = ssl.TLSVersion[version]
    context = ServerContext(write_own(tmp_path, make_key()))
    assert shake_hands(context, client)[0] == version.replace("_", ".")


@pytest.mark.parametrize(
    "suite",
    [
        "AES256-GCM-SHA384",  # without forward secrecy
        "ECDHE-RSA-AES128-SHA256",  # without authenticated encryption
        "ECDHE-RSA-AES128-SHA",
        "DHE-RSA-AES128-GCM-SHA256",  # without dhParameters
    ],
)
def test_a_cipher_suite_outside_the_profile_is_refused(tmp_path: pathlib.Path, suite: str) -> None:
    context = ServerContext(write_own(tmp_path, rsa.generate_private_key(65537, 2048)))
    client = unverifying_client()
    client.maximum_version = ssl.TLSVersion.TLSv1_2
    client.set_ciphers("ECDHE-RSA-AES128-GCM-SHA256")
    assert shake_hands(context, client)[0] == "TLSv1.2"
    client.set_ciphers(suite)
    with pytest.raises(ssl.SSLError, match=r"(?i)handshake.failure"):
        shake_hands(context, client)


@pytest.mark.parametrize(
    ("group", "is_accepted"),
    [("prime256v1", True), ("secp384r1", True), ("secp521r1", False)],
)
def test_only_groups_of_the_profile_are_used(
    tmp_path: pathlib.Path, group: str, is_accepted: bool
) -> None:
    context = ServerContext(ensure_local_certificate(tmp_path, NOW))
    client = unverifying_client()
    client.set_ecdh_curve(group)
    with contextlib.nullcontext() if is_accepted else pytest.raises(ssl.SSLError):
        assert shake_hands(context, client)[0] == "TLSv1.3"


def test_a_client_that_offers_the_post_quantum_group_is_served_with_it(
    tmp_path: pathlib.Path,
) -> None:
    server = SSL.Connection(read_context(ensure_local_certificate(tmp_path, NOW)), None)
    client = SSL.Connection(SSL.Context(SSL.TLS_CLIENT_METHOD), None)
    exchange(client, server)
    assert client.get_group_name() == "X25519MLKEM768"


def other_key(kind: type[ec.EllipticCurvePrivateKey] | type[x25519.X25519PrivateKey]) -> bytes:
    key = (
        ec.generate_private_key(ec.SECP256R1())
        if kind is ec.EllipticCurvePrivateKey
        else x25519.X25519PrivateKey.generate()
    )
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


# Groups for Diffie-Hellman: RFC 2409, section 6.2 (too weak), and RFC 3526, section 3.
GROUP_2 = b"""-----BEGIN DH PARAMETERS-----
MIGHAoGBAP//////////yQ/aoiFowjTExmKLgNwc0SkCTgiKZ8x0Agu+pjsTmyJR
Sgh5jjQE3e+VGbPNOkMbMCsKbfJfFDdP4TVtbVHCReSFtXZiXn7G9ExC6aY37WsL
/1y29Aa37e44a/taiZ+lrp8kEXxLH+ZJKGZR7OZTgf//////////AgEC
-----END DH PARAMETERS-----
"""
GROUP_14 = b"""-----BEGIN X9.42 DH PARAMETERS-----
MIICDAKCAQEA///////////JD9qiIWjCNMTGYouA3BzRKQJOCIpnzHQCC76mOxOb
IlFKCHmONATd75UZs806QxswKwpt8l8UN0/hNW1tUcJF5IW1dmJefsb0TELppjft
awv/XLb0Brft7jhr+1qJn6WunyQRfEsf5kkoZlHs5Fs9wgB8uKFjvwWY2kg2HFXT
mmkWP6j9JM9fg2VdI9yjrZYcYvNWIIVSu57VKQdwlpZtZww1Tkq8mATxdGwIyhgh
fDKQXkYuNs474553LBgOhgObJ4Oi7Aeij7XFXfBvTFLJ3ivL9pVYFxg5lUl86pVq
5RXSJhiY+gUQFXKOWoqsqmj//////////wIBAgKCAQB//////////+SH7VEQtGEa
YmMxRcBuDmiUgScERTPmOgEF31Mdic2RKKUEPMcaAm73yozZ5p0hjZgVhTb5L4ob
p/Catrao4SLyQtq7MS8/Y3omIXTTG/a1hf+uW3oDW/b3HDX9rUTP0tdPkgi+JY/z
JJQzKPZyLZ7hAD5cULHfgsxtJBsOKunNNIsf1H6SZ6/Bsq6R7lHWyw4xeasQQqld
z2qUg7hLSzazhhqnJV5MAni6NgRlDBC+GUgvIxcbZx3xzzuWDAdDAc2TwdF2A9FH
2uKu+DemKWTvFeX7SqwLjBzKpL51SrVyiukTDEx9AogKuUctRVZVNH//////////
-----END X9.42 DH PARAMETERS-----
"""


def encrypted_key() -> bytes:
    return ec.generate_private_key(ec.SECP256R1()).private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(b"hush"),
    )


@pytest.mark.parametrize(
    ("part", "content", "problem"),
    [
        ("key", None, "No such file"),
        ("key", b"", "no private key"),
        ("key", other_key(ec.EllipticCurvePrivateKey), "not that of the certificate"),
        ("key", other_key(x25519.X25519PrivateKey), "of a kind"),
        ("key", encrypted_key(), "passphrase"),
        ("certificate", None, "No such file"),
        ("certificate", b"-----BEGIN CERTIFICATE-----\nx", "no certificate"),
        ("chain", b"", "no certificate"),
        ("parameters", None, "No such file"),
        ("parameters", b"", "dhParameters in .* are not accepted"),
        (
            "parameters",
            other_key(ec.EllipticCurvePrivateKey),
            "dhParameters in .* are not accepted",
        ),
        ("parameters", GROUP_2, "dhParameters in .* are not accepted"),
    ],
)
def test_the_error_of_a_bad_certificate_names_the_file(
    tmp_path: pathlib.Path, part: str, content: bytes | None, problem: str
) -> None:
    local = ensure_local_certificate(tmp_path, NOW)
    files = CertificateFiles(
        local.key,
        local.certificate,
        tmp_path / "chain" if part == "chain" else None,
        tmp_path / "parameters" if part == "parameters" else None,
    )
    file: pathlib.Path = getattr(files, part)
    file.unlink(missing_ok=True)
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(BadCertificate, match=problem) as caught:
        read_context(files)
    sentence = str(caught.value)
    assert str(file) in sentence
    assert ": " in sentence
    assert sentence.endswith(".")


def test_diffie_hellman_parameters_are_used(tmp_path: pathlib.Path) -> None:
    local = ensure_local_certificate(tmp_path, NOW)
    file = tmp_path / "parameters"
    file.write_bytes(GROUP_14)
    context = ServerContext(CertificateFiles(local.key, local.certificate, None, file))
    assert shake_hands(context, unverifying_client())[0] == "TLSv1.3"
