"""All rows of a database read, and what is wrong with them as sentences.

The engine checks its own pages (`Engine.verify`). `verify` checks that the rows are a tree as
`nodes` describes it, and `verify_indexes` proves the entries of indexes against that tree,
collection by collection: each entry must be that of a child, and there must be as many entries as
children. So at most one child is in memory, however large the database is.

Both only read, and rely on nothing: a damaged row is reported, not raised.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any, Final

import attrs

from treedbd.store import indexes
from treedbd.store.cursors import CURSOR_FIRST, check_cursors
from treedbd.store.disconnect_rows import check_rows
from treedbd.store.engine import DamagedRow, ReadView, Row
from treedbd.store.expiry_rows import EXPIRY_END, EXPIRY_FIRST, check_expiry
from treedbd.store.hooks import HOOK_END, HOOK_FIRST, check_hooks
from treedbd.store.nodes import Nodes
from treedbd.store.pages import PAGE_BYTES, as_member, encode_page, is_child, raw_of
from treedbd.store.rows import (
    END,
    FIRST,
    ROW_KEY_BYTES,
    SPREAD_BYTES,
    Page,
    encode_row,
    is_page,
    is_priority_row,
    load_priority_row,
    load_row,
    parse_stored,
    unseal,
)
from treedbd.tree.edit import check_priority, normalise
from treedbd.tree.path import (
    TEXT_TAG,
    check_depth,
    check_key,
    decode_path,
    encode_key,
    encode_path,
    format_path,
)
from treedbd.tree.types import PRIORITY, Path
from treedbd.tree.value import as_json, members

MAX_FINDINGS: Final = 100
_MAX_PATH_CHARACTERS: Final = 200

_BEYOND_STATES = b"\xff"


class _Malformed(ValueError):
    """What is wrong with one row, from the verb on."""


@attrs.frozen
class _Address:
    """What a row key encodes: a path, and for a bucket the prefix of its children's keys."""

    path: Path
    cut: bytes


def verify(rows: ReadView, limit: int = MAX_FINDINGS) -> list[str]:
    """Return what is malformed in the rows of the tree, at most `limit` sentences."""
    return list(islice(_findings(rows), limit))


def find_unreadable(rows: Iterable[Row]) -> str | None:
    """Return a clause about the first row that cannot be read, None if all can be.

    This is the quick check of a file that was not closed cleanly. It finds rows that do not match
    their check sum or are not JSON.
    """
    for key, stored in rows:
        try:
            content = unseal(key, stored)
            for each in Page(key, content).raws() if is_page(key) else [content]:
                parse_stored(each)
        except (DamagedRow, struct.error):
            return f"{_describe(key)} cannot be read"
    return None


def check_row(key: bytes, raw: bytes) -> str | None:
    """Return a sentence about what is malformed in one row by itself, None if it is sound."""
    try:
        _check(_address(key), raw)
    except (ValueError, RecursionError) as error:
        return f"{_describe(key)} {_reason(error)}."
    return None


def _findings(rows: ReadView) -> Iterator[str]:
    damaged: list[str] = []
    for finding in check_stored_rows(_single_rows(rows, damaged)):
        yield from damaged
        damaged.clear()
        yield finding
    yield from damaged


def _single_rows(rows: ReadView, findings: list[str]) -> Iterator[Row]:
    """Yield the rows that are stored, single or in pages; add what is wrong with how they are."""
    for key, stored in rows.scan(FIRST, END):
        try:
            content = unseal(key, stored)
            found = check_page(key, content) if is_page(key) else [(key, content)]
        except ValueError as error:
            findings.append(f"{_describe(key)} {_reason(error)}.")
        else:
            yield from found


def check_page(key: bytes, content: bytes) -> list[Row]:
    """Return the rows in a page; raise ValueError if it is malformed."""
    if len(key) + len(content) > PAGE_BYTES:
        raise _Malformed(f"is a page of more than {PAGE_BYTES} bytes")
    try:
        page = Page(key, content)
        members = page.members()
    except (struct.error, IndexError):
        raise _Malformed("is not a page") from None
    may_be_members = all(
        as_member(page.container + key, len(page.container), raw, PAGE_BYTES) == each
        and is_child(page.container, page.container + key)
        for each in members
        for key, raw in [(each[0], raw_of(each))]
    )
    if len(members) < 2 or not may_be_members:
        raise _Malformed("holds rows that do not belong into a page")
    if encode_page(page.container, members) != (key, content):
        raise _Malformed("is not a page as it is written")
    return page.rows()


def check_stored_rows(rows: Iterable[Row]) -> Iterator[str]:
    """Yield a sentence for each thing that is malformed in the rows of a tree, in their order."""
    previous: bytes | None = None
    cover: bytes | None = None
    priority_row: bytes | None = None
    for key, raw in rows:
        if previous is not None and key <= previous:
            yield f"{_describe(key)} is out of order."
        if priority_row is not None and not key.startswith(priority_row):
            yield f"{_describe(priority_row)} holds a priority, but there is nothing below it."
        has_cover = cover is not None and key.startswith(cover)
        if has_cover:
            yield f"{_describe(key)} is below another row."
        if (finding := check_row(key, raw)) is not None:
            yield finding
        priority_row = key if _seems_priority_row(raw) else None
        if priority_row is None and not has_cover:
            cover = key
        previous = key
    if priority_row is not None:
        yield f"{_describe(priority_row)} holds a priority, but there is nothing below it."


def _address(key: bytes) -> _Address:
    if len(key) > ROW_KEY_BYTES:
        raise _Malformed(f"has a key of more than {ROW_KEY_BYTES} bytes")
    try:
        path, cut = decode_path(key)
        for name in check_depth(path):
            check_key(name)
    except ValueError:
        raise _Malformed("has a key that no path encodes to") from None
    container = encode_path(path)
    if container + cut != key:
        raise _Malformed("has a key that no path encodes to")
    if cut and (len(key) < ROW_KEY_BYTES or len(container) > SPREAD_BYTES or cut[0] != TEXT_TAG):
        raise _Malformed("has a key that is cut off")
    return _Address(path, cut)


def _check(address: _Address, raw: bytes) -> None:
    if _seems_priority_row(raw):
        check_priority(load_priority_row(raw))
        return
    value = load_row(raw) if raw else None
    # Placeholders are not printed as they were read, so a row that holds any differs, too.
    normal: Any = normalise(as_json(value), len(address.path), len(raw)).value
    if normal is None or encode_row(normal) != raw:
        raise _Malformed("is not in normal form")
    if not address.cut:
        return
    names = [name for name, _ in members(normal)]
    belong = all(encode_key(name).startswith(address.cut) for name in names)
    if not names or not belong or PRIORITY in normal:
        raise _Malformed("holds children that do not belong there")


def _seems_priority_row(raw: bytes) -> bool:
    try:
        return is_priority_row(raw)
    except ValueError:
        return False


def _reason(error: Exception) -> str:
    return str(error) if isinstance(error, _Malformed) else "cannot be read"


def _describe(key: bytes) -> str:
    try:
        path, cut = decode_path(key)
        text = format_path(path) + ("/…" if cut else "")
    except ValueError:
        text = f"0x{key.hex()}"
    return f"The row {text[:_MAX_PATH_CHARACTERS]}"


def verify_indexes(view: ReadView) -> Iterator[str]:
    """Yield a sentence for each thing that is wrong with the indexes of a database."""
    try:
        states = indexes.read_states(view)
    except DamagedRow as error:
        yield f"The indexes cannot be checked: {error}"
        return
    others = {indexes.STATE_KEY, indexes.USAGE_KEY}
    for low, high in (
        (indexes.STATE_KEY, CURSOR_FIRST),
        (indexes.DISCONNECT_END, HOOK_FIRST),
        (HOOK_END, EXPIRY_FIRST),
        (EXPIRY_END, _BEYOND_STATES),
    ):
        if any(key not in others for key in view.scan_keys(low, high)):
            yield "There are rows that belong to nothing."
    yield from check_cursors(view)
    yield from check_hooks(view)
    yield from check_rows(view)
    yield from check_expiry(view)
    yield from _verify_unknown(view, states)
    nodes = Nodes(view)
    for state in states.states:
        if state.stage != "dropping":
            try:
                yield from _verify(nodes, state.index, is_built=state.stage == "built")
            except (DamagedRow, ValueError) as error:
                yield f"The index {state.index.name} cannot be checked: {error}"


def _verify_unknown(view: ReadView, states: indexes.IndexStates) -> Iterator[str]:
    """Yield the entries of indexes that do not exist."""
    low = indexes.INDEX_FIRST
    for begin, end in sorted(each.index.range for each in states.states):
        if next(view.scan_keys(low, begin), None) is not None:
            yield "There are entries of an index that does not exist."
        low = end
    if next(view.scan_keys(low, indexes.INDEX_END), None) is not None:
        yield "There are entries of an index that does not exist."


def _verify(nodes: Nodes, index: indexes.ChildIndex, *, is_built: bool) -> Iterator[str]:
    counted = 0
    for path in indexes.find_collections(nodes, index.pattern, ()):
        collection = index.collection(path)
        if collection is None:
            continue
        found = 0
        for finding in _verify_collection(nodes, index, path, collection):
            found += finding is None
            if finding is not None:
                yield finding
        counted += found
        if is_built:
            missing = sum(1 for _ in nodes.keys(path)) - found
            if missing:
                yield f"{_name(index, path)} lacks the entries of {missing} children."
    if sum(1 for _ in nodes.rows.stored.scan_keys(*index.range)) > counted:
        yield f"The index {index.name} has entries that belong to no child."


def _verify_collection(
    nodes: Nodes, index: indexes.ChildIndex, path: Path, collection: bytes
) -> Iterator[str | None]:
    """Yield None for each entry of a collection that is right, else a sentence."""
    end = collection[:-1] + bytes((collection[-1] + 1,))
    for key, stored in nodes.rows.stored.scan(collection, end):
        try:
            content = unseal(key, stored)
            child = indexes.decode_entry(collection, key, content).child
        except (ValueError, IndexError):
            yield f"{_name(index, path)} has an entry that cannot be read."
            continue
        exists, value = indexes.look_up(nodes, index.order, (*path, child))
        if exists and indexes.encode_entry(collection, value, child) == (key, content):
            yield None
        else:
            yield f"{_name(index, path)} has a wrong entry of {child[:200]!r}."


def _name(index: indexes.ChildIndex, path: Path) -> str:
    return f"The index {index.name} of {format_path(path)[:200]}"
