"""One GET over verified TLS, by the client of Twisted.

The client takes about a megabyte of memory. Few daemons fetch anything, so `fetch` imports this
module at the first fetch.
"""

from __future__ import annotations

from typing import Any, cast

from treq.client import HTTPClient
from twisted.internet.defer import Deferred
from twisted.internet.endpoints import HostnameEndpoint, wrapClientTLS
from twisted.internet.interfaces import IProtocol, IProtocolFactory, IStreamClientEndpoint
from twisted.internet.protocol import Factory, Protocol
from twisted.protocols.tls import TLSMemoryBIOProtocol
from twisted.web.client import URI, Agent
from twisted.web.http_headers import Headers
from twisted.web.iweb import IAgentEndpointFactory
from zope.interface import implementer

from treedbd.web.auth.fetch import MAX_BODY_BYTES, FetchFailed
from treedbd.web.auth.tls import TrustStore


async def get(reactor: Any, trust: TrustStore, url: str) -> bytes:
    """Return the document at an https URL, of a server that `trust` has certified.

    Raises `FetchFailed`, or the error of the connection.
    """
    connector = _Connector(reactor, trust)
    client = HTTPClient(Agent.usingEndpointFactory(reactor, connector))
    body = bytearray()

    def collect(data: bytes) -> None:
        if len(body) + len(data) > MAX_BODY_BYTES:
            raise FetchFailed(f"sent more than {MAX_BODY_BYTES} bytes")
        body.extend(data)

    try:
        response = await client.get(
            url,
            headers=Headers({"Accept": ["application/json"]}),
            allow_redirects=False,
            unbuffered=True,
            reactor=reactor,
        )
        if response.code != 200:
            raise FetchFailed(f"answered with the status {response.code}")
        await response.collect(collect)
    finally:
        connector.abort()
    return bytes(body)


@implementer(IAgentEndpointFactory)
class _Connector:
    """Opens TLS connections, and aborts all that it opened.

    An orderly close would have to wait for the peer, which may be what hangs.
    """

    def __init__(self, reactor: Any, trust: TrustStore) -> None:
        self._reactor = reactor
        self._trust = trust
        self._opened: list[IProtocol] = []

    def endpointForURI(self, uri: URI) -> IStreamClientEndpoint:
        if uri.scheme != b"https":
            raise FetchFailed("is not at an https URL")
        tls = self._trust.creator_for(uri.host.decode("ascii"))
        endpoint = HostnameEndpoint(self._reactor, uri.host, uri.port)
        return _RecordingEndpoint(wrapClientTLS(tls, endpoint, self._reactor), self._opened)

    def abort(self) -> None:
        for protocol in self._opened:
            cast(TLSMemoryBIOProtocol, cast(Protocol, protocol).transport).abortConnection()


@implementer(IStreamClientEndpoint)
class _RecordingEndpoint:
    """An endpoint that records the protocols it connected."""

    def __init__(self, endpoint: IStreamClientEndpoint, opened: list[IProtocol]) -> None:
        self._endpoint = endpoint
        self._opened = opened

    def connect(self, protocolFactory: IProtocolFactory) -> Deferred[IProtocol]:
        def record(protocol: IProtocol) -> IProtocol:
            self._opened.append(protocol)
            return protocol

        cast(Factory, protocolFactory).noisy = False  # else each fetch is logged
        connected: Deferred[IProtocol] = self._endpoint.connect(protocolFactory)
        return connected.addCallback(record)
