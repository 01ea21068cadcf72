"""The representation of a read: which of the data, in which form, and how it is wrapped.

`ReadOptions` are parsed before a database is touched. The JSON is then rendered in chunks from the
rows as they are needed, so the sender decides how much is in memory at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from itertools import chain, islice
from typing import TypeAlias

import attrs

from treedbd.database.answers import Answer
from treedbd.database.errors import TooLargeToIndent
from treedbd.limits import MAX_SHOWN_BYTES
from treedbd.store.canonical import etag_in_steps
from treedbd.store.nodes import Nodes
from treedbd.store.row_codec import parse_stored
from treedbd.store.row_keys import Span
from treedbd.store.select import iterate_selected
from treedbd.tree import printing, value
from treedbd.tree.etag import etag
from treedbd.tree.query import Query
from treedbd.tree.shallow import Shallow
from treedbd.tree.types import Container, Json, Path, Place
from treedbd.web.content import SMALL_BYTES, Content, WaitingBytes
from treedbd.web.flow import Flow
from treedbd.web.headers import Header
from treedbd.web.read_options import PLAIN, ReadOptions
from treedbd.web.rendering import Rendering
from treedbd.web.request import DataRequest
from treedbd.web.response import JSON_HEADERS, JSON_TYPE, Response
from treedbd.web.wrapping import wrap

Chunks: TypeAlias = Callable[[Nodes], Iterator[bytes]]
"""Renders JSON from the nodes of one moment; at an empty chunk the caller can check the time."""


@attrs.define(eq=False)
class ComputedTag:
    """The entity tag of a value, once it is computed."""

    text: str | None = None


@attrs.frozen
class ReadSource:
    """What a read renders (a `RenderingSource`): the data at a place.

    If it `is_wrapped`, with what is around the JSON in the response, so that it is sent as it is.
    `database` only distinguishes the places of different ones. `tag` is set, before the JSON is
    rendered, to that of the value.
    """

    database: object
    place: Place
    options: ReadOptions
    is_wrapped: bool = False
    tag: ComputedTag | None = None

    @property
    def key(self) -> Hashable:
        """Equal for reads that render the same from the same state."""
        options = self.options
        callback = options.callback if self.is_wrapped else None
        return self.database, self.place, options.form, callback, self.tag is not None

    def shares(self, _: object) -> bool:
        """Return that this read can show what another with the same key has rendered."""
        return True

    def chunks(self, nodes: Nodes) -> Iterator[bytes]:
        """Render from the nodes of one moment."""
        chunks = chunks_of(self.options, self.place)(nodes)
        if self.tag is not None:
            chunks = chain(self._compute_tag(nodes, self.tag), chunks)
        if not self.is_wrapped or self.options.callback is None:
            return chunks
        before, after, _ = wrap(self.options.callback, None)
        return chain((before,), chunks, (after,))

    def _compute_tag(self, nodes: Nodes, tag: ComputedTag) -> Iterator[bytes]:
        if not self.place.is_priority:
            for tag.text in etag_in_steps(nodes, self.place.path):
                yield b""


def make_source(database: object, request: DataRequest) -> ReadSource:
    """Return what renders the response to a read of a database."""
    options = request.read_options
    is_tagged = _is_tagged(request, options)
    is_wrapped = request.print == "compact" and not is_tagged
    tag = ComputedTag() if is_tagged else None
    return ReadSource(database, request.place, options, is_wrapped, tag)


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


def read_response(
    request: DataRequest, options: ReadOptions, body: bytes, tag: str | None = None
) -> Response:
    """Return the response whose JSON is `body`; `tag` is its entity tag if that is known."""
    is_tagged = _is_tagged(request, options)
    if options is PLAIN and request.print == "compact" and not is_tagged:
        return Response(200, body)
    tags: tuple[Header, ...] = ()
    if is_tagged:
        present = tag or tag_of(options, body)
        tags = ((b"ETag", request.dialect.etag(present)),)
        if request.condition is not None and request.condition.matches(
            present, body != printing.NULL
        ):
            return Response(304, b"", tags)
    if request.print == "silent":
        return Response(204, b"", tags)
    if request.print == "pretty":
        body = request.dialect.pretty(parse_stored(body))
    before, after, headers = wrap(options.callback, options.download)
    return Response(200, before + body + after, (*headers, *tags))


def kept_response(request: DataRequest, answer: Answer, memory: WaitingBytes) -> Response:
    """Return the response that shows a kept answer; a large one is counted by `memory`."""
    options = request.read_options
    if answer.tag is None and _is_tagged(request, options):
        answer.tag = tag_of(options, answer.body)
    response = read_response(request, options, answer.body, answer.tag)
    if response.body is not answer.body or len(answer.body) <= SMALL_BYTES:
        return response
    if answer.content is None:
        answer.content = Content(memory, answer.body)
    return attrs.evolve(response, body=answer.content)


def tag_of(options: ReadOptions, body: bytes) -> str:
    """Return the entity tag of a plain read or an export whose JSON is `body`."""
    json = parse_stored(body)
    return etag(value.plain(value.from_export(json)) if options.is_export else json)


def shared_response(
    request: DataRequest,
    source: ReadSource,
    rendered: bytes | Rendering | Flow,
    cut_off_at: float | None,
) -> Response:
    """Return the response to a read, with the rendering itself as its body where that is possible.

    `cut_off_at` is when a client must have read a large one, if its request says so. Raises
    `TooLargeToIndent` for one that cannot be indented.
    """
    options = source.options
    if isinstance(rendered, bytes) and not source.is_wrapped:
        return read_response(request, options, rendered, known_tag(source))
    if source.is_wrapped or isinstance(rendered, bytes):
        is_short = options is PLAIN and isinstance(rendered, bytes)
        headers = JSON_HEADERS if is_short else wrap(options.callback, options.download).headers
        return Response(200, rendered, headers, cut_off_at)
    tag = known_tag(rendered.source)
    if tag is not None and (may_flow(request) or request.print == "silent"):
        return attrs.evolve(_tagged_response(request, rendered, tag), cut_off_at=cut_off_at)
    if isinstance(rendered, Flow) or rendered.size > MAX_SHOWN_BYTES:
        raise TooLargeToIndent
    body = rendered.whole()
    response = read_response(request, options, body, tag)
    if response.body is body:
        return attrs.evolve(response, body=rendered, cut_off_at=cut_off_at)
    return response


def may_flow(request: DataRequest) -> bool:
    """Return whether the JSON of a read is sent as it is rendered."""
    options = request.read_options
    return request.print == "compact" and not (
        options.callback is not None and _is_tagged(request, options)
    )


def known_tag(source: object) -> str | None:
    """Return the tag that was computed before the JSON was rendered, None if there is none."""
    return source.tag.text if isinstance(source, ReadSource) and source.tag is not None else None


def _tagged_response(request: DataRequest, rendered: Rendering | Flow, tag: str) -> Response:
    """Return the response with a large value, or 304 if the client has it."""
    options = request.read_options
    tags = ((b"ETag", request.dialect.etag(tag)),)
    if request.condition is not None and request.condition.matches(tag, True):
        return Response(304, b"", tags)
    if request.print == "silent":
        return Response(204, b"", tags)
    headers = wrap(options.callback, options.download).headers
    return Response(200, rendered, (*headers, *tags))


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


def _render_shallow(nodes: Nodes, path: Path, shallow: Shallow) -> Iterator[bytes]:
    found = nodes.peek(path)
    if not isinstance(found, Container):
        return iter((printing.compact(found),))
    span = Span(after=shallow.start_after)
    if shallow.version == 1:
        return printing.print_keys(islice(nodes.keys(path, span), shallow.limit))
    members = ((child.key, _render_size(child.chunks())) for child in nodes.children(path, span))
    return printing.print_members(islice(members, shallow.limit))


def _render_size(chunks: Iterator[bytes]) -> Iterator[bytes]:
    """Render a leaf as it is, and the size of a container, counted chunk by chunk."""
    while not (first := next(chunks)):
        yield b""
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
