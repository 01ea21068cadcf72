"""What the rules are evaluated against, and the error of an evaluation."""

from __future__ import annotations

from typing import Any, Final

import attrs

from treedbd.limits import RulesLimits
from treedbd.tree.types import Json, Path, Value
from treedbd.tree.view import View

DEFAULT_CHARACTERS: Final = RulesLimits().judged_characters


class EvaluationError(Exception):
    """An expression has no value; its rule counts as not true."""


@attrs.frozen
class QueryFacts:
    """What a rule can read of the query of a read, as `query`.

    Without arguments it describes a read without a query. Bounds are JSON primitives.
    """

    order_by_key: bool = False
    order_by_priority: bool = False
    order_by_value: bool = False
    order_by_child: str | None = None
    start_at: str | int | float | bool | None = None
    end_at: str | int | float | bool | None = None
    equal_to: str | int | float | bool | None = None
    limit_to_first: int | None = None
    limit_to_last: int | None = None

    @property
    def is_ordered_by_key(self) -> bool:
        """Whether the order is that of keys, which is the default of a limit or bound."""
        if self.order_by_priority or self.order_by_value or self.order_by_child is not None:
            return False
        narrowed = (
            self.start_at,
            self.end_at,
            self.equal_to,
            self.limit_to_first,
            self.limit_to_last,
        )
        return self.order_by_key or any(fact is not None for fact in narrowed)


PLAIN_READ: Final = QueryFacts()


@attrs.frozen
class Context:
    """The circumstances of one request, the same for all rules that are evaluated for it.

    `auth` is JSON, None for an anonymous caller. `now` is in milliseconds since 1970, and also
    replaces timestamp placeholders. `view` is the tree before the operation.
    """

    auth: Json
    now: int
    view: View
    query: QueryFacts | None = None


class Scope:
    """The state of one evaluation, shared by all rules of a request.

    `path` is the node that the current rule is evaluated at; `characters` is the
    number that string methods, regular expressions and comparisons of objects may still read.
    """

    __slots__ = ("after", "auth", "before", "characters", "now", "path", "query")

    def __init__(
        self, context: Context, before: View, after: View, characters: int = DEFAULT_CHARACTERS
    ) -> None:
        self.auth: Any = context.auth
        self.now = context.now
        self.query = context.query or PLAIN_READ
        self.before = before
        self.after = after
        self.characters = characters
        self.path: Path = ()

    def spend(self, characters: int) -> None:
        """Subtract characters that are read; raise `EvaluationError` if too few remain."""
        self.characters -= characters
        if self.characters < 0:
            raise EvaluationError("The rules read too much text.")


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
