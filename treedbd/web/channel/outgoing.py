"""How bytes leave a connection, how fast a producer of them may go, and whether the peer reads.

To its transport an `Outlet` is the one producer of everything that is written; the producers that
requests register are paced through it. The buffer of the transport is looked at, never changed.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable
from typing import Any, Final, cast

from twisted.internet.abstract import FileDescriptor
from twisted.internet.interfaces import (
    IProducer,
    IPullProducer,
    IPushProducer,
    IReactorTime,
)
from twisted.internet.tcp import Connection
from twisted.protocols.policies import ProtocolWrapper
from zope.interface import implementer

from treedbd.web.channel.pulling import PulledProducer
from treedbd.web.channel.shortcut import find_pair_shortcut, find_shortcut

_COPIED_BYTES: Final = 256 * 1024
_UNSENT_BYTES: Final = 128 * 1024
"""So many bytes may wait in the kernel to be sent. Without a bound megabytes do, and a peer that
reads slowly looks for as long as one that does not read at all."""


@implementer(IPushProducer)
class Outlet:
    """The way out of one connection; to the transport it is the producer of all that is written.

    Attributes:
        bytes_sent: how many bytes were written so far, sent or waiting.
        choked: set while the transport asks for no more.

    """

    def __init__(self, transport: Any, clock: IReactorTime, on_room: Callable[[], object]) -> None:
        """Write to `transport`: TCP, TLS over it, a UNIX socket, memory.

        `on_room` is called when it wants more after it did not.
        """
        self.bytes_sent = 0
        self.choked = False
        self._transport = transport
        self._send_at_once = find_shortcut(transport)
        self._send_pair_at_once = find_pair_shortcut(transport)
        self._descriptor = _find_descriptor(transport)
        _bound_unsent(self._descriptor)
        self._front: tuple[object, int] | None = None
        self._moved_at = 0.0
        self._clock = clock
        self._on_room = on_room
        self._producer: IPushProducer | None = None
        transport.registerProducer(self, True)

    def write(self, data: bytes) -> None:
        """Send `data` now or as soon as the peer takes it."""
        size = len(data)
        self.bytes_sent += size
        sent = self._send_at_once(data)
        if sent < size:
            self._transport.write(data[sent:])

    def write_pair(self, head: bytes, body: bytes) -> None:
        """Send both in one write of the transport, without making a copy of a large body."""
        if len(body) <= _COPIED_BYTES:
            self.write(head + body)
            return
        self.bytes_sent += len(head) + len(body)
        sent = self._send_pair_at_once(head, body)
        if sent < len(head):
            self._transport.writeSequence((head[sent:], body))
        elif sent < len(head) + len(body):
            self._transport.write(body[sent - len(head) :])

    def stalled_s(self, now: float) -> float | None:
        """Return for how long the peer took nothing of what waits for it; None if nothing waits.

        A transport sends from the front of its buffer and appends elsewhere, so the front tells
        whether it could send. What a transport of unknown kind buffers cannot be seen; there
        something waits while the transport is choked.
        """
        descriptor = self._descriptor
        front: tuple[object, int]
        if descriptor is None:
            waits, front = self.choked, (None, 0)
        else:
            waits = bool(descriptor.dataBuffer or descriptor._tempDataLen)
            front = (descriptor.dataBuffer, descriptor.offset)
        if not waits:
            self._front = None
            return None
        if self._front is None or self._front[0] is not front[0] or self._front[1] != front[1]:
            self._front = front
            self._moved_at = now
        return now - self._moved_at

    def register_producer(self, producer: IProducer, streaming: bool) -> None:
        """Let the peer's reading pace a producer."""
        if streaming:
            self._producer = cast(IPushProducer, producer)
        else:
            self._producer = PulledProducer(cast(IPullProducer, producer), self._clock, self.abort)
        if self.choked:
            self._producer.pauseProducing()

    def unregister_producer(self) -> None:
        """Forget the producer."""
        producer, self._producer = self._producer, None
        if isinstance(producer, PulledProducer):
            producer.pauseProducing()

    def pauseProducing(self) -> None:
        """Write no more for now: the peer does not keep up."""
        self.choked = True
        if self._producer is not None:
            self._producer.pauseProducing()

    def resumeProducing(self) -> None:
        """Write again: the peer has taken everything."""
        self.choked = False
        self._front = None
        if self._producer is not None:
            self._producer.resumeProducing()
        self._on_room()

    def stopProducing(self) -> None:
        """Stop whoever is producing a reply: nobody reads it any more."""
        producer, self._producer = self._producer, None
        if producer is not None:
            producer.stopProducing()

    def close(self) -> None:
        """Close in both directions once everything is sent."""
        self._transport.unregisterProducer()  # with one, a transport waits for it to finish
        self._transport.loseConnection()

    def close_half(self) -> None:
        """End the sending direction once everything is sent, and go on reading if possible.

        TLS has its own way to say so: its transport reads on until the peer has closed too.
        """
        self._transport.unregisterProducer()
        lose_write = getattr(self._transport, "loseWriteConnection", None)
        if lose_write is None or isinstance(self._transport, ProtocolWrapper):
            self._transport.loseConnection()
        else:
            lose_write()

    def abort(self) -> None:
        """Drop the connection and whatever waits."""
        self._transport.abortConnection()

    def release(self) -> None:
        """Let go of everyone who was to be told of something: the connection is gone."""
        self.stopProducing()
        self._on_room = _tell_nobody


def _tell_nobody() -> None:
    pass


def _bound_unsent(descriptor: FileDescriptor | None) -> None:
    option = getattr(socket, "TCP_NOTSENT_LOWAT", None)
    if option is not None and isinstance(descriptor, Connection):
        with contextlib.suppress(OSError):  # a socket of another kind
            descriptor.socket.setsockopt(socket.IPPROTO_TCP, option, _UNSENT_BYTES)


def _find_descriptor(transport: object) -> FileDescriptor | None:
    """Return what `transport` finally writes to, None if that cannot be looked into."""
    while isinstance(transport, ProtocolWrapper):
        transport = transport.transport
    if isinstance(transport, FileDescriptor) and hasattr(transport, "_tempDataLen"):
        return transport
    return None
