"""Asking a daemon over HTTP: connections, answers that say no, bodies as they come.

The URL of a request is sent byte for byte, the token in the Authorization header only. No redirect
is followed: a token belongs to the host that it was given for.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import Any, Final

import orjson
from OpenSSL import SSL
from service_identity import VerificationError
from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.endpoints import HostnameEndpoint, wrapClientTLS
from twisted.internet.error import (
    ConnectError,
    ConnectionRefusedError,  # noqa: A004 - Twisted's, which is no builtin
    DNSLookupError,
)
from twisted.internet.error import TimeoutError as TookTooLong
from twisted.internet.interfaces import IProtocol, IProtocolFactory, IStreamClientEndpoint
from twisted.internet.protocol import Protocol, connectionDone
from twisted.python.failure import Failure
from twisted.web.client import URI, Agent, ResponseDone, ResponseFailed
from twisted.web.http import PotentialDataLoss
from twisted.web.http_headers import Headers
from twisted.web.iweb import IAgentEndpointFactory, IBodyProducer, IResponse
from zope.interface import implementer

from treedbd.cli.outcome import CommandFailed
from treedbd.cli.url import LOCALHOST, Url, is_local_name
from treedbd.web.identity.tls import Trust

CONNECT_S: Final = 30.0
_LOOPBACK: Final = ("127.0.0.1", "::1")
_MAX_ERROR_BYTES: Final = 65_536


class NoAnswer(CommandFailed):
    """Nobody answers, at present at least."""


class Client:
    """Asks daemons, as one caller."""

    def __init__(self, reactor: Any, trust: Trust, token: str | None = None) -> None:
        """Verify servers by `trust`; show `token` to each that is asked."""
        self._agent = Agent.usingEndpointFactory(reactor, _Route(reactor, trust))
        self._token = token

    async def request(
        self,
        method: str,
        url: Url,
        headers: Mapping[str, str] | None = None,
        body: IBodyProducer | None = None,
    ) -> IResponse:
        """Ask; return the answer whatever its status is.

        Raises `NoAnswer`, or `CommandFailed` for a server that is not who it should be.
        """
        sent = Headers({"User-Agent": ["treedb"]})
        for name, value in (headers or {}).items():
            sent.setRawHeaders(name, [value])
        if self._token is not None:
            sent.setRawHeaders("Authorization", [f"Bearer {self._token}"])
        try:
            asking = self._agent.request(method.encode(), str(url).encode(), sent, body)
            response: IResponse = await asking
        except Exception as error:
            raise _explain(error, url) from None
        return response

    async def ask(
        self,
        method: str,
        url: Url,
        headers: Mapping[str, str] | None = None,
        body: IBodyProducer | None = None,
    ) -> IResponse:
        """Ask, and raise `CommandFailed` for an answer that is not success, too."""
        response = await self.request(method, url, headers, body)
        if not 200 <= response.code < 300:
            raise CommandFailed(await refusal(response, url))
        return response


async def receive(response: IResponse, url: Url, take: Callable[[bytes], None]) -> None:
    """Hand over the body piece by piece, as it comes; raise what `take` raises, or `NoAnswer`."""
    receiver = _Receiver(take)
    response.deliverBody(receiver)
    try:
        await receiver.done
    except ResponseFailed:
        raise NoAnswer(f"The answer of {url.origin} was cut off.") from None


async def content(response: IResponse, url: Url) -> bytes:
    """Return a whole body, a small one."""
    pieces: list[bytes] = []
    await receive(response, url, pieces.append)
    return b"".join(pieces)


async def refusal(response: IResponse, url: Url) -> str:
    """Return the sentence that says why an answer is not success."""
    body = bytearray()

    def take(data: bytes) -> None:
        body.extend(data)
        if len(body) > _MAX_ERROR_BYTES:
            raise NoAnswer

    with contextlib.suppress(NoAnswer):
        await receive(response, url, take)
    return describe(response.code, bytes(body), url)


def describe(status: int, body: bytes, url: Url) -> str:
    """Say what an error means; of both dialects, or of no treedb at all."""
    try:
        error = orjson.loads(body)
    except ValueError:
        error = None
    if isinstance(error, dict) and isinstance(error.get("error"), str):
        if isinstance(error.get("message"), str):
            return f"{status} {error['error']}: {error['message'].strip()}"
        return f"{status}: {error['error'].strip()}"
    return f"{url.origin} answered with the status {status}."


class _Receiver(Protocol):
    """Takes a body; `done` fires at its end, fails with whatever went wrong, and cancels it."""

    def __init__(self, take: Callable[[bytes], None]) -> None:
        self._take = take
        self.done: Deferred[None] = Deferred(self._cancel)

    def dataReceived(self, data: bytes) -> None:
        if self.done.called:
            return
        try:
            self._take(data)
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
class _Route:
    """The way to a host; the names of this machine are not looked up, and lead to loopback."""

    def __init__(self, reactor: Any, trust: Trust) -> None:
        self._reactor = reactor
        self._trust = trust

    def endpointForURI(self, uri: URI) -> IStreamClientEndpoint:
        host = uri.host.strip(b"[]").decode()
        is_here = is_local_name(host)
        names = _LOOPBACK if is_here else (host,)
        plain = _FirstOf(
            [HostnameEndpoint(self._reactor, name, uri.port, CONNECT_S) for name in names]
        )
        if uri.scheme != b"https":
            return plain
        # A name below `localhost` leads to nothing but this machine, so that a certificate of this
        # machine will do: no client takes a wildcard directly under a top-level name.
        tls = self._trust.creator_for(host, *((LOCALHOST,) if is_here else ()))
        secure: IStreamClientEndpoint = wrapClientTLS(tls, plain)
        return secure


@implementer(IStreamClientEndpoint)
class _FirstOf:
    """Tries endpoints in their order; where all fail, the reason is that of the first."""

    def __init__(self, endpoints: list[HostnameEndpoint]) -> None:
        self._endpoints = endpoints

    def connect(self, protocolFactory: IProtocolFactory) -> Deferred[IProtocol]:
        return Deferred.fromCoroutine(self._connect(protocolFactory))

    async def _connect(self, factory: IProtocolFactory) -> IProtocol:
        refused: list[ConnectError] = []
        for endpoint in self._endpoints:
            try:
                return await endpoint.connect(factory)
            except ConnectError as error:
                refused.append(error)
        raise refused[0]


def _explain(error: Exception, url: Url) -> Exception:
    """Return the failure that tells what an error of a connection means."""
    origin = url.origin
    reasons = [reason.value for reason in getattr(error, "reasons", [])] or [error]
    for reason in reasons:
        if isinstance(reason, VerificationError):
            return CommandFailed(f"The certificate of {origin} is for another name.")
        if isinstance(reason, SSL.Error):
            return _explain_tls(reason, origin)
    for kind, sentence in _NO_CONNECTION.items():
        if isinstance(error, kind):
            return NoAnswer(sentence.format(origin))
    return error


def _explain_tls(error: SSL.Error, origin: str) -> CommandFailed:
    told = str(error)
    if "certificate verify failed" in told:
        return CommandFailed(
            f"The certificate of {origin} is signed by nobody who is trusted here, or has run out: "
            "name its authority with --cacert."
        )
    if "wrong version number" in told or "record layer failure" in told:
        return CommandFailed(f"{origin} does not speak TLS.")
    return NoAnswer(f"No TLS connection to {origin} came about.")


_NO_CONNECTION: Final[dict[type[BaseException], str]] = {
    ConnectionRefusedError: "Nobody listens at {}.",
    DNSLookupError: "The name in {} is not known.",
    TookTooLong: "{} does not answer.",
    ConnectError: "No connection to {} came about.",
    ResponseFailed: "{} ended the connection without an answer.",
}
