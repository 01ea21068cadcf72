"""Conditions and entity tags of writes: what is compared, and the tag of what a write leaves.

A tag of a large value is computed from its rows, in steps. The tag of what a PUT, POST or DELETE
leaves is known before anything is applied, if it is small; all others only afterwards. A condition
that is not met shows the current value, if that is no larger than `MAX_SHOWN_BYTES`.
"""

from __future__ import annotations

from typing import Final

from treedbd.database.requests import Condition, ConditionFailed, HashCondition, TooLarge
from treedbd.limits import KIB, MAX_SHOWN_BYTES
from treedbd.loop import pause
from treedbd.rules.context import KeptReads
from treedbd.store.nodes import Nodes, etag_in_steps, hash_at
from treedbd.store.rows import is_surely_longer
from treedbd.tree import value
from treedbd.tree.edit import Edit
from treedbd.tree.hashes import etag
from treedbd.tree.types import Chunks, Path, Place
from treedbd.tree.value import compact

_AT_ONCE_BYTES: Final = 64 * KIB
"""The tag of a longer value is computed from its rows."""
_KEPT_STEPS: Final = 64
"""A tag that is computed in fewer steps is not kept."""


def check_condition(nodes: Nodes, condition: Condition | HashCondition, kept: KeptReads) -> None:
    """Raise `ConditionFailed` unless the condition of a write is met.

    `kept` is what was computed of large values before. Raises `TooLarge` for the hash of a value
    that is too large to be hashed.
    """
    if isinstance(condition, HashCondition):
        _check_hash(nodes, condition, kept)
        return
    place, etags = condition.place, condition.etags
    exists = not place.is_priority and nodes.peek(place.path) is not None
    if etags.is_any and exists:
        return
    present = _etag_at(nodes, place, kept)
    if place.is_priority:
        exists = nodes.priority(place.path) is not None
    if not etags.matches(present, exists):
        raise ConditionFailed(_print_current(nodes, place), present)


def find_tag(kept: KeptReads, path: Path) -> str | None:
    """Return the entity tag of a large value that is kept, None if it is not."""
    known = kept.find(("etag", path))
    return None if known is None else known.result


def keep_tag(kept: KeptReads, path: Path, tag: str) -> None:
    """Keep the entity tag of a value of the durable state, or of the open transaction."""
    kept.keep(("etag", path), tag, 0)


def _check_hash(nodes: Nodes, condition: HashCondition, kept: KeptReads) -> None:
    place = condition.place
    known = None if place.is_priority else kept.find(("hash", place.path))
    present = hash_at(nodes, place) if known is None else known.result
    if present is None:
        raise TooLarge(f"A value of more than {MAX_SHOWN_BYTES} bytes cannot be compared by hash.")
    if known is None and not place.is_priority and nodes.is_spread(place.path):
        kept.keep(("hash", place.path), present, 0)
    if present != condition.data_hash:
        raise ConditionFailed(None, present)


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


def _etag_at(nodes: Nodes, place: Place, kept: KeptReads | None = None) -> str:
    """Compute a tag, pausing between its steps; one of many steps is `kept`."""
    if place.is_priority:
        return etag(nodes.priority(place.path))
    known = None if kept is None else find_tag(kept, place.path)
    if known is not None:
        return known
    for step, tag in enumerate(etag_in_steps(nodes, place.path)):
        if tag is not None:
            if kept is not None and step >= _KEPT_STEPS:
                keep_tag(kept, place.path, tag)
            return tag
        pause()
    raise AssertionError("A tag has an end.")


def _print_current(nodes: Nodes, place: Place) -> Chunks | None:
    """Print the value of a place with pauses; None if it is too large to be shown."""
    if place.is_priority:
        return (compact(nodes.priority(place.path)),)
    chunks = []
    size = 0
    for chunk in nodes.chunks(place.path):
        chunks.append(chunk)
        size += len(chunk)
        if size > MAX_SHOWN_BYTES:
            return None
        pause()
    return tuple(chunks)
