"""What large writes set, as the watchers receive it who are notified of it: read from the rows."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import closing

import attrs

from treedbd.database.large_writes import EVENT_BYTES
from treedbd.database.watchers import Watchers
from treedbd.store.nodes import HeldNodes, Nodes
from treedbd.tree.event import Commit
from treedbd.tree.types import Place


def print_watched(
    commits: Sequence[Commit], watchers: Watchers, hold: Callable[[], HeldNodes]
) -> Generator[None, None, list[Commit]]:
    """Return the commits in steps, large ones with what they set if it is to be sent.

    `hold` holds the state that they left.
    """
    printed = []
    for commit in commits:
        text = commit.printed
        if commit.is_large and commit.method == "put" and watchers.has_at_or_above(commit.path):
            with closing(hold()) as held:
                text = yield from print_value(held, Place(commit.path))
        printed.append(attrs.evolve(commit, printed=text))
    return printed


def print_value(nodes: Nodes, place: Place) -> Generator[None, None, bytes | None]:
    """Return the JSON of a value in steps, None if it is too long for an event."""
    chunks, size = [], 0
    for chunk in nodes.chunks(place.path):
        chunks.append(chunk)
        size += len(chunk)
        if size > EVENT_BYTES:
            return None
        yield
    return b"".join(chunks)
