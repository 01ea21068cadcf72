"""Documents fetched over verified TLS, from a real server that may misbehave."""

from __future__ import annotations

import gzip
import ipaddress
import pathlib
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import pytest_twisted
import trustme
from cryptography import x509
from twisted.internet import error
from twisted.internet import reactor as installed_reactor
from twisted.internet.defer import CancelledError, Deferred
from twisted.web.client import ResponseFailed, ResponseNeverReceived

from tests.authority import dns, issue
from tests.oidc import KEYS, Answer, OidcProvider, authority, authority_pem
from treedbd.web.auth.fetch import (
    MAX_BODY_BYTES,
    BadAuthority,
    FetchFailed,
    make_fetch,
    read_authority,
)

reactor: Any = installed_reactor


@pytest.fixture
def server() -> Iterator[OidcProvider]:
    with OidcProvider() as running:
        yield running


def fetch(url: str, authority: bytes | None = None) -> Deferred[bytes]:
    return make_fetch(reactor, authority or authority_pem())(url)


@pytest_twisted.ensureDeferred
async def test_it_fetches_a_document(server: OidcProvider) -> None:
    server.answers[KEYS] = Answer(b"x" * MAX_BODY_BYTES)
    assert await fetch(server.keys_uri) == b"x" * MAX_BODY_BYTES


@pytest_twisted.ensureDeferred
async def test_the_server_must_be_certified_by_the_given_authority(server: OidcProvider) -> None:
    other = trustme.CA().cert_pem.bytes()
    with pytest.raises(ResponseNeverReceived, match="certificate verify failed"):
        await fetch(server.keys_uri, other)
    assert await fetch(server.keys_uri, other + authority_pem())
    assert server.requests == [KEYS]


@pytest_twisted.ensureDeferred
async def test_without_an_authority_those_of_the_system_count(server: OidcProvider) -> None:
    with pytest.raises(ResponseNeverReceived, match="certificate verify failed"):
        await make_fetch(reactor)(server.keys_uri)


ADDRESS = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))


def url_at(host: str, server: OidcProvider) -> str:
    return f"https://{host}:{server.port}{KEYS}"


@pytest.mark.parametrize(
    ("names", "host"),
    [
        (dns("localhost"), "localhost"),
        (dns("LocalHost"), "localhost"),
        (dns("*.x", "", "localhost"), "localhost"),
        (x509.SubjectAlternativeName([ADDRESS]), "127.0.0.1"),
        (x509.SubjectAlternativeName([x509.DNSName("*.x"), ADDRESS]), "127.0.0.1"),
    ],
)
@pytest_twisted.ensureDeferred
async def test_a_server_is_accepted_if_its_certificate_is_for_the_host(
    names: x509.SubjectAlternativeName, host: str
) -> None:
    with OidcProvider(issue(authority(), names)) as server:
        assert await fetch(url_at(host, server))


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1"])
@pytest.mark.parametrize(
    "names",
    [
        None,
        dns("other.example"),
        dns("*.localhost"),
        dns("*.x"),
        dns("*.0.0.1"),
        dns("*"),
        dns(""),
        dns("a b"),
        dns("127.0.0.1"),
        x509.SubjectAlternativeName([x509.RFC822Name("root@localhost")]),
        x509.SubjectAlternativeName([x509.UniformResourceIdentifier("https://localhost")]),
        x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_network("127.0.0.0/8"))]),
        x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.2"))]),
    ],
    ids=str,
)
@pytest_twisted.ensureDeferred
async def test_a_server_receives_no_request_if_its_certificate_is_not_for_the_host(
    names: x509.SubjectAlternativeName | None, host: str
) -> None:
    with OidcProvider(issue(authority(), names)) as server:
        with pytest.raises(ResponseNeverReceived, match="VerificationError"):
            await fetch(url_at(host, server))
        assert not server.requests


@pytest.mark.parametrize(("host", "named"), [("localhost", "localhost"), ("127.0.0.1", None)])
@pytest_twisted.ensureDeferred
async def test_the_host_is_sent_in_tls_as_the_server_name(host: str, named: str | None) -> None:
    names = x509.SubjectAlternativeName([x509.DNSName("localhost"), ADDRESS])
    with OidcProvider(issue(authority(), names)) as server:
        await fetch(url_at(host, server))
        assert server.server_names == [named]


@pytest_twisted.ensureDeferred
async def test_a_url_without_a_valid_host_fails() -> None:
    with pytest.raises(ValueError, match="Invalid DNS-ID"):
        await fetch("https://2130706433/keys.json")


@pytest.mark.parametrize("status", [204, 301, 302, 304, 307, 404, 500])
@pytest_twisted.ensureDeferred
async def test_any_status_but_200_fails_and_no_redirect_is_followed(
    server: OidcProvider, status: int
) -> None:
    elsewhere = {"Location": f"{server.issuer}/elsewhere", "Content-Length": "0"}
    server.answers[KEYS] = Answer(b"", status, elsewhere)
    with pytest.raises(FetchFailed, match=f"status {status}"):
        await fetch(server.keys_uri)
    assert server.requests == [KEYS]


@pytest.mark.parametrize(
    "answer",
    [
        Answer(b"x" * (MAX_BODY_BYTES + 1)),
        Answer(gzip.compress(b"x" * (MAX_BODY_BYTES + 1)), headers={"Content-Encoding": "gzip"}),
    ],
    ids=["plain", "compressed"],
)
@pytest_twisted.ensureDeferred
async def test_a_body_that_is_too_long_fails(server: OidcProvider, answer: Answer) -> None:
    server.answers[KEYS] = answer
    with pytest.raises(FetchFailed, match=f"more than {MAX_BODY_BYTES} bytes"):
        await fetch(server.keys_uri)


@pytest_twisted.ensureDeferred
async def test_a_body_that_is_cut_off_fails(server: OidcProvider) -> None:
    server.answers[KEYS] = Answer(b"half", headers={"Content-Length": "8"})
    with pytest.raises(ResponseFailed):
        await fetch(server.keys_uri)


@pytest_twisted.ensureDeferred
async def test_a_stopped_server_fails(server: OidcProvider) -> None:
    server.stop()
    with pytest.raises(error.ConnectionRefusedError):
        await fetch(server.keys_uri)


@pytest.mark.parametrize(
    "answer", [None, Answer(b"half", headers={"Content-Length": "8"}, is_held=True)]
)
@pytest_twisted.ensureDeferred
async def test_a_fetch_from_a_hanging_server_can_be_cancelled_which_closes_the_connection(
    server: OidcProvider, answer: Answer | None
) -> None:
    if answer is None:
        server.hang()
    else:
        server.answers[KEYS] = answer
    fetching = fetch(server.keys_uri)
    reactor.callLater(0.1, fetching.cancel)
    with pytest.raises((CancelledError, ResponseNeverReceived)):
        await fetching
    assert not [each for each in reactor.getReaders() if peer_port(each) == server.port]


def peer_port(reader: Any) -> int | None:
    get = getattr(reader, "getPeer", None)
    return getattr(get(), "port", None) if get is not None else None


@pytest_twisted.ensureDeferred
async def test_only_https_urls_are_fetched(server: OidcProvider) -> None:
    with pytest.raises(FetchFailed, match="https"):
        await fetch(server.keys_uri.replace("https:", "http:"))


def test_ca_certificates_are_read_from_a_file(tmp_path: pathlib.Path) -> None:
    file = tmp_path / "ca.pem"
    file.write_bytes(authority_pem())
    assert read_authority(file) == authority_pem()


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (None, r"cannot be read \(No such file"),
        (b"", "no certificate"),
        (b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n", "no certificate"),
    ],
)
def test_a_file_without_certificates_is_refused(
    tmp_path: pathlib.Path, content: bytes | None, problem: str
) -> None:
    file = tmp_path / "ca.pem"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(BadAuthority, match=problem):
        read_authority(file)


def test_the_client_is_imported_at_the_first_fetch_because_of_its_memory() -> None:
    program = "import sys, treedbd.daemon; print('twisted.web.client' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert done.stdout == b"False\n"
