"""One database: read what is durable, write through the group commit, watch, close.

The steps of a write: its server values are resolved against the view of the transaction, the rules
are evaluated and its condition is checked there, it is applied to the rows, and its entry is
appended to the change log. `GroupCommit` decides when that happens, and answers when it is durable.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, TypeVar

import attrs
from twisted.internet.defer import Deferred

from treedbd.database import etags
from treedbd.database.active_rules import ActiveRules
from treedbd.database.errors import DeadlinePassed, PermissionDenied, TagDenied
from treedbd.database.group_commit import GroupCommit
from treedbd.database.read_grants import ReadGrant, ReadGrants, ReadRequest
from treedbd.database.requests import Caller, Outcome, Write
from treedbd.database.resume import MissedEvents, find_missed_events
from treedbd.database.runtime import Runtime
from treedbd.database.watchers import Watcher, Watchers
from treedbd.names import DEFAULT_DATABASE, DatabaseName, DialectName
from treedbd.rules.context import Context, QueryFacts
from treedbd.rules.evaluate import Verdict
from treedbd.store import changelog
from treedbd.store.engine import Engine, Transaction
from treedbd.store.node_writer import NodeWriter
from treedbd.store.nodes import HeldNodes, Nodes
from treedbd.tree import value
from treedbd.tree.edit import Edit, echo_without_reading, resolve
from treedbd.tree.event import Commit, Position, complete, describe
from treedbd.tree.push_id import PushIds
from treedbd.tree.types import Json, Path

T = TypeVar("T")


@attrs.frozen
class ProjectSpec:
    """What the configuration says of a project.

    `databases` is None if any may be created. A project that is `is_file_managed` has its rules
    from a file of the configuration, and denies everything until they have been read.
    """

    name: str
    databases: frozenset[str] | None = frozenset({DEFAULT_DATABASE})
    dialect: DialectName = "auto"
    require_index: bool = False
    is_file_managed: bool = False


class Database:
    """A tree of JSON, and all that read, write and watch it; belongs to the reactor's thread.

    Attributes:
        name: its name.
        project: the project it belongs to.
        rules: the rules in force of that project.
        push_ids: makes the keys of its pushed children.

    """

    def __init__(
        self,
        name: DatabaseName,
        engine: Engine,
        project: ProjectSpec,
        rules: ActiveRules,
        runtime: Runtime,
        retain_events: int,
    ) -> None:
        """Serve `engine`, which from now on belongs to this database."""
        self.name: Final = name
        self.project: Final = project
        self.rules: Final = rules
        self.push_ids: Final = PushIds(runtime.entropy)
        self._engine = engine
        self._clock = runtime.clock
        self._entropy = runtime.entropy
        self._retain_events = retain_events
        self._watchers = Watchers()
        self._grants = ReadGrants(lambda: rules.current, self.read)
        self._group_commit = GroupCommit(engine, self._apply, self._notify, runtime)

    @property
    def write_problem(self) -> str | None:
        """Why writes are refused at present; None if they are accepted."""
        return self._group_commit.write_problem

    def read(self, work: Callable[[Nodes], T]) -> T:
        """Run `work` on the last durable state and return its result."""
        return self._engine.read(lambda view: work(Nodes(view)))

    def check_read(
        self, path: Path, caller: Caller, now: int, nodes: Nodes, query: QueryFacts | None = None
    ) -> None:
        """Raise `PermissionDenied` unless the rules let `caller` read `path`.

        `query` describes the query of the read, None if it has none; `now` is in milliseconds since
        1970.
        """
        if not self._may_read(path, caller, now, nodes, query):
            raise PermissionDenied("this read")

    def hold(self) -> HeldNodes:
        """Hold the last durable state open, for a reader that needs many turns."""
        return HeldNodes(self._engine.snapshot())

    def write(self, write: Write) -> Deferred[Outcome]:
        """Do a write.

        Fires with its outcome when it is durable; errbacks with `ConditionFailed`, `InvalidData`,
        `PermissionDenied`, `TooLarge`, `DeadlinePassed` or `Unavailable`, and then nothing was
        applied.
        """
        return self._group_commit.submit(write)

    def explain_write(self, write: Write) -> Verdict:
        """Return the verdict of the rules on a write, with a trace; nothing is written."""

        def work(nodes: Nodes) -> Verdict:
            edit = resolve(write.edit, write.now, nodes)
            context = Context(write.caller.auth, write.now, nodes)
            return self.rules.current.may_write(edit.changes, context, explain=True)

        return self.read(work)

    def make_grant(
        self, request: ReadRequest, revoked: Callable[[], None], uncertain: Callable[[], None]
    ) -> ReadGrant:
        """Return the right to watch a path, before its first check.

        `revoked` is called when it is lost, `uncertain` when it may have been lost for a moment:
        then the batch that watchers are about to be notified of must not be sent.
        """
        return ReadGrant(self._grants, request, revoked, uncertain)

    def recheck_grants(self) -> None:
        """Check the right of all watchers again: the rules have changed."""
        self._grants.recheck()

    def watch(self, path: Path, watcher: Watcher, work: Callable[[Nodes], T]) -> tuple[T, int]:
        """Notify `watcher` of what concerns `path` from now on.

        Returns what `work` made of the present state, and its sequence number: the watcher is
        notified of every later write and no earlier one. A second call replaces the first.
        """
        result, sequence = self._engine.read(lambda view: (work(Nodes(view)), view.sequence()))
        self._watchers.add(path, watcher, sequence)
        return result, sequence

    def watch_held(self, path: Path, watcher: Watcher) -> HeldNodes:
        """Do as `watch`, with the present state held open."""
        held = self.hold()
        self._watchers.add(path, watcher, held.sequence)
        return held

    def missed_events(
        self, nodes: Nodes, path: Path, after: Position, grant: ReadGrant
    ) -> MissedEvents | None:
        """Return the events at `path` after a position, up to the state that `nodes` shows.

        None if they are not known any more, or if `grant`, which was checked against that state,
        may not have held all the time.
        """
        return find_missed_events(nodes.rows, path, after, grant.held_through, self._retain_events)

    def position(self, sequence: int) -> Position:
        """Return the position of a client that has received everything up to a number."""
        entry = self._engine.read(lambda view: next(view.entries(sequence - 1), None))
        is_known = entry is not None and entry.sequence == sequence
        return Position(sequence, entry.op_id if entry is not None and is_known else b"")

    def unwatch(self, path: Path, watcher: Watcher) -> None:
        """Stop notifying `watcher`; no error if it does not watch."""
        self._watchers.remove(path, watcher)

    def close(self) -> Deferred[None]:
        """Answer the writes under way, then close the store."""
        return self._group_commit.close().addCallback(lambda _: self._engine.close())

    def _apply(self, transaction: Transaction, write: Write) -> Outcome:
        """Do one write in a transaction; raise the error that refuses it."""
        nodes = NodeWriter(transaction)
        edit = resolve(write.edit, write.now, nodes)
        may_read = self._authorise(nodes, write, edit)
        if write.condition is not None:
            etags.check_condition(nodes, write.condition)
        if write.deadline is not None and self._clock.seconds() >= write.deadline:
            raise DeadlinePassed("it was applied")  # evaluating rules may take long
        wants_etag = write.wants_etag and may_read
        etag = etags.etag_before_write(nodes, write, edit) if wants_etag else None
        commit = None
        if _has_effect(nodes, edit):
            nodes.apply(edit.changes)
            op_id = self._entropy(16)
            rules = self.rules.current.fingerprint
            entry = changelog.encode(edit, write.now, rules=rules)
            sequence = changelog.append(transaction, op_id, entry, self._retain_events)
            commit = self._complete_if_cheap(describe(sequence, edit, op_id), nodes)
        echo = None
        if write.wants_echo:
            echo = _echo(nodes, edit) if may_read else echo_without_reading(write.edit, write.now)
        if wants_etag and etag is None:
            etag = etags.etag_after_write(nodes, edit)
        return Outcome(edit, commit, echo, etag)

    def _authorise(self, nodes: Nodes, write: Write, edit: Edit) -> bool:
        """Return whether the caller may read what its response shows; raise `PermissionDenied`.

        A tag depends on everything below a place, the echo of an increment on the number it was
        added to, and the echo of a priority on whether there is a node.
        """
        caller, now = write.caller, write.now
        if caller.is_admin:
            return True
        context = Context(caller.auth, now, nodes)
        if not self.rules.current.may_write(edit.changes, context).allowed:
            raise PermissionDenied("this write")
        condition = write.condition
        if condition is not None and not self._may_read(condition.place.path, caller, now, nodes):
            raise TagDenied
        requested = write.edit
        echo_depends = write.wants_echo and (
            requested.has_placeholders or requested.place.is_priority
        )
        if not (write.wants_etag or echo_depends):
            return True
        return self._may_read(requested.place.path, caller, now, nodes)

    def _may_read(
        self, path: Path, caller: Caller, now: int, nodes: Nodes, query: QueryFacts | None = None
    ) -> bool:
        if caller.is_admin:
            return True
        context = Context(caller.auth, now, nodes, query)
        return self.rules.current.may_read(path, context).allowed

    def _notify(self, commits: Sequence[Commit]) -> None:
        """Notify all watchers; those that lost their right are notified of that first."""
        if self._grants.held:
            self._grants.notify(commits)
        if not self._watchers.count:
            return
        if any(map(self._lacks_watched_values, commits)):
            # A client began to watch after these had been applied.
            commits = self.read(lambda nodes: [complete(each, nodes) for each in commits])
        self._watchers.notify(commits)

    def _complete_if_cheap(self, commit: Commit, nodes: Nodes) -> Commit:
        """Complete a commit of priorities; a large node is read only if it is watched."""
        if commit.is_complete:
            return commit
        if not self._lacks_watched_values(commit):
            priorities = [change.path for change in commit.changes if change.is_priority]
            if any(map(nodes.is_spread, priorities)):
                return commit
        return complete(commit, nodes)

    def _lacks_watched_values(self, commit: Commit) -> bool:
        """Return whether a watcher will receive a node that has not been read.

        A priority concerns only the watchers of its node and of those above it.
        """
        return not commit.is_complete and any(
            change.is_priority and self._watchers.has_at_or_above(change.path)
            for change in commit.changes
        )


def _has_effect(nodes: Nodes, edit: Edit) -> bool:
    """Return whether anything is written: not for an empty PATCH or a priority without a node."""
    if edit.place.is_priority:
        return nodes.peek(edit.place.path) is not None
    return bool(edit.changes)


def _echo(nodes: Nodes, edit: Edit) -> Json:
    if edit.method == "patch":
        return edit.sent
    if edit.place.is_priority:
        return nodes.priority(edit.place.path)
    return value.plain(edit.changes[0].value)
