"""Applying writes: each in a transaction, after its rules and its condition were checked.

The steps are those that the module `database` states. A large write is applied before its rules are
evaluated (`large_writes`); nothing of it lasts if they refuse it.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from functools import partial
from typing import TypeAlias

import attrs

from treedbd.database import etags
from treedbd.database.large_writes import AppliedBody
from treedbd.database.quotas import CountedWrite, Quotas
from treedbd.database.requests import Caller, DeadlinePassed, LargeBody, Outcome, Write
from treedbd.database.runtime import Runtime
from treedbd.loop import pause
from treedbd.rules.context import KeptReads
from treedbd.store import changelog
from treedbd.store.engine import Transaction
from treedbd.store.node_writer import NodeWriter
from treedbd.store.nodes import HeldNodes, Nodes
from treedbd.tree.edit import (
    Edit,
    echo_of,
    echo_without_reading,
    find_lone_priority,
    has_effect,
    rename_child,
    resolve,
)
from treedbd.tree.event import describe, describe_large
from treedbd.tree.path import format_path
from treedbd.tree.push_id import PushIds, is_later
from treedbd.tree.types import InvalidData, Path, View

CheckWrite: TypeAlias = Callable[[Nodes, Write, Edit, View | None], bool]


@attrs.frozen(eq=False)
class WriteApplier:
    """Applies the writes of one database.

    Attributes:
        make_writer: returns what writes into a transaction, and keeps the indexes.
        hold: holds the last durable state.
        check_write, evaluate_read: do as those of `Authorisation`.
        fingerprint: returns that of the rules in force.
        kept_reads: what they have read.
        push_ids: makes the keys of its pushed children.
        runtime: the clock and the entropy.
        retain_events: how many entries the change log keeps.
        others_ms: returns the latest time of what other processes have written, 0 if there are
            none.
        quotas: what the database may hold; None if it may hold anything.

    """

    make_writer: Callable[[Transaction], NodeWriter]
    hold: Callable[[], HeldNodes]
    check_write: CheckWrite
    evaluate_read: Callable[[Path, Caller, int, Nodes], bool]
    fingerprint: Callable[[], str]
    kept_reads: KeptReads
    push_ids: PushIds
    runtime: Runtime
    retain_events: int
    others_ms: Callable[[], int] = lambda: 0
    quotas: Quotas | None = None

    def apply(self, transaction: Transaction, write: Write) -> Outcome:
        """Do one write in a transaction; raise the error that refuses it."""
        write = self._after_others(write)
        if write.task is not None:
            return write.task(self, transaction, write)
        return self.apply_edit(transaction, write)

    def judge(self, transaction: Transaction, write: Write) -> None:
        """Raise what would refuse a write by its rules or its server values; apply nothing."""
        nodes = self.make_writer(transaction)
        self.check_write(nodes, write, resolve(write.edit, write.now, nodes), None)
        self._check_time(write)

    def apply_edit(self, transaction: Transaction, write: Write) -> Outcome:
        """Do a write in a transaction, without its task."""
        if write.large is not None:
            return self._apply_large(transaction, write, write.large)
        counted = None if self.quotas is None else self.quotas.begin(transaction)
        nodes = self.make_writer(transaction if counted is None else counted.rows)
        edit = resolve(write.edit, write.now, nodes)
        may_read = self.check_write(nodes, write, edit, None)
        if write.condition is not None:
            etags.check_condition(nodes, write.condition, self.kept_reads)
        if write.refuses_lone_priority:
            self._check_priorities(write, edit, nodes)
        self._check_time(write)  # evaluating rules may take long
        wants_etag = write.wants_etag and may_read
        etag = etags.etag_before_write(edit) if wants_etag else None
        commit = None
        if has_effect(edit, nodes):
            nodes.check_room(each.place.path for each in edit.changes if each.value is not None)
            self.kept_reads.note_changes(transaction, edit.changes)
            nodes.apply(edit.changes)
            sequence, op_id, size = self._log(transaction, write, edit, counted=counted)
            commit = describe(sequence, edit, op_id, size)
        echo = None
        if write.wants_echo:
            echo = echo_of(edit, nodes) if may_read else echo_without_reading(write.edit, write.now)
        if wants_etag and etag is None:
            etag = etags.etag_after_write(nodes, edit)
        return Outcome(edit, commit, echo, etag)

    def _apply_large(self, transaction: Transaction, write: Write, body: LargeBody) -> Outcome:
        """Do a write whose body is applied before the rules are evaluated; it pauses."""
        counted = None if self.quotas is None else self.quotas.begin(transaction, is_large=True)
        nodes = self.make_writer(transaction if counted is None else counted.rows)
        nodes.checks_room = True
        with closing(self.hold()) as before:
            applied = AppliedBody(nodes, write, body, before, partial(self._check_time, write))
            edit = attrs.evolve(
                write.edit,
                changes=applied.changes,
                has_placeholders=applied.has_placeholders,
                by_member=applied.changes,
            )
            may_read = self.check_write(before, write, edit, nodes)
            if write.condition is not None:
                etags.check_condition(before, write.condition, self.kept_reads)
            if write.refuses_lone_priority:
                self._check_priorities(write, edit, before)
        etag = etags.etag_after_write(nodes, edit) if write.wants_etag and may_read else None
        self._check_time(write)
        self.kept_reads.note_changes(transaction, edit.changes)
        sequence, op_id, size = self._log(transaction, write, write.edit, applied, counted)
        commit = describe_large(sequence, edit, op_id, applied.printed, size)
        return Outcome(edit, commit, None, etag, may_read, applied.echo)

    def _after_others(self, write: Write) -> Write:
        """Let a write be later than those of other processes, whose clocks may be ahead.

        So times and push ids of a database never go back, and a batch that is done again because
        others were first gets new ones.
        """
        others = self.others_ms()
        if write.now < others:
            write = attrs.evolve(write, now=others)
        if others and write.is_push and not is_later(write.edit.place.path[-1], others):
            key = self.push_ids.next(write.now)
            write = attrs.evolve(write, edit=rename_child(write.edit, key))
        return write

    def _check_priorities(self, write: Write, edit: Edit, before: Nodes) -> None:
        """Raise `InvalidData` if an edit sets the priority of nothing.

        Who may not read there does not learn that there is nothing: it has no effect then.
        """
        path = find_lone_priority(edit, before)
        if path is not None and self.evaluate_read(path, write.caller, write.now, before):
            raise InvalidData(
                f"There is nothing at {format_path(path)} that could have a priority."
            )

    def _check_time(self, write: Write) -> None:
        if write.deadline is not None and self.runtime.clock.seconds() >= write.deadline:
            raise DeadlinePassed("it was applied")

    def _log(
        self,
        transaction: Transaction,
        write: Write,
        edit: Edit,
        applied: AppliedBody | None = None,
        counted: CountedWrite | None = None,
    ) -> tuple[int, bytes, int]:
        """Append an edit that was applied to the change log.

        Returns its number, its id, and the bytes of its entry.
        """
        if counted is not None:
            counted.judge(edit)
        op_id = self.runtime.entropy(16)
        large, kept = write.large, self.runtime.entry_bytes
        most = max(kept, self.runtime.followed_bytes)
        printed = None
        if large is not None and applied is not None:
            # Who follows a large PUT reads the rows, which say how it is read.
            if large.size <= (kept if edit.method == "put" else most):
                printed = applied.print_sent(large)
            pause()
        entry = changelog.encode(
            edit,
            write.now,
            most,
            writer=_writer_of(write.caller),
            printed=printed,
            size=0 if large is None else large.size,
            rules=self.fingerprint(),
            pushed=self.push_ids.latest_ms,
        )
        retain = self.retain_events
        if self.runtime.followed_bytes:
            retain = max(retain, changelog.FOLLOWED_ENTRIES)
        if len(entry) > kept:
            pause()
        sequence = changelog.append(transaction, op_id, entry, retain, kept)
        if counted is not None:
            counted.record(sequence)
        return sequence, op_id, len(entry)


def _writer_of(caller: Caller) -> changelog.Writer:
    """Return who wrote, as the change log names it."""
    uid = caller.auth.get("uid") if isinstance(caller.auth, dict) else None
    return changelog.Writer(uid if isinstance(uid, str) else None, caller.is_admin)
