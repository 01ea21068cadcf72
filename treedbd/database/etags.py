"""Entity tags of writes: what a condition compares, and the tag of what a write leaves.

A tag is computed from a whole value at once, so a value larger than `MAX_TAGGED_BYTES` has none. A
write that must compare the tag of such a value is refused. The tag of what a PUT, POST or DELETE
leaves is known before anything is applied; that of what a PATCH leaves, only afterwards.
"""

from __future__ import annotations

from treedbd.database.errors import ConditionFailed, TooLarge
from treedbd.database.requests import Condition, Write
from treedbd.limits import MAX_TAGGED_BYTES
from treedbd.store.nodes import Nodes
from treedbd.store.row_codec import parse_stored
from treedbd.tree import value
from treedbd.tree.edit import Edit
from treedbd.tree.etag import canonicalise, etag, etag_of_canonical
from treedbd.tree.printing import compact
from treedbd.tree.types import Place


def check_condition(nodes: Nodes, condition: Condition) -> None:
    """Raise `ConditionFailed` or `TooLarge` unless the condition of a write is met."""
    place, etags = condition.place, condition.etags
    if etags.is_any and nodes.peek(place.path) is not None and not place.is_priority:
        return
    current = parse_stored(_print(nodes, place))
    present = etag(current)
    if not etags.matches(present, current is not None):
        raise ConditionFailed(current, present)


def etag_before_write(nodes: Nodes, write: Write, edit: Edit) -> str | None:
    """Return the tag of what a write will leave, None if only the result shows it.

    Raises `TooLarge` if the write must have a tag and it is known that there is none.
    """
    if edit.place.is_priority:
        return None
    if edit.method == "patch":
        if write.must_have_etag:
            _print(nodes, edit.place)
        return None
    text = canonicalise(value.plain(edit.changes[0].value))
    if len(text) <= MAX_TAGGED_BYTES:
        return etag_of_canonical(text)
    if write.must_have_etag:
        raise TooLarge
    return None


def etag_after_write(nodes: Nodes, edit: Edit) -> str | None:
    """Return the tag of what a write has left; None for a value that is too large."""
    try:
        return etag(parse_stored(_print(nodes, edit.place)))
    except TooLarge:
        return None


def _print(nodes: Nodes, place: Place) -> bytes:
    """Return the JSON of a plain GET of `place`; raise `TooLarge`."""
    if place.is_priority:
        return compact(nodes.priority(place.path))
    chunks = []
    size = 0
    for chunk in nodes.chunks(place.path):
        chunks.append(chunk)
        size += len(chunk)
        if size > MAX_TAGGED_BYTES:
            raise TooLarge
    return b"".join(chunks)
