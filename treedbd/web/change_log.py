"""The change log as admins read it: who wrote where and when, `/.settings/log.json`.

`startAfter` is the number after which it begins, by default so that the newest writes are shown;
`limitToFirst` is how many are shown. With `format=export` the bodies are shown too, as far as the
log has kept them. An answer that would be long ends early: the next one begins after its last
number.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from datetime import UTC, datetime
from typing import Any, Final, Protocol, TypeVar

from treedbd.limits import KIB, MIB
from treedbd.store.changelog import LoggedEntry, describe_entry
from treedbd.store.engine import LogEntry
from treedbd.store.nodes import Nodes, PresentNodes
from treedbd.tree.path import format_path
from treedbd.tree.query import parse_limit
from treedbd.tree.types import PRIORITY, InvalidQuery, Json
from treedbd.tree.value import compact
from treedbd.web.request import Dialect, Parameters, parse_choice

T = TypeVar("T")

DEFAULT_ENTRIES: Final = 100
MAX_ENTRIES: Final = 1000
ANSWER_BYTES: Final = 8 * MIB
"""Bytes of entries beyond which an answer ends."""
STEP_BYTES: Final = 256 * KIB
"""Bytes of entries that are read in one step."""
_MAX_NUMBER_DIGITS: Final = 18


class ReadsLog(Protocol):
    """What the log is read of: `database.Database`."""

    def read(self, work: Callable[[PresentNodes], T]) -> T:
        """Run `work` on the last durable state and return its result."""


def print_log(
    database: ReadsLog, parameters: Parameters, layout: Dialect | None
) -> Generator[None, None, bytes]:
    """Print the entries that a request asks for in steps, oldest first; raise `InvalidQuery`.

    They are indented if there is a `layout`.
    """
    entries = _entries(database, parameters)
    chunks = entries if layout is None else layout.indent(entries)
    printed = []
    for chunk in chunks:
        printed.append(chunk)
        yield
    return b"".join(printed)


def _entries(database: ReadsLog, parameters: Parameters) -> Iterator[bytes]:
    """Print entries, each in a step; some chunks are empty."""
    limit = min(parse_limit(parameters, "limitToFirst") or DEFAULT_ENTRIES, MAX_ENTRIES)
    with_body = parse_choice(parameters, "format", "export") is not None
    after = _parse_number(parameters.get("startAfter"))
    if after is None:
        after = max(0, database.read(lambda nodes: nodes.rows.sequence()) - limit)
    count = size = 0
    separator = b"["
    while count < limit and size < ANSWER_BYTES:
        entries = _read_some(database, after, limit - count)
        if not entries:
            break
        yield b""
        for entry in entries:
            yield separator + compact(_show(describe_entry(entry), with_body=with_body))
            separator = b","
            size += len(entry.content) if with_body else 0
        count += len(entries)
        after = entries[-1].sequence
    yield b"]" if count else b"[]"


def _read_some(database: ReadsLog, after: int, count: int) -> list[LogEntry]:
    def read(nodes: Nodes) -> list[LogEntry]:
        found = []
        size = 0
        for entry in nodes.rows.entries(after):
            found.append(entry)
            size += len(entry.content)
            if len(found) == count or size >= STEP_BYTES:
                break
        return found

    return database.read(read)


def _show(entry: LoggedEntry, *, with_body: bool) -> Json:
    path, is_priority = entry.place
    is_removal = entry.has_body and entry.sent is None
    shown: dict[str, Any] = {
        "seq": entry.sequence,
        "time": datetime.fromtimestamp(entry.time / 1000, UTC).isoformat(timespec="milliseconds"),
        "uid": entry.writer.uid,
        "method": "DELETE" if is_removal else entry.method.upper(),
        "path": format_path((*path, PRIORITY) if is_priority else path),
        "size": entry.size,
    }
    if entry.writer.is_admin:
        shown["admin"] = True
    if with_body:
        shown["kept"] = entry.has_body
        shown["data"] = entry.sent
    return shown


def _parse_number(text: str | None) -> int | None:
    if text is None:
        return None
    if not text.isdecimal() or not text.isascii() or len(text) > _MAX_NUMBER_DIGITS:
        raise InvalidQuery("startAfter must be the number of a write, as the log shows it.")
    return int(text)
