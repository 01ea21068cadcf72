"""Writes: from a body to JSON, and from an outcome to a response."""

from __future__ import annotations

from typing import Final

from treedbd.database.requests import Caller, Condition, Outcome, Write
from treedbd.limits import Limits
from treedbd.tree import printing
from treedbd.tree.edit import Edit
from treedbd.tree.errors import InvalidData
from treedbd.tree.normalise import has_more_nodes
from treedbd.tree.types import Json
from treedbd.web.http1.interface import IHttp1Request
from treedbd.web.representation import json_response
from treedbd.web.request import DataRequest
from treedbd.web.response import JSON_TYPE, Response

_MIN_NODE_BYTES: Final = len("1,")


def read_body(request: IHttp1Request) -> bytes:
    """Return the body of a request."""
    body: bytes = request.content.read() if request.content is not None else b""
    return body


def parse_body(request: IHttp1Request, limits: Limits) -> Json:
    """Return the JSON in the body of a request; raise `InvalidData`."""
    body = read_body(request)
    if not body.strip():
        raise InvalidData("The request needs a JSON body.")
    json = printing.parse(body)
    limit = limits.write_nodes
    if len(body) > _MIN_NODE_BYTES * limit and has_more_nodes(json, limit):
        raise InvalidData(
            f"A body may have at most {limit} members and array items: write it in parts."
        )
    return json


def make_write(
    request: DataRequest, edit: Edit, now: int, caller: Caller, deadline: float
) -> Write:
    """Return the write for a database.

    `now` is in milliseconds since 1970, `deadline` in seconds of the database's clock.
    """
    etags = request.condition
    condition = None if etags is None else Condition(request.place, etags)
    return Write(
        edit,
        now,
        caller,
        condition,
        deadline,
        wants_echo=request.print != "silent" and request.method != b"POST",
        wants_etag=request.wants_etag or condition is not None,
        must_have_etag=request.wants_etag,
    )


def write_response(request: DataRequest, outcome: Outcome) -> Response:
    """Return the response to a write that is durable."""
    tag = outcome.etag
    headers = () if tag is None else ((b"ETag", request.dialect.etag(tag)),)
    is_push = request.method == b"POST"
    shown: Json = {"name": outcome.edit.place.path[-1]} if is_push else outcome.echo
    if request.print != "compact":
        return json_response(request, shown, *headers)
    return Response(200, printing.compact(shown), (JSON_TYPE, *headers))
