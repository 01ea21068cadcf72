"""Requests to a server that responds, to one that returns errors, and to one of another name."""

from __future__ import annotations

import datetime
import pathlib
import socket
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

import pytest
import pytest_twisted
import trustme
from cryptography import x509
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from twisted.internet import reactor as installed_reactor
from twisted.internet.defer import Deferred
from twisted.internet.protocol import Factory, Protocol
from twisted.internet.ssl import CertificateOptions
from twisted.internet.threads import deferToThread

from tests.authority import dns, issue
from tests.script import ScriptedServer, begin_response, cut_off, respond
from treedbd.cli.exit import CommandFailed
from treedbd.cli.http_client import HttpClient
from treedbd.cli.options import NoResponse, Url, describe_error, parse_url
from treedbd.config.certificate import ensure_local_certificate

reactor: Any = installed_reactor


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    """A plain server."""
    running = ScriptedServer()
    yield running
    pytest_twisted.blockon(running.close())


Fetch: TypeAlias = Callable[..., Deferred[bytes]]


@pytest.fixture
def fetch(tmp_path: pathlib.Path) -> Fetch:
    """A function that gets a URL, with the options `authority` (in PEM) and `token`."""

    def blocking(url: Url, authority: bytes | None = None, token: str | None = None) -> bytes:
        file = tmp_path / "authority.pem"
        file.write_bytes(authority or b"")
        client = HttpClient(() if authority is None else (file,), token)
        return client.request("GET", url).content()

    return lambda *words, **options: deferToThread(blocking, *words, **options)


@pytest_twisted.ensureDeferred
async def test_a_url_is_sent_byte_for_byte_with_the_token_in_a_header_only(
    fetch: Fetch,
    server: ScriptedServer,
) -> None:
    url = parse_url(f"{server.url()}/a%2Fb//ü;x/%zz.json?orderBy=%22a%22&x&y=&%zz=+1")
    fetched = fetch(url, token="secret")
    request = await server.requests.get()
    assert request.uri == b"/a%2Fb//%C3%BC;x/%zz.json?orderBy=%22a%22&x&y=&%zz=+1"
    assert request.getHeader("authorization") == "Bearer secret"
    respond(request, 200, b"1")
    assert await fetched == b"1"


@pytest_twisted.ensureDeferred
async def test_without_a_token_there_is_no_such_header(
    fetch: Fetch, server: ScriptedServer
) -> None:
    fetched = fetch(parse_url(server.url()))
    request = await server.requests.get()
    assert not request.requestHeaders.hasHeader("authorization")
    respond(request, 200)
    await fetched


@pytest.mark.parametrize("host", ["localhost", "shop.localhost", "127.0.0.1"])
@pytest_twisted.ensureDeferred
async def test_names_of_this_machine_need_no_lookup(
    fetch: Fetch, server: ScriptedServer, host: str
) -> None:
    fetched = fetch(parse_url(server.url(host)))
    request = await server.requests.get()
    assert request.getHeader("host") == server.url(host).removeprefix("http://")
    respond(request, 200)
    await fetched


@pytest_twisted.ensureDeferred
async def test_an_ipv6_address_is_accepted(fetch: Fetch) -> None:
    if not socket.has_ipv6:
        return
    with pytest.raises(NoResponse, match=r"\[::1\]"):
        await fetch(parse_url("http://[::1]:1/a"))


@pytest_twisted.ensureDeferred
async def test_no_redirect_is_followed(fetch: Fetch, server: ScriptedServer) -> None:
    fetched = fetch(parse_url(server.url()), token="secret")
    respond(await server.requests.get(), 302, location=server.url("127.0.0.1"))
    with pytest.raises(CommandFailed, match="returned the status 302"):
        await fetched
    assert not server.requests.pending


@pytest_twisted.ensureDeferred
async def test_a_response_that_is_cut_off_is_an_error(fetch: Fetch, server: ScriptedServer) -> None:
    fetched = fetch(parse_url(server.url()))
    request = await server.requests.get()
    begin_response(request, content_length="9")
    request.write(b"1234")
    cut_off(request)
    with pytest.raises(NoResponse, match="was cut off"):
        await fetched


@pytest_twisted.ensureDeferred
async def test_a_connection_closed_without_a_response_is_an_error(
    fetch: Fetch, server: ScriptedServer
) -> None:
    fetched = fetch(parse_url(server.url()))
    cut_off(await server.requests.get())
    with pytest.raises(NoResponse, match="closed the connection without a response"):
        await fetched


@pytest_twisted.ensureDeferred
async def test_only_a_part_of_an_endless_error_is_read(
    fetch: Fetch, server: ScriptedServer
) -> None:
    fetched = fetch(parse_url(server.url()))
    request = await server.requests.get()
    begin_response(request, 400)
    request.write(b"x" * 100_000)
    with pytest.raises(CommandFailed, match="returned the status 400"):
        await fetched


@pytest_twisted.ensureDeferred
async def test_a_missing_server_and_an_unknown_host_name_are_reported(fetch: Fetch) -> None:
    with pytest.raises(NoResponse, match=r"^No server listens at http://localhost:1\.$"):
        await fetch(parse_url("http://localhost:1/a"))
    with pytest.raises(
        NoResponse, match=r"^The host name in http://nowhere\.invalid is not known\.$"
    ):
        await fetch(parse_url("http://nowhere.invalid/a"))


@pytest_twisted.ensureDeferred
async def test_a_server_without_tls_is_reported(fetch: Fetch) -> None:
    class Plain(Protocol):
        def dataReceived(self, data: bytes) -> None:
            assert self.transport is not None
            self.transport.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    port = reactor.listenTCP(0, Factory.forProtocol(Plain), interface="127.0.0.1")
    with pytest.raises(CommandFailed, match="does not speak TLS"):
        await fetch(parse_url(f"https://localhost:{port.getHost().port}"))
    await port.stopListening()


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b'{"error":"not_found","message":"No such path."}', "404 not_found: No such path."),
        (b'{\n  "error" : "Permission denied"\n}\n', "404: Permission denied"),
        (b'{"error":"a","message":"b\\n"}', "404 a: b"),
        (
            b'{"error":"a","message":"It requires an admin\'s token."}',
            "404 a: It requires an admin's token. Put one into the variable TREEDB_TOKEN; "
            "in development mode owner is one.",
        ),
        (b'{"error":{"code":1}}', "http://h returned the status 404."),
        (b"<html>", "http://h returned the status 404."),
        (b"", "http://h returned the status 404."),
    ],
)
def test_an_error_is_one_sentence_in_every_dialect(body: bytes, expected: str) -> None:
    assert describe_error(404, body, parse_url("http://h/")) == expected


def tls_of(key: bytes, certificate: bytes) -> CertificateOptions:
    own_key: Any = load_pem_private_key(key, None)
    own: Any = x509.load_pem_x509_certificate(certificate)
    return CertificateOptions(privateKey=own_key, certificate=own)


class Authority:
    """Signs certificates for any names, invalid ones too."""

    def __init__(self) -> None:
        self._ca = trustme.CA()
        self.pem = self._ca.cert_pem.bytes()

    def options_for(self, names: Sequence[str]) -> CertificateOptions:
        """Return the TLS options of a server whose certificate has exactly these names."""
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
async def test_a_server_whose_certificate_has_its_name_is_trusted(
    fetch: Fetch, names: list[str], host: str
) -> None:
    authority = Authority()
    server = ScriptedServer(authority.options_for(names))
    fetched = fetch(parse_url(server.url(host)), authority=authority.pem)
    respond(await server.requests.get(), 200, b"1")
    assert await fetched == b"1"
    await server.close()


@pytest.mark.parametrize(
    "names", [["db.example.com"], ["*.localhost"], ["*.example"], ["*"], [""], ["a b"], []]
)
@pytest_twisted.ensureDeferred
async def test_a_server_whose_certificate_has_another_name_receives_no_request(
    fetch: Fetch,
    names: list[str],
) -> None:
    authority = Authority()
    server = ScriptedServer(authority.options_for(names))
    with pytest.raises(CommandFailed, match=r"^The certificate of .* is for another name: give"):
        await fetch(parse_url(server.url()), authority=authority.pem, token="secret")
    with pytest.raises(CommandFailed, match=r"^The certificate of .* is for another name: give"):
        await fetch(parse_url(server.url("127.0.0.1")), authority=authority.pem)
    assert not server.requests.pending
    await server.close()


@pytest_twisted.ensureDeferred
async def test_a_certificate_of_an_unknown_authority_is_not_trusted(fetch: Fetch) -> None:
    server = ScriptedServer(Authority().options_for(["localhost"]))
    for authority in (None, Authority().pem):
        with pytest.raises(CommandFailed, match="is not signed by a trusted authority"):
            await fetch(parse_url(server.url()), authority=authority)
    assert not server.requests.pending
    await server.close()


@pytest.mark.parametrize("host", ["localhost", "demo.localhost", "eu--shop.localhost", "127.0.0.1"])
@pytest_twisted.ensureDeferred
async def test_the_certificate_of_development_mode_is_valid_for_all_names_of_this_machine(
    fetch: Fetch, tmp_path: pathlib.Path, host: str
) -> None:
    files = ensure_local_certificate(tmp_path, datetime.datetime.now(datetime.UTC))
    pem = files.certificate.read_bytes()
    server = ScriptedServer(tls_of(files.key.read_bytes(), pem))
    fetched = fetch(parse_url(server.url(host)), authority=pem)
    respond(await server.requests.get(), 200, b"1")
    assert await fetched == b"1"
    await server.close()
