"""The resource of admins for functions of Firebase, which register here to be called.

The functions emulator POSTs one function after the other to `/.settings/functionTriggers.json`; one
that has registered before is replaced. `PUT` replaces all functions of the database, and those of
patterns of databases, by those of an array. `GET` lists those of the database.

A function is a hook of each database that it is for. One of the first generation is for the
database that the request addresses. One of the second names a database or a pattern, so it becomes
a hook of all databases that are of the pattern, also of those that are created later
(`first_hooks`).
A pattern is one of all databases for the owner of a daemon in development or emulator mode, and
else of those of the project.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

import attrs
from twisted.internet.defer import DeferredLock
from twisted.logger import Logger

from treedbd.database.catalog import Catalog
from treedbd.database.database import Database
from treedbd.database.event_capture import ChangeHooks
from treedbd.database.first_hooks import FirstHook, FirstHooks
from treedbd.database.requests import Caller, HookConflict, Unavailable, UnknownDatabase, Write
from treedbd.hooks.triggers import FunctionTrigger, parse_trigger, show_trigger
from treedbd.http1.request import IHttp1Request
from treedbd.limits import (
    MAX_FUNCTION_DATABASES,
    MAX_FUNCTION_PATTERNS,
    MAX_FUNCTIONS,
    MAX_FUNCTIONS_BYTES,
)
from treedbd.names import DatabaseName, parse_label
from treedbd.store.hooks import Hook
from treedbd.tree.edit import make_remove
from treedbd.tree.types import ROOT, InvalidData, Json, Place
from treedbd.tree.value import parse
from treedbd.web.auth.verifier import OWNER_TOKEN
from treedbd.web.databases import is_admin_of
from treedbd.web.request import DataRequest
from treedbd.web.response import Response, json_response
from treedbd.web.rules import explain_without_rules
from treedbd.web.write import read_small_body

if TYPE_CHECKING:
    from treedbd.web.resource import DataHandlers

_STAMP_BYTES: Final = 16
_NOTHING: Final = make_remove(Place(ROOT))
_REGISTRATION: Final = "Registering functions"


class NoFunctions(Exception):
    """No function can be called."""

    def __init__(self) -> None:
        super().__init__("No functions are called here: the configuration has no [functions] url.")


@attrs.frozen
class _Change:
    """What becomes of the hooks of one database: some are `removed` by their names, some added."""

    removed: frozenset[str] = frozenset()
    added: tuple[Hook, ...] = ()
    removes_all: bool = False

    def __call__(self, before: list[Hook]) -> list[Hook]:
        """Return the hooks after it; raise `HookConflict` for a name that a webhook has."""
        names = self.removed | {hook.name for hook in self.added}
        kept = []
        for hook in before:
            if not hook.trigger and hook.name in names:
                raise HookConflict(f"The hook {hook.name} is not a function: remove it.")
            if not hook.trigger or not (self.removes_all or hook.name in names):
                kept.append(hook)
        return [*kept, *self.added]


@attrs.frozen
class _Registration:
    """Functions that register.

    Attributes:
        database: the one that the request addresses.
        project: the only project of whose databases patterns are, None for all.
        hooks: the functions, as hooks.
        replaces_all: whether they replace all others.

    """

    database: DatabaseName
    project: str | None
    hooks: tuple[tuple[FunctionTrigger, Hook], ...]
    replaces_all: bool

    @property
    def firsts(self) -> list[FirstHook]:
        """Those that are for all databases of a pattern."""
        return [
            FirstHook(hook, self.project, trigger.instances)
            for trigger, hook in self.hooks
            if trigger.instances is not None and trigger.is_pattern
        ]

    def is_replaced(self, first: FirstHook) -> bool:
        """Return whether a function of a pattern of databases is replaced, or removed."""
        is_own = self.project in (None, first.project)
        return is_own and (self.replaces_all or first.hook.name in self.names())

    def names(self) -> set[str]:
        """Return the names of the hooks."""
        return {hook.name for _, hook in self.hooks}

    def single(self) -> dict[DatabaseName, list[Hook]]:
        """Return the functions that are for one database, by that; raise `InvalidData`."""
        found: dict[DatabaseName, list[Hook]] = {}
        for trigger, hook in self.hooks:
            if not trigger.is_pattern:
                named = trigger.instances
                name = self.database if named is None else parse_label(named)
                if name is None:
                    raise InvalidData("namespacePattern must be the name of a database.")
                found.setdefault(name, []).append(hook)
        if self.replaces_all:
            found.setdefault(self.database, [])
        return found


class FunctionHandlers:
    """Handles the requests of admins about functions."""

    _log = Logger()

    def __init__(self, data: DataHandlers, catalog: Catalog) -> None:
        """Serve the databases of `catalog`."""
        self._data = data
        self._catalog = catalog
        self._url = data.context.settings.functions.url
        self._clock = data.context.clock
        self._slices = data.context.reads.slices
        self._changing = DeferredLock()

    async def functions(
        self, request: IHttp1Request, wanted: DataRequest, database: Database
    ) -> Response:
        """List functions, or register some."""
        deadline = self._clock.seconds() + wanted.timeout_s
        what = _REGISTRATION if wanted.is_write else "Access to functions"
        identity = await self._data.identify_admin(wanted, database, what)
        if wanted.is_write:
            wanted.check_unconditional()
        if wanted.wants_explanation:
            return explain_without_rules(wanted, identity if wanted.is_write else None)
        if not wanted.is_write:
            return json_response(wanted, await self._list(database, wanted.timeout_s))
        if not self._url:
            raise NoFunctions
        now_ms = self._data.now_ms()
        triggers = _parse_body(read_small_body(request, MAX_FUNCTIONS_BYTES))
        registration = _Registration(
            database.name,
            None if wanted.token == OWNER_TOKEN else database.name.project,
            tuple((each, each.make_hook(self._url, now_ms)) for each in triggers),
            replaces_all=wanted.method == b"PUT",
        )
        await self._register(wanted, registration, deadline)
        return json_response(wanted, {"status": "ok"})

    async def _list(self, database: Database, timeout_s: float) -> Json:
        async with self._catalog.opened(database, timeout_s):
            hooks = [hook for hook in database.hooks() if hook.trigger]
        if not self._catalog.has_data(database.name):
            name = database.name
            hooks += await self._catalog.with_first_hooks(lambda firsts: firsts.of(name))
        return [show_trigger(hook) for hook in hooks]

    async def _register(
        self, wanted: DataRequest, registration: _Registration, deadline: float
    ) -> None:
        single, firsts = registration.single(), registration.firsts
        for name in single:
            await self._check_admin(wanted, registration.database, name)
        if len(await self._find(firsts)) > MAX_FUNCTION_DATABASES:
            raise InvalidData(
                f"The patterns are those of more than {MAX_FUNCTION_DATABASES} databases: name the "
                "databases."
            )
        # A database that is created from now on has the functions with its first write.
        async with self._changing:
            gone = await self._catalog.with_first_hooks(partial(_replace_firsts, registration))
        for name in {*single, *await self._find([*gone, *firsts])}:
            change = _Change(
                frozenset(each.hook.name for each in gone if each.is_of(name)),
                (*single.get(name, ()), *(each.hook for each in firsts if each.is_of(name))),
                removes_all=registration.replaces_all and name == registration.database,
            )
            await self._change(name, change, deadline)
        self._log.info(
            "Functions of {label} were registered: {names}.",
            label=registration.database.label,
            names=", ".join(sorted(registration.names())) or "none",
        )

    async def _check_admin(
        self, wanted: DataRequest, own: DatabaseName, name: DatabaseName
    ) -> None:
        """Raise `UnknownDatabase` for a database that does not exist, or is not the sender's."""
        if name.project != own.project and not await is_admin_of(self._data, wanted, name.project):
            raise UnknownDatabase(name, is_project_known=True)
        await self._data.identify_admin(wanted, self._catalog.find(name), _REGISTRATION)

    async def _find(self, firsts: Sequence[FirstHook]) -> list[DatabaseName]:
        """Return the databases with data that functions are for; some more than may be."""
        found: list[DatabaseName] = []
        if not firsts:
            return found
        for project in await self._slices.run(self._catalog.projects()):
            if not any(each.project in (None, project.name) for each in firsts):
                continue
            refreshing = self._catalog.refresh(project.name)
            if refreshing is not None:
                await refreshing
            found += [
                name
                for name in self._catalog.names(project)
                if self._catalog.has_data(name) and any(each.is_of(name) for each in firsts)
            ]
        return found

    async def _change(self, name: DatabaseName, change: _Change, deadline: float) -> None:
        now_ms = self._data.now_ms()
        task = ChangeHooks(change, secrets.token_bytes(_STAMP_BYTES), now_ms)
        database = self._catalog.find(name)
        timeout_s = max(0.0, deadline - self._clock.seconds())
        async with self._catalog.opened(database, timeout_s, is_write=True):
            await database.write(
                Write(
                    _NOTHING, now_ms, Caller(None), deadline=deadline, wants_echo=False, task=task
                )
            )
            database.tell_readers()


def _replace_firsts(registration: _Registration, firsts: FirstHooks) -> list[FirstHook]:
    """Store the functions of patterns, and return those that are gone; may block."""
    added = registration.firsts
    kept, gone = list[FirstHook](), list[FirstHook]()
    try:
        for each in firsts.find_readable():
            (gone if registration.is_replaced(each) else kept).append(each)
        if len(kept) + len(added) > MAX_FUNCTION_PATTERNS:
            raise InvalidData(
                f"More than {MAX_FUNCTION_PATTERNS} functions are for patterns of databases: PUT "
                "all that are needed."
            )
        if gone or added:
            firsts.replace([*kept, *added])
    except OSError as error:
        raise Unavailable(f"Functions cannot be stored: {error.strerror}.") from None
    return gone


def _parse_body(body: bytes) -> list[FunctionTrigger]:
    """Return the functions of a body: an object, or an array; raise `InvalidData`."""
    json = parse(body)
    each_of = json if isinstance(json, list) else [json]
    if len(each_of) > MAX_FUNCTIONS:
        raise InvalidData(f"An array has at most {MAX_FUNCTIONS} functions.")
    triggers = {each.name: each for each in map(parse_trigger, each_of)}
    return list(triggers.values())
