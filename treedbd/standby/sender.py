"""What a first one sends its standbys: one response for each, which has all databases of a project.

Theory of operation. A standby says where it is in each change log. The response begins with the
rules and goes on, line by line (JSON), with the entries that follow there, as they are stored, of
all databases, one after the other (`StandbyStream`). It does not end by itself. Entries are read
from the logs only while the transport takes them; until then the logs hold them, because the
standby has a cursor in each (`positions`). Only the standby moves it, when entries are durable
there (`Sender.reached`), so nothing that it lacks is trimmed, whatever ends in between; beyond the
bounds of `[readers]` the cursor is dropped.

Where a log does not continue at the standby's position, or an entry has lost its body, the standby
has to fetch a base: a copy of all rows at one moment (`bases`). The cursor is placed before
that at the end of the log. When the standby says that it has reached the base, by its cursor, the
entries after it follow.

Each second the standby receives the time and how far the logs reach: when it has applied that much,
it shows the state of that moment. Before all databases were looked at once, it receives a sign of
life in place of that. After the daemon was superseded, and all that it has ever accepted is in its
logs, the lines with the time say that they are about the last state (`"last": true`).

Nothing is done for standbys when a database is written but that the name of the database is noted
(`Runtime.news`), and nothing at all if no standby is connected.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Final, TypeAlias, TypeVar

import attrs
import orjson
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IDelayedCall, IPushProducer
from twisted.internet.task import deferLater
from twisted.logger import Logger
from twisted.python.failure import Failure
from zope.interface import implementer

from treedbd.database.catalog import Catalog
from treedbd.database.database import Database
from treedbd.database.log_reader import CursorLost, LogPosition, LogReader, write_rows
from treedbd.database.requests import (
    DatabaseDeleted,
    TooManyCursors,
    Unavailable,
    UnknownDatabase,
)
from treedbd.database.runtime import Runtime
from treedbd.errors import in_one_line
from treedbd.http1.parser import CutOff
from treedbd.http1.request import IHttp1Request
from treedbd.limits import MIB
from treedbd.loop import do_nothing, seconds_since_boot
from treedbd.names import DatabaseName
from treedbd.rules.ruleset import DENY, OPEN, RuleSet
from treedbd.standby.client import OF_ITSELF
from treedbd.standby.office import Office
from treedbd.standby.positions import (
    MoveCursor,
    PlaceCursor,
    cursor_name,
    find_cursor,
    is_placed,
)
from treedbd.store.changelog import is_whole
from treedbd.store.cursors import read_cursors
from treedbd.store.engine import LogEntry, ReadView, Row
from treedbd.store.hooks import CURSOR_PREFIX, hook_rows
from treedbd.store.indexes import DISCONNECT_END, DISCONNECT_FIRST

if TYPE_CHECKING:
    from treedbd.database.disconnect import DisconnectWrites

T = TypeVar("T")

BEAT_S: Final = 1.0
"""Seconds between two lines with the time."""
OPEN_S: Final = 10.0
"""Seconds that opening a database may take."""
RETRY_S: Final = 5.0
"""Seconds until a database that could not be read is tried again."""
RETURN_S: Final = 60.0
"""A standby that was away for a shorter time is not logged as one that follows."""
SLICE_S: Final = 0.002
"""Seconds of work after which others have the reactor."""
TURN_BYTES: Final = MIB
"""Bytes of one database after which others are sent."""
LAST_BYTES: Final = 8 * MIB
"""Bytes that are sent at the end of a stream, so that a planned stop loses nothing."""
PART_BYTES: Final = MIB
"""Bytes of the rows of disconnect writes in one line."""
HOOKS_S: Final = 1.0
"""How often it is sent up to where hooks are done."""
ROWS_S: Final = 1.0
"""How often the rows of disconnect writes are read that another process may have changed."""


class CannotBeFollowed(Exception):
    """A standby cannot follow this daemon, or nothing is promoted; `str()` says why."""


@attrs.frozen
class StandbyRequest:
    """What a standby says when it begins to follow a project.

    `positions` are where it is in the databases that it has, by their names in the project.
    """

    standby: str
    project: str
    positions: Mapping[str, LogPosition]


_Hooks: TypeAlias = tuple[list[Row], dict[str, int]]
"""The rows of hooks, and up to which entry the events of each are done, by its cursor."""


@attrs.define
class Feed:
    """One database, as a standby has been sent it.

    Attributes:
        position: up to which entry it was sent.
        base_ms: when the cursor was placed for a base that the standby has not reached; else None.
        head: the number of the last entry that a line with the time has said.
        rows: a digest of the disconnect writes that were sent; 0 for none.
        rows_change: the change of the disconnect writes after which they were read.
        rows_at: when they were read, in seconds of the clock.
        hooks: the rows of hooks, and up to where each is done, as they were sent.
        hooks_at: when these were sent last.

    """

    position: LogPosition
    base_ms: int | None = None
    head: int = -1
    rows: int = 0
    rows_change: int = -1
    rows_at: float = 0.0
    hooks: _Hooks = attrs.Factory(lambda: ([], {}))
    hooks_at: float = 0.0


def db_of(name: DatabaseName) -> str:
    """Return how lines name a database."""
    return f"{name.project}/{name.database}"


@implementer(IPushProducer)
class StandbyStream:
    """The response to a standby that follows a project; also the producer of its transport.

    Attributes:
        asked: what the standby has said.
        is_open: whether it has begun and not ended.
        last_sent: when something was sent last, in seconds of the clock.
        sent_bytes: how many bytes were sent so far.

    """

    _log = Logger()

    def __init__(
        self,
        asked: StandbyRequest,
        *,
        request: IHttp1Request,
        catalog: Catalog,
        runtime: Runtime,
        office: Office,
        is_shared: bool,
    ) -> None:
        """Send nothing yet. Other processes write the databases too if it `is_shared`.

        Raises `CannotBeFollowed` for a standby that has the id of this daemon.
        """
        if asked.standby == office.term.id:
            raise CannotBeFollowed(f"{OF_ITSELF}.")
        self.asked: Final = asked
        self.is_open = False
        self._request, self._catalog, self._runtime = request, catalog, runtime
        self._office, self._is_shared = office, is_shared
        self._clock = runtime.clock
        self.last_sent = runtime.clock.seconds()
        self.sent_bytes = 0
        self._positions = dict(asked.positions)
        self._serving: DatabaseName | None = None
        self._cursor = cursor_name(asked.standby)
        self._feeds: dict[DatabaseName, Feed] = {}
        self._waiting: dict[DatabaseName, None] = {}
        self._later: dict[DatabaseName, float] = {}
        self._failures: dict[DatabaseName, str] = {}
        self._at_end: Callable[[], None] = do_nothing
        self._is_paused = False
        self._has_rules = False
        self._is_complete = self._is_last = False
        self._rules: RuleSet | None = None
        self._wake: Deferred[None] | None = None
        self._beating: IDelayedCall | None = None

    def open(self, hello: dict[str, object]) -> None:
        """Begin; the head of the response has been sent."""
        self.is_open = True
        self._runtime.news.append(self._written)
        self._catalog.deletion_listeners.append(self._deleted)
        self._request.notifyFinish().addBoth(self._close)
        if not self.is_open:
            return  # the standby has disconnected before
        self._request.registerProducer(self, True)
        self._write_line({"hello": hello})
        project = self.asked.project
        present = self._catalog.created_of(project)
        for gone in sorted(self.asked.positions.keys() - present):
            self._write_line({"db": f"{project}/{gone}", "missing": True})
        self._waiting = {DatabaseName(project, each): None for each in sorted(present)}
        self._beating = self._clock.callLater(BEAT_S, self._beat)
        Deferred.fromCoroutine(self._run()).addErrback(self._fail)

    def note_paused(self, *, is_paused: bool) -> None:
        """Note whether the standby keeps up; for a class that is registered elsewhere."""

    def note_closed(self) -> None:
        """Note that the stream has ended."""

    def when_closed(self, call: Callable[[], None]) -> None:
        """Call `call` at the end."""
        self._at_end = call

    def nudge(self, name: DatabaseName) -> None:
        """Look at a database: the standby has reached a position."""
        feed = self._feeds.get(name)
        if feed is not None and feed.base_ms is not None:
            self._written(name)

    def end(self) -> None:
        """End cleanly, with what is in the logs, if that is not much."""
        if self.is_open:
            try:
                self._send_last()
            except Exception:
                self._log.failure("The last entries could not be sent to a standby.")
            self._close(None)
            self._request.unregisterProducer()
            self._request.finish()

    # News.

    def _written(self, name: DatabaseName) -> None:
        if name.project == self.asked.project:
            self._waiting.setdefault(name)
            self._go_on()

    def _deleted(self, name: DatabaseName) -> None:
        if name.project == self.asked.project:
            self._forget(name)
            self._positions.pop(name.database, None)
            self._write_line({"db": db_of(name), "deleted": True})

    def _forget(self, name: DatabaseName) -> None:
        self._feeds.pop(name, None)
        self._waiting.pop(name, None)
        self._later.pop(name, None)
        self._failures.pop(name, None)

    def _go_on(self) -> None:
        """Go on in a turn of its own: news comes in the middle of a commit, or of a read."""
        wake, self._wake = self._wake, None
        if wake is not None:
            self._clock.callLater(0, wake.callback, None)

    # The transport.

    def pauseProducing(self) -> None:
        """Stop reading the logs until the standby has read what was sent."""
        self._is_paused = True
        self.note_paused(is_paused=True)

    def resumeProducing(self) -> None:
        """Go on."""
        self._is_paused = False
        self.note_paused(is_paused=False)
        self._go_on()

    def stopProducing(self) -> None:
        """End: the connection is gone."""
        self._close(None)

    def _close(self, _: object) -> None:
        if not self.is_open:
            return
        self.is_open = False
        self._runtime.news.remove(self._written)
        self._catalog.deletion_listeners.remove(self._deleted)
        if self._beating is not None and self._beating.active():
            self._beating.cancel()
        self._go_on()
        self.note_closed()
        self._at_end()

    def cut_off(self, reason: CutOff) -> None:
        """Drop the connection."""
        if self.is_open:
            self._close(None)
            self._request.abort(reason)

    def _fail(self, failure: Failure) -> None:
        self._log.failure("A stream of a standby has failed.", failure)
        self.cut_off("failed")

    def _write_line(self, line: dict[str, object]) -> None:
        self._write(orjson.dumps(line) + b"\n")

    def _write(self, data: bytes) -> None:
        if data and self.is_open:
            self.last_sent = self._clock.seconds()
            self.sent_bytes += len(data)
            self._request.write(data)

    # Reading the logs.

    async def _run(self) -> None:
        """Send what there is, of one database after the other, until the stream ends."""
        while self.is_open:
            self._send_rules()
            if self._is_paused or not self._waiting:
                self._is_complete = self._is_complete or not self._waiting
                self._wake = Deferred()
                await self._wake
                continue
            name = next(iter(self._waiting))
            del self._waiting[name]
            self._serving = name
            try:
                await self._serve(name)
                if self._failures.pop(name, None) is not None:
                    self._write_line({"db": db_of(name), "problem": None})
            except (DatabaseDeleted, UnknownDatabase):
                self._forget(name)
            except Exception as error:
                self._note_failure(name, error)
            self._serving = None
            await deferLater(self._clock, 0)

    def _note_failure(self, name: DatabaseName, error: Exception) -> None:
        """Try a database again later; why it could not be read is logged, and sent, once."""
        self._later[name] = self._clock.seconds() + RETRY_S
        reason = in_one_line(str(error))
        if self._failures.get(name) == reason:
            return
        self._failures[name] = reason
        is_known = isinstance(error, Unavailable | TooManyCursors)
        shown = reason if is_known else "It cannot be read, as the log of the first says."
        self._write_line({"db": db_of(name), "problem": shown})
        if is_known:
            message = "{label} cannot be sent to a standby, and is tried again: {reason}"
            self._log.warn(message, label=name.label, reason=reason)
        else:
            self._log.failure("{label} cannot be sent to a standby.", label=name.label)

    async def _serve(self, name: DatabaseName) -> None:
        """Send what is new of a database."""
        database = self._catalog.find(name)
        async with self._catalog.opened(database, OPEN_S):
            feed = self._feeds.get(name) or await self._begin(database)
            if feed.base_ms is not None:
                self._look_for_base(database, feed)
            if feed.base_ms is None:
                await self._send_entries(database, feed)

    async def _begin(self, database: Database) -> Feed:
        """Place the cursor where the standby is in a database, or at the end for a base."""
        at = self._positions.get(database.name.database, LogPosition())
        if not _read(database, lambda view: is_placed(view, self._cursor, at)):
            task = PlaceCursor(self._cursor, self._runtime.now_ms(), at)
            await write_rows(database, self._runtime, task)
            if task.cursor is None:
                feed = Feed(at)
                await self._want_base(database, feed)
                return feed
        self._feeds[database.name] = feed = Feed(at)
        self._write_begins(database, feed)
        return feed

    async def _want_base(self, database: Database, feed: Feed) -> None:
        """Make the standby fetch a base: what follows the present end of the log is held."""
        task = PlaceCursor(self._cursor, self._runtime.now_ms())
        await write_rows(database, self._runtime, task)
        if task.cursor is None:
            raise Unavailable("The change log cannot be read at its end.")
        feed.base_ms = task.cursor.moved_ms
        self._feeds[database.name] = feed
        self._write_line({"db": db_of(database.name), "base": True})

    def _look_for_base(self, database: Database, feed: Feed) -> None:
        """Go on after the base that the standby has reached, if it has: it moved the cursor."""
        cursor = _read(database, lambda view: find_cursor(view, self._cursor))
        if cursor is not None and cursor.moved_ms != feed.base_ms:
            feed.position = LogPosition(cursor.sequence, cursor.op_id)
            feed.base_ms = None
            feed.rows, feed.rows_change = -1, -1  # a base has rows too
            feed.hooks = ([], {})  # but none of hooks
            self._write_begins(database, feed)

    def _write_begins(self, database: Database, feed: Feed) -> None:
        at = feed.position
        self._write_line({"db": db_of(database.name), "begins": [at.sequence, at.op_id.hex()]})

    async def _send_entries(self, database: Database, feed: Feed) -> None:
        """Send the entries of a database, until its end, or until it is due to others."""
        began, size = perf_counter(), 0
        while self.is_open and not self._is_paused and size < TURN_BYTES:
            try:
                sent = self._send_some(database, feed)
            except CursorLost:
                await self._want_base(database, feed)
                return
            if not sent:
                self._send_rows(database, feed)
                self._send_hooks(database, feed)
                return
            size += sent
            if perf_counter() - began > SLICE_S:
                await deferLater(self._clock, 0)
                began = perf_counter()
        self._waiting.setdefault(database.name)

    def _send_some(self, database: Database, feed: Feed) -> int:
        """Send the next entries; return their bytes. Raises `CursorLost`."""
        reader = LogReader(database, self._runtime, self._cursor, is_whole=True)
        reader.position = feed.position
        entries = reader.read()
        whole = _until_cut(entries)
        if whole:
            lines = b"".join(_print_entry(database.name, each) for each in whole)
            feed.position = LogPosition(whole[-1].sequence, whole[-1].op_id)
            self._write(lines)
        if len(whole) < len(entries):
            raise CursorLost("an entry has no body")
        return sum(len(each.content) for each in whole)

    # Disconnect writes.

    def _send_rows(self, database: Database, feed: Feed) -> None:
        """Send the writes that wait for the end of sessions, if they have changed."""
        kept: DisconnectWrites = database.disconnect_writes
        now = self._clock.seconds()
        is_due = self._is_shared and now >= feed.rows_at + ROWS_S
        if feed.rows_change == kept.changes and not is_due:
            return
        feed.rows_change, feed.rows_at = kept.changes, now
        rows = _read(database, lambda view: list(view.scan(DISCONNECT_FIRST, DISCONNECT_END)))
        digest = hash(tuple(rows)) if rows else 0
        if digest == feed.rows:
            return
        feed.rows = digest
        parts = _divide([[key.hex(), value.hex()] for key, value in rows])
        for number, part in enumerate(parts):
            line: dict[str, object] = {
                "db": db_of(database.name),
                "disconnect": part,
                "seq": feed.position.sequence,
            }
            if len(parts) > 1:
                line |= {"part": number, "parts": len(parts)}
            self._write_line(line)

    def _send_hooks(self, database: Database, feed: Feed) -> None:
        """Send the hooks, and how far the events of each are done, if that has changed.

        Where they are moves with each event, so it is sent once a second at most.
        """
        found = _read(database, _find_hooks)
        if found == feed.hooks:
            return
        due = feed.hooks_at + HOOKS_S
        if found[0] == feed.hooks[0] and self._clock.seconds() < due:
            self._later.setdefault(database.name, due)
            return
        feed.hooks, feed.hooks_at = found, self._clock.seconds()
        rows, reached = found
        self._write_line(
            {
                "db": db_of(database.name),
                "hooks": [[key.hex(), stored.hex()] for key, stored in rows],
                "reached": reached,
                "seq": feed.position.sequence,
            }
        )

    # Rules, and the time.

    def _send_rules(self) -> None:
        """Send the rules of the project, if they were put since they were sent."""
        try:
            current = self._catalog.rules(self.asked.project).current
        except (Unavailable, UnknownDatabase):
            return
        if self._has_rules and (
            current is self._rules or (self._rules is not None and current.text == self._rules.text)
        ):
            return
        self._has_rules, self._rules = True, current
        is_put = current is not DENY and current is not OPEN
        self._write_line({"rules": current.text if is_put else None})

    def _beat(self) -> None:
        """Send the time, and how far the logs reach that have changed."""
        self._beating = self._clock.callLater(BEAT_S, self._beat)
        now = self._clock.seconds()
        for name, at in list(self._later.items()):
            if at <= now:
                del self._later[name]
                self._written(name)
        self._send_rules()
        if self._is_paused:
            return  # what it would say is not read in time
        self._look_for_last()
        heads = self._find_heads() if self._is_complete and not self._failures else None
        line: dict[str, object] = {"beat": clock_ms(), "heads": heads}
        if self._is_last:
            line["last"] = True
        self._write_line({"alive": True} if heads is None else line)

    def _look_for_last(self) -> None:
        """Read all logs once more when nothing is written any longer: other processes wrote too."""
        if self._office.is_finished and not self._is_last:
            for name in self._feeds:
                self._waiting.setdefault(name)
            self._go_on()
        self._is_last = self._office.is_finished

    def _find_heads(self) -> dict[str, int] | None:
        """Return the numbers of the last entries that have changed since the last time.

        None if they are not all known.
        """
        found: dict[DatabaseName, int] = {}
        for name, feed in self._feeds.items():
            head = feed.position.sequence
            if name in self._waiting or name == self._serving or feed.base_ms is not None:
                database = self._catalog.find_open(name)
                if database is None:
                    return None
                head = _read(database, lambda view: view.sequence())
            if head != feed.head:
                found[name] = head
        if any(name not in self._feeds for name in self._waiting):
            return None
        for name, head in found.items():
            self._feeds[name].head = head
        return {db_of(name): head for name, head in found.items()}

    # The end.

    def _send_last(self) -> None:
        """Send what is left of open databases, up to a bound."""
        size = 0
        serving = [] if self._serving is None else [self._serving]
        for name in [*serving, *self._waiting]:
            database, feed = self._catalog.find_open(name), self._feeds.get(name)
            if database is None or feed is None or feed.base_ms is not None:
                continue
            try:
                while size < LAST_BYTES and (sent := self._send_some(database, feed)):
                    size += sent
            except CursorLost:
                continue
            self._send_rows(database, feed)
            feed.hooks_at = 0.0
            self._send_hooks(database, feed)


class Sender:
    """The streams of the standbys that are connected, and how far each standby is."""

    _log = Logger()

    def __init__(self, catalog: Catalog, runtime: Runtime) -> None:
        """Send the databases of `catalog`."""
        self._catalog, self._runtime = catalog, runtime
        self._streams: dict[tuple[str, str], StandbyStream] = {}
        self._left: dict[tuple[str, str], float] = {}

    @property
    def streams(self) -> list[StandbyStream]:
        """The streams that are open."""
        return list(self._streams.values())

    def open(self, stream: StandbyStream, hello: dict[str, object]) -> None:
        """Begin a stream; an earlier one of the same standby and project ends."""
        key = stream.asked.standby, stream.asked.project
        before = self._streams.get(key)
        recently = seconds_since_boot() - RETURN_S
        self._left = {each: at for each, at in self._left.items() if at > recently}
        is_back = before is not None or key in self._left
        if before is not None:
            before.cut_off("client")  # which the standby has left, though that is not seen yet
        self._streams[key] = stream
        stream.when_closed(partial(self._forget, key, stream))
        stream.open(hello)
        if not is_back:  # one that begins again and again is logged once
            self._log.info(
                "The standby {id} follows the project {project}.", id=key[0], project=key[1]
            )

    def _forget(self, key: tuple[str, str], stream: StandbyStream) -> None:
        if self._streams.get(key) is stream:
            del self._streams[key]
            self._left[key] = seconds_since_boot()

    async def reached(self, asked: StandbyRequest) -> None:
        """Move the cursors of a standby to where it is; raise what the last failure was."""
        stream = self._streams.get((asked.standby, asked.project))
        failure: Exception | None = None
        for database, position in asked.positions.items():
            name = DatabaseName(asked.project, database)
            try:
                await self._move(name, cursor_name(asked.standby), position)
            except (DatabaseDeleted, UnknownDatabase):
                continue
            except Exception as error:
                failure = error
            else:
                if stream is not None:
                    stream.nudge(name)
        if failure is not None:
            raise failure

    async def _move(self, name: DatabaseName, cursor: str, position: LogPosition) -> None:
        if name.database not in self._catalog.created_of(name.project):
            return
        database = self._catalog.find(name)
        async with self._catalog.opened(database, OPEN_S, is_write=True):
            task = MoveCursor(cursor, self._runtime.now_ms(), position)
            while not task.is_done:
                await write_rows(database, self._runtime, task)


def clock_ms() -> int:
    """Return milliseconds since boot, by which a standby finds out how old a line is."""
    return int(seconds_since_boot() * 1000)


def _read(database: Database, work: Callable[[ReadView], T]) -> T:
    return database.read(lambda nodes: work(nodes.rows.stored))


def _find_hooks(view: ReadView) -> _Hooks:
    cursors = read_cursors(view, CURSOR_PREFIX)
    return hook_rows(view), {each.name: each.sequence for each in cursors if not each.is_dropped}


def _until_cut(entries: list[LogEntry]) -> list[LogEntry]:
    """Return the first entries, up to one that has lost its body."""
    for number, entry in enumerate(entries):
        if not is_whole(entry.content):
            return entries[:number]
    return entries


def _print_entry(name: DatabaseName, entry: LogEntry) -> bytes:
    """Return the line of an entry, whose content is in it as it is stored."""
    head = b'{"db":"%b","seq":%d,"op":"%b","entry":'
    db, op_id = db_of(name).encode(), entry.op_id.hex().encode()
    return head % (db, entry.sequence, op_id) + entry.content + b"}\n"


def _divide(rows: list[list[str]]) -> list[list[list[str]]]:
    """Divide rows into parts of some bytes each; there is one at least."""
    parts: list[list[list[str]]] = [[]]
    size = 0
    for row in rows:
        size += sum(map(len, row))
        if parts[-1] and size > PART_BYTES:
            parts.append([])
            size = sum(map(len, row))
        parts[-1].append(row)
    return parts
