"""The OpenAPI 3.1 document of the interface, at `/.openapi.json`: completed, and served.

`openapi.json` has everything that is the same for all services. A service adds its version and
address, its limits, which texts name in braces, such as `{write_body_bytes}`, and the headers by
which it sends an entity tag, in place of the one in the file. What would be repeated for every
operation is not in the file and is added to each: HEAD beside GET, OPTIONS, the errors and headers
of any response. An operation lists its own errors as `x-errors`. The codes of errors are those of
`web.errors` and of `http1.parser`.

A place in the tree has any number of keys, but a parameter of an OpenAPI path contains no slash. So
the file describes a place of one key, and the document places of up to `DEPTHS` keys; deeper ones
have the same operations.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from hashlib import sha256
from importlib.resources import files
from typing import Any, Final, NamedTuple, TypeAlias
from urllib.parse import quote

import attrs
import orjson

from treedbd import __version__
from treedbd.http1.parser import joined
from treedbd.http1.request import IHttp1Request
from treedbd.limits import Limits
from treedbd.tree.hashes import parse_etags
from treedbd.web.response import JSON_TYPE, Response

JsonObject: TypeAlias = dict[str, Any]

DEPTHS: Final = 3
_TREE: Final = "tree"
_DOCUMENTATION: Final = "/.docs/"
MAX_AGE_S: Final = 300
_FILE: Final = files("treedbd.web") / "openapi.json"
_LIMIT: Final = re.compile(r"\{([a-z_]+)\}")
_WORD: Final = re.compile("[A-Za-z]+")
_TAG_PARAMETER: Final = "X-TreeDB-ETag"
_PLACE: Final = "{key1}"
_ANY_ERRORS: Final = (400, 403, 405, 408, 413, 414, 429, 431, 500, 503)
"""The statuses of errors that any request may be answered with."""
_MISDIRECTED: Final = 421
_ANY_HEADERS: Final = (
    "X-Content-Type-Options",
    "Cache-Control",
    "Access-Control-Allow-Origin",
    "Access-Control-Expose-Headers",
    "Vary",
    "TreeDB-Lag-Ms",
    "Content-Encoding",
)


class DeclaredRoute(NamedTuple):
    """A route as the resource declares it; `endpoint` is its name."""

    path: str
    endpoint: str
    methods: frozenset[str]


def make_document(
    routes: Iterable[DeclaredRoute],
    limits: Limits,
    etag_headers: Iterable[str],
    codes: Mapping[int, Sequence[str]],
    prefix: str,
) -> JsonObject:
    """Return the OpenAPI document of a service.

    `etag_headers` are the names of the headers that request an entity tag, each without `X-` and
    `-ETag`. `codes` are the codes of errors by their statuses. `prefix` is the path under which the
    service is mounted, without a slash at its end.
    """
    document: JsonObject = orjson.loads(_fill_in(_FILE.read_text("utf-8"), limits))
    document["info"]["version"] = __version__
    document["servers"] = [{"url": prefix or "/"}]
    components = document["components"]
    tag = components["parameters"].pop(_TAG_PARAMETER)
    tags = {f"X-{name}-ETag": {**tag, "name": f"X-{name}-ETag"} for name in etag_headers}
    components["parameters"] |= tags
    _complete_responses(components, codes)
    shown: JsonObject = document["paths"]
    for item in shown.values():
        _complete_item(item, list(tags))
    document["paths"] = dict(sorted(each for route in routes for each in _items(route, shown)))
    return document


def _fill_in(text: str, limits: Limits) -> str:
    values = attrs.asdict(limits)
    return _LIMIT.sub(lambda found: f"{values[found[1]]:,}", text)


def _ref(kind: str, name: str) -> JsonObject:
    """Return a reference to a component; `kind` is that of OpenAPI, such as `schemas`."""
    return {"$ref": f"#/components/{kind}/{name}"}


def _complete_responses(components: JsonObject, codes: Mapping[int, Sequence[str]]) -> None:
    """Add the codes of errors, and the headers of any response."""
    responses, schemas = components["responses"], components["schemas"]
    error = schemas["Error"]["properties"]["error"]
    error["enum"] = sorted({each for listed in codes.values() for each in listed})
    for status, listed in codes.items():
        one = {"properties": {"error": {"enum": [*listed]}}}
        known = {"allOf": [_ref("schemas", "Error"), one]}
        schema = {"anyOf": [known, _ref("schemas", "FirebaseError")]}
        responses[f"Error{status}"].setdefault("content", {"application/json": {"schema": schema}})
    any_headers = {name: _ref("headers", name) for name in _ANY_HEADERS}
    for response in responses.values():
        response["headers"] = any_headers | response.get("headers", {})


def _complete_item(item: JsonObject, tags: list[str]) -> None:
    """Add the errors of operations, the headers for entity tags, HEAD and OPTIONS."""
    for operation in item.values():
        _add_errors(operation, operation.pop("x-errors"))
        if _ref("parameters", _TAG_PARAMETER) in operation.get("parameters", ()):
            operation["parameters"].remove(_ref("parameters", _TAG_PARAMETER))
            operation["parameters"] += [_ref("parameters", name) for name in tags]
    method, first = next(iter(item.items()))
    name = first["operationId"].removeprefix(method)
    if "get" in item:
        summary = "Return the headers of a GET."
        item["head"] = {**item["get"], "operationId": f"head{name}", "summary": summary}
    options = {
        "operationId": f"options{name}",
        "tags": first["tags"],
        "summary": "Return the methods, and answer the preflight requests of browsers.",
        "responses": {"204": _ref("responses", "Methods")},
        "security": [],
    }
    _add_errors(options, [_MISDIRECTED])
    item["options"] = options


def _add_errors(operation: JsonObject, more: Iterable[int]) -> None:
    for status in sorted([*_ANY_ERRORS, *more]):
        operation["responses"][str(status)] = _ref("responses", f"Error{status}")


def _items(route: DeclaredRoute, shown: JsonObject) -> Iterator[tuple[str, JsonObject]]:
    """Yield the paths of a route, and their Path Items (OpenAPI 3.1, section 4.8.9)."""
    if route.endpoint == _TREE:
        yield from _places(shown)
    elif route.path.startswith(_DOCUMENTATION):
        # Not `title`: there are a security.md and a SECURITY.md.
        words = [word[0].upper() + word[1:] for word in _WORD.findall(route.path)]
        yield route.path, _renamed(shown[_DOCUMENTATION], "Docs", "".join(words))
    else:
        yield route.path, shown[route.path]


def _places(shown: JsonObject) -> Iterator[tuple[str, JsonObject]]:
    for path in (path for path in shown if _PLACE in path):
        for depth in range(DEPTHS + 1):
            names = [f"key{number}" for number in range(1, depth + 1)]
            place = path.replace(_PLACE, "/".join(f"{{{name}}}" for name in names))
            item = _renamed(shown[path], "Depth1", f"Depth{depth}" if depth else "Root")
            if names:
                item["parameters"] = [_ref("parameters", name) for name in names]
            yield place.replace("//", "/"), item


def _renamed(item: JsonObject, old: str, new: str) -> JsonObject:
    """Return a copy of a Path Item whose operations have other names."""
    return {
        method: {**operation, "operationId": operation["operationId"].replace(old, new)}
        for method, operation in item.items()
    }


@attrs.frozen
class _Made:
    """The document of a service that is mounted at `prefix`."""

    prefix: str
    tag: str
    response: Response


class OpenApi:
    """Answers with the document, which is made at the first request."""

    def __init__(
        self,
        *,
        routes: Iterable[DeclaredRoute],
        limits: Limits,
        etag_headers: Iterable[str],
        codes: Mapping[int, Sequence[str]],
    ) -> None:
        """Describe these routes; the arguments are as in `make_document`."""
        self._routes = tuple(routes)
        self._limits = limits
        self._etag_headers = tuple(etag_headers)
        self._codes = codes
        self._made: _Made | None = None

    async def answer(self, request: IHttp1Request) -> Response:
        """Return the document, or 304 if the client has it already."""
        prefix = "".join(f"/{quote(each, safe='')}" for each in request.prepath if each)
        if self._made is None or self._made.prefix != prefix:
            self._made = self._make(prefix)
        listed = joined(request.headers, b"if-none-match")
        if listed is not None and parse_etags(listed).matches(self._made.tag, True):
            return attrs.evolve(self._made.response, status=304, body=b"")
        return self._made.response

    def _make(self, prefix: str) -> _Made:
        document = make_document(
            self._routes, self._limits, self._etag_headers, self._codes, prefix
        )
        body = orjson.dumps(document)
        tag = f'"{sha256(body).hexdigest()}"'
        headers = (JSON_TYPE, (b"ETag", tag.encode()))
        return _Made(prefix, tag, Response(200, body, headers, max_age_s=MAX_AGE_S))
