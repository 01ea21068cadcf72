"""Errors as the answers of the real-time protocol: one table from exceptions to its words."""

from __future__ import annotations

from typing import Final

from twisted.logger import Logger
from twisted.python.failure import Failure

from treedbd.database.requests import (
    ConditionFailed,
    DeadlinePassed,
    OutcomeInDoubt,
    PermissionDenied,
    QuotaExceeded,
    TooLarge,
    TooManyDisconnectWrites,
    Unavailable,
    UnknownDatabase,
)
from treedbd.held_bytes import HeldBytesRefused
from treedbd.http1.content import WaitingBytesRefused
from treedbd.store.engine import CannotOpenStore, DamagedRow, DiskFull, StoreFailed
from treedbd.tree.types import InvalidData, InvalidPath, InvalidQuery
from treedbd.web.auth.identity import AuthRequired, NotAdmin
from treedbd.web.auth.jwt import BadToken
from treedbd.web.auth.providers import ProviderUnavailable
from treedbd.web.rates import TooManyRequests

PERMISSION_DENIED: Final = ("permission_denied", "Permission denied")
"""Clients recognise a denial by these very words."""
DATA_STALE: Final = ("datastale", "The transaction is based on an old value.")
FAILURE: Final = "failure"
UNAVAILABLE: Final = "unavailable"
TOO_BIG: Final = "too_big"
INTERNAL: Final = (FAILURE, "An internal error occurred; it has been logged.")
EXPIRED: Final = ("expired_token", "The token has expired.")

_WORDS: Final[dict[type[BaseException], str]] = {
    InvalidData: FAILURE,
    InvalidPath: FAILURE,
    InvalidQuery: FAILURE,
    UnknownDatabase: FAILURE,
    TooLarge: TOO_BIG,
    AuthRequired: "invalid_token",
    NotAdmin: "invalid_token",
    QuotaExceeded: UNAVAILABLE,
    TooManyDisconnectWrites: UNAVAILABLE,
    TooManyRequests: UNAVAILABLE,
    WaitingBytesRefused: UNAVAILABLE,
    HeldBytesRefused: UNAVAILABLE,
    ProviderUnavailable: UNAVAILABLE,
    Unavailable: UNAVAILABLE,
    DeadlinePassed: UNAVAILABLE,
    OutcomeInDoubt: UNAVAILABLE,
}
_STORE_ERRORS: Final = (StoreFailed, DiskFull, CannotOpenStore, DamagedRow)

_log = Logger()


class LimitReached(Unavailable):
    """A connection has as many listens or disconnect writes as it may have."""


def status_of(error: BaseException | None) -> tuple[str, str]:
    """Return the word and the text of the answer to a request that has raised an error.

    What is unexpected is logged.
    """
    if isinstance(error, PermissionDenied):
        return PERMISSION_DENIED
    if isinstance(error, ConditionFailed):
        return DATA_STALE
    if isinstance(error, BadToken):
        return ("expired_token" if error.reason == "expired" else "invalid_token"), str(error)
    if isinstance(error, _STORE_ERRORS):
        _log.error("A store has failed: {error}", error=error)
        return UNAVAILABLE, "The store cannot be used at present."
    for kind in type(error).__mro__:
        if kind in _WORDS:
            return _WORDS[kind], str(error)
    _log.failure("A request of the real-time protocol has failed.", Failure(error))
    return INTERNAL
