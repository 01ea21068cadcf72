"""What large writes set, as the watchers receive it who are notified of it: read from the rows.

It is printed once, in steps, in chunks that are never joined. In most values the plain form and the
export form are the same text; then it is printed once for both.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from typing import Final

import attrs

from treedbd.limits import KIB
from treedbd.store.nodes import Nodes, spell_chunks
from treedbd.store.rows import may_be_shown_otherwise
from treedbd.tree.event import EVENT_BYTES, Commit
from treedbd.tree.types import PRIORITY, Chunks
from treedbd.tree.value import compact, print_members

_SEARCHED_AT_ONCE: Final = 64 * KIB
_LONGEST_SIGN_BYTES: Final = 16
"""Bytes by which what is searched overlaps: more than what is searched for has."""


def print_large(commit: Commit, nodes: Nodes | None) -> Generator[None, None, Commit]:
    """Return a large commit with what it set or merged; without it, if it is too long.

    That is read from `nodes`, the state after it, unless the commit has it; it is missing if it
    would have to be read and there are none.
    """
    printed, is_of_tree = commit.printed, False
    exported = printed
    if printed is None:
        if nodes is None or not _knows_members(commit):
            return commit
        is_of_tree = True
        printed = exported = yield from _collect(_chunks(commit, nodes, is_export=True))
        if exported is not None and (yield from _may_differ(exported)):
            printed = yield from _collect(_chunks(commit, nodes, is_export=False))
    if exported is not None:
        exported = yield from _collect(spell_chunks(exported, is_of_tree=is_of_tree))
    return attrs.evolve(commit, printed=printed, exported=exported)


def _knows_members(commit: Commit) -> bool:
    """Return whether it is known which members a large write has merged."""
    return commit.method == "put" or all(
        change.is_priority or change.path != commit.path for change in commit.changes
    )


def _chunks(commit: Commit, nodes: Nodes, *, is_export: bool) -> Iterator[bytes]:
    """Print what a large commit set at its path, or the members that it merged there."""
    if commit.method == "put":
        return nodes.chunks(commit.path, export=is_export)
    return print_members(_members(commit, nodes, is_export=is_export))


def _members(
    commit: Commit, nodes: Nodes, *, is_export: bool
) -> Iterator[tuple[str, Iterator[bytes]]]:
    for change in commit.changes:
        below = change.path[len(commit.path) :]
        if change.is_priority:
            text = compact(nodes.priority(change.path))
            yield "/".join((*below, PRIORITY)), iter((text,))
        else:
            yield "/".join(below), nodes.chunks(change.path, export=is_export)


def _collect(chunks: Iterable[bytes]) -> Generator[None, None, Chunks | None]:
    """Return chunks in steps, None if they are too long for an event."""
    collected, size = [], 0
    for chunk in chunks:
        if chunk:
            collected.append(chunk)
            size += len(chunk)
        if size > EVENT_BYTES:
            return None
        yield
    return tuple(collected)


def _may_differ(exported: Chunks) -> Generator[None, None, bool]:
    """Return in steps whether a value in export form may be another text than the plain form."""
    before = b""
    for chunk in exported:
        for at in range(0, len(chunk), _SEARCHED_AT_ONCE):
            text = before + chunk[at : at + _SEARCHED_AT_ONCE]
            if may_be_shown_otherwise(text):
                return True
            before = text[-_LONGEST_SIGN_BYTES:]
            yield
    return False
