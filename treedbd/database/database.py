"""One database: read what is durable, write through the batch, close.

A write travels: its server values are resolved against the transaction's view, its condition is
checked there, it is applied to the rows and its entry appended to the change log. The `Batcher`
decides when that happens and tells the outcome once it is durable.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from twisted.internet.defer import Deferred

from treedbd.database import tagging
from treedbd.database.batch import Batcher
from treedbd.database.permit import Claim, Permit, Permits
from treedbd.database.platform import Platform
from treedbd.database.question import (
    TURN_MISSED,
    DeadlinePassed,
    Outcome,
    PermissionDenied,
    TagDenied,
    Write,
)
from treedbd.database.resume import find_missed
from treedbd.database.rulebook import Rulebook
from treedbd.database.watchers import Watcher, Watchers
from treedbd.rules.evaluation import Context
from treedbd.rules.judge import Verdict
from treedbd.store import changelog
from treedbd.store.mapping import Mapping, Transaction
from treedbd.store.node_writer import NodeWriter
from treedbd.store.nodes import Nodes
from treedbd.tree import edit, value
from treedbd.tree.event import Event, Position, Telling, look_up, tell
from treedbd.tree.path import Path
from treedbd.tree.pushid import PushIds
from treedbd.tree.value import Json

T = TypeVar("T")

TRIM_EVERY = 64
"""Old log entries are forgotten this many at a time."""


class Database:
    """A tree of JSON and everyone who reads and writes it.

    Belongs to the reactor's thread.
    """

    def __init__(
        self,
        mapping: Mapping,
        rulebook: Rulebook,
        platform: Platform,
        retain_events: int,
    ) -> None:
        """Serve `mapping`, which from now on belongs to this database, as `rulebook` allows."""
        self.push_ids = PushIds(platform.entropy)
        self._mapping = mapping
        self._clock = platform.clock
        self._entropy = platform.entropy
        self._retain_events = retain_events
        self._rulebook = rulebook
        self._watchers = Watchers()
        self._permits = Permits(rulebook, self.read)
        self._batcher = Batcher(mapping, self._apply, self._tell, platform)

    @property
    def trouble(self) -> str | None:
        """Why writes are refused at present; None while all is well."""
        return self._batcher.trouble

    def read(self, work: Callable[[Nodes], T]) -> T:
        """Run `work` on the last durable state and return what it returns."""
        return self._mapping.read(lambda rows: work(Nodes(rows)))

    def hold(self) -> HeldNodes:
        """Hold the last durable state open, for a reader that needs many turns."""
        return HeldNodes(self._mapping)

    def write(self, write: Write) -> Deferred[Outcome]:
        """Do a write.

        Fires with its outcome once it is durable; errbacks with `ConditionFailed`, `InvalidData`,
        `PermissionDenied`, `TooLarge`, `DeadlinePassed` or `Unavailable`, and then nothing was
        applied.
        """
        return self._batcher.submit(write)

    def judge(self, write: Write) -> Verdict:
        """Tell what the rules say of a write, and which of them ran; nothing is written."""

        def work(nodes: Nodes) -> Verdict:
            resolved = edit.resolve(write.edit, write.now, nodes)
            context = Context(write.caller.auth, write.now, nodes)
            return self._rulebook.rules.may_write(resolved.changes, context, explain=True)

        return self.read(work)

    def permit(
        self, claim: Claim, revoked: Callable[[], None], doubted: Callable[[], None]
    ) -> Permit:
        """Return the right to watch, yet to be judged.

        `revoked` is called when it is withdrawn, `doubted` when it may have been for a moment:
        then the batch that is about to be told must not be heard.
        """
        return Permit(self._permits, claim, revoked, doubted)

    def recheck_permits(self) -> None:
        """Judge everyone who watches anew: the rules have changed."""
        self._permits.recheck()

    def watch(self, path: Path, watcher: Watcher, work: Callable[[Nodes], T]) -> tuple[T, int]:
        """Let `watcher` hear what concerns `path` from now on.

        Returns what `work` made of the present state, and its sequence number: the watcher hears
        every later write, and no earlier one. One that watches already starts anew.
        """
        answer, sequence = self._mapping.read(lambda rows: (work(Nodes(rows)), rows.sequence()))
        self._watchers.add(path, watcher, sequence)
        return answer, sequence

    def watch_held(self, path: Path, watcher: Watcher) -> HeldNodes:
        """Do as `watch`, with the present state held open."""
        held = self.hold()
        self._watchers.add(path, watcher, held.sequence)
        return held

    def resume(
        self, path: Path, watcher: Watcher, after: Position, permit: Permit
    ) -> list[tuple[Position, Event]] | None:
        """Do as `watch` for one that has heard everything up to the position `after`.

        Returns what it missed, or None, and then does not watch, where that is not known any more
        or where `permit`, granted by what is there now, may not have held all the time.
        """
        retained = self._retain_events
        found = self._mapping.read(lambda rows: find_missed(rows, path, after, permit, retained))
        if found is None:
            return None
        self._watchers.add(path, watcher, found.sequence)
        return found.events

    def position(self, sequence: int) -> Position:
        """Return the position of one that has heard everything up to a sequence number."""
        entry = self._mapping.read(lambda rows: next(rows.entries(sequence - 1), None))
        is_known = entry is not None and entry.sequence == sequence
        return Position(sequence, entry.op_id if entry is not None and is_known else b"")

    def unwatch(self, path: Path, watcher: Watcher) -> None:
        """Let `watcher` hear no more; one that does not watch is no error."""
        self._watchers.remove(path, watcher)

    def close(self) -> Deferred[None]:
        """Answer the writes under way, then close the store."""
        return self._batcher.close().addCallback(lambda _: self._mapping.close())

    def _apply(self, transaction: Transaction, write: Write) -> Outcome:
        nodes = NodeWriter(transaction)
        resolved = edit.resolve(write.edit, write.now, nodes)
        may_see = self._judge(nodes, write, resolved)
        if write.condition is not None:
            tagging.check(nodes, write.condition)
        if write.deadline is not None and self._clock.seconds() >= write.deadline:
            raise DeadlinePassed(TURN_MISSED)  # rules may take long
        wants_tag = write.wants_tag and may_see
        new_tag = tagging.tag_ahead(nodes, write, resolved) if wants_tag else None
        telling = None
        if _has_effect(nodes, resolved):
            nodes.apply(resolved.changes)
            rules = self._rulebook.rules.fingerprint
            content = changelog.encode(resolved, write.now, rules=rules)
            op_id = self._entropy(16)
            sequence = transaction.append(op_id, content)
            if sequence % TRIM_EVERY == 0:
                # One more than can be missed: by it a position is known for one of this history.
                transaction.trim(changelog.trim_to(sequence, self._retain_events + 1))
            telling = self._look_up(tell(sequence, resolved, op_id), nodes)
        echo = None
        if write.wants_echo:
            echo = _echo(nodes, resolved) if may_see else edit.show_blind(write.edit, write.now)
        if wants_tag and new_tag is None:
            new_tag = tagging.tag_after(nodes, resolved)
        return Outcome(resolved, telling, echo, new_tag)

    def _judge(self, nodes: Nodes, write: Write, resolved: edit.Edit) -> bool:
        """Raise `PermissionDenied`, or tell whether the caller may see what its answer would tell.

        A tag tells of everything below a place, the echo of an increment what it added to, and that
        of a priority whether there is a node.
        """
        caller, now = write.caller, write.now
        if caller.is_admin:
            return True
        context = Context(caller.auth, now, nodes)
        if not self._rulebook.rules.may_write(resolved.changes, context).allowed:
            raise PermissionDenied("The rules do not allow this write.")
        condition = write.condition
        if condition is not None and not self._rulebook.may_read(
            condition.place.path, caller, now, nodes
        ):
            raise TagDenied("The rules do not allow this caller to ask for a tag.")
        asked = write.edit
        echo_tells = write.wants_echo and (asked.has_placeholders or asked.place.of_priority)
        if not (write.wants_tag or echo_tells):
            return True
        return self._rulebook.may_read(asked.place.path, caller, now, nodes)

    def _tell(self, tellings: Sequence[Telling]) -> None:
        """Tell everyone; those whose right to hear it is gone are told of that first."""
        self._permits.tell(tellings)
        if any(map(self._misses_values, tellings)):
            # Somebody came to watch after these had been applied.
            tellings = self.read(lambda nodes: [self._look_up(each, nodes) for each in tellings])
        self._watchers.tell(tellings)

    def _look_up(self, telling: Telling, nodes: Nodes) -> Telling:
        """Complete what is told of a priority; a large node is read only if somebody hears it."""
        if telling.is_looked_up:
            return telling
        if self._misses_values(telling):
            return look_up(telling, nodes)
        is_large = any(nodes.is_spread(part.path) for part in telling.parts if part.is_priority)
        return telling if is_large else look_up(telling, nodes)

    def _misses_values(self, telling: Telling) -> bool:
        """Tell whether somebody is to hear of a node that has not been looked up.

        Of a priority only those hear who watch its node or one above it.
        """
        return not telling.is_looked_up and any(
            part.is_priority and self._watchers.has_at_or_above(part.path) for part in telling.parts
        )


class HeldNodes:
    """One moment of a database, held until `close`."""

    def __init__(self, mapping: Mapping) -> None:
        self._snapshot = mapping.snapshot()
        self.nodes = Nodes(self._snapshot)
        self.sequence = self._snapshot.sequence()

    def close(self) -> None:
        """Let the moment go."""
        self._snapshot.close()


def _has_effect(nodes: Nodes, done: edit.Edit) -> bool:
    """Tell whether anything is written: a PATCH has members, a priority has a node to be on."""
    if done.place.of_priority:
        return nodes.peek(done.place.path) is not None
    return bool(done.changes)


def _echo(nodes: Nodes, done: edit.Edit) -> Json:
    if done.method == "patch":
        return done.sent
    if done.place.of_priority:
        return nodes.priority(done.place.path)
    return value.plain(done.changes[0].value)
