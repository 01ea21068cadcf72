"""Resources of admins: the projects that they manage, and the creation and deletion of databases.

`DatabaseHandlers` has a method for each. A database that is created is empty, and exists from then
on, as after a first write. One that is deleted goes with all that belongs to it: what is in it, its
change log, its indexes, what its sessions have left for their ends. The rules are those of the
project, and stay.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from twisted.internet.task import deferLater
from twisted.logger import Logger

from treedbd.database.catalog import Catalog
from treedbd.database.database import Database
from treedbd.database.requests import (
    Caller,
    DatabaseExists,
    DeadlinePassed,
    ProjectSpec,
    UnknownDatabase,
)
from treedbd.http1.request import IHttp1Request
from treedbd.names import DatabaseName, parse_label
from treedbd.tree.types import InvalidQuery, Json
from treedbd.web.activity import Activity
from treedbd.web.auth.identity import AuthRequired, NotAdmin
from treedbd.web.auth.jwt import BadToken
from treedbd.web.auth.providers import ProviderUnavailable
from treedbd.web.reading import before_deadline
from treedbd.web.request import DataRequest
from treedbd.web.response import Response, json_response
from treedbd.web.rules import explain_without_rules

if TYPE_CHECKING:
    from treedbd.web.resource import DataHandlers

MAX_SHOWN: Final = 1000
"""Databases of all projects that are shown together."""
AT_ONCE: Final = 20
"""Projects whose callers are identified in one turn of the reactor."""
_NOT_AN_ADMIN: Final = (AuthRequired, BadToken, DeadlinePassed, NotAdmin, ProviderUnavailable)


class DatabaseHandlers:
    """Handles the requests of admins that list, create and delete databases."""

    _log = Logger()

    def __init__(self, data: DataHandlers, catalog: Catalog, activity: Activity | None) -> None:
        """Serve `catalog`; `activity` measures what its databases take on the disk."""
        self._data = data
        self._catalog = catalog
        self._clock = data.context.clock
        self._slices = data.context.reads.slices
        self._activity = activity or Activity(data.context.clock)
        self._creating: set[DatabaseName] = set()

    async def projects(self, _: IHttp1Request, wanted: DataRequest, database: Database) -> Response:
        """List the projects of which the caller is an admin, with their databases."""
        await self._data.identify_admin(wanted, database, "Access to the list of projects")
        if wanted.wants_explanation:
            return explain_without_rules(wanted)
        await self._refresh(database)
        own = database.project.name
        specs = {each.name: each for each in await self._slices.run(self._catalog.projects())}
        specs.setdefault(own, database.project)
        shown: list[Json] = []
        room = MAX_SHOWN
        for at, (name, spec) in enumerate(sorted(specs.items())):
            if at % AT_ONCE == AT_ONCE - 1:
                await deferLater(self._clock, 0)
            if name == own or await is_admin_of(self._data, wanted, name):
                names = self._catalog.names(spec)
                shown.append(await self._show(spec, names[:room], count=len(names)))
                room = max(0, room - len(names))
        return json_response(wanted, shown)

    async def _show(self, spec: ProjectSpec, names: list[DatabaseName], *, count: int) -> Json:
        """Return a project as it is shown; it has `count` databases in all."""
        stored = await self._activity.measure(names)
        return {
            "name": spec.name,
            "databases": [
                {"name": name.label, "database": name.database, "bytes": size}
                for name, size in zip(names, stored, strict=True)
            ],
            "can_create": spec.databases is None and count < spec.databases_max,
        }

    async def database(
        self, request: IHttp1Request, wanted: DataRequest, database: Database
    ) -> Response:
        """Create a database, or delete it."""
        deadline = self._clock.seconds() + wanted.timeout_s
        is_deletion = wanted.method == b"DELETE"
        what = "Deleting a database" if is_deletion else "Creating a database"
        identity = await self._data.identify_admin(wanted, database, what)
        wanted.check_unconditional()
        if wanted.wants_explanation:
            return explain_without_rules(wanted, identity)
        name = database.name
        if is_deletion:
            _check_confirmed(wanted, name)
        await self._refresh(database)
        if is_deletion:
            if name not in self._catalog.names(database.project):
                raise UnknownDatabase(name, is_project_known=True)
            # What has begun is finished, also if the client disconnects, or its time is over.
            deleting = self._catalog.delete(name)
            await before_deadline(deleting, deadline, self._clock, "the database was deleted")
            self._log.info("The database {label} is deleted by an admin.", label=name.label)
        else:
            audit = self._data.context.audit
            origin = None if audit is None else audit.origin(request, identity)
            caller = Caller(identity.auth, identity.is_admin, origin)
            await self._create(database, caller, deadline, wanted.timeout_s)
            self._log.info("The database {label} is created by an admin.", label=name.label)
        return json_response(wanted, {"name": name.label})

    async def _create(
        self, database: Database, caller: Caller, deadline: float, timeout_s: float
    ) -> None:
        """Create an empty database; raise `DatabaseExists`."""
        catalog, name = self._catalog, database.name
        if name in self._creating:
            raise DatabaseExists(name)
        self._creating.add(name)
        try:
            async with catalog.opened(database, timeout_s, is_write=True):
                if catalog.exists(name):
                    raise DatabaseExists(name)
                await database.create(caller, self._data.now_ms(), deadline)
        finally:
            self._creating.discard(name)

    async def _refresh(self, database: Database) -> None:
        refreshing = self._catalog.refresh(database.name.project)
        if refreshing is not None:
            await refreshing


async def is_admin_of(data: DataHandlers, wanted: DataRequest, project: str) -> bool:
    """Return whether the sender of a request is an admin of a project; False if that is unknown."""
    try:
        return await data.is_admin(wanted, project)
    except _NOT_AN_ADMIN:
        return False


def _check_confirmed(wanted: DataRequest, name: DatabaseName) -> None:
    """Raise `InvalidQuery` unless the request names the database that it deletes a second time."""
    text = wanted.parameters.get("confirm")
    if text is None or parse_label(text) != name:
        raise InvalidQuery(
            f"confirm must be the name of the database that is deleted, {name.label}."
        )
