"""What the parent and its workers exchange: commands, the start of a worker, its log, the board.

- Commands go by AMP over a pair of sockets (`Channel`). The parent owns the endpoints, the lock of
  the data directory and the rules lock; a worker serves. Either notices the end of the other by the
  end of the connection.
- The record that starts a worker (`WorkerStart`) is JSON in memory that only the two of them share.
  The descriptors that the worker inherits have fixed numbers.
- A worker writes its log to its standard error, one line of `operating/log` for each entry, and the
  parent logs these as its own (`WorkerLog`). Other text, such as an error of the interpreter, is
  logged as an error.
- The board is memory that all workers share: signs of life, counts, and levels of rates.

Theory of operation of the board. Each worker has a part of its own, which no other writes: when it
was last alive, and how many connections and streams it has, by address and by database (`Board`).
All workers read all parts, so no lock is needed. To find out whether there is room, a worker counts
the new connection first, then adds up the parts, and subtracts it again if there is none. Two
connections that arrive at the same time may both be refused, but never both be admitted beyond a
limit.

A part has no room for every address, so counts are kept in two tables of fixed size, at places that
a keyed hash gives (a count-min sketch): the smaller of the two sums is the count. Only where two
addresses share both places are they counted together, and no one outside can find such a pair.

After the parts come the levels of token buckets (`SharedLevels`), which all workers write, in two
tables of the same kind: the lower of the two levels counts, and a level is only raised. There is
no lock either: if two workers use one bucket within the same microsecond, one use may be lost. With
that exception, a rate holds for all workers together, whichever a caller is connected to.
"""

from __future__ import annotations

import heapq
import json
import mmap
import os
import pathlib
import struct
import sys
import time
from collections.abc import Callable, Mapping
from hashlib import blake2b
from typing import Any, ClassVar, Final, cast

import attrs
from twisted.internet.defer import Deferred
from twisted.internet.protocol import connectionDone
from twisted.logger import LogEvent, Logger, LogLevel, globalLogBeginner
from twisted.protocols import amp
from twisted.protocols.amp import AMP, BinaryBoxProtocol, Command
from twisted.python.failure import Failure

from treedbd.caches import short_cache
from treedbd.config.endpoints import LocalNetwork
from treedbd.config.settings import Settings, load_settings
from treedbd.database.runtime import Problem
from treedbd.operating.log import LogRecord, NotAnEntry, decode_entry, encode_entry, entry_of
from treedbd.web.activity import ProjectActivity

_MAX_TOTALS: Final = 400
"""How many databases an activity that is sent lists, at most."""
_MAX_BYTES: Final = 60_000
"""AMP carries values of less than 64 KiB."""

MAX_LINE_BYTES: Final = 256 * 1024
"""The rest of a longer line is dropped."""


class Channel(AMP):
    """One side of the connection, AMP with types; subclasses answer commands."""

    def __init__(self) -> None:
        base: Any = super()
        base.__init__()

    # As AMP does, but without a line in the log for each connection.

    def makeConnection(self, transport: Any) -> None:
        """Begin."""
        base: Any = BinaryBoxProtocol
        base.makeConnection(self, transport)

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        """Errback the calls without a response."""
        base: Any = BinaryBoxProtocol
        base.connectionLost(self, reason)
        self.transport = None

    def call(self, command: type[Command], **arguments: object) -> Deferred[Any]:
        """Send a command; fires with the response, errbacks if the other process has ended."""
        remote: Any = self.callRemote
        called: Deferred[Any] = remote(command, **arguments)
        return called


class Ready(amp.Command):
    """To the parent: this worker serves."""

    arguments: ClassVar = [(b"has_open_rules", amp.Boolean())]


class Failed(amp.Command):
    """To the parent: this worker cannot start; `reason` is one sentence."""

    arguments: ClassVar = [(b"reason", amp.Unicode())]


class Stop(amp.Command):
    """To a worker: stop the service, close the connection and end."""


class Reload(amp.Command):
    """To a worker: read certificates, secrets, providers and rules files again."""

    response: ClassVar = [(b"is_valid", amp.Boolean())]


class AcquireRules(amp.Command):
    """To the parent: acquire the rules lock; answered when this worker alone may store rules."""


class ReleaseRules(amp.Command):
    """To the parent: release the rules lock; the others load rules that this worker `has_stored`.

    Answered when the others have them in force.
    """

    arguments: ClassVar = [(b"project", amp.Unicode()), (b"has_stored", amp.Boolean())]


class LoadRules(amp.Command):
    """To a worker: put the stored rules of a project in force."""

    arguments: ClassVar = [(b"project", amp.Unicode())]


class Damaged(amp.Command):
    """To the parent, which sends it to the other workers: a database is damaged."""

    arguments: ClassVar = [(b"label", amp.Unicode()), (b"refuses_reads", amp.Boolean())]


class DeleteDatabase(amp.Command):
    """To the parent: delete a database; answered when it is gone, or with why it cannot be."""

    arguments: ClassVar = [(b"label", amp.Unicode())]
    response: ClassVar = [(b"problem", amp.Unicode())]


class LetGo(amp.Command):
    """To a worker: close a database that is being deleted, and let none use it."""

    arguments: ClassVar = [(b"label", amp.Unicode())]


class ReadLast(amp.Command):
    """To a worker: read what is left in the log of a database that all workers have closed."""

    arguments: ClassVar = [(b"label", amp.Unicode())]


class Deleted(amp.Command):
    """To a worker: a database that was let go is deleted, and may be created again."""

    arguments: ClassVar = [(b"label", amp.Unicode())]


class FindProblems(amp.Command):
    """To the parent, which sends it to the other workers: return the problems of the receiver."""

    response: ClassVar = [(b"problems", amp.ListOf(amp.String()))]


class FindActivity(amp.Command):
    """To the parent, which sends it to the others: return the activity of a project's databases."""

    arguments: ClassVar = [(b"project", amp.Unicode())]
    response: ClassVar = [(b"activity", amp.ListOf(amp.String()))]


class Inspect(amp.Command):
    """To the parent, which sends it to worker `number`: answer a question of an admin.

    The answer is empty if that worker does not serve at present. Each is asked by itself, because
    one value of AMP has no room for the answers of all.
    """

    arguments: ClassVar = [(b"number", amp.Integer()), (b"question", amp.String())]
    response: ClassVar = [(b"answer", amp.String())]


class ShareVolatile(amp.Command):
    """To the parent, which sends it to the others: volatile changes of a database.

    Or a part of the state of a worker for another one, whose number is `to`; else that is -1. The
    response of the parent has its place in the order in which it sends changes.
    """

    arguments: ClassVar = [
        (b"label", amp.Unicode()),
        (b"content", amp.String()),
        (b"to", amp.Integer()),
    ]


class WantVolatile(amp.Command):
    """To the parent: make another worker send what is volatile in a database.

    `group` is what the rules in force here call volatile; this worker may have a state already, by
    other rules. Answered when a state is sent, or with that none is.
    """

    arguments: ClassVar = [
        (b"label", amp.Unicode()),
        (b"group", amp.Unicode()),
        (b"has_state", amp.Boolean()),
    ]
    response: ClassVar = [(b"is_given", amp.Boolean())]


class BeginVolatile(amp.Command):
    """To a worker: a state that it wants follows, as it is at this place in the order."""

    arguments: ClassVar = [(b"label", amp.Unicode())]


class GiveVolatile(amp.Command):
    """To a worker: send the state of a database to worker `number`.

    If it is that of a `group`; if that is empty, that of any. The response says whether it was
    sent, and whether there is one, of whatever group.
    """

    arguments: ClassVar = [
        (b"label", amp.Unicode()),
        (b"group", amp.Unicode()),
        (b"number", amp.Integer()),
    ]
    response: ClassVar = [(b"is_given", amp.Boolean()), (b"has_state", amp.Boolean())]


class LockVolatile(amp.Command):
    """To the parent: give no change of another worker a place in the order of a database.

    Answered when that is so, after all changes that have one.
    """

    arguments: ClassVar = [(b"label", amp.Unicode())]


class UnlockVolatile(amp.Command):
    """To the parent: release the lock of `LockVolatile`."""

    arguments: ClassVar = [(b"label", amp.Unicode())]


def encode_activity(activity: ProjectActivity) -> bytes:
    """Return activity as AMP carries it, of the databases with the most requests."""
    totals = heapq.nlargest(_MAX_TOTALS, activity.totals.items(), key=_requests)
    return json.dumps(attrs.astuple(attrs.evolve(activity, totals=dict(totals)))).encode()


def _requests(total: tuple[str, tuple[int, float]]) -> int:
    return total[1][0]


def decode_activity(encoded: bytes) -> ProjectActivity:
    """Return the activity that `encode_activity` was given."""
    for_s, totals, slowest = json.loads(encoded)
    return ProjectActivity(
        for_s,
        {label: (requests, seconds) for label, (requests, seconds) in totals.items()},
        [tuple(each) for each in slowest],
    )


def encode_problems(problems: list[Problem]) -> list[bytes]:
    """Return problems as AMP carries them; as many as one answer has room for."""
    encoded, size = [], 0
    for each in problems:
        content = json.dumps([each.project, each.database, each.reason, each.refuses_writes])
        size += len(content) + 2
        if size > _MAX_BYTES:
            break
        encoded.append(content.encode())
    return encoded


def decode_problems(encoded: list[bytes]) -> list[Problem]:
    """Return the problems that `encode_problems` was given."""
    found = []
    for content in encoded:
        project, database, reason, refuses_writes = json.loads(content)
        found.append(Problem(project, database, reason, refuses_writes))
    return found


# The numbers of the descriptors that a worker inherits.
CHANNEL: Final = 3
"""The connection to the parent."""
START: Final = 4
"""The record with which the worker is started (`WorkerStart`)."""
BOARD: Final = 5
"""The memory of the board (`Board`)."""
RECEIVER: Final = 6
"""The socket at which hints arrive."""
DIRECTORY_LOCK: Final = 7
"""The lock file of the data directory."""
SAMPLES: Final = 8
"""The memory of the board of metrics (`SampleBoard`)."""
DIRECTORY: Final = 9
"""The data directory itself, which is locked as long as one worker has it open."""
FIRST_FREE: Final = 10
"""From here on: sockets at which other workers receive hints, then listening sockets."""


@attrs.frozen
class SettingsSource:
    """The arguments of `load_settings`, with the content of the file at the start."""

    file: str | None
    flags: Mapping[str, object]
    folder: str
    content: bytes | None = None
    accept_loss: bool = False
    quiet: bool = False
    network: LocalNetwork | None = None

    def read(self) -> SettingsSource:
        """Return the same with the present content of the file, if it can be read."""
        if self.file is None:
            return self
        try:
            content = (pathlib.Path(self.folder) / self.file).read_bytes()
        except OSError:
            return self  # `load` raises the reason
        return attrs.evolve(self, content=content)

    def load(self) -> Settings:
        """Return the settings; raise `ConfigError`."""
        file = None if self.file is None else pathlib.Path(self.file)
        settings = load_settings(
            file, self.flags, pathlib.Path(self.folder), self.content, self.network
        )
        return attrs.evolve(settings, accept_loss=self.accept_loss, quiet=self.quiet)


@attrs.frozen
class ListeningSocket:
    """A socket that the parent has opened, for the endpoint of the same place in the settings.

    Those of `ops_listen` follow those for clients, `Settings.client_endpoints`.
    """

    descriptor: int
    family: int


@attrs.frozen
class WorkerStart:
    """The start of worker `number` of `workers`; `others` receive its hints.

    `parent` is the id of the process that has started it. One worker, at its first start,
    `checks_files` for damage.
    """

    parent: int
    number: int
    workers: int
    checks_files: bool
    secret: bytes
    source: SettingsSource
    others: tuple[int, ...]
    listening: tuple[ListeningSocket, ...]

    def write(self) -> int:
        """Return the descriptor of memory that holds this record."""
        record = json.dumps(attrs.asdict(self), default=bytes.hex)
        descriptor = os.memfd_create("treedb-worker", os.MFD_CLOEXEC)
        os.write(descriptor, record.encode())
        return descriptor


def read_start(descriptor: int = START) -> WorkerStart:
    """Return the record that the parent has written."""
    os.lseek(descriptor, 0, os.SEEK_SET)
    with os.fdopen(descriptor, "rb") as file:
        record: dict[str, Any] = json.load(file)
    source, network = record["source"], record["source"]["network"]
    if source["content"] is not None:
        source["content"] = bytes.fromhex(source["content"])
    if network is not None:
        lists = {name: tuple(network[name]) for name in ("names", "addresses")}
        source["network"] = LocalNetwork(**{**network, **lists})
    record |= {
        "secret": bytes.fromhex(record["secret"]),
        "source": SettingsSource(**source),
        "others": tuple(record["others"]),
        "listening": tuple(ListeningSocket(**each) for each in record["listening"]),
    }
    return WorkerStart(**record)


def begin_logging() -> None:
    """Write all events of this process to its standard error from now on, and all that it prints.

    Errors before that, and those of the interpreter itself, arrive there as they are.
    """
    stream = sys.stderr.buffer

    def write(event: LogEvent) -> None:
        stream.write(encode_entry(entry_of(event)))
        stream.flush()

    globalLogBeginner.beginLoggingTo([cast(Any, write)])


class WorkerLog:
    """Logs what one worker writes."""

    _log = Logger()

    def __init__(self, number: int) -> None:
        """Name the worker by its `number`, from 1 on."""
        self._number = number
        self._rest = b""

    def receive(self, content: bytes) -> None:
        """Log the lines that are complete."""
        *lines, rest = (self._rest + content).split(b"\n")
        self._rest = rest[:MAX_LINE_BYTES]
        for line in lines:
            self._log_line(line)

    def end(self) -> None:
        """Log the last line, if it has no end."""
        if self._rest:
            self._log_line(self._rest)
        self._rest = b""

    def _log_line(self, line: bytes) -> None:
        try:
            entry = decode_entry(line, self._number)
        except NotAnEntry:
            text = line.decode("utf-8", "replace")
            name = f"{__name__}.{type(self).__name__}"
            entry = LogRecord(time.time(), "error", name, text, worker=self._number)
        self._log.emit(
            LogLevel.levelWithName(entry.level),
            "Worker {number}: {text}",
            number=self._number,
            text="\n".join(filter(None, (entry.message, entry.traceback))),
            treedb_entry=entry,
        )


PLACES: Final = 16_384
"""Counts in one of the two tables."""
_TABLES: Final = 2
_HEAD_BYTES: Final = 64
_COUNT_BYTES: Final = 4
_PART_BYTES: Final = _HEAD_BYTES + _TABLES * PLACES * _COUNT_BYTES
LEVEL_PLACES: Final = 262_144
"""Levels in one of the two tables; only those in use need memory."""
_LEVEL_BYTES: Final = 8
_BEAT: Final = struct.Struct("d")


class Board:
    """The board, for worker `number` of `workers`; the parent has the number -1."""

    def __init__(self, descriptor: int, number: int, workers: int, secret: bytes) -> None:
        """Map the memory of `descriptor`; `secret` is the same for all workers."""
        self._map = mmap.mmap(descriptor, workers * _PART_BYTES)
        self._counts = memoryview(self._map).cast("I")
        self._own = number
        self._workers = range(workers)
        self._places = _make_places(PLACES, secret)

    def total(self, key: str) -> int:
        """Return the count of a key at all workers together."""
        counts, starts = self._counts, [_part_start(worker) for worker in self._workers]
        first, second = self._places(key)
        return min(
            sum(counts[start + first] for start in starts),
            sum(counts[start + second] for start in starts),
        )

    def more_than_least(self, key: str) -> tuple[int, int]:
        """Return by how many this worker has more of a key than another, and how many that has.

        The other one is that which has fewest.
        """
        counts, (first, second) = self._counts, self._places(key)
        starts = map(_part_start, self._workers)
        each = [min(counts[start + first], counts[start + second]) for start in starts]
        own = each.pop(self._own)
        least = min(each, default=own)
        return own - least, least

    def add(self, key: str) -> None:
        """Count one more at this worker."""
        self._change(key, 1)

    def remove(self, key: str) -> None:
        """Count one fewer at this worker."""
        self._change(key, -1)

    def beat(self, seconds: float) -> None:
        """Record that this worker is alive, at a time of the monotonic clock."""
        _BEAT.pack_into(self._map, self._own * _PART_BYTES, seconds)

    def last_beat(self, worker: int) -> float:
        """Return when a worker was last alive."""
        seconds: float = _BEAT.unpack_from(self._map, worker * _PART_BYTES)[0]
        return seconds

    def clear(self, worker: int, seconds: float) -> None:
        """Reset the part of a worker that has ended; the next one starts at `seconds`."""
        start = worker * _PART_BYTES
        self._map[start : start + _PART_BYTES] = bytes(_PART_BYTES)
        _BEAT.pack_into(self._map, start, seconds)

    def _change(self, key: str, by: int) -> None:
        start = _part_start(self._own)
        for place in self._places(key):
            self._counts[start + place] += by


class SharedLevels:
    """The levels of token buckets, which all workers share (`counting.Levelling`)."""

    def __init__(self, descriptor: int, workers: int, secret: bytes) -> None:
        """Map the memory of the board; as `Board`."""
        start = workers * _PART_BYTES
        memory = mmap.mmap(descriptor, start + _TABLES * LEVEL_PLACES * _LEVEL_BYTES)
        self._levels = memoryview(memory)[start:].cast("d")
        self._places = _make_places(LEVEL_PLACES, secret)

    def get(self, key: str) -> float:
        """Return a level."""
        first, second = self._places(key)
        return min(self._levels[first], self._levels[second])

    def set(self, key: str, level: float) -> None:
        """Raise a level."""
        levels = self._levels
        for place in self._places(key):
            levels[place] = max(levels[place], level)


def create_sample_board() -> int:
    """Return the descriptor of new memory for the values of metrics (`SampleBoard`)."""
    return os.memfd_create("treedb-samples", os.MFD_CLOEXEC)


def create_board(workers: int) -> int:
    """Return the descriptor of new memory for a board."""
    descriptor = os.memfd_create("treedb-board", os.MFD_CLOEXEC)
    size = workers * _PART_BYTES + _TABLES * LEVEL_PLACES * _LEVEL_BYTES
    os.ftruncate(descriptor, size)
    return descriptor


def _part_start(worker: int) -> int:
    return (worker * _PART_BYTES + _HEAD_BYTES) // _COUNT_BYTES


def _make_places(places: int, secret: bytes) -> Callable[[str], tuple[int, int]]:
    """Return a function from a key to its places in two tables of `places` places."""

    @short_cache(4096)
    def find(key: str) -> tuple[int, int]:
        hashed = blake2b(key.encode("utf-8", "surrogatepass"), digest_size=8, key=secret).digest()
        first, second = struct.unpack("II", hashed)
        return first % places, places + second % places

    return find
