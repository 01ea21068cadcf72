"""The request of a case: parsed as the REST interface parses it, from JSON instead of HTTP."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import attrs
import orjson

from treedbd.rules.context import QueryFacts
from treedbd.rules.document import suggest
from treedbd.tree.edit import Edit, make_patch, make_put, make_remove
from treedbd.tree.path import make_place
from treedbd.tree.push_id import PushIds
from treedbd.tree.query import PARAMETERS, WHERE
from treedbd.tree.types import InvalidData, InvalidPath, InvalidQuery, Json, Place
from treedbd.web.request import parse_read_options

_METHODS: Final = {
    "put": "PUT",
    "set": "PUT",
    "patch": "PATCH",
    "update": "PATCH",
    "post": "POST",
    "push": "POST",
    "delete": "DELETE",
    "remove": "DELETE",
}
"""The methods of a write, by their names in HTTP and those of the commands."""
_LIMITS: Final = ("limitToFirst", "limitToLast")
_BOUNDS: Final = ("startAt", "startAfter", "endAt", "endBefore", "equalTo")
_QUERY: Final = (*PARAMETERS, WHERE, "shallow", "format")


class InvalidCase(Exception):
    """What is wrong with a case or a test file; `str()` is a sentence with the remedy."""


@attrs.frozen
class CaseRequest:
    """What a case requests.

    Attributes:
        method: `GET`, `PUT`, `PATCH`, `POST` or `DELETE`.
        path: the path as it was given.
        place: the place that is read or written; of a `POST` the new child.
        edit: what is written, None for a read.
        query: what rules see of the query of a read.

    """

    method: str
    path: str
    place: Place
    edit: Edit | None = None
    query: QueryFacts | None = None


def parse_request(case: Mapping[str, Any], now: int) -> CaseRequest:
    """Return the request of a case at `now`, in milliseconds since 1970; raise `InvalidCase`."""
    if ("read" in case) is ("write" in case):
        raise InvalidCase('A case has either "read" or "write", with the path.')
    if "read" in case:
        return _parse_read(case)
    if "query" in case:
        raise InvalidCase('"query" belongs to a "read".')
    try:
        return _parse_write(case, now)
    except InvalidData as error:
        raise InvalidCase(f'"value" is not valid: {error}') from None


def _parse_read(case: Mapping[str, Any]) -> CaseRequest:
    for name in ("value", "method"):
        if name in case:
            raise InvalidCase(f'"{name}" belongs to a "write".')
    return CaseRequest(
        "GET", case["read"], _parse_path(case["read"]), query=_parse_query(case.get("query", {}))
    )


def _parse_write(case: Mapping[str, Any], now: int) -> CaseRequest:
    path, place = case["write"], _parse_path(case["write"])
    method = _parse_method(case)
    if ("value" in case) is (method == "DELETE"):
        raise InvalidCase(
            'A write with the method "delete" has no "value".'
            if method == "DELETE"
            else 'A write has a "value", or "method": "delete".'
        )
    if place.is_priority and method in ("PATCH", "POST"):
        raise InvalidCase("A priority can only be read, put and deleted.")
    value: Json = case.get("value")
    if method == "PATCH":
        return CaseRequest(method, path, place, make_patch(place.path, value))
    if method == "DELETE":
        return CaseRequest(method, path, place, make_remove(place))
    if method == "POST":
        # The same key at the same time, so that a case is always judged alike.
        key = PushIds(bytes, lambda: -1).next(now)
        try:
            place = make_place((*place.path, key))
        except InvalidPath as error:
            raise InvalidCase(f'"write": {error}') from None
    return CaseRequest(method, path, place, make_put(place, value))


def _parse_method(case: Mapping[str, Any]) -> str:
    given = case.get("method", "put")
    method = _METHODS.get(given.lower()) if isinstance(given, str) else None
    if method is None:
        hint = suggest(given, _METHODS) if isinstance(given, str) else ""
        raise InvalidCase(f'"method" must be put, patch, post or delete. {hint}'.rstrip())
    return method


def _parse_path(path: object) -> Place:
    if not isinstance(path, str):
        raise InvalidCase('A path is a string, such as "/users/ada".')
    if not path.startswith("/"):
        raise InvalidCase(f'The path "{path}" must begin with a slash.')
    try:
        return make_place([segment for segment in path.split("/") if segment])
    except InvalidPath as error:
        hint = " Paths are written without .json here." if ".json" in path else ""
        raise InvalidCase(f'The path "{path}" is not valid: {error}{hint}') from None


def _parse_query(query: object) -> QueryFacts | None:
    """Return what rules see of a query; its parameters are those of REST, with JSON values."""
    if not isinstance(query, dict):
        raise InvalidCase('"query" must be an object, such as {"orderBy": "age"}.')
    for name in query:
        if name not in _QUERY:
            hint = suggest(name, _QUERY) or f"Parameters are {', '.join(_QUERY)}."
            raise InvalidCase(f'"{name}" is no parameter of a query. {hint}')
    try:
        return parse_read_options(
            {name: _parameter(name, value) for name, value in query.items()}
        ).facts
    except InvalidQuery as error:
        raise InvalidCase(f'"query": {error}') from None


def _parameter(name: str, value: Any) -> str:
    """Return the text that a parameter has in a URL."""
    if name in _BOUNDS and isinstance(value, list):  # a value, and the key that follows it
        return ",".join(orjson.dumps(part).decode() for part in value)
    if name == "format" and isinstance(value, str):
        return value
    if name == "orderBy" and isinstance(value, str) and value.startswith('"'):
        raise InvalidCase('"orderBy" is the name itself here, without quotes in it.')
    return orjson.dumps(value).decode()
