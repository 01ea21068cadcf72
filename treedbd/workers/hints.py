"""Hints among workers: a datagram says that a database was written, or that its turn is free.

A hint only saves time. Who does not receive it notices all the same, a little later: so nothing is
sent twice, and what finds no room is dropped.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable, Sequence
from typing import Any, Final

from twisted.internet.abstract import FileDescriptor

from treedbd.names import DatabaseName, parse_label

_MAX_BYTES: Final = 256
_AT_ONCE: Final = 256
"""Hints that are read in one turn of the reactor; of several for one database, one is followed."""


def create_pairs(workers: int) -> list[tuple[socket.socket, socket.socket]]:
    """Return a pair of sockets for each worker: where it receives hints, and where others send."""
    return [socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM) for _ in range(workers)]


class Hints(FileDescriptor):
    """Sends hints to the other workers, and receives theirs."""

    def __init__(
        self,
        reactor: Any,
        receiver: socket.socket,
        others: Sequence[socket.socket],
        received: Callable[[DatabaseName], None],
    ) -> None:
        """Call `received` with each database that another worker has written."""
        super().__init__(reactor)
        self._receiver = receiver
        self._others = others
        self._received = received
        for each in (receiver, *others):
            each.setblocking(False)

    def fileno(self) -> int:
        """Return the descriptor that hints arrive at."""
        return self._receiver.fileno()

    def begin(self) -> None:
        """Receive hints from now on."""
        base: Any = self
        base.startReading()

    def send(self, name: DatabaseName) -> None:
        """Tell the other workers that this one has written a database."""
        content = name.label.encode()
        for each in self._others:
            with contextlib.suppress(OSError):
                each.send(content)

    def doRead(self) -> None:
        """Follow the hints that have arrived."""
        labels: dict[bytes, None] = {}
        with contextlib.suppress(OSError):
            for _ in range(_AT_ONCE):
                labels[self._receiver.recv(_MAX_BYTES)] = None
        for label in labels:
            name = parse_label(label.decode())
            if name is not None:
                self._received(name)
