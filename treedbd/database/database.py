"""One database: read the last durable state, write through the group commit, watch, close.

`Database` joins the parts. A read runs on the last durable state. A write waits in the queue of
`group_commit`, which decides when it is applied (`apply`) and answers it when it is durable. After
each commit, of this process or another, `Database` first brings up to date what is kept in memory,
then watchers are notified (`watchers`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, NoReturn, TypeVar

import attrs
from twisted.internet.defer import Deferred, fail, succeed

from treedbd.counting import HeldAccount
from treedbd.database.active_rules import ActiveRules
from treedbd.database.answers import OUTLINE, Answers
from treedbd.database.apply import Indexes, WriteApplier, find_tag, keep_tag, make_quotas
from treedbd.database.disconnect import DisconnectWrites
from treedbd.database.event_capture import join_hooks
from treedbd.database.expiry import ExpiryIndex
from treedbd.database.group_commit import GroupCommit, MaintenanceList
from treedbd.database.requests import (
    Caller,
    DatabaseDeleted,
    Outcome,
    PermissionDenied,
    ProjectSpec,
    Unavailable,
    UnknownDatabase,
    Write,
    WrittenElsewhere,
)
from treedbd.database.resume import FlushMoments, Moments, Resumptions
from treedbd.database.rights import Authorisation, ReadRequest, trace_rules
from treedbd.database.runtime import Runtime
from treedbd.database.slices import Steps
from treedbd.database.volatile import VolatileData
from treedbd.database.watched_queries import QueryStream, QuerySubscription
from treedbd.database.watchers import (
    NodeSubscription,
    ReadGrant,
    ReadGrants,
    Subscription,
    Watching,
)
from treedbd.database.write_lock import MakeWriteLock, News
from treedbd.names import DatabaseName
from treedbd.rules.context import KeptReads
from treedbd.rules.evaluate import Verdict
from treedbd.rules.expiry import show_expiry
from treedbd.rules.ruleset import DENY
from treedbd.store import changelog
from treedbd.store.engine import (
    Engine,
    EngineSnapshot,
    PresentView,
    StoreDamaged,
    Transaction,
)
from treedbd.store.hooks import Hook, read_hooks
from treedbd.store.nodes import HeldNodes, Nodes, PresentNodes
from treedbd.store.on_demand import WrappedEngine
from treedbd.store.outline import Outline
from treedbd.store.select import SortedChildren, sort_children
from treedbd.tree.edit import Edit, make_remove, resolve
from treedbd.tree.event import Commit
from treedbd.tree.path import PushIds
from treedbd.tree.query import Query
from treedbd.tree.types import ROOT, Json, Path, Place

T = TypeVar("T")

_QUERIED_ONCE: Final = SortedChildren(None)
"""Kept in place of the children of a collection that was queried once since the last write."""


def _change_nothing(_: WriteApplier, __: Transaction, write: Write) -> Outcome:
    """Commit a batch without changes, which creates the store if there is none."""
    return Outcome(write.edit, None, None, None, has_changed_rows=True)


class Database:
    """A tree of JSON, and all that read, write and watch it; belongs to the reactor's thread.

    Attributes:
        name: its name.
        project: the project it belongs to.
        rules: the rules in force of that project.
        volatile: what it keeps in memory alone, None if the rules have never called that for.
        push_ids: makes the keys of its pushed children.
        rights: what callers may do in it.
        kept_reads: what its rules have read.
        answers: what reads of its present state have rendered.
        indexes: the indexes of its collections.
        expiry: when its nodes go, if rules say so.
        quotas: what it may hold; None if it may hold anything.
        disconnect_writes: its writes that are kept for the end of sessions.
        watching: who is notified of what is written, and when.
        shared_lock: its write lock, None where no other process writes.
        resume: lets a client continue after a position, when it is known what it missed.
        is_open: whether it can be used without opening its file first.
        requests: how many requests are using it, so that its file stays open.
        used_at: when a request used it last, in seconds of the clock.
        is_absent: whether it does not exist (`AbsentDatabase`).

    """

    is_absent = False
    is_open = True
    requests = 0

    def __init__(
        self,
        name: DatabaseName,
        engine: Engine,
        project: ProjectSpec,
        rules: ActiveRules,
        runtime: Runtime,
        retain_events: int,
        make_lock: MakeWriteLock | None = None,
    ) -> None:
        """Serve `engine`, which is its own; other processes write too if there is `make_lock`."""
        self.name, self.project, self.rules = name, project, rules
        self.push_ids: Final = PushIds(runtime.entropy, lambda: engine.read(changelog.push_time))
        self.used_at = runtime.clock.seconds()
        self._engine, self._runtime = engine, runtime
        self._gate: Final = runtime.gate
        self._nodes: PresentNodes | None = None  # those of the last read
        self.kept_reads: Final = KeptReads(runtime.read_pool)
        self.answers: Final = Answers(runtime.answer_pool, runtime.slices)
        self.rights: Final = self._make_rights(runtime)
        self._grants = ReadGrants(self)
        self.volatile: VolatileData | None = None
        self._volatile_rules = DENY
        maintenance, self._moments = MaintenanceList(), Moments(engine, self._hold_shown)
        self.quotas: Final = make_quotas(name, project, maintenance)
        self.shared_lock: Final = None if make_lock is None else make_lock(engine, self)
        self.indexes: Final = Indexes(name, engine, rules, maintenance, runtime=runtime)
        self.expiry: Final = ExpiryIndex(name, engine, rules, maintenance, runtime=runtime)
        applier = WriteApplier(self, runtime, retain_events)
        self._group_commit = self._make_group_commit(applier, maintenance)
        self.watching: Final = self._make_watching(runtime)
        self._watchers = self.watching.watchers
        self._resumptions = self._make_resumptions(retain_events)
        self.resume: Final = self._resumptions.add
        self.disconnect_writes: Final = DisconnectWrites(
            name, self.write, runtime, project.database_bytes
        )
        self._apply_volatile_rules()

    def _make_group_commit(
        self, applier: WriteApplier, maintenance: MaintenanceList
    ) -> GroupCommit:
        return GroupCommit(
            database=self,
            engine=self._engine,
            applier=applier,
            runtime=self._runtime,
            lock=self.shared_lock,
            maintenance=maintenance,
        )

    def _make_resumptions(self, retained: int) -> Resumptions:
        return Resumptions(
            engine=self._engine,
            nodes_of=self._nodes_of,
            watchers=self._watchers,
            runtime=self._runtime,
            retained=retained,
        )

    def _make_watching(self, runtime: Runtime) -> Watching:
        return Watching(
            engine=self._engine,
            moments=self._moments,
            nodes_of=self._nodes_of,
            shown_nodes_of=self._shown_nodes_of,
            grants=self._grants,
            rounds=self._group_commit.rounds,
            slices=runtime.slices,
            most_fields=runtime.watched_fields,
        )

    def _make_rights(self, runtime: Runtime) -> Authorisation:
        rules, measure = self.rules, runtime.measure_rules
        return Authorisation(
            rules=rules,
            kept_reads=self.kept_reads,
            exceeded=rules.report_exceeded,
            seconds=runtime.clock.seconds,
            admins_own=self.name if self.project.is_created_by_admins else None,
            slow_rules=None if measure is None else measure(self.name),
            observe=runtime.statistics.observe_rules,
        )

    @property
    def write_problem(self) -> str | None:
        """Why writes are refused at present; None if they are accepted."""
        return self._group_commit.write_problem

    @property
    def has_expiry(self) -> bool:
        """Whether writes have to be noted in the index of times: nodes go, or did."""
        return self.rules.current.expiry is not None or self.expiry.is_used

    @property
    def is_writing(self) -> bool:
        """Whether writes are waiting or being made durable, or the store is being recovered."""
        return self._group_commit.is_busy

    @property
    def is_idle(self) -> bool:
        """Whether nothing uses it, and it holds nothing that is in memory alone."""
        return self.is_unused and not self.volatile

    @property
    def is_unused(self) -> bool:
        """Whether nothing uses it: no request, watcher or read grant, and no write under way."""
        is_used = self.requests or self._watchers.count or self._grants.held or self.is_writing
        is_used = is_used or self.disconnect_writes.is_needed
        is_used = is_used or (self.shared_lock is not None and self.shared_lock.is_in_use)
        # A file that is elsewhere stays open: it holds what was acknowledged.
        return not is_used and self._engine.find_misplaced() is None

    def make_current(self) -> Deferred[None] | None:
        """Show what others have committed; None if that is done, else what fires when it is.

        Raises, or errbacks with, `Unavailable` or an error of the store.
        """
        return None if self.shared_lock is None else self.shared_lock.make_current()

    def is_current(self) -> bool:
        """Advance to what others have committed, unless a commit is under way; return success."""
        if self.volatile is not None and self.volatile.is_waiting:
            return False
        return self.shared_lock is None or self.shared_lock.is_current()

    def wait_for_volatile(self) -> Deferred[None] | None:
        """Return what fires when the volatile nodes of other processes are here; None if they are.

        It waits for a bounded time, and fires then, too.
        """
        if self._volatile_rules is not self.rules.current:
            self._apply_volatile_rules()
        order = None if self.volatile is None else self.volatile.order
        return None if order is None else order.wait()

    def when_current(self, call: Callable[[], None]) -> bool:
        """Call `call` as soon as reads may be current: `is_current` may be True during the call.

        Returns False if that moment cannot be known; `call` is not called then.
        """
        return self.shared_lock is not None and self.shared_lock.when_current(call)

    def hinted(self) -> None:
        """Look whether another process has committed, or lets this one write."""
        if self.shared_lock is not None and self.is_open:
            self.shared_lock.hinted()

    def refuse_damaged(self, problem: str) -> None:
        """Refuse all writes from now on, because the file is damaged; `problem` says how.

        What was kept of it is read again, if it can be read.
        """
        self.answers.clear()
        self.kept_reads.clear()
        self._group_commit.refuse_damaged(problem)

    def read(self, work: Callable[[PresentNodes], T]) -> T:
        """Run `work` on the last durable state and return its result."""

        def read_nodes(view: PresentView) -> T:
            if self.volatile is not None:
                return work(self.volatile.nodes_of(view))
            nodes = self._nodes
            if nodes is None or nodes.view is not view:  # an engine may keep its view
                nodes = self._nodes = PresentNodes(view)
            return work(nodes)

        return self._engine.read(read_nodes)

    def read_stored(self, work: Callable[[Nodes], T]) -> T:
        """Run `work` on the last durable state without its volatile nodes; return its result."""
        return self._engine.read(lambda view: work(PresentNodes(view)))

    def _nodes_of(self, view: PresentView) -> PresentNodes:
        """Return the nodes of the present moment."""
        return PresentNodes(view) if self.volatile is None else self.volatile.nodes_of(view)

    def _shown_nodes_of(self, view: PresentView) -> PresentNodes:
        """Return the nodes of the moment that queries are watched from."""
        return PresentNodes(view) if self.volatile is None else self.volatile.shown_nodes_of(view)

    def _hold_shown(self, snapshot: EngineSnapshot) -> HeldNodes:
        """Return the nodes of a moment that is held, as watchers know them."""
        return HeldNodes(snapshot) if self.volatile is None else self.volatile.hold_shown(snapshot)

    def check_read(self, read: ReadRequest, nodes: Nodes | None = None) -> bool:
        """Raise `PermissionDenied` unless the rules allow a read of the state that `nodes` show.

        Without `nodes` that is the last durable state, of which only what the rules need is read.
        Returns whether these rules allow it in every state, and at any time.
        """
        if read.trace is not None:
            untraced = attrs.evolve(read, trace=None)
            trace_rules(read.trace, lambda: self.check_read(untraced, nodes))
            return False
        path, caller, query = read.path, read.caller, read.query
        rules = self.rules.current
        always: bool | None = caller.is_admin or rules.allows_all_reads
        always = may_read = always or rules.find_read(path, caller.auth, query)
        if may_read is None:
            evaluate = partial(self.rights.evaluate_read, path, caller, read.now(), query=query)
            may_read = self.read(evaluate) if nodes is None else evaluate(nodes)
        if not may_read:
            raise PermissionDenied("this read")
        return bool(always)

    def sort_children(
        self, nodes: Nodes, path: Path, query: Query, *, is_export: bool
    ) -> SortedChildren | None:
        """Return the children of a small collection in the order of a query, printed.

        They are sorted by the second query between two writes, and kept until a write changes one
        of them. None before that, if the collection is not small, if nothing is kept, or if `nodes`
        may show another state than the present one.
        """
        answers = self.answers
        if query.where is not None or not (answers.keeps and isinstance(nodes, PresentNodes)):
            return None
        form = f"sorted {is_export} {query.order.kind} {'/'.join(query.order.path)}"
        children: SortedChildren | None = answers.find_content(path, form)
        if children is None:  # to sort them all takes longer than to answer one query
            children = _QUERIED_ONCE
            answers.keep_content(path, form, children, 0)
        elif children is _QUERIED_ONCE:
            children = sort_children(nodes, path, query.order, is_export=is_export)
            answers.keep_content(path, form, children, children.size)
        return children if children.is_small else None

    def find_outline(self, path: Path) -> Outline | None:
        """Return the outline of a path that is kept, None if none is."""
        outline: Outline | None = self.answers.find_content(path, OUTLINE)
        return outline

    def keep_outline(self, path: Path, outline: Outline) -> None:
        """Keep an outline, which from now on notes what is written below its path.

        It must have noted, or counted, all that was written until now.
        """
        self.answers.keep_content(path, OUTLINE, outline, outline.size)

    def known_tag(self, place: Place) -> str | None:
        """Return the entity tag of what is at a place now, if it is kept."""
        return None if place.is_priority else find_tag(self.kept_reads, place.path)

    def keep_tag(self, place: Place, tag: str) -> None:
        """Keep the entity tag of what is at a place now until that changes."""
        if not place.is_priority:
            keep_tag(self.kept_reads, place.path, tag)

    def check_exists(self) -> None:
        """Raise `UnknownDatabase` for an absent database; for callers who have a right to know."""

    def check_may_write(self, path: Path, caller: Caller) -> None:
        """Raise `PermissionDenied` if no rule can let `caller` write anything at or below `path`.

        Nothing is read for it, and what is written need not be known.
        """
        self.rights.check_may_write(path, caller)

    def hooks(self) -> tuple[Hook, ...]:
        """Return the hooks of the last durable state; raise what `read` does."""
        stored = self.read(lambda nodes: read_hooks(nodes.rows.stored))
        return join_hooks(self._runtime.hooks_of(self.name), stored)

    def hold(self) -> HeldNodes:
        """Hold the last durable state open for a reader that works in slices."""
        snapshot = self._engine.snapshot()
        return HeldNodes(snapshot) if self.volatile is None else self.volatile.hold(snapshot)

    def hold_stored(self) -> HeldNodes:
        """Hold the same state open without its volatile nodes."""
        return HeldNodes(self._engine.snapshot())

    def hold_first(self, query: Query | None) -> HeldNodes:
        """Hold what a watcher of a place, or of a query of it, begins with."""
        return self.hold() if query is None else self._hold_shown(self._engine.snapshot())

    def write(self, write: Write) -> Deferred[Outcome]:
        """Do a write.

        Fires with its outcome when it is durable; errbacks with `ConditionFailed`, `InvalidData`,
        `PermissionDenied`, `TooLarge`, `DeadlinePassed` or `Unavailable`, and then nothing was
        applied.
        """
        refusal = self._gate.refusal
        if refusal is not None and not getattr(write.task, "is_local", False):
            return fail(WrittenElsewhere(refusal))
        if not self.is_open:
            try:
                self.read(lambda _: None)  # opens the file
            except Unavailable as refusal:
                return fail(refusal)
            except StoreDamaged:
                pass  # which is why the write is refused
        if self._volatile_rules is not self.rules.current:  # their first reading changes nothing
            self._apply_volatile_rules()
        if self.volatile is None:
            return self._group_commit.submit(write)
        order = self.volatile.order
        return self.write_in_turn(write) if order is None else order.submit(write)

    def write_in_turn(self, write: Write) -> Deferred[Outcome]:
        """Do a write which waits for no other process; fires, and errbacks, as `write`."""
        if self.volatile is None:
            return self._group_commit.submit(write)
        written = self.volatile.write(write)
        if written is not None:
            return written
        return self.volatile.note_queued(write, self._group_commit.submit(write))

    def create(self, caller: Caller, now: int, deadline: float) -> Deferred[Outcome]:
        """Create the database without data; fires, and errbacks, as `write`."""
        nothing = make_remove(Place(ROOT))
        write = Write(
            nothing, now, caller, deadline=deadline, wants_echo=False, task=_change_nothing
        )
        return self.write(write)

    def explain_read(self, read: ReadRequest) -> Verdict:
        """Return the verdict of the rules on a read of the last durable state, with a trace."""
        return self.read(lambda nodes: self.rights.explain_read(nodes, read))

    def explain_write(self, write: Write) -> Verdict:
        """Return the verdict of the rules on a write, with a trace; nothing is written."""
        return self.read(lambda nodes: self.rights.explain_write(nodes, write))

    def explain_expiry(self, path: Path) -> list[Json]:
        """Return which `.ttl` the rules have at and above a path, and when the nodes there go."""
        rules = self.rules.current.expiry
        if rules is None:
            return []
        written_ms = self.expiry.written_ms
        return self.read_stored(
            lambda nodes: show_expiry(
                rules, path, nodes, lambda each: written_ms(nodes.rows.stored, rules, each)
            )
        )

    def make_grant(
        self, request: ReadRequest, revoked: Callable[[], None], uncertain: Callable[[], None]
    ) -> ReadGrant:
        """Return the right to watch a path, before its first check.

        `revoked` is called when it is lost, `uncertain` when it may have been lost for a moment:
        then the batch that watchers are about to be notified of must not be sent.
        """
        return ReadGrant(self._grants, request, revoked, uncertain)

    def recheck_grants(self) -> None:
        """Check the right of all watchers again: the rules have changed.

        Those that are not checked in this turn are checked before anything is sent to them.
        """
        self._apply_volatile_rules()
        self._runtime.slices.start(self._grants.recheck())
        self.indexes.rules_changed()
        if self.is_open:
            self.indexes.check()
            if self.has_expiry:
                self.expiry.check()

    def _apply_volatile_rules(self) -> None:
        """Keep in memory what the rules in force call volatile, and drop what no longer is."""
        rules = self._volatile_rules = self.rules.current
        paths = rules.volatile
        if self.volatile is None and paths is not None and not self.is_absent:
            self.volatile = VolatileData(self, self._runtime)
        if self.volatile is not None:
            self.volatile.rules_changed(paths)

    def subscribe(
        self,
        path: Path,
        query: Query | None,
        stream: QueryStream,
        *,
        is_export: bool = False,
        group: object | None = None,
        account: HeldAccount | None = None,
    ) -> Subscription:
        """Return what a stream (of a `group`) shows of a path; it watches nothing yet.

        The window of a query is charged to an `account`, if there is one.
        """
        if query is None:
            return NodeSubscription(self.watching, path, stream, group)
        return QuerySubscription(
            self.watching, path, query, stream, is_export=is_export, group=group, account=account
        )

    def may_resume(self, path: Path) -> bool:
        """Return whether the change log has all events of a path: not where it is volatile."""
        return self.volatile is None or not self.volatile.is_near(path)

    def subscribe_to_changes(self, path: Path, stream: QueryStream) -> Subscription:
        """Return what a stream shows of a path if it names the places that change, and no values.

        It watches nothing yet.
        """
        return NodeSubscription(self.watching, path, stream, of_changes=True)

    async def compact(self) -> tuple[int, int]:
        """Give free space back; return the bytes that the database occupied before and after.

        Raises `DiskFull` or `StoreFailed`.
        """
        return await self._group_commit.compact()

    def file_opened(self) -> None:
        """Record that the file is open; compare the indexes with the rules."""
        self.is_open = True
        if self.shared_lock is not None:
            self.shared_lock.following.opened()
        if not self.indexes.is_checked:
            self.indexes.check()
        self.expiry.check()

    def refuse_writes(self) -> None:
        """Refuse all writes from now on, but those that are being made durable."""
        self.disconnect_writes.stop()
        self._group_commit.refuse_writes()

    def close(self) -> Deferred[None]:
        """Answer the writes under way and notify of them, then close the store.

        Closing waits for the disk.
        """
        self.kept_reads.clear()
        self.disconnect_writes.stop()
        self.indexes.stop_waiting()
        if self.volatile is not None:
            self.volatile.close()
        closing = self._group_commit.close()
        if self.shared_lock is not None:
            shared = self.shared_lock
            closing.addCallback(lambda _: shared.end())
        return closing.addCallback(lambda _: self._runtime.run_in_thread(self._engine.close))

    async def retire(self) -> None:
        """Refuse all use with `DatabaseDeleted` from now on, and close the store for good.

        The batch under way is finished before. Raises what closing raises.
        """
        self.disconnect_writes.abandon()
        self.indexes.stop_waiting()
        if self.volatile is not None:
            self.volatile.close()
        await self._group_commit.close(str(DatabaseDeleted()))
        if self.shared_lock is not None and (ending := self.shared_lock.end()) is not None:
            await ending
        self.is_open = False
        if isinstance(self._engine, WrappedEngine):  # as a catalog gives it
            self._engine.retire(DatabaseDeleted)
        self._nodes = self.volatile = None
        self.answers.clear()
        self.kept_reads.clear()
        await self._runtime.run_in_thread(self._engine.close)

    def close_at_once(self) -> None:
        """Close the store in this thread; no write may be under way."""
        self._engine.close()

    def committed(self, commits: Sequence[Commit]) -> None:
        """Bring what is kept in memory up to date; no writer has been answered yet."""
        self.tell_readers()
        if self.shared_lock is not None:
            self.shared_lock.following.committed(commits[-1].position.sequence)
        self.kept_reads.end_transaction()
        self.answers.drop_changed(commits)
        if not self.indexes.is_checked:
            self.indexes.check()
        # Grants that are checked from now on see all of these commits.
        self._grants.last_round = commits[-1].position.sequence

    def show_news(self, news: News) -> None:
        """Bring what is kept in memory up to date with what other processes have committed.

        Called when another moment begins to be shown; it must not read.
        """
        self.tell_readers()
        self.kept_reads.clear()
        self.push_ids.pass_over(news.pushed)
        if self.volatile is not None:
            self.volatile.others_wrote(news.commits)
        if news.commits is None:
            self.answers.clear()
        else:
            self.answers.drop_changed(news.commits)
        self._grants.last_round = news.sequence
        if not self._watchers.count:
            self.watching.followed_through = news.sequence

    def tell_readers(self) -> None:
        """Make those who read the change log look at the database: it was written, or its hooks."""
        for written in self._runtime.news:
            written(self.name)

    def is_behind(self, sequence: int) -> bool:
        """Return whether reads show a later commit of another process than this number."""
        return self.shared_lock is not None and self.shared_lock.following.through > sequence

    def is_interested(self) -> bool:
        """Return whether anything depends on what is committed."""
        return self._is_watched() or bool(self.answers)

    def leave(self) -> bool:
        """Show reads what has been committed; return whether the moment before is held."""
        if not self._is_watched():
            self._engine.advance()
            return False
        self._moments.leave()
        return self._moments.are_held

    def notify(self, commits: Sequence[Commit]) -> Steps:
        """Notify all watchers, if there are any."""
        if self._is_watched():
            yield from self.watching.notify(commits)
        elif self._moments.are_held:
            self._moments.close()
        self.watching.followed_through = commits[-1].position.sequence

    @property
    def end_reason(self) -> str | None:
        """Why writes are refused until the end, in one sentence; None if they are not."""
        return self._group_commit.end_reason

    def show_volatile(self, outcome: Outcome) -> None:
        """Show the volatile part of a write whose stored part is durable."""
        if self.volatile is not None:
            self.volatile.committed(outcome)

    def when_shown(self, edit: Edit, call: Callable[[], None]) -> None:
        """Call this when watchers know what is volatile at the places of an edit; now if they do.

        What was committed they may not know yet (`Watching.call_when_notified`).
        """
        if self.volatile is None:
            call()
        else:
            self.volatile.when_shown(edit, call)

    def notify_volatile(
        self, commit: Commit, before: Callable[[EngineSnapshot], HeldNodes]
    ) -> Steps:
        """Notify all watchers, if there are any, of a flush; `before` makes nodes of the state."""
        if self._is_watched():
            is_needed = self._watchers.collections > 0
            moments = FlushMoments(self._engine, before, is_needed=is_needed)
            yield from self.watching.notify((commit,), moments)
        self.watching.followed_through = commit.position.sequence

    def decides_rights(self, path: Path) -> bool:
        """Return whether the right of any watcher depends on what is at, above or below a path."""
        watchers = self._grants.watchers
        return watchers.count > 0 and watchers.are_at(path)

    @property
    def is_round_waiting(self) -> bool:
        """Whether watchers have to be notified of a commit before anything else."""
        return self._group_commit.rounds.is_waiting

    def run_beside_batches(self, steps: Steps, *, is_first: bool = False) -> None:
        """Run this when watchers have been notified of what is durable; see `Rounds`."""
        rounds = self._group_commit.rounds
        (rounds.run_first if is_first else rounds.run_beside)(steps)

    def _is_watched(self) -> bool:
        return bool(self._watchers.count or self._grants.held)


class AbsentDatabase(Database):
    """A database that does not exist, for callers who may not learn that.

    To other callers than those with a right to it, such a database is like one that they may not
    read or write, so that no answer shows which databases there are: the rules of the project are
    evaluated against an empty tree, and deny. What they allow raises `UnknownDatabase`; nothing is
    ever written.
    """

    is_absent = True

    def check_exists(self) -> NoReturn:
        """Raise `UnknownDatabase`; for callers who have a right to know."""
        raise self._unknown

    def check_read(self, read: ReadRequest, nodes: Nodes | None = None) -> NoReturn:
        """Raise `PermissionDenied`, or `UnknownDatabase` if the rules allow the read."""
        super().check_read(read, nodes)
        raise self._unknown

    def write(self, write: Write) -> Deferred[Outcome]:
        """Raise the error that refuses the write, or `UnknownDatabase` if the rules allow it."""
        return succeed(self.read(lambda nodes: self._refuse(nodes, write)))

    def _refuse(self, nodes: Nodes, write: Write) -> Outcome:
        edit = resolve(write.edit, write.now, nodes)
        self.rights.check_write(nodes, write, edit)
        is_nothing = not edit.changes  # which any caller may write
        may_read = self.rights.evaluate_read
        if is_nothing and not may_read(edit.place.path, write.caller, write.now, nodes):
            return Outcome(edit, None, edit.sent, None)
        raise self._unknown

    @property
    def _unknown(self) -> UnknownDatabase:
        return UnknownDatabase(self.name, is_project_known=True)
