"""Reads: which form of the data is asked for, and the JSON bytes of that form, piece by piece.

A form is parsed before any database is touched. Its pieces are drawn from the rows as they are
needed, so that whoever sends them decides how much is in memory at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Final, TypeAlias

import attrs

from treedbd.rules.evaluation import QueryFacts
from treedbd.store.layout import Span
from treedbd.store.nodes import Nodes
from treedbd.store.selection import choose
from treedbd.tree import printing
from treedbd.tree.path import VALUE, Path, Place
from treedbd.tree.query import Bound, InvalidQuery, Query, Scalar, parse_query
from treedbd.tree.shallow import Shallow, parse_shallow
from treedbd.tree.value import Container
from treedbd.web.parameters import Parameters, parse_callback, parse_choice

Pieces: TypeAlias = Callable[[Nodes], Iterator[bytes]]


@attrs.frozen
class Form:
    """What of the data at a place is shown, and how it is wrapped.

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


PLAIN = Form(None, None, False, None, None)
_NEUTRAL = frozenset({"auth", "access_token", "auth_variable_override", "ns", "print", "timeout"})
"""Parameters that do not bear on the form."""

_EDGES: Final = {"[MIN_NAME]": False, "[MAX_NAME]": True}
"""How clients name what lies before all keys and what lies after them; neither can be a key."""


def parse_form(parameters: Parameters) -> Form:
    """Return the form that the parameters of a read ask for; raise `InvalidQuery`."""
    if parameters.keys() <= _NEUTRAL:
        return PLAIN
    is_export = parse_choice(parameters, "format", "export") is not None
    shallow = parse_shallow(parameters)
    query = None if shallow is not None else _without_edges(parse_query(parameters))
    if is_export and shallow is not None:
        raise InvalidQuery("format=export does not go with shallow.")
    callback = parameters.get("callback")
    return Form(
        shallow,
        query,
        is_export,
        None if callback is None else parse_callback(callback),
        parameters.get("download"),
    )


def _without_edges(query: Query | None) -> Query | None:
    """Return a query with bounds before or after all keys of a value as bounds of that value.

    `startAfter=5,"[MAX_NAME]"` leaves out all children at 5, and so does `startAfter=5`.
    """
    if query is None or query.order.kind == "key" or query.low is query.high:
        return query
    low, high = query.low, query.high
    if low is not None and low.key in _EDGES:
        low = Bound(low.value, None, not _EDGES[low.key])
    if high is not None and high.key in _EDGES:
        high = Bound(high.value, None, _EDGES[high.key])
    return attrs.evolve(query, low=low, high=high)


def facts_of(form: Form) -> QueryFacts | None:
    """Return what the rules may know of a read that is a query; None for a plain one."""
    shallow = form.shallow
    if shallow is not None and (shallow.limit, shallow.start_after) != (None, None):
        return QueryFacts(order_by_key=True, limit_to_first=shallow.limit)
    query = form.query
    if query is None:
        return None
    kind = query.order.kind
    exact = query.low is not None and query.low is query.high
    low = query.low if query.low is not None and query.low.is_inclusive else None
    high = query.high if query.high is not None and query.high.is_inclusive else None
    return QueryFacts(
        order_by_key=kind == "key",
        order_by_priority=kind == "priority",
        order_by_value=kind == "value",
        order_by_child="/".join(query.order.path) if kind == "child" else None,
        start_at=None if exact or low is None else _bound_value(kind, low),
        end_at=None if exact or high is None else _bound_value(kind, high),
        equal_to=_bound_value(kind, low) if exact and low is not None else None,
        limit_to_first=query.limit_to_first,
        limit_to_last=query.limit_to_last,
    )


def index_of(query: Query) -> str | None:
    """Return the name of the index that a query would use; None where the store needs none."""
    if query.order.kind == "child":
        return "/".join(query.order.path)
    return VALUE if query.order.kind == "value" else None


def pieces_of(form: Form, place: Place) -> Pieces:
    """Return what draws the JSON of a form, piece by piece, from the nodes of one moment."""
    path = place.path
    shallow, query = form.shallow, form.query
    if place.of_priority:
        if query is not None:  # it is a leaf, without children to show
            return lambda nodes: iter((b"null",))
        return lambda nodes: iter((printing.compact(nodes.priority(path)),))
    if shallow is not None:
        return lambda nodes: _shallow(nodes, path, shallow)
    if query is not None:
        return lambda nodes: _selected(nodes, path, query, form.is_export)
    return lambda nodes: nodes.pieces(path, export=form.is_export)


def _bound_value(kind: str, bound: Bound) -> Scalar:
    return bound.key if kind == "key" else bound.value


def _shallow(nodes: Nodes, path: Path, shallow: Shallow) -> Iterator[bytes]:
    found = nodes.peek(path)
    if not isinstance(found, Container):
        return iter((printing.compact(found),))
    span = Span(after=shallow.start_after)
    members: Iterator[tuple[str, Iterable[bytes]]]
    if shallow.version == 1:
        members = ((key, (b"true",)) for key in nodes.keys(path, span))
    else:
        members = ((child.key, _outline(child.pieces())) for child in nodes.children(path, span))
    return _object(islice(members, shallow.limit))


def _outline(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """Show a leaf as it is, and the size of a container, counted piece by piece."""
    first = next(pieces)
    if first[0] not in b"{[":
        yield first
        return
    size = len(first)
    for piece in pieces:
        size += len(piece)
        yield b""
    yield b'{".sz":%d}' % size


def _selected(nodes: Nodes, path: Path, query: Query, is_export: bool) -> Iterator[bytes]:
    return _object(
        None if child is None else (child.key, child.pieces(export=is_export))
        for child in choose(nodes, path, query)
    )


def _object(members: Iterable[tuple[str, Iterable[bytes]] | None]) -> Iterator[bytes]:
    """Print members as an object in the order in which they come; none at all is null.

    An empty piece stands for each None, and wherever else somebody may want to look at the clock.
    """
    joint = b"{"
    for member in members:
        if member is None:
            yield b""
            continue
        key, pieces = member
        yield b"%b%b:" % (joint, printing.compact(key))
        yield from pieces
        joint = b","
    yield b"null" if joint == b"{" else b"}"
