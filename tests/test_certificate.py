"""Certificates: made, kept, read, refused, and served by a real handshake in memory."""

from __future__ import annotations

import contextlib
import datetime
import ipaddress
import pathlib
import ssl
import stat

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, x25519
from OpenSSL import SSL
from twisted.internet.protocol import Factory, Protocol
from twisted.internet.testing import StringTransport
from twisted.protocols.tls import TLSMemoryBIOFactory

from treedbd.certificate import (
    LOCAL_LIFE,
    CertificateFiles,
    ServerContext,
    Unusable,
    keep_local_certificate,
    read_context,
)

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


def trusting_client() -> ssl.SSLContext:
    client = ssl.create_default_context()
    client.check_hostname = False
    client.verify_mode = ssl.CERT_NONE
    return client


def test_the_local_certificate_names_this_machine_and_its_projects(tmp_path: pathlib.Path) -> None:
    names = load(keep_local_certificate(tmp_path, NOW)).extensions.get_extension_for_class(
        x509.SubjectAlternativeName
    )
    assert {"localhost", "*.localhost"} <= set(names.value.get_values_for_type(x509.DNSName))
    assert ipaddress.ip_address("127.0.0.1") in names.value.get_values_for_type(x509.IPAddress)


def test_the_local_certificate_is_for_its_owner_alone(tmp_path: pathlib.Path) -> None:
    files = keep_local_certificate(tmp_path, NOW)
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
    first = load(keep_local_certificate(tmp_path, NOW))
    assert (load(keep_local_certificate(tmp_path, NOW + later)) == first) is is_kept


@pytest.mark.parametrize("broken", ["key", "certificate"])
def test_a_local_certificate_that_lost_its_half_is_made_again(
    tmp_path: pathlib.Path, broken: str
) -> None:
    files = keep_local_certificate(tmp_path, NOW)
    lost = load(files)
    getattr(files, broken).unlink()
    made = keep_local_certificate(tmp_path, NOW)
    assert made == files
    assert load(made) != lost
    read_context(made)


def test_a_local_certificate_that_cannot_be_kept_names_the_directory(
    tmp_path: pathlib.Path,
) -> None:
    with pytest.raises(Unusable, match="missing"):
        keep_local_certificate(tmp_path / "missing", NOW)


def test_a_new_connection_gets_the_certificate_that_was_read_last(tmp_path: pathlib.Path) -> None:
    files = keep_local_certificate(tmp_path, NOW)
    context = ServerContext(files)
    old = load(files)
    files.key.unlink()
    new = load(keep_local_certificate(tmp_path, NOW))
    client = trusting_client()
    assert shake_hands(context, client)[1] == old.public_bytes(serialization.Encoding.DER)
    context.reload()
    assert shake_hands(context, client)[1] == new.public_bytes(serialization.Encoding.DER)


def test_a_broken_certificate_leaves_the_old_in_force(tmp_path: pathlib.Path) -> None:
    files = keep_local_certificate(tmp_path, NOW)
    context = ServerContext(files)
    old = load(files)
    files.certificate.write_bytes(b"")
    with pytest.raises(Unusable):
        context.reload()
    served = shake_hands(context, trusting_client())[1]
    assert served == old.public_bytes(serialization.Encoding.DER)


def test_further_certificates_of_a_chain_are_served_from_both_places(
    tmp_path: pathlib.Path,
) -> None:
    files = []
    for name in ("leaf", "middle", "upper"):
        (tmp_path / name).mkdir()
        files.append(keep_local_certificate(tmp_path / name, NOW))
    leaf, middle, upper = files
    with leaf.certificate.open("ab") as chain:
        chain.write(middle.certificate.read_bytes())
    context = read_context(CertificateFiles(leaf.key, leaf.certificate, upper.certificate))
    server = SSL.Connection(context, None)
    client = SSL.Connection(SSL.Context(SSL.TLS_CLIENT_METHOD), None)
    server.set_accept_state()
    client.set_connect_state()
    for _ in range(3):
        for here, there in ((client, server), (server, client)):
            with contextlib.suppress(SSL.WantReadError):
                here.do_handshake()
            with contextlib.suppress(SSL.WantReadError):
                there.bio_write(here.bio_read(65536))
    served = client.get_peer_cert_chain(as_cryptography=True)
    assert served == [load(each) for each in (leaf, middle, upper)]


@pytest.mark.parametrize(
    ("version", "is_spoken"), [("TLSv1_1", False), ("TLSv1_2", True), ("TLSv1_3", True)]
)
def test_nothing_below_tls_1_2_is_spoken(
    tmp_path: pathlib.Path, version: str, is_spoken: bool
) -> None:
    client = trusting_client()
    client.set_ciphers("ALL:@SECLEVEL=0")
    with pytest.warns() if not is_spoken else contextlib.nullcontext():
        client.minimum_version = client.maximum_version = ssl.TLSVersion[version]
    context = ServerContext(keep_local_certificate(tmp_path, NOW))
    if is_spoken:
        agreed, _ = shake_hands(context, client)
        assert agreed == version.replace("_", ".")
    else:
        with pytest.raises(ssl.SSLError):
            shake_hands(context, client)


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


def locked_key() -> bytes:
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
        ("key", locked_key(), "passphrase"),
        ("certificate", None, "No such file"),
        ("certificate", b"-----BEGIN CERTIFICATE-----\nx", "no certificate"),
        ("chain", b"", "no certificate"),
        ("parameters", None, "No such file"),
        ("parameters", b"", "TLS does not accept"),
    ],
)
def test_what_cannot_be_served_is_refused_by_the_name_of_its_file(
    tmp_path: pathlib.Path, part: str, content: bytes | None, problem: str
) -> None:
    local = keep_local_certificate(tmp_path, NOW)
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
    with pytest.raises(Unusable, match=problem) as caught:
        read_context(files)
    named = local.certificate if problem == "TLS does not accept" else file
    assert str(named) in str(caught.value)
