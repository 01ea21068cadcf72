"""One write in a transaction: conditions, rules, rows, quotas, change log; and indexes.

`WriteApplier.apply` does one write of a batch (`group_commit`):

1. Server values are resolved against the view of the transaction.
2. The rules are evaluated (`rights`).
3. The condition is checked (`check_condition`).
4. The rows are changed, and counted for the quotas.
5. The quotas are checked, and the entry is appended to the change log.

An error refuses this write alone; the other writes of the batch are not affected. All writes of a
batch change the tree through one writer, which stores a page that several of them change once. A
large body (`AppliedBody`) takes another order, since it is never in memory as a whole: step 4 comes
first, and whatever refuses the write afterwards ends its transaction, in which it is alone.

What writes keep up to date is first made in the background: indexes are built (`Indexes`), and what
a database holds is counted (`Quotas`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING, Final

import attrs
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IDelayedCall
from twisted.logger import Logger

from treedbd.database.event_capture import EventCapture
from treedbd.database.group_commit import MaintenanceList
from treedbd.database.requests import (
    Caller,
    Condition,
    ConditionFailed,
    DeadlinePassed,
    HashCondition,
    LargeBody,
    Outcome,
    ProjectSpec,
    QuotaExceeded,
    TooLarge,
    Unavailable,
    Write,
)
from treedbd.database.runtime import Runtime
from treedbd.limits import KIB, MAX_SHOWN_BYTES
from treedbd.loop import pause, paused
from treedbd.names import DatabaseName
from treedbd.rules.context import KeptReads, ReadPool
from treedbd.store import changelog
from treedbd.store.bulk import BulkPatch, BulkWriter
from treedbd.store.cursors import Cursor, CursorKeeper, put_cursor
from treedbd.store.engine import DamagedRow, DiskFull, Engine, ReadView, StoreFailed, Transaction
from treedbd.store.indexes import (
    ChildIndex,
    IndexBuild,
    IndexState,
    IndexStates,
    WriterMaker,
    drop_some,
    order_named,
    read_states,
    write_states,
)
from treedbd.store.node_writer import NodeWriter
from treedbd.store.nodes import Nodes, etag_in_steps, hash_at
from treedbd.store.rows import is_surely_longer
from treedbd.store.usage import CountedRows, Usage, count_some, read_usage, write_usage
from treedbd.tree import value
from treedbd.tree.edit import (
    Edit,
    Resolver,
    echo_of,
    echo_without_reading,
    find_lone_priority,
    has_effect,
    parse_member,
    rename_child,
    resolve,
)
from treedbd.tree.event import EVENT_BYTES
from treedbd.tree.fragments import Fragment, InvalidFragment, Splitter, find_line
from treedbd.tree.hashes import etag
from treedbd.tree.path import format_path, is_later
from treedbd.tree.query import Order
from treedbd.tree.types import Change, Chunks, InvalidData, Json, Path, Place, View
from treedbd.tree.value import compact

if TYPE_CHECKING:
    from treedbd.database.active_rules import ActiveRules
    from treedbd.database.database import Database
    from treedbd.database.volatile import VolatileData

MAX_INDEXES: Final = 1000
"""Indexes that rules may declare; what is beyond is not built."""
STEP_CHILDREN: Final = 2000
"""Children that are entered or gathered, or entries that are removed, in one transaction."""
SHORT_ROWS: Final = 64
"""Rows and pages of a collection whose children are read in one turn."""
LOOK_S: Final = 0.1
"""How often queries that wait look how far an index is built."""
STUCK_S: Final = 30.0
"""A build that does not go on for so long is not waited for."""
_AT_ONCE_BYTES: Final = 64 * KIB
"""The tag of a longer value is computed from its rows."""
_KEPT_STEPS: Final = 64
"""A tag that is computed in fewer steps is not kept."""


class WriteApplier:
    """Applies the writes of one database.

    Attributes:
        finish: stores what the writes of a batch have left in memory, before it is committed.
        events: captures the events of writes for hooks.

    """

    _log_line = Logger()

    def __init__(self, database: Database, runtime: Runtime, retain_events: int) -> None:
        """Apply them by the rules of `database`; its change log keeps `retain_events` entries."""
        self._database = database
        self._runtime = runtime
        self._retain_events = retain_events
        self._writers = WriterMaker(database.indexes.declared)  # which keep the indexes
        self.finish: Final = self._writers.finish
        self.events: Final = EventCapture(
            database.name, runtime, is_shared=database.shared_lock is not None
        )
        self._cursors = CursorKeeper(
            runtime.readers, runtime.clock.seconds, runtime.now_ms, self._cursor_dropped
        )

    def apply(self, transaction: Transaction, write: Write) -> Outcome:
        """Do one write in a transaction; raise the error that refuses it."""
        if self._database.shared_lock is not None:
            write = self._after_others(write)
        if write.task is not None:
            return write.task(self, transaction, write)
        return self.apply_edit(transaction, write)

    @property
    def database(self) -> Database:
        """The database to which they are applied."""
        return self._database

    def make_writer(self, transaction: Transaction) -> NodeWriter:
        """Return the writer of all that changes the tree in a transaction."""
        return self._writers.make(transaction)

    def append(self, transaction: Transaction, op_id: bytes, entry: bytes) -> int:
        """Append an entry of another daemon's log as it is; return its number."""
        if self._runtime.first_cursors and not transaction.sequence():
            self._put_first_cursors(transaction)
        kept, retain = self._runtime.entry_bytes, self._retain_events
        return changelog.append(transaction, op_id, entry, retain, kept, self._cursors.held)

    def judge(self, transaction: Transaction, write: Write) -> Nodes:
        """Raise what would refuse a write by its rules or its server values; apply nothing.

        Returns what is stored.
        """
        stored = self._writers.make(transaction)
        nodes: Nodes = stored
        if self._database.volatile is not None:
            nodes = self._database.volatile.over(nodes.rows, transaction)
        self._database.rights.check_write(nodes, write, resolve(write.edit, write.now, nodes), None)
        self._check_time(write)
        return stored

    def apply_edit(self, transaction: Transaction, write: Write) -> Outcome:
        """Do a write in a transaction, without its task."""
        if write.large is not None:
            return self._apply_large(transaction, write, write.large)
        database = self._database
        counted = None if database.quotas is None else database.quotas.begin(transaction)
        nodes = self._writers.make(transaction if counted is None else counted.rows)
        if database.volatile is not None:
            return self._apply_divided(transaction, write, nodes, database.volatile, counted)
        edit = write.edit
        if edit.has_placeholders:
            edit = resolve(edit, write.now, nodes)
        may_read = database.rights.check_write(nodes, write, edit, None)
        self._check(write, edit, nodes, database.kept_reads)
        wants_etag = write.wants_etag and may_read
        etag = etag_before_write(edit) if wants_etag else None
        commit = echo = None
        if has_effect(edit, nodes):
            sequence, op_id, size = self._store(transaction, write, nodes, edit, counted)
            commit = changelog.commit_of(sequence, edit, op_id, size)
        if write.wants_echo:
            echo = echo_of(edit, nodes) if may_read else echo_without_reading(write.edit, write.now)
        if wants_etag and etag is None:
            etag = etag_after_write(nodes, edit)
        return Outcome(edit, commit, echo, etag)

    def _apply_divided(
        self,
        transaction: Transaction,
        write: Write,
        nodes: NodeWriter,
        volatile: VolatileData,
        counted: CountedWrite | None,
    ) -> Outcome:
        """Do a write where the rules know volatile nodes; what is volatile of it is not stored."""
        database, seen = self._database, volatile.over(nodes.rows, transaction)
        edit = resolve(write.edit, write.now, seen)
        may_read = database.rights.check_write(seen, write, edit, None)
        self._check(write, edit, seen, KeptReads(ReadPool()))
        stored, changes, part = volatile.divide(edit, nodes)
        commit = None
        if stored is not None and has_effect(stored, nodes):
            sequence, op_id, size = self._store(transaction, write, nodes, stored, counted)
            commit = changelog.commit_of(sequence, edit, op_id, size)
        outcome = Outcome(edit, commit, None, None, volatile=changes, volatile_part=part)
        after = volatile.over(nodes.rows, transaction, changes)
        if write.wants_echo:
            outcome.echo = _echo_of(write, edit, after, may_read=may_read)
        if write.wants_etag and may_read:
            outcome.etag = etag_before_write(edit) or etag_after_write(after, edit)
        volatile.applied(changes)
        outcome.has_changed_rows = bool(part) and not transaction.sequence()
        return outcome

    def _store(
        self,
        transaction: Transaction,
        write: Write,
        nodes: NodeWriter,
        edit: Edit,
        counted: CountedWrite | None,
    ) -> tuple[int, bytes, int]:
        """Store an edit, and log it; return its number, its id, and the bytes of its entry."""
        nodes.check_room([each.place.path for each in edit.changes if each.value is not None])
        self._database.kept_reads.note_changes(transaction, edit.changes)
        captures = self.events.is_used
        events = self.events.capture(transaction, write, edit, nodes) if captures else ""
        (nodes.change if counted is None else nodes.apply)(edit.changes)
        return self._log(transaction, nodes, write, edit, events, counted)

    def _apply_large(self, transaction: Transaction, write: Write, body: LargeBody) -> Outcome:
        """Do a write whose body is applied before the rules are evaluated; it pauses."""
        database, volatile = self._database, self._database.volatile
        nodes, counted = self._begin_large(transaction, write)
        with closing(database.hold()) as before, closing(database.hold_stored()) as stored:
            applied = AppliedBody(
                writer=nodes,
                write=write,
                body=body,
                before=before,
                check=partial(self._check_time, write),
                volatile=volatile,
            )
            edit = applied.edit
            changes = () if volatile is None else volatile.divide_large(edit.changes)
            after = nodes if volatile is None else volatile.over(nodes.rows, transaction, changes)
            may_read = database.rights.check_write(before, write, edit, after)
            self._check(write, edit, before, database.kept_reads)
            events = self.events.capture(transaction, write, edit, stored, nodes)
        etag = etag_after_write(after, edit) if write.wants_etag and may_read else None
        self._check_time(write)
        database.kept_reads.note_changes(transaction, edit.changes)
        sequence, op_id, size = self._log(
            transaction, nodes, write, write.edit, events, counted, applied
        )
        commit = changelog.large_commit_of(sequence, edit, op_id, applied.printed, size)
        sent = applied.echo
        outcome = Outcome(edit, commit, None, etag, may_read=may_read, sent=sent, volatile=changes)
        outcome.volatile_part = "dropped" if applied.has_dropped else ""
        return outcome

    def _begin_large(
        self, transaction: Transaction, write: Write
    ) -> tuple[NodeWriter, CountedWrite | None]:
        """Return what a large write is written by, and counted by if there are quotas."""
        volatile, quotas = self._database.volatile, self._database.quotas
        if volatile is not None:
            volatile.check_large(write.edit.place.path)
        counted = None if quotas is None else quotas.begin(transaction, is_large=True)
        nodes = self._writers.make(transaction if counted is None else counted.rows)
        nodes.checks_room = True
        return nodes, counted

    def _after_others(self, write: Write) -> Write:
        """Make a write later than those of other processes, whose clocks may be ahead.

        So times and push ids of a database never go back, and a batch that is done again because
        others were first gets new ones.
        """
        shared = self._database.shared_lock
        others = 0 if shared is None else shared.following.latest_ms
        if write.now < others:
            write = attrs.evolve(write, now=others)
        if others and write.is_push and not is_later(write.edit.place.path[-1], others):
            self._database.push_ids.pass_over(others)  # it may have been unused until now
            key = self._database.push_ids.next(write.now)
            write = attrs.evolve(write, edit=rename_child(write.edit, key))
        return write

    def _check(self, write: Write, edit: Edit, before: Nodes, reads: KeptReads) -> None:
        """Raise what refuses a write that its rules allow."""
        if write.condition is not None:
            check_condition(before, write.condition, reads)
        if write.refuses_lone_priority:
            check_lone_priority(self._database, write, edit, before)
        self._check_time(write)  # evaluating rules may take long

    def _check_time(self, write: Write) -> None:
        if write.deadline is not None and self._runtime.clock.seconds() >= write.deadline:
            raise DeadlinePassed("it was applied")

    def _log(
        self,
        transaction: Transaction,
        nodes: NodeWriter,
        write: Write,
        edit: Edit,
        events: str,
        counted: CountedWrite | None,
        applied: AppliedBody | None = None,
    ) -> tuple[int, bytes, int]:
        """Append an edit that was applied to the change log, and note when its nodes go.

        Returns its number, its id, and the bytes of its entry.
        """
        if counted is not None:
            counted.judge(edit)
        if self._runtime.first_cursors and not transaction.sequence():
            self._put_first_cursors(transaction)
        op_id = self._runtime.entropy(16)
        printed = None
        if write.large is not None and applied is not None:
            printed = self._print_large(transaction, write.large, applied)
            pause()
        entry = self._encode(transaction, write, edit, printed, events)
        kept, retain = self._runtime.entry_bytes, self._retain_events
        if self._runtime.followed_bytes:
            retain = max(retain, changelog.FOLLOWED_ENTRIES)
        if len(entry) > kept:
            pause()
        sequence = changelog.append(transaction, op_id, entry, retain, kept, self._cursors.held)
        if counted is not None:
            counted.record(sequence)
        if self._database.has_expiry:
            changes = edit.changes if applied is None else applied.changes
            self._database.expiry.note(transaction, nodes, changes, write.now)
        return sequence, op_id, len(entry)

    def _put_first_cursors(self, transaction: Transaction) -> None:
        """Hold the log for its readers before the first entry: they may come later."""
        now = self._runtime.now_ms()
        for name, is_whole in self._runtime.first_cursors.items():
            cursor = Cursor(
                name=name,
                sequence=0,
                op_id=b"",
                is_whole=is_whole,
                bytes_read=0,
                created_ms=now,
                moved_ms=now,
            )
            put_cursor(transaction, cursor)

    def _print_large(
        self, transaction: Transaction, large: LargeBody, applied: AppliedBody
    ) -> bytes | None:
        """Print a large body for the log; None if the log does not hold it.

        Where others follow the log, they read what a PUT has written in the rows, but a reader of
        whole entries needs it in the entry.
        """
        runtime = self._runtime
        if self._is_read_whole(transaction):
            return applied.print_whole(large, runtime.readers.logged_bytes)
        kept = runtime.entry_bytes
        most = kept if applied.is_put else max(kept, runtime.followed_bytes)
        return applied.print_sent(large) if large.size <= most else None

    def _encode(
        self, transaction: Transaction, write: Write, edit: Edit, printed: bytes | None, events: str
    ) -> bytes:
        """Return the entry of an edit, with its body if that is not too long for those who read."""
        usual = max(self._runtime.entry_bytes, self._runtime.followed_bytes)
        entry = changelog.encode(
            edit,
            write.now,
            max(usual, self._runtime.readers.logged_bytes),
            writer=_writer_of(write.caller),
            printed=printed,
            size=0 if write.large is None else write.large.size,
            rules=self._database.rules.current.fingerprint,
            pushed=self._database.push_ids.latest_ms,
            events=events,
        )
        if events:
            usual += changelog.room_for(events)
        if len(entry) > usual and not self._is_read_whole(transaction):
            return changelog.without_body(entry)
        return entry

    def _is_read_whole(self, transaction: Transaction) -> bool:
        """Return whether there is a reader of the log that needs whole entries."""
        return self._cursors.held(transaction).is_whole

    def _cursor_dropped(self, cursor: Cursor, reason: str) -> None:
        self._runtime.statistics.dropped_cursors += 1
        self._log_line.error(
            "The reader {cursor} of the change log of {label} has lost its place: {reason}.",
            cursor=cursor.name,
            label=self._database.name.label,
            reason=reason,
        )


def _writer_of(caller: Caller) -> changelog.Writer:
    """Return who wrote, as the change log names it."""
    if caller.auth is None and not caller.is_admin and caller.origin is None:
        return changelog.ANONYMOUS
    uid = caller.auth.get("uid") if isinstance(caller.auth, dict) else None
    return changelog.Writer(uid if isinstance(uid, str) else None, caller.is_admin, caller.origin)


def _echo_of(write: Write, edit: Edit, after: View, *, may_read: bool) -> Json:
    return echo_of(edit, after) if may_read else echo_without_reading(write.edit, write.now)


def check_lone_priority(database: Database, write: Write, edit: Edit, before: Nodes) -> None:
    """Raise `InvalidData` if an edit sets the priority of nothing.

    For a caller who may not read there it has no effect, so that no error reveals anything.
    """
    path = find_lone_priority(edit, before)
    if path is not None and database.rights.evaluate_read(path, write.caller, write.now, before):
        raise InvalidData(f"There is nothing at {format_path(path)} that could have a priority.")


def check_condition(nodes: Nodes, condition: Condition | HashCondition, kept: KeptReads) -> None:
    """Raise `ConditionFailed` unless the condition of a write is met.

    It shows the current value, unless that is larger than `MAX_SHOWN_BYTES`. `kept` is what was
    computed of large values before. Raises `TooLarge` for the hash of a value that is too large to
    be hashed.
    """
    if isinstance(condition, HashCondition):
        _check_hash(nodes, condition, kept)
        return
    place, etags = condition.place, condition.etags
    exists = not place.is_priority and nodes.peek(place.path) is not None
    if etags.is_any and exists:
        return
    present = _etag_at(nodes, place, kept)
    if place.is_priority:
        exists = nodes.priority(place.path) is not None
    if not etags.matches(present, exists):
        raise ConditionFailed(_print_current(nodes, place), present)


def _check_hash(nodes: Nodes, condition: HashCondition, kept: KeptReads) -> None:
    place = condition.place
    known = None if place.is_priority else kept.find(("hash", place.path))
    present = hash_at(nodes, place) if known is None else known.result
    if present is None:
        raise TooLarge(f"A value of more than {MAX_SHOWN_BYTES} bytes cannot be compared by hash.")
    if known is None and not place.is_priority and nodes.is_spread(place.path):
        kept.keep(("hash", place.path), present, 0)
    if present != condition.data_hash:
        raise ConditionFailed(None, present)


def _print_current(nodes: Nodes, place: Place) -> Chunks | None:
    """Print the value of a place with pauses; None if it is too large to be shown."""
    if place.is_priority:
        return (compact(nodes.priority(place.path)),)
    chunks = []
    size = 0
    for chunk in nodes.chunks(place.path):
        chunks.append(chunk)
        size += len(chunk)
        if size > MAX_SHOWN_BYTES:
            return None
        pause()
    return tuple(chunks)


def find_tag(kept: KeptReads, path: Path) -> str | None:
    """Return the entity tag of a large value that is kept, None if it is not."""
    known = kept.find(("etag", path))
    return None if known is None else known.result


def keep_tag(kept: KeptReads, path: Path, tag: str) -> None:
    """Keep the entity tag of a value of the durable state, or of the open transaction."""
    kept.keep(("etag", path), tag, 0)


def etag_before_write(edit: Edit) -> str | None:
    """Return the tag of what a write will leave, None if only the result shows it.

    It is known before anything is applied for a small PUT, POST or DELETE.
    """
    if edit.place.is_priority or edit.method == "patch":
        return None
    content = edit.changes[0].value
    if content is not None and is_surely_longer(content, _AT_ONCE_BYTES):
        return None
    return etag(value.plain(content))


def etag_after_write(nodes: Nodes, edit: Edit) -> str:
    """Return the tag of what a write has left."""
    return _etag_at(nodes, edit.place)


def _etag_at(nodes: Nodes, place: Place, kept: KeptReads | None = None) -> str:
    """Compute a tag, pausing between its steps, from the rows if the value is large.

    A tag that took many steps is `kept`.
    """
    if place.is_priority:
        return etag(nodes.priority(place.path))
    known = None if kept is None else find_tag(kept, place.path)
    if known is not None:
        return known
    for step, tag in enumerate(etag_in_steps(nodes, place.path)):
        if tag is not None:
            if kept is not None and step >= _KEPT_STEPS:
                keep_tag(kept, place.path, tag)
            return tag
        pause()
    raise AssertionError("A tag has an end.")


class AppliedBody:
    """A large body, applied to the rows of a transaction fragment by fragment.

    Each fragment is parsed, checked and applied by itself, so neither the memory nor the length of
    a step grows with the body. What is written is in the rows of the transaction before the rules
    are evaluated; they see it there as the new data, and the last durable state as the data before.
    The steps end at the pauses (`loop.pause`) of all that takes part. The commit that comes of it
    has no values: watchers are sent what the rows hold then.

    Attributes:
        is_put: whether it is that of a PUT.
        changes: the places that were written, without values.
        has_placeholders: whether there were server values.
        has_dropped: whether there were values for volatile places, which are left out.
        printed: what a PATCH merged as watchers receive it, None if that is too long; of a PUT only
            a long string.
        echo: the same as it was sent.

    """

    def __init__(
        self,
        writer: NodeWriter,
        write: Write,
        body: LargeBody,
        before: View,
        check: Callable[[], None],
        volatile: VolatileData | None,
    ) -> None:
        """Apply it; `check` is called between fragments and raises if it is too late.

        `before` is the tree before the write. Raises `InvalidData`, and what the body raises.
        """
        self._volatile, self._edit = volatile, write.edit
        self._is_conditional = write.condition is not None
        self.has_dropped = False
        place = write.edit.place
        resolver = Resolver(write.now, before)
        self.is_put: Final = write.edit.method == "put"
        self._writer, self._path = writer, place.path
        self.changes: Sequence[Change] = write.edit.changes
        self.printed: Chunks | None = None
        self.echo: Chunks | None = None
        if self.is_put:
            put = BulkWriter(writer, place.path, resolver, body.max_string_bytes)
            self._apply(put, body, check)
            self.has_placeholders = put.has_placeholders
            self.printed = put.printed
            return
        patch = BulkPatch(
            writer=writer,
            path=place.path,
            resolver=resolver,
            max_string_bytes=body.max_string_bytes,
            shown_bytes=EVENT_BYTES,
        )
        self._apply(patch, body, check)
        self.has_placeholders = patch.has_placeholders
        self.changes, self.printed, self.echo = patch.changes, patch.event, patch.sent

    @property
    def edit(self) -> Edit:
        """What was applied, without its values."""
        return attrs.evolve(
            self._edit,
            changes=self.changes,
            has_placeholders=self.has_placeholders,
            by_member=self.changes,
        )

    def print_sent(self, body: LargeBody) -> bytes | None:
        """Return what was sent, server values resolved; None if that is no longer known."""
        if self.printed is not None:
            return b"".join(self.printed)
        if self.has_placeholders or self.has_dropped:
            return None
        return b"".join(paused(body.pieces(), 1))

    def print_whole(self, body: LargeBody, longest: int) -> bytes | None:
        """Return what was sent, server values resolved; None beyond `longest` bytes.

        None also for a PATCH with server values that is too long for an event.
        """
        if not self.is_put:
            return self.print_sent(body) if body.size <= longest else None
        chunks, size = list[bytes](), 0
        for chunk in paused(self._writer.chunks(self._path, export=True), 1):
            size += len(chunk)
            if size > longest:
                return None
            chunks.append(chunk)
        return b"".join(chunks)

    def _apply(
        self, target: BulkWriter | BulkPatch, body: LargeBody, check: Callable[[], None]
    ) -> None:
        try:
            self._apply_fragments(target, body, check)
        except InvalidFragment as error:
            line, column, character = find_line(body.pieces(), error.at)
            place = f"line {line} column {column} (char {character})"
            raise InvalidData(f"Not valid JSON: {error.reason}: {place}.") from None

    def _apply_fragments(
        self, target: BulkWriter | BulkPatch, body: LargeBody, check: Callable[[], None]
    ) -> None:
        splitter = Splitter()
        for piece in body.pieces():
            for fragment in splitter.feed(piece):
                self._add(target, fragment, body.max_nodes)
            check()
            pause()
        for fragment in splitter.finish():
            self._add(target, fragment, body.max_nodes)
        target.finish()

    def _add(self, target: BulkWriter | BulkPatch, fragment: Fragment, max_nodes: int) -> None:
        target.add(fragment if self._volatile is None else self._cut(self._volatile, fragment))
        if target.nodes > max_nodes:
            raise InvalidData(
                f"A body may have at most {max_nodes} members and array items (write_nodes): "
                "write it in parts."
            )

    def _cut(self, volatile: VolatileData, fragment: Fragment) -> Fragment:
        """Return a fragment without what is volatile of it."""
        json, path = fragment.parse(), fragment.path
        if self.is_put:
            json, is_cut = volatile.cut_large((*self._path, *path), json, fragment.first)
        elif path:
            above = parse_member(self._path, path[0]).path
            json, is_cut = volatile.cut_large((*above, *path[1:]), json, fragment.first)
        else:
            json, is_cut = self._cut_members(volatile, json)
        if is_cut and self._is_conditional:
            raise InvalidData(
                "A body of this size sets nothing that is volatile, and a write with a condition "
                "is done as a whole or not at all: write what is volatile by itself."
            )
        self.has_dropped = self.has_dropped or is_cut
        return fragment._replace(parsed=json)

    def _cut_members(self, volatile: VolatileData, json: Json) -> tuple[Json, bool]:
        """Return members of a PATCH without what is volatile, and whether there was any."""
        if not isinstance(json, dict):
            return json, False
        members, has_cut = dict[str, Json](), False
        for key, item in paused(json.items()):
            place = parse_member(self._path, key)
            members[key], is_cut = (
                (item, False) if item is None else volatile.cut_large(place.path, item, 0)
            )
            if is_cut and members[key] == {}:
                members[key] = None
            has_cut = has_cut or is_cut
        return members, has_cut


def make_quotas(
    name: DatabaseName, project: ProjectSpec, maintenance: MaintenanceList
) -> Quotas | None:
    """Return the quotas of a database, None if it has none."""
    if not (project.database_bytes or project.database_nodes):
        return None
    return Quotas(name, project, maintenance)


class Quotas:
    """The quotas of one database, of which there is at least one.

    A write is counted while it is applied (`store.usage`) and judged afterwards, before it is
    logged. If it is refused, its rows are brought back. A write that only removes is never refused,
    and neither is one that leaves less than there was. While not all data is counted nothing is
    refused: when a quota is set for data that is there already, all of it is counted first, in the
    background.

    Attributes:
        name: that of the database.
        max_bytes, max_nodes: how much it may hold, 0 for any number.

    """

    def __init__(
        self, name: DatabaseName, project: ProjectSpec, maintenance: MaintenanceList
    ) -> None:
        """Count what is not counted yet by `maintenance`."""
        self.name: Final = name
        self.max_bytes: Final = project.database_bytes
        self.max_nodes: Final = project.database_nodes
        self._maintenance = maintenance

    def read(self, view: ReadView) -> Usage:
        """Return how much there is, as far as it is counted."""
        return read_usage(view, counts_nodes=bool(self.max_nodes))

    def count_some(self, transaction: Transaction) -> bool:
        """Count some of what is not counted; return False if all is."""
        return count_some(transaction, counts_nodes=bool(self.max_nodes))

    def begin(self, transaction: Transaction, *, is_large: bool = False) -> CountedWrite:
        """Return what a write is applied to; a large one is undone with its transaction."""
        before = self.read(transaction)
        if not before.is_complete:
            self._maintenance.add(self.count_some)
        rows = CountedRows(
            transaction, before.position, counts_nodes=bool(self.max_nodes), keeps_undo=not is_large
        )
        return CountedWrite(self, rows, before)


@attrs.frozen(eq=False)
class CountedWrite:
    """A write that is counted.

    Attributes:
        quotas: what bounds it.
        rows: the transaction to which it is applied.
        before: how much there was.

    """

    quotas: Quotas
    rows: CountedRows
    before: Usage

    def judge(self, edit: Edit) -> None:
        """Raise `QuotaExceeded` for a write that was applied, and undo it."""
        rows, before, quotas = self.rows, self.before, self.quotas
        only_removes = all(each.value is None for each in edit.changes)
        if only_removes or rows.has_shrunk or not before.is_complete:
            return
        for more, there, quota, what in (
            (rows.size, before.size, quotas.max_bytes, "bytes"),
            (rows.nodes, before.nodes or 0, quotas.max_nodes, "nodes"),
        ):
            if quota and more > 0 and there + more > quota:
                rows.undo()
                raise QuotaExceeded(quotas.name, what, quota)

    def record(self, sequence: int) -> None:
        """Record what a write has changed, under the number that it was logged with."""
        rows, before = self.rows, self.before
        nodes = None if before.nodes is None else before.nodes + rows.nodes
        usage = Usage(before.size + rows.size, nodes, sequence, before.position)
        write_usage(rows, usage)


class Indexes:
    """Keeps the indexes of one database as the rules declare them: built in the background.

    Theory of operation. Which indexes there are, and how far each is built, is in the store
    (`store.indexes`), and every write keeps them in its own transaction. `Indexes` compares that
    with what the rules declare: when the database is used first, and when the rules change. What is
    missing is built, what is not declared is dropped, in small steps. Each is a transaction between
    the batches of writes (`MaintenanceList`) and leaves everything consistent, whatever happens
    then.

    **Waiting.** Until an index is built, a query that it is for reads all children, if one turn has
    time for that. In a larger collection each such query would take seconds of the time in which
    the index is built. There it waits: building is the one scan that all of them share, and then
    each of them reads what it shows. It waits only while the build goes on, in this or
    another process: the states in the store are looked at now and then.

    Attributes:
        is_checked: whether they have been compared with the rules in force.
        is_changing: whether any is being built or dropped.

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
        """Compare with `rules`; do the steps by `maintenance`."""
        self.is_checked = False
        self.is_changing = False
        self._clock, self._slices = runtime.clock, runtime.slices
        self._waiting: list[tuple[Path, Order, Deferred[None]]] = []
        self._next_look: IDelayedCall | None = None
        self._seen: IndexStates | None = None
        self._seen_at = 0.0
        self._build: IndexBuild | None = None
        self._name = name
        self._engine = engine
        self._rules = rules
        self._maintenance = maintenance

    def rules_changed(self) -> None:
        """Compare again, the next time that the database is used."""
        self.is_checked = False

    def check(self) -> None:
        """Compare with the rules; begin to build or drop what differs.

        A store that cannot be read at present is compared later.
        """
        try:
            if self._engine.read(lambda view: view.sequence()) == 0:
                return  # nothing was ever written, so there may be no file either
            self.is_checked = True
            states = self._engine.read(read_states)
        except DamagedRow:
            self._log.error(
                "The database {name} has a damaged row of indexes: run treedb check.",
                name=self._name.label,
            )
            return
        except (StoreFailed, DiskFull, Unavailable):
            self.is_checked = False
            return
        if any(each.stage != "built" for each in states.states) or self._find_changed(states):
            self.is_changing = True
            self._maintenance.add(self._do_step)

    def stage_of(self, path: Path, order: Order) -> str:
        """Return the stage of the index for an order of the children of `path`, or `none`."""
        return _stage_in(self._engine.read(read_states), path, order)

    def must_wait(self, path: Path, order: Order) -> bool:
        """Return whether a query of `path` waits for its index, since it would read very much."""
        if not self.is_changing or self.stage_of(path, order) != "building":
            return False
        return not self._engine.read(
            lambda view: Nodes(view).is_short(path, SHORT_ROWS, _AT_ONCE_BYTES)
        )

    def wait_for(self, path: Path, order: Order) -> Deferred[None]:
        """Return what fires when such a query need not wait any longer; it may be cancelled."""
        waiting: Deferred[None] = Deferred()
        self._waiting.append((path, order, waiting))
        if self._next_look is None:
            self._seen = None
            self._next_look = self._clock.callLater(LOOK_S, self._look)
        return waiting

    def stop_waiting(self) -> None:
        """End the waiting of all queries; they read what there is."""
        if self._next_look is not None:
            self._next_look.cancel()
            self._next_look = None
        ended, self._waiting = self._waiting, []
        self._slices.fire([waiting for _, _, waiting in ended], None)

    def _look(self) -> None:
        """Look how far the indexes are built; let queries go on that need not wait any longer."""
        self._next_look = None
        try:
            states = self._engine.read(read_states)
        except (DamagedRow, StoreFailed, DiskFull, Unavailable):
            self.stop_waiting()  # they fail themselves
            return
        now = self._clock.seconds()
        if states != self._seen:
            self._seen, self._seen_at = states, now
        if now >= self._seen_at + STUCK_S:
            self.stop_waiting()
            return
        waiting = [each for each in self._waiting if not each[2].called]
        self._waiting = [each for each in waiting if _stage_in(states, *each[:2]) == "building"]
        ended = [each[2] for each in waiting if each not in self._waiting]
        if self._waiting:
            self._next_look = self._clock.callLater(LOOK_S, self._look)
        if ended:
            self._slices.fire(ended, None)

    def _do_step(self, transaction: Transaction) -> bool:
        """Do one step in a transaction; return False if there was nothing left to do."""
        states = read_states(transaction)
        changed = self._find_changed(states)
        if not changed and all(each.stage == "built" for each in states.states):
            self.is_changing = False
            return False
        for state in changed:
            states = states.with_state(attrs.evolve(state, since=transaction.sequence()))
        advanced = states if changed else self._advance(transaction, states)
        if changed or advanced != states:
            write_states(transaction, advanced)
        return True

    def _find_changed(self, states: IndexStates) -> list[IndexState]:
        """Return the new states of the indexes that the rules gained or lost."""
        declared = self.declared()
        known = {each.index for each in states.states}
        lost = [
            IndexState(each.index, "dropping")
            for each in states.states
            if each.index not in declared and each.stage != "dropping"
        ]
        return lost + [IndexState(each, "building") for each in declared if each not in known]

    def declared(self) -> list[ChildIndex]:
        """Return the indexes that the rules in force declare and that are kept."""
        found = []
        for pattern, name in sorted(self._rules.current.declared_indexes, key=repr):
            try:
                found.append(ChildIndex(pattern, order_named(name)))
            except ValueError:
                continue  # not a path, so no query uses it
        if len(found) > MAX_INDEXES:
            self._log.warn(
                "Of the {count} indexes that the rules of the database {name} declare, "
                "{limit} are built.",
                name=self._name.label,
                count=len(found),
                limit=MAX_INDEXES,
            )
        return list(dict.fromkeys(found))[:MAX_INDEXES]

    def _advance(self, transaction: Transaction, states: IndexStates) -> IndexStates:
        """Build or drop some of the first index that is not complete."""
        state = next((each for each in states.states if each.stage != "built"), None)
        if state is None:
            return states
        index = state.index
        if state.stage == "dropping":
            if not drop_some(transaction, index, STEP_CHILDREN):
                return states
            # Declared again meanwhile, it is built from the beginning.
            return states.without(index)
        build, self._build = self._build, None  # a step that fails has used up part of its run
        if build is None or not build.continues(state):
            build = IndexBuild(state)
        state = build.do_step(transaction, STEP_CHILDREN)
        if state.stage == "building":
            self._build = build
            return states.with_state(state)
        self._log.info(
            "The index {index} of {path} in the database {name} is built.",
            name=self._name.label,
            index=index.name,
            path=format_path(tuple("*" if key is None else key for key in index.pattern)),
        )
        return states.with_state(state)


def _stage_in(states: IndexStates, path: Path, order: Order) -> str:
    if states.find(path, order) is not None:
        return "built"
    is_begun = any(each.order == order and each.matches(path) for each in states.kept)
    return "building" if is_begun else "none"
