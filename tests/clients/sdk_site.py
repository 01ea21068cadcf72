"""A small web server with pages that use the SDK for browsers, and the files of the SDK.

The package `firebase` holds the files of its content delivery network. They are at `/sdk/`, where
they name each other by that address, and at `/node_modules/firebase/` as they are.
"""

from __future__ import annotations

import pathlib
import threading
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Final

from tests.clients.harness import HERE
from tests.closing import Closing

PACKAGE: Final = HERE / "node_modules" / "firebase"
NETWORK: Final = "https://www.gstatic.com/firebasejs/13.2.0/"
FILES: Final = ("firebase-app.js", "firebase-database.js")


class Site(Closing):
    """Serves pages by their names, until it is closed."""

    def __init__(self, pages: Mapping[str, str]) -> None:
        """Start the server in a thread."""
        self._served = dict(pages)
        for name in FILES:
            text = pathlib.Path(PACKAGE / name).read_text()
            self._served[f"node_modules/firebase/{name}"] = text
            self._served[f"sdk/{name}"] = text.replace(NETWORK, "/sdk/")
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._make_handler())
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()

    def url(self, page: str) -> str:
        """Return the URL of a page."""
        return f"http://localhost:{self._server.server_port}/{page}"

    def close(self) -> None:
        """Stop the server."""
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def _make_handler(self) -> type[BaseHTTPRequestHandler]:
        served = self._served

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                text = served.get(self.path.removeprefix("/"))
                body = (text or "").encode()
                is_script = self.path.endswith(".js")
                self.send_response(404 if text is None else 200)
                self.send_header("Content-Type", "text/javascript" if is_script else "text/html")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the library's name
                pass

        return Handler
