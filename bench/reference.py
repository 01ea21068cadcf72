"""The references that treedb is measured beside: the least that the platform can do.

`python bench/reference.py klein|web` listens on a free port of 127.0.0.1, prints the port, and
answers `/<number>` with so many bytes: as a bare Klein route with a path converter, or as a bare
`twisted.web` Resource.
"""

from __future__ import annotations

import sys
from functools import cache
from typing import Any

from klein import Klein
from twisted.internet import reactor
from twisted.web.resource import Resource
from twisted.web.server import Request, Site


@cache
def body(size: int) -> bytes:
    """Return a JSON string of `size` bytes."""
    return b'"%s"' % (b"x" * (size - 2))


class Bare(Resource):
    """Answers with as many bytes as the path says."""

    isLeaf = True

    def render_GET(self, request: Request) -> bytes:
        """Answer."""
        return body(int(request.path[1:]))


def bare_klein() -> Resource:
    """Return a Klein application that answers the same."""
    app = Klein()

    @app.route("/<path:size>")
    def answer(_request: Request, size: str) -> bytes:
        return body(int(size))

    return app.resource()


def main(kind: str) -> None:
    """Serve until killed."""
    net: Any = reactor
    site = Site(bare_klein() if kind == "klein" else Bare())
    port = net.listenTCP(0, site, interface="127.0.0.1")
    print(port.getHost().port, flush=True)
    net.run()


if __name__ == "__main__":
    main(sys.argv[1])
