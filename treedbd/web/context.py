"""The context of handlers: what the interface of one service shares, whatever protocol it serves.

`Users` finds the users who are logged in to the application that embeds the service.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import attrs
from twisted.internet.interfaces import IReactorTime

from treedbd.counting import Counting, Levelling
from treedbd.http1.adapter import AdaptedRequest
from treedbd.http1.request import IHttp1Request
from treedbd.web.auth.identity import Identity
from treedbd.web.auth.verifier import Authenticator, HostLogin
from treedbd.web.origins import OriginGuard, make_guard
from treedbd.web.rates import Rates, make_rates
from treedbd.web.reading import SharedReads
from treedbd.web.request import DataRequest, RequestParser
from treedbd.web.response import Cors, ResponseWriter

if TYPE_CHECKING:
    from treedbd.config.settings import Settings
    from treedbd.web.audit import RequestAudit


@attrs.frozen(eq=False)
class WebContext:
    """What the handlers of one service share.

    `wall_clock` returns the seconds since 1970. `counts` counts the connections and streams of all
    processes that serve the same clients, None if there is one process. `guard` refuses pages of
    other sites, `users` finds the users of the program that embeds the service, `rates` bounds what
    callers do, and `audit` records who writes; each is None if the service has no such thing.
    """

    settings: Settings
    authenticator: Authenticator
    clock: IReactorTime
    wall_clock: Callable[[], float]
    counts: Counting | None
    parser: RequestParser
    reads: SharedReads
    writer: ResponseWriter
    guard: OriginGuard | None
    users: Users | None
    rates: Rates | None
    audit: RequestAudit | None = None


class Users:
    """Finds the user who sends a request, and refuses requests of pages of other sites."""

    def __init__(self, login: HostLogin, origins: Iterable[str]) -> None:
        """Find users by `login`; pages of `origins` may send their requests too."""
        self._login = login
        self._guard = OriginGuard(origins, is_for_users=True)

    async def find(self, request: IHttp1Request, timeout_s: float) -> Identity | None:
        """Return the user who is logged in, None if the application names none.

        Raises `ForeignOrigin`, because browsers send the cookies of a login with the requests of
        any page, and what `HostLogin.find` raises.
        """
        original = request.original if isinstance(request, AdaptedRequest) else request
        user = await self._login.find(original, timeout_s, request.notifyFinish)
        if user is not None:
            self._guard.check(request)
        return user

    async def identify(self, request: IHttp1Request, wanted: DataRequest) -> DataRequest:
        """Return a parsed request with its user; raises as `find`."""
        user = await self.find(request, wanted.timeout_s)
        if user is not None and "callback" in wanted.parameters:
            self._guard.check_script(request)
        return attrs.evolve(wanted, identity=user)


def make_context(
    *,
    settings: Settings,
    authenticator: Authenticator,
    clock: IReactorTime,
    wall_clock: Callable[[], float],
    counts: Counting | None = None,
    levels: Levelling | None = None,
    login: HostLogin | None = None,
    audit: RequestAudit | None = None,
) -> WebContext:
    """Return the context of a service with these settings.

    `wall_clock` returns the seconds since 1970. `counts` and `levels` are shared by the processes
    that serve the same clients. `login` names the sender of a request, before its token is
    considered; None if only tokens identify senders. `audit` records who writes, if anything does.
    """
    reads = SharedReads(settings.limits, clock)
    cors = Cors(settings.http.cors_origins)
    return WebContext(
        settings=settings,
        authenticator=authenticator,
        clock=clock,
        wall_clock=wall_clock,
        counts=counts,
        parser=RequestParser(settings),
        reads=reads,
        writer=ResponseWriter(cors, reads.memory, clock, compresses=settings.http.compression),
        guard=make_guard(settings),
        users=None if login is None else Users(login, settings.http.cors_origins),
        rates=make_rates(settings, levels, authenticator, clock.seconds),
        audit=audit,
    )
