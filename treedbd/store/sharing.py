"""A database that other processes write too: whose turn it is, and whether there is news.

Theory of operation. Nobody owns a database. A process that wants to write takes the turn, which one
process has at a time; whatever was committed before is visible to it then, and nothing is committed
by others until it gives the turn back. All other processes only read meanwhile: what they see is
the last durable state, and `has_news` says whether that has changed since they looked last.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from treedbd.store.engine import ReadView


class Arrivals(Protocol):
    """What others commit to a database, as it arrives.

    Attributes:
        on_moment: called with each moment that reads begin to show; it must use only what it is
            given.

    """

    on_moment: Callable[[ReadView], None]

    def has_news(self) -> bool:
        """Return whether anything was committed since the last call that returned True.

        What this process commits is news too, from the moment when others can see it.
        """
        ...


class Sharing(Arrivals, Protocol):
    """One database, as a process shares it with others.

    Attributes:
        is_held: whether this process has the turn.

    """

    is_held: bool

    def try_hold(self) -> bool:
        """Take the turn if it is free; return whether this process has it. Waits for nobody.

        Whoever asks again until it is free is not overtaken more than once by each other process.
        """
        ...

    def let_go(self) -> None:
        """Give the turn back."""
        ...

    def renew(self) -> None:
        """Hold nothing up that was done to the store since reads began to show this moment."""
        ...

    def run_held(self, work: Callable[[], None]) -> None:
        """Run `work` with the turn, waiting for it if need be; in a worker thread.

        Raises `StoreFailed` if others have had the turn all the time.
        """
        ...
