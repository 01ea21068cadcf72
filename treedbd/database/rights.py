"""The rights of callers: the rules in force, evaluated for one database, or for a trial of rules.

`Authorisation` judges reads and writes. What the rules alone can decide is decided without a view
(`RuleSet.find_read`, `find_write`); only what depends on the data or the time needs a `Context`.
Rules are not evaluated for an admin. They are traced for a request that is sampled (`trace_rules`).
The right to watch, which is checked again, is in `watchers`.

`RulesTrial` judges requests by the same `Authorisation`, over a tree in memory, so the verdict is
that of a daemon. This module loads no Twisted, so `treedb rules test` starts without it.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from time import monotonic, perf_counter
from typing import Final, Protocol, TypeVar

import attrs

from treedbd.database.requests import (
    Caller,
    DeadlinePassed,
    PermissionDenied,
    TagDenied,
    UnknownDatabase,
    Write,
)
from treedbd.loop import pause
from treedbd.names import DatabaseName
from treedbd.rules.context import Context, KeptReads, QueryFacts, ReadPool, SlowRulesReport
from treedbd.rules.document import TextPosition
from treedbd.rules.evaluate import Verdict
from treedbd.rules.ruleset import RuleSet
from treedbd.store.memory import MemoryEngine
from treedbd.store.node_writer import NodeWriter
from treedbd.store.nodes import HeldNodes, Nodes, PresentNodes
from treedbd.store.volatile import MergedNodes, ShownNodes, VolatileView
from treedbd.traces import Trace, now_ns
from treedbd.tree.edit import Edit, make_put, resolve
from treedbd.tree.overlay import Overlay
from treedbd.tree.types import ROOT, Json, Path, Place, View

T = TypeVar("T")

_UNKEPT: Final = (HeldNodes, Overlay, MergedNodes, ShownNodes, VolatileView)
"""Views of states that may not be the present one, or may change while rules are evaluated."""
IS_ALLOWED: Final = "treedb.rules.allowed"


class InForce(Protocol):
    """Where the rules in force are: `ActiveRules`, which change, or `TrialRules`."""

    @property
    def current(self) -> RuleSet:
        """The rules."""
        ...


@attrs.define  # not frozen: each read makes one, which costs twice as much then
class ReadRequest:
    """What the rules are evaluated for: which caller reads which path, by which query, and when.

    `now` returns milliseconds since 1970. `trace` is that of the request, None if it is not
    sampled. `Database.check_read` is the one place that decides whether such a read is allowed; a
    `ReadGrant` keeps deciding it while a client watches.
    """

    caller: Caller
    path: Path
    query: QueryFacts | None
    now: Callable[[], int]
    trace: Trace | None = None


@attrs.define(eq=False, repr=False, kw_only=True)
class Authorisation:
    """What callers may do in one database.

    The current `rules` are evaluated; `kept_reads` are of the data of the database. `exceeded` is
    called with a rule that would have read too much (`Context`), `seconds` is the clock of the
    deadlines. `admins_own` is the name of the database if only an admin's write may create it. Slow
    rules are reported to `slow_rules`, and `observe` receives the seconds of an evaluation that
    needs a view; None measures nothing.
    """

    _rules: InForce
    _kept_reads: KeptReads
    _exceeded: Callable[[str, TextPosition], None] | None = None
    _seconds: Callable[[], float] = monotonic
    _admins_own: DatabaseName | None = None
    _slow_rules: SlowRulesReport | None = None
    _observe: Callable[[float], None] | None = None

    def of_trial(self, rules: RuleSet) -> Authorisation:
        """Return what `rules` would allow in the same database; nothing of it is reported."""
        return attrs.evolve(
            self, rules=TrialRules(rules), exceeded=None, slow_rules=None, observe=None
        )

    def evaluate_read(
        self, path: Path, caller: Caller, now: int, nodes: Nodes, query: QueryFacts | None = None
    ) -> bool:
        """Return whether the rules let `caller` read `path`, or run a query there.

        All rules on the way are evaluated, also those that `RuleSet.find_read` knows.
        """
        began = perf_counter() if self._observe is not None else 0.0
        context = self.context(caller.auth, now, nodes, query)
        allowed = caller.is_admin or self._rules.current.may_read(path, context).allowed
        if self._observe is not None:
            self._observe(perf_counter() - began)
        return allowed

    def check_may_write(self, path: Path, caller: Caller) -> None:
        """Raise `PermissionDenied` if no rule can let `caller` write at or below `path`."""
        rules = self._rules.current
        if not caller.is_admin and not rules.may_write_somewhere(path, caller.auth):
            raise PermissionDenied("this write")

    def check_write(
        self, nodes: Nodes | VolatileView, write: Write, edit: Edit, after: View | None = None
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

    def _check_write(
        self, nodes: Nodes | VolatileView, write: Write, edit: Edit, after: View | None
    ) -> bool:
        caller, requested = write.caller, write.edit
        if caller.is_admin:
            return True
        is_read = write.wants_etag or (
            write.wants_echo
            and (edit.has_placeholders or requested.has_placeholders or requested.place.is_priority)
        )
        rules = self._rules.current
        may_read: bool | None = rules.allows_all_writes
        may_read = may_read or rules.find_write(edit.changes, caller.auth)
        if not may_read or is_read or write.condition is not None:
            may_read = self._evaluate_write(nodes, write, edit, after, may_read, is_read=is_read)
        owned = self._admins_own
        if owned is not None and isinstance(nodes, Nodes) and nodes.rows.sequence() == 0:
            raise UnknownDatabase(owned, is_project_known=True)
        return may_read

    def _evaluate_write(
        self,
        nodes: View,
        write: Write,
        edit: Edit,
        after: View | None,
        allowed: bool | None,
        *,
        is_read: bool,
    ) -> bool:
        """Check a write of which not all is known without a view: only whether it is `allowed`.

        Returns whether the caller may read the place, True if nothing there `is_read`.
        """
        rules, condition = self._rules.current, write.condition
        context = self.context(
            write.caller.auth, write.now, nodes, None, write.deadline, at_once=False
        )
        if allowed is None:
            began = perf_counter() if self._observe is not None else 0.0
            allowed = rules.may_write(edit.changes, context, after=after).allowed
            if self._observe is not None:
                self._observe(perf_counter() - began)
        if not allowed:
            raise PermissionDenied("this write")
        if condition is not None and not rules.may_read(condition.place.path, context).allowed:
            raise TagDenied
        return not is_read or rules.may_read(write.edit.place.path, context).allowed

    def explain_read(self, nodes: Nodes, read: ReadRequest) -> Verdict:
        """Return the verdict of the rules on a read, with a trace."""
        context = Context(read.caller.auth, read.now(), nodes, read.query, at_once=True)
        return self._rules.current.may_read(read.path, context, explain=True)

    def explain_write(self, nodes: Nodes, write: Write, *, at_once: bool = True) -> Verdict:
        """Return the verdict of the rules on a write, with a trace, `at_once` or with pauses."""
        edit = resolve(write.edit, write.now, nodes)
        auth, deadline = write.caller.auth, write.deadline
        context = self.context(auth, write.now, nodes, deadline=deadline, at_once=at_once)
        return self._rules.current.may_write(edit.changes, context, explain=True)

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
        seconds, end = self._seconds, inf if deadline is None else deadline

        def check() -> None:
            if seconds() >= end:
                raise DeadlinePassed("the rules were evaluated")
            pause()

        return Context(
            auth,
            now,
            view,
            query,
            check=None if at_once else check,
            exceeded=self._exceeded,
            kept=None if isinstance(view, _UNKEPT) else self._kept_reads,
            slow_rules=self._slow_rules,
            at_once=at_once,
        )


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


NOT_EVALUATED: Final = Verdict(True)
"""The trace of a request of an admin, for whom no rule is evaluated."""


@attrs.frozen
class TrialVerdict:
    """The verdict on one request; `explained` has the trace of the rules that were evaluated."""

    allowed: bool
    explained: Verdict


@attrs.frozen
class TrialRules:
    """The rules of a trial, which do not change."""

    current: RuleSet


class RulesTrial:
    """Rules, and the tree that they are tried on."""

    def __init__(self, rules: RuleSet, data: Json, now: int) -> None:
        """Try `rules` on a tree that a PUT of `data` at `now` has left; raise `InvalidData`.

        `now` is in milliseconds since 1970.
        """
        self._rules = rules
        self._engine = MemoryEngine()
        self._authorisation = Authorisation(
            rules=TrialRules(rules), kept_reads=KeptReads(ReadPool())
        )
        transaction = self._engine.begin()
        writer = NodeWriter(transaction)
        writer.apply(resolve(make_put(Place(ROOT), data), now, writer).changes)
        transaction.commit()

    def judge_read(
        self, path: Path, caller: Caller, now: int, query: QueryFacts | None = None
    ) -> TrialVerdict:
        """Return the verdict on a read of `path` at `now`, or on a query there."""

        def judge(nodes: Nodes) -> TrialVerdict:
            authorisation = self._authorisation
            allowed = caller.is_admin or self._rules.find_read(path, caller.auth, query)
            if allowed is None:
                allowed = authorisation.evaluate_read(path, caller, now, nodes, query)
            if caller.is_admin:
                return TrialVerdict(allowed, NOT_EVALUATED)
            read = ReadRequest(caller, path, query, lambda: now)
            return TrialVerdict(allowed, authorisation.explain_read(nodes, read))

        return self._engine.read(lambda view: judge(PresentNodes(view)))

    def judge_write(self, edit: Edit, caller: Caller, now: int) -> TrialVerdict:
        """Return the verdict on a write at `now`; raise `InvalidData` if it cannot be done."""
        write = Write(edit, now, caller, wants_echo=False)

        def judge(nodes: Nodes) -> TrialVerdict:
            resolved = resolve(edit, now, nodes)
            try:
                self._authorisation.check_write(nodes, write, resolved)
                allowed = True
            except PermissionDenied:
                allowed = False
            if caller.is_admin:
                return TrialVerdict(allowed, NOT_EVALUATED)
            return TrialVerdict(allowed, self._authorisation.explain_write(nodes, write))

        return self._engine.read(lambda view: judge(PresentNodes(view)))
