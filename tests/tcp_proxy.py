"""A proxy before a server that can lose all packets, or only some answers, where a test says."""

from __future__ import annotations

import contextlib
import socket
import threading

from tests.closing import Closing

_PIECE_BYTES = 1 << 18
_PATIENCE_S = 60.0


class TcpProxy(Closing):
    """Forwards connections to a port of this machine.

    Attributes:
        port: the port that it listens at.
        lost_bytes: how much was kept from the clients by `mute` and `lose_answer`.

    """

    def __init__(self, upstream: int) -> None:
        self._upstream = upstream
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self.lost_bytes = 0
        self._passes = threading.Event()
        self._passes.set()
        self._lock = threading.Lock()
        self._pairs: set[_Pair] = set()
        self._doomed: tuple[bytes, bytes] | None = None
        self._has_lost = threading.Event()
        self._is_over = False
        threading.Thread(target=self._accept, daemon=True).start()

    def lead_to(self, upstream: int) -> None:
        """Forward connections that are opened from now on to another port."""
        self._upstream = upstream

    def block(self) -> None:
        """Let nothing pass, as if all packets were dropped: connections stay open, without ends."""
        self._passes.clear()

    def unblock(self) -> None:
        """Let everything pass again, and first what was held, as TCP sends it again."""
        self._passes.set()

    def cut(self) -> None:
        """End all connections; new ones are possible."""
        with self._lock:
            pairs, self._pairs = self._pairs, set()
        for each in pairs:
            each.cut()

    def lose_answer(self, question: bytes, answer: bytes) -> None:
        """Keep the next `answer` to a message with `question` from the client, and all after it."""
        self._has_lost.clear()
        self._doomed = question, answer

    def await_lost(self) -> None:
        """Wait until such an answer was lost."""
        assert self._has_lost.wait(_PATIENCE_S)

    def mute(self, pattern: bytes) -> int:
        """Let no answers pass on the connections that have sent `pattern`; return their number."""
        with self._lock:
            chosen = [each for each in self._pairs if pattern in each.first_bytes]
        for each in chosen:
            each.is_mute.set()
        return len(chosen)

    def close(self) -> None:
        """End all connections and listen no more."""
        self._is_over = True
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()
        self.unblock()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        self._passes.wait()
        try:
            server = socket.create_connection(("127.0.0.1", self._upstream))
        except OSError:
            client.close()
            return
        pair = _Pair(client, server)
        with self._lock:
            self._pairs.add(pair)
        threading.Thread(target=self._answer, args=(pair,), daemon=True).start()
        self._ask(pair)

    def _ask(self, pair: _Pair) -> None:
        with contextlib.suppress(OSError):
            while data := self._receive(pair.client):
                if len(pair.first_bytes) < _PIECE_BYTES:
                    pair.first_bytes += data
                pair.question = data
                pair.server.sendall(data)
        self._end(pair)

    def _answer(self, pair: _Pair) -> None:
        with contextlib.suppress(OSError):
            while data := self._receive(pair.server):
                if self._is_doomed(pair, data):
                    self._doomed = None
                    pair.is_mute.set()
                    self._has_lost.set()
                if pair.is_mute.is_set():
                    self.lost_bytes += len(data)
                else:
                    pair.client.sendall(data)
        self._end(pair)

    def _is_doomed(self, pair: _Pair, data: bytes) -> bool:
        doomed = self._doomed
        return doomed is not None and doomed[0] in pair.question and doomed[1] in data

    def _receive(self, source: socket.socket) -> bytes:
        """Return what came, or nothing at the end; neither passes while the proxy is blocked."""
        try:
            return source.recv(_PIECE_BYTES)
        finally:
            self._passes.wait()

    def _end(self, pair: _Pair) -> None:
        with self._lock:
            self._pairs.discard(pair)
        pair.cut()


class _Pair:
    """A connection of a client, and the one that it is forwarded to."""

    def __init__(self, client: socket.socket, server: socket.socket) -> None:
        self.client = client
        self.server = server
        self.is_mute = threading.Event()
        self.first_bytes = b""
        self.question = b""
        for each in (client, server):
            each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def cut(self) -> None:
        for each in (self.client, self.server):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()
