from __future__ import annotations

import datetime
import ipaddress
import pathlib
import ssl
import stat

import attrs
import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec

from treedbd.config.certificate import (
    AUTHORITY_KEY,
    AUTHORITY_LIFE,
    LAN_CERTIFICATE,
    LOCAL_LIFE,
    Authority,
    BadCertificate,
    ensure_lan_certificate,
    issue,
    read_key,
)
from treedbd.config.endpoints import AUTHORITY_CERTIFICATE, LocalNetwork

NOW = datetime.datetime.now(datetime.UTC)
DAY = datetime.timedelta(days=1)
NETWORK = LocalNetwork("hush", ("box", "box.local"), ("192.168.7.5", "fd00::5"))
HOSTS = ["localhost", "demo.localhost", "box", "box.local", "127.0.0.1", "192.168.7.5", "fd00::5"]


def ensure(
    folder: pathlib.Path, now: datetime.datetime = NOW, network: LocalNetwork = NETWORK
) -> x509.Certificate:
    """Return the certificate for the network."""
    file = ensure_lan_certificate(folder, network, now).certificate
    assert file == folder / LAN_CERTIFICATE
    return x509.load_pem_x509_certificates(file.read_bytes())[0]


def authority_of(folder: pathlib.Path) -> Authority:
    """Return the authority in a folder."""
    certificate = x509.load_pem_x509_certificate((folder / AUTHORITY_CERTIFICATE).read_bytes())
    key = read_key(folder / AUTHORITY_KEY)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    return Authority(certificate, key)


def connect(folder: pathlib.Path, host: str) -> None:
    """Verify the certificate by a TLS handshake in memory; raise SSLError if it is refused."""
    server_context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server_context.load_cert_chain(folder / LAN_CERTIFICATE)
    client_context = ssl.create_default_context(cafile=str(folder / AUTHORITY_CERTIFICATE))
    to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    server = server_context.wrap_bio(to_server, to_client, server_side=True)
    client = client_context.wrap_bio(to_client, to_server, server_hostname=host)
    is_done = False
    while not is_done:
        is_done = True
        for side in (client, server):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                is_done = False


@pytest.mark.parametrize("host", HOSTS)
def test_a_client_that_trusts_the_authority_accepts_every_host(
    tmp_path: pathlib.Path, host: str
) -> None:
    ensure(tmp_path)
    connect(tmp_path, host)
    with pytest.raises(ssl.SSLCertVerificationError, match="match"):
        connect(tmp_path, "other.local")


def test_the_keys_are_private(tmp_path: pathlib.Path) -> None:
    ensure(tmp_path)
    files = {file.name: file for file in tmp_path.iterdir()}
    assert set(files) == {AUTHORITY_CERTIFICATE, AUTHORITY_KEY, LAN_CERTIFICATE}
    for file in files.values():
        assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_certificates_live_as_long_as_clients_permit(tmp_path: pathlib.Path) -> None:
    certificate = ensure(tmp_path)
    assert certificate.not_valid_after_utc - NOW <= LOCAL_LIFE <= 397 * DAY
    assert authority_of(tmp_path).certificate.not_valid_after_utc - NOW >= AUTHORITY_LIFE - DAY


def test_nothing_is_issued_while_nothing_changes(tmp_path: pathlib.Path) -> None:
    first = ensure(tmp_path)
    assert ensure(tmp_path) == first
    fewer = attrs.evolve(NETWORK, addresses=NETWORK.addresses[:1])
    assert ensure(tmp_path, network=fewer) == first


@pytest.mark.parametrize("changed", ["address", "expired", "early", "missing", "damaged"])
def test_a_certificate_is_issued_again_and_the_authority_stays(
    tmp_path: pathlib.Path, changed: str
) -> None:
    first = ensure(tmp_path)
    before = authority_of(tmp_path).certificate
    now, network = NOW, NETWORK
    match changed:
        case "address":
            network = attrs.evolve(NETWORK, addresses=("10.1.2.3",))
        case "expired":
            now = NOW + 366 * DAY
        case "early":
            now = NOW + 340 * DAY
        case "missing":
            (tmp_path / LAN_CERTIFICATE).unlink()
        case "damaged":
            (tmp_path / LAN_CERTIFICATE).write_text("broken")
    second = ensure(tmp_path, now, network)
    assert second != first
    assert authority_of(tmp_path).certificate == before
    names = second.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    found = names.get_values_for_type(x509.IPAddress)
    assert {ipaddress.ip_address(each) for each in network.addresses} <= set(found)
    assert second.not_valid_before_utc <= now < second.not_valid_after_utc
    second.verify_directly_issued_by(before)


def test_a_certificate_of_another_authority_is_replaced(tmp_path: pathlib.Path) -> None:
    first = ensure(tmp_path)
    for name in (AUTHORITY_CERTIFICATE, AUTHORITY_KEY):
        (tmp_path / name).unlink()
    assert ensure(tmp_path) != first
    connect(tmp_path, "box.local")


def test_the_authority_cannot_speak_for_other_names(tmp_path: pathlib.Path) -> None:
    ensure(tmp_path)
    authority = authority_of(tmp_path)
    assert authority.permits("box")
    assert not authority.permits("example.com")
    assert not authority.permits("notlocalhost")
    stolen = issue(authority, ["example.com", "localhost"], [], NOW)
    (tmp_path / LAN_CERTIFICATE).write_bytes(stolen)
    for host in ("example.com", "localhost"):
        with pytest.raises(ssl.SSLCertVerificationError, match="permitted subtree violation"):
            connect(tmp_path, host)


def test_the_constraints_do_not_keep_boards_from_reading_it(tmp_path: pathlib.Path) -> None:
    ensure(tmp_path)
    for extension in authority_of(tmp_path).certificate.extensions:
        is_known = isinstance(extension.value, x509.BasicConstraints | x509.KeyUsage)
        assert extension.critical is is_known


def test_a_new_name_that_the_authority_does_not_permit_is_left_out(tmp_path: pathlib.Path) -> None:
    ensure(tmp_path)
    renamed = attrs.evolve(NETWORK, names=("car", "car.local"))
    ensure(tmp_path, network=renamed)
    connect(tmp_path, "car.local")
    with pytest.raises(ssl.SSLCertVerificationError, match="match"):
        connect(tmp_path, "car")


def test_an_authority_that_lost_its_key_is_not_replaced_silently(tmp_path: pathlib.Path) -> None:
    ensure(tmp_path)
    other = tmp_path / "other"
    other.mkdir()
    ensure(other)
    (tmp_path / AUTHORITY_KEY).unlink()
    with pytest.raises(BadCertificate, match=r"authority\.key\.pem cannot be read"):
        ensure(tmp_path)
    (tmp_path / AUTHORITY_KEY).write_bytes((other / AUTHORITY_KEY).read_bytes())
    with pytest.raises(BadCertificate, match=r"is not the key of .* remove both files"):
        ensure(tmp_path)


def test_an_authority_that_has_expired_says_what_to_do(tmp_path: pathlib.Path) -> None:
    ensure(tmp_path)
    with pytest.raises(BadCertificate, match=r"is not valid now: set the clock, or .* remove both"):
        ensure(tmp_path, NOW + AUTHORITY_LIFE + DAY)


def test_a_missing_folder_is_one_sentence(tmp_path: pathlib.Path) -> None:
    with pytest.raises(BadCertificate, match=r"cannot be written \(No such file or directory\)"):
        ensure(tmp_path / "missing")
