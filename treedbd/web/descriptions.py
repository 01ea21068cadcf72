"""Descriptions: what a node is and how large, with a page of its children, without their values.

For programs that show a tree of any size: a console, a file browser. A string is cut to some
characters, and of a container only the number of its children and its bytes are shown. How the
children of a large container are counted is in `store.outline`; the outlines are kept with the
answers of the database. A description is JSON, rendered in steps: at an empty chunk the caller can
check the time.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Iterator
from typing import Any, Final, TypeAlias

import attrs
import orjson

from treedbd.database.database import Database
from treedbd.limits import (
    KIB,
    MAX_COUNTED_BYTES,
    MAX_COUNTED_CHILD_BYTES,
    MAX_COUNTED_CHILDREN_BYTES,
    MAX_DESCRIBED_CHARACTERS,
)
from treedbd.store.nodes import Child, ChildSource, Nodes, PresentNodes, Spread
from treedbd.store.outline import Budget, Outline, Totals
from treedbd.store.rows import (
    CONTAINERS,
    MARK,
    is_string,
    load_row,
    parse_stored,
    print_row,
    string_in,
)
from treedbd.store.select import iterate_selected
from treedbd.tree.query import Bound, Description, Query
from treedbd.tree.types import Container, Json, Path, Place, Priority, Value
from treedbd.tree.value import compact, leaf_of, members, plain, priority_of
from treedbd.web.request import index_of

_RowSource: TypeAlias = "bytes | Value"
"""What is known of a node that is not spread: the bytes of its row, or its value in a row."""
_Chunks: TypeAlias = Generator[bytes, None, bytes]
"""Steps that return a part of the text."""

_AT_ONCE: Final = 64 * KIB
"""Bytes of a long string in which characters are counted in one step."""
_BEGINNING: Final = 8 * MAX_DESCRIBED_CHARACTERS
"""Bytes of JSON that have as many characters as are shown, however they are written."""
_WHOLE: Final = re.compile(rb'(?:[^\\"]|\\u[0-9a-fA-F]{4}|\\[^u])*')
_CONTINUING: Final = bytes(range(0x80, 0xC0))
"""The bytes of UTF-8 that do not begin a character."""
_TYPES: Final = {b"t": b"boolean", b"f": b"boolean", b"n": b"null"}
_NOTHING: Final = b'{"type":"null"}'


def describe(
    database: Database, place: Place, description: Description, nodes: Nodes
) -> Iterator[bytes]:
    """Render the description of a place."""
    path = place.path
    source = nodes.priority(path) if place.is_priority else nodes.source(path)
    is_container = isinstance(source, Spread) or _is_container(source)
    if source is None or (description.is_query and not is_container):
        yield _NOTHING
    elif description.is_query:
        children = yield from _describe_children(database, nodes, path, description.page)
        yield b'{"type":"object","children":[%b]%b}' % (
            children[0],
            _describe_index(database, path, description.page),
        )
    elif isinstance(source, Spread):
        yield from _Spread(database, nodes, path).describe(description)
    elif is_container:
        yield from _describe_whole(description, source)
    else:
        size = len(print_row(source)) if isinstance(source, bytes) else len(compact(plain(source)))
        facts = yield from _describe_source(source)
        yield b'{%b,"bytes":%d}' % (facts, size)


def _is_container(source: _RowSource) -> bool:
    """Return whether what is in one row, or in a part of one, has children."""
    if not isinstance(source, bytes):
        return isinstance(leaf_of(source), Container)
    if source[:1] != MARK:
        return source[0] in CONTAINERS
    return not is_string(source) and isinstance(leaf_of(load_row(source)), Container)


def _describe_whole(description: Description, source: _RowSource) -> Iterator[bytes]:
    """Describe a container that is in one row."""
    facts = yield from _describe_source(source)
    value = load_row(source) if isinstance(source, bytes) else source
    yield b""
    children = list(members(value))
    chosen = description.page.select(children)
    first = None
    if description.at is not None:
        first = min(description.at, len(children))
        chosen = children[first:][: description.page.limit_to_first]
    elif chosen:
        first = children.index(chosen[0])
    shown = b",".join(_print_child(key, _describe_value(child)) for key, child in chosen)
    yield b'{%b%b,"children":[%b]}' % (facts, _first(first), shown)


class _Spread:
    """The description of a container that is spread over rows."""

    def __init__(self, database: Database, nodes: Nodes, path: Path) -> None:
        self._database = database
        self._nodes = nodes
        self._path = path

    def describe(self, description: Description) -> Iterator[bytes]:
        nodes, path = self._nodes, self._path
        outline = yield from self._count(description.at)
        page: Query | None = description.page
        first = description.at
        if first is not None:
            first = min(first, outline.totals.count)
            page = _page_from(description.page, outline.key_at(nodes, first))
            yield b""
        children, key = (b"", None)
        if page is not None:
            children, key = yield from _describe_children(
                self._database, nodes, path, page, outline
            )
        if key is not None and description.at is None:
            first = outline.position_of(nodes, key)
        yield b'{"type":"object",%b%b%b,"children":[%b]}' % (
            _print_totals(outline.totals),
            _print_priority(nodes.priority(path)),
            _first(first),
            children,
        )

    def _count(self, at: int | None) -> Generator[bytes, None, Outline]:
        """Return the outline, counted as far as the budget allows, and up to a position."""
        database, nodes, path = self._database, self._nodes, self._path
        outline = database.find_outline(path)
        if outline is None:
            outline = Outline(path)
            if isinstance(nodes, PresentNodes):  # else others may have written since
                outline.since = nodes.rows.sequence()
                database.keep_outline(path, outline)
        budget = Budget(MAX_COUNTED_BYTES)
        for _ in outline.renew(nodes, database.find_outline, budget):
            yield b""
        for _ in outline.extend(nodes, database.find_outline, budget, -1 if at is None else at):
            yield b""
        if database.find_outline(path) is outline:
            database.keep_outline(path, outline)  # by now it takes more memory
        return outline


def _page_from(page: Query, key: str | None) -> Query | None:
    """Return the page that begins with a key, None without one."""
    return None if key is None else attrs.evolve(page, low=Bound(None, key, True))


def _describe_children(
    database: Database, nodes: Nodes, path: Path, query: Query, outline: Outline | None = None
) -> Generator[bytes, None, tuple[bytes, str | None]]:
    """Return the descriptions of the children that a query selects, and the key of the first."""
    shown: list[bytes] = []
    first: str | None = None
    budget = Budget(MAX_COUNTED_CHILDREN_BYTES)
    for child in iterate_selected(nodes, path, query):
        yield b""
        if child is None:
            continue
        if first is None:
            first = child.key
        source = _source_of(child, nodes, path)
        if isinstance(source, Spread):
            counting = _ChildCount(database, nodes, (*path, child.key), outline)
            facts = yield from counting.describe(budget)
        else:
            facts = yield from _describe_source(source)
        shown.append(_print_child(child.key, facts))
    return b",".join(shown), first


def _source_of(child: Child, nodes: Nodes, path: Path) -> ChildSource:
    source = child.with_row().source
    return nodes.source((*path, child.key)) if source is None else source


class _ChildCount:
    """Counts what is below a spread child of the place that is described."""

    def __init__(self, database: Database, nodes: Nodes, path: Path, above: Outline | None) -> None:
        """Count at `path`; `above` is the outline of the container."""
        self._database = database
        self._nodes = nodes
        self._path = path
        self._above = above

    def describe(self, budget: Budget) -> _Chunks:
        """Return the members of the description, counted within a budget."""
        database, path = self._database, self._path
        outline = database.find_outline(path)
        is_new = outline is None
        outline = outline or Outline(path)
        own = Budget(min(budget.left, MAX_COUNTED_CHILD_BYTES))
        before = own.left
        for _ in outline.renew(self._nodes, database.find_outline, own):
            yield b""
        for _ in outline.extend(self._nodes, database.find_outline, own, position=0):
            yield b""
        budget.left -= before - own.left
        if is_new and self._may_keep():
            outline.since = self._nodes.rows.sequence()
            database.keep_outline(path, outline)
        return b'"type":"object",%b%b' % (
            _print_totals(outline.totals),
            _print_priority(self._nodes.priority(path)),
        )

    def _may_keep(self) -> bool:
        """Return whether nothing was written below the container since the state that is read.

        Its outline, which is kept, would have noted that.
        """
        above = self._above
        if above is None or self._database.find_outline(self._path[:-1]) is not above:
            return False
        return max(above.since, above.changed) <= self._nodes.rows.sequence()


def _print_totals(totals: Totals) -> bytes:
    """Print how many children and bytes a container has."""
    text = b'"count":%d,"bytes":%d' % (totals.count, totals.size)
    if totals.is_least:
        text += b',"least":true,"counted":true' if totals.is_counted else b',"least":true'
    return text + b',"about":true' if totals.is_about else text


def _print_priority(priority: Priority | None) -> bytes:
    return b"" if priority is None else b',"priority":%b' % compact(priority)


def _print_child(key: str, facts: bytes) -> bytes:
    return b'{"key":%b,%b}' % (compact(key), facts)


def _first(first: int | None) -> bytes:
    return b"" if first is None else b',"first":%d' % first


def _describe_source(source: _RowSource) -> _Chunks:
    """Return the members of the description of what is in one row, or in a part of one."""
    if isinstance(source, bytes):
        if is_string(source):
            return (yield from _describe_string(source))
        if source[0] in CONTAINERS:
            json: Any = parse_stored(source)
            count = len(json) - json.count(None) if isinstance(json, list) else len(json)
            return b'"type":"object","count":%d,"bytes":%d' % (count, len(source))
        if source[:1] != MARK:
            return b'"type":"%b","value":%b' % (_TYPES.get(source[:1], b"number"), source)
        source = load_row(source)
    return _describe_value(source)


def _describe_value(value: Value) -> bytes:
    """Return the members of the description of a value."""
    priority = _print_priority(priority_of(value))
    leaf = leaf_of(value)
    if isinstance(leaf, Container):
        count = sum(1 for _ in members(value))
        size = len(compact(plain(value)))
        return b'"type":"object","count":%d,"bytes":%d%b' % (count, size, priority)
    if not isinstance(leaf, str):
        kind = b"boolean" if isinstance(leaf, bool) else b"number"
        return b'"type":"%b","value":%b%b' % (kind, compact(leaf), priority)
    return _print_string(leaf[:MAX_DESCRIBED_CHARACTERS], len(leaf)) + priority


def _print_string(beginning: str, length: int) -> bytes:
    text = b'"type":"string","value":%b' % compact(beginning)
    return text if length <= MAX_DESCRIBED_CHARACTERS else text + b',"length":%d' % length


def _describe_string(raw: bytes) -> _Chunks:
    """Return the members of the description of the string in a row."""
    begin, end, priority = string_in(raw)
    length = 0
    at = begin
    while at < end:
        piece = raw[at : min(at + _AT_ONCE, end)]
        if at + len(piece) < end:
            piece = _without_cut_escape(piece)
        length += count_characters(piece)
        at += len(piece)
        if at < end:
            yield b""
    found = _WHOLE.match(raw, begin, min(begin + _BEGINNING, end))
    text = b"" if found is None else found[0]
    beginning: str = orjson.loads(b'"%b"' % text.decode(errors="ignore").encode())
    shown = _print_string(beginning[:MAX_DESCRIBED_CHARACTERS], length)
    return shown + _print_priority(priority)


def _without_cut_escape(text: bytes) -> bytes:
    """Return a text without the backslash at its end that begins an escape."""
    backslashes = len(text) - len(text.rstrip(b"\\"))
    return text[:-1] if backslashes % 2 else text


def count_characters(text: bytes) -> int:
    """Return how many characters a part of a JSON string has; it begins and ends in no escape.

    The digits of a last escape may be missing: those of the next part are subtracted here.
    """
    count = len(text.translate(None, _CONTINUING))
    if b"\\" not in text:
        return count
    pairs = text.count(rb"\\")
    rest = text.replace(rb"\\", b"")
    return count - pairs - rest.count(b"\\") - 4 * rest.count(rb"\u")


def _describe_index(database: Database, path: Path, query: Query) -> bytes:
    """Return a member that says which index the query lacks; empty if it lacks none."""
    name = index_of(query)
    if name is None or name in database.rules.current.indexed(path):
        return b""
    declared = f'".indexOn": {compact([name]).decode()}'
    for key in reversed(path):
        declared = f"{compact(key).decode()}: {{{declared}}}"
    shown: Json = {"missing": True, "rule": declared}
    return b',"index":%b' % compact(shown)
