"""Queries without an index: refused if the project requires one, else logged once each.

Without an index a query reads all children of its path, and while one is still being built too. The
log says so, once for each; the refusal has the text of Firebase, which its clients know.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from twisted.logger import Logger

from treedbd.database.database import Database
from treedbd.errors import in_one_line
from treedbd.store.indexes import ChildIndex
from treedbd.tree.path import format_path
from treedbd.tree.query import Query
from treedbd.tree.types import InvalidQuery, Json, Path
from treedbd.web.request import index_of

MAX_LOGGED: Final = 1000
"""How many different missing indexes are logged, each once."""


class MissingIndexes:
    """Looks at queries before they run, and remembers those that it has logged.

    Attributes:
        unindexed: how many queries ran, or were to run, though no index was declared.

    """

    _log = Logger()

    def __init__(self) -> None:
        self.unindexed = 0
        self._logged: set[int] = set()  # hashes: paths can be long

    def check(
        self, database: Database, path: Path, query: Query, check_read: Callable[[], None]
    ) -> None:
        """Raise `InvalidQuery` for a query without an index if the project requires one.

        `check_read` raises for a caller who may not read the path. It is called before anything is
        said or logged of an index, because that shows what the rules declare.
        """
        index = index_of(query)
        if index is None and query.order.kind != "priority":
            return
        if not database.indexes.is_checked:
            database.indexes.check()
        if index is None:
            return
        if index in database.rules.current.indexed(path):
            self._say_building(database, path, query, index, check_read)
            return
        self.unindexed += 1
        is_required = database.project.require_index
        missing = hash((database.name.project, index, path))
        if not is_required and (missing in self._logged or len(self._logged) >= MAX_LOGGED):
            return
        check_read()
        if is_required:
            raise InvalidQuery(
                f'Index not defined, add ".indexOn": "{index}", for path '
                f'"{format_path(path)}", to the rules'
            )
        self._logged.add(missing)
        # It holds names that the client chose.
        shown = in_one_line(f'"{index}" for path "{format_path(path)}"')
        self._log.warn(
            '{project}: no ".indexOn" names {shown}, by which a query orders: it has read all '
            "children of the path. Add it to the rules there.",
            project=database.name.project,
            shown=shown,
        )

    def _say_building(
        self,
        database: Database,
        path: Path,
        query: Query,
        index: str,
        check_read: Callable[[], None],
    ) -> None:
        """Log once that a query has read all children because its index is not built yet."""
        if not database.indexes.is_changing:
            return
        building = hash((f"{database.name} ", index, path))
        is_logged = building in self._logged or len(self._logged) >= MAX_LOGGED
        if is_logged or database.indexes.stage_of(path, query.order) == "built":
            return
        check_read()
        self._logged.add(building)
        self._log.info(
            "The index {shown} in the database {name} is being built; until then such queries read "
            "all children of the path.",
            name=database.name.label,
            shown=in_one_line(f'"{index}" of path "{format_path(path)}"'),
        )


def explain_index(database: Database, path: Path, query: Query) -> Json:
    """Return which index a query uses, and its state: `built`, `building`, `none`, or `key`."""
    if query.order.kind == "key":
        return {"name": "$key", "state": "key"}
    name = ChildIndex((), query.order).name
    return {"name": name, "state": database.indexes.stage_of(path, query.order)}
