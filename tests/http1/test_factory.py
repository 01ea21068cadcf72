"""Round trips over real sockets, and the frameworks whose resources the server renders."""

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
from twisted.internet.error import ConnectionDone, ConnectionLost
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

from tests.http1.peer import BODY, GET, ScriptedResource, Server, parse_replies, send_small
from treedbd.http1.content import Content, WaitingBytes
from treedbd.http1.request import Request
from treedbd.http1.server import Http1Factory
from treedbd.limits import Limits

reactor: Any = global_reactor
LAST = b"GET /last HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
POST = b"POST /a.json HTTP/1.1\r\nHost: localhost\r\n"


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A file with a self-signed certificate for localhost, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    now = datetime.datetime.now(datetime.UTC)
    self_signed = (
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
        + self_signed.public_bytes(serialization.Encoding.PEM)
    )
    return file


class Client(Protocol):
    """Collects what it receives; `closed` fires with all of it."""

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
        """Return a Deferred that fires once `size` bytes have arrived in all."""
        ready: Deferred[None] = Deferred()
        if len(self.received) >= size:
            ready.callback(None)
        else:
            self._awaited.append((size, ready))
        return ready


class ListeningServer:
    """A server that listens on its own port, with or without TLS."""

    def __init__(self, certificate: pathlib.Path, scheme: str) -> None:
        self.certificate = certificate
        self.scheme = scheme
        self.factory: Http1Factory
        self._port: Any

    async def listen(self, resource: Any, limits: Limits | None = None) -> None:
        """Serve a resource."""
        self.factory = Http1Factory(resource, limits or Limits(), reactor)
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
        """Open a connection without TLS, even to a port with TLS."""
        endpoint = TCP4ClientEndpoint(reactor, "127.0.0.1", self._port.getHost().port)
        client: Client = await connectProtocol(endpoint, Client())
        return client

    async def close(self) -> None:
        """Stop listening and drop all connections."""
        await self._port.stopListening()
        drained = self.factory.drain()
        self.factory.abort()
        await drained


@pytest.fixture(params=["tcp", "ssl"])
def server(request: pytest.FixtureRequest, certificate: pathlib.Path) -> Any:
    """A server that is closed at the end."""
    listening = ListeningServer(certificate, request.param)
    yield listening
    pytest_twisted.blockon(Deferred.fromCoroutine(listening.close()))


@pytest_twisted.ensureDeferred
async def test_requests_are_answered_over_a_socket(server: ListeningServer) -> None:
    resource = ScriptedResource(send_small)
    await server.listen(resource)
    client = await server.connect()
    client.transport.write(GET)
    await client.await_bytes(1)
    client.transport.write(GET + LAST)
    replies = parse_replies(await client.closed)
    assert [reply.body for reply in replies] == [BODY] * 3
    assert resource.requests[0].isSecure() is (server.scheme == "ssl")
    assert resource.requests[0].getClientAddress().host == "127.0.0.1"


@pytest_twisted.ensureDeferred
async def test_large_replies_arrive_whole_and_in_order(server: ListeningServer) -> None:
    def send_much(request: Request) -> None:
        number = int(request.uri[1:])
        request.send(200, [], bytes([number]) * (number * 40_000))

    await server.listen(ScriptedResource(send_much))
    client = await server.connect()
    wanted = [*range(30), 200]
    for number in wanted[:-1]:
        client.transport.write(b"GET /%d HTTP/1.1\r\n\r\n" % number)
    client.transport.write(b"GET /200 HTTP/1.1\r\nConnection: close\r\n\r\n")
    client.transport.pauseProducing()
    await deferLater(reactor, 0)
    client.transport.resumeProducing()
    replies = parse_replies(await client.closed)
    assert [len(reply.body) for reply in replies] == [number * 40_000 for number in wanted]
    assert all(set(reply.body) <= {number} for reply, number in zip(replies, wanted, strict=True))


@pytest_twisted.ensureDeferred
async def test_a_reply_of_several_records_is_encrypted_and_sent_at_once(
    certificate: pathlib.Path,
) -> None:
    waiting: list[object] = []
    body = b"0123456789" * 4_000  # Twisted would join so few with what follows

    def send_records(request: Request) -> None:
        tls: Any = request.transport
        request.send(200, [], body)
        waiting.extend((*tls._aggregator._buffer, *tls._appSendBuffer))

    server = ListeningServer(certificate, "ssl")
    await server.listen(ScriptedResource(send_records))
    client = await server.connect()
    client.transport.write(GET + LAST)
    replies = parse_replies(await client.closed)
    assert [reply.body for reply in replies] == [body] * 2
    assert waiting == []
    await server.close()


@pytest_twisted.ensureDeferred
async def test_long_content_waits_for_a_client_that_pauses_and_arrives_whole(
    server: ListeningServer,
) -> None:
    waiting = WaitingBytes(100_000_000)
    text = b"".join(b"%07d\n" % number for number in range(1_000_000))
    content = Content(waiting, text)
    resource = ScriptedResource(lambda request: request.send_content(200, [], content.open("")))
    await server.listen(resource)
    client = await server.connect()
    client.transport.write(LAST)
    await client.await_bytes(1)
    client.transport.pauseProducing()
    connection: Any = resource.requests[0].connection
    while not connection.writer.is_paused:
        await deferLater(reactor, 0)
    assert waiting.total == len(text)
    client.transport.resumeProducing()
    (reply,) = parse_replies(bytes(await client.closed))
    assert reply.body == text
    assert waiting.total == 0


@pytest_twisted.ensureDeferred
async def test_bytes_written_to_the_transport_directly_keep_their_order(
    server: ListeningServer,
) -> None:
    def warn_and_send(request: Request) -> None:
        request.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        send_small(request)

    await server.listen(ScriptedResource(warn_and_send))
    client = await server.connect()
    client.transport.write(LAST)
    replies = parse_replies(bytes(await client.closed))
    assert [reply.status for reply in replies] == [100, 200]


@pytest_twisted.ensureDeferred
async def test_headers_that_are_too_long_are_answered_before_their_end(
    server: ListeningServer,
) -> None:
    await server.listen(ScriptedResource(send_small))
    client = await server.connect()
    client.transport.write(b"GET / HTTP/1.1\r\nX: " + b"x" * 300_000)
    (reply,) = parse_replies(bytes(await client.closed))
    assert reply.status == 431


@pytest_twisted.ensureDeferred
async def test_a_client_that_sends_a_body_too_large_receives_the_error(
    server: ListeningServer,
) -> None:
    await server.listen(ScriptedResource(send_small), Limits(write_body_bytes=1_000_000))
    client = await server.connect()
    client.transport.write(POST + b"Content-Length: 1900000\r\n\r\n")
    for _ in range(19):
        client.transport.write(b"x" * 100_000)
        await deferLater(reactor, 0)
    (reply,) = parse_replies(bytes(await client.closed))
    assert reply.status == 413


@pytest_twisted.ensureDeferred
async def test_a_body_of_some_megabytes_arrives_whole(server: ListeningServer) -> None:
    body = bytes(range(256)) * 20_000
    received = []

    def receive(request: Request) -> None:
        received.append(request.content.read())
        send_small(request)

    await server.listen(ScriptedResource(receive))
    client = await server.connect()
    head = POST + b"Connection: close\r\nContent-Length: %d\r\n\r\n" % len(body)
    client.transport.write(head + body)
    await client.closed
    assert received == [body]


@pytest_twisted.ensureDeferred
async def test_a_client_receives_a_stream_frame_by_frame(server: ListeningServer) -> None:
    resource = ScriptedResource()
    await server.listen(resource)
    client = await server.connect()
    client.transport.write(GET)
    while not resource.requests:
        await deferLater(reactor, 0)
    (request,) = resource.requests
    request.has_own_timeout = True  # as each stream has, so it ends with its client
    lost: list[Failure] = []
    request.notifyFinish().addErrback(lost.append)
    for number in range(1, 4):
        request.write(b"event: put\ndata: null\n\n")
        while client.received.count(b"event") < number:
            await deferLater(reactor, 0)
    assert client.received.endswith(b"event: put\ndata: null\n\n\r\n")
    client.transport.loseConnection()
    while not lost:
        await deferLater(reactor, 0)
    request.write(b"after the end")
    assert lost[0].check(ConnectionLost, ConnectionDone)


@pytest_twisted.ensureDeferred
async def test_draining_ends_with_the_last_request(server: ListeningServer) -> None:
    resource = ScriptedResource()
    await server.listen(resource)
    idle, busy = await server.connect(), await server.connect()
    busy.transport.write(GET)
    while not resource.requests:
        await deferLater(reactor, 0)
    drained = server.factory.drain()
    await idle.closed
    assert not drained.called
    resource.requests[0].send(200, [], BODY)
    assert parse_replies(await busy.closed)[0][b"connection"] == b"close"
    await drained
    assert server.factory.connections.count == 0


@pytest_twisted.ensureDeferred
async def test_connections_beyond_the_limit_are_refused(server: ListeningServer) -> None:
    await server.listen(ScriptedResource(send_small), Limits(connections=1))
    first = await server.connect()
    first.transport.write(GET)
    await first.await_bytes(1)
    second = await server.connect_plain()
    reply = bytes(await second.closed)
    if server.scheme == "tcp":
        assert parse_replies(reply)[0].status == 503
    else:
        assert reply == b""


@pytest_twisted.ensureDeferred
async def test_http_1_1_is_negotiated_over_tls(certificate: pathlib.Path) -> None:
    server = ListeningServer(certificate, "ssl")
    await server.listen(ScriptedResource(send_small))
    client = await server.connect(acceptableProtocols=[b"h2", b"http/1.1"])
    client.transport.write(LAST)
    await client.await_bytes(1)
    assert client.transport.negotiatedProtocol == b"http/1.1"
    await client.closed
    await server.close()


@pytest_twisted.ensureDeferred
async def test_a_connection_without_a_handshake_is_closed(certificate: pathlib.Path) -> None:
    server = ListeningServer(certificate, "ssl")
    await server.listen(ScriptedResource(send_small), Limits(handshake_s=0.1))
    client = await server.connect_plain()
    assert await client.closed == b""
    await server.close()


def test_it_is_a_factory_that_negotiates_a_protocol() -> None:
    factory = Server(ScriptedResource()).factory
    assert verifyObject(IProtocolFactory, factory)
    assert verifyObject(IProtocolNegotiationFactory, factory)


# Klein and stock resources.


def make_app(waiting: list[Deferred[None]] | None = None) -> Klein:
    app = Klein()

    @app.route("/things/<name>", methods=["GET", "HEAD"])
    def get_thing(request: Request, name: str) -> str:
        return f"thing {name}"

    @app.route("/later/<int:number>", methods=["POST"])
    async def answer_later(request: Request, number: int) -> bytes:
        assert waiting is not None
        await waiting[0]
        request.setResponseCode(201)
        body: bytes = request.content.read()
        return body * number

    @app.route("/stock", branch=True)
    def get_stock(request: Request) -> Resource:
        return ScriptedResource(send_small)

    @app.route("/broken")
    def raise_error(request: Request) -> None:
        raise KeyError("inside")

    return app


def test_klein_routes_work() -> None:
    peer = Server(make_app().resource()).connect()
    thing, stock, nothing, wrong = peer.exchange(
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
    assert peer.exchange(post, GET) == []
    waiting.callback(None)
    later, after = peer.read()
    assert (later.status, later.body) == (201, b"hihi")
    assert after.status == 404


def test_klein_cancels_a_route_whose_client_has_disconnected() -> None:
    cancelled: list[object] = []
    waiting: Deferred[None] = Deferred(cancelled.append)
    peer = Server(make_app([waiting]).resource()).connect()
    peer.send(b"POST /later/2 HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\nhi")
    peer.disconnect()
    assert len(cancelled) == 1
    assert peer.read() == []


def test_a_klein_route_that_raises_is_an_internal_error() -> None:
    peer = Server(make_app().resource()).connect()
    (reply,) = peer.exchange(b"GET /broken HTTP/1.1\r\nHost: x\r\n\r\n")
    assert reply.status == 500
    assert reply.body.startswith(b'{"error":"internal_error"')


@pytest_twisted.ensureDeferred
async def test_files_are_served(server: ListeningServer, tmp_path: pathlib.Path) -> None:
    content = bytes(range(256)) * 4000
    (tmp_path / "file.bin").write_bytes(content)
    root = Resource()
    root.putChild(b"files", File(str(tmp_path)))
    await server.listen(root)
    client = await server.connect()
    client.transport.write(b"GET /files/file.bin HTTP/1.1\r\nRange: bytes=256-511\r\n\r\n")
    client.transport.write(b"GET /files/file.bin HTTP/1.1\r\nConnection: close\r\n\r\n")
    part, whole = parse_replies(bytes(await client.closed))
    assert (part.status, part.body) == (206, bytes(range(256)))
    assert (whole.status, whole.body) == (200, content)
