"""An event as receivers see it: its JSON, and the headers that come with it, one a signature.

The id of an event is made of its database, the number of its write, its place among the events of
that write, and the id of the write, so it is the same each time the event is sent, by whichever
process; and no other event has it, although a database that was deleted or restored counts its
writes from an earlier number on. The signature is
that of the bytes that are sent, and of the time at which they are: an attacker who has seen a
request cannot send it again later.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any, Final

import attrs

from treedbd import __version__
from treedbd.hooks.functions import content_type, shape
from treedbd.names import DatabaseName
from treedbd.store.changelog import LoggedEvent, describe_entry, events_of, without_body
from treedbd.store.engine import LogEntry
from treedbd.store.hooks import Form, Hook
from treedbd.tree.path import format_path
from treedbd.tree.types import Path
from treedbd.tree.value import compact

SIGNATURE: Final = "X-TreeDB-Signature"
_UNIQUE_BYTES: Final = 8
"""How much of the id of a write the ids of its events have."""


@attrs.frozen
class Message:
    """An event of a hook.

    Attributes:
        sequence: the number of its write.
        number: its place among the events of that write.
        path: the place whose value has changed.
        kind: `created`, `updated` or `deleted`.
        event_id: its id.
        body: its JSON.

    """

    sequence: int
    number: int
    path: Path
    kind: str
    event_id: str
    body: bytes

    @property
    def order(self) -> tuple[int, int]:
        """By which events are in the order in which they happened."""
        return self.sequence, self.number


def messages_of(
    hook: Hook, name: DatabaseName, entry: LogEntry, host: str = ""
) -> Iterator[Message]:
    """Yield the events of an entry that a hook is for; raise ValueError for other bytes.

    `host` is what follows the label of a database in its address, which functions are given.
    """
    said: dict[str, Any] | None = None
    unique = f"-{entry.op_id[:_UNIQUE_BYTES].hex()}" if entry.op_id else ""
    for number, event in enumerate(events_of(entry.content)):
        captures = hook.on.match(event.path)
        if captures is None or event.kind not in hook.kinds:
            continue
        if said is None:
            said = _describe(entry)
        event_id = f"{name.project}/{name.database}/{entry.sequence}/{number}{unique}"
        json = _show(event, event_id, hook.name, name, captures) | said
        yield Message(
            sequence=entry.sequence,
            number=number,
            path=event.path,
            kind=event.kind,
            event_id=event_id,
            body=compact(shape(hook, json, host)),
        )


def _show(
    event: LoggedEvent, event_id: str, hook: str, name: DatabaseName, captures: dict[str, str]
) -> dict[str, Any]:
    shown: dict[str, Any] = {
        "id": event_id,
        "hook": hook,
        "project": name.project,
        "database": name.database,
        "kind": event.kind,
        "path": format_path(event.path),
        "captures": captures,
        "before": event.before,
        "after": event.after,
    }
    if event.cut:
        shown["cut"] = sorted(event.cut)
    return shown


def _describe(entry: LogEntry) -> dict[str, Any]:
    """Return when an entry was written, and by whom."""
    said = describe_entry(LogEntry(entry.sequence, entry.op_id, without_body(entry.content)))
    return {
        "seq": entry.sequence,
        "time": show_ms(said.time),
        "uid": said.writer.uid,
        "admin": said.writer.is_admin,
    }


def make_test(hook: Hook, name: DatabaseName, now_ms: int, unique: str) -> Message:
    """Return an event that has not happened, by which an admin tries a hook."""
    names = dict.fromkeys(hook.on.names, "test")
    path = tuple("test" if key is None else key for key in hook.on.keys)
    event_id = f"{name.project}/{name.database}/test/{unique}"
    event = LoggedEvent(path, None, None)
    json = _show(event, event_id, hook.name, name, names)
    json |= {"kind": "test", "seq": 0, "time": show_ms(now_ms), "uid": None, "admin": True}
    if hook.form != "event":
        json["kind"] = min(hook.kinds)  # functions know no others
    body = compact(shape(hook, json, ""))
    return Message(sequence=0, number=0, path=path, kind="test", event_id=event_id, body=body)


def headers_of(
    message: Message, secrets: Sequence[str], now_ms: int, attempt: int, form: Form = "event"
) -> list[tuple[str, str]]:
    """Return the headers of a message that is sent now, for the `attempt`-th time from 1.

    `form` is that of its body.
    """
    timestamp = str(now_ms // 1000)
    headers = [
        ("Content-Type", content_type(form)),
        ("User-Agent", f"treedb/{__version__}"),
        ("X-TreeDB-Event", message.kind),
        ("X-TreeDB-Event-Id", message.event_id),
        ("X-TreeDB-Timestamp", timestamp),
        ("X-TreeDB-Attempt", str(attempt)),
    ]
    if secrets:
        signed = [f"v1={sign(each, timestamp, message.body)}" for each in secrets]
        headers.append((SIGNATURE, ",".join(signed)))
    return headers


def sign(secret: str, timestamp: str, body: bytes) -> str:
    """Return the signature of a body that is sent at a time, in hexadecimal digits."""
    signed = timestamp.encode() + b"." + body
    return hmac.new(secret.encode(), signed, hashlib.sha256).hexdigest()


def show_ms(time_ms: int) -> str:
    """Return milliseconds since 1970 as in `2026-11-29T11:00:00.000Z`."""
    shown = datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(timespec="milliseconds")
    return shown.replace("+00:00", "Z")
