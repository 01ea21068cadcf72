"""A server whose responses a test writes, request by request."""

from __future__ import annotations

from typing import Any

from twisted.internet import reactor as installed_reactor
from twisted.internet.defer import Deferred, DeferredQueue
from twisted.internet.ssl import CertificateOptions
from twisted.web.resource import Resource
from twisted.web.server import NOT_DONE_YET, Request, Site

reactor: Any = installed_reactor


class ScriptedServer(Resource):
    """Listens on loopback; each request waits in `requests` until the test responds to it."""

    isLeaf = True

    def __init__(self, tls: CertificateOptions | None = None) -> None:
        """Listen on a free port, with TLS if `tls` is given."""
        super().__init__()
        self.requests: DeferredQueue[Request] = DeferredQueue()
        site = Site(self)
        if tls is None:
            self._port = reactor.listenTCP(0, site, interface="127.0.0.1")
        else:
            self._port = reactor.listenSSL(0, site, tls, interface="127.0.0.1")
        self.scheme = "http" if tls is None else "https"

    def url(self, host: str = "localhost") -> str:
        """Return the URL of the server by one of its host names."""
        return f"{self.scheme}://{host}:{self._port.getHost().port}"

    def render(self, request: Request) -> int:
        """Queue a request for the test."""
        self.requests.put(request)
        return NOT_DONE_YET

    def close(self) -> Deferred[None]:
        """Stop listening."""
        stopped: Deferred[None] = self._port.stopListening()
        return stopped


def respond(request: Request, status: int, body: bytes = b"", **headers: str) -> None:
    """Send a whole response."""
    begin_response(request, status, **headers)
    request.write(body)
    request.finish()


def begin_response(request: Request, status: int = 200, **headers: str) -> None:
    """Send the head of a response; an underscore in the name of a header becomes a hyphen."""
    request.setResponseCode(status)
    for name, value in headers.items():
        request.setHeader(name.replace("_", "-"), value)
    request.write(b"")


def cut_off(request: Request) -> None:
    """Close the connection in the middle of a response, after what was written of it."""
    transport: Any = request.transport
    transport.loseConnection()
