"""The schemas of the OpenAPI document: what bodies hold, of requests and of responses."""

from __future__ import annotations

from typing import Final

from treedbd.limits import MAX_PATCH_MEMBERS
from treedbd.web.openapi.values import JsonObject, ref

_TEXT: Final[JsonObject] = {"type": "string"}
_COUNT: Final[JsonObject] = {"type": "integer", "minimum": 0}
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
    {"rule": _TEXT, "path": _TEXT, "line": _COUNT, "column": _COUNT, "result": {"type": "boolean"}},
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
                "seq": _COUNT,
                "time": {"type": "string", "format": "date-time"},
                "uid": {"type": ["string", "null"]},
                "method": {"enum": ["PUT", "PATCH", "DELETE"]},
                "path": _TEXT,
                "size": _COUNT,
            },
            {
                "admin": {"type": "boolean", "description": "Whether it was an admin."},
                "kept": {"type": "boolean", "description": "Whether the log has kept the data."},
                "data": {"description": "With format=export: what was written."},
            },
        )
    ),
    "Compacted": _object(
        {"before": _COUNT, "after": _COUNT}, None, "Bytes that the database occupies."
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
                        "streams": _COUNT,
                        "sockets": _COUNT,
                        "requests": _COUNT,
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
                        "status": _COUNT,
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
                    "count": _COUNT,
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
