"""The rights of callers: the rules in force, evaluated for one database.

`Authorisation` judges reads and writes. What the rules alone can decide is decided without a view
(`RuleSet.find_read`, `find_write`); only what depends on the data or the time needs a `Context`.
Rules are not evaluated for an admin. They are traced for a request that is sampled (`trace_rules`).

This module loads no Twisted: `rules_trial` judges with it where there is no daemon.
"""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic, perf_counter
from typing import Final, TypeVar

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
from treedbd.rules.context import Context, KeptReads, QueryFacts, SlowRulesReport
from treedbd.rules.document import TextPosition
from treedbd.rules.evaluate import Verdict
from treedbd.rules.ruleset import RuleSet
from treedbd.store.nodes import HeldNodes, Nodes
from treedbd.traces import Trace, now_ns
from treedbd.tree.edit import Edit, resolve
from treedbd.tree.overlay import Overlay
from treedbd.tree.types import Json, Path, View

T = TypeVar("T")

IS_ALLOWED: Final = "treedb.rules.allowed"


class Authorisation:
    """What callers may do in one database."""

    def __init__(
        self,
        *,
        rules: Callable[[], RuleSet],
        kept_reads: KeptReads,
        exceeded: Callable[[str, TextPosition], None] | None = None,
        seconds: Callable[[], float] = monotonic,
        admins_own: DatabaseName | None = None,
        slow_rules: SlowRulesReport | None = None,
        observe: Callable[[float], None] | None = None,
    ) -> None:
        """Evaluate the rules that `rules` returns; `kept_reads` are of the data of the database.

        `exceeded` is called with a rule that would have read too much (`Context`), `seconds` is the
        clock of the deadlines. `admins_own` is the name of the database if only an admin's write
        may create it. Slow rules are reported to `slow_rules`, and `observe` receives the seconds
        of an evaluation that needs a view; None measures nothing.
        """
        self._rules = rules
        self._exceeded = exceeded
        self._seconds = seconds
        self._kept_reads = kept_reads
        self._admins_own = admins_own
        self._slow_rules = slow_rules
        self._observe = observe

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

        return Context(
            auth,
            now,
            view,
            query,
            check=None if at_once else check,
            exceeded=self._exceeded,
            kept=None if isinstance(view, HeldNodes | Overlay) else self._kept_reads,
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
