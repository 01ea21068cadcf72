"""What the parameters of a read request: which of the data, and in which form."""

from __future__ import annotations

from functools import cached_property
from typing import Final

import attrs

from treedbd.limits import Limits
from treedbd.rules.context import NullBound, QueryBound, QueryFacts
from treedbd.tree.query import Bound, Query, Shallow, parse_query, parse_shallow
from treedbd.tree.types import VALUE, InvalidPath, InvalidQuery, Place
from treedbd.web.parameters import Parameters, parse_callback, parse_choice

_WITHOUT_EFFECT: Final = frozenset(
    {"auth", "access_token", "auth_variable_override", "ns", "print", "timeout"}
)
"""Parameters that do not change what is read."""
_NOT_OF_STREAMS: Final = ("shallow", "print", "callback", "download")
_EDGES: Final = {"[MIN_NAME]": False, "[MAX_NAME]": True}
"""What clients send for a key before all others and for one after them; neither can be a key."""
_LOWEST: Final = Bound(None, None, True)
"""A start that leaves out no child, so that for rules it is none."""


@attrs.frozen
class ReadOptions:
    """Which of the data at a place is shown, and how it is wrapped.

    At most one of `shallow`, `query` and `is_export` holds.
    """

    shallow: Shallow | None
    query: Query | None
    is_export: bool
    callback: str | None
    download: str | None

    @property
    def is_plain(self) -> bool:
        """Whether the value itself is shown, so that it has a tag."""
        return self.shallow is None and self.query is None

    @cached_property
    def form(self) -> str:
        """Equal for reads that show the same JSON of the same data, and only for these."""
        # As text: 1 and True are equal, but are different bounds of a query.
        return repr((self.shallow, self.query, self.is_export))

    @cached_property
    def facts(self) -> QueryFacts | None:
        """What rules can read of the query; None for a plain read."""
        return _query_facts(self.shallow, self.query)


PLAIN: Final = ReadOptions(None, None, False, None, None)
EXPORT: Final = ReadOptions(None, None, True, None, None)
"""A whole value, as it is and in export form."""


def parse_read_options(
    parameters: Parameters, where_children: int = Limits().where_children
) -> ReadOptions:
    """Return what the parameters of a read request; raise `InvalidQuery`.

    `where_children` is how many children a read with `where` may look through.
    """
    if parameters.keys() <= _WITHOUT_EFFECT:
        return PLAIN
    is_export = parse_choice(parameters, "format", "export") is not None
    shallow = parse_shallow(parameters)
    query = None
    if shallow is None:
        query = _without_edges(parse_query(parameters, where_children))
    if is_export and shallow is not None:
        raise InvalidQuery("format=export does not work with shallow.")
    callback = parameters.get("callback")
    return ReadOptions(
        shallow,
        query,
        is_export,
        None if callback is None else parse_callback(callback),
        parameters.get("download"),
    )


def check_stream(parameters: Parameters, place: Place) -> None:
    """Raise `InvalidQuery` or `InvalidPath` for what does not work with a stream."""
    for name in _NOT_OF_STREAMS:
        if name in parameters:
            raise InvalidQuery(f"{name} does not work with a stream.")
    parse_choice(parameters, "resume", "true", "false")
    if place.is_priority:
        raise InvalidPath("A priority cannot be watched; watch its node.")


def index_of(query: Query) -> str | None:
    """Return the name of the index that a query would use; None if it needs none."""
    if query.order.kind == "child":
        return "/".join(query.order.path)
    return VALUE if query.order.kind == "value" else None


def _query_facts(shallow: Shallow | None, query: Query | None) -> QueryFacts | None:
    """Return what rules see of a query; a page of a shallow read is a query by key."""
    if shallow is not None and (shallow.limit, shallow.start_after) != (None, None):
        return QueryFacts(True, start_at=shallow.start_after, limit_to_first=shallow.limit)
    if query is None:
        return None
    kind, low, high = query.order.kind, query.low, query.high
    exact = low if low is high else None
    return QueryFacts(
        order_by_key=kind == "key",
        order_by_priority=kind == "priority",
        order_by_value=kind == "value",
        order_by_child="/".join(query.order.path) if kind == "child" else None,
        start_at=None if exact or low == _LOWEST else _bound_value(kind, low),
        end_at=None if exact else _bound_value(kind, high),
        equal_to=_bound_value(kind, exact),
        limit_to_first=query.limit_to_first,
        limit_to_last=query.limit_to_last,
        has_where=query.where is not None,
    )


def _without_edges(query: Query | None) -> Query | None:
    """Return a query with bounds beyond all keys of a value as bounds of that value.

    `startAfter=5,"[MAX_NAME]"` excludes all children at 5, and so does `startAfter=5`.
    """
    if query is None or query.order.kind == "key" or query.low is query.high:
        return query
    low, high = query.low, query.high
    if low is not None and low.key in _EDGES:
        low = Bound(low.value, None, not _EDGES[low.key])
    if high is not None and high.key in _EDGES:
        high = Bound(high.value, None, _EDGES[high.key])
    return attrs.evolve(query, low=low, high=high)


def _bound_value(kind: str, bound: Bound | None) -> QueryBound:
    if bound is None:
        return None
    if kind == "key":
        return bound.key
    return NullBound.NULL if bound.value is None else bound.value
