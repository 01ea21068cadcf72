"""Asking a server that answers, one that refuses, and one that is not who it should be."""

from __future__ import annotations

import datetime
import pathlib
import socket
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import pytest_twisted
import trustme
from cryptography import x509
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from twisted.internet import reactor as installed_reactor
from twisted.internet.defer import Deferred
from twisted.internet.protocol import Factory, Protocol
from twisted.internet.ssl import CertificateOptions

from tests.authority import dns, issue
from tests.script import Script, answer, begin, cut_off
from treedbd.certificate import keep_local_certificate
from treedbd.cli.client import Client, NoAnswer, content, describe
from treedbd.cli.outcome import CommandFailed
from treedbd.cli.url import Url, parse_url
from treedbd.web.identity.fetch import parse_authority
from treedbd.web.identity.tls import Trust

reactor: Any = installed_reactor


@pytest.fixture
def script() -> Iterator[Script]:
    """A plain server."""
    running = Script()
    yield running
    pytest_twisted.blockon(running.close())


def client(authority: bytes | None = None, token: str | None = None) -> Client:
    trust = Trust(None if authority is None else parse_authority(authority))
    return Client(reactor, trust, token)


def asking(url: Url, **more: Any) -> Deferred[bytes]:
    async def ask() -> bytes:
        return await content(await client(**more).ask("GET", url), url)

    return Deferred.fromCoroutine(ask())


@pytest_twisted.ensureDeferred
async def test_a_url_is_sent_byte_for_byte_with_the_token_in_a_header_only(script: Script) -> None:
    url = parse_url(f"{script.url()}/a%2Fb//ü;x/%zz.json?orderBy=%22a%22&x&y=&%zz=+1")
    asked = asking(url, token="secret")
    request = await script.requests.get()
    assert request.uri == b"/a%2Fb//%C3%BC;x/%zz.json?orderBy=%22a%22&x&y=&%zz=+1"
    assert request.getHeader("authorization") == "Bearer secret"
    answer(request, 200, b"1")
    assert await asked == b"1"


@pytest_twisted.ensureDeferred
async def test_without_a_token_there_is_no_such_header(script: Script) -> None:
    asked = asking(parse_url(script.url()))
    request = await script.requests.get()
    assert not request.requestHeaders.hasHeader("authorization")
    answer(request, 200)
    await asked


@pytest.mark.parametrize("host", ["localhost", "shop.localhost", "127.0.0.1"])
@pytest_twisted.ensureDeferred
async def test_names_of_this_machine_need_no_lookup(script: Script, host: str) -> None:
    asked = asking(parse_url(script.url(host)))
    request = await script.requests.get()
    assert request.getHeader("host") == script.url(host).removeprefix("http://")
    answer(request, 200)
    await asked


@pytest_twisted.ensureDeferred
async def test_an_address_of_ipv6_is_understood() -> None:
    if not socket.has_ipv6:
        return
    with pytest.raises(NoAnswer, match=r"\[::1\]"):
        await asking(parse_url("http://[::1]:1/a"))


@pytest_twisted.ensureDeferred
async def test_no_redirect_is_followed(script: Script) -> None:
    asked = asking(parse_url(script.url()), token="secret")
    answer(await script.requests.get(), 302, location=script.url("127.0.0.1"))
    with pytest.raises(CommandFailed, match="answered with the status 302"):
        await asked
    assert not script.requests.pending


@pytest_twisted.ensureDeferred
async def test_an_answer_that_is_cut_off_is_none(script: Script) -> None:
    asked = asking(parse_url(script.url()))
    request = await script.requests.get()
    begin(request, content_length="9")
    request.write(b"1234")
    cut_off(request)
    with pytest.raises(NoAnswer, match="was cut off"):
        await asked


@pytest_twisted.ensureDeferred
async def test_a_connection_that_ends_without_an_answer_is_explained(script: Script) -> None:
    asked = asking(parse_url(script.url()))
    cut_off(await script.requests.get())
    with pytest.raises(NoAnswer, match="ended the connection without an answer"):
        await asked


@pytest_twisted.ensureDeferred
async def test_an_error_without_an_end_is_not_read_to_its_end(script: Script) -> None:
    asked = asking(parse_url(script.url()))
    request = await script.requests.get()
    begin(request, 400)
    request.write(b"x" * 100_000)
    with pytest.raises(CommandFailed, match="answered with the status 400"):
        await asked


@pytest_twisted.ensureDeferred
async def test_nobody_and_an_unknown_name_are_explained() -> None:
    with pytest.raises(NoAnswer, match=r"^Nobody listens at http://localhost:1\.$"):
        await asking(parse_url("http://localhost:1/a"))
    with pytest.raises(NoAnswer, match=r"^The name in http://nowhere\.invalid is not known\.$"):
        await asking(parse_url("http://nowhere.invalid/a"))


@pytest_twisted.ensureDeferred
async def test_a_server_without_tls_is_explained() -> None:
    class Plain(Protocol):
        def dataReceived(self, data: bytes) -> None:
            assert self.transport is not None
            self.transport.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    port = reactor.listenTCP(0, Factory.forProtocol(Plain), interface="127.0.0.1")
    with pytest.raises(CommandFailed, match="does not speak TLS"):
        await asking(parse_url(f"https://localhost:{port.getHost().port}"))
    await port.stopListening()


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b'{"error":"not_found","message":"No such place."}', "404 not_found: No such place."),
        (b'{\n  "error" : "Permission denied"\n}\n', "404: Permission denied"),
        (b'{"error":"a","message":"b\\n"}', "404 a: b"),
        (b'{"error":{"code":1}}', "http://h answered with the status 404."),
        (b"<html>", "http://h answered with the status 404."),
        (b"", "http://h answered with the status 404."),
    ],
)
def test_a_refusal_is_one_sentence_in_every_dialect(body: bytes, expected: str) -> None:
    assert describe(404, body, parse_url("http://h/")) == expected


def tls_of(key: bytes, certificate: bytes) -> CertificateOptions:
    own_key: Any = load_pem_private_key(key, None)
    own: Any = x509.load_pem_x509_certificate(certificate)
    return CertificateOptions(privateKey=own_key, certificate=own)


class Authority:
    """Signs certificates for any names, bad ones too."""

    def __init__(self) -> None:
        self._ca = trustme.CA()
        self.pem = self._ca.cert_pem.bytes()

    def server(self, names: Sequence[str]) -> CertificateOptions:
        """Return a server's side with a certificate for exactly these names."""
        own = issue(self._ca, dns(*names) if names else None)
        return tls_of(own.private_key_pem.bytes(), own.cert_chain_pems[0].bytes())


@pytest.mark.parametrize(
    ("names", "host"),
    [
        (["localhost"], "localhost"),
        (["*.localhost", "localhost"], "localhost"),
        (["localhost"], "shop.localhost"),
        (["shop.localhost"], "shop.localhost"),
    ],
)
@pytest_twisted.ensureDeferred
async def test_a_server_is_believed_whose_certificate_carries_its_name(
    names: list[str], host: str
) -> None:
    authority = Authority()
    script = Script(authority.server(names))
    asked = asking(parse_url(script.url(host)), authority=authority.pem)
    answer(await script.requests.get(), 200, b"1")
    assert await asked == b"1"
    await script.close()


@pytest.mark.parametrize(
    "names", [["db.example.com"], ["*.localhost"], ["*.example"], ["*"], [""], ["a b"], []]
)
@pytest_twisted.ensureDeferred
async def test_a_server_whose_certificate_does_not_carry_its_name_is_asked_nothing(
    names: list[str],
) -> None:
    authority = Authority()
    script = Script(authority.server(names))
    with pytest.raises(CommandFailed, match=r"^The certificate of .* is for another name\.$"):
        await asking(parse_url(script.url()), authority=authority.pem, token="secret")
    with pytest.raises(CommandFailed, match=r"^The certificate of .* is for another name\.$"):
        await asking(parse_url(script.url("127.0.0.1")), authority=authority.pem)
    assert not script.requests.pending
    await script.close()


@pytest_twisted.ensureDeferred
async def test_a_server_is_not_believed_that_nobody_vouches_for() -> None:
    script = Script(Authority().server(["localhost"]))
    for authority in (None, Authority().pem):
        with pytest.raises(CommandFailed, match="signed by nobody who is trusted here"):
            await asking(parse_url(script.url()), authority=authority)
    assert not script.requests.pending
    await script.close()


@pytest.mark.parametrize("host", ["localhost", "demo.localhost", "eu--shop.localhost", "127.0.0.1"])
@pytest_twisted.ensureDeferred
async def test_the_certificate_of_development_mode_serves_all_names_of_this_machine(
    tmp_path: pathlib.Path, host: str
) -> None:
    files = keep_local_certificate(tmp_path, datetime.datetime.now(datetime.UTC))
    pem = files.certificate.read_bytes()
    script = Script(tls_of(files.key.read_bytes(), pem))
    asked = asking(parse_url(script.url(host)), authority=pem)
    answer(await script.requests.get(), 200, b"1")
    assert await asked == b"1"
    await script.close()
