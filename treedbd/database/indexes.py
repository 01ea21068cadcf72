"""The indexes of one database: built in the background when rules declare them, else dropped.

Theory of operation. Which indexes there are, and how far each is built, is in the store
(`store.indexes`), and every write keeps them in its own transaction. `Indexes` compares that with
what the rules declare: when the database is used first, and when the rules change. What is missing
is built, what is not declared is dropped, in small steps, each of which is a transaction between
the batches of writes (`MaintenanceList`) and leaves everything right, whatever happens then.
Until an index is built queries read all children.
"""

from __future__ import annotations

from typing import Final

from twisted.logger import Logger

from treedbd.database.active_rules import ActiveRules
from treedbd.database.group_commit import MaintenanceList
from treedbd.database.requests import Unavailable
from treedbd.names import DatabaseName
from treedbd.store.engine import DamagedRow, DiskFull, Engine, StoreFailed, Transaction
from treedbd.store.indexes import (
    ChildIndex,
    IndexState,
    IndexStates,
    build_some,
    drop_some,
    order_named,
    read_states,
    write_states,
)
from treedbd.tree.path import format_path
from treedbd.tree.query import Order
from treedbd.tree.types import Path

MAX_INDEXES: Final = 1000
"""Indexes that rules may declare; what is beyond is not built."""
STEP_CHILDREN: Final = 1000
"""Children that are entered, and entries that are removed, in one transaction."""


class Indexes:
    """Keeps the indexes of a database as the rules declare them.

    Attributes:
        is_checked: whether they have been compared with the rules in force.
        is_changing: whether any is being built or dropped.

    """

    _log = Logger()

    def __init__(
        self,
        name: DatabaseName,
        engine: Engine,
        rules: ActiveRules,
        maintenance: MaintenanceList,
    ) -> None:
        """Compare with `rules`; do the steps by `maintenance`."""
        self.is_checked = False
        self.is_changing = False
        self._name = name
        self._engine = engine
        self._rules = rules
        self._maintenance = maintenance

    def rules_changed(self) -> None:
        """Compare again, the next time that the database is used."""
        self.is_checked = False

    def check(self) -> None:
        """Compare with the rules; begin to build or drop what differs.

        A store that cannot be read at present is compared later.
        """
        try:
            if self._engine.read(lambda view: view.sequence()) == 0:
                return  # nothing was ever written, so there may be no file either
            self.is_checked = True
            states = self._engine.read(read_states)
        except DamagedRow:
            self._log.error(
                "The database {name} has a damaged row of indexes: run treedb check.",
                name=self._name.label,
            )
            return
        except (StoreFailed, DiskFull, Unavailable):
            self.is_checked = False
            return
        if any(each.stage != "built" for each in states.states) or self._find_changed(states):
            self.is_changing = True
            self._maintenance.add(self._do_step)

    def stage_of(self, path: Path, order: Order) -> str:
        """Return the stage of the index for an order of the children of `path`, or `none`."""
        states = self._engine.read(read_states)
        if states.find(path, order) is not None:
            return "built"
        is_begun = any(each.order == order and each.matches(path) for each in states.kept)
        return "building" if is_begun else "none"

    def _do_step(self, transaction: Transaction) -> bool:
        """Do one step in a transaction; return False if there was nothing left to do."""
        states = read_states(transaction)
        changed = self._find_changed(states)
        if not changed and all(each.stage == "built" for each in states.states):
            self.is_changing = False
            return False
        for state in changed:
            states = states.with_state(state)
        if not changed:
            states = self._advance(transaction, states)
        write_states(transaction, states)
        return True

    def _find_changed(self, states: IndexStates) -> list[IndexState]:
        """Return the new states of the indexes that the rules gained or lost."""
        declared = self._declared()
        known = {each.index for each in states.states}
        lost = [
            IndexState(each.index, "dropping")
            for each in states.states
            if each.index not in declared and each.stage != "dropping"
        ]
        return lost + [IndexState(each, "building") for each in declared if each not in known]

    def _declared(self) -> list[ChildIndex]:
        found = []
        for pattern, name in sorted(self._rules.current.declared_indexes, key=repr):
            try:
                found.append(ChildIndex(pattern, order_named(name)))
            except ValueError:
                continue  # it is no path, so no query can ask for it
        if len(found) > MAX_INDEXES:
            self._log.warn(
                "Of the {count} indexes that the rules of the database {name} declare, "
                "{limit} are built.",
                name=self._name.label,
                count=len(found),
                limit=MAX_INDEXES,
            )
        return list(dict.fromkeys(found))[:MAX_INDEXES]

    def _advance(self, transaction: Transaction, states: IndexStates) -> IndexStates:
        """Build or drop some of the first index that is not complete."""
        state = next((each for each in states.states if each.stage != "built"), None)
        if state is None:
            return states
        index = state.index
        if state.stage == "dropping":
            if not drop_some(transaction, index, STEP_CHILDREN):
                return states
            # Declared again meanwhile, it is built from the beginning.
            return states.without(index)
        position = build_some(transaction, index, state.position, STEP_CHILDREN)
        if position is not None:
            return states.with_state(IndexState(index, "building", position))
        self._log.info(
            "The index {index} of {path} in the database {name} is built.",
            name=self._name.label,
            index=index.name,
            path=format_path(tuple("*" if key is None else key for key in index.pattern)),
        )
        return states.with_state(IndexState(index, "built"))
