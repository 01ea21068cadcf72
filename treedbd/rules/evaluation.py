"""What an expression is evaluated against, and how an evaluation fails."""

from __future__ import annotations

from typing import Any

import attrs

from treedbd.rules.limits import JUDGED_CHARACTERS
from treedbd.tree.path import Path
from treedbd.tree.view import View


class EvaluationError(Exception):
    """An expression has no value; the rule it stands in does not hold."""


@attrs.frozen
class QueryFacts:
    """What a rule may know of the query that a read carries.

    Build it without arguments for a read that carries none. Bounds are JSON primitives.
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
    def ordered_by_key(self) -> bool:
        """Whether keys give the order: they do where a limit or bound comes without an order."""
        if self.order_by_priority or self.order_by_value or self.order_by_child is not None:
            return False
        narrowed = (
            self.start_at,
            self.end_at,
            self.equal_to,
            self.limit_to_first,
            self.limit_to_last,
        )
        return self.order_by_key or any(one is not None for one in narrowed)


PLAIN_READ = QueryFacts()


@attrs.frozen
class Context:
    """The circumstances of one request, the same for all rules that judge it.

    `auth` is JSON, None for an anonymous caller. `now` is in milliseconds since 1970 and the same
    that a timestamp placeholder becomes. `view` is the tree before the operation.
    """

    auth: Any
    now: int
    view: View
    query: QueryFacts | None = None


class Scope:
    """The circumstances of one rule: those of the request, and the node it is evaluated at.

    One scope serves all rules of a request; `path` moves from node to node, and `characters` counts
    down what string methods and regular expressions may still go through.
    """

    __slots__ = ("after", "auth", "before", "characters", "now", "path", "query")

    def __init__(
        self, context: Context, before: View, after: View, characters: int = JUDGED_CHARACTERS
    ) -> None:
        self.auth = context.auth
        self.now = context.now
        self.query = context.query or PLAIN_READ
        self.before = before
        self.after = after
        self.characters = characters
        self.path: Path = ()

    def spend(self, characters: int) -> None:
        """Count so many characters; raise `EvaluationError` where that is more than are left."""
        self.characters -= characters
        if self.characters < 0:
            raise EvaluationError("The rules have too much text to go through.")
