"""The OpenAPI 3.1 document of the whole interface, made from the tables that the code uses.

A place in the tree has any number of keys, but a parameter of an OpenAPI path holds no slash. So
the route of the tree is shown as several paths, one for each number of keys up to `DEPTHS`; deeper
ones have the same operations.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from treedbd import __version__
from treedbd.limits import MAX_DEPTH, MAX_TOKEN_CHARACTERS
from treedbd.web.openapi.operations import BY_ENDPOINT, PRIORITY, TREE, Operation
from treedbd.web.openapi.parameters import PATH_KEYS, Parameter, etag_parameters, render_parameters
from treedbd.web.openapi.responses import JSON, name_of, render_headers, render_responses
from treedbd.web.openapi.schemas import ADMIN_SCHEMAS, DATA_SCHEMAS, error_schemas
from treedbd.web.openapi.values import JsonObject, fill_in, ref
from treedbd.web.options import WebOptions

DEPTHS: Final = len(PATH_KEYS)
TREE_ENDPOINT: Final = "tree"

_ANYONE: Final[JsonObject] = {}
_WORD: Final = re.compile("[A-Za-z]+")
_BY_TOKEN: Final[list[JsonObject]] = [{"bearer": []}, {"auth": []}, {"access_token": []}]
_TAGS: Final = {
    "data": "Places in the tree: `/<path>.json`.",
    "project": "For admins: the rules of a project, and its databases.",
    "service": "The service itself.",
}
_DESCRIPTION: Final = "\n\n".join(
    (
        "Every place of a tree of JSON has the path `/<key>/<key>/….json`, the root `/.json`. Each "
        "key is percent-encoded by itself. A parameter of an OpenAPI path holds no slash, so "
        f"places are listed here with up to {DEPTHS} keys; deeper ones, up to {MAX_DEPTH} keys, "
        "have the same operations.",
        "A request addresses one database of one project: by its host, or by `ns`.",
        "A request with `ns`, an `Authorization` header, `X-Firebase-ETag: true` or an entity tag "
        "without quotes in `If-Match` is answered in the dialect of Firebase, unless the setting "
        'of the project says otherwise: errors are `{"error": "<sentence>"}`, what the rules deny '
        "is 401, and entity tags have no quotes.",
        "The Content-Type of a request does not matter. Parameters that are not known are ignored; "
        "one that is given twice is 400.",
    )
)
_BODY: Final = (
    "At most {write_body_bytes} bytes, {write_nodes} members and items, and strings of "
    "{string_bytes} bytes."
)


class DeclaredRoute(NamedTuple):
    """A route as the resource declares it; `endpoint` is its name."""

    path: str
    endpoint: str
    methods: frozenset[str]


def make_document(
    routes: Iterable[DeclaredRoute],
    options: WebOptions,
    codes: Mapping[int, Sequence[str]],
    prefix: str,
) -> JsonObject:
    """Return the OpenAPI document of a service.

    `codes` are those of errors by their statuses. `prefix` is the path under which it is mounted,
    without a slash at its end.
    """
    rendered = _Paths(options, codes)
    paths = dict(item for route in routes for item in rendered.of(route))
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "treedb",
            "version": __version__,
            "description": _DESCRIPTION,
            "license": {"name": "MIT", "identifier": "MIT"},
        },
        "servers": [{"url": prefix or "/"}],
        "security": [_ANYONE, *_BY_TOKEN],
        "tags": [{"name": name, "description": text} for name, text in _TAGS.items()],
        "paths": dict(sorted(paths.items())),
        "components": {
            "securitySchemes": _security_schemes(),
            "parameters": render_parameters(options.etag_headers),
            "headers": render_headers(),
            "responses": render_responses(codes, options.limits),
            "schemas": {
                **error_schemas(sorted({each for listed in codes.values() for each in listed})),
                **DATA_SCHEMAS,
                **ADMIN_SCHEMAS,
            },
        },
    }


def _security_schemes() -> JsonObject:
    text = f"A JSON Web Token of at most {MAX_TOKEN_CHARACTERS} characters."
    by_query = {"type": "apiKey", "in": "query", "description": text}
    bearer = {"type": "http", "scheme": "bearer", "bearerFormat": "JWT", "description": text}
    return {
        "bearer": bearer,
        "auth": {**by_query, "name": "auth"},
        "access_token": {**by_query, "name": "access_token"},
    }


class _Paths:
    """Renders the Path Items (OpenAPI 3.1, section 4.8.9) of one service."""

    def __init__(self, options: WebOptions, statuses: Container[int]) -> None:
        self._statuses = statuses
        self._limits = options.limits
        self._etags = etag_parameters(options.etag_headers)

    def of(self, route: DeclaredRoute) -> Iterator[tuple[str, JsonObject]]:
        """Yield the paths of a route, and their items."""
        if route.endpoint != TREE_ENDPOINT:
            operations = BY_ENDPOINT[route.endpoint]
            tag = "project" if any(each.needs_admin for each in operations.values()) else "service"
            words = _WORD.findall(route.path.removesuffix(".json"))
            # Not `title`: there are a security.md and a SECURITY.md.
            name = "".join(word[0].upper() + word[1:] for word in words) or "Page"
            declared = {each: operations[each] for each in operations if each in route.methods}
            yield route.path, self._item(declared, tag, name, ())
            return
        for depth in range(DEPTHS + 1):
            keys = PATH_KEYS[:depth]
            place = "/".join(f"{{{each.name}}}" for each in keys)
            name = f"Depth{depth}" if depth else "Root"
            yield f"/{place}.json", self._item(TREE, "data", name, keys)
            priority = "/".join(filter(None, (place, ".priority.json")))
            yield f"/{priority}", self._item(PRIORITY, "data", f"{name}Priority", keys)

    def _item(
        self,
        operations: dict[str, Operation],
        tag: str,
        name: str,
        keys: tuple[Parameter, ...],
    ) -> JsonObject:
        item: JsonObject = {"parameters": _refs(keys)} if keys else {}
        for method, operation in operations.items():
            shown = self._operation(operation)
            item[method.lower()] = {
                "operationId": f"{method.lower()}{name}",
                "tags": [tag],
                **shown,
            }
        return item

    def _operation(self, operation: Operation) -> JsonObject:
        etags = self._etags if operation.is_tagged else ()
        parameters = (*operation.parameters, *etags)
        shown: JsonObject = {"summary": operation.summary}
        if parameters:
            shown["parameters"] = _refs(parameters)
        if operation.body is not None:
            shown["requestBody"] = {
                "required": True,
                "description": fill_in(_BODY, self._limits),
                "content": {JSON: {"schema": ref("schemas", operation.body)}},
            }
        errors = {each: name_of(each) for each in operation.errors if each in self._statuses}
        results = {**operation.results, **errors}
        shown["responses"] = {
            str(status): ref("responses", name) for status, name in sorted(results.items())
        }
        if operation.is_public:
            shown["security"] = []
        elif operation.needs_admin:
            shown["security"] = _BY_TOKEN
        return shown


def _refs(parameters: Iterable[Parameter]) -> list[JsonObject]:
    return [ref("parameters", each.key) for each in parameters]
