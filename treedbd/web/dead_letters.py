"""The resources of admins for what a webhook could not deliver, and to try one.

`GET /.settings/webhooks/dead.json` lists the dead letters of the hook `name`, in the order of the
writes: at most `limitToFirst` after the id `startAfter`, and of about `MAX_ANSWER_BYTES`;
`next` is the id after which the next request continues, null at the end. `POST` replays those whose
`ids` the body has, or all; `DELETE` discards the one `id`, or all.

`POST /.settings/webhooks/test.json` sends an event of the kind `test` to the receiver of a hook,
and shows how it has answered.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Awaitable, Callable, Generator
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from twisted.logger import Logger

from treedbd.database.catalog import Catalog
from treedbd.database.database import Database
from treedbd.database.requests import Caller, Unavailable, UnknownHook, Write
from treedbd.hooks.client import PostAnswer, PostFailed
from treedbd.hooks.letters import ChangeLetters, Order, find_letters, read_letters
from treedbd.http1.request import IHttp1Request
from treedbd.limits import KIB, MIB
from treedbd.names import DatabaseName
from treedbd.store.hooks import HOOK_NAME, Hook
from treedbd.tree.edit import make_remove
from treedbd.tree.query import parse_limit
from treedbd.tree.types import ROOT, InvalidData, InvalidQuery, Json, Place
from treedbd.tree.value import parse
from treedbd.web.request import DataRequest, find_single_parameter
from treedbd.web.response import Response, json_response
from treedbd.web.rules import explain_without_rules
from treedbd.web.write import read_small_body

if TYPE_CHECKING:
    from treedbd.web.resource import DataHandlers

Test: TypeAlias = Callable[[Hook, DatabaseName], Awaitable[PostAnswer]]
"""Sends an event for trial; raises `PostFailed`, or ValueError for a hook that has no receiver."""

MAX_LETTERS: Final = 100
"""Letters that one answer has at most."""
MAX_ANSWER_BYTES: Final = MIB
"""Bytes of events after which an answer ends."""
MAX_BODY_BYTES: Final = 256 * KIB
MAX_IDS: Final = 1000
_ALL: Final = "all"
_ID: Final = re.compile(r"[^/]{1,100}/[^/]{1,100}/(\d{1,18})/(\d{1,9})(?:-[0-9a-f]{16})?")
_NOTHING: Final = make_remove(Place(ROOT))
_STAMP_BYTES: Final = 16


class DeadLetterHandlers:
    """Handles the requests of admins about what was not delivered.

    Attributes:
        test: sends an event for trial; None if this process sends none.

    """

    _log = Logger()

    def __init__(self, data: DataHandlers, catalog: Catalog) -> None:
        """Serve the databases of `catalog`."""
        self.test: Test | None = None
        self._data = data
        self._catalog = catalog
        self._clock = data.context.clock
        self._slices = data.context.reads.slices

    async def dead_letters(
        self, request: IHttp1Request, wanted: DataRequest, database: Database
    ) -> Response:
        """List dead letters, replay or discard some."""
        deadline = self._clock.seconds() + wanted.timeout_s
        is_change = wanted.method in (b"POST", b"DELETE")
        what = "Changing dead letters" if is_change else "Access to dead letters"
        identity = await self._data.identify_admin(wanted, database, what)
        if is_change:
            wanted.check_unconditional()
        if wanted.wants_explanation:
            return explain_without_rules(wanted, identity if is_change else None)
        if is_change:
            return await self._change(request, wanted, database, deadline)
        name = _check_name(find_single_parameter(request.uri, "name"), InvalidQuery)
        limit = min(parse_limit(wanted.parameters, "limitToFirst") or MAX_LETTERS, MAX_LETTERS)
        after = _parse_after(wanted.parameters.get("startAfter"))
        async with self._catalog.opened(database, wanted.timeout_s):
            _find(database, name)
            found = await self._slices.run(_list(database, name, after, limit))
        return json_response(wanted, found)

    async def test_hook(
        self, request: IHttp1Request, wanted: DataRequest, database: Database
    ) -> Response:
        """Send an event for trial."""
        identity = await self._data.identify_admin(wanted, database, "Trying a webhook")
        wanted.check_unconditional()
        if wanted.wants_explanation:
            return explain_without_rules(wanted, identity)
        name = _check_name(_parse_object(read_small_body(request, KIB), {"name"}).get("name"))
        async with self._catalog.opened(database, wanted.timeout_s):
            hook = _find(database, name)
        self._catalog.check_accepts_writes()  # a standby sends nothing
        if self.test is None:
            raise Unavailable("This server sends no events of webhooks.")
        if hook.url is None:
            raise InvalidData(f"The hook {name} calls nothing: a program reads its events.")
        began = self._clock.seconds()
        status, answer = None, ""
        try:
            found = await self.test(hook, database.name)
            status, answer = found.status, found.text
        except (PostFailed, ValueError) as error:
            answer = str(error)
        seconds = round(self._clock.seconds() - began, 3)
        return json_response(
            wanted, {"name": name, "status": status, "answer": answer, "seconds": seconds}
        )

    async def _change(
        self, request: IHttp1Request, wanted: DataRequest, database: Database, deadline: float
    ) -> Response:
        """Replay or discard dead letters."""
        stamp = secrets.token_bytes(_STAMP_BYTES)
        if wanted.method == b"POST":
            name, ids = _parse_replay(read_small_body(request, MAX_BODY_BYTES))
            change, done = ChangeLetters(name, "replay", ids, stamp), "replayed"
        else:
            name = _check_name(find_single_parameter(request.uri, "name"), InvalidQuery)
            ids = _parse_discarded(find_single_parameter(request.uri, "id"))
            change, done = ChangeLetters(name, "discard", ids, stamp), "discarded"
        async with self._catalog.opened(database, wanted.timeout_s, is_write=True):
            _find(database, name)
            now = self._data.now_ms()
            await database.write(
                Write(_NOTHING, now, Caller(None), deadline=deadline, wants_echo=False, task=change)
            )
            database.tell_readers()
        self._log.info(
            "{label}: {count} dead letters of the hook {hook} were {done}.",
            label=database.name.label,
            count=change.changed,
            hook=name,
            done=done,
        )
        return json_response(wanted, {"name": name, done: change.changed})


def _list(database: Database, hook: str, after: Order, limit: int) -> Generator[None, None, Json]:
    """Return in steps the dead letters of a hook after one."""
    read = database.read
    shown: list[Json] = []
    size, last = 0, ""
    for at in read(lambda nodes: list(find_letters(nodes.rows.stored, hook, after))):
        if len(shown) >= limit or size > MAX_ANSWER_BYTES:
            return {"name": hook, "letters": shown, "next": last}
        for letter in _read_one(database, hook, at):
            if letter.is_dead:
                size += len(letter.message.body)
                shown.append(letter.show())
                last = letter.message.event_id
        yield
    return {"name": hook, "letters": shown, "next": None}


def _read_one(database: Database, hook: str, at: Order) -> list[Any]:
    return database.read(lambda nodes: list(read_letters(nodes.rows.stored, hook, [at])))


def _find(database: Database, name: str) -> Hook:
    """Return a hook; raise `UnknownHook`."""
    for hook in database.hooks():
        if hook.name == name:
            return hook
    raise UnknownHook(name)


def _check_name(json: Any, error: type[Exception] = InvalidData) -> str:
    if not isinstance(json, str) or not HOOK_NAME.fullmatch(json):
        raise error("name must be the name of the hook.")
    return json


def _parse_object(body: bytes, members: set[str]) -> dict[str, Any]:
    json: Any = parse(body)
    if not isinstance(json, dict) or not json.keys() <= members:
        raise InvalidData(f"The body must be an object with {' and '.join(sorted(members))}.")
    return json


def _parse_replay(body: bytes) -> tuple[str, frozenset[str] | None]:
    """Return whose letters are replayed, and which, None for all; raise `InvalidData`."""
    json = _parse_object(body, {"name", "ids"})
    name, ids = _check_name(json.get("name")), json.get("ids")
    if ids == _ALL:
        return name, None
    found = ids if isinstance(ids, list) else []
    is_legal = all(isinstance(each, str) and _ID.fullmatch(each) for each in found)
    if not 0 < len(found) <= MAX_IDS or not is_legal:
        raise InvalidData(f'ids must be an array of 1 to {MAX_IDS} ids of events, or "all".')
    return name, frozenset(found)


def _parse_discarded(text: str | None) -> frozenset[str] | None:
    if text == _ALL:
        return None
    if text is None or not _ID.fullmatch(text):
        raise InvalidQuery("id must be the id of an event, or all.")
    return frozenset({text})


def _parse_after(text: str | None) -> Order:
    found = None if text is None else _ID.fullmatch(text)
    if found is not None:
        return int(found[1]), int(found[2])
    if text is not None:
        raise InvalidQuery("startAfter must be the id of an event.")
    return -1, -1
