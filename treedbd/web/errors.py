"""Errors as responses: the one table of statuses and codes, and what sends them.

Every error of the interface is a JSON object with a code and a sentence, in the dialect of its
request. An exception that is not in the table is a bug of treedb: it is logged, and the response
shows nothing of it but the id of the request.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Final, TypeAlias

import attrs
from twisted.logger import Logger
from twisted.python.failure import Failure

from treedbd.audit.search import NoAudit
from treedbd.counting import HeldBytesRefused
from treedbd.database.backup_folder import BackupUnderWay, NoBackups
from treedbd.database.requests import (
    ConditionFailed,
    DatabaseExists,
    DeadlinePassed,
    HookConflict,
    OutcomeInDoubt,
    PermissionDenied,
    PlaceLost,
    QuotaExceeded,
    ReaderReplaced,
    RulesChanged,
    RulesManagedByFile,
    TagDenied,
    TooLarge,
    TooManyCursors,
    TooManyDisconnectWrites,
    TooManyDrafts,
    TooManyEvents,
    TooManyHooks,
    Unavailable,
    UnknownCursor,
    UnknownDatabase,
    UnknownHook,
    UnknownVersion,
)
from treedbd.errors import NO_FIELDS, in_one_line
from treedbd.http1.content import TooManyWaitingBytes, WaitingBytesExhausted, WaitingBytesRefused
from treedbd.http1.parser import ACCEPTED, REPLIES, Header, UnsupportedEncoding
from treedbd.http1.request import IHttp1Request, id_header, shown_path
from treedbd.limits import MAX_SHOWN_BYTES
from treedbd.names import DatabaseName, DialectName
from treedbd.rules.document import InvalidRules
from treedbd.standby.sender import CannotBeFollowed
from treedbd.store.engine import (
    CannotOpenStore,
    DamagedPage,
    DamagedRow,
    DiskFull,
    StoreDamaged,
    StoreFailed,
)
from treedbd.tree.types import InvalidData, InvalidPath, InvalidQuery, Json
from treedbd.web.auth.identity import AuthRequired, NotAdmin, ReadOnlyToken, TokenRequired
from treedbd.web.auth.jwt import BadToken
from treedbd.web.auth.minting import NoSigningSecret
from treedbd.web.auth.providers import ProviderUnavailable
from treedbd.web.auth.verifier import ClientGone, IdentifyFailed
from treedbd.web.console import MissingFile
from treedbd.web.function_triggers import NoFunctions
from treedbd.web.listeners import StreamsExhausted, TooManySockets, TooManyStreams
from treedbd.web.origins import ForeignOrigin, UnnamedPage
from treedbd.web.pages import MissingDocument
from treedbd.web.rates import TooManyRequests
from treedbd.web.realtime.wire import WEBSOCKET_VERSION, BadHandshake, CannotUpgrade, WrongVersion
from treedbd.web.request import (
    DataRequest,
    Dialect,
    MethodNotAllowed,
    Misdirected,
    MissingSuffix,
    NoDatabaseNamed,
    PayloadTooLarge,
    RequestParser,
)
from treedbd.web.response import JSON_TYPE, Response, ResponseWriter

RETRY_SOON: Final = (b"Retry-After", b"1")
"""Sent with errors that are expected to last for a second at most."""
_log = Logger()

STATUS: Final[dict[type[BaseException], tuple[int, str]]] = {
    InvalidData: (400, "invalid_data"),
    InvalidPath: (400, "invalid_path"),
    InvalidQuery: (400, "invalid_query"),
    InvalidRules: (400, "invalid_data"),
    TooManyDisconnectWrites: (400, "invalid_query"),
    BadToken: (401, "auth_required"),
    AuthRequired: (401, "auth_required"),
    TokenRequired: (401, "auth_required"),
    ForeignOrigin: (403, "permission_denied"),
    UnnamedPage: (403, "permission_denied"),
    PermissionDenied: (403, "permission_denied"),
    TooManyEvents: (400, "too_many_events"),
    NotAdmin: (403, "permission_denied"),
    ReadOnlyToken: (403, "permission_denied"),
    MissingDocument: (404, "not_found"),
    MissingFile: (404, "not_found"),
    MissingSuffix: (404, "not_found"),
    NoDatabaseNamed: (404, "not_found"),
    UnknownCursor: (404, "not_found"),
    UnknownDatabase: (404, "not_found"),
    UnknownHook: (404, "not_found"),
    UnknownVersion: (404, "not_found"),
    CannotUpgrade: (404, "not_found"),
    NoBackups: (404, "not_found"),
    NoAudit: (404, "not_found"),
    NoFunctions: (404, "not_found"),
    MethodNotAllowed: (405, "method_not_allowed"),
    RulesManagedByFile: (409, "conflict"),
    NoSigningSecret: (409, "conflict"),
    DatabaseExists: (409, "conflict"),
    HookConflict: (409, "conflict"),
    TooManyHooks: (409, "conflict"),
    TooManyCursors: (409, "conflict"),
    ReaderReplaced: (409, "reader_replaced"),
    PlaceLost: (410, "place_lost"),
    BackupUnderWay: (409, "conflict"),
    CannotBeFollowed: (409, "conflict"),
    ConditionFailed: (412, "condition_failed"),
    RulesChanged: (412, "condition_failed"),
    PayloadTooLarge: (413, "payload_too_large"),
    TooLarge: (413, "payload_too_large"),
    IdentifyFailed: (500, "internal_error"),
    UnsupportedEncoding: (415, "unsupported_encoding"),
    Misdirected: (421, "misdirected"),
    BadHandshake: (400, "invalid_data"),
    WrongVersion: (426, "invalid_data"),
    TooManyRequests: (429, "too_many_requests"),
    TooManyWaitingBytes: (429, "too_many_requests"),
    TooManyDrafts: (429, "too_many_requests"),
    TooManyStreams: (429, "too_many_requests"),
    ProviderUnavailable: (503, "unavailable"),
    HeldBytesRefused: (503, "unavailable"),
    WaitingBytesExhausted: (503, "unavailable"),
    StreamsExhausted: (503, "unavailable"),
    TooManySockets: (503, "unavailable"),
    Unavailable: (503, "unavailable"),
    DeadlinePassed: (504, "timeout"),
    OutcomeInDoubt: (504, "in_doubt"),
    QuotaExceeded: (507, "quota_exceeded"),
}
_STORE_ERRORS: Final[dict[type[BaseException], str]] = {
    StoreFailed: "The store is being recovered after a failure.",
    StoreDamaged: "The database is damaged: restore it from a backup.",
    DiskFull: "The disk is full.",
    CannotOpenStore: "The database cannot be opened.",
    DamagedPage: "The data stored there is damaged.",
    DamagedRow: "The data stored there is damaged.",
}
_INTERNAL: Final = (500, "internal_error")
_HIDDEN_MISMATCH: Final = (
    f"The value is another one, and has more than {MAX_SHOWN_BYTES} bytes, so it is not shown."
)


def codes_by_status() -> dict[int, list[str]]:
    """Return the codes of all errors by their statuses: of requests, and of HTTP itself.

    Errors of a WebSocket handshake are left out, since that is not a request of the REST interface.
    """
    of_requests = {pair for kind, pair in STATUS.items() if kind is not WrongVersion}
    pairs = {*of_requests, _INTERNAL, *((each.status, each.code) for each in REPLIES)}
    codes: defaultdict[int, list[str]] = defaultdict(list)
    for status, code in sorted(pairs):
        codes[status].append(code)
    return dict(codes)


def error_response(
    error: BaseException, dialect: Dialect, logged: Mapping[str, object] = NO_FIELDS
) -> Response:
    """Return the response to an error.

    `logged` describes the request in the log: its id, its method, and its path without a token.
    """
    problem = _STORE_ERRORS.get(type(error))
    if problem is not None:
        _log.error("A store has failed: {error}", error=error, treedb_fields=logged)
        return _response(dialect, 503, "unavailable", problem)
    known = _find_known(error)
    if known is None:
        return _internal_error(error, dialect, logged)
    status, code = known
    if isinstance(error, InvalidRules):
        text, errors = dialect.rules_error(str(error)), show_rules_errors(error)
        return Response(status, dialect.error_body(code, text, error.hint, errors), (JSON_TYPE,))
    message = str(error)
    if isinstance(error, ConditionFailed):
        return _mismatch(dialect, code, error)
    if isinstance(error, PermissionDenied | NotAdmin | ReadOnlyToken):
        message = dialect.denial(message)
        if not isinstance(error, TagDenied):
            status = dialect.denied_status
    if isinstance(error, RulesChanged):
        return _response(dialect, status, code, message, (b"ETag", dialect.etag(error.tag)))
    return _response(dialect, status, code, message, *_headers_of(error))


def show_rules_errors(error: InvalidRules) -> list[Json]:
    """Return the JSON of the errors of a rules document: where each is, and what helps."""
    shown: list[Json] = []
    for each in (error, *error.others):
        one: dict[str, Json] = {"line": each.line, "column": each.column, "message": each.text}
        shown.append(one | {"hint": each.hint} if each.hint else one)
    return shown


def _mismatch(dialect: Dialect, code: str, error: ConditionFailed) -> Response:
    """Return the response to a condition that does not hold."""
    tag = (b"ETag", dialect.etag(error.tag))
    if error.printed is not None:
        body = dialect.mismatch_body(code, str(error), error.printed)
        return Response(412, body, (JSON_TYPE, tag))
    if dialect.takes_412_for_value:
        return _response(dialect, 413, STATUS[TooLarge][1], _HIDDEN_MISMATCH, tag)
    return _response(dialect, 412, code, str(error), tag)


def _internal_error(
    error: BaseException, dialect: Dialect, logged: Mapping[str, object]
) -> Response:
    _log.failure(
        "A request failed: {method} {path}.",
        Failure(error),
        method=logged.get("method", ""),
        path=logged.get("path", ""),
        treedb_fields=logged,
    )
    message = "An internal error occurred; it has been logged."
    return _response(dialect, 500, "internal_error", message)


def is_server_error(error: BaseException) -> bool:
    """Return whether the response to an error has a status of 500 or more."""
    known = _find_known(error)
    return known is None or known[0] >= 500


def code_of(error: BaseException) -> str:
    """Return the code of the response to an error."""
    known = _find_known(error)
    if known is not None:
        return known[1]
    return "unavailable" if type(error) in _STORE_ERRORS else "internal_error"


def _find_known(error: BaseException) -> tuple[int, str] | None:
    return next((STATUS[kind] for kind in type(error).__mro__ if kind in STATUS), None)


def _headers_of(error: BaseException) -> tuple[Header, ...]:
    if isinstance(error, MethodNotAllowed):
        return ((b"Allow", error.allowed.header),)
    if isinstance(error, TooManyRequests):
        return ((b"Retry-After", b"%d" % error.retry_after_s),)
    if isinstance(error, TooManyDrafts | TooManyStreams | TooManyWaitingBytes):
        return (RETRY_SOON,)
    if isinstance(error, WrongVersion):
        return ((b"Sec-WebSocket-Version", WEBSOCKET_VERSION.encode()), (b"Upgrade", b"websocket"))
    return (ACCEPTED,) if isinstance(error, UnsupportedEncoding) else ()


def _response(dialect: Dialect, status: int, code: str, message: str, *headers: Header) -> Response:
    if status == 503:
        headers = (*headers, RETRY_SOON)
    return Response(status, dialect.error_body(code, message), (JSON_TYPE, *headers))


NoteRefusal: TypeAlias = Callable[[IHttp1Request, BaseException, str], None]


class ErrorSender:
    """Answers with errors, each in the dialect of its request.

    Attributes:
        watchers: are called with each error that is answered, and its code, while an admin looks.

    """

    def __init__(
        self,
        parser: RequestParser,
        writer: ResponseWriter,
        setting_of: Callable[[DatabaseName], DialectName],
        note: NoteRefusal | None = None,
    ) -> None:
        """`setting_of` returns the dialect that the project of a database is set to.

        `note` is called with each error that is answered, and its code.
        """
        self.watchers: Final[list[NoteRefusal]] = []
        self._note = note
        self._parser = parser
        self._writer = writer
        self._setting_of = setting_of

    def __call__(
        self,
        request: IHttp1Request,
        error: BaseException,
        wanted: DataRequest | None = None,
        *,
        headers: tuple[Header, ...] | None = None,
    ) -> None:
        """Answer with an error; `wanted` is the request as far as it was parsed.

        It has `headers` instead of the usual ones, unless they are None.
        """
        if isinstance(error, ClientGone):
            return
        if self._note is not None:
            self._note(request, error, code_of(error))
        for watch in self.watchers:
            watch(request, error, code_of(error))
        dialect = (
            self._parser.dialect_of(request, self._setting_of) if wanted is None else wanted.dialect
        )
        response = _response_to(request, error, dialect)
        if headers is not None and isinstance(response.body, bytes):
            request.send(response.status, (*response.headers, *headers), response.body)
            return
        try:
            self._writer.send(request, response, no_store=True)
        except WaitingBytesRefused as refused:  # an error that shows a large value
            self._writer.send(request, _response_to(request, refused, dialect), no_store=True)


def _response_to(request: IHttp1Request, error: BaseException, dialect: Dialect) -> Response:
    """Return the response to an error; one of the server shows the id of the request."""
    if not is_server_error(error):
        return error_response(error, dialect)
    logged = {
        "request_id": request.request_id,
        "method": in_one_line(request.method.decode("latin-1")),
        "path": in_one_line(shown_path(request.path)),
    }
    response = error_response(error, dialect, logged)
    return attrs.evolve(response, headers=(*response.headers, id_header(request)))
