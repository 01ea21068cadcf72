"""The resource of admins for programs that read the events of a hook, such as `treedb run`.

`/.settings/events.json` has a hook without a URL: `PUT` makes one, `DELETE` removes it. A program
says by `POST` that it reads (`reader`, an id of its own), and later what is done (`done`); the
events are held until then. `GET` has a batch of them: from the cursor on or `after` a position, at
most `limit`. If there is none yet, it waits for one, up to `wait` seconds.

A request that waits is a listener as a stream is: it is counted and admitted with them, and
answered at once if the server stops, the database is deleted, its token expires, or another request
for the same hook comes to this process. One that another program has made in another process is
noticed after `LOOK_S`.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import attrs
import orjson
from twisted.internet.defer import Deferred

from treedbd.database.catalog import Catalog
from treedbd.database.database import Database
from treedbd.database.event_capture import ChangeHooks
from treedbd.database.log_reader import make_task_write
from treedbd.database.requests import (
    HookConflict,
    ReaderReplaced,
    Task,
    UnknownHook,
)
from treedbd.errors import find_similar
from treedbd.hooks.feed import Batch, ChangeFeed, Feed, Place
from treedbd.http1.parser import CutOff
from treedbd.http1.request import IHttp1Request
from treedbd.limits import KIB
from treedbd.names import DatabaseName
from treedbd.store.hooks import HOOK_NAME, KINDS, Hook, Kind
from treedbd.tree.event import Position
from treedbd.tree.pattern import InvalidPattern, parse_pattern
from treedbd.tree.types import InvalidData, InvalidQuery, Json
from treedbd.tree.value import compact
from treedbd.web.auth.identity import Identity
from treedbd.web.request import DataRequest, Dialect, find_single_parameter
from treedbd.web.response import Response, counted_address_of, json_response, text_response
from treedbd.web.rules import explain_without_rules
from treedbd.web.streams import parse_id, print_id
from treedbd.web.write import read_small_body

if TYPE_CHECKING:
    from treedbd.web.listeners import StreamRegistry
    from treedbd.web.resource import DataHandlers

MAX_BODY_BYTES: Final = 64 * KIB
MAX_EVENTS: Final = 1000
"""Events of one batch, but for those of its last entry."""
USUAL_EVENTS: Final = 100
LONGEST_POLL_S: Final = 60
LOOK_S: Final = 2.0
"""Seconds between two looks of a request that waits, if nothing is known to have been written."""
NEWS_S: Final = 0.005
"""Seconds from news of a write until it is looked for: others may follow."""
_PUT_MEMBERS: Final = ("name", "on", "events", "replace")
_POST_MEMBERS: Final = ("name", "reader", "done", "end")
_READER: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
_WRITTEN: Final = "written"
_EVENTS: Final = f'events must be a list of {", ".join(KINDS)}, or "written" for all of them.'
_POSITION: Final = "must be a position as answers have it, such as 42-9f3ac1d2e4b5a697."


class FeedHandlers:
    """Handles the requests of programs that read the events of hooks."""

    def __init__(self, data: DataHandlers, catalog: Catalog) -> None:
        """Serve the databases of `catalog`."""
        self._data = data
        self._catalog = catalog
        self._clock = data.context.clock
        self._slices = data.context.reads.slices
        self._waiting: dict[tuple[DatabaseName, str], FeedWait] = {}

    async def events(
        self, request: IHttp1Request, wanted: DataRequest, database: Database
    ) -> Response:
        """Answer with events, or change what a program reads."""
        what = "Access to the events of hooks"
        identity = await self._data.identify_admin(wanted, database, what)
        wanted.check_unconditional()
        if wanted.wants_explanation:
            return explain_without_rules(wanted, identity if wanted.is_write else None)
        if wanted.method == b"PUT":
            return await self._put(request, wanted, database)
        if wanted.method == b"POST":
            return await self._move(request, wanted, database)
        if wanted.method == b"DELETE":
            return await self._delete(request, wanted, database)
        return await self._read(request, wanted, database, identity)

    # Reading.

    async def _read(
        self, request: IHttp1Request, wanted: DataRequest, database: Database, identity: Identity
    ) -> Response:
        asked = _Question.parse(request.uri)
        feed = Feed(database, asked.name)
        end = self._clock.seconds() + asked.wait_s
        async with self._catalog.opened(database, wanted.timeout_s):
            batch = await self._read_batch(database, feed, asked, wanted.timeout_s)
            if batch.entries or batch.unread or not asked.wait_s:
                return await self._show(wanted, asked, batch)
            with self._wait(request, database, asked, identity) as waiting:
                while not (batch.entries or batch.unread):
                    now = self._clock.seconds()
                    if waiting.is_over or now >= end:
                        break
                    await waiting.look_later(min(LOOK_S, end - now))
                    asked = attrs.evolve(asked, after=batch.reached)
                    batch = await self._read_batch(database, feed, asked, wanted.timeout_s)
        if waiting.reader not in {None, asked.reader}:
            raise ReaderReplaced(asked.name)
        return await self._show(wanted, asked, batch)

    async def _read_batch(
        self, database: Database, feed: Feed, asked: _Question, timeout_s: float
    ) -> Batch:
        """Read a batch of what is durable by now, which other processes may have written."""
        async with self._catalog.opened(database, timeout_s):
            return await self._slices.run(feed.read(asked.after, asked.limit, asked.reader))

    @contextmanager
    def _wait(
        self, request: IHttp1Request, database: Database, asked: _Question, identity: Identity
    ) -> Iterator[FeedWait]:
        """Be a listener within a `with` block; raise as `StreamRegistry.check`."""
        key = database.name, asked.name
        before = self._waiting.get(key)
        if before is not None:
            before.replace(asked.reader)
        waiting = FeedWait(
            request=request,
            name=database.name,
            identity=identity,
            streams=self._data.streams,
            clock=self._clock,
        )
        if not self._waiting:
            self._catalog.news.append(self._written)
        self._waiting[key] = waiting
        try:
            yield waiting
        finally:
            waiting.close()
            if self._waiting.get(key) is waiting:
                del self._waiting[key]
                if not self._waiting:  # so that writes cost nothing for it
                    self._catalog.news.remove(self._written)

    def _written(self, name: DatabaseName) -> None:
        """Wake those who wait for events of a database."""
        for (database, _), waiting in self._waiting.items():
            if database == name:
                waiting.look_soon()

    async def _show(self, wanted: DataRequest, asked: _Question, batch: Batch) -> Response:
        layout = wanted.dialect if wanted.print == "pretty" else None
        printing = _print_batch(asked.name, batch, layout)
        return text_response(wanted, await self._slices.run(printing))

    # Writing.

    async def _put(
        self, request: IHttp1Request, wanted: DataRequest, database: Database
    ) -> Response:
        """Make a hook, unless it is there; answer with its place."""
        json = _read_json(request, _PUT_MEMBERS)
        hook = parse_hook(json, self._data.now_ms())
        present = await self._find_same(wanted, database, hook)
        if present is not None:
            return json_response(wanted, {**_describe(database, present), "created": False})
        put = _PutHook(hook, replaces=_flag(json, "replace"))
        stamp = secrets.token_bytes(16)
        await self._write(wanted, database, ChangeHooks(put, stamp, self._data.now_ms()))
        async with self._catalog.opened(database, wanted.timeout_s):
            place = Feed(database, hook.name).look()
        return json_response(wanted, {**_describe(database, place), "created": put.has_created})

    async def _find_same(self, wanted: DataRequest, database: Database, hook: Hook) -> Place | None:
        """Return the place of a hook that is there as it would be made, None if there is none."""
        async with self._catalog.opened(database, wanted.timeout_s):
            try:
                place = Feed(database, hook.name).look()
            except UnknownHook:
                return None
        return place if _is_same(place.hook, hook) else None

    async def _delete(
        self, request: IHttp1Request, wanted: DataRequest, database: Database
    ) -> Response:
        """Remove a hook."""
        name = _parse_name(find_single_parameter(request.uri, "name"))

        def remove(hooks: list[Hook]) -> list[Hook]:
            left = [each for each in hooks if each.name != name or each.url is not None]
            if len(left) == len(hooks):
                raise UnknownHook(name)
            return left

        stamp = secrets.token_bytes(16)
        await self._write(wanted, database, ChangeHooks(remove, stamp, self._data.now_ms()))
        self._wake(database, name, None)
        return json_response(wanted, {"name": name})

    async def _move(
        self, request: IHttp1Request, wanted: DataRequest, database: Database
    ) -> Response:
        """Say which program reads, or what is done; answer with the place."""
        json = _read_json(request, _POST_MEMBERS)
        name = _parse_name(json.get("name"))
        done, end = _parse_done(json), _flag(json, "end")
        reader = json.get("reader")
        if reader is not None and not (isinstance(reader, str) and _READER.fullmatch(reader)):
            raise InvalidData("reader must have 1 to 64 letters, digits, - and _.")
        if reader is None and done is None and not end:
            raise InvalidData("There must be reader, done or end.")
        if done is not None and end:
            raise InvalidData("done and end are not possible together.")
        claims = done is None and not end
        change = ChangeFeed(name, reader, self._data.now_ms(), claims=claims, end=end)
        feed = Feed(database, name)
        if done is not None:
            async with self._catalog.opened(database, wanted.timeout_s):
                place = feed.look(reader)
                if done.sequence <= place.at.sequence:
                    return json_response(wanted, _describe(database, place))
                cursor = await self._slices.run(feed.count_bytes(place, done))
            change = attrs.evolve(change, done=cursor)
        await self._write(wanted, database, change)
        if claims or end:
            self._wake(database, name, reader)
        async with self._catalog.opened(database, wanted.timeout_s):
            return json_response(wanted, _describe(database, feed.look()))

    async def _write(self, wanted: DataRequest, database: Database, task: Task) -> None:
        deadline = self._clock.seconds() + wanted.timeout_s
        async with self._catalog.opened(database, wanted.timeout_s, is_write=True):
            await database.write(make_task_write(task, self._data.now_ms(), deadline))
            database.tell_readers()  # a standby has the hook, its reader and its cursor too

    def _wake(self, database: Database, name: str, reader: str | None) -> None:
        """Answer a request that waits for a hook in this process."""
        waiting = self._waiting.get((database.name, name))
        if waiting is not None:
            waiting.replace(reader)


class FeedWait:
    """A request that waits for events, as the registry of streams knows it.

    Attributes:
        is_over: whether it has to be answered now.
        reader: the id of the program that has replaced its own; None for none.

    """

    last_sent = float("inf")
    sent_bytes = 0

    def __init__(
        self,
        *,
        request: IHttp1Request,
        name: DatabaseName,
        identity: Identity,
        streams: StreamRegistry,
        clock: Any,
    ) -> None:
        """Be registered; raise as `StreamRegistry.check`."""
        self.name: Final = name
        self.identity: Final = identity
        self.address: Final = counted_address_of(request)
        self.is_over = False
        self.reader: str | None = None
        self._streams, self._clock = streams, clock
        self._woken: Deferred[None] | None = None
        self._due: Any = None
        streams.check(name, self.address, identity)
        streams.add(self)
        request.notifyFinish().addErrback(lambda _: self.end())

    async def look_later(self, seconds: float) -> None:
        """Wait so long, or until there is news."""
        if self.is_over:
            return
        self._woken = Deferred()
        self._due = self._clock.callLater(seconds, self._wake)
        await self._woken

    def look_soon(self) -> None:
        """Look when the writes that are being answered can be read."""
        if self._due is not None and self._due.getTime() > self._clock.seconds() + NEWS_S:
            self._due.reset(NEWS_S)

    def replace(self, reader: str | None) -> None:
        """Be answered: another request reads, that of the program `reader`."""
        self.reader = reader
        self.end()

    def end(self) -> None:
        """Be answered now."""
        self.is_over = True
        self._wake()

    lose_identity = revoke = end

    def close(self) -> None:
        """Remove it."""
        self.is_over = True
        self._wake()
        self._streams.remove(self)

    def keep_alive(self) -> None:
        """Do nothing: it does not last long."""

    def retry(self) -> None:
        """Do nothing: it is never postponed."""

    def abort(self, _: CutOff = "slow") -> None:
        """Be answered now: nothing is sent while it waits."""
        self.end()

    def _wake(self) -> None:
        due, self._due = self._due, None
        if due is not None and due.active():
            due.cancel()
        woken, self._woken = self._woken, None
        if woken is not None:
            woken.callback(None)


class _PutHook:
    """Adds a hook to those that there are, or replaces it, as `ChangeHooks` needs it."""

    def __init__(self, hook: Hook, *, replaces: bool) -> None:
        self.has_created = False
        self._hook = hook
        self._replaces = replaces

    def __call__(self, hooks: list[Hook]) -> list[Hook]:
        """Return all hooks; raise `HookConflict` for one that is another."""
        hook = self._hook
        present = next((each for each in hooks if each.name == hook.name), None)
        self.has_created = present is None
        if present is None:
            return [*hooks, hook]
        if present.url is not None:
            raise HookConflict(f"There is a hook {hook.name} that has a URL.")
        if _is_same(present, hook):
            return hooks
        if not self._replaces:
            kinds = ", ".join(map(str, _list_kinds(present)))
            raise HookConflict(
                f"There is a hook {hook.name} on {present.on.text} for {kinds}: choose another "
                "name, or replace it."
            )
        changed = attrs.evolve(hook, created_ms=present.created_ms)
        return [changed if each is present else each for each in hooks]


def _is_same(one: Hook, other: Hook) -> bool:
    return (one.on, one.kinds) == (other.on, other.kinds)


@attrs.frozen
class _Question:
    """What a request for events asks for."""

    name: str
    reader: str | None
    after: Position | None
    limit: int
    wait_s: int

    @classmethod
    def parse(cls, uri: bytes) -> _Question:
        """Return what the parameters say; raise `InvalidQuery`."""
        after, reader = find_single_parameter(uri, "after"), find_single_parameter(uri, "reader")
        if reader is not None and not _READER.fullmatch(reader):
            raise InvalidQuery("reader must have 1 to 64 letters, digits, - and _.")
        position = parse_id(after)
        if after is not None and position is None:
            raise InvalidQuery(f"after {_POSITION}")
        return cls(
            name=_parse_name(find_single_parameter(uri, "name")),
            reader=reader,
            after=position,
            limit=_parse_number(uri, "limit", 1, MAX_EVENTS, USUAL_EVENTS),
            wait_s=_parse_number(uri, "wait", 0, LONGEST_POLL_S, 0),
        )


def parse_hook(json: dict[str, Any], now_ms: int) -> Hook:
    """Return the hook that a body describes; raise `InvalidData`."""
    on = json.get("on")
    if not isinstance(on, str):
        raise InvalidData("on must be a pattern of paths, such as /orders/$id.")
    try:
        pattern = parse_pattern(on)
    except InvalidPattern as error:
        raise InvalidData(f"on: {error}") from None
    return Hook(
        name=_parse_name(json.get("name")),
        on=pattern,
        kinds=_parse_kinds(json.get("events", _WRITTEN)),
        created_ms=now_ms,
    )


def _parse_kinds(given: Json) -> frozenset[Kind]:
    if given in (_WRITTEN, [_WRITTEN]):
        return frozenset(KINDS)
    kinds = frozenset(each for each in KINDS if isinstance(given, list) and each in given)
    if not isinstance(given, list) or not kinds or len(kinds) != len(given):
        raise InvalidData(_EVENTS)
    return kinds


def _parse_name(given: Json) -> str:
    if not isinstance(given, str) or not HOOK_NAME.fullmatch(given):
        raise InvalidQuery(
            "name must be that of a hook: up to 50 lower-case letters, digits and hyphens."
        )
    return given


def _parse_done(json: dict[str, Any]) -> Position | None:
    given = json.get("done")
    if given is None:
        return None
    position = parse_id(given) if isinstance(given, str) else None
    if position is None:
        raise InvalidData(f"done {_POSITION}")
    return position


def _parse_number(uri: bytes, name: str, least: int, most: int, otherwise: int) -> int:
    text = find_single_parameter(uri, name)
    if text is None:
        return otherwise
    if not (text.isascii() and text.isdigit() and len(text) < 9 and least <= int(text) <= most):
        raise InvalidQuery(f"{name} must be a number from {least} to {most}.")
    return int(text)


def _flag(json: dict[str, Any], name: str) -> bool:
    given = json.get(name, False)
    if not isinstance(given, bool):
        raise InvalidData(f"{name} must be true or false.")
    return given


def _read_json(request: IHttp1Request, members: tuple[str, ...]) -> dict[str, Any]:
    """Return the JSON object in a body; raise `PayloadTooLarge` or `InvalidData`."""
    body = read_small_body(request, MAX_BODY_BYTES)
    try:
        json = orjson.loads(body)
    except ValueError:
        raise InvalidData("The body must be a JSON object.") from None
    if not isinstance(json, dict):
        raise InvalidData("The body must be a JSON object.")
    for member in json:
        if member not in members:
            close = find_similar(member, members)
            known = f"did you mean {close}?" if close else f"it has {', '.join(members)}."
            raise InvalidData(f"The body has an unknown member {member!r}: {known}")
    return json


def _print_batch(name: str, batch: Batch, layout: Dialect | None) -> Generator[None, None, bytes]:
    """Print a batch in steps; a `layout` indents it."""
    state: dict[str, Json] = {"next": print_id(batch.reached), "unread": batch.unread}
    chunks: list[bytes] = [b'{"name":%b,"entries":[' % compact(name)]
    for at, each in enumerate(batch.entries):
        chunks.append(b'%b{"at":"%b","events":[' % (b"," * (at > 0), print_id(each.at).encode()))
        chunks += (b"," + event if number else event for number, event in enumerate(each.events))
        chunks.append(b"]}")
    chunks.append(b"]," + compact(state)[1:])
    printed = []
    for chunk in chunks if layout is None else layout.indent(chunks):
        printed.append(chunk)
        yield
    return b"".join(printed)


def _describe(database: Database, place: Place) -> dict[str, Json]:
    is_volatile = database.rules.current.makes_volatile(place.hook.on.keys)
    return {
        "project": database.name.project,
        "database": database.name.database,
        **({"volatile": True} if is_volatile else {}),
        "name": place.hook.name,
        "on": place.hook.on.text,
        "events": _list_kinds(place.hook),
        "at": print_id(place.at),
        "reader": place.reader or None,
    }


def _list_kinds(hook: Hook) -> list[Json]:
    is_for_all = len(hook.kinds) == len(KINDS)
    return [_WRITTEN] if is_for_all else [each for each in KINDS if each in hook.kinds]
