"""Resuming clients: what they missed while they were away, from the change log and from replays.

Theory of operation. After an interruption many clients come back at once, and have missed the same
writes. So an entry of the change log is decoded once for all of them (`LoggedWrite`), and the
events at a path after one position are computed once for all clients that continue there
(`MissedEvents`), in slices. Once these are complete, up to the present state, each client begins,
in a step of its own: its right is checked against that state, it is registered as a watcher of what
comes after it, and it receives its events. So nothing is missed in between, and nothing is sent
twice.

Only the events of a whole node can be computed again, as they were sent at the time, and only for a
client whose right to receive them held all the while. If anything is uncertain, the client starts
again with the present value.

Replays are the states between two durable ones, write by write. Writes that are committed together
become visible together, and a process that follows others sees many of their commits at once. Yet
watchers are notified of each write by itself, so what was true after each of them has to be known:
a moment that reads have left is held, and the writes since then are applied over it in memory
(`Replay`), one by one, when anything has to be read there. Neither the present rows are read for
that, which are newer, nor does it matter which process has committed. `Moments` are those of one
database.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import Any, Final, TypeAlias

import attrs
from twisted.logger import Logger

from treedbd.database.runtime import Runtime
from treedbd.database.slices import StepQueue, Steps
from treedbd.database.watchers import Notification, Watcher, Watchers
from treedbd.limits import MAX_RESUMED_BYTES, MAX_RESUMED_PATHS, MAX_RESUMED_WRITES
from treedbd.rules.context import WrittenPaths
from treedbd.store import changelog
from treedbd.store.engine import Engine, EngineSnapshot, LogEntry, PresentView, ReadView
from treedbd.store.memory import MemoryEngine
from treedbd.store.nodes import HeldNodes, Nodes
from treedbd.tree.edit import in_order
from treedbd.tree.event import Commit, Event, Position
from treedbd.tree.overlay import EditedTree, Overlay
from treedbd.tree.path import is_at_or_above
from treedbd.tree.types import Change, Path, Place, View
from treedbd.tree.value import from_export

EVENT_BYTES: Final = 500
NODE_BYTES: Final = 100
"""Memory of an event, and of a member or item of what was written."""
_WORK_BYTES: Final = 32
"""Bytes of an entry that are as much work as a member: a path may be long."""

ENTRIES_AT_ONCE: Final = 16
WORK_AT_ONCE: Final = 2000
"""Entries of the log, and members and items in them, that are decoded or added in one step."""

MayContinue: TypeAlias = Callable[[Nodes, WrittenPaths, Iterable[str]], bool]


@attrs.frozen
class MissedNotification(Notification):
    """What a client missed; `memory_bytes` is an upper estimate of the memory that it takes."""

    memory_bytes: int = attrs.field(default=0, eq=False)


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
        """Stop waiting: `begin` will not be called."""
        self.is_cancelled = True


class Resumptions:
    """The clients of one database that wait for what they missed."""

    _log = Logger()

    def __init__(
        self,
        engine: Engine,
        nodes_of: Callable[[PresentView], Nodes],
        watchers: Watchers,
        runtime: Runtime,
        retained: int,
    ) -> None:
        """Use the `retained` newest entries of the log, which may hold some more.

        The rights of clients are judged by the nodes that `nodes_of` makes.
        """
        self._engine = engine
        self._nodes_of = nodes_of
        self._watchers = watchers
        self._limit = min(retained, MAX_RESUMED_WRITES)
        self._queue = StepQueue(runtime.slices)
        self._statistics = runtime.statistics
        self._waiting: dict[tuple[Path, Position], deque[Resumption]] = {}
        self._decoded: dict[int, LoggedWrite] = {}
        self._decoded_bytes = 0

    def add(self, client: Resumption) -> None:
        """Continue a client: at once if it missed little and no other waits, else later."""
        key = (client.path, client.after)
        waiting = self._waiting.get(key)
        if waiting is not None:
            waiting.append(client)
            return
        self._waiting[key] = deque((client,))
        self._queue.add(self._resume(key))

    def _resume(self, key: tuple[Path, Position]) -> Steps:
        """Compute what was missed at a path after a position, and begin the clients."""
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
        """Add some of what was missed; if nothing is left, return whether the client may have it.

        That is decided in the moment whose number is the last that was added.
        """

        def work(view: PresentView) -> bool | None:
            present = view.sequence()
            missed.is_known &= 0 <= present - client.after.sequence <= self._limit
            if missed.is_known and missed.next <= present:
                self._add_some(missed, view)
                return None
            return missed.is_known and client.may_continue(
                self._nodes_of(view), missed.written, missed.rules
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
        self._statistics.resumed += missed is not None
        self._statistics.restarted += missed is None
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


@attrs.frozen
class LoggedWrite:
    """A decoded entry of the change log, whose body has about so many `nodes`.

    `place` is the path that the write was sent to, `written` the paths that it set; `rules` is the
    fingerprint of the rules that were in force. `commit` is None if its events are not known.
    """

    sequence: int
    op_id: bytes
    size: int
    rules: str
    place: Path
    written: tuple[Path, ...]
    commit: Commit | None
    nodes: int

    @property
    def memory_bytes(self) -> int:
        """An upper estimate of the memory that its event takes, also when it is printed."""
        return EVENT_BYTES + 2 * self.size + NODE_BYTES * self.nodes

    @property
    def work(self) -> int:
        """How much it is to decode and to add it, in members and items."""
        return self.nodes + self.size // _WORK_BYTES


def decode_entry(entry: LogEntry) -> LoggedWrite:
    """Decode an entry of the change log; raise ValueError for other bytes."""
    edit = changelog.decode(entry.content)
    written: tuple[Path, ...] = (edit.place.path,)
    commit = None
    if not isinstance(edit, changelog.NotRetained):
        written = tuple(change.place.path for change in edit.changes)
        if not any(change.place.is_priority for change in edit.changes):
            commit = changelog.commit_of(entry.sequence, edit, entry.op_id)
    return LoggedWrite(
        sequence=entry.sequence,
        op_id=entry.op_id,
        size=len(entry.content),
        rules=changelog.rules_of(entry.content),
        place=edit.place.path,
        written=written,
        commit=commit,
        nodes=changelog.count_nodes(entry.content),
    )


class MissedEvents:
    """The events at a path after a position, added up write by write from the entries of the log.

    An entry holds what was written, not what was there. So the events of some writes cannot be
    computed again: of one whose body was not retained, and of one that set a priority. Each
    position has events of its own, so `MissedNotification` says how much memory they take.

    Attributes:
        is_known: whether they are known so far; if not, clients have to start again.
        next: the number of the write to be added next.
        written: the paths that were written meanwhile, wherever they are.
        rules: the fingerprints of the rules that were in force meanwhile.

    """

    def __init__(self, path: Path, after: Position) -> None:
        """Begin with the write that `after` names, if any: it shows that the history is the same.

        Before the first write there was nothing, so a position there names none.
        """
        self.is_known = bool(after.op_id) == bool(after.sequence)
        self.next = after.sequence or 1
        self.written: Final = WrittenPaths()
        self.rules: set[str] = set()
        self._path = path
        self._after = after
        self._events: list[tuple[Position, Event]] = []
        self._size = self._memory_bytes = 0
        self._shared: dict[object, Any] = {}

    def add(self, write: LoggedWrite) -> None:
        """Add the next write."""
        self._size += write.size
        if write.sequence != self.next or self._size > MAX_RESUMED_BYTES:
            self.is_known = False
        elif write.sequence > self._after.sequence:
            self._add_event(write)
        elif not write.op_id.startswith(self._after.op_id):
            self.is_known = False
        self.next += 1

    def notification(self) -> MissedNotification:
        """Return all of them; what clients share of it stays shared when more are added."""
        return MissedNotification(tuple(self._events), self._shared, self._memory_bytes)

    def _add_event(self, write: LoggedWrite) -> None:
        """Add the event of a write, if it reaches the path."""
        for path in write.written:
            self.written.add(path)
        if len(self.written.prefixes) > MAX_RESUMED_PATHS:
            self.is_known = False
            return
        self.rules.add(write.rules)
        if is_at_or_above(self._path, write.place) or is_at_or_above(write.place, self._path):
            if write.commit is None:
                self.is_known = False
                return
            event = write.commit.event_at(self._path)
            if event is not None:
                self._events.append((write.commit.position, event))
                self._memory_bytes += write.memory_bytes


Begin: TypeAlias = Callable[[MissedNotification | None], None]


class SharedMoment:
    """A moment that several replays begin with; released when none needs it."""

    def __init__(self, nodes: HeldNodes) -> None:
        self.nodes: Final = nodes
        self._users = 1

    def share(self) -> SharedMoment:
        """Return it for one more user."""
        self._users += 1
        return self

    def release(self) -> None:
        """Release it for one user."""
        self._users -= 1
        if not self._users:
            self.nodes.close()


class Replay:
    """A moment, and the writes that have come after it so far.

    Attributes:
        through: the number of the last of them.

    """

    def __init__(self, moment: SharedMoment, commits: Sequence[Commit] = ()) -> None:
        """Begin with `moment`, which the replay releases, and the `commits` after it."""
        self.through = moment.nodes.sequence
        self._moment = moment
        self._edited: EditedTree | None = None
        self._commits: list[Commit] = []
        self._applied = 0
        self._view: View | None = moment.nodes
        for commit in commits:
            self.add(commit)

    @property
    def has_writes(self) -> bool:
        """Whether any write has come after the moment."""
        return bool(self._commits)

    @property
    def nodes(self) -> HeldNodes:
        """The moment that it begins with."""
        return self._moment.nodes

    @property
    def view(self) -> View:
        """The tree after the writes so far, until the next is added.

        Reading what a large write has set raises `StateUnknown`.
        """
        if self._view is None:
            first = self._commits[0]
            if len(self._commits) == 1 and not first.is_large:
                self._view = Overlay(self.nodes, in_order(_changes_of(first)))
            else:
                self._view = self.edited
        return self._view

    @property
    def edited(self) -> EditedTree:
        """The same, which also knows what was written to; it costs more for a single write."""
        edited, commits = self._edited, self._commits
        if edited is None:
            edited = self._edited = EditedTree(self.nodes)
        while self._applied < len(commits):
            _apply(commits[self._applied], edited)
            self._applied += 1
        return edited

    def add(self, commit: Commit) -> None:
        """Add the next write."""
        self._commits.append(commit)
        self._view = None
        self.through = commit.position.sequence

    def fork(self, *, without_last: bool = False) -> Replay:
        """Return a replay that has come as far, or to the state before, and goes on by itself."""
        commits = self._commits[:-1] if without_last else self._commits
        return Replay(self._moment.share(), commits)

    def close(self) -> None:
        """Release the moment."""
        self._moment.release()


class Moments:
    """The moments that reads of one database have left, and the replay that begins with one.

    While the database has watchers, reads are shown a newer moment only by `leave`, which holds
    the moment before. It is released when watchers were notified of what came after it
    and reads show the state that this led to; until then the log of a file cannot be restarted.

    Attributes:
        are_held: whether any moment is held.

    """

    def __init__(
        self, engine: Engine, nodes_of: Callable[[EngineSnapshot], HeldNodes] = HeldNodes
    ) -> None:
        """Hold none yet of `engine`; `nodes_of` makes the nodes of one that is held."""
        self.are_held = False
        self._engine = engine
        self._nodes_of = nodes_of
        self._left: deque[HeldNodes] = deque()
        self._replay: Replay | None = None

    def leave(self) -> None:
        """Show reads what has been committed, and hold the moment before it."""
        left = self._engine.advance(holds=True)
        if left is not None:
            self._left.append(self._nodes_of(left))
            self.are_held = True

    def replay_to(self, sequence: int) -> Replay | None:
        """Return the replay of the state with a number, None if that is no longer known."""
        # With volatile nodes, states are moments: their numbers are those of the writes before.
        while self._left and int(self._left[0].sequence) <= sequence:
            moment = self._left.popleft()
            if self._replay is not None and self._replay.through > moment.sequence:
                moment.close()
                continue
            self._begin(moment)
        if self._replay is None and sequence == 0:
            self._begin(self._nodes_of(MemoryEngine().snapshot()))
        replay = self._replay
        return replay if replay is not None and int(replay.through) == sequence else None

    def add(self, commit: Commit) -> Replay | None:
        """Return the replay of the state after a write, None if that is not known."""
        sequence = commit.position.sequence
        if commit.is_large and self._begin_with_present(sequence):
            return self._replay
        replay = self.replay_to(sequence - 1)
        if replay is not None:
            replay.add(commit)
        return replay

    def release_unneeded(self) -> None:
        """Release what is no longer needed: watchers were notified of all that reads show."""
        replay = self._replay
        if replay is None:
            return
        if int(replay.through) == self._engine.read(lambda view: view.sequence()):
            self.close()

    def close(self) -> None:
        """Release all."""
        self.are_held = False
        while self._left:
            self._left.popleft().close()
        if self._replay is not None:
            self._replay.close()
            self._replay = None

    def _begin_with_present(self, sequence: int) -> bool:
        """Begin with the state that reads show, if it has this number."""

        def hold(view: PresentView) -> EngineSnapshot | None:
            return view.hold() if view.sequence() == sequence else None

        held = self._engine.read(hold)
        if held is not None:
            self._begin(self._nodes_of(held))
        return held is not None

    def _begin(self, moment: HeldNodes) -> None:
        self.are_held = True
        if self._replay is not None:
            self._replay.close()
        self._replay = Replay(SharedMoment(moment))


class FlushMoments:
    """The replay of one flush of volatile nodes, which queries compare with the state before."""

    def __init__(
        self,
        engine: Engine,
        before: Callable[[EngineSnapshot], HeldNodes],
        *,
        is_needed: bool,
    ) -> None:
        """Begin with the present moment of `engine`, of which `before` makes nodes."""
        self._engine = engine
        self._before = before
        self._is_needed = is_needed
        self._replay: Replay | None = None

    def replay_to(self, _: int) -> Replay | None:
        """Return the replay of the state before the flush, None if it is not needed."""
        if self._replay is None and self._is_needed:
            self._replay = Replay(SharedMoment(self._before(self._engine.snapshot())))
        return self._replay

    def add(self, commit: Commit) -> Replay | None:
        """Return the replay of the state after it, None if none was needed before."""
        if self._replay is not None:
            self._replay.add(commit)
        return self._replay

    def release_unneeded(self) -> None:
        """Release the moment."""
        if self._replay is not None:
            self._replay.close()
            self._replay = None


def _apply(commit: Commit, edited: EditedTree) -> None:
    if commit.is_large:
        for change in commit.changes:
            edited.forget(change.path)
    else:
        edited.apply(_changes_of(commit))


def _changes_of(commit: Commit) -> list[Change]:
    return [
        Change(
            Place(each.path, each.is_priority),
            from_export(each.sent) if each.is_priority else each.value,
        )
        for each in commit.changes
    ]
