"""The OpenAPI 3.1 document of the interface, at `/.openapi.json`, and the tables it is made from.

A place in the tree has any number of keys, but a parameter of an OpenAPI path holds no slash. So
the route of the tree is shown as several paths, one for each number of keys up to `DEPTHS`; deeper
ones have the same operations.

The tables: the parameters, by the names that operations refer to them by; the operations, what the
methods of each route do; the schemas of bodies, of requests and of responses; the responses. The
name of a parameter is its own in most cases; where resources read the same parameter differently, a
suffix distinguishes them: `format.rules`. `tests/web/openapi` compares them with those that the
parser knows. Which code belongs to which status is that of `web.errors` and of `http1.parser`; here
is only, for each status, what it means.

The document is made from the tables, the limits and the routes (`make_document`), and served by
`OpenApi`.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from hashlib import sha256
from typing import Any, Final, Literal, NamedTuple, TypeAlias
from urllib.parse import quote

import attrs
import orjson

from treedbd import __version__
from treedbd.http1.headers import joined
from treedbd.http1.interface import IHttp1Request
from treedbd.limits import (
    MAX_CALLBACK_CHARACTERS,
    MAX_DEPTH,
    MAX_KEY_BYTES,
    MAX_LABEL_CHARACTERS,
    MAX_PATCH_MEMBERS,
    MAX_TIMEOUT_S,
    MAX_TOKEN_CHARACTERS,
    MAX_WHERE_CONDITIONS,
    Limits,
)
from treedbd.names import NAME_PATTERN
from treedbd.tree.hashes import parse_etags
from treedbd.tree.query import WHERE
from treedbd.web.admin import DEFAULT_ENTRIES, MAX_ENTRIES
from treedbd.web.options import WebOptions
from treedbd.web.request import METHOD_OVERRIDE, ON_DISCONNECT, OVERRIDES, TIMEOUT_PATTERN
from treedbd.web.response import JSON_TYPE, Response

JsonObject: TypeAlias = dict[str, Any]

_PLACEHOLDER: Final = re.compile(r"\{([a-z_]+)\}")


def ref(kind: str, name: str) -> JsonObject:
    """Return a reference to a component; `kind` is that of OpenAPI, such as `schemas`."""
    return {"$ref": f"#/components/{kind}/{name}"}


def fill_in(text: str, limits: Limits) -> str:
    """Return a text with the values of the limits that it names, such as `{write_body_bytes}`."""
    values = attrs.asdict(limits)
    return _PLACEHOLDER.sub(lambda found: f"{values[found[1]]:,}", text)


Source: TypeAlias = Literal["query", "header", "path"]

_TEXT: Final[JsonObject] = {"type": "string"}
_FLAG: Final[JsonObject] = {"type": "boolean"}
_COUNT_FROM_1: Final[JsonObject] = {"type": "integer", "minimum": 1}
_KEY: Final[JsonObject] = {
    "type": "string",
    "minLength": 1,
    "maxLength": MAX_KEY_BYTES,
    "pattern": r"^[^.#$\[\]/\u0000-\u001f\u007f]+$",
}
_BOUND: Final[JsonObject] = {
    "type": "string",
    "examples": ["36", '"London"', "true", "null", '36,"ada"'],
}
_OVERRIDE: Final[JsonObject] = {"enum": sorted(each.decode() for each in OVERRIDES)}
_SILENT: Final = {"type": "string", "pattern": "^silent$"}


def _choice(*choices: str) -> JsonObject:
    return {"type": "string", "enum": list(choices)}


def _json_text(schema: JsonObject, *examples: str) -> JsonObject:
    """Return the schema of text that is JSON itself."""
    return {
        "type": "string",
        "contentMediaType": "application/json",
        "contentSchema": schema,
        "examples": list(examples),
    }


@attrs.frozen
class Parameter:
    """One parameter; `key` distinguishes it from others of the same name."""

    source: Source
    name: str
    schema: JsonObject
    description: str
    key: str = attrs.field()

    @key.default
    def _(self) -> str:
        return self.name

    def render(self) -> JsonObject:
        """Return the Parameter Object (OpenAPI 3.1, section 4.8.12)."""
        shown: dict[str, Any] = {
            "name": self.name,
            "in": self.source,
            "description": self.description,
            "schema": self.schema,
        }
        return {**shown, "required": True} if self.source == "path" else shown


_BOUND_OF: Final = {
    "startAt": "the first children of the result, this bound included",
    "startAfter": "the first children of the result, this bound excluded",
    "endAt": "the last children of the result, this bound included",
    "endBefore": "the last children of the result, this bound excluded",
    "equalTo": "both bounds at once; with no other bound",
}

COMMON: Final = (
    Parameter(
        "query",
        "ns",
        {
            "type": "string",
            "maxLength": MAX_LABEL_CHARACTERS,
            "pattern": f"^(?:{NAME_PATTERN}--)?{NAME_PATTERN}$",
        },
        "The database: `<project>` or `<database>--<project>`, if the host does not name one. "
        "Selects the dialect of Firebase.",
    ),
    Parameter(
        "query",
        "timeout",
        {"type": "string", "pattern": f"^{TIMEOUT_PATTERN}$", "examples": ["30s"]},
        f"The time-out, above zero and at most {MAX_TIMEOUT_S / 60:.0f}min.",
    ),
    Parameter(
        "query",
        "auth_variable_override",
        _json_text({"type": ["object", "null"]}, '{"uid":"ada"}', "null"),
        "JSON. The request of an admin is judged by rules with this `auth`.",
    ),
    Parameter(
        "header",
        "X-TreeDB-Dialect",
        _choice("standard"),
        "Prevents that anything else in the request selects the dialect of Firebase.",
    ),
    Parameter(
        "header", "X-TreeDB-Explain", _FLAG, "An admin's question which rules would be evaluated."
    ),
)
PRINT: Final = Parameter(
    "query", "print", _choice("pretty", "silent"), "Indented JSON, or 204 without a body."
)
READ: Final = (
    Parameter("query", "shallow", _FLAG, "The keys of the children only."),
    Parameter(
        "query",
        "v",
        {"type": "integer", "enum": [2]},
        "With `shallow`: small children and sizes, too.",
    ),
    Parameter("query", "format", _choice("export"), "Show priorities, and no arrays."),
    Parameter(
        "query",
        "callback",
        {
            "type": "string",
            "minLength": 1,
            "maxLength": MAX_CALLBACK_CHARACTERS,
            "examples": ["show", "app.show"],
        },
        "JSONP: identifiers of JavaScript, joined by dots.",
    ),
    Parameter("query", "download", _TEXT, "The file name in `Content-Disposition`."),
    Parameter(
        "query",
        ON_DISCONNECT,
        _json_text({"type": "object"}, '{"/users/ada/state":"offline"}'),
        "JSON. On streams: what is written when the stream ends, as a PATCH of the path.",
    ),
    Parameter("query", "resume", _FLAG, "On streams: events have an id, to continue after it."),
    Parameter(
        "header", "If-None-Match", _TEXT, "304 if the value still has one of these entity tags."
    ),
    Parameter("header", "Last-Event-ID", _TEXT, "The last event that a resumed stream received."),
    Parameter(
        "header", "Accept-Encoding", _TEXT, "Longer responses are sent as `zstd` or `gzip` then."
    ),
)
QUERY: Final = (
    Parameter(
        "query",
        "orderBy",
        _json_text({"type": "string"}, '"$key"', '"$value"', '"$priority"', '"address/city"'),
        'What the children are ordered by, in double quotes: `"$key"`, `"$value"`, `"$priority"` '
        "or the path of a child of each.",
    ),
    Parameter("query", "limitToFirst", _COUNT_FROM_1, "How many children, from the first."),
    Parameter("query", "limitToLast", _COUNT_FROM_1, "How many children, from the last."),
    *(
        Parameter(
            "query",
            name,
            _BOUND,
            f"JSON: {effect}. A number, string, boolean or null; a comma and a key may follow.",
        )
        for name, effect in _BOUND_OF.items()
    ),
    Parameter(
        "query",
        WHERE,
        _json_text(
            {"type": "object", "minProperties": 1, "maxProperties": MAX_WHERE_CONDITIONS},
            '{"age":{">=":40}}',
        ),
        f"JSON: conditions on children, {MAX_WHERE_CONDITIONS} at most.",
    ),
)
WRITE: Final = (
    Parameter(
        "header",
        "If-Match",
        _TEXT,
        "The write is done only if the value has one of these tags. One without quotes selects the "
        "dialect of Firebase.",
    ),
    Parameter("header", "print", _SILENT, "204 without a body.", "print.header"),
    Parameter("query", "writeSizeLimit", _TEXT, "Accepted for existing clients; without effect."),
    Parameter("query", "disableTriggers", _TEXT, "Accepted for existing clients; without effect."),
)
CODING: Final = Parameter(
    "header", "Content-Encoding", _choice("gzip", "zstd", "identity"), "The coding of the body."
)
POST: Final = (
    Parameter("query", METHOD_OVERRIDE, _OVERRIDE, "The method, for clients that only post."),
    Parameter("header", "X-HTTP-Method-Override", _OVERRIDE, "The same."),
)
RULES: Final = (
    Parameter(
        "query", "format", _choice("strict"), "Plain JSON, without comments.", "format.rules"
    ),
)
RULES_PUT: Final = (
    Parameter("query", "dryRun", _FLAG, "The rules are checked and not put in force."),
)
LOG: Final = (
    Parameter("query", "format", _choice("export"), "Show what was written, too.", "format.log"),
    Parameter(
        "query",
        "limitToFirst",
        {**_COUNT_FROM_1, "default": DEFAULT_ENTRIES},
        f"How many writes; at most {MAX_ENTRIES} are shown.",
        "limitToFirst.log",
    ),
    Parameter(
        "query",
        "startAfter",
        {"type": "integer", "minimum": 0, "maximum": 10**18 - 1},
        "The number after which the writes begin.",
        "startAfter.log",
    ),
)
PROBES: Final = (
    Parameter("query", "live", _TEXT, "Whether the process answers; the value does not matter."),
    Parameter("query", "ready", _TEXT, "Whether it would serve a write."),
)

_ORDINALS: Final = ("first", "second", "third")
PATH_KEYS: Final = tuple(
    Parameter("path", f"key{number}", _KEY, f"The {ordinal} key of the path.")
    for number, ordinal in enumerate(_ORDINALS, 1)
)

_ALWAYS_THERE: Final = (
    *(*COMMON, PRINT, *READ, *QUERY, *WRITE, CODING, *POST),
    *(*RULES, *RULES_PUT, *LOG, *PROBES, *PATH_KEYS),
)


def etag_parameters(names: Iterable[str]) -> list[Parameter]:
    """Return the headers that ask for an entity tag; `names` are those of the settings."""
    return [
        Parameter("header", f"X-{name}-ETag", _FLAG, "Return the entity tag of the value.")
        for name in names
    ]


def render_parameters(etag_headers: Iterable[str]) -> JsonObject:
    """Return the parameters as components, by their keys."""
    return {each.key: each.render() for each in (*_ALWAYS_THERE, *etag_parameters(etag_headers))}


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
_OPTIONS_OPERATION: Final = Operation(
    "Return the methods, and answer the preflight requests of browsers.",
    {204: "Methods"},
    _BASE_ERRORS,
    (),
    is_public=True,
)


def _write_operation(summary: str, result: str, body: str | None, *more: Parameter) -> Operation:
    coding = () if body is None else (CODING,)
    return Operation(
        summary,
        {200: result, 204: "Silent"},
        _WRITE_ERRORS if body is None else _BODY_ERRORS,
        (*COMMON, PRINT, *WRITE, *coding, *more),
        body,
        is_tagged=True,
    )


def _read_operation(
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


_GET_VALUE: Final = _read_operation(
    "Read the value, run a query, or open a stream with `Accept: text/event-stream`.",
    "Read",
    *(*READ, *QUERY),
)
_IF_NONE_MATCH: Final = tuple(each for each in READ if each.key == "If-None-Match")

TREE: Final[dict[str, Operation]] = {
    **_GET_VALUE,
    "PUT": _write_operation("Replace the value.", "Written", "Value"),
    "POST": attrs.evolve(
        _write_operation("Add a child with a new key.", "Posted", "Value", *POST),
        results={**_READ_RESULTS, 200: "Posted"},
    ),
    "PATCH": _write_operation("Change children, and keep all others.", "Patched", "Patch"),
    "DELETE": _write_operation("Remove the value.", "Removed", None),
    "OPTIONS": _OPTIONS_OPERATION,
}
PRIORITY: Final[dict[str, Operation]] = {
    **_read_operation("Read the priority of the node.", "PriorityRead", *READ),
    "PUT": _write_operation("Set the priority of the node.", "PriorityShown", "Priority"),
    "DELETE": _write_operation("Remove the priority of the node.", "Removed", None),
    "OPTIONS": _OPTIONS_OPERATION,
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
    return {"GET": get, "HEAD": head, "OPTIONS": _OPTIONS_OPERATION}


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
        "OPTIONS": _OPTIONS_OPERATION,
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
"""The operations of the routes that are not places in the tree, by names and methods."""

_COUNT_FROM_0: Final[JsonObject] = {"type": "integer", "minimum": 0}
_MILLISECONDS: Final[JsonObject] = {"type": "number", "minimum": 0}
_ANYTHING: Final[JsonObject] = {}
_STATUS_OK: Final[JsonObject] = {"const": "ok"}


def _object(
    required: JsonObject, optional: JsonObject | None = None, description: str = ""
) -> JsonObject:
    """Return the schema of an object with these members."""
    schema: JsonObject = {"type": "object"}
    if description:
        schema["description"] = description
    return {
        **schema,
        "required": list(required),
        "properties": {**required, **(optional or {})},
    }


def _list_of(item: JsonObject) -> JsonObject:
    return {"type": "array", "items": item}


def error_schemas(codes: list[str]) -> JsonObject:
    """Return the schemas of errors; `codes` are all that there are."""
    error = {"error": {"type": "string", "enum": codes}, "message": _TEXT}
    return {
        "Error": _object(
            error,
            {"hint": {"type": "string", "description": "Of an error in rules: what may help."}},
            "An error in the standard dialect.",
        ),
        "ConditionFailed": _object(
            {"error": {"const": "condition_failed"}, "message": _TEXT},
            {"data": {"description": "The present value, if it is not too large to be shown."}},
            "If-Match does not match; in the standard dialect.",
        ),
        "FirebaseError": {
            **_object({"error": _TEXT}, None, "An error in the dialect of Firebase."),
            "additionalProperties": False,
        },
    }


_RULE_RESULT: Final = _object(
    {
        "rule": _TEXT,
        "path": _TEXT,
        "line": _COUNT_FROM_0,
        "column": _COUNT_FROM_0,
        "result": {"type": "boolean"},
    },
    {
        "error": _TEXT,
        "captures": {"type": "object", "additionalProperties": _TEXT},
        "read": _list_of(_object({"from": _TEXT, "path": _TEXT}, {"type": _TEXT, "value": {}})),
    },
)

DATA_SCHEMAS: Final[JsonObject] = {
    "Value": {
        "description": (
            "Any JSON. What is empty does not exist: null, {} and [] are nothing. In a write, an "
            'object with the one member ".sv" is replaced by the server, and ".priority" and '
            '".value" carry a priority.'
        )
    },
    "Priority": {
        "anyOf": [{"type": "number"}, {"type": "string"}, {"type": "null"}],
        "description": "The priority of a node; null for none.",
    },
    "Patch": {
        "type": ["object", "null"],
        "maxProperties": MAX_PATCH_MEMBERS,
        "description": (
            "The children to change, by keys or by paths below the path of the request; null "
            "removes one. null as a whole removes the value at the path."
        ),
    },
    "Nothing": {"type": "null"},
    "Pushed": _object(
        {"name": {"type": "string", "pattern": "^[-0-9A-Z_a-z]{20}$"}},
        None,
        "The key of the new child.",
    ),
    "Explanation": _object(
        {
            "allowed": {"type": "boolean"},
            "admin": {"type": "boolean"},
            "rules": _list_of(_RULE_RESULT),
        },
        {
            "reason": _TEXT,
            "auth": _ANYTHING,
            "index": _object(
                {"name": _TEXT, "state": {"enum": ["built", "building", "none", "key"]}}
            ),
        },
        "What X-TreeDB-Explain answers: which rules ran, where, and with which result.",
    ),
}

ADMIN_SCHEMAS: Final[JsonObject] = {
    "Rules": {
        "type": "object",
        "required": ["rules"],
        "properties": {"rules": {"type": "object"}},
        "description": "The security rules of a project; as they were put, comments included.",
    },
    "RulesPut": _object({"status": _STATUS_OK}, {"warnings": _list_of(_TEXT)}),
    "Log": _list_of(
        _object(
            {
                "seq": _COUNT_FROM_0,
                "time": {"type": "string", "format": "date-time"},
                "uid": {"type": ["string", "null"]},
                "method": {"enum": ["PUT", "PATCH", "DELETE"]},
                "path": _TEXT,
                "size": _COUNT_FROM_0,
            },
            {
                "admin": {"type": "boolean", "description": "Whether it was an admin."},
                "kept": {"type": "boolean", "description": "Whether the log has kept the data."},
                "data": {"description": "With format=export: what was written."},
            },
        )
    ),
    "Compacted": _object(
        {"before": _COUNT_FROM_0, "after": _COUNT_FROM_0}, None, "Bytes that the database occupies."
    ),
    "Databases": _list_of(_object({"name": _TEXT})),
    "Activity": _object(
        {
            "for_s": {"type": "number", "description": "The seconds since the daemon began."},
            "databases": _list_of(
                _object(
                    {
                        "name": _TEXT,
                        "bytes": {"type": ["integer", "null"]},
                        "streams": _COUNT_FROM_0,
                        "sockets": _COUNT_FROM_0,
                        "requests": _COUNT_FROM_0,
                        "busy_ms": _MILLISECONDS,
                    }
                )
            ),
            "slowest": _list_of(
                _object(
                    {
                        "ms": _MILLISECONDS,
                        "method": _TEXT,
                        "name": _TEXT,
                        "path": _TEXT,
                        "status": _COUNT_FROM_0,
                        "ago_s": _MILLISECONDS,
                    }
                )
            ),
        }
    ),
    "Health": _object(
        {"status": _STATUS_OK},
        {
            "turns": _object(
                {
                    "count": _COUNT_FROM_0,
                    "p50_ms": _MILLISECONDS,
                    "p99_ms": _MILLISECONDS,
                    "longest_ms": _MILLISECONDS,
                },
                None,
                "For an admin: how long the turns of the event loop take.",
            )
        },
    ),
    "OpenApi": _object(
        {"openapi": _TEXT, "info": {"type": "object"}, "paths": {"type": "object"}},
        None,
        "This document.",
    ),
}


def any_of(*names: str) -> JsonObject:
    """Return the schema of a body that is one of these schemas."""
    refs = [ref("schemas", name) for name in names]
    return refs[0] if len(refs) == 1 else {"anyOf": refs}


JSON: Final = "application/json"
SCRIPT: Final = "application/javascript"
EVENTS: Final = "text/event-stream"
HTML: Final = "text/html"

_ALWAYS: Final = ("X-Content-Type-Options", "Cache-Control")
_OFTEN: Final = (
    *("Access-Control-Allow-Origin", "Access-Control-Expose-Headers", "Vary", "TreeDB-Lag-Ms"),
    "Content-Encoding",
)

_HEADERS_BY_NAME: Final[dict[str, tuple[str, JsonObject]]] = {
    "X-Content-Type-Options": ("In every response.", {"const": "nosniff"}),
    "Cache-Control": ("How long caches may keep the response.", _TEXT),
    "Access-Control-Allow-Origin": ("Whose pages may read the response.", _TEXT),
    "Access-Control-Expose-Headers": ("The headers that pages may read.", _TEXT),
    "Access-Control-Allow-Methods": ("Of a preflight request: the methods of the resource.", _TEXT),
    "Access-Control-Allow-Headers": ("Of a preflight request: the headers it asks for.", _TEXT),
    "Access-Control-Max-Age": ("Of a preflight request: seconds it may be kept.", _TEXT),
    "Vary": ("Which request headers choose the response.", _TEXT),
    "Content-Encoding": ("The coding of the body.", {"enum": ["gzip", "zstd"]}),
    "TreeDB-Lag-Ms": (
        "Of a daemon that may be late: for how many milliseconds what is shown may be out of date.",
        {"type": "integer", "minimum": 0},
    ),
    "ETag": ("The entity tag of the value, if the request asks for it.", _TEXT),
    "Content-Disposition": ("Of a download: the file name.", _TEXT),
    "X-Accel-Buffering": ("Of a stream: proxies are not to buffer it.", {"const": "no"}),
    "Allow": ("The methods of the resource.", _TEXT),
    "Retry-After": ("In how many seconds to try again.", {"type": "integer", "minimum": 0}),
    "Accept-Encoding": ("The codings of bodies that are decoded.", _TEXT),
    "Content-Security-Policy": ("What the page may load: nothing.", _TEXT),
    "X-Frame-Options": ("No other page may frame it.", {"const": "DENY"}),
}
_REQUIRED: Final = frozenset(_ALWAYS)

WHEN: Final = {
    400: "What was sent is malformed or not allowed: bytes, address, parameters, headers or body.",
    401: "A bad token, or none where an admin's is needed; in the dialect of Firebase, what the "
    "rules deny.",
    403: "The rules deny it, or the token is not an admin's.",
    404: "A path without `.json`, or no such project or database.",
    405: "The resource does not have the method.",
    408: "The request arrived too slowly.",
    409: "A file of the configuration manages the rules.",
    412: "`If-Match` does not match. In the dialect of Firebase the body is the present value.",
    413: "A body of more than {write_body_bytes} bytes, as it is sent or decoded, or a value that "
    "is too large to be indented.",
    414: "A request line of more than {request_line_bytes} bytes.",
    415: "A body in another coding than gzip or zstd.",
    421: "A host that is not served here.",
    429: "Too many connections, streams or responses that wait.",
    431: "Headers of more than {header_bytes} bytes, or more than {header_count} lines.",
    500: "An error of the server, which is in its log.",
    503: "The server is at a limit or stopping, or something that it needs cannot be used.",
    504: "The time-out has passed.",
    507: "The database has no room for it.",
}
"""What each status of an error means; of these the document has those of the table of errors."""

_ERROR_HEADERS: Final = {
    405: ("Allow",),
    412: ("ETag",),
    415: ("Accept-Encoding",),
    429: ("Retry-After",),
    503: ("Retry-After",),
}


def _json_content(*names: str) -> JsonObject:
    return {JSON: any_of(*names)}


def _response(description: str, content: JsonObject, *headers: str) -> JsonObject:
    shown: JsonObject = {
        "description": description,
        "headers": {
            name: ref("headers", name) for name in dict.fromkeys((*_ALWAYS, *_OFTEN, *headers))
        },
    }
    if content:
        shown["content"] = {media: {"schema": schema} for media, schema in content.items()}
    return shown


_PAGE_HEADERS: Final = ("Content-Security-Policy", "X-Frame-Options")
_READ_MEDIA: Final[JsonObject] = {JSON: {}, SCRIPT: _TEXT, EVENTS: _TEXT}
_TAGGED: Final = ("ETag",)
_READ_HEADERS: Final = ("ETag", "Content-Disposition", "X-Accel-Buffering")
_RESULTS: Final = {
    "Read": _response(
        "The value, or the result.", {**_READ_MEDIA, **_json_content("Value")}, *_READ_HEADERS
    ),
    "Written": _response("The value as it is now.", _json_content("Value"), *_TAGGED),
    "Patched": _response("The body.", _json_content("Value"), *_TAGGED),
    "Posted": _response(
        "The new key; with an overridden method, the response of that method.",
        {**_READ_MEDIA, **_json_content("Pushed", "Explanation", "Value")},
        *_READ_HEADERS,
    ),
    "Removed": _response("null.", _json_content("Nothing", "Explanation"), *_TAGGED),
    "PriorityRead": _response(
        "The priority.",
        {JSON: any_of("Priority", "Explanation"), SCRIPT: _TEXT},
        *_READ_HEADERS,
    ),
    "PriorityShown": _response("The priority.", _json_content("Priority", "Explanation"), *_TAGGED),
    "Silent": _response("Done; `print=silent` asks for no body.", {}, *_TAGGED),
    "NotModified": _response("The client has what it would receive.", {}, *_TAGGED),
    "Methods": _response(
        "The methods of the resource, and what pages may send.",
        {},
        *("Allow", "Access-Control-Allow-Methods", "Access-Control-Allow-Headers"),
        "Access-Control-Max-Age",
    ),
}
_OF_ADMINS: Final = {
    name: _response(description, _json_content(name, "Explanation"))
    for name, description in {
        "Rules": "The rules.",
        "RulesPut": "The rules are in force, or were checked.",
        "Log": "The last writes, oldest first.",
        "Compacted": "What the database occupies.",
        "Databases": "The databases of the project.",
        "Activity": "What clients do with the databases of the project.",
    }.items()
}
_APART: Final = {
    "Health": _response("All is well.", _json_content("Health")),
    "OpenApi": _response("This document.", _json_content("OpenApi"), *_TAGGED),
    "Page": _response("A page for browsers.", {HTML: _TEXT}, *_PAGE_HEADERS),
    "Icon": _response("The icon.", {"image/svg+xml": _TEXT}, "Content-Security-Policy"),
    "Document": _response(
        "A page of the documentation; as HTML if the client prefers that.",
        {"text/markdown": _TEXT, HTML: _TEXT},
        *_PAGE_HEADERS,
    ),
}


def name_of(status: int) -> str:
    """Return the name of the response to an error; phrases are not the same in every Python."""
    return f"Error{status}"


def render_headers() -> JsonObject:
    """Return the headers of responses as components."""
    shown: JsonObject = {}
    for name, (description, schema) in _HEADERS_BY_NAME.items():
        shown[name] = {"description": description, "schema": schema}
        if name in _REQUIRED:
            shown[name]["required"] = True
    return shown


def render_responses(codes: Mapping[int, Sequence[str]], limits: Limits) -> JsonObject:
    """Return the responses as components; `codes` are those of errors by their statuses."""
    errors = {name_of(status): _error_response(status, codes[status], limits) for status in codes}
    return {**_RESULTS, **_OF_ADMINS, **_APART, **errors}


def _error_response(status: int, codes: Sequence[str], limits: Limits) -> JsonObject:
    if status == 412:
        value = {"description": "In the dialect of Firebase: the present value."}
        schema: JsonObject = {"anyOf": [ref("schemas", "ConditionFailed"), value]}
    else:
        code = {"properties": {"error": {"enum": list(codes)}}}
        error = {"allOf": [ref("schemas", "Error"), code]}
        schema = {"anyOf": [error, ref("schemas", "FirebaseError")]}
    headers = _ERROR_HEADERS.get(status, ())
    return _response(fill_in(WHEN[status], limits), {JSON: schema}, *headers)


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
        item: JsonObject = {"parameters": _refer_to(keys)} if keys else {}
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
            shown["parameters"] = _refer_to(parameters)
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


def _refer_to(parameters: Iterable[Parameter]) -> list[JsonObject]:
    return [ref("parameters", each.key) for each in parameters]


MAX_AGE_S: Final = 300


@attrs.frozen
class _Made:
    """The document of a service that is mounted at `prefix`."""

    prefix: str
    tag: str
    response: Response


class OpenApi:
    """Answers with the document; it is made when it is first asked for."""

    def __init__(
        self,
        routes: Iterable[DeclaredRoute],
        options: WebOptions,
        codes: Mapping[int, Sequence[str]],
    ) -> None:
        """Describe these routes; `codes` are those of errors by their statuses."""
        self._codes = codes
        self._routes = tuple(routes)
        self._options = options
        self._made: _Made | None = None

    async def answer(self, request: IHttp1Request) -> Response:
        """Return the document, or 304 to a client that has it."""
        prefix = "".join(f"/{quote(each, safe='')}" for each in request.prepath if each)
        if self._made is None or self._made.prefix != prefix:
            self._made = self._make(prefix)
        listed = joined(request.headers, b"if-none-match")
        if listed is not None and parse_etags(listed).matches(self._made.tag, True):
            return attrs.evolve(self._made.response, status=304, body=b"")
        return self._made.response

    def _make(self, prefix: str) -> _Made:
        body = orjson.dumps(make_document(self._routes, self._options, self._codes, prefix))
        tag = f'"{sha256(body).hexdigest()}"'
        headers = (JSON_TYPE, (b"ETag", tag.encode()))
        return _Made(prefix, tag, Response(200, body, headers, max_age_s=MAX_AGE_S))
