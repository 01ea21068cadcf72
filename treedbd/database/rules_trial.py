"""A trial of rules: requests judged over a tree in memory, without a daemon.

The verdict is that of `Authorisation`, on the nodes of an engine, as in a daemon; so a request
cannot be judged differently there. Only the tree at the beginning is written. This module knows no
Twisted, and `treedb rules test` starts without it.
"""

from __future__ import annotations

from typing import Final

import attrs

from treedbd.database.requests import Caller, PermissionDenied, Write
from treedbd.database.rights import Authorisation
from treedbd.rules.context import KeptReads, QueryFacts, ReadPool
from treedbd.rules.evaluate import Verdict
from treedbd.rules.ruleset import RuleSet
from treedbd.store.memory import MemoryEngine
from treedbd.store.node_writer import NodeWriter
from treedbd.store.nodes import Nodes, PresentNodes
from treedbd.tree.edit import Edit, make_put, resolve
from treedbd.tree.types import ROOT, Json, Path, Place

NOT_EVALUATED: Final = Verdict(True)
"""The trace of a request of an admin, for whom no rule is evaluated."""


@attrs.frozen
class TrialVerdict:
    """The verdict on one request; `explained` has the trace of the rules that were evaluated."""

    allowed: bool
    explained: Verdict


class RulesTrial:
    """Rules, and the tree that they are tried on."""

    def __init__(self, rules: RuleSet, data: Json, now: int) -> None:
        """Try `rules` on a tree that a PUT of `data` at `now` has left; raise `InvalidData`.

        `now` is in milliseconds since 1970.
        """
        self._rules = rules
        self._engine = MemoryEngine()
        self._authorisation = Authorisation(rules=lambda: rules, kept_reads=KeptReads(ReadPool()))
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
            context = authorisation.context(caller.auth, now, nodes, query)
            explained = NOT_EVALUATED
            if not caller.is_admin:
                explained = self._rules.may_read(path, context, explain=True)
            return TrialVerdict(allowed, explained)

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
