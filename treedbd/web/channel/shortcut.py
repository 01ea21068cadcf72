"""Sending at once, past the buffers of Twisted's transports, where nothing waits in them.

What is written to a transport waits for the next turn of the poll loop; over TLS it waits for
another turn before, in which small writes are gathered. The one costs two system calls beside the
one that sends, the other a timer. A reply of this service is one write, so neither gains anything.

A shortcut looks at attributes of Twisted's transports that are not promised to stay. They are
looked for once for each connection; where one is missing, and for every transport of another kind,
there is no shortcut and everything goes the usual way.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from OpenSSL.SSL import Error, WantReadError
from twisted.internet.tcp import Connection
from twisted.protocols.tls import BufferingTLSTransport

_AT_ONCE_BYTES: Final = 256 * 1024
_PAIRED_BYTES: Final = 4 * 1024 * 1024
_RECORD_BYTES: Final = 16 * 1024  # what one TLS record holds
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

Shortcut = Callable[[bytes], int]
"""Takes bytes to send, returns how many of them went on their way: from none to all."""
PairShortcut = Callable[[bytes, bytes], int]
"""Does so with two pieces, as if they were one."""


def find_shortcut(transport: object) -> Shortcut:
    """Return the shortcut past `transport`; one that takes nothing where there is none."""
    if isinstance(transport, BufferingTLSTransport):
        below: object = transport.transport
        if _has(transport, _TLS_NAMES) and isinstance(below, Connection) and _is_plain(below):
            return _TlsShortcut(transport, below).send
    elif isinstance(transport, Connection) and _is_plain(transport):
        return _TcpShortcut(transport).send
    return _take_nothing


def find_pair_shortcut(transport: object) -> PairShortcut:
    """Return the shortcut for a head and a large body; there is none over TLS."""
    if isinstance(transport, Connection) and _is_plain(transport):
        return _TcpShortcut(transport).send_pair
    return _take_neither


class _TcpShortcut:
    def __init__(self, tcp: Connection) -> None:
        self._tcp = tcp

    def send(self, data: bytes) -> int:
        if len(data) > _AT_ONCE_BYTES or not self._is_free():
            return 0
        try:
            return self._tcp.socket.send(data)
        except OSError:  # no room, or no connection: the transport will find out which
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


class _TlsShortcut:
    def __init__(self, tls: BufferingTLSTransport, tcp: Connection) -> None:
        self._tls = tls
        self._tcp = tcp
        self._send_record = _TcpShortcut(tcp).send

    def send(self, data: bytes) -> int:
        tls = self._tls
        if (
            len(data) > _RECORD_BYTES
            or tls._lostTLSConnection
            or tls.disconnecting
            or tls._appSendBuffer
            or tls._aggregator._buffer  # type: ignore[union-attr]  # until it is closed
        ):
            return 0
        try:
            # Less than all where the client asked for small records.
            taken: int = tls._tlsConnection.send(data)
        except Error:  # the transport will meet it again, and knows what to do
            return 0
        try:
            record = tls._tlsConnection.bio_read(_OUTGOING_BYTES)
        except WantReadError:
            return taken
        sent = self._send_record(record)
        if sent < len(record):
            self._tcp.write(record[sent:])
        return taken


def _take_neither(_: bytes, __: bytes) -> int:
    return 0


def _take_nothing(data: bytes) -> int:
    return 0


def _is_plain(tcp: Connection) -> bool:
    return not tcp.TLS and _has(tcp, _TCP_NAMES)


def _has(transport: object, names: tuple[str, ...]) -> bool:
    return all(hasattr(transport, name) for name in names)
