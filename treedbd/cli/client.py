"""The HTTP client of commands that run a reactor, and the run of such a command.

A URL is sent byte for byte, a token only in the Authorization header. Redirects are not followed: a
token belongs to the host that it was given for. Bodies are received piece by piece. `http_client`
is the client of commands that must start fast.
"""

from __future__ import annotations

import contextlib
import signal
import time
from argparse import Namespace
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, NoReturn, TypeAlias

from OpenSSL import SSL
from service_identity import VerificationError
from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.endpoints import HostnameEndpoint, UNIXClientEndpoint, wrapClientTLS
from twisted.internet.error import (
    ConnectError,
    ConnectionRefusedError,  # noqa: A004 - Twisted's, not the builtin
    DNSLookupError,
)
from twisted.internet.error import TimeoutError as TwistedTimeoutError
from twisted.internet.interfaces import IProtocol, IProtocolFactory, IStreamClientEndpoint
from twisted.internet.protocol import Protocol, connectionDone
from twisted.internet.task import react
from twisted.python.failure import Failure
from twisted.python.reflect import namedAny
from twisted.web.client import URI, Agent, ResponseDone, ResponseFailed
from twisted.web.http import PotentialDataLoss
from twisted.web.http_headers import Headers
from twisted.web.iweb import IAgentEndpointFactory, IBodyProducer, IResponse
from zope.interface import implementer

from treedbd.cli.exit import CommandFailed, OutputClosed, report_failure
from treedbd.cli.options import (
    CLOSED,
    CONNECT_S,
    CUT_OFF,
    LOCALHOST,
    LOOPBACK,
    MAX_ERROR_BYTES,
    NO_SERVER,
    NOT_CONNECTED,
    OTHER_NAME,
    OWN_HEADERS,
    SILENT,
    UNKNOWN_NAME,
    NoResponse,
    Url,
    choose_authorities,
    describe_error,
    describe_tls_failure,
    is_local_name,
    read_settings,
    read_token,
)
from treedbd.config.settings import Settings
from treedbd.web.auth.fetch import BadAuthority, TrustStore, parse_authority, read_authority

_NO_CONNECTION: Final[dict[type[BaseException], str]] = {
    ConnectionRefusedError: NO_SERVER,
    DNSLookupError: UNKNOWN_NAME,
    TwistedTimeoutError: SILENT,
    ConnectError: NOT_CONNECTED,
    ResponseFailed: CLOSED,
}


class Client:
    """Sends requests as one caller."""

    def __init__(self, reactor: Any, trust: TrustStore, token: str | None = None) -> None:
        """Verify servers by `trust`; send `token` with each request."""
        self._endpoints = _Endpoints(reactor, trust)
        self._agent = Agent.usingEndpointFactory(reactor, self._endpoints)
        self._token = token

    async def send(
        self,
        method: str,
        url: Url,
        headers: Mapping[str, str] | None = None,
        body: IBodyProducer | None = None,
    ) -> IResponse:
        """Send a request and return the response, whatever its status is.

        Raises `NoResponse`, or `CommandFailed` for a server that cannot be verified.
        """
        sent = Headers()
        for name, value in (*OWN_HEADERS.items(), *(headers or {}).items()):
            sent.setRawHeaders(name, [value])
        if self._token is not None:
            sent.setRawHeaders("Authorization", [f"Bearer {self._token}"])
        self._endpoints.socket = url.socket
        address = f"http://{url.authority}{url.target}" if url.socket else str(url)
        try:
            response: IResponse = await self._agent.request(
                method.encode(), address.encode(), sent, body
            )
        except Exception as error:
            raise _describe_failure(error, url) from None
        return response

    async def request(
        self,
        method: str,
        url: Url,
        headers: Mapping[str, str] | None = None,
        body: IBodyProducer | None = None,
    ) -> IResponse:
        """Send a request; raise `CommandFailed` also for a status other than 2xx."""
        response = await self.send(method, url, headers, body)
        if not 200 <= response.code < 300:
            raise CommandFailed(await read_error(response, url))
        return response


async def receive(response: IResponse, url: Url, consume: Callable[[bytes], None]) -> None:
    """Call `consume` with each piece of a body; raise `NoResponse`, or what `consume` raises."""
    receiver = _Receiver(consume)
    response.deliverBody(receiver)
    try:
        await receiver.done
    except ResponseFailed:
        raise NoResponse(CUT_OFF.format(url.origin)) from None


async def content(response: IResponse, url: Url) -> bytes:
    """Return a whole body, which must be small."""
    pieces: list[bytes] = []
    await receive(response, url, pieces.append)
    return b"".join(pieces)


async def read_error(response: IResponse, url: Url) -> str:
    """Return the sentence of a response that is an error."""
    body = bytearray()

    def consume(data: bytes) -> None:
        body.extend(data)
        if len(body) > MAX_ERROR_BYTES:
            raise NoResponse

    with contextlib.suppress(NoResponse):
        await receive(response, url, consume)
    return describe_error(response.code, bytes(body), url)


class _Receiver(Protocol):
    """Receives a body; `done` fires at its end or fails, and cancelling it drops the rest."""

    def __init__(self, consume: Callable[[bytes], None]) -> None:
        self._consume = consume
        self.done: Deferred[None] = Deferred(self._cancel)

    def dataReceived(self, data: bytes) -> None:
        if self.done.called:
            return
        try:
            self._consume(data)
        except Exception:
            self._drop()
            self.done.errback()

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        if self.done.called:
            return
        if reason.check(ResponseDone, PotentialDataLoss):
            self.done.callback(None)
        else:
            self.done.errback(ResponseFailed([reason]))

    def _cancel(self, done: Deferred[None]) -> None:
        done.errback(CancelledError())
        self._drop()

    def _drop(self) -> None:
        if self.transport is not None:
            self.transport.loseConnection()


@implementer(IAgentEndpointFactory)
class _Endpoints:
    """Makes the endpoint of a host; names of this machine are loopback, without a lookup.

    Attributes:
        socket: the file of the Unix socket that the next request is for; empty for a host.

    """

    def __init__(self, reactor: Any, trust: TrustStore) -> None:
        self._reactor = reactor
        self._trust = trust
        self.socket = ""

    def endpointForURI(self, uri: URI) -> IStreamClientEndpoint:
        if self.socket:
            return UNIXClientEndpoint(self._reactor, self.socket, CONNECT_S)
        host = uri.host.strip(b"[]").decode()
        is_here = is_local_name(host)
        names = LOOPBACK if is_here else (host,)
        plain = _FirstOf(
            [HostnameEndpoint(self._reactor, name, uri.port, CONNECT_S) for name in names]
        )
        if uri.scheme != b"https":
            return plain
        # A name below `localhost` always means this machine, so a certificate for `localhost` is
        # enough: no client accepts a wildcard directly under a top-level name.
        tls = self._trust.creator_for(host, *((LOCALHOST,) if is_here else ()))
        secure: IStreamClientEndpoint = wrapClientTLS(tls, plain)
        return secure


@implementer(IStreamClientEndpoint)
class _FirstOf:
    """Tries endpoints in order; if all fail, the error is that of the first."""

    def __init__(self, endpoints: list[HostnameEndpoint]) -> None:
        self._endpoints = endpoints

    def connect(self, protocolFactory: IProtocolFactory) -> Deferred[IProtocol]:
        return Deferred.fromCoroutine(self._connect(protocolFactory))

    async def _connect(self, factory: IProtocolFactory) -> IProtocol:
        failures: list[ConnectError] = []
        for endpoint in self._endpoints:
            try:
                return await endpoint.connect(factory)
            except ConnectError as error:
                failures.append(error)
        raise failures[0]


def _describe_failure(error: Exception, url: Url) -> Exception:
    """Return the exception with a sentence about a failed connection."""
    origin = url.origin
    reasons = [reason.value for reason in getattr(error, "reasons", [])] or [error]
    for reason in reasons:
        if isinstance(reason, VerificationError):
            return CommandFailed(OTHER_NAME.format(origin))
        if isinstance(reason, SSL.Error):
            return describe_tls_failure(str(reason), origin)
    for kind, sentence in _NO_CONNECTION.items():
        if isinstance(error, kind):
            return NoResponse(sentence.format(origin))
    return error


Work: TypeAlias = Callable[[Any, Client, Namespace], Awaitable[None]]
"""The work of a command, given the reactor, a client and the command line."""


def run_online(arguments: Namespace) -> NoReturn:
    """Do `arguments.work` with the daemon of `arguments.url`, and end the process.

    Raises `CommandFailed` for what is wrong before the first request.
    """
    # Not imported at the top, because importing the reactor installs it.
    reactor = namedAny("twisted.internet.reactor")
    reactor.seconds = time.monotonic  # so that a step of the wall clock cannot stop a timer
    work: Work = arguments.work
    client = make_client(reactor, arguments)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    reactor.callWhenRunning(signal.signal, signal.SIGTERM, signal.SIG_DFL)

    async def run() -> None:
        try:
            await work(reactor, client, arguments)
        except (CommandFailed, OutputClosed) as error:
            raise SystemExit(report_failure(error)) from None

    react(lambda _: Deferred.fromCoroutine(run()))


def make_client(reactor: Any, arguments: Namespace) -> Client:
    """Return the client that a command line describes; raise `CommandFailed`."""
    trust = choose_trust_store(arguments, arguments.url, read_settings(arguments))
    return Client(reactor, trust, read_token(arguments))


def choose_trust_store(arguments: Namespace, url: Url, settings: Settings) -> TrustStore:
    """Return the certificates that verify the server of a URL; raise `CommandFailed`."""
    trusted = []
    for file in choose_authorities(arguments, url, settings):
        try:
            trusted += parse_authority(read_authority(file))
        except BadAuthority as error:
            raise CommandFailed(f"{file} {error.problem}.") from None
    return TrustStore(trusted or None)
