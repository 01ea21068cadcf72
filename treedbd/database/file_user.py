"""A database as its file sees it: what uses the file, and so keeps it open."""

from __future__ import annotations

from typing import Protocol

from twisted.internet.defer import Deferred

from treedbd.names import DatabaseName


class FileUser(Protocol):
    """A `Database`, for those who open and close its file and need to know nothing else of it.

    Attributes:
        is_open: whether the file is open, or does not exist yet.
        requests: how many requests use it, so that the file stays open.
        used_at: when a request used it last, in seconds of the clock.

    """

    is_open: bool
    requests: int
    used_at: float

    @property
    def name(self) -> DatabaseName:
        """Its name."""
        ...

    @property
    def is_idle(self) -> bool:
        """Whether nobody uses it."""
        ...

    @property
    def is_writing(self) -> bool:
        """Whether writes are waiting or being made durable, or the store is being recovered."""
        ...

    def make_current(self) -> Deferred[None] | None:
        """Show what other processes have committed; None if that is done, else what fires then."""
        ...

    def file_opened(self) -> None:
        """Record that the file is open, and begin what is due then; in the reactor's thread."""
        ...

    def refuse_damaged(self, problem: str) -> None:
        """Refuse all writes from now on, because the file is damaged."""
        ...
