"""Large writes: a body is split into fragments, and each is parsed, checked and applied by itself.

So neither the memory nor the length of a step grows with the body. What is written is in the rows
of the transaction before the rules are evaluated; they see it there as the new data, and the last
durable state as the data before. Whatever refuses the write ends the transaction. The steps end at
the pauses of all that takes part (`pauses`), and the commit that comes of it has no values: who
watches what was written is sent what the rows hold then.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from treedbd.database.requests import LargeBody, Write
from treedbd.loop import pause, paused
from treedbd.store.bulk import BulkPatch, BulkWriter, WritesNodes
from treedbd.tree.edit import Resolver
from treedbd.tree.event import EVENT_BYTES
from treedbd.tree.fragments import Fragment, Splitter
from treedbd.tree.types import Change, Chunks, InvalidData, Place, View


class _Target(Protocol):
    """What fragments are written by."""

    nodes: int
    has_placeholders: bool

    def add(self, fragment: Fragment) -> None:
        """Write a fragment."""
        ...

    def finish(self) -> None:
        """Write what comes last."""
        ...


class AppliedBody:
    """A large body that has been applied to the rows of a transaction.

    Attributes:
        changes: the places that were written, without values.
        has_placeholders: whether there were server values.
        printed: what a PATCH merged as watchers receive it, None if that is too long; of a PUT only
            a long string.
        echo: the same as it was sent.

    """

    def __init__(
        self,
        writer: WritesNodes,
        write: Write,
        body: LargeBody,
        before: View,
        check: Callable[[], None],
    ) -> None:
        """Apply it; `check` is called between fragments and raises if it is too late.

        `before` is the tree before the write. Raises `InvalidData`, and what the body raises.
        """
        place = write.edit.place
        resolver = Resolver(write.now, _reads(before))
        self.changes: Sequence[Change] = write.edit.changes
        self.printed: Chunks | None = None
        self.echo: Chunks | None = None
        if write.edit.method == "put":
            put = BulkWriter(writer, place.path, resolver, body.max_string_bytes)
            _apply(put, body, check)
            self.has_placeholders = put.has_placeholders
            self.printed = put.printed
            return
        patch = BulkPatch(writer, place.path, resolver, body.max_string_bytes, EVENT_BYTES)
        _apply(patch, body, check)
        self.has_placeholders = patch.has_placeholders
        self.changes, self.printed, self.echo = patch.changes, patch.event, patch.sent

    def print_sent(self, body: LargeBody) -> bytes | None:
        """Return what was sent, server values resolved; None if that is not known any more."""
        if self.printed is not None:
            return b"".join(self.printed)
        return None if self.has_placeholders else b"".join(paused(body.pieces(), 1))


def _apply(target: _Target, body: LargeBody, check: Callable[[], None]) -> None:
    splitter = Splitter()
    for piece in body.pieces():
        for fragment in splitter.feed(piece):
            _add(target, fragment, body.max_nodes)
        check()
        pause()
    for fragment in splitter.finish():
        _add(target, fragment, body.max_nodes)
    target.finish()


def _add(target: _Target, fragment: Fragment, max_nodes: int) -> None:
    target.add(fragment)
    if target.nodes > max_nodes:
        raise InvalidData(
            f"A body may have at most {max_nodes} members and array items (write_nodes): "
            "write it in parts."
        )


def _reads(view: View) -> Callable[[Place], object]:
    def read(place: Place) -> object:
        return view.priority(place.path) if place.is_priority else view.peek(place.path)

    return read
