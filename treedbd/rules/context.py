"""The context of an evaluation: what the rules of one request read, may spend, and keep.

A `Context` has the circumstances of one request: the caller, the time, the tree, the query. A
`Scope` is the state of one evaluation in it. What the rules read, they read through views, each of
which does one thing:

- `MeteredView` reads each node once, at the expense of the `Budget` of the request. The result of
  an expensive read is kept for other requests, as `KeptReads`.
- `Recorder` records the paths that are read, so that the verdict has its `Dependencies`.
- `TracedView` records what a rule has read, for an explanation of why it is not true.
"""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import Enum
from functools import cached_property
from typing import Any, Final, Literal, NamedTuple, TypeAlias

import attrs

from treedbd.limits import KIB, MIB, RulesLimits
from treedbd.loop import pause
from treedbd.rules.document import TextPosition
from treedbd.tree.types import (
    Change,
    Charge,
    Container,
    Json,
    Leaf,
    Path,
    Priority,
    Value,
    View,
    free,
)

DEFAULT_CHARACTERS: Final = RulesLimits().judged_characters
"""Characters that the rules of one request may read, unless settings say otherwise."""
AT_ONCE_PART: Final = 2
"""The part of the characters that may be read if all is evaluated without pauses: a half."""
PAUSED_CHARACTERS: Final = 64 * KIB
"""A read of so many characters is preceded by a pause."""


class EvaluationError(Exception):
    """An expression has no value; its rule counts as not true."""


class BudgetExceeded(EvaluationError):
    """The rules of one request have read all that they may read for it."""

    def __init__(self) -> None:
        super().__init__("The rules read too much text.")


class Budget:
    """The characters that the rules of one request may still read.

    They are those of stored text that has to be parsed, of what string methods, patterns and
    comparisons read, and of paths. One takes about a nanosecond.

    Attributes:
        characters: how many are left.
        at_once: whether all rules are evaluated without pauses, so that a pattern is charged what
            it takes at the worst.

    """

    __slots__ = ("at_once", "characters")

    def __init__(self, characters: int = DEFAULT_CHARACTERS, *, at_once: bool = False) -> None:
        self.characters = characters
        self.at_once = at_once

    def spend(self, characters: int) -> None:
        """Subtract characters about to be read; raise `BudgetExceeded` if too few remain.

        Many of them pause.
        """
        self.characters -= characters
        if self.characters < 0:
            raise BudgetExceeded
        if characters >= PAUSED_CHARACTERS:
            pause()


class NullBound(Enum):
    """A bound of null, which is not the same as no bound: it is equal to nothing but itself."""

    NULL = "null"


QueryBound: TypeAlias = str | int | float | bool | NullBound | None
"""What rules see of a bound: its value, None if there is none."""


@attrs.frozen
class QueryFacts:
    """What a rule can read of the query of a read, as `query`.

    Without arguments it describes a read without a query. `start_at` and `end_at` are the bounds
    whether they are inclusive or not: a way of selecting that rules do not see reads past them.
    """

    order_by_key: bool = False
    order_by_priority: bool = False
    order_by_value: bool = False
    order_by_child: str | None = None
    start_at: QueryBound = None
    end_at: QueryBound = None
    equal_to: QueryBound = None
    limit_to_first: int | None = None
    limit_to_last: int | None = None
    has_where: bool = False

    @property
    def is_ordered_by_key(self) -> bool:
        """Whether the order is that of keys, the default of a limit, a bound and `where`."""
        if self.order_by_priority or self.order_by_value or self.order_by_child is not None:
            return False
        narrowed = (
            self.start_at,
            self.end_at,
            self.equal_to,
            self.limit_to_first,
            self.limit_to_last,
        )
        return self.order_by_key or self.has_where or any(fact is not None for fact in narrowed)


PLAIN_READ: Final = QueryFacts()


@attrs.define(eq=False)
class Context:
    """The circumstances of one request, the same for all rules that are evaluated for it.

    `auth` is JSON, None for an anonymous caller. `now` is in milliseconds since 1970, and also
    replaces timestamp placeholders. `view` is the tree before the operation. `check` is called
    between two evaluations; what it raises ends them. `exceeded` is called with the location and
    the position of a rule that would have read more than the budget of the request. `kept` are
    expensive reads of `view`, or of a state in which they have the same results. With
    `slow_rules` the rules are measured, and slow ones reported. With `at_once` they are
    evaluated in one turn of the reactor, so they have half the budget, and patterns cost more.

    `reader` is set by the first rules that are evaluated: `view` as all rules of the request read
    it, and the budget at whose expense they do.
    """

    auth: Json
    now: int
    view: View
    query: QueryFacts | None = None
    check: Callable[[], None] | None = None
    exceeded: Callable[[str, TextPosition], None] | None = None
    kept: KeptReads | None = None
    slow_rules: SlowRulesReport | None = None
    at_once: bool = False
    reader: tuple[View, Budget] | None = attrs.field(default=None, init=False)


class Scope:
    """The state of one evaluation, shared by all rules of a request.

    `before` and `after` are the trees before and after the operation, `path` is the node that the
    current rule is evaluated at. `spend` is that of the budget.
    """

    __slots__ = ("after", "auth", "before", "budget", "now", "path", "query", "spend")

    def __init__(self, context: Context, before: View, after: View, budget: Budget) -> None:
        self.auth: Any = context.auth
        self.now = context.now
        self.query = context.query or PLAIN_READ
        self.before = before
        self.after = after
        self.budget = budget
        self.spend = budget.spend
        self.path: Path = ()


class KnownScope(Scope):
    """What is known of a request before it is done: `auth`, and `path`, which it addresses.

    For a read, `query` is known, too.
    """

    __slots__ = ()

    def __init__(
        self, auth: Json, path: Path, budget: Budget, query: QueryFacts | None = None
    ) -> None:
        self.auth = auth
        self.query = query or PLAIN_READ
        self.path = path
        self.budget = budget
        self.spend = budget.spend


class Subtree:
    """The value of a container, not yet read; only a comparison of objects reads it."""

    __slots__ = ("path", "view")

    def __init__(self, view: View, path: Path) -> None:
        self.view: Final = view
        self.path: Final = path

    def size(self, limit: int) -> int:
        """Return the approximate number of bytes; counting may stop beyond `limit`."""
        return self.view.size(self.path, limit)

    def get(self) -> Value:
        """Read the value."""
        return self.view.get(self.path)


REMEMBERED_NODES: Final = 10_000
"""Nodes, and as many types, that a view remembers; beyond, it begins to forget."""
LONG_STRING: Final = 1024
"""Characters of a string that is always remembered: the budget bounds how many there are."""

_Node: TypeAlias = Leaf | Container | None
_NodeType: TypeAlias = type[Leaf] | type[Container] | None


class MeteredView:
    """A `View` of `base` that remembers what was read, and charges `budget` for it.

    Whole subtrees (`get`) are charged by those who read them.
    """

    __slots__ = ("_base", "_kept", "_limit", "_nodes", "_types", "budget")

    def __init__(self, base: View, budget: Budget, kept: KeptReads | None = None) -> None:
        """Read `base`; `kept` are reads of the same state for other requests."""
        self._base: Final = base
        self.budget: Final = budget
        self._kept: Final = kept
        self._nodes: dict[Path, _Node] = {}
        self._types: Final[dict[Path, _NodeType]] = {}
        self._limit = REMEMBERED_NODES

    def get(self, path: Path) -> Value:
        """Return the whole subtree at `path`."""
        return self._base.get(path)

    def peek(self, path: Path, _: Charge = free) -> _Node:
        """Return the leaf at `path`, `CONTAINER` if it has children, None if nothing is there."""
        nodes = self._nodes
        if path in nodes:
            return nodes[path]
        if len(nodes) >= self._limit:
            self._forget_short()
        kept = self._kept
        if kept is not None and kept.reads and (found := kept.find(("peek", path))) is not None:
            self.budget.spend(found.cost)
            node: _Node = found.result
        else:
            budget = self.budget
            before = budget.characters
            node = self._base.peek(path, budget.spend)
            if kept is not None and before - budget.characters >= LEAST_COST:
                kept.keep(("peek", path), node, before - budget.characters)
        self._nodes[path] = node
        return node

    def type_at(self, path: Path, _: Charge = free) -> _NodeType:
        """Return the type of what `peek` returns."""
        if path in self._nodes:
            node = self._nodes[path]
            return None if node is None else type(node)
        types = self._types
        if path in types:
            return types[path]
        if len(types) >= REMEMBERED_NODES:
            types.clear()
        kept = self._kept
        if kept is not None and kept.reads and (found := kept.find(("type_at", path))) is not None:
            self.budget.spend(found.cost)
            node_type: _NodeType = found.result
        else:
            budget = self.budget
            before = budget.characters
            node_type = self._base.type_at(path, budget.spend)
            if kept is not None and before - budget.characters >= LEAST_COST:
                kept.keep(("type_at", path), node_type, before - budget.characters)
        types[path] = node_type
        return node_type

    def size(self, path: Path, limit: int) -> int:
        """Return the approximate number of bytes of the subtree at `path`."""
        return self._base.size(path, limit)

    def priority(self, path: Path, _: Charge = free) -> Priority | None:
        """Return the priority of the node at `path`."""
        return self._base.priority(path, self.budget.spend)

    def keys(self, path: Path) -> Iterator[str]:
        """Iterate over the keys of the children of `path`."""
        return self._base.keys(path)

    def _forget_short(self) -> None:
        self._nodes = {
            path: node
            for path, node in self._nodes.items()
            if type(node) is str and len(node) > LONG_STRING
        }
        self._limit = len(self._nodes) + REMEMBERED_NODES


LEAST_COST: Final = 8 * KIB
"""A read that costs less is not kept."""
POOL_BYTES: Final = 64 * MIB
POOL_READS: Final = 64
MAX_CHANGES: Final = 1000
"""Changes of one transaction; if it has more, nothing is kept until it has ended."""

Read: TypeAlias = tuple[Literal["peek", "type_at", "etag", "hash"], Path]
"""A method of `View`, or what was computed of all that is there, and the path."""


class KeptRead(NamedTuple):
    """The result of a read, and what it costs."""

    result: Any
    cost: int


class ReadPool:
    """What is kept of all databases, in the order of its last use.

    It bounds what is kept of all of them together; what was used longest ago is dropped first.
    """

    def __init__(self) -> None:
        self._sizes: Final[OrderedDict[tuple[KeptReads, Read], int]] = OrderedDict()
        self._bytes = 0

    def use(self, owner: KeptReads, read: Read) -> None:
        """Record that something is used."""
        self._sizes.move_to_end((owner, read))

    def add(self, owner: KeptReads, read: Read, size: int) -> None:
        """Add something of that many bytes; drop what was used longest ago to make room for it."""
        self._sizes[owner, read] = size
        self._bytes += size
        while self._bytes > POOL_BYTES or len(self._sizes) > POOL_READS:
            oldest_owner, oldest = next(iter(self._sizes))
            oldest_owner.drop(oldest)

    def remove(self, owner: KeptReads, read: Read) -> None:
        """Remove something."""
        self._bytes -= self._sizes.pop((owner, read))


class KeptReads:
    """What rules have read of one database at a high cost, kept for the next requests.

    Rules that compare with a leaf of ten megabytes would parse it for each request. So the result
    of an expensive read is kept with its cost, which every request is charged all the same: a
    verdict never depends on what is kept. Entity tags and hashes of large values, which writes are
    compared with, are kept in the same way.

    What is kept is the same in the last durable state of the database and in the transaction that
    is open, so both may use it. A change in the transaction drops what was read at, above and below
    its place, and until the transaction has ended nothing is kept there again; whether it was
    committed or rolled back makes no difference. A snapshot that is held may be older, and uses
    nothing of this.

    Attributes:
        reads: what is kept.

    """

    def __init__(self, pool: ReadPool) -> None:
        """Keep what `pool` has room for."""
        self._pool: Final = pool
        self.reads: Final[dict[Read, KeptRead]] = {}
        self._transaction: object = None
        self._changed: Final[list[Path]] = []

    def __len__(self) -> int:
        """Return how many reads are kept."""
        return len(self.reads)

    def find(self, read: Read) -> KeptRead | None:
        """Return the result of a read, if it is kept."""
        kept = self.reads.get(read)
        if kept is not None:
            self._pool.use(self, read)
        return kept

    def keep(self, read: Read, result: Any, cost: int) -> None:
        """Keep the result of a read of the durable state or of the open transaction."""
        size = sys.getsizeof(result)
        if size <= POOL_BYTES and not self._is_changed(read[1]):
            self.reads[read] = KeptRead(result, cost)
            self._pool.add(self, read, size)

    def drop(self, read: Read) -> None:
        """Forget one read."""
        del self.reads[read]
        self._pool.remove(self, read)

    def clear(self) -> None:
        """Forget everything."""
        for read in list(self.reads):
            self.drop(read)

    def note_changes(self, transaction: object, changes: Sequence[Change]) -> None:
        """Drop what changes in the open transaction concern."""
        if transaction is not self._transaction:
            self._changed.clear()  # there is one at a time, so the one before it has ended
            self._transaction = transaction
        paths = [change.place.path for change in changes[: MAX_CHANGES + 1]]
        if len(self._changed) <= MAX_CHANGES:
            self._changed.extend(paths)
        if not self.reads:
            return
        if len(paths) > MAX_CHANGES:
            self.clear()
        for read in [read for read in self.reads if _concern(paths, read[1])]:
            self.drop(read)

    def drop_concerned(self, path: Path) -> None:
        """Drop what a change concerns that belongs to no transaction."""
        for read in [read for read in self.reads if _concern((path,), read[1])]:
            self.drop(read)

    def end_transaction(self) -> None:
        """Record that no transaction is open."""
        self._transaction = None
        self._changed.clear()

    def _is_changed(self, path: Path) -> bool:
        """Return whether the open transaction has changed what is at, above or below a path."""
        return len(self._changed) > MAX_CHANGES or _concern(self._changed, path)


def _concern(changed: Sequence[Path], path: Path) -> bool:
    """Return whether one of the changed paths is at, above or below `path`."""
    depth = len(path)
    return any(each[:depth] == path[: len(each)] for each in changed)


class WrittenPaths:
    """Paths that were written.

    Attributes:
        paths, prefixes: the paths; and these with all that are above them.

    """

    def __init__(self, paths: Iterable[Path] = ()) -> None:
        self.paths: Final[set[Path]] = set()
        self.prefixes: Final[set[Path]] = set()
        for path in paths:
            self.add(path)

    def add(self, path: Path) -> None:
        """Add a path."""
        self.paths.add(path)
        while path not in self.prefixes:
            self.prefixes.add(path)
            path = path[:-1]


@attrs.frozen(slots=False)
class Dependencies:
    """What a verdict depended on besides the caller; if any of it changes, evaluate again.

    So the rules are evaluated once for a stream, and again only when a commit touches a node that
    they read.

    `paths` are the nodes that were read, each with everything below it; `reads_time` says whether a
    rule read `now`.
    """

    paths: frozenset[Path]
    reads_time: bool

    def touched_by(self, written: WrittenPaths) -> bool:
        """Return whether a change of these paths may change the verdict, however many they are.

        It may if one of them is at, above or below one that was read.
        """
        is_beside = written.paths.isdisjoint(self._ancestors)
        return not (is_beside and written.prefixes.isdisjoint(self.paths))

    @cached_property
    def _ancestors(self) -> frozenset[Path]:
        return frozenset(path[:end] for path in self.paths for end in range(len(path)))


class Recorder:
    """A `View` that adds the paths that are read to `paths`."""

    def __init__(self, view: View, paths: set[Path]) -> None:
        self._view: Final = view
        self.paths: Final = paths

    def get(self, path: Path) -> Value:
        """Return the whole subtree at `path`."""
        self.paths.add(path)
        return self._view.get(path)

    def peek(self, path: Path, charge: Charge = free) -> Leaf | Container | None:
        """Return the leaf at `path`, `CONTAINER` if it has children, None if nothing is there."""
        self.paths.add(path)
        return self._view.peek(path, charge)

    def type_at(self, path: Path, charge: Charge = free) -> type[Leaf] | type[Container] | None:
        """Return the type of what `peek` returns."""
        self.paths.add(path)
        return self._view.type_at(path, charge)

    def size(self, path: Path, limit: int) -> int:
        """Return the approximate number of bytes of the subtree at `path`."""
        self.paths.add(path)
        return self._view.size(path, limit)

    def priority(self, path: Path, charge: Charge = free) -> Priority | None:
        """Return the priority of the node at `path`."""
        self.paths.add(path)
        return self._view.priority(path, charge)

    def keys(self, path: Path) -> Iterator[str]:
        """Iterate over the keys of the children of `path`."""
        self.paths.add(path)
        return self._view.keys(path)


MAX_READS: Final = 20
"""Reads of one rule that are shown."""


@attrs.frozen
class TracedRead:
    """One read of a rule.

    Attributes:
        tree: `data` for the tree before the operation, `newData` for the one after it.
        path: the node.
        found: the leaf, None for nothing; if only that was read, its type, or `Container`.

    """

    tree: Literal["data", "newData"]
    path: Path
    found: Leaf | type[Leaf] | type[Container] | None


@attrs.define(eq=False, repr=False)
class TracedView:
    """A `View` that adds what is read to `reads`, as far as it is shown."""

    _view: View
    _tree: Literal["data", "newData"]
    _reads: dict[TracedRead, None]

    def get(self, path: Path) -> Value:
        """Return the whole subtree at `path`."""
        self._trace(path, Container)
        return self._view.get(path)

    def peek(self, path: Path, charge: Charge = free) -> Leaf | Container | None:
        """Return the leaf at `path`, `CONTAINER` if it has children, None if nothing is there."""
        found = self._view.peek(path, charge)
        self._trace(path, Container if isinstance(found, Container) else found)
        return found

    def type_at(self, path: Path, charge: Charge = free) -> type[Leaf] | type[Container] | None:
        """Return the type of what `peek` returns."""
        found = self._view.type_at(path, charge)
        self._trace(path, found)
        return found

    def size(self, path: Path, limit: int) -> int:
        """Return the approximate number of bytes of the subtree at `path`."""
        return self._view.size(path, limit)

    def priority(self, path: Path, charge: Charge = free) -> Priority | None:
        """Return the priority of the node at `path`."""
        return self._view.priority(path, charge)

    def keys(self, path: Path) -> Iterator[str]:
        """Iterate over the keys of the children of `path`."""
        return self._view.keys(path)

    def _trace(self, path: Path, found: Leaf | type[Leaf] | type[Container] | None) -> None:
        if len(self._reads) < MAX_READS:
            self._reads[TracedRead(self._tree, path, found)] = None


@attrs.frozen
class SlowRules:
    """The rules of one request that took long.

    Attributes:
        seconds: how long all of them took.
        location, position: the one that took longest in all: where it is in the document.
        slowest_s: how long that one took.
        count: how often that one was evaluated.

    """

    seconds: float
    location: str
    position: TextPosition
    slowest_s: float
    count: int


@attrs.frozen
class SlowRulesReport:
    """What `report` is called with: rules that took at least `least_s` seconds for one request."""

    least_s: float
    report: Callable[[SlowRules], None]
