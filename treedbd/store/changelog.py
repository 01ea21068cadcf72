"""The change log: what an entry holds of a committed edit, as bytes, and how long entries are kept.

An entry holds the request with its server values resolved: method, place, the body as it was sent,
and the time; not what became of the tree. A reader makes the same edit from it, with `tree.edit`,
and from the edit the same events. A body that is too large for the log is left out; then the entry
only says where something was written. The engine numbers the entries.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any, Final

import attrs
import orjson

from treedbd.limits import KIB
from treedbd.names import Origin
from treedbd.store import cursors
from treedbd.store.cursors import Held
from treedbd.store.engine import LogEntry, ReadView, Transaction
from treedbd.store.hooks import Kind
from treedbd.tree.edit import ANY_LENGTH, Edit, Method, changes_as_sent, make_patch, make_put
from treedbd.tree.event import Commit, CommittedChange, Position
from treedbd.tree.types import STORED, Chunks, Json, Path, Place
from treedbd.tree.value import compact, parse

MAX_ENTRY_BYTES: Final = 65_536
"""The longest entry; a longer one is written without its body."""
TRIM_EVERY: Final = 64
"""Old entries are dropped this many at a time."""
FOLLOWED: Final = 64
"""Entries after which the body of a long one is no longer needed."""
FOLLOWED_LARGE: Final = 4
"""The same of one that is longer than `LARGE_BYTES`."""
LARGE_BYTES: Final = 1_048_576
LOOKED_THROUGH: Final = 4 * TRIM_EVERY
"""Entries that are looked through for long ones whose body is no longer needed: those before them
have been looked through before, unless others have written them all. They are dropped in time."""
READ_AT_ONCE: Final = 64
READ_BYTES: Final = 256 * KIB
"""How many entries, and bytes of them, are read in one step."""
FOLLOWED_ENTRIES: Final = 4096
"""Entries that are kept at least where other processes follow the log."""
NOTHING_PUSHED: Final = -1
MAX_LARGE_CHANGES: Final = 10_000
"""Changes of a large write that are kept apart."""
MAX_DECODED_NODES: Final = 10_000
"""Members and items of a body that are brought into normal form at once."""
_SENT: Final = b',"sent":'
_EVENTS: Final = b'"events":"'
_NODE_MARKS: Final = (b",", b"{", b"[")
_KINDS: Final[tuple[tuple[str, type[Any]], ...]] = (
    *(("uid", str), ("rules", str), ("size", int), ("pushed", int), ("events", str)),
    *(("is_admin", bool), ("is_priority", bool), ("is_printed", bool)),
    ("from", list),
)
"""The kinds of the members that an entry may have."""


@attrs.frozen
class NotRetained:
    """An edit whose body the log does not hold; it wrote at `place` or below it."""

    method: Method
    place: Place


@attrs.frozen
class Writer:
    """Who wrote: the uid of the caller, None without one; an admin has no uid of its own.

    `origin` is None unless writes are audited.
    """

    uid: str | None = None
    is_admin: bool = False
    origin: Origin | None = None


ANONYMOUS: Final = Writer()


def encode(
    edit: Edit,
    now: int,
    max_bytes: int = MAX_ENTRY_BYTES,
    *,
    writer: Writer = ANONYMOUS,
    printed: bytes | None = None,
    size: int = 0,
    rules: str = "",
    pushed: int = NOTHING_PUSHED,
    events: str = "",
) -> bytes:
    """Return the entry of an edit whose server values are resolved.

    `now` is the time of the request in milliseconds since 1970. Of an edit without values the body
    is `printed`, if it is there, and has `size` bytes. `rules` is the fingerprint of the rules that
    were in force, by which `resume` knows whether a client could read the write then. `pushed` is
    the millisecond of the newest push id; it is in the entry if it is later than `now`, which it is
    while the clock is slow. `events` is what `print_events` returns. An entry longer than
    `max_bytes` is encoded without its body. Raises ValueError if there are server values left.
    """
    if edit.has_placeholders:
        raise ValueError("Server values must be resolved before an edit is logged.")
    path, is_priority = edit.place
    entry: dict[str, Any] = {"time": now, "method": edit.method, "path": path}
    if writer.uid is not None:
        entry["uid"] = writer.uid
    if writer.is_admin:
        entry["is_admin"] = True
    if writer.origin is not None:
        entry["from"] = writer.origin.to_json()
    if rules:
        entry["rules"] = rules
    if pushed > now:
        entry["pushed"] = pushed
    if events:
        entry["events"] = events
    if printed is not None:
        entry["is_printed"] = True
    if is_priority:
        entry["is_priority"] = True
    is_stored = bool(edit.changes) and edit.changes[0].value is STORED  # then all are
    sent = printed if is_stored else compact(edit.sent)
    entry["size"] = size if sent is None else len(sent)
    content = orjson.dumps(entry)
    if events:
        max_bytes += room_for(events)
    if sent is None or len(content) + len(sent) + len(_SENT) > max_bytes:
        return content[:-1] + b"}"  # a copy of its own size, since an engine in memory keeps it
    return content[:-1] + _SENT + sent + b"}"


def room_for(events: str) -> int:
    """Return how many bytes events may take in an entry: beside them its body has as much room."""
    return 2 * len(events)


@attrs.frozen
class LoggedEntry:
    """One write as an admin reads it in the log.

    `time` is in milliseconds since 1970, `size` in bytes; None if the entry is of a version that
    did not record it. `sent` is what was written, if the entry `has_body`.
    """

    sequence: int
    time: int
    writer: Writer
    method: Method
    place: Place
    size: int | None
    has_body: bool
    sent: Json


def describe_entry(entry: LogEntry) -> LoggedEntry:
    """Return what an entry of the log says; raise ValueError for other bytes."""
    json = _parse_entry(entry.content)
    return LoggedEntry(
        sequence=entry.sequence,
        time=int(json["time"]),
        writer=_writer_in(json),
        method=json["method"],
        place=Place(tuple(json["path"]), json.get("is_priority", False)),
        size=json.get("size"),
        has_body="sent" in json,
        sent=json.get("sent"),
    )


def _writer_in(json: dict[str, Any]) -> Writer:
    sent = json.get("from")
    return Writer(
        uid=json.get("uid"),
        is_admin=json.get("is_admin", False),
        origin=None if sent is None else parse_origin(sent),
    )


def parse_origin(json: Json) -> Origin:
    """Return what an entry says of where its request came from; raise ValueError."""
    match json:
        case [str(address), str() | None as token, str(means)]:
            return Origin(address, token, means)
        case [str(address), str() | None as token, str(means), str(admin)]:
            return Origin(address, token, means, admin)
    raise ValueError("This does not say where a request came from.")


@attrs.frozen
class LoggedEvent:
    """What a write has done to one place that hooks are for.

    `before` and `after` are its values, None for nothing. A value that is too long is `cut`: it is
    not here, and the name of its member is in there.
    """

    path: Path
    before: Json
    after: Json
    cut: frozenset[str] = frozenset()

    @property
    def kind(self) -> Kind:
        """Whether the place was created, updated or deleted."""
        if self.before is None and "before" not in self.cut:
            return "created"
        is_deleted = self.after is None and "after" not in self.cut
        return "deleted" if is_deleted else "updated"


def print_events(printed: Sequence[bytes]) -> str:
    """Return the events of an entry, each of which `print_event` has printed.

    It is one string, in which the mark of the body cannot occur.
    """
    return (b"[" + b",".join(printed) + b"]").decode() if printed else ""


def print_event(
    path: Path, before: bytes | None, after: bytes | None, cut: Sequence[str] = ()
) -> bytes:
    """Print an event; `before` and `after` are JSON, None for what is not there or is `cut`."""
    printed = b'{"path":' + orjson.dumps(path)
    if before is not None:
        printed += b',"before":' + before
    if after is not None:
        printed += b',"after":' + after
    return printed + (b',"cut":' + orjson.dumps(cut) if cut else b"") + b"}"


def events_of(content: bytes) -> list[LoggedEvent]:
    """Return the events of an entry; raise ValueError for bytes that `encode` did not make."""
    head = without_body(content)
    if _EVENTS not in head:
        return []
    try:
        events: Any = parse(orjson.loads(head)["events"].encode())
        return [
            LoggedEvent(
                tuple(each["path"]),
                each.get("before"),
                each.get("after"),
                frozenset(each.get("cut", ())),
            )
            for each in events
        ]
    except (LookupError, TypeError, AttributeError):
        raise ValueError("These are not the events of an entry.") from None


def count_nodes(content: bytes) -> int:
    """Return how many members and items the body of an entry has, rather more than less."""
    body_at = content.find(_SENT) + len(_SENT)
    return sum(content.count(mark, body_at) for mark in _NODE_MARKS)


def decode(content: bytes, max_nodes: int = MAX_DECODED_NODES) -> Edit | NotRetained:
    """Return the edit of an entry; raise ValueError for bytes that `encode` did not make.

    A body with more than `max_nodes` members is not parsed: it is as if it was not retained.
    """
    if len(content) > max_nodes and count_nodes(content) > max_nodes:
        content = without_body(content)
    entry = _parse_entry(content)
    place = Place(tuple(entry["path"]), entry.get("is_priority", False))
    if "sent" not in entry:
        return NotRetained(entry["method"], place)
    if entry["method"] == "put":
        return make_put(place, entry["sent"], ANY_LENGTH)
    return make_patch(place.path, entry["sent"], ANY_LENGTH)


def printed_body(content: bytes) -> tuple[bytes, bytes | None]:
    """Return an entry without its body, and that as watchers receive it, without parsing it.

    The entry as it is, and None, if its body has to be parsed: it is short.
    """
    head = without_body(content)
    if len(head) == len(content) or not orjson.loads(head).get("is_printed", False):
        return content, None
    return head, content[len(head) - 1 + len(_SENT) : -1]


def split_body(content: bytes) -> tuple[NotRetained, bytes | None]:
    """Return where an entry wrote, and its body as it was sent, which is not parsed.

    None if the log does not hold the body. Raises ValueError for other bytes.
    """
    head = without_body(content)
    entry = _parse_entry(head)
    place = Place(tuple(entry["path"]), entry.get("is_priority", False))
    body = content[len(head) - 1 + len(_SENT) : -1] if len(head) < len(content) else None
    return NotRetained(entry["method"], place), body


def rules_of(content: bytes) -> str:
    """Return the fingerprint of the rules that were in force when an entry was written."""
    rules: str = orjson.loads(without_body(content)).get("rules", "")
    return rules


def push_time(rows: ReadView) -> int:
    """Return a millisecond that no push id of the database is later than.

    That is the time of the last entry, or what the entry says: every id is made before its write is
    appended. `NOTHING_PUSHED` if there is no entry, or one that is not valid.
    """
    last = next(rows.entries(rows.sequence() - 1), None)
    return NOTHING_PUSHED if last is None else push_time_of(last)


def push_time_of(last: LogEntry) -> int:
    """Return the same, of the last entry."""
    try:
        entry = orjson.loads(without_body(last.content))
        return max(int(entry["time"]), int(entry.get("pushed", NOTHING_PUSHED)))
    except (ValueError, LookupError, TypeError, AttributeError):
        return NOTHING_PUSHED


def append(
    transaction: Transaction,
    op_id: bytes,
    content: bytes,
    retain: int,
    longest: int = MAX_ENTRY_BYTES,
    held: Callable[[Transaction], Held] = cursors.held,
) -> int:
    """Append an entry, and drop old ones so that at least the newest `retain` stay.

    An entry of more than `longest` bytes has its body for those only who follow the log, and is cut
    when `FOLLOWED` others have come after it, or `FOLLOWED_LARGE`. What cursors need, as `held`
    returns it, is neither dropped nor cut. Returns its sequence number.
    """
    sequence = transaction.append(op_id, content)
    is_due = sequence % TRIM_EVERY == 0
    if not is_due and len(content) <= longest:
        return sequence
    cursors.count_entries(transaction, sequence)
    needed = held(transaction)
    _shorten(transaction, min(sequence - FOLLOWED, needed.whole_through), longest)
    if is_due or len(content) > max(longest, LARGE_BYTES):
        through = min(sequence - FOLLOWED_LARGE, needed.whole_through)
        _shorten(transaction, through, max(longest, LARGE_BYTES))
    if is_due:
        # One more than can be missed: it shows that a position belongs to this history.
        transaction.trim(max(0, min(sequence - retain - 1, needed.through)))
    return sequence


def read_some(view: ReadView, after: int) -> list[LogEntry]:
    """Return the next entries after a number: `READ_AT_ONCE`, of `READ_BYTES`, but one at least."""
    found, size = list[LogEntry](), 0
    for entry in islice(view.entries(after), READ_AT_ONCE):
        size += len(entry.content)
        if found and size > READ_BYTES:
            break
        found.append(entry)
    return found


def _shorten(transaction: Transaction, through: int, longest: int) -> None:
    transaction.shorten(through - LOOKED_THROUGH, through, longest, without_body)


def commit_of(sequence: int, edit: Edit, op_id: bytes = b"", size: int = 0) -> Commit:
    """Return a resolved edit as the commit that its watchers are notified of.

    `sequence`, `op_id` and `size` are the number, the id and the bytes of its entry.
    """
    is_complete = True
    changes = []
    for change, sent in changes_as_sent(edit):
        path, is_priority = change.place
        if is_priority:
            is_complete = False
        value = None if is_priority else change.value
        changes.append(CommittedChange(path, value, is_priority, sent))
    return Commit(
        position=Position(sequence, op_id),
        method=edit.method,
        path=edit.place.path,
        changes=tuple(changes),
        is_complete=is_complete,
        size=size,
    )


def large_commit_of(
    sequence: int, edit: Edit, op_id: bytes = b"", printed: Chunks | None = None, size: int = 0
) -> Commit:
    """Return a large edit, whose values are in the store only, as a commit.

    Of very many changes, all that is below its place counts as written.
    """
    changes: list[CommittedChange] = []
    for change in edit.changes:
        if len(changes) == MAX_LARGE_CHANGES:
            changes = [CommittedChange(edit.place.path, None)]
            break
        path, is_priority = change.place
        changes.append(CommittedChange(path, None, is_priority))
    return Commit(
        Position(sequence, op_id),
        edit.method,
        edit.place.path,
        tuple(changes),
        is_large=True,
        printed=printed,
        size=size,
    )


def is_whole(content: bytes) -> bool:
    """Return whether an entry has its body."""
    return _SENT in content


def without_body(content: bytes) -> bytes:
    """Return an entry as it is without its body.

    Nothing is parsed: within a string a quotation mark has a backslash before it.
    """
    at = content.find(_SENT)
    return content if at < 0 else content[:at] + b"}"


def cut_body(content: bytes) -> tuple[bytes, bytes | None]:
    """Return an entry without its body, and its body as JSON; None if it has none."""
    at = content.find(_SENT)
    return (content, None) if at < 0 else (content[:at] + b"}", content[at + len(_SENT) : -1])


def _parse_entry(content: bytes) -> dict[str, Any]:
    """Parse an entry; raise ValueError for other bytes, or damaged ones."""
    entry: Any = parse(content)
    is_entry = (
        isinstance(entry, dict)
        and entry.get("method") in ("put", "patch")
        and isinstance(entry.get("path"), list)
        and all(isinstance(key, str) for key in entry["path"])
        and isinstance(entry.get("time"), int)
        and all(isinstance(entry.get(name, kind()), kind) for name, kind in _KINDS)
    )
    if not is_entry:
        raise ValueError("This is not an entry of the change log.")
    return entry  # type: ignore[no-any-return]  # all of it was checked
