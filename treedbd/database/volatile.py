"""Volatile nodes of one database: written in memory, and shown to watchers at a bounded rate.

Theory of operation. What the rules call volatile (`rules.volatile`) has its values in memory
(`store.volatile.Tops`), merged into all that is read. A write that concerns volatile nodes alone is
judged and applied in the turn of the reactor in which it comes, without the group commit. It has
no number: each change makes another `turn`, and states between two commits are `Moment`s.

A write of both kinds, or one above volatile nodes, passes the group commit. `divide` cuts it in two
parts. The stored part is logged and committed; the volatile part becomes visible with it, in the
turn in which it is known to be durable. Until then writes at the same places wait in the queue
after it, so the order of one client's writes is kept.

A node that is stored when the rules make it volatile stays stored, with all that is written there,
until it is removed. So a change of the rules loses nothing and hides nothing.

Watchers are notified by flushes, each in a round of its own: the places that have changed since the
flush before, with the values that they have by then. A node with a rate is flushed at most so often
a second, together with all others of that rate. So a slow round, and a slow rate, make fewer
events, and the last one is always sent. What watchers know of is kept (`_shown`), since queries
compare it with what comes next.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache, partial
from itertools import groupby
from typing import TYPE_CHECKING, Final, NamedTuple

import attrs
import orjson
from twisted.internet.defer import Deferred, fail, succeed
from twisted.internet.interfaces import IDelayedCall, IReactorTime

from treedbd.database.apply import (
    check_condition,
    check_lone_priority,
    etag_after_write,
    etag_before_write,
)
from treedbd.database.requests import (
    ConditionFailed,
    Outcome,
    PermissionDenied,
    QuotaExceeded,
    TooLarge,
    Unavailable,
    UnknownDatabase,
    VolatilePart,
    Write,
)
from treedbd.database.runtime import Runtime
from treedbd.database.slices import Steps
from treedbd.database.volatile_exchange import VolatileExchange, VolatileLink
from treedbd.database.volatile_order import VolatileOrder
from treedbd.limits import MAX_VOLATILE_BYTES as MAX_VALUE_BYTES
from treedbd.limits import MAX_VOLATILE_CHANGES as MAX_CHANGES
from treedbd.loop import pause, paused
from treedbd.names import DatabaseName
from treedbd.rules.context import KeptReads, ReadPool
from treedbd.rules.volatile import ABOVE, BESIDE, VolatileBranch, VolatilePaths
from treedbd.store.engine import (
    DamagedRow,
    DiskFull,
    EngineSnapshot,
    PresentView,
    StoreDamaged,
    StoreFailed,
)
from treedbd.store.nodes import HeldNodes, Nodes, PresentNodes
from treedbd.store.rows import PagedRows
from treedbd.store.volatile import (
    TOP_KEY_BYTES,
    MergedHeldNodes,
    MergedNodes,
    MergedPresentNodes,
    ShownNodes,
    Top,
    Tops,
    VolatileView,
)
from treedbd.tree.edit import (
    Draft,
    Edit,
    changes_as_sent,
    echo_of,
    echo_without_reading,
    in_order,
    resolve,
    set_priority,
    set_value,
)
from treedbd.tree.event import Commit, CommittedChange, Moment, Position
from treedbd.tree.path import encode_path, format_path, is_at_or_above
from treedbd.tree.types import (
    CONTAINER,
    ROOT,
    Change,
    Container,
    InvalidData,
    Json,
    Path,
    Place,
    Value,
)
from treedbd.tree.value import as_json, as_priority, compact, leaf_of, plain, value_at

if TYPE_CHECKING:
    from treedbd.database.database import Database

TOP_BYTES: Final = 256
"""What a volatile node takes in memory beside its value, as it is counted."""
MAX_PLACES: Final = 64
"""Places of one volatile node that are flushed one by one; of more the node is flushed whole."""
FLUSHED_AT_ONCE: Final = 256
"""Places of several volatile nodes that are one event; more are several."""
CUT_AT_ONCE: Final = 64
"""Volatile nodes that are left out of a large body between two pauses."""
MAX_FREE: Final = 10_000
"""Volatile nodes without a value that are remembered to have nothing stored."""
MAX_QUEUED: Final = 64
"""Writes in the queue whose places are compared with those of others; of more, all wait."""
_NO_PATHS: Final = VolatilePaths(VolatileBranch({}, None))
_REFUSALS: Final = (
    *(PermissionDenied, ConditionFailed, InvalidData, TooLarge, QuotaExceeded, UnknownDatabase),
    Unavailable,
)


class VolatileFull(QuotaExceeded):
    """A write would make the volatile nodes of a database larger than they may be."""

    def __init__(self, name: DatabaseName, quota: int) -> None:
        """`quota` are the bytes that they may take."""
        Exception.__init__(
            self,
            f"The volatile nodes of the database {name.label} may take {quota} bytes "
            "(volatile_bytes), and this would be more. Remove some of them first.",
        )


class _Sent(NamedTuple):
    """A change of an edit, with the name that it has in a PATCH and what was sent for it."""

    name: str
    change: Change
    sent: Json


class Divided(NamedTuple):
    """An edit in two parts: what is stored, None if nothing is, and what is volatile.

    `part` says which part of what was sent is volatile.
    """

    stored: Edit | None
    volatile: tuple[Change, ...]
    part: VolatilePart = ""


class VolatileData:
    """The volatile nodes of one database; belongs to the reactor's thread.

    Attributes:
        paths: which nodes are volatile, by the rules in force.
        size: about the bytes that they take.

    """

    def __init__(self, database: Database, runtime: Runtime) -> None:
        """Keep those of `database`, of which there are none yet."""
        self.paths: VolatilePaths = _NO_PATHS
        self.size = 0
        self._database = database
        self._limit: Final = runtime.volatile_bytes
        self._statistics: Final = runtime.statistics
        self._tops: Final = Tops()
        self._shown: Final = Tops()
        self._turn = 1
        self._shown_turn = 0  # that of the last flush, in which `shown` was as it is
        self._nodes: MergedPresentNodes | None = None
        self._nodes_turn = 0
        self._shown_nodes: ShownNodes | None = None
        self._view: Final = VolatileView(self._tops, self._depth, database.read)
        self._has_store = False
        self._transaction: object = None
        self._of_batch: Tops | None = None  # with what is volatile of its writes so far
        self._seen = self._tops  # those that the write sees which is being applied
        self._free: set[Path] = set()
        self._doubtful: set[Path] = set()
        self._doubts: IDelayedCall | None = None
        self._clock: Final = runtime.clock
        self._queued: list[Path] = []
        self._flushes: Final = Flushes(self, database, runtime.clock)
        self.exchange: VolatileExchange | None = None
        self.order: VolatileOrder | None = None
        if runtime.volatile_link is not None:
            self._join_others(runtime.volatile_link, runtime)

    def _join_others(self, link: VolatileLink, runtime: Runtime) -> None:
        """Exchange changes with other processes that serve the database."""
        database, clock = self._database, runtime.clock
        self.exchange = VolatileExchange(self, database.name, link, clock)
        self.order = VolatileOrder(
            database.name,
            self.exchange,
            link,
            clock=clock,
            write=database.write_in_turn,
            is_near=self.is_near,
        )

    @property
    def is_waiting(self) -> bool:
        """Whether reads have to wait for the state of other processes."""
        return self.order is not None and self.order.is_waiting

    def __len__(self) -> int:
        """Return how many volatile nodes have a value."""
        return len(self._tops)

    # Reading.

    def nodes_of(self, view: PresentView) -> PresentNodes:
        """Return the nodes of the present moment."""
        nodes = self._nodes
        if nodes is None or nodes.view is not view or self._nodes_turn != self._turn:
            nodes = MergedPresentNodes(view, self._tops.freeze(), self._turn)
            self._nodes, self._nodes_turn = nodes, self._turn
        return nodes

    def shown_nodes_of(self, view: PresentView) -> PresentNodes:
        """Return the nodes of the moment that queries are watched from.

        A flush compares with what watchers know, so a query that begins with a later state would
        not be notified of a child that enters and leaves until then.
        """
        if not self._flushes.is_due:
            return self.nodes_of(view)
        nodes = self._shown_nodes
        if nodes is None or nodes.view is not view or nodes.turn != self._shown_turn:
            nodes = ShownNodes(view, self._shown.freeze(), self._shown_turn)
            self._shown_nodes = nodes
        return nodes

    def over(self, rows: PagedRows, transaction: object, changes: Sequence[Change] = ()) -> Nodes:
        """Return the nodes of a transaction, with what is volatile of its writes and `changes`."""
        if transaction is not self._transaction:
            self._transaction, self._of_batch = transaction, None
        tops = self._tops.freeze() if self._of_batch is None else self._of_batch
        if changes:
            tops = self._changed(tops, changes)
        self._seen = tops
        return MergedNodes(rows, tops, self._turn)

    def applied(self, changes: Sequence[Change]) -> None:
        """Record that what is volatile of a write will be shown with its transaction."""
        if changes:
            base = self._tops if self._of_batch is None else self._of_batch
            self._of_batch = self._changed(base, changes)

    def _changed(self, tops: Tops, changes: Iterable[Change]) -> Tops:
        """Return other tops, with changes."""
        changed = tops.copy()
        for change in changes:
            self._change(changed, change)
        return changed

    def hold(self, snapshot: EngineSnapshot) -> HeldNodes:
        """Return the nodes of a moment that is held from now on."""
        return MergedHeldNodes(snapshot, self._tops.freeze(), self._turn)

    def hold_shown(self, snapshot: EngineSnapshot) -> HeldNodes:
        """Return the same with the volatile nodes that watchers know of."""
        return self._holding_shown()(snapshot)

    def _holding_shown(self) -> Callable[[EngineSnapshot], HeldNodes]:
        """Return what holds a moment with the volatile nodes that watchers know of now."""
        tops, turn = self._shown.freeze(), self._shown_turn
        return lambda snapshot: MergedHeldNodes(snapshot, tops, turn)

    def is_near(self, path: Path) -> bool:
        """Return whether anything at, above or below a path may be volatile."""
        return self.paths.depth(path) != BESIDE

    # Writing.

    def write(self, write: Write) -> Deferred[Outcome] | None:
        """Do a write of volatile nodes alone; None if it has to pass the group commit."""
        if write.task is not None or write.large is not None:
            return None
        try:
            if len(write.edit.changes) > MAX_CHANGES:
                return None  # the group commit refuses it, unless most of it is stored
            depths = self._find_depths(write.edit.changes)
            return None if depths is None else succeed(self._apply(write, depths))
        except _REFUSALS as error:
            return fail(error.with_traceback(None))
        except Exception:
            return fail()  # as a batch does with an error that is not expected

    def note_queued(self, write: Write, written: Deferred[Outcome]) -> Deferred[Outcome]:
        """Make volatile writes wait for one that passes the group commit, if they may meet it."""
        if write.task is not None:
            return written
        depth, changes = self.paths.depth, write.edit.changes
        if len(changes) > MAX_QUEUED:
            paths = [write.edit.place.path]
        else:
            paths = [each.place.path for each in changes if depth(each.place.path)]
        if not paths:
            return written
        self._queued += paths

        def end(result: Outcome) -> Outcome:
            for path in paths:
                self._queued.remove(path)
            return result

        return written.addBoth(end)

    def divide(self, edit: Edit, stored: Nodes) -> Divided:
        """Divide an edit, server values resolved; `stored` are the nodes of its transaction.

        Raises `InvalidData` and `QuotaExceeded`.
        """
        kept: list[_Sent] = []
        volatile: list[Change] = []
        unseen: list[Change] = []  # what they remove may be at other processes
        is_cut = False
        names = list(edit.sent) if isinstance(edit.sent, dict) else []
        for number, (change, sent) in enumerate(changes_as_sent(edit)):
            name = names[number] if edit.method == "patch" else ""
            path, is_priority = change.place
            depth = self.paths.depth(path)
            if depth > 0 and self._is_free(path[:depth], stored):
                is_cut = True
                volatile.append(change)
                continue
            if depth == ABOVE and not is_priority:
                rest, parts = self.paths.cut(path, change.value)
                if parts or self._is_seen_below(path):
                    volatile.append(change)
                elif self.exchange is not None:
                    unseen.append(change)
                if parts:
                    if rest is None:  # nothing stored takes the place of a leaf
                        self._is_free(path, stored)
                    is_cut, change, sent = True, Change(change.place, rest), as_json(rest)  # noqa: PLW2901
            kept.append(_Sent(name, change, sent))
        self._check_size(volatile)
        if len(volatile) > MAX_CHANGES:
            raise _too_many()
        return _make_divided(edit, kept, in_order([*volatile, *unseen]), is_cut=is_cut)

    def _is_seen_below(self, path: Path) -> bool:
        return bool(self._seen) and self._seen.has_below(encode_path(path))

    def cut_kept(self, edit: Edit, stored: Nodes) -> Json:
        """Return what an edit sends, with null for what is volatile: so it can be kept in a row.

        Server values are unresolved; `stored` are the nodes of a transaction. Raises `InvalidData`
        and `TooLarge`.
        """
        if edit.method != "patch":
            return self._cut_kept(edit.place, edit.sent, stored)
        names: Iterable[str] = edit.sent if isinstance(edit.sent, dict) else ()
        return {
            name: self._cut_kept(change.place, sent, stored)
            for name, (change, sent) in zip(names, changes_as_sent(edit), strict=True)
        }

    def _cut_kept(self, place: Place, sent: Json, stored: Nodes) -> Json:
        path, is_priority = place
        depth = self.paths.depth(path)
        if depth > 0:
            if not self._is_free(path[:depth], stored):
                return sent  # what is stored there stays so
            _measure_json(sent)
            return None
        if depth == BESIDE or is_priority:
            return sent
        return self.paths.cut_json(path, sent, lambda _: True)

    def check_large(self, path: Path) -> None:
        """Raise `TooLarge` if a body that is written piece by piece cannot be at a path."""
        if self.paths.depth(path) > 0:
            raise TooLarge(f"What is volatile at {format_path(path)} must be written in parts.")

    def cut_large(self, path: Path, sent: Json, first: int) -> tuple[Json, bool]:
        """Return what a large body has for a path without what is volatile, and whether it had any.

        What is written piece by piece would be stored. What is stored at a volatile node already
        stays so. If the path is at or below a volatile node, nothing is left: an empty object.
        """
        found: list[Path] = []

        def is_cut(top: Path) -> bool:
            is_new = self._database.read_stored(lambda nodes: nodes.type_at(top)) is None
            if is_new:
                found.append(top)
                if len(found) % CUT_AT_ONCE == 0:
                    pause()
            return is_new

        depth = self.paths.depth(path)
        if depth == BESIDE or (depth > 0 and not is_cut(path[:depth])):
            return sent, False
        cut: Json = {} if depth > 0 else self.paths.cut_json(path, sent, is_cut, first)
        return (cut, True) if found else (sent, False)

    def divide_large(self, changes: Iterable[Change]) -> tuple[Change, ...]:
        """Return what a large write removes of volatile nodes, of which it sets none; it pauses."""
        removed: list[Change] = []
        for change in paused(changes):
            path, is_priority = change.place
            depth = self.paths.depth(path)
            if depth == ABOVE:
                is_there = not is_priority and self._tops.has_below(encode_path(path))
            else:
                is_there = depth > 0 and self._tops.at(path[:depth]) is not None
            if is_there:
                removed.append(Change(change.place, None))
        return tuple(removed)

    def part_of(self, edit: Edit) -> VolatilePart:
        """Return which part of an edit the rules call volatile."""
        depths = [self.paths.depth(change.place.path) for change in edit.changes]
        if depths and min(depths) > 0:
            return "all"
        is_cut = any(
            depth > 0 or (depth == ABOVE and self.paths.cut(change.place.path, change.value)[1])
            for change, depth in zip(edit.changes, depths, strict=True)
        )
        return "part" if is_cut else ""

    def committed(self, outcome: Outcome) -> None:
        """Show the volatile part of a write whose stored part is durable by now.

        If it has none, watchers are notified in the next flush, else with the commit.
        """
        self._turn += 1
        self._has_store = True
        for change in outcome.volatile:
            is_above = self.paths.depth(change.place.path) == ABOVE
            if is_above:
                self._free.clear()  # a leaf may be there now
            touched = self._change(self._tops, change)
            if self.exchange is not None:
                self.exchange.note(self._sets_of(change))
            if outcome.commit is not None:
                self._change(self._shown, change)
                if is_above:
                    self._flushes.drop_below(change.place.path)
            else:
                for path in touched:
                    self._flushes.note(path, self.paths.depth(path))
            self._drop_kept(change.place.path)
        if outcome.commit is not None:
            self._shown_turn = self._turn
            self._turn += 1

    def apply_received(self, changes: Iterable[Change]) -> None:
        """Apply changes of other processes, those to one volatile node together."""
        self._turn += 1
        for top_path, some in self._by_top(changes):
            if top_path is not None and self._tops.at(top_path) is None:
                self._doubt(top_path)
            for path in self._change_some(self._tops, top_path, some):
                self._flushes.note(path, self.paths.depth(path))
            for each in some:
                self._drop_kept(each.place.path)

    def would_change(self, changes: Iterable[Change]) -> bool:
        """Return whether changes, one after the other, would come to another state than this."""
        other = self._tops.copy()
        for top_path, some in self._by_top(changes):
            self._change_some(other, top_path, some)
        return len(other) != len(self._tops) or any(
            top is not present
            and (top.path != present.path or compact(top.value) != compact(present.value))
            for top, present in zip(other, self._tops, strict=True)
        )

    def _by_top(self, changes: Iterable[Change]) -> Iterator[tuple[Path | None, list[Change]]]:
        """Yield changes that follow each other and are of one volatile node, with its path."""
        for top_path, of_top in groupby(changes, self._top_of):
            yield top_path, list(of_top)

    def _change_some(self, tops: Tops, top_path: Path | None, some: Sequence[Change]) -> list[Path]:
        """Apply what `_by_top` yields; return the places that it changed."""
        if top_path is not None and len(some) > 1:
            return self._set_many(tops, top_path, some)
        return [path for each in some for path in self._change(tops, each)]

    def _top_of(self, change: Change) -> Path | None:
        """Return the volatile node that a change is at or below, None if there is none."""
        path = change.place.path
        depth = self.paths.depth(path)
        return path[:depth] if depth > 0 else None

    def _set_many(self, tops: Tops, top_path: Path, changes: Sequence[Change]) -> list[Path]:
        """Apply changes at or below one volatile node; return the places that may be changed."""
        top, depth = tops.at(top_path), len(top_path)
        size = 0 if top is None else top.size - TOP_BYTES
        draft = Draft(None)
        draft.set((), None if top is None else top.value)  # it is copied where it is changed
        for change in changes:
            (path, is_priority), value = change.place, change.value
            below = path[depth:]
            if is_priority:
                draft.set_priority(below, as_priority(value))
            else:
                size += _size_of(value) - _size_of(draft.at(below))
                draft.set(below, value)
        after = draft.finish()
        if after is None and top is None:
            return []
        self._put(tops, top_path, top, after, max(0, size))
        return [change.place.path for change in changes]

    def state(self) -> Iterator[Change]:
        """Iterate over the changes that make the present state, also later and in any thread."""
        return map(_set_of, list(self._tops))

    def top_paths(self) -> list[Path]:
        """Return the places of the volatile nodes that have a value."""
        return [top.path for top in self._tops]

    def tops_of(self, changes: Iterable[Change]) -> Iterator[Path]:
        """Iterate over the volatile nodes of changes."""
        for change in changes:
            path, top_path = change.place.path, self._top_of(change)
            if top_path is not None:
                yield top_path
            elif self.paths.depth(path) == ABOVE:  # it is of other rules
                yield from (part for part, _ in self.paths.cut(path, change.value)[1])

    def lacks(self, change: Change) -> bool:
        """Return whether a change may have an effect."""
        path, is_priority = change.place
        depth = self.paths.depth(path)
        if is_priority or depth == ABOVE:
            return True
        top = self._tops.at(path[:depth])
        present = None if top is None else value_at(top.value, path[depth:])
        return depth > 0 and compact(change.value) != compact(present)  # 1 and true are equal

    def _sets_of(self, change: Change) -> list[Change]:
        """Return what a change does to volatile nodes, without what is stored of it."""
        path = change.place.path
        if self.paths.depth(path) != ABOVE:
            return [change]
        parts = self.paths.cut(path, change.value)[1]
        return [Change(Place(path), None), *(Change(Place(each), part) for each, part in parts)]

    def rules_changed(self, paths: VolatilePaths | None) -> None:
        """Apply other rules: what is no longer volatile is dropped."""
        group = self.paths.digest
        self.paths = _NO_PATHS if paths is None else paths
        self._free.clear()
        is_other = paths is not None and paths.digest != group
        if is_other and self.exchange is not None and self.order is not None:
            self.exchange.fetch()  # what others have sent before was not volatile here
            self.order.begin()
        for top in self._tops:
            if self.paths.depth(top.path) != len(top.path):
                self._turn += 1
                self._put(self._tops, top.path, top, None, 0)
                self._flushes.note(top.path, len(top.path))
                self._drop_kept(top.path)
        self._flushes.flush_at_once()
        if is_other and self.exchange is not None:
            self.exchange.rules_changed()

    def others_wrote(self, commits: Sequence[Commit] | None) -> None:
        """Record what another process has committed, None for what is not known.

        What is stored may have changed anywhere. A value that was set above volatile nodes comes to
        watchers without them, and may come after what is volatile of its write. So their values are
        sent once more, after it.
        """
        self._free.clear()
        changes = None if commits is None else [each for some in commits for each in some.changes]
        for path in {ROOT} if changes is None else {each.path for each in changes}:
            if self.paths.depth(path) != ABOVE:
                continue
            encoded = encode_path(path)
            for top in self._shown.below(encoded):
                self._shown.remove(top)
            if self._tops.has_below(encoded):
                self._doubt(path)

    def _doubt(self, path: Path) -> None:
        """Look in the next turn whether there is a stored leaf where volatile nodes are."""
        if not self._doubtful:
            self._doubts = self._clock.callLater(0, self._settle_doubts)
        self._doubtful.add(path)

    def _settle_doubts(self) -> None:
        """Remove volatile nodes below stored leaves; notify of the others once more.

        Where two processes write both in one moment, the leaf remains.
        """
        paths, self._doubtful = self._doubtful, set()
        try:
            leaves = self._database.read_stored(lambda nodes: self._find_leaves(nodes, paths))
        except (StoreFailed, StoreDamaged, DamagedRow, DiskFull, Unavailable):
            return  # so are reads and writes
        for leaf in leaves:
            self._remove_below(leaf)

    def _find_leaves(self, stored: Nodes, paths: Iterable[Path]) -> set[Path]:
        """Return the stored leaves above volatile nodes at or below paths; flush the others."""
        leaves = set[Path]()
        find = cache(partial(_find_leaf, stored))
        for path in paths:
            is_above = self.paths.depth(path) == ABOVE
            for top in self._tops.below(encode_path(path)):
                leaf = find(top.path[:-1]) if is_above else _find_leaf(stored, top.path)
                if leaf is not None:
                    leaves.add(leaf)
                elif is_above:
                    self._flushes.note(top.path, len(top.path))
                    self._flushes.hasten(self.paths.rate(top.path))
        return leaves

    def _remove_below(self, leaf: Path) -> None:
        removed = [Change(Place(leaf), None)]
        self.apply_received(removed)
        if self.exchange is not None:
            self.exchange.note(removed)
        self._database.run_beside_batches(self._show_again(leaf))

    def _show_again(self, path: Path) -> Steps:
        """Make watchers read a place again, of which they may know a volatile node below it."""
        change = CommittedChange(path, None)
        commit = Commit(Position(self._moment()), "put", path, (change,), is_large=True)
        self._turn += 1
        yield from self._database.notify_volatile(commit, self._holding_shown())

    def close(self) -> None:
        """Notify of nothing more."""
        if self._doubts is not None and self._doubts.active():
            self._doubts.cancel()
        if self.order is not None:
            self.order.close()
        if self.exchange is not None:
            self.exchange.close()
        self._flushes.close()

    def when_shown(self, edit: Edit, call: Callable[[], None]) -> None:
        """Call this when watchers know the volatile nodes of an edit as they are now."""
        self._flushes.when_shown([change.place.path for change in edit.changes], call)

    def _find_depths(self, changes: Sequence[Change]) -> list[int] | None:
        """Return how many keys of each change lead to its volatile node.

        None if any is of something else, or has to wait for another write.
        """
        depths = []
        find, at = self.paths.depth, self._tops.at
        for change in changes:
            path = change.place.path
            depth = find(path)
            if depth <= 0 or (self._queued and self._must_wait(path)):
                return None
            top = path[:depth]
            if at(top) is None and not self._is_known_free(top):
                return None
            depths.append(depth)
        return depths or None

    def _must_wait(self, path: Path) -> bool:
        return len(self._queued) > MAX_QUEUED or any(
            is_at_or_above(each, path) or is_at_or_above(path, each) for each in self._queued
        )

    def _is_known_free(self, top: Path) -> bool:
        if top in self._free:
            return True
        database = self._database
        if not self._has_store:  # the first write makes one, so that the database exists
            self._has_store = database.read_stored(lambda nodes: nodes.rows.sequence()) > 0
        is_free = self._has_store and database.read_stored(lambda nodes: self._is_free(top, nodes))
        if is_free:
            if len(self._free) >= MAX_FREE:
                self._free.clear()
            self._free.add(top)
        return is_free

    def _is_free(self, top: Path, stored: Nodes) -> bool:
        """Return whether nothing is stored at a volatile node.

        Raises `InvalidData` if a leaf is stored above it, or if its path is too long.
        """
        _check_path(top)
        nearest, is_leaf = _find_nearest(stored, top)
        if is_leaf and nearest != top:
            raise InvalidData(
                f"There is a stored value at {format_path(nearest)}, so nothing volatile can be "
                "below it."
            )
        return nearest != top

    def _apply(self, write: Write, depths: Sequence[int]) -> Outcome:
        """Judge a write of volatile nodes alone, and apply it; raise what refuses it."""
        database = self._database
        reason = database.end_reason
        if reason is not None:
            raise Unavailable(reason)
        edit = resolve(write.edit, write.now, self._view)
        may_read = database.rights.check_write(self._view, write, edit)
        if write.condition is not None or write.refuses_lone_priority:
            self._check(write, edit)
        sizes = [_size_of(change.value) for change in edit.changes]
        if max(sizes) > MAX_VALUE_BYTES or (
            self.size + sum(sizes) + TOP_BYTES * len(sizes) > self._limit
        ):
            self._check_size(edit.changes)
        self._turn += 1
        self._statistics.volatile_writes += 1
        if self.exchange is not None:
            self.exchange.note(edit.changes)
        for change, depth, size in zip(edit.changes, depths, sizes, strict=True):
            path = change.place.path
            if self._set(self._tops, change, depth, size):
                self._flushes.note(path, depth)
            if database.answers or database.kept_reads.reads:
                self._drop_kept(path)
        echo = etag = None
        if write.wants_echo:
            echo = self._echo_of(write, edit, may_read=may_read)
        if write.wants_etag and may_read:
            etag = self._etag_of(edit)
        return Outcome(edit, None, echo, etag, volatile=edit.changes, volatile_part="all")

    def _check(self, write: Write, edit: Edit) -> None:
        """Raise what refuses a write by its condition, or the priority of nothing."""
        database, condition = self._database, write.condition
        if condition is not None:
            database.read(lambda nodes: check_condition(nodes, condition, KeptReads(ReadPool())))
        if write.refuses_lone_priority and any(each.place.is_priority for each in edit.changes):
            database.read(lambda nodes: check_lone_priority(database, write, edit, nodes))

    def _echo_of(self, write: Write, edit: Edit, *, may_read: bool) -> Json:
        if may_read:
            return echo_of(edit, self._view)
        return echo_without_reading(write.edit, write.now)

    def _etag_of(self, edit: Edit) -> str:
        known = etag_before_write(edit)
        return known or self._database.read(lambda nodes: etag_after_write(nodes, edit))

    def _check_size(self, changes: Iterable[Change]) -> None:
        """Raise `VolatileFull` if there is no room for changes, `TooLarge` for a long value."""
        added = count = 0
        for change in changes:
            path, value = change.place.path, change.value
            depth = self.paths.depth(path)
            if value is None:
                continue
            if depth == ABOVE:
                for part, content in self.paths.cut(path, value)[1]:
                    count += 1
                    if count > MAX_CHANGES:
                        raise _too_many()
                    _check_path(part)
                    added += _measure(content) + TOP_BYTES
            else:
                added += _measure(value)
                added += TOP_BYTES if self._tops.at(path[:depth]) is None else 0
        if self.size + added <= self._limit:
            return
        # What it replaces is looked at only where there may not be room.
        replaced = sum(self._replaced_by(change) for change in changes)
        if added > replaced and self.size + added - replaced > self._limit:
            raise VolatileFull(self._database.name, self._limit)

    def _replaced_by(self, change: Change) -> int:
        """Return about how many bytes a change replaces or removes."""
        path = change.place.path
        depth = self.paths.depth(path)
        if depth == ABOVE:
            return sum(top.size for top in self._tops.below(encode_path(path)))
        top = self._tops.at(path)
        if top is not None and change.value is None and depth == len(path):
            return top.size
        return _size_of(self._view.find(path))

    def _depth(self, path: Path) -> int:
        return self.paths.depth(path)

    def _change(self, tops: Tops, change: Change) -> list[Path]:
        """Apply a change at, below or above volatile nodes; return the places that it changed."""
        path, is_priority = change.place
        depth = self.paths.depth(path)
        if depth == ABOVE:
            return [] if is_priority else self._replace_below(tops, path, change.value)
        # It may be 0: the rules may have changed meanwhile.
        return [path] if depth > 0 and self._set(tops, change, depth, None) else []

    def _set(self, tops: Tops, change: Change, depth: int, size: int | None) -> bool:
        """Apply a change at or below a volatile node; return whether it has an effect.

        `size` are the bytes of its value, None if they are not known.
        """
        path, is_priority = change.place
        is_whole = len(path) == depth
        top_path = path if is_whole else path[:depth]
        top = tops.at(top_path)
        before = None if top is None else top.value
        if is_priority:
            after = set_priority(before, path[depth:], as_priority(change.value))
        elif is_whole:
            after = change.value
        else:
            after = set_value(before, path[depth:], change.value)
        if after is None and before is None:
            return False
        size = _size_of(change.value) if size is None else size
        if top is not None and not is_whole:
            size = max(0, top.size - TOP_BYTES + size - _size_of(value_at(before, path[depth:])))
        self._put(tops, top_path, top, after, size)
        return True

    def _replace_below(self, tops: Tops, path: Path, value: Value) -> list[Path]:
        """Set all volatile nodes below a place to what they are in its new value."""
        _, parts = self.paths.cut(path, value)
        wanted = dict(parts)
        changed = [top for top in tops.below(encode_path(path)) if top.path not in wanted]
        for top in changed:
            self._put(tops, top.path, top, None, 0)
        for each, part in parts:
            self._put(tops, each, tops.at(each), part, _size_of(part))
        return [*(top.path for top in changed), *wanted]

    def _put(self, tops: Tops, path: Path, top: Top | None, value: Value, size: int) -> None:
        """Give a volatile node another value, which has `size` bytes, or remove it."""
        if tops is self._tops:
            self.size -= 0 if top is None else top.size
            self.size += 0 if value is None else size + TOP_BYTES
        if value is None:
            if top is not None:
                tops.remove(top)
            return
        key = encode_path(path) if top is None else top.key
        tops.put(Top(path, key, value, size + TOP_BYTES))

    def _drop_kept(self, path: Path) -> None:
        """Drop what is kept of reads that a change concerns."""
        database = self._database
        if database.answers:
            database.answers.drop(path, self._moment())
        if database.kept_reads.reads:
            database.kept_reads.drop_concerned(path)

    def _moment(self) -> Moment:
        return Moment(self._database.read_stored(lambda nodes: nodes.rows.sequence()), self._turn)

    # Flushing.

    def flush(self, places: Sequence[tuple[Path, Path]]) -> Steps:
        """Notify watchers of places that have changed, each with its volatile node."""
        before, self._shown_turn = self._holding_shown(), self._turn + 1
        self._turn += 1
        position = Position(self._moment())
        self._turn += 1  # a moment with what is not flushed yet is another one
        changes = []
        is_older = any(self.paths.depth(top_path) != len(top_path) for top_path, _ in places)
        if is_older:
            places = _without_lower(places)
        for top_path, path in places:
            top, shown = self._tops.at(top_path), self._shown.at(top_path)
            value = None if top is None else value_at(top.value, path[len(top_path) :])
            if value is None and shown is not None and path != top_path:
                path = _leaf_on_way(shown, path)  # noqa: PLW2901
                value = None if top is None else value_at(top.value, path[len(top_path) :])
            changes.append(CommittedChange(path, value, sent=plain(value)))
            if top is not None:
                self._shown.put(top)
            elif shown is not None:
                self._shown.remove(shown)
        commit = _commit_of(position, changes)
        if is_older:  # by other rules: something else may be there now, which watchers read
            commit = attrs.evolve(commit, is_large=True)
        yield from self._database.notify_volatile(commit, before)


class Flushes:
    """What has changed since watchers were notified, and when they are notified next."""

    def __init__(self, data: VolatileData, database: Database, clock: IReactorTime) -> None:
        self._data = data
        self._database = database
        self._clock = clock
        self._pending: dict[Path, dict[Path, None]] = {}  # changed places, by their nodes
        self._groups: dict[float, dict[Path, None]] = {}  # these nodes, by their rates
        self._parts: deque[list[tuple[Path, Path]]] = deque()  # of the flush under way
        self._next: dict[float, float] = {}
        self._waiting: dict[float, list[Callable[[], None]]] = {}
        self._call: IDelayedCall | None = None
        self._call_at = 0.0
        self._is_queued = False
        self._is_urgent = False
        self._is_over = False

    @property
    def is_due(self) -> bool:
        """Whether watchers have still to be notified of anything."""
        return bool(self._pending or self._parts)

    def note(self, path: Path, depth: int) -> None:
        """Note that a place at or below the volatile node `path[:depth]` has changed."""
        top = path[:depth]
        places = self._pending.get(top)
        if places is None:
            self._pending[top] = {path: None}
            self._add(top, self._data.paths.rate(top))
        elif path not in places:
            _add_place(places, top, path)
        if self._database.decides_rights(path):
            self._hurry(top)

    def _add(self, top: Path, rate: float) -> None:
        group = self._groups.get(rate)
        if group is None:
            self._groups[rate] = {top: None}
            self._schedule(rate)
        else:
            group[top] = None

    def _hurry(self, top: Path) -> None:
        """Flush a node in the next turn, whatever its rate, before anything that is committed then.

        Rules read it that let watchers read: who has lost that right may receive nothing more.
        """
        rate = self._data.paths.rate(top)
        group = self._groups.get(rate, {})
        group.pop(top, None)
        if not group:
            self._groups.pop(rate, None)
            self._waiting.setdefault(0.0, []).extend(self._waiting.pop(rate, ()))
        self._is_urgent = True
        self._add(top, 0.0)

    def drop_below(self, path: Path) -> None:
        """Forget what has changed below a place, of which watchers are notified otherwise."""
        for top in [top for top in self._pending if is_at_or_above(path, top)]:
            self._pending[top].clear()

    def hasten(self, rate: float) -> None:
        """Flush what is due of a rate in the next turn."""
        if self._next.pop(rate, None) is not None and rate in self._groups:
            self._schedule(rate)

    def flush_at_once(self) -> None:
        """Notify of all that has changed, before anything that is committed from now on.

        The rules have changed: a place may not be volatile any longer, and be written as another.
        """
        if self._groups and not self._is_over:
            self._next.clear()
            self._database.run_beside_batches(self._flush(is_first=True), is_first=True)

    def when_shown(self, paths: Sequence[Path], call: Callable[[], None]) -> None:
        """Call this after the next flush of places, now if none is due."""
        rates = {self._data.paths.rate(path) for path in paths}
        due = (rates | {0.0} if self._is_urgent else rates) & self._groups.keys()
        if due:
            self._waiting.setdefault(min(due, key=_as_rate), []).append(call)
        else:
            call()

    def close(self) -> None:
        """Stop, and call all that waits."""
        self._is_over = True
        if self._call is not None and self._call.active():
            self._call.cancel()
        waiting, self._waiting = self._waiting, {}
        for calls in waiting.values():
            for call in calls:
                call()

    def _schedule(self, rate: float) -> None:
        """Flush the places of a rate as soon as it allows that."""
        if self._is_over:
            return
        at = self._next.get(rate, 0.0) if rate else 0.0
        if self._call is not None and self._call.active():
            if self._call_at <= at:
                return
            self._call.cancel()
        now = self._clock.seconds()
        self._call_at = at
        self._call = self._clock.callLater(max(0.0, at - now), self._start)

    def _start(self) -> None:
        self._call = None
        is_first, self._is_urgent = self._is_urgent, False
        if not self._is_over and (is_first or not self._is_queued):
            self._is_queued = True
            self._database.run_beside_batches(self._flush(is_first=is_first), is_first=is_first)

    def _flush(self, *, is_first: bool = False) -> Steps:
        """Notify of all that is due, before others if this `is_first`; call those who wait."""
        self._is_queued = False
        now = self._clock.seconds()
        places: list[tuple[Path, Path]] = []
        calls: list[Callable[[], None]] = []
        for rate in [rate for rate in self._groups if self._next.get(rate, 0.0) <= now]:
            if rate:
                self._next[rate] = now + 1 / rate
            calls += self._waiting.pop(rate, ())
            for top in self._groups.pop(rate):
                places += [(top, path) for path in self._pending.pop(top)]
        for rate in self._groups:
            self._schedule(rate)
        self._parts += _in_parts(places)
        yield from self._notify(calls, is_first=is_first)

    def _notify(self, calls: Sequence[Callable[[], None]], *, is_first: bool) -> Steps:
        """Notify of the parts of a flush, then call those who wait for them."""
        while self._parts:
            yield from self._data.flush(self._parts.popleft())
            if self._parts and self._database.is_round_waiting:
                # The round is of a commit, which has found watchers as this part has left them.
                rest = self._notify(calls, is_first=is_first)
                self._database.run_beside_batches(rest, is_first=is_first)
                return
        for call in calls:
            call()
            yield
        yield


def _in_parts(places: Sequence[tuple[Path, Path]]) -> Iterator[list[tuple[Path, Path]]]:
    """Yield the places of some volatile nodes at a time; those of one node stay together."""
    part: list[tuple[Path, Path]] = []
    for place in places:
        if len(part) >= FLUSHED_AT_ONCE and place[0] != part[-1][0]:
            yield part
            part = []
        part.append(place)
    if part:
        yield part


def _as_rate(hz: float) -> float:
    return hz or math.inf


def _add_place(places: dict[Path, None], top: Path, path: Path) -> None:
    """Add a changed place to those of a volatile node, of which none is above another."""
    if any(path[:depth] in places for depth in range(len(top), len(path))):
        return
    for below in [each for each in places if each[: len(path)] == path]:
        del places[below]
    if len(places) >= MAX_PLACES:
        places.clear()
        path = top
    places[path] = None


def _leaf_on_way(shown: Top, path: Path) -> Path:
    """Return the leaf that watchers know of above a place, or the place itself without one.

    The leaf was replaced by something below it, and that was removed before watchers knew.
    """
    for depth in range(len(shown.path), len(path)):
        if leaf_of(value_at(shown.value, path[len(shown.path) : depth])) not in {None, CONTAINER}:
            return path[:depth]
    return path


def _without_lower(places: Sequence[tuple[Path, Path]]) -> list[tuple[Path, Path]]:
    """Return the places that are not below others."""
    paths = {path for _, path in places}
    return [
        (top_path, path)
        for top_path, path in places
        if not any(path[:depth] in paths for depth in range(len(path)))
    ]


def _commit_of(position: Position, changes: Sequence[CommittedChange]) -> Commit:
    """Return the write that sets places, as watchers are notified of it."""
    if len(changes) == 1:
        return Commit(position, "put", changes[0].path, tuple(changes))
    first, last = min(each.path for each in changes), max(each.path for each in changes)
    depth = 0
    while depth < min(len(first), len(last)) - 1 and first[depth] == last[depth]:
        depth += 1
    depth = min(depth, *(len(each.path) - 1 for each in changes))
    return Commit(position, "patch", first[:depth], tuple(changes))


def _make_divided(
    edit: Edit, kept: Sequence[_Sent], volatile: tuple[Change, ...], *, is_cut: bool
) -> Divided:
    if not is_cut:
        return Divided(edit, volatile)
    if not kept:
        return Divided(None, volatile, "all")
    return Divided(_edit_of(edit, kept), volatile, "part")


def _edit_of(edit: Edit, kept: Sequence[_Sent]) -> Edit:
    """Return an edit with these changes, and what was sent for them."""
    changes = tuple([each.change for each in kept])
    if edit.method == "put":
        return Edit("put", edit.place, kept[0].sent, changes)
    sent = {each.name: each.sent for each in kept}
    return Edit("patch", edit.place, sent, in_order(changes), by_member=changes)


def _set_of(top: Top) -> Change:
    return Change(Place(top.path), top.value)


def _size_of(value: Value) -> int:
    """Return the bytes of a value as JSON."""
    if value is None:
        return 0
    try:
        return len(orjson.dumps(value))
    except TypeError:
        return len(compact(value))  # it has a number beyond 64 bits


def _measure(value: Value) -> int:
    """Return the bytes of a value as JSON; raise `TooLarge` if they are too many."""
    size = _size_of(value)
    if size > MAX_VALUE_BYTES:
        raise _too_large()
    return size


def _measure_json(sent: Json) -> None:
    """Raise `TooLarge` for JSON that cannot be at a volatile place."""
    if len(compact(sent)) > MAX_VALUE_BYTES:
        raise _too_large()


def _too_large() -> TooLarge:
    return TooLarge(
        f"What is volatile may have {MAX_VALUE_BYTES} bytes of JSON at a time: write it in parts."
    )


def _too_many() -> InvalidData:
    return InvalidData(
        f"One write may set or remove {MAX_CHANGES} volatile places: write them in several parts, "
        "or remove what is above them."
    )


def _find_nearest(stored: Nodes, path: Path) -> tuple[Path, bool]:
    """Return the nearest path at or above one where anything is stored, and whether it is a leaf.

    The root, if nothing is.
    """
    for depth in range(len(path), -1, -1):
        found = stored.type_at(path[:depth])
        if found is not None:
            return path[:depth], found is not Container
    return ROOT, False


def _find_leaf(stored: Nodes, path: Path) -> Path | None:
    """Return the path of a stored leaf at or above a path, None without one."""
    nearest, is_leaf = _find_nearest(stored, path)
    return nearest if is_leaf else None


def _check_path(top: Path) -> None:
    """Raise `InvalidData` if a volatile node cannot have a path."""
    if len(encode_path(top)) > TOP_KEY_BYTES:
        raise InvalidData(f"The path of a volatile node has more than {TOP_KEY_BYTES} bytes.")
