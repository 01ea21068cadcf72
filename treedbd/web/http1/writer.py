"""Writes to a connection: sends bytes, paces producers, and observes whether the client reads.

To its transport a `ConnectionWriter` is the one producer of everything that is written; the
producers that requests register are paced through it. What the buffer of the transport holds is
read, never changed; only its size is set.
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
)
from twisted.internet.tcp import Connection
from twisted.logger import Logger
from twisted.protocols.policies import ProtocolWrapper
from twisted.protocols.tls import BufferingTLSTransport
from zope.interface import implementer

from treedbd.limits import KIB
from treedbd.web.content import Buffer, ContentReader
from treedbd.web.http1.content_sender import ContentSender
from treedbd.web.http1.direct_send import (
    AT_ONCE_BYTES,
    TLS_PIECE_BYTES,
    DirectSend,
    find_direct_pair_send,
    find_direct_send,
    find_free_send,
)
from treedbd.web.http1.pipelines import Ring

_log = Logger()

_COPIED_BYTES: Final = 256 * KIB
_UNSENT_BYTES: Final = 128 * KIB
"""Bytes that may wait in the kernel to be sent. Without a limit megabytes would, and a client that
reads slowly would seem not to read while they are sent."""
_BUFFERED_BYTES: Final = 4 * KIB
"""Beyond this many bytes in its buffer a transport pauses its producer. It only has to know that
there is more to send: content that waits is shared, but its bytes in a buffer are a copy."""

_UNKNOWN_BUFFER_BYTES: Final = 64 * KIB
"""The same for a transport whose buffer cannot be set."""


@implementer(IPushProducer)
class ConnectionWriter:
    """Writes to one connection; for the transport it is the producer of all that is written.

    Attributes:
        bytes_sent: how many bytes were written so far, sent or waiting.
        is_paused: whether the transport accepts no more at present.
        is_aborted: whether the connection was dropped from this end.
        piece_bytes: how many bytes of content are best written at a time.

    """

    def __init__(self, transport: Any, ring: Ring, on_writable: Callable[[], object]) -> None:
        """Write to `transport`: TCP, TLS over it, a UNIX socket, memory.

        Replies whose clients read fast go on in the `ring`, which all connections share.
        `on_writable` is called when it accepts more again.
        """
        self.bytes_sent = 0
        self.is_paused = False
        self.is_aborted = False
        self._transport = transport
        self._send_directly = find_direct_send(transport)
        self._send_pair_directly = find_direct_pair_send(transport)
        self._descriptor = _find_descriptor(transport)
        _bound_buffers(self._descriptor)
        is_tls = isinstance(transport, BufferingTLSTransport)
        self.piece_bytes: Final = TLS_PIECE_BYTES if is_tls else AT_ONCE_BYTES
        self._handed_bytes = (
            _UNKNOWN_BUFFER_BYTES if self._descriptor is None else _BUFFERED_BYTES
        ) + 1
        self._read: int | None = None
        self._moved_at = 0.0
        self._ring = ring
        self._on_writable = on_writable
        self._producer: IPushProducer | None = None
        transport.registerProducer(self, True)

    @property
    def waiting_bytes(self) -> int:
        """How many bytes wait in the transport, as far as can be seen."""
        descriptor = self._descriptor
        if descriptor is None:
            return 0
        return len(descriptor.dataBuffer) - descriptor.offset + descriptor._tempDataLen

    def write(self, data: bytes) -> None:
        """Send `data` now or as soon as the client reads."""
        size = len(data)
        self.bytes_sent += size
        sent = self._send_directly(data)
        if sent < size:
            self._transport.write(data[sent:])

    def find_free_send(self) -> DirectSend | None:
        """Return `send` of the socket while nothing waits to be sent (`find_free_send`)."""
        return find_free_send(self._transport)

    def write_pair(self, head: bytes, body: bytes) -> None:
        """Send both in one write of the transport, without copying a large body."""
        if len(body) <= _COPIED_BYTES:
            self.write(head + body)
            return
        self.bytes_sent += len(head) + len(body)
        sent = self._send_pair_directly(head, body)
        if sent < len(head):
            self._transport.writeSequence((head[sent:], body))
        elif sent < len(head) + len(body):
            self._transport.write(body[sent - len(head) :])

    def send_content(self, head: bytes, reader: ContentReader, done: Callable[[], None]) -> None:
        """Send a head and the content after it as the client reads; then close `reader`.

        `done` is called after the last byte was taken, now or later; not if the client is gone.
        """
        sender = ContentSender(self, reader, self._ring, done)
        self.register_producer(sender, streaming=True)
        if self.is_paused:
            self.write(head)
            return
        piece = reader.peek(max(0, self.piece_bytes - len(head)))
        taken = self.write_some(b"".join((head, piece)), at_least=len(head))
        reader.skip(taken - len(head))
        if not (self.is_paused and reader.remaining):
            sender.resumeProducing()

    def write_some(self, data: Buffer, at_least: int = 0) -> int:
        """Send the front of `data`; return how many bytes were taken, sent or still waiting.

        Fewer than all of them, but never fewer than `at_least`, if the client does not keep up.
        """
        sent = self._send_directly(data)
        if sent < len(data):
            rest = bytes(data[sent : max(at_least, sent + self._handed_bytes)])
            self._transport.write(rest)
            sent += len(rest)
        self.bytes_sent += sent
        return sent

    def stalled_s(self, now: float, least_bytes: int = 1) -> float | None:
        """Return for how long the client has not read `least_bytes` of what waits for it.

        None if nothing waits. What a transport of an unknown kind buffers cannot be seen; there
        something waits while the transport is paused, and nothing of it is read.
        """
        if self._descriptor is None:
            waits, read = self.is_paused, 0
        else:
            waiting = self.waiting_bytes
            # Over TLS a little less than was read, since what waits is longer when it is encrypted.
            waits, read = waiting > 0, self.bytes_sent - waiting
        if not waits:
            self._read = None
            return None
        if self._read is None or read >= self._read + least_bytes:
            self._read = read
            self._moved_at = now
        return now - self._moved_at

    def register_producer(self, producer: IProducer, streaming: bool) -> None:
        """Pause and resume a producer as the client reads."""
        if streaming:
            self._producer = cast(IPushProducer, producer)
        else:
            self._producer = PullProducerAdapter(
                cast(IPullProducer, producer), self._ring, self.abort
            )
        if self.is_paused:
            self._producer.pauseProducing()

    def unregister_producer(self) -> None:
        """Release the producer."""
        producer, self._producer = self._producer, None
        if isinstance(producer, PullProducerAdapter):
            producer.pauseProducing()

    def pauseProducing(self) -> None:
        """Write no more for now: the client does not keep up."""
        self.is_paused = True
        if self._producer is not None:
            self._producer.pauseProducing()

    def resumeProducing(self) -> None:
        """Write again: the client has read everything."""
        self.is_paused = False
        if self._descriptor is None:
            self._read = None
        if self._producer is not None:
            self._producer.resumeProducing()
        self._on_writable()

    def stopProducing(self) -> None:
        """Stop the producer of a reply, which is no longer read."""
        producer, self._producer = self._producer, None
        if producer is not None:
            producer.stopProducing()

    def close(self) -> None:
        """Close in both directions once everything is sent."""
        self._transport.unregisterProducer()  # with one, a transport waits for it to finish
        self._transport.loseConnection()

    def close_half(self) -> None:
        """End the sending direction once everything is sent, and go on reading if possible.

        TLS has its own way: its transport reads on until the client has closed too.
        """
        self._transport.unregisterProducer()
        lose_write = getattr(self._transport, "loseWriteConnection", None)
        if lose_write is None or isinstance(self._transport, ProtocolWrapper):
            self._transport.loseConnection()
        else:
            lose_write()

    def abort(self) -> None:
        """Drop the connection and what waits."""
        self.is_aborted = True
        self._transport.abortConnection()

    def release(self) -> None:
        """Stop the producer and make no more calls: the connection is gone."""
        self.stopProducing()
        self._on_writable = _do_nothing


@implementer(IPushProducer)
class PullProducerAdapter:
    """Calls a pull producer again and again, in the ring, while the client reads."""

    def __init__(self, producer: IPullProducer, ring: Ring, abort: Callable[[], None]) -> None:
        """Pull from `producer` from the next turn on; `abort` ends a reply that failed."""
        self._producer = producer
        self._ring = ring
        self._abort = abort
        self._is_paused = False
        self._is_in_ring = False
        self.resumeProducing()

    def resumeProducing(self) -> None:
        """Pull again."""
        self._is_paused = False
        if not self._is_in_ring:
            self._is_in_ring = True
            self._ring.add(self._pull)

    def pauseProducing(self) -> None:
        """Pull no more for now."""
        self._is_paused = True

    def stopProducing(self) -> None:
        """Stop the producer, which is no longer read."""
        self.pauseProducing()
        self._producer.stopProducing()

    def _pull(self) -> None:
        self._is_in_ring = False
        if self._is_paused:
            return
        self.resumeProducing()  # before that of the producer, which may pause or unregister itself
        try:
            self._producer.resumeProducing()
        except Exception:
            _log.failure("A producer failed in the middle of a reply.")
            self.pauseProducing()
            self._abort()


def _do_nothing() -> None:
    pass


def _bound_buffers(descriptor: FileDescriptor | None) -> None:
    if descriptor is not None:
        descriptor.bufferSize = _BUFFERED_BYTES
    option = getattr(socket, "TCP_NOTSENT_LOWAT", None)
    if option is not None and isinstance(descriptor, Connection):
        with contextlib.suppress(OSError):  # a socket of another kind
            descriptor.socket.setsockopt(socket.IPPROTO_TCP, option, _UNSENT_BYTES)


def _find_descriptor(transport: object) -> FileDescriptor | None:
    """Return what `transport` finally writes to, None if its buffer cannot be read."""
    while isinstance(transport, ProtocolWrapper):
        transport = transport.transport
    if isinstance(transport, FileDescriptor) and hasattr(transport, "_tempDataLen"):
        return transport
    return None
