"""Resuming: clients that were away continue with the events that they missed.

Only the events of a whole node can be computed again, as they were sent at the time, and only for a
client whose right to receive them held all the while. If anything is uncertain, the client starts
again with the present value.

Theory of operation. After an interruption many clients come back at once, and have missed the same
writes. So an entry of the log is decoded once for all of them, and the events at a path after one
position are computed once for all clients that continue there, in slices. Once these are complete,
up to the present state, each client begins, in a step of its own: its right is checked against that
state, it is registered as a watcher of what comes after it, and it receives its events. So nothing
is missed in between, and nothing is sent twice.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from itertools import islice
from typing import Final, TypeAlias

import attrs
from twisted.logger import Logger

from treedbd.database.missed_events import (
    LoggedWrite,
    MissedEvents,
    MissedNotification,
    decode_entry,
)
from treedbd.database.runtime import Runtime
from treedbd.database.slices import StepQueue, Steps
from treedbd.database.watchers import Watcher, Watchers
from treedbd.limits import MAX_RESUMED_BYTES, MAX_RESUMED_WRITES
from treedbd.rules.context import WrittenPaths
from treedbd.store.engine import Engine, ReadView
from treedbd.store.nodes import Nodes
from treedbd.tree.event import Position
from treedbd.tree.types import Path

ENTRIES_AT_ONCE: Final = 16
WORK_AT_ONCE: Final = 2000
"""Entries of the log, and members and items in them, that are decoded or added in one step."""

MayContinue: TypeAlias = Callable[[Nodes, WrittenPaths, Iterable[str]], bool]
Begin: TypeAlias = Callable[[MissedNotification | None], None]


@attrs.define(eq=False)
class Resumption:
    """A client that continues at `path` after a position, as soon as it is known what it missed.

    `may_continue` says whether it may read at a state, and could when these paths were written
    before, under rules with these fingerprints. `begin` is called once: with the events, and then
    `watcher` is notified of all later writes; or with None, if the client has to start again.
    """

    path: Path
    after: Position
    watcher: Watcher
    may_continue: MayContinue
    begin: Begin
    is_cancelled: bool = False

    def cancel(self) -> None:
        """Wait no longer: `begin` will not be called."""
        self.is_cancelled = True


class Resumptions:
    """The clients of one database that wait for what they missed."""

    _log = Logger()

    def __init__(self, engine: Engine, watchers: Watchers, runtime: Runtime, retained: int) -> None:
        """Of the log only the `retained` newest entries count, though it may hold some more."""
        self._engine = engine
        self._watchers = watchers
        self._limit = min(retained, MAX_RESUMED_WRITES)
        self._queue = StepQueue(runtime.slices)
        self._statistics = runtime.statistics
        self._waiting: dict[tuple[Path, Position], deque[Resumption]] = {}
        self._decoded: dict[int, LoggedWrite] = {}
        self._decoded_bytes = 0

    def add(self, client: Resumption) -> None:
        """Let a client continue: in this turn, if little was missed and nobody is before it."""
        key = (client.path, client.after)
        waiting = self._waiting.get(key)
        if waiting is not None:
            waiting.append(client)
            return
        self._waiting[key] = deque((client,))
        self._queue.add(self._resume(key))

    def _resume(self, key: tuple[Path, Position]) -> Steps:
        """Compute what was missed at a path after a position, and let the clients begin."""
        waiting = self._waiting[key]
        missed = MissedEvents(*key)
        while waiting:
            client = waiting[0]
            may_continue = False if client.is_cancelled else self._advance(missed, client)
            if may_continue is not None:
                waiting.popleft()
                self._begin(client, missed if may_continue else None)
            yield
        del self._waiting[key]
        if not self._waiting:
            self._forget()

    def _advance(self, missed: MissedEvents, client: Resumption) -> bool | None:
        """Add some of what was missed; if there is no more, return whether the client may have it.

        That is decided in the moment whose number is the last that was added.
        """

        def work(view: ReadView) -> bool | None:
            present = view.sequence()
            missed.is_known &= 0 <= present - client.after.sequence <= self._limit
            if missed.is_known and missed.next <= present:
                self._add_some(missed, view)
                return None
            return missed.is_known and client.may_continue(
                Nodes(view), missed.written, missed.rules
            )

        try:
            return self._engine.read(work)
        except Exception:
            self._log.failure("What a client missed cannot be computed; it starts again.")
            missed.is_known = False
            return False

    def _begin(self, client: Resumption, missed: MissedEvents | None) -> None:
        if client.is_cancelled:
            return
        self._statistics.add_resumption(is_known=missed is not None)
        if missed is not None:
            self._watchers.add(client.path, client.watcher, missed.next - 1)
        try:
            client.begin(None if missed is None else missed.notification())
        except Exception:
            self._log.failure("A client that resumes failed.")
            self._watchers.remove(client.path, client.watcher)

    def _add_some(self, missed: MissedEvents, view: ReadView) -> None:
        """Add the next writes, decoded if they are not yet."""
        if missed.next not in self._decoded:
            self._decode(view, missed.next)
        missed.is_known = missed.next in self._decoded  # not if the log does not go back so far
        work = 0
        for _ in range(ENTRIES_AT_ONCE):
            write = self._decoded.get(missed.next)
            if write is None or work > WORK_AT_ONCE:
                break
            missed.add(write)
            work += write.work

    def _decode(self, view: ReadView, start: int) -> None:
        if self._decoded_bytes > MAX_RESUMED_BYTES:
            self._forget()
        work = 0
        for entry in islice(view.entries(start - 1), ENTRIES_AT_ONCE):
            write = self._decoded[entry.sequence] = decode_entry(entry)
            self._decoded_bytes += len(entry.content)
            work += write.work
            if work > WORK_AT_ONCE:
                break

    def _forget(self) -> None:
        self._decoded.clear()
        self._decoded_bytes = 0
