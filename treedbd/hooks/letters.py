"""Events that wait or are dead, and the state of each hook, as rows beside the tree.

A *letter* is an event that the window of a hook does not hold any longer, since others go on: one
that *waits* is sent again, before all later events of its path; a *dead* one was refused so often
that it is not, until an admin replays it. Their rows have the whole event, so that the change log
need not keep it.

The state of a hook is what admins see of it in whichever process they ask; only the process that
sends writes it.

    HOOK_FIRST + x                              the stamp: others after an admin changed letters
    HOOK_FIRST + x + name 0 sequence number     a letter: a line of JSON, and the event
    HOOK_FIRST + y + name                       the state of a hook

"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

import attrs
import orjson

from treedbd.database.requests import Outcome, Write
from treedbd.hooks.message import Message, show_ms
from treedbd.loop import paused
from treedbd.store.engine import DamagedRow, ReadView, Transaction
from treedbd.store.hooks import HOOK_FIRST
from treedbd.store.rows import seal, unseal
from treedbd.tree.path import format_path

if TYPE_CHECKING:
    from treedbd.database.apply import WriteApplier

LETTERS: Final = HOOK_FIRST + b"x"
STATES: Final = HOOK_FIRST + b"y"
LETTERS_AT_ONCE: Final = 8
"""Letters that are read or written in one step."""
_PLACE: Final = struct.Struct(">QI")

Order: TypeAlias = tuple[int, int]
"""The number of a write, and the place of an event in it."""
Deed: TypeAlias = Literal["replay", "discard"]


@attrs.frozen
class Letter:
    """An event that waits, or is dead.

    Attributes:
        message: the event.
        is_dead: whether it is not sent again.
        attempts: how often it was sent.
        failures: how many of these count.
        error: why the last one failed, as a clause.
        first_ms, last_ms: when it was sent first, and last; 0 for never.

    """

    message: Message
    is_dead: bool
    attempts: int
    failures: int
    error: str
    first_ms: int
    last_ms: int

    def show(self) -> dict[str, Any]:
        """Return what admins see of it."""
        return {
            "id": self.message.event_id,
            "kind": self.message.kind,
            "path": format_path(self.message.path),
            "attempts": self.attempts,
            "error": self.error,
            "first": show_ms(self.first_ms),
            "last": show_ms(self.last_ms),
            "dead": self.is_dead,
            "event": orjson.loads(self.message.body),
        }


@attrs.frozen
class HookState:
    """What is known of a hook, as the process that sends its events has stored it last.

    Times are in milliseconds since 1970, None for never.

    Attributes:
        under_way: requests that are not answered.
        waiting: events that were read in the log and are not acknowledged.
        sent: events that were acknowledged, since the hook was made.
        succeeded_ms: when an event was acknowledged last.
        failed_ms, error: when a request failed last, and why.
        next_ms: when the next request is, if none may be sent before.
        dead: dead letters.
        paused: why nothing is sent, in a sentence; empty if something is.
        lost_ms: when events were lost, because the log was not kept for the hook any longer.
        stored_ms: when this was stored.

    """

    under_way: int = 0
    waiting: int = 0
    sent: int = 0
    succeeded_ms: int | None = None
    failed_ms: int | None = None
    error: str = ""
    next_ms: int | None = None
    dead: int = 0
    paused: str = ""
    lost_ms: int | None = None
    stored_ms: int = 0

    def show(self) -> dict[str, Any]:
        """Return what admins see of it."""
        return {
            "underWay": self.under_way,
            "waiting": self.waiting,
            "sent": self.sent,
            "lastSuccess": _show(self.succeeded_ms),
            "lastFailure": _show(self.failed_ms),
            "lastError": self.error or None,
            "nextAttempt": _show(self.next_ms),
            "dead": self.dead,
            "paused": self.paused or None,
            "lost": _show(self.lost_ms),
            "asOf": _show(self.stored_ms),
        }


def _show(time_ms: int | None) -> str | None:
    return show_ms(time_ms) if time_ms else None


def read_stamp(view: ReadView) -> bytes | None:
    """Return bytes that are others after an admin has changed letters."""
    return view.get(LETTERS)


def read_state(view: ReadView, hook: str) -> HookState:
    """Return the state of a hook, that of a new one if none is stored or it is damaged."""
    key = STATES + hook.encode()
    stored = view.get(key)
    try:
        return HookState() if stored is None else HookState(**orjson.loads(unseal(key, stored)))
    except (DamagedRow, ValueError, TypeError):
        return HookState()


def find_letters(view: ReadView, hook: str, after: Order = (-1, -1)) -> Iterator[Order]:
    """Yield the places of the letters of a hook, in order, from after one on."""
    low, high = _range(hook)
    if after >= (0, 0):
        low = _key(hook, after) + b"\0"
    for key in view.scan_keys(low, high):
        if len(key) >= _PLACE.size:
            sequence, number = _PLACE.unpack(key[-_PLACE.size :])
            yield sequence, number


def read_letter(view: ReadView, hook: str, at: Order) -> Letter | None:
    """Return a letter, None if it is not there; raise `DamagedRow`."""
    key = _key(hook, at)
    stored = view.get(key)
    if stored is None:
        return None
    try:
        head, _, body = unseal(key, stored).partition(b"\n")
        json = orjson.loads(head)
        message = Message(
            sequence=at[0],
            number=at[1],
            path=tuple(json.pop("path")),
            kind=json.pop("kind"),
            event_id=json.pop("id"),
            body=body,
        )
        return Letter(message=message, **json)
    except DamagedRow:
        raise
    except (ValueError, LookupError, TypeError):
        raise DamagedRow("An event of a webhook cannot be read.") from None


def put_letter(transaction: Transaction, hook: str, letter: Letter) -> None:
    """Store a letter."""
    message = letter.message
    head = {
        "id": message.event_id,
        "kind": message.kind,
        "path": message.path,
        "is_dead": letter.is_dead,
        "attempts": letter.attempts,
        "failures": letter.failures,
        "error": letter.error,
        "first_ms": letter.first_ms,
        "last_ms": letter.last_ms,
    }
    key = _key(hook, message.order)
    transaction.put(key, seal(key, orjson.dumps(head) + b"\n" + message.body))


@attrs.frozen
class StoreHook:
    """The task of a write that stores what has become of a hook: letters, and its state."""

    hook: str
    put: Sequence[Letter] = ()
    gone: Sequence[Order] = ()
    state: HookState | None = None
    is_local = True

    def __call__(self, _: WriteApplier, transaction: Transaction, write: Write) -> Outcome:
        """Do it."""
        for letter in self.put:
            put_letter(transaction, self.hook, letter)
        for at in self.gone:
            transaction.delete(_key(self.hook, at))
        if self.state is not None:
            key = STATES + self.hook.encode()
            transaction.put(key, seal(key, orjson.dumps(attrs.asdict(self.state))))
        return Outcome(write.edit, None, None, None, has_changed_rows=True)


@attrs.frozen
class RemoveRows:
    """The task of a write that removes all rows of hooks but those of `kept`, some at a time."""

    kept: frozenset[str]
    most: int = 256
    is_local = True

    def __call__(self, _: WriteApplier, transaction: Transaction, write: Write) -> Outcome:
        """Do it."""
        gone = list(_find_others(transaction, self.kept, self.most))
        for key in gone:
            transaction.delete(key)
        return Outcome(write.edit, None, None, None, has_changed_rows=bool(gone))


def has_rows_of_others(view: ReadView, kept: frozenset[str]) -> bool:
    """Return whether there are rows of hooks that are not among `kept`."""
    return any(_find_others(view, kept, 1))


def _find_others(view: ReadView, kept: frozenset[str], most: int) -> Iterator[bytes]:
    """Yield the keys of rows of other hooks, at most some."""
    found = 0
    low = LETTERS + b"\0"
    while found < most:
        key = next(view.scan_keys(low, STATES), None)
        if key is None:
            break
        name = key[len(LETTERS) :].partition(b"\0")[0]
        if name.decode("ascii", "replace") in kept:
            low = LETTERS + name + b"\1"
            continue
        yield key
        found += 1
        low = key + b"\0"
    for key in view.scan_keys(STATES, HOOK_FIRST + b"z"):
        if found < most and key[len(STATES) :].decode("ascii", "replace") not in kept:
            yield key
            found += 1


@attrs.define
class ChangeLetters:
    """The task of a write by which an admin replays dead letters, or discards letters.

    Attributes:
        ids: those of the events; None for all that are dead.
        changed: how many letters were changed, when it is done.

    """

    hook: str
    deed: Deed
    ids: frozenset[str] | None
    stamp: bytes
    changed: int = 0

    def __call__(self, _: WriteApplier, transaction: Transaction, write: Write) -> Outcome:
        """Do it."""
        self.changed = 0
        for at in paused(list(find_letters(transaction, self.hook)), LETTERS_AT_ONCE):
            letter = self._find(transaction, at)
            if letter is None:
                continue
            self.changed += 1
            if self.deed == "discard":
                transaction.delete(_key(self.hook, at))
            else:
                replayed = attrs.evolve(letter, is_dead=False, failures=0)
                put_letter(transaction, self.hook, replayed)
        transaction.put(LETTERS, seal(LETTERS, self.stamp.hex().encode()))
        return Outcome(write.edit, None, None, None, has_changed_rows=True)

    def _find(self, transaction: Transaction, at: Order) -> Letter | None:
        """Return the letter at a place if it is one of those that are changed."""
        try:
            letter = read_letter(transaction, self.hook, at)
        except DamagedRow:
            if self.deed == "discard" and self.ids is None:
                transaction.delete(_key(self.hook, at))
            return None
        if letter is None or not letter.is_dead:
            return None
        return letter if self.ids is None or letter.message.event_id in self.ids else None


def read_letters(view: ReadView, hook: str, places: Iterable[Order]) -> Iterator[Letter]:
    """Yield the letters that can be read; raises nothing."""
    for at in places:
        try:
            letter = read_letter(view, hook, at)
        except DamagedRow:
            continue
        if letter is not None:
            yield letter


def _range(hook: str) -> tuple[bytes, bytes]:
    return LETTERS + hook.encode() + b"\0", LETTERS + hook.encode() + b"\1"


def _key(hook: str, at: Order) -> bytes:
    return LETTERS + hook.encode() + b"\0" + _PLACE.pack(*at)
