"""From a value or an exception to the bytes of a reply: the one table of status codes.

Every error of the interface is a JSON object with a code and a sentence. What is not in the table
is an error of ours: it is logged, and the caller learns nothing of it.
"""

from __future__ import annotations

from typing import Final, TypeAlias

import attrs
from twisted.logger import Logger
from twisted.python.failure import Failure

from treedbd.database.catalog import UnknownDatabase
from treedbd.database.question import (
    ConditionFailed,
    DeadlinePassed,
    PermissionDenied,
    TagDenied,
    TooLarge,
    Unavailable,
)
from treedbd.database.rulebook import Governed
from treedbd.rules.refusal import InvalidRules
from treedbd.store.mapping import Failed, Full, Refused
from treedbd.store.row import Damaged
from treedbd.tree.path import InvalidPath, MissingSuffix
from treedbd.tree.query import InvalidQuery
from treedbd.tree.value import InvalidData
from treedbd.web.dialect import Dialect
from treedbd.web.identity.identity import AuthRequired, NotAdmin
from treedbd.web.identity.providers import ProviderUnavailable
from treedbd.web.identity.tokens import BadToken
from treedbd.web.site import Misdirected
from treedbd.web.streams import NoRoomForStreams, TooManyStreams

Header: TypeAlias = tuple[bytes, bytes]

ALLOWED: Final = b"GET, HEAD, PUT, POST, PATCH, DELETE, OPTIONS"
JSON_TYPE: Final = (b"Content-Type", b"application/json; charset=utf-8")
SCRIPT_TYPE: Final = (b"Content-Type", b"application/javascript; charset=utf-8")
NO_SNIFF: Final = (b"X-Content-Type-Options", b"nosniff")
NO_CACHE: Final = (b"Cache-Control", b"no-cache")
NO_STORE: Final = (b"Cache-Control", b"no-store")

_log = Logger()


class MethodNotAllowed(Exception):
    """A method that the addressed resource does not have; `allowed` are those that it has."""

    def __init__(self, message: str, allowed: bytes = ALLOWED) -> None:
        super().__init__(message)
        self.allowed = allowed


class PayloadTooLarge(Exception):
    """A body larger than this service takes."""


_STATUS: Final[dict[type[BaseException], tuple[int, str]]] = {
    InvalidData: (400, "invalid_data"),
    InvalidPath: (400, "invalid_path"),
    InvalidQuery: (400, "invalid_query"),
    MissingSuffix: (404, "not_found"),
    UnknownDatabase: (404, "not_found"),
    BadToken: (401, "auth_required"),
    AuthRequired: (401, "auth_required"),
    PermissionDenied: (403, "permission_denied"),
    NotAdmin: (403, "permission_denied"),
    InvalidRules: (400, "invalid_data"),
    Governed: (409, "conflict"),
    ProviderUnavailable: (503, "unavailable"),
    MethodNotAllowed: (405, "method_not_allowed"),
    ConditionFailed: (412, "condition_failed"),
    PayloadTooLarge: (413, "payload_too_large"),
    TooLarge: (413, "payload_too_large"),
    Misdirected: (421, "misdirected"),
    TooManyStreams: (429, "too_many_requests"),
    NoRoomForStreams: (503, "unavailable"),
    Unavailable: (503, "unavailable"),
    DeadlinePassed: (504, "timeout"),
}
_STORE_TROUBLE: Final[dict[type[BaseException], str]] = {
    Failed: "The store is being recovered after a failure.",
    Full: "The disk is full.",
    Refused: "The database cannot be opened.",
    Damaged: "What is stored there is damaged.",
}


@attrs.frozen
class Reply:
    """A whole reply; the headers that every reply carries are added when it is sent."""

    status: int
    body: bytes
    headers: tuple[Header, ...] = (JSON_TYPE,)


def refuse(error: BaseException, dialect: Dialect) -> Reply:
    """Return the reply that tells of an error."""
    trouble = _STORE_TROUBLE.get(type(error))
    if trouble is not None:
        _log.error("A store is in trouble: {error}", error=error)
        return _error(dialect, 503, "unavailable", trouble)
    known = next((_STATUS[kind] for kind in type(error).__mro__ if kind in _STATUS), None)
    if known is None:
        _log.failure("A request broke.", Failure(error))
        return _error(
            dialect, 500, "internal_error", "The server made an error; it has been logged."
        )
    status, code = known
    message = dialect.rules_fault(str(error)) if isinstance(error, InvalidRules) else str(error)
    if isinstance(error, ConditionFailed):
        body = dialect.mismatch_body(code, message, error.current)
        return Reply(status, body, (JSON_TYPE, (b"ETag", dialect.tag(error.tag))))
    if isinstance(error, PermissionDenied | NotAdmin) and not isinstance(error, TagDenied):
        status = dialect.denied_status
    if isinstance(error, MethodNotAllowed):
        return _error(dialect, status, code, message, (b"Allow", error.allowed))
    return _error(dialect, status, code, message)


def _error(dialect: Dialect, status: int, code: str, message: str, *headers: Header) -> Reply:
    return Reply(status, dialect.error_body(code, message), (JSON_TYPE, *headers))
