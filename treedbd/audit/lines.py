"""What the lines of the audit say.

A line is a JSON object; of what a client sent it has places, and bodies only if the settings ask
for that. Its members, of which those that do not apply are left out:

    time        when the request was received
    kind        write; denied (a write); read, settings, token (of an admin); begin; lost; removed
    project, database
    seq, op     the number of a write in the change log, and its id: together they name it
    uid, admin  the caller
    as          the uid as which an admin has sent it, null for none (`auth_variable_override`)
    from        the address of the client, as the request log shows it; null without one
    token_id    which token, never the token (`web.auth.identity.name_token`)
    means       http, socket, end, local or expiry (`names.Origin`)
    method, path, size, data
    error       the code of the error of a denied write
    status      of the response to a request for a setting
    made        the uid of a token that was made, and its id

`begin` says from where on the writes of a database are here: `after` the number of one, and with a
`reason` if others before it may be missing. `lost` says how many requests, of those that are
recorded as such, are missing here (`count`).
"""

from __future__ import annotations

from typing import Any, Final, Literal, TypeAlias

import attrs
import orjson

from treedbd.audit.series import show_time
from treedbd.names import DatabaseName, Origin
from treedbd.store.changelog import Writer, cut_body
from treedbd.store.engine import LogEntry
from treedbd.tree.path import format_path
from treedbd.tree.types import PRIORITY

Kind: TypeAlias = Literal["write", "denied", "read", "settings", "token", "begin"]

_REMOVAL: Final = b"null"


def print_write(name: DatabaseName, entry: LogEntry, body_bytes: int) -> bytes:
    """Return the line of an entry of the change log, with a body of at most `body_bytes`."""
    head, body = cut_body(entry.content)
    try:
        printed = _print_head(name, entry, orjson.loads(head), is_removal=body == _REMOVAL)
    except (ValueError, LookupError, TypeError, AttributeError):
        return print_begin(name, 0, entry.sequence, "this entry of the change log is damaged")
    if body is None or len(body) > body_bytes or b"\n" in body:
        return printed
    return printed[:-1] + b',"data":' + body + b"}"


def _print_head(name: DatabaseName, entry: LogEntry, json: Any, *, is_removal: bool) -> bytes:
    """Print the members of an entry; raise what `json` of another form makes it raise.

    It is done for each write: `changelog.describe_entry`, which checks all, takes much longer.
    """
    line: dict[str, Any] = {
        "time": show_time(json["time"]),
        "kind": "write",
        "project": name.project,
        "database": name.database,
        "seq": entry.sequence,
        "op": entry.op_id.hex(),
    }
    origin = Origin(*json["from"]) if "from" in json else None
    line |= describe_writer(Writer(json.get("uid"), "is_admin" in json, origin))
    line["method"] = "DELETE" if is_removal else json["method"].upper()
    path = format_path(json["path"])
    line["path"] = f"{path.rstrip('/')}/{PRIORITY}" if "is_priority" in json else path
    if "size" in json:
        line["size"] = json["size"]
    return orjson.dumps(line)


def print_begin(name: DatabaseName, now_ms: int, after: int, reason: str | None) -> bytes:
    """Return the line that says from where on the writes of a database are in the audit."""
    line = _begin_line("begin", name, now_ms) | {"after": after}
    if reason is not None:
        line["reason"] = reason
    return orjson.dumps(line)


@attrs.frozen
class Access:
    """A request that is recorded as such: a denied write, or what an admin reads or sets."""

    kind: Kind
    name: DatabaseName
    time: int
    writer: Writer
    method: str
    path: str
    status: int | None = None
    error: str | None = None
    made: dict[str, str | None] | None = None


def print_access(access: Access) -> bytes:
    """Return the line of a request."""
    line = _begin_line(access.kind, access.name, access.time) | describe_writer(access.writer)
    line |= {"method": access.method, "path": access.path}
    if access.status is not None:
        line["status"] = access.status
    if access.error is not None:
        line["error"] = access.error
    if access.made is not None:
        line["made"] = access.made
    return orjson.dumps(line)


def print_lost(now_ms: int, count: int) -> bytes:
    """Return the line that says how many requests could not be recorded."""
    return orjson.dumps({"time": show_time(now_ms), "kind": "lost", "count": count})


def describe_writer(writer: Writer) -> dict[str, Any]:
    """Return the members that say who, from where, and by which token."""
    shown, origin = describe_caller(writer), writer.origin
    if origin is None:
        return shown
    shown["from"] = origin.address or None
    if origin.token is not None:
        shown["token_id"] = origin.token
    return shown | {"means": origin.means}


def describe_caller(writer: Writer) -> dict[str, Any]:
    """Return the members that say who: an admin also if the request was sent as another caller."""
    origin = writer.origin
    if origin is not None and origin.admin is not None:
        return {"uid": origin.admin or None, "admin": True, "as": writer.uid}
    return {"uid": writer.uid, "admin": True} if writer.is_admin else {"uid": writer.uid}


def _begin_line(kind: Kind, name: DatabaseName, time: int) -> dict[str, Any]:
    return {
        "time": show_time(time),
        "kind": kind,
        "project": name.project,
        "database": name.database,
    }


def last_write(line: bytes) -> tuple[DatabaseName, int, bytes] | None:
    """Return the database, the number and the id of a write in the audit; None for other lines."""
    if b'"op":"' not in line:
        return None
    try:
        json: Any = orjson.loads(line)
        name = DatabaseName(json["project"], json["database"])
        return name, int(json["seq"]), bytes.fromhex(json["op"])
    except (ValueError, LookupError, TypeError):
        return None
