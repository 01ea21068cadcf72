"""Writes that are done when the session that has set them ends, however it ends.

Theory of operation. A write that is set is judged by the rules at once, and kept in the store of
its database (`store.disconnect_rows`), durably before `set` fires. When the session ends, its
writes are done one after the other (`run`): each is an ordinary write, judged again as the identity
that has set it, which forgets its row in the same transaction. So each is done once, whenever the
process or the machine stops. What the process of a session leaves, because it was killed or could
not write, is run by another one (`run_left`), before anything of the database is served.

Setting, cancelling and running are tasks of writes (`requests.Task`). They go through the queue of
writes and belong to batches like any write, so all is done in the order of the calls,
and under the write lock where other processes write too. A task may be done several times before
one transaction of it is committed, so it begins with what is stored.

Values for volatile places are in no row: it has only the places, which are removed at the end, and
names what this process keeps in memory (`KeptValues`). So a process that does what a dead one has
left removes what is volatile.

What the store cannot do at present is tried again after a while, and is left to the next process in
the end.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Iterable, Sequence
from functools import partial
from itertools import count
from typing import Final, NamedTuple

import attrs
from twisted.internet.defer import Deferred, DeferredList
from twisted.internet.interfaces import IDelayedCall
from twisted.logger import Logger
from twisted.python.failure import Failure

from treedbd.database.apply import WriteApplier
from treedbd.database.requests import (
    Caller,
    DeadlinePassed,
    Outcome,
    OutcomeInDoubt,
    PermissionDenied,
    QuotaExceeded,
    Task,
    TooLarge,
    TooManyDisconnectWrites,
    TooManyEvents,
    TooMuchKept,
    Unavailable,
    UnknownDatabase,
    Write,
)
from treedbd.database.runtime import Runtime
from treedbd.database.volatile import VolatileFull
from treedbd.limits import DEFAULT_TIMEOUT_S, MAX_DISCONNECT_BYTES, MAX_DISCONNECT_NODES
from treedbd.names import DatabaseName
from treedbd.store.disconnect_rows import (
    DisconnectEntry,
    DisconnectRow,
    add_entry,
    cancel_entries,
    list_owners,
    list_rows,
    replace_sent,
    select_members,
)
from treedbd.store.engine import (
    DamagedRow,
    DiskFull,
    ReadView,
    StoreFailed,
    StoreUnreachable,
    Transaction,
)
from treedbd.tree.edit import Edit, has_more_nodes, make_remove
from treedbd.tree.types import ROOT, InvalidData, Json, Path, Place

_REFUSALS: Final = (
    *(PermissionDenied, InvalidData, TooLarge, TooManyEvents, QuotaExceeded, UnknownDatabase),
)
"""Why a write is not done, now or later. What only delays it is not among them."""
RETRY_S: Final = 5.0
"""Seconds until what the store could not do is tried again."""
RUN_AT_ONCE: Final = 256
"""Writes of ended sessions that wait in the queue together, so that others come in between."""
TOKEN_BYTES: Final = 8
"""What is random in the token of a row: another process must find nothing by it."""
_NOTHING: Final = make_remove(Place(ROOT))
_DELAYS: Final = (Unavailable, DeadlinePassed, OutcomeInDoubt, StoreFailed, DiskFull)
_ANONYMOUS: Final = Caller(None)
_CHANGES: Final = count()


class DisconnectWrites:
    """The writes of one database that are kept for the end of sessions.

    Attributes:
        changes: a number that is another one after each change that this process has made.

    """

    _log = Logger()

    def __init__(
        self,
        name: DatabaseName,
        write: Callable[[Write], Deferred[Outcome]],
        runtime: Runtime,
        quota: int,
    ) -> None:
        """Do writes of the database `name` by `write`; all data has `quota` bytes, 0 for any."""
        self._kept = KeptBytes(name, quota)
        self._values = KeptValues(name, runtime.volatile_bytes)
        self._entropy = runtime.entropy
        self._name = name
        self._write = write
        self._news = runtime.news
        self.changes = next(_CHANGES)
        self._owner = runtime.owner
        self._gate = runtime.gate
        self._clock = runtime.clock
        self._slices = runtime.slices
        self._now_ms = runtime.now_ms
        self._statistics = runtime.statistics
        self._retry: IDelayedCall | None = None
        self._left: dict[str | None, None] = {}  # sessions to be run again; None for dead owners
        self._sessions: set[str] = set()
        self._has_set = False
        self._is_over = False
        self._is_abandoned = False

    def set(
        self,
        session: str,
        edit: Edit,
        caller: Caller,
        now: int,
        limit: int,
        end: Callable[[], object] | None = None,
    ) -> Deferred[None]:
        """Keep a write for the end of a session; fires when it is durable.

        `end` ends the session: it is called if another process may have done its writes already.

        It replaces what the session has kept for its places, and for all below them. Of an edit
        with server values these are resolved when it is run. Errbacks with what refuses the write
        at present, as `Database.write`; with `Unavailable`; with `TooManyDisconnectWrites` beyond
        `limit` places, and `TooLarge` beyond `MAX_DISCONNECT_BYTES`.
        """

        def make_write() -> Write:
            number = next(_CHANGES)
            named = Named(f"{self._entropy(TOKEN_BYTES).hex()}-{number}", number)
            task = SetEntry(
                self._owner.id, session, limit, self._kept, values=self._values, named=named
            )
            return self._make_write(task, edit, caller, now)

        return Deferred.fromCoroutine(self._set(session, make_write, end))

    def cancel(self, session: str, path: Path) -> Deferred[None]:
        """Forget what a session has kept for a path and all below it; fires when that is durable.

        Of a PATCH the other members stay. Errbacks with `Unavailable`.
        """
        task = CancelEntries(self._owner.id, session, Place(path), self._kept, values=self._values)
        return Deferred.fromCoroutine(self._cancel(self._make_write(task)))

    def judge(self, edit: Edit, caller: Caller, now: int, limit: int) -> Deferred[None]:
        """Judge a write as `set` does, and keep nothing; errbacks as `set`."""
        write = self._make_write(JudgeEntry(limit), edit, caller, now)
        return Deferred.fromCoroutine(self._submit(write))

    def forget(self, session: str) -> Deferred[None]:
        """Forget all that a session has kept, which is not to be done; never errbacks."""
        return Deferred.fromCoroutine(self._forget(session))

    def run(self, session: str) -> Deferred[None]:
        """Do the writes of a session that has ended, in the order in which they were set.

        The session may be one of another process. Fires when all are done and forgotten, or
        refused; what cannot be done at present is tried again later. Never errbacks.
        """
        return Deferred.fromCoroutine(self._run(session))

    def run_left(self) -> Deferred[None]:
        """Do the writes that dead owners have left; otherwise as `run`."""
        return Deferred.fromCoroutine(self._run(None))

    def may_have_left(self, view: ReadView) -> bool:
        """Return whether dead owners have left writes that this process may do, as far as known."""
        if self._gate.refusal is not None:
            return False
        return any(self._owner.may_be_dead(owner) for owner in list_owners(view))

    def find_left(self, view: ReadView) -> list[DisconnectRow]:
        """Return the writes that dead owners have left."""
        dead = [owner for owner in list_owners(view) if self._owner.is_dead(owner)]
        return [row for owner in dead for row in list_rows(view, owner)]

    @property
    def is_needed(self) -> bool:
        """Whether anything is to be done by this process, so that the file should stay open."""
        return bool(self._sessions or self._left)

    @property
    def has_left(self) -> bool:
        """Whether something that could not be done is to be tried again."""
        return bool(self._left)

    def stop(self) -> None:
        """Try nothing again."""
        self._is_over = True
        if self._retry is not None and self._retry.active():
            self._retry.cancel()

    def abandon(self) -> None:
        """Forget all sessions, and do nothing of what they have kept: the database is deleted."""
        self.stop()
        self._is_abandoned = True
        self._left.clear()
        for session in list(self._sessions):
            self._end(session)

    def make_run(self, row: DisconnectRow) -> Write:
        """Return the write that does what was kept, and forgets it; raise `DamagedRow`."""
        entry = self._values.fill(row.entry())
        origin = None if entry.origin is None else entry.origin._replace(means="end")
        caller = Caller(entry.auth, entry.is_admin, origin)
        return self._make_write(RunEntry(row), entry.edit, caller)

    # Setting and cancelling.

    async def _set(
        self, session: str, make_write: Callable[[], Write], end: Callable[[], object] | None
    ) -> None:
        self._gate.check()
        self._has_set = True
        try:
            await self._note()
        except OSError as error:
            raise Unavailable(f"The data directory cannot be written: {error.strerror}.") from None
        except StoreUnreachable as error:
            raise Unavailable(str(error)) from None
        owner, write = self._owner.id, make_write()
        try:
            await self._submit(write)
        except Unavailable:  # it may be stored all the same
            self._keep(session, end)
            raise
        except Exception:
            self._values.end_set(session, write.task, is_stored=False)
            if session not in self._sessions:  # it keeps nothing, and may never be run
                self._kept.forget(session)
            raise
        self._values.end_set(session, write.task, is_stored=True)
        self._keep(session, end)
        if owner != self._owner.id and end is not None:  # it was found dead meanwhile
            end()

    async def _cancel(self, write: Write) -> None:
        await self._wait_for_set()
        await self._submit(write)

    async def _forget(self, session: str) -> None:
        if self._gate.refusal is not None:
            self._end(session)
            return
        try:
            await self.cancel(session, ROOT)
            self._end(session)
        except Exception as error:
            if self._is_abandoned:
                self._end(session)
                return
            self._log.error(
                "{label}: what a session has kept cannot be forgotten: {error}",
                label=self._name.label,
                error=error,
            )

    def _keep(self, session: str, end: Callable[[], object] | None) -> None:
        self._statistics.disconnect_sessions += session not in self._sessions
        self._sessions.add(session)
        self._owner.keep(self._name, session, end)

    def _end(self, session: str) -> None:
        self._statistics.disconnect_sessions -= session in self._sessions
        self._sessions.discard(session)
        self._kept.forget(session)
        self._values.forget(session)
        self._owner.forget(self._name, session)

    async def _wait_for_set(self) -> None:
        """Return when all that was set before is in the queue of writes."""
        if self._has_set:
            with contextlib.suppress(OSError, StoreUnreachable):  # then nothing was set
                await self._note()

    async def _note(self) -> None:
        """Return when the owner's file lists the database; callers go on in their order."""
        if (noting := self._owner.note(self._name)) is not None:
            await noting

    async def _submit(self, write: Write) -> None:
        try:
            await self._write(write)
        except (DeadlinePassed, OutcomeInDoubt, DamagedRow) as error:
            raise Unavailable(str(error)) from None
        self._note_change()

    def _note_change(self) -> None:
        """Make those who read the logs look at the database: what is kept has changed."""
        self.changes = next(_CHANGES)
        for written in self._news:
            written(self._name)

    def _make_write(
        self, task: Task, edit: Edit = _NOTHING, caller: Caller = _ANONYMOUS, now: int | None = None
    ) -> Write:
        """Return a write that does `task`; it has the usual time."""
        now = self._now_ms() if now is None else now
        deadline = self._clock.seconds() + DEFAULT_TIMEOUT_S
        return Write(edit, now, caller, deadline=deadline, wants_echo=False, task=task)

    # Running.

    async def _run(self, session: str | None) -> None:
        if self._gate.refusal is not None:  # they are done where writes are accepted
            if session is not None:
                self._end(session)
            return
        try:
            if not self._is_abandoned:
                await self._run_all(session)
        except _DELAYS as error:
            if self._is_abandoned:
                return
            self._log.error(
                "{label}: writes of a session that has ended are delayed: {reason}",
                label=self._name.label,
                reason=str(error),
            )
            self._run_again(session)
        except Exception:
            self._log.failure(
                "{label}: writes of a session that has ended have failed.", label=self._name.label
            )
            self._run_again(session)
        else:
            if session is not None:
                self._end(session)

    async def _run_all(self, session: str | None) -> None:
        """Do all writes that there are; raise what delays any of them."""
        await self._wait_for_set()
        if session is None and self._owner.must_learn:
            await self._learn()
        find = self.find_left if session is None else partial(list_session, session=session)
        listing = ListEntries(find)
        await self._write(self._make_write(listing))
        for at in range(0, len(listing.found), RUN_AT_ONCE):
            await self._run_some(listing.found[at : at + RUN_AT_ONCE])
            self._note_change()

    async def _learn(self) -> None:
        """Find out which owners of what is kept are dead; raise `Unavailable`."""
        owners: set[str] = set()

        def collect(view: ReadView) -> list[DisconnectRow]:
            owners.update(list_owners(view))
            return []

        await self._write(self._make_write(ListEntries(collect)))
        try:
            await self._owner.learn(owners)
        except StoreUnreachable as error:
            raise Unavailable(str(error)) from None

    async def _run_some(self, rows: Sequence[DisconnectRow]) -> None:
        """Do some writes, in their order; raise what delays any of them."""
        runs: list[Deferred[None]] = []
        await self._slices.run(self._begin(rows, runs))
        for is_done, result in await DeferredList(runs, consumeErrors=True):
            if not is_done and isinstance(result, Failure):
                result.raiseException()

    def _begin(
        self, rows: Iterable[DisconnectRow], runs: list[Deferred[None]]
    ) -> Generator[None, None, None]:
        """Parse and queue writes in steps, since many sessions may end in one moment."""
        for row in rows:
            runs.append(Deferred.fromCoroutine(self._run_row(row)))
            yield

    async def _run_row(self, row: DisconnectRow) -> None:
        try:
            write = self.make_run(row)
            await self._write(write)
        except _DELAYS:
            raise
        except Exception:
            self._log.failure(
                "{label}: a write of a session that has ended has failed, and is forgotten.",
                label=self._name.label,
            )
            await self._write(self._make_write(DropEntry(row)))
        else:
            self.check_run(write)

    def check_run(self, write: Write) -> None:
        """Count a write of `make_run` that was done, or log why not; raise what delays it."""
        task = write.task
        if not isinstance(task, RunEntry):
            return
        if task.is_early:
            raise Unavailable("An earlier write of the session is not done yet.")
        self._statistics.disconnect_writes += task.is_forgotten and task.refusal is None
        if task.refusal is not None:
            self._statistics.disconnect_refusals += 1
            self._log.warn(
                "{label}: a write of a session that has ended was refused ({error}), and is "
                "forgotten.",
                label=self._name.label,
                error=type(task.refusal).__name__,  # its text may have keys and values
            )

    # What is delayed.

    def _run_again(self, session: str | None) -> None:
        self._left[session] = None
        is_waiting = self._retry is not None and self._retry.active()
        if not (self._is_over or is_waiting):
            self._retry = self._clock.callLater(RETRY_S, self._run_all_again)

    def _run_all_again(self) -> None:
        left, self._left = self._left, {}
        for session in left:
            Deferred.fromCoroutine(self._run(session))


class KeptBytes:
    """The bytes that the sessions of this process keep in one database, as they are stored.

    They do not count as data before they are written, so a full database can keep them. Together
    they may have as many bytes as all data may, and always as many as one session may.
    """

    def __init__(self, name: DatabaseName, quota: int) -> None:
        """Keep `quota` bytes (`database_bytes`), any number with 0."""
        self._name = name
        self._most = quota and max(quota, MAX_DISCONNECT_BYTES)
        self._of: dict[str, int] = {}
        self._total = 0

    def check(self, session: str, entries: Sequence[DisconnectEntry]) -> None:
        """Raise `QuotaExceeded` if a session may not keep these, unless they only remove."""
        if not self._most:
            return
        others, size = self._total - self._of.get(session, 0), _stored_bytes(entries)
        brings = any(change.value is not None for each in entries for change in each.edit.changes)
        if brings and others + size > self._most:
            raise TooMuchKept(self._name, self._most)

    def count(self, session: str, entries: Sequence[DisconnectEntry]) -> None:
        """Count what a session keeps now, and nothing else."""
        if self._most:
            size = _stored_bytes(entries)
            self._total += size - self._of.get(session, 0)
            self._of[session] = size

    def forget(self, session: str) -> None:
        """Stop counting a session that has ended."""
        self._total -= self._of.pop(session, 0)


def _stored_bytes(entries: Sequence[DisconnectEntry]) -> int:
    return sum(len(each.encode()) for each in entries)


class Named(NamedTuple):
    """How what one write keeps in memory is named, and the number of that write."""

    token: str
    number: int


class _KeptValue(NamedTuple):
    session: str
    number: int
    edit: Edit
    size: int


class KeptValues:
    """The edits with values for volatile places that sessions of this process keep, in memory.

    Those of one database; together they may have as many bytes as its volatile nodes. A row names
    its edit by a token, and has what is not volatile of it.
    """

    def __init__(self, name: DatabaseName, most: int) -> None:
        """Keep `most` bytes."""
        self._name = name
        self._most = most
        self._of: dict[str, dict[str, _KeptValue]] = {}
        self._by_token: dict[str, _KeptValue] = {}
        self._total = 0

    def keep(self, session: str, named: Named, entry: DisconnectEntry) -> None:
        """Keep the edit of an entry; raise `VolatileFull`. It is kept once if this is repeated."""
        self.drop(session, named.token)
        size = entry.size
        if self._total + size > self._most:
            raise VolatileFull(self._name, self._most)
        value = _KeptValue(session, named.number, entry.edit, size)
        self._by_token[named.token] = self._of.setdefault(session, {})[named.token] = value
        self._total += size

    def fill(self, entry: DisconnectEntry) -> DisconnectEntry:
        """Return an entry with its values, if they are kept here; what was cancelled stays so."""
        kept = self._by_token.get(entry.token)
        if kept is None:
            return entry
        edit = kept.edit
        if isinstance(entry.edit.sent, dict) and edit.method == "patch":
            edit = select_members(edit, entry.edit.sent)
        return attrs.evolve(entry, edit=edit)

    def end_set(self, session: str, task: Task | None, *, is_stored: bool) -> None:
        """Keep no longer what a `SetEntry` has replaced, or what it set if that `is_stored` not."""
        if not isinstance(task, SetEntry):
            return
        if not is_stored:
            self.drop(session, task.named.token)
            return
        for token, value in list(self._of.get(session, {}).items()):
            if value.number <= task.named.number and token not in task.tokens:
                self.drop(session, token)

    def drop(self, session: str, token: str) -> None:
        """Keep what a token names no longer, if it names anything."""
        value = self._by_token.pop(token, None)
        if value is not None:
            self._total -= value.size
            of_session = self._of[session]
            del of_session[token]
            if not of_session:
                del self._of[session]

    def forget(self, session: str) -> None:
        """Keep nothing of a session any longer."""
        for token in list(self._of.get(session, ())):
            self.drop(session, token)


@attrs.define
class SetEntry:
    """Judge a write, and keep it for the end of a session, which may have `limit` places.

    Attributes:
        tokens: those of all that the session then keeps.

    """

    owner: str
    session: str
    limit: int
    kept: KeptBytes
    values: KeptValues = attrs.field(kw_only=True)
    named: Named = attrs.field(kw_only=True)
    tokens: set[str] = attrs.field(init=False, factory=set)

    def __call__(self, applier: WriteApplier, transaction: Transaction, write: Write) -> Outcome:
        """Raise what refuses the write at present, or what the session may not have."""
        nodes = applier.judge(transaction, write)
        caller, volatile = write.caller, applier.database.volatile
        entry = DisconnectEntry(caller.auth, caller.is_admin, write.edit, caller.origin)
        self.values.drop(self.session, self.named.token)  # the rules may be others by now
        sent = entry.edit.sent if volatile is None else volatile.cut_kept(entry.edit, nodes)
        if sent != entry.edit.sent:
            self.values.keep(self.session, self.named, entry)
            edit = replace_sent(entry.edit, sent)
            entry = attrs.evolve(entry, edit=edit, token=self.named.token)
        is_stored = add_entry(transaction, self.owner, self.session, entry, self._check)
        return Outcome(write.edit, None, None, None, has_changed_rows=is_stored)

    def _check(self, entries: Sequence[DisconnectEntry]) -> None:
        self.tokens = {entry.token for entry in entries}
        filled = [self.values.fill(entry) for entry in entries]
        check_bounds(self.limit, filled)
        self.kept.check(self.session, filled)
        self.kept.count(self.session, filled)


@attrs.frozen
class JudgeEntry:
    """Judge a write as `SetEntry` does for a session that has none, and keep nothing."""

    limit: int

    def __call__(self, applier: WriteApplier, transaction: Transaction, write: Write) -> Outcome:
        """Raise what refuses it."""
        applier.judge(transaction, write)
        entry = DisconnectEntry(write.caller.auth, write.caller.is_admin, write.edit)
        check_bounds(self.limit, [entry])
        return Outcome(write.edit, None, None, None)


@attrs.frozen
class CancelEntries:
    """Remove what a session has kept for a place, and for all below it."""

    owner: str
    session: str
    place: Place
    kept: KeptBytes
    values: KeptValues = attrs.field(kw_only=True)

    def __call__(self, _: WriteApplier, transaction: Transaction, write: Write) -> Outcome:
        """Do it."""
        has_changed = cancel_entries(transaction, self.owner, self.session, self.place)
        if has_changed:
            rows = list_rows(transaction, self.owner, self.session)
            self.kept.count(self.session, [self.values.fill(row.entry()) for row in rows])
        return Outcome(write.edit, None, None, None, has_changed_rows=has_changed)


@attrs.define
class ListEntries:
    """Find the rows of a session, after all that was set before in the queue of writes.

    Attributes:
        find: returns them.
        found: what it returned.

    """

    find: Callable[[ReadView], list[DisconnectRow]]
    found: list[DisconnectRow] = attrs.field(factory=list)

    def __call__(self, _: WriteApplier, transaction: Transaction, write: Write) -> Outcome:
        """Do it; nothing is changed."""
        self.found = self.find(transaction)
        return Outcome(write.edit, None, None, None)


@attrs.define
class RunEntry:
    """Do a write that was kept, and forget it: both or neither.

    Attributes:
        row: what is stored; if that has changed, it is run already or is not to be run.
        refusal: why the write was not done, though it is forgotten; None if it was done.
        is_early: whether another one of its session has to be run first; nothing is changed then.
        is_forgotten: whether this has removed the row.

    """

    row: DisconnectRow
    refusal: Exception | None = None
    is_early: bool = False
    is_forgotten: bool = False

    def __call__(self, applier: WriteApplier, transaction: Transaction, write: Write) -> Outcome:
        """Do it."""
        self.refusal = None
        self.is_early = self.is_forgotten = False
        outcome = Outcome(write.edit, None, None, None)
        if transaction.get(self.row.key) != self.row.stored:
            return outcome
        # On a full disk removals are done, and what was set before them may have to wait.
        if self.row.has_earlier(transaction):
            self.is_early = True
            return outcome
        try:
            outcome = applier.apply_edit(transaction, write)
        except _REFUSALS as error:
            self.refusal = error
        transaction.delete(self.row.key)
        self.is_forgotten = True
        return attrs.evolve(outcome, has_changed_rows=True)


@attrs.frozen
class DropEntry:
    """Forget a write that cannot be done."""

    row: DisconnectRow

    def __call__(self, _: WriteApplier, transaction: Transaction, write: Write) -> Outcome:
        """Do it."""
        is_there = transaction.get(self.row.key) == self.row.stored
        if is_there:
            transaction.delete(self.row.key)
        return Outcome(write.edit, None, None, None, has_changed_rows=is_there)


def list_session(view: ReadView, session: str) -> list[DisconnectRow]:
    """Return the entries of a session of any owner."""
    return [row for owner in list_owners(view) for row in list_rows(view, owner, session)]


def check_nodes(json: Json) -> None:
    """Raise `TooLarge` for a write with more members and items than a kept write may have."""
    if has_more_nodes(json, MAX_DISCONNECT_NODES):
        raise TooLarge(
            "What is written when a connection ends may have at most "
            f"{MAX_DISCONNECT_NODES} members and array items at a time."
        )


def check_bounds(limit: int, entries: Sequence[DisconnectEntry]) -> None:
    """Raise what refuses the places and bytes that one session keeps."""
    if sum(len(each.edit.changes) for each in entries) > limit:
        raise TooManyDisconnectWrites(limit)
    if sum(each.size for each in entries) > MAX_DISCONNECT_BYTES:
        raise TooLarge(
            f"What is written when a connection ends may have at most {MAX_DISCONNECT_BYTES} "
            "bytes in all."
        )
