"""Queries without an index: refused if the project requires one, else logged once each.

Declaring an index makes no query faster yet: rules declare them, and nothing keeps them. So the log
says what such a query costs, and the refusal has the text of Firebase, which its clients know.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from twisted.logger import Logger

from treedbd.database.database import Database
from treedbd.text import in_one_line
from treedbd.tree.errors import InvalidQuery
from treedbd.tree.path import format_path
from treedbd.tree.query import Query
from treedbd.tree.types import Path
from treedbd.web.read_options import index_of

MAX_LOGGED: Final = 1000
"""How many different missing indexes are logged, each once."""


class MissingIndexes:
    """Looks at queries before they run, and remembers those that it has logged."""

    _log = Logger()

    def __init__(self) -> None:
        self._logged: set[tuple[str, str, Path]] = set()

    def check(
        self, database: Database, path: Path, query: Query, check_read: Callable[[], None]
    ) -> None:
        """Raise `InvalidQuery` for a query without an index if the project requires one.

        `check_read` raises for a caller who may not read the path. It is called before anything is
        said or logged of an index, because that shows what the rules declare.
        """
        index = index_of(query)
        if index is None or index in database.rules.current.indexed(path):
            return
        is_required = database.project.require_index
        missing = (database.name.project, index, path)
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
        self._log.info(
            '{project}: no ".indexOn" names {shown}, by which a query orders. It has read all '
            "children of the path, as every query by a child or a value does: indexes are declared "
            "only, and not used yet.",
            project=database.name.project,
            shown=shown,
        )
