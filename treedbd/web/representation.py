"""The representation of a read: which of the data, in which form, and how it is wrapped.

`ReadOptions` are parsed before a database is touched. The JSON is then rendered in chunks from the
rows as they are needed, so the sender decides how much is in memory at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator
from itertools import chain, islice
from typing import Final, TypeAlias

import attrs

from treedbd.database.errors import TooLarge
from treedbd.limits import MAX_TAGGED_BYTES
from treedbd.rules.context import QueryFacts
from treedbd.store.nodes import Nodes
from treedbd.store.row_codec import parse_stored
from treedbd.store.row_keys import Span
from treedbd.store.select import iterate_selected
from treedbd.tree import printing, value
from treedbd.tree.errors import InvalidQuery
from treedbd.tree.etag import etag
from treedbd.tree.query import Bound, JsonScalar, Query, parse_query
from treedbd.tree.shallow import Shallow, parse_shallow
from treedbd.tree.types import VALUE, Container, Json, Path, Place
from treedbd.web.headers import Header
from treedbd.web.parameters import Parameters, parse_callback, parse_choice
from treedbd.web.rendering import Rendering
from treedbd.web.request import DataRequest
from treedbd.web.response import JSON_TYPE, Response
from treedbd.web.wrapping import wrap

Chunks: TypeAlias = Callable[[Nodes], Iterator[bytes]]
"""Renders JSON from the nodes of one moment; at an empty chunk the caller can check the time."""

_WITHOUT_EFFECT: Final = frozenset(
    {"auth", "access_token", "auth_variable_override", "ns", "print", "timeout"}
)
"""Parameters that do not change what is read."""
_EDGES: Final = {"[MIN_NAME]": False, "[MAX_NAME]": True}
"""What clients send for a key before all others and for one after them; neither can be a key."""


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


PLAIN: Final = ReadOptions(None, None, False, None, None)


@attrs.frozen
class ReadSource:
    """What a read renders (a `RenderingSource`): the data at a place.

    If it `is_wrapped`, with what is around the JSON in the response, so that it is sent as it is.
    `database` only distinguishes the places of different ones.
    """

    database: object
    place: Place
    options: ReadOptions
    is_wrapped: bool = False

    @property
    def key(self) -> Hashable:
        """Equal for reads that render the same from the same state."""
        options = self.options
        # As text: 1 and True are equal, but are different bounds of a query.
        form = repr((options.shallow, options.query, options.is_export))
        return self.database, self.place, form, options.callback if self.is_wrapped else None

    def shares(self, _: object) -> bool:
        """Return that this read can show what another with the same key has rendered."""
        return True

    def chunks(self, nodes: Nodes) -> Iterator[bytes]:
        """Render from the nodes of one moment."""
        chunks = chunks_of(self.options, self.place)(nodes)
        if not self.is_wrapped or self.options.callback is None:
            return chunks
        before, after, _ = wrap(self.options.callback, None)
        return chain((before,), chunks, (after,))


def parse_read_options(parameters: Parameters) -> ReadOptions:
    """Return what the parameters of a read request; raise `InvalidQuery`."""
    if parameters.keys() <= _WITHOUT_EFFECT:
        return PLAIN
    is_export = parse_choice(parameters, "format", "export") is not None
    shallow = parse_shallow(parameters)
    query = None if shallow is not None else _without_edges(parse_query(parameters))
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


def query_facts(options: ReadOptions) -> QueryFacts | None:
    """Return what rules can read of a query; None for a plain read."""
    shallow = options.shallow
    if shallow is not None and (shallow.limit, shallow.start_after) != (None, None):
        return QueryFacts(order_by_key=True, limit_to_first=shallow.limit)
    query = options.query
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
    """Return the name of the index that a query would use; None if it needs none."""
    if query.order.kind == "child":
        return "/".join(query.order.path)
    return VALUE if query.order.kind == "value" else None


def chunks_of(options: ReadOptions, place: Place) -> Chunks:
    """Return a function that renders the JSON of a read, chunk by chunk."""
    path = place.path
    shallow, query = options.shallow, options.query
    if place.is_priority:
        if query is not None:  # it is a leaf, without children
            return lambda nodes: iter((b"null",))
        return lambda nodes: iter((printing.compact(nodes.priority(path)),))
    if shallow is not None:
        return lambda nodes: _render_shallow(nodes, path, shallow)
    if query is not None:
        return lambda nodes: _render_query(nodes, path, query, options.is_export)
    return lambda nodes: nodes.chunks(path, export=options.is_export)


def needs_body(request: DataRequest, options: ReadOptions) -> bool:
    """Return whether the response depends on the data, if only by its tag."""
    return request.print != "silent" or _is_tagged(request, options)


def needs_whole(request: DataRequest, options: ReadOptions) -> bool:
    """Return whether the response can only be made from the whole JSON at once."""
    return request.print != "compact" or _is_tagged(request, options)


def read_response(request: DataRequest, options: ReadOptions, body: bytes) -> Response:
    """Return the response whose JSON is `body`."""
    if options is PLAIN and request.print == "compact" and not _is_tagged(request, options):
        return Response(200, body)
    tags: tuple[Header, ...] = ()
    if _is_tagged(request, options):
        json = parse_stored(body)
        plain = value.plain(value.from_export(json)) if options.is_export else json
        present = etag(plain)
        tags = ((b"ETag", request.dialect.etag(present)),)
        if request.condition is not None and request.condition.matches(present, json is not None):
            return Response(304, b"", tags)
    if request.print == "silent":
        return Response(204, b"", tags)
    if request.print == "pretty":
        body = request.dialect.pretty(parse_stored(body))
    before, after, headers = wrap(options.callback, options.download)
    return Response(200, before + body + after, (*headers, *tags))


def shared_response(
    request: DataRequest, source: ReadSource, rendered: bytes | Rendering, deadline: float
) -> Response:
    """Return the response to a read, with the rendering itself as its body where that is possible.

    `deadline` is when a client must have read a large one. Raises `TooLarge` for one that can be
    neither tagged nor indented.
    """
    options = source.options
    if isinstance(rendered, bytes):
        if not source.is_wrapped:
            return read_response(request, options, rendered)
        if options is PLAIN:
            return Response(200, rendered)
        return Response(200, rendered, wrap(options.callback, options.download).headers)
    cut_off_at = deadline if rendered.is_in_file else None
    if source.is_wrapped:
        return Response(200, rendered, wrap(options.callback, options.download).headers, cut_off_at)
    if rendered.size > MAX_TAGGED_BYTES:
        raise TooLarge
    body = rendered.whole()
    response = read_response(request, options, body)
    if response.body is body:
        return attrs.evolve(response, body=rendered, cut_off_at=cut_off_at)
    return response


def json_response(request: DataRequest, json: Json, *headers: Header) -> Response:
    """Return the response that shows JSON in the form that `print` requests."""
    is_pretty = request.print == "pretty"
    text = request.dialect.pretty(json) if is_pretty else printing.compact(json)
    return text_response(request, text, *headers)


def text_response(request: DataRequest, text: bytes, *headers: Header) -> Response:
    """Return the response that shows JSON text as it is, or nothing if `print` is silent."""
    if request.print == "silent":
        return Response(204, b"", headers)
    return Response(200, text, (JSON_TYPE, *headers))


def _is_tagged(request: DataRequest, options: ReadOptions) -> bool:
    return (request.wants_etag or request.condition is not None) and options.is_plain


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


def _bound_value(kind: str, bound: Bound) -> JsonScalar:
    return bound.key if kind == "key" else bound.value


def _render_shallow(nodes: Nodes, path: Path, shallow: Shallow) -> Iterator[bytes]:
    found = nodes.peek(path)
    if not isinstance(found, Container):
        return iter((printing.compact(found),))
    span = Span(after=shallow.start_after)
    members: Iterator[tuple[str, Iterable[bytes]]]
    if shallow.version == 1:
        members = ((key, (b"true",)) for key in nodes.keys(path, span))
    else:
        members = (
            (child.key, _render_size(child.chunks())) for child in nodes.children(path, span)
        )
    return printing.print_members(islice(members, shallow.limit))


def _render_size(chunks: Iterator[bytes]) -> Iterator[bytes]:
    """Render a leaf as it is, and the size of a container, counted chunk by chunk."""
    first = next(chunks)
    if first[0] not in b"{[":
        yield first
        return
    size = len(first)
    for chunk in chunks:
        size += len(chunk)
        yield b""
    yield b'{".sz":%d}' % size


def _render_query(nodes: Nodes, path: Path, query: Query, is_export: bool) -> Iterator[bytes]:
    return printing.print_members(
        None if child is None else (child.key, child.chunks(export=is_export))
        for child in iterate_selected(nodes, path, query)
    )
