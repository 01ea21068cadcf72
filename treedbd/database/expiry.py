"""Expiry: nodes that go at the time that the rules say (`.ttl`), each in an ordinary write.

Theory of operation. `ExpiryIndex` keeps the index of times (`store.expiry_rows`) of one database.
`note` does it in the transaction of each write: of each node with a `.ttl` that the write has
touched, at, above or below it, it enters when the node goes. So the cost follows the write. What
was written before the rules had the `.ttl` is entered in the background, in steps between the
batches of writes (`MaintenanceList`); it counts as written at the time when the rules began to say
so, since nothing is known of its last write.

`RemoveExpired` is the task of a write, which removes some of the nodes whose time is over. The rows
by time only say where to look: whether a node goes is evaluated in the transaction that removes it,
by the rules in force, the node as it is then, and the clock of this process. So a node that was
written again stays, and none goes early. The nodes are removed by one PATCH, which is logged,
indexed and notified of as any write of an admin; its `origin` says `expiry`.

Who does these writes, and when, is in `expirer`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from time import perf_counter
from typing import TYPE_CHECKING, Final

import attrs
from twisted.logger import Logger

from treedbd.database.group_commit import MaintenanceList
from treedbd.database.requests import Outcome, Unavailable, Write
from treedbd.database.runtime import Runtime
from treedbd.loop import PAUSE_AFTER, pause, paused
from treedbd.names import DatabaseName
from treedbd.rules.expiry import ExpiryRules, Instance
from treedbd.store.engine import DamagedRow, DiskFull, Engine, ReadView, StoreFailed, Transaction
from treedbd.store.expiry_rows import (
    ExpiryState,
    ListedNode,
    Since,
    drop_some,
    follow,
    list_due,
    next_listed,
    put_times,
    read_state,
    read_times,
    remove_times,
    write_state,
)
from treedbd.store.nodes import Nodes
from treedbd.store.rows import ALL, Span
from treedbd.tree.edit import Edit, make_patch
from treedbd.tree.types import Change, Path, View

if TYPE_CHECKING:
    from treedbd.database.active_rules import ActiveRules
    from treedbd.database.apply import WriteApplier

STEP_NODES: Final = 1000
"""Nodes that are entered, or rows that are dropped, in one transaction in the background."""
STEP_KEYS: Final = 20_000
"""Keys that are looked at for that."""
REMOVED_BYTES: Final = 32 * 1024
"""Characters of paths in one write of the sweep; its entry is kept whole in the change log."""


class ExpiryIndex:
    """The index of times of one database.

    Attributes:
        is_used: whether there may be rows, so that each write has to be noted.
        is_building: whether what was written before is being entered, or rows dropped.

    """

    _log = Logger()

    def __init__(
        self,
        name: DatabaseName,
        engine: Engine,
        rules: ActiveRules,
        maintenance: MaintenanceList,
        *,
        runtime: Runtime,
    ) -> None:
        """Follow `rules`; do the steps in the background by `maintenance`."""
        self.is_used = False
        self.is_building = False
        self._name, self._engine = name, engine
        self._rules, self._maintenance = rules, maintenance
        self._now_ms = runtime.now_ms

    @property
    def rules(self) -> ExpiryRules | None:
        """What says when nodes go at present; None if nothing does."""
        return self._rules.current.expiry

    def now_ms(self) -> int:
        """Return the milliseconds since 1970."""
        return self._now_ms()

    def check(self) -> None:
        """Compare with the rules; begin to enter or drop what differs.

        A store that cannot be read at present is compared later, by the next write.
        """
        try:
            if self._engine.read(lambda view: view.sequence()) == 0:
                return  # nothing was ever written, so there may be no file either
            state = self._engine.read(read_state)
        except DamagedRow:
            self._log.error(
                "The database {name} has a damaged row of expiry: run treedb check.",
                name=self._name.label,
            )
            return
        except (StoreFailed, DiskFull, Unavailable):
            return
        self.is_used = state is not None
        fingerprint = "" if self.rules is None else self.rules.fingerprint
        if state is None and not fingerprint:
            return
        if state is None or not state.is_built or state.rules != fingerprint:
            self._begin()

    def next_due(self) -> int | None:
        """Return the first time at which a node may go, None if none may."""
        return self._engine.read(next_listed)

    def note(
        self, transaction: Transaction, nodes: Nodes, changes: Sequence[Change], now: int
    ) -> None:
        """Enter what changes have touched that were applied at `now`; pauses."""
        rules = self.rules
        self._follow_rules(transaction, rules, now, is_write=True)
        if rules is None:
            return
        state = _read_state(transaction)
        seen: set[Path] = set()
        for change in paused(changes):
            path, is_priority = change.place
            for instance in rules.above(path):
                if change.value is None and instance.path == path and not is_priority:
                    remove_times(transaction, path)  # nothing is left of it
                elif instance.path not in seen:
                    seen.add(instance.path)
                    self._enter(transaction, nodes, rules, instance, now, state)
            if isinstance(change.value, dict) and not is_priority:
                for instance in paused(rules.below(path, nodes, _KeysFrom(nodes))):
                    self._enter(transaction, nodes, rules, instance, now, state)

    def enter_again(self, transaction: Transaction, damaged: Sequence[bytes]) -> None:
        """Remove rows that cannot be read, and enter all nodes again in the background."""
        for key in damaged:
            transaction.delete(key)
        state = _read_state(transaction)
        if state is not None:
            write_state(transaction, attrs.evolve(state, is_built=False, position=()))
        self._begin()

    def due(
        self, view: ReadView, nodes: View, rules: ExpiryRules, instance: Instance, now: int
    ) -> tuple[int | None, int]:
        """Return when an instance goes that exists, None for never, and when it was written last.

        If that is not known it counts as written `now`.
        """
        written = None
        if instance.lifetime.seconds is not None:
            written = self.written_ms(view, rules, instance)
        written = now if written is None else written
        return rules.due(instance, nodes, written), written

    def written_ms(self, view: ReadView, rules: ExpiryRules, instance: Instance) -> int | None:
        """Return when an instance was written last, as far as is known; None if it is not.

        What is known to be older than the rule is, counts as written when that began.
        """
        state = _read_state(view)
        name = rules.patterns[instance.lifetime]
        since = None if state is None else state.since_when(name, instance.path)
        if since is None:
            return None
        try:
            times = read_times(view, instance.path)
        except DamagedRow:
            return None
        return since.ms if times is None else times.last_write(since)

    def _enter(
        self,
        transaction: Transaction,
        nodes: Nodes,
        rules: ExpiryRules,
        instance: Instance,
        now: int,
        state: ExpiryState | None,
    ) -> None:
        due = None
        if nodes.type_at(instance.path) is not None:
            due = rules.due(instance, nodes, now)
        if due is None:
            remove_times(transaction, instance.path)
            return
        name = rules.patterns[instance.lifetime]
        since = None if state is None else state.since_when(name, instance.path)
        was_set_back = since is not None and now < since.ms
        number = transaction.sequence() if was_set_back else 0
        put_times(transaction, instance.path, due, now, number=number)

    def _follow_rules(
        self, transaction: Transaction, rules: ExpiryRules | None, now: int, *, is_write: bool
    ) -> bool:
        """Store since when the patterns of the rules are kept; return whether that changed.

        If it `is_write` this is done for a write that was logged, to which the rules apply. Before
        the first write of a database nothing was there.
        """
        state = _read_state(transaction)
        fingerprint = "" if rules is None else rules.fingerprint
        if state is None and not fingerprint:
            self.is_used = False
            return False
        self.is_used = True
        if state is not None and state.rules == fingerprint:
            return False
        shapes = {} if rules is None else rules.shapes
        number = transaction.sequence() - is_write
        is_built = is_write and not number and state is None
        # A write may have been queued before others that did not know of these rules.
        began = now if is_built else max(now, self._now_ms())
        followed = follow(state, shapes, fingerprint, Since(number, began))
        write_state(transaction, attrs.evolve(followed, is_built=is_built))
        self._begin()
        return True

    def _begin(self) -> None:
        self.is_building = True
        self._maintenance.add(self._do_step)

    def _do_step(self, transaction: Transaction) -> bool:
        """Do one step in a transaction; return False if there was nothing left to do."""
        rules = self.rules
        if self._follow_rules(transaction, rules, self._now_ms(), is_write=False):
            return True
        state = _read_state(transaction)
        if state is None or (rules is not None and state.is_built):
            self.is_building = False
            return False
        if rules is None:
            if drop_some(transaction, STEP_NODES):
                write_state(transaction, None)
            return True
        write_state(transaction, self._build_some(transaction, rules, state))
        return True

    def _build_some(
        self, transaction: Transaction, rules: ExpiryRules, state: ExpiryState
    ) -> ExpiryState:
        """Enter some of the nodes that were there before; return the state after that."""
        nodes = Nodes(transaction)
        left = STEP_NODES
        try:
            for instance in rules.below((), nodes, _KeysFrom(nodes, STEP_KEYS), state.position):
                if not left:
                    return attrs.evolve(state, position=instance.path)
                left -= 1
                self._build(transaction, nodes, rules, instance)
                pause()
        except _EnoughKeys as enough:
            return attrs.evolve(state, position=enough.path)
        self._log.info("The index of expiry of {name} is built.", name=self._name.label)
        return attrs.evolve(state, is_built=True, position=())

    def _build(
        self,
        transaction: Transaction,
        nodes: Nodes,
        rules: ExpiryRules,
        instance: Instance,
    ) -> None:
        due, written = self.due(transaction, nodes, rules, instance, self._now_ms())
        if due is None:
            remove_times(transaction, instance.path)
        else:
            put_times(transaction, instance.path, due, written, is_written=False)


def _read_state(view: ReadView) -> ExpiryState | None:
    """Return the state; one that is damaged counts as none, so it is made again."""
    try:
        return read_state(view)
    except DamagedRow:
        return None


class _EnoughKeys(Exception):
    """As many keys were looked at as one step may; the next one is `path`."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path


class _KeysFrom:
    """Returns the keys of children for `ExpiryRules.below`, with pauses, at most `limit` of all."""

    def __init__(self, nodes: Nodes, limit: int | None = None) -> None:
        self._nodes = nodes
        self._left = limit

    def __call__(self, path: Path, first: str | None) -> Iterator[str]:
        span = ALL if first is None else Span(at=first)
        for key in paused(self._nodes.keys(path, span), PAUSE_AFTER):
            if self._left is not None:
                if not self._left:
                    raise _EnoughKeys((*path, key))
                self._left -= 1
            yield key


def make_removal(paths: Sequence[Path]) -> Edit:
    """Return the edit that removes some nodes, of which none is the root, by one PATCH."""
    kept: list[Path] = []
    for path in sorted(paths):
        if not kept or path[: len(kept[-1])] != kept[-1]:
            kept.append(path)
    first, last = kept[0][:-1], kept[-1]
    depth = 0
    shortest = min(len(path) for path in kept) - 1
    while depth < min(len(first), shortest) and first[depth] == last[depth]:
        depth += 1
    return make_patch(first[:depth], {"/".join(path[depth:]): None for path in kept})


@attrs.define(eq=False)
class RemoveExpired:
    """Remove at most `limit` of the nodes whose time is over, and rows that lead to none.

    Attributes:
        removed: how many nodes were removed.
        late_ms: how late the last of them was.
        seconds: how long that took.
        began, ended: the numbers of the last write before this one, and then.
        has_more: whether there may be more.

    """

    index: ExpiryIndex
    limit: int
    removed: int = 0
    late_ms: int = 0
    seconds: float = 0.0
    began: int = 0
    ended: int = 0
    has_more: bool = False

    def __call__(self, applier: WriteApplier, transaction: Transaction, write: Write) -> Outcome:
        """Do it; raise what refuses the write, and then nothing is changed."""
        begun = perf_counter()
        now, self.began = self.index.now_ms(), transaction.sequence()
        self.removed = self.late_ms = 0
        listed, damaged = list_due(transaction, now, self.limit)
        self.has_more = len(listed) + len(damaged) == self.limit
        expired, stale = self._judge(applier, transaction, listed, now)
        outcome = Outcome(write.edit, None, None, None)
        if expired:
            edit = make_removal(expired)
            outcome = applier.apply_edit(transaction, attrs.evolve(write, edit=edit, task=None))
        for each, due, written in stale:
            _correct(transaction, each, due, written)
        if damaged:
            self.index.enter_again(transaction, damaged)
        self.removed = len(expired)
        self.seconds, self.ended = perf_counter() - begun, transaction.sequence()
        return attrs.evolve(outcome, has_changed_rows=bool(listed or damaged))

    def _judge(
        self,
        applier: WriteApplier,
        transaction: Transaction,
        listed: Sequence[ListedNode],
        now: int,
    ) -> tuple[list[Path], list[tuple[ListedNode, int | None, int]]]:
        """Return which nodes go, and those rows by time that are wrong, with when these go."""
        rules, nodes = self.index.rules, applier.make_writer(transaction)
        expired: list[Path] = []
        stale: list[tuple[ListedNode, int | None, int]] = []
        size = 0
        for each in paused(listed):
            lifetime = None if rules is None else rules.at(each.path)
            due, written = None, 0
            if rules is not None and lifetime is not None and nodes.type_at(each.path) is not None:
                instance = Instance(each.path, lifetime)
                due, written = self.index.due(transaction, nodes, rules, instance, now)
            if due is None or due > now:
                stale.append((each, due, written))
                continue
            size += sum(map(len, each.path))
            if size > REMOVED_BYTES and expired:
                self.has_more = True
                break
            expired.append(each.path)
            self.late_ms = max(self.late_ms, now - due)
        return expired, stale


@attrs.define(eq=False)
class PostponeExpired:
    """List the first node whose time is over again at `later_ms`, since it cannot be removed."""

    index: ExpiryIndex
    later_ms: int

    def __call__(self, applier: WriteApplier, transaction: Transaction, write: Write) -> Outcome:
        """Do it."""
        listed, _ = list_due(transaction, self.index.now_ms(), 1)
        for each in listed:
            try:
                times = read_times(transaction, each.path)
            except DamagedRow:
                times = None
            written = self.later_ms if times is None else times.written_ms
            _correct(transaction, each, self.later_ms, written)
        return Outcome(write.edit, None, None, None, has_changed_rows=bool(listed))


def _correct(transaction: Transaction, listed: ListedNode, due: int | None, written: int) -> None:
    """Replace a row by time that is wrong: by one at `due`, or by none."""
    if due is None:
        remove_times(transaction, listed.path)
    else:
        put_times(transaction, listed.path, due, written, is_written=False)
    if due != listed.listed_ms:
        transaction.delete(listed.key)
