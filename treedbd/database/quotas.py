"""What one database may hold, and whether a write would make it more than that.

A write is counted while it is applied (`store.usage`) and judged afterwards, before it is logged.
If it is refused, its rows are brought back, and the other writes of its batch do not notice. What
only removes is never refused, and neither is what leaves less than there was. As long as not all is
counted nothing is refused: after a quota was set for data that is there already, all of it is
counted first, in the background.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import attrs

from treedbd.database.group_commit import Maintenance
from treedbd.database.requests import ProjectSpec, QuotaExceeded
from treedbd.names import DatabaseName
from treedbd.store.engine import ReadView, Transaction
from treedbd.store.usage import CountedRows, Usage, count_some, read_usage, write_usage
from treedbd.tree.edit import Edit


class Quotas:
    """The quotas of one database, of which there is at least one.

    Attributes:
        name: that of the database.
        max_bytes, max_nodes: how much it may hold, 0 for any number.

    """

    def __init__(
        self, name: DatabaseName, project: ProjectSpec, maintain: Callable[[Maintenance], None]
    ) -> None:
        """Count what is not counted yet by `maintain` (`MaintenanceList`)."""
        self.name: Final = name
        self.max_bytes: Final = project.database_bytes
        self.max_nodes: Final = project.database_nodes
        self._maintain = maintain

    def read(self, view: ReadView) -> Usage:
        """Return how much there is, as far as it is counted."""
        return read_usage(view, counts_nodes=bool(self.max_nodes))

    def count_some(self, transaction: Transaction) -> bool:
        """Count some of what is not counted; return False if all is."""
        return count_some(transaction, counts_nodes=bool(self.max_nodes))

    def begin(self, transaction: Transaction, *, is_large: bool = False) -> CountedWrite:
        """Return what a write is applied to; a large one is undone with its transaction."""
        before = self.read(transaction)
        if not before.is_complete:
            self._maintain(self.count_some)
        rows = CountedRows(
            transaction,
            before.position,
            counts_nodes=bool(self.max_nodes),
            keeps_undo=not is_large,
        )
        return CountedWrite(self, rows, before)


@attrs.frozen(eq=False)
class CountedWrite:
    """A write that is counted.

    Attributes:
        quotas: what bounds it.
        rows: the transaction to which it is applied.
        before: how much there was.

    """

    quotas: Quotas
    rows: CountedRows
    before: Usage

    def judge(self, edit: Edit) -> None:
        """Raise `QuotaExceeded` for a write that was applied, and undo it."""
        rows, before, quotas = self.rows, self.before, self.quotas
        only_removes = all(each.value is None for each in edit.changes)
        if only_removes or rows.has_shrunk or not before.is_complete:
            return
        for more, there, quota, what in (
            (rows.size, before.size, quotas.max_bytes, "bytes"),
            (rows.nodes, before.nodes or 0, quotas.max_nodes, "nodes"),
        ):
            if quota and more > 0 and there + more > quota:
                rows.undo()
                raise QuotaExceeded(quotas.name, what, quota)

    def record(self, sequence: int) -> None:
        """Record what a write has changed, under the number that it was logged with."""
        rows, before = self.rows, self.before
        nodes = None if before.nodes is None else before.nodes + rows.nodes
        usage = Usage(before.size + rows.size, nodes, sequence, before.position)
        write_usage(rows, usage)


def make_quotas(
    name: DatabaseName, project: ProjectSpec, maintain: Callable[[Maintenance], None]
) -> Quotas | None:
    """Return the quotas of a database, None if it has none."""
    if not (project.database_bytes or project.database_nodes):
        return None
    return Quotas(name, project, maintain)
