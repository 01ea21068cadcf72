"""The ports that the parent of workers opens, and that the workers accept from."""

from __future__ import annotations

from typing import Any

from twisted.internet.protocol import Factory

from treedbd.config.listening import CannotStart, Listening
from treedbd.config.settings import Settings


class Treedb(Factory):
    """Makes no connection; Twisted logs the name of the class with each port that is opened."""

    noisy = False


class Ports:
    """The ports of clients, and those of operators."""

    def __init__(self, settings: Settings, reactor: Any) -> None:
        """Nothing is opened yet."""
        self._of_clients = Listening(settings, reactor)
        self._of_operators = Listening(settings, reactor, is_ops=True)

    def open(self) -> None:
        """Read certificates and open all; raise `CannotStart`, with none open."""
        try:
            for each in (self._of_clients, self._of_operators):
                each.open(Treedb())
        except CannotStart:
            self.close()
            raise
        for port in self._all():
            port.stopReading()  # the workers accept

    def urls(self) -> list[str]:
        """Return the URLs for clients, as this machine reaches them."""
        return self._of_clients.urls()

    def ops_urls(self) -> list[str]:
        """Return those for operators."""
        return self._of_operators.urls()

    def sockets(self) -> list[tuple[int, int]]:
        """Return the descriptor and the address family of each: first those for clients."""
        return [(port.fileno(), port.addressFamily) for port in self._all()]

    def ensure_data_directory(self) -> None:
        """Create the data directory if it is missing; raise `CannotOpenStore`."""
        self._of_clients.ensure_data_directory()

    def close(self) -> None:
        """Accept nothing any more."""
        self._of_clients.close()
        self._of_operators.close()

    def _all(self) -> list[Any]:
        both = (*self._of_clients.ports, *self._of_operators.ports)
        return [port for _, port in both]
