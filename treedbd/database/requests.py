"""Requests to a database and their outcomes.

A `Write` arrives with everything parsed; an `Outcome` is what was made durable. A write that is not
done raises one of `errors`.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Protocol, TypeAlias

import attrs

from treedbd.store.engine import Transaction
from treedbd.traces import Trace
from treedbd.tree.edit import Edit
from treedbd.tree.event import Commit
from treedbd.tree.hashes import ETagSet
from treedbd.tree.types import Chunks, Json, Place

if TYPE_CHECKING:  # rules are judged without Twisted, too (`rules_trial`)
    from twisted.internet.defer import Deferred
    from twisted.python.failure import Failure


@attrs.frozen
class Caller:
    """Who sends a request: rules read `auth`; for an admin they are not evaluated."""

    auth: Json
    is_admin: bool = False


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
    """A body that is parsed, checked and applied piece by piece, in many turns.

    `pieces` yields the JSON text from its beginning, whenever it is called, and raises what refuses
    the write; `size` are the bytes that were sent. A string has at most `max_string_bytes` bytes of
    UTF-8, all of it at most `max_nodes` members and array items.
    """

    pieces: Callable[[], Iterator[bytes]]
    size: int
    max_string_bytes: int
    max_nodes: int


class Applier(Protocol):
    """What a task is given to work with (`WriteApplier`)."""

    def judge(self, transaction: Transaction, write: Write) -> None:
        """Raise what would refuse a write by its rules or its server values; apply nothing."""
        ...

    def apply_edit(self, transaction: Transaction, write: Write) -> Outcome:
        """Do a write; raise the error that refuses it."""
        ...


Task: TypeAlias = "Callable[[Applier, Transaction, Write], Outcome]"
"""What a write does in its transaction in place of its edit; it may be done again from the start.

If it changes rows beside the tree, the outcome `has_changed_rows`."""


@attrs.frozen
class Write:
    """One write: what, under which condition, until when.

    With a `large` body the changes of `edit` have no values: they say where is written.

    `now` is the time of the request in milliseconds since 1970; `deadline` is in seconds of the
    database's clock. `wants_echo` and `wants_etag` say what the outcome is to contain. What
    `is_push` sets a child whose key is a push id, which may be replaced by a later one. `trace` is
    that of its request, None if it is not sampled. With a `task` that is done, and not `edit`. What
    `refuses_lone_priority` is refused if it sets the priority of nothing; else that has no effect.
    `contender` identifies who writes among all who do at the same time, and writes again if the
    condition is not met; None if that is not known.
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


@attrs.frozen
class Outcome:
    """What a write did: the edit with server values resolved, and what watchers receive.

    `echo` is what a PUT now reads as, or what a PATCH sent; `etag` is the tag of the new value at
    the written place; both are None if they were not wanted. A write that changed nothing (a PATCH
    without members) has no `commit`. Of a write with a large body there is no echo; `sent` is what
    a PATCH sent, as JSON, None if that is too long, and `may_read` says whether its caller may be
    shown what it wrote as it is stored. A task that has changed rows which are not of the tree
    `has_changed_rows`.
    """

    edit: Edit
    commit: Commit | None
    echo: Json
    etag: str | None
    may_read: bool = True
    sent: Chunks | None = None
    has_changed_rows: bool = False


@attrs.define(eq=False)
class QueuedWrite:
    """One write in the queue; `result` once it has been applied or refused.

    It `was_held` if it has waited for another contender (`contention`), which it does once at most.
    """

    write: Write
    deferred: Deferred[Outcome]
    result: Outcome | Failure | None = None
    was_held: bool = False

    @property
    def commit(self) -> Commit | None:
        """What it changed, once it has been applied; None if it changed nothing."""
        return self.result.commit if isinstance(self.result, Outcome) else None

    @property
    def must_be_committed(self) -> bool:
        """Whether it has changed anything, of the tree or beside it."""
        result = self.result
        return isinstance(result, Outcome) and (
            result.commit is not None or result.has_changed_rows
        )

    @property
    def is_large(self) -> bool:
        """Whether its body is applied piece by piece, which takes many turns."""
        return self.write.large is not None

    @property
    def only_removes(self) -> bool:
        """Whether it needs no room on the disk."""
        return all(change.value is None for change in self.write.edit.changes)

    def answer(self) -> None:
        """Answer with the result, unless it was answered while its outcome was in doubt."""
        if self.deferred.called:
            return
        if isinstance(self.result, Outcome):
            self.deferred.callback(self.result)
        else:
            self.deferred.errback(self.result)

    def refuse(self, error: Exception) -> None:
        """Answer with an error, unless it was answered while its outcome was in doubt."""
        if not self.deferred.called:
            self.deferred.errback(error)


def answer_all(batch: Sequence[QueuedWrite]) -> Generator[None, None, None]:
    """Answer each write of a batch, in steps."""
    for queued in batch:
        queued.answer()
        yield


def refuse_all(
    writes: Iterable[QueuedWrite], refusal: Callable[[], Exception]
) -> Generator[None, None, None]:
    """Refuse each write with an error of its own, in steps."""
    for queued in writes:
        queued.refuse(refusal())
        yield
