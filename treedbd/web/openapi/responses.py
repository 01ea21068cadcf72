"""The responses of the OpenAPI document, by the names that operations refer to them by.

Which code belongs to which status is that of `web.errors` and of `http1.parser`; here is only,
for each status, what it means.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from treedbd.limits import Limits
from treedbd.web.openapi.schemas import any_of
from treedbd.web.openapi.values import JsonObject, fill_in, ref

JSON: Final = "application/json"
SCRIPT: Final = "application/javascript"
EVENTS: Final = "text/event-stream"
HTML: Final = "text/html"

_TEXT: Final[JsonObject] = {"type": "string"}
_ALWAYS: Final = ("X-Content-Type-Options", "Cache-Control")
_OFTEN: Final = (
    *("Access-Control-Allow-Origin", "Access-Control-Expose-Headers", "Vary", "TreeDB-Lag-Ms"),
    "Content-Encoding",
)

_HEADERS: Final[dict[str, tuple[str, JsonObject]]] = {
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


def _json(*names: str) -> JsonObject:
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
_DONE: Final = {
    "Read": _response(
        "The value, or the result.", {**_READ_MEDIA, **_json("Value")}, *_READ_HEADERS
    ),
    "Written": _response("The value as it is now.", _json("Value"), *_TAGGED),
    "Patched": _response("The body.", _json("Value"), *_TAGGED),
    "Posted": _response(
        "The new key; with an overridden method, the response of that method.",
        {**_READ_MEDIA, **_json("Pushed", "Explanation", "Value")},
        *_READ_HEADERS,
    ),
    "Removed": _response("null.", _json("Nothing", "Explanation"), *_TAGGED),
    "PriorityRead": _response(
        "The priority.",
        {JSON: any_of("Priority", "Explanation"), SCRIPT: _TEXT},
        *_READ_HEADERS,
    ),
    "PriorityShown": _response("The priority.", _json("Priority", "Explanation"), *_TAGGED),
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
    name: _response(description, _json(name, "Explanation"))
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
    "Health": _response("All is well.", _json("Health")),
    "OpenApi": _response("This document.", _json("OpenApi"), *_TAGGED),
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
    for name, (description, schema) in _HEADERS.items():
        shown[name] = {"description": description, "schema": schema}
        if name in _REQUIRED:
            shown[name]["required"] = True
    return shown


def render_responses(codes: Mapping[int, Sequence[str]], limits: Limits) -> JsonObject:
    """Return the responses as components; `codes` are those of errors by their statuses."""
    errors = {name_of(status): _error(status, codes[status], limits) for status in codes}
    return {**_DONE, **_OF_ADMINS, **_APART, **errors}


def _error(status: int, codes: Sequence[str], limits: Limits) -> JsonObject:
    if status == 412:
        value = {"description": "In the dialect of Firebase: the present value."}
        schema: JsonObject = {"anyOf": [ref("schemas", "ConditionFailed"), value]}
    else:
        code = {"properties": {"error": {"enum": list(codes)}}}
        error = {"allOf": [ref("schemas", "Error"), code]}
        schema = {"anyOf": [error, ref("schemas", "FirebaseError")]}
    headers = _ERROR_HEADERS.get(status, ())
    return _response(fill_in(WHEN[status], limits), {JSON: schema}, *headers)
