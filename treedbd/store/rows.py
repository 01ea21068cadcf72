"""The rows of the tree as they are stored: their keys, their values, their pages and check sums.

This module is about one row at a time, and one page; `nodes` says which node is in which row, and
`pages` puts rows together to pages and changes them. Nothing here writes.

**Keys.** Every row of the tree has a key that is empty or begins with one of the tags of
`tree.path`, so the whole tree is the range from `FIRST` to `END`. Row keys are at most
`ROW_KEY_BYTES` long; `nodes` says where children with longer ones are stored.

**Values.** A row without a priority anywhere is *plain*: it holds exactly the bytes that a plain
GET prints, arrays as arrays, so that reads send them unparsed. A row with a priority somewhere is
*marked*: one space, then the normal form of `tree.value` printed as JSON, which is what
`format=export` prints. The *priority row* of a spread container (see `nodes`) is a marked row that
holds its priority and nothing else. `RowEditor` makes several changes in one row.

**Check sums.** Every stored row and page begins with a check sum: the CRC-32 of its key and its
content, four bytes, the most significant first. So one that was stored under another key is found,
too.

**Pages.** Rows are stored as they are, or several of them in one *page*: rows that follow each
other, with no other row between them, whose nodes are children of the same container. A row can be
a member of a page if it is short and is neither a bucket nor a priority row. The keys of a page's
members are either all integers or all text.

A page is stored at the key of its first member with `PAGE_END` appended. No other row's key ends
so, and none sorts between the two, so a scan of keys alone distinguishes pages from rows, and the
stored row with the greatest key up to `key + PAGE_END` is the row `key` or the only page that may
hold it.

The content of a page, numbers with the most significant byte first:

    1 byte    1 if a member has a priority somewhere, else 0
    2 bytes   length of the container's encoded path, with which the page's key begins
    2 bytes   number of members
    2 bytes   length of the next part
    …         the encoded keys of the members within the container, joined
    4 bytes   for each member: where its row begins and ends in the last part
    …         the body: the members as in a JSON object, `"a":1,"b":[2,3]`

So a row is found with one search in the encoded keys, and is a slice of the body; and the body is
what a GET of the container prints, unparsed.

`PagedRows` verifies the check sum of whatever is read, and shows the rows of an engine's view one
by one, as `nodes` describes them.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from operator import sub
from struct import Struct, unpack_from
from sys import maxsize
from typing import Any, Final, NamedTuple, TypeAlias
from zlib import crc32

import attrs
import orjson

from treedbd.store.engine import LONG_BYTES, DamagedRow, LogEntry, ReadView, Row
from treedbd.tree.edit import Draft
from treedbd.tree.fragments import parse_text
from treedbd.tree.path import (
    BEYOND,
    INT_BYTES,
    INT_TAG,
    TEXT_END,
    TEXT_TAG,
    as_index,
    decode_path,
    encode_key,
    encode_path,
    rank_key,
)
from treedbd.tree.types import (
    CONTAINER,
    PRIORITY,
    VALUE,
    Charge,
    Container,
    InvalidData,
    Json,
    Leaf,
    Path,
    Priority,
    Value,
)
from treedbd.tree.value import (
    NULL,
    as_priority,
    compact,
    from_export,
    from_plain,
    leaf_of,
    plain,
    priority_of,
    with_priority,
)

ROW_KEY_BYTES: Final = 480
"""No row key is longer: every engine that was considered can index keys of this length."""
SPREAD_BYTES: Final = 470
"""A container whose own key is longer is never spread: the rest could not distinguish children."""

FIRST: Final = b""
END: Final = BEYOND
LOWEST_TAG: Final = bytes((INT_TAG,))
_TEXT: Final = bytes((TEXT_TAG,))


@attrs.frozen
class Span:
    """Which children of a container to read, and from which end.

    Reading begins after the key `after`, or at the key `at`, in the direction of reading; with
    neither, at the first child, or with `reverse` at the last one.
    """

    after: str | None = None
    at: str | None = None
    reverse: bool = False

    def __attrs_post_init__(self) -> None:
        if self.after is not None and self.at is not None:
            raise ValueError("A span begins after a key or at one, not both.")

    def holds(self, key: str) -> bool:
        """Return whether a child with this key is in the span."""
        edge = self.at if self.after is None else self.after
        if edge is None:
            return True
        rank, edge_rank = rank_key(key), rank_key(edge)
        if rank == edge_rank:
            return self.after is None
        return (rank < edge_rank) is self.reverse

    def bounds(self, container: bytes) -> tuple[bytes, bytes]:
        """Return the range of row keys of the span's children of `container`, an encoded path.

        If the edge falls into a bucket, the range includes all of it; `holds` filters its members.
        """
        low, high = below(container)
        edge = self.at if self.after is None else self.after
        if edge is None:
            return low, high
        key, has_nul = _edge_key(container, edge)
        includes_edge = self.reverse if has_nul else self.after is None
        if len(key) > ROW_KEY_BYTES:
            key, includes_edge = key[:ROW_KEY_BYTES], True
        if self.reverse:
            return low, key + BEYOND if includes_edge else key
        return key if includes_edge else key + BEYOND, high


ALL: Final = Span()


def below(container: bytes) -> tuple[bytes, bytes]:
    """Return the range of the row keys strictly below an encoded path."""
    return container + LOWEST_TAG, container + BEYOND


def end_of_key(encoded: bytes, at: int) -> int:
    """Return where the encoded key that begins at `at` ends, 0 if it is cut off."""
    if encoded[at] == INT_TAG:
        end = at + INT_BYTES
        return end if end <= len(encoded) else 0
    return encoded.find(TEXT_END, at) + 1


def count_keys(encoded: bytes) -> int:
    """Return how many keys an encoded path has."""
    if INT_TAG not in encoded:
        return encoded.count(TEXT_END)  # no text has a tag or an end in it
    count = end = 0
    while end < len(encoded):
        end = end_of_key(encoded, end)
        count += 1
    return count


def decode_key(segment: bytes) -> str:
    """Return the key that was encoded; `segment` is one encoded key."""
    if segment[0] == TEXT_TAG:  # most keys are
        return segment[1:-1].decode()
    return decode_path(segment)[0][0]


def print_key(segment: bytes) -> bytes:
    """Return an encoded key as JSON."""
    if segment[0] == INT_TAG or b'"' in segment or b"\\" in segment:
        return compact(decode_key(segment))
    return b'"%b"' % segment[1:-1]


def shared_keys(path: Path, key: bytes) -> int:
    """Return how many keys of `path`, from the root, the row key `key` begins with."""
    end = 0
    for count, name in enumerate(path):
        segment = encode_key(name)
        if not key.startswith(segment, end):
            return count
        end += len(segment)
    return len(path)


def _edge_key(container: bytes, edge: str) -> tuple[bytes, bool]:
    """Return the row key of the child `edge`, at its full length, and whether `edge` has a NUL.

    An edge may be any string. One with a NUL sorts as text, directly after the part before the NUL,
    since no child's key has so low a character; the row key is that of this part.
    """
    head, has_nul, _ = edge.partition("\x00")
    segment = _TEXT + head.encode() + TEXT_END if has_nul else encode_key(edge)
    return container + segment, bool(has_nul)


MARK: Final = b" "
_MARK: Final = MARK[0]
_HAS_PRIORITY: Final = b'"%b":' % PRIORITY.encode()
"""Occurs in printed JSON only as the name of a member: in a string its quotes are escaped."""
_MAYBE_ARRAY: Final = re.compile(rb'\{"[0-9]')
"""Occurs in every printed object that could be an array: its first key is an index."""
_PRIORITY_ROW: Final = MARK + b"{" + _HAS_PRIORITY
_ONE_PRIORITY: Final = re.compile(
    rb'%b(?:"[^"\\]*+(?:\\.[^"\\]*+)*+"|[^",}]*+)\}' % re.escape(_PRIORITY_ROW), re.DOTALL
)
"""All of a priority row: after the priority of any other row more members come."""
CONTAINERS: Final = b"{["
"""How a plain row that holds a container begins."""
_QUOTE: Final = b'"'[0]
_MARKED_STRING: Final = MARK + b'{"%b":"' % VALUE.encode()
"""How the row of a string with a priority begins."""
_AFTER_STRING: Final = b'",' + _HAS_PRIORITY
"""What ends that string, and occurs only once: quotes in strings are escaped."""
CHUNK_BYTES: Final = 32_768
LARGE_ROW_BYTES: Final = 4096
"""Bytes of a row that costs about the same to read however long it is."""
_AT_ONCE_BYTES: Final = 65_536
"""Bytes of a string that are parsed in one step."""
_DECODED: Final = 3
"""How many bytes each byte of a row counts for that is not ASCII, which takes so much longer."""
_COPIED_AT_ONCE: Final = 8
"""Bytes of a row that is only copied from the engine, at the cost of parsing one."""
_LEAST_MEMBER: Final = 1
"""Bytes of a member without its value if all of them are printed as an array: a comma."""
_LEAST_DOUBLE: Final = len("0.5")
"""Characters of a number that is not an integer, or is too large for one."""
_LONGEST_INDEX: Final = 10
"""Characters of the longest key that an array may leave out."""


class Cover(NamedTuple):
    """The row that holds a node, and the path from that row's node down to it.

    For a bucket the path starts at the container that the bucket's members are children of.
    """

    key: bytes
    raw: bytes
    inside: Path
    is_bucket: bool


def parse_stored(text: bytes) -> Json:
    """Parse a row without its mark, or JSON printed from rows; raise `DamagedRow`."""
    try:
        json: Json = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise DamagedRow(f"A row is not valid JSON: {error}.") from None
    return json


def encode_row(value: Value, text: bytes | None = None) -> bytes:
    """Return the bytes of a row that holds `value`, which is not None; a long string pauses.

    `text` is the value as `compact` prints it, None if it is not printed yet.
    """
    if type(value) is dict and VALUE in value:
        leaf, priority = value[VALUE], as_priority(value[PRIORITY])
        if type(leaf) is str and len(leaf) > _AT_ONCE_BYTES:
            return (
                _MARKED_STRING[:-1] + compact(leaf) + _AFTER_STRING[1:] + compact(priority) + b"}"
            )
    text = text or compact(value)
    if type(value) is str:
        return text
    if _HAS_PRIORITY in text:
        return MARK + text
    if _MAYBE_ARRAY.search(text):
        return compact(plain(value))
    return text


def may_be_shown_otherwise(text: bytes) -> bool:
    """Return whether a value in export form may print as another text in the plain form."""
    return _HAS_PRIORITY in text or _MAYBE_ARRAY.search(text) is not None


def encode_priority_row(priority: Priority) -> bytes:
    """Return the bytes of the priority row of a spread container."""
    row: Json = {PRIORITY: priority}
    return MARK + compact(row)


def has_priorities(raw: bytes) -> bool:
    """Return whether there is a priority anywhere in the row."""
    return raw[0] == _MARK


def is_priority_row(raw: bytes) -> bool:
    """Return whether the row holds a priority and nothing else."""
    return raw.startswith(_PRIORITY_ROW) and _ONE_PRIORITY.fullmatch(raw) is not None


def load_row(raw: bytes) -> Value:
    """Return the value of a row in normal form; a long string pauses. Raises `DamagedRow`."""
    if len(raw) > _AT_ONCE_BYTES and is_string(raw):
        return _load_string(raw)
    json = parse_stored(raw)
    return from_plain(json) if b"[" in raw and raw[0] != _MARK else from_export(json)


def load_priority_row(raw: bytes) -> Priority:
    """Return the priority in a priority row."""
    priority: Any = load_row(raw)
    return priority[PRIORITY]  # type: ignore[no-any-return]


def print_row(raw: bytes) -> bytes:
    """Return what a plain GET of a row's value prints; a string is not parsed."""
    if raw[0] != _MARK:
        return raw
    if raw.startswith(_MARKED_STRING):
        return raw[len(_MARKED_STRING) - 1 : _end_of_string(raw) + 1]
    return compact(plain(load_row(raw)))


def export_row(raw: bytes) -> bytes:
    """Return what `format=export` prints of a row's value: priorities, and no arrays."""
    if raw[0] == _MARK:
        return raw[1:]
    return compact(from_plain(parse_stored(raw))) if b"[" in raw else raw


def is_plain_string(raw: bytes) -> bool:
    """Return whether a row holds a string without a priority: however long, nothing is below it."""
    return raw[0] == _QUOTE


def is_string(raw: bytes) -> bool:
    """Return whether a row holds a string, with a priority or without."""
    return raw[0] == _QUOTE or raw.startswith(_MARKED_STRING)


def print_part(raw: bytes, below: Path) -> bytes:
    """Return what a plain GET prints of the node at the path `below` inside a row."""
    if below and is_string(raw):
        return NULL
    part = part_at(parse_stored(raw), below)
    if isinstance(part, str | int):  # bool is an int; only doubles and containers need more
        return b"".join((orjson.dumps(part), b""))  # copied, as in `compact`
    return compact(plain(from_export(part)) if raw[0] == _MARK else part)


def load_part(raw: bytes, below: Path) -> Value:
    """Return the node at the path `below` inside a row, in normal form."""
    if not below:
        return load_row(raw)
    if is_string(raw):
        return None
    part = part_at(parse_stored(raw), below)
    return from_plain(part) if b"[" in raw and raw[0] != _MARK else from_export(part)


def priority_of_part(raw: bytes, below: Path, charge: Charge) -> Priority | None:
    """Return the priority of the node at the path `below` inside a row; a string is not parsed.

    `charge` is called as by `type_of_part`.
    """
    if not has_priorities(raw):
        return None
    if raw.startswith(_MARKED_STRING):
        charge(len(raw) // _COPIED_AT_ONCE)
        return None if below else _priority_of_string(raw)
    charge_large(raw, charge)
    return priority_of(load_part(raw, below))


def string_in(raw: bytes) -> tuple[int, int, Priority | None]:
    """Return where the text of a row that holds a string begins and ends, and its priority."""
    if raw[0] == _QUOTE:
        return 1, len(raw) - 1, None
    return len(_MARKED_STRING), _end_of_string(raw), _priority_of_string(raw)


def _load_string(raw: bytes) -> Value:
    """Return what the row of a long string holds, with pauses."""
    is_marked = raw[0] == _MARK
    begin, end = (len(_MARKED_STRING), _end_of_string(raw)) if is_marked else (1, len(raw) - 1)
    if raw[end] != _QUOTE:
        raise DamagedRow("A row is not valid JSON: a string does not end.")
    ends = range(begin, end, _AT_ONCE_BYTES)
    try:
        text = parse_text(raw[at : min(at + _AT_ONCE_BYTES, end)] for at in ends)
    except InvalidData as error:
        raise DamagedRow(f"A row is not valid JSON: {error}.") from None
    return with_priority(text, _priority_of_string(raw)) if is_marked else text


def _end_of_string(raw: bytes) -> int:
    """Return the index of the quote that ends the string in a row with a priority."""
    end = raw.rfind(_AFTER_STRING)
    if end < 0:
        raise DamagedRow("A row is not valid JSON: a string does not end.")
    return end


def _priority_of_string(raw: bytes) -> Priority | None:
    return priority_of(from_export(parse_stored(b"{" + raw[_end_of_string(raw) + 2 :])))


def peek_part(raw: bytes, below: Path, charge: Charge) -> Leaf | Container | None:
    """Return the leaf at the path `below` inside a row, `CONTAINER` for one, None for nothing.

    `charge` is called with the characters of a string, or before a large row is parsed, with its
    bytes.
    """
    if not below and raw[0] in CONTAINERS:
        return CONTAINER
    is_charged = charge_large(raw, charge)
    leaf = leaf_of(load_part(raw, below))
    if type(leaf) is str and not is_charged:
        charge(len(leaf))
    return leaf


def type_of_part(raw: bytes, below: Path, charge: Charge) -> type[Leaf] | type[Container] | None:
    """Return the type of what `peek_part` returns; a row that is a string is not parsed."""
    if not below and is_string(raw):
        charge(len(raw) // _COPIED_AT_ONCE)
        return str
    leaf = peek_part(raw, below, charge)
    return None if leaf is None else type(leaf)


def charge_large(raw: bytes, charge: Charge) -> bool:
    """Charge the bytes of a row that is larger than most before it is parsed; return whether.

    Those of other scripts than ASCII count more.
    """
    if len(raw) <= LARGE_ROW_BYTES:
        return False
    charge(len(raw) if raw.isascii() else len(raw) * _DECODED)
    return True


def is_surely_longer(value: Value, limit: int) -> bool:
    """Return whether the row of `value` is certainly longer than `limit`, at a cost of `limit`.

    False means that printing the value is cheap, not that it is short enough.
    """
    length = 0
    left = [value]
    while left and length <= limit:
        node = left.pop()
        if isinstance(node, str):
            length += len(node) + 2
        elif not isinstance(node, dict):
            length += _LEAST_DOUBLE if type(node) is float else 1
        elif len(node) > limit:  # each member has a comma at least
            return True
        else:
            length += len(node) * _LEAST_MEMBER
            for key in node:
                if len(key) > _LONGEST_INDEX:
                    length += len(key)
            left.extend(node.values())
    return length > limit


def part_at(json: Json, path: Path) -> Json:
    """Return what is at `path` in the JSON of a row or of a part of one."""
    for key in path:
        if isinstance(json, dict):
            json = json.get(key)
        elif isinstance(json, list):
            at = as_index(key)
            json = json[at] if at is not None and at < len(json) else None
        else:
            return None
    return json


def cut_into_chunks(text: bytes) -> Iterator[bytes]:
    """Cut text into chunks of at most twice `CHUNK_BYTES`."""
    if len(text) <= 2 * CHUNK_BYTES:
        return iter((text,))
    return (text[at : at + CHUNK_BYTES] for at in range(0, len(text), CHUNK_BYTES))


_PRIORITY_BYTES: Final = len(' {".value":,".priority":}')
_KEY_BYTES: Final = len('{"":},')
_CHARACTER_BYTES: Final = 4
_BITS_OF_DIGIT: Final = 3
_ESCAPED_BYTES: Final = len("\\u0001")


@attrs.define
class RowEditor:
    """The row that covers `path`, for changes below its own node; `limit` bytes, None for any.

    The value is kept as a draft, and the row is printed after the last change. A change after which
    the row, if it were printed, might be too long must not be made in a row that can be split:
    change by change, the row would have been split by then. Its length is estimated from above, as
    that of its export, which has keys where the row has an array. An export is never much shorter
    than the row: a member of an array has at least six bytes there (`"0":1,`), and where keys are
    missing the row prints at most as many nulls as it has members, one byte more for each than its
    key takes.
    """

    path: Path
    cover: Cover
    _node: Path
    _most: int | None
    _draft: Draft
    _length: int
    _may_be_empty: bool = False

    @classmethod
    def open(cls, path: Path, cover: Cover, limit: int | None) -> RowEditor | None:
        """Open a row, unless it is too long already to be changed within `limit` bytes."""
        length = len(cover.raw)
        most = None if limit is None else _longest_export(limit)
        if most is not None and length > most:
            return None
        value = load_row(cover.raw)
        if most is not None and b"[" in cover.raw:
            length = len(compact(value))
        node = path[: len(path) - len(cover.inside)]
        return cls(path, cover, node, most=most, draft=Draft(value), length=length)

    def inside(self, path: Path) -> Path | None:
        """Return the path from the row's node down to `path`, None if the row does not cover it."""
        depth = len(self._node)
        if path[:depth] != self._node:
            return None
        inside = path[depth:]
        if self.cover.is_bucket:
            segment = encode_key(inside[0]) if inside else b""
            if not (encode_path(path[:depth]) + segment).startswith(self.cover.key):
                return None
        return inside

    def change(self, inside: Path, value: Value, is_priority: bool) -> bool:
        """Make a change unless the row might become too long; return whether it was made.

        None is made in a row that the one before has left empty: that has to be removed, and with
        it maybe the containers above and their priorities.
        """
        if self._may_be_empty and self._draft.at(()) is None:
            return False
        if self._most is not None:
            if not inside:
                return False
            length = self._length + self._bound(inside, value)
            if length > self._most:
                length = self._length + self._growth(inside, value, is_priority)
            if length > self._most:
                return False
            self._length = length
        if is_priority:
            self._draft.set_priority(inside, as_priority(value))
        else:
            self._may_be_empty = value is None
            self._draft.set(inside, value)
        return True

    def finish(self) -> Value:
        """Return the changed value of the row."""
        return self._draft.finish()

    def _bound(self, inside: Path, value: Value) -> int:
        """Return an upper bound of `_growth` that costs little, for strings and integers."""
        if type(value) is str:
            length = _ESCAPED_BYTES * len(value) + len('""')
        elif type(value) is int:
            length = value.bit_length() // _BITS_OF_DIGIT + len("-1")
        else:
            return maxsize
        keys = _CHARACTER_BYTES * len("".join(inside)) + _KEY_BYTES * len(inside)
        return length + _PRIORITY_BYTES + keys

    def _growth(self, inside: Path, value: Value, is_priority: bool) -> int:
        """Return the most bytes by which an export of the row grows."""
        if value is None:
            return 0
        growth = len(compact(value))
        if is_priority:
            return growth + _PRIORITY_BYTES
        before = self._draft.at(inside)
        if before is not None:
            return growth - len(compact(before))
        return growth + sum(_CHARACTER_BYTES * len(key) + _KEY_BYTES for key in inside)


def _longest_export(limit: int) -> int:
    """Return the most bytes of an export whose row surely has at most `limit`, its mark included.

    The row of an export of n bytes has at most n + n // 6 + 1.
    """
    sevenths, rest = divmod(limit - 1, 7)
    return 6 * sevenths + min(rest, 5)


PAGE_END: Final = b"\x01"
"""Appended to the key of a page's first member, it makes the key of the page."""
_END: Final = PAGE_END[0]
HEAD: Final = Struct(">BHHH")
"""The numbers that a page begins with."""
ENTRY: Final = Struct(">HH")
"""Where the row of one member begins and ends in the body."""
SUM_BYTES: Final = 4
_from_bytes: Final = int.from_bytes


Member: TypeAlias = tuple[bytes, bytes, int]
"""A row that is a member of a page, or may become one: its encoded key within the container, what
the body has of it, and how many bytes of that are the row, at the end. Not a class, since changing
a page means making one for each of its members."""


def seal(key: bytes, content: bytes) -> bytes:
    """Return what is stored under `key`: the check sum, then the content."""
    return crc32(content, crc32(key)).to_bytes(SUM_BYTES, "big") + content


def seal_row(row: Row) -> Row:
    """Return a row with its check sum."""
    return row[0], seal(*row)


def unseal(key: bytes, stored: bytes) -> bytes:
    """Return the content of what is stored under `key`; raise `DamagedRow`."""
    content = stored[SUM_BYTES:]
    if crc32(content, crc32(key)) != _from_bytes(stored[:SUM_BYTES], "big"):
        raise DamagedRow("A row does not match its check sum.")
    return content


def unseal_near(key: bytes, stored: Row) -> Row:
    """Return a row that was found by `floor` without its check sum; raise `DamagedRow`.

    A long one that does not hold what is at `key` is not read, and comes empty. No page is long:
    one that is empty is damaged.
    """
    at, value = stored
    if 0 < len(value) <= LONG_BYTES or is_page(at) or key.startswith(at):
        return at, unseal(at, value)
    return at, b""


def is_page(key: bytes) -> bool:
    """Return whether a page is stored at `key`, not a row."""
    return key[-1:] == PAGE_END


class Page:
    """The content of one page, which is read from it when it is needed.

    Attributes:
        content: all of it.
        is_marked: whether a member has a priority somewhere.
        container: the encoded path of the container.
        count: how many members it has.
        entries_at, body_at: where these parts of the content begin.

    """

    __slots__ = ("_keys", "body_at", "container", "content", "count", "entries_at", "is_marked")

    def __init__(self, key: bytes, content: bytes) -> None:
        """Read the head of the page at `key`."""
        is_marked, start, self.count, keys = HEAD.unpack_from(content)
        self.is_marked = bool(is_marked)
        self.container = key[:start]
        self._keys = HEAD.size
        self.entries_at = HEAD.size + keys
        self.body_at = self.entries_at + ENTRY.size * self.count
        self.content = content

    @property
    def body(self) -> bytes:
        """The members as in a JSON object."""
        return self.content[self.body_at :]

    @property
    def keys(self) -> bytes:
        """The encoded keys of the members within the container, joined."""
        return self.content[self._keys : self.entries_at]

    @property
    def has_integers(self) -> bool:
        """Whether the encoded keys are integers, not text."""
        return self.content[self._keys] == INT_TAG

    @property
    def last_key(self) -> bytes:
        """The encoded key of the last member within the container."""
        content, start, end = self.content, self._keys, self.entries_at
        if content[start] == INT_TAG:
            return content[end - INT_BYTES : end]
        return content[content.rfind(_TEXT, start, end) : end]

    def find(self, key: bytes) -> Row | None:
        """Return the member whose row key is `key` or begins it; None if there is none."""
        container = self.container
        start = len(container)
        if not key.startswith(container) or len(key) == start:
            return None
        end = end_of_key(key, start)
        number = self.number_of(key[start:end]) if end else -1
        return (key[:end], self.raw(number)) if number >= 0 else None

    def find_all(self, segments: Iterable[bytes], found: dict[bytes, bytes]) -> None:
        """Add the rows of the members with some encoded keys to `found`."""
        for segment in segments:
            number = self.number_of(segment)
            if number >= 0:
                found[segment] = self.raw(number)

    def number_of(self, segment: bytes) -> int:
        """Return the place of the member with an encoded key, from 0 on; -1 if there is none."""
        content, start, end = self.content, self._keys, self.entries_at
        at = content.find(segment, start, end)
        if content[start] == INT_TAG:
            while at >= 0 and (at - start) % INT_BYTES:
                at = content.find(segment, at + 1, end)
            return (at - start) // INT_BYTES if at >= 0 else -1
        # No text has a tag or an end in it, so this is a whole key.
        return content.count(TEXT_END, start, at) if at >= 0 else -1

    def find_gap(self, segment: bytes) -> tuple[int, int]:
        """Return how many members, and bytes of their keys, are before that of a new member."""
        keys = self.keys
        if keys[0] == INT_TAG:
            number = bisect_right(self.member_keys(), segment)
            return number, number * INT_BYTES
        texts = keys.split(TEXT_END)  # the last one is empty
        number = bisect_right(texts, segment[:-1], 0, self.count)
        # A text that begins with another one comes after it.
        return number, keys.find(texts[number] + TEXT_END) if number < self.count else len(keys)

    def entry(self, number: int) -> tuple[int, int]:
        """Return where the row of a member begins and ends in the body."""
        start, end = ENTRY.unpack_from(self.content, self.entries_at + ENTRY.size * number)
        return start, end

    def raw(self, number: int) -> bytes:
        """Return the row of a member."""
        start, end = ENTRY.unpack_from(self.content, self.entries_at + ENTRY.size * number)
        return self.content[self.body_at + start : self.body_at + end]

    def raws(self) -> list[bytes]:
        """Return the rows of all members."""
        content, body = self.content, self.body_at
        at = unpack_from(f">{2 * self.count}H", content, self.entries_at)
        return [
            content[body + start : body + end] for start, end in zip(at[::2], at[1::2], strict=True)
        ]

    def member_keys(self) -> list[bytes]:
        """Return the encoded keys of all members within the container."""
        keys = self.keys
        if keys[0] == INT_TAG:
            return [keys[at : at + INT_BYTES] for at in range(0, len(keys), INT_BYTES)]
        return [text + TEXT_END for text in keys[:-1].split(TEXT_END)]

    def rows(self) -> list[Row]:
        """Return the members as rows of their own."""
        container = self.container
        return [
            (container + key, raw) for key, raw in zip(self.member_keys(), self.raws(), strict=True)
        ]

    @property
    def size(self) -> int:
        """The bytes of its members, as `size_of` counts them."""
        return len(self.content) - HEAD.size + 1

    def members(self) -> list[Member]:
        """Return the members."""
        at = unpack_from(f">{2 * self.count}H", self.content, self.entries_at)
        ends, body = at[1::2], self.body
        starts = [0, *[end + 1 for end in ends[:-1]]]
        texts = [body[start:end] for start, end in zip(starts, ends, strict=True)]
        return list(zip(self.member_keys(), texts, map(sub, ends, at[::2]), strict=True))


class PagedRows:
    """Single rows, read as from a `ReadView`, over `stored` rows and pages; raises `DamagedRow`."""

    __slots__ = ("stored",)

    def __init__(self, stored: ReadView) -> None:
        self.stored = stored

    def find(self, key: bytes) -> Row | None:
        """Return the row whose key is `key` or begins it; None if there is none."""
        found = self._look_up(key)
        if found is None:
            return None
        at, content = found
        if not at or at[-1] != _END:
            return (at, content) if key.startswith(at) else None
        return self._read_page(found).find(key)

    def find_children(self, container: bytes, segments: Iterable[bytes]) -> dict[bytes, bytes]:
        """Return the rows of children of a spread container, by their encoded keys, in one step.

        Each page is read once. A child is left out if it has no row of its own, or a longer one
        than `LARGE_ROW_BYTES`.
        """
        wanted = sorted(segments)
        keys = [container + segment + PAGE_END for segment in wanted]
        stored = sorted(self.stored.floors(keys, LARGE_ROW_BYTES + SUM_BYTES))
        found: dict[bytes, bytes] = {}
        starts = [bisect_left(keys, key) for key, _ in stored]
        for (key, sealed), start, end in zip(stored, starts, [*starts[1:], None], strict=False):
            if not sealed:
                continue  # it is longer
            content = unseal(key, sealed)
            if is_page(key):
                page = Page(key, content)
                if page.container == container:
                    page.find_all(wanted[start:end], found)
            elif keys[start] == key + PAGE_END and not is_priority_row(content):
                found[wanted[start]] = content
        return found

    def get(self, key: bytes) -> bytes | None:
        """Return the row at `key`."""
        row = self.find(key)
        return row[1] if row is not None and row[0] == key else None

    def floor(self, key: bytes) -> Row | None:
        """Return the row with the greatest key that is at most `key`."""
        found = self._look_up(key)
        if found is None or not is_page(found[0]):
            return found
        page = self._read_page(found)
        keys, start = page.member_keys(), len(page.container)
        number = len(keys)
        if key.startswith(page.container):
            number = bisect_right(keys, key[start:])
        return page.container + keys[number - 1], page.raw(number - 1)

    def scan(self, low: bytes, high: bytes, *, reverse: bool = False) -> Iterator[Row]:
        """Iterate over the rows with `low <= key < high` in key order, or backwards."""
        before = self._page_around(low)
        if before is not None and not reverse:
            yield from [row for row in before if low <= row[0] < high]
        for key, stored in self.stored.scan(low, high, reverse=reverse):
            if is_page(key):
                rows = Page(key, unseal(key, stored)).rows()
                if rows[-1][0] >= high:
                    rows = [row for row in rows if row[0] < high]
                yield from reversed(rows) if reverse else rows
            else:
                yield key, unseal(key, stored)
        if before is not None and reverse:
            yield from [row for row in reversed(before) if low <= row[0] < high]

    def scan_keys(self, low: bytes, high: bytes, *, reverse: bool = False) -> Iterator[bytes]:
        """Iterate over the keys alone, as `scan` does; only pages are read."""
        before = [row[0] for row in self._page_around(low) or () if low <= row[0] < high]
        if not reverse:
            yield from before
        for key in self.stored.scan_keys(low, high, reverse=reverse):
            if is_page(key):
                if not reverse:
                    yield key.removesuffix(PAGE_END)  # if only this one is needed, no page is read
                stored = self.stored.get(key)
                if stored is None:
                    continue  # it was removed after its first key was returned
                page = Page(key, unseal(key, stored))
                keys = [page.container + each for each in page.member_keys()]
                if keys[-1] >= high:
                    keys = [each for each in keys if each < high]
                yield from reversed(keys) if reverse else keys[1:]
            else:
                yield key
        if reverse:
            yield from reversed(before)

    def scan_whole(self, low: bytes, high: bytes) -> Iterator[Row]:
        """Iterate as `scan_stored` does; of pages that are partly outside come single rows."""
        before = self._page_around(low)
        if before is not None:
            yield from [row for row in before if low <= row[0] < high]
        last: Row | None = None  # only the last page can have members beyond the range
        for key, stored in self.stored.scan(low, high):
            if last is not None:
                yield last
            last = key, unseal(key, stored)
        if last is not None:
            if not is_page(last[0]) or (page := Page(*last)).container + page.last_key < high:
                yield last
            else:
                yield from [row for row in page.rows() if row[0] < high]

    def scan_stored(self, low: bytes, high: bytes) -> Iterator[Row]:
        """Iterate over the stored rows and pages of a range, without their check sums."""
        for key, stored in self.stored.scan(low, high):
            yield key, unseal(key, stored)

    def is_merged(self, encoded: bytes) -> bool:
        """Return whether anything at, above or below a path is not from the store."""
        return False

    def sequence(self) -> int:
        """Return the number of the last entry that was ever appended, 0 before the first."""
        return self.stored.sequence()

    def entries(self, after: int) -> Iterator[LogEntry]:
        """Iterate over the retained entries with numbers above `after`."""
        return self.stored.entries(after)

    def _look_up(self, key: bytes) -> Row | None:
        """Return what holds the row `key` or the last one before it, without its check sum."""
        found = self.stored.floor(key + PAGE_END)
        return None if found is None else unseal_near(key, found)

    def _read_page(self, found: Row) -> Page:
        """Return the page that `_look_up` has found."""
        return Page(*found)

    def _page_around(self, low: bytes) -> list[Row] | None:
        """Return the rows of the page that begins before `low` if it ends at or after that."""
        if low == FIRST or (low[-1:] == LOWEST_TAG and len(low) < ROW_KEY_BYTES):
            return None  # what is below a container begins with a row or a page
        found = self._look_up(low)
        if found is None or not is_page(found[0]) or found[0] >= low:
            return None
        page = Page(*found)
        return page.rows() if page.container + page.last_key >= low else None
