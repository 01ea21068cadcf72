"""The references for measurements: the least that the platform can do.

`.venv/bin/python bench/reference.py klein|web|floor|fanout [FOLDER]` listens on a free port of
127.0.0.1 and prints it; with a folder, over TLS with the certificate of development mode that is
created there. The first three return that many bytes for `/<number>`: as a bare Klein route with a
path converter, as a bare `twisted.web` Resource, and as a constant reply of the HTTP server that
treedb uses, without anything else of treedb. The fourth holds every GET open and writes the body of
each PUT to all that are held.
"""

from __future__ import annotations

import datetime
import pathlib
import sys
from collections.abc import Callable
from functools import cache
from typing import Any, Final

from klein import Klein
from twisted.internet import reactor
from twisted.web.resource import Resource
from twisted.web.server import NOT_DONE_YET, Request, Site
from zope.interface import implementer

from treedbd.config.certificate import ServerContext, ensure_local_certificate
from treedbd.http1.request import IHttp1Request, IHttp1Resource
from treedbd.http1.server import Http1Factory
from treedbd.limits import Limits

HEADERS: Final = ((b"Content-Type", b"application/json; charset=utf-8"),)


@cache
def body(size: int) -> bytes:
    """Return a JSON string of `size` bytes."""
    return b'"%s"' % (b"x" * (size - 2))


class Bare(Resource):
    """Returns as many bytes as the path says."""

    isLeaf = True

    def render_GET(self, request: Request) -> bytes:
        """Return the body."""
        return body(int(request.path[1:]))


@implementer(IHttp1Resource)
class Floor(Resource):
    """Returns as many bytes as the path says, past the requests of `twisted.web`."""

    isLeaf = True

    def render(self, request: IHttp1Request) -> int:
        """Send the body."""
        request.send(200, HEADERS, body(int(request.uri[1:])))
        return NOT_DONE_YET


class FanOut(Resource):
    """Holds GET requests open, and writes the body of each PUT to all of them."""

    isLeaf = True

    def __init__(self) -> None:
        Resource.__init__(self)
        self._held: dict[Request, None] = {}

    def render_GET(self, request: Request) -> int:
        """Hold the request until its client disconnects."""
        self._held[request] = None
        request.notifyFinish().addErrback(lambda _: self._held.pop(request))
        request.setHeader(b"Content-Type", b"text/event-stream")
        request.clientproto = b"HTTP/1.0"  # so that it is not sent in chunks
        request.write(b"event: put\ndata: null\n\n")
        return NOT_DONE_YET

    def render_PUT(self, request: Request) -> bytes:
        """Write to all that are held."""
        assert request.content is not None
        data = request.content.read()
        for held in self._held:
            held.write(data)
        return b"null"


def bare_klein() -> Resource:
    """Return a Klein application with the same responses.

    Klein would send what a route returns in chunks. The length is set here, as `twisted.web` sets
    it by itself, so that all servers send the same kind of response.
    """
    app = Klein()

    @app.route("/<path:size>")
    def respond(request: Request, size: str) -> bytes:
        request.setHeader(b"Content-Length", size.encode())
        return body(int(size))

    return app.resource()


ROOTS: Final[dict[str, Callable[[], Any]]] = {
    "klein": bare_klein,
    "web": Bare,
    "floor": Floor,
    "fanout": FanOut,
}


def main(kind: str, folder: str | None = None) -> None:
    """Serve until killed."""
    net: Any = reactor
    root = ROOTS[kind]()
    factory = Http1Factory(root, Limits(), net) if kind == "floor" else Site(root)
    if folder is None:
        port = net.listenTCP(0, factory, 5000, interface="127.0.0.1")
    else:
        now = datetime.datetime.now(datetime.UTC)
        context = ServerContext(ensure_local_certificate(pathlib.Path(folder), now))
        port = net.listenSSL(0, factory, context, 5000, interface="127.0.0.1")
    print(port.getHost().port, flush=True)
    net.run()


if __name__ == "__main__":
    main(*sys.argv[1:])
