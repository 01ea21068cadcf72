"""What the rules are evaluated against, and the error of an evaluation."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Any, Final, TypeAlias

import attrs

from treedbd.rules.budget import Budget
from treedbd.rules.document import TextPosition
from treedbd.rules.kept_reads import KeptReads
from treedbd.rules.slow_rules import MakeEvaluation
from treedbd.tree.types import Json, Path, Value, View


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
    `make_evaluation` the rules are measured (`rules.timed`). With `at_once` they are evaluated in
    one turn of the reactor, so they have half the budget, and patterns cost more.

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
    make_evaluation: MakeEvaluation | None = None
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
