"""Requests of one client that have not taken effect yet, for those behind them that must wait.

The requests of a client take effect in the order in which they were sent: what is read behind a
write shows it and is answered after it, what is written behind a read is not shown by it. Writes
wait for no writes, which are queued in their order, and reads for no reads.
"""

from __future__ import annotations

from twisted.internet.defer import Deferred

from treedbd.database.requests import Unavailable


class Pending:
    """How many requests of one kind have not taken effect yet."""

    __slots__ = ("_count", "_settled")

    def __init__(self) -> None:
        self._count = 0
        self._settled: Deferred[None] | None = None

    def begin(self) -> None:
        """Count a request."""
        self._count += 1

    def end(self) -> None:
        """Count it no more: it has taken effect, or was refused."""
        self._count -= 1
        settled = self._settled
        if not self._count and settled is not None:
            self._settled = None
            settled.callback(None)

    def settled(self) -> Deferred[None] | None:
        """Return what fires when none is pending any more, None if none is; one can wait."""
        if not self._count:
            return None
        self._settled = Deferred()
        return self._settled

    def give_up(self) -> None:
        """Let what waits for them fail with `Unavailable`: the client has gone."""
        settled, self._settled = self._settled, None
        if settled is not None:
            settled.errback(Unavailable("The client has gone."))
