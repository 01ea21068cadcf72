"""The login of the application that embeds the service: it says who sends a request.

The application is called with each request of which the caller matters, and nothing of what it
returns is kept: the next request of the same connection may be that of another user. What it raises
refuses the request. Only the kind and the place of such an error are logged, because its text may
contain what the request has shown to be secret.
"""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from enum import Enum
from typing import Any, Final, NoReturn, TypeAlias

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger
from twisted.python.failure import Failure

from treedbd.database.requests import DeadlinePassed
from treedbd.limits import MAX_CLAIM_LEVELS
from treedbd.tree.types import InvalidData, Json
from treedbd.tree.value import compact
from treedbd.tree.value import parse as parse_json
from treedbd.web.auth.identity import ANONYMOUS, HOST_SOURCE, Identity
from treedbd.web.auth.jwt import exceeds_levels


class HostAdmin(Enum):
    """The type of `ADMIN`."""

    ADMIN = "admin"


ADMIN: Final = HostAdmin.ADMIN
"""Who is not bound by rules; as the answer of `identify`, and as the `auth` of a database."""

Auth: TypeAlias = Mapping[str, Json] | HostAdmin | None
"""Who uses a database: the variable `auth` of the rules, None for anonymous, or `ADMIN`."""
Identify: TypeAlias = Callable[[Any], Auth | Awaitable[Auth]]
"""Returns who sends a request of `twisted.web`; None if it is not logged in."""


class IdentifyFailed(Exception):
    """The application did not say who sends a request; its error has been logged."""

    def __init__(self) -> None:
        super().__init__("An internal error occurred; it has been logged.")


class ClientGone(Exception):
    """The client has disconnected before it was known who it is: nobody waits for an answer."""


class HostLogin:
    """Asks the application who sends a request."""

    _log = Logger()

    def __init__(self, identify: Identify, clock: IReactorTime) -> None:
        """Ask `identify`, and wait by `clock` for its answer."""
        self._identify = identify
        self._clock = clock

    async def find(
        self, request: object, timeout_s: float, until: Callable[[], Deferred[None]]
    ) -> Identity | None:
        """Return who sends a request, None if the application knows no user of it.

        What `until` returns fails when the client disconnects: then an answer that is awaited is
        cancelled. Raises `IdentifyFailed`, `ClientGone`, or `DeadlinePassed` if the answer takes
        longer than the time.
        """
        try:
            auth: Any = self._identify(request)
            if isinstance(auth, Awaitable):
                auth = await self._wait(as_deferred(auth), timeout_s, until())
            return None if auth is None else identity_of(auth)
        except (DeadlinePassed, ClientGone):
            raise
        except (Exception, asyncio.CancelledError) as error:
            self._log.error(
                "identify raised {kind} at {place}: the request was answered with 500.",
                kind=type(error).__name__,
                place=_place_of(error),
            )
            raise IdentifyFailed from None

    async def _wait(self, waiting: Deferred[Any], timeout_s: float, until: Deferred[None]) -> Auth:
        gone: list[Failure] = []

        def cancel(failure: Failure) -> None:
            gone.append(failure)
            waiting.cancel()

        until.addErrback(cancel)
        try:
            auth: Auth = await waiting.addTimeout(timeout_s, self._clock, _time_out)
        except (Exception, asyncio.CancelledError):
            if gone:
                raise ClientGone from None
            raise
        if gone:
            raise ClientGone
        return auth


def as_deferred(waiting: Awaitable[Any]) -> Deferred[Any]:
    """Return a Deferred of what a program waits for: a coroutine, a future of asyncio, or one."""
    if isinstance(waiting, Deferred):
        return waiting
    if asyncio.isfuture(waiting):
        return Deferred.fromFuture(waiting)
    if isinstance(waiting, Coroutine):
        return Deferred.fromCoroutine(waiting)
    raise TypeError(f"{type(waiting).__name__} is not a Deferred, a coroutine or a future")


def identity_of(auth: Auth) -> Identity:
    """Return the identity for an `auth`, of which it keeps a copy.

    Raises `TypeError` for what is not one, or `InvalidData` for what is not JSON.
    """
    if auth is None:
        return ANONYMOUS
    if isinstance(auth, HostAdmin):
        return Identity(True, None, source=HOST_SOURCE)
    if not isinstance(auth, Mapping):
        raise TypeError(f"auth must be a dict, None or ADMIN, not {type(auth).__name__}")
    try:
        copied = parse_json(compact(dict(auth)))
    except TypeError as error:
        raise InvalidData(f"auth is not JSON: {error}.") from None
    if not isinstance(copied, dict) or exceeds_levels(copied, MAX_CLAIM_LEVELS):
        raise InvalidData(f"auth is nested deeper than {MAX_CLAIM_LEVELS} levels.")
    return Identity(False, copied, source=HOST_SOURCE)


def _place_of(error: BaseException) -> str:
    """Return where an error was raised, without its text."""
    frames = traceback.extract_tb(error.__traceback__)
    last = frames[-1]
    return f"{last.filename}:{last.lineno}, in {last.name}"


def _time_out(_: object, __: float) -> NoReturn:
    raise DeadlinePassed("the application said who the caller is")
