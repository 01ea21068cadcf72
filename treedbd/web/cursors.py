"""The resource of admins for the readers of change logs: where each is, and removal.

`GET /.settings/cursors.json` lists the cursors of the databases of which the caller is an admin, in
the order of projects and databases. Each database is opened for it, one after the other, so one
answer has at most `MAX_DATABASES` of them, and ends early after `ANSWER_S`: `next` is the database
after which the next request continues (`startAfter`), null at the end. `DELETE` removes the cursor
`cursor` of `database`, which is the one that the request addresses if it names none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import attrs
from twisted.internet.task import deferLater
from twisted.logger import Logger

from treedbd.database.catalog import Catalog
from treedbd.database.database import Database
from treedbd.database.log_reader import remove_cursor
from treedbd.database.reader_lags import ReaderLag, show_time
from treedbd.database.requests import DatabaseDeleted, Unavailable, UnknownCursor, UnknownDatabase
from treedbd.http1.request import IHttp1Request
from treedbd.names import DatabaseName, parse_label
from treedbd.store.cursors import NAME, read_cursor
from treedbd.store.engine import CannotOpenStore, DamagedPage, DamagedRow, StoreDamaged, StoreFailed
from treedbd.tree.query import parse_limit
from treedbd.tree.types import InvalidQuery, Json
from treedbd.web.databases import AT_ONCE, is_admin_of
from treedbd.web.request import DataRequest, Parameters, find_single_parameter
from treedbd.web.response import Response, json_response
from treedbd.web.rules import explain_without_rules

if TYPE_CHECKING:
    from treedbd.web.resource import DataHandlers

MAX_DATABASES: Final = 100
"""Databases that one answer has at most."""
ANSWER_S: Final = 5.0
"""Seconds after which an answer ends, if there are more databases."""
REMOVAL: Final = "Removing a cursor"
_UNREADABLE: Final = (
    *(CannotOpenStore, DamagedPage, DamagedRow, StoreDamaged, StoreFailed, Unavailable),
)


class CursorHandlers:
    """Handles the requests of admins about the readers of change logs."""

    _log = Logger()

    def __init__(self, data: DataHandlers, catalog: Catalog) -> None:
        """Serve the databases of `catalog`."""
        self._data = data
        self._catalog = catalog
        self._clock = data.context.clock
        self._slices = data.context.reads.slices

    async def cursors(
        self, request: IHttp1Request, wanted: DataRequest, database: Database
    ) -> Response:
        """List cursors, or remove one."""
        is_removal = wanted.method == b"DELETE"
        what = REMOVAL if is_removal else "Access to the readers of change logs"
        identity = await self._data.identify_admin(wanted, database, what)
        if is_removal:
            wanted.check_unconditional()
        if wanted.wants_explanation:
            return explain_without_rules(wanted, identity if is_removal else None)
        deadline = self._clock.seconds() + wanted.timeout_s
        only = _parse_name("database", find_single_parameter(request.uri, "database"))
        if not is_removal:
            page = _Page.parse(wanted.parameters, only)
            return json_response(wanted, await self._list(wanted, database, page, deadline))
        cursor = find_single_parameter(request.uri, "cursor") or ""
        if not NAME.fullmatch(cursor):
            raise InvalidQuery("cursor must be the name of the cursor that is removed.")
        if only is not None and only != database.name:
            database = await self._find(wanted, only)
        await self._remove(database, cursor, wanted.timeout_s, deadline)
        return json_response(wanted, {"database": database.name.label, "name": cursor})

    async def _find(self, wanted: DataRequest, name: DatabaseName) -> Database:
        """Return another database of the caller; raise `UnknownDatabase` if it is not one."""
        if not await is_admin_of(self._data, wanted, name.project):
            raise UnknownDatabase(name, is_project_known=True)
        database = self._catalog.find(name)
        await self._data.identify_admin(wanted, database, REMOVAL)
        return database

    # Listing.

    async def _list(
        self, wanted: DataRequest, database: Database, page: _Page, deadline: float
    ) -> Json:
        end = min(deadline, self._clock.seconds() + ANSWER_S)
        names = await self._find_names(wanted, database, page)
        shown: list[Json] = []
        unreadable: list[Json] = []
        last: DatabaseName | None = None
        for name in names[: page.limit]:
            if last is not None and self._clock.seconds() >= end:
                break
            last = name
            try:
                shown += [_show(name, each) for each in await self._look(name, deadline)]
            except (DatabaseDeleted, UnknownDatabase):
                continue  # meanwhile
            except _UNREADABLE:
                unreadable.append(name.label)
        is_end = last is None or last == names[-1]
        return {
            "cursors": shown,
            "unreadable": unreadable,
            "next": None if last is None or is_end else last.label,
        }

    async def _find_names(
        self, wanted: DataRequest, database: Database, page: _Page
    ) -> list[DatabaseName]:
        """Return the databases of a page, and one more if there is one.

        Raises `UnknownDatabase` if the only one does not exist, or is not one of the caller.
        """
        own = database.project
        specs = {each.name: each for each in await self._slices.run(self._catalog.projects())}
        specs.setdefault(own.name, own)
        found: list[DatabaseName] = []
        for at, project in enumerate(sorted(filter(page.has_some_of, specs))):
            if at % AT_ONCE == AT_ONCE - 1:
                await deferLater(self._clock, 0)
            if project != own.name and not await is_admin_of(self._data, wanted, project):
                continue
            refreshing = self._catalog.refresh(project)
            if refreshing is not None:
                await refreshing
            found += filter(page.has, self._catalog.names(specs[project]))
            if len(found) > page.limit:
                break
            await deferLater(self._clock, 0)
        if page.only is not None and not found:
            raise UnknownDatabase(page.only, is_project_known=True)
        return found[: page.limit + 1]

    async def _look(self, name: DatabaseName, deadline: float) -> list[ReaderLag]:
        """Return the readers of a database, which is opened for that."""
        database = self._catalog.find(name)
        timeout_s = max(0.0, deadline - self._clock.seconds())
        async with self._catalog.opened(database, timeout_s):
            return self._catalog.readers.look(database)

    # Removal.

    async def _remove(
        self, database: Database, cursor: str, timeout_s: float, deadline: float
    ) -> None:
        async with self._catalog.opened(database, timeout_s, is_write=True):
            if database.read(lambda nodes: read_cursor(nodes.rows.stored, cursor)) is None:
                raise UnknownCursor(cursor, database.name)
            await remove_cursor(database, cursor, self._data.now_ms(), deadline)
            self._catalog.readers.look(database)  # so that no problem is reported
        label = database.name.label
        self._log.info("The cursor {cursor} of {label} is removed.", cursor=cursor, label=label)


@attrs.frozen
class _Page:
    """Which databases an answer has: those after one, in order, or only one."""

    after: DatabaseName | None
    only: DatabaseName | None
    limit: int

    @classmethod
    def parse(cls, parameters: Parameters, only: DatabaseName | None) -> _Page:
        """Return what a request asks for; raise `InvalidQuery`."""
        limit = parse_limit(parameters, "limitToFirst") or MAX_DATABASES
        after = _parse_name("startAfter", parameters.get("startAfter"))
        return cls(after, only, min(limit, MAX_DATABASES))

    def has_some_of(self, project: str) -> bool:
        """Return whether it may have databases of a project."""
        if self.only is not None:
            return project == self.only.project
        return self.after is None or project >= self.after.project

    def has(self, name: DatabaseName) -> bool:
        """Return whether it has a database, if it is long enough."""
        if self.only is not None:
            return name == self.only
        return self.after is None or _order(name) > _order(self.after)


def _order(name: DatabaseName) -> tuple[str, str]:
    return name.project, name.database


def _parse_name(parameter: str, text: str | None) -> DatabaseName | None:
    if text is None:
        return None
    name = parse_label(text)
    if name is None:
        raise InvalidQuery(f"{parameter} must be the name of a database, as in room--shop.")
    return name


def _show(name: DatabaseName, reader: ReaderLag) -> Json:
    cursor, lag = reader.cursor, reader.lag
    return {
        "database": name.label,
        "name": cursor.name,
        "seq": cursor.sequence,
        "entries": lag.entries,
        "bytes": lag.bytes,
        "seconds": round(lag.seconds, 3),
        "whole": cursor.is_whole,
        "created": show_time(cursor.created_ms),
        "moved": show_time(cursor.moved_ms),
        "dropped": None if cursor.dropped_ms is None else show_time(cursor.dropped_ms),
    }
