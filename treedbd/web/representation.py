"""The representation of a read: which of the data, in which form, and how it is wrapped.

`ReadOptions` are parsed before a database is touched. The JSON is then rendered in chunks from the
rows as they are needed, so the sender decides how much is in memory at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from itertools import chain, islice
from typing import Final, TypeAlias

import attrs

from treedbd.database.answers import Answer
from treedbd.database.requests import TooLargeToIndent
from treedbd.http1.content import SMALL_BYTES, Content, Flow, WaitingBytes
from treedbd.http1.headers import Header
from treedbd.limits import KIB, MAX_SHOWN_BYTES
from treedbd.store.nodes import Nodes, etag_in_steps
from treedbd.store.rows import Span, parse_stored
from treedbd.store.select import iterate_selected
from treedbd.tree import value
from treedbd.tree.hashes import NULL_ETAG, etag
from treedbd.tree.query import Query, Shallow
from treedbd.tree.types import Container, Json, Path, Place
from treedbd.tree.value import compact, print_keys, print_members
from treedbd.web.request import PLAIN, DataRequest, Dialect, ReadOptions
from treedbd.web.response import JSON_HEADERS, JSON_TYPE, Response
from treedbd.web.wrapping import wrap

AT_ONCE_BYTES: Final = 64 * KIB
"""The tag of a longer kept answer is not computed in one step."""

Chunks: TypeAlias = Callable[[Nodes], Iterator[bytes]]
"""Renders JSON from the nodes of one moment; at an empty chunk the caller can check the time."""


@attrs.define(eq=False)
class ComputedTag:
    """The entity tag of a value, once it is computed."""

    text: str | None = None


@attrs.frozen
class ReadSource:
    """What a read renders (a `RenderingSource`): the data at a place, as the response has it.

    `database` only distinguishes the places of different ones. The text is indented as a `layout`
    has it, if there is one. `tag` is set, before the text is rendered, to that of the value; if
    only that is wanted, nothing is rendered.
    """

    database: object
    place: Place
    options: ReadOptions
    layout: Dialect | None = None
    tag: ComputedTag | None = None
    is_silent: bool = False

    @property
    def key(self) -> Hashable:
        """Equal for reads that render the same from the same state."""
        options = self.options
        rendered = options.form, options.callback, self.layout, self.is_silent
        return self.database, self.place, rendered, self.tag is not None

    def shares(self, _: object) -> bool:
        """Return that this read can show what another with the same key has rendered."""
        return True

    def chunks(self, nodes: Nodes) -> Iterator[bytes]:
        """Render from the nodes of one moment; raise `TooLargeToIndent` for too much to indent."""
        chunks = iter((b"",)) if self.is_silent else chunks_of(self.options, self.place)(nodes)
        if self.layout is not None:
            chunks = self.layout.indent(_bounded(chunks))
        if self.options.callback is not None:
            before, after, _ = wrap(self.options.callback, None)
            chunks = chain((before,), chunks, (after,))
        if self.tag is not None and self.tag.text is None:
            return chain(self._compute_tag(nodes, self.tag), chunks)
        return chunks

    def _compute_tag(self, nodes: Nodes, tag: ComputedTag) -> Iterator[bytes]:
        if self.place.is_priority:
            tag.text = etag(nodes.priority(self.place.path))
            return
        for tag.text in etag_in_steps(nodes, self.place.path):
            yield b""


def make_source(database: object, request: DataRequest, tag: str | None = None) -> ReadSource:
    """Return what renders the response to a read of a database; `tag` is known of the value."""
    options = request.read_options
    return ReadSource(
        database,
        request.place,
        options,
        request.dialect if request.print == "pretty" else None,
        ComputedTag(tag) if is_tagged(request) else None,
        request.print == "silent",
    )


def _bounded(chunks: Iterator[bytes]) -> Iterator[bytes]:
    """Yield the chunks of what is indented; raise `TooLargeToIndent` if they are too long."""
    size = 0
    for chunk in chunks:
        size += len(chunk)
        if size > MAX_SHOWN_BYTES:
            raise TooLargeToIndent
        yield chunk


def chunks_of(options: ReadOptions, place: Place) -> Chunks:
    """Return a function that renders the JSON of a read, chunk by chunk."""
    path = place.path
    shallow, query = options.shallow, options.query
    if place.is_priority:
        if query is not None:  # it is a leaf, without children
            return lambda nodes: iter((b"null",))
        return lambda nodes: iter((compact(nodes.priority(path)),))
    if shallow is not None:
        return lambda nodes: _render_shallow(nodes, path, shallow)
    if query is not None:
        return lambda nodes: _render_query(nodes, path, query, options.is_export)
    return lambda nodes: nodes.chunks(path, export=options.is_export)


def needs_body(request: DataRequest) -> bool:
    """Return whether the response depends on the data, if only by its tag."""
    return request.print != "silent" or is_tagged(request)


def is_tagged(request: DataRequest) -> bool:
    """Return whether the response to a read has the tag of the value, or depends on it."""
    return (request.wants_etag or request.condition is not None) and request.read_options.is_plain


def read_response(
    request: DataRequest,
    rendered: bytes | Content | Flow,
    tag: str | None,
    cut_off_at: float | None = None,
) -> Response:
    """Return the response to a read, with what was `rendered` as its body.

    `tag` is that of the value, if it was computed. `cut_off_at` is when a client must have read a
    large body, if its request says so.
    """
    options = request.read_options
    if tag is None:
        if request.print == "silent":
            return Response(204, b"", ())
        headers = JSON_HEADERS if options is PLAIN else _headers(options)
        return Response(200, rendered, headers, cut_off_at)
    tags = ((b"ETag", request.dialect.etag(tag)),)
    if is_met_by(request, tag):
        return Response(304, b"", tags)
    if request.print == "silent":
        return Response(204, b"", tags)
    return Response(200, rendered, (*_headers(options), *tags), cut_off_at)


def is_met_by(request: DataRequest, tag: str) -> bool:
    """Return whether a read has a condition that says that the client has the value of this tag."""
    return request.condition is not None and request.condition.matches(tag, tag != NULL_ETAG)


def _headers(options: ReadOptions) -> tuple[Header, ...]:
    return wrap(options.callback, options.download).headers


def kept_response(request: DataRequest, answer: Answer, memory: WaitingBytes) -> Response | None:
    """Return the response that shows a kept answer; a large one is counted by `memory`.

    None if it needs a tag that is not known, and would take long to compute.
    """
    if not is_tagged(request):
        return read_response(request, _body_of(request, answer, memory), None)
    if answer.tag is None:
        if len(answer.body) > AT_ONCE_BYTES or request.print == "pretty":
            return None
        answer.tag = _tag_of(request.read_options, answer.body)
    return read_response(request, _body_of(request, answer, memory), answer.tag)


def _body_of(request: DataRequest, answer: Answer, memory: WaitingBytes) -> bytes | Content:
    callback = request.read_options.callback
    if callback is not None:
        before, after, _ = wrap(callback, None)
        return before + answer.body + after
    if len(answer.body) <= SMALL_BYTES:
        return answer.body
    content: Content | None = answer.content
    if content is None:
        content = answer.content = Content(memory, answer.body)
    return content


def _tag_of(options: ReadOptions, body: bytes) -> str:
    """Return the entity tag of a plain read or an export whose JSON is `body`."""
    json = parse_stored(body)
    return etag(value.plain(value.from_export(json)) if options.is_export else json)


def may_flow(request: DataRequest) -> bool:
    """Return whether the text of a read is sent as it is rendered.

    Not what is indented: whether it is too large for that is known at its end.
    """
    options = request.read_options
    return request.print == "compact" and not (options.callback is not None and is_tagged(request))


def known_tag(source: object) -> str | None:
    """Return the tag that was computed before the text was rendered, None if there is none."""
    return source.tag.text if isinstance(source, ReadSource) and source.tag is not None else None


def json_response(request: DataRequest, json: Json, *headers: Header) -> Response:
    """Return the response that shows JSON in the form that `print` requests."""
    is_pretty = request.print == "pretty"
    text = request.dialect.pretty(json) if is_pretty else compact(json)
    return text_response(request, text, *headers)


def text_response(request: DataRequest, text: bytes, *headers: Header) -> Response:
    """Return the response that shows JSON text as it is, or nothing if `print` is silent."""
    if request.print == "silent":
        return Response(204, b"", headers)
    return Response(200, text, (JSON_TYPE, *headers))


def _render_shallow(nodes: Nodes, path: Path, shallow: Shallow) -> Iterator[bytes]:
    if nodes.type_at(path) is not Container:
        return chain((b"",), nodes.chunks(path))  # it is read again, in another step
    span = Span(after=shallow.start_after)
    if shallow.version == 1:
        return print_keys(islice(nodes.keys(path, span), shallow.limit))
    members = ((child.key, _render_size(child.chunks())) for child in nodes.children(path, span))
    return print_members(islice(members, shallow.limit))


def _render_size(chunks: Iterator[bytes]) -> Iterator[bytes]:
    """Render a leaf as it is, and the size of a container, counted chunk by chunk."""
    while not (first := next(chunks)):
        yield b""
    if first[0] not in b"{[":
        yield first
        yield from chunks
        return
    size = len(first)
    for chunk in chunks:
        size += len(chunk)
        yield b""
    yield b'{".sz":%d}' % size


def _render_query(nodes: Nodes, path: Path, query: Query, is_export: bool) -> Iterator[bytes]:
    return print_members(
        None if child is None else (child.key, child.chunks(export=is_export))
        for child in iterate_selected(nodes, path, query)
    )
