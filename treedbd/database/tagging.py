"""Entity tags of writes: what a condition compares, and the tag of what a write leaves.

A tag is made of a whole value at once, so one larger than `MOST_TAGGED_BYTES` has none. A write
that must compare the tag of such a value is refused. Of what a PUT, POST or DELETE leaves, the
tag is known before anything is applied; of what a PATCH leaves, only afterwards.
"""

from __future__ import annotations

from treedbd.database.question import Condition, ConditionFailed, TooLarge, Write
from treedbd.store.nodes import Nodes
from treedbd.store.row import parse_stored
from treedbd.tree import value
from treedbd.tree.canonical import MOST_TAGGED_BYTES, canonicalise, tag, tag_of
from treedbd.tree.edit import Edit
from treedbd.tree.path import Place
from treedbd.tree.printing import compact


def check(nodes: Nodes, condition: Condition) -> None:
    """Raise `ConditionFailed`, or `TooLarge`, unless the condition of a write is met."""
    place, tags = condition.place, condition.tags
    if tags.is_any and nodes.peek(place.path) is not None and not place.of_priority:
        return
    current = parse_stored(_print(nodes, place))
    present = tag(current)
    if not tags.matches(present, current is not None):
        raise ConditionFailed(current, present)


def tag_ahead(nodes: Nodes, write: Write, done: Edit) -> str | None:
    """Return the tag of what a write will leave, None if that must be seen first.

    Raises `TooLarge` where the write must tell a tag and it is plain already that there is none.
    """
    if done.place.of_priority:
        return None
    if done.method == "patch":
        if write.must_tag:
            _print(nodes, done.place)
        return None
    text = canonicalise(value.plain(done.changes[0].value))
    if len(text) <= MOST_TAGGED_BYTES:
        return tag_of(text)
    if write.must_tag:
        raise _too_large()
    return None


def tag_after(nodes: Nodes, done: Edit) -> str | None:
    """Return the tag of what a write has left; None for what is too large."""
    try:
        return tag(parse_stored(_print(nodes, done.place)))
    except TooLarge:
        return None


def _print(nodes: Nodes, place: Place) -> bytes:
    """Return what a plain GET of `place` prints; raise `TooLarge`."""
    if place.of_priority:
        return compact(nodes.priority(place.path))
    pieces = []
    size = 0
    for piece in nodes.pieces(place.path):
        pieces.append(piece)
        size += len(piece)
        if size > MOST_TAGGED_BYTES:
            raise _too_large()
    return b"".join(pieces)


def _too_large() -> TooLarge:
    return TooLarge(f"More than {MOST_TAGGED_BYTES} bytes have no tag.")
