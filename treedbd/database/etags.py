"""Conditions and entity tags of writes: what is compared, and the tag of what a write leaves.

A tag of a large value is computed from its rows, in steps. The tag of what a PUT, POST or DELETE
leaves is known before anything is applied, if it is small; all others only afterwards. A condition
that is not met shows the current value, if that is no larger than `MAX_SHOWN_BYTES`.
"""

from __future__ import annotations

from typing import Final

from treedbd.database.errors import ConditionFailed, TooLarge
from treedbd.database.requests import Condition, HashCondition
from treedbd.limits import KIB, MAX_SHOWN_BYTES
from treedbd.pauses import pause
from treedbd.store.canonical import etag_in_steps
from treedbd.store.hashing import hash_at
from treedbd.store.nodes import Nodes
from treedbd.store.row_codec import is_surely_longer, parse_stored
from treedbd.tree import value
from treedbd.tree.edit import Edit
from treedbd.tree.etag import etag
from treedbd.tree.types import Json, Place

_AT_ONCE_BYTES: Final = 64 * KIB
"""The tag of a longer value is computed from its rows."""


def check_condition(nodes: Nodes, condition: Condition | HashCondition) -> None:
    """Raise `ConditionFailed` unless the condition of a write is met.

    Raises `TooLarge` for the hash of a value that is too large to be hashed.
    """
    if isinstance(condition, HashCondition):
        _check_hash(nodes, condition)
        return
    place, etags = condition.place, condition.etags
    exists = not place.is_priority and nodes.peek(place.path) is not None
    if etags.is_any and exists:
        return
    present = _etag_at(nodes, place)
    if place.is_priority:
        exists = nodes.priority(place.path) is not None
    if not etags.matches(present, exists):
        current, is_shown = _current(nodes, place)
        raise ConditionFailed(current, present, is_shown)


def _check_hash(nodes: Nodes, condition: HashCondition) -> None:
    present = hash_at(nodes, condition.place)
    if present is None:
        raise TooLarge(f"A value of more than {MAX_SHOWN_BYTES} bytes cannot be compared by hash.")
    if present != condition.data_hash:
        raise ConditionFailed(None, present, is_shown=False)


def etag_before_write(edit: Edit) -> str | None:
    """Return the tag of what a write will leave, None if only the result shows it."""
    if edit.place.is_priority or edit.method == "patch":
        return None
    content = edit.changes[0].value
    if content is not None and is_surely_longer(content, _AT_ONCE_BYTES):
        return None
    return etag(value.plain(content))


def etag_after_write(nodes: Nodes, edit: Edit) -> str:
    """Return the tag of what a write has left."""
    return _etag_at(nodes, edit.place)


def _etag_at(nodes: Nodes, place: Place) -> str:
    """Compute a tag, pausing between its steps."""
    if place.is_priority:
        return etag(nodes.priority(place.path))
    for tag in etag_in_steps(nodes, place.path):
        if tag is not None:
            return tag
        pause()
    raise AssertionError("A tag has an end.")


def _current(nodes: Nodes, place: Place) -> tuple[Json, bool]:
    """Return the value of a place, and whether it is small enough to be shown."""
    if place.is_priority:
        return nodes.priority(place.path), True
    chunks = []
    size = 0
    for chunk in nodes.chunks(place.path):
        chunks.append(chunk)
        size += len(chunk)
        if size > MAX_SHOWN_BYTES:
            return None, False
        pause()
    return parse_stored(b"".join(chunks)), True
