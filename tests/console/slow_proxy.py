"""A proxy before a server as far away as another continent: all is late, and some pieces more."""

from __future__ import annotations

import contextlib
import queue
import random
import socket
import threading
import time
from typing import Final

from tests.closing import Closing

ROUND_TRIP_S: Final = 0.1
LOST: Final = 0.01
"""The share of pieces that are lost, and so come when TCP has sent them again."""
SENT_AGAIN_S: Final = 0.3
_PIECE_BYTES: Final = 1448


class SlowProxy(Closing):
    """Forwards connections to a port of this machine, slowly.

    Attributes:
        port: the port that it listens at.

    """

    def __init__(self, upstream: int) -> None:
        """Listen; which pieces are lost is the same each time."""
        self._upstream = upstream
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._random = random.Random(1)
        self.port = int(self._listener.getsockname()[1])
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """Accept no connections; those that are open end with their clients."""
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(("127.0.0.1", self._upstream))
                for source, target in ((client, server), (server, client)):
                    source.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    pieces: queue.SimpleQueue[tuple[float, bytes]] = queue.SimpleQueue()
                    for work in (self._receive, self._send):
                        other = source if work == self._receive else target
                        threading.Thread(target=work, args=(other, pieces), daemon=True).start()

    def _receive(
        self, source: socket.socket, pieces: queue.SimpleQueue[tuple[float, bytes]]
    ) -> None:
        """Keep each piece until it is due; one that is late makes those after it late."""
        data = b"-"
        while data:
            try:
                data = source.recv(_PIECE_BYTES)
            except OSError:
                data = b""
            late = SENT_AGAIN_S if self._random.random() < LOST else 0
            pieces.put((time.monotonic() + ROUND_TRIP_S / 2 + late, data))

    def _send(self, target: socket.socket, pieces: queue.SimpleQueue[tuple[float, bytes]]) -> None:
        data = b"-"
        with contextlib.suppress(OSError):
            while data:
                due, data = pieces.get()
                time.sleep(max(0, due - time.monotonic()))
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)
