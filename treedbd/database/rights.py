"""The rights of callers and watchers: the rules in force, evaluated for one database.

`Authorisation` judges reads and writes. What the rules alone can decide is decided without a view
(`RuleSet.find_read`, `find_write`); only what depends on the data or the time needs a `Context`.
Rules are not evaluated for an admin. Slow ones are logged (`SlowRulesLog`), and traced for a
request that is sampled (`trace_rules`).

A `ReadGrant` is the right to watch: granted at the start, and checked again whenever it may have
changed. It records what the rules read when they allowed it. It is registered at those paths like
any watcher, and is checked again when a commit touches one of them, before watchers are notified of
that commit; a rule that reads nothing but `auth` costs nothing for a commit. Rules that read the
time are checked again whenever something is about to be sent (`ReadGrant.is_timed`).

Each write of a batch is followed by itself: a grant that depends on it is checked against the state
that it made, whatever the next ones do. If that state is not known, it is uncertain whether the
grant held there. A grant that cannot be checked is revoked.

Many checks are done in slices. The database is in a round meanwhile, so what was just committed is
not sent before the checks are over. When the rules change there is no such order: a grant
`must_be_checked` before anything is sent, unless it has been checked by then.

This module knows no Twisted: `rules_trial` judges with it where there is no daemon.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Final, Protocol, Self, TypeAlias, TypeVar

import attrs
from twisted.logger import Logger

from treedbd.database.requests import (
    Caller,
    DeadlinePassed,
    PermissionDenied,
    TagDenied,
    UnknownDatabase,
    Write,
)
from treedbd.database.slices import Steps
from treedbd.database.watchers import Notification, Watchers, do_nothing
from treedbd.errors import LineBudget
from treedbd.loop import pause
from treedbd.names import DatabaseName
from treedbd.rules.context import (
    Context,
    Dependencies,
    KeptReads,
    MakeEvaluation,
    QueryFacts,
    SlowRules,
    SlowRulesReport,
    WrittenPaths,
)
from treedbd.rules.document import TextPosition
from treedbd.rules.evaluate import TimedEvaluation, Verdict
from treedbd.rules.ruleset import RuleSet
from treedbd.store.nodes import HeldNodes, Nodes
from treedbd.traces import Trace, now_ns
from treedbd.tree.edit import Edit, resolve
from treedbd.tree.event import Commit, Event
from treedbd.tree.overlay import Overlay, StateUnknown
from treedbd.tree.types import Json, Path, View

if TYPE_CHECKING:
    from treedbd.database.resume import Replay


T = TypeVar("T")

IS_ALLOWED: Final = "treedb.rules.allowed"
FIELDS: Final = ("project", "database", "rule", "line", "column", "rules_ms")
"""The names of the fields of the warning."""
_NOTHING: Final = Dependencies(frozenset(), reads_time=False)
_WRITTEN: Final = Event("put", (), None)
"""That something was written is all that a grant is notified of."""

RunRead: TypeAlias = Callable[[Callable[[View], None]], None]
"""Runs work on the present state of the database."""
MakeContext: TypeAlias = Callable[[Json, int, View, QueryFacts | None], Context]


class Authorisation:
    """What callers may do in one database."""

    _observe: Callable[[float], None] | None = None  # the seconds of evaluations that need a view

    def __init__(
        self,
        rules: Callable[[], RuleSet],
        exceeded: Callable[[str, TextPosition], None],
        seconds: Callable[[], float],
        kept_reads: KeptReads,
        admins_own: DatabaseName | None = None,
    ) -> None:
        """Evaluate the rules that `rules` returns; `kept_reads` are of the data of the database.

        `admins_own` is its name if only an admin's write may create it.

        `exceeded` is called with a rule that would have read too much (`Context`). `seconds` is the
        clock of the deadlines.
        """
        self._rules = rules
        self._exceeded = exceeded
        self._seconds = seconds
        self._kept_reads = kept_reads
        self._admins_own = admins_own
        self._make_evaluation: MakeEvaluation | None = None

    def measured_by(
        self,
        make: Callable[[DatabaseName], MakeEvaluation] | None,
        name: DatabaseName,
        observe: Callable[[float], None] | None,
    ) -> Self:
        """Measure each rule by what `make` returns, verdicts by `observe`; return self.

        None measures nothing.
        """
        self._make_evaluation = None if make is None else make(name)
        self._observe = observe
        return self

    def evaluate_read(
        self, path: Path, caller: Caller, now: int, nodes: Nodes, query: QueryFacts | None = None
    ) -> bool:
        """Return whether the rules let `caller` read `path`, or run a query there.

        All rules on the way are evaluated, also those that `RuleSet.find_read` knows.
        """
        began = perf_counter() if self._observe is not None else 0.0
        context = self.context(caller.auth, now, nodes, query)
        allowed = caller.is_admin or self._rules().may_read(path, context).allowed
        if self._observe is not None:
            self._observe(perf_counter() - began)
        return allowed

    def check_may_write(self, path: Path, caller: Caller) -> None:
        """Raise `PermissionDenied` if no rule can let `caller` write at or below `path`."""
        if not caller.is_admin and not self._rules().may_write_somewhere(path, caller.auth):
            raise PermissionDenied("this write")

    def check_write(
        self, nodes: Nodes, write: Write, edit: Edit, after: View | None = None
    ) -> bool:
        """Return whether the caller may read what its response shows.

        Raises `PermissionDenied`, or `UnknownDatabase` if the rules allow a write that would create
        a database, which it must not. `nodes` are the tree before the write; `after` is the tree
        with it, if it is applied. A tag depends on everything below a place, the echo of an
        increment on the number it was added to, and the echo of a priority on whether there is a
        node.
        """
        if write.trace is None:
            return self._check_write(nodes, write, edit, after)
        return trace_rules(write.trace, lambda: self._check_write(nodes, write, edit, after))

    def _check_write(self, nodes: Nodes, write: Write, edit: Edit, after: View | None) -> bool:
        caller = write.caller
        if caller.is_admin:
            return True
        may_read = self._check_rules(nodes, write, edit, after)
        if self._admins_own is not None and nodes.rows.sequence() == 0:
            raise UnknownDatabase(self._admins_own, is_project_known=True)
        return may_read

    def _check_rules(self, nodes: Nodes, write: Write, edit: Edit, after: View | None) -> bool:
        caller = write.caller
        requested, condition = write.edit, write.condition
        is_read = write.wants_etag or (
            write.wants_echo
            and (edit.has_placeholders or requested.has_placeholders or requested.place.is_priority)
        )
        rules = self._rules()
        allowed = rules.find_write(edit.changes, caller.auth)
        if allowed and not is_read and condition is None:
            return True
        context = self.context(caller.auth, write.now, nodes, None, write.deadline, at_once=False)
        if allowed is None:
            began = perf_counter() if self._observe is not None else 0.0
            allowed = rules.may_write(edit.changes, context, after=after).allowed
            if self._observe is not None:
                self._observe(perf_counter() - began)
        if not allowed:
            raise PermissionDenied("this write")
        if condition is not None and not rules.may_read(condition.place.path, context).allowed:
            raise TagDenied
        return not is_read or rules.may_read(requested.place.path, context).allowed

    def explain_write(self, nodes: Nodes, write: Write) -> Verdict:
        """Return the verdict of the rules on a write, with a trace."""
        edit = resolve(write.edit, write.now, nodes)
        context = self.context(write.caller.auth, write.now, nodes)
        return self._rules().may_write(edit.changes, context, explain=True)

    def context(
        self,
        auth: Json,
        now: int,
        view: View,
        query: QueryFacts | None = None,
        deadline: float | None = None,
        *,
        at_once: bool = True,
    ) -> Context:
        """Return the context in which rules are evaluated, `at_once` or with pauses.

        Only what pauses finds that the deadline has passed. `view` may be older if it is held, or
        has edits laid over it.
        """

        def check() -> None:
            if deadline is not None and self._seconds() >= deadline:
                raise DeadlinePassed("the rules were evaluated")
            pause()

        kept = None if isinstance(view, HeldNodes | Overlay) else self._kept_reads
        between = None if at_once else check
        made, exceeded = self._make_evaluation, self._exceeded
        return Context(auth, now, view, query, between, exceeded, kept, made, at_once)


@attrs.frozen
class ReadRequest:
    """Which caller wants to watch which path, by which query; `now` returns milliseconds."""

    caller: Caller
    path: Path
    query: QueryFacts | None
    now: Callable[[], int]

    def check(self, database: ChecksReads, nodes: Nodes) -> None:
        """Raise as `Database.check_read` unless the rules allow it, without a grant."""
        database.check_read(self.path, self.caller, self.now(), nodes, self.query)


class ChecksReads(Protocol):
    """What evaluates the rules of one database (`database.Database`)."""

    def check_read(
        self, path: Path, caller: Caller, now: int, nodes: Nodes, query: QueryFacts | None = None
    ) -> None:
        """Raise `PermissionDenied` unless the rules let `caller` read `path`."""
        ...


class ReadGrant:
    """The right to one read; held from the first `check` that does not raise until it is closed."""

    __slots__ = (
        "_depends_on",
        "_grants",
        "_request",
        "_revoked",
        "_rules",
        "_uncertain",
    )
    _log = Logger()

    def __init__(
        self,
        grants: ReadGrants,
        request: ReadRequest,
        revoked: Callable[[], None],
        uncertain: Callable[[], None],
    ) -> None:
        """Call `revoked` when the right is lost later, `uncertain` when it may have been lost.

        It may have been, for a moment, if the state is not known that a write has made which
        changed what the rules read: what was written in that moment must not be sent.
        """
        self._grants = grants
        self._request = request
        self._revoked = revoked
        self._uncertain = uncertain
        self._depends_on = _NOTHING
        self._rules: RuleSet | None = None

    @property
    def is_timed(self) -> bool:
        """Whether time alone can revoke the grant."""
        return self._depends_on.reads_time

    @property
    def is_outdated(self) -> bool:
        """Whether the grant is held under rules that are not in force any more."""
        return self._rules is not self._grants.rules() and self in self._grants.held

    @property
    def must_be_checked(self) -> bool:
        """Whether time or other rules may have revoked the grant since it was checked."""
        # Called for each stream and event: `is_outdated` and `is_timed`, without further calls.
        return self._depends_on.reads_time or (
            self._rules is not self._grants.rules() and self in self._grants.held
        )

    def held_through(
        self, checked: int, nodes: Nodes, written: WrittenPaths, rules: Iterable[str]
    ) -> bool:
        """Return whether the grant holds at a state, and held when these paths were written before.

        `checked` is the number of the state for which it was checked last; for another it is
        checked again. `rules` are the fingerprints of the rules that were in force when the paths
        were written. False if anything is uncertain.
        """
        if self._request.caller.is_admin:
            return True
        if self not in self._grants.held:
            return False
        if nodes.rows.sequence() != checked or self.is_outdated:
            try:
                self.check(nodes)
            except PermissionDenied:
                return False
        fingerprint = self._grants.rules().fingerprint
        if any(former != fingerprint for former in rules):
            return False
        return not self.is_timed and not self._depends_on.touched_by(written)

    def check(self, view: View) -> None:
        """Evaluate the rules against `view`; raise `PermissionDenied`."""
        request = self._request
        if request.caller.is_admin:
            return
        grants = self._grants
        context = grants.make_context(request.caller.auth, request.now(), view, request.query)
        self._rules = grants.rules()
        verdict = self._rules.may_read(request.path, context, record=True)
        if not verdict.allowed:
            self.close()
            raise PermissionDenied("this read")
        self._grants.held.add(self)
        self._depend_on(verdict.dependencies or _NOTHING)

    def check_again(self, view: View) -> None:
        """Do as `check` for an older state, and check the present one too."""
        self.check(view)
        self.recheck()  # what it depends on may have changed since

    def notify(self, _: Notification) -> None:
        """Check again: a path that the rules read was written."""
        grants = self._grants
        if self in grants.held:
            if not self._is_allowed():
                grants.lost.append(self._revoked)
            elif grants.is_uncertain:
                grants.lost.append(self._uncertain)

    def recheck(self) -> bool:
        """Check again; return whether the grant still holds."""
        if self not in self._grants.held:
            return self._request.caller.is_admin
        if not self._is_allowed():
            self._revoked()
            return False
        return True

    def _is_allowed(self) -> bool:
        """Check again; close the grant if the rules deny."""
        try:
            self._grants.read_state(self.check)
        except Exception as error:
            if not isinstance(error, PermissionDenied):
                self._log.failure("The read rules of a stream cannot be evaluated.")
            self.close()
            return False
        return True

    def close(self) -> None:
        """Release the grant."""
        self._grants.held.discard(self)
        self._depend_on(_NOTHING)

    def end(self) -> None:
        """Do as `close` for good, and drop what is called, so that the grant keeps no watcher."""
        self.close()
        self._revoked = self._uncertain = do_nothing

    def _depend_on(self, found: Dependencies) -> None:
        watchers = self._grants.watchers
        for path in self._depends_on.paths - found.paths:
            watchers.remove(path, self)
        for path in found.paths - self._depends_on.paths:
            # Whatever is checked from the beginning of a round on, has seen all of it.
            watchers.add(path, self, since=self._grants.state)
        self._depends_on = found


class ReadGrants:
    """The grants of all watchers of one database."""

    def __init__(
        self,
        rules: Callable[[], RuleSet],
        read: RunRead,
        make_context: MakeContext = Context,
        is_ahead_of: Callable[[int], bool] = lambda _: False,
    ) -> None:
        """Evaluate the rules that `rules` returns in what `make_context` returns.

        `read` runs work on the present state; `is_ahead_of` returns whether that is already newer
        than the one of a number.
        """
        self._is_ahead_of = is_ahead_of
        self.rules: Final = rules
        self.read: Final = read
        self.make_context: Final = make_context
        self.watchers: Final = Watchers()
        self.held: Final[set[ReadGrant]] = set()
        self.lost: list[Callable[[], None]] = []
        self.is_uncertain = False
        self.last_round = 0
        self._replay: Replay | None = None

    @property
    def state(self) -> int:
        """The number of the state that grants are checked against."""
        return self.last_round if self._replay is None else self._replay.through

    def follow(
        self, commit: Commit, replay: Replay | None, deliver: Callable[[], Steps], *, is_last: bool
    ) -> Steps:
        """Check the grants that depend on what a write has changed.

        `replay` shows the state after it; if it `is_last`, reads do as well. Before a watcher
        learns that it has lost its right, `deliver` notifies of the writes before this one.
        """
        if not self.held:
            return
        sequence = commit.position.sequence
        is_present = is_last and not self._is_ahead_of(sequence)
        notification = Notification(((commit.position, _WRITTEN),))
        for each in self.watchers.concerned(commit):
            audience = None if each is None else each.node.audience
            for grant in [] if audience is None else list(audience.watchers):
                if audience is not None and audience.watchers.get(grant, sequence) < sequence:
                    self._replay = None if is_present else replay
                    self.is_uncertain = not is_present and replay is None
                    grant.notify(notification)
                    self._replay = None
                    if self.lost:
                        lost, self.lost = self.lost, []
                        yield from deliver()
                        for call in lost:
                            call()
                yield
            yield

    def read_state(self, work: Callable[[View], None]) -> None:
        """Run work on the state that grants are checked against."""
        if self._replay is None:
            self.read(work)
            return
        try:
            work(self._replay.view)
        except StateUnknown:
            self._replay, self.is_uncertain = None, True
            self.read(work)

    def recheck(self) -> Steps:
        """Check all grants, because the rules have changed."""
        for grant in list(self.held):
            if grant.is_outdated:
                grant.recheck()
                yield


def trace_rules(trace: Trace, evaluate: Callable[[], T]) -> T:
    """Evaluate rules, and record a span of it; an exception means that they deny."""
    began = now_ns()
    is_allowed = False
    try:
        result = evaluate()
        is_allowed = True
        return result
    finally:
        trace.record("rules", began, {IS_ALLOWED: is_allowed})


class SlowRulesLog:
    """Logs rules that are slow, of all databases, but only so many lines a minute.

    A line names the rule that takes longest, and what helps.
    """

    _log = Logger()

    def __init__(self, least_s: float, seconds: Callable[[], float]) -> None:
        """Rules are slow that take `least_s` seconds for one request; `seconds` is the clock."""
        self._least_s = least_s
        self._lines = LineBudget(seconds)

    def measure(self, name: DatabaseName) -> MakeEvaluation:
        """Return what measures the rules of a database."""
        report = SlowRulesReport(self._least_s, partial(self._warn, name))
        return partial(TimedEvaluation, report)

    def _warn(self, name: DatabaseName, slow: SlowRules) -> None:
        note = self._lines.take()
        if note is None:
            return
        self._log.warn(
            "Rules were slow: {ms} ms for one request to {label}, {slowest_ms} ms of them in "
            "{location} at {line}:{column} of the rules, which was evaluated {count} times. Let it "
            "read less: a small node in place of a large one, no long regular expression, no "
            ".validate for each of many children.{note}",
            ms=round(slow.seconds * 1000, 1),
            label=name.label,
            slowest_ms=round(slow.slowest_s * 1000, 1),
            location=slow.location,
            line=slow.position.line,
            column=slow.position.column,
            count=slow.count,
            note=note,
            treedb_fields={
                "project": name.project,
                "database": name.database,
                "rule": slow.location,
                "line": slow.position.line,
                "column": slow.position.column,
                "rules_ms": round(slow.seconds * 1000, 1),
            },
        )
