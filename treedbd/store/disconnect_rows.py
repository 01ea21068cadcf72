"""Writes that wait for the end of the session that has set them: their rows, beside the tree.

A *session* is a connection or a stream, named by random text; its *owner* is the process that
serves it, as long as that runs. Each write is one row:

    DISCONNECT_FIRST   two bytes, above every row of the tree and of its indexes
    …                  the owner, the session, each followed by `/`
    8 hex digits       a number: the writes of a session are run in this order

The content is JSON with a check sum: who has set the write, and what it sends. Server values are in
it as they were sent. Values for volatile places are not in it, but `null`, and a token by which the
process of the session finds them in its memory (`database.disconnect`). These rows are not data:
they are not served, counted or indexed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple

import attrs

from treedbd.loop import paused
from treedbd.names import Origin
from treedbd.store.changelog import parse_origin
from treedbd.store.engine import DamagedRow, ReadView, Transaction
from treedbd.store.indexes import DISCONNECT_END, DISCONNECT_FIRST
from treedbd.store.rows import seal, unseal
from treedbd.tree.edit import Edit, make_patch, make_put
from treedbd.tree.types import InvalidData, Json, Place
from treedbd.tree.value import compact, parse

_DIGITS: Final = 8
LISTED_AT_ONCE: Final = 64
"""Entries that are listed in one step."""
_ANY_LENGTH: Final = 2**62
"""What is stored was checked when it was set."""


@attrs.frozen
class DisconnectEntry:
    """One write of a session, with its caller; its server values are unresolved.

    `token` names what is kept in memory of it, if it has values for volatile places.
    """

    auth: Json
    is_admin: bool
    edit: Edit
    origin: Origin | None = None
    token: str = ""

    @property
    def size(self) -> int:
        """The bytes of what it sends, and of where."""
        return len(compact([*self.edit.place.path, self.edit.sent]))

    def encode(self) -> bytes:
        """Return the JSON that is stored."""
        path, is_priority = self.edit.place
        json: dict[str, Json] = {
            "auth": self.auth,
            "is_admin": self.is_admin,
            "method": self.edit.method,
            "path": list(path),
            "is_priority": is_priority,
            "sent": self.edit.sent,
        }
        if self.origin is not None:
            json["from"] = self.origin.to_json()
        if self.token:
            json["token"] = self.token
        return compact(json)


class DisconnectRow(NamedTuple):
    """An entry as it is stored: `stored` is the value of the row `key`."""

    key: bytes
    stored: bytes

    def entry(self) -> DisconnectEntry:
        """Return what is stored; raise `DamagedRow`."""
        try:
            json: Any = parse(unseal(self.key, self.stored))
            return _from_json(json)
        except DamagedRow:
            raise
        except (ValueError, LookupError, TypeError, AttributeError, InvalidData):
            raise DamagedRow("A write that was kept for a session cannot be read.") from None

    def has_earlier(self, view: ReadView) -> bool:
        """Return whether another entry of its session comes before it."""
        return next(view.scan_keys(self.key[:-_DIGITS], self.key), None) is not None


def list_owners(view: ReadView) -> Iterator[str]:
    """Yield the owners of all entries, each once, without reading every row."""
    low = DISCONNECT_FIRST
    while (key := next(view.scan_keys(low, DISCONNECT_END), None)) is not None:
        owner = key[len(DISCONNECT_FIRST) :].partition(b"/")[0]
        yield owner.decode("ascii", "replace")
        low = DISCONNECT_FIRST + owner + b"0"  # the character after the slash


def list_rows(view: ReadView, owner: str, session: str | None = None) -> list[DisconnectRow]:
    """Return the entries of a session in their order, or those of all sessions of an owner.

    Many are listed with pauses.
    """
    prefix = _prefix(owner) if session is None else _prefix(owner, session)
    end = prefix[:-1] + b"0"
    return [DisconnectRow(*row) for row in paused(view.scan(prefix, end), LISTED_AT_ONCE)]


def add_entry(
    transaction: Transaction,
    owner: str,
    session: str,
    entry: DisconnectEntry,
    check: Callable[[Sequence[DisconnectEntry]], None],
) -> bool:
    """Add an entry after the others of its session, of which it replaces what it overwrites.

    `check` is called with the entries that the session then has, and raises what refuses them;
    nothing has changed then. Returns whether anything is stored for the entry: an
    empty PATCH has no effect. Raises `DamagedRow`.
    """
    written = [change.place for change in entry.edit.changes]
    if not written:
        return False
    rows = list_rows(transaction, owner, session)
    kept = [(row, _without(row.entry(), written)) for row in rows]
    every = [entry, *(left for _, left in kept if left is not None)]
    check(every)
    for row, left in kept:
        _replace(transaction, row, left)
    number = int(rows[-1].key[-_DIGITS:], 16) + 1 if rows else 0
    # Not in binary: a key that ends with `PAGE_END` would be that of a page.
    key = _prefix(owner, session) + b"%0*x" % (_DIGITS, number)
    transaction.put(key, seal(key, entry.encode()))
    return True


def cancel_entries(transaction: Transaction, owner: str, session: str, place: Place) -> bool:
    """Remove what the entries of a session write at or below a place; return if there was any.

    Raises `DamagedRow`.
    """
    has_changed = False
    for row in list_rows(transaction, owner, session):
        entry = row.entry()
        left = _without(entry, [place])
        has_changed = has_changed or left is not entry
        _replace(transaction, row, left)
    return has_changed


def check_rows(view: ReadView) -> Iterator[str]:
    """Yield a sentence for each entry that cannot be read."""
    for owner in list_owners(view):
        for row in list_rows(view, owner):
            try:
                row.entry()
            except DamagedRow as error:
                yield str(error)


def _prefix(*parts: str) -> bytes:
    if not all(part.isascii() and part.isalnum() for part in parts):
        raise ValueError("A session and its owner are named by letters and digits.")
    return DISCONNECT_FIRST + b"".join(part.encode() + b"/" for part in parts)


def _replace(transaction: Transaction, row: DisconnectRow, left: DisconnectEntry | None) -> None:
    """Store what is left of an entry, if that is not what is stored."""
    if left is None:
        transaction.delete(row.key)
    elif (stored := seal(row.key, left.encode())) != row.stored:
        transaction.put(row.key, stored)


def _without(entry: DisconnectEntry, places: list[Place]) -> DisconnectEntry | None:
    """Return an entry without what it writes at or below some places, None if nothing is left."""
    edit = entry.edit
    left = [not any(_covers(place, change.place) for place in places) for change in edit.by_member]
    if all(left):
        return entry
    if not any(left):
        return None
    sent: Any = edit.sent
    names = [key for key, is_left in zip(sent, left, strict=True) if is_left]
    return attrs.evolve(entry, edit=select_members(edit, names))


def select_members(edit: Edit, names: Iterable[str]) -> Edit:
    """Return a PATCH that was checked, with these of its members."""
    sent: Any = edit.sent
    return make_patch(edit.place.path, {name: sent[name] for name in names}, _ANY_LENGTH)


def replace_sent(edit: Edit, sent: Json) -> Edit:
    """Return an edit that was checked, with other JSON for the same places."""
    if edit.method == "patch":
        return make_patch(edit.place.path, sent, _ANY_LENGTH)
    return make_put(edit.place, sent, _ANY_LENGTH)


def _covers(upper: Place, lower: Place) -> bool:
    """Return whether a write at one place overwrites all that one at another has written."""
    if upper.is_priority:
        return lower == upper
    return lower.path[: len(upper.path)] == upper.path


def _from_json(json: Any) -> DisconnectEntry:
    path, sent = tuple(json["path"]), json["sent"]
    if json["method"] == "patch":
        edit = make_patch(path, sent, _ANY_LENGTH)
    else:
        edit = make_put(Place(path, json["is_priority"]), sent, _ANY_LENGTH)
    origin = parse_origin(json["from"]) if "from" in json else None
    return DisconnectEntry(
        json["auth"], json["is_admin"], edit, origin, token=json.get("token", "")
    )
