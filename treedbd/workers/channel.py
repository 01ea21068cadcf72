"""The connection between the parent and a worker: AMP, with types."""

from __future__ import annotations

from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.protocol import connectionDone
from twisted.protocols.amp import AMP, BinaryBoxProtocol, Command
from twisted.python.failure import Failure


class Channel(AMP):
    """One side of the connection; subclasses answer commands."""

    def __init__(self) -> None:
        base: Any = super()
        base.__init__()

    # As AMP does, but without a line in the log for each.

    def makeConnection(self, transport: Any) -> None:
        """Begin."""
        base: Any = BinaryBoxProtocol
        base.makeConnection(self, transport)

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        """Errback what was asked and not answered."""
        base: Any = BinaryBoxProtocol
        base.connectionLost(self, reason)
        self.transport = None

    def ask(self, command: type[Command], **arguments: object) -> Deferred[Any]:
        """Send a command; fires with the response, errbacks if the other process has ended."""
        call: Any = self.callRemote
        asked: Deferred[Any] = call(command, **arguments)
        return asked
