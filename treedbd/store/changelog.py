"""What the change log says about a committed edit, as bytes.

An entry tells what was asked for, server values resolved: method, place, the body as it was sent,
and the time of the request; not what became of the tree. Whoever reads it makes the same edit of
it again, with `tree.edit`, and tells watchers the same. A body that is too large for the log is
left out; then the entry only tells where something happened, and whoever must know more reads the
tree. The numbering of entries belongs to the mapping.
"""

from __future__ import annotations

from typing import Any, Final

import attrs
import orjson

from treedbd.store.row import is_surely_longer
from treedbd.tree.body import ANY_LENGTH
from treedbd.tree.edit import Edit, Method, make_patch, make_put
from treedbd.tree.path import Place
from treedbd.tree.printing import compact, parse
from treedbd.tree.value import Json

MAX_ENTRY_BYTES: Final = 65_536
"""How long an entry may be by default before its body is left out."""
_LEAST_MEMBER: Final = len('"k":1,')


@attrs.frozen
class NotRetained:
    """An edit whose body the log does not hold: something was written at `place` or below it."""

    method: Method
    place: Place


def encode(edit: Edit, now: int, max_bytes: int = MAX_ENTRY_BYTES, *, rules: str = "") -> bytes:
    """Return the entry of an edit whose server values are resolved.

    `now` is the time of the request in milliseconds since 1970, `rules` names the rules that held
    when it was written, for those who later ask whether they might have heard of it. An entry
    longer than `max_bytes` is made without its body. Raises `ValueError` where server values are
    left.
    """
    if edit.has_placeholders:
        raise ValueError("Server values must be resolved before an edit is logged.")
    entry: dict[str, Any] = {"time": now, "method": edit.method, "path": edit.place.path}
    if rules:
        entry["rules"] = rules
    if edit.place.of_priority:
        entry["of_priority"] = True
    is_longer = len(edit.changes) * _LEAST_MEMBER > max_bytes or any(
        is_surely_longer(change.value, max_bytes) for change in edit.changes
    )
    if not is_longer:
        content = compact({**entry, "sent": edit.sent})
        if len(content) <= max_bytes:
            return content
    return compact(entry)


def decode(content: bytes) -> Edit | NotRetained:
    """Return the edit of an entry; raise `ValueError` for bytes that `encode` did not make."""
    try:
        entry = parse(content)
        method: Method = entry["method"]
        place = Place(tuple(entry["path"]), entry.get("of_priority", False))
        if "sent" not in entry:
            return NotRetained(method, place)
        make = {"put": _make_put, "patch": _make_patch}[method]
    except (LookupError, TypeError, AttributeError):
        raise ValueError("This is no entry of the change log.") from None
    return make(place, entry["sent"])


def rules_of(content: bytes) -> str:
    """Return the name of the rules that held when an entry was written."""
    rules: str = orjson.loads(content).get("rules", "")
    return rules


def trim_to(last: int, retain: int) -> int:
    """Return up to which number to forget entries, so that of `last` the newest `retain` stay."""
    return max(0, last - retain)


def _make_put(place: Place, body: Json) -> Edit:
    return make_put(place, body, ANY_LENGTH)


def _make_patch(place: Place, body: Json) -> Edit:
    return make_patch(place.path, body, ANY_LENGTH)
