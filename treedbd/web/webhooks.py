"""The resource of admins for the hooks of a database: listed, put, removed.

`GET /.settings/webhooks.json` lists the hooks of the database that the request addresses, those of
the configuration too, with what is known of each: where its cursor in the change log is, and what
`describe` adds. `PUT` creates or replaces one, or several in an array, all of them or none.
`DELETE` removes the one that `name` names.

A secret is shown once, in the answer to the `PUT` that had one made. While receivers are given
another one, the old one signs too: at most two do.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast

import attrs
from twisted.logger import Logger

from treedbd.database.catalog import Catalog
from treedbd.database.database import Database
from treedbd.database.event_capture import ChangeHooks
from treedbd.database.reader_lags import ReaderLag, show_time
from treedbd.database.requests import Caller, HookConflict, UnknownHook, Write
from treedbd.errors import find_similar
from treedbd.http1.request import IHttp1Request
from treedbd.limits import (
    MAX_HOOK_SECRET_CHARACTERS,
    MAX_HOOKS,
    MAX_HOOKS_BODY_BYTES,
    MIN_HOOK_SECRET_CHARACTERS,
)
from treedbd.names import InvalidTarget, check_hook_url
from treedbd.store.hooks import FORMS, HOOK_NAME, KINDS, Form, Hook, Kind
from treedbd.tree.edit import make_remove
from treedbd.tree.pattern import InvalidPattern, PathPattern, parse_pattern
from treedbd.tree.types import ROOT, InvalidData, InvalidQuery, Json, Place
from treedbd.tree.value import parse
from treedbd.web.request import DataRequest, find_single_parameter
from treedbd.web.response import Response, json_response
from treedbd.web.rules import explain_without_rules
from treedbd.web.write import read_small_body

if TYPE_CHECKING:
    from treedbd.config.settings import Settings
    from treedbd.web.resource import DataHandlers

Describe: TypeAlias = Callable[[Database, Hook], Mapping[str, Json]]
"""Returns what is known of a hook beside its cursor, as members of its `state`."""
Change: TypeAlias = Callable[[list[Hook]], list[Hook]]

_MEMBERS: Final = ("name", "on", "events", "url", "form", "secret", "keep_old_secret")
_NEEDED: Final = ("name", "on", "events", "url")
_ALL: Final = "written"
_SECRET_BYTES: Final = 32
_STAMP_BYTES: Final = 16
_NOTHING: Final = make_remove(Place(ROOT))
_log = Logger()


@attrs.frozen
class Definition:
    """A hook as an admin defines it.

    Attributes:
        secret: signs what is sent; None for the one that the hook has, or a new one if it has none.
        makes_secret: whether a new one is made even if it has one.
        keeps_old: whether the secret that is replaced signs too; None if that stays as it is.

    """

    name: str
    on: PathPattern
    kinds: frozenset[Kind]
    url: str
    form: Form
    secret: str | None = attrs.field(repr=False)
    makes_secret: bool
    keeps_old: bool | None

    def secrets_after(self, before: Sequence[str], made: str) -> tuple[str, ...]:
        """Return the secrets of the hook that had those `before`; `made` is a new one."""
        latest = self.secret
        if latest is None and (self.makes_secret or not before):
            latest = made
        if latest is None or latest in before[:1]:
            return tuple(before[:1] if self.keeps_old is False else before)
        return (latest, *(before[:1] if self.keeps_old else ()))


def parse_definitions(body: bytes, settings: Settings) -> tuple[list[Definition], bool]:
    """Return the hooks that a body defines, and whether it is an array; raise `InvalidData`."""
    json: Any = parse(body)
    each_of = json if isinstance(json, list) else [json]
    if not 1 <= len(each_of) <= MAX_HOOKS:
        raise InvalidData(f"An array has 1 to {MAX_HOOKS} hooks.")
    found = [_parse_definition(each, settings) for each in each_of]
    names = [each.name for each in found]
    for name in names:
        if names.count(name) > 1:
            raise InvalidData(f"The array has two hooks with the name {name}.")
    return found, isinstance(json, list)


def _parse_definition(json: Any, settings: Settings) -> Definition:
    if not isinstance(json, dict):
        raise InvalidData(f"A hook is an object with {', '.join(_MEMBERS)}.")
    for member in json:
        if member not in _MEMBERS:
            close = find_similar(member, _MEMBERS)
            known = f"did you mean {close}?" if close else f"it has {', '.join(_MEMBERS)}"
            raise InvalidData(f"A hook has no member {member!r}: {known}")
    for member in _NEEDED:
        if member not in json:
            raise InvalidData(f"A hook needs {member}.")
    keeps_old = json.get("keep_old_secret")
    if "keep_old_secret" in json and not isinstance(keeps_old, bool):
        raise InvalidData("keep_old_secret must be true or false.")
    return Definition(
        name=_parse_name(json["name"]),
        on=_parse_pattern(json["on"]),
        kinds=_parse_kinds(json["events"]),
        url=_parse_url(json["url"], settings),
        form=_parse_form(json.get("form", "event")),
        secret=_parse_secret(json.get("secret")),
        makes_secret="secret" in json and json["secret"] is None,
        keeps_old=keeps_old,
    )


def _parse_name(json: Any) -> str:
    if not isinstance(json, str) or not HOOK_NAME.fullmatch(json):
        raise InvalidData("name must have a-z, 0-9 and hyphens, 50 characters at most.")
    return json


def _parse_pattern(json: Any) -> PathPattern:
    if not isinstance(json, str):
        raise InvalidData("on must be the pattern of a path, such as /orders/$id.")
    try:
        return parse_pattern(json)
    except InvalidPattern as error:
        raise InvalidData(f"on: {error}") from None


def _parse_kinds(json: Any) -> frozenset[Kind]:
    if json == [_ALL]:
        return frozenset(KINDS)
    is_list = isinstance(json, list) and json and all(isinstance(each, str) for each in json)
    if not is_list or not set(json) <= set(KINDS):
        raise InvalidData(
            'events must be an array of "created", "updated" and "deleted", or ["written"] for all.'
        )
    return frozenset(cast("list[Kind]", json))


def _parse_url(json: Any, settings: Settings) -> str:
    if not isinstance(json, str):
        raise InvalidData("url must be a string.")
    try:
        check_hook_url(json, settings.webhooks.allow, is_development=settings.development)
    except InvalidTarget as error:
        raise InvalidData(f"url {error}.") from None
    return json


def _parse_form(json: Any) -> Form:
    if json not in FORMS:
        raise InvalidData(f"form must be {', '.join(FORMS[:-1])} or {FORMS[-1]}.")
    return cast("Form", json)


def _parse_secret(json: Any) -> str | None:
    if json is None:
        return None
    is_text = isinstance(json, str) and json.isascii() and json.isprintable()
    lowest, highest = MIN_HOOK_SECRET_CHARACTERS, MAX_HOOK_SECRET_CHARACTERS
    if not is_text or not lowest <= len(json) <= highest:
        raise InvalidData(
            f"secret must have {lowest} to {highest} printable characters of ASCII, or be null for "
            "one that is made."
        )
    return str(json)


def _describe_nothing(_: Database, __: Hook) -> Mapping[str, Json]:
    return {}


class WebhookHandlers:
    """Handles the requests of admins about the hooks of a database.

    Attributes:
        describe: returns what else is known of a hook.

    """

    def __init__(self, data: DataHandlers, catalog: Catalog) -> None:
        """Serve the databases of `catalog`."""
        self.describe: Describe = _describe_nothing
        self._data = data
        self._catalog = catalog
        self._settings = data.context.settings
        self._clock = data.context.clock

    async def webhooks(
        self, request: IHttp1Request, wanted: DataRequest, database: Database
    ) -> Response:
        """List hooks, put some, or remove one."""
        deadline = self._clock.seconds() + wanted.timeout_s
        is_change = wanted.method in (b"PUT", b"DELETE")
        what = "Changing hooks" if is_change else "Access to hooks"
        identity = await self._data.identify_admin(wanted, database, what)
        if is_change:
            wanted.check_unconditional()
        if wanted.wants_explanation:
            return explain_without_rules(wanted, identity if is_change else None)
        if wanted.method == b"PUT":
            return await self._put(request, wanted, database, deadline)
        if wanted.method == b"DELETE":
            return await self._remove(request, wanted, database, deadline)
        async with self._catalog.opened(database, wanted.timeout_s):
            return json_response(wanted, {"webhooks": [*self._list(database, database.hooks())]})

    async def _put(
        self, request: IHttp1Request, wanted: DataRequest, database: Database, deadline: float
    ) -> Response:
        body = read_small_body(request, MAX_HOOKS_BODY_BYTES)
        definitions, is_array = parse_definitions(body, self._settings)
        putting = _Putting(definitions, self._data.now_ms())
        async with self._catalog.opened(database, wanted.timeout_s, is_write=True):
            await self._change(database, putting, deadline)
            names = {each.name: at for at, each in enumerate(definitions)}
            put = [hook for hook in database.hooks() if hook.name in names]
            put.sort(key=lambda hook: names[hook.name])
            shown = self._list(database, put)
        for each in shown:
            made = putting.shown.get(str(each["name"]))
            if made is not None:
                each["secret"] = made
        _note("put", database, names)
        return json_response(wanted, {"webhooks": [*shown]} if is_array else shown[0])

    async def _remove(
        self, request: IHttp1Request, wanted: DataRequest, database: Database, deadline: float
    ) -> Response:
        name = find_single_parameter(request.uri, "name") or ""
        if not HOOK_NAME.fullmatch(name):
            raise InvalidQuery("name must be the name of the hook that is removed.")
        async with self._catalog.opened(database, wanted.timeout_s, is_write=True):
            configured = [hook.name for hook in database.hooks() if hook.is_configured]

            def remove(before: list[Hook]) -> list[Hook]:
                after = [hook for hook in before if hook.name != name]
                if len(after) == len(before):
                    if name in configured:
                        raise HookConflict(
                            f"The hook {name} is in the configuration: remove it there."
                        )
                    raise UnknownHook(name)
                return after

            await self._change(database, remove, deadline)
        _note("removed", database, [name])
        return json_response(wanted, {"database": database.name.label, "name": name})

    async def _change(self, database: Database, change: Change, deadline: float) -> None:
        now = self._data.now_ms()
        task = ChangeHooks(change, secrets.token_bytes(_STAMP_BYTES), now)
        await database.write(
            Write(_NOTHING, now, Caller(None), deadline=deadline, wants_echo=False, task=task)
        )
        database.tell_readers()

    def _list(self, database: Database, hooks: Iterable[Hook]) -> list[dict[str, Json]]:
        cursors = {each.cursor.name: each for each in self._catalog.readers.look(database)}
        is_volatile = database.rules.current.makes_volatile
        return [
            {
                **_show(hook),
                **({"volatile": True} if is_volatile(hook.on.keys) else {}),
                "state": {
                    **_show_cursor(cursors.get(hook.cursor)),
                    **self.describe(database, hook),
                },
            }
            for hook in hooks
        ]


class _Putting:
    """Puts hooks among those that there are.

    Attributes:
        shown: the secrets that were made, by the names of hooks.

    """

    def __init__(self, definitions: Sequence[Definition], now_ms: int) -> None:
        self.shown: dict[str, str] = {}
        self._definitions = definitions
        self._now_ms = now_ms
        self._made = {each.name: secrets.token_hex(_SECRET_BYTES) for each in definitions}

    def __call__(self, before: list[Hook]) -> list[Hook]:
        """Return the hooks; raise `HookConflict` for a name that is not one of a webhook."""
        hooks = {hook.name: hook for hook in before}
        self.shown.clear()
        for each in self._definitions:
            old = hooks.get(each.name)
            if old is not None and (old.trigger or old.url is None):
                raise HookConflict(
                    f"The hook {each.name} is not a webhook: choose another name, or remove it."
                )
            made = self._made[each.name]
            hook = Hook(
                name=each.name,
                on=each.on,
                kinds=each.kinds,
                url=each.url,
                form=each.form,
                secrets=each.secrets_after(() if old is None else old.secrets, made),
                created_ms=self._now_ms if old is None else old.created_ms,
            )
            hooks[each.name] = hook
            if made in hook.secrets:
                self.shown[each.name] = made
        return list(hooks.values())


def _show(hook: Hook) -> dict[str, Json]:
    """Return what an admin sees of a hook: never its secrets."""
    is_for_all = len(hook.kinds) == len(KINDS)
    shown: dict[str, Json] = {
        "name": hook.name,
        "on": hook.on.text,
        "events": [_ALL] if is_for_all else [kind for kind in KINDS if kind in hook.kinds],
        "url": hook.url,
        "configured": hook.is_configured,
        "secrets": len(hook.secrets),
        "created": show_time(hook.created_ms) if hook.created_ms else None,
    }
    if hook.form != "event":
        shown["form"] = hook.form
    if hook.trigger:
        shown["trigger"] = hook.trigger
    return shown


def _show_cursor(reader: ReaderLag | None) -> dict[str, Json]:
    """Return how far the hook has read the change log: nothing before its first event."""
    if reader is None:
        return {"seq": None, "entries": 0, "seconds": 0.0, "dropped": None}
    cursor, lag = reader.cursor, reader.lag
    return {
        "seq": cursor.sequence,
        "entries": lag.entries,
        "seconds": round(lag.seconds, 3),
        "dropped": None if cursor.dropped_ms is None else show_time(cursor.dropped_ms),
    }


def _note(done: str, database: Database, names: Iterable[str]) -> None:
    """Log a change; neither URLs nor secrets are in it."""
    _log.info(
        "Hooks of {label} were {done}: {names}.",
        label=database.name.label,
        done=done,
        names=", ".join(names),
    )
