"""The operations of the OpenAPI document: for each route of the interface, what its methods do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import attrs

from treedbd.web.openapi.parameters import (
    CODING,
    COMMON,
    LOG,
    POST,
    PRINT,
    PROBES,
    QUERY,
    READ,
    RULES,
    RULES_PUT,
    WRITE,
    Parameter,
)

_BASE_ERRORS: Final = (400, 403, 405, 408, 413, 414, 421, 429, 431, 500, 503)
"""What any request may meet."""
_PARSED_ERRORS: Final = (*_BASE_ERRORS, 401, 404, 504)
"""What requests to a database may meet."""
_WRITE_ERRORS: Final = (*_PARSED_ERRORS, 412, 507)
_BODY_ERRORS: Final = (*_WRITE_ERRORS, 415)


@attrs.frozen
class Operation:
    """What one method of a route does.

    `results` are the names of responses by their statuses. `errors` are statuses, of which those
    count that errors have. `body` is the name of the schema of what is sent. `is_tagged` says
    whether an entity tag can be asked for.
    """

    summary: str
    results: Mapping[int, str]
    errors: tuple[int, ...] = _PARSED_ERRORS
    parameters: tuple[Parameter, ...] = COMMON
    body: str | None = None
    is_tagged: bool = False
    needs_admin: bool = False
    is_public: bool = False


_READ_RESULTS: Final = {200: "Read", 204: "Silent", 304: "NotModified"}
_OPTIONS: Final = Operation(
    "Return the methods, and answer the preflight requests of browsers.",
    {204: "Methods"},
    _BASE_ERRORS,
    (),
    is_public=True,
)


def _write(summary: str, result: str, body: str | None, *more: Parameter) -> Operation:
    coding = () if body is None else (CODING,)
    return Operation(
        summary,
        {200: result, 204: "Silent"},
        _WRITE_ERRORS if body is None else _BODY_ERRORS,
        (*COMMON, PRINT, *WRITE, *coding, *more),
        body,
        is_tagged=True,
    )


def _read(
    summary: str,
    result: str,
    *parameters: Parameter,
) -> dict[str, Operation]:
    get = Operation(
        summary,
        {**_READ_RESULTS, 200: result},
        parameters=(*COMMON, PRINT, *parameters),
        is_tagged=True,
    )
    return {"GET": get, "HEAD": attrs.evolve(get, summary="Return the headers of a GET.")}


_GET_VALUE: Final = _read(
    "Read the value, run a query, or open a stream with `Accept: text/event-stream`.",
    "Read",
    *(*READ, *QUERY),
)
_IF_NONE_MATCH: Final = tuple(each for each in READ if each.key == "If-None-Match")

TREE: Final[dict[str, Operation]] = {
    **_GET_VALUE,
    "PUT": _write("Replace the value.", "Written", "Value"),
    "POST": attrs.evolve(
        _write("Add a child with a new key.", "Posted", "Value", *POST),
        results={**_READ_RESULTS, 200: "Posted"},
    ),
    "PATCH": _write("Change children, and keep all others.", "Patched", "Patch"),
    "DELETE": _write("Remove the value.", "Removed", None),
    "OPTIONS": _OPTIONS,
}
PRIORITY: Final[dict[str, Operation]] = {
    **_read("Read the priority of the node.", "PriorityRead", *READ),
    "PUT": _write("Set the priority of the node.", "PriorityShown", "Priority"),
    "DELETE": _write("Remove the priority of the node.", "Removed", None),
    "OPTIONS": _OPTIONS,
}


def _of_admin(summary: str, result: str, *parameters: Parameter) -> Operation:
    return Operation(
        summary,
        {200: result, 204: "Silent"},
        parameters=(*COMMON, PRINT, *parameters),
        needs_admin=True,
    )


def _apart(summary: str, result: str, *errors: int) -> Operation:
    """Return a read of what belongs to no database."""
    return Operation(summary, {200: result}, (*_BASE_ERRORS, *errors), (), is_public=True)


def _reads(get: Operation) -> dict[str, Operation]:
    head = attrs.evolve(get, summary="Return the headers of a GET.")
    return {"GET": get, "HEAD": head, "OPTIONS": _OPTIONS}


_HEALTH: Final = attrs.evolve(
    _apart("Return whether everything is as it should be.", "Health"),
    parameters=(*(each for each in COMMON if each.name == "ns"), *PROBES),
    errors=tuple(each for each in _BASE_ERRORS if each != 421),
    is_public=False,
)

BY_ENDPOINT: Final[dict[str, dict[str, Operation]]] = {
    "activity": _reads(_of_admin("Show what clients do with the databases.", "Activity")),
    "databases": _reads(_of_admin("List the databases of the project.", "Databases")),
    "compact": {
        "POST": attrs.evolve(
            _of_admin("Give free space back to the file system.", "Compacted"),
            errors=(*_PARSED_ERRORS, 415),
        ),
        "OPTIONS": _OPTIONS,
    },
    "log": _reads(_of_admin("List the last writes of the database.", "Log", *LOG)),
    "rules": {
        **_reads(_of_admin("Read the rules of the project.", "Rules", *RULES)),
        "PUT": attrs.evolve(
            _of_admin("Put rules in force, or check them.", "RulesPut", CODING, *RULES_PUT),
            body="Rules",
            errors=(*_PARSED_ERRORS, 409, 415),
        ),
    },
    "health": _reads(_HEALTH),
    "openapi": _reads(
        attrs.evolve(
            _apart("Return this document.", "OpenApi"),
            results={200: "OpenApi", 304: "NotModified"},
            parameters=_IF_NONE_MATCH,
        )
    ),
    "root": _reads(_apart("Show a page to a browser, which prefers HTML.", "Page", 404)),
    "icon": _reads(_apart("Return the icon of the pages.", "Icon")),
    "document": _reads(_apart("Return a page of the documentation.", "Document", 404)),
}
"""The operations of the routes that are no places in the tree, by their names and methods."""
