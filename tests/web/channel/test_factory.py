"""Round trips over real sockets, and the frameworks that are to work above the channel."""

from __future__ import annotations

import datetime
import pathlib
from typing import Any

import pytest
import pytest_twisted
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from klein import Klein
from twisted.internet import reactor as global_reactor
from twisted.internet import ssl
from twisted.internet.defer import Deferred
from twisted.internet.endpoints import (
    HostnameEndpoint,
    TCP4ClientEndpoint,
    connectProtocol,
    serverFromString,
    wrapClientTLS,
)
from twisted.internet.interfaces import (
    IProtocolFactory,
    IProtocolNegotiationFactory,
)
from twisted.internet.protocol import Protocol, connectionDone
from twisted.internet.task import deferLater
from twisted.python.failure import Failure
from twisted.web.resource import Resource
from twisted.web.static import File
from zope.interface.verify import verifyObject

from tests.web.channel.peer import BODY, GET, Scripted, Server, parse_answers, send_small
from treedbd.web.channel.factory import ChannelFactory
from treedbd.web.channel.lean import LeanRequest
from treedbd.web.channel.limits import ChannelLimits

reactor: Any = global_reactor
LAST = b"GET /last HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
POST = b"POST /a.json HTTP/1.1\r\nHost: localhost\r\n"


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A file with a self-made certificate for localhost, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .sign(key, hashes.SHA256())
    )
    file = tmp_path_factory.mktemp("tls") / "localhost.pem"
    file.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        + made.public_bytes(serialization.Encoding.PEM)
    )
    return file


class Client(Protocol):
    """Keeps what it receives; `closed` fires with all of it."""

    transport: Any

    def __init__(self) -> None:
        self.received = bytearray()
        self.closed: Deferred[bytes] = Deferred()
        self.reason: Failure | None = None
        self._awaited: list[tuple[int, Deferred[None]]] = []

    def dataReceived(self, data: bytes) -> None:
        self.received += data
        for size, ready in self._awaited[:]:
            if len(self.received) >= size:
                self._awaited.remove((size, ready))
                ready.callback(None)

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        self.reason = reason
        self.closed.callback(bytes(self.received))

    def await_bytes(self, size: int) -> Deferred[None]:
        """Fire once so many bytes have come in all."""
        ready: Deferred[None] = Deferred()
        if len(self.received) >= size:
            ready.callback(None)
        else:
            self._awaited.append((size, ready))
        return ready


class Site:
    """A channel that listens on a port of its own, with or without TLS."""

    def __init__(self, certificate: pathlib.Path, scheme: str) -> None:
        self.certificate = certificate
        self.scheme = scheme
        self.factory: ChannelFactory
        self._port: Any

    async def listen(self, resource: Any, limits: ChannelLimits | None = None) -> None:
        """Begin to serve."""
        self.factory = ChannelFactory(resource, limits or ChannelLimits(), reactor)
        rest = f":privateKey={self.certificate}" if self.scheme == "ssl" else ""
        endpoint = serverFromString(reactor, f"{self.scheme}:0:interface=127.0.0.1{rest}")
        self._port = await endpoint.listen(self.factory)

    async def connect(self, **tls_options: Any) -> Client:
        """Open a connection."""
        if self.scheme == "ssl":
            authority = ssl.Certificate.loadPEM(self.certificate.read_bytes())
            options = ssl.optionsForClientTLS("localhost", trustRoot=authority, **tls_options)
            plain = HostnameEndpoint(reactor, "127.0.0.1", self._port.getHost().port)
            client: Client = await connectProtocol(wrapClientTLS(options, plain), Client())
            return client
        return await self.connect_plain()

    async def connect_plain(self) -> Client:
        """Open a connection without TLS, whatever the port speaks."""
        endpoint = TCP4ClientEndpoint(reactor, "127.0.0.1", self._port.getHost().port)
        client: Client = await connectProtocol(endpoint, Client())
        return client

    async def close(self) -> None:
        """End all of it."""
        await self._port.stopListening()
        drained = self.factory.drain()
        self.factory.abort()
        await drained


@pytest.fixture(params=["tcp", "ssl"])
def site(request: pytest.FixtureRequest, certificate: pathlib.Path) -> Any:
    """A site that is closed in the end."""
    made = Site(certificate, request.param)
    yield made
    pytest_twisted.blockon(Deferred.fromCoroutine(made.close()))


@pytest_twisted.ensureDeferred
async def test_requests_are_answered_over_a_socket(site: Site) -> None:
    resource = Scripted(send_small)
    await site.listen(resource)
    client = await site.connect()
    client.transport.write(GET)
    await client.await_bytes(1)
    client.transport.write(GET + LAST)
    answers = parse_answers(await client.closed)
    assert [answer.body for answer in answers] == [BODY] * 3
    assert resource.requests[0].isSecure() is (site.scheme == "ssl")
    assert resource.requests[0].getClientAddress().host == "127.0.0.1"


@pytest_twisted.ensureDeferred
async def test_large_replies_arrive_whole_and_in_order(site: Site) -> None:
    def send_much(request: LeanRequest) -> None:
        number = int(request.uri[1:])
        request.send(200, [], bytes([number]) * (number * 40_000))

    await site.listen(Scripted(send_much))
    client = await site.connect()
    wanted = [*range(30), 200]
    for number in wanted[:-1]:
        client.transport.write(b"GET /%d HTTP/1.1\r\n\r\n" % number)
    client.transport.write(b"GET /200 HTTP/1.1\r\nConnection: close\r\n\r\n")
    client.transport.pauseProducing()
    await deferLater(reactor, 0)
    client.transport.resumeProducing()
    answers = parse_answers(await client.closed)
    assert [len(answer.body) for answer in answers] == [number * 40_000 for number in wanted]
    assert all(set(answer.body) <= {number} for answer, number in zip(answers, wanted, strict=True))


@pytest_twisted.ensureDeferred
async def test_what_is_written_past_the_request_keeps_its_place(site: Site) -> None:
    def warn_and_send(request: LeanRequest) -> None:
        request.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        send_small(request)

    await site.listen(Scripted(warn_and_send))
    client = await site.connect()
    client.transport.write(LAST)
    answers = parse_answers(bytes(await client.closed))
    assert [answer.status for answer in answers] == [100, 200]


@pytest_twisted.ensureDeferred
async def test_a_header_that_is_too_long_is_answered_at_once(site: Site) -> None:
    await site.listen(Scripted(send_small))
    client = await site.connect()
    client.transport.write(b"GET / HTTP/1.1\r\nX: " + b"x" * 300_000)
    (answer,) = parse_answers(bytes(await client.closed))
    assert answer.status == 431


@pytest_twisted.ensureDeferred
async def test_a_client_that_sends_too_much_can_read_why(site: Site) -> None:
    await site.listen(Scripted(send_small), ChannelLimits(body_bytes=1_000_000))
    client = await site.connect()
    client.transport.write(POST + b"Content-Length: 1900000\r\n\r\n")
    for _ in range(19):
        client.transport.write(b"x" * 100_000)
        await deferLater(reactor, 0)
    (answer,) = parse_answers(bytes(await client.closed))
    assert answer.status == 413


@pytest_twisted.ensureDeferred
async def test_a_body_of_some_megabytes_arrives_whole(site: Site) -> None:
    body = bytes(range(256)) * 20_000
    received = []

    def take(request: LeanRequest) -> None:
        received.append(request.content.read())
        send_small(request)

    await site.listen(Scripted(take))
    client = await site.connect()
    head = POST + b"Connection: close\r\nContent-Length: %d\r\n\r\n" % len(body)
    client.transport.write(head + body)
    await client.closed
    assert received == [body]


@pytest_twisted.ensureDeferred
async def test_a_stream_reaches_the_client_frame_by_frame(site: Site) -> None:
    resource = Scripted()
    await site.listen(resource)
    client = await site.connect()
    client.transport.write(GET)
    while not resource.requests:
        await deferLater(reactor, 0)
    (request,) = resource.requests
    lost: list[Failure] = []
    request.notifyFinish().addErrback(lost.append)
    for number in range(1, 4):
        request.write(b"event: put\ndata: null\n\n")
        while client.received.count(b"event") < number:
            await deferLater(reactor, 0)
    client.transport.loseConnection()
    while not lost:
        await deferLater(reactor, 0)
    request.write(b"nobody hears this")


@pytest_twisted.ensureDeferred
async def test_draining_ends_with_the_last_request(site: Site) -> None:
    resource = Scripted()
    await site.listen(resource)
    idle, busy = await site.connect(), await site.connect()
    busy.transport.write(GET)
    while not resource.requests:
        await deferLater(reactor, 0)
    drained = site.factory.drain()
    await idle.closed
    assert not drained.called
    resource.requests[0].send(200, [], BODY)
    assert parse_answers(await busy.closed)[0][b"connection"] == b"close"
    await drained
    assert site.factory.connections == 0


@pytest_twisted.ensureDeferred
async def test_connections_past_the_limit_are_turned_away(site: Site) -> None:
    await site.listen(Scripted(send_small), ChannelLimits(connections=1))
    first = await site.connect()
    first.transport.write(GET)
    await first.await_bytes(1)
    second = await site.connect_plain()
    answer = bytes(await second.closed)
    if site.scheme == "tcp":
        assert parse_answers(answer)[0].status == 503
    else:
        assert answer == b""


@pytest_twisted.ensureDeferred
async def test_http_1_1_is_agreed_on_over_tls(certificate: pathlib.Path) -> None:
    site = Site(certificate, "ssl")
    await site.listen(Scripted(send_small))
    client = await site.connect(acceptableProtocols=[b"h2", b"http/1.1"])
    client.transport.write(LAST)
    await client.await_bytes(1)
    assert client.transport.negotiatedProtocol == b"http/1.1"
    await client.closed
    await site.close()


@pytest_twisted.ensureDeferred
async def test_a_handshake_that_never_comes_is_cut_off(certificate: pathlib.Path) -> None:
    site = Site(certificate, "ssl")
    await site.listen(Scripted(send_small), ChannelLimits(handshake_s=0.1))
    client = await site.connect_plain()
    assert await client.closed == b""
    await site.close()


def test_it_is_a_factory_that_agrees_on_a_protocol() -> None:
    factory = Server(Scripted()).factory
    assert verifyObject(IProtocolFactory, factory)
    assert verifyObject(IProtocolNegotiationFactory, factory)


# Klein and stock resources.


def make_app(waiting: list[Deferred[None]] | None = None) -> Klein:
    app = Klein()

    @app.route("/things/<name>", methods=["GET", "HEAD"])
    def get_thing(request: LeanRequest, name: str) -> str:
        return f"thing {name}"

    @app.route("/later/<int:number>", methods=["POST"])
    async def take_later(request: LeanRequest, number: int) -> bytes:
        assert waiting is not None
        await waiting[0]
        request.setResponseCode(201)
        body: bytes = request.content.read()
        return body * number

    @app.route("/stock", branch=True)
    def get_stock(request: LeanRequest) -> Resource:
        return Scripted(send_small)

    @app.route("/broken")
    def break_down(request: LeanRequest) -> None:
        raise KeyError("inside")

    return app


def test_klein_routes_work() -> None:
    peer = Server(make_app().resource()).connect()
    thing, stock, nothing, wrong = peer.ask(
        b"GET /things/a%20b HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET /stock/a HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET /nothing HTTP/1.1\r\nHost: x\r\n\r\n",
        b"PUT /things/a HTTP/1.1\r\nHost: x\r\n\r\n",
    )
    assert (thing.status, thing.body) == (200, b"thing a b")
    assert (stock.status, stock.body) == (200, BODY)
    assert (nothing.status, wrong.status) == (404, 405)


def test_asynchronous_klein_routes_work() -> None:
    waiting: Deferred[None] = Deferred()
    peer = Server(make_app([waiting]).resource()).connect()
    post = b"POST /later/2 HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\nhi"
    assert peer.ask(post, GET) == []
    waiting.callback(None)
    later, after = peer.read()
    assert (later.status, later.body) == (201, b"hihi")
    assert after.status == 404


def test_klein_cancels_a_route_whose_client_has_gone() -> None:
    cancelled: list[object] = []
    waiting: Deferred[None] = Deferred(cancelled.append)
    peer = Server(make_app([waiting]).resource()).connect()
    peer.send(b"POST /later/2 HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\nhi")
    peer.hang_up()
    assert len(cancelled) == 1
    assert peer.read() == []


def test_a_klein_route_that_breaks_is_an_internal_error() -> None:
    peer = Server(make_app().resource()).connect()
    (answer,) = peer.ask(b"GET /broken HTTP/1.1\r\nHost: x\r\n\r\n")
    assert answer.status == 500
    assert answer.body.startswith(b'{"error":"internal_error"')


@pytest_twisted.ensureDeferred
async def test_files_are_served(site: Site, tmp_path: pathlib.Path) -> None:
    content = bytes(range(256)) * 4000
    (tmp_path / "file.bin").write_bytes(content)
    root = Resource()
    root.putChild(b"files", File(str(tmp_path)))
    await site.listen(root)
    client = await site.connect()
    client.transport.write(b"GET /files/file.bin HTTP/1.1\r\nRange: bytes=256-511\r\n\r\n")
    client.transport.write(b"GET /files/file.bin HTTP/1.1\r\nConnection: close\r\n\r\n")
    part, whole = parse_answers(bytes(await client.closed))
    assert (part.status, part.body) == (206, bytes(range(256)))
    assert (whole.status, whole.body) == (200, content)
