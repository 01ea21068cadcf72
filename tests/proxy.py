"""A proxy between a client and a daemon that cuts connections, or holds them, where a test says."""

from __future__ import annotations

import contextlib
import socket
import threading
from urllib.parse import urlsplit

from tests.closing import Closing

PIECE_BYTES = 16_384
PATIENCE_S = 120


class CuttingProxy(Closing):
    """Forwards connections to `upstream`; the numbers count the connections from 0.

    Attributes:
        upstream: where new connections lead; None refuses them.
        cut_after: bytes of the responses on a connection after which it is cut, by number.
        hold_from: from this number on nothing is forwarded, until it is set to None.
        accepted: how many connections there were.
        seen: the first line of each request that was forwarded, one for each connection.

    """

    def __init__(self, upstream: str) -> None:
        self.upstream: str | None = upstream
        self.cut_after: dict[int, int] = {}
        self.hold_from: int | None = None
        self.accepted = 0
        self.seen: list[str] = []
        self._changed = threading.Condition()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._open: set[socket.socket] = set()
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://localhost:{self._listener.getsockname()[1]}"

    def await_accepted(self, count: int) -> None:
        """Wait until there were so many connections."""
        with self._changed:
            assert self._changed.wait_for(lambda: self.accepted >= count, PATIENCE_S)

    def release(self, upstream: str | None) -> None:
        """Hold no more connections; cut those that are held."""
        with self._changed:
            self.hold_from, self.upstream = None, upstream
        self.cut()

    def cut(self) -> None:
        """Cut all connections."""
        for each in list(self._open):
            _cut(each)

    def close(self) -> None:
        self._listener.close()
        self.cut()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                self._open.add(client)
                with self._changed:
                    number = self.accepted
                    self.accepted += 1
                    is_held = self.hold_from is not None and number >= self.hold_from
                    self._changed.notify_all()
                if not is_held:
                    self._forward(client, number)

    def _forward(self, client: socket.socket, number: int) -> None:
        if self.upstream is None:
            _cut(client)
            return
        address = urlsplit(self.upstream)
        try:
            server = socket.create_connection((address.hostname, address.port))
        except OSError:
            _cut(client)
            return
        self._open.add(server)
        limit = self.cut_after.get(number)
        for source, sink, most in ((client, server, None), (server, client, limit)):
            threading.Thread(target=self._copy, args=(source, sink, most), daemon=True).start()

    def _copy(self, source: socket.socket, sink: socket.socket, most: int | None) -> None:
        is_first = True
        with contextlib.suppress(OSError):
            while data := source.recv(PIECE_BYTES):
                if is_first and not data.startswith(b"HTTP/"):
                    self.seen.append(data.partition(b"\r\n")[0].decode())
                is_first = False
                if most is not None:
                    data, most = data[:most], max(most - len(data), 0)
                sink.sendall(data)
                if most == 0:
                    break
        _cut(source)
        _cut(sink)


def _cut(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
    connection.close()
