"""A database as its file sees it: what uses the file, and so keeps it open."""

from __future__ import annotations

from typing import Protocol

from twisted.internet.defer import Deferred

from treedbd.names import DatabaseName
from treedbd.store.disconnect_rows import DisconnectRow
from treedbd.store.engine import ReadView


class LeftWrites(Protocol):
    """`DisconnectWrites`, for those who see to what the sessions of dead processes have left."""

    @property
    def has_left(self) -> bool:
        """Whether something that could not be done is to be tried again."""
        ...

    def may_have_left(self, view: ReadView) -> bool:
        """Return whether dead owners have left writes, as far as is known without asking."""
        ...

    def find_left(self, view: ReadView) -> list[DisconnectRow]:
        """Return the writes that dead owners have left."""
        ...

    def run_left(self) -> Deferred[None]:
        """Do them; never errbacks."""
        ...


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
    def disconnect_writes(self) -> LeftWrites:
        """Its writes that are kept for the end of sessions."""
        ...

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
