"""The events of hooks, captured in the transaction of a write.

Theory of operation. A hook receives the values of a place before and after a write, which only the
transaction of the write knows. So they are put into the entry of the change log, if any hook of the
database is for such a place. Who reads the log has all that is to be sent, after any crash.

Which hooks there are is read in the transaction too (`store.hooks`): one look at the stamp, and at
the hooks themselves if it has changed. A process alone does not look if it has found none, until it
writes some itself.

Hooks of a pattern of databases are stored in a database by its first write (`first_hooks`).

The first event of a hook of the configuration puts its cursor before it, so that none is missed
however late the reader of the log comes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

import attrs

from treedbd.database.log_reader import end_of
from treedbd.database.requests import (
    HookConflict,
    Outcome,
    TooManyCursors,
    TooManyEvents,
    TooManyHooks,
    Write,
)
from treedbd.limits import MAX_CURSORS, MAX_FUNCTIONS, MAX_HOOKS, MIB, HookLimits
from treedbd.loop import pause
from treedbd.names import DatabaseName
from treedbd.store import changelog
from treedbd.store.cursors import (
    Cursor,
    count_cursors,
    has_cursor,
    put_cursor,
    read_cursors,
    remove_cursor,
)
from treedbd.store.engine import DamagedRow, Transaction
from treedbd.store.hooks import Hook, Kind, read_hooks, read_stamp, write_hooks
from treedbd.tree.edit import Edit
from treedbd.tree.overlay import Overlay
from treedbd.tree.pattern import PatternSet
from treedbd.tree.types import Path, View
from treedbd.tree.value import compact, plain

if TYPE_CHECKING:
    from treedbd.database.apply import WriteApplier
    from treedbd.database.runtime import Runtime

_UNKNOWN: Final = b""
PATHS_CHARACTERS: Final = 4 * MIB
"""Characters of the paths of all events of one write: who reads the log parses them at once."""
_PLACES_PER_EVENT: Final = 100
"""Places that a write may touch without an event, for each event that it may have."""


@attrs.frozen
class _Shown:
    """A value as it is in an event: its JSON, None for nothing; or it `is_cut`."""

    printed: bytes | None
    is_cut: bool = False


_CUT: Final = _Shown(None, is_cut=True)
_ABSENT: Final = _Shown(None)


class EventCapture:
    """Captures the events of one database for its hooks.

    Attributes:
        configured: the hooks of the configuration.

    """

    def __init__(self, name: DatabaseName, runtime: Runtime, *, is_shared: bool) -> None:
        """Capture for the hooks that are configured, and those that are stored.

        Others write to the database too if it `is_shared`.
        """
        self.configured: Final = tuple(runtime.hooks_of(name))
        self._name = name
        self._runtime = runtime
        self._limits: Final = runtime.hook_limits
        self._looks_always: Final = is_shared
        self._stamp: bytes | None = _UNKNOWN
        self._hooks: tuple[Hook, ...] = self.configured
        self._patterns = PatternSet(hook.on.keys for hook in self._hooks)
        self.is_used = True

    def changed(self) -> None:
        """Look for hooks with the next write: some were stored."""
        self.is_used = True

    def capture(
        self,
        transaction: Transaction,
        write: Write,
        edit: Edit,
        before: View,
        after: View | None = None,
    ) -> str:
        """Return the events of a write, as `changelog.encode` takes them.

        `edit` is what it does to the tree `before`; `after` is None for one that has its values.
        There are none unless it `is_used`. Raises `TooManyEvents`.
        """
        self._look(transaction)
        if not (self._patterns and write.has_events):
            return ""
        after = after or Overlay(before, edit.changes)
        events = _Events(self._limits)
        cursors = set[str]()  # of configured hooks, which may have none
        for at, path in enumerate(self._patterns.touched(edit.changes, before, after)):
            if at >= self._limits.events_per_write * _PLACES_PER_EVENT:
                raise TooManyEvents(self._limits.events_per_write)
            kind = events.compare(path, before, after)
            wanting = [] if kind is None else list(self._wanting(path, kind))
            if wanting:
                cursors.update(hook.cursor for hook in wanting if hook.is_configured)
                events.keep()
        for name in cursors:
            self._put_cursor(transaction, name)
        return changelog.print_events(events.printed)

    def _wanting(self, path: Path, kind: Kind) -> Iterator[Hook]:
        for hook in self._hooks:
            if kind in hook.kinds and hook.on.match(path) is not None:
                yield hook

    def _look(self, transaction: Transaction) -> None:
        """Read the hooks if they have changed."""
        stamp = read_stamp(transaction)
        if stamp is None and not transaction.sequence():
            stamp = self._put_first(transaction)
            if stamp is None:  # this write may be refused, and others may come before the next
                self._runtime.first_hooks.watch(self)
        if stamp == self._stamp:
            return
        try:
            stored = read_hooks(transaction)
        except DamagedRow:
            stored = []  # `treedb check` says so; writes go on
        self._hooks = join_hooks(self.configured, stored)
        self._patterns = PatternSet(hook.on.keys for hook in self._hooks)
        if self._stamp == _UNKNOWN and stamp is None:
            self.is_used = self._looks_always or bool(self.configured)
        self._stamp = stamp

    def find_first(self) -> list[Hook]:
        """Return the hooks that the database has from its first write on."""
        return self._runtime.first_hooks.of(self._name)[:MAX_FUNCTIONS]

    def _put_first(self, transaction: Transaction) -> bytes | None:
        """Store the hooks that the database has from now on; return their stamp, if there are any.

        If the write is refused, they are stored with the next one.
        """
        first = self.find_first()
        if not first:
            return None
        now_ms, stamp = self._runtime.now_ms(), self._runtime.entropy(16)
        for name in {hook.cursor for hook in first}:
            put_cursor(transaction, cursor_at_end(transaction, name, now_ms))
        write_hooks(transaction, first, stamp)
        return read_stamp(transaction)

    def _put_cursor(self, transaction: Transaction, name: str) -> None:
        """Put a cursor at the end of the log, if there is none of a name."""
        if has_cursor(transaction, name) or count_cursors(transaction) >= MAX_CURSORS:
            return
        put_cursor(transaction, cursor_at_end(transaction, name, self._runtime.now_ms()))


def join_hooks(configured: Sequence[Hook], stored: Sequence[Hook]) -> tuple[Hook, ...]:
    """Return the hooks of a database: one of the configuration replaces one of the same name."""
    taken = {hook.name for hook in configured}
    return (*configured, *(hook for hook in stored if hook.name not in taken))


def cursor_at_end(transaction: Transaction, name: str, now_ms: int) -> Cursor:
    """Return a cursor at the end of the log, which does not need whole entries."""
    at = end_of(transaction)
    return Cursor(
        name=name,
        sequence=at.sequence,
        op_id=at.op_id,
        is_whole=False,
        bytes_read=0,  # put_cursor counts it from the count at the end of the log
        created_ms=now_ms,
        moved_ms=now_ms,
    )


class _Events:
    """The events of one write."""

    def __init__(self, limits: HookLimits) -> None:
        self.printed: list[bytes] = []
        self._limits = limits
        self._room = limits.write_value_bytes
        self._characters = 0
        self._compared: tuple[Path, _Shown, _Shown] = ((), _ABSENT, _ABSENT)

    def compare(self, path: Path, before: View, after: View) -> Kind | None:
        """Return what has happened to a place, None if its value is the same."""
        old = _show(path, before, self._limits.value_bytes)
        new = _show(path, after, self._limits.value_bytes)
        self._compared = path, old, new
        if old == _ABSENT:
            return None if new == _ABSENT else "created"
        if new == _ABSENT:
            return "deleted"
        return None if old == new and not old.is_cut else "updated"

    def keep(self) -> None:
        """Keep the event that was compared last; raise `TooManyEvents`."""
        if len(self.printed) >= self._limits.events_per_write:
            raise TooManyEvents(self._limits.events_per_write)
        path, old, new = self._compared
        self._characters += sum(map(len, path))
        if self._characters > PATHS_CHARACTERS:
            raise TooManyEvents(PATHS_CHARACTERS, has_long_paths=True)
        old, new = self._fit(old), self._fit(new)
        shown = (("before", old), ("after", new))
        cut = [name for name, value in shown if value.is_cut]
        self.printed.append(changelog.print_event(path, old.printed, new.printed, cut))

    def _fit(self, value: _Shown) -> _Shown:
        """Return a value, cut if it is too long together with those before it."""
        size = 0 if value.printed is None else len(value.printed)
        if size > self._room:
            return _CUT
        self._room -= size
        return value


def _show(path: Path, view: View, longest: int) -> _Shown:
    """Print the value of a place, if it has at most `longest` bytes."""
    if view.type_at(path) is None:
        return _ABSENT
    if view.size(path, 2 * longest) > 2 * longest:  # as it is stored, which may be longer
        return _CUT
    printed = compact(plain(view.get(path)))
    pause()
    return _Shown(printed) if len(printed) <= longest else _CUT


@attrs.frozen
class ChangeHooks:
    """The task of a write that changes the stored hooks of a database.

    `change` gets those that there are, and returns what is to be there; what it raises refuses the
    write. It may be called again, if the write is done again. Hooks that are new have a cursor at
    the end of the log from then on, and those that are gone have none. A cursor that was dropped
    stays so, and says that events were lost, until its own hook is changed.
    """

    change: Callable[[list[Hook]], list[Hook]]
    stamp: bytes
    now_ms: int

    def __call__(self, applier: WriteApplier, transaction: Transaction, write: Write) -> Outcome:
        """Do it; raise `TooManyCursors`, `TooManyHooks`, `HookConflict`, or as `change` does.

        A refused write must leave the transaction as it was, so all is checked first.
        """
        before = read_hooks(transaction)
        if read_stamp(transaction) is None and not transaction.sequence():
            before = applier.events.find_first()  # which its first write would store
        after = self.change(list(before))
        configured = applier.events.configured
        _check_hooks(before, after, configured)
        cursors = {each.name: each for each in read_cursors(transaction)}
        of_others = {hook.cursor for hook in configured}
        names = {hook.cursor for hook in after} - of_others
        gone = {hook.cursor for hook in before} - names - of_others
        changed = {hook.cursor for hook in after if hook not in before}
        if len((cursors.keys() - gone) | names) > max(MAX_CURSORS, len(cursors)):
            raise TooManyCursors
        applier.events.changed()
        for name in gone:
            remove_cursor(transaction, name)
        for name in sorted(names):
            if name not in cursors or (cursors[name].is_dropped and name in changed):
                put_cursor(transaction, cursor_at_end(transaction, name, self.now_ms))
        write_hooks(transaction, after, self.stamp)
        return Outcome(write.edit, None, None, None, has_changed_rows=True)


def _check_hooks(before: list[Hook], after: list[Hook], configured: Sequence[Hook]) -> None:
    """Raise `HookConflict` or `TooManyHooks` for hooks that cannot replace those `before`."""
    known = {hook.name: hook for hook in before}
    changed = [hook for hook in after if known.get(hook.name) != hook]
    for hook in configured:
        if any(each.name == hook.name for each in changed):
            raise HookConflict(f"The hook {hook.name} is in the configuration: change it there.")
    if len(after) > len(before):
        functions = sum(bool(hook.trigger) for hook in after)
        if functions > MAX_FUNCTIONS:
            raise TooManyHooks(are_functions=True)
        if len(join_hooks(configured, after)) - functions > MAX_HOOKS:
            raise TooManyHooks
