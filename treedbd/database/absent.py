"""A database that its project does not list, and that says so only to callers with a right to it.

To other callers it is like a database that they may not read or write, so that no answer tells
which databases there are: the rules of the project are evaluated against an empty tree, and deny.
"""

from __future__ import annotations

from typing import NoReturn

from twisted.internet.defer import Deferred, succeed

from treedbd.database.database import Database
from treedbd.database.errors import UnknownDatabase
from treedbd.database.requests import Caller, Outcome, Write
from treedbd.rules.context import QueryFacts
from treedbd.store.nodes import Nodes
from treedbd.tree.edit import resolve
from treedbd.tree.types import Path


class AbsentDatabase(Database):
    """Empty for ever: what the rules allow raises `UnknownDatabase`, and nothing is written."""

    is_absent = True

    def check_exists(self) -> NoReturn:
        """Raise `UnknownDatabase`; for callers who have a right to know."""
        raise self._unknown

    def may_read_without_data(self, path: Path, caller: Caller, query: object = None) -> None:
        """Return None: `check_read` must be called, even if the rules allow the read."""

    def check_read(
        self, path: Path, caller: Caller, now: int, nodes: Nodes, query: QueryFacts | None = None
    ) -> NoReturn:
        """Raise `PermissionDenied`, or `UnknownDatabase` if the rules allow the read."""
        super().check_read(path, caller, now, nodes, query)
        raise self._unknown

    def write(self, write: Write) -> Deferred[Outcome]:
        """Raise the error that refuses the write, or `UnknownDatabase` if the rules allow it."""
        return succeed(self.read(lambda nodes: self._refuse(nodes, write)))

    def _refuse(self, nodes: Nodes, write: Write) -> Outcome:
        edit = resolve(write.edit, write.now, nodes)
        self._authorisation.check_write(nodes, write, edit)
        is_nothing = not edit.changes  # which any caller may write
        may_read = self._authorisation.evaluate_read
        if is_nothing and not may_read(edit.place.path, write.caller, write.now, nodes):
            return Outcome(edit, None, edit.sent, None)
        raise self._unknown

    @property
    def _unknown(self) -> UnknownDatabase:
        return UnknownDatabase(self.name, is_project_known=True)
