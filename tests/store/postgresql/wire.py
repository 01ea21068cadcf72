"""A proxy before PostgreSQL that breaks the connection of a commit at a chosen moment."""

from __future__ import annotations

import contextlib
import enum
import socket
import threading

from tests.closing import Closing
from tests.postgresql import OWNER, PATIENCE_S

_COMMIT = b"COMMIT\0"
_PIECE_BYTES = 1 << 20


class Break(enum.Enum):
    """What happens to the next message that holds a COMMIT."""

    BEFORE = "it does not reach the server, and both sides are cut"
    WITHHELD = "all before COMMIT reaches the server, which stays connected; the client is cut"
    ANSWER = "it reaches the server, and the answer does not reach the client"
    SILENCE = "it reaches the server, and no answer comes, without any end"


class CommitBreaker(Closing):
    """Forwards connections to a port, until the next COMMIT after `arm`."""

    def __init__(self, port: int) -> None:
        self._upstream = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._lock = threading.Lock()
        self._armed: Break | None = None
        self._broken = threading.Event()
        self._withheld: tuple[socket.socket, bytes] | None = None
        self._open: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def dsn(self) -> str:
        port = self._listener.getsockname()[1]
        return f"postgresql://{OWNER}@127.0.0.1:{port}/treedb?sslmode=disable"

    def arm(self, kind: Break) -> None:
        """Break the next COMMIT."""
        self._broken.clear()
        self._armed = kind

    def await_break(self) -> None:
        """Wait until a COMMIT was broken."""
        assert self._broken.wait(PATIENCE_S)

    def send_withheld(self) -> None:
        """Let the server have the COMMIT that was withheld."""
        assert self._withheld is not None
        server, rest = self._withheld
        server.sendall(rest)

    def cut_withheld(self) -> None:
        """Cut the connection whose COMMIT was withheld."""
        assert self._withheld is not None
        _cut(self._withheld[0])

    def close(self) -> None:
        _cut(self._listener)
        for each in self._open:
            _cut(each)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(("127.0.0.1", self._upstream))
                self._open += [client, server]
                is_mute = threading.Event()
                threads = (
                    (self._forward, (client, server, is_mute)),
                    (_answer, (server, client, is_mute)),
                )
                for target, arguments in threads:
                    threading.Thread(target=target, args=arguments, daemon=True).start()

    def _forward(
        self, client: socket.socket, server: socket.socket, is_mute: threading.Event
    ) -> None:
        with contextlib.suppress(OSError):
            while data := client.recv(_PIECE_BYTES):
                with self._lock:
                    kind = self._armed if _COMMIT in data else None
                    if kind is not None:
                        self._armed = None
                if kind is None:
                    server.sendall(data)
                elif not self._break(kind, data, client, server, is_mute):
                    return
        _cut(server)

    def _break(
        self,
        kind: Break,
        data: bytes,
        client: socket.socket,
        server: socket.socket,
        is_mute: threading.Event,
    ) -> bool:
        """Break one message; return whether the connection goes on."""
        if kind is Break.BEFORE:
            _cut(server)
            _cut(client)
        elif kind is Break.WITHHELD:
            # A Parse message: its type, its length, the name of the statement, and its text.
            start = data.index(_COMMIT)
            start = data.rindex(b"P", 0, start)
            # The server reads what it has when it is asked to flush.
            server.sendall(data[:start] + b"H\0\0\0\x04")
            self._withheld = server, data[start:]
            is_mute.set()
            _cut(client)
        else:
            is_mute.set()
            server.sendall(data)
            if kind is Break.ANSWER:
                _cut(client)
        self._broken.set()
        return kind is Break.SILENCE


def _answer(server: socket.socket, client: socket.socket, is_mute: threading.Event) -> None:
    with contextlib.suppress(OSError):
        while data := server.recv(_PIECE_BYTES):
            if not is_mute.is_set():
                client.sendall(data)
    if not is_mute.is_set():
        _cut(client)


def _cut(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
    connection.close()
