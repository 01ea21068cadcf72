"""A server for tests that answers as each test writes, request by request."""

from __future__ import annotations

from typing import Any

from twisted.internet import reactor as installed_reactor
from twisted.internet.defer import Deferred, DeferredQueue
from twisted.internet.ssl import CertificateOptions
from twisted.web.resource import Resource
from twisted.web.server import NOT_DONE_YET, Request, Site

reactor: Any = installed_reactor


class Script(Resource):
    """Listens on loopback; what is asked waits in `requests` for the test to answer it."""

    isLeaf = True

    def __init__(self, tls: CertificateOptions | None = None) -> None:
        """Listen, with TLS if there is something to make it of."""
        super().__init__()
        self.requests: DeferredQueue[Request] = DeferredQueue()
        site = Site(self)
        if tls is None:
            self._port = reactor.listenTCP(0, site, interface="127.0.0.1")
        else:
            self._port = reactor.listenSSL(0, site, tls, interface="127.0.0.1")
        self.scheme = "http" if tls is None else "https"

    def url(self, host: str = "localhost") -> str:
        """Return the URL by which it is asked."""
        return f"{self.scheme}://{host}:{self._port.getHost().port}"

    def render(self, request: Request) -> int:
        """Let the test answer."""
        self.requests.put(request)
        return NOT_DONE_YET

    def close(self) -> Deferred[None]:
        """Listen no more."""
        stopped: Deferred[None] = self._port.stopListening()
        return stopped


def answer(request: Request, status: int, body: bytes = b"", **headers: str) -> None:
    """Answer a request, whole."""
    begin(request, status, **headers)
    request.write(body)
    request.finish()


def begin(request: Request, status: int = 200, **headers: str) -> None:
    """Send the head of an answer; underscores in the names of headers stand for hyphens."""
    request.setResponseCode(status)
    for name, value in headers.items():
        request.setHeader(name.replace("_", "-"), value)
    request.write(b"")


def cut_off(request: Request) -> None:
    """End the connection in the middle of an answer, behind what was written of it."""
    transport: Any = request.transport
    transport.loseConnection()
