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
RECORD_BYTES: Final = 16 * 1024
"""What one TLS record holds; more is not sent directly over TLS."""
_OUTGOING_BYTES: Final = 32 * 1024

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


class _TcpDirectSend:
    def __init__(self, tcp: Connection) -> None:
        self._tcp = tcp

    def send(self, data: Buffer) -> int:
        if len(data) > AT_ONCE_BYTES or not self._is_free():
            return 0
        try:
            return self._tcp.socket.send(data)
        except OSError:  # full, or not connected: the transport finds out which
            return 0

    def send_pair(self, head: bytes, body: bytes) -> int:
        if not self._is_free():
            return 0
        try:
            return self._tcp.socket.sendmsg((head, memoryview(body)[:_PAIRED_BYTES]))
        except OSError:
            return 0

    def _is_free(self) -> bool:
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
        self._send_record = _TcpDirectSend(tcp).send

    def send(self, data: Buffer) -> int:
        tls = self._tls
        if (
            len(data) > RECORD_BYTES
            or tls._lostTLSConnection
            or tls.disconnecting
            or tls._appSendBuffer
            or tls._aggregator._buffer  # type: ignore[union-attr]  # until it is closed
        ):
            return 0
        try:
            # Less than all if the client requested small records.
            sent_to_tls: int = tls._tlsConnection.send(data)
        except Error:  # the transport gets it again and handles it
            return 0
        try:
            record = tls._tlsConnection.bio_read(_OUTGOING_BYTES)
        except WantReadError:
            return sent_to_tls
        sent = self._send_record(record)
        if sent < len(record):
            self._tcp.write(record[sent:])
        return sent_to_tls


def _send_neither(_: bytes, __: bytes) -> int:
    return 0


def _send_nothing(data: Buffer) -> int:
    return 0


def _is_plain(tcp: Connection) -> bool:
    return not tcp.TLS and _has(tcp, _TCP_NAMES)


def _has(transport: object, names: tuple[str, ...]) -> bool:
    return all(hasattr(transport, name) for name in names)
