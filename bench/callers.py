"""The connections of a load: each sends a request, receives its response, and begins again."""

from __future__ import annotations

import contextlib
import re
import socket
import ssl
import struct
import time
from collections.abc import Callable, Iterator
from functools import cache, lru_cache
from urllib.parse import urlsplit

import attrs
from OpenSSL import SSL

_STATUS = re.compile(rb"HTTP/1\.1 2[0-9]{2} ")
_WITHOUT_BODY = re.compile(rb"HTTP/1\.1 204 ")
_LENGTH = re.compile(rb"\r\ncontent-length: *([0-9]+)", re.IGNORECASE)
_END = b"\r\n\r\n"
_RESET = struct.pack("ii", 1, 0)  # closes without TIME_WAIT, so that ports do not run out
_BUFFER = bytearray(1 << 20)  # shared: nothing is kept in it
CONNECT_S = 30.0

_CHUNKED = -1
_LAST_CHUNK = b"\r\n0\r\n\r\n"


@cache
def client_context() -> ssl.SSLContext:
    """Return the TLS context of all clients; it trusts any certificate."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


@lru_cache(1000)
def _body_length(head: bytes) -> int:
    """Return the length of the body that follows a head, `_CHUNKED` if only its end shows it.

    Most heads of a load are the same.
    """
    if not _STATUS.match(head):
        raise RuntimeError(f"The response is not a success: {head.splitlines()[0]!r}.")
    length = _LENGTH.search(head)
    if length is not None:
        return int(length[1])
    if b"chunked" in head:
        return _CHUNKED
    if _WITHOUT_BODY.match(head):
        return 0
    raise RuntimeError("The response has no Content-Length, and does not come in chunks.")


@attrs.frozen
class Target:
    """The address of a server."""

    host: str
    port: int
    is_secure: bool


def make_target(base: str) -> Target:
    """Return the address of a server, from its base URL."""
    parts = urlsplit(base)
    if parts.hostname not in ("127.0.0.1", "localhost"):
        raise ValueError("Loads go to this machine only.")
    is_secure = parts.scheme == "https"
    return Target(parts.hostname, parts.port or (443 if is_secure else 80), is_secure)


def request(
    base: str, target: str, method: str = "GET", body: str | None = None, headers: str = ""
) -> bytes:
    """Return the bytes of a request: `target` follows the first slash, `headers` end with CRLF."""
    head = f"{method} /{target} HTTP/1.1\r\nHost: {base.rpartition('/')[2]}\r\n{headers}"
    if body is None:
        return f"{head}\r\n".encode()
    return f"{head}Content-Length: {len(body.encode())}\r\n\r\n{body}".encode()


class Caller:
    """A connection that sends one request after the other."""

    def __init__(
        self,
        target: Target,
        requests: Iterator[bytes],
        register: Callable[[int, Caller], None],
    ) -> None:
        """Prepare; `register` receives the descriptor of each connection that is opened."""
        self._target = target
        self._requests = requests
        self._register = register
        self._head = b""
        self._missing = 0
        self._sent_at = 0.0
        self._socket: socket.socket | None = None

    def begin(self) -> None:
        """Send the next request, on the same connection."""
        if self._socket is None:
            opened = self._connect()
            if self._target.is_secure:
                opened = client_context().wrap_socket(opened)
            self._use(opened)
        self._sent_at = time.perf_counter()
        self._send(next(self._requests))

    def proceed(self) -> float | None:
        """Receive what is there; return the seconds since the request at the end of a response."""
        try:
            received = self._receive_into(_BUFFER)
        except ssl.SSLWantReadError:  # a part of a record, or one without data
            return None
        if not received:
            raise RuntimeError("The server closed a connection.")
        if self._missing == _CHUNKED:
            self._look_for_last_chunk(bytes(_BUFFER[:received]))
        elif self._missing:
            self._missing -= received
        elif not self._receive_head(received):
            return None
        return None if self._missing else time.perf_counter() - self._sent_at

    def close(self) -> None:
        """Disconnect."""
        if self._socket is not None:
            self._socket.close()

    def _connect(self) -> socket.socket:
        opened = socket.create_connection((self._target.host, self._target.port), CONNECT_S)
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return opened

    def _use(self, opened: socket.socket) -> None:
        opened.setblocking(False)
        self._socket = opened
        self._receive_into: Callable[[bytearray], int] = opened.recv_into
        self._send: Callable[[bytes], object] = opened.sendall
        self._register(opened.fileno(), self)

    def _receive_head(self, received: int) -> bool:
        """Look for the end of the head, which is mostly in the first piece; return if it is there.

        Sets how many bytes of the body are missing.
        """
        piece: bytes | bytearray = _BUFFER
        if self._head:
            piece = self._head + _BUFFER[:received]
            received = len(piece)
        end = piece.find(_END, 0, received)
        if end < 0:
            self._head = bytes(piece[:received])
            return False
        self._head = b""
        self._missing = _body_length(bytes(piece[:end]))
        if self._missing == _CHUNKED:
            self._last = b""
            self._look_for_last_chunk(bytes(piece[end + len(_END) : received]))
        else:
            self._missing -= received - end - len(_END)
        return True

    def _look_for_last_chunk(self, piece: bytes) -> None:
        self._last = (self._last + piece)[-len(_LAST_CHUNK) :]
        if self._last == _LAST_CHUNK:
            self._missing = 0


class Pacer(Caller):
    """Sends its requests at a steady rate, each after the response to the one before."""

    answered = 0
    _is_idle = True

    def __init__(
        self,
        target: Target,
        requests: Iterator[bytes],
        register: Callable[[int, Caller], None],
        per_s: float,
    ) -> None:
        """Prepare, as any caller; the first request is sent at the first `tick`."""
        super().__init__(target, requests, register)
        self._interval_s = 1 / per_s
        self._due = time.perf_counter()

    def tick(self, now: float) -> None:
        """Send the next request if it is time."""
        if self._is_idle and now >= self._due:
            self._due += self._interval_s
            self._is_idle = False
            self.begin()

    def proceed(self) -> None:
        """Receive what is there; what is measured is not this caller."""
        if super().proceed() is not None:
            self.answered += 1
            self._is_idle = True


class Reconnector(Caller):
    """Opens a connection for each request, and resumes the TLS session of the one before.

    The time of a request includes that of its connection. The sessions are those of pyOpenSSL: the
    `ssl` module copies one each time it is used, which takes longer than a handshake with it.
    """

    _session: SSL.Session | None = None
    _secured: SSL.Connection
    _is_ready = False

    def begin(self) -> None:
        """Close the connection and open the next; its request is sent after the handshake."""
        if self._socket is not None:
            self._session = self._secured.get_session()
            with contextlib.suppress(SSL.Error):
                self._secured.shutdown()  # sends the alert, and does not wait for the server's
            self._socket.close()
        self._sent_at = time.perf_counter()
        opened = self._connect()
        self._use(opened)
        self._secured = SSL.Connection(_fast_context(), opened)
        self._secured.set_connect_state()
        if self._session is not None:
            self._secured.set_session(self._session)
        self._is_ready = False
        self._receive_into, self._send = self._receive_secured, self._secured.sendall
        self._shake_hands()

    def proceed(self) -> float | None:
        """Continue with the handshake, or as usual after it."""
        if self._is_ready:
            return super().proceed()
        self._shake_hands()
        return None

    def _receive_secured(self, buffer: bytearray) -> int:
        try:
            return self._secured.recv_into(buffer)
        except SSL.WantReadError:
            raise ssl.SSLWantReadError from None
        except SSL.ZeroReturnError:
            return 0

    def _shake_hands(self) -> None:
        try:
            self._secured.do_handshake()
        except SSL.WantReadError:
            return
        self._is_ready = True
        self._send(next(self._requests))


@cache
def _fast_context() -> SSL.Context:
    """Return the context of all `Reconnector`s; a context of pyOpenSSL trusts any certificate."""
    return SSL.Context(SSL.TLS_CLIENT_METHOD)


def resumes(target: Target, sent: bytes) -> bool:
    """Return whether a second connection resumes the TLS session of a first; both send `sent`."""
    session = None
    for _ in range(2):
        opened = socket.create_connection((target.host, target.port), CONNECT_S)
        with client_context().wrap_socket(opened, session=session) as secured:
            secured.sendall(sent)
            secured.recv(1 << 16)  # tickets come with or before the response
            session, is_resumed = secured.session, bool(secured.session_reused)
    return is_resumed
