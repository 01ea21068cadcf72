"""The parameters of the OpenAPI document, by the names that operations refer to them by.

A name is that of the parameter itself, in most cases; where resources read the same parameter
differently, a suffix distinguishes them: `format.rules`. `tests/web/openapi` compares them with
those that the parser knows.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, Literal, TypeAlias

import attrs

from treedbd.limits import (
    MAX_CALLBACK_CHARACTERS,
    MAX_KEY_BYTES,
    MAX_LABEL_CHARACTERS,
    MAX_TIMEOUT_S,
    MAX_WHERE_CONDITIONS,
)
from treedbd.names import NAME_PATTERN
from treedbd.tree.query import WHERE
from treedbd.web.admin import DEFAULT_ENTRIES, MAX_ENTRIES
from treedbd.web.openapi.values import JsonObject
from treedbd.web.request import METHOD_OVERRIDE, ON_DISCONNECT, OVERRIDES, TIMEOUT_PATTERN

Source: TypeAlias = Literal["query", "header", "path"]

_TEXT: Final[JsonObject] = {"type": "string"}
_FLAG: Final[JsonObject] = {"type": "boolean"}
_COUNT: Final[JsonObject] = {"type": "integer", "minimum": 1}
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


def _json(schema: JsonObject, *examples: str) -> JsonObject:
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
        _json({"type": ["object", "null"]}, '{"uid":"ada"}', "null"),
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
        _json({"type": "object"}, '{"/users/ada/state":"offline"}'),
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
        _json({"type": "string"}, '"$key"', '"$value"', '"$priority"', '"address/city"'),
        'What the children are ordered by, in double quotes: `"$key"`, `"$value"`, `"$priority"` '
        "or the path of a child of each.",
    ),
    Parameter("query", "limitToFirst", _COUNT, "How many children, from the first."),
    Parameter("query", "limitToLast", _COUNT, "How many children, from the last."),
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
        _json(
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
        {**_COUNT, "default": DEFAULT_ENTRIES},
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

_FIXED: Final = (
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
    return {each.key: each.render() for each in (*_FIXED, *etag_parameters(etag_headers))}
