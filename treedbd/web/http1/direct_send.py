"""Sends bytes directly, without the buffers of Twisted's transports, if these are empty.

A transport sends what is written to it in the next turn of the poll loop, which costs two system
calls in addition to the one that sends; over TLS it first waits for another turn, to join small
writes, which costs a timer. A reply of this service is one write and gains nothing from either.

This reads private attributes of Twisted's transports. They are looked up once
for each connection; if one is missing, and for every transport of another kind, nothing is sent
directly and everything goes the usual way.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from OpenSSL.SSL import Error, WantReadError
from twisted.internet.tcp import Connection
from twisted.protocols.tls import BufferingTLSTransport

from treedbd.web.content import Buffer

AT_ONCE_BYTES: Final = 256 * 1024
"""More is not sent directly: a socket does not take it at once."""
_PAIRED_BYTES: Final = 4 * 1024 * 1024
TLS_PIECE_BYTES: Final = 64 * 1024
"""What is encrypted at a time: OpenSSL keeps a buffer as large as its largest output, as long as
the connection lives. What Twisted encrypts at a time is as much."""
_OUTGOING_BYTES: Final = TLS_PIECE_BYTES + 16 * 1024

_TCP_NAMES: Final = (
    "connected",
    "dataBuffer",
    "disconnecting",
    "socket",
    "_tempDataBuffer",
    "_writeDisconnecting",
)
_TLS_NAMES: Final = (
    "disconnecting",
    "_aggregator",
    "_appSendBuffer",
    "_lostTLSConnection",
    "_tlsConnection",
)

DirectSend = Callable[[Buffer], int]
"""Sends bytes and returns how many of them were sent: from none to all."""
DirectPairSend = Callable[[bytes, bytes], int]
"""Sends two pieces as if they were one."""


def find_direct_send(transport: object) -> DirectSend:
    """Return what sends directly for `transport`; if that is not possible, it sends nothing."""
    if isinstance(transport, BufferingTLSTransport):
        below: object = transport.transport
        if _has(transport, _TLS_NAMES) and isinstance(below, Connection) and _is_plain(below):
            return _TlsDirectSend(transport, below).send
    elif isinstance(transport, Connection) and _is_plain(transport):
        return _TcpDirectSend(transport).send
    return _send_nothing


def find_direct_pair_send(transport: object) -> DirectPairSend:
    """Return what sends a head and a large body directly; over TLS it sends nothing."""
    if isinstance(transport, Connection) and _is_plain(transport):
        return _TcpDirectSend(transport).send_pair
    return _send_neither


def find_free_send(transport: object) -> DirectSend | None:
    """Return what sends directly as long as nothing else is written; None if something waits.

    It checks nothing, so it must not be used any more once it has sent less than all.
    """
    if isinstance(transport, Connection) and _is_plain(transport):
        direct = _TcpDirectSend(transport)
        if direct.is_free():
            send: DirectSend = transport.socket.send
            return send
    return None


class _TcpDirectSend:
    __slots__ = ("_limit", "_tcp")

    def __init__(self, tcp: Connection, limit: int = AT_ONCE_BYTES) -> None:
        self._tcp = tcp
        self._limit = limit

    def send(self, data: Buffer) -> int:
        tcp = self._tcp
        # As `is_free`; this is called for each reply and each event of a stream.
        if (
            len(data) > self._limit
            or not tcp.connected
            or tcp.dataBuffer
            or tcp._tempDataBuffer
            or tcp.disconnecting
            or tcp._writeDisconnecting
        ):
            return 0
        try:
            return tcp.socket.send(data)
        except OSError:  # full, or not connected: the transport finds out which
            return 0

    def send_pair(self, head: bytes, body: bytes) -> int:
        if not self.is_free():
            return 0
        try:
            return self._tcp.socket.sendmsg((head, memoryview(body)[:_PAIRED_BYTES]))
        except OSError:
            return 0

    def is_free(self) -> bool:
        tcp = self._tcp
        return bool(
            tcp.connected
            and not tcp.dataBuffer
            and not tcp._tempDataBuffer
            and not tcp.disconnecting
            and not tcp._writeDisconnecting
        )


class _TlsDirectSend:
    def __init__(self, tls: BufferingTLSTransport, tcp: Connection) -> None:
        self._tls = tls
        self._tcp = tcp
        self._send_records = _TcpDirectSend(tcp, 2 * AT_ONCE_BYTES).send  # records are longer

    def send(self, data: Buffer) -> int:
        tls = self._tls
        if (
            len(data) > AT_ONCE_BYTES
            or tls._lostTLSConnection
            or tls.disconnecting
            or tls._appSendBuffer
            or tls._aggregator._buffer  # type: ignore[union-attr]  # until it is closed
        ):
            return 0
        encrypted, records = self._encrypt(data)
        if records:
            sent = self._send_records(records)
            if sent < len(records):
                self._tcp.write(records[sent:])
        return encrypted

    def _encrypt(self, data: Buffer) -> tuple[int, bytes]:
        """Encrypt the front of `data`; return how many bytes of it, and the records."""
        connection = self._tls._tlsConnection
        encrypted, records = 0, []
        while encrypted < len(data):
            try:
                # Less than all if the client requested small records.
                encrypted += connection.send(data[encrypted : encrypted + TLS_PIECE_BYTES])
            except Error:  # the transport gets the rest and handles it
                break
            while True:
                try:
                    records.append(connection.bio_read(_OUTGOING_BYTES))
                except WantReadError:
                    break
        return encrypted, b"".join(records)


def _send_neither(_: bytes, __: bytes) -> int:
    return 0


def _send_nothing(data: Buffer) -> int:
    return 0


def _is_plain(tcp: Connection) -> bool:
    return not tcp.TLS and _has(tcp, _TCP_NAMES)


def _has(transport: object, names: tuple[str, ...]) -> bool:
    return all(hasattr(transport, name) for name in names)
