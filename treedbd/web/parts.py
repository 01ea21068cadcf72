"""What the parts of the interface share, whatever protocol they serve."""

from __future__ import annotations

from collections.abc import Callable

import attrs
from twisted.internet.interfaces import IReactorTime

from treedbd.web.auth.authenticator import Authenticator
from treedbd.web.auth.host_login import HostLogin
from treedbd.web.cors import Cors
from treedbd.web.options import WebOptions
from treedbd.web.origins import OriginGuard, make_guard
from treedbd.web.rates import Rates, make_rates
from treedbd.web.request import RequestParser
from treedbd.web.response import ResponseWriter
from treedbd.web.shared_reads import SharedReads
from treedbd.web.users import Users


@attrs.frozen(eq=False)
class WebParts:
    """Shared by the handlers of one service.

    `wall_clock` returns the seconds since 1970. `guard` refuses pages of other sites, None if
    nothing does; `users` are those of the program that embeds the service, None if it names none;
    `rates` bound what callers do, None if nothing does.
    """

    options: WebOptions
    authenticator: Authenticator
    clock: IReactorTime
    wall_clock: Callable[[], float]
    parser: RequestParser
    reads: SharedReads
    writer: ResponseWriter
    guard: OriginGuard | None
    users: Users | None
    rates: Rates | None


def make_parts(
    options: WebOptions,
    authenticator: Authenticator,
    clock: IReactorTime,
    wall_clock: Callable[[], float],
    login: HostLogin | None,
) -> WebParts:
    """Return the parts of a service with these options; `login` is that of its program."""
    reads = SharedReads(options.limits, clock)
    cors = Cors(options.cors_origins)
    return WebParts(
        options,
        authenticator,
        clock,
        wall_clock,
        RequestParser(options),
        reads,
        ResponseWriter(cors, reads.memory, clock, compresses=options.compression),
        make_guard(options),
        None if login is None else Users(login, options.cors_origins),
        make_rates(options, authenticator, clock.seconds),
    )
