"""A standby follows its first: the stream of each project is received, applied and acknowledged.

Theory of operation. A `ProjectFollower` has one stream from the first at a time. It begins with the
positions of all its databases: the number and the id of their last entries, which are durable. The
lines that come are put into the queue of their database (`FollowedDatabase`), which does one after
the other: entries wait in the database's own queue of writes, many at a time, so that a batch
commits hundreds; whatever else is in the queue waits until they are durable. What is durable is
acknowledged each second (`reached`). Nothing is acknowledged before.

While too many bytes wait, the stream is paused, so the first keeps what is to come in its logs.

Anything else that goes wrong ends the stream: a cut connection, an entry that does not follow. Then
all queues are emptied, and the next stream begins at what is durable by then, after a
pause that grows. So no state is kept between streams that could be wrong.

A database that cannot store what comes, because the disk is full or its file refused, is *stalled*:
the rest of the stream says nothing to it, and the other databases follow. After `RETRY_S` the
stream is begun again, so that the first sends the database what it lacks.

*Lag.* The first sends a beat each second: how far its logs reach (`heads`). As soon as all of that
is durable here, this standby shows the state of the moment at which the beat was sent. The lag is
the time since the last such beat has come, by the clock of this machine alone.

The first has a base for a database whose log it cannot continue (`base`). It is stored in a file,
loaded, checked, and put in the place of the old file, whole or not at all (`replacement`).
"""

from __future__ import annotations

import contextlib
import pathlib
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Iterator
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import IO, Any, Final, TypeVar

import attrs
import orjson
from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.interfaces import IDelayedCall
from twisted.internet.task import deferLater
from twisted.logger import Logger
from twisted.python.failure import Failure

from treedbd.archive import bases
from treedbd.archive.sealing import Damaged
from treedbd.database.catalog import Catalog
from treedbd.database.copied_entries import (
    ApplyEntry,
    CreateDatabase,
    ReplaceDisconnectRows,
    ReplaceHooks,
    read_end,
    read_owners,
    replay,
)
from treedbd.database.database import Database
from treedbd.database.log_reader import LogPosition
from treedbd.database.requests import Outcome, Unavailable, UnknownDatabase
from treedbd.database.runtime import Runtime, in_own_thread
from treedbd.database.session_owners import note_dead_owner
from treedbd.errors import in_one_line
from treedbd.files import FULL_ERRNOS, create_private
from treedbd.limits import MIB
from treedbd.loop import seconds_since_boot
from treedbd.names import DatabaseName, parse_label
from treedbd.standby.client import OF_ITSELF, Answer, FirstClient, FirstFailed, Stream
from treedbd.standby.office import TERM_PATH
from treedbd.standby.replacement import download_of, new_file_of, put_in_place, remove_new
from treedbd.store.disconnect_rows import DisconnectRow
from treedbd.store.engine import (
    CannotCreateStore,
    CannotOpenStore,
    DiskFull,
    LogEntry,
    StoreFailed,
)
from treedbd.store.rules_versions import Origin

STREAM_PATH: Final = "/.standby/stream.json"
REACHED_PATH: Final = "/.standby/reached.json"
BASE_PATH: Final = "/.standby/base"
PAUSES: Final = (0.2, 0.5, 1.0, 2.0, 5.0)
"""Seconds before each attempt to begin a stream again; the last one repeats."""
REACHED_S: Final = 1.0
"""Seconds between two acknowledgements."""
RETRY_S: Final = 5.0
"""Seconds until a stream begins again because a database could not store what came."""
NAMED: Final = 3
"""Databases that are named at most as those that cannot store what comes."""
OPEN_S: Final = 30.0
"""Seconds that opening a database may take."""
MAX_WAITING_BYTES: Final = 16 * MIB
MAX_WAITING_LINES: Final = 4096
"""What waits to be applied at most before the stream is paused."""
MAX_LINE_BYTES: Final = 256 * MIB
MAX_REFUSAL_BYTES: Final = 65_536
_FULL: Final = "The disk is full"
_NOT_STORED: Final = (
    *(DiskFull, StoreFailed, CannotOpenStore, CannotCreateStore),
    *(Unavailable, OSError),
)
_WRITTEN_AT_ONCE: Final = 4 * MIB
_READ_AT_ONCE: Final = 256 * 1024
_ENTRY: Final = b',"entry":'

T = TypeVar("T")


class CannotFollow(Exception):
    """What the first has sent cannot be used; the text is a clause that says why."""


@attrs.frozen
class Hello:
    """What the first says of itself at the beginning of a stream."""

    term: int
    id: str


@attrs.frozen(eq=False)
class Line:
    """One line of a stream: its members, or an entry, whose content is not parsed."""

    json: Any
    size: int
    entry: LogEntry | None = None


def parse_line(line: bytes) -> Line:
    """Return what a line says; raise ValueError, LookupError or TypeError for anything else."""
    at = line.find(_ENTRY)
    if at < 0 or not line.startswith(b'{"db":'):
        return Line(orjson.loads(line), len(line))
    head: Any = orjson.loads(line[:at] + b"}")
    if not line.endswith(b"}") or type(head["seq"]) is not int:
        raise ValueError("This is not the line of an entry.")
    content = bytes(line[at + len(_ENTRY) : -1])
    entry = LogEntry(head["seq"], bytes.fromhex(head["op"]), content)
    return Line(head, len(line), entry)


class LineReceiver:
    """Divides the bytes of a stream into lines."""

    def __init__(self, handle: Callable[[bytes], None]) -> None:
        """Call `handle` with each line, without its end."""
        self._handle = handle
        self._pending: list[bytes] = []
        self._size = 0

    def received(self, data: bytes, stream: Stream) -> None:
        """Handle the lines that are complete; raise `CannotFollow` for one that is too long.

        The answer to a request that was refused is not handled.
        """
        if stream.status != 200:
            self._pending.append(data[:MAX_REFUSAL_BYTES])
            return
        first, *others = data.split(b"\n")
        self._pending.append(first)
        self._size += len(first)
        if self._size > MAX_LINE_BYTES:
            raise CannotFollow("a line is too long")
        for each in others:
            line = b"".join(self._pending)
            try:
                self._handle(line)
            except (ValueError, LookupError, TypeError, AttributeError):
                raise CannotFollow("it has sent what is not a line of a stream") from None
            self._pending, self._size = [each], len(each)

    def refusal_of(self, status: int) -> str:
        """Return what the first says of a request that it refuses, as a clause."""
        try:
            json: Any = orjson.loads(b"".join(self._pending[:4]))
        except ValueError:
            json = None
        reason = Answer(status, json).error.rstrip(".")
        if status in (401, 403):
            return f"the token is not that of an admin who may write: {reason}"
        return reason


class BaseFile:
    """Stores a base while it comes; the disk is waited for in a thread."""

    def __init__(self, file: IO[bytes], runtime: Runtime) -> None:
        self._file, self._runtime = file, runtime
        self._pending: list[bytes] = []
        self._size = 0
        self._is_writing = False
        self.failure: Exception | None = None

    def received(self, data: bytes, stream: Stream) -> None:
        """Keep bytes, and write them when they are many."""
        self._pending.append(data)
        self._size += len(data)
        if self._size >= _WRITTEN_AT_ONCE and not self._is_writing:
            self._is_writing = True
            stream.pause()
            self._runtime.run_in_thread(self.flush).addCallbacks(
                lambda _: self._written(stream), lambda failure: self._fail(failure.value, stream)
            )

    def flush(self) -> None:
        """Write what is kept; raise OSError."""
        pending, self._pending, self._size = self._pending, [], 0
        self._file.writelines(pending)

    def _written(self, stream: Stream) -> None:
        self._is_writing = False
        stream.resume()

    def _fail(self, error: Exception, stream: Stream) -> None:
        self.failure = error
        stream.fail(error)


def storing_problem(error: Exception, db: str) -> str | None:
    """Return why a database cannot store what comes, as a clause; None if an error is another."""
    if not isinstance(error, _NOT_STORED):
        return None
    number = error.errno if isinstance(error, OSError) else None
    if number in FULL_ERRNOS or isinstance(error, DiskFull) or str(error).startswith(_FULL):
        return f"The disk of this standby is full ({db})"
    text = error.strerror if isinstance(error, OSError) else str(error)
    return f"{db} cannot be stored here: {(text or type(error).__name__).rstrip('.')}"


class FollowedDatabase:
    """What a project's stream says of one database, done in its order.

    Attributes:
        position: its last entry that is durable here; None while that is not known.
        is_stalled: whether it takes no part in the rest of the stream.

    """

    _log = Logger()

    def __init__(self, follower: ProjectFollower, name: DatabaseName) -> None:
        self.position: LogPosition | None = None
        self.is_stalled = False
        self._follower, self._name = follower, name
        self._catalog, self._runtime = follower.catalog, follower.runtime
        self._queue: deque[Line] = deque()
        self._under_way = 0
        self._idle: list[Deferred[None]] = []
        self._is_running = False
        self._parts: list[DisconnectRow] = []
        self._noted_owners: set[str] = set()

    @property
    def is_idle(self) -> bool:
        """Whether nothing is to be done."""
        return not (self._is_running or self._under_way)

    def add(self, line: Line) -> None:
        """Do what a line says, after all before it.

        Of a database that is stalled only the deletion is done.
        """
        if line.json.get("deleted"):
            self.is_stalled = False
        if self.is_stalled:
            self._follower.done(line)
            return
        self._queue.append(line)
        if not self._is_running:
            self._is_running = True
            Deferred.fromCoroutine(self._run())

    def drop_queue(self) -> None:
        """Forget what has not begun; it comes again."""
        for line in self._queue:
            self._follower.done(line)
        self._queue.clear()

    async def read_position(self) -> LogPosition:
        """Return the position, which is read if it is not known; raise `Unavailable`."""
        if self.position is None:
            database = self._catalog.find(self._name)
            async with self._opened(database):
                self.position = read_end(database)
        return self.position

    def _opened(self, database: Database) -> AbstractAsyncContextManager[None]:
        return self._catalog.opened(database, OPEN_S, is_write=True)

    async def _run(self) -> None:
        try:
            while self._queue:
                await self._run_some()
        except Exception as error:
            self._refuse(error)
        finally:
            self._is_running = False
            self._look_idle()

    async def _run_some(self) -> None:
        """Do what is in the queue: entries together, anything else by itself."""
        if self._queue[0].entry is None:
            await self._wait_for_entries()
            line = self._queue.popleft()
            try:
                await self._do(line.json)
            finally:
                self._follower.done(line)
            return
        database = self._catalog.find(self._name)
        async with self._opened(database):
            while self._queue and self._queue[0].entry is not None:
                while self._queue and (entry := self._queue[0].entry) is not None:
                    line = self._queue.popleft()
                    self._under_way += 1
                    writing = replay(database, ApplyEntry(entry))
                    writing.addCallbacks(self._applied, self._failed, (line, entry), {}, (line,))
                await self._wait_for_entries()  # the database stays open until they are durable

    def _applied(self, _: Outcome, line: Line, entry: LogEntry) -> None:
        self.position = LogPosition(entry.sequence, entry.op_id)
        self._follower.reached(self._name.database)
        self._ended(line)

    def _failed(self, failure: Failure, line: Line) -> None:
        self.position = None  # it is read again
        error = failure.value
        if not self.is_stalled:  # else this is one that followed
            self._refuse(error if isinstance(error, Exception) else CannotFollow(str(error)))
        self._ended(line)

    def _refuse(self, error: Exception) -> None:
        """End the stream by an error, or take no further part in it if nothing can be stored."""
        problem = storing_problem(error, f"{self._name.project}/{self._name.database}")
        self.drop_queue()
        if problem is None:
            self._follower.fail(error)
        else:
            self.is_stalled = True
            self._follower.stall(self._name.database, problem)

    def _ended(self, line: Line) -> None:
        self._under_way -= 1
        self._follower.done(line)
        self._look_idle()

    def _look_idle(self) -> None:
        if not self._under_way:
            waiting, self._idle = self._idle, []
            for each in waiting:
                each.callback(None)

    async def _wait_for_entries(self) -> None:
        """Return when no entry is being applied."""
        if self._under_way:
            waiting: Deferred[None] = Deferred()
            self._idle.append(waiting)
            await waiting

    async def wait(self) -> None:
        """Return when nothing is to be done."""
        while not self.is_idle:
            waiting: Deferred[None] = Deferred()
            self._idle.append(waiting)
            await waiting

    async def _do(self, json: Any) -> None:
        if "begins" in json:
            await self._begin(json["begins"])
        elif json.get("base"):
            await self._replace()
        elif json.get("deleted") or (json.get("missing") and await self._follower.may_delete()):
            await self._delete()
        elif "disconnect" in json:
            await self._take_rows(json)
        elif "hooks" in json:
            await self._take_hooks(json)

    async def _begin(self, position: Any) -> None:
        """Create the database if it is missing: what follows is all that it ever had."""
        sequence, op_id = int(position[0]), bytes.fromhex(position[1])
        if self._name not in self._catalog.written:
            database = self._catalog.find(self._name)
            async with self._opened(database):
                await replay(database, CreateDatabase())
        if await self.read_position() != LogPosition(sequence, op_id):
            raise CannotFollow(f"the first continues {self._name.label} elsewhere")

    async def _delete(self) -> None:
        if self._name not in self._catalog.written:
            self._follower.forget(self._name.database)
            return
        self.position = None
        self._noted_owners.clear()
        await self._catalog.delete(self._name, is_local=True)
        self._follower.forget(self._name.database)

    async def _take_rows(self, json: Any) -> None:
        """Replace the writes that wait for the ends of sessions, when all parts are there."""
        pairs = json["disconnect"]
        rows = [DisconnectRow(bytes.fromhex(key), bytes.fromhex(row)) for key, row in pairs]
        if json.get("part", 0) == 0:
            self._parts = []
        self._parts += rows
        if json.get("part", 0) + 1 < json.get("parts", 1):
            return
        rows, self._parts = self._parts, []
        owners = {row.key.split(b"/")[0][2:].decode("ascii") for row in rows}
        await self._note_owners(owners)
        database = self._catalog.find(self._name)
        async with self._opened(database):
            await replay(database, ReplaceDisconnectRows(rows))

    async def _take_hooks(self, json: Any) -> None:
        """Replace the hooks, and their cursors."""
        rows = [(bytes.fromhex(key), bytes.fromhex(stored)) for key, stored in json["hooks"]]
        reached = {str(name): int(sequence) for name, sequence in json["reached"].items()}
        database = self._catalog.find(self._name)
        async with self._opened(database):
            await replay(database, ReplaceHooks(rows, reached, self._runtime.now_ms()))

    async def _note_owners(self, owners: Iterable[str]) -> None:
        """Record durably where owners that are elsewhere have writes, for a promotion."""
        new = sorted(set(owners) - self._noted_owners)
        note = partial(note_dead_owner, self._follower.data)
        for owner in new:
            await self._runtime.run_in_thread(partial(note, owner, self._name))
            self._noted_owners.add(owner)

    # A base.

    async def _replace(self) -> None:
        """Fetch a base, and put it in the place of the database."""
        self._follower.is_loading.add(self._name.database)
        header = await self._follower.first.bases.run(
            lambda: self._follower.until_stop(self._load())
        )
        before, self.position = self.position, None
        self._noted_owners.clear()
        put = partial(put_in_place, new_file_of(self._follower.data, self._name))
        await self._catalog.replace(self._name, put)
        self.position = LogPosition(header.sequence, header.op_id)
        if before is not None and header.sequence <= before.sequence and before != self.position:
            self._log.warn(
                "{label} was replaced by what the first has, which ends with the write {after}: "
                "what was here ended with the write {before}, and is gone where it is another.",
                label=self._name.label,
                after=header.sequence,
                before=before.sequence,
            )
        await self._find_owners()
        self._follower.is_loading.discard(self._name.database)
        self._follower.reached(self._name.database)
        await self._follower.acknowledge()

    async def _load(self) -> bases.BaseHeader:
        data, name = self._follower.data, self._name
        if self._follower.is_ending:
            raise CannotFollow("the stream has ended")
        download = download_of(data, name)
        try:
            with open(create_private(download), "wb") as file:
                receiver = BaseFile(file, self._runtime)
                stream = await self._follower.first.open(
                    "GET", BASE_PATH, name.project, None, receiver, query={"db": name.database}
                )
                if stream.status != 200:
                    stream.abort()
                    raise CannotFollow(f"the base of {name.label} is not sent ({stream.status})")
                self._follower.other_streams.add(stream)
                try:
                    await stream.finished()
                except FirstFailed as error:
                    raise receiver.failure or error from None
                finally:
                    self._follower.other_streams.discard(stream)
                await self._runtime.run_in_thread(receiver.flush)
            remove_new(data, name)
            load = partial(_load_base, download, new_file_of(data, name))
            header = await in_own_thread(self._runtime.clock, load, "load a base")
        finally:
            download.unlink(missing_ok=True)
        if header.db != f"{name.project}/{name.database}":
            raise CannotFollow(f"the base of {name.label} is that of another database")
        return header

    async def _find_owners(self) -> None:
        database = self._catalog.find(self._name)
        async with self._opened(database):
            await self._note_owners(read_owners(database))


def _load_base(download: pathlib.Path, target: pathlib.Path) -> bases.BaseHeader:
    """Make the file of a database from a base; in a thread of its own."""

    def read() -> Iterator[bytes]:
        with download.open("rb") as file:
            while piece := file.read(_READ_AT_ONCE):
                yield piece

    try:
        return bases.load(read(), target)
    except Damaged as error:
        raise CannotFollow(f"the base is damaged ({error})") from None


class ProjectFollower:
    """Follows one project.

    Attributes:
        hello: what the first has said of itself; None before.
        is_complete: whether a beat was caught up with, so that there was a state of the first here.
        caught_up_at: when the first sent the newest state that is here, in seconds since boot.
        has_last: whether that is the last one of a first which was superseded.
        is_loading: the databases whose bases have to be loaded.

    """

    _log = Logger()

    def __init__(
        self,
        project: str,
        *,
        first: FirstClient,
        catalog: Catalog,
        runtime: Runtime,
        data: pathlib.Path,
        describe: Callable[[], dict[str, object]],
        met: Callable[[Hello], Any],
        completed: Callable[[], None],
    ) -> None:
        """Follow nothing yet.

        `describe` returns the members of a request that say who this standby is; `met` is called
        with what the first says, and returns an awaitable of whether databases are deleted that it
        does not have, and raises an exception at once if nothing that it sends is applied;
        `completed` as soon as there is a state of the first here.
        """
        self.project, self.first = project, first
        self.catalog, self.runtime, self.data = catalog, runtime, data
        self.hello: Hello | None = None
        self.is_complete = self._is_retry = False
        self._meeting: Deferred[bool] = Deferred()
        self._stream_problem: str | None = "the first has not been reached yet"
        self._stalled, self._unsent = dict[str, str](), dict[str, str]()
        self._retrying: IDelayedCall | None = None
        self.is_loading: set[str] = set()
        self.other_streams: set[Stream] = set()
        self._describe, self._met, self._completed = describe, met, completed
        self._clock: Any = runtime.clock
        self._databases: dict[str, FollowedDatabase] = {}
        self._skipped: set[str] = set()
        self._stream: Stream | None = None
        self._failure: Exception | None = None
        self._waiting_bytes = self._waiting_lines = 0
        self._reached: set[str] = set()
        self._rules: str | None = None
        self._acknowledging: IDelayedCall | None = None
        self._beats: deque[tuple[float, dict[str, int], bool]] = deque()
        self.caught_up_at: float | None = None
        self.has_last = False
        self._asked_at = self._ahead_s = 0.0
        self._is_over = False
        self._running: Deferred[None] | None = None
        self._pause: Deferred[None] | None = None
        self._waiting: set[Deferred[Any]] = set()
        self._logged: str | None = None

    def start(self) -> None:
        """Follow, until `stop`."""
        self._running = Deferred.fromCoroutine(self._run())
        self._acknowledging = self._clock.callLater(REACHED_S, self._acknowledge_again)

    async def stop(self) -> None:
        """Apply what has come, and follow no longer."""
        self._is_over = True
        for due in (self._acknowledging, self._retrying):
            if due is not None and due.active():
                due.cancel()
        for waiting in list(self._waiting):
            waiting.cancel()
        for stream in [*self.other_streams, *([self._stream] if self._stream else [])]:
            stream.abort()
        if self._pause is not None:
            self._pause.cancel()
        if self._running is not None:
            await self._running
        await self._drain()

    @property
    def problem(self) -> str | None:
        """Why there is no stream, or what some databases lack, as a clause; else None."""
        problems = [*self._stalled.values(), *self._unsent.values()]
        if self._stream_problem is not None or not problems:
            return self._stream_problem
        more = len(problems) - NAMED
        return "; ".join([*problems[:NAMED], *([f"and {more} more"] if more > 0 else [])])

    def until_stop(self, work: Coroutine[Deferred[Any], Any, T]) -> Deferred[T]:
        """Wait for the first, or for what may take minutes, until `stop`, which cancels it."""
        waiting = Deferred.fromCoroutine(work)
        self._waiting.add(waiting)

        def forget(result: T) -> T:
            self._waiting.discard(waiting)
            return result

        waiting.addBoth(forget)
        if self._is_over:
            waiting.cancel()
        return waiting

    def hurry(self) -> None:
        """Try at once to follow again, if there is no stream."""
        if self._pause is not None:
            self._pause.cancel()

    def lag_s(self) -> float | None:
        """Return how many seconds old the data may be; None before it was ever caught up with.

        That is since the first has sent what is here, as far as the clocks of the two can be
        compared: never less, but more by the time of a request.
        """
        self._look_at_beats()
        return None if self.caught_up_at is None else seconds_since_boot() - self.caught_up_at

    # One stream after the other.

    async def _run(self) -> None:
        attempt = 0
        while not self._is_over:
            self._failure = None
            before = self.caught_up_at
            try:
                await self._follow()
                reason = "the first has ended the stream"
            except Exception as error:
                reason = self._reason_of(error)
            self._stream = None
            if not self._meeting.called:
                self._meeting.callback(False)
            await self._drain()
            if self._is_over:
                return
            if self._is_retry and self._failure is None:
                continue
            if self._failure is not None:  # which may be later than the end of the stream
                reason = self._reason_of(self._failure)
            attempt = 1 if self.caught_up_at != before else attempt + 1
            self._note_problem(reason)
            self._pause = deferLater(self._clock, PAUSES[min(attempt, len(PAUSES)) - 1])
            with contextlib.suppress(CancelledError):  # by `stop` or `hurry`
                await self._pause
            self._pause = None

    def _reason_of(self, error: Exception) -> str:
        if isinstance(error, FirstFailed | CannotFollow):
            return str(error)
        return str(error).rstrip(".") or type(error).__name__

    def _note_problem(self, reason: str) -> None:
        self._stream_problem = reason
        if reason != self._logged:
            self._logged = reason
            self._log.warn(
                "The project {project} does not follow {url} at present: {reason}.",
                project=self.project,
                url=self.first.url,
                reason=reason,
            )

    async def _drain(self) -> None:
        """Return when nothing is being applied."""
        for database in list(self._databases.values()):
            await database.wait()

    async def _follow(self) -> None:
        """Follow one stream to its end; raise `FirstFailed` or what ended it."""
        self._beats.clear()
        self.has_last = self._is_retry = False
        for database in self._databases.values():
            database.is_stalled = False
        self.is_loading &= self._stalled.keys()
        self._meeting = Deferred()
        body = {
            **self._describe(),
            "tokens": self.first.tokens(),
            "positions": await self._read_positions(),
        }
        receiver = LineReceiver(self._receive)
        self._asked_at = seconds_since_boot()
        stream = await self.until_stop(
            self.first.open("POST", STREAM_PATH, self.project, body, receiver)
        )
        self._stream = stream
        await stream.finished()
        if stream.status != 200:
            refusal = receiver.refusal_of(stream.status)
            raise FirstFailed(await self.until_stop(self._find_refusal(refusal)))

    async def _find_refusal(self, refusal: str) -> str:
        """Return why the first refuses: perhaps it is this daemon."""
        try:
            answer = await self.first.ask("GET", TERM_PATH, self.project)
            is_itself = answer.json["id"] == self._describe()["standby"]
        except (FirstFailed, LookupError, TypeError):
            return refusal
        return OF_ITSELF if is_itself else refusal

    async def _read_positions(self) -> dict[str, list[object]]:
        found: dict[str, list[object]] = {}
        for name in self.catalog.written.all():
            if name.project == self.project and not self._is_over:
                try:
                    at = await self._database(name.database).read_position()
                except UnknownDatabase:
                    continue
                found[f"{self.project}/{name.database}"] = [at.sequence, at.op_id.hex()]
        return found

    def _database(self, database: str) -> FollowedDatabase:
        found = self._databases.get(database)
        if found is None:
            name = DatabaseName(self.project, database)
            if parse_label(name.label) != name:
                raise CannotFollow(f"{name.label!r} is not the name of a database")
            self.catalog.find(name)
            found = self._databases[database] = FollowedDatabase(self, name)
        return found

    # Lines.

    def _receive(self, text: bytes) -> None:
        if self.is_ending:
            return
        line = parse_line(text)
        json = line.json
        if "db" in json:
            self._receive_for_database(line)
        elif "hello" in json:
            self._greet(json["hello"])
        elif "rules" in json:
            Deferred.fromCoroutine(self._put_rules(json["rules"]))
        elif "heads" in json:
            self._receive_beat(json)

    def _receive_for_database(self, line: Line) -> None:
        project, _, name = str(line.json["db"]).partition("/")
        if project != self.project or name in self._skipped:
            return
        try:
            database = self._database(name)
        except UnknownDatabase as error:
            self._skipped.add(name)
            self._log.warn(
                "The first has a database that the configuration here does not: {error}",
                error=error,
            )
            return
        self._note_unsent(name, line.json.get("problem"))
        if "problem" in line.json:
            return
        self._waiting_bytes += line.size
        self._waiting_lines += 1
        if self._is_full and self._stream is not None:
            self._stream.pause()
        database.add(line)

    def _note_unsent(self, name: str, reason: object) -> None:
        """Note why the first does not send a database, a sentence; None if it does."""
        if reason is None:
            self._unsent.pop(name, None)
            return
        db = f"{self.project}/{name}"
        problem = f"{db} is not sent: {in_one_line(str(reason)).rstrip('.')}"
        if self._unsent.get(name) != problem:
            self._unsent[name] = problem
            self._log.warn("{problem}; the first tries it again.", problem=problem)

    @property
    def is_ending(self) -> bool:
        """Whether nothing more is fetched for the present stream."""
        return self._is_over or self._failure is not None

    @property
    def _is_full(self) -> bool:
        return self._waiting_bytes > MAX_WAITING_BYTES or self._waiting_lines > MAX_WAITING_LINES

    def done(self, line: Line) -> None:
        """Record that a line does not wait any longer."""
        self._waiting_bytes -= line.size
        self._waiting_lines -= 1
        if self._stream is not None and not self._is_full:
            self._stream.resume()

    def fail(self, error: Exception) -> None:
        """End the stream, because what it has sent cannot be applied."""
        if self._failure is None:
            self._failure = error
        for database in self._databases.values():
            database.drop_queue()
        if self._stream is not None:
            self._stream.fail(error)

    def stall(self, name: str, problem: str) -> None:
        """Note that a database cannot store what comes, and begin again later."""
        if self._stalled.get(name) != problem:
            self._log.warn(
                "{problem}: what the first has changed in it is missing here, and is tried again.",
                problem=problem,
            )
        self._stalled[name] = problem
        if self._retrying is None or not self._retrying.active():
            self._retrying = self._clock.callLater(RETRY_S, self._retry)

    def _retry(self) -> None:
        """Begin the stream again, unless bases are being loaded."""
        if self._stream is None or not any(each.is_stalled for each in self._databases.values()):
            return
        if self.is_loading - self._stalled.keys():
            self._retrying = self._clock.callLater(RETRY_S, self._retry)
            return
        self._is_retry = True
        self._stream.abort()

    def _note_stored(self, name: str) -> None:
        """Note that a database that was stalled has stored something."""
        if name in self._stalled:
            del self._stalled[name]
            self._log.info("{project}/{name} follows again.", project=self.project, name=name)

    async def may_delete(self) -> bool:
        """Return whether databases are deleted that the first did not have at the beginning."""
        waiting: Deferred[bool] = Deferred()
        self._meeting.addCallback(_pass_on, waiting)
        return await waiting

    def _greet(self, json: Any) -> None:
        self.hello = hello = Hello(int(json["term"]), str(json["id"]))
        self._compare_clocks(self._asked_at, float(json["now"]))
        Deferred.fromCoroutine(self._meet(hello, self._meeting))

    async def _meet(self, hello: Hello, meeting: Deferred[bool]) -> None:
        try:
            may_delete = await self._met(hello)
        except Exception as error:
            self.fail(error)
            return
        if meeting.called:
            return  # the stream has ended
        meeting.callback(may_delete)
        is_first = self.caught_up_at is None and self._logged is None
        if self._stream_problem is not None and is_first:
            self._log_following()
        self._stream_problem = None

    def _log_following(self) -> None:
        self._log.info(
            "The project {project} follows {url}.", project=self.project, url=self.first.url
        )

    async def _put_rules(self, text: Any) -> None:
        """Put the rules of the first in force, unless a file of the configuration sets them.

        If they cannot be used here, everything is denied.
        """
        try:
            rules = self.catalog.rules(self.project)
            if rules.is_file_managed or not isinstance(text, str):
                return
            if text in (rules.current.text, self._rules):
                return
            self._rules = text
            origin = Origin(time=self.runtime.now_ms())
            await rules.put(text.encode(), None, origin, is_local=True)
        except Exception as error:
            self._rules = None
            self.fail(error)

    # Beats, and what is acknowledged.

    def _receive_beat(self, json: Any) -> None:
        heads = {str(db).partition("/")[2]: int(head) for db, head in json["heads"].items()}
        sent_at = min(seconds_since_boot(), self._here(json["beat"]))
        self._beats.append((sent_at, heads, json.get("last") is True))
        self._look_at_beats()

    def _here(self, time_ms: float) -> float:
        """Return a time of the clock of the first by that of this process, or an earlier one."""
        return time_ms / 1000 + self._ahead_s

    def _compare_clocks(self, asked_at: float, answered_ms: float) -> None:
        """Know how far the clock here is ahead of that of the first, or less.

        It answered later than it was asked, so that is at least the difference of the two.
        """
        self._ahead_s = asked_at - answered_ms / 1000

    def _look_at_beats(self) -> None:
        """Find the last beat that was caught up with."""
        while self._beats and all(self._has(*each) for each in self._beats[0][1].items()):
            at, _, is_last = self._beats.popleft()
            if not (self.has_last and is_last):  # else the first accepts nothing any more
                self.caught_up_at = at
            self.has_last = is_last
            self._note_caught_up()
            if not self.is_complete:
                self.is_complete = True
                self._completed()

    def _note_caught_up(self) -> None:
        """Note that nothing is wrong with the stream, which might have failed again at once."""
        if self._logged is not None:
            self._logged = None
            self._log_following()
        for name in [each for each in self._stalled if not self._is_stalled(each)]:
            self._note_stored(name)

    def _has(self, name: str, head: int) -> bool:
        if name in self._skipped:
            return True
        database = self._databases.get(name)
        position = None if database is None else database.position
        return position is not None and position.sequence >= head and name not in self.is_loading

    def _is_stalled(self, name: str) -> bool:
        return name in self._databases and self._databases[name].is_stalled

    def reached(self, name: str) -> None:
        """Record that a database is durable up to its position."""
        self._reached.add(name)
        if not self._is_stalled(name):
            self._note_stored(name)

    def forget(self, name: str) -> None:
        """Forget a database that was deleted."""
        self._databases.pop(name, None)
        self._reached.discard(name)
        self._stalled.pop(name, None)
        self.is_loading.discard(name)

    def _acknowledge_again(self) -> None:
        self._acknowledging = self._clock.callLater(REACHED_S, self._acknowledge_again)
        if self._reached and self._stream_problem is None:
            Deferred.fromCoroutine(self.acknowledge())

    async def acknowledge(self) -> None:
        """Send the first what is durable; if that fails, it is sent later."""
        names, self._reached = self._reached, set()
        positions = {}
        for name in names:
            database = self._databases.get(name)
            if database is not None and (at := database.position) is not None:
                positions[f"{self.project}/{name}"] = [at.sequence, at.op_id.hex()]
        if not positions:
            return
        body = {**self._describe(), "positions": positions}
        asked_at = seconds_since_boot()
        try:
            answer: Answer = await self.until_stop(
                self.first.ask("POST", REACHED_PATH, self.project, body)
            )
        except (FirstFailed, CancelledError):
            self._reached |= names
        else:
            if answer.status != 200:
                self._reached |= names
            else:
                self._compare_clocks(asked_at, float(answer.json["now"]))


def _pass_on(result: bool, waiting: Deferred[bool]) -> bool:
    """Fire another Deferred with a result, too."""
    waiting.callback(result)
    return result
