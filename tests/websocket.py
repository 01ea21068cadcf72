"""A WebSocket client for tests, over a plain socket or TLS: a handshake, and frames one by one.

Nothing is read in the background: a test reads when it waits for something.
"""

from __future__ import annotations

import select
import socket
import ssl
import struct
import time
from email.message import Message
from email.parser import Parser
from typing import Final

from tests.closing import Closing
from tests.rest import Headers, Wire, print_request
from tests.sse import Connects
from tests.websocket_frames import (
    CLOSE,
    KEY,
    PING,
    PONG,
    TEXT,
    WireFrame,
    accept_of,
    parse_frame,
    print_close,
    print_frame,
)

PATIENCE_S: Final = 120.0
TARGET: Final = "/.ws?v=5"
RESET: Final = struct.pack("ii", 1, 0)


class SocketClosed(Exception):
    """The server closed the connection; `code` is that of its close frame, None without one."""

    def __init__(self, code: int | None, reason: str = "") -> None:
        super().__init__(f"closed: {code} {reason}")
        self.code: Final = code
        self.reason: Final = reason


class Refused(Exception):
    """The server refused the handshake."""

    def __init__(self, status: int, headers: Message, body: bytes) -> None:
        super().__init__(f"{status} {body!r}")
        self.status: Final = status
        self.headers: Final = headers
        self.body: Final = body


def upgrade_headers(headers: Headers = ()) -> dict[str, str]:
    """Return the headers of a handshake; those given replace others, `""` removes one."""
    made = {
        "Connection": "Upgrade",
        "Upgrade": "websocket",
        "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Key": KEY,
    } | dict(headers)
    return {name: value for name, value in made.items() if value}


class WebSocket(Closing):
    """One connection after its handshake; it answers pings of the server unless it must not."""

    def __init__(
        self, client: Connects, target: str = TARGET, headers: Headers = (), host: str | None = None
    ) -> None:
        """Connect; raise `Refused` if the server answers with another status than 101."""
        self.host: Final = client.host if host is None else host
        self.wire: Final[Wire] = client.connect()
        self.answers_pings = True
        self.pings = 0
        self._data = bytearray()
        self._is_over = False
        self.send(print_request("GET", target, None, upgrade_headers(headers), self.host))
        status, self.headers = self._read_head()
        if status != 101:
            raise Refused(status, self.headers, self._read_body())
        assert self.headers["Upgrade"].lower() == "websocket"
        assert self.headers["Connection"].lower() == "upgrade"
        assert self.headers["Sec-WebSocket-Accept"] == accept_of(KEY)
        assert "Content-Length" not in self.headers

    def send(self, data: bytes) -> None:
        """Send bytes as they are."""
        self.wire.send(data)

    def send_frame(self, opcode: int, payload: bytes = b"") -> None:
        """Send one frame as a client has to."""
        self.send(print_frame(opcode, payload))

    def send_text(self, text: str) -> None:
        """Send one text frame."""
        self.send_frame(TEXT, text.encode())

    def receive_frame(self, seconds: float = PATIENCE_S) -> WireFrame | None:
        """Return the next frame, None if the connection ended without one.

        Raises TimeoutError if none comes in time.
        """
        end = time.monotonic() + seconds
        while (frame := parse_frame(self._data)) is None:
            if not self._receive(end - time.monotonic()):
                assert not self._data, "The connection ended inside a frame."
                return None
        return frame

    def next_text(self, seconds: float = PATIENCE_S) -> str:
        """Return the next text frame; raise `SocketClosed` or TimeoutError if there is none."""
        end = time.monotonic() + seconds
        while True:
            frame = self.receive_frame(end - time.monotonic())
            if frame is None:
                raise SocketClosed(None)
            if frame.opcode == TEXT:
                return frame.payload.decode()
            if frame.opcode == CLOSE:
                raise SocketClosed(frame.close_code, frame.payload[2:].decode())
            if frame.opcode == PING:
                self.pings += 1
                if self.answers_pings:
                    self.send_frame(PONG, frame.payload)

    def await_close(self, seconds: float = PATIENCE_S) -> int | None:
        """Receive until the server closes; return the code of its close frame, None without."""
        end = time.monotonic() + seconds
        try:
            while True:
                self.next_text(end - time.monotonic())
        except SocketClosed as closed:
            return closed.code
        except ConnectionError:
            return None

    def await_end(self, seconds: float = PATIENCE_S) -> None:
        """Receive until the connection has ended."""
        end = time.monotonic() + seconds
        try:
            while self._receive(end - time.monotonic()):
                self._data.clear()
        except ConnectionError:
            return

    def has_data(self, seconds: float = 0.0) -> bool:
        """Return whether something arrives within a time, or has arrived."""
        if self._data:
            return True
        try:
            return self._receive(seconds)
        except TimeoutError:
            return False

    def close(self) -> None:
        """Close the connection without a close frame."""
        self.wire.close()

    def leave(self) -> None:
        """Close as a client does: with a close frame, whose answer is awaited."""
        self.send(print_close())
        assert self.await_close() == 1000
        self.close()

    def reset(self) -> None:
        """Cut the connection, as the system does for a process that is killed."""
        self.wire.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        self.wire.close()

    def _receive(self, seconds: float) -> bool:
        """Receive bytes; return False at the end of the connection."""
        if self._is_over:
            return False
        self._await_bytes(seconds)
        data = self.wire.socket.recv(262_144)
        self._data += data
        self._is_over = not data
        return bool(data)

    def _await_bytes(self, seconds: float) -> None:
        connected = self.wire.socket
        if isinstance(connected, ssl.SSLSocket) and connected.pending():
            return
        if not select.select([connected], [], [], max(seconds, 0))[0]:
            raise TimeoutError("The server sent nothing.")

    def _read_head(self) -> tuple[int, Message]:
        while b"\r\n\r\n" not in self._data:
            if not self._receive(PATIENCE_S):
                raise ConnectionError("The connection ended without a response.")
        head, _, rest = bytes(self._data).partition(b"\r\n\r\n")
        self._data = bytearray(rest)
        line, _, lines = head.decode("iso-8859-1").partition("\r\n")
        return int(line.split(" ")[1]), Parser().parsestr(lines, headersonly=True)

    def _read_body(self) -> bytes:
        length = int(self.headers["Content-Length"])
        while len(self._data) < length and self._receive(PATIENCE_S):
            pass
        self.close()
        return bytes(self._data[:length])
