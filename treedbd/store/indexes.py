"""Indexes as rows: their keys, how far each is built, and how writes keep them.

An *index* is declared by rules: for all collections whose path matches a pattern, the children are
to be kept in one order. Each child of such a collection has one *entry* in the index, also one in
which nothing is at the path of the order. Only spread collections have entries (see `nodes`).

**Keys.** The key of an entry, all parts in the encodings of `tree.path`:

    INDEX_FIRST   one byte, above every row of the tree
    8 bytes       the identifier of the index
    …             the path of the collection, at most `COLLECTION_BYTES`
    PATH_END      one byte
    …             what the child is ordered by
    …             the key of the child

So the entries of a collection are one range, in the order of a query by that index, and so are the
entries below a path. A value or key that is too long for a row key is cut: a cut value keeps its
first `VALUE_BYTES` bytes, a cut key its first `CHILD_BYTES` bytes and a digest. Then entries that
are equal up to there are in no certain order, and the content of the entry holds the whole key.

**States.** One row, beside the entries, says which indexes there are and how far each is built
(`IndexStates`). An index is `building` until all children of all its collections have entries;
writes keep what is there already. It is `built` from then on, and read by queries. When it is no
longer declared it is `dropping` until it has no entries.

**Building and dropping** are done in small steps (`IndexBuild`, `drop_some`). Each step is a
transaction of its own, which also changes the row of states, so it goes on after a crash. It begins
where the one before it ended, whatever has been written in between: entries are put again without
harm, and of what writes have entered or removed nothing is left to do.

**Writing.** `IndexWriter` keeps the entries in the transaction of the write that changes them.
Before changes are applied, what they touch is noted: of a change below a child of a collection the
child and what it is ordered by; of a change at or above collections nothing, since all their
entries are removed at once. Afterwards the noted children are compared with what they are ordered
by now, and collections that were replaced, or are spread only now, are entered as a whole. So the
cost follows the change, not the collection.

**Ranks.** Where children have to be read for what they are ordered by, as building does and a
query without an index, `ranks_of` finds the ranks of many at once, and `Ranking` sorts them.

The reader and the transaction are given separately, so that writers, building and the check use the
same functions.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from functools import lru_cache
from hashlib import blake2b
from heapq import merge
from itertools import count, groupby, islice
from operator import itemgetter
from typing import Any, Final, Literal, NamedTuple, TypeAlias

import attrs
import orjson

from treedbd.limits import MIB
from treedbd.loop import PAUSE_AFTER, free_beside, pause, paused, run_paused
from treedbd.store.engine import DamagedRow, ReadView, Row, Transaction
from treedbd.store.node_writer import ROW_BYTES, NodeWriter
from treedbd.store.nodes import ChildSource, Nodes, Spread
from treedbd.store.pages import PAGE_BYTES
from treedbd.store.rows import (
    ALL,
    CONTAINERS,
    LARGE_ROW_BYTES,
    Span,
    decode_key,
    has_priorities,
    parse_stored,
    part_at,
    peek_part,
    priority_of_part,
    seal,
    seal_row,
    unseal,
)
from treedbd.tree.path import (
    ABOVE_ALL,
    BELOW_ALL,
    BEYOND,
    ValueRank,
    decode_value,
    encode_key,
    encode_path,
    encode_value,
    ends_of_values,
    parse_child,
    rank_value,
    rank_values,
)
from treedbd.tree.query import BY_PRIORITY, BY_VALUE, FieldKind, Order, Query, TooMuchText
from treedbd.tree.types import CONTAINER, Change, Container, Json, Leaf, Path, Value, free
from treedbd.tree.value import NULL, compact, leaf_of, priority_of

INDEX_FIRST: Final = b"\x05"
INDEX_END: Final = b"\x06"
"""All entries of all indexes are in the range from the one to the other."""
STATE_KEY: Final = INDEX_END
"""The key of the one row that says which indexes there are (`IndexStates`)."""
USAGE_KEY: Final = b"\x06u"
"""The key of the one row that says how much the database holds (`usage`)."""
DISCONNECT_FIRST: Final = b"\x06d"
DISCONNECT_END: Final = b"\x06e"
"""All writes that are kept for the end of a session are in this range (`disconnect_rows`)."""
COLLECTION_BYTES: Final = 240
"""A collection whose encoded path is longer has no entries; queries there read all children."""
VALUE_BYTES: Final = 100
CHILD_BYTES: Final = 100
PATH_END: Final = b"\x01"
_ID_BYTES: Final = 8
_DIGEST_BYTES: Final = 16

Pattern: TypeAlias = tuple[str | None, ...]
"""The path of collections; None matches any key."""


@attrs.frozen
class ChildIndex:
    """An index: the order in which the children of all collections of a pattern are kept."""

    pattern: Pattern
    order: Order
    identifier: bytes = attrs.field(init=False, eq=False, repr=False)

    @identifier.default
    def _(self) -> bytes:
        identity: Any = [*self.pattern, self.name]
        return blake2b(compact([identity]), digest_size=_ID_BYTES).digest()

    @property
    def name(self) -> str:
        """What `.indexOn` calls it."""
        if self.order == BY_VALUE:
            return ".value"
        return "$priority" if self.order == BY_PRIORITY else "/".join(self.order.path)

    @property
    def range(self) -> tuple[bytes, bytes]:
        """The range of all its entries."""
        return INDEX_FIRST + self.identifier, INDEX_FIRST + self.identifier + BEYOND

    def matches(self, path: Path) -> bool:
        """Return whether a path is that of a collection of this index."""
        return len(path) == len(self.pattern) and matches_above(self.pattern, path)

    def below(self, path: Path) -> tuple[bytes, bytes]:
        """Return the range of the entries of all collections at or below a path."""
        low = INDEX_FIRST + self.identifier + encode_path(path)
        return low, low + BEYOND

    def collection(self, path: Path) -> bytes | None:
        """Return what the keys of all entries of a collection begin with, None if it has none."""
        encoded = encode_path(path)
        if len(encoded) > COLLECTION_BYTES:
            return None
        return INDEX_FIRST + self.identifier + encoded + PATH_END


class Entry(NamedTuple):
    """One entry: the child, and what it is ordered by.

    `rank` is None if the value was cut. With `is_cut`, entries that begin with the same bytes up to
    `tie` of their keys are in no certain order.
    """

    child: str
    rank: ValueRank | None
    is_cut: bool
    tie: int


def encode_entry(collection: bytes, value: object, child: str) -> tuple[bytes, bytes]:
    """Return the key and the content of an entry.

    `collection` is what `ChildIndex.collection` returns; `value` is a leaf, `CONTAINER` or None.
    """
    encoded, key = encode_value(value), encode_key(child)
    is_value_cut, is_key_cut = len(encoded) > VALUE_BYTES, len(key) > CHILD_BYTES
    if not is_value_cut and not is_key_cut:
        return collection + encoded + key, b""
    if is_value_cut:
        encoded = encoded[:VALUE_BYTES]
    if is_key_cut:
        digest = blake2b(key, digest_size=_DIGEST_BYTES).hexdigest().encode()
        key = key[:CHILD_BYTES] + digest + b"\x00"
    return collection + encoded + key, compact([child, is_value_cut])


def ends_of_orders(keys: Sequence[bytes], at: int) -> list[int]:
    """Return where what children are ordered by ends in the keys of their entries; 0 if it is cut.

    Also if the key of the child is cut: then the content has what the key lacks. The entries follow
    each other in a collection, `at` is the length of what it returns for their keys.
    """
    return [
        end if len(key) - end <= CHILD_BYTES else 0
        for key, end in zip(keys, ends_of_values(keys, at, VALUE_BYTES), strict=True)
    ]


def decode_entry(collection: bytes, key: bytes, content: bytes) -> Entry:
    """Return the entry with a key and content that `encode_entry` made."""
    at = len(collection)
    if content:
        child, is_value_cut = orjson.loads(content)
        if is_value_cut:
            return Entry(child, None, True, at + VALUE_BYTES)
        rank, end = decode_value(key, at)
        is_cut = len(encode_key(child)) > CHILD_BYTES
        return Entry(child, rank, is_cut, end + CHILD_BYTES if is_cut else len(key))
    rank, end = decode_value(key, at)
    return Entry(decode_key(key[end:]), rank, False, len(key))


Stage: TypeAlias = Literal["building", "built", "dropping"]

_SPECIAL: Final = {".value": BY_VALUE, "$priority": BY_PRIORITY, ".priority": BY_PRIORITY}


@attrs.frozen
class BuildPosition:
    """How far an index is built: all before the child that follows `child` in `collection`.

    None for `child` is before the first one.
    """

    collection: Path
    child: str | None = None


@attrs.frozen
class IndexState:
    """An index and its stage.

    Attributes:
        position: how far it is built while that goes on, None before the first run is over.
        since: the number of the last write before it was declared.
        entered: how many children after the position have been entered; perhaps not the first ones.

    """

    index: ChildIndex
    stage: Stage
    position: BuildPosition | None = None
    since: int = 0
    entered: int = 0


@attrs.frozen
class IndexStates:
    """All indexes of a database."""

    states: tuple[IndexState, ...] = ()
    kept: tuple[ChildIndex, ...] = attrs.field(init=False, eq=False)
    """The indexes whose entries every write must keep."""

    @kept.default
    def _kept(self) -> tuple[ChildIndex, ...]:
        return tuple(each.index for each in self.states if each.stage != "dropping")

    def find(self, path: Path, order: Order) -> ChildIndex | None:
        """Return an index by which the children of `path` can be read in an order, if any can."""
        for each in self.states:
            index = each.index
            if each.stage == "built" and index.order == order and index.matches(path):
                return index
        return None

    def with_state(self, state: IndexState) -> IndexStates:
        """Return the states with another one of an index, which is added if it is new."""
        states = {each.index: each for each in self.states}
        states[state.index] = state
        return IndexStates(tuple(states.values()))

    def without(self, index: ChildIndex) -> IndexStates:
        """Return the states without an index."""
        return IndexStates(tuple(each for each in self.states if each.index != index))


NO_INDEXES: Final = IndexStates()


def order_named(name: str) -> Order:
    """Return the order that a name in `.indexOn` means; raise ValueError for any other name."""
    return _SPECIAL.get(name) or Order("child", parse_child(name))


def read_states(view: ReadView) -> IndexStates:
    """Return the indexes of a database at one moment; raise `DamagedRow`."""
    stored = view.get(STATE_KEY)
    return NO_INDEXES if stored is None else _decode(stored)


def write_states(transaction: Transaction, states: IndexStates) -> None:
    """Set the indexes of a database."""
    if not states.states:
        transaction.delete(STATE_KEY)
        return
    json: Any = [_to_json(each) for each in states.states]
    transaction.put(STATE_KEY, seal(STATE_KEY, compact(json)))


def _to_json(state: IndexState) -> Any:
    json: dict[str, Json] = {
        "pattern": list(state.index.pattern),
        "order": state.index.name,
        "stage": state.stage,
    }
    if state.position is not None:
        json["position"] = [*state.position.collection, state.position.child]
    if state.since:
        json["since"] = state.since
    if state.entered:
        json["entered"] = state.entered
    return json


@lru_cache(maxsize=64)
def _decode(stored: bytes) -> IndexStates:
    try:
        json: Any = orjson.loads(unseal(STATE_KEY, stored))
        return IndexStates(tuple(_from_json(each) for each in json))
    except (orjson.JSONDecodeError, LookupError, TypeError, AttributeError):
        raise DamagedRow("The row of the indexes cannot be read.") from None


def _from_json(json: Any) -> IndexState:
    index = ChildIndex(tuple(json["pattern"]), order_named(json["order"]))
    position = None
    if "position" in json:
        *collection, child = json["position"]
        position = BuildPosition(tuple(collection), child)
    return IndexState(
        index=index,
        stage=json["stage"],
        position=position,
        since=json.get("since", 0),
        entered=json.get("entered", 0),
    )


_LEAVES: Final = {0: None, 1: False, 2: True, 5: CONTAINER}


def value_of(rank: ValueRank) -> Leaf | Container | None:
    """Return the value that is ranked; of a string as much as an entry may hold."""
    kind, content = rank
    if isinstance(content, str):
        return content[:VALUE_BYTES]
    found: Leaf | Container | None = _LEAVES.get(kind, content)
    return found


def look_up(nodes: Nodes, order: Order, child: Path) -> tuple[bool, Leaf | Container | None]:
    """Return whether a child exists, and what it is ordered by; raise `DamagedRow`."""
    found = nodes.peek(child)
    if found is None:
        return False, None
    if order.kind == "priority":
        return True, nodes.priority(child)
    return True, found if order.kind == "value" else nodes.peek((*child, *order.path))


def entries_of(nodes: Nodes, index: ChildIndex, path: Path, batch: Sequence[Member]) -> list[Row]:
    """Return the entries of children of a collection, in the order of their keys."""
    collection = index.collection(path)
    if collection is None:
        return []
    ranks = ranks_of(nodes, path, Query(index.order), batch)
    return sorted(
        encode_entry(collection, value_of(rank), key)
        for rank, (key, _) in zip(ranks, batch, strict=True)
    )


def enter(transaction: Transaction, entries: Iterable[Row]) -> None:
    """Store entries."""
    transaction.put_all(map(seal_row, entries))


def enter_collection(transaction: Transaction, nodes: Nodes, index: ChildIndex, path: Path) -> None:
    """Enter all children of a spread collection; pauses."""
    if index.collection(path) is None:
        return
    for batch in batched(nodes.sources(path)):
        enter(transaction, entries_of(nodes, index, path, batch))
        pause()


def find_collections(nodes: Nodes, pattern: Pattern, above: Path) -> Iterator[Path]:
    """Iterate over the spread collections of a pattern at or below a path, in key order; pauses.

    `above` matches the beginning of the pattern.
    """
    visited = paused(_visit(nodes, pattern, above))
    return (path for path, is_collection in visited if is_collection)


def _visit(
    nodes: Nodes, pattern: Pattern, above: Path, start: Path = ()
) -> Iterator[tuple[Path, bool]]:
    """Iterate over the paths where the search for spread collections ends: True for such a one.

    With `start`, one of these paths, those before it are left out. For each at least one row key is
    read. Most may be no collections, so a caller with a budget counts them too.
    """
    depth, is_spread = len(above), nodes.is_spread(above)
    if not is_spread or depth == len(pattern):
        yield above, is_spread
        return
    wanted = pattern[depth]
    if wanted is not None:
        yield from _visit(nodes, pattern, (*above, wanted), start)
        return
    first = start[depth] if len(start) > depth and start[:depth] == above else None
    for key in nodes.keys(above, ALL if first is None else Span(at=first)):
        yield from _visit(nodes, pattern, (*above, key), start if key == first else ())


def matches_above(pattern: Pattern, path: Path) -> bool:
    """Return whether a path is that of a collection of a pattern, or above one."""
    if len(path) > len(pattern):
        return False
    for wanted, key in zip(pattern, path, strict=False):
        if wanted is not None and wanted != key:
            return False
    return True


RUN_ENTRIES: Final = 65_536
"""Children of a run."""
RUN_BYTES: Final = 8 * MIB
"""Bytes of their keys beyond which a run is complete, with what puts them in order."""
_PLACE_BYTES: Final = 24
"""Bytes of what a child is ordered by that decide when it is entered."""


class IndexBuild:
    """Builds an index in steps, each in a transaction.

    Entered in the order of their keys, almost every child would change another page of the file. So
    children that follow each other are gathered, a *run*, and entered in the order of the index, in
    which they share pages. A run is only an order: what a child is ordered by is read when it is
    entered, so writes between two steps do no harm. The position moves at the end of the run, and
    after a crash the run is gathered again. So it is if a step was not committed, if another
    process has built, or if the index was declared again: then the state is another one.
    """

    def __init__(self, state: IndexState) -> None:
        """Go on where an index is built up to."""
        self._begin_run(state)

    def _begin_run(self, state: IndexState) -> None:
        self._state = state
        self._end = state.position
        self._gathered: list[tuple[Path, list[bytes]]] = []
        self._count = self._bytes = 0
        self._run: Iterator[tuple[Path, str]] | None = None

    def continues(self, state: IndexState) -> bool:
        """Return whether a state is the one that the last step has left."""
        return state == self._state

    def do_step(self, transaction: Transaction, budget: int) -> IndexState:
        """Enter about `budget` children, or gather some more; return how far the index is built.

        It pauses. If it raises, the build cannot be gone on with.
        """
        nodes, state = Nodes(transaction), self._state
        if self._run is None:
            self._gather(nodes, min(budget, RUN_ENTRIES - self._count))
            if self._end is not None and self._count < RUN_ENTRIES and self._bytes < RUN_BYTES:
                return state
            self._run = _in_order(self._gathered)
        entered = list(paused(islice(self._run, budget)))
        for path, members in groupby(entered, itemgetter(0)):
            self._enter(transaction, nodes, path, [key for _, key in members])
        self._count -= len(entered)
        if self._count:
            self._state = attrs.evolve(state, entered=state.entered + len(entered))
        else:
            stage: Stage = "built" if self._end is None else "building"
            self._begin_run(IndexState(state.index, stage, self._end, state.since))
        return self._state

    def _gather(self, nodes: Nodes, budget: int) -> None:
        """Gather about `budget` of the children that come next, less the paths that are visited."""
        index, position, self._end = self._state.index, self._end, None
        start = () if position is None else position.collection
        for path, is_collection in paused(_visit(nodes, index.pattern, (), start)):
            if budget <= 0:
                self._end = BuildPosition(path)
                return
            budget -= 1
            if not is_collection or index.collection(path) is None:
                continue
            is_begun = position is not None and path == position.collection
            after = position.child if is_begun and position is not None else None
            span = ALL if after is None else Span(after=after)
            places: list[bytes] = []
            for batch in batched(nodes.sources(path, span)):
                places += _places(ranks_of(nodes, path, Query(index.order), batch), batch)
                budget -= len(batch)
                if budget <= 0:
                    self._end = BuildPosition(path, batch[-1][0])
                    break
                pause()
            places.sort()
            self._gathered.append((path, places))
            self._count += len(places)
            self._bytes += sum(map(len, places))
            if self._end is not None:
                return

    def _enter(
        self, transaction: Transaction, nodes: Nodes, path: Path, keys: Sequence[str]
    ) -> None:
        """Enter those of the children of a collection that still exist, if it is still spread."""
        if not nodes.is_spread(path):
            return
        container = encode_path(path)
        for at in range(0, len(keys), BATCH_CHILDREN):
            some = keys[at : at + BATCH_CHILDREN]
            rows = nodes.rows.find_children(container, map(encode_key, some))
            members: list[Member] = []
            for key in some:
                source = rows.get(encode_key(key)) or nodes.source((*path, key))
                if source is not None:
                    members.append((key, source))
            enter(transaction, entries_of(nodes, self._state.index, path, members))
            pause()


def _places(ranks: Sequence[ValueRank], members: Sequence[Member]) -> list[bytes]:
    """Return where children are entered, which ends with their keys."""
    values = [encode_value(value_of(rank))[:_PLACE_BYTES] for rank in ranks]
    return [
        value.ljust(_PLACE_BYTES, b"\0") + key.encode()
        for value, (key, _) in zip(values, members, strict=True)
    ]


def _in_order(gathered: Sequence[tuple[Path, list[bytes]]]) -> Iterator[tuple[Path, str]]:
    """Iterate over the children of sorted parts of collections, in the order of their places."""
    for path, parts in groupby(gathered, itemgetter(0)):
        for place in merge(*[places for _, places in parts]):
            yield path, place[_PLACE_BYTES:].decode()


def drop_some(transaction: Transaction, index: ChildIndex, budget: int) -> bool:
    """Remove at most `budget` entries; return whether all are removed. It pauses."""
    return drop_rows(transaction, *index.range, budget)


def drop_rows(transaction: Transaction, low: bytes, high: bytes, budget: int) -> bool:
    """Remove at most `budget` rows of a range; return whether all are removed. It pauses."""
    for left in range(budget, 0, -PAUSE_AFTER):
        wanted = min(left, PAUSE_AFTER)
        keys = list(islice(transaction.scan_keys(low, high), wanted))
        if keys:
            transaction.delete_range(low, keys[-1] + b"\0")
        if len(keys) < wanted:
            return True
        pause()
    return False


class _NoChild:
    """The type of what is noted of a child that does not exist."""


class _Unknown:
    """The type of what is noted of a child that could not be read."""


_ABSENT: Final = _NoChild()
_UNREADABLE: Final = _Unknown()
_KNOWN_PATHS: Final = 64

_Noted: TypeAlias = "tuple[Leaf | Container | None, ...] | _NoChild | _Unknown"
"""What a child was ordered by in each of the indexes of its collection."""


@attrs.define
class _Collection:
    """A collection whose children change: its indexes, and what the children were ordered by.

    Of a collection that was not spread nothing is noted: it had no entries.
    """

    indexes: tuple[ChildIndex, ...]
    was_spread: bool
    children: dict[str, _Noted] = attrs.Factory(dict)


class IndexWriter:
    """Keeps the entries of some indexes: `note` before changes are applied, `update` after."""

    def __init__(
        self, nodes: Nodes, transaction: Transaction, indexes: Sequence[ChildIndex]
    ) -> None:
        """Read `nodes`, which show what the transaction has changed."""
        self._nodes = nodes
        self._transaction = transaction
        self._indexes = indexes
        self._depths = sorted({len(index.pattern) for index in indexes})
        self._replaced: list[tuple[ChildIndex, Path]] = []
        self._noted: dict[Path, _Collection] = {}
        self._matching: dict[Path, tuple[ChildIndex, ...]] = {}
        self._near: dict[Path, bool] = {}

    def note(self, changes: Sequence[Change]) -> None:
        """Note what changes, in the order in which they will be applied, may change."""
        touched: dict[Path, dict[str, None]] = {}
        deepest = self._depths[-1]
        for change in paused(changes):
            path, is_priority = change.place
            beginning = path[:deepest]
            is_near = self._near.get(beginning)
            if not (self._find_near(beginning) if is_near is None else is_near):
                continue
            for depth in self._depths:
                if len(path) > depth:
                    touched.setdefault(path[:depth], {})[path[depth]] = None
            if is_priority:
                touched.setdefault(path, {})  # its row may become too long: it is spread then
            elif len(path) <= deepest:
                self._replace(path)
            pause()
        for path, keys in touched.items():
            self._note_children(path, keys)

    def _find_near(self, path: Path) -> bool:
        """Return whether a path may be at, above or below a collection of any index.

        `path` is no longer than the patterns: of a longer one it is the beginning. The last few are
        known (`_near`), since most writes are not near any collection.
        """
        if len(self._near) == _KNOWN_PATHS:
            self._near.clear()
        near = any(
            matches_above(each.pattern[: len(path)], path[: len(each.pattern)])
            for each in self._indexes
        )
        self._near[path] = near
        return near

    def _replace(self, path: Path) -> None:
        """Remove the entries of the collections at and below a path that is written as a whole."""
        for index in self._indexes:
            if matches_above(index.pattern, path):
                self._transaction.delete_range(*index.below(path))
                self._replaced.append((index, path))

    def _note_children(self, path: Path, keys: Iterable[str]) -> None:
        collection = self._noted.get(path)
        if collection is None:
            matching = self._indexes_of(path)
            if not matching:
                return
            collection = _Collection(matching, self._nodes.is_spread(path))
            self._noted[path] = collection
        if collection.was_spread:
            new = [key for key in keys if key not in collection.children]
            for children in self._look_up(path, collection.indexes, new):
                collection.children.update(children)

    def _indexes_of(self, path: Path) -> tuple[ChildIndex, ...]:
        """Return the indexes of a collection; those of the last few paths are known."""
        matching = self._matching.get(path)
        if matching is None:
            if len(self._matching) == _KNOWN_PATHS:
                self._matching.clear()
            matching = tuple([index for index in self._indexes if index.matches(path)])
            self._matching[path] = matching
        return matching

    def update(self) -> None:
        """Bring the entries up to date, after the changes that were noted."""
        for index, path in self._replaced:
            for collection in find_collections(self._nodes, index.pattern, path):
                enter_collection(self._transaction, self._nodes, index, collection)
        for path, noted in self._noted.items():
            is_spread = self._nodes.is_spread(path)
            if is_spread and noted.was_spread:
                self._update_children(path, noted)
                continue
            for index in noted.indexes:
                if is_spread:
                    enter_collection(self._transaction, self._nodes, index, path)
                elif noted.was_spread:
                    self._transaction.delete_range(*index.below(path))
        self._replaced.clear()
        self._noted.clear()

    def enter_added(self, path: Path, children: dict[str, Value]) -> None:
        """Enter children that were added to a spread container, in which they were not before."""
        for index in self._indexes:
            if index.matches(path):
                for batch in batched(children.items()):
                    enter(self._transaction, entries_of(self._nodes, index, path, batch))
                    pause()
            elif len(path) < len(index.pattern):
                self._enter_below(index, path, children)

    def _enter_below(self, index: ChildIndex, path: Path, keys: Iterable[str]) -> None:
        for key in keys:
            below = (*path, key)
            if matches_above(index.pattern, below):
                for collection in find_collections(self._nodes, index.pattern, below):
                    enter_collection(self._transaction, self._nodes, index, collection)

    def _look_up(
        self, path: Path, indexes: Sequence[ChildIndex], keys: Iterable[str]
    ) -> Iterator[dict[str, _Noted]]:
        """Yield what children of a collection are ordered by in each of the indexes."""
        found: dict[str, _Noted] = {}
        for batch in batched(self._members(path, keys, found)):
            try:
                ranks = [ranks_of(self._nodes, path, Query(each.order), batch) for each in indexes]
            except DamagedRow:
                found.update(self._look_up_each(path, indexes, batch))
            else:
                for (key, _), *values in zip(batch, *ranks, strict=True):
                    found[key] = tuple(map(value_of, values))
            yield found
            found.clear()
            pause()
        yield found

    def _members(
        self, path: Path, keys: Iterable[str], others: dict[str, _Noted]
    ) -> Iterator[Member]:
        """Iterate over children with their rows; those without one go to `others`."""
        for key in keys:
            try:
                source = self._nodes.source((*path, key))
            except DamagedRow:
                others[key] = _UNREADABLE
                continue
            if source is None:
                others[key] = _ABSENT
            else:
                yield key, source

    def _look_up_each(
        self, path: Path, indexes: Sequence[ChildIndex], batch: Sequence[Member]
    ) -> Iterator[tuple[str, _Noted]]:
        for member in batch:
            try:
                ranks = [
                    ranks_of(self._nodes, path, Query(each.order), [member]) for each in indexes
                ]
            except DamagedRow:
                yield member[0], _UNREADABLE
            else:
                yield member[0], tuple([value_of(rank) for (rank,) in ranks])

    def _update_children(self, path: Path, noted: _Collection) -> None:
        encoded = [index.collection(path) for index in noted.indexes]
        for present in self._look_up(path, noted.indexes, noted.children):
            added = []
            for key, after in present.items():
                before = noted.children[key]
                for at, collection in enumerate(encoded):
                    if collection is not None:
                        added += self._update_child(collection, key, before, after, at)
            enter(self._transaction, sorted(added))

    def _update_child(
        self, collection: bytes, key: str, before: _Noted, after: _Noted, at: int
    ) -> list[Row]:
        """Remove an entry that is no longer right; return the one that replaces it."""
        if isinstance(before, _Unknown):
            self._remove_unknown(collection, key)
        elif not isinstance(before, _NoChild):
            if isinstance(after, tuple) and _are_same(before[at], after[at]):
                return []
            self._transaction.delete(encode_entry(collection, before[at], key)[0])
        return [encode_entry(collection, after[at], key)] if isinstance(after, tuple) else []

    def _remove_unknown(self, collection: bytes, child: str) -> None:
        """Remove the entry of a child of which it is not known what it was ordered by."""
        end = collection[:-1] + bytes((collection[-1] + 1,))
        for key, stored in self._transaction.scan(collection, end):
            if decode_entry(collection, key, unseal(key, stored)).child == child:
                self._transaction.delete(key)
                return


def _are_same(one: Leaf | Container | None, other: Leaf | Container | None) -> bool:
    # 1, 1.0 and True are equal, but True sorts elsewhere.
    return one == other and isinstance(one, bool) == isinstance(other, bool)


def make_writer(
    transaction: Transaction,
    indexes: Sequence[ChildIndex],
    row_bytes: int = ROW_BYTES,
    page_bytes: int = PAGE_BYTES,
) -> NodeWriter:
    """Return a writer that keeps the entries of indexes."""
    writer = NodeWriter(transaction, row_bytes, page_bytes)
    if indexes:
        writer.indexes = IndexWriter(writer, transaction, indexes)
    return writer


class WriterMaker:
    """Makes the writers of a database, which keep its indexes: one for each transaction."""

    def __init__(self, declare: Callable[[], Iterable[ChildIndex]]) -> None:
        """Begin without a transaction; `declare` returns the indexes of an empty database."""
        self._declare = declare
        self._transaction: Transaction | None = None
        self._writer: NodeWriter | None = None

    def make(self, transaction: Transaction) -> NodeWriter:
        """Return the writer into the open transaction; nothing else may change the tree in it.

        In an empty database all indexes are complete. Built later, they would follow the writes of
        an import at a distance that grows.
        """
        if self._writer is None or transaction is not self._transaction:
            states = read_states(transaction)
            declared = () if states.states else tuple(self._declare())
            if declared and transaction.sequence() == 0:
                states = IndexStates(tuple([IndexState(each, "built") for each in declared]))
                write_states(transaction, states)
            self._writer = make_writer(transaction, states.kept)
            self._transaction = transaction
        return self._writer

    def finish(self) -> None:
        """Store what the writer has kept in memory, and forget it."""
        writer, self._writer, self._transaction = self._writer, None, None
        if writer is not None:
            writer.flush()


BATCH_CHILDREN: Final = 64
"""Children whose ranks are found in one step."""
BATCH_BYTES: Final = 65_536
"""Bytes of rows beyond which no other child joins a batch."""
_SPREAD_BYTES: Final = 4096
"""Bytes whose parsing costs less than the lookup that a spread child needs."""
RUN_CHILDREN: Final = 1024
"""Children that are sorted at a time."""
KEPT_BYTES: Final = 4 * MIB
"""Bytes of children that are kept in memory while they are sorted."""
RUN_TEXT: Final = 2 * MIB
"""Characters of long strings that are sorted at a time, so that they are compared in some ms."""
TEXT_BYTES: Final = 32 * MIB
"""Characters of long strings by which the children are ordered that one query may keep."""
LONG_TEXT: Final = 1024
"""Characters of a string that is long."""

_CONTAINER_RANK: Final = rank_value(CONTAINER)

Member: TypeAlias = tuple[str, ChildSource]
_Ranked: TypeAlias = "tuple[int, Any, Any, str, ChildSource | None]"
"""A child: its rank, its place among those of the same rank, its key, and its row unless it was
released. No two have the same place, so tuples compare by rank, then by place."""


def batched(members: Iterable[Member]) -> Iterator[list[Member]]:
    """Yield the children, some at a time."""
    batch: list[Member] = []
    size = 0
    for member in members:
        batch.append(member)
        source = member[1]
        if isinstance(source, bytes):
            size += len(source)
        elif isinstance(source, Spread):
            size += _SPREAD_BYTES
        if len(batch) >= BATCH_CHILDREN or size >= BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def ranks_of(nodes: Nodes, path: Path, query: Query, batch: Sequence[Member]) -> list[ValueRank]:
    """Return the rank of each child of `path` in a batch, with pauses; raise `DamagedRow`.

    Of each child only what it is ordered by is read. The rows of a batch are parsed by one
    call, which takes a fraction of the time of one call for each. They are not brought into normal
    form: in a plain row an array is an array, and an index in the path of the order finds its item.
    """
    return run_paused(ranks_in_steps(nodes, path, query, batch))


def ranks_in_steps(
    nodes: Nodes, path: Path, query: Query, batch: Sequence[Member]
) -> Generator[None, None, list[ValueRank]]:
    """Return the same; a step ends with each long string that was looked up."""
    sources: list[Any] = [source for _, source in batch]
    raws = [source for source in sources if type(source) is bytes and len(source) <= BATCH_BYTES]
    if len(raws) == len(sources):
        return _ranks(_parse(raws, query.order.kind), query.order)
    parsed = iter(_parse(raws, query.order.kind))
    children = [
        source
        if type(source) is not bytes
        else next(parsed)
        if len(source) <= BATCH_BYTES
        else None
        for source in sources
    ]
    ranks = _ranks(children, query.order)
    for at, (key, source) in enumerate(batch):
        is_long = False
        if isinstance(source, Spread):
            if query.order.kind == "value":
                ranks[at] = _CONTAINER_RANK
            else:
                ranks[at], is_long = look_up_rank(nodes, (*path, key), query.order)
        elif type(source) is bytes and len(source) > BATCH_BYTES:
            ranks[at], is_long = rank_of_row(source, query.order)
        if is_long:
            yield
    return ranks


def _parse(raws: Sequence[bytes], kind: FieldKind) -> list[Json]:
    """Parse rows; what a query of this kind does not read is replaced by something shorter."""
    if kind == "priority":
        raws = [raw if has_priorities(raw) else NULL for raw in raws]
    elif kind == "value":
        raws = [b"{}" if raw[0] in CONTAINERS else raw for raw in raws]
    try:
        rows = parse_stored(b"[%b]" % b",".join(raws))
    except DamagedRow:
        rows = None
    if isinstance(rows, list) and len(rows) == len(raws):
        return rows
    return [parse_stored(raw) for raw in raws]


def _ranks(children: Sequence[Any], order: Order) -> list[ValueRank]:
    """Return the ranks of children, each in normal form or as in a plain row."""
    path = order.path
    if order.kind == "priority":
        return rank_values([priority_of(child) for child in children])
    parts: list[Any]
    if len(path) == 1:
        key = path[0]
        parts = [
            child.get(key) if type(child) is dict else part_at(child, path) for child in children
        ]
    else:
        parts = [part_at(child, path) for child in children]
    return rank_values([leaf_of(part) if type(part) is dict else part for part in parts])


def look_up_rank(nodes: Nodes, child: Path, order: Order) -> tuple[ValueRank, bool]:
    """Return the rank of a child by what the rows hold, and whether much was read for it."""
    read: list[int] = []
    if order.kind == "priority":
        rank = rank_value(nodes.priority(child, read.append))
    else:
        rank = rank_value(nodes.peek((*child, *order.path), read.append))
    return rank, sum(read) > LARGE_ROW_BYTES


def rank_of_row(raw: bytes, order: Order) -> tuple[ValueRank, bool]:
    """Return the same of a child whose row it is, a long string as it is parsed fastest."""
    is_long = len(raw) > LARGE_ROW_BYTES
    if order.kind == "priority":
        return rank_value(priority_of_part(raw, (), free)), is_long
    return rank_value(peek_part(raw, order.path, free)), is_long


class Ranking:
    """The children that a query may select, of those that were added.

    They are sorted in runs. With a short limit there is one run, and as soon as it is as long as
    the limit, its last child narrows the range of the ranks that are compared. A string that
    children are ordered by may have megabytes: no step reads more than one of these, a run ends
    earlier with them, and a query keeps `TEXT_BYTES` of them.
    """

    def __init__(self, query: Query, *, is_last: bool = False) -> None:
        """Sort from the end where the limit begins, or from the last one on with `is_last`."""
        self._query = query
        self._limit = query.limit_to_first or query.limit_to_last
        self._is_last = is_last or query.limit_to_last is not None
        self._is_short = self._limit is not None and self._limit <= RUN_CHILDREN
        self._lowest = BELOW_ALL if query.low is None else query.low.rank
        self._highest = ABOVE_ALL if query.high is None else query.high.rank
        self._numbers = count()
        self._run: list[_Ranked] = []
        # Tuples, since those of mere texts and numbers cost the garbage collector nothing.
        self._runs: list[tuple[_Ranked, ...]] = []
        self._kept_bytes = 0
        self._text = 0  # of long strings, in all runs
        self._run_text = 0
        self._most_run_text = RUN_TEXT

    def add(
        self,
        batch: Sequence[tuple[str, ChildSource | None]],
        ranks: Sequence[ValueRank],
        places: Iterable[Any] | None = None,
    ) -> None:
        """Add children; those of one rank are in the order of `places`, or in that of adding.

        Raises `TooMuchText` if they are ordered by more than may be kept.
        """
        lowest, highest, admits = self._lowest, self._highest, self._query.admits
        placed = zip(ranks, places or self._numbers, batch, strict=False)
        found: list[_Ranked] = [
            (*rank, place, key, source)
            for rank, place, (key, source) in placed
            if lowest < rank < highest or (lowest <= rank <= highest and admits(rank, key))
        ]
        self._kept_bytes += _row_bytes(found)
        if self._kept_bytes > KEPT_BYTES:
            found = [_release(child) for child in found]
        self._run += found
        text = _text_of(found)
        self._text += text
        self._run_text += text
        if (
            len(self._run) >= (2 * (self._limit or 0) if self._is_short else RUN_CHILDREN)
            or self._run_text > self._most_run_text
        ):
            self._end_run()
        if self._text > TEXT_BYTES:
            raise TooMuchText(TEXT_BYTES)

    def in_order(self) -> Iterator[_Ranked]:
        """Return the selected children from the end where the limit begins."""
        self._end_run()
        return islice(merge(*self._runs, reverse=self._is_last), self._limit)

    def forget(self) -> Iterator[None]:
        """Forget the children, some of them in each step."""
        while self._runs:
            self._runs.pop()
            yield None

    def free_beside(self) -> None:
        """Free the children that are left, in another thread: nothing reads them now."""
        free_beside(self._runs)

    def _end_run(self) -> None:
        run = self._run
        run.sort(reverse=self._is_last)
        if not self._is_short:
            self._runs.append(tuple(run))
            self._run, self._run_text = [], 0
            return
        del run[self._limit :]
        self._runs = [tuple(run)]
        self._kept_bytes = _row_bytes(run)
        self._text = self._run_text = _text_of(run)
        # So what stays is compared again only when as much has been added.
        self._most_run_text = max(RUN_TEXT, 2 * self._text)
        if len(run) == self._limit:
            last = run[-1][:2]
            if self._is_last:
                self._lowest = last
            else:
                self._highest = last


def _row_bytes(found: Iterable[_Ranked]) -> int:
    return sum([len(child[4]) for child in found if type(child[4]) is bytes])


def _text_of(found: Iterable[_Ranked]) -> int:
    """Return the characters of the long strings that children are ordered by."""
    texts = [child[1] for child in found if type(child[1]) is str]
    return sum([len(text) for text in texts if len(text) > LONG_TEXT])


def _release(child: _Ranked) -> _Ranked:
    """Release the row of a child; it is read again if it is needed."""
    return (*child[:4], None) if isinstance(child[4], bytes) else child
