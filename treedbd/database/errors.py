"""Why a database refuses a request; nothing was applied, unless that is in doubt."""

from __future__ import annotations

from functools import cached_property
from typing import Final, NoReturn

from treedbd.limits import MAX_SHOWN_BYTES
from treedbd.names import DatabaseName
from treedbd.tree.types import Chunks, Json
from treedbd.tree.value import parse

SHUTTING_DOWN: Final = "The server is shutting down."


class PermissionDenied(Exception):
    """The rules do not allow an operation."""

    def __init__(self, operation: str) -> None:
        """`operation` is what they do not allow: "this read"."""
        super().__init__(f"The rules do not allow {operation}.")
        self.operation = operation


class TagDenied(PermissionDenied):
    """The condition of a write would reveal to its caller what the rules do not let it read."""

    def __init__(self) -> None:
        super().__init__("this caller to compare a tag")


class TooLarge(Exception):
    """A value or a body has too many bytes; the text says how many it may have."""


class TooManyDisconnectWrites(Exception):
    """A session has as many writes pending for its end as it may have."""

    def __init__(self, limit: int) -> None:
        super().__init__(
            f"At most {limit} places can be written when a connection ends "
            "(disconnect_writes_per_connection)."
        )
        self.limit = limit


class QuotaExceeded(Exception):
    """A write would make a database hold more than it may.

    How much there is, and how much the write would add, is not said: who may write but not read
    would learn how long the value is that it replaces.
    """

    def __init__(self, name: DatabaseName, what: str, quota: int) -> None:
        """`quota` bytes or nodes are what it may hold."""
        super().__init__(
            f"The database {name.label} may hold {quota} {what} (database_{what}), and this would "
            "be more. Remove data first, or let the operator raise the quota."
        )


class TooMuchKept(QuotaExceeded):
    """Sessions would keep more for their ends than their database may hold."""

    def __init__(self, name: DatabaseName, most: int) -> None:
        """`most` are the bytes that all of them may keep."""
        Exception.__init__(
            self,
            f"What is written in the database {name.label} when connections end may have {most} "
            "bytes in all (database_bytes), and this would be more.",
        )


class TooLargeToIndent(TooLarge):
    """A value is too large to be indented."""

    def __init__(self) -> None:
        super().__init__(
            f"The value has more than {MAX_SHOWN_BYTES} bytes, so it cannot be indented: read it "
            "without print=pretty, or a part of it."
        )


class Unavailable(Exception):
    """The database cannot write, or the server cannot read, at present; the text says why."""


class DatabaseRefused(Unavailable):
    """The file of a database cannot be served; the log says why."""

    def __init__(self) -> None:
        super().__init__("The database cannot be opened; the log of the server says why.")


class TooManyInUse(Unavailable):
    """No further database can be opened, because all that are open are in use."""

    def __init__(self) -> None:
        super().__init__("Too many databases are in use; try again later.")


class NoDescriptors(Unavailable):
    """The process or the system has no file descriptor left."""

    def __init__(self) -> None:
        super().__init__("The server cannot open more files at present; try again later.")


class RulesUnreadable(Unavailable):
    """The stored rules of a project cannot be read at present, so nobody is allowed or denied."""

    def __init__(self) -> None:
        super().__init__("The rules of the project cannot be read at present; try again later.")


class DeadlinePassed(Exception):
    """The time of the request was over."""

    def __init__(self, event: str) -> None:
        """`event` is what had not happened by then: "the data was read"."""
        super().__init__(f"The request timed out before {event}.")
        self.event = event


def time_out_opening(_: object, __: float) -> NoReturn:
    """Raise `DeadlinePassed` for a database that was not opened in time; for `addTimeout`."""
    raise DeadlinePassed("the database was opened")


class OutcomeInDoubt(Exception):
    """Whether a write was applied is not known yet; it was, or will be, whole or not at all."""

    def __init__(self) -> None:
        super().__init__(
            "It is not known yet whether this was applied: read it again, or watch it."
        )


class ConditionFailed(Exception):
    """The tag at the place is not one of the condition's.

    `printed` is the JSON of the value there now, unless it is too large: then it is not shown.
    """

    def __init__(self, printed: Chunks | None, tag: str) -> None:
        super().__init__("ETag mismatch")
        self.printed = printed
        self.tag = tag

    @property
    def is_shown(self) -> bool:
        """Whether the value is shown."""
        return self.printed is not None

    @cached_property
    def current(self) -> Json:
        """The value there now; None, too, if it is not shown."""
        return None if self.printed is None else parse(b"".join(self.printed))


class UnknownDatabase(LookupError):
    """There is no such project, or the project has no such database."""

    def __init__(self, name: DatabaseName, *, is_project_known: bool) -> None:
        super().__init__(
            f"The project {name.project} has no database {name.database}."
            if is_project_known
            else f"There is no project {name.project}."
        )
        self.name = name
        self.is_project_known = is_project_known


class RulesManagedByFile(Exception):
    """The rules of a project are set by its configuration, so they cannot be PUT."""

    def __init__(self) -> None:
        super().__init__("The rules of this project are managed by a file of its configuration.")
