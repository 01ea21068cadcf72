"""Requests to a database, their outcomes, and the errors that refuse them.

A `Write` arrives with everything parsed; an `Outcome` is what was made durable. A write that is not
done raises one of the errors; nothing of it was applied then, unless it is `OutcomeInDoubt`. A
`ProjectSpec` is what the configuration says of a project.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Final, Literal, NoReturn, TypeAlias

import attrs

from treedbd.limits import (
    DEFAULT_PROJECT_DATABASES,
    MAX_CURSORS,
    MAX_FUNCTIONS,
    MAX_HOOKS,
    MAX_SHOWN_BYTES,
    RULES_VERSIONS,
    WAITING_DRAFTS,
)
from treedbd.names import DEFAULT_DATABASE, CreatorName, DatabaseName, DialectName, Origin
from treedbd.store.engine import CannotCreateStore, Transaction
from treedbd.traces import Trace
from treedbd.tree.edit import Edit
from treedbd.tree.event import Commit
from treedbd.tree.hashes import ETagSet
from treedbd.tree.types import Change, Chunks, Json, Place
from treedbd.tree.value import parse

if TYPE_CHECKING:  # rules are judged without Twisted, too (`RulesTrial`)
    from treedbd.database.apply import WriteApplier


SHUTTING_DOWN: Final = "The server is shutting down."

VolatilePart: TypeAlias = Literal["", "all", "part", "dropped"]
Task: TypeAlias = "Callable[[WriteApplier, Transaction, Write], Outcome]"
"""What a write does in its transaction in place of its edit; it may be done again from the start.

If it changes rows beside the tree, the outcome `has_changed_rows`."""


class PermissionDenied(Exception):
    """The rules do not allow an operation."""

    def __init__(self, operation: str) -> None:
        """`operation` is what they do not allow: "this read"."""
        super().__init__(f"The rules do not allow {operation}.")
        self.operation = operation


class TagDenied(PermissionDenied):
    """The condition of a write would reveal to its caller what the rules deny it to read."""

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

    The message gives neither the present size nor what the write would add: a caller who may write
    but not read would learn the length of the value that it replaces.
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


class WrittenElsewhere(Unavailable):
    """The daemon accepts no writes; the text says which one does."""


class DatabaseRefused(Unavailable):
    """The file of a database cannot be served; the log says why."""

    def __init__(self) -> None:
        super().__init__("The database cannot be opened; the log of the server says why.")


class DatabaseDeleted(Unavailable):
    """A database is being deleted, or was, since the request began."""

    def __init__(self) -> None:
        super().__init__("The database is being deleted; try again later.")


class DeletionUnderWay(CannotCreateStore):
    """A database cannot be created yet, because one of its name is being deleted."""

    def __init__(self) -> None:
        super().__init__(str(DatabaseDeleted()))


class EntryRefused(Exception):
    """An entry of another daemon's change log that cannot be applied here."""

    def __init__(self, sequence: int, reason: str) -> None:
        """`reason` says why, from the verb on."""
        super().__init__(f"The entry {sequence} {reason}.")


class DatabaseExists(Exception):
    """A database that is to be created exists already."""

    def __init__(self, name: DatabaseName) -> None:
        super().__init__(f"The database {name.label} exists already.")


class TooManyInUse(Unavailable):
    """No further database can be opened, because all that are open are in use."""

    def __init__(self) -> None:
        super().__init__("Too many databases are in use; try again later.")


class NoDescriptors(Unavailable):
    """The process or the system has no file descriptor left."""

    def __init__(self) -> None:
        super().__init__("The server cannot open more files at present; try again later.")


class RulesUnreadable(Unavailable):
    """The stored rules of a project cannot be read at present, so every request is refused."""

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
    """The project does not exist, or does not have this database."""

    def __init__(self, name: DatabaseName, *, is_project_known: bool) -> None:
        super().__init__(
            f"The project {name.project} has no database {name.database}."
            if is_project_known
            else f"There is no project {name.project}."
        )
        self.name = name
        self.is_project_known = is_project_known


class UnknownCursor(LookupError):
    """The change log of a database has no reader of a name."""

    def __init__(self, cursor: str, name: DatabaseName) -> None:
        super().__init__(f"The change log of {name.label} has no cursor {cursor}.")


class TooManyCursors(Exception):
    """The change log of a database has as many readers as it may have."""

    def __init__(self) -> None:
        super().__init__(
            f"The change log has {MAX_CURSORS} readers: remove one that is not used any more."
        )


class UnknownHook(LookupError):
    """A database has no hook of a name."""

    def __init__(self, hook: str) -> None:
        super().__init__(f"There is no hook {hook}.")


class HookConflict(Exception):
    """A hook that cannot be put or removed here: it is another one, or managed elsewhere."""


class TooManyHooks(Exception):
    """A database has as many hooks as it may have, or as many functions."""

    def __init__(self, *, are_functions: bool = False) -> None:
        super().__init__(
            f"The database has {MAX_FUNCTIONS} functions: PUT [] removes all of them."
            if are_functions
            else f"The database has {MAX_HOOKS} hooks: remove one that is not used any more."
        )


class TooManyEvents(Exception):
    """A write has more events for hooks than one may have, or such with too long paths."""

    def __init__(self, limit: int, *, has_long_paths: bool = False) -> None:
        events = f"more than {limit} events (events_per_write)"
        if has_long_paths:
            events = f"events whose paths have more than {limit} characters"
        super().__init__(
            f"This write would have {events}: write less at once, or, as an admin, with "
            "disableTriggers=true, so that it has none."
        )


class ReaderReplaced(Exception):
    """Another program reads the events of a hook by now."""

    def __init__(self, hook: str) -> None:
        super().__init__(f"Another program reads the events of {hook} now.")


class PlaceLost(Exception):
    """The events of a hook do not continue where its reader was; `str()` says why."""


class TooManyDrafts(Exception):
    """So many documents of a project wait to be checked that no further one may."""

    def __init__(self) -> None:
        super().__init__(
            f"{WAITING_DRAFTS} rules documents of this project wait to be checked already: "
            "try again when one of them has been."
        )


class UnknownVersion(LookupError):
    """A version of the rules of a project that does not exist, or is not kept any more."""

    def __init__(self, number: int) -> None:
        super().__init__(
            f"There is no version {number} of the rules: the last {RULES_VERSIONS} are kept."
        )


class RulesChanged(Exception):
    """The rules in force do not have the tag that is the condition of a PUT; `tag` is theirs."""

    def __init__(self, tag: str) -> None:
        super().__init__("ETag mismatch: the rules were changed meanwhile.")
        self.tag = tag


class RulesManagedByFile(Exception):
    """The rules of a project are set by its configuration, so none can be PUT or have versions."""

    def __init__(self) -> None:
        super().__init__("The rules of this project are managed by a file of its configuration.")


@attrs.frozen
class ProjectSpec:
    """What the configuration says of a project.

    `databases` is None if any may be created, up to `databases_max`. A project that is
    `is_file_managed` has its rules from a file of the configuration, and denies everything until
    they have been read. Databases that may be created are so by writes that the rules allow, or
    by those of an admin alone. A database may hold `database_bytes` and `database_nodes`, 0 for any
    number (`store.usage` says how they are counted).
    """

    name: str
    databases: frozenset[str] | None = frozenset({DEFAULT_DATABASE})
    dialect: DialectName = "auto"
    require_index: bool = False
    is_file_managed: bool = False
    databases_max: int = DEFAULT_PROJECT_DATABASES
    create_databases: CreatorName = "rules"
    database_bytes: int = 0
    database_nodes: int = 0

    @property
    def is_created_by_admins(self) -> bool:
        """Whether only an admin's write may create a database that is not listed."""
        return self.databases is None and self.create_databases == "admin"


@attrs.frozen
class Caller:
    """The sender of a request: rules read `auth`; for an admin they are not evaluated.

    `origin` is where the request came from, None unless it is a write and writes are audited.
    """

    auth: Json
    is_admin: bool = False
    origin: Origin | None = attrs.field(default=None, eq=False)


@attrs.frozen
class Condition:
    """The write is done only if the tag of `place` is one of `etags`."""

    place: Place
    etags: ETagSet


@attrs.frozen
class HashCondition:
    """The write is done only if what is at `place` has this hash (`tree.hashes`)."""

    place: Place
    data_hash: str


@attrs.frozen
class LargeBody:
    """A body that is parsed, checked and applied piece by piece, in slices.

    `pieces` yields the JSON text from its beginning, whenever it is called, and raises what refuses
    the write; `size` are the bytes that were sent. A string has at most `max_string_bytes` bytes of
    UTF-8, all of it at most `max_nodes` members and array items.
    """

    pieces: Callable[[], Iterator[bytes]]
    size: int
    max_string_bytes: int
    max_nodes: int


@attrs.define  # not frozen: to set thirteen fields takes half the time then
class Write:
    """One write: what, under which condition, until when.

    With a `large` body the changes of `edit` have no values: they say where is written.

    `now` is the time of the request in milliseconds since 1970; `deadline` is in seconds of the
    database's clock. `wants_echo` and `wants_etag` say what the outcome is to contain. What
    `is_push` sets a child whose key is a push id, which may be replaced by a later one. `trace` is
    that of its request, None if it is not sampled. With a `task` that is done, and not `edit`. What
    `refuses_lone_priority` is refused if it sets the priority of nothing; else that has no effect.
    `contender` identifies who writes among all who do at the same time, and writes again if the
    condition is not met; None if that is not known. Without `has_events` hooks receive none of it.
    """

    edit: Edit
    now: int
    caller: Caller
    condition: Condition | HashCondition | None = None
    deadline: float | None = None
    wants_echo: bool = True
    wants_etag: bool = False
    large: LargeBody | None = None
    is_push: bool = False
    refuses_lone_priority: bool = False
    trace: Trace | None = attrs.field(default=None, eq=False, repr=False)
    task: Task | None = attrs.field(default=None, eq=False, repr=False)
    contender: int | None = attrs.field(default=None, eq=False, repr=False)
    has_events: bool = True


@attrs.define  # not frozen: it is made for each write
class Outcome:
    """What a write did: the edit with server values resolved, and what watchers receive.

    `echo` is what a PUT now reads as, or what a PATCH sent; `etag` is the tag of the new value at
    the written place; both are None if they were not wanted. A write that changed nothing (a PATCH
    without members) has no `commit`. A write with a large body has no echo; `sent` is what
    a PATCH sent, as JSON, None if that is too long, and `may_read` says whether its caller may be
    shown what it wrote as it is stored. A task that has changed rows which are not of the tree
    `has_changed_rows`. `volatile` are the changes that are not stored; with a commit they become
    visible with it, without one all of the write is volatile. `volatile_part` says which part of
    what was sent that is: all, a part, or nothing (empty).
    """

    edit: Edit
    commit: Commit | None
    echo: Json
    etag: str | None
    may_read: bool = True
    sent: Chunks | None = None
    has_changed_rows: bool = False
    volatile: Sequence[Change] = ()
    volatile_part: VolatilePart = ""
